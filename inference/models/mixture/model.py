"""Variational Bayes for a Gaussian mixture with diagonal covariances, from noisy expected sufficient statistics.

    π ~ Dirichlet(α₀)         λ_kj ~ Gamma(a₀, b₀)         μ_kj | λ_kj ~ N(m₀, 1/(β₀ λ_kj))
    x_j | component k ~ N(μ_kj, 1/λ_kj)                                            columns j = 1..d, components k = 1..K

    r_nk    responsibilities of row n at the current posterior
    N_k = Σ r_nk      S_kj = Σ r_nk x_nj      Q_kj = Σ r_nk x_nj²                 the clients' sums

Given these, the optimal posterior of the parameters has the prior's form (Bishop 2006, section 10.2, diagonal)

    α = α₀ + N                       (10.58)      m = (β₀ m₀ + S)/β               (10.61)
    β = β₀ + N                       (10.60)      b = b₀ + ½(Q + β₀ m₀² - β m²)    (10.62)
    a = a₀ + N/2                     (10.63)

and responsibilities follow from it by ln ρ_k = E[ln π_k] + ½ Σ_j (E[ln λ_kj] - 1/β_k) - ½ Σ_j E[λ_kj](x_j - m_kj)²
(10.46). A client needs only three public arrays, and its answer is clipped by the columns' bounds alone. So the
sensitivity does not depend on K. (VIPS, Park, Foulds, Chaudhuri and Welling 2016, perturb the same statistics.)

**Units.** The unit is 2.5 standard deviations of the data, and clients clip their values to ±1. A round releases w₁ N,
w₂ S and w₃ (Q - h N), with weights and an offset h that leave the sensitivity at 2 w₂ √d, that of S alone
(`dca_proto.statistics.mixture`). At d = 10 the noise is 0.36 in N, 0.98 in S and 0.59 in Q - h N, relative to the noise
of releasing (N, S, Q) itself.

**A step in natural parameters.** These are the prior's plus (N, S, Q). So a stochastic natural-gradient step of size ρ
(Hoffman et al. 2013, eq. 27) is an average of statistics, s ← (1 - ρ) s + ρ ŝ, with known noise variances
v ← (1 - ρ)² v + ρ² σ². ρ = 1 is plain coordinate ascent. At iteration t, ρ is the larger of

    t^-0.7                  which finally averages many statistics, however large the noise (Hoffman et al. 2013)
    (v + q)/(v + q + σ²)    the Kalman gain, where √q is the change of S that is expected between two posteriors: means
                            move by a tenth of τ at first, and by a sixth less with each iteration

Without noise ρ is always 1: exact coordinate ascent, whatever the start is.

**Repair.** Noise makes counts negative and squares impossibly small. The smaller a component, the more of its mean is
noise. So each iteration computes the posterior from a repaired s, given v; s itself stays as averaged:

- counts: the nearest non-negative counts that add up to n, which is public;
- means: S = N μ + noise, with μ ~ N(m₀, τ²) over components; the posterior mean of μ, which goes to m₀ as N goes to 0;
- variances about these means: the released Q - h N plus h times the repaired N gives Q. The variance is shrunk in the
  same way, from Q - S²/N towards the data's variance. It is at least one standard deviation of the remaining
  uncertainty, because a component that seems to have no width attracts no further rows and never recovers; and at least
  a thousandth of the data's variance.

Without noise the repair does not change the statistics.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import numpy as np
from scipy.special import digamma, gammaln, logsumexp

from inference.columns import FREE_BOUND
from inference.problem import Array
from inference.simplex import nearest_on_simplex

SPAN = 2.5  # the unit, in standard deviations of each column: clients project to ±1
VARIANCE = 1 / SPAN**2  # of the data; a component's variance is shrunk towards it
MEAN_SD = 1 / SPAN  # τ: component means vary like the data
VARIANCE_MIN = 1e-3  # smallest variance of a component, relative to the data's
STARTS = 30  # random sets of means to choose a start from
FORGETTING = 0.7  # κ of t^-κ
CHANGE_SD = 0.1  # expected change of means in the first iteration, in units of τ
SETTLING = 0.84  # factor of that change from one iteration to the next

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


class Components(NamedTuple):
    """α, β, a of shape ``(K,)``, m and b of shape ``(K, d)``."""

    alpha: Array
    beta: Array
    mean: Array
    shape: Array
    rate: Array


class State(NamedTuple):
    """The state after some iterations: the running statistics s, their noise v, and the posterior given both."""

    statistics: Statistics
    noise: Noise
    posterior: Components
    iteration: int


class Natural(NamedTuple):
    """The parameters of responsibilities: log weights of shape ``(K,)``, means and precisions of shape ``(K, d)``."""

    log_weights: Array
    means: Array
    precisions: Array


def weights(dimension: int) -> tuple[int, int, int]:
    """Return (w₁, w₂, w₃) for d columns: the largest that leave the sensitivity at 2 w₂ √d."""
    of_count = sqrt(dimension * (2 * SUM_WEIGHT**2 - (SQUARE_WEIGHT * OFFSET) ** 2))
    return min(COUNT_WEIGHT_MAX, int(of_count)), SUM_WEIGHT, SQUARE_WEIGHT


def init(means: Array, n: int, prior: Prior) -> State:
    """Return the state before the first iteration: components of equal weight and the data's width.

    Args:
        means: start of the components, in units of `SPAN`, shape ``(K, d)``. n: number of rows.
    """
    counts = np.full(len(means), n / len(means))
    column = counts[:, None]
    statistics = Statistics(counts, column * means, column * (means**2 + VARIANCE))
    return State(statistics, NO_NOISE, posterior(statistics, prior), 0)


def scattered(components: int, dimension: int, rng: np.random.Generator) -> Array:
    """Return random means to start from: of `STARTS` sets drawn from N(0, τ²), the most scattered one.

    Returns:
        Shape ``(K, d)``, in units of `SPAN`.
    """
    sets = MEAN_SD * rng.standard_normal((STARTS, components, dimension))
    apart = np.linalg.norm(sets[:, :, None] - sets[:, None], axis=-1) + np.where(np.eye(components), np.inf, 0.0)
    return np.asarray(sets[apart.min(axis=(1, 2)).argmax()])


def step(state: State, released: Statistics, noise: Noise, n: int, rate: float, prior: Prior) -> State:
    """Return the state after one iteration, given the noisy statistics at the state's posterior.

    Args:
        released: ŝ, scaled up to n rows. noise: σ² of its numbers. rate: ρ in (0, 1].
    """
    mixed = Statistics(*((1 - rate) * old + rate * new for old, new in zip(state.statistics, released, strict=True)))
    left = Noise(*((1 - rate) ** 2 * old + rate**2 * new for old, new in zip(state.noise, noise, strict=True)))
    return State(mixed, left, posterior(repair(mixed, left, n, prior), prior), state.iteration + 1)


def rate(state: State, noise: Noise, n: int) -> float:
    """Return ρ of the next step.

    Args:
        noise: of the next statistics. n: number of rows.
    """
    per_component = CHANGE_SD * MEAN_SD * n / len(state.statistics.counts)
    known = state.noise.sums + (per_component * SETTLING**state.iteration) ** 2
    return float(max((state.iteration + 1) ** -FORGETTING, known / (known + noise.sums)))


def posterior(statistics: Statistics, prior: Prior) -> Components:
    """Return the posterior by Bishop's (10.58) to (10.63), diagonal."""
    N, S, Q = statistics
    beta = prior.beta + N
    mean = (prior.beta * prior.mean + S) / beta[:, None]
    rate = prior.rate + (Q + prior.beta * prior.mean**2 - beta[:, None] * mean**2) / 2
    return Components(prior.alpha + N, beta, mean, prior.shape + N / 2, rate)


