"""Lemma 3.2 in full: a polynomial times the exponential of a quadratic, seen through Gaussian noise (eqs. 7, 8 and 21).

`inference.models.column.log_space` has the notation, and the closed form for a constant g.

If the interval lies in the tail, the recursion of the moments (integration by parts; Flecher, Allard and Naveau 2010)
subtracts nearly equal numbers. So Gauss-Legendre quadrature computes the integral: the interval is cut at m, so that q
is monotone in each part, and a part extends as far as q is within 40 + 4M of its maximum, M the degree of g. With
32 + 2M nodes per part, the error is below rounding. This holds for every real κ: κ = 0 (a pure exponential) and κ < 0
(the quadratic outweighs the noise, so there is no normal density) need no special case.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from inference.models.column.log_space import LOG_ROOT_2PI, Quadratic
from inference.problem import AnyArray as Array

_REACH, _REACH_OF_A_POWER = 40, 4
_NODES, _NODES_OF_A_POWER = 32, 2


def log_polynomial_gaussian(
    z: Array, g: Sequence[Array], h: Sequence[Array], low: Array, high: Array, sd: Array
) -> tuple[Array, Array]:
    """Return ln |p| and the sign of p = ∫ g(x) exp(h(x)) N(z; x, sd²) dx over [low, high]; -inf and 0 if p is 0.

    It holds for all real h, even if z or q's vertex is hundreds of standard deviations outside [low, high]. Measured up
    to degree 10: the error of p, relative to the integral of |g(x)| exp(h(x)) N(z; x, sd²), is below 1e-12, and below
    1e-15 times the largest |q|. If g changes its sign, p may be much smaller than that integral and lose digits.

    Args:
        z: the reports. g: coefficients of a polynomial, the constant first. h: the three coefficients of a quadratic.
        low < high, finite. sd: standard deviation of the noise. All broadcast.
    """
    degree = len(g) - 1
    nodes, weights = np.polynomial.legendre.leggauss(_NODES + _NODES_OF_A_POWER * degree)
    reach = _REACH + _REACH_OF_A_POWER * degree
    z, low, high, sd, *coefficients = jnp.broadcast_arrays(
        *(jnp.asarray(value, dtype=float) for value in (z, low, high, sd, *g, *h))
    )
    *powers, h0, h1, h2 = coefficients
    quadratic, curvature = Quadratic(h0, h1, h2), 1 / sd**2 - 2 * h2

    def slope(x: Array) -> Array:
        return (z - x) / sd**2 + h1 + 2 * h2 * x

    def part(first: Array, last: Array) -> tuple[Array, Array]:
        """Return q's maximum in [first, last], and the integral of g exp(q) in units of exp(maximum)."""
        q_first, q_last = (quadratic(x) - ((z - x) / sd) ** 2 / 2 for x in (first, last))
        rising = q_last > q_first
        decay = jnp.where(rising, slope(last), -slope(first))
        length = jnp.minimum(last - first, _until(decay, curvature, reach))
        away = length[..., None] * (1 + nodes) / 2
        x = jnp.where(rising, last, first)[..., None] + jnp.where(rising, -1, 1)[..., None] * away
        value = jnp.zeros_like(x)
        for power in powers[::-1]:
            value = value * x + power[..., None]
        fallen = jnp.exp(-away * (decay[..., None] + curvature[..., None] * away / 2))
        return jnp.where(rising, q_last, q_first), length / 2 * jnp.sum(value * fallen * weights, axis=-1)

    cut = _vertex(slope(low), slope(high), low, high)
    (q_left, left), (q_right, right) = part(low, cut), part(cut, high)
    q = jnp.maximum(q_left, q_right)
    total = left * jnp.exp(q_left - q) + right * jnp.exp(q_right - q)
    return q - jnp.log(sd) - LOG_ROOT_2PI + jnp.log(jnp.abs(total)), jnp.sign(total)


def _vertex(slope_low: Array, slope_high: Array, low: Array, high: Array) -> Array:
    """Return the x where q's slope is 0, else `low`. It has no gradient, as the integral does not depend on the cut."""
    inside = slope_low * slope_high < 0
    share = slope_low / jnp.where(inside, slope_low - slope_high, 1)
    return jax.lax.stop_gradient(jnp.where(inside, low + share * (high - low), low))


def _until(decay: Array, curvature: Array, reach: float) -> Array:
    """Return the distance y at which q has fallen by `reach`: decay·y + curvature·y²/2 = reach; else a large one."""
    root = jnp.sqrt(jnp.maximum(decay**2 + 2 * curvature * reach, 0))
    return jax.lax.stop_gradient(2 * reach / jnp.maximum(decay + root, np.finfo(float).tiny))
