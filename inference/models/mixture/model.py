"""Variational Bayes for a Gaussian mixture with diagonal covariances, from noisy expected sufficient statistics.

    π ~ Dirichlet(α₀)         λ_kj ~ Gamma(a₀, b₀)         μ_kj | λ_kj ~ N(m₀, 1/(β₀ λ_kj))
    x_j | component k ~ N(μ_kj, 1/λ_kj)                                            columns j = 1..d, components k = 1..K

    r_nk    responsibilities of row n at the current posterior
    N_k = Σ r_nk      S_kj = Σ r_nk x_nj      Q_kj = Σ r_nk x_nj²                 what the clients' sum holds

Given these, the optimal posterior of the parameters is of the prior's form (Bishop 2006, section 10.2, diagonal)

    α = α₀ + N                       (10.58)      m = (β₀ m₀ + S)/β               (10.61)
    β = β₀ + N                       (10.60)      b = b₀ + ½(Q + β₀ m₀² - β m²)    (10.62)
    a = a₀ + N/2                     (10.63)

and responsibilities follow from it by ln ρ_k = E[ln π_k] + ½ Σ_j (E[ln λ_kj] - 1/β_k) - ½ Σ_j E[λ_kj](x_j - m_kj)²
(10.46). Everything that a client needs is in three public arrays, and its answer is clipped by the columns' bounds
alone: the sensitivity does not depend on K (VIPS, Park, Foulds, Chaudhuri and Welling 2016, perturb the same
statistics).

**Units.** All is in units of 2.5 standard deviations of the data, to which clients project their values, so that |x| is
at most 1. What is released are w₁ N, w₂ S and w₃ (Q - h N), with weights and an offset h that leave the sensitivity at
2 w₂ √d, that of S alone (`dca_proto.statistics.mixture`). At d = 10 that has 0.36 of the noise of (N, S, Q) themselves
in N, 0.98 in S and 0.59 in Q - h N.

**A step in natural parameters.** These are the prior's plus (N, S, Q), so a stochastic natural-gradient step of size ρ
(Hoffman et al. 2013, eq. 27) is an average of statistics, s ← (1 - ρ) s + ρ ŝ, whose noise variances are known:
v ← (1 - ρ)² v + ρ² σ². ρ = 1 is plain coordinate ascent. At iteration t it is the larger of

    t^-0.7                  an average of many at last, however much noise there is (Hoffman et al. 2013)
    (v + q)/(v + q + σ²)    Kalman's gain, with √q what S may change by from one posterior to the next: that of means
                            that move by a tenth of τ at first, and by a sixth less with each iteration

so that without noise it is 1 throughout: exact coordinate ascent, whatever the start is.

**Repair.** Noise makes counts negative and squares smaller than they can be, and the smaller a component the more of
its mean is noise. So from s and v, each time:

- counts: the nearest ones that are not negative and add up to n, which is public;
- means: S = N μ + noise, with μ ~ N(m₀, τ²) over components; the posterior mean of μ, which goes to m₀ as N goes to 0;
- variances about these means: from Q - S²/N in the same way, with Q - h N and the repaired N for Q, about what a
  component of the data's own width has, and at least one standard deviation of what is left open then, for a component
  that seems to have no width takes rows from nobody but itself, and never recovers; in any case a thousandth of the
  data's variance.

Without noise all three leave the statistics as they are.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import numpy as np
from scipy.special import digamma, gammaln, logsumexp

from inference.columns import FREE_BOUND
from inference.problem import Array
from inference.simplex import nearest_on_simplex

SPAN = 2.5  # standard deviations of the data in each column are one unit: clients project to ±1
VARIANCE = 1 / SPAN**2  # of the data, and what a component's variance falls back on
MEAN_SD = 1 / SPAN  # τ: components lie where the data do
VARIANCE_MIN = 1e-3
STARTS = 30
FORGETTING = 0.7  # κ of t^-κ
CHANGE_SD = 0.1  # of means in the first iteration, in parts of τ
SETTLING = 0.84  # what is left of that after each

SUM_WEIGHT = 64  # w₂
SQUARE_WEIGHT = int(SUM_WEIGHT * FREE_BOUND)  # w₃
OFFSET = (1 + (SUM_WEIGHT / SQUARE_WEIGHT) ** 2) / 2  # h
COUNT_WEIGHT_MAX = 4096


class Prior(NamedTuple):
    """α₀, β₀, m₀, a₀, b₀, the same for all components and columns, in units of `SPAN`."""

    alpha: float = 1.0
    beta: float = 0.1
    mean: float = 0.0
    shape: float = 1.5
    rate: float = VARIANCE / 2


PRIOR = Prior()


class Statistics(NamedTuple):
    """N of shape ``(K,)``, S and Q of shape ``(K, d)``."""

    counts: Array
    sums: Array
    squares: Array


class Noise(NamedTuple):
    """Variances of the privacy noise in each number of N, S and Q - h N."""

    counts: float
    sums: float
    squares: float


NO_NOISE = Noise(0.0, 0.0, 0.0)


class Posterior(NamedTuple):
    """α, β, a of shape ``(K,)``, m and b of shape ``(K, d)``."""

    alpha: Array
    beta: Array
    mean: Array
    shape: Array
    rate: Array


class State(NamedTuple):
    """After some iterations: the running statistics s, their noise v, and the posterior that they give."""

    statistics: Statistics
    noise: Noise
    posterior: Posterior
    iteration: int


class Natural(NamedTuple):
    """What responsibilities depend on: log weights of shape ``(K,)``, means and precisions of shape ``(K, d)``."""

    log_weights: Array
    means: Array
    precisions: Array


def weights(dimension: int) -> tuple[int, int, int]:
    """(w₁, w₂, w₃) for d columns: the largest that leave the sensitivity at 2 w₂ √d."""
    of_count = sqrt(dimension * (2 * SUM_WEIGHT**2 - (SQUARE_WEIGHT * OFFSET) ** 2))
    return min(COUNT_WEIGHT_MAX, int(of_count)), SUM_WEIGHT, SQUARE_WEIGHT


def init(means: Array, n: int, prior: Prior) -> State:
    """The state before the first iteration: components of equal weight and the data's width.

    Args:
        means: where they start, in units of `SPAN`, shape ``(K, d)``. n: rows.
    """
    counts = np.full(len(means), n / len(means))
    column = counts[:, None]
    statistics = Statistics(counts, column * means, column * (means**2 + VARIANCE))
    return State(statistics, NO_NOISE, posterior(statistics, prior), 0)


def scattered(components: int, dimension: int, rng: np.random.Generator) -> Array:
    """Where components start without knowledge of them: of some random sets of means, N(0, τ²), the most scattered one.

    Returns:
        Shape ``(K, d)``, in units of `SPAN`.
    """
    sets = MEAN_SD * rng.standard_normal((STARTS, components, dimension))
    apart = np.linalg.norm(sets[:, :, None] - sets[:, None], axis=-1) + np.where(np.eye(components), np.inf, 0.0)
    return np.asarray(sets[apart.min(axis=(1, 2)).argmax()])


def step(state: State, found: Statistics, noise: Noise, n: int, rate: float, prior: Prior) -> State:
    """One iteration, given the noisy statistics at the state's posterior.

    Args:
        found: ŝ, scaled up to n rows. noise: σ² of its numbers. rate: ρ in (0, 1].
    """
    mixed = Statistics(*((1 - rate) * old + rate * new for old, new in zip(state.statistics, found, strict=True)))
    left = Noise(*((1 - rate) ** 2 * old + rate**2 * new for old, new in zip(state.noise, noise, strict=True)))
    return State(mixed, left, posterior(repair(mixed, left, n, prior), prior), state.iteration + 1)


def rate(state: State, noise: Noise, n: int) -> float:
    """ρ of the next step, as at the head.

    Args:
        noise: of the statistics that it will take in. n: rows.
    """
    per_component = CHANGE_SD * MEAN_SD * n / len(state.statistics.counts)
    known = state.noise.sums + (per_component * SETTLING**state.iteration) ** 2
    return float(max((state.iteration + 1) ** -FORGETTING, known / (known + noise.sums)))


def posterior(statistics: Statistics, prior: Prior) -> Posterior:
    """Bishop's (10.58) to (10.63), diagonal."""
    N, S, Q = statistics
    beta = prior.beta + N
    mean = (prior.beta * prior.mean + S) / beta[:, None]
    rate = prior.rate + (Q + prior.beta * prior.mean**2 - beta[:, None] * mean**2) / 2
    return Posterior(prior.alpha + N, beta, mean, prior.shape + N / 2, rate)


