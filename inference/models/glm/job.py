"""Jobs `poisson-regression` and `robust-regression`: counts, and targets with outliers, on features.

They run a round for scales, then a few of scores (`scoring`), as job `logistic` does. The first round gives centres and
scales of the features, and the start: slopes of 0, for counts the logarithm of their mean, for Student-t the mean and
standard deviation of the target. Counts stay in their own units, clipped at their public upper bound. A target with
outliers is measured in its standard deviation and clipped at its public bounds. Features are also clipped only at their
public bounds: a score's norm is bounded anyway, and a rare value of a binary feature may be many standard deviations
out. `FAR` only prevents overflow, for counts: exp(η) of the farthest row within the bounds must be finite.

The first round of scores has slopes of 0, where the information is a multiple of the features' second moments. Only the
last asks for κ's term. In between, κ is estimated from the variance of the counts that the features do not explain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, log, sqrt
from typing import Any

import numpy as np

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from inference.columns import COUNT_WEIGHT, Standardisation
from inference.errors import DataError
from inference.jobs.base import EFFECT, Conditions, Estimable, Stage
from inference.jobs.examples import COUNT, NUMBER, Clean, Example
from inference.jobs.settings import require_positive, setting
from inference.locate import locate, phases_request
from inference.models.coefficients import Coefficients
from inference.models.glm.families import Family, Poisson, StudentT, rate
from inference.models.glm.scored_fit import (
    PRIOR_SD,
    STATISTIC,
    Scores,
    exact_fit,
    family_of,
    prior_of,
    regression_of_scores,
    rows_of,
)
from inference.models.glm.scoring import Request, Rows, best_request
from inference.models.score_regression import Normal
from inference.models.score_rounds import ROUNDS, STD_SHARE, ScoreSettings, score_rounds, stages_of
from inference.models.shrinkage import SHRINKAGE, Shrinkage, ShrunkJob
from inference.problem import Array, Problem, Schema
from inference.rounds import Job

FAR = 60.0  # d features lie within FAR/√d standard deviations of their centres
REACH_MAX = 100.0  # largest linear predictor of a row at a round's slopes
DISPERSION_MAX = 5.0  # largest κ that a clip is planned for


def scored_regression(
    schema: Schema,
    family: Family,
    *,
    prior_sd: float = PRIOR_SD,
    rounds: int = ROUNDS,
    std_share: float = STD_SHARE,
) -> Job[Coefficients]:
    """Run the job: a generator that yields `RoundRequest`s, receives `NoisyAggregate`s and returns the fit.

    Args:
        prior_sd: of each slope, with features in standard deviations. rounds: number of rounds of scores, at least 1.
        std_share: the first round's share of the budget.

    Raises:
        DataError: a number is out of range, or counts have a lower bound below 0; raised before the first round.
        NoAggregate: a round ended without a sum.
    """
    check(schema, family)
    Settings(rounds=rounds, std_share=std_share, prior_sd=prior_sd)  # checks them
    phases = yield phases_request(schema, std_share, schema.columns)
    aggregates = yield from scores(phases, schema, family, rounds, std_share, curves=True)
    return regression_of_scores(aggregates, prior_sd, schema=schema)


def scores(
    phases: NoisyAggregate,
    schema: Schema,
    family: Family,
    rounds: int,
    std_share: float,
    estimate: Callable[[Scores], Normal] | None = None,
    *,
    curves: bool = False,
) -> Job[tuple[NoisyAggregate, ...]]:
    """Run the rounds of scores after that of phases; they do not depend on the final prior.

    Args:
        estimate: where the next round asks, given all so far; by default the posterior of one φ for all rows.
        curves: whether the last round asks for the scores of curves.

    Returns:
        The aggregates of all rounds, phases included.
    """
    columns, mean, sd = _standardised(schema, phases, family)
    prior = prior_of(family, columns, family.prior_sd)

    def ask(aggregates: Sequence[NoisyAggregate], noise: float, share: float, last: bool) -> RoundRequest:
        rows, phi = rows_of(family, columns, np.eye(len(columns.columns))), _start(prior.mean, family, mean, sd)
        if len(aggregates) > 1:
            released = Scores.of(aggregates)
            rows = released.rows
            found = estimate(released) if estimate else released.phi(family.prior_sd)
            phi = _next_phi(found, rows, columns, mean, sd)
        request = best_request(rows, phi, phases.contributors, noise, prior, last=last, curves=last and curves)
        return _request(columns, family, request, share)

    return (yield from score_rounds(phases, rounds, std_share, ask))


def check(schema: Schema, family: Family) -> None:
    """Raise `DataError` if a target of counts has a lower bound below 0."""
    lower = schema.bounds[schema.target].lower
    if family.sends_dispersion and lower < 0:
        raise DataError(f"target {schema.target!r} has the lower bound {lower:g}; counts start at 0, so give 0:HIGH")


def _standardised(schema: Schema, phases: NoisyAggregate, family: Family) -> tuple[Standardisation, float, float]:
    """Return the columns as the model takes them, within public bounds; the target's mean and sd in own units."""
    columns = locate(phases).standardisation(schema, inf)
    mean, sd = float(columns.centre[-1]), float(columns.scale[-1])
    if family.sends_dispersion:
        columns.centre[-1], columns.scale[-1] = 0.0, 1.0
    farthest = columns.farthest(schema)
    if not family.bounded:
        farthest[:-1] = np.minimum(farthest[:-1], FAR / sqrt(farthest.size - 1))
    return replace(columns, bound=farthest), mean, sd


