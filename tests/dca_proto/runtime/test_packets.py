"""MQTT packets, against bytes written by hand from the standard, and cut at every place."""

from __future__ import annotations

import random

import pytest

from dca_proto.errors import TransportError
from dca_proto.runtime.connection import Published, check_topic
from dca_proto.runtime.packets import (
    Codec,
    Codec311,
    ConnAck,
    PacketReader,
    PubAck,
    TooLarge,
    connect,
    puback,
    publish,
    read_publish,
    subscribe,
)
from dca_proto.runtime.packets5 import Codec5


def test_packets_are_those_of_the_standard() -> None:
    assert connect("ab", clean=True, keepalive_s=60, username=None, password=None).hex(" ", -1) == (
        "10 0e 00 04 4d 51 54 54 04 02 00 3c 00 02 61 62"
    )
    with_user = connect("a", clean=False, keepalive_s=258, username="u", password="é")
    assert with_user.hex(" ") == "10 14 00 04 4d 51 54 54 04 c0 01 02 00 01 61 00 01 75 00 02 c3 a9"
    assert subscribe(258, ("a/+", "b")).hex(" ") == "82 0c 01 02 00 03 61 2f 2b 01 00 01 62 01"
    assert publish(258, "t", b"\xff", False).hex(" ") == "32 06 00 01 74 01 02 ff"
    assert publish(1, "t", b"", True).hex(" ") == "33 05 00 01 74 00 01"
    assert puback(258).hex(" ") == "40 02 01 02"


@pytest.mark.parametrize(("payload", "size"), [(122, "7f"), (123, "80 01"), (16_378, "ff 7f"), (16_379, "80 80 01")])
def test_sizes_have_seven_bits_a_byte(payload: int, size: str) -> None:
    sent = publish(1, "t", bytes(payload), False)
    assert sent[1 : 1 + len(bytes.fromhex(size))] == bytes.fromhex(size)
    ((packet, body),) = PacketReader().feed(sent)
    assert (packet, body) == (sent, 1 + len(bytes.fromhex(size)))
    assert Codec311().read(packet, body) == Published("t", bytes(payload), False, 1)


CODECS: dict[str, Codec] = {"3.1.1": Codec311(), "5": Codec5()}


@pytest.mark.parametrize("version", CODECS)
def test_a_stream_may_be_cut_anywhere(version: str) -> None:
    """A thousand streams of packets of many sizes, in pieces of many sizes."""
    rng, codec = random.Random(7), CODECS[version]
    connack = b"\x20\x02\x01\x00" if version == "3.1.1" else b"\x20\x03\x01\x00\x00"
    for _ in range(1000):
        sizes = [rng.choice((0, 1, 119, 122, 123, 300, 16_379)) for _ in range(rng.randrange(1, 5))]
        sent = [codec.publish(number, "t/é", rng.randbytes(size), True, None) for number, size in enumerate(sizes, 1)]
        stream, reader, found = b"".join([connack, *sent, codec.puback(7)]), PacketReader(), []
        while stream:
            piece = rng.choice((1, 2, 3, 100, 5000, 70_000))
            found += [codec.read(*each) for each in reader.feed(stream[:piece])]
            stream = stream[piece:]
        assert isinstance(found[0], ConnAck)
        assert found[0].code == 0
        assert isinstance(found[-1], PubAck)
        assert found[-1].number == 7
        read = [codec.publish(one.number, one.topic, one.payload, one.is_retained, None) for one in found[1:-1]]
        assert read == sent


@pytest.mark.parametrize("piece", [3, 100, 5000])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_that_is_too_large_is_skipped_and_its_number_known(qos: int, piece: int) -> None:
    """Those around it are read, wherever the stream is cut."""
    rng, most = random.Random(piece), 1000
    for _ in range(30):
        large = bytearray(publish(258, "t/" + "x" * rng.randrange(300), bytes(rng.randrange(1000, 9000)), False))
        large[0] = 0x30 | qos << 1
        expected = TooLarge(258) if qos else TooLarge(None)
        small = [publish(number, "t", b"whole", False) for number in (1, 2, 3)]
        stream = small[0] + large + small[1] + large + large + small[2]
        reader, found = PacketReader(most), []
        for start in range(0, len(stream), piece):
            fed = reader.feed(stream[start : start + piece])
            found.extend(each if isinstance(each, TooLarge) else each[0] for each in fed)
        numbered = [one.number if isinstance(one, TooLarge) and not qos else one for one in found]
        assert [small[0], small[1], small[2]] == [one for one in found if not isinstance(one, TooLarge)]
        assert [index for index, one in enumerate(numbered) if one not in small] == [1, 3, 4]
        assert not qos or [one for one in found if isinstance(one, TooLarge)] == [expected] * 3
        assert len(reader._rest) <= most


def test_an_answer_that_is_too_large_is_refused() -> None:
    with pytest.raises(TransportError, match="a packet of 200,000,005 bytes, expected at most"):
        list(PacketReader().feed(b"\x20\x80\x84\xaf\x5f"))


@pytest.mark.parametrize("topic", ["", "a/+", "#", "a\0b", "é" * 32_768])
def test_a_topic_that_nobody_may_publish_on_is_refused(topic: str) -> None:
    with pytest.raises(ValueError, match=r"expected text without wildcards|65535 bytes"):
        check_topic(topic)


def test_what_a_broker_may_not_send_is_refused() -> None:
    with pytest.raises(TransportError, match="more than four bytes"):
        list(PacketReader().feed(b"\x30\xff\xff\xff\xff\x01"))
    for flags, body in ((0, b""), (0, b"\x00"), (0, b"\x00\x05topi"), (2, b"\x00\x01t\x00"), (4, b"\x00\x01t\x00\x01")):
        with pytest.raises(TransportError, match="PUBLISH packet"):
            read_publish(flags, body)
        in_5 = body + b"\x00" if flags else body
        with pytest.raises(TransportError, match="malformed packet"):
            Codec5().read(bytes([0x30 | flags, len(in_5)]) + in_5, 2)
    assert Codec5().read(b"\x32\x08\x00\x02\xff\xfe\x01\x02\x00x", 2) == Published(None, b"", False, 258)
    assert read_publish(0, b"\x00\x02\xff\xfex") == Published(None, b"x", False, None)
