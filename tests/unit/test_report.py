"""`dca report`: what pages say, that nothing in a file becomes markup, and what is said of files that are no run."""

from __future__ import annotations

import copy
import html
import importlib.metadata
import json
import os
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from report_samples import SAMPLES, audit, emulation, fleet, swarm, sweep
from scaling_samples import scaling

from dca_proto.cli import GROUP, main
from dca_proto.cli.output import whole_file
from dca_proto.core.errors import UsageError
from emulator.report import command, reading
from emulator.report.command import report
from emulator.report.kinds import KINDS
from emulator.report.page import policy, render
from emulator.report.reading import read_run
from emulator.report.style import STYLE

ELEMENTS = {
    "html", "head", "meta", "title", "style", "body", "main", "footer", "section", "p", "h1", "h2", "h3", "span", "dl",
    "div", "dt", "dd", "figure", "figcaption", "svg", "rect", "line", "text", "circle", "polyline", "polygon", "ul",
    "li", "table", "thead", "tbody", "tr", "th", "td", "small", "br", "pre", "details", "summary",
}  # fmt: skip
Write = Callable[..., Path]


class Outline(HTMLParser):
    """Elements, attributes and texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).replace("\u00a0", " ").split())


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(content: Any, name: str = "run.json") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return path

    return write


def page_of(path: Path) -> str:
    run = read_run(path)
    return render(run.kind.page(run.value), path.name)


def shown(write: Write, value: Any) -> str:
    return Outline(page_of(write(value))).text


# What pages say


@pytest.mark.parametrize("name", SAMPLES)
def test_a_page_is_whole_in_itself(name: str, write: Write) -> None:
    page = page_of(write(SAMPLES[name]()))
    outline = Outline(page)
    assert set(outline.elements) <= ELEMENTS
    assert not [one for one in outline.attributes if one[0] in ("src", "href", "style") or one[0].startswith("on")]
    assert "url(" not in page
    assert "@import" not in page
    assert not re.search(r"\b(nan|inf|None|True|False)\b", outline.text), "figures are figures, and words are words"
    assert len(page) < 200_000


def test_the_policy_lets_in_nothing_but_the_style_of_the_page(write: Write) -> None:
    page = page_of(write(swarm()))
    assert f"<style>{STYLE}</style>" in page
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert found is not None
    assert html.unescape(found[1]) == policy()
    assert policy().startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy()


def test_a_swarm_shows_result_budget_contributors_phases_drops_noise_and_coefficients(write: Write) -> None:
    text = shown(write, swarm())
    for said in (
        "Learned from 336 of 342 clients: test error 57.4 (52.6 without privacy; not covered by epsilon)",
        "Each client spent at most epsilon 2 of 2 at delta 1·10⁻⁵.",
        "At least 308 contributions were needed",
        "336 6 quiet 1.78 s 18.0 ms 1.80 s",
        "681 kB",
        "client 298",
        "sd 13.0",  # of variance 169.4
        "sd 12.6",  # 2.0 / 0.1586
        "6.16 [0.2, 12.1]",
        "6.42 [4.9, 8.0]",
        "points per kg/m²",
        "epsilon: found 2, expected at most 0.5",
        "Slowest clients",
    ):
        assert said in text, said


def test_the_coefficients_stand_directly_under_the_headline(write: Write) -> None:
    run = {**swarm(), "warnings": ["the chains have not met"]}
    text = shown(write, run)
    parts = ("Learned from 336 of 342", "Each client spent", "Coefficients", "6.16 [0.2, 12.1]", "Warnings",
             "clients (N)", "Rounds in time", "Noise in the sums")  # fmt: skip
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_a_swarm_without_privacy_claims_none(write: Write) -> None:
    run = {**swarm(), "private": False, "epsilon_spent": None, "not_private_because": ["the noise is inexact"]}
    text = shown(write, run)
    assert "not private" in text
    assert "No epsilon can be claimed: the noise is inexact." in text
    assert "Each client spent" not in text


def test_an_aborted_round_has_no_result_and_says_why(write: Write) -> None:
    text = shown(write, SAMPLES["aborted-swarm"]())
    assert "No result: compute-2 aborted: too-few: 300 contributed, 308 were needed" in text
    assert "Noise in the sums" not in text
    assert "Coefficients" not in text


def test_a_fleet_names_its_connections_and_roles(write: Write) -> None:
    text = shown(write, fleet())
    assert "9,980 of 10,000 clients are in the last sum, of 10 values" in text
    assert "connections shared" in text
    assert "40,155 messages in all, by role." in text
    assert "one per client" in shown(write, {**fleet(), "connections": "each"})


def test_an_emulation_shows_verdicts_faults_and_how_to_replay(write: Write) -> None:
    text = shown(write, emulation())
    assert "1 round completed and 1 round aborted; nothing that was promised was broken" in text
    assert text.count("✓ holds") == 9
    assert "partition compute 1 partition compute 1: 3.00 s to 5.50 s" in text
    assert "disk-full compute 0 not reached" in text
    assert "dca emulate replay 17" in text
    broken = shown(write, SAMPLES["broken-emulation"]())
    assert "Invariant 3 (exact sum) did not hold" in broken
    assert broken.count("✗ broken") == 1
    assert "coordinate 3 of the sum is 912, expected 911" in broken


def test_an_invariant_that_was_not_checked_is_not_said_to_hold(write: Write) -> None:
    run = emulation()
    run["invariants"][4]["checked"] = 0
    text = shown(write, run)
    assert text.count("✓ holds") == 8
    assert "not checked" in text


def test_a_sweep_shows_coverage_and_failures(write: Write) -> None:
    text = shown(write, sweep())
    assert "2 scenarios of 2,000 broke an invariant" in text
    assert "dca emulate replay 1907" in text
    assert "Never came to pass: disk-full." in text
    assert "invariant 9 never" in text, "what was not checked is not said to hold"
    fine = shown(write, {**sweep(), "ok": True, "failed": []})
    assert "No invariant was broken in 2,000 random scenarios" in fine


def test_a_coalition_shows_what_it_sees_and_the_noise_left(write: Write) -> None:
    text = shown(write, SAMPLES["collusion"]())
    for said in (
        "is broken by 2 Compute nodes, 8 revealing clients, 1 client without noise and the broker",
        "documented break",
        "0.714 times",
        "p = 0.43",
        "which look random",
        "Unknown noises that hide the client: 10; the claim needs 14.",
    ):
        assert said in text, said


def test_scaling_shows_the_ratio_to_each_cell_of_the_paper(write: Write) -> None:
    text = shown(write, scaling())
    assert "13 of 15 measured cells of the paper's Table 1 are faster here" in text
    assert "0.035 60.9 ms / 1.72 s" in text
    assert "1.4 (slower)" in text
    assert "the DCA paper's Table 1" in text
    page = page_of(write(scaling()))
    assert page.count('class="ring t') == 13 + 1, "a hollow point for each cell of the curves, and one in the legend"


def test_scaling_without_the_paper_or_any_cell(write: Write) -> None:
    cells = [{**one, "paper_s": None, "ratio": None} for one in scaling()["cells"]]
    assert "Beside the paper" not in shown(write, {**scaling(), "cells": cells})
    assert "No cell was measured" in shown(write, {"kind": "scaling", "cells": []})


def test_an_audit_shows_two_distributions_and_the_trade_off_with_the_claim(write: Write) -> None:
    page = page_of(write(audit()))
    text = Outline(page).text
    assert "The claim of epsilon 1 stands" in text
    for said in ("the victim holds x", "the victim holds x'", "claim, mu 0.237", "the coalition's guesses", "0.882"):
        assert said in text, said
    assert page.count("<polyline") == 6
    bare = {key: value for key, value in audit().items() if key not in ("distributions", "trade_off")}
    assert "make a new one with dca audit --json FILE" in shown(write, bare)


def test_what_is_not_known_is_not_needed(write: Write) -> None:
    """Parts that a producer may leave out."""
    minimal = {
        "swarm": {"ok": True, "clients": 3, "computes": 2, "tolerated": 0, "rounds": []},
        "emulation": {"ok": True, "digest": "ab", "outcome": {"result": "ok", "rounds": []}, "invariants": []},
        "sweep": {"ok": True, "run": 0, "failed": [], "coverage": {}},
        "collusion": {
            "coalition": {},
            "sees": [],
            "noise": {"left": 0.0, "floor": 0.0},
            "epsilon": {"claimed": 1.0},
            "broken": False,
        },
        "scaling": {"cells": [{"clients": 1, "dimension": 1, "computes": 2, "wall_s": 0.0}]},
    }
    for kind, run in minimal.items():
        assert "loads nothing" in shown(write, {"kind": kind, **run})


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
def test_texts_stay_texts(name: str, write: Write) -> None:
    run = SAMPLES[name]()
    bad = {**poisoned_values(run), "kind": run["kind"]}
    page = page_of(write(bad, name="run<script>.json"))
    outline = Outline(page)
    assert set(outline.elements) <= ELEMENTS
    assert {attribute for attribute, _ in outline.attributes}.isdisjoint({"onerror", "onload", "src"})
    assert "alert(1)" in outline.text, "it is shown, as the text that it is"
    assert "\u202e" not in page
    assert "\x00" not in page


def poisoned_values(run: dict[str, Any]) -> dict[str, Any]:
    """Attacks in all texts; as names only where names are free, which are dicts of figures or of plain data."""
    bad = {key: poisoned_texts(value) for key, value in run.items()}
    for key in ("options", "setting", "operating_point", "machine", "versions", "calibration"):
        if key in run:
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


def test_long_texts_and_many_rows_are_cut(write: Write) -> None:
    run = emulation()
    run["faults"] = [{"kind": "x" * 20_000, "actor": None, "role": None, "at_ms": 1, "until_ms": None}] * 300
    run["last_facts"] = ["y" * 5_000] * 500
    run["drops"] = [{"client": 1, "at_ms": 5, "phase": "share"}] * 10_000
    run["outcome"]["rounds"] *= 500
    page = page_of(write(run))
    assert len(page) < 2_000_000
    assert "more lanes are not shown" in page


def extremes() -> Iterator[tuple[str, Any]]:
    """Each figure of each sample, in turn, as small and as large as it may be."""

    def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], tuple[float, float]]]:
        if isinstance(value, dict | list):
            items = value.items() if isinstance(value, dict) else list(enumerate(value))[:1]
            for key, one in items:
                yield from places(one, (*path, key))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield path, (0, 2**53) if isinstance(value, int) else (0, 1e100)

    for name in ("swarm", "learned", "emulation", "sweep", "collusion", "scaling", "audit"):
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


def test_figures_at_their_limits_have_a_page_or_a_line(write: Write) -> None:
    """A page is made, without what is no number, or one line says what is wrong: never anything else."""
    made = [page for which, run in extremes() if (page := page_or_line(write(run), which)) is not None]
    assert not [page for page in made if re.search(r"\b(nan|inf)\b", page)]
    assert len(made) > 200


def page_or_line(path: Path, which: str) -> str | None:
    try:
        return page_of(path)
    except UsageError as error:
        if "is of kind" not in str(error):
            raise AssertionError(which) from error
        return None


# Files that are no run


@pytest.mark.parametrize(
    ("content", "said"),
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
        (b'{"rounds": []}', "no \"kind\", as files of older versions; expected swarm, emulation, sweep, collusion, "
         "scaling, learn, audit: make a new one with `dca swarm --json run.json`"),
        (b'{"epsilon_claimed": 1}', "make a new one with `dca audit --json run.json`"),
        (b"{}", "`dca emulate sweep --json run.json`"),
        (b'{"kind": "swarm"}', "missing required field `ok`"),
        (b'{"kind": "sweep", "ok": true, "run": "many", "failed": [], "coverage": {}}',
         "run is a text, expected a whole number; make a new one with `dca emulate sweep --json run.json`"),
        (json.dumps({**audit(), "distributions": {"edges": [1, 1], "counts": [[3], [4]]}}).encode(), "do not ascend"),
        (json.dumps({**audit(), "distributions": {"edges": [0, 1], "counts": [[3], []]}}).encode(), "not one for each"),
        (b'{"kind": "sweep", "ok": true, "run": -1, "failed": [], "coverage": {}}',
         "run is out of range, expected a number >= 0"),
        (b'{"kind": "sweep", "ok": true, "run": 1, "failed": {}, "coverage": {}}', "a table, expected a list"),
        (b'{"kind": "sweep", "ok": true, "run": 1' + b"0" * 400 + b', "failed": [], "coverage": {}}',
         "expected a number <= 900"),
    ],
)  # fmt: skip
def test_what_is_no_run_is_told_in_a_line(content: bytes, said: str, write: Write) -> None:
    path = write(content)
    with pytest.raises(UsageError) as refused:
        read_run(path)
    text = str(refused.value)
    assert said in text
    assert str(path) in text
    assert "\n" not in text
    assert len(text) < 600


def test_what_is_no_file_is_told_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Write) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        read_run(tmp_path)
    with pytest.raises(UsageError, match=r"cannot read .*No such file"):
        read_run(tmp_path / "run.json")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="no ordinary file"):
        read_run(tmp_path / "pipe")
    monkeypatch.setattr(reading, "FILE_BYTES_MAX", 1 << 20)
    with pytest.raises(UsageError, match="is larger than 1 MiB"):
        read_run(write(b" " * ((1 << 20) + 1)))


def test_a_kind_may_be_hostile_too(write: Write) -> None:
    with pytest.raises(UsageError) as refused:
        read_run(write({"kind": "\x1b[31m" + "x" * 10_000}))
    assert "\x1b" not in str(refused.value)
    assert len(str(refused.value)) < 400


# The command


@pytest.fixture
def dca(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Calls `dca report`: exit code, stdout, stderr."""
    monkeypatch.setenv("COLUMNS", "300")
    entry = EntryPoint(name="report", value="emulator.report.command:report", group=GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry])

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(["report", *arguments])
        return code, *capsys.readouterr()

    return call


