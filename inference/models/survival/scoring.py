"""Proportional hazards from a few noisy sums of weighted scores, whatever the law of features and of censoring.

    θ     ln λ_k l_k of each interval, then the effects β; θ* the true one       n   rows
    w s   what a row sends at a public θ_r in round r (`dca_proto.statistics.survival_score`), beside its information

By the central limit theorem, with G_r the noisy sum of w s, and A_r that of the information, both divided by n,

    G_r = D_r (θ* + ζ - θ_r) + e_r        ζ ~ N(0, D⁻¹ K D⁻¹/n): the same rows, in all rounds                     (1)
                                          e_r ~ N(0, N_r + Σ_j V_rij (θ*_j - θ_rj)² + m_r²)

This is a linear regression with known noise, as in `inference.models.glm.scoring`: with a normal prior (θ, ζ) has a
normal posterior, from which ζ is integrated out. D_r = E[w·information] is what clients themselves send, and E[w s] = 0
at θ*, since w depends on features alone. So nothing is assumed about features or censoring.

**The information** A_r has noise. It is combined with D of rows that the trainer simulates (`Rows`): normal features
with the moments that the first round showed. The simulated entries count as accurate to half of √(D_ii D_jj); V_rij is
the variance of an entry after that. With many rows only A_r matters; with few, the step stays sane.

**Rare values** lie as far out as the first round's cubes show, within what the public bounds allow: of a binary column
these leave no doubt. With 5,000 rows at epsilon 2, noise alone put a 10 % binary's up to 12 scales out instead of 2.7,
and 95 % intervals of a log hazard ratio of 1 held in 76 %.

**The sampling variance** K = Cov[w s] has the correlations of D. Its diagonal is that of the squares that clients send,
so it holds for features of any law, and for hazards that are not quite proportional. It is combined with the simulated
one in the same way.

**Margins.** (1) is the first term of a series. Its relative error grows with the distance, so m_r is a third of the
distance |θ* - θ_r| times the largest coordinate of the step D_r (θ* - θ_r), as for the other regressions.

**Curves.** Rounds weigh rows far out less. So if the log hazard is curved in a skewed feature, they learn another slope
than the likelihood of all rows. From the second round on clients also send the score of each feature's square, which
shows that (`curvature`); the result warns. It makes standard deviations 3 to 11 % larger.

**Requests.** Each round asks at the best estimate so far. Its reach R and the information's weight v minimise the
effects' posterior variance in the simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dca_proto.statistics.survival_score import COUNT, CUBES, contrasts, curved, entries, longest
from inference.models import score_regression
from inference.models.linear.closed_form import symmetric
from inference.models.score_regression import (
    TINY,
    WRONG,
    Normal,
    Prior,
    combined,
    doubt_left,
    positive,
    regressed,
    simulated_features,
    spread_points,
)
from inference.models.survival import codes as guess

Array = NDArray[Any]
LOG_HAZARD_SD, EFFECT_SD = 3.0, 2.5
SIMULATED_LOG2 = 11  # log2 of the number of simulated rows
SQUARES = 0.3  # κ: raises the noise by 4 %
DOUBT = 0.5  # of simulated entries, relative to the root of their diagonal ones
NEAR = 0.02  # the least squared distance of the margin
PASSES, CONVERGED = 30, 0.003
FIRST_SD = 0.5  # assumed distance of each parameter from the first request
STEP_MAX = 1.0  # of the effects together, from one request to the next
ASKED_SD = 1.0  # prior of effects, for requests
SKEWED, RARE_MAX = 1.5, 30.0  # a feature whose cubes are this far out is simulated as a rare category, up to the latter
BEND_MAX = 4.0  # largest change of a log hazard that the curvature is followed for
EXPOSED_LEAST = 0.05  # smallest factor, and one over the largest
CURVES = 0.5  # weight of the score of a curve, for a feature without rare values; less for others, by how far out
HIDDEN = 3.0  # standard deviations of noise below which information is hidden
QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.85, 0.95, 0.99, 1.0)  # of simulated norms: the candidates for a reach
WEIGHTS = (0.03, 0.06, 0.12, 0.25, 0.5, 1.0)  # candidates for v, relative to the norms of score and information


class Request(NamedTuple):
    """θ_r, the reach R, the weight v, and those of curves; none in the first round."""

    theta: Array
    reach: float
    information: float
    curves: tuple[float, ...] = ()

    @property
    def clip(self) -> float:
        """The radius of the ball of all that a row sends."""
        return float(self.reach * np.sqrt(1 + SQUARES**2 + COUNT**2))


@dataclass(frozen=True, eq=False)
class Released(score_regression.Released[Request]):
    """A round's result.

    Attributes:
        squares: E[w² s²] of each score.
        curves, curve_squares: sums of w x_j² Σ (d_k - h_k) and of its square, for each feature; empty if not asked for.
    """

    squares: Array
    curves: Array
    curve_squares: Array


def prior_of(intervals: int, effect_sd: Array) -> Prior:
    """Return the prior: log hazards about those with which half of the rows have an event, effects about 0."""
    mean = np.r_[np.full(intervals, np.log(-np.log(guess.SURVIVORS) / intervals)), np.zeros(effect_sd.size)]
    return Prior(mean, np.r_[np.full(intervals, LOG_HAZARD_SD), effect_sd] ** -2.0)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows that the trainer simulates, with normal features.

    Attributes:
        intervals: K. shares: of all groups, shape ``(G,)``. mean, cov: of the features, ``(d,)`` and ``(d, d)``.
        rare: of each feature, how many scales out its rare values lie; 0 for a normal one.
        ends: the public bounds of each feature, in scales from its centre: shape ``(2, d)``.
        exposure: how much longer than guessed rows live through each interval, a factor, ``(K,)``.
        seen: whether the moments are those of a round.
    """

    intervals: int
    shares: Array
    mean: Array
    cov: Array
    rare: Array
    ends: Array
    exposure: Array = field(default_factory=lambda: np.ones(1))
    seen: bool = False

    @classmethod
    def unknown(cls, intervals: int, shares: Array, ends: Array) -> Rows:
        """Return rows with standardised features and these shares of groups."""
        d = ends.shape[1]
        return cls(intervals, shares, np.zeros(d), np.eye(d), np.zeros(d), ends)

    def like(self, released: Released) -> Rows:
        """Return rows with the moments that a round at β = 0 shows.

        A column of mean 0 and variance 1 within -l and u has a third moment of 1/l - l to u - 1/u; for a binary one,
        these are equal.
        """
        k, groups, effects = self.intervals, self.shares.size, self.shares.size - 1 + self.mean.size
        part = Part(released, self)
        hazard = part.information[:k].sum()
        first = part.information[k : k + k * effects].reshape(k, effects).sum(axis=0) / hazard
        second = part.slope[k:, k:] / hazard
        mean, g = first[groups - 1 :], slice(groups - 1, None)
        low, high = np.minimum(self.ends[0], -TINY), np.maximum(self.ends[1], TINY)
        most = high - 1 / high
        rare = np.clip(part.skew[k:][g], np.minimum(low - 1 / low, most), most)
        rare = np.where(np.abs(rare) > SKEWED, np.clip(rare, -RARE_MAX, RARE_MAX), 0.0)
        return Rows(k, self.shares, mean, positive(second[g, g] - np.outer(mean, mean)), rare, self.ends, seen=True)

    def exposed(self, rounds: Sequence[Released]) -> Rows:
        """Return rows that live through each interval as long as the rounds show, about as guessed without them."""
        k, precision = self.intervals, np.full(self.intervals, DOUBT**-2)
        pull = precision.copy()
        for one in rounds:
            guessed = Simulation(self, one.request.theta, one.request.curves).expected(one.request).information[:k]
            precision += guessed**2 / one.information_noise
            pull += guessed * one.information[:k] / one.information_noise
        return replace(self, exposure=np.clip(pull / precision, EXPOSED_LEAST, 1 / EXPOSED_LEAST))

    @cached_property
    def x(self) -> Array:
        """Effects' columns, shape ``(m, G - 1 + d)``."""
        points = spread_points(self.mean.size + 1, SIMULATED_LOG2)
        x = simulated_features(points[:, 1:], self.cov, self.rare)
        features = np.where(self.rare == 0, self.mean + np.sqrt(np.diag(self.cov)) * x, x)
        group = np.searchsorted(np.cumsum(self.shares)[:-1], np.clip(points[:, 0], TINY, 1 - TINY)).astype(float)
        return features if self.shares.size == 1 else np.hstack([contrasts(group, self.shares[1:]), features])

    @cached_property
    def terms(self) -> Array:
        """The terms of x that the information has."""
        return entries(self.x)


