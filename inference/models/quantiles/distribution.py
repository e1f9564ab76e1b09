"""The distribution function of a column from noisy counts in nested bins, and its quantiles.

The sum has the counts of 4, 16, ..., 4^L equal bins, and the number r of complete rows with a weight w
(`dca_proto.statistics.nested`). All have independent noise of the same variance σ². The B = 4^L finest counts c
determine the others, so y = A c + noise.

**Consistency.** Under a flat prior, c given y is normal: its mean is the least-squares estimate (AᵀA)⁻¹Aᵀy, its
covariance σ²(AᵀA)⁻¹ (Hay et al. 2010, "Boosting the accuracy of differentially private histograms through consistency",
who need only the mean). A cumulative count then has the noise of a few bins, not of up to B. Let P_l replace each count
by the mean of its bin of level l, of s_l = 4^(L-l) finest ones. AᵀA is Σ_l s_l P_l + w² B P_0, so its eigenvalue on
the range of P_l - P_(l-1) is Σ_(k ≥ l) s_k, and with w² B on that of P_0. No matrix is needed.

Of LDP reports the noise differs from bin to bin: `reported`.

**Rows.** If the noise hides their number, it is drawn from its normal law between 1 and the number of clients. The
counts given it differ by the same number each, since the column sum of (AᵀA)⁻¹ is the same for all.

**Chance.** The question is about the distribution that the clients come from. Its function differs from that of the r
clients by chance: by the cumulated difference of multinomial shares of r draws from the estimate.

**Monotony.** Each drawn function is replaced by the nearest one that rises from 0 to 1 (isotonic regression). This is
a projection of the normal posterior onto what is possible; its intervals hold asymptotically where the density is not
zero (Chakraborty and Ghosal 2021, "Convergence rates for Bayesian estimation and testing in monotone regression").

**Quantiles.** The quantile p of a drawn function is where it reaches p, by linear interpolation within a bin. What
happens inside a bin is not known, so an interval reaches to the outer ends of the bins in which it ends. So it also
holds for ages in whole years and other columns with few values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.special import ndtr, ndtri

from dca_proto.aggregate import NoisyAggregate
from dca_proto.statistics import NestedCounts
from dca_proto.statistics.counting import about_missing
from dca_proto.statistics.nested import SPLIT
from dca_proto.wording import listed
from inference.draws import CHAINS, DRAWS
from inference.errors import DataError
from inference.jobs.estimates import TAILS, Estimate, Marginal
from inference.posterior import Posterior
from inference.problem import Array, Schema, unit_of

QUANTILES = "quantiles"
_HIDDEN_SDS = 4.0  # least number of complete rows, in standard deviations of its noise
_NAMES = {0.25: "lower quartile", 0.5: "median", 0.75: "upper quartile"}


@dataclass(frozen=True, eq=False)
class Cumulative:
    """The posterior of a column's distribution function at the upper ends of the finest bins.

    Attributes:
        statistic: defines the bins. counts: the least-squares estimate of the finest counts, shape ``(B,)``.
        sd: σ, of the noise of each coordinate. n: number of clients that contributed.
    """

    statistic: NestedCounts
    counts: Array
    sd: float
    n: int

    @classmethod
    def of(cls, aggregate: NoisyAggregate) -> Cumulative:
        """Return it from the sum of a round. Raises `DataError` if the sum is not one of nested counts with a count."""
        if aggregate.statistic != NestedCounts.name or not aggregate.parameters.get("count_weight"):
            raise DataError(f"a sum of {aggregate.statistic!r}; expected one of {NestedCounts.name!r} with a count")
        statistic = NestedCounts(**{**aggregate.parameters, "columns": tuple(aggregate.parameters["columns"])})
        return cls.from_sum(statistic, aggregate.value, float(aggregate.noise_variance) ** 0.5, aggregate.contributors)

    @classmethod
    def from_sum(cls, statistic: NestedCounts, value: Array, sd: float, n: int) -> Cumulative:
        """Return it from the statistic's coordinates, each with noise of this standard deviation."""
        return cls(statistic, _least_squares(statistic, value), sd, n)

    @classmethod
    def exact(cls, statistic: NestedCounts, x: Array) -> Cumulative:
        """Return it from complete values ``(n,)``, without noise."""
        finest = statistic.edges[1:-1].searchsorted(x, side="right")
        return cls(statistic, np.bincount(finest, minlength=len(statistic.edges) - 1).astype(float), 0.0, len(x))

    @property
    def rows(self) -> float:
        """The number of complete rows, as estimated."""
        return float(self.counts.sum())

    @property
    def rows_sd(self) -> float:
        """The standard deviation of the noise of `rows`."""
        return self.sd * float((len(self.counts) / _eigenvalues(self.statistic)[0]) ** 0.5)

    @property
    def is_exact(self) -> bool:
        """True if there is no noise."""
        return not self.sd

    def noise(self, number: int, rng: np.random.Generator) -> Array:
        """Draw the noise of the counts, shape ``(number, B)``."""
        drawn = rng.standard_normal((number, len(self.counts)))
        return self.sd * _by_level(self.statistic, _eigenvalues(self.statistic) ** -0.5, drawn)

    def chance(self, number: int, size: int, rng: np.random.Generator) -> Array:
        """Draw by how much shares of so many clients differ from those that they come from, ``(number, B)``."""
        shares = np.diff(self.estimate(), prepend=0.0).clip(0.0, None)
        return np.asarray(rng.multinomial(size, shares / shares.sum(), number) / size - shares)

    @property
    def shift(self) -> Array | float:
        """What one more row adds to the mean of each count, given the release; they add up to 1."""
        return 1 / len(self.counts)

    @property
    def is_hidden(self) -> bool:
        """True if the noise hides how many rows are complete."""
        return self.rows < _HIDDEN_SDS * self.rows_sd

    def estimate(self) -> Array:
        """Return the nearest possible distribution function to the estimated counts, shape ``(B,)``; flat if none."""
        if self.is_exact and self.rows < 0.5:
            return np.arange(1, len(self.counts) + 1) / len(self.counts)
        rows = self._hidden_rows(np.array([0.5]))[0] if self.is_hidden else self.rows
        return np.asarray(_risen((np.cumsum(self._with_rows(self.counts, rows)) / rows)[None])[0])

    def draws(self, number: int, rng: np.random.Generator) -> Array:
        """Draw distribution functions, shape ``(number, B)``, each rising to 1."""
        drawn = self.counts + self.noise(number, rng)
        if self.is_hidden:
            rows = self._hidden_rows(rng.random(number))[:, None]
            drawn = self._with_rows(drawn, rows)
            size = max(round(float(np.median(rows))), 1)
        else:
            rows = drawn.sum(axis=1, keepdims=True).clip(1.0, None)
            size = max(round(min(self.rows, self.n)), 1)
        return _risen(np.cumsum(drawn / rows + self.chance(number, size, rng), axis=1))

    def _hidden_rows(self, shares: Array) -> Array:
        """Return quantiles of the number of rows: its normal law, between 1 and the number of clients."""
        low, high = (ndtr((end - self.rows) / self.rows_sd) for end in (1, self.n))
        return np.asarray((self.rows + self.rows_sd * ndtri(low + shares * (high - low))).clip(1, self.n))

    def _with_rows(self, counts: Array, rows: Array | float) -> Array:
        """Return counts given that they add up to these rows."""
        return np.asarray(counts + (rows - counts.sum(axis=-1, keepdims=True)) * self.shift)

    def quantiles(self, functions: Array, probabilities: Sequence[float]) -> Array:
        """Return the quantiles of each distribution function, shape ``(draws, len(probabilities))``."""
        edges = self.statistic.edges
        found = np.empty((len(functions), len(probabilities)))
        each = np.arange(len(functions))
        for place, p in enumerate(probabilities):
            bins = np.minimum((functions < p).sum(axis=1), functions.shape[1] - 1)
            before = np.where(bins > 0, functions[each, bins - 1], 0.0)
            step = functions[each, bins] - before
            inside = np.divide(p - before, step, out=np.full(len(each), 0.5), where=step > 0).clip(0, 1)
            found[:, place] = edges[bins] + inside * (edges[bins + 1] - edges[bins])
        return found

    def outward(self, low: float, high: float) -> tuple[float, float]:
        """Return an interval that reaches to the outer ends of the bins in which it ends."""
        edges = self.statistic.edges
        first = max(int(edges.searchsorted(low, side="right")) - 1, 0)
        last = min(int(edges.searchsorted(high, side="left")), len(edges) - 1)
        return float(edges[first]), float(edges[last])

    @property
    def doubts(self) -> tuple[str, ...]:
        """Reasons to doubt the quantiles, a sentence each."""
        column = self.statistic.columns[0]
        missing = about_missing(self.rows, self.rows_sd, self.n, f"a value of {column}")
        if not self.is_hidden:
            return missing
        return (
            f"the noise hides how many of the {self.n} clients have a value of {column}, so intervals are wide: "
            "ask more clients, or give a larger epsilon",
            *missing,
        )


