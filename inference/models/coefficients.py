"""Regressions with a normal posterior: one class, whatever rounds, rows or reports it was learned from.

The model is linear in the standardised, projected features z_j = clip((x_j - centre_j)/scale_j, ±bound_j), which are
brought into a ball where there is a radius, as clients bring them:

    η = c θ₀ + Σ_j θ_j z_j,   θ ~ N(mean, cov), the privacy noise included            c: the constant feature, mostly 1

    identity    y = centre_y + scale_y (η + residual)         linear regression, also with Student-t residuals
    logit       P(y = 1) = 1/(1 + exp(-η))                    classes
    log         E[y] = exp(η)                                 counts, of variance λ + κλ² about their mean λ

A coefficient in the user's units is the slope inside the bounds. At a row η is normal with mean m and variance v, and

    E[1/(1 + exp(-η))] ≈ 1/(1 + exp(-m/√(1 + πv/8)))          (MacKay 1992, eq. 10, exact to 0.02)
    count: mean M = E[λ], variance M + (1 + κ) E[λ²] - M², of λ = min(exp(η), u) with u the count's public bound
    E[λ^k] = exp(km + k²v/2) Φ((ln u - m - kv)/√v) + u^k Φ((m - ln u)/√v)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, log
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, log_ndtr

from dca_proto.aggregate import NoisyAggregate
from inference.columns import Array, Standardisation
from inference.contraction import contraction
from inference.draws import CHAINS, DRAWS, InferenceData, inference_data
from inference.errors import DataError
from inference.jobs.estimates import (
    BY_SD,
    COEFFICIENTS,
    INTERCEPT,
    Estimate,
    Figure,
    normal,
    score,
    standard_unit,
    student,
)
from inference.jobs.summary import HeldOut, Summary
from inference.models.linear import closed_form
from inference.posterior import Posterior
from inference.problem import Problem, Schema

IDENTITY, LOGIT, LOG = LINKS = ("identity", "logit", "log")
LOG_ODDS = "log odds"
LOG_MOST = 40.0  # of a mean count without a public bound; a limit of arithmetic
DISPERSION, RESIDUAL_SCALE = "dispersion", "residual scale"


@dataclass(frozen=True, eq=False, kw_only=True)
class NormalPosterior(Posterior):
    """θ ~ N(mean, cov), of columns that are standardised as `columns` says; the privacy noise included.

    Attributes:
        names: of θ's coordinates. columns: how clients standardise and project features and target.
        mean, cov: shapes ``(p,)`` and ``(p, p)``.
        prior_mean, prior_sd: of each of θ, broadcastable to ``(p,)``; an infinite sd is a flat prior, and None none,
            or none of that form.
        method: as text. contributors: clients, or rows. private: False where no epsilon may be claimed.
        iterations: how many rounds of gradients were held. epochs: in how many of them each client was asked.
        stopped: why not in all, as a sentence. aggregates: it was learned from, where they are kept.
        warnings, again: as of `Posterior`.
    """

    names: tuple[str, ...]
    columns: Standardisation
    mean: Array
    cov: Array
    prior_mean: ArrayLike = 0.0
    prior_sd: ArrayLike | None = None
    method: str = ""
    contributors: int = 0
    private: bool = False
    iterations: int = 0
    epochs: int = 0
    stopped: str = ""
    aggregates: tuple[NoisyAggregate, ...] = ()
    warnings: tuple[str, ...] = ()
    again: Any = None

    @property
    def sd(self) -> Array:
        """Posterior standard deviations of θ, shape ``(p,)``."""
        return np.sqrt(np.diag(self.cov))

    def estimates(self, schema: Schema | None = None) -> list[Estimate]:
        found = with_prior(self.mean, self.sd, self.prior_mean, self.prior_sd)
        return [Estimate(name, "", figure) for name, figure in zip(self.names, found, strict=True)]

    def in_own_units(self, drawn: Array) -> dict[str, Array]:
        """Draws of θ, shape ``(..., p)``, by parameter."""
        return {"theta": drawn}

    @property
    def _axes(self) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        """Names of the axes of each parameter, and labels along them."""
        return {"theta": ["parameter"]}, {"parameter": list(self.names)}

    def _predicted(self, drawn: Array, X: Array | None, rng: np.random.Generator) -> dict[str, Array] | None:
        """Draws of what is predicted at rows, where the model predicts."""
        return None

    def draws(self, rng: np.random.Generator, chains: int = CHAINS, draws: int = DRAWS) -> dict[str, Array]:
        """Independent draws, by parameter."""
        return self.in_own_units(self._thetas(rng, chains, draws))

    def _thetas(self, rng: np.random.Generator, chains: int, draws: int) -> Array:
        return rng.multivariate_normal(self.mean, self.cov, size=(chains, draws), method="eigh")

    def inference_data(
        self, rng: np.random.Generator, X: Array | None = None, *, chains: int = CHAINS, draws: int = DRAWS
    ) -> InferenceData:
        """Draws as ArviZ's common type, of a regression in the user's units.

        Args:
            X: rows, shape ``(k, d)``; with them, the group ``posterior_predictive`` holds a ``target`` for each.

        Raises:
            DataError: ArviZ is not installed.
        """
        drawn, (dims, coords) = self._thetas(rng, chains, draws), self._axes
        known, predicted = self.in_own_units(drawn), self._predicted(drawn, X, rng)
        return inference_data(known, dims=dims, coords=coords, attrs=self.attrs, posterior_predictive=predicted)

    @property
    def attrs(self) -> dict[str, object]:
        """The provenance of the draws."""
        names = ("method", "contributors", "iterations", "private")
        return {**{name: getattr(self, name) for name in names}, "stopped": self.stopped or None}

    def more(self) -> Summary:
        found: Summary = {"remarks": {"method": self.method}} if self.method else {}
        return {**found, "stopped": self.stopped or None}


class Spread(NamedTuple):
    """The spread of targets about their mean: κ, or σ in units of the target; posterior mean and standard deviation."""

    name: str
    mean: float
    sd: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Coefficients(NormalPosterior):
    """Intercept and slopes, in this order.

    Attributes:
        link: one of `LINKS`. constant: c; 0 where there is no intercept, and θ₀ is 0.
        residual_variance: of η's residuals where the link is the identity.
        spread: where it is a parameter of its own. degrees: of freedom of Student's t, where ``cov`` is its scale.
        schema: of the columns, where it is known. repair: how an indefinite noisy matrix was dealt with.
        by: what the scale of the columns is, as text.
        coefficients, coefficient_sd: posterior mean and standard deviation of the slopes per feature unit, ``(d,)``.
        intercept, intercept_sd: of what is predicted at features of zero. covariance: of both, ``(d + 1, d + 1)``.
    """

    names: tuple[str, ...] = ()
    link: str = IDENTITY
    constant: float = 1.0
    residual_variance: float = 0.0
    spread: Spread | None = None
    degrees: float = inf
    schema: Schema | None = None
    repair: str | None = None
    by: str = BY_SD
    coefficients: Array = field(init=False)
    coefficient_sd: Array = field(init=False)
    intercept: float = field(init=False)
    intercept_sd: float = field(init=False)
    covariance: Array = field(init=False)
    _target: tuple[float, float] = field(init=False)  # centre and scale of η, in units of what it predicts
    _map: Array = field(init=False)  # from θ to (intercept less the target's centre, slopes)

    def __post_init__(self) -> None:
        centre, unit = (float(self.centre[-1]), float(self.scale[-1])) if self.link == IDENTITY else (0.0, 1.0)
        slopes = unit / self.scale[:-1]
        to_own = np.diag(np.r_[unit * self.constant, slopes])
        to_own[0, 1:] = -slopes * self.centre[:-1]
        mean, cov = to_own @ self.mean, to_own @ self.cov @ to_own.T
        found = {"names": (INTERCEPT, *self.columns.columns[:-1]), "_target": (centre, unit), "_map": to_own,
                 "coefficients": mean[1:], "coefficient_sd": np.sqrt(np.diag(cov)[1:]), "covariance": cov,
                 "intercept": float(mean[0] + centre), "intercept_sd": float(np.sqrt(cov[0, 0]))}  # fmt: skip
        for name, value in found.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, columns: Standardisation, found: closed_form.Posterior, constant: float, **more: Any) -> Coefficients:
        """Makes one of a posterior of standardised coefficients, a constant's first unless c is 0; more: attributes."""
        mean, cov, prior = found.mean, found.cov, found.prior_variance
        if not constant:
            mean, cov = np.r_[0.0, mean], np.pad(cov, ((1, 0), (1, 0)))
            prior = None if prior is None else np.r_[0.0, prior]
        more |= {"mean": mean, "cov": cov, "prior_sd": None if prior is None else np.sqrt(prior)}
        return cls(columns=columns, constant=constant, residual_variance=float(found.residual_variance), **more)

    @property
    def centre(self) -> Array:
        """Centres of features and target, in own units, shape ``(d + 1,)``."""
        return self.columns.centre

    @property
    def scale(self) -> Array:
        """Scales of features and target, in own units, shape ``(d + 1,)``."""
        return self.columns.scale

    @property
    def priors(self) -> tuple[Array, Array] | None:
        """Prior means and standard deviations, each ``(d + 1,)``; None without a prior."""
        if self.prior_sd is None:
            return None
        mean = self._map @ np.broadcast_to(np.asarray(self.prior_mean, float), self.mean.shape)
        mean[0] += self._target[0]
        squares = self._map**2
        with np.errstate(invalid="ignore"):  # 0 times infinity: no part of a flat prior
            parts = np.where(squares > 0, squares * np.asarray(self.prior_sd, float) ** 2, 0.0)
        return mean, np.sqrt(parts.sum(axis=1))

    @property
    def contraction(self) -> Array | None:
        """How much was learned, ``(d + 1,)`` (`inference.contraction`); None without a prior."""
        return None if self.priors is None else contraction(np.sqrt(np.diag(self.covariance)), self.priors[1])

    def figures(self) -> list[Figure]:
        """Figures of the intercept, then of each slope."""
        mean, sd = np.r_[self.intercept, self.coefficients], np.r_[self.intercept_sd, self.coefficient_sd]
        before = self.priors or (0.0, None)
        return with_prior(mean, sd, before[0], before[1], degrees=self.degrees)

    def estimates(self, schema: Schema | None = None) -> list[Estimate]:
        known = schema or self.schema
        found = rows_of_slopes(self.figures(), self.columns.columns, known, self.link, self.scale[:-1], self.by)
        if self.spread is not None:
            unit = known.units.get(known.target, known.target) if known and self.link == IDENTITY else ""
            found.append(Estimate(self.spread.name, unit, normal(*self.spread[1:])))
        return found

    def standardised(self, X: Array) -> Array:
        """Rows as the model sees them, the constant feature first, shape ``(k, d + 1)``."""
        return np.insert(self.columns.z(np.asarray(X, float)), 0, self.constant, axis=1)

    def linear_predictor(self, X: Array) -> tuple[Array, Array]:
        """Mean and variance of η at rows in their own units, shape ``(k, d)``: each ``(k,)``."""
        z = self.standardised(X)
        return z @ self.mean, np.einsum("ki,ij,kj->k", z, self.cov, z)

    def predict(self, X: Array) -> tuple[Array, Array]:
        """Posterior predictive mean and standard deviation of the target at rows ``(k, d)``, each ``(k,)``.

        Of classes, of the probability of the upper one.
        """
        mean, variance = self.linear_predictor(X)
        if self.link == IDENTITY:
            centre, unit = self._target
            return centre + unit * mean, unit * np.sqrt(variance + self.residual_variance)
        if self.link == LOGIT:
            p = probability(mean, variance)
            return p, np.sqrt(np.maximum(probability_square(mean, variance) - p**2, 0.0))
        rate = limited(mean, variance, self._log_most)
        second = (1 + self._dispersion) * limited(mean, variance, self._log_most, power=2)
        return rate, np.sqrt(rate + np.maximum(second - rate**2, 0.0))

    @property
    def _log_most(self) -> float:
        """ln u: a count's public bound, where rounds had one."""
        return log(float(self.columns.bound[-1])) if self.aggregates else LOG_MOST

    @property
    def _dispersion(self) -> float:
        return 0.0 if self.spread is None else self.spread.mean

    def predict_proba(self, X: Array) -> Array:
        """P(y = 1) of rows, averaged over the posterior, shape ``(k,)``."""
        return probability(*self.linear_predictor(X))

    def in_own_units(self, drawn: Array) -> dict[str, Array]:
        """Draws of θ, shape ``(..., d + 1)``, in the user's units: ``intercept`` and ``coefficients``."""
        own = drawn @ self._map.T
        return {INTERCEPT: own[..., 0] + self._target[0], COEFFICIENTS: own[..., 1:]}

    @property
    def _axes(self) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        return {COEFFICIENTS: ["feature"], "target": ["row"]}, {"feature": list(self.names[1:])}

    def _predicted(self, drawn: Array, X: Array | None, rng: np.random.Generator) -> dict[str, Array] | None:
        """A target for each draw of θ and each row, in its own units, shape ``(chains, draws, k)``."""
        if X is None:
            return None
        eta = drawn @ self.standardised(X).T
        if self.link == LOGIT:
            found = rng.random(eta.shape) < expit(eta)
        elif self.link == LOG:
            k = max(self._dispersion, 1e-9)
            found = rng.poisson(np.exp(np.minimum(eta, self._log_most)) * k * rng.standard_gamma(1 / k, eta.shape))
        else:
            centre, unit = self._target
            residual = np.sqrt(self.residual_variance) * rng.standard_normal(eta.shape)
            found = centre + unit * (eta + residual)
        return {"target": np.asarray(found, float)}

    @property
    def attrs(self) -> dict[str, object]:
        return {**super().attrs, "target": self.columns.columns[-1], "repair": self.repair}

    def more(self) -> Summary:
        return super().more() if self.repair is None else {**super().more(), "repair": self.repair}

    def scored(self, reference: Any, train: Problem | None, test: Problem) -> HeldOut | None:
        """By what the link asks for: root mean square errors, scores of probabilities, or mean absolute errors."""
        other = None if reference is None else reference.predict(test.X)[0]
        return scored(self.link, self.predict(test.X)[0], other, train, test, absolute=self.spread is not None)


