"""Logistic regression with a rare class or strong effects, at moderate N: steps of Newton's method are long there."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from dca_proto.jobs.job import JobTerms
from dca_proto.privacy.budget import Budget
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.models.coefficients import Coefficients
from inference.models.logistic.job import logistic_regression
from inference.problem import Array, Schema
from inference.rounds import run

N, COMPUTES = 5_000, tuple(bytes([index]) * 16 for index in range(3))
RARE, STRONG = (-4.0, 0.6, -0.4, 0.3), (0.0, 3.0, -3.0, 0.0)


def fitted(truth: Array, seed: int) -> Coefficients:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, 3))
    y = (rng.random(N) < expit(truth[0] + X @ truth[1:])).astype(float)
    schema = Schema(("a", "b", "c"), "y", {**dict.fromkeys("abc", Interval(-5, 5)), "y": Interval(0, 1)})
    terms = JobTerms(budget=Budget(1.0, 1e-5), clients=N, tolerated=N // 10, computes=COMPUTES)
    swarm = IdealSwarm(np.column_stack([X, y]), schema.columns, terms, random=rng.bytes)
    return run(logistic_regression(schema, rng=rng), swarm)


def scores_of(truth: Array, repeats: int) -> tuple[Array, Array]:
    """Return errors, and errors in standard deviations, of intercept and slopes: shape ``(repeats, 4)``."""
    fits = [fitted(truth, seed) for seed in range(repeats)]
    errors = np.array([np.r_[fit.intercept, fit.coefficients] for fit in fits]) - truth
    return errors, errors / np.array([np.r_[fit.intercept_sd, fit.coefficient_sd] for fit in fits])


@pytest.mark.parametrize("truth", [RARE, STRONG])
def test_no_step_falls_short(truth: tuple[float, ...]) -> None:
    """Four fits; the mean of a parameter was off by 0.8 for a rare class, with a standard error of 0.4."""
    errors, standard = scores_of(np.array(truth), 4)
    assert np.abs(errors.mean(axis=0)).max() < 0.35
    assert np.abs(standard).max() < 4


@pytest.mark.long
@pytest.mark.parametrize("truth", [RARE, STRONG])
def test_intervals_hold(truth: tuple[float, ...]) -> None:
    """30 fits. With a coverage of 90 %, fewer than 22 of 30 intervals of a parameter hold in 0.2 % of seeds."""
    _, standard = scores_of(np.array(truth), 30)
    assert (np.abs(standard) < 1.645).sum(axis=0).min() >= 22
