"""The base of all checkers of invariants: a checker observes, counts its checks, and reports what was broken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from emulator.sim.events import Observer
from emulator.sim.process import Process
from emulator.sim.trace import Entry

if TYPE_CHECKING:
    from emulator.trials.checkers.witness import Witness
    from emulator.trials.world import TrialWorld

BROKEN_KEPT_MAX = 8


class Checker(Observer):
    """One of the eleven invariants, checked against everything that happens in a trial.

    Beside what every observer sees, the witness tells it of what it has decoded, when it has noted that itself:

        on_drawn(client, round_id, made)        an honest client is about to contribute, release or report
        on_paid(client, round_id, made)         that is durable
        on_charge(process, charge)              an entry of an honest actor's ledger is durable
        on_session(node, client, stored)        so is a session at an honest node
        on_begun(node, asked)                   so is an announcement at an honest node
        on_kept(node, round_id, client, kept)   so is a contribution at any node
        on_round(node, stored)                  so is a round's state at an honest node
        on_answer(node, asked, union, objected) so is the node's first answer: U (None of unknown lists), places in it
        on_trainer_round(trainer, round_id, stored)    so is a round's state at the trainer
        on_gathered(trainer, round_id, client)  so is a release or a report at the trainer
        on_release(release), on_alone(release)  each distinct partial sum, release or report of an honest sender leaves

    Args:
        world: whose actors are looked at. witness: what has been decoded for all checkers; it looks on first.

    Attributes:
        number, name: of the invariant. checked: how many single facts were checked so far.
        broken: what contradicted it, the first few, as sentences. before: the facts that were reported until the first
        of them.
    """

    number: int
    name: str

    def __init__(self, world: TrialWorld, witness: Witness) -> None:
        self.world = world
        self.witness = witness
        self.checked = 0
        self.broken: list[str] = []
        self.before: list[Entry] = []

    def _nothing(self, *told: Any) -> None:
        """By default a checker has no interest in something."""

    on_drawn = on_paid = on_charge = on_session = on_begun = on_kept = on_round = on_answer = _nothing
    on_trainer_round = on_gathered = on_release = on_alone = _nothing

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

    def honest(self) -> list[Process]:
        """All such processes."""
        return [process for process in self.world.simulator.processes.values() if self.is_honest(process)]

    @property
    def all_nodes_are_honest(self) -> bool:
        """Whether all Compute nodes keep to the protocol."""
        return self.witness.dishonest.isdisjoint(self.world.actors.computes)


def about(actor: Process | bytes, round_id: bytes) -> str:
    """Whom and which round something is said of."""
    name = actor.name if isinstance(actor, Process) else actor.hex()[:8]
    return f"{name}, round {round_id.hex()[:8]}"
