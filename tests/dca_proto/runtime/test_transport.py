"""The transport contract: one set of checks for memory, MQTT on the embedded broker, MQTT on mosquitto, and members of
connections that are shared over these."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from typing import Any

import pytest
from memory_broker import MemoryBroker, MemoryTransport
from patience import PATIENCE_S
from scripted_broker import CLIENTS, OF_311

from dca_proto.errors import TransportError, UsageError
from dca_proto.runtime.mqtt import MqttTransport
from dca_proto.runtime.settings import BrokerSettings
from dca_proto.runtime.shared import SharedConnection
from dca_proto.runtime.transport import Message, Transport

_NAMES = count()
PART_BYTES = 64 * 1024


class Link:
    """Makes transports of one kind that reach each other, under topics that no other test uses."""

    def __init__(self, make: Callable[[str, tuple[str, ...], bool], Transport]) -> None:
        self.make = make
        self.root = f"t{next(_NAMES)}-{os.getpid()}"

    def transport(self, name: str, *filters: str, clean: bool = False) -> Transport:
        return self.make(f"{self.root}-{name}", tuple(f"{self.root}/{each}" for each in filters), clean)

    @asynccontextmanager
    async def opened(self, name: str, *filters: str, clean: bool = False) -> Any:
        transport = self.transport(name, *filters, clean=clean)
        await transport.open()
        try:
            yield transport
        finally:
            await transport.close()


_BROKERS = [*(f"embedded {client}" for client in OF_311), *(f"mosquitto {client}" for client in CLIENTS)]
if URL := os.environ.get("TEST_BROKER"):  # a broker that runs already: tests/e2e/test_other_brokers.py
    _BROKERS += [f"given {client}" for client in OF_311]
_SHARED = ["memory", *(f"mosquitto {client}" for client in OF_311)]


@pytest.fixture(params=["memory", *_BROKERS, *(f"shared {kind}" for kind in _SHARED)])
def link(request: pytest.FixtureRequest) -> Link:
    kind, *client = request.param.removeprefix("shared ").split(" ", 1)
    if kind == "memory":
        link = Link(partial(memory_transport, MemoryBroker()))
    else:
        url = URL if kind == "given" else request.getfixturevalue(f"{kind}_broker").url
        link = mqtt_link(str(url), *client)
    return shared(link) if request.param.startswith("shared") else link


def shared(link: Link) -> Link:
    """Each transport is a member of a connection of its own, beside another member that listens to the same."""

    def make(name: str, filters: tuple[str, ...], clean: bool) -> Transport:
        connection = SharedConnection(lambda union: link.make(name, union, clean))
        connection.member(filters)
        return connection.member(filters)

    return Link(make)


def memory_transport(broker: MemoryBroker, name: str, filters: tuple[str, ...], clean: bool) -> Transport:
    return MemoryTransport(broker, name, filters, clean=clean, part_bytes_max=PART_BYTES)


def mqtt_link(url: str, client: str) -> Link:
    def make(name: str, filters: tuple[str, ...], clean: bool) -> Transport:
        settings = BrokerSettings(
            url=url, **CLIENTS[client], part_bytes_max=PART_BYTES, session_expiry_s=0 if clean else 3600
        )
        return MqttTransport(settings, name, filters, rng=random.Random(name))

    return Link(make)


def play(scenario: Awaitable[None]) -> None:
    """Run a scenario within reasonable time, and see that it leaves no task behind."""

    async def watched() -> None:
        await asyncio.wait_for(scenario, PATIENCE_S)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(watched())


async def payloads(transport: Transport, number: int) -> list[bytes]:
    """The first `number` different payloads: a transport may deliver twice."""
    seen: dict[bytes, None] = {}
    while len(seen) < number:
        seen[(await transport.inbox.take()).payload] = None
    return list(seen)


def test_delivers_any_bytes_whole(link: Link) -> None:
    contents = [b"", b"\x00", b"\x01" * 30, bytes(range(256)), os.urandom(PART_BYTES - 1)]

    async def scenario() -> None:
        async with link.opened("a", "in/+") as a, link.opened("b", "other/+") as b:
            for content in contents:
                await b.publish(f"{link.root}/in/b", content)
            assert await payloads(a, len(contents)) == contents
            await b.publish(f"{link.root}/in/b", b"last")
            assert await a.inbox.take() == Message(f"{link.root}/in/b", b"last")

    play(scenario())


def test_one_megabyte_travels_in_parts(link: Link) -> None:
    content = os.urandom(1_000_000)

    async def scenario() -> None:
        async with link.opened("a", "in/+") as a:
            await a.publish(f"{link.root}/in/a", content)
            assert (await a.inbox.take()).payload == content

    play(scenario())


def test_messages_of_a_sender_arrive_in_order(link: Link) -> None:
    sent = [number.to_bytes(4, "big") for number in range(200)]

    async def scenario() -> None:
        async with link.opened("a", "in/+") as a, link.opened("b", "x/+") as b:
            for content in sent:
                await b.publish(f"{link.root}/in/b", content)
            assert await payloads(a, len(sent)) == sent

    play(scenario())


def test_wildcards_match_one_level(link: Link) -> None:
    async def scenario() -> None:
        async with link.opened("a", "+/inbox/a/+", "news/+") as a:
            others = ("r1/inbox/b/s", "r1/inbox/a/s/t", "inbox/a/s", "news")
            for topic in ("r1/inbox/a/s", *others, "news/x", "end/inbox/a/s"):
                await a.publish(f"{link.root}/{topic}", topic.encode())
            received = []
            while b"end/inbox/a/s" not in received:
                received.append((await a.inbox.take()).payload)
            assert list(dict.fromkeys(received)) == [b"r1/inbox/a/s", b"news/x", b"end/inbox/a/s"]

    play(scenario())


def test_every_subscriber_receives(link: Link) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            listeners = [await stack.enter_async_context(link.opened(f"l{n}", "news/+")) for n in range(5)]
            await listeners[0].publish(f"{link.root}/news/x", b"to all")
            for listener in listeners:
                assert (await listener.inbox.take()).payload == b"to all"

    play(scenario())


def test_retained_reaches_the_late_and_the_last_counts(link: Link) -> None:
    async def scenario() -> None:
        async with link.opened("a", "x/+") as a:
            await a.publish(f"{link.root}/f/epoch/all/a", b"old", True)
            await a.publish(f"{link.root}/f/epoch/all/a", b"new", True)
            async with link.opened("late", "f/epoch/all/+") as late:
                assert (await late.inbox.take()).payload == b"new"

    play(scenario())


def test_what_is_kept_reaches_who_names_its_topic(link: Link) -> None:
    """All that RabbitMQ keeps: it delivers none of it for a filter with `+`."""

    async def scenario() -> None:
        async with link.opened("a", "x/+") as a:
            await a.publish(f"{link.root}/f/epoch/all/a", b"key", True)
            async with link.opened("late", "f/epoch/all/a") as late:
                assert (await late.inbox.take()).payload == b"key"

    play(scenario())


@pytest.mark.parametrize("place", ["f/compute/b/a", "f/announce/all/a", "f/abort/all/a", "f/hello/b/a"])
def test_a_message_retained_outside_the_key_topics_reaches_nobody(link: Link, place: str) -> None:
    """Whoever may write to an inbox may leave a message there for good: it is dropped each time it is found."""

    async def scenario() -> None:
        async with link.opened("a", "x/+") as a:
            await a.publish(f"{link.root}/{place}", b"left behind", True)
            async with link.opened("b", f"{place.rpartition('/')[0]}/+") as b:
                await a.publish(f"{link.root}/{place}", b"of now")
                assert (await b.inbox.take()).payload == b"of now"

    play(scenario())


def test_retained_must_fit_one_part(link: Link) -> None:
    async def scenario() -> None:
        async with link.opened("a", "x/+") as a:
            with pytest.raises(UsageError, match="retained message must fit one part"):
                await a.publish(f"{link.root}/epoch/a", bytes(PART_BYTES), True)

    play(scenario())


def test_a_kept_session_gathers_messages(link: Link) -> None:
    async def scenario() -> None:
        async with link.opened("away", "in/+"):
            pass
        async with link.opened("b", "x/+") as b:
            for number in range(20):
                await b.publish(f"{link.root}/in/b", bytes([number]))
        async with link.opened("away", "in/+") as back:
            assert sorted(await payloads(back, 20)) == [bytes([number]) for number in range(20)]

    play(scenario())


@pytest.mark.parametrize("link", ["memory", *_BROKERS], indirect=True)
def test_what_comes_while_a_transport_closes_waits_for_the_next(link: Link) -> None:
    """It was acknowledged and dropped: a client that sleeps by plan closes its connection every day.

    A member of a shared connection may close while others stay, and the broker knows nothing of that.
    """
    everything = {b"%d" % number for number in range(1000)}

    async def scenario() -> None:
        seen: set[bytes] = set()
        async with link.opened("b", "x/+") as b:
            async with link.opened("a", "in/+"):
                pass
            sending = [asyncio.ensure_future(b.publish(f"{link.root}/in/b", payload)) for payload in everything]
            while seen != everything:
                async with link.opened("a", "in/+") as a:
                    target = min(len(seen) + 200, len(everything))
                    while len(seen) < target:
                        seen.add((await a.inbox.take()).payload)
                while len(a.inbox):
                    seen.add((await a.inbox.take()).payload)
            await asyncio.gather(*sending)

    play(scenario())


def test_a_clean_session_forgets(link: Link) -> None:
    async def scenario() -> None:
        async with link.opened("away", "in/+", clean=True):
            pass
        async with link.opened("b", "x/+") as b:
            await b.publish(f"{link.root}/in/b", b"missed")
        async with link.opened("away", "in/+", clean=True) as back, link.opened("b", "x/+") as b:
            await b.publish(f"{link.root}/in/b", b"heard")
            assert (await back.inbox.take()).payload == b"heard"

    play(scenario())


def test_closing_ends_a_waiting_reader_and_every_later_call(link: Link) -> None:
    async def scenario() -> None:
        async with link.opened("a", "in/+") as a:
            waiting = asyncio.create_task(a.inbox.take())
            await asyncio.sleep(0)
            await a.close()
            with pytest.raises(TransportError, match="closed"):
                await waiting
            with pytest.raises(TransportError):
                await a.publish(f"{link.root}/in/a", b"late")
            with pytest.raises(TransportError, match="closed"):
                await a.open()

    play(scenario())
