"""The number of complete rows, and rows scaled into a ball.

**Complete rows** have no missing value. A row with a missing value adds zero to a sum
(`dca_proto.statistics.contribution`), but the public n counts it. So m, the number of complete rows, is private. If
each row has a constant feature c, the sum of its squares is m c², released with noise like every other term. Replacing
it by n c² would bias the intercept: noise can hide so many missing rows that the bias is several times the intercept's
own noise.

    c² m + N(0, s²)                        the released square
    p(m) ∝ exp(-(n - m)/(n q)), m <= n     prior: a share of about q = `MISSING` of the rows lacks a value; the most
                                           likely share is none

`counted` replaces the noisy square by c² E[m], and the variance of its noise by c⁴ Var[m], given the square alone (a
normal law cut off at n). The sampler of `nodes.model` draws m jointly with all else.

If clients sum several rows each, there can be more rows than clients. Then n is no bound; `max_complete_rows` is.

**Whole rows** in a ball are Algorithm 2's projection, step 3, changed so that it does not bias a linear relation.
Each client scales its whole row, v = (1, x) and the target y, by s = min(1, R/|v|), so that v s lies in the ball of
radius R, and clips the scaled target to ±q. If y = vᵀβ + r, then also s y = (s v)ᵀβ + s r with the same β. So

    xx = Σ s² v vᵀ,    xy = Σ s² v y,    yy = Σ s² y²

are the sums of a regression with weights s² that depend on the features alone: Mallows' estimator of robust statistics.
Skewed, heavy-tailed or collinear features do not bias it. Clipping features one by one does.

**The radius** (`plan`). At R = 1 all rows lie on the sphere: the sensitivity √2 (1 + q²/2) is least for what it lets
through, and slopes have 1.3 times the variance of least squares with normal features, 2 to 4 times with heavy tails. If
the relation is curved, the weights also change what is estimated. A larger R costs noise, R² of it. The plan takes the
R with the least sum of squares of the spread and of the shift that a curve may cause, for normal features with
correlations of ½. So noise chooses the sphere, and many rows or skewed features choose a ball in which few rows are
scaled.

**A curved relation** has a curve among its residuals r. Weights then shift the coefficients from those of least
squares by M⁻¹ E s² v r, with M = E s² v vᵀ. Since E v r = 0, this is M⁻¹ E (s² - k) v r for any k. If r has the
variance λ⁻¹, then by Cauchy and Schwarz the shift in a direction u is no more than the root of λ⁻¹ uᵀM⁻¹NM⁻¹u, with
N = E (s² - k)² v vᵀ; k = E s²|v|²/E |v|² makes this small. The spread, though not the mean, takes a share of it for
sampling: γ²λ⁻¹N is added to the covariance of the mean equation, γ_j = `CURVED` (1 + `BENT` k'_j) for a feature of
which the first round shows the skewness k'_j, from 0 to 1. N is that of normal features (below). `inference/DESIGN.md`
§2 has the simulations by which γ, and the margins below, were chosen.

The sums do not tell a curve from a line, since weighted residuals are orthogonal to v whatever the relation is. Sums
under a second weight would repeat xx and xy, hence up to double the squared sensitivity. They would show only shifts
of several standard deviations of the estimate; those that spoil an interval are of one.

**The target's bound** q is the smallest whose bias stays below a third of the spread, for normal features. If a share
of 1 - κ of the slopes' information is clipped, a slope loses about that share (exactly, for normal targets: Bussgang's
theorem). A slope that explains half of the target has the most to lose. The spread comes from the second round's noise
and from the residuals, which are taken as Student's t with 5 degrees of freedom; all else is taken as normal. The
result warns if the target's mean square shows that much of it was clipped.

**What the plan of q leaves out.** It takes the target's size to be independent of the features. With skewed ones, the
clip reaches the rows with the largest features, which show a slope best. So q is larger by a share of k'/4, for the
largest skewness k' of a feature that the first round shows, unless R = 1. There noise, of which a larger q adds a tenth
or more, hides the loss. The plan takes that noise into account when it compares radii.

**Skewed residuals**, those of incomes and costs, lose more at one side of the clip than at the other. That takes a part
of the mean, hence of the intercept and of each prediction. The first round's phases show the target's mean within the
public bounds, and whether it is skewed (`locate.means`). `anchored` takes the clip's part as b ~ N(0, (2.5 k/q²)²), in
standard deviations, with k from 0 to 1 by the skewness that noise allows, or as 0 with even odds for k = 1. The
intercept moves by the posterior mean, and its spread is that of b. If the bounds are so wide that noise hides the mean,
the intercept stays as uncertain as the clip makes it.

Clipped rows also do not show slopes. At most a share v/q² of the rows is clipped for their residuals, whose mean square
is v. So slopes are made larger by a share of 0.4 k' v/q², with k' by the skewness that noise shows, and their spread
includes 0.9 v/q² √(k²/2 + 2 k'²): more where noise shows the skewness. Where it only allows it, other targets pay: a
tenth more at 2,000 rows and ε = 1.

**The residuals' spread.** Cov(Σ s² v r) is λ⁻¹ Σ s⁴ v vᵀ, which the sums do not contain. For normal features xx
determines their covariance, and with it the weights' law (`weighted`): in the features' eigenbasis it is a fixed point
of one variance for each direction.

The trace of xx counts the complete rows: each adds min(R², |v|²) to it, exactly 1 on the sphere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from dca_proto.statistics.counting import OF_THE_OTHERS
from dca_proto.wording import listed
from inference.columns import Standardisation
from inference.locate import Means
from inference.models.doubts import about_separate
from inference.models.linear.closed_form import NEAREST_PSD, NormalBeta, SufficientStatistics, repaired, shrunk
from inference.models.linear.prior import PRIOR_R2, correlations
from inference.problem import Array

MISSING = 0.1  # q, the expected share of rows with a missing value
MARGIN = 8.0  # range of the quadrature, in standard deviations of the noise
BEYOND = 4.0  # standard deviations above n that noise alone practically never reaches
POINTS = 1025  # of the quadrature
BOUNDS = np.geomspace(0.5, 12, 65)  # q in root mean squares of the weights
BIAS_SHARE = 1 / 3  # of the spread
LACKING = 0.01  # least share of rows without a value to warn of
ROOM = 0.25  # how much larger q is for skewed features
RADII = np.array([0.0, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6])  # R² as a share of a row's mean square norm
ALIKE = 0.5  # correlation of the features that the plan expects
DRAWS = 4000  # simulated rows to average over
CURVED = 0.025  # γ: shift by a curved relation over the largest possible
BENT = 5.0  # as many times more for a skewed feature
FREEDOM = 5  # of the residuals' t
TAIL = 2.5  # what a clip at q sd takes of a skewed target's mean, in sd, by 1/q²
LOST, CUT = 0.4, 0.9  # what it takes of slopes, mean and spread, by v/q²
OFF_CENTRE = 0.5  # the distance of a skewed feature's mean from its centre, in scales
REPEATED, UNSURE = 3.5, 0.15  # warn of a slope from this variance inflation, and sd in standardised units, on
CLIPPED = 0.6  # warn if a target's mean square exceeds this share of its bound's: a third of a normal is then clipped
NEAR_END, TARGET_NEAR_END = 1.3, 1.5  # warn of a mean this near to an end of its bounds, in its standard deviations
AT_END = 0.1  # largest doubt of a target's mean, in half-widths, from which the mean seems to be an end itself
TWO_VALUES = 0.9  # share of the largest variance at its mean from which on a column seems to have two values
TURNS = 60  # iterations of the fixed point
LEAST = 1e-4  # smallest share of the trace for a direction's variance; noise and repair may leave less


def log_prior(rows: Any, n: Any, missing: float = MISSING) -> Any:
    """Return ln p(m) up to a constant, for m <= n; takes NumPy or JAX arrays.

    Args:
        missing: q, the expected share of incomplete rows, above 0.
    """
    return (rows - n) / (missing * n)


def max_complete_rows(count: Array, variance: Array, n: Array) -> Array:
    """Return the largest possible number of rows: n, or more if the noisy count is far above n.

    Args:
        count: the noisy sum of the constant's squares over c². variance: of its noise, in rows².
    """
    margin = BEYOND * np.sqrt(variance)
    return np.where(count > n + margin, np.floor(count + margin), n)


def estimate(count: Array, variance: Array, n: Array) -> tuple[Array, Array]:
    """Return mean and variance of m given its noisy count, by quadrature of N(count; m, variance) p(m).

    Args:
        count, variance, n: as for `max_complete_rows`; they broadcast.
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
    """Replace n, and the noisy square of the constant feature c, by their estimates given that square."""
    square, noise = constant**2, statistics.noise
    count, variance = np.asarray(statistics.xx[..., 0, 0]) / square, np.asarray(noise.xx, float) / square**2
    rows, left = estimate(count, variance, np.asarray(statistics.n))
    xx = statistics.xx.copy()
    xx[..., 0, 0] = rows * square
    noise = replace(noise, constant=left * square**2)
    return replace(statistics, n=np.maximum(np.rint(rows), 1), xx=xx, noise_variance=noise, constant=True)


