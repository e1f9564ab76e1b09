"""Bayesian linear regression from noisy sufficient statistics (DCA paper, section 3.2.1; supplement, section 2).

    yᵢ | xᵢ ~ N(xᵢᵀβ, λ⁻¹)      (3)     xx  = Σ xᵢxᵢᵀ      λ   precision of the residuals
    β ~ N(0, diag(λ₀)⁻¹)        (4)     xy  = Σ xᵢyᵢ       λ₀  prior precision of each coefficient
    β | y, x ~ N(μ̂, Λ̂⁻¹)        (5)     yy  = Σ yᵢ²        n   number of rows
    Λ̂ = diag(λ₀) + λ xx         (6)     s²  variance of the privacy noise in each unique term of a block
    μ̂ = Λ̂⁻¹ λ xy                (7)     E, e  the noise in xx (symmetric) and xy

**The repair.** A round releases A = xx + E and b = xy + e. A can be indefinite, and plugging it into (6) takes noise
for data. But the noise's variance is known. From xy = xx β + Σ xᵢrᵢ, with residuals rᵢ,

    b = A β + (e - E β) + Σ xᵢ rᵢ,   Cov = S(β) = Cov(e - E β) + λ⁻¹ xx

is itself a linear regression, of b on the rows of A, with a known noise covariance. Its posterior,

    Λ̂ = diag(λ₀) + Aᵀ S⁻¹ A,   μ̂ = Λ̂⁻¹ Aᵀ S⁻¹ b,

needs no positive definite A, because Aᵀ S⁻¹ A is always positive semi-definite. Its spread contains the privacy noise.
It stays near the prior in directions in which A is mostly noise. At s = 0, where S = λ⁻¹ xx, it is (6) and (7).

If S were known, Bayes' rule would give this posterior under a flat prior on xx. S is estimated: starting from β = 0, λ
(unless it is known) and β are computed in turn, and xx in S is the positive semi-definite matrix nearest to A. For the
posterior covariance, S has E[ββᵀ] instead of ββᵀ. A is first shrunk (`shrunk`), which reduces its error. S keeps the
variance of E, which on average is no smaller than that of the remaining error.

This repair is the default: `inference/DESIGN.md` §2 compares its errors with those of the others. The estimate of the
residual variance is up to 30 % too small if noise dominates.

**The repairs** of a matrix A = xx + E that may not be positive semi-definite, although xx is:

- `absolute`: |A|, negative eigenvalues change their sign (as in the DCA paper's published code);
- `nearest-psd`: A₊, negative eigenvalues become 0 (nearest in Frobenius norm);
- `noise-aware`: A shrunk, in the regression with the noise in its model (above).

Neither |A| nor A₊ is further from xx than A is, in Frobenius norm: projecting onto a convex set that contains xx
never adds distance, and for symmetric matrices A -> |A| is Lipschitz with constant 1 while |xx| = xx. So the known
variance of the noise bounds the remaining error. On average this also holds for James-Stein shrinkage, with which the
noise-aware repair starts: k >= 3 numbers with independent noise of variance s² get nearer to the truth if they are
multiplied by 1 - (k - 2) s² / Σ a².

All functions broadcast over leading axes, so that many releases can be repaired at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
from numpy.typing import ArrayLike

from dca_proto.statistics.counting import about_missing
from inference.errors import DataError
from inference.jobs.settings import require_choice
from inference.problem import Array

NOISE_AWARE = "noise-aware"
NEAREST_PSD = "nearest-psd"
ABSOLUTE = "absolute"
REPAIRS = (NOISE_AWARE, NEAREST_PSD, ABSOLUTE)
REPAIR = NOISE_AWARE  # the default
ITERATIONS = 4  # of plugging β and λ into S; at ε = 1 the mean was then measured 0.003 sd from the fixed point


@dataclass(frozen=True)
class Noise:
    """Variance of the noise in each unique term of xx, of xy and of yy, each broadcastable to ``(...)``.

    Attributes:
        constant: variance in the square of a constant first feature, instead of ``xx``; 0 if that square is exact.
    """

    xx: ArrayLike = 0.0
    xy: ArrayLike = 0.0
    yy: ArrayLike = 0.0
    constant: ArrayLike = 0.0


def check_repair(repair: str) -> None:
    """Raise `DataError` unless the name is one of `REPAIRS`."""
    require_choice("repair", repair, REPAIRS)


def repaired(A: Array, repair: str) -> Array:
    """Return the positive semi-definite matrix that replaces A, shape ``(..., m, m)``; A₊ for noise-aware."""
    values, vectors = np.linalg.eigh(A)
    values = np.abs(values) if repair == ABSOLUTE else np.maximum(values, 0.0)
    return np.asarray((vectors * values[..., None, :]) @ np.swapaxes(vectors, -1, -2))


def shrunk(A: Array, variance: ArrayLike, *, constant: bool = False) -> Array:
    """Return A with its noise reduced by positive-part James-Stein shrinkage in groups, shape ``(..., m, m)``.

    There are three groups: products of two features shrink towards 0, products with the constant shrink towards 0, and
    squares shrink towards their mean (with k - 3 for k - 2). A group of k < 3 (of squares, k < 4) does not change.

    Args:
        variance: s² of each unique term, shape ``(...)``. constant: whether the first feature is a constant; its own
            square does not change.
    """
    result, m, first = A.copy(), A.shape[-1], int(constant)
    i, j = np.triu_indices(m, 1)
    groups = [(i[i >= first], j[i >= first]), (i[i < first], j[i < first])]
    for rows, columns in groups:
        result[..., rows, columns] = _james_stein(A[..., rows, columns], variance, len(rows) - 2)
        result[..., columns, rows] = result[..., rows, columns]
    own = np.arange(first, m)
    squares = A[..., own, own]
    mean = squares.mean(axis=-1, keepdims=True)
    result[..., own, own] = mean + _james_stein(squares - mean, variance, len(own) - 3)
    return result


def _james_stein(a: Array, variance: ArrayLike, freedom: int) -> Array:
    if freedom < 1:
        return a
    noise = freedom * np.asarray(variance, float)
    norm = np.maximum((a**2).sum(axis=-1), np.maximum(noise, np.finfo(float).tiny))  # below the noise: all of it is
    factor = 1 - noise / norm
    return np.asarray(factor[..., None] * a)


def noise_covariance(
    beta: Array, noise: Noise | ArrayLike, *, constant: bool = False, cov: Array | None = None
) -> Array:
    """Return Cov(e - E β), shape ``(..., m, m)``, for independent unique terms of the symmetric E and of e.

    (E β)_j and (E β)_k share E_jk, hence s_xy² I + s_xx² [ tr(B) I + B - diag(B) ] with B = ββᵀ, or B = E[ββᵀ] if β
    is uncertain and has the covariance ``cov`` about ``beta``. Args: constant: as for `SufficientStatistics`.
    """
    variances = noise if isinstance(noise, Noise) else Noise(noise, noise, noise)
    second = beta[..., :, None] * beta[..., None, :] + (0.0 if cov is None else cov)
    squares = np.diagonal(second, axis1=-2, axis2=-1)
    diagonal = squares.sum(axis=-1, keepdims=True) - squares  # the diagonal of tr(B) I - diag(B)
    if constant:
        diagonal[..., 0] -= squares[..., 0]
    eye = np.eye(beta.shape[-1])
    in_xx, in_xy = (np.asarray(one, float)[..., None, None] for one in (variances.xx, variances.xy))
    total: Array = in_xx * (second + diagonal[..., None] * eye) + in_xy * eye
    if constant:
        total[..., 0, 0] += np.asarray(variances.constant, float) * squares[..., 0]
    return total


@dataclass(frozen=True, eq=False)
class SufficientStatistics:
    """Sums over n rows with m features: ``xx`` of shape ``(..., m, m)``, ``xy`` of shape ``(..., m)``.

    Attributes:
        n: number of rows, a number or shape ``(...)``. xx, xy: as above.
        yy: sum of squared targets, shape ``(...)``; None if it was not released.
        noise_variance: s² of each unique term, broadcastable to ``(...)``, or a `Noise` by block; 0 without noise.
        constant: whether the first feature is a constant; the noise in its own square is ``Noise.constant``.
        residuals: the matrix R, shape ``(m, m)``, for which Σ xᵢrᵢ has the covariance λ⁻¹ R; None: R = xx. For rows
            multiplied by weights s (`rows`) it is Σ s² xᵢxᵢᵀ over the weighted rows, and n is Σ s².
        bend: a matrix that the spread adds to R, shape ``(m, m)``, for what weights change in a curved relation
            (`rows`); None if there are no weights.
    """

    n: float | Array
    xx: Array
    xy: Array
    yy: Array | None = None
    noise_variance: ArrayLike | Noise = 0.0
    constant: bool = False
    residuals: Array | None = None
    bend: Array | None = None

    @property
    def noise(self) -> Noise:
        """s² of each block."""
        variance = self.noise_variance
        return variance if isinstance(variance, Noise) else Noise(variance, variance, variance)

    def about_rows(self, constant: float) -> tuple[str, ...]:
        """Warn of missing rows: the sum of the constant's squares, as released, counts the complete ones."""
        sd = sqrt(float(np.asarray(self.noise.xx))) / constant**2
        return about_missing(float(self.xx[0, 0]) / constant**2, sd, int(self.n))


