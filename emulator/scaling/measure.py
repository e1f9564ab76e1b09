"""Measures one cell in processes of its own, whose peak of memory is then the cell's."""

from __future__ import annotations

import functools

from emulator.engine import Engine
from emulator.scaling.cell import MOSQUITTO, Cell
from emulator.scaling.emulated import hold_emulated
from emulator.scaling.floor import floor_by_role_us
from emulator.scaling.held import Figures, cell_figures
from emulator.sim.team import run_together

_ADVICE = "leave this size out"


class Measuring:
    """Measures in its own process and in those that it starts, as a worker of an engine."""

    def measure(self, cell: Cell) -> Figures:
        """The figures of one cell."""
        if cell.backend == MOSQUITTO:
            from emulator.scaling.live import hold_live  # which needs what a device and a broker need

            seen = hold_live(cell)
        else:
            seen = run_together(functools.partial(hold_emulated, cell), cell.processes, _ADVICE)
        return cell_figures(cell, seen, floor_by_role_us(cell.computes, cell.dimension))


def measure_apart(cell: Cell, engine: Engine) -> Figures:
    """The figures of one cell, measured in a fresh process.

    Raises:
        UsageError: it could not be held. WorkerDiedError: the process was killed, for want of memory most likely.
        RuntimeError: the process failed; with why.
    """
    size = f"N = {cell.clients:,}, d = {cell.dimension:,}, M = {cell.computes}"
    with engine.worker(Measuring, size, _ADVICE) as process:
        figures: Figures = process.call("measure", cell)
        return figures