def test_the_command_has_its_exit_codes(dca: Callable[..., tuple[int, str, str]], write: Write) -> None:
    path = str(write(swarm()))
    assert dca(path, "--json", "-")[:2] == (
        0,
        json.dumps({"kind": "report", "page": path[:-5] + ".html", "of": "swarm"}, indent=2) + "\n",
    )
    code, told, line = dca(str(write({"kind": "swrm"}, name="other.json")))
    assert (code, told) == (5, "")
    assert line.startswith("dca: ")
    assert line.count("\n") == 1
    assert dca()[0] == 2
    code, told, _ = dca("--help")
    assert code == 0
    assert "writes run.html" in told


def test_the_page_lies_beside_the_run(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(swarm())
    report(path, None, "-")
    told, shown_ = capsys.readouterr()
    assert json.loads(told) == {"kind": "report", "page": str(path.with_suffix(".html")), "of": "swarm"}
    assert "page" in shown_
    assert path.with_suffix(".html").read_text(encoding="utf-8").startswith('<!doctype html>\n<html lang="en">')


def test_the_page_lies_where_it_was_asked_for(write: Write, tmp_path: Path) -> None:
    report(write(sweep()), tmp_path / "page.html", None)
    assert "2 scenarios of 2,000" in (tmp_path / "page.html").read_text(encoding="utf-8").replace("\u00a0", " ")


def test_a_page_does_not_take_the_place_of_its_run(write: Write) -> None:
    path = write(swarm(), name="run.html")
    with pytest.raises(UsageError, match="is the run itself"):
        report(path, None, None)
    assert json.loads(path.read_bytes())["kind"] == "swarm"


def test_a_page_that_cannot_be_written_is_told_of(write: Write, tmp_path: Path) -> None:
    path = write(swarm())
    for output, said in ((tmp_path, "is a folder"), (tmp_path / "no" / "page.html", "does not exist")):
        with pytest.raises(UsageError, match=said):
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

    monkeypatch.setattr(command, "whole_file", Full)
    with pytest.raises(UsageError, match="cannot write"):
        report(path, None, None)
    assert page.read_text() == "the old page"


def test_every_kind_has_a_sample() -> None:
    assert {make()["kind"] for make in SAMPLES.values()} == set(KINDS)
