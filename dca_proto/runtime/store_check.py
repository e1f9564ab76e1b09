"""Detects damage to a store by a tag for each record, a seal over all records, and a count of the transactions.

A record's tag is a MAC over its owner, table, key and value, under a key of the actor's identity. The *seal* is one
row: a MAC over the number of records and the exclusive or of all tags, each hashed with a secret first (a multiset
hash: Clarke et al. 2003), with the number of transactions and the time of the last one. Each transaction updates it. So
the next start fails after a flipped bit, an edited field, or a missing, duplicated or outdated record.

An older state of the store is consistent in itself: SQLite takes the first damaged frame of its log for the log's end.
So a second file counts the transactions (`counter`), and a store that has fewer does not open. An old copy of both
files is not detected here, but Compute nodes may detect it (DESIGN §4.6).
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import struct
from collections.abc import Iterable
from pathlib import Path

import msgspec

from dca_proto.crypto import labels
from dca_proto.crypto.sealing import derive, same
from dca_proto.errors import InputError, StorageError, UsageError
from dca_proto.runtime.counter import Count, counter_path, read_counter
from dca_proto.wording import counted, moment

ANEW = "start with a fresh one (a client enrolled anew), not with an old copy, which forgets what was spent or sent"
SCHEMA = (
    """CREATE TABLE IF NOT EXISTS records (
    namespace BLOB NOT NULL, kind TEXT NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL, tag BLOB NOT NULL,
    PRIMARY KEY (namespace, kind, key))""",
    """CREATE TABLE IF NOT EXISTS seal (
    owner BLOB NOT NULL, records INTEGER NOT NULL, transactions INTEGER NOT NULL, at_ms INTEGER NOT NULL,
    tag BLOB NOT NULL)""",
)
MAGIC = b"SQLite format 3\0"
"""The first bytes of every SQLite database (its file format, section 1.3)."""

STORE_BYTES_MAX = 1 << 44
"""SQLite's own limit is larger; no store comes near."""

_BUSY_S = 10.0  # for a transaction of the actor
_TAG_BYTES = 16
Row = tuple[bytes, str, bytes, bytes]
"""Owner (empty unless the store is shared), table, key and value of a record."""


class Contents(msgspec.Struct, frozen=True):
    """The number of records, the exclusive or of their hashed tags, and the count of transactions."""

    records: int = 0
    total: int = 0
    count: Count = Count()


class Tags:
    """Computes tags and seals under a key of 32 secret bytes (`Identity.store_key`).

    `owner` identifies the key and reveals nothing about it.
    """

    def __init__(self, key: bytes) -> None:
        self.owner = derive(key, labels.STORE_OWNER, size=_TAG_BYTES)
        self.key = key

    def tag(self, namespace: bytes, kind: str, key: bytes, value: bytes) -> bytes:
        """Return the tag of a record: 16 bytes."""
        name = kind.encode()
        head = struct.pack("<QQQ", len(namespace), len(name), len(key)) + namespace + name + key
        mac = hashlib.blake2b(head, digest_size=_TAG_BYTES, key=self.key, person=labels.STORE_TAG)
        mac.update(value)
        return mac.digest()

    def replaced(self, contents: Contents, old: Iterable[bytes], new: Iterable[bytes]) -> Contents:
        """Return the contents after records with the tags `old` are replaced by records with the tags `new`."""
        records, total = contents.records, contents.total
        for tags, change in ((old, -1), (new, 1)):
            for tag in tags:
                records += change
                total ^= int.from_bytes(derive(self.key, labels.STORE_SUM, tag, _TAG_BYTES), "little")
        return Contents(records, total, contents.count)

    def seal(self, contents: Contents) -> bytes:
        """Return the seal's tag: 16 bytes."""
        message = struct.pack("<QQQ", contents.records, *contents.count) + contents.total.to_bytes(_TAG_BYTES, "little")
        return derive(self.key, labels.STORE_SEAL, message, _TAG_BYTES)


def read_rows(
    connection: sqlite3.Connection, path: Path, tags: Tags | None, *, keep: bool = True
) -> tuple[list[Row], Contents]:
    """Return all records, ordered by owner, table and key, and their contents; not authenticated without `tags`.

    Without `keep`, the records are only checked, which takes no memory for millions of them.

    Raises `UsageError` if a record is damaged (the message names it), missing, duplicated or outdated;
    `sqlite3.Error` if the file cannot be read.
    """
    if tags is not None and [owner for (owner,) in connection.execute("SELECT owner FROM seal")] != [tags.owner]:
        raise StorageError(
            f"store {path} was written under another identity, or its seal is damaged: "
            f"name this actor's own store and key file, or {ANEW}"
        )
    query = "SELECT namespace, kind, key, value, tag FROM records ORDER BY namespace, kind, key"
    rows: list[Row] = []
    contents = Contents(count=sealed_count(connection) or Count())
    for *row, tag in connection.execute(query):
        if tuple(map(type, row)) != (bytes, str, bytes, bytes):
            raise damaged(path, "a record's columns have other types than a store's")
        namespace, kind, key, value = row
        if keep:
            rows.append((namespace, kind, key, value))
        if tags is not None:
            if not _matches(tags.tag(namespace, kind, key, value), tag):
                raise damaged(path, f"record {key.hex()} of table {kind!r} is not as this actor wrote it")
            contents = tags.replaced(contents, (), (tag,))
    if tags is not None:
        ((records, tag),) = connection.execute("SELECT records, tag FROM seal")
        if records != contents.records or not _matches(tags.seal(contents), tag):
            found = f"{contents.records} records and a seal over {records}"
            raise damaged(path, f"{found}: a record is missing, duplicated or outdated")
    return rows, contents


