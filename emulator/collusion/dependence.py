"""Whether what a coalition sees depends on the data, beyond the private sum: tests on two neighbouring inputs.

*Traffic*: with equal seeds, the two worlds must send and deliver the same messages: same times, senders, receivers and
lengths, to the microsecond and to the byte, over links that delay, repeat and reorder.

*Masked vectors*: a contribution as it comes, and what M - 1 Compute nodes make of it by taking off all of their masks,
must be uniform in the ring and independent of the value (DESIGN §6). On fresh randomness in each world and round: χ²
against the uniform law of it, and (with the trainer) of partial sums and of the private sum less it, in each world; χ²
of one world against the other; a t test of the mean along the line from one input to the other; and, with the trainer,
χ² of it where the private sum came out high against where it came out low: its law given the sum. Each χ² is over 8
byte positions of 256 values. A node that does not hold the client's contribution has masks alone, which no data are in.

The smallest p-value times the number of tests (Bonferroni) is compared with `ALARM`, and doubled before: χ² is a limit,
and at the five words for each value that are asked for at least, the statistic's true tail at such p-values is up to
twice as heavy (by simulation with importance sampling: 2.0 times for one byte at 5 words, 1.5 at 10, 1.0 at 50). So
vectors that are uniform and independent are accused less than once in a million reports.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, ttest_ind

from dca_proto.crypto.fixedpoint import from_ring, to_ring
from dca_proto.crypto.masks import RingVector
from emulator.audit.uniformity import byte_counts, byte_p_value
from emulator.collusion.coalition import Case
from emulator.collusion.rounds import Round, Rounds
from emulator.collusion.view import View
from emulator.results import Amount
from emulator.sim.link import LinkOptions

ALARM = 1e-6
"""Probability that a correct program is said to depend on the data."""
WORDS_MIN = 1280
"""Words in each world that a χ² over 256 values asks for: 5 of each value."""
_TAIL = 2
"""How much heavier than its limit the tail of χ² may be there."""
SHAPE_ROUNDS = 2
Counts = NDArray[np.int64]
_NONE: Counts = np.zeros((8, 256), dtype=np.int64)

ARRIVED = "the client's masked vectors as they come"
VICTIMS, OTHERS = "the client's masked vectors less own masks", "other clients' masked vectors"
PARTIALS, REST = "the nodes' partial sums", "the private sum less its masked vector"
GIVEN = "its masked vectors, given the private sum"


class Test(msgspec.Struct, frozen=True):
    """One test. `of`: what was looked at. `against`: which law. `p_value`: how likely chance is to show as much."""

    __test__ = False  # for pytest: this is no test of ours

    of: str
    against: str
    p_value: float


class Dependence(msgspec.Struct, frozen=True, kw_only=True):
    """The tests' answer.

    Attributes:
        p_value: of all together; None where nothing is seen. false_alarm: below which they speak of dependence.
        same_traffic: in both worlds. tests: all of them.
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
    """Whether both worlds' messages are alike, over links that delay, repeat and reorder; and a round to look at."""
    worlds = [Rounds(case, side, f"{seed}/traffic", LinkOptions()) for side in (0, 1)]
    alike = True
    for _ in range(SHAPE_ROUNDS):
        first = worlds[0].hold()
        worlds[1].hold()
        one, other = (world.view for world in worlds)
        alike = alike and one.sent == other.sent and one.delivered == other.delivered
    return alike, worlds[0].view, first


class Tally:
    """Counts what is seen of the rounds of both worlds.

    Args:
        case: who looks.
    """

    def __init__(self, case: Case) -> None:
        self._case = case
        self._counts: dict[str, tuple[Counts, Counts]] = {}
        self._given = (_NONE.copy(), _NONE.copy())
        self._means: tuple[list[float], list[float]] = ([], [])

    def add(self, side: int, one: Round) -> None:
        """Count in one round of world `side`."""
        for name, words in _looks(self._case, one):
            self._counts.setdefault(name, (_NONE.copy(), _NONE.copy()))[side][:] += byte_counts(words)
        if one.victim is None:
            return
        self._means[side].append(float(from_ring(one.victim).astype(np.float64).mean()))
        if one.total is not None and self._case.coalition.trainer:
            is_high = one.total - one.known > one.honest
            for place in (0, 1):
                self._given[place][:] += byte_counts(one.victim[is_high == bool(place)])

    def tests(self) -> Iterator[Test]:
        """All of them, in the order in which they are explained above."""
        seen = {name: worlds for name, worlds in self._counts.items() if all(counts.any() for counts in worlds)}
        for name, worlds in seen.items():
            for side, counts in enumerate(worlds):
                yield Test(name, f"uniform, world {side}", byte_p_value(counts))
            yield Test(name, "the same in both worlds", same_p_value(*worlds))
        if all(len(means) > 1 for means in self._means):  # one value has no spread to compare with
            first, second = self._means
            p_value = float(np.ptp([*first, *second]) == 0)  # without any spread they are alike, or not
            if np.ptp(first) or np.ptp(second):
                p_value = float(ttest_ind(first, second, equal_var=False).pvalue)
            yield Test(VICTIMS, "the same mean in both worlds", p_value)
        if self._given[0].any():
            yield Test(GIVEN, "the same whatever the sum", same_p_value(*self._given))


def joint_p_value(tests: Sequence[Test]) -> float | None:
    """The smallest, times their number (Bonferroni) and `_TAIL`; None without any."""
    return min(1.0, _TAIL * min(test.p_value for test in tests) * len(tests)) if tests else None


def same_p_value(first: Counts, second: Counts) -> float:
    """χ² tests of whether two tables of byte counts, shape ``(8, 256)``, come from one law: of the 8 bytes together.

    A leak may be in a single bit, so each byte has a test of its own (Bonferroni).
    """
    both = (first + second).astype(np.float64)
    totals = both.sum(axis=1, keepdims=True)
    statistics = np.zeros(len(both))
    for counts in (first, second):
        expected = both * counts.sum(axis=1, keepdims=True) / np.maximum(totals, 1)
        statistics += ((counts - expected) ** 2 / np.where(expected > 0, expected, 1)).sum(axis=1)
    degrees = np.maximum(np.count_nonzero(both, axis=1) - 1, 1)
    return float(min(1.0, len(both) * chi2.sf(statistics, degrees).min()))


def _looks(case: Case, one: Round) -> Iterator[tuple[str, RingVector]]:
    if one.arrived is not None:
        yield ARRIVED, one.arrived
    if one.victim is not None:
        yield VICTIMS, one.victim
        if case.coalition.trainer and one.total is not None:
            yield REST, to_ring(one.total) - one.victim
    if one.others:
        yield OTHERS, np.concatenate(one.others)
    if case.coalition.trainer and one.partials:
        yield PARTIALS, np.concatenate(one.partials[1:])  # the last follows from sum and others
