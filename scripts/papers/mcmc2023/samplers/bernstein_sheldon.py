"""MCMC-B&S: all statistics of a node normal by the central limit theorem (appendix C.1; Bernstein and Sheldon 2019).

    w = (x, y) ~ N(0, V)    a row and its target, V = [[Σ_x, Σ_xθ], [θᵀΣ_x, θᵀΣ_xθ + σ_y²]], d + 1 square
    W_j = [[S_j, z_j], [z_jᵀ, u_j]] = Σ wwᵀ    over the n_j rows of node j; ss_j its D = (d + 1)(d + 2)/2 unique terms
    ŝs_j ~ N(ss_j, R_j)     released, R_j diagonal: variances of S, z and u
    μ, T                    mean and covariance of the unique terms of one row's wwᵀ

    ss_j | Σ_x, θ, σ_y²  ~  N(n_jμ, n_jT), conditioned on ŝs_j
    Σ_x | S              ~  IW(Λ + Σ_j S_j, κ + n), n = Σ n_j
    θ, σ_y² | ss         ~  NIG: σ_y² ~ IG(a_n, b_n), θ ~ N(μ_n, σ_y² A_n⁻¹), where
                            A_n = Σ S_j + A_0, μ_n = A_n⁻¹(Σ z_j + A_0m), a_n = a + n/2 and
                            b_n = b + ½(Σ u_j + mᵀA_0m - μ_nᵀA_nμ_n)

**No joint distribution.** The first line takes ss_j as normal; the others take S as Wishart and z as normal given S. So
this is no Gibbs sampler of any posterior, and its limit depends on the order of its steps; the models agree as n grows.
Normal draws need not be sums of squares. So Σ_j S_j is replaced by the nearest positive semi-definite matrix, and b_n
is at least b.

**Slow from afar.** A step moves ss_j towards the release only by the fraction n_jT(n_jT + R_j)⁻¹, and if n is large,
the parameters follow ss closely. So a chain that starts far out, where its wrong parameters explain its statistics,
stays there for hundreds of iterations, or thousands if the noise is large. The default starts are apart, but near the
release.

**Cost of a step.** The fourth moments of N(0, V) are Isserlis': Cov(w_iw_j, w_kw_l) = V_ikV_jl + V_ilV_jk. The
conditional draw is Matheron's: draw W from the prior and ŝs from W, and correct W by n_jT(n_jT + R_j)⁻¹ times the
difference of the released ŝs to the drawn one. With V = BBᵀ, W = n_jV + √n_j·BEBᵀ, E symmetric and normal (variance 1,
on the diagonal 2). T times a vector is 2VΩV, Ω its matrix, halved off the diagonal. So all is O(d³) but one D × D
Cholesky factor: O(d⁶) in time, 8D² bytes (D = 21 at d = 5, 231 at d = 20). Nodes with equal numbers of rows and equal
noise share it; `kernel_for` finds them.

**Prior.** A_0 = b/a·C⁻¹, so that θ's prior precision A_0/σ_y² is C⁻¹ on average. As published A_0 is b/(a - 1)·I,
whatever C.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from inference.errors import DataError
from inference.models.linear.nodes.observed import NodeStatistics, Prior
from papers.mcmc2023.samplers.kernel import (
    Array,
    Info,
    Kernel,
    Noise,
    Schedule,
    bartlett,
    bartlett_count,
    inverse,
    nearest_psd,
    solved,
    transposed,
)


class State(NamedTuple):
    """The state after a step."""

    theta: Array  # (d,)
    sigma_y2: Array  # ()
    root: Array  # H with Σ_x = HHᵀ, (d, d)
    S: Array  # (J, d, d)


class NormalInverseGamma(NamedTuple):
    """σ_y² ~ IG(a, b), θ ~ N(mu, σ_y² A⁻¹), A = root rootᵀ."""

    mu: Array
    root: Array
    a: Array
    b: Array


def kernel_for(problems: Sequence[NodeStatistics], published: float | None = None) -> Kernel:
    """Return the kernel for problems that are sampled together; find the nodes that share a factorisation.

    Raises:
        DataError: y² was not released, or the first feature is a constant, which is not normal.
    """
    for problem in problems:
        if not np.all(np.isfinite(problem.u)):
            raise DataError("MCMC-B&S needs y²; release the statistic with target_square, or choose another method")
        if np.any(problem.constant):
            raise DataError("MCMC-B&S has no intercept; centre the columns")
    by_node = zip(*((p.n, p.variance_S, p.variance_z, p.variance_u) for p in problems), strict=True)
    columns = np.concatenate([np.stack(one, axis=1) for one in by_node], axis=1)
    _, first, groups = np.unique(columns, axis=0, return_index=True, return_inverse=True)
    return kernel(groups=tuple(first[groups.ravel()].tolist()), published=published)


@cache
def kernel(*, groups: tuple[int, ...] | None = None, published: float | None = None) -> Kernel:
    """MCMC-B&S.

    Args:
        groups: for each node, the first node with as many rows and the same noise; None if all differ.
        published: the published code's start of σ_y². Then every node also starts at the first node's S plus I, θ
            starts at 0, each step adds I to the nearest positive semi-definite matrix of Σ S_j, and A_0 is the code's.
            By default, chains start at the posterior's centre given the release with its noise added once more.
    """
    return Kernel(partial(_init, published), partial(_step, groups, published is not None), _draw)


def _init(published: float | None, key: Array, observed: NodeStatistics, prior: Prior) -> State:
    J, d = observed.z.shape
    n = observed.n.sum()
    if published is not None:
        S = jnp.broadcast_to(nearest_psd(observed.S[0]) + jnp.eye(d), (J, d, d))
        return State(jnp.zeros(d), jnp.asarray(published), _mean_root(S.sum(0) + jnp.eye(d), n, prior), S)
    noise = jnp.sqrt(noise_variances(observed)) * jax.random.normal(key, (J, terms(d + 1)))
    W = symmetric(released(observed) + noise)
    total = W.sum(0)
    S = nearest_psd(total[:-1, :-1])
    posterior = normal_inverse_gamma(S, total[:-1, -1], total[-1, -1], n, prior)
    return State(posterior.mu, posterior.b / posterior.a, _mean_root(S, n, prior), W[:, :-1, :-1])


def _mean_root(S: Array, n: Array, prior: Prior) -> Array:
    root: Array = jnp.linalg.cholesky((prior.Lambda + S) / (prior.kappa + n))
    return root


def _step(
    groups: tuple[int, ...] | None,
    published: bool,
    key: Array,
    state: State,
    observed: NodeStatistics,
    prior: Prior,
    schedule: Schedule,
) -> tuple[State, Info]:
    """Run one iteration, in the order of C.1."""
    J, d = observed.z.shape
    D = terms(d + 1)
    noise = Noise(key, 2 * J * D + bartlett_count(d) + bartlett_count(1) + d)
    W = conditional_statistics(state, observed, noise.normals(J, D), noise.normals(J, D), groups)
    moved = _parameters(noise, W, state, observed, prior, published)
    sound = jnp.all(jnp.isfinite(moved.theta)) & jnp.all(jnp.isfinite(moved.root))
    return jax.tree.map(partial(jnp.where, sound), moved, state), Info({}, ~sound)


def _draw(state: State) -> dict[str, Array]:
    Sigma_x = state.root @ transposed(state.root)
    return {"theta": state.theta, "sigma_y2": state.sigma_y2, "Sigma_x": Sigma_x, "S": state.S}


# The statistics


def conditional_statistics(
    state: State,
    observed: NodeStatistics,
    prior_normals: Array,
    noise_normals: Array,
    groups: tuple[int, ...] | None = None,
) -> Array:
    """Draw W_j given the parameters and the release; affine in two sets of standard normals ``(J, D)``.

    Returns:
        Shape ``(J, d + 1, d + 1)``, symmetric.
    """
    n, R, m = observed.n[:, None, None], noise_variances(observed), state.theta.size + 1
    B = row_root(state)
    V = B @ B.T
    E = symmetric(prior_normals) * (1 + (np.sqrt(2) - 1) * np.eye(m))
    drawn = n * V + jnp.sqrt(n) * (B @ E @ B.T)
    off = released(observed) - unique(drawn) - jnp.sqrt(R) * noise_normals
    weights = symmetric(_weighed(V, observed.n, R, off, groups))
    corrected: Array = drawn + n * (V @ (weights * (1 + np.eye(m))) @ V)  # 2VΩV
    return corrected


def _weighed(V: Array, n: Array, R: Array, off: Array, groups: tuple[int, ...] | None) -> Array:
    """Return (n_jT + R_j)⁻¹ times each node's ``off``, ``(J, D)``, by one Cholesky factor for each group of nodes."""
    groups = tuple(range(n.size)) if groups is None else groups
    leaders = sorted(set(groups))
    T, lead = row_covariance(V), np.array(leaders)
    covariances = n[lead, None, None] * T + R[lead, :, None] * np.eye(T.shape[-1])
    roots = jnp.linalg.cholesky(covariances, symmetrize_input=False)
    found = []
    for place, leader in enumerate(leaders):
        columns = off[np.array([j for j, group in enumerate(groups) if group == leader])].T
        found.append(solved(roots[place], solved(roots[place], columns), transpose=True).T)
    order = np.argsort([j for leader in leaders for j, group in enumerate(groups) if group == leader])
    return jnp.concatenate(found)[order]


