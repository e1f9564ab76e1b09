"""The asyncio interpreter of an actor's effects.

    transport --receive--> [ready events] --handle--> effects --+--> store: all writes of the batch, one commit
    clock     --timers--->        ^                             |         then, in order:
    owner     --command---> ------+                             +--> publish --> transport; reports --> owner

The runner handles ready events in batches. It makes all writes of a batch durable before it sends any of the batch's
messages or reports any of its facts. So each `Persist` precedes the `Send` that depends on it, and one flush serves
many events. Timers need no durability: they are set at once, so a cancelled timer cannot fire within its batch.

What may take seconds, such as the last step of a round of a million clients, is handled in a thread. Meanwhile the
event loop answers the broker and whoever asks for the status, and arriving messages wait.

Sending never waits for receiving: the runner hands messages to the transport in order, without awaiting each. While too
many sends are pending, it handles no further event; arriving messages wait in the transport's bounded inbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

import msgspec
import structlog

from dca_proto.errors import PeerError
from dca_proto.protocol.effects import CancelTimer, Effect, Forget, Persist, Report, Send, SetTimer, Write
from dca_proto.protocol.events import Command, Event, Received, Started, Timer, TimerFired
from dca_proto.protocol.wire.topics import sender_of, topic_of
from dca_proto.runtime.clock import Alarm, Clock, SystemClock
from dca_proto.runtime.parts import MessageCounts
from dca_proto.runtime.store import Store
from dca_proto.runtime.transport import Message, Transport

log = structlog.get_logger("dca.runner")
_JUMP_MS = 5_000
LookAhead = Callable[[Sequence[tuple[bytes, bytes]]], None]
"""Prepares the next messages, (sender, payload) pairs, without an effect of its own."""
TakesLong = Callable[[Event], bool]


class Actor(Protocol):
    """A pure state machine: a client, a Compute node or a trainer."""

    @property
    def id(self) -> bytes:
        """16 bytes."""

    def handle(self, event: Event, now_ms: int) -> Sequence[Effect]:
        """Change state, and return the effects to carry out."""


class RunnerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on a batch and on pending sends. The message that exceeds `batch_bytes_max` ends its batch."""

    batch_events_max: int = 256
    batch_bytes_max: int = 4 << 20
    publishing_max: int = 4096


