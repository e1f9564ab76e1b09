"""Lemma 3.2: a polynomial times the exponential of a quadratic, seen through Gaussian noise, over a bounded interval.

    p(z) = ∫ g(x) exp(h(x)) N(z; x, s²) dx over [low, high],    h(x) = h₀ + h₁x + h₂x²                   eqs. (7), (8)

The exponent q(x) = h(x) - (z - x)²/2s² has the curvature -κ, κ = 1/s² - 2h₂, and its vertex at m = (z/s² + h₁)/κ.
(The paper's proof writes, from eq. (18) on, h for what is 2s² times the lemma's; here it is the lemma's throughout. In
its letters 1 - h₂ = s²κ.) Where κ > 0 the integrand is g times a normal density, so that p(z) is made of moments of a
truncated normal distribution, eq. (21).

**Constant g** (`log_integral`), for κ > 0: e^q at the point of the interval that is nearest to m, times
`log_space.log_interval`. Nothing large cancels, however far z or m lie outside.

**Any g** (`log_polynomial_gaussian`). The recursion of the moments (integration by parts; Flecher, Allard and Naveau
2010) subtracts nearly equal numbers where the interval lies in the tail. So the integral is calculated by
Gauss-Legendre: the interval is cut at m, so that q is monotone in each part, and a part is covered as far as q is
within 40 + 4M of its maximum, M the degree of g. With 32 + 2M nodes for a part, what is left out or approximated is
below rounding. This holds for every real κ: κ = 0 (a pure exponential) and κ < 0 (h₂ > 1/2s²: the quadratic outweighs
the noise, and there is no normal density, but the integral over a bounded interval is as good) are nothing special.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from inference.models.column.log_space import LOG_ROOT_2PI, Array, log_interval

_REACH, _REACH_OF_A_POWER = 40, 4
_NODES, _NODES_OF_A_POWER = 32, 2


class Quadratic(NamedTuple):
    """h(x) = h₀ + h₁x + h₂x², with coefficients of any shapes that broadcast."""

    h0: Array
    h1: Array
    h2: Array

    def __call__(self, x: Array) -> Array:
        return self.h0 + x * (self.h1 + x * self.h2)


def log_integral(z: Array, h: Quadratic, low: Array, high: Array, sd: Array) -> Array:
    """ln ∫ exp(h(x)) N(z; x, sd²) dx over [low, high], in closed form; all arguments broadcast.

    The error is that of rounding q at its largest, and of 1e-15, or 1e-16/((high - low)√κ) if that is more.

    Args:
        z: what was reported. h: of the latent value, with 2 h₂ sd² < 1, or the result is nan. low < high, finite.
        sd: standard deviation of the noise.
    """
    curvature = 1 / jnp.square(sd) - 2 * jnp.asarray(h.h2, dtype=float)
    width = jax.lax.rsqrt(curvature)
    vertex = (z / jnp.square(sd) + h.h1) / curvature
    nearest = jnp.clip(vertex, low, high)
    largest = h(nearest) - ((z - nearest) / sd) ** 2 / 2
    return largest + jnp.log(width / sd) - LOG_ROOT_2PI + log_interval((low - vertex) / width, (high - vertex) / width)


def log_polynomial_gaussian(
    z: Array, g: Sequence[Array], h: Sequence[Array], low: Array, high: Array, sd: Array
) -> tuple[Array, Array]:
    """ln |p| and the sign of p = ∫ g(x) exp(h(x)) N(z; x, sd²) dx over [low, high]; -inf and 0 where p is 0.

    For all real h, also where z or q's vertex is hundreds of standard deviations outside [low, high]. Measured up to
    degree 10: the error of p, relative to the integral of |g(x)| exp(h(x)) N(z; x, sd²), is below 1e-12, and 1e-15
    times the largest |q|. Where g changes its sign, p may be much smaller than that integral, and loses as many digits.

    Args:
        z: what was reported. g: coefficients, that of 1 first; for each z the same number of them. h: three of them.
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
        """q at its largest in [first, last], and the integral of g exp(q) in units of its exponential."""
        q_first, q_last = (quadratic(x) - ((z - x) / sd) ** 2 / 2 for x in (first, last))
        rising = q_last > q_first
        top = jnp.where(rising, last, first)
        decay = jnp.where(rising, slope(last), -slope(first))
        until = _until(decay, curvature, reach)
        length = jnp.minimum(last - first, until)
        away = length[..., None] * (1 + nodes) / 2
        x = top[..., None] + jnp.where(rising, -1, 1)[..., None] * away
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
    """Where q's slope is 0, or `low` if nowhere inside; a constant, as the integral does not depend on the cut."""
    inside = slope_low * slope_high < 0
    share = slope_low / jnp.where(inside, slope_low - slope_high, 1)
    return jax.lax.stop_gradient(jnp.where(inside, low + share * (high - low), low))


def _until(decay: Array, curvature: Array, reach: float) -> Array:
    """How far from q's maximum q has fallen by `reach`: decay·y + curvature·y²/2 = reach. If it never does, anything
    beyond where it is flat."""
    root = jnp.sqrt(jnp.maximum(decay**2 + 2 * curvature * reach, 0))
    return jax.lax.stop_gradient(2 * reach / jnp.maximum(decay + root, np.finfo(float).tiny))
