"""Regressions with a normal law: one class for every source, be it rounds, rows or reports.

The model is linear in the standardised, projected features z_j = clip((x_j - centre_j)/scale_j, ±bound_j). If the
columns have a radius, features are also brought into a ball of that radius, just as clients do:

    η = c θ₀ + Σ_j θ_j z_j,   θ ~ N(mean, cov), the privacy noise included            c: the constant feature, mostly 1

    identity    y = centre_y + scale_y (η + residual)         linear regression, also with Student-t residuals
    logit       P(y = 1) = 1/(1 + exp(-η))                    classes
    log         E[y] = exp(η)                                 counts, of variance λ + κλ² about their mean λ

A coefficient in the user's units is the slope inside the bounds. At a given row, η is normal (`expected`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, log
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit

from inference.columns import Standardisation
from inference.contraction import contraction
from inference.draws import CHAINS, DRAWS
from inference.errors import DataError
from inference.jobs.estimates import BY_SD, COEFFICIENTS, INTERCEPT, Estimate, Marginal, normal
from inference.jobs.summary import HeldOut, Summary
from inference.laws import Axes, Coords, Draws, Slopes
from inference.models import scores
from inference.models.expected import limited, probability, probability_square
from inference.models.law import NormalLaw, rows_of_effects, with_prior
from inference.models.linear import closed_form
from inference.problem import Array, Problem, Schema, unit_of

IDENTITY, LOGIT, LOG = LINKS = ("identity", "logit", "log")
LOG_ODDS, LOG_MEAN = "log odds", "the mean's logarithm"
LOG_MOST = 40.0  # ln of the largest mean count if there is no public bound; it prevents overflow
DISPERSION, RESIDUAL_SCALE = "dispersion", "residual scale"


class Spread(NamedTuple):
    """The spread of targets about their mean, κ or σ in units of the target: its posterior mean and sd."""

    name: str
    mean: float
    sd: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Coefficients(NormalLaw):
    """The posterior of an intercept and slopes, in this order.

    Attributes:
        link: one of `LINKS`. constant: c; 0 if there is no intercept (then θ₀ is 0).
        residual_variance: of η's residuals if the link is the identity.
        spread: of the targets, if it is a separate parameter. degrees: of freedom of Student's t, whose scale is
            ``cov``; infinite for a normal posterior. repair: how an indefinite noisy matrix was repaired.
        by: describes the scale of the columns, as text. point: whether this is a point estimate without a spread.
        more: further entries of the summary. most: ln u, if it does not follow from the aggregates.
        slab: makes this fit under a wide normal prior, if its own has a learned scale (`shrinkage`).
        coefficients, coefficient_sd: posterior mean and standard deviation of the slopes per feature unit, ``(d,)``.
        intercept, intercept_sd: of the prediction at features of zero. covariance: of intercept and slopes,
            ``(d + 1, d + 1)``.
    """

    link: str = IDENTITY
    constant: float = 1.0
    residual_variance: float = 0.0
    spread: Spread | None = None
    degrees: float = inf
    repair: str | None = None
    by: str = BY_SD
    point: bool = False
    more: Summary = field(default_factory=Summary)
    most: float | None = None
    slab: Any = None
    coefficients: Array = field(init=False)
    coefficient_sd: Array = field(init=False)
    intercept: float = field(init=False)
    intercept_sd: float = field(init=False)
    covariance: Array = field(init=False)
    _target: tuple[float, float] = field(init=False)  # centre and scale of η in the target's units
    _map: Array = field(init=False)  # from θ to (intercept minus the target's centre, slopes)

    def __post_init__(self) -> None:
        columns, (centre, unit) = self.columns, (0.0, 1.0)
        if self.link == IDENTITY:
            centre, unit = float(columns.centre[-1]), float(columns.scale[-1])
        slopes = unit / columns.scale[:-1]
        to_own = np.diag(np.r_[unit * self.constant, slopes])
        to_own[0, 1:] = -slopes * columns.centre[:-1]
        mean, cov = to_own @ self.mean, to_own @ self.cov @ to_own.T
        derived = {"names": (INTERCEPT, *columns.columns[:-1]), "_target": (centre, unit), "_map": to_own,
                   "coefficients": mean[1:], "coefficient_sd": np.sqrt(np.diag(cov)[1:]), "covariance": cov,
                   "intercept": float(mean[0] + centre), "intercept_sd": float(np.sqrt(cov[0, 0]))}  # fmt: skip
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, columns: Standardisation, theta: closed_form.NormalBeta, constant: float, **more: Any) -> Coefficients:
        """Convert a posterior of standardised coefficients (the constant's first unless c is 0); more: attributes."""
        mean, cov, prior = theta.mean, theta.cov, theta.prior_variance
        if not constant:
            mean, cov = np.r_[0.0, mean], np.pad(cov, ((1, 0), (1, 0)))
            prior = None if prior is None else np.r_[0.0, prior]
        more |= {"mean": mean, "cov": cov, "prior_sd": None if prior is None else np.sqrt(prior)}
        return cls(columns=columns, constant=constant, residual_variance=float(theta.residual_variance), **more)

    @property
    def priors(self) -> tuple[Array, Array] | None:
        """Prior means and standard deviations, each ``(d + 1,)``; None without a prior."""
        if self.prior_sd is None:
            return None
        mean = self._map @ np.broadcast_to(np.asarray(self.prior_mean, float), self.mean.shape)
        mean[0] += self._target[0]
        squares = self._map**2
        with np.errstate(invalid="ignore"):  # 0 times an infinite sd counts as 0
            parts = np.where(squares > 0, squares * np.asarray(self.prior_sd, float) ** 2, 0.0)
        return mean, np.sqrt(parts.sum(axis=1))

    @property
    def contraction(self) -> Array | None:
        """Contraction of each coefficient, ``(d + 1,)`` (`inference.contraction`); None without a prior."""
        return None if self.priors is None else contraction(np.sqrt(np.diag(self.covariance)), self.priors[1])

    def figures(self) -> list[Marginal]:
        """Return the figures of the intercept, then of each slope."""
        if self.shrunk is not None:
            own = self.in_own_units(self.shrunk.drawn)
            return self.shrunk.figures(own[INTERCEPT][..., None], own[COEFFICIENTS])
        mean, sd = np.r_[self.intercept, self.coefficients], np.r_[self.intercept_sd, self.coefficient_sd]
        if self.point:
            return [Marginal(float(value)) for value in mean]
        before = self.priors or (0.0, None)
        return with_prior(mean, sd, before[0], before[1], degrees=self.degrees)

    def estimates(self, schema: Schema | None = None) -> list[Estimate]:
        known = schema or self.schema
        rows = rows_of_slopes(self.figures(), self.columns.columns, known, self.link, self.columns.scale[:-1], self.by)
        if self.spread is not None:
            unit = unit_of(known, known.target, known.target) if known and self.link == IDENTITY else ""
            rows.append(Estimate(self.spread.name, unit, normal(*self.spread[1:])))
        return rows

    @property
    def axes(self) -> Axes:
        return {COEFFICIENTS: ("feature",)}

    @property
    def coords(self) -> Coords:
        return {"feature": self.features}

    def shrinkable(self) -> Slopes:
        """Return the slopes, and the prior that limits them."""
        law = self if self.slab is None else self.slab()
        d, unit = len(law.names) - 1, {IDENTITY: "units of the target's scale", LOGIT: LOG_ODDS, LOG: LOG_MEAN}
        slab = np.broadcast_to(np.asarray(inf if law.prior_sd is None else law.prior_sd, float), law.mean.shape)[1:]
        own = np.arange(d)
        return Slopes(law, law.mean, law.cov, 1 + own, own, law.names[1:], slab, unit[law.link], law.stretch)

    def slopes_in_own_units(self, slopes: Array) -> Array:
        """Convert standardised slopes, ``(..., d)``."""
        return np.asarray(slopes * np.diag(self._map)[1:])

    @property
    def features(self) -> tuple[str, ...]:
        """The features' names."""
        return self.names[1:]

    def standardised(self, X: Array) -> Array:
        """Return rows as the model takes them: standardised, the constant feature first, shape ``(k, d + 1)``."""
        return np.insert(self.columns.z(np.asarray(X, float)), 0, self.constant, axis=1)

    def linear_predictor(self, X: Array) -> tuple[Array, Array]:
        """Return mean and variance of η, each ``(k,)``, at rows ``(k, d)`` in their own units."""
        z = self.standardised(X)
        return z @ self.mean, np.einsum("ki,ij,kj->k", z, self.cov, z)

    def predict(self, X: Array) -> tuple[Array, Array]:
        """Return the posterior predictive mean and standard deviation of the target, each ``(k,)``, at rows ``(k, d)``.

        With the logit link they are those of the upper class's probability. A point estimate's deviation is nan.
        """
        mean, sd = self._predicted(X)
        return mean, np.full_like(sd, np.nan) if self.point else sd

    def _predicted(self, X: Array) -> tuple[Array, Array]:
        mean, variance = self.linear_predictor(X)
        if self.link == IDENTITY:
            centre, unit = self._target
            return centre + unit * mean, unit * np.sqrt(variance + self.residual_variance)
        if self.link == LOGIT:
            p = probability(mean, variance)
            return p, np.sqrt(np.maximum(probability_square(mean, variance) - p**2, 0.0))
        rate = limited(mean, variance, self.log_most)
        second = (1 + self._dispersion) * limited(mean, variance, self.log_most, power=2)
        return rate, np.sqrt(rate + np.maximum(second - rate**2, 0.0))

    @property
    def log_most(self) -> float:
        """ln u; u is a count's public bound if the posterior is from rounds."""
        if self.most is not None:
            return self.most
        return log(float(self.columns.bound[-1])) if self.aggregates else LOG_MOST

    @property
    def _dispersion(self) -> float:
        return 0.0 if self.spread is None else self.spread.mean

    def predict_proba(self, X: Array) -> Array:
        """Return P(y = 1) of rows, averaged over the posterior, shape ``(k,)``."""
        return probability(*self.linear_predictor(X))

    def sample(self, rng: np.random.Generator, chains: int = CHAINS, draws: int = DRAWS) -> dict[str, Array]:
        if self.point:
            raise DataError(
                "this regression is a point estimate, without draws and intervals; take a job that has them"
            )
        return super().sample(rng, chains, draws)

    def in_own_units(self, drawn: Array) -> dict[str, Array]:
        """Convert draws of θ, shape ``(..., d + 1)``, to the user's units: ``intercept`` and ``coefficients``."""
        own = drawn @ self._map.T
        return {INTERCEPT: own[..., 0] + self._target[0], COEFFICIENTS: own[..., 1:]}

    def simulate(self, X: Array, draws: Draws, rng: np.random.Generator, *, labels: bool = False) -> Array:
        """Draw a target, a class's probability or label for each draw and row: ``(chains, draws, k)``, own units."""
        seen = self.columns.seen(X)
        eta = draws[COEFFICIENTS] @ seen.T + draws[INTERCEPT][..., None]
        if self.link == LOGIT:
            return np.asarray(rng.random(eta.shape) < expit(eta), float) if labels else np.asarray(expit(eta))
        if self.link == LOG:
            k = max(self._dispersion, 1e-9)
            rate = np.exp(np.minimum(eta, self.log_most)) * k * rng.standard_gamma(1 / k, eta.shape)
            return np.asarray(rng.poisson(rate), float)
        residual = np.sqrt(self.residual_variance) * rng.standard_normal(eta.shape)
        return np.asarray(eta + self._target[1] * residual)

    @property
    def attrs(self) -> dict[str, object]:
        return {**super().attrs, "target": self.columns.columns[-1], "repair": self.repair}

    def extras(self) -> Summary:
        known: Summary = {**super().extras(), **self.more}
        return known if self.repair is None else {**known, "repair": self.repair}

    def held_out_scores(self, reference: Any, train: Problem | None, test: Problem) -> HeldOut | None:
        """Score by what suits the link: root mean square error, scores of probabilities, or mean absolute error."""
        other = None if reference is None else reference.predict(test.X)[0]
        of_target = scores.of_numbers if self.spread is None else scores.of_outlying
        return (scores.of_classes if self.link == LOGIT else of_target)(self.predict(test.X)[0], other, train, test)


def rows_of_slopes(
    marginals: list[Marginal], columns: tuple[str, ...], schema: Schema | None, link: str, scale: Array, by: str
) -> list[Estimate]:
    """Return the rows of the table of an intercept and slopes.

    Args:
        marginals: of the intercept, then of each slope. columns: the features, then the target.
        scale, by: of each feature, as for `rows_of_effects`.
    """
    *features, target = columns
    own = unit_of(schema, target, target)
    predicted = {IDENTITY: own, LOG: f"log {own}", LOGIT: LOG_ODDS}[link]
    slopes = rows_of_effects(
        features, features, marginals[1:], scale, predicted, schema, by=by, per_unit=link == IDENTITY
    )
    return [Estimate(INTERCEPT, "", marginals[0], INTERCEPT), *slopes]
