"""The NumPyro model of several nodes' noisy statistics: S_j is Wishart, θ is integrated out, the noise law is known.

    S_j = Σ_i x_i x_iᵀ of node j's m_j rows, x ~ N(0, Σ_x); or x = (c, features), features ~ N(μ_x, Σ_x), c public
    Ŝ_j | S_j        each unique term N(S_im, σ_S²)                                                  (8)
    ẑ_j | S_j, θ     N(S_jθ, V_j),  V_j = σ_y² S_j + σ_z² I                                          (9), (10)
    θ | S, σ_y²      N(μ, P⁻¹),  P = C⁻¹ + Σ_j S_j V_j⁻¹ S_j,  Pμ = C⁻¹m + Σ_j S_j V_j⁻¹ ẑ_j        (12)
    ln p(ẑ | S, σ_y²) = -½ [Σ_j ln|V_j| + ln|P| + Σ_j r_jᵀV_j⁻¹r_j + (μ - m)ᵀC⁻¹(μ - m)],  r_j = ẑ_j - S_jμ
    prior            θ ~ N(m, C), σ_y² ~ IG(a, b), Σ_x ~ IW(Λ, κ), μ_x ~ N(0, Σ_x/k_0), m_j of `linear.rows`

(The numbers refer to the ICML 2023 paper: this is the posterior of MCMC-normalX, and with a constant that of appendix
B.2.) With a constant the number m_j of complete rows is drawn too, as a real number: only its noisy multiple c²m_j is
observed.

**Coordinates** in which the posterior is close to a standard Gaussian for NUTS:

    T = B K             T Tᵀ = Σ_x; with a constant T = [[c, 0], [μ_x, M]], M Mᵀ = Σ_x. K and T are lower triangular,
                        (K⁻¹)_ii = exp(-k_ii), (K⁻¹)_im = -k_im (K_00 = 1 with a constant); B is fixed
    S_j = n_j F_j F_jᵀ  F_j = T A_j; √n_j A_j is Bartlett's factor of W(I, m_j): n_j A_ii² = ν_i exp 2a_ii ~ χ²(ν_i),
                        ν_i = m_j - i, i = 0, 1, ..., and A_im = a_im ~ N(0, 1/n_j). With a constant n_j A_00² = m_j

(With a constant, T (1, e) = (c, μ_x + M e) is a row for e ~ N(0, I), and Σ (1, e)(1, e)ᵀ has that factor.)

Why A_j and not S_j (non-centred; Papaspiliopoulos, Roberts and Sköld 2007): noise often exceeds the smallest
eigenvalues of S_j. Then only their common Σ_x informs them, up to a factor, and the posterior is a funnel. The law of
the A_j given Σ_x does not depend on the size of Σ_x. Why K⁻¹ and not K: if noise dominates at all nodes, Σ_x⁻¹ is
nearly Wishart, and a Wishart matrix's factor has independent terms. If noise is small, S_j is known better than Σ_x. So
A_j is centred as far as the data require, term by term: the release observes (k + a_j)_im with precision p_j, a_j has
the prior precision w_j and k has π. The Cholesky factor of this arrow matrix gives

    k   = s x_0               s = (π + Σ_j p_j w_j/(p_j + w_j))^-1/2
    a_j = s_j x_j - ρ_j k     s_j = (p_j + w_j)^-1/2,  ρ_j = p_j/(p_j + w_j)

The posterior does not depend on the choice of coordinates; they only speed up sampling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from numpy.typing import NDArray

from inference.models.linear.nodes.observed import PRIOR_ROWS, NodeStatistics, Prior
from inference.models.linear.rows import MISSING, log_prior
from inference.problem import AnyArray as Array

SHARE_MIN = 0.5  # smallest share of complete rows assumed when choosing the coordinates


class Frame(NamedTuple):
    """The origin and scales of the coordinates; T terms of a lower triangle, row by row without a constant's square.

    Attributes:
        B: shape ``(D, D)``, D features, a constant included. prior_root: Cholesky factor of B⁻¹ΛB⁻ᵀ, restricted to the
            d columns, ``(d, d)``. off: B⁻¹ times the pooled mean, ``(d,)``; 0 without a constant.
        rho, s: ρ_j and s_j, shape ``(J, T)``. s_0: s, shape ``(T,)``.
    """

    B: Array
    prior_root: Array
    off: Array
    rho: Array
    s: Array
    s_0: Array


def frame(observed: NodeStatistics, prior: Prior) -> Frame:
    """Choose coordinates for these data, in NumPy.

    Eigenvalues of the pooled Ŝ/n have a lower limit: the noise, or the prior's expectation if that is smaller.
    """
    n, c, D = observed.n[:, None], float(observed.constant), observed.features
    total, first = n.sum(), int(c > 0)
    pooled, mean = observed.S.sum(0) / total, np.zeros(D - first)
    if first:
        share = np.clip(pooled[0, 0] / c**2, SHARE_MIN, 1.0)
        mean = pooled[0, 1:] / (share * c)
        pooled = pooled[1:, 1:] / share - np.outer(mean, mean)
    Lambda = prior.Lambda[first:, first:]
    values, E = np.linalg.eigh(pooled)
    values, E = values[::-1], E[:, ::-1]  # each row of K then depends only on better-known rows before it
    expected = np.diagonal(E.T @ Lambda @ E)
    noise = np.sqrt(observed.variance_S.sum()) / total
    values = np.maximum(values, np.minimum(noise, expected / prior.kappa))
    B, inverse = np.zeros((D, D)), (E / np.sqrt(values)).T
    B[first:, first:] = E * np.sqrt(values)
    if first:
        B[:, 0] = np.r_[c, mean]
    i, j = terms(D, constant=first > 0)
    size, both = (B**2).sum(0), B[:, i] * B[:, j]
    seen = size[i] * size[j] + both.sum(0) ** 2 + 2 * (both**2).sum(0)  # |b_i b_jᵀ + b_j b_iᵀ|², each unique term once
    p = n**2 / observed.variance_S[:, None] * seen
    w = np.where(i == j, 2 * (n - i), n)
    own = np.where(j < first, PRIOR_ROWS, (1 + (i == j)) * (expected / values)[i - first])
    precision = own + (p * w / (p + w)).sum(0)
    root = np.linalg.cholesky(inverse @ Lambda @ inverse.T)
    return Frame(B, root, inverse @ mean, p / (p + w), 1 / np.sqrt(p + w), 1 / np.sqrt(precision))


def terms(D: int, *, constant: bool) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the row and column indices of the T terms."""
    i, j = np.tril_indices(D)
    return i[int(constant) :], j[int(constant) :]


