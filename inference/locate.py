"""Centres and scales of columns from noisy phases, for public bounds that may be far too wide.

Jobs `regression`, `logistic`, `poisson-regression`, `robust-regression`, `mixture` and `survival-regression` begin with
this round. All other jobs use the public bounds.

    φ_k = E exp(i ω_k t) = a exp(i ω_k μ - ω_k² σ²/2),   ω_k = 1.25 · 2^k        t in half-widths, from -1 to 1

is summed by the statistic "phases" (`dca_proto.statistics.phases`); a is the share of rows that are complete. The
formula is exact for a normal column; for others it has the first two cumulants, which dominate at low frequencies.

1. A column's spread becomes visible at the lowest level with |φ_k|² significantly below a². The fit uses that level,
   those below it, and one above it for precision; higher levels depend on the shape of the distribution.
2. μ and log σ get a posterior on a grid, with log σ ~ N(log 1/6, 1.2²) and a flat prior of μ. The likelihood is
   normal. Its variance is that of the privacy noise, of sampling, and (0.05 min(1, ωσ))² for the distribution's shape.

The privacy noise in μ/σ and log σ is nearly the same with bounds of 3σ and of 600σ, where moments are a hundred times
worse. At 3σ it equals that of moments. No unit is needed. For heavy tails, the scale is that of the column's bulk.

**If noise hides everything**, also a column whose values are all equal (4 standard errors of φ above 1), μ and log σ
have other priors: N(0, 0.3²), and log σ ~ N(log 1/4, 0.7²). So the estimates are near the middle of the bounds and a
quarter of their half-width, and the result warns. Under the usual priors noise passes for a narrow column anywhere
within the bounds, and the clip of rows about it biases what a later round shows. On diabetes data at ε = 0.3 the error
of linear regression had a 90th percentile of 1.82 times that of least squares, and now of 1.47; the mean has 1.39 (12
splits). A column at an end of its bounds pays for that: its clip is then about the wrong place, and more of it is lost
than under the usual priors.

**Rare values.** If no level clearly shows the spread of the bulk, all values may be alike but for a share p at a
distance Δ, as for the indicator of a rare category. There 1 - |φ_k|² = 2p(1-p)(1 - cos ω_kΔ), which stays small at all
levels. So all levels count at once: the sizes |φ_k| are compared with those of normal and exponential columns, of
columns with rare values at the other bound or at an unknown distance, and of columns whose rare values vary. If values
are more likely to be rare than not, the scale is the root of the posterior mean of σ². If 90 % of the posterior lies
within a range of more than a factor of 4, or all |φ_k| together are within 3.5 standard errors of 1, noise hides the
scale. Then it is the upper end of that range, and the result warns: too large a scale costs some accuracy of one
effect, but one that is too small makes rows with a rare value huge.

In linear regression it replaces the moments of the DCA paper's Algorithm 2, step 2 (`models.linear.job`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincc, logsumexp, softmax

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.protocol.wire.kinds import Kind, NodeRelease, SecureSum
from dca_proto.wording import listed
from inference.columns import Standardisation
from inference.jobs.settings import require_count, within
from inference.problem import Array, Schema

STATISTIC = "phases"
LEVELS = 10
BASE = 1.25  # below π/2, so that the lowest level is unambiguous; no simple multiple of a binary column's frequency
FREQUENCIES = BASE * 2.0 ** np.arange(LEVELS)
SIGNIFICANT = 4.0  # standard errors
SHAPE = 0.05  # deviation of φ because a column is not normal; less at low frequencies
ROUGHLY = "roughly"  # begins the warning of rows that lack a value, which a count states better
LEAST_COMPLETE = 0.3  # the least estimate of the share of complete rows
PRIOR_SCALE, PRIOR_LOG_SD = 1 / 6, 1.2
UNSEEN_SCALE, UNSEEN_LOG_SD, UNSEEN_CENTRE_SD = 1 / 4, 0.7, 0.3  # priors if noise hides everything
SCALES = np.geomspace(1 / 800, 1 / 1.2, 32)
NARROW = 1.0  # angle of rare values' σ up to which levels locate their column
STEPS = 16  # grid steps of μ per radian of the highest frequency in use
NAMES_SHOWN_MAX = 5
SHRUNK = 0.7  # a column's |φ| falls below this at some level, unless the spread comes from rare values
SHARES, SHARE_MAX = np.geomspace(0.001, 0.5, 32), 0.15  # shares of rare values; the largest unless at the other bound
FARTHEST, NEAREST, PLACES, WITHIN = 2.0, 1 / 100, 20, 9  # distances of rare values, in half-widths
AT_BOUNDS, SPREAD = 0.5, 0.15  # prior: rare values are all at the other bound, or spread over a range
SPREAD_SHAPE = 0.3  # deviation of 1 - |φ|, as a share of it, for rare values that are spread
TAIL, VAGUE, MAYBE = 0.05, 4.0, 0.2  # warn if σ may lie anywhere in a range of this factor, and values may be rare
FAINT = 0.15  # noise in φ from which on a column's bulk is always taken to show its scale
ALIKE = 3.5  # standard errors of the mean |φ| over levels up to which all values may be equal
SINES, RIDGE, MISSED = 4, 1e-7, 5e-4  # of the approximation of t by sines; what it misses
VISIBLE, SKEWED = 0.25, 0.05  # least |φ| of a level that shows skewness; the sum that counts as skewed
FAR, THIN, NEAR, FEW = 0.5, 0.01, 0.05, 0.02  # warning thresholds, in half-widths; FEW is a share of rare values
GONE, ATOM_SDS, ATOM_MAX, FITS = 3.0, 3.0, 0.1, 0.01  # of `about_clamped`: angle of σ, errors, share, and p-value
HIDDEN = "noise hides where"  # begins the warning about columns with an unknown location


class Fitted(NamedTuple):
    """Columns' centres and σ in half-widths; whether noise hides σ, and whether all values seem alike."""

    middle: Any
    spread: Any
    vague: Any
    alike: Any


