"""Strict MessagePack: what decodes has one encoding only, and nothing else decodes.

msgspec checks types, lengths, tags and trailing bytes while it decodes; the result is then encoded again and must give
the same bytes, which refuses non-canonical integers, duplicate keys and missing trailing fields in one comparison.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from dca_proto.crypto.sealing import Identity, verify
from dca_proto.errors import PeerError
from dca_proto.protocol.params import PROTOCOL_VERSION
from dca_proto.protocol.wire.messages import Body, Frame, Signed

_encoder = msgspec.msgpack.Encoder()
_frames: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)
_bodies: msgspec.msgpack.Decoder[Body] = msgspec.msgpack.Decoder(Body)
_EXPECTED = f"a message of version {PROTOCOL_VERSION} (DESIGN §3)"
_VERSION = bytes([PROTOCOL_VERSION])
T = TypeVar("T")
B = TypeVar("B", bound=Body)

encode = _encoder.encode


def decode_frame(payload: bytes) -> Frame:
    """The frame of a payload from the network. Raises `PeerError("malformed")`."""
    return _decode(_frames, payload)


def decode_body(body: bytes) -> Body:
    """The body of a `Signed`, whatever its kind. Raises `PeerError("malformed")`."""
    return _decode(_bodies, body)


def _decode(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    try:
        message = decoder.decode(data)
        canonical = encode(message) == data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise PeerError("malformed", found=str(error)[:200], expected=_EXPECTED) from None
    if not canonical:
        raise PeerError("malformed", found="a non-canonical encoding", expected="the shortest encoding of each field")
    return message


def sign(identity: Identity, federation_id: bytes, body: Body | bytes) -> Signed:
    """The body, or its encoding, with its sender's signature."""
    encoded = body if isinstance(body, bytes) else encode(body)
    return Signed(encoded, identity.sign(federation_id, _VERSION + encoded))


def body_of(frame: Signed, kind: type[B]) -> B:
    """The body of a signed frame of the expected kind, its signature aside. Raises `PeerError`."""
    body = decode_body(frame.body)
    if not isinstance(body, kind):
        raise PeerError("kind", found=type(body).__name__, expected=kind.__name__)
    return body


def open_signed(frame: Signed, public_key: bytes, federation_id: bytes, kind: type[B]) -> B:
    """The body of a signed frame of the expected kind. Raises `PeerError`."""
    body = body_of(frame, kind)
    verify_signed(frame, public_key, federation_id)
    return body


def verify_signed(frame: Signed, public_key: bytes, federation_id: bytes) -> None:
    """`open_signed` where the body has been decoded before. Raises `PeerError("signature")`."""
    verify(public_key, federation_id, _VERSION + frame.body, frame.signature)
