"""`dca inspect` shows the contents of a message or a store, without secrets.

Bytes are shown only for fields in a list of ids, public keys and hashes. All other bytes (ciphertexts, masked vectors,
sums, tags, keys) appear as their size: what is not known to be public counts as secret.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from codecs import BOM_UTF8
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from dca_proto.cli.options import Json
from dca_proto.cli.output import result_console, say
from dca_proto.cli.status import actor_of
from dca_proto.crypto.masks import ENTRY_BYTES
from dca_proto.crypto.sealing import ID_BYTES, actor_id
from dca_proto.errors import InputError, PeerError, UsageError
from dca_proto.protocol import charges, contribution, federation, keyring, ledger, own_session, sessions
from dca_proto.protocol.client import round as client_round
from dca_proto.protocol.compute import round as compute_round
from dca_proto.protocol.trainer import round as trainer_round
from dca_proto.protocol.wire.codec import decode_body, decode_frame
from dca_proto.protocol.wire.fields import Signed
from dca_proto.protocol.wire.kinds import Kind, name_of
from dca_proto.protocol.wire.messages import Certificate, InvitedRound
from dca_proto.results.figure import about
from dca_proto.runtime.files import STDOUT, open_input, read_input, unreadable, write_json
from dca_proto.runtime.parts import Assembler
from dca_proto.runtime.store_check import MAGIC, STORE_BYTES_MAX, read_store
from dca_proto.wording import JsonObject, moment, printable

EXAMPLES = """Examples:

  dca inspect client.db                        an actor's store; the actor may run
  dca inspect client.db --json -               the same as JSON
  dca inspect announcement.bin                 a message, as sent or as the broker carries it
  dca inspect --hex 9301c4...                  a message in hexadecimal or base64

Keys, ciphertexts, shares and sums appear as their sizes; secrets are never shown.
"""
_FILE_BYTES_MAX = 1 << 28
# fmt: off
_PUBLIC = frozenset({
    "round_id", "contribution", "trainer", "compute", "computes", "client", "client_key", "public", "reply_key",
    "ephemeral", "announcement_hash", "hash", "list_hash", "lists", "aborted_by", "invited",
    "federation_hash", "trainers", "revoked",
})
# fmt: on
_OMITTED = frozenset({"signature", "version"})
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError, PeerError, UsageError)


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record of a store, with its decoded fields beside these."""

    kind: Annotated[str, about("The type of the record.")]
    size: Annotated[str, about("Of its content.")]
    actor: Annotated[str, about("The owner's id, in a shared store.")] = ""
    unreadable: Annotated[str, about("Why the content cannot be shown.")] = ""


class Frame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message, with its fields beside these."""

    frame: Annotated[str, about("The outermost type.")]
    message: Annotated[str, about("The type of a signed frame's body.")] = ""


OUTPUT = Frame | list[Record]


def inspect(
    file: Annotated[Path | None, typer.Argument(help="A store, or a message: bytes, hexadecimal or base64.")] = None,
    hex_text: Annotated[str | None, typer.Option("--hex", help="A message in hexadecimal or base64.")] = None,
    json_to: Json = None,
) -> None:
    """Show the contents of a message or of an actor's store, without secrets."""
    console = result_console(json_to)
    if (file is None) == (hex_text is None):
        raise UsageError("give a file, or --hex with a message; see `dca inspect --help`")
    contents = _describe_file(file) if file is not None else describe_message(_decode_text(hex_text or ""))
    write_json(contents, json_to)
    if json_to == STDOUT:
        return
    for part in contents if isinstance(contents, list) else [contents]:
        _print(console, part)
    if file is not None and contents == []:
        say(console, "empty", _empty(file))


def _empty(store: Path) -> str:
    """Return a sentence on a store without records, with its actor."""
    actor = actor_of(store)
    if actor is None:
        return f"{store} is a store without records; no *.toml beside it names it as the store of an actor"
    path, role = actor
    return f"{store}, the store of {path} ({role}), has no records yet: dca status {path} shows whether the actor runs"


