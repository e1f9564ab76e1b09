"""Job `logistic`: Bayesian logistic regression, from a few rounds of scores unless noise or many features forbid it.

    round 0     noisy phases of the features -> centres and scales                         `locate`
    rounds 1-4  scores with the clients' own information, for features of any law          `glm.scoring`
        or, if there is too much noise or there are too many features:
    rounds 1... variational inference
        or only by name, for normal features:
    round 1     one sum with all of the remaining budget -> the posterior                  `one_sum`

The method "auto" chooses between scores and variational inference. If it does not take scores, the result says why. Ask
for "one-sum" if rounds are expensive: with 3 to 20 normal features its errors are 0 to 26 % larger than those of
scores, and other features bias it. Variational inference starts with such a sum as a pilot, with a tenth of the budget,
unless that would be too noisy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from math import sqrt
from typing import Any

import numpy as np

from dca_proto.aggregate import NoisyAggregate
from dca_proto.wording import listed
from inference.columns import Standardisation
from inference.draws import all_private
from inference.errors import DataError
from inference.jobs.base import Conditions, Estimable, Stage
from inference.jobs.examples import CLASS, Clean, Example
from inference.jobs.settings import one_of, require_choice, require_positive, setting
from inference.locate import STATISTIC as PHASES
from inference.locate import locate, phases_request
from inference.models.coefficients import LOGIT, Coefficients
from inference.models.doubts import about_data
from inference.models.glm.families import Bernoulli
from inference.models.glm.job import scores
from inference.models.glm.scored_fit import STATISTIC, exact_fit, regression_of_scores
from inference.models.law import NormalLaw
from inference.models.logistic.one_sum import (
    about_rows,
    one_sum_posterior,
    one_sum_regression,
    regression_of_sum,
    sum_request,
    too_noisy,
)
from inference.models.score_rounds import ROUNDS, stages_of
from inference.models.scores import area_under_curve, is_positive
from inference.models.shrinkage import SHRINKAGE, Shrinkage, ShrunkJob, shrinkable
from inference.problem import Array, Problem, Schema
from inference.rounds import Job
from inference.variational.clipping import ROWS, Rows
from inference.variational.mean_field_job import (
    ASSUMED,
    DEFAULT,
    UNCORRELATED,
    VariationalSettings,
    variational_after,
)
from inference.variational.models import BERNOULLI, PRIOR_SD, generalised_linear
from inference.variational.progress import OnProgress, Score
from inference.variational.schedule import ITERATIONS_MAX, PILOTED_MAX, stages

WIDER = 1.2  # how much wider correlations could make the intercept's interval, to be said
AUTO, ONE_SUM, SCORES, VARIATIONAL = METHODS = ("auto", "one-sum", "scores", "variational")


def logistic_regression(
    schema: Schema,
    *,
    rng: np.random.Generator,
    method: str = AUTO,
    settings: VariationalSettings = DEFAULT,
    prior_sd: float = PRIOR_SD,
    held_out: Problem | None = None,
    on_progress: OnProgress | None = None,
) -> Job[Coefficients]:
    """Run the job: a generator that yields `RoundRequest`s, receives `NoisyAggregate`s and returns the fit.

    Args:
        rng: for auxiliary rows and Monte Carlo draws; the privacy noise does not use it. A restarted job needs it in
            the same state. method: one of `METHODS`. settings: as for `method_of`.
        prior_sd: of each standardised coefficient, the intercept included. The rounds do not depend on it.
        held_out: the trainer's own rows, for the score that `on_progress` gets after each round of gradients.

    Raises:
        DataError: the method is unknown or does not use one of the settings, held-out rows are of one class, or the
            prior is not above 0; raised before the first round.
        NoAggregate: a round ended without a sum (after the first round of gradients, the job ends early instead).
    """
    method, share = method_of(method, settings), settings.std_share
    require_positive("prior_sd", prior_sd)
    score = None if held_out is None else score_on(held_out)
    phases = yield phases_request(schema, share, schema.features)
    notes: tuple[str, ...] = ()
    if method == AUTO:
        per_sensitivity = sqrt(phases.noise_variance * share / (1 - share)) / phases.sensitivity
        reasons = too_noisy(len(schema.features), per_sensitivity, phases.contributors)
        notes = tuple(f"learned from gradients alone and not from scores: {reason}" for reason in reasons)
        method = VARIATIONAL if reasons else SCORES
    columns = locate(phases).standardisation(schema, settings.bound)
    if method == ONE_SUM:
        aggregate = yield sum_request(columns, 1 - share)
        return _of_one_sum(schema, columns, phases, aggregate, prior_sd)
    if method == SCORES:
        aggregates = yield from scores(phases, schema, Bernoulli(), ROUNDS, share, curves=True)
        return regression_of_scores(aggregates, prior_sd, schema=schema)
    rows, per_sensitivity = None, sqrt(phases.noise_variance) / phases.sensitivity
    if not too_noisy(len(schema.features), per_sensitivity, phases.contributors):
        rows = _rows_like((yield sum_request(columns, share)), rng)
    model = generalised_linear(schema, BERNOULLI)
    fit = yield from variational_after(phases, schema, model, rng, settings, rows, score=score, on_progress=on_progress)
    return _of_gradients(schema, notes, fit, prior_sd)


def method_of(method: str, settings: VariationalSettings) -> str:
    """Resolve the method: "auto" becomes variational inference if one of its settings is not the default.

    All methods use ``std_share``; one sum also ``bound``; variational inference all settings.

    Raises:
        DataError: the method is unknown, or does not use one of the settings.
    """
    require_choice("method", method, METHODS)
    names = [field.name for field in fields(VariationalSettings) if field.name != "std_share"]
    asked = [name for name in names if getattr(settings, name) != getattr(DEFAULT, name)]
    if method == AUTO:
        return VARIATIONAL if asked else AUTO
    unread = [] if method == VARIATIONAL else [name for name in asked if (method, name) != (ONE_SUM, "bound")]
    if unread:
        raise DataError(f"method {method!r} does not read {listed(unread)}; leave it out, or take method=variational")
    return method


def score_on(rows: Problem) -> Score:
    """Return the score of iterations on the trainer's held-out rows. Raises `DataError` if they are of one class."""
    positive = is_positive(rows)
    area_under_curve(rows.y, positive)  # raises if rows are of one class, before any budget is spent
    return Score(
        "held-out AUC",
        lambda theta, columns: area_under_curve(theta[0] + columns.z(rows.X) @ theta[1:], positive),
    )


