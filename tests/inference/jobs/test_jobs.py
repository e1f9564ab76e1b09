"""Learning jobs by name: their settings, their summary of a result, and that the same summary has the same picture.

Rounds are those of the ideal functionality; its noise keys come from a seeded generator, so nothing here is by chance.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from ideal_jobs import NODES, conditions, drawn, learn, learn_from, made, near, problem
from long_cases import mostly_long
from scipy.special import expit

from dca_proto.cli.job_settings import check_plan, task_of
from dca_proto.errors import UsageError
from dca_proto.jobs.job import JobTerms
from dca_proto.privacy.budget import Budget
from dca_proto.protocol.wire.kinds import NodeRelease, SecureSum
from emulator.ideal import IdealSwarm
from emulator.swarm.live import fresh_keys
from inference.bounds import Interval
from inference.datasets import from_csv
from inference.errors import DataError
from inference.jobs import FAMILIES, NAMES, find
from inference.jobs.base import Conditions, Stage, plan_words
from inference.jobs.estimates import Estimate, normal, rows_of, sampling_words
from inference.jobs.picture import plot_estimates
from inference.jobs.settings import described, parse_words, settings_from
from inference.models.coefficients import Coefficients
from inference.models.conjugate import FAMILIES as MODELS
from inference.models.linear.nodes import methods as nodes
from inference.problem import split
from inference.variational.progress import Iteration


@pytest.mark.parametrize("settings", [{}, {"repair": "absolute", "std_share": 0.2}])
def test_the_fields_of_a_regression_summary(settings: dict[str, Any]) -> None:
    summary = learn("regression", "number", **settings)
    assert [(one["name"], one["unit"]) for one in summary["coefficients"]] == [
        ("a", "kg per cm"),
        ("b", "kg per unit of b"),
    ]
    assert set(summary["intercept"]) == {
        f"{kind}{what}" for kind in ("estimate", "nonprivate") for what in ("", "_sd")
    } | {"interval_95", "nonprivate_interval_95", "prior_interval_95", "contraction"}
    assert all(0.9 < one["contraction"] < 1 for one in rows_of(summary))
    assert set(summary["test"]) == {"rows", "unit", "rmse_private", "rmse_nonprivate", "rmse_zero"}
    assert summary["repair"] == settings.get("repair", "noise-aware")
    assert summary["test"]["rmse_private"] < summary["test"]["rmse_zero"]


def test_regression_within_its_bounds_takes_one_round() -> None:
    assert near(learn("regression-bounded", "number"))
    plan = find("regression-bounded").plan(problem("number").schema, None, conditions(Budget(1, 1e-5)))
    assert plan_words(plan) == "in one round: all of the budget on the regression"


def test_regression_mcmc_learns_from_data_nodes_and_from_one_sum() -> None:
    rows = split(problem("number"), 100, 0)[0].rows
    for kind, parts in ((NodeRelease, 3), (SecureSum, 300)):
        result, summary, _ = learn_from(np.array_split(rows, parts), kind=kind, method="fast")
        assert near(summary)
        assert (summary.get("sampling"), summary.get("repair")) == (None, None)
        assert result.predictor.contributors == 300


@pytest.mark.long
@pytest.mark.skipif(find_spec("jax") is None or find_spec("arviz") is None, reason="without the extra samplers")
def test_regression_mcmc_reports_its_effective_draws_and_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "sample", drawn)
    rows = split(problem("number"), 100, 0)[0].rows
    result, summary, progress = learn_from(np.array_split(rows, 2), warmup=40, draws=20, require_mixed=False)
    assert progress == [(60, 60)]
    sampling = summary["sampling"]
    assert (sampling["chains"], sampling["draws"], sampling["divergences"]) == (2, 20, 0)
    assert sampling["ess_bulk_min"] < 100
    assert any("few effective draws" in one for one in summary["warnings"])
    text = sampling_words(sampling)
    assert "2 chains of 20 draws by method NUTS; R-hat at most" in text
    assert text.endswith("effective draws; accepted 90 % of proposals; 1.5 s")
    data = result.inference_data(np.random.default_rng(0))
    assert data.warmup_posterior["coefficients"].shape == (2, 40, 2)
    flat = data.posterior["coefficients"].values.reshape(40, 2)
    for place, slope in enumerate(summary["coefficients"]):
        assert slope["interval_95"] == pytest.approx(np.percentile(flat[:, place], [2.5, 97.5]))
    assert summary["intercept"]["interval_95"] == pytest.approx(
        np.percentile(data.posterior["intercept"].values, [2.5, 97.5])
    )
    picture = plot_estimates(summary, tmp_path / "c.svg", title="Effect on y", private=True)
    assert picture.stat().st_size > 1000


def test_data_nodes_are_named_in_a_trainers_job_or_follow_from_its_federation() -> None:
    table = {
        "name": "regression-mcmc", "method": "fast", "target": "y", "bounds": {"a": [0, 1], "y": [0, 1]},
        "epsilon": 8, "delta": 1e-5, "clients": 1,
    }  # fmt: skip
    alone, together = fresh_keys(0).federation, fresh_keys(2).federation
    for federation, more in ((alone, {}), (together, {"kind": "node-release"})):
        task = task_of({**table, **more}, federation)
        assert (task.kind, task.terms.computes, task.identity["kind"]) == (NodeRelease, (), "node-release")
    summed = task_of({**table, "clients": 5}, together)
    assert (summed.kind, len(summed.terms.computes)) == (SecureSum, 2)
    assert summed.identity["kind"] == "secure-sum"
    with pytest.raises(DataError, match="these learn from releases of data nodes: regression-mcmc"):
        task_of({**table, "name": "gaussian", "method": "conjugate"}, alone)
    with pytest.raises(UsageError, match="leave out tolerate, colluders and computes"):
        task_of({**table, "clients": 9, "tolerate": 2}, alone)
    with pytest.raises(UsageError, match="found 0 Compute nodes"):
        task_of({**table, "clients": 5, "kind": "secure-sum"}, alone)


def test_logistic_is_scored_beside_the_model_without_privacy_and_a_constant() -> None:
    iterations: list[Iteration] = []
    summary = learn("logistic", "class", iterations, epsilon=20.0, epochs=12)
    auc, likelihood = summary["test"]["scores"]
    assert (auc["name"], auc["constant"], likelihood["name"]) == ("AUC", 0.5, "log likelihood")
    assert auc["nonprivate"] - 0.05 < auc["private"] <= 1
    assert likelihood["constant"] < likelihood["private"]
    assert [one.number for one in iterations] == list(range(1, 13))
    assert {(one.total, one.name) for one in iterations} == {(12, "held-out AUC")}
    assert summary["coefficients"][0]["unit"] == "log odds per cm"
    assert summary["coefficients"][0]["prior_interval_95"] is not None


def test_logistic_reports_its_method_and_why() -> None:
    iterations: list[Iteration] = []
    whole = learn("logistic", "class", iterations, epsilon=20.0, method="one-sum")
    assert not iterations
    assert "one sum" in whole["remarks"]["method"]
    auc, _ = whole["test"]["scores"]
    assert auc["nonprivate"] - 0.05 < auc["private"] <= 1
    chosen = learn("logistic", "class", iterations, epsilon=0.3)
    assert iterations
    assert "the noise in the features' covariances" in chosen["warnings"][0]
    plans = [
        plan_words(
            find("logistic").plan(problem("class").schema, find("logistic").settings(), conditions(Budget(e, 1e-5)))
        )
        for e in (20.0, 0.3)
    ]
    assert plans[0] == (
        "over 5 rounds: 10 % of the budget on scales, 11 % on scores, round 1, 11 % on scores, round 2, "
        "22 % on scores, round 3, 45 % on scores, round 4"
    )
    assert plans[1].endswith("90 % on about 10 iterations")


def test_logistic_follows_its_plan() -> None:
    job, budget = find("logistic"), Budget(8, 1e-5)
    own = settings_from(job.settings, {"epochs": 3, "batch": 60}, "logistic")
    plan = job.plan(problem("class").schema, own, conditions(budget))
    assert [(stage.rounds, stage.batch, stage.uses) for stage in plan] == [(1, 0, None), (1, 0, None), (15, 60, 3)]
    assert sum(stage.total for stage in plan) == pytest.approx(1)
    assert job.batch(own) == 60
    text = "over 17 rounds: 10 % of the budget on scales, 10 % on a first fit, 80 % on 15 iterations of 60 clients each"
    assert plan_words(plan) == text
    iterations: list[Iteration] = []
    learn("logistic", "class", iterations, epochs=3, batch=60)
    assert len(iterations) == 15


def test_the_logistic_reference_is_the_mode_of_the_posterior() -> None:
    train = problem("class")
    found = find("logistic").reference(train, find("logistic").settings(prior_sd=1e4))
    X = np.column_stack([np.ones(len(train.y)), train.X])
    score = X.T @ (train.y - expit(found.linear_predictor(train.X)[0]))
    assert np.abs(score).max() < 1e-4, "the likelihood's gradient is zero there, the prior being flat"
    assert isinstance(found, Coefficients)
    assert np.linalg.eigvalsh(found.cov).min() > 0


def test_logistic_refuses_a_target_of_many_values() -> None:
    with pytest.raises(
        DataError, match=r"'y' has \d+ values; job 'logistic' needs the two that are its bounds, -6 and 6"
    ):
        find("logistic").reference(problem("number"), find("logistic").settings())


KINDS = {"gaussian": "number", "bernoulli": "class", "categorical": "count", "poisson": "count", "exponential": "time"}


@pytest.mark.parametrize("name", mostly_long(FAMILIES, lambda name: name != "categorical"))
def test_families_estimate_the_target_or_another_column(name: str) -> None:
    summary = learn(name, KINDS[name])
    assert near(summary)
    assert summary["test"] is None
    names = [one["name"] for one in summary["estimates"]]
    assert (
        names
        == {
            "gaussian": ["mean of y", "variance of y"],
            "bernoulli": ["share of ones of y"],
            "categorical": [f"share of y = {k}" for k in range(10)],
            "poisson": ["rate of y"],
            "exponential": ["rate of y"],
        }[name]
    )


def test_the_jobs_of_families_are_the_models() -> None:
    assert set(FAMILIES) == set(MODELS)
    assert all(model.name == name and MODELS[name].learns for name, model in MODELS.items())


def test_another_prior_of_a_family_is_free_and_shows() -> None:
    """Its settings are those that may change after the round; a strong prior dominates the result."""
    weak, strong = learn("poisson", "count"), learn("poisson", "count", prior_a=1e6, prior_b=1e5)
    assert weak["estimates"][0]["estimate"] == pytest.approx(2, abs=0.3)
    assert strong["estimates"][0]["estimate"] == pytest.approx(10, abs=0.1)
    assert set(find("gaussian").changeable) == {"method", "prior_m", "prior_kappa", "prior_a", "prior_b"}
    with pytest.raises(DataError, match="prior_c"):
        learn("poisson", "count", prior_c=1.0)
    with pytest.raises(DataError, match="'prior_a' is -1"):
        learn("poisson", "count", prior_a=-1.0)


def test_warnings_about_a_family_are_in_the_summary() -> None:
    assert learn("poisson", "count")["warnings"] == []
    narrow = problem("number")
    bounds = {**narrow.schema.bounds, "y": Interval(-1, 1)}
    job, terms = find("gaussian"), JobTerms(epsilon=8, delta=1e-5, clients=400, tolerate=0, computes=NODES)
    swarm = IdealSwarm(narrow.rows, narrow.schema.columns, terms, random=np.random.default_rng(3).bytes)
    schema = replace(narrow.schema, bounds=bounds)
    result = made(job, schema, job.settings(), conditions(terms.budget), swarm)
    warning = job.summarise(result, None, None, None, schema)["warnings"][-1]
    assert "of the values of y outside the bounds" in warning


def test_a_family_takes_another_column_than_the_target() -> None:
    summary = learn("gaussian", "number", column="a", method="conjugate")
    assert [(one["name"], one["unit"]) for one in summary["estimates"]] == [
        ("mean of a", "cm"),
        ("variance of a", "(cm)²"),
    ]
    with pytest.raises(DataError, match="column 'c' is not in the data"):
        learn("gaussian", "number", column="c")


def test_a_mixture_is_shown_by_component_beside_its_nearest_without_privacy() -> None:
    iterations: list[Iteration] = []
    summary = learn("mixture", "pairs", iterations, epsilon=30.0, components=2, epochs=12)
    names = ["weight", "mean of a", "sd of a", "mean of b", "sd of b"]
    assert [one["name"] for one in summary["estimates"]] == [f"{k}: {name}" for k in (1, 2) for name in names]
    first, second = (dict(zip(names, summary["estimates"][k : k + 5], strict=True)) for k in (0, 5))
    assert first["weight"]["estimate"] + second["weight"]["estimate"] == pytest.approx(1)
    assert first["mean of a"]["estimate"] * second["mean of a"]["estimate"] < 0, "one on each side"
    for one in (first, second):
        assert abs(one["mean of a"]["estimate"] - one["mean of a"]["nonprivate"]) < 1
    (density,) = summary["test"]["scores"]
    assert density["constant"] < density["private"] < density["nonprivate"] + 0.05
    assert iterations[-1].name == "held-out log predictive density"


def test_a_column_by_itself_is_described_without_any_other(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["t", *map(str, np.random.default_rng(4).normal(21, 1, size=50))]) + "\n")
    bounds = {"t": Interval(10, 40)}
    with pytest.raises(DataError, match="no features to predict 't' from"):
        from_csv(path, "t", bounds)
    found = from_csv(path, "t", bounds, alone=True)
    assert (found.schema.columns, found.rows.shape) == (("t",), (50, 1))
    job = find("gaussian")
    terms = JobTerms(epsilon=50, delta=1e-5, clients=50, tolerate=0, computes=NODES)
    swarm = IdealSwarm(found.rows, found.schema.columns, terms, random=np.random.default_rng(5).bytes)
    result = made(job, found.schema, job.settings(), conditions(terms.budget), swarm)
    mean, _ = rows_of(job.summarise(result, None, None, None, found.schema))
    assert abs(mean["estimate"] - 21) < 6 * mean["estimate_sd"]


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_of_every_job_is_described_and_has_a_default(name: str) -> None:
    job = find(name)
    assert job.name == name
    assert settings_from(job.settings, {}, name) == job.settings()
    assert all(meaning.endswith(".") for _, _, meaning in described(job.settings))


WRONG = [
    ("regression", {"repare": "absolute"}, r"setting 'repare' is not in job 'regression' \(did you mean 'repair'\?\)"),
    ("regression", {"repair": "absolut"}, "did you mean 'absolute'"),
    ("regression", {"repair": 3}, "setting 'repair' is 3, expected a text"),
    ("regression", {"std_share": 1}, "expected a number between 0 and 1"),
    ("regression", {"std_share": math.nan}, "expected a finite number"),
    ("regression", {"prior_precision": -1.0}, "above 0"),
    ("logistic", {"epochs": 1.5}, "expected a whole number"),
    ("logistic", {"epochs": 0}, "'epochs' is 0"),
    ("logistic", {"prior_sd": -1}, "above 0"),
    ("gaussian", {"method": "gibs"}, "known: noise-aware, conjugate"),
    ("synthetic", {"codes": ["sex", 3]}, r"setting 'codes' lists 3, expected texts without commas"),
    ("synthetic", {"codes": ["a,b"]}, r"setting 'codes' lists 'a,b', expected texts without commas"),
    ("regression", {"repair": ["absolute"]}, "expected a text"),
    ("regression", {"codes": ["event"]}, "setting 'codes' is not in job 'regression'"),
    ("regression-mcmc", {"method": "normalx"}, "did you mean 'normal'"),
    ("regression-mcmc", {"chains": 0}, "setting 'chains' is 0, expected a whole number, at least 1"),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_of_names_by_commas_takes_a_list_too(name: str) -> None:
    kind = find(name).settings
    for entry in fields(kind):
        by_commas = any(
            words in str(entry.metadata.get("meaning")) for words in ("as in sex,", "as in age", "by commas")
        )
        assert entry.metadata.get("names", False) is by_commas, "and no other takes one"
        if by_commas:
            given = ["a:b", "c:d"] if entry.name == "pairs" else ["event", "response"]
            assert getattr(settings_from(kind, {entry.name: given}, name), entry.name) == ",".join(given)


@pytest.mark.parametrize(("name", "table", "message"), WRONG)
def test_wrong_settings_are_refused_with_a_reason(name: str, table: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        settings_from(find(name).settings, table, name)


def test_set_options_are_typed_values() -> None:
    assert parse_words(["a=1", "b=0.5", "c=true", "d=noise-aware", "e=null"]) == {
        "a": 1, "b": 0.5, "c": True, "d": "noise-aware", "e": None,
    }  # fmt: skip
    for wrong in (["a"], ["=1"], ["a=1", "a=2"]):
        with pytest.raises(DataError, match="expected key=value, each key once"):
            parse_words(wrong)


def test_an_unknown_job_is_refused_with_the_nearest() -> None:
    with pytest.raises(DataError, match=r"job 'logistics' .*did you mean 'logistic'"):
        find("logistics")


def test_a_plan_as_text_names_the_shares() -> None:
    stages = [Stage(1, 0.1, "on scales"), Stage(1, 0.9, "on the regression")]
    assert plan_words(stages) == "over 2 rounds: 10 % of the budget on scales, 90 % on the regression"


@pytest.mark.parametrize(("tolerate", "colluders", "message"), [
    (30, 0, None),  # more than the batch has; its own T is 6
    (30, 25, "a batch of 20 clients, of which 26 may drop out, leaves no honest noise"),
    (93, 0, "leaves no honest noise"),
])  # fmt: skip
def test_a_plan_is_checked_with_what_a_batch_tolerates(tolerate: int, colluders: int, message: str | None) -> None:
    table = {
        "name": "logistic", "batch": 20, "features": ["a"], "target": "y", "bounds": {"a": [0, 1], "y": [0, 1]},
        "epsilon": 8, "delta": 1e-5, "clients": 100, "tolerate": tolerate, "colluders": colluders,
    }  # fmt: skip
    federation = fresh_keys(2).federation
    if message is not None:
        with pytest.raises(UsageError, match=message):
            task_of(table, federation)
        return
    task = task_of(table, federation)
    known = Conditions(clients=100, tolerate=tolerate, mu=task.terms.budget.mu, rng=np.random.default_rng(1))
    stages = task.job.plan(task.schema, task.own, known)
    assert stages[1].batch == 20
    check_plan(task.job.make(task.schema, task.own, known), stages, task.terms, "the budget")


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_a_picture_marks_figures_that_are_not_private_or_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")  # text stays text
    draw = partial(plot_estimates, path=tmp_path / "c.svg", title="Effect on y", caption="ε = 2")
    both = {"coefficients": [Estimate("a", "kg per cm", normal(1.0, 0.1)).row(normal(1.1, 0.05))]}
    text = draw(both, private=True).read_text()
    assert "not private" not in text
    assert all(word in text for word in ("without privacy", "kg per cm", "ε = 2", "Effect on y"))
    assert "not private" in draw(both, private=False).read_text()
    alone = {"estimates": [Estimate("mean of a", "", normal(1.0, 0.1)).row(None)]}
    assert "without privacy" not in draw(alone, private=True).read_text()


@pytest.mark.parametrize("name", ["poisson", "exponential"])
def test_a_law_of_one_parameter_says_what_its_sum_cannot_show(name: str) -> None:
    assert "job gaussian learns the mean of any column" in learn(name, "count")["remarks"]["assumed"]
    assert "remarks" not in learn("gaussian", "count")
