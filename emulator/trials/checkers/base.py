"""What every checker of an invariant is: it looks on, counts what it has checked, and says what was broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emulator.sim.events import Observer
from emulator.sim.process import Process
from emulator.sim.trace import Entry

if TYPE_CHECKING:
    from emulator.trials.checkers.witness import Witness
    from emulator.trials.world import TrialWorld

BROKEN_KEPT_MAX = 8


class Checker(Observer):
    """One of the eleven invariants, held against everything that happens in a trial.

    Args:
        world: whose actors are looked at. witness: what has been decoded for all checkers; it looks on first.

    Attributes:
        number, name: of the invariant. checked: how many single facts were held against it so far.
        broken: what contradicted it, the first few, in words. before: the facts that were told until the first of them.
        finish: to be called once, when the trial is over.
    """

    number: int
    name: str

    def __init__(self, world: TrialWorld, witness: Witness) -> None:
        self.world = world
        self.witness = witness
        self.checked = 0
        self.broken: list[str] = []
        self.before: list[Entry] = []

    def finish(self) -> None:
        """The trial is over: check what can only be checked now."""

    def expect(self, holds: bool, what: str) -> None:
        """Count one fact, and keep `what` where it does not hold."""
        self.checked += 1
        if not holds:
            self.fail(what)

    def fail(self, what: str) -> None:
        """The invariant is broken."""
        if not self.broken:
            self.before = list(self.world.simulator.trace.entries)
        if len(self.broken) < BROKEN_KEPT_MAX:
            since_s = (self.world.simulator.now_ms - self.world.simulator.start_ms) / 1000
            self.broken.append(f"at {since_s:.3f} s: {what}")

    def is_honest(self, process: Process) -> bool:
        """Whether the process runs a production actor, and no other one has a copy of its disk."""
        return process.id not in self.witness.dishonest

    @property
    def all_nodes_are_honest(self) -> bool:
        """Whether all Compute nodes keep to the protocol."""
        return self.witness.dishonest.isdisjoint(self.world.cast.computes)
