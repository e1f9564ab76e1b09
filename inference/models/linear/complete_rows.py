"""Estimates how many of n rows are complete (have no missing value) from a noisy sum.

A row with a missing value counts as zero (`dca_proto.statistics.contribution`): it adds nothing to a sum, but the
public n counts it. So m, the number of complete rows, is private. Where each row has a constant feature c
the sum of its squares is m c², and is released with noise like every other term. One cannot simply replace it by
n c²: the noise can hide missing rows, and their share can be as large as the noise in the intercept, or several times
as large.

    c² m + N(0, s²)                        what was released
    p(m) ∝ exp(-(n - m)/(n q)), m <= n     before: a share of about q = `MISSING` of the rows lacks a value, and that
                                           none does is the likeliest

`counted` puts c² E[m] in the place of the noisy square, and c⁴ Var[m] in that of its noise, given the square alone (a
normal law cut off at n); the sampler with an intercept (`nodes.intercept`) draws m with all else.

Clients who sum several rows each can be more rows than clients. Then n is no bound, and `max_complete_rows` finds one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.models.linear.closed_form import SufficientStatistics

Array = NDArray[np.float64]

MISSING = 0.1
MARGIN = 8.0  # standard deviations of noise that the moments are calculated over
BEYOND = 4.0  # standard deviations above n that noise alone does not reach
POINTS = 1025


def log_prior(rows: Any, n: Any, missing: float = MISSING) -> Any:
    """ln p(m) but for a constant, of m <= n: NumPy's or JAX's arrays.

    Args:
        missing: the share of rows without all values that is expected, above 0.
    """
    return (rows - n) / (missing * n)


def max_complete_rows(count: float, variance: float, n: int) -> int:
    """How many rows there can be: n, or more where the noisy count says so.

    Args:
        count: the noisy sum of the constant's squares over c². variance: of its noise, in rows².
    """
    return int(_most(np.asarray(count), np.asarray(variance), np.asarray(n)))


def _most(count: Array, variance: Array, n: Array) -> Array:
    margin = BEYOND * np.sqrt(variance)
    return np.where(count > n + margin, np.floor(count + margin), n)


def estimate(count: Array, variance: Array, n: Array) -> tuple[Array, Array]:
    """Mean and variance of m given its noisy count, by quadrature of N(count; m, variance) p(m) over what m can be.

    Args:
        count, variance, n: as of `max_complete_rows`; they broadcast.
    """
    n, margin = _most(count, variance, n)[..., None], MARGIN * np.sqrt(variance)[..., None]
    count, twice = count[..., None], 2 * np.maximum(variance, np.finfo(float).tiny)[..., None]
    low, high = np.maximum(0, np.minimum(count, n) - margin), np.minimum(n, np.maximum(count, 0) + margin)
    rows = low + (high - low) * np.linspace(0, 1, POINTS)
    off = (rows - count) ** 2
    log_density = log_prior(rows, n) - (off - off.min(axis=-1, keepdims=True)) / twice
    weights = np.exp(log_density - log_density.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mean = (weights * rows).sum(axis=-1, keepdims=True)
    return mean[..., 0], (weights * (rows - mean) ** 2).sum(axis=-1)


def counted(statistics: SufficientStatistics, constant: float) -> SufficientStatistics:
    """The statistics with as many rows as are complete, as far as the square of their constant first feature tells.

    Args:
        statistics: as released. constant: c, its value.
    """
    square, noise = constant**2, statistics.noise
    count, variance = np.asarray(statistics.xx[..., 0, 0]) / square, np.asarray(noise.xx, float) / square**2
    rows, left = estimate(count, variance, np.asarray(statistics.n))
    xx = statistics.xx.copy()
    xx[..., 0, 0] = rows * square
    noise = replace(noise, constant=left * square**2)
    return replace(statistics, n=np.maximum(np.rint(rows), 1), xx=xx, noise_variance=noise, constant=True)
