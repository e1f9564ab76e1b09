"""What only the MQTT transport has: a broker that is away, comes back, or never was there."""

from __future__ import annotations

import asyncio
import os
import random
import re
import statistics
import time
from itertools import islice, pairwise
from pathlib import Path

import pytest
from patience import PATIENCE_S
from ports import free_port
from scripted_broker import QUICK, ReportQueue, ScriptedBroker, client_settings, transport, until

from dca_proto.errors import TransportError, UsageError
from dca_proto.runtime.broker import Broker, BrokerOptions, launch_broker
from dca_proto.runtime.mqtt import Backoff, MqttTransport
from dca_proto.runtime.packets import PacketReader
from dca_proto.runtime.transport import Connected, Disconnected

pytestmark = pytest.mark.usefixtures("each_client")


async def why_not_open(url: str, answer_timeout_s: float = PATIENCE_S, **settings: object) -> str:
    """What the transport of a broker reports at its start, where that is why it has no connection. Leaves no task."""
    reports, others = ReportQueue(), asyncio.all_tasks()
    waiting = MqttTransport(
        client_settings(url=url, **settings), "a", ("x/+",), rng=random.Random(1), backoff=QUICK,
        answer_timeout_s=answer_timeout_s, on_report=reports,
    )  # fmt: skip
    opening = asyncio.create_task(waiting.open())
    (lost,) = await reports.next(Disconnected)
    opening.cancel()
    await asyncio.wait([opening])
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == others
    assert lost.url == url
    return lost.reason


def test_an_unreachable_broker_is_named_at_once() -> None:
    url = f"mqtt://127.0.0.1:{free_port()}"
    reason = asyncio.run(why_not_open(url))
    assert reason == f"cannot reach broker at {url}: connection refused; is it running?"


def test_a_host_that_does_not_exist_is_named() -> None:
    url = "mqtt://no-such-host.invalid:1883"
    assert re.fullmatch(rf"cannot reach broker at {url}: .*; is it running\?", asyncio.run(why_not_open(url)))


def test_hardening_9_a_broker_that_is_down_at_the_start_is_waited_for_like_a_later_loss(tmp_path: Path) -> None:
    """A loss is reported, and each new reason, however many tries follow; a return, with how long it took."""
    options = BrokerOptions(kind="embedded", port=free_port())
    url = f"mqtt://127.0.0.1:{options.port}"

    async def scenario() -> None:
        now = asyncio.get_running_loop().time
        reports = ReportQueue()
        a = MqttTransport(
            client_settings(url=url), "a", ("in/+",), rng=random.Random(1), backoff=QUICK, on_report=reports
        )
        opening = asyncio.create_task(a.open())
        for outage in range(2):
            began = now()
            (lost,) = await reports.next(Disconnected)
            assert lost.reason.startswith(("cannot reach broker at", "lost the connection to broker")[outage])
            async with launch_broker(tmp_path, options):
                *reasons, back = await reports.next(Connected)
                assert all(one.reason != next_one.reason for one, next_one in pairwise([lost, *reasons]))
                assert 0 < back.away_s <= now() - began
                await opening
                await a.publish("in/a", b"echo")
                assert (await a.inbox.take()).payload == b"echo"
        await a.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_a_refusal_at_the_start_is_the_callers_mistake_also_after_waiting() -> None:
    async def scenario() -> None:
        reports = ReportQueue()
        port = free_port()
        a = MqttTransport(
            client_settings(url=f"mqtt://127.0.0.1:{port}"), "a", ("x/+",), rng=random.Random(1), backoff=QUICK,
            on_report=reports,
        )  # fmt: skip
        opening = asyncio.create_task(a.open())
        await reports.next(Disconnected)
        async with ScriptedBroker(connack=5, port=port):
            with pytest.raises(UsageError, match="refused user name"):
                await opening

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


