"""Detects damage to a store by a tag for each record, a seal over all records, and the log's checksums.

A record's tag is a MAC over its owner, table, key and value, under a key of the actor's identity. The *seal* is one
row: a MAC over the number of records and the exclusive or of all tags, each hashed with a secret first (a multiset
hash: Clarke et al. 2003). Each transaction that changes a record updates it. So the next start fails after a flipped
bit, an edited field, or a missing, duplicated or outdated record. An old copy of the whole file is consistent: this
module cannot detect it, but Compute nodes may (DESIGN §4.6).
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import sqlite3
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from dca_proto.crypto.sealing import derive, same
from dca_proto.errors import InputError, StorageError, UsageError

ANEW = "start with a fresh one (a client enrolled anew), not with an old copy, which forgets what was spent or sent"
SCHEMA = (
    """CREATE TABLE IF NOT EXISTS records (
    namespace BLOB NOT NULL, kind TEXT NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL, tag BLOB NOT NULL,
    PRIMARY KEY (namespace, kind, key))""",
    "CREATE TABLE IF NOT EXISTS seal (owner BLOB NOT NULL, records INTEGER NOT NULL, tag BLOB NOT NULL)",
)
MAGIC = b"SQLite format 3\0"
"""The first bytes of every SQLite database (its file format, section 1.3)."""

_TAG_BYTES = 16
_LOG_HEAD_BYTES, _FRAME_HEAD_BYTES = 32, 24  # of SQLite's file format, section 4
_LITTLE, _BIG = 0x377F0682, 0x377F0683  # the log's magic number, which gives the byte order of its checksums
Row = tuple[bytes, str, bytes, bytes]
"""Owner (empty unless the store is shared), table, key and value of a record."""


class Contents(msgspec.Struct, frozen=True):
    """The number of records, and the exclusive or of their hashed tags."""

    records: int = 0
    total: int = 0


class Tags:
    """Computes tags and seals under a key of 32 secret bytes (`Identity.store_key`).

    `owner` identifies the key and reveals nothing about it.
    """

    def __init__(self, key: bytes) -> None:
        self.owner = derive(key, b"dca4-store-owner", size=_TAG_BYTES)
        self._keys = {what: derive(key, b"dca4-store-" + what) for what in (b"tag", b"sum", b"seal")}

    def tag(self, namespace: bytes, kind: str, key: bytes, value: bytes) -> bytes:
        """Return the tag of a record: 16 bytes."""
        name = kind.encode()
        head = struct.pack("<QQQ", len(namespace), len(name), len(key)) + namespace + name + key
        mac = hashlib.blake2b(head, digest_size=_TAG_BYTES, key=self._keys[b"tag"])
        mac.update(value)
        return mac.digest()

    def replaced(self, contents: Contents, old: Iterable[bytes], new: Iterable[bytes]) -> Contents:
        """Return the contents after records with the tags `old` are replaced by records with the tags `new`."""
        records, total = contents.records, contents.total
        for tags, change in ((old, -1), (new, 1)):
            for tag in tags:
                records += change
                total ^= int.from_bytes(derive(self._keys[b"sum"], b"", tag, _TAG_BYTES), "little")
        return Contents(records, total)

    def seal(self, contents: Contents) -> bytes:
        """Return the seal's tag: 16 bytes."""
        message = struct.pack("<Q", contents.records) + contents.total.to_bytes(_TAG_BYTES, "little")
        return derive(self._keys[b"seal"], b"", message, _TAG_BYTES)


