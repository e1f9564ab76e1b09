"""Job `ldp-quantiles`: quantiles of one column from LDP reports, one of each client, on the grid of job `quantiles`.

**Reports.** The clients are split into L groups at random. Group l reports in which of the 4^l bins of level l its
value is, by optimal unary encoding (`dca_proto.privacy.local`), with its whole budget. That is the hierarchical
histogram with users split over its levels and consistent counts of Cormode, Kulkarni and Srivastava (2019, "Answering
range queries under local differential privacy"), who find that splitting users is better than splitting ε.

**Noise.** Let f be the shares of a level's bins among all clients, and z their unbiased estimates (r - q)/(p - q) from
the shares r of reports whose bit is set, of n_l clients. With g = (q(1 - q) + f (p(1 - p) - q(1 - q)))/(p - q)²,

    Cov(z) = (diag(g + f) - f fᵀ)/n_l

so the chance of who is in the group is in it. f is not known: it is estimated first with the noise of empty bins.

**Consistency.** All levels are estimates of the finest shares: the generalised least-squares estimate, with its
covariance, is their normal posterior under a flat prior. What follows is as for a sum (`distribution`): drawn functions
are made to rise. A client without a value sets each bit with probability q and counts in no bin, so the shares add up
to that of the clients who have one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.protocol.wire.kinds import Kind, LdpReport
from dca_proto.statistics import NestedCounts
from dca_proto.statistics.nested import SPLIT
from inference.draws import attributes
from inference.errors import DataError
from inference.jobs.base import Conditions, Stage
from inference.jobs.examples import NUMBER, Clean, Example
from inference.jobs.reports import NOT_OF_REPORTS
from inference.jobs.settings import setting, within
from inference.models.quantiles.distribution import Cumulative, posterior_of
from inference.models.quantiles.job import QUARTILES, Quantiles
from inference.models.quantiles.job import Settings as OfSums
from inference.posterior import Posterior
from inference.problem import Array, Schema
from inference.releases.reports import categories_of
from inference.releases.terms import UNARY
from inference.rounds import Job

LEVELS, LEVELS_MAX = 3, 5


class _Level(NamedTuple):
    """The reports of a level: the share z of clients in each bin, their number n, p and q."""

    z: Array
    n: int
    p: float
    q: float

    def covariance(self, shares: Array) -> Array:
        """Return that of z, shape ``(bins, bins)``. Args: shares: f, of the finest bins."""
        f = shares.reshape(len(self.z), -1).sum(axis=1)
        none, own = self.q * (1 - self.q), self.p * (1 - self.p)
        noise = (none + f * (own - none)) / (self.p - self.q) ** 2
        return np.asarray((np.diag(noise + f) - np.outer(f, f)) / self.n)


def _solved(levels: Sequence[_Level], shares: Array) -> tuple[Array, Array]:
    """Return the generalised least-squares estimate of the finest shares, with its covariance. Args: shares: f."""
    finest = len(shares)
    precision, pull = np.zeros((finest, finest)), np.zeros(finest)
    for level in levels:
        own, size = np.linalg.inv(level.covariance(shares)), finest // len(level.z)
        precision += np.repeat(np.repeat(own, size, axis=0), size, axis=1)
        pull += np.repeat(own @ level.z, size)
    covariance = np.asarray(np.linalg.inv(precision), np.float64)
    return covariance @ pull, covariance


@dataclass(frozen=True, eq=False)
class Reported(Cumulative):
    """The posterior given reports of each level.

    Attributes:
        covariance: of the finest counts, chance included: ``(B, B)``.
    """

    covariance: Array

    @classmethod
    def of_levels(cls, statistic: NestedCounts, aggregates: Sequence[NoisyAggregate]) -> Reported:
        """Return it from the reports of each level, the coarsest first.

        Raises:
            DataError: these are no reports by unary encoding of that level's bins.
        """
        found = [categories_of(aggregate) for aggregate in aggregates]
        if [(one.categories, one.unary) for one in found] != [(bins, True) for bins in statistic.bins]:
            raise DataError(f"these are no reports by {UNARY} of {', '.join(map(str, statistic.bins))} bins")
        levels = [
            _Level((one.values.mean(axis=0) - one.q) / (one.p - one.q), len(one.values), one.p, one.q) for one in found
        ]
        n = sum(level.n for level in levels)
        shares = np.zeros(statistic.bins[-1])
        for _ in range(2):  # first with the noise of empty bins, then with that of the shares so found
            mean, covariance = _solved(levels, shares)
            made = cls(statistic, n * mean, n * float(np.sqrt(np.diag(covariance).mean())), n, n**2 * covariance)
            shares = np.diff(made.estimate(), prepend=0.0).clip(0.0, None) * min(max(made.rows / n, 0.0), 1.0)
        return made

    @property
    def rows_sd(self) -> float:
        return float(np.sqrt(self.covariance.sum()))

    @property
    def shift(self) -> Array:
        return np.asarray(self.covariance.sum(axis=1) / self.covariance.sum())

    @cached_property
    def _root(self) -> Array:
        return np.asarray(np.linalg.cholesky(self.covariance), np.float64)

    def noise(self, number: int, rng: np.random.Generator) -> Array:
        return np.asarray(rng.standard_normal((number, len(self.counts))) @ self._root.T)

    def chance(self, number: int, size: int, rng: np.random.Generator) -> Array:
        """Return none: the covariance has it."""
        return np.zeros((number, len(self.counts)))


@dataclass(frozen=True)
class Settings(OfSums):
    """Settings of `ldp-quantiles`."""

    levels: int = setting(
        LEVELS,
        f"The bounds are split into 4^levels bins, 1 to {LEVELS_MAX} levels, each for one part of the clients.",
        within(1, LEVELS_MAX),
    )


class ReportedQuantiles(Quantiles):
    """Quantiles of one column, from one report of each client."""

    name, settings, kinds = "ldp-quantiles", Settings, (LdpReport,)
    estimator = NOT_OF_REPORTS
    about = "median and quartiles of one column, from [LDP reports](jobs/reports.md)"
    examples, clean = (Example(NUMBER, {"levels": 1}),), Clean("a normal column")

    def mechanism(self, settings: OfSums) -> str:
        return UNARY

    def contributors_least(self, schema: Schema, settings: OfSums, kind: type[Kind]) -> int:
        return settings.levels * (self._statistic(schema, settings).bins[-1] - 1)

    def plan(self, schema: Schema, settings: OfSums, conditions: Conditions) -> list[Stage]:
        size, column = conditions.clients // settings.levels, schema.column(settings.column)
        if settings.levels == 1:
            return [Stage(1, 1.0, f"all of the budget on the bin of {column}")]
        return [Stage(settings.levels, 1.0, f"in each client's one report of the bin of {column}, by groups",
                      batch=size, uses=1)]  # fmt: skip

    def rounds(self, schema: Schema, settings: OfSums, conditions: Conditions) -> Job[Any]:
        statistic, levels = self._statistic(schema, settings), settings.levels
        found = []
        for level in range(1, levels + 1):
            edges = statistic.edges[:: SPLIT ** (levels - level)]
            asked = {"columns": list(statistic.columns), "edges": [float(end) for end in edges]}
            size = conditions.clients // levels if levels > 1 else 0
            found.append((yield RoundRequest("histogram", asked, rows_max=1, batch=size, kind=LdpReport(UNARY))))
        return found

    def learned(self, outcome: Any, schema: Schema, settings: OfSums, conditions: Conditions) -> Posterior:
        reported, first = Reported.of_levels(self._statistic(schema, settings), outcome), outcome[0]
        attrs = attributes(first, schema=schema, others=outcome) | {"contributors": reported.n}  # a client reports once
        wanted = settings.probabilities or QUARTILES
        return posterior_of(reported, wanted, rng=conditions.rng, attrs=attrs)
