"""Clients that also report whether they have a value: the likelihood of both numbers of their reports.

A client with a value x reports (x, w) plus noise, and one without reports (the middle of the bounds, 0). With the
half-width of the bounds as unit, two clients with values are at most 2 apart, in L1 and in L2. One of each kind are at
most 1 + w apart in L1, and √(1 + w²) in L2. So w = 1 for Laplace noise and w = √3 for Gaussian noise cost nothing: the
noise is that of a report without w (`dca_proto.statistics.counting`).

**The likelihood.** Let m be the share of clients without a value, p the density of a clipped value's report, and k that
of the noise:

    p(z, c) = (1 - m) p(z) k(c - w) + m k(z - middle) k(c).

Here c has w as its unit, and s is the scale of its noise. The prior of m is Beta(½, 1), most of it near 0. What a mean
pays is that m is not known exactly: a mean at z half-widths from the middle has up to √(1 + (z/w)²) times the error
that it would have if nobody could lack a value.

**Many reports** (`reduced`). ln p(z, c) is smooth in both numbers. So its sum over all reports is one over a grid of
Chebyshev points, with weights that depend on the reports alone, as in `rectified`:

- In z the points are those of `rectified`. Laplace's k(z - middle) has a kink, so each half of the bounds has its own.
- In c the two terms differ by the factor exp(L), L = (c - ½)/s² for Gaussian noise. For Laplace noise L = (2c - 1)/s
  within [0, 1] and constant beyond, so reports from beyond count at the ends. ln p has its singularities where the
  imaginary part of L is π, at a distance of πs² or πs/2 from the real line. `_presence_degree` follows from that
  distance, for a relative error of about e⁻¹⁴ (`EXACT`).
"""

from __future__ import annotations

from math import asinh, ceil, pi
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.stats import laplace, norm

from inference.models.column import rectified
from inference.models.column.families import GAUSSIAN
from inference.problem import AnyArray as Array
from inference.releases.reports import Scalars

REACH = 5.0  # standard deviations of Gaussian noise within which nearly all reports are
EXACT = 14.0  # -ln of the interpolation's relative error
DEARER = 8.0  # times as long as a mixture's logarithm, p(z) takes


def mixed(log_p: Array, atom: Array, log_odds: Array, missing: Array) -> Array:
    """Return ln p(z, c), less ln k(z - middle) k(c), which does not depend on the parameters.

    Args:
        log_p: ln p(z). atom: ln k(z - middle). Both have the shape ``(n,)``. missing: m, between 0 and 1.
        log_odds: L, shape ``(n,)`` for reports, or ``(j, 1)`` for a grid; there, no number is beyond what exp can take.
    """
    there = jnp.log1p(-missing) + log_p - atom
    if jnp.ndim(log_odds) == 1:
        return jnp.logaddexp(there + log_odds, jnp.log(missing))
    return jnp.log(jnp.exp(there) * jnp.exp(log_odds) + missing)


def reduced(family: str, reports: Scalars) -> dict[str, Any]:
    """Return points ``z``, their ``weight``, and what `mixed` needs there, for `noise_aware.ClippedColumn`.

    The weighted sum of `mixed` is that over all reports, up to a constant. Shapes depend on the number of reports and
    on the noise alone, so compiled code can be reused.
    """
    assert reports.present is not None, "clients say whether they have a value"
    noise, c, n = laplace if reports.laplace else norm, reports.present, len(reports.z)
    width = 2 * reports.bounds.half_width
    nodes = rectified.nodes_for(n, width / reports.scale) if reports.laplace else rectified.POINTS
    few = family == GAUSSIAN if reports.laplace else width <= rectified.WIDEST * reports.scale
    degree = _presence_degree(reports)
    known: dict[str, Any] = {"z": reports.z, "weight": np.ones(n)}
    if few and nodes < n and (degree + 1) * nodes <= DEARER * n:
        c, grid = _grid(reports, nodes, degree)
        c, known = c[:, None], grid
    log_odds = noise.logpdf(c, 1.0, reports.present_scale) - noise.logpdf(c, 0.0, reports.present_scale)
    return {**known, "atom": noise.logpdf(known["z"], reports.bounds.centre, reports.scale), "log_odds": log_odds}


def _presence_degree(reports: Scalars) -> int:
    """Return the degree of a polynomial in c that is as exact as ``EXACT`` has it."""
    s = reports.present_scale
    relative = pi * s if reports.laplace else pi * s**2 / (0.5 + REACH * s)  # of the half-width of c's range
    return ceil(EXACT / asinh(relative))


def _grid(reports: Scalars, nodes: int, degree: int) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """Return points of c, and points of z with the weights of both, shape ``(j, k)``."""
    assert reports.present is not None, "clients say whether they have a value"
    low, high = reports.bounds.lower, reports.bounds.upper
    if reports.laplace:
        halves, seen, ends = (nodes + 1) // 2, np.clip(reports.z, low, high), (0.0, 1.0)
        parts = [(low, reports.bounds.centre, halves), (reports.bounds.centre, high, halves)]
    else:
        seen, reach = reports.z, REACH * reports.present_scale
        parts = [(float(seen.min()), float(seen.max()), nodes - 1)]
        ends = min(-reach, float(reports.present.min())), max(1 + reach, float(reports.present.max()))
    c = _within(np.clip(reports.present, *ends), *ends)
    points, weights, last = [], [], parts[-1]
    for part in parts:
        lower, upper, own = part
        inside = (seen >= lower) & ((seen < upper) | (part is last))
        points.append((lower + upper) / 2 + (upper - lower) / 2 * rectified.chebyshev_points(own))
        weights.append(rectified.lagrange_products(c[inside], _within(seen[inside], lower, upper), (degree, own)))
    known: dict[str, Any] = {"z": np.concatenate(points), "weight": np.concatenate(weights, axis=1)}
    if reports.laplace:
        known["narrowest"] = rectified.narrowest_for(nodes, high - low)
    return sum(ends) / 2 + (ends[1] - ends[0]) / 2 * rectified.chebyshev_points(degree), known


def _within(x: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    """Map [low, high] to [-1, 1]."""
    return (2 * x - low - high) / (high - low)
