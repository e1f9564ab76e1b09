"""Events and censoring on a public grid of times: each row falls into one cell, and each cell has one code word.

A row is a duration, whether it ended in an event (or the row was censored), and optionally a group. With interval ends
t_1 < ... < t_K and t_0 = 0 it falls into one of 2K + 1 cells of its group: an event in (t_{k-1}, t_k], censored in
[t_{k-1}, t_k), or neither by t_K. (A row censored at t_k was at risk of all events up to t_k, the convention of Kaplan
and Meier.) Cumulative sums of the cell counts give all at-risk and event counts.

**Codes.** A row contributes the public integer vector b_c of its cell, in the block of its group. The sum over rows is
B·counts, a *strategy* of the matrix mechanism (Li, Miklau, Hay, McGregor and Rastogi 2015). Unit vectors give the
histogram itself; better codes lower the noise of cumulative sums (`inference.models.survival.codes`). Two rows are at
most max |b_c - b_c'| apart, or max |b_c| if one of them is missing. The codes are integers, so this is exact.

**Features.** `SurvivalRegression` adds the features x, scaled into a box and a ball, times the integers a_c of the
row's cell, and w times the unique terms of xxᵀ. Let X be the integers of x on a grid of 2^(-f/2), |X|² <= ρ. With
A = |a_c|², A' = |a_c'|², κ = a_c·a_c', P = |X|², Q = |X'|² and t = X·X', two rows are apart by at most

    Δ² = 2^2f·|b_c - b_c'|² + 2^f·(AP + A'Q - 2κt) + w²·(P² + Q² - 2t²),

as the unique terms of a symmetric D have at most the norm of D (`regression_sensitivity`). This grows with P and Q, and
is concave in t, largest at t = -2^f·κ/(2w²) or at the end of [-ρ, ρ] next to that. So at P = Q = ρ

    Δ² <= 2^2f·|b_c - b_c'|² + 2^f·(A + A')ρ + { 2·2^f·|κ|ρ  if 2^f·|κ| >= 2w²ρ, else 2^2f·κ²/(2w²) + 2w²ρ² }.

The sensitivity is the largest such value over all pairs of cells (including c' = c), rounded up. The distance to a
missing row, 2^2f·|b_c|² + 2^f·Aρ + w²ρ², is checked as well.
"""

from __future__ import annotations

import math
from functools import cached_property
from itertools import combinations_with_replacement
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from dca_proto.errors import UsageError
from dca_proto.statistics.base import Statistic, register
from dca_proto.statistics.scaled import ball_limit, check_radius, half_bits, into_ball, term_labels, unique_terms
from dca_proto.statistics.sensitivity import Sensitivity
from dca_proto.statistics.sum import Sum
from dca_proto.statistics.value_range import Combinations, Squares, ValueRange, box, product_limits, unique_places

CELLS_MAX = 1024
CODE_MAX = 2**12  # largest entry of a code word, and largest weight of squares
Codes = tuple[tuple[int, ...], ...]


