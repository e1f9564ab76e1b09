"""A loop for many actors: one transaction for all that are ready, and each actor's own order and durability."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from memory_broker import MemoryBroker, MemoryTransport
from patience import PATIENCE_S
from runner_and_peer import FEDERATION, PEER, Echo, HandClock, echo, settle

from dca_proto.errors import TransportError
from dca_proto.protocol.effects import Address, Channel, Effect, SetTimer, Write
from dca_proto.protocol.events import Command, Event, Received, Started, Timer, TimerFired
from dca_proto.protocol.wire.topics import subscriptions, topic_of
from dca_proto.runtime.runner import Runner, RunnerLimits
from dca_proto.runtime.shared_loop import SharedLoop
from dca_proto.runtime.store import MemoryStore

ACTORS = 5


class SlowStore:
    """Commits when told to, and remembers by whom each transaction is."""

    def __init__(self) -> None:
        self.transactions: list[list[bytes]] = []
        self.may_commit = asyncio.Event()
        self.may_commit.set()

    async def commit_all(self, writes: Sequence[tuple[bytes, Sequence[Write]]]) -> None:
        await self.may_commit.wait()
        self.transactions.append([actor for actor, _ in writes])


class Many:
    """Actors in one loop on a memory broker, and a peer that talks to them."""

    def __init__(self, answer: Callable[[Event], Sequence[Effect]] = echo) -> None:
        self.broker, self.store, self.clock = MemoryBroker(), SlowStore(), HandClock()
        self.peer = MemoryTransport(self.broker, "peer", subscriptions(FEDERATION, Channel.CLIENT, PEER))
        self.actors, self.transports, self.runners = [], [], []
        for number in range(ACTORS):
            actor = Echo(answer)
            actor.id = bytes([10 + number]) * 16
            filters = subscriptions(FEDERATION, Channel.COMPUTE, actor.id)
            transport = MemoryTransport(self.broker, f"actor {number}", filters)
            limits = RunnerLimits(publishing_max=4)
            runner = Runner(actor, transport, MemoryStore(), federation=FEDERATION, clock=self.clock, limits=limits)
            self.actors.append(actor)
            self.transports.append(transport)
            self.runners.append(runner)

    async def send(self, number: int, payload: bytes) -> None:
        await self.peer.publish(topic_of(FEDERATION, Address(Channel.COMPUTE, self.actors[number].id), PEER), payload)

    def received(self, number: int) -> list[bytes]:
        return [event.payload for event in self.actors[number].events if isinstance(event, Received)]

    def play(self, scenario: Callable[[Many], Awaitable[None]]) -> None:
        async def watched() -> None:
            await self.peer.open()
            running = asyncio.create_task(SharedLoop(self.store, self.clock).run(self.runners))
            await settle()
            try:
                await asyncio.wait_for(scenario(self), PATIENCE_S)
            finally:
                running.cancel()
                await asyncio.wait([running])
            assert asyncio.all_tasks() == {asyncio.current_task()}
            with pytest.raises(TransportError):
                self.transports[0].inbox.check()

        asyncio.run(watched())


def test_all_actors_that_are_ready_share_a_transaction() -> None:
    async def scenario(many: Many) -> None:
        await asyncio.gather(*(many.send(number, b"to all") for number in range(ACTORS)))
        assert [(await many.peer.inbox.take()).payload for _ in range(ACTORS)] == [b"to all"] * ACTORS
        assert many.store.transactions == [[actor.id for actor in many.actors]]
        assert all(actor.events == [Started(), Received(PEER, b"to all")] for actor in many.actors)

    Many().play(scenario)


def test_no_message_leaves_before_its_write_is_durable_and_its_actor_waits() -> None:
    async def scenario(many: Many) -> None:
        many.store.may_commit.clear()
        await many.send(0, b"first")
        await settle()
        await many.send(0, b"second")
        await many.send(1, b"other")
        await settle()
        assert (many.received(0), many.received(1)) == ([b"first"], [b"other"]), "another actor does not wait"
        assert many.peer.inbox.poll() is None
        many.store.may_commit.set()
        sent = [(await many.peer.inbox.take()).payload for _ in range(3)]
        assert sorted(sent) == [b"first", b"other", b"second"]
        assert sent.index(b"first") < sent.index(b"second")

    Many().play(scenario)


def test_nothing_leaves_if_the_transaction_fails_and_all_end() -> None:
    class Full(SlowStore):
        async def commit_all(self, writes: Sequence[tuple[bytes, Sequence[Write]]]) -> None:
            raise OSError("disk full")

    async def scenario() -> None:
        many = Many()
        await many.peer.open()
        running = asyncio.create_task(SharedLoop(Full(), many.clock).run(many.runners))
        await settle()
        await many.send(0, b"one")
        with pytest.raises(ExceptionGroup) as failed:
            await running
        assert failed.group_contains(OSError, match="disk full")
        assert many.peer.inbox.poll() is None
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


def test_an_actors_exception_ends_all() -> None:
    def answer(event: Event) -> Sequence[Effect]:
        if isinstance(event, Command):
            raise AssertionError("ours")
        return ()

    async def scenario() -> None:
        many = Many(answer)
        many.runners[3].command("go")
        with pytest.raises(ExceptionGroup) as failed:
            await SharedLoop(many.store, many.clock).run(many.runners)
        assert failed.group_contains(AssertionError, match="ours")

    asyncio.run(scenario())


def test_each_actors_timers_fire_when_due_and_once() -> None:
    tick, tock = Timer("tick"), Timer("tock")

    def answer(event: Event) -> Sequence[Effect]:
        if isinstance(event, Started):
            return [SetTimer(tick, 2_001), SetTimer(tock, 500_000)]
        return [SetTimer(tick, 3_000)] if isinstance(event, Command) else ()

    def fired(many: Many, number: int) -> list[Timer]:
        return [event.timer for event in many.actors[number].events if isinstance(event, TimerFired)]

    async def scenario(many: Many) -> None:
        many.runners[1].command("later")
        await settle()
        many.clock.advance(1_000)
        await settle()
        assert fired(many, 0) == [], "never too early"
        many.clock.advance(20)
        await settle()
        assert (fired(many, 0), fired(many, 1)) == ([tick], [])
        many.clock.advance(980)
        await settle()
        assert (fired(many, 0), fired(many, 1)) == ([tick], [tick])
        many.clock.advance(500_000)
        await settle()
        assert all(fired(many, number) == [tick, tock] for number in range(ACTORS))

    Many(answer).play(scenario)


def held_back(many: Many) -> list[asyncio.Future[None]]:
    """Keep what the first actor publishes pending; return what ends each."""
    pending: list[asyncio.Future[None]] = []

    def publish(topic: str, payload: bytes, retain: bool = False, expires_s: float | None = None) -> Awaitable[None]:
        pending.append(asyncio.get_running_loop().create_future())
        return pending[-1]

    many.transports[0].publish = publish  # type: ignore[method-assign]
    return pending


def test_an_actor_with_too_many_pending_sends_handles_nothing_until_there_is_room() -> None:
    async def scenario(many: Many) -> None:
        pending = held_back(many)
        for payload in (b"1", b"2", b"3", b"4", b"5", b"6"):
            await many.send(0, payload)
            await settle()
        assert many.received(0) == [b"1", b"2", b"3", b"4"]
        await many.send(1, b"other")
        assert (await many.peer.inbox.take()).payload == b"other"
        pending[0].set_result(None)
        await settle()
        assert many.received(0) == [b"1", b"2", b"3", b"4", b"5", b"6"]

    Many().play(scenario)


def test_an_actor_without_room_whose_timer_is_due_does_not_keep_the_loop_busy() -> None:
    class Impatient(HandClock):
        """Rings at once if the time has come, as the machine's clock does."""

        rings = 0

        def call_at(self, at_ms: int, callback: Callable[[], None]) -> HandClock.Alarm:
            alarm = super().call_at(at_ms, callback)
            if at_ms <= self.ms:
                self.rings += 1
                asyncio.get_running_loop().call_soon(alarm.look, self.ms)
            return alarm

    tick = Timer("tick")

    def answer(event: Event) -> Sequence[Effect]:
        return [SetTimer(tick, 2_000)] if isinstance(event, Started) else echo(event)

    async def scenario(many: Many) -> None:
        pending = held_back(many)
        for payload in (b"1", b"2", b"3", b"4"):
            await many.send(0, payload)
            await settle()
        many.clock.advance(2_000)
        await settle()
        assert many.clock.rings < 3
        assert TimerFired(tick) not in many.actors[0].events
        pending[0].set_result(None)
        await settle()
        assert many.actors[0].events[-1] == TimerFired(tick)

    many = Many(answer)
    many.clock = Impatient()
    for runner in many.runners:
        runner._clock = many.clock
    many.play(scenario)
