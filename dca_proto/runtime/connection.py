"""One MQTT 3.1.1 connection over TCP or TLS, from CONNECT to its end. It is never reused.

Below it the packets, as a client speaks them: bytes made, and bytes cut into packets. Section numbers are those of the
OASIS standard of 2014. A packet is a head byte (kind and flags), the size of its body in one to four bytes of seven
bits each, and the body.

Why not a library: those for 3.1.1 take 60 to 140 µs of Python for each packet, as much as all of a client's
cryptography for a round. A compiled one speaks version 5 alone, which the embedded broker does not.
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

    What is sent within one turn of the event loop leaves as one piece. Each message that comes goes to `deliver`, and
    is acknowledged once that has returned. `acknowledged` is called with the number of each publish that the broker has
    taken over. `lost` is done, with the reason in words, once the connection has ended.
    """

    def __init__(self, deliver: Callable[[Published], None], acknowledged: Callable[[int], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[str] = self._loop.create_future()
        self._deliver = deliver
        self._acknowledged = acknowledged
        self._transport: asyncio.Transport | None = None
        self._packets = PacketReader()
        self._leaving: list[bytes] = []
        self._answers: asyncio.Queue[bytes | None] = asyncio.Queue()  # of CONNACK and SUBACK; None where none comes
        self._is_heard = True  # since the last look of the keepalive
        self._look: asyncio.TimerHandle | None = None

    async def open(self, host: str, port: int, tls: ssl.SSLContext | None, hello: bytes, keepalive_s: int) -> int:
        """Connect by the CONNECT packet `hello`; the broker's return code, 0 for yes.

        Raises `OSError` for no connection, `TransportError` if it was lost.
        """
        await self._loop.create_connection(lambda: self, host, port, ssl=tls)
        self.send(hello)
        code = (await self._answer("connection lost while connecting"))[1]
        self._look = self._loop.call_later(keepalive_s, self._keep_alive, keepalive_s)
        return code

    async def subscribe(self, topic_filters: Sequence[str]) -> bytes:
        """Subscribe to any number of filters, in packets of limited size; the return code of each.

        Raises `TransportError`: the connection was lost.
        """
        starts = range(0, len(topic_filters), _FILTERS_MAX)
        for number, start in enumerate(starts, 1):
            self.send(subscribe(number, topic_filters[start : start + _FILTERS_MAX]))
        return b"".join([(await self._answer("connection lost while subscribing"))[2:] for _ in starts])

    def send(self, packet: bytes) -> None:
        """Have a packet leave with the others of this turn."""
        if not self._leaving:
            self._loop.call_soon(self._flush)
        self._leaving.append(packet)

    async def leave(self) -> None:
        """Disconnect, also from a connection half made, without waiting for an answer that will not come."""
        transport = self._transport
        if transport is None:
            return
        self.send(DISCONNECT)
        self._flush()
        transport.close()
        await asyncio.wait([self.lost], timeout=_GRACE_S)
        transport.abort()

    # --- what the event loop calls --------------------------------------------------------------------------------

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
        if self._look is not None:
            self._look.cancel()
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
        """The next answer of the broker."""
        body = await self._answers.get()
        if body is None:
            raise TransportError(f"{otherwise}: {self.lost.result()}")
        if len(body) < _ANSWER_BYTES:
            raise TransportError("the broker sent an answer without a code; check that it speaks MQTT")
        return body

    def _keep_alive(self, keepalive_s: int) -> None:
        """Ask once in a while whether anybody is there, and end a connection on which nothing has come since."""
        if not self._is_heard:
            self._give_up(f"the broker was silent for {keepalive_s} s")
            return
        self._is_heard = False
        self.send(PINGREQ)
        self._look = self._loop.call_later(keepalive_s, self._keep_alive, keepalive_s)

    def _flush(self) -> None:
        data, self._leaving = b"".join(self._leaving), []
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _give_up(self, reason: str) -> None:
        if self._transport is not None:
            self._transport.abort()
        self.connection_lost(TransportError(reason))


def in_words(error: Exception) -> str:
    """What the operating system, or TLS, says of a connection, without numbers and addresses."""
    known = re.search(r"\[Errno (\d+)\]", str(error))  # the first one, where several addresses were tried
    reason = os.strerror(int(known[1])) if known else getattr(error, "strerror", None) or str(error)
    return reason[:1].lower() + reason[1:]


CONNACK, PUBLISH, PUBACK, SUBACK, PINGRESP = 2, 3, 4, 9, 13
PINGREQ, DISCONNECT = b"\xc0\x00", b"\xe0\x00"
NUMBERS = 65_535
"""How many publishes can wait for their PUBACK at once."""

_QOS = 1
_LEVEL = 4  # the protocol level of MQTT 3.1.1
_CLEAN, _PASSWORD, _USERNAME = 0x02, 0x40, 0x80
_TEXT_BYTES_MAX = 65_535
_SIZE_BYTES_MAX = 4


class Published(msgspec.Struct, frozen=True):
    """A PUBLISH packet that came.

    Attributes:
        topic: None where it is no UTF-8 text. number: what to acknowledge it by; None at QoS 0.
    """

    topic: str | None
    payload: bytes
    is_retained: bool
    number: int | None


def connect(client_id: str, *, clean: bool, keepalive_s: int, username: str | None, password: str | None) -> bytes:
    """A CONNECT packet (3.1). Raises `ValueError` for a text that is too long."""
    given = [text for text in (username, password) if text is not None]
    flags = clean * _CLEAN | (username is not None) * _USERNAME | (password is not None) * _PASSWORD
    head = _text("MQTT") + bytes((_LEVEL, flags)) + keepalive_s.to_bytes(2, "big")
    return _packet(0x10, head + b"".join(map(_text, (client_id, *given))))


def subscribe(number: int, topic_filters: Sequence[str]) -> bytes:
    """A SUBSCRIBE packet (3.8)."""
    body = b"".join(_text(topic_filter) + bytes((_QOS,)) for topic_filter in topic_filters)
    return _packet(0x82, number.to_bytes(2, "big") + body)


def topic_name(topic: str) -> bytes:
    """A topic as packets have it. Raises `ValueError` for one that nobody may publish on."""
    if not topic or "+" in topic or "#" in topic or "\0" in topic:
        raise ValueError(f"a topic to publish on: found {topic[:200]!r}, expected text without wildcards")
    return _text(topic)


def publish(number: int, name: bytes, payload: bytes, retain: bool) -> bytes:
    """A PUBLISH packet (3.3) of QoS 1, on a topic by its `topic_name`."""
    return _packet(0x30 | _QOS << 1 | retain, name + number.to_bytes(2, "big") + payload)


def puback(number: int) -> bytes:
    """A PUBACK packet (3.4)."""
    return b"\x40\x02" + number.to_bytes(2, "big")


def read_publish(flags: int, body: bytes) -> Published:
    """A PUBLISH packet's parts. Raises `TransportError` where it has none."""
    ends = 2 + int.from_bytes(body[:2], "big")
    starts = ends + 2 if flags & 0b0110 else ends
    if len(body) < starts or flags & 0b0100:  # of QoS 2 we ask for nothing
        raise TransportError(f"the broker sent a PUBLISH packet of {len(body)} bytes with flags {flags:#x}")
    try:
        topic = body[2:ends].decode()
    except UnicodeDecodeError:
        topic = None
    number = int.from_bytes(body[ends:starts], "big") if starts > ends else None
    return Published(topic, body[starts:], bool(flags & 1), number)


class PacketReader:
    """Cuts what a connection delivers into packets."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._wanted = 0  # bytes that complete the packet that `_rest` begins

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """The kind, the flags and the body of each packet that is now complete. Raises `TransportError`: no MQTT."""
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
    """Where the body of the packet at `at` begins and ends; (0, 0) where its size is not complete."""
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
