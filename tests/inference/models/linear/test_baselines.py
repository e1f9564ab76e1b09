"""The baselines of private regressions: each computes what it states."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from dca_proto.jobs.job import JobTerms
from dca_proto.privacy.budget import Budget
from dca_proto.testing import seeded
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.errors import DataError
from inference.models.linear.baselines import nonprivate_regression
from inference.models.linear.job import regression_in_bounds
from inference.models.scores import rmse
from inference.problem import Problem, Schema
from inference.rounds import run
from papers.dca2017.figure_3 import perturbed_inputs

SCHEMA = Schema(("a", "b"), "y", {"a": Interval(0, 10), "b": Interval(-1, 1), "y": Interval(-100, 300)})
COMPUTES = (bytes(16), bytes([1]) * 16)


def problem(n: int, seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(5, 1.5, n), rng.normal(0.1, 0.3, n)])
    return Problem("made up", SCHEMA, X, 80 + 10 * X[:, 0] - 100 * X[:, 1] + rng.normal(0, 20, n))


def swarm(train: Problem, epsilon: float, *, trusted: bool = False, tolerate: int = 0) -> IdealSwarm:
    terms = JobTerms(epsilon=epsilon, delta=1e-5, clients=len(train.y), tolerate=tolerate, computes=COMPUTES)
    name = f"{epsilon}"
    return IdealSwarm(train.rows, train.schema.columns, terms, random=seeded(name), trusted=trusted)


def test_nonprivate_is_scikit_learns_least_squares() -> None:
    train = problem(300, 3)
    ours, theirs = nonprivate_regression(train), LinearRegression().fit(train.X, train.y)
    np.testing.assert_allclose(ours.coefficients, theirs.coef_, rtol=1e-6)
    assert ours.repair == "none"
    np.testing.assert_array_equal(ours.coefficients, nonprivate_regression(train).coefficients)


def test_nonprivate_regression_is_least_squares() -> None:
    train = problem(60, 18)
    design = np.column_stack([np.ones(60), train.X])
    solution, squares, *_ = np.linalg.lstsq(design, train.y, rcond=None)
    result = nonprivate_regression(train)
    np.testing.assert_allclose([result.intercept, *result.coefficients], solution, rtol=1e-7)
    np.testing.assert_allclose(result.covariance, squares[0] / 57 * np.linalg.inv(design.T @ design), rtol=1e-6)
    np.testing.assert_allclose(
        result.predict(train.X * 100)[0], np.column_stack([np.ones(60), train.X * 100]) @ solution
    )
    assert not result.private


def test_nonprivate_regression_tolerates_constant_and_repeated_columns() -> None:
    train = problem(60, 23)
    X = np.column_stack([train.X, train.X[:, 0], np.full(60, 3.0)])
    schema = replace(SCHEMA, features=("a", "b", "c", "d"), bounds={c: Interval(-100, 300) for c in "abcdy"})
    doubled = nonprivate_regression(Problem("collinear", schema, X, train.y))
    np.testing.assert_allclose(
        doubled.predict(X)[0], nonprivate_regression(train).predict(train.X)[0], rtol=0, atol=1e-4
    )


def test_nonprivate_regression_refuses_too_few_rows() -> None:
    with pytest.raises(ValueError, match="3 rows cannot determine 3 coefficients"):
        nonprivate_regression(problem(3, 19))


def test_a_trusted_aggregator_runs_the_same_job_with_less_noise() -> None:
    """With T = N/2 the shares add up to about twice the variance that suffices."""
    train = problem(200, 5)
    sds = [
        run(regression_in_bounds(SCHEMA), swarm(train, 2.0, trusted=trusted, tolerate=100)) for trusted in (True, False)
    ]
    assert (sds[0].coefficient_sd < sds[1].coefficient_sd).all()


def test_in_bounds_asks_for_one_round_with_all_of_the_budget() -> None:
    train = problem(400, 6)
    job = regression_in_bounds(SCHEMA, repair="nearest-psd")
    request = next(job)
    assert (request.statistic, request.budget_share) == ("regression", 1.0)
    with pytest.raises(StopIteration) as finished:
        job.send(swarm(train, 200.0).run_round(request))
    result = finished.value.value
    np.testing.assert_allclose(result.coefficients, nonprivate_regression(train).coefficients, rtol=0.05)
    assert (result.repair, result.private) == ("nearest-psd", True)
    with pytest.raises(DataError, match="repair 'best' is unknown"):
        next(regression_in_bounds(SCHEMA, repair="best"))


def test_input_perturbation_with_a_huge_budget_is_least_squares() -> None:
    train = problem(400, 7)
    result = perturbed_inputs(train, 1e5, np.random.default_rng(2))
    np.testing.assert_allclose(result.coefficients, nonprivate_regression(train).coefficients, rtol=0.05)


def test_errors_are_ordered_and_only_the_non_private_one_is_not_private() -> None:
    """Without privacy, by rounds, by noisy rows whose slope is far below half of what it is; at one budget."""
    train, test = problem(5000, 8), problem(500, 2)
    found = [
        nonprivate_regression(train),
        run(regression_in_bounds(SCHEMA), swarm(train, 4.0)),
        perturbed_inputs(train, Budget(4.0, 1e-5).mu, np.random.default_rng(1)),
    ]
    errors = [rmse(one.predict(test.X)[0], test.y) for one in found]
    assert errors == sorted(errors)
    assert [one.private for one in found] == [False, True, True]
    slopes = [perturbed_inputs(train, 6.0, np.random.default_rng(seed)).coefficients[0] for seed in range(40)]
    assert np.mean(slopes) < 0.5 * found[0].coefficients[0]


def test_input_perturbation_adds_a_rows_whole_sensitivity_over_mu_to_each_column() -> None:
    """One client's row is replaced: from one corner of the bounds to the opposite one."""
    scales = []

    class Spy:
        def normal(self, scale: float, size: tuple[int, int]) -> np.ndarray:
            scales.append(scale)
            return np.zeros(size)

    perturbed_inputs(problem(20, 11), 0.5, cast(np.random.Generator, Spy()))
    corner = np.ones(3)
    assert scales == [pytest.approx(np.linalg.norm(corner - -corner) / 0.5)]
