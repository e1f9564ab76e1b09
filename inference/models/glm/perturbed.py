"""Regression from perturbed inputs: each client releases its features and its target with noise (LDP paper 2021, 12).

    x ~ N(0, Σ)                  z_x | x ~ N(x, Σ*), Σ* diagonal
    linear:   y | x ~ N(xᵀθ, σ²),  z_y | y ~ N(y, σ*²)
    logistic: y | x ~ Bernoulli(1/(1 + exp(-xᵀθ))),  z_y is y with probability p, and 1 - y otherwise

With x integrated out, z_x ~ N(0, Σ + Σ*), and u = xᵀθ given z_x is normal with mean z_xᵀb and variance v, where

    b = (Σ + Σ*)⁻¹Σθ,   r = (Σ + Σ*)⁻¹Σ*θ = θ - b,   v = θᵀAθ = rᵀΣr + bᵀΣ*b

(A as in eq. 37; in this form, Joseph's, nothing cancels, so the noise may be small or 0). Hence

    linear:   p(z_x, z_y) = N(z_x; 0, Σ + Σ*) N(z_y; z_xᵀb, v + σ² + σ*²)                                          (41)
    logistic: p(z_x, z_y) = N(z_x; 0, Σ + Σ*) [p s + (1 - p)(1 - s)] for z_y = 1,  s = E[1/(1 + exp(-u))];
              with p and 1 - p exchanged for z_y = 0

**Cost.** Linear: (z_x, z_y) is jointly normal, so the likelihood depends on the rows only through their scatter matrix,
at a cost independent of n. Logistic: the same holds for the features' part, so each row costs one label probability.

**s is exact** (`logistic_normal`); the paper uses the mean of a polynomial.

**Offsets.** For features with a mean μ, pass z_x - μ. For an intercept α, pass z_y - α - μᵀθ to linear models and
``offset = α + μᵀθ`` to logistic ones.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log, pi
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from inference.models.glm import logistic_normal
from inference.problem import AnyArray as Array

Mean: TypeAlias = Callable[[Array, Array], Array]
"""A function of (m, v) of one shape: E[1/(1 + exp(-u))] for u ~ N(m, v), or an approximation within (0, 1)."""
LOG_2PI = log(2 * pi)


class _Inputs(NamedTuple):
    """The lower Cholesky factor of Σ + Σ*, shape ``(d, d)``; and for u given z_x: b, shape ``(d,)``, and v."""

    root: Array
    weights: Array
    variance: Array


def linear_scatter(
    scatter: Array, n: Array, theta: Array, sigma2: Array, Sigma: Array, var_x: Array, var_y: Array
) -> Array:
    """Return the sum of ln p(z_x, z_y) over n rows, from Σ wwᵀ of w = (z_x, z_y) alone.

    Args:
        scatter: Σ wwᵀ, shape ``(d + 1, d + 1)``. n: number of rows.
        theta: coefficients, shape ``(d,)``. sigma2: σ², of the residuals. Sigma: Σ, positive definite.
        var_x: variances of the noise in the features, broadcastable to ``(d,)``. var_y: σ*². They may be 0.

    Returns:
        Shape ``()``.
    """
    inputs, d = _inputs(theta, Sigma, var_x), theta.shape[0]
    variance = inputs.variance + sigma2 + var_y
    contrast = jnp.append(-inputs.weights, 1.0)
    targets = contrast @ scatter @ contrast / variance + n * (jnp.log(variance) + LOG_2PI)
    return _log_features(scatter[:d, :d], n, inputs.root) - targets / 2


def logistic_scatter(
    scatter: Array,
    zx: Array,
    zy: Array,
    theta: Array,
    Sigma: Array,
    var_x: Array,
    p: float,
    mean: Mean | None = None,
    *,
    offset: Array = 0.0,
) -> Array:
    """Return the sum of ln p(z_x, z_y) over rows with labels.

    Args:
        scatter: Σ z_x z_xᵀ of the rows, shape ``(d, d)``. zx: released features, shape ``(n, d)``.
        zy: released labels, 0 or 1, shape ``(n,)``. theta, Sigma, var_x: as for `linear_scatter`.
        p: probability that a label was released unchanged, from ½ to 1.
        mean: replaces s, for example by the paper's polynomials; None keeps s. offset: added to xᵀθ.
    """
    inputs = _inputs(theta, Sigma, var_x)
    labels = _log_labels(zx @ inputs.weights + offset, inputs.variance, zy, p, mean)
    return _log_features(scatter, zx.shape[0], inputs.root) + labels.sum()


def linear_rows(zx: Array, zy: Array, theta: Array, sigma2: Array, Sigma: Array, var_x: Array, var_y: Array) -> Array:
    """Return ln p(z_x, z_y) of each row, shape ``(n,)``; arguments as for `linear_scatter` and `logistic_scatter`."""
    inputs = _inputs(theta, Sigma, var_x)
    variance = inputs.variance + sigma2 + var_y
    targets = (zy - zx @ inputs.weights) ** 2 / variance + jnp.log(variance) + LOG_2PI
    return _log_features_of_rows(zx, inputs.root) - targets / 2


def logistic_rows(
    zx: Array,
    zy: Array,
    theta: Array,
    Sigma: Array,
    var_x: Array,
    p: float,
    mean: Mean | None = None,
    *,
    offset: Array = 0.0,
) -> Array:
    """Return ln p(z_x, z_y) of each row with a label, shape ``(n,)``; arguments as for `logistic_scatter`."""
    inputs = _inputs(theta, Sigma, var_x)
    labels = _log_labels(zx @ inputs.weights + offset, inputs.variance, zy, p, mean)
    return _log_features_of_rows(zx, inputs.root) + labels


def _inputs(theta: Array, Sigma: Array, var_x: Array) -> _Inputs:
    noise = jnp.broadcast_to(jnp.asarray(var_x), theta.shape)
    explained, left = Sigma @ theta, noise * theta
    root = jnp.linalg.cholesky(Sigma + jnp.diag(noise), symmetrize_input=False)
    b, r = jax.scipy.linalg.cho_solve((root, True), jnp.stack([explained, left], axis=-1)).T
    return _Inputs(root, b, r @ Sigma @ r + b @ (noise * b))


def _log_labels(m: Array, v: Array, zy: Array, p: float, mean: Mean | None) -> Array:
    """Return ln P(z_y) of each row, where u ~ N(m, v); shape of m."""
    positive = jnp.asarray(zy) == 1
    if mean is None:
        one, zero = logistic_normal.log_means(m, v)
        same, other = jnp.where(positive, one, zero), jnp.where(positive, zero, one)
        return jnp.logaddexp(jnp.log(p) + same, jnp.log1p(-p) + other)
    s = mean(m, v)
    return jnp.log((1 - p) + (2 * p - 1) * jnp.where(positive, s, 1 - s))


def _log_features(scatter: Array, n: Array, root: Array) -> Array:
    """Return Σ ln N(z_x; 0, LLᵀ) over n rows, from their scatter Σ z_x z_xᵀ; shape ``()``."""
    half = jax.scipy.linalg.solve_triangular(root, jnp.eye(root.shape[0]), lower=True)
    constants = root.shape[0] * LOG_2PI / 2 + jnp.log(jnp.diagonal(root)).sum()
    return -jnp.sum((half @ scatter) * half) / 2 - n * constants


def _log_features_of_rows(zx: Array, root: Array) -> Array:
    """Return ln N(z_x; 0, LLᵀ) of each row, shape ``(n,)``."""
    half = jax.scipy.linalg.solve_triangular(root, jnp.eye(root.shape[0]), lower=True)
    constants = root.shape[0] * LOG_2PI / 2 + jnp.log(jnp.diagonal(root)).sum()
    return -jnp.sum((zx @ half.T) ** 2, axis=1) / 2 - constants
