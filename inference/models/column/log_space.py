"""Functions of the normal distribution that neither overflow nor cancel; nor do their gradients.

With φ the standard normal density and Φ its distribution function, all follow from Mills' ratio R(u) = (1 - Φ(u))/φ(u):
wherever a formula multiplies a tiny Φ by a huge exponential, the product is a moderate R. For u >= 0,
R(u) = T((u - 3)/(u + 3))/(u + 3) with a smooth function T on [-1, 1] (Shepherd and Laframboise 1981, for erfc). T is
replaced by its Chebyshev interpolant of degree 24: the relative error is below 5e-15 for all u, and the function is
fast, because it has neither branches nor exponentials.

**Lemma 3.2** (`log_integral`, for a constant g): a polynomial times the exponential of a quadratic, observed with
Gaussian noise, over a bounded interval.

    p(z) = ∫ g(x) exp(h(x)) N(z; x, s²) dx over [low, high],    h(x) = h₀ + h₁x + h₂x²                   eqs. (7), (8)

The exponent q(x) = h(x) - (z - x)²/2s² has the curvature -κ, κ = 1/s² - 2h₂, and its vertex at m = (z/s² + h₁)/κ.
(From eq. (18) on, the paper's proof writes h for 2s² times the lemma's h; here h is the lemma's throughout. In its
notation 1 - h₂ = s²κ.) If κ > 0, the integrand is g times a normal density, so p(z) consists of moments of a truncated
normal distribution, eq. (21): e^q at the point of the interval nearest to m, times exp(`log_interval`). Nothing large
cancels, however far z or m lie outside. (`scripts/papers/ldp2021` has the lemma for any g.)
"""

from __future__ import annotations

from math import log, pi, sqrt
from typing import NamedTuple

import jax
import jax.numpy as jnp
from numpy.polynomial import chebyshev
from scipy.special import erfcx

from inference.problem import AnyArray as Array

LOG_ROOT_2PI = log(2 * pi) / 2
_CENTRE, _DEGREE = 3.0, 24
_EVEN_SERIES_MAX, _ASYMPTOTIC = 0.03, 40.0


_PLACES = chebyshev.chebpts1(_DEGREE + 1)
_U = _CENTRE * (1 + _PLACES) / (1 - _PLACES)
_T = (_U + _CENTRE) * sqrt(pi / 2) * erfcx(_U / sqrt(2))
_COEFFICIENTS: list[float] = chebyshev.cheb2poly(chebyshev.chebfit(_PLACES, _T, _DEGREE)).tolist()


@jax.custom_jvp
def mills(u: Array) -> Array:
    """Return R(u) = (1 - Φ(u))/φ(u) for u >= 0: √(π/2) at 0, and about 1/u far out. R'(u) = uR(u) - 1.

    The relative error of R' is below 1e-11: at most that of R times u², up to u = 40.
    """
    y = (u - _CENTRE) / (u + _CENTRE)
    value = jnp.full_like(y, _COEFFICIENTS[-1])
    for coefficient in _COEFFICIENTS[-2::-1]:
        value = value * y + coefficient
    return value / (u + _CENTRE)


@mills.defjvp
def _mills_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (u,), (du,) = primals, tangents
    value = mills(u)
    far = u > _ASYMPTOTIC  # there uR(u) - 1 would lose its digits
    v = 1 / jnp.where(far, u, _ASYMPTOTIC) ** 2
    return value, jnp.where(far, -v * (1 - v * (3 - v * (15 - v * (105 - 945 * v)))), u * value - 1) * du


def log_ndtr(u: Array) -> Array:
    """Return ln Φ(u). (JAX's own is off by 1e-9 where its asymptotic series begins.)"""
    u = jnp.asarray(u, dtype=float)
    tail = mills(jnp.where(u < 0, -u, u))  # unlike |u|, this has a slope at 0
    far = -(u**2) / 2 - LOG_ROOT_2PI + jnp.log(tail)
    near = jnp.log1p(-jnp.exp(-(u**2) / 2 - LOG_ROOT_2PI) * tail)
    return jnp.where(u < 0, far, near)


def log_interval(lower: Array, upper: Array) -> Array:
    """Return ln ∫ exp((x₀² - x²)/2) dx from `lower` to `upper`, where x₀ is the point between them nearest to 0.

    So the integrand's largest value is 1, and Φ(upper) - Φ(lower) is φ(x₀) times the integral, however far out it lies.
    The relative error of the integral is about 1e-15, or 1e-16/(upper - lower) if that is larger.
    """
    lower, upper = jnp.asarray(lower, dtype=float), jnp.asarray(upper, dtype=float)
    near = jnp.minimum(jnp.abs(lower), jnp.abs(upper))
    far = jnp.maximum(jnp.abs(lower), jnp.abs(upper))
    beside = mills(near) - jnp.exp((near - far) * (near + far) / 2) * mills(far)
    around = sqrt(pi / 2) * (jax.lax.erf(upper / sqrt(2)) - jax.lax.erf(lower / sqrt(2)))
    return jnp.log(jnp.where((lower <= 0) & (upper >= 0), around, beside))


def log_sinhc(y: Array) -> Array:
    """Return ln (sinh(y)/y), 0 at 0."""
    y = jnp.asarray(y, dtype=float)
    small = jnp.abs(y) < _EVEN_SERIES_MAX
    square = jnp.where(small, y, 0) ** 2
    series = square * (1 / 6 - square * (1 / 180 - square / 2835))
    size = jnp.where(small, 1, jnp.abs(y))
    return jnp.where(small, series, size + jnp.log(-jnp.expm1(-2 * size) / (2 * size)))


class Quadratic(NamedTuple):
    """h(x) = h₀ + h₁x + h₂x², with coefficients of any shapes that broadcast."""

    h0: Array
    h1: Array
    h2: Array

    def __call__(self, x: Array) -> Array:
        return self.h0 + x * (self.h1 + x * self.h2)


def log_integral(z: Array, h: Quadratic, low: Array, high: Array, sd: Array) -> Array:
    """Return ln ∫ exp(h(x)) N(z; x, sd²) dx over [low, high], in closed form; all arguments broadcast.

    The error is the rounding of q at its maximum, plus 1e-15, or 1e-16/((high - low)√κ) if that is larger.

    Args:
        z: the report. h: of the latent value; if 2 h₂ sd² >= 1 the result is nan. low, high: finite, low < high.
        sd: standard deviation of the noise.
    """
    curvature = 1 / jnp.square(sd) - 2 * jnp.asarray(h.h2, dtype=float)
    width = jax.lax.rsqrt(curvature)
    vertex = (z / jnp.square(sd) + h.h1) / curvature
    nearest = jnp.clip(vertex, low, high)
    largest = h(nearest) - ((z - nearest) / sd) ** 2 / 2
    return largest + jnp.log(width / sd) - LOG_ROOT_2PI + log_interval((low - vertex) / width, (high - vertex) / width)
