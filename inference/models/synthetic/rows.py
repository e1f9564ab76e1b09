"""Synthetic rows, with the types of their columns, and their CSV file."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dca_proto.runtime.files import whole_file
from inference.models.synthetic.grid import CODE, WHOLE, Cells, Grid
from inference.models.synthetic.model import Model
from inference.problem import Array

_DIGITS = 12


@dataclass(frozen=True, eq=False)
class SyntheticRows:
    """Synthetic rows.

    Attributes:
        grid: the cells of the columns. cells: of each row, ``(n, columns)``. values: numbers, of the same shape; NaN is
            missing. categories: texts of codes, by column. model: they were drawn from it; None for real rows.
    """

    grid: Grid
    cells: Cells
    values: Array
    categories: Mapping[str, Sequence[str]]
    model: Model | None = None

    def more(self, number: int, rng: np.random.Generator) -> SyntheticRows:
        """Draw other rows from the same model."""
        assert self.model is not None, "these are synthetic"
        cells = self.model.rows(number, rng)
        return replace(self, cells=cells, values=self.grid.values(cells, rng))

    def lines(self) -> Iterator[list[str]]:
        """Yield the names of the columns, then the texts of each row; a missing value is empty."""
        yield list(self.grid.names)
        columns = [self._texts(place) for place in range(len(self.grid.names))]
        yield from (list(line) for line in zip(*columns, strict=True))

    def write(self, path: Path) -> None:
        """Write a CSV file."""
        with whole_file(path) as place, place.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(self.lines())

    def _texts(self, place: int) -> list[str]:
        values, kind = self.values[:, place], self.grid.kinds[place]
        listed = self.categories.get(self.grid.names[place], ()) if kind == CODE else ()
        if kind not in (CODE, WHOLE):
            return ["" if np.isnan(value) else f"{value:.{_DIGITS}g}" for value in values]
        return ["" if np.isnan(value) else (listed[int(value)] if listed else str(int(value))) for value in values]
