"""MCMC-normalX with an intercept: features N(μ_x, Σ_x) beside a public constant c (appendix B.2).

    b_j ~ N(μ_x, Σ_x/n_j)      mean of node j's features; C_j ~ W(Σ_x, n_j - 1), independent: their scatter about it
    S_j                        the statistic with the constant: [[n_jc², n_jc·b_jᵀ], [n_jc·b_j, C_j + n_jb_jb_jᵀ]]
    Ŝ_j, ẑ_j                   what was released; the first term of S_j is public and has no noise
    μ_x ~ N(0, Σ_x/k_0)        the paper leaves it open
    Σ_x ~ IW(Λ, κ)             Λ without the constant's row and column

θ has d + 1 coefficients for d features, the constant's first. The prior of μ_x is the conjugate one, as if k_0 rows lay
at the public centre. One step is, in order:

    Σ_x | b, C        ~ IW(Λ + Σ_j [C_j + n_j(b_j - b̄)(b_j - b̄)ᵀ] + k_0n/(k_0 + n)·b̄b̄ᵀ, κ + n), n = Σ n_j, nb̄ = Σ n_jb_j
    μ_x | Σ_x, b      ~ N(nb̄/(k_0 + n), Σ_x/(k_0 + n))
    C_j | rest          MH with C' ~ W(C_j/α_j, α_j), as S_j in `normal_x`
    b_j | rest          MH with b' ~ N(b_j, w_j²C_j/n_j²): w_j times about the mean's own spread, √(Σ_x/n_j)
    θ, σ_y² | rest      as in `normal_x`, given S_j

μ_x is integrated out of the first. The scatters bring n - J degrees of freedom to it and the means J. α_j and w_j adapt
during warm-up to acceptances of `TARGET`. O(J d³) a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from inference.distributed_regression import normal_x, residual_variance
from inference.distributed_regression.distributions import (
    Noise,
    bartlett,
    bartlett_count,
    covariance_of,
    inverse,
    precision_of,
    solved,
    transposed,
)
from inference.distributed_regression.kernel import Array, Info, Kernel, Schedule
from inference.distributed_regression.observed import Observed, Prior
from inference.distributed_regression.residual_variance import gain, log_acceptance
from inference.errors import DataError

NAME = "intercept"
TARGET = 0.25


class State(NamedTuple):
    """After a step.

    Attributes:
        shared: what `normal_x` has too, θ and S with the constant. Its L are the Cholesky factors of the scatters C_j,
            ``(J, d, d)``, and its Σ_x is of the d features.
        mean: b_j, shape ``(J, d)``. mu_x: shape ``(d,)``. log_width: ln w_j, shape ``(J,)``.
    """

    shared: normal_x.State
    mean: Array
    mu_x: Array
    log_width: Array


def kernel_for(
    observed: Observed | Sequence[Observed], *, prior_rows: float = 1.0, sigma_y2_start: float | None = None
) -> Kernel:
    """`kernel`, where these problems allow it.

    Raises:
        DataError: there is no constant feature, a node has too few rows for a scatter of full rank, or prior_rows is
            not above 0.
    """
    if not 0 < prior_rows < np.inf:
        raise DataError(f"prior_rows is {prior_rows:g}; give a finite number of rows above 0")
    for problem in [observed] if isinstance(observed, Observed) else observed:
        if not np.all(problem.constant > 0):
            raise DataError("there is no constant feature; release with an intercept, or choose the method 'normal-x'")
        if np.min(problem.n) < problem.features:
            raise DataError(
                f"a node has {np.min(problem.n):g} rows, too few for the scatter of {problem.features - 1} features; "
                f"each needs {problem.features} at least"
            )
    return kernel(prior_rows=prior_rows, sigma_y2_start=sigma_y2_start)


@cache
def kernel(*, prior_rows: float = 1.0, sigma_y2_start: float | None = None) -> Kernel:
    """MCMC-normalX with an intercept.

    Args:
        prior_rows: k_0, above 0, in rows. sigma_y2_start: where σ_y² starts; by default about its prior's mode, apart.
    """
    return Kernel(NAME, partial(_init, sigma_y2_start), partial(_step, prior_rows), _draw)


def _init(sigma_y2_start: float | None, key: Array, observed: Observed, prior: Prior) -> State:
    """What was released with its noise added once more, and the nearest possible scatter to that."""
    J, d = observed.z.shape[0], prior.m.size - 1
    noise = Noise(key, 1 + J * d + J * d * d)
    sigma_y2 = residual_variance.start(noise, prior) if sigma_y2_start is None else jnp.asarray(sigma_y2_start)
    n, sd = observed.n[:, None], jnp.sqrt(observed.variance_S)[:, None]
    mean = (observed.S[:, 0, 1:] + sd * noise.normals(J, d)) / (n * observed.constant)
    features = observed.S[:, 1:, 1:] - n[..., None] * mean[:, :, None] * mean[:, None]
    of_features = observed._replace(S=features)
    L = jnp.linalg.cholesky(normal_x.scattered(noise, of_features))
    S = assembled(mean, L, observed)
    K, theta = normal_x.factor(S, sigma_y2, observed), jnp.zeros_like(prior.m)
    scale = prior.Lambda[1:, 1:] + (L @ transposed(L)).sum(0)
    shared = normal_x.State(
        theta, sigma_y2, S, L, K, normal_x.log_likelihood(K, observed.z - S @ theta),
        (jnp.linalg.cholesky(scale), jnp.sqrt(prior.kappa + n.sum()) * jnp.eye(d)),
        normal_x.first_log_alpha(of_features), jnp.asarray(residual_variance.LOG_STEP), inverse(prior.C),
    )  # fmt: skip
    return State(shared, mean, (n * mean).sum(0) / n.sum(), jnp.zeros(J))


def _step(
    prior_rows: float, key: Array, state: State, observed: Observed, prior: Prior, schedule: Schedule
) -> tuple[State, Info]:
    J, d = state.mean.shape
    noise = Noise(key, (J + 1) * bartlett_count(d) + 2 * J + J * d + 2 * d + 1 + residual_variance.NORMALS)
    state, sound = _update_features(noise, state, observed, prior, prior_rows)
    state, of_scatter, failed = _update_scatter(noise, state, observed, schedule)
    state, of_mean, lost = _update_mean(noise, state, observed, schedule)
    shared, whitened, drawn = normal_x.update_theta(noise, state.shared, observed, prior)
    shared, walk = normal_x.update_sigma_y2(noise, shared, whitened, observed, prior, schedule, None)
    acceptance = {"S": jnp.mean(of_scatter), "mean": jnp.mean(of_mean), "sigma_y2": walk.acceptance}
    divergent = jnp.any(failed | lost) | walk.failed | ~sound | ~drawn
    return state._replace(shared=shared), Info(acceptance, divergent)


def _draw(state: State) -> dict[str, Array]:
    shared = state.shared
    return {
        "theta": shared.theta,
        "sigma_y2": shared.sigma_y2,
        "Sigma_x": covariance_of(shared.Sigma_x),
        "mu_x": state.mu_x,
        "S": shared.S,
    }


def assembled(mean: Array, L: Array, observed: Observed) -> Array:
    """S_j of the means and the scatters' Cholesky factors, shape ``(J, d + 1, d + 1)``."""
    n, c = observed.n[:, None, None], observed.constant
    rows = jnp.concatenate([jnp.full((len(mean), 1, 1), c), mean[:, None]], axis=2)
    scatter = jnp.pad(L @ transposed(L), ((0, 0), (1, 0), (1, 0)))
    S: Array = n * transposed(rows) * rows + scatter
    return S


