"""What private regressions are held against: every method has one face, and each does what it says."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from dca_proto.core.budget import Budget
from dca_proto.core.job import Terms
from dca_proto.testing import seeded
from emulator.ideal import IdealSwarm
from inference.baselines import (
    ByRounds,
    InputPerturbation,
    Method,
    NonPrivate,
    ZeroPredictor,
    nonprivate_regression,
    rmse,
    without_noise_moments,
)
from inference.bounded_regression import regression_in_bounds
from inference.bounds import Interval
from inference.errors import DataError
from inference.linear_regression import summarise
from inference.problem import Problem, Schema

SCHEMA = Schema(("a", "b"), "y", {"a": Interval(0, 10), "b": Interval(-1, 1), "y": Interval(-100, 300)})
COMPUTES = (bytes(16), bytes([1]) * 16)


def problem(n: int, seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(5, 1.5, n), rng.normal(0.1, 0.3, n)])
    return Problem("made up", SCHEMA, X, 80 + 10 * X[:, 0] - 100 * X[:, 1] + rng.normal(0, 20, n))


def swarm(train: Problem, epsilon: float, *, trusted: bool = False, tolerated: int = 0) -> IdealSwarm:
    terms = Terms(budget=Budget(epsilon, 1e-5), clients=len(train.y), tolerated=tolerated, computes=COMPUTES)
    name = f"{epsilon}"
    return IdealSwarm(train.rows, train.schema.columns, terms, random=seeded(name), trusted=trusted)


def methods(epsilon: float) -> list[Method]:
    mu = Budget(epsilon, 1e-5).mu
    return [
        NonPrivate(),
        ByRounds("trusted aggregator", regression_in_bounds, lambda train: swarm(train, epsilon, trusted=True)),
        ByRounds("DCA", regression_in_bounds, lambda train: swarm(train, epsilon)),
        InputPerturbation(mu, np.random.default_rng(1)),
        InputPerturbation(mu, np.random.default_rng(1), corrected=True),
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


def test_zero_predictor_gives_the_mean_whatever_the_features() -> None:
    train = problem(50, 4)
    result = ZeroPredictor().fit(train)
    mean, sd = result.predict(np.array([[0.0, 0.0], [1e6, -1e6]]))
    np.testing.assert_allclose(mean, train.y.mean())
    np.testing.assert_allclose(sd, train.y.std())
    assert (result.coefficients == 0).all()


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
    """500 draws: means within 5 standard errors, and variances within 35 % of the one figure that stands for all."""
    rng, variance = np.random.default_rng(9), 4.0
    z = rng.uniform(-1, 1, size=(200, 3))
    z -= z.mean(axis=0)
    exact = summarise(z[:, :2], z[:, 2])
    drawn = []
    for _ in range(500):
        noisy = z + rng.normal(scale=sqrt(variance), size=z.shape)
        drawn.append(without_noise_moments(summarise(noisy[:, :2], noisy[:, 2]), variance))
    stated = np.mean([one.noise.xx for one in drawn])
    for terms, truth in (
        ([one.xx[0, 1] for one in drawn], exact.xx[0, 1]),
        ([one.xy[1] for one in drawn], exact.xy[1]),
    ):
        assert np.mean(terms) == pytest.approx(truth, abs=5 * np.std(terms) / np.sqrt(500))
        assert np.var(terms) == pytest.approx(stated, rel=0.35)
    squares = [one.xx[0, 0] for one in drawn]
    assert np.mean(squares) == pytest.approx(exact.xx[0, 0], abs=5 * np.std(squares) / np.sqrt(500))


def test_input_perturbation_refuses_no_budget() -> None:
    with pytest.raises(DataError, match="mu is 0; expected a number above 0"):
        InputPerturbation(0.0, np.random.default_rng(0)).fit(problem(20, 10))