@dataclass(frozen=True, eq=False)
class NormalBeta:
    """β | data ~ N(mean, cov): shapes ``(..., m)`` and ``(..., m, m)``; residual_variance is λ⁻¹, shape ``(...)``.

    Attributes:
        prior_variance: of each coefficient's normal prior about 0, shape ``(m,)``, infinite if it is flat; None if
            there is no such prior.
    """

    mean: Array
    cov: Array
    residual_variance: Array
    prior_variance: Array | None = None


def unpack(
    value: Array, features: int, n: int, noise_variance: float, *, weights: tuple[float, float, float] = (1, 1, 1)
) -> SufficientStatistics:
    """Split a released vector into statistics: unique terms of xxᵀ row by row, then xy, then y² if present.

    Args:
        value: shape ``(m(m+1)/2 + m,)`` or one longer.
        features: m, a constant included; the constant's square stays as released (`rows.counted`).
        n: number of contributors to the sum. noise_variance: of each coordinate of ``value``.
        weights: factors w of the terms of xxᵀ, xy and y², applied before the noise. So in a block's own units the
            noise variance is 1/w² times that of ``value``.

    Raises:
        DataError: the vector has another length.
    """
    unique = features * (features + 1) // 2
    if value.size not in (unique + features, unique + features + 1):
        raise DataError(f"{value.size} numbers are not the regression statistics of {features} features")
    xx, xy = symmetric(value[:unique], features) / weights[0], value[unique : unique + features] / weights[1]
    yy = value[-1] / weights[2] if value.size > unique + features else None
    noise = Noise(*(noise_variance / weight**2 for weight in weights))
    return SufficientStatistics(n, xx, xy, yy, noise)


