"""What aiomqtt and paho do otherwise than a transport needs, each with the answer of `AiomqttConnection`."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import ssl
import threading
import warnings
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import psutil
import pytest
from patience import PATIENCE_S
from scripted_broker import (
    QUICK,
    Feeding,
    ReportQueue,
    ScriptedBroker,
    client_settings,
    published,
    transport,
    until,
)

from dca_proto.errors import TransportError
from dca_proto.runtime.connection import Connect, Listener
from dca_proto.runtime.mqtt import MqttTransport
from dca_proto.runtime.transport import Disconnected


def play(scenario: Awaitable[None], patience_s: float = PATIENCE_S) -> None:
    """Run a scenario. It leaves no task, and no thread that still connects."""

    async def watched() -> None:
        await asyncio.wait_for(scenario, patience_s)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(watched())


def sockets_to(url: str) -> int:
    """How many sockets this process has that are connected to a broker of the test."""
    port = int(url.rpartition(":")[2])
    return sum(bool(each.raddr) and each.raddr.port == port for each in psutil.Process().net_connections("tcp"))


@pytest.mark.parametrize("turns", range(0, 30, 2))
def test_a_transport_closes_whatever_it_does_at_that_moment(turns: int) -> None:
    """Before Python 3.12, `asyncio.wait_for` may swallow a cancellation: then the transport would never close."""

    async def scenario() -> None:
        async with Feeding(published(b"#", b"\0no")) as broker:
            a = transport(broker.url, "a", "x/+")
            await a.open()
            connection = a._connection
            assert connection is not None
            await asyncio.wait([connection.lost])
            for _ in range(turns):
                await asyncio.sleep(0)
            await a.close()

    play(scenario())


@pytest.mark.parametrize("topic", [b"\xff\xfe", b"x/+", b"#", b"\xed\xa0\x80"])
def test_a_forbidden_topic_ends_the_connection_and_leaves_no_socket(topic: bytes) -> None:
    """aiomqtt refuses such a topic by an exception, which ends its connection but leaves its socket open."""

    async def scenario() -> None:
        async with Feeding(published(topic, b"\0no")) as broker:
            reports = ReportQueue()
            settings = client_settings(url=broker.url)
            a = MqttTransport(settings, "a", ("x/+",), rng=random.Random(1), backoff=QUICK, on_report=reports)
            opening = asyncio.create_task(a.open())
            reasons = [(await reports.next(Disconnected))[-1].reason for _ in range(6)]
            await opening
            assert all("the broker sent a topic that MQTT forbids" in reason for reason in reasons)
            assert sockets_to(broker.url) <= 2
            await a.close()
            assert sockets_to(broker.url) == 0

    play(scenario())


def test_no_thread_but_the_loops_own_ends_the_watching_of_a_socket() -> None:
    """The loop may be about to read it at that moment. Then it would call a reader that has just been removed."""

    async def scenario() -> None:
        loop: Any = asyncio.get_running_loop()
        own, elsewhere = threading.get_ident(), list[str]()

        def recording(name: str) -> None:
            remove = getattr(loop, name)

            def recorded(fd: int) -> bool:
                was_watched = bool(remove(fd))
                if was_watched and threading.get_ident() != own:
                    elsewhere.append(name)
                return was_watched

            setattr(loop, name, recorded)

        recording("remove_reader")
        recording("remove_writer")
        async with Feeding(published(b"#", b"\0no")) as broker:
            reports = ReportQueue()
            settings = client_settings(url=broker.url)
            a = MqttTransport(settings, "a", ("x/+",), rng=random.Random(1), backoff=QUICK, on_report=reports)
            opening = asyncio.create_task(a.open())
            for _ in range(6):
                await reports.next(Disconnected)
            await opening
            await a.close()
        assert elsewhere == []

    play(scenario())


def test_a_socket_that_closes_while_a_message_waits_is_not_watched() -> None:
    """Its number may be another socket's by then, which would be written to without end."""

    async def scenario() -> None:
        wrong: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: wrong.append(context))
        async with ScriptedBroker() as broker:
            reports = ReportQueue()
            settings = client_settings(url=broker.url)
            a = MqttTransport(settings, "a", ("x/+",), rng=random.Random(1), backoff=QUICK, on_report=reports)
            await a.open()
            connection: Any = a._connection
            connection._client._client.socket().shutdown(socket.SHUT_RD)  # its end is read in the turn of the publish
            publishing = asyncio.ensure_future(a.publish("x/a", b"payload"))
            await reports.next(Disconnected)
            publishing.cancel()
            await a.close()
        assert not wrong

    play(scenario())


