"""Stores the records that an actor must keep across a crash: in SQLite, or in memory for tests.

`commit` returns when the writes would survive a power failure. Many actors of one process can share a database. All
commits that arrive during a transaction go into the next one, on a separate thread, so hundreds of actors share the
cost of one flush to disk (group commit).

The journal is WAL with synchronous=FULL: one flush per transaction; the rollback journal needs three. The process locks
the database while it is open, so a second process with the same identity is refused. Deleted and replaced values are
overwritten in the database (secure_delete). After a transaction with a deletion, the log is truncated, since it may
still contain them. Copies that the file system or flash memory keeps cannot be erased from here.

Each record is authenticated (`store_check`). An actor with a damaged store does not start. Replace the store by a fresh
one and enrol the client anew. Never restore an old copy: it forgets what was spent and sent (DESIGN §8).

A file whose header shows that it is neither empty nor a store is never changed. So a store's first transaction, which
marks the file as ours, writes to the file itself, before the journal becomes WAL.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from dca_proto.errors import StorageError
from dca_proto.protocol.effects import Persist, Write
from dca_proto.runtime.store_check import ANEW, MAGIC, SCHEMA, Contents, Tags, check_log, damaged, read_rows

_APPLICATION_ID = 0x44434102  # "DCA", format 2
_ID_AT, _HEAD_BYTES = 68, 72  # of SQLite's file format, section 1.3
_PUT = "INSERT OR REPLACE INTO records VALUES {}"
_OLD = """WITH place(owner, of, at) AS (VALUES {}) SELECT owner, of, at, tag, records.rowid
    FROM place CROSS JOIN records ON namespace = owner AND kind = of AND key = at"""
_DELETE = "DELETE FROM records WHERE rowid IN (VALUES {})"
_AT_ONCE = 128  # records in one statement: older versions of SQLite allow 999 values
Place = tuple[bytes, str, bytes]
"""Owner, table and key of a record."""


class Record(NamedTuple):
    """A value stored by a `Persist`, under a table and key; actors are built from such records."""

    table: str
    key: bytes
    value: bytes

    def __repr__(self) -> str:
        return f"Record({self.table!r}, {self.key.hex()!r}, <{len(self.value)} bytes>)"


class Store(Protocol):
    """One actor's records."""

    def load(self) -> list[Record]:
        """All records, ordered by table and key."""

    async def commit(self, writes: Sequence[Write]) -> None:
        """Make all of `writes` durable in one transaction, in their order.

        Raises `UsageError` if it fails (disk full, damaged file); then nothing was written.
        """


class _Commit(msgspec.Struct, eq=False):
    namespace: bytes
    writes: Sequence[Write]
    done: asyncio.Future[None]


class SqliteStore:
    """A database with the records of one actor, or of many with one `view` each.

    Args:
        path: the file; created if missing, readable by the owner only.
        key: 32 secret bytes that authenticate the records (`Identity.store_key`).

    Attributes:
        transactions: the number of transactions so far.

    Raises:
        UsageError: the file is in use, damaged, another actor's, not a store, or cannot be opened.
    """

    def __init__(self, path: Path, key: bytes) -> None:
        self.path = path
        self.transactions = 0
        self._waiting: list[_Commit] = []
        self._writer: asyncio.Task[None] | None = None
        self._tags = Tags(key)
        self._connection, self._contents = _open(path, self._tags)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dca-store")

    def view(self, namespace: bytes) -> Store:
        """Return the store of one of many actors."""
        return _View(self, namespace)

    def load(self, namespace: bytes = b"") -> list[Record]:
        """Return the records of one view. Call it at the start, before any commit."""
        query = "SELECT kind, key, value FROM records WHERE namespace = ? ORDER BY kind, key"
        with _explained(self.path):
            return [Record(*row) for row in self._connection.execute(query, (namespace,))]

    async def commit(self, writes: Sequence[Write], namespace: bytes = b"") -> None:
        """Join the next transaction."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Commit(namespace, writes, done))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_all())
        await done

    async def close(self) -> None:
        """Finish the waiting commits, then close the file."""
        if self._writer is not None:
            await asyncio.wait([self._writer])
        self._thread.shutdown()
        self._connection.close()

    async def _write_all(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            failure: Exception | None = None
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, self._transact, group)
            except Exception as error:  # any error must reach the callers that wait
                failure = error
            for commit in group:
                if commit.done.cancelled():
                    continue
                if failure is None:
                    commit.done.set_result(None)
                else:
                    commit.done.set_exception(failure)
        self._writer = None

    def _transact(self, group: list[_Commit]) -> None:
        self.transactions += 1
        values: dict[Place, bytes | None] = {}  # the final value of each record after all commits; None deletes it
        for commit in group:
            for write in commit.writes:
                value = write.value if isinstance(write, Persist) else None
                values[commit.namespace, write.table, write.key] = value
        with _explained(self.path):
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                contents = self._write(values)
                self._connection.execute(
                    "UPDATE seal SET records = ?, tag = ?", (contents.records, self._tags.seal(contents))
                )
            self._contents = contents
            if None in values.values():
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _write(self, values: dict[Place, bytes | None]) -> Contents:
        """Write or, where the value is None, delete records. Return the new contents."""
        old = self._many(_OLD, list(values))
        self._many(_DELETE, [(row,) for *place, _, row in old if values[tuple(place)] is None])
        new = [(*place, value, self._tags.tag(*place, value)) for place, value in values.items() if value is not None]
        self._many(_PUT, new)
        return self._tags.replaced(self._contents, (row[3] for row in old), (row[-1] for row in new))

    def _many(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Execute a statement with `_AT_ONCE` rows at a time; return all result rows."""
        results: list[tuple[Any, ...]] = []
        for start in range(0, len(rows), _AT_ONCE):
            batch = rows[start : start + _AT_ONCE]
            row = f"({', '.join('?' * len(batch[0]))})"
            cursor = self._connection.execute(statement.format(", ".join([row] * len(batch))), [*chain(*batch)])
            results += cursor.fetchall()
        return results


