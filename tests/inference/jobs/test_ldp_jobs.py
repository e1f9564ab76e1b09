"""Jobs on reports: their requests, how they describe a posterior, and what they refuse before any round.

Reports are the ideal functionality's, by the real mechanisms from seeded keys. The sampler is replaced, so that nothing
is compiled here: posteriors have tests of their own, and each job a whole run in `test_swarm_reports`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats as st
from ideal_report_jobs import JOBS, LDP, N, clients_of, conditions, first_request, learn_job, problem, sampled, settings

from dca_proto.cli.job_settings import check_plan
from dca_proto.jobs.job import JobTerms
from dca_proto.privacy.budget import Budget
from dca_proto.privacy.cost import PrivacyCost, total
from dca_proto.privacy.mechanism import LOCAL_MECHANISMS, PURE_MECHANISMS
from dca_proto.protocol.wire.kinds import LdpReport
from dca_proto.statistics import resolve
from dca_proto.statistics.weights import best_regression_weights
from dca_proto.wording import digits
from inference.bounds import Interval
from inference.datasets import load
from inference.draws import Sampling
from inference.errors import DataError
from inference.jobs import NAMES, find, reports
from inference.jobs.estimates import interval_words, table_of
from inference.jobs.picture import plot_estimates
from inference.mcmc.run import Options, Sampled
from inference.models.column import histogram_job as ldp_histogram
from inference.models.glm.regression import PREDICTED_ROWS
from inference.problem import Problem
from inference.rounds import run

# --- in place of the sampler ------------------------------------------------------------------------------------------


@dataclass
class Drawn:
    """What the sampler was given last."""

    model: Any = None
    data: Any = None
    options: Any = None


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """Draws from nowhere, by the model's sites."""
    kept = Drawn()

    def sample(options: Options, model: Any, data: Any, *start: Any) -> Sampled:
        kept.model, kept.data, kept.options = model, data, options
        rng, shape = np.random.default_rng(options.seed), (options.chains, options.draws)
        kind, d = type(model).__name__, getattr(model, "features", 0)
        labelled = getattr(model, "logistic", False)
        sites = {
            "Histogram": lambda: {"shares": rng.dirichlet(np.ones(len(data["prior"]["concentration"])), shape)},
            "ClippedColumn": lambda: {
                "mean": rng.normal(1.0, 0.1, shape),
                "sd": rng.gamma(50.0, 0.02, shape),
                "rate": rng.gamma(100.0, 0.03, shape),
                "probability": rng.beta(50.0, 150.0, shape),
                "missing": rng.beta(1.0, 50.0, shape),
            },
        }.get(kind, lambda: regression_sites(rng, shape, d, linear=not labelled))()
        chains = np.zeros(options.chains)
        sampling = Sampling(chains.astype(int), chains + 0.9, chains.astype(int), chains + 0.5, 1.5)
        return Sampled(sites, sites if options.keep_warmup else {}, sampling)

    monkeypatch.setattr(Options, "sample", sample)
    return kept


def regression_sites(rng: np.random.Generator, shape: tuple[int, int], d: int, *, linear: bool) -> dict[str, Any]:
    found = {
        "theta": rng.normal([0.6, -0.6][:d], 0.05, (*shape, d)),
        "alpha": rng.normal(0.0, 0.05, shape),
        "feature_sd": rng.gamma(400.0, 0.25 / 400, (*shape, d)),
        "feature_mean": rng.normal(0.0, 0.01, (*shape, d)),
        "correlation_root": np.broadcast_to(np.eye(d), (*shape, d, d)),
    }
    return {**found, **({"residual_sd": rng.gamma(400.0, 0.05 / 400, shape)} if linear else {})}


# --- requests --------------------------------------------------------------------------------------------------------


def test_each_job_on_reports_names_its_mechanism_and_no_other_job_has_one() -> None:
    named = {name: find(name).mechanism(find(name).settings()) for name in NAMES}
    assert {name: one for name, one in named.items() if one} == {
        "ldp-histogram": "unary-encoding",
        "ldp-quantiles": "unary-encoding",
        "ldp-mean": "grid-laplace",
        "ldp-regression": "analytic-gaussian",
        "ldp-sgd": "analytic-gaussian",
    }
    other = settings("ldp-histogram", mechanism="randomised-response")
    assert JOBS["ldp-histogram"].mechanism(other) == "randomised-response"
    assert set(named.values()) <= {"", *LOCAL_MECHANISMS}


