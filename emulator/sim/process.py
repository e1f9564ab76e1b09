"""One actor on its machine, modelled on `runtime.runner`.

The actor handles a batch of waiting events. Their writes become one durable transaction; then messages leave and facts
are reported, in order. Timers are set at once, so that none fires stale. A process can be killed before the
transaction, in the middle of it, after it, or between two messages. It then loses its memory and restarts from the disk
alone.

The machine's clock may be wrong by a constant, which may change. Batches and transactions may take time; events that
arrive meanwhile form the next batch, up to a limit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from dca_proto.errors import UsageError
from dca_proto.protocol.actor import Actor
from dca_proto.protocol.effects import CancelTimer, Channel, Effect, Forget, Persist, Report, Send, SetTimer, Write
from dca_proto.protocol.events import Command, Event, Received, Started, Timer, TimerFired
from dca_proto.runtime.parts import MessageCounts
from dca_proto.testing import Build
from emulator.sim.disk import Disk, DiskFullError
from emulator.sim.events import Crashed, Killed, Refused, Restarted
from emulator.sim.link import Link, LinkOptions

if TYPE_CHECKING:
    from emulator.sim.simulator import Simulator

Where = Literal["before", "torn", "after", "between"]
Output = Send | Report
_US = 1000
_JUMP_MS = 5_000  # if a clock is set back by this, the actor handles `Started` again, as in `runtime.runner`


class ProcessOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The speed and limits of a machine.

    Attributes:
        skew_ms: how far its clock is ahead. work_ms, commit_ms: duration of each batch, and of each transaction.
        inbox_events_max: waiting messages beyond this are dropped, as in `runtime.transport`.
        publishing_max: with this many unacknowledged packets, it handles no more events, as in `runtime.runner`.
        unacknowledged_max: the largest number of packets in flight, as in `runtime.mqtt`.
    """

    skew_ms: int = 0
    work_ms: int = 0
    commit_ms: int = 0
    batch_events_max: int = 256
    inbox_events_max: int = 200_000
    publishing_max: int = 4_096
    unacknowledged_max: int = 256


def usual_options(role: Channel) -> ProcessOptions:
    """Return the default options of a role's machine: a client has a small inbox."""
    return ProcessOptions(inbox_events_max=4_096) if role is Channel.CLIENT else ProcessOptions()


class KillPoint(msgspec.Struct, frozen=True):
    """Where the power fails: at a transaction, numbered from 0 over all starts, and where in it.

    ``before`` it is written, ``torn`` half way, ``after`` it but before any message, ``between`` two messages.
    """

    transaction: int
    where: Where


class ProcessCounts(MessageCounts, gc=False):
    """Counts of one process so far. `dropped`: messages dropped by its full inbox."""

    dropped: int = 0


class _Due(NamedTuple):
    """A timer that came due while its machine was busy."""

    timer: Timer
    at_ms: int


Batch = tuple[list[Write], list[Output]]
"""The effects of some events: writes, which become durable first, then messages and facts."""


