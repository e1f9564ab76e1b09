"""The registrar's book: invitations and what became of them, in an SQLite database (DESIGN §2.9).

The registrar and `dca federation invite` may have it open at the same time. Each change is one transaction, and is on
the disk before the answer leaves. Codes are hashed. The book is not secret, but whoever can write it can invite.

The head of the database has the format. A book from before there were formats has none: it opens, and gets the first.
A book that is made from a backup has forgotten which codes were spent since, so all its unspent codes are cancelled.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from dca_proto.errors import StorageError
from dca_proto.protocol.enrolment import BookedInvitation, Entrance
from dca_proto.protocol.params import DAY_MS
from dca_proto.runtime.files import sync_folder

_APPLICATION_ID = 0x44434152  # "DCAR"
_FORMAT = 1
_BUSY_S = 20.0
_SCHEMA = {
    "invitations": "code BLOB PRIMARY KEY, client BLOB UNIQUE, record BLOB NOT NULL) WITHOUT ROWID",
    "issued": "at_ms INTEGER NOT NULL)",
    "entrances": "digest BLOB PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID",
}
_AT_BYTES = 8
Rows = list[tuple[str, bytes, bytes]]
"""Table, key and value of each record, as a backup has them."""
Decide = Callable[[BookedInvitation | None, int, int], BookedInvitation | None]
_ALL_ISSUED = "SELECT at_ms FROM issued"


class Listed(msgspec.Struct, frozen=True):
    """An invitation with the hash of its code."""

    code: bytes
    invitation: BookedInvitation


class Book:
    """An open book. Raises `StorageError` if it cannot be read or written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.touch(mode=0o600, exist_ok=True)
            self._database = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
            try:
                is_ready = self._check()
                self._database.execute("PRAGMA journal_mode = DELETE")
                self._database.execute("PRAGMA synchronous = EXTRA")  # a spent code stays spent
                if not is_ready:
                    self._prepare()
            except BaseException:
                self._database.close()
                raise
        except (OSError, sqlite3.Error) as error:
            raise StorageError(f"cannot open the registrar's book {path}: {error}; check the path and rights") from None

    def _check(self) -> bool:
        """Return False for a new file and for a book without a format. Raises `StorageError` for anything else."""
        (application,) = self._database.execute("PRAGMA application_id").fetchone()
        (found,) = self._database.execute("PRAGMA user_version").fetchone()
        tables = {name for (name,) in self._database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if application == _APPLICATION_ID and found != _FORMAT:
            raise StorageError(
                f"the registrar's book {self._path} is of another version (found format {found}, expected {_FORMAT}): "
                "use the version that wrote it"
            )
        if application not in (0, _APPLICATION_ID) or not tables <= _SCHEMA.keys():
            raise StorageError(f"{self._path} is a database of something else: name another file as book")
        return bool(application)

    def _prepare(self) -> None:
        """Make what is missing, and state the format, in one transaction."""
        with self._changing() as database:
            for name, columns in _SCHEMA.items():
                database.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns}")
            database.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            database.execute(f"PRAGMA user_version = {_FORMAT}")

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, which excludes all other writers from its beginning."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            raise StorageError(f"cannot write the registrar's book {self._path}: {error}") from None

    def invite(self, invited: dict[bytes, BookedInvitation], entrance: Entrance) -> None:
        """Record new invitations, by the hash of their codes, and the entrance that their bundles have."""
        with self._changing() as database:
            database.execute(
                "INSERT OR IGNORE INTO entrances VALUES (?, ?)", (entrance.digest, msgspec.msgpack.encode(entrance))
            )
            database.executemany(
                "INSERT INTO invitations VALUES (?, NULL, ?)",
                [(code, msgspec.msgpack.encode(one)) for code, one in invited.items()],
            )

    def change(self, where: bytes, decide: Decide, now_ms: int, *, by_client: bool = False) -> None:
        """Decide on one invitation, and store what was decided, in one transaction.

        Args:
            where: the hash of its code, or with `by_client` the key of the client that has spent it.
            decide: gets the invitation if there is one, how many clients were ever enrolled, and how many certificates
                were issued in the last day. Returns the changed invitation, or None to change nothing.
        """
        column = "client" if by_client else "code"
        with self._changing() as database:
            row = database.execute(f"SELECT code, record FROM invitations WHERE {column} = ?", (where,)).fetchone()  # noqa: S608
            known = None if row is None else _decoded(row[1])
            (enrolled,) = database.execute("SELECT COUNT(*) FROM invitations WHERE client IS NOT NULL").fetchone()
            (today,) = database.execute("SELECT COUNT(*) FROM issued WHERE at_ms > ?", (now_ms - DAY_MS,)).fetchone()
            changed = decide(known, enrolled, today)
            if row is None or changed is None:
                return
            database.execute(
                "UPDATE invitations SET client = ?, record = ? WHERE code = ?",
                (changed.client_key or None, msgspec.msgpack.encode(changed), row[0]),
            )
            database.execute("DELETE FROM issued WHERE at_ms <= ?", (now_ms - DAY_MS,))
            database.execute("INSERT INTO issued VALUES (?)", (now_ms,))

    def issued(self, since_ms: int) -> int:
        """Return how many certificates were issued since then, within the last day."""
        return int(self._read("SELECT COUNT(*) FROM issued WHERE at_ms > ?", since_ms)[0][0])

    def is_taken(self, client_key: bytes, code: bytes) -> bool:
        """Return True if another invitation than that of this code's hash has enrolled a key."""
        found = self._read("SELECT 1 FROM invitations WHERE client = ? AND code != ?", client_key, code)
        return bool(found)

    def _read(self, query: str, *values: bytes | int) -> list[tuple[Any, ...]]:
        try:
            return self._database.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise StorageError(f"cannot read the registrar's book {self._path}: {error}") from None

    def cancel(self, names: set[str]) -> list[BookedInvitation]:
        """Cancel all invitations of these names; return them as they are now."""
        with self._changing() as database:
            chosen = [one for one in self.all() if one.invitation.name in names and not one.invitation.is_cancelled]
            changed = [(one.code, msgspec.structs.replace(one.invitation, is_cancelled=True)) for one in chosen]
            database.executemany(
                "UPDATE invitations SET record = ? WHERE code = ?",
                [(msgspec.msgpack.encode(invitation), code) for code, invitation in changed],
            )
        return [invitation for _, invitation in changed]

    def all(self) -> list[Listed]:
        """Return all invitations, by name."""
        rows = self._read("SELECT code, record FROM invitations")
        return sorted((Listed(code, _decoded(record)) for code, record in rows), key=lambda one: one.invitation.name)

    def entrance(self, digest: bytes) -> Entrance | None:
        """Return the entrance of a link's digest."""
        rows = self._read("SELECT record FROM entrances WHERE digest = ?", digest)
        return msgspec.msgpack.decode(rows[0][0], type=Entrance) if rows else None

    def records(self) -> Rows:
        """Return all records of one moment, for a backup. The registrar may be at work."""
        self._read("BEGIN")
        try:
            issued = [("issued", at_ms.to_bytes(_AT_BYTES, "big"), b"") for (at_ms,) in self._read(_ALL_ISSUED)]
            named = {"invitations": "SELECT code, record FROM invitations", "entrances": "SELECT * FROM entrances"}
            return issued + [(name, *row) for name, query in named.items() for row in self._read(query)]
        finally:
            self._database.execute("ROLLBACK")


