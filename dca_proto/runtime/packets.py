"""Packets of MQTT 3.1.1, encoded and decoded. Section numbers refer to the OASIS standard of 2014.

A packet is a head byte (kind and flags), the size of its body in one to four bytes of seven bits each, and the body.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from dca_proto.errors import TransportError
from dca_proto.runtime.connection import PACKET_BYTES_MAX, TOPIC_BYTES_MAX, Connect, Published

CONNACK, PUBLISH, PUBACK, SUBACK, PINGRESP = 2, 3, 4, 9, 13
PINGREQ, DISCONNECT = b"\xc0\x00", b"\xe0\x00"
_QOS = 1
_LEVEL = 4  # the protocol level of MQTT 3.1.1
_CLEAN, _WILL, _PASSWORD, _USERNAME = 0x02, 0x04, 0x40, 0x80
_SIZE_BYTES_MAX = 4
_REFUSALS = {
    0: (0, "success"),
    1: (132, "unsupported protocol version"),
    2: (133, "client identifier not valid"),
    3: (136, "server unavailable"),
    4: (134, "bad user name or password"),
    5: (135, "not authorized"),
}
"""The return codes of MQTT 3.1.1, each with its code and name in MQTT 5."""


class ConnAck(msgspec.Struct, frozen=True):
    """The broker's answer to CONNECT.

    Attributes:
        code: the reason code of MQTT 5; 0 means accepted. name: of the code.
        unacknowledged_max: how many publishes may be under way. keepalive_s: None if it is ours.
    """

    code: int
    name: str
    unacknowledged_max: int = 65_535
    keepalive_s: int | None = None


class PubAck(msgspec.Struct, frozen=True):
    """The broker has taken a publish, or refuses it (`code` 128 and above)."""

    number: int
    code: int = 0
    name: str = ""


class SubAck(msgspec.Struct, frozen=True):
    """The codes of the filters of a SUBSCRIBE packet."""

    codes: tuple[int, ...]


class Disconnect(msgspec.Struct, frozen=True):
    """The broker ends the connection, for this reason."""

    reason: str


class TooLarge(msgspec.Struct, frozen=True):
    """A message that is larger than any of ours. `number` is to be acknowledged, else the broker sends it again."""

    number: int | None


Packet = ConnAck | PubAck | SubAck | Published | TooLarge | Disconnect | None
"""A packet from the broker; None for one without content."""


class Codec(Protocol):
    """Packets of one version of MQTT."""

    def connect(self, hello: Connect) -> bytes:
        """Return a CONNECT packet."""

    def subscribe(self, number: int, topic_filters: Sequence[str]) -> bytes:
        """Return a SUBSCRIBE packet."""

    def publish(self, number: int, topic: str, payload: bytes, retain: bool, expiry_s: int | None) -> bytes:
        """Return a PUBLISH packet of QoS 1. MQTT 3.1.1 has no `expiry_s`."""

    def puback(self, number: int) -> bytes:
        """Return a PUBACK packet."""

    def read(self, packet: bytes, body: int) -> Packet:
        """Decode a packet whose body begins at `body`. Raises `TransportError` if it is malformed."""


class Codec311:
    """The packets of MQTT 3.1.1."""

    def connect(self, hello: Connect) -> bytes:
        settings = hello.settings
        clean, keepalive_s = hello.session_expiry_s == 0, settings.keepalive_s
        return connect(
            hello.client_id,
            clean=clean,
            keepalive_s=keepalive_s,
            username=hello.username,
            password=hello.password,
            will=hello.will,
        )

    def subscribe(self, number: int, topic_filters: Sequence[str]) -> bytes:
        return subscribe(number, topic_filters)

    def publish(self, number: int, topic: str, payload: bytes, retain: bool, expiry_s: int | None) -> bytes:
        return publish(number, topic, payload, retain)

    def puback(self, number: int) -> bytes:
        return puback(number)

    def read(self, packet: bytes, body: int) -> Packet:
        kind = packet[0] >> 4
        if kind == PUBLISH:
            return read_publish(packet[0] & 15, packet[body:])
        if kind == PUBACK:
            return PubAck(int.from_bytes(packet[body : body + 2], "big"))
        if kind not in (CONNACK, SUBACK):
            return None
        if len(packet) - body < 2:
            raise TransportError("the broker sent an answer without a code; check that it speaks MQTT")
        if kind == SUBACK:
            return SubAck(tuple(packet[body + 2 :]))
        code = packet[body + 1]
        return ConnAck(*_REFUSALS.get(code, (128, f"unknown code {code}")))


def connect(
    client_id: str,
    *,
    clean: bool,
    keepalive_s: int,
    username: str | None,
    password: str | None,
    will: str | None = None,
) -> bytes:
    """Return a CONNECT packet (3.1), with an empty will on that topic. Raises `ValueError` for too long a text."""
    given = [] if will is None else [will, ""]
    given += [text for text in (username, password) if text is not None]
    flags = clean * _CLEAN | (username is not None) * _USERNAME | (password is not None) * _PASSWORD
    flags |= (will is not None) * _WILL
    head = _text("MQTT") + bytes((_LEVEL, flags)) + keepalive_s.to_bytes(2, "big")
    return _packet(0x10, head + b"".join(map(_text, (client_id, *given))))


def subscribe(number: int, topic_filters: Sequence[str]) -> bytes:
    """Return a SUBSCRIBE packet (3.8)."""
    body = b"".join(_text(topic_filter) + bytes((_QOS,)) for topic_filter in topic_filters)
    return _packet(0x82, number.to_bytes(2, "big") + body)


def publish(number: int, topic: str, payload: bytes, retain: bool) -> bytes:
    """Return a PUBLISH packet (3.3) of QoS 1. Raises `ValueError` for a topic that is too long."""
    return _packet(0x30 | _QOS << 1 | retain, _text(topic) + number.to_bytes(2, "big") + payload)


def puback(number: int) -> bytes:
    """Return a PUBACK packet (3.4)."""
    return b"\x40\x02" + number.to_bytes(2, "big")


def read_publish(flags: int, body: bytes) -> Published:
    """Decode a PUBLISH packet. Raises `TransportError` if it is malformed or of QoS 2."""
    ends = 2 + int.from_bytes(body[:2], "big")
    starts = ends + 2 if flags & 0b0110 else ends
    if len(body) < starts or flags & 0b0100:  # no subscription asks for QoS 2
        raise TransportError(f"the broker sent a PUBLISH packet of {len(body)} bytes with flags {flags:#x}")
    try:
        topic = body[2:ends].decode()
    except UnicodeDecodeError:
        topic = None
    number = int.from_bytes(body[ends:starts], "big") if starts > ends else None
    return Published(topic, body[starts:], bool(flags & 1), number)


class PacketReader:
    """Splits a stream of bytes into packets.

    A PUBLISH packet of more than `bytes_max` bytes is a `TooLarge`: its bytes are not kept. Any other one is an error.
    """

    def __init__(self, bytes_max: int = PACKET_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._rest = bytearray()
        self._wanted = 0  # length at which `_rest` holds a whole packet
        self._skipping = 0  # bytes left of a packet that is too large
        self._skip_to = 0  # where it ends

    def feed(self, data: bytes) -> Iterator[tuple[bytes, int] | TooLarge]:
        """Yield each packet that is now complete, and where its body begins. Raises `TransportError` if not MQTT."""
        if self._skipping:
            self._skipping, data = max(0, self._skipping - len(data)), data[self._skipping :]
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return
            data = bytes(self._rest)
            self._rest.clear()
        at = 0
        while True:
            body, ends = _body_of(data, at)
            if body and ends - at > self._bytes_max:
                number, ends = self._too_large(data, at, body, ends)
                if ends > len(data):
                    break
                yield TooLarge(number)
                at = min(self._skip_to, len(data))
                self._skipping = self._skip_to - at
                continue
            if ends > len(data) or not body:
                break
            yield data[at:ends], body - at
            at = ends
        self._rest += data[at:]
        self._wanted = ends - at

    def _too_large(self, data: bytes, at: int, body: int, ends: int) -> tuple[int | None, int]:
        """Return the packet's number, and up to where its bytes are needed to know that."""
        if data[at] >> 4 != PUBLISH:
            raise TransportError(
                f"the broker sent a packet of {ends - at:,} bytes, expected at most {self._bytes_max:,}"
            )
        self._skip_to = ends
        topic_ends = body + 2 + int.from_bytes(data[body : body + 2], "big")
        if len(data) < body + 2 or len(data) < topic_ends + 2:
            return None, max(body + 2, topic_ends + 2)
        number = int.from_bytes(data[topic_ends : topic_ends + 2], "big") if data[at] & 0b0110 else None
        return number, topic_ends + 2


def _body_of(data: bytes, at: int) -> tuple[int, int]:
    """Return where the body of the packet at `at` begins and ends; (0, 0) if its size is incomplete."""
    size = 0
    for place in range(at + 1, min(at + 1 + _SIZE_BYTES_MAX, len(data))):
        low = data[place]
        size |= (low & 127) << 7 * (place - at - 1)
        if low < 128:
            return place + 1, place + 1 + size
    if len(data) - at > _SIZE_BYTES_MAX:
        raise TransportError("the broker sent a packet whose size has more than four bytes; check that it speaks MQTT")
    return 0, 0


def _packet(head: int, body: bytes) -> bytes:
    size, left = bytearray((head,)), len(body)
    while left > 127:
        size.append(left & 127 | 128)
        left >>= 7
    size.append(left)
    return bytes(size) + body


def _text(value: str) -> bytes:
    data = value.encode()
    if len(data) > TOPIC_BYTES_MAX:
        raise ValueError(f"MQTT carries texts of {TOPIC_BYTES_MAX} bytes: found {len(data)}")
    return len(data).to_bytes(2, "big") + data
