"""Logistic regression as a learning job: a few rounds of scores, unless noise or very many features speak against them.

    round 0     noisy phases of the features -> centres and scales                         `locate`
    rounds 1-4  scores with the clients' own information, whatever the features' law is    `glm.scoring`
        or, where noise would be too much, or features are very many:
    rounds 1... variational inference
        or by name, for features that are normal:
    round 1     one sum with all of the budget that is left -> the posterior               `one_sum`

The method "auto" chooses between scores and variational inference. Where it does not take scores, the result says why.
One sum is asked for by name, where rounds are dear: at 3 to 20 normal features its errors are 0 to 26 % larger than
those of scores, and other features bias it. Rounds of gradients, by name or by a setting of theirs, have such a sum of
a tenth of the budget as their pilot where that is worth it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from dca_proto.aggregate import NoisyAggregate, SecureSumRequest
from dca_proto.wording import listed
from inference.columns import Standardisation
from inference.errors import DataError, unknown
from inference.locate import locate, located_by
from inference.models.coefficients import LOGIT, Coefficients, NormalPosterior, is_positive
from inference.models.glm.families import Bernoulli
from inference.models.glm.scored_fit import fit_of as scores_fit_of
from inference.models.glm.scored_rounds import ROUNDS, scores, shares, within_bounds
from inference.models.glm.scoring import Rows as SimulatedRows
from inference.models.logistic.one_sum import METHOD, one_sum_posterior, sum_request, too_noisy
from inference.problem import Problem, Schema
from inference.rounds import Job
from inference.variational.clipping import ROWS, Rows
from inference.variational.mean_field_job import ASSUMED, DEFAULT, Score, VariationalSettings, variational_after
from inference.variational.models import BERNOULLI, PRIOR_SD, gaussian_prior, generalised_linear
from inference.variational.progress import OnProgress
from inference.variational.scores import area_under_curve

Array = NDArray[np.float64]

STEPS, PULL = 30, 0.001  # of Newton's method, of at most 1 each, to where the next round asks
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
    """The job: yields `SecureSumRequest`s, is sent `NoisyAggregate`s, returns the fit.

    Args:
        rng: for auxiliary rows and Monte Carlo draws; nothing private depends on it, and a restarted job needs it in
            the same state again. method: one of `METHODS`. settings: as of `method_of`.
        prior_sd: of each standardised coefficient, the intercept among them. The rounds ask the same whatever it is.
        held_out: rows that the trainer holds, for the score that `on_progress` is told after each round of gradients.

    Raises:
        DataError: before the first round, of an unknown method, a setting that the method does not read, held-out rows
            of one class and a prior that is not above 0.
        NoAggregate: of the first two rounds, without which there is no result.
    """
    method = method_of(method, settings)
    gaussian_prior(prior_sd)  # refuses what is none
    score = None if held_out is None else score_on(held_out)
    phases = yield located_by(schema, settings.std_share, schema.features)
    columns, left = locate(phases).standardisation(schema, settings.bound), 1 - settings.std_share
    said: tuple[str, ...] = ()
    if method == AUTO:
        per_sensitivity = sqrt(phases.noise_variance * settings.std_share / left) / phases.sensitivity
        reasons = too_noisy(len(schema.features), per_sensitivity, phases.contributors)
        said = tuple(f"learned from gradients alone and not from scores: {reason}" for reason in reasons)
        method = VARIATIONAL if reasons else SCORES
    if method == ONE_SUM:
        aggregate = yield sum_request(columns, left)
        return of_one_sum(schema, columns, phases, aggregate, prior_sd)
    if method == SCORES:
        parts, start = shares(ROUNDS, settings.std_share), np.zeros(len(schema.features) + 2)
        within = within_bounds(columns, schema, Bernoulli())
        aggregates = yield from scores(phases, within, Bernoulli(), parts, settings.std_share, start, nearer, PRIOR_SD)
        return scores_fit_of(aggregates, prior_sd, schema=schema)
    model, pilot = generalised_linear(schema, BERNOULLI), OneSumPilot(settings.std_share)
    fit = yield from variational_after(
        phases, schema, model, rng, settings, pilot, score=score, on_progress=on_progress
    )
    return of_gradients(schema, said, fit, prior_sd)


def method_of(method: str, settings: VariationalSettings) -> str:
    """The method that settings ask for: "auto" is variational inference where a setting of it is not its default.

    All methods read ``std_share``, one sum also ``bound``, variational inference all.

    Raises:
        DataError: the method is unknown, or does not read one of the settings.
    """
    if method not in METHODS:
        raise unknown("method", method, None, METHODS)
    names = [one.name for one in fields(VariationalSettings) if one.name != "std_share"]
    asked = [name for name in names if getattr(settings, name) != getattr(DEFAULT, name)]
    if method == AUTO:
        return VARIATIONAL if asked else AUTO
    unread = [] if method == VARIATIONAL else [name for name in asked if (method, name) != (ONE_SUM, "bound")]
    if unread:
        raise DataError(f"method {method!r} does not read {listed(unread)}; leave it out, or take method=variational")
    return method


def nearer(asked: Array, phi: Array, rows: SimulatedRows) -> Array:
    """Where to ask next: the θ at which simulated rows have the mean score that a step from `asked` to φ stands for.

    From slopes of 0 the step falls short of strong effects and of a rare class; simulated rows know by how much. Only
    the place of a round hangs on them, not its result. A weak pull to φ keeps θ finite whatever the noise is.
    """
    x, theta = rows.x, asked[:-1].copy()
    p = expit(x @ theta)
    target = x.T @ p / len(x) + (x.T * (p * (1 - p))) @ x @ (phi - asked)[:-1] / len(x)
    for _ in range(STEPS):
        p = expit(x @ theta)
        slope = (x.T * (p * (1 - p))) @ x / len(x) + PULL * np.eye(theta.size)
        step = np.linalg.solve(slope, target - x.T @ p / len(x) - PULL * (theta - phi[:-1]))
        theta += step * min(1.0, 1 / max(float(np.linalg.norm(step)), 1.0))
    return np.asarray(np.r_[theta, phi[-1]])


def score_on(rows: Problem) -> Score:
    """What iterations are scored by, on rows that the trainer holds. Raises `DataError` of rows of one class."""
    positive = is_positive(rows)
    area_under_curve(rows.y, positive)  # refuses rows of one class before anything is spent

    def area(mean: Array, sd: Array, columns: Standardisation) -> float:
        return area_under_curve(mean[0] + columns.z(rows.X) @ mean[1:], positive)

    return Score("held-out AUC", area)


def of_one_sum(
    schema: Schema, columns: Standardisation, phases: NoisyAggregate, aggregate: NoisyAggregate, prior_sd: float
) -> Coefficients:
    """The regression from the first round's columns and one sum."""
    found = one_sum_posterior(aggregate, prior_sd)
    return Coefficients(
        schema=schema,
        link=LOGIT,
        columns=columns,
        mean=found.mean,
        cov=found.cov,
        method=METHOD,
        prior_sd=prior_sd,
        contributors=aggregate.contributors,
        private=schema.private and phases.private and aggregate.private,
        aggregates=(phases, aggregate),
        warnings=(ASSUMED, *locate(phases).warnings),
        again=partial(of_one_sum, schema, columns, phases, aggregate),
    )


