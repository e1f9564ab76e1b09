"""The joint density of the distributed regression model by SciPy's densities, independent of the samplers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from inference.models.linear.nodes.observed import NodeStatistics, Prior

Array = NDArray[np.float64]


def log_joint(theta: Array, sigma_y2: float, Sigma_x: Array, S: Array, observed: NodeStatistics, prior: Prior) -> float:
    """ln p(θ) p(σ_y²) p(Σ_x) Π_j p(S_j | Σ_x) p(Ŝ_j | S_j) p(ẑ_j | S_j, θ, σ_y²), with all constants (eq. 10)."""
    d = theta.size
    terms = [
        stats.multivariate_normal.logpdf(theta, prior.m, prior.C),
        stats.invgamma.logpdf(sigma_y2, float(prior.a), scale=float(prior.b)),
        stats.invwishart.logpdf(Sigma_x, float(prior.kappa), prior.Lambda),
    ]
    unique = np.triu_indices(d)
    for j, S_j in enumerate(S):
        V = sigma_y2 * S_j + observed.variance_z[j] * np.eye(d)
        terms += [
            stats.wishart.logpdf(S_j, float(observed.n[j]), Sigma_x),
            stats.norm.logpdf(observed.S[j][unique], S_j[unique], np.sqrt(observed.variance_S[j])).sum(),
            stats.multivariate_normal.logpdf(observed.z[j], S_j @ theta, V),
        ]
    return float(sum(np.sum(term) for term in terms))
