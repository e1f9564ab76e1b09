"""Events and censoring on a public grid of times: each row falls into one cell, and each cell has one code word.

A row is a duration, whether it ended in an event (or the row was censored), and optionally a group. With interval ends
t_1 < ... < t_K and t_0 = 0 it falls into one of 2K + 1 cells of its group: an event in (t_{k-1}, t_k], censored in
[t_{k-1}, t_k), or neither by t_K. (A row censored at t_k was at risk of all events up to t_k, the convention of Kaplan
and Meier.) Cumulative sums of the cell counts give all at-risk and event counts.

**Codes.** A row contributes the public integer vector b_c of its cell, in the block of its group. The sum over rows is
B·counts, a *strategy* of the matrix mechanism (Li, Miklau, Hay, McGregor and Rastogi 2015). Unit vectors give the
histogram itself; better codes lower the noise of cumulative sums (`inference.models.survival.codes`). Two rows are at
most max |b_c - b_c'| apart, or max |b_c| if one of them is missing. The codes are integers, so this is exact.
"""

from __future__ import annotations

from functools import cached_property
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dca_proto.errors import UsageError
from dca_proto.statistics.base import Proof, Statistic, register
from dca_proto.statistics.sensitivity import Sensitivity
from dca_proto.statistics.value_range import Combinations, ValueRange, box

CELLS_MAX = 1024
CODE_MAX = 2**12  # largest entry of a code word, and largest weight of squares
Codes = tuple[tuple[int, ...], ...]


