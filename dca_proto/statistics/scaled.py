"""Columns that are centred, scaled, clamped to public bounds and put on the grid: the base of most statistics.

A value x of column j becomes the integer nearest to (x - centre_j)/scale_j on a grid of 2^-b, clamped to

    |X_j| <= C_j = floor(bound_j · 2^b).

`within` may clamp a column's values to an interval of its own before that. Then its integers are some of those above,
so every sensitivity holds as it is: the rows that it is taken over are fewer. An interval about a centre, as wide to
the farther side of the public bounds, reaches beyond them on the nearer side; with `within` they end at both.

Linear statistics use b = f, so that X lies on the grid of 2^-f. Quadratic ones use b = f/2 (f is even), so that
products of two X lie there. Every sensitivity follows from the integers C_j, with zero (a missing row) inside the box.

**Rows within an L2 ball.** A row outside the ball is scaled into it, then truncated towards zero on the grid.
Rounding to nearest could carry a row on the sphere out of the ball again; truncation makes no coordinate larger. So the
integers' norm never exceeds the integer radius C = floor(radius·2^b), as long as the float arithmetic stays within its
error bound:

Let v be a row of d coordinates, n = |v|, u = 2^-53 and m = (d + 8)·2^-52 = 2(d + 8)u. The float sum of squares is
n²(1 + θ) with |θ| <= γ = du/(1 - du), in whatever order it is added up (its terms are not negative; squares that
underflow are below 2^-1000 and do not matter beside C >= 1).

1. *Untouched*: that sum is at most C²(1 - m), itself computed within 3u; then n² <= C²(1 - m)(1 + 4u)/(1 - γ) <= C².
2. *Near the sphere*: that sum is at most C²(1 + m); the exact sum of squares of the truncated integers decides.
3. *Outside*, by its sum or by 2: each coordinate is multiplied by g = C/n·(1 - m). Root, division and the two products
   have relative errors of u each and the root inherits γ/2, so the scaled row's norm is at most C·(1 - m)·(1 + u)⁴/((1
   - γ)(1 - u)) <= C.

Both 1 and 3 need 2(d + 8)u to be above about d·u(1 + du) + 6u, which holds for every d <= 2^24. Truncation then only
makes the norm smaller.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import PublicParameters
from dca_proto.crypto.fixedpoint import INTEGER_LIMIT, round_to_grid
from dca_proto.errors import UsageError
from dca_proto.statistics.base import Statistic

MAGNITUDE_MIN, MAGNITUDE_MAX = 1e-50, 1e50
"""Limits of a public scale and similar parameters: beyond them, products of four underflow or overflow."""
ANY = -MAGNITUDE_MAX, MAGNITUDE_MAX
"""`ScaledColumns.within` of a column that is only clamped to its bound."""


_LIMITS = {
    "centre": (-MAGNITUDE_MAX, MAGNITUDE_MAX, ""),
    "scale": (MAGNITUDE_MIN, MAGNITUDE_MAX, " above 0"),
    "bound": (sys.float_info.min, sys.float_info.max, " above 0"),  # the grid allows less (`grid_limits`)
}


class _Box(NamedTuple):
    limits: tuple[int, ...]
    centre: NDArray[np.float64]
    scale: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]  # the largest grid point within the bound
    within: tuple[NDArray[np.float64], NDArray[np.float64]] | None  # lower and upper ends


class ScaledColumns(Statistic, frozen=True, kw_only=True):
    """Parameters that most statistics share, one of each per column; all public, never derived from private data.

    Attributes:
        centre: subtracted from the values, in units of the data, within ±`MAGNITUDE_MAX`.
        scale: the result is divided by it; in units of the data, from `MAGNITUDE_MIN` to `MAGNITUDE_MAX`.
        bound: the quotient is clamped to ±bound; in units of ``scale``, above 0.
        within: (LOW, HIGH) of each column, to which its values are clamped first, in units of the data and within
            ±`MAGNITUDE_MAX`, which clamps none; empty for no column.
    """

    centre: tuple[float, ...]
    scale: tuple[float, ...]
    bound: tuple[float, ...]
    within: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        for field in ("centre", "scale", "bound"):
            values = getattr(self, field)
            if len(values) != len(self.columns):
                raise UsageError(f"{field} has {len(values)} values for {len(self.columns)} columns; give one for each")
            least, most, above = _LIMITS[field]
            finite = all(map(math.isfinite, values))
            if self.columns and not (finite and least <= min(values) and max(values) <= most):
                pairs = zip(self.columns, values, strict=True)
                column, value = next(pair for pair in pairs if not least <= pair[1] <= most)
                expected = f"give a finite number{above}, from {least:g} to {most:g}"
                raise UsageError(f"{field} of column {column[:64]!r} is {value:g}; {expected}")
        if self.within and len(self.within) != len(self.columns):
            raise UsageError(f"within has {len(self.within)} values for {len(self.columns)} columns; give one for each")
        for column, ends in zip(self.columns, self.within, strict=False):
            if not -MAGNITUDE_MAX <= ends[0] < ends[1] <= MAGNITUDE_MAX:
                found = f"within of column {column[:64]!r} is {ends[0]:g} to {ends[1]:g}"
                raise UsageError(f"{found}; give LOW < HIGH within ±{MAGNITUDE_MAX:g}")
        super().__post_init__()

    def ranges(self) -> dict[str, tuple[float, float]]:
        """The interval of each column that its values are clamped to, by its bound and by `within`."""
        found = self.ranges_by_bound()
        for column, ends in zip(self.columns, self.within, strict=False):
            if column in found:
                low, high = (min(max(end, ends[0]), ends[1]) for end in found[column])
                found[column] = low, high
        return found

    def ranges_by_bound(self) -> dict[str, tuple[float, float]]:
        """centre ± scale·bound of each column, whatever `within` is."""
        parts = zip(self.columns, self.centre, self.scale, self.bound, strict=True)
        return {column: (centre - scale * bound, centre + scale * bound) for column, centre, scale, bound in parts}

    def limits(self, bits: int) -> tuple[int, ...]:
        """C_j of each column on a grid of 2^-bits, at least 1. Raises `UsageError` if a bound does not fit the grid."""
        return self._box(bits).limits

    def quantised(self, rows: NDArray[np.float64], bits: int) -> NDArray[np.int64]:
        """Quantise rows of finite values to the integers X, same shape; |X_j| <= C_j however large the values are."""
        return round_to_grid(self.clamped(rows, bits), bits)  # within the grid, by its limits

    def clamped(self, rows: NDArray[np.float64], bits: int) -> NDArray[np.float64]:
        """Return (x - centre)/scale, clamped to the largest grid points within the bounds but not rounded."""
        box = self._box(bits)
        with np.errstate(over="ignore"):  # a huge value becomes infinite here, and is clamped like any other
            scaled = self.inside(rows, bits) - box.centre
            scaled /= box.scale
        return np.minimum(np.maximum(scaled, box.low, out=scaled), box.high, out=scaled)

    def inside(self, rows: NDArray[np.float64], bits: int) -> NDArray[np.float64]:
        """Clamp rows, in units of the data, to `within`."""
        ends = self._box(bits).within
        return rows if ends is None else np.clip(rows, *ends)

    def _box(self, bits: int) -> _Box:
        """Return the parameters as arrays, built once for all rows of a round."""
        if bits not in self._boxes:
            limits = grid_limits(self.columns, self.bound, bits)
            centre, scale, edge = (np.array(values, dtype=np.float64) for values in (self.centre, self.scale, limits))
            high = np.ldexp(edge, -bits)
            ends = (np.array(self.within).T[0], np.array(self.within).T[1]) if self.within else None
            self._boxes[bits] = _Box(limits, centre, scale, -high, high, ends)
        return self._boxes[bits]

    @cached_property
    def _boxes(self) -> dict[int, _Box]:
        return {}


def example_box(*bounds: float) -> PublicParameters:
    """Return parameters for the examples of a statistic: one column per bound, around 0."""
    names = (*(f"x{place}" for place in range(1, len(bounds))), "y")
    return {"columns": names, "centre": (0.0,) * len(bounds), "scale": (1.0,) * len(bounds), "bound": bounds}


def example_ends(columns: int) -> tuple[tuple[float, float], ...]:
    """Return `within` for an example: each column's own interval about 0, any number for the last."""
    return (*((-0.9, 0.5 + place) for place in range(columns - 1)), ANY)


