"""What a regression job returns: the posterior in standardised units, seen in the user's own.

The model is linear in the *projected* features z_j = clip((x_j - centre_j) / scale_j, ±p_j):

    y = centre_y + scale_y (β₀ + Σ_j β_j z_j)

Predictions project new rows in the same way. A coefficient in the user's units is the slope inside the bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inference.datasets import Schema
from inference.linear_regression import Posterior, predictive

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RegressionResult:
    """A fitted linear regression with intercept.

    Attributes:
        schema: features, target, units. posterior: over (β₀, β), standardised, shape ``(d + 1,)``.
        centre, scale: of the features, then the target, in their own units, shape ``(d + 1,)``.
        thresholds: projection bounds p in units of ``scale``, shape ``(d + 1,)``; infinite where nothing is projected.
        repair: how an indefinite noisy matrix was dealt with; "none" where there was no noise.
        contributors: rows in the statistics. private: False where no epsilon may be claimed.
    """

    schema: Schema
    posterior: Posterior
    centre: Array
    scale: Array
    thresholds: Array
    repair: str
    contributors: int
    private: bool

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
    def cov(self) -> Array:
        """Posterior covariance of (intercept, slopes) in the user's units, shape ``(d + 1, d + 1)``."""
        half = self._own_units(self.posterior.cov)
        return self._own_units(half.T)

    def _own_units(self, standardised: Array) -> Array:
        """The linear map from (β₀, β) to (intercept less the target's centre, slopes), applied to the first axis."""
        slope = self.scale[-1] / self.scale[:-1]
        to_own = np.diag(np.r_[self.scale[-1], slope])
        to_own[0, 1:] = -slope * self.centre[:-1]
        mapped: Array = to_own @ standardised
        return mapped

    def predict(self, X: Array) -> tuple[Array, Array]:
        """Posterior predictive mean and standard deviation at rows ``X`` of shape ``(k, d)``, in target units."""
        z = np.clip((X - self.centre[:-1]) / self.scale[:-1], -self.thresholds[:-1], self.thresholds[:-1])
        mean, spread = predictive(self.posterior, np.column_stack([np.ones(len(z)), z]))
        return self.centre[-1] + self.scale[-1] * mean, self.scale[-1] * spread
