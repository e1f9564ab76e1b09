"""Distributed linear regression with projection: Algorithm 2 of the DCA paper, as a learning job of two rounds.

    step 1   clients project their rows to the public bounds            (in the statistics, at each client)
    step 2   round 1: noisy second moments -> standard deviations       `scale`
    step 3   thresholds p from auxiliary data                           `projection`
    step 4   round 2: noisy statistics of rows projected to ±p σ        `linear_regression`

Beyond the paper's algorithm, each for a measured reason:

- An **intercept**, as a public constant feature of one standard deviation: public centres are never quite right, and
  being off by 0.4 standard deviations of the target costs more than the whole privacy noise does. Its weight matters
  little between 0.7 and 1.2.
- **y²**, for the residual variance: the sensitivity Σ c_j² covers it already, so it is free.
- The two rounds are accounted for jointly: they get ``std_share`` and the rest of the squared Gaussian DP parameter.

The job is sans-IO. How noisy the second round will be follows from what the first one carried: noise scales with the
sensitivity and with one over the square root of the share. So the job needs to know neither N, T nor the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from math import sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from inference.datasets import Schema
from inference.linear_regression import REPAIR, Posterior, posterior, unpack
from inference.projection import prior_precision, search_thresholds
from inference.regression import RegressionResult
from inference.scale import standard_deviations

Array = NDArray[np.float64]
Sensitivity = Callable[[tuple[float, ...]], float]

INTERCEPT_BOUND = 1.0
STD_SHARE = 0.1


def regression_with_projection(
    schema: Schema, *, sensitivity: Sensitivity, rng: np.random.Generator, std_share: float = STD_SHARE
) -> Generator[RoundRequest, NoisyAggregate, RegressionResult]:
    """The job: yields two `RoundRequest`s, is sent their `NoisyAggregate`s, returns the regression.

    Args:
        schema: columns and their public bounds.
        sensitivity: of the second round's sum, given the bounds (constant, features..., target) of one row.
        rng: for the auxiliary data of the threshold search; nothing private depends on it.
        std_share: the first round's share of the budget, in (0, 1).

    Raises:
        ValueError: if ``std_share`` is not inside (0, 1).
    """
    if not 0 < std_share < 1:
        raise ValueError(f"std_share is {std_share}; expected a number between 0 and 1")
    moments = yield _moments_request(schema, std_share)
    fractions = standard_deviations(moments.value, moments.contributors, moments.noise_variance)
    stds = fractions * schema.half_widths
    per_sensitivity = sqrt(moments.noise_variance * std_share / (1 - std_share)) / moments.sensitivity
    thresholds = _thresholds(schema, moments.contributors, lambda c: per_sensitivity * sensitivity(c), rng)
    released = yield _regression_request(schema, stds, thresholds, 1 - std_share)
    return _result(schema, stds, thresholds, moments, released)


def _moments_request(schema: Schema, share: float) -> RoundRequest:
    """Round 1: squares of each column in half-widths of its public bounds, so that all share the noise fairly."""
    scale = [float(c) for c in schema.half_widths]
    bound = [1.0] * len(schema.columns)
    return RoundRequest("second-moments", _columns(schema, scale, bound), budget_share=share)


def _regression_request(schema: Schema, stds: Array, thresholds: Array, share: float) -> RoundRequest:
    """Round 2: statistics of rows in standard deviations, projected to ±p."""
    parameters = _columns(schema, [float(s) for s in stds], [float(p) for p in thresholds])
    parameters |= {"intercept": True, "intercept_bound": INTERCEPT_BOUND, "target_square": True}
    return RoundRequest("regression", parameters, budget_share=share)


def _columns(schema: Schema, scale: list[float], bound: list[float]) -> dict[str, object]:
    centre = [float(c) for c in schema.centres]
    return {"columns": list(schema.columns), "centre": centre, "scale": scale, "bound": bound}


def _thresholds(schema: Schema, n: int, noise_std: Sensitivity, rng: np.random.Generator) -> Array:
    """p of each feature and of the target, in standard deviations, shape ``(d + 1,)``."""
    d = len(schema.features)
    chosen = search_thresholds(n, d, noise_std, rng, intercept_bound=INTERCEPT_BOUND)
    return np.array([chosen.features] * d + [chosen.target])


def _result(
    schema: Schema, stds: Array, thresholds: Array, moments: NoisyAggregate, released: NoisyAggregate
) -> RegressionResult:
    m = len(schema.features) + 1
    statistics = unpack(
        released.value, m, released.contributors, released.noise_variance, intercept_bound=INTERCEPT_BOUND
    )
    fitted = posterior(statistics, prior_precision(m - 1))
    widened = Posterior(fitted.mean, fitted.cov, fitted.residual_variance + projected_away(float(thresholds[-1])))
    return RegressionResult(
        schema=schema,
        posterior=widened,
        centre=schema.centres,
        scale=stds,
        thresholds=thresholds,
        repair=REPAIR,
        contributors=released.contributors,
        private=schema.private and moments.private and released.private,
    )


def projected_away(p: float) -> float:
    """How much of a standard normal's variance the projection to ±p removes, 1 - E[clip(z, ±p)²].

    A prediction is of a target that nobody projects, so the predictive variance gets this back.
    """
    normal = NormalDist()
    outside = 2 * normal.cdf(-p)
    return outside - p * p * outside + 2 * p * normal.pdf(p)
