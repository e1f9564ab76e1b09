"""All kinds of hostile actors: production actors with one step replaced, and strangers. Trainers: `hostile_trainer`.

Each kind says what it can spoil (DESIGN §10). What it does not name must hold: privacy always does.

    value     the result may be wrong; it is not less private
    round     a round may end without a result
    consent   clients may decline, until they start anew
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.masks import CHARGE_BYTES, ENTRY_BYTES, TAG_BYTES, WORD_BYTES
from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES
from dca_proto.protocol.actor import Actor
from dca_proto.protocol.announcement import OpenedAnnouncement
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.client.compose import Composer
from dca_proto.protocol.client.round import Round as ClientRound
from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.compute.round import FROZEN
from dca_proto.protocol.compute.round import Round as NodeRound
from dca_proto.protocol.contribution import Kept, Outbound
from dca_proto.protocol.effects import Address, Channel, Effect, Report, Send, SetTimer
from dca_proto.protocol.events import Event, Timer
from dca_proto.protocol.facts import Released
from dca_proto.protocol.kinds import LdpReport
from dca_proto.protocol.lists import list_hash
from dca_proto.protocol.validated import ValidatedRound
from dca_proto.protocol.wire.codec import encode
from dca_proto.protocol.wire.messages import (
    Abort,
    Announcement,
    Answer,
    Body,
    Contribution,
    EpochKey,
    ListHeader,
    PartialSum,
    Release,
    Sealed,
    Signed,
)
from emulator.trials import hostile_trainer
from emulator.trials.wire import body_of

FLOOD_EVERY_MS, FLOODS_MAX, FLOOD_MESSAGES = 1_500, 20, 10
_FAR = 1 << 62
_FAR_BYTE = b"\x55"  # of a category beyond any, bits of which some may be beyond the last
Values = NDArray[np.int64]


class Hostile(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of adversary.

    Attributes:
        does: in words. role: whom it replaces. actor: what runs in its place.
        spoils: what it may spoil, as documented: `value`, `round`, `consent`.
        amount_max: the largest size, where it has one. default: the size where the scenario says 0.
        is_stranger: whether it comes beside the population, and was never enrolled.
    """

    does: str
    role: Literal["client", "compute", "trainer"]
    actor: Callable[..., Actor]
    spoils: frozenset[str]
    amount_max: int = 0
    default: int = 0
    is_stranger: bool = False


# --- clients ----------------------------------------------------------------------------------------------------------


class HostileClient(Client):
    """A client that does not keep to the protocol. `amount`: its size. `composes`: how it makes what it sends."""

    amount = 0
    composes: type[Composer] = Composer

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._composer = self.composes(*msgspec.structs.astuple(self._composer))


class _Far(Composer, frozen=True, eq=False):
    def compose(self, opened: OpenedAnnouncement, validated: ValidatedRound, charge: int) -> tuple[Outbound, list[str]]:
        if not isinstance(validated.terms, LdpReport):
            return super().compose(opened, validated, charge)
        lying: Any = (*msgspec.structs.astuple(self)[:5], self._forge, self.random)
        return Composer(*lying).compose(opened, validated, charge)

    def _forge(self, body: Body) -> Signed:
        assert isinstance(body, Release), "nothing else is composed of a report"
        return self.sign(msgspec.structs.replace(body, vector=_FAR_BYTE * len(body.vector)))

    def _value(self, validated: ValidatedRound, body: Announcement) -> tuple[Values, int, list[str]]:
        if isinstance(validated.terms, LdpReport):
            return super()._value(validated, body)
        return np.full(validated.dimension, _FAR, dtype=np.int64), body.rows_max, []


class OutOfRange(HostileClient):
    """Contributes numbers far beyond the announced bounds, the ring's largest; of reports, those that nobody can make.

    (A mechanism randomises no such value; who lies writes the bytes of the report.)
    """

    composes = _Far


