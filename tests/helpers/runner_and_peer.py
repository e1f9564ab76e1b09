"""A runner with a small actor over the memory transport, a clock turned by hand, and a peer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from memory_broker import MemoryBroker, MemoryTransport
from patience import PATIENCE_S

from dca_proto.protocol.effects import (
    Address,
    Channel,
    Effect,
    Persist,
    Send,
    Write,
)
from dca_proto.protocol.events import Event, Received
from dca_proto.protocol.wire.topics import subscriptions, topic_of
from dca_proto.runtime.runner import Runner, RunnerLimits
from dca_proto.runtime.shared_loop import SharedLoop
from dca_proto.runtime.store import MemoryStore, Store

ECHO, PEER = bytes([1]) * 16, bytes([2]) * 16
FEDERATION = bytes(32)


class HandClock:
    """A clock that advances only when the test sets it."""

    def __init__(self) -> None:
        self.ms = 1_000
        self.set_ms = 0  # by how much it was set in all
        self._alarms: list[list[object]] = []

    def now_ms(self) -> int:
        return self.ms

    def steady_ms(self) -> int:
        return self.ms - self.set_ms

    def set(self, by_ms: int) -> None:
        self.set_ms += by_ms
        self.advance(by_ms)

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> HandClock.Alarm:
        alarm = HandClock.Alarm(at_ms, callback)
        self._alarms.append([at_ms, alarm])
        return alarm

    def advance(self, ms: int) -> None:
        self.ms += ms
        for _, alarm in self._alarms:
            assert isinstance(alarm, HandClock.Alarm)
            alarm.look(self.ms)

    class Alarm:
        def __init__(self, at_ms: int, callback: Callable[[], None]) -> None:
            self._at_ms, self._callback, self._over = at_ms, callback, False

        def cancel(self) -> None:
            self._over = True

        def look(self, now_ms: int) -> None:
            if not self._over and now_ms >= self._at_ms:
                self._over = True
                self._callback()


class Echo:
    """Answers every message with what `answer` gives, and remembers its events."""

    def __init__(self, answer: Callable[[Event], Sequence[Effect]]) -> None:
        self.id = ECHO
        self.events: list[Event] = []
        self._answer = answer

    def handle(self, event: Event, now_ms: int) -> Sequence[Effect]:
        self.events.append(event)
        return self._answer(event)


def echo(event: Event) -> Sequence[Effect]:
    if not isinstance(event, Received):
        return ()
    return (Persist("seen", event.payload, b""), Send(Address(Channel.CLIENT, PEER), b"", event.payload))


class WatchedStore(MemoryStore):
    """Notes when commits begin and end."""

    def __init__(self, diary: list[Any]) -> None:
        super().__init__()
        self._diary = diary

    async def commit(self, writes: Sequence[Write]) -> None:
        self._diary.append(f"commit {len(writes)}")
        await settle()  # time enough for whatever does not wait
        await super().commit(writes)
        self._diary.append("durable")


class RunnerAndPeer:
    """A runner on a memory broker, and a peer that talks to it. It may run in a loop for many."""

    is_shared = False

    def __init__(self, answer: Callable[[Event], Sequence[Effect]], store: Store | None = None) -> None:
        self.broker = MemoryBroker()
        self.actor = Echo(answer)
        self.clock = HandClock()
        self.facts: list[object] = []
        self.peer = MemoryTransport(self.broker, "peer", subscriptions(FEDERATION, Channel.CLIENT, PEER))
        filters = subscriptions(FEDERATION, Channel.COMPUTE, ECHO)
        self._store = store or MemoryStore()
        self.runner = Runner(
            self.actor,
            MemoryTransport(self.broker, "echo", filters),
            self._store,
            federation=FEDERATION,
            clock=self.clock,
            on_report=lambda fact: self.facts.append(fact),
            limits=RunnerLimits(batch_events_max=8, publishing_max=16),
        )

    async def send(self, payload: bytes) -> None:
        await self.peer.publish(topic_of(FEDERATION, Address(Channel.COMPUTE, ECHO), PEER), payload)

    async def commit_all(self, writes: Sequence[tuple[bytes, Sequence[Write]]]) -> None:
        for _, own in writes:
            await self._store.commit(own)

    async def _run(self) -> None:
        if not self.is_shared:
            return await self.runner.run()
        try:
            await SharedLoop(self, self.clock).run([self.runner])
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    def play(self, scenario: Callable[[RunnerAndPeer], Awaitable[None]]) -> None:
        async def watched() -> None:
            await self.peer.open()
            running = asyncio.create_task(self._run())
            await settle()  # it has subscribed
            try:
                await asyncio.wait_for(scenario(self), PATIENCE_S)
            finally:
                running.cancel()
                await asyncio.wait([running])
            assert asyncio.all_tasks() == {asyncio.current_task()}
            if not running.cancelled():
                running.result()

        asyncio.run(watched())


async def settle() -> None:
    """Let everything that can go on, go on."""
    for _ in range(50):
        await asyncio.sleep(0)
