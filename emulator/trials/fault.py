"""One fault of a running trial: what it waits for, what it does, how it is undone, and whether it really happened."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dca_proto.protocol.client import round as client_round
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.compute import round as compute_round
from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.effects import Effect
from dca_proto.protocol.events import Event
from dca_proto.protocol.trainer import round as trainer_round
from dca_proto.protocol.trainer.actor import Trainer
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
"""The phases of a round that each role stores, in which transitions can be struck."""
END, HANDLED, KILLED, DELIVERED, REPORTED = "end", "handled", "killed", "delivered", "reported"
"""What a fault waits for: its end; or until one of its targets has answered an event, was killed, gets a message, or
reports a fact. It is given that process, and the effects, the message or the fact."""
DOWN = "down"
Steps = Generator[str, Any, None]
Make = Callable[["Injection"], Steps]


class FaultOutcome(msgspec.Struct, kw_only=True):
    """What became of a fault. Times are milliseconds since the scenario's start.

    Attributes:
        kind, actor, role: as in the scenario. reached: whether it really happened.
        at_ms, until_ms: when it took effect (or was to) and was undone; None where it was not, or was over at once.
        phase: in which the actor was, or which it was about to enter.
    """

    kind: str
    actor: str
    role: str
    at_ms: int
    until_ms: int | None = None
    reached: bool = False
    phase: str = ""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of fault.

    Attributes:
        does: a description. steps: does what goes wrong, yields what it waits for, and after `END` undoes it.
        roles: whom it may strike. is_of_one: whether it cannot strike a group. once: whether a scenario draws one.
        heals: whether it ends by itself. waits: whether its moment comes by itself, so that it ends when that is over.
        early: whether it is drawn to begin early. phases: whether it strikes at a transition.
        amount: what its size means; amounts: from, to. tardy: by how many times its amount an actor may be late.
        promise: what completion takes it for: a `trouble` while it lasts, `seen` by its kills, `harmless`, or `beyond`.
        outlasts: by how many times its amount, and how many milliseconds more, that trouble goes on after its end.
    """

    does: str
    steps: Make
    roles: tuple[str, ...]
    is_of_one: bool = False
    once: bool = False
    heals: bool = False
    waits: bool = False
    early: bool = False
    phases: bool = False
    amount: str = "not used"
    amounts: tuple[float, float] = (0, 0)
    tardy: int = 0
    promise: Literal["trouble", "seen", "harmless", "beyond"] = "trouble"
    outlasts: tuple[int, int] = (0, 0)

    def phases_of(self, role: str) -> tuple[str, ...]:
        """The phases at whose entry it may strike."""
        return PHASES.get(role, ()) if self.phases else ()


class Kinds(dict[str, Kind]):
    """Kinds of faults by name, in the order in which they are defined."""

    def add(self, name: str, does: str, roles: tuple[str, ...], steps: Make, **more: Any) -> None:
        """One more; `more` as of `Kind`."""
        self[name] = Kind(does=does, steps=steps, roles=roles, **more)

    def kind(self, name: str, does: str, roles: tuple[str, ...], **more: Any) -> Callable[[Make], Make]:
        """Decorates the steps of one more."""

        def decorate(steps: Make) -> Make:
            self.add(name, does, roles, steps, **more)
            return steps

        return decorate


class Injection(Observer):
    """One fault in one trial.

    Args:
        world: where it strikes. kind, fault: as in the scenario. number: its place there, which names its stream.

    Attributes:
        record: what became of it. targets: processes that it concerns. amount: its size.
        began_ms, ended_ms: when it began, or began to wait, and was over, in virtual Unix milliseconds.
    """

    def __init__(self, world: TrialWorld, kind: Kind, fault: Fault, number: int) -> None:
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
        """Have it begin when the scenario says."""
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
        """It is over: at its time, or because everything is mended."""
        if self.is_on and not self.is_over:
            self.ended_ms = self.simulator.now_ms
            if self._waits_for == END:
                next(self._steps, None)
            self._steps.close()
            if self.record.reached and self.record.until_ms is None:
                self.record.until_ms = self.simulator.now_ms - self.simulator.start_ms
        self.is_over, self.is_on = True, False

    def stop_after(self, ms: int) -> None:
        """It is over so many milliseconds later."""
        self.simulator.after(ms, self.stop)

    def revive_after(self, ms: int, process: Process) -> None:
        """A process that is down starts again so many milliseconds later, and the fault is over."""

        def revive() -> None:
            if not process.is_up:
                process.restart()
            self.stop()

        self.simulator.after(ms, revive)

    def reached(self, process: Process | None = None, phase: str = "") -> None:
        """It has really happened."""
        if not self.record.reached:
            self.record.at_ms = self.simulator.now_ms - self.simulator.start_ms
            newest = self.world.rounds[-1].id if self.world.rounds else None
            self.record.phase = phase or (phase_at(process, newest) if process is not None and newest else "")
        self.record.reached = True

    def note(self, what: str, process: Process | None = None) -> None:
        """Into the trace."""
        self.simulator.note(f"{self.fault.kind}: {what}", process.id if process is not None else b"")

    def _go_on(self, moment: str, process: Process, *more: object) -> None:
        """Go on with the steps, if they wait for this moment."""
        if self.is_on and self._waits_for == moment and process in self.targets:
            self._waits_for = self._steps.send((process, *more))

    def on_handled(self, process: Process, event: Event, effects: Sequence[Effect]) -> None:
        self._go_on(HANDLED, process, effects)

    def on_kill(self, process: Process) -> None:
        self._go_on(KILLED, process)

    def on_deliver(self, process: Process, sender: bytes, payload: bytes) -> None:
        self._go_on(DELIVERED, process, payload)

    def on_fact(self, process: Process, fact: object) -> None:
        self._go_on(REPORTED, process, fact)


def phase_at(process: Process, round_id: bytes) -> str:
    """The phase of a round at an actor, or `DOWN`."""
    actor = process.actor
    if actor is None:
        return DOWN
    assert isinstance(actor, Client | ComputeNode | Trainer), "every actor has a role"
    return actor.phase(round_id)
