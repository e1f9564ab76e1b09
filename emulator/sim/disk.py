"""One machine's disk: what survives a kill, as `runtime.store` keeps it, transaction by transaction.

A transaction is there as a whole or not at all. One that a kill tears is found incomplete at the next start and rolled
back, as SQLite does with the tail of its log; nothing that depended on it had left yet. That the real store behaves so
is a test of the real store, byte by byte of its log.
"""

from __future__ import annotations

from collections.abc import Sequence

from dca_proto.protocol.effects import Persist, Write
from dca_proto.testing import Records


class DiskFullError(Exception):
    """A transaction could not be written; nothing of it was."""


class Disk:
    """Durable records of one actor.

    Attributes:
        records: (table, key) -> value, as of the last whole transaction.
        is_full: whether the next transaction fails.
        transactions: how many were committed, over all starts.
    """

    __slots__ = ("is_full", "records", "transactions")

    def __init__(self) -> None:
        self.records: Records = {}
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
        """What a start finds: whole transactions only. Ordered by table and key, as the real store gives them."""
        return [(table, key, value) for (table, key), value in sorted(self.records.items())]

    def copy(self) -> Disk:
        """A copy of all it holds, as a backup or a cloned machine has one."""
        other = Disk()
        other.restore(self)
        return other

    def restore(self, copy: Disk) -> None:
        """Hold what `copy` holds and nothing else. How many transactions there were is counted on."""
        self.records = dict(copy.records)
