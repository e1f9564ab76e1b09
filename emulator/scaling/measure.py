"""Measures one cell in processes of its own, whose peak of memory is then the cell's."""

from __future__ import annotations

import functools

from dca_proto.errors import UsageError
from emulator.engine import Engine
from emulator.scaling.cell import MOSQUITTO, Cell
from emulator.scaling.emulated import hold_emulated
from emulator.scaling.floor import floor_by_role_us
from emulator.scaling.held import Figures, cell_figures
from emulator.sim.team import WorkerError, run_together


def measure(cell: Cell) -> Figures:
    """The figures of one cell, measured in this process and in those that it starts."""
    if cell.backend == MOSQUITTO:
        from emulator.scaling.live import hold_live  # which needs what a device and a broker need

        return cell_figures(cell, *hold_live(cell), floor_by_role_us(cell.computes, cell.dimension))
    try:
        held = run_together(functools.partial(hold_emulated, cell), cell.processes)
    except WorkerError as error:
        if error.was_killed:
            raise UsageError(f"{error}, most likely for want of memory; leave this size out") from None
        raise
    return cell_figures(cell, *held, floor_by_role_us(cell.computes, cell.dimension))


class Measuring:
    """Measures in its own process, as a worker of an engine."""

    def measure(self, cell: Cell) -> Figures:
        """See `measure`."""
        return measure(cell)


def measure_apart(cell: Cell, engine: Engine) -> Figures:
    """The figures of one cell, measured in a fresh process.

    Raises:
        UsageError: it could not be held, or the process was killed, for want of memory most likely.
        RuntimeError: the process failed; with why.
    """
    size = f"N = {cell.clients:,}, d = {cell.dimension:,}, M = {cell.computes}"
    with engine.worker(Measuring, size, "leave this size out") as process:
        figures: Figures = process.call("measure", cell)
        return figures
