"""The kernel of a sampler of distributed regression, and functions that samplers share.

**A kernel** is a pure transition of one chain on one problem, in the form of blackjax: a state, an init, a step, and
here also a `draw` that reads the parameters from a state. `sampler` maps it over chains and problems, compiles and runs
it. JAX can trace all functions; they are called in float64. Compiled code is cached by the functions of a kernel, so a
constructor `kernel(...)` returns the same functions for the same options (`functools.cache`).

**Draws**, by Cholesky factors and triangular solves (Bartlett 1933; Smith and Hocking 1972, algorithm AS 53):

    W(Σ, ν)     Wishart, mean νΣ: with Σ = LLᵀ and Bartlett's A, (LA)(LA)ᵀ ~ W(Σ, ν), and LA is its Cholesky factor
    IW(Λ, ν)    inverse-Wishart: the inverse of W(Λ⁻¹, ν); with Λ = UUᵀ and G = U⁻ᵀA, GGᵀ ~ W(Λ⁻¹, ν)

Matrices are the last two axes, after any leading ones. A factorisation that fails numerically gives nan, as everywhere
in JAX; the kernels detect it and reject.

**The walk over σ_y²** of MCMC-normalX and MCMC-fixedS (appendix A.4):

    published   σ_y²' ~ N(σ_y², s²) with s = 0.1, rejected at or below 0
    default     ln σ_y²' ~ N(ln σ_y², s²), whose ratio of proposals is σ_y²'/σ_y²; s adapts during warm-up

The posterior of σ_y² narrows with the number of rows and depends on the noise, so no fixed s fits: at 1e5 rows the
published 0.1 is 20 posterior standard deviations, and hardly any proposal is accepted. Adaptation is Robbins and
Monro's (Andrieu and Thoms 2008, algorithm 4): ln s += γ_i (p - p*), with the acceptance probability p and γ_i = i^-0.6
as in the published code. It starts after a fifth of the warm-up, when the chain has left its start, and ends with the
warm-up, so that kept draws come from one fixed Markov chain.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from inference.models.linear.nodes.observed import Prior

Array: TypeAlias = jax.Array
State: TypeAlias = Any
"""A kernel's state between two steps: its own named tuple of arrays, a JAX pytree."""


class Info(NamedTuple):
    """The statistics of a step."""

    acceptance: dict[str, Array]
    """By block ("S", "sigma_y2"), the mean acceptance probability of its Metropolis-Hastings moves; scalars."""
    divergent: Array
    """True if the step failed numerically, so that its proposal was dropped; a scalar."""


class Schedule(NamedTuple):
    """A chain's position in its run, scalar integers. Proposals may adapt only while ``iteration < warmup``."""

    iteration: Array
    warmup: Array


class Kernel(NamedTuple):
    """A sampler's transition. `observed` and `prior` are `observed.NodeStatistics` and `observed.Prior` of one problem.

    Attributes:
        init: ``(key, observed, prior) -> State``; overdispersed between keys unless asked otherwise.
        step: ``(key, state, observed, prior, schedule) -> (State, Info)``; leaves the posterior invariant.
        draw: ``(state) -> dict``: "theta" ``(d,)`` and "sigma_y2" ``()``, and if the state has them "Sigma_x"
            ``(d, d)`` and "S" ``(J, d, d)``.
    """

    init: Callable[..., State]
    step: Callable[..., tuple[State, Info]]
    draw: Callable[[State], dict[str, Array]]


# Draws


class Noise:
    """All standard normals of one step, drawn at once and handed out in order.

    Each call of a generator costs a second of compilation, and long vectors are fast, so a step has one call. A uniform
    number is Φ of a normal.
    """

    def __init__(self, key: Array, count: int) -> None:
        self._left = jax.random.normal(key, (count,))

    def normals(self, *shape: int) -> Array:
        count = math.prod(shape)
        taken, self._left = self._left[:count], self._left[count:]
        assert taken.size == count, "a step counts its random numbers beforehand"
        return taken.reshape(shape)

    def log_uniforms(self, *shape: int) -> Array:
        """Return ln U of the next uniform numbers."""
        return jnp.log(jax.lax.erfc(-self.normals(*shape) / math.sqrt(2)) / 2)