def posterior_of(
    cumulative: Cumulative,
    probabilities: Sequence[float],
    *,
    rng: np.random.Generator,
    attrs: Mapping[str, object] = MappingProxyType({}),
) -> Posterior:
    """Return the posterior of quantiles.

    Args:
        probabilities: of the quantiles, each between 0 and 1. rng: for the draws; the privacy noise does not use it.
        attrs: the provenance; without it, no epsilon may be claimed.
    """
    statistic, column = cumulative.statistic, cumulative.statistic.columns[0]
    parts = (cumulative.draws(DRAWS, rng) for _ in range(CHAINS))  # for the memory: 4,096 bins at six levels
    drawn = np.concatenate([cumulative.quantiles(functions, probabilities) for functions in parts])
    best = cumulative.quantiles(cumulative.estimate()[None], probabilities)[0]
    vague = statistic.lower + (statistic.upper - statistic.lower) * np.array(TAILS)
    labels = tuple(name_of(p) for p in probabilities)

    def table(schema: Schema | None) -> list[Estimate]:
        unit = unit_of(schema, column)
        ends = np.quantile(drawn, TAILS, axis=0).T
        figures = [
            Marginal(float(value), float(sd), cumulative.outward(*map(float, pair)), (float(vague[0]), float(vague[1])))
            for value, sd, pair in zip(best, drawn.std(axis=0), ends, strict=True)
        ]
        return [Estimate(f"{label} of {column}", unit, one) for label, one in zip(labels, figures, strict=True)]

    at_ends = [label for label, value in zip(labels, best, strict=True) if _at_an_end(statistic, float(value))]
    width = float(statistic.edges[1] - statistic.edges[0])
    remarks = {"grid": f"{len(cumulative.counts)} bins of {width:.3g} between the bounds"}
    if at_ends:
        remarks["at a bound"] = f"{listed(at_ends, len(at_ends))}: values beyond the bounds count in the outer bins"
    return Posterior(
        QUANTILES,
        {QUANTILES: drawn.reshape(CHAINS, DRAWS, -1)},
        axes={QUANTILES: ("quantile",)},
        coords={"quantile": labels},
        private=bool(attrs.get("private")),
        attrs=attrs,
        notes=cumulative.doubts,
        table=table,
        extras=lambda: {"remarks": remarks, "headline": f"{labels[_middle(probabilities)]} of {column}"},
    )


