"""adaSSP for J data nodes (ICML 2023, appendix C.2; Wang, UAI 2018): a ridge estimate whose ridge adapts to the data.

Each node releases noisy S and z, and a private lower bound λ̃ of the smallest eigenvalue λ_min of S. The bound gives
the ridge that makes S + λI positive definite with a probability of 1 - p. Everything after λ̃ is post-processing.

    λ̃ = max(λ_min + s v - √ln(6/δ) s, 0)           v ~ N(0, 1), s the standard deviation of its noise
    λ = max(0, √(d ln(2d²/p)) s' - λ̃)              s' the standard deviation of the noise in S
    θ̂ = (Σ_j S̃_j + I Σ_j λ_j)⁻¹ Σ_j z̃_j             (15)

The published code differs from a valid release in two ways:

**Budgets.** In the paper, S and z together cost two thirds of (ε, δ), λ̃ one third. In the code, S, z and λ̃ cost a
third each, with noise by their own sensitivities. Thirds add up by basic composition.

**The eigenvalue.** The valid s is Δ_λ/μ, with the μ of the exact Gaussian mechanism at (ε/3, δ/3), and s' is that of
the noise in S. The code has s = s' = √ln(6/δ)/(ε/3)·X². That overspends: the classical rule behind it is √2 larger, and
holds below ε = 1 only. From ε = 1 at δ = 1e-5, and from 5 at 1e-4, λ̃ costs more than its third of δ: at ε = 10,
δ = 1e-5 it costs 1.4e-4, but 3.3e-6 is allowed.

**Sensitivities** of rows with |x| <= X and |y| <= Y, those of S over its unique terms:

                 add or remove (published)    replacement of a row (what the paper's neighbours are)
    S            X²                           √2 X²
    z            X Y                          2 X Y
    S and z      √(X⁴ + X² Y²)                √2 (X² + Y²/2) for Y² <= 2X², else 2 X Y
    λ_min        X²                           X²

The first three under replacement are those of `dca_proto.statistics.regression_sensitivity` (d >= 2; with one feature
they are upper bounds). λ_min moves by no more under replacement than when a row is added, by Weyl's inequality:
λ_min(S + x'x'ᵀ - xxᵀ) - λ_min(S) <= λ_max(x'x'ᵀ - xxᵀ) <= |x'|² <= X², which is attained.

The noise of `release` is NumPy's, for experiments on one machine, not for devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from inference.problem import Array

MuOf = Callable[[float, float], float]
"""The μ of the exact Gaussian mechanism at (ε, δ), whose noise is Δ/μ (`dca_proto.privacy.accounting.mu_of`)."""
FAILURE = 0.05  # p: probability that S + λI is no larger than S, in the paper's experiments


class Sensitivities(NamedTuple):
    """L2 sensitivities of the unique terms of S, of z, of both together, and of λ_min, for one relation."""

    S: float
    z: float
    both: float
    eigenvalue: float

    @classmethod
    def add_or_remove(cls, X: float, Y: float) -> Sensitivities:
        """Return the published sensitivities. X: largest norm of a row of features. Y: largest absolute target."""
        return cls(X**2, X * Y, math.hypot(X**2, X * Y), X**2)

    @classmethod
    def replacement(cls, X: float, Y: float) -> Sensitivities:
        """Return the sensitivities to replacing one row."""
        both = math.sqrt(2) * (X**2 + Y**2 / 2) if Y**2 <= 2 * X**2 else 2 * X * Y
        return cls(math.sqrt(2) * X**2, 2 * X * Y, both, X**2)


class Ridge(NamedTuple):
    """One data node's release with the ridge that follows from it."""

    S: Array  # noisy, symmetric, (d, d)
    z: Array  # noisy, (d,)
    ridge: float  # λ, at least 0
    sigma_S: float  # noqa: N815 - standard deviation of the noise in each unique term of S
    sigma_z: float
    sigma_eigenvalue: float  # in λ̃


def release(
    S: Array,
    z: Array,
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
    *,
    sensitivities: Sensitivities,
    mu_of: MuOf,
    published: bool = False,
) -> Ridge:
    """Release one data node's sums: (ε, δ)-DP for the relation of its sensitivities, unless as published.

    Args:
        S: exact XᵀX, shape ``(d, d)``. z: exact Xᵀy, shape ``(d,)``.
    """
    log_6, d, third = math.log(6 / delta), len(z), mu_of(epsilon / 3, delta / 3)
    if published:
        sigma_S, sigma_z = sensitivities.S / third, sensitivities.z / third
        sigma = assumed = math.sqrt(log_6) / (epsilon / 3) * sensitivities.eigenvalue
    else:
        sigma_S = sigma_z = assumed = sensitivities.both / mu_of(2 * epsilon / 3, 2 * delta / 3)
        sigma = sensitivities.eigenvalue / third
    smallest = float(np.linalg.eigvalsh(S)[0]) + sigma * float(rng.standard_normal())
    bound = max(smallest - math.sqrt(log_6) * sigma, 0.0)  # λ̃
    ridge = max(0.0, math.sqrt(d * math.log(2 * d**2 / FAILURE)) * assumed - bound)
    upper = np.triu(rng.standard_normal((d, d)))
    noise = upper + np.triu(upper, 1).T
    return Ridge(S + sigma_S * noise, z + sigma_z * rng.standard_normal(d), ridge, sigma_S, sigma_z, sigma)


def estimate(nodes: Sequence[Ridge]) -> Array:
    """Return the trainer's θ̂ from all nodes' releases, eq. (15), shape ``(d,)``, in the units of S and z."""
    S = np.sum([node.S for node in nodes], axis=0) + sum(node.ridge for node in nodes) * np.eye(len(nodes[0].z))
    return np.asarray(np.linalg.solve(S, np.sum([node.z for node in nodes], axis=0)), float)
