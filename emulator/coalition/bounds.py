"""Lower confidence bounds on a mechanism's ε, from an adversary's guesses; and bounds on the noise's variance.

An adversary guesses world 0 above a threshold. Clopper and Pearson (1934) give upper bounds on its two error rates, FPR
(world 1 taken for 0) and FNR (0 for 1), each at half of the allowed error, so that both hold together.

- For a μ-private (Gaussian DP) mechanism, no test has Φ⁻¹(1 - FPR) - Φ⁻¹(FNR) > μ (Dong, Roth and Su 2022). So this
  expression at the two bounds is a lower bound on μ, shown as the ε that it implies at the claim's δ (Nasr and others
  2023). It applies to programs that claim Gaussian DP, as this one does, and is nearly tight.
- An (ε, δ)-private mechanism has FNR >= 1 - δ - e^ε FPR, and the same with the two swapped (Kairouz, Oh and Viswanath
  2015). This assumes nothing about the mechanism, and is far from tight for Gaussian noise.

A threshold must not be chosen on the runs that count its errors: `best_thresholds` uses separate pilot runs. The record
keeps a histogram of each world and the error rates of many thresholds.

The noises of a faulty program may differ between coordinates or depend on each other: strong along one line, absent
along another. So `Scatter` adds up the second moments of all coordinates. The variance along a line u is u'Σu. Its
bounds come from the χ² distribution of the sample variance of Gaussian noise; the line must not be chosen on the same
runs.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, chi2, norm

from dca_proto.privacy import accounting
from dca_proto.results.figure import about

BINS = 80
_CUTS = 100
_CANDIDATES = 400
_NEAR_CERTAINTY = 1 - 1e-6
Rates = NDArray[np.float64]
Samples = tuple[NDArray[np.float64], NDArray[np.float64]]
"""One number per run, in world 0 and in world 1."""


class Errors(NamedTuple):
    """An adversary's errors in `runs` runs of each world: numbers, or arrays for many thresholds."""

    false_positives: Rates
    false_negatives: Rates
    runs: int


def upper_rate(errors: Rates, runs: int, risk: float) -> Rates:
    """Return Clopper and Pearson's upper bound on a rate; it is below the truth with probability `risk` at most.

    Args:
        errors: k, from 0 to `runs`, any shape; not integers when thresholds are chosen.
    """
    k = np.asarray(errors, dtype=np.float64)
    bound = beta.ppf(1 - risk, k + 1, np.maximum(runs - k, 0.5))
    return np.where(k >= runs, 1.0, bound)


def mu_lower(errors: Errors, confidence: float) -> Rates:
    """Return a lower bound on μ, at least 0."""
    return np.maximum(_gap(errors, confidence), 0.0)


def epsilon_lower_gdp(errors: Errors, delta: float, confidence: float) -> float:
    """Return a lower bound on the ε at `delta` of a mechanism that claims Gaussian DP."""
    return accounting.epsilon_of(float(mu_lower(errors, confidence)), delta)


def epsilon_lower_cp(errors: Errors, delta: float, confidence: float) -> Rates:
    """Return a lower bound on the ε at `delta` of any mechanism, at least 0."""
    positive, negative = _upper_rates(errors, confidence)
    ratio = np.maximum((1 - delta - negative) / positive, (1 - delta - positive) / negative)
    return np.log(np.maximum(ratio, 1.0))


def _gap(errors: Errors, confidence: float) -> Rates:
    positive, negative = _upper_rates(errors, confidence)
    gap: Rates = norm.isf(positive) - norm.ppf(negative)
    return gap


def _upper_rates(errors: Errors, confidence: float) -> tuple[Rates, Rates]:
    risk = (1 - confidence) / 2
    positives = upper_rate(errors.false_positives, errors.runs, risk)
    return positives, upper_rate(errors.false_negatives, errors.runs, risk)


def count_errors(samples: Samples, threshold: float | NDArray[np.float64]) -> Errors:
    """Return the errors of guessing world 0 above a threshold, or above each of many."""
    zero, one = np.sort(samples[0]), np.sort(samples[1])
    false_negatives = np.searchsorted(zero, threshold, side="right").astype(np.float64)
    false_positives = (len(one) - np.searchsorted(one, threshold, side="right")).astype(np.float64)
    return Errors(false_positives, false_negatives, len(one))


class Thresholds(NamedTuple):
    """The adversary's threshold for each of the two bounds."""

    gdp: float
    cp: float


def best_thresholds(pilot: Samples, runs: int, delta: float, confidence: float) -> Thresholds:
    """Choose thresholds on pilot runs.

    For the bound on ε, choose the threshold with the largest bound if `runs` runs had the pilot's error rates. The
    bound on μ is flat near its optimum, so the pilot's noise would decide; choose the best at near certainty instead.
    """
    merged = np.concatenate(pilot)
    cuts = np.unique(np.quantile(merged, np.linspace(0, 1, _CANDIDATES + 1)[:-1]))
    seen = count_errors(pilot, cuts)
    factor = runs / seen.runs
    expected = Errors(seen.false_positives * factor, seen.false_negatives * factor, runs)
    gdp, cp = _gap(seen, _NEAR_CERTAINTY), epsilon_lower_cp(expected, delta, confidence)
    return Thresholds(float(cuts[np.argmax(gdp)]), float(cuts[np.argmax(cp)]))


