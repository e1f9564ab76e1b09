"""`dca report`: nothing in a file becomes markup; how files that are no run are refused; and the command."""

from __future__ import annotations

import copy
import importlib.metadata
import json
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from pages import Outline, html_of, text_of
from report_samples import SAMPLES, audit, emulation, swarm, sweep
from schemas import parsed

from dca_proto.cli import GROUP, main
from dca_proto.cli import report as commands
from dca_proto.cli.report import report
from dca_proto.errors import UsageError
from dca_proto.report import reading
from dca_proto.report.charts import (
    Axis,
    Curve,
    Panel,
    TimelineRow,
    bars,
    lines,
    panels,
    svg,
    timeline,
)
from dca_proto.report.page import environment
from dca_proto.report.reading import KINDS, read_page
from dca_proto.runtime.files import whole_file
from inference.jobs.estimates import Estimate, Marginal
from inference.jobs.picture import Kind, forest

ACTIVE = {"script", "img", "iframe", "object", "embed", "link", "form", "input", "a", "base", "foreignObject", "image"}
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(content: Any, name: str = "run.json") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return path

    return write


# Hostile files

ATTACK = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'><svg onload=alert(3)>&lt;b&gt;{}\u202e\x00]]><!--"


def poisoned(value: Any) -> Any:
    """The same, with an attack in every text and every name that the page is free to show."""
    if isinstance(value, dict):
        return {key: poisoned(one) for key, one in value.items()} | {ATTACK: ATTACK}
    if isinstance(value, list):
        return [poisoned(one) for one in value]
    return ATTACK if isinstance(value, str) else value


@pytest.mark.parametrize("name", SAMPLES)
def test_texts_stay_texts(name: str) -> None:
    run = SAMPLES[name]()
    bad = {**poisoned_values(run), "kind": run["kind"]}
    page = html_of(bad, drawn=name in ("swarm", "sweep"))
    outline = Outline(page)
    assert not ACTIVE & set(outline.elements)
    assert {attribute for attribute, _ in outline.attributes}.isdisjoint({"onerror", "onload", "src"})
    assert "alert(1)" in outline.text, "it is shown, as the text that it is"
    assert "\u202e" not in page
    assert "\x00" not in page


def poisoned_values(run: dict[str, Any]) -> dict[str, Any]:
    """Attacks in all texts; as names only where names are free, which are dicts of figures or of plain data."""
    bad = {key: poisoned_texts(value) for key, value in run.items()}
    for key in ("options", "versions"):
        if key in run and not (key == "options" and run["kind"] == "scaling"):
            bad[key] = poisoned(run[key])
    for key in ("traffic", "roles", "coverage"):
        if key in run:
            bad[key] = {ATTACK: next(iter(run[key].values()))}
    return bad


def poisoned_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: poisoned_texts(one) for key, one in value.items()}
    if isinstance(value, list):
        return [poisoned_texts(one) for one in value]
    return ATTACK if isinstance(value, str) else value


def test_no_line_breaks_within_a_date_or_a_numbered_name() -> None:
    cell = environment("dca_proto.report").from_string("{{ text | whole }}")
    shown = cell.render(text="compute-1 <b>, long-winded, client-12-3 on 2026-11-28")
    moment = "2026-11-28T05:59:00Z"
    assert cell.render(text=moment) == f'<span class="whole">{moment}</span>'
    assert cell.render(text="2026-11-28a") == "2026-11-28a"
    whole = [f'<span class="whole">{name}</span>' for name in ("compute-1", "client-12-3", "2026-11-28")]
    assert shown == f"{whole[0]} &lt;b&gt;, long-winded, {whole[1]} on {whole[2]}"
    assert ".whole{white-space:nowrap}" in environment("dca_proto.report").get_template("page.css").render()


@pytest.mark.long
def test_long_texts_and_many_rows_are_cut() -> None:
    run = emulation()
    run["faults"] = [{**run["faults"][0], "kind": "x" * 20_000 + str(place)} for place in range(300)]
    run["last_facts"] = ["y" * 5_000] * 500
    run["drops"] = [{"client": 1, "at_ms": 5, "phase": "share"}] * 10_000
    run["outcome"]["rounds"] *= 500
    page = html_of(run)
    assert len(page) < 9_000_000
    assert "The first 200 of 10,000 rows; run.json has all." in page
    assert re.search(r"The first 60 of 1,301 lanes\.", page)


