"""One MQTT 3.1.1 connection over TCP or TLS, from CONNECT to its end. It is never reused.

The second half of the module encodes and decodes packets. Section numbers refer to the OASIS standard of 2014. A packet
is a head byte (kind and flags), the size of its body in one to four bytes of seven bits each, and the body.

Why no library: those for 3.1.1 spend 60 to 140 µs of Python on each packet, as much as all of a client's cryptography
for a round. The compiled ones support only version 5, which the embedded broker does not.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Callable, Iterator, Sequence

import msgspec

from dca_proto.errors import TransportError

_GRACE_S = 1.0
_ANSWER_BYTES = 2  # a CONNACK is this long, a SUBACK longer
_FILTERS_MAX = 256  # in one SUBSCRIBE; a gateway has thousands


class Connection(asyncio.Protocol):
    """A connection to a broker.

    Packets sent within one turn of the event loop are written together. The connection passes each message that arrives
    to `deliver`, and acknowledges it once `deliver` has returned. It calls `acknowledged` with the number of each
    publish that the broker has acknowledged. The future `lost` resolves to the reason, in words, when the connection
    ends.
    """

    def __init__(self, deliver: Callable[[Published], None], acknowledged: Callable[[int], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[str] = self._loop.create_future()
        self._deliver = deliver
        self._acknowledged = acknowledged
        self._transport: asyncio.Transport | None = None
        self._packets = PacketReader()
        self._unwritten: list[bytes] = []
        self._answers: asyncio.Queue[bytes | None] = asyncio.Queue()  # bodies of CONNACK and SUBACK; None at the end
        self._is_heard = True  # whether anything arrived since the last keepalive check
        self._keepalive: asyncio.TimerHandle | None = None

    async def open(self, host: str, port: int, tls: ssl.SSLContext | None, hello: bytes, keepalive_s: int) -> int:
        """Connect with the CONNECT packet `hello`. Return the broker's return code; 0 means accepted.

        Raises `OSError` if no connection could be made, `TransportError` if it was lost.
        """
        await self._loop.create_connection(lambda: self, host, port, ssl=tls)
        self.send(hello)
        code = (await self._answer("connection lost while connecting"))[1]
        self._keepalive = self._loop.call_later(keepalive_s, self._keep_alive, keepalive_s)
        return code

    async def subscribe(self, topic_filters: Sequence[str]) -> bytes:
        """Subscribe to any number of filters, in packets of limited size. Return the return code of each.

        Raises `TransportError` if the connection was lost.
        """
        starts = range(0, len(topic_filters), _FILTERS_MAX)
        for number, start in enumerate(starts, 1):
            self.send(subscribe(number, topic_filters[start : start + _FILTERS_MAX]))
        return b"".join([(await self._answer("connection lost while subscribing"))[2:] for _ in starts])

    def send(self, packet: bytes) -> None:
        """Queue a packet; all packets of this turn of the event loop are written together."""
        if not self._unwritten:
            self._loop.call_soon(self._flush)
        self._unwritten.append(packet)

    async def leave(self) -> None:
        """Disconnect, even before the connection is complete. Waits at most a second for the connection to end."""
        transport = self._transport
        if transport is None:
            return
        self.send(DISCONNECT)
        self._flush()
        transport.close()
        await asyncio.wait([self.lost], timeout=_GRACE_S)
        transport.abort()

    # --- callbacks of asyncio.Protocol ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._is_heard = True
        try:
            for kind, flags, body in self._packets.feed(data):
                self._take(kind, flags, body)
        except TransportError as error:
            self._give_up(str(error))

    def connection_lost(self, error: Exception | None) -> None:
        if self._keepalive is not None:
            self._keepalive.cancel()
        if not self.lost.done():
            self.lost.set_result("it ended" if error is None else in_words(error))
            self._answers.put_nowait(None)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _take(self, kind: int, flags: int, body: bytes) -> None:
        if kind == PUBLISH:
            published = read_publish(flags, body)
            self._deliver(published)
            if published.number is not None:
                self.send(puback(published.number))
        elif kind == PUBACK:
            self._acknowledged(int.from_bytes(body[:2], "big"))
        elif kind in (CONNACK, SUBACK):
            self._answers.put_nowait(body)

    async def _answer(self, otherwise: str) -> bytes:
        """Wait for the broker's next answer."""
        body = await self._answers.get()
        if body is None:
            raise TransportError(f"{otherwise}: {self.lost.result()}")
        if len(body) < _ANSWER_BYTES:
            raise TransportError("the broker sent an answer without a code; check that it speaks MQTT")
        return body

    def _keep_alive(self, keepalive_s: int) -> None:
        """Ping the broker. If nothing has arrived since the last ping, end the connection."""
        if not self._is_heard:
            self._give_up(f"the broker was silent for {keepalive_s} s")
            return
        self._is_heard = False
        self.send(PINGREQ)
        self._keepalive = self._loop.call_later(keepalive_s, self._keep_alive, keepalive_s)

    def _flush(self) -> None:
        data, self._unwritten = b"".join(self._unwritten), []
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _give_up(self, reason: str) -> None:
        if self._transport is not None:
            self._transport.abort()
        self.connection_lost(TransportError(reason))


