"""How far apart two rows' regression statistics can be: in a box, in a ball, with weights.

Let x be the integers of a row's features and y that of its target; |x_j| <= c_j, |x| <= R if there is a ball, and
|y| <= s. A constant feature, if there is one, is c_0 in a row and 0 in a missing row, which is the point 0 as a
whole. The unique terms of xxᵀ are multiplied by the weight w1, xy by w2, y² by w3; A = w1², B = w2², C = w3², and C = 0
if y² is left out. Unit weights are A = B = 1. For two rows x, y and x', y' write a = x², b = x'² coordinate by
coordinate, P = Σa, Q = Σb, t = x·x', α = y², β = y'². The three blocks add up to

    Δ² = A·½[P² + Q² - 2t² + Σ(a-b)²] + B·[αP + βQ - 2t·y·y'] + C·(α-β)².                                       (1)

Every bound below holds, so the smallest is used.

**Any box: Δ² <= max{AX² + BXY + CY², (AX + BY)²/A}**, X = Σ c_j² with the constant, Y = s². In (1) the terms in t are
at most B²αβ/A. The rest is convex in each a_j, in each b_j, in α and in β, so its maximum is at vertices a_j,
b_j in {0, c_j²}, α, β in {0, Y}. Let p, q, r be the sums of c_j² over the features where both, only a, only b are not
0: the first block is at most A·½[(p+q)² + (p+r)² + q² + r²], and all is convex in (p, q, r) over p + q + r <= X, so at
a vertex of that simplex. For (α, β) = (0, 0), (Y, 0), (Y, Y) the largest of these values are AX², AX² + BXY + CY² and
AX² + 2BXY + B²Y²/A. Unit weights: Δ <= Σ c_j², target included.

**Box with equal bounds c, n of them with the target, n odd (so n >= 3): Δ² <= max(A, B, C)·(n² - 1)·c⁴**, and with unit
weights that is attained. The weights can be no more than their largest; let them and c be 1, and y be the n-th
coordinate z_n; it suffices to show it with y². In one coordinate k, all others fixed, Δ² is (uv)² plus a positive
semidefinite quadratic form in u = z_k + z'_k and v = z_k - z'_k. For fixed u it is convex in v, so |z_k| or |z'_k| can
be moved to 1 without loss. If z_k = ±1 and z'_k = r, Δ² is, up to linear terms, r⁴ + (Q - b_k - 2)r² (P, Q, b over
all n): convex if Q - b_k >= 2, and then |r| can be moved to 1 as well. So a maximum with the fewest entries below 1 in
absolute value has a 1 in each coordinate of z or z', and Q - b_k < 2 if b_k < 1 (likewise P - a_k < 2 if a_k < 1).

1. All entries are ±1: Δ² = n² - t², and t is an odd integer. At t = ±1 this is n² - 1.
2. Both z and z' have entries below 1: by those inequalities each has at most one entry at 1, too few for n >= 3.
3. Only z', say: a = 1 throughout, Q < 3, and Δ² = ½[n² + n + Q² - 2Q + Σb²] - t². With Σb² <= Q this is at most
   ½(n² + n + 6) <= n² - 1 for n >= 5, and at most 7 for n = 3, Q <= 2. For n = 3, Q > 2: Σb² <= 2 + (Q-2)² and
   t² >= Q - 2 (the worst case of both is b = (1, 1, Q-2)), so at most Q² - 4Q + 11 <= 8.

**Box with BY >= AX: Δ² <= 4BXY + CY².** The first two blocks are A times those of unit weights and Y' = BY/A, since y
can absorb the weight. With unit weights, no y² and Y >= X they are at most 4XY: the terms in y are at most Y(P + Q +
2|t|), so Δ² <= ½[P² + Q² + Σ(a-b)²] - t² + Y(P + Q + 2|t|). This grows with |t| up to Y, and |t| <= τ = Σ√(a_j·b_j) <=
X <= Y. Put |t| = τ and call it G(Y), linear in Y with slope P + Q + 2τ <= 4X. G(X) is the Δ² of a pair with Y = X and
y' = -y, so at most (X + X)² by the first bound. So G(Y) <= 4X² + (Y-X)·4X = 4XY. Attained (C = 0) by x = x' at a corner
and y' = -y = s.

**Ball, |x|² <= ρ** (ρ is R², or Σ c_j² of the features if that is less; from here on x, P, Q and t omit the constant,
and k = c_0²). First let neither row be missing. With the constant's terms, and ½[|D|² + Σ D_jj²] <= |D|² = P² + Q² -
2t² for D = xxᵀ - x'x'ᵀ (equality if D is diagonal: rotate the pair),

    Δ² <= A[P² + Q² - 2t² + k(P + Q - 2t)] + B[αP + βQ - 2t·y·y' + k(y-y')²] + C(α-β)².

Let |y| >= |y'| and y >= 0: exchange the rows, or both signs. This grows with P and Q, and with y: its derivative there
is at least 2B(ρy - |t·y'|) >= 0 at P = Q = ρ, |t| <= ρ. So P = Q = ρ and y = s, and in t it is largest at t = -K/(2A)
or the end of [-ρ, ρ] next to that, K = Ak + Bs·y'. With v = y', an integer from -s to s, that is

    g(v) = 2Aρ² + 2Akρ + H(K) + B[ρ(s² + v²) + k(s - v)²] + C(s² - v²)²,
    H(K) = K²/(2A) for |K| <= 2Aρ, else 2ρ|K| - 2Aρ².

Between the two v with |K| = 2Aρ, and on either side, g is a polynomial ½·g2·v² + C(s² - v²)² + (linear) with g2 >= 0,
hence concave for |v| <= i, i² = s²/3 - g2/(12C), and convex elsewhere: its largest value over integers is at the ends
of a convex stretch or is found by halving the concave one. So the maximum over v is exact, and for d >= 2 it is
attained up to the grid. For a row and a missing one, Δ² is at most A(k² + kρ + ρ²) + B(k + ρ)s² + Cs⁴.

Without a constant and with unit weights that is √2(R² + s²/2) for s² <= 2R², d >= 2, as the replacement sensitivity of
(xxᵀ, xy) must be (ICML 2023 has that of adding or removing, √(R⁴ + R²s²)). Lemma 3.1 of the LDP paper (2021), whose σ_g
is 1/w_g, is valid and larger. Neither y' = 0 nor y' = -y need be the worst: hence the search over v.

**L1.** Off the diagonal, Σ w_ij|z_i z_j - z'_i z'_j| is convex in each single entry, so largest at corners, where a
pair counts 2c_i c_j if z_i z'_i and z_j z'_j differ in sign, and 0 otherwise. That is twice a cut, at most (Σ c_j)²/2
in a group of coordinates with one weight, and never more than all pairs. The diagonal adds Σ w_jj c_j². And Δ1 <=
√dim·Δ2.

The maximum need not lie at corners: bounds (10, 1) with y² give 20 there, and 100.5 with zeros. Source: DCA 2017,
Algorithm 2. Its supplement's eq. (12) is a looser bound, and with the y² of a large target it is not a bound at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dca_proto.statistics.sensitivity import Sensitivity
from dca_proto.statistics.value_range import (
    CONSTANT,
    Combinations,
    Squares,
    ValueRange,
    box,
    product_limits,
    unique_places,
)

Weights = tuple[int, int, int]


class RowLimits(NamedTuple):
    """The public limits of a row, in grid units: c_0 (0 without a constant), c_j, R (None without a ball), s."""

    constant: int
    features: tuple[int, ...]
    radius: int | None
    target: int
    target_square: bool

    def within_radius(self) -> RowLimits:
        """Limit each coordinate by the ball's radius as well."""
        if self.radius is None:
            return self
        radius = self.radius
        return self._replace(features=tuple(min(limit, radius) for limit in self.features))


