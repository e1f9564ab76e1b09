"""Invariant 10: each release carries the noise that its claim needs, in amount and shape, from a secret of its own.

The noise of a contribution is what its holder keeps, without the masks and without the client's statistic. The checker
computes both anew, from stored keys and rows (`emulator.pairs`, `emulator.reference`). The noise of a release or report
is what the trainer can open, without the statistic. So the truth of a draw does not come from the code that draws.

`emulator.reference` also gives its law, from the announcement alone. `emulator.shape` judges all draws of a trial, with
a chance of less than `ALARM` to accuse correct noise, and again all draws of a sweep.

In a verified sum, the noise of a client is its noise numbers after the coins have flipped their bits, whatever the
client chose: independent and uniform. The checker takes them from all shares of contributions in A
(`emulator.verified`).

As a cross-check, the recording of the product's own draws has the variance of each draw before the sum, and shows that
its key depends on fresh randomness and on the client's secret.
"""

from __future__ import annotations

from math import ldexp
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dca_proto.privacy.mechanism import (
    ANALYTIC_GAUSSIAN,
    GRID_LAPLACE,
    RANDOMISED_RESPONSE,
    UNARY_ENCODING,
    DistributedDiscreteGaussian,
)
from dca_proto.protocol.contribution import ClientMessage, HeldContribution
from dca_proto.protocol.wire.kinds import NodeRelease, SecureSum
from dca_proto.protocol.wire.messages import Announcement
from emulator import reference, shape, verified
from emulator.derivations import WORD_BYTES
from emulator.shape import ALARM, Shape
from emulator.sim.process import Process
from emulator.sim.streams import Streams
from emulator.trials.checkers.base import Checker, ReleasedVector, RunLog, about
from emulator.trials.checkers.entries import Entry
from emulator.trials.world import TrialWorld
from emulator.wire import Accepted, counts_of, statement_of, words_in

_ROUNDING = 1 - 1e-9
_GAUSSIAN = (DistributedDiscreteGaussian.name, ANALYTIC_GAUSSIAN)
COINS = "coin-flipped-bits"
LAWS = {
    **dict.fromkeys(_GAUSSIAN, "Gaussian noise"),
    GRID_LAPLACE: "Laplace noise",
    RANDOMISED_RESPONSE: "randomised responses",
    UNARY_ENCODING: "unary encodings",
    COINS: "noise numbers of coins",
}
"""The laws that are judged, by mechanism."""


class _Draw(NamedTuple):
    """One draw. `found`: noise in grid units, a category, or bits. `value`: the client's statistic before noise."""

    client: bytes
    round_id: bytes
    accepted: Accepted
    found: NDArray[np.int64]
    value: NDArray[np.int64]


