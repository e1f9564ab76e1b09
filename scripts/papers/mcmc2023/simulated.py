"""Simulated data, and the runs that Figures 2 and 4 of the third paper are made of (section 5.1).

    V    d × d independent normals, Λ = VᵀV        θ ~ N(0, I),  Σ_x ~ IW(Λ, d + 1)
    x ~ N(0, Σ_x),  y = xᵀθ + N(0, 1)              n = 10⁵ rows for d = 2 and d = 5, as in the code and Figure 2

One data set for each d serves all, and the prior knows its Λ. How hard it is depends on Σ_x, and the authors' is not
known, but for one thing: without privacy, squared errors of θ add up to tr(Σ_x⁻¹)/n and those of predictions to d/n on
average, and Figure 2 prints both. Of `CANDIDATES` draws of Σ_x that one is taken in which this comes nearest.

**As published**, ‖X‖ and ‖Y‖ are the largest of the rows and the noise is the published one (`releases`), which is not
private as claimed. **Valid**, a row is within four standard deviations of the population: features in a ball, along the
direction that varies most, and the target; noise is for the replacement of a row, by the exact mechanism, in a local
round. Here who simulates knows what is public.

A run is one method at one J and all ε: its 50 repeats at each ε are sampled together. As published the prior is in
conflict with the data: θ_j ~ N(0, 0.026) and σ_y² ~ IG(20, 0.5), whose mean is 0.026, for θ_j ~ N(0, 1) and σ_y² = 1.
The valid setting has the prior that θ is drawn from, and IG(2, 1) for σ_y².
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dca_proto.privacy.budget import Budget
from inference.models.linear.nodes.fixed_s_fast import SD, VARIANCE, crude_sigma_y2
from inference.models.linear.nodes.observed import NodeStatistics, Prior
from inference.problem import Array, stream
from papers.experiment import F
from papers.mcmc2023 import fits, releases
from papers.mcmc2023.data import PUBLISHED, Statistics, blocks
from papers.mcmc2023.paper import ADASSP, BERNSTEIN_SHELDON, EPSILONS, NODES, NON_PRIVATE, REPEATS

ROWS, DELTA = 100_000, 1e-5
SDS, CANDIDATES = 4.0, 100
PRIOR_A, PRIOR_B = 20.0, 0.5


@dataclass(frozen=True, eq=False)
class Population:
    """What the rows are drawn from, and the rows: ``X`` (n, d) and ``y`` (n,)."""

    theta: Array
    Sigma_x: Array
    Lambda: Array
    X: Array
    y: Array

    @property
    def bounds(self) -> tuple[float, float]:
        """‖X‖ and ‖Y‖ as published: the largest of the rows."""
        return float(np.linalg.norm(self.X, axis=1).max()), float(np.abs(self.y).max())

    @property
    def public(self) -> tuple[float, float]:
        """Radius of the features and bound of the target in the valid setting."""
        largest = float(np.linalg.eigvalsh(self.Sigma_x)[-1])
        return SDS * math.sqrt(largest), SDS * math.sqrt(float(self.theta @ self.Sigma_x @ self.theta) + 1)


class Run(NamedTuple):
    """What a method found at J nodes, for all ε and R repeats."""

    mean: Array  # of θ's posterior, or its estimate, (ε, R, d)
    theta: Array | None  # draws of it after warm-up, (ε, R, draws, d), of a sampler
    cov: Array | None  # of θ in closed form, (ε, R, d, d), where there is one
    report: dict[str, Any]  # of the sampler


class Work(NamedTuple):
    """A run to make; iterations of a sampler, 0 of other methods."""

    setting: str
    d: int
    nodes: int
    method: str
    iterations: int = 0

    def __str__(self) -> str:
        return fits.named(self.setting, f"d = {self.d}", *self[2:])


@lru_cache(maxsize=4)
def population(d: int, seed: int, rows: int = ROWS) -> Population:
    """The data set of d features."""
    rng = stream(seed, f"distributed/simulated/{d}")

    def covariance() -> tuple[Array, Array]:
        """Λ and Σ_x."""
        V = rng.standard_normal((d, d))
        return V.T @ V, inverse_wishart(V.T @ V, d + 1, rng)

    Lambda, Sigma_x = min((covariance() for _ in range(CANDIDATES)), key=lambda one: _unlikeness(one[1]))
    theta = rng.standard_normal(d)
    X = rng.standard_normal((rows, d)) @ np.linalg.cholesky(Sigma_x).T
    return Population(theta, Sigma_x, Lambda, X, X @ theta + rng.standard_normal(rows))


def _unlikeness(Sigma_x: Array) -> float:
    """How far tr(Σ_x⁻¹)/d is from what the paper's non-private errors say of it, as a logarithm."""
    estimation, prediction = NON_PRIVATE[len(Sigma_x)]
    return abs(math.log(float(np.trace(np.linalg.inv(Sigma_x))) * prediction / (len(Sigma_x) ** 2 * estimation)))


def inverse_wishart(Lambda: Array, degrees: int, rng: np.random.Generator) -> Array:
    """The inverse of Σ ggᵀ over so many g ~ N(0, Λ⁻¹)."""
    normals = rng.standard_normal((degrees, len(Lambda))) @ np.linalg.cholesky(np.linalg.inv(Lambda)).T
    return np.asarray(np.linalg.inv(normals.T @ normals), float)


