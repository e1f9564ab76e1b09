"""What a normal linear predictor η of mean m and variance v is expected to give, by its link.

E[1/(1 + exp(-η))] ≈ 1/(1 + exp(-m/√(1 + πv/8)))          (MacKay 1992, eq. 10, exact to 0.02)
E[λ^k] = exp(km + k²v/2) Φ((ln u - m - kv)/√v) + u^k Φ((m - ln u)/√v),      λ = min(exp(η), u)

A count with the public bound u and dispersion κ has the mean M = E[λ] and the variance M + (1 + κ) E[λ²] - M².
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit, log_ndtr

from inference.problem import Array


def limited(mean: Array, variance: Array, log_most: float, power: int = 1) -> Array:
    """Return E[min(exp(η), u)^power] for η ~ N(mean, variance). Args: log_most: ln u."""
    sd = np.sqrt(np.maximum(variance, 1e-12))
    below = power * mean + power**2 * variance / 2 + log_ndtr((log_most - mean - power * variance) / sd)
    return np.asarray(np.exp(below) + np.exp(power * log_most + log_ndtr((mean - log_most) / sd)))


def probability(mean: Array, variance: Array) -> Array:
    """Approximate E[1/(1 + exp(-η))] for η ~ N(mean, variance)."""
    return np.asarray(expit(mean / np.sqrt(1 + np.pi * variance / 8)))


def probability_square(mean: Array, variance: Array) -> Array:
    """Return E[1/(1 + exp(-η))²] by Gauss-Hermite quadrature with 20 points."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    return np.asarray(expit(mean[..., None] + np.sqrt(variance)[..., None] * nodes) ** 2 @ (weights / weights.sum()))
