"""The nodes' releases in the third paper's experiments: as published, and by exact rounds of the protocol.

**As published**, (S_j, z_j) get floating-point Gaussian noise by one of two rules; the code takes the smaller noise:

    joint   σ_S = σ_z = √(X⁴ + X²Y²) σ(ε, δ)
    split   σ_S = X² σ(ε/2, δ/2),  σ_z = XY σ(ε/2, δ/2)

with the bounds X and Y. MCMC-B&S has its own release, with yᵀy, at √(X⁴ + X²Y² + Y⁴) σ(ε, δ). This has two faults,
besides bounds that are computed from the data:

1. These are the sensitivities of adding or removing a row, but neighbours are defined by replacing one. Valid noise is
   1.41 to 1.63 times as large.
2. σ(ε, δ) should be the exact one of Balle and Wang (2018, Algorithm 1), which solves Φ(-√(εu)) - e^ε Φ(-√(ε(u+2))) = δ
   for u. The code has √ε·u instead of the first √(εu). For δ = 1e-4, its noise is 2.1 times too small at ε = 1 and 5
   times at ε = 0.1: the true δ at ε = 1 is 0.032, whatever δ the caller passed. The paper's tables have this noise:
   with the exact one, no method comes near them (`coded_sigma`).

**Valid** releases are two local rounds of the ideal functionality, with the protocol's exact noise for the replacement
of one row, which share one μ². The first takes `MEANS_SHARE` of it for the sums of all columns, which give the means
for centring; this replaces the published centring and a constant feature. The second takes the rest for S and z. The
rest also pays for adaSSP's S, z and eigenvalue, whose own split of (ε, δ) spends less than that. In the second round, a
row is in the box of its public bounds and in a ball. The blocks have integer weights that depend on these alone, chosen
for the smallest error of z - Sθ, for a θ that explains half of the target.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.crypto.sealing import Random
from dca_proto.jobs.job import FRACTION_BITS, JobTerms
from dca_proto.privacy.accounting import mu_of
from dca_proto.privacy.budget import Budget
from dca_proto.protocol.wire.kinds import NodeRelease
from dca_proto.statistics.regression import Regression
from dca_proto.statistics.weights import best_regression_weights
from emulator.ideal import IdealSwarm
from inference.models.linear.nodes.observed import NodeStatistics, Prior, nodes_of
from inference.problem import Array
from papers.mcmc2023.data import Statistics, Valid, blocks
from papers.mcmc2023.samplers import adassp

MEANS_SHARE = 0.1
_U_MAX = 1e4


def published_prior(d: int, Lambda: Array) -> Prior:
    """Return the prior of the paper's section 5.1: a = 20, b = 0.5, m = 0, κ = d + 1, C = b/(a - 1)·I.

    This C reproduces the paper's tables; its code has the inverse.

    Args:
        Lambda: Λ, shape ``(d, d)``; VᵀV with random V in the experiments.
    """
    a, b = 20.0, 0.5
    return Prior(np.zeros(d), b / (a - 1) * np.eye(d), np.array(a), np.array(b), Lambda, np.array(d + 1.0))


@lru_cache(maxsize=256)
def coded_sigma(epsilon: float, delta: float) -> float:
    """Return the published code's σ(ε, δ) for a sensitivity of 1, which is not private as claimed (see above)."""

    def excess(u: float) -> float:
        wrong = ndtr(-math.sqrt(epsilon) * u)
        return float(wrong - math.exp(epsilon) * ndtr(-math.sqrt(epsilon * (u + 2)))) - delta

    u = brentq(excess, 0.0, _U_MAX, xtol=1e-12)
    return (math.sqrt(1 + u / 2) + math.sqrt(u / 2)) / math.sqrt(2 * epsilon)


def published_sensitivity(bound_x: float, bound_y: float, *, target_square: bool = False) -> float:
    """Return the published sensitivity of (S, z) or (S, z, yᵀy) to adding or removing a row (sections 3.1 and C.1)."""
    x, y = bound_x**2, bound_y**2
    return math.sqrt(x**2 + x * y + (y**2 if target_square else 0.0))


def published_noise(bound_x: float, bound_y: float, epsilon: float, delta: float) -> tuple[float, float]:
    """Return (σ_S, σ_z) of the split rule if its variances add up to at most the joint rule's variance, else joint."""
    joint = published_sensitivity(bound_x, bound_y) * coded_sigma(epsilon, delta)
    half = coded_sigma(epsilon / 2, delta / 2)
    split = bound_x**2 * half, bound_x * bound_y * half
    return (joint, joint) if split[0] ** 2 + split[1] ** 2 > joint**2 else split


def published(
    exact: Statistics,
    bound_x: float,
    bound_y: float,
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
    target_square: bool = False,
) -> NodeStatistics:
    """Release all nodes' (S, z), or (S, z, yᵀy) for MCMC-B&S, as published."""
    if not target_square:
        return with_noise(exact, *published_noise(bound_x, bound_y, epsilon, delta), rng)
    sigma = published_sensitivity(bound_x, bound_y, target_square=True) * coded_sigma(epsilon, delta)
    return with_noise(exact, sigma, sigma, rng, sigma_u=sigma)


def adassp_estimate(
    exact: Statistics,
    bound_x: float,
    bound_y: float,
    is_published: bool,
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
) -> Array:
    """Return adaSSP's θ of one release of all nodes, as coded or with valid noise (NumPy's, not the protocol's)."""
    if is_published:
        options: dict[str, Any] = {"published": True, "mu_of": lambda e, d: 1 / coded_sigma(e, d)}
        of = adassp.Sensitivities.add_or_remove(bound_x, bound_y)
    else:
        options, of = {"mu_of": mu_of}, adassp.Sensitivities.replacement(bound_x, bound_y)
    nodes = zip(exact.S, exact.z, strict=True)
    return adassp.estimate([adassp.release(S, z, epsilon, delta, rng, sensitivities=of, **options) for S, z in nodes])


