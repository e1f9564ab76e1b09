"""The emulated backend: measures production actors in virtual time, with real encryption and exact noise.

The statistic is a histogram of d bins with one row per client. It has the smallest announcement of all statistics (a
few bytes a bin; a sum over d columns takes a name and three numbers for each), so that figures reflect sums and not
announcements. The announcement's bytes are counted too.

Links are ideal: every message arrives at once, in order and once. Virtual time costs nothing, so the wall time of a
round is the time of its computing and of the emulator, whose share is reported separately. Clients and Compute nodes
are spread evenly over the processes, which run in lockstep (`emulator.sim.lockstep`). In one process, one actor works
after the other.

Sessions are set up first: each client publishes its Hello, and each Compute node verifies it. In the first round, each
pair agrees on its key. Both happen once an epoch; they are reported as set-up, and not timed as a round.

A meter wraps the `handle` of each actor. It reads `time.perf_counter`, which takes a tenth of the time of reading the
process's CPU clock, and is one clock for all processes of a machine. The times of a round are scaled by the part of
time that the process was on a core, so that other work on the machine does not count.

The actors of one process share a cache: an announcement is verified, and checked against a policy, once for all, and
so are certificates. On devices, each does this itself. A client that drops out neither receives nor sends anything in
the round."""

from __future__ import annotations

import gc
import math
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.privacy.accounting import DELTA
from dca_proto.protocol import facts
from dca_proto.protocol.actor import Actor
from dca_proto.protocol.effects import Effect, Report
from dca_proto.protocol.events import Event
from dca_proto.protocol.params import DAY_MS, Timing
from dca_proto.protocol.wire.kinds import SecureSum, VerifiedSum
from dca_proto.testing import TestFederation
from emulator.scaling.cell import Cell
from emulator.scaling.figures import COUNTED, PHASES, ROLES, ActorMemory, CellMeasurement, RoundMeasurement
from emulator.sim.link import IDEAL
from emulator.sim.lockstep import Region, assign
from emulator.sim.process import Process
from emulator.sim.simulator import Simulator
from emulator.sim.team import Team
from emulator.sim.world import World
from emulator.swarm.usage import peak_rss_bytes

_BEGIN_MS = 19_700 * DAY_MS  # the start of an epoch, so that all rounds fall into one
_WINDOW_MS = 60_000
_TIMING = Timing(abort_grace_ms=_WINDOW_MS)
_BETWEEN_MS = 5 * _WINDOW_MS
"""Time between rounds: past the announced end (two windows) and the grace period for aborts."""
_EPSILON = 0.5
_FEDERATION = "scaling"
_MIB = 1 << 20
_BEGAN = "began"
_ENDS: dict[type, str] = {facts.Closed: "collect", facts.RoundCompleted: "agree", facts.RoundFailed: "agree"}
"""By fact, the phase of a round that it ends."""
_encode = msgspec.msgpack.encode
_SHARED = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
_WHOLE = (bytes, str, int, float, np.ndarray)
Used = dict[str, dict[str, int]]
"""By role: nanoseconds of work (``busy_ns``), and the counts of `COUNTED`."""


class Metered:
    """An actor with a meter around `handle`; everything else is the actor's own.

    Args:
        actor: a production actor.
        hear: called with its id and every fact that it reports; None if its facts are not needed.
        away: ids of the actors that have dropped out of the present round.

    Attributes:
        busy_ns: nanoseconds of work so far.
    """

    __slots__ = ("_actor", "_away", "_handle", "_hear", "busy_ns", "id")

    def __init__(self, actor: Actor, hear: Callable[[bytes, object], None] | None, away: Container[bytes]) -> None:
        self.id = actor.id
        self.busy_ns = 0
        self._actor = actor
        self._handle = actor.handle
        self._hear = hear
        self._away = away

    def __getattr__(self, name: str) -> Any:
        return getattr(self._actor, name)

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Call the actor's own `handle`, and time it."""
        if self.id in self._away:
            return []
        began_ns = time.perf_counter_ns()
        effects = self._handle(event, now_ms)
        self.busy_ns += time.perf_counter_ns() - began_ns
        if self._hear is not None:
            for effect in effects:
                if isinstance(effect, Report):
                    self._hear(self.id, effect.fact)
        return effects


class ProcessMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """What one process measured of a round.

    Attributes:
        core_s: processor seconds of the process. waiting_s: seconds of waiting for the other processes.
        awake_s: wall seconds without the waiting.
        used: by its actors. at_s: when the round began, and when its phases ended here.
        result: in the trainer's process, if the round completed: |A|, the noise's standard deviation, the ideal one.
    """

    core_s: float
    waiting_s: float
    awake_s: float
    used: Used
    at_s: dict[str, float]
    result: tuple[int, float, float] | None

    def role_s(self, role: str) -> float:
        """Return the core seconds of a role: its share of the awake time, times the process's core seconds."""
        return self.used[role]["busy_ns"] / 1e9 * self.core_s / self.awake_s


