"""One fault in a running trial: it waits for its moment, strikes, is undone, and records whether it happened."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from dca_proto.protocol.client import round as client_round
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.compute import round as compute_round
from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.effects import Effect
from dca_proto.protocol.events import Event
from dca_proto.protocol.trainer import round as trainer_round
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.results.figure import about
from emulator.sim.events import Observer
from emulator.sim.process import Process
from emulator.trials.scenario import Fault

if TYPE_CHECKING:
    from emulator.trials.world import TrialWorld

PHASES: dict[str, tuple[str, ...]] = {
    "client": (client_round.SENT, client_round.KEPT, client_round.MISSED, client_round.DECLINED,
               client_round.RETURNED),
    "compute": (*compute_round.OPEN, *compute_round.ENDS),
    "trainer": (*trainer_round.OPEN, *trainer_round.ENDED),
}  # fmt: skip
"""The phases that each role stores for a round. A fault can strike when an actor enters one."""
END, HANDLED, KILLED, DELIVERED, REPORTED = "end", "handled", "killed", "delivered", "reported"
"""What the steps of a fault yield to wait for: the fault's end, or the next time that one of its targets has handled an
event, is killed, gets a message or reports a fact. They are sent that process, and the effects, message or fact."""
DOWN = "down"
Steps = Generator[str, Any, None]


class FaultOutcome(msgspec.Struct, kw_only=True):
    """The outcome of a fault. Times are milliseconds since the scenario's start."""

    kind: Annotated[str, about("As in the scenario.")]
    actor: Annotated[str, about("As in the scenario.")]
    role: Annotated[str, about("As in the scenario.")]
    at_ms: Annotated[int, about("When it took effect; the scenario's time if it never did.", unit="ms")]
    until_ms: Annotated[int | None, about("When it was undone; null if never.", unit="ms")] = None
    reached: Annotated[bool, about("Whether it happened.")] = False
    phase: Annotated[str, about("The phase that the actor was in or about to enter.")] = ""


class FaultKind(msgspec.Struct, frozen=True):
    """A kind of fault.

    Attributes:
        does: description. roles: that it may strike.
        steps: generator that yields what it waits for, applies the fault, and undoes it after `END`.
        is_of_one: it cannot strike a group. once: a drawn scenario has at most one.
        heals: it ends by itself. waits: it waits for an event at its targets, so the scenario's `for_ms` does not end
            it. early: drawn to begin early. phases: it strikes at a transition, of the scenario's phase if given.
        amount: meaning of its size; amounts: smallest and largest. tardy: an actor may be late by `tardy` · amount.
        lasts_ms: how long it lasts where it is drawn; 0 is until healing, or a default time.
        weight: how often it is drawn apart from the usual faults (`draw`); 0 for a usual one.
        at_all: it changes something for all actors, not only for its targets.
        promise: how the promise of completion treats it: as `trouble` while it lasts, `seen` through its kills alone,
            `harmless`, or `beyond` the promise.
        outlasts: (a, b): the trouble goes on for a · amount + b milliseconds after the fault's end.
    """

    does: str
    roles: tuple[str, ...]
    steps: Callable[[Injection], Steps]
    is_of_one: bool = False
    once: bool = False
    heals: bool = False
    waits: bool = False
    early: bool = False
    phases: bool = False
    amount: str = "not used"
    amounts: tuple[float, float] = (0, 0)
    tardy: int = 0
    lasts_ms: tuple[int, ...] = (0, 500, 3_000, 10_000, 30_000)
    weight: int = 0
    at_all: bool = False
    promise: Literal["trouble", "seen", "harmless", "beyond"] = "trouble"
    outlasts: tuple[int, int] = (0, 0)

    def phases_of(self, role: str) -> tuple[str, ...]:
        """Return the phases of a role at whose entry the fault may strike."""
        return PHASES.get(role, ()) if self.phases else ()


