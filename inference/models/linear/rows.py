"""Rows: how many of them are complete, and rows that are scaled to the unit sphere.

**Complete rows** have no missing value. A row with one counts as zero (`dca_proto.statistics.contribution`): it adds
nothing to a sum, but the public n counts it. So m, the number of complete rows, is private. Where each row has a
constant feature c the sum of its squares is m c², and is released with noise like every other term. To replace it by
n c² biases the intercept: the noise can hide missing rows, as many as several times its own size in the intercept.

    c² m + N(0, s²)                        what was released
    p(m) ∝ exp(-(n - m)/(n q)), m <= n     before: a share of about q = `MISSING` of the rows lacks a value, and that
                                           none does is the likeliest

`counted` puts c² E[m] in the place of the noisy square, and c⁴ Var[m] in that of its noise, given the square alone (a
normal law cut off at n); the sampler of `nodes.model` draws m with all else.

Clients who sum several rows each can be more rows than clients. Then n is no bound, and `max_complete_rows` finds one.

**Whole rows** on the sphere are Algorithm 2's projection, step 3, such that it does not bias a linear relation.
Each client scales its whole row, v = (1, x) and the target y, by s = 1/|v|, so that v s lies on the unit sphere, and
clips the scaled target to ±q. Where y = vᵀβ + r, also s y = (s v)ᵀβ + s r with the same β. So

    xx = Σ s² v vᵀ,    xy = Σ s² v y,    yy = Σ s² y²

are the sums of a regression with weights s² that depend on the features alone: Mallows' estimator of robust statistics.
It has no bias from skewed, heavy-tailed or collinear features, whereas features that are clipped one by one have (with
log-normal ones, 50,000 rows and ε = 4, their 90 % intervals covered 25 %), and there is no threshold to search: scales
only weigh columns against each other. A sphere in d + 1 dimensions has the sensitivity √2 (1 + q²/2) and
squares of 1/(d + 1), the box of ±p about 2p²d for squares of 1.

**What the weights cost.** Beside least squares without noise, variances of slopes are 1.3 times as large for normal
features, 2 to 4 times for heavy tails, whose far rows would inform most. At 50,000 rows and ε = 4 that equals the
noise.

**The target's bound** q is the smallest whose bias stays below a third of the spread (`target_bound`). If a share of
1 - κ of the slopes' information is clipped, a slope loses about that share (exactly, for normal targets: Bussgang's
theorem). A slope that explains half of the target has the most to lose. The spread is that of the noise in the second
round and of the residuals, Student's t with 5 degrees of freedom; the rest is normal there. A worse law is not in the
spread: the result warns where the target's mean square shows that much of it was clipped.

**The residuals' spread.** Cov(Σ s² v r) is λ⁻¹ Σ s⁴ v vᵀ, which the sums do not contain. Were features normal,
xx would tell their covariance, and so the weights' law (`weighted`): in the features' eigenbasis it is a fixed point of
one variance for each direction. Against simulation a standard deviation is right to about 5 % for log-normal features,
Student's t with 3 degrees, and neighbours of correlation 0.95.

Here the trace of xx counts the complete rows: each adds exactly 1 to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from inference.columns import Array
from inference.locate import repeated
from inference.models.linear.closed_form import NEAREST_PSD, SufficientStatistics, repaired, shrunk
from inference.models.linear.prior import PRIOR_R2

MISSING = 0.1
MARGIN = 8.0  # standard deviations of noise that the moments are calculated over
BEYOND = 4.0  # standard deviations above n that noise alone does not reach
POINTS = 1025
BOUNDS = np.geomspace(0.5, 12, 65)  # q in root mean squares of the weights
BIAS_SHARE = 1 / 3  # of the spread
DRAWS = 4000  # of rows, to integrate over
FREEDOM = 5  # of the residuals' t
CLIPPED = 0.6  # mean square over that of the bound, from which much of a target is clipped: of a normal one a third
TURNS = 60  # of the fixed point
LEAST = 1e-4  # share of the trace below which a direction is not taken to lie: noise and repair may leave less


def log_prior(rows: Any, n: Any, missing: float = MISSING) -> Any:
    """ln p(m) but for a constant, of m <= n: NumPy's or JAX's arrays.

    Args:
        missing: the share of rows without all values that is expected, above 0.
    """
    return (rows - n) / (missing * n)


def max_complete_rows(count: Array, variance: Array, n: Array) -> Array:
    """The largest possible number of rows: n, or more where the noisy count is far above n.

    Args:
        count: the noisy sum of the constant's squares over c². variance: of its noise, in rows².
    """
    margin = BEYOND * np.sqrt(variance)
    return np.where(count > n + margin, np.floor(count + margin), n)


def estimate(count: Array, variance: Array, n: Array) -> tuple[Array, Array]:
    """Mean and variance of m given its noisy count, by quadrature of N(count; m, variance) p(m) over what m can be.

    Args:
        count, variance, n: as of `max_complete_rows`; they broadcast.
    """
    n, margin = max_complete_rows(count, variance, n)[..., None], MARGIN * np.sqrt(variance)[..., None]
    count, twice = count[..., None], 2 * np.maximum(variance, np.finfo(float).tiny)[..., None]
    low, high = np.maximum(0, np.minimum(count, n) - margin), np.minimum(n, np.maximum(count, 0) + margin)
    rows = low + (high - low) * np.linspace(0, 1, POINTS)
    off = (rows - count) ** 2
    log_density = log_prior(rows, n) - (off - off.min(axis=-1, keepdims=True)) / twice
    weights = np.exp(log_density - log_density.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mean = (weights * rows).sum(axis=-1, keepdims=True)
    return mean[..., 0], (weights * (rows - mean) ** 2).sum(axis=-1)


def counted(statistics: SufficientStatistics, constant: float) -> SufficientStatistics:
    """The statistics with as many rows as are complete, as far as the square of their constant feature c shows."""
    square, noise = constant**2, statistics.noise
    count, variance = np.asarray(statistics.xx[..., 0, 0]) / square, np.asarray(noise.xx, float) / square**2
    rows, left = estimate(count, variance, np.asarray(statistics.n))
    xx = statistics.xx.copy()
    xx[..., 0, 0] = rows * square
    noise = replace(noise, constant=left * square**2)
    return replace(statistics, n=np.maximum(np.rint(rows), 1), xx=xx, noise_variance=noise, constant=True)


def sensitivity(bound: float) -> float:
    """The second round's at target bound q (`dca_proto.statistics.regression_sensitivity`), or up to 6 % more."""
    return float(np.sqrt(2) * (1 + bound**2 / 2) if bound**2 <= 2 else 1 + bound**2)


