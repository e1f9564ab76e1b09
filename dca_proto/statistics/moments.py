"""The first two moments of columns about their public centres, in one round: for means and standard deviations.

For each column the coordinates are x and x², with |x| <= c in units of its scale. **The squares are free**: they leave
the sensitivity 2c of x alone as it is, as long as c <= √(φ⁵/4) = 1.665 (φ the golden ratio).

Proof. With t = x - x' and s = x + x' two rows are t² + (x² - x'²)² = t²(1 + s²) apart, squared, and |s| + |t| <= 2c. So
with u = |t|/2c in [0, 1] that is at most

    g(u) = A u² + B u²(1 - u)²,  A = 4c², B = 16c⁴.

g(u) <= g(1) = A means B u²(1 - u)² <= A (1 - u)(1 + u), or B/A <= (1 + u)/(u²(1 - u)) for all u < 1. The right side is
least where u² + u = 1: there it is φ⁵, since u = 1/φ, 1 + u = φ and 1 - u = u². Beyond, for B > φ⁵ A, the maximum is
where g' = 0, that is 2u² - 3u + 1 + A/B = 0, at the smaller root u = (3 - √(1 - 8A/B))/4; it is attained. In L1 two
rows are |t|(1 + |s|) <= |t|(1 + 2c - |t|) apart, which grows up to |t| = c + ½. A missing row is the box's middle.
Columns vary independently, so squared L2 distances and L1 distances add up over them. In integers, x is X on the grid
of half the bits, b = f/2; the coordinates are X·2^b and X², and A = 4C²·4^b, B = 16C⁴.

**The bound to choose.** If a column's values lie within h of its centre, Σx has noise of 2h/μ whatever the scale is.
With scale = h/c, Σx² has noise of 2h²/(cμ). So `FREE_BOUND` is the best bound for both, with scale = h/FREE_BOUND.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.statistics.base import register
from dca_proto.statistics.scaled import ScaledColumns, half_bits
from dca_proto.statistics.sensitivity import Sensitivity
from dca_proto.statistics.value_range import CONSTANT, Squares, ValueRange, box

FREE_BOUND = 1.665
"""The largest bound, in units of the scale, at which the squares do not raise the sensitivity (rounded down)."""
_FREE_RATIO = (11_090_169, 10**6)  # φ⁵, rounded down
_ROUNDING = 1 + 1e-9  # exceeds the maximum's floating-point error


@register
class Moments(ScaledColumns, frozen=True, kw_only=True):
    """Σx for each column, where x = (value - centre)/scale clamped to the bounds; then Σx² for each column."""

    name = "moments"

    @property
    def dimension(self) -> int:
        return 2 * len(self.columns)

    def labels(self) -> tuple[str, ...]:
        return (*self.columns, *(f"{column}²" for column in self.columns))

    def row_sensitivity(self, fraction_bits: int) -> Sensitivity:
        bits = half_bits(fraction_bits)
        unit, limits = 1 << bits, self.limits(bits)
        return Sensitivity(
            l1=sum(2 * c * unit if 2 * c <= unit else (unit + 2 * c) ** 2 // 4 for c in limits),
            l2_squared=sum(widest_squared(c, unit) for c in limits),
            bound=max(max(c * unit, c**2) for c in limits),
        )

    def value_range(self, fraction_bits: int) -> ValueRange:
        """A box; and Σx² is at least (Σx)²/n."""
        bits, d = half_bits(fraction_bits), len(self.columns)
        c, unit = np.array(self.limits(bits), dtype=np.float64), 2.0**bits
        first = np.arange(d)
        places = np.array([[np.full(d, CONSTANT), first], [first, first + d]]).transpose(2, 0, 1)
        factors = np.broadcast_to(np.array([[unit**2, 1.0], [1.0, 1.0]]), (d, 2, 2))
        squares = Squares("sums of squares", places, factors)
        return msgspec.structs.replace(box(np.r_[-c * unit, 0 * c], np.r_[c * unit, c * c]), squares=squares)

    def evaluate(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        bits = half_bits(fraction_bits)
        x = self.quantised(rows, bits)
        return np.concatenate([x << bits, x * x], axis=1)

    def unpack(self, value: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Split a (noisy) sum into Σx and Σx², shapes ``(d,)``, in units of the scales."""
        d = len(self.columns)
        return value[:d], value[d:]

    def estimate(self, value: NDArray[np.float64], contributors: int) -> NDArray[np.float64]:
        """Means over the clients, in units of the data, and then the mean squares of value - centre.

        This assumes one row of weight 1 (or a mean of rows) per client. A missing value counts as the centre.
        """
        first, second = self.unpack(value / contributors)
        scale = np.array(self.scale, dtype=np.float64)
        return np.concatenate([self.centre + scale * first, scale**2 * second])


def widest_squared(limit: int, unit: int, weights: tuple[int, int] = (1, 1)) -> int:
    """Return an upper bound of (w₁·unit·(X - X'))² + (w₂(X² - X'²))² over all |X|, |X'| <= C, tight to 1e-9.

    `limit` is C; `unit` is 2^b, the factor of X.
    """
    first, second = weights
    linear, square = 4 * (first * limit * unit) ** 2, 16 * (second * limit**2) ** 2
    if square * _FREE_RATIO[1] <= linear * _FREE_RATIO[0]:
        return linear
    ratio = linear / square  # at most 1/φ⁵, or hardly more
    u = (3 - math.sqrt(1 - 8 * ratio)) / 4
    return max(linear, math.ceil(square * (ratio * u**2 + (u * (1 - u)) ** 2) * _ROUNDING))


@register
class SecondMoments(ScaledColumns, frozen=True, kw_only=True):
    """The sum of ((x - centre)/scale)² of each column, clamped to the bounds: for standard deviations (Algorithm 2).

    Coordinate j is X_j², an integer in [0, C_j²]. Two rows, or a row and the zero of a missing one, differ by at most
    C_j² in it, so Δ1 = Σ C_j² and Δ2 = √(Σ C_j⁴), both attained by a corner of the box and its middle. (The published
    code used √(Σ C_j²) for Δ2.)
    """

    name = "second-moments"

    @property
    def dimension(self) -> int:
        return len(self.columns)

    def labels(self) -> tuple[str, ...]:
        return tuple(f"{column}²" for column in self.columns)

    def row_sensitivity(self, fraction_bits: int) -> Sensitivity:
        squares = [limit**2 for limit in self.limits(half_bits(fraction_bits))]
        return Sensitivity(l1=sum(squares), l2_squared=sum(square**2 for square in squares), bound=max(squares))

    def value_range(self, fraction_bits: int) -> ValueRange:
        squares = np.square(np.array(self.limits(half_bits(fraction_bits)), dtype=np.float64))
        return box(0 * squares, squares)

    def evaluate(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        return np.square(self.quantised(rows, half_bits(fraction_bits)))

    def estimate(self, value: NDArray[np.float64], contributors: int) -> NDArray[np.float64]:
        """Mean square of x - centre over the clients, in squared units of the data: scale²·value/contributors.

        Its root is a standard deviation about the centre. Noise can make it negative; the caller, who knows the noise,
        decides what to do then. A missing value counts as the centre, with weight.
        """
        return np.square(self.scale) * value / contributors
