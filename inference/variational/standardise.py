"""Centres and scales of the columns from a first round of noisy first and second moments.

A step of one length in all directions, one clipping norm and one prior for all coefficients make sense where features
are alike: of mean about 0 and standard deviation about 1. Both are estimated from noisy sums over the n clients, in
half-widths h of the public bounds,

    M₁ = Σ x/n + noise of variance v₁,     M₂ = Σ x²/n + noise of variance v₂,

each as a posterior mean, so that the bounds decide where noise drowns the data. Whoever states bounds ±h means that
nearly all values lie inside: a priori the mean is N(0, 1/9), and ln σ ~ N(ln 1/3, ½²) (`inference.scale`).
M₂ - M₁² + v₁ is unbiased for σ², with a variance of v₂ + 4M₁²v₁ + 2v₁² from the noise and 2σ⁴/n from the sample. A
centre that is off costs little: the intercept takes it up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from dca_proto.aggregate import NoisyAggregate, SecureSumRequest
from inference.bounds import Interval
from inference.problem import Schema
from inference.scale import FREE_BOUND, means, moments_parameters, posterior_sd

Array = NDArray[np.float64]

PRIOR_LOG_SD = 0.5  # wider than the regression's: columns are many, and often binary
BEYOND_MAX = 0.03  # of a normal law, beyond the public bounds on one side


def reaches_beyond(low: Array, high: Array) -> NDArray[np.bool_]:
    """Which columns cannot be normal: more of that law than `BEYOND_MAX` is beyond a bound, given standardised."""
    return np.asarray(np.maximum(ndtr(low), ndtr(-high)) > BEYOND_MAX)


@dataclass(frozen=True, eq=False)
class Standardisation:
    """z = clip((x - centre)/scale, ±bound), of the features and the target, last: shapes ``(d + 1,)``."""

    columns: tuple[str, ...]
    centre: Array
    scale: Array
    bound: Array

    def parameters(self) -> dict[str, object]:
        """As those of a statistic of scaled columns."""
        numbers = {"centre": self.centre, "scale": self.scale, "bound": self.bound}
        return {"columns": list(self.columns)} | {name: [float(x) for x in row] for name, row in numbers.items()}

    def z(self, X: Array) -> Array:
        """The first columns in their own units, shape ``(k, m)`` with m <= d + 1, as the clients standardise them."""
        m = X.shape[1]
        return np.clip(self.scaled(X), -self.bound[:m], self.bound[:m])

    def scaled(self, X: Array) -> Array:
        """The first columns centred and scaled, but not projected, shape ``(k, m)``."""
        m = X.shape[1]
        return np.asarray((X - self.centre[:m]) / self.scale[:m])

    def in_own_units(self, theta: Array) -> Array:
        """(θ₀, θ), shape ``(..., d + 1)``, of a predictor θ₀ + Σ θ_j z_j, as intercept and slopes in own units."""
        slopes = theta[..., 1:] / self.scale[:-1]
        return np.concatenate([theta[..., :1] - (slopes @ self.centre[:-1])[..., None], slopes], axis=-1)

    def with_own_target(self, bounds: Interval) -> Standardisation:
        """The same with the target in its own units, within its public bounds."""
        own = zip(
            (self.centre, self.scale, self.bound), (0.0, 1.0, max(abs(bounds.lower), abs(bounds.upper))), strict=True
        )
        return Standardisation(self.columns, *(np.r_[row[:-1], value] for row, value in own))

    def without_target(self) -> Standardisation:
        """Of the features alone."""
        return Standardisation(self.columns[:-1], self.centre[:-1], self.scale[:-1], self.bound[:-1])

    def in_bounds(self) -> Standardisation:
        """The same projection in units of the bounds, which are 1 then."""
        return Standardisation(self.columns, self.centre, self.scale * self.bound, np.ones_like(self.bound))


def moments_request(schema: Schema, share: float, *, target: bool) -> SecureSumRequest:
    """The first round: moments of the features, and of the target where it is to be standardised, too."""
    columns = schema.columns if target else schema.features
    d = len(columns)
    parameters = moments_parameters(columns, schema.centres[:d], schema.half_widths[:d])
    return SecureSumRequest("moments", parameters, budget_share=share)


def standardised(schema: Schema, moments: NoisyAggregate, bound: float) -> Standardisation:
    """The standardisation that the first round's answer says.

    Args:
        moments: of `moments_request`. bound: to how many standard deviations clients project their values.

    Returns:
        A target without moments is mapped by its public bounds to ±1.
    """
    d, n = moments.dimension // 2, moments.contributors
    first, second = moments.value[:d] / (n * FREE_BOUND), moments.value[d:] / (n * FREE_BOUND**2)
    v1 = moments.noise_variance / (n * FREE_BOUND) ** 2
    mean = means(n * first, n, n**2 * v1)
    noise = v1 / FREE_BOUND**2 + 4 * first**2 * v1 + 2 * v1**2
    sd = posterior_sd(second - first**2 + v1, noise, n, PRIOR_LOG_SD)
    centre, half, limit = schema.centres, schema.half_widths, np.ones(len(schema.columns))
    scale = half.copy()
    centre[:d] += half[:d] * mean
    scale[:d] *= sd
    limit[:d] = bound
    return Standardisation(schema.columns, centre, scale, limit)


def variance_error(columns: Standardisation, schema: Schema, moments: NoisyAggregate) -> Array:
    """Standard deviation of what privacy noise adds to each feature's variance, as a part of it, shape ``(d,)``."""
    noise = np.sqrt(moments.noise_variance) / (moments.contributors * FREE_BOUND**2)
    return np.asarray(noise * (schema.half_widths[:-1] / columns.scale[:-1]) ** 2)