def restore_book(path: Path, records: Rows) -> int:
    """Make a book from a backup's records, and cancel its unspent codes; return how many.

    Raises `StorageError` if there is a book already, or it cannot be written.
    """
    for there in (path, Path(f"{path}-journal")):
        if there.exists():
            raise StorageError(f"{there} exists: a book is never overwritten. Stop the registrar, and move it away")
    draft = path.with_name(f"{path.name}.restoring")
    draft.unlink(missing_ok=True)
    try:
        cancelled = _fill(draft, records)
        draft.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise StorageError(f"cannot make the book {path}: {error.strerror}; free space or check the rights") from None
    finally:
        draft.unlink(missing_ok=True)
    return cancelled


def _fill(draft: Path, records: Rows) -> int:
    cancelled, book = 0, Book(draft)
    try:
        with book._changing() as database:
            for table, key, value in records:
                if table == "issued":
                    database.execute("INSERT INTO issued VALUES (?)", (int.from_bytes(key, "big"),))
                elif table == "entrances":
                    database.execute("INSERT INTO entrances VALUES (?, ?)", (key, value))
                else:
                    known = _decoded(value)
                    is_open = not known.client_key and not known.is_cancelled
                    cancelled += is_open
                    kept = msgspec.structs.replace(known, is_cancelled=known.is_cancelled or is_open)
                    row = (key, known.client_key or None, msgspec.msgpack.encode(kept))
                    database.execute("INSERT INTO invitations VALUES (?, ?, ?)", row)
    finally:
        book.close()
    return cancelled


def _decoded(record: bytes) -> BookedInvitation:
    return msgspec.msgpack.decode(record, type=BookedInvitation)