class NoiseChecker(Checker):
    """Checks the amount and the shape of noise, and its key.

    Attributes:
        shape: the counts of all noise, after `finish`.
    """

    number, name = 10, "enough noise from a fresh secret"

    def __init__(self, world: TrialWorld, log: RunLog) -> None:
        super().__init__(world, log)
        self.shape = Shape()
        self._variances: dict[bytes, float] = {}  # least variance of one client's noise, by announcement
        self._draws: dict[tuple[bytes, bytes, bytes], _Draw] = {}  # by round, client and contribution

    def on_drawn(self, client: Process, round_id: bytes, outbound: ClientMessage) -> None:
        """The product's own draw for an honest client's contribution has enough variance, from a fresh key."""
        accepted, draws = self.log.accepted[client.id, round_id], self.log.draws
        if draws.drawn is None:
            return  # invariant 3 reports a contribution without noise
        who, missing = about(client, round_id), " and on ".join(draws.key_ignores)
        self.expect(not missing, f"{who}: its noise does not depend on {missing}")
        if accepted.body.kind.mechanism == DistributedDiscreteGaussian.name:
            least, variance = self._least(accepted), float(draws.variance)
            enough = variance >= least * _ROUNDING
            self.expect(enough, f"{who}: its noise has the variance {variance:.6g}, expected {least:.6g}")

    def on_kept(self, node: Process, round_id: bytes, client: bytes, kept: HeldContribution) -> None:
        """Note the noise of an honest client's contribution at an honest node."""
        key = round_id, client, kept.contribution
        if key in self._draws or key not in self.log.quantised or node.id in self.log.dishonest:
            return
        accepted = self.log.accepted[client, round_id]
        if accepted.body.kind.is_verified:
            return
        noisy = self.log.unmasked(node.id, accepted, Entry(client, kept.contribution, kept.charge, node.id))
        if noisy is not None:
            self._note(key, noisy.view(np.int64))

    def on_partial_sum(self, release: ReleasedVector) -> None:
        """In a verified sum, note the noise of all contributions in A. There is enough."""
        accepted = self.log.accepted.get((release.sender, release.round_id))
        statement, chosen = None if accepted is None else statement_of(accepted.body), self.log.agreed(release)
        if accepted is None or statement is None or chosen is None or accepted.body.kind.mechanism not in LAWS:
            return
        least = self._least(accepted)
        enough = statement.variance >= least * _ROUNDING
        who = f"round {release.round_id.hex()[:8]}"
        self.expect(enough, f"{who}: its noise has the variance {statement.variance:.6g}, expected {least:.6g}")
        coins = verified.coins_of(statement, self.log.challenge(release), [entry.encoded for entry in chosen])
        for entry, own in zip(chosen, coins, strict=True):
            key, words = (release.round_id, entry.client, entry.contribution), self.log.words(accepted, entry)
            if key not in self._draws and words is not None and self.all_nodes_are_honest:
                flipped = verified.noise_in(statement, words, own, adds_coins=True).ravel()
                none = np.zeros(0, dtype=np.int64)
                self._draws[key] = _Draw(entry.client, release.round_id, accepted, flipped, none)

    def on_release(self, release: ReleasedVector) -> None:
        """Note the noise of an honest client's release or report."""
        key, vector = (release.round_id, release.sender, release.body.contribution), release.body.vector
        if key in self._draws or key not in self.log.quantised:
            return
        body = self.log.accepted[release.sender, release.round_id].body
        d = reference.dimension(body.statistic, body.parameters)
        if body.kind.mechanism == RANDOMISED_RESPONSE:
            self._note(key, np.array([int.from_bytes(vector, "little")]))
        elif body.kind.mechanism == UNARY_ENCODING:
            bits = np.unpackbits(np.frombuffer(vector, dtype=np.uint8), bitorder="little")
            bits = bits[:d].astype(np.int64)
            self._note(key, np.pad(bits, (0, d - bits.size)))
        elif len(vector) == WORD_BYTES * d:  # invariant 3 reports other lengths
            self._note(key, words_in(vector).view(np.int64))

    def _note(self, key: tuple[bytes, bytes, bytes], found: NDArray[np.int64]) -> None:
        round_id, client, _ = key
        accepted, (_, value) = self.log.accepted[client, round_id], self.log.quantised[key]
        if accepted.body.kind.mechanism not in LAWS:
            return  # a trial without noise
        if accepted.body.kind.mechanism not in (RANDOMISED_RESPONSE, UNARY_ENCODING):
            found = found - value
        self._draws[key] = _Draw(client, round_id, accepted, found, value)

    def _least(self, accepted: Accepted) -> float:
        """Return the least variance of one client's noise, in squared grid units."""
        body = accepted.body
        if accepted.hash not in self._variances:
            honest = counts_of(body.kind).honest if isinstance(body.kind, SecureSum) else 1
            l2 = _sensitivity(body, is_rounded=not body.kind.is_verified)[1]
            self._variances[accepted.hash] = reference.least_variance(l2, body.epsilon, body.delta, honest)
        return self._variances[accepted.hash]

    def _table(self, draws: list[_Draw], dither: np.random.Generator) -> shape.NoiseTable:
        """Return the noise of all draws of a mechanism, a row for each."""
        body, found = draws[0].accepted.body, np.array([draw.found for draw in draws])
        values, noise, largest = np.array([draw.value for draw in draws]), None, 1.0
        if body.kind.mechanism in _GAUSSIAN:
            variances = np.array([self._least(draw.accepted) for draw in draws])
            noise, largest = found, shape.largest_of_gaussian(variances.min())
            places = shape.of_gaussian(found, variances[:, None], dither)
        elif body.kind.mechanism == COINS:
            statements = [statement_of(draw.accepted.body) for draw in draws]
            chances = np.array([2.0 ** -(one.noise_bits if one else 0) for one in statements])[:, None]
            places = shape.of_choice(found * chances, np.broadcast_to(chances, found.shape), dither)
        elif body.kind.mechanism == GRID_LAPLACE:
            bodies = [draw.accepted.body for draw in draws]
            decays = np.array([one.epsilon / _sensitivity(one)[0] for one in bodies])
            noise, largest = found, shape.largest_of_laplace(decays.max())
            places = shape.of_laplace(found, decays[:, None], dither)
        else:
            of = _of_categories if body.kind.mechanism == RANDOMISED_RESPONSE else _of_bits
            rows = [of(draw.accepted.body, draw.found, draw.value, dither) for draw in draws]
            places = np.array(rows)
        same = values if values.shape == places.shape else None
        clients, rounds = tuple(draw.client for draw in draws), tuple(draw.round_id for draw in draws)
        return shape.NoiseTable(LAWS[body.kind.mechanism], places, noise, largest, same, clients, rounds)

    def finish(self) -> None:
        """All draws of the trial together have the right amount and shape."""
        seed = Streams(self.world.scenario.seed)("shape").getrandbits(64)
        dither = np.random.default_rng(seed)
        by_mechanism: dict[tuple[str, int], list[_Draw]] = {}  # and the number of values
        for draw in self._draws.values():
            by_mechanism.setdefault((draw.accepted.body.kind.mechanism, draw.found.size), []).append(draw)
        for draws in by_mechanism.values():
            self.shape.count(self._table(draws, dither), dither)
        verdict = self.shape.verdict(ALARM)
        self.checked += verdict.tests
        for sentence in verdict.broken:
            self.fail(sentence)


