"""MCMC-normalX with an intercept: features N(μ_x, Σ_x) beside a public constant c (appendix B.2).

    m_j <= n_j                 rows of node j without a missing value, p(m_j) of `complete_rows`; the paper has n_j
    b_j ~ N(μ_x, Σ_x/m_j)      mean of their features; C_j ~ W(Σ_x, m_j - 1), independent: their scatter about it
    S_j                        the statistic with the constant: [[m_jc², m_jc·b_jᵀ], [m_jc·b_j, C_j + m_jb_jb_jᵀ]]
    Ŝ_j, ẑ_j                   what was released, with noise in all of their terms
    μ_x ~ N(0, Σ_x/k_0)        the paper leaves it open
    Σ_x ~ IW(Λ, κ)             Λ without the constant's row and column

θ has d + 1 coefficients for d features, the constant's first. The prior of μ_x is the conjugate one, as if k_0 rows lay
at the public centre. One step is, in order:

    Σ_x | b, C, m     ~ IW(Λ + Σ_j [C_j + m_j(b_j - b̄)(b_j - b̄)ᵀ] + k_0m/(k_0 + m)·b̄b̄ᵀ, κ + m), m = Σ m_j, mb̄ = Σ m_jb_j
    μ_x | Σ_x, b, m   ~ N(mb̄/(k_0 + m), Σ_x/(k_0 + m))
    C_j | rest          MH with C' ~ W(C_j/α_j, α_j), as S_j in `normal_x`
    b_j | rest          MH with b' ~ N(b_j, w_j²C_j/m_j²): w_j times about the mean's own spread, √(Σ_x/m_j)
    m_j, C_j | rest     MH with m' = m_j + v_jN(0, 1), rounded, and C' = m'/m_j·C_j: all of S_j is multiplied by that
    θ, σ_y² | rest      as in `normal_x`, given S_j

μ_x is integrated out of the first. The scatters bring m - J degrees of freedom to it and the means J. α_j, w_j and v_j
adapt during warm-up to acceptances of `TARGET`. O(J d³) a step.

**Why m_j is drawn.** All sums are over complete rows, and n_j counts the others too. Without noise c²m_j would tell; a
share of missing rows that noise hides biases the intercept by as much, relative to its size, where c²n_j is taken for
c²m_j. C_j moves with m_j as the two are known by their ratio: where the noise is large, m_j given C_j stands still.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import multigammaln

from inference.errors import DataError
from inference.mcmc.distributions import (
    Noise,
    bartlett,
    bartlett_count,
    covariance_of,
    inverse,
    log_determinant,
    precision_of,
    solved,
    transposed,
)
from inference.mcmc.kernel import (
    Array,
    Info,
    Kernel,
    Schedule,
)
from inference.models.linear import complete_rows
from inference.models.linear.nodes import normal_x, residual_variance
from inference.models.linear.nodes.observed import Observed, Prior
from inference.models.linear.nodes.residual_variance import gain, log_acceptance

NAME = "intercept"
TARGET = 0.25


class State(NamedTuple):
    """After a step.

    Attributes:
        shared: what `normal_x` has too, θ and S with the constant. Its L are the Cholesky factors of the scatters C_j,
            ``(J, d, d)``, and its Σ_x is of the d features.
        rows: m_j, whole numbers, shape ``(J,)``. mean: b_j, shape ``(J, d)``. mu_x: shape ``(d,)``.
        log_width, log_stride: ln w_j and ln v_j, shape ``(J,)``.
    """

    shared: normal_x.State
    rows: Array
    mean: Array
    mu_x: Array
    log_width: Array
    log_stride: Array


def kernel_for(
    observed: Observed | Sequence[Observed],
    *,
    prior_rows: float = 1.0,
    missing: float = complete_rows.MISSING,
    sigma_y2_start: float | None = None,
) -> Kernel:
    """`kernel`, where these problems allow it.

    Raises:
        DataError: there is no constant feature, a node has too few rows for a scatter of full rank, prior_rows is not
            above 0, or missing is not between 0 and 1.
    """
    if not 0 < prior_rows < np.inf:
        raise DataError(f"prior_rows is {prior_rows:g}; give a finite number of rows above 0")
    if not 0 < missing < 1:
        raise DataError(f"missing is {missing:g}; give the share of rows expected to lack a value, between 0 and 1")
    for problem in [observed] if isinstance(observed, Observed) else observed:
        if not np.all(problem.constant > 0):
            raise DataError("there is no constant feature; release with an intercept, or choose the method 'normal-x'")
        if np.min(problem.n) < problem.features:
            raise DataError(
                f"a node has {np.min(problem.n):g} rows, too few for the scatter of {problem.features - 1} features; "
                f"each needs {problem.features} at least"
            )
    return kernel(prior_rows=prior_rows, missing=missing, sigma_y2_start=sigma_y2_start)


@cache
def kernel(
    *, prior_rows: float = 1.0, missing: float = complete_rows.MISSING, sigma_y2_start: float | None = None
) -> Kernel:
    """MCMC-normalX with an intercept.

    Args:
        prior_rows: k_0, above 0, in rows. missing: the share of a node's rows that is expected to lack a value.
        sigma_y2_start: where σ_y² starts; by default about its prior's mode, apart.
    """
    return Kernel(NAME, partial(_init, sigma_y2_start), partial(_step, prior_rows, missing), _draw)


def _init(sigma_y2_start: float | None, key: Array, observed: Observed, prior: Prior) -> State:
    """What was released with its noise added once more, and the nearest possible scatter to that.

    No fewer than half of the rows are complete: means over next to none, where the noise is large, would lie far out.
    """
    J, d = observed.z.shape[0], prior.m.size - 1
    noise = Noise(key, 1 + J + J * d + J * d * d)
    sigma_y2 = residual_variance.start(noise, prior) if sigma_y2_start is None else jnp.asarray(sigma_y2_start)
    sd = jnp.sqrt(observed.variance_S)
    count = jnp.round((observed.S[:, 0, 0] + sd * noise.normals(J)) / observed.constant**2)
    rows = jnp.clip(count, jnp.maximum(jnp.floor(observed.n / 2), d + 1), observed.n)
    mean = (observed.S[:, 0, 1:] + sd[:, None] * noise.normals(J, d)) / (rows[:, None] * observed.constant)
    features = observed.S[:, 1:, 1:] - rows[:, None, None] * mean[:, :, None] * mean[:, None]
    of_features = observed._replace(S=features)
    L = jnp.linalg.cholesky(normal_x.scattered(noise, of_features))
    S = assembled(rows, mean, L, observed.constant)
    K, theta = normal_x.factor(S, sigma_y2, observed), jnp.zeros_like(prior.m)
    scale = prior.Lambda[1:, 1:] + (L @ transposed(L)).sum(0)
    shared = normal_x.State(
        theta, sigma_y2, S, L, K, normal_x.log_likelihood(K, observed.z - S @ theta),
        (jnp.linalg.cholesky(scale), jnp.sqrt(prior.kappa + rows.sum()) * jnp.eye(d)),
        normal_x.first_log_alpha(of_features), jnp.asarray(residual_variance.LOG_STEP), inverse(prior.C),
    )  # fmt: skip
    stride = observed.n * sd / jnp.linalg.norm(observed.S, axis=(1, 2))  # moves S by about its noise
    mu_x = (rows[:, None] * mean).sum(0) / rows.sum()
    return State(shared, rows, mean, mu_x, jnp.zeros(J), jnp.log(stride))


def _step(
    prior_rows: float, missing: float, key: Array, state: State, observed: Observed, prior: Prior, schedule: Schedule
) -> tuple[State, Info]:
    J, d = state.mean.shape
    noise = Noise(key, (J + 1) * bartlett_count(d) + 4 * J + J * d + 2 * d + 1 + residual_variance.NORMALS)
    state, sound = _update_features(noise, state, prior, prior_rows)
    state, of_scatter, failed = _update_scatter(noise, state, observed, schedule)
    state, of_mean, lost = _update_mean(noise, state, observed, schedule)
    state, of_rows, missed = _update_rows(noise, state, observed, schedule, missing)
    shared, whitened, drawn = normal_x.update_theta(noise, state.shared, observed, prior)
    shared, walk = normal_x.update_sigma_y2(noise, shared, whitened, observed, prior, schedule, None)
    moved = {"S": of_scatter, "mean": of_mean, "rows": of_rows}
    acceptance = {block: jnp.mean(probability) for block, probability in moved.items()}
    divergent = jnp.any(failed | lost | missed) | walk.failed | ~sound | ~drawn
    return state._replace(shared=shared), Info({**acceptance, "sigma_y2": walk.acceptance}, divergent)


def _draw(state: State) -> dict[str, Array]:
    shared = state.shared
    return {
        "theta": shared.theta,
        "sigma_y2": shared.sigma_y2,
        "Sigma_x": covariance_of(shared.Sigma_x),
        "mu_x": state.mu_x,
        "S": shared.S,
    }


def assembled(rows: Array, mean: Array, L: Array, constant: Array) -> Array:
    """S_j of m_j, the means and the scatters' Cholesky factors, shape ``(J, d + 1, d + 1)``."""
    first = jnp.concatenate([jnp.full((len(mean), 1, 1), constant), mean[:, None]], axis=2)
    scatter = jnp.pad(L @ transposed(L), ((0, 0), (1, 0), (1, 0)))
    S: Array = rows[:, None, None] * transposed(first) * first + scatter
    return S