class TwoFaced(HostileClient):
    """Sends two contributions, releases or reports for one charge."""

    def _contribute(self, current: ClientRound, validated: ValidatedRound, now_ms: int) -> list[Effect]:
        effects = super()._contribute(current, validated, now_ms)
        second, _ = self._composer.compose(current.opened, validated, self.ledger[current.id].number)
        return [*effects, Send(current.holder, current.id, second.payload)]


class _Keys:
    """A session that gives a wrong key for one Compute node that is not the holder."""

    def __init__(self, composer: Composer, opened: OpenedAnnouncement) -> None:
        self._composer = composer
        self._opened = opened
        self.hash = composer.session.hash

    def pair_keys(self, epochs: tuple[EpochKey, ...]) -> list[bytes]:
        made, opened = list(self._composer.session.pair_keys(epochs)), self._opened
        holder = opened.holder(self._composer.identity.id).id
        made[-1 if holder != opened.computes[-1] else 0] = self._composer.random(KEY_BYTES)
        return made


class _Wrongly(Composer, frozen=True, eq=False):
    def compose(self, opened: OpenedAnnouncement, validated: ValidatedRound, charge: int) -> tuple[Outbound, list[str]]:
        own: Any = (self.rows, _Keys(self, opened), *msgspec.structs.astuple(self)[2:])
        return Composer(*own).compose(opened, validated, charge)


class WrongTags(HostileClient):
    """Masks and tags for one node are made with a key of its own; that node can only object."""

    composes = _Wrongly


class _ForOne(Composer, frozen=True, eq=False):
    def compose(self, opened: OpenedAnnouncement, validated: ValidatedRound, charge: int) -> tuple[Outbound, list[str]]:
        return super().compose(opened, validated, 1)


class ReusingCharges(HostileClient):
    """Pays for everything with its first charge."""

    composes = _ForOne


class WrongHolder(HostileClient):
    """Sends its contribution to another Compute node than the one that is to hold it, and sealed to that one."""

    def _contribute(self, current: ClientRound, validated: ValidatedRound, now_ms: int) -> list[Effect]:
        opened = current.opened
        if opened.computes:
            place = (opened.computes.index(opened.holder(self.id).id) + 1) % len(opened.computes)
            current.opened = _HeldBy(opened, opened.computes[place])  # type: ignore[assignment]
            current.holder = current.opened.holder(self.id)
        return super()._contribute(current, validated, now_ms)


class _HeldBy:
    """An announcement with another holder."""

    def __init__(self, opened: OpenedAnnouncement, holder: bytes) -> None:
        self._opened = opened
        self._holder = holder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)

    def holder(self, client: bytes) -> Address:
        return Address(Channel.COMPUTE, self._holder)


class Sybil(HostileClient):
    """One of several ids of one owner: has a session, so as to be counted, and never contributes."""

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        effects = super().handle(event, now_ms)
        kept = (Channel.COMPUTE, Channel.TRAINER)
        return [one for one in effects if not (isinstance(one, Send) and one.to.channel in kept)]


class Flooding(HostileClient):
    """Sends `amount` messages at a time to everybody: bytes without meaning, and what cannot be opened."""

    _floods = 0

    def _on_start_up(self, now_ms: int) -> list[Effect]:
        return [*super()._on_start_up(now_ms), SetTimer(Timer("flood"), now_ms + FLOOD_EVERY_MS)]

    def _on_timer(self, timer: Timer, now_ms: int) -> list[Effect]:
        if timer.purpose != "flood":
            return super()._on_timer(timer, now_ms)
        self._floods += 1
        again = [SetTimer(timer, now_ms + FLOOD_EVERY_MS)] if self._floods < FLOODS_MAX else []
        return [*(send for _ in range(self.amount) for send in self._junk()), *again]

    def _junk(self) -> list[Effect]:
        nodes = [Address(Channel.COMPUTE, member.id) for member in self._federation.computes]
        trainers = [Address(Channel.TRAINER, member.id) for member in self._federation.trainers]
        round_id = next(iter(self._rounds), bytes(ID_BYTES))
        forged = encode(Contribution(round_id, self._random(ID_BYTES), self._random(64)))
        everybody = (*nodes, *trainers, Address(Channel.HELLO))
        return [
            *(Send(to, round_id, forged) for to in nodes),
            *(Send(to, round_id, self._random(80)) for to in everybody),
        ]


