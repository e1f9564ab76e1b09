"""`dca report`: what pages say, their charts and their figures."""

from __future__ import annotations

import base64
import hashlib
import html
import re

import pytest
from pages import Outline, html_of, outline_of, page_of, text_of
from report_samples import SAMPLES, audit, emulation, fleet, swarm, sweep
from scaling_samples import scaling

from dca_proto.drawing import TICKS_MAX
from dca_proto.report.charts import (
    Axis,
    Curve,
    lines,
    log_ticks,
    svg,
)
from dca_proto.report.formats import percent
from dca_proto.report.page import FACTS_MAX

ACTIVE = {"script", "img", "iframe", "object", "embed", "link", "form", "input", "a", "base", "foreignObject", "image"}


@pytest.mark.parametrize("name", ["swarm", "emulation", "audit"])
def test_a_page_is_whole_in_itself(name: str) -> None:
    page = html_of(SAMPLES[name]())
    outline = Outline(page)
    assert not ACTIVE & set(outline.elements)
    assert not [one for one in outline.attributes if one[0] in ("src", "style") or one[0].startswith("on")]
    assert {value[0] for key, value in outline.attributes if key == "href"} <= {"#"}, "within the page"
    assert not re.search(r"url\((?!#)", page)
    assert "@import" not in page
    assert not re.search(r"\b(nan|inf|None|True|False)\b", outline.text), "figures are figures, and words are words"
    assert len(page) < 200_000


@pytest.mark.parametrize("name", SAMPLES)
def test_a_page_has_at_most_five_figures_and_no_words_of_python(name: str) -> None:
    page, outline = page_of(SAMPLES[name]()), outline_of(SAMPLES[name]())
    assert 3 <= len(page.facts) <= FACTS_MAX == 5
    assert outline.elements.count("dt") == len(page.facts)
    assert not re.search(r"\b(nan|inf|None|True|False)\b", outline.text)


def test_charts_have_the_colours_of_the_page_and_texts_for_a_desk_and_a_phone() -> None:
    """Light and dark are the style's affair: no colour of a chart's own but white for what is left out."""
    page = html_of(audit())
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(pictures) == 2 * 2
    for one in pictures:
        colours = set(re.findall(r'(?:fill|stroke)="([^"]+)"', one))
        assert {colour for colour in colours if not colour.startswith("var(--")} <= {"none"}
        texts = Outline(one).text
        assert "the victim holds x'" in texts or "the coalition's guesses" in texts
        sizes = {float(size) for size in re.findall(r'font-size="([\d.]+)', one)}
        assert min(sizes) >= 11
    names = re.findall(r'\bid="([^"]+)"', page)
    assert len(names) == len(set(names))
    assert {name[1:] for name in re.findall(r'href="([^"]+)"', page)} <= set(names)


def test_the_policy_lets_in_nothing_but_the_style_of_the_page() -> None:
    page = html_of(swarm(), drawn=False)
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert style is not None
    assert found is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    said = html.unescape(found[1])
    assert said.startswith(f"default-src 'none'; style-src 'sha256-{digest}'")
    assert "unsafe" not in said


NODES = "compute-1, compute-2, compute-3"


def test_a_swarm_shows_result_budget_contributors_phases_drops_noise_and_coefficients() -> None:
    outline = outline_of(swarm())
    for said in (
        "Learned from 336 of 342 clients: bmi 6.16 [0.2, 12.1] points per kg/m²",
        "Spent: epsilon 2 of 2 per client, delta 1e-05; nobody saw a single client's numbers.",
    ):
        assert said in outline.text, said
    rows = [
        ["second-moments", "4", "342", "336", "0", "6", "quiet", "2.00", NODES, "13.0", "12.6"],  # √169.4
        ["contributions needed in each round, at least", "308"],
        ["second-moments", "1.78 s", "18.0 ms", "1.80 s", "2,714", "681 kB"],
        ["bmi", "6.16 [0.2, 12.1]", "6.42 [4.9, 8.0]", "points per kg/m²"],
        ["regression", "epsilon: found 2, expected at most 0.5", "3"],
        ["regression", "17", "1.42 s"],
        ["root mean square error", "57.37", "52.62", "77.83", "lower", "points"],
    ]
    assert [row for row in rows if row not in outline.rows] == []
    assert "round 2: clients 0 (000000), 21 (000000), 22" in outline.text


