"""MQTT packets, against bytes written by hand from the standard, and cut at every place."""

from __future__ import annotations

import random

import pytest

from dca_proto.errors import TransportError
from dca_proto.runtime.connection import (
    CONNACK,
    PUBACK,
    PUBLISH,
    PacketReader,
    Published,
    connect,
    puback,
    publish,
    read_publish,
    subscribe,
    topic_name,
)


def test_packets_are_those_of_the_standard() -> None:
    assert connect("ab", clean=True, keepalive_s=60, username=None, password=None).hex(" ", -1) == (
        "10 0e 00 04 4d 51 54 54 04 02 00 3c 00 02 61 62"
    )
    with_user = connect("a", clean=False, keepalive_s=258, username="u", password="é")
    assert with_user.hex(" ") == "10 14 00 04 4d 51 54 54 04 c0 01 02 00 01 61 00 01 75 00 02 c3 a9"
    assert subscribe(258, ("a/+", "b")).hex(" ") == "82 0c 01 02 00 03 61 2f 2b 01 00 01 62 01"
    assert publish(258, topic_name("t"), b"\xff", False).hex(" ") == "32 06 00 01 74 01 02 ff"
    assert publish(1, topic_name("t"), b"", True).hex(" ") == "33 05 00 01 74 00 01"
    assert puback(258).hex(" ") == "40 02 01 02"


@pytest.mark.parametrize(("payload", "size"), [(122, "7f"), (123, "80 01"), (16_378, "ff 7f"), (16_379, "80 80 01")])
def test_sizes_have_seven_bits_a_byte(payload: int, size: str) -> None:
    sent = publish(1, topic_name("t"), bytes(payload), False)
    assert sent[1 : 1 + len(bytes.fromhex(size))] == bytes.fromhex(size)
    ((kind, flags, body),) = PacketReader().feed(sent)
    assert (kind, flags) == (PUBLISH, 2)
    assert read_publish(flags, body) == Published("t", bytes(payload), False, 1)


def test_a_stream_may_be_cut_anywhere() -> None:
    """A thousand streams of packets of many sizes, in pieces of many sizes."""
    rng = random.Random(7)
    for _ in range(1000):
        sizes = [rng.choice((0, 1, 119, 122, 123, 300, 16_379)) for _ in range(rng.randrange(1, 5))]
        sent = [publish(number, topic_name("t/é"), rng.randbytes(size), True) for number, size in enumerate(sizes, 1)]
        stream, reader, found = b"".join([b"\x20\x02\x01\x00", *sent, puback(7)]), PacketReader(), []
        while stream:
            piece = rng.choice((1, 2, 3, 100, 5000, 70_000))
            found += reader.feed(stream[:piece])
            stream = stream[piece:]
        assert [found[0], found[-1]] == [(CONNACK, 0, b"\x01\x00"), (PUBACK, 0, b"\x00\x07")]
        read = [read_publish(flags, body) for _, flags, body in found[1:-1]]
        assert [publish(one.number, topic_name(one.topic), one.payload, one.is_retained) for one in read] == sent


@pytest.mark.parametrize("topic", ["", "a/+", "#", "a\0b", "é" * 32_768])
def test_a_topic_that_nobody_may_publish_on_is_refused(topic: str) -> None:
    with pytest.raises(ValueError, match=r"expected text without wildcards|65535 bytes"):
        topic_name(topic)


def test_what_a_broker_may_not_send_is_refused() -> None:
    with pytest.raises(TransportError, match="more than four bytes"):
        list(PacketReader().feed(b"\x30\xff\xff\xff\xff\x01"))
    for flags, body in ((0, b""), (0, b"\x00"), (0, b"\x00\x05topi"), (2, b"\x00\x01t\x00"), (4, b"\x00\x01t\x00\x01")):
        with pytest.raises(TransportError, match="PUBLISH packet"):
            read_publish(flags, body)
    assert read_publish(0, b"\x00\x02\xff\xfex") == Published(None, b"x", False, None)