# --- Compute nodes ----------------------------------------------------------------------------------------------------


class HostileCompute(ComputeNode):
    """A Compute node that does not keep to the protocol. `amount`: its size."""

    amount = 0


class Equivocating(HostileCompute):
    """Signs a shorter list for the first of its peers than for the others."""

    def _list_to(self, current: NodeRound, peer: bytes) -> Effect:
        stored = current.stored
        if peer != current.peers(self.id)[0] or not stored.entries:
            return super()._list_to(current, peer)
        entries, tags = stored.entries[:-ENTRY_BYTES], current.tags_for
        hashed, count = list_hash(current.hash, self.id, entries), len(entries) // ENTRY_BYTES
        header = self._sign(ListHeader(current.id, current.hash, hashed, count))
        current.stored = msgspec.structs.replace(stored, header=header, entries=entries)
        current.tags_for = lambda place: tags(place)[:-TAG_BYTES]  # type: ignore[method-assign]
        try:
            return super()._list_to(current, peer)
        finally:
            current.stored = stored
            del current.tags_for


class Dropping(HostileCompute):
    """Leaves `amount` clients out of its list."""

    def _freeze(self, current: NodeRound, now_ms: int) -> list[Effect]:
        for client in sorted(current.kept)[: self.amount]:
            del current.kept[client]
        return super()._freeze(current, now_ms)


class MakingUp(HostileCompute):
    """Adds `amount` entries that it has made up, of clients that it may hold, to its list."""

    def _freeze(self, current: NodeRound, now_ms: int) -> list[Effect]:
        nodes, dimension = len(current.stored.computes), current.validated.dimension
        for client in self._made_up(current)[: self.amount]:
            rest = self._random(TAG_BYTES * nodes + WORD_BYTES * dimension)
            charge = (1).to_bytes(CHARGE_BYTES, "little")
            kept = Kept(b"".join((client, self._random(ID_BYTES), bytes([nodes]), charge, rest)))
            current.kept.setdefault(client, kept)
        return super()._freeze(current, now_ms)

    def _made_up(self, current: NodeRound) -> list[bytes]:
        """Clients that have not contributed, and ids of nobody."""
        silent = [one for one in sorted(self._sessions.slots) if one not in current.kept]
        drawn = [self._random(ID_BYTES) for _ in range(16 * len(current.stored.computes))]
        return [one for one in (*silent, *drawn) if current.opened.holder(one).id == self.id]


class ListingOthers(MakingUp):
    """Adds entries of clients that another node holds."""

    def _made_up(self, current: NodeRound) -> list[bytes]:
        return [one for one in sorted(self._sessions.slots) if current.opened.holder(one).id != self.id]


class ListingTwice(HostileCompute):
    """Lists its first client twice, and adds its contribution twice."""

    def _load(self, *given: Any) -> NodeRound:
        current = super()._load(*given)
        entries, tags = current.sorted_entries, current.tags_for
        current.sorted_entries = lambda: entries()[:ENTRY_BYTES] + entries()  # type: ignore[method-assign]
        current.tags_for = lambda place: tags(place)[:TAG_BYTES] + tags(place)  # type: ignore[method-assign]
        return current