def natural(q: Components) -> Natural:
    """Return the responsibilities' parameters, (10.46) with (10.65) and (10.66)."""
    shape = q.shape[:, None]
    log_precision = digamma(shape) - np.log(q.rate)
    log_pi = digamma(q.alpha) - digamma(q.alpha.sum())
    log_weights = log_pi + (log_precision - 1 / q.beta[:, None]).sum(axis=1) / 2
    return Natural(log_weights, q.mean, shape / q.rate)


def repair(statistics: Statistics, noise: Noise, n: int, prior: Prior) -> Statistics:
    """Return the nearest plausible statistics, as described above."""
    N = nearest_on_simplex(statistics.counts, n) if noise.counts > 0 else statistics.counts
    Q = statistics.squares + OFFSET * (N - statistics.counts)[:, None]
    column = np.maximum(N, 1e-12 * n)[:, None]
    offset = statistics.sums - column * prior.mean
    S = column * prior.mean + offset * _kept(column, MEAN_SD**2, noise.sums)
    excess = Q - statistics.sums**2 / column - column * VARIANCE
    kept = _kept(column, VARIANCE**2, noise.squares + 4 * noise.sums * (S / column) ** 2)  # noise of Q, and of S²/N
    variance = np.maximum(VARIANCE + excess / column * kept, VARIANCE * np.sqrt(1 - kept))
    return Statistics(N, S, S**2 / column + column * np.maximum(variance, VARIANCE_MIN * VARIANCE))