def complete_rows(rng: np.random.Generator, n: int, least: int, missing: float, count: int) -> Array:
    """How many of n rows have all their values: ``count`` draws of p(m) ∝ exp(-(n - m)/(n missing)), m >= ``least``."""
    possible = np.arange(least, n + 1)
    weights = np.exp((possible - n) / (missing * n))
    return np.asarray(rng.choice(possible, size=count, p=weights / weights.sum()))


def non_private(of: Population) -> tuple[Array, Array, float, float]:
    """The conjugate posterior without privacy: μ_n and A_n⁻¹ of θ ~ N(μ_n, σ_y² A_n⁻¹), a_n and b_n of σ_y² ~ IG."""
    precision = of.X.T @ of.X + PRIOR_B / (PRIOR_A - 1) * np.eye(len(of.theta))  # as the published code has it
    mean, spread = np.linalg.solve(precision, of.X.T @ of.y), np.linalg.inv(precision)
    b = PRIOR_B + 0.5 * float(of.y @ of.y - mean @ precision @ mean)
    return np.asarray(mean, float), np.asarray(spread, float), PRIOR_A + len(of.y) / 2, max(b, PRIOR_B)


@dataclass(frozen=True, kw_only=True)
class SimulatedExperiment(fits.DistributedExperiment[Work, F]):
    """Runs on the simulated data of so many `features`, of which a figure takes measures."""

    QUICK: ClassVar = {"repeats": 5, "epsilons": (0.1, 1.0, 10.0), "nodes": (5,), "iterations": 400}
    DEPENDS = ("seed", "repeats", "epsilons")

    repeats: int = REPEATS
    epsilons: tuple[float, ...] = EPSILONS
    nodes: tuple[int, ...] = NODES
    features: tuple[int, ...] = (2, 5)

    def cells(self) -> list[Work]:
        return [
            Work(setting, d, nodes, method, iterations)
            for setting in self.setting
            for d in self.features
            for nodes in self.nodes
            for method, iterations in self.lengths().items()
        ]

    def cost(self, cell: Work) -> float:
        return fits.cost(cell.method, cell.iterations, cell.nodes, cell.d)

    def made(self, work: Work) -> Run:
        """One method at J nodes and all ε."""
        of, is_published = population(work.d, self.seed), work.setting == PUBLISHED
        bounds = of.bounds if is_published else of.public
        bound_y, each = bounds[1], [epsilon for epsilon in self.epsilons for _ in range(self.repeats)]
        if work.method == ADASSP:
            rng = stream(self.seed, f"distributed/simulated/adaSSP/{work.setting}/{work.d}/{work.nodes}")
            exact = Statistics.of(of.X, of.y, work.nodes)
            found = [releases.adassp_estimate(exact, *bounds, is_published, one, DELTA, rng) for one in each]
            return Run(self._by_epsilon(np.stack(found)), None, None, {})
        square = work.method == BERNSTEIN_SHELDON
        problems = _released(work.setting, work.d, work.nodes, square, self.seed, tuple(each))
        prior = prior_of(of, is_published)
        if work.method in fits.SAMPLERS:
            of_published = bound_y if is_published else None
            sampled = fits.sampled(work.method, problems, prior, work.iterations, self.seed, of_published)
            theta = self._by_epsilon(sampled.theta)
            return Run(theta.mean(axis=2), theta, None, sampled.report)
        sigma_y2, R = crude_sigma_y2(bound_y, VARIANCE if is_published else SD), len(problems)
        mean, cov = fits.fast(problems, [prior] * R, [sigma_y2] * R)
        return Run(self._by_epsilon(mean), None, self._by_epsilon(cov), {})

    def _by_epsilon(self, values: Array) -> Array:
        return values.reshape(len(self.epsilons), self.repeats, *values.shape[1:])

    def notes(self, found: F) -> dict[str, Any]:
        return {"delta": DELTA, "rows": ROWS}


def prior_of(of: Population, is_published: bool) -> Prior:
    """As published, with its conflict; else what θ is drawn from, and a vague one of mean 1 for σ_y²."""
    d = len(of.theta)
    if is_published:
        return Prior.published(d, of.Lambda)
    return Prior(np.zeros(d), np.eye(d), np.array(2.0), np.array(1.0), of.Lambda, np.array(d + 1.0))


@lru_cache(maxsize=8)
def _released(
    setting: str, d: int, nodes: int, square: bool, seed: int, each: tuple[float, ...]
) -> tuple[NodeStatistics, ...]:
    """Of the ε of each problem: the same for all methods but the one that needs yᵀy."""
    of = population(d, seed)
    rng = stream(seed, f"distributed/simulated/noise/{setting}/{d}/{nodes}/{square}")
    if setting == PUBLISHED:
        exact, bounds = Statistics.of(of.X, of.y, nodes), of.bounds
        return tuple(releases.published(exact, *bounds, epsilon, DELTA, rng, square) for epsilon in each)
    parts, public = [np.column_stack([of.X[part], of.y[part]]) for part in blocks(len(of.y), nodes)], of.public
    budgets = [Budget(epsilon, DELTA) for epsilon in each]
    return tuple(releases.local_round(parts, public, one, rng.bytes, target_square=square) for one in budgets)
