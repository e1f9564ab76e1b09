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
worse. At 3σ it equals that of moments. No unit is needed: if noise hides everything, the estimates are the middle of
the bounds and a sixth of their half-width, and the result warns. For heavy tails, the scale is that of the column's
bulk. If no level shows the bulk's spread, as for the indicator of a rare category, the scale is the largest that the
rare values may have.

In linear regression it replaces the moments of the DCA paper's Algorithm 2, step 2 (`models.linear.job`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import NodeReleaseRequest, NoisyAggregate, RoundRequest, SecureSumRequest
from dca_proto.wording import listed
from inference.columns import Standardisation
from inference.problem import Array, Schema

STATISTIC = "phases"
LEVELS = 10
BASE = 1.25  # below π/2, so that the lowest level is unambiguous; no simple multiple of a binary column's frequency
FREQUENCIES = BASE * 2.0 ** np.arange(LEVELS)
SIGNIFICANT = 4.0  # standard errors
SHAPE = 0.05  # deviation of φ because a column is not normal; less at low frequencies
LEAST_COMPLETE = 0.3  # the least estimate of the share of complete rows
PRIOR_SCALE, PRIOR_LOG_SD = 1 / 6, 1.2
SCALES = np.geomspace(1 / 800, 1 / 1.2, 32)
STEPS = 16  # grid steps of μ per radian of the highest frequency in use
NAMES_SHOWN_MAX = 5
NEARLY = 0.57  # (1 - cos x)/(x²/2) at x = 2.5, the largest distance of two values at the lowest level
SHRUNK = 0.7  # a column's |φ| falls below this at some level, unless the spread comes from rare values
COLLINEAR, PAIRS = 0.9, 3  # correlation from which on a pair is named in a warning, and how many pairs are named
FAR, THIN, NEAR, CONSTANT = 0.5, 0.01, 0.05, 0.95  # warning thresholds, in half-widths; CONSTANT of the mean |φ|
HIDDEN = "noise hides where"  # begins the warning about columns with an unknown location


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
        return Standardisation(schema.columns, centre, scale, limit)


def phases_request(
    schema: Schema,
    share: float,
    columns: Sequence[str],
    kind: type[RoundRequest] = SecureSumRequest,
    rows_max: int = 1,
) -> RoundRequest:
    """Return the request for the phases of these columns, in half-widths of their public bounds.

    Args:
        share: of the job's μ². columns: features, or all. rows_max: of each data node.
    """
    bounds = [schema.bounds[name] for name in columns]
    centre, half = np.array([[interval.centre, interval.half_width] for interval in bounds]).T
    standardised = Standardisation(tuple(columns), centre, half / BASE, np.full(len(bounds), BASE))
    rows = rows_max if issubclass(kind, NodeReleaseRequest) else 1
    return kind(STATISTIC, standardised.parameters() | {"levels": LEVELS}, budget_share=share, rows_max=rows)


def locate(phases: NoisyAggregate) -> Located:
    """Return centres and scales of the columns with these phases (`phases_request`)."""
    columns = Standardisation.of(phases.parameters)
    low, high = columns.centre - columns.scale * columns.bound, columns.centre + columns.scale * columns.bound
    cosines, sines = phases.value.reshape(2, len(low), LEVELS) / phases.contributors
    phi, error = cosines + 1j * sines, phases.noise_variance / phases.contributors**2 + 0.5 / phases.contributors
    share = complete_share(phi, error)
    fits = [_fit(column / share, error / share**2) for column in phi]
    middle, spread, vague = (np.array(side) for side in zip(*fits, strict=True))
    warnings = _warnings(columns.columns, np.abs(phi) / share, np.sqrt(error) / share, middle, spread, vague)
    half = (high - low) / 2
    return Located(columns.columns, (low + high) / 2 + half * middle, half * spread, warnings)


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


def _levels(phi: Array, error: float) -> int:
    """Return how many levels the fit uses: none above the spread's if |φ| rises again, as for a binary column."""
    squares = np.maximum(np.abs(phi) ** 2 - 2 * error, 0.0)
    doubt = 2 * np.sqrt(error) * np.maximum(np.sqrt(squares), np.sqrt(error))
    shrunk = 1 - squares > SIGNIFICANT * doubt
    if not shrunk.any():
        return LEVELS
    first = int(np.argmax(shrunk))
    return first + 1 if first + 1 == LEVELS or squares[first + 1] > squares[first] else first + 2