def _update_features(noise: Noise, state: State, prior: Prior, prior_rows: float) -> tuple[State, Array]:
    """The state with new Σ_x and μ_x, and whether they could be drawn."""
    rows, d = state.rows[:, None], state.mu_x.size
    total, L = rows.sum(), state.shared.L
    centre = (rows * state.mean).sum(0) / total
    apart = jnp.sqrt(rows) * (state.mean - centre)
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
    proposed = moved_to(state, state.rows, state.mean, shared.L @ B, observed)
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
    width = (jnp.exp(state.log_width) / state.rows)[:, None]
    mean = state.mean + width * (state.shared.L @ noise.normals(J, d, 1))[..., 0]
    proposed = moved_to(state, state.rows, mean, state.shared.L, observed)
    log_probability, failed = log_acceptance(mean_log_ratio(state, proposed, observed))
    state = _decided(noise, state, proposed, log_probability)
    log_width = state.log_width + gain(schedule) * (jnp.exp(log_probability) - TARGET)
    return state._replace(log_width=log_width), jnp.exp(log_probability), failed


def _update_rows(
    noise: Noise, state: State, observed: Observed, schedule: Schedule, missing: float
) -> tuple[State, Array, Array]:
    """MH for all m_j, with C_j/m_j as it is: the state, acceptance probabilities and failures, shape ``(J,)``."""
    J, d = state.mean.shape
    rows = state.rows + jnp.round(jnp.exp(state.log_stride) * noise.normals(J))
    inside = (rows > d) & (rows <= observed.n)
    valid = jnp.where(inside, rows, state.rows)
    L = jnp.sqrt(valid / state.rows)[:, None, None] * state.shared.L
    proposed = moved_to(state, valid, state.mean, L, observed)
    ratio = rows_log_ratio(state, proposed, observed, missing)
    log_probability, failed = log_acceptance(jnp.where(inside, ratio, -jnp.inf))
    state = _decided(noise, state, proposed, log_probability)
    log_stride = state.log_stride + gain(schedule) * (jnp.exp(log_probability) - TARGET)
    return state._replace(log_stride=log_stride), jnp.exp(log_probability), failed