@pytest.mark.parametrize("name", LDP)
def test_every_round_is_possible_and_costs_each_client_its_budget_once(name: str) -> None:
    """At half of ε, too, a request follows the plan: one report of one row, with all of the budget."""
    data, job = problem(), JOBS[name]
    own, budget = job.settings(), Budget(2.0, 1e-5)
    stages = job.plan(data.schema, own, conditions())
    terms = JobTerms(epsilon=budget.epsilon, delta=budget.delta, clients=N, tolerate=0, computes=())
    check_plan(job.make(data.schema, own, conditions()), stages, terms, "the budget")
    request = first_request(name, data)
    assert (request.rows_max, request.kind.mechanism) == (1, job.mechanism(own))
    assert request.budget_share == 1.0
    assert [stage.total for stage in stages] == [1.0]
    opened = terms.open(request, bytes(16), tuple(bytes([i]) * 16 for i in range(request.batch)))
    pure = request.kind.mechanism in PURE_MECHANISMS
    assert (opened.epsilon, opened.delta) == (2.0, 0.0 if pure else 1e-5)
    assert opened.kind == LdpReport(request.kind.mechanism, request.batch or N)


@pytest.mark.parametrize(("given", "edges", "names"), [
    ({}, [-6, -4, -2, 0, 2, 4, 6], ["y < -4", "y -4 to -2", "y -2 to 0", "y 0 to 2", "y 2 to 4", "y ≥ 4"]),
    ({"bins": 2}, [-6, 0, 6], ["y < 0", "y ≥ 0"]),
    ({"edges": [-1, 0, 2.5]}, [-1, 0, 2.5], ["y < 0", "y ≥ 0"]),
    ({"edges": "-1,0,2.5,3"}, [-1, 0, 2.5, 3], ["y < 0", "y 0 to 2.5", "y ≥ 2.5"]),
    ({"values": 3}, [-0.5, 0.5, 1.5, 2.5], ["y = 0", "y = 1", "y = 2"]),
    ({"column": "a", "bins": 2}, [-4, 0, 4], ["a < 0", "a ≥ 0"]),
    ({"column": "a"}, [-4.5, -3.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5, 4.5], [f"a = {k}" for k in range(-4, 5)]),
])  # fmt: skip
def test_the_bins_of_a_histogram_are_public(given: dict[str, Any], edges: list[float], names: list[str]) -> None:
    """By default as many as whole numbers between the bounds, up to 16 apart, and else 6; y's are 12 apart, in kg."""
    data = problem()
    schema = data.schema
    if not given:  # not whole, so that they are cut into six
        schema = replace(schema, bounds={**schema.bounds, "y": Interval(-6 - 1e-12, 6)})
    request = next(JOBS["ldp-histogram"].make(schema, settings("ldp-histogram", **given), conditions()))
    assert request.parameters["edges"] == pytest.approx(edges)
    assert resolve(request.statistic, request.parameters).categories == len(names)
    column = request.parameters["columns"][0]
    read = [round(edge, 6) for edge in request.parameters["edges"]]
    assert list(ldp_histogram.labels(column, read, schema.bounds[column])) == names


def test_built_in_data_need_no_settings() -> None:
    for name, categories in (("diabetes", 6), ("breast-cancer", 2)):
        schema = load(name).schema
        assert len(ldp_histogram.edges_of(schema, settings("ldp-histogram"))) == categories + 1
        for job in ("ldp-histogram", "ldp-mean"):
            if job == "ldp-mean" or find_spec("numpyro"):
                next(JOBS[job].make(schema, settings(job), conditions()))


def test_a_mean_is_requested_within_the_given_bounds() -> None:
    request = first_request("ldp-mean", problem())
    box = {"columns": ["y"], "centre": [0.0], "scale": [6.0], "bound": [1.0]}
    assert request.parameters == {**box, "count_weight": 1.0}
    narrow = first_request("ldp-mean", problem(), column="a", lower=0, upper=2, family="exponential")
    box = {"columns": ["a"], "centre": [1.0], "scale": [1.0], "bound": [1.0]}
    assert narrow.parameters == {**box, "count_weight": 1.0}


