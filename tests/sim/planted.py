"""Faulty copies of production actors in secure sums, each with one mistake: what shows that a sweep finds them.

The seeds are how many `dca emulate sweep --seeds 0..` runs until an invariant breaks, and which.

| planted fault | in | seeds | invariant |
| --- | --- | --- | --- |
| receipt before the durable write | Compute nodes | 1 | 8 |
| second release | Compute nodes | 1 | 1 |
| n_min ignored | Compute nodes | 1 | 2 |
| late contribution accepted | Compute nodes | 44 | 8 |
| second contribution accepted | Compute nodes | 139 | 2 |
| contribution counted twice | Compute nodes | 1 | 3 |
| answer worked out again | Compute nodes | 35 | 8 |
| abort after a release | Compute nodes | 5 | 8 |
| release not stored | Compute nodes | 1 | 8 |
| charge number not recorded | Compute nodes | 1 | 4 |
| wrong holder accepted | Compute nodes | 67 | 2 |
| lists not compared | Compute nodes | 171 | 2 |
| one too much in the sum | Compute nodes | 1 | 3 |
| garbage not caught | Compute nodes | 14 | 6 |
| dropped messages kept | Compute nodes | 1 | 6 |
| charge after send | clients | 1 | 4 |
| client returns on one abort | clients | 7 | 4 |
| contribution made anew | clients | 10 | 4 |
| traffic that tells | clients | 1 | 5 |
| account returns on one abort | trainer | 1 | 4 |
| result never told | trainer | 1 | 7 |
| mask without the announcement's hash | all | 1 | 3 |
| objections ignored | all | 25 | 2 |
| list with a client twice accepted | all | 88 | 2 |
| Hello not verified | all | 43 | 2 |
| old epoch accepted | all | 6 | 6 |
| invitation not checked | all | 90 | 4 |
| budget not asked about | all | 14 | 4 |
| receipt for what came too late | Compute nodes | 44 | 8 |
| late word for what is kept | Compute nodes | 1 | 8 |
| a quarter of the variance | all | 1 | 10 |
| N noises suffice | all | 1 | 10 |
| half the sensitivity | all | 1 | 10 |
| less noise drawn than planned | clients | 1 | 10 |
| noise from public values | clients | 1 | 10 |
| noise without fresh randomness | clients | 1 | 10 |
| noise without the client's secret | clients | 1 | 10 |
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from dca_proto.core import agreement, client, compute, compute_commit, contribution, kinds, release, sessions
from dca_proto.core.announcement import OpenedAnnouncement
from dca_proto.core.client import ClientActor
from dca_proto.core.client_round import RETURNED, SENT
from dca_proto.core.client_round import Round as ClientRound
from dca_proto.core.codec import encode
from dca_proto.core.compute import ComputeActor
from dca_proto.core.compute_round import ANSWERED, CONTRIBUTIONS, FROZEN, RELEASED
from dca_proto.core.compute_round import ROUNDS as NODE_ROUNDS
from dca_proto.core.compute_round import Round as NodeRound
from dca_proto.core.consent import Consent
from dca_proto.core.effects import Address, Channel, Effect, Persist, Report, Send
from dca_proto.core.errors import PeerError
from dca_proto.core.facts import Released, RoundCompleted
from dca_proto.core.kinds import SecureSum
from dca_proto.core.messages import Abort, Answer, Body, Contribution, PartialSum, Receipt, Signed
from dca_proto.core.trainer import TrainerActor
from dca_proto.crypto import keyring, masks
from dca_proto.crypto.fixedpoint import ring_from_bytes, ring_to_bytes
from dca_proto.privacy import accounting
from dca_proto.privacy.ledger import TABLE as LEDGER
from dca_proto.privacy.mechanism import DistributedDiscreteGaussian


class ReceiptBeforeTheWrite(ComputeActor):
    """A receipt leaves for a contribution that only memory holds."""

    def _keep(self, *given: Any) -> list[Effect]:
        return [one for one in super()._keep(*given) if not _persists(one, CONTRIBUTIONS)]


class SecondRelease(ComputeActor):
    """Another partial sum follows the first, as one over a set with one client fewer would."""

    def _sign(self, body: Body) -> Signed:
        if isinstance(body, PartialSum):
            self.first = body
        return super()._sign(body)

    def _release_when_complete(self, current: NodeRound, now_ms: int) -> list[Effect]:
        opened, effects = current.opened, super()._release_when_complete(current, now_ms)
        if not _reports(effects, Released):
            return effects
        second = msgspec.structs.replace(self.first, vector=bytes(len(self.first.vector)))
        word = compute_commit.seal_answer(super()._sign(second), opened, self._random)
        return [*effects, Send(Address(Channel.TRAINER, current.stored.trainer), current.id, word)]


class NoFloor(ComputeActor):
    """n_min is ignored."""

    def _load(self, *given: Any) -> NodeRound:
        current = super()._load(*given)
        if current._validated is not None:
            terms = msgspec.structs.replace(current.validated.terms, fewest=0)
            current._validated = msgspec.structs.replace(current.validated, terms=terms)
        return current


class LateContribution(ComputeActor):
    """A contribution is kept after the list was frozen."""

    def _on_contribution(self, sender: bytes, message: Contribution, now_ms: int) -> list[Effect]:
        current = self._rounds.get(message.round_id)
        if current is None or current.phase not in (FROZEN, ANSWERED) or sender in current.listed:
            return super()._on_contribution(sender, message, now_ms)
        opened = self._open_contribution(current, sender, message, now_ms)
        if opened is None:
            return []
        kept, keys = opened
        receipt = Receipt(current.id, kept.contribution, keys.receipt)
        current.kept[sender] = kept
        stored = Persist(CONTRIBUTIONS, current.id + sender, kept.record)
        return [stored, Send(Address(Channel.CLIENT, sender), current.id, encode(receipt))]


class SecondContribution(ComputeActor):
    """The newest contribution of a client takes the place of the first."""

    def _keep(self, current: NodeRound, client: bytes, *given: Any) -> list[Effect]:
        current.kept.pop(client, None)
        return super()._keep(current, client, *given)


class CountedTwice(ComputeActor):
    """The first contribution is counted twice."""

    def _release_when_complete(self, current: NodeRound, now_ms: int) -> list[Effect]:
        self._again = [kept.y for kept in current.kept.values()][:1]
        return super()._release_when_complete(current, now_ms)

    def _sign(self, body: Body) -> Signed:
        if isinstance(body, PartialSum) and self._again and body.clients:
            words = len(body.vector) // 8
            total = ring_from_bytes(body.vector, words) + ring_from_bytes(self._again[0], words)
            body = msgspec.structs.replace(body, vector=ring_to_bytes(total))
        return super()._sign(body)


class AnswerAgain(ComputeActor):
    """After a restart the answer is worked out again."""

    def _restore(self, records: Sequence[tuple[str, bytes, bytes]]) -> None:
        super()._restore(records)
        for current in self._rounds.values():
            if current.phase == ANSWERED:
                current.stored = msgspec.structs.replace(current.stored, phase=FROZEN, answer=None)
                current.answers.clear()


class AbortAfterRelease(ComputeActor):
    """At the end of a round that it has released, a node signs that it has released nothing."""

    def _forget(self, current: NodeRound, now_ms: int) -> list[Effect]:
        effects = super()._forget(current, now_ms)
        if current.phase != RELEASED:
            return effects
        about = (current.id, current.hash, self.id)
        lie = self._sign(Abort(*about, "too-few", "nothing was released", 0, 0, ()))
        return [*effects, Send(Address(Channel.ABORT), current.id, encode(lie))]


class ReleaseNotStored(ComputeActor):
    """A release leaves that is not durable."""

    def _release_when_complete(self, current: NodeRound, now_ms: int) -> list[Effect]:
        effects = super()._release_when_complete(current, now_ms)
        released = _reports(effects, Released)
        return [one for one in effects if not (released and _persists(one, NODE_ROUNDS))]


class NumberNotRecorded(ComputeActor):
    """Charge numbers are looked up, and never remembered."""

    def _restore(self, records: Sequence[tuple[str, bytes, bytes]]) -> None:
        super()._restore(records)
        self._charges.note = lambda *given: []  # type: ignore[method-assign]


class AnyHolder(ComputeActor):
    """A contribution is kept whoever is to hold it."""

    def _load(self, *given: Any) -> NodeRound:
        current = super()._load(*given)
        if current._opened is not None:
            current._opened = HeldHere(current._opened, self.id)  # type: ignore[assignment]
        return current


class HeldHere:
    """An announcement that lets one node hold everything."""

    def __init__(self, opened: OpenedAnnouncement, node: bytes) -> None:
        self._opened = opened
        self._node = node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)

    def holder(self, client: bytes) -> Address:
        return Address(Channel.COMPUTE, self._node)


class ListsNotCompared(ComputeActor):
    """A peer's answer counts whichever lists it names."""

    def _on_answer(self, sender: bytes, frame: Signed, body: Answer, now_ms: int) -> list[Effect]:
        current = self._rounds.get(body.round_id)
        own = current.answers.get(self.id) if current is not None else None
        if own is not None:
            body = msgspec.structs.replace(body, lists=own[1].lists)
        return super()._on_answer(sender, frame, body, now_ms)


