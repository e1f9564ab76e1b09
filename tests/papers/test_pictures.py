"""What all pictures and tables of the papers' experiments have in common."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from papers import picture
from papers.__main__ import EXPERIMENTS
from papers.experiment import Experiment
from papers.runner import add_common_options, finish, table, unbroken

SCRIPTS = Path(__file__).parents[2] / "scripts"


def experiment(name: str) -> type[Experiment[Any, Any]]:
    module, _, found = EXPERIMENTS[name].partition(":")
    if not module.startswith("dca2017"):
        pytest.importorskip("numpyro")
    made: type[Experiment[Any, Any]] = getattr(import_module(f"papers.{module}"), found)
    return made


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_plot_is_offered_where_there_is_a_figure(name: str) -> None:
    kind = experiment(name)
    assert ("--plot" in kind.parser(name).format_help()) == (kind.draw is not Experiment.draw)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_times_are_those_of_idle_cores(name: str) -> None:
    words = " ".join((experiment(name).__doc__ or "").split())
    assert "idle core" in words or "few seconds" in words


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_quick_run_is_marked_with_its_repeats(name: str) -> None:
    kind = experiment(name)
    words = kind.quick_words()
    assert words.startswith("QUICK RUN, do not quote")
    if "repeats" in kind.QUICK:
        assert f"repeats = {kind.QUICK['repeats']}" in words


def test_a_mark_stands_above_each_picture_of_its_block_alone(tmp_path: Path) -> None:
    titles = []
    for title in ("Errors", ""):
        with picture.marked("QUICK RUN"), picture.drawing(tmp_path / "a.png", title=title) as panels:
            titles.append(panels[0, 0].figure.get_suptitle())
    with picture.drawing(tmp_path / "b.png", title="Errors") as panels:
        titles.append(panels[0, 0].figure.get_suptitle())
    assert titles == ["Errors\nQUICK RUN", "QUICK RUN", "Errors"]


def test_log_axes_keep_their_minor_ticks(tmp_path: Path) -> None:
    with picture.drawing(tmp_path / "log.png") as panels:
        axes = panels[0, 0]
        axes.plot([0.1, 1, 10], [1e-3, 1e-2, 10])
        axes.set_yscale("log")
        picture.epsilon_axis(axes, (0.1, 1.0, 10.0))
    labels = [text.get_text() for text in axes.get_xticklabels()]
    assert labels == ["0.1", "1", "10"]
    assert len(axes.xaxis.get_minorticklocs()) >= 16
    assert len(axes.yaxis.get_minorticklocs()) >= 16
    assert not any(text.get_text() for text in axes.get_xticklabels(minor=True))
    assert [path for path in SCRIPTS.rglob("*.py") if "minorticks_off" in path.read_text("utf-8")] == []


def test_numbers_at_log_axes_are_plain(tmp_path: Path) -> None:
    """Text is no formula, so matplotlib's own labels would be read as $\\mathdefault{10^{-2}}$."""
    with picture.drawing(tmp_path / "log.png", columns=2) as panels:
        for axes, values in zip(panels[0], ([1e-3, 1.0], [0.2, 0.7]), strict=True):
            axes.plot([1, 100], values)
            axes.set(xscale="log", yscale="log")
    for axes in panels[0]:
        for axis in (axes.xaxis, axes.yaxis):
            assert "$" not in "".join(text.get_text() for text in axis.get_ticklabels(which="both"))
    labels = [text.get_text() for text in panels[0, 0].get_yticklabels()]
    assert "0.001" in labels
    assert "0.1" in labels


def test_titles_do_not_break_within_a_number(tmp_path: Path) -> None:
    title = "Errors of all methods on simulated data with rows n = 100,000 and δ = 1e-5 and 95 % of them"
    with picture.drawing(tmp_path / "title.png", size=(3, 3), title=title) as panels:
        figure = panels[0, 0].figure
    lines = figure._suptitle._get_wrapped_text().split("\n")
    assert len(lines) > 2
    assert all(
        any(part in line for line in lines) for part in ("n\u00a0=\u00a0100,000", "δ\u00a0=\u00a01e-5", "95\u00a0%")
    )
    assert unbroken("ε <= 0.4, slope -1") == "ε\u00a0<=\u00a00.4, slope -1"


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_cells_do_not_break_within_a_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    parser = argparse.ArgumentParser()
    add_common_options(parser)
    heads = [f"ε = 12.{place}" for place in range(9)]
    shown = table("scores of n = 100,000 rows", "method", *heads)
    shown.add_row("a method of many words", *(f"0.87{place} ± 0.012" for place in range(9)))
    shown.add_row("least", *("95 %" for _ in range(9)))
    finish({"kind": "trial"}, parser.parse_args([]), [shown])
    printed = capsys.readouterr().out
    for part in (*heads, *(f"0.87{place} ± 0.012" for place in range(9)), "n = 100,000"):
        assert part in printed
    assert printed.count("95 %") == 9
    assert max(map(len, printed.splitlines())) <= columns
    assert "\u2800" not in printed