def _describe_file(file: Path) -> JsonObject | list[JsonObject]:
    with open_input(file, bytes_max=STORE_BYTES_MAX) as opened:
        try:
            head = opened.read(len(MAGIC))
        except OSError as error:
            raise unreadable(file, error) from None
    if head == MAGIC:
        return describe_store(file)
    data = read_input(file, bytes_max=_FILE_BYTES_MAX).removeprefix(BOM_UTF8)
    if data.strip().startswith((b"role = ", b"# Identity")):
        raise InputError(f"{file} is a key file, which is secret: `dca keygen` printed its public key")
    try:
        return describe_message(_decode_text(data.decode("ascii")) if data.isascii() else data)
    except UsageError as error:
        raise InputError(f"{file}: {error}") from None


def _decode_text(text: str) -> bytes:
    """Decode hexadecimal or base64. Raises `UsageError` for anything else."""
    compact = "".join(text.split())
    with contextlib.suppress(ValueError):
        return bytes.fromhex(compact)
    try:
        return base64.b64decode(compact, validate=True)
    except (binascii.Error, ValueError):
        raise UsageError("expected a message in hexadecimal or base64, found neither") from None


def _print(console: Console, plain: JsonObject) -> None:
    """Print one object as a table of names and values; nested fields get dotted names."""
    fields = Table(box=None, pad_edge=False, show_header=False)
    fields.add_column(no_wrap=True, style="bold")
    fields.add_column(overflow="fold")
    for name, value in _flattened("", plain):
        fields.add_row(name, str(value))
    console.print(fields)
    console.print()


