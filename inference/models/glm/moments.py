"""Mean and covariance of one row's sufficient statistics, for linear and logistic regression.

    x ~ N(μ, Σ), d features         y | x ~ N(xᵀθ, σ²), or y in {-1, 1} with P(y = 1 | x) = 1/(1 + exp(-xᵀθ))
    t(x, y) = [the d(d+1)/2 unique terms of xxᵀ: upper triangle, row by row | xy | y², linear regression only]

in the order of the statistic "regression", each product once. A sum of n rows has n times this mean and covariance
(LDP paper 2021, sections 3.1 and 13, where d(d+1)/2 is misprinted as C(d+2, 2)).

**Linear** (Isserlis 1918; Bernstein and Sheldon 2019). w = (x, y) ~ N(m, V) jointly, V = [[Σ, Σθ], [θᵀΣ, θᵀΣθ + σ²]]:

    E[w_i w_j] = W_ij = V_ij + m_i m_j
    Cov(w_i w_j, w_k w_l) = V_ik W_jl + V_il W_jk + m_i m_k V_jl + m_i m_l V_jk

**Logistic.** E[y | x] = g(u) = tanh(u/2), u = xᵀθ ~ N(μᵀθ, θᵀΣθ). With a = Σθ, e = x - μ and γ_k = E[dᵏg/duᵏ], Stein's
lemma (E[e_i F(x)] = Σ_j Σ_ij E[∂_j F]) leaves only one-dimensional means, so nothing is approximated:

    E[x_i y]          = μ_i γ0 + a_i γ1
    Cov(x_i y, x_j y) = W_ij - E[x_i y] E[x_j y]                                                     for y² = 1
    Cov(x_i x_j, x_k y) = μ_i (Σ_jk γ0 + μ_k a_j γ1 + a_j a_k γ2) + μ_j (Σ_ik γ0 + μ_k a_i γ1 + a_i a_k γ2)
                          + (Σ_ik a_j + Σ_jk a_i) γ1 + μ_k a_i a_j γ2 + a_i a_j a_k γ3

The γ_k come from `logistic_normal`: g = 2σ - 1. (Kulkarni et al. 2021 replace g by a polynomial.)

**A constant feature** c, an intercept, is a first feature with mean c and variance 0. Its square also has variance 0,
and its products with other features are c times those features. θ then has its coefficient first; Σ and μ omit it.

**Weights** of the blocks do not enter here: divide the released value, and its noise, by them first.

**Limits.** The statistics of n rows are normal only as n grows, and clipped rows are treated as unclipped.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from inference.models.glm.logistic_normal import derivative_means
from inference.models.logistic.one_sum import expected_products
from inference.problem import AnyArray as Array


def linear(
    theta: Array, sigma2: Array, Sigma: Array, *, mean: Array | None = None, constant: float | None = None
) -> tuple[Array, Array]:
    """Return mean and covariance of [unique terms of xxᵀ, xy, y²].

    Args:
        theta: coefficients, shape ``(d,)``, a constant's first. sigma2: σ², variance of the residuals, above 0.
        Sigma: covariance of the features without the constant, positive definite.
        mean: μ, of the same features; None means 0. constant: c, if the first feature is a constant.

    Returns:
        Shapes ``(D,)`` and ``(D, D)``, D = (d + 1)(d + 2)/2. The covariance is positive definite, except for the zeros
        of a constant's square in the first coordinate.
    """
    mu, cov = _features(Sigma, mean, constant)
    slope = cov @ theta
    m = jnp.append(mu, mu @ theta)
    V = jnp.block([[cov, slope[:, None]], [slope[None, :], (theta @ slope + sigma2)[None, None]]])
    W = V + jnp.outer(m, m)
    i, j = _pairs(theta.shape[0])
    return W[i, j], _products(V, W, m, i, j)


def logistic(
    theta: Array, Sigma: Array, *, mean: Array | None = None, constant: float | None = None
) -> tuple[Array, Array]:
    """Return mean and covariance of [unique terms of xxᵀ, xy], y in {-1, 1}.

    Args:
        theta: coefficients, shape ``(d,)``, a constant's first. The other arguments as for `linear`.

    Returns:
        Shapes ``(D,)`` and ``(D, D)``, D = d(d + 3)/2. Positive definite as for `linear`.
    """
    mu, V = _features(Sigma, mean, constant)
    a = V @ theta
    of_sigmoid = derivative_means(mu @ theta, theta @ a, 3)
    g0, g1, g2, g3 = 2 * of_sigmoid[0] - 1, *(2 * one for one in of_sigmoid[1:])
    W, xy = expected_products(mu, V, a, g0, g1)
    i, j = np.triu_indices(theta.shape[0])
    # The factor of μ_i in Cov(x_i x_j, x_k y), by j and k; then the remaining terms, by pair and k.
    moved = V * g0 + jnp.outer(a, mu * g1 + a * g2)
    mixed = mu[i, None] * moved[j] + mu[j, None] * moved[i] + (V[i] * a[j, None] + V[j] * a[i, None]) * g1
    mixed += (a[i] * a[j])[:, None] * (mu * g2 + a * g3)
    cov = jnp.block([[_products(V, W, mu, i, j), mixed], [mixed.T, W - jnp.outer(xy, xy)]])
    return jnp.concatenate([W[i, j], xy]), cov


def _features(Sigma: Array, mean: Array | None, constant: float | None) -> tuple[Array, Array]:
    """Return mean and covariance of all features, a constant included."""
    cov = jnp.asarray(Sigma)
    mu = jnp.zeros(cov.shape[0]) if mean is None else jnp.asarray(mean)
    if constant is None:
        return mu, cov
    return jnp.concatenate([jnp.array([constant]), mu]), jnp.pad(cov, ((1, 0), (1, 0)))


def _pairs(d: int) -> tuple[Array, Array]:
    """Return the two factors of each coordinate of t, as indices into (x, y); y has index d."""
    i, j = np.triu_indices(d)
    features = np.arange(d)
    return np.r_[i, features, d], np.r_[j, np.full(d + 1, d)]


def _products(V: Array, W: Array, m: Array, i: Array, j: Array) -> Array:
    """Return Cov(w_i w_j, w_k w_l) for all given pairs (i, j) and (k, l).

    Matrices of zeros and ones pick the elements. Indices would make each derivative a loop that compiles slowly.
    """
    count, pick = len(i), np.eye(len(m))[np.r_[i, j]]
    (V_ik, V_il), (V_jk, V_jl) = _quarters(pick @ V @ pick.T, count)
    (_, _), (W_jk, W_jl) = _quarters(pick @ W @ pick.T, count)
    m_i, m_j = jnp.split(pick @ m, 2)
    return V_ik * W_jl + V_il * W_jk + m_i[:, None] * (m_i * V_jl + m_j * V_jk)


def _quarters(square: Array, half: int) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return the four blocks of a matrix, row by row."""
    above, below = square[:half], square[half:]
    return (above[:, :half], above[:, half:]), (below[:, :half], below[:, half:])
