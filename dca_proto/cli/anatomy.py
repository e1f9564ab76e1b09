"""What is in a message or a store, without its secrets: plain values for tables and JSON.

Bytes are shown only where their field is on the list of ids, public keys and hashes; everything else (ciphertexts,
shares, sums, MACs, keys) is shown as its size. What is not known to be public is taken for secret.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from dca_proto.core import (
    charges,
    client_round,
    compute,
    compute_round,
    declines,
    keyring,
    ledger,
    trainer_round,
)
from dca_proto.core.codec import decode_body, decode_frame
from dca_proto.core.errors import PeerError, UsageError
from dca_proto.core.messages import Announcement, Certificate, FrozenList, Join, PartialSum, Roster, Signed
from dca_proto.core.sealing import ID_BYTES, actor_id
from dca_proto.core.upload import Contribution
from dca_proto.logs import printable
from dca_proto.net.parts import Assembler

# fmt: off
_PUBLIC = frozenset({
    "round_id", "contribution", "trainer", "compute", "computes", "client", "client_key", "public", "reply_key",
    "ephemeral", "announcement_hash", "session", "session_hash", "roster_hash", "list_hash", "contributors_hash",
    "views", "aborted_by", "invited", "clients",
})
# fmt: on
_OMITTED = frozenset({"signature", "version"})
_ENTRY_BYTES = 4 + ID_BYTES
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError, PeerError, UsageError)
Plain = dict[str, Any]
YEAR_10000_MS = 253_402_300_800_000
"""The first time that no calendar of Python's knows, in Unix milliseconds."""


# --- messages ---------------------------------------------------------------------------------------------------------


def describe_message(payload: bytes) -> Plain:
    """The fields of a message as it was sent, or as a broker carries it (with the head of its only part).

    Raises:
        UsageError: it is neither.
    """
    whole = Assembler().add("", payload)
    failures = []
    for candidate in (payload, whole):
        if candidate is not None:
            try:
                return _frame(decode_frame(candidate))
            except PeerError as error:
                failures.append(str(error.found))
    if payload[:1] == b"\x01" and whole is None:
        raise UsageError("this is one part of a larger message: inspect needs all parts in one connection's order")
    raise UsageError(f"{len(payload)} bytes that are no message: {failures[0]}")


def _frame(frame: msgspec.Struct) -> Plain:
    if not isinstance(frame, Signed):
        return {"frame": type(frame).__name__, **_struct(frame)}
    try:
        body = decode_body(frame.body)
    except PeerError as error:
        raise UsageError(f"a signed frame whose body is no message: {error.found}") from None
    return {"frame": "Signed", "message": type(body).__name__, **_body(body)}


def _body(body: msgspec.Struct) -> Plain:
    plain = _struct(body)
    match body:
        case Announcement():
            plain["computes"] = [_frame(epoch) for epoch in body.computes]
        case Roster():
            joins = [decode_body(join.body) for join in body.joins]
            plain["announcement"] = _frame(body.announcement)
            plain["joins"] = [actor_id(join.certificate.client_key).hex() for join in joins if isinstance(join, Join)]
        case FrozenList():
            plain["entries"] = f"{len(body.entries) // _ENTRY_BYTES} entries"
        case PartialSum():
            plain["contributors"] = f"{int.from_bytes(body.contributors, 'little').bit_count()} of the roster"
    return plain


def _struct(value: msgspec.Struct) -> Plain:
    names = [name for name in value.__struct_fields__ if name not in _OMITTED]
    return {name: _plain(name, getattr(value, name)) for name in names}


def _plain(name: str, value: object) -> object:
    match value:
        case Certificate():
            return {"client": actor_id(value.client_key).hex(), **_struct(value)}
        case msgspec.Struct():
            return _struct(value)
        case bytes():
            return value.hex() if name in _PUBLIC else f"<{len(value)} bytes>"
        case tuple() | list():
            return [_plain(name, item) for item in value]
        case dict():
            return {str(key): _plain(str(key), item) for key, item in value.items()}
        case int() if name.endswith(("_by_ms", "expires_ms")) or name == "at_ms":
            return _time(value)
        case str():
            return printable(value)
        case _:
            return value


def _time(at_ms: int) -> str:
    if not 0 <= at_ms < YEAR_10000_MS:
        return f"{at_ms} ms"
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


# --- stores -----------------------------------------------------------------------------------------------------------


def is_store(data: bytes) -> bool:
    """Whether a file's first bytes are those of an SQLite database."""
    return data.startswith(b"SQLite format 3\0")


def describe_store(path: Path) -> list[Plain]:
    """The records of an actor's store, one object each: ``actor`` (in shared stores), ``kind`` and what it is about.

    Raises:
        UsageError: it is in use, damaged, or a database of something else.
    """
    return [_record(*row) for row in read_store(path)]


