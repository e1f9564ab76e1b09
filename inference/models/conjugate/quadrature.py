"""Independent draws from an unnormalised density of one or two coordinates, on a grid that closes in.

The first grid covers the whole box. Each further grid covers the part where the density is within e^-30 of its maximum.
Draws are uniform within their cell. A cell is a thousandth of that part (one coordinate) or a hundredth (two); the only
error is the density's change within a cell. Towards both ends the last grid's cells get ever finer, because a vague
prior can put much mass next to the smallest possible value and still have a long tail. Integers are drawn exactly if
all of them fit on the grid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from inference.problem import Array

LogDensity = Callable[..., Array]
Box = list[tuple[float, float]]

POINTS = (0, 1001, 121)  # cells along each axis, by the number of axes
ENDS = (0, 200, 50)  # additional cells towards each end of an axis in the last grid, by the number of axes
FINEST = 1e-12  # width of the outermost cell, as a share of the range
PASSES_MAX = 12  # of narrowing the box; a density as narrow as 1e-12 of the box takes four
NEGLIGIBLE = 30.0  # distance of a log density from the maximum beyond which it is ignored


class Axis(NamedTuple):
    """Cells' midpoints and widths; for integers, the width is the number of integers in the cell."""

    points: Array
    widths: Array


@dataclass(frozen=True, eq=False)
class Grid:
    """A density on the cells of a grid.

    Attributes:
        axes: of the cells. cumulative: masses of the cells in order, added up. log_total: ln of the density's integral.
        integers: whether coordinates are whole numbers.
    """

    axes: list[Axis]
    cumulative: Array
    log_total: float
    integers: bool

    @classmethod
    def of(cls, log_density: LogDensity, box: Box, *, integers: bool = False) -> Grid:
        """Tabulate a density.

        Args:
            log_density: function of one array per coordinate, all of one shape; up to a constant; finite inside the
                box. box: lower and upper end of each coordinate; for integers, the first and the last.
            integers: whether coordinates are whole numbers.
        """
        axes, log_p = _grid(log_density, _closed_in(log_density, box, integers), integers, ENDS[len(box)])
        for widths in np.meshgrid(*(axis.widths for axis in axes), indexing="ij"):
            log_p = log_p + np.log(widths)
        highest = float(log_p.max())
        cumulative = np.cumsum(np.exp(log_p - highest).ravel())
        return cls(axes, cumulative, highest + float(np.log(cumulative[-1])), integers)

    def draw(self, size: int, rng: np.random.Generator) -> Array:
        """Return independent draws, shape ``(size, axes)``."""
        places = np.searchsorted(self.cumulative, rng.random(size) * self.cumulative[-1], side="right")
        cells = np.unravel_index(places, tuple(len(axis.points) for axis in self.axes))
        draws = []
        for axis, i in zip(self.axes, cells, strict=True):  # uniform within the cell
            points, widths = axis.points[i], axis.widths[i]
            place = widths * rng.random(size)
            draws.append(points + (np.floor(place) - (widths - 1) / 2 if self.integers else place - widths / 2))
        return np.stack(draws, axis=-1)


def _closed_in(log_density: LogDensity, box: Box, integers: bool) -> Box:
    """Return the part of the box where the density is not negligible."""
    for _ in range(PASSES_MAX):
        axes, log_p = _grid(log_density, box, integers)
        kept = log_p > log_p.max() - NEGLIGIBLE
        narrower = []
        for k, axis in enumerate(axes):  # the kept cells, and one more on either side
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
