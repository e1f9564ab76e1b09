"""The records of a store, read back: an unreadable record stops the start with a one-line error."""

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
    """One table, by key. Raises `UsageError` as `decoded`."""
    return {key: decoded(table, value, kind) for name, key, value in records if name == table}


def decoded(table: str, value: bytes, kind: type[T]) -> T:
    """A record of one table, as it was stored.

    Raises:
        UsageError: it is damaged, or another version of this program wrote it. To go on without it could spend twice.
    """
    try:
        return msgspec.msgpack.decode(value, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise unreadable(table, str(error)) from None


def framed(table: str, value: bytes) -> Frame:
    """A record of one table that is an encoded frame. Raises `UsageError` as `decoded`."""
    try:
        return decode_frame(value)
    except PeerError as error:
        raise unreadable(table, str(error)) from None


def signed(table: str, value: bytes) -> Signed:
    """A record of one table that is an encoded signed frame. Raises `UsageError` as `decoded`."""
    frame = framed(table, value)
    if not isinstance(frame, Signed):
        raise unreadable(table, f"a {type(frame).__name__}")
    return frame


def sized(table: str, value: bytes, size: int) -> bytes:
    """A record of one table that is so many plain bytes. Raises `UsageError` as `decoded`."""
    if len(value) != size:
        raise unreadable(table, f"{len(value)} bytes")
    return value


def unreadable(table: str, why: str) -> UsageError:
    """The error of a record that cannot be read."""
    return UsageError(
        f"a record in the store's table {table!r} cannot be read ({why}): it is damaged, or of another version; "
        "run the version that wrote it, or start with a fresh store (a client enrolled anew), not with an old copy"
    )