class AddsOne(ComputeActor):
    """One grid unit too much in the first coordinate."""

    def _sign(self, body: Body) -> Signed:
        if isinstance(body, PartialSum):
            first = (int.from_bytes(body.vector[:8], "little") + 1) % 2**64
            body = msgspec.structs.replace(body, vector=first.to_bytes(8, "little") + body.vector[8:])
        return super()._sign(body)


class Fragile(ComputeActor):
    """What cannot be decoded is not caught."""

    def _receive(self, sender: bytes, payload: bytes, now_ms: int) -> list[Effect]:
        msgspec.msgpack.decode(payload)
        return super()._receive(sender, payload, now_ms)


class Hoarder(ComputeActor):
    """Whatever is dropped is kept."""

    def _drop(self, error: Any, sender: bytes) -> Report:
        self.__dict__.setdefault("hoard", []).extend([str(error)] * 10_000)
        return super()._drop(error, sender)


class ChargeAfterSend(ClientActor):
    """The contribution leaves first; its charge is written when the receipt comes."""

    _late: Any = None

    def _contribute(self, *given: Any) -> list[Effect]:
        effects = super()._contribute(*given)
        self._late = [one for one in effects if _persists(one, LEDGER)]
        return [one for one in effects if not _persists(one, LEDGER)]

    def _on_receipt(self, *given: Any) -> list[Effect]:
        late, self._late = self._late or [], None
        return [*late, *super()._on_receipt(*given)]


