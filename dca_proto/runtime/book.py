"""The registrar's book: invitations and what became of them, in an SQLite database (DESIGN §2.9).

The registrar and `dca federation invite` may have it open at the same time. Each change is one transaction, and is on
the disk before the answer leaves. Codes are hashed. The book is not secret, but whoever can write it can invite.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from dca_proto.errors import StorageError
from dca_proto.protocol.enrolment import Entrance, Invitation
from dca_proto.protocol.params import DAY_MS

_BUSY_S = 20.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS invitations (code BLOB PRIMARY KEY, client BLOB UNIQUE, record BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS issued (at_ms INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS entrances (digest BLOB PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;
"""


class Listed(msgspec.Struct, frozen=True):
    """An invitation with the hash of its code."""

    code: bytes
    invitation: Invitation


class Book:
    """An open book. Raises `StorageError` if it cannot be read or written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.touch(mode=0o600, exist_ok=True)
            self._database = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
            self._database.execute("PRAGMA journal_mode = DELETE")
            self._database.execute("PRAGMA synchronous = EXTRA")  # a spent code stays spent
            self._database.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise StorageError(f"cannot open the registrar's book {path}: {error}; check the path and rights") from None

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

    def invite(self, invited: dict[bytes, Invitation], entrance: Entrance) -> None:
        """Record new invitations, by the hash of their codes, and the entrance that their bundles have."""
        with self._changing() as database:
            database.execute(
                "INSERT OR IGNORE INTO entrances VALUES (?, ?)", (entrance.digest, msgspec.msgpack.encode(entrance))
            )
            database.executemany(
                "INSERT INTO invitations VALUES (?, NULL, ?)",
                [(code, msgspec.msgpack.encode(one)) for code, one in invited.items()],
            )

    def change(self, where: bytes, decide: Callable[[Invitation | None, int, int], Invitation | None], now_ms: int, *,
               by_client: bool = False) -> None:  # fmt: skip
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

    def cancel(self, names: set[str]) -> list[Invitation]:
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


def _decoded(record: bytes) -> Invitation:
    return msgspec.msgpack.decode(record, type=Invitation)
