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

**A count of complete rows** (`counting`) makes room for itself: with it, squares are taken about a constant H of about
c²/2, x² - H. Two complete rows stay as far apart as before, since their difference does not contain H. A complete row
is at most c² + max((c² - H)², H²) long, squared: x² + (x² - H)² is convex in x², so largest at an end. So the largest
free weight is √(3c² - c⁴/4), 2.5 at `FREE_BOUND`, where squares that are not shifted would leave 0.8. H is rounded to a
few binary digits, so that the grid has it exactly.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.statistics.base import Proof, Statistic, register
from dca_proto.statistics.counting import Counting
from dca_proto.statistics.scaled import ScaledColumns, example_box, example_ends, half_bits
from dca_proto.statistics.sensitivity import Sensitivity
from dca_proto.statistics.value_range import CONSTANT, Combinations, Squares, ValueRange, box

FREE_BOUND = 1.665
"""The largest bound, in units of the scale, at which the squares do not raise the sensitivity (rounded down)."""
_TANGENTS = (-1.0, -0.5, 0.0, 0.5, 1.0)  # t, in bounds
_FREE_RATIO = (11_090_169, 10**6)  # φ⁵, rounded down
_ROUNDING = 1 + 1e-9  # exceeds the maximum's floating-point error


class _Squares(Counting, ScaledColumns, frozen=True, kw_only=True):
    """Squares about 0; beside a count, about a constant of half of their bound."""

    count_weight: float = 0.0

    @classmethod
    def examples(cls) -> tuple[Statistic, ...]:
        box = example_box(1.0, 3.0)
        return cls(**box), cls(**box, count_weight=2.0), cls(**box, count_weight=7.0, within=example_ends(2))

    @property
    def shifts(self) -> NDArray[np.float64]:
        """H of each column, in units of its squared scale: 0 without a count."""
        return np.array([_half_square(bound) if self.counts else 0.0 for bound in self.bound])

    def _grid_shifts(self, fraction_bits: int) -> list[int]:
        return [math.floor(math.ldexp(shift, fraction_bits)) for shift in self.shifts.tolist()]


