"""Durable records: what an actor must remember across a crash, in SQLite, or in memory for tests.

`commit` returns when the writes would survive a power failure. Many actors of one process share one database: all
commits that arrive while one transaction runs go into the next, on one thread of its own, so that hundreds of actors
share the cost of one flush to disk (group commit).

Journal: WAL with synchronous=FULL, one flush per transaction where the rollback journal needs three. The database is
locked by its process for as long as it is open; a second process with the same identity is refused. Deleted and
replaced values are overwritten in the database (secure_delete), and after a transaction that forgets, the log that may
still hold them is emptied. What the file system or flash memory keeps beneath is out of reach from here.

Each record is authenticated (`store_check`). A damaged store stops the start. It is not to be replaced by an old copy
of itself, which forgets what was spent and said (DESIGN §8), but by a fresh one; a client is enrolled anew.

A file that is neither empty nor a store, by its header, is left as it is. So the first transaction of a store, which
marks it as ours, goes to the file itself, before the journal becomes WAL.
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
from typing import Any, Protocol

import msgspec

from dca_proto.errors import StorageError
from dca_proto.protocol.effects import Persist, Write
from dca_proto.runtime.store_check import ANEW, SCHEMA, Contents, Tags, check_log, damaged, read_rows

_APPLICATION_ID = 0x44434102  # "DCA", format 2
_MAGIC, _ID_AT, _HEAD_BYTES = b"SQLite format 3\0", 68, 72  # of SQLite's file format, section 1.3
_PUT = "INSERT OR REPLACE INTO records VALUES {}"
_OLD = """WITH place(owner, of, at) AS (VALUES {}) SELECT owner, of, at, tag, records.rowid
    FROM place CROSS JOIN records ON namespace = owner AND kind = of AND key = at"""
_DELETE = "DELETE FROM records WHERE rowid IN (VALUES {})"
_AT_ONCE = 128  # records in one statement: older versions of SQLite take 999 values
Place = tuple[bytes, str, bytes]
"""Owner, table and key of a record."""


class Record(msgspec.Struct, frozen=True):
    """What a `Persist` left: a value under a table and key."""

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
        """Make all of `writes` durable, in their order, together or not at all.

        Raises `UsageError`: it could not be done (disk full, damaged file), and nothing was.
        """


class _Commit(msgspec.Struct, eq=False):
    namespace: bytes
    writes: Sequence[Write]
    done: asyncio.Future[None]


class SqliteStore:
    """A database of records of one actor, or of many, each with its `view`.

    Args:
        path: the file; made, readable by the owner only, if missing.
        key: 32 secret bytes that authenticate the records (`Identity.store_key`).

    Attributes:
        transactions: how many were run.

    Raises:
        UsageError: the file is in use by another process, damaged, another actor's, not ours, or cannot be opened.
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
        """The records of one of many actors."""
        return _View(self, namespace)

    def load(self, namespace: bytes = b"") -> list[Record]:
        """The records of one view. For the start, before commits."""
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
        """Finish what waits, then close the file."""
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
            except Exception as error:  # whatever it was, those who wait must hear it
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
        values: dict[Place, bytes | None] = {}  # what records come to once all commits are done
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
        """Write values, delete where they are None, and say what there is then."""
        old = self._many(_OLD, list(values))
        self._many(_DELETE, [(row,) for *place, _, row in old if values[tuple(place)] is None])
        new = [(*place, value, self._tags.tag(*place, value)) for place, value in values.items() if value is not None]
        self._many(_PUT, new)
        return self._tags.replaced(self._contents, (row[3] for row in old), (row[-1] for row in new))

    def _many(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Execute a statement with some rows at a time; all that it gives."""
        found: list[tuple[Any, ...]] = []
        for start in range(0, len(rows), _AT_ONCE):
            some = rows[start : start + _AT_ONCE]
            row = f"({', '.join('?' * len(some[0]))})"
            cursor = self._connection.execute(statement.format(", ".join([row] * len(some))), [*chain(*some)])
            found += cursor.fetchall()
        return found


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
    """A `Store` that forgets at the end of the process: for tests and play."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, bytes], bytes] = {}
        self._views: dict[bytes, MemoryStore] = {}

    def view(self, namespace: bytes) -> MemoryStore:
        """The records of one of many actors."""
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
    """The database, ready and locked, and what it holds."""
    with _explained(path):
        _create_private(path)
        check_log(path)
        # Only the store's thread uses it once it is open, hence no check; autocommit: transactions are begun by hand.
        connection = sqlite3.connect(path, timeout=0, check_same_thread=False, isolation_level=None)
        try:
            _prepare(connection, tags)
            return connection, read_rows(connection, path, tags)[1]
        except BaseException:
            connection.close()
            raise


def _create_private(path: Path) -> None:
    """Make the file, or see that the one that is there is new or a store, before it is changed in any way."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        head = os.pread(descriptor, _HEAD_BYTES, 0)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode) or (head and not head.startswith(_MAGIC)):
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
    """Turns what SQLite and the file system raise into one line for the owner."""
    try:
        yield
    except sqlite3.Error as error:
        raise StorageError(_explanation(path, error)) from error
    except UnicodeDecodeError as error:  # SQLite's own message quotes a damaged page
        raise damaged(path, "a text is not valid UTF-8") from error
    except OSError as error:
        raise StorageError(f"cannot open store {path}: {error.strerror}; check the path and its rights") from error


def _explanation(path: Path, error: sqlite3.Error) -> str:
    what = " ".join(str(error).split())  # a check of the whole file answers in several lines
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return f"store {path} is in use by another process: stop it, or give each actor a store of its own"
        case sqlite3.SQLITE_FULL | sqlite3.SQLITE_IOERR:
            return f"cannot write store {path}: {what}; free disk space and start again"
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB | 0:
            return str(damaged(path, what))
    return f"store {path} cannot be used: {what}"
