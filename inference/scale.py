"""Marginal standard deviations, and means, from noisy moments (DCA paper, Algorithm 2, step 2).

For bounds that are about three standard deviations wide; far wider ones need phases (`inference.models.linear.locate`).

The published code divides the noisy sum by n and replaces a negative result by 0.5. At the small budget of this round
that is often a guess far from the truth, and it costs the whole regression its scale. Here the noise, whose variance is
known, is weighed against what the public bounds say: whoever states bounds (-c, c) means that nearly all values lie
inside, so a priori σ is about c/3, within a factor of two (log σ ~ N(log c/3, 0.35²)). The estimate is the posterior
mean of log σ: it is always positive, it follows the data where they speak, and falls back on the bounds where noise
drowns them. How far σ may be from c/3 is the caller's to say: variational inference, whose columns are many and often
binary, takes a wider prior (`inference.variational.standardise`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

PRIOR_BOUND_SDS = 3.0
PRIOR_MEAN_SD = 1 / PRIOR_BOUND_SDS  # of a column's mean about the public centre, as a fraction of the half-width
PRIOR_LOG_SD = 0.35
GRID = np.linspace(-6, 6, 481)  # of log σ around its prior mean, in prior standard deviations
FREE_BOUND = 1.665  # half-widths in units of the statistic's scale, up to which squares add nothing to the sensitivity
"""Of the statistic "moments" (`dca_proto.statistics.moments`): the bound that suits sums and squares best."""


def standard_deviations(sums: Array, n: int, noise_variance: float) -> Array:
    """Standard deviations about the public centre, as fractions of the half-widths c of the bounds.

    Args:
        sums: noisy Σᵢ (xᵢⱼ/c_j)² of values projected to [-c_j, c_j], shape ``(..., d)``.
        n: how many values each sum is over. noise_variance: of the privacy noise in each sum.

    Returns:
        Positive numbers, shape ``(..., d)``; multiply by c_j for the columns' own units.
    """
    return posterior_sd(sums / n, noise_variance / n**2, n, PRIOR_LOG_SD)


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


def marginals(sums: Array, n: int, noise_variance: float) -> tuple[Array, Array]:
    """Means about the public centres and standard deviations, as fractions of the half-widths, each ``(..., d)``.

    Args:
        sums: released under `moments_parameters`: of x, then of x², shape ``(..., 2d)``. The others as above.
    """
    first, second = np.split(sums, 2, axis=-1)
    offsets = means(first / FREE_BOUND, n, noise_variance / FREE_BOUND**2)
    squares = second / FREE_BOUND**2 - n * offsets**2
    return offsets, standard_deviations(squares, n, noise_variance / FREE_BOUND**4)


def into_ball(z: Array, radius: float) -> Array:
    """Vectors along the last axis, those outside the ball of that radius drawn to its surface; it may be infinite."""
    inside: Array = z / np.maximum(1.0, np.linalg.norm(z, axis=-1, keepdims=True) / radius)
    return inside


def standardisation(rows: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of each column of raw rows, without privacy; 1 for a column that is constant."""
    scale = rows.std(axis=0)
    return rows.mean(axis=0), np.where(scale > 0, scale, 1.0)
