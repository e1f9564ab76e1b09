"""The emulated backend: a population of production actors in virtual time, with real encryption and exact noise.

The statistic is a histogram of d bins with one row a client: of all statistics it has the smallest announcement (a few
bytes a bin; a sum over d columns names each and gives it three numbers), so that the figures are those of sums and not
of announcements. What it has is counted like every other byte.

Links are ideal: everything arrives at once, in order and once. Virtual time costs nothing, so the wall time of a round
is that of its computing, one actor after the other, and the emulator's own; its share is named apart. A client that
drops out has joined, and then neither sees nor sends anything until the next round.
"""

from __future__ import annotations

import math
import time
from typing import Any, ClassVar, cast

import numpy as np

from dca_proto.aggregate import NoisyAggregate
from dca_proto.core import facts
from dca_proto.core.machine import Actor
from dca_proto.core.params import Timing
from dca_proto.testing import Cast
from emulator.scaling.cell import Cell
from emulator.scaling.footprint import footprint
from emulator.scaling.held import PHASES, Held, Memory
from emulator.scaling.meter import ROLES, Metered, Tally
from emulator.sim.link import IDEAL
from emulator.sim.process import Process
from emulator.sim.simulator import Simulator
from emulator.sim.world import World

_DAY_MS = 24 * 3600 * 1000
_BEGIN_MS = 19_700 * _DAY_MS  # where an epoch begins, so that all rounds are in one
_WINDOW_MS = 60_000
_TIMING = Timing(abort_grace_ms=_WINDOW_MS)
_BETWEEN_MS = 5 * _WINDOW_MS
"""From one round to the next: past the announced end (four windows), and the time for which aborts are waited for."""
_EPSILON, _DELTA = 0.5, 1e-6
_FEDERATION = "scaling"