def bartlett_count(d: int) -> int:
    """Return the number of normals that `bartlett` takes for one matrix."""
    return d * (d - 1) // 2 + 2 * d


def bartlett(noise: Noise, degrees: Array, d: int) -> tuple[Array, Array]:
    """Draw lower triangular A with AAᵀ ~ W(I, ν) for each ν >= d + 1.

    Its terms are independent: A_ii² ~ χ²(ν - i) for i = 0, 1, ..., and N(0, 1) below the diagonal. χ² is drawn by one
    candidate of Marsaglia and Tsang's method (2000), which rejects at most one in twenty. Their method repeats until
    one is accepted; here the caller keeps its state. That also leaves its target invariant, because the probability
    depends on ν alone and not on the state.

    Returns:
        A, shape ``degrees.shape + (d, d)``, and whether its candidates were accepted, shape ``degrees.shape``.
    """
    shape = (*jnp.shape(degrees), d)
    third = (jnp.asarray(degrees)[..., None] - jnp.arange(d)) / 2 - 1 / 3
    normal = noise.normals(*shape)
    cube = (1 + normal / jnp.sqrt(9 * third)) ** 3
    valid = jnp.where(cube > 0, cube, 1.0)
    bound = normal**2 / 2 + third * (1 - valid + jnp.log(valid))
    accepted = (cube > 0) & (noise.log_uniforms(*shape) < bound)
    below = noise.normals(*shape[:-1], d * (d - 1) // 2)
    place = np.full((d, d), below.shape[-1])
    place[np.tril_indices(d, -1)] = np.arange(below.shape[-1])
    rest = jnp.concatenate([below, jnp.zeros((*shape[:-1], 1))], axis=-1)[..., place]
    return rest + jnp.sqrt(2 * third * valid)[..., None] * jnp.eye(d), jnp.all(accepted, axis=-1)


def precision_of(factors: tuple[Array, Array]) -> Array:
    """Return Σ⁻¹ = GGᵀ of Σ ~ IW(UUᵀ, ν), G = U⁻ᵀA with Bartlett's A."""
    U, A = factors
    G = solved(U, A, transpose=True)
    return G @ transposed(G)


def covariance_of(factors: tuple[Array, Array]) -> Array:
    """Return Σ = HᵀH of the same factors, H = A⁻¹Uᵀ, without inverting an inverse."""
    U, A = factors
    H = solved(A, transposed(U))
    return transposed(H) @ H


def gaussian(noise: Noise, precision: Array, shift: Array) -> Array:
    """Draw from N(P⁻¹h, P⁻¹), P ``(d, d)`` and h ``(d,)``: with P = RRᵀ, R⁻ᵀ(R⁻¹h + ε), ε ~ N(0, I)."""
    R = jnp.linalg.cholesky(precision)
    whitened = solved(R, shift[:, None]) + noise.normals(shift.size, 1)
    return solved(R, whitened, transpose=True)[:, 0]


def log_determinant(root: Array) -> Array:
    """Return ln |LLᵀ| of a Cholesky factor L."""
    return 2 * jnp.sum(jnp.log(jnp.diagonal(root, axis1=-2, axis2=-1)), axis=-1)


def solved(root: Array, right: Array, *, transpose: bool = False) -> Array:
    """Return L⁻¹B or L⁻ᵀB for lower triangular L and matrices B with the same leading axes."""
    return jax.lax.linalg.triangular_solve(root, right, left_side=True, lower=True, transpose_a=transpose)


def inverse(matrix: Array) -> Array:
    half = solved(jnp.linalg.cholesky(matrix), jnp.broadcast_to(jnp.eye(matrix.shape[-1]), matrix.shape))
    return transposed(half) @ half


def transposed(matrix: Array) -> Array:
    return jnp.swapaxes(matrix, -1, -2)


def nearest_psd(S: Array, floor: Array | float = 0.0) -> Array:
    """Return the nearest symmetric matrices to S with eigenvalues of at least `floor` (Higham 1988; section 4.2)."""
    values, vectors = jnp.linalg.eigh(S)
    raised = jnp.maximum(values, jnp.asarray(floor)[..., None])
    return jnp.asarray((vectors * raised[..., None, :]) @ transposed(vectors))


# The walk over σ_y²

DECAY = 0.6  # of γ_i
ADAPT_FROM = 0.2  # of the warm-up
TARGET = 0.44  # acceptance of a one-dimensional random walk (Roberts, Gelman and Gilks 1997)
WALK_NORMALS = 2  # taken by a step
START_SPREAD = 1.0  # of ln σ_y² between chains, about the prior's mode
LOG_STEP = -1.0  # ln s before adaptation
PUBLISHED_SD = 0.1

Kept: TypeAlias = Any
Likelihood: TypeAlias = Callable[[Array], tuple[Array, Kept]]
"""From σ_y² to ln p(ẑ | S, θ, σ_y²), and intermediate values that the state keeps, a JAX pytree."""


class Walk(NamedTuple):
    """The result of a step of the random walk."""

    sigma_y2: Array  # after the step
    kept: Kept  # the likelihood's intermediate values at `sigma_y2`
    log_step: Array  # ln s
    acceptance: Array  # probability
    failed: Array  # whether the ratio was nan


def start(noise: Noise, prior: Prior) -> Array:
    """Draw a start of σ_y² about the prior's mode, with a factor of about e between chains."""
    return jnp.asarray(prior.b / (prior.a + 1) * jnp.exp(START_SPREAD * noise.normals()))


def walk(
    noise: Noise,
    sigma_y2: Array,
    log_step: Array,
    current: tuple[Array, Kept],
    likelihood: Likelihood,
    prior: Prior,
    schedule: Schedule,
    published: bool,
) -> Walk:
    """Take one Metropolis-Hastings step.

    Args:
        current: the likelihood's value at `sigma_y2`.
    """
    normal = noise.normals()
    proposed = sigma_y2 + PUBLISHED_SD * normal if published else sigma_y2 * jnp.exp(jnp.exp(log_step) * normal)
    inside = proposed > 0
    valid = jnp.where(inside, proposed, sigma_y2)
    log_likelihood, kept = likelihood(valid)
    log_ratio = log_likelihood - current[0] + log_prior(valid, prior) - log_prior(sigma_y2, prior)  # A.4
    if not published:
        log_ratio += jnp.log(valid / sigma_y2)
    log_probability, failed = log_acceptance(jnp.where(inside, log_ratio, -jnp.inf))
    accepted = noise.log_uniforms() < log_probability
    probability = jnp.exp(log_probability)
    if not published:
        log_step += gain(schedule) * (probability - TARGET)
    sigma_y2, kept = jax.tree.map(partial(jnp.where, accepted), (valid, kept), (sigma_y2, current[1]))
    return Walk(sigma_y2, kept, log_step, probability, failed)


def log_prior(sigma_y2: Array, prior: Prior) -> Array:
    """Return ln IG(σ_y²; a, b) up to a constant."""
    return jnp.asarray(-(prior.a + 1) * jnp.log(sigma_y2) - prior.b / sigma_y2)


def log_acceptance(log_ratio: Array) -> tuple[Array, Array]:
    """Return ln min(1, r) for ln r, or ln 0 if r is nan or infinite; and whether it is."""
    failed = ~(log_ratio < jnp.inf)
    return jnp.where(failed, -jnp.inf, jnp.minimum(log_ratio, 0.0)), failed


def gain(schedule: Schedule) -> Array:
    """Return γ_i; it is 0 before adaptation begins and after the warm-up."""
    i = schedule.iteration - jnp.floor(ADAPT_FROM * schedule.warmup) + 1
    adapting = (i >= 1) & (schedule.iteration < schedule.warmup)
    return jnp.where(adapting, jnp.maximum(i, 1.0) ** -DECAY, 0.0)
