"""Marginal standard deviations, and means, from noisy moments (DCA paper, Algorithm 2, step 2).

The published code divides the noisy sum by n and replaces a negative result by 0.5. At the small budget of this round
that is often a guess far from the truth, and it costs the whole regression its scale. Here the noise, whose variance is
known, is weighed against what the public bounds say: whoever states bounds (-c, c) means that nearly all values lie
inside, so a priori σ is about c/3, within a factor of two (log σ ~ N(log c/3, 0.35²)). The estimate is the posterior
mean of log σ: it is always positive, it follows the data where they speak, and falls back on the bounds where noise
drowns them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

PRIOR_BOUND_SDS = 3.0
PRIOR_MEAN_SD = 1 / PRIOR_BOUND_SDS  # of a column's mean about the public centre, as a fraction of the half-width
PRIOR_LOG_SD = 0.35
FREE_BOUND = 1.665  # half-widths in units of the statistic's scale, up to which squares add nothing to the sensitivity
"""Of the statistic "moments" (`dca_proto.statistics.moments`): the bound that suits sums and squares best."""
GRID = np.linspace(-6, 6, 481) * PRIOR_LOG_SD  # of log σ around its prior mean


def standard_deviations(sums: Array, n: int, noise_variance: float) -> Array:
    """Standard deviations about the public centre, as fractions of the half-widths c of the bounds.

    Args:
        sums: noisy Σᵢ (xᵢⱼ/c_j)² of values projected to [-c_j, c_j], shape ``(..., d)``.
        n: how many values each sum is over. noise_variance: of the privacy noise in each sum.

    Returns:
        Positive numbers, shape ``(..., d)``; multiply by c_j for the columns' own units.
    """
    log_sigma = GRID - log(PRIOR_BOUND_SDS)
    expected = n * np.exp(2 * log_sigma)
    variance = noise_variance + 2 * n * np.exp(4 * log_sigma)  # of n squares of normals, plus the noise
    log_posterior = -0.5 * (
        (sums[..., None] - expected) ** 2 / variance + np.log(variance) + (GRID / PRIOR_LOG_SD) ** 2
    )
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
