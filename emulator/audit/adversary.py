"""The adversary: subtracts all it knows, looks along one line, and guesses which world it is in.

It knows what its own clients put in (data and noise) and, as differential privacy has it in the worst case, the data of
all other clients; of the victim it knows that the row is x or x'. What is left is x or x', and the noises of the honest
clients. For Gaussian noise of the same variance in each coordinate, the position on the line from x' to x holds all
that can be learned (Neyman and Pearson), so the adversary looks at that one number: +Δ/2 plus noise in world 0, -Δ/2
plus noise in world 1. It guesses world 0 above a threshold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from emulator.audit.programme import Programme, Rounds, Seen
from emulator.audit.worlds import VICTIM, World

Samples = tuple[NDArray[np.float64], NDArray[np.float64]]
"""One number per run, in world 0 and in world 1."""


class Adversary:
    """What a coalition makes of what it sees.

    Args:
        world: the two worlds and the coalition. programme: what all clients run, which is public.
    """

    def __init__(self, world: World, programme: Programme) -> None:
        outside = [client for client in world.present if client not in (VICTIM, *world.coalition)]
        values = [programme.encode(world, client, 0) for client in outside]
        self._others = sum(values, np.zeros(world.size, dtype=np.int64))
        self._middle = (programme.encode(world, VICTIM, 0) + programme.encode(world, VICTIM, 1)) / 2
        self._line = programme.direction(world)
        self._unit = world.plan.unit

    def look(self, seen: Seen) -> NDArray[np.float64]:
        """One number per run, in the statistic's units."""
        residual = seen.total - seen.own - self._others
        looked: NDArray[np.float64] = (residual - self._middle) @ self._line * self._unit
        return looked


class Experiment(NamedTuple):
    """What an adversary saw: `pilot` runs to choose thresholds on, and other runs to count errors on."""

    pilot: Samples
    main: Samples


def experiment(
    rounds: Rounds, adversary: Adversary, pilot: int, runs: int, progress: Callable[[int], None] = lambda done: None
) -> Experiment:
    """Hold `pilot` + `runs` runs in each world. `progress` is told how many more are done."""

    def side(number: int, count: int) -> NDArray[np.float64]:
        parts = []
        for first in range(0, count, rounds.batch):
            size = min(rounds.batch, count - first)
            parts.append(adversary.look(rounds.hold(number, size)))
            progress(size)
        return np.concatenate(parts)

    return Experiment((side(0, pilot), side(1, pilot)), (side(0, runs), side(1, runs)))
