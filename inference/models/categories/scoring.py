"""A regression of categories from a few noisy sums of weighted scores, whatever the law of the features is.

    φ     the parameters, p in all; φ* the true ones; θ = B φ, as the statistic takes them       n   rows
    w t   what a row sends at a public θ_r in round r (`dca_proto.statistics.category_score`), beside its information

By the central limit theorem, with G_r the noisy sum of w t, and A_r that of the information, both divided by n,

    G_r = M_r(φ* + ζ) + e_r        ζ ~ N(0, D⁻¹ K D⁻¹/n): the same rows, in all rounds                             (1)
                                   e_r ~ N(0, N_r + Σ_j V_rij E(θ*_j - θ_rj)² + m_ri²)
    M_r(φ) = A_r (θ - θ_r) + [S_r(θ) - S'_r(θ_r) (θ - θ_r)]                                                        (2)

S_r(θ) is the mean of w t in rows that the trainer simulates, with categories drawn at θ; S' its derivative. So the
linear part is what clients send, and E[w t] = 0 at φ*, since w depends on features alone: nothing is assumed of the
features near the solution. Only the bend, in brackets, is simulated. (1) is linearised at the estimate until that
converges; with a normal prior (φ, ζ) has a normal posterior, from which ζ is integrated out.

**Simulated rows** (`Rows`) have the features' moments that the first round shows. A feature whose cubes are far out is
simulated as a rare category, as in `inference.models.survival.scoring`; the others are normal.

**The information** A_r has noise. Each entry is combined with the simulated one, which counts as accurate to `DOUBT` of
its size; V is the variance after that. K is that of the simulated rows, scaled by the clients' information.

**Margins.** m_ri is a third of the bend, and a tenth of the linear step, each relative to the sampling deviation of
its coordinate: the largest of all coordinates counts for each.

**Requests.** Each round asks at the best estimate so far. Its reach R and the information's weight v minimise the
effects' posterior variances in the simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import block_diag

from dca_proto.statistics.category_score import COUNT, Chances, chances_of, entries, reach_of, with_curves
from inference.models import score_regression
from inference.models.categories.model import Model
from inference.models.linear.closed_form import symmetric
from inference.models.score_regression import (
    FLOOR,
    TINY,
    WRONG,
    Normal,
    Prior,
    combined,
    doubt_left,
    positive,
    regressed,
    root,
    simulated_features,
    spread_points,
)
from inference.problem import Array

EFFECT_SD = 2.0  # of effects per standardised feature; without an order of all differences of two categories
CUBES, CURVES = 0.05, 0.7  # γ of the first round, u of the last
SIMULATED_LOG2, PLANNED_LOG2 = 10, 7  # log2 of the numbers of simulated rows, for results and for plans
DOUBT = 0.5  # of simulated entries of the information, relative to the root of their diagonal ones
NEAR = 0.1  # margin of a linear step, squared, relative to that of the bend
PASSES, CONVERGED, STEP_MAX = 40, 0.01, 1.0  # of the estimate: the most passes, the last step in sds, the longest
SETTLED = 1.1  # variances that the noise of the information is planned for, relative to those that follow
ASKED_MAX, EFFECTS_MAX = 5.0, 1.0  # from one request to the next: any parameter, and the effects together
WEIGHT_LEAST, DOUBTED = 0.05, 0.3  # mean weight of rows; noise in features' covariances from which these count less
SKEWED, FAR_MAX = 1.5, 30.0  # third moment from which a feature is simulated as a rare category, and its distance
QUANTILES = (0.3, 0.6, 0.85, 0.95, 1.0)  # of simulated norms: the candidates for a reach
WEIGHTS = (0.1, 0.3, 0.7)  # candidates for v, relative to the norms of score and information
FIRST_SD = 0.2  # assumed distance of each parameter from a request, for plans


class Request(NamedTuple):
    """θ_r, the reach R, and the weights v, γ and u."""

    theta: Array
    reach: float
    information: float
    cubes: float = 0.0
    curves: float = 0.0

    @property
    def clip(self) -> float:
        """The radius of the ball of all that a row sends."""
        return float(self.reach * np.sqrt(1 + COUNT**2))


@dataclass(frozen=True, eq=False)
class Released(score_regression.Released[Request]):
    """A round's result.

    Attributes:
        cubes: E[w x_j³], empty without γ.
        whole: score and information with those of curves, if they were sent (`categories.curves`).
    """

    cubes: Array
    whole: tuple[Array, Array] | None = None


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows that the trainer simulates.

    Attributes:
        mean, cov: of the features, ``(d,)`` and ``(d, d)``. far: how many scales out the rare values of a feature lie,
            on which side; 0 for a normal one, ``(d,)``. share: of the rows that count. doubt: sd of the noise in each
            entry of `cov`. log2: of their number.
    """

    mean: Array
    cov: Array
    far: Array
    share: float = 1.0
    doubt: float = 0.0
    log2: int = SIMULATED_LOG2

    @classmethod
    def unknown(cls, features: int) -> Rows:
        """Return standardised normal rows."""
        return cls(np.zeros(features), np.eye(features), np.zeros(features))

    @classmethod
    def like(cls, released: Released, model: Model, ends: Array) -> Rows:
        """Return rows with the moments that a round at effects of 0 shows.

        A column of mean 0 and variance 1 with values far and -1/far has the third moment far - 1/far.

        Args:
            ends: the public bounds of each feature, in scales from its centre, ``(2, d)``.
        """
        d, k = model.features, model.classes
        size, at_rest = d if model.ordered else d + 1, np.zeros((1, d))
        chances = chances_of(released.request.theta, at_rest, k, ordered=model.ordered)
        whole, found = entries(chances, at_rest)[0], released.information
        if model.ordered:
            f, q = whole[: k - 1].sum(), float((chances.each * chances.signs**2).sum())
            weight, doubt = found[: k - 1].sum() / f, 1 / q
            first = found[k - 1 : (k - 1) * (1 + d)].reshape(k - 1, d).sum(axis=0) / f
            second = symmetric(found[(k - 1) * (1 + 2 * d) :], d) / q
        else:
            pairs = found.reshape(-1, size * (size + 1) // 2).sum(axis=0)
            heads = whole.reshape(k * (k - 1) // 2, -1)[:, 0]
            squares, doubt = symmetric(pairs, size) / heads.sum(), np.sqrt(heads.size) / heads.sum()
            weight, first, second = squares[0, 0], squares[0, 1:], squares[1:, 1:]
        weight = max(float(weight), WEIGHT_LEAST)
        doubt *= float(np.sqrt(released.information_noise)) / weight
        known = min(1.0, (DOUBTED / max(doubt, TINY)) ** 2)  # features are about standardised
        mean = known * first / weight
        cov = positive(np.eye(d) + known * (second / weight - np.outer(mean, mean) - np.eye(d)))
        skew = released.cubes / weight / np.maximum(np.diag(cov), FLOOR) ** 1.5 if released.cubes.size else np.zeros(d)
        far = np.where(np.abs(skew) > SKEWED, (np.abs(skew) + np.sqrt(skew**2 + 4)) / 2 * np.sign(skew), 0.0)
        low, high = np.minimum(ends[0], -1.0), np.maximum(ends[1], 1.0)
        return cls(mean, cov, np.clip(np.clip(far, low, high), -FAR_MAX, FAR_MAX), _share(released), doubt)

    @cached_property
    def x(self) -> Array:
        """The features, shape ``(m, d)``."""
        points = spread_points(self.mean.size, self.log2)
        return self.mean + np.sqrt(np.diag(self.cov)) * simulated_features(points, self.cov, self.far)


def _share(released: Released) -> float:
    share, sd = released.complete
    return 1.0 if share > 1 - 3 * sd else max(share, FLOOR)


@dataclass(frozen=True, eq=False)
class Simulation:
    """What simulated rows send at a request's θ. Attributes: curves: u, if the model is one with curves; else 0."""

    model: Model
    rows: Rows
    theta: Array
    curves: float = 0.0

    @cached_property
    def x(self) -> Array:
        """The model's features."""
        return with_curves(self.rows.x, self.curves)

    @cached_property
    def answers(self) -> Array:
        """t, shape ``(m, K, size)``."""
        return self.model.answers(self.theta, self.x)

    @cached_property
    def entries(self) -> Array:
        """The information of each row."""
        return entries(self.at, self.x)

    @cached_property
    def at(self) -> Chances:
        """The chances at θ."""
        return chances_of(self.theta, self.x, self.model.classes, ordered=self.model.ordered)

    def norms(self, request: Request) -> Array:
        """The largest norm that each row may send before its weight."""
        seen = with_curves(self.rows.x, request.curves)
        of_entries = (entries(self.at, seen) if request.curves else self.entries) ** 2
        squares = reach_of(self.at, seen) + request.information**2 * of_entries.sum(axis=1)
        return np.asarray(np.sqrt(squares + request.cubes**2 * (self.rows.x**6).sum(axis=1)))

    def shorter(self, request: Request) -> Array:
        """w of each row, ``(m,)``."""
        return np.minimum(1.0, request.reach / self.norms(request))

    def weights(self, request: Request) -> Array:
        """w of each row, times the share of rows that count, divided by their number."""
        shorter = self.shorter(request)
        return self.rows.share * shorter / shorter.size

    def moments(self, request: Request, drawn: Array) -> tuple[Array, Array]:
        """Return E[w t], and its derivative by φ, of categories drawn at θ = ``drawn``."""
        each, by = self.model.moves(drawn, self.x)
        sent = self._sent(request)
        return each.ravel() @ sent, sent.T @ by.reshape(-1, by.shape[2])

    def _sent(self, request: Request) -> Array:
        """w t of each row in each category, ``(m K, size)``; that of the last request is kept."""
        key = request[1:]
        if self._kept.get("key") != key:
            weighted = self.weights(request)[:, None, None] * self.answers
            self._kept.update(key=key, sent=weighted.reshape(-1, weighted.shape[2]))
        found: Array = self._kept["sent"]
        return found

    @cached_property
    def _kept(self) -> dict[str, Any]:
        return {}

    def cov(self, request: Request) -> Array:
        """Return E[w² t tᵀ] of categories drawn at the request's θ."""
        weights = self.weights(request)
        squared = weights**2 * weights.size / self.rows.share
        weighted = (squared[:, None] * self.at.each).reshape(-1, 1)
        flat = self.answers.reshape(-1, self.answers.shape[2])
        return np.asarray(flat.T @ (weighted * flat))


@dataclass(frozen=True, eq=False)
class Part:
    """A round's terms of equations (1) and (2): the clients' sums combined with simulated rows.

    Attributes:
        curves: as in `Simulation`.
    """

    model: Model
    released: Released
    rows: Rows
    curves: float = 0.0

    @cached_property
    def simulation(self) -> Simulation:
        """Simulated rows at θ_r."""
        return Simulation(self.model, self.rows, self.released.request.theta, self.curves)

    @cached_property
    def _expected(self) -> tuple[Array, Array]:
        """Simulated entries of the information, and their squared doubt."""
        expected = self.simulation.weights(self.released.request) @ self.simulation.entries
        return expected, (DOUBT * self.model.sizes(expected)) ** 2

    @cached_property
    def information(self) -> Array:
        """The entries of A."""
        (expected, before), noise = self._expected, self.released.information_noise
        return combined(self.released.information, noise, expected, before)

    @cached_property
    def slope(self) -> Array:
        """A by φ."""
        return self.by_phi(self.information)

    def by_phi(self, information: Array) -> Array:
        return np.asarray(self.model.contrasts.T @ self.model.matrix(information) @ self.model.basis)

    @cached_property
    def doubt(self) -> Array:
        """The variances of the terms of A that are left, as they add up for each score and each θ."""
        before, noise = self._expected[1], self.released.information_noise
        return np.asarray(self.model.contrasts.T**2 @ self.model.matrix(doubt_left(noise, before), squared=True))

    @property
    def score(self) -> Array:
        """G by `Model.contrasts`."""
        return np.asarray(self.released.score @ self.model.contrasts)

    @cached_property
    def bend_at_rest(self) -> Array:
        """The derivative by φ of the simulated mean, at θ_r."""
        return self.simulation.moments(self.released.request, self.released.request.theta)[1]

    @cached_property
    def cov(self) -> Array:
        """K: the simulated one in coordinates in which the information of effects is the simulated one."""
        first = self.model.heads if self.model.ordered else 0
        own, simulated = (self.by_phi(one)[first:, first:] for one in (self.information, self._expected[0]))
        across = block_diag(np.eye(first), root(own, 0.5) @ root(simulated, -0.5))
        return np.asarray(positive(across @ self.simulation.cov(self.released.request) @ across.T))

    def at(self, near: Array, cov: Array) -> tuple[Array, Array, Array]:
        """Return M, its derivative by φ, and the variances of e_r, at φ* = near, known up to this covariance."""
        drawn, asked = self.model.theta(near), self.released.request.theta
        step = drawn - asked
        phi, apart = self.model.phi(step), np.einsum("ij,jk,ik->i", self.model.basis, cov, self.model.basis)
        mean, slope = self.simulation.moments(self.released.request, drawn)
        linear, bend = self.slope @ phi, mean - self.bend_at_rest @ phi
        sd = np.sqrt(np.maximum(np.diag(self.cov), FLOOR * np.trace(self.cov) / len(self.cov)))
        margin = WRONG**2 * (np.max((bend / sd) ** 2) + NEAR * np.max((linear / sd) ** 2)) * sd**2
        of_entries = self.doubt @ (step**2 + apart)
        return linear + bend, self.slope + slope - self.bend_at_rest, self.released.noise + of_entries + margin


def posterior(rounds: Sequence[Released], rows: Rows, n: float, model: Model, prior: Prior) -> Normal:
    """Return the posterior of φ given the rounds, at least one. Args: rows: simulated, as the first round shows."""
    parts = [Part(model, one, rows) for one in rounds]
    near = model.phi(rounds[-1].request.theta)
    cov = np.diag(1 / prior.precision)
    for count in range(PASSES):
        result = _regressed(parts, n, prior, Normal(near, cov))
        cov = (cov + result.cov) / 2
        step = result.mean - near
        spread = np.all(np.diag(cov) < SETTLED * np.diag(result.cov))  # without effects, the step alone ends at once
        if spread and np.all(np.abs(step) < CONVERGED * np.sqrt(np.diag(result.cov))):
            break
        near = near + np.clip(step, -STEP_MAX, STEP_MAX) * (1.0 if count < PASSES // 2 else 0.5)
    return Normal(result.mean, result.cov)


def _regressed(parts: Sequence[Part], n: float, prior: Prior, about: Normal) -> Normal:
    """Solve equation (1), linearised at the estimate so far, as a linear regression, ζ integrated out."""
    seen, slopes, near = [], [], about.mean
    for part in parts:
        mean, slope, variances = part.at(near, about.cov)
        slopes.append(slope)
        variances = variances + FLOOR * np.diag(part.cov) / n
        seen.append((slope, 1 / variances, part.score - mean + slope @ _inside(part.model, near)))
    last = parts[-1].cov
    cov = last + FLOOR * float(np.trace(last)) / len(last) * np.eye(len(last))
    return regressed(prior, n * slopes[-1].T @ np.linalg.solve(cov, slopes[-1]), seen)


def _inside(model: Model, near: Array) -> Array:
    """Return φ with thresholds that increase."""
    return np.asarray(model.theta(near) if model.ordered else near)


def next_theta(rounds: Sequence[Released], rows: Rows, n: float, model: Model) -> Array:
    """Return where the next round asks."""
    found = posterior(rounds, rows, n, model, model.prior(EFFECT_SD))
    asked = model.phi(rounds[-1].request.theta)
    step, effects = np.clip(found.mean - asked, -ASKED_MAX, ASKED_MAX), model.effects
    step[effects] *= min(1.0, EFFECTS_MAX / max(float(np.linalg.norm(step[effects])), TINY))
    return model.theta(asked + step)


def best_request(
    rows: Rows,
    theta: Array,
    n: float,
    noise_per_sensitivity: float,
    model: Model,
    *,
    cubes: float = 0.0,
    curves: float = 0.0,
) -> Request:
    """Return the request at θ with the reach and the weight of least loss.

    Args:
        noise_per_sensitivity: sd of the round's noise for each unit of the sensitivity.
    """
    few = replace(rows, log2=PLANNED_LOG2)
    simulation, prior = Simulation(model, few, theta), np.diag(model.prior(EFFECT_SD).precision)
    norms = simulation.norms(Request(theta, np.inf, 0.0))
    typical = float(np.median(norms) / np.median(np.linalg.norm(simulation.entries, axis=1)))
    best, least = None, np.inf
    for weight in WEIGHTS:
        whole = Request(theta, np.inf, weight * typical, cubes, curves)
        for reach in np.quantile(simulation.norms(whole), QUANTILES):
            request = whole._replace(reach=float(reach))
            _, slope = simulation.moments(request, theta)
            cov, noise = simulation.cov(request), (2 * request.clip * noise_per_sensitivity / n) ** 2
            expected = simulation.weights(request) @ simulation.entries
            of_entries = noise / request.information**2
            before = (DOUBT * model.sizes(expected)) ** 2
            doubt = model.matrix(before * of_entries / (before + of_entries), squared=True).sum(axis=1)
            known = FIRST_SD**2 * (model.contrasts.T**2 @ doubt)
            error = cov / n + np.diag(noise + known) + FLOOR * np.trace(cov) / n * np.eye(len(cov))
            found = np.linalg.inv(slope.T @ np.linalg.solve(error, slope) + prior)
            loss = float(np.log(np.diag(found)[model.effects]).sum())
            if loss < least:
                best, least = request, loss
    assert best is not None, "there are candidates"
    return best