def target_bound(n: int, features: int, noise_std: Callable[[float], float]) -> float:
    """q, in standard deviations of the scaled target. Args: noise_std: of the second round's sum, given q."""
    rng = np.random.default_rng(features)
    squares = rng.standard_normal(DRAWS) ** 2  # of one feature
    rest = rng.chisquare(features - 1, DRAWS) if features > 1 else 0.0
    residuals = rng.standard_t(FREEDOM, DRAWS) * np.sqrt((FREEDOM - 2) / FREEDOM)
    targets = np.sqrt(PRIOR_R2) * rng.standard_normal(DRAWS) + np.sqrt(1 - PRIOR_R2) * residuals
    weights = 1 / (1 + squares + rest)  # s²
    signal, residual = (weights * squares).mean(), (weights**2 * squares).mean() * (1 - PRIOR_R2)
    root = np.sqrt(weights)
    for bound in BOUNDS * np.sqrt(weights.mean()):
        lost = 1 - (weights * squares * (np.abs(root * targets) < bound)).mean() / signal
        noise = (1 + PRIOR_R2) * (noise_std(float(bound)) / n) ** 2
        spread = np.sqrt(noise + residual / n) / signal
        if np.sqrt(PRIOR_R2) * lost <= BIAS_SHARE * spread:
            break
    return float(bound)


def about_columns(statistics: SufficientStatistics, parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """Warns of features that nearly repeat each other, and of a target that is clipped."""
    *features, target = parameters["columns"]
    words = list(repeated(features, statistics.xx[1:, 1:], float(np.sqrt(np.asarray(statistics.noise.xx, float)))))
    most = (parameters["bound"][-1] / parameters["intercept_bound"]) ** 2 * np.trace(statistics.xx)
    doubtful = 2 * np.sqrt(np.asarray(statistics.noise.yy, float))
    if statistics.yy is not None and statistics.yy - doubtful > CLIPPED * most:
        words.append(f"much of {target} is clipped, so that its coefficients come out too small; check its bounds")
    return tuple(words)


def weighted(moments: Array) -> tuple[float, Array]:
    """E s², and E s⁴ v vᵀ of shape ``(m, m)``, of normal features about 0 for which E s² v vᵀ is as given.

    Args:
        moments: positive semi-definite, of the constant first, shape ``(m, m)``; scaled to trace 1.
    """
    values, vectors = np.linalg.eigh(moments[1:, 1:])
    values = np.maximum(values, LEAST * max(float(np.trace(moments)), np.finfo(float).tiny))
    first = max(float(moments[0, 0]), LEAST * float(values.sum()))
    ratio = values / first
    normals = np.random.default_rng(len(values)).standard_normal((DRAWS, len(values))) ** 2
    variances = ratio.copy()
    for _ in range(TURNS):
        weights = 1 / (1 + normals @ variances)
        variances *= ratio * weights.mean() / (variances * (weights @ normals) / DRAWS)
    weights = 1 / (1 + normals @ variances)
    mean, square = weights.mean(), (weights**2).mean()
    kept = variances * (weights @ normals) / DRAWS
    fourth = variances * (weights**2 @ normals) / DRAWS
    factors = np.sqrt(np.r_[square / mean, fourth / kept])
    basis = np.zeros_like(moments)
    basis[0, 0], basis[1:, 1:] = 1.0, vectors
    whole = basis.T @ moments @ basis / (first + values.sum())
    np.fill_diagonal(whole, np.r_[mean, kept])
    return float(mean), basis @ (factors[:, None] * whole * factors) @ basis.T


def with_weights(statistics: SufficientStatistics, constant: float) -> SufficientStatistics:
    """Statistics of whole rows with Σ s² for n, and with what the residuals' spread is. Args: constant: and radius."""
    m, square = statistics.xx.shape[-1], constant**2
    variance = np.asarray(statistics.noise.xx, float)
    count = np.asarray(np.trace(statistics.xx)) / square
    rows, _ = estimate(count, m * variance / square**2, np.asarray(statistics.n))
    complete = max(float(rows), 1.0)
    mean, fourth = weighted(repaired(shrunk(statistics.xx, variance), NEAREST_PSD))
    return replace(statistics, n=complete * mean, residuals=square * complete * fourth)
