"""Sums and means of columns: linear statistics over a box, or over the part of it in an L2 ball.

Two rows of the box are at most 2·√(Σ C_j²) apart, its diagonal, and 2·Σ C_j in L1. Two rows of a ball of C grid units
are at most 2C apart, and 2·√d·C in L1 (Cauchy and Schwarz). With both bounds, each figure is the smaller of the two. A
missing row counts as zero, the middle of either. `sum` and `mean` have the same vectors; they differ in how `estimate`
reads the noisy sum.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dca_proto.statistics.base import register
from dca_proto.statistics.scaled import ScaledColumns, ball_limit, check_radius, into_ball
from dca_proto.statistics.sensitivity import Sensitivity
from dca_proto.statistics.value_range import ValueRange, box


class _Linear(ScaledColumns, frozen=True, kw_only=True):
    """X_j per column, on a grid of 2^-f.

    Attributes:
        radius: the L2 ball, in units of ``scale``, that scaled rows are brought into; None for the box alone.
    """

    radius: float | None = None

    def __post_init__(self) -> None:
        check_radius("radius", self.radius)
        super().__post_init__()

    @property
    def dimension(self) -> int:
        return len(self.columns)

    def labels(self) -> tuple[str, ...]:
        return self.columns

    def row_sensitivity(self, fraction_bits: int) -> Sensitivity:
        limits = self.limits(fraction_bits)
        l1, square, bound = sum(limits), sum(limit**2 for limit in limits), max(limits)
        if self.radius is not None:
            radius = ball_limit("radius", self.radius, fraction_bits)
            l1, square = min(l1, math.isqrt(len(limits) * radius**2)), min(square, radius**2)
            bound = min(bound, radius)
        return Sensitivity(l1=2 * l1, l2_squared=4 * square, bound=bound)

    def value_range(self, fraction_bits: int) -> ValueRange:
        limits = np.array(self.limits(fraction_bits), dtype=np.float64)
        if self.radius is None:
            return box(-limits, limits)
        radius = ball_limit("radius", self.radius, fraction_bits)
        limits = np.minimum(limits, radius)
        return box(-limits, limits, radius)

    def evaluate(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        values = self.quantised(rows, fraction_bits)
        if self.radius is None:
            return values
        return into_ball(values.astype(np.float64), ball_limit("radius", self.radius, fraction_bits))


@register
class Sum(_Linear, frozen=True, kw_only=True):
    """The sum of (x - centre)/scale per column, clamped to the bounds; each row is within the ball if there is one."""

    name = "sum"

    def estimate(self, value: NDArray[np.float64], contributors: int) -> NDArray[np.float64]:
        """Sum of x over the clients, in units of the data: scale·value + centre·contributors.

        This assumes that each client contributes one row of weight 1, or the mean of its rows. If clients add up
        several rows, the number of rows is unknown: use a centre of 0. A missing value counts as the centre.
        """
        return np.array(self.scale, dtype=np.float64) * value + np.array(self.centre, dtype=np.float64) * contributors


@register
class Mean(_Linear, frozen=True, kw_only=True):
    """The sum of `Sum`, read as a mean over the clients."""

    name = "mean"

    def estimate(self, value: NDArray[np.float64], contributors: int) -> NDArray[np.float64]:
        """Mean of x over the clients, in units of the data: centre + scale·value/contributors.

        This assumes one row of weight 1 (or a mean of rows) per client. A missing value counts as the centre.
        """
        return np.array(self.centre, dtype=np.float64) + np.array(self.scale, dtype=np.float64) * value / contributors
