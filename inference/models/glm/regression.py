"""The result of a regression from noisy sums or perturbed rows: coefficients in the units of the user's columns.

The models use columns as the statistic scales them; `Coefficients` converts back, as for every other regression. A
logistic regression's coefficients are changes of the log odds per unit of a feature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.special import expit, ndtr

from inference.errors import DataError
from inference.jobs.estimates import BY_SD, COEFFICIENTS, INTERCEPT, Estimate
from inference.jobs.summary import HeldOut
from inference.laws import Draws
from inference.mcmc.run import Sampled
from inference.models import scores
from inference.models.coefficients import LOGIT, Coefficients, rows_of_slopes
from inference.models.linear.closed_form import NormalBeta
from inference.models.predictive import (
    ALPHA,
    CORRELATION,
    FEATURE_MEAN,
    FEATURE_SD,
    RESIDUAL_SD,
    ROOT,
    THETA,
    RowClient,
    targets_of,
)
from inference.posterior import Posterior
from inference.problem import Array, Problem, Schema
from inference.releases.reports import Rows

AXES = {
    COEFFICIENTS: ("feature",),
    FEATURE_SD: ("feature",),
    FEATURE_MEAN: ("feature",),
    CORRELATION: ("feature", "other_feature"),
    "target": ("row",),
}
PREDICTED_ROWS = 500  # predicted at a time, to limit memory: each row has as many probabilities as there are draws
CLIPPED = 0.02  # warn if this share of the values is clipped
SURELY = 0.05  # quantile of the share's posterior that must exceed `CLIPPED`
BALL_DRAWS, BALL_ROWS = 200, 500  # draws of the posterior, and rows for each, to estimate the share outside the ball


def regression_of_draws(
    sampled: Sampled,
    linear: Coefficients,
    prior: Draws,
    attrs: Mapping[str, object],
    notes: Sequence[str] = (),
    rows: Rows | None = None,
) -> Posterior:
    """Convert draws of the models' sites to a posterior in the columns' own units; its predictor is a `DrawnRows`.

    Draws, by name: ``coefficients`` (chains, draws, d) and ``intercept`` (chains, draws); for linear regression
    ``residual_sd`` (chains, draws); for the features ``feature_sd`` (chains, draws, d), ``feature_correlation``
    (chains, draws, d, d) and, unless it is fixed at the public centre, ``feature_mean`` (chains, draws, d).

    Args:
        linear: `moments_of` these draws, with the columns. prior: draws of the sites, shape ``(draws, ...)``.
        notes: further warnings. rows: the reported rows; None if only sums were released.
    """
    columns, logistic = linear.columns, linear.link == LOGIT
    features = columns.columns[:-1]
    bounded = features if logistic else columns.columns  # labels are not clipped
    before = {name: array for name, array in prior.items() if name in sampled.draws}
    posterior = Posterior(
        "logistic" if logistic else "linear",
        (own := _in_own_units(sampled.draws, linear)),
        sampled.sampling,
        RowClient(columns.centre, logistic, rows),
        prior=_in_own_units(before, linear),
        axes=AXES,
        coords={"feature": features, "other_feature": features, "column": columns.columns},
        warmup=_in_own_units(sampled.warmup, linear) if sampled.warmup else {},
        notes=(
            *notes,
            *_beyond_bounds(sampled.draws, columns.bound, bounded),
            *_beyond_ball(sampled.draws, columns.radius),
        ),
        attrs=attrs,
        predictor=DrawnRows(linear, own),
    )
    return replace(posterior, table=partial(_table, posterior, linear))


def _table(posterior: Posterior, linear: Coefficients, schema: Schema | None) -> list[Estimate]:
    figures, known = [*posterior.figures(INTERCEPT), *posterior.figures(COEFFICIENTS)], schema or linear.schema
    return rows_of_slopes(figures, linear.columns.columns, known, linear.link, posterior.mean[FEATURE_SD], BY_SD)


@dataclass(frozen=True, eq=False)
class DrawnRows:
    """Predicts rows from draws of a linear or logistic regression.

    Attributes:
        linear: mean and covariance of the coefficients, in the columns' own units; on log odds if logistic.
        draws: of the posterior.
    """

    linear: Coefficients
    draws: Draws

    @property
    def features(self) -> tuple[str, ...]:
        """The features' names."""
        return self.linear.features

    @property
    def logistic(self) -> bool:
        """True if targets are labels."""
        return self.linear.link == LOGIT

    def held_out_scores(self, reference: Any, train: Problem | None, test: Problem) -> HeldOut:
        other = None if reference is None else reference.predict(test.X)[0]
        if not self.logistic:
            return scores.of_numbers(self.linear.predict(test.X)[0], other, train, test)
        parts = np.array_split(test.X, -(-len(test.X) // PREDICTED_ROWS))
        return scores.of_classes(np.concatenate([self.probability(part) for part in parts]), other, train, test)

    def scores(self, X: Array) -> Array:
        """Return the target's mean, or the log odds, of each draw at rows ``(k, d)``: ``(chains, draws, k)``.

        Rows are clipped to the public bounds first, just as clients do; bare reports have no bounds.
        """
        seen = self.linear.columns.seen(X)
        return np.asarray(self.draws[COEFFICIENTS] @ seen.T + self.draws[INTERCEPT][..., None])

    def probability(self, X: Array) -> Array:
        """Return the posterior predictive P(y = 1) at rows ``(k, d)``, ``(k,)``. Raises `DataError` if linear."""
        if not self.logistic:
            raise DataError("a linear regression has no probabilities; see predict")
        return np.asarray(expit(self.scores(X)).mean(axis=(0, 1)))

    def predict(self, X: Array) -> tuple[Array, Array]:
        """Return posterior predictive mean and standard deviation of the target at rows ``X``, each ``(k,)``.

        For labels they are those of the probability.
        """
        score = self.scores(X)
        if self.logistic:
            p = expit(score)
            return np.asarray(p.mean(axis=(0, 1))), np.asarray(p.std(axis=(0, 1)))
        variance = score.var(axis=(0, 1)) + np.mean(self.draws[RESIDUAL_SD] ** 2)
        return np.asarray(score.mean(axis=(0, 1))), np.sqrt(variance)

    def simulate(self, X: Array, draws: Draws, rng: np.random.Generator, *, labels: bool = False) -> Array:
        """Draw a target, or the probability of a label, for each draw and each row of ``X``: ``(chains, draws, k)``.

        Args:
            labels: whether to draw the labels 0 and 1 instead of their probability.
        """
        own = replace(self, draws=draws).scores(X)
        return np.asarray(expit(own)) if self.logistic and not labels else targets_of(own, draws, rng)


def _in_own_units(drawn: Draws, linear: Coefficients) -> dict[str, Array]:
    theta, scale = drawn[THETA], linear.columns.scale
    first = drawn[ALPHA] / linear.constant if ALPHA in drawn else np.zeros(theta.shape[:-1])
    own = linear.in_own_units(np.concatenate([first[..., None], theta], axis=-1))
    converted = {COEFFICIENTS: own[COEFFICIENTS], INTERCEPT: own[INTERCEPT]}
    if RESIDUAL_SD in drawn:
        converted[RESIDUAL_SD] = scale[-1] * drawn[RESIDUAL_SD]
    converted[FEATURE_SD] = scale[:-1] * drawn[FEATURE_SD]
    if FEATURE_MEAN in drawn:
        converted[FEATURE_MEAN] = linear.columns.centre[:-1] + scale[:-1] * drawn[FEATURE_MEAN]
    if ROOT in drawn:
        converted[CORRELATION] = drawn[ROOT] @ np.swapaxes(drawn[ROOT], -1, -2)
    return converted


def moments_of(draws: Draws, constant: float) -> NormalBeta:
    """Return mean and covariance of θ, a constant's coefficient first, and the mean of σ² (0 if logistic).

    Args:
        constant: c; 0 if there is none.
    """
    theta = draws[THETA]
    if constant:
        theta = np.concatenate([draws[ALPHA][..., None] / constant, theta], axis=-1)
    flat = theta.reshape(-1, theta.shape[-1])
    cov = np.atleast_2d(np.cov(flat, rowvar=False))
    return NormalBeta(
        flat.mean(axis=0), cov, np.asarray(np.mean(draws[RESIDUAL_SD] ** 2 if RESIDUAL_SD in draws else 0))
    )


def _beyond_ball(draws: Draws, radius: float) -> tuple[str, ...]:
    """Warn if the model clearly expects rows outside the ball into which clients bring them."""
    if not np.isfinite(radius):
        return ()
    rng, sd = np.random.default_rng(0), draws[FEATURE_SD].reshape(-1, draws[FEATURE_SD].shape[-1])
    chosen = np.linspace(0, len(sd) - 1, min(BALL_DRAWS, len(sd))).astype(int)
    d = sd.shape[1]
    root = draws[ROOT].reshape(-1, d, d)[chosen] if ROOT in draws else np.eye(d)[None]
    mean = draws[FEATURE_MEAN].reshape(-1, d)[chosen] if FEATURE_MEAN in draws else np.zeros((1, d))
    rows = rng.standard_normal((len(chosen), BALL_ROWS, d)) @ np.swapaxes(root, -1, -2) * sd[chosen, None]
    outside = np.mean(np.linalg.norm(rows + mean[:, None], axis=-1) > radius, axis=1)
    share = float(np.quantile(outside, SURELY))
    if share <= CLIPPED:
        return ()
    return (
        f"the fitted model expects {100 * share:.2g} % of the rows or more outside the ball of radius {radius:g}; "
        "clients bring them into the ball, and the model ignores that; give a larger radius",
    )


def _beyond_bounds(draws: Draws, bounds: Array, columns: Sequence[str]) -> tuple[str, ...]:
    """Warn of each column in which the model clearly expects values outside the bounds."""
    d = draws[THETA].shape[-1]
    mean, sd = draws.get(FEATURE_MEAN, np.zeros(draws[THETA].shape)), draws[FEATURE_SD]
    if len(columns) > d:
        slope = draws[THETA] * sd
        slope = slope if ROOT not in draws else (slope[..., None, :] @ draws[ROOT])[..., 0, :]
        target = draws.get(ALPHA, 0.0) + np.sum(mean * draws[THETA], axis=-1)
        spread = np.sqrt(np.sum(slope**2, axis=-1) + draws[RESIDUAL_SD] ** 2)
        mean, sd = np.concatenate([mean, target[..., None]], axis=-1), np.concatenate([sd, spread[..., None]], axis=-1)
    limits = bounds[: len(columns)]
    outside = ndtr((mean - limits) / sd) + ndtr((-mean - limits) / sd)
    surely = np.quantile(outside, SURELY, axis=(0, 1))
    return tuple(
        f"the fitted model expects {100 * share:.2g} % of the values of {column} or more outside its bounds; clients "
        "clip them, and the model ignores that; give wider public bounds"
        for column, share in zip(columns, surely, strict=True)
        if share > CLIPPED
    )
