"""One MQTT connection over TCP or TLS: from CONNECT to its end. It is never used again."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Callable, Sequence

from dca_proto.errors import TransportError
from dca_proto.runtime.packets import (
    CONNACK,
    DISCONNECT,
    PINGREQ,
    PUBACK,
    PUBLISH,
    SUBACK,
    PacketReader,
    Published,
    puback,
    read_publish,
    subscribe,
)

_GRACE_S = 1.0
_ANSWER_BYTES = 2  # a CONNACK is this long, a SUBACK longer
_FILTERS_MAX = 256  # in one SUBSCRIBE; a gateway has thousands


class Connection(asyncio.Protocol):
    """A connection to a broker.

    What is sent within one turn of the event loop leaves as one piece. What comes is acknowledged once `deliver` has
    returned.

    Args:
        deliver: is given each message that comes.
        acknowledged: is called with the number of each publish that the broker has taken over.

    Attributes:
        lost: done, with the reason in words, once the connection has ended.
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
        """Connect; the broker's return code, 0 for yes.

        Args:
            hello: the CONNECT packet. keepalive_s: as it says.

        Raises:
            OSError: no connection. TransportError: it was lost.
        """
        await self._loop.create_connection(lambda: self, host, port, ssl=tls)
        self.send(hello)
        code = (await self._answer("connection lost while connecting"))[1]
        self._look = self._loop.call_later(keepalive_s, self._keep_alive, keepalive_s)
        return code

    async def subscribe(self, topic_filters: Sequence[str]) -> bytes:
        """Subscribe to any number of filters, in packets of limited size; the return code of each.

        Raises:
            TransportError: the connection was lost.
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
            raise TransportError("the broker sent an answer without a code: is it MQTT?")
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
