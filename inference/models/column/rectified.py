"""Marginal log likelihoods of one perturbed number; the clipped value is integrated (or summed) out.

A client clips its value x to [low, high], adds noise and reports z (section 3.2.1). Clipping gives a *rectified*
distribution, eq. (6): the density f inside, and two atoms, of mass F(low) at low and 1 - F(high) at high. Hence

    p(z) = F(low) k(z - low) + ∫ f(x) k(z - x) dx over [low, high] + (1 - F(high)) k(z - high)        eqs. (24), (29)

with the noise's density k (eq. (24) prints Φ_θ(x) for the density f). Counts are 0, 1, ... high; larger counts are
reported as high, and the integral is a sum.

**Laplace noise**, k(y) = exp(-|y|/b)/2b with b = scale. Two facts make it simple:

- Outside [low, high] all |z - x| grow alike: p(z) = exp(-|z - l|/b) p(l), where l is the nearer end.
- Inside, 1 >= 2b p(z) >= exp(-(high - low)/b). So the sum below is computed directly, and the logarithm taken last: no
  term overflows, and a term that underflows is negligible. This needs (high - low)/b = ε below 700.

For a normal x, eq. (28) has exp(σ²/2b²) times a difference of error functions, which may be infinity times zero. With
    H(t, k) = E[exp(-k(t - X)) 1(X < t)],  X ~ N(0, 1);  0 < H < 1;  H(t, 0) = Φ(t);
t(x) = (x - μ)/σ and k = σ/b, eq. (28) has no large number. For z inside it is
    2b p(z) = H(t(z), k) + H(-t(z), k)
              + exp(-(z - low)/b) [Φ(t(low)) - H(t(low), k)] + exp(-(high - z)/b) [Φ(-t(high)) - H(-t(high), k)].
The first line is the value without clipping; each bracket is the contribution of clipping at one end.
(Where a bracket cancels, H(±t(z), k) of the first line is as large as the subtracted term.) For an exponential x,
eq. (30) is 0/0 at bθ = ε (and prints y for z); sinh(v)/v replaces its first quotient.

**Gaussian noise**: the integral is that of Lemma 3.2 with a constant g. p(z) falls like exp(-z²/2s²) far out, so all
terms are logarithms.

**Many reports** (`summarise`, `gaussian_laplace_sum`). Inside [low, high], ln p is smooth on the scale of σ, because p
is N(·; μ, σ²) convolved with the noise, plus even smoother terms. Replace ln p by its polynomial interpolant in N + 1
Chebyshev points. Its sum over all reports is a sum over the points, with weights that depend on the reports alone;
reports from outside count at the ends. So the likelihood of any number of reports costs N + 1 terms. If
σ >= 5 (high - low)/N and ε <= N/10, the error is below 1e-10 for each report, at all μ (measured for N from 16 to 512:
2e-11, and from N = 32 on a few roundings). It falls like a Gaussian in σN, as the spectrum of ln p does, and like
exp(-πN/ε): ln p has logarithmic singularities at a distance of πb/2 from the real line, where the noise about one end
cancels that about the other. For smaller σ the sum is over all reports, and for larger ε the nodes are the reports.

**A hidden spread.** From σ = 0 on, the expected ln p of a report changes by about 0.2 (σ/b)³: Laplace noise hides a
small σ. So `nodes_for` takes as many nodes as make n (σ/b)³ at most 0.05 at the narrowest σ, and the model may put the
narrowest in place of any smaller one. That costs less than 0.01 of ln p in expectation.

**Many reports with Gaussian noise** (`few_points`). Clipped values lie in [low, high], an interval of width w. So with
noise of standard deviation s

    p(z) = N(z; 0, s²) ∫ exp(xz/s² - x²/2s²) dF(x),   F on [low, high],

for any F; the model's parameters affect only F. The integral is an entire function of z. In the worst case, F with two
atoms at the ends, its zeros are πs²/w off the real line. So the points serve all parameters and families at once. With
`POINTS` points and w <= `WIDEST` s the mean error of a report's ln p is at most 1e-12, even for the worst F (measured
with 5,000 reports; at w <= 2s it is rounding). This excludes reports farther out than honest noise ever is: with two of
them at 9.8 s the sum is off by 2e-3. w <= `WIDEST` s holds up to about ε = 20 at δ = 1e-5; with less noise, all reports
are kept.

Devices draw discrete Laplace or Gaussian noise on a grid. Its density equals the continuous one within
(grid step/scale)². Call all functions in float64. Parameters may have any shapes that broadcast with z; those of counts
are single numbers.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray
from scipy.special import gammaln

from inference.errors import DataError
from inference.models.column.log_space import LOG_ROOT_2PI, Quadratic, log_integral, log_ndtr, log_sinhc, mills
from inference.problem import AnyArray as Array

NODES = 256
POINTS, WIDEST = 128, 4.0
ROWS = 4096  # of a matrix computed at once
_NODES_PER_SIGMA, _NODES_PER_EPSILON = 5, 10
_HIDDEN = 0.05  # n (σ/b)³ of a spread that noise hides


# Laplace noise.


def gaussian_laplace(z: Array, mu: Array, sigma: Array, low: Array, high: Array, scale: Array) -> Array:
    """Return ln p(z) for a clipped x ~ N(mu, sigma²) with Laplace noise (section 10.1).

    Args:
        z: reports. mu, sigma > 0: of x before clipping. low < high: bounds. scale: b = (high - low)/ε.
    """
    inside = jnp.clip(z, low, high)
    k = sigma / jnp.asarray(scale, dtype=float)
    t, t_low, t_high = ((end - mu) / sigma for end in (inside, low, high))
    # H in two calls instead of six: its code takes long to compile.
    ends, k_ends = jnp.broadcast_arrays(jnp.stack(jnp.broadcast_arrays(t_low, -t_high)), k)
    raised, lowered = -jnp.diff(_damped(jnp.stack([ends, ends]), jnp.stack([0 * k_ends, k_ends])), axis=0)[0]
    clipped = raised * jnp.exp((low - inside) / scale) + lowered * jnp.exp((inside - high) / scale)
    return jnp.log(_damped(jnp.stack([t, -t]), k).sum(axis=0) + clipped) + _outside(z, inside, scale)


def exponential_laplace(z: Array, rate: Array, high: Array, scale: Array) -> Array:
    """Return ln p(z) for an exponential x of that rate, clipped to [0, high], with Laplace noise (section 10.2)."""
    inside = jnp.clip(z, 0, high)
    decay = 1 / jnp.asarray(scale, dtype=float)
    both = decay + rate
    below = rate * inside * jnp.exp(log_sinhc((decay - rate) * inside / 2) - both * inside / 2)
    above = -rate / both * jnp.exp(-rate * inside) * jnp.expm1(-both * (high - inside))
    clipped = jnp.exp(-rate * high - decay * (high - inside))
    return jnp.log(below + above + clipped) + _outside(z, inside, scale)


def poisson_laplace(z: Array, rate: Array, high: int, scale: Array) -> Array:
    """Return ln p(z) for a Poisson x of mean ``rate``, clipped to 0, ... high, with Laplace noise.

    Raises `DataError` unless ``high`` is a whole number of at least 1.
    """
    return _counts_laplace(z, _poisson(rate, high), scale)


def geometric_laplace(z: Array, probability: Array, high: int, scale: Array) -> Array:
    """Return ln p(z) for P(x) = probability (1 - probability)^x, clipped and perturbed as in `poisson_laplace`."""
    return _counts_laplace(z, _geometric(probability, high), scale)


def _outside(z: Array, inside: Array, scale: Array) -> Array:
    """Return ln p(z) - ln (2b p(inside))."""
    return -jnp.abs(z - inside) / scale - jnp.log(2 * jnp.asarray(scale, dtype=float))


@jax.custom_jvp
def _damped(t: Array, k: Array) -> Array:
    """Return H(t, k) = exp(k²/2 - kt) Φ(t - k), k >= 0."""
    beside = _density(t) * mills(jnp.abs(t - k))
    over = t > k
    return jnp.where(over, jnp.exp(jnp.where(over, k * (k / 2 - t), 0)) - beside, beside)


@_damped.defjvp
def _damped_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    """Derive in closed form. JAX's own derivative agrees to 3e-13, but makes the gradient take 1.3 times as long."""
    (t, k), (dt, dk) = primals, tangents
    value, density = _damped(t, k), _density(t)
    return value, (density - k * value) * dt + ((k - t) * value - density) * dk


