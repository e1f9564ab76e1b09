"""The experiment runner: records, interruptions, processes, exit codes."""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from experiment_work import QUIET, deadly, squared
from patience import PATIENCE_S
from rich.console import Console

from dca_proto.errors import UsageError
from papers import picture, runner
from papers.experiment import FALSE_ALARM, larger, outside
from papers.runner import Check, Record, add_common_options, finish, main, run_cells, table, versions

SETTINGS = {"seed": 1, "draws": 20}


class Counting:
    """Work that records its calls, and is interrupted at one cell."""

    def __init__(self, interrupted_at: int | None = None) -> None:
        self.calls: list[int] = []
        self.interrupted_at = interrupted_at

    def __call__(self, number: int) -> dict[str, Any]:
        if number == self.interrupted_at:
            raise KeyboardInterrupt
        self.calls.append(number)
        return {"square": number**2}


here = partial(run_cells, label="squares", processes=1, console=QUIET, settings=SETTINGS)


def test_two_processes_give_the_results_in_the_cells_order_with_one_thread_each() -> None:
    results = run_cells([3, 1, 2], squared, label="squares", processes=2, console=QUIET)
    assert [one["square"] for one in results] == [9, 1, 4]
    assert os.getpid() not in {one["process"] for one in results}
    assert {one["threads"] for one in results} == {"1"}


def test_the_most_costly_cells_come_first_and_results_keep_their_order() -> None:
    done: list[int] = []

    def work(cell: int) -> dict[str, Any]:
        done.append(cell)
        return {"cell": cell, "threads": os.environ["NPROC"]}

    results = here([1, 3, 2], work, cost=float)
    assert done == [3, 2, 1]
    assert [one["cell"] for one in results] == [1, 3, 2]
    assert {one["threads"] for one in results} == {"1"}


def test_work_that_fails_is_named_with_its_cause() -> None:
    with pytest.raises(RuntimeError, match=r"13: (.|\n)*ValueError: thirteen"):
        run_cells([12, 13], squared, label="squares", processes=2, console=QUIET)