def read_store(path: Path) -> list[tuple[bytes, str, bytes, bytes]]:
    """The records of an actor's store: owner (empty but in shared stores), kind, key and value. Changes nothing.

    Raises:
        UsageError: it is in use, damaged, or a database of something else.
    """
    try:
        # Without a log beside it nobody has the store open; told so, SQLite leaves no files of its own behind.
        how = "mode=ro" if Path(f"{path}-wal").exists() else "immutable=1"
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, timeout=0)
        try:
            rows = connection.execute("SELECT namespace, kind, key, value FROM records ORDER BY 1, 2, 3").fetchall()
        finally:
            connection.close()
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise UsageError(f"store {path} is in use: stop its actor first") from None
        if "decode" in str(error):
            raise UsageError(f"store {path} is damaged: a record's kind is no text") from None
        raise UsageError(f"{path} is no store of an actor: {error}") from None
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite's own message may quote a damaged page
        raise UsageError(f"store {path} is damaged: {error}") from None
    if any(tuple(map(type, row)) != (bytes, str, bytes, bytes) for row in rows):
        raise UsageError(f"store {path} is damaged: a record's columns are not of the types that a store has")
    return rows


def _record(namespace: bytes, kind: str, key: bytes, value: bytes) -> Plain:
    owner = {"actor": namespace.hex()} if namespace else {}
    describe = _KINDS.get(kind)
    try:
        known = describe(key, value) if describe is not None else {}
    except _UNREADABLE as error:
        known = {"unreadable": str(error)[:200]}
    return {**owner, "kind": kind, **known, "size": f"{len(value)} bytes"}


def _charge(key: bytes, value: bytes) -> Plain:
    return _struct(msgspec.msgpack.decode(value, type=ledger.Charge))


def _declined(key: bytes, value: bytes) -> Plain:
    return _struct(msgspec.msgpack.decode(value, type=declines.DeclinedRound))


def _session(key: bytes, value: bytes) -> Plain:
    session = msgspec.msgpack.decode(value, type=client_round.Session)
    return {"round_id": key.hex(), **_struct(session), "announcement": _frame(session.announcement)}


def _contribution(key: bytes, value: bytes) -> Plain:
    stored = msgspec.msgpack.decode(value, type=Contribution)
    sizes = [len(message) for message in stored.messages]
    return {"round_id": key.hex(), "contribution": stored.contribution.hex(), "messages": _sizes(sizes)}


def _sizes(sizes: Iterable[int]) -> str:
    return ", ".join(f"<{size} bytes>" for size in sizes)


def _seen(key: bytes, value: bytes) -> Plain:
    return {"compute": key.hex(), "epoch": int.from_bytes(value, "big")}


def _epoch(key: bytes, value: bytes) -> Plain:
    return {"epoch": int.from_bytes(key, "big"), "secret": "<hidden>"}


def _compute_round(key: bytes, value: bytes) -> Plain:
    stored = msgspec.msgpack.decode(value, type=compute_round.StoredRound)
    return {
        "round_id": key.hex(),
        "phase": stored.phase,
        "roster": None if stored.roster is None else _frame(stored.roster),
        "entries": f"{len(stored.entries) // _ENTRY_BYTES} entries",
        "answer": f"<{len(stored.answer)} bytes>",
    }


def _share(key: bytes, value: bytes) -> Plain:
    return {
        "round_id": key[:ID_BYTES].hex(),
        "position": int.from_bytes(key[ID_BYTES:], "big"),
        "contribution": value[:ID_BYTES].hex(),
        "share": f"<{len(value) - ID_BYTES} bytes>",
    }


def _release(key: bytes, value: bytes) -> Plain:
    frame = msgspec.msgpack.decode(value, type=Signed)
    return {"client": key[ID_BYTES:].hex(), **_frame(frame)}


def _seen_charges(key: bytes, value: bytes) -> Plain:
    return {"client": key.hex(), "highest_charge": charges.SeenCharges([(charges.TABLE, key, value)]).highest(key)}


def _trainer_round(key: bytes, value: bytes) -> Plain:
    stored = msgspec.msgpack.decode(value, type=trainer_round.StoredRound)
    return {
        "round_id": key.hex(),
        "phase": stored.phase,
        "request": _struct(stored.request),
        "roster": None if stored.roster is None else _frame(stored.roster),
        "partial_sums": f"{len(stored.partials)} of {len(stored.request.computes)}",
        "aborted_by": _plain("aborted_by", stored.aborted_by),
        "reply_secret": "<hidden>",
    }


_KINDS: dict[str, Callable[[bytes, bytes], Plain]] = {
    ledger.TABLE: _charge,
    declines.TABLE: _declined,
    client_round.SESSIONS: _session,
    client_round.CONTRIBUTIONS: _contribution,
    keyring.SEEN: _seen,
    keyring.TABLE: _epoch,
    compute.ROUNDS: _compute_round,
    compute.SHARES: _share,
    charges.TABLE: _seen_charges,
    trainer_round.ROUNDS: _trainer_round,
    trainer_round.RELEASES: _release,
}
