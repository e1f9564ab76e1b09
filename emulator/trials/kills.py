"""Faults of processes: killed at transitions or at any time, vanishing clients, and two processes with one identity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from dca_proto.protocol.client.round import ROUNDS as CLIENT_ROUNDS
from dca_proto.protocol.client.round import StoredRound as ClientRound
from dca_proto.protocol.compute.round import COLLECTING, CONTRIBUTIONS
from dca_proto.protocol.compute.round import ROUNDS as NODE_ROUNDS
from dca_proto.protocol.compute.round import StoredRound as NodeRound
from dca_proto.protocol.effects import Effect, Persist
from dca_proto.protocol.events import Event
from dca_proto.protocol.facts import Acknowledged
from dca_proto.protocol.trainer.round import RELEASES
from dca_proto.protocol.trainer.round import ROUNDS as TRAINER_ROUNDS
from dca_proto.protocol.trainer.round import StoredRound as TrainerRound
from dca_proto.protocol.wire.messages import Announcement, Invitation
from emulator.sim.process import KillPoint, Process, Where
from emulator.trials.checkers.witness import contributions_in
from emulator.trials.fault import Injection
from emulator.trials.wire import body_of

_STORED: dict[str, type[ClientRound] | type[NodeRound] | type[TrainerRound]] = {
    CLIENT_ROUNDS: ClientRound,
    NODE_ROUNDS: NodeRound,
    TRAINER_ROUNDS: TrainerRound,
}
AWAY_MS = 1_500


def entered(effects: Sequence[Effect]) -> list[str]:
    """The phases that a round enters, or stays in, with these effects, in order; none without a stored round."""
    stored = [one for one in effects if isinstance(one, Persist) and one.table in _STORED]
    if stored:
        return [msgspec.msgpack.decode(one.value, type=_STORED[one.table]).phase for one in stored]
    keeps = any(isinstance(effect, Persist) and effect.table in (RELEASES, CONTRIBUTIONS) for effect in effects)
    return [COLLECTING] if keeps else []


class Crash(Injection):
    """Killed at a time, whatever it is doing, and started again."""

    def begin(self) -> None:
        for process in self.targets:
            if process.is_up:
                self.reached(process)
                process.kill(self.fault.kind)

    def end(self) -> None:
        for process in self.targets:
            if not process.is_up:
                self.world.revive(process)


class KillAtTransition(Injection):
    """Killed once where a round enters a phase; `where` in its transaction. Started again after a while."""

    watches = True
    where: ClassVar[Where]
    _phase = ""

    def on_handled(self, process: Process, event: Event, effects: Sequence[Effect]) -> None:
        if not self.is_on or self.record.reached or self._phase or process not in self.targets:
            return
        phases = entered(effects)
        if phases and self.fault.phase in ("", *phases) and self._strikes(effects):
            self._phase = self.fault.phase or phases[-1]
            process.plan_kill(KillPoint(process.disk.transactions, self.where))

    def _strikes(self, effects: Sequence[Effect]) -> bool:
        """Whether this is the moment."""
        return True

    def on_kill(self, process: Process) -> None:
        if not self._phase or self.record.reached or process not in self.targets:
            return
        self.reached(process, self._phase)
        if self._comes_back:
            self.simulator.after(self.fault.for_ms or AWAY_MS, self._back, process)

    @property
    def _comes_back(self) -> bool:
        return True

    def _back(self, process: Process) -> None:
        if not process.is_up:
            self.world.revive(process)
        self.stop()


class KillBefore(KillAtTransition):
    """Before anything of it is written."""

    where = "before"


class KillTorn(KillAtTransition):
    """In the middle of writing."""

    where = "torn"


class KillAfter(KillAtTransition):
    """When it is durable, and before anything has left."""

    where = "after"


class KillBetween(KillAtTransition):
    """Between two of its messages."""

    where = "between"


class VanishSending(KillBetween):
    """A client is gone when it has paid: its contribution has left, or not. It comes back late, or never."""

    def _strikes(self, effects: Sequence[Effect]) -> bool:
        return bool(contributions_in(effects))

    @property
    def _comes_back(self) -> bool:
        return bool(self.fault.for_ms)


class _Vanish(Injection):
    """A client is gone at a moment of a round. It comes back late, or never."""

    watches = True

    def strike(self, process: Process, phase: str) -> None:
        """Kill it, when what it is doing is done."""
        if self._waits_for(process):
            self.reached(process, phase)
            self.simulator.at(self.simulator.now_ms, process.kill, self.fault.kind)
            if self.fault.for_ms:
                self.simulator.after(self.fault.for_ms, self._back, process)

    def _waits_for(self, process: Process) -> bool:
        return self.is_on and not self.record.reached and process in self.targets

    def _back(self, process: Process) -> None:
        if not process.is_up:
            self.world.revive(process)
        self.stop()


class VanishBeforeSending(_Vanish):
    """Gone when the announcement comes."""

    def on_deliver(self, process: Process, sender: bytes, payload: bytes) -> None:
        if self._waits_for(process) and isinstance(body_of(payload), Announcement | Invitation):
            self.strike(process, "new")
            process.kill(self.fault.kind)


class VanishAfterReceipt(_Vanish):
    """Gone when it has its receipt."""

    def on_fact(self, process: Process, fact: object) -> None:
        if isinstance(fact, Acknowledged):
            self.strike(process, "kept")


class DuplicateInstance(Injection):
    """A copy of the disk runs as a second process with the same identity; each throws the other out of its session."""

    _twin: Process | None = None

    def begin(self) -> None:
        (original,) = self.targets
        self._twin = self.world.add_twin(original)
        self.reached(original)
        self.note("a second process with this identity", original)

    def end(self) -> None:
        if self._twin is not None:
            self._twin.kill("the copy is gone")
