"""How many Compute nodes may be corrupt as each member counts: p by its durable federation file (DESIGN §2.7)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from dca_proto.protocol.effects import Channel, Persist, Write
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.ledger import Charge
from dca_proto.protocol.records import decoded
from emulator.sim.events import Observer
from emulator.sim.process import Process
from emulator.trials.world import TrialWorld

_ALL_BUT_ONE = 1 << 10  # larger than any p


class Colluding(Observer):
    """Follows p of all members. A client keeps to the largest that it has seen."""

    def __init__(self, world: TrialWorld) -> None:
        self._world = world
        self._pinned: defaultdict[bytes, int] = defaultdict(int)
        self._p: dict[bytes, tuple[int, int]] = {}  # of a member, before its last transaction and now
        self._charged: dict[tuple[bytes, bytes], int] = {}  # p when it was charged, by member and round
        for process in world.simulator.machines:
            self._note(process)
        world.simulator.observers.append(self)

    def of(self, process: Process) -> int:
        """Return p for a member now; the smaller, if its last transaction has changed it."""
        return min(self._p[process.id])

    def needed(self, process: Process, round_id: bytes) -> int:
        """Return how many nodes' aborts return a member's charge: by the larger of p now and when it was charged."""
        now = self.of(process)
        return 1 + max(now, self._charged.get((process.id, round_id), now))

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        """Note a member's file after a transaction, and the rounds that it was charged for."""
        self._note(process)
        for write in writes:
            if type(write) is Persist and write.table == LEDGER:
                charge = decoded(LEDGER, write.value, Charge)
                if not charge.returned:
                    self._charged[process.id, charge.round_id] = self.of(process)

    def _note(self, process: Process) -> None:
        file = self._world.follows(process)
        stated = file.colluding or _ALL_BUT_ONE
        if process.role is Channel.CLIENT:
            stated = self._pinned[process.id] = max(stated, self._pinned[process.id])
        now = max(1, min(stated, len(file.computes) - 1))
        self._p[process.id] = self._p.get(process.id, (now, now))[1], now

    def on_restore(self, process: Process) -> None:
        """A client with an old copy of its store has forgotten what it saw since."""
        self._pinned.pop(process.id, None)
