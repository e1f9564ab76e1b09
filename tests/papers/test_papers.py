"""The class of the papers' experiments, once for all of them; and that each has a command line and cells."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from rich.table import Table
from scipy import stats

from papers.__main__ import EXPERIMENTS, main
from papers.experiment import Experiment, Result, joint_interval, noted, option, over_epsilon
from papers.runner import Check


@dataclass(frozen=True, kw_only=True)
class Powers(Experiment[int, list[int]]):
    """Numbers and their powers.

    For a test.
    """

    KIND: ClassVar = "powers"
    LABEL: ClassVar = "powers"
    QUICK: ClassVar = {"largest": 2}
    DEPENDS: ClassVar = ("seed", "exponent")

    exponent: int = option(2, "of the powers", type=int)
    only: tuple[str, ...] = option(("odd", "even"), "of these", action="append", choices=("odd", "even"))
    largest: int = 4

    def cells(self) -> list[int]:
        return [n for n in range(1, self.largest + 1) if ("odd" if n % 2 else "even") in self.only]

    def work(self, cell: int) -> Result:
        return {"power": cell**self.exponent}

    def gather(self, cells: Sequence[int], results: Sequence[Result]) -> list[int]:
        return [one["power"] for one in results]

    def tables(self, found: Sequence[int]) -> Iterator[Table]:
        shown = over_epsilon("powers", "of", (0.5, 1.0))
        shown.add_row("all", "[bold]yes[/]", str(sum(found)))
        yield noted(shown, "a note")

    def checks(self, found: Sequence[int]) -> Iterator[Check]:
        yield Check("sum", "below 20", str(sum(found)), sum(found) < 20)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["powers", "--processes", "1", *arguments])
    return Powers.main("powers")


def test_json_holds_settings_cells_tables_and_checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = tmp_path / "powers.json"
    assert run(monkeypatch, "--json", str(target), "--only", "odd", "--seed", "7") == 0
    report = json.loads(target.read_text())
    assert report["settings"] == {"seed": 7, "exponent": 2, "only": ["odd"], "largest": 4}
    assert report["cells"] == [{"cell": "1", "power": 1}, {"cell": "3", "power": 9}]
    assert report["tables"] == [
        {"title": "powers", "columns": ["of", "ε = 0.5", "ε = 1"], "rows": [["all", "yes", "10"]], "note": "a note"}
    ]
    assert [check["holds"] for check in report["checks"]] == [True]


def test_a_check_that_fails_decides_and_a_quick_look_checks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch) == 4
    assert run(monkeypatch, "--exponent", "5", "--quick") == 0


def test_a_record_serves_more_cells_and_not_other_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = str(tmp_path / "record.jsonl")
    assert run(monkeypatch, "--only", "odd", "--journal", record) == 0
    assert run(monkeypatch, "--journal", record) == 4
    assert len((tmp_path / "record.jsonl").read_text().splitlines()) == 1 + 4
    assert run(monkeypatch, "--exponent", "3", "--journal", record) == 2
    assert "exponent is 2 there and 3 here" in capsys.readouterr().err


def test_what_it_cannot_do_is_refused_before_the_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, "--plot", str(tmp_path / "powers.png"))
    assert caught.value.code == 2
    assert "unrecognized arguments: --plot" in capsys.readouterr().err
    assert main(["powers"]) == 2
    assert "the names are figure_1b," in capsys.readouterr().err


def test_intervals_are_students_and_hold_together() -> None:
    values = np.random.default_rng(2).standard_normal(50)
    expected = stats.ttest_1samp(values, 0).confidence_interval(1 - 0.1 / 7)
    assert joint_interval(values, 0.9, 7) == pytest.approx((values.mean(), *expected))
    assert joint_interval(values[:1], 0.9) == (values[0], -np.inf, np.inf)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_a_command_line_and_fewer_cells_for_a_look(name: str) -> None:
    module, _, of = EXPERIMENTS[name].partition(":")
    made: Any = getattr(import_module(f"papers.{module}"), of)
    parser = made.parser(name)
    full, quick = (made.of(parser.parse_args(given)) for given in ([], ["--quick"]))
    assert "\n" in parser.description
    assert set(made.DEPENDS) <= set(dir(full))
    if name in ("figure_2", "figure_3"):  # cells that follow from files, or from a search before
        assert quick != full
        return
    cells = list(full.cells())
    assert len({str(cell) for cell in cells}) == len(cells)
    assert len(quick.cells()) < len(cells) or name == "figure_1b"