@pytest.mark.parametrize(
    ("scheme", "advice"),
    [
        ("mqtt", "does that port need TLS? Then the URL begins with mqtts://"),
        ("mqtts", "does that port speak TLS? Without TLS, the URL begins with mqtt://"),
    ],
)
def test_a_port_that_may_speak_tls_or_not_is_hinted_at(scheme: str, advice: str, each_client: str) -> None:
    """As brokers do at a packet of the other kind: they end the connection without an answer.

    aiomqtt does not notice that before CONNACK, so the attempt takes as long as an answer may.
    """
    is_unnoticed = each_client == "aiomqtt" and scheme == "mqtt"

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(8)  # the rest is unread, so the connection is reset
        writer.transport.abort()

    async def scenario() -> str:
        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            return await why_not_open(f"{scheme}://127.0.0.1:{port}", 0.5 if is_unnoticed else PATIENCE_S)
        finally:
            server.close()

    reason = asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
    assert reason.startswith(f"cannot reach broker at {scheme}://127.0.0.1:")
    unnoticed = "no answer; check that it speaks MQTT, and whether it needs TLS (mqtts://)"
    assert reason.endswith(unnoticed if is_unnoticed else f"; {advice}")


def test_a_brokers_max_packet_size_is_named_where_it_ends_connections() -> None:
    """MQTT 3.1.1 has no reason for it: the broker just ends each connection on which the packet arrives."""
    most = 5_000

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        packets = PacketReader()
        while data := await reader.read(1 << 16):
            for packet, starts in packets.feed(data):
                kind, body = packet[0] >> 4, packet[starts:]
                if kind == 3 and len(body) > most:
                    writer.close()
                    return
                number = body[2 + int.from_bytes(body[:2], "big") :][:2]
                writer.write({1: b"\x20\x02\0\0", 8: b"\x90\x03" + body[:2] + b"\1", 3: b"\x40\x02" + number}[kind])
        writer.close()

    async def scenario() -> list[str]:
        server, reports = await asyncio.start_server(serve, "127.0.0.1", 0), ReportQueue()
        url = f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        a = MqttTransport(
            client_settings(url=url), "a", ("x/+",), rng=random.Random(1), backoff=QUICK, on_report=reports
        )
        await a.open()
        await a.publish("x/y", bytes(most - 100))
        sent = a.publish("x/y", bytes(2 * most))
        losses = [(await reports.next(Disconnected))[-1].reason for _ in range(5)]
        await a.close()
        with pytest.raises(TransportError):
            await sent
        server.close()
        return losses

    first, *others = asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
    assert "max_packet_size" not in first, "a connection may end at any time"
    for reason in others:
        assert (
            ", again while a packet of 10,006 bytes was on its way, larger than any before: its max_packet_size"
            in reason
        )
        assert reason.endswith("raise that (in mosquitto.conf), or set a lower part_bytes_max here")
        assert "identity" not in reason


def test_many_connect_at_once_where_others_are_subscribed(any_broker: Broker) -> None:
    """Brokers exist that lose connections here: they walk through their subscriptions while these change."""

    async def crowd(number: int) -> None:
        names = [f"crowd{number}-{index}" for index in range(30)]
        members = [transport(any_broker.url, name, f"crowd/{name}/+", "dca/crowd/hello/all/+") for name in names]
        await asyncio.wait_for(asyncio.gather(*(member.open() for member in members)), PATIENCE_S)
        await members[0].publish(f"dca/crowd/hello/all/{names[0]}", b"kept", retain=True)
        received = await asyncio.wait_for(asyncio.gather(*(member.inbox.take() for member in members)), PATIENCE_S)
        assert {message.payload for message in received} == {b"kept"}
        await asyncio.gather(*(member.close() for member in members))

    for number in range(3):
        asyncio.run(crowd(number))


