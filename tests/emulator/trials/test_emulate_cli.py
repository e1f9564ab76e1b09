"""`dca emulate`: what is printed and written, exit codes, and one line for every mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import faulty_work
import planted
import pytest
from patience import PATIENCE_S

from dca_proto import cli
from dca_proto.cli import emulate as command
from emulator.trials import trial
from emulator.trials.faults import FAULTS
from emulator.trials.hostile import HOSTILE
from emulator.trials.scenario_file import example_toml, from_plain, load_scenario
from emulator.trials.sweep import sweep

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Calls `dca emulate` in a folder of its own: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    entry = EntryPoint("emulate", "dca_proto.cli.emulate:app", cli.GROUP)
    monkeypatch.setattr(cli.importlib.metadata, "entry_points", lambda group: [entry])

    def call(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(["emulate", *arguments])
        printed, error = capsys.readouterr()
        return code, printed, error

    return call


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """All Compute nodes add one grid unit to what they release."""

    def faulty(scenario: Any, **named: Any) -> Any:
        named["compare"] = False
        return trial.examine(scenario, faulty={"compute": lambda _: planted.AddsOne}, **named)

    monkeypatch.setattr(command, "examine", faulty)
    monkeypatch.setattr("emulator.trials.shrink.examine", faulty)


def refused(run: Run, *arguments: str, code: int = 2) -> str:
    """The one line of a call that must be refused with that exit code."""
    given, _, error = run(*arguments)
    assert given == code
    assert error.startswith("dca: ")
    assert error.count("\n") == 1
    return error


@pytest.mark.long
def test_replay_prints_and_writes_the_same_result(run: Run) -> None:
    code, printed, error = run("replay", "4", "--json", "-")
    result = json.loads(printed)
    assert code == 0
    assert (result["kind"], result["ok"], result["seed"]) == ("emulation", True, 4)
    assert {"digest", "outcome", "invariants", "faults", "options", "traffic", "last_facts"} <= result.keys()
    assert set(range(1, 16)) <= {one["number"] for one in result["invariants"]}
    assert result["replay"] == "dca emulate replay 4"
    assert result["digest"] in error
    for name in ("exact sum", "budget", "same seed, same run", "live after healing"):
        assert name in error
    assert json.loads(run("replay", "5", "--json", "-")[1])["digest"] != result["digest"]


@pytest.mark.long
def test_a_replay_is_the_same_in_two_processes_under_two_hash_seeds(run: Run) -> None:
    """All of its JSON, but for how long it took."""
    command = [sys.executable, "-c", "import sys; from dca_proto.cli import main; sys.exit(main())"]
    processes = [
        subprocess.Popen(
            [*command, "emulate", "replay", "4", "--json", "-"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    printed = [json.loads(process.communicate(timeout=PATIENCE_S)[0]) for process in processes]
    printed.append(json.loads(run("replay", "4", "--json", "-")[1]))
    assert all(len(result["digest"]) == 32 for result in printed)
    assert all(result.pop("wall_s") > 0 for result in printed)
    assert printed[0] == printed[1] == printed[2]


def test_the_example_runs_and_knows_every_kind(run: Run, tmp_path: Path) -> None:
    code, text, _ = run("example")
    assert code == 0
    assert all(kind in text for kind in (*FAULTS, *HOSTILE))
    (tmp_path / "scenario.toml").write_text(text, encoding="utf-8")
    code, printed, _ = run("run", "scenario.toml", "--json", "run.json")
    result = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert code == 0
    assert result["ok"]
    assert all(fault["reached"] for fault in result["faults"])
    assert result["replay"] == "dca emulate run scenario.toml"
    assert max(map(len, printed.splitlines())) <= 80
    assert " ".join(printed.split()).count("completed (the one after healing)") == 1
    code, _, _ = run("run", "scenario.toml", "--seed", "99", "--json", "run.json")
    other = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert (code, other["seed"]) == (0, 99)
    assert other["digest"] != result["digest"]


def test_a_scenario_of_node_releases_is_described_as_such(run: Run, tmp_path: Path) -> None:
    (tmp_path / "local.toml").write_text("[population]\nrows = 3\n[rounds]\nkind = 'node-release'\nrows_max = 2\n")
    code, printed, _ = run("run", "local.toml", "--json", "local.json")
    assert code == 0
    assert "6 data nodes, releases of at most 2 rows of each; sum with d = 1" in " ".join(printed.split())
    (first, _) = json.loads((tmp_path / "local.json").read_text())["outcome"]["rounds"]
    assert (first["clients"], first["contributors"], first["needed"]) == (6, 6, 1)


def test_a_scenario_of_reports_is_described_as_such(run: Run, tmp_path: Path) -> None:
    people, rounds = (
        "statistic = 'histogram'\ndimension = 3",
        "kind = 'ldp-report'\nmechanism = 'unary-encoding'\nrows_max = 1",
    )
    (tmp_path / "reports.toml").write_text(f"[population]\n{people}\n[rounds]\n{rounds}\n")
    code, printed, _ = run("run", "reports.toml", "--json", "reports.json")
    assert code == 0
    assert "6 clients that report by unary-encoding; histogram with d = 3" in " ".join(printed.split())
    (first, _) = json.loads((tmp_path / "reports.json").read_text())["outcome"]["rounds"]
    assert (first["clients"], first["contributors"], first["needed"]) == (6, 6, 1)


@pytest.mark.long
def test_a_broken_invariant_is_reported_shrunk_and_saved(run: Run, broken: None, tmp_path: Path) -> None:
    code, printed, _ = run("replay", "4", "--shrink-s", "60", "--json", "broken.json")
    assert code == 4
    for word in ("✗ broken", "seed 4", "invariant 3", "before", "dca emulate replay 4", "shrunk"):
        assert word in printed
    result = json.loads((tmp_path / "broken.json").read_text(encoding="utf-8"))
    assert result["ok"] is False
    saved = load_scenario(tmp_path / "failed-4.toml")
    assert saved == from_plain(result["shrunk"])
    assert saved.faults == ()
    code, _, _ = run("run", "failed-4.toml", "--shrink-s", "0", "--json", "again.json")
    again = json.loads((tmp_path / "again.json").read_text(encoding="utf-8"))
    assert code == 4, "what was saved fails as well"
    (found,) = [one for one in again["invariants"] if not one["ok"]]
    assert found["number"] == 3, "in the same way"
    assert found["detail"] in " ".join(printed.split())
    assert all(fact in printed for fact in found["facts"][-12:]), (
        "the facts before the break are those of the shrunk run"
    )
    (first,) = [one for one in result["invariants"] if not one["ok"]]
    assert not any(fact in printed for fact in first["facts"][-12:])


def test_sweep_prints_coverage_and_writes_figures(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def quick(*seeds: int, **named: Any) -> Any:
        return sweep(*seeds, **{**named, "work": faulty_work.nothing})

    monkeypatch.setattr(command, "sweep_seeds", quick)
    code, printed, _ = run("sweep", "--seeds", "10..19", "--processes", "1", "--json", "sweep.json")
    figures = json.loads((tmp_path / "sweep.json").read_text(encoding="utf-8"))
    assert code == 0
    assert all(kind in printed for kind in FAULTS)
    assert "10 scenarios" in printed
    assert (figures["kind"], figures["ok"], figures["seeds"], figures["run"]) == ("sweep", True, [10, 19], 10)
    drawn = {name for name, kind in HOSTILE.items() if not kind.is_directed}
    assert figures["coverage"].keys() == FAULTS.keys() | drawn
    assert figures["scenarios_per_s"] > 0
    code, printed, _ = run("sweep", "--seeds", "0..1000000", "--processes", "1", "--minutes", "0.002")
    assert code == 0
    assert "ended" in printed
    assert "of 1000001 scenarios" in printed, "when the time is over"


@pytest.mark.parametrize(
    ("work", "code", "words"),
    [
        (faulty_work.breaks_the_third, 4, ["FAILED", "seed 1: invariant 3 (three): two sums", "dca emulate replay 1"]),
        (faulty_work.always_dies, 4, ["FAILED", "seed 1: no result", "(exit code 9)", "dca emulate replay 1"]),
    ],
)
def test_a_sweep_that_fails_prints_how_to_repeat_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, work: Any, code: int, words: list[str]
) -> None:
    monkeypatch.setattr(command, "sweep_seeds", lambda *seeds, **named: sweep(*seeds, **{**named, "work": work}))
    found, printed, _ = run("sweep", "--seeds", "1..1", "--processes", "1", "--shrink-s", "0")
    assert found == code
    assert all(word in printed for word in words), printed


def test_ctrl_c_prints_what_was_done(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*seeds: int, **named: Any) -> Any:
        def on_done(so_far: Any) -> None:
            if so_far.run == 2:
                raise KeyboardInterrupt

        return sweep(*seeds, **{**named, "work": faulty_work.nothing, "on_done": on_done})

    monkeypatch.setattr(command, "sweep_seeds", interrupted)
    code, printed, _ = run("sweep", "--seeds", "0..9", "--processes", "1")
    assert code == 130
    assert "after 2 of 10 scenarios" in printed


def test_mistakes_are_one_line_that_says_what_to_do(run: Run, tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text("[population]\ncleints = 4\n", encoding="utf-8")
    assert "clients" in refused(run, "run", "wrong.toml", code=5)
    assert "nowhere.toml" in refused(run, "run", "nowhere.toml", code=5)
    assert "0..199" in refused(run, "sweep", "--seeds", "9..3")
    assert "0..199" in refused(run, "sweep", "--seeds", "some")
    assert "above 0" in refused(run, "sweep", "--minutes", "0")
    assert "1 to 4096" in refused(run, "sweep", "--processes", "0")
    assert "0 or above" in refused(run, "replay", "1", "--shrink-s", "nan")
    assert "0 or above" in refused(run, "sweep", "--shrink-s", "-1")
    assert "replay --help" in refused(run, "replay", "--", "-1")
    assert "whole number" in refused(run, "replay", str(1 << 63))
    assert "does not exist" in refused(run, "replay", "1", "--json", "no/such/run.json", code=8)
    assert "cannot write /proc/x/" in refused(run, "sweep", "--output", "/proc/x", code=8)


@pytest.mark.parametrize("name", ["run", "replay", "sweep"])
def test_help_ends_with_examples(run: Run, name: str) -> None:
    code, printed, _ = run(name, "--help")
    assert code == 0
    assert f"dca emulate {name}" in printed.partition("Examples:")[2]


def test_the_example_is_valid_toml_by_itself() -> None:
    assert from_plain(tomllib.loads(example_toml())).faults


def test_trials_need_no_scipy() -> None:
    """It is of another extra than the command line."""
    probe = "import sys; sys.modules['scipy'] = None; import dca_proto.cli.emulate"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