class Expected(NamedTuple):
    """Means in the simulation: of w and of w² times the information's entries."""

    information: Array
    squared: Array


@dataclass(frozen=True, eq=False)
class Simulation:
    """What simulated rows send at θ."""

    rows: Rows
    theta: Array
    curves: tuple[float, ...] = ()

    @cached_property
    def _whole(self) -> Array:
        k = self.rows.intervals
        log_hazard = self.theta[:k] + (self.rows.x @ self.theta[k:])[:, None]
        return np.asarray(np.exp(np.minimum(log_hazard, 30.0)))

    @cached_property
    def entries(self) -> Array:
        """The expected entries of each row's information given its features, with the guessed censoring."""
        k, x = self.rows.intervals, self.rows.x
        censoring = np.full(k, np.log(-np.log(1 - guess.CENSORED) / k))
        events = cell_probabilities(np.log(self._whole), censoring + 0 * self._whole)[:, :k] * self.rows.exposure
        crossed = (events[:, :, None] * x[:, None, :]).reshape(len(x), -1)
        return np.hstack([events, crossed, events.sum(axis=1)[:, None] * self.rows.terms])

    def norms(self, information: float) -> Array:
        """The largest norm that each row may send before its weight."""
        if information not in self._norms:
            curves = curved(self.rows.x[:, -self.rows.mean.size :], self.curves)
            self._norms[information] = longest(self._whole, self.rows.x, self.rows.terms, information, curves)
        return self._norms[information]

    @cached_property
    def _norms(self) -> dict[float, Array]:
        return {}

    def expected(self, request: Request) -> Expected:
        weight = np.minimum(1.0, request.reach / self.norms(request.information))
        return Expected(weight @ self.entries / weight.size, weight**2 @ self.entries / weight.size)


