"""Columns of texts: their labels are stated once, as the column's bounds, and stand in whatever a job says of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
from ideal_jobs import NODES, conditions, made
from matplotlib.figure import Figure
from matplotlib.text import Text

from check_lying_client import setting_of
from dca_proto import Table
from dca_proto.cli.job_settings import best_weights, task_of
from dca_proto.jobs.job import JobTerms
from dca_proto.privacy.budget import Budget
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.facts import Declined, RoundCompleted, RoundFailed
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.wire.kinds import Kind, NodeRelease, SecureSum
from dca_proto.report.learned import result as headline_of
from dca_proto.statistics import resolve
from dca_proto.testing import Network, TestFederation
from emulator.ideal import IdealSwarm
from emulator.swarm.live import fresh_keys
from inference.bounds import Interval, as_interval, parse_bounds
from inference.errors import DataError
from inference.estimators import (
    PrivateKaplanMeier,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateOrdinalRegression,
    PrivateProportionalHazards,
)
from inference.jobs import NAMES, find
from inference.jobs.base import Conditions
from inference.jobs.estimates import rows_of
from inference.jobs.picture import plot_estimates
from inference.jobs.settings import settings_from
from inference.models.estimator import RecordedRounds
from inference.problem import Problem, Schema
from inference.rounds import named

CLIENTS = 300
ARMS, SEXES, STAGES, ENDS = ("placebo", "drug", "both"), ("f", "m"), ("I", "II", "III"), ("alive", "dead")
BOUNDS: dict[str, Any] = {
    "age": (18, 100), "arm": ARMS, "sex": SEXES, "stage": STAGES, "status": ENDS, "time": (0, 60),
}  # fmt: skip


def trial(target: str, *features: str) -> Problem:
    """Patients of a trial: codes of texts, as a device and a CSV reader give them."""
    rng = np.random.default_rng(1)
    columns = {
        "age": rng.normal(60, 10, CLIENTS).clip(18, 100),
        "time": rng.exponential(20, CLIENTS).clip(0.1, 60),
        **{name: rng.integers(0, len(BOUNDS[name]), CLIENTS) + 0.0 for name in ("arm", "sex", "stage", "status")},
    }
    schema = Schema(features, target, BOUNDS, alone=not features)
    return Problem(
        "trial", schema, np.array([columns[name] for name in features]).reshape(-1, CLIENTS).T, columns[target]
    )


def learned(name: str, rows: Problem, **settings: Any) -> tuple[dict[str, Any], str]:
    """Return the summary of a job over the ideal functionality, and the names of its model."""
    job, budget = find(name), Budget(20.0, 1e-5)
    own = settings_from(job.settings, settings, name)
    rows = job.read(rows, own)
    job.check(rows.schema, own)
    terms = JobTerms(epsilon=budget.epsilon, delta=budget.delta, clients=CLIENTS, tolerate=20, computes=NODES)
    swarm = RecordedRounds(IdealSwarm(rows.rows, rows.schema.columns, terms, random=np.random.default_rng(3).bytes))
    result = made(job, rows.schema, own, conditions(budget), swarm)
    for request, _ in swarm.results:
        assert not {*request.parameters["columns"]} & {*rows.schema.categories}, "a code without its list"
    summary = job.summarise(result, job.reference(rows, own), rows, None, rows.schema)
    return json.loads(json.dumps(summary, allow_nan=False)), job.model(rows.schema, own)


CASES = {
    "describe": (trial("stage", "age", "arm", "sex"), {"group": "arm"}, (
        "mean of age, arm=both", "sex = f, arm=drug", "sex = m, arm=both", "stage = I, arm=drug",
    )),
    "compare": (trial("stage", "arm"), {"group": "arm"}, ("stage = I, arm=placebo", "stage = III, arm=both")),
    "survival": (trial("time", "status", "arm"), {"group": "arm", "event": "status", "intervals": 2}, (
        "S(60), arm=placebo", "mean to 60, arm=drug",
    )),
    "survival-regression": (trial("time", "status", "arm", "stage", "age"), {"group": "arm", "event": "status"}, (
        "arm=drug", "arm=both", "stage=II", "stage=III", "age",
    )),
    "ordinal-regression": (trial("stage", "age", "arm"), {}, ("arm=drug", "arm=both", "threshold stage II | III")),
    "multinomial-regression": (trial("stage", "sex"), {}, ("sex=m, stage=II", "intercept stage=III")),
    "logistic": (trial("sex", "arm", "age"), {}, ("arm=drug", "arm=both", "age")),
    "regression": (trial("age", "sex", "stage"), {}, ("sex=m", "stage=II", "stage=III")),
    "categorical": (trial("stage"), {}, tuple(f"share of stage = {stage}" for stage in STAGES)),
    "bernoulli": (trial("sex"), {}, ("share of sex = m",)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_jobs_result_names_the_labels_and_never_the_codes(name: str) -> None:
    rows, settings, expected = CASES[name]
    summary, _ = learned(name, rows, **settings)
    names = [row["name"] for row in rows_of(summary)]  # type: ignore[arg-type]
    assert {*expected} <= {*names}
    labelled = ("arm", "sex", "stage", "status")
    for text in (*names, *json.dumps(summary.get("cells", {})).split('"')):
        assert " in {" not in text
        for column in labelled:
            assert not any(f"{column}{sign}{code}" in text for sign in (" ", " = ", "=") for code in "012"), text


def test_hazards_have_the_clearest_effect_as_their_headline() -> None:
    rows, settings, _ = CASES["survival-regression"]
    summary, _ = learned("survival-regression", rows, **settings)
    clearest = max(summary["estimates"], key=lambda row: abs(row["estimate"]) / row["estimate_sd"])
    assert clearest != summary["estimates"][0]
    assert (headline_of(summary) or ("",))[0] == clearest["name"]  # type: ignore[arg-type]


def test_every_job_with_a_group_takes_one_of_texts() -> None:
    """The list above has each job of the registry that has a column of groups or events among its settings."""
    hints = {name: get_type_hints(find(name).settings) for name in NAMES}
    with_groups = {name for name, types in hints.items() if types.get("group") in (str, str | None)}
    assert with_groups <= {*CASES}


def test_a_model_is_told_by_its_labels() -> None:
    assert learned("logistic", trial("sex", "arm"))[1] == "sex=m on arm=drug, arm=both"
    summary, _ = learned("survival", trial("time", "status"), event="status", intervals=2)
    assert summary["remarks"]["events"] == "status alive = censored, dead = event"


def test_a_result_says_whose_odds_it_states_and_with_what_indicators_are_compared() -> None:
    of_texts, _ = learned("logistic", trial("sex", "arm", "age"))
    assert of_texts["remarks"]["odds"] == "of sex=m against sex=f"
    assert of_texts["remarks"]["reference"] == "arm=drug against arm=placebo; arm=both against arm=placebo"
    chosen = Schema(("arm=both", "age"), "status", BOUNDS)
    assert chosen.references == {"arm=both": "arm=placebo or drug"}
    coded = Schema(("age",), "status", {"age": (18, 100), "status": (1, 2)})
    assert coded.odds == "status 2 against status 1; a number between them counts as the nearer"
    linear, _ = learned("regression", trial("age", "sex"))
    assert linear["remarks"]["reference"] == "sex=m against sex=f"
    assert "odds" not in linear["remarks"]
    rows, settings, _ = CASES["survival-regression"]
    hazards, _ = learned("survival-regression", rows, **settings)
    assert hazards["remarks"]["groups"] == "arm=drug, arm=both against arm=placebo"


@pytest.mark.parametrize("name", ["logistic", "regression", "multinomial-regression", "survival-regression"])
def test_a_picture_shows_an_indicator_as_the_table_does_and_scales_numbers(name: str) -> None:
    target, more = {"survival-regression": ("time", {"group": "arm", "event": "status"}), "regression": ("time", {}),
                    "logistic": ("sex", {}), "multinomial-regression": ("stage", {})}[name]  # fmt: skip
    features = ("arm", "age", *(["status"] if more else []))
    summary, _ = learned(name, trial(target, *features), **more)
    axes = {row["name"]: row["standard"] for row in rows_of(summary) if "standard" in row}  # type: ignore[arg-type]
    of_arm = [axis for label, axis in axes.items() if label.startswith("arm=")]
    of_age = [axis for label, axis in axes.items() if label.startswith("age")]
    assert of_arm
    assert all(axis["scale"] == 1 and axis["unit"].endswith("category against its reference") for axis in of_arm)
    assert of_age
    assert all(axis["scale"] > 5 and "private standard deviation" in axis["unit"] for axis in of_age), "its sd is 10"


@pytest.mark.parametrize(("name", "target"), [("sites-regression", "time"), ("sites-logistic", "sex")])
def test_a_picture_of_sites_shows_an_indicator_against_its_reference(name: str, target: str) -> None:
    job = find(name)
    own = settings_from(job.settings, {"site": "stage"}, name)
    found = job.reference(job.read(trial(target, "age", "arm", "stage"), own), own)
    axes = {one.name: one.axis for one in found.estimates() if one.axis is not None}
    assert axes["arm=both"] == {"unit": axes["arm=both"]["unit"], "scale": 1.0, "centre": 0.0}
    assert axes["arm=both"]["unit"].endswith("category against its reference")
    assert "plausible sd" in axes["age"]["unit"]


def test_a_table_shows_every_category_and_shares_add_up_to_one() -> None:
    summary, _ = learned("describe", trial("stage", "sex", "age"))
    cells, rows = summary["cells"], rows_of(summary)  # type: ignore[arg-type]
    for column, labels in (("sex", SEXES), ("stage", STAGES)):
        own = [row for row in rows if cells[row["name"]]["column"] == column and row["unit"] == "share"]
        assert [cells[row["name"]]["figure"] for row in own] == [*labels]
        for key in ("estimate", "nonprivate"):
            assert sum(row[key] for row in own) == pytest.approx(1.0, abs=1e-9)  # type: ignore[literal-required]


def test_a_difference_of_shares_names_the_text() -> None:
    rows = trial("sex", "status")
    summary, _ = learned("compare", rows, group="status")
    assert rows_of(summary)[0]["name"] == "difference of sex = m, status=alive less status=dead"  # type: ignore[arg-type]


def test_a_trainers_file_lists_the_labels_among_the_bounds() -> None:
    table = {"target": "stage", "bounds": {"age": [18, 100], "arm": ARMS, "stage": STAGES}, "epsilon": 1,
             "delta": 1e-5, "clients": 50}  # fmt: skip
    task = task_of({**table, "name": "ordinal-regression"}, fresh_keys(2).federation)
    assert task.schema.features == ("age", "arm=drug", "arm=both")
    assert task.table["bounds"] == {"age": [18, 100], "arm": [*ARMS], "stage": [*STAGES]}
    grouped = task_of({**table, "name": "describe", "group": "arm"}, fresh_keys(2).federation)
    assert grouped.own.columns(grouped.schema).labels == ("arm=placebo", "arm=drug", "arm=both")


def test_bounds_of_a_column_of_texts_are_its_labels() -> None:
    schema = Schema(("age", "arm", "sex=m"), "stage", BOUNDS)
    assert schema.bounds["arm"] == Interval.of_labels("arm", ARMS)
    assert (schema.bounds["arm"].lower, schema.bounds["arm"].upper) == (0, 2)
    assert schema.bounds["sex=m"] == Interval(0, 1, "an indicator")
    assert schema.categories == {"arm": ARMS, "stage": STAGES}
    assert schema.with_indicators().features == ("age", "arm=drug", "arm=both", "sex=m")
    assert schema.with_indicators(codes=("arm",)) == schema
    assert as_interval("arm", ["placebo", "drug"]).text(1) == "drug"
    assert Interval(1, 3).level("grade", 2) == "grade 2"


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        (["placebo"], "expected two numbers"), (["a", "a"], "1 of them"), (["a", ""], "expected a printable text"),
        (["a", 1], "expected two numbers"), (["ä", "a\u0308"], "1 of them"),
    ],
)  # fmt: skip
def test_what_is_neither_numbers_nor_labels_is_refused(ends: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        as_interval("arm", ends)


def test_labels_on_a_command_line_have_an_option_of_their_own() -> None:
    """A mistyped number must not become a label."""
    with pytest.raises(DataError, match="--categories arm=placebo,drug"):
        parse_bounds("age=0:120,arm=placebo:drug")
    with pytest.raises(DataError, match="found '0:12o', expected two numbers"):
        parse_bounds("age=0:12o")


@pytest.mark.parametrize("labels", [("1", "2"), ("3", "1", "2"), ("0", "1", "2", "3+"), ("nan", "yes")])
def test_labels_may_look_like_numbers(labels: tuple[str, ...]) -> None:
    """Grades and numbers of children do; a client's file lists them as texts, too."""
    assert as_interval("children", labels) == Interval.of_labels("children", labels)
    assert as_interval("children", [*labels]).upper == len(labels) - 1


