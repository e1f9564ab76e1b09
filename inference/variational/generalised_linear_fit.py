"""A generalised linear model with a normal posterior, in the user's own units.

The model is linear in the standardised and projected features z_j = clip((x_j - centre_j)/scale_j, ±bound):

    η = θ₀ + Σ_j θ_j z_j          logistic: P(y = 1) = 1/(1 + exp(-η))       linear: y = centre_y + scale_y η + residual

A coefficient in the user's units is the slope inside the bounds. η is normal with mean η̂ and a variance v that follows
from the covariance of θ, and the probability averaged over it is (MacKay 1992, eq. 10, exact to 0.02)

    E[1/(1 + exp(-η))] ≈ 1/(1 + exp(-η̂/√(1 + πv/8))).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from inference.draws import CHAINS, DRAWS, InferenceData, inference_data
from inference.problem import Problem, Schema
from inference.variational.mean_field_job import Score
from inference.variational.models import BERNOULLI, NORMAL
from inference.variational.normal_fit import NormalFit, attributes_of
from inference.variational.scores import area_under_curve, log_predictive
from inference.variational.standardise import Standardisation

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class GeneralisedLinearFit:
    """A fitted generalised linear model with intercept.

    Attributes:
        fit: over (θ₀, θ), standardised. family: ``bernoulli`` or ``normal``.
        residual_variance: λ⁻¹ of ``normal``, as a part of the target's variance.
    """

    fit: NormalFit
    family: str
    residual_variance: float = 1.0

    @property
    def schema(self) -> Schema:
        return self.fit.schema

    @property
    def contributors(self) -> int:
        return self.fit.contributors

    @property
    def private(self) -> bool:
        return self.fit.private

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.fit.warnings

    @property
    def coefficients(self) -> Array:
        """Posterior mean slopes, per feature unit: of the log odds, or of the target in its units. Shape ``(d,)``."""
        return self._own_units(self.fit.mean)[1:]

    @property
    def coefficient_sd(self) -> Array:
        """Posterior standard deviations of the slopes, the privacy noise included, shape ``(d,)``."""
        return np.sqrt(np.diag(self.cov))[1:]

    @property
    def cov(self) -> Array:
        """Posterior covariance of (intercept, slopes) in the user's units, shape ``(d + 1, d + 1)``."""
        return np.asarray(self._to_own @ self.fit.cov @ self._to_own.T)

    @property
    def prior_sd(self) -> Array | None:
        """Prior standard deviations of intercept (about the target's centre) and slopes, ``(d + 1,)``, if known."""
        return None if self.fit.prior_sd is None else self.fit.prior_sd * np.linalg.norm(self._to_own, axis=1)

    @property
    def _to_own(self) -> Array:
        """The linear map from (θ₀, θ) to (intercept less the target's centre, slopes)."""
        columns = self.fit.columns
        to_own = np.diag(np.r_[1.0, 1 / columns.scale[:-1]])
        to_own[0, 1:] = -columns.centre[:-1] / columns.scale[:-1]
        return self._target_scale * to_own

    @property
    def intercept(self) -> float:
        """Posterior mean of the log odds, or of the target, at features of zero."""
        return float(self._own_units(self.fit.mean)[0])

    @property
    def intercept_sd(self) -> float:
        """Posterior standard deviation of the intercept."""
        return float(np.sqrt(self.cov[0, 0]))

    def linear_predictor(self, X: Array) -> tuple[Array, Array]:
        """Mean and variance of η at rows ``X`` in their own units, shape ``(k, d)``: each ``(k,)``."""
        return linear_predictor(self.fit.mean, self.fit.cov, self.fit.columns, X)

    def predict_proba(self, X: Array) -> Array:
        """P(y = 1) of rows, averaged over the posterior, the privacy noise included, shape ``(k,)``."""
        return probability(*self.linear_predictor(X))

    def predict(self, X: Array) -> tuple[Array, Array]:
        """Posterior predictive mean and standard deviation in target units; of ``bernoulli``, of the probability."""
        mean, variance = self.linear_predictor(X)
        if self.family == BERNOULLI:
            p = probability(mean, variance)
            return p, np.sqrt(np.maximum(probability_square(mean, variance) - p**2, 0.0))
        columns = self.fit.columns
        predictive = self._target_scale * np.sqrt(variance + self.residual_variance)
        return columns.centre[-1] + self._target_scale * mean, predictive

    def draws(self, rng: np.random.Generator, chains: int = CHAINS, draws: int = DRAWS) -> dict[str, Array]:
        """Intercept and slopes in the user's units, ``(chains, draws)`` and ``(chains, draws, d)``."""
        own = self._own_units(self.fit.draws(rng, chains, draws))
        return {"intercept": own[..., 0], "coefficients": own[..., 1:]}

    def inference_data(self, rng: np.random.Generator, chains: int = CHAINS, draws: int = DRAWS) -> InferenceData:
        """The draws as ArviZ's common type. Raises `DataError` without ArviZ."""
        return inference_data(
            self.draws(rng, chains, draws),
            dims={"coefficients": ["feature"]},
            coords={"feature": list(self.schema.features)},
            attrs=attributes_of(self.fit),
        )

    @property
    def _target_scale(self) -> float:
        return float(self.fit.columns.scale[-1]) if self.family == NORMAL else 1.0

    def _own_units(self, theta: Array) -> Array:
        """(θ₀, θ), shape ``(..., d + 1)``, as (intercept, slopes) in the user's units."""
        own = theta @ self._to_own.T
        if self.family == NORMAL:
            own[..., 0] += self.fit.columns.centre[-1]
        return np.asarray(own)


def score_on(family: str, rows: Problem, residual_variance: float) -> Score:
    """What iterations are scored by, on rows that the trainer holds. Raises `DataError` of rows of one class."""
    if family == BERNOULLI:
        positive = rows.y > rows.schema.centres[-1]
        area_under_curve(rows.y, positive)  # refuses rows of one class before anything is spent

        def area(mean: Array, sd: Array, columns: Standardisation) -> float:
            return area_under_curve(linear_predictor(mean, np.diag(sd**2), columns, rows.X)[0], positive)

        return Score("held-out AUC", area)

    def density(mean: Array, sd: Array, columns: Standardisation) -> float:
        eta, variance = linear_predictor(mean, np.diag(sd**2), columns, rows.X)
        scale = float(columns.scale[-1])
        return log_predictive(rows.y, columns.centre[-1] + scale * eta, scale * np.sqrt(variance + residual_variance))

    return Score("held-out log predictive density", density)


def linear_predictor(mean: Array, cov: Array, columns: Standardisation, X: Array) -> tuple[Array, Array]:
    """Mean and variance of η at rows in their own units: each of shape ``(k,)``."""
    z = np.insert(columns.z(np.asarray(X, float)), 0, 1.0, axis=1)
    return z @ mean, np.einsum("ki,ij,kj->k", z, cov, z)


def probability(mean: Array, variance: Array) -> Array:
    """E[1/(1 + exp(-η))] of η ~ N(mean, variance), as at the head."""
    averaged: Array = expit(mean / np.sqrt(1 + np.pi * variance / 8))
    return averaged


def probability_square(mean: Array, variance: Array) -> Array:
    """E[1/(1 + exp(-η))²], by Gauss and Hermite's rule of 20 points."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    values: Array = expit(mean[..., None] + np.sqrt(variance)[..., None] * nodes) ** 2 @ (weights / weights.sum())
    return values
