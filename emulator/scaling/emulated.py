"""The emulated backend: a population of production actors in virtual time, with real encryption and exact noise.

The statistic is a histogram of d bins with one row a client: of all statistics it has the smallest announcement (a few
bytes a bin; a sum over d columns names each and gives it three numbers), so that the figures are those of sums and not
of announcements. What it has is counted like every other byte.

Links are ideal: everything arrives at once, in order and once. Virtual time costs nothing, so the wall time of a round
is that of its computing and the emulator's own; its share is named apart. Clients and Compute nodes are dealt out
evenly to as many processes as are asked for, which go in step (`emulator.sim.lockstep`); in one process, one actor
works after the other.

Sessions are set up first: each client publishes its Hello, and each Compute node verifies it. In the first round, each
pair agrees on its key. Both are once an epoch; they are reported as set-up, and are not timed as a round.

A meter stands around the `handle` of each actor, which knows nothing of it. Its times are of `time.perf_counter`, which
is read in a tenth of the time of the process's CPU clock, and is one clock for all processes of a machine. A round's
account scales them by how long the process was on a core, so that other work on the machine does not count.

The actors of one process share what it keeps: an announcement that is verified, and checked against one policy, once,
and which certificates are signed. A device does so itself. A client that drops out neither sees nor sends anything in
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

from dca_proto.protocol import facts
from dca_proto.protocol.actor import Actor
from dca_proto.protocol.effects import Effect, Report
from dca_proto.protocol.events import Event
from dca_proto.protocol.params import Timing
from dca_proto.testing import TestFederation
from emulator.scaling.cell import Cell
from emulator.scaling.held import COUNTED, PHASES, ROLES, Held, Memory, Observed
from emulator.sim.link import IDEAL
from emulator.sim.lockstep import Region, assign
from emulator.sim.process import Process
from emulator.sim.simulator import Simulator
from emulator.sim.team import Team
from emulator.sim.world import World
from emulator.swarm.usage import peak_rss_bytes

_DAY_MS = 24 * 3600 * 1000
_BEGIN_MS = 19_700 * _DAY_MS  # where an epoch begins, so that all rounds are in one
_WINDOW_MS = 60_000
_TIMING = Timing(abort_grace_ms=_WINDOW_MS)
_BETWEEN_MS = 5 * _WINDOW_MS
"""From one round to the next: past the announced end (two windows), and the time for which aborts are waited for."""
_EPSILON, _DELTA = 0.5, 1e-6
_FEDERATION = "scaling"
_MIB = 1 << 20
_BEGAN = "began"
_ENDS: dict[type, str] = {facts.Closed: "collect", facts.RoundCompleted: "agree", facts.RoundFailed: "agree"}
"""The facts that end the phases of a round."""
_encode = msgspec.msgpack.encode
_SHARED = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
_WHOLE = (bytes, str, int, float, np.ndarray)
Used = dict[str, dict[str, int]]
"""By role: nanoseconds at work (``busy_ns``), and what of `COUNTED` its actors sent and received."""


class Metered:
    """An actor with a meter around it; everything but `handle` is the actor's own.

    Args:
        actor: a production actor.
        hear: called with its id and every fact that it reports; None for the many whose facts are not needed.
        away: ids of actors that neither see nor do anything now.

    Attributes:
        busy_ns: nanoseconds that it was at work so far.
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
        """As the actor's own."""
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


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What one process saw of a round.

    Attributes:
        core_s, waiting_s: of the process, working and waiting for others. awake_s: wall seconds without the waiting.
        used: by its actors. at_s: when the round began, and when its phases ended here.
        result: of a completed round, where the trainer is: |S|, the noise's standard deviation, and the ideal one.
    """

    core_s: float
    waiting_s: float
    awake_s: float
    used: Used
    at_s: dict[str, float]
    result: tuple[int, float, float] | None

    def role_s(self, role: str) -> float:
        """Core seconds of a role: its part of the time that the process was awake is its part of the core's."""
        return self.used[role]["busy_ns"] / 1e9 * self.core_s / self.awake_s