def test_the_posterior_stands_directly_under_the_headline() -> None:
    text = text_of({**swarm(), "warnings": ["the chains have not met"]})
    parts = ("Learned from 336 of 342", "private, with 1 warning", "Spent:", "Warnings", "The chains have not met.",
             "Coefficients", "clients in the last sum", "Rounds", "Noise")  # fmt: skip
    places = [text.index(part, 100) for part in parts]
    assert places == sorted(places)


def test_a_swarm_without_privacy_claims_none() -> None:
    text = text_of(
        {**swarm(), "private": False, "epsilon_spent": None, "not_private_because": ["the noise is inexact"]}
    )
    assert "not private" in text
    assert "No epsilon can be claimed: the noise is inexact." in text
    assert "Spent:" not in text


def test_an_aborted_round_has_no_result_but_a_reason() -> None:
    outline = outline_of(SAMPLES["aborted-swarm"]())
    assert "No result: compute-2 aborted the round: 300 clients contributed, 308 were needed (too-few)" in outline.text
    assert [
        "round 1",
        "compute-2 aborted the round: 300 clients contributed, 308 were needed (too-few)",
    ] in outline.rows
    came = ["342", "300", "40", "2"]  # asked, contributed, late, dropped
    assert ["second-moments, aborted", "4", *came, "all", NODES] in outline.rows
    assert "sd of the noise" not in outline.text
    assert "Coefficients" not in outline.text


def test_a_fleet_names_its_connections_and_roles() -> None:
    outline = outline_of(fleet())
    assert "9,980 of 10,000 clients are in the last sum, of 10 values" in outline.text
    assert ["connections, each client's or shared", "shared"] in outline.rows
    assert ["all", "40,155", "10.5 MB", "50.9 s", "–"] in outline.rows


def test_an_emulation_shows_verdicts_faults_and_how_to_replay() -> None:
    outline = outline_of(emulation())
    assert "1 round completed and 1 round aborted; every promise was kept" in outline.text
    assert outline.text.count("✓ holds") == 9 + 1, "the invariants, and that it became live"
    assert "dca emulate replay 17" in outline.text
    assert ["1 a1b2c3d4", "24", "21", "20", "1", "1.10", "completed"] in outline.rows, "variance over the floor"
    broken = text_of(SAMPLES["broken-emulation"]())
    assert "Invariant 3 (exact sum) did not hold" in broken
    assert broken.count("✗ broken") == 1 + 1, "it did not become live, either"
    assert "coordinate 3 of the sum is 912, expected 911" in broken


def test_faults_are_grouped_by_kind_with_those_reached_of_those_planned() -> None:
    run = emulation()
    run["faults"] += [{**run["faults"][1], "actor": "compute 0", "reached": False}]
    outline = outline_of(run)
    (row,) = [row for row in outline.rows if row and row[0].startswith("partition")]
    assert row[1:] == ["1/2", "compute 1 at 3.00 s to 5.50 s"]
    assert "partition 1/2" in text_of(run, drawn=True), "in the timeline too"


def test_a_long_run_is_shown_from_its_first_round_to_its_last() -> None:
    run = emulation()
    run["faults"].append({**run["faults"][0], "at_ms": 13_000_000})
    run["virtual_s"] = 13_400.0
    outline = outline_of(run, drawn=True)
    assert "1 fault struck before or after." in outline.text
    assert "hours" not in outline.text
    assert "seconds" in outline.text


def test_an_invariant_that_was_not_checked_is_not_said_to_hold() -> None:
    run = emulation()
    run["invariants"][4]["checked"] = 0
    text = text_of(run)
    assert text.count("✓ holds") == 8 + 1
    assert "not checked" in text


def test_a_sweep_shows_coverage_and_failures() -> None:
    outline = outline_of(sweep())
    assert "2 scenarios of 2,000 broke an invariant" in outline.text
    assert "Seed 1907, invariant 7 (a round never hangs)" in outline.text
    assert "dca emulate replay 1907" in outline.text
    assert "Never occurred: disk-full." in outline.text
    assert "1 of 2 entries of the actors' tables were taken. Never taken: trainer: open, forget." in outline.text
    assert ["9 same seed, same trace", "never"] in outline.rows, "what was not checked is not said to hold"
    fine = text_of({**sweep(), "ok": True, "failed": []})
    assert "No invariant was broken in 2,000 random scenarios" in fine