def in_words(error: Exception) -> str:
    """Return the reason of an operating system or TLS error, without numbers and addresses."""
    known = re.search(r"\[Errno (\d+)\]", str(error))  # the first, if several addresses were tried
    reason = os.strerror(int(known[1])) if known else getattr(error, "strerror", None) or str(error)
    return reason[:1].lower() + reason[1:]


CONNACK, PUBLISH, PUBACK, SUBACK, PINGRESP = 2, 3, 4, 9, 13
PINGREQ, DISCONNECT = b"\xc0\x00", b"\xe0\x00"
NUMBERS = 65_535
"""How many publishes can await their PUBACK at once."""

_QOS = 1
_LEVEL = 4  # the protocol level of MQTT 3.1.1
_CLEAN, _PASSWORD, _USERNAME = 0x02, 0x40, 0x80
_TEXT_BYTES_MAX = 65_535
_SIZE_BYTES_MAX = 4


class Published(msgspec.Struct, frozen=True):
    """A PUBLISH packet from the broker.

    Attributes:
        topic: None if it is not valid UTF-8. number: the packet id to acknowledge; None at QoS 0.
    """

    topic: str | None
    payload: bytes
    is_retained: bool
    number: int | None


def connect(client_id: str, *, clean: bool, keepalive_s: int, username: str | None, password: str | None) -> bytes:
    """Return a CONNECT packet (3.1). Raises `ValueError` for a text that is too long."""
    given = [text for text in (username, password) if text is not None]
    flags = clean * _CLEAN | (username is not None) * _USERNAME | (password is not None) * _PASSWORD
    head = _text("MQTT") + bytes((_LEVEL, flags)) + keepalive_s.to_bytes(2, "big")
    return _packet(0x10, head + b"".join(map(_text, (client_id, *given))))


def subscribe(number: int, topic_filters: Sequence[str]) -> bytes:
    """Return a SUBSCRIBE packet (3.8)."""
    body = b"".join(_text(topic_filter) + bytes((_QOS,)) for topic_filter in topic_filters)
    return _packet(0x82, number.to_bytes(2, "big") + body)


def topic_name(topic: str) -> bytes:
    """Encode a topic. Raises `ValueError` if it is not a valid topic to publish on."""
    if not topic or "+" in topic or "#" in topic or "\0" in topic:
        raise ValueError(f"a topic to publish on: found {topic[:200]!r}, expected text without wildcards")
    return _text(topic)


def publish(number: int, name: bytes, payload: bytes, retain: bool) -> bytes:
    """Return a PUBLISH packet (3.3) of QoS 1; `name` comes from `topic_name`."""
    return _packet(0x30 | _QOS << 1 | retain, name + number.to_bytes(2, "big") + payload)


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
    """Splits a stream of bytes into packets."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._wanted = 0  # length at which `_rest` holds a whole packet

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield the kind, flags and body of each packet that is now complete. Raises `TransportError` if not MQTT."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return
            data = bytes(self._rest)
            self._rest.clear()
        at = 0
        while True:
            body, ends = _body_of(data, at)
            if ends > len(data) or not body:
                break
            yield data[at] >> 4, data[at] & 15, data[body:ends]
            at = ends
        self._rest += data[at:]
        self._wanted = ends - at


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
    if len(data) > _TEXT_BYTES_MAX:
        raise ValueError(f"MQTT carries texts of {_TEXT_BYTES_MAX} bytes: found {len(data)}")
    return len(data).to_bytes(2, "big") + data
