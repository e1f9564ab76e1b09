"""The cells of each column of a table, and values from cells.

- **Codes**: a cell for each code. Their values are the codes, or the texts of listed categories.
- **Whole numbers**: equal bins of width 1 or more; a value is drawn from the whole numbers in its bin.
- **Real numbers**: equal bins; a value is drawn evenly from its bin, and rounded to a hundredth of its width.

A last cell holds missing values. Bins follow from public bounds alone, so nothing within a bin is learned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10, pi, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dca_proto.statistics import Marginals
from dca_proto.statistics.table import CODES_MAX
from inference.errors import DataError, unknown
from inference.problem import Array, Schema

CODE, WHOLE, REAL = KINDS = ("code", "whole", "real")
_FINE = 100  # parts of a bin to which real numbers are rounded
_MEAN_SIZE = sqrt(2 / pi)  # of a standard normal number
Cells = NDArray[np.int64]
Places = tuple[int, ...]
"""The places of a marginal's columns."""


@dataclass(frozen=True)
class Grid:
    """The cells of all columns.

    Attributes:
        names: of the columns. kinds: of each, one of `KINDS`. bounds: of each. bins: of each; 0 for codes.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    bounds: tuple[tuple[float, float], ...]
    bins: tuple[int, ...]

    @classmethod
    def of(cls, schema: Schema, bins: int, codes: str | None, whole: str | None) -> Grid:
        """Return the cells of a schema's columns.

        Args:
            bins: of a column of numbers, at most. codes, whole: names of columns, separated by commas. Codes are by
                default those with bounds 0:1 and those with listed categories.

        Raises:
            DataError: a column is unknown, or its bounds are not those of few codes or of whole numbers.
        """
        ends = {name: (schema.bounds[name].lower, schema.bounds[name].upper) for name in schema.columns}
        coded = {name for name, pair in ends.items() if pair == (0, 1) or name in schema.categories}
        if codes is not None:
            coded = {*_named(codes, schema.columns), *schema.categories}
        counted = set(_named(whole or "", schema.columns)) - coded
        kinds, number = [], []
        for name, (low, high) in ends.items():
            is_whole = low == int(low) and high == int(high)
            if name in coded and not (is_whole and high - low < CODES_MAX):
                raise DataError(
                    f"column {name!r} has bounds {low:g}:{high:g}; expected those of at most {CODES_MAX} whole "
                    "numbers, one for each code, as in 0:3 for four"
                )
            if name in counted and not is_whole:
                raise DataError(f"column {name!r} has bounds {low:g}:{high:g}; expected whole numbers")
            kinds.append(CODE if name in coded else WHOLE if name in counted else REAL)
            number.append(0 if name in coded else min(bins, int(high - low)) if name in counted else bins)
        return cls(schema.columns, tuple(kinds), tuple(ends.values()), tuple(number))

    def statistic(self, marginals: Iterable[tuple[int, ...]] = (), weights: Iterable[int] = ()) -> Marginals:
        """Return the counts of marginals, by default of each column alone."""
        return Marginals(
            columns=self.names,
            lower=tuple(low for low, _ in self.bounds),
            upper=tuple(high for _, high in self.bounds),
            bins=self.bins,
            marginals=tuple(marginals),
            weights=tuple(weights),
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of cells of each column, with that of missing values."""
        return self.statistic().sizes

    def title(self, places: Sequence[int]) -> str:
        """Return the name of a marginal."""
        return " × ".join(self.names[place] for place in places)

    def values(self, cells: Cells, rng: np.random.Generator) -> Array:
        """Return a value for each cell ``(n, columns)``; NaN for a missing one."""
        found = np.empty(cells.shape)
        for place, (kind, (low, high), size) in enumerate(zip(self.kinds, self.bounds, self.sizes, strict=True)):
            own, shares = cells[:, place], rng.random(len(cells))
            inside = np.minimum(own, size - 2)
            if kind == CODE:
                values = low + inside
            else:
                edges = np.linspace(low, high, size)
                begin, end = edges[inside], edges[inside + 1]
                if kind == WHOLE:  # the last bin is closed
                    first, last = np.ceil(begin), np.where(inside == size - 2, high, np.ceil(end) - 1)
                    values = first + np.floor(shares * (last - first + 1))
                else:
                    values = np.round(begin + shares * (end - begin), self._places(low, high, size - 1)).clip(low, high)
            found[:, place] = np.where(own == size - 1, np.nan, values)
        return found

    def _places(self, low: float, high: float, bins: int) -> int:
        """Return how many decimals a hundredth of a bin has; below zero for wide ones."""
        return ceil(-log10((high - low) / bins / _FINE))

    def middles(self, place: int) -> Array:
        """Return a number for each cell of a column, NaN for the missing one: the code, or the middle of the bin."""
        (low, high), size = self.bounds[place], self.sizes[place]
        if self.kinds[place] == CODE:
            return np.append(np.arange(floor(low), floor(high) + 1.0), np.nan)
        edges = np.linspace(low, high, size)
        return np.append((edges[1:] + edges[:-1]) / 2, np.nan)


class Table(NamedTuple):
    """A released marginal.

    Attributes:
        places: of its columns. counts: noisy, one axis a column. sd: of the noise of each.
    """

    places: Places
    counts: Array
    sd: float

    @property
    def noise_distance(self) -> float:
        """The mean total variation distance that noise alone makes, times the number of rows."""
        return self.counts.size * self.sd * _MEAN_SIZE / 2


def _named(text: str, columns: Sequence[str]) -> list[str]:
    """Return the names in a text, separated by commas. Raises `DataError` for an unknown one."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if name not in columns:
            raise unknown("column", name, "the data", columns)
    return names
