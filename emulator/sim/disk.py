"""One machine's disk: the records that survive a kill, as in `runtime.store`.

Transactions are atomic. A transaction torn by a kill is rolled back at the next start, as SQLite does with the tail of
its log; no message that depends on it has been sent. `tests/dca_proto/runtime/test_torn_write.py` shows that the real
store behaves like this.
"""

from __future__ import annotations

from collections.abc import Sequence

from dca_proto.protocol.effects import Persist, Write
from dca_proto.testing import StoreContents


class DiskFullError(Exception):
    """A transaction could not be written; none of its writes took effect."""


class Disk:
    """Durable records of one actor.

    Attributes:
        records: (table, key) -> value, as of the last whole transaction.
        is_full: the next transaction fails. transactions: number committed, over all starts.
    """

    __slots__ = ("is_full", "records", "transactions")

    def __init__(self) -> None:
        self.records: StoreContents = {}
        self.is_full = False
        self.transactions = 0

    def commit(self, writes: Sequence[Write]) -> None:
        """Make all of `writes` durable. Raises `DiskFullError`."""
        if self.is_full:
            raise DiskFullError
        for write in writes:
            if type(write) is Persist:
                self.records[write.table, write.key] = write.value
            else:
                self.records.pop((write.table, write.key), None)
        self.transactions += 1

    def load(self) -> list[tuple[str, bytes, bytes]]:
        """Return the records, ordered by table and key as in the real store."""
        return [(table, key, value) for (table, key), value in sorted(self.records.items())]

    def copy(self) -> Disk:
        """Return a copy of the disk, like a backup or a cloned machine."""
        other = Disk()
        other.restore(self)
        return other

    def restore(self, copy: Disk) -> None:
        """Replace the records by those of `copy`. The count of transactions goes on."""
        self.records = dict(copy.records)