def with_noise(
    exact: Statistics, sigma_S: float, sigma_z: float, rng: np.random.Generator, *, sigma_u: float | None = None
) -> NodeStatistics:
    """Release all nodes with floating-point Gaussian noise.

    Args:
        sigma_S, sigma_z, sigma_u: standard deviations of the noise in each unique term of S, in z, and in u; None
            releases no u.
    """
    J, d = exact.z.shape
    z = exact.z + sigma_z * rng.standard_normal((J, d))
    S = exact.S + sigma_S * symmetric_normals(rng, J, d)
    u = np.full(J, math.nan) if sigma_u is None else exact.u + sigma_u * rng.standard_normal(J)
    of_u = math.nan if sigma_u is None else sigma_u**2
    variance_S, variance_z, variance_u = (np.full(J, one) for one in (sigma_S**2, sigma_z**2, of_u))
    return NodeStatistics(S, z, exact.n.astype(float), variance_S, variance_z, u, variance_u)


def symmetric_normals(rng: np.random.Generator, count: int, d: int) -> Array:
    """Draw M of eq. (2): symmetric, with independent N(0, 1) on and above the diagonal, shape ``(count, d, d)``."""
    upper = np.triu(rng.standard_normal((count, d, d)))
    return np.asarray(upper + np.triu(upper, 1).transpose(0, 2, 1))


def local_round(
    parts: Sequence[Array],
    bounds: tuple[float, float],
    budget: Budget,
    random: Random,
    *,
    target_square: bool = False,
    constant: float = 0.0,
) -> NodeStatistics:
    """Release uncentred rows by one local round in units of the bounds; return the release in units of the rows.

    Args:
        parts: each node's rows, shape ``(n_j, d + 1)``, the target last.
        bounds: radius of the features, and bound of the target. random: for ids and noise keys.
        constant: value of a constant first feature, in units of the rows; 0 for none.
    """
    (X, Y), d = bounds, parts[0].shape[1] - 1
    parameters = {
        "columns": [*(f"x{place + 1}" for place in range(d)), "y"],
        "centre": [0.0] * (d + 1),
        "scale": [X] * d + [Y],
        "bound": [1.0] * (d + 1),
        "radius": 1.0,
        "target_square": target_square,
        "intercept": constant > 0,
        "intercept_bound": constant / X if constant else 1.0,
    }
    found = nodes_of(_held(parts, budget, random, "regression", parameters))
    scales = {"S": X**2, "z": X * Y, "u": Y**2, "constant": X}
    scales |= {"variance_S": X**4, "variance_z": (X * Y) ** 2, "variance_u": Y**4}
    return found._replace(**{name: getattr(found, name) * scale for name, scale in scales.items()})


def _held(
    parts: Sequence[Array], budget: Budget, random: Random, statistic: str, parameters: Any, share: float = 1.0
) -> NoisyAggregate:
    terms = JobTerms(epsilon=budget.epsilon, delta=budget.delta, clients=len(parts), tolerate=0, computes=())
    request = RoundRequest(statistic, parameters, share, rows_max=len(parts[-1]), kind=NodeRelease())
    return IdealSwarm(parts, parameters["columns"], terms, random=random).run_round(request)


@dataclass(frozen=True)
class Rounds:
    """The rounds of some data nodes, which hold the rows in contiguous blocks; `random` is for ids and noise keys."""

    rows: Valid
    nodes: int
    epsilon: float
    random: Random

    @property
    def budget(self) -> Budget:
        return Budget(self.epsilon, self.rows.delta)

    def means(self) -> Array:
        """Release means of features and target in half-widths from the middle of the bounds, shape ``(d + 1,)``."""
        width = len(self.rows.schema.columns)
        total = self._hold("sum", self._columns(np.zeros(width), np.ones(width)), MEANS_SHARE)
        return np.clip(total.value / total.contributors, -1, 1)

    def regression(self, means: Array, *, target_square: bool = False) -> NoisyAggregate:
        """Release S and z, and yᵀy if wanted, of columns around these means; ``nodes`` has each node's release."""
        radius, features = self.rows.radius, len(self.rows.schema.features)
        known = self._columns(means, 1 + np.abs(means)) | {"target_square": target_square, "radius": radius}
        known["weights"] = list(_weights(features, radius, float(known["bound"][-1]), target_square))
        return self._hold("regression", known, 1 - MEANS_SHARE)

    def _columns(self, means: Array, bounds: Array) -> dict[str, Any]:
        schema = self.rows.schema
        return {
            "columns": list(schema.columns),
            "centre": (schema.centres + means * schema.half_widths).tolist(),
            "scale": schema.half_widths.tolist(),
            "bound": bounds.tolist(),
        }

    def _hold(self, statistic: str, parameters: dict[str, Any], share: float) -> NoisyAggregate:
        parts = [self.rows.rows[part] for part in blocks(len(self.rows.rows), self.nodes)]
        return _held(parts, self.budget, self.random, statistic, parameters, share)


@lru_cache(maxsize=4096)
def _weights(features: int, radius: float, bound_y: float, target_square: bool) -> tuple[int, int, int]:
    """Return the weights for features that the radius alone bounds."""
    width = features + 1
    statistic = Regression(
        columns=tuple(map(str, range(width))),
        centre=(0.0,) * width,
        scale=(1.0,) * width,
        bound=(2.0,) * features + (bound_y,),
        target_square=target_square,
        radius=radius,
    )
    return best_regression_weights(statistic, FRACTION_BITS, (1 / width, 1.0, 1 / width))
