"""Centres and scales of columns from noisy phases, for public bounds that may be far too wide.

Jobs `regression`, `logistic`, `poisson-regression`, `robust-regression`, `mixture` and `survival-regression` begin with
this round. All other jobs take the public bounds as they are.

    φ_k = E exp(i ω_k t) = a exp(i ω_k μ - ω_k² σ²/2),   ω_k = 1.25 · 2^k        t in half-widths, of -1 to 1

is what the statistic "phases" sums (`dca_proto.statistics.phases`), with a the share of rows that are complete. The law
is that of a normal column; of any other it is the first two cumulants' part, which is all there is at low frequencies.

1. At the lowest level whose |φ_k|² is significantly below a² the column's spread shows. It and the levels below are
   what the fit looks at, with one above for precision; higher ones show the law's shape.
2. μ and log σ have their posterior on a grid, with log σ ~ N(log 1/6, 1.2²) and a flat prior of μ. The likelihood is
   normal, its variance that of the privacy noise, of sampling, and (0.05 min(1, ωσ))² for the law's shape.

The privacy noise in μ/σ and log σ is nearly the same at bounds of 3σ and of 600σ, where moments lose a hundredfold. At
3σ it is that of moments. It needs no unit: where noise hides all, the middle of the bounds and a sixth of their
half-width are left, and the result warns. The scale is that of a column's bulk where its tails are heavy. Where no
level shows a bulk's spread, as of a rare category's column, it is the largest that the rare values may have.

In linear regression it replaces the moments of the DCA paper's Algorithm 2, step 2 (`models.linear.job`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import NodeReleaseRequest, NoisyAggregate, RoundRequest, SecureSumRequest
from dca_proto.wording import listed
from inference.columns import Array, Standardisation
from inference.problem import Schema

STATISTIC = "phases"
LEVELS = 10
BASE = 1.25  # below π/2, so that the lowest level is not ambiguous; no simple multiple of what binary columns have
FREQUENCIES = BASE * 2.0 ** np.arange(LEVELS)
SIGNIFICANT = 4.0  # standard errors
SHAPE = 0.05  # of φ, by which a column's law may differ from a normal one; less at low frequencies
LEAST_COMPLETE = 0.3  # share of the rows that is ever taken to be complete
PRIOR_SCALE, PRIOR_LOG_SD = 1 / 6, 1.2
SCALES = np.geomspace(1 / 800, 1 / 1.2, 32)
STEPS = 16  # of the grid of μ in a radian of the highest frequency that is looked at
NAMES_SHOWN_MAX = 5
NEARLY = 0.57  # (1 - cos x)/(x²/2) at x = 2.5, the farthest that two values are apart at the lowest level
SHRUNK = 0.7  # |φ| that a column's spread falls below at some level, unless it is of rare values
COLLINEAR, PAIRS = 0.9, 3  # correlation that is warned of, and how many pairs are named
FAR, THIN, NEAR, CONSTANT = 0.5, 0.01, 0.05, 0.95  # of the half-width, and the mean of |φ|: what is warned of
HIDDEN = "noise hides where"  # begins the warning of columns whose place is not known


class Located(NamedTuple):
    """Centres and scales in the columns' own units, each of shape ``(D,)``, and what is to be said of them."""

    columns: tuple[str, ...]
    centre: Array
    scale: Array
    warnings: tuple[str, ...]

    def standardisation(self, schema: Schema, bound: float) -> Standardisation:
        """Of the schema's columns, clipped at so many scales; a target that was not located is mapped to ±1."""
        centre, scale, limit = schema.centres, schema.half_widths, np.ones(len(schema.columns))
        found = slice(len(self.columns))
        centre[found], scale[found], limit[found] = self.centre, self.scale, bound
        return Standardisation(schema.columns, centre, scale, limit)


def located_by(
    schema: Schema,
    share: float,
    columns: Sequence[str],
    kind: type[RoundRequest] = SecureSumRequest,
    rows_max: int = 1,
) -> RoundRequest:
    """The round of the phases, in half-widths of the public bounds.

    Args:
        share: of the job's μ². columns: features, or all. rows_max: of each data node.
    """
    bounds = [schema.bounds[name] for name in columns]
    centre, half = np.array([[one.centre, one.half_width] for one in bounds]).T
    asked = Standardisation(tuple(columns), centre, half / BASE, np.full(len(bounds), BASE))
    rows = rows_max if issubclass(kind, NodeReleaseRequest) else 1
    return kind(STATISTIC, asked.parameters() | {"levels": LEVELS}, budget_share=share, rows_max=rows)


def locate(phases: NoisyAggregate) -> Located:
    """Of the columns whose phases were released by `located_by`."""
    asked = Standardisation.of(phases.parameters)
    low, high = asked.centre - asked.scale * asked.bound, asked.centre + asked.scale * asked.bound
    cosines, sines = phases.value.reshape(2, len(low), LEVELS) / phases.contributors
    phi, error = cosines + 1j * sines, phases.noise_variance / phases.contributors**2 + 0.5 / phases.contributors
    share = complete_share(phi, error)
    found = [_fit(one / share, error / share**2) for one in phi]
    middle, spread, vague = (np.array(side) for side in zip(*found, strict=True))
    words = _warnings(asked.columns, np.abs(phi) / share, np.sqrt(error) / share, middle, spread, vague)
    half = (high - low) / 2
    return Located(asked.columns, (low + high) / 2 + half * middle, half * spread, words)


