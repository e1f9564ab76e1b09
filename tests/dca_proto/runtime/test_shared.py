"""What only a shared connection has: members beside each other. The contract of each is in test_transport."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest
from memory_broker import MemoryBroker, MemoryTransport
from patience import PATIENCE_S
from scripted_broker import client_settings

from dca_proto.errors import TransportError, UsageError
from dca_proto.runtime.broker import Broker
from dca_proto.runtime.mqtt import MqttTransport
from dca_proto.runtime.shared import SharedConnection
from dca_proto.runtime.transport import InboxLimits, Message, Transport


class Counting(MemoryTransport):
    """Counts what crosses the connection, and can be slow to publish."""

    def __init__(self, broker: MemoryBroker, filters: tuple[str, ...]) -> None:
        super().__init__(broker, "gateway", filters, clean=True)
        self.filters = filters
        self.received = 0
        self.go = asyncio.Event()
        self.go.set()
        self.opened = 0
        self.failures_left = 0
        self.is_closed = False
        self._take, self.inbox.take = self.inbox.take, self._counted  # type: ignore[method-assign]

    async def open(self) -> None:
        self.opened += 1
        await self.go.wait()
        if self.failures_left:
            self.failures_left -= 1
            raise TransportError("not yet")
        await super().open()

    async def publish(self, topic: str, payload: bytes, retain: bool = False, expires_s: float | None = None) -> None:
        await self.go.wait()
        await super().publish(topic, payload, retain)

    async def _counted(self) -> Message:
        message = await self._take()
        self.received += 1
        return message

    async def close(self) -> None:
        self.is_closed = True
        await super().close()


class Gateway:
    """Members a, b, c with an inbox each and one broadcast, over one connection in memory."""

    def __init__(self, *, limits: InboxLimits | None = None, failures: int = 0, stuck: bool = False) -> None:
        self.failures, self.stuck = failures, stuck
        self.broker = MemoryBroker()
        self.lines: list[Counting] = []
        self.shared = SharedConnection(self._connect)
        self.members = [self.shared.member((f"in/{name}/+", "all/+"), limits) for name in "abc"]

    @property
    def line(self) -> Counting:
        (line,) = self.lines
        return line

    def _connect(self, filters: tuple[str, ...]) -> Transport:
        self.lines.append(Counting(self.broker, filters))
        self.lines[-1].failures_left = self.failures
        if self.stuck:
            self.lines[-1].go.clear()
        return self.lines[-1]

    async def open(self) -> None:
        await asyncio.gather(*(member.open() for member in self.members))

    async def close(self) -> None:
        for member in self.members:
            await member.close()


def play(scenario: Coroutine[Any, Any, None]) -> None:
    async def watched() -> None:
        await asyncio.wait_for(scenario, PATIENCE_S)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(watched())


def test_one_connection_and_each_filter_once() -> None:
    async def scenario() -> None:
        gateway = Gateway()
        await gateway.open()
        assert gateway.line.opened == 1
        assert gateway.line.filters == ("in/a/+", "all/+", "in/b/+", "in/c/+")
        await gateway.close()

    play(scenario())


def test_each_member_gets_its_messages_and_a_broadcast_crosses_once() -> None:
    async def scenario() -> None:
        gateway = Gateway()
        await gateway.open()
        a, b, c = gateway.members
        await c.publish("in/a/c", b"for a")
        await a.publish("all/a", b"for all")
        assert [await a.inbox.take(), await a.inbox.take()] == [
            Message("in/a/c", b"for a"),
            Message("all/a", b"for all"),
        ]
        for other in (b, c):
            assert await other.inbox.take() == Message("all/a", b"for all")
        assert gateway.line.received == 2
        await gateway.close()

    play(scenario())


def test_a_member_that_does_not_read_loses_its_own_messages_only() -> None:
    async def scenario() -> None:
        gateway = Gateway(limits=InboxLimits(messages_max=3))
        await gateway.open()
        slow, reader, _ = gateway.members
        for number in range(10):
            await reader.publish("all/b", bytes([number]))
            assert (await reader.inbox.take()).payload == bytes([number])
        assert slow.dropped == {"inbox full": 7}  # type: ignore[attr-defined]
        assert [(await slow.inbox.take()).payload for _ in range(3)] == [b"\x00", b"\x01", b"\x02"]
        await gateway.close()

    play(scenario())


def test_members_messages_leave_in_their_order() -> None:
    async def scenario() -> None:
        gateway = Gateway()
        await gateway.open()
        await asyncio.gather(*(gateway.members[n % 3].publish("in/a/x", bytes([n])) for n in range(20)))
        assert [(await gateway.members[0].inbox.take()).payload for _ in range(20)] == [bytes([n]) for n in range(20)]
        await gateway.close()

    play(scenario())


def test_a_member_that_leaves_gets_no_messages_and_the_last_one_closes_the_connection() -> None:
    async def scenario() -> None:
        gateway = Gateway()
        await gateway.open()
        a, b, c = gateway.members
        await a.close()
        await a.close()
        with pytest.raises(TransportError, match="closed"):
            await a.publish("in/b/a", b"")
        await b.publish("in/c/b", b"still here")
        assert (await c.inbox.take()).payload == b"still here"
        await b.close()
        assert not gateway.line.is_closed
        await c.close()
        assert gateway.line.is_closed

    play(scenario())


def test_all_users_learn_of_a_failed_connection_and_may_try_again() -> None:
    async def scenario() -> None:
        gateway = Gateway(failures=1)
        failures = await asyncio.gather(*(member.open() for member in gateway.members), return_exceptions=True)
        assert [str(failure) for failure in failures] == ["not yet"] * 3
        await gateway.open()
        assert gateway.line.opened == 2
        await gateway.close()

    play(scenario())


def test_a_publish_queued_past_the_end_raises() -> None:
    async def scenario() -> None:
        gateway = Gateway()
        await gateway.open()
        line = gateway.line
        line.go.clear()
        sending = [asyncio.ensure_future(gateway.members[0].publish("in/a/x", b"")) for _ in range(2)]
        await asyncio.sleep(0)
        await gateway.close()
        line.go.set()
        for task in sending:
            with pytest.raises(TransportError, match=r"closed|not open"):
                await task

    play(scenario())


def test_an_immediate_retry_does_not_receive_the_earlier_failure() -> None:
    async def scenario() -> None:
        gateway = Gateway(failures=1)

        async def open_twice(member: Transport) -> None:
            with pytest.raises(TransportError, match="not yet"):
                await member.open()
            await member.open()

        await asyncio.gather(*map(open_twice, gateway.members))
        assert gateway.line.opened == 2
        await gateway.close()
        assert gateway.line.is_closed

    play(scenario())


def test_who_opens_after_all_others_have_left_connects_anew() -> None:
    async def scenario() -> None:
        gateway = Gateway()
        first, late, _ = gateway.members
        await first.open()
        await first.close()
        await late.open()
        await late.publish("in/b/b", b"to itself")
        assert (await late.inbox.take()).payload == b"to itself"
        assert [line.is_closed for line in gateway.lines] == [True, False]
        await late.close()
        assert gateway.lines[1].is_closed

    play(scenario())


def test_no_messages_are_kept_for_a_member_that_left() -> None:
    async def scenario() -> None:
        gateway = Gateway()
        await gateway.open()
        gone, reader, _ = gateway.members
        for _ in range(2):
            await reader.publish("all/b", b"news")
            assert (await reader.inbox.take()).payload == b"news"
            await gone.close()
        assert gone.dropped == {"closed": 1}  # type: ignore[attr-defined]
        assert (await gone.inbox.take()).payload == b"news"
        with pytest.raises(TransportError, match="closed"):
            await gone.inbox.take()
        await gateway.close()

    play(scenario())


def test_who_is_cancelled_while_it_opens_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        gateway = Gateway(stuck=True)
        opening = [asyncio.create_task(member.open()) for member in gateway.members]
        for _ in range(3):  # until it has begun to connect
            await asyncio.sleep(0)
        assert gateway.line.opened == 1
        for task in opening:
            task.cancel()
        assert all(
            isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*opening, return_exceptions=True)
        )
        assert gateway.line.is_closed

    play(scenario())


def test_who_is_cancelled_while_it_closes_leaves_no_connection_behind() -> None:
    async def scenario() -> None:
        gateway = Gateway()
        await gateway.open()
        closing = [asyncio.create_task(member.close()) for member in gateway.members]
        await asyncio.sleep(0)
        for task in closing:
            task.cancel()
        await asyncio.wait(closing)
        assert gateway.line.is_closed

    play(scenario())


def test_the_end_of_the_connection_reaches_every_reader() -> None:
    async def scenario() -> None:
        gateway = Gateway()
        await gateway.open()
        reading = [asyncio.create_task(member.inbox.take()) for member in gateway.members]
        await asyncio.sleep(0)
        await MemoryTransport.close(gateway.line)
        for task in reading:
            with pytest.raises(TransportError, match="closed"):
                await task
        await gateway.close()

    play(scenario())


def test_members_are_made_before_it_is_opened() -> None:
    async def scenario() -> None:
        gateway = Gateway()
        with pytest.raises(TransportError, match="not open"):
            await gateway.members[0].publish("all/a", b"")
        await gateway.members[0].open()
        with pytest.raises(UsageError, match="make all members first"):
            gateway.shared.member(("late/+",))
        await gateway.members[0].close()

    play(scenario())


def test_thousands_of_filters_are_subscribed_in_packets_of_limited_size(mosquitto_broker: Broker) -> None:
    async def scenario() -> None:
        def connect(filters: tuple[str, ...]) -> Transport:
            settings = client_settings(url=mosquitto_broker.url, session_expiry_s=0)
            return MqttTransport(settings, "gateway-of-600", filters, rng=random.Random(1))

        shared = SharedConnection(connect)
        members = [shared.member((f"crowd600/{number}/+", "crowd600/all/+")) for number in range(600)]
        await asyncio.gather(*(member.open() for member in members))
        await asyncio.gather(*(members[0].publish(f"crowd600/{number}/x", b"%d" % number) for number in range(600)))
        await members[1].publish("crowd600/all/x", b"all")
        for number, member in enumerate(members):
            assert {(await member.inbox.take()).payload for _ in range(2)} == {b"%d" % number, b"all"}
        await asyncio.gather(*(member.close() for member in members))

    play(scenario())