class ReturnOnOneAbort(ClientActor):
    """One node's abort brings the charge back."""

    def _on_abort(self, frame: Signed, body: Abort, now_ms: int) -> list[Effect]:
        effects = super()._on_abort(frame, body, now_ms)
        current = self._rounds.get(body.round_id)
        if not effects or current is None or current.phase == RETURNED:
            return effects
        returned = self.ledger.give_back(current.id)
        return [*effects, returned, current.store(phase=RETURNED)]


class ContributesAgain(ClientActor):
    """After a restart what was sent is made anew."""

    def _on_start_up(self, now_ms: int) -> list[Effect]:
        for current in self._rounds.values():
            if current.phase == SENT and current.stored.outbound is not None:
                payload = current.stored.outbound.payload
                current.store(outbound=msgspec.structs.replace(current.stored.outbound, payload=payload[:-1] + b"\0"))
        return super()._on_start_up(now_ms)


class TellsBySending(ClientActor):
    """One more message where the mean of its rows is above zero."""

    def _contribute(self, current: ClientRound, *given: Any) -> list[Effect]:
        effects = super()._contribute(current, *given)
        again = [one for one in effects if isinstance(one, Send)][:1]
        rows = self._rows_of_its_own()
        return [*effects, *again] if np.nanmean(rows) > 0 else effects

    def _rows_of_its_own(self) -> Any:
        return self._composer.rows(tuple(sorted(self._consent.columns)))


class ReturnsTheAccountOnOneAbort(TrainerActor):
    """One node's abort brings the account's charge back."""

    def _on_abort(self, frame: Signed, body: Abort, now_ms: int) -> list[Effect]:
        effects = super()._on_abort(frame, body, now_ms)
        charged = body.round_id in self.ledger and not self.ledger[body.round_id].returned
        return [*effects, self.ledger.give_back(body.round_id)] if effects and charged else effects


class NeverTells(TrainerActor):
    """The result is stored, and nobody is told."""

    def _complete(self, *given: Any) -> list[Effect]:
        told = super()._complete(*given)
        return [one for one in told if not (isinstance(one, Report) and isinstance(one.fact, RoundCompleted))]


def _persists(effect: Effect, table: str) -> bool:
    return isinstance(effect, Persist) and effect.table == table


def _reports(effects: Sequence[Effect], kind: type) -> bool:
    return any(isinstance(one, Report) and isinstance(one.fact, kind) for one in effects)


# --- mistakes of more than one role: what all of them call ------------------------------------------------------------

Patch = tuple[Any, str, Callable[[Any], Any]]
"""Where a function stands, its name, and what makes a faulty one of it."""


def _letting_pass(words: str) -> Callable[[Any], Any]:
    """A check that lets one mistake pass."""

    def make(honest: Callable[..., Any]) -> Callable[..., Any]:
        def lenient(*given: Any, **more: Any) -> Any:
            try:
                return honest(*given, **more)
            except PeerError as error:
                if words not in str(error):
                    raise
                return None

        return lenient

    return make


def _answering(kept: str, late: str) -> Callable[..., Any]:
    """A holder answers with other tags than it should."""

    def make(honest: Callable[..., Any]) -> Callable[..., Any]:
        def answering(*given: Any, **more: Any) -> Any:
            opened, keys = honest(*given, **more)
            return opened, keys._replace(receipt=getattr(keys, kept), late=getattr(keys, late))

        return answering

    return make


