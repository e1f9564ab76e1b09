"""Where one value of a statistic can lie: public limits, by which a sum that honest clients cannot have made is seen.

A value is the statistic of one row, or of one group of rows. A missing row is zero, so zero always belongs to the
range. All sets here are convex. Hence a mean of values lies in the range, and a sum of n values in n times the range:

- **coordinates**: each lies in [low, high];
- **length**: the L2 norm is at most `length`;
- **combinations**: a public linear combination of coordinates lies in an interval, as the bins of a histogram add up
  to 1 or, if the row is missing, to 0;
- **squares**: some coordinates, multiplied by public factors, are the terms of a matrix zzᵀ, or of one with a larger
  diagonal; a sum of such matrices has no eigenvalue below zero. This holds Σx² >= (Σx)²/n and all such inequalities.

A range may be wider than necessary, never narrower: an honest client would be refused. Each statistic states its own
(`Statistic.value_range`); by default it follows from the sensitivity. `dca_proto.plausibility` checks sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

CONSTANT = -1
"""In place of a coordinate: the number of values in the sum, which is public."""
Numbers = NDArray[np.float64]


class Squares(msgspec.Struct, frozen=True):
    """Symmetric matrices of one size m that have no eigenvalue below zero; entry = factor · coordinate of the sum.

    Attributes:
        what: what they are, as text in an error. places: the coordinate of each entry, or `CONSTANT`, shape
            ``(k, m, m)``. factors: shape ``(k, m, m)``.
        rounding: how far rounding moves each coordinate of one value, in grid units; 0 if products are exact.
    """

    what: str
    places: NDArray[np.int64]
    factors: Numbers
    rounding: float = 0.0


class Combinations(msgspec.Struct, frozen=True):
    """Linear combinations of coordinates.

    Attributes:
        names: what each is, as text. weights: shape ``(k, dimension)``. low, high: of one value, in grid units, shape
            ``(k,)``.
    """

    names: tuple[str, ...]
    weights: Numbers
    low: Numbers
    high: Numbers


class ValueRange(msgspec.Struct, frozen=True):
    """The range of one value, in grid units; see the head of this file.

    Attributes:
        low, high: of each coordinate, shape ``(dimension,)``. length: upper bound of the L2 norm.
        combinations, squares: further limits, if any.
        complete_length: if the last coordinate counts complete rows, upper bound of the L2 norm of the others; else 0.
    """

    low: Numbers
    high: Numbers
    length: float
    combinations: Combinations | None = None
    squares: Squares | None = None
    complete_length: float = 0.0


def box(low: Sequence[float] | Numbers, high: Sequence[float] | Numbers, length: float = math.inf) -> ValueRange:
    """Return the range of a box, with zero in it, and of a ball if there is one."""
    least = np.minimum(np.asarray(low, dtype=np.float64), 0.0)
    most = np.maximum(np.asarray(high, dtype=np.float64), 0.0)
    diagonal = float(np.linalg.norm(np.maximum(-least, most))) * (1 + 2.0**-40)
    return ValueRange(least, most, min(length, diagonal))


def total_of(names: str, dimension: int, high: float, places: slice = slice(None)) -> Combinations:
    """Return one combination: coordinates that are never below zero and add up to at most `high`."""
    weights = np.zeros((1, dimension))
    weights[0, places] = 1.0
    return Combinations((names,), weights, np.zeros(1), np.full(1, float(high)))


def unique_places(size: int, first: int = 0) -> NDArray[np.int64]:
    """Return the places of the unique terms of a symmetric matrix, row by row from place `first`: ``(size, size)``."""
    places = np.zeros((size, size), dtype=np.int64)
    upper = np.triu_indices(size)
    places[upper] = np.arange(first, first + len(upper[0]))
    return np.maximum(places, places.T)


def product_limits(limits: Sequence[float], radius: float | None = None, before: int = 0) -> tuple[Numbers, Numbers]:
    """Return low and high of the unique terms of xxᵀ, |x_j| <= c_j, row by row.

    All features but the first `before` lie in a ball, if there is a radius: then |x_i x_j| <= radius²/2 for i != j.
    """
    c = np.array(limits, dtype=np.float64)
    high = np.outer(c, c)
    if radius is not None:
        inside = high[before:, before:]
        diagonal = inside.diagonal().copy()
        np.minimum(inside, radius**2 / 2, out=inside)
        np.fill_diagonal(inside, diagonal)
    low = -high
    np.fill_diagonal(low, 0.0)
    upper = np.triu_indices(len(c))
    return low[upper], high[upper]
