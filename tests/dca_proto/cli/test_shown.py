"""What a person sees: warnings in colour, earlier results kept, the time a run takes, all arms of a trial."""

from __future__ import annotations

import ast
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictured import row, texts_of
from rich.progress import Task
from sources import source

from dca_proto import drawing
from dca_proto.cli import main
from dca_proto.cli.output import Terminal, keep_earlier, say
from dca_proto.cli.progress import Display, TimeColumn
from dca_proto.report import learned
from dca_proto.report.charts import Axis, Curve, Panel, _apart, lines, panels, picture, svg
from dca_proto.runtime.files import keep
from dca_proto.wording import digits
from inference.jobs.estimates import interval_words
from inference.jobs.picture import forest, kinds_of, panels_of, plot_estimates

ROOT = Path(__file__).parents[3]


# --- colours ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "warning     a\n"),
        ({"FORCE_COLOR": "1", "TERM": "xterm"}, "\x1b[1;31mwarning     \x1b[0ma\n"),
        ({"FORCE_COLOR": "1", "TERM": "xterm", "NO_COLOR": "1"}, "\x1b[1mwarning     \x1b[0ma\n"),
    ],
)
def test_a_warning_is_coloured_where_the_terminal_can(
    settings: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    say(Terminal(), "warning", "a")
    assert capsys.readouterr().out == expected


# --- earlier results --------------------------------------------------------------------------------------------------

VIEWS = {"account", "inspect", "keygen", "ledger", "members", "report", "results", "schedule", "status"}
"""Commands that compute their files from other files or ask for the present state, and so may replace them.

What `schedule` writes is its plan; its results are in a database."""


def test_files_of_one_result_get_one_number(tmp_path: Path) -> None:
    first, second, empty = (tmp_path / name for name in ("a.json", "b.png", "empty.json"))
    first.write_text("1")
    second.write_text("2")
    empty.touch()
    (tmp_path / "b.1.png").write_text("0")
    assert keep([first, second, first, empty, tmp_path / "none", Path("/dev/full")]) == {
        first: tmp_path / "a.2.json",
        second: tmp_path / "b.2.png",
    }
    assert (tmp_path / "a.2.json").read_text() == "1"
    assert (tmp_path / "b.1.png").read_text() == "0"
    assert keep([]) == {}


@pytest.mark.parametrize(
    ("record", "kept"),
    [
        ('{"ok": true, "rounds": [{"value": [1.0]}]}', True),
        ('{"ok": false, "error": "too few", "contributors": 1, "needed": 3}', False),
        ('{"ok": false, "kind": "swarm", "rounds": [{"ok": false, "value": null}]}', False),
        ('{"ok": false, "kind": "swarm", "rounds": [{"ok": true, "value": [1.0]}]}', True),
        ('{"ok": false, "kind": "learn", "rounds": [{"ok": true, "value": [1.0]}]}', False),
        ("[1, 2", True),
        ("[" * 100_000, True),
    ],
)
def test_a_failure_without_sums_of_its_own_is_replaced(tmp_path: Path, record: str, kept: bool) -> None:
    """So repeated attempts do not fill a folder; a job's journal has the sums of `dca learn`."""
    (tmp_path / "r.json").write_text(record)
    for _ in range(2):
        keep_earlier(Terminal(), tmp_path / "r.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["r.json", *(["r.1.json", "r.2.json"] * kept)])


def test_what_cannot_be_kept_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> Any:
        raise OSError(28, "No space left on device")

    (tmp_path / "a.json").write_text("1")
    monkeypatch.setattr("shutil.copy2", full)
    keep_earlier(Terminal(), tmp_path / "a.json", "-", None)
    out = " ".join(capsys.readouterr().out.split())
    assert out == "warning an earlier result could not be kept and is replaced: No space left on device"


def test_each_command_with_results_keeps_the_earlier_ones() -> None:
    views = set()
    for path in (ROOT / "dca_proto/cli").glob("*.py"):
        called = [node.func.id for node in source(path).nodes
                  if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]  # fmt: skip
        if "write_json" in called and "keep_earlier" not in called:
            views.add(path.stem)
    assert views == VIEWS


@pytest.mark.long
def test_an_audit_keeps_the_earlier_result_and_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    results = []
    for seed in ("1", "2"):
        assert main(["audit", "--rounds", "1000", "--seed", seed, "--json", "a.json", "--plot", "a.png"]) == 0
        results.append(Path("a.json").read_bytes())
    assert [Path(name).read_bytes() for name in ("a.1.json", "a.json")] == results
    assert Path("a.1.png").stat().st_size > 1000
    assert "the earlier a.json as a.1.json; the earlier a.png as a.1.png" in " ".join(capsys.readouterr().out.split())


# --- the time that a run takes ----------------------------------------------------------------------------------------


def test_a_step_with_a_known_amount_of_work_has_a_bar_and_the_time_left() -> None:
    clock = [0.0]
    display = Display(Terminal())
    display._now.get_time = lambda: clock[0]
    task = display._now.tasks[0]
    task._get_time = lambda: clock[0]
    display.waiting("0 of 100 connections", 0, 100)
    for done in range(10, 60, 10):
        clock[0] += 10
        display.waiting(f"{done} of 100 connections", done, 100)
    assert TimeColumn().render(task).plain == "0:50, about 0:50 left"
    display.waiting("collecting", 0, 30)
    assert TimeColumn().render(task).plain == "0:00"
    clock[0] += 3700
    assert TimeColumn().render(task).plain == "1:01:40"
    display.waiting("the Compute nodes agree")
    assert isinstance(task, Task)
    assert task.total is None


# --- estimates --------------------------------------------------------------------------------------------------------


def test_numbers_have_one_format() -> None:
    assert [digits(value, 4) for value in (1239.4, 0.1239, 1.2e-7, 123456.0, 0.0, -1239.4)] == [
        "1,239", "0.1239", "1.2e-07", "123,500", "0", "-1,239",
    ]  # fmt: skip
    assert interval_words(12390, [11000, 13800]) == "12,390 [11,000, 13,800]"


def curve(series: str, points: int) -> list[dict[str, Any]]:
    return [
        row(f"S({x}), {series}", at={"series": series, "x": float(x), "axis": "months"}) for x in range(1, points + 1)
    ]


def test_a_table_has_points_of_all_arms() -> None:
    """Both the last ones, evenly spaced, and what is no point of a curve."""
    rows: Any = [*curve("a", 12), *curve("b", 12), row("mean, a"), row("mean, b")]
    table = learned.estimates({"estimates": rows, "private": True}, 12)
    names = [str(cells[0]) for cells in table.rows]
    assert names == [*(f"S({x}), {arm}" for arm in "ab" for x in (3, 5, 8, 10, 12)), "mean, a", "mean, b"]
    assert table.title.startswith("12 of 26, the JSON has all; ")
    many: Any = [point for arm in range(20) for point in curve(str(arm), 3)]
    assert len(learned.estimates({"estimates": many, "private": True}, 12).rows) == 20, "one of each"


def test_the_headline_is_private() -> None:
    test: Any = {"rows": 9, "rmse_private": 1.0, "rmse_nonprivate": 1.0, "rmse_zero": 2.0}
    weak, clear = row("weak", estimate=9.0, estimate_sd=9.0), row("clear", estimate=2.0, estimate_sd=0.1)
    regression: Any = {"coefficients": [weak, clear], "test": test}
    assert learned.headline(regression) == ": clear 2.000 [0.80, 1.20] clear"
    trial: Any = {"estimates": curve("a", 3), "log_rank": {"statistic": 9.0, "degrees": 1, "p_value": 0.0027}}
    assert learned.headline(trial) == ": log-rank test p = 0.0027"
    assert learned.headline({**trial, "log_rank": None}) == ": S(3), a 1.000 [0.80, 1.20] S(3), a"
    assert learned.headline({"test": test}) == ""


def test_the_picture_has_warnings_and_the_unit_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = drawing.picture
    monkeypatch.setattr(drawing, "picture", lambda *size: real(*size, {"svg.fonttype": "none"}))
    rows: Any = [*curve("a", 3), row("mean, a")]
    summary: Any = {"estimates": rows, "warnings": ["little was learned", "x " * 100]}
    found = texts_of(plot_estimates(summary, tmp_path / "a.svg", title="t", private=True))
    assert "Warning: little was learned." in found
    assert "months" in found


def test_estimates_of_one_size_share_an_axis() -> None:
    near: Any = [row("a", unit="h"), row("b", unit="h", interval_95=[1.0, 1.5])]
    far: Any = [row("c", unit="h", interval_95=[900.0, 901.0]), row("d", unit="kg")]
    found, number = panels_of({"estimates": [*near, *far]})
    assert ([[one["name"] for one in group] for _, group in found], number) == ([["a", "b"], ["c"], ["d"]], 4)


def test_a_table_has_panels_for_each_column() -> None:
    """Mean and median in one unit, the standard deviation apart; shares of a column together, and not with others'."""
    share: Any = {"standard": {"unit": "share", "scale": 1.0, "centre": 0.0}}
    figures = [("age", "mean", {}), ("age", "sd", {}), ("age", "median", {}), ("sex", "f", share), ("arm", "a", share)]
    names = [f"{column} {figure}" for column, figure, _ in figures]
    rows: Any = [row(name, **more) for name, (_, _, more) in zip(names, figures, strict=True)]
    cells: Any = {
        name: {"column": column, "figure": figure, "group": "all"}
        for name, (column, figure, _) in zip(names, figures, strict=True)
    }
    summary: Any = {"estimates": rows, "cells": cells}
    found = [(title, [one["name"] for one in group]) for title, group in panels_of(summary)[0]]
    assert found == [("age", ["mean", "median"]), ("", ["sd"]), ("sex", ["f"]), ("arm", ["a"])]


def test_error_bars_of_several_curves_stand_beside_each_other() -> None:
    bar = [(10.0, 1.0, 2.0), (1000.0, 1.0, 2.0)]
    curves = [Curve(name, [(10.0, 1.5), (1000.0, 1.5)], 0, spread=bar) for name in "ab"]
    for log in (False, True):
        moved = _apart([*curves, Curve("c", [(10.0, 1.0)], 0)], log)
        first, second = ([x for x, *_ in one.spread] for one in moved[:2])
        assert len({*first, *second}) == 4
        np.testing.assert_allclose(first, second, rtol=2.0 if not log else 0.06)
    assert _apart(curves[:1], log=True) == curves[:1]


def test_a_panel_on_a_page_has_a_bold_title_and_a_dotted_zero_that_can_be_seen() -> None:
    share: Any = {"standard": {"unit": "share", "scale": 1.0, "centre": 0.0}}
    rows: Any = [row("a", **share)]
    kinds = kinds_of({"estimates": rows}, private=True)
    part = Panel("share", 1, partial(forest, rows=rows, kinds=kinds), "a title")
    drawn = svg(panels([part], [], caption="c"), 350, "t")
    (style,) = re.findall(r"<text([^>]*)>a title<", drawn)
    assert 'font-weight="700"' in style
    (dashes,) = set(re.findall(r'stroke-dasharray="([^"]*)"', drawn))
    assert all(float(part) > 1.5 for part in dashes.split(",")), "pixels of the page"


def test_a_picture_of_a_sweep_has_its_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chart = lines([Curve("a", [(1.0, 1.0), (2.0, 2.0)], 0)], Axis("x"), Axis("y"), caption="c")
    path = tmp_path / "a.svg"
    picture([chart], path, "t", ["no $prediction$"])
    assert "Warning: no $prediction$." in texts_of(path)
