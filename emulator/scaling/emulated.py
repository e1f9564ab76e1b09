"""The emulated backend: a population of production actors in virtual time, with real encryption and exact noise.

The statistic is a histogram of d bins with one row a client: of all statistics it has the smallest announcement (a few
bytes a bin; a sum over d columns names each and gives it three numbers), so that the figures are those of sums and not
of announcements. What it has is counted like every other byte.

Links are ideal: everything arrives at once, in order and once. Virtual time costs nothing, so the wall time of a round
is that of its computing and the emulator's own; its share is named apart. Clients and Compute nodes are dealt out
evenly to as many processes as are asked for, which go in step (`emulator.sim.lockstep`); in one process, one actor
works after the other.

Sessions are set up first: each client publishes its Hello, and each Compute node verifies it. In the first round, each
pair agrees on its key. Both are once an epoch; they are told as set-up, and are not timed as a round.

The actors of one process share what it keeps: an announcement that is verified, and held against one policy, once, and
which certificates are signed. A device does so itself.

A client that drops out neither sees nor sends anything in the round.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import numpy as np

from dca_proto.protocol import facts
from dca_proto.protocol.actor import Actor
from dca_proto.protocol.params import Timing
from dca_proto.testing import TestFederation
from emulator.scaling.account import Account, Clock, held_of, outcome_of
from emulator.scaling.cell import Cell
from emulator.scaling.footprint import footprint
from emulator.scaling.held import Held, Memory, SetUp
from emulator.scaling.meter import ROLES, Metered, Tally
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
        self._simulator = self._make_simulator()
        self._team.gather(b"")  # all begin together
        began_s, worked_s = time.perf_counter(), time.process_time()
        self._world = World(self._actors, self._simulator)
        self._simulator.run(self._simulator.now_ms + 1)
        self.sessions_s, self.sessions_wall_s = time.process_time() - worked_s, time.perf_counter() - began_s
        self._away: set[bytes] = set()
        self._tallies = {role: Tally() for role in ROLES}
        self._clock = Clock()
        self._memory: dict[str, int] = {}
        self._is_weighing = False
        self._meter_all()

    def _make_simulator(self) -> Simulator:
        team = self._team
        options: dict[str, Any] = {"federation": _FEDERATION, "start_ms": _BEGIN_MS, "link": IDEAL, "keep_facts_max": 0}
        if team.count == 1:
            return Simulator(_FEDERATION, **options)
        return Region(_FEDERATION, team, assign(self._actors, team.count), **options)

    def hold(self) -> Held:
        """One round, from the command to its end, as all processes together see it."""
        simulator, clock, team = self._simulator, self._clock, self._team
        for tally in self._tallies.values():
            tally.reset()
        self._count(-1)
        self._choose_who_is_away()
        team.gather(b"")  # all begin together
        clock.start()
        worked_s, waited_s = time.process_time(), team.waited_s
        if team.number == 0:
            self._world.open_round(**self._request())
        simulator.run_while(lambda: clock.ended is None, simulator.now_ms + _BETWEEN_MS)
        simulator.run(simulator.now_ms + 1)  # what is still on its way
        core_s, waiting_s = time.process_time() - worked_s, team.waited_s - waited_s
        awake_s = time.perf_counter() - clock.began_s - waiting_s
        self._count(1)
        held = self._account(core_s, awake_s, waiting_s)
        self._away.clear()
        simulator.run(simulator.now_ms + _BETWEEN_MS)
        return held

    def set_up(self) -> SetUp:
        """The first round of all, in which pairs agree on keys; and what came before it."""
        parts = self._team.gather(msgspec.msgpack.encode(self.sessions_s))
        core_s = sum(msgspec.msgpack.decode(part, type=float) for part in parts)
        return SetUp(sessions_s=core_s, sessions_wall_s=self.sessions_wall_s, first=self.hold())

    def weigh(self) -> Memory:
        """What actors hold in memory in a round, whose times are nobody's."""
        self._is_weighing = True
        self.hold()
        self._is_weighing = False
        node = self._weighed.get(facts.ListFrozen)
        if node is not None:
            self._memory["compute_after"] = self._bytes_of(node)
        found = self._team.gather(msgspec.msgpack.encode(self._memory))
        whole = {key: size for part in found for key, size in msgspec.msgpack.decode(part).items()}
        return Memory(**{key: whole.get(key, 0) for key in Memory.__struct_fields__})

    def peak_rss_mib(self) -> float:
        """The peaks of memory of all processes, summed."""
        peaks = self._team.gather(msgspec.msgpack.encode(peak_rss_bytes() or 0))
        return sum(msgspec.msgpack.decode(peak, type=int) for peak in peaks) / _MIB

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

    def _count(self, sign: int) -> None:
        """Add all messages so far to the tallies, or take them away."""
        for process in self._simulator.processes.values():
            self._tallies[process.role.value].count(process.traffic, sign)

    def _account(self, core_s: float, awake_s: float, waiting_s: float) -> Held:
        clock = self._clock
        account = Account(
            core_s=core_s,
            waiting_s=waiting_s,
            awake_s=awake_s,
            tallies=self._tallies,
            began_s=clock.began_s,
            at_s=clock.at_s,
            outcome=outcome_of(clock.ended),
        )
        everybody = self._team.gather(msgspec.msgpack.encode(account))
        return held_of([msgspec.msgpack.decode(one, type=Account) for one in everybody])

    def _choose_who_is_away(self) -> None:
        """The same clients in all processes."""
        cell = self._cell
        if cell.drop_rate:
            draw = self._simulator.streams("drop-out").random
            self._away.update(client for client in self._actors.clients if draw() < cell.drop_rate)

    # --- meters ----------------------------------------------------------------------------------------------------

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
            tally = self._tallies[process.role.value]
            hear = self._hear if process.id in heard else None
            process.actor = cast(Actor, Metered(process.actor, tally, hear, self._away))

    def _hear(self, actor_id: bytes, fact: object) -> None:
        self._clock.note(fact)
        process = self._weighed.get(type(fact)) if self._is_weighing else None
        if process is not None and process.id == actor_id:
            self._memory[process.role.value] = self._bytes_of(process)

    def _bytes_of(self, process: Process) -> int:
        """What an actor holds, without what all actors here share."""
        actors = self._actors
        shared = (actors, actors.federation, actors.mechanism, actors.timing, actors.policy, actors.floors)
        return footprint(self._inside[process.id], shared)


def hold_emulated(cell: Cell, team: Team) -> tuple[SetUp, list[Held], Memory, float]:
    """Hold a cell's rounds: the program of each process.

    Returns:
        How sessions and keys came to be, the measured rounds, what actors held, and the peak of memory in MiB.
    """
    with _unsearched():
        population = Population(cell, team)
        set_up = population.set_up()
        rounds = [population.hold() for _ in range(cell.repeats)]
        peak_mib = population.peak_rss_mib()
        return set_up, rounds, population.weigh(), peak_mib


@contextlib.contextmanager
def _unsearched() -> Iterator[None]:
    """Keep the garbage collector off. It finds nothing in actors, and a population of one process each would not be
    searched by one collector, whose work grows faster than N.
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