class AlteringTags(HostileCompute):
    """Gives its peers wrong tags of its first `amount` clients."""

    def _list_to(self, current: NodeRound, peer: bytes) -> Effect:
        honest, wrong = current.tags_for, TAG_BYTES * self.amount

        def tags(place: int) -> bytes:
            given = honest(place)
            return bytes(byte ^ 0xA5 for byte in given[:wrong]) + given[wrong:]

        current.tags_for = tags  # type: ignore[method-assign]
        try:
            return super()._list_to(current, peer)
        finally:
            del current.tags_for


class Objecting(HostileCompute):
    """Objects to the first `amount` entries of each list."""

    def _answer_when_complete(self, current: NodeRound, now_ms: int) -> list[Effect]:
        if current.phase == FROZEN and len(current.lists) == len(current.stored.computes):
            wrong = TAG_BYTES * self.amount
            for node, one in current.lists.items():
                tags = bytes(byte ^ 0xA5 for byte in one.tags[:wrong]) + one.tags[wrong:]
                current.lists[node] = msgspec.structs.replace(one, tags=tags)
        return super()._answer_when_complete(current, now_ms)


class Altering(HostileCompute):
    """Adds what it likes to its partial sum."""

    def _sign(self, body: Body) -> Signed:
        if isinstance(body, PartialSum):
            body = msgspec.structs.replace(body, vector=bytes(byte ^ 0xA5 for byte in body.vector))
        return super()._sign(body)


class Withholding(HostileCompute):
    """Takes part in everything, and keeps its partial sum."""

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        return [one for one in super().handle(event, now_ms) if not self._keeps(one)]

    def _keeps(self, effect: Effect) -> bool:
        is_word = isinstance(effect, Send) and effect.to.channel is Channel.TRAINER
        return is_word and isinstance(body_of(effect.payload), Sealed)  # type: ignore[union-attr]


class WithholdingAnswers(Withholding):
    """Takes part up to its answer, and keeps that."""

    def _keeps(self, effect: Effect) -> bool:
        return isinstance(effect, Send) and isinstance(body_of(effect.payload), Answer)


class Silent(HostileCompute):
    """Says that it has the round, and nothing more."""

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        speaks = not self._rounds
        effects = super().handle(event, now_ms)
        return effects if speaks else [one for one in effects if not isinstance(one, Send) or one.retain]


class AbortingLate(HostileCompute):
    """Signs that it has released nothing, right after it has released."""

    def _release_when_complete(self, current: NodeRound, now_ms: int) -> list[Effect]:
        effects = super()._release_when_complete(current, now_ms)
        if not any(isinstance(one, Report) and isinstance(one.fact, Released) for one in effects):
            return effects
        about = (current.id, current.hash, self.id)
        lie = self._sign(Abort(*about, "too-few", "nothing was released", 0, 0, ()))
        return [*effects, Send(Address(Channel.ABORT), current.id, encode(lie))]


class CallingOld(HostileCompute):
    """Says of the ledgers of the first `amount` clients that they are old copies, and keeps none of their messages."""

    def _keep(self, current: NodeRound, client: bytes, kept: Kept, reply: Effect, now_ms: int) -> list[Effect]:
        if client in sorted(self._sessions.slots)[: self.amount]:
            return [self._reused(current, client, kept.charge)]
        return super()._keep(current, client, kept, reply, now_ms)


_VALUE, _ROUND = frozenset({"value"}), frozenset({"round"})
_NOTHING: frozenset[str] = frozenset()
_CLIENTS: dict[str, Any] = {"amount_max": 10_000, "default": 1}
_MESSAGES: dict[str, Any] = {"amount_max": 1_000, "default": FLOOD_MESSAGES}
_AFTER_MS: dict[str, Any] = {"amount_max": 60_000, "default": 300}

