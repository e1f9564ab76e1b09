"""Counts of rows in public bins: a one-hot vector per row.

Two rows in different bins differ by a 1 and a -1, so Δ1 = 2 and Δ2 = √2 (in grid units times 2^f); a missing row is
zero, nearer than that. With a single bin, a count, only a missing row makes a difference: Δ1 = Δ2 = 1.

A count of complete rows (`counting`) is free up to the weight 1, if there are two bins or more. It is the sum of all
bins, but has the noise of one.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.errors import UsageError
from dca_proto.statistics.base import Proof, Statistic, register
from dca_proto.statistics.counting import Counting
from dca_proto.statistics.sensitivity import Sensitivity
from dca_proto.statistics.value_range import Combinations, ValueRange, box, total_of

BINS_MAX = 2**16


@register
class Histogram(Counting, Statistic, frozen=True, kw_only=True):
    """Counts of one column in bins [e_k, e_{k+1}), the last one closed; values outside count in the nearest bin.

    For the categories 0, 1, ..., K-1 give the K + 1 edges -0.5, 0.5, ..., K - 0.5.

    Attributes:
        columns: one column.
        edges: finite and increasing, in units of the data; one more than the number of bins.
    """

    name = "histogram"
    proofs = (Proof("histogram", "√2·2^f (one bin: 2^f)", "2·2^f (2^f)", "`test_sensitivity.py`"),)

    edges: tuple[float, ...]
    count_weight: float = 0.0

    @classmethod
    def examples(cls) -> tuple[Statistic, ...]:
        two: dict[str, Any] = {"columns": ("x",), "edges": (-1.0, 0.0, 1.0)}
        return cls(**two), cls(columns=("x",), edges=(-1.0, 1.0)), cls(**two, count_weight=1.0)

    def __post_init__(self) -> None:
        if len(self.columns) != 1:
            raise UsageError(f"{len(self.columns)} columns; a histogram takes one")
        if not 2 <= len(self.edges) <= BINS_MAX + 1:
            raise UsageError(f"{len(self.edges)} edges; give 2 to {BINS_MAX + 1}")
        edges = np.array(self.edges, dtype=np.float64)
        if not np.isfinite(edges).all():
            raise UsageError("edges has a value that is NaN or infinite; values outside count in the outer bins anyway")
        if (edges[:-1] >= edges[1:]).any():
            raise UsageError("edges do not increase; give each once, in increasing order")
        super().__post_init__()

    @property
    def plain_dimension(self) -> int:
        return len(self.edges) - 1

    @property
    def categories(self) -> int:
        """The number of bins; 0 beside a count, as a row then has two coordinates above 0."""
        return 0 if self.counts else self.dimension

    def plain_labels(self) -> tuple[str, ...]:
        *bins, last = [f"{self.columns[0]} in [{left:g}, {right:g}" for left, right in pairwise(self.edges)]
        return (*(f"{text})" for text in bins), f"{last}]")

    def ranges(self) -> dict[str, tuple[float, float]]:
        """The range of the edges; values outside it are clamped to it."""
        return {self.columns[0]: (self.edges[0], self.edges[-1])}

    def lengths(self, fraction_bits: int) -> tuple[int, int]:
        return 1 << fraction_bits, 1 << 2 * fraction_bits

    def plain_sensitivity(self, fraction_bits: int) -> Sensitivity:
        changed, unit = min(self.plain_dimension, 2), 1 << fraction_bits
        return Sensitivity(l1=changed * unit, l2_squared=changed * unit**2, bound=unit)

    def plain_range(self, fraction_bits: int) -> ValueRange:
        """One bin counts 1, or none does."""
        unit, d = 2.0**fraction_bits, self.plain_dimension
        limits = box(np.zeros(d), np.full(d, unit), unit)
        return msgspec.structs.replace(limits, combinations=total_of("the sum of all bins", d, unit))

    @property
    def is_boxed(self) -> bool:
        return self.compares_count

    def counted_combinations(self, limits: ValueRange, weight: float) -> Combinations:
        """All bins add up to the count."""
        weights = np.append(np.ones(self.plain_dimension), -float(limits.high[0]) / weight)
        return Combinations(("the sum of all bins beside the count",), weights[None], np.zeros(1), np.zeros(1))

    def plain_values(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        counts = np.zeros((len(rows), self.plain_dimension), dtype=np.int64)
        if len(rows) == 1:  # as most devices have
            counts[0, bisect_right(self.edges, rows[0, 0], 1, self.plain_dimension) - 1] = 1 << fraction_bits
        else:
            bins = self._inner_edges.searchsorted(rows[:, 0], side="right")
            counts[np.arange(len(rows)), bins] = 1 << fraction_bits
        return counts

    def estimate(self, value: NDArray[np.float64], contributors: int) -> NDArray[np.float64]:
        """Counts of the bins, then that of complete rows if there is one."""
        bins, rows = self.sums_and_rows(value, contributors)
        return np.append(bins, [rows] * self.counts)

    @cached_property
    def _inner_edges(self) -> NDArray[np.float64]:
        return np.array(self.edges[1:-1], dtype=np.float64)