def _density(t: Array) -> Array:
    return jnp.exp(-jnp.square(t) / 2 - LOG_ROOT_2PI)


def _counts_laplace(z: Array, log_masses: Array, scale: Array) -> Array:
    """Return ln p(z). Between c and c + 1, contributions of counts up to c fall with z, those of larger counts rise."""
    high = len(log_masses) - 1
    counts, masses = np.arange(high + 1), jnp.exp(log_masses)
    noise = jnp.exp(-counts / jnp.asarray(scale, dtype=float))[np.abs(counts[:, None] - counts)]
    up_to, from_on = jnp.tril(noise) @ masses, jnp.triu(noise) @ masses
    inside = jnp.clip(z, 0, high)
    below = jnp.clip(jnp.floor(inside), 0, high - 1).astype(int)
    beyond = inside - below
    density = jnp.exp(-beyond / scale) * up_to[below] + jnp.exp((beyond - 1) / scale) * from_on[below + 1]
    return jnp.log(density) + _outside(z, inside, scale)


# Gaussian noise.


def gaussian_gaussian(z: Array, mu: Array, sigma: Array, low: Array, high: Array, sd: Array) -> Array:
    """Return ln p(z) for a clipped x ~ N(mu, sigma²) with noise N(0, sd²); arguments as for `gaussian_laplace`."""
    density = Quadratic(-jnp.log(sigma) - LOG_ROOT_2PI, 0.0, -1 / (2 * jnp.square(sigma)))
    inside = log_integral(z - mu, density, low - mu, high - mu, sd)
    at_low = log_ndtr((low - mu) / sigma) + _log_normal(z - low, sd)
    at_high = log_ndtr((mu - high) / sigma) + _log_normal(z - high, sd)
    return jnp.logaddexp(inside, jnp.logaddexp(at_low, at_high))