def held_of(accounts: Sequence[Account]) -> Held:
    """A round, from what all processes saw of it; the trainer's is the first."""
    roles = {role: math.fsum(one.role_s(role) for one in accounts) for role in ROLES}
    core_s = math.fsum(one.core_s for one in accounts)
    phases, last_s = dict.fromkeys(PHASES, 0.0), accounts[0].at_s[_BEGAN]
    for name in PHASES:  # up to its last fact anywhere; 0 for one that the round did not come to
        at_s = max((one.at_s[name] for one in accounts if name in one.at_s), default=last_s)
        phases[name], last_s = at_s - last_s, at_s
    contributors, noise_sd, ideal_sd = accounts[0].result or (0, None, None)
    return Held(
        wall_s=math.fsum(phases.values()),
        waiting_s=math.fsum(one.waiting_s for one in accounts),
        phases=phases,
        core_s={**roles, "emulator": max(0.0, core_s - math.fsum(roles.values()))},
        **{name: {role: sum(one.used[role][name] for one in accounts) for role in ROLES} for name in COUNTED},
        completed=accounts[0].result is not None,
        contributors=contributors,
        noise_sd=noise_sd,
        noise_sd_ideal=ideal_sd,
    )


class Population:
    """Actors of one cell, with sessions: all of them, or this process's part. All of a team call the same methods.

    Args:
        cell: what is held. Who drops out follows from it. team: this process's place.

    Attributes:
        sessions_s, sessions_wall_s: core seconds of this process, and wall seconds, until all sessions stood.
    """

    def __init__(self, cell: Cell, team: Team | None = None) -> None:
        self._cell = cell
        self._team = team or Team()
        rows = [np.array([[index % cell.dimension + 0.5]]) for index in range(cell.clients)]
        self._actors = TestFederation(cell.clients, cell.computes, rows=rows, name=_FEDERATION, timing=_TIMING)
        options: dict[str, Any] = {"federation": _FEDERATION, "start_ms": _BEGIN_MS, "link": IDEAL, "keep_facts_max": 0}
        self._simulator = (
            Simulator(_FEDERATION, **options)
            if self._team.count == 1
            else Region(_FEDERATION, self._team, assign(self._actors, self._team.count), **options)
        )
        self._team.gather(b"")  # all begin together
        began_s, worked_s = time.perf_counter(), time.process_time()
        self._world = World(self._actors, self._simulator)
        self._simulator.run(self._simulator.now_ms + 1)
        self.sessions_s, self.sessions_wall_s = time.process_time() - worked_s, time.perf_counter() - began_s
        self._away: set[bytes] = set()
        self._at_s: dict[str, float] = {}
        self._ended: facts.RoundCompleted | facts.RoundFailed | None = None
        self._memory: dict[str, int] | None = None  # while actors are weighed
        self._meter_all()

    def _meter_all(self) -> None:
        """Compute nodes and the trainer are listened to, and the one client that is weighed."""
        actors, processes = self._actors, self._simulator.processes
        moments: dict[type, bytes] = {  # at which each role holds most: a list frozen, a message made, all sums come
            facts.ListFrozen: actors.computes[0],
            facts.Contributed: actors.clients[0],
            facts.RoundCompleted: actors.trainer_identity.id,
        }
        self._weighed = {fact: processes[one] for fact, one in moments.items() if one in processes}
        heard = set(moments.values())
        self._inside = {process.id: vars(process.actor) for process in self._weighed.values()}
        for process in processes.values():
            assert process.actor is not None
            hear = self._hear if process.id in heard else None
            process.actor = cast(Actor, Metered(process.actor, hear, self._away))

    def hold(self) -> Held:
        """One round, from the command to its end, as all processes together see it."""
        simulator, team, cell = self._simulator, self._team, self._cell
        before = self._used()
        if cell.drop_rate:  # the same clients in all processes
            draw = simulator.streams("drop-out").random
            self._away.update(client for client in self._actors.clients if draw() < cell.drop_rate)
        team.gather(b"")  # all begin together
        self._ended, self._at_s = None, {_BEGAN: time.perf_counter()}
        worked_s, waited_s = time.process_time(), team.waited_s
        if team.number == 0:
            self._world.open_round(**self._request())
        simulator.run_while(lambda: self._ended is None, simulator.now_ms + _BETWEEN_MS)
        simulator.run(simulator.now_ms + 1)  # what is still on its way
        core_s, waiting_s = time.process_time() - worked_s, team.waited_s - waited_s
        awake_s, used = time.perf_counter() - self._at_s[_BEGAN] - waiting_s, self._used()
        account = Account(
            core_s=core_s,
            waiting_s=waiting_s,
            awake_s=awake_s,
            used={role: {name: used[role][name] - value for name, value in before[role].items()} for role in ROLES},
            at_s=self._at_s,
            result=self._result(),
        )
        everybody = [msgspec.msgpack.decode(one, type=Account) for one in team.gather(_encode(account))]
        self._away.clear()
        simulator.run(simulator.now_ms + _BETWEEN_MS)
        return held_of(everybody)

    def observe(self) -> Observed:
        """Hold all rounds of the cell, and a last one, whose times are nobody's, in which actors are weighed."""
        cores = self._gathered(self.sessions_s)
        first = self.hold()  # in which pairs agree on keys
        rounds = [self.hold() for _ in range(self._cell.repeats)]
        peaks = self._gathered(peak_rss_bytes() or 0)
        return Observed(
            sessions_s=sum(cores),
            sessions_wall_s=self.sessions_wall_s,
            first=first,
            rounds=rounds,
            memory=self.weigh(),
            peak_rss_mb=sum(peaks) / _MIB,
        )

    def weigh(self) -> Memory:
        """What actors hold in memory in a round."""
        self._memory = found = {}
        self.hold()
        self._memory = None
        node = self._weighed.get(facts.ListFrozen)
        if node is not None:
            found["compute_after"] = self._bytes_of(node)
        whole = {key: size for part in self._gathered(found) for key, size in part.items()}
        return Memory(**{key: whole.get(key, 0) for key in Memory.__struct_fields__})

    def _gathered(self, value: object) -> list[Any]:
        return [msgspec.msgpack.decode(one) for one in self._team.gather(_encode(value))]

    def _request(self) -> dict[str, object]:
        cell = self._cell
        return {
            "statistic": "histogram",
            "parameters": {"columns": ["x"], "edges": list(range(cell.dimension + 1))},
            "rows_max": 1,
            "epsilon": _EPSILON,
            "delta": _DELTA,
            "tolerated": cell.tolerated,
            "clients_expected": cell.clients,
            "collect_window_ms": _WINDOW_MS,
            "commit_window_ms": _WINDOW_MS,
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
        """What an actor holds, without what all actors here share."""
        actors = self._actors
        shared = (actors, actors.federation, actors.mechanism, actors.timing, actors.policy, actors.floors)
        return footprint(self._inside[process.id], shared)


def hold_emulated(cell: Cell, team: Team) -> Observed:
    """Hold a cell's rounds: the program of each process.

    The garbage collector is off. It finds nothing in actors, and a population of one process each would not be searched
    by one collector, whose work grows faster than N.
    """
    gc.collect()
    gc.disable()
    try:
        return Population(cell, team).observe()
    finally:
        gc.enable()


def footprint(root: object, shared: Iterable[object] = ()) -> int:
    """Bytes of `root` and of all that can be reached from it, each object once.

    Args:
        shared: objects that belong to others and are not counted, with what is reached from them alone.
    """
    counted = {id(one) for one in shared}
    waiting, total = [root], 0
    while waiting:
        one = waiting.pop()
        if id(one) in counted or isinstance(one, _SHARED):
            continue
        counted.add(id(one))
        total += sys.getsizeof(one)  # of an array: with its data, where it owns them
        if not isinstance(one, _WHOLE):
            waiting.extend(_parts(one))
    return total


def _parts(one: Any) -> Iterator[object]:
    if isinstance(one, dict):
        yield from (*one.keys(), *one.values())
    elif isinstance(one, list | tuple | set | frozenset):
        yield from one
    names = one.__struct_fields__ if isinstance(one, msgspec.Struct) else ()
    slots = (kind.__dict__.get("__slots__", ()) for kind in type(one).__mro__)
    within = [name for some in slots for name in ((some,) if isinstance(some, str) else some)]
    yield from (getattr(one, name) for name in (*names, *within) if not name.startswith("__") and hasattr(one, name))
    if hasattr(one, "__dict__"):
        yield one.__dict__
