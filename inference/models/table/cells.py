"""The figures of one column in one group, from its coordinates of the sum (`dca_proto.statistics.table`).

**Numbers.** The mean is a ratio of two noisy sums, and the variance one of three. Draws have the noise of all of them,
cut to what is possible: means within the bounds, variances below (upper - mean)(mean - lower). Then they get the chance
of who takes part: that of a mean, and that of a variance with the kurtosis that the bins show. Quartiles come from the
bins (`inference.models.quantiles.distribution`).

**Codes.** Counts have normal noise, and are drawn together with their number of values by least squares. Counts below
zero are zero. Shares given counts have a Dirichlet law with Jeffreys' prior, for chance. If more than 2.5 % of the
draws have no value of a code, the interval of its share reaches to zero. So does that of a standard deviation if the
released variance is less than 1.96 standard deviations of its noise. If noise hides how many values there are, nothing
is known of quartiles but the bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor
from typing import NamedTuple

import msgspec
import numpy as np
from scipy.special import ndtr, ndtri

from dca_proto.aggregate import NoisyAggregate
from dca_proto.statistics import NestedCounts, Table
from dca_proto.statistics.statement import evaluated_bits
from inference.jobs.estimates import TAILS, Marginal
from inference.models.quantiles.distribution import Cumulative
from inference.problem import Array

DRAWS, KEPT = 4000, 1000  # for an interval, and kept
QUARTILES = (0.25, 0.5, 0.75)
_HIDDEN_SDS = 4.0  # least number of values, in standard deviations of its noise
_KURTOSIS = (1.2, 30.0)
_SLACK = 1e-9
_NORMAL = float(ndtri(TAILS[1]))


class Law(NamedTuple):
    """One figure, and draws of it, shape ``(KEPT,)``."""

    marginal: Marginal
    draws: Array


@dataclass(frozen=True, eq=False)
class Sums:
    """A sum of a table's statistic, in the units of its coordinates.

    Attributes:
        statistic: defines them. value: shape ``(groups, width)``, of clients' weights. sd: of the noise of each.
        rows: the number of clients, or of data nodes' rows; `unit` says which. fraction_bits: of the grid
            on which clients evaluate their rows.
    """

    statistic: Table
    value: Array
    sd: float
    rows: int
    fraction_bits: int
    unit: str = "clients"

    @classmethod
    def of(cls, aggregate: NoisyAggregate) -> Sums:
        """Return the sums of a round."""
        statistic, sd = msgspec.convert(aggregate.parameters, Table), float(aggregate.noise_variance) ** 0.5
        value = aggregate.value.reshape(statistic.groups, statistic.width)
        unit = "rows" if aggregate.nodes else "clients"
        bits = evaluated_bits(aggregate.fraction_bits, is_verified=aggregate.verified)
        return cls(statistic, value, sd, aggregate.contributors, bits, unit)

    @classmethod
    def exact(cls, statistic: Table, rows: Array, fraction_bits: int = 24) -> Sums:
        """Return those of rows ``(n, columns)``, without noise."""
        value = statistic.evaluate(rows, fraction_bits).sum(axis=0) * 2.0**-fraction_bits
        return cls(statistic, value.reshape(statistic.groups, statistic.width), 0.0, len(rows), fraction_bits)

    def cell(self, place: int, group: int) -> Cell:
        """Return the coordinates of a described column in a group."""
        return Cell(self, place, group)


@dataclass(frozen=True, eq=False)
class Cell:
    """One column in one group. Moments are in half-widths of the bounds about their middle."""

    sums: Sums
    place: int
    group: int

    @property
    def _parts(self) -> tuple[Array, Array, Array]:
        """Moments, bins and count, each with its weight."""
        first, moments, bins, _ = block = self.sums.statistic.blocks[self.place]
        own = self.sums.value[self.group, first : first + block.size]
        return own[:moments], own[moments : moments + bins], own[moments + bins :]

    @property
    def ends(self) -> tuple[float, float]:
        """The column's bounds."""
        return self.sums.statistic.lower[self.place], self.sums.statistic.upper[self.place]

    @property
    def is_coded(self) -> bool:
        """Whether the column has codes."""
        return self.sums.statistic.coded[self.place]

    @cached_property
    def cumulative(self) -> Cumulative | None:
        """The distribution of a column of numbers; None without bins."""
        statistic, (_, bins, count) = self.sums.statistic, self._parts
        if self.is_coded or not statistic.level_bins:
            return None
        weight = statistic.bin_weight
        low, high = self.ends
        nested = NestedCounts(
            columns=(statistic.columns[self.place],), lower=low, upper=high, levels=statistic.levels,
            count_weight=statistic.number_count_weight / weight,
        )  # fmt: skip
        return Cumulative.from_sum(nested, np.append(bins, count) / weight, self.sums.sd / weight, self.sums.rows)

    @cached_property
    def count(self) -> tuple[float, float]:
        """The number of values, as estimated, and the standard deviation of its noise."""
        statistic, (_, bins, count) = self.sums.statistic, self._parts
        if self.is_coded:
            own, variance = bins.sum() / statistic.code_weight, len(bins) / statistic.code_weight**2
            if not len(count):
                return float(own), self.sums.sd * variance**0.5
            k = statistic.code_count_weight
            information = np.array([1 / variance, k**2])
            found = information @ [own, count[0] / k] / information.sum()
            return float(found), float(self.sums.sd / information.sum() ** 0.5)
        if self.cumulative is not None:
            return self.cumulative.rows, self.cumulative.rows_sd
        k = statistic.number_count_weight
        return float(count[0] / k), self.sums.sd / k

    @property
    def sums_of_values(self) -> tuple[float, float, float]:
        """Noisy sums of x and x² of a column of numbers, -c <= x <= c, and the number of values."""
        (sums, _, _), (number, _), m = self._parts, self.count, self.sums.statistic.moment_weight
        squares = sums[1] / m + self.sums.statistic.shift(self.sums.fraction_bits) * number
        return float(sums[0] / m), float(squares), number

    @property
    def noise(self) -> tuple[float, float]:
        """The standard deviation of the noise of a sum of numbers, and that of their number."""
        return self.sums.sd / self.sums.statistic.moment_weight, self.count[1]

    @property
    def code_counts(self) -> Array:
        """The noisy number of values of each code, as released."""
        return np.asarray(self._parts[1] / self.sums.statistic.code_weight)

    @property
    def code_sd(self) -> float:
        """The standard deviation of the noise of each of `code_counts`."""
        return self.sums.sd / self.sums.statistic.code_weight

    @property
    def is_hidden(self) -> bool:
        """Whether noise hides how many values there are."""
        number, sd = self.count
        return number < max(_HIDDEN_SDS * sd, 2.0)

    def drawn_counts(self, rng: np.random.Generator, draws: int = DRAWS) -> Array:
        """Draw the number of values, ``(draws,)``: its normal law between 1 and the number of rows."""
        number, sd = self.count
        return between(number, sd, 1.0, float(max(self.sums.rows, 1)), rng.random(draws))

    def drawn_moments(self, counts: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Draw mean and variance of the values that are there, without chance, in the column's units.

        Args:
            counts: of values, one a draw.
        """
        statistic, (sums, _, _) = self.sums.statistic, self._parts
        m, sd = statistic.moment_weight, self.sums.sd
        c, shift = statistic.reach, statistic.shift(self.sums.fraction_bits)
        noise = sd / m / counts
        mean = between(sums[0] / m / counts, noise, -c, c, rng.random(len(counts)))
        square = between(sums[1] / m / counts + shift, noise, mean**2 + _SLACK, c**2 + _SLACK, rng.random(len(counts)))
        low, high = self.ends
        unit = (high - low) / 2 / c
        return (low + high) / 2 + unit * mean, unit**2 * (square - mean**2)

    @property
    def raw_moments(self) -> tuple[float, float]:
        """Mean and mean square as released, between -c and c."""
        statistic, (sums, _, _), (number, _) = self.sums.statistic, self._parts, self.count
        first, second = sums / statistic.moment_weight / max(number, 1.0)
        return float(first), float(second + statistic.shift(self.sums.fraction_bits))

    @property
    def variance_score(self) -> float:
        """The variance as released, in standard deviations of its noise."""
        first, second = self.raw_moments
        number, count_sd = self.count
        noise, n = self.sums.sd / self.sums.statistic.moment_weight, max(number, 1.0)
        shift = self.sums.statistic.shift(self.sums.fraction_bits)
        by_count = count_sd * abs(second - shift - 2 * first**2)
        sd = float(np.hypot(noise * np.sqrt(1 + 4 * first**2), by_count)) / n
        return (second - first**2) / sd if sd else np.inf

    @cached_property
    def kurtosis(self) -> float:
        """The fourth standardised moment that the bins show, 3 if they are hidden."""
        if self.cumulative is None or self.is_hidden:
            return 3.0
        edges = self.cumulative.statistic.edges
        shares = np.diff(self.cumulative.estimate(), prepend=0.0)
        middles = (edges[1:] + edges[:-1]) / 2
        apart = middles - shares @ middles
        second = shares @ apart**2
        return float(np.clip(shares @ apart**4 / second**2, *_KURTOSIS)) if second > 0 else 3.0

    def moments(self, rng: np.random.Generator) -> tuple[Law, Law]:
        """Return mean and standard deviation."""
        counts, (low, high) = self.drawn_counts(rng), self.ends
        mean, variance = self.drawn_moments(counts, rng)
        spread = np.sqrt((self.kurtosis - 1) / counts).clip(0.0, 1.0)
        z = rng.standard_normal(len(counts))
        scaled = variance * np.exp(spread * z - spread**2 / 2)
        about = mean + np.sqrt(variance / counts) * rng.standard_t(np.maximum(counts - 1, 1.0))
        sd = _law(np.sqrt(scaled).clip(0.0, (high - low) / 2))
        if self.variance_score < _NORMAL:
            assert sd.marginal.interval is not None, "it is of draws"
            sd = sd._replace(marginal=sd.marginal._replace(interval=(0.0, sd.marginal.interval[1])))
        return _law(about.clip(low, high)), sd

    def number(self, rng: np.random.Generator) -> Law:
        """Return the number of values, which has no chance of its own; the interval ends at whole numbers."""
        (number, sd), rows = self.count, self.sums.rows
        drawn = between(number, sd, 0.0, float(max(rows, 1)), rng.random(DRAWS))
        low, high = np.quantile(drawn, TAILS)
        lowest = 0 if number - _NORMAL * sd <= 0 else floor(low + _SLACK)
        highest = rows if number + _NORMAL * sd >= rows else ceil(high - _SLACK)
        return Law(Marginal(round(drawn.mean()), float(drawn.std()), (float(lowest), float(highest))), drawn[:KEPT])

    def quartiles(self, rng: np.random.Generator) -> list[Law]:
        """Return the quartiles, of a column with bins."""
        assert self.cumulative is not None, "the statistic has bins"
        found = self.cumulative
        drawn = found.quantiles(found.draws(KEPT, rng), QUARTILES)
        best = found.quantiles(found.estimate()[None], QUARTILES)[0]
        pairs = np.quantile(drawn, TAILS, axis=0).T
        return [
            Law(
                Marginal(
                    float(value), float(own.std()), self.ends if self.is_hidden else found.outward(*map(float, pair))
                ),
                own,
            )
            for value, own, pair in zip(best, drawn.T, pairs, strict=True)
        ]

    def drawn_code_counts(self, rng: np.random.Generator, draws: int = DRAWS) -> Array:
        """Draw the number of values of each code, ``(draws, codes)``, none below zero."""
        statistic, (_, bins, _) = self.sums.statistic, self._parts
        own, (number, number_sd) = bins / statistic.code_weight, self.count
        k, sd = len(own), self.sums.sd / statistic.code_weight
        apart = sd * rng.standard_normal((draws, k))
        apart -= apart.mean(axis=1, keepdims=True)
        total = number + number_sd * rng.standard_normal((draws, 1))
        return np.asarray((own - own.mean() + apart + total / k).clip(0.0, None))

    def shares(self, rng: np.random.Generator) -> list[Law]:
        """Return the share of each code."""
        counts = self.drawn_code_counts(rng)
        drawn = rng.standard_gamma(counts + 0.5) + 1e-300
        drawn /= drawn.sum(axis=1, keepdims=True)
        own = np.maximum(counts.mean(axis=0), 0.0)
        laws = []
        for place in range(counts.shape[1]):
            low, high = np.quantile(drawn[:, place], TAILS)
            none, every = (counts[:, place] <= 0).mean(), (counts[:, place] >= counts.sum(axis=1)).mean()
            low, high = (0.0 if none > TAILS[0] else low), (1.0 if every > TAILS[0] else high)
            mean = own[place] / own.sum() if own.sum() > 0 else 1 / len(own)
            figure = Marginal(float(mean), float(drawn[:, place].std()), (float(low), float(high)))
            laws.append(Law(figure, drawn[:KEPT, place]))
        return laws


def between(mean: Array | float, sd: Array | float, low: Array | float, high: Array | float, shares: Array) -> Array:
    """Return quantiles of normal laws cut to intervals; the nearest end of one that has hardly any probability."""
    if not np.any(sd):
        return np.asarray(np.clip(mean + 0.0 * shares, low, high))
    begin, end = ndtr((low - mean) / sd), ndtr((high - mean) / sd)
    with np.errstate(invalid="ignore"):
        found = mean + sd * ndtri(begin + shares * (end - begin))
    nearest = np.clip(mean + 0.0 * shares, low, high)
    return np.asarray(np.where(np.isfinite(found), np.clip(found, low, high), nearest))


def _law(draws: Array) -> Law:
    low, high = np.quantile(draws, TAILS)
    return Law(Marginal(float(draws.mean()), float(draws.std()), (float(low), float(high))), draws[:KEPT])