def exponential_gaussian(z: Array, rate: Array, high: Array, sd: Array) -> Array:
    """Return ln p(z) for an exponential x of that rate, clipped to [0, high], with noise N(0, sd²)."""
    inside = log_integral(z, Quadratic(jnp.log(rate), -rate, 0.0), 0.0, high, sd)
    return jnp.logaddexp(inside, _log_normal(z - high, sd) - rate * high)


def poisson_gaussian(z: Array, rate: Array, high: int, sd: Array) -> Array:
    """Return ln p(z) for a Poisson x as in `poisson_laplace`, with noise N(0, sd²)."""
    return _counts_gaussian(z, _poisson(rate, high), sd)


def geometric_gaussian(z: Array, probability: Array, high: int, sd: Array) -> Array:
    """Return ln p(z) for a geometric x as in `geometric_laplace`, with noise N(0, sd²)."""
    return _counts_gaussian(z, _geometric(probability, high), sd)


def _counts_gaussian(z: Array, log_masses: Array, sd: Array) -> Array:
    apart = jnp.asarray(z)[..., None] - np.arange(len(log_masses))
    return jax.nn.logsumexp(log_masses + _log_normal(apart, sd), axis=-1)


def _log_normal(apart: Array, sd: Array) -> Array:
    return -jnp.square(apart / sd) / 2 - jnp.log(sd) - LOG_ROOT_2PI


# The masses of clipped counts.


def _counts(high: int) -> NDArray[np.int64]:
    if high != int(high) or high < 1:
        raise DataError(f"counts are clipped at {high}, expected a whole number of at least 1")
    return np.arange(int(high) + 1)


def _geometric(probability: Array, high: int) -> Array:
    """Return ln P(0), ... ln P(high - 1), ln P(x >= high)."""
    counts = _counts(high)
    return counts * jnp.log1p(-probability) + jnp.log(jnp.where(counts < high, probability, 1.0))


def _poisson(rate: Array, high: int) -> Array:
    """Return ln P(0), ... ln P(high - 1), ln P(x >= high).

    If rate <= high, the last is from P(high) (1 + rate/(high + 1) + rate²/((high + 1)(high + 2)) + ...). Else it is
    from the sum of the others, which is then at most about 1/2. So it is exact to rounding, be it 1e-1000 or 1 - 1e-16.
    """
    counts = _counts(high)
    inside, top = counts[:-1], counts[-1]
    rate = jnp.asarray(rate, dtype=float)
    low, large = jnp.where(rate <= top, rate, top), jnp.where(rate <= top, top, rate)
    # So many terms are enough: they fall at least like exp(-i²/2 top), to 1e-17 of the sum.
    terms = np.arange(40 + 9 * int(np.sqrt(top)))
    rising = np.cumsum(np.log(top + np.maximum(terms, 1))) - np.log(top + 1)
    series = jax.nn.logsumexp(_log_poisson(low, top) + terms * jnp.log(low) - rising)
    others = jnp.log1p(-jnp.sum(jnp.exp(_log_poisson(large, inside))))
    return jnp.append(_log_poisson(rate, inside), jnp.where(rate <= top, series, others))