@lru_cache(maxsize=1024)
def regression_sensitivity(limits: RowLimits, weights: Weights) -> Sensitivity:
    """Return the sensitivity to one row, replaced or missing; its Δ² is the smallest of the bounds above."""
    limits = limits.within_radius()
    A, B, C = weights[0] ** 2, weights[1] ** 2, weights[2] ** 2 * limits.target_square
    l2_squared = min(_box(limits, A, B, C), _ball(limits, A, B, C))
    d = len(limits.features) + (limits.constant > 0)
    dimension = d * (d + 1) // 2 + d + limits.target_square
    w1, w2, w3 = weights[0], weights[1], weights[2] * limits.target_square
    features, target = limits.constant + sum(limits.features), limits.target
    squares = limits.constant**2 + sum(limit**2 for limit in limits.features)
    apart = w1 * min(features**2 - squares, features**2 // 2) + 2 * w2 * features * target
    together = max(w1, w2) * ((features + target) ** 2 // 2)
    l1 = min(apart, together) + w1 * squares + w3 * target**2
    largest = max(limits.constant, *limits.features, 0)
    bound = max(w1 * largest**2, w2 * largest * target, w3 * target**2)
    return Sensitivity(l1=min(l1, math.isqrt(dimension * l2_squared)), l2_squared=l2_squared, bound=bound)


def regression_range(limits: RowLimits, weights: Weights, length: float) -> ValueRange:
    """Return where one row's statistics can lie; `length` is the largest distance from a missing row.

    Beside each coordinate's interval, (x, y)(x, y)ᵀ has no eigenvalue below zero, where the bound's s² stands for a y²
    that is left out. In a ball, the squares of the features add up to at most R².
    """
    limits = limits.within_radius()
    x = [*([limits.constant] if limits.constant else []), *limits.features]
    d, s, outside = len(x), float(limits.target), int(limits.constant > 0)
    terms, dimension = d * (d + 1) // 2, d * (d + 1) // 2 + d + limits.target_square
    w1, w2, w3 = map(float, weights)
    low, high = product_limits(x, limits.radius, outside)
    products = w2 * s * np.array(x, dtype=np.float64)
    square = [w3 * s**2] if limits.target_square else []
    found = box(np.r_[w1 * low, -products, [0.0] * len(square)], np.r_[w1 * high, products, square], length)
    combinations = None
    if limits.radius is not None:
        diagonal = unique_places(d).diagonal()[outside:]
        combination = np.zeros((1, dimension))
        combination[0, diagonal] = 1 / w1
        most = np.full(1, float(limits.radius) ** 2)
        combinations = Combinations(("the sum of the features' squares",), combination, np.zeros(1), most)
    y = min(w2 / w1, math.sqrt(w3 / w1)) if limits.target_square else w2 / w1  # y's unit: no entry's noise above 1/w1's
    places, factors = np.zeros((d + 1, d + 1), dtype=np.int64), np.full((d + 1, d + 1), 1 / w1)
    places[:d, :d] = unique_places(d)
    places[:d, d] = places[d, :d] = np.arange(terms, terms + d)
    factors[:d, d] = factors[d, :d] = y / w2
    places[d, d], factors[d, d] = (terms + d, y**2 / w3) if limits.target_square else (CONSTANT, (y * s) ** 2)
    squares = Squares("products of features and target", places[None], factors[None])
    return ValueRange(found.low, found.high, found.length, combinations, squares)


def _box(limits: RowLimits, A: int, B: int, C: int) -> int:
    """The first three bounds on Δ²."""
    X = limits.constant**2 + sum(limit**2 for limit in limits.features)
    Y, n = limits.target**2, len(limits.features) + (limits.constant > 0) + 1
    squares = [max(A * X**2 + B * X * Y + C * Y**2, A * X**2 + 2 * B * X * Y + _ceil(B**2 * Y**2, A))]
    if n % 2 and {limits.constant or limits.target, *limits.features} == {limits.target}:
        squares.append(max(A, B, C) * (n**2 - 1) * Y**2)
    if B * Y >= A * X:
        squares.append(4 * B * X * Y + C * Y**2)
    return min(squares)


def _ball(limits: RowLimits, A: int, B: int, C: int) -> int:
    """The fourth bound on Δ²: the largest g(v) for two rows, or the distance to a missing one."""
    s, k = limits.target, limits.constant**2
    rho = sum(limit**2 for limit in limits.features)
    if limits.radius is not None:
        rho = min(rho, limits.radius**2)

    def doubled(v: int) -> int:
        """2A·g(v), an integer."""
        K = A * k + B * s * v
        bend = K**2 if abs(K) <= 2 * A * rho else 4 * A * rho * abs(K) - 4 * A**2 * rho**2
        products = B * (rho * (s**2 + v**2) + k * (s - v) ** 2) + C * (s**2 - v**2) ** 2
        return bend + 2 * A * (2 * A * rho**2 + 2 * A * k * rho + products)

    low, high = -((2 * rho + k) * A // (B * s)), (2 * rho - k) * A // (B * s)  # where |K| <= 2Aρ
    flat = 2 * A * B * (rho + k)  # A·g2, where |K| is larger
    stretches = ((-s, low - 1, flat), (low, high, flat + B**2 * s**2), (high + 1, s, flat))
    both = max(
        _largest(doubled, max(first, -s), min(last, s), _inflection(A, C, s, curvature))
        for first, last, curvature in stretches
        if max(first, -s) <= min(last, s)
    )
    missing = A * (k**2 + k * rho + rho**2) + B * (k + rho) * s**2 + C * s**4
    return max(_ceil(both, 2 * A), missing)


def _inflection(A: int, C: int, s: int, curvature: int) -> int:
    """The largest integer i with i² <= s²/3 - g2/(12C), given A·g2; -1 if g is convex throughout."""
    room = 4 * A * C * s**2 - curvature
    return math.isqrt(room // (12 * A * C)) if C and room >= 0 else -1


def _largest(function: Callable[[int], int], first: int, last: int, inflection: int) -> int:
    """Return the largest value over integers of a function that is concave within ±inflection and convex outside."""
    points = {first, last} | {point for point in (-inflection - 1, inflection + 1) if first <= point <= last}
    low, high = max(first, -inflection), min(last, inflection)
    if low <= high:
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if function(middle) < function(middle + 1) else (low, middle)
        points.add(low)
    return max(map(function, points))


def _ceil(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