def grid_limits(columns: tuple[str, ...], bounds: tuple[float, ...], bits: int) -> tuple[int, ...]:
    """floor(bound·2^bits) of each column.

    Raises `UsageError` if one is 0 (the column would always be 0) or not below 2^53 (not exact).
    """
    limit, unit = math.ldexp(INTEGER_LIMIT, -bits), math.ldexp(1, -bits)
    if not unit <= min(bounds) <= max(bounds) < limit:
        pairs = zip(columns, bounds, strict=True)
        column, bound = next(pair for pair in pairs if not unit <= pair[1] < limit)
        if bound < unit:
            raise UsageError(
                f"bound {bound:g} of column {column!r} is below one grid unit of {unit:g}; "
                "raise it or use more fraction bits"
            )
        raise UsageError(
            f"bound {bound:g} of column {column!r} is not below {limit:g}; lower it or use fewer fraction bits"
        )
    return tuple(np.floor(np.ldexp(bounds, bits)).astype(np.int64).tolist())


def unique_terms(x: NDArray[np.int64]) -> NDArray[np.int64]:
    """The upper triangle of each row's xxᵀ, row by row: shape ``(m, d)`` becomes ``(m, d(d + 1)/2)``."""
    return np.concatenate([x[:, i : i + 1] * x[:, i:] for i in range(x.shape[1])], axis=1)


