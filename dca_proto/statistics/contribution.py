"""A client's contribution, computed from all of its rows, and how far one client can move the sum.

The announcement chooses one of two forms:

- ``rows_max`` = 0: the mean of the client's row statistics, so that every client has weight 1. Means lie in the convex
  hull of the single rows and zero, so two of them are at most Δ_row apart. The mean is rounded to the grid, by at most
  ½ per coordinate for each of two neighbours: Δ1 = Δ1_row + d and Δ2 = Δ2_row + √d. With a = Δ2_row², Δ2² is
  a + d + √(4ad), rounded up to an integer.
- ``rows_max`` = R >= 1: the sum over the client's first R rows, or all if it has fewer. Padded with zero rows, two
  clients differ in R rows: Δ = R·Δ_row, in L1 and in L2.

In a node release (`row_sensitivity`) a client is a data node, and each of its rows belongs to a different person. One
row is protected: replacing it changes one addend of the sum over the first R rows, so Δ = Δ_row whatever R is. The
number of rows that count is public, and the same for both neighbours.

For a statistic of groups of k rows (`rows_per_value`), the two forms apply to values instead of rows: the mean is over
floor(m/k) values, the sum over floor(R/k), and Δ_row is that of replacing all rows of a group. In a node release Δ_row
is still that of one row.

A row with a missing value (NaN or infinite) counts as zero: it adds nothing to a sum, and counts in a mean's
denominator. A statistic that takes missing values (`takes_missing`) decides that for each of its cells. So does a row
on which a user's own statistic fails; no other row is affected, since a row that could remove all others from a sum
would move it by more than Δ_row. A client without rows contributes zero. Whether a client takes part never depends on
its rows, so no value in them causes a failure here. All arithmetic is exact, in integers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.fixedpoint import FRACTION_BITS_MAX, INTEGER_LIMIT
from dca_proto.errors import UsageError
from dca_proto.statistics.base import Statistic
from dca_proto.statistics.sensitivity import REPLACE_ONE_CLIENT, REPLACE_ONE_ROW, Sensitivity

ROWS_MAX = 2**30  # keeps sums of remainders far below 2^63; further rows of a client are ignored
_CHUNK_WORDS = 2**18  # integers per chunk of rows, so that memory does not grow with rows


def client_sensitivity(statistic: Statistic, rows_max: int, fraction_bits: int) -> Sensitivity:
    """Return how far replacing all of one client's rows can move the sum, in grid units.

    Args:
        rows_max: 0 for the mean of a client's rows; R >= 1 for the sum of at most R rows.
        fraction_bits: f, even, from 0 to 40.

    Raises:
        UsageError: an argument is out of range, or the contribution does not fit the grid.
    """
    value, d = _value_sensitivity(statistic, rows_max, fraction_bits), statistic.dimension
    if rows_max:
        n = rows_max // statistic.rows_per_value
        return Sensitivity(l1=value.l1 * n, l2_squared=value.l2_squared * n**2, bound=value.bound * n)
    l2_squared = value.l2_squared + d + math.isqrt(4 * value.l2_squared * d) + 1
    return Sensitivity(l1=value.l1 + d, l2_squared=l2_squared, bound=value.bound)


def row_sensitivity(statistic: Statistic, rows_max: int, fraction_bits: int) -> Sensitivity:
    """Return how far replacing one row of a data node can move the sum over its first R rows, in grid units.

    The relation is `REPLACE_ONE_ROW`; the bound is that of the whole sum of R rows. Arguments and errors are those of
    `client_sensitivity`, with R = `rows_max` >= 1.
    """
    if rows_max < 1:
        raise UsageError(f"rows_max is {rows_max}; a node release sums rows: give the most rows that count, at least 1")
    bound = _value_sensitivity(statistic, rows_max, fraction_bits).bound * (rows_max // statistic.rows_per_value)
    row = statistic.stated_sensitivity(fraction_bits, of_row=True)
    row.require(REPLACE_ONE_CLIENT)  # a statistic states it for clients with one row
    return Sensitivity(l1=row.l1, l2_squared=row.l2_squared, bound=bound, relation=REPLACE_ONE_ROW)


def counted_rows(statistic: Statistic, rows: int, rows_max: int) -> int:
    """Return how many of a client's rows count, whatever their values: the first `rows_max`, in whole groups."""
    return min(rows, rows_max or ROWS_MAX) // statistic.rows_per_value * statistic.rows_per_value