@register
class Survival(Statistic, frozen=True, kw_only=True):
    """The code word of each row's cell.

    Attributes:
        columns: the duration, the event (above 0.5) and, with two or more groups, the group: 0, 1, ..., G - 1. Values
            beyond count as the nearest.
        times: t_1 < ... < t_K, above 0, in units of the duration.
        groups: G, at least 1.
        codes: the integers of each cell of a group: events in each interval, censored in each interval, then neither.
            Empty for unit vectors, which count. Each group has coordinates of its own.
    """

    name = "survival"

    times: tuple[float, ...]
    groups: int = 1
    codes: Codes = ()

    def __post_init__(self) -> None:
        grid = np.array((0.0, *self.times))
        if len(grid) < 2 or not np.isfinite(grid).all() or (grid[:-1] >= grid[1:]).any():
            found = ", ".join(f"{time:g}" for time in self.times[:8]) or "none"
            raise UsageError(f"times are {found}; give at least one, finite, above 0 and increasing")
        if not 1 <= self.groups * (2 * len(self.times) + 1) <= CELLS_MAX:
            raise UsageError(
                f"{self.groups} groups and {len(self.times)} intervals; give 1 or more of each, and at most "
                f"{CELLS_MAX} cells, which are groups * (2 * intervals + 1)"
            )
        if self._features_missing():
            expected = "duration, event and group" if self.groups > 1 else "duration and event"
            raise UsageError(f"columns are {', '.join(self.columns)[:200]}; expected {expected}")
        if self.codes:
            _check_codes("codes", self.codes, self.cells // self.groups)
        super().__post_init__()

    def _features_missing(self) -> bool:
        return len(self.columns) != self.first_feature

    @property
    def first_feature(self) -> int:
        """The number of columns before any features."""
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
        """Durations are clamped to the last time, events to 0 or 1, groups to 0 to G - 1."""
        ends = ((0.0, self.times[-1]), (0.0, 1.0), (0.0, self.groups - 1.0))
        return dict(zip(self.columns, ends, strict=False))

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

    def _cell_counts(self, dimension: int, fraction_bits: int) -> Combinations | None:
        """The counts of the cells, and their sum, if the code words are independent and so determine them."""
        cells, coordinates = self.words.shape
        counts = np.zeros((cells + 1, dimension))
        counts[:cells, :coordinates] = np.linalg.pinv(self.words.astype(np.float64)).T
        if not np.allclose(self.words @ counts[:cells, :coordinates].T, np.eye(cells), rtol=0, atol=1e-6):
            return None
        counts[cells] = counts[:cells].sum(axis=0)
        names = (*(f"the count of cell {cell + 1}" for cell in range(cells)), "the number of rows")
        slack = 1e-6  # of the inverse
        return Combinations(
            names, counts, np.full(cells + 1, -slack), np.full(cells + 1, (1 + slack) * 2.0**fraction_bits)
        )

    def evaluate(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        return self.words[self.cells_of(rows)] << fraction_bits

    def cells_of(self, rows: NDArray[np.float64]) -> NDArray[np.int64]:
        """The cell of each row, shape ``(m,)``."""
        times, had = np.asarray(self.times), rows[:, 1] > 0.5
        k = np.where(had, times.searchsorted(rows[:, 0], "left"), times.searchsorted(rows[:, 0], "right"))
        intervals = len(times)
        cell = np.where(k == intervals, 2 * intervals, np.where(had, k, intervals + k)).astype(np.int64)
        if self.groups > 1:
            group = np.rint(np.clip(rows[:, 2], 0, self.groups - 1)).astype(np.int64)
            cell += group * (2 * intervals + 1)
        return cell

    @cached_property
    def words(self) -> NDArray[np.int64]:
        """The code word of each cell of each group, shape ``(cells, coordinates)``."""
        return _block_diagonal(self.groups, self.codes) if self.codes else np.eye(self.cells, dtype=np.int64)


@register
class SurvivalRegression(Survival, frozen=True, kw_only=True):
    """The code word of each row's cell, then a_c ⊗ x, then the unique terms of xxᵀ, of scaled and clamped features.

    Attributes:
        columns: the duration, the event, the group if there are two or more, then the features.
        centre, scale, bound: of each feature, as in the statistic "sum". radius: the L2 ball, in units of ``scale``,
            that features are brought into.
        codes: see `Survival`, but not empty.
        feature_codes: a_c of each cell of a group; each group has coordinates of its own. square_weight: w, from 1.
    """

    name = "survival-regression"

    centre: tuple[float, ...]
    scale: tuple[float, ...]
    bound: tuple[float, ...]
    radius: float
    feature_codes: Codes
    square_weight: int = 1

    def __post_init__(self) -> None:
        check_radius("radius", self.radius)
        if not self.codes:
            raise UsageError("codes are missing; give the integers of each cell")
        if not 1 <= self.square_weight <= CODE_MAX:
            raise UsageError(f"square_weight is {self.square_weight}; give a whole number from 1 to {CODE_MAX}")
        super().__post_init__()
        _check_codes("feature_codes", self.feature_codes, self.cells // self.groups)
        _ = self.features

    def _features_missing(self) -> bool:
        return len(self.columns) <= self.first_feature

    @cached_property
    def features(self) -> Sum:
        """The features' columns with their box."""
        columns = self.columns[self.first_feature :]
        return Sum(columns=columns, centre=self.centre, scale=self.scale, bound=self.bound)

    @property
    def block_sizes(self) -> tuple[int, int, int]:
        """The numbers of coordinates of the codes, the features' sums and their products."""
        d = len(self.columns) - self.first_feature
        return self.words.shape[1], d * self.factors.shape[1], d * (d + 1) // 2

    @property
    def dimension(self) -> int:
        return sum(self.block_sizes)

    @property
    def categories(self) -> int:
        return 0

    def labels(self) -> tuple[str, ...]:
        names = self.features.columns
        words = [f"code {place + 1}" for place in range(self.block_sizes[0])]
        sums = [f"{name}, code {place + 1}" for place in range(self.factors.shape[1]) for name in names]
        return (*words, *sums, *term_labels(names))

    def ranges(self) -> dict[str, tuple[float, float]]:
        return {**super().ranges(), **self.features.ranges()}

    def row_sensitivity(self, fraction_bits: int) -> Sensitivity:
        limits, rho = self._limits(fraction_bits)
        w, unit = self.square_weight, 1 << fraction_bits
        words, factors = self.words, self.factors
        norms, inner = (factors**2).sum(axis=1).tolist(), (factors @ factors.T).tolist()
        square = max(
            (int(b @ b) << 2 * fraction_bits) + unit * a * rho + w**2 * rho**2
            for b, a in zip(words, norms, strict=True)
        )
        for c, other in combinations_with_replacement(range(self.cells), 2):
            apart = int(((words[c] - words[other]) ** 2).sum()) << 2 * fraction_bits
            kappa = unit * abs(inner[c][other])
            if kappa >= 2 * w**2 * rho:
                most = 2 * kappa * rho
            else:
                most = -(-(kappa**2) // (2 * w**2)) + 2 * w**2 * rho**2
            square = max(square, apart + unit * (norms[c] + norms[other]) * rho + most)
        most = isqrt(rho)
        bound = max(
            int(np.abs(words).max()) << fraction_bits,
            int(np.abs(factors).max()) * min(max(limits), most) << half_bits(fraction_bits),
            w * min(max(limits), most) ** 2,
        )
        return Sensitivity(l1=isqrt(self.dimension * square), l2_squared=square, bound=bound)

    def evaluate(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        bits, cells = half_bits(fraction_bits), self.cells_of(rows)
        boxed = self.features.quantised(rows[:, self.first_feature :], bits)
        x = into_ball(boxed.astype(np.float64), ball_limit("radius", self.radius, bits))
        factors = self.factors[cells]
        sums = (factors[:, :, None] * x[:, None, :]).reshape(len(rows), -1) << bits
        return np.concatenate([self.words[cells] << fraction_bits, sums, self.square_weight * unique_terms(x)], axis=1)

    def value_range(self, fraction_bits: int) -> ValueRange:
        """The code's range; each sum of features within its factors; and xxᵀ has no eigenvalue below zero."""
        limits, rho = self._limits(fraction_bits)
        bits, w, d = half_bits(fraction_bits), float(self.square_weight), len(limits)
        words, radius = super().value_range(fraction_bits), math.sqrt(rho)
        c = np.minimum(np.array(limits, dtype=np.float64), radius)
        sums = np.outer(np.abs(self.factors).max(axis=0), c).ravel() * 2.0**bits
        low, high = product_limits(c.tolist(), radius)
        length = self.row_sensitivity(fraction_bits).l2
        limit = box(np.r_[words.low, -sums, w * low], np.r_[words.high, sums, w * high], length)
        places = unique_places(d, self.block_sizes[0] + self.block_sizes[1])
        squares = Squares("products of features", places[None], np.full((1, d, d), 1 / w))
        return ValueRange(limit.low, limit.high, limit.length, words.combinations, squares)

    @cached_property
    def factors(self) -> NDArray[np.int64]:
        """The factors a_c of the features, for each cell of each group, shape ``(cells, coordinates)``."""
        return _block_diagonal(self.groups, self.feature_codes)

    def _limits(self, fraction_bits: int) -> tuple[tuple[int, ...], int]:
        """C_j of each feature, and ρ."""
        bits = half_bits(fraction_bits)
        limits = self.features.limits(bits)
        return limits, min(sum(limit**2 for limit in limits), ball_limit("radius", self.radius, bits) ** 2)


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