def test_a_message_is_acknowledged_after_it_was_delivered() -> None:
    async def scenario() -> None:
        at_acknowledgement: list[int] = []
        body = b"\x00\x03x/a\x00\x07\x00payload"

        class Watching(Feeding):
            def _answer(self, kind: int, body: bytes) -> bytes | None:
                if kind == 4:
                    at_acknowledgement.append(len(a.inbox))
                return super()._answer(kind, body)

        async with Watching(bytes([0x32, len(body)]) + body) as broker:
            a = transport(broker.url, "a", "x/a")
            await a.open()
            await until(lambda: at_acknowledgement)
            assert at_acknowledgement == [1]
            await a.close()

    play(scenario())


def test_cancelling_a_connect_that_gets_no_answer_is_quick_and_leaves_no_socket() -> None:
    async def scenario() -> None:
        async with ScriptedBroker(connack=None) as broker:  # takes CONNECT, and is silent
            settings = client_settings(url=broker.url)
            a = MqttTransport(settings, "a", ("x/+",), rng=random.Random(1), answer_timeout_s=PATIENCE_S)
            opening = asyncio.create_task(a.open())
            await until(lambda: broker.connects)
            began = asyncio.get_running_loop().time()
            opening.cancel()
            await asyncio.wait([opening])
            assert asyncio.get_running_loop().time() - began < PATIENCE_S / 2
            assert sockets_to(broker.url) == 0

    play(scenario())


class Silent(ScriptedBroker):
    """Takes CONNECT, and never answers."""

    def __init__(self) -> None:
        super().__init__(connack=None)


class Ending(ScriptedBroker):
    """Ends a connection at its CONNECT, as a broker that is restarted does, or a proxy without one."""

    def _answer(self, kind: int, body: bytes) -> bytes | None:
        self.connects.append(body)
        return None


@pytest.mark.parametrize(("kind", "why"), [(Silent, "no answer"), (Ending, "")])
def test_an_attempt_that_gets_no_connack_ends_and_leaves_no_socket(kind: type[Silent | Ending], why: str) -> None:
    """With the transport's timeout, or with the connection, whose loss aiomqtt does not notice."""

    async def scenario() -> None:
        async with kind() as broker:
            reports = ReportQueue()
            a = MqttTransport(
                client_settings(url=broker.url), "a", ("x/+",), rng=random.Random(1), backoff=QUICK,
                answer_timeout_s=0.2, on_report=reports,
            )  # fmt: skip
            opening = asyncio.create_task(a.open())
            (lost,) = await reports.next(Disconnected)
            assert why in lost.reason
            await until(lambda: len(broker.connects) >= 4)
            assert sockets_to(broker.url) <= 2
            opening.cancel()
            await asyncio.wait([opening])
            assert sockets_to(broker.url) == 0

    play(scenario())


def test_each_transport_blocks_at_most_one_thread_of_the_default_pool() -> None:
    """A listener that never accepts: further connects to it hang in the kernel, in paho's five seconds."""

    async def scenario() -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            port = listener.getsockname()[1]
            filling = [socket.socket() for _ in range(4)]
            for each in filling:
                each.setblocking(False)
                each.connect_ex(("127.0.0.1", port))
            before = threading.active_count()
            opening = asyncio.create_task(transport(f"mqtt://127.0.0.1:{port}", "a", "x/+").open())
            await asyncio.sleep(0.5)
            assert threading.active_count() - before <= 1
            opening.cancel()
            await asyncio.wait([opening])
            for each in filling:
                each.close()

    play(scenario())


def test_a_failed_handshake_closes_its_socket(tmp_path: Path) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(8)
        writer.transport.abort()

    async def scenario() -> None:
        from dca_proto.runtime.aiomqtt_connection import AiomqttConnection

        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        settings = client_settings(url=f"mqtts://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        connection = AiomqttConnection(
            Connect(settings, "a", tls=settings.tls_context()), Listener(lambda message: True, lambda number: None)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error", ResourceWarning)
            with pytest.raises((OSError, TransportError)) as kept:  # its traceback keeps the socket, if it is open
                await connection.open()
            assert sockets_to(settings.url) == 0
            await connection.leave()
        assert isinstance(kept.value, ssl.SSLError | ConnectionError)
        server.close()

    play(scenario())


def test_packets_leave_without_delay() -> None:
    """paho does not set TCP_NODELAY: then each small packet may wait for the acknowledgement of an earlier one."""

    async def scenario() -> None:
        async with ScriptedBroker() as broker:
            a = transport(broker.url, "a", "x/+")
            await a.open()
            port = int(broker.url.rpartition(":")[2])
            (own,) = [
                each
                for each in psutil.Process().net_connections("tcp")
                if each.raddr and each.raddr.port == port and each.status == psutil.CONN_ESTABLISHED
            ]
            with socket.socket(fileno=os.dup(own.fd)) as same:
                assert same.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            await a.close()

    play(scenario())