def of_gradients(schema: Schema, said: tuple[str, ...], fit: NormalPosterior, prior_sd: float) -> Coefficients:
    """The regression from a fit of gradients, under this prior. Args: said: further warnings."""
    found = fit.refit(prior_sd=prior_sd)
    own: dict[str, Any] = {"warnings": (*said, *found.warnings), "again": partial(of_gradients, schema, said, fit)}
    return Coefficients(**{**vars(found), **own, "link": LOGIT, "schema": schema})


@dataclass(frozen=True)
class OneSumPilot:
    """The same sum with a small share, as the pilot of variational inference: `variational.mean_field_job.Pilot`."""

    share: float

    def request(self, columns: Standardisation, noise_per_sensitivity: float, n: int) -> SecureSumRequest | None:
        """None where noise would be too much, or the numbers too many."""
        d = len(columns.columns) - 1
        return None if too_noisy(d, noise_per_sensitivity, n) else sum_request(columns, self.share)

    def rows(self, aggregate: NoisyAggregate, rng: np.random.Generator) -> Rows:
        """Normal rows with the phases of the sum, and its coefficients."""
        found = one_sum_posterior(aggregate, PRIOR_SD)
        x = rng.multivariate_normal(found.feature_mean, found.feature_cov, ROWS)
        return Rows(np.insert(x, 0, 1.0, axis=1), found.mean)