def cell_probabilities(log_hazard: Array, log_censoring: Array) -> Array:
    """Return the probabilities of an event and of censoring in each interval, and of neither: ``(..., 2K + 1)``."""
    hazard, censoring = np.exp(log_hazard), np.exp(log_censoring)
    leave = hazard + censoring
    left = np.exp(-np.concatenate([np.zeros((*leave.shape[:-1], 1)), np.cumsum(leave, axis=-1)], axis=-1))
    within = left[..., :-1] * -np.expm1(-leave) / leave
    return np.concatenate([within * hazard, within * censoring, left[..., -1:]], axis=-1)


def matrix(vector: Array, intervals: int, effects: int) -> Array:
    """Return the information, shape ``(p, p)``, from its entries: h_k, h_k x, and the unique terms of x xᵀ Σ h_k."""
    k, start = intervals, intervals * (1 + effects)
    end = start + effects * (effects + 1) // 2
    crossed = vector[k:start].reshape(k, effects)
    return np.block([[np.diag(vector[:k]), crossed], [crossed.T, symmetric(vector[start:end], effects)]])


@dataclass(frozen=True, eq=False)
class Part:
    """A round's D, the variances of its entries, and K: the clients' sums combined with simulated rows."""

    released: Released
    rows: Rows

    @cached_property
    def _expected(self) -> Expected:
        one = self.released.request
        return Simulation(self.rows, one.theta, one.curves).expected(one)

    @cached_property
    def _shape(self) -> tuple[int, int]:
        return self.rows.intervals, self.rows.x.shape[1]

    @cached_property
    def _prior_variance(self) -> Array:
        own = np.diag(matrix(self._expected.information, *self._shape))
        cubes = (CUBES * own[self.rows.intervals :]) ** 2  # as for rare values one scale out
        return np.asarray(np.r_[entries_of(DOUBT**2 * np.outer(own, own), *self._shape), cubes])

    @cached_property
    def information(self) -> Array:
        """The entries of D."""
        noise, before = self.released.information_noise, self._prior_variance
        return combined(self.released.information, noise, self._expected.information, before)

    @cached_property
    def slope(self) -> Array:
        """D."""
        return np.asarray(positive(matrix(self.information, *self._shape)))

    @cached_property
    def skew(self) -> Array:
        """a: how the log of each diagonal entry of D grows with its parameter; for a log hazard 1.

        A feature's is a mean of its values, so it lies within their public bounds.
        """
        k, cubes = self.rows.intervals, self.information[-self._shape[1] :] / CUBES
        found = cubes / np.diag(self.slope)[k:]
        g = slice(found.size - self.rows.mean.size, None)
        found[g] = np.clip(found[g], *self.rows.ends)
        return np.asarray(np.r_[np.ones(k), found])

    def bent(self, near: Array) -> tuple[Array, Array]:
        """Return E[w s] and its negative derivative at θ* = near: shapes ``(p,)`` and ``(p, p)``."""
        step, own = near - self.released.request.theta, np.diag(self.slope)
        growth = np.clip(self.skew * step, -BEND_MAX, BEND_MAX)
        small = np.abs(growth) < 1e-6
        average = np.where(small, 1.0, np.expm1(growth) / np.where(small, 1.0, growth))
        return self.slope @ step + own * (average - 1) * step, self.slope + np.diag(own * np.expm1(growth))

    @cached_property
    def hidden(self) -> NDArray[np.bool_]:
        """For which parameters noise hides the information."""
        sd = np.sqrt(self.released.information_noise)
        return np.asarray(np.diag(matrix(self.released.information, *self._shape)) < HIDDEN * sd)

    @cached_property
    def variances(self) -> Array:
        """V: of the entries of D, shape ``(p, p)``."""
        noise, before = self.released.information_noise, self._prior_variance
        found = matrix(doubt_left(noise, before), *self._shape)
        k = self.rows.intervals
        found[:k, :k] *= np.eye(k)  # known to be 0
        return np.asarray(found)

    @cached_property
    def cov(self) -> Array:
        """K."""
        own, squared = np.diag(self.slope), np.diag(matrix(self._expected.squared, *self._shape))
        simulated = np.diag(matrix(self._expected.information, *self._shape))
        prior = squared * own / np.maximum(simulated, TINY)
        before = (DOUBT * prior) ** 2
        noise = self.released.noise * (self.released.request.reach / SQUARES) ** 2
        found = combined(self.released.squares, noise, prior, before)
        scale = np.sqrt(np.maximum(found, TINY * own) / own)
        return np.asarray(positive(scale[:, None] * self.slope * scale))

    def error(self, near: Array) -> Array:
        """The variances of e_r, shape ``(p,)``. Args: near: an estimate of θ*."""
        return error(self.released.noise, self.slope, self.variances, (near - self.released.request.theta) ** 2)


