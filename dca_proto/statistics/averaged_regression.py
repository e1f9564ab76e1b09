"""Sufficient statistics of linear regression on averages of k rows, which are closer to normal than the rows are.

A data node's rows are taken k at a time, in order. Each group's rows are averaged and multiplied by √k, which leaves
the coefficients and the residuals' variance as they are (Appendix B.1 of the distributed regression paper, ICML
2023). So n rows become floor(n/k) rows of the model, with less information about the coefficients; up to k - 1 rows at
the end are ignored. Rows are clamped to their bounds and quantised first. The summed integers are (Σx)(Σx)ᵀ and
(Σx)(Σy), exact; `unpack` and `estimate` divide them, and so their noise, by k.

A missing row stays in its place as a row of zeros: without it, all later rows would change groups. One row moves one
group only, by at most 4(k - 1)/k times the largest statistic of one row, as proved below; the paper claims a factor of
1. So averaging costs noise as well as information.

**How far one row, or a whole group, moves the products of a group's sums.** A group of k rows is released as the unique
terms of uuᵀ and as u·t, where u = Σx and t = Σy over its rows: k times the S_av and z_av of Appendix B.1. In
integers, |x_j| <= c_j, |x| <= R if there is a ball, and |y| <= s; a missing row is 0. The paper claims the
sensitivity of single rows, which is false: one row changes a squared average in proportion to the rest of its group. In
units of the average, with X = Y = 1, adding or removing a row moves it by (2k - 1)/k·√2 (2.69 at k = 10, where 1.41 is
claimed), and replacing one by 4(k - 1)/k·√2 (5.09).

**One row replaced, k >= 2: Δ = 4(k - 1)·V**, where V is the largest length of one row's own statistic (xxᵀ, xy):
V² = Σ_{i<=j} c_i²c_j² + s²Σ c_i² in a box, R⁴ + R²s² in a ball; the smaller holds. It is attained if the others all
equal that row, and it changes to its opposite (in a ball if the ball reaches an axis, R <= c_j for some j).

Let r be the sum of the other rows and (x, y), (x', y') the row before and after; p = r + (x + x')/2, q = (x - x')/2,
and π, ζ the same of the target. Then the change is 2(pqᵀ + qpᵀ), and 2(ζp + πq).

*Box.* Let c_i·α_i = |x_i + x'_i|/2. Then |q_i| <= c_i(1 - α_i), |p_i| <= c_i(k - 1 + α_i), and likewise for the target,
with one more coordinate. So each coordinate i, j of the change is at most

    2c_i c_j [(k - 1 + α_i)(1 - α_j) + (1 - α_i)(k - 1 + α_j)] = 2c_i c_j [2(k - 1) - (k - 2)(α_i + α_j) - 2α_i α_j],

that is, 4(k - 1)c_i c_j at most. All are attained at once. This gives the largest L1 distance, too.

*Ball*, in units where R = s = 1, with m = k - 1 >= 1. Split p along q and across it: p = (h, w), where r = (r₁, r₂) and
(x + x')/2 = (g, γ), signs such that g >= 0. Let b = |q| and ρ² = 1 - γ²: as both rows are in the ball, b <= ρ - g.

- xxᵀ: the unique terms are no longer than the whole matrix, whose square is 8b²(2h² + w²). With r₁² + r₂² <= m², 2h² +
  w² <= 2m² - r₂² + 4gm + 2g² + 2r₂γ + γ² <= 2(m + g)² + 2γ². And b(m + g) <= (ρ - g)(m + g) <= ρm, as m >= ρ. So the
  square is at most 16(ρ²m² + ρ²γ²) = 16(1 - γ²)(m² + γ²) <= 16m².
- xy: half its length is |ζp + πq| <= |ζ|m + √((g|ζ| + |π|b)² + γ²ζ²), with |π| <= m + 1 - |ζ|. At the largest π, which
  is at least |ζ|, g|ζ| + πb <= πρ, and the root is at most √(π²ρ² + π²γ²) = π. The sum is m + 1 + (m - 1)|ζ| <= 2m.

**One row, k = 1**: see `regression_sensitivity`. **A whole group replaced**, or missing: u is any point of the box
of k·c_j and of the ball of k·R, t of [-k·s, k·s]: `regression_sensitivity` with these limits.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dca_proto.errors import UsageError
from dca_proto.statistics.base import Proof, Statistic, register
from dca_proto.statistics.regression_sensitivity import RowLimits, regression_range, regression_sensitivity
from dca_proto.statistics.scaled import (
    ScaledColumns,
    ball_limit,
    check_radius,
    example_box,
    example_ends,
    half_bits,
    into_ball,
    symmetric,
    term_labels,
    unique_terms,
)
from dca_proto.statistics.sensitivity import Sensitivity
from dca_proto.statistics.value_range import ValueRange

GROUP_MAX = 2**12


@register
class AveragedRegression(ScaledColumns, frozen=True, kw_only=True):
    """k times the (unique) terms of x̄x̄ᵀ, row by row, and of x̄ȳ, where x̄ and ȳ are √k times the means of k rows.

    Attributes:
        columns: the features, at least one, and the target last.
        group: k, the number of rows averaged, 1 to 4096.
        radius: the L2 ball, in units of ``scale``, that a row's features are brought into; None for the box alone. The
            target keeps its bound.
    """

    name = "averaged-regression"
    proofs = (
        Proof(
            "averaged regression, k >= 2 rows a group, one of them replaced",
            "4(k - 1)V in k-fold units, V² = Σ_{i<=j} c_i²c_j² + s²Σc_i² in a box, R⁴ + R²s² in a ball, the lesser",
            "4(k - 1) times a row's",
            "`test_averaged_regression.py`: exact in boxes, attained to 1 % in a ball",
            proof="`statistics/averaged_regression.py`; the paper's B.1 claims a single row's",
        ),
    )

    group: int = 10
    radius: float | None = None

    @classmethod
    def examples(cls) -> tuple[Statistic, ...]:
        box = example_box(1.0, 3.0, 2.0)
        return cls(**box, group=3), cls(**box, group=2, radius=1.5, within=example_ends(3))

    def __post_init__(self) -> None:
        if not 1 <= self.group <= GROUP_MAX:
            raise UsageError(f"group is {self.group}; average 1 to {GROUP_MAX} rows")
        if len(self.columns) == 1:
            raise UsageError("no feature: name the features in columns, then the target")
        check_radius("radius", self.radius)
        super().__post_init__()

    @property
    def rows_per_value(self) -> int:
        return self.group

    @property
    def dimension(self) -> int:
        d = len(self.columns) - 1
        return d * (d + 3) // 2

    def labels(self) -> tuple[str, ...]:
        *features, target = self.columns
        return (*term_labels(features), *(f"{feature}·{target}" for feature in features))

    def row_sensitivity(self, fraction_bits: int) -> Sensitivity:
        """The sensitivity to one row of a group, replaced or missing.

        For k >= 2 it is exact, unless a ball cuts into the box without reaching its axes.
        """
        limits, k = self._limits(fraction_bits), self.group
        group = group_sensitivity(limits, k)
        if k == 1:
            return group
        c, s = limits.within_radius().features, limits.target
        squares = sum(limit**2 for limit in c)
        length_squared = (squares**2 + sum(limit**4 for limit in c)) // 2 + s**2 * squares
        if limits.radius is not None:
            length_squared = min(length_squared, limits.radius**4 + limits.radius**2 * s**2)
        l1 = (sum(c) ** 2 + squares) // 2 + s * sum(c)
        l2_squared = min((4 * (k - 1)) ** 2 * length_squared, group.l2_squared)
        l1 = min(4 * (k - 1) * l1, group.l1, math.isqrt(self.dimension * l2_squared) + 1)
        return Sensitivity(l1=l1, l2_squared=l2_squared, bound=group.bound)

    def value_sensitivity(self, fraction_bits: int) -> Sensitivity:
        return group_sensitivity(self._limits(fraction_bits), self.group)

    def value_range(self, fraction_bits: int) -> ValueRange:
        limits, length = _of_group(self._limits(fraction_bits), self.group), self.value_sensitivity(fraction_bits).l2
        return regression_range(limits, (1, 1, 1), length)

    def evaluate(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        bits = half_bits(fraction_bits)
        present = np.isfinite(rows).all(axis=1, keepdims=True)
        z = self.quantised(np.where(present, rows, self.centre), bits) * present
        if self.radius is not None:
            z[:, :-1] = into_ball(z[:, :-1].astype(np.float64), ball_limit("radius", self.radius, bits))
        sums = z.reshape(-1, self.group, z.shape[1]).sum(axis=1)
        u, t = sums[:, :-1], sums[:, -1:]
        return np.concatenate([unique_terms(u), u * t], axis=1)

    def estimate(self, value: NDArray[np.float64], contributors: int) -> NDArray[np.float64]:
        """Divide by k: the sums over groups of the averages' products."""
        return value / self.group

    def unpack(self, value: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return a (noisy) sum as S_av (d, d), symmetric, and z_av (d,). Noise of variance s² becomes s²/k²."""
        if value.shape != (self.dimension,):
            raise UsageError(f"the vector has shape {value.shape}; expected ({self.dimension},)")
        terms, d = value / self.group, len(self.columns) - 1
        return symmetric(terms[:-d], d), terms[-d:]

    def _limits(self, fraction_bits: int) -> RowLimits:
        bits = half_bits(fraction_bits)
        *features, target = self.limits(bits)
        radius = None if self.radius is None else ball_limit("radius", self.radius, bits)
        return RowLimits(0, tuple(features), radius, target, False)


def group_sensitivity(limits: RowLimits, k: int) -> Sensitivity:
    """Sensitivity to all k >= 1 rows of a group, replaced or missing; `limits` of one row, without constant and y²."""
    return regression_sensitivity(_of_group(limits, k), (1, 1, 1))


def _of_group(limits: RowLimits, k: int) -> RowLimits:
    """The limits of the sums of k rows."""
    radius = None if limits.radius is None else k * limits.radius
    return RowLimits(0, tuple(k * limit for limit in limits.features), radius, k * limits.target, False)
