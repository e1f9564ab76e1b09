"""Faulty copies of production actors in LDP reports, each with one mistake, in addition to those of node releases.

Each docstring starts with the numbers of the invariants that the mistake breaks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec
import planted_locally
from planted_locally import AltersReleases, Planted, ReleasesWithOneKey

from dca_proto.privacy import accounting
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.privacy.local.additive import AnalyticGaussian
from dca_proto.privacy.mechanism import ANALYTIC_GAUSSIAN, UNARY_ENCODING
from dca_proto.protocol.announcement import OpenedAnnouncement
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.client.round import ClientRound
from dca_proto.protocol.effects import Effect, Report, Send
from dca_proto.protocol.facts import DataFailed, RoundCompleted
from dca_proto.protocol.ledger import Charge
from dca_proto.protocol.policy import Refusal
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.trainer.round import TrainerRound
from dca_proto.protocol.validation import ValidatedRound
from dca_proto.protocol.wire.messages import Release
from dca_proto.statistics.sensitivity import REPLACE_ONE_ROW


class CountsItsRows(AltersReleases):
    """3: reports reveal the client's number of rows."""

    def _altered(self, body: Release) -> Release:
        return msgspec.structs.replace(body, rows=1 + len(rows_of(self)))


class PadsReports(AltersReleases):
    """3 and 5: reports of one round differ in size."""

    def _altered(self, body: Release) -> Release:
        return msgspec.structs.replace(body, vector=body.vector + bytes(self.id[0] % 3))


class RandomisesTooLittle(Client):
    """3 and 10: reports are made with 20 times the announced epsilon."""

    def _contribute(
        self, current: ClientRound, opened: OpenedAnnouncement, validated: ValidatedRound, now_ms: int
    ) -> list[Effect]:
        assert validated.report is not None
        fields = {"epsilon": 20 * validated.report.epsilon}
        if isinstance(validated.report, AnalyticGaussian):
            fields["mu"] = 0.0  # all that epsilon and delta allow
        weaker = msgspec.structs.replace(validated.report, **fields)
        return super()._contribute(current, opened, msgspec.structs.replace(validated, report=weaker), now_ms)


class Talkative(Client):
    """6: a fact reveals the row."""

    def _contribute(self, current: ClientRound, *given: Any) -> list[Effect]:
        fact = DataFailed(current.id, given[0].body.statistic, f"no error: {float(rows_of(self)[0, 0])!r}")
        return [*super()._contribute(current, *given), Report(fact)]


class TellsBySending(Client):
    """5, beside a neighbour: sends one more message if its first value is large."""

    def _contribute(self, *given: Any) -> list[Effect]:
        effects = super()._contribute(*given)
        again = [one for one in effects if isinstance(one, Send)][:1]
        return [*effects, *again] if _is_large(self) else effects


class TellsByDeclining(Client):
    """5, beside a neighbour: takes no part if its first value is large."""

    def _consider(self, opened: OpenedAnnouncement, now_ms: int) -> ValidatedRound | Refusal:
        refusal = Refusal("policy", "a round", "another one")
        return refusal if _is_large(self) else super()._consider(opened, now_ms)


def rows_of(client: Client) -> Any:
    """Return a client's data, shape ``(m, columns)``."""
    return client._composer.rows(tuple(sorted(client._consent.columns)))


def _is_large(client: Client) -> bool:
    """Return True for at most one of a value and its neighbour's (`view.neighbour`)."""
    return bool(rows_of(client)[0, 0] > 0.125)


class AltersCharges(Client):
    """Charges another cost than the round's."""

    def _restore(self, records: Sequence[tuple[str, bytes, bytes]]) -> None:
        super()._restore(records)
        honest = self.ledger.charge
        self.ledger.charge = lambda charge: honest(self._other(charge))  # type: ignore[method-assign]

    def _other(self, charge: Charge) -> Charge:
        raise NotImplementedError


class ChargesTheOtherKind(AltersCharges):
    """4: charges an epsilon-private report as a Gaussian one of that epsilon, and vice versa."""

    def _other(self, charge: Charge) -> Charge:
        if charge.delta:
            return msgspec.structs.replace(charge, mu=PrivacyCost.of_pure(charge.epsilon).mu, delta=0.0)
        return msgspec.structs.replace(charge, mu=accounting.mu_of(charge.epsilon, 1e-6), delta=1e-6)


class ChargesHalf(AltersCharges):
    """4: charges half the cost."""

    def _other(self, charge: Charge) -> Charge:
        return msgspec.structs.replace(charge, mu=charge.mu / 2, epsilon=charge.epsilon / 2)


class ChargesForOneRow(AltersCharges):
    """4: writes a charge that claims to protect one row only."""

    def _other(self, charge: Charge) -> Charge:
        return msgspec.structs.replace(charge, relation=REPLACE_ONE_ROW)


class Reorders(Trainer):
    """3: does not order reports by the clients' ids."""

    def _combined(self, current: TrainerRound) -> RoundCompleted:
        completed = super()._combined(current)
        assert completed.aggregate.reports is not None
        values = completed.aggregate.reports.values[::-1]
        turned = dataclasses.replace(completed.aggregate.reports, values=values)
        return RoundCompleted(completed.round_id, dataclasses.replace(completed.aggregate, reports=turned))


class LosesReports(Trainer):
    """3: returns the sum without the reports."""

    def _combined(self, current: TrainerRound) -> RoundCompleted:
        completed = super()._combined(current)
        return RoundCompleted(completed.round_id, dataclasses.replace(completed.aggregate, reports=None))


PLANTS: dict[type, Planted] = {
    AltersReleases: Planted("client", {3}, stalls=(UNARY_ENCODING,)),
    CountsItsRows: Planted("client", {3, 11}),
    PadsReports: Planted("client", {3, 5}),
    RandomisesTooLittle: Planted("client", {3, 10}),
    ReleasesWithOneKey: Planted("client", {5, 10, 12}),
    ChargesTheOtherKind: Planted("client", {4}, stalls=(ANALYTIC_GAUSSIAN,)),
    ChargesHalf: Planted("client", {4}),
    ChargesForOneRow: Planted("client", {4}),
    Talkative: Planted("client", {6}),
    Reorders: Planted("trainer", {3}),
    LosesReports: Planted("trainer", {3}),
    **{
        plant: planted_locally.PLANTS[plant]
        for plant in (
            planted_locally.KeepsTheLatest,
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

BESIDE_A_NEIGHBOUR = (TellsBySending, TellsByDeclining)
"""Clients that break 5, which only a comparison with a run on neighbouring data reveals."""
