"""Transports with quick back-off, what they report, and a broker that answers as a test scripts it."""

from __future__ import annotations

import asyncio
import random
import socket

from dca_proto.runtime.mqtt import Backoff, MqttTransport
from dca_proto.runtime.settings import BrokerSettings

QUICK = Backoff(first_s=0.02, most_s=0.1)


def transport(url: str, name: str, *filters: str, backoff: Backoff = QUICK) -> MqttTransport:
    return MqttTransport(BrokerSettings(url=url), name, filters, rng=random.Random(name), backoff=backoff)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ReportQueue:
    """The queue of a transport's reports."""

    def __init__(self) -> None:
        self._facts: asyncio.Queue[object] = asyncio.Queue()

    def __call__(self, fact: object) -> None:
        self._facts.put_nowait(fact)

    async def next(self, kind: type) -> list[object]:
        """The facts since the last call, up to one of that kind."""
        facts: list[object] = []
        while not (facts and isinstance(facts[-1], kind)):
            facts.append(await self._facts.get())
        return facts


class ScriptedBroker:
    """Speaks just enough MQTT 3.1.1 to accept, to refuse, or to break off at a chosen point."""

    def __init__(
        self,
        *,
        connack: int = 0,
        suback: int | None = 1,
        acknowledges: tuple[bool, ...] = (),
        port: int = 0,
    ) -> None:
        self._connack, self._suback, self._port = connack, suback, port
        self._acknowledges = iter(acknowledges)
        self.published: list[bytes] = []
        self.url = ""

    async def __aenter__(self) -> ScriptedBroker:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self.url = f"mqtt://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while answer := self._answer(*await self._packet(reader)):
                writer.write(answer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async def _packet(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        kind, length = await reader.readexactly(2)
        assert length < 128
        return kind >> 4, await reader.readexactly(length)

    def _answer(self, kind: int, body: bytes) -> bytes | None:
        match kind:
            case 1:
                return bytes([0x20, 2, 0, self._connack])
            case 8 if self._suback is not None:
                return bytes([0x90, 3, *body[:2], self._suback])
            case 3 if next(self._acknowledges):
                self.published.append(body)
                return bytes([0x40, 2, *body[2 + body[1] :][:2]])
            case 3:
                self.published.append(body)
        return None
