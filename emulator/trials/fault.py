"""One fault of a running trial: what it waits for, what it does, how it is undone, and whether it really happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import msgspec

from dca_proto.protocol.client import round as client_round
from dca_proto.protocol.compute import round as compute_round
from dca_proto.protocol.trainer import round as trainer_round
from emulator.sim.events import Observer
from emulator.sim.process import Process

if TYPE_CHECKING:
    from emulator.trials.scenario import Fault
    from emulator.trials.world import TrialWorld

PHASES: dict[str, tuple[str, ...]] = {
    "client": (client_round.SENT, client_round.KEPT, client_round.MISSED, client_round.DECLINED,
               client_round.RETURNED),
    "compute": (*compute_round.OPEN, *compute_round.ENDS),
    "trainer": (*trainer_round.OPEN, *trainer_round.ENDED),
}  # fmt: skip
"""The phases of a round that each role stores, in which transitions can be struck."""


class FaultRecord(msgspec.Struct, kw_only=True):
    """What became of a fault. Times are Unix milliseconds of virtual time.

    Attributes:
        kind, actor, role: as in the scenario. reached: whether it happened and not only was meant to.
        at_ms, until_ms: when it took effect and was undone; None where it did not, or was over at once.
        phase: in which the actor was, or which it was about to enter.
    """

    kind: str
    actor: str
    role: str
    at_ms: int | None = None
    until_ms: int | None = None
    reached: bool = False
    phase: str = ""


class Injection(Observer):
    """One fault in one trial. Subclasses say what `begin` and `end` do; those that wait for a moment also observe.

    Args:
        world: that is struck. fault: what the scenario says. number: its place there, which names its random stream.

    Attributes:
        record: what became of it. targets: processes that it concerns.
    """

    watches: ClassVar[bool] = False
    """Whether it must see what happens."""

    def __init__(self, world: TrialWorld, fault: Fault, number: int) -> None:
        self.world = world
        self.simulator = world.simulator
        self.fault = fault
        self.stream = world.simulator.streams(f"fault/{number}")
        self.targets = world.processes_of(fault.actor)
        self.record = FaultRecord(kind=fault.kind, actor=fault.actor, role=fault.actor.split(" ")[0].removesuffix("s"))
        self.is_over = False
        self.is_on = False
        self.began_ms: int | None = None  # when it began, or began to wait, and when it was over
        self.ended_ms: int | None = None

    def arm(self) -> None:
        """Have it begin when the scenario says."""
        if self.watches:
            self.simulator.observers.append(self)
        self.simulator.at(self.simulator.start_ms + self.fault.at_ms, self._begin)

    def _begin(self) -> None:
        if self.is_over:
            return
        self.is_on = True
        self.began_ms = self.simulator.now_ms
        self.begin()
        if self.fault.for_ms and not self.watches:
            self.simulator.after(self.fault.for_ms, self.stop)

    def begin(self) -> None:
        """It starts, or starts to wait for its moment."""

    def end(self) -> None:
        """Undo it."""

    def stop(self) -> None:
        """It is over: at its time, or because everything is mended."""
        if self.is_on and not self.is_over:
            self.ended_ms = self.simulator.now_ms
            self.end()
            if self.record.reached and self.record.until_ms is None:
                self.record.until_ms = self.simulator.now_ms
        self.is_over, self.is_on = True, False

    def reached(self, process: Process | None = None, phase: str = "") -> None:
        """It has really happened."""
        if not self.record.reached:
            self.record.at_ms = self.simulator.now_ms
            self.record.phase = phase or (self.world.phase_of(process) if process is not None else "")
        self.record.reached = True

    def note(self, what: str, process: Process | None = None) -> None:
        """Into the trace."""
        self.simulator.note(f"{self.fault.kind}: {what}", process.id if process is not None else b"")


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of fault.

    Attributes:
        does: in words. make: its injection. roles: whom it may strike. heals: whether it ends by itself.
        amount: what its size means; amounts: from, to. phases: whether it strikes at a transition.
        is_of_one: whether it cannot strike a group.
    """

    does: str
    make: Callable[[TrialWorld, Fault, int], Injection]
    roles: tuple[str, ...]
    heals: bool = False
    amount: str = "not used"
    amounts: tuple[float, float] = (0, 0)
    phases: bool = False
    is_of_one: bool = False

    def phases_of(self, role: str) -> tuple[str, ...]:
        """The phases at whose entry it may strike."""
        return PHASES.get(role, ()) if self.phases else ()
