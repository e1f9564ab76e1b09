"""Job `logistic`: Bayesian logistic regression by variational inference, one round for scales and many of gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inference.draws import InferenceData
from inference.errors import DataError
from inference.jobs.base import Conditions, LearningJob, Stage, Summary
from inference.jobs.estimates import figures, row, score
from inference.jobs.settings import require_positive, setting
from inference.jobs.variational import progress, stages
from inference.problem import Problem, Schema
from inference.rounds import Job
from inference.variational.inference import Settings as Ascent
from inference.variational.linear import LinearFit, linear_regression_by_gradients
from inference.variational.models import BERNOULLI, PRIOR_SD
from inference.variational.scores import area_under_curve

Array = NDArray[np.float64]
_DEFAULT = Ascent()
_NEWTON_STEPS = 50


@dataclass(frozen=True)
class Settings:
    """Of the job."""

    epochs: int | None = setting(None, "In how many iterations each client takes part; by default planned.")
    batch: int = setting(0, "Clients of a mini-batch, those first that were asked least often; 0 asks all.")
    clip: float | None = setting(_DEFAULT.clip, "Largest norm of a client's gradient, in standardised units.")
    bound: float = setting(_DEFAULT.bound, "Clients project their columns to so many standard deviations.")
    rate: float = setting(_DEFAULT.rate, "Length of the first step, in standardised units.")
    std_share: float = setting(_DEFAULT.moments_share, "The first round's share of the budget, between 0 and 1.")
    averaged: float = setting(_DEFAULT.averaged, "Part of the iterations, at the end, whose mean is the result.")
    prior_sd: float = setting(PRIOR_SD, "Standard deviation of the prior of each standardised coefficient.")

    def __post_init__(self) -> None:
        require_positive("prior_sd", self.prior_sd)
        _ = self.ascent

    @property
    def ascent(self) -> Ascent:
        """The variational part of them. Raises `DataError` where a number is out of range."""
        return Ascent(
            epochs=self.epochs,
            batch=self.batch,
            clip=self.clip,
            bound=self.bound,
            rate=self.rate,
            moments_share=self.std_share,
            averaged=self.averaged,
        )


def make(schema: Schema, settings: Settings, conditions: Conditions) -> Job[LinearFit]:
    """The job's rounds. Iterations are scored on the held-out rows where these are of both classes."""
    held_out = conditions.held_out
    if held_out is not None and len(np.unique(_positive(held_out))) < 2:
        held_out = None
    return linear_regression_by_gradients(
        schema,
        BERNOULLI,
        rng=conditions.rng,
        settings=settings.ascent,
        prior_sd=settings.prior_sd,
        held_out=held_out,
        on_progress=progress(conditions),
    )


def plan(schema: Schema, settings: Settings, conditions: Conditions) -> list[Stage]:
    """Scales first, then as many iterations as the first round's noise will probably make worth while."""
    return stages(len(schema.features) + 1, settings.std_share, settings.epochs, settings.batch, conditions)


def batch(settings: Settings, clients: int) -> int:
    """B of the iterations."""
    return settings.batch


# --- without privacy --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LogisticReference:
    """The same model on raw rows: the mode of the posterior and its curvature, in the columns' own units.

    Attributes:
        mean, cov: of (intercept, slopes), shapes ``(d + 1,)`` and ``(d + 1, d + 1)``.
    """

    mean: Array
    cov: Array

    def probability(self, X: Array) -> Array:
        """Of the class that the target's upper bound stands for, shape ``(k,)``."""
        return expit(self.mean[0] + X @ self.mean[1:])


def reference(train: Problem, settings: Settings) -> LogisticReference:
    """Newton's method on standardised rows, with the same prior.

    Raises:
        DataError: the target has other values than its bounds, or only one of them.
    """
    bounds = train.schema.bounds[train.schema.target]
    others = np.count_nonzero((train.y != bounds.lower) & (train.y != bounds.upper))
    if others or len(np.unique(train.y)) < 2:
        raise DataError(
            f"target {train.schema.target!r} has {len(np.unique(train.y))} values; job 'logistic' needs the two that "
            f"are its bounds, {bounds.lower:g} and {bounds.upper:g}"
        )
    centre, scale = train.X.mean(axis=0), train.X.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    z = np.column_stack([np.ones(len(train.y)), (train.X - centre) / scale])
    theta, cov = _mode(z, _positive(train).astype(float), settings.prior_sd)
    to_own = np.diag(np.r_[1.0, 1 / scale])
    to_own[0, 1:] = -centre / scale
    return LogisticReference(to_own @ theta, to_own @ cov @ to_own.T)