def with_prior(
    mean: Array, sd: Array, prior_mean: ArrayLike = 0.0, prior_sd: ArrayLike | None = None, degrees: float = inf
) -> list[Figure]:
    """Figures of numbers with a normal (or Student's t) posterior, and with a normal prior if there is one."""
    found = [student(m, s, degrees) for m, s in zip(mean, sd, strict=True)]
    if prior_sd is None:
        return found
    before = np.broadcast_to(np.asarray(prior_mean, float), mean.shape), np.broadcast_to(prior_sd, mean.shape)
    priors = [normal(float(m), float(s)).interval for m, s in zip(*before, strict=True)]
    return [one._replace(prior=prior) for one, prior in zip(found, priors, strict=True)]


def rows_of_slopes(
    found: list[Figure], columns: tuple[str, ...], schema: Schema | None, link: str, scale: Array, by: str
) -> list[Estimate]:
    """The table of an intercept and slopes.

    Args:
        found: figures of the intercept, then of each slope. columns: the features, then the target.
        scale: of each feature in its own units, by which pictures multiply its coefficient; public, or private.
        by: what the scale is, as text.
    """
    (*features, target), units = columns, {} if schema is None else schema.units
    own = units.get(target, target)
    predicted = {IDENTITY: own, LOG: f"log {own}", LOGIT: LOG_ODDS}[link]
    axis, rows = standard_unit(predicted, by), [Estimate(INTERCEPT, "", found[0], INTERCEPT)]
    for name, figure, size in zip(features, found[1:], scale, strict=True):
        per = units.get(name, f"unit of {name}" if link == IDENTITY else "")
        unit = f"{predicted} per {per}" if per else predicted
        standard = {"unit": axis, "scale": float(size), "centre": 0.0}
        rows.append(Estimate(name, unit, figure, COEFFICIENTS, standard))  # type: ignore[arg-type]
    return rows