class Runner:
    """Runs one actor over a transport and a store until stopped or cancelled.

    A client's data may change at any time. With `refresh`, the runner has them read again, in a thread, before it hands
    the actor an announcement. So a round uses the data as they are when its announcement is handled, and the actor,
    which does no I/O, finds them in memory.

    Args:
        actor: built from the store's records.
        transport: not yet open; the runner opens and closes it.
        store: receives the actor's writes; the owner closes it.
        federation: the federation's id, part of every topic.
        clock: the machine's by default.
        on_report: called with every fact, after the writes of its batch are durable.
        limits: on a batch and on pending sends.
        refresh: reads the actor's data again if they have changed; None if nothing else can change them.
        needs_data: returns whether the actor may need them for a message; by default for any.
        look_ahead: called with the messages that a batch will handle, which a Compute node prepares in many processes.
        takes_long: returns True for an event that the actor is to handle in a thread.

    Attributes:
        is_busy: whether the actor handles such an event now.
        traffic: counts of sent and received messages.
        dropped: counts of messages that did not reach the actor or could not be sent, by reason.
    """

    def __init__(
        self,
        actor: Actor,
        transport: Transport,
        store: Store,
        *,
        federation: bytes,
        clock: Clock | None = None,
        on_report: Callable[[object], None] | None = None,
        limits: RunnerLimits | None = None,
        refresh: Callable[[], None] | None = None,
        needs_data: Callable[[bytes], bool] = lambda payload: True,
        look_ahead: LookAhead | None = None,
        takes_long: TakesLong | None = None,
    ) -> None:
        self._actor = actor
        self._look_ahead = look_ahead
        self._takes_long = takes_long
        self._long: Event | None = None
        self.is_busy = False
        self._refresh = refresh
        self._needs_data = needs_data
        self._transport = transport
        self._store = store
        self._federation = federation
        self._clock = clock or SystemClock()
        self._on_report = on_report or (lambda fact: None)
        self._limits = limits or RunnerLimits()
        self._timers = Timers()
        self._ahead_ms: int | None = None  # wall clock minus steady clock, when last read
        self._alarm: Alarm | None = None
        self._alarm_ms: int | None = None
        self._own_events: deque[Event] = deque([Started()])  # events from this runner and from the owner
        self._publishing: set[asyncio.Future[None]] = set()
        self._failure: BaseException | None = None  # the error of a publish
        self._wake = asyncio.Event()
        self._notify: Callable[[], None] = self._wake.set  # called when there may be something to do
        self._taken_over = asyncio.Event()  # set when the transport has taken over a message
        self._stopping = False
        self.traffic = MessageCounts()
        self.dropped: Counter[str] = Counter()

    def command(self, request: object) -> None:
        """Queue `Command(request)` for the actor."""
        self._own_events.append(Command(request))
        self._notify()

    def stop(self) -> None:
        """Make `run` return once it has handled all ready events and handed over their messages."""
        self._stopping = True
        self._notify()

    async def run(self) -> None:
        """Open the transport and handle events.

        Raises `UsageError` if the broker refuses the actor, the store cannot be written, or a command is invalid.
        """
        async with self.connected(self._wake.set):
            await self._handle_events()

    @contextlib.asynccontextmanager
    async def connected(self, notify: Callable[[], None]) -> AsyncIterator[None]:
        """Open the transport, and close it at the end. `notify` is called when there may be something to do.

        Raises as `run`.
        """
        log.info("actor started", actor=self.id.hex())
        self._notify = self._transport.inbox.on_arrival = notify
        try:
            await self._transport.open()
            yield
        finally:
            if self._alarm is not None:
                self._alarm.cancel()
            try:
                for publishing in self._publishing:
                    publishing.cancel()
                if self._publishing:
                    await asyncio.wait(self._publishing)
            finally:  # even if cancelled again: an open connection would receive messages meant for the next run
                await self._transport.close()
            log.info("actor stopped", actor=self._actor.id.hex(), **msgspec.structs.asdict(self.traffic))

    async def _handle_events(self) -> None:
        while True:
            if self._refresh is not None and any(map(self._needs_data, self._next_payloads())):
                await asyncio.to_thread(self._refresh)
            effects = self.handle_batch()
            if effects is None:
                if self._stopping:
                    await self._until_fewer(1)
                    self.raise_failure()
                    return
                await self._sleep()
            else:
                await self._carry_out(effects)
                if self._long is not None:
                    await self._carry_out(await self._handle_long(self._long))
                if len(self._transport.inbox):
                    await asyncio.sleep(0)  # let other tasks run

    def _next_payloads(self) -> Iterator[bytes]:
        return (message.payload for message in self._transport.inbox.first(self._limits.batch_events_max))

    @property
    def id(self) -> bytes:
        """The actor's id."""
        return self._actor.id

    @property
    def transport(self) -> Transport:
        """Its connection to the broker."""
        return self._transport

    @property
    def is_ready(self) -> bool:
        """True if a message or an event of its owner waits."""
        return bool(self._own_events or len(self._transport.inbox))

    @property
    def has_room(self) -> bool:
        """True if not too many sends are pending."""
        return len(self._publishing) < self._limits.publishing_max

    @property
    def pending(self) -> int:
        """How many sends the broker has not acknowledged."""
        return len(self._publishing)

    @property
    def next_timer_ms(self) -> int | None:
        """When the earliest timer is due, or None."""
        return self._timers.next_at_ms()

    def handle_batch(self) -> list[Effect] | None:
        """Handle the events that are ready, up to one that takes long. Return their effects, or None if none was."""
        effects: list[Effect] = []
        handled_bytes = 0
        if self._look_ahead is not None and len(self._transport.inbox):
            self._look_ahead(_from_senders(self._transport.inbox.first(self._limits.batch_events_max)))
        for handled in range(self._limits.batch_events_max):
            now_ms = self._read_clock()
            event = self._next_event(now_ms) if handled_bytes < self._limits.batch_bytes_max else None
            if event is None:
                return effects if handled else None
            if self._takes_long is not None and self._takes_long(event):
                self._long = event
                return effects
            if isinstance(event, Received):
                handled_bytes += len(event.payload)
            self._note(self._actor.handle(event, now_ms), effects)
        return effects

    def _note(self, done: Sequence[Effect], effects: list[Effect]) -> None:
        """Set and cancel timers, and add all other effects to `effects`."""
        for effect in done:
            if type(effect) is SetTimer:  # several times as fast as a match
                self._timers.set(effect.timer, effect.at_ms)
            elif type(effect) is CancelTimer:
                self._timers.cancel(effect.timer)
            else:
                effects.append(effect)

    async def _handle_long(self, event: Event) -> list[Effect]:
        """Handle an event in a thread. Whoever cancels this waits until it is handled, for the actor is in use."""
        self._long, self.is_busy = None, True
        effects: list[Effect] = []
        handling = asyncio.ensure_future(asyncio.to_thread(self._actor.handle, event, self._read_clock()))
        try:
            self._note(await asyncio.shield(handling), effects)
        finally:
            await asyncio.wait([handling])
            self.is_busy = False
        return effects

    def _read_clock(self) -> int:
        """Return the time. Log a jump; after a jump back, send `Started` again, because all timers are now too late."""
        now_ms = self._clock.now_ms()
        ahead_ms = now_ms - self._clock.steady_ms()
        jump_ms = 0 if self._ahead_ms is None else ahead_ms - self._ahead_ms
        self._ahead_ms = ahead_ms
        if abs(jump_ms) >= _JUMP_MS:
            log.warning("clock set, or machine asleep", actor=self._actor.id.hex(), by_s=jump_ms / 1000)
        if jump_ms <= -_JUMP_MS:
            self._own_events.append(Started())
        return now_ms

    def _next_event(self, now_ms: int) -> Event | None:
        if self._own_events:
            return self._own_events.popleft()
        timer = self._timers.pop_due(now_ms)
        if timer is not None:
            return TimerFired(timer)
        while (message := self._transport.inbox.poll()) is not None:
            try:
                sender = sender_of(message.topic)
            except PeerError as error:
                self.dropped[error.code] += 1
                continue
            self.traffic.messages_received += 1
            self.traffic.bytes_received += len(message.payload)
            return Received(sender, message.payload)
        return None

    async def _carry_out(self, effects: list[Effect]) -> None:
        writes = writes_of(effects)
        if writes:
            await self._store.commit(writes)
        for effect in effects:
            if isinstance(effect, Send):
                await self._until_fewer(self._limits.publishing_max)
            self._emit(effect)

    def emit(self, effects: Sequence[Effect]) -> None:
        """Send the messages and report the facts of a batch whose writes are durable. Raises as `run`."""
        self.raise_failure()
        for effect in effects:
            self._emit(effect)

    def _emit(self, effect: Effect) -> None:
        if isinstance(effect, Send):
            self._publish(effect)
        elif isinstance(effect, Report):
            self._on_report(effect.fact)

    async def _sleep(self) -> None:
        """Wait for a message, a command or the next timer."""
        self._wake.clear()
        self.raise_failure()  # of a publish that failed while a batch was carried out
        at_ms = self._timers.next_at_ms()
        if at_ms != self._alarm_ms:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = None if at_ms is None else self._clock.call_at(at_ms, self._ring)
            self._alarm_ms = at_ms
        await self._wake.wait()
        self.raise_failure()

    def _ring(self) -> None:
        self._alarm = self._alarm_ms = None
        self._notify()

    async def _until_fewer(self, most: int) -> None:
        """Wait until fewer than `most` sends are pending."""
        while len(self._publishing) >= most:
            self._taken_over.clear()
            await self._taken_over.wait()
            self.raise_failure()

    def _publish(self, send: Send) -> None:
        try:
            topic = topic_of(self._federation, send.to, self._actor.id)
            expires_s = None if send.expires_ms is None else (send.expires_ms - self._clock.now_ms()) / 1000
            publishing = asyncio.ensure_future(self._transport.publish(topic, send.payload, send.retain, expires_s))
        except ValueError as error:
            self._drop(send, error)
        else:
            self._publishing.add(publishing)
            publishing.add_done_callback(partial(self._published, send))

    def _published(self, send: Send, publishing: asyncio.Future[None]) -> None:
        self._publishing.discard(publishing)
        self._taken_over.set()
        if len(self._publishing) == self._limits.publishing_max - 1:
            self._notify()  # there is room again
        if publishing.cancelled():
            return
        error = publishing.exception()
        if error is None:
            self.traffic.messages_sent += 1
            self.traffic.bytes_sent += len(send.payload)
        elif isinstance(error, ValueError):
            self._drop(send, error)
        else:
            self._failure = error
            self._notify()

    def _drop(self, send: Send, error: ValueError) -> None:
        """Count and log a message that cannot be sent. It is no failure, since a hostile peer may have caused it."""
        self.dropped["unsendable"] += 1
        log.error("message dropped", actor=self._actor.id.hex(), channel=send.to.channel.value, error=str(error))

    def raise_failure(self) -> None:
        """Raise the error of a message that could not be sent, if there was one."""
        if self._failure is not None:
            raise self._failure