def _update_features(
    noise: Noise, state: State, observed: Observed, prior: Prior, prior_rows: float
) -> tuple[State, Array]:
    """The state with new Σ_x and μ_x, and whether they could be drawn."""
    n, d = observed.n[:, None], state.mu_x.size
    total, L = n.sum(), state.shared.L
    centre = (n * state.mean).sum(0) / total
    apart = jnp.sqrt(n) * (state.mean - centre)
    shrunk = prior_rows * total / (prior_rows + total)
    scale = prior.Lambda[1:, 1:] + (L @ transposed(L)).sum(0) + apart.T @ apart + shrunk * jnp.outer(centre, centre)
    root = jnp.linalg.cholesky(scale)
    A, accepted = bartlett(noise, prior.kappa + total, d)
    sound = jnp.all(jnp.isfinite(root))
    U, A = jax.tree.map(partial(jnp.where, sound & accepted), (root, A), state.shared.Sigma_x)
    normals = solved(A, noise.normals(d, 1), transpose=True)  # Σ = (UA⁻ᵀ)(UA⁻ᵀ)ᵀ
    mu_x = total / (prior_rows + total) * centre + (U @ normals)[:, 0] / jnp.sqrt(prior_rows + total)
    return state._replace(shared=state.shared._replace(Sigma_x=(U, A)), mu_x=mu_x), sound


