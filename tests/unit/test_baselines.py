"""What private regressions are held against: every method has one face, and each does what it says."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import cast

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from dca_proto.learning.job import JobTerms
from dca_proto.privacy.budget import Budget
from dca_proto.testing import seeded
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.errors import DataError
from inference.models.coefficients import rmse
from inference.models.linear.baselines import nonprivate_regression
from inference.models.linear.closed_form import summarise
from inference.models.linear.one_round import regression_in_bounds
from inference.problem import Problem, Schema
from papers.dca2017.baselines import (
    ByRounds,
    InputPerturbation,
    Method,
    NonPrivate,
    ZeroPredictor,
    without_noise_moments,
)

SCHEMA = Schema(("a", "b"), "y", {"a": Interval(0, 10), "b": Interval(-1, 1), "y": Interval(-100, 300)})
COMPUTES = (bytes(16), bytes([1]) * 16)


def problem(n: int, seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(5, 1.5, n), rng.normal(0.1, 0.3, n)])
    return Problem("made up", SCHEMA, X, 80 + 10 * X[:, 0] - 100 * X[:, 1] + rng.normal(0, 20, n))


def swarm(train: Problem, epsilon: float, *, trusted: bool = False, tolerated: int = 0) -> IdealSwarm:
    terms = JobTerms(budget=Budget(epsilon, 1e-5), clients=len(train.y), tolerated=tolerated, computes=COMPUTES)
    name = f"{epsilon}"
    return IdealSwarm(train.rows, train.schema.columns, terms, random=seeded(name), trusted=trusted)


def methods(epsilon: float) -> list[Method]:
    mu = Budget(epsilon, 1e-5).mu
    return [
        NonPrivate(),
        ByRounds("trusted aggregator", regression_in_bounds, lambda train: swarm(train, epsilon, trusted=True)),
        ByRounds("DCA", regression_in_bounds, lambda train: swarm(train, epsilon)),
        InputPerturbation(mu, np.random.default_rng(1)),
        InputPerturbation(mu, np.random.default_rng(1), "input perturbation, corrected", corrected=True),
        ZeroPredictor(),
    ]


def test_every_method_learns_from_rows_and_predicts_in_own_units() -> None:
    train, test = problem(2000, 1), problem(500, 2)
    errors = {}
    for method in methods(4.0):
        result = method.fit(train)
        mean, sd = result.predict(test.X)
        errors[method.name] = rmse(mean, test.y)
        assert (mean.shape, sd.shape) == ((500,), (500,))
        assert (sd > 0).all()
        assert result.contributors == 2000
        assert result.private is (method.name not in ("non-private", "zero predictor")), method.name
    zero = errors["zero predictor"]
    assert errors["non-private"] < errors["DCA"] < zero
    assert errors["trusted aggregator"] < zero
    assert min(errors["input perturbation"], errors["input perturbation, corrected"]) > errors["DCA"]


def test_the_names_are_told_apart() -> None:
    assert len({method.name for method in methods(1.0)}) == 6


def test_nonprivate_is_scikit_learns_least_squares() -> None:
    train = problem(300, 3)
    ours, theirs = NonPrivate().fit(train), LinearRegression().fit(train.X, train.y)
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


def test_nonprivate_regression_bears_constant_and_repeated_columns() -> None:
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


def test_zero_predictor_gives_the_mean_whatever_the_features() -> None:
    train = problem(50, 4)
    result = ZeroPredictor().fit(train)
    mean, sd = result.predict(np.array([[0.0, 0.0], [1e6, -1e6]]))
    np.testing.assert_allclose(mean, train.y.mean())
    np.testing.assert_allclose(sd, train.y.std())
    assert (result.coefficients == 0).all()
    assert rmse(result.predict(train.X)[0], train.y) == pytest.approx(train.y.std())


def test_a_trusted_aggregator_runs_the_same_job_with_less_noise() -> None:
    """With T = N/2 the shares add up to about twice the variance that suffices."""
    train = problem(200, 5)
    sds = [
        ByRounds("", regression_in_bounds, lambda train, t=trusted: swarm(train, 2.0, trusted=t, tolerated=100)).fit(
            train
        )
        for trusted in (True, False)
    ]
    assert (sds[0].coefficient_sd < sds[1].coefficient_sd).all()


def test_in_bounds_asks_for_one_round_with_all_of_the_budget() -> None:
    train = problem(400, 6)
    job = regression_in_bounds(SCHEMA, repair="nearest-psd")
    request = next(job)
    assert (request.statistic, request.budget_share) == ("regression", 1.0)
    with pytest.raises(StopIteration) as finished:
        job.send(swarm(train, 200.0).hold(request))
    result = finished.value.value
    np.testing.assert_allclose(result.coefficients, nonprivate_regression(train).coefficients, rtol=0.05)
    assert (result.repair, result.private) == ("nearest-psd", True)
    with pytest.raises(DataError, match="repair 'best' is unknown"):
        next(regression_in_bounds(SCHEMA, repair="best"))


def test_input_perturbation_with_a_huge_budget_is_least_squares() -> None:
    train = problem(400, 7)
    for corrected in (False, True):
        result = InputPerturbation(1e5, np.random.default_rng(2), corrected=corrected).fit(train)
        np.testing.assert_allclose(result.coefficients, nonprivate_regression(train).coefficients, rtol=0.05)


def test_the_naive_regression_on_noisy_rows_is_attenuated_and_the_corrected_one_is_not() -> None:
    """Over 40 draws; the naive slope of a is far below half, the corrected ones' mean within 4 of its standard errors
    of the truth (the prior shrinks it by less than that)."""
    train = problem(5000, 8)
    truth = nonprivate_regression(train).coefficients[0]
    slopes = {
        corrected: [
            InputPerturbation(6.0, np.random.default_rng(seed), corrected=corrected).fit(train).coefficients[0]
            for seed in range(40)
        ]
        for corrected in (False, True)
    }
    assert np.mean(slopes[False]) < 0.5 * truth
    assert abs(np.mean(slopes[True]) - truth) < 4 * np.std(slopes[True]) / np.sqrt(40) + 0.05 * truth


def test_moments_without_those_of_the_noise_are_unbiased_and_know_their_variance() -> None:
    """2000 draws: means within 5 standard errors, and variances within 35 % of the one figure that stands for all. Were
    n σ² taken off and not (n - 1) σ², the squares of these few rows would be off by ten standard errors."""
    rng, variance, draws = np.random.default_rng(9), 4.0, 2000
    z = rng.uniform(-1, 1, size=(12, 3))
    z -= z.mean(axis=0)
    exact = summarise(z[:, :2], z[:, 2])
    drawn = []
    for _ in range(draws):
        noisy = z + rng.normal(scale=sqrt(variance), size=z.shape)
        noisy -= noisy.mean(axis=0)
        drawn.append(without_noise_moments(summarise(noisy[:, :2], noisy[:, 2]), variance))
    stated = np.mean([one.noise.xx for one in drawn])
    for terms, truth in (
        ([one.xx[0, 1] for one in drawn], exact.xx[0, 1]),
        ([one.xy[1] for one in drawn], exact.xy[1]),
    ):
        assert np.mean(terms) == pytest.approx(truth, abs=5 * np.std(terms) / np.sqrt(draws))
        assert np.var(terms) == pytest.approx(stated, rel=0.35)
    squares = [one.xx[0, 0] for one in drawn]
    assert np.mean(squares) == pytest.approx(exact.xx[0, 0], abs=5 * np.std(squares) / np.sqrt(draws))


def test_input_perturbation_adds_a_rows_whole_sensitivity_over_mu_to_each_column() -> None:
    """One client's row is replaced: from one corner of the bounds to the opposite one."""
    scales = []

    class Spy:
        def normal(self, scale: float, size: tuple[int, int]) -> np.ndarray:
            scales.append(scale)
            return np.zeros(size)

    InputPerturbation(0.5, cast(np.random.Generator, Spy())).fit(problem(20, 11))
    corner = np.ones(3)
    assert scales == [pytest.approx(np.linalg.norm(corner - -corner) / 0.5)]


def test_corrected_input_perturbation_knows_how_uncertain_its_level_is() -> None:
    """Over 200 draws of the noise, which outweighs the residuals: predictions in the middle of the data spread as the
    posterior says, within 20 % (a standard deviation's standard error is 5 %)."""
    train = problem(1000, 12)
    middle, drawn, stated = train.X.mean(axis=0)[None], [], []
    for seed in range(200):
        result = InputPerturbation(6.0, np.random.default_rng(seed), corrected=True).fit(train)
        drawn.append(result.predict(middle)[0][0])
        stated.append(result.scale[-1] * sqrt(result.cov[0, 0]))
    assert np.std(drawn) == pytest.approx(np.mean(stated), rel=0.2)


def test_input_perturbation_refuses_no_budget() -> None:
    with pytest.raises(DataError, match="mu is 0; expected a number above 0"):
        InputPerturbation(0.0, np.random.default_rng(0)).fit(problem(20, 10))
