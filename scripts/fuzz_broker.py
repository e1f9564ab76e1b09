"""A minimal MQTT 3.1.1 broker that feeds its clients the bytes that `fuzz_packets.py` makes."""

from __future__ import annotations

import asyncio

from dca_proto.protocol.wire.topics import FilterTree
from emulator.fuzz.forger import packet, publish

PATIENCE_S = 60.0
_SETTLING = 65_535  # the number of a publish that only asks whether all before it has been read


class Broker:
    """The part of MQTT 3.1.1 that the fuzzer needs: it delivers its clients' messages, with QoS 0, and fed bytes.

    Attributes:
        url: its address. log: (topic, payload) of all messages published while `is_logging`.
        is_over: True after an actor has ended; then nothing waits any more.
    """

    def __init__(self) -> None:
        self.log: list[tuple[str, bytes]] = []
        self.is_logging, self.is_over = True, False
        self._filters: FilterTree[str] = FilterTree()
        self._retained: dict[str, bytes] = {}
        self._connections: dict[str, asyncio.StreamWriter] = {}
        self._changed = asyncio.Event()
        self._alive: set[str] = set()  # whose PUBACK came since `settle` asked

    async def __aenter__(self) -> Broker:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"mqtt://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def feed(self, name: str, data: bytes) -> None:
        """Send bytes to a subscribed client, now or when it has reconnected."""
        connection = await self._connected(name)
        if connection is not None:
            connection.write(data)
            await asyncio.gather(connection.drain(), return_exceptions=True)

    async def settle(self, name: str) -> None:
        """Wait until a client has read all fed bytes, or is gone."""
        self._alive.discard(name)
        connection = await self._connected(name)
        if connection is not None:
            connection.write(publish("settle", b"", 1, _SETTLING))
        while name not in self._alive and self._connections.get(name) is connection and not self.is_over:
            await self._wait()

    def cut(self, name: str) -> None:
        """End a client's connection, because fed bytes may end in the middle of a packet."""
        connection = self._connections.pop(name, None)
        if connection is not None:
            connection.transport.abort()

    def end(self, _: object) -> None:
        """Stop all waiting, because an actor has ended."""
        self.is_over = True
        self._changed.set()

    async def _connected(self, name: str) -> asyncio.StreamWriter | None:
        while name not in self._connections and not self.is_over:
            await self._wait()
        return self._connections.get(name)

    async def _wait(self) -> None:
        self._changed.clear()
        await asyncio.wait_for(self._changed.wait(), PATIENCE_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = ""
        try:
            while True:
                head, body = await _read(reader)
                if head >> 4 == 1:
                    name = body[12 : 12 + int.from_bytes(body[10:12], "big")].decode()
                self._answer(name, writer, head, body)
                self._changed.set()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            if self._connections.get(name) is writer:
                del self._connections[name]
            self._changed.set()
            writer.close()

    def _answer(self, name: str, writer: asyncio.StreamWriter, head: int, body: bytes) -> None:
        match head >> 4:
            case 1:
                writer.write(packet(0x20, b"\0\0"))
            case 3:
                self._carry(writer, body, retain=bool(head & 1))
            case 4 if int.from_bytes(body, "big") == _SETTLING:
                self._alive.add(name)
            case 8:
                self._subscribe(name, writer, body)
            case 12:
                writer.write(packet(0xD0, b""))

    def _subscribe(self, name: str, writer: asyncio.StreamWriter, body: bytes) -> None:
        own: FilterTree[None] = FilterTree()
        at, count = 2, 0
        while at < len(body):
            size = int.from_bytes(body[at : at + 2], "big")
            topic_filter = body[at + 2 : at + 2 + size].decode()
            own.add(topic_filter, None)
            self._filters.add(topic_filter, name)
            at, count = at + 3 + size, count + 1
        writer.write(packet(0x90, body[:2] + b"\1" * count))
        self._connections[name] = writer
        for topic, payload in self._retained.items():
            if any(True for _ in own.matching(topic)):
                writer.write(publish(topic, payload))

    def _carry(self, writer: asyncio.StreamWriter, body: bytes, *, retain: bool) -> None:
        at = 2 + int.from_bytes(body[:2], "big")
        topic, number, payload = body[2:at].decode(), body[at : at + 2], body[at + 2 :]
        writer.write(packet(0x40, number))
        if self.is_logging:
            self.log.append((topic, payload))
        if retain:
            self._retained[topic] = payload
        for name in dict.fromkeys(self._filters.matching(topic)):
            if name in self._connections:
                self._connections[name].write(publish(topic, payload))


async def _read(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    (head,) = await reader.readexactly(1)
    size, shift, more = 0, 0, 128
    while more & 128:
        (more,) = await reader.readexactly(1)
        size, shift = size | (more & 127) << shift, shift + 7
    return head, await reader.readexactly(size)