class Located(NamedTuple):
    """Centres and scales in the columns' own units, each of shape ``(D,)``, with warnings about them."""

    columns: tuple[str, ...]
    centre: Array
    scale: Array
    warnings: tuple[str, ...]

    def standardisation(self, schema: Schema, bound: float) -> Standardisation:
        """Standardise the schema's columns, clipped at ``bound`` scales; an unlocated target is mapped to ±1."""
        centre, scale, limit = schema.centres, schema.half_widths, np.ones(len(schema.columns))
        located = slice(len(self.columns))
        centre[located], scale[located], limit[located] = self.centre, self.scale, bound
        ends = np.array([(schema.bounds[name].lower, schema.bounds[name].upper) for name in schema.columns]).T
        return Standardisation(schema.columns, centre, scale, limit, ends=ends)


def phases_request(
    schema: Schema,
    share: float,
    columns: Sequence[str],
    kind: type[Kind] = SecureSum,
    rows_max: int = 1,
) -> RoundRequest:
    """Return the request for the phases of these columns, in half-widths of their public bounds.

    Args:
        share: of the job's μ². columns: features, or all. rows_max: of each data node.

    Raises:
        DataError: the share is not above 0 and at most 1, or no row counts.
    """
    within(1e-9, 1)("std_share", share)
    require_count("rows_max", rows_max)
    bounds = [schema.bounds[name] for name in columns]
    centre, half = np.array([[interval.centre, interval.half_width] for interval in bounds]).T
    standardised = Standardisation(tuple(columns), centre, half / BASE, np.full(len(bounds), BASE))
    rows = rows_max if kind is NodeRelease else 1
    parameters = standardised.parameters() | {"levels": LEVELS}
    return RoundRequest(STATISTIC, parameters, budget_share=share, rows_max=rows, kind=kind())