@pytest.mark.parametrize("name", ["regression", "logistic", "poisson-regression", "sites-logistic", "ldp-sgd"])
def test_a_regression_of_numbers_refuses_three_texts_as_numbers(name: str) -> None:
    """The codes of drug, placebo and both have no sizes; two classes are not three."""
    rows, job = trial("arm", "age", "sex"), find(name)
    own = settings_from(job.settings, {}, name)
    with pytest.raises(DataError, match=f"'arm' has 3 texts, and job '{name}' predicts a number or one of two texts"):
        job.read(rows, own)
    assert job.read(replace(rows.schema, target="arm=both"), own).features == ("age", "sex=m")
    assert find("multinomial-regression").read(rows.schema, own).target == "arm"


def test_regressions_over_sites_take_indicators_and_synthetic_rows_take_texts() -> None:
    """A code of three arms would be a number with one slope; two indicators of one column would both be 1 in a row."""
    schema = trial("sex", "age", "arm", "stage").schema
    sites, rows = find("sites-logistic"), find("synthetic")
    seen = sites.read(schema, settings_from(sites.settings, {"site": "arm"}, "sites-logistic"))
    assert seen.features == ("age", "arm", "stage=II", "stage=III"), "sites are no feature"
    assert rows.read(schema, settings_from(rows.settings, {}, "synthetic")) == schema


