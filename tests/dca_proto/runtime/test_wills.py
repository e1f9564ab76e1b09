"""The last will: the broker tells Compute nodes and trainers whose connection broke off. It is a hint, and no more."""

from __future__ import annotations

import asyncio
import random

import pytest
from patience import PATIENCE_S
from scripted_broker import QUICK, break_off, client_settings

from dca_proto.protocol.effects import Address, Channel
from dca_proto.protocol.wire.topics import subscriptions, topic_of
from dca_proto.runtime import mqtt, status
from dca_proto.runtime.broker import Broker
from dca_proto.runtime.mqtt import Backoff, MqttTransport
from dca_proto.runtime.status import Watch
from dca_proto.runtime.transport import Connected, Gone, Inbox

FEDERATION, NODE, TRAINER, CLIENT = (bytes([number]) * 16 for number in (9, 1, 2, 3))
AWAY = Backoff(first_s=3600.0, most_s=3600.0)


def will_of(member: bytes) -> str:
    return topic_of(FEDERATION, Address(Channel.GONE), member)


async def next_of(reports: asyncio.Queue[object], kind: type) -> object:
    while not isinstance(found := await reports.get(), kind):
        pass
    return found


def test_a_connection_that_breaks_off_is_told_to_others_and_a_leave_is_not(
    each_version: str, mosquitto_broker: Broker
) -> None:
    """The first node leaves, the second one breaks off: only that is heard of, and nothing is in an inbox."""
    federation = random.Random(each_version).randbytes(16)

    def transport(role: Channel, member: bytes, reports: asyncio.Queue[object]) -> MqttTransport:
        topics = subscriptions(federation, role, member)
        settings = client_settings(url=mosquitto_broker.url, session_expiry_s=0)
        name, will = (federation[:8] + member[8:]).hex(), topic_of(federation, Address(Channel.GONE), member)
        return MqttTransport(
            settings, name, topics, rng=random.Random(1), backoff=AWAY, on_report=reports.put_nowait, will=will
        )

    async def scenario() -> None:
        heard: asyncio.Queue[object] = asyncio.Queue()
        trainer = transport(Channel.TRAINER, TRAINER, heard)
        leaving, breaking = (transport(Channel.COMPUTE, member, asyncio.Queue()) for member in (NODE, CLIENT))
        await asyncio.gather(trainer.open(), leaving.open(), breaking.open())
        await leaving.close()
        break_off(breaking)
        assert await next_of(heard, Gone) == Gone(CLIENT)
        assert heard.empty()
        assert trainer.inbox.poll() is None
        await asyncio.gather(trainer.close(), breaking.close())

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_no_actor_sees_a_will_and_a_client_does_not_even_hear_of_it() -> None:
    gone: list[bytes] = []
    for role in (Channel.COMPUTE, Channel.TRAINER, Channel.CLIENT):
        inbox = Inbox(subscriptions(FEDERATION, role, TRAINER))
        inbox.on_gone = gone.append
        inbox.offer(will_of(NODE), b"")
        inbox.offer(will_of(NODE), b"\0with a payload")
        inbox.offer(will_of(NODE), b"", retained=True)  # of an attacker: ours are not
        inbox.offer(will_of(NODE)[:-1], b"")
        assert inbox.poll() is None
        expected = {"retained": 1} if role is not Channel.CLIENT else {"retained": 1, "not subscribed": 3}
        assert inbox.dropped == expected
    assert gone == [NODE] * 4, "two each at a Compute node and a trainer"


def test_wills_in_anybodys_name_fill_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of members that matter, one a minute is passed on; of others, none, whatever their number."""
    now, heard = [100.0], []
    monkeypatch.setattr(status.time, "monotonic", lambda: now[0])
    watch = Watch(heard.append, bytes.hex, {NODE, TRAINER}.__contains__)
    for second in range(120):
        now[0] = 100.0 + second
        for member in (NODE, CLIENT, TRAINER, second.to_bytes(16, "big")):
            watch(Gone(member))
    assert heard == [Gone(NODE), Gone(TRAINER)] * 2
    assert set(watch._gone_s) == {NODE, TRAINER}, "no memory for others"


def test_a_probe_of_the_version_leaves_no_will(mosquitto_broker: Broker, each_client: str) -> None:
    """It is a stranger's connection."""
    hellos = []

    async def scenario() -> None:
        reports: asyncio.Queue[object] = asyncio.Queue()
        settings = client_settings(url=mosquitto_broker.url, version="auto", session_expiry_s=0)
        name = random.Random(each_client).randbytes(16).hex()
        a = MqttTransport(
            settings, name, ("x/+",), rng=random.Random(1), backoff=QUICK,
            on_report=reports.put_nowait, will=will_of(NODE),
        )  # fmt: skip
        connect = mqtt.connect
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mqtt, "connect", lambda hello, listener: hellos.append(hello) or connect(hello, listener))
            await a.open()
        await next_of(reports, Connected)
        await a.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
    assert [(hello.is_probe, hello.will) for hello in hellos] == [(True, None), (False, will_of(NODE))]