def _start(phi: Array, family: Family, mean: float, sd: float) -> Array:
    phi = phi.copy()
    if family.sends_dispersion:
        count = max(mean, sd / 20)
        phi[0], phi[-1] = log(count), min(max((sd**2 - count) / count**2, 0.0), DISPERSION_MAX)
    return phi


def _next_phi(estimate: Normal, rows: Rows, columns: Standardisation, mean: float, sd: float) -> Array:
    """Return the next round's φ: the posterior mean, with slopes small enough that no row's exp(η) overflows.

    Given an uncertain θ, counts are more dispersed, by the variance of η. κ includes it, so that a round that asks far
    from the truth has no few rows that outweigh all others.
    """
    phi, size = estimate.mean.copy(), rows.x.shape[1]
    if not rows.family.bounded:
        farthest = float(np.abs(phi[1:-1]) @ columns.bound[:-1])
        phi[1:-1] *= min(1.0, REACH_MAX / max(farthest, REACH_MAX))
    if rows.family.sends_dispersion:
        squares = float(np.mean(rate(phi, rows.x) ** 2))
        uncertain = float(np.mean(((rows.x @ estimate.cov[:size, :size]) * rows.x).sum(axis=1)))
        phi[-1] = min(max((sd**2 + mean**2 - mean) / squares - 1, 0.0) + uncertain, DISPERSION_MAX)
    return phi


def _request(columns: Standardisation, family: Family, request: Request, share: float) -> RoundRequest:
    theta = request.phi[:-1] if family.disperses else request.phi
    parameters = columns.parameters() | family.parameters
    parameters |= {"theta": [float(value) for value in theta], "clip": request.clip, "information": request.information}
    parameters["count_weight"] = COUNT_WEIGHT * request.clip
    if family.sends_dispersion and request.phi[-1] > 0:
        parameters["overdispersion"] = float(request.phi[-1])
    if request.dispersion:
        parameters["dispersion"] = request.dispersion
    if request.curves:
        parameters["curves"] = True
    return RoundRequest(STATISTIC, parameters, budget_share=share)


@dataclass(frozen=True)
class Settings(ScoreSettings, Shrinkage):
    """Settings of `poisson-regression`, and the base of the other's."""

    prior_sd: float = setting(
        PRIOR_SD, "Standard deviation of the prior of each standardised coefficient.", require_positive
    )

    @property
    def family(self) -> Family:
        """The model."""
        return Poisson()


@dataclass(frozen=True)
class RobustSettings(Settings):
    """Settings of `robust-regression`."""

    degrees: float = setting(
        StudentT.degrees,
        "Degrees of freedom of the residuals' Student-t law; fewer give outliers less influence.",
        require_positive,
    )

    @property
    def family(self) -> Family:
        return StudentT(self.degrees)


def of_rows(X: Array, y: Array, estimator: Any) -> Coefficients:
    """Return the posterior given raw rows."""
    return exact_fit(X, y, estimator.job_settings().family, estimator.prior_sd)


def of_released(aggregates: Sequence[NoisyAggregate], estimator: Any) -> Coefficients:
    """Return the posterior given all rounds. Raises `DataError` for those of another family."""
    fit, found = regression_of_scores(aggregates, estimator.prior_sd), family_of(aggregates[-1])
    wanted: Family = estimator.job_settings().family
    if type(found) is not type(wanted):
        raise DataError(
            f"the aggregates are of the family {found.name!r}; expected {wanted.name!r}, so take the other estimator"
        )
    return fit


class PoissonRegression(ShrunkJob):
    """Regression of counts."""

    name, title, settings = "poisson-regression", "Effect on the log of {target}", Settings
    changeable = ("prior_sd", *SHRINKAGE)
    about = "regression of counts, with dispersion, in five rounds"
    estimator = Estimable("PrivatePoissonRegression", COUNT, of_rows, of_released)
    examples, clean = (Example(COUNT),), Clean(COUNT)

    def check(self, schema: Schema, settings: Settings) -> None:
        super().check(schema, settings)
        check(schema, settings.family)

    def plan(self, schema: Schema, settings: Settings, conditions: Conditions) -> list[Stage]:
        return stages_of(settings.rounds, settings.std_share)

    def rounds(self, schema: Schema, settings: Settings, conditions: Conditions) -> Job[Coefficients]:
        return scored_regression(schema, settings.family, rounds=settings.rounds, std_share=settings.std_share)

    def exact(self, train: Problem, settings: Settings) -> Coefficients:
        """Fit the model to raw rows. Raises `DataError` if the targets are not counts."""
        return exact_fit(train.X, train.y, settings.family, settings.prior_sd, train.schema.columns)


class RobustRegression(PoissonRegression):
    """Regression of targets with outliers."""

    name, title, settings = "robust-regression", EFFECT, RobustSettings
    about = "linear regression for targets with outliers, in five rounds"
    estimator = Estimable("PrivateRobustRegression", NUMBER, of_rows, of_released)
    examples, clean = (Example(),), Clean("outliers")