def moved_to(state: State, rows: Array, mean: Array, L: Array, observed: Observed) -> State:
    """The state with these m_j, means and Cholesky factors of scatters, and what follows from them."""
    S = assembled(rows, mean, L, observed.constant)
    K = normal_x.factor(S, state.shared.sigma_y2, observed)
    likelihood = normal_x.log_likelihood(K, observed.z - S @ state.shared.theta)
    shared = state.shared._replace(S=S, L=L, K=K, log_likelihood=likelihood)
    return state._replace(shared=shared, rows=rows, mean=mean)


def _decided(noise: Noise, state: State, proposed: State, log_probability: Array) -> State:
    """Each node's new or old values."""
    accepted = noise.log_uniforms(log_probability.size) < log_probability
    shared = normal_x.decided(accepted, proposed.shared, state.shared)
    rows = normal_x.chosen(accepted, proposed.rows, state.rows)
    return state._replace(shared=shared, rows=rows, mean=normal_x.chosen(accepted, proposed.mean, state.mean))


def scatter_log_ratio(state: State, proposed: State, B: Array, observed: Observed) -> Array:
    """ln of the acceptance ratio of each node's C' = (LB)(LB)ᵀ, shape ``(J,)``."""
    change = (proposed.shared.S - state.shared.S)[:, 1:, 1:]  # C' - C
    wishart = normal_x.wishart_log_ratio(state.shared, B, change, state.rows - 1)
    ratio: Array = wishart + normal_x.released_log_ratio(state.shared, proposed.shared, observed)
    return ratio