def test_a_picture_has_a_category_n_and_whole_warnings(tmp_path: Path) -> None:
    """As of y and n; what counts values is named n, too, and has no place in a picture."""
    schema = Schema((), "smoker", {"smoker": ("n", "y")}, alone=True)
    rows = Problem("made", schema, np.empty((CLIENTS, 0)), np.arange(CLIENTS) % 2.0)
    summary, _ = learned("describe", rows)
    summary["warnings"] = ["an end that is far away, " * 12 + "and is seen"]
    path = tmp_path / "picture.svg"
    with drawing_texts() as texts:
        plot_estimates(summary, path, title="Columns", private=True)  # type: ignore[arg-type]
    assert {"n", "y"} <= {*texts}
    (warning,) = (place for text, place in texts.items() if text.startswith("Warning:"))
    assert 0 <= warning.x0 < warning.x1 <= 1, "in widths of the picture"


@contextmanager
def drawing_texts() -> Iterator[dict[str, Any]]:
    """Yield the texts of the figures drawn within the block, with their places in widths of the figure."""
    found: dict[str, Any] = {}

    def keep(figure: Figure, *args: Any, **kwargs: Any) -> None:
        figure.canvas.draw()
        for one in figure.findobj(Text):
            if one.get_text():
                found[one.get_text()] = one.get_window_extent().transformed(figure.transFigure.inverted())

    with patch.object(Figure, "savefig", keep):
        yield found


