"""The released marginals of a job's rounds, as counts with noise of a known size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import msgspec
import numpy as np
from scipy.special import ndtri

from dca_proto.aggregate import NoisyAggregate
from dca_proto.statistics import Marginals
from inference.jobs.estimates import TAILS, Marginal
from inference.models.synthetic.grid import Cells, Places, Table
from inference.problem import Array

_HIDDEN_SDS = 3.0  # a count of missing values below so many standard deviations of its noise is taken as none
_NORMAL = float(ndtri(TAILS[1]))


@dataclass(frozen=True, eq=False)
class Release:
    """Released marginals.

    Attributes:
        statistic: of the columns. tables: each column alone, then the others. rows: the number of clients, or of data
            nodes' rows; `unit` says which.
    """

    statistic: Marginals
    tables: tuple[Table, ...]
    rows: int
    unit: str = "clients"

    @classmethod
    def of(cls, aggregates: Sequence[NoisyAggregate]) -> Release:
        """Return the marginals of the last round, each with what an earlier round has released of it.

        Counts of an earlier round are those of as many rows as take part in the last.
        """
        *earlier, last = [_tables(one, aggregates[-1].contributors / one.contributors) for one in aggregates]
        known = {table.places: table for tables in earlier for table in tables}
        tables = tuple(_joined(table, known[table.places]) if table.places in known else table for table in last)
        final = aggregates[-1]
        statistic = msgspec.convert(final.parameters, Marginals)
        return cls(statistic, tables, final.contributors, "rows" if final.nodes else "clients")

    @classmethod
    def exact(cls, statistic: Marginals, cells: Cells) -> Release:
        """Return those of rows in these cells ``(n, columns)``, without noise."""
        tables = (Table(places, counted(statistic, places, cells), 0.0) for places in statistic.tables)
        return cls(statistic, tuple(tables), len(cells))

    @cached_property
    def total(self) -> tuple[float, float]:
        """The number of rows that have been counted, as estimated, and the standard deviation of its noise."""
        variances = np.array([max(table.counts.size * table.sd**2, 1e-12) for table in self.tables])
        totals = np.array([table.counts.sum() for table in self.tables])
        return float((totals / variances).sum() / (1 / variances).sum()), float((1 / variances).sum() ** -0.5)

    @property
    def number(self) -> int:
        """The number of rows: that of all that were asked, unless the noise cannot explain so many."""
        found, sd = self.total
        return self.rows if found > self.rows - _HIDDEN_SDS * sd - 0.5 else max(1, round(found))

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """The number of cells of each column, without that of missing values if noise may have made all of these."""
        return tuple(
            table.counts.size - bool(table.counts[-1] < max(_HIDDEN_SDS * table.sd, 0.5))
            for table in self.tables[: len(self.statistic.columns)]
        )

    def shares(self, place: int) -> list[Marginal]:
        """Return the share of each kept cell of a column, with the noise and the chance of who takes part."""
        table, n = self.tables[place], self.number
        found = []
        for count in table.counts[: self.kept[place]]:
            share = float(np.clip(count / n, 0.0, 1.0))
            sd = sqrt((table.sd / n) ** 2 + share * (1 - share) / n)
            ends = max(0.0, share - _NORMAL * sd), min(1.0, share + _NORMAL * sd)
            found.append(Marginal(share, sd, ends))
        return found


def counted(statistic: Marginals, places: Places, cells: Cells) -> Array:
    """Return how many rows are in each cell of a marginal."""
    shape = statistic.shape(places)
    where = np.ravel_multi_index(tuple(cells[:, place] for place in places), shape)
    return np.bincount(where, minlength=int(np.prod(shape))).reshape(shape).astype(float)


def _tables(aggregate: NoisyAggregate, scale: float) -> list[Table]:
    statistic, sd = msgspec.convert(aggregate.parameters, Marginals), float(aggregate.noise_variance) ** 0.5
    parts = zip(statistic.tables, statistic.slices, statistic.table_weights, strict=True)
    return [
        Table(places, scale * aggregate.value[part].reshape(statistic.shape(places)) / weight, scale * sd / weight)
        for places, part, weight in parts
    ]


def _joined(table: Table, other: Table) -> Table:
    """Return the mean of two releases of one marginal, each with the weight of its noise."""
    first, second = table.sd**-2, other.sd**-2
    counts = (first * table.counts + second * other.counts) / (first + second)
    return table._replace(counts=counts, sd=(first + second) ** -0.5)


def without_hidden(release: Release) -> list[Table]:
    """Return the marginals without the missing values that `Release.kept` leaves out."""
    return [
        table._replace(counts=table.counts[tuple(slice(release.kept[place]) for place in table.places)])
        for table in release.tables
    ]
