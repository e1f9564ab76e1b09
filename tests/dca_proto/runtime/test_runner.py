"""The runner, with a small actor over the memory transport and a clock turned by hand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_S
from runner_and_peer import ECHO, FEDERATION, PEER, Echo, RunnerAndPeer, WatchedStore, echo, settle
from structlog.testing import capture_logs

from dca_proto.errors import TransportError, UsageError
from dca_proto.protocol.effects import (
    Address,
    CancelTimer,
    Channel,
    Effect,
    Forget,
    Persist,
    Report,
    Send,
    SetTimer,
)
from dca_proto.protocol.events import Command, Event, Received, Started, Timer, TimerFired
from dca_proto.protocol.wire.topics import root_of, topic_of
from dca_proto.runtime.clock import SystemClock
from dca_proto.runtime.runner import Runner, RunnerLimits, Timers
from dca_proto.runtime.store import MemoryStore, SqliteStore, StoreRecord
from dca_proto.runtime.transport import Message, Pending


@pytest.fixture(params=[False, True], ids=["alone", "shared"])
def alone_and_shared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner in a task of its own, and in a loop for many."""
    monkeypatch.setattr(RunnerAndPeer, "is_shared", request.param)


@pytest.mark.usefixtures("alone_and_shared")
def test_started_comes_first_and_messages_are_answered() -> None:
    async def scenario(pair: RunnerAndPeer) -> None:
        for number in range(100):
            await pair.send(bytes([number]))
        assert [(await pair.peer.inbox.take()).payload for _ in range(100)] == [
            bytes([number]) for number in range(100)
        ]
        assert pair.actor.events[0] == Started()
        assert pair.actor.events[1] == Received(PEER, b"\x00")
        await settle()
        assert (pair.runner.traffic.messages_sent, pair.runner.traffic.bytes_received) == (100, 100)

    RunnerAndPeer(echo).play(scenario)


@pytest.mark.usefixtures("alone_and_shared")
def test_a_message_expires_by_the_actors_clock() -> None:
    left: list[float | None] = []

    def answer(event: Event) -> Sequence[Effect]:
        to = Address(Channel.CLIENT, PEER)
        if not isinstance(event, Received):
            return ()
        return (Send(to, b"", b"1", expires_ms=3_500), Send(to, b"", b"2"))

    async def scenario(pair: RunnerAndPeer) -> None:
        publish = pair.runner.transport.publish

        def noting(topic: str, payload: bytes, retain: bool = False, expires_s: float | None = None) -> Any:
            left.append(expires_s)
            return publish(topic, payload, retain, expires_s)

        pair.runner.transport.publish = noting  # type: ignore[method-assign]
        await pair.send(b"go")
        await settle()
        pair.clock.advance(4_000)
        await pair.send(b"again")
        await settle()

    RunnerAndPeer(answer).play(scenario)
    assert left == [2.5, None, -1.5, None], "the clock begins at one second"


@pytest.mark.usefixtures("alone_and_shared")
def test_messages_are_shown_before_a_batch_handles_them() -> None:
    shown: list[tuple[int, list[bytes]]] = []

    async def scenario(pair: RunnerAndPeer) -> None:
        await settle()
        pair.runner._look_ahead = lambda messages: shown.append(
            (len(pair.actor.events), [payload for sender, payload in messages if sender == PEER])
        )
        for number in range(3):
            pair.broker.publish(topic_of(FEDERATION, Address(Channel.COMPUTE, ECHO), PEER), bytes([0, number]), False)
        pair.broker.publish("no topic of ours", b"\0x", False)
        await settle()
        assert shown == [(1, [b"\0", b"\1", b"\2"])], "after `Started`, before any of them"
        assert len(pair.actor.events) == 4

    RunnerAndPeer(echo).play(scenario)


