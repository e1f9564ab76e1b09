"""All kinds of hostile actors, in the table `HOSTILE`: each is a production actor with some methods replaced.

`hostile_trainer` has the methods of trainers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.field import PRIME
from dca_proto.crypto.masks import CHARGE_BYTES, ENTRY_BYTES, TAG_BYTES
from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES
from dca_proto.protocol.announcement import OpenedAnnouncement, seal_answer
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.client.answer import Composer, Consent
from dca_proto.protocol.client.round import ClientRound
from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.compute.round import ComputeRound
from dca_proto.protocol.contribution import ClientMessage, HeldContribution
from dca_proto.protocol.effects import Address, Channel, Effect, Report, Send, SetTimer
from dca_proto.protocol.events import Event, Timer
from dca_proto.protocol.facts import Released
from dca_proto.protocol.ledger import Ledger
from dca_proto.protocol.lists import list_hash
from dca_proto.protocol.policy import Refusal
from dca_proto.protocol.validation import ValidatedRound
from dca_proto.protocol.wire import messages as m
from dca_proto.protocol.wire.codec import decode_body, encode
from dca_proto.protocol.wire.kinds import LdpReport
from emulator.trials import false_proofs, misstatements
from emulator.trials import hostile_trainer as trainers
from emulator.trials.adversary import AdversaryKind, Replaced, without
from emulator.trials.hostile_trainer import HostileTrainer, Meddling, Outdated
from emulator.wire import body_of

_FLOOD_EVERY_MS, _FLOODS_MAX = 1_500, 20
_FAR = 1 << 62
_FAR_BYTE = b"\x55"  # repeated: a category out of range, or bits that include some beyond the last category
Composed = tuple[ClientMessage, list[str]]
Honest = Callable[..., Any]


class HostileClient(Client):
    """A client that breaks the protocol. `amount`: as in `scenario.Adversary`. `_honest`: the production composer."""

    role, amount = "client", 0

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **named)
        self._honest = self._composer
        self._composer = Replaced(self._composer, compose=self._compose)  # type: ignore[assignment]

    def _compose(self, opened: OpenedAnnouncement, validated: ValidatedRound, charge: int) -> Composed:
        return self._honest.compose(opened, validated, charge)


class _Far(Composer, frozen=True, eq=False):
    """Composes a statistic far beyond the announced bounds."""

    def _value(
        self, validated: ValidatedRound, body: m.Announcement, fraction_bits: int
    ) -> tuple[NDArray[np.int64], int, list[str]]:
        return np.full(validated.dimension, _FAR, dtype=np.int64), body.rows_max, []


def _compose_far(
    client: HostileClient, honest: Honest, opened: OpenedAnnouncement, validated: ValidatedRound, charge: int
) -> Composed:
    """Compose numbers far beyond the announced bounds; in an LDP report, bytes that no mechanism gives."""
    composer = client._honest

    def sign(body: m.Body) -> m.Signed:
        assert isinstance(body, m.Release), "a report is signed as a release"
        return composer.sign(msgspec.structs.replace(body, vector=_FAR_BYTE * len(body.vector)))

    if isinstance(validated.kind, LdpReport):
        return msgspec.structs.replace(composer, sign=sign).compose(opened, validated, charge)
    return _Far(*msgspec.structs.astuple(composer)).compose(opened, validated, charge)


def _contribute_twice(
    client: HostileClient,
    honest: Honest,
    current: ClientRound,
    opened: OpenedAnnouncement,
    validated: ValidatedRound,
    now_ms: int,
) -> list[Effect]:
    effects = honest(current, opened, validated, now_ms)
    second, _ = client._composer.compose(opened, validated, client.ledger[current.id].number)
    return [*effects, Send(current.holder, current.id, second.payload)]


def _compose_wrong_tags(
    client: HostileClient, honest: Honest, opened: OpenedAnnouncement, validated: ValidatedRound, charge: int
) -> Composed:
    """Use a wrong pair key for one Compute node other than the holder."""
    composer = client._honest

    def pair_keys(epochs: tuple[m.EpochKey, ...]) -> list[bytes]:
        keys, holder = list(composer.session.pair_keys(epochs)), opened.holder(client.id).id
        keys[-1 if holder != opened.computes[-1] else 0] = composer.random(KEY_BYTES)
        return keys

    session: Any = Replaced(composer.session, pair_keys=pair_keys)
    return msgspec.structs.replace(composer, session=session).compose(opened, validated, charge)


def _contribute_elsewhere(
    client: HostileClient,
    honest: Honest,
    current: ClientRound,
    opened: OpenedAnnouncement,
    validated: ValidatedRound,
    now_ms: int,
) -> list[Effect]:
    """Send the contribution to another node, sealed to that node."""
    used: Any = opened
    if opened.computes:
        place = (opened.computes.index(opened.holder(client.id).id) + 1) % len(opened.computes)
        current.holder = other = Address(Channel.COMPUTE, opened.computes[place])
        used = Replaced(opened, holder=lambda client: other)
    effects: list[Effect] = honest(current, used, validated, now_ms)
    return effects


def _contribute_and_decline(
    client: HostileClient,
    honest: Honest,
    current: ClientRound,
    opened: OpenedAnnouncement,
    validated: ValidatedRound,
    now_ms: int,
) -> list[Effect]:
    """Contribute, release or report; and decline the same round."""
    effects = honest(current, opened, validated, now_ms)
    words = ("budget", "no budget is left", "more budget")
    body = client._sign(m.Decline(current.id, current.hash, client._certificate, *words))
    decline = seal_answer(body, opened, client._random)
    return [*effects, Send(Address(Channel.TRAINER, opened.body.trainer), current.id, decline)]


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


class _Willing(Consent, frozen=True, eq=False):
    """Consents without a look at its certificate."""

    def to_charge(
        self, body: m.Announcement, validated: ValidatedRound, ledger: Ledger, pending: Collection[int], now_ms: int
    ) -> Refusal | None:
        lasting = msgspec.structs.replace(self.certificate, expires_ms=body.commit_by_ms + 1)
        fields = (self.policy, self.mechanism, self.limits, lasting, self.columns)
        return Consent(*fields).to_charge(body, validated, ledger, pending, now_ms)


class Overstaying(HostileClient):
    """It takes part although its certificate ends in mid-round (`TrialFederation.ends_ms`)."""

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **named)
        self._consent = _Willing(*msgspec.structs.astuple(self._consent))


class HostileCompute(ComputeNode):
    """A Compute node that breaks the protocol. `amount`: as in `scenario.Adversary`."""

    role, amount = "compute", 0


def _send_shorter_list(node: HostileCompute, honest: Honest, current: ComputeRound, peer: bytes) -> Effect:
    """Send the first peer a list without the last entry."""
    stored, tags = current.stored, current.tags_for
    if peer != current.peers[0] or not stored.entries:
        return honest(current, peer)  # type: ignore[no-any-return]
    entries = stored.entries[:-ENTRY_BYTES]
    assert stored.header is not None, "it has frozen the list"
    coin = getattr(decode_body(stored.header.body), "coin", b"")
    fields = (current.id, current.hash, list_hash(current.hash, node.id, entries, coin), len(entries) // ENTRY_BYTES)
    header = node._sign(m.VerifiedHeader(*fields, coin) if coin else m.ListHeader(*fields))
    current.stored = msgspec.structs.replace(stored, header=header, entries=entries)
    try:
        return _list_with_tags(honest, current, peer, lambda place: tags(place)[:-TAG_BYTES])
    finally:
        current.stored = stored


def _send_wrong_tags(node: HostileCompute, honest: Honest, current: ComputeRound, peer: bytes) -> Effect:
    tags = current.tags_for
    return _list_with_tags(honest, current, peer, lambda place: _altered(tags(place), node.amount))


def _list_with_tags(honest: Honest, current: ComputeRound, peer: bytes, tags_for: Callable[[int], bytes]) -> Effect:
    current.tags_for = tags_for  # type: ignore[method-assign, assignment]
    try:
        return honest(current, peer)  # type: ignore[no-any-return]
    finally:
        del current.tags_for


def _freeze_without_clients(node: HostileCompute, honest: Honest, current: ComputeRound, now_ms: int) -> list[Effect]:
    for client in sorted(current.kept)[: node.amount]:
        del current.kept[client]
    return honest(current, now_ms)  # type: ignore[no-any-return]


def _freeze_with(invented: Callable[[HostileCompute, ComputeRound], list[bytes]]) -> Honest:
    """Return a step that lists made-up contributions of these clients."""

    def freeze(node: HostileCompute, honest: Honest, current: ComputeRound, now_ms: int) -> list[Effect]:
        nodes, validated = len(current.stored.computes), current.validated
        for client in invented(node, current)[: node.amount]:
            rest = node._random(TAG_BYTES * nodes + validated.vector_bytes)
            if validated.statement is not None:
                elements = np.frombuffer(rest[TAG_BYTES * nodes :], dtype="<u4") % PRIME
                rest = rest[: TAG_BYTES * nodes] + elements.astype("<u4").tobytes()
            charge = (1).to_bytes(CHARGE_BYTES, "little")
            kept = HeldContribution(b"".join((client, node._random(ID_BYTES), bytes([nodes]), charge, rest)))
            current.kept.setdefault(client, kept)
        return honest(current, now_ms)  # type: ignore[no-any-return]

    return freeze


def _silent_clients(node: HostileCompute, current: ComputeRound) -> list[bytes]:
    """Return clients that have not contributed, then random ids, all of which the node would hold."""
    silent = [client for client in sorted(node._sessions.slots) if client not in current.kept]
    drawn = [node._random(ID_BYTES) for _ in range(16 * len(current.stored.computes))]
    return [client for client in (*silent, *drawn) if current.opened.holder(client).id == node.id]


def _clients_of_others(node: HostileCompute, current: ComputeRound) -> list[bytes]:
    return [client for client in sorted(node._sessions.slots) if current.opened.holder(client).id != node.id]


def _load_twice_listed(node: HostileCompute, honest: Honest, *positional: Any) -> ComputeRound:
    """List the first entry twice, with its tags."""
    current: ComputeRound = honest(*positional)
    entries, tags = current.sorted_entries, current.tags_for
    current.sorted_entries = lambda: entries()[:ENTRY_BYTES] + entries()  # type: ignore[method-assign]
    current.tags_for = lambda place: tags(place)[:TAG_BYTES] + tags(place)  # type: ignore[method-assign]
    return current


def _object(node: HostileCompute, honest: Honest, current: ComputeRound, now_ms: int) -> list[Effect]:
    """Object to the first `amount` entries of each list, whose tags it changes first."""
    if current.takes("all lists") and len(current.lists) == len(current.stored.computes):
        for peer, received in current.lists.items():
            current.lists[peer] = msgspec.structs.replace(received, tags=_altered(received.tags, node.amount))
    return honest(current, now_ms)  # type: ignore[no-any-return]


def _altered(tags: bytes, count: int) -> bytes:
    """Return the tags with the first `count` changed."""
    wrong = TAG_BYTES * count
    return bytes(byte ^ 0xA5 for byte in tags[:wrong]) + tags[wrong:]


def _sign_altered_sum(node: HostileCompute, honest: Honest, body: m.Body) -> m.Signed:
    if isinstance(body, m.PartialSum):
        body = msgspec.structs.replace(body, vector=bytes(byte ^ 0xA5 for byte in body.vector))
    return honest(body)  # type: ignore[no-any-return]


def _fall_silent(node: HostileCompute, honest: Honest, event: Event, now_ms: int) -> list[Effect]:
    """Send nothing but the first message, which confirms that the node has the round, and retained ones."""
    speaks = not node._rounds
    effects: list[Effect] = honest(event, now_ms)
    return effects if speaks else [effect for effect in effects if not isinstance(effect, Send) or effect.retain]


def _abort_late(node: HostileCompute, honest: Honest, current: ComputeRound, now_ms: int) -> list[Effect]:
    effects: list[Effect] = honest(current, now_ms)
    if not any(isinstance(effect, Report) and isinstance(effect.fact, Released) for effect in effects):
        return effects
    lie = m.Abort(current.id, current.hash, node.id, "too-few", "nothing was released", 0, 0, ())
    return [*effects, Send(Address(Channel.ABORT), current.id, encode(node._sign(lie)))]


def _lie_waiting(node: HostileCompute, honest: Honest, event: Event, now_ms: int) -> list[Effect]:
    """Report that it waits for the last other node, from its list on, and in place of its sum."""
    return [_lying(node, effect) if isinstance(effect, Send) else effect for effect in honest(event, now_ms)]


def _lying(node: HostileCompute, send: Send) -> Send:
    current = node._rounds.get(send.round_id)
    if current is None or current.takes("contribution") or send.to.channel is not Channel.TRAINER:
        return send
    computes = current.stored.computes
    place = max(place for place, compute in enumerate(computes) if compute != node.id)
    lie = m.Progress(current.id, current.hash, current.reported, 0, 0, 2, bytes((place,)))
    return msgspec.structs.replace(send, payload=encode(node._sign(lie)))


def _call_old(
    node: HostileCompute,
    honest: Honest,
    current: ComputeRound,
    client: bytes,
    kept: HeldContribution,
    reply: Effect,
    now_ms: int,
) -> list[Effect]:
    """Report charges of the first `amount` clients as reused, and keep none of their contributions."""
    if client in sorted(node._sessions.slots)[: node.amount]:
        return [node._reused(current, client, kept.charge)]
    return honest(current, client, kept, reply, now_ms)  # type: ignore[no-any-return]


_CLIENTS, _MESSAGES = (1, 10_000), (10, 1_000)
_AFTER_MS = (300, 60_000)
_VALUE, _ROUND, _CONSENT = frozenset({"value"}), frozenset({"round"}), frozenset({"consent"})
_SYBIL = {"handle": without(lambda send: send.to.channel in (Channel.COMPUTE, Channel.TRAINER))}
_NO_ANSWER = {"handle": without(lambda send: isinstance(body_of(send.payload), m.Answer))}
_NO_SUM = {
    "handle": without(lambda send: send.to.channel is Channel.TRAINER and isinstance(body_of(send.payload), m.Sealed))
}
# fmt: off
HOSTILE: dict[str, AdversaryKind] = {
    "out-of-range": AdversaryKind("contributes numbers far beyond its bounds", HostileClient,
        {"_compose": _compose_far}, _VALUE | _ROUND),
    "two-faced": AdversaryKind("contributes twice for one charge", HostileClient, {"_contribute": _contribute_twice}),
    "two-answers": AdversaryKind("contributes and declines", HostileClient, {"_contribute": _contribute_and_decline}),
    "wrong-tags": AdversaryKind("contributes what a node must object to", HostileClient,
        {"_compose": _compose_wrong_tags}, _ROUND),
    "reuse-charge": AdversaryKind("pays for all rounds with one charge number", HostileClient,
        {"_compose": lambda client, honest, opened, validated, charge: honest(opened, validated, 1)}, _ROUND),
    "wrong-holder": AdversaryKind("contributes to another holder", HostileClient,
        {"_contribute": _contribute_elsewhere}, _ROUND),
    # It counts as a client but adds no noise, as do extra ids of one owner.
    "sybil": AdversaryKind("has a session and never contributes", HostileClient, _SYBIL, _ROUND),
    "flood": AdversaryKind("floods everybody", _Flooding, amounts=_MESSAGES),
    "stranger": AdversaryKind("joins without being enrolled", _Flooding, amounts=_MESSAGES, is_stranger=True),
    # The broker copies the messages for it (`TrialWorld._copy`).
    "copier": AdversaryKind("sends others' ciphertexts as its own", HostileClient),

    "misstate-client": AdversaryKind("signs what no client would", HostileClient, {
        "handle": misstatements.send_wrong_first, "_sign": misstatements.sign_wrong,
        "_compose": misstatements.compose_wrongly, "_contribute": misstatements.contribute_and_more,
    }, _ROUND | _VALUE, is_insider=True),
    "false-proof": AdversaryKind("proves what is not true, in verified sums", HostileClient,
        {"_compose": false_proofs.compose, "_contribute": misstatements.contribute_and_ask}, _ROUND,
        needs_proofs=True),
    "overstay": AdversaryKind("contributes although its certificate ends in the round", Overstaying, {}, _ROUND,
        is_insider=True),

    "misstate-node": AdversaryKind("signs what no Compute node would", HostileCompute,
        {"handle": misstatements.send_wrong_first, "_sign": misstatements.sign_wrong}, _VALUE | _ROUND | _CONSENT,
        is_insider=True),
    "equivocate": AdversaryKind("sends its peers different lists", HostileCompute,
        {"_list_to": _send_shorter_list}, _ROUND),
    "drop-clients": AdversaryKind("leaves clients out of its list", HostileCompute,
        {"_freeze": _freeze_without_clients}, _ROUND, _CLIENTS),
    "make-up": AdversaryKind("lists contributions that nobody has sent", HostileCompute,
        {"_freeze": _freeze_with(_silent_clients)}, amounts=_CLIENTS),
    "list-others": AdversaryKind("lists clients of other holders", HostileCompute,
        {"_freeze": _freeze_with(_clients_of_others)}, _ROUND, _CLIENTS),
    "list-twice": AdversaryKind("lists a client twice", HostileCompute, {"_load": _load_twice_listed}, _ROUND),
    "alter-tags": AdversaryKind("gives its peers wrong tags", HostileCompute,
        {"_list_to": _send_wrong_tags}, _ROUND, _CLIENTS),
    "object": AdversaryKind("objects to clients", HostileCompute,
        {"_answer_when_complete": _object}, _ROUND, _CLIENTS),
    "withhold-answer": AdversaryKind("does not send its answer", HostileCompute, _NO_ANSWER, _ROUND),
    "alter-sum": AdversaryKind("alters its partial sum", HostileCompute, {"_sign": _sign_altered_sum}, _VALUE | _ROUND),
    "withhold-sum": AdversaryKind("does not send its partial sum", HostileCompute, _NO_SUM, _ROUND),
    "silent": AdversaryKind("sends nothing after its first message", HostileCompute, {"handle": _fall_silent}, _ROUND),
    "abort-late": AdversaryKind("signs an abort after its release", HostileCompute,
        {"_release_when_complete": _abort_late}, _ROUND),
    "lie-waiting": AdversaryKind("reports that it waits for another node, and sends no sum", HostileCompute,
        {"handle": _lie_waiting}, _ROUND, is_directed=True),
    "call-old": AdversaryKind("falsely reports charges as reused", HostileCompute,
        {"_keep": _call_old}, frozenset({"round", "consent"}), _CLIENTS),

    "two-announcements": AdversaryKind("announces different rounds under one id", HostileTrainer,
        {"_instead": trainers.equivocate}, _ROUND),
    "announce-twice": AdversaryKind("announces two rounds under one id", HostileTrainer,
        {"_instead": trainers.announce_twice}, _ROUND),
    "two-halves": AdversaryKind("runs two rounds, each with half of the clients, and gives a node the wrong half",
        HostileTrainer, {"_on_open": trainers.open_halves, "_instead": trainers.send_wrong_half}, _ROUND),
    "ask-too-much": AdversaryKind("announces what policies forbid", HostileTrainer,
        {"_sign": trainers.sign_worse}, _ROUND),
    "choose-nodes": AdversaryKind("chooses the Compute nodes of each round as it likes", HostileTrainer,
        {"_sign": trainers.choose_nodes}, _ROUND),
    "many-rounds": AdversaryKind("opens many rounds that cost almost nothing", HostileTrainer,
        {"_on_open": trainers.open_many}, _ROUND, (6, 0)),
    "ask-often": AdversaryKind("repeats its questions for sessions", HostileTrainer,
        {"_ask": trainers.ask_often}, amounts=(20, 0)),
    "announce-wrongly": AdversaryKind("also announces rounds that nobody may join", HostileTrainer,
        {"_instead": misstatements.announce_wrongly}, _ROUND, is_insider=True),
    "old-keys": AdversaryKind("announces with the keys of the epoch before", Outdated, {}, _ROUND, is_insider=True),
    "close-early": AdversaryKind("closes, and cancels wrongly, while clients contribute", Meddling,
        {"_meddle": trainers.close_early}, _ROUND, _AFTER_MS),
    "cancel-late": AdversaryKind("cancels rounds after their end", Meddling,
        {"_meddle": trainers.cancel}, _ROUND, (5_000, 60_000), is_directed=True),
    "usurp": AdversaryKind("sends what only Compute nodes may", Meddling,
        {"_meddle": trainers.usurp}, _ROUND, _AFTER_MS),
}
# fmt: on
"""All kinds: name -> description, class, replaced steps, what it may spoil, default and largest amount."""