class Distributions(msgspec.Struct, frozen=True):
    """Histograms of the two worlds."""

    edges: Annotated[list[float], about("Ascending edges of the bins, in the statistic's units.")]
    counts: Annotated[tuple[list[int], list[int]], about("Number of runs in each bin, of each world.")]

    def __post_init__(self) -> None:
        if len(self.edges) < 2 or any(high <= low for low, high in pairwise(self.edges)):
            raise ValueError("distributions.edges do not ascend")
        if {len(histogram) for histogram in self.counts} != {len(self.edges) - 1}:
            raise ValueError("distributions.counts are not one for each two edges")

    @classmethod
    def of(cls, samples: Samples) -> Distributions:
        """Return histograms with `BINS` bins over the range of both worlds, with a margin."""
        low, high = (float(extreme(np.concatenate(samples))) for extreme in (np.min, np.max))
        margin = 0.05 * (high - low) or 1.0
        edges = np.linspace(low - margin, high + margin, BINS + 1)
        zero, one = (np.histogram(values, edges)[0].tolist() for values in samples)
        return cls(edges.tolist(), (zero, one))


class TradeOff(msgspec.Struct, frozen=True):
    """Error rates of guessing world 0 above a threshold, for ascending thresholds."""

    false_positives: Annotated[list[float], about("Parts of the runs of world 1 that are taken for world 0.")]
    false_negatives: Annotated[list[float], about("Parts of the runs of world 0 that are taken for world 1.")]

    @classmethod
    def of(cls, samples: Samples, cuts: int = _CUTS) -> TradeOff:
        """Return the rates for a threshold below all runs, and for `cuts` thresholds at their quantiles."""
        quantiles = np.quantile(np.concatenate(samples), np.linspace(0, 1, cuts))
        counted = count_errors(samples, np.concatenate([[-np.inf], quantiles]))
        positives, negatives = counted.false_positives / counted.runs, counted.false_negatives / counted.runs
        return cls(positives.tolist(), negatives.tolist())


def gaussian_trade_off(positives: Rates, mu: float) -> Rates:
    """Return the least FNR at each FPR under μ: Φ(Φ⁻¹(1 - FPR) - μ)."""
    curve: Rates = norm.cdf(norm.isf(positives) - mu)
    return curve


def approximate_trade_off(positives: Rates, epsilon: float, delta: float) -> Rates:
    """Return the least FNR at each FPR under (ε, δ): max(0, 1 - δ - e^ε FPR, e^-ε (1 - δ - FPR))."""
    steep, flat = 1 - delta - np.exp(epsilon) * positives, np.exp(-epsilon) * (1 - delta - positives)
    least: Rates = np.maximum(0.0, np.maximum(steep, flat))
    return least


_ROUNDING = 1e-12


class Spread(NamedTuple):
    """The variance of the noise along a line, pooled over both worlds, and its degrees of freedom."""

    variance: float
    degrees: int

    def interval(self, confidence: float) -> tuple[float, float]:
        """Return a two-sided confidence interval, for Gaussian noise."""
        half = (1 - confidence) / 2
        return self._at(chi2.isf(half, self.degrees)), self._at(chi2.ppf(half, self.degrees))

    def upper(self, risk: float) -> float:
        """Return an upper bound; the true variance exceeds it with probability `risk` at most."""
        return self._at(chi2.ppf(risk, self.degrees))

    def _at(self, quantile: float) -> float:
        return float(self.variance * self.degrees / quantile)


class Scatter:
    """The second moments of the noise, added up over runs.

    Args:
        size: d, the number of coordinates.
    """

    def __init__(self, size: int) -> None:
        self._counts = np.zeros(2, dtype=np.int64)
        self._sums = np.zeros((2, size))
        self._squares = np.zeros((size, size))

    def add(self, side: int, noise: Rates) -> None:
        """Add the noise of some runs in world `side`, shape ``(runs, d)``."""
        self._counts[side] += len(noise)
        self._sums[side] += noise.sum(axis=0)
        self._squares += noise.T @ noise

    @property
    def degrees(self) -> int:
        """Degrees of freedom: the runs of each world, minus one."""
        return int(np.maximum(self._counts - 1, 0).sum())

    @property
    def covariance(self) -> Rates:
        """Σ, pooled over both worlds, shape ``(d, d)``; zero before the second run."""
        means = self._sums / np.maximum(self._counts, 1)[:, None]
        pooled: Rates = (self._squares - self._sums.T @ means) / max(self.degrees, 1)
        return pooled

    @property
    def mean(self) -> Spread:
        """The variance averaged over all coordinates, as if they were independent draws of one variance."""
        covariance = self.covariance
        return Spread(float(np.trace(covariance)) / len(covariance), self.degrees * len(covariance))

    def along(self, lines: Rates) -> list[Spread]:
        """Return the variances along lines, unit vectors of shape ``(k, d)``.

        A variance is 0 if it is no more than the rounding of a projection.
        """
        covariance = self.covariance
        least, variances = _ROUNDING * float(np.trace(covariance)), np.einsum("kd,kd->k", lines @ covariance, lines)
        return [Spread(float(one) if one > least else 0.0, self.degrees) for one in variances]


def noticeable(degrees: int, risk: float) -> float:
    """Return the relative shortfall of a variance that `Spread.upper` misses with probability `risk` at most."""
    return float(1 - chi2.ppf(risk, degrees) / chi2.isf(risk, degrees))