@pytest.mark.usefixtures("alone_and_shared")
def test_writes_are_durable_before_anything_leaves() -> None:
    diary: list[str] = []

    def answer(event: Event) -> Sequence[Effect]:
        if not isinstance(event, Received):
            return ()
        diary.append("handled")
        to = Address(Channel.CLIENT, PEER)
        return (Send(to, b"", b"1"), Persist("t", event.payload, b""), Forget("t", b"x"), Send(to, b"", b"2"))

    async def scenario(pair: RunnerAndPeer) -> None:
        topic = topic_of(FEDERATION, Address(Channel.COMPUTE, ECHO), PEER)
        for number in range(3):
            pair.broker.publish(topic, bytes([0, number]), False)
        deliver = pair.broker.publish
        pair.broker.publish = lambda *what: (diary.append("sent"), deliver(*what))[1]  # type: ignore[method-assign]
        assert [(await pair.peer.inbox.take()).payload for _ in range(6)] == [b"1", b"2"] * 3
        assert diary == ["handled"] * 3 + ["commit 6", "durable"] + ["sent"] * 6  # one commit for the whole batch

    RunnerAndPeer(answer, WatchedStore(diary)).play(scenario)


@pytest.mark.usefixtures("alone_and_shared")
def test_facts_are_reported_in_order_once_durable() -> None:
    diary: list[object] = []

    async def scenario(pair: RunnerAndPeer) -> None:
        await settle()
        await settle()  # the commit takes as long
        assert diary == ["commit 1", "durable", "one", "two"]

    pair = RunnerAndPeer(lambda event: (Report("one"), Persist("t", b"k", b""), Report("two")), WatchedStore(diary))
    pair.facts = diary
    pair.play(scenario)


