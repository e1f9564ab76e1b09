"""What pages say of learning: jobs of many rounds in a swarm, and what a real federation's trainer has learned."""

from __future__ import annotations

import re

import pytest
from pages import html_of, outline_of, text_of
from pictured import row as pictured_row
from report_samples import SAMPLES


def test_an_iterative_swarm_shows_its_scores_and_puts_rounds_of_a_sort_together() -> None:
    text = text_of(SAMPLES["iterative-swarm"]())
    for said in (
        "Learned from 342 of 342 clients: bmi 6.16 [0.2, 12.1]",
        "The score of the parameters after each iteration",
        "gradient ×13",
        "gradient, aborted",
        "clients in a mini-batch (B)",
        "contributions needed in each round, at least 66",
        "99 held-out rows: not covered by epsilon",
        "AUC 0.975 0.99 0.5 higher",
    ):
        assert said in text, said


def test_the_headline_writes_a_number_below_zero_as_the_table_does() -> None:
    below = {**pictured_row("age"), "estimate": -1.0, "interval_95": [-1.2, -0.8]}
    text = text_of({**SAMPLES["swarm"](), "coefficients": [below]})
    assert "age −1.000 [−1.20, −0.80]" in text
    assert "[-" not in text


def test_the_headline_keeps_a_name_that_ends_in_a_digit_apart_from_the_figure() -> None:
    learned = SAMPLES["learned"]()
    (row, *_), name = learned["coefficients"], "event = 1, arm 0"
    assert f"clients: {name}: 3.10 [0.9, 5.3]" in text_of({**learned, "coefficients": [{**row, "name": name}]})


def test_the_headline_of_rows_that_were_made_is_their_remark() -> None:
    made = {"headline": "rows", "remarks": {"rows": "40 synthetic rows of 3 columns; the release counts 38 clients"}}
    text = text_of({**SAMPLES["learned"](), **made})
    assert text.startswith("Learned from 38 of 40 clients: 40 synthetic rows of 3 columns ·")


@pytest.mark.parametrize("name", ["swarm", "learned"])
def test_the_repair_that_was_used_stands_among_the_remarks(name: str) -> None:
    assert ["repair", "absolute"] in outline_of({**SAMPLES[name](), "repair": "absolute"}).rows
    assert "repair" not in text_of({**SAMPLES[name](), "repair": None})


@pytest.mark.parametrize("name", ["swarm", "learned"])
def test_points_of_a_curve_are_drawn_as_one_and_remarks_stand_below(name: str) -> None:
    points = [
        {
            "name": f"S({x})",
            "unit": "",
            **dict.fromkeys(("estimate_sd", "prior_interval_95", "contraction")),
            "estimate": 1 - x / 10,
            "interval_95": [0.9 - x / 10, 1 - x / 20],
            "at": {"series": "arm 0", "x": x},
        }
        for x in (1, 2, 3)
    ]
    run = {**SAMPLES[name](), "coefficients": [], "estimates": points, "remarks": {"log-rank": "p = 0.03"}}
    run["at_risk"] = [{"series": "arm 0", "x": [0.0, 1.5], "number": [80.0, 51.3], "sd": [0.0, 4.2]}]
    text = text_of(run, drawn=True)
    assert "At risk, with the noise's 95 % interval" in text
    assert "1.5 51 ± 8" in text
    assert "log-rank p = 0.03" in text
    assert "Posterior means with pointwise 95 % intervals." in text
    assert "arm 0, private" in text


def test_what_a_federation_learned_is_shown_without_anything_to_compare_it_with() -> None:
    text = text_of(SAMPLES["learned"]())
    for said in (
        "Learned from 38 of 40 clients: a 3.10 [0.9, 5.3] log odds",
        "Spent: epsilon 4 per client, delta 1e-05",
        "at least 35 unknown noises are in each sum",
        "The job stopped before all planned rounds: too few.",
        "3.10 [0.9, 5.3]",
        "38 of 40",
        "gradient, aborted",
    ):
        assert said in text, said
    failed = {
        **SAMPLES["learned"](),
        "ok": False,
        "error": "too few contributed",
        "coefficients": [],
        "intercept": None,
    }
    assert "No result: too few contributed" in text_of(failed)
    plain = {**SAMPLES["learned"](), "not_covered_by_epsilon": None}
    assert "Learned from 38 of 40 clients: a 3.10 [0.9, 5.3]" in text_of(plain)


