"""What a regression returns: the posterior in standardised units, seen in the user's own.

The model is linear in the *projected* features z_j = clip((x_j - centre_j) / scale_j, ±p_j):

    y = centre_y + scale_y (β₀ + Σ_j β_j z_j)

Predictions project new rows in the same way. A coefficient in the user's units is the slope inside the bounds. Where a
radius is given, z is then brought into the ball of that radius, as the clients do. Of whole rows (`whole_rows`) the
model is linear in the features as they are, and nothing is projected.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inference.contraction import contraction
from inference.draws import CHAINS, DRAWS, InferenceData, inference_data
from inference.errors import DataError
from inference.models.linear.closed_form import Posterior, SufficientStatistics, predictive
from inference.models.linear.prior import fitted_to
from inference.problem import Schema

Array = NDArray[np.float64]


def into_ball(z: Array, radius: float) -> Array:
    """Vectors along the last axis, those outside the ball of that radius drawn to its surface; it may be infinite."""
    inside: Array = z / np.maximum(1.0, np.linalg.norm(z, axis=-1, keepdims=True) / radius)
    return inside


@dataclass(frozen=True, eq=False)
class LinearFit:
    """A fitted linear regression with intercept.

    Attributes:
        posterior: over (β₀, β), standardised, shape ``(d + 1,)``.
        centre, scale: of the features, then the target, in their own units, shape ``(d + 1,)``.
        thresholds: projection bounds p in units of ``scale``, shape ``(d + 1,)``; infinite where nothing is projected.
        constant: value of the feature that β₀ belongs to; 0 where there is none, and β₀ is 0.
        radius: of the ball that the standardised features are brought into; infinite without one.
    """

    posterior: Posterior
    centre: Array
    scale: Array
    thresholds: Array
    constant: float = field(default=1.0, kw_only=True)
    radius: float = field(default=np.inf, kw_only=True)

    @property
    def coefficients(self) -> Array:
        """Posterior mean slopes, in target units per feature unit, shape ``(d,)``."""
        return self._own_units(self.posterior.mean)[1:]

    @property
    def coefficient_sd(self) -> Array:
        """Posterior standard deviations of the slopes, the privacy noise included, shape ``(d,)``."""
        return np.sqrt(np.diag(self.cov)[1:])

    @property
    def intercept(self) -> float:
        """Posterior mean of the target at features of zero, in target units."""
        return float(self._own_units(self.posterior.mean)[0] + self.centre[-1])

    @property
    def intercept_sd(self) -> float:
        """Posterior standard deviation of the intercept, in target units."""
        return float(np.sqrt(self.cov[0, 0]))

    @property
    def prior_sd(self) -> Array | None:
        """Prior standard deviations of (intercept, slopes) in the user's units, ``(d + 1,)``; None without a prior."""
        variance = self.posterior.prior_variance
        if variance is None:
            return None
        squares = self._own_units(np.eye(len(variance))) ** 2
        with np.errstate(invalid="ignore"):  # 0 times infinity: no part of a flat prior
            parts = np.where(squares > 0, squares * variance, 0.0)
        return np.asarray(np.sqrt(parts.sum(axis=1)))

    @property
    def contraction(self) -> Array | None:
        """How much was learned of (intercept, slopes), ``(d + 1,)`` (`inference.contraction`); None without a prior."""
        return None if self.prior_sd is None else contraction(np.sqrt(np.diag(self.cov)), self.prior_sd)

    @property
    def cov(self) -> Array:
        """Posterior covariance of (intercept, slopes) in the user's units, shape ``(d + 1, d + 1)``."""
        half = self._own_units(self.posterior.cov)
        return self._own_units(half.T)

    def _own_units(self, standardised: Array) -> Array:
        """The linear map from (β₀, β) to (intercept less the target's centre, slopes), applied to the first axis."""
        slope = self.scale[-1] / self.scale[:-1]
        to_own = np.diag(np.r_[self.scale[-1] * self.constant, slope])
        to_own[0, 1:] = -slope * self.centre[:-1]
        mapped: Array = to_own @ standardised
        return mapped

    def predict(self, X: Array) -> tuple[Array, Array]:
        """Posterior predictive mean and standard deviation at rows ``X`` of shape ``(k, d)``, in target units."""
        mean, spread = predictive(self.posterior, self.standardised(X))
        return self.centre[-1] + self.scale[-1] * mean, self.scale[-1] * spread

    def standardised(self, X: Array) -> Array:
        """Rows as the model sees them, the constant feature first, shape ``(k, d + 1)``."""
        z = np.clip((X - self.centre[:-1]) / self.scale[:-1], -self.thresholds[:-1], self.thresholds[:-1])
        return np.column_stack([np.full(len(z), self.constant), into_ball(z, self.radius)])

    def draws(self, rng: np.random.Generator, chains: int = CHAINS, draws: int = DRAWS) -> dict[str, Array]:
        """Independent draws in the user's units: ``intercept`` (chains, draws), ``coefficients`` (chains, draws, d)."""
        return self.in_own_units(self.posterior.draws(rng, chains, draws))

    def in_own_units(self, drawn: Array) -> dict[str, Array]:
        """Draws of (β₀, β), shape ``(chains, draws, d + 1)``, as the caller sees them."""
        own = np.moveaxis(self._own_units(np.moveaxis(drawn, -1, 0).reshape(drawn.shape[-1], -1)), 0, -1)
        own = own.reshape(drawn.shape)
        return {"intercept": own[..., 0] + self.centre[-1], "coefficients": own[..., 1:]}

    def inference_data(
        self, rng: np.random.Generator, X: Array | None = None, *, chains: int = CHAINS, draws: int = DRAWS
    ) -> InferenceData:
        """Draws in the user's units as ArviZ's common type.

        Args:
            X: rows, shape ``(k, d)``; with them, the group ``posterior_predictive`` holds a ``target`` for each, in
                target units: what each draw of the coefficients predicts, and a residual about it.

        Raises:
            DataError: ArviZ is not installed.
        """
        drawn = self.posterior.draws(rng, chains, draws)
        return inference_data(
            self.in_own_units(drawn),
            dims={"coefficients": ["feature"], "target": ["row"]},
            coords={"feature": self._feature_names()},
            attrs=self._attributes(),
            posterior_predictive=None if X is None else {"target": self._targets(drawn, X, rng)},
        )

    def _targets(self, drawn: Array, X: Array, rng: np.random.Generator) -> Array:
        """A target for each draw of (β₀, β) and each row, in its own units, shape ``(chains, draws, k)``."""
        mean = drawn @ self.standardised(X).T
        residual = np.sqrt(self.posterior.residual_variance) * rng.standard_normal(mean.shape)
        targets: Array = self.centre[-1] + self.scale[-1] * (mean + residual)
        return targets

    def _feature_names(self) -> list[str]:
        """As scikit-learn calls features without names."""
        return [f"x{j}" for j in range(len(self.scale) - 1)]

    def _attributes(self) -> dict[str, object]:
        """What the draws rest on."""
        return {}


