"""Marginal standard deviations, and means, from noisy moments.

The noise, whose variance is known, is weighed against what the public bounds say: whoever states bounds (-c, c) means
that nearly all values lie inside, so a priori σ is about c/3. The estimate is the posterior mean of log σ: it is always
positive, it follows the data where they speak, and falls back on the bounds where noise drowns them. How far σ may be
from c/3 is the caller's to say. (The published code replaces a negative variance by 0.5.) Bounds that are far too wide
need phases (`inference.models.linear.locate`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

PRIOR_BOUND_SDS = 3.0
PRIOR_MEAN_SD = 1 / PRIOR_BOUND_SDS  # of a column's mean about the public centre, as a fraction of the half-width
GRID = np.linspace(-6, 6, 481)  # of log σ around its prior mean, in prior standard deviations
FREE_BOUND = 1.665  # half-widths in units of the statistic's scale, up to which squares add nothing to the sensitivity
"""Of the statistic "moments" (`dca_proto.statistics.moments`): the bound that suits sums and squares best."""


def posterior_sd(variance: Array, noise_variance: ArrayLike, n: int, prior_log_sd: float) -> Array:
    """exp of the posterior mean of log σ, given noisy estimates of σ² as fractions of c².

    Args:
        variance: the estimates, shape ``(..., d)``, each from n values.
        noise_variance: what the privacy noise adds to the variance of each, broadcastable to ``(..., d)``.
        prior_log_sd: of log σ, about log 1/3.

    Returns:
        Positive numbers, shape ``(..., d)``, as fractions of c.
    """
    log_sigma = GRID * prior_log_sd - log(PRIOR_BOUND_SDS)
    expected = np.exp(2 * log_sigma)
    of_sample = 2 * expected**2 / n  # variance of the mean of n squares of normals
    spread = np.asarray(noise_variance)[..., None] + of_sample
    log_posterior = -0.5 * ((variance[..., None] - expected) ** 2 / spread + np.log(spread) + GRID**2)
    weights = np.exp(log_posterior - log_posterior.max(axis=-1, keepdims=True))
    estimate: Array = np.exp(weights @ log_sigma / weights.sum(axis=-1))
    return estimate


def means(sums: Array, n: int, noise_variance: float) -> Array:
    """Means about the public centre, as fractions of the half-widths c of the bounds, shape ``(..., d)``.

    The posterior mean under a normal prior about the public centre with a standard deviation of c/3: where noise
    drowns the data, the centre stays where it is.

    Args:
        sums: noisy Σᵢ xᵢⱼ/c_j of values projected to [-c_j, c_j], shape ``(..., d)``. The others as above.
    """
    prior = (n * PRIOR_MEAN_SD) ** 2
    estimate: Array = sums / n * (prior / (prior + noise_variance))
    return estimate


def moments_parameters(columns: Sequence[str], centres: Array, half_widths: Array) -> dict[str, object]:
    """Parameters of the statistic "moments" with columns in half-widths; `marginals` reads its sums."""
    return {
        "columns": list(columns),
        "centre": centres.tolist(),
        "scale": (half_widths / FREE_BOUND).tolist(),
        "bound": [FREE_BOUND] * half_widths.size,
    }


def standardisation(rows: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of each column of raw rows, without privacy; 1 for a column that is constant."""
    scale = rows.std(axis=0)
    return rows.mean(axis=0), np.where(scale > 0, scale, 1.0)
