"""Faulty copies of production actors, each of which breaks exactly one invariant: what shows that a checker can fail.

Each overrides one step. Where a plant needs something to go wrong in the world as well (clients that vanish, a second
run), `test_checkers` sees to it.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from dca_proto.core import compute as compute_module
from dca_proto.core.client import ClientActor
from dca_proto.core.client_round import Round as ClientRound
from dca_proto.core.commit import Entries
from dca_proto.core.compute import SHARES, ComputeActor
from dca_proto.core.compute_round import Round
from dca_proto.core.effects import Address, Channel, Effect, Persist, Report, Send
from dca_proto.core.facts import DataFailed, RoundCompleted
from dca_proto.core.ledger import TABLE as LEDGER
from dca_proto.core.messages import Announcement, Body, PartialSum, Signed, Start
from dca_proto.core.plan import Plan, plan_round
from dca_proto.core.round import seal_answer
from dca_proto.core.trainer import TrainerActor
from dca_proto.core.upload import Contribution


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


class Fragile(ComputeActor):
    """6: what cannot be decoded is not caught."""

    def _receive(self, sender: bytes, payload: bytes, now_ms: int) -> list[Effect]:
        msgspec.msgpack.decode(payload)
        return super()._receive(sender, payload, now_ms)


class Talkative(ClientActor):
    """6: a fact tells the row."""

    def _contribution(self, statistic: Any, body: Announcement) -> tuple[Any, list[Effect]]:
        value, trouble = super()._contribution(statistic, body)
        rows = self._rows(statistic.columns)
        return value, [*trouble, Report(DataFailed(body.round_id, body.statistic, f"no error: {float(rows[0, 0])!r}"))]


class Hoarder(ComputeActor):
    """6: whatever is dropped is kept."""

    def _drop(self, error: Any, sender: bytes) -> Report:
        self.__dict__.setdefault("kept", []).extend([str(error)] * 10_000)
        return super()._drop(error, sender)


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
    5: (TellsBySending, MasksAlike),
    6: (Fragile, Talkative, Hoarder),
    7: (NeverEnds,),
    8: (Promises,),
}
"""By the number of the invariant that each breaks. For 9 it is the emulator that must be broken."""