def sensitivity(bound: float, radius: float = 1.0) -> float:
    """Return the second round's sensitivity at target bound q, or up to 6 % more (`regression_sensitivity`)."""
    square = (bound / radius) ** 2
    return float(radius**2 * (np.sqrt(2) * (1 + square / 2) if square <= 2 else 1 + square))


class Plan(NamedTuple):
    """The radius R that rows are scaled to, and the target's bound q, in standard deviations of the columns."""

    radius: float
    bound: float


def plan(
    n: int,
    features: int,
    noise_std: Callable[[float, float], float],
    bend: float = CURVED**2,
    skewed: float = 0.0,
) -> Plan:
    """Return R and q.

    Args:
        n: rows. noise_std: of the second round's sum, given q and R. bend: mean of the features' γ². skewed: of the
            features, the most that the first round shows, from 0 to 1.
    """

    def spread_of(bound: float, radius: float, signal: float, residual: float) -> float:
        """Return the standard deviation of a slope, with the noise of this plan."""
        noise = (1 + PRIOR_R2) * (noise_std(float(bound), float(radius)) / n) ** 2
        return float(np.sqrt(noise + residual / n) / signal)

    rng, best, least = np.random.default_rng(features), Plan(1.0, 1.0), np.inf
    own = rng.standard_normal((DRAWS, features))
    x = np.sqrt(1 - ALIKE) * own + np.sqrt(ALIKE) * rng.standard_normal((DRAWS, 1))
    norms = 1 + (x**2).sum(axis=1)
    squares = (x - x.mean(axis=1, keepdims=True)) ** 2 if features > 1 else x**2
    squares = squares.sum(axis=1) / max(features - 1, 1)  # of what a feature does not share with the others
    residuals = rng.standard_t(FREEDOM, DRAWS) * np.sqrt((FREEDOM - 2) / FREEDOM)
    targets = np.sqrt(PRIOR_R2) * rng.standard_normal(DRAWS) + np.sqrt(1 - PRIOR_R2) * residuals
    for radius in np.sqrt(np.maximum(1.0, RADII * (1 + features))):
        weights = np.minimum(1.0, radius**2 / norms)  # s²
        signal, residual = (weights * squares).mean(), (weights**2 * squares).mean() * (1 - PRIOR_R2)
        sizes = np.sqrt(weights) * np.abs(targets)
        for bound in BOUNDS * np.sqrt(weights.mean()):
            lost = 1 - (weights * squares * (sizes < bound)).mean() / signal
            spread = spread_of(bound, radius, signal, residual)
            if np.sqrt(PRIOR_R2) * lost <= BIAS_SHARE * spread:
                break
        if radius > 1:
            bound *= 1 + ROOM * skewed
            spread = spread_of(bound, radius, signal, residual)
        usual = signal / squares.mean()
        shift = bend * (1 - PRIOR_R2) * ((weights - usual) ** 2 * squares).mean() / signal**2
        off = spread**2 + shift
        if off < least:
            best, least = Plan(float(radius), float(bound)), off
    return best