@pytest.mark.usefixtures("alone_and_shared")
def test_nothing_leaves_when_the_store_fails(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = SqliteStore(tmp_path / "store.db", bytes(32))
        store._connection.execute("PRAGMA max_page_count = 4")
        pair = RunnerAndPeer(lambda event: (Persist("t", b"k", bytes(1 << 20)), *echo(event)), store)
        await pair.peer.open()
        await pair.send(b"question")
        with pytest.raises(UsageError, match="free disk space"):
            await pair.runner.run()
        assert pair.runner.traffic.messages_sent == 0
        await store.close()

    asyncio.run(scenario())


@pytest.mark.usefixtures("alone_and_shared")
def test_timers_fire_when_due_in_order_and_once() -> None:
    first, second, dropped, moved = (Timer(name) for name in ("first", "second", "dropped", "moved"))

    def answer(event: Event) -> Sequence[Effect]:
        match event:
            case Started():
                due = ((second, 3000), (first, 2000), (dropped, 2500), (moved, 2000))
                return [SetTimer(timer, at_ms) for timer, at_ms in due]
            case TimerFired(timer) if timer == first:
                return [CancelTimer(dropped), SetTimer(moved, 9000)]
        return ()

    def fired(pair: RunnerAndPeer) -> list[Timer]:
        return [event.timer for event in pair.actor.events if isinstance(event, TimerFired)]

    async def scenario(pair: RunnerAndPeer) -> None:
        assert fired(pair) == []
        pair.clock.advance(1_000)
        await settle()
        assert fired(pair) == [first]
        pair.clock.advance(5_000)
        await settle()
        assert fired(pair) == [first, second]
        pair.clock.advance(5_000)
        await settle()
        assert fired(pair) == [first, second, moved]

    RunnerAndPeer(answer).play(scenario)


@pytest.mark.usefixtures("alone_and_shared")
def test_commands_reach_the_actor() -> None:
    async def scenario(pair: RunnerAndPeer) -> None:
        pair.runner.command("go")
        await settle()
        assert pair.actor.events == [Started(), Command("go")]
        assert pair.facts == ["went"]

    RunnerAndPeer(lambda event: [Report("went")] if isinstance(event, Command) else ()).play(scenario)


def test_stop_hands_over_what_is_ready_then_returns() -> None:
    def answer(event: Event) -> Sequence[Effect]:
        number = 50 if isinstance(event, Command) else 0
        return [Send(Address(Channel.CLIENT, PEER), b"", bytes([n])) for n in range(number)]

    async def scenario() -> None:
        pair = RunnerAndPeer(answer)
        await pair.peer.open()
        pair.runner.command("all")
        pair.runner.stop()
        await asyncio.wait_for(pair.runner.run(), PATIENCE_S)
        assert [(await pair.peer.inbox.take()).payload for _ in range(50)] == [bytes([n]) for n in range(50)]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


@pytest.mark.usefixtures("alone_and_shared")
def test_messages_on_topics_of_another_shape_are_dropped_and_counted() -> None:
    async def scenario(pair: RunnerAndPeer) -> None:
        pair.broker.publish(f"{root_of(FEDERATION)}/compute/{ECHO.hex()}/not-hex", b"\x00x", False)
        await pair.send(b"fine")
        assert (await pair.peer.inbox.take()).payload == b"fine"
        assert pair.runner.dropped == {"topic": 1}
        assert len(pair.actor.events) == 2

    RunnerAndPeer(echo).play(scenario)


class Stubborn:
    """A transport whose broker answers no publish until the test allows it, but delivers without end."""

    def __init__(self) -> None:
        self.answer = asyncio.Event()
        self.topic = topic_of(FEDERATION, Address(Channel.COMPUTE, ECHO), PEER)
        self.inbox = Endless(self.topic)
        self.published = 0
        self.plenty = asyncio.Event()

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def publish(self, topic: str, payload: bytes, retain: bool = False, expires_s: float | None = None) -> None:
        await self.answer.wait()
        self.published += 1
        if self.published == 1000:
            self.plenty.set()


class Endless(Pending):
    """There is always one more message."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        self._message = Message(topic, b"more")
        self.taken = 0

    def __len__(self) -> int:
        return 1

    def poll(self) -> Message:
        self.taken += 1
        return self._message


def test_a_silent_broker_pauses_the_handling_without_a_deadlock() -> None:
    async def scenario() -> None:
        transport, actor = Stubborn(), Echo(echo)
        limits = RunnerLimits(batch_events_max=8, publishing_max=16)
        runner = Runner(actor, transport, MemoryStore(), federation=FEDERATION, limits=limits)
        running = asyncio.create_task(runner.run())
        for _ in range(500):
            await asyncio.sleep(0)
        handled = len(actor.events)
        assert handled <= 1 + 16 + 2 * 8  # the start, what is being published, batches
        assert transport.inbox.taken == handled - 1  # nothing is taken that is not handled at once
        transport.answer.set()
        await transport.plenty.wait()
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


@pytest.mark.long
@pytest.mark.parametrize("turns", range(4))
def test_who_is_cancelled_twice_leaves_no_connection_behind(turns: int) -> None:
    """Else it comes back by itself, under the identity of who runs next, and takes what is meant for that one."""

    class Watched(Stubborn):
        is_closed = False

        async def close(self) -> None:
            await asyncio.sleep(0)
            self.is_closed = True

    async def scenario() -> None:
        transport = Watched()
        runner = Runner(Echo(echo), transport, MemoryStore(), federation=FEDERATION)
        running = asyncio.create_task(runner.run())
        await settle()
        running.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        assert transport.is_closed
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


class Slow:
    """Answers an echo, in the middle of which it waits for the test where the message is "slow"."""

    def __init__(self) -> None:
        self.go, self.began = threading.Event(), threading.Event()
        self.is_main: list[bool] = []

    def __call__(self, event: Event) -> Sequence[Effect]:
        if isinstance(event, Received):
            self.is_main.append(threading.current_thread() is threading.main_thread())
            if event.payload == b"slow":
                self.began.set()
                assert self.go.wait(PATIENCE_S)
        return echo(event)

    @staticmethod
    def takes_long(event: Event) -> bool:
        return isinstance(event, Received) and event.payload == b"slow"


def test_what_takes_long_is_handled_in_a_thread_and_in_its_turn() -> None:
    slow = Slow()

    async def scenario(pair: RunnerAndPeer) -> None:
        pair.runner._takes_long = slow.takes_long
        for payload in (b"before", b"slow", b"after"):
            await pair.send(payload)
        assert (await pair.peer.inbox.take()).payload == b"before"
        await asyncio.to_thread(slow.began.wait)
        await settle()
        assert (pair.runner.is_busy, pair.peer.inbox.poll()) == (True, None)
        slow.go.set()
        assert [(await pair.peer.inbox.take()).payload for _ in range(2)] == [b"slow", b"after"]
        assert (slow.is_main, pair.runner.is_busy) == ([True, False, True], False)

    RunnerAndPeer(slow).play(scenario)


def test_who_cancels_the_run_waits_for_what_takes_long() -> None:
    """The actor is in use, and so may be its processes."""
    slow = Slow()

    async def scenario() -> None:
        pair = RunnerAndPeer(slow)
        pair.runner._takes_long = slow.takes_long
        await pair.peer.open()
        running = asyncio.create_task(pair.runner.run())
        await settle()
        await pair.send(b"slow")
        await asyncio.to_thread(slow.began.wait)
        running.cancel()
        await settle()
        assert not running.done()
        slow.go.set()
        await asyncio.wait([running])
        assert running.cancelled()
        assert pair.runner.traffic.messages_sent == 0

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_an_exception_in_a_thread_ends_the_run_unchanged() -> None:
    def answer(event: Event) -> Sequence[Effect]:
        raise AssertionError("ours")

    async def scenario() -> None:
        pair = RunnerAndPeer(answer)
        pair.runner._takes_long = lambda event: True
        with pytest.raises(AssertionError, match="ours"):
            await pair.runner.run()

    asyncio.run(scenario())


def test_a_batch_is_bounded_in_bytes_too() -> None:
    """Two messages of four bytes are as much as one batch may have, so that as much is written at once."""

    async def scenario() -> None:
        diary: list[Any] = []
        limits = RunnerLimits(batch_bytes_max=8)
        runner = Runner(Echo(echo), Stubborn(), WatchedStore(diary), federation=FEDERATION, limits=limits)
        running = asyncio.create_task(runner.run())
        while len(diary) < 6:  # noqa: ASYNC110 - the diary has no event
            await asyncio.sleep(0)
        assert diary[:6] == ["commit 2", "durable"] * 3
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_a_transport_that_fails_for_good_ends_the_run() -> None:
    async def scenario() -> None:
        pair = RunnerAndPeer(echo)
        running = asyncio.create_task(pair.runner.run())
        await settle()
        await pair.runner._transport.close()
        with pytest.raises(TransportError, match="closed"):
            await running
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


def test_an_actors_own_exception_ends_the_run_unchanged() -> None:
    def answer(event: Event) -> Sequence[Effect]:
        raise AssertionError("ours")

    async def scenario() -> None:
        with pytest.raises(AssertionError, match="ours"):
            await RunnerAndPeer(answer).runner.run()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


def test_timers_keep_no_more_than_is_set_and_stale() -> None:
    timers = Timers()
    for at_ms in range(1000):
        timers.set(Timer("resend"), at_ms)
    assert timers.pop_due(998) is None
    assert timers.next_at_ms() == 999
    assert timers.pop_due(999) == Timer("resend")
    assert timers.pop_due(10_000) is None


def test_the_system_clock_calls_back() -> None:
    async def scenario() -> None:
        called = asyncio.Event()
        clock = SystemClock()
        clock.call_at(clock.now_ms() - 5, called.set)
        await asyncio.wait_for(called.wait(), PATIENCE_S)

    asyncio.run(scenario())


@pytest.mark.usefixtures("alone_and_shared")
def test_the_store_holds_what_was_persisted() -> None:
    store = MemoryStore()

    async def scenario(pair: RunnerAndPeer) -> None:
        await pair.send(b"k")
        await pair.peer.inbox.take()
        assert store.load() == [StoreRecord("seen", b"k", b"")]

    RunnerAndPeer(echo, store).play(scenario)


@pytest.mark.usefixtures("alone_and_shared")
def test_hardening_4_a_clock_that_is_set_is_logged_and_one_set_back_starts_the_actors_timers_anew() -> None:
    """Timers that were set by a clock an hour ahead would fire an hour late."""
    tick = Timer("tick")

    def answer(event: Event) -> Sequence[Effect]:
        due = isinstance(event, Started) or event == TimerFired(tick)
        return [SetTimer(tick, pair.clock.now_ms() + 1_000)] if due else ()

    def count(kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in pair.actor.events)

    async def wake() -> None:
        await pair.send(b"any message")
        await settle()

    async def scenario(pair: RunnerAndPeer) -> None:
        with capture_logs() as logs:
            await wake()
            pair.clock.set(4_000)
            pair.clock.set(-4_000)
            await wake()
            assert [one["event"] for one in logs] == []
            pair.clock.set(3_600_000)
            await wake()
            fired = count(TimerFired)
            assert count(Started) == 1
            pair.clock.set(-3_600_000)
            await wake()
            assert count(Started) == 2
            pair.clock.advance(1_000)
            await settle()
            assert count(TimerFired) == fired + 1
        entries = [(one["log_level"], one["event"], one["by_s"]) for one in logs]
        assert entries == [("warning", "clock set, or machine asleep", by_s) for by_s in (3600.0, -3600.0)]
        assert {one["actor"] for one in logs} == {ECHO.hex()}

    pair = RunnerAndPeer(answer)
    pair.play(scenario)