def _mode(z: Array, y: Array, prior_sd: float) -> tuple[Array, Array]:
    """The mode of θ | y with θ ~ N(0, prior_sd² I), and the inverse of the curvature there."""
    theta, prior = np.zeros(z.shape[1]), np.eye(z.shape[1]) / prior_sd**2
    for _ in range(_NEWTON_STEPS):
        p = expit(z @ theta)
        precision = prior + (z * (p * (1 - p))[:, None]).T @ z
        step = np.linalg.solve(precision, z.T @ (y - p) - prior @ theta)
        theta = theta + step
        if np.abs(step).max() < 1e-10:
            break
    return theta, np.asarray(np.linalg.inv(precision), float)


def expit(eta: Array) -> Array:
    """1/(1 + exp(-η)), without overflow."""
    tamed: Array = 0.5 * (1 + np.tanh(eta / 2))
    return tamed


# --- what it says -----------------------------------------------------------------------------------------------------


def summary(
    result: LinearFit,
    reference: LogisticReference | None,
    train: Problem | None,
    test: Problem | None,
    schema: Schema,
) -> Summary:
    """Coefficients of the log odds, and scores of the probabilities on rows that nobody learned from."""
    sd = None if reference is None else np.sqrt(np.diag(reference.cov))
    own = list(
        zip([result.intercept, *result.coefficients], [result.intercept_sd, *result.coefficient_sd], strict=True)
    )
    others = [None] * len(own) if reference is None or sd is None else list(zip(reference.mean, sd, strict=True))
    return {
        "coefficients": [
            row(name, _unit(schema, name), own[place], others[place]) for place, name in enumerate(schema.features, 1)
        ],
        "intercept": figures(own[0], others[0]),
        "stopped": result.fit.stopped or None,
        "test": None if test is None else _scores(result, reference, train, test),
    }


def _unit(schema: Schema, name: str) -> str:
    """Of a coefficient."""
    return f"log odds per {schema.units[name]}" if name in schema.units else "log odds"


def _scores(result: LinearFit, reference: LogisticReference | None, train: Problem | None, test: Problem) -> Summary:
    """AUC, where there are rows of both classes, and the mean log likelihood of a row."""
    positive = _positive(test)
    private = result.predict_proba(test.X)
    other = None if reference is None else reference.probability(test.X)
    share = np.full(len(test.y), _positive(train or test).mean())
    scores = [
        score(
            "log likelihood",
            _log_likelihood(private, positive),
            None if other is None else _log_likelihood(other, positive),
            _log_likelihood(share, positive),
            higher_is_better=True,
        )
    ]
    if len(np.unique(positive)) == 2:
        auc = None if other is None else area_under_curve(other, positive)
        scores.insert(0, score("AUC", area_under_curve(private, positive), auc, 0.5, higher_is_better=True))
    return {"rows": len(test.y), "scores": scores}


def _positive(rows: Problem) -> NDArray[np.bool_]:
    """Which rows are of the class that the target's upper bound stands for."""
    return np.asarray(rows.y > rows.schema.centres[-1])


def _log_likelihood(p: Array, positive: NDArray[np.bool_]) -> float:
    """The mean over the rows, in nats."""
    return float(np.mean(np.log(np.maximum(np.where(positive, p, 1 - p), 1e-12))))


def draws(result: LinearFit, rng: np.random.Generator) -> InferenceData:
    """Draws of intercept and slopes from the variational posterior."""
    return result.inference_data(rng)


def picture_title(schema: Schema) -> str:
    """What the coefficients are."""
    return f"Effect on the log odds of {schema.target}"


JOBS = {
    "logistic": LearningJob(
        name="logistic",
        settings=Settings,
        plan=plan,
        make=make,
        reference=reference,
        summary=summary,
        draws=draws,
        picture_title=picture_title,
        iterative=True,
        batch=batch,
    )
}
