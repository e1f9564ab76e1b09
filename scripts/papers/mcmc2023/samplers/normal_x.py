"""MCMC-normalX (algorithm 1): features N(0, Σ_x), so that S_j ~ W(Σ_x, n_j), with ẑ_j's own z_j integrated out.

    θ, σ_y², Σ_x, S_1..J     sampled; J nodes, d features, n_j rows
    Ŝ_j, ẑ_j                 released; noise variances σ_S², σ_z² (`variance_S`, `variance_z`)
    m, C, a, b, Λ, κ         the prior: N(m, C), IG(a, b), IW(Λ, κ)

    Σ_x | S            ~ IW(Λ + Σ_j S_j, κ + Σ_j n_j)                                                       (11)
    S_j | Σ_x, θ, σ_y²   MH with S' ~ W(S_j/α_j, α_j), on p(ẑ_j | S_j, θ, σ_y²) p(S_j | Σ_x) p(Ŝ_j | S_j)   (A.3)
    θ | S, σ_y²        ~ N(m_p, Σ_p)                                                                        (12)
    σ_y² | S, θ          MH by a random walk (`kernel.walk`)                                                (A.4)

where p(ẑ_j | S_j, θ, σ_y²) = N(ẑ_j; S_jθ, V_j), V_j = σ_y² S_j + σ_z² I.

**Cost of a step.** With S = LLᵀ and B = A/√α for Bartlett's A, the proposal is S' = (LB)(LB)ᵀ, with factor LB: it needs
no factorisation. The ratio of proposals depends on B alone, which is independent of S:

    ln |S'| - ln |S| = 2 Σ ln B_ii      tr(S⁻¹S') = |B|²      tr(S'⁻¹S) = |B⁻¹|²

So S may be nearly singular (columns of one-hot codes) without loss of precision. Two factorisations of V_j remain, at
S' and at the proposed σ_y²; the state keeps the factors K_j of the current V_j and the likelihoods. O(J d³) in all.

Proposals have relative width √(2/α_j). α_j starts at (n_j/10)², as published, or higher if the noise in S is small
beside S, and adapts to an acceptance of `TARGET` during warm-up. A start that is too large accepts everything and soon
decreases; one that is too small accepts nothing and rises at a quarter of that rate.

**Slow mixing.** Given Σ_x, a step changes S_j by one part in √α_j; given the S_j, it changes Σ_x by one in √n. If noise
hides the smallest eigenvalues of S_j, each of the two follows the other, and both are slow. At ε = 0.1, n = 1e5, d = 5
and J = 10, ln of the smallest eigenvalue of ΣS_j still correlates by 0.94 with its start after 10,000 iterations. Four
chains of 11,000 gave means of θ up to 0.8 posterior standard deviations off, at an R̂ of 1.10 and 25 "effective" draws,
whose nominal errors then mean nothing. A Hamiltonian sampler has the same posterior: 128 chains that started from its
draws kept their means of θ within 2 standard errors throughout. Where both mix (d = 2 and 3, J = 3, n_j = 300 and 1000,
noise of 60 and 150; at least 4,700 effective draws), all moments agree within 1.1 standard errors.

The chains start apart: at the nearest possible matrices to Ŝ_j with the noise added once more. As published, they start
at the nearest positive semi-definite matrices plus I.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from inference.models.linear.nodes.observed import NodeStatistics, Prior
from papers.mcmc2023.samplers import kernel as shared
from papers.mcmc2023.samplers.kernel import (
    Array,
    Info,
    Kernel,
    Noise,
    Schedule,
    bartlett,
    nearest_psd,
    solved,
    transposed,
)

TARGET, PUBLISHED_TARGET = 0.2, 0.1  # acceptance of S that its proposals adapt to: section 4.1, and the code
FLOOR = 1e-9  # smallest eigenvalue of S at the start, as a part of their mean


class State(NamedTuple):
    """The state after a step."""

    theta: Array  # (d,)
    sigma_y2: Array  # ()
    S: Array  # (J, d, d)
    L: Array  # Cholesky factors of S
    K: Array  # Cholesky factors of V
    log_likelihood: Array  # ln p(ẑ_j | S_j, θ, σ_y²), (J,)
    Sigma_x: tuple[Array, Array]  # factors of Σ_x (`kernel.covariance_of`), each (d, d)
    log_alpha: Array  # ln α_j, (J,)
    log_step: Array  # of σ_y²'s walk, ()
    inverse_C: Array  # noqa: N815 - the paper's C⁻¹, which does not change, (d, d)


@cache
def kernel(*, published: float | None = None) -> Kernel:
    """MCMC-normalX.

    Args:
        published: the published code's start of σ_y²; then the chain also has its start of S, its walk over σ_y² and
            its acceptance of S. By default chains start apart, and σ_y² walks on the log scale.
    """
    return Kernel(partial(_init, published), partial(_step, published is not None), _draw)


def _init(published: float | None, key: Array, observed: NodeStatistics, prior: Prior) -> State:
    d = prior.m.size
    noise = Noise(key, 1 + observed.S.size)
    sigma_y2 = shared.start(noise, prior) if published is None else jnp.asarray(published)
    S = scattered(noise, observed) if published is None else nearest_psd(observed.S) + jnp.eye(d)
    L, K = jnp.linalg.cholesky(S), factor(S, sigma_y2, observed)
    theta = jnp.zeros_like(prior.m)
    likelihood = log_likelihood(K, observed.z - S @ theta)
    degrees = _degrees(observed, prior)
    Sigma_x = jnp.linalg.cholesky(prior.Lambda + S.sum(0)), jnp.sqrt(degrees) * jnp.eye(d)
    return State(
        theta, sigma_y2, S, L, K, likelihood, Sigma_x,
        first_log_alpha(observed), jnp.asarray(shared.LOG_STEP), shared.inverse(prior.C),
    )  # fmt: skip


def _step(
    published: bool, key: Array, state: State, observed: NodeStatistics, prior: Prior, schedule: Schedule
) -> tuple[State, Info]:
    J, d = observed.z.shape
    noise = Noise(key, (J + 1) * shared.bartlett_count(d) + J + d + shared.WALK_NORMALS)
    state, sound = _update_covariance(noise, state, observed, prior)
    state, probability, failed = _update_nodes(noise, state, observed, schedule, published)
    state, whitened, drawn = update_theta(noise, state, observed, prior)
    state, walk = update_sigma_y2(noise, state, whitened, observed, prior, schedule, published)
    divergent = jnp.any(failed) | walk.failed | ~sound | ~drawn
    return state, Info({"S": jnp.mean(probability), "sigma_y2": walk.acceptance}, divergent)


def _draw(state: State) -> dict[str, Array]:
    Sigma_x = shared.covariance_of(state.Sigma_x)
    return {"theta": state.theta, "sigma_y2": state.sigma_y2, "Sigma_x": Sigma_x, "S": state.S}


def _degrees(observed: NodeStatistics, prior: Prior) -> Array:
    return jnp.asarray(prior.kappa + observed.n.sum())


def _update_covariance(noise: Noise, state: State, observed: NodeStatistics, prior: Prior) -> tuple[State, Array]:
    """Return the state with a new Σ_x, or the old one if none was drawn; and whether the numerics were sound."""
    root = jnp.linalg.cholesky(prior.Lambda + state.S.sum(0))  # (11)
    A, drawn = bartlett(noise, _degrees(observed, prior), prior.m.size)
    sound = jnp.all(jnp.isfinite(root))
    chosen = jax.tree.map(partial(jnp.where, sound & drawn), (root, A), state.Sigma_x)
    return state._replace(Sigma_x=chosen), sound


def _update_nodes(
    noise: Noise, state: State, observed: NodeStatistics, schedule: Schedule, published: bool
) -> tuple[State, Array, Array]:
    """Move all nodes at once by MH; return the state, acceptance probabilities and failures, shape ``(J,)``."""
    alpha = jnp.exp(state.log_alpha)
    A, drawn = bartlett(noise, alpha, state.theta.size)
    B = A / jnp.sqrt(alpha)[:, None, None]
    proposed = propose(state, B, observed)
    log_probability, failed = shared.log_acceptance(log_ratio(state, proposed, B, observed))
    log_probability = jnp.where(drawn, log_probability, -jnp.inf)
    accepted = noise.log_uniforms(*alpha.shape) < log_probability
    chosen: dict[str, Any] = {}
    for name in ("S", "L", "K", "log_likelihood"):
        new, old = getattr(proposed, name), getattr(state, name)
        chosen[name] = jnp.where(accepted.reshape(-1, *[1] * (new.ndim - 1)), new, old)
    probability = jnp.exp(log_probability)
    target = PUBLISHED_TARGET if published else TARGET
    log_alpha = _allowed(state.log_alpha + shared.gain(schedule) * (target - probability), state.theta.size)
    return state._replace(**chosen, log_alpha=log_alpha), probability, failed


def first_log_alpha(observed: NodeStatistics) -> Array:
    """Return ln α_j so that a step of all d(d + 1)/2 terms together is no longer than one term's noise, for S as Ŝ."""
    d = observed.S.shape[-1]
    size = jnp.trace(observed.S, axis1=-2, axis2=-1) / d
    published, small = (observed.n / 10) ** 2, size**2 / observed.variance_S * (d * (d + 1) / 2)
    return _allowed(jnp.log(jnp.maximum(published, small)), d)


