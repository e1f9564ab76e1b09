"""Figures that come from rows as they are, without noise: apart in files, marked for people, left out on request."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from report_samples import SAMPLES, run_of, whole_learned, whole_swarm
from rich.console import Console

from dca_proto.cli import main
from dca_proto.cli.job_run import show_run, written
from dca_proto.cli.show import drawn
from dca_proto.report.learned import estimates, scores
from dca_proto.report.run import closing_lines
from inference.jobs.estimates import NOT_COVERED, separated
from inference.jobs.picture import plot_estimates

EXACT = ("6.416", "52.62", "77.83", "57.37")
"""The sample has a coefficient without privacy, and errors on held-out rows."""


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Each number with the keys that lead to it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{name}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, name)
    elif value is not None:
        yield name, value


def figures(value: Any) -> list[Any]:
    return sorted(one for _, one in leaves(value) if isinstance(one, float))


@pytest.mark.parametrize("whole", [whole_swarm(), whole_learned()], ids=["swarm", "learn"])
def test_hardening_12_a_file_has_them_in_one_separate_block(whole: dict[str, Any]) -> None:
    written = separated(whole)
    block = written.pop(NOT_COVERED)
    assert not [name for name, _ in leaves(written) if re.search("nonprivate|rmse|test|score|held", name)]
    assert "held-out" not in str(written)
    assert sorted(figures(written) + figures(block)) == figures(whole), "nothing is lost"
    assert block["test"] == whole["test"]
    assert block["why"] == "computed from rows as they are, without noise"


def test_private_iterations_stay_and_held_out_ones_go() -> None:
    gained = [{"number": 1, "name": "bound gained", "value": 0.5}]
    held_out = [{"number": 1, "name": "held-out AUC", "value": 0.9}]
    assert separated({"iterations": gained, "test": None}) == {"iterations": gained, NOT_COVERED: None}
    assert separated({"iterations": held_out})[NOT_COVERED]["iterations"] == held_out


def test_without_a_reference_there_is_no_block() -> None:
    whole = {**whole_swarm(), "test": None}
    for row in (*whole["coefficients"], whole["intercept"]):
        row.update(nonprivate=None, nonprivate_sd=None, nonprivate_interval_95=None)
    written = separated(whole)
    assert written[NOT_COVERED] is None
    assert not any("nonprivate" in name for name, _ in leaves(written))
    assert "not covered" not in dict(closing_lines(run_of(whole), whole))
    assert list(estimates(whole).header) == ["", "private", "unit"]


def test_hardening_12_scores_of_a_job_that_failed_stay_in_their_block() -> None:
    failed = msgspec.structs.replace(run_of(whole_learned()), ok=False, error="too few")
    object_ = written(failed, {"test": None, "iterations": whole_learned()["iterations"]})
    assert "iterations" not in object_
    assert [one["number"] for one in object_[NOT_COVERED]["iterations"]] == [1, 2, 3, 4, 5]


def page(run: dict[str, Any], folder: Path, *options: str) -> str:
    (folder / "run.json").write_bytes(msgspec.json.encode(run))
    assert main(["report", str(folder / "run.json"), *options]) == 0
    bare = re.sub(r"<style.*?</style>|<[^>]+>", " ", (folder / "run.html").read_text(), flags=re.DOTALL)
    return html.unescape(" ".join(bare.split()))


@pytest.mark.long
@pytest.mark.parametrize("name", ["swarm", "iterative-swarm", "learned"])
def test_hardening_12_pages_mark_them_and_leave_them_out_on_request(name: str, tmp_path: Path) -> None:
    marked = page(SAMPLES[name](), tmp_path)
    for place in re.finditer(r"without privacy|held-out|test (?:AUC|RMSE)|predicting the mean", marked):
        around = marked[max(0, place.start() - 200) : place.start() + 200]
        assert re.search("not covered by (?:epsilon|ε)", around), around
    bare = page(SAMPLES[name](), tmp_path, "--no-reference")
    assert not re.search(r"without privacy|not covered|held-out|constant prediction|0\.975|52\.6", bare)
    assert "6.16" in bare or name == "learned", "the private estimates stay"


def test_a_page_shows_none_from_outside_the_block(tmp_path: Path) -> None:
    """As in a file of an older version."""
    text = page({**whole_swarm(), NOT_COVERED: None}, tmp_path)
    assert "without privacy" not in text
    assert "52.6" not in text


def test_terminals_mark_them() -> None:
    summary = {**whole_swarm(), "n_min": 308}
    console = Console(record=True, width=120)
    console.print(drawn(estimates(summary)))
    assert re.search(r"\n +not covered by ε:\s*\n +private +without privacy +unit", console.export_text())
    assert dict(closing_lines(run_of(summary), summary))["not covered"].startswith(
        "by epsilon, because computed from raw rows: what"
    )
    (table,) = scores({**summary, "test": {"rows": 9, "scores": [_score()]}})
    assert table.title == "9 held-out rows: not covered by epsilon"
    narrow, test = Console(record=True, width=80), {**summary["test"], "unit": "units of temperature"}
    narrow.print(drawn(*scores({**summary, "test": test})))
    text = narrow.export_text()
    assert "square error" in text, "a long unit leaves the other texts legible"
    assert len(text.splitlines()) <= 6, text
    learned = {**whole_learned(), "intercept": None}
    show_run(console, run_of(learned), learned)
    text = " ".join(console.export_text().split())
    assert text.count("99 held-out rows: not covered by epsilon") == 1, "the table of AUC and log likelihood"
    assert text.count("99 held-out rows; not covered by epsilon)") == 1, "and the first of them in a sentence"


def _score() -> dict[str, Any]:
    return {"name": "AUC", "private": 0.9, "nonprivate": 0.95, "constant": 0.5, "higher_is_better": True}


def test_pictures_mark_them(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    plot_estimates(whole_swarm(), Path("x.png"), title="effects", private=True)
    texts = [one.get_text() for one in drawn[0].findobj(Text)]
    assert "without privacy (not covered by epsilon)" in texts