def anchored(
    fitted: NormalBeta, statistics: SufficientStatistics, parameters: Mapping[str, Any], n: int, means: Means | None
) -> NormalBeta:
    """Correct the intercept by the target's mean, of which the clip takes a part if residuals are skewed.

    Args:
        fitted: of whole rows. statistics: of the same sums. n: number of rows.
        means: of the columns, from the first round; None leaves the intercept as uncertain as the clip makes it.
    """
    columns, constant = Standardisation.of(parameters), float(parameters["intercept_bound"])
    mean_weight = float(statistics.n) / n
    beyond, mean = mean_weight / float(columns.bound[-1]) ** 2, fitted.mean
    if means is None:
        cov = fitted.cov.copy()
        cov[0, 0] += (TAIL * beyond / constant) ** 2
        return replace(fitted, cov=cov)
    slopes = np.r_[0.0, mean[1:]] * beyond * float(fitted.residual_variance)
    mean = mean + LOST * means.shown[-1] * slopes
    unseen = CUT**2 * (2 * means.shown[-1] ** 2 + means.skewed[-1] ** 2 / 2)
    cov = fitted.cov + unseen * np.outer(slopes, slopes)
    beyond *= means.skewed[-1]
    off, noise = (means.mean - columns.centre) / columns.scale, means.variance / columns.scale**2
    prior = (OFF_CENTRE * means.skewed[:-1]) ** 2
    at = np.r_[constant, off[:-1] * prior / (prior + noise[:-1])]
    unsure = np.square(mean[1:]) @ (prior * noise[:-1] / (prior + noise[:-1]))
    residual = (1 + means.skewed[-1]) * float(fitted.residual_variance) / n  # of which the clip takes a part, too
    missed, error = off[-1] - at @ mean, at @ cov @ at + noise[-1] + unsure + residual
    cov[0, 0] += (TAIL * beyond / constant) ** 2
    total = error + (TAIL * beyond) ** 2
    gain = cov @ at / total
    odds = means.skewed[-1] * np.sqrt(error / total) * np.exp(0.5 * missed**2 * (1 / error - 1 / total))
    kept = gain * missed / (1 + odds)  # of the correction, as far as the clip may have taken nothing
    return replace(
        fitted, mean=mean + gain * missed - kept, cov=cov - total * np.outer(gain, gain) + np.outer(kept, kept)
    )


