"""Coordinates in which the posterior of Σ_x and S_1..J is nearly a standard Gaussian, and the model's prior in them.

    Σ_x = M Mᵀ          M = B K; K⁻¹ lower triangular, (K⁻¹)_ii = exp(-k_ii), (K⁻¹)_im = -k_im; B fixed, (d, d)
    S_j = n_j F_j F_jᵀ  F_j = M A_j; A_j lower triangular, √n_j A_j is Bartlett's factor of W(I, n_j):
                        A_ii = √(ν_i/n_j) exp a_ii with n_j A_ii² ~ χ²(ν_i), ν_i = n_j - i + 1, i = 1, ..., d
                        A_im = a_im ~ N(0, 1/n_j)

**Why Bartlett's A_j and not S_j** (non-centred; Papaspiliopoulos, Roberts and Sköld 2007). Privacy noise often exceeds
the smallest eigenvalues of S_j. These are then known only to a factor, by their common Σ_x, and all S_j move with it
within 1/√n_j: a funnel, in which no step size fits both ends. Given Σ_x the A_j are independent, and keep their law
whatever its size. And S_j is positive definite by construction, however close to the boundary.

**Why K⁻¹ and not K.** Where noise drowns all nodes, Σ_x has nearly its prior law. Then Σ_x⁻¹ is Wishart, rows of K⁻¹
are Gaussian below the diagonal and independent of it, while the terms of K are their quotients: a second funnel. (At
d = 5, J = 10, n = 400, ε = 1, of 4000 draws effectively 210 of θ with K, and 4000 with K⁻¹.) Where Σ_x is known, the
two differ in sign only.

**Where noise is small**, S_j is known and Σ_x less: now A_j has to move against K. So A_j is centred as far as the data
ask, entry by entry. In B = E√D, the eigenbasis of the pooled Ŝ, small changes move S_j by n_j √(D_i D_m) (k + a_j)_im
in entry (i, m). The noise sees that with a precision p_j, a_j itself has the prior precision w_j, and k has π by the
prior of Σ_x: an arrow matrix over (k, a_1..J), whose Cholesky factor gives the coordinates x_0, x_1..J

    k   = s x_0               s = (π + Σ_j p_j w_j/(p_j + w_j))^-1/2
    a_j = s_j x_j - ρ_j k     s_j = (p_j + w_j)^-1/2,  ρ_j = p_j/(p_j + w_j)

of unit scale, d(d + 1)/2 numbers each, with O(J d²) work and no covariance matrix of them all. ρ_j is 0 (non-centred)
where noise drowns the node, and 1 (centred) where there is none. E is in descending order of eigenvalues: each row of K
then depends on such before it as are known better. ln σ_y² is the last coordinate.

All of this is a choice of coordinates: any would be right, and these are quick (`collapsed`).
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from inference.mcmc.distributions import solved, transposed
from inference.mcmc.kernel import Array
from inference.models.linear.nodes.observed import Observed, Prior


class Coordinates(NamedTuple):
    """A point, or anything that has as many numbers: a gradient, a momentum, scales. Lower triangles; zeros above.

    Attributes:
        x_0: of K, shape ``(d, d)``. x: of A_j, shape ``(J, d, d)``. log_sigma_y2: shape ``()``.
    """

    x_0: Array
    x: Array
    log_sigma_y2: Array


class Frame(NamedTuple):
    """What the coordinates are relative to.

    Attributes:
        B: shape ``(d, d)``. prior_root: the Cholesky factor of B⁻¹ΛB⁻ᵀ, shape ``(d, d)``.
        rho, s: ρ_j and s_j, shape ``(J, d, d)``. s_0: s, shape ``(d, d)``.
    """

    B: Array
    prior_root: Array
    rho: Array
    s: Array
    s_0: Array


class Factors(NamedTuple):
    """The matrices at a point: K, M of shape ``(d, d)``; A, F and S of shape ``(J, d, d)``."""

    K: Array
    M: Array
    A: Array
    F: Array
    S: Array


def frame(observed: Observed, prior: Prior) -> Frame:
    """Coordinates that suit these data.

    Eigenvalues of the pooled Ŝ/n below its noise are set to what is likely there: what the prior says, or the noise.
    """
    n, d = observed.n, prior.m.size
    total = n.sum()
    values, vectors = jnp.linalg.eigh(observed.S.sum(0) / total)
    values, E = values[::-1], vectors[:, ::-1]
    expected = jnp.diagonal(E.T @ prior.Lambda @ E)
    noise = jnp.sqrt(observed.variance_S.sum()) / total
    values = jnp.maximum(values, jnp.minimum(noise, expected / prior.kappa))
    B, inverse = E * jnp.sqrt(values), (E / jnp.sqrt(values)).T
    doubled = 1 + jnp.eye(d)  # ln K_ii and ln A_ii change S_ii twofold
    seen = (doubled + 2 * (E.T**2 @ E**2)) * values * values[:, None]
    p = (n**2 / observed.variance_S)[:, None, None] * seen
    w = jnp.where(np.eye(d, dtype=bool), 2 * _degrees(n, d), n[:, None, None])
    precision = doubled * expected / values + (p * w / (p + w)).sum(0)
    root = jnp.linalg.cholesky(inverse @ prior.Lambda @ inverse.T)
    return Frame(B, root, p / (p + w), 1 / jnp.sqrt(p + w), 1 / jnp.sqrt(precision))


def factors(at: Coordinates, frame: Frame, n: Array) -> Factors:
    """The matrices at a point."""
    d = len(frame.B)
    diagonal = np.eye(d, dtype=bool)
    k = frame.s_0 * at.x_0
    a = frame.s * at.x - frame.rho * k
    K = solved(jnp.where(diagonal, jnp.exp(-k), -k), jnp.eye(d))
    A = jnp.where(diagonal, jnp.sqrt(_degrees(n, d) / n[:, None, None]) * jnp.exp(a), a)
    M = frame.B @ K
    F = M @ A
    return Factors(K, M, A, F, n[:, None, None] * (F @ transposed(F)))


def coordinates(Sigma_x: Array, S: Array, sigma_y2: Array, frame: Frame, n: Array) -> Coordinates:
    """The point with these matrices: the inverse of `factors`."""
    d = len(frame.B)
    diagonal = np.eye(d, dtype=bool)
    inverse = jnp.linalg.inv(frame.B)
    K = jnp.linalg.cholesky(inverse @ Sigma_x @ inverse.T)
    roots = jnp.linalg.cholesky(inverse @ S @ inverse.T / n[:, None, None])
    A = solved(jnp.broadcast_to(K, roots.shape), roots)
    k = jnp.where(diagonal, _log_diagonal(K), -solved(K, jnp.eye(d)))
    a = jnp.where(diagonal, _log_diagonal(A) - jnp.log(_degrees(n, d) / n[:, None, None]) / 2, A)
    return Coordinates(k / frame.s_0, (a + frame.rho * k) / frame.s, jnp.log(sigma_y2))


def log_prior(made: Factors, frame: Frame, prior: Prior, n: Array) -> tuple[Array, Array, Array]:
    """ln p(Σ_x) Π_j p(A_j) in k and a, without constants, and its gradients.

    Returns:
        The value; its gradient in K, shape ``(d, d)``; and in a, shape ``(J, d, d)``.
    """
    d = len(frame.B)
    eye, rows = jnp.eye(d), n[:, None, None]
    degrees = _degrees(n, d) * eye
    of_A = (degrees * _log_diagonal(made.A)).sum() - (rows * made.A**2).sum() / 2  # χ²(ν_i) of n A_ii², N(0, 1/n) below
    whitened = solved(made.K, frame.prior_root)  # |K⁻¹U|² = tr(ΛΣ_x⁻¹)
    powers = prior.kappa - d + 1 + np.arange(d)  # of Bartlett's (K⁻¹)_ii, by ln (K⁻¹)_ii
    diagonal = jnp.diagonal(made.K)
    of_K = -(powers * jnp.log(diagonal)).sum() - (whitened**2).sum() / 2
    slope = solved(made.K, whitened @ whitened.T, transpose=True)
    return of_A + of_K, slope - eye * (powers / diagonal), degrees - rows * _as_logarithm(made.A, made.A)


def pulled_back(by_S: Array, made: Factors, frame: Frame, by_K: Array, by_a: Array, n: Array) -> tuple[Array, Array]:
    """The gradient in x_0 and x, of a symmetric one in S and of `log_prior`'s."""
    by_F = 2 * n[:, None, None] * (by_S @ made.F)
    by_a = by_a + jnp.tril(_as_logarithm(made.A, made.M.T @ by_F))
    by_K = by_K + frame.B.T @ (by_F @ transposed(made.A)).sum(0)
    by_inverse = jnp.tril(made.K.T @ jnp.tril(by_K) @ made.K.T)  # dK = -K d(K⁻¹) K
    by_k = jnp.where(np.eye(len(frame.B), dtype=bool), by_inverse / jnp.diagonal(made.K), by_inverse)
    return frame.s_0 * (by_k - (frame.rho * by_a).sum(0)), frame.s * by_a


def _degrees(n: Array, d: int) -> Array:
    """ν_i = n_j - i + 1 in row i, shape ``(J, d, 1)``."""
    return n[:, None, None] - np.arange(d)[:, None]


def _as_logarithm(matrix: Array, slope: Array) -> Array:
    """A gradient in the matrix as one in the logarithms of its diagonal."""
    return jnp.where(np.eye(matrix.shape[-1], dtype=bool), slope * matrix, slope)


def _log_diagonal(matrix: Array) -> Array:
    """The logarithms of the diagonal, zeros elsewhere."""
    return jnp.log(jnp.where(np.eye(matrix.shape[-1], dtype=bool), matrix, 1.0))