def merge_measurements(measured: Sequence[ProcessMeasurement]) -> RoundMeasurement:
    """Return the measurement of a round from those of all processes; the trainer's is the first."""
    roles = {role: math.fsum(own.role_s(role) for own in measured) for role in ROLES}
    core_s = math.fsum(own.core_s for own in measured)
    phases, last_s = dict.fromkeys(PHASES, 0.0), measured[0].at_s[_BEGAN]
    for name in PHASES:  # a phase ends with its last fact in any process; one that did not begin takes 0
        at_s = max((own.at_s[name] for own in measured if name in own.at_s), default=last_s)
        phases[name], last_s = at_s - last_s, at_s
    contributors, noise_sd, ideal_sd = measured[0].result or (0, None, None)
    return RoundMeasurement(
        wall_s=math.fsum(phases.values()),
        waiting_s=math.fsum(own.waiting_s for own in measured),
        phases=phases,
        core_s={**roles, "emulator": max(0.0, core_s - math.fsum(roles.values()))},
        **{name: {role: sum(own.used[role][name] for own in measured) for role in ROLES} for name in COUNTED},
        completed=measured[0].result is not None,
        contributors=contributors,
        noise_sd=noise_sd,
        noise_sd_ideal=ideal_sd,
    )


class CellActors:
    """The actors of one cell, with sessions, or this process's part of them. All processes call the same methods.

    Args:
        cell: the size to measure; it also determines who drops out. team: this process's place among the processes.

    Attributes:
        sessions_s, sessions_wall_s: core seconds of this process, and wall seconds, until all sessions existed.
    """

    def __init__(self, cell: Cell, team: Team | None = None) -> None:
        self._cell = cell
        self._team = team or Team()
        rows: NDArray[np.float64] = np.arange(cell.clients, dtype=np.float64)[:, None, None] % cell.dimension + 0.5
        self._actors = TestFederation(cell.clients, cell.computes, rows=rows, name=_FEDERATION, timing=_TIMING)
        options: dict[str, Any] = {
            "federation": self._actors.federation.id,
            "start_ms": _BEGIN_MS,
            "link": IDEAL,
            "keep_facts_max": 0,
        }
        self._simulator = (
            Simulator(_FEDERATION, **options)
            if self._team.count == 1
            else Region(_FEDERATION, self._team, assign(self._actors, self._team.count), **options)
        )
        self._team.gather(b"")  # so that all processes begin together
        began_s, worked_s = time.perf_counter(), time.process_time()
        self._world = World(self._actors, self._simulator)
        self._simulator.run(self._simulator.now_ms + 1)
        self.sessions_s, self.sessions_wall_s = time.process_time() - worked_s, time.perf_counter() - began_s
        self._away: set[bytes] = set()
        self._at_s: dict[str, float] = {}
        self._ended: facts.RoundCompleted | facts.RoundFailed | None = None
        self._memory: dict[str, int] | None = None  # bytes by role, while memory is measured
        self._meter_all()

    def _meter_all(self) -> None:
        """Meter all actors. Listen to the trainer and to the client and the Compute node whose memory is measured."""
        actors, processes = self._actors, self._simulator.processes
        moments: dict[type, bytes] = {  # the moment of most memory: list frozen, contribution made, all sums arrived
            facts.ListFrozen: actors.computes[0],
            facts.Contributed: actors.clients[0],
            facts.RoundCompleted: actors.trainer_identity.id,
        }
        self._weighed = {fact: processes[actor] for fact, actor in moments.items() if actor in processes}
        heard = set(moments.values())
        self._inside = {process.id: vars(process.actor) for process in self._weighed.values()}
        for process in processes.values():
            assert process.actor is not None
            hear = self._hear if process.id in heard else None
            process.actor = cast(Actor, Metered(process.actor, hear, self._away))

    def run_round(self) -> RoundMeasurement:
        """Run one round, from the command to its end, and return the measurement of all processes together."""
        simulator, team, cell = self._simulator, self._team, self._cell
        before = self._used()
        if cell.drop_rate:  # the same clients in all processes
            draw = simulator.streams("drop-out").random
            self._away.update(client for client in self._actors.clients if draw() < cell.drop_rate)
        team.gather(b"")  # so that all processes begin together
        self._ended, self._at_s = None, {_BEGAN: time.perf_counter()}
        worked_s, waited_s = time.process_time(), team.waited_s
        if team.number == 0:
            self._world.open_round(**self._request())
        simulator.run_while(lambda: self._ended is None, simulator.now_ms + _BETWEEN_MS)
        simulator.run(simulator.now_ms + 1)  # deliver the last messages
        core_s, waiting_s = time.process_time() - worked_s, team.waited_s - waited_s
        awake_s, used = time.perf_counter() - self._at_s[_BEGAN] - waiting_s, self._used()
        own = ProcessMeasurement(
            core_s=core_s,
            waiting_s=waiting_s,
            awake_s=awake_s,
            used={role: {name: used[role][name] - value for name, value in before[role].items()} for role in ROLES},
            at_s=self._at_s,
            result=self._result(),
        )
        measured = [msgspec.msgpack.decode(data, type=ProcessMeasurement) for data in team.gather(_encode(own))]
        self._away.clear()
        simulator.run(simulator.now_ms + _BETWEEN_MS)
        return merge_measurements(measured)

    def measure(self) -> CellMeasurement:
        """Run all rounds of the cell, and a last one, not timed, in which memory is measured."""
        cores = self._gathered(self.sessions_s)
        first = self.run_round()  # in which pairs agree on keys
        rounds = [self.run_round() for _ in range(self._cell.repeats)]
        peaks = self._gathered(peak_rss_bytes() or 0)
        return CellMeasurement(
            sessions_s=sum(cores),
            sessions_wall_s=self.sessions_wall_s,
            first=first,
            rounds=rounds,
            memory=self.measure_memory(),
            peak_rss_mb=sum(peaks) / _MIB,
        )

    def measure_memory(self) -> ActorMemory:
        """Run a round, and measure the memory of one actor of each role."""
        self._memory = sizes = {}
        self.run_round()
        self._memory = None
        node = self._weighed.get(facts.ListFrozen)
        if node is not None:
            sizes["compute_after"] = self._bytes_of(node)
        whole = {key: size for part in self._gathered(sizes) for key, size in part.items()}
        return ActorMemory(**{key: whole.get(key, 0) for key in ActorMemory.__struct_fields__})

    def _gathered(self, value: object) -> list[Any]:
        return [msgspec.msgpack.decode(data) for data in self._team.gather(_encode(value))]

    def _request(self) -> dict[str, object]:
        cell = self._cell
        return {
            "statistic": "histogram",
            "parameters": {"columns": ["x"], "edges": list(range(cell.dimension + 1))},
            "rows_max": 1,
            "epsilon": _EPSILON,
            "delta": DELTA,
            "tolerate": cell.tolerate,
            "kind": VerifiedSum() if cell.verified else SecureSum(),
            "clients": cell.clients,
            "collect_s": _WINDOW_MS / 1000,
            "commit_s": _WINDOW_MS / 1000,
        }

    def _used(self) -> Used:
        used = {role: dict.fromkeys(("busy_ns", *COUNTED), 0) for role in ROLES}
        for process in self._simulator.processes.values():
            own, traffic = used[process.role.value], process.traffic
            own["busy_ns"] += cast(Metered, process.actor).busy_ns
            own["messages"] += traffic.messages_sent
            own["bytes"] += traffic.bytes_sent
            own["received"] += traffic.messages_received
            own["received_bytes"] += traffic.bytes_received
        return used

    def _result(self) -> tuple[int, float, float] | None:
        if not isinstance(self._ended, facts.RoundCompleted):
            return None
        aggregate = self._ended.aggregate
        assert aggregate.mu is not None
        return aggregate.contributors, math.sqrt(aggregate.noise_variance), aggregate.sensitivity / aggregate.mu

    def _hear(self, actor_id: bytes, fact: object) -> None:
        if type(fact) in _ENDS:
            self._at_s[_ENDS[type(fact)]] = time.perf_counter()
        if isinstance(fact, facts.RoundCompleted | facts.RoundFailed):
            self._ended = fact
        process = None if self._memory is None else self._weighed.get(type(fact))
        if self._memory is not None and process is not None and process.id == actor_id:
            self._memory[process.role.value] = self._bytes_of(process)

    def _bytes_of(self, process: Process) -> int:
        """Return the bytes of an actor, without the objects that all actors here share."""
        actors = self._actors
        shared = (actors, actors.federation, actors.mechanism, actors.timing, actors.policy, actors.floors)
        return footprint(self._inside[process.id], shared)