def _allowed(log_alpha: Array, d: int) -> Array:
    """Return ln α_j, raised to the least degrees of freedom of `bartlett`."""
    return jnp.maximum(log_alpha, jnp.log(d + 1.0))


def propose(state: State, B: Array, observed: NodeStatistics) -> State:
    """Return the state with S' = (LB)(LB)ᵀ for all S and all that follows; B is Bartlett's A over √α, ``(J, d, d)``."""
    L = state.L @ B
    S = L @ transposed(L)
    K = factor(S, state.sigma_y2, observed)
    return state._replace(S=S, L=L, K=K, log_likelihood=log_likelihood(K, observed.z - S @ state.theta))


def log_ratio(state: State, proposed: State, B: Array, observed: NodeStatistics) -> Array:
    """Return ln of each node's acceptance ratio of S' (A.3), shape ``(J,)``: that of densities times proposals'."""
    d, alpha, change = B.shape[-1], jnp.exp(state.log_alpha), proposed.S - state.S
    B_inverse = solved(B, jnp.broadcast_to(jnp.eye(d), B.shape))
    growth = shared.log_determinant(B)  # ln |S'| - ln |S|
    ahead, back = jnp.sum(B**2, (-1, -2)), jnp.sum(B_inverse**2, (-1, -2))  # tr(S⁻¹S'), tr(S'⁻¹S)
    proposal = alpha / 2 * (ahead - back) - (alpha - (d + 1) / 2) * growth
    wishart = (observed.n - d - 1) / 2 * growth - jnp.sum(shared.precision_of(state.Sigma_x) * change, (-1, -2)) / 2
    off = change * (2 * observed.S - proposed.S - state.S)  # (Ŝ - S)² - (Ŝ - S')², term by term
    unique = (jnp.sum(off, (-1, -2)) + jnp.trace(off, axis1=-2, axis2=-1)) / 2
    released = proposed.log_likelihood - state.log_likelihood + unique / (2 * observed.variance_S)
    return jnp.asarray(wishart + proposal + released)


