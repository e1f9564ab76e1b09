"""`dca scaling`: what it writes, what it refuses before the work, and how it ends when interrupted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dca_proto.cli import scaling as command
from dca_proto.cli.scaling import scaling
from dca_proto.errors import UsageError
from emulator.scaling.cell import Cell
from emulator.scaling.figures import Figures

SIZES = {"clients": "100,1000,10000", "dimension": "10,100,1000", "computes": "10"}
ROLES = ("client", "compute", "trainer")


def synthetic(cell: Cell, **changes: Any) -> Figures:
    """Figures of a cell, without holding a round."""
    cost = cell.clients * (1e-3 + 1e-7 * cell.computes * cell.dimension) * (1.02 if cell.dimension == 100 else 1)
    sent = {"client": 2 * cell.clients, "compute": cell.clients * cell.computes, "trainer": 1 + 2 * cell.computes}
    paper = 2.86 if (cell.clients, cell.dimension, cell.computes) == (1000, 100, 10) and not cell.drop_rate else None
    found = {
        **msgspec.to_builtins(cell),
        "wall_s": cost,
        "wall_s_spread": [cost * 0.9, cost * 1.1],
        "core_s": cost,
        "waiting_s": (cell.processes - 1) * cost,
        "core_s_by_role": {
            "client": cost / 4,
            "compute": cost / 4,
            "trainer": cell.clients / 4e3,
            "emulator": cost / 4,
        },
        "phases": dict.fromkeys(("collect", "agree"), cost / 2),
        **dict.fromkeys(("messages", "bytes", "received", "received_bytes"), sent),
        "us_per_contribution": {"client": 60.0, "compute": 50.0, "trainer": 0.5, "emulator": 20.0},
        "floor_us": {"client": 20.0, "compute": 21.0, "trainer": 0.0},
        "sessions_s": cell.clients * cell.computes * 1e-4,
        "sessions_wall_s": cell.clients * cell.computes * 5e-5,
        "agreement_s": cell.clients * cell.computes * 6e-5,
        "first_round_wall_s": cost * 3,
        "peak_rss_mb": 50.0,
        "compute_memory_bytes": 1000 * cell.clients,
        "compute_memory_least_bytes": 100 * cell.clients,
        "compute_memory_after_bytes": 300 * cell.clients,
        "memory_bytes": {"client": 9000, "compute": 1000 * cell.clients, "trainer": 500 * cell.clients},
        "success_rate": 1.0 if cell.tolerate or not cell.drop_rate else 0.0,
        "success_expected": 0.9,
        "contributors": cell.clients,
        "noise_sd": 12.0,
        "noise_sd_ideal": 11.0,
        "paper_s": paper,
        "ratio": None if paper is None else cost / paper,
    }
    return msgspec.convert({**found, **changes}, Figures)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """The cells that the command has measured."""
    seen: list[Cell] = []

    def measure(cell: Cell, engine: object) -> Figures:
        seen.append(cell)
        return synthetic(cell)

    monkeypatch.setattr(command, "measure_apart", measure)
    return seen


def test_a_sweep_writes_cells_fits_and_the_paper_beside_them(
    measured: list[Cell], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, picture = tmp_path / "scaling.json", tmp_path / "scaling.png"
    assert scaling(**SIZES, json_to=str(target), plot=picture) == 0
    result = json.loads(target.read_text())
    assert set(result) == {
        *("kind", "versions", "machine", "options", "cells", "fits", "calibration", "held_out", "warnings"),
        "prediction",
    }
    assert (result["kind"], len(result["cells"]), len(measured)) == ("scaling", 9, 9)
    required = {
        *("clients", "dimension", "computes", "wall_s", "core_s", "phases", "bytes", "messages", "peak_rss_mb"),
        *("paper_s", "ratio"),
    }
    assert all(required <= set(cell) for cell in result["cells"])
    assert result["fits"]["wall_s"]["exponents"]["N"]["value"] == pytest.approx(1.0, abs=0.02)
    errors = [one["error"] for one in result["held_out"] if one["quantity"] == "core seconds"]
    assert errors
    assert max(map(abs, errors)) < 0.25
    costs = result["calibration"]["messages"]["client"]  # with one M, a client and its pairs cannot be told apart
    assert costs["N"] + 10 * costs["N M"] == pytest.approx(2.0)
    assert picture.read_bytes().startswith(b"\x89PNG")
    shown = " ".join(capsys.readouterr().out.split())
    expected = ("2.86", "wall time 1.00 [", "within 25 %", "9/9", "a Compute node uses 1.00 kB for each client",
            "below 1 is faster")  # fmt: skip
    for text in expected:
        assert text in shown


def test_json_to_stdout_is_nothing_but_json(measured: list[Cell], capsys: pytest.CaptureFixture[str]) -> None:
    scaling(clients="100", dimension="10", computes="3", json_to="-")
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert result["calibration"] is None
    assert "a calibration needs 7 or more" in " ".join(captured.err.split())


def test_thresholds_and_drop_rates_are_swept(
    measured: list[Cell], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "drops.svg"
    scaling(clients="100", dimension="10", computes="3", tolerate="0,0.2", drop_rate="0,0.05", plot=picture)
    assert sorted((one.tolerate, one.drop_rate) for one in measured) == [(0, 0.0), (0, 0.05), (20, 0.0), (20, 0.05)]
    assert "drop-outs" in capsys.readouterr().out
    assert "<svg" in picture.read_text()


def test_a_busy_machine_is_seen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "measure_apart", lambda cell, _: synthetic(cell, wall_s=synthetic(cell).core_s * 3))
    scaling(clients="100", dimension="10", computes="3", processes=1)
    assert "awake for up to 3.0 times their core time" in " ".join(capsys.readouterr().out.split())
    scaling(predict_size=QUESTION, processes=1)
    assert "awake for up to 3.0 times their core time" in " ".join(capsys.readouterr().out.split())


def test_processes_that_wait_for_each_other_are_not_a_busy_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = {"core_s": 1.0, "wall_s": 0.9}  # two processes: 0.8 s of the 1.8 went by in waiting
    for waiting_s, is_busy in ((0.8, False), (0.1, True)):
        figures = {**seconds, "waiting_s": waiting_s}
        monkeypatch.setattr(command, "measure_apart", lambda cell, _, more=figures: synthetic(cell, **more))
        scaling(clients="100", dimension="10", computes="3", processes=2)
        assert ("more processes than cores, took the cores" in " ".join(capsys.readouterr().out.split())) == is_busy


def test_processes_are_those_that_are_asked_for_or_one_for_each_core(
    measured: list[Cell], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command.engines, "cores", lambda: 6)
    journal = tmp_path / "sweep.json"
    for computes, asked, expected in (("10", None, 6), ("3,10", None, 3), ("3", 5, 5)):
        scaling(clients="100", dimension="10", computes=computes, processes=asked)
        assert measured[-1].processes == expected
    scaling(clients="3,100", dimension="10", computes="10")
    assert measured[-1].processes == 3, "nobody asked for more processes than there are clients"
    with pytest.raises(UsageError, match="clients 2: expected"):
        scaling(clients="2", dimension="10", computes="10")
    scaling(clients="100", dimension="10", computes="3", processes=1, journal=journal)
    with pytest.raises(UsageError, match="processes is 1 there and 2 here"):
        scaling(clients="100", dimension="10", computes="3", processes=2, journal=journal)
    with pytest.raises(UsageError, match="--processes 101: expected 1 to 100, the number of clients"):
        scaling(clients="100", dimension="10", computes="3", processes=101)


def test_tables_fit_a_terminal_of_eighty_columns(measured: list[Cell], capsys: pytest.CaptureFixture[str]) -> None:
    scaling(clients="100,1000,100000", dimension="10,100,1000", computes="10")
    shown = capsys.readouterr().out
    for heading in ("paper ratio", "emulator", "client nodes trainer msgs bytes memory keys hellos"):
        assert heading in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown


def test_a_cell_without_its_core_seconds_is_damaged(measured: list[Cell], tmp_path: Path) -> None:
    found = tmp_path / "cells.json"
    scaling(**SIZES, json_to=str(found))
    sweep = json.loads(found.read_text())
    del sweep["cells"][0]["core_s"]
    found.write_text(json.dumps(sweep))
    with pytest.raises(UsageError, match=r"a cell is damaged: .*core_s"):
        scaling(predict_size=QUESTION, calibration_file=found)


def test_a_cell_that_is_slower_than_the_paper_prints_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "measure_apart", lambda cell, _: synthetic(cell, paper_s=0.5, ratio=2.0))
    scaling(clients="100", dimension="10", computes="3")
    printed = " ".join(capsys.readouterr().out.split())
    assert "warning slower: N = 100, d = 10, M = 3 is slower than the paper: wall seconds: collect 0.05" in printed


def test_ctrl_c_prints_how_to_resume_and_resuming_measures_the_rest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Cell] = []

    def measure(cell: Cell, engine: object) -> Figures:
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(cell)
        return synthetic(cell)

    monkeypatch.setattr(command, "measure_apart", measure)
    journal = tmp_path / "sweep.json"
    with pytest.raises(KeyboardInterrupt):
        scaling(**SIZES, journal=journal)
    printed = " ".join(capsys.readouterr().out.split())
    assert "interrupted 2 of 9 cells are finished, and in" in printed
    assert "the same command resumes" in printed
    seen.clear()
    with pytest.raises(KeyboardInterrupt):
        scaling(**SIZES)
    assert "and not kept: name a --journal FILE" in " ".join(capsys.readouterr().out.split())
    monkeypatch.setattr(command, "measure_apart", lambda cell, _: synthetic(cell))
    scaling(**SIZES, journal=journal)
    assert "2 are in" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(UsageError, match="repeats is 5 there and 3 here"):
        scaling(**SIZES, rounds=3, journal=journal)


def test_a_prediction_from_a_sweep_and_from_a_calibration_of_its_own(
    measured: list[Cell], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep, target = tmp_path / "scaling.json", tmp_path / "prediction.json"
    scaling(**SIZES, json_to=str(sweep))
    measured.clear()
    question = "clients=1e7,dimension=1e4,computes=10"
    scaling(predict_size=question, calibration_file=sweep, json_to=str(target))
    assert measured == []
    prediction = json.loads(target.read_text())["prediction"]
    assert prediction["roles"]["client"]["core_s"]["value"] == pytest.approx(1e7 * (1e-3 + 1e-2) / 4, rel=0.05)
    assert prediction["roles"]["compute"]["machines"] >= 10
    assert prediction["broker"]["machines"] >= 1
    shown = " ".join(capsys.readouterr().out.split())
    for text in ("machines", "assumed", "within 25 %", "their own"):
        assert text in shown
    scaling(predict_size=question)
    assert {one.computes for one in measured} == {3, 10}
    assert {one.repeats for one in measured} == {3}
    measured.clear()
    with pytest.raises(UsageError, match="M = 3 only"):
        scaling(predict_size=question, computes="3")
    with pytest.raises(UsageError, match="2 emulated cells"):
        scaling(predict_size=question, clients="100", dimension="10")
    assert measured == []
    with pytest.raises(UsageError, match="M = 10 only"):
        scaling(predict_size="clients=1e7,dimension=1e4,computes=3", calibration_file=sweep)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": "ten"}, "--clients 'ten': expected numbers with commas between them"),
        ({"clients": ""}, "--clients '': expected numbers with commas between them"),
        ({"clients": "10.5"}, "--clients '10.5': expected whole numbers"),
        ({"clients": "inf"}, "--clients 'inf': expected finite numbers"),
        ({"clients": "2"}, "--clients 2: expected 3 to"),
        ({"dimension": "0"}, "--dimension 0: expected 1 to"),
        ({"computes": "1"}, "M = 1 Compute nodes"),
        ({"clients": "10", "tolerate": "10"}, "N - T - 1 = 10 - 10 - 1 is below 1"),
        ({"drop_rate": "1.5"}, "--drop-rate 1.5: expected 0 to below 1"),
        ({"rounds": 0}, "--rounds 0: expected 1 to 100"),
        ({"backend": "mosquito"}, r"--backend 'mosquito' is unknown \(did you mean 'mosquitto'\?\)"),
        ({"plot": Path("picture.gif")}, "--plot picture.gif: expected a name that ends in"),
        ({"plot": Path("no/picture.png")}, "folder no does not exist"),
        ({"json_to": "no/figures.json"}, "folder no does not exist"),
        ({"journal": Path("no/sweep.json")}, "folder no does not exist"),
        ({"journal": Path("-")}, "--journal -: expected the name of a file"),
        ({"predict_size": "clients=1e6,dimension=10,computes=3", "verified": True}, "--verified with --predict"),
        ({"calibration_file": Path("old.json")}, "--calibration goes with --predict"),
        ({"predict_size": "clients=5", "clients": "5"}, "dimension, computes is missing"),
        ({"round_s": 0}, "--round-s 0: expected a number above 0"),
        ({"machine_cores": -1}, "--machine-cores -1"),
        ({"machine_cores": 4.0}, "--machine-.*go with --predict"),
        ({"round_s": 60.0}, "--round-s.*go with --predict"),
    ],
)
def test_what_cannot_be_is_refused_before_the_work(
    measured: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        scaling(**options)
    assert measured == []
    assert list(tmp_path.iterdir()) == []


QUESTION = "clients=1e7,dimension=1e4,computes=10"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("{}", {}, "found None, expected the JSON of dca scaling"),
        ('{"kind": "audit", "cells": []}', {}, "found 'audit', expected the JSON of dca scaling"),
        ("", {}, "no JSON"),
        (None, {}, "No such file"),
        ('{"kind": "scaling", "cells": []}', {}, "0 emulated cells"),
        ('{"kind": "scaling", "cells": [{"drop_rate": 0}]}', {}, "a cell is damaged: Object missing required field"),
        ('{"kind": "scaling", "cells": [], "machine": 3}', {}, "the file is damaged: .*machine"),
        ("{}", {"clients": "10"}, "--calibration and --clients exclude each other"),
        ("{}", {"journal": Path("sweep.json")}, "--calibration and --journal exclude each other"),
    ],
)
def test_a_calibration_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, options: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("cells.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        scaling(predict_size=QUESTION, calibration_file=Path("cells.json"), **options)


def test_a_live_sweep_without_mosquitto_is_refused(measured: list[Cell], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_mosquitto", lambda: None)
    with pytest.raises(UsageError, match="mosquitto is not installed; install it, or use --backend emulated"):
        scaling(backend="mosquitto")
    with pytest.raises(UsageError, match="costs are calibrated with the emulated backend"):
        scaling(backend="mosquitto", predict_size=QUESTION)
    assert measured == []
