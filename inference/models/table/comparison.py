"""Tests between groups from noisy sums: their statistics have the variance of chance and of the noise.

**Means.** A group's sums are y, of values, and N, their number. If all groups have the mean μ, each y - μN is normal
around zero, with a variance w(μ) of chance and of both noises. The statistic is the least Σ(y - μN)²/w(μ) over all μ.
No ratio of noisy numbers is formed, so small groups do no harm, and an empty one adds noise of known size (Fieller
1954, "Some problems in interval estimation"). Without noise, and with the variance about the group's own mean, it is
Welch's. Degrees of freedom are his, too (Welch 1951, "On the comparison of several mean values"): 1/f is half of the
squared relative error of w, to which the noise of the sum of squares adds.

If noise leaves the groups' sizes in doubt, little is known of μ, and the least statistic is smaller than its law says.
Then p is the share of releases simulated under the null, with these sizes, that have a smaller p.

**Shares.** A group's counts of a code and of the others are y and N - y; then chance has the variance N p(1 - p).

**Differences** of two groups. The interval has all δ for which means μ and μ - δ are not rejected. Those of m pairs of
groups hold together with 95 % if each has the level 1 - 0.05/m (Bonferroni; Dunn 1961, "Multiple comparisons among
means"). A pair's p is m times its own, at most 1, so that p < 5 % just if its interval excludes zero.

**Contingency tables.** Residuals r = y - (row sums)(column sums)/total have, if rows and columns are independent, the
covariance C(n(diag π - ππᵀ) + σ²I)Cᵀ, where C projects out the sums. The statistic is rᵀCov⁺r, which is Pearson's
without noise (Gaboardi, Lim, Rogers and Vadhan 2016, "Differentially private chi-squared hypothesis testing").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats

from inference.problem import Array

_GRID, _ZOOMS, _ZOOM, _STEPS = 33, 6, 6.0, 3
_OWN_SDS = 10.0  # least number of values for a variance about the own mean, in standard deviations of its noise
_WEAK_SDS = 6.0
_RANK, _TINY = 1e-9, 1e-12
SIMULATED = 4000


class Outcome(NamedTuple):
    """A test: the statistic, its degrees of freedom (below infinite: chi-squared), and p. Arrays or numbers."""

    statistic: Array
    degrees: Array
    below: Array
    p_value: Array


class Difference(NamedTuple):
    """The difference of two groups, first less last, with the ends of its interval, and p of no difference."""

    estimate: float
    low: float
    high: float
    p_value: float


@dataclass(frozen=True, eq=False)
class Ratios:
    """Noisy numerators and denominators of each group, shape ``(..., G)``; leading axes are further releases.

    Attributes:
        y, n: the sums. low, high: ends of possible ratios.
        variance: returns w(μ), shape ``(..., G, M)``, given μ of that shape. relative: squared relative error of w,
            shape ``(..., G)``.
    """

    y: Array
    n: Array
    low: float
    high: float
    variance: Callable[[Array], Array]
    relative: Array

    def least(self, apart: Array | float = 0.0) -> tuple[Array, Array]:
        """Return the least statistic if the last group's mean is less by `apart` (...), and the first group's mean."""
        y, n = self.y[..., None], self.n[..., None]
        shift = np.zeros_like(self.y)
        shift[..., -1] = apart
        low = np.full(self.y.shape[:-1], self.low) + np.maximum(shift[..., -1], 0.0)
        high = np.full(self.y.shape[:-1], self.high) + np.minimum(shift[..., -1], 0.0)
        centre, width = (low + high) / 2, np.maximum(high - low, 0.0)
        steps = np.linspace(-0.5, 0.5, _GRID)
        found = np.zeros_like(centre)
        for _ in range(_ZOOMS):
            mu = np.clip(centre[..., None] + width[..., None] * steps, low[..., None], high[..., None])
            own = mu[..., None, :] - shift[..., None]
            total = ((y - own * n) ** 2 / self.variance(own)).sum(axis=-2)
            best = total.argmin(axis=-1)[..., None]
            centre, found = np.take_along_axis(mu, best, -1)[..., 0], np.take_along_axis(total, best, -1)[..., 0]
            width = width / _ZOOM
        for _ in range(_STEPS):  # to the mean with the weights at the last one: the grid is too coarse for many rows
            weights = n / self.variance(np.clip(centre[..., None, None] - shift[..., None], self.low, self.high))
            slope, about = (weights * n).sum(axis=(-2, -1)), (weights * (y + shift[..., None] * n)).sum(axis=(-2, -1))
            mu = np.clip(np.divide(about, slope, out=centre.copy(), where=slope > 0), low, np.maximum(low, high))
            own = mu[..., None, None] - shift[..., None]
            total = ((y - own * n) ** 2 / self.variance(own)).sum(axis=(-2, -1))
            centre, found = np.where(total < found, mu, centre), np.minimum(total, found)
        return found, centre

    def degrees(self, mu: Array) -> tuple[Array, Array]:
        """Return Welch's factor by which the statistic is divided, and the degrees of freedom below."""
        groups = self.y.shape[-1]
        weights = (
            np.maximum(self.n, 0.0) ** 2
            / self.variance(np.broadcast_to(mu[..., None, None], (*self.y.shape, 1)))[..., 0]
        )
        parts = weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300)
        lack = ((1 - parts) ** 2 * self.relative / 2).sum(axis=-1)
        factor = 1 + 2 * (groups - 2) / (groups**2 - 1) * lack
        with np.errstate(divide="ignore"):
            below = np.where(lack > 0, (groups**2 - 1) / (3 * lack), np.inf)
        return factor, np.maximum(below, 1.0)

    def test(self) -> Outcome:
        """Test that all groups have one ratio."""
        (statistic, mu), above = self.least(), self.y.shape[-1] - 1
        factor, below = self.degrees(mu)
        value = statistic / above / factor
        return Outcome(value, np.full_like(value, above), below, _beyond(value, above, below))

    def p_of(self, apart: Array | float) -> Array:
        """Return p of the hypothesis that the first of two groups' ratios is the last one's plus `apart`, (...)."""
        statistic, mu = self.least(apart)
        return _beyond(statistic, 1, self.degrees(mu)[1])

    def difference(self, level: float = 0.95, size: int = 401) -> tuple[float, float, float]:
        """Return the difference of two groups, first less last, and the ends of its interval; for one release."""
        width = self.high - self.low
        apart = np.linspace(-width, width, size)
        many = Ratios(
            np.broadcast_to(self.y, (size, 2)), np.broadcast_to(self.n, (size, 2)), self.low, self.high,
            self.variance, np.broadcast_to(self.relative, (size, 2)),
        )  # fmt: skip
        for _ in range(3):  # each time nearer to the ends
            statistic, mu = many.least(apart)
            inside = np.flatnonzero(_beyond(statistic, 1, many.degrees(mu)[1]) >= 1 - level)
            if not len(inside):
                inside = np.array([int(statistic.argmin())])
            first, last = max(inside[0] - 1, 0), min(inside[-1] + 1, size - 1)
            low, high, best = apart[first], apart[last], apart[statistic.argmin()]
            apart = np.linspace(low, high, size)
        return float(best), float(low), float(high)


