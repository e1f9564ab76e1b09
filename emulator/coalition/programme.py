"""The program of a client, and the ideal functionality that runs it for many rounds at once.

`Programme` is the correct client: the protocol's statistics, encoding and exact noise. In a verified sum, the
coalition also knows how each client's value was rounded: values are points of the grid. The planted faults (`faults`)
are subclasses that change one step. The ideal functionality is a trusted party that adds up all contributions. It draws
the noise of many rounds at once, exactly, millions of draws a second. A test shows that its sum has the protocol's law.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.sealing import KEY_BYTES, Random, expand
from dca_proto.privacy.noise import discrete_gaussian
from emulator.claim import VICTIM
from emulator.coalition.worlds import Setting, Worlds

if TYPE_CHECKING:
    from emulator.coalition.dependence import SeenCounts

_BATCH_WORDS = 1 << 17


class SeenSums(NamedTuple):
    """What a coalition sees of some rounds, in grid units.

    Attributes:
        rest: shape ``(released rounds, size)``: each released sum without the contributions of the coalition's own
            clients. If all Compute nodes collude, the victim's contribution alone, of each round.
        drawn: noises of single honest clients, a row for each; the coalition does not know them.
        clients, rounds: of each row of `drawn`, if they are to be compared with each other.
        tally: counts of what is seen of the messages, if there are any.
    """

    rest: NDArray[np.int64]
    drawn: NDArray[np.int64]
    clients: tuple[int, ...] = ()
    rounds: tuple[str, ...] = ()
    tally: SeenCounts | None = None


class AuditedRounds(Protocol):
    """Runs rounds to be audited."""

    def run_rounds(self, side: int, runs: int) -> Iterator[SeenSums]:
        """Yield `runs` independent runs in world `side`, 0 or 1, in batches."""


class Programme:
    """A client's program, correct as it stands; a fault overrides one step.

    Attributes:
        name: for `--plant`. meaning: what is wrong, in a sentence.
    """

    name = ""
    meaning = ""

    def operating_point(self, setting: Setting) -> Setting:
        """Return the setting at which the fault breaks the claim."""
        return setting

    def describe(self, setting: Setting) -> str:
        """Return what is wrong, with figures."""
        return self.meaning

    def silent(self, setting: Setting) -> int:
        """Return how many clients outside the coalition add no noise."""
        return 0

    def encode(self, world: Worlds, client: int, side: int) -> NDArray[np.int64]:
        """Return a client's values before noise, shape ``(world.size,)``."""
        return np.tile(world.encode(world.row(client, side)), world.setting.rounds)

    def noise_variance(self, world: Worlds) -> int:
        """Return S, the variance of a client's noise, in squared grid units."""
        return world.validated.noise_variance

    def noise(self, world: Worlds, client: int, runs: int, random: Random) -> NDArray[np.int64]:
        """Return a client's noise in `runs` runs, shape ``(runs, world.size)``."""
        if (statement := world.validated.statement) is not None:
            part = self.noise_variance(world) / world.validated.noise_variance
            drawn = uniform_sums(
                max(1, round(part * statement.noises)), statement.noise_bits, runs * world.size, random
            )
        else:
            sampler = discrete_gaussian(self.noise_variance(world))
            drawn = sampler.sample(runs * world.size, random(KEY_BYTES))
        return drawn.reshape(runs, world.size)

    def contribute(self, world: Worlds, value: NDArray[np.int64], noise: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the contribution, before it is masked."""
        return value + noise


def uniform_sums(numbers: int, bits: int, count: int, random: Random) -> NDArray[np.int64]:
    """Return sums of uniform numbers on 0..2^bits - 1, without the whole units of their mean, ``(count,)``.

    Coins make all bits of a verified sum's noise uniform and independent. So as many bits of a place are 1 as there are
    in that many random bits.
    """
    total = np.full(count, -(numbers * ((1 << bits) - 1) // 2), dtype=np.int64)
    for place in range(bits):
        for first in range(0, numbers, 64):
            words = np.frombuffer(expand(random(KEY_BYTES), 8 * count), dtype="<u8")
            kept = words >> np.uint64(max(0, 64 - (numbers - first)))
            total += np.bitwise_count(kept).astype(np.int64) << place
    return total


class IdealRounds:
    """The ideal functionality of a programme.

    Args:
        world: what is summed. programme: what clients do. random: for the noise keys, one per client and batch.
    """

    def __init__(self, world: Worlds, programme: Programme, random: Random) -> None:
        self._world = world
        self._programme = programme
        self._random = random
        self._values = [{client: programme.encode(world, client, side) for client in world.honest} for side in (0, 1)]

    def run_rounds(self, side: int, runs: int) -> Iterator[SeenSums]:
        world, programme = self._world, self._programme
        batch = max(1, _BATCH_WORDS // world.size)
        for first in range(0, runs, batch):
            count = min(batch, runs - first)
            rest, drawn = np.zeros((count, world.size), dtype=np.int64), {}
            for client in world.honest:
                drawn[client] = programme.noise(world, client, count, self._random)
                rest += programme.contribute(world, self._values[side][client], drawn[client])
            yield SeenSums(rest, drawn[VICTIM])