@dataclass(frozen=True)
class NodeRegression:
    """Linear regression from noisy S_j and ẑ_j. Data: ``observed``, ``prior`` and ``frame``.

    Attributes:
        constant: whether the first feature is a public constant. prior_rows: k_0. missing: expected share of incomplete
            rows; used only if there is a constant.
    """

    constant: bool
    prior_rows: float = PRIOR_ROWS
    missing: float = MISSING

    def __call__(self, data: Mapping[str, Any]) -> None:
        observed, prior = data["observed"], data["prior"]
        D = observed.z.shape[1]
        T, S = self._sums(data["frame"], observed, prior)
        sigma_y2 = numpyro.sample("sigma_y2", dist.InverseGamma(prior.a, prior.b))
        off = jnp.triu(jnp.ones((D, D))) * (observed.S - S) ** 2
        numpyro.factor("S_noisy", -(off.sum((1, 2)) / observed.variance_S).sum() / 2)
        mean, root, value = marginal(S, sigma_y2, observed, prior)
        numpyro.factor("z_noisy", value)
        white = numpyro.sample("white", dist.Normal(0.0, 1.0).expand([D]))
        numpyro.deterministic("theta", mean + solved(root, white[:, None], transpose=True)[:, 0])
        M = T[1:, 1:] if self.constant else T
        numpyro.deterministic("Sigma_x", M @ M.T)
        numpyro.deterministic("S", S)
        if self.constant:
            numpyro.deterministic("mu_x", T[1:, 0])

    def _sums(self, frame: Frame, observed: NodeStatistics, prior: Prior) -> tuple[Array, Array]:
        """Draw T and all S_j."""
        J, D = observed.z.shape
        i, j = terms(D, constant=self.constant)
        free = dist.Normal(0.0, 1.0).mask(False)  # only to start chains; the factors "A" and "K" are the density
        k = frame.s_0 * numpyro.sample("x_0", free.expand([i.size]))
        a = frame.s * numpyro.sample("x", free.expand([J, i.size])) - frame.rho * k
        n, rows = observed.n[:, None], self._rows(observed)[:, None]
        degrees = rows - i
        squares = degrees * jnp.exp(2 * jnp.where(i == j, a, 0.0))
        of_squares = degrees / 2 * (jnp.log(degrees / 2) - jnp.exp(2 * jnp.where(i == j, a, 0.0)))
        numpyro.factor("A", jnp.where(i == j, of_squares + degrees * a - gammaln(degrees / 2), -n * a**2 / 2).sum())
        A = jnp.zeros((J, D, D)).at[:, i, j].set(jnp.where(i == j, jnp.sqrt(squares / n), a))
        if self.constant:
            A = A.at[:, 0, 0].set(jnp.sqrt(rows / n)[:, 0])
        T = frame.B @ self._root(frame, prior, k, D)
        F = T @ A
        return T, n[..., None] * (F @ jnp.swapaxes(F, 1, 2))

    def _rows(self, observed: NodeStatistics) -> Array:
        """Draw m_j, shape ``(J,)``; n_j without a constant."""
        if not self.constant:
            return observed.n
        J, D = observed.z.shape
        missing = numpyro.sample("missing", dist.Uniform().expand([J]))
        rows = observed.n - missing * (observed.n - D)
        numpyro.factor("rows", log_prior(rows, observed.n, self.missing).sum())
        return rows

    def _root(self, frame: Frame, prior: Prior, k: Array, D: int) -> Array:
        """Return K, with the density of Σ_x and μ_x as a factor."""
        i, j = terms(D, constant=self.constant)
        first, d = int(self.constant), D - self.constant
        inverse = jnp.eye(D).at[i, j].set(jnp.where(i == j, jnp.exp(-k), -k))
        own = inverse[first:, first:]
        powers = prior.kappa - d + 1 + np.arange(d)
        density = (powers * jnp.log(jnp.diagonal(own))).sum() - ((own @ frame.prior_root) ** 2).sum() / 2
        if self.constant:
            centre = own @ frame.off - inverse[1:, 0]  # M⁻¹μ_x
            density = density - self.prior_rows * (centre @ centre) / 2
        numpyro.factor("K", density)
        return solved(inverse, jnp.eye(D))


