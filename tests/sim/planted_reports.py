"""Faulty copies of production actors in report rounds, each with one mistake; beside those of local rounds."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import planted
import planted_locally
from dca_proto.core.plan import Plan, Question
from planted_locally import AltersReleases, KeepsTheLatest, Planted

from dca_proto.core import accounting
from dca_proto.core.client import ClientActor
from dca_proto.core.client_round import Round as ClientRound
from dca_proto.core.effects import Effect, Send
from dca_proto.core.facts import RoundCompleted
from dca_proto.core.ledger import Charge
from dca_proto.core.messages import Release
from dca_proto.core.price import Price
from dca_proto.core.sealing import ID_BYTES, KEY_BYTES
from dca_proto.core.trainer import TrainerActor
from dca_proto.core.trainer_round import Round as TrainerRound
from dca_proto.statistics.sensitivity import REPLACE_ONE_ROW
from emulator.trials.scenario import Adversary


class CountsItsRows(AltersReleases):
    """3: a report tells how many rows its client has."""

    def _altered(self, body: Release) -> Release:
        return msgspec.structs.replace(body, rows=1 + len(self._rows(tuple(self._columns))))


class PadsReports(AltersReleases):
    """3 and 5: reports of one round differ in size."""

    def _altered(self, body: Release) -> Release:
        return msgspec.structs.replace(body, vector=body.vector + bytes(self.id[0] % 3))


class RandomisesTooLittle(ClientActor):
    """3: reports are made with 20 times the announced epsilon."""

    def _ask(self, current: ClientRound) -> Question:
        question = super()._ask(current)
        assert question.report is not None
        weaker = msgspec.structs.replace(question.report, epsilon=20 * question.report.epsilon)
        return msgspec.structs.replace(question, report=weaker)


class ReportsWithOneKey(ClientActor):
    """5: all reports are made from one key."""

    def _spend(self, *given: Any, **more: Any) -> list[Effect]:
        random, fresh = self._random, [bytes(KEY_BYTES)]
        self._random = lambda size: fresh.pop() if fresh else random(size)
        try:
            return super()._spend(*given, **more)
        finally:
            self._random = random


class TellsBySending(ClientActor):
    """5, beside a neighbour: one more message where its first value is large."""

    def _release(self, current: ClientRound, now_ms: int) -> list[Effect]:
        effects = super()._release(current, now_ms)
        again = [one for one in effects if isinstance(one, Send)][:1]
        return [*effects, *again] if _is_large(self) else effects


class TellsByAnId(ClientActor):
    """5, beside a neighbour: the contribution's id begins with another byte where its first value is large."""

    def _spend(self, *given: Any, **more: Any) -> list[Effect]:
        random, begin = self._random, bytes([_is_large(self)])
        self._random = lambda size: begin + random(size)[1:] if size == ID_BYTES else random(size)
        try:
            return super()._spend(*given, **more)
        finally:
            self._random = random


def _is_large(client: ClientActor) -> bool:
    """No more true of both a value and its neighbour's (`view.neighbour`)."""
    return bool(client._rows(tuple(client._columns))[0, 0] > 0.125)


class ChargesTheOtherKind(ClientActor):
    """4: a report that is epsilon-private is charged as a Gaussian one of that epsilon, and the other way round."""

    def _charge(self, current: ClientRound, plan: Plan, now_ms: int) -> Charge:
        charge = super()._charge(current, plan, now_ms)
        if charge.delta:
            return msgspec.structs.replace(charge, mu=Price.of_pure(charge.epsilon).mu, delta=0.0)
        return msgspec.structs.replace(charge, mu=accounting.mu_of(charge.epsilon, 1e-6), delta=1e-6)


class ChargesHalf(ClientActor):
    """4: half the price."""

    def _charge(self, current: ClientRound, plan: Plan, now_ms: int) -> Charge:
        charge = super()._charge(current, plan, now_ms)
        return msgspec.structs.replace(charge, mu=charge.mu / 2, epsilon=charge.epsilon / 2)


class ChargesForOneRow(ClientActor):
    """4: the charge says that it protects one row alone."""

    def _charge(self, current: ClientRound, plan: Plan, now_ms: int) -> Charge:
        return msgspec.structs.replace(super()._charge(current, plan, now_ms), relation=REPLACE_ONE_ROW)


class Reorders(TrainerActor):
    """3: reports are not in the order of the clients' ids."""

    def _combined(self, current: TrainerRound) -> RoundCompleted:
        told = super()._combined(current)
        assert told.aggregate.reports is not None
        values = told.aggregate.reports.values[::-1]
        turned = dataclasses.replace(told.aggregate.reports, values=values)
        return RoundCompleted(told.round_id, dataclasses.replace(told.aggregate, reports=turned))


class LosesReports(TrainerActor):
    """3: only the sum is told."""

    def _combined(self, current: TrainerRound) -> RoundCompleted:
        told = super()._combined(current)
        return RoundCompleted(told.round_id, dataclasses.replace(told.aggregate, reports=None))


PLANTS: dict[type, Planted] = {
    AltersReleases: Planted("client", {3}),
    CountsItsRows: Planted("client", {3}),
    PadsReports: Planted("client", {3, 5}),
    RandomisesTooLittle: Planted("client", {3}),
    ReportsWithOneKey: Planted("client", {5}),
    ChargesTheOtherKind: Planted("client", {4}),
    ChargesHalf: Planted("client", {4}),
    ChargesForOneRow: Planted("client", {4}),
    planted.Talkative: Planted("client", {6}),
    KeepsTheLatest: Planted("trainer", {2, 3}, {"adversaries": (Adversary(kind="two-faced", actor="client 0"),)}),
    Reorders: Planted("trainer", {3}),
    LosesReports: Planted("trainer", {3}),
    **{
        plant: planted_locally.PLANTS[plant]
        for plant in (
            planted_locally.ReleasesForNothing,
            planted_locally.ReleasesBeyondItsBudget,
            planted_locally.ReleasesAgain,
            planted_locally.CallsForNothing,
            planted_locally.KeepsInMemory,
            planted_locally.GivesUp,
            planted_locally.AcceptsAnybody,
            planted_locally.NeverTells,
        )
    },
}

BESIDE_A_NEIGHBOUR = (TellsBySending, TellsByAnId)
"""Clients that break 5, which shows where a run is compared with one on neighbouring data."""
