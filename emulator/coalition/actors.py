"""Runs rounds of real actors, in one of two worlds that differ only in the victim's data.

Production actors run on `emulator.sim`, from sessions to release, with real cryptography and exact noise. A federation
is used for some rounds; noise and masks are fresh in each.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from dca_proto.crypto.masks import RingVector
from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES, Random, digest
from dca_proto.engine import Engine
from dca_proto.errors import UsageError
from dca_proto.protocol.compute.round import ANNOUNCEMENTS, CONTRIBUTIONS
from dca_proto.protocol.contribution import HeldContribution
from dca_proto.protocol.effects import Channel, Persist, Write
from dca_proto.protocol.facts import RoundCompleted, RoundFailed
from emulator.claim import VICTIM
from emulator.coalition.dependence import SeenCounts
from emulator.coalition.members import Party
from emulator.coalition.programme import SeenSums
from emulator.coalition.view import Integers, RoundView, SeenRound, without_masks
from emulator.coalition.worlds import Setting, Worlds
from emulator.pairs import Pairs
from emulator.sim.events import Observer
from emulator.sim.link import IDEAL, LinkOptions
from emulator.sim.process import Process
from emulator.sim.simulator import Simulator
from emulator.sim.world import World
from emulator.wire import Accepted, decode_accepted

_NAME_CHARS = 20
_PATIENCE_MS = 3_600_000
_SESSIONS_MS = 2_000  # time for all Hellos to arrive, also over the slow links
_BATCH = 16
_TRAFFIC_ROUNDS = 2
NOISES_MAX = 8  # honest clients of a federation whose noise is judged, so that masks cost little


class Kept(Observer):
    """All contributions that Compute nodes keep in one round, with everything that unmasks them."""

    def __init__(self, federation_id: bytes, dimension: int) -> None:
        self._pairs = Pairs(federation_id)
        self._dimension = dimension
        self.begin()

    def begin(self) -> None:
        """Start a new round; forget the last one."""
        self._announcement: Accepted | None = None
        self._kept: dict[bytes, HeldContribution] = {}

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        self._pairs.on_commit(process, writes)
        if process.role is Channel.COMPUTE:
            for write in writes:
                if isinstance(write, Persist) and write.table == ANNOUNCEMENTS and self._announcement is None:
                    self._announcement = decode_accepted(write.value)
                elif isinstance(write, Persist) and write.table == CONTRIBUTIONS:
                    self._kept[write.key[ID_BYTES:]] = HeldContribution(write.value)

    def unmasked(self, client: bytes) -> RingVector | None:
        """Return a client's contribution without any mask; None if no node keeps it, or a mask is a different one."""
        kept, announcement = self._kept.get(client), self._announcement
        if kept is None or announcement is None:
            return None
        every = range(len(announcement.epochs))
        return without_masks(kept, announcement, client, every, self._pairs, self._dimension)


class Actors:
    """The real actors of one world.

    Args:
        world: the coalition and the round. side: 0 or 1. seed: of all keys, noise and times. link: of every machine.

    Attributes:
        view: the coalition's view of the latest round.
    """

    def __init__(self, world: Worlds, side: int, seed: str, link: LinkOptions) -> None:
        name = f"audit-{digest(b'dca-audit', seed.encode()).hex()[:_NAME_CHARS]}"
        clients, dimension = range(world.setting.clients), world.validated.dimension
        self._world = world
        self._data = np.array([world.encode(world.row(client, side)) for client in clients])
        self._judged = judged_clients(world, seed)
        self._party = Party(world, side, name)
        self._simulator = Simulator(name, federation=self._party.federation.id, link=link, keep_facts_max=0)
        colluding = self._party.computes[: world.setting.coalition.computes]
        self.view = RoundView(self._simulator, self._party, colluding, dimension)
        self._all = Kept(self._party.federation.id, dimension)
        self._simulator.observers += [self.view, self._all]
        self._swarm = World(self._party, self._simulator)
        self._simulator.run(self._simulator.now_ms + _SESSIONS_MS)

    def run_round(self) -> SeenRound:
        """Run one more round. Raises `UsageError` if a client declines."""
        simulator, view, world = self._simulator, self.view, self._world
        view.begin()
        self._all.begin()
        self._party.spy.drawn.clear()
        fields = {name: getattr(world.request, name) for name in ("statistic", "parameters", "rows_max")}
        asked = world.setting.request_fields(**fields)
        computes = self._party.computes if world.setting.kind.is_summed else ()
        self._swarm.open_round(computes=computes, **asked)
        simulator.run_while(lambda: view.ended is None, simulator.now_ms + _PATIENCE_MS)
        if view.declined is not None:
            decline = view.declined
            raise UsageError(f"the clients decline: {decline.reason}: {decline.found}; expected {decline.expected}")
        return self._round()

    def _round(self) -> SeenRound:
        world, view, clients = self._world, self.view, self._party.clients
        colluding, honest = [*world.revealing, *world.omitting], list(world.honest)
        others = [view.unmasked(clients[client]) for client in honest if client != VICTIM]
        kept = {client: self._all.unmasked(clients[client]) for client in self._judged}
        return SeenRound(
            victim=view.unmasked(clients[VICTIM]),
            arrived=view.arrived(clients[VICTIM]),
            others=[vector for vector in others if vector is not None],
            partials=[*view.partials.values()],
            total=self._total(view.ended),
            known=self._data[colluding].sum(axis=0) + sum(self._party.spy.drawn, np.zeros_like(self._data[VICTIM])),
            honest=self._data[honest].sum(axis=0),
            secret=self._data[VICTIM],
            noises={
                client: vector.view(np.int64) - self._data[client]
                for client, vector in kept.items()
                if vector is not None
            },
        )

    def _total(self, ended: RoundCompleted | RoundFailed | None) -> Integers | None:
        if not isinstance(ended, RoundCompleted):
            return None
        return np.rint(ended.aggregate.value / self._world.validated.unit).astype(np.int64)


