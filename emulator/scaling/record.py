"""Finished cells of a sweep in a file, so that an interrupted sweep goes on where it was.

The file is replaced as a whole after each cell. It says of which sweep it is: options, versions and machine. Figures of
another one would be no part of this one, so it is refused, with what differs.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dca_proto.cli.output import require_writable, write_json
from dca_proto.errors import InputError
from emulator import provenance
from emulator.scaling.cell import Cell
from emulator.scaling.held import Figures

_KIND = "scaling-resume"
_PACKAGES = ("dca-proto", "numpy", "PyNaCl", "msgspec")


def versions() -> dict[str, str]:
    """Of what the figures depend on."""
    return provenance.versions(_PACKAGES)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {"system": f"{platform.system()} {platform.machine()}", "processor": _processor(), "cores": os.cpu_count()}


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


class Record:
    """The finished cells of one sweep.

    Args:
        path: of the file, which need not exist yet; None keeps them in memory only.
        options: of the sweep, as plain data.

    Raises:
        UsageError: the file is of another sweep, is none of ours, or cannot be written.
    """

    def __init__(self, path: Path | None, options: Mapping[str, Any]) -> None:
        self.path = path
        self._sweep = {"options": dict(options), "versions": versions(), "machine": machine()}
        self._cells: dict[Cell, Figures] = {}
        if path is not None:
            require_writable(path)
            if path.exists():
                self._load(path)

    def __len__(self) -> int:
        return len(self._cells)

    def __contains__(self, cell: Cell) -> bool:
        return cell in self._cells

    def __getitem__(self, cell: Cell) -> Figures:
        return self._cells[cell]

    def add(self, cell: Cell, figures: Figures) -> None:
        """A cell is finished: durable before this returns, where there is a file."""
        self._cells[cell] = figures
        if self.path is not None:
            write_json(
                {"kind": _KIND, **self._sweep, "cells": msgspec.to_builtins(list(self._cells.values()))}, str(self.path)
            )

    def _load(self, path: Path) -> None:
        stored = read_object(path, "--resume")
        if stored.get("kind") != _KIND or not isinstance(stored.get("cells"), list):
            raise InputError(f"--resume {path}: this is no file that a sweep left; name a new one")
        differences = list(provenance.differences(stored, json.loads(json.dumps(self._sweep))))
        if differences:
            raise InputError(f"--resume {path} is of another sweep: {'; '.join(differences)}; name a new file")
        try:
            self._cells = {one.cell: one for one in msgspec.convert(stored["cells"], list[Figures])}
        except msgspec.ValidationError as error:
            raise InputError(f"--resume {path}: a cell is damaged ({error}); name a new file") from None


def read_object(path: Path, option: str) -> dict[str, Any]:
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
