"""Topics and packets as hostile input: nothing that comes, and nothing that cannot be sent, ends an actor."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from patience import PATIENCE_S
from runner_and_peer import ECHO, FEDERATION, PEER, RunnerAndPeer, settle
from scripted_broker import Feeding, ReportQueue, ScriptedBroker, client_settings, published, transport

from dca_proto.errors import TransportError, UsageError
from dca_proto.protocol.effects import Address, Channel, Effect, Send
from dca_proto.protocol.events import Event, Received
from dca_proto.protocol.wire.topics import root_of, topic_of
from dca_proto.runtime.broker import BrokerOptions, launch_broker
from dca_proto.runtime.mqtt import Backoff, MqttTransport, Retries
from dca_proto.runtime.parts import Assembler, PartLimits, split
from dca_proto.runtime.transport import CLIENT_LIMITS, TOPIC_CHARS_MAX, Disconnected, Inbox, InboxLimits
from dca_proto.wording import PRINTED_CHARS_MAX, printable
from emulator.fuzz.forger import Forger, Known, packet

MIB = 1 << 20


FREED = """
import asyncio, ctypes, sys
from dca_proto.runtime.process import complete

class Info(ctypes.Structure):  # struct mallinfo2, of which hblks counts the blocks that are mapped alone
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", *"abcdef")]

mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = Info
if "device" in sys.argv:
    complete(asyncio.sleep(0))
