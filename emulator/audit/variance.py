"""How much noise there is: its variance along any line through the released space, with confidence.

Nothing says that a program's noise is independent or equal from coordinate to coordinate: it may be strong along one
line and absent along another. So second moments are kept of all coordinates together, added up block by block, and the
variance along a line u is u'Σu. It is bounded by the χ² distribution of the sample variance of Gaussian noise, for a
line that was not chosen on the same runs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

_ROUNDING = 1e-12
Floats = NDArray[np.float64]


class Spread(NamedTuple):
    """The variance of the noise along a line, within the worlds, pooled over both. `degrees` of freedom."""

    variance: float
    degrees: int

    def interval(self, confidence: float) -> tuple[float, float]:
        """Two-sided, for Gaussian noise."""
        half = (1 - confidence) / 2
        return self._at(chi2.isf(half, self.degrees)), self._at(chi2.ppf(half, self.degrees))

    def upper(self, risk: float) -> float:
        """One-sided: the true variance is above it with probability `risk` at most."""
        return self._at(chi2.ppf(risk, self.degrees))

    def _at(self, quantile: float) -> float:
        return float(self.variance * self.degrees / quantile)


class Scatter:
    """Second moments of the noise within the worlds.

    Args:
        size: d, how many coordinates.
    """

    def __init__(self, size: int) -> None:
        self._counts = np.zeros(2, dtype=np.int64)
        self._sums = np.zeros((2, size))
        self._squares = np.zeros((size, size))

    def add(self, side: int, noise: Floats) -> None:
        """Count in the noise of some runs in world `side`, shape ``(runs, d)``."""
        self._counts[side] += len(noise)
        self._sums[side] += noise.sum(axis=0)
        self._squares += noise.T @ noise

    @property
    def degrees(self) -> int:
        """Of freedom: the runs of each world but one."""
        return int(np.maximum(self._counts - 1, 0).sum())

    @property
    def covariance(self) -> Floats:
        """Σ, pooled over both worlds, shape ``(d, d)``; zero before the second run."""
        means = self._sums / np.maximum(self._counts, 1)[:, None]
        pooled: Floats = (self._squares - self._sums.T @ means) / max(self.degrees, 1)
        return pooled

    def along(self, line: Floats) -> Spread:
        """The noise along a line, a vector of length 1; zero where there is no more than a projection's rounding."""
        covariance = self.covariance
        variance = float(line @ covariance @ line)
        return Spread(variance if variance > _ROUNDING * np.trace(covariance) else 0.0, self.degrees)


def noticeable(degrees: int, risk: float) -> float:
    """The part by which a variance must be short for `Spread.upper` to miss that with probability `risk` at most."""
    return float(1 - chi2.ppf(risk, degrees) / chi2.isf(risk, degrees))
