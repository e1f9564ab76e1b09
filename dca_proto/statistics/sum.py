"""Sums and means of columns: linear statistics over a box, or over the part of it in an L2 ball.

Two rows of the box are at most 2·√(Σ C_j²) apart, its diagonal, and 2·Σ C_j in L1. Two rows of a ball of C grid units
are at most 2C apart, and 2·√d·C in L1 (Cauchy and Schwarz). With both bounds, each figure is the smaller of the two. A
missing row counts as zero, the middle of either. `sum` and `mean` have the same vectors; they differ in how `estimate`
reads the noisy sum. A count of complete rows beside them is free up to the weight √3·√(Σ C_j²), or √3·C in a ball
(`counting`).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dca_proto.statistics.base import Proof, Statistic, register
from dca_proto.statistics.counting import Counting
from dca_proto.statistics.scaled import ScaledColumns, ball_limit, check_radius, example_box, example_ends, into_ball
from dca_proto.statistics.sensitivity import Sensitivity
from dca_proto.statistics.value_range import ValueRange, box


class _Linear(Counting, ScaledColumns, frozen=True, kw_only=True):
    """X_j per column, on a grid of 2^-f.

    Attributes:
        radius: the L2 ball, in units of ``scale``, that scaled rows are brought into; None for the box alone.
    """

    proofs = (
        Proof("sum, mean in a box", "2√ΣC_j²", "2ΣC_j", "`test_sensitivity.py`"),
        Proof(
            "sum, mean in a ball of radius C",
            "2C",
            "2√d·C",
            "`test_l2_ball.py`: exact integers up to d = 4,095",
            proof="truncated towards zero, `statistics/scaled.py`",
        ),
    )

    radius: float | None = None
    count_weight: float = 0.0

    @classmethod
    def examples(cls) -> tuple[Statistic, ...]:
        box = example_box(1.0, 3.0)
        return cls(**box), cls(**box, radius=2.0), cls(**box, count_weight=5.0), cls(**box, within=example_ends(2))

    def __post_init__(self) -> None:
        check_radius("radius", self.radius)
        super().__post_init__()

    @property
    def plain_dimension(self) -> int:
        return len(self.columns)

    def plain_labels(self) -> tuple[str, ...]:
        return self.columns

    def lengths(self, fraction_bits: int) -> tuple[int, int]:
        limits = self.limits(fraction_bits)
        l1, square = sum(limits), sum(limit**2 for limit in limits)
        if self.radius is None:
            return l1, square
        radius = ball_limit("radius", self.radius, fraction_bits)
        return min(l1, math.isqrt(len(limits) * radius**2)), min(square, radius**2)

    def plain_sensitivity(self, fraction_bits: int) -> Sensitivity:
        l1, square = self.lengths(fraction_bits)
        bound = max(self.limits(fraction_bits))
        if self.radius is not None:
            bound = min(bound, ball_limit("radius", self.radius, fraction_bits))
        return Sensitivity(l1=2 * l1, l2_squared=4 * square, bound=bound)

    def plain_range(self, fraction_bits: int) -> ValueRange:
        limits = np.array(self.limits(fraction_bits), dtype=np.float64)
        if self.radius is None:
            return box(-limits, limits)
        radius = ball_limit("radius", self.radius, fraction_bits)
        limits = np.minimum(limits, radius)
        return box(-limits, limits, radius)

    @property
    def is_boxed(self) -> bool:
        """Without a ball, and if there is a count, with few enough columns to compare each with it."""
        return self.radius is None and self.compares_count

    def plain_values(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        values = self.quantised(rows, fraction_bits)
        if self.radius is None:
            return values
        return into_ball(values.astype(np.float64), ball_limit("radius", self.radius, fraction_bits))


@register
class Sum(_Linear, frozen=True, kw_only=True):
    """The sum of (x - centre)/scale per column, clamped to the bounds; each row is within the ball if there is one."""

    name = "sum"

    def estimate(self, value: NDArray[np.float64], contributors: int) -> NDArray[np.float64]:
        """Sum of x, in units of the data: scale·value + centre·rows, and the count of complete rows if there is one.

        With a count, the sum is over complete rows. Without one, it is over contributors: each is one row of weight 1,
        or the mean of its rows, and a missing value counts as the centre. If clients add up several rows and there is
        no count, use a centre of 0.
        """
        sums, rows = self.sums_and_rows(value, contributors)
        total = np.array(self.scale, dtype=np.float64) * sums + np.array(self.centre, dtype=np.float64) * rows
        return np.append(total, [rows] * self.counts)


@register
class Mean(_Linear, frozen=True, kw_only=True):
    """The sum of `Sum`, read as a mean over the clients."""

    name = "mean"

    def estimate(self, value: NDArray[np.float64], contributors: int) -> NDArray[np.float64]:
        """Mean of x, in units of the data: centre + scale·value/rows, and the count of complete rows if there is one.

        With a count, the mean is over complete rows. Without one, it is over contributors: each is one row of weight 1,
        or the mean of its rows, and a missing value counts as the centre.
        """
        sums, rows = self.sums_and_rows(value, contributors)
        mean = np.array(self.centre, dtype=np.float64) + np.array(self.scale, dtype=np.float64) * sums / max(rows, 1.0)
        return np.append(mean, [rows] * self.counts)
