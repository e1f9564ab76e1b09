"""Marginal log likelihoods of one perturbed category, the true one summed out (section 3.2.2 and eqs. 31 to 33).

θ are the shares of k categories. A mechanism reports the client's own category with probability p and each other one
with q < p. p and q are the exact probabilities of `privacy.local` (`mechanism.probabilities`), so eq. (33),
ln((1-q)/q) = ε, holds only up to their rounding. (In the paper's eq. (9), q is this p, and p is 1 - q.)

**Unary encoding** sets bit j with that probability. The product over the bits is Π_j q^z_j (1-q)^(1-z_j), except for
the client's own bit. So with r_1 = p/q > 1 > r_0 = (1-p)/(1-q)
    P(z | θ) = Π_j q^z_j (1-q)^(1-z_j) · [r_0 Σ_k θ_k + (r_1 - r_0) Σ_k θ_k z_k],
a sum of positive terms, and one matrix-vector product for all reports. θ enters as a logarithm, and the largest share
is divided out, so that shares like e^-1000 neither underflow nor spoil gradients.

**Many reports.** `patterns` counts equal vectors of bits. If there are at most as many vectors of k bits as reports, it
lists all 2^k of them (counts may be 0). So the shapes depend on n and k alone, and compiled code can be reused. With
more categories hardly two reports are equal, and all are kept.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from inference.errors import DataError
from inference.problem import AnyArray as Array


def unary_encoding(bits: Array, log_theta: Array, p: float, q: float) -> Array:
    """Return ln P(z | θ) of each report, shape ``(n,)``.

    Args:
        bits: truth values or 0 and 1, shape ``(n, k)``. log_theta: ln of the shares, shape ``(k,)``.
        p: probability of a 1 at the client's own category. q: at each other category, 0 < q < p < 1.
    """
    z = jnp.asarray(bits, dtype=float)
    ones = z.sum(axis=-1)
    as_if_none_were_own = ones * jnp.log(q) + (z.shape[-1] - ones) * jnp.log1p(-q)
    return as_if_none_were_own + _log_mixed(log_theta, lambda theta: z @ theta, p / q, (1 - p) / (1 - q))


def randomised_response(log_theta: Array, p: float, q: float) -> Array:
    """Return ln P(z | θ) = ln (q Σ_k θ_k + (p - q) θ_z) of a report of each category z, shape ``(k,)``.

    Args:
        log_theta: ln of the shares, shape ``(k,)``.
        p: probability of reporting the client's own category. q: of each other category, 0 < q < p.
    """
    return _log_mixed(log_theta, lambda theta: theta, p, q)


def _log_mixed(log_theta: Array, named: Callable[[Array], Array], if_named: float, if_not: float) -> Array:
    """Return ln Σ_k w_k θ_k, with w_k = `if_named` for the categories that a report names, else `if_not`.

    Args:
        named: function that returns, given all shares, the sum over the categories that each report names.
    """
    logs = jnp.asarray(log_theta, dtype=float)
    largest = jax.lax.stop_gradient(logs.max())
    theta = jnp.exp(logs - largest)
    return largest + jnp.log(if_not * theta.sum() + (if_named - if_not) * named(theta))


def patterns(bits: Array) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return vectors of k bits, shape ``(m, k)``, and the number of reports equal to each; m is min(2^k, n).

    Args:
        bits: reports, truth values or 0 and 1, shape ``(n, k)``.

    Raises:
        DataError: ``bits`` has another shape or other values.
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