# --- hospitals with other lists ---------------------------------------------------------------------------------------


class Hospitals(TestFederation):
    """Clients with tables of texts, a row each; the lists of the last `swapped` are in another order."""

    def __init__(self, rows: Problem, clients: int, swapped: int, computes: int = 2) -> None:
        policy = Policy(
            clients_min=1, honest_min=1, epsilon_per_round_max=50, epsilon_per_period_max=90, delta_max=1e-3,
            rows_of_many=True,
        )  # fmt: skip
        super().__init__(clients, computes, policy=policy)
        frame, listed = frame_of(rows)[[*rows.schema.columns]].astype(object), rows.schema.categories
        self.swapped = [*self.clients[clients - swapped :]]
        self._tables = [
            Table(
                rows.schema.columns,
                frame.iloc[place : place + 1].to_numpy(),
                categories={
                    name: labels[::-1] if client in self.swapped else labels for name, labels in listed.items()
                },
            )
            for place, client in enumerate(self.clients)
        ]

    def client(self, index: int, records: Iterable[tuple[str, bytes, bytes]] = ()) -> Client:
        table = self._tables[index]
        return Client(
            self.client_identities[index],
            self.certificate(index),
            self.federation,
            columns=table.columns,
            rows=table.rows,
            policy=self.policy,
            **self._common(records, f"client{index}"),
        )