def scored(
    link: str, own: Array, other: Array | None, train: Problem | None, test: Problem, *, absolute: bool = False
) -> HeldOut:
    """Scores of predictions of the test's rows, shape ``(k,)``, beside those without privacy and of a constant.

    Of classes the AUC, where both are there, and the mean log likelihood of a row; else root mean squared errors.
    Without training rows at hand, the test's own mean stands for the constant's.

    Args:
        absolute: whether errors are absolute ones, since squares would count outliers above all else.
    """
    rows, constant = len(test.y), (train or test).y
    if link == LOGIT:
        positive = is_positive(test)
        beside = None if other is None else log_likelihood(other, positive)
        alone = log_likelihood(np.full(rows, is_positive(train or test).mean()), positive)
        scores = [score("log likelihood", log_likelihood(own, positive), beside, alone, higher_is_better=True)]
        if 0 < positive.sum() < rows:
            area = None if other is None else area_under_curve(other, positive)
            scores.insert(0, score("AUC", area_under_curve(own, positive), area, 0.5, higher_is_better=True))
        return {"rows": rows, "scores": scores}
    unit = test.schema.units.get(test.schema.target, f"units of {test.schema.target}")
    if absolute:
        errors = [
            None if one is None else float(np.mean(np.abs(test.y - one))) for one in (own, other, np.median(constant))
        ]
        found = score("mean absolute error", *errors, higher_is_better=False)  # type: ignore[arg-type]
        return {"rows": rows, "unit": unit, "scores": [found]}
    return {
        "rows": rows,
        "unit": unit,
        "rmse_private": rmse(own, test.y),
        "rmse_nonprivate": None if other is None else rmse(other, test.y),
        "rmse_zero": rmse(np.full(rows, constant.mean()), test.y),
    }