def row_root(state: State) -> Array:
    """Return B with V = BBᵀ, the covariance of a row and its target, ``(d + 1, d + 1)``."""
    d = state.theta.size
    lower = jnp.concatenate([state.theta @ state.root, jnp.sqrt(state.sigma_y2)[None]])
    return jnp.concatenate([jnp.concatenate([state.root, jnp.zeros((d, 1))], axis=1), lower[None]])


def row_covariance(V: Array) -> Array:
    """Return T, the covariance of the unique terms of wwᵀ, w ~ N(0, V), by Isserlis' theorem; ``(D, D)``."""
    i, j = np.triu_indices(V.shape[-1])
    return V[np.ix_(i, i)] * V[np.ix_(j, j)] + V[np.ix_(i, j)] * V[np.ix_(j, i)]


def released(observed: NodeStatistics) -> Array:
    """Return ŝs_j in the order of `unique`, ``(J, D)``."""
    corner = observed.u[:, None]
    side = jnp.concatenate([observed.z, corner], axis=1)
    top = jnp.concatenate([observed.S, observed.z[..., None]], axis=2)
    return unique(jnp.concatenate([top, side[:, None]], axis=1))


def noise_variances(observed: NodeStatistics) -> Array:
    """Return the diagonals of R_j, ``(J, D)``."""
    i, j = np.triu_indices(observed.z.shape[1] + 1)
    d = observed.z.shape[1]
    kind = (i == d).astype(int) + (j == d)
    return jnp.stack([observed.variance_S, observed.variance_z, observed.variance_u], axis=1)[:, kind]


