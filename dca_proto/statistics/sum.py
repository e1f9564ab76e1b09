"""Sums and means of columns: linear statistics over a box.

Two rows are at most 2·√(Σ C_j²) apart, the diagonal of the box; a missing row counts as zero, the box's middle. The
vectors of `sum` and `mean` are the same; they differ in what `estimate` makes of the noisy sum.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dca_proto.statistics.base import register, root_up
from dca_proto.statistics.scaled import ScaledColumns


class _Linear(ScaledColumns, frozen=True, kw_only=True):
    """X_j per column, on a grid of 2^-f."""

    @property
    def dimension(self) -> int:
        return len(self.columns)

    def labels(self) -> tuple[str, ...]:
        return self.columns

    def row_bound(self, fraction_bits: int) -> int:
        return self.largest_limit(fraction_bits)

    def row_sensitivity(self, fraction_bits: int) -> float:
        return root_up(4 * sum(limit**2 for limit in self.limits(fraction_bits)))

    def evaluate(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        return self.quantised(rows, fraction_bits)


@register
class Sum(_Linear, frozen=True, kw_only=True):
    """The sum of (x - centre)/scale of each column, clamped to the bounds."""

    name = "sum"

    def estimate(self, value: NDArray[np.float64], contributors: int) -> NDArray[np.float64]:
        """Sum of x over the clients, in units of the data: scale·value + centre·contributors.

        This takes every client for one row of weight 1 (or its mean of rows). Where a client adds up several rows,
        their number is not known: choose 0 as the centre then. A missing value counts as the centre.
        """
        return np.array(self.scale, dtype=np.float64) * value + np.array(self.centre, dtype=np.float64) * contributors


@register
class Mean(_Linear, frozen=True, kw_only=True):
    """The same sum, read as a mean over the clients."""

    name = "mean"

    def estimate(self, value: NDArray[np.float64], contributors: int) -> NDArray[np.float64]:
        """Mean of x over the clients, in units of the data: centre + scale·value/contributors.

        This takes every client for one row of weight 1 (or its mean of rows). A missing value counts as the centre.
        """
        return np.array(self.centre, dtype=np.float64) + np.array(self.scale, dtype=np.float64) * value / contributors