@pytest.mark.parametrize("given", [{}, {"family": "logistic"}, {"radius": 1.2}])
def test_a_regression_is_requested_with_the_weights_of_least_error(given: dict[str, Any]) -> None:
    data = problem("class" if given.get("family") else "number")
    request = first_request("ldp-regression", data, **given)
    statistic = resolve("regression", request.parameters)
    assert tuple(request.parameters["weights"]) == best_regression_weights(statistic, 24)  # type: ignore[arg-type]
    assert request.parameters["target_square"] == (not given.get("family"))
    assert request.parameters.get("radius") == given.get("radius")


def test_rows_are_requested_in_place_of_products() -> None:
    request = first_request("ldp-regression", problem(), inputs=True)
    assert (request.statistic, request.parameters["columns"]) == ("sum", ["a", "b", "y"])


@pytest.mark.parametrize("given", [{}, {"family": "logistic"}, {"family": "logistic", "radius": 0.7}])
def test_the_count_of_complete_rows_costs_reports_of_rows_nothing(given: dict[str, Any]) -> None:
    """It is nearly the heaviest that is free; a target that is only counted adds less than a millionth."""
    request = first_request("ldp-regression", problem("class" if given else "number"), inputs=True, **given)
    plain = {**request.parameters, "count_weight": 0.0}
    counted, without = (resolve("sum", one) for one in (request.parameters, plain))
    assert counted.row_sensitivity(24).l2_squared == without.row_sensitivity(24).l2_squared
    assert 0.999 < counted.count_weight / without.free_weight(24) <= 1
    if given:
        features = {name: numbers[:2] for name, numbers in plain.items() if isinstance(numbers, list)}
        alone = resolve("sum", {**features, **{name: plain[name] for name in ("radius",) if name in plain}})
        assert counted.row_sensitivity(24).l2 == pytest.approx(alone.row_sensitivity(24).l2, rel=1e-9)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("epsilon", [0.1, 2.0, 20.0])
def test_features_and_labels_of_a_client_cost_it_its_budget_together(epsilon: float, share: float) -> None:
    """And hardly less: an account of just the budget lets both through, but not with a release of 0.25 % of μ² more."""
    data, budget = problem("class"), Budget(epsilon, 1e-5)
    terms = JobTerms(epsilon=budget.epsilon, delta=budget.delta, clients=N, tolerate=0, computes=())
    known = conditions(epsilon, mu=budget.mu)
    own = settings("ldp-regression", inputs=True, family="logistic", label_share=share)
    job = JOBS["ldp-regression"]
    assert sum(stage.total for stage in job.plan(data.schema, own, known)) == pytest.approx(1.0)
    asking = job.make(data.schema, own, known)
    features = next(asking)
    swarm = clients_of(data, epsilon)
    labels = asking.send(swarm.run_round(features))
    assert (features.statistic, features.parameters["columns"]) == ("sum", ["a", "b", "y"])
    assert features.parameters["bound"] == [1.0, 1.0, 1e-6]  # a row without a label is not complete
    assert (labels.statistic, labels.parameters["columns"]) == ("histogram", ["y"])
    assert len(labels.parameters["edges"]) == 3
    opened = [terms.open(each, bytes(16)) for each in (features, labels)]
    costs = [PrivacyCost.of(one.epsilon, one.delta) for one in opened]
    assert total(costs).within(epsilon, 1e-5)
    assert not total([*costs, PrivacyCost.of_mu(0.05 * budget.mu)]).within(epsilon, 1e-5)
    assert costs[1].converted / budget.mu**2 == pytest.approx(share, rel=1e-5)


