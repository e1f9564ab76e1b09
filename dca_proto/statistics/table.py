"""Counts and moments of many columns, by a public group: for a table of all columns, and for tests between groups.

Each described column has a block of coordinates in the block of the row's group. A missing cell leaves only its own
column's block zero, so each column has a count of its own. A row whose group is missing is zero.

- A column of numbers: m·x and m·(x² - H) with |x| <= c (the middle of the bounds is 0), then b for its bin on each of L
  levels (`nested`), then a count k.
- A column of codes: b for its code, then a count k.

m, b and k are whole weights, which share the budget; a weight of 0 leaves the coordinates out.

**Sensitivity.** Columns vary independently, so squared distances add up over them. Two present cells of one group are
at most S apart, squared, and a cell has a squared length of at most ℓ:

    numbers    S = m²·4c² + 2Lb²,    ℓ = m²(c² + (c² - H)²) + Lb² + k²,    H = c²/2
    codes      S = 2b²,              ℓ = b² + k²

(4c² is that of x and x² together, proved in `moments` for c <= 1.665; both ends are attained at once.) A missing cell
is zero, and in another group all coordinates are others. So Δ² = Σ max(S, ℓ) for one group, and the larger of that and
2Σℓ for more. In L1 the same holds with lengths. Counts are free as long as ℓ <= S, or 2ℓ <= S by groups.

A bound c of 1.3 is best by groups, where lengths matter: 2(c² + c⁴/4) = 4c² at c² = 4, but the count needs room, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import PublicParameters
from dca_proto.errors import UsageError
from dca_proto.statistics.base import Proof, Statistic, register
from dca_proto.statistics.moments import FREE_BOUND, widest_squared
from dca_proto.statistics.nested import LEVELS_MAX, SPLIT
from dca_proto.statistics.scaled import half_bits
from dca_proto.statistics.sensitivity import Sensitivity
from dca_proto.statistics.value_range import Combinations, ValueRange, box

CODES_MAX, GROUPS_MAX, WEIGHT_MAX = 256, 64, 2**12
GROUPED_BOUND = 1.3
_COMBINED_MAX = 2**22  # entries of the combinations' weights
_ROUNDED = 1 + 2.0**-40


class Block(NamedTuple):
    """The coordinates of one column within a group's block.

    Attributes:
        first: the first one's place. moments, bins, counts: how many there are of each.
    """

    first: int
    moments: int
    bins: int
    counts: int

    @property
    def size(self) -> int:
        """The number of coordinates."""
        return self.moments + self.bins + self.counts


@register
class Table(Statistic, frozen=True, kw_only=True):
    """Counts and moments of each column, in the block of the row's group.

    Attributes:
        columns: the described columns, then the group's if there are two or more groups.
        lower, upper: public bounds of each described column. Of codes: the least and the largest; another value is
            missing. Of numbers: values outside count like the ends.
        coded: whether each described column has codes, which are whole numbers.
        levels: L of the numbers' bins, 1 to 6; 0 for none.
        groups: G. first_group: the first group's number; the others follow it.
        moment_weight, bin_weight, number_count_weight: m, b and k of numbers.
        code_weight, code_count_weight: b and k of codes.
    """

    name = "table"
    proofs = (
        Proof(
            "table: counts and moments of many columns by group, weights m, b, k",
            "√Σ max(S, ℓ)·2^f over columns, by groups at least √(2Σℓ); S = 4m²c² + 2Lb², "
            "ℓ = m²(c² + c⁴/4) + Lb² + k² of numbers, 2b² and b² + k² of codes",
            "the same with L1 lengths",
            "`test_statistic_check.py`: attained",
        ),
    )

    lower: tuple[float, ...]
    upper: tuple[float, ...]
    coded: tuple[bool, ...]
    levels: int = 4
    groups: int = 1
    first_group: int = 0
    moment_weight: int = 1
    bin_weight: int = 1
    number_count_weight: int = 1
    code_weight: int = 1
    code_count_weight: int = 0

    @classmethod
    def examples(cls) -> tuple[Statistic, ...]:
        return (
            cls(columns=("x",), lower=(-4.0,), upper=(4.0,), coded=(False,), levels=1),
            cls(columns=("k", "g"), lower=(0.0,), upper=(1.0,), coded=(True,), groups=2, code_count_weight=1),
            cls(
                columns=("x", "k", "y", "g"), lower=(-2.0, 1.0, 0.0), upper=(2.0, 2.0, 2.0),
                coded=(False, True, False), levels=1, groups=2, first_group=1,
                moment_weight=2, bin_weight=3, number_count_weight=2, code_weight=4, code_count_weight=3,
            ),
            cls(columns=("x", "g"), lower=(-2.0,), upper=(2.0,), coded=(False,), levels=0, groups=2),
        )  # fmt: skip

    @classmethod
    def planned(cls, columns: Sequence[str], parameters: Mapping[str, Any]) -> PublicParameters:
        """Return columns of numbers within ±1."""
        d = len(columns)
        return {"lower": [-1.0] * d, "upper": [1.0] * d, "coded": [False] * d}

    def __post_init__(self) -> None:
        d = len(self.lower)
        if not d or {len(self.upper), len(self.coded), len(self.columns) - (self.groups > 1)} != {d}:
            raise UsageError(
                f"{len(self.columns)} columns, {d} lower ends, {len(self.upper)} upper ends and {len(self.coded)} "
                "kinds; give one of each for each described column, and the group's column last if there are groups"
            )
        if not (1 <= self.groups <= GROUPS_MAX and abs(self.first_group) <= WEIGHT_MAX):
            raise UsageError(
                f"{self.groups} groups from {self.first_group}; give 1 to {GROUPS_MAX}, from a small number"
            )
        if not 0 <= self.levels <= LEVELS_MAX:
            raise UsageError(f"{self.levels} levels; give 0 to {LEVELS_MAX}")
        weights = (self.moment_weight, self.bin_weight, self.number_count_weight, self.code_weight)
        if not all(0 <= weight <= WEIGHT_MAX for weight in (*weights, self.code_count_weight)):
            raise UsageError(f"weights {weights}, {self.code_count_weight}; give whole numbers from 0 to {WEIGHT_MAX}")
        if not self.code_weight or not (self.number_count_weight or (self.levels and self.bin_weight)):
            raise UsageError("nothing counts the cells of a column; give the codes a weight, and bins or a count one")
        for name, low, high, coded in zip(self.columns, self.lower, self.upper, self.coded, strict=False):
            _check_ends(name, low, high, coded=coded, levels=self.levels)
        super().__post_init__()

    @property
    def takes_missing(self) -> bool:
        return True

    @property
    def reach(self) -> float:
        """c, the largest |x|."""
        return FREE_BOUND if self.groups == 1 else GROUPED_BOUND

    def shift(self, fraction_bits: int) -> float:
        """H, what is subtracted from squares: c²/2 on the grid."""
        return self._grid(fraction_bits)[1] * 2.0**-fraction_bits

    @property
    def described(self) -> tuple[str, ...]:
        """The described columns."""
        return self.columns[: len(self.lower)]

    @property
    def level_bins(self) -> tuple[int, ...]:
        """The number of bins of each level of numbers; none without a weight."""
        return tuple(SPLIT**level for level in range(1, self.levels + 1)) if self.bin_weight else ()

    def codes_of(self, place: int) -> NDArray[np.float64]:
        """The codes of a described column."""
        return np.arange(self.lower[place], self.upper[place] + 0.5)

    def edges_of(self, place: int) -> NDArray[np.float64]:
        """The ends of a column's finest bins."""
        return np.linspace(self.lower[place], self.upper[place], SPLIT**self.levels + 1)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The block of each described column."""
        found, first = [], 0
        for place, coded in enumerate(self.coded):
            if coded:
                block = Block(first, 0, len(self.codes_of(place)), int(self.code_count_weight > 0))
            else:
                counts = int(self.number_count_weight > 0)
                block = Block(first, 2 * (self.moment_weight > 0), sum(self.level_bins), counts)
            found.append(block)
            first += block.size
        return tuple(found)

    @property
    def width(self) -> int:
        """The number of coordinates of one group."""
        return self.blocks[-1].first + self.blocks[-1].size

    @property
    def dimension(self) -> int:
        return self.groups * self.width

    def labels(self) -> tuple[str, ...]:
        own: list[str] = []
        for place, (name, coded, block) in enumerate(zip(self.described, self.coded, self.blocks, strict=True)):
            if coded:
                own += [f"{name} = {code:g}" for code in self.codes_of(place)]
            else:
                own += [f"Σ{name}", f"Σ{name}²"][: block.moments]
                ends = [np.linspace(self.lower[place], self.upper[place], bins + 1) for bins in self.level_bins]
                own += [f"{name} in [{low:g}, {high:g})" for level in ends for low, high in pairwise(level)]
            own += [f"{name} present"] * block.counts
        if self.groups == 1:
            return tuple(own)
        return tuple(f"group {self.first_group + group}: {label}" for group in range(self.groups) for label in own)

    def ranges(self) -> dict[str, tuple[float, float]]:
        ends = {name: (low, high) for name, low, high in zip(self.described, self.lower, self.upper, strict=True)}
        if self.groups > 1:
            ends[self.columns[-1]] = float(self.first_group), float(self.first_group + self.groups - 1)
        return ends

    # --- sensitivity --------------------------------------------------------------------------------------------------

    def row_sensitivity(self, fraction_bits: int) -> Sensitivity:
        bits, unit = half_bits(fraction_bits), 1 << fraction_bits
        c, h = self._grid(fraction_bits)
        m, b, k, levels = self.moment_weight, self.bin_weight, self.number_count_weight, len(self.level_bins)
        apart1, apart2, long1, long2 = 0, 0, 0, 0
        moments1 = (1 << bits) * 2 * c if 2 * c <= 1 << bits else ((1 << bits) + 2 * c) ** 2 // 4
        for coded in self.coded:
            if coded:
                within = 2 * self.code_weight * unit, 2 * (self.code_weight * unit) ** 2
                length = (
                    (self.code_weight + self.code_count_weight) * unit,
                    (self.code_weight**2 + self.code_count_weight**2) * unit**2,
                )
            else:
                within = (
                    m * moments1 + 2 * levels * b * unit,
                    m**2 * widest_squared(c, 1 << bits) + 2 * levels * (b * unit) ** 2,
                )
                square = max(c**2 - h, h)
                length = (
                    m * ((c << bits) + square) + (levels * b + k) * unit,
                    m**2 * max((c << bits) ** 2 + (c**2 - h) ** 2, h**2) + (levels * b**2 + k**2) * unit**2,
                )
            apart1, apart2 = apart1 + max(within[0], length[0]), apart2 + max(within[1], length[1])
            long1, long2 = long1 + length[0], long2 + length[1]
        if self.groups > 1:
            apart1, apart2 = max(apart1, 2 * long1), max(apart2, 2 * long2)
        return Sensitivity(l1=apart1, l2_squared=apart2, bound=self._largest(fraction_bits))

    def _grid(self, fraction_bits: int) -> tuple[int, int]:
        """Return c in units of the half grid, and H in units of the grid."""
        c = int(self.reach * (1 << half_bits(fraction_bits)))
        return c, c**2 // 2

    def _largest(self, fraction_bits: int) -> int:
        bits, unit = half_bits(fraction_bits), 1 << fraction_bits
        c, h = self._grid(fraction_bits)
        numbers = max(self.moment_weight * max(c << bits, c**2 - h, h), self.bin_weight * unit,
                      self.number_count_weight * unit)  # fmt: skip
        codes = max(self.code_weight, self.code_count_weight) * unit
        return max(codes if coded else numbers for coded in self.coded)

    def value_range(self, fraction_bits: int) -> ValueRange:
        """Where a row's value lies; the bins of each level add up to the count, and moments stay within it."""
        bits, unit = half_bits(fraction_bits), float(1 << fraction_bits)
        c, h = self._grid(fraction_bits)
        low, high = np.zeros(self.width), np.full(self.width, unit)
        square = 0
        for coded, block in zip(self.coded, self.blocks, strict=True):
            place, end = block.first, block.first + block.size
            if coded:
                high[place:end] *= self.code_weight
                high[end - 1 : end] = unit * (self.code_count_weight or self.code_weight)
                square += int((self.code_weight**2 + self.code_count_weight**2) * unit**2)
                continue
            m, levels = self.moment_weight, len(self.level_bins)
            high[place:end] *= self.bin_weight
            if block.moments:
                low[place : place + 2] = -m * float(c << bits), -m * float(h)
                high[place : place + 2] = m * float(c << bits), m * float(c**2 - h)
            if block.counts:
                high[end - 1] = unit * self.number_count_weight
            longest = max((c << bits) ** 2 + (c**2 - h) ** 2, h**2)
            square += m**2 * longest + int((levels * self.bin_weight**2 + self.number_count_weight**2) * unit**2)
        limits = box(np.tile(low, self.groups), np.tile(high, self.groups), square**0.5 * _ROUNDED)
        return ValueRange(limits.low, limits.high, limits.length, self._combinations(fraction_bits))

    def _combinations(self, fraction_bits: int) -> Combinations | None:
        """A cell counts once at most, in all groups together; all that counts it agrees, in each group."""
        names: list[str] = []
        weights: list[NDArray[np.float64]] = []
        high: list[float] = []
        unit, c = 2.0**fraction_bits, self._grid(fraction_bits)[0] * 2.0 ** -half_bits(fraction_bits)
        most = len(self.coded) * (1 + self.groups * (len(self.level_bins) + 4))
        if most * self.dimension > _COMBINED_MAX:
            return None
        for column, coded, block in zip(self.described, self.coded, self.blocks, strict=True):
            counts = self._counts(coded, block)
            names.append(f"the number of values of {column}")
            weights.append(np.tile(counts[0], self.groups))
            high.append(unit)
            for group in range(self.groups):
                part = slice(group * self.width, (group + 1) * self.width)
                own = [(f"{column}: one count less another", other - counts[0], 0.0) for other in counts[1:]]
                if block.moments:
                    sums = np.zeros(self.width)
                    sums[block.first] = 1 / self.moment_weight
                    own += [
                        (f"the sum of {column} beside its count", side * sums + c * counts[0], 2 * c * unit)
                        for side in (1, -1)
                    ]
                for name, row, end in own:
                    weights.append(np.zeros(self.dimension))
                    weights[-1][part] = row
                    names.append(name)
                    high.append(end)
        slack = unit * 2.0**-40
        return Combinations(tuple(names), np.array(weights), np.full(len(high), -slack), np.array(high) + slack)

    def _counts(self, coded: bool, block: Block) -> list[NDArray[np.float64]]:
        """Return weights of a group's coordinates, each of which count the column's cells."""
        found = []
        bins = (block.bins,) if coded else self.level_bins
        first, weight = block.first + block.moments, self.code_weight if coded else self.bin_weight
        for size in bins:
            found.append(np.zeros(self.width))
            found[-1][first : first + size] = 1 / weight
            first += size
        if block.counts:
            found.append(np.zeros(self.width))
            found[-1][first] = 1 / (self.code_count_weight if coded else self.number_count_weight)
        return found

    # --- values -------------------------------------------------------------------------------------------------------

    def evaluate(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        values = np.zeros((len(rows), self.groups, self.width), dtype=np.int64)
        group = rows[:, -1] - self.first_group if self.groups > 1 else np.zeros(len(rows))
        known = np.isin(group, np.arange(self.groups))
        for place, (coded, block) in enumerate(zip(self.coded, self.blocks, strict=True)):
            x = rows[:, place]
            is_there = known & (np.isin(x, self.codes_of(place)) if coded else np.isfinite(x))
            who = np.flatnonzero(is_there)
            fill = self._fill_codes if coded else self._fill_numbers
            own = np.zeros((len(who), block.size), dtype=np.int64)
            fill(own, x[who], place, fraction_bits)
            values[who, group[who].astype(np.int64), block.first : block.first + block.size] = own
        return values.reshape(len(rows), self.dimension)

    def _fill_codes(self, own: NDArray[np.int64], x: NDArray[np.float64], place: int, fraction_bits: int) -> None:
        if self.code_count_weight:
            own[:, -1] = self.code_count_weight << fraction_bits
        code = (x - self.lower[place]).astype(np.int64)
        own[np.arange(len(x)), code] = self.code_weight << fraction_bits

    def _fill_numbers(self, own: NDArray[np.int64], x: NDArray[np.float64], place: int, fraction_bits: int) -> None:
        bits, (c, h) = half_bits(fraction_bits), self._grid(fraction_bits)
        low, high = self.lower[place], self.upper[place]
        first = 0
        if self.moment_weight:
            share = (np.clip(x, low, high) - low) / (high - low)
            scaled = np.rint((2 * share - 1) * self.reach * (1 << bits)).astype(np.int64).clip(-c, c)
            own[:, 0], own[:, 1] = self.moment_weight * (scaled << bits), self.moment_weight * (scaled**2 - h)
            first = 2
        if self.level_bins:
            finest = self.edges_of(place)[1:-1].searchsorted(x, side="right")
            for level, bins in enumerate(self.level_bins, 1):
                own[np.arange(len(x)), first + finest // SPLIT ** (self.levels - level)] = (
                    self.bin_weight << fraction_bits
                )
                first += bins
        if self.number_count_weight:
            own[:, -1] = self.number_count_weight << fraction_bits

    # --- estimates ----------------------------------------------------------------------------------------------------

    @cached_property
    def coordinate_weights(self) -> NDArray[np.float64]:
        """The weight of each coordinate of one group."""
        weights = np.empty(self.width)
        for coded, (first, moments, bins, count) in zip(self.coded, self.blocks, strict=True):
            weights[first : first + moments] = self.moment_weight
            middle = first + moments + bins
            weights[first + moments : middle] = self.code_weight if coded else self.bin_weight
            weights[middle : middle + count] = self.code_count_weight if coded else self.number_count_weight
        return weights

    def estimate(self, value: NDArray[np.float64], contributors: int) -> NDArray[np.float64]:
        """Counts, and sums of x and of x² - H, where the bounds are at ±c."""
        return np.asarray(value / np.tile(self.coordinate_weights, self.groups))


def _check_ends(name: str, low: float, high: float, *, coded: bool, levels: int) -> None:
    """Raise `UsageError` unless the bounds are an interval that can be split, or that of codes."""
    if not (np.isfinite([low, high]).all() and low < high):
        raise UsageError(f"bounds {low:g}:{high:g} of {name}; give finite ones, the lower one first")
    if coded:
        if not (low == int(low) and high == int(high) and high - low < CODES_MAX):
            raise UsageError(f"codes {low:g}:{high:g} of {name}; give whole numbers, at most {CODES_MAX} of them")
        return
    edges = np.linspace(low, high, SPLIT**levels + 1)
    if not (np.isfinite(edges).all() and (edges[:-1] < edges[1:]).all() and np.isfinite(high - low)):
        raise UsageError(f"bounds {low}:{high} of {name} are too near or too far for {len(edges) - 1} bins")
