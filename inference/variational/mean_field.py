"""Doubly stochastic variational inference with a mean-field Gaussian; from the data it needs only gradients.

    q(θ) = N(m, diag(s²))                         the variational posterior
    L(m, s) = E_q[ℓ(θ) + ln p(θ)] + Σ_j ln s_j    the bound, up to a constant: the data's ℓ, the prior, the entropy
    ξ ~ N(0, I),  θ = m + s ξ                     drawn by the trainer; θ is public and goes to the clients
    g = ∇ℓ(θ) + ∇ln p(θ)                          ∇ℓ is the clients' noisy sum: unbiased except for clipping (`models`)

    ∇_m L = E[g]                      (1)
    ∇_ρ L = E[s ξ g] + 1,  ρ = ln s   (2)         (Titsias and Lázaro-Gredilla 2014, eqs. 7 and 8)

**One sum gives both.** Jälkö, Dikmen and Honkela (2017) clip and perturb each client's gradient of m and of ρ jointly,
2d numbers. But all clients use the trainer's ξ, so (2) is a product of public numbers with the same sum of gradients at
θ: post-processing. So the clients send d numbers, clipped once, and (2) costs no privacy. The prior and the entropy are
the trainer's own, without noise.

**Antithetic draws.** ξ is drawn at every other iteration, and the next iteration uses its negative: most of ξ's effect
on g then cancels. This is free, whereas several draws for one step would each need a round. (2) further subtracts from
g the running mean of the gradients before the pair; these do not depend on its ξ, so the mean is unchanged. (The
gradient of the pair's first draw does depend on it, and would make s too small.)

**The step** of m is Adam's (Kingma and Ba 2015), except that the second moment is one number, the squared norm.

    u ← β₁ u + (1 - β₁) g      v ← β₂ v + (1 - β₂) |g|²      m ← m + a û/√v̂

The privacy noise is the same in all directions, and a scale for each coordinate would amplify those with little but
noise. v includes the noise's own variance, on purpose: if noise dominates, steps are short and average many gradients;
if not, they have the length a whatever the number of rows. Rates fall linearly to zero over the planned iterations.

**The step of ρ** is half of (2), its natural gradient, since the Fisher information of ρ is 2. But the noise in (2) has
standard deviation τ_j = s_j σ, which at small budgets is far above its signal, 1. So the step is split into the mean
over all coordinates, whose noise has variance τ²/d, and each coordinate's deviation from it. Each part is divided by 1
plus the variance of its noise. So the coordinates jointly find the scale of s even if a single one could not. If noise
hides everything, s does not change.

**The mean's error from privacy noise** can be computed by the trainer, which knows each round's noise and its own
steps. An iteration with noise e_t in its gradient carries an error δ of the mean and u of the momentum to

    u_t = β₁ u_{t-1} + (1 - β₁)(e_t - H δ_{t-1})         δ_t = δ_{t-1} + a_t u_t

near the optimum, where H is the curvature. The fitted mean is the average of the last iterates, so its error is
Σ_t w_t e_t, and its variance Σ_t σ_t² w_t²; running this linear recursion backwards once gives the weights.

H is one number here for all directions: a guess of a row's curvature, summed over clients. Directions with less
information have more noise than that, and directions with more have less. The difference between mini-batches is left
out; most of it cancels over whole epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np

from inference.problem import Array

MOMENTUM = 0.9  # β₁
SQUARES = 0.99  # β₂
SPREAD_RATE = 0.3  # of ρ, as a part of the full natural gradient step
SPREAD_STEP_MAX = 0.3  # in ρ: one noisy gradient never changes s by more than a third


class State(NamedTuple):
    """The state after some iterations.

    Attributes:
        mean: m. log_sd: ρ. momentum: u. Each of shape ``(d,)``.
        square: v. iteration: number of iterations so far. xi: the last draw; zeros before the first.
        earlier: the running mean of the gradients before the last pair of draws, shape ``(d,)``.
        rate: a/((1 - β₁ᵗ)√v̂), the last factor of u.
    """

    mean: Array
    log_sd: Array
    momentum: Array
    square: float
    iteration: int
    xi: Array
    earlier: Array
    rate: float = 0.0


def init(sd: Array, mean: Array | None = None) -> State:
    """Return the state before the first iteration.

    Args:
        sd: s > 0, shape ``(d,)``. mean: m, by default zero.
    """
    zero = np.zeros_like(sd)
    return State(zero if mean is None else np.array(mean, float), np.log(sd), zero, 0.0, 0, zero, zero)


def propose(state: State, rng: np.random.Generator) -> tuple[Array, State]:
    """Return the θ = m + s ξ to send to the clients, and the state with that ξ."""
    if state.iteration % 2:
        state = state._replace(xi=-state.xi)
    else:
        earlier = state.momentum / (1 - MOMENTUM**state.iteration) if state.iteration else state.earlier
        state = state._replace(xi=rng.standard_normal(state.mean.size), earlier=earlier)
    return state.mean + np.exp(state.log_sd) * state.xi, state


def step(state: State, gradient: Array, *, noise: float, rate: float, left: float) -> State:
    """Do one iteration, given the gradient at the proposed θ.

    Args:
        state: from `propose`. gradient: g, shape ``(d,)``.
        noise: σ, standard deviation of the privacy noise in each coordinate of g.
        rate: a, the length of the first step of m. left: the fraction of it that is left, in [0, 1].
    """
    t = state.iteration + 1
    u = MOMENTUM * state.momentum + (1 - MOMENTUM) * gradient
    v = SQUARES * state.square + (1 - SQUARES) * float(gradient @ gradient)
    root = np.sqrt(v / (1 - SQUARES**t))
    a = left * rate / ((1 - MOMENTUM**t) * root) if root > 0 else 0.0
    rise = spread_gradient(state, gradient)
    common, variance = rise.mean(), (np.exp(state.log_sd) * noise) ** 2  # τ²
    shrunk = (common / (1 + variance.mean() / rise.size) + (rise - common) / (1 + variance)) / 2
    moved = np.clip(left * SPREAD_RATE * shrunk, -SPREAD_STEP_MAX, SPREAD_STEP_MAX)
    return State(state.mean + a * u, state.log_sd + moved, u, v, t, state.xi, state.earlier, float(a))


def spread_gradient(state: State, gradient: Array) -> Array:
    """Return ∇_ρ L of (2), with the running mean of earlier gradients subtracted from g: shape ``(d,)``."""
    return np.asarray(np.exp(state.log_sd) * state.xi * (gradient - state.earlier) + 1.0)


def noise_sd(rates: Sequence[float], noise_sds: Sequence[float], averaged: int, curvature: float) -> float:
    """Return the standard deviation of the privacy noise in each coordinate of the average of the last iterates.

    Args:
        rates: a_t of each iteration (`State.rate`). averaged: the number of last iterates.
        curvature: H, at least 0. noise_sds: σ_t, of each coordinate of each iteration's gradient.
    """
    variance = of_mean = of_momentum = 0.0  # effect on the average of an error of δ_t, of u_t
    for t in reversed(range(len(rates))):
        if t >= len(rates) - averaged:
            of_mean += 1 / averaged
        of_momentum += rates[t] * of_mean
        variance += (noise_sds[t] * (1 - MOMENTUM) * of_momentum) ** 2
        of_mean -= (1 - MOMENTUM) * curvature * of_momentum
        of_momentum *= MOMENTUM
    return sqrt(variance)
