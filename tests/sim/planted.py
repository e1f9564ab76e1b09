"""Faulty copies of production actors, each of which breaks exactly one invariant: what shows that a checker can fail.

Each overrides one step. Where a plant needs something to go wrong in the world as well (clients that vanish, a second
run), `test_checkers` sees to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.core import compute as compute_module
from dca_proto.core.charges import TABLE as CHARGES
from dca_proto.core.client import ClientActor
from dca_proto.core.client_round import CONTRIBUTIONS
from dca_proto.core.client_round import Round as ClientRound
from dca_proto.core.codec import encode
from dca_proto.core.commit import Entries
from dca_proto.core.compute import SHARES, ComputeActor
from dca_proto.core.compute_round import Round
from dca_proto.core.effects import Address, Channel, Effect, Persist, Report, Send
from dca_proto.core.facts import DataFailed, RoundCompleted
from dca_proto.core.fixedpoint import ring_from_bytes, ring_to_bytes
from dca_proto.core.ledger import TABLE as LEDGER
from dca_proto.core.mechanism import Mechanism
from dca_proto.core.messages import Announcement, Body, PartialSum, Signed, Start
from dca_proto.core.plan import Plan, plan_round
from dca_proto.core.round import seal_answer
from dca_proto.core.shares import RingVector, mask
from dca_proto.core.trainer import TrainerActor
from dca_proto.core.trainer_round import Round as TrainerRound
from dca_proto.core.upload import Contribution
from dca_proto.testing import NoNoise
from emulator.trials.scenario import Adversary, Fault


class ReleasesTwice(ComputeActor):
    """1: another partial sum follows the first, as one over a set with one client fewer would."""

    def _sign(self, body: Body) -> Signed:
        if isinstance(body, PartialSum):
            self.first = body
        return super()._sign(body)

    def _release(self, current: Round, agreed: Entries) -> list[Effect]:
        announcement = current.roster.announcement
        effects = super()._release(current, agreed)
        second = msgspec.structs.replace(self.first, vector=bytes(len(self.first.vector)))
        answer = seal_answer(super()._sign(second), announcement, self._random)
        return [*effects, Send(Address(Channel.TRAINER, announcement.body.trainer), current.id, answer)]


class ReleasesTooFew(ComputeActor):
    """2: N - T + c is forgotten."""

    def _settle(self, current: Round) -> list[Effect]:
        if current.phase != compute_module.FROZEN or current.unsettled(self.id):
            return []
        return self._release(current, compute_module.agree(current.entries, current.lists.values()))


class AddsOne(ComputeActor):
    """3: one grid unit too much in the first coordinate."""

    def _sign(self, body: Body) -> Signed:
        if isinstance(body, PartialSum):
            first = (int.from_bytes(body.vector[:8], "little") + 1) % 2**64
            body = msgspec.structs.replace(body, vector=first.to_bytes(8, "little") + body.vector[8:])
        return super()._sign(body)


class ForgetsToCharge(ClientActor):
    """4: the shares leave, the charge was never written."""

    def _on_start(self, frame: Signed, body: Start, now_ms: int) -> list[Effect]:
        effects = super()._on_start(frame, body, now_ms)
        return [one for one in effects if not (isinstance(one, Persist) and one.table == LEDGER)]


class SpendsTooMuch(ClientActor):
    """4: the budget is never asked about."""

    def _consider(self, current: ClientRound, now_ms: int) -> None:
        return None

    def _plan(self, current: ClientRound, clients: int, now_ms: int) -> Plan:
        return plan_round(current.body, self._ask(current), clients, self._mechanism)


class TellsBySending(ClientActor):
    """5: one more message where the mean of its rows is above zero."""

    def _on_start(self, frame: Signed, body: Start, now_ms: int) -> list[Effect]:
        effects = super()._on_start(frame, body, now_ms)
        again = [one for one in effects if isinstance(one, Send)][:1]
        return [*effects, *again] if np.nanmean(self._rows(tuple(self._columns))) > 0 else effects


class MasksAlike(ClientActor):
    """5: every contribution is masked by the same seeds."""

    def _make(self, current: ClientRound, *given: Any) -> Contribution:
        random, fresh = self._random, [bytes(32)]
        self._random = lambda size: fresh.pop() if fresh else random(size)
        try:
            return super()._make(current, *given)
        finally:
            self._random = random


class NoiseAlike(ClientActor):
    """5: every contribution has the same noise."""

    def _make(self, current: ClientRound, *given: Any) -> Contribution:
        honest, self._mechanism = self._mechanism, OneKey(self._mechanism)
        try:
            return super()._make(current, *given)
        finally:
            self._mechanism = honest


class OneKey(NoNoise):
    """Draws what the production mechanism draws from a key of zeros."""

    def __init__(self, mechanism: Mechanism) -> None:
        self._mechanism = mechanism

    def sample(self, variance: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        return self._mechanism.sample(variance, dimension, bytes(len(key)))


class Fragile(ComputeActor):
    """6: what cannot be decoded is not caught."""

    def _receive(self, sender: bytes, payload: bytes, now_ms: int) -> list[Effect]:
        msgspec.msgpack.decode(payload)
        return super()._receive(sender, payload, now_ms)


class Talkative(ClientActor):
    """6: a fact tells the row."""

    def _contribution(self, statistic: Any, body: Announcement) -> tuple[Any, int, list[Effect]]:
        value, counted, trouble = super()._contribution(statistic, body)
        rows = self._rows(statistic.columns)
        told = DataFailed(body.round_id, body.statistic, f"no error: {float(rows[0, 0])!r}")
        return value, counted, [*trouble, Report(told)]


class Hoarder(ComputeActor):
    """6: whatever is dropped is kept."""

    def _drop(self, error: Any, sender: bytes) -> Report:
        self.__dict__.setdefault("kept", []).extend([str(error)] * 10_000)
        return super()._drop(error, sender)


class CountsTwice(ComputeActor):
    """3: after a restart in mid-round, the first contribution is counted once more."""

    _has_restarted = False
    _again: RingVector | None = None

    def _release(self, current: Round, agreed: Entries) -> list[Effect]:
        share, dimension = current.shares[min(agreed)], current.roster.plan.dimension
        if self._has_restarted:
            is_vector = min(agreed) in current.roster.vectors
            self._again = ring_from_bytes(share, dimension) if is_vector else mask(share, dimension)
        return super()._release(current, agreed)

    def _restore_share(self, key: bytes, value: bytes) -> None:
        super()._restore_share(key, value)
        self._has_restarted = True

    def _sign(self, body: Body) -> Signed:
        if isinstance(body, PartialSum) and self._again is not None:
            total = ring_from_bytes(body.vector, self._again.size) + self._again
            body = msgspec.structs.replace(body, vector=ring_to_bytes(total))
        return super()._sign(body)


class CombinesAll(TrainerActor):
    """3: partial sums are added whatever sets they are of."""

    def _combined(self, current: TrainerRound) -> Report:
        told = next(iter(current.partials.values()))
        current.partials = {
            compute: msgspec.structs.replace(told, vector=one.vector) for compute, one in current.partials.items()
        }
        return super()._combined(current)


class SharesAnew(ClientActor):
    """4: after a restart there are other bytes under the contribution id that was sent before."""

    given: ClassVar[dict[tuple[bytes, bytes], Any]] = {}

    def _make(self, current: ClientRound, *given: Any) -> Contribution:
        self.given[self.id, current.id] = given
        return super()._make(current, *given)

    def _on_start_up(self, now_ms: int) -> list[Effect]:
        made = [self._make_again(current) for current in self._rounds.values() if current.contribution is not None]
        return [*made, *super()._on_start_up(now_ms)]

    def _make_again(self, current: ClientRound) -> Persist:
        random, one_id = self._random, current.contribution.contribution
        self._random = lambda size: one_id if size == len(one_id) else random(size)
        current.contribution = self._make(current, *self.given[self.id, current.id])
        self._random = random
        return Persist(CONTRIBUTIONS, current.id, encode(current.contribution))


class ForgetsNumbers(ComputeActor):
    """4: a start begins with no charge numbers."""

    def _restore(self, records: Sequence[tuple[str, bytes, bytes]]) -> None:
        super()._restore([record for record in records if record[0] != CHARGES])


class NeverEnds(TrainerActor):
    """7: the result is stored, and nobody is told."""

    def _complete(self, *given: Any) -> list[Effect]:
        told = super()._complete(*given)
        return [one for one in told if not (isinstance(one, Report) and isinstance(one.fact, RoundCompleted))]


class Promises(ComputeActor):
    """8: receipts for shares that only memory holds."""

    def _on_share(self, *given: Any) -> list[Effect]:
        effects = super()._on_share(*given)
        return [one for one in effects if not (isinstance(one, Persist) and one.table == SHARES)]


PLANTS: dict[int, tuple[type, ...]] = {
    1: (ReleasesTwice,),
    2: (ReleasesTooFew,),
    3: (AddsOne,),
    4: (ForgetsToCharge, SpendsTooMuch),
    5: (TellsBySending, MasksAlike, NoiseAlike),
    6: (Fragile, Talkative, Hoarder),
    7: (NeverEnds,),
    8: (Promises,),
}
"""By the number of the invariant that each breaks. For 9 it is the emulator that must be broken."""

ONLY_IN: dict[type, tuple[str, int, dict[str, Any]]] = {
    CountsTwice: ("compute", 3, {"faults": (Fault(kind="kill-before", actor="compute 0", phase="frozen"),)}),
    CombinesAll: ("trainer", 3, {"adversaries": (Adversary(kind="equivocate", actor="compute 1"),)}),
    SharesAnew: ("client", 4, {"faults": (Fault(kind="kill-after", actor="client 1", phase="sharing"),)}),
    ForgetsNumbers: ("compute", 4, {"faults": (Fault(kind="kill-before", actor="compute 0", phase="frozen"),)}),
}
"""Those that show only where something else goes wrong: role, invariant, and what of a scenario makes them show."""