# --- refusals before any round ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "given", "message"), [
    ("ldp-histogram", {"column": "c"}, "'c' is not in the data"),
    ("ldp-histogram", {"values": 1}, "setting 'values' is 1, expected 2 to 65536"),
    ("ldp-histogram", {"bins": 70000}, "setting 'bins' is 70000, expected 2 to 65536"),
    ("ldp-histogram", {"bins": 3, "edges": [0, 1, 2]}, "settings 'edges' and 'bins' exclude each other"),
    ("ldp-histogram", {"edges": [0, 1]}, "setting 'edges' has 2 numbers, expected at least 3"),
    ("ldp-histogram", {"edges": [0, 2, 2]}, "setting 'edges' does not increase"),
    ("ldp-histogram", {"edges": "0:1:2"}, "setting 'edges' is '0:1:2', expected a list of numbers, such as 0,40,80"),
    ("ldp-histogram", {"edges": [0, True, 2]}, "expected a list of numbers"),
    ("ldp-histogram", {"edges": "0,nan,2"}, "expected a list of numbers"),
    ("ldp-histogram", {"edges": 3}, "setting 'edges' has 1 number, expected at least 3"),
    ("ldp-histogram", {"mechanism": "grid-laplace"}, "mechanism 'grid-laplace' is unknown"),
    ("ldp-histogram", {"mechanism": "unary-encodin"}, "did you mean 'unary-encoding'"),
    ("ldp-histogram", {"concentration": 0}, "setting 'concentration' is 0, expected a number above 0"),
    ("ldp-histogram", {"draws": 0}, "setting 'draws' is 0, expected a whole number, at least 1"),
    ("ldp-mean", {"family": "gauss"}, "did you mean 'gaussian'"),
    ("ldp-mean", {"family": "exponential"}, "describes numbers from 0 on, and y is clipped to -6:6; clip it to 0:HIGH"),
    ("ldp-mean", {"family": "poisson", "lower": 0, "upper": 2.5}, "describes counts, and y is clipped at 2.5"),
    ("ldp-mean", {"lower": 7}, "bounds 7:6 are not an interval"),
    ("ldp-mean", {"prior_mean": 3, "family": "poisson"}, "'prior_mean' does not belong to the prior of family"),
    ("ldp-mean", {"prior_mean_sd": -1}, "setting 'prior_mean_sd' is -1, expected a number above 0"),
    ("ldp-mean", {"mechanism": "unary-encoding"}, "mechanism 'unary-encoding'"),
    ("ldp-regression", {"family": "ridge"}, "family 'ridge'"),
    ("ldp-histogram", {"column": "a", "values": 4}, "bounds -4:4 go beyond the categories 0 to 3"),
    ("ldp-mean", {"family": "poisson", "lower": 0, "upper": 1001}, "counts clipped at 1001 are too many"),
    ("ldp-regression", {"inputs": True, "radius": 1.0}, "leave out inputs or radius"),
    ("ldp-regression", {"label_share": 1.0}, "setting 'label_share' is 1, expected a number between 0 and 1"),
    ("ldp-regression", {"radius": 0}, "setting 'radius' is 0"),
    ("ldp-regression", {"lkj": -1}, "setting 'lkj' is -1"),
    ("ldp-sgd", {"group": 0}, "setting 'group' is 0, expected a whole number, at least 1"),
    ("ldp-sgd", {"clip": -1}, "setting 'clip' is -1, expected a number above 0"),
    ("ldp-sgd", {"chains": 4}, "setting 'chains' is not in job 'ldp-sgd'"),
])  # fmt: skip
def test_impossible_settings_are_refused_with_a_reason(name: str, given: dict[str, Any], message: str) -> None:
    def ready() -> None:
        JOBS[name].check(problem().schema, settings(name, **given))

    with pytest.raises(DataError) as refused:
        ready()
    assert message in str(refused.value)


@pytest.mark.parametrize(("name", "given", "least"), [
    ("ldp-histogram", {"values": 9}, 8),
    ("ldp-mean", {}, 2),
    ("ldp-regression", {}, 6 + 3 + 1),
    ("ldp-regression", {"family": "logistic"}, 6 + 3),
    ("ldp-regression", {"inputs": True}, 2 + 3 + 1),
    ("ldp-regression", {"inputs": True, "family": "logistic"}, 2 + 3),
])  # fmt: skip
def test_a_job_with_too_few_clients_is_refused_before_any_round(
    name: str, given: dict[str, Any], least: int, drawn: Drawn, request: pytest.FixtureRequest
) -> None:
    """And as many as the job asks for are enough for the fit, which has a check of its own."""
    kind = "class" if given.get("family") else "number"
    job, own = JOBS[name], settings(name, chains=2, draws=10, require_mixed=False, **given)
    few = problem(kind, max(least - 1, 1))
    known = conditions(clients=least - 1)
    with pytest.raises(DataError, match=f"fewer than {least} contributors, and found {least - 1}; expected clients of"):
        job.check_contributors(few.schema, own, replace(known, kind=LdpReport))
    if not find_spec("numpyro"):
        return
    enough = problem(kind, least)
    released = run(job.make(enough.schema, own, conditions(clients=least)), clients_of(enough, 2.0))
    job.finish(released, enough.schema, own, conditions(clients=least))