def _kept(counts: Array, prior_variance: float, noise_variance: Array | float) -> Array:
    """Return the factor that shrinks an estimated mean: its prior variance over prior plus noise variance."""
    return np.asarray(counts**2 * prior_variance / (counts**2 * prior_variance + noise_variance))


def gain(before: Components, after: Components, statistics: Statistics, prior: Prior) -> float:
    """Estimate how much the bound increased from one posterior to the next.

    The data's part of the bound is F = Σ_n ln Σ_k ρ_nk. Its derivatives with respect to the coefficients η of 1, x and
    x² in ln ρ_k are N, S and Q. So F changes by about (N, S, Q)·Δη; the divergences from the prior are exact.

    Args:
        statistics: those at ``after``, whose fresh noise is independent of the step. F is convex in η, so exact
            statistics at ``after`` give an upper bound of the difference, and those at ``before`` a lower bound.
    """
    moved = (new - old for new, old in zip(_coefficients(after), _coefficients(before), strict=True))
    rise = sum(float((one * change).sum()) for one, change in zip(statistics, moved, strict=True))
    return rise - divergence(after, prior) + divergence(before, prior)


def _coefficients(q: Components) -> tuple[Array, Array, Array]:
    """Return the coefficients of 1, x and x² in ln ρ_k: shapes ``(K,)``, ``(K, d)``, ``(K, d)``."""
    log_weights, means, precisions = natural(q)
    return log_weights - (precisions * means**2).sum(axis=1) / 2, precisions * means, -precisions / 2


def divergence(q: Components, prior: Prior) -> float:
    """Return KL(q(π, μ, λ) || p(π, μ, λ)), summed over components and columns."""
    alpha, K = q.alpha, q.alpha.size
    log_pi = digamma(alpha) - digamma(alpha.sum())
    of_weights = gammaln(alpha.sum()) - gammaln(alpha).sum() - gammaln(K * prior.alpha) + K * gammaln(prior.alpha)
    of_weights += ((alpha - prior.alpha) * log_pi).sum()
    a, b, beta = q.shape[:, None], q.rate, q.beta[:, None]
    of_means = (np.log(beta / prior.beta) - 1 + prior.beta / beta) / 2
    of_means = of_means + prior.beta * (a / b) * (q.mean - prior.mean) ** 2 / 2
    of_precisions = (a - prior.shape) * digamma(a) - gammaln(a) + gammaln(prior.shape)
    of_precisions = of_precisions + prior.shape * np.log(b / prior.rate) + a * (prior.rate - b) / b
    return float(of_weights + (of_means + of_precisions).sum())


def log_density(q: Components, z: Array) -> Array:
    """Return the log density of standardised rows ``(k, d)``, ``(k,)``, at the posterior mean of the parameters."""
    weights = q.alpha / q.alpha.sum()
    precisions = q.shape[:, None] / q.rate
    squares = (precisions * (z[:, None, :] - q.mean) ** 2).sum(axis=2)
    logs = np.log(weights) + (np.log(precisions / (2 * np.pi)).sum(axis=1) - squares) / 2
    return np.asarray(logsumexp(logs, axis=1))
