"""Repairs of a noisy matrix A = xx + E that may not be positive semi-definite, although xx is.

    absolute      |A|: negative eigenvalues change their sign       (what the DCA paper's published code does)
    nearest-psd   A₊: negative eigenvalues become 0                 (nearest in Frobenius norm)
    noise-aware   A shrunk, in a regression that knows the noise    (`closed_form`)

Neither |A| nor A₊ is further from xx than A is, in Frobenius norm: the projection onto a convex set that holds xx
never adds distance, and for symmetric matrices A -> |A| is Lipschitz with constant 1 while |xx| = xx. So the noise of a
repaired matrix is, in all, at most that of A, and its known variance may stand for it. The same holds on average for
the shrinkage of James and Stein, which the noise-aware repair starts with: k >= 3 numbers with independent noise of
variance s² are nearer to the truth, whatever that is, after a multiplication by 1 - (k - 2) s² / Σ a².
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inference.errors import unknown

Array = NDArray[np.float64]

NOISE_AWARE = "noise-aware"
NEAREST_PSD = "nearest-psd"
ABSOLUTE = "absolute"
REPAIRS = (NOISE_AWARE, NEAREST_PSD, ABSOLUTE)
REPAIR = NOISE_AWARE  # unless asked for another


@dataclass(frozen=True)
class Noise:
    """Variance of the noise in each unique term of xx, of xy and of yy, each broadcastable to ``(...)``.

    Attributes:
        constant: in the own square of a constant first feature, in the place of xx's; 0 where it is exact.
    """

    xx: ArrayLike = 0.0
    xy: ArrayLike = 0.0
    yy: ArrayLike = 0.0
    constant: ArrayLike = 0.0

    @property
    def present(self) -> bool:
        """Whether there is any in what the coefficients depend on."""
        return bool(np.any(self.xx) or np.any(self.xy))


def check_repair(repair: str) -> None:
    """Raise `DataError` for a name that is none of `REPAIRS`."""
    if repair not in REPAIRS:
        raise unknown("repair", repair, None, REPAIRS)


def repaired(A: Array, repair: str) -> Array:
    """The positive semi-definite matrix that stands for A, shape ``(..., m, m)``; for noise-aware, A₊."""
    values, vectors = np.linalg.eigh(A)
    values = np.abs(values) if repair == ABSOLUTE else np.maximum(values, 0.0)
    positive: Array = (vectors * values[..., None, :]) @ np.swapaxes(vectors, -1, -2)
    return positive


def shrunk(A: Array, variance: ArrayLike, *, constant: bool = False) -> Array:
    """A with its noise reduced by positive-part James-Stein shrinkage in groups, shape ``(..., m, m)``.

    The groups: products of two features, towards 0; those with the constant, towards 0; squares, towards their mean
    (k - 3 for k - 2 then). One of fewer than three numbers beyond its centre stays as it is.

    Args:
        variance: s² of each unique term, shape ``(...)``. constant: whether the first feature is a constant, whose own
            square stays as it is.
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
    norm = (a**2).sum(axis=-1) + np.finfo(float).tiny
    factor = np.maximum(0.0, 1 - freedom * np.asarray(variance, float) / norm)
    closer: Array = factor[..., None] * a
    return closer


def noise_covariance(
    beta: Array, noise: Noise | ArrayLike, *, constant: bool = False, cov: Array | None = None
) -> Array:
    """Cov(e - E β), shape ``(..., m, m)``, where the unique terms of the symmetric E and those of e are independent.

    (E β)_j and (E β)_k share E_jk, hence s_xy² I + s_xx² [ tr(B) I + B - diag(B) ] with B = ββᵀ, or B = E[ββᵀ] where β
    is itself uncertain.

    Args:
        beta: shape ``(..., m)``. noise: variances, or one for all blocks.
        constant: whether the first feature is a constant, whose own square has a variance of its own.
        cov: of β about ``beta``, shape ``(..., m, m)``; None if β is known.
    """
    variances = noise if isinstance(noise, Noise) else Noise(noise, noise, noise)
    second = beta[..., :, None] * beta[..., None, :] + (0.0 if cov is None else cov)
    squares = np.diagonal(second, axis1=-2, axis2=-1)
    diagonal = squares.sum(axis=-1, keepdims=True) - squares  # the other half of each diagonal comes from B
    if constant:
        diagonal[..., 0] -= squares[..., 0]
    eye = np.eye(beta.shape[-1])
    scaled: Array = _over(variances.xx) * (second + diagonal[..., None] * eye) + _over(variances.xy) * eye
    if constant:
        scaled[..., 0, 0] += np.asarray(variances.constant, float) * squares[..., 0]
    return scaled


def _over(variance: ArrayLike) -> Array:
    """A variance of shape ``(...)`` against matrices of shape ``(..., m, m)``."""
    return np.asarray(variance, float)[..., None, None]