HOSPITALS = 12


def first_round(name: str, swapped: int, kind: type[Kind]) -> tuple[Network, Hospitals, list[str]]:
    """A job's first round over the production actors of hospitals, in virtual time, and the labelled columns in it."""
    rows, settings, _ = CASES[name]
    job, budget = find(name), Budget(20.0, 1e-5)
    hospitals = Hospitals(rows, HOSPITALS, swapped, 2 if kind is SecureSum else 0)
    tolerate = HOSPITALS // 2 if kind is SecureSum else 0
    own = settings_from(job.settings, settings, name)
    schema, rng = job.read(rows.schema, own), np.random.default_rng(2)
    known = Conditions(HOSPITALS, tolerate, budget.mu, rng, kind=kind, epsilon=20.0, weights=best_weights)
    terms = JobTerms(
        epsilon=budget.epsilon, delta=budget.delta, clients=HOSPITALS, computes=hospitals.computes, tolerate=tolerate
    )
    network, opened = hospitals.network(), terms.open(next(job.make(schema, own, known)), bytes(16))
    network.command(hospitals.trainer_identity.id, opened)
    network.advance(network.now_ms + 600_000)
    names = [column.split(" in {")[0] for column in opened.parameters["columns"]]
    return network, hospitals, [column for column in names if column in rows.schema.categories]


@pytest.mark.parametrize("name", CASES)
def test_a_hospital_with_another_order_of_labels_declines_and_says_so(name: str) -> None:
    """Its codes would swap arms. Indicators mean the same in any order, so a round that asks for no code has all."""
    network, hospitals, labelled = first_round(name, 5, find(name).kinds[0])
    (completed,) = network.reported(RoundCompleted)
    declined: list[Any] = network.reported(Declined, hospitals.trainer_identity.id)
    assert completed.aggregate.contributors == HOSPITALS - 5 * bool(labelled)  # type: ignore[attr-defined]
    assert {one.client for one in declined} == ({*hospitals.swapped} if labelled else set())
    for one in declined:
        assert one.reason == "columns"
        assert one.found == f"column {labelled[0]!r} with the categories {', '.join(BOUNDS[labelled[0]])}"
        assert one.expected == f"{', '.join(BOUNDS[labelled[0]][::-1])}, in the order of this client's list"