HOSTILE: dict[str, Hostile] = {
    "out-of-range": Hostile(does="contributes any numbers", role="client", actor=OutOfRange, spoils=_VALUE),
    "two-faced": Hostile(does="contributes twice for one charge", role="client", actor=TwoFaced, spoils=_NOTHING),
    "wrong-tags": Hostile(does="contributes what a node must object to", role="client", actor=WrongTags, spoils=_ROUND),
    "reuse-charge": Hostile(does="pays with one charge for all", role="client", actor=ReusingCharges, spoils=_ROUND),
    "wrong-holder": Hostile(does="contributes to another holder", role="client", actor=WrongHolder, spoils=_ROUND),
    "sybil": Hostile(does="has a session and never contributes", role="client", actor=Sybil, spoils=_ROUND),
    "flood": Hostile(does="floods everybody", role="client", actor=Flooding, spoils=_NOTHING, **_MESSAGES),
    "stranger": Hostile(does="comes without being enrolled", role="client", actor=Flooding, spoils=_NOTHING,
                        is_stranger=True, **_MESSAGES),
    "copier": Hostile(does="sends others' ciphertexts as its own", role="client", actor=HostileClient,
                      spoils=_NOTHING),
    "equivocate": Hostile(does="tells its peers different lists", role="compute", actor=Equivocating, spoils=_ROUND),
    "drop-clients": Hostile(does="leaves clients out of its list", role="compute", actor=Dropping, spoils=_ROUND,
                            **_CLIENTS),
    "make-up": Hostile(does="lists what nobody has sent", role="compute", actor=MakingUp, spoils=_NOTHING, **_CLIENTS),
    "list-others": Hostile(does="lists clients of other holders", role="compute", actor=ListingOthers, spoils=_ROUND,
                           **_CLIENTS),
    "list-twice": Hostile(does="lists a client twice", role="compute", actor=ListingTwice, spoils=_ROUND),
    "alter-tags": Hostile(does="gives its peers wrong tags", role="compute", actor=AlteringTags, spoils=_ROUND,
                          **_CLIENTS),
    "object": Hostile(does="objects to clients", role="compute", actor=Objecting, spoils=_ROUND, **_CLIENTS),
    "withhold-answer": Hostile(does="keeps its answer", role="compute", actor=WithholdingAnswers, spoils=_ROUND),
    "alter-sum": Hostile(does="alters its partial sum", role="compute", actor=Altering, spoils=_VALUE),
    "withhold-sum": Hostile(does="keeps its partial sum", role="compute", actor=Withholding, spoils=_ROUND),
    "silent": Hostile(does="says nothing after its first word", role="compute", actor=Silent, spoils=_ROUND),
    "abort-late": Hostile(does="signs an abort after its release", role="compute", actor=AbortingLate, spoils=_ROUND),
    "call-old": Hostile(does="calls ledgers old copies", role="compute", actor=CallingOld,
                        spoils=frozenset({"round", "consent"}), **_CLIENTS),
    "two-announcements": Hostile(does="tells members of different rounds under one id", role="trainer",
                                 actor=hostile_trainer.Equivocating, spoils=_ROUND),
    "announce-twice": Hostile(does="announces two rounds under one id", role="trainer",
                              actor=hostile_trainer.AnnouncingTwice, spoils=_ROUND),
    "two-halves": Hostile(does="asks two halves at once, and tells a node of the wrong one", role="trainer",
                          actor=hostile_trainer.CallingHalves, spoils=_ROUND),
    "ask-too-much": Hostile(does="announces what policies forbid", role="trainer",
                            actor=hostile_trainer.AskingTooMuch, spoils=_ROUND),
    "close-early": Hostile(does="closes while clients contribute", role="trainer",
                           actor=hostile_trainer.ClosingEarly, spoils=_ROUND, **_AFTER_MS),
    "usurp": Hostile(does="says what Compute nodes alone may", role="trainer", actor=hostile_trainer.Usurping,
                     spoils=_ROUND, **_AFTER_MS),
}  # fmt: skip
"""By name."""


def configured(kind: Hostile, amount: int, **known: object) -> type[Any]:
    """The class of an adversary of that size, and of what else it knows."""
    base: Any = kind.actor
    return type(base.__name__, (base,), {"amount": amount or kind.default, **known})