def _update_scatter(noise: Noise, state: State, observed: Observed, schedule: Schedule) -> tuple[State, Array, Array]:
    """MH for all C_j: the state, acceptance probabilities and failures, shape ``(J,)``."""
    shared, d = state.shared, state.mu_x.size
    alpha = jnp.exp(shared.log_alpha)
    A, drawn = bartlett(noise, alpha, d)
    B = A / jnp.sqrt(alpha)[:, None, None]
    proposed = moved_to(state, state.mean, shared.L @ B, observed)
    ratio = scatter_log_ratio(state, proposed, B, observed)
    log_probability, failed = log_acceptance(ratio)
    log_probability = jnp.where(drawn, log_probability, -jnp.inf)
    state = _decided(noise, state, proposed, log_probability)
    log_alpha = state.shared.log_alpha + gain(schedule) * (TARGET - jnp.exp(log_probability))
    shared = state.shared._replace(log_alpha=normal_x.allowed(log_alpha, d))
    return state._replace(shared=shared), jnp.exp(log_probability), failed


def _update_mean(noise: Noise, state: State, observed: Observed, schedule: Schedule) -> tuple[State, Array, Array]:
    """MH for all b_j: the state, acceptance probabilities and failures, shape ``(J,)``."""
    J, d = state.mean.shape
    width = (jnp.exp(state.log_width) / observed.n)[:, None]
    mean = state.mean + width * (state.shared.L @ noise.normals(J, d, 1))[..., 0]
    proposed = moved_to(state, mean, state.shared.L, observed)
    log_probability, failed = log_acceptance(mean_log_ratio(state, proposed, observed))
    state = _decided(noise, state, proposed, log_probability)
    log_width = state.log_width + gain(schedule) * (jnp.exp(log_probability) - TARGET)
    return state._replace(log_width=log_width), jnp.exp(log_probability), failed


def moved_to(state: State, mean: Array, L: Array, observed: Observed) -> State:
    """The state with these means and Cholesky factors of scatters, and what follows from them."""
    S = assembled(mean, L, observed)
    K = normal_x.factor(S, state.shared.sigma_y2, observed)
    likelihood = normal_x.log_likelihood(K, observed.z - S @ state.shared.theta)
    return state._replace(shared=state.shared._replace(S=S, L=L, K=K, log_likelihood=likelihood), mean=mean)


def _decided(noise: Noise, state: State, proposed: State, log_probability: Array) -> State:
    """Each node's new or old values."""
    accepted = noise.log_uniforms(log_probability.size) < log_probability
    shared = normal_x.decided(accepted, proposed.shared, state.shared)
    return state._replace(shared=shared, mean=normal_x.chosen(accepted, proposed.mean, state.mean))


def scatter_log_ratio(state: State, proposed: State, B: Array, observed: Observed) -> Array:
    """ln of the acceptance ratio of each node's C' = (LB)(LB)ᵀ, shape ``(J,)``."""
    change = (proposed.shared.S - state.shared.S)[:, 1:, 1:]  # C' - C
    wishart = normal_x.wishart_log_ratio(state.shared, B, change, observed.n - 1)
    ratio: Array = wishart + normal_x.released_log_ratio(state.shared, proposed.shared, observed)
    return ratio


def mean_log_ratio(state: State, proposed: State, observed: Observed) -> Array:
    """ln of the acceptance ratio of each node's b', shape ``(J,)``."""
    precision = precision_of(state.shared.Sigma_x)
    new, old = proposed.mean - state.mu_x, state.mean - state.mu_x
    further = jnp.einsum("ji,ik,jk->j", new, precision, new) - jnp.einsum("ji,ik,jk->j", old, precision, old)
    released = normal_x.released_log_ratio(state.shared, proposed.shared, observed)  # the public term cancels
    ratio: Array = released - observed.n / 2 * further
    return ratio