@register
class Survival(Statistic, frozen=True, kw_only=True):
    """The code word of each row's cell.

    Attributes:
        columns: the duration, the event and, with two or more groups, the group. A row of a negative duration, or with
            another code than those below, counts as missing: it is zero.
        times: t_1 < ... < t_K, above 0, in units of the duration.
        groups: G, at least 1.
        codes: the integers of each cell of a group: events in each interval, censored in each interval, then neither.
            Empty for unit vectors, which count. Each group has coordinates of its own.
        censored: the event column's code of a censored row; an event is the next number. first_group: the first
            group's number.
    """

    name = "survival"
    proofs = (
        Proof(
            "survival: public integers b_c of a row's cell c",
            "max |b_c - b_c'|·2^f over cells and zero",
            "√D·Δ₂",
            "`test_survival_statistic.py`: attained",
        ),
    )

    times: tuple[float, ...]
    groups: int = 1
    codes: Codes = ()
    censored: int = 0
    first_group: int = 0

    @classmethod
    def examples(cls) -> tuple[Statistic, ...]:
        codes = ((1, 0, 0, 0, 0), (1, 1, 0, 0, 0), (1, 1, 1, 0, 0), (-1, 1, 1, 1, 0), (1, 1, 1, 1, 1))
        two: dict[str, Any] = {"columns": ("months", "died", "group"), "times": (1.0, 2.0), "groups": 2, "codes": codes}
        return (
            cls(columns=("months", "died"), times=(1.0, 2.0)),
            cls(**two),
            cls(**two, censored=1, first_group=1),
        )

    def __post_init__(self) -> None:
        check_grid(self.times)
        if not 1 <= self.groups * (2 * len(self.times) + 1) <= CELLS_MAX:
            raise UsageError(
                f"{self.groups} groups and {len(self.times)} intervals; give 1 or more of each, and at most "
                f"{CELLS_MAX} cells, which are groups * (2 * intervals + 1)"
            )
        if len(self.columns) != self.first_feature:
            expected = "duration, event and group" if self.groups > 1 else "duration and event"
            raise UsageError(f"columns are {', '.join(self.columns)[:200]}; expected {expected}")
        if not max(abs(self.censored), abs(self.first_group)) <= CODE_MAX:
            raise UsageError(
                f"censored is {self.censored}, first_group {self.first_group}; give codes within ±{CODE_MAX}"
            )
        if self.codes:
            _check_codes("codes", self.codes, self.cells // self.groups)
        super().__post_init__()

    @property
    def first_feature(self) -> int:
        """The number of columns: duration, event, and the group if there are two or more."""
        return 2 + (self.groups > 1)

    @property
    def cells(self) -> int:
        """G·(2K + 1)."""
        return self.groups * (2 * len(self.times) + 1)

    @property
    def dimension(self) -> int:
        return self.groups * len(self.codes[0]) if self.codes else self.cells

    @property
    def categories(self) -> int:
        """The number of cells if they are counted; 0 with codes."""
        return 0 if self.codes else self.cells

    def labels(self) -> tuple[str, ...]:
        if self.codes:
            return tuple(f"code {place + 1}" for place in range(self.dimension))
        ends = [f"{left:g} to {right:g}" for left, right in zip((0.0, *self.times), self.times, strict=False)]
        own = [*(f"event {end}" for end in ends), *(f"censored {end}" for end in ends), f"beyond {self.times[-1]:g}"]
        return tuple(f"group {g}: {cell}" if self.groups > 1 else cell for g in range(self.groups) for cell in own)

    def ranges(self) -> dict[str, tuple[float, float]]:
        """Durations are clamped to the last time; other codes of events and groups are missing."""
        last_group = self.first_group + self.groups - 1
        ends = ((0.0, self.times[-1]), (self.censored, self.censored + 1), (self.first_group, last_group))
        return {name: (float(low), float(high)) for name, (low, high) in zip(self.columns, ends, strict=False)}

    def row_sensitivity(self, fraction_bits: int) -> Sensitivity:
        words = self.words
        norms = (words**2).sum(axis=1)
        apart = norms[:, None] + norms - 2 * words @ words.T
        square = int(max(apart.max(), norms.max())) << 2 * fraction_bits
        bound = int(np.abs(words).max()) << fraction_bits
        return Sensitivity(l1=isqrt(self.dimension * square), l2_squared=square, bound=bound)

    def value_range(self, fraction_bits: int) -> ValueRange:
        """A row counts in one cell, or in none."""
        words = self.words * 2.0**fraction_bits
        length = float(np.linalg.norm(words, axis=1).max()) * (1 + 2.0**-40)
        limit = box(words.min(axis=0), words.max(axis=0), length)
        return ValueRange(limit.low, limit.high, limit.length, self._cell_counts(self.dimension, fraction_bits))

    @property
    def is_boxed(self) -> bool:
        """Without codes, or if the code words determine the cells' counts."""
        return self._cell_counts(self.dimension, 0) is not None

    def _cell_counts(self, dimension: int, fraction_bits: int) -> Combinations | None:
        """The counts of the cells, and their sum, if the code words are independent and so determine them."""
        inverse = self._inverse
        if inverse is None:
            return None
        cells, coordinates = self.words.shape
        counts = np.zeros((cells + 1, dimension))
        counts[:cells, :coordinates] = inverse
        counts[cells] = counts[:cells].sum(axis=0)
        names = (*(f"the count of cell {cell + 1}" for cell in range(cells)), "the number of rows")
        slack = 1e-6  # of the inverse
        return Combinations(
            names, counts, np.full(cells + 1, -slack), np.full(cells + 1, (1 + slack) * 2.0**fraction_bits)
        )

    @cached_property
    def _inverse(self) -> NDArray[np.float64] | None:
        """What turns sums of code words into the cells' counts, ``(cells, coordinates)``; None if nothing does."""
        if not self.codes:
            return np.eye(self.cells)
        inverse: NDArray[np.float64] = np.linalg.pinv(self.words.astype(np.float64)).T
        return inverse if np.allclose(self.words @ inverse.T, np.eye(self.cells), rtol=0, atol=1e-6) else None

    def evaluate(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        return np.where(self.counts(rows)[:, None], self.words[self.cells_of(rows)] << fraction_bits, 0)

    def counts(self, rows: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Whether each row counts, ``(m,)``: it has a duration of 0 or more, and known codes."""
        known: NDArray[np.bool_] = (rows[:, 0] >= 0) & np.isin(rows[:, 1], (self.censored, self.censored + 1))
        if self.groups > 1:
            known &= np.isin(rows[:, 2], np.arange(self.first_group, self.first_group + self.groups))
        return known

    def cells_of(self, rows: NDArray[np.float64]) -> NDArray[np.int64]:
        """The cell of each row, shape ``(m,)``."""
        times, had = np.asarray(self.times), rows[:, 1] > self.censored + 0.5
        k = np.where(had, times.searchsorted(rows[:, 0], "left"), times.searchsorted(rows[:, 0], "right"))
        intervals = len(times)
        cell = np.where(k == intervals, 2 * intervals, np.where(had, k, intervals + k)).astype(np.int64)
        if self.groups > 1:
            group = np.rint(np.clip(rows[:, 2] - self.first_group, 0, self.groups - 1)).astype(np.int64)
            cell += group * (2 * intervals + 1)
        return cell

    @cached_property
    def words(self) -> NDArray[np.int64]:
        """The code word of each cell of each group, shape ``(cells, coordinates)``."""
        return _block_diagonal(self.groups, self.codes) if self.codes else np.eye(self.cells, dtype=np.int64)


def check_grid(times: tuple[float, ...]) -> None:
    """Raise `UsageError` unless the times are finite, above 0 and increasing, and there is one at least."""
    grid = np.array((0.0, *times))
    if len(grid) < 2 or not np.isfinite(grid).all() or (grid[:-1] >= grid[1:]).any():
        found = ", ".join(f"{time:g}" for time in times[:8]) or "none"
        raise UsageError(f"times are {found}; give at least one, finite, above 0 and increasing")


def _block_diagonal(groups: int, codes: Codes) -> NDArray[np.int64]:
    """The code words of all groups' cells: a group's words are zero in the other groups' blocks of coordinates."""
    return np.asarray(np.kron(np.eye(groups), np.array(codes)), dtype=np.int64)


def _check_codes(name: str, codes: Codes, cells: int) -> None:
    """Raise `UsageError` unless there is one word for each cell, all of one length and not all zero."""
    lengths = {len(word) for word in codes}
    if len(codes) != cells or len(lengths) != 1 or lengths == {0}:
        raise UsageError(
            f"{name}: {len(codes)} words of {sorted(lengths)[:5]} integers; give one each for {cells} cells"
        )
    values = [value for word in codes for value in word]
    if not all(type(value) is int and abs(value) <= CODE_MAX for value in values) or not any(values):
        raise UsageError(f"{name}: give whole numbers within ±{CODE_MAX}, not all of them 0")
