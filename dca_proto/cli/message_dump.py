"""What is in a message or a store, without its secrets: plain values for tables and JSON.

Bytes are shown only where their field is on the list of ids, public keys and hashes; everything else (ciphertexts,
masked vectors, sums, tags, keys) is shown as its size. What is not known to be public is taken for secret.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from dca_proto.crypto.masks import ENTRY_BYTES
from dca_proto.crypto.sealing import ID_BYTES, actor_id
from dca_proto.errors import InputError, PeerError, UsageError
from dca_proto.protocol import charges, contribution, federation, keyring, ledger, sessions
from dca_proto.protocol.client import round as client_round
from dca_proto.protocol.compute import round as compute_round
from dca_proto.protocol.kinds import LdpReport, NodeRelease, SecureSum
from dca_proto.protocol.trainer import round as trainer_round
from dca_proto.protocol.wire.codec import decode_body, decode_frame
from dca_proto.protocol.wire.fields import Signed
from dca_proto.protocol.wire.messages import Certificate, InvitedRound
from dca_proto.runtime.logs import printable
from dca_proto.runtime.parts import Assembler
from dca_proto.runtime.store_check import Row, Tags, check_log, damaged, read_rows

# fmt: off
_PUBLIC = frozenset({
    "round_id", "contribution", "trainer", "compute", "computes", "client", "client_key", "public", "reply_key",
    "ephemeral", "announcement_hash", "hash", "list_hash", "lists", "aborted_by", "invited",
    "federation_hash", "trainers", "revoked",
})
# fmt: on
_OMITTED = frozenset({"signature", "version"})
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
        raise InputError("this is one part of a larger message: inspect needs all parts in one connection's order")
    raise InputError(f"{len(payload)} bytes that are no message: {failures[0]}")


def _frame(frame: msgspec.Struct) -> Plain:
    if not isinstance(frame, Signed):
        plain = {"frame": type(frame).__name__, **_struct(frame)}
        return {**plain, "clients": _ids(frame.clients)} if isinstance(frame, InvitedRound) else plain
    try:
        body = decode_body(frame.body)
    except PeerError as error:
        raise InputError(f"a signed frame whose body is no message: {error.found}") from None
    return {"frame": "Signed", "message": type(body).__name__, **_struct(body)}


def _entries(packed: bytes) -> str:
    return f"{len(packed) // ENTRY_BYTES} entries"


def _ids(packed: bytes) -> list[str]:
    return [packed[at : at + ID_BYTES].hex() for at in range(0, len(packed), ID_BYTES)]


def _struct(value: msgspec.Struct) -> Plain:
    names = [name for name in value.__struct_fields__ if name not in _OMITTED]
    return {name: _plain(name, getattr(value, name)) for name in names}


def _plain(name: str, value: object) -> object:
    match value:
        case Certificate():
            return {"client": actor_id(value.client_key).hex(), **_struct(value)}
        case Signed():
            return _frame(value)
        case SecureSum() | NodeRelease() | LdpReport():
            return {"kind": type(value).__name__, **_struct(value)}
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

    They are not authenticated, for a store by itself does not hold its key.

    Raises:
        UsageError: it is in use, damaged, or a database of something else.
    """
    return [_record(*row) for row in read_store(path)]


def read_store(path: Path, key: bytes | None = None) -> list[Row]:
    """The records of an actor's store. Changes nothing.

    Args:
        key: its identity's `store_key`; None leaves the records unchecked.

    Raises:
        UsageError: it is in use, damaged, or a database of something else.
    """
    try:
        # Without a log beside it nobody has the store open; told so, SQLite leaves no files of its own behind.
        how = "mode=ro" if Path(f"{path}-wal").exists() else "immutable=1"
        with contextlib.closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, timeout=0)
        ) as connection:
            check_log(path)
            return read_rows(connection, path, None if key is None else Tags(key))[0]
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise InputError(f"store {path} is in use: stop its actor first") from None
        if "decode" in str(error):
            raise damaged(path, "a record's kind is no text") from None
        raise InputError(f"{path} is no store of an actor: {error}") from None
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite's own message may quote a damaged page
        raise damaged(path, " ".join(str(error).split())) from None


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
    return _struct(msgspec.msgpack.decode(value, type=client_round.DeclinedRound))


