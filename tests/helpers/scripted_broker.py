"""Transports with quick back-off, what they report, and a broker that answers as a test scripts it."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable
from typing import Any

from dca_proto.runtime.mqtt import Backoff, MqttTransport
from dca_proto.runtime.settings import BrokerSettings
from dca_proto.runtime.transport import Disconnected

QUICK = Backoff(first_s=0.02, most_s=0.1)


CLIENTS: dict[str, dict[str, Any]] = {
    "aiomqtt": {"client": "aiomqtt", "version": "3.1.1"},
    "fleet": {"client": "fleet", "version": "3.1.1"},
    "aiomqtt 5": {"client": "aiomqtt", "version": "5"},
    "fleet 5": {"client": "fleet", "version": "5"},
}
"""The MQTT clients, each with its settings. Only mosquitto speaks both versions."""
OF_311 = ("aiomqtt", "fleet")
_CLIENT: dict[str, Any] = {}  # of the test that runs: the fixture `each_client` sets it


def client_settings(url: str, **settings: Any) -> BrokerSettings:
    """Settings for a broker, with the MQTT client that the test is run for."""
    return BrokerSettings(url=url, **{**_CLIENT, **settings})


def use_client(client: str | None) -> None:
    """Choose the MQTT client of all `client_settings` from now on; None for the default."""
    _CLIENT.clear()
    _CLIENT.update(CLIENTS[client] if client else {})


def transport(url: str, name: str, *filters: str, backoff: Backoff = QUICK) -> MqttTransport:
    return MqttTransport(client_settings(url), name, filters, rng=random.Random(name), backoff=backoff)


def break_off(transport: MqttTransport) -> None:
    """End its connection without a good-bye, as a process that is killed does."""
    connection: Any = transport._connection
    if hasattr(connection, "_client"):
        connection._client._client.socket().shutdown(socket.SHUT_RDWR)  # paho's, in aiomqtt's
    else:
        connection._transport.abort()


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds that has no event."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


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

    async def until(self, reason: str) -> Disconnected:
        """The next loss for a reason with these words. On a busy machine an attempt may fail before for another one."""
        while True:
            lost = (await self.next(Disconnected))[-1]
            assert isinstance(lost, Disconnected)
            if reason in lost.reason:
                return lost


class ScriptedBroker:
    """Speaks just enough MQTT 3.1.1 to accept, to refuse, or to break off at a chosen point."""

    def __init__(
        self,
        *,
        connack: int | None = 0,
        suback: int | None = 1,
        acknowledges: tuple[bool, ...] = (),
        port: int = 0,
    ) -> None:
        self._connack, self._suback, self._port = connack, suback, port
        self._acknowledges = iter(acknowledges)
        self.published: list[bytes] = []
        self.connects: list[bytes] = []  # bodies of CONNECT
        self.url = ""
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> ScriptedBroker:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self.url = f"mqtt://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def stop(self) -> None:
        """Accept no more connections, and end those that there are."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            while (answer := self._answer(*await self._packet(reader))) is not None:
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
                self.connects.append(body)
                return b"" if self._connack is None else bytes([0x20, 2, 0, self._connack])
            case 8 if self._suback is not None:
                return bytes([0x90, 3, *body[:2], self._suback])
            case 3 if next(self._acknowledges):
                self.published.append(body)
                return bytes([0x40, 2, *body[2 + body[1] :][:2]])
            case 3:
                self.published.append(body)
        return None


class Feeding(ScriptedBroker):
    """Sends packets behind its SUBACK, and counts connections."""

    def __init__(self, *packets: bytes) -> None:
        super().__init__()
        self._packets, self.connections = packets, 0

    def _answer(self, kind: int, body: bytes) -> bytes | None:
        self.connections += kind == 1
        answer = super()._answer(kind, body)
        if kind == 8 and answer:
            return answer + b"".join(self._packets)
        return b"\xd0\x00" if kind == 4 else answer  # whatever was acknowledged


def published(topic: bytes, payload: bytes) -> bytes:
    """A PUBLISH packet of QoS 0."""
    body, size = len(topic).to_bytes(2, "big") + topic + payload, b""
    left = len(body)
    while left or not size:
        left, low = left >> 7, left & 127
        size += bytes([low | (left > 0) << 7])
    return b"\x30" + size + body