def differences(pairs: Sequence[Ratios], level: float = 0.95) -> list[Difference]:
    """Return the difference of each pair of groups; all intervals hold together with this level, and p is adjusted."""
    size = len(pairs)
    own = 1 - (1 - level) / max(size, 1)
    return [Difference(*pair.difference(own), min(1.0, size * float(pair.p_of(0.0)))) for pair in pairs]


def of_means(y: Array, squares: Array, n: Array, sd: Array | float, n_sd: Array | float, reach: float) -> Ratios:
    """Return the means of groups of numbers.

    Args:
        y, squares, n: sums of x and x², |x| <= reach, and the number of values; each ``(..., G)``, with noise.
        sd, n_sd: standard deviations of the noise of a sum, or of a sum of squares, and of a number.
    """
    pooled = np.clip(y.sum(axis=-1, keepdims=True) / np.maximum(n.sum(axis=-1, keepdims=True), 1.0), -reach, reach)
    rows = np.maximum(n, 1.0)
    mean = np.where(n > _OWN_SDS * n_sd, np.clip(y / rows, -reach, reach), pooled)
    spread = np.maximum(squares - 2 * mean * y + mean**2 * n, 0.0)
    spread = np.where(n > _OWN_SDS * n_sd, spread * rows / np.maximum(rows - 1, 1.0), spread)
    shared = spread.sum(axis=-1, keepdims=True) / np.maximum(n.sum(axis=-1, keepdims=True), 1.0)
    spread = np.where((n > _OWN_SDS * n_sd) & (n < 1.5), np.maximum(spread, shared * n), spread)  # one value has none
    noise = sd**2 + pooled**2 * n_sd**2 + _TINY
    of_noise = sd**2 * (1 + 4 * mean**2) + mean**4 * n_sd**2
    relative = (2 * spread**2 / np.maximum(rows - 1, 1.0) + of_noise) / (spread + noise) ** 2

    def variance(mu: Array) -> Array:
        return np.asarray(spread[..., None] + sd**2 + mu**2 * n_sd**2 + _TINY)

    return Ratios(y, n, -reach, reach, variance, relative)


