"""How far one row, or a whole group of rows, moves the products of a group's sums.

A group of k rows is released as the unique terms of uuᵀ and as u·t, where u = Σx and t = Σy over its rows: k times what
Appendix B.1 of the paper (ICML 2023) calls S_av and z_av. In integers, |x_j| <= c_j, |x| <= R where there is a ball,
and |y| <= s; a missing row is 0. The paper claims the sensitivity of single rows, which is false: one row changes a
squared average in proportion to the rest of its group. In units of the average, with X = Y = 1, adding or removing a
row moves it by (2k - 1)/k·√2 (2.69 at k = 10, where 1.41 is claimed), and replacing one by 4(k - 1)/k·√2 (5.09).

**One row replaced, k >= 2: Δ = 4(k - 1)·V**, V the length of one row's own statistic (xxᵀ, xy) at the largest:
V² = Σ_{i<=j} c_i²c_j² + s²Σ c_i² in a box, R⁴ + R²s² in a ball; whichever is less. Attained: the others all at that
row, and this one changed from it to its opposite (in a ball if the ball reaches an axis, R <= c_j for some j).

Let r be the sum of the other rows and (x, y), (x', y') the row before and after; p = r + (x + x')/2, q = (x - x')/2,
and π, ζ the same of the target. Then the change is 2(pqᵀ + qpᵀ), and 2(ζp + πq).

*Box.* Let c_i·α_i = |x_i + x'_i|/2. Then |q_i| <= c_i(1 - α_i), |p_i| <= c_i(k - 1 + α_i), and likewise for the target,
as one coordinate more. So each coordinate i, j of the change is at most

    2c_i c_j [(k - 1 + α_i)(1 - α_j) + (1 - α_i)(k - 1 + α_j)] = 2c_i c_j [2(k - 1) - (k - 2)(α_i + α_j) - 2α_i α_j],

that is, 4(k - 1)c_i c_j at most. All are attained at once. This gives the largest L1 distance, too.

*Ball*, in units where R = s = 1, with m = k - 1 >= 1. Split p along q and across it: p = (h, w), where r = (r₁, r₂) and
(x + x')/2 = (g, γ), signs such that g >= 0. Let b = |q| and ρ² = 1 - γ²: as both rows are in the ball, b <= ρ - g.

- xxᵀ: the unique terms are no longer than the whole matrix, whose square is 8b²(2h² + w²). With r₁² + r₂² <= m², 2h² +
  w² <= 2m² - r₂² + 4gm + 2g² + 2r₂γ + γ² <= 2(m + g)² + 2γ². And b(m + g) <= (ρ - g)(m + g) <= ρm, as m >= ρ. So the
  square is at most 16(ρ²m² + ρ²γ²) = 16(1 - γ²)(m² + γ²) <= 16m².
- xy: half its length is |ζp + πq| <= |ζ|m + √((g|ζ| + |π|b)² + γ²ζ²), with |π| <= m + 1 - |ζ|. At the largest π, which
  is at least |ζ|, g|ζ| + πb <= πρ, and the root is at most √(π²ρ² + π²γ²) = π. The sum is m + 1 + (m - 1)|ζ| <= 2m.

**One row, k = 1**: those of `regression_sensitivity`. **A whole group replaced**, or missing: u is any point of the box
of k·c_j and of the ball of k·R, t of [-k·s, k·s]: `regression_sensitivity` of these.
"""

from __future__ import annotations

import math

from dca_proto.statistics.regression_sensitivity import Limits, regression_sensitivity
from dca_proto.statistics.sensitivity import Sensitivity


def group_sensitivity(limits: Limits, k: int) -> Sensitivity:
    """Of all k rows of a group replaced, or of a group and none.

    Args:
        limits: of one row, in grid units; without a constant and without y². k: rows of a group, at least 1.
    """
    radius = None if limits.radius is None else k * limits.radius
    features = tuple(k * limit for limit in limits.features)
    return regression_sensitivity(Limits(0, features, radius, k * limits.target, False), (1, 1, 1))


def row_in_group_sensitivity(limits: Limits, k: int) -> Sensitivity:
    """Of one row of a group replaced, or of a row and a missing one; exact for k >= 2 but for what a ball cuts off a
    box that it does not reach the axes of. `Args` as for `group_sensitivity`."""
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
    terms = len(c) * (len(c) + 3) // 2
    l1 = min(4 * (k - 1) * l1, group.l1, math.isqrt(terms * l2_squared) + 1)
    return Sensitivity(l1=l1, l2_squared=l2_squared, bound=group.bound)