def is_positive(rows: Problem) -> NDArray[np.bool_]:
    """Which rows are of the class that the target's upper bound stands for."""
    return np.asarray(rows.y > rows.schema.centres[-1])


def area_under_curve(scores: Array, positive: NDArray[np.bool_]) -> float:
    """Area under the ROC curve: the probability that a positive row scores above a negative one, ties counting half.

    Args:
        scores: shape ``(n,)``. positive: which rows are of the class sought, shape ``(n,)``.

    Raises:
        DataError: the rows are all of one class.
    """
    from scipy.stats import rankdata

    ones = int(positive.sum())
    zeros = len(positive) - ones
    if not ones or not zeros:
        raise DataError(f"{ones} rows of one class and {zeros} of the other to score on; expected some of each")
    above = float(rankdata(scores)[positive].sum()) - ones * (ones + 1) / 2  # Mann and Whitney's U
    return above / (ones * zeros)


def log_likelihood(p: Array, positive: NDArray[np.bool_]) -> float:
    """The mean over the rows of the logarithm of their class's probability, in nats. Args: p: of the class sought."""
    return float(np.mean(np.log(np.maximum(np.where(positive, p, 1 - p), 1e-12))))


def rmse(predicted: Array, y: Array) -> float:
    """Root mean squared error, in target units."""
    return float(np.sqrt(np.mean((y - predicted) ** 2)))


def limited(mean: Array, variance: Array, log_most: float, power: int = 1) -> Array:
    """E[min(exp(η), u)^power] of η ~ N(mean, variance), as at the head. Args: log_most: ln u."""
    sd = np.sqrt(np.maximum(variance, 1e-12))
    below = power * mean + power**2 * variance / 2 + log_ndtr((log_most - mean - power * variance) / sd)
    return np.asarray(np.exp(below) + np.exp(power * log_most + log_ndtr((mean - log_most) / sd)))


def probability(mean: Array, variance: Array) -> Array:
    """E[1/(1 + exp(-η))] of η ~ N(mean, variance), as at the head."""
    return np.asarray(expit(mean / np.sqrt(1 + np.pi * variance / 8)))


def probability_square(mean: Array, variance: Array) -> Array:
    """E[1/(1 + exp(-η))²], by Gauss and Hermite's rule of 20 points."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    return np.asarray(expit(mean[..., None] + np.sqrt(variance)[..., None] * nodes) ** 2 @ (weights / weights.sum()))
