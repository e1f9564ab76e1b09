"""Lemma 3.2: a polynomial times the exponential of a quadratic, seen through Gaussian noise, over a bounded interval.

    p(z) = ∫ g(x) exp(h(x)) N(z; x, s²) dx over [low, high],    h(x) = h₀ + h₁x + h₂x²                   eqs. (7), (8)

The exponent q(x) = h(x) - (z - x)²/2s² has the curvature -κ, κ = 1/s² - 2h₂, and its vertex at m = (z/s² + h₁)/κ.
(The paper's proof writes, from eq. (18) on, h for what is 2s² times the lemma's; here it is the lemma's throughout. In
its letters 1 - h₂ = s²κ.) Where κ > 0 the integrand is g times a normal density, so that p(z) is made of moments of a
truncated normal distribution, eq. (21).

**Constant g** (`log_integral`), for κ > 0: e^q at the point of the interval that is nearest to m, times
`log_space.log_interval`. Nothing large cancels, however far z or m lie outside.
(`scripts/papers/ldp2021` has the lemma for any g.)
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from inference.models.column.log_space import LOG_ROOT_2PI, Array, log_interval


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