def _fit(phi: Array, error: float) -> tuple[float, float, bool]:
    """Return the posterior means of μ and of σ (of its logarithm), in half-widths, and whether noise hides σ."""
    frequencies, (rare, vague) = FREQUENCIES[: _levels(phi, error)], _rare_sd(phi, error)
    grid = np.linspace(-1, 1, 2 * round(STEPS * frequencies[-1]) + 1)
    phi, angle = phi[: len(frequencies)], SCALES[:, None] * frequencies
    size, variance = np.exp(-0.5 * angle**2), error + (SHAPE * np.minimum(angle, 1.0)) ** 2
    turned = (np.exp(-1j * grid[:, None] * frequencies) * phi).real
    of_size = 0.5 * (size**2 + np.abs(phi) ** 2) / variance + np.log(variance)
    log_density = turned @ (size / variance).T - of_size.sum(axis=1)
    log_density -= 0.5 * (np.log(SCALES / PRIOR_SCALE) / PRIOR_LOG_SD) ** 2
    weights = np.exp(log_density - log_density.max())
    weights /= weights.sum()
    scale = float(np.exp(weights.sum(axis=0) @ np.log(SCALES)))
    return float(weights.sum(axis=1) @ grid), max(scale, rare), vague


def _rare_sd(phi: Array, error: float) -> tuple[float, bool]:
    """Return σ of rare values far from a column's bulk, and whether noise hides it; 0 if a level shows the bulk's σ.

    1 - |φ|² is at most ω²σ², and near it up to the lowest level at which it is visible. Two standard errors count as
    visible, since too small a scale makes rows with a rare value huge. One of ten levels often reaches two by chance,
    and then the scale may be far too small, so below `SIGNIFICANT` standard errors the result warns. If no level is
    visible, the result is the largest σ that noise hides at the lowest level: there 1 - |φ|² is at least `NEARLY` ω²σ².
    """
    sizes, doubt = np.abs(phi), 2 * np.sqrt(error)
    if sizes.min() < max(SHRUNK - doubt, SIGNIFICANT * np.sqrt(error)):
        return 0.0, False
    shown = 1 - sizes**2
    signs = shown > 2 * doubt
    if not signs.any():
        return float(np.sqrt((max(0.0, shown[0]) + doubt) / NEARLY) / BASE), True
    lowest = int(np.argmax(signs))
    return float(np.sqrt(shown[lowest]) / FREQUENCIES[lowest]), bool(shown[lowest] < SIGNIFICANT * doubt)


def about_collinearity(columns: Sequence[str], squares: Array, noise: float) -> tuple[str, ...]:
    """Return a warning for each pair of features that nearly repeat each other, as a later round shows.

    Args:
        squares: second moments of the features about their centres, ``(d, d)``, in any unit. noise: sd of each.
    """
    own = np.maximum(np.diagonal(squares), noise)
    size = np.sqrt(own[:, None] * own)
    correlation, doubt = np.triu(squares / size, 1), 2 * noise / size
    sure = (np.abs(correlation) > COLLINEAR) & (doubt < 1 - COLLINEAR)
    return tuple(
        f"{columns[i]} and {columns[j]} nearly repeat each other (correlation {correlation[i, j]:.2f}); their "
        "coefficients depend on the prior, and only their joint prediction is sure"
        for i, j in np.argwhere(sure)[:PAIRS]
    )


def _warnings(
    names: Sequence[str], sizes: Array, doubt: float, middle: Array, spread: Array, vague: NDArray[np.bool_]
) -> tuple[str, ...]:
    """Return doubts about centres and scales, one sentence for each kind.

    Args:
        sizes: |φ|, shape ``(D, K)``. doubt: standard deviation of its real and imaginary parts.
        middle, spread, vague: from the fits.
    """
    hidden = sizes[:, 0] < SIGNIFICANT * doubt
    constant = sizes.min(axis=1) > max(CONSTANT - SIGNIFICANT * doubt, SIGNIFICANT * doubt)  # noise lowers the minimum
    constant &= sizes.mean(axis=1) > CONSTANT
    at_end = np.abs(middle) >= 1 - NEAR
    wide = (np.abs(middle) > FAR) & (spread < THIN) & ~hidden & ~constant
    vague = vague & ~hidden & ~constant
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
