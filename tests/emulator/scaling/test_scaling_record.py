"""An interrupted sweep goes on where it was, and no sweep goes on with another one's cells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dca_proto.errors import UsageError
from emulator.scaling.cell import Cell, SweepOptions
from emulator.scaling.figures import Figures
from emulator.scaling.record import SweepJournal

SIZES = {"clients": [10, 20, 40], "dimension": [5], "computes": [3]}
OPTIONS = SweepOptions(**SIZES, tolerate=[0.1], drop_rates=[0.0], backend="emulated", repeats=2)


def cells() -> list[Cell]:
    return OPTIONS.cells()


class Machine:
    """Measures without measuring, until the power fails."""

    def __init__(self, fails_at: int = 99) -> None:
        self.measured: list[int] = []
        self.fails_at = fails_at

    def measure(self, cell: Cell) -> Figures:
        if len(self.measured) == self.fails_at:
            raise KeyboardInterrupt
        self.measured.append(cell.clients)
        return Figures(**msgspec.structs.asdict(cell), wall_s=cell.clients / 10, core_s=1.0)


def test_an_interrupted_sweep_resumes_and_runs_only_what_is_missing(tmp_path: Path) -> None:
    path, first, second, third = tmp_path / "sweep.json", Machine(fails_at=2), Machine(), Machine()
    with pytest.raises(KeyboardInterrupt):
        SweepJournal(path, OPTIONS).run(cells(), first.measure)
    assert first.measured == [10, 20]
    done = SweepJournal(path, OPTIONS).run(cells(), second.measure)
    assert second.measured == [40]
    assert [one.wall_s for one in done] == [1.0, 2.0, 4.0]
    assert SweepJournal(path, OPTIONS).run(cells(), third.measure) == done
    assert third.measured == []
    assert list(tmp_path.iterdir()) == [path]


def test_without_a_file_nothing_is_kept(tmp_path: Path) -> None:
    machine = Machine()
    SweepJournal(None, OPTIONS).run(cells(), machine.measure)
    assert len(machine.measured) == 3
    assert list(tmp_path.iterdir()) == []


def kept(path: Path) -> dict[str, Any]:
    SweepJournal(path, OPTIONS).run(cells()[:1], Machine().measure)
    stored: dict[str, Any] = json.loads(path.read_text())
    return stored


@pytest.mark.parametrize(
    ("part", "name", "value", "message"),
    [
        ("options", "repeats", 5, "repeats is 5 there and 2 here"),
        ("options", "clients", [10, 20], "clients is 10,20 there and 10,20,40 here"),
        ("options", "backend", "mosquitto", "backend is mosquitto there and emulated here"),
        ("versions", "numpy", "1.26.0", "numpy is 1.26.0 there and"),
        ("versions", "dca-proto", "9", "dca-proto is 9 there and"),
        ("machine", "cores", 4096, "cores is 4096 there and"),
        ("machine", "processor", "Z80", "processor is Z80 there and"),
    ],
)
def test_a_resume_file_of_another_sweep_is_refused(
    tmp_path: Path, part: str, name: str, value: object, message: str
) -> None:
    path = tmp_path / "sweep.json"
    stored = kept(path)
    stored[part][name] = value
    path.write_text(json.dumps(stored))
    with pytest.raises(UsageError, match=f"is of another sweep: {message}.*; name a new file"):
        SweepJournal(path, OPTIONS)
    assert json.loads(path.read_text()) == stored


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("half a fi", "no JSON; name a file that dca scaling wrote"),
        ("[1]", "found a list, expected what dca scaling wrote"),
        ('{"kind": "scaling", "cells": []}', "a sweep did not write this file"),
        ('{"kind": "scaling-resume", "cells": 1}', "a sweep did not write this file"),
        ('{"kind": "scaling-resume", "cells": []}', "it has no options; it has no versions; it has no machine"),
    ],
)
def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "sweep.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        SweepJournal(path, OPTIONS)


def test_a_damaged_cell_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    stored = kept(path)
    stored["cells"][0]["clients"] = "ten"
    path.write_text(json.dumps(stored))
    with pytest.raises(UsageError, match=r"a cell is damaged \(Expected `int`, got `str`.*\); name a new file"):
        SweepJournal(path, OPTIONS)


def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"folder .* does not exist"):
        SweepJournal(tmp_path / "no" / "sweep.json", OPTIONS)
    with pytest.raises(UsageError, match="it is a folder"):
        SweepJournal(tmp_path, OPTIONS)