def marginal(S: Array, sigma_y2: Array, observed: NodeStatistics, prior: Prior) -> tuple[Array, Array, Array]:
    """Return mean and root of θ | S, σ_y², ẑ ~ N(mean, (root rootᵀ)⁻¹), and ln p(ẑ | S, σ_y²) up to a constant."""
    V = sigma_y2 * S + observed.variance_z[:, None, None] * jnp.eye(S.shape[-1])
    roots = jnp.linalg.cholesky(V, symmetrize_input=False)
    white = solved(roots, jnp.concatenate([S, observed.z[..., None]], -1))
    WS, Wz = white[..., :-1], white[..., -1]
    before = jnp.linalg.inv(prior.C)
    root = jnp.linalg.cholesky(before + jnp.einsum("jki,jkl->il", WS, WS))
    shift = before @ prior.m + jnp.einsum("jki,jk->i", WS, Wz)
    half = solved(root, shift[:, None])
    mean = solved(root, half, transpose=True)[:, 0]
    value = (half**2).sum() - (Wz**2).sum() - log_determinant(roots).sum() - log_determinant(root)
    return mean, root, value / 2


def log_determinant(root: Array) -> Array:
    """Return ln |LLᵀ| for a Cholesky factor L."""
    return 2 * jnp.sum(jnp.log(jnp.diagonal(root, axis1=-2, axis2=-1)), axis=-1)


def solved(root: Array, right: Array, *, transpose: bool = False) -> Array:
    """Return L⁻¹B or, if ``transpose``, L⁻ᵀB for lower triangular L and matrices B with the same leading axes."""
    return jax.lax.linalg.triangular_solve(root, right, left_side=True, lower=True, transpose_a=transpose)