def read_store(path: Path, key: bytes | None = None) -> list[Row]:
    """Read the records of an actor's store without changing it, checked if `key` is its identity's `store_key`.

    Its actor may run. A store that does not exist yet has none. Raises `UsageError` if the store is damaged, lacks
    transactions, or is not a store.
    """
    tags = None if key is None else Tags(key)
    counter = read_count(path, tags)
    if counter is None and not path.exists():
        return []
    try:
        with contextlib.closing(reader(path)) as connection:
            connection.execute("BEGIN")  # its actor may run: all of one moment, which is not before the counter's
            rows, contents = read_rows(connection, path, tags)
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise InputError(f"store {path} is being written: try again") from None
        if "decode" in str(error):
            raise damaged(path, "a record's kind is not text") from None
        raise InputError(f"{path} is not an actor's store: {error}") from None
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite's own message may quote a damaged page
        raise damaged(path, " ".join(str(error).split())) from None
    if counter is not None or tags is not None:  # without a key nothing is authentic, so a copy may be read
        require_count(path, contents.count, counter)
    return rows


def reader(path: Path) -> sqlite3.Connection:
    """Open a store so that nothing changes it. Raises `sqlite3.Error`."""
    # Without a log beside it no process has the store open; "immutable" makes SQLite leave no files behind.
    mode = "mode=ro" if Path(f"{path}-wal").exists() else "immutable=1"
    return sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=_BUSY_S, isolation_level=None)


# --- how far a store must reach ---------------------------------------------------------------------------------------


def read_count(path: Path, tags: Tags | None) -> Count | None:
    """Return the count in a store's counter; None without one. Raises `UsageError` if the store lacks or it is damaged.

    A counter without a store means that the store was deleted.
    """
    try:
        count = read_counter(path, None if tags is None else tags.key)
    except InputError:
        raise
    except ValueError:
        raise StorageError(
            f"store {path} was written under another identity, or its counter {counter_path(path).name} is damaged: "
            f"name this actor's own store and key file, or {ANEW}"
        ) from None
    if count is not None and count.transactions and not (path.exists() and path.stat().st_size):
        raise StorageError(
            f"store {path} is missing or empty, but had {counted(count.transactions, 'transaction')}, the last on "
            f"{moment(count.at_ms)}: put it back if it was moved. Otherwise delete {counter_path(path)}, and {ANEW}"
        )
    return count


def sealed_count(connection: sqlite3.Connection) -> Count | None:
    """Return the count in a store's seal; None if there is not one seal with a count. Raises `sqlite3.Error`."""
    rows = connection.execute("SELECT transactions, at_ms FROM seal").fetchall()
    if len(rows) == 1 and all(isinstance(value, int) and 0 <= value < 1 << 63 for value in rows[0]):
        return Count(*rows[0])
    return None


def require_count(path: Path, found: Count, counter: Count | None) -> None:
    """Raise `UsageError` if a store has fewer transactions than its counter, or has transactions but no counter."""
    if counter is None and found.transactions:
        raise StorageError(
            f"store {path} has lost its counter {counter_path(path).name}, so it may be an old copy or lack its newest "
            f"transactions: move all files of a store together, or {ANEW}"
        )
    lost = counter.transactions - found.transactions if counter is not None else 0
    if counter is not None and lost > 0:
        raise StorageError(
            f"store {path} lacks its last {counted(lost, 'transaction')}, since {moment(found.at_ms)}: its counter has "
            f"{counter.transactions:,}, the last on {moment(counter.at_ms)}. The log {path.name}-wal is cut, damaged "
            f"or missing, or the store is an old copy: put back what was moved. Otherwise delete {path.name}, "
            f"{path.name}-wal and {counter_path(path).name}, and {ANEW}"
        )


def _matches(tag: bytes, found: object) -> bool:
    """Return True if a column's value, of any type, is this tag."""
    return isinstance(found, bytes) and same(tag, found)


def damaged(path: Path, what: str) -> UsageError:
    """Return the error for a damaged store."""
    return StorageError(f"store {path} is damaged ({what}): {ANEW}")
