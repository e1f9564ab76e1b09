"""Counts of rows in the cells of chosen marginals: tables of one column, of two, or of three, all in one sum.

Each column has cells: one for each code, or equal bins between its bounds, then one for a missing value. A marginal is
the table of the cells of its columns; its coordinates stand in the order of the first column, then of the second. A row
adds the marginal's weight to one of them.

**Sensitivity.** Let w_m be the weights. A row has exactly one coordinate above zero in each marginal, so its squared
length is Σw². Two rows are farthest apart if they differ in a cell of every marginal: Δ2² = 2Σw² and Δ1 = 2Σw, in grid
units times 2^f. Rows that differ in every column attain both, as each column has two cells or more. A client without a
row is zero, at Σw² from all others. A row with missing values is no exception: missing is a cell. So M marginals of
weight 1 have Δ2 = √(2M), however many cells they have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise, product
from math import prod
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import PublicParameters
from dca_proto.errors import UsageError
from dca_proto.statistics.base import Proof, Statistic, register
from dca_proto.statistics.sensitivity import Sensitivity
from dca_proto.statistics.table import CODES_MAX
from dca_proto.statistics.value_range import Combinations, ValueRange, box

BINS_MAX, ORDER_MAX, WEIGHT_MAX, MARGINALS_MAX = 256, 3, 2**12, 2**12
_COMBINED_MAX = 2**22  # entries of the combinations' weights


@register
class Marginals(Statistic, frozen=True, kw_only=True):
    """Counts in the cells of marginals.

    Attributes:
        columns: all columns.
        lower, upper: public bounds of each. Of codes: the least and the largest; another value is missing. Of numbers:
            values outside count in the outer bins.
        bins: the number of equal bins of each column; 0 for a column of codes.
        marginals: places of the columns of each marginal, one to three, increasing; empty for each column by itself.
        weights: of each marginal, whole numbers; empty for 1 of each.
    """

    name = "marginals"
    proofs = (
        Proof(
            "marginals: cells of M tables of one to three columns, weights w",
            "√(2Σw²)·2^f, whatever the number of cells",
            "2Σw·2^f",
            "`test_statistic_check.py`, `test_marginals.py`: attained",
        ),
    )

    lower: tuple[float, ...]
    upper: tuple[float, ...]
    bins: tuple[int, ...]
    marginals: tuple[tuple[int, ...], ...] = ()
    weights: tuple[int, ...] = ()

    @classmethod
    def examples(cls) -> tuple[Statistic, ...]:
        return (
            cls(columns=("x",), lower=(-4.0,), upper=(4.0,), bins=(1,)),
            cls(columns=("k", "g"), lower=(0.0, 0.0), upper=(1.0, 1.0), bins=(0, 0), marginals=((0, 1),)),
            cls(
                columns=("x", "k", "g"), lower=(-2.0, 1.0, 0.0), upper=(2.0, 2.0, 1.0), bins=(2, 0, 0),
                marginals=((0,), (1, 2)), weights=(2, 3),
            ),
        )  # fmt: skip

    @classmethod
    def planned(cls, columns: Sequence[str], parameters: Mapping[str, Any]) -> PublicParameters:
        """Return columns of two bins."""
        d = len(columns)
        return {"lower": [0.0] * d, "upper": [1.0] * d, "bins": [2] * d}

    def __post_init__(self) -> None:
        d = len(self.columns)
        if {len(self.lower), len(self.upper), len(self.bins)} != {d}:
            raise UsageError(
                f"{d} columns, {len(self.lower)} lower ends, {len(self.upper)} upper ends and {len(self.bins)} numbers "
                "of bins; give one of each for each column"
            )
        for name, low, high, bins in zip(self.columns, self.lower, self.upper, self.bins, strict=True):
            _check_cells(name, low, high, bins)
        if len(self.marginals) > MARGINALS_MAX or len(set(self.marginals)) < len(self.marginals):
            raise UsageError(f"{len(self.marginals)} marginals; give at most {MARGINALS_MAX}, each once")
        for places in self.marginals:
            is_increasing = all(one < other for one, other in pairwise(places))
            if not (1 <= len(places) <= ORDER_MAX and is_increasing and places[0] >= 0 and places[-1] < d):
                raise UsageError(f"marginal {list(places)}; give 1 to {ORDER_MAX} increasing places of {d} columns")
        if self.weights and len(self.weights) != len(self.tables):
            raise UsageError(f"{len(self.weights)} weights of {len(self.tables)} marginals; give one for each")
        if not all(1 <= weight <= WEIGHT_MAX for weight in self.weights):
            raise UsageError(f"a weight is not in 1 to {WEIGHT_MAX}; give whole numbers")
        super().__post_init__()

    @property
    def takes_missing(self) -> bool:
        return True

    @cached_property
    def tables(self) -> tuple[tuple[int, ...], ...]:
        """The places of the columns of each marginal."""
        return self.marginals or tuple((place,) for place in range(len(self.columns)))

    @cached_property
    def table_weights(self) -> tuple[int, ...]:
        """The weight of each marginal."""
        return self.weights or (1,) * len(self.tables)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of cells of each column; the last one counts missing values."""
        codes = zip(self.lower, self.upper, self.bins, strict=True)
        return tuple((bins or round(high - low) + 1) + 1 for low, high, bins in codes)

    def shape(self, places: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a marginal's table."""
        return tuple(self.sizes[place] for place in places)

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        """The coordinates of each marginal."""
        ends = accumulate((prod(self.shape(places)) for places in self.tables), initial=0)
        return tuple(slice(first, end) for first, end in pairwise(ends))

    @property
    def dimension(self) -> int:
        return int(self.slices[-1].stop)

    def edges_of(self, place: int) -> NDArray[np.float64]:
        """The ends of the bins of a column of numbers."""
        return np.linspace(self.lower[place], self.upper[place], self.bins[place] + 1)

    def cell_names(self, place: int) -> tuple[str, ...]:
        """The names of a column's cells."""
        name = self.columns[place]
        if not self.bins[place]:
            own = [f"{name} = {self.lower[place] + code:g}" for code in range(self.sizes[place] - 1)]
        else:
            own = [f"{name} in [{low:g}, {high:g})" for low, high in pairwise(self.edges_of(place))]
        return (*own, f"{name} missing")

    def labels(self) -> tuple[str, ...]:
        names = [self.cell_names(place) for place in range(len(self.columns))]
        return tuple(
            ", ".join(cells) for places in self.tables for cells in product(*(names[place] for place in places))
        )

    def ranges(self) -> dict[str, tuple[float, float]]:
        return {name: (low, high) for name, low, high in zip(self.columns, self.lower, self.upper, strict=True)}

    def row_sensitivity(self, fraction_bits: int) -> Sensitivity:
        unit, weights = 1 << fraction_bits, self.table_weights
        squares = sum(weight**2 for weight in weights)
        return Sensitivity(l1=2 * sum(weights) * unit, l2_squared=2 * squares * unit**2, bound=max(weights) * unit)

    def value_range(self, fraction_bits: int) -> ValueRange:
        """One cell of each marginal has its weight, or none of any marginal has."""
        unit, high = 2.0**fraction_bits, np.zeros(self.dimension)
        for part, weight in zip(self.slices, self.table_weights, strict=True):
            high[part] = weight * unit
        squares = sum(weight**2 for weight in self.table_weights)
        limits = box(np.zeros(self.dimension), high, unit * squares**0.5 * (1 + 2.0**-40))
        return msgspec.structs.replace(limits, combinations=self._combinations(unit))

    def _combinations(self, unit: float) -> Combinations | None:
        """All marginals count as many rows; those of one column agree with each other. None if there are too many."""
        first: dict[int, tuple[str, NDArray[np.float64]]] = {}
        cells = sum(sum(self.shape(places)) for places in self.tables)
        names: list[str] = []
        rows: list[NDArray[np.float64]] = []
        if len(self.tables) * self.dimension > _COMBINED_MAX:
            return None
        for number, (places, part) in enumerate(zip(self.tables, self.slices, strict=True)):
            rows.append(self._total(number))
            names.append(f"the number of rows in {self._title(places)}")
            if number:
                rows[-1] = rows[-1] - rows[0]
                names[-1] += f" less that in {self._title(self.tables[0])}"
            if cells * self.dimension > _COMBINED_MAX:
                continue
            for axis, place in enumerate(places):
                ones = np.eye(self.sizes[place]) / self.table_weights[number]
                shape = self.shape(places)
                spread = np.broadcast_to(
                    ones.reshape(-1, *(size if at == axis else 1 for at, size in enumerate(shape))), (len(ones), *shape)
                )
                own = np.zeros((len(ones), self.dimension))
                own[:, part] = spread.reshape(len(ones), -1)
                title, other = first.setdefault(place, (self._title(places), own))
                if other is not own:
                    rows.extend(own - other)
                    pair = f"{self._title(places)} less those in {title}"
                    names += [f"rows with {name} in {pair}" for name in self.cell_names(place)]
        slack, high = unit * 2.0**-40, np.zeros(len(rows))
        high[0] = unit
        return Combinations(tuple(names), np.array(rows), np.full(len(rows), -slack), high + slack)

    def _total(self, number: int) -> NDArray[np.float64]:
        total = np.zeros(self.dimension)
        total[self.slices[number]] = 1 / self.table_weights[number]
        return total

    def _title(self, places: tuple[int, ...]) -> str:
        return " × ".join(self.columns[place] for place in places)

    def cells_of(self, rows: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the cell of each row in each column, shape ``(n, columns)``."""
        cells = np.empty(rows.shape, dtype=np.int64)
        for place, (low, high, bins) in enumerate(zip(self.lower, self.upper, self.bins, strict=True)):
            x, missing = rows[:, place], self.sizes[place] - 1
            if bins:
                found = self.edges_of(place)[1:-1].searchsorted(x, side="right")
                cells[:, place] = np.where(np.isfinite(x), found, missing)
            else:
                with np.errstate(invalid="ignore"):
                    is_code = (x >= low) & (x <= high) & (x == np.rint(x))
                cells[:, place] = np.where(is_code, np.where(is_code, x, low) - low, missing)
        return cells

    def evaluate(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        cells, who = self.cells_of(rows), np.arange(len(rows))
        values = np.zeros((len(rows), self.dimension), dtype=np.int64)
        for places, part, weight in zip(self.tables, self.slices, self.table_weights, strict=True):
            place = np.ravel_multi_index(tuple(cells[:, one] for one in places), self.shape(places))
            values[who, part.start + place] = weight << fraction_bits
        return values

    def estimate(self, value: NDArray[np.float64], contributors: int) -> NDArray[np.float64]:
        """Counts of rows in the cells."""
        return np.asarray(value / np.repeat(self.table_weights, [part.stop - part.start for part in self.slices]))


def _check_cells(name: str, low: float, high: float, bins: int) -> None:
    """Raise `UsageError` unless the bounds are an interval that can be split, or that of codes."""
    if not (np.isfinite([low, high]).all() and low < high):
        raise UsageError(f"bounds {low:g}:{high:g} of {name}; give finite ones, the lower one first")
    if not bins:
        if not (low == int(low) and high == int(high) and high - low < CODES_MAX):
            raise UsageError(f"codes {low:g}:{high:g} of {name}; give whole numbers, at most {CODES_MAX} of them")
        return
    if not 1 <= bins <= BINS_MAX:
        raise UsageError(f"{bins} bins of {name}; give 1 to {BINS_MAX}, or 0 for codes")
    edges = np.linspace(low, high, bins + 1)
    if not (np.isfinite(edges).all() and (edges[:-1] < edges[1:]).all() and np.isfinite(high - low)):
        raise UsageError(f"bounds {low}:{high} of {name} are too near or too far for {bins} bins")
