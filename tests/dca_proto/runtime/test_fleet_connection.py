"""What only the fleet's client promises: bounded memory, whatever a broker announces."""

from __future__ import annotations

import asyncio
import random
import tracemalloc

import pytest
from patience import PATIENCE_S
from scripted_broker import CLIENTS, ScriptedBroker

from dca_proto.runtime import fleet_connection, packets
from dca_proto.runtime.connection import Connect, Listener, Published
from dca_proto.runtime.fleet_connection import FleetConnection
from dca_proto.runtime.mqtt import MqttTransport
from dca_proto.runtime.settings import BrokerSettings

LARGE = 200_000_000
_MEMORY_MAX = 8 << 20


class Flooding(ScriptedBroker):
    """Sends one message of 200 MB behind SUBACK, and then one of a usual size."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            writer.write(self._answer(*await self._packet(reader)) or b"")
        head, chunk = b"\x00\x03x/a\x01\x02", bytes(1 << 16)
        size, left = b"", len(head) + LARGE
        while left:
            left, low = left >> 7, left & 127
            size += bytes([low | (left > 0) << 7])
        writer.write(b"\x32" + size + head)
        for start in range(0, LARGE, len(chunk)):
            writer.write(chunk[: LARGE - start])
            await writer.drain()
        writer.write(b"\x30\x0b\x00\x03x/a\x00usual")
        self.acknowledged = await self._packet(reader)
        writer.close()


def test_a_packet_of_200_mb_takes_no_memory_and_is_not_sent_again() -> None:
    async def scenario() -> int:
        async with Flooding() as broker:
            settings = BrokerSettings(url=broker.url, **CLIENTS["fleet"])
            a = MqttTransport(settings, "a", ("x/a",), rng=random.Random(1))
            tracemalloc.start()
            try:
                await a.open()
                assert (await a.inbox.take()).payload == b"usual"
                _, most = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert a.dropped == {"too large": 1}
            await a.close()
            assert broker.acknowledged == (4, b"\x01\x02")
            return most

    assert asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S)) < _MEMORY_MAX


def test_an_answer_of_200_mb_ends_the_attempt() -> None:
    async def announce(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(8)
        writer.write(b"\x20\x80\x84\xaf\x5f" + bytes(1000))
        await reader.read()
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(announce, "127.0.0.1", 0)
        reports: asyncio.Queue[object] = asyncio.Queue()
        url = f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        a = MqttTransport(
            BrokerSettings(url=url, **CLIENTS["fleet"]), "a", (), rng=random.Random(1), on_report=reports.put_nowait
        )
        opening = asyncio.create_task(a.open())
        assert "a packet of 200,000,005 bytes, expected at most" in str(await reports.get())
        opening.cancel()
        await asyncio.wait([opening])
        server.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


@pytest.mark.parametrize("client", ["fleet 5", "aiomqtt 5"])
def test_both_clients_announce_the_largest_packet_that_they_take(client: str) -> None:
    """Then a broker for MQTT 5 sends none that is larger."""

    async def scenario() -> bytes:
        async with ScriptedBroker(connack=None) as broker:
            settings = BrokerSettings(url=broker.url, **CLIENTS[client])
            opening = asyncio.create_task(MqttTransport(settings, "a", (), rng=random.Random(1)).open())
            while not broker.connects:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            opening.cancel()
            await asyncio.wait([opening])
            return broker.connects[0]

    body = asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
    largest = 256 * 1024 + 65_535 + 1024
    assert body[6] == 5
    assert b"\x27" + largest.to_bytes(4, "big") in body  # property 0x27: maximum packet size
    assert b"\x11" + (7 * 24 * 3600).to_bytes(4, "big") in body  # 0x11: session expiry
    assert b"\x21\x01\x00" in body  # 0x21: receive maximum


class Unread(asyncio.Transport):
    """A transport to a broker that reads nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.is_aborted = b"", False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


def test_a_broker_that_sends_and_never_reads_loses_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what waits for it, four bytes a message, would grow as long as it sends."""
    monkeypatch.setattr(fleet_connection, "_UNREAD_MAX", 1000)

    async def scenario() -> str:
        delivered: list[Published] = []
        listener = Listener(lambda one: delivered.append(one) is None, lambda number: None)
        connection = FleetConnection(Connect(BrokerSettings(url="mqtt://h"), "a"), listener)
        unread = Unread()
        connection.connection_made(unread)
        sent = 0
        while not connection.lost.done():
            connection.data_received(packets.publish(7, "x/a", b"\0", False) * 10)
            await asyncio.sleep(0)  # the turn in which it writes
            sent += 10
            assert sent <= 260, "250 acknowledgements of four bytes are as many as may wait"
        assert unread.is_aborted
        assert len(delivered) == sent
        return connection.lost.result()

    reason = asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
    assert reason == "the broker sends messages and reads no acknowledgements"


def test_a_refused_message_is_not_acknowledged() -> None:
    async def scenario() -> bytes:
        answers = iter([True, False])
        connection = FleetConnection(
            Connect(BrokerSettings(url="mqtt://h"), "a"), Listener(lambda one: next(answers), lambda number: None)
        )
        connection.connection_made(unread := Unread())
        for number in (7, 8):
            connection.data_received(packets.publish(number, "x/a", b"\0", False))
        await asyncio.sleep(0)  # the turn in which it writes
        return unread.written

    assert asyncio.run(scenario()) == packets.puback(7)
