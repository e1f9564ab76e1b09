"""The virtual clock, and everything that is still to happen.

Time is in whole microseconds, so that fast links have their order; actors see Unix milliseconds. Things that fall on
the same microsecond happen in the order in which they were asked for. There is one thread, no waiting, no real clock.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any

from dca_proto.protocol.effects import Channel
from dca_proto.protocol.events import Command
from dca_proto.testing import Build
from emulator.sim.broker import Broker, BrokerOptions
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
    """Actors in virtual time.

    Args:
        seed: of the network and of faults; actors' randomness comes with their builders.
        federation: the name that topics carry.
        start_ms: virtual time at the beginning, Unix milliseconds.
        link: of every machine that has none of its own. broker: its limits.
        keep_facts_max: how many facts the trace keeps; None keeps all, and 0 is no trace.
        raise_crashes: whether an exception out of an actor is raised here, rather than reported to observers only.

    Attributes:
        processes: by actor id; of several with one id, the first. machines: all of them, in the order of their start.
        broker: through which all messages go. streams: of the seed. trace: of facts. observers: see all.
        now_us: virtual time in microseconds.
    """

    def __init__(
        self,
        seed: int | str,
        *,
        federation: str = "test",
        start_ms: int = START_MS,
        link: LinkOptions | None = None,
        broker: BrokerOptions | None = None,
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
        self.raise_crashes = raise_crashes
        self.link_options = link or LinkOptions()
        self.now_us = start_ms * US
        # What falls on this very microsecond and was asked for in it comes after what the heap holds for it: that was
        # asked for earlier. Most messages of a fast network pass by the heap so.
        self._soon: deque[_Planned] = deque()
        # Many timers fall on few microseconds: a heap of these, and what is planned for each in the order of asking.
        self._heap: list[int] = []
        self._planned: dict[int, deque[_Planned]] = {}
        self.broker = Broker(self, broker or BrokerOptions())

    @property
    def is_heard(self) -> bool:
        """Whether anybody learns of facts."""
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
        """Start an actor, from an empty disk or that one. `build` is called again whenever it restarts.

        A second one with the same id is another machine: the broker lets one of them at a time have a connection.
        """
        process = Process(self, role, build, options or usual_options(role), link or self.link_options, disk or Disk())
        self.processes.setdefault(process.id, process)
        self.machines.append(process)
        process.start()
        return process

    def has(self, actor_id: bytes) -> bool:
        """Whether an actor is to run here, as all do in a simulation of one process."""
        return True

    def command(self, actor_id: bytes, request: object) -> None:
        """The owner of an actor asks for something. Raises what the actor raises for a wrong request.

        A slow machine that is at work takes it later, and a wrong request is then a `Refused` fact.
        """
        self.processes[actor_id].deliver(Command(request))

    def note(self, what: str, actor_id: bytes = b"") -> None:
        """Write into the trace what the emulator did."""
        self.trace.note(self.now_ms, actor_id, Happened(what))

    def soon(self, call: Call, *arguments: Any) -> None:
        """Have something happen at this microsecond, after all else that was asked for."""
        self._soon.append((call, arguments))

    def at_us(self, at_us: int, call: Call, *arguments: Any) -> None:
        """Have something happen at that microsecond, or now if that is past."""
        if at_us <= self.now_us:
            self._soon.append((call, arguments))
        else:
            planned = self._planned.get(at_us)
            if planned is None:
                planned = self._planned[at_us] = deque()
                heapq.heappush(self._heap, at_us)
            planned.append((call, arguments))

    def at(self, at_ms: int, call: Call, *arguments: Any) -> None:
        """Have something happen at that millisecond."""
        self.at_us(at_ms * US, call, *arguments)

    def after(self, delay_ms: int, call: Call, *arguments: Any) -> None:
        """Have something happen so many milliseconds from now."""
        self.at_us(self.now_us + delay_ms * US, call, *arguments)

    def run(self, until_ms: int) -> None:
        """Let virtual time pass."""
        self.run_while(lambda: True, until_ms)

    def run_while(self, condition: Callable[[], bool], until_ms: int) -> bool:
        """Let virtual time pass while `condition` holds; whether it ended before `until_ms`."""
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
        """Let time pass until the next thing that is planned."""
        self.now_us = self._heap[0]
        planned = self._planned[self.now_us]
        first = planned.popleft()
        if not planned:
            del self._planned[heapq.heappop(self._heap)]
        return first

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to happen."""
        return not self._heap and not self._soon

    def pending(self) -> list[str]:
        """Why a run has not ended: who is down or cut off, and what waits where."""
        down = [f"{process.name} is down" for process in self.machines if not process.is_up]
        cut = [f"{process.name} is cut off" for process in self.machines if process.link.is_cut]
        at_work = [f"{process.waiting} events wait in {process.name}" for process in self.machines if process.waiting]
        return down + cut + at_work + self.broker.pending()