class Held(NamedTuple):
    """What a posterior was learned from: the statistics, and the prior precision if one was given."""

    statistics: SufficientStatistics
    prior_precision: ArrayLike | None


@dataclass(frozen=True, eq=False, kw_only=True)
class RegressionResult(LinearFit):
    """What a regression job returns.

    Attributes:
        schema: features, target, units.
        repair: how an indefinite noisy matrix was dealt with, of `REPAIRS`; "none" where exact rows were at hand.
        contributors: rows in the statistics. private: False where no epsilon may be claimed.
        degrees: of freedom of Student's t, where least squares estimates the residual variance and ``posterior`` has
            its scale; infinite where the posterior is normal.
        warnings: what speaks against the posterior, a sentence each.
        held: what it was learned from, for `refit`; None of methods that cannot.
    """

    schema: Schema
    repair: str
    contributors: int
    private: bool
    degrees: float = np.inf
    warnings: tuple[str, ...] = ()
    held: Held | None = None

    def refit(self, *, prior_precision: ArrayLike | None = None, repair: str | None = None) -> RegressionResult:
        """The regression under another prior or repair, from the same sums: no round, and no privacy, is spent.

        Args:
            prior_precision: λ₀ of each slope, with columns in standard deviations, broadcastable to ``(d,)``; None:
                normal with a scale that is learned (`prior`).
            repair: one of `REPAIRS`; None: as before.

        Raises:
            DataError: the result has no sums to learn from, or an option is not one of those.
        """
        if self.held is None:
            raise DataError("this result holds no sums to learn from; refit that of a job over rounds")
        chosen, features = repair or self.repair, len(self.schema.features)
        posterior = fitted_to(self.held.statistics, features, prior_precision, repair=chosen)
        return replace(self, posterior=posterior, repair=chosen, held=Held(self.held.statistics, prior_precision))

    def _feature_names(self) -> list[str]:
        return list(self.schema.features)

    def _attributes(self) -> dict[str, object]:
        return {
            "target": self.schema.target,
            "repair": self.repair,
            "contributors": self.contributors,
            "private": self.private,
        }
