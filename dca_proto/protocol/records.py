"""Decoding of stored records. An unreadable record stops the actor's start with a one-line error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

from dca_proto.errors import PeerError, UsageError
from dca_proto.protocol.wire.codec import decode_frame
from dca_proto.protocol.wire.messages import Frame, Signed

T = TypeVar("T")


Records = Sequence[tuple[str, bytes, bytes]]
"""A store's content: table, key, value."""


def loaded(records: Iterable[tuple[str, bytes, bytes]], table: str, kind: type[T]) -> dict[bytes, T]:
    """Return one table's records by key. Raises `UsageError` as `decoded`."""
    return {key: decoded(table, value, kind) for name, key, value in records if name == table}


def decoded(table: str, value: bytes, kind: type[T]) -> T:
    """Decode a record of one table.

    Raises:
        UsageError: it is damaged, or from another version of this program. Continuing without it could spend twice.
    """
    try:
        return msgspec.msgpack.decode(value, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise unreadable(table, str(error)) from None


def framed(table: str, value: bytes) -> Frame:
    """Decode a record that is an encoded frame. Raises `UsageError` as `decoded`."""
    try:
        return decode_frame(value)
    except PeerError as error:
        raise unreadable(table, str(error)) from None


def signed(table: str, value: bytes) -> Signed:
    """Decode a record that is an encoded signed frame. Raises `UsageError` as `decoded`."""
    frame = framed(table, value)
    if not isinstance(frame, Signed):
        raise unreadable(table, f"a {type(frame).__name__}")
    return frame


def sized(table: str, value: bytes, size: int) -> bytes:
    """Return a record that must have `size` bytes. Raises `UsageError` as `decoded`."""
    if len(value) != size:
        raise unreadable(table, f"{len(value)} bytes")
    return value


def unreadable(table: str, why: str) -> UsageError:
    """Return the error for a record that cannot be read."""
    return UsageError(
        f"a record in the store's table {table!r} cannot be read ({why}): it is damaged, or of another version; "
        "run the version that wrote it, or start with a fresh store (a client enrolled anew), not with an old copy"
    )
