"""Faulty copies of production actors in node releases: data nodes and trainers, each with one mistake.

Each docstring starts with the numbers of the invariants that the mistake breaks.
"""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest import mock

import msgspec
from planted import NeverTells

from dca_proto.crypto.sealing import KEY_BYTES
from dca_proto.protocol.announcement import OpenedAnnouncement, seal_answer
from dca_proto.protocol.client import answer
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.client.round import ClientRound
from dca_proto.protocol.effects import Address, Channel, Effect, Persist, Send
from dca_proto.protocol.facts import RoundCompleted
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.policy import Refusal
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.trainer.round import RELEASES, TrainerRound
from dca_proto.protocol.validation import ValidatedRound
from dca_proto.protocol.wire.codec import decode_body, encode
from dca_proto.protocol.wire.messages import Body, Release, Signed
from emulator.trials.scenario import Adversary, Fault


class AltersReleases(Client):
    """3: signs another release than it has encoded."""

    def _sign(self, body: Body) -> Signed:
        return super()._sign(self._altered(body) if isinstance(body, Release) else body)

    def _altered(self, body: Release) -> Release:
        first = (int.from_bytes(body.vector[:8], "little") + 1) % 2**64
        return msgspec.structs.replace(body, vector=first.to_bytes(8, "little") + body.vector[8:])


class Miscounts(AltersReleases):
    """3: reports one row fewer than the sum has."""

    def _altered(self, body: Release) -> Release:
        return msgspec.structs.replace(body, rows=body.rows - 1)


class ReleasesForNothing(Client):
    """4: releases without writing a charge."""

    def _contribute(self, *given: Any) -> list[Effect]:
        return without(super()._contribute(*given), LEDGER)


class ReleasesBeyondItsBudget(Client):
    """4: never checks the budget."""

    def _consider(self, opened: OpenedAnnouncement, now_ms: int) -> ValidatedRound | Refusal:
        return self._consent.to_terms(opened, self._federation, self._trust.p(self._federation))


class ReleasesAgain(Client):
    """1: sends a second release, which is not stored."""

    def _sign(self, body: Body) -> Signed:
        if isinstance(body, Release):
            self.first = body
        return super()._sign(body)

    def _contribute(self, current: ClientRound, *given: Any) -> list[Effect]:
        effects = super()._contribute(current, *given)
        again = seal_answer(super()._sign(self.first), current.opened, self._random)
        return [*effects, Send(Address(Channel.TRAINER, current.stored.trainer), current.id, again)]


class ReleasesWithOneKey(Client):
    """5 and 10: draws all noise from one key."""

    def _contribute(self, *given: Any) -> list[Effect]:
        with mock.patch.object(answer, "noise_key", return_value=bytes(KEY_BYTES)):
            return super()._contribute(*given)


class CallsForNothing(Trainer):
    """4: announces a round without charging the account."""

    def _announce(self, request: OpenRound, now_ms: int) -> list[Effect]:
        return without(super()._announce(request, now_ms), LEDGER)


class KeepsTheLatest(Trainer):
    """2, and 3 unless the first comes again: replaces the first release by a second."""

    def _on_answer(self, sender: bytes, frame: Signed, current: TrainerRound, now_ms: int) -> list[Effect]:
        if current.releases.get(sender, frame) != frame:
            del current.releases[sender]
        return super()._on_answer(sender, frame, current, now_ms)


class LeavesOneOut(Trainer):
    """3: omits the first node, which is in the sum, from the list of nodes."""

    def _combined(self, current: TrainerRound) -> RoundCompleted:
        completed = super()._combined(current)
        short = dataclasses.replace(completed.aggregate, nodes=completed.aggregate.nodes[1:])
        return RoundCompleted(completed.round_id, short)


class KeepsInMemory(Trainer):
    """3 and 8: acknowledges releases that it keeps in memory only."""

    def _on_answer(self, *given: Any) -> list[Effect]:
        return without(super()._on_answer(*given), RELEASES)


class GivesUp(Trainer):
    """8: fails a round that has all releases."""

    def _complete(self, current: TrainerRound, event: str, now_ms: int) -> list[Effect]:
        return self._fail(current, "too few", now_ms)


class AcceptsAnybody(Trainer):
    """2: accepts any signer as a data node."""

    def _on_answer(self, sender: bytes, frame: Signed, current: TrainerRound, now_ms: int) -> list[Effect]:
        if not isinstance(decode_body(frame.body), Release):
            return super()._on_answer(sender, frame, current, now_ms)
        if sender in current.releases:
            return []
        current.releases[sender] = frame
        return [Persist(RELEASES, current.id + sender, encode(frame))]


def without(effects: list[Effect], table: str) -> list[Effect]:
    """Return the effects without writes to a table."""
    return [one for one in effects if not (isinstance(one, Persist) and one.table == table)]


class Planted(msgspec.Struct, frozen=True):
    """A mistake: its role, the invariants that it breaks, and the scenario settings that reveal it.

    Attributes:
        stalls: by which mechanisms of reports it keeps a round from its end, too (11).
        besides: invariants that it also breaks in some orders of the messages.
    """

    role: str
    broken: set[int]
    changes: dict[str, Any] = {}
    stalls: tuple[str, ...] = ()
    besides: set[int] = set()


TWICE: dict[str, Any] = {
    "adversaries": (Adversary(kind="two-faced", actor="client 0"),),
    "faults": (Fault(kind="partition", actor="client 2", for_ms=1_500),),
}
"""One of three clients releases twice before the last one does, whatever the order of the messages."""
PLANTS: dict[type, Planted] = {
    AltersReleases: Planted("client", {3}),
    Miscounts: Planted("client", {3}),
    ReleasesForNothing: Planted("client", {4, 12}),
    ReleasesBeyondItsBudget: Planted("client", {4}),
    ReleasesAgain: Planted("client", {1, 4}),
    ReleasesWithOneKey: Planted("client", {5, 10, 12}),
    CallsForNothing: Planted("trainer", {4}),
    KeepsTheLatest: Planted("trainer", {2}, TWICE, besides={3, 6, 13}),
    LeavesOneOut: Planted("trainer", {3}),
    KeepsInMemory: Planted("trainer", {3, 8}, {"faults": (Fault(kind="crash", actor="trainer", at_ms=60_000),)}),
    GivesUp: Planted("trainer", {8, 11}),
    AcceptsAnybody: Planted("trainer", {2, 15}, {"adversaries": (Adversary(kind="stranger", actor="stranger 0"),)}),
    NeverTells: Planted("trainer", {7, 11}),
}