def _sensitivity(body: Announcement, *, is_rounded: bool = True) -> tuple[float, float]:
    """Return Δ₁ and Δ₂ of what the noise hides, in grid units; with what rounding a mean adds."""
    if not is_rounded:
        l1, l2 = reference.sensitivity_of(body.statistic, body.parameters, max(1, body.rows_max))
        return ldexp(l1, body.fraction_bits), ldexp(l2, body.fraction_bits)
    of_row = isinstance(body.kind, NodeRelease)
    return reference.grid_sensitivity(body.statistic, body.parameters, body.rows_max, body.fraction_bits, of_row=of_row)


def _own(value: NDArray[np.int64]) -> int | None:
    """Return a client's category, if it has one."""
    return int(np.argmax(value)) if value.any() else None


def _of_categories(body: Announcement, found: Any, value: NDArray[np.int64], dither: np.random.Generator) -> Any:
    """Return the place of a randomised response: its own category first, then the others in turn."""
    own, k = _own(value), value.size
    right, wrong, missing = reference.odds(RANDOMISED_RESPONSE, body.epsilon, k)
    if own is None:
        return shape.of_choice(found * missing, np.full(1, missing), dither)
    turn = (found - own) % k
    return shape.of_choice(np.where(turn, right + (turn - 1) * wrong, 0.0), np.where(turn, wrong, right), dither)


def _of_bits(body: Announcement, found: Any, value: NDArray[np.int64], dither: np.random.Generator) -> Any:
    """Return the places of the bits of a unary encoding: 1 before 0."""
    right, wrong, _ = reference.odds(UNARY_ENCODING, body.epsilon, value.size)
    chances = np.where(value != 0, right, wrong)
    return shape.of_choice(np.where(found, 0.0, chances), np.where(found, chances, 1 - chances), dither)
