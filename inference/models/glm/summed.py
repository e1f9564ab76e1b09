"""The likelihood of a regression given a noisy sum of its sufficient statistics: normal, by the central limit theorem.

Sections and equations are of the LDP paper (2021).

    p(value | θ, σ², Σ) = N(value; nμ_t, nC_t + diag(noise))                             (3), derived in section 13.1

with the mean μ_t and the covariance C_t of one row's statistics (`moments`). It holds for whatever released the sum,
for the noise alone is what differs: n reports, each with its own noise (n times one report's variance), a sum of the
protocol, a trusted aggregator's. The noise may differ between coordinates: where blocks have weights w, the value is
what was released divided by w, and the noise's variance is divided by w². Without a look at the noise (*noise-naive*)
the variance is 0.

**What it leaves out.** n rows' statistics are normal only as n grows, and rows that were clipped are taken for whole.

**Cholesky.** nC_t + diag(noise) is positive definite for a positive definite Σ and σ² > 0 without any noise too. Its
coordinates may be of any scales: a Cholesky factor's relative error depends on the correlations alone (Demmel 1989). At
noise 0 and with a smallest eigenvalue λ of the correlations of (x, y), those of C_t go down to λ², and ln p is off by
about 1e-16/λ²: 1e-4 at λ = 1e-6. Below λ = 1e-8 it is nan. Any noise that matters mends it.
"""

from __future__ import annotations

from math import log, pi
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from inference.models.glm import moments

Array: TypeAlias = Any
"""A float64 array, JAX's or NumPy's."""


def linear(
    value: Array,
    n: Array,
    noise_variance: Array,
    theta: Array,
    sigma2: Array,
    Sigma: Array,
    *,
    mean: Array | None = None,
    constant: float | None = None,
) -> Array:
    """ln p of a noisy sum of [unique terms of xxᵀ, xy, perhaps y²], as the statistic "regression" releases it.

    Args:
        value: in the units of the rows, weights divided out: shape ``(D,)``, D = (d + 1)(d + 2)/2 with y² and one less
            without; d counts a constant feature.
        n: how many rows it is over. noise_variance: of each coordinate, broadcastable to ``(D,)``; 0 without noise.
        theta, sigma2, Sigma, mean, constant: as for `moments.linear`.

    Returns:
        Shape ``()``. With a constant, the density of all coordinates but its square, which is public: the first
        coordinate of ``value`` is not looked at.
    """
    return _log_normal(
        value, n, noise_variance, moments.linear(theta, sigma2, Sigma, mean=mean, constant=constant), constant
    )


def logistic(
    value: Array,
    n: Array,
    noise_variance: Array,
    theta: Array,
    Sigma: Array,
    *,
    mean: Array | None = None,
    constant: float | None = None,
) -> Array:
    """ln p of a noisy sum of [unique terms of xxᵀ, xy], y in {-1, 1}.

    Args:
        value: shape ``(D,)``, D = d(d + 3)/2. The others as for `linear`.

    Returns:
        As `linear`.
    """
    row = moments.logistic(theta, Sigma, mean=mean, constant=constant)
    return _log_normal(value, n, noise_variance, row, constant)


def _log_normal(
    value: Array, n: Array, noise_variance: Array, row: tuple[Array, Array], constant: float | None
) -> Array:
    """The normal density of those coordinates that are there and are not public."""
    value = jnp.asarray(value)
    told = slice(0 if constant is None else 1, value.shape[0])
    noise = jnp.broadcast_to(jnp.asarray(noise_variance), value.shape)[told]
    root = jnp.linalg.cholesky(n * row[1][told, told] + jnp.diag(noise), symmetrize_input=False)
    off = jax.scipy.linalg.solve_triangular(root, value[told] - n * row[0][told], lower=True)
    return -(off @ off) / 2 - jnp.log(jnp.diagonal(root)).sum() - off.size / 2 * log(2 * pi)
