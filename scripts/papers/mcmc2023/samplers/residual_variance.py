"""The random walk over σ_y² that MCMC-normalX and MCMC-fixedS share (appendix A.4), and how their proposals adapt.

    published   σ_y²' ~ N(σ_y², s²) with a fixed s, rejected at or below 0
    default     ln σ_y²' ~ N(ln σ_y², s²), whose ratio of proposals is σ_y²'/σ_y²; s adapts during warm-up

The posterior of σ_y² narrows with the number of rows and moves with the noise, so that no fixed s fits: at 1e5 rows the
published 0.1 is 20 posterior standard deviations and hardly anything is accepted. On the log scale one step fits both
ends of a skewed posterior, and nothing is proposed outside.

Adaptation is Robbins and Monro's (Andrieu and Thoms 2008, algorithm 4): ln s += γ_i (p - p*), p the acceptance
probability, γ_i = i^-0.6 as in the published code, counted from a fifth of the warm-up on, when the chain has left its
start. It ends with the warm-up: what is kept comes from one fixed Markov chain.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from inference.models.linear.nodes.observed import Prior
from papers.mcmc2023.samplers.distributions import Noise
from papers.mcmc2023.samplers.kernel import Array, Schedule

DECAY = 0.6  # of γ_i
ADAPT_FROM = 0.2  # of the warm-up
TARGET = 0.44  # acceptance of a one-dimensional random walk (Roberts, Gelman and Gilks 1997)
NORMALS = 2  # that a step takes
START_SPREAD = 1.0  # of ln σ_y² between chains, about the prior's mode
LOG_STEP = -1.0  # ln s before adaptation

Kept: TypeAlias = Any
Likelihood: TypeAlias = Callable[[Array], tuple[Array, Kept]]
"""Of σ_y²: ln p(ẑ | S, θ, σ_y²), and what of its calculation is to be kept: a JAX pytree."""


class Walk(NamedTuple):
    """A step of the random walk.

    Attributes:
        sigma_y2: after it. kept: what the likelihood kept, of the value after it. log_step: ln s.
        acceptance: its acceptance probability. failed: whether the ratio was no number.
    """

    sigma_y2: Array
    kept: Kept
    log_step: Array
    acceptance: Array
    failed: Array


def start(noise: Noise, prior: Prior) -> Array:
    """A start of σ_y² about the prior's mode, with a factor e between chains."""
    mode: Array = prior.b / (prior.a + 1)
    return mode * jnp.exp(START_SPREAD * noise.normals())


def walk(
    noise: Noise,
    sigma_y2: Array,
    log_step: Array,
    current: tuple[Array, Kept],
    likelihood: Likelihood,
    prior: Prior,
    schedule: Schedule,
    fixed_sd: float | None,
) -> Walk:
    """One Metropolis-Hastings step.

    Args:
        current: the likelihood's answer at `sigma_y2`. fixed_sd: s of the published walk; None for the default.
    """
    normal = noise.normals()
    proposed = sigma_y2 * jnp.exp(jnp.exp(log_step) * normal) if fixed_sd is None else sigma_y2 + fixed_sd * normal
    inside = proposed > 0
    valid = jnp.where(inside, proposed, sigma_y2)
    log_likelihood, kept = likelihood(valid)
    log_ratio = log_likelihood - current[0] + log_prior(valid, prior) - log_prior(sigma_y2, prior)  # A.4
    if fixed_sd is None:
        log_ratio += jnp.log(valid / sigma_y2)
    log_probability, failed = log_acceptance(jnp.where(inside, log_ratio, -jnp.inf))
    accepted = noise.log_uniforms() < log_probability
    probability = jnp.exp(log_probability)
    if fixed_sd is None:
        log_step += gain(schedule) * (probability - TARGET)
    sigma_y2, kept = jax.tree.map(partial(jnp.where, accepted), (valid, kept), (sigma_y2, current[1]))
    return Walk(sigma_y2, kept, log_step, probability, failed)


def log_prior(sigma_y2: Array, prior: Prior) -> Array:
    """ln IG(σ_y²; a, b) up to a constant."""
    density: Array = -(prior.a + 1) * jnp.log(sigma_y2) - prior.b / sigma_y2
    return density


def log_acceptance(log_ratio: Array) -> tuple[Array, Array]:
    """ln min(1, r) of ln r, that of 0 where r is no number or infinite; and whether it is."""
    failed = ~(log_ratio < jnp.inf)
    return jnp.where(failed, -jnp.inf, jnp.minimum(log_ratio, 0.0)), failed


def gain(schedule: Schedule) -> Array:
    """γ_i, 0 before adaptation begins and after the warm-up."""
    first = jnp.floor(ADAPT_FROM * schedule.warmup)
    i = schedule.iteration - first + 1
    adapting = (i >= 1) & (schedule.iteration < schedule.warmup)
    return jnp.where(adapting, jnp.maximum(i, 1.0) ** -DECAY, 0.0)
