"""All kinds of hostile actors: production actors with one step replaced. `hostile_trainer` defines the trainers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.masks import CHARGE_BYTES, ENTRY_BYTES, TAG_BYTES, WORD_BYTES
from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES
from dca_proto.protocol.announcement import OpenedAnnouncement
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.client.answer import Composer
from dca_proto.protocol.client.round import Round as ClientRound
from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.compute.round import FROZEN
from dca_proto.protocol.compute.round import Round as NodeRound
from dca_proto.protocol.contribution import ClientMessage, HeldContribution
from dca_proto.protocol.effects import Address, Channel, Effect, Report, Send, SetTimer
from dca_proto.protocol.events import Event, Timer
from dca_proto.protocol.facts import Released
from dca_proto.protocol.kinds import LdpReport, ValidatedRound
from dca_proto.protocol.lists import list_hash
from dca_proto.protocol.wire import messages as m
from dca_proto.protocol.wire.codec import encode
from emulator.trials.adversary import Adversaries, Replaced
from emulator.trials.hostile_trainer import TRAINERS
from emulator.wire import body_of

_FLOOD_EVERY_MS, _FLOODS_MAX = 1_500, 20
_FAR = 1 << 62
_FAR_BYTE = b"\x55"  # repeated: a category out of range, or bits that include some beyond the last category
_CLIENTS, _MESSAGES = (1, 10_000), (10, 1_000)
_OWN = Adversaries()


class HostileClient(Client):
    """A client that breaks the protocol. `amount`: the adversary's size. `_honest`: the production composer."""

    role, amount = "client", 0

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._honest = self._composer
        self._composer = Replaced(self._composer, compose=self._make)  # type: ignore[assignment]

    def _make(
        self, opened: OpenedAnnouncement, validated: ValidatedRound, charge: int
    ) -> tuple[ClientMessage, list[str]]:
        return self._honest.compose(opened, validated, charge)


class _Far(Composer, frozen=True, eq=False):
    def _value(self, validated: ValidatedRound, body: m.Announcement) -> tuple[NDArray[np.int64], int, list[str]]:
        return np.full(validated.dimension, _FAR, dtype=np.int64), body.rows_max, []


@_OWN.kind("out-of-range", "contributes any numbers", "value")
class _OutOfRange(HostileClient):
    """Numbers far beyond the announced bounds; in an LDP report, bytes that no mechanism gives."""

    def _make(
        self, opened: OpenedAnnouncement, validated: ValidatedRound, charge: int
    ) -> tuple[ClientMessage, list[str]]:
        if isinstance(validated.terms, LdpReport):
            return msgspec.structs.replace(self._honest, sign=self._forge).compose(opened, validated, charge)
        return _Far(*msgspec.structs.astuple(self._honest)).compose(opened, validated, charge)

    def _forge(self, body: m.Body) -> m.Signed:
        assert isinstance(body, m.Release), "a report is signed as a release"
        return self._honest.sign(msgspec.structs.replace(body, vector=_FAR_BYTE * len(body.vector)))


@_OWN.kind("two-faced", "contributes twice for one charge")
class _TwoFaced(HostileClient):
    def _contribute(self, current: ClientRound, validated: ValidatedRound, now_ms: int) -> list[Effect]:
        effects = super()._contribute(current, validated, now_ms)
        second, _ = self._composer.compose(current.opened, validated, self.ledger[current.id].number)
        return [*effects, Send(current.holder, current.id, second.payload)]


@_OWN.kind("wrong-tags", "contributes what a node must object to", "round")
class _WrongTags(HostileClient):
    """It uses a wrong pair key for one Compute node other than its holder."""

    def _make(
        self, opened: OpenedAnnouncement, validated: ValidatedRound, charge: int
    ) -> tuple[ClientMessage, list[str]]:
        def pair_keys(epochs: tuple[m.EpochKey, ...]) -> list[bytes]:
            keys, holder = list(self._honest.session.pair_keys(epochs)), opened.holder(self.id).id
            keys[-1 if holder != opened.computes[-1] else 0] = self._honest.random(KEY_BYTES)
            return keys

        session: Any = Replaced(self._honest.session, pair_keys=pair_keys)
        return msgspec.structs.replace(self._honest, session=session).compose(opened, validated, charge)


@_OWN.kind("reuse-charge", "pays for all rounds with one charge number", "round")
class _ReusingCharges(HostileClient):
    def _make(
        self, opened: OpenedAnnouncement, validated: ValidatedRound, charge: int
    ) -> tuple[ClientMessage, list[str]]:
        return super()._make(opened, validated, 1)


