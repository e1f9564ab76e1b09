"""Checks of a statistic, for its tests: an adversarial search for rows that are farther apart than it states.

The search knows the statistic's parameters and calls `evaluate`. It never reads a stated sensitivity. It begins with
random pairs of rows: at the ends of the columns' ranges, inside, at the parameters' own numbers, far outside, missing.
Then it changes the farthest pairs, one or two numbers at a time, and keeps what lies farther apart. Maxima inside a
range are found as well as those at corners. What it finds is a lower bound of the true sensitivity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.statistics.base import Statistic
from dca_proto.statistics.sensitivity import Sensitivity

Rows = NDArray[np.float64]
_PAIRS, _CLIMBERS, _CHANGES = 3000, 24, 24
_ORDINARY = (-1e9, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 7.0, 1e9)


class Farthest(msgspec.Struct, frozen=True):
    """The largest distances that a search found, in grid units, and the rows that are so far apart.

    Attributes:
        l1, l2_squared: between two values. bound: the largest coordinate of a value, as an absolute number.
        l1_rows, l2_rows: the two tables of rows of one value, shape ``(2, rows_per_value, columns)``; NaN is missing.
    """

    l1: int
    l2_squared: int
    bound: int
    l1_rows: Rows
    l2_rows: Rows


def farthest(
    statistic: Statistic, fraction_bits: int, *, one_row: bool = False, rounds: int = 60, seed: int = 1
) -> Farthest:
    """Search for two values of a statistic that are as far apart as possible.

    Args:
        fraction_bits: f; values are integers on the grid of 2^-f.
        one_row: whether only one row of a group is replaced, as in a node release; matters for groups of rows only.
        rounds: of changes to the farthest pairs. seed: of the random choices.
    """
    search = _Search(statistic, fraction_bits, one_row, np.random.default_rng(seed))
    pairs = search.random_pairs(_PAIRS)
    values = search.values(pairs)
    l1 = search.climb(pairs, values, lambda d: np.abs(d).sum(axis=1), rounds)
    l2 = search.climb(pairs, values, lambda d: np.square(d).sum(axis=1), rounds)
    difference = [search.difference(pair) for pair in (l1, l2)]
    return Farthest(
        l1=sum(abs(one) for one in difference[0]),
        l2_squared=sum(one**2 for one in difference[1]),
        bound=search.bound,
        l1_rows=search.tables(l1[None])[:, 0],
        l2_rows=search.tables(l2[None])[:, 0],
    )


def check_statistic(statistic: Statistic, fraction_bits: int = 24, *, rounds: int = 60) -> Farthest:
    """Check what a statistic must guarantee, as far as a search can; for tests of your own statistics.

    - Its parameters have plain types: a round's announcement can carry them.
    - It has one label a coordinate, and each row's value is the same alone as among other rows.
    - No two rows, and no row and a missing one, are farther apart than stated, in L1 or L2; no coordinate is larger.
    - All values lie in its `value_range`.

    Args:
        fraction_bits: f, even, from 0 to 40. rounds: see `farthest`; more rounds search longer.

    Returns:
        What the search found. If it is far below the stated sensitivity, the noise is larger than necessary, or the
        search is too weak for this statistic.

    Raises:
        AssertionError: with what was found and what was stated.
    """
    name = type(statistic).__name__
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(msgspec.structs.asdict(statistic)))
    copy = msgspec.convert(plain, type(statistic), strict=True)
    assert copy == statistic, f"the parameters of {name} change when an announcement carries them: {copy}"
    labels = statistic.labels()
    assert len(labels) == statistic.dimension, f"{name} has {len(labels)} labels and {statistic.dimension} coordinates"
    search = _Search(statistic, fraction_bits, False, np.random.default_rng(2))
    _check_values(statistic, fraction_bits, search.tables(search.random_pairs(300))[0])
    found = farthest(statistic, fraction_bits, rounds=rounds)
    _check_stated(name, found, statistic.value_sensitivity(fraction_bits), fraction_bits)
    if statistic.rows_per_value > 1:
        one = farthest(statistic, fraction_bits, one_row=True, rounds=rounds)
        _check_stated(
            f"{name}, of which one row is replaced", one, statistic.row_sensitivity(fraction_bits), fraction_bits
        )
    return found


def _check_values(statistic: Statistic, fraction_bits: int, tables: Rows) -> None:
    name, k = type(statistic).__name__, statistic.rows_per_value
    if k == 1:
        tables = tables[np.isfinite(tables).all(axis=(1, 2))]
    values = statistic.evaluate(tables.reshape(-1, tables.shape[2]), fraction_bits)
    shape = (len(tables), statistic.dimension)
    assert values.shape == shape, f"{name} gives values of shape {values.shape}; expected {shape}"
    assert values.dtype == np.int64, f"{name} gives {values.dtype}; expected int64"
    for place in range(0, len(tables), 7):
        alone = statistic.evaluate(tables[place], fraction_bits)[0]
        assert np.array_equal(alone, values[place]), f"{name} gives a row another value alone than among other rows"
    limits = statistic.value_range(fraction_bits)
    for kind, wrong, limit in (
        ("below", values < limits.low, limits.low),
        ("above", values > limits.high, limits.high),
    ):
        if wrong.any():
            place, at = (int(one) for one in np.argwhere(wrong)[0])
            what = f"coordinate {at} of the value of rows {tables[place].tolist()}"
            reached, bound = (_in_both(float(one[at]), fraction_bits) for one in (values[place], limit))
            raise AssertionError(f"{name}: {what} is {kind} its range: it is {reached}; value_range has {bound}")
    lengths = np.linalg.norm(values.astype(np.float64), axis=1)
    if lengths.max(initial=0.0) > limits.length:
        place = int(lengths.argmax())
        reached, bound = (_in_both(float(one), fraction_bits) for one in (lengths[place], limits.length))
        raise AssertionError(
            f"{name}: the value of rows {tables[place].tolist()} is {reached} long; its value_range, which by default "
            f"follows from row_sensitivity, has {bound}"
        )


def _in_both(figure: float, fraction_bits: int) -> str:
    """Return a figure in the statistic's own unit, and in grid units."""
    return f"{figure / 2**fraction_bits:.6g} ({figure:.9g} grid units)"


