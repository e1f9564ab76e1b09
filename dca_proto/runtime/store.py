"""Stores the records that an actor must keep across a crash: in SQLite, or in memory for tests.

`commit` returns when the writes would survive a power failure. Many actors of one process can share a database. All
commits that arrive during a transaction go into the next one, on a separate thread, so hundreds of actors share the
cost of one flush to disk (group commit).

The journal is WAL with synchronous=FULL: one flush per transaction; the rollback journal needs three. The process locks
the counter while the store is open, so a second process with the same identity is refused; commands may read meanwhile.
Deleted and replaced values are overwritten in the database (secure_delete). After a transaction with a deletion, the
log is truncated, since it may still contain them. Copies that the file system or flash memory keeps cannot be erased
from here.

Each record is authenticated (`store_check`), and a second file counts the transactions (`counter`). An actor whose
store is damaged, or has fewer transactions than its counter, does not start. Replace the store by a fresh one and enrol
the client anew. Never restore an old copy: it forgets what was spent and sent (DESIGN §8).

A file whose header shows that it is neither empty nor a store is never changed. So a store's first transaction, which
marks the file as ours, writes to the file itself, before the journal becomes WAL.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sqlite3
import stat
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from dca_proto.errors import StorageError
from dca_proto.protocol.effects import Persist, Write
from dca_proto.runtime.counter import Count, CounterFile, counter_path, make_counter
from dca_proto.runtime.locks import locked, release
from dca_proto.runtime.store_check import (
    ANEW,
    MAGIC,
    SCHEMA,
    Contents,
    Tags,
    damaged,
    read_count,
    read_rows,
    reader,
    require_count,
    sealed_count,
)

_APPLICATION_ID = 0x44434103  # "DCA", format 3
_ID_AT, _HEAD_BYTES = 68, 72  # of SQLite's file format, section 1.3
_PUT = "INSERT OR REPLACE INTO records VALUES {}"
_OLD = """WITH place(owner, of, at) AS (VALUES {}) SELECT owner, of, at, tag, records.rowid
    FROM place CROSS JOIN records ON namespace = owner AND kind = of AND key = at"""
_SEAL = "UPDATE seal SET records = ?, transactions = ?, at_ms = ?, tag = ? WHERE transactions = ?"
_DELETE = "DELETE FROM records WHERE rowid IN (VALUES {})"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_STOP = "stop it, or give each actor a store of its own"
_FREE = "free disk space and start again"
_BUSY_S = 10.0  # at the start, for another process that starts
_TRUNCATE_MS = 100  # for a command that reads; later transactions try again
_AT_ONCE = 128  # records in one statement: older versions of SQLite allow 999 values
Place = tuple[bytes, str, bytes]
"""Owner, table and key of a record."""


class StoreRecord(NamedTuple):
    """A value stored by a `Persist`, under a table and key; actors are built from such records."""

    table: str
    key: bytes
    value: bytes

    def __repr__(self) -> str:
        return f"Record({self.table!r}, {self.key.hex()!r}, <{len(self.value)} bytes>)"


class Store(Protocol):
    """One actor's records."""

    def load(self) -> list[StoreRecord]:
        """All records, ordered by table and key."""

    async def commit(self, writes: Sequence[Write]) -> None:
        """Make all of `writes` durable in one transaction, in their order.

        Raises `UsageError` if it fails (disk full, damaged file); then no message that depends on it may leave.
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
        self._must_truncate = False  # the log may contain a deleted value, but a command was reading it
        self._tags = Tags(key)
        self._connection, self._contents, self._counter = _open(path, self._tags)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dca-store")

    def view(self, namespace: bytes) -> Store:
        """Return the store of one of many actors."""
        return _View(self, namespace)

    def load(self, namespace: bytes = b"") -> list[StoreRecord]:
        """Return the records of one view. Call it at the start, before any commit."""
        query = "SELECT kind, key, value FROM records WHERE namespace = ? ORDER BY kind, key"
        with _explained(self.path):
            rows = self._connection.execute(query, (namespace,))
            return [StoreRecord(sys.intern(kind), key, value) for kind, key, value in rows]

    async def commit(self, writes: Sequence[Write], namespace: bytes = b"") -> None:
        """Join the next transaction."""
        await self.commit_all([(namespace, writes)])

    async def commit_all(self, writes: Sequence[tuple[bytes, Sequence[Write]]]) -> None:
        """Join the next transaction with the writes of many views, given by their namespaces. Raises as `commit`."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting += [_Commit(namespace, own, done) for namespace, own in writes]
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_all())
        await done

    def compact(self) -> None:
        """Give unused space back to the file system. Call it when no commit waits. Raises `UsageError`.

        The new content is made in memory: a temporary file would be a copy of the actor's secrets elsewhere.
        """
        with _explained(self.path):
            self._connection.execute("PRAGMA temp_store=MEMORY")
            self._connection.execute("VACUUM")
            if not self._truncate():
                raise StorageError(f"store {self.path} is being read by another process: wait for it, and try again")

    async def close(self) -> None:
        """Finish the waiting commits, then close the file."""
        if self._writer is not None:
            await asyncio.wait([self._writer])
        self._thread.shutdown()
        self._connection.close()
        self._counter.close()

    async def _write_all(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            failure: Exception | None = None
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, self._transact, group)
            except Exception as error:  # any error must reach the callers that wait
                failure = error
            for commit in group:
                if commit.done.done():
                    continue  # cancelled, or of several views
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
                contents = msgspec.structs.replace(contents, count=contents.count.next())
                row = (contents.records, *contents.count, self._tags.seal(contents), self._contents.count.transactions)
                if self._connection.execute(_SEAL, row).rowcount != 1:  # the lock was lost with a replaced counter
                    raise StorageError(f"store {self.path} was written by another process; {_STOP}")
            self._contents = contents
            self._counter.write(contents.count)
            if self._must_truncate or None in values.values():
                self._must_truncate = not self._truncate()

    def _truncate(self) -> bool:
        """Move the log into the database and empty it. Return False if a command that reads the log prevents this."""
        ((is_busy, *_),) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return not is_busy

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

    def load(self) -> list[StoreRecord]:
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

    def load(self) -> list[StoreRecord]:
        """See `Store`."""
        return [StoreRecord(table, key, value) for (table, key), value in sorted(self._records.items())]

    async def commit(self, writes: Sequence[Write]) -> None:
        """See `Store`."""
        for write in writes:
            if isinstance(write, Persist):
                self._records[write.table, write.key] = write.value
            else:
                self._records.pop((write.table, write.key), None)

    async def close(self) -> None:
        """Nothing to free."""


