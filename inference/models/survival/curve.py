"""Survival curves and the log-rank test from counts of events and of censored rows on a time grid.

**The curve.** In interval k, d_k rows have an event, c_k are censored, and Y_k are at risk at its beginning. Rows that
are censored within it are at risk for a share f_k of it:

    S(t_k) = Π_{j<=k} (1 - d_j/A_j),    A_k = Y_k - (1 - f_k) c_k,    Y_{k+1} = Y_k - d_k - c_k.

**Where in its interval a row is censored** the sum does not show. With f_k = ½ this is the actuarial estimate (Cutler
and Ederer 1958), which is right if censoring is as likely everywhere in the interval. If the neighbours have as many
censored rows for their length, it is. If they have none, rows may be censored together at any place, often at an end:

    f_k = ½ + r_k (b - ½),    b ~ Beta(½, ½),    r_k = min(1, mean of |ρ_k - ρ_j|₊/ρ_k over neighbours j),

with ρ_k = c_k over the length of the interval, and |.|₊ what of a difference is beyond two standard deviations of
chance and noise. Without privacy f_k is the rows' own.

Without censoring within intervals this is the Kaplan-Meier curve at t_k. In the following H = -ln S is written as

    H(t_k) = Σ_{j<=k} d_j/E_j,    E_k = d_k / ln(A_k/(A_k - d_k)), the logarithmic mean of A_k and A_k - d_k,

where E_k is the average number at risk. This is smooth in noisy counts of any sign.

**Noise.** The round's sum is B·counts + noise (`codes`), and the counts add up to the known n. Under a flat prior the
counts given the release are normal: their least-squares estimate and the noise's covariance. They may be negative:
forcing them above 0 would raise noisy counts, and bias cumulative sums. Given the counts, the shares of the cells are
Dirichlet(counts + a/m), with m cells in all: a prior worth a rows, by default one. A draw of the posterior draws both:
gamma variables with the counts' mean and variance; a negative count is added to its variable. Each drawn curve is
replaced by the nearest falling one: isotonic regression of H, weighted by the precision of each H(t_k), because H is
arbitrary where few rows are left.

**The log-rank test.** Under the null hypothesis all groups have the hazards of all rows together. With d_gk, E_gk of
group g, their sums d_k, E_k over groups, and e_gk = E_gk/E_k

    U_g = Σ_k d_gk - d_k e_gk,    Var U = Σ_k d_k (diag(e_k) - e_k e_kᵀ) + ∇U·Cov(noise of the counts, f)·∇Uᵀ,

and UᵀVar⁻¹U is chi-squared with G - 1 degrees of freedom. (The first term is the classical variance without the
correction for ties; a continuous time has no ties.)

Var U is not computed at the noisy counts c + e, but at the nearest non-negative counts that add up to n. At the noisy
ones it is too large: to second order in the noise, of covariance Σ, with H the Hessian of a U_g,

    E[∇U(c + e)·Σ·∇Uᵀ(c + e)] = ∇UΣ∇Uᵀ + tr(HΣHΣ),    while    Var U(c + e) = ∇UΣ∇Uᵀ + tr(HΣHΣ)/2,

and no expansion holds where few rows are at risk. The nearest possible counts are no farther from the true ones, which
are in the same convex set, and have much less noise. `inference/DESIGN.md` §7 has the levels of tests at both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import chdtrc

from dca_proto.statistics import Survival
from inference.errors import DataError
from inference.jobs.settings import require_positive
from inference.mcmc.sums import NoisySums
from inference.models.doubts import MISSING_SDS
from inference.problem import Array
from inference.simplex import nearest_on_simplex

PRIOR_ROWS = 1.0
CENTRAL = (0.025, 0.975)
SPREAD_MIN = 1e-3  # smallest spread of H(t_k) relative to the largest, to limit rounding errors of the weights
ROWS_FLOOR = 0.5  # smallest number at risk; noise may leave fewer
GRADIENT_STEP = 1e-3  # rows; U is smooth on the scale of whole rows
PLACES_SD = 8**-0.5  # standard deviation of Beta(1/2, 1/2)
CHANCE_SDS = 2.0  # of a difference between two intervals' censored rows


class AtRisk(NamedTuple):
    """Events d_k of each interval, and the average number at risk E_k: shapes ``(..., K)``."""

    events: Array
    exposed: Array


def at_risk(counts: Array, floor: float = ROWS_FLOOR, places: Array | float = 0.5) -> AtRisk:
    """Return events and numbers at risk from counts ``(..., 2K + 1)``: events, censored, and neither.

    Args:
        floor: smallest number at risk. places: f_k, the share of its interval for which a censored row is at risk.
    """
    intervals = counts.shape[-1] // 2
    events, censored = counts[..., :intervals], counts[..., intervals:-1]
    remaining = np.cumsum((events + censored)[..., ::-1], axis=-1)[..., ::-1] + counts[..., -1:]
    first = np.maximum(remaining - (1 - places) * censored, floor)
    last = np.maximum(first - events, floor)
    ratio = np.log(first / last)
    flat = np.abs(ratio) < 1e-6
    return AtRisk(events, np.where(flat, (first + last) / 2, (first - last) / np.where(flat, 1.0, ratio)))


def cumulative_hazard(counts: Array, floor: float = ROWS_FLOOR, places: Array | float = 0.5) -> Array:
    """Return H(t_1), ..., H(t_K) from counts ``(..., 2K + 1)``. Args: as for `at_risk`."""
    events, exposed = at_risk(counts, floor, places)
    return np.asarray(np.cumsum(events / exposed, axis=-1))


def survival_curve(counts: Array, floor: float = ROWS_FLOOR) -> Array:
    """Return S(t_1), ..., S(t_K) from counts ``(..., 2K + 1)``."""
    return np.asarray(np.exp(-cumulative_hazard(counts, floor)))


@dataclass(frozen=True, eq=False)
class Counts:
    """The normal law of the cells' counts given a release.

    Attributes:
        statistic: defines the cells. mean: of each group's cells, shape ``(G, m)``.
        root: of the noise's covariance, shape ``(G·m, k)``: covariance = root rootᵀ. n: number of rows.
        surplus: number of rows in the release minus n, in standard deviations of the noise; nan if the release does
            not contain the number. prior_rows: a, above 0, else `DataError`.
        missing: share of the contributed rows that clearly did not count, or 0; n is then the number of the others.
        places: f_k of each group, shape ``(G, K)``, if known; None for counts of a release.
    """

    statistic: Survival
    mean: Array
    root: Array
    n: int
    surplus: float = float("nan")
    prior_rows: float = PRIOR_ROWS
    missing: float = 0.0
    places: Array | None = None

    def __post_init__(self) -> None:
        require_positive("prior_rows", self.prior_rows)

    @property
    def rows_missing(self) -> bool:
        """True if clearly fewer rows were counted than contributed."""
        return self.surplus < -MISSING_SDS

    @property
    def at_risk(self) -> tuple[Array, Array]:
        """Numbers of each group's rows that are followed and have had no event just after 0, t_1, ..., t_K.

        Returns:
            The estimates, at least 0, and the standard deviations of their noise: shapes ``(G, K + 1)``.
        """
        groups, cells = self.mean.shape
        k = cells // 2
        later = (np.arange(k)[None] >= np.arange(k + 1)[:, None]).astype(float)  # interval j is after time i
        count = np.hstack([later, later, np.ones((k + 1, 1))])
        noise = np.einsum("tc,gcr->gtr", count, self.root.reshape(groups, cells, -1))
        return np.maximum(self.mean @ count.T, 0.0), np.linalg.norm(noise, axis=-1)

    @property
    def roughness(self) -> Array:
        """r_k of each group: how far the censored rows of an interval may lie together, shape ``(G, K)``, 0 to 1."""
        lengths = np.diff(np.array(self.statistic.times), prepend=0.0)
        if lengths.size == 1:
            return np.ones((len(self.mean), 1))
        censored = slice(lengths.size, -1)
        density = np.maximum(self.mean[:, censored], 0.0) / lengths
        noise = self.root.reshape(*self.mean.shape, -1)[:, censored] / lengths[:, None]
        chance = (density[:, 1:] / lengths[1:] + density[:, :-1] / lengths[:-1]) + (np.diff(noise, axis=1) ** 2).sum(-1)
        beside = np.full((len(density), lengths.size + 1), np.nan)
        beside[:, 1:-1] = np.maximum(np.abs(np.diff(density, axis=1)) - CHANCE_SDS * np.sqrt(chance), 0.0)
        mean = np.nanmean(np.stack([beside[:, :-1], beside[:, 1:]]), axis=0)
        return np.divide(np.minimum(mean, density), density, out=np.zeros_like(density), where=density > 0)

    @property
    def likeliest_places(self) -> Array:
        """f_k of each group, known or expected, shape ``(G, K)``."""
        groups, cells = self.mean.shape
        return np.full((groups, cells // 2), 0.5) if self.places is None else self.places

    @property
    def spread_of_places(self) -> Array:
        """The standard deviation that the unknown places give to each interval's H, shape ``(G, K)``."""
        events, exposed = at_risk(self.mean)
        censored = np.maximum(self.mean[:, events.shape[1] : -1], 0.0)
        return np.asarray(np.maximum(events, 0.0) * censored / exposed**2 * self.roughness * PLACES_SD)

    def drawn_places(self, draws: int, rng: np.random.Generator) -> Array:
        """Draw f_k of each group, shape ``(draws, G, K)``."""
        if self.places is not None:
            return np.broadcast_to(self.places, (draws, *self.places.shape))
        rough = self.roughness
        return np.asarray(0.5 + rough * (rng.beta(0.5, 0.5, (draws, *rough.shape)) - 0.5))

    def shares(self, draws: int, rng: np.random.Generator) -> Array:
        """Draw the cells' shares, times n, shape ``(draws, G, m)``; some may be slightly below 0."""
        noise = rng.standard_normal((draws, self.root.shape[1])) @ self.root.T
        counts = self.mean + noise.reshape(draws, *self.mean.shape)
        gamma = rng.standard_gamma(np.maximum(counts, 0) + self.prior_rows / self.mean.size) + np.minimum(counts, 0)
        return np.asarray(gamma * (self.n / gamma.sum(axis=(1, 2), keepdims=True)))