@_OWN.kind("wrong-holder", "contributes to another holder", "round")
class _WrongHolder(HostileClient):
    """It also seals its contribution to that node."""

    def _contribute(self, current: ClientRound, validated: ValidatedRound, now_ms: int) -> list[Effect]:
        opened = current.opened
        if opened.computes:
            place = (opened.computes.index(opened.holder(self.id).id) + 1) % len(opened.computes)
            current.holder = other = Address(Channel.COMPUTE, opened.computes[place])
            current.opened = Replaced(opened, holder=lambda client: other)  # type: ignore[assignment]
        return super()._contribute(current, validated, now_ms)


@_OWN.kind("sybil", "has a session and never contributes", "round")
class _Sybil(HostileClient):
    """It counts as a client but adds no noise, as do extra ids of one owner."""

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        kept = (Channel.COMPUTE, Channel.TRAINER)
        effects = super().handle(event, now_ms)
        return [effect for effect in effects if not (isinstance(effect, Send) and effect.to.channel in kept)]


@_OWN.kind("stranger", "joins without being enrolled", amount=_MESSAGES, is_stranger=True)
@_OWN.kind("flood", "floods everybody", amount=_MESSAGES)
class _Flooding(HostileClient):
    """It sends bursts of random bytes and of contributions that nobody can open; `amount` scales each burst."""

    _floods = 0

    def _on_start_up(self, now_ms: int) -> list[Effect]:
        return [*super()._on_start_up(now_ms), SetTimer(Timer("flood"), now_ms + _FLOOD_EVERY_MS)]

    def _on_timer(self, timer: Timer, now_ms: int) -> list[Effect]:
        if timer.purpose != "flood":
            return super()._on_timer(timer, now_ms)
        self._floods += 1
        again = [SetTimer(timer, now_ms + _FLOOD_EVERY_MS)] if self._floods < _FLOODS_MAX else []
        return [*(send for _ in range(self.amount) for send in self._junk()), *again]

    def _junk(self) -> list[Effect]:
        nodes = [Address(Channel.COMPUTE, member.id) for member in self._federation.computes]
        trainers = [Address(Channel.TRAINER, member.id) for member in self._federation.trainers]
        round_id = next(iter(self._rounds), bytes(ID_BYTES))
        forged = encode(m.Contribution(round_id, self._random(ID_BYTES), self._random(64)))
        everybody = (*nodes, *trainers, Address(Channel.HELLO))
        return [
            *(Send(to, round_id, forged) for to in nodes),
            *(Send(to, round_id, self._random(80)) for to in everybody),
        ]


@_OWN.kind("copier", "sends others' ciphertexts as its own")
class _Copier(HostileClient):
    """The broker copies the messages for it (`TrialWorld._copy`)."""


class HostileCompute(ComputeNode):
    """A Compute node that breaks the protocol. `amount`: the adversary's size."""

    role, amount = "compute", 0


@_OWN.kind("equivocate", "sends its peers different lists", "round")
class _Equivocating(HostileCompute):
    """Its first peer gets a list without the last entry."""

    def _list_to(self, current: NodeRound, peer: bytes) -> Effect:
        stored = current.stored
        if peer != current.peers(self.id)[0] or not stored.entries:
            return super()._list_to(current, peer)
        entries, tags = stored.entries[:-ENTRY_BYTES], current.tags_for
        hashed, count = list_hash(current.hash, self.id, entries), len(entries) // ENTRY_BYTES
        header = self._sign(m.ListHeader(current.id, current.hash, hashed, count))
        current.stored = msgspec.structs.replace(stored, header=header, entries=entries)
        current.tags_for = lambda place: tags(place)[:-TAG_BYTES]  # type: ignore[method-assign]
        try:
            return super()._list_to(current, peer)
        finally:
            current.stored = stored
            del current.tags_for


@_OWN.kind("drop-clients", "leaves clients out of its list", "round", _CLIENTS)
class _Dropping(HostileCompute):
    def _freeze(self, current: NodeRound, now_ms: int) -> list[Effect]:
        for client in sorted(current.kept)[: self.amount]:
            del current.kept[client]
        return super()._freeze(current, now_ms)


@_OWN.kind("make-up", "lists contributions that nobody has sent", amount=_CLIENTS)
class _MakingUp(HostileCompute):
    """The entries name clients whose holder it is."""

    def _freeze(self, current: NodeRound, now_ms: int) -> list[Effect]:
        nodes, dimension = len(current.stored.computes), current.validated.dimension
        for client in self._invented_clients(current)[: self.amount]:
            rest = self._random(TAG_BYTES * nodes + WORD_BYTES * dimension)
            charge = (1).to_bytes(CHARGE_BYTES, "little")
            kept = HeldContribution(b"".join((client, self._random(ID_BYTES), bytes([nodes]), charge, rest)))
            current.kept.setdefault(client, kept)
        return super()._freeze(current, now_ms)

    def _invented_clients(self, current: NodeRound) -> list[bytes]:
        """Return clients that have not contributed, then random ids, all of which it would hold."""
        silent = [client for client in sorted(self._sessions.slots) if client not in current.kept]
        drawn = [self._random(ID_BYTES) for _ in range(16 * len(current.stored.computes))]
        return [client for client in (*silent, *drawn) if current.opened.holder(client).id == self.id]


