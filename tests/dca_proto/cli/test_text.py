"""Text from users is text: no name, unit or title is markup on a terminal, in a picture, or in a file that we write."""

from __future__ import annotations

import ast
import csv
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import typer
from pictured import row, texts_of
from report_samples import run_of, whole_swarm
from scaling_samples import scaling
from schemas import COMMANDS
from sources import sources

from dca_proto import drawing
from dca_proto.cli import main
from dca_proto.cli.job_run import show_run
from dca_proto.cli.output import Terminal, draw, say, table
from dca_proto.cli.progress import Display
from dca_proto.wording import shown, toml_text
from emulator.scaling.record import Scaling
from inference.jobs.picture import plot_estimates

ROOT = Path(__file__).parents[3]
NASTY = (
    "gain_$_loss_$", r"in $\frac{$", "$x^2$", r"\alpha_{", "[red]x[/red]", "[/]", "[bold", ":smile:", "_under",
    'a"b\\c', "<b>&amp;</b>", "x\x1b[2Jy", "two\nlines", "tab\there", "del\x7f", "{x} %s %(y)s", "=1+1", "a|b",
    "\u202eabc", "ε→中",
)  # fmt: skip


# --- the terminal -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", NASTY)
def test_a_terminal_shows_it_as_it_is(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    console = Terminal()
    say(console, "label", text)
    console.print(table((text, "other"), [(text, "1"), (text, text)], title=text))
    console.print(text)
    out, line = capsys.readouterr().out, " ".join(shown(text).split())
    parts = [part.strip() for part in shown(text).split("\n")]
    assert line in out
    for part in parts:
        assert out.count(part) >= 6
    assert not {"\x1b", "\u202e", "\x7f", "\t"} & set(out)


def test_a_status_line_shows_it_as_it_is() -> None:
    for text in NASTY:
        display = Display(Terminal())
        display.waiting(text)
        assert display._now.columns[1](display._now.tasks[0]).plain == shown(text)  # type: ignore[operator]


def test_an_error_is_one_line_whoever_chose_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    for text in NASTY:
        assert main(["ledger", text]) in (2, 5)
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert not {"\x1b", "\u202e", "\x7f", "\t"} & set(error)


@pytest.mark.long
def test_only_one_place_makes_consoles_columns_of_text_and_figures() -> None:
    """So all of them have what keeps text text."""
    found: dict[str, set[str]] = {}
    for path, nodes in sources():
        for node in nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                name = node.func.id if isinstance(node.func, ast.Name) else f".{node.func.attr}"
                found.setdefault(name, set()).add(path)
    assert {"dca_proto/cli/__init__.py", "dca_proto/cli/output.py"} >= {
        place for place in found["print"] if place.startswith("dca_proto/cli")
    }
    assert found["FigureCanvasAgg"] == {"dca_proto/drawing.py"}
    for name in ("Console", "TextColumn", "from_markup", "render_markup", "FigureCanvasSVG"):
        assert not {name, f".{name}"} & {*found}


# --- files ------------------------------------------------------------------------------------------------------------


def test_toml_that_we_write_has_the_same_text() -> None:
    for text in (*NASTY, *map(chr, range(0x180)), "😀"):
        assert tomllib.loads(f"x = {toml_text(text)}") == {"x": text}


# --- pictures ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("shape", ["coefficients", "panels", "curves"])
def test_a_picture_shows_it_as_it_is(shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Titles, warnings, names, units, legends and axes."""
    shared = {"standard": {"unit": NASTY[0], "scale": 1.0, "centre": 0.0}}
    rows = {
        "coefficients": [row(text, **shared) for text in NASTY],
        "panels": [row(text) for text in NASTY],
        "curves": [row(f"S({x})", at={"series": text, "x": x}, **shared) for text in NASTY for x in (1.0, 2.0)],
    }[shape]
    real = drawing.picture
    monkeypatch.setattr(drawing, "picture", lambda *size: real(*size, {"svg.fonttype": "none"}))
    summary: Any = {"estimates": rows, "warnings": [*NASTY], "naive_title": NASTY[1]}
    path = plot_estimates(summary, tmp_path / "a.svg", title=NASTY[1], private=True, caption=NASTY[0])
    found = texts_of(path)
    for text in NASTY:
        assert found.count(" ".join(shown(text).split())) >= (2 if shape == "coefficients" else 3), text


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def nasty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments of a swarm that learns from columns with such names, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    names = ["gain_$_loss_$", "[red]x[/]", ":smile:", "_under"]
    values = np.random.default_rng(1).normal(size=(60, 4)).round(3)
    with Path("table.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *values.tolist()])
    bounds = "[bounds]\n" + "\n".join(f"{toml_text(name)} = [-4, 4]" for name in names) + "\n"
    Path("bounds.toml").write_text(bounds.removeprefix("[bounds]\n"), encoding="utf-8")
    return ["swarm", "--csv", "table.csv", "--target", names[0], "--bounds", "bounds.toml", "--epsilon", "50"]


@pytest.mark.long
def test_a_swarm_and_its_page_have_the_names_of_the_columns(
    nasty: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*nasty, "--json", "run.json"]) == 0
    out = capsys.readouterr().out
    assert main(["report", "run.json"]) == 0
    page = Path("run.html").read_text(encoding="utf-8")
    assert Path("run/coefficients.png").stat().st_size > 1000
    for name in ("gain_$_loss_$", "[red]x[/]", ":smile:", "_under"):
        assert name in out
        assert name in page
        assert name in json.dumps(json.loads(Path("run.json").read_text()), ensure_ascii=False)


def test_a_run_s_tables_have_any_name(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    for text in NASTY:
        plain = whole_swarm()
        for one in plain["coefficients"]:
            one["name"] = one["unit"] = text
        show_run(Terminal(), run_of(plain), {**plain, "warnings": [text]})  # type: ignore[typeddict-item]
        out = " ".join(capsys.readouterr().out.split())
        assert out.count(" ".join(shown(text).split()).split(" ")[0]) >= 5


# --- drawing comes last -----------------------------------------------------------------------------------------------

DRAWING = {
    "account": "account --clients 60 --plot a.png --json a.json",
    "audit": "audit --rounds 1000 --seed 1 --plot a.png --json a.json",
    "scaling": "scaling --clients 100 --plot a.png --json a.json",
    "swarm": "swarm --clients 20 --dataset diabetes --epsilon 50 --json a.json",
    "learn": "",
    "results": "",
}
"""By command that draws: a call. Real actors make what two of them draw: tests/e2e/test_swarm_nodes.py for `learn`,
tests/e2e/test_schedule.py for `results`."""


def commands_that_draw() -> Iterator[str]:
    for name, entry in COMMANDS.items():
        command = entry.load()
        if not isinstance(command, typer.Typer):
            app = typer.Typer(add_completion=False)
            app.command(name)(command)
            if any("--plot" in option.opts for option in typer.main.get_command(app).params):
                yield name


def test_each_command_that_draws_has_a_call() -> None:
    assert sorted(DRAWING) == sorted({*commands_that_draw(), "swarm"})


@pytest.mark.parametrize("name", [name for name, line in DRAWING.items() if line])
def test_a_picture_that_fails_is_a_warning(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dca_proto.cli.scaling._measure", lambda *_: msgspec.convert(scaling(), Scaling))

    def broken(*size: object) -> Any:
        raise ValueError("planted")

    monkeypatch.setattr(drawing, "picture", broken)
    assert main(DRAWING[name].split()) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "could not be drawn (ValueError: planted); the result is complete without it" in out
    assert json.loads(Path("a.json").read_text())
    assert not list(tmp_path.rglob("*.png"))


def test_a_picture_that_fails_names_the_earlier_one_in_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(path: Path) -> None:
        raise ValueError("planted")

    old = tmp_path / "a.png"
    for content, told in ((b"", False), (b"old", True)):
        old.write_bytes(content)
        assert not draw(Terminal(), old, broken)
        out = " ".join(capsys.readouterr().out.split())
        assert out.endswith("without it; the file shows an earlier result" if told else "is complete without it")
        assert old.read_bytes() == content


def test_a_page_without_one_of_its_charts_is_still_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*size: object) -> Any:
        raise ValueError("planted <b>")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(drawing, "picture", broken)
    Path("scaling.json").write_text(json.dumps(scaling()), encoding="utf-8")
    assert main(["report", "scaling.json"]) == 0
    assert "This chart could not be drawn (ValueError: planted &lt;b&gt;)" in Path("scaling.html").read_text()