def locate(phases: NoisyAggregate) -> Located:
    """Return centres and scales of the columns with these phases (`phases_request`)."""
    columns = Standardisation.of(phases.parameters)
    low, high = columns.centre - columns.scale * columns.bound, columns.centre + columns.scale * columns.bound
    phi, error, share = _phases(phases)
    fits = [_fit(column, error) for column in phi]
    fitted = Fitted(*(np.array(side) for side in zip(*fits, strict=True)))
    warnings = (*_about_share(share), *_warnings(columns.columns, np.abs(phi), np.sqrt(error), fitted))
    half = (high - low) / 2
    return Located(columns.columns, (low + high) / 2 + half * fitted.middle, half * fitted.spread, warnings)


class Means(NamedTuple):
    """Columns' means in their own units, the variances of their privacy noise, and how skewed the columns may be.

    Attributes:
        skewed, shown: from 0, as a normal column's phases are, to 1, as those of a skewed one: as much as noise allows,
            and no more than it shows.
    """

    mean: Array
    variance: Array
    skewed: Array
    shown: Array


def means(phases: NoisyAggregate) -> Means:
    """Estimate means of the complete rows from the same phases: Σ_k a_k sin(ω_k t) is nearly t within the bounds.

    The noise is that of a sum within the public bounds, so bounds that are far too wide hide the mean, though not the
    centre. Im φ_{k+1} conj(φ_k)² is 0 at all k if the column is symmetric; its sum over the levels up to the spread's,
    weighted by 1 - |φ_{k+1}|², is 0.04 to 0.17 for exponential, log-normal and zero-inflated columns. Low levels, which
    all columns have near 1, add only noise without those weights.
    """
    columns = Standardisation.of(phases.parameters)
    phi, error, share = _phases(phases)
    values = np.linspace(-1, 1, 401)
    sines = np.sin(values[:, None] * FREQUENCIES[:SINES])
    parts = np.linalg.solve(sines.T @ sines / len(values) + RIDGE * np.eye(SINES), sines.T @ values / len(values))
    middle = phi.imag[:, :SINES] @ parts
    middle += middle - np.sin(middle[:, None] * FREQUENCIES[:SINES]) @ parts  # what the approximation is off there
    noise = phases.noise_variance / (phases.contributors * share) ** 2
    variance = noise * (parts @ parts) + MISSED**2 + (0.0 if share == 1 else (SHAPE * middle) ** 2)
    asymmetry = np.imag(phi[:, 1:] * phi[:, :-1].conj() ** 2)
    squares, next_squares = np.abs(phi[:, :-1]) ** 2, np.minimum(np.abs(phi[:, 1:]) ** 2, 1.0)
    doubt = error * (squares**2 + 4 * squares * next_squares)
    weights = (1 - next_squares) * (squares > VISIBLE**2)
    total, doubt = (asymmetry * weights).sum(axis=1), np.sqrt((doubt * weights**2).sum(axis=1))
    half = columns.scale * columns.bound
    most, least = np.maximum(np.abs(total), doubt), np.maximum(np.abs(total) - doubt, 0.0)
    skewed, shown = (np.minimum(1.0, one / SKEWED) for one in (most, least))
    return Means(columns.centre + half * middle, half**2 * variance, skewed, shown)


def _phases(phases: NoisyAggregate) -> tuple[Array, float, float]:
    """Return φ of the complete rows, ``(D, K)``, the variance of its real and imaginary parts, and a."""
    cosines, sines = phases.value.reshape(2, -1, LEVELS) / phases.contributors
    phi, error = cosines + 1j * sines, phases.noise_variance / phases.contributors**2 + 0.5 / phases.contributors
    share = complete_share(phi, error)
    return phi / share, error / share**2, share