def read_rows(connection: sqlite3.Connection, path: Path, tags: Tags | None) -> tuple[list[Row], Contents]:
    """Return all records, ordered by owner, table and key, and their contents; unchecked without `tags`.

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
    contents = Contents()
    for *row, tag in connection.execute(query):
        if tuple(map(type, row)) != (bytes, str, bytes, bytes):
            raise damaged(path, "a record's columns have other types than a store's")
        namespace, kind, key, value = row
        rows.append((namespace, kind, key, value))
        if tags is not None:
            if not _matches(tags.tag(*rows[-1]), tag):
                raise damaged(path, f"record {key.hex()} of table {kind!r} is not as this actor wrote it")
            contents = tags.replaced(contents, (), (tag,))
    if tags is not None:
        seals = connection.execute("SELECT owner, records, tag FROM seal").fetchall()
        (_, records, tag), *more = seals or [(None, None, None)]
        if more or records != contents.records or not _matches(tags.seal(contents), tag):
            sealed = seals[0][1] if seals else "no"
            found = f"{contents.records} records and a seal over {sealed}"
            raise damaged(path, f"{found}: a record is missing, duplicated or outdated")
    return rows, contents


def read_store(path: Path, key: bytes | None = None) -> list[Row]:
    """Read the records of an actor's store without changing it, checked if `key` is its identity's `store_key`.

    Raises `UsageError` if the store is in use or damaged, or the file is not a store.
    """
    try:
        # Without a log beside it no process has the store open; "immutable" makes SQLite leave no files behind.
        mode = "mode=ro" if Path(f"{path}-wal").exists() else "immutable=1"
        uri = f"{path.absolute().as_uri()}?{mode}"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=0)) as connection:
            check_log(path)
            return read_rows(connection, path, None if key is None else Tags(key))[0]
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise InputError(f"store {path} is in use: stop its actor first") from None
        if "decode" in str(error):
            raise damaged(path, "a record's kind is not text") from None
        raise InputError(f"{path} is not an actor's store: {error}") from None
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite's own message may quote a damaged page
        raise damaged(path, " ".join(str(error).split())) from None


def _matches(tag: bytes, found: object) -> bool:
    """Return True if a column's value, of any type, is this tag."""
    return isinstance(found, bytes) and same(tag, found)


def damaged(path: Path, what: str) -> UsageError:
    """Return the error for a damaged store."""
    return StorageError(f"store {path} is damaged ({what}): {ANEW}")


# --- the log that a killed process leaves beside the file -------------------------------------------------------------


def check_log(path: Path) -> None:
    """Raise an error if, in a store's log, a transaction follows a damaged frame. Called before SQLite reads the log.

    SQLite takes the first frame with a wrong checksum for the end of the log, and ignores the rest. That is right for
    the last transaction, which a power failure may have cut off. Each transaction is flushed before the next one
    begins. So a wrong frame in an earlier one is damage, and SQLite would silently undo all transactions from there on.

    Raises `UsageError` for a damaged log, `sqlite3.Error` if the store is in use.
    """
    file = Path(f"{path}-wal")
    if not file.exists():
        return
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0)) as probe:
        probe.execute("SELECT * FROM sqlite_master")  # raises if a process has the store open and writes the log
    log = file.read_bytes()
    if len(log) < _LOG_HEAD_BYTES:
        return
    magic, _, page, _, *salts = struct.unpack(">6I", log[:24])
    order = {_LITTLE: "<", _BIG: ">"}.get(magic)
    if order is None or not 512 <= page <= 65536 or _checksum(log[:24], order, (0, 0)) != _sums(log[24:32]):
        if any(log):
            raise damaged(path, "the head of its log")
        return
    size = _FRAME_HEAD_BYTES + page
    frames = [log[at : at + size] for at in range(_LOG_HEAD_BYTES, len(log), size)]
    ours = [_words(frame)[2:4] == tuple(salts) for frame in frames]  # others are older than the log's last restart
    last = max(itertools.compress(itertools.count(), ours), default=-1)
    ends = [at for at, frame in enumerate(frames[: last + 1]) if _words(frame)[1]]
    flushed = ends if ends and ends[-1] < last else ends[:-1]
    whole = map(bool.__and__, ours, _sound(frames, order, _sums(log[24:32])))
    valid = sum(itertools.takewhile(bool, whole))
    if flushed and valid <= flushed[-1]:
        raise damaged(path, f"frame {valid + 1} of its log, which later transactions follow")


def _words(frame: bytes) -> tuple[int, ...]:
    """Return a frame's page, the database size if a transaction ends here (else 0), two salts and two checksums."""
    return struct.unpack(">6I", frame[:_FRAME_HEAD_BYTES].ljust(_FRAME_HEAD_BYTES, b"\0"))


def _sums(raw: bytes) -> tuple[int, int]:
    first, second = struct.unpack(">2I", raw)
    return first, second


def _sound(frames: Iterable[bytes], order: str, sums: tuple[int, int]) -> Iterator[bool]:
    """Yield for each frame whether its checksum is correct; it continues the previous frame's checksum."""
    for frame in frames:
        sums = _checksum(frame[:8] + frame[_FRAME_HEAD_BYTES:], order, sums) if len(frame) % 8 == 0 else (0, 0)
        yield sums == _words(frame)[4:]


def _checksum(data: bytes, order: str, sums: tuple[int, int]) -> tuple[int, int]:
    """Return SQLite's checksum: two sums over pairs of 32-bit words."""
    first, second = sums
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for even, odd in zip(words, words, strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second
