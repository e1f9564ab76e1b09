"""Independent draws from a density of one or two coordinates that is known up to a factor: on a grid that closes in.

The grid starts as the whole box, finds where the density is within e^-30 of its maximum, and is laid anew over that
part. Draws are uniform within their cell. A cell is a thousandth of the range that matters (one coordinate) or a
hundredth (two), and the only error is the density's change within it. Towards both ends of that range the last grid's
cells get ever finer, because a vague prior can put much mass next to the least possible value and still have a long
tail.
Integers are drawn exactly where all of them fit on the grid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from inference.problem import Array

LogDensity = Callable[..., Array]
Box = list[tuple[float, float]]

POINTS = (0, 1001, 121)  # cells along each axis, by the number of axes
ENDS = (0, 200, 50)  # and so many more towards each end of an axis in the last grid
FINEST = 1e-12  # of the range: the cell at the very end
PASSES_MAX = 12  # each narrows the box; a density as narrow as 1e-12 of the box takes four
NEGLIGIBLE = 30.0  # of log density below the maximum


class Axis(NamedTuple):
    """Cells' midpoints and widths; of integers, a width is how many of them are in the cell."""

    points: Array
    widths: Array


def draw_on_grid(
    log_density: LogDensity, box: Box, size: int, rng: np.random.Generator, *, integers: bool = False
) -> Array:
    """Independent draws, shape ``(size, len(box))``.

    Args:
        log_density: of arrays, one per coordinate, of the same shape; up to a constant; finite inside the box.
        box: lower and upper end of each coordinate; for integers, the first and the last.
        size: how many. rng: for the draws. integers: whether the coordinates are whole numbers.
    """
    axes, log_p = _grid(log_density, _closed_in(log_density, box, integers), integers, ENDS[len(box)])
    for widths in np.meshgrid(*(axis.widths for axis in axes), indexing="ij"):
        log_p = log_p + np.log(widths)
    cumulative = np.cumsum(np.exp(log_p - log_p.max()).ravel())
    cells = np.unravel_index(np.searchsorted(cumulative, rng.random(size) * cumulative[-1], side="right"), log_p.shape)
    draws = []
    for axis, i in zip(axes, cells, strict=True):  # all of a cell is equally likely
        points, widths = axis.points[i], axis.widths[i]
        place = widths * rng.random(size)
        draws.append(points + (np.floor(place) - (widths - 1) / 2 if integers else place - widths / 2))
    return np.stack(draws, axis=-1)


def _closed_in(log_density: LogDensity, box: Box, integers: bool) -> Box:
    """The part of the box where the density is not negligible."""
    for _ in range(PASSES_MAX):
        axes, log_p = _grid(log_density, box, integers)
        kept = log_p > log_p.max() - NEGLIGIBLE
        narrower = []
        for k, axis in enumerate(axes):  # where anything was kept, and a cell on either side of it
            where = np.flatnonzero(kept.any(axis=tuple(other for other in range(kept.ndim) if other != k)))
            first, last = max(where[0] - 1, 0), min(where[-1] + 1, len(axis.points) - 1)
            half = (axis.widths - integers) / 2
            narrower.append((float(axis.points[first] - half[first]), float(axis.points[last] + half[last])))
        if all(new[1] - new[0] >= 0.5 * (old[1] - old[0]) for new, old in zip(narrower, box, strict=True)):
            break
        box = narrower
    return box


def _grid(log_density: LogDensity, box: Box, integers: bool, ends: int = 0) -> tuple[list[Axis], Array]:
    axes = [_axis(low, high, POINTS[len(box)], ends, integers) for low, high in box]
    return axes, log_density(*np.meshgrid(*(axis.points for axis in axes), indexing="ij"))


def _axis(low: float, high: float, points: int, ends: int, integers: bool) -> Axis:
    if integers:
        low, high = low - 0.5, high + 0.5
    high = max(high, np.nextafter(low, np.inf))
    finer = (high - low) * np.geomspace(FINEST, 0.5, ends)
    edges = np.concatenate([np.linspace(low, high, points + 1), low + finer, high - finer])
    edges = np.unique(np.floor(edges) + 0.5 if integers else edges)
    return Axis((edges[1:] + edges[:-1]) / 2, np.diff(edges))