def name_of(p: float) -> str:
    """Return the name of a quantile: median, lower quartile, or as in "quantile 0.9"."""
    return _NAMES.get(p, f"quantile {p}")


def _middle(probabilities: Sequence[float]) -> int:
    """Return the place of the one nearest to the median."""
    return int(np.argmin(np.abs(np.asarray(probabilities) - 0.5)))


def _at_an_end(statistic: NestedCounts, value: float) -> bool:
    return bool(value <= statistic.edges[1] or value >= statistic.edges[-2])


def _risen(functions: Array) -> Array:
    """Return the nearest non-decreasing functions within 0 and 1 that end at 1, row by row."""
    found = np.array([isotonic_regression(one).x for one in functions]).clip(0.0, 1.0)
    found[:, -1] = 1.0
    return found


def _eigenvalues(statistic: NestedCounts) -> Array:
    """Return those of AᵀA: of what the finest counts have in common, then of what each level adds."""
    sizes = SPLIT ** np.arange(statistic.levels - 1, -1, -1.0)
    common = sizes.sum() + statistic.count_weight**2 * SPLIT**statistic.levels
    return np.append(common, np.cumsum(sizes[::-1])[::-1])


def _by_level(statistic: NestedCounts, factors: Array, counts: Array) -> Array:
    """Multiply what the finest counts, the last axis, have in common by a factor, and what each level adds by its own.

    Args:
        factors: shape ``(L + 1,)``.
    """
    found = np.zeros_like(counts)
    for bins, factor in zip((1, *statistic.bins), factors - np.append(factors[1:], 0.0), strict=True):
        parts = counts.reshape(*counts.shape[:-1], bins, -1)
        found += np.broadcast_to(factor * parts.mean(axis=-1, keepdims=True), parts.shape).reshape(counts.shape)
    return found


def _least_squares(statistic: NestedCounts, value: Array) -> Array:
    """Return (AᵀA)⁻¹Aᵀy."""
    *levels, rows = np.split(value, np.cumsum(statistic.bins))
    finest = statistic.bins[-1]
    seen = sum(np.repeat(level, finest // len(level)) for level in levels) + statistic.count_weight * rows
    return _by_level(statistic, 1 / _eigenvalues(statistic), seen)