def _flattened(prefix: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        return [pair for key, inner in value.items() for pair in _flattened(f"{prefix}.{key}".lstrip("."), inner)]
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return [pair for index, item in enumerate(value) for pair in _flattened(f"{prefix}[{index}]", item)]
    return [(prefix, ", ".join(map(str, value)) if isinstance(value, list) else value)]


# --- messages ---------------------------------------------------------------------------------------------------------


def describe_message(payload: bytes) -> JsonObject:
    """Return the fields of a message, as sent or as a broker carries it in one part. Raises `UsageError`."""
    whole = Assembler().add("", payload)
    failures = []
    for candidate in (payload, whole):
        if candidate is not None:
            try:
                return _frame(decode_frame(candidate))
            except PeerError as error:
                failures.append(str(error.found))
    if payload[:1] == b"\x01" and whole is None:
        raise InputError("found one part of a larger message; expected a whole message")
    raise InputError(f"{len(payload)} bytes that are not a message: {failures[0]}")


def _frame(frame: msgspec.Struct) -> JsonObject:
    if not isinstance(frame, Signed):
        plain = {"frame": type(frame).__name__, **_struct(frame)}
        return {**plain, "clients": _ids(frame.clients)} if isinstance(frame, InvitedRound) else plain
    try:
        body = decode_body(frame.body)
    except PeerError as error:
        raise InputError(f"the body of a signed frame is not a message: {error.found}") from None
    return {"frame": "Signed", "message": type(body).__name__, **_struct(body)}


def _ids(packed: bytes) -> list[str]:
    return [packed[at : at + ID_BYTES].hex() for at in range(0, len(packed), ID_BYTES)]


def _struct(value: msgspec.Struct) -> JsonObject:
    return {name: _plain(name, getattr(value, name)) for name in value.__struct_fields__ if name not in _OMITTED}


def _plain(name: str, value: object) -> object:
    match value:
        case Certificate():
            return {"client": actor_id(value.client_key).hex(), **_struct(value)}
        case Signed():
            return _frame(value)
        case msgspec.Struct():
            tag = {"kind": name_of(value)} if isinstance(value, Kind) else {}
            return {**tag, **_struct(value)}
        case bytes():
            size = f"{len(value) // ENTRY_BYTES} entries" if name == "entries" else f"<{len(value)} bytes>"
            return value.hex() if name in _PUBLIC else size
        case tuple() | list():
            return [_plain(name, item) for item in value]
        case dict():
            return {str(key): _plain(str(key), item) for key, item in value.items()}
        case int() if name.endswith(("_by_ms", "expires_ms")) or name == "at_ms":
            return moment(value)
        case str():
            return printable(value)
        case _:
            return value


# --- stores -----------------------------------------------------------------------------------------------------------


def describe_store(path: Path) -> list[JsonObject]:
    """Return one object for each record of an actor's store: ``actor`` (in shared stores), ``kind`` and the contents.

    The records are not authenticated, since a store does not contain its key. Raises as `read_store`.
    """
    return [_record(*row) for row in read_store(path)]


def _record(namespace: bytes, kind: str, key: bytes, value: bytes) -> JsonObject:
    owner = {"actor": namespace.hex()} if namespace else {}
    try:
        fields = _content(kind, key, value)
    except _UNREADABLE as error:
        fields = {"unreadable": str(error)[:200]}
    fields = {"round_kind" if name == "kind" else name: field for name, field in fields.items()}  # of an announcement
    return {**owner, "kind": kind, **fields, "size": f"{len(value)} bytes"}


def _content(kind: str, key: bytes, value: bytes) -> JsonObject:
    """Return the fields of a record of a known kind; none for an unknown kind."""
    if kind in _DESCRIBERS:
        return _DESCRIBERS[kind](key, value)
    if kind not in _RECORD_TYPES:
        return {}
    names, record_type = _RECORD_TYPES[kind]
    ids = {name: key[place * ID_BYTES :][:ID_BYTES].hex() for place, name in enumerate(names) if name}
    record = decode_frame(value) if record_type is None else msgspec.msgpack.decode(value, type=record_type)
    return {**ids, **(_frame(record) if record_type in (None, Signed) else _struct(record))}


def _contribution(key: bytes, value: bytes) -> JsonObject:
    kept = contribution.restore_contribution(compute_round.CONTRIBUTIONS, value)
    ids = {"round_id": key[:ID_BYTES].hex(), "client": key[ID_BYTES:].hex(), "contribution": kept.contribution.hex()}
    return {**ids, "charge": kept.charge, "tags": f"<{len(kept.tags)} bytes>", "y": f"<{len(kept.y)} bytes>"}


def _seen_charges(key: bytes, value: bytes) -> JsonObject:
    page = int.from_bytes(key, "big")
    seen = charges.SeenCharges([(charges.TABLE, bytes(len(key)), value)])
    numbers = {page * charges.PAGE + slot: number for slot in range(charges.PAGE) if (number := seen.highest(slot))}
    return {"highest_charge_by_slot": {str(slot): number for slot, number in numbers.items()}}


def _trainer_round(key: bytes, value: bytes) -> JsonObject:
    stored = msgspec.msgpack.decode(value, type=trainer_round.StoredTrainerRound)
    partials = f"{len(stored.partials)} of {len(stored.request.computes)}"
    return {"round_id": key.hex(), **_struct(stored), "partials": partials, "reply_secret": "<hidden>"}


_RECORD_TYPES: dict[str, tuple[tuple[str, ...], Any]] = {
    ledger.TABLE: ((), ledger.Charge),
    client_round.DECLINES: ((), client_round.DeclinedRound),
    client_round.ROUNDS: (("round_id",), client_round.StoredClientRound),
    client_round.ANNOUNCEMENTS: (("round_id",), None),
    federation.FILES: ((), None),
    own_session.HELLO: ((), None),
    sessions.SESSIONS: (("client",), sessions.StoredSession),
    compute_round.ROUNDS: ((), compute_round.StoredComputeRound),
    compute_round.LISTS: (("round_id", "compute"), compute_round.StoredList),
    trainer_round.RELEASES: (("", "client"), Signed),
}
"""By kind of record: the names of the ids in its key, and its type; None for a message."""
_DESCRIBERS: dict[str, Callable[[bytes, bytes], JsonObject]] = {
    keyring.SEEN: lambda key, value: {"compute": key.hex(), "epoch": int.from_bytes(value, "big")},
    keyring.TABLE: lambda key, value: {"epoch": int.from_bytes(key, "big"), "secret": "<hidden>"},
    compute_round.CONTRIBUTIONS: _contribution,
    charges.TABLE: _seen_charges,
    trainer_round.ROUNDS: _trainer_round,
}
