"""The files of a sweep: its result, and the journal of its finished cells.

The journal is replaced as a whole after each cell. It records the sweep's options, versions and machine. A file of
another sweep is refused, and the error names the differences.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from dca_proto.errors import InputError
from dca_proto.results.figure import Count, about
from dca_proto.runtime.files import read_text, require_writable, write_json
from dca_proto.wording import JsonObject, in_words, parse_json
from emulator import provenance
from emulator.scaling.cell import Cell, SweepOptions
from emulator.scaling.costs import Growth, HeldOut
from emulator.scaling.figures import Figures
from emulator.scaling.predict import Prediction

_KIND = "scaling-resume"
_PACKAGES = ("dca-proto", "numpy", "PyNaCl", "msgspec")


class Hardware(msgspec.Struct, frozen=True):
    """The machine that measured. `cores`: None if the system does not report them."""

    system: Annotated[str, about("Operating system and architecture.")] = ""
    processor: Annotated[str, about("Its name.")] = ""
    cores: Annotated[Count | None, about("Null if the system does not report them.")] = None

    @classmethod
    def here(cls) -> Hardware:
        """Return this machine."""
        path = Path("/proc/cpuinfo")
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        processor = names[0] if names else platform.processor() or "unknown"
        return cls(f"{platform.system()} {platform.machine()}", processor, os.cpu_count())


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `dca scaling`: `--json` writes it, and the report reads it."""

    kind: Annotated[str, about("The kind of run.")] = "scaling"
    cells: Annotated[list[Figures], about("As measured.")]
    versions: Annotated[dict[str, str] | None, about("Of the packages.")] = None
    machine: Annotated[Hardware | None, about("That measured.")] = None
    options: Annotated[SweepOptions | None, about("Of the sweep.")] = None
    warnings: Annotated[list[str], about("Reasons to doubt the figures.")] = msgspec.field(default_factory=list)
    fits: Annotated[dict[str, Growth], about("Exponents of growth.")] = msgspec.field(default_factory=dict)
    calibration: Annotated[dict[str, dict[str, dict[str, float]]] | None, about("Cost by figure, role and term.")] = (
        None
    )
    held_out: Annotated[list[HeldOut], about("Errors of predictions of cells that were not fitted.")] = msgspec.field(
        default_factory=list
    )
    prediction: Annotated[Prediction | None, about("Of a larger round, if asked for.")] = None


def read_scaling(path: Path) -> Scaling:
    """Read the cells of an earlier sweep, with its options, versions and machine. Raises `InputError`."""
    found = _object_in(path, "--calibration")
    if found.get("kind") != "scaling" or not isinstance(found.get("cells"), list):
        raise InputError(f"--calibration {path}: found {found.get('kind')!r}, expected the JSON of dca scaling")
    measured = {name: found.get(name) for name in ("cells", "versions", "machine", "options")}
    try:
        return msgspec.convert(measured, Scaling)
    except msgspec.ValidationError as error:
        damaged = "a cell" if "$.cells" in str(error) else "the file"
        raise InputError(f"--calibration {path}: {damaged} is damaged: {in_words(error)}; measure again") from None


class SweepJournal:
    """The finished cells of one sweep.

    Args:
        path: of the journal, which need not exist yet; None keeps cells in memory only.
        options: of the sweep.

    Attributes:
        sweep: its options, versions and machine, without any cell.

    Raises:
        InputError: another sweep, or no sweep, wrote the file. StorageError: it cannot be written.
    """

    def __init__(self, path: Path | None, options: SweepOptions) -> None:
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
        """Return the cells that are still to be measured."""
        return [cell for cell in cells if cell not in self._cells]

    def run(self, cells: Sequence[Cell], measure: Callable[[Cell], Figures]) -> list[Figures]:
        """Measure the missing cells, and return the figures of all, in order. Each is stored before the next starts."""
        for cell in self.missing(cells):
            self._cells[cell] = measure(cell)
            if self.path is not None:
                stored = msgspec.to_builtins(list(self._cells.values()))
                write_json({"kind": _KIND, **self._identity(), "cells": stored}, str(self.path))
        return [self._cells[cell] for cell in cells]

    def _identity(self) -> JsonObject:
        plain = msgspec.to_builtins(self.sweep)
        return {name: plain[name] for name in ("options", "versions", "machine")}

    def _load(self, path: Path) -> None:
        stored = _object_in(path, "--journal")
        if stored.get("kind") != _KIND or not isinstance(stored.get("cells"), list):
            raise InputError(f"--journal {path}: a sweep did not write this file; name a new one")
        differences = list(provenance.differences(stored, self._identity()))
        if differences:
            raise InputError(f"--journal {path} is of another sweep: {'; '.join(differences)}; name a new file")
        try:
            self._cells = {figures.cell: figures for figures in msgspec.convert(stored["cells"], list[Figures])}
        except msgspec.ValidationError as error:
            raise InputError(f"--journal {path}: a cell is damaged ({error}); name a new file") from None


def _object_in(path: Path, option: str) -> JsonObject:
    """Read the JSON object in a file. Raises `InputError` that names the option."""
    try:
        value = parse_json(read_text(path))
    except InputError as error:
        raise InputError(f"{option}: {error}") from None
    except ValueError:
        raise InputError(f"{option} {path}: no JSON; name a file that dca scaling wrote") from None
    if not isinstance(value, dict):
        raise InputError(f"{option} {path}: found a {type(value).__name__}, expected what dca scaling wrote")
    return value