class Process:
    """One actor on its machine.

    Attributes:
        id: of its actor. role: its channel. name: for output. actor: None while it is down.
        starts: number of starts so far. link_name: of its link in the random streams.
    """

    __slots__ = (
        "_build", "_held_up", "_inbox", "_is_busy", "_options", "_simulator", "_timers",
        "actor", "disk", "id", "kill_points", "link", "link_name", "role", "starts", "traffic",
    )  # fmt: skip

    def __init__(
        self,
        simulator: Simulator,
        role: Channel,
        build: Build,
        options: ProcessOptions,
        link: LinkOptions,
        disk: Disk,
    ) -> None:
        self.role = role
        self.disk = disk
        self.traffic = ProcessCounts()
        self.starts = 0
        self.kill_points: list[KillPoint] | None = None
        self.actor: Actor | None = build(disk.load())
        self.id = self.actor.id
        copies = sum(other.id == self.id for other in simulator.machines) if self.id in simulator.processes else 0
        self.link_name = self.id.hex() + (f"-{copies}" if copies else "")
        self.link = Link(simulator.streams, self.link_name, link)
        self._options = options
        self._simulator = simulator
        self._build = build
        self._inbox: deque[Event | _Due] | None = None  # created on demand
        self._timers: dict[Timer, int] = {}
        self._is_busy = False
        self._held_up: Sequence[Output] = ()  # waits for room in the outbox

    @property
    def is_up(self) -> bool:
        return self.actor is not None

    @property
    def name(self) -> str:
        return f"{self.role.value} {self.id.hex()[:8]}"

    @property
    def now_ms(self) -> int:
        """The time on its own clock."""
        return self._simulator.now_us // _US + self._options.skew_ms

    @property
    def waiting(self) -> int:
        """The number of events in its inbox."""
        return len(self._inbox or ())

    @property
    def options(self) -> ProcessOptions:
        """The machine's options. They can be replaced at any time; if that changes the clock, timers follow it."""
        return self._options

    @options.setter
    def options(self, options: ProcessOptions) -> None:
        jump_ms, self._options = options.skew_ms - self._options.skew_ms, options
        for timer, at_ms in self._timers.items():
            self._wake_at(timer, at_ms)
        if jump_ms <= -_JUMP_MS:
            self.deliver(Started())

    def start(self) -> None:
        """Run, and connect to the broker."""
        self.starts += 1
        self._simulator.broker.connect(self)
        self.deliver(Started())

    def kill(self, why: str) -> None:
        """End without warning. Memory, timers and unsent messages are lost."""
        if self.actor is None:
            return
        self.actor = None
        self._inbox = None
        self._timers.clear()
        self._is_busy = False
        self._held_up = ()
        self._simulator.broker.disconnect(self)
        self._note(Killed(why))
        self._observe("on_kill")

    def restart(self) -> None:
        """Restart from the disk; kill the process first if it runs."""
        self.kill("restarted")
        records = self.disk.load()
        self.actor = self._build(records)
        self._note(Restarted(len(records)))
        self._observe("on_restart")
        self.start()

    def restore(self, copy: Disk) -> None:
        """Kill the process and replace its disk by an old copy. It does not restart by itself."""
        self.kill("its store is restored")
        self.disk.restore(copy)
        self._observe("on_restore")

    def plan_kill(self, point: KillPoint) -> None:
        """Make the power fail at a future transaction."""
        self.kill_points = [*(self.kill_points or ()), point]

    def receive(self, sender: bytes, payload: bytes) -> None:
        """Receive a whole message; a process that is down ignores it."""
        if self.actor is None:
            return
        if self._inbox and len(self._inbox) >= self._options.inbox_events_max:
            self.traffic.dropped += 1
            return
        self.traffic.messages_received += 1
        self.traffic.bytes_received += len(payload)
        if self._simulator.observers:  # in measurements there are none, and hundreds of thousands of processes
            self._observe("on_deliver", sender, payload)
        self.deliver(Received(sender, payload))

    def deliver(self, event: Event) -> None:
        """Let the actor handle an event now, or queue it while the machine is busy."""
        if self._is_busy:
            self._queue(event)
        elif self.actor is not None:
            batch: Batch = ([], [])
            if self._handle(event, batch):
                self._run_batch(batch)

    def _queue(self, event: Event | _Due) -> None:
        if self._inbox is None:
            self._inbox = deque()
        self._inbox.append(event)

    def _handle(self, event: Event, batch: Batch) -> bool:
        """Add the actor's effects to the batch; return False if the process ended."""
        assert self.actor is not None
        try:
            effects = self.actor.handle(event, self.now_ms)
        except Exception as error:
            if isinstance(event, Command) and isinstance(error, UsageError):
                raise  # the owner's mistake
            self._crash(error)
            return False
        if self._simulator.observers and not self._observe("on_handled", event, effects):
            return False
        self._split_effects(effects, batch)
        return True

    def _observe(self, method: str, *what: object) -> bool:
        """Notify all observers; return True if the process still runs after that."""
        start = self.starts
        for notify in self._simulator.listeners(method):
            notify(self, *what)
        return self._still_runs(start)

    def _note(self, fact: object) -> None:
        if self._simulator.trace.is_on:
            self._simulator.trace.note(self._simulator.now_ms, self.id, fact)

    def _split_effects(self, effects: Sequence[Effect], batch: Batch) -> None:
        """Add effects to the batch's writes and outputs; set timers at once."""
        write, put = batch[0].append, batch[1].append
        is_heard = self._simulator.is_heard
        for effect in effects:  # comparing exact types is several times as fast as isinstance with a union
            if type(effect) is Persist or type(effect) is Forget:
                write(effect)
            elif type(effect) is Send:
                put(effect)
            elif type(effect) is Report:
                if is_heard:
                    put(effect)
            elif type(effect) is SetTimer:
                self._timers[effect.timer] = effect.at_ms
                self._wake_at(effect.timer, effect.at_ms)
            else:
                assert type(effect) is CancelTimer
                self._timers.pop(effect.timer, None)

    def _handle_waiting(self) -> None:
        """Handle the next batch of waiting events."""
        batch: Batch = ([], [])
        for _ in range(self._options.batch_events_max):
            if not self._inbox:
                break
            event = self._inbox.popleft()
            if isinstance(event, _Due):
                if not self._comes_due(event.timer, event.at_ms):
                    continue
                event = TimerFired(event.timer)
            try:
                if not self._handle(event, batch):
                    return
            except UsageError as error:
                self._report(Refused(str(error)))
        self._run_batch(batch)

    def _crash(self, error: Exception) -> None:
        self._note(Crashed(type(error).__name__, str(error)[:200]))
        self._observe("on_crash", error)
        if self._simulator.raise_crashes:
            raise error
        self.kill(f"crashed: {type(error).__name__}")

    def _run_batch(self, batch: Batch) -> None:
        duration_ms = self._options.work_ms + (self._options.commit_ms if batch[0] else 0)
        if duration_ms:
            self._is_busy = True
            self._simulator.after(duration_ms, self._finish_batch, self.starts, batch)
        else:
            self._commit_and_emit(batch)

    def _finish_batch(self, start: int, batch: Batch) -> None:
        """Carry out a batch after its duration, unless the process was killed meanwhile."""
        if self._still_runs(start):
            self._commit_and_emit(batch)
            self._resume(start)

    def on_taken_over(self) -> None:
        """Continue after the broker has acknowledged a packet: a full outbox has room again."""
        if self._held_up:
            start, outputs, self._held_up = self.starts, self._held_up, ()
            self._emit(outputs, None)
            self._resume(start)

    def _resume(self, start: int) -> None:
        """Handle the next batches, once all messages of this one have left."""
        if self._still_runs(start):
            self._is_busy = bool(self._held_up)
        while self._inbox and not self._is_busy and self._still_runs(start):  # repeats if batches take no time
            self._handle_waiting()

    def _still_runs(self, start: int) -> bool:
        """Return True if it has run without interruption since that start."""
        return start == self.starts and self.actor is not None

    def _commit_and_emit(self, batch: Batch) -> None:
        """Commit the writes in one transaction, then emit the outputs in order, unless a kill point interrupts."""
        writes, outputs = batch
        where: Where | None = None
        if writes:
            where = self._killed_where() if self.kill_points else None
            if where in ("before", "torn"):
                self.kill(f"{where} transaction {self.disk.transactions}")
                return
            try:
                self.disk.commit(writes)
            except DiskFullError:
                self.kill("disk full")  # the real runner also ends if it cannot write its store
                return
            if self._simulator.observers and not self._observe("on_commit", writes):
                return
            if where == "after":
                self.kill(f"after transaction {self.disk.transactions - 1}")
                return
        sends_max: int | None = None
        if where == "between":
            sends = sum(isinstance(effect, Send) for effect in outputs)
            sends_max = self._simulator.streams(f"kill/{self.link_name}").randrange(sends + 1)
        self._emit(outputs, sends_max)

    def _killed_where(self) -> Where | None:
        """Return where in the present transaction the power fails, and forget that point; None if it does not."""
        points = self.kill_points or []
        due = next((point for point in points if point.transaction == self.disk.transactions), None)
        self.kill_points = [point for point in points if point is not due]
        return None if due is None else due.where

    def _emit(self, outputs: Sequence[Output], sends_max: int | None) -> None:
        start, is_full = self.starts, False
        for place, effect in enumerate(outputs):
            if not self._still_runs(start):
                return  # an observer killed it
            if isinstance(effect, Report):
                self._report(effect.fact)
            elif sends_max == 0:
                self.kill("between two messages")
                return
            elif is_full:
                self._held_up, self._is_busy = outputs[place:], True
                return
            else:
                sends_max = None if sends_max is None else sends_max - 1
                is_full = self._send(effect)
        if sends_max is not None and self.starts == start:
            self.kill("after the last message")

    def _send(self, send: Send) -> bool:
        """Hand a message to the broker; return True if the outbox is now full."""
        if self._simulator.observers and not self._observe("on_send", send):
            return False
        if self._simulator.trace.is_on:
            to = send.to
            self._simulator.trace.passed(self._simulator.now_us, self.id, to.channel.value, to.id, send.payload)
        self.traffic.messages_sent += 1
        self.traffic.bytes_sent += len(send.payload)
        return self._simulator.broker.publish(self, send)

    def _report(self, fact: object) -> None:
        self._note(fact)
        self._observe("on_fact", fact)

    def _wake_at(self, timer: Timer, at_ms: int) -> None:
        due_us = (at_ms - self._options.skew_ms) * _US
        self._simulator.at_us(due_us, self._fire, self.starts, timer, at_ms)

    def _fire(self, start: int, timer: Timer, at_ms: int) -> None:
        """Fire a timer unless it was changed or cancelled, the process was killed, or its clock was set back."""
        if start != self.starts or self._timers.get(timer) != at_ms or self.now_ms < at_ms:
            return
        if self._is_busy:
            self._queue(_Due(timer, at_ms))
        elif self._comes_due(timer, at_ms):
            self.deliver(TimerFired(timer))

    def _comes_due(self, timer: Timer, at_ms: int) -> bool:
        """Clear a timer and return True if it is still set for that time."""
        if self._timers.get(timer) != at_ms:
            return False
        del self._timers[timer]
        return True
