"""MCMC-fixedS (algorithm 2): S_j is fixed at an estimate from Ŝ_j, whatever the features' distribution.

    θ, σ_y²        sampled; J nodes, d features
    Ŝ_j, ẑ_j       released; noise variance σ_z² (`variance_z`)
    m, C, a, b     the prior: N(m, C), IG(a, b)

    S_j          the nearest positive semi-definite matrix to Ŝ_j (section 4.2)
    θ | σ_y²   ~ N(m_p, Σ_p)                                                 (12)
    σ_y² | θ     MH by a random walk (`kernel.walk`)                         (A.4)

As S is fixed, S_j = E_j D_j E_jᵀ is decomposed once, and V_j = σ_y² S_j + σ_z² I is diagonal in that basis at every
σ_y²: a step factorises only θ's precision. The method ignores the noise in S (`normal_x` models it).
"""

from __future__ import annotations

from functools import cache, partial
from typing import NamedTuple

import jax.numpy as jnp

from inference.models.linear.nodes.observed import NodeStatistics, Prior
from papers.mcmc2023.samplers import kernel as shared
from papers.mcmc2023.samplers.kernel import Array, Info, Kernel, Noise, Schedule, transposed


class State(NamedTuple):
    """The state after a step; all but the first three are constant."""

    theta: Array  # (d,)
    sigma_y2: Array  # ()
    log_step: Array  # of σ_y²'s walk, ()
    D: Array  # eigenvalues of S, (J, d)
    E: Array  # eigenvectors in columns, (J, d, d)
    rotated_z: Array  # Eᵀẑ, (J, d)
    inverse_C: Array  # noqa: N815 - the paper's C⁻¹, (d, d)


@cache
def kernel(*, published: float | None = None) -> Kernel:
    """MCMC-fixedS.

    Args:
        published: the published code's start of σ_y²; then the chain also has its walk, and I added to S. By default
            chains start apart, about the mode of the prior, and walk on the log scale.
    """
    return Kernel(partial(_init, published), partial(_step, published is not None), _draw)


def _init(published: float | None, key: Array, observed: NodeStatistics, prior: Prior) -> State:
    noise = Noise(key, 1)
    sigma_y2 = shared.start(noise, prior) if published is None else jnp.asarray(published)
    D, E = jnp.linalg.eigh(observed.S)
    rotated_z = (transposed(E) @ observed.z[..., None])[..., 0]
    log_step = jnp.asarray(shared.LOG_STEP)
    D = jnp.maximum(D, 0.0) + (published is not None)
    return State(prior.m, sigma_y2, log_step, D, E, rotated_z, shared.inverse(prior.C))


def _step(
    published: bool, key: Array, state: State, observed: NodeStatistics, prior: Prior, schedule: Schedule
) -> tuple[State, Info]:
    noise = Noise(key, prior.m.size + shared.WALK_NORMALS)
    state, drawn = _update_theta(noise, state, observed, prior)
    residual = state.rotated_z - state.D * (state.theta @ state.E)  # Eᵀ(ẑ - Sθ)

    def likelihood(sigma_y2: Array) -> tuple[Array, tuple[()]]:
        V = _variances(state.D, sigma_y2, observed)
        return -jnp.sum(jnp.log(V) + residual**2 / V) / 2, ()

    now = likelihood(state.sigma_y2)
    walk = shared.walk(noise, state.sigma_y2, state.log_step, now, likelihood, prior, schedule, published)
    state = state._replace(sigma_y2=walk.sigma_y2, log_step=walk.log_step)
    return state, Info({"sigma_y2": walk.acceptance}, walk.failed | ~drawn)


def _draw(state: State) -> dict[str, Array]:
    return {"theta": state.theta, "sigma_y2": state.sigma_y2}


def _update_theta(noise: Noise, state: State, observed: NodeStatistics, prior: Prior) -> tuple[State, Array]:
    """Return the state with a new θ, and whether it could be drawn."""
    weight = state.D / _variances(state.D, state.sigma_y2, observed)  # D V⁻¹
    precision = jnp.einsum("jik,jk,jlk->il", state.E, weight * state.D, state.E) + state.inverse_C  # (12)
    shift = jnp.einsum("jik,jk->i", state.E, weight * state.rotated_z) + state.inverse_C @ prior.m  # (12)
    theta = shared.gaussian(noise, precision, shift)
    drawn = jnp.all(jnp.isfinite(theta))
    return state._replace(theta=jnp.where(drawn, theta, state.theta)), drawn


def _variances(D: Array, sigma_y2: Array, observed: NodeStatistics) -> Array:
    """Return the diagonal of EᵀVE, shape ``(J, d)``."""
    return jnp.asarray(sigma_y2 * D + observed.variance_z[:, None])
