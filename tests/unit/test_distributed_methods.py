"""Methods of distributed regression by name, the learning job, and results in the user's own units."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import numpy as np
import pytest
from compiling import quick_and_double

from dca_proto.aggregate import NodeReleaseRequest
from dca_proto.learning.job import JobTerms
from dca_proto.privacy.budget import Budget
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.errors import DataError
from inference.models.linear.nodes.fixed_s_fast import posterior
from inference.models.linear.nodes.methods import (
    METHODS,
    NAMES,
    Method,
    fit,
)
from inference.models.linear.nodes.observed import (
    Observed,
    Prior,
    nodes_of,
    prior_of,
)
from inference.models.linear.nodes.own_units import in_own_units
from inference.models.linear.nodes.rounds import distributed_regression
from inference.problem import Schema
from inference.rounds import run

jax_needed = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
SCHEMA = Schema(
    ("age", "bmi"), "risk", {"age": Interval(20, 80), "bmi": Interval(15, 45), "risk": Interval(0, 100)}
)  # fmt: skip
SLOPES, OFFSET, RESIDUAL = np.array([0.6, 1.5]), -20.0, 4.0


def observed(J: int = 2, d: int = 2, **changes: Any) -> Observed:
    rng = np.random.default_rng(1)
    x = rng.normal(0, 1 / 3, (J, 200, d))
    y = x @ np.linspace(0.5, -0.5, d) + rng.normal(0, 0.2, (J, 200))
    one, none = np.ones(J), np.full(J, np.nan)
    S, z = np.swapaxes(x, 1, 2) @ x, (y[:, None] @ x)[:, 0]
    return Observed(S, z, 200 * one, one, one, none, none)._replace(**changes)


def nodes(sizes: tuple[int, ...] = (800, 1200, 1000)) -> tuple[list[np.ndarray], np.ndarray]:
    """Tables of rows with the target last, and rows to test on."""
    rng = np.random.default_rng(2)
    X = np.column_stack([rng.normal(50, 9, sum(sizes) + 500), rng.normal(28, 4, sum(sizes) + 500)])
    rows = np.column_stack([X, OFFSET + X @ SLOPES + rng.normal(0, RESIDUAL, len(X))])
    return np.split(rows[500:], np.cumsum(sizes)[:-1]), rows[:500]


def swarm(tables: list[np.ndarray], epsilon: float = 5.0, seed: int = 3) -> IdealSwarm:
    budget = Budget(epsilon=epsilon, delta=1e-6)
    terms = JobTerms(budget=budget, clients=len(tables), tolerated=0, computes=(b"a" * 32, b"b" * 32))
    return IdealSwarm(tables, list(SCHEMA.columns), terms, random=np.random.default_rng(seed).bytes)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(DataError, match=r"method 'normal_x' is unknown .did you mean 'normal-x'"):
        fit("normal_x", observed())
    with pytest.raises(DataError, match=r"option 'boundy' is not in method 'fast' .did you mean 'bound_y'"):
        fit("fast", observed(), options={"boundy": 1.0})
    with pytest.raises(DataError, match="adaSSP is a point estimate"):
        fit("adassp", observed())


@pytest.mark.parametrize("name", [name for name in NAMES if METHODS[name].module])
def test_without_jax_it_is_said_how_to_install_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [one for one in sys.modules if one.startswith(("inference.models.linear.nodes.", "inference.mcmc."))]:
        if module.rpartition(".")[2] not in (
            "observed",
            "methods",
            "posterior",
            "fixed_s_fast",
            "own_units",
            "rounds",
            "job",
        ):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(DataError, match=r"needs JAX, .*'\.\[samplers\]' in the checkout, or take method 'fast'"):
        fit(name, observed())
    with pytest.raises(DataError, match="needs JAX"):  # before anything is spent
        next(distributed_regression(SCHEMA, name))


@pytest.mark.parametrize(
    ("name", "statistics", "words"),
    [
        ("normal-x", observed(constant=np.array(1.0)), "no model of; take one of 'intercept', 'fixed-s', 'fast'"),
        ("bernstein-sheldon", observed(constant=np.array(1.0)), "no model of"),
        ("intercept", observed(), "constant first feature; release them with an intercept"),
        ("bernstein-sheldon", observed(), "needs yᵀy of every node"),
        ("fixed-s", observed(variance_z=np.zeros(2)), "exact statistics need method 'fast'"),
        ("bernstein-sheldon", observed(u=np.ones(2)), "needs yᵀy of every node"),  # its noise is not known
        ("fixed-s", observed(n=np.zeros(2)), "node 1 has 0 rows"),
        ("normal-x", observed(variance_S=np.array([1.0, 0.0])), "exact statistics need method 'fast'"),
        ("collapsed", observed(variance_S=np.array([1.0, 0.0])), "exact statistics need method 'fast'"),
        ("normal-x", observed(n=np.array([5.0, 1.0])), "node 2 has 1 rows, and method 'normal-x' needs as many"),
        ("collapsed", observed(n=np.array([1.0, 9.0])), "node 1 has 1 rows, and method 'collapsed' needs as many"),
        ("collapsed", observed(constant=np.array(1.0)), "no model of; take one of 'intercept', 'fixed-s', 'fast'"),
        ("intercept", observed(n=np.ones(2), constant=np.array(1.0)), "node 1 has 1 rows, and method 'intercept'"),
        ("normal-x", observed(S=np.tile(np.diag([50.0, -30.0]), (2, 1, 1))), "S of node 1 has the eigenvalue -30"),
    ],
)
@jax_needed
def test_statistics_that_are_not_for_a_method_are_refused(name: str, statistics: Observed, words: str) -> None:
    with pytest.raises(DataError, match=words):
        fit(name, statistics)


def test_what_does_not_fit_the_coefficients_is_refused() -> None:
    options = {"sigma_y2": 0.1}
    with pytest.raises(DataError, match=r"prior's m has the shape \(3,\); expected \(2,\)"):
        fit("fast", observed(), Prior.default(3), options=options)
    with pytest.raises(DataError, match="3 names for 2 coefficients"):
        fit("fast", observed(), names=["a", "b", "c"], options=options)
    with pytest.raises(DataError, match="0 chains of 1000 draws"):
        fit("fast", observed(), chains=0, options=options)
    for wrong in ({}, {"sigma_y2": 0.1, "bound_y": 1.0}):
        with pytest.raises(DataError, match="give the option bound_y"):
            fit("fast", observed(), options=wrong)


def test_the_closed_form_comes_with_independent_draws() -> None:
    """4000 of them: means within 5 standard errors, false alarm 1e-6."""
    found = fit("fast", observed(), options={"bound_y": 1.0, "rule": "variance"}, names=["a", "b"], seed=4)
    exact = posterior(observed(), Prior.default(2), 1 / 3)
    np.testing.assert_array_equal(found.mean, exact.mean)
    assert np.all(np.abs(found.theta.mean((0, 1)) - exact.mean) < 5 * found.sd / 4000**0.5)
    assert found.theta.shape == (4, 1000, 2)
    assert np.all(found.draws["sigma_y2"] == 1 / 3)
    assert (found.names, found.method) == (("a", "b"), "fast")
    again = fit("fast", observed(), options={"bound_y": 1.0, "rule": "variance"}, seed=4)
    np.testing.assert_array_equal(again.theta, found.theta)


@jax_needed
def test_a_sampler_gives_the_same_face_with_warm_up_acceptance_and_progress() -> None:
    """With its σ_y² about the plugged-in one, fixed-s agrees with the closed form: 5 standard errors of its own."""
    prior, seen = Prior.default(2)._replace(a=np.array(2000.0), b=np.array(80.0)), []
    with quick_and_double():
        found = fit(
            "fixed-s", observed(), prior, chains=2, warmup=200, draws=500, thin=2, names=["a", "b"],
            on_progress=lambda done, total: seen.append((done, total)), attrs={"nodes": 2},
        )  # fmt: skip
    exact = posterior(observed(), prior, 80 / 2000)
    error = found.sd / np.sqrt([one.bulk for one in found.mixing[:2]])
    assert np.all(np.abs(found.mean - exact.mean) < 5 * error)
    np.testing.assert_allclose(found.cov, exact.cov, rtol=0.25, atol=0.1 * exact.cov.max())
    assert found.theta.shape == (2, 500, 2)
    assert found.warmup["theta"].shape == (2, 100, 2)
    assert found.acceptance["sigma_y2"].shape == (2,)
    assert seen[-1] == (1200, 1200)
    assert found.attrs == {"nodes": 2}
    with pytest.raises(DataError, match=r"option 'rigde' is not in method 'fixed-s' .did you mean 'ridge'"):
        fit("fixed-s", observed(), options={"rigde": 1.0})
    whole = observed(u=np.ones(2), variance_u=np.ones(2))
    with pytest.raises(DataError, match="option 'groups' is not in method 'bernstein-sheldon'"):
        fit("bernstein-sheldon", whole, options={"groups": (0, 0)})
    with pytest.raises(DataError, match="start 'far' is not in method 'bernstein-sheldon'"):
        fit("bernstein-sheldon", whole, options={"start": "far"})
    with pytest.raises(DataError, match="prior_rows is 0; give a finite number of rows above 0"):
        fit("intercept", observed(constant=np.array(1.0)), options={"prior_rows": 0})


def test_a_job_asks_for_one_node_release_and_answers_in_own_units() -> None:
    """Seeded; 3000 rows at ε = 5: slopes within 4 posterior standard deviations, predictions near the residuals."""
    tables, test = nodes()
    job = distributed_regression(SCHEMA, "fast", options={"sigma_y2": (RESIDUAL / 50) ** 2})
    found = run(job, swarm(tables))
    np.testing.assert_allclose(found.linear.coefficients, SLOPES, atol=4 * found.linear.coefficient_sd.max())
    assert abs(found.linear.intercept - OFFSET) < 4 * found.linear.intercept_sd
    mean, sd = found.predict(test[:, :2])
    assert np.sqrt(np.mean((mean - test[:, 2]) ** 2)) < 1.15 * RESIDUAL
    assert 0.9 * RESIDUAL < sd.mean() < 1.3 * RESIDUAL
    assert (found.features, found.sampled.names) == (("age", "bmi"), ("intercept", "age", "bmi"))
    assert found.sampled.attrs["nodes"] == 3
    assert found.warnings == []


def test_draws_intervals_and_predictions_are_in_own_units_too() -> None:
    tables, test = nodes()
    released = swarm(tables).hold(next(distributed_regression(SCHEMA, "fast")))
    observed, prior = nodes_of(released), prior_of(released)
    assert float(observed.constant) == pytest.approx(1 / 3)
    found = in_own_units(released, fit("fast", observed, prior, options={"bound_y": 1.0}))
    drawn = found.draws()
    error = found.linear.coefficient_sd / 4000**0.5
    assert np.all(np.abs(drawn["coefficients"].mean((0, 1)) - found.linear.coefficients) < 5 * error)
    np.testing.assert_allclose(drawn["residual_sd"], 50 / 3)
    intervals = found.intervals(0.5)
    assert np.all(intervals["coefficients"][:, 0] < found.linear.coefficients)
    assert intervals["intercept"].shape == (2,)
    targets = found.predictive_draws(test[:20, :2], np.random.default_rng(1))
    mean, sd = found.predict(test[:20, :2])
    assert np.all(np.abs(targets.mean((0, 1)) - mean) < 5 * sd / 4000**0.5)
    with pytest.raises(DataError, match="level of an interval is 1"):
        found.intervals(1.0)


def test_without_a_constant_the_intercept_is_the_centres() -> None:
    tables, _ = nodes()
    request = next(distributed_regression(SCHEMA, "fast"))
    plain = {key: value for key, value in request.parameters.items() if not key.startswith("intercept")}
    released = swarm(tables).hold(type(request)("regression", plain, rows_max=2000))
    sampled = fit("fast", nodes_of(released), prior_of(released), options={"bound_y": 1.0})
    found = in_own_units(released, sampled)
    assert sampled.names == ("1", "2")
    slopes = sampled.mean * 50 / np.array([30, 15])
    np.testing.assert_allclose(found.linear.coefficients, slopes)
    assert found.linear.intercept == pytest.approx(50 - slopes @ [50, 30])
    drawn = found.draws()
    np.testing.assert_allclose(drawn["intercept"], 50 - drawn["coefficients"] @ [50, 30])
    X = np.array([[50.0, 30.0]])
    assert found.predict(X)[0] == pytest.approx([50])
    assert found.predictive_draws(X, np.random.default_rng(1)).mean() == pytest.approx(50, abs=5 * 17 / 4000**0.5)


def test_draws_go_to_inference_data_in_own_units() -> None:
    pytest.importorskip("arviz")
    tables, test = nodes()
    found = run(distributed_regression(SCHEMA, "fast", chains=2, draws=50), swarm(tables))
    data = found.inference_data(test[:3, :2])
    assert list(data.posterior["feature"].values) == ["age", "bmi"]
    np.testing.assert_array_equal(data.posterior["coefficients"].values, found.draws()["coefficients"])
    assert data.posterior_predictive["target"].shape == (2, 50, 3)
    assert (data.posterior.attrs["method"], data.posterior.attrs["nodes"]) == ("fast", 3)


@jax_needed
def test_what_a_job_asks_for_follows_from_its_method() -> None:
    for method in METHODS.values():
        request = next(distributed_regression(SCHEMA, method.name, rows_max=7))
        assert (type(request), request.rows_max, request.statistic) == (NodeReleaseRequest, 7, "regression")
        assert request.parameters["target_square"] == method.target_square
        assert request.parameters.get("intercept", False) == (method.constant != "refused")
    assert isinstance(METHODS["fast"], Method)
    with pytest.raises(DataError, match="method 'mcmc' is unknown"):
        next(distributed_regression(SCHEMA, "mcmc"))