@pytest.mark.parametrize("missing", ["numpyro", "jax", "arviz"])
def test_a_missing_package_is_an_error_before_anything_starts(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "find_spec", lambda name: None if name == missing else object())
    known = {"numpyro": "NumPyro", "jax": "JAX", "arviz": "ArviZ"}[missing]
    for name in ("ldp-histogram", "ldp-mean", "ldp-regression"):
        with pytest.raises(DataError, match=rf"missing here: {known}; pip install -e '\.\[samplers\]' in the"):
            JOBS[name].check(problem().schema, settings(name))
    JOBS["ldp-sgd"].check(problem().schema, settings("ldp-sgd"))


# --- descriptions of a posterior --------------------------------------------------------------------------------------


@sampled
@pytest.mark.parametrize("mechanism", ["unary-encoding", "randomised-response"])
def test_shares_stand_beside_the_unbiased_ones_of_the_same_reports(
    mechanism: str, drawn: Drawn, tmp_path: Path
) -> None:
    data = problem("count")
    result, summary, released = learn_job("ldp-histogram", data, bins=4, mechanism=mechanism, concentration=0.5)
    assert released.reports is not None
    assert (drawn.options.chains, drawn.options.draws, drawn.options.keep_warmup) == (2, 200, True)
    assert drawn.data["prior"]["concentration"].tolist() == [0.5] * 4
    rows = summary["estimates"]
    assert [one["name"] for one in rows] == ["y < 3", "y 3 to 6", "y 6 to 9", "y ≥ 9"]
    assert [one["naive"] for one in rows] == pytest.approx(released.value / N), "n times the unbiased shares"
    counts = np.histogram(data.y, [0, 3, 6, 9, 12.1])[0]
    exact = [st.beta(0.5 + k, 1.5 + N - k) for k in counts]
    assert [one["nonprivate"] for one in rows] == pytest.approx([one.mean() for one in exact])
    ends = [end for one in rows for end in one["nonprivate_interval_95"]]
    assert ends == pytest.approx([end for one in exact for end in one.interval(0.95)])
    shares = result.draws["shares"]
    assert rows[1]["interval_95"] == pytest.approx(np.percentile(shares[..., 1], [2.5, 97.5]))
    # by the exact standard deviation of a report's bit: within 5 of them, false alarm 2e-6
    assert all(abs(one["naive"] - one["nonprivate"]) < 5 * one["naive_sd"] for one in rows)
    assert all(one["interval_95"][0] < one["estimate"] < one["interval_95"][1] for one in rows)
    assert summary["sampling"]["acceptance"] == {"proposals": 0.9}
    made = plot_estimates(summary, tmp_path / "shares.svg", title="Shares", private=True)
    assert "unbiased" in svg_words(made)
    inference_data = result.inference_data(np.random.default_rng(0))  # type: ignore[misc]
    assert inference_data.warmup_posterior["shares"].shape == (2, 200, 4)
    assert list(inference_data.posterior["category"].values) == [one["name"] for one in rows]
    assert set(inference_data.posterior_predictive) == {"value", "report"}


def svg_words(path: Path) -> str:
    """Matplotlib draws texts as glyphs, with the text in a comment."""
    return " ".join(path.read_text().split())


@sampled
@pytest.mark.parametrize("mechanism", ["grid-laplace", "analytic-gaussian"])
def test_a_mean_and_a_spread_stand_beside_those_of_the_reports(mechanism: str, drawn: Drawn) -> None:
    data = problem()
    _, summary, released = learn_job("ldp-mean", data, mechanism=mechanism, prior_mean=0.25)
    assert released.reports is not None
    assert drawn.data["prior"]["mean"] == pytest.approx(0.25 / 6), "in half-widths"
    mean, sd = summary["estimates"]
    assert [(one["name"], one["unit"]) for one in (mean, sd)] == [("mean of y", "kg"), ("sd of y", "kg")]
    values = 6.0 * released.reports.values[:, 0]
    assert (mean["naive"], sd["naive"]) == pytest.approx((values.mean(), values.std(ddof=1)))
    assert mean["nonprivate"] == pytest.approx(data.y.mean())
    assert sd["naive"] > 2 * sd["nonprivate"], "the noise is taken for spread"
    _, _, (cells, _) = table_of({**summary, "private": True}, summary["estimates"], compared=True)
    assert cells[:2] == ["mean of y (kg)", interval_words(mean["estimate"], mean["interval_95"])]
    assert cells[2] == digits(mean["naive"], 3), "a point"