def update_theta(noise: Noise, state: State, observed: NodeStatistics, prior: Prior) -> tuple[State, Array, Array]:
    """Return the state, the whitened K⁻¹(ẑ - Sθ) ``(J, d)`` for the new θ, and whether it could be drawn."""
    white = solved(state.K, jnp.concatenate([state.S, observed.z[..., None]], -1))
    WS, Wz = white[..., :-1], white[..., -1]
    precision = jnp.einsum("jki,jkl->il", WS, WS) + state.inverse_C  # (12)
    theta = shared.gaussian(noise, precision, jnp.einsum("jki,jk->i", WS, Wz) + state.inverse_C @ prior.m)  # (12)
    drawn = jnp.all(jnp.isfinite(theta))
    theta = jnp.where(drawn, theta, state.theta)
    return state._replace(theta=theta), Wz - WS @ theta, drawn


def update_sigma_y2(
    noise: Noise,
    state: State,
    whitened: Array,
    observed: NodeStatistics,
    prior: Prior,
    schedule: Schedule,
    published: bool,
) -> tuple[State, shared.Walk]:
    """Return the state with a new σ_y², and the step of its walk (A.4); `whitened` is from `update_theta`."""
    residual = observed.z - state.S @ state.theta
    current = -shared.log_determinant(state.K) / 2 - jnp.sum(whitened**2, -1) / 2

    def likelihood(sigma_y2: Array) -> tuple[Array, tuple[Array, Array]]:
        K = factor(state.S, sigma_y2, observed)
        by_node = log_likelihood(K, residual)
        return by_node.sum(), (K, by_node)

    now = current.sum(), (state.K, current)
    walk = shared.walk(noise, state.sigma_y2, state.log_step, now, likelihood, prior, schedule, published)
    K, by_node = walk.kept
    return state._replace(sigma_y2=walk.sigma_y2, K=K, log_likelihood=by_node, log_step=walk.log_step), walk


def factor(S: Array, sigma_y2: Array, observed: NodeStatistics) -> Array:
    """Return K of V = KKᵀ = σ_y² S + σ_z² I."""
    V = sigma_y2 * S + observed.variance_z[:, None, None] * jnp.eye(S.shape[-1])
    return jnp.asarray(jnp.linalg.cholesky(V, symmetrize_input=False))


def log_likelihood(K: Array, residual: Array) -> Array:
    """Return ln N(ẑ_j; S_jθ, V_j) of each node without its constant, given ẑ - Sθ ``(J, d)``."""
    return -shared.log_determinant(K) / 2 - jnp.sum(solved(K, residual[..., None]) ** 2, (-1, -2)) / 2


def scattered(noise: Noise, observed: NodeStatistics) -> Array:
    """Return the nearest positive definite matrices to Ŝ with the noise added once more, shape ``(J, d, d)``."""
    sd = jnp.sqrt(observed.variance_S)
    normals = jnp.triu(noise.normals(*observed.S.shape)) * sd[:, None, None]
    diagonal = jnp.eye(observed.S.shape[-1])
    S = observed.S + normals + transposed(normals) - normals * diagonal
    size = jnp.abs(jnp.trace(observed.S, axis1=-2, axis2=-1)) / S.shape[-1]
    return nearest_psd(S, jnp.maximum(sd, FLOOR * size))
