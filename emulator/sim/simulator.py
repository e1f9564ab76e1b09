"""The virtual clock and the queue of scheduled calls.

Time is in whole microseconds, fine enough to order messages on fast links; actors see Unix milliseconds. Calls at the
same microsecond run in the order in which they were scheduled. There is one thread, no waiting and no real clock.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any

from dca_proto.protocol.effects import Channel
from dca_proto.protocol.events import Command
from dca_proto.testing import Build
from emulator.sim.broker import BrokerLimits, SimBroker
from emulator.sim.disk import Disk
from emulator.sim.events import Happened, Observer
from emulator.sim.link import LinkOptions
from emulator.sim.process import Process, ProcessOptions, usual_options
from emulator.sim.streams import Streams
from emulator.sim.trace import Trace

START_MS = 1_700_000_000_000
US = 1000  # microseconds in a millisecond

Call = Callable[..., object]
_Planned = tuple[Call, tuple[Any, ...]]


class Simulator:
    """Runs actors in virtual time.

    Args:
        seed: of the network and faults; the builders of actors set their randomness.
        federation: its id, part of topics. start_ms: virtual time at the beginning, in Unix milliseconds.
        link: default options of links. broker: its limits.
        keep_facts_max: number of facts that the trace keeps; None keeps all, 0 disables the trace.
        raise_crashes: raise an actor's exception here instead of only notifying observers.

    Attributes:
        processes: by actor id; the first of several with one id. machines: all processes, in the order of their start.
        streams: of the seed. observers: are notified of all events. now_us: virtual time in microseconds.
    """

    def __init__(
        self,
        seed: int | str,
        *,
        federation: bytes = bytes(32),
        start_ms: int = START_MS,
        link: LinkOptions | None = None,
        broker: BrokerLimits | None = None,
        keep_facts_max: int | None = None,
        raise_crashes: bool = True,
    ) -> None:
        self.streams = Streams(seed)
        self.trace = Trace(keep_facts_max)
        self.federation = federation
        self.start_ms = start_ms
        self.processes: dict[bytes, Process] = {}
        self.machines: list[Process] = []
        self.observers: list[Observer] = []
        self._listeners: dict[str, tuple[int, list[Callable[..., None]]]] = {}  # by event: for how many observers
        self.raise_crashes = raise_crashes
        self.link_options = link or LinkOptions()
        self.now_us = start_ms * US
        # Calls scheduled during this microsecond for this microsecond run after those in the heap, which were scheduled
        # earlier. So most messages of a fast network bypass the heap.
        self._soon: deque[_Planned] = deque()
        # Many timers share few microseconds: a heap of these times, and a queue of calls for each.
        self._heap: list[int] = []
        self._planned: dict[int, deque[_Planned]] = {}
        self.broker = SimBroker(self, broker or BrokerLimits())

    @property
    def is_heard(self) -> bool:
        """True if the trace or an observer receives facts."""
        return self.trace.is_on or bool(self.observers)

    @property
    def now_ms(self) -> int:
        """Virtual time, Unix milliseconds."""
        return self.now_us // US

    def add(
        self,
        role: Channel,
        build: Build,
        options: ProcessOptions | None = None,
        link: LinkOptions | None = None,
        disk: Disk | None = None,
    ) -> Process:
        """Start an actor from `disk`, by default an empty one. `build` is called again whenever it restarts.

        A second process with the same id is another machine. The broker accepts one connection per id.
        """
        process = Process(self, role, build, options or usual_options(role), link or self.link_options, disk or Disk())
        self.processes.setdefault(process.id, process)
        self.machines.append(process)
        process.start()
        return process

    def listeners(self, method: str) -> list[Callable[..., None]]:
        """Return what observers do at an event, without those that do nothing. Observers are only ever added."""
        count, listeners = self._listeners.get(method, (0, []))
        if count != len(self.observers):
            nothing = getattr(Observer, method)
            listeners = [getattr(one, method) for one in self.observers]
            listeners = [one for one in listeners if getattr(one, "__func__", one) is not nothing]
            self._listeners[method] = len(self.observers), listeners
        return listeners

    def has(self, actor_id: bytes) -> bool:
        """Return True if an actor runs in this process, as all do in a simulation of one process."""
        return True

    def command(self, actor_id: bytes, request: object) -> None:
        """Give an actor a command of its owner. Raises the actor's error for a wrong request.

        A busy machine handles the command later; a wrong request is then a `Refused` fact.
        """
        self.processes[actor_id].deliver(Command(request))

    def note(self, what: str, actor_id: bytes = b"") -> None:
        """Add an action of the emulator to the trace."""
        self.trace.note(self.now_ms, actor_id, Happened(what))

    def soon(self, call: Call, *arguments: Any) -> None:
        """Schedule a call at this microsecond, after all others."""
        self._soon.append((call, arguments))

    def at_us(self, at_us: int, call: Call, *arguments: Any) -> None:
        """Schedule a call at that microsecond, or now if it is past."""
        if at_us <= self.now_us:
            self._soon.append((call, arguments))
        else:
            planned = self._planned.get(at_us)
            if planned is None:
                planned = self._planned[at_us] = deque()
                heapq.heappush(self._heap, at_us)
            planned.append((call, arguments))

    def at(self, at_ms: int, call: Call, *arguments: Any) -> None:
        """Schedule a call at that millisecond."""
        self.at_us(at_ms * US, call, *arguments)

    def after(self, delay_ms: int, call: Call, *arguments: Any) -> None:
        """Schedule a call after a delay."""
        self.at_us(self.now_us + delay_ms * US, call, *arguments)

    def run(self, until_ms: int) -> None:
        """Let virtual time pass."""
        self.run_while(lambda: True, until_ms)

    def run_while(self, condition: Callable[[], bool], until_ms: int) -> bool:
        """Let virtual time pass while `condition` holds; return True if the condition ended it before `until_ms`."""
        heap, soon, until_us = self._heap, self._soon, until_ms * US
        while condition():
            if soon and (not heap or heap[0] > self.now_us):
                call, arguments = soon.popleft()
            elif heap and heap[0] <= until_us:
                call, arguments = self._next_planned()
            else:
                self.now_us = max(self.now_us, until_us)
                return False
            call(*arguments)
        return True

    def _next_planned(self) -> _Planned:
        """Advance the clock to the next call in the heap and remove it."""
        self.now_us = self._heap[0]
        planned = self._planned[self.now_us]
        first = planned.popleft()
        if not planned:
            del self._planned[heapq.heappop(self._heap)]
        return first

    @property
    def is_idle(self) -> bool:
        """True if no call is scheduled."""
        return not self._heap and not self._soon

    def pending(self) -> list[str]:
        """Return, as text, processes that are down or cut off, and events and packets that wait."""
        down = [f"{process.name} is down" for process in self.machines if not process.is_up]
        cut = [f"{process.name} is cut off" for process in self.machines if process.link.is_cut]
        at_work = [f"{process.waiting} events wait in {process.name}" for process in self.machines if process.waiting]
        return down + cut + at_work + self.broker.pending()