@sampled
def test_a_family_has_its_parameter_beside_mean_and_spread(drawn: Drawn) -> None:
    """Of the draws that the sampler gave: a rate of 3, a probability of 1/4."""
    data = problem("count")
    summaries = {
        family: learn_job("ldp-mean", data, family=family)[1] for family in ("exponential", "poisson", "geometric")
    }
    found = {
        family: [(one["name"], one["estimate"], one["nonprivate"]) for one in summary["estimates"]]
        for family, summary in summaries.items()
    }
    mean = data.y.mean()
    assert [name for name, _, _ in found["exponential"]] == ["mean of y", "sd of y", "rate of y"]
    assert [value for _, value, _ in found["exponential"]] == pytest.approx([1 / 3, 1 / 3, 3], rel=0.05)
    assert found["exponential"][2][2] == pytest.approx(1 / mean)
    assert [value for _, value, _ in found["poisson"]] == pytest.approx([3, 3**0.5], rel=0.05)
    assert [name for name, _, _ in found["geometric"]][2] == "probability of y"
    assert [value for _, value, _ in found["geometric"]] == pytest.approx([3, 12**0.5, 0.25], rel=0.15)
    assert found["geometric"][2][2] == pytest.approx(1 / (1 + mean))


@sampled
def test_another_family_is_fitted_to_the_same_reports(drawn: Drawn) -> None:
    data, job = problem("count"), JOBS["ldp-mean"]
    assert "family" in job.changeable
    assert not {"column", "lower", "upper", "mechanism"} & set(job.changeable)
    first, other = settings("ldp-mean"), settings("ldp-mean", family="poisson")
    released = run(job.make(data.schema, first, conditions()), clients_of(data, 2.0))
    assert next(job.make(data.schema, other, conditions())) == first_request("ldp-mean", data)
    result = job.finish(released, data.schema, other, conditions())
    summary = job.summarise(result, None, None, None, data.schema)
    assert drawn.model.family == "poisson"
    assert len(summary["estimates"]) == 2


@sampled
@pytest.mark.parametrize("inputs", [False, True])
def test_a_linear_regression_is_reported_in_own_units_and_scored(inputs: bool, drawn: Drawn) -> None:
    """The sampler gave slopes of ±0.6 in units of the bounds, ±4 and ±6: ±0.9."""
    result, summary, _ = learn_job("ldp-regression", problem(), epsilon=8.0, inputs=inputs, noise_aware=inputs, lkj=3.0)
    assert drawn.data["prior"]["lkj"] == 3.0
    assert (float(np.max(drawn.data["var_x"])) > 0) if inputs else not np.any(drawn.data["noise"])
    slopes = summary["coefficients"]
    assert [(one["name"], one["unit"]) for one in slopes] == [("a", "kg per unit of a"), ("b", "kg per unit of b")]
    assert [one["estimate"] for one in slopes] == pytest.approx([0.9, -0.9], abs=0.02)
    assert [one["nonprivate"] for one in slopes] == pytest.approx([1, -1], abs=0.1)
    assert slopes[0]["interval_95"][0] < 0.9 < slopes[0]["interval_95"][1]
    assert set(summary["intercept"]) >= {"estimate", "interval_95"}
    assert "name" not in summary["intercept"]
    assert summary["test"]["rmse_nonprivate"] < summary["test"]["rmse_private"] < summary["test"]["rmse_zero"]
    stored = result.inference_data(np.random.default_rng(0))  # type: ignore[misc]
    assert set(stored.posterior_predictive) == ({"value", "report"} if inputs else {"value"})
    assert stored.posterior_predictive["value"].sel(column="y").shape[2:] == (1,)