def of_both_classes(rows: Problem | None) -> Problem | None:
    """Return the rows, or None unless both classes occur."""
    return rows if rows is not None and len(np.unique(is_positive(rows))) > 1 else None


def _of_one_sum(
    schema: Schema, columns: Standardisation, phases: NoisyAggregate, aggregate: NoisyAggregate, prior_sd: float
) -> Coefficients:
    return replace(
        one_sum_regression([aggregate], columns, prior_sd),
        schema=schema,
        private=all_private([phases, aggregate], schema),
        aggregates=(phases, aggregate),
        warnings=(ASSUMED, *about_data(about_rows([aggregate]), [phases])),
        refitter=shrinkable(partial(_of_one_sum, schema, columns, phases, aggregate, prior_sd=prior_sd)),
    )


def _of_gradients(schema: Schema, notes: tuple[str, ...], fit: NormalLaw, prior_sd: float) -> Coefficients:
    refitted = fit.refit(prior_sd=prior_sd)
    refitter = shrinkable(partial(_of_gradients, schema, notes, fit, prior_sd=prior_sd))
    own: dict[str, Any] = {"refitter": refitter, "link": LOGIT, "schema": schema}
    found = Coefficients(**{**vars(refitted), **own})
    warnings = (about_intercept(found) if one == UNCORRELATED else one for one in found.warnings)
    return replace(found, warnings=(*notes, *warnings))


def about_intercept(fit: Coefficients) -> str:
    """Return the warning about correlations, with how wide they could make the interval at features of 0."""
    worst = float(fit.sd[0] + np.abs(fit.columns.centre[:-1]) @ fit.coefficient_sd)
    times = worst / float(fit.intercept_sd)
    if times < WIDER:
        return UNCORRELATED
    return f"{UNCORRELATED}; the intercept's, which is at features of 0, could be {times:.2g} times as wide"