def measure_emulated(cell: Cell, team: Team) -> CellMeasurement:
    """Measure a cell's rounds; every process of the team runs this.

    The garbage collector is off. It finds no garbage in actors, and its work in a process with N actors grows faster
    than N. On devices, with a process for each actor, that does not happen.
    """
    gc.collect()
    gc.disable()
    try:
        return CellActors(cell, team).measure()
    finally:
        gc.enable()


def footprint(root: object, shared: Iterable[object] = ()) -> int:
    """Return the bytes of `root` and of all objects that it refers to, directly or not, each counted once.

    Args:
        shared: objects that are not counted, nor those that only they refer to.
    """
    counted = {id(item) for item in shared}
    waiting, total = [root], 0
    while waiting:
        item = waiting.pop()
        if id(item) in counted or isinstance(item, _SHARED):
            continue
        counted.add(id(item))
        total += sys.getsizeof(item)  # of an array, includes the data that it owns
        if not isinstance(item, _WHOLE):
            waiting.extend(_parts(item))
    return total


def _parts(item: Any) -> Iterator[object]:
    if isinstance(item, dict):
        yield from (*item.keys(), *item.values())
    elif isinstance(item, list | tuple | set | frozenset):
        yield from item
    fields = item.__struct_fields__ if isinstance(item, msgspec.Struct) else ()
    slots = (kind.__dict__.get("__slots__", ()) for kind in type(item).__mro__)
    names = [*fields, *(name for some in slots for name in ((some,) if isinstance(some, str) else some))]
    yield from (getattr(item, name) for name in names if not name.startswith("__") and hasattr(item, name))
    if hasattr(item, "__dict__"):
        yield item.__dict__
