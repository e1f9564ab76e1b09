"""Faulty copies of production actors in local rounds: data nodes and trainers, each with one mistake."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
from dca_proto.core.plan import Plan, plan_round
from dca_proto.core.round import seal_answer
from planted import OneKey

from dca_proto.core.client import ClientActor
from dca_proto.core.client_round import Round as ClientRound
from dca_proto.core.codec import encode
from dca_proto.core.effects import Address, Channel, Effect, Persist, Report, Send
from dca_proto.core.facts import RoundCompleted
from dca_proto.core.ledger import TABLE as LEDGER
from dca_proto.core.messages import Body, Release, Signed
from dca_proto.core.trainer import TrainerActor
from dca_proto.core.trainer_round import RELEASES, OpenRound
from dca_proto.core.trainer_round import Round as TrainerRound
from emulator.trials.scenario import Adversary, Fault


class AltersReleases(ClientActor):
    """3: what is signed is not what was encoded."""

    def _sign(self, body: Body) -> Signed:
        return super()._sign(self._altered(body) if isinstance(body, Release) else body)

    def _altered(self, body: Release) -> Release:
        first = (int.from_bytes(body.vector[:8], "little") + 1) % 2**64
        return msgspec.structs.replace(body, vector=first.to_bytes(8, "little") + body.vector[8:])


class Miscounts(AltersReleases):
    """3: one row fewer is said to be in the sum."""

    def _altered(self, body: Release) -> Release:
        return msgspec.structs.replace(body, rows=body.rows - 1)


class ReleasesForNothing(ClientActor):
    """4: the release leaves, the charge was never written."""

    def _release(self, current: ClientRound, now_ms: int) -> list[Effect]:
        effects = super()._release(current, now_ms)
        return [one for one in effects if not (isinstance(one, Persist) and one.table == LEDGER)]


class ReleasesBeyondItsBudget(ClientActor):
    """4: the budget is never asked about."""

    def _consider(self, current: ClientRound, now_ms: int) -> None:
        return None

    def _plan(self, current: ClientRound, clients: int, now_ms: int) -> Plan:
        return plan_round(current.body, self._ask(current), clients, self._mechanism)


class ReleasesAgain(ClientActor):
    """1 and 4: another draw of noise follows the first, of which nothing was stored."""

    def _sign(self, body: Body) -> Signed:
        if isinstance(body, Release):
            self.first = body
        return super()._sign(body)

    def _release(self, current: ClientRound, now_ms: int) -> list[Effect]:
        effects = super()._release(current, now_ms)
        again = seal_answer(super()._sign(self.first), current.opened, self._random)
        return [*effects, Send(Address(Channel.TRAINER, current.body.trainer), current.id, again)]


class ReleasesWithOneKey(ClientActor):
    """5: every release has the same noise."""

    def _spend(self, *given: Any, **more: Any) -> list[Effect]:
        honest, self._mechanism = self._mechanism, OneKey(self._mechanism)
        try:
            return super()._spend(*given, **more)
        finally:
            self._mechanism = honest


class CallsForNothing(TrainerActor):
    """4: the round is announced, the account was never charged."""

    def _announce(self, request: OpenRound, now_ms: int) -> list[Effect]:
        effects = super()._announce(request, now_ms)
        return [one for one in effects if not (isinstance(one, Persist) and one.table == LEDGER)]


class KeepsTheLatest(TrainerActor):
    """2 and 3: a second release takes the place of the first."""

    def _on_release(self, sender: bytes, frame: Signed, body: Release, current: TrainerRound, now_ms: int) -> Any:
        if current.releases.get(sender, frame) != frame:
            del current.releases[sender]
        return super()._on_release(sender, frame, body, current, now_ms)


class LeavesOneOut(TrainerActor):
    """3: the first node is in the sum, and not in the list of nodes."""

    def _combined(self, current: TrainerRound) -> RoundCompleted:
        told = super()._combined(current)
        short = dataclasses.replace(told.aggregate, nodes=told.aggregate.nodes[1:])
        return RoundCompleted(told.round_id, short)


class KeepsInMemory(TrainerActor):
    """3 and 8: releases are acknowledged that only memory holds."""

    def _on_release(self, *given: Any) -> list[Effect]:
        effects = super()._on_release(*given)
        return [one for one in effects if not (isinstance(one, Persist) and one.table == RELEASES)]


class GivesUp(TrainerActor):
    """8: a round that has releases fails at its close."""

    def _gathered(self, current: TrainerRound, now_ms: int) -> list[Effect]:
        return self._failures.fail(current, "too few", now_ms)


class AcceptsAnybody(TrainerActor):
    """2: whoever signs is taken for a data node."""

    def _on_release(self, sender: bytes, frame: Signed, body: Release, current: TrainerRound, now_ms: int) -> Any:
        if sender in current.releases:
            return []
        current.releases[sender] = frame
        return [Persist(RELEASES, current.id + sender, encode(frame))]


class NeverTells(TrainerActor):
    """7: the result is stored, and nobody is told."""

    def _complete(self, *given: Any) -> list[Effect]:
        told = super()._complete(*given)
        return [one for one in told if not (isinstance(one, Report) and isinstance(one.fact, RoundCompleted))]


class Planted(msgspec.Struct, frozen=True):
    """A mistake: in which role, what it breaks, and what of a scenario makes it show."""

    role: str
    broken: set[int]
    changes: dict[str, Any] = {}


PLANTS: dict[type, Planted] = {
    AltersReleases: Planted("client", {3}),
    Miscounts: Planted("client", {3}),
    ReleasesForNothing: Planted("client", {4}),
    ReleasesBeyondItsBudget: Planted("client", {4}),
    ReleasesAgain: Planted("client", {1, 4}),
    ReleasesWithOneKey: Planted("client", {5}),
    CallsForNothing: Planted("trainer", {4}),
    KeepsTheLatest: Planted("trainer", {2, 3}, {"adversaries": (Adversary(kind="two-faced", actor="client 1"),)}),
    LeavesOneOut: Planted("trainer", {3}),
    KeepsInMemory: Planted("trainer", {3, 8}, {"faults": (Fault(kind="crash", actor="trainer", at_ms=60_000),)}),
    GivesUp: Planted("trainer", {8}),
    AcceptsAnybody: Planted("trainer", {2}, {"adversaries": (Adversary(kind="stranger", actor="stranger 0"),)}),
    NeverTells: Planted("trainer", {7}),
}