def half_missing(kind: str = "number", n: int = N) -> Problem:
    """Every second row lacks its feature b."""
    data = problem(kind, n)
    X = data.X.copy()
    X[::2, 1] = np.nan
    return Problem(data.name, data.schema, X, data.y)


@sampled
@pytest.mark.parametrize(
    "given", [{}, {"family": "logistic"}, {"inputs": True}, {"inputs": True, "family": "logistic"}]
)
def test_a_regression_names_the_columns_of_which_clients_lack_a_value(given: dict[str, Any], drawn: Drawn) -> None:
    """At ε = 200 the noise in the count of 2,000 clients is some 60. Reports are the same at each run.

    Before, no column was named. Without noise in its model, a fit to products took all rows for complete.
    """
    job, own = JOBS["ldp-regression"], settings("ldp-regression", **given)
    data = half_missing("class" if "family" in given else "number", 2_000)
    known = conditions(200.0, 2_000, mu=Budget(200.0, 1e-5).mu)
    released = run(job.make(data.schema, own, known), clients_of(data, 200.0))
    for aware in (True, False):
        found = job.finish(released, data.schema, replace(own, noise_aware=aware), known)
        (about,) = [text for text in found.warnings if "seem to lack" in text]
        assert "seem to lack a value of at least one of a, b, y: " in about
        if aware or "inputs" not in given:
            assert about.endswith("the estimates are of the others; find out whether those differ")
        else:
            assert "count as the middle of the bounds" in about, "for comparison, reports are taken for rows"
        if "inputs" not in given:
            assert drawn.data["n"] == 2_000 if aware else 700 <= drawn.data["n"] <= 1_300
    assert "y on a, b in rows that lack none of these (" in job.model(data.schema, own)


@sampled
def test_a_logistic_regression_is_scored_by_its_probabilities(drawn: Drawn) -> None:
    _, summary, _ = learn_job("ldp-regression", problem("class"), epsilon=8.0, family="logistic")
    assert [one["name"] for one in summary["test"]["scores"]] == ["AUC", "log likelihood"]
    assert summary["test"]["scores"][0]["private"] > 0.9, "the sampler gave the right signs"
    assert summary["coefficients"][0]["nonprivate"] > 0 > summary["coefficients"][1]["nonprivate"]
    rows = PREDICTED_ROWS
    data = problem("class", rows + 1)
    assert len(learn_job("ldp-regression", data, epsilon=8.0, family="logistic")[1]["test"]["scores"]) == 2


@sampled
def test_a_logistic_regression_from_rows_takes_two_reports_of_each_client(drawn: Drawn) -> None:
    given = {"epsilon": 8.0, "family": "logistic", "inputs": True}
    result, summary, released = learn_job("ldp-regression", problem("class"), **given)
    features, labels = released
    assert (drawn.model.features, len(drawn.data["y"])) == (2, N)
    assert (features.mechanism, labels.mechanism) == ("analytic-gaussian", "randomised-response")
    assert drawn.data["y"].tolist() == labels.reports.values.tolist()
    assert result.predictor.logistic
    assert summary["test"]["scores"][0]["private"] > 0.9, "the sampler gave the right signs"
    stored = result.inference_data(np.random.default_rng(0))  # type: ignore[misc]
    assert set(np.unique(stored.posterior_predictive["report"].sel(column="y"))) == {0.0, 1.0}


@sampled
def test_unmixed_chains_give_no_result_unless_the_job_allows_it(drawn: Drawn, monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = Options.sample

    def apart(*given: Any) -> Sampled:
        found = mixed(*given)
        found.draws["rate"][0] += 5.0
        return found

    monkeypatch.setattr(Options, "sample", apart)
    data = problem("count")
    with pytest.raises(DataError, match=r"the chains have not mixed: R-hat of rate is .*, required below 1\.1"):
        learn_job("ldp-mean", data, family="poisson")
    _, summary, _ = learn_job("ldp-mean", data, family="poisson", require_mixed=False)
    assert "chains have not mixed: R-hat of rate is" in summary["warnings"][0]
    assert summary["sampling"]["r_hat_max"] > 1.1


def test_draws_follow_from_the_jobs_seed() -> None:
    first, again = (settings("ldp-histogram").run(conditions()) for _ in range(2))
    assert first["seed"] == again["seed"]
    assert (first["require_mixed"], first["keep_warmup"]) == (True, True)