def _check_stated(what: str, found: Farthest, stated: Sensitivity, fraction_bits: int) -> None:
    pairs = (
        ("L2 distance", math.sqrt(found.l2_squared), stated.l2, found.l2_squared > stated.l2_squared, found.l2_rows),
        ("L1 distance", found.l1, stated.l1, found.l1 > stated.l1, found.l1_rows),
        ("largest coordinate", found.bound, stated.bound, found.bound > stated.bound, None),
    )
    for figure, reached, limit, is_beyond, rows in pairs:
        where = "" if rows is None else f", between rows {rows[0].tolist()} and {rows[1].tolist()}"
        reaches, states = _in_both(reached, fraction_bits), _in_both(limit, fraction_bits)
        assert not is_beyond, f"{what}: the {figure} is {reaches}{where}; it states {states}"


class _Search:
    """A pair is one array of rows, shape ``(g, columns)``: some belong to the left value, some to the right.

    Attributes:
        bound: the largest coordinate of all values so far.
    """

    def __init__(self, statistic: Statistic, fraction_bits: int, one_row: bool, rng: np.random.Generator) -> None:
        k, self.width = statistic.rows_per_value, len(statistic.columns)
        self._statistic, self._bits, self._rng = statistic, fraction_bits, rng
        left = np.arange(k)
        self._places = np.stack([left, np.r_[k, left[1:]] if one_row else left + k])
        self._size = int(self._places.max()) + 1
        self.bound = 0
        numbers = np.unique([*_ORDINARY, *_numbers(msgspec.structs.asdict(statistic))])
        ranges = statistic.ranges()
        self._ends = [np.array(ranges.get(column, (-4.0, 4.0))) for column in statistic.columns]
        self._choices = [
            np.concatenate([np.repeat(ends, len(numbers) // 2), [ends.mean()], numbers, numbers * (1 + 1e-6)])
            for ends in self._ends
        ]

    def random_pairs(self, count: int) -> Rows:
        """Return pairs of rows of all kinds; half of them have rows on either side of the middle of the ranges."""
        shape = (count, self._size)
        pairs = np.stack([self._random(column, shape) for column in range(self.width)], axis=2)
        mirrored = self._rng.random(count) < 0.5
        low, high = np.array(self._ends).T
        pairs[mirrored, -1] = (low + high) - pairs[mirrored, 0]
        pairs[self._rng.random(shape) < 0.05] = np.nan
        if self._statistic.takes_missing:
            pairs[self._rng.random(pairs.shape) < 0.1] = np.nan
        return pairs

    def tables(self, pairs: Rows) -> Rows:
        """Return the rows of both values, shape ``(2, pairs, rows_per_value, columns)``."""
        return np.stack([pairs[:, places] for places in self._places])

    def values(self, pairs: Rows) -> NDArray[np.int64]:
        """Return both values of each pair, shape ``(2, pairs, dimension)``."""
        tables = self.tables(pairs)
        rows = tables.reshape(-1, self.width)
        if self._statistic.rows_per_value == 1:
            values = np.zeros((len(rows), self._statistic.dimension), dtype=np.int64)
            complete = np.isfinite(rows).all(axis=1) | self._statistic.takes_missing
            values[complete] = self._statistic.evaluate(rows[complete], self._bits)
        else:
            values = self._statistic.evaluate(rows, self._bits)
        self.bound = max(self.bound, int(np.abs(values).max()))
        return values.reshape(2, len(pairs), -1)

    def difference(self, pair: Rows) -> list[int]:
        """Return the exact difference of the two values, in Python's integers."""
        left, right = self.values(pair[None])[:, 0].tolist()
        return [a - b for a, b in zip(left, right, strict=True)]

    def climb(self, pairs: Rows, values: NDArray[np.int64], distance: Callable[[Rows], Rows], rounds: int) -> Rows:
        """Return the farthest pair after changes to the farthest of all pairs."""
        found = distance((values[0] - values[1]).astype(np.float64))
        best = np.argsort(-found, kind="stable")[:_CLIMBERS]
        pairs, found = pairs[best], found[best]
        for turn in range(rounds):
            changed = self._changed(np.repeat(pairs, _CHANGES, axis=0), 0.5 ** (8 * turn / rounds))
            left, right = self.values(changed)
            reached = distance((left - right).astype(np.float64)).reshape(len(pairs), _CHANGES)
            place = reached.argmax(axis=1)
            better = np.flatnonzero(reached[np.arange(len(pairs)), place] > found)
            pairs[better] = changed.reshape(len(pairs), _CHANGES, *pairs.shape[1:])[better, place[better]]
            found[better] = reached[better, place[better]]
        farthest_pair: Rows = pairs[found.argmax()]
        return farthest_pair

    def _changed(self, pairs: Rows, step: float) -> Rows:
        """Change one number of each pair, or two: to a random one, or by a step (relative to the column's range)."""
        for _ in range(2):
            which = np.arange(len(pairs))[self._rng.random(len(pairs)) < 0.75]
            row = self._rng.integers(self._size, size=len(which))
            column = self._rng.integers(self.width, size=len(which))
            moved = self._rng.random(len(which)) < 0.6
            for place in range(self.width):
                here = column == place
                low, high = self._ends[place]
                old = pairs[which[here], row[here], place]
                new = self._random(place, old.shape)
                near = np.clip(old, low, high) + (high - low) * step * self._rng.standard_normal(old.shape)
                pairs[which[here], row[here], place] = np.where(moved[here] & np.isfinite(old), near, new)
        return pairs

    def _random(self, column: int, shape: tuple[int, ...]) -> Rows:
        low, high = self._ends[column]
        uniform = self._rng.uniform(low, high, size=shape)
        return np.where(self._rng.random(shape) < 0.3, uniform, self._rng.choice(self._choices[column], size=shape))


def _numbers(parameters: object) -> Iterator[float]:
    """All finite numbers among the parameters, however nested."""
    if isinstance(parameters, dict):
        parameters = tuple(parameters.values())
    if isinstance(parameters, tuple | list):
        for part in parameters:
            yield from _numbers(part)
    elif isinstance(parameters, int | float) and math.isfinite(parameters):
        yield float(parameters)