def complete_share(phi: Array, error: float) -> float:
    """a, from the two lowest levels: ln a = (4 ln|φ_0| - ln|φ_1|)/3, the columns' median; 1 unless clearly less.

    Args:
        phi: shape ``(D, K)``. error: variance of each real and imaginary part.
    """
    sizes = np.sqrt(np.maximum(np.abs(phi[:, :2]) ** 2 - 2 * error, error))
    normal = sizes[sizes[:, 1] < sizes[:, 0] + 2 * np.sqrt(error)]  # other columns, as of two values, do not show it
    if 2 * len(normal) <= len(phi):
        return 1.0
    found = float(np.median((4 * np.log(normal[:, 0]) - np.log(normal[:, 1])) / 3))
    doubt = SIGNIFICANT * 1.5 * np.sqrt(error / len(normal)) / float(np.median(normal[:, 0]))
    return float(np.exp(max(found, np.log(LEAST_COMPLETE)))) if found < -doubt - SHAPE else 1.0


def _levels(phi: Array, error: float) -> int:
    """How many levels the fit looks at: no more of a column that comes back, as one of two values does."""
    squares = np.maximum(np.abs(phi) ** 2 - 2 * error, 0.0)
    doubt = 2 * np.sqrt(error) * np.maximum(np.sqrt(squares), np.sqrt(error))
    shrunk = 1 - squares > SIGNIFICANT * doubt
    if not shrunk.any():
        return LEVELS
    first = int(np.argmax(shrunk))
    return first + 1 if first + 1 == LEVELS or squares[first + 1] > squares[first] else first + 2


def _fit(phi: Array, error: float) -> tuple[float, float, bool]:
    """Posterior means of μ and (of its logarithm) σ, in half-widths; and whether noise hides σ."""
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
    """That of rare values far from a column's bulk, and whether noise hides it; 0 where a level shows the bulk's.

    1 - |φ|² is at most ω²σ², and near it up to the lowest level where it shows. Two standard errors are taken for a
    sign of it, as too small a scale makes rows with a rare value huge. One of ten levels often has them by chance, and
    then the scale may be far too small. So below `SIGNIFICANT` standard errors the result warns. Where none shows, the
    largest σ is taken that noise hides at the lowest level: 1 - |φ|² is at least `NEARLY` ω²σ² there.
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


def repeated(columns: Sequence[str], squares: Array, noise: float) -> tuple[str, ...]:
    """Which features nearly repeat each other, as a later round shows, a sentence for each pair.

    Args:
        squares: of the features about their centres, ``(d, d)``, in any unit. noise: standard deviation of each.
    """
    own = np.maximum(np.diagonal(squares), noise)
    size = np.sqrt(own[:, None] * own)
    correlation, doubt = np.triu(squares / size, 1), 2 * noise / size
    sure = (np.abs(correlation) > COLLINEAR) & (doubt < 1 - COLLINEAR)
    return tuple(
        f"{columns[i]} and {columns[j]} nearly repeat each other (correlation {correlation[i, j]:.2f}); their "
        "coefficients hang on the prior, and only what they predict together is sure"
        for i, j in np.argwhere(sure)[:PAIRS]
    )


def _warnings(
    names: Sequence[str], sizes: Array, doubt: float, middle: Array, spread: Array, vague: NDArray[np.bool_]
) -> tuple[str, ...]:
    """What speaks against centres and scales, one sentence for each trouble.

    Args:
        sizes: |φ|, shape ``(D, K)``. doubt: standard deviation of its real and imaginary parts.
        middle, spread, vague: found.
    """
    hidden = sizes[:, 0] < SIGNIFICANT * doubt
    constant = sizes.min(axis=1) > max(CONSTANT - SIGNIFICANT * doubt, SIGNIFICANT * doubt)  # noise lowers the least
    constant &= sizes.mean(axis=1) > CONSTANT
    at_end = np.abs(middle) >= 1 - NEAR
    wide = (np.abs(middle) > FAR) & (spread < THIN) & ~hidden & ~constant
    vague = vague & ~hidden & ~constant
    troubles = (
        (hidden, HIDDEN + " {} {lie}; the middle of the bounds stands for the mean, and intervals may be too narrow"),
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
    return tuple(_said(words, list(np.array(names)[which])) for which, words in troubles if which.any())


def _said(words: str, names: list[str]) -> str:
    """The sentence about one column, or about several of them."""
    verbs = (
        {"lie": "lies", "are": "is", "vary": "varies"}
        if len(names) == 1
        else {verb: verb for verb in ("lie", "are", "vary")}
    )
    if 1 < len(names) <= NAMES_SHOWN_MAX:
        return words.format(f"{', '.join(names[:-1])} and {names[-1]}", **verbs)
    return words.format(listed(names, NAMES_SHOWN_MAX), **verbs)
