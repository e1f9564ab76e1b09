"""Measures one cell in processes of its own, whose peak of memory is then the cell's, and reads one line of JSON.

`python -m emulator.scaling.measure` reads a cell from stdin and writes its figures to stdout.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from typing import Any

import msgspec

from dca_proto.core.errors import DcaError, UsageError
from dca_proto.net import leash
from emulator.scaling.cell import MOSQUITTO, Cell
from emulator.scaling.emulated import hold_emulated
from emulator.scaling.floor import floor_by_role_us
from emulator.scaling.held import cell_figures
from emulator.sim.team import WorkerError, run_together

_STOP_S = 10.0


def measure(cell: Cell) -> dict[str, Any]:
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


def measure_apart(cell: Cell) -> dict[str, Any]:
    """The figures of one cell, measured in a fresh process, which ends when this one does.

    Raises:
        UsageError: it could not be held, or the process was killed, for want of memory most likely.
        RuntimeError: the process failed; with its last line.
    """
    leashed = [sys.executable, "-IS", leash.__file__, str(os.getpid())]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*leashed, sys.executable, "-m", "emulator.scaling.measure"],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        start_new_session=True,  # so that Ctrl-C reaches this process, which ends the other in good order
    ) as process:
        try:
            output, trouble = process.communicate(msgspec.json.encode(cell))
        finally:
            _end(process)
    return _read(cell, process.returncode, output, trouble)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _read(cell: Cell, code: int, output: bytes, trouble: bytes) -> dict[str, Any]:
    size = f"N = {cell.clients:,}, d = {cell.dimension:,}, M = {cell.computes}"
    if code == -signal.SIGKILL:
        raise UsageError(f"{size}: its process was killed, most likely for want of memory; leave this size out")
    if code != 0:
        lines = trouble.decode(errors="replace").strip().splitlines() or ["no word"]
        raise RuntimeError(f"{size}: its process ended with {code}: {lines[-1]}")
    figures: dict[str, Any] = json.loads(output)
    if "error" in figures:
        raise UsageError(f"{size}: {figures['error']}")
    return figures


def main() -> None:
    """Measure the cell on stdin."""
    cell = msgspec.json.decode(sys.stdin.buffer.read(), type=Cell)
    try:
        figures = measure(cell)
    except DcaError as error:
        figures = {"error": str(error)}
    json.dump(figures, sys.stdout)


if __name__ == "__main__":
    main()