def test_an_audit_of_real_actors_shows_what_the_coalition_sees_and_recovers() -> None:
    text = text_of(SAMPLES["coalition"]())
    for said in (
        "does not cover this coalition",
        "8 of 20 clients, 1 of 20 clients without their noise, 3 of 3 Compute nodes and the broker",
        "which look random",
        "≥ 14",
        "0.490 [0.294, 0.686]",
        "recovered in one round",
        "same traffic for both inputs",
    ):
        assert said in text, said


def test_scaling_shows_the_ratio_to_each_cell_of_the_paper_and_the_time_with_key_agreement() -> None:
    outline = outline_of({**scaling(), "warnings": ["busy: other work took the cores"]}, drawn=True)
    assert "13 of 15 measured cells of the paper's Table 1 are faster here" in outline.text
    assert outline.text.count("the DCA paper's Table 1") == 2, "one entry in the legend for a desk, and for a phone"
    seconds = ["0.0609", "0.146", "0.0566–0.0731", "0.012", "0.0609", "1.72", "0.035"]
    assert ["100", "10", "10", *seconds] in outline.rows, "without key agreement, with it, ..., the paper's, the ratio"
    assert next(row[-1] for row in outline.rows if row[:3] == ["10,000", "10", "10"]) == "1.4"
    assert ["100", "10", "10", "0.0426", "0", "0.0244", "126 MB", "90.0 kB", "2.40 kB", "45.0 kB"] in outline.rows
    assert "Warnings Busy: other work took the cores." in outline.text


def test_scaling_without_the_paper_or_any_cell() -> None:
    cells = [{**one, "paper_s": None, "ratio": None} for one in scaling()["cells"]]
    assert "below 1 is faster" not in text_of({**scaling(), "cells": cells})
    assert "No cell was measured" in text_of({"kind": "scaling", "cells": []})


def test_an_audit_shows_two_distributions_and_the_trade_off_with_the_claim() -> None:
    text = text_of(audit(), drawn=True)
    assert "The claim of epsilon 1 stands" in text
    for said in ("the victim holds x", "the victim holds x'", "claim, mu 0.237", "the coalition's guesses", "0.882"):
        assert said in text, said


def test_what_is_not_known_is_not_needed() -> None:
    """Parts that a producer may leave out."""
    minimal = {
        "swarm": {"ok": True, "clients": 3, "computes": 2, "tolerate": 0, "rounds": []},
        "emulation": {"ok": True, "digest": "ab", "outcome": {"result": "ok", "rounds": []}, "invariants": []},
        "sweep": {"ok": True, "run": 0, "failed": [], "coverage": {}},
        "scaling": {"cells": [{"clients": 1, "dimension": 1, "computes": 2, "wall_s": 0.0, "core_s": 0.0}]},
    }
    for kind, run in minimal.items():
        assert "loads nothing" in text_of({"kind": kind, **run}, drawn=True)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (1.0, 1e6, [1.0, 100.0, 1e4, 1e6]),
        (0.15, 0.9, [0.15, 0.2, 0.3, 0.5, 0.7]),
        (90.0, 130.0, [100.0]),
    ],
)
def test_logarithmic_axes_have_ticks_between_powers_where_they_hold_few(
    low: float, high: float, ticks: list[float]
) -> None:
    found = log_ticks(low, high)
    assert found == pytest.approx(ticks)
    assert len(found) <= TICKS_MAX


def test_axes_have_more_than_one_tick() -> None:
    """Whatever lies between their ends: a decade, a part of one, or one value alone."""
    for values in ((1.0, 1.01), (90.0, 130.0), (3.0, 3.0), (1e-9, 1e9), (0.9, 1.1)):
        for log in (True, False):
            series = [Curve("s", [(value, value) for value in values], 0, "", "o")]
            drawn = svg(lines(series, Axis("x", log=log), Axis("y", log=log), caption="c"), 760, "t")
            ticks = Outline(drawn).text.split()
            assert len([tick for tick in ticks if tick not in ("x", "y")]) >= 4, (values, log, ticks)


@pytest.mark.parametrize(
    ("part", "said"), [(2.2e-16, "below 0.01 %"), (0.0, "0 %"), (0.125, "12.5 %"), (-1e-9, "below 0.01 %")]
)
def test_percentages_stay_readable(part: float, said: str) -> None:
    assert percent(part).replace("\u00a0", " ") == said