def complete_share(phi: Array, error: float) -> float:
    """Estimate a from the two lowest levels: the columns' median of ln a = (4 ln|φ_0| - ln|φ_1|)/3.

    It is 1 unless the estimate is clearly less.

    Args:
        phi: shape ``(D, K)``. error: variance of each real and imaginary part.
    """
    sizes = np.sqrt(np.maximum(np.abs(phi[:, :2]) ** 2 - 2 * error, error))
    normal = sizes[sizes[:, 1] < sizes[:, 0] + 2 * np.sqrt(error)]  # other columns, such as binary ones, do not show it
    if 2 * len(normal) <= len(phi):
        return 1.0
    log_share = float(np.median((4 * np.log(normal[:, 0]) - np.log(normal[:, 1])) / 3))
    doubt = SIGNIFICANT * 1.5 * np.sqrt(error / len(normal)) / float(np.median(normal[:, 0]))
    return float(np.exp(max(log_share, np.log(LEAST_COMPLETE)))) if log_share < -doubt - SHAPE else 1.0


def _about_share(share: float) -> tuple[str, ...]:
    """Warn of a share of complete rows that is clearly below 1."""
    if share == 1:
        return ()
    return (
        f"{ROUGHLY} {100 * (1 - share):.0f} % of the rows seem to lack a value: the estimates are of the others; find "
        "out whether those differ",
    )


def _levels(phi: Array, error: float) -> int:
    """Return how many levels the fit uses: none above the spread's if |φ| rises again, as for a binary column."""
    squares = np.maximum(np.abs(phi) ** 2 - 2 * error, 0.0)
    doubt = 2 * np.sqrt(error) * np.maximum(np.sqrt(squares), np.sqrt(error))
    shrunk = 1 - squares > SIGNIFICANT * doubt
    if not shrunk.any():
        return LEVELS
    first = int(np.argmax(shrunk))
    return first + 1 if first + 1 == LEVELS or squares[first + 1] > squares[first] else first + 2


def _fit(phi: Array, error: float) -> Fitted:
    """Return the posterior means of μ and of σ (of its logarithm; of σ² if values may be rare)."""
    rare, vague, alike = _rare_values(np.abs(phi), error)
    levels = _levels(phi, error)
    if rare:
        levels = min(levels, max(2, int(np.sum(FREQUENCIES * rare <= NARROW))))
    frequencies, phi = FREQUENCIES[:levels], phi[:levels]
    grid = np.linspace(-1, 1, 2 * round(STEPS * frequencies[-1]) + 1)
    angle = SCALES[:, None] * frequencies
    size, variance = np.exp(-0.5 * angle**2), error + (SHAPE * np.minimum(angle, 1.0)) ** 2
    turned = (np.exp(-1j * grid[:, None] * frequencies) * phi).real
    of_size = 0.5 * (size**2 + np.abs(phi) ** 2) / variance + np.log(variance)
    log_density = turned @ (size / variance).T - of_size.sum(axis=1)
    if SIGNIFICANT * np.sqrt(error) > 1:
        log_density -= 0.5 * (grid[:, None] / UNSEEN_CENTRE_SD) ** 2
        log_density -= 0.5 * (np.log(SCALES / UNSEEN_SCALE) / UNSEEN_LOG_SD) ** 2
    else:
        log_density -= 0.5 * (np.log(SCALES / PRIOR_SCALE) / PRIOR_LOG_SD) ** 2
    weights = np.exp(log_density - log_density.max())
    weights /= weights.sum()
    scale = float(np.exp(weights.sum(axis=0) @ np.log(SCALES)))
    return Fitted(float(weights.sum(axis=1) @ grid), rare or scale, vague, alike)


class Shapes(NamedTuple):
    """Columns that the sizes |φ| are compared with, each of shape ``(M,)`` or ``(M, K)``.

    Attributes:
        size, variance: mean and variance of |φ_k| without noise. sd: σ. log_prior: logarithm of the prior.
        rare: whether all values are alike but for a few.
    """

    size: Array
    variance: Array
    sd: Array
    log_prior: Array
    rare: NDArray[np.bool_]


