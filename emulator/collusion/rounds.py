"""One round after another of real actors, in one of two worlds that differ in the victim's data alone.

Sessions, announcement, contributions, lists, answers and release are the production actors' on `emulator.sim`, with
real cryptography and exact noise. A federation is used for many rounds: noise and masks are fresh in each.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.fixedpoint import from_ring, quantise
from dca_proto.crypto.masks import RingVector
from dca_proto.crypto.sealing import digest
from dca_proto.errors import UsageError
from dca_proto.jobs.job import FRACTION_BITS
from dca_proto.protocol.facts import Declined, RoundCompleted, RoundFailed
from emulator.collusion.coalition import BOUND, VICTIM, Case
from emulator.collusion.members import Party
from emulator.collusion.view import Holdings, Traffic, View
from emulator.sim.events import Observer
from emulator.sim.link import LinkOptions
from emulator.sim.process import Process
from emulator.sim.simulator import Simulator
from emulator.sim.world import World

_NAME_CHARS = 20
_PATIENCE_MS = 3_600_000
_SETTLED_MS = 3 * 3_600_000  # then every actor has closed its rounds
_ROUNDS_KEPT = 64
_SESSIONS_MS = 2_000  # in which all Hellos come, also over the slow links
Integers = NDArray[np.int64]


class Round(msgspec.Struct, frozen=True):
    """One round, in grid units, shape ``(dimension,)`` each.

    Attributes:
        held: what the coalition's Compute nodes and trainer hold.
        victim: its masked vector there, with the coalition's masks taken off, in the ring; None where another holds it.
        arrived: the same as it came, with all masks. others: as `victim`, of the other honest clients, as far as the
            coalition holds them.
        total: the released sum; None where the round was aborted. known: what the coalition's clients put in, noise
            and all. honest: the honest clients' data, the victim's among them, without noise. secret: the victim's.
        failure: why there is no sum, how many contributed, and how many were needed.
    """

    held: Holdings
    victim: RingVector | None
    arrived: RingVector | None
    others: list[RingVector]
    total: Integers | None
    known: Integers
    honest: Integers
    secret: Integers
    failure: RoundFailed | None


class _Ending(Observer):
    """How the round ended, as the trainer reports it, and the first client's refusal."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.fact: RoundCompleted | RoundFailed | None = None
        self.declined: Declined | None = None

    def on_fact(self, process: Process, fact: object) -> None:
        if isinstance(fact, RoundCompleted | RoundFailed):
            self.fact = fact
        elif isinstance(fact, Declined):
            self.declined = self.declined or fact


def rows_of(case: Case, side: int) -> NDArray[np.float64]:
    """Everybody's row, shape ``(N, d)``: the victim's at BOUND in world 0, at -BOUND in world 1; others' between."""
    clients = case.setting.clients
    places = (np.arange(clients) / clients - 0.5) * BOUND
    places[VICTIM] = BOUND * (1 - 2 * side)
    return np.repeat(places[:, None], case.setting.dimension, axis=1)


class Rounds:
    """The real actors of one world.

    Args:
        case: who colludes, in what round. side: the world, 0 or 1. seed: equal ones give equal keys, noise and times.
        link: of every machine.

    Attributes:
        traffic: what passes the broker, of the latest round.
    """

    def __init__(self, case: Case, side: int, seed: str, link: LinkOptions) -> None:
        name = f"collude-{digest(b'dca-collude', seed.encode()).hex()[:_NAME_CHARS]}"
        rows = rows_of(case, side)
        self._case = case
        self._data = quantise(rows, FRACTION_BITS)
        self._party = Party(case, rows, name)
        self._simulator = Simulator(name, federation=name, link=link, keep_facts_max=0)
        trainer = self._party.trainer_identity.id if case.coalition.trainer else None
        federation, dimension = self._party.federation, case.setting.dimension
        self._view = View(federation, self._party.computes[: case.coalition.nodes], trainer, dimension)
        self._result = View(federation, (), self._party.trainer_identity.id, dimension)  # exact, as the fact is not
        self._ending = _Ending()
        self.traffic = Traffic(self._simulator)
        self._simulator.observers += [self._view, self._result, self._ending, self.traffic]
        self._world = World(self._party, self._simulator)
        self._simulator.run(self._simulator.now_ms + _SESSIONS_MS)

    def hold(self) -> Round:
        """One more round. Raises `UsageError` where the clients would not take part."""
        simulator, ending = self._simulator, self._ending
        if len(self._world.requests) % _ROUNDS_KEPT == _ROUNDS_KEPT - 1:
            simulator.run(simulator.now_ms + _SETTLED_MS)
        for one in (self._view, self._result, ending):
            one.begin()
        self.traffic.clear()
        self._party.spy.drawn.clear()
        self._world.open_round(ask=self._case.setting.ask(self._party.computes), **self._case.setting.question)
        simulator.run_while(lambda: ending.fact is None, simulator.now_ms + _PATIENCE_MS)
        if ending.declined is not None:
            refused = ending.declined
            raise UsageError(f"the clients decline: {refused.reason}: {refused.found}; expected {refused.expected}")
        return self._round()

    def _round(self) -> Round:
        case, held, fact = self._case, self._view.held, self._ending.fact
        total = None
        if isinstance(fact, RoundCompleted):
            total = from_ring(np.sum([*self._result.held.partials.values()], axis=0))
        colluding = [*case.revealing, *case.omitting]
        known = self._data[colluding].sum(axis=0) + sum(self._party.spy.drawn, np.zeros_like(self._data[VICTIM]))
        honest = list(case.honest)
        others = [self._view.unmasked(self._party.clients[client]) for client in honest if client != VICTIM]
        return Round(
            held=held,
            victim=self._view.unmasked(self._party.clients[VICTIM]),
            arrived=self._view.arrived(self._party.clients[VICTIM]),
            others=[one for one in others if one is not None],
            total=total,
            known=known,
            honest=self._data[honest].sum(axis=0),
            secret=self._data[VICTIM],
            failure=fact if isinstance(fact, RoundFailed) else None,
        )