def extremes() -> Iterator[tuple[str, Any]]:
    """Each figure of each sample, in turn, as small and as large as it may be."""

    def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], tuple[float, float]]]:
        if isinstance(value, dict | list):
            items = value.items() if isinstance(value, dict) else list(enumerate(value))[:1]
            for key, one in items:
                yield from places(one, (*path, key))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield path, (0, 2**53) if isinstance(value, int) else (0, 1e100)

    for name in ("swarm", "learned", "emulation", "sweep", "scaling", "audit"):
        run = SAMPLES[name]()
        if name == "scaling":
            run["cells"] = run["cells"][:2]
        for path, least_and_most in places(run):
            for extreme in least_and_most:
                changed = copy.deepcopy(run)
                place = changed
                for key in path[:-1]:
                    place = place[key]
                place[path[-1]] = extreme
                yield f"{name} {path} {extreme}", changed


@pytest.mark.long
def test_figures_at_their_limits_have_a_page_or_a_line(write: Write) -> None:
    """A page is made, without what is no number, or one line names the error: never anything else."""
    made = [page for which, run in extremes() if (page := page_or_line(run, which, write)) is not None]
    assert not [page for page in made if re.search(r"\b(nan|inf)\b", page)]
    assert len(made) > 200


def page_or_line(run: dict[str, Any], which: str, write: Write) -> str | None:
    try:
        read_page(write(run))
    except UsageError as error:
        if "is of kind" not in str(error):
            raise AssertionError(which) from error
        return None
    return text_of(run)


@pytest.mark.parametrize("figure", [0, 1, 1e-100, 1e100])
def test_charts_of_figures_at_their_limits_are_drawn(figure: float) -> None:
    points = [(0.0, figure), (1.0, figure), (2.0, 0.0)]
    for log in (False, True):
        chart = lines([Curve("s", points, 0, spread=[(1.0, 0.0, figure)])], Axis("x"), Axis("y", log=log), caption="c")
        assert svg(chart, 350, "t").startswith("<svg")
    assert svg(bars([("a", figure, "w"), ("b", 0.0, "w")], caption="c"), 350, "t").startswith("<svg")
    assert svg(timeline([TimelineRow("a", [(0.0, figure, 0)])], 0.0, figure, {"p": 0}, caption="c"), 350, "t")
    one = Estimate("a", "unit", Marginal(0.0, 1.0, (-figure, figure))).row(None)
    draw = partial(forest, rows=[one], kinds=[Kind("estimate", "private", "#0072b2", "o")])
    assert svg(panels([Panel("unit", 1, draw, "a title")], ["private"], caption="c"), 350, "t").startswith("<svg")


# Files that are no run


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; expected the JSON file of a run"),
        (b"\n \n", "is empty"),
        (b"hello", "is not JSON"),
        (b'{"kind": "swarm"', "is not JSON"),
        (b'{"kind": "audit", "delta": NaN}', "is not JSON"),
        (b'{"kind": "swarm", "epsilon": 1e999}', "is not JSON"),
        (b'{"kind": "\xff\xfe"}', "is not UTF-8"),
        ("{}".encode("utf-16"), "is not"),
        (b"[" * 100_000, "is nested too deeply"),
        (b"[1, 2]", "holds no JSON object; expected the JSON file of a run, as dca swarm --json run.json writes it"),
        (b"17", "holds no JSON object"),
        (b'{"kind": 3}', "is of kind 3, which has no page; expected swarm, emulation"),
        (b'{"kind": "swrm"}', "is of kind 'swrm' (did you mean 'swarm'?), which has no page"),
        (b'{"kind": "report"}', "is of kind 'report'"),
        (b'{"kind": "scaling-resume"}', "(did you mean 'scaling'?)"),
        (b'{"rounds": []}', "no \"kind\", like files of older versions; expected swarm, emulation, sweep, "
         "scaling, learn, audit: make a new one with `dca swarm --json run.json`"),
        (b'{"epsilon_claimed": 1}', "make a new one with `dca audit --json run.json`"),
        (b"{}", "`dca emulate sweep --json run.json`"),
        (b'{"kind": "swarm"}', "missing required field `ok`"),
        (b'{"kind": "sweep", "ok": true, "run": "many", "failed": [], "coverage": {}}',
         "run is a text, expected a whole number; make a new one with `dca emulate sweep --json run.json`"),
        (json.dumps(audit(distributions={"edges": [1, 1], "counts": [[3], [4]]})).encode(), "do not ascend"),
        (json.dumps(audit(distributions={"edges": [0, 1], "counts": [[3], []]})).encode(), "not one for each"),
        (b'{"kind": "sweep", "ok": true, "run": -1, "failed": [], "coverage": {}}',
         "run is out of range, expected a number >= 0"),
        (b'{"kind": "sweep", "ok": true, "run": 1, "failed": {}, "coverage": {}}', "a table, expected a list"),
        (b'{"kind": "sweep", "ok": true, "run": 1' + b"0" * 400 + b', "failed": [], "coverage": {}}',
         "run is out of range, expected a number of at most 1e+100"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_run_is_a_one_line_error(content: bytes, message: str, write: Write) -> None:
    path = write(content)
    with pytest.raises(UsageError) as refused:
        read_page(path)
    text = str(refused.value)
    assert message in text
    assert str(path) in text
    assert "\n" not in text
    assert len(text) < 600


def test_an_unreadable_file_is_a_one_line_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Write) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        read_page(tmp_path)
    with pytest.raises(UsageError, match=r"cannot read .*No such file"):
        read_page(tmp_path / "run.json")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="not a regular file"):
        read_page(tmp_path / "pipe")
    monkeypatch.setattr(reading, "FILE_BYTES_MAX", 1 << 20)
    with pytest.raises(UsageError, match="is larger than 1 MiB"):
        read_page(write(b" " * ((1 << 20) + 1)))