def symmetric(unique: Array, m: int | None = None) -> Array:
    """Return symmetric matrices ``(..., m, m)`` from their upper triangles row by row, ``(..., m(m+1)/2)``."""
    m = int(np.sqrt(2 * unique.shape[-1])) if m is None else m
    i, j = np.triu_indices(m)
    matrix = np.empty((*unique.shape[:-1], m, m))
    matrix[..., i, j] = unique
    matrix[..., j, i] = unique
    return matrix


def posterior(
    statistics: SufficientStatistics,
    prior_precision: ArrayLike,
    residual_variance: ArrayLike | None = None,
    *,
    repair: str = REPAIR,
    noise_in_spread: bool = True,
) -> NormalBeta:
    """Return the posterior of β given noisy sufficient statistics: supplement eqs. (5) to (7), with a repair.

    Args:
        statistics: of the rows. prior_precision: λ₀, broadcastable to ``(m,)``, or a matrix ``(m, m)``; 0 is flat.
        residual_variance: λ⁻¹ > 0 if known; None estimates it from ``yy``.
        repair: one of `REPAIRS`.
        noise_in_spread: whether the covariance includes the privacy noise. False gives the published Λ̂⁻¹ alone, which
            is far too narrow; the noise-aware repair does not support it.

    Raises:
        DataError: both ``yy`` and the residual variance are missing, or the options exclude each other.
    """
    if repair == NOISE_AWARE and not noise_in_spread:
        raise DataError("the noise-aware repair always has the noise in its spread; name another repair")
    return fitted(statistics, prior_precision, residual_variance, repair).posterior(noise_in_spread=noise_in_spread)