def _log_poisson(rate: Array, counts: NDArray[np.int64]) -> Array:
    return counts * jnp.log(rate) - rate - gammaln(counts + 1)


# Many reports at the cost of a few.


def few_points(z: NDArray[np.float64], width: float, sd: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return points and weights such that Σ weight · ln p(point) is the sum of ln p(z) over the reports.

    Args:
        z: reports, shape ``(n,)``. width: of the interval that clients clip to. sd: of the noise.

    Returns:
        The reports themselves, with weights 1, if there are few or the noise is small; else `POINTS` points.
    """
    if z.size <= POINTS or width > WIDEST * sd:
        return z, np.ones(z.size)
    middle, half = (z.max() + z.min()) / 2, (z.max() - z.min()) / 2
    degree = POINTS - 1
    return middle + half * chebyshev_points(degree), lagrange_sums((z - middle) / half, degree)


def lagrange_sums(x: NDArray[np.float64], degree: int) -> NDArray[np.float64]:
    """Return Σ_i ℓ_j(x_i) for each Chebyshev point cos(πj/degree), from Σ_i T_k(x_i) and T_k at the points."""
    parts = (x[start : start + ROWS] for start in range(0, x.size, ROWS))
    sums = np.sum([chebyshev.chebvander(part, degree).sum(axis=0) for part in parts], axis=0)
    return np.asarray(_lagrange(degree) @ sums)


def lagrange_products(x: NDArray[np.float64], y: NDArray[np.float64], degrees: tuple[int, int]) -> NDArray[np.float64]:
    """Return Σ_i ℓ_j(x_i) ℓ_k(y_i), shape ``(j, k)``: weights of a function of pairs at the points of a grid."""
    sums = np.zeros((degrees[0] + 1, degrees[1] + 1))
    for start in range(0, x.size, ROWS):
        part = slice(start, start + ROWS)
        sums += chebyshev.chebvander(x[part], degrees[0]).T @ chebyshev.chebvander(y[part], degrees[1])
    return np.asarray(_lagrange(degrees[0]) @ sums @ _lagrange(degrees[1]).T)


def chebyshev_points(degree: int) -> NDArray[np.float64]:
    """Return the points of `lagrange_sums`, from 1 to -1."""
    return np.cos(np.pi * np.arange(degree + 1) / degree)


def _lagrange(degree: int) -> NDArray[np.float64]:
    """Return the matrix that turns Σ_i T_k(x_i) into Σ_i ℓ_j(x_i)."""
    halves = np.where(np.arange(degree + 1) % degree == 0, 0.5, 1.0)
    values = np.cos(np.pi * np.outer(np.arange(degree + 1), np.arange(degree + 1)) / degree)
    return np.asarray(2 / degree * halves[:, None] * values * halves)


class LaplaceSummary(NamedTuple):
    """Reports of one number with Laplace noise, reduced for `gaussian_laplace_sum`; NumPy arrays, float64.

    Attributes:
        points: in [low, high], shape ``(r, k)``: row 0 has the nodes where ln p is evaluated, and the other rows have
            all reports, clipped. With r = 1 the nodes are the reports. weights: of ln p there; same shape.
        offset: contribution of reports outside to the sum; it does not depend on the parameters.
        low, high, scale: as for `gaussian_laplace`. narrowest: smallest sigma for which the nodes suffice.
    """

    points: NDArray[np.float64]
    weights: NDArray[np.float64]
    offset: float
    low: float
    high: float
    scale: float
    narrowest: float


def nodes_for(n: int, epsilon: float) -> int:
    """Return how many nodes n reports need, so that noise hides any smaller spread than they show."""
    return max(NODES, math.ceil(_NODES_PER_SIGMA * epsilon * math.cbrt(n / _HIDDEN)))


def narrowest_for(nodes: int, width: float) -> float:
    """Return the smallest sigma for which that many nodes in an interval suffice."""
    return _NODES_PER_SIGMA * width / nodes


def summarise(z: Array, low: float, high: float, scale: float, nodes: int | None = None) -> LaplaceSummary:
    """Reduce reports, shape ``(n,)``, to a summary from which `gaussian_laplace_sum` adds up `gaussian_laplace`.

    Args:
        nodes: N; by default as `nodes_for`. The shapes of the summary depend on n, N and ε alone, so compiled code can
            be reused for other reports. If n <= N or ε > N/10, the nodes are the reports, and nothing is approximated.

    Raises:
        DataError: reports are not finite numbers, low >= high, or the scale is not positive or too small.
    """
    reports = np.asarray(z, dtype=np.float64)
    if reports.ndim != 1 or not np.isfinite(reports).all():
        raise DataError(
            f"reports have shape {reports.shape} or are not all finite, expected finite numbers, shape (n,)"
        )
    if not (low < high and (high - low) / 700 < scale < np.inf):
        raise DataError(f"noise of scale {scale:g} on [{low:g}, {high:g}], expected low < high and ε from 0 to 700")
    clipped, nodes = np.clip(reports, low, high), nodes or nodes_for(reports.size, (high - low) / scale)
    summary = partial(
        LaplaceSummary, offset=-float(np.abs(reports - clipped).sum() / scale), low=low, high=high, scale=scale
    )
    if reports.size <= nodes or (high - low) / scale > nodes / _NODES_PER_EPSILON:
        return summary(clipped[None], np.ones((1, reports.size)), narrowest=0.0)
    weights = lagrange_sums((2 * clipped - low - high) / (high - low), nodes)
    narrowest = narrowest_for(nodes, high - low)
    lacking = (0, -reports.size % (nodes + 1))  # to fill the last row
    every = np.pad(clipped, lacking, mode="edge").reshape(-1, nodes + 1)
    once = np.pad(np.ones(reports.size), lacking).reshape(every.shape)
    points = np.vstack([(low + high) / 2 + (high - low) / 2 * chebyshev_points(nodes), every])
    return summary(points, np.vstack([weights, once]), narrowest=narrowest)


@jax.custom_jvp
def gaussian_laplace_sum(summary: LaplaceSummary, mu: Array, sigma: Array) -> Array:
    """Return Σ `gaussian_laplace` over a summary's reports; it has no derivative with respect to the summary.

    Args:
        mu, sigma: one number each; for several, `jax.vmap`.
    """
    return _sum_and_slopes(summary, jnp.asarray(mu, dtype=float), jnp.asarray(sigma, dtype=float))[0]


@gaussian_laplace_sum.defjvp
def _sum_jvp(
    primals: tuple[LaplaceSummary, Array, Array], tangents: tuple[LaplaceSummary, Array, Array]
) -> tuple[Array, Array]:
    value, (by_mu, by_sigma) = _sum_and_slopes(*primals)
    return value, by_mu * tangents[1] + by_sigma * tangents[2]


def _sum_and_slopes(summary: LaplaceSummary, mu: Array, sigma: Array) -> tuple[Array, tuple[Array, Array]]:
    def add(state: tuple[Array, Any]) -> tuple[Array, Any]:
        row, sums = state
        points, weights = jnp.asarray(summary.points)[row], jnp.asarray(summary.weights)[row]

        def total(mu: Array, sigma: Array) -> Array:
            bounds = summary.low, summary.high, summary.scale
            return jnp.sum(weights * gaussian_laplace(points, mu, sigma, *bounds))

        return row + 1, jax.tree.map(jnp.add, sums, jax.value_and_grad(total, (0, 1))(mu, sigma))

    # The rows of reports count if sigma is too small for the nodes. A loop compiles the likelihood once for both.
    zero, narrow = jnp.zeros_like(mu), sigma < summary.narrowest
    first, end = jnp.where(narrow, 1, 0), jnp.where(narrow, len(summary.points), 1)
    state = first, (zero, (zero, zero))
    loop = len(summary.points) > 1
    value, slopes = (jax.lax.while_loop(lambda state: state[0] < end, add, state) if loop else add((0, state[1])))[1]
    return value + summary.offset, slopes