def _rows_like(aggregate: NoisyAggregate, rng: np.random.Generator) -> Rows:
    """Draw normal rows with the mean and covariance of the features; return them with the sum's coefficients."""
    posterior = one_sum_posterior(aggregate, PRIOR_SD)
    x = rng.multivariate_normal(posterior.feature_mean, posterior.feature_cov, ROWS)
    return Rows(np.insert(x, 0, 1.0, axis=1), posterior.mean)


@dataclass(frozen=True)
class Settings(Shrinkage, VariationalSettings):
    """Settings of `logistic`: those of variational inference, the method and the prior."""

    method: str = setting(
        AUTO,
        "scores, variational, one-sum (for normal features), or auto: scores if noise and number of features allow.",
        one_of(METHODS),
    )
    prior_sd: float = setting(
        PRIOR_SD, "Standard deviation of the prior of each standardised coefficient.", require_positive
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        method_of(self.method, self)  # raises if the method does not use a setting


def of_rows(X: Array, y: Array, estimator: Any) -> Coefficients:
    """Return the posterior given raw rows; y is 1 for the second class, else 0."""
    return exact_fit(X, y, Bernoulli(), estimator.prior_sd)


def of_released(aggregates: Sequence[NoisyAggregate], estimator: Any) -> Coefficients:
    """Return the posterior given rounds of scores, or a sum of the statistic "regression"."""
    if {aggregate.statistic for aggregate in aggregates} == {PHASES}:
        raise DataError(
            "found the round of phases alone; expected all rounds of a job 'logistic', or a sum 'regression'"
        )
    scored = any(aggregate.statistic == STATISTIC for aggregate in aggregates)
    return (regression_of_scores if scored else regression_of_sum)(aggregates, estimator.prior_sd)


class Logistic(ShrunkJob):
    """Logistic regression."""

    name, title, settings = "logistic", "Effect on the log odds of {target}", Settings
    iterative = of_two = True
    changeable = ("prior_sd", *SHRINKAGE)
    estimator = Estimable("PrivateLogisticRegression", CLASS, of_rows, of_released)
    about = "[logistic regression](#logistic-regression), in five rounds or more"
    examples, clean = (Example(CLASS, {"epochs": 4}),), Clean(CLASS)

    def plan(self, schema: Schema, settings: Settings, conditions: Conditions) -> list[Stage]:
        """Plan scales, then scores or one sum; or a pilot and as many iterations as the noise makes worthwhile."""
        first, d = settings.std_share, len(schema.features)
        n = conditions.clients
        noise = sqrt(n / max(1, n - conditions.tolerate - 1)) / conditions.mu
        method = method_of(settings.method, settings)
        if method == ONE_SUM:
            return [Stage(1, first, "on scales"), Stage(1, 1 - first, "on one sum")]
        if method == SCORES or (method == AUTO and not too_noisy(d, noise / sqrt(1 - first), n)):
            return stages_of(ROUNDS, first)
        pilot = [] if too_noisy(d, noise / sqrt(first), n) else [Stage(1, first, "on a first fit")]
        most = PILOTED_MAX if pilot else ITERATIONS_MAX
        return stages(d + 1, first, settings.epochs, settings.batch, conditions, most, pilot)

    def rounds(self, schema: Schema, settings: Settings, conditions: Conditions) -> Job[Coefficients]:
        """Run the job; iterations are scored on the held-out rows if both classes occur there."""
        return logistic_regression(
            schema,
            rng=conditions.rng,
            method=settings.method,
            settings=settings,
            held_out=of_both_classes(conditions.held_out),
            on_progress=conditions.on_iteration,
        )

    def exact(self, train: Problem, settings: Settings) -> Coefficients:
        """Fit Laplace's approximation (Bishop 2006, section 4.5) to standardised rows, with the same prior.

        Raises:
            DataError: the target has values other than its two bounds, or only one of them.
        """
        bounds = train.schema.bounds[train.schema.target]
        others = np.count_nonzero((train.y != bounds.lower) & (train.y != bounds.upper))
        if others or len(np.unique(train.y)) < 2:
            raise DataError(
                f"target {train.schema.target!r} has {len(np.unique(train.y))} values; job 'logistic' needs the two "
                f"that are its bounds, {bounds.lower:g} and {bounds.upper:g}"
            )
        y = is_positive(train).astype(float)
        return exact_fit(train.X, y, Bernoulli(), settings.prior_sd, (*train.schema.features, "y"))
