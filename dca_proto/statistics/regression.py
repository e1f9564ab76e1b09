"""Sufficient statistics of linear regression: the unique terms of xxᵀ, then xy, then (optionally) y².

Let z = (x, y) be the integers of a row, |z_j| <= c_j, n of them in all: the features x, the constant feature among
them where an intercept is asked for, and the target y. Two rows z, z' may be any two points of the box. That covers a
missing row, which is the point 0, and the constant feature, which then has more room than its two values c_0 and 0.
All below is for unit weights and unique terms; the smallest bound that applies is used.

**Any bounds: Δ <= Σ c_j².** Write a = z², b = z'² coordinate by coordinate, A = Σa, B = Σb, t = z·z'. With y² the terms
are the upper triangle of zzᵀ, and

    Δ² = ½[A² + B² - 2t² + Σ(a-b)²] <= ½[A² + B² + Σ(a-b)²].

The right side is convex in (a, b): its maximum is at vertices a_j, b_j in {0, c_j²}. Let P, Q, R be the sums of c_j²
over the coordinates where both, only a, only b are not 0. There it is at most ½[(P+Q)² + (P+R)² + Q² + R²] =
P² + Q² + R² + PQ + PR <= (P+Q+R)². Leaving y² out only lowers Δ.

**Equal bounds c and n odd (so n >= 3): Δ = √(n² - 1)·c².** Let c = 1; it suffices to show it with y². In one coordinate
k, all others fixed, Δ² is (uv)² plus a positive semidefinite quadratic form in u = z_k + z'_k and v = z_k - z'_k. For
fixed u it is convex in v, so |z_k| or |z'_k| can be moved to 1 without loss. Where z_k = ±1 and z'_k = s it is, but
for linear terms, s⁴ + (B - b_k - 2)s²: convex if B - b_k >= 2, and then |s| can be moved to 1 as well. So a maximum
with the fewest entries below 1 in absolute value has a 1 in each coordinate of z or z', and B - b_k < 2 where b_k < 1
(likewise A - a_k < 2 where a_k < 1). Three cases:

1. All entries are ±1: Δ² = n² - t², and t is an odd integer. At t = ±1 this is n² - 1.
2. Both z and z' have entries below 1: by those inequalities each has at most one entry at 1, too few for n >= 3.
3. Only z', say: a = 1 throughout, B < 3, and Δ² = ½[n² + n + B² - 2B + Σb²] - t². With Σb² <= B this is at most
   ½(n² + n + 6) <= n² - 1 for n >= 5, and at most 7 for n = 3, B <= 2. For n = 3, B > 2: Σb² <= 2 + (B-2)² and
   t² >= B - 2 (the worst case of both is b = (1, 1, B-2)), so at most B² - 4B + 11 <= 8.

**No y², and Y = c_y² >= X = Σ c_j² over the features: Δ = 2·c_y·√X.** Now A, B, t are of the features alone. The terms
in y are at most Y(A + B + 2|t|), so Δ² <= ½[A² + B² + Σ(a-b)²] - t² + Y(A + B + 2|t|). This grows with |t| up to Y,
and |t| <= τ = Σ√(a_j·b_j) <= X <= Y. Put |t| = τ and call it G(Y), linear in Y with slope A + B + 2τ <= 4X. G(X) is the
Δ² of a pair with bound c_y² = X and y' = -y, so at most (X + X)² by the first bound. So G(Y) <= 4X² + (Y-X)·4X = 4XY.
Attained by x = x' at a corner and y' = -y = c_y.

The maximum need not lie at corners: bounds (10, 1) with y² give 20 there, and 100.5 with zeros. Source: DCA 2017,
Algorithm 2; its supplement's eq. (12) is a looser bound, and none at all once y² is there.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dca_proto.core.errors import UsageError
from dca_proto.statistics.base import register, root_up
from dca_proto.statistics.scaled import ScaledColumns, grid_limits, half_bits

CONSTANT = "1"


@register
class Regression(ScaledColumns, frozen=True, kw_only=True):
    """xxᵀ (upper triangle, row by row), xy and perhaps y², of scaled and clamped columns.

    Attributes:
        columns: the features, and the target last.
        intercept: put a constant feature first, whose grid value is its bound (1 exactly, if that is 1).
        intercept_bound: that bound; smaller ones lower the sensitivity and scale the intercept's coefficient up.
        target_square: add the coordinate y².
    """

    name = "regression"

    intercept: bool = False
    intercept_bound: float = 1.0
    target_square: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.intercept_bound) and self.intercept_bound > 0):
            raise UsageError(f"intercept_bound is {self.intercept_bound:g}; give a finite number above 0")
        if self.columns and not self.features:
            raise UsageError("no feature: name the features in columns, then the target, or ask for an intercept")
        super().__post_init__()

    @property
    def target(self) -> str:
        """Name of the column that is predicted."""
        return self.columns[-1]

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features in the order of xxᵀ; the constant one is called 1."""
        return (CONSTANT, *self.columns[:-1]) if self.intercept else self.columns[:-1]

    @property
    def dimension(self) -> int:
        d = len(self.features)
        return d * (d + 1) // 2 + d + self.target_square

    def labels(self) -> tuple[str, ...]:
        names = self.features
        products = [f"{left}·{right}" for i, left in enumerate(names) for right in names[i:]]
        products += [f"{feature}·{self.target}" for feature in names]
        return (*products, f"{self.target}²") if self.target_square else tuple(products)

    def row_bound(self, fraction_bits: int) -> int:
        *features, target = self._all_limits(fraction_bits)
        feature = max(features)
        return max(feature**2, feature * target, target**2 if self.target_square else 0)

    def row_sensitivity(self, fraction_bits: int) -> float:
        *features, target = self._all_limits(fraction_bits)
        X, Y, n = sum(limit**2 for limit in features), target**2, len(features) + 1
        squares = [(X + Y) ** 2]
        if n % 2 and {*features} == {target}:
            squares.append((n**2 - 1) * Y**2)
        if Y >= X and not self.target_square:
            squares.append(4 * X * Y)
        return root_up(min(squares))

    def evaluate(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        z = self.quantised(rows, half_bits(fraction_bits))
        if self.intercept:
            z = np.insert(z, 0, self._all_limits(fraction_bits)[0], axis=1)
        x, y = z[:, :-1], z[:, -1:]
        products = [x[:, i : i + 1] * x[:, i:] for i in range(x.shape[1])]
        products.append(x * y)
        if self.target_square:
            products.append(y * y)
        return np.concatenate(products, axis=1)

    def unpack(self, value: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64], float | None]:
        """A (noisy) sum as xxᵀ (d, d), symmetric, xy (d,), and y² or None; d counts the constant feature.

        The two halves of xxᵀ are the same numbers, so their noises are the same too.
        """
        if value.shape != (self.dimension,):
            raise UsageError(f"the vector has shape {value.shape}; expected ({self.dimension},)")
        d = len(self.features)
        upper = np.triu_indices(d)
        xx = np.zeros((d, d))
        xx[upper] = value[: upper[0].size]
        xx.T[upper] = xx[upper]
        xy = value[upper[0].size : upper[0].size + d]
        return xx, xy, float(value[-1]) if self.target_square else None

    def _all_limits(self, fraction_bits: int) -> tuple[int, ...]:
        """c_j of the constant feature, the other features, and the target."""
        bits = half_bits(fraction_bits)
        constant = grid_limits(("intercept",), (self.intercept_bound,), bits) if self.intercept else ()
        return constant + self.limits(bits)