@cache
def _shapes() -> Shapes:
    """Return normal and exponential columns, then those whose values are alike but for a share p.

    The distance Δ is that of the bounds, or one value from a range, |φ|² = 1 - 2p(1-p)(1 - cos ωΔ); or rare values are
    spread over the range, φ = 1 - p + p ψ(ω).
    """
    angle = SCALES[:, None] * FREQUENCIES
    variance = (SHAPE * np.minimum(angle, 1.0)) ** 2
    normal, skewed = (
        Shapes(size, variance, SCALES, np.zeros(len(SCALES)), np.zeros(len(SCALES), bool))
        for size in (np.exp(-0.5 * angle**2), 1 / np.sqrt(1 + angle**2))
    )
    ranges = np.geomspace(NEAREST, 1, PLACES)[:, None] * np.geomspace(FARTHEST / 2, FARTHEST, WITHIN)
    at_bounds, few = _rare(np.full((1, 1), FARTHEST), SHARES), SHARES[SHARES <= SHARE_MAX]
    spread = _rare(ranges, SHARES, spread=True)
    priors = (0.25, 0.25, 0.5 * AT_BOUNDS, 0.5 * (1 - AT_BOUNDS - SPREAD), 0.5 * SPREAD)
    parts = [
        one._replace(log_prior=one.log_prior - logsumexp(one.log_prior) + np.log(prior))
        for one, prior in zip((normal, skewed, at_bounds, _rare(ranges, few), spread), priors, strict=True)
    ]
    return Shapes(*(np.concatenate(side) for side in zip(*parts, strict=True)))


def _rare(ranges: Array, shares: Array, *, spread: bool = False) -> Shapes:
    """Return columns with rare values at one place of each range, ``(places, within)``, or all over it."""
    waves, p = np.exp(1j * ranges[..., None] * FREQUENCIES)[:, :, None], shares[:, None]  # (..., shares, levels)
    if spread:
        size = np.abs(1 - p + p * waves.mean(axis=1))
        variance = (SPREAD_SHAPE * (1 - size)) ** 2
    else:
        sizes = np.abs(1 - p + p * waves)
        size, variance = sizes.mean(axis=1), sizes.var(axis=1)
    square, middle = (ranges**2).mean(axis=1)[:, None], ranges.mean(axis=1)[:, None]
    sd = np.sqrt(shares * square - (shares * middle) ** 2).ravel()
    return Shapes(size.reshape(-1, LEVELS), variance.reshape(-1, LEVELS), sd, np.zeros(sd.size), sd > 0)


def _rare_values(sizes: Array, error: float) -> tuple[float, bool, bool]:
    """Return σ if a few values are far from all others, else 0; whether noise hides σ, and whether all seem alike.

    Args:
        sizes: |φ|. error: variance of each real and imaginary part.
    """
    if sizes.min() < SHRUNK - SIGNIFICANT * np.sqrt(error):
        return 0.0, False, False
    if SIGNIFICANT * np.sqrt(error) > 1:
        return 0.0, True, True
    shapes, seen = _shapes(), np.sqrt(np.maximum(sizes**2 - error, 0.0))
    variance = error + shapes.variance
    log_density = -0.5 * ((seen - shapes.size) ** 2 / variance + np.log(variance)).sum(axis=1) + shapes.log_prior
    weights = softmax(log_density)
    order = np.argsort(shapes.sd)
    low, high = shapes.sd[order][np.searchsorted(np.cumsum(weights[order]), [TAIL, 1 - TAIL])]
    alike = float((1 - seen).mean()) < ALIKE * np.sqrt(error / LEVELS)
    rare = float(weights @ shapes.rare)
    vague = bool(high > VAGUE * low and rare > MAYBE) or alike
    if rare < 0.5 or np.sqrt(error) > FAINT:  # narrow bulk in bounds that are far too wide looks alike there
        return 0.0, vague, alike
    return float(high if vague else np.sqrt(weights @ shapes.sd**2)), vague, alike


