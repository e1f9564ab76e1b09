"""How Hamiltonian Monte Carlo finds its step size and its coordinates' centres and scales, during warm-up only.

**Step size**: dual averaging to an acceptance of `TARGET` (Nesterov 2009; Hoffman and Gelman 2014, section 3.2): with
H_i the running mean of target - acceptance,

    H_i = (1 - 1/(i + t_0)) H_{i-1} + (target - p_i)/(i + t_0)      ln h_i = μ - √i/γ H_i
    ln h̄_i = i^-κ ln h_i + (1 - i^-κ) ln h̄_{i-1}                   h̄ after warm-up

**Centres and scales**: mean and standard deviation of each coordinate over a window (Welford), drawn a little towards
those before. There are two windows, as parts of the warm-up; a new step size is looked for after each.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from inference.mcmc.kernel import Array, Schedule

TARGET = 0.8
FIRST_STEP = 0.3
OFFSET, SHRINK, DECAY = 10.0, 0.05, 0.75  # t_0, γ and κ: the published ones
AHEAD = 3.0  # μ is the logarithm of this many first steps
WINDOWS = (0.1, 0.35, 0.8)  # where the first begins, the second begins and it ends, as parts of the warm-up
PRIOR_DRAWS = 5.0  # that the scales of before count for

Tree: TypeAlias = Any
"""Coordinates: a named tuple of arrays."""


class StepSize(NamedTuple):
    """Scalars: ln h, ln h̄, H, i and μ."""

    log_step: Array
    log_average: Array
    error: Array
    steps: Array
    log_ahead: Array


class Moments(NamedTuple):
    """Of the draws in a window: how many, their mean, and sum of squared deviations from it."""

    draws: Array
    mean: Tree
    squares: Tree


class Reference(NamedTuple):
    """The Gaussian N(centre, scale²) that the posterior is held against, coordinate by coordinate."""

    centre: Tree
    scale: Tree


class Tuning(NamedTuple):
    """All that adapts."""

    step: StepSize
    moments: Moments
    reference: Reference


def start(like: Tree) -> Tuning:
    """Before the first step, for coordinates of these shapes."""
    zero = jax.tree.map(jnp.zeros_like, like)
    reference = Reference(zero, jax.tree.map(jnp.ones_like, like))
    return Tuning(_from(jnp.log(jnp.asarray(FIRST_STEP))), Moments(jnp.zeros(()), zero, zero), reference)


def step_size(tuning: Tuning, schedule: Schedule) -> Array:
    """h of this iteration."""
    warm = schedule.iteration < schedule.warmup
    return jnp.exp(jnp.where(warm, tuning.step.log_step, tuning.step.log_average))


def adapted(tuning: Tuning, at: Tree, acceptance: Array, schedule: Schedule) -> Tuning:
    """After an iteration that ended at a point; unchanged after warm-up.

    Args:
        at: the coordinates there. acceptance: the probability with which its proposal was accepted.
    """
    begin, again, end = ((part * schedule.warmup).astype(int) for part in WINDOWS)
    done = schedule.iteration + 1
    moments = _with(tuning.moments, at)
    learned = ((done == again) | (done == end)) & (moments.draws > 1)
    reference = _chosen(learned, _reference(moments, tuning.reference), tuning.reference)
    step = _averaged(tuning.step, acceptance)
    step = _chosen(learned, _from(step.log_step), step)
    emptied = (done <= begin) | learned
    moments = _chosen(emptied, jax.tree.map(jnp.zeros_like, moments), moments)
    after: Tuning = _chosen(done <= schedule.warmup, Tuning(step, moments, reference), tuning)
    return after


def _from(log_step: Array) -> StepSize:
    """The search for a step size, begun at one."""
    return StepSize(log_step, log_step, jnp.zeros(()), jnp.zeros(()), log_step + jnp.log(AHEAD))


def _averaged(step: StepSize, acceptance: Array) -> StepSize:
    count = step.steps + 1
    error = step.error + (TARGET - acceptance - step.error) / (count + OFFSET)
    log_step = step.log_ahead - jnp.sqrt(count) / SHRINK * error
    weight = count**-DECAY
    return StepSize(log_step, weight * log_step + (1 - weight) * step.log_average, error, count, step.log_ahead)


def _with(moments: Moments, at: Tree) -> Moments:
    """With one draw more (Welford 1962)."""
    count = moments.draws + 1
    mean = jax.tree.map(lambda old, new: old + (new - old) / count, moments.mean, at)
    squares = jax.tree.map(
        lambda sum_, new, before, after: sum_ + (new - before) * (new - after), moments.squares, at, moments.mean, mean
    )
    return Moments(count, mean, squares)


def _reference(moments: Moments, before: Reference) -> Reference:
    """Means and standard deviations, each with `PRIOR_DRAWS` draws' worth of those before."""
    weight = moments.draws / (moments.draws + PRIOR_DRAWS)
    variance = jax.tree.map(lambda sum_: sum_ / jnp.maximum(moments.draws - 1, 1), moments.squares)
    return Reference(
        jax.tree.map(lambda new, old: weight * new + (1 - weight) * old, moments.mean, before.centre),
        jax.tree.map(lambda new, old: jnp.sqrt(weight * new + (1 - weight) * old**2), variance, before.scale),
    )


def _chosen(first: Array, one: Tree, other: Tree) -> Tree:
    return jax.tree.map(partial(jnp.where, first), one, other)