def test_a_round_that_all_decline_names_both_orders() -> None:
    network, hospitals, _ = first_round("compare", HOSPITALS, NodeRelease)
    (failed,) = network.reported(RoundFailed, hospitals.trainer_identity.id)
    found = "columns: found column 'stage' with the categories I, II, III; accepts III, II, I, in the order of"
    assert f"12 declined ({found} this client's list)" in failed.reason  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", NAMES)
def test_every_job_asks_for_codes_by_their_labels(name: str) -> None:
    """Each column of the registry's own example has two labels; no request calls one by its name alone."""
    setting = setting_of(name, 24)
    bounds = {column: Interval.of_labels(column, ("no", "yes")) for column in setting.data.schema.columns}
    data = setting.data.bounded(bounds)
    request = next(setting.job.make(data.schema, setting.own, setting.known))
    assert request.parameters["columns"]
    assert {*request.parameters["columns"]} <= {f"{column} in {{no, yes}}" for column in bounds}


def test_what_a_policy_says_of_a_column_holds_for_its_codes() -> None:
    policy = Policy(bounds={"arm": (0.0, 1.0)})
    columns: dict[str, Any] = {"columns": ("arm in {placebo, drug, both}",), "edges": (-0.5, 0.5, 1.5, 2.5)}
    refusal = policy.check_bounds(resolve("histogram", columns))
    assert refusal is not None
    assert (refusal.reason, refusal.expected) == ("bounds", "arm within 0 to 1")


def test_an_aggregate_of_labelled_columns_is_told_by_plain_names() -> None:
    rows = trial("sex", "arm", "age").with_indicators()
    terms = JobTerms(epsilon=20.0, delta=1e-5, clients=CLIENTS, tolerate=20, computes=NODES)
    recorded = RecordedRounds(IdealSwarm(rows.rows, rows.schema.columns, terms, random=np.random.default_rng(3).bytes))
    PrivateLogisticRegression(schema=rows.schema).fit(recorded)
    aggregate = recorded.results[-1][1]
    assert aggregate.parameters["columns"] == ["arm=drug", "arm=both", "age", "sex in {f, m}"]
    assert named(aggregate).parameters["columns"] == ["arm=drug", "arm=both", "age", "sex"]
    again = PrivateLogisticRegression(schema=rows.schema).fit([one for _, one in recorded.results][-1])
    assert again.fit_.predictor.names[1:] == ("arm=drug", "arm=both", "age")
    other = replace(rows.schema, bounds={**rows.schema.bounds, "sex": Interval.of_labels("sex", SEXES[::-1])})
    with pytest.raises(DataError, match=r"has the codes 'sex in \{f, m\}', and the schema has 'sex in \{m, f\}'"):
        PrivateLogisticRegression(schema=other).fit(aggregate)


# --- estimators -------------------------------------------------------------------------------------------------------


def frame_of(rows: Problem) -> pd.DataFrame:
    """The same rows with their texts, as people have them."""
    columns = dict(zip(rows.schema.columns, rows.rows.T, strict=True))
    texts = {name: [BOUNDS[name][int(code)] for code in columns[name]] for name in rows.schema.categories}
    return pd.DataFrame({**columns, **texts})