def terms(m: int) -> int:
    """Return the number of unique terms of a symmetric matrix with m rows."""
    return m * (m + 1) // 2


def unique(matrices: Array) -> Array:
    """Return the upper triangles row by row, ``(..., m(m + 1)/2)``."""
    return matrices[(..., *np.triu_indices(matrices.shape[-1]))]


def symmetric(values: Array) -> Array:
    """Return the symmetric matrices of upper triangles, ``(..., m, m)``."""
    m = int((np.sqrt(8 * values.shape[-1] + 1) - 1) / 2)
    place = np.zeros((m, m), int)
    place[np.triu_indices(m)] = np.arange(values.shape[-1])
    return values[..., np.maximum(place, place.T)]


# The parameters


def _parameters(noise: Noise, W: Array, state: State, observed: NodeStatistics, prior: Prior, published: bool) -> State:
    """Draw Σ_x, then θ and σ_y², given the statistics; keep the old value if `bartlett` rejects its candidate."""
    n, total, d = observed.n.sum(), W.sum(0), prior.m.size
    S = nearest_psd(total[:-1, :-1]) + published * jnp.eye(d)
    A, accepted = bartlett(noise, prior.kappa + n, d)
    drawn = transposed(solved(A, transposed(jnp.linalg.cholesky(prior.Lambda + S))))  # UA⁻ᵀ with Λ + S = UUᵀ
    root = jnp.where(accepted, drawn, state.root)
    posterior = normal_inverse_gamma(S, total[:-1, -1], total[-1, -1], n, prior, published)
    chi, accepted = bartlett(noise, 2 * posterior.a, 1)
    sigma_y2 = jnp.where(accepted, 2 * posterior.b / chi[0, 0] ** 2, state.sigma_y2)
    spread = solved(posterior.root, jnp.sqrt(sigma_y2) * noise.normals(d, 1), transpose=True)[:, 0]
    return State(posterior.mu + spread, sigma_y2, root, W[:, :-1, :-1])


def normal_inverse_gamma(
    S: Array, z: Array, u: Array, n: Array, prior: Prior, published: bool = False
) -> NormalInverseGamma:
    """Return the posterior of θ and σ_y² given XᵀX, Xᵀy and yᵀy of n rows; b_n is at least b."""
    A_0 = prior.b / (prior.a - 1) * jnp.eye(prior.m.size) if published else prior.b / prior.a * inverse(prior.C)
    root, shift = jnp.linalg.cholesky(S + A_0), z + A_0 @ prior.m
    white = solved(root, shift[:, None])
    b = prior.b + (u + prior.m @ A_0 @ prior.m - jnp.sum(white**2)) / 2
    mu = solved(root, white, transpose=True)[:, 0]
    return NormalInverseGamma(mu, root, prior.a + n / 2, jnp.maximum(b, prior.b))
