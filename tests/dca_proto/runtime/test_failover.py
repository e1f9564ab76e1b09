"""Which broker an actor uses, and which version of MQTT."""

from __future__ import annotations

import asyncio
import random

import pytest
from patience import PATIENCE_S
from ports import free_port
from scripted_broker import QUICK, ReportQueue, ScriptedBroker, client_settings, until

from dca_proto.errors import UsageError
from dca_proto.runtime.broker import Broker
from dca_proto.runtime.connection import Connection
from dca_proto.runtime.mqtt import Backoff, MqttTransport
from dca_proto.runtime.transport import Connected, Disconnected

pytestmark = pytest.mark.usefixtures("each_client")


def test_a_broker_that_cannot_be_reached_is_replaced_by_the_next_one_and_each_is_named() -> None:
    async def scenario() -> None:
        reports, gone = ReportQueue(), f"mqtt://127.0.0.1:{free_port()}"
        async with (
            ScriptedBroker(acknowledges=(True,) * 9) as first,
            ScriptedBroker(acknowledges=(True,) * 9) as second,
        ):
            settings = client_settings(url=gone, failover=(first.url, second.url))
            a = MqttTransport(settings, "a", ("x/+",), rng=random.Random(1), backoff=QUICK, on_report=reports)
            await a.open()
            away, *_, back = await reports.next(Connected)
            assert (away.url, back.url) == (gone, first.url)
            await a.publish("x/a", b"to the first")
            await first.stop()
            *away, back = await reports.next(Connected)
            assert away[0].url == first.url
            assert back.url == second.url
            await a.publish("x/a", b"to the second")
            assert [body[-13:] for body in (*first.published, *second.published)] == [
                b"\0to the first",
                b"to the second",
            ]
            await a.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_a_broker_that_refuses_the_password_later_is_replaced_by_the_next_one() -> None:
    """One member of a cluster is out of memory, or lost its password file; at the start a refusal ends the actor."""

    async def scenario() -> None:
        reports = ReportQueue()
        async with (
            ScriptedBroker(acknowledges=(True,) * 9) as first,
            ScriptedBroker(connack=5) as refusing,
            ScriptedBroker(acknowledges=(True,) * 9) as last,
        ):
            settings = client_settings(url=first.url, failover=(refusing.url, last.url))
            a = MqttTransport(settings, "a", ("x/+",), rng=random.Random(1), backoff=QUICK, on_report=reports)
            await a.open()
            await reports.next(Connected)
            await first.stop()
            *_, refused, back = await reports.next(Connected)
            assert (refused.url, back.url) == (refusing.url, last.url)
            assert "refused user name" in refused.reason
            await a.close()
            only_refusing = client_settings(url=refusing.url, failover=(last.url,))
            with pytest.raises(UsageError, match="refused user name"):
                await MqttTransport(only_refusing, "b", ("x/+",), rng=random.Random(1)).open()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_brokers_that_stay_away_are_reported_once_each() -> None:
    """Not at every attempt, though each attempt is at another broker than the last."""

    async def scenario() -> None:
        reports: list[object] = []
        gone = [f"mqtt://127.0.0.1:{free_port()}" for _ in range(3)]
        settings = client_settings(url=gone[0], failover=tuple(gone[1:]))
        shortest = Backoff(first_s=0.001, most_s=0.001)
        a = MqttTransport(settings, "a", ("x/+",), rng=random.Random(1), backoff=shortest, on_report=reports.append)
        attempts, connect = [], a._connect

        async def counted() -> Connection:
            attempts.append(1)
            return await connect()

        a._connect = counted  # type: ignore[method-assign]
        opening = asyncio.create_task(a.open())
        await until(lambda: len(attempts) > 9)
        opening.cancel()
        await asyncio.wait([opening])
        await a.close()
        assert [report.url for report in reports if isinstance(report, Disconnected)] == gone

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


@pytest.mark.parametrize(("kind", "expected"), [("embedded", "3.1.1"), ("mosquitto", "5")])
def test_a_probe_finds_the_version_that_the_broker_speaks(
    kind: str, expected: str, each_client: str, request: pytest.FixtureRequest
) -> None:
    broker: Broker = request.getfixturevalue(f"{kind}_broker")

    async def scenario() -> None:
        settings = client_settings(url=broker.url, version="auto")
        silent_s = 1.0 if kind == "embedded" else PATIENCE_S  # it closes without an answer; aiomqtt waits for one
        a = MqttTransport(
            settings, f"probing-{each_client}", ("probe/+",),
            rng=random.Random(1), backoff=QUICK, answer_timeout_s=silent_s,
        )  # fmt: skip
        await a.open()
        await a.publish("probe/a", b"news")
        assert (await a.inbox.take()).payload == b"news"
        assert a._version == expected
        await a.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_each_broker_is_asked_for_its_version(mosquitto_broker: Broker, each_client: str) -> None:
    """After one that speaks 5, one that only speaks 3.1.1, and refuses the other."""

    async def scenario() -> None:
        reports = ReportQueue()
        async with OnlyOlder() as older:
            settings = client_settings(url=mosquitto_broker.url, failover=(older.url,), version="auto")
            name = f"asked-{each_client}"
            a = MqttTransport(settings, name, ("x/+",), rng=random.Random(1), backoff=QUICK, on_report=reports)
            await a.open()
            assert a._version == "5"
            a._brokers, a._tried = a._brokers[1:], 0  # the first one is gone
            assert a._connection is not None
            await a._connection.leave()
            assert (await reports.next(Connected))[-1].url == mosquitto_broker.url  # type: ignore[attr-defined]
            assert (await reports.next(Connected))[-1].url == older.url  # type: ignore[attr-defined]
            assert a._version == "3.1.1"
            await a.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


class OnlyOlder(ScriptedBroker):
    """Refuses MQTT 5 with the code of 3.1.1."""

    def _answer(self, kind: int, body: bytes) -> bytes | None:
        if kind == 1 and body[6] == 5:
            return bytes([0x20, 3, 0, 132, 0])
        return super()._answer(kind, body)
