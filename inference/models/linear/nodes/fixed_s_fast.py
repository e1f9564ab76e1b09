"""Bayes-fixedS-fast (ICML 2023, Algorithm 3): the posterior of θ in closed form, with S_j and σ_y² plugged in.

    Ŝ_j     the nearest positive semi-definite matrix to noisy S_j    Σ_post⁻¹ = Σ_j U_j + C⁻¹
    σ̂_y²    a crude estimate of the residuals' variance               m_post = Σ_post (C⁻¹ m + Σ_j u_j)
    v       variance of the noise in z_j                              U_j = Ŝ_j (σ̂_y² Ŝ_j + v I)⁻¹ Ŝ_j
                                                                      u_j = Ŝ_j (σ̂_y² Ŝ_j + v I)⁻¹ z_j
If Ŝ_j has the eigenvalues λ, U_j has the eigenvalues λ²/(σ̂_y² λ + v) with the same vectors. This needs no inverse, and
is 0 if λ is.

The paper estimates the *standard deviation* σ̂_y by ‖Y‖/3 (section 4.2); the published code takes ‖Y‖/3 for the
*variance*. With targets in (-1, 1) that is three times the paper's variance. The published code also leaves out m,
which is 0 in its experiments. The posterior is overconfident, because it treats the noisy Ŝ_j as exact.
"""

from __future__ import annotations

import numpy as np

from inference.errors import DataError
from inference.models.linear.closed_form import NormalBeta
from inference.models.linear.nodes.observed import NodeStatistics, Prior, check_observed


def posterior(observed: NodeStatistics, prior: Prior, sigma_y2: float) -> NormalBeta:
    """Return θ | noisy S, z ~ N(mean, cov), which includes the noise of z but not that of S.

    Args:
        sigma_y2: σ̂_y²; it becomes the residual variance of predictions.

    Raises:
        DataError: as for `check_observed`, or sigma_y2 is not a finite number above 0.
    """
    if not 0 < sigma_y2 < np.inf:
        raise DataError(f"sigma_y2 is {sigma_y2:g}; give a finite number above 0")
    observed = check_observed(observed)
    values, vectors = np.linalg.eigh(observed.S)
    kept = np.maximum(values, 0.0)  # Ŝ
    spread = sigma_y2 * kept + observed.variance_z[:, None]
    gain = np.divide(kept, spread, out=np.zeros_like(kept), where=kept > 0)
    U = (vectors * (gain * kept)[:, None, :]) @ np.swapaxes(vectors, -1, -2)
    u = np.einsum("jik,jk,jlk,jl->ji", vectors, gain, vectors, observed.z)
    prior_precision = np.linalg.inv(prior.C)
    cov = np.linalg.inv(U.sum(axis=0) + prior_precision)
    mean = cov @ (prior_precision @ prior.m + u.sum(axis=0))
    return NormalBeta(np.asarray(mean), np.asarray((cov + cov.T) / 2), np.asarray(sigma_y2, float))