def contribution(
    statistic: Statistic,
    rows: NDArray[np.float64],
    rows_max: int,
    fraction_bits: int,
    *,
    failures: list[Exception] | None = None,
) -> NDArray[np.int64]:
    """Return one client's contribution before noise, in grid units, shape ``(dimension,)``.

    Args:
        rows: shape ``(m, len(statistic.columns))``, in units of the data, m >= 0; any values.
        rows_max, fraction_bits: see `client_sensitivity`.
        failures: collects the exceptions of a user's own statistic on single rows; None lets them propagate.

    Raises:
        UsageError: an argument is out of range, the table has the wrong number of columns, or the contribution does not
            fit the grid. Never because of a row's values.
    """
    bound, group = _value_sensitivity(statistic, rows_max, fraction_bits).bound, statistic.rows_per_value
    table = _table(statistic, rows)[: rows_max or ROWS_MAX]
    if len(table) == group == 1:
        return _value_of_row(statistic, table, bound, fraction_bits, failures)
    count = len(table) // group
    values = _values(statistic, table[: count * group], bound, fraction_bits, failures)
    if rows_max or count <= 1:
        return _sum(values, statistic.dimension)
    return _rounded_mean(values, count, statistic.dimension)


def _value_of_row(
    statistic: Statistic, row: NDArray[np.float64], bound: int, fraction_bits: int, failures: list[Exception] | None
) -> NDArray[np.int64]:
    """`contribution` of a single row, which is what most devices have; its sum and its mean are the same."""
    if statistic.takes_missing or np.logical_and.reduce(np.isfinite(row), axis=None):
        try:
            value: NDArray[np.int64] = _evaluated(statistic, row, bound, fraction_bits)[0]
            return value
        except Exception as error:  # a user's own statistic may raise anything
            if failures is None:
                raise
            failures.append(error)
    return np.zeros(statistic.dimension, dtype=np.int64)


def joint_contribution(
    statistic: Statistic, tables: NDArray[np.float64], rows_max: int, fraction_bits: int
) -> NDArray[np.int64]:
    """Return the sum of many clients' contributions before noise: the same integers as adding up `contribution`.

    `tables` has shape ``(n, m, len(statistic.columns))``: n clients with m rows each. The other arguments, the result
    and the errors are those of `contribution`.
    """
    return _sum(_batches(statistic, tables, rows_max, fraction_bits), statistic.dimension)


def contributions(
    statistic: Statistic, tables: NDArray[np.float64], rows_max: int, fraction_bits: int
) -> NDArray[np.int64]:
    """Return the contribution of each of many clients, shape ``(n, dimension)``; see `joint_contribution`."""
    none = np.empty((0, statistic.dimension), dtype=np.int64)
    return np.concatenate([none, *_batches(statistic, tables, rows_max, fraction_bits)])


def clients_at_once(statistic: Statistic, rows: int, rows_max: int) -> int:
    """Return how many clients with this many rows each are evaluated at a time; 0 if one by one."""
    rows = min(rows, rows_max or ROWS_MAX)
    words = rows * max(len(statistic.columns), statistic.dimension)
    return _CHUNK_WORDS // words if rows and statistic.rows_per_value == 1 else 0


def _batches(
    statistic: Statistic, tables: NDArray[np.float64], rows_max: int, fraction_bits: int
) -> Iterator[NDArray[np.int64]]:
    """Yield contributions of some clients at a time: in one evaluation if each has few rows, else one by one."""
    bound, d = _value_sensitivity(statistic, rows_max, fraction_bits).bound, statistic.dimension
    clients, rows, width = tables.shape
    step, rows = clients_at_once(statistic, rows, rows_max), min(rows, rows_max or ROWS_MAX)
    if not step:
        yield from (contribution(statistic, table, rows_max, fraction_bits)[None] for table in tables)
        return
    for start in range(0, clients, step):
        table = np.ascontiguousarray(tables[start : start + step, :rows]).reshape(-1, width)
        finite = np.isfinite(table).all(axis=1) | statistic.takes_missing
        values = np.zeros((len(table), d), dtype=np.int64)
        if finite.any():
            values[finite] = _evaluated(statistic, table[finite], bound, fraction_bits)
        of_each = values.reshape(-1, rows, d)
        if rows_max or rows == 1:
            yield of_each.sum(axis=1)
        else:
            quotients, remainders = np.divmod(of_each, rows)
            yield quotients.sum(axis=1) + (2 * remainders.sum(axis=1) + rows) // (2 * rows)