def test_a_worker_that_dies_is_named_and_finished_results_are_kept(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    cells = [11, 12, 13]
    with pytest.raises(RuntimeError, match=r"13: the worker process died over it twice \(exit code 9\)"):
        run_cells(cells, deadly, label="squares", processes=2, console=QUIET, settings=SETTINGS, journal=record)
    kept = Record(record, SETTINGS)
    assert "squares: 11" in kept or "squares: 12" in kept  # one of them had to finish before 13 was begun
    assert "squares: 13" not in kept


def test_a_coverage_fails_only_where_chance_does_not_explain_it() -> None:
    """39 of 40 intervals is no sign that more than 97 % hold; 99 % of 480 is one that more than 95 % do."""
    assert outside(0.9, 40, 0.85, 0.97) == 1
    assert outside(39 / 40, 40, 0.85, 0.97) == pytest.approx(0.66, abs=0.01)  # 0.97^40 + 40 · 0.03 · 0.97^39
    assert outside(0.99, 480, 0.85, 0.95) < FALSE_ALARM / 100 < outside(0.97, 480, 0.85, 0.95)
    assert outside(0.75, 480, 0.85) < FALSE_ALARM / 100 < outside(0.82, 480, 0.85)
    assert larger(1.15, 48, 1.15) == pytest.approx(0.5)
    assert larger(1.4, 480, 1.15) < FALSE_ALARM / 100 < larger(1.4, 48, 1.15)


def test_looks_at_right_coverages_fail_as_rarely_as_stated() -> None:
    """26 cells at the limit, 20,000 tables: at most 1 % fail, where a limit without chance fails half of the cells."""
    rng = np.random.default_rng(3)
    held = rng.binomial(436, 0.95, (20_000, 26))
    fails = {count: outside(count / 436, 436, 0.85, 0.95) < FALSE_ALARM / 26 for count in np.unique(held)}
    assert np.mean([any(fails[count] for count in row) for row in held]) <= FALSE_ALARM
    assert np.mean(held / 436 > 0.95) > 0.4


@pytest.mark.parametrize("blow", [signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_the_run_that_started_them(blow: signal.Signals) -> None:
    """However it ends: of a run that a service manager ended, they would run for hours."""
    program = """
from experiment_work import QUIET, endless
from papers.runner import run_cells
run_cells([1, 2], endless, label='endless', processes=2, console=QUIET)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # with the helpers beside this folder
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    ) as run:
        assert run.stdout is not None
        workers = [psutil.Process(int(run.stdout.readline())) for _ in range(2)]
        os.killpg(run.pid, blow) if blow == signal.SIGINT else run.send_signal(blow)  # a terminal signals all of them
        _, alive = psutil.wait_procs(workers, timeout=PATIENCE_S)
        for one in alive:
            one.kill()
        assert alive == []


def test_progress_on_a_pipe_is_a_line_for_each_tenth() -> None:
    pipe = Console(file=io.StringIO())
    here(list(range(40)), Counting(), console=pipe)
    lines = pipe.file.getvalue().splitlines()
    assert [line.split(" after ")[0] for line in lines] == [f"squares: {done} of 40" for done in range(4, 41, 4)]


def test_cells_that_look_the_same_are_refused() -> None:
    with pytest.raises(ValueError, match="same text"):
        here([1, 1], Counting())


def test_an_interrupted_run_resumes(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    with pytest.raises(KeyboardInterrupt):
        here([1, 2, 3], Counting(interrupted_at=3), journal=record)
    again = Counting()
    assert [one["square"] for one in here([1, 2, 3, 4], again, journal=record)] == [1, 4, 9, 16]
    assert again.calls == [3, 4]


def test_sweeps_of_one_script_share_a_record(tmp_path: Path) -> None:
    record, other = tmp_path / "record.jsonl", Counting()
    here([1], Counting(), journal=record)
    here([1], other, journal=record, label="others")
    assert other.calls == [1]
    assert len(Record(record, SETTINGS)) == 2


def test_a_line_torn_by_a_kill_is_dropped(tmp_path: Path) -> None:
    record, again = tmp_path / "record.jsonl", Counting()
    here([1, 2], Counting(), journal=record)
    whole = record.read_bytes()
    record.write_bytes(whole[:-5])
    here([1, 2], again, journal=record)
    assert again.calls == [2]
    assert record.read_bytes() == whole


def test_a_record_of_other_settings_or_versions_is_refused_with_a_reason(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    here([1], Counting(), journal=record)
    with pytest.raises(UsageError, match=r"another experiment: draws is 20 there and 200 here; name a new file"):
        here([1], Counting(), journal=record, settings=SETTINGS | {"draws": 200})
    record.write_text(record.read_text().replace(versions()["numpy"], "0.1"))
    with pytest.raises(UsageError, match=r"numpy is 0\.1 there and"):
        here([1], Counting(), journal=record)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\n", "an experiment did not write this file"),
        ('{"kind": "swarm"}\n', "an experiment did not write this file"),
    ],
)
def test_another_file_is_no_record(tmp_path: Path, text: str, message: str) -> None:
    record = tmp_path / "record.jsonl"
    record.write_text(text)
    with pytest.raises(UsageError, match=message):
        here([1], Counting(), journal=record)


def test_a_damaged_line_is_an_error(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    here([1], Counting(), journal=record)
    record.write_text(record.read_text() + "{}\n")
    with pytest.raises(UsageError, match="a line is damaged"):
        here([1], Counting(), journal=record)


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="script")
    add_common_options(parser)
    return parser.parse_args(arguments)


def test_the_report_holds_versions_and_checks_and_its_checks_decide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "figures.json"
    good, bad = Check("slope", "-1", "-1.02", np.bool_(True)), Check("error", "below 1", "2", False)
    shown = table("numbers", "name", "value")
    shown.add_row("one", "1")
    assert finish({"kind": "trial"}, options("--json", str(target)), [shown], [good]) == 0
    assert finish({"kind": "trial"}, options("--json", str(target)), [], [good, bad]) == 4
    report = json.loads(target.read_text())
    assert report["kind"] == "trial"
    assert report["versions"] == versions()
    assert [check["holds"] for check in report["checks"]] == [True, False]
    assert "below 1" in capsys.readouterr().out


def test_json_on_stdout_is_json_alone(capsys: pytest.CaptureFixture[str]) -> None:
    finish({"kind": "trial"}, options("--json", "-"), [], [Check("a", "b", "c", True)])
    captured = capsys.readouterr()
    assert json.loads(captured.out)["kind"] == "trial"
    assert "holds" in captured.err


@pytest.mark.parametrize("columns", [30, 56, 80])
def test_a_narrow_terminal_folds_tables_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = table("numbers", "name of it", *(f"at {place}" for place in range(6)))
    shown.add_row("[bold]a method with a name[/]", *(f"1.23{place}" for place in range(6)))
    finish({"kind": "trial"}, options(), [shown], [Check("a slope to be found", "below a tenth", "1.234567", True)])
    printed = capsys.readouterr().out
    assert "…" not in printed
    assert all(f"1.23{place}" in printed for place in range(6))
    assert all(word in printed for word in ("method", "slope", "1.234567"))
    if columns > 30:
        assert max(map(len, printed.splitlines())) <= columns


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (UsageError("no such thing; name another"), 2, "script: no such thing; name another\n"),
        (KeyboardInterrupt(), 130, "script: interrupted; the same command continues from record.jsonl\n"),
    ],
)
def test_exit_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: BaseException, code: int, message: str
) -> None:
    def run(_: argparse.Namespace) -> int:
        raise raised

    parser = argparse.ArgumentParser(prog="script")
    add_common_options(parser)
    monkeypatch.setattr("sys.argv", ["script", "--journal", "record.jsonl"])
    assert main(run, parser) == code
    assert capsys.readouterr().err == message


def test_a_target_that_cannot_be_written_is_an_error_before_the_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    parser = argparse.ArgumentParser(prog="script")
    add_common_options(parser)
    monkeypatch.setattr("sys.argv", ["script", "--json", str(tmp_path / "nowhere" / "x.json")])
    assert main(lambda _: 0, parser) == runner.USAGE
    assert "does not exist" in capsys.readouterr().err


def test_processes_below_one_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options("--processes", "0")
    assert "0 is below 1" in capsys.readouterr().err


def test_a_drawing_is_written_when_its_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "drawing.png"
    with picture.drawing(path, columns=2, size=(2, 2), title="two panels") as panels:
        assert panels.shape == (1, 2)
        picture.zero_line(panels[0, 1], 1.0)
        assert not path.exists()
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_long_title_stays_within_a_figure_of_one_panel(tmp_path: Path) -> None:
    title = "as published, NOT private as claimed: mean squared error of predictions over epsilon"
    with picture.drawing(tmp_path / "title.png", title=title) as panels:
        figure = panels[0, 0].figure
    drawn = figure.get_suptitle(), figure._suptitle.get_window_extent()
    assert drawn[0] == title
    assert 0 <= drawn[1].x0 < drawn[1].x1 <= figure.bbox.width


@pytest.mark.parametrize(("label", "columns"), [("short", 4), ("a label of many more words than four can stand by", 1)])
def test_a_legend_is_no_wider_than_its_figure(label: str, columns: int, tmp_path: Path) -> None:
    with picture.drawing(tmp_path / "legend.png", size=(5, 4)) as panels:
        for number in range(6):
            panels[0, 0].plot([0, 1], [0, number], label=f"{label} {number}")
        picture.legend(panels)
        (made,) = panels[0, 0].figure.legends
        assert made.get_window_extent().width <= panels[0, 0].figure.bbox.width
        assert made._ncols == columns
