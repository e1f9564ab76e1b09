"""Runs rounds of real actors, in one of two worlds that differ only in the victim's data.

Production actors run on `emulator.sim`, from sessions to release, with real cryptography and exact noise. A federation
is used for many rounds; noise and masks are fresh in each.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.masks import RingVector
from dca_proto.crypto.sealing import digest
from dca_proto.errors import UsageError
from dca_proto.jobs.job import FRACTION_BITS
from dca_proto.protocol.facts import RoundCompleted
from emulator.claim import VICTIM
from emulator.collusion.coalition import BOUND, Case
from emulator.collusion.members import Party
from emulator.collusion.view import View
from emulator.sim.link import LinkOptions
from emulator.sim.simulator import Simulator
from emulator.sim.world import World

_NAME_CHARS = 20
_PATIENCE_MS = 3_600_000
_SETTLED_MS = 3 * 3_600_000  # after this time every actor has closed its rounds
_ROUNDS_KEPT = 64
_SESSIONS_MS = 2_000  # time for all Hellos to arrive, also over the slow links
Integers = NDArray[np.int64]


class Round(msgspec.Struct, frozen=True):
    """What a coalition sees of one round, and the truth; in grid units, shape ``(dimension,)`` each.

    Attributes:
        victim: the victim's masked vector with the coalition's masks removed, in the ring; None if an honest node
            holds it. arrived: the same vector with all masks, as it arrived.
        others: as `victim`, of the other honest clients whose vectors the coalition holds. partials: the partial sums.
        total: the released sum; None if the round was aborted.
        known: sum of the contributions of the coalition's clients, with their noise.
        honest: sum of the honest clients' data, including the victim's, without noise. secret: the victim's data.
    """

    victim: RingVector | None
    arrived: RingVector | None
    others: list[RingVector]
    partials: list[RingVector]
    total: Integers | None
    known: Integers
    honest: Integers
    secret: Integers


def rows_of(case: Case, side: int) -> NDArray[np.float64]:
    """Return all rows, shape ``(N, d)``. The victim's is BOUND in world 0 and -BOUND in world 1; others lie between."""
    clients = case.setting.clients
    places = (np.arange(clients) / clients - 0.5) * BOUND
    places[VICTIM] = BOUND * (1 - 2 * side)
    return np.repeat(places[:, None], case.setting.dimension, axis=1)


class Rounds:
    """The real actors of one world.

    Args:
        case: the coalition and the round. side: the world, 0 or 1. seed: of all keys, noise and times.
        link: of every machine.

    Attributes:
        view: the coalition's view of the latest round.
    """

    def __init__(self, case: Case, side: int, seed: str, link: LinkOptions) -> None:
        name = f"collude-{digest(b'dca-collude', seed.encode()).hex()[:_NAME_CHARS]}"
        rows = rows_of(case, side)
        self._case = case
        self._data = np.rint(np.ldexp(rows, FRACTION_BITS)).astype(np.int64)
        self._party = Party(case, rows, name)
        self._simulator = Simulator(name, federation=name, link=link, keep_facts_max=0)
        colluding = self._party.computes[: case.coalition.nodes]
        self.view = View(self._simulator, self._party, colluding, case.setting.dimension)
        self._simulator.observers.append(self.view)
        self._world = World(self._party, self._simulator)
        self._simulator.run(self._simulator.now_ms + _SESSIONS_MS)

    def run_round(self) -> Round:
        """Run one more round. Raises `UsageError` if a client declines."""
        simulator, view, setting = self._simulator, self.view, self._case.setting
        if len(self._world.requests) % _ROUNDS_KEPT == _ROUNDS_KEPT - 1:
            simulator.run(simulator.now_ms + _SETTLED_MS)
        view.begin()
        self._party.spy.drawn.clear()
        self._world.open_round(ask=setting.ask(self._party.computes), **setting.asked)
        simulator.run_while(lambda: view.ended is None, simulator.now_ms + _PATIENCE_MS)
        if view.declined is not None:
            decline = view.declined
            raise UsageError(f"the clients decline: {decline.reason}: {decline.found}; expected {decline.expected}")
        return self._round()

    def _round(self) -> Round:
        case, view, clients = self._case, self.view, self._party.clients
        colluding, honest = [*case.revealing, *case.omitting], list(case.honest)
        partials = [*view.partials.values()]
        others = [view.unmasked(clients[client]) for client in honest if client != VICTIM]
        return Round(
            victim=view.unmasked(clients[VICTIM]),
            arrived=view.arrived(clients[VICTIM]),
            others=[vector for vector in others if vector is not None],
            partials=partials,
            total=np.sum(partials, axis=0).view(np.int64) if isinstance(view.ended, RoundCompleted) else None,
            known=self._data[colluding].sum(axis=0) + sum(self._party.spy.drawn, np.zeros_like(self._data[VICTIM])),
            honest=self._data[honest].sum(axis=0),
            secret=self._data[VICTIM],
        )