@pytest.mark.parametrize("kind", [PrivateLogisticRegression, PrivateOrdinalRegression])
def test_an_estimator_takes_a_data_frame_with_texts(kind: type[Any]) -> None:
    """Its fit is that of the codes' indicators, and it predicts texts; grades keep the order of their list."""
    target = "sex" if kind is PrivateLogisticRegression else "stage"
    rows = trial(target, "age", "arm")
    frame, names = frame_of(rows), ("age", "arm=drug", "arm=both")
    found = kind(schema=rows.schema).fit(frame[["age", "arm"]], frame[target])
    plain = kind().fit(rows.with_indicators().X, rows.y)
    np.testing.assert_allclose(found.coef_, plain.coef_)
    assert tuple(found.classes_) == BOUNDS[target]
    assert tuple(found.feature_names_in_) == names
    predicted = found.predict(frame[["age", "arm"]])
    codes = plain.predict(rows.with_indicators().X).astype(int)
    assert predicted.tolist() == [BOUNDS[target][code] for code in codes]
    with pytest.raises(DataError, match="row 0 has none of the labels of 'arm', which are placebo, drug, both"):
        found.predict(pd.DataFrame({"age": [60.0], "arm": ["aspirin"]}))


def test_an_estimator_over_rounds_asks_for_indicators() -> None:
    """A code of three categories would be a number with one slope."""
    rows = trial("age", "arm", "sex")
    terms = JobTerms(epsilon=20.0, delta=1e-5, clients=CLIENTS, tolerate=20, computes=NODES)
    seen = rows.with_indicators()
    swarm = IdealSwarm(seen.rows, seen.schema.columns, terms, random=np.random.default_rng(3).bytes)
    assert tuple(PrivateLinearRegression(schema=rows.schema).fit(swarm).feature_names_in_) == seen.schema.features


def test_a_column_of_texts_is_encoded_once_for_all_of_its_indicators() -> None:
    """A frame's texts were encoded for each indicator, those of a client's table twice."""
    read: list[str] = []

    class Word(str):
        __slots__ = ()

        def strip(self, *signs: Any) -> str:
            read.append(str(self))
            return super().strip(*signs)

    rows = trial("age", "sex", "stage")
    cells = [[*map(Word, row)] for row in frame_of(rows)[["sex", "stage"]].to_numpy()]
    PrivateLinearRegression(schema=rows.schema)._coded(pd.DataFrame(cells, columns=["sex", "stage"], dtype=object))
    assert len(read) == 2 * CLIENTS
    read.clear()
    Table(("sex", "stage"), cells, categories={"sex": SEXES, "stage": STAGES})
    assert len(read) == 2 * CLIENTS


NUMBERS = {
    **{name: {} for name in ("exponential", "gaussian", "poisson", "ldp-mean", "ldp-quantiles", "quantiles")},
    **{name: {"event": "status"} for name in ("survival", "survival-regression")},
    "ldp-histogram": {"bins": 3},
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("target", ["arm", "sex"])
def test_a_job_of_numbers_refuses_a_column_of_texts(name: str, target: str) -> None:
    """It printed the mean of codes: placebo 0, drug 1 and both 2 have the mean 0.98. Two texts have none, either."""
    schema, job = trial(target, "age", "status").schema, find(name)
    own = settings_from(job.settings, NUMBERS[name], name)
    texts = ", ".join(BOUNDS[target])
    with pytest.raises(DataError, match=f"column '{target}' has the texts {texts}, and job '{name}' takes numbers"):
        job.read(schema, own)
    for numbers in (f"{target}=m" if target == "sex" else "arm=both", "age"):  # an indicator is a number
        assert job.read(Schema(("status",), numbers, BOUNDS), own).target == numbers


def test_every_job_names_the_texts_of_its_target_or_refuses_them() -> None:
    """A job of the registry that is in neither list above is a regression, which `read` looks after."""
    rest = {name for name in NAMES if name not in {**CASES, **NUMBERS}}
    assert {name for name in rest if not find(name).regresses} == {"synthetic"}


def test_a_duration_of_texts_is_refused_by_estimators_too() -> None:
    rows = trial("stage", "status", "age")
    for kind in (PrivateKaplanMeier, PrivateProportionalHazards):
        with pytest.raises(DataError, match="column 'stage' has the texts I, II, III"):
            kind(schema=rows.schema, event="status").fit(frame_of(rows), np.ones(CLIENTS))
