"""Strict MessagePack: each message has exactly one encoding, and no other decodes.

msgspec checks types, lengths, tags and trailing bytes while it decodes. The result is then encoded again and must give
the same bytes. This comparison refuses non-canonical integers, duplicate keys and missing trailing fields.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from dca_proto.crypto.sealing import Identity, verify
from dca_proto.errors import PeerError
from dca_proto.protocol.params import PROTOCOL_VERSION
from dca_proto.protocol.wire.messages import Body, Frame, Signed

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError)


class _AnyVersion(msgspec.Struct, array_like=True, tag=1):
    """A `Signed` of any version: its fields are the same in all of them."""

    body: bytes
    signature: bytes
    version: int


_any_version: msgspec.msgpack.Decoder[_AnyVersion] = msgspec.msgpack.Decoder(_AnyVersion)
_encoder = msgspec.msgpack.Encoder()
_frames: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)
_bodies: msgspec.msgpack.Decoder[Body] = msgspec.msgpack.Decoder(Body)
_EXPECTED = f"a message of version {PROTOCOL_VERSION} (DESIGN §3)"
_ONE_VERSION = f"version {PROTOCOL_VERSION}: all members of a federation speak the same one"
_VERSION = bytes([PROTOCOL_VERSION])
T = TypeVar("T")
B = TypeVar("B", bound=Body)

encode = _encoder.encode


def decode_frame(payload: bytes) -> Frame:
    """Decode a payload from the network. Raises `PeerError`: "version" if it is of another one, or "malformed"."""
    try:
        return _decode(_frames, payload)
    except PeerError:
        if (version := _version_of(payload)) not in (None, PROTOCOL_VERSION):
            raise PeerError("version", found=f"a message of version {version}", expected=_ONE_VERSION) from None
        raise


def _version_of(payload: bytes) -> int | None:
    """Return the version of a signed frame, of any version; None if the payload is something else."""
    try:
        return _any_version.decode(payload).version
    except _UNREADABLE:
        return None


def decode_body(body: bytes) -> Body:
    """Decode the body of a `Signed` of any kind. Raises `PeerError("malformed")`."""
    return _decode(_bodies, body)


def _decode(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    try:
        message = decoder.decode(data)
        canonical = encode(message) == data
    except _UNREADABLE as error:
        raise PeerError("malformed", found=str(error)[:200], expected=_EXPECTED) from None
    if not canonical:
        raise PeerError("malformed", found="a non-canonical encoding", expected="the shortest encoding of each field")
    return message


def sign(identity: Identity, federation_id: bytes, body: Body | bytes) -> Signed:
    """Sign a body, or its encoding."""
    encoded = body if isinstance(body, bytes) else encode(body)
    return Signed(encoded, identity.sign(federation_id, _VERSION + encoded))


def body_of(frame: Signed, kind: type[B]) -> B:
    """Decode a signed frame of the expected kind, without checking its signature. Raises `PeerError`."""
    body = decode_body(frame.body)
    if not isinstance(body, kind):
        raise PeerError("kind", found=type(body).__name__, expected=kind.__name__)
    return body


def open_signed(frame: Signed, public_key: bytes, federation_id: bytes, kind: type[B]) -> B:
    """Decode a signed frame of the expected kind, and check its signature. Raises `PeerError`."""
    body = body_of(frame, kind)
    verify_signed(frame, public_key, federation_id)
    return body


def verify_signed(frame: Signed, public_key: bytes, federation_id: bytes) -> None:
    """Check the signature of a frame whose body is already decoded. Raises `PeerError("signature")`."""
    verify(public_key, federation_id, _VERSION + frame.body, frame.signature)