def test_a_kind_may_be_hostile_too(write: Write) -> None:
    with pytest.raises(UsageError) as refused:
        read_page(write({"kind": "\x1b[31m" + "x" * 10_000}))
    assert "\x1b" not in str(refused.value)
    assert len(str(refused.value)) < 400


# The command


@pytest.fixture
def dca(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Calls `dca report`: exit code, stdout, stderr."""
    monkeypatch.setenv("COLUMNS", "300")
    entry = EntryPoint(name="report", value="dca_proto.cli.report:report", group=GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry])

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(["report", *arguments])
        return code, *capsys.readouterr()

    return call


@pytest.mark.long
def test_the_command_has_its_exit_codes(dca: Callable[..., tuple[int, str, str]], write: Write) -> None:
    path = str(write(swarm()))
    assert dca(path, "--json", "-")[:2] == (
        0,
        json.dumps({"kind": "report", "page": path[:-5] + ".html", "of": "swarm", "table": None}, indent=2) + "\n",
    )
    code, output, line = dca(str(write({"kind": "swrm"}, name="other.json")))
    assert (code, output) == (5, "")
    assert line.startswith("dca: ")
    assert line.count("\n") == 1
    assert dca()[0] == 2
    code, output, _ = dca("--help")
    assert code == 0
    assert "writes run.html" in output


def test_the_page_is_written_beside_the_run(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(swarm())
    report(path, None, "-")
    output, shown_ = capsys.readouterr()
    assert json.loads(output) == {
        "kind": "report",
        "page": str(path.with_suffix(".html")),
        "of": "swarm",
        "table": None,
    }
    assert "page" in shown_
    assert path.with_suffix(".html").read_text(encoding="utf-8").startswith('<!doctype html>\n<html lang="en">')


def test_the_page_is_written_to_the_given_path(write: Write, tmp_path: Path) -> None:
    report(write(sweep()), tmp_path / "page.html", None)
    assert "2 scenarios of 2,000" in (tmp_path / "page.html").read_text(encoding="utf-8").replace("\u00a0", " ")


def test_a_page_does_not_overwrite_its_run(write: Write) -> None:
    path = write(swarm(), name="run.html")
    with pytest.raises(UsageError, match="own file; name another one"):
        report(path, None, None)
    assert json.loads(path.read_bytes())["kind"] == "swarm"


def test_a_page_that_cannot_be_written_is_an_error(write: Write, tmp_path: Path) -> None:
    path = write(swarm())
    for output, message in ((tmp_path, "is a folder"), (tmp_path / "no" / "page.html", "does not exist")):
        with pytest.raises(UsageError, match=message):
            report(path, output, None)


def test_an_old_page_stays_whole_where_the_new_one_fails(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path, page = write(swarm()), tmp_path / "run.html"
    page.write_text("the old page")

    class Full:
        def __init__(self, place: Path) -> None:
            self._whole = whole_file(place)

        def __enter__(self) -> Path:
            self._whole.__enter__()
            return Path("/dev/full")

        def __exit__(self, *error: Any) -> bool | None:
            return self._whole.__exit__(*error)

    monkeypatch.setattr(commands, "whole_file", Full)
    with pytest.raises(UsageError, match="cannot write"):
        report(path, None, None)
    assert page.read_text() == "the old page"


def test_every_kind_has_a_sample() -> None:
    assert {make()["kind"] for make in SAMPLES.values()} == set(KINDS)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_run_that_has_a_page_fits_the_schema_of_its_command(name: str) -> None:
    run = SAMPLES[name]()
    path = [word for word in KINDS[run["kind"]].command.split()[1:] if word.islower() and "." not in word]
    parsed(json.dumps(run), *path)
