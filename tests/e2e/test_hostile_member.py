"""An enrolled client that means harm, on mosquitto as `dca broker` configures it: the broker stays small and serves."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from patience import PATIENCE_S

from dca_proto.errors import TransportError, UsageError
from dca_proto.protocol.effects import Address, Channel
from dca_proto.protocol.wire.topics import root_of, subscriptions, topic_of
from dca_proto.runtime.access import Access, BrokerUser, limit_lines
from dca_proto.runtime.broker import Broker, BrokerOptions, launch_broker
from dca_proto.runtime.mqtt import MqttTransport
from dca_proto.runtime.settings import BrokerSettings

FEDERATION = b"ward" * 8
HOSTILE, HONEST, NODE, TRAINER = (
    BrokerUser(role, bytes([number]) * 16, f"password-{number}")
    for number, role in enumerate((Channel.CLIENT, Channel.CLIENT, Channel.COMPUTE, Channel.TRAINER), 1)
)
ACCESS = Access(FEDERATION, (HOSTILE, HONEST, NODE, TRAINER))
CLAIMED = 250_000_000
PAGES = 8 << 20  # of the allocator and of the program itself, beside what mosquitto counts


class Raw:
    """A client that keeps no rule of MQTT but the spelling of its packets."""

    def __init__(self, broker: Broker, member: BrokerUser, *, keep: bool = False) -> None:
        self._socket = socket.create_connection(("127.0.0.1", int(broker.url.rpartition(":")[2])))
        self._socket.settimeout(PATIENCE_S)
        name, flags = member.id.hex(), 0xC0 if keep else 0xC2
        head = _text("MQTT") + struct.pack(">BBH", 4, flags, 600)
        self.send(0x10, head + _text(name) + _text(name) + _text(member.password))
        assert self._socket.recv(4, socket.MSG_WAITALL) == b"\x20\x02\x00\x00"

    def send(self, kind: int, body: bytes, times: int = 1) -> None:
        self._socket.sendall((bytes([kind]) + _length(len(body)) + body) * times)

    def publish(self, topic: str, size: int, *, qos: int = 1, retain: bool = False, number: int = 1) -> None:
        packet_id = struct.pack(">H", number) if qos else b""
        self.send(0x30 | qos << 1 | retain, _text(topic) + packet_id + bytes(size))

    def subscribe(self, *topic_filters: str) -> None:
        self.send(0x82, b"\x00\x01" + b"".join(_text(one) + b"\x01" for one in topic_filters))

    def raw(self, data: bytes) -> None:
        self._socket.sendall(data)

    def settle(self) -> None:
        """Wait until the broker has read everything: it answers a ping in its turn."""
        self.send(0xC0, b"")
        answer = b""
        while answer[-2:] != b"\xd0\x00":
            answer = self._socket.recv(1 << 16)
            if not answer:
                raise ConnectionResetError

    def hurry(self) -> None:
        """From now on, wait a second at most for a broker that does not read, or not answer."""
        self._socket.settimeout(1)

    def close(self) -> None:
        self._socket.close()


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def _length(size: int) -> bytes:
    spelt = b""
    while size > 127:
        spelt, size = spelt + bytes([size % 128 | 128]), size // 128
    return spelt + bytes([size])


def inbox(member: BrokerUser, sender: BrokerUser = HOSTILE) -> str:
    return topic_of(FEDERATION, Address(member.role, member.id), sender.id)


def claims_a_huge_packet(raw: Raw) -> None:
    raw.raw(b"\x32" + _length(CLAIMED) + bytes(1 << 20))


def sends_large_messages(raw: Raw) -> None:
    for _ in range(10):
        raw.publish(inbox(NODE), 10_000_000)


def never_releases(raw: Raw) -> None:
    for number in range(1, 3000):
        raw.publish(inbox(NODE), 20_000, qos=2, number=number)


def fills_queues(raw: Raw) -> None:
    for _ in range(1500):
        raw.publish(inbox(NODE), 40_000)
        raw.publish(inbox(TRAINER), 40_000)


def fills_queues_without_asking_for_answers(raw: Raw) -> None:
    for _ in range(1500):
        raw.publish(inbox(NODE), 40_000, qos=0)


def retains_under_made_up_topics(raw: Raw) -> None:
    for number in range(1500):
        for topic in (inbox(NODE), inbox(NODE).replace("/compute/", f"/{number:032x}/compute/")):
            raw.publish(topic.replace(NODE.id.hex(), f"{number:032x}"), 20_000, retain=True)
            raw.publish(topic.replace(root_of(FEDERATION), f"{root_of(FEDERATION)}{number}"), 20_000, retain=True)


def retains_wherever_it_may(raw: Raw) -> None:
    for topic in (inbox(NODE), inbox(TRAINER), inbox(HONEST), topic_of(FEDERATION, Address(Channel.HELLO), HOSTILE.id)):
        for _ in range(20):
            raw.publish(topic, 250_000, retain=True)


def reads_no_answers(raw: Raw) -> None:
    raw.send(0xC0, b"", times=2_000_000)


def subscribes_to_everything(raw: Raw) -> None:
    for number in range(500):
        raw.subscribe(*(f"{number}/{more}/{'x' * 200}" for more in range(400)))


ATTACKS = [
    claims_a_huge_packet,
    sends_large_messages,
    never_releases,
    fills_queues,
    fills_queues_without_asking_for_answers,
    retains_under_made_up_topics,
    retains_wherever_it_may,
    pytest.param(reads_no_answers, marks=pytest.mark.long),  # it waits
    subscribes_to_everything,
]


@asynccontextmanager
async def connected(broker: Broker, member: BrokerUser, directory: Path) -> AsyncIterator[MqttTransport]:
    file = directory / member.id.hex()
    file.touch(0o600)
    file.write_text(member.password)
    settings = BrokerSettings(url=broker.url, username=member.id.hex(), password_file=file)
    filters = subscriptions(FEDERATION, member.role, member.id)
    transport = MqttTransport(settings, member.id.hex(), filters, rng=random.Random(1))
    while True:
        try:
            await transport.open()
            break
        except (TransportError, UsageError):  # where no memory is left, mosquitto calls that a wrong password
            await asyncio.sleep(0.05)
    try:
        yield transport
    finally:
        await transport.close()


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_hardening_5_a_member_cannot_make_the_broker_grow_nor_silence_the_others(
    attack: Callable[[Raw], None], mosquitto_installed: None, tmp_path: Path
) -> None:
    """A node that was there and does not read, so that everything waits; then one that reads, and an honest client."""
    (limit,) = (int(line.split()[1]) for line in limit_lines(ACCESS) if line.startswith("memory_limit"))

    async def scenario() -> None:
        async with launch_broker(tmp_path / "b", BrokerOptions(kind="mosquitto", access=ACCESS)) as broker:
            process = psutil.Process(broker.pid)
            start = process.memory_info().rss
            stalled = Raw(broker, NODE, keep=True)
            stalled.subscribe(*subscriptions(FEDERATION, NODE.role, NODE.id))
            stalled.settle()
            raw = Raw(broker, HOSTILE, keep=True)
            with contextlib.suppress(OSError):  # cut off, or waiting for a broker that reads no more of it
                raw.hurry()
                attack(raw)
                raw.settle()
            assert process.memory_info().rss - start < limit + PAGES
            stalled.close()
            raw.close()
            async with connected(broker, NODE, tmp_path) as node, connected(broker, HONEST, tmp_path) as honest:
                await honest.publish(inbox(NODE, HONEST), b"honest")
                while (await node.inbox.take()).payload != b"honest":
                    pass
            assert process.memory_info().rss - start < limit + PAGES

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_hardening_5_what_a_member_retains_in_anothers_inbox_reaches_nobody(
    mosquitto_installed: None, tmp_path: Path
) -> None:
    """A client cannot write to a client at all. To a node it can, and the node drops what was left there for it."""

    async def scenario() -> None:
        async with launch_broker(tmp_path / "b", BrokerOptions(kind="mosquitto", access=ACCESS)) as broker:
            raw = Raw(broker, HOSTILE)
            for member in (NODE, HONEST, TRAINER):
                raw.publish(inbox(member), 1000, retain=True)
            raw.settle()
            raw.close()
            async with (
                connected(broker, NODE, tmp_path) as node,
                connected(broker, HONEST, tmp_path) as honest,
                connected(broker, TRAINER, tmp_path) as trainer,
            ):
                await honest.publish(inbox(NODE, HONEST), b"1")
                await node.publish(inbox(TRAINER, NODE), b"2")
                await trainer.publish(inbox(HONEST, TRAINER), b"3")
                assert [(await one.inbox.take()).payload for one in (node, trainer, honest)] == [b"1", b"2", b"3"]
                assert [one.dropped for one in (node, trainer, honest)] == [{"retained": 1}, {"retained": 1}, {}]

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
