"""Strict decoding: one encoding for each message, and nothing else decodes."""

from __future__ import annotations

import msgspec
import pytest

from dca_proto.crypto.sealing import Identity
from dca_proto.errors import PeerError
from dca_proto.protocol.wire.codec import decode_body, decode_frame, encode, open_signed, sign
from dca_proto.protocol.wire.kinds import LdpReport, NodeRelease, SecureSum
from dca_proto.protocol.wire.messages import Announcement, Close, Query, Receipt, Signed

RECEIPT = Receipt(bytes(16), bytes(range(16)), bytes(16))
QUERY = Query(bytes(16), bytes(32))
SIGNER, OTHER = Identity(bytes(32)), Identity(bytes([1]) * 32)
HERE, ELSEWHERE = bytes(32), bytes([1]) * 32


def announcement(**parameters: object) -> Announcement:
    """One whose numbers decode, whatever they mean."""
    kind = SecureSum("m", 4, 0, 0, 10)
    return Announcement(
        bytes(16), bytes(16), 1, bytes(32), "sum", parameters, 0, 24, 1.0, 2.0, 1e-6, kind,
        (Signed(b"", bytes(64)),) * 2,
        bytes(32), b"", 1, 2,
    )  # fmt: skip


def test_a_frame_and_a_body_come_back_as_they_were() -> None:
    assert decode_frame(encode(RECEIPT)) == RECEIPT
    assert decode_body(encode(QUERY)) == QUERY


def test_every_single_byte_behind_a_message_is_refused() -> None:
    for tail in range(256):
        with pytest.raises(PeerError, match="malformed"):
            decode_frame(encode(RECEIPT) + bytes((tail,)))


def test_a_message_has_one_encoding() -> None:
    """The same fields with a longer integer, array or binary header decode in MessagePack, and not here."""
    data = encode(RECEIPT)
    for other in (
        data[:1] + b"\xcc\x04" + data[2:],
        b"\xdc\x00\x04" + data[1:],
        data[:2] + b"\xc5\x00\x10" + data[4:],
        data[:2] + b"\xc6\x00\x00\x00\x10" + data[4:],
    ):
        assert msgspec.msgpack.decode(other) == msgspec.msgpack.decode(data)
        with pytest.raises(PeerError, match="non-canonical"):
            decode_frame(other)


def test_a_whole_number_is_no_float_on_the_wire() -> None:
    data = encode(announcement())
    assert decode_body(data) == announcement()
    as_integer = data.replace(b"\xcb\x3f\xf0" + bytes(6), b"\x01", 1)
    assert as_integer != data
    with pytest.raises(PeerError, match="non-canonical"):
        decode_body(as_integer)


@pytest.mark.parametrize("kind", [NodeRelease(), LdpReport("m", 3), SecureSum("m", 4, 2, 1, 10)])
def test_each_kind_of_round_comes_back_as_its_type(kind: object) -> None:
    announced = msgspec.structs.replace(announcement(), kind=kind)
    assert decode_body(encode(announced)) == announced
    assert type(decode_body(encode(announced)).kind) is type(kind)  # type: ignore[union-attr]


@pytest.mark.parametrize("value", [1, 1.5, True, "text", [1.0, "a"], [[1.0, 2.0], [3.0]], []])
def test_parameters_are_scalars_lists_and_tables(value: object) -> None:
    assert decode_body(encode(announcement(x=value))) == announcement(x=value)


@pytest.mark.parametrize("value", [None, b"", {}, [[None]], [[[]]], [{}], msgspec.msgpack.Ext(1, b"")])
def test_parameters_are_nothing_else(value: object) -> None:
    with pytest.raises(PeerError, match="malformed"):
        decode_body(encode(announcement(x=value)))


def test_deep_nesting_is_a_peers_error() -> None:
    with pytest.raises(PeerError, match="malformed"):
        decode_frame(b"\x91" * 1_000_000)


def test_what_is_found_is_cut_to_a_bounded_text() -> None:
    with pytest.raises(PeerError) as caught:
        decode_body(encode(announcement(**{"x" * 60: b"y" * 10_000})))
    assert len(str(caught.value)) < 400


def test_a_signed_body_opens_with_its_signers_key_in_its_federation_as_its_kind() -> None:
    frame = sign(SIGNER, HERE, QUERY)
    assert open_signed(frame, SIGNER.public_key, HERE, Query) == QUERY
    for key, federation, kind, code in (
        (OTHER.public_key, HERE, Query, "signature"),
        (SIGNER.public_key, ELSEWHERE, Query, "signature"),
        (SIGNER.public_key, HERE, Close, "kind"),
    ):
        with pytest.raises(PeerError, match=code):
            open_signed(frame, key, federation, kind)


def test_a_signature_covers_every_byte_of_the_body() -> None:
    frame = sign(SIGNER, HERE, QUERY)
    for position in range(3, len(frame.body)):
        body = frame.body[:position] + bytes((frame.body[position] ^ 1,)) + frame.body[position + 1 :]
        with pytest.raises(PeerError):
            open_signed(Signed(body, frame.signature), SIGNER.public_key, HERE, Query)