def _from_senders(messages: Iterable[Message]) -> list[tuple[bytes, bytes]]:
    """Return the senders and payloads of messages whose topic names a sender."""
    known = []
    for message in messages:
        with contextlib.suppress(PeerError):
            known.append((sender_of(message.topic), message.payload))
    return known


def writes_of(effects: Sequence[Effect]) -> list[Write]:
    """Return the effects that must be durable before any message of their batch leaves."""
    return [effect for effect in effects if isinstance(effect, (Persist, Forget))]


class Timers:
    """The timers that an actor has set, in one heap. Cancelled and replaced entries stay in it and are skipped."""

    def __init__(self) -> None:
        self._set: dict[Timer, tuple[int, int]] = {}
        self._heap: list[tuple[int, int, Timer]] = []
        self._settings = 0

    def set(self, timer: Timer, at_ms: int) -> None:
        """Set `timer`, replacing an earlier setting."""
        self._settings += 1
        self._set[timer] = (at_ms, self._settings)
        heapq.heappush(self._heap, (at_ms, self._settings, timer))

    def cancel(self, timer: Timer) -> None:
        """Cancel `timer`, if it is set."""
        self._set.pop(timer, None)

    def next_at_ms(self) -> int | None:
        """Return when the earliest timer is due, or None."""
        while self._heap and self._set.get(self._heap[0][2]) != self._heap[0][:2]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> Timer | None:
        """Remove and return the earliest timer that is due."""
        at_ms = self.next_at_ms()
        if at_ms is None or at_ms > now_ms:
            return None
        _, _, timer = heapq.heappop(self._heap)
        del self._set[timer]
        return timer