def natural(found: Posterior) -> Natural:
    """The responsibilities' parameters, (10.46) with (10.65) and (10.66)."""
    shape = found.shape[:, None]
    log_precision = digamma(shape) - np.log(found.rate)
    log_pi = digamma(found.alpha) - digamma(found.alpha.sum())
    log_weights = log_pi + (log_precision - 1 / found.beta[:, None]).sum(axis=1) / 2
    return Natural(log_weights, found.mean, shape / found.rate)


def repair(statistics: Statistics, noise: Noise, n: int, prior: Prior) -> Statistics:
    """Statistics that rows can have, as at the head."""
    N = nearest_on_simplex(statistics.counts, n) if noise.counts > 0 else statistics.counts
    Q = statistics.squares + OFFSET * (N - statistics.counts)[:, None]
    column = np.maximum(N, 1e-12 * n)[:, None]
    offset = statistics.sums - column * prior.mean
    S = column * prior.mean + offset * _kept(column, MEAN_SD**2, noise.sums)
    excess = Q - statistics.sums**2 / column - column * VARIANCE
    kept = _kept(column, VARIANCE**2, noise.squares + 4 * noise.sums * (S / column) ** 2)  # of Q, and of S²/N
    variance = np.maximum(VARIANCE + excess / column * kept, VARIANCE * np.sqrt(1 - kept))
    return Statistics(N, S, S**2 / column + column * np.maximum(variance, VARIANCE_MIN * VARIANCE))