class Injection(Observer):
    """One fault in one trial.

    Args:
        world: that it strikes. fault: from the scenario. number: its index there, which names its random stream.

    Attributes:
        record: its outcome. targets: the processes that it concerns. amount: its size.
        began_ms, ended_ms: when it began, or began to wait, and when it ended, in virtual Unix milliseconds.
    """

    def __init__(self, world: TrialWorld, kind: FaultKind, fault: Fault, number: int) -> None:
        self.world, self.simulator, self.kind, self.fault = world, world.simulator, kind, fault
        self.stream = world.simulator.streams(f"fault/{number}")
        self.targets = world.processes_of(fault.actor)
        self.amount = fault.amount
        role = fault.actor.split(" ")[0].removesuffix("s")
        self.record = FaultOutcome(kind=fault.kind, actor=fault.actor, role=role, at_ms=fault.at_ms)
        self.is_over = self.is_on = False
        self.began_ms: int | None = None
        self.ended_ms: int | None = None
        self._steps = kind.steps(self)
        self._waits_for = ""

    def arm(self) -> None:
        """Schedule its beginning."""
        if self.kind.waits:
            self.simulator.observers.append(self)
        self.simulator.at(self.simulator.start_ms + self.fault.at_ms, self._begin)

    def _begin(self) -> None:
        if self.is_over:
            return
        self.is_on, self.began_ms = True, self.simulator.now_ms
        self._waits_for = next(self._steps)
        if self.fault.for_ms and not self.kind.waits:
            self.simulator.after(self.fault.for_ms, self.stop)

    def stop(self) -> None:
        """End the fault and undo it: its time is over, or everything is mended."""
        if self.is_on and not self.is_over:
            self.ended_ms = self.simulator.now_ms
            if self._waits_for == END:
                next(self._steps, None)
            self._steps.close()
            if self.record.reached and self.record.until_ms is None:
                self.record.until_ms = self.simulator.now_ms - self.simulator.start_ms
        self.is_over, self.is_on = True, False

    def stop_after(self, ms: int) -> None:
        """Schedule its end."""
        self.simulator.after(ms, self.stop)

    def revive_after(self, ms: int, process: Process) -> None:
        """Schedule the restart of a process that is down, and with it the end of the fault."""

        def revive() -> None:
            if not process.is_up:
                process.restart()
            self.stop()

        self.simulator.after(ms, revive)

    def reached(self, process: Process | None = None, phase: str = "") -> None:
        """Record that the fault has happened, at `process`, in `phase` or in the actor's phase of the newest round."""
        if not self.record.reached:
            self.record.at_ms = self.simulator.now_ms - self.simulator.start_ms
            newest = self.world.rounds[-1].id if self.world.rounds else None
            self.record.phase = phase or (phase_at(process, newest) if process is not None and newest else "")
        self.record.reached = True

    def note(self, what: str, process: Process | None = None) -> None:
        """Add a note to the trace."""
        self.simulator.note(f"{self.fault.kind}: {what}", process.id if process is not None else b"")

    def _resume(self, moment: str, process: Process, *more: object) -> None:
        """Resume the steps if they wait for this moment."""
        if self.is_on and self._waits_for == moment and process in self.targets:
            self._waits_for = self._steps.send((process, *more))

    def on_handled(self, process: Process, event: Event, effects: Sequence[Effect]) -> None:
        self._resume(HANDLED, process, effects)

    def on_kill(self, process: Process) -> None:
        self._resume(KILLED, process)

    def on_deliver(self, process: Process, sender: bytes, payload: bytes) -> None:
        self._resume(DELIVERED, process, payload)

    def on_fact(self, process: Process, fact: object) -> None:
        self._resume(REPORTED, process, fact)


def phase_at(process: Process, round_id: bytes) -> str:
    """Return the phase of a round at an actor, or `DOWN`."""
    actor = process.actor
    if actor is None:
        return DOWN
    assert isinstance(actor, Client | ComputeNode | Trainer), "every actor has a role"
    return actor.phase(round_id)