def counts_of(sums: NoisySums, statistic: Survival, prior_rows: float = PRIOR_ROWS) -> Counts:
    """Return the counts given a release of the statistic "survival".

    Raises:
        DataError: the sum does not match the statistic, or ``prior_rows`` is not above 0.
    """
    words = statistic.words.T.astype(float)
    if sums.value.shape != (len(words),):
        raise DataError(f"the sum has {sums.value.size} coordinates; expected {len(words)} for these times and groups")
    cells, sd = words.shape[1], float(np.sqrt(sums.noise_variance.max()))
    free = np.linalg.svd(np.ones((1, cells)))[2][1:].T  # directions that do not change the counts' sum
    even = np.full(cells, sums.n / cells)
    inverse = np.linalg.pinv(words @ free)
    mean = even + free @ (inverse @ (sums.value - words @ even))
    of_all, _, rank, _ = np.linalg.lstsq(words, np.eye(len(words)), rcond=None)
    total = of_all.sum(axis=0)  # coefficients that give the number of rows from the release
    surplus = float((total @ sums.value - sums.n) / (sd * np.linalg.norm(total))) if sd > 0 else 0.0
    known, n, root = rank < cells or surplus >= -MISSING_SDS, sums.n, sd * free @ inverse
    if not known:  # fewer rows count than contributed: their number is unknown, too
        mean, root = of_all @ sums.value, sd * of_all
        n = max(round(float(mean.sum())), 1)
    return Counts(
        statistic,
        mean.reshape(statistic.groups, -1),
        root,
        n,
        float("nan") if rank < cells else surplus,
        prior_rows,
        missing=1 - n / sums.n,
    )


