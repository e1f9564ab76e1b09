"""Runs many actors of one process in one task: a gateway of devices, or thousands of clients on one machine.

    inboxes, timers --notify--> [ready actors] --handle--> effects of all --> one transaction, then all messages

Each actor's effects are carried out as its own `Runner` would: writes are durable before messages leave, in order. An
actor handles no further event until then. Timers may fire up to `_SLOT_MS` late. The loop never calls a runner's
`refresh`, so its actors' data must not change, and `Runner.stop` has no effect: cancel `run` instead.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Protocol

from dca_proto.protocol.effects import Effect, Write
from dca_proto.runtime.clock import Alarm, Clock, SystemClock
from dca_proto.runtime.runner import Runner, writes_of

_AT_ONCE = 128  # actors in one transaction: meanwhile, the next ones are handled
_SLOT_MS = 20


class SharedStore(Protocol):
    """The records of many actors."""

    async def commit_all(self, writes: Sequence[tuple[bytes, Sequence[Write]]]) -> None:
        """Make writes, given with their actors' ids, durable in one transaction. Raises as `Store.commit`."""


class SharedLoop:
    """The loop of many actors, whose records are the views of one store by their ids."""

    def __init__(self, store: SharedStore, clock: Clock | None = None) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._connected: dict[Runner, None] = {}
        self._ready: dict[Runner, None] = {}
        self._busy: set[Runner] = set()  # their batches are being written
        self._due: defaultdict[int, dict[Runner, None]] = defaultdict(dict)  # by time slot, actors with a timer in it
        self._slots: list[int] = []  # a heap of these slots
        self._alarm: Alarm | None = None
        self._alarm_slot = 0
        self._wake = asyncio.Event()

    async def run(self, runners: Iterable[Runner]) -> None:
        """Open all transports and handle events until cancelled. Raises the errors of `Runner.run` in a group."""
        try:
            async with asyncio.TaskGroup() as group:
                for runner in runners:
                    group.create_task(self._connect(runner))
                group.create_task(self._handle(group))
        finally:
            if self._alarm is not None:
                self._alarm.cancel()

    async def _connect(self, runner: Runner) -> None:
        async with runner.connected(partial(self._note, runner)):
            self._connected[runner] = None
            self._note(runner)
            await asyncio.get_running_loop().create_future()  # until cancelled

    def _note(self, runner: Runner) -> None:
        self._ready[runner] = None
        self._wake.set()

    async def _handle(self, group: asyncio.TaskGroup) -> None:
        while True:
            await self._wake.wait()
            ready = list(islice(self._ready, _AT_ONCE))
            for runner in ready:
                del self._ready[runner]
            if not self._ready:
                self._wake.clear()
            batches = [(runner, effects) for runner in ready if (effects := self._batch_of(runner)) is not None]
            if batches:
                group.create_task(self._finish(batches))
            self._set_alarm()
            await asyncio.sleep(0)  # let the connections work

    def _batch_of(self, runner: Runner) -> list[Effect] | None:
        """Let an actor handle what is ready; return the effects, or None if it must wait or nothing was ready."""
        if runner not in self._connected or runner in self._busy:
            return None  # it is noted again once it is connected, or its batch has been carried out
        runner.raise_failure()
        if not runner.has_room:
            return None  # it is noted again once there is room
        effects = runner.handle_batch()
        if effects is None:
            self._await_timer(runner)
        else:
            self._busy.add(runner)
        return effects

    async def _finish(self, batches: Sequence[tuple[Runner, list[Effect]]]) -> None:
        """Make the writes of all batches durable, and then carry out the rest."""
        writes = [(runner.id, own) for runner, effects in batches if (own := writes_of(effects))]
        if writes:
            await self._store.commit_all(writes)
        for runner, effects in batches:
            runner.emit(effects)
            self._busy.discard(runner)
            if runner.is_ready:
                self._note(runner)
            else:
                self._await_timer(runner)
        self._set_alarm()

    def _await_timer(self, runner: Runner) -> None:
        at_ms = runner.next_timer_ms
        if at_ms is not None:
            slot = -(-at_ms // _SLOT_MS)
            if slot not in self._due:
                heapq.heappush(self._slots, slot)
            self._due[slot][runner] = None

    def _set_alarm(self) -> None:
        """Ring at the first slot, unless an earlier alarm is set."""
        if self._slots and (self._alarm is None or self._slots[0] < self._alarm_slot):
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm_slot = self._slots[0]
            self._alarm = self._clock.call_at(self._alarm_slot * _SLOT_MS, self._ring)

    def _ring(self) -> None:
        """Note the actors whose timers are due; all, if none is: the clock may have been set."""
        self._alarm = None
        now = self._clock.now_ms() // _SLOT_MS
        is_due = bool(self._slots) and self._slots[0] <= now
        while self._slots and self._slots[0] <= now:
            self._ready.update(self._due.pop(heapq.heappop(self._slots)))
        if not is_due:
            self._ready.update(self._connected)
        self._wake.set()