@pytest.mark.parametrize("kind", ["learned", "swarm"])
def test_what_intervals_leave_out_is_said_below_them(kind: str) -> None:
    rows = outline_of({**SAMPLES[kind](), "interval_note": "private ones leave out correlations"}).rows
    assert ["intervals", "private ones leave out correlations"] in rows
    assert "intervals" not in [row[0] for row in outline_of(SAMPLES[kind]()).rows if row]


@pytest.mark.parametrize("kind", ["learned", "swarm"])
def test_what_speaks_against_a_result_is_a_note_of_its_own(kind: str) -> None:
    text = text_of({**SAMPLES[kind](), "warnings": ["the chains have not met: R-hat is 1.2"]})
    assert "Warnings The chains have not met: R-hat is 1.2." in text
    assert "Warnings" not in text_of(SAMPLES[kind]())


def test_a_page_of_mini_batches_counts_who_was_asked_in_all_and_names_only_what_it_shows() -> None:
    learned = SAMPLES["learned"]()
    smaller = [{**one, "contributors": 9} if one["number"] > 1 and one["ok"] else one for one in learned["rounds"]]
    text = text_of({**learned, "rounds": smaller, "batch": 10})
    assert "Learned from 38 of 40 clients" in text
    assert "without privacy" not in text
    swarm = SAMPLES["iterative-swarm"]()
    assert swarm["batch"] is not None
    assert "contributions needed in each round, at least 91" in text_of({**swarm, "n_min": 91})
    most = max(one["contributors"] for one in swarm["rounds"] if one["ok"])
    assert f"Learned from {most} of {swarm['clients']} clients" in text_of(swarm)


def test_estimates_of_one_unit_share_an_axis_on_which_zero_is_no_effect() -> None:
    run = SAMPLES["swarm"]()
    for row in run["coefficients"]:
        row["standard"] = {"unit": "points per standard deviation", "scale": 2.0, "centre": 0.0}
    text = text_of(run, drawn=True)
    assert text.count("points per standard deviation") == 2, "one panel, for a desk and for a phone"
    in_own_units = ["bmi", "6.16 [0.2, 12.1]", "6.42 [4.9, 8.0]", "points per kg/m²"]
    assert in_own_units in outline_of(run).rows


def test_a_page_of_a_table_has_a_panel_for_each_column_and_none_for_numbers_of_values() -> None:
    """Ages and shares were on one scale, and so was the number of values, of which no interval could be seen."""
    run, known = SAMPLES["swarm"](), {"estimate_sd": 1.0, "prior_interval_95": None, "contraction": None}
    share = {"unit": "share", "scale": 1.0, "centre": 0.0}
    figures = [("age", "n", ""), ("age", "mean", ""), ("smoker", "no", "share"), ("smoker", "yes", "share")]
    run["estimates"], run["coefficients"], run["cells"] = [], [], {}
    for column, figure, unit in figures:
        name = f"{figure} of {column}"
        row = {"name": name, "unit": unit, "estimate": 0.5, "interval_95": [0.4, 0.6], **known}
        run["estimates"].append({**row, "standard": share} if unit else row)
        run["cells"][name] = {"column": column, "figure": figure, "group": "all"}
    svgs = re.findall(r"<svg.*?</svg>", html_of(run, drawn=True), re.DOTALL)
    texts = [re.findall(r">([^<>]+)</text>", one) for one in svgs if "the dotted line is zero" in one]
    assert len(texts) == 2, "for a desk and for a phone"
    for found in texts:
        names = [text for text in found if text in ("age", "smoker", "mean", "no", "yes", "n")]
        assert names == ["mean", "age", "no", "yes", "smoker"]