def exact_counts(statistic: Survival, rows: Array, prior_rows: float = PRIOR_ROWS) -> Counts:
    """Return the counts of raw rows, shape ``(n, columns)``, without noise; rows that count as missing are left out."""
    rows = rows[np.isfinite(rows).all(axis=1) & statistic.counts(rows)]
    cells, ends = statistic.cells_of(rows), np.array((0.0, *statistic.times))
    mean = np.bincount(cells, minlength=statistic.cells).astype(float).reshape(statistic.groups, -1)
    interval = np.minimum(ends[1:].searchsorted(rows[:, 0], "right"), ends.size - 2)
    place = (rows[:, 0] - ends[interval]) / np.diff(ends)[interval]
    sums = np.bincount(cells, place, minlength=statistic.cells).reshape(statistic.groups, -1)
    censored = slice(ends.size - 1, -1)
    places = np.where(mean[:, censored] > 0, sums[:, censored] / np.maximum(mean[:, censored], 1), 0.5)
    root = np.zeros((statistic.cells, 1))
    return Counts(statistic, mean, root, len(rows), prior_rows=prior_rows, places=places)


def curves(counts: Counts, draws: int, rng: np.random.Generator) -> Array:
    """Draw each group's curve at the grid's times, shape ``(draws, G, K)``, each falling from 1 or less."""
    return _falling(counts.shares(draws, rng), counts.drawn_places(draws, rng))