@_OWN.kind("list-others", "lists clients of other holders", "round", _CLIENTS)
class _ListingOthers(_MakingUp):
    def _invented_clients(self, current: NodeRound) -> list[bytes]:
        return [client for client in sorted(self._sessions.slots) if current.opened.holder(client).id != self.id]


@_OWN.kind("list-twice", "lists a client twice", "round")
class _ListingTwice(HostileCompute):
    """It lists its first entry twice, with its tags."""

    def _load(self, *given: Any) -> NodeRound:
        current = super()._load(*given)
        entries, tags = current.sorted_entries, current.tags_for
        current.sorted_entries = lambda: entries()[:ENTRY_BYTES] + entries()  # type: ignore[method-assign]
        current.tags_for = lambda place: tags(place)[:TAG_BYTES] + tags(place)  # type: ignore[method-assign]
        return current


@_OWN.kind("alter-tags", "gives its peers wrong tags", "round", _CLIENTS)
class _AlteringTags(HostileCompute):
    def _list_to(self, current: NodeRound, peer: bytes) -> Effect:
        honest = current.tags_for
        current.tags_for = lambda place: _alter_tags(honest(place), self.amount)  # type: ignore[method-assign]
        try:
            return super()._list_to(current, peer)
        finally:
            del current.tags_for


@_OWN.kind("object", "objects to clients", "round", _CLIENTS)
class _Objecting(HostileCompute):
    """It objects to the first `amount` entries of each list, whose tags it changes first."""

    def _answer_when_complete(self, current: NodeRound, now_ms: int) -> list[Effect]:
        if current.phase == FROZEN and len(current.lists) == len(current.stored.computes):
            for node, received in current.lists.items():
                current.lists[node] = msgspec.structs.replace(received, tags=_alter_tags(received.tags, self.amount))
        return super()._answer_when_complete(current, now_ms)


def _alter_tags(tags: bytes, count: int) -> bytes:
    """Return the tags with the first `count` changed."""
    wrong = TAG_BYTES * count
    return bytes(byte ^ 0xA5 for byte in tags[:wrong]) + tags[wrong:]


class _Withholding(HostileCompute):
    """It takes part in everything, but does not send the messages for which `keeps` is True."""

    keeps: Callable[[Send], bool]

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        effects = super().handle(event, now_ms)
        return [effect for effect in effects if not (isinstance(effect, Send) and type(self).keeps(effect))]


@_OWN.kind("withhold-answer", "does not send its answer", "round")
class _WithholdingAnswers(_Withholding):
    keeps = staticmethod(lambda send: isinstance(body_of(send.payload), m.Answer))


@_OWN.kind("alter-sum", "alters its partial sum", "value")
class _Altering(HostileCompute):
    def _sign(self, body: m.Body) -> m.Signed:
        if isinstance(body, m.PartialSum):
            body = msgspec.structs.replace(body, vector=bytes(byte ^ 0xA5 for byte in body.vector))
        return super()._sign(body)


@_OWN.kind("withhold-sum", "does not send its partial sum", "round")
class _WithholdingSums(_Withholding):
    keeps = staticmethod(
        lambda send: send.to.channel is Channel.TRAINER and isinstance(body_of(send.payload), m.Sealed)
    )


@_OWN.kind("silent", "sends nothing after its first message", "round")
class _Silent(HostileCompute):
    """Its first message confirms that it has the round."""

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        speaks = not self._rounds
        effects = super().handle(event, now_ms)
        return effects if speaks else [effect for effect in effects if not isinstance(effect, Send) or effect.retain]


@_OWN.kind("abort-late", "signs an abort after its release", "round")
class _AbortingLate(HostileCompute):
    def _release_when_complete(self, current: NodeRound, now_ms: int) -> list[Effect]:
        effects = super()._release_when_complete(current, now_ms)
        if not any(isinstance(effect, Report) and isinstance(effect.fact, Released) for effect in effects):
            return effects
        about = (current.id, current.hash, self.id)
        lie = self._sign(m.Abort(*about, "too-few", "nothing was released", 0, 0, ()))
        return [*effects, Send(Address(Channel.ABORT), current.id, encode(lie))]


@_OWN.kind("call-old", "falsely reports charges as reused", "round consent", _CLIENTS)
class _CallingOld(HostileCompute):
    """It does so to the first `amount` clients, and keeps none of their contributions."""

    def _keep(
        self, current: NodeRound, client: bytes, kept: HeldContribution, reply: Effect, now_ms: int
    ) -> list[Effect]:
        if client in sorted(self._sessions.slots)[: self.amount]:
            return [self._reused(current, client, kept.charge)]
        return super()._keep(current, client, kept, reply, now_ms)


HOSTILE = Adversaries({**_OWN, **TRAINERS})
"""All kinds, by name."""
