"""Poisson and Student-t regression as a learning job: a round for scales, then a few of scores (`scoring`).

The first round gives centres and scales of the features, and where to start: slopes of 0, for counts the
logarithm of their mean, for Student-t the mean and standard deviation of the target. Counts are left in their own
units, clipped at their public upper bound; a target with outliers is measured in its standard deviation and clipped at
its public bounds. Features are clipped at their public bounds too: a score's norm is bounded, so that nothing else
needs a limit, and a rare value of a binary feature may be many standard deviations out. `FAR` is a limit of arithmetic
alone, of counts: exp(η) of the farthest row that the bounds allow must be a number.

The first round of scores has slopes of 0, where the information is a multiple of the features' second moments. Only the
last asks for κ's term. Between them, κ is what the variance of the counts leaves beyond what the features explain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf, log, sqrt

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import NoisyAggregate, SecureSumRequest
from inference.columns import Standardisation
from inference.errors import DataError
from inference.locate import locate, located_by
from inference.models.coefficients import Coefficients
from inference.models.glm.families import Family, rate
from inference.models.glm.scored_fit import PRIOR_SD, STATISTIC, fit_of, phi_of, prior_of, rows_of, simulated
from inference.models.glm.scoring import Prior, Rows, Terms, best_terms
from inference.problem import Schema
from inference.rounds import Job

Array = NDArray[np.float64]

STD_SHARE, ROUNDS = 0.1, 4
SHARES = (1.0, 1.0, 2.0, 4.0)  # of the rounds of scores, the last ones where there are fewer; the first is repeated
FAR = 60.0  # standard deviations, over the root of the number of features: no feature is farther from its centre
REACH_MAX = 100.0  # of a row's linear predictor at the slopes that a round asks about
DISPERSION_MAX = 5.0  # that a clip is planned for


def shares(rounds: int, std_share: float) -> list[float]:
    """Of the job's μ², of each round of scores."""
    parts = np.array([SHARES[0]] * (rounds - len(SHARES)) + list(SHARES[-rounds:]))
    return [float(part) for part in (1 - std_share) * parts / parts.sum()]


def scored_regression(
    schema: Schema,
    family: Family,
    *,
    prior_sd: float = PRIOR_SD,
    rounds: int = ROUNDS,
    std_share: float = STD_SHARE,
) -> Job[Coefficients]:
    """The job: yields `SecureSumRequest`s, is sent `NoisyAggregate`s, returns the fit.

    Args:
        prior_sd: of each slope, with features in standard deviations. rounds: of scores, at least 1.
        std_share: the first round's part of the budget.

    Raises:
        DataError: before the first round: a number is out of range, or counts have a lower bound below 0.
        NoAggregate: a round ended without a sum.
    """
    check(schema, family)
    if rounds < 1:
        raise DataError(f"rounds is {rounds}; expected at least 1 round of scores")
    left = shares(rounds, std_share)
    phases = yield located_by(schema, std_share, schema.columns)
    columns, mean, sd = _columns(schema, phases, family)

    def following(asked: Array, phi: Array, rows: Rows) -> Array:
        return _next(phi, rows, columns, mean, sd)

    start = _start(prior_of(family, columns, PRIOR_SD), family, mean, sd)
    aggregates = yield from scores(phases, columns, family, left, std_share, start, following)
    return fit_of(aggregates, prior_sd, schema=schema)


def scores(
    phases: NoisyAggregate,
    columns: Standardisation,
    family: Family,
    left: Sequence[float],
    std_share: float,
    phi: Array,
    following: Callable[[Array, Array, Rows], Array],
    prior_sd: float = PRIOR_SD,
) -> Job[tuple[NoisyAggregate, ...]]:
    """The rounds of scores, after that of phases, which ask the same whatever prior is meant in the end.

    Args:
        left: each round's share. phi: where the first one asks, with slopes of 0.
        following: where the next one does, given where the last one did and
            the posterior mean.

    Returns:
        The aggregates of all rounds.
    """
    per_sensitivity = sqrt(phases.noise_variance * std_share) / phases.sensitivity
    prior = prior_of(family, columns, prior_sd)
    rows = rows_of(family, columns, np.eye(len(columns.columns)))
    aggregates = [phases]
    for place, share in enumerate(left):
        last = place == len(left) - 1
        terms = best_terms(rows, phi, phases.contributors, per_sensitivity / sqrt(share), prior, last=last)
        aggregates.append((yield _request(columns, family, terms, share)))
        if not last:
            rows = simulated(aggregates)
            phi = following(phi, phi_of(aggregates, prior_sd).mean, rows)
    return tuple(aggregates)


def check(schema: Schema, family: Family) -> None:
    """Raise `DataError` where the target's bounds are none of counts."""
    lower = schema.bounds[schema.target].lower
    if family.disperses and lower < 0:
        raise DataError(f"target {schema.target!r} has the lower bound {lower:g}; counts start at 0, so give 0:HIGH")


def _columns(schema: Schema, phases: NoisyAggregate, family: Family) -> tuple[Standardisation, float, float]:
    """Columns within their public bounds, the target as the model takes it; its mean and sd in its own units."""
    found = locate(phases).standardisation(schema, inf)
    mean, sd = float(found.centre[-1]), float(found.scale[-1])
    if family.own_units:
        found.centre[-1], found.scale[-1] = 0.0, 1.0
    return within_bounds(found, schema, family), mean, sd


def within_bounds(columns: Standardisation, schema: Schema, family: Family) -> Standardisation:
    """The same, clipped at the public bounds alone, as at the head."""
    farthest = (schema.half_widths + np.abs(schema.centres - columns.centre)) / columns.scale
    if not family.bounded:
        farthest[:-1] = np.minimum(farthest[:-1], FAR / sqrt(farthest.size - 1))
    return replace(columns, bound=farthest)


def _start(prior: Prior, family: Family, mean: float, sd: float) -> Array:
    phi = prior.mean.copy()
    if family.disperses:
        count = max(mean, sd / 20)
        phi[0], phi[-1] = log(count), min(max((sd**2 - count) / count**2, 0.0), DISPERSION_MAX)
    return phi


def _next(phi: Array, rows: Rows, columns: Standardisation, mean: float, sd: float) -> Array:
    """Where to ask next: the posterior mean, with slopes that no row's predictor leaves all reason with."""
    phi = phi.copy()
    farthest = float(np.abs(phi[1:-1]) @ columns.bound[:-1])
    phi[1:-1] *= min(1.0, REACH_MAX / max(farthest, REACH_MAX))
    if rows.family.disperses:
        squares = float(np.mean(rate(phi, rows.x) ** 2))
        phi[-1] = min(max((sd**2 + mean**2 - mean) / squares - 1, 0.0), DISPERSION_MAX)
    return phi


def _request(columns: Standardisation, family: Family, terms: Terms, share: float) -> SecureSumRequest:
    theta = terms.phi[:-1] if family.disperses else terms.phi
    parameters = columns.parameters() | family.parameters
    parameters |= {"theta": [float(value) for value in theta], "clip": terms.clip, "information": terms.information}
    if terms.dispersion:
        parameters["dispersion"] = terms.dispersion
    return SecureSumRequest(STATISTIC, parameters, budget_share=share)