def prior_curves(counts: Counts, draws: int, rng: np.random.Generator) -> Array:
    """Draw each group's curve from the prior, for the same number of rows."""
    shape, cells = counts.mean.shape, counts.mean.size
    return _falling(counts.n * rng.dirichlet(np.full(cells, counts.prior_rows / cells), draws).reshape(-1, *shape))


def _falling(cells: Array, places: Array | float = 0.5) -> Array:
    """Return the nearest falling curves, from draws of the cells, shape ``(draws, G, m)``. Args: as for `at_risk`."""
    hazard = np.maximum(cumulative_hazard(cells, places=places), 0)
    spread = np.ptp(np.quantile(hazard, CENTRAL, axis=0), axis=0)
    least = np.maximum(SPREAD_MIN * spread.max(axis=-1, keepdims=True), np.finfo(float).tiny ** 0.25)
    return np.asarray(np.exp(-isotonic(hazard, 1 / np.maximum(spread, least) ** 2)))


def isotonic(values: Array, weights: Array) -> Array:
    """Return the nearest non-decreasing sequences, by weighted least squares along the last axis.

    Entry k is max over i <= k of min over j >= k of the mean from i to j (Barlow et al. 1972).
    """
    size = values.shape[-1]
    zero = np.zeros((*values.shape[:-1], 1))
    sums = np.concatenate([zero, np.cumsum(weights * values, axis=-1)], axis=-1)
    total = np.concatenate([0 * weights[..., :1], np.cumsum(weights, axis=-1)], axis=-1)
    fitted = np.full(values.shape, -np.inf)
    for i in range(size):
        means = (sums[..., i + 1 :] - sums[..., i : i + 1]) / (total[..., i + 1 :] - total[..., i : i + 1])
        least = np.minimum.accumulate(means[..., ::-1], axis=-1)[..., ::-1]
        fitted[..., i:] = np.maximum(fitted[..., i:], least)
    return fitted


class LogRank(NamedTuple):
    """The test that all groups have the same hazard; if so, chi-squared with G - 1 degrees of freedom."""

    statistic: float
    degrees: int
    p_value: float


def log_rank(counts: Counts) -> LogRank | None:
    """Return the log-rank test, with the noise in its variance; None for a single group."""
    groups, excess = counts.statistic.groups, _excess(counts.mean, counts.likeliest_places)[:-1]
    if groups == 1:
        return None
    statistic = float(excess @ np.linalg.lstsq(excess_variance(counts)[:-1, :-1], excess, rcond=None)[0])
    return LogRank(statistic, groups - 1, float(chdtrc(groups - 1, statistic)))


def excess_variance(counts: Counts) -> Array:
    """Return Var U under one hazard, with noise and unknown places, at the nearest possible counts: ``(G, G)``."""
    groups, shape, places = counts.mean.shape[0], counts.mean.shape, counts.likeliest_places
    nearest = nearest_on_simplex(counts.mean.ravel(), counts.n).reshape(shape)
    step = GRADIENT_STEP * np.eye(nearest.size).reshape(-1, *shape)
    gradient = (_excess(nearest + step, places) - _excess(nearest - step, places)).T / (2 * GRADIENT_STEP)
    risk = at_risk(nearest, places=places)
    parts, events = risk.exposed / risk.exposed.sum(axis=0), risk.events.sum(axis=0)
    classical = np.einsum("k,gk,gh->gh", events, parts, np.eye(groups)) - np.einsum("k,gk,hk->gh", events, parts, parts)
    noise = gradient @ counts.root
    if counts.places is None:
        spread = PLACES_SD * counts.roughness
        moved = np.eye(spread.size).reshape(-1, *spread.shape) * spread
        unknown = (_excess(nearest, places + moved) - _excess(nearest, places - moved)).T / 2
        noise = np.hstack([noise, unknown])
    return np.asarray(classical + noise @ noise.T)


def _excess(counts: Array, places: Array) -> Array:
    """Return U_g, ``(..., G)``: events of each group beyond those expected under one hazard. Args: as for `at_risk`."""
    events, exposed = at_risk(counts, places=places)
    parts = exposed / exposed.sum(axis=-2, keepdims=True)
    expected = parts * events.sum(axis=-2, keepdims=True)
    return np.asarray((events - expected).sum(axis=-1))
