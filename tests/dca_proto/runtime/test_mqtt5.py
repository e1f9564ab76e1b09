"""What actors tell a broker in MQTT 5 and not in 3.1.1. The receiver is aiomqtt itself, which shows properties."""

from __future__ import annotations

import asyncio

import aiomqtt
import pytest
from patience import PATIENCE_S
from scripted_broker import transport

from dca_proto.runtime.broker import Broker
from dca_proto.runtime.mqtt import _EXPIRY_S_MAX, _Outgoing
from dca_proto.runtime.settings import BrokerSettings


def listener(url: str, name: str) -> aiomqtt.Client:
    """An unopened client for MQTT 5."""
    settings = BrokerSettings(url=url)
    version = aiomqtt.ProtocolVersion.V5
    return aiomqtt.Client(settings.host, settings.port, identifier=name, protocol=version, timeout=PATIENCE_S)


def test_a_message_carries_for_how_long_it_is_of_use(each_version: str, mosquitto_broker: Broker) -> None:
    """The broker passes on what is left of it. Each part of a large message has it; other messages last for ever."""
    name = f"expiry-{each_version.replace(' ', '-')}"

    async def scenario() -> list[int | None]:
        a = transport(mosquitto_broker.url, name, "x/+")
        await a.open()
        async with listener(mosquitto_broker.url, f"{name}-listener") as other:
            await other.subscribe(f"{name}/+", qos=1)
            for payload, expires_s in ((b"1", 999.5), (bytes(300 << 10), 5000), (b"3", None)):
                await a.publish(f"{name}/a", payload, expires_s=expires_s)
            received = [await anext(aiter(other.messages)) for _ in range(4)]
        await a.close()
        return [getattr(message.properties, "MessageExpiryInterval", None) for message in received]

    left = asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
    if not each_version.endswith("5"):
        assert left == [None] * 4
        return
    first, *others = left
    assert first is not None
    assert 1000 - PATIENCE_S <= first <= 1000, "rounded up"
    assert [part is not None and 5000 - PATIENCE_S <= part <= 5000 for part in others] == [True, True, False]


def test_a_message_that_waited_has_less_time_left() -> None:
    """In a transport without a connection, and from one connection to the next."""
    loop = asyncio.new_event_loop()
    try:
        made = [_Outgoing("x/a", False, 1, loop.create_future(), at) for at in (100.0, None, 1e12)]
    finally:
        loop.close()
    assert [made[0].expiry_s(now) for now in (40.0, 40.5, 99.5, 100.0, 500.0)] == [60, 60, 1, 1, 1]
    assert [each.expiry_s(40.0) for each in made[1:]] == [None, _EXPIRY_S_MAX]


def test_what_the_broker_keeps_does_not_expire(mosquitto_broker: Broker) -> None:
    async def scenario() -> None:
        a = transport(mosquitto_broker.url, "expiry-retained", "x/+")
        with pytest.raises(ValueError, match="a retained message does not expire"):
            a.publish("x/a", b"1", retain=True, expires_s=1.0)
        await a.close()

    asyncio.run(scenario())
