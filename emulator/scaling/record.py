"""The files of a sweep: its result, and its finished cells, so that an interrupted sweep goes on where it was.

The resume file is replaced as a whole after each cell. It says of which sweep it is: options, versions and machine.
Figures of another one would be no part of this one, so it is refused, with what differs.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from dca_proto.cli.output import require_writable, write_json
from dca_proto.errors import InputError, UsageError
from dca_proto.wording import in_words
from emulator import provenance
from emulator.scaling.cell import Cell
from emulator.scaling.costs import Growth, HeldOut
from emulator.scaling.held import Figures
from emulator.scaling.predict import Prediction

_KIND = "scaling-resume"
_PACKAGES = ("dca-proto", "numpy", "PyNaCl", "msgspec")


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, and what follows from it: `dca scaling --json` writes it, and the report reads it.

    Attributes:
        cells: as measured. versions, machine, options: of what, on what, and how.
        warnings: what speaks against the figures. fits: exponents. calibration: figure, role, term -> its cost.
        held_out: cells predicted from the others. prediction: of a larger round, if one was asked for.
    """

    kind: str = "scaling"
    cells: list[Figures]
    versions: Any = None
    machine: Any = None
    options: Any = None
    warnings: list[str] = msgspec.field(default_factory=list)
    fits: dict[str, Growth] = msgspec.field(default_factory=dict)
    calibration: dict[str, dict[str, dict[str, float]]] | None = None
    held_out: list[HeldOut] = msgspec.field(default_factory=list)
    prediction: Prediction | None = None


def read_scaling(path: Path) -> Scaling:
    """An earlier sweep: its cells, and where they come from. Raises `UsageError`."""
    found = _object_in(path, "--calibration")
    if found.get("kind") != "scaling" or not isinstance(found.get("cells"), list):
        raise UsageError(f"--calibration {path}: found {found.get('kind')!r}, expected the JSON of dca scaling")
    try:
        cells = msgspec.convert(found["cells"], list[Figures])
    except msgspec.ValidationError as error:
        raise UsageError(f"--calibration {path}: a cell is damaged: {in_words(error)}; measure anew") from None
    whence: dict[str, Any] = {name: found.get(name) for name in ("versions", "machine", "options")}
    return Scaling(cells=cells, **whence)


class Watcher(Protocol):
    """Who is shown how a sweep goes on."""

    def began(self, cell: Cell) -> None:
        """A cell is being measured."""

    def ended(self, cell: Cell, figures: Figures) -> None:
        """A cell is finished, and kept."""


class Record:
    """The finished cells of one sweep.

    Args:
        path: of the file, which need not exist yet; None keeps them in memory only.
        options: of the sweep, as plain data.

    Attributes:
        sweep: its options, versions and machine.

    Raises:
        UsageError: the file is of another sweep, is none of ours, or cannot be written.
    """

    def __init__(self, path: Path | None, options: Mapping[str, Any]) -> None:
        self.path = path
        machine = {"system": f"{platform.system()} {platform.machine()}", "processor": _processor()}
        self.sweep: dict[str, Any] = {
            "options": dict(options),
            "versions": provenance.versions(_PACKAGES),
            "machine": {**machine, "cores": os.cpu_count()},
        }
        self._cells: dict[Cell, Figures] = {}
        if path is not None:
            require_writable(path)
            if path.exists():
                self._load(path)

    def __len__(self) -> int:
        return len(self._cells)

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """The cells that are still to be measured."""
        return [cell for cell in cells if cell not in self._cells]

    def add(self, cell: Cell, figures: Figures) -> None:
        """A cell is finished: durable before this returns, where there is a file."""
        self._cells[cell] = figures
        if self.path is not None:
            cells = msgspec.to_builtins(list(self._cells.values()))
            write_json({"kind": _KIND, **self.sweep, "cells": cells}, str(self.path))

    def run(self, cells: Sequence[Cell], measure: Callable[[Cell], Figures], watcher: Watcher) -> list[Figures]:
        """The figures of all cells, in their order. Each that is missing is measured, and kept at once."""
        for cell in self.missing(cells):
            watcher.began(cell)
            figures = measure(cell)
            self.add(cell, figures)
            watcher.ended(cell, figures)
        return [self._cells[cell] for cell in cells]

    def _load(self, path: Path) -> None:
        stored = _object_in(path, "--resume")
        if stored.get("kind") != _KIND or not isinstance(stored.get("cells"), list):
            raise InputError(f"--resume {path}: a sweep did not write this file; name a new one")
        differences = list(provenance.differences(stored, json.loads(json.dumps(self.sweep))))
        if differences:
            raise InputError(f"--resume {path} is of another sweep: {'; '.join(differences)}; name a new file")
        try:
            self._cells = {one.cell: one for one in msgspec.convert(stored["cells"], list[Figures])}
        except msgspec.ValidationError as error:
            raise InputError(f"--resume {path}: a cell is damaged ({error}); name a new file") from None


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _object_in(path: Path, option: str) -> dict[str, Any]:
    """The JSON object in a file. Raises `UsageError` that names the option."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{option} {path}: {error.strerror}") from None
    except ValueError:
        raise InputError(f"{option} {path}: no JSON; name a file that dca scaling wrote") from None
    if not isinstance(value, dict):
        raise InputError(f"{option} {path}: found a {type(value).__name__}, expected what dca scaling wrote")
    return value