class Means(NamedTuple):
    """The arguments of `of_means`."""

    y: Array
    squares: Array
    n: Array
    sd: float
    n_sd: float
    reach: float

    @property
    def ratios(self) -> Ratios:
        """The means."""
        return of_means(*self)

    def pair(self, first: int, last: int) -> Means:
        """The sums of two groups."""
        own = [first, last]
        return self._replace(y=self.y[..., own], squares=self.squares[..., own], n=self.n[..., own])

    @property
    def is_weak(self) -> bool:
        """Whether noise leaves the number of values in doubt, so that the test is calibrated by simulation."""
        return bool(self.n_sd > 0 and (self.n < _WEAK_SDS * self.n_sd).any())

    def under_null(self, draws: int, rng: np.random.Generator) -> Means:
        """Draw releases of groups as large as these, with one mean: chance and noise."""
        n = np.maximum(self.n, 1.0)
        mu = float(np.clip(self.y.sum() / n.sum(), -self.reach, self.reach))
        spread = np.maximum(self.squares - 2 * mu * self.y + mu**2 * self.n, 0.0).sum() / n.sum()
        spread = float(np.clip(spread, 0.0, self.reach**2 - mu**2))
        z = rng.standard_normal((5, draws, len(n)))
        apart = np.sqrt(n * spread) * z[0]
        squares = n * (spread + mu**2) + 2 * mu * apart + np.sqrt(2 * n) * spread * z[1] + self.sd * z[2]
        return self._replace(y=n * mu + apart + self.sd * z[3], squares=squares, n=n + self.n_sd * z[4])

    def test(self, rng: np.random.Generator, draws: int = SIMULATED) -> Outcome:
        """Test that all means are equal; p is calibrated by simulation if the groups' sizes are in doubt."""
        found = self.ratios.test()
        if not self.is_weak:
            return found
        simulated = self.under_null(draws, rng).ratios.test().p_value
        return found._replace(p_value=np.asarray((1 + (simulated <= found.p_value).sum()) / (1 + draws)))


def of_shares(hits: Array, others: Array, sd: float, others_sd: float | None = None) -> Ratios:
    """Return the shares of one code in groups; counts ``(..., G)`` with noise of this standard deviation.

    Args:
        others_sd: of the noise of the counts of all other codes, if it differs.
    """
    n, last = hits + others, sd if others_sd is None else others_sd

    def variance(p: Array) -> Array:
        noise = sd**2 * (1 - p) ** 2 + last**2 * p**2
        return np.asarray(np.maximum(n, 0.0)[..., None] * p * (1 - p) + noise + 1e-9)

    return Ratios(hits, n, 0.0, 1.0, variance, np.zeros_like(n))


def shares_of(counts: Array, code: int, sd: float) -> Ratios:
    """Return the shares of a code, by its place, in groups: noisy counts ``(..., G, K)``."""
    hits = counts[..., code]
    return of_shares(hits, counts.sum(axis=-1) - hits, sd, sd * float(counts.shape[-1] - 1) ** 0.5)


def independence(counts: Array, sd: float) -> Outcome:
    """Test that rows and columns are independent: noisy counts ``(..., G, K)``."""
    groups, codes = counts.shape[-2:]
    total = np.maximum(counts.sum(axis=(-2, -1)), 1.0)
    p, q = _shares(counts.sum(axis=-1)), _shares(counts.sum(axis=-2))
    expected = total[..., None, None] * p[..., :, None] * q[..., None, :]
    first = np.eye(groups) - p[..., :, None]
    second = np.eye(codes) - q[..., :, None]
    residual = np.einsum("...ab,...bc,...dc->...ad", first, counts, second)
    # C(n(diag π - ππᵀ) + σ²I)Cᵀ: C annihilates π, so that only the diagonal is left
    size = groups * codes
    project = np.einsum("...ab,...cd->...acbd", first, second).reshape(*counts.shape[:-2], size, size)
    own = (expected + sd**2).reshape(*counts.shape[:-2], 1, size)
    covariance = (project * own) @ np.swapaxes(project, -1, -2)
    values, vectors = np.linalg.eigh(covariance)
    used = values > _RANK * np.maximum(values[..., -1:], 1e-300)
    used[..., : size - (groups - 1) * (codes - 1)] = False
    turned = np.einsum("...ab,...a->...b", vectors, residual.reshape(*counts.shape[:-2], size))
    statistic = np.where(used, turned**2 / np.where(used, values, 1.0), 0.0).sum(axis=-1)
    degrees = used.sum(axis=-1).astype(float)
    return Outcome(
        statistic,
        degrees,
        np.full_like(statistic, np.inf),
        np.asarray(stats.chi2.sf(statistic, np.maximum(degrees, 1))),
    )


def _beyond(value: Array, above: int, below: Array) -> Array:
    """Return the probability beyond a value of F; with infinite degrees below, of chi-squared over those above."""
    few = np.where(np.isfinite(below), below, 1.0)
    own, limit = stats.f.sf(value, above, few), stats.chi2.sf(value * above, above)
    return np.asarray(np.where(np.isfinite(below), own, limit))


def _shares(counts: Array) -> Array:
    kept = np.maximum(counts, 0.0)
    return np.asarray(kept / np.maximum(kept.sum(axis=-1, keepdims=True), 1.0))
