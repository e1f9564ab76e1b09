"""The threshold search of Algorithm 2, step 3: how far to project, from auxiliary data alone.

Tighter bounds mean less noise and more bias. The best trade-off is searched on auxiliary data of as many rows as the
real ones, generated from the model itself (nothing private is touched, so the search costs no budget):

    xᵢ ~ N(0, I)        (4)
    β ~ N(0, λ₀⁻¹ I)    (5)     λ₀⁻¹ = R²/d, so that the features explain R² = 1/2 of the target on average
    yᵢ ~ N(xᵢᵀβ, λ⁻¹)   (6)     λ⁻¹ = 1 - R², then scaled to standard deviation 1

with one threshold p for all features and one for the target, in standard deviations. The published search normalises
x by rows, takes the fourth power of the sensitivity for its square, and assumes the whole budget. Here x is as in (4),
the noise is what the second round will really carry, and the fit on auxiliary data runs the repair and the prior that
the final regression runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inference.linear_regression import SufficientStatistics, posterior, symmetric

Array = NDArray[np.float64]

PRIOR_R2 = 0.5
# The published grid ends at 2.1 standard deviations; where noise is small the best projection is none.
THRESHOLDS = np.geomspace(0.3, 4.5, 20)
REPEATS = 24  # draws of β and of the noise, shared by all thresholds
TEST_ROWS = 2000
ROWS_MAX = 2000  # more rows are as many copies of these, so that memory does not grow with the swarm


@dataclass(frozen=True)
class Thresholds:
    """Chosen bounds in standard deviations, and the mean squared error per target variance expected with them."""

    features: float
    target: float
    expected_error: float


def prior_precision(features: int) -> Array:
    """λ₀ of the intercept and of each coefficient, all columns in standard deviations, shape ``(d + 1,)``."""
    return np.array([1.0] + [features / PRIOR_R2] * features)


def search_thresholds(
    n: int,
    features: int,
    noise_std: Callable[[tuple[float, ...]], float],
    rng: np.random.Generator,
    *,
    intercept_bound: float = 1.0,
    grid: Array = THRESHOLDS,
) -> Thresholds:
    """The pair of thresholds with the smallest mean test error on auxiliary data.

    Args:
        n: rows of the real data (public). features: d.
        noise_std: standard deviation of the noise in each coordinate of the second round's sum, given the bounds
            ``(intercept_bound, p, ..., p, p_target)`` of the constant, the d features and the target.
        rng: draws the auxiliary data and noise.
        grid: thresholds to try, for the features and for the target, shape ``(g,)``.
    """
    aux = _auxiliary(n, features, grid, rng)
    error = np.empty((len(grid), len(grid)))
    for row, p in enumerate(grid):
        bounds = [(intercept_bound, *[p] * features, q) for q in grid]
        error[row] = _errors(aux, p, np.array([noise_std(each) for each in bounds]), intercept_bound)
    best, best_target = np.unravel_index(np.argmin(error), error.shape)
    return Thresholds(float(grid[best]), float(grid[best_target]), float(error[best, best_target]))


@dataclass(frozen=True, eq=False)
class _Auxiliary:
    """Rows to fit, rows to test on, targets for each of R draws of β, and unit noise for the coordinates of the sum."""

    n: int  # rows that x and y stand for
    x: Array  # (k, d), k = min(n, ROWS_MAX)
    y: Array  # (k, R, g), projected to each threshold of the target
    x_test: Array  # (TEST_ROWS, d)
    y_test: Array  # (TEST_ROWS, R)
    noise: Array  # (R, terms)


def _auxiliary(n: int, d: int, grid: Array, rng: np.random.Generator) -> _Auxiliary:
    k = min(n, ROWS_MAX)
    x = rng.standard_normal((k + TEST_ROWS, d))  # (4)
    beta = rng.standard_normal((d, REPEATS)) * np.sqrt(PRIOR_R2 / d)  # (5)
    y = x @ beta + rng.standard_normal((k + TEST_ROWS, REPEATS)) * np.sqrt(1 - PRIOR_R2)  # (6)
    y /= np.sqrt((beta**2).sum(axis=0) + 1 - PRIOR_R2)
    m = d + 1
    noise = rng.standard_normal((REPEATS, m * (m + 1) // 2 + m + 1))
    return _Auxiliary(n, x[:k], np.clip(y[:k, :, None], -grid, grid), x[k:], y[k:], noise)


def _errors(aux: _Auxiliary, p: float, noise_std: Array, constant: float) -> Array:
    """Mean squared test error for one threshold p of the features and each of the target's, shape ``(g,)``."""
    fitted = posterior(_noisy_statistics(aux, p, noise_std, constant), prior_precision(aux.x.shape[1]))
    x = _design(aux.x_test, p, constant)
    explained = np.einsum("rgi,ir->rg", fitted.mean, x.T @ aux.y_test)
    fit = ((fitted.mean @ (x.T @ x)) * fitted.mean).sum(axis=-1)
    errors: Array = ((aux.y_test**2).sum(axis=0)[:, None] - 2 * explained + fit).mean(axis=0) / len(x)
    return errors


def _noisy_statistics(aux: _Auxiliary, p: float, noise_std: Array, constant: float) -> SufficientStatistics:
    """What the second round would release, for every draw and threshold of the target: leading axes ``(R, g)``."""
    x = _design(aux.x, p, constant)
    k, m = x.shape
    copies = aux.n / k
    xy = np.moveaxis(np.tensordot(x, aux.y, axes=(0, 0)), 0, -1) * copies
    noise = aux.noise[:, None, :] * noise_std[:, None]  # (R, g, terms)
    unique = m * (m + 1) // 2
    xx = x.T @ x * copies + symmetric(noise[..., :unique], m)
    xx[..., 0, 0] = aux.n * constant**2  # public
    yy = (aux.y**2).sum(axis=0) * copies + noise[..., -1]
    return SufficientStatistics(aux.n, xx, xy + noise[..., unique : unique + m], yy, noise_std**2, constant=True)


def _design(x: Array, p: float, constant: float) -> Array:
    """Rows projected to [-p, p], supplement eq. (8), behind a constant feature."""
    return np.column_stack([np.full(len(x), constant), np.clip(x, -p, p)])