def _kept(counts: Array, prior_variance: float, noise_variance: Array | float) -> Array:
    """How much of an estimate of a mean survives: its prior variance over that plus the noise's."""
    return np.asarray(counts**2 * prior_variance / (counts**2 * prior_variance + noise_variance))


def gain(before: Posterior, after: Posterior, statistics: Statistics, prior: Prior) -> float:
    """What the step from one posterior to the next was worth: an estimate of the difference of their bounds.

    The data's part of the bound is F = Σ_n ln Σ_k ρ_nk, whose derivatives with respect to the coefficients η of 1, x
    and x² in ln ρ_k are N, S and Q. So F changes by about (N, S, Q)·Δη, to which the two divergences from the prior
    come.

    Args:
        statistics: those at ``after``, found with fresh noise, which then does not depend on the step. F is convex in
        η:
            exact ones at ``after`` give at least the difference, those at ``before`` at most.
    """
    moved = (new - old for new, old in zip(_coefficients(after), _coefficients(before), strict=True))
    rise = sum(float((one * change).sum()) for one, change in zip(statistics, moved, strict=True))
    return rise - divergence(after, prior) + divergence(before, prior)


def _coefficients(found: Posterior) -> tuple[Array, Array, Array]:
    """Those of 1, x and x² in ln ρ_k: shapes ``(K,)``, ``(K, d)``, ``(K, d)``."""
    log_weights, means, precisions = natural(found)
    return log_weights - (precisions * means**2).sum(axis=1) / 2, precisions * means, -precisions / 2


def divergence(found: Posterior, prior: Prior) -> float:
    """KL(q(π, μ, λ) || p(π, μ, λ)), the sum over components and columns."""
    alpha, K = found.alpha, found.alpha.size
    log_pi = digamma(alpha) - digamma(alpha.sum())
    of_weights = gammaln(alpha.sum()) - gammaln(alpha).sum() - gammaln(K * prior.alpha) + K * gammaln(prior.alpha)
    of_weights += ((alpha - prior.alpha) * log_pi).sum()
    a, b, beta = found.shape[:, None], found.rate, found.beta[:, None]
    of_means = (np.log(beta / prior.beta) - 1 + prior.beta / beta) / 2
    of_means = of_means + prior.beta * (a / b) * (found.mean - prior.mean) ** 2 / 2
    of_precisions = (a - prior.shape) * digamma(a) - gammaln(a) + gammaln(prior.shape)
    of_precisions = of_precisions + prior.shape * np.log(b / prior.rate) + a * (prior.rate - b) / b
    return float(of_weights + (of_means + of_precisions).sum())


def log_density(found: Posterior, z: Array) -> Array:
    """Log density of standardised rows, shape ``(k, d)`` to ``(k,)``, at the mean of the posterior's parameters."""
    weights = found.alpha / found.alpha.sum()
    precisions = found.shape[:, None] / found.rate
    squares = (precisions * (z[:, None, :] - found.mean) ** 2).sum(axis=2)
    logs = np.log(weights) + (np.log(precisions / (2 * np.pi)).sum(axis=1) - squares) / 2
    return np.asarray(logsumexp(logs, axis=1))