def about_clamped(phases: NoisyAggregate, column: str) -> tuple[str, ...]:
    """Return a warning if values of a column seem to lie beyond its public bounds, where they count as the bound.

    A share p of values at an end of the bounds adds p exp(±i ω_k) to φ_k at all levels, also where the bulk adds
    nothing any more. Two shares are fitted to the levels with ω_k σ of 3 and more, at least three. The warning needs a
    share of three standard errors, at most a tenth. It also needs levels that show nothing else, as whole numbers do.
    More values than a tenth are a property of the column, and so are those at 0, where amounts end. Values at the end
    itself are not told from those beyond: a score that many reach is named as well.
    """
    phi, error, _ = _phases(phases)
    columns = Standardisation.of(phases.parameters)
    place = columns.columns.index(column)
    own, half = phi[place], float(columns.scale[place] * columns.bound[place])
    for start in range(int(np.sum(FREQUENCIES * _fit(own, error).spread < GONE)), LEVELS - 2):
        at, seen = FREQUENCIES[start:], np.r_[own[start:].real, own[start:].imag]
        design = np.vstack([np.c_[np.cos(at), np.cos(at)], np.c_[-np.sin(at), np.sin(at)]])  # of the lower, upper end
        inverse = np.linalg.inv(design.T @ design)
        shares = inverse @ design.T @ seen
        if gammaincc(len(at) - 1, float(((seen - design @ shares) ** 2).sum()) / error / 2) > FITS:
            break
    else:
        return ()
    ends = columns.centre[place] + half * np.array([-1.0, 1.0])
    beyond = (shares > ATOM_SDS * np.sqrt(error * np.diag(inverse))) & (shares < ATOM_MAX)
    beyond &= np.abs(ends) > np.finfo(float).eps * half
    if not beyond.any():
        return ()
    parts = [f"about {100 * p:.1f} % at {end:g}" for p, end in zip(shares[beyond], ends[beyond], strict=True)]
    return (
        f"values of {column} lie at an end of its bounds or beyond ({listed(parts, 2)}): those beyond count as the "
        "end, which moves the intercept and predictions out of their intervals; widen the bounds unless no value can "
        "be beyond",
    )


def _warnings(names: Sequence[str], sizes: Array, doubt: float, fitted: Fitted) -> tuple[str, ...]:
    """Return doubts about centres and scales, one sentence for each kind.

    Args:
        sizes: |φ|, shape ``(D, K)``. doubt: standard deviation of its real and imaginary parts.
        fitted: of all columns.
    """
    hidden = sizes[:, 0] < SIGNIFICANT * doubt if SIGNIFICANT * doubt < 1 else np.full(len(sizes), True)
    constant = fitted.alike & (ALIKE * doubt / np.sqrt(LEVELS) < FEW)  # no more rare values than that
    at_end = np.abs(fitted.middle) >= 1 - NEAR
    wide = (np.abs(fitted.middle) > FAR) & (fitted.spread < THIN) & ~hidden & ~constant
    vague = fitted.vague & ~hidden & ~constant
    troubles = (
        (hidden, HIDDEN + " {} {lie}; the middle of the bounds is used as the mean, and intervals may be too narrow"),
        (
            constant & ~at_end,
            "{} {are} constant as far as the noise shows: no effect can be learned, and intervals may fail if rare "
            "values differ",
        ),
        (
            constant & at_end,
            "nearly all of {} {lie} at one of the bounds or beyond; check them, unless others are rare",
        ),
        (
            vague,
            "noise hides how much {} {vary}, so effects may lie beyond intervals; narrow the bounds, or raise epsilon",
        ),
        (wide, "the bounds of {} are far too wide and their middle is far from the data; narrower ones cost less"),
    )
    return tuple(_sentence(words, list(np.array(names)[which])) for which, words in troubles if which.any())


def _sentence(words: str, names: list[str]) -> str:
    singular = {"lie": "lies", "are": "is", "vary": "varies"}
    verbs = singular if len(names) == 1 else {verb: verb for verb in singular}
    if 1 < len(names) <= NAMES_SHOWN_MAX:
        return words.format(f"{', '.join(names[:-1])} and {names[-1]}", **verbs)
    return words.format(listed(names, NAMES_SHOWN_MAX), **verbs)