def _open(path: Path, tags: Tags) -> tuple[sqlite3.Connection, Contents, CounterFile]:
    """Open, check and lock the database. Return the connection, the contents and the open counter."""
    with _explained(path), contextlib.ExitStack() as opened:
        counter = read_count(path, tags)
        _create_private(path)
        if counter is None:
            _require_new(path)
        elif counter.transactions:  # before SQLite can change a log that the next start must see as it is
            with contextlib.closing(reader(path)) as connection:
                if (found := sealed_count(connection)) is not None:
                    require_count(path, found, counter)
        lock = None if counter is None else _locked(path, opened)
        # After opening, only the store's thread uses it, so SQLite's thread check is off. Autocommit is on: the code
        # begins its transactions itself.
        connection = sqlite3.connect(path, timeout=_BUSY_S, check_same_thread=False, isolation_level=None)
        opened.callback(connection.close)
        counter = _prepare(connection, path, tags)
        lock = _locked(path, opened) if lock is None else lock
        _fill(connection, tags)
        contents = read_rows(connection, path, tags, keep=False)[1]
        require_count(path, contents.count, counter)
        opened.pop_all()
        return connection, contents, CounterFile(lock, tags.key)


def _locked(path: Path, opened: contextlib.ExitStack) -> int:
    """Lock the counter until `opened` is closed."""
    lock = locked(counter_path(path), os.O_RDWR, f"store {path}", _STOP)
    opened.callback(release, lock)
    return lock


def _require_new(path: Path) -> None:
    """Raise an error if a store without a counter has any transaction: its first one is in the file itself."""
    if path.stat().st_size:
        with contextlib.closing(reader(path)) as connection:
            has_seal = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'seal'").fetchone()
            require_count(path, (sealed_count(connection) if has_seal else None) or Count(), None)


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


def _prepare(connection: sqlite3.Connection, path: Path, tags: Tags) -> Count:
    """Begin a transaction, and make the counter if it is missing. Return its count."""
    for pragma in ("synchronous=FULL", "secure_delete=ON"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("BEGIN IMMEDIATE")
    if (counter := read_count(path, tags)) is None:  # in a transaction: another process may be starting
        make_counter(path, tags.key, counter := Count())
    return counter


def _fill(connection: sqlite3.Connection, tags: Tags) -> None:
    """Make the tables if they are missing, end the transaction, and check the file."""
    connection.execute(f"PRAGMA application_id={_APPLICATION_ID}")
    for table in SCHEMA:
        connection.execute(table)
    (filled,) = connection.execute("SELECT EXISTS (SELECT * FROM records) OR EXISTS (SELECT * FROM seal)").fetchone()
    if not filled:
        first = Contents(count=Count().next())
        connection.execute("INSERT INTO seal VALUES (?, 0, ?, ?, ?)", (tags.owner, *first.count, tags.seal(first)))
    connection.execute("COMMIT")
    connection.execute("PRAGMA journal_mode=WAL")
    (verdict,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if verdict != "ok":
        raise sqlite3.DatabaseError(verdict)
    connection.execute(f"PRAGMA busy_timeout={_TRUNCATE_MS}")


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
        if error.errno in _FULL:
            raise StorageError(f"cannot write store {path}: {error.strerror}; {_FREE}") from error
        raise StorageError(f"cannot open store {path}: {error.strerror}; check the path and its rights") from error


def _explanation(path: Path, error: sqlite3.Error) -> str:
    what = " ".join(str(error).split())  # an integrity check reports several lines
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return f"store {path} is in use by another process; {_STOP}"
        case sqlite3.SQLITE_FULL | sqlite3.SQLITE_IOERR:
            return f"cannot write store {path}: {what}; {_FREE}"
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB | 0:
            return str(damaged(path, what))
    return f"store {path} cannot be used: {what}"