def _keeping_all(honest: Callable[..., Any]) -> Callable[..., Any]:
    """No key is ever deleted, so that rounds of an epoch that is over are taken part in."""

    def renew(self: Any, now_ms: int) -> Any:
        kept = dict(self._keys)
        writes = honest(self, now_ms)
        self._keys = {**kept, **self._keys}
        return [write for write in writes if isinstance(write, Persist)]

    return renew


def _halved(honest: Callable[..., Any]) -> Callable[..., Any]:
    def sensitivity(*given: Any) -> Any:
        made = honest(*given)
        return msgspec.structs.replace(made, l2_squared=made.l2_squared // 4)

    return sensitivity


def _from_public(identity: Any, fresh: bytes, hello: bytes, hashed: bytes, charge: int, value: Any) -> Any:
    root = hashlib.blake2b(identity.id + hashed + bytes([charge % 256])).digest()
    return root[:32], root[32:48]


def _without_secret(honest: Callable[..., Any]) -> Callable[..., Any]:
    """Fresh randomness alone: who restores a snapshot of the generator repeats it."""

    def root(identity: Any, fresh: bytes, *given: Any) -> Any:
        made = hashlib.blake2b(fresh).digest()
        return made[:32], made[32:48]

    return root


def _without_fresh(honest: Callable[..., Any]) -> Callable[..., Any]:
    """The client's secret alone: the same round and value give the same noise."""
    return lambda identity, fresh, *given: honest(identity, bytes(len(fresh)), *given)


def _in_roots(make: Callable[[Any], Any]) -> tuple[Patch, ...]:
    return tuple((where, "hedged_root", make) for where in (contribution, release))


PATCHES: dict[str, tuple[Patch, ...]] = {
    "mask without the announcement's hash": (
        (masks, "_about", lambda honest: lambda hashed, entry: honest(bytes(32), entry)),
    ),
    "objections ignored": (
        (agreement.Agreement, "agree", lambda honest: lambda self, said: honest(self, [b"" for _ in said])),
    ),
    "list with a client twice accepted": ((compute_commit, "check_list", _letting_pass("twice")),),
    "Hello not verified": ((sessions.Sessions, "_check", lambda honest: lambda *given: None),),
    "old epoch accepted": ((keyring.Keyring, "renew", _keeping_all),),
    "invitation not checked": ((client, "check_invitation", lambda honest: lambda *given: None),),
    "budget not asked about": ((Consent, "to_charge", lambda honest: lambda *given: None),),
    "receipt for what came too late": ((compute, "open_contribution", _answering("receipt", "receipt")),),
    "late word for what is kept": ((compute, "open_contribution", _answering("late", "late")),),
    "a quarter of the variance": ((accounting, "share_variance", lambda honest: lambda *of: honest(*of) // 4),),
    "N noises suffice": ((SecureSum, "honest", lambda honest: property(lambda self: self.most)),),
    "half the sensitivity": tuple((kinds, name, _halved) for name in ("client_sensitivity", "row_sensitivity")),
    "less noise drawn than planned": (
        (
            DistributedDiscreteGaussian,
            "sample",
            lambda honest: lambda self, variance, *given: honest(self, variance // 4, *given),
        ),
    ),
    "noise from public values": _in_roots(lambda honest: _from_public),
    "noise without fresh randomness": _in_roots(_without_fresh),
    "noise without the client's secret": _in_roots(_without_secret),
}
"""By what goes wrong."""

PLANTS: dict[str, tuple[str, type]] = {
    "receipt before the durable write": ("compute", ReceiptBeforeTheWrite),
    "second release": ("compute", SecondRelease),
    "n_min ignored": ("compute", NoFloor),
    "late contribution accepted": ("compute", LateContribution),
    "second contribution accepted": ("compute", SecondContribution),
    "contribution counted twice": ("compute", CountedTwice),
    "answer worked out again": ("compute", AnswerAgain),
    "abort after a release": ("compute", AbortAfterRelease),
    "release not stored": ("compute", ReleaseNotStored),
    "charge number not recorded": ("compute", NumberNotRecorded),
    "wrong holder accepted": ("compute", AnyHolder),
    "lists not compared": ("compute", ListsNotCompared),
    "one too much in the sum": ("compute", AddsOne),
    "garbage not caught": ("compute", Fragile),
    "dropped messages kept": ("compute", Hoarder),
    "charge after send": ("client", ChargeAfterSend),
    "client returns on one abort": ("client", ReturnOnOneAbort),
    "contribution made anew": ("client", ContributesAgain),
    "traffic that tells": ("client", TellsBySending),
    "account returns on one abort": ("trainer", ReturnsTheAccountOnOneAbort),
    "result never told": ("trainer", NeverTells),
}
"""By what goes wrong: the role, and the faulty class."""
