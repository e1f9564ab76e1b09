"""Rows within an L2 ball: scaled into it where they lie outside, then truncated towards zero on the grid.

Rounding to the nearest integer could carry a row on the sphere out of the ball again; truncation cannot, as it makes no
coordinate larger. So the integers' norm never exceeds the integer radius C = floor(radius·2^b), whatever the float
arithmetic does, if only that stays within its error bound:

Let v be a row of d coordinates, n = |v|, u = 2^-53 and m = (d + 8)·2^-52 = 2(d + 8)u. The float sum of squares is
n²(1 + θ) with |θ| <= γ = du/(1 - du), in whatever order it is added up (its terms are not negative; squares that
underflow are below 2^-1000 and do not matter beside C >= 1).

1. *Untouched*, where that sum is at most C²(1 - m), itself computed within 3u: then n² <= C²(1 - m)(1 + 4u)/(1 - γ) <=
   C².
2. *Near the sphere*, where it is up to C²(1 + m): the exact sum of squares of the truncated integers decides.
3. *Outside*, or where 2 said so: each coordinate is multiplied by g = C/n·(1 - m). Root, division and the two products
   have relative errors of u each and the root inherits γ/2, so the scaled row's norm is at most C·(1 - m)·(1 + u)⁴/((1
   - γ)(1 - u)) <= C.

Both need 2(d + 8)u to be above d·u(1 + du) + 6u or so, which it is for every d <= 2^24. In 1 and 3, truncation then
only makes the norm smaller.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.fixedpoint import INTEGER_LIMIT
from dca_proto.errors import UsageError


def check_radius(name: str, radius: float | None) -> None:
    """Raises `UsageError` for a radius that is not finite and above 0; None is no ball."""
    if radius is not None and not (math.isfinite(radius) and radius > 0):
        raise UsageError(f"{name} is {radius:g}; give a finite number above 0, or leave it out")


def ball_limit(name: str, radius: float, bits: int) -> int:
    """C = floor(radius·2^bits), at least 1.

    Raises:
        UsageError: the ball holds no grid point but zero, or its radius is not below 2^53 grid units.
    """
    if radius >= (largest := math.ldexp(INTEGER_LIMIT, -bits)):
        raise UsageError(f"{name} {radius:g} is not below {largest:g}; lower it or use fewer fraction bits")
    if (limit := math.floor(math.ldexp(radius, bits))) < 1:
        raise UsageError(
            f"{name} {radius:g} is below one grid unit of {math.ldexp(1, -bits):g}; raise it or use more fraction bits"
        )
    return limit


def into_ball(values: NDArray[np.float64], limit: int) -> NDArray[np.int64]:
    """Each row scaled into the ball where it lies outside, and truncated towards zero.

    Args:
        values: shape ``(m, d)``, in grid units, each below 2^500 in absolute value.
        limit: C, the ball's radius in grid units, from 1 to below 2^53.

    Returns:
        Integers of shape ``(m, d)``, the sum of squares of each row at most C², exactly.
    """
    margin, square = (values.shape[1] + 8) * 2.0**-52, float(limit) ** 2
    squares = np.square(values).sum(axis=1)
    outside = squares > square * (1 - margin)
    for row in np.flatnonzero(outside & (squares <= square * (1 + margin))):  # near the sphere
        outside[row] = sum(int(value) ** 2 for value in values[row]) > limit**2
    if not outside.any():
        return values.astype(np.int64)
    factor = np.ones_like(squares)
    factor[outside] = limit / np.sqrt(squares[outside]) * (1 - margin)
    scaled: NDArray[np.float64] = values * factor[:, None]
    return np.trunc(scaled).astype(np.int64)