class Population:
    """Actors of one cell, started.

    Args:
        cell: what is held. Who drops out follows from it.
    """

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        rows = [np.array([[index % cell.dimension + 0.5]]) for index in range(cell.clients)]
        self._actors = Cast(cell.clients, cell.computes, rows=rows, name=_FEDERATION, timing=_TIMING)
        self._simulator = Simulator(
            _FEDERATION, federation=_FEDERATION, start_ms=_BEGIN_MS, link=IDEAL, keep_facts_max=0
        )
        self._world = World(self._actors, self._simulator)
        self._away: set[bytes] = set()
        self._tallies = {role: Tally() for role in ROLES}
        self._clock = _Clock()
        self._memory: dict[str, int] = {}
        self._is_weighing = False
        self._meter_all()

    def hold(self) -> Held:
        """One round, from the command to its end."""
        simulator, clock = self._simulator, self._clock
        for tally in self._tallies.values():
            tally.reset()
        clock.start()
        began_s = time.process_time()
        self._world.open_round(**self._request())
        simulator.run_while(lambda: clock.ended is None, simulator.now_ms + _BETWEEN_MS)
        simulator.run(simulator.now_ms + 1)  # what is still on its way
        held = self._held(time.process_time() - began_s)
        self._away.clear()
        simulator.run(simulator.now_ms + _BETWEEN_MS)
        return held

    def hold_first(self) -> tuple[Held, Memory]:
        """The first round of the epoch, in which the keys of pairs are agreed on, and what actors held in memory."""
        self._is_weighing = True
        held = self.hold()
        self._is_weighing = False
        after = self._bytes_of(self._world.computes[0])
        return held, Memory(compute_after=after, **{role: self._memory.get(role, 0) for role in ROLES})

    def _request(self) -> dict[str, object]:
        cell = self._cell
        return {
            "statistic": "histogram",
            "parameters": {"columns": ["x"], "edges": list(range(cell.dimension + 1))},
            "rows_max": 1,
            "epsilon": _EPSILON,
            "delta": _DELTA,
            "tolerated": cell.tolerated,
            "encoding": cell.encoding,
            "clients_expected": cell.clients,
            "join_window_ms": _WINDOW_MS,
            "share_window_ms": _WINDOW_MS,
            "commit_window_ms": _WINDOW_MS,
        }

    def _held(self, core_s: float) -> Held:
        tallies, clock = self._tallies, self._clock
        aggregate = clock.ended.aggregate if isinstance(clock.ended, facts.RoundCompleted) else None
        roles = {role: tally.core_ns / 1e9 for role, tally in tallies.items()}
        phases = clock.phases()
        return Held(
            wall_s=math.fsum(phases.values()),
            phases=phases,
            core_s={**roles, "emulator": max(0.0, core_s - clock.weighing_s - math.fsum(roles.values()))},
            messages={role: tally.sent for role, tally in tallies.items()},
            bytes={role: tally.sent_bytes for role, tally in tallies.items()},
            received={role: tally.received for role, tally in tallies.items()},
            received_bytes={role: tally.received_bytes for role, tally in tallies.items()},
            completed=aggregate is not None,
            **_noise(aggregate),
        )

    # --- meters ----------------------------------------------------------------------------------------------------

    def _meter_all(self) -> None:
        """Compute nodes and the trainer are listened to, and the one client that is weighed."""
        world, hear = self._world, self._hear
        heard = {process.id for process in (*world.computes, world.clients[0], world.trainer)}
        self._inside = {process.id: vars(process.actor) for process in self._simulator.processes.values()}
        for process in self._simulator.processes.values():
            assert process.actor is not None
            tally = self._tallies[process.role.value]
            meter = Metered(process.actor, tally, hear if process.id in heard else None, self._away)
            process.actor = cast(Actor, meter)

    def _hear(self, actor_id: bytes, fact: object) -> None:
        if isinstance(fact, facts.Rostered):
            self._drop_out()
        self._clock.note(fact)
        if self._is_weighing:
            began_s = time.perf_counter()
            self._weigh(actor_id, fact)
            self._clock.weighing_s += time.perf_counter() - began_s

    def _drop_out(self) -> None:
        cell = self._cell
        if cell.drop_rate:
            draw = self._simulator.streams("drop-out").random
            self._away.update(client for client in self._actors.clients if draw() < cell.drop_rate)

    # --- memory ----------------------------------------------------------------------------------------------------

    def _weigh(self, actor_id: bytes, fact: object) -> None:
        """At the moments at which each role holds most: a list frozen, shares made, starts sent."""
        world = self._world
        moments: dict[type, Process] = {
            facts.ListFrozen: world.computes[0],
            facts.Contributed: world.clients[0],
            facts.SharingStarted: world.trainer,
        }
        process = moments.get(type(fact))
        if process is not None and process.id == actor_id:
            self._memory[process.role.value] = self._bytes_of(process)

    def _bytes_of(self, process: Process) -> int:
        """What an actor holds, without what all actors here share."""
        actors = self._actors
        shared = (actors, actors.federation, actors.mechanism, actors.timing, actors.policy, actors.floors)
        return footprint(self._inside[process.id], shared)


class _Clock:
    """When the facts occurred that end a round's phases, in seconds of `time.perf_counter`, weighing left out."""

    _ENDS: ClassVar[dict[type, str]] = {
        facts.Rostered: "join",
        facts.SharingStarted: "start",
        facts.ListFrozen: "share",  # of the last node
        facts.RoundCompleted: "commit",
        facts.RoundFailed: "commit",
    }

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A round begins."""
        self.ended: facts.RoundCompleted | facts.RoundFailed | None = None
        self.weighing_s = 0.0
        self._began_s = time.perf_counter()
        self._at_s: dict[str, float] = {}

    def note(self, fact: object) -> None:
        """A fact occurs now."""
        phase = self._ENDS.get(type(fact))
        if phase is not None:
            self._at_s[phase] = time.perf_counter() - self.weighing_s
        if isinstance(fact, facts.RoundCompleted | facts.RoundFailed):
            self.ended = fact

    def phases(self) -> dict[str, float]:
        """Wall seconds of each phase; 0 for one that the round did not come to."""
        seconds, last_s = {}, self._began_s
        for name in PHASES:
            at_s = self._at_s.get(name, last_s)
            seconds[name], last_s = at_s - last_s, at_s
        return seconds


def _noise(aggregate: NoisyAggregate | None) -> dict[str, Any]:
    if aggregate is None:
        return {}
    assert aggregate.mu is not None
    return {
        "contributors": aggregate.contributors,
        "noise_sd": math.sqrt(aggregate.noise_variance),
        "noise_sd_ideal": aggregate.sensitivity / aggregate.mu,
    }