del (first := [bytes(1 << 20)])[:]
before = mallinfo2().hblks
second = bytes(1 << 20)
print(mallinfo2().hblks - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33")
@pytest.mark.parametrize(("program", "alone"), [("device", "1"), ("other", "0")])
def test_attack_54_a_large_message_leaves_nothing_behind_in_the_heap(program: str, alone: str) -> None:
    """Even after another one: glibc would then put it into the heap, which small objects keep from shrinking."""
    found = subprocess.run([sys.executable, "-c", FREED, program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == [alone]


# what cannot be sent


@pytest.mark.parametrize("error", [ValueError("Invalid topic."), UsageError("a message has too many bytes")])
def test_hardening_1_a_message_that_cannot_be_sent_ends_no_actor(error: ValueError) -> None:
    def answer(event: Event) -> Sequence[Effect]:
        return [Send(Address(Channel.CLIENT, PEER), b"", event.payload)] if isinstance(event, Received) else []

    async def scenario(pair: RunnerAndPeer) -> None:
        deliver = pair.runner._transport.publish

        async def publish(topic: str, payload: bytes, retain: bool = False, expires_s: float | None = None) -> None:
            if payload == b"bad":
                raise error
            await deliver(topic, payload, retain)

        pair.runner._transport.publish = publish  # type: ignore[method-assign]
        for payload in (b"bad", b"good"):
            await pair.send(payload)
        assert (await pair.peer.inbox.take()).payload == b"good"
        assert pair.runner.dropped == {"unsendable": 1}

    RunnerAndPeer(answer).play(scenario)


@pytest.mark.parametrize("claimed", [b"", b"\xff", bytes(40_000)])
def test_hardening_1_an_answer_to_a_sender_of_any_length_ends_no_actor(claimed: bytes) -> None:
    """No topic has more than 65,535 bytes."""

    def answer(event: Event) -> Sequence[Effect]:
        if not isinstance(event, Received):
            return []
        return [Send(Address(Channel.CLIENT, one), b"", b"answer") for one in (claimed, PEER)]

    async def scenario(pair: RunnerAndPeer) -> None:
        await pair.send(b"question")
        assert (await pair.peer.inbox.take()).payload == b"answer"
        await settle()
        assert pair.runner.dropped == {"unsendable": 1}

    RunnerAndPeer(answer).play(scenario)


@pytest.mark.parametrize("claimed", ["", "0", "ff" * 15, "ff" * 17, "FF" * 16, "zz" * 16, "f" * 65_000, "é" * 16])
def test_hardening_1_a_topic_of_another_shape_reaches_no_actor(claimed: str) -> None:
    async def scenario(pair: RunnerAndPeer) -> None:
        for payload in (b"\x00whole", b"\x01" + bytes(17) + b"\x01\x00\x02piece"):
            pair.broker.publish(f"{root_of(FEDERATION)}/compute/{ECHO.hex()}/{claimed}", payload, False)
        await pair.send(b"fine")
        await settle()
        assert [event.payload for event in pair.actor.events if isinstance(event, Received)] == [b"fine"]
        assert pair.runner.dropped + pair.runner._transport.inbox.dropped

    RunnerAndPeer(lambda event: ()).play(scenario)


# what is made of packets


HOSTILE_TOPICS = (b"\xff\xfe", b"x/+", b"x/#", b"#", b"x/\x00", b"\xed\xa0\x80", b"x/" + b"y" * 65_000, b"$SYS/x")


def test_hardening_1_no_topic_ends_a_connection_of_the_fleets_client() -> None:
    """A broker would deliver again on the next connection, for ever. That of aiomqtt ends: test_aiomqtt_connection."""

    async def scenario() -> None:
        feed = [published(topic, b"\x00no") for topic in HOSTILE_TOPICS]
        async with Feeding(*feed, published(b"x/a", b"\x00yes")) as broker:
            settings = client_settings(url=broker.url, client="fleet")
            a = MqttTransport(settings, "a", ("x/a",), rng=random.Random(1))
            await a.open()
            assert (await a.inbox.take()).payload == b"yes"
            assert (broker.connections, a.dropped.total()) == (1, len(HOSTILE_TOPICS))
            await a.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


@pytest.mark.parametrize("answer", [b"\x90\x03\x00\x01\x01", b"\x20\x02\x00\x00"], ids=["SUBACK", "CONNACK"])
def test_answers_that_nobody_asked_for_take_no_memory(answer: bytes) -> None:
    """The connection ends at the first one of a flood; aiomqtt keeps none either."""

    async def scenario() -> None:
        async with Feeding(answer * 1000) as broker:
            reports = ReportQueue()
            settings = client_settings(url=broker.url, client="fleet")
            away = Backoff(first_s=3600.0, most_s=3600.0)
            a = MqttTransport(settings, "a", ("x/a",), rng=random.Random(1), backoff=away, on_report=reports)
            await a.open()
            lost = (await reports.next(Disconnected))[-1]
            assert isinstance(lost, Disconnected)
            assert lost.reason.endswith("the broker sent an answer that nobody asked for")
            await a.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


class Breaking(ScriptedBroker):
    """Acknowledges, and can end its newest connection."""

    def __init__(self) -> None:
        super().__init__(acknowledges=(True,) * 9)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.newest = writer
        await super()._serve(reader, writer)


@pytest.mark.usefixtures("each_client")
def test_hardening_1_an_error_in_the_keeping_of_a_connection_ends_the_actor_and_does_not_hide() -> None:
    async def scenario() -> None:
        async with Breaking() as broker:
            a = transport(broker.url, "a", "x/+")
            await a.open()
            a._retries = None  # type: ignore[assignment]
            broker.newest.close()
            with pytest.raises(TransportError, match="an internal error ended the connection: AttributeError"):
                await asyncio.wait_for(a.inbox.take(), PATIENCE_S)
            await a.close()

    asyncio.run(scenario())


class Displaced(ScriptedBroker):
    """Ends each connection once it stands, as a broker does when another copy of the identity connects."""

    connections = 0

    def _answer(self, kind: int, body: bytes) -> bytes | None:
        self.connections += kind == 1
        return None if kind == 4 else super()._answer(kind, body)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for _ in range(2):
                writer.write(self._answer(*await self._packet(reader)) or b"")
            await asyncio.sleep(0.005)  # the connection stands
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


class Noted(Backoff, frozen=True):
    """Short waits; notes when they begin anew."""

    begun: list[int] = []  # noqa: RUF012 - shared on purpose

    def waits(self, rng: random.Random) -> Iterator[float]:
        self.begun.append(1)
        return itertools.repeat(0.001)


@pytest.mark.usefixtures("each_client")
@pytest.mark.parametrize("most_s", [3600.0, 0.0])
def test_hardening_7_two_copies_of_one_identity_back_off_from_each_other(most_s: float) -> None:
    """Waits go on growing over connections that are ended at once; only a lasting one lets them begin anew."""

    async def scenario() -> None:
        async with Displaced() as broker:
            backoff = Noted(most_s=most_s, begun=[])
            a = transport(broker.url, "a", "x/+", backoff=backoff)
            await a.open()
            while broker.connections < 6:  # noqa: ASYNC110 - the scripted broker has no event to wait for
                await asyncio.sleep(0.001)
            await a.close()
            begun = len(backoff.begun)
            assert begun == 1 if most_s else broker.connections - 1 <= begun <= broker.connections + 1

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_hardening_7_waits_begin_anew_after_a_connection_twice_as_long_as_the_longest() -> None:
    retries, waits = Retries(Backoff(first_s=1, most_s=8), random.Random(1)), []
    for lasted_s in (0.1, 3, 15.9, 0, 0, 16, 0.1):
        retries.ended(lasted_s)
        waits.append(retries.wait_s())
    for wait_s, top_s in zip(waits, (1, 2, 4, 8, 8, 1, 2), strict=True):
        assert top_s / 2 <= wait_s <= top_s


@pytest.mark.usefixtures("each_client")
def test_hardening_7_a_second_process_is_suspected_where_connections_all_end_soon() -> None:
    async def scenario() -> None:
        async with Displaced() as broker:
            reports = ReportQueue()
            settings = client_settings(url=broker.url)
            backoff = Noted(most_s=3600.0)  # so no connection is a long one, however slow the machine is
            a = MqttTransport(settings, "a", ("x/+",), rng=random.Random(1), backoff=backoff, on_report=reports)
            await a.open()
            lost = [(await reports.next(Disconnected))[-1].reason for _ in range(3)]
            await a.close()
            assert ["another process" in reason for reason in lost] == [False, False, True]

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


# memory


def test_hardening_7_one_sender_holds_no_more_in_partial_messages_than_one_message_may_have() -> None:
    """Nothing completes, whatever the sizes of its parts; what others send comes through."""
    limits, rng = PartLimits(message_bytes_max=100_000), random.Random(3)
    assembler = Assembler(limits)
    most = limits.message_bytes_max + 4096 * 128 + 1024
    for number in range(3000):
        head = b"\x01" + rng.randbytes(16 if number % 3 else 0).ljust(16, b"x") + rng.randrange(8).to_bytes(2, "big")
        assembler.add("flooder", head + (8).to_bytes(2, "big") + bytes(rng.randrange(1, 30_000)))
        assert assembler.bytes_held <= most
    payload = rng.randbytes(90_000)
    assert [assembler.add("honest", wire) for wire in split(payload, 1024)][-1] == payload
    assert sum(assembler._bytes_of.values()) == assembler.bytes_held


def max_bytes_held(limits: InboxLimits, senders: int) -> float:
    """MiB that an inbox and its partial messages hold, at the worst, of what some senders make."""
    topics = [topic_of(FEDERATION, Address(Channel.COMPUTE, ECHO), bytes([100 + n]) * 16) for n in range(senders)]
    inbox, most, largest = Inbox(("dca/+/+/+/+",), limits), 0, limits.parts.message_bytes_max
    for topic, less in itertools.product(topics, range(12)):
        inbox.offer(topic, bytes(largest >> less))
    pieces = [bytes([number]) * (largest // 4096) for number in range(2)]
    for topic, (number, piece), index in itertools.product(topics, enumerate(pieces), range(4095)):
        inbox.offer(topic, b"\x01" + bytes(15) + bytes([number]) + index.to_bytes(2, "big") + b"\x10\x00" + piece)
        most = max(most, inbox._assembler.bytes_held)
    return (inbox._bytes + most) / MIB


@pytest.mark.long
@pytest.mark.parametrize(("limits", "one", "all_of_them"), [(InboxLimits(), 49, 384), (CLIENT_LIMITS, 3, 10)])
def test_hardening_7_an_actor_holds_a_bounded_amount_of_what_is_not_handled(
    limits: InboxLimits, one: int, all_of_them: int
) -> None:
    """Of one sender, and in all, in MiB: the figures of DESIGN §7, and not one MiB below them."""
    assert one - 1 < max_bytes_held(limits, 1) <= one
    assert all_of_them - 1 < max_bytes_held(limits, 16) <= all_of_them


def test_hardening_7_no_sender_fills_an_inbox_alone() -> None:
    async def scenario() -> None:
        inbox = Inbox(("x/+",), InboxLimits(bytes_max=160_000))
        for _ in range(1000):
            inbox.offer("x/hostile", bytes(1001))
        inbox.offer("x/honest", b"\x00heard")
        taken = [await inbox.take() for _ in range(len(inbox._waiting))]
        assert taken[-1].payload == b"heard"
        assert len(taken) == 1 + 10_000 // 1512
        assert inbox.dropped == {"too many of one sender": 1000 - 10_000 // 1512}
        inbox.offer("x/hostile", b"\x00" + bytes(50_000))
        assert len((await inbox.take()).payload) == 50_000  # one large message, where nothing of it waits
        assert not inbox._bytes_of

    asyncio.run(scenario())


def test_hardening_7_long_topics_hold_no_memory() -> None:
    inbox = Inbox(("x/+",))
    inbox.offer("x/" + "y" * TOPIC_CHARS_MAX, b"\x01" + bytes(16) + b"\x00\x00\x00\x02" + b"piece")
    assert (inbox.dropped, inbox._assembler.bytes_held) == ({"topic": 1}, 0)


# logs


def test_hardening_1_logs_cut_what_came_from_outside() -> None:
    assert len(printable("x" * 10**6)) <= PRINTED_CHARS_MAX + 50
    assert printable("short\n") == "short\\n"


# the embedded broker


def test_hardening_1_no_bytes_end_the_embedded_broker(tmp_path: Path) -> None:
    """Strangers connect, or do not, and send whatever they like; a client goes on."""

    async def scenario() -> None:
        rng = random.Random(5)
        forger = Forger(
            rng,
            Known(bytes(32), [bytes(16)], [], [(f"dca/{bytes(16).hex()}/hello/all/{bytes(16).hex()}", b"\x91\x01")]),
        )
        async with launch_broker(tmp_path, BrokerOptions(kind="embedded")) as broker:
            a = transport(broker.url, "a", "x/+")
            await a.open()
            for number in range(150):
                _, writer = await asyncio.open_connection(*broker.url.removeprefix("mqtt://").split(":"))
                if number % 4:
                    name = f"stranger{number % 3}".encode()
                    writer.write(packet(0x10, b"\0\4MQTT\4\2\0\x3c" + len(name).to_bytes(2, "big") + name))
                for _ in range(rng.randrange(1, 5)):
                    writer.write(forger._raw())
                await asyncio.sleep(0.002)
                writer.close()
            await a.publish("x/a", b"still here")
            assert (await a.inbox.take()).payload == b"still here"
            assert broker.process.poll() is None
            assert "Traceback" not in broker.log_path.read_text()
            await a.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