def test_a_server_that_never_answers_can_be_cancelled_without_leak() -> None:
    async def scenario() -> None:
        acknowledged = asyncio.Event()
        ended = asyncio.Event()

        async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(1)
            acknowledged.set()
            await reader.read()
            ended.set()
            writer.close()

        server = await asyncio.start_server(keep, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        opening = asyncio.create_task(transport(f"mqtt://127.0.0.1:{port}", "a", "x/+").open())
        await acknowledged.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await ended.wait()
        server.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


@pytest.mark.parametrize("kind", ["embedded", "mosquitto"])
def test_publishes_wait_out_an_outage(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The broker goes away; what is published meanwhile arrives, all of it, when it is back."""
    if kind == "mosquitto":
        request.getfixturevalue("mosquitto_installed")
    options = BrokerOptions(kind=kind, port=free_port())
    sent = [bytes([number]) for number in range(30)]

    async def scenario() -> None:
        async with launch_broker(tmp_path, options) as broker:
            a, b = transport(broker.url, "a", "in/+"), transport(broker.url, "b", "x/+")
            await a.open()
            await b.open()
        waiting = [asyncio.ensure_future(b.publish("in/b", content)) for content in sent]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        async with launch_broker(tmp_path, options):
            await asyncio.gather(*waiting)
            if kind == "mosquitto":  # rumqttd has forgotten who subscribed; whoever reconnects later misses these
                received: set[bytes] = set()
                while received != set(sent):
                    received.add((await a.inbox.take()).payload)
            await b.publish("in/b", b"after")
            await a.close()
            await b.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_subscriptions_are_renewed_after_a_restart_that_forgot_them(tmp_path: Path) -> None:
    options = BrokerOptions(kind="embedded", port=free_port())

    async def scenario() -> None:
        a = transport(f"mqtt://127.0.0.1:{options.port}", "a", "in/+")
        for first in (True, False):
            async with launch_broker(tmp_path, options):
                if first:
                    await a.open()
                receiving = asyncio.create_task(a.inbox.take())
                while not receiving.done():
                    await a.publish("in/a", b"echo")
                    await asyncio.wait([receiving], timeout=0.05)
        await a.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_a_mosquitto_restart_keeps_queued_messages(mosquitto_installed: None, tmp_path: Path) -> None:
    """Attack 9: acknowledged, then the broker restarts, then delivered."""
    options = BrokerOptions(kind="mosquitto", port=free_port())

    async def scenario() -> None:
        async with launch_broker(tmp_path, options) as broker:
            a, b = transport(broker.url, "a", "in/+"), transport(broker.url, "b", "x/+")
            await a.open()
            await a.close()
            await b.open()
            await b.publish("in/b", b"kept")
            await b.close()
        async with launch_broker(tmp_path, options) as broker:
            back = transport(broker.url, "a", "in/+")
            await back.open()
            assert (await back.inbox.take()).payload == b"kept"
            await back.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_many_publishes_at_once(any_broker: Broker) -> None:
    sent = {number.to_bytes(2, "big") for number in range(500)}

    async def scenario() -> None:
        topic = f"many{os.getpid()}"
        a, b = transport(any_broker.url, topic + "a", topic + "/+"), transport(any_broker.url, topic + "b", "x/+")
        await asyncio.gather(a.open(), b.open())
        await asyncio.gather(*(b.publish(topic + "/b", content) for content in sent))
        received: set[bytes] = set()
        while received != sent:
            received.add((await a.inbox.take()).payload)
        await asyncio.gather(a.close(), b.close())

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_an_unacknowledged_publish_is_sent_again_on_the_next_connection() -> None:
    async def scenario() -> None:
        async with ScriptedBroker(acknowledges=(False, False, True)) as broker:
            a = transport(broker.url, "a", "x/+")
            await a.open()
            await a.publish("x/a", b"important")
            await a.close()
            assert [body[-9:] for body in broker.published] == [b"important"] * 3

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


class Withholding(ScriptedBroker):
    """Acknowledges nothing until the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            writer.write(self._answer(*await self._packet(reader)) or b"")
        answering = asyncio.create_task(self._answer_late(writer))
        try:
            while True:
                self.published.append((await self._packet(reader))[1])
        except asyncio.IncompleteReadError:
            answering.cancel()
            writer.close()

    async def _answer_late(self, writer: asyncio.StreamWriter) -> None:
        answered = 0
        while await self.go.wait():
            await asyncio.sleep(0)
            for body in self.published[answered:]:
                writer.write(bytes([0x40, 2, *body[2 + body[1] :][:2]]))
                answered += 1


def test_few_packets_are_under_way_at_once_and_the_others_follow_in_order() -> None:
    async def scenario() -> None:
        async with Withholding() as broker:
            a = transport(broker.url, "a", "x/+")
            await a.open()
            sending = [a.publish("x/a", number.to_bytes(2, "big")) for number in range(600)]
            await until(lambda: len(broker.published) >= 256)
            await asyncio.sleep(0.05)
            assert len(broker.published) == 256
            assert not any(one.done() for one in sending)
            broker.go.set()
            await asyncio.gather(*sending)
            assert [int.from_bytes(body[-2:], "big") for body in broker.published] == list(range(600))
            await a.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_a_cancelled_publish_does_not_block_the_others() -> None:
    async def scenario() -> None:
        async with Withholding() as broker:
            broker.go.set()
            a = transport(broker.url, "a", "x/+", backoff=Backoff(first_s=60))
            given_up, kept = a.publish("x/a", b"given up"), a.publish("x/a", b"kept")
            given_up.cancel()
            await a.open()
            await kept
            assert [body[-4:] for body in broker.published] == [b"kept"]
            await a.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_a_broker_that_falls_silent_is_left() -> None:
    """Nothing comes within the keepalive, not even the answer to a ping."""

    async def scenario() -> None:
        async with Withholding() as broker:
            reports = ReportQueue()
            settings = client_settings(url=broker.url, keepalive_s=1)
            a = MqttTransport(settings, "a", ("x/+",), rng=random.Random(1), backoff=QUICK, on_report=reports)
            await a.open()
            await reports.until("the broker was silent for 1 s")
            await a.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


@pytest.mark.long
def test_an_actor_that_works_for_longer_than_its_keepalive_loses_no_message(tmp_path: Path) -> None:
    """Meanwhile nobody answers the broker, which ends the connection."""

    async def scenario() -> None:
        options = BrokerOptions(kind="mosquitto", port=free_port())
        async with launch_broker(tmp_path, options):
            url = f"mqtt://127.0.0.1:{options.port}"
            a, b = (
                MqttTransport(
                    client_settings(url=url, keepalive_s=1), name, (f"{name}/+",), rng=random.Random(1), backoff=QUICK
                )
                for name in "ab"
            )
            await a.open()
            await b.open()
            before = asyncio.ensure_future(b.publish("a/b", b"1"))
            await asyncio.sleep(0)
            time.sleep(4)  # noqa: ASYNC251 - this is the work
            await before
            await a.publish("b/a", b"2")
            assert [(await one.inbox.take()).payload for one in (a, b)] == [b"1", b"2"]
            await a.close()
            await b.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_closing_ends_a_publish_that_waits() -> None:
    async def scenario() -> None:
        async with ScriptedBroker(acknowledges=(False,)) as broker:
            a = transport(broker.url, "a", "x/+", backoff=Backoff(first_s=60))
            await a.open()
            waiting = asyncio.ensure_future(a.publish("x/a", b"1"))
            while not broker.published:  # noqa: ASYNC110 - the scripted broker has no event to wait for
                await asyncio.sleep(0)
            await a.close()
            with pytest.raises(TransportError, match="closed"):
                await waiting

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


@pytest.mark.parametrize("code", [4, 5])
def test_refused_credentials_are_the_callers_mistake(code: int) -> None:
    async def scenario() -> None:
        async with ScriptedBroker(connack=code) as broker:
            with pytest.raises(UsageError, match=r"refused user name \(none given\) or password"):
                await transport(broker.url, "a", "x/+").open()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_a_server_too_busy_may_be_tried_again() -> None:
    async def scenario() -> None:
        async with ScriptedBroker(connack=3) as broker:
            assert (await why_not_open(broker.url)).startswith("cannot reach broker")

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_a_refused_subscription_is_named() -> None:
    async def scenario() -> None:
        async with ScriptedBroker(suback=0x80) as broker:
            with pytest.raises(UsageError, match="refused subscriptions of a: see its access list"):
                await transport(broker.url, "a", "x/+").open()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_a_connection_lost_while_subscribing_is_noticed_at_once() -> None:
    async def scenario() -> None:
        async with ScriptedBroker(suback=None) as broker:
            reason = await why_not_open(broker.url)
            assert reason.startswith(f"cannot reach broker at {broker.url}: connection lost while subscribing")

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_back_off_doubles_to_its_limit_and_is_spread() -> None:
    """1,000 seeded first waits: each in [0.5, 1], their mean within 5 standard errors of 0.75 (false alarm 6e-7)."""
    backoff = Backoff(first_s=1, most_s=8)
    tops = [list(islice(backoff.waits(random.Random(seed)), 6)) for seed in range(1000)]
    for waits in tops:
        assert all(top / 2 <= wait <= top for wait, top in zip(waits, (1, 2, 4, 8, 8, 8), strict=True))
    firsts = [waits[0] for waits in tops]
    assert abs(statistics.mean(firsts) - 0.75) < 5 * (0.5 / 12**0.5) / 1000**0.5
