"""Marginal log likelihoods of one perturbed category, the true one summed out (section 3.2.2 and eqs. 31 to 33).

θ are the shares of k categories. A mechanism names the client's own category with probability p and each other one with
q < p, where p and q are the exact ones of `privacy.local` (`mechanism.probabilities`); that ln((1-q)/q) is ε, as
eq. (33) has it, is true only up to its rounding. (The paper's letters in eq. (9): its q is this p, its p is 1 - q.)

**Unary encoding** sets bit j with that probability. The product over the bits is Π_j q^z_j (1-q)^(1-z_j) but for the
client's own bit, so that with r_1 = p/q > 1 > r_0 = (1-p)/(1-q)
    P(z | θ) = Π_j q^z_j (1-q)^(1-z_j) · [r_0 Σ_k θ_k + (r_1 - r_0) Σ_k θ_k z_k],
a sum of positive terms, one matrix-vector product for all reports. θ enters by its logarithm, the largest of which is
divided out, so that shares like e^-1000 neither vanish alone nor spoil gradients.

**Many reports.** `patterns` counts equal vectors of bits: where there are no more vectors of k bits than reports, all
2^k of them (counts may be 0), so that the shapes depend on n and k alone and compiled code can be used again. With
many categories hardly two reports are equal, and all are kept.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from inference.errors import DataError
from inference.models.column.log_space import Array


def unary_encoding(bits: Array, log_theta: Array, p: float, q: float) -> Array:
    """ln P(z | θ) of each report, shape ``(n,)``.

    Args:
        bits: truth values or 0 and 1, shape ``(n, k)``. log_theta: ln of the shares, shape ``(k,)``.
        p: of a 1 at the client's own category. q: of a 1 at each other one, 0 < q < p < 1.
    """
    z = jnp.asarray(bits, dtype=float)
    ones = z.sum(axis=-1)
    as_if_none_were_own = ones * jnp.log(q) + (z.shape[-1] - ones) * jnp.log1p(-q)
    return as_if_none_were_own + _log_mixed(log_theta, lambda theta: z @ theta, p / q, (1 - p) / (1 - q))


def randomised_response(reports: Array, log_theta: Array, p: float, q: float) -> Array:
    """ln P(z | θ) = ln (q Σ_k θ_k + (p - q) θ_z) of each report, shape ``(n,)``.

    Args:
        reports: categories 0 to k - 1, shape ``(n,)``. log_theta: ln of the shares, shape ``(k,)``.
        p: of the client's own category. q: of each other one, 0 < q < p.
    """
    return _log_mixed(log_theta, lambda theta: theta[jnp.asarray(reports)], p, q)


def randomised_response_sum(counts: Array, log_theta: Array, p: float, q: float) -> Array:
    """Σ `randomised_response` over all reports, of which ``counts[k]`` report the category k; shape ``(k,)``."""
    return jnp.sum(counts * _log_mixed(log_theta, lambda theta: theta, p, q))


def _log_mixed(log_theta: Array, named: Callable[[Array], Array], if_named: float, if_not: float) -> Array:
    """ln of the sum of θ's weights, times `if_named` for the categories that a report names, `if_not` for the others.

    Args:
        named: what the weights of those that a report names add up to, given all weights.
    """
    logs = jnp.asarray(log_theta, dtype=float)
    largest = jax.lax.stop_gradient(logs.max())
    theta = jnp.exp(logs - largest)
    return largest + jnp.log(if_not * theta.sum() + (if_named - if_not) * named(theta))


def patterns(bits: Array) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Vectors of k bits, shape ``(m, k)``, and how many reports are each, shape ``(m,)``; m is the lesser of 2^k and n.

    Args:
        bits: reports, truth values or 0 and 1, shape ``(n, k)``.

    Raises:
        DataError: something else.
    """
    reports = np.asarray(bits)
    if reports.ndim != 2 or not reports.size or not np.isin(reports, (0, 1)).all():
        raise DataError(f"reports have shape {reports.shape} or are not all bits, expected 0 and 1 in shape (n, k)")
    n, k = reports.shape
    if 2**k > n:
        return reports.astype(bool), np.ones(n)
    places = np.arange(k)
    counts = np.bincount(reports.astype(np.int64) @ (1 << places), minlength=2**k)
    return (np.arange(2**k)[:, None] >> places & 1).astype(bool), counts.astype(np.float64)
