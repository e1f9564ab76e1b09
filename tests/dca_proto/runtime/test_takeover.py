"""A device that connects again before its old connection has ended: the broker serves the newest (MQTT-3.1.4-2).

A device that lost its network is back so, and an actor that was restarted on a busy machine. Brokers exist that take
its session for disconnected when the old connection ends, or leave its filters to another session: then nothing comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest
from patience import PATIENCE_S
from scripted_broker import QUICK, client_settings

from dca_proto.runtime.broker import Broker
from dca_proto.runtime.mqtt import Backoff, MqttTransport

TRIES = 30  # if a broker took the two in any order, it would end the later one so often with 1e-9
CONNACK, PUBLISH, PUBACK, SUBACK = 0x20, 0x30, 0x40, 0x90


@pytest.mark.usefixtures("each_client")
@pytest.mark.parametrize("old", ["lives", "leaves"])
def test_a_transport_that_takes_over_receives(old: str, any_broker: Broker) -> None:
    def transport(name: str, topic: str, backoff: Backoff = QUICK) -> MqttTransport:
        settings = client_settings(url=any_broker.url)
        return MqttTransport(settings, name, (topic,), rng=random.Random(name), backoff=backoff)

    async def comes_back(name: str) -> None:
        first = transport(name, f"over/{name}/+", Backoff(first_s=3600.0, most_s=3600.0))  # taken over, it stays away
        second, other = (transport(one, f"over/{name}/+") for one in (name, f"{name}-other"))
        await asyncio.gather(first.open(), other.open())
        leaving = asyncio.create_task(first.close()) if old == "leaves" else None
        await second.open()
        publishing = asyncio.ensure_future(other.publish(f"over/{name}/{name}-other", b"news"))
        assert (await second.inbox.take()).payload == b"news"
        await publishing
        await asyncio.gather(leaving or first.close(), second.close(), other.close())

    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(comes_back(f"{old}-{any_broker.kind}-{index}") for index in range(20)))

    asyncio.run(scenario())


def text(value: str) -> bytes:
    return len(value).to_bytes(2, "big") + value.encode()


class Connection:
    """One connection of a device, packet by packet: a client library would not do this in one turn of the loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, kind: int, body: bytes) -> None:
        """A packet of less than 128 bytes."""
        self._writer.write(bytes([kind, len(body)]) + body)

    def connect(self, device: str, topic_filter: str, *, clean: bool) -> None:
        """Connect and subscribe."""
        self.send(0x10, text("MQTT") + bytes([4, 2 * clean, 0, 60]) + text(device))
        self.send(0x82, bytes([0, 1]) + text(topic_filter) + b"\x01")

    async def until(self, kind: int) -> bytes:
        """The body of the next such packet."""
        while True:
            head, size = await self._reader.readexactly(2)
            body = await self._reader.readexactly(size)
            if head & 0xF0 == kind:
                return body

    async def close(self) -> None:
        self._writer.close()
        await asyncio.wait([asyncio.create_task(self._writer.wait_closed())])


@pytest.mark.parametrize("clean", [False, True], ids=["persistent", "clean"])
@pytest.mark.parametrize("before", ["was never there", "is connected"])
def test_of_two_connections_at_once_the_later_one_receives(before: str, clean: bool, any_broker: Broker) -> None:
    settings = client_settings(url=any_broker.url)

    async def opened() -> Connection:
        return Connection(*await asyncio.open_connection(settings.host, settings.port))

    async def scenario(name: str) -> None:
        everyone = [await opened() for _ in range(4)]
        try:
            await play(name, *everyone)
        finally:
            for one in everyone:
                await one.close()

    async def play(name: str, old: Connection, earlier: Connection, later: Connection, other: Connection) -> None:
        if before == "is connected":
            old.connect(name, f"{name}/+", clean=clean)
            await old.until(SUBACK)
        for one in (earlier, later):
            one.connect(name, f"{name}/+", clean=clean)
        await later.until(SUBACK)
        await earlier.close()
        other.connect(f"{name}-other", "none", clean=True)
        await other.until(SUBACK)
        other.send(PUBLISH + 2, text(f"{name}/x") + bytes([0, 1]) + b"news")
        await other.until(PUBACK)
        assert (await later.until(PUBLISH)).endswith(b"news")

    for number in range(TRIES):
        name = f"two-{before[0]}{clean:d}{number}-{any_broker.kind}"
        with contextlib.suppress(asyncio.IncompleteReadError):  # the broker saw the other one last, and ended this one
            asyncio.run(asyncio.wait_for(scenario(name), PATIENCE_S))
            return
    raise AssertionError(f"of two connections, the broker ended the later one {TRIES} times")