@dataclass(frozen=True, eq=False)
class Fit:
    """β and λ⁻¹ plugged into each other, with their inputs.

    Attributes:
        statistics: with A shrunk, if aware. plus: the positive semi-definite matrix that replaces xx.
        prior: diag(λ₀), or a matrix. aware: whether the noise-aware regression is used. variance: λ⁻¹.
    """

    statistics: SufficientStatistics
    plus: Array
    prior: Array
    aware: bool
    variance: Array
    beta: Array

    def posterior(self, *, noise_in_spread: bool = True) -> NormalBeta:
        """Return the posterior of β. Args: noise_in_spread: as for the function `posterior`."""
        spread = self.spread() if noise_in_spread else self.published_spread()
        with np.errstate(divide="ignore"):
            return NormalBeta(self.beta, spread, self.variance, 1 / np.diag(self.prior))

    def learnt(self, cov: Array | None = None, *, bent: bool = False) -> tuple[Array, Array]:
        """Return the data's part of Λ̂, and Λ̂ μ̂: Aᵀ S⁻¹ A and Aᵀ S⁻¹ b; if not aware, λ xx (repaired) and λ xy.

        Args:
            cov: of β about its mean, if it is uncertain. bent: whether S includes `SufficientStatistics.bend`.
        """
        A, b, scale = self.statistics.xx, self.statistics.xy, self.variance[..., None]
        if not self.aware:
            return self.plus / scale[..., None], b / scale
        S = self._of_residuals(cov)
        if bent and self.statistics.bend is not None:
            S = S + self.variance[..., None, None] * self.statistics.bend
        weighted = np.swapaxes(np.linalg.solve(S, A), -1, -2)  # AᵀS⁻¹
        return weighted @ A, _apply(weighted, b)

    def _of_residuals(self, cov: Array | None) -> Array:
        """Return S, the covariance of b about A β."""
        residuals = self.plus if self.statistics.residuals is None else self.statistics.residuals
        return self._privacy(cov) + self.variance[..., None, None] * residuals

    def log_evidence(self) -> float:
        """Return ln p(b | A, λ₀) up to a constant: b ~ N(0, A diag(λ₀)⁻¹ A + S), S as in the posterior; one release."""
        A = self.statistics.xx if self.aware else self.plus
        cov = A @ np.linalg.solve(self.prior, A) + self._of_residuals(self.published_spread())
        cov = cov + np.eye(len(cov)) * np.finfo(float).eps * np.trace(cov)
        b = self.statistics.xy
        return float(-0.5 * (np.linalg.slogdet(cov)[1] + b @ np.linalg.solve(cov, b)))

    def published_spread(self) -> Array:
        """Return Λ̂⁻¹, eq. (6), as if S contained the true β."""
        return np.asarray(np.linalg.inv(self.prior + self.learnt()[0]), float)

    def spread(self) -> Array:
        """Return the covariance with all of the privacy noise, including its products with an uncertain β.

        If not aware, it is Λ̂⁻¹ + λ² Λ̂⁻¹ Cov(e - E β) Λ̂⁻¹. Let M = xx + E' be the repaired matrix. Then b = M β
        + (e - E' β) + Σ xᵢrᵢ, and μ̂ - β is Λ̂⁻¹ times λ (e - E' β) + λ Σ xᵢrᵢ - diag(λ₀) β. Over residuals and prior,
        the last two terms have the covariance Λ̂, which gives Λ̂⁻¹. The first is independent of them, and E' is no
        larger than E.
        """
        cov = self.published_spread()
        if self.aware:
            return np.asarray(np.linalg.inv(self.prior + self.learnt(cov, bent=True)[0]), float)
        return np.asarray(cov + cov @ self._privacy(cov) @ cov / self.variance[..., None, None] ** 2)

    def _privacy(self, cov: Array | None) -> Array:
        return noise_covariance(self.beta, self.statistics.noise, constant=self.statistics.constant, cov=cov)


def fitted(
    statistics: SufficientStatistics, prior_precision: ArrayLike, residual_variance: ArrayLike | None, repair: str
) -> Fit:
    """Iterate β and λ⁻¹. Arguments and errors as for `posterior`."""
    check_repair(repair)
    if statistics.yy is None and residual_variance is None:
        raise DataError("the residual variance is unknown, and the statistics have no yy to estimate it from; give it")
    noise, known = statistics.noise, residual_variance
    exact = repair == NOISE_AWARE and not (np.any(noise.xx) or np.any(noise.xy))
    aware = repair == NOISE_AWARE and (not exact or statistics.residuals is not None)
    if aware:
        statistics = replace(statistics, xx=shrunk(statistics.xx, noise.xx, constant=statistics.constant))
    plus = statistics.xx if exact else repaired(statistics.xx, repair)
    given = np.asarray(prior_precision, float)
    prior = given if given.ndim == 2 else np.diag(np.broadcast_to(given, plus.shape[-1:]))
    beta: Array = np.zeros_like(statistics.xy)
    for _ in range(ITERATIONS):
        variance = _residual_variance(statistics, plus, beta) if known is None else np.asarray(known, float)
        fit = Fit(statistics, plus, prior, aware, variance, beta)
        learnt, pull = fit.learnt()
        beta = np.asarray(np.linalg.solve(prior + learnt, pull[..., None])[..., 0], float)  # eq. (7)
    return replace(fit, beta=beta)


def _residual_variance(statistics: SufficientStatistics, plus: Array, beta: Array) -> Array:
    """Return (yy - 2βᵀb + βᵀAβ)/n, but at least one standard deviation of the noise in yy, over n."""
    assert statistics.yy is not None
    explained = 2 * (beta * statistics.xy).sum(axis=-1) - (beta * _apply(plus, beta)).sum(axis=-1)
    yy = np.abs(statistics.yy)
    least = np.sqrt(statistics.noise.yy) + np.finfo(float).eps * np.where(yy > 0, yy, 1.0)
    return np.asarray(np.maximum(statistics.yy - explained, least) / statistics.n)


def _apply(matrix: Array, vector: Array) -> Array:
    return np.asarray((matrix @ vector[..., None])[..., 0])


def summarise(x: Array, y: Array) -> SufficientStatistics:
    """Return the exact statistics of rows ``x``, shape ``(n, m)``, and targets ``y``, shape ``(n,)``."""
    return SufficientStatistics(len(y), x.T @ x, x.T @ y, np.asarray(y @ y))
