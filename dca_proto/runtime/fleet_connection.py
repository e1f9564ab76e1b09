"""A connection for fleets: an MQTT client of our own over TCP or TLS.

It spends a fifth of the CPU of aiomqtt on a packet. So it serves processes with many connections, and Compute nodes
under heavy load (`[broker] client = "fleet"`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dca_proto.errors import TransportError
from dca_proto.runtime.connection import (
    FILTERS_MAX,
    PACKET_BYTES_MAX,
    REFUSED,
    UNACKNOWLEDGED_MAX,
    Connect,
    ConnectRefused,
    Listener,
    LostWhileConnecting,
    Published,
    end_of,
    in_words,
)
from dca_proto.runtime.packets import (
    DISCONNECT,
    PINGREQ,
    Codec,
    Codec311,
    ConnAck,
    Disconnect,
    Packet,
    PacketReader,
    PubAck,
    SubAck,
    TooLarge,
)

_GRACE_S = 1.0
_UNREAD_MAX = UNACKNOWLEDGED_MAX * PACKET_BYTES_MAX
"""How many bytes may wait for a broker that does not read: all publishes under way, and some acknowledgements."""


class FleetConnection(asyncio.Protocol):
    """A `Connection` whose packets of one turn of the event loop are written together."""

    def __init__(self, hello: Connect, listener: Listener) -> None:
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[str] = self._loop.create_future()
        self._hello = hello
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._packets = PacketReader()
        self._unwritten: list[bytes] = []
        self._codec = codec_of(hello)
        self.unacknowledged_max = UNACKNOWLEDGED_MAX
        self.certificate_end_ms: int | None = None
        self._answers: asyncio.Queue[ConnAck | SubAck | None] = asyncio.Queue()  # None at the end
        self._questions = 0  # CONNECT and SUBSCRIBE packets without an answer
        self._is_heard = True  # whether anything arrived since the last keepalive check
        self._keepalive: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        settings = self._hello.settings
        transport, _ = await self._loop.create_connection(
            lambda: self, settings.host, settings.port, ssl=self._hello.tls
        )
        self.certificate_end_ms = end_of(transport.get_extra_info("peercert"))
        self._questions = 1
        self._send(self._codec.connect(self._hello))
        answer = await self._answer("connection lost while connecting", LostWhileConnecting)
        if not isinstance(answer, ConnAck):
            raise TransportError("the broker sent no CONNACK packet; check that it speaks MQTT")
        if answer.code:
            raise ConnectRefused(answer.code, answer.name)
        self.unacknowledged_max = min(UNACKNOWLEDGED_MAX, answer.unacknowledged_max)
        keepalive_s = settings.keepalive_s if answer.keepalive_s is None else answer.keepalive_s
        if keepalive_s:
            self._keepalive = self._loop.call_later(keepalive_s, self._keep_alive, keepalive_s)

    async def subscribe(self, topic_filters: Sequence[str]) -> Sequence[int]:
        starts = range(0, len(topic_filters), FILTERS_MAX)
        self._questions = len(starts)
        for number, start in enumerate(starts, 1):
            self._send(self._codec.subscribe(number, topic_filters[start : start + FILTERS_MAX]))
        codes: list[int] = []
        for _ in starts:
            answer = await self._answer("connection lost while subscribing")
            codes += answer.codes if isinstance(answer, SubAck) else ()
        return codes

    def publish(self, number: int, topic: str, payload: bytes, retain: bool, expiry_s: int | None) -> None:
        self._send(self._codec.publish(number, topic, payload, retain, expiry_s))

    async def leave(self) -> None:
        """Disconnect, even before the connection is complete. Waits at most a second for the connection to end."""
        transport = self._transport
        if transport is None:
            return
        self._send(DISCONNECT)
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
            for each in self._packets.feed(data):
                self._take(each if isinstance(each, TooLarge) else self._codec.read(*each))
        except TransportError as error:
            self._give_up(str(error))

    def connection_lost(self, error: Exception | None) -> None:
        if self._keepalive is not None:
            self._keepalive.cancel()
        if not self.lost.done():
            self.lost.set_result("it ended" if error is None else in_words(error))
            self._answers.put_nowait(None)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _send(self, packet: bytes) -> None:
        """Queue a packet; all packets of this turn of the event loop are written together."""
        if not self._unwritten:
            self._loop.call_soon(self._flush)
        self._unwritten.append(packet)

    def _take(self, packet: Packet) -> None:
        if isinstance(packet, Published):
            if self._listener.deliver(packet) and packet.number is not None:
                self._send(self._codec.puback(packet.number))
        elif isinstance(packet, PubAck):
            if packet.code >= REFUSED:
                self._listener.refused(packet.number, f"{packet.name} ({packet.code})")
            else:
                self._listener.acknowledged(packet.number)
        elif isinstance(packet, ConnAck | SubAck):
            self._questions -= 1
            if self._questions < 0:  # nobody would ever read it
                raise TransportError("the broker sent an answer that nobody asked for")
            self._answers.put_nowait(packet)
        elif isinstance(packet, TooLarge):
            self._listener.dropped("too large")
            if packet.number is not None:
                self._send(self._codec.puback(packet.number))
        elif isinstance(packet, Disconnect):
            self._give_up(packet.reason)

    async def _answer(self, otherwise: str, lost: type[TransportError] = TransportError) -> ConnAck | SubAck:
        """Wait for the broker's next answer."""
        answer = await self._answers.get()
        if answer is None:
            raise lost(f"{otherwise}: {self.lost.result()}")
        return answer

    def _keep_alive(self, keepalive_s: int) -> None:
        """Ping the broker. If nothing has arrived since the last ping, end the connection."""
        if not self._is_heard:
            self._give_up(f"the broker was silent for {keepalive_s} s")
            return
        self._is_heard = False
        self._send(PINGREQ)
        self._keepalive = self._loop.call_later(keepalive_s, self._keep_alive, keepalive_s)

    def _flush(self) -> None:
        data, self._unwritten = b"".join(self._unwritten), []
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
            if self._transport.get_write_buffer_size() > _UNREAD_MAX:
                self._give_up("the broker sends messages and reads no acknowledgements")

    def _give_up(self, reason: str) -> None:
        if self._transport is not None:
            self._transport.abort()
        self.connection_lost(TransportError(reason))


def codec_of(hello: Connect) -> Codec:
    """Return the codec of the version that both sides speak."""
    if hello.version == "3.1.1":
        return Codec311()
    from dca_proto.runtime.packets5 import Codec5  # needs a library that a device does without

    return Codec5()
