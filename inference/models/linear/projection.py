"""The threshold search of Algorithm 2, step 3: how far to project, from auxiliary data alone.

Tighter bounds mean less noise and more bias. The best trade-off is searched on auxiliary data of as many rows as the
real ones, generated from the model itself (nothing private is touched, so the search costs no budget):

    xᵢ ~ N(0, I)        (4)
    β ~ N(0, λ₀⁻¹ I)    (5)     λ₀⁻¹ = R²/d, so that the features explain R² = 1/2 of the target on average
    yᵢ ~ N(xᵢᵀβ, λ⁻¹)   (6)     λ⁻¹ = 1 - R², then scaled to standard deviation 1

with one threshold p for all features and one for the target, in standard deviations, or one for each feature. The
published search normalises x by rows, takes the fourth power of the sensitivity for its square, and assumes the whole
budget. Here x is as in (4), the noise is what the second round will really carry, and the fit on auxiliary data runs
the model and the repair that the final regression runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inference.models.linear.closed_form import SufficientStatistics, posterior_mean, symmetric
from inference.models.linear.repair import REPAIR, check_repair

Array = NDArray[np.float64]
NoiseStd = Callable[[tuple[float, ...]], float]

PRIOR_R2 = 0.5
# The published grid ends at 2.1 standard deviations; where noise is small the best projection is none.
THRESHOLDS = np.geomspace(0.3, 4.5, 20)
REPEATS = 24  # draws of β and of the noise, shared by all thresholds
TEST_ROWS = 2000
ROWS_MAX = 2000  # more rows are as many copies of these, so that memory does not grow with the swarm
PASSES = 2  # over the features, where each has a threshold of its own


@dataclass(frozen=True)
class Thresholds:
    """Chosen bounds in standard deviations, and the mean squared error per target variance expected with them.

    Attributes:
        features: common to all features. target: of the target.
        each: one for each feature, d of them; all ``features`` unless asked for otherwise.
    """

    features: float
    target: float
    expected_error: float
    each: tuple[float, ...] = ()

    @property
    def bounds(self) -> Array:
        """Of each feature, then the target, shape ``(d + 1,)``."""
        return np.array([*self.each, self.target])


@dataclass(frozen=True)
class Model:
    """What the final regression will assume, so that the search assumes it too.

    Attributes:
        repair: one of `REPAIRS`. intercept_bound: value of the constant feature; None for a model without intercept.
        prior_precision: λ₀, broadcastable to ``(m,)``; None for `prior_precision` of the features.
        residual_variance: λ⁻¹; None where it is estimated.

    Raises:
        DataError: the repair is unknown.
    """

    repair: str = REPAIR
    intercept_bound: float | None = 1.0
    prior_precision: ArrayLike | None = None
    residual_variance: float | None = None

    def __post_init__(self) -> None:
        check_repair(self.repair)

    @property
    def constants(self) -> tuple[float, ...]:
        """Bounds of the features that are not the data's: the constant one's, or none."""
        return () if self.intercept_bound is None else (self.intercept_bound,)


def prior_precision(features: int) -> Array:
    """λ₀ of the intercept and of each coefficient, all columns in standard deviations, shape ``(d + 1,)``."""
    return np.array([1.0] + [features / PRIOR_R2] * features)


def search_thresholds(
    n: int,
    features: int,
    noise_std: NoiseStd,
    rng: np.random.Generator,
    *,
    intercept_bound: float | None = 1.0,
    grid: Array = THRESHOLDS,
    repair: str = REPAIR,
    each: bool = False,
    prior_precision: ArrayLike | None = None,
    residual_variance: float | None = None,
) -> Thresholds:
    """The pair of thresholds with the smallest mean test error on auxiliary data.

    Args:
        n: rows of the real data (public). features: d.
        noise_std: standard deviation of the noise in each coordinate of the second round's sum, given the bounds
            ``(intercept_bound, p, ..., p, p_target)`` of the constant (if there is one), the d features and the target.
        rng: draws the auxiliary data and noise.
        grid: thresholds to try, for the features and for the target, shape ``(g,)``.
        each: search one threshold for each feature, from the best common one on, one coordinate after the other.
        intercept_bound, repair, prior_precision, residual_variance: what the regression will assume (`Model`).

    Raises:
        DataError: the repair is unknown.
    """
    model = Model(repair, intercept_bound, prior_precision, residual_variance)
    search = _Search(model, _auxiliary(n, features, grid, rng), noise_std)
    error = np.array([search.errors(np.full(features, p), grid) for p in grid])
    best, best_target = np.unravel_index(np.argmin(error), error.shape)
    common, target, least = float(grid[best]), float(grid[best_target]), float(error[best, best_target])
    bounds = np.full(features, common)
    if each:
        bounds, least = search.descend(bounds, int(best_target), grid, least)
    return Thresholds(common, target, least, tuple(float(p) for p in bounds))


@dataclass(frozen=True, eq=False)
class _Auxiliary:
    """Rows to fit, rows to test on, targets for each of R draws of β, and unit noise for the coordinates of the sum."""

    n: int  # rows that x and y stand for
    x: Array  # (k, d), k = min(n, ROWS_MAX)
    y: Array  # (k, R, g), projected to each threshold of the target
    x_test: Array  # (TEST_ROWS, d)
    y_test: Array  # (TEST_ROWS, R)
    noise: Array  # (R, terms), those of a constant among them

    @cached_property
    def yy(self) -> Array:
        """Squares of the projected targets, summed over the rows: ``(R, g)``."""
        squares: Array = (self.y**2).sum(axis=0)
        return squares

    @cached_property
    def yy_test(self) -> Array:
        """Squares of the test targets, summed over the rows: ``(R,)``."""
        squares: Array = (self.y_test**2).sum(axis=0)
        return squares


def _auxiliary(n: int, d: int, grid: Array, rng: np.random.Generator) -> _Auxiliary:
    k = min(n, ROWS_MAX)
    x = rng.standard_normal((k + TEST_ROWS, d))  # (4)
    beta = rng.standard_normal((d, REPEATS)) * np.sqrt(PRIOR_R2 / d)  # (5)
    y = x @ beta + rng.standard_normal((k + TEST_ROWS, REPEATS)) * np.sqrt(1 - PRIOR_R2)  # (6)
    y /= np.sqrt((beta**2).sum(axis=0) + 1 - PRIOR_R2)
    m = d + 1
    noise = rng.standard_normal((REPEATS, m * (m + 1) // 2 + m + 1))
    return _Auxiliary(n, x[:k], np.clip(y[:k, :, None], -grid, grid), x[k:], y[k:], noise)


@dataclass(frozen=True, eq=False)
class _Search:
    """Errors of thresholds on the auxiliary data."""

    model: Model
    aux: _Auxiliary
    noise_std: NoiseStd

    def errors(self, p: Array, targets: Array) -> Array:
        """Mean squared test error for bounds p of the features, shape ``(d,)``, and each of the target's: ``(g,)``."""
        std = np.array([self.noise_std((*self.model.constants, *p.tolist(), q)) for q in targets.tolist()])
        x = self._design(self.aux.x_test, p)
        mean = posterior_mean(
            self._noisy_statistics(p, std),
            self._prior(x.shape[1]),
            self.model.residual_variance,
            repair=self.model.repair,
        )
        explained = np.einsum("rgi,ir->rg", mean, x.T @ self.aux.y_test)
        fit = ((mean @ (x.T @ x)) * mean).sum(axis=-1)
        errors: Array = (self.aux.yy_test[:, None] - 2 * explained + fit).mean(axis=0) / len(x)
        return errors

    def descend(self, p: Array, target: int, grid: Array, least: float) -> tuple[Array, float]:
        """Bounds of the features improved one after the other, the target's kept at its place in the grid."""
        one_target = replace(self, aux=replace(self.aux, y=self.aux.y[:, :, [target]]))
        for _ in range(PASSES):
            for j in range(len(p)):
                tried = np.where(np.arange(len(p)) == j, grid[:, None], p)
                errors = np.array([one_target.errors(each, grid[[target]])[0] for each in tried])
                if errors.min() < least:
                    p, least = tried[int(errors.argmin())], float(errors.min())
        return p, least

    def _prior(self, m: int) -> ArrayLike:
        given = self.model.prior_precision
        return prior_precision(self.aux.x.shape[1])[-m:] if given is None else given

    def _noisy_statistics(self, p: Array, noise_std: Array) -> SufficientStatistics:
        """What the second round would release, for every draw and threshold of the target: leading axes ``(R, g)``."""
        aux, x = self.aux, self._design(self.aux.x, p)
        k, m = x.shape
        copies, constant = aux.n / k, self.model.intercept_bound
        xy = np.moveaxis(np.tensordot(x, aux.y, axes=(0, 0)), 0, -1) * copies
        noise = aux.noise[:, None, :] * noise_std[:, None]  # (R, g, terms)
        unique = m * (m + 1) // 2
        xx = x.T @ x * copies + symmetric(noise[..., :unique], m)
        if constant is not None:
            xx[..., 0, 0] = aux.n * constant**2  # all rows are complete, and that is known here
        yy = aux.yy * copies + noise[..., -1]
        xy = xy + noise[..., unique : unique + m]
        return SufficientStatistics(aux.n, xx, xy, yy, noise_std**2, constant=constant is not None)

    def _design(self, x: Array, p: Array) -> Array:
        """Rows projected to [-p, p], supplement eq. (8), behind the constant feature."""
        constants = [np.full(len(x), value) for value in self.model.constants]
        return np.column_stack([*constants, np.clip(x, -p, p)])