def _message(key: bytes, value: bytes) -> Plain:
    return _frame(decode_frame(value))


def _announcement(key: bytes, value: bytes) -> Plain:
    return {"round_id": key.hex(), **_message(key, value)}


def _client_round(key: bytes, value: bytes) -> Plain:
    stored = msgspec.msgpack.decode(value, type=client_round.StoredRound)
    return {"round_id": key.hex(), **_struct(stored)}


def _seen(key: bytes, value: bytes) -> Plain:
    return {"compute": key.hex(), "epoch": int.from_bytes(value, "big")}


def _epoch(key: bytes, value: bytes) -> Plain:
    return {"epoch": int.from_bytes(key, "big"), "secret": "<hidden>"}


def _session(key: bytes, value: bytes) -> Plain:
    return {"client": key.hex(), **_struct(msgspec.msgpack.decode(value, type=sessions.StoredSession))}


def _compute_round(key: bytes, value: bytes) -> Plain:
    stored = msgspec.msgpack.decode(value, type=compute_round.StoredRound)
    return {**_struct(stored), "entries": _entries(stored.entries)}


def _contribution(key: bytes, value: bytes) -> Plain:
    kept = contribution.restored_kept(compute_round.CONTRIBUTIONS, value)
    ids = {"round_id": key[:ID_BYTES].hex(), "client": key[ID_BYTES:].hex(), "contribution": kept.contribution.hex()}
    return {**ids, "charge": kept.charge, "tags": f"<{len(kept.tags)} bytes>", "y": f"<{len(kept.y)} bytes>"}


def _list(key: bytes, value: bytes) -> Plain:
    stored = msgspec.msgpack.decode(value, type=compute_round.StoredList)
    ids = {"round_id": key[:ID_BYTES].hex(), "compute": key[ID_BYTES:].hex()}
    return {**ids, **_struct(stored), "entries": _entries(stored.entries)}


def _release(key: bytes, value: bytes) -> Plain:
    frame = msgspec.msgpack.decode(value, type=Signed)
    return {"client": key[ID_BYTES:].hex(), **_frame(frame)}


def _seen_charges(key: bytes, value: bytes) -> Plain:
    page = int.from_bytes(key, "big")
    seen = charges.SeenCharges([(charges.TABLE, bytes(len(key)), value)])
    known = {slot: highest for slot in range(charges.PAGE) if (highest := seen.highest(slot))}
    return {"highest_charge_by_slot": {str(page * charges.PAGE + slot): number for slot, number in known.items()}}


def _trainer_round(key: bytes, value: bytes) -> Plain:
    stored = msgspec.msgpack.decode(value, type=trainer_round.StoredRound)
    partials = f"{len(stored.partials)} of {len(stored.request.ask.computes)}"
    return {"round_id": key.hex(), **_struct(stored), "partials": partials, "reply_secret": "<hidden>"}


_KINDS: dict[str, Callable[[bytes, bytes], Plain]] = {
    ledger.TABLE: _charge,
    client_round.DECLINES: _declined,
    client_round.ROUNDS: _client_round,
    client_round.ANNOUNCEMENTS: _announcement,
    federation.FILES: _message,
    keyring.SEEN: _seen,
    keyring.TABLE: _epoch,
    sessions.HELLO: _message,
    sessions.SESSIONS: _session,
    compute_round.ROUNDS: _compute_round,
    compute_round.CONTRIBUTIONS: _contribution,
    compute_round.LISTS: _list,
    charges.TABLE: _seen_charges,
    trainer_round.ROUNDS: _trainer_round,
    trainer_round.RELEASES: _release,
}