class _View:
    """One actor's part of a shared database."""

    def __init__(self, database: SqliteStore, namespace: bytes) -> None:
        self._database = database
        self._namespace = namespace

    def load(self) -> list[Record]:
        return self._database.load(self._namespace)

    async def commit(self, writes: Sequence[Write]) -> None:
        await self._database.commit(writes, self._namespace)


class MemoryStore:
    """A `Store` in memory, for tests and simulations."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, bytes], bytes] = {}
        self._views: dict[bytes, MemoryStore] = {}

    def view(self, namespace: bytes) -> MemoryStore:
        """Return the store of one of many actors."""
        return self._views.setdefault(namespace, MemoryStore())

    def load(self) -> list[Record]:
        """See `Store`."""
        return [Record(table, key, value) for (table, key), value in sorted(self._records.items())]

    async def commit(self, writes: Sequence[Write]) -> None:
        """See `Store`."""
        for write in writes:
            if isinstance(write, Persist):
                self._records[write.table, write.key] = write.value
            else:
                self._records.pop((write.table, write.key), None)

    async def close(self) -> None:
        """Nothing to free."""


def _open(path: Path, tags: Tags) -> tuple[sqlite3.Connection, Contents]:
    """Open, check and lock the database. Return the connection and the contents."""
    with _explained(path):
        _create_private(path)
        check_log(path)
        # After opening, only the store's thread uses it, so SQLite's thread check is off. Autocommit is on: the code
        # begins its transactions itself.
        connection = sqlite3.connect(path, timeout=0, check_same_thread=False, isolation_level=None)
        try:
            _prepare(connection, tags)
            return connection, read_rows(connection, path, tags)[1]
        except BaseException:
            connection.close()
            raise


def _create_private(path: Path) -> None:
    """Create the file with mode 0600. If it is neither empty nor a store, raise an error and change nothing."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        head = os.pread(descriptor, _HEAD_BYTES, 0)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode) or (head and not head.startswith(MAGIC)):
            raise StorageError(f"store {path} is damaged or something else: name another file, or {ANEW}")
        ours, found = _APPLICATION_ID.to_bytes(4, "big"), head[_ID_AT:]
        if head and found[:-1] == ours[:-1] and found[-1:] != ours[-1:]:
            version = f"found format {found[-1]}, expected {ours[-1]}"
            remedy = f"run the version that wrote it, or {ANEW}"
            raise StorageError(f"store {path} is of another version ({version}): {remedy}")
        if head and found != ours:
            raise StorageError(f"{path} is a database of something else: name another file as store")
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def _prepare(connection: sqlite3.Connection, tags: Tags) -> None:
    for pragma in ("locking_mode=EXCLUSIVE", "synchronous=FULL", "secure_delete=ON"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("BEGIN IMMEDIATE")  # takes the lock, which the locking mode then keeps
    connection.execute(f"PRAGMA application_id={_APPLICATION_ID}")
    for table in SCHEMA:
        connection.execute(table)
    (filled,) = connection.execute("SELECT EXISTS (SELECT * FROM records) OR EXISTS (SELECT * FROM seal)").fetchone()
    if not filled:
        connection.execute("INSERT INTO seal VALUES (?, 0, ?)", (tags.owner, tags.seal(Contents())))
    connection.execute("COMMIT")
    connection.execute("PRAGMA journal_mode=WAL")
    (verdict,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if verdict != "ok":
        raise sqlite3.DatabaseError(verdict)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Convert errors of SQLite and the file system to a `StorageError` of one line."""
    try:
        yield
    except sqlite3.Error as error:
        raise StorageError(_explanation(path, error)) from error
    except UnicodeDecodeError as error:  # SQLite's own message quotes a damaged page
        raise damaged(path, "a text is not valid UTF-8") from error
    except OSError as error:
        raise StorageError(f"cannot open store {path}: {error.strerror}; check the path and its rights") from error


def _explanation(path: Path, error: sqlite3.Error) -> str:
    what = " ".join(str(error).split())  # an integrity check reports several lines
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return f"store {path} is in use by another process: stop it, or give each actor a store of its own"
        case sqlite3.SQLITE_FULL | sqlite3.SQLITE_IOERR:
            return f"cannot write store {path}: {what}; free disk space and start again"
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB | 0:
            return str(damaged(path, what))
    return f"store {path} cannot be used: {what}"