def entries_of(square: Array, intervals: int, effects: int) -> Array:
    """The inverse of `matrix`."""
    k = intervals
    return np.asarray(np.r_[np.diag(square)[:k], square[:k, k:].ravel(), square[k:, k:][np.triu_indices(effects)]])


def error(noise: float, slope: Array, variances: Array, apart: Array) -> Array:
    """Return the variances of e_r. Args: apart: (θ* - θ_r)² of each parameter."""
    step = float((slope**2 @ apart).max())
    return np.asarray(noise + variances @ apart + WRONG**2 * max(NEAR, float(apart.sum())) * step)


def posterior(rounds: Sequence[Released], rows: Rows, n: float, prior: Prior) -> Normal:
    """Return the posterior of θ given the rounds, at least one. Args: rows: simulated, as the first round shows."""
    parts = [Part(one, rows) for one in rounds]
    near = rounds[-1].request.theta
    for _ in range(PASSES):
        result = _regressed(parts, n, prior, near)
        step = result.mean - near
        if np.abs(step).max() < CONVERGED:
            break
        most = STEP_MAX / np.maximum(np.abs(parts[-1].skew), 1.0)  # one unit of the rare rows' log hazards
        near = near + np.clip(step, -most, most)
    return result


def _regressed(parts: Sequence[Part], n: float, prior: Prior, near: Array) -> Normal:
    """Solve equation (1) as a linear regression, ζ integrated out."""
    last = parts[-1]
    rounds = []
    for part in parts:
        mean, slope = part.bent(near)
        errors = part.error(near) + TINY * float(np.trace(part.slope)) ** 2
        rounds.append((slope, 1 / errors, part.released.score - mean + slope @ near))
    return regressed(prior, n * last.slope.T @ np.linalg.solve(last.cov, last.slope), rounds)