def term_labels(names: Sequence[str]) -> list[str]:
    """The labels of the unique terms of xxᵀ."""
    return [f"{left}·{right}" for i, left in enumerate(names) for right in names[i:]]


def symmetric(terms: NDArray[np.float64], d: int) -> NDArray[np.float64]:
    """Rebuild the symmetric matrix, shape ``(d, d)``, from its unique terms."""
    upper, matrix = np.triu_indices(d), np.zeros((d, d))
    matrix[upper] = terms
    matrix.T[upper] = terms
    return matrix


def half_bits(fraction_bits: int) -> int:
    """Return the bits of a factor's grid if products have `fraction_bits`. Raises `UsageError` for an odd number."""
    if fraction_bits % 2:
        raise UsageError(f"fraction_bits is {fraction_bits}; choose an even number, so that products lie on the grid")
    return fraction_bits // 2


def check_radius(name: str, radius: float | None) -> None:
    """Raise `UsageError` for a radius that is not finite and above 0. None means no ball."""
    if radius is not None and not (math.isfinite(radius) and radius > 0):
        raise UsageError(f"{name} is {radius:g}; give a finite number above 0, or leave it out")


def ball_limit(name: str, radius: float, bits: int) -> int:
    """C = floor(radius·2^bits), at least 1.

    Raises `UsageError` if the ball holds no grid point but zero, or its radius is not below 2^53 grid units.
    """
    if radius >= (largest := math.ldexp(INTEGER_LIMIT, -bits)):
        raise UsageError(f"{name} {radius:g} is not below {largest:g}; lower it or use fewer fraction bits")
    if (limit := math.floor(math.ldexp(radius, bits))) < 1:
        raise UsageError(
            f"{name} {radius:g} is below one grid unit of {math.ldexp(1, -bits):g}; raise it or use more fraction bits"
        )
    return limit


def into_ball(values: NDArray[np.float64], limit: int) -> NDArray[np.int64]:
    """Scale each row that lies outside the ball into it, and truncate towards zero. Squares sum to at most C².

    ``values`` have shape ``(m, d)``, in grid units, each below 2^500 in absolute value. `limit` is C, the ball's radius
    in grid units, from 1 to below 2^53.
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
