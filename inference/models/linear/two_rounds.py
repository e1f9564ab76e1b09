"""Distributed linear regression with projection: Algorithm 2 of the DCA paper, as a learning job of two rounds.

    step 1   clients project their rows to the public bounds            (in the statistics, at each client)
    step 2   round 1: noisy second moments -> standard deviations       `scale`
    step 3   thresholds p from auxiliary data                           `projection`
    step 4   round 2: noisy statistics of rows projected to ±p σ        `closed_form`

Beyond the paper's algorithm, each for a measured reason:

- An **intercept**, as a public constant feature of one standard deviation: public centres are never quite right, and
  being off by 0.4 standard deviations of the target costs more than the whole privacy noise does. Its weight matters
  little between 0.7 and 1.2.
- **y²**, for the residual variance: the sensitivity Σ c_j² covers it already, so it is free.
- The two rounds are accounted for jointly: they get ``std_share`` and the rest of the squared Gaussian DP parameter.
- On request, **centres** are estimated in round 1 beside the standard deviations, at 1.2 times the noise in the latter.
  Where public centres are far off, this is worth more than anything else: mean absolute test error, relative to
  predicting the mean, at ε = 1, 3, 10 (δ = 1e-4, medians of 6 splits; last, without privacy):

                    public centres       estimated centres
      wine, red     0.87  0.80  0.78     0.78  0.77  0.74     0.74      (centres off by 0.1 to 4.8 standard deviations)
      wine, white   0.93  0.92  0.89     0.89  0.87  0.87     0.87      (0.4 to 6.6)
      abalone       0.80  0.80  0.77     0.74  0.71  0.68     0.67      (0.3 to 1.9)
      diabetes      0.74  0.73  0.72     0.75  0.73  0.72     0.71      (0 to 0.4; ε = 1, 2, 4, and 40 splits)

All blocks of the sum have **unit weights**. With 2, 3 and 2 for xxᵀ, xy and y² the excess error is 5 to 25 % smaller on
auxiliary data of three features or more, which are not correlated; but it is 7 to 11 % larger on abalone, whose
features nearly repeat each other, so that noise in xxᵀ weighs more there (200 splits, ε = 1, 2, 4).

The job is sans-IO. How noisy the second round will be follows from what the first one carried: noise scales with the
sensitivity and with one over the square root of the share. So the job needs to know neither N, T nor the budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import NoisyAggregate, SecureSumRequest
from inference.errors import DataError, unknown
from inference.models.linear.aggregate_stats import STATISTIC, posterior_of, result_of
from inference.models.linear.projection import Thresholds, prior_precision, search_thresholds
from inference.models.linear.repair import REPAIR, check_repair
from inference.models.linear.result import RegressionResult
from inference.problem import Schema
from inference.rounds import Job
from inference.scale import marginals, moments_parameters, standard_deviations

Array = NDArray[np.float64]
Sensitivity = Callable[[tuple[float, ...]], float]

INTERCEPT_BOUND = 1.0
STD_SHARE = 0.1
MOMENTS, SECOND_MOMENTS = "moments", "second-moments"
PUBLIC, ESTIMATE = CENTRES = ("public", "estimate")


def box_sensitivity(bounds: tuple[float, ...]) -> float:
    """Σ c_j², which bounds the L2 sensitivity of all unique products of a row (constant, features, target) with y²."""
    return sum(bound * bound for bound in bounds)


def regression_with_projection(
    schema: Schema,
    *,
    rng: np.random.Generator,
    sensitivity: Sensitivity = box_sensitivity,
    std_share: float = STD_SHARE,
    repair: str = REPAIR,
    each_threshold: bool = False,
    centre: str = PUBLIC,
    thresholds: Thresholds | None = None,
) -> Job[RegressionResult]:
    """The job: yields two `SecureSumRequest`s, is sent their `NoisyAggregate`s, returns the regression.

    Args:
        schema: columns and their public bounds.
        rng: for the auxiliary data of the threshold search; nothing private depends on it.
        sensitivity: of the second round's sum, given the bounds (constant, features..., target) of one row. It serves
            the search alone: how much noise is added is for the clients to decide.
        std_share: the first round's share of the budget, in (0, 1).
        repair: one of `REPAIRS`, in the search and in the regression.
        each_threshold: search one threshold for each feature, and not one for all.
        centre: "public", the midpoints of the bounds, or "estimate".
        thresholds: found before, for repeats that would all find the same; None searches.

    Raises:
        DataError: ``std_share`` is not inside (0, 1), or the repair or the centre is unknown.
    """
    _check(std_share, repair, centre)
    moments: NoisyAggregate = yield _moments_request(schema, std_share, centre)
    centres, stds = _marginals(schema, moments)
    per_sensitivity = sqrt(moments.noise_variance * std_share / (1 - std_share)) / moments.sensitivity
    chosen = thresholds or search_thresholds(
        moments.contributors,
        len(schema.features),
        lambda bounds: per_sensitivity * sensitivity(bounds),
        rng,
        intercept_bound=INTERCEPT_BOUND,
        repair=repair,
        each=each_threshold,
    )
    released: NoisyAggregate = yield _regression_request(schema, centres, stds, chosen, 1 - std_share)
    fitted = posterior_of(released, prior_precision(len(schema.features)), repair=repair)
    widened = replace(fitted, residual_variance=fitted.residual_variance + projected_away(chosen.target))
    result = result_of(released, widened, schema, repair)
    return result if moments.private else replace(result, private=False)


def _check(std_share: float, repair: str, centre: str) -> None:
    check_repair(repair)
    if not 0 < std_share < 1:
        raise DataError(f"std_share is {std_share}; expected a number between 0 and 1")
    if centre not in CENTRES:
        raise unknown("centre", centre, None, CENTRES)


def _moments_request(schema: Schema, share: float, centre: str) -> SecureSumRequest:
    """Round 1: squares of each column in half-widths of its public bounds, so that all share the noise fairly.

    With the columns' sums beside the squares where centres are to be estimated.
    """
    centres, widths = schema.centres, schema.half_widths
    if centre == ESTIMATE:
        return SecureSumRequest(MOMENTS, moments_parameters(schema.columns, centres, widths), budget_share=share)
    return SecureSumRequest(SECOND_MOMENTS, _columns(schema, centres, widths, [1.0] * widths.size), budget_share=share)


def _marginals(schema: Schema, moments: NoisyAggregate) -> tuple[Array, Array]:
    """Centres and standard deviations of the columns, in their own units, from round 1."""
    released, widths = (moments.value, moments.contributors, moments.noise_variance), schema.half_widths
    if moments.statistic == SECOND_MOMENTS:
        return schema.centres, standard_deviations(*released) * widths
    offsets, stds = marginals(*released)
    return schema.centres + offsets * widths, stds * widths


def _regression_request(
    schema: Schema, centres: Array, stds: Array, chosen: Thresholds, share: float
) -> SecureSumRequest:
    """Round 2: statistics of rows in standard deviations, projected to ±p."""
    parameters = _columns(schema, centres, stds, chosen.bounds.tolist())
    parameters |= {"intercept": True, "intercept_bound": INTERCEPT_BOUND, "target_square": True}
    return SecureSumRequest(STATISTIC, parameters, budget_share=share)


def _columns(schema: Schema, centre: Array, scale: Array, bound: list[float]) -> dict[str, object]:
    return {"columns": list(schema.columns), "centre": centre.tolist(), "scale": scale.tolist(), "bound": bound}


def projected_away(p: float) -> float:
    """How much of a standard normal's variance the projection to ±p removes, 1 - E[clip(z, ±p)²].

    A prediction is of a target that nobody projects, so the predictive variance gets this back. That is enough, and a
    little more: what the features explain of it counts as unexplained.
    """
    normal = NormalDist()
    outside = 2 * normal.cdf(-p)
    return outside - p * p * outside + 2 * p * normal.pdf(p)
