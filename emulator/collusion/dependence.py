"""Tests whether a coalition's view depends on the data beyond the private sum, on two neighbouring inputs.

*Traffic*: with equal seeds, the two worlds must send and deliver the same messages: same times, senders, receivers and
lengths, to the microsecond and to the byte, over links that delay, repeat and reorder.

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

The smallest p-value, times the number of tests (Bonferroni) and doubled, is compared with `ALARM`. It is doubled
because χ² is a limit law: with the least five words for each value, the true tail of the statistic at such p-values is
up to twice as heavy (by simulation with importance sampling: 2.0 times for one byte at 5 words, 1.5 at 10, 1.0 at 50).
So vectors that are uniform and independent are accused less than once in a million reports.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, ttest_ind

from dca_proto.crypto.masks import RingVector
from emulator.audit.uniformity import byte_counts, byte_p_value
from emulator.collusion.coalition import Case
from emulator.collusion.rounds import Round, Rounds
from emulator.collusion.view import View
from emulator.results import Amount
from emulator.sim.link import LinkOptions

ALARM = 1e-6
"""Upper bound on the probability that the tests accuse a correct program."""
WORDS_MIN = 1280
"""The least number of words in each world for a χ² over 256 values: 5 of each value."""
_TAIL = 2
"""Correction for the tail of χ², which is heavier than its limit."""
SHAPE_ROUNDS = 2
Counts = NDArray[np.int64]
_NONE: Counts = np.zeros((8, 256), dtype=np.int64)

ARRIVED = "the client's masked vectors as they arrive"
VICTIMS, OTHERS = "the client's masked vectors minus own masks", "other clients' masked vectors"
PARTIALS, REST = "the nodes' partial sums", "the private sum minus its masked vector"
GIVEN = "its masked vectors, given the private sum"


class Test(msgspec.Struct, frozen=True):
    """A statistical test. `of`: the tested data. `against`: the law under the null hypothesis."""

    __test__ = False  # tells pytest that this class is not a test case

    of: str
    against: str
    p_value: float


class Dependence(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the tests.

    Attributes:
        p_value: of all tests together; None if the coalition sees nothing. false_alarm: dependence is reported below.
        same_traffic: whether both worlds have the same. tests: all of them.
    """

    depends_on_data: bool
    p_value: Amount | None = None
    false_alarm: Amount = ALARM
    same_traffic: bool = True
    tests: list[Test] = []

    @classmethod
    def of(cls, tests: list[Test], *, same_traffic: bool) -> Dependence:
        p_value = joint_p_value(tests)
        depends = not same_traffic or (p_value is not None and p_value < ALARM)
        return cls(depends_on_data=depends, p_value=p_value, same_traffic=same_traffic, tests=tests)

    @property
    def worst(self) -> str:
        """The test with the least p-value, as a sentence."""
        worst = min(self.tests, key=lambda test: test.p_value, default=None)
        return f"{worst.of} are not {worst.against}, p = {worst.p_value:.2g}" if worst else ""


def same_traffic(case: Case, seed: str) -> tuple[bool, View, Round]:
    """Return whether both worlds have the same messages, and the view and the last round of world 0.

    The links of these rounds delay, repeat and reorder.
    """
    worlds = [Rounds(case, side, f"{seed}/traffic", LinkOptions()) for side in (0, 1)]
    same = True
    for _ in range(SHAPE_ROUNDS):
        first = worlds[0].run_round()
        worlds[1].run_round()
        view, other = (world.view for world in worlds)
        same = same and view.sent == other.sent and view.delivered == other.delivered
    return same, worlds[0].view, first


class Tally:
    """Counts the bytes that a coalition sees in rounds of both worlds."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._counts: dict[str, tuple[Counts, Counts]] = {}
        self._given = (_NONE.copy(), _NONE.copy())
        self._means: tuple[list[float], list[float]] = ([], [])

    def add(self, side: int, seen: Round) -> None:
        """Count one round of world `side`."""
        for name, words in _visible_words(self._case, seen):
            self._counts.setdefault(name, (_NONE.copy(), _NONE.copy()))[side][:] += byte_counts(words)
        if seen.victim is None:
            return
        self._means[side].append(float(seen.victim.view(np.int64).astype(np.float64).mean()))
        if seen.total is not None and self._case.coalition.trainer:
            is_high = seen.total - seen.known > seen.honest
            for place in (0, 1):
                self._given[place][:] += byte_counts(seen.victim[is_high == bool(place)])

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
    """Return the smallest p-value, times their number (Bonferroni) and `_TAIL`; None if there are none."""
    return min(1.0, _TAIL * min(test.p_value for test in tests) * len(tests)) if tests else None


def same_p_value(first: Counts, second: Counts) -> float:
    """Return the p-value of χ² tests that two tables of byte counts, shape ``(8, 256)``, have the same law.

    A single bit may leak, so each byte has a test of its own (Bonferroni).
    """
    both = (first + second).astype(np.float64)
    totals = both.sum(axis=1, keepdims=True)
    statistics = np.zeros(len(both))
    for counts in (first, second):
        expected = both * counts.sum(axis=1, keepdims=True) / np.maximum(totals, 1)
        statistics += ((counts - expected) ** 2 / np.where(expected > 0, expected, 1)).sum(axis=1)
    degrees = np.maximum(np.count_nonzero(both, axis=1) - 1, 1)
    return float(min(1.0, len(both) * chi2.sf(statistics, degrees).min()))


def _visible_words(case: Case, seen: Round) -> Iterator[tuple[str, RingVector]]:
    if seen.arrived is not None:
        yield ARRIVED, seen.arrived
    if seen.victim is not None:
        yield VICTIMS, seen.victim
        if case.coalition.trainer and seen.total is not None:
            yield REST, seen.total.view(np.uint64) - seen.victim
    if seen.others:
        yield OTHERS, np.concatenate(seen.others)
    if case.coalition.trainer and seen.partials:
        yield PARTIALS, np.concatenate(seen.partials[1:])  # the sum determines the one left out