def next_theta(rounds: Sequence[Released], rows: Rows, n: float, prior: Prior) -> Normal:
    """Return where the next round asks, with the covariance of θ* about it. Args: prior: for requests only."""
    asked, k = rounds[-1].request.theta, rows.intervals
    first = prior.mean.size - rows.rare.size
    rare = np.r_[np.ones(first), np.maximum(np.abs(rows.rare), 1.0)]  # so that rare values keep a usual hazard
    found = posterior(rounds, rows, n, Prior(prior.mean, prior.precision * rare**2))
    step = found.mean - asked
    step[k:] *= min(1.0, STEP_MAX / max(float(np.linalg.norm(step[k:])), TINY))
    return Normal(asked + np.clip(step, -5.0, 5.0), found.cov)


def best_request(rows: Rows, about: Normal, n: float, noise_per_sensitivity: float, prior: Prior) -> Request:
    """Return the request at θ = about.mean with the reach and the weight of least loss.

    Args:
        about: the law of θ* so far. noise_per_sensitivity: sd of the round's noise for each unit of the sensitivity.
    """
    curves = tuple(map(float, CURVES / np.maximum(np.abs(rows.rare), 1.0))) if rows.seen else ()
    simulation, k, effects = Simulation(rows, about.mean, curves), rows.intervals, rows.x.shape[1]
    curved = np.linalg.norm(simulation.entries, axis=1)
    typical = float(np.median(simulation.norms(0.0)) / np.median(curved))
    apart, best, least = np.diag(about.cov), None, np.inf
    for weight in WEIGHTS:
        for reach in np.quantile(simulation.norms(weight * typical), QUANTILES):
            request = Request(about.mean, float(reach), weight * typical, curves)
            expected = simulation.expected(request)
            slope, cov = (matrix(entries, k, effects) for entries in expected)
            noise = (2 * request.clip * noise_per_sensitivity / n) ** 2
            before = DOUBT**2 * np.outer(np.diag(slope), np.diag(slope))
            of_entries = noise / request.information**2
            known = before * of_entries / (before + of_entries)
            known[:k, :k] *= np.eye(k)
            gain = slope.T @ np.linalg.inv(cov / n + np.diag(error(noise, slope, known, apart)))
            loss = float(np.trace(np.linalg.inv(gain @ slope + np.diag(prior.precision))[k:, k:]))
            if loss < least:
                best, least = request, loss
    assert best is not None, "there are candidates"
    return best


class Fitted(NamedTuple):
    """Rows in the model's terms: x, the share of each interval that a row lived through, and its events."""

    x: Array
    lived: Array
    events: Array


def most_likely(rows: Fitted, prior: Prior) -> Normal:
    """Return the posterior of raw rows: its mode by Newton's method, and the inverse curvature there."""
    k, theta = rows.events.shape[1], prior.mean.copy()
    exposed = rows.lived.sum(axis=0)
    theta[:k] = np.log(np.maximum(rows.events.sum(axis=0), 0.5) / np.maximum(exposed, 0.5))
    value, step = -np.inf, np.zeros_like(theta)
    for _ in range(100):
        predictor = rows.x @ theta[k:]
        hazard = rows.lived * np.exp(np.minimum(theta[:k] + predictor[:, None], 50.0))
        left = rows.events - hazard
        total = hazard.sum(axis=1)
        score = np.r_[left.sum(axis=0), rows.x.T @ left.sum(axis=1)] + prior.precision * (prior.mean - theta)
        crossed = hazard.T @ rows.x
        information = np.block([[np.diag(hazard.sum(axis=0)), crossed], [crossed.T, (rows.x.T * total) @ rows.x]])
        curvature = information + np.diag(prior.precision)
        now = float(rows.events.sum(axis=0) @ theta[:k] + rows.events.sum(axis=1) @ predictor - total.sum())
        now -= 0.5 * float(prior.precision @ (theta - prior.mean) ** 2)
        if now < value - 1e-9 * abs(value):
            step = step / 2
            theta = theta - step
            continue
        value, step = now, np.linalg.solve(curvature, score)
        step *= min(1.0, 2.0 / float(np.abs(step).max() + TINY))
        theta = theta + step
        if np.abs(step).max() < 1e-9:
            break
    return Normal(theta, np.asarray(np.linalg.inv(curvature)))
