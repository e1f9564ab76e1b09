"""Logistic regression as a learning job: from one secure sum where features are about normal, else over many rounds.

    round 0     noisy moments of the features -> centres and scales                    `variational.standardise`
    round 1     one sum with all of the budget that is left -> the posterior           `one_sum`
        or, where features are not normal:
    rounds 1-4  clipped scores with the clients' own information                       `glm.scoring`
        or, where noise would be too much, or features are very many:
    rounds 1... variational inference, with a sum of a tenth of the budget as its pilot where that is worth it

With the method "auto" the first round decides. If one sum will not do, the result says why. "one-sum", "scores"
and "variational" do not look. Rounds of gradients are asked for by name: a number of epochs or a batch means
"variational".
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import NoisyAggregate, SecureSumRequest
from inference.errors import unknown
from inference.models.glm.families import Bernoulli
from inference.models.glm.scored_rounds import ROUNDS, scores, shares, within_bounds
from inference.models.logistic.one_sum import about_tails, not_normal, one_sum_posterior, sum_request, too_noisy
from inference.problem import Problem, Schema
from inference.rounds import Job
from inference.variational.clipping import ROWS, Rows
from inference.variational.generalised_linear_fit import GeneralisedLinearFit, score_on
from inference.variational.mean_field_job import DEFAULT, VariationalSettings, variational_after
from inference.variational.models import BERNOULLI, INTERCEPT, PRIOR_SD, generalised_linear
from inference.variational.normal_fit import NormalFit
from inference.variational.progress import OnProgress
from inference.variational.standardise import Standardisation, moments_request, standardised, variance_error

Array = NDArray[np.float64]

AUTO, ONE_SUM, SCORES, VARIATIONAL = METHODS = ("auto", "one-sum", "scores", "variational")
ASSUMED = "intervals rest on normal features, and are not to be trusted where features are rare, skewed or binary"


def logistic_regression(
    schema: Schema,
    *,
    rng: np.random.Generator,
    method: str = AUTO,
    settings: VariationalSettings = DEFAULT,
    prior_sd: float = PRIOR_SD,
    held_out: Problem | None = None,
    on_progress: OnProgress | None = None,
) -> Job[GeneralisedLinearFit]:
    """The job: yields `SecureSumRequest`s, is sent `NoisyAggregate`s, returns the fit.

    Args:
        rng: for auxiliary rows and Monte Carlo draws; nothing private depends on it, and a restarted job needs it in
            the same state again. method: one of `METHODS`. settings: ``bound`` and ``std_share`` are of both methods.
        prior_sd: of each standardised coefficient, the intercept among them.
        held_out: rows that the trainer holds, for the score that `on_progress` is told after each round of gradients.

    Raises:
        DataError: before the first round, of an unknown method, held-out rows of one class and a prior that is not
            above 0.
        NoAggregate: of the first two rounds, without which there is no result.
    """
    if method not in METHODS:
        raise unknown("method", method, None, METHODS)
    model = generalised_linear(schema, BERNOULLI, prior_sd=prior_sd)
    score = None if held_out is None else score_on(BERNOULLI, held_out, 1.0)
    moments = yield moments_request(schema, settings.std_share, target=False)
    columns, left = standardised(schema, moments, settings.bound), 1 - settings.std_share
    reasons = []
    if method == AUTO and settings.epochs is None and not settings.batch:
        method = ONE_SUM
        per_sensitivity = sqrt(moments.noise_variance * settings.std_share / left) / moments.sensitivity
        noisy, odd = too_noisy(len(schema.features), per_sensitivity, moments.contributors), not_normal(schema, columns)
        reasons = noisy + odd
        if reasons:
            method = VARIATIONAL if noisy else SCORES
    if method == ONE_SUM:
        return (yield from _one_sum(schema, columns, moments, left, prior_sd, rng))
    said = [f"learned from gradients and not from one sum: {reason}" for reason in reasons]
    if method == SCORES:
        return (yield from _scores(schema, columns, moments, left, prior_sd, said))
    said += [ASSUMED] if not_normal(schema, columns) else []
    pilot = OneSumPilot(settings.std_share, prior_sd)
    fit = yield from variational_after(
        moments, schema, model, rng, settings, pilot, score=score, on_progress=on_progress
    )
    return GeneralisedLinearFit(replace(fit, warnings=(*said, *fit.warnings)), BERNOULLI)


def _one_sum(
    schema: Schema,
    columns: Standardisation,
    moments: NoisyAggregate,
    share: float,
    prior_sd: float,
    rng: np.random.Generator,
) -> Generator[SecureSumRequest, NoisyAggregate, GeneralisedLinearFit]:
    released = yield sum_request(columns, share)
    found = one_sum_posterior(released, prior_sd, rng)
    fit = NormalFit(
        schema=schema,
        names=(INTERCEPT, *schema.features),
        columns=columns,
        mean=found.mean,
        cov=found.cov,
        method="one sum of normal features, Laplace's approximation",
        prior_sd=prior_sd,
        contributors=released.contributors,
        private=schema.private and moments.private and released.private,
        warnings=about_tails(found, schema.features, released, variance_error(columns, schema, moments)),
    )
    return GeneralisedLinearFit(fit, BERNOULLI)


def _scores(
    schema: Schema,
    columns: Standardisation,
    moments: NoisyAggregate,
    share: float,
    prior_sd: float,
    said: list[str],
) -> Job[GeneralisedLinearFit]:
    """A few rounds of clipped scores: nothing is assumed of the features but in what the clip takes."""
    within, start = within_bounds(columns, schema), np.zeros(len(schema.features) + 2)
    left = shares(ROUNDS, 1 - share)
    found = yield from scores(
        moments, within, Bernoulli(), left, 1 - share, prior_sd, start, lambda fit, _: fit.posterior.mean
    )
    fit = NormalFit(
        schema=schema,
        names=(INTERCEPT, *schema.features),
        columns=within,
        mean=found.posterior.mean[:-1],
        cov=found.posterior.cov[:-1, :-1],
        method="private Fisher scoring",
        prior_sd=prior_sd,
        epochs=ROUNDS,
        iterations=ROUNDS,
        contributors=found.contributors,
        private=schema.private and found.private,
        warnings=(*said, *found.warnings),
    )
    return GeneralisedLinearFit(fit, BERNOULLI)


@dataclass(frozen=True)
class OneSumPilot:
    """The same sum with a small share, as the pilot of variational inference: `variational.mean_field_job.Pilot`."""

    share: float
    prior_sd: float

    def request(self, columns: Standardisation, noise_per_sensitivity: float, n: int) -> SecureSumRequest | None:
        """None where noise would be too much, or the numbers too many."""
        d = len(columns.columns) - 1
        return None if too_noisy(d, noise_per_sensitivity, n) else sum_request(columns, self.share)

    def rows(self, released: NoisyAggregate, rng: np.random.Generator) -> Rows:
        """Normal rows with the moments of the sum, and its coefficients."""
        found = one_sum_posterior(released, self.prior_sd, rng)
        x = rng.multivariate_normal(found.feature_mean, found.feature_cov, ROWS)
        return Rows(np.insert(x, 0, 1.0, axis=1), found.mean)
