"""Tests whether a coalition's view depends on the data beyond the private sum, on two neighbouring inputs.

*Traffic* (`actors.same_traffic`): with equal seeds, the two worlds must send and deliver the same messages: same times,
senders, receivers and lengths, to the microsecond and to the byte, over links that delay, repeat and reorder.

*Masked vectors*: a contribution as it arrives, and the same with the masks of M - 1 Compute nodes removed, must be
uniform in the ring and independent of the value (DESIGN §6). Every world and round has fresh randomness. The tests are:

- in each world, χ² against the uniform law: of these vectors and, if the trainer colludes, of the partial sums and of
  the private sum minus the vector;
- χ² of one world against the other;
- a t test of the mean, along the line from one input to the other;
- if the trainer colludes, χ² of the vector where the private sum is high against where it is low: its law given the
  sum.

Each χ² covers 8 byte positions with 256 values. A node that does not hold the client's contribution has only masks,
which contain no data.

The p-value of all tests together is the smallest, times their number (Bonferroni) and doubled. It is doubled because
χ² is a limit law: with the least five words for each value, the true tail of the statistic at p-values of 1e-6 is up to
twice as heavy (by simulation with importance sampling: 2.0 times for one byte at 5 words, 1.5 at 10, 1.0 at 50).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
import numpy as np
from scipy.stats import chi2, ttest_ind

from dca_proto.crypto.masks import RingVector
from dca_proto.results.figure import about
from emulator.coalition.uniformity import bonferroni, byte_counts, byte_p_value
from emulator.coalition.view import Integers, SeenRound

WORDS_MIN = 1280
"""The least number of words in each world for a χ² over 256 values: 5 of each value."""
_TAIL = 2
"""Correction for the tail of χ², which is heavier than its limit."""
Counts = Integers

ARRIVED = "the client's masked vectors as they arrive"
VICTIMS, OTHERS = "the client's masked vectors minus own masks", "other clients' masked vectors"
PARTIALS, REST = "the nodes' partial sums", "the private sum minus its masked vector"
GIVEN = "its masked vectors, given the private sum"


class Test(msgspec.Struct, frozen=True):
    """A statistical test of what a coalition sees."""

    __test__ = False  # tells pytest that this class is not a test case

    of: Annotated[str, about("The tested data.")]
    against: Annotated[str, about("The law that they should have.")]
    p_value: Annotated[float, about("Its p-value.")]


def _none() -> tuple[Counts, Counts]:
    return np.zeros((8, 256), dtype=np.int64), np.zeros((8, 256), dtype=np.int64)


class SeenCounts:
    """Counts of what a coalition sees of the messages of some rounds, in both worlds.

    Attributes:
        rounds: their number. released: of how many the sum was released.
    """

    def __init__(self) -> None:
        self.rounds = self.released = 0
        self._counts: dict[str, tuple[Counts, Counts]] = {}
        self._given = _none()
        self._means: tuple[list[float], list[float]] = ([], [])

    def add(self, side: int, seen: SeenRound, *, has_trainer: bool) -> None:
        """Count one round of world `side`. `has_trainer`: whether the trainer belongs to the coalition."""
        self.rounds, self.released = self.rounds + 1, self.released + (seen.total is not None)
        for name, words in _visible_words(seen, has_trainer):
            self._counts.setdefault(name, _none())[side][:] += byte_counts(words)
        if seen.victim is None:
            return
        self._means[side].append(float(seen.victim.view(np.int64).astype(np.float64).mean()))
        if seen.total is not None and has_trainer:
            is_high = seen.total - seen.known > seen.honest
            for place in (0, 1):
                self._given[place][:] += byte_counts(seen.victim[is_high == bool(place)])

    def merge(self, other: SeenCounts) -> None:
        """Add the counts of other rounds."""
        self.rounds, self.released = self.rounds + other.rounds, self.released + other.released
        for name, worlds in other._counts.items():
            for mine, theirs in zip(self._counts.setdefault(name, _none()), worlds, strict=True):
                mine += theirs
        for side in (0, 1):
            self._given[side][:] += other._given[side]
            self._means[side].extend(other._means[side])

    @property
    def victims(self) -> list[float]:
        """The mean of the victim's vector in each round of world 0 in which the coalition holds it."""
        return self._means[0]

    def tests(self) -> Iterator[Test]:
        """Yield all tests, in the order of the module's docstring."""
        both = {name: worlds for name, worlds in self._counts.items() if all(counts.any() for counts in worlds)}
        for name, worlds in both.items():
            for side, counts in enumerate(worlds):
                yield Test(name, f"uniform, world {side}", byte_p_value(counts))
            yield Test(name, "the same in both worlds", same_p_value(*worlds))
        if all(len(means) > 1 for means in self._means):  # a t test needs two values of each
            first, second = self._means
            p_value = float(np.ptp([*first, *second]) == 0)  # without any spread: 1 if equal, else 0
            if np.ptp(first) or np.ptp(second):
                p_value = float(ttest_ind(first, second, equal_var=False).pvalue)
            yield Test(VICTIMS, "the same mean in both worlds", p_value)
        if self._given[0].any():
            yield Test(GIVEN, "the same whatever the sum", same_p_value(*self._given))


def joint_p_value(tests: Sequence[Test]) -> float | None:
    """Return the p-value of all tests together, times `_TAIL`; None if there are none."""
    return min(1.0, _TAIL * bonferroni(test.p_value for test in tests)) if tests else None


def same_p_value(first: Counts, second: Counts) -> float:
    """Return the p-value of χ² tests that two tables of byte counts, shape ``(8, 256)``, have the same law.

    A single bit may leak, so each byte has a test of its own.
    """
    both = (first + second).astype(np.float64)
    totals = both.sum(axis=1, keepdims=True)
    statistics = np.zeros(len(both))
    for counts in (first, second):
        expected = both * counts.sum(axis=1, keepdims=True) / np.maximum(totals, 1)
        statistics += ((counts - expected) ** 2 / np.where(expected > 0, expected, 1)).sum(axis=1)
    degrees = np.maximum(np.count_nonzero(both, axis=1) - 1, 1)
    return bonferroni(chi2.sf(statistics, degrees).tolist())


def _visible_words(seen: SeenRound, has_trainer: bool) -> Iterator[tuple[str, RingVector]]:
    if seen.arrived is not None:
        yield ARRIVED, seen.arrived
    if seen.victim is not None:
        yield VICTIMS, seen.victim
        if has_trainer and seen.total is not None:
            yield REST, seen.total.view(np.uint64) - seen.victim
    if seen.others:
        yield OTHERS, np.concatenate(seen.others)
    if has_trainer and seen.partials:
        yield PARTIALS, np.concatenate(seen.partials[1:])  # the sum determines the one left out