def _values(
    statistic: Statistic,
    table: NDArray[np.float64],
    bound: int,
    fraction_bits: int,
    failures: list[Exception] | None = None,
) -> Iterator[NDArray[np.int64]]:
    """Yield the statistic of each row without a missing value, or of each group of rows, in chunks."""
    group = statistic.rows_per_value
    step = group * max(1, _CHUNK_WORDS // max(statistic.dimension, table.shape[1] * group))
    for start in range(0, len(table), step):
        chunk = table[start : start + step]
        if group == 1 and not (statistic.takes_missing or (finite := np.isfinite(chunk)).all()):
            chunk = chunk[finite.all(axis=1)]
        if len(chunk):
            yield from _without_failures(statistic, chunk, bound, fraction_bits, failures)


def _without_failures(
    statistic: Statistic, rows: NDArray[np.float64], bound: int, fraction_bits: int, failures: list[Exception] | None
) -> Iterator[NDArray[np.int64]]:
    """Yield the statistic of each row (or group) on which it does not fail; halving finds the failing ones."""
    try:
        yield _evaluated(statistic, rows, bound, fraction_bits)
    except Exception as error:  # a user's own statistic may raise anything
        if failures is None:
            raise
        if len(rows) == statistic.rows_per_value:
            failures.append(error)
            return
        half = len(rows) // statistic.rows_per_value // 2 * statistic.rows_per_value
        for part in (rows[:half], rows[half:]):
            yield from _without_failures(statistic, part, bound, fraction_bits, failures)


def _sum(values: Iterable[NDArray[np.int64]], dimension: int) -> NDArray[np.int64]:
    return sum((value.sum(axis=0) for value in values), np.zeros(dimension, dtype=np.int64))


def _rounded_mean(values: Iterable[NDArray[np.int64]], divisor: int, dimension: int) -> NDArray[np.int64]:
    """Return Σv/divisor over all rows, rounded to the nearest integer.

    The sum of many rows could overflow before it is divided. So each value is divided first, v = q·divisor + r, and
    Σv/divisor = Σq + Σr/divisor.
    """
    quotient, remainder = np.zeros(dimension, dtype=np.int64), np.zeros(dimension, dtype=np.int64)
    for value in values:
        quotients, remainders = np.divmod(value, divisor)
        quotient += quotients.sum(axis=0)
        remainder += remainders.sum(axis=0)
    return quotient + (2 * remainder + divisor) // (2 * divisor)


def _value_sensitivity(statistic: Statistic, rows_max: int, fraction_bits: int) -> Sensitivity:
    """One value's sensitivity. Raises `UsageError` unless a client's whole contribution stays below 2^53."""
    if known := statistic.fitting_sensitivities.get((rows_max, fraction_bits)):
        return known
    if not 0 <= fraction_bits <= FRACTION_BITS_MAX or fraction_bits % 2:
        raise UsageError(f"fraction_bits is {fraction_bits}; choose an even number from 0 to {FRACTION_BITS_MAX}")
    if not 0 <= rows_max <= ROWS_MAX:
        raise UsageError(f"rows_max is {rows_max}; choose 0 for the mean of a client's rows, or 1 to {ROWS_MAX}")
    if 0 < rows_max < statistic.rows_per_value:
        raise UsageError(
            f"rows_max is {rows_max}, but {statistic.name!r} takes groups of {statistic.rows_per_value} rows; allow at "
            "least that many"
        )
    value, count = statistic.stated_sensitivity(fraction_bits), rows_max // statistic.rows_per_value or 1
    value.require(REPLACE_ONE_CLIENT)
    reach = value.bound * count
    if reach >= INTEGER_LIMIT:
        excess = -(-(reach.bit_length() - INTEGER_LIMIT.bit_length() + 1) // 2) * 2  # even, as fraction bits are
        remedy = f"lower the fraction bits to {fraction_bits - excess}, or " if excess <= fraction_bits else "lower "
        raise UsageError(
            f"a contribution to {statistic.name!r} can reach {value.bound} times {count} grid units, expected "
            f"below 2^53; {remedy}the bounds or rows_max by a factor of 2^{excess}"
        )
    statistic.fitting_sensitivities[rows_max, fraction_bits] = value
    return value


def _table(statistic: Statistic, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    table, width = np.ascontiguousarray(rows, dtype=np.float64), len(statistic.columns)
    if table.size == 0:
        return table.reshape(0, width)
    if table.ndim != 2 or table.shape[1] != width:
        raise UsageError(f"rows have shape {table.shape}; expected (m, {width}): {', '.join(statistic.columns)[:200]}")
    return table


def _evaluated(statistic: Statistic, rows: NDArray[np.float64], bound: int, fraction_bits: int) -> NDArray[np.int64]:
    """Evaluate rows or groups. A user's own statistic may be wrong, so its shape and bound are enforced."""
    values = statistic.evaluate(rows, fraction_bits)
    expected = (len(rows) // statistic.rows_per_value, statistic.dimension)
    if values.shape != expected or values.dtype != np.int64:
        raise UsageError(
            f"statistic {statistic.name!r} gave {values.dtype} of shape {values.shape}; expected int64 of {expected}"
        )
    return np.minimum(np.maximum(values, -bound), bound)