def curved(statistics: SufficientStatistics, means: Means | None) -> SufficientStatistics:
    """Let the spread allow for a curved relation, more for skewed features.

    Args:
        statistics: of whole rows. means: of the columns, from the first round, if there is one.
    """
    assert statistics.bend is not None, "rows are whole"
    sizes = np.r_[CURVED, bends(np.zeros(len(statistics.bend) - 1) if means is None else means.shown[:-1])]
    return replace(statistics, bend=sizes[:, None] * sizes * statistics.bend)


def bends(skewed: Array) -> Array:
    """Return γ of features. Args: skewed: how much, from 0 to 1."""
    return CURVED * (1 + BENT * skewed)


def about_columns(
    statistics: SufficientStatistics, fitted: NormalBeta, parameters: Mapping[str, Any]
) -> tuple[str, ...]:
    """Warn of effects that noise does not tell apart, and of a target that is mostly clipped."""
    *features, target = parameters["columns"]
    notes = []
    repeated = np.diag(np.linalg.inv(correlations(statistics, len(features))))[1:] > REPEATED
    unsure = np.sqrt(np.diag(fitted.cov)[1:]) > UNSURE
    if hidden := [name for name, one in zip(features, repeated & unsure, strict=True) if one]:
        so = "their intervals are wide, and only predictions are sure"
        notes.append(about_separate(hidden, so, "nearly repeat"))
    rows = max(float(statistics.n), float(np.trace(statistics.xx)) / parameters["radius"] ** 2)
    most = (parameters["bound"][-1] / parameters["intercept_bound"]) ** 2 * rows
    doubtful = 2 * np.sqrt(np.asarray(statistics.noise.yy, float))
    if statistics.yy is not None and statistics.yy - doubtful > CLIPPED * most:
        notes.append(f"much of {target} is clipped, so its coefficients are too small; check its bounds")
    return tuple(notes)


