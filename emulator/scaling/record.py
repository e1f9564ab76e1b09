"""The files of a sweep: its result, and its finished cells, so that an interrupted sweep goes on where it was.

The resume file is replaced as a whole after each cell. It says of which sweep it is: options, versions and machine.
Figures of another one would be no part of this one, so it is refused, with what differs.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dca_proto.cli.output import require_writable, write_json
from dca_proto.errors import InputError
from dca_proto.wording import in_words
from emulator import provenance
from emulator.results import Count
from emulator.scaling.cell import Cell, Sweep
from emulator.scaling.costs import Growth, HeldOut
from emulator.scaling.held import Figures
from emulator.scaling.predict import Prediction

_KIND = "scaling-resume"
_PACKAGES = ("dca-proto", "numpy", "PyNaCl", "msgspec")


class Hardware(msgspec.Struct, frozen=True):
    """The machine that measured. `cores`: None where the system does not tell."""

    system: str = ""
    processor: str = ""
    cores: Count | None = None

    @classmethod
    def here(cls) -> Hardware:
        """This machine."""
        path = Path("/proc/cpuinfo")
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        processor = names[0] if names else platform.processor() or "unknown"
        return cls(f"{platform.system()} {platform.machine()}", processor, os.cpu_count())


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, and what follows from it: `dca scaling --json` writes it, and the report reads it.

    Attributes:
        cells: as measured. versions, machine, options: of what, on what, and how.
        warnings: what speaks against the figures. fits: exponents. calibration: figure, role, term -> its cost.
        held_out: cells predicted from the others. prediction: of a larger round, if one was asked for.
    """

    kind: str = "scaling"
    cells: list[Figures]
    versions: dict[str, str] | None = None
    machine: Hardware | None = None
    options: Sweep | None = None
    warnings: list[str] = msgspec.field(default_factory=list)
    fits: dict[str, Growth] = msgspec.field(default_factory=dict)
    calibration: dict[str, dict[str, dict[str, float]]] | None = None
    held_out: list[HeldOut] = msgspec.field(default_factory=list)
    prediction: Prediction | None = None


def read_scaling(path: Path) -> Scaling:
    """An earlier sweep: its cells, and where they come from. Raises `InputError`."""
    found = _object_in(path, "--calibration")
    if found.get("kind") != "scaling" or not isinstance(found.get("cells"), list):
        raise InputError(f"--calibration {path}: found {found.get('kind')!r}, expected the JSON of dca scaling")
    measured = {name: found.get(name) for name in ("cells", "versions", "machine", "options")}
    try:
        return msgspec.convert(measured, Scaling)
    except msgspec.ValidationError as error:
        what = "a cell" if "$.cells" in str(error) else "the file"
        raise InputError(f"--calibration {path}: {what} is damaged: {in_words(error)}; measure anew") from None


class Record:
    """The finished cells of one sweep.

    Args:
        path: of the file, which need not exist yet; None keeps them in memory only.
        options: of the sweep.

    Attributes:
        sweep: its options, versions and machine, without any cell.

    Raises:
        InputError: the file is of another sweep, or no sweep wrote it. StorageError: it cannot be written.
    """

    def __init__(self, path: Path | None, options: Sweep) -> None:
        self.path = path
        versions = provenance.versions(_PACKAGES)
        self.sweep = Scaling(cells=[], versions=versions, machine=Hardware.here(), options=options)
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

    def run(self, cells: Sequence[Cell], measure: Callable[[Cell], Figures]) -> list[Figures]:
        """The figures of all cells, in their order. Each that is missing is measured, and durable before the next."""
        for cell in self.missing(cells):
            self._cells[cell] = measure(cell)
            if self.path is not None:
                found = msgspec.to_builtins(list(self._cells.values()))
                write_json({"kind": _KIND, **self._identity(), "cells": found}, str(self.path))
        return [self._cells[cell] for cell in cells]

    def _identity(self) -> dict[str, Any]:
        plain = msgspec.to_builtins(self.sweep)
        return {name: plain[name] for name in ("options", "versions", "machine")}

    def _load(self, path: Path) -> None:
        stored = _object_in(path, "--resume")
        if stored.get("kind") != _KIND or not isinstance(stored.get("cells"), list):
            raise InputError(f"--resume {path}: a sweep did not write this file; name a new one")
        differences = list(provenance.differences(stored, self._identity()))
        if differences:
            raise InputError(f"--resume {path} is of another sweep: {'; '.join(differences)}; name a new file")
        try:
            self._cells = {one.cell: one for one in msgspec.convert(stored["cells"], list[Figures])}
        except msgspec.ValidationError as error:
            raise InputError(f"--resume {path}: a cell is damaged ({error}); name a new file") from None


def _object_in(path: Path, option: str) -> dict[str, Any]:
    """The JSON object in a file. Raises `InputError` that names the option."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{option} {path}: {error.strerror}") from None
    except ValueError:
        raise InputError(f"{option} {path}: no JSON; name a file that dca scaling wrote") from None
    if not isinstance(value, dict):
        raise InputError(f"{option} {path}: found a {type(value).__name__}, expected what dca scaling wrote")
    return value