def judged_clients(world: Worlds, seed: str) -> list[int]:
    """Return the honest clients of a federation whose single noises are judged; other seeds give others."""
    first, count = int.from_bytes(digest(b"dca-judged", seed.encode())[:4], "big"), len(world.honest)
    return sorted(world.honest[(first + step) % count] for step in range(min(count, NOISES_MAX)))


def rest_of(setting: Setting, seen: SeenRound) -> Integers | None:
    """Return what a coalition can make of a round, without its own clients' part; None if it has no result.

    It is the sum, or the victim's contribution if all Compute nodes collude.
    """
    if setting.has_all_computes:
        assert seen.victim is not None, "if all nodes collude, one holds it"
        return seen.victim.view(np.int64)
    return None if seen.total is None else seen.total - seen.known


class ActorRounds:
    """Runs rounds of real actors on an engine, in batches; each batch has a federation of its own.

    Args:
        setting: of one round. random: seeds the federations. engine: runs the batches; None: this process does.
        plan: side and runs of the first calls of `run_rounds`, in order. The same processes run all of them, ahead.
    """

    def __init__(
        self, setting: Setting, random: Random, engine: Engine | None = None, plan: Sequence[tuple[int, int]] = ()
    ) -> None:
        self._work = functools.partial(_run_batch, setting)
        self._random = random
        self._engine = engine
        self._planned = deque((call, self._batches(*call)) for call in plan)
        self._ahead = self._run([batch for _, batches in self._planned for batch in batches])

    def run_rounds(self, side: int, runs: int) -> Iterator[SeenSums]:
        if not self._planned:
            yield from self._run(self._batches(side, runs))
            return
        call, batches = self._planned.popleft()
        assert call == (side, runs), f"{call} was planned"
        yield from itertools.islice(self._ahead, len(batches))
        if not self._planned:
            assert not [*self._ahead], "all were planned"  # ends the processes

    def _batches(self, side: int, runs: int) -> list[tuple[int, int, str]]:
        return [(side, min(_BATCH, runs - first), self._random(KEY_BYTES).hex()) for first in range(0, runs, _BATCH)]

    def _run(self, batches: list[tuple[int, int, str]]) -> Iterator[SeenSums]:
        if self._engine is None:
            return map(self._work, batches)
        return (done.value() for done in self._engine.map(self._work, batches, ordered=True))


def _run_batch(setting: Setting, batch: tuple[int, int, str]) -> SeenSums:
    """Run the rounds of a batch: the world's side, the number of runs, and the seed."""
    side, runs, seed = batch
    world, tally = Worlds(setting), SeenCounts()
    actors = Actors(world, side, seed, IDEAL)
    rests: list[Integers] = []
    noises: list[Integers] = []
    places: list[tuple[int, str]] = []
    for run in range(runs):
        seen = actors.run_round()
        tally.add(side, seen, has_trainer=setting.coalition.trainer)
        rest = rest_of(setting, seen)
        rests += [] if rest is None else [rest]
        noises += seen.noises.values()
        places += [(client, f"{seed}/{run}") for client in seen.noises]
    shape = (-1, world.validated.dimension)
    return SeenSums(
        np.array(rests, dtype=np.int64).reshape(shape),
        np.array(noises, dtype=np.int64).reshape(shape),
        tuple(client for client, _ in places),
        tuple(name for _, name in places),
        tally,
    )


def same_traffic(world: Worlds, seed: str) -> tuple[bool, RoundView, SeenRound]:
    """Return whether both worlds have the same messages, and the view and the last round of world 0.

    The links of these rounds delay, repeat and reorder.
    """
    sides = [Actors(world, side, f"{seed}/traffic", LinkOptions()) for side in (0, 1)]
    same = True
    for _ in range(_TRAFFIC_ROUNDS):
        first = sides[0].run_round()
        sides[1].run_round()
        view, other = (actors.view for actors in sides)
        same = same and view.sent == other.sent and view.delivered == other.delivered
    return same, sides[0].view, first