def about_complete(statistics: SufficientStatistics, parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """Warn if rows lack values, whatever law the features have; a false alarm comes in 3e-5 of complete tables.

    A row that is scaled into the ball has a squared length of R². Any other has a constant of 1 and a length of at
    least that. So (1 - 1/R²) times the constant's square plus 1/R² times the squared length is at least 1 for each
    complete row, and at most 2 - 1/R². Its sum is no less than the number of complete rows. On the sphere it is that
    number.

    Args:
        statistics: the sums as released, with a constant of 1, of rows scaled as a whole.
    """
    share = 1 / float(parameters["radius"]) ** 2
    most = (1 - share) * float(statistics.xx[0, 0]) + share * float(np.trace(statistics.xx))
    d, noise = len(statistics.xx) - 1, sqrt(float(np.asarray(statistics.noise.xx)))
    lacking = 1 - (most + BEYOND * noise * sqrt(1 + d * share**2)) / statistics.n
    if lacking < LACKING:
        return ()
    return (f"at least {100 * lacking:.0f} % of the clients seem to lack a value: {OF_THE_OTHERS}",)


def about_boxes(statistics: SufficientStatistics, parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """Warn of missing and of clamped values, and of features that may be constant; columns are clipped one by one.

    Args:
        statistics: the sums as released, with an intercept: the constant's square counts the complete rows.
    """
    square, noise = float(parameters["intercept_bound"]) ** 2, sqrt(float(np.asarray(statistics.noise.xx)))
    features = parameters["columns"][:-1]
    spread = np.diag(statistics.xx)[1:] - statistics.xx[0, 1:] ** 2 / max(float(statistics.xx[0, 0]), square)
    notes = list(statistics.about_rows(sqrt(square)))
    if hidden := [name for name, one in zip(features, spread < 2 * noise, strict=True) if one]:
        varies, its, it = (
            ("varies", "its effect rests", "it") if len(hidden) == 1 else ("vary", "their effects rest", "them")
        )
        notes.append(
            f"noise hides whether {listed(hidden, len(hidden))} {varies} at all, so {its} on the prior; give narrower "
            f"bounds, a larger epsilon or more clients, or leave {it} out"
        )
    return (*notes, *_about_clamped(statistics, parameters))


def _about_clamped(statistics: SufficientStatistics, parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """Warn of columns whose values seem to lie at an end of their bounds or beyond, as means and squares show it.

    The mean of a normal column is 1.74, 1.45, 1.14 and 0.95 of its standard deviations from an end if 5, 10, 20 and
    30 % of it are beyond. So a target is named from about a tenth on, and a feature from about a seventh, whose
    clamping costs less. Uniform columns are at 1.73. Other clean columns are nearer: three equally frequent values at
    1.22, which is named, four at 1.34 and five at 1.41, named only if they are the target's. Hence two thresholds.

    Skewed columns are farther from the end of their long tail: a log-normal one is at 2.7, 2.1 and 1.5 with 5, 10 and
    20 % beyond. So the sums do not show less than a fifth of it. Amounts end at 0, and columns of two values have a
    mean near one of them: neither is named. A target is, if noise does not tell its mean from an end though it knows
    the mean to `AT_END` of the half-width: then all of it may be beyond.
    """
    names, bound = parameters["columns"], np.array(parameters["bound"], float)
    if statistics.yy is None:
        return ()
    constant, sd = float(parameters["intercept_bound"]), sqrt(float(np.asarray(statistics.noise.xx)))
    rows = max(float(statistics.xx[0, 0]) / constant**2, 1.0)
    sums = np.r_[statistics.xx[0, 1:], statistics.xy[0]] / constant
    squares = np.r_[np.diag(statistics.xx)[1:], statistics.yy] / rows
    mean, doubt = np.clip(sums / rows, -bound, bound), 2 * sd / rows  # of a mean square; of a mean, over the constant
    variance = squares - mean**2
    spread = np.sqrt(np.maximum(variance - doubt, 0.0))
    gap = bound - np.abs(mean) + doubt / constant
    ends = np.array(parameters["centre"]) + np.array(parameters["scale"]) * np.copysign(bound, mean)
    nearest = np.minimum(np.abs(mean) + doubt / constant, bound)
    two_valued = variance + doubt > TWO_VALUES * (bound**2 - nearest**2)
    near = np.r_[np.full(len(names) - 1, NEAR_END), TARGET_NEAR_END]
    clamped = (gap < near * spread) & ~two_valued
    clamped[-1] |= nearest[-1] >= bound[-1] and doubt / constant < AT_END * bound[-1]
    clamped &= np.abs(ends) > np.finfo(float).eps
    return tuple(
        f"many values of {name} seem to lie at {end:g}, an end of its bounds or beyond: those beyond count as the end, "
        "so coefficients may lie outside their intervals; widen the bounds unless no value can be beyond"
        for name, end in zip(np.array(names)[clamped], ends[clamped], strict=True)
    )


class Weighted(NamedTuple):
    """Moments of features v, the constant first, under the weights s² = min(1, R²/|v|²).

    Attributes:
        mean: E s². total: E s²|v|². fourth: E s⁴ v vᵀ, shape ``(m, m)``.
        uneven: E (s² - k)² v vᵀ about the usual weight k = E s²|v|²/E |v|², shape ``(m, m)``.
    """

    mean: float
    total: float
    fourth: Array
    uneven: Array


def weighted(moments: Array, radius: float = 1.0) -> Weighted:
    """Return moments of normal features about 0 that have the given E s² v vᵀ.

    Args:
        moments: E s² v vᵀ up to a factor, positive semi-definite, the constant first, shape ``(m, m)``.
        radius: R in units of the constant.
    """
    size = float(np.trace(moments))
    moments = moments / size if size > np.finfo(float).tiny else np.eye(len(moments))  # a false sum may be zero
    values, vectors = np.linalg.eigh(moments[1:, 1:])
    values = np.maximum(values, LEAST * float(np.trace(moments)))
    first = max(float(moments[0, 0]), LEAST * float(values.sum()))
    ratio = values / first
    normals = np.random.default_rng(len(values)).standard_normal((DRAWS, len(values))) ** 2
    variances = ratio.copy()
    for _ in range(TURNS):
        weights = np.minimum(1.0, radius**2 / (1 + normals @ variances))
        variances *= ratio * weights.mean() / (variances * (weights @ normals) / DRAWS)
    weights = np.minimum(1.0, radius**2 / (1 + normals @ variances))
    kept = np.r_[weights.mean(), variances * (weights @ normals) / DRAWS]
    basis = np.zeros_like(moments)
    basis[0, 0], basis[1:, 1:] = 1.0, vectors
    whole = basis.T @ moments @ basis * (kept.sum() / (first + values.sum()))
    np.fill_diagonal(whole, kept)

    def also(other: Array) -> Array:
        """Return E w v vᵀ for other weights w of the same rows."""
        factors = np.sqrt(np.r_[other.mean(), variances * (other @ normals) / DRAWS] / kept)
        return np.asarray(basis @ (factors[:, None] * whole * factors) @ basis.T)

    usual = kept.sum() / (1 + variances.sum())  # E s²|v|² / E |v|²
    return Weighted(float(kept[0]), float(kept.sum()), also(weights**2), also((weights - usual) ** 2))


def with_weights(statistics: SufficientStatistics, constant: float, radius: float) -> SufficientStatistics:
    """Complete the statistics of whole rows: n becomes Σ s², and `residuals` and `bend` are set.

    Args:
        constant: c. radius: R, in the same units.
    """
    m, variance = statistics.xx.shape[-1], np.asarray(statistics.noise.xx, float)
    found = weighted(repaired(shrunk(statistics.xx, variance), NEAREST_PSD), radius / constant)
    square = constant**2 * found.total
    count = np.asarray(np.trace(statistics.xx)) / square
    rows, _ = estimate(count, m * variance / square**2, np.asarray(statistics.n))
    complete = max(float(rows), 1.0)
    residuals, bend = constant**2 * complete * found.fourth, (constant * complete) ** 2 * found.uneven
    return replace(statistics, n=complete * found.mean, residuals=residuals, bend=bend)