def mean_log_ratio(state: State, proposed: State, observed: Observed) -> Array:
    """ln of the acceptance ratio of each node's b', shape ``(J,)``."""
    further = _from_centre(proposed) - _from_centre(state)
    released = normal_x.released_log_ratio(state.shared, proposed.shared, observed)
    ratio: Array = released - state.rows / 2 * further
    return ratio


def rows_log_ratio(state: State, proposed: State, observed: Observed, missing: float) -> Array:
    """ln of the acceptance ratio of each node's m' and C' = m'/m·C, shape ``(J,)``."""
    d, more = state.mu_x.size, proposed.rows - state.rows
    growth = jnp.log(proposed.rows / state.rows)
    before = complete_rows.log_prior(proposed.rows, observed.n, missing)
    before -= complete_rows.log_prior(state.rows, observed.n, missing)
    of_mean = d / 2 * growth - more / 2 * _from_centre(state)
    jacobian = d * (d + 1) / 2 * growth
    scatter = _log_wishart(proposed) - _log_wishart(state)
    released = normal_x.released_log_ratio(state.shared, proposed.shared, observed)
    ratio: Array = before + of_mean + scatter + jacobian + released
    return ratio


def _from_centre(state: State) -> Array:
    """(b_j - μ_x)ᵀΣ_x⁻¹(b_j - μ_x), shape ``(J,)``."""
    apart = state.mean - state.mu_x
    distance: Array = jnp.einsum("ji,ik,jk->j", apart, precision_of(state.shared.Sigma_x), apart)
    return distance


def _log_wishart(state: State) -> Array:
    """ln W(C_j; Σ_x, m_j - 1) but for a constant that has no m_j in it, shape ``(J,)``."""
    L, degrees, d = state.shared.L, state.rows - 1, state.mu_x.size
    U, A = state.shared.Sigma_x
    log_Sigma_x = log_determinant(U) - log_determinant(A)
    trace = jnp.sum(precision_of(state.shared.Sigma_x) * (L @ transposed(L)), (-1, -2))
    normaliser = degrees / 2 * (d * np.log(2) + log_Sigma_x) + multigammaln(degrees / 2, d)
    density: Array = (degrees - d - 1) / 2 * log_determinant(L) - trace / 2 - normaliser
    return density
