"""Measures the cells of a sweep that are not finished yet, cheapest first, and keeps each as soon as it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from emulator.scaling.cell import Cell
from emulator.scaling.held import Figures
from emulator.scaling.record import Record

Measure = Callable[[Cell], Figures]


class Watcher(Protocol):
    """Who is shown how a sweep goes on."""

    def began(self, cell: Cell) -> None:
        """A cell is being measured."""

    def ended(self, cell: Cell, figures: Figures) -> None:
        """A cell is finished, and kept."""


def run_sweep(cells: Sequence[Cell], record: Record, measure: Measure, watcher: Watcher) -> list[Figures]:
    """The figures of all cells, in their order; only those that the record lacks are measured."""
    for cell in missing(cells, record):
        watcher.began(cell)
        figures = measure(cell)
        record.add(cell, figures)
        watcher.ended(cell, figures)
    return [record[cell] for cell in cells]


def missing(cells: Iterable[Cell], record: Record) -> list[Cell]:
    """The cells that are still to be measured."""
    return [cell for cell in cells if cell not in record]