@register
class Moments(_Squares, frozen=True, kw_only=True):
    """Σx for each column, where x = (value - centre)/scale clamped to the bounds; then Σx² for each column."""

    name = "moments"
    proofs = (
        Proof(
            "both moments, x and x²",
            "2√ΣC_j²·2^{f/2} up to c = √(φ⁵/4) = 1.665; beyond, the maximum of a quartic",
            "exact",
            "`test_moments.py`: every pair of small grids; attained",
        ),
    )

    @property
    def plain_dimension(self) -> int:
        return 2 * len(self.columns)

    def plain_labels(self) -> tuple[str, ...]:
        return (*self.columns, *(f"{column}²" for column in self.columns))

    def lengths(self, fraction_bits: int) -> tuple[int, int]:
        bits = half_bits(fraction_bits)
        pairs = list(zip(self.limits(bits), self._grid_shifts(fraction_bits), strict=True))
        squares = [max(abs(c**2 - h), h) for c, h in pairs]
        return (
            sum((c << bits) + square for (c, _), square in zip(pairs, squares, strict=True)),
            sum(max((c << bits) ** 2 + (c**2 - h) ** 2, h**2) for c, h in pairs),
        )

    def plain_sensitivity(self, fraction_bits: int) -> Sensitivity:
        bits = half_bits(fraction_bits)
        unit, limits = 1 << bits, self.limits(bits)
        shifts = self._grid_shifts(fraction_bits)  # above c² at a bound just below two grid units
        return Sensitivity(
            l1=sum(2 * c * unit if 2 * c <= unit else (unit + 2 * c) ** 2 // 4 for c in limits),
            l2_squared=sum(widest_squared(c, unit) for c in limits),
            bound=max(max(c * unit, c**2, h) for c, h in zip(limits, shifts, strict=True)),
        )

    def plain_range(self, fraction_bits: int) -> ValueRange:
        """A box; and, without a count, Σx² is at least (Σx)²/n."""
        bits, d = half_bits(fraction_bits), len(self.columns)
        c, unit = np.array(self.limits(bits), dtype=np.float64), 2.0**bits
        shifts = np.array(self._grid_shifts(fraction_bits), dtype=np.float64)
        limits = box(np.r_[-c * unit, -shifts], np.r_[c * unit, c * c - shifts])
        if self.counts:
            return limits
        first = np.arange(d)
        places = np.array([[np.full(d, CONSTANT), first], [first, first + d]]).transpose(2, 0, 1)
        factors = np.broadcast_to(np.array([[unit**2, 1.0], [1.0, 1.0]]), (d, 2, 2))
        return msgspec.structs.replace(limits, squares=Squares("sums of squares", places, factors))

    def counted_combinations(self, limits: ValueRange, weight: float) -> Combinations:
        """Beside the limits of each coordinate: Σ(x - t)² is not below 0, for some t."""
        plain, d = super().counted_combinations(limits, weight), len(self.columns)
        c, below = limits.high[:d], -limits.low[d:]
        unit = float(c[0]) / np.sqrt(limits.high[d] + below[0])  # of x on the finer grid, up to rounding
        weights, high = [], []
        for t in _TANGENTS:
            row = np.zeros((d, 2 * d + 1))
            row[:, :d] = np.diag(-2 * t * c / unit**2)
            row[:, d:-1] = np.eye(d)
            row[:, -1] = (below + (t * c / unit) ** 2) / weight
            weights.append(row)
            high.append(((1 + abs(t)) * c / unit) ** 2)
        names = tuple(f"sum of squares of {column} about a point" for column in self.columns) * len(_TANGENTS)
        return Combinations(
            (*plain.names, *names),
            np.concatenate([plain.weights, *weights]),
            np.append(plain.low, np.zeros(len(names))),
            np.append(plain.high, np.concatenate(high)),
        )

    def plain_values(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        bits = half_bits(fraction_bits)
        x = self.quantised(rows, bits)
        return np.concatenate([x << bits, x * x - np.array(self._grid_shifts(fraction_bits), dtype=np.int64)], axis=1)

    def estimate(self, value: NDArray[np.float64], contributors: int) -> NDArray[np.float64]:
        """Means, in units of the data, then mean squares of value - centre, then the count of complete rows if any.

        With a count, means are over complete rows. Without one, they are over contributors: each is one row of weight
        1, or the mean of its rows, and a missing value counts as the centre.
        """
        (sums, rows), d = self.sums_and_rows(value, contributors), len(self.columns)
        first, second = np.split(sums / max(rows, 1.0), [d])
        scale = np.array(self.scale, dtype=np.float64)
        moments = np.concatenate([self.centre + scale * first, scale**2 * (second + self.shifts)])
        return np.append(moments, [rows] * self.counts)


def _half_square(bound: float) -> float:
    """Return bound²/2, rounded to four binary digits."""
    _, exponent = math.frexp(bound**2 / 2)
    return math.ldexp(round(math.ldexp(bound**2 / 2, 4 - exponent)), exponent - 4)


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
class SecondMoments(_Squares, frozen=True, kw_only=True):
    """The sum of ((x - centre)/scale)² of each column, clamped to the bounds: for standard deviations (Algorithm 2).

    Coordinate j is X_j², an integer in [0, C_j²]. Two rows, or a row and the zero of a missing one, differ by at most
    C_j² in it, so Δ1 = Σ C_j² and Δ2 = √(Σ C_j⁴), both attained by a corner of the box and its middle. (The published
    code used √(Σ C_j²) for Δ2.) About H = C_j²/2, beside a count, a row is at most half as long as that.
    """

    name = "second-moments"
    proofs = (Proof("second moments", "√ΣC_j⁴", "ΣC_j²", "`test_sensitivity.py`"),)

    @property
    def plain_dimension(self) -> int:
        return len(self.columns)

    def plain_labels(self) -> tuple[str, ...]:
        return tuple(f"{column}²" for column in self.columns)

    def lengths(self, fraction_bits: int) -> tuple[int, int]:
        limits = self.limits(half_bits(fraction_bits))
        longest = [max(abs(c**2 - h), h) for c, h in zip(limits, self._grid_shifts(fraction_bits), strict=True)]
        return sum(longest), sum(length**2 for length in longest)

    def plain_sensitivity(self, fraction_bits: int) -> Sensitivity:
        squares = [limit**2 for limit in self.limits(half_bits(fraction_bits))]
        bound = max(squares + self._grid_shifts(fraction_bits))
        return Sensitivity(l1=sum(squares), l2_squared=sum(square**2 for square in squares), bound=bound)

    def plain_range(self, fraction_bits: int) -> ValueRange:
        squares = np.square(np.array(self.limits(half_bits(fraction_bits)), dtype=np.float64))
        shifts = np.array(self._grid_shifts(fraction_bits), dtype=np.float64)
        return box(-shifts, squares - shifts)

    def plain_values(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        squares = np.square(self.quantised(rows, half_bits(fraction_bits)))
        return squares - np.array(self._grid_shifts(fraction_bits), dtype=np.int64)

    def estimate(self, value: NDArray[np.float64], contributors: int) -> NDArray[np.float64]:
        """Mean square of x - centre, in squared units of the data, and the count of complete rows if there is one.

        Its root is a standard deviation about the centre. Noise can make it negative; the caller, who knows the noise,
        decides what to do then. With a count, the mean is over complete rows. Without one, it is over contributors, and
        a missing value counts as the centre.
        """
        sums, rows = self.sums_and_rows(value, contributors)
        return np.append(np.square(self.scale) * (sums / max(rows, 1.0) + self.shifts), [rows] * self.counts)
