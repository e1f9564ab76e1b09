"""Second moments of columns about their public centres: the first round of Algorithm 2, for standard deviations.

Coordinate j is X_j², an integer in [0, C_j²]. Two rows, or a row and the zero of a missing one, differ by at most C_j²
there, so Δ1 = Σ C_j² and Δ2 = √(Σ C_j⁴), both attained by a corner of the box and its middle. (The published code used
√(Σ C_j²) for Δ2.)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dca_proto.statistics.base import register
from dca_proto.statistics.scaled import ScaledColumns, half_bits
from dca_proto.statistics.sensitivity import Sensitivity


@register
class SecondMoments(ScaledColumns, frozen=True, kw_only=True):
    """The sum of ((x - centre)/scale)² of each column, clamped to the bounds."""

    name = "second-moments"

    @property
    def dimension(self) -> int:
        return len(self.columns)

    def labels(self) -> tuple[str, ...]:
        return tuple(f"{column}²" for column in self.columns)

    def row_sensitivity(self, fraction_bits: int) -> Sensitivity:
        squares = [limit**2 for limit in self.limits(half_bits(fraction_bits))]
        return Sensitivity(l1=sum(squares), l2_squared=sum(square**2 for square in squares), bound=max(squares))

    def evaluate(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        return np.square(self.quantised(rows, half_bits(fraction_bits)))

    def estimate(self, value: NDArray[np.float64], contributors: int) -> NDArray[np.float64]:
        """Mean square of x - centre over the clients, in squared units of the data: scale²·value/contributors.

        Its root is a standard deviation about the centre. The noise can make it negative; that is left to the reader,
        who knows the noise. A missing value counts as the centre, with weight.
        """
        return np.square(self.scale) * value / contributors
