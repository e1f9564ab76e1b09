"""Where a client's rows come from: a function of its device, or the host of many clients.

A host evaluates a built-in statistic for many of its clients in one call, because numpy takes as long for one row as
for a hundred. Each client still gets its own value only. Everything else about it stays its own: consent, ledger,
randomness, noise and keys. A user's own statistic sees the rows of one client at a time: if it mixed rows by mistake,
one client's data would move the others' contributions, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.statistics.base import Statistic, is_built_in
from dca_proto.statistics.contribution import clients_at_once, contributions, counted_rows

Rows = Callable[[tuple[str, ...]], NDArray[np.float64]]
"""Reads a client's data: returns the named columns of its rows, shape (m, number of columns); NaN marks a missing
value."""
Tables = Sequence[NDArray[np.float64]] | NDArray[np.float64]
"""Each client's rows, shape ``(m, columns)``, or those of all, shape ``(n, m, columns)``."""
_BLOCK_CLIENTS, _KEPT_WORDS, _KEPT_STATISTICS = 256, 1 << 20, 64


class Value(NamedTuple):
    """A client's value before noise, in grid units, shape ``(dimension,)``, and the number of rows that it covers."""

    value: NDArray[np.int64]
    rows: int


class HostRows:
    """The rows of many clients of one process, which do not change.

    Args:
        columns: names of the columns.
        tables: of the clients.
    """

    def __init__(self, columns: Sequence[str], tables: Tables) -> None:
        self.tables = tables
        self._place = {column: place for place, column in enumerate(columns)}
        self._blocks: dict[_Key, _Block] = {}
        self._words = 0
        self._blocks_of: Counter[int] = Counter()  # by the statistic's identity

    def member(self, client: int) -> MemberRows:
        """Return the rows of one client, by its place in `tables`."""
        return MemberRows(self, client)

    def read(self, table: NDArray[np.float64], columns: tuple[str, ...]) -> NDArray[np.float64]:
        """Return the named columns of one table, or of many."""
        places = [self._place[column] for column in columns]
        return table if places == [*range(table.shape[-1])] else table[..., places]

    def value(self, client: int, statistic: Statistic, rows_max: int, fraction_bits: int) -> Value | None:
        """Return a client's `contribution`, read-only, and the number of rows that it covers.

        Its neighbours are evaluated with it. Their values wait for their turn, in limited memory. Returns None if it
        cannot be evaluated together with others.
        """
        number, place = divmod(client, _BLOCK_CLIENTS)
        key = (id(statistic), rows_max, fraction_bits, number)
        block = self._blocks.get(key)
        if block is None:
            tables = self.tables[number * _BLOCK_CLIENTS : (number + 1) * _BLOCK_CLIENTS]
            values = self._evaluated(tables, statistic, rows_max, fraction_bits)
            block = _Block(statistic, counted_rows(statistic, len(tables[0]), rows_max), values)
            self._keep(key, block)
        return None if block.values is None else Value(block.values[place], block.covered)

    def _evaluated(
        self, tables: Tables, statistic: Statistic, rows_max: int, fraction_bits: int
    ) -> NDArray[np.int64] | None:
        rows = len(tables[0])
        if not is_built_in(type(statistic)):
            return None
        is_too_large = clients_at_once(statistic, rows, rows_max) < len(tables)
        if is_too_large or any(len(table) != rows for table in tables):
            return None
        try:
            values = contributions(statistic, self.read(np.asarray(tables), statistic.columns), rows_max, fraction_bits)
        except Exception:  # then each client finds out by itself
            return None
        values.flags.writeable = False
        return values

    def _keep(self, key: _Key, block: _Block) -> None:
        """Keep a block, and forget the oldest ones beyond the limits, since a trainer chooses the statistics."""
        self._blocks[key] = block
        self._words += block.words
        self._blocks_of[key[0]] += 1
        while len(self._blocks) > 1 and (self._words > _KEPT_WORDS or len(self._blocks_of) > _KEPT_STATISTICS):
            oldest = next(iter(self._blocks))
            self._words -= self._blocks.pop(oldest).words
            self._blocks_of[oldest[0]] -= 1
            if not self._blocks_of[oldest[0]]:
                del self._blocks_of[oldest[0]]


_Key = tuple[int, int, int, int]
"""The statistic's identity, `rows_max`, fraction bits, and the first client."""


class _Block(msgspec.Struct, frozen=True, eq=False):
    """The values of neighbouring clients, shape ``(n, dimension)``, or None. `statistic` keeps its identity unique."""

    statistic: Statistic
    covered: int
    values: NDArray[np.int64] | None

    @property
    def words(self) -> int:
        return 1 if self.values is None else self.values.size


class MemberRows:
    """The rows of one client of a host; a `Rows`."""

    __slots__ = ("_client", "_host")

    def __init__(self, host: HostRows, client: int) -> None:
        self._host = host
        self._client = client

    def __call__(self, columns: tuple[str, ...]) -> NDArray[np.float64]:
        return self._host.read(self._host.tables[self._client], columns)

    def value(self, statistic: Statistic, rows_max: int, fraction_bits: int) -> Value | None:
        """Return the client's `contribution`, if the host evaluates it together with others'."""
        return self._host.value(self._client, statistic, rows_max, fraction_bits)
