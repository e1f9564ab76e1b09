"""Members that sign what no honest member would: each message is well-formed and authentic, and wrong in one field.

`WRONG` has the fields. A hostile node or client signs one kind of message so in each round. A hostile trainer also
announces rounds that nobody may join.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from dca_proto.crypto import labels
from dca_proto.crypto.masks import ENTRY_BYTES
from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES, digest, seal_to
from dca_proto.protocol.effects import Address, Channel, Effect, Send
from dca_proto.protocol.wire import messages as m
from dca_proto.protocol.wire.codec import decode_body, decode_frame, encode
from dca_proto.protocol.wire.kinds import SecureSum
from emulator.trials.scenario import Changes
from emulator.wire import body_of

Honest = Callable[..., Any]
Misstate = Callable[[Any], Changes]
_PLACES_MAX, _FAR = 1 << 14, 1 << 20
_SIGNS: dict[str, tuple[Any, ...]] = {
    "compute": (m.FrozenList, m.ListHeader, m.Answer, m.PartialSum, m.ChargeReused),
    "client": (m.Release, m.Decline),
}


def _is_of_round(kind: Any) -> bool:
    return "round_id" in kind.__struct_fields__


WRONG: dict[Any, tuple[Misstate, ...]] = {
    m.FrozenList: (
        lambda body: {"receiver": bytes(ID_BYTES)},
        lambda body: {"entries": body.entries[ENTRY_BYTES:], "tags": body.tags[8:]},
        lambda body: {"tags": body.tags + bytes(8)},
        lambda body: {"entries": body.entries + bytes(1)},
    ),
    m.ListHeader: (
        lambda body: {"round_id": bytes(ID_BYTES)},
        lambda body: {"announcement_hash": bytes(32)},
    ),
    m.Answer: (
        lambda body: {"objections": bytes(3)},
        lambda body: {"objections": (1).to_bytes(4, "little") + bytes(4)},
        lambda body: {"objections": (_FAR).to_bytes(4, "little")},
        lambda body: {"objections": bytes(4 * _PLACES_MAX)},
        lambda body: {"lists": body.lists[::-1]},
    ),
    m.PartialSum: (
        lambda body: {"answers": body.answers[::-1]},
        lambda body: {"set_hash": bytes(32)},
        lambda body: {"clients": body.clients[ID_BYTES:]},
        lambda body: {"clients": body.clients + bytes(ID_BYTES)},
        lambda body: {"vector": body.vector[8:]},
    ),
    m.EpochKey: (
        lambda body: {"epoch": body.epoch + 5},
        lambda body: {"public": bytes(KEY_BYTES)},
        lambda body: {"compute": bytes(ID_BYTES)},
    ),
    m.HelloWanted: (lambda body: {"client": bytes(ID_BYTES)},),
    m.ChargeReused: (
        lambda body: {"charge": body.charge + 1},
        lambda body: {"highest": body.charge + 1_000},
    ),
    m.Release: (
        lambda body: {"rows": body.rows + 1_000},
        lambda body: {"vector": body.vector[:-1]},
        lambda body: {"vector": b"\xff" * len(body.vector)},
        lambda body: {"announcement_hash": bytes(32)},
    ),
    m.Decline: (lambda body: {"announcement_hash": bytes(32)},),
    m.Hello: (
        lambda body: {"epoch": body.epoch + 5},
        lambda body: {"epoch": body.epoch + 5, "expires_ms": body.expires_ms * 2},
        lambda body: {"public": bytes(KEY_BYTES)},
    ),
}
"""What is wrong, by kind of message: functions from the right body to changed fields."""


_ROUNDS = tuple(
    (kind, change) for kind, changes in WRONG.items() if "round_id" in kind.__struct_fields__ for change in changes
)
"""The wrong variants of messages that belong to a round."""


def _with(**changes: Any) -> Callable[[Any], m.Body]:
    """Return a function that changes fields; a value may be a function of the body."""

    def change(body: Any) -> m.Body:
        given = {name: value(body) if callable(value) else value for name, value in changes.items()}
        return msgspec.structs.replace(body, **given)  # type: ignore[no-any-return]

    return change


def _plain(kind: Any) -> Callable[[Any], m.Body]:
    """Return a function that makes the message of a round without proofs of one with them."""
    return lambda body: kind(*(getattr(body, name) for name in kind.__struct_fields__))


WRONG_IN_PROOFS: tuple[tuple[Any, Callable[[Any], m.Body]], ...] = (
    (m.VerifiedHeader, _plain(m.ListHeader)),
    (m.VerifiedHeader, _with(coin=bytes(ID_BYTES))),
    (m.VerifiedAnswer, _plain(m.Answer)),
    (m.VerifiedAnswer, _with(openings=lambda body: body.openings[16:])),
    (m.VerifiedAnswer, _with(openings=lambda body: bytes(16) + body.openings[16:])),
    (m.VerifiedPart, _plain(m.PartialSum)),
    (m.VerifiedPart, _with(failed=lambda body: body.failed + bytes(ID_BYTES))),
    (m.VerifiedPart, _with(vector=lambda body: b"\xff" * len(body.vector))),
)
"""What is wrong in the messages of a node in a verified sum: the kind, and the wrong body."""


def _is_verified(actor: Any, body: Any) -> bool:
    """Return True if a node's message is of a verified sum."""
    current = actor._rounds.get(body.round_id) if actor.role == "compute" else None
    return current is not None and current.is_verified


def sign_wrong(actor: Any, honest: Honest, body: m.Body) -> m.Signed:
    """Sign one kind of message wrongly in each round: the round's id chooses the kind and the field."""
    if _is_of_round(body) and _is_verified(actor, body):
        kind, wrong = WRONG_IN_PROOFS[body.round_id[0] % len(WRONG_IN_PROOFS)]  # type: ignore[union-attr]
        return honest(wrong(body) if isinstance(body, kind) else body)  # type: ignore[no-any-return]
    own = [(kind, change) for kind, change in _ROUNDS if kind in _SIGNS[actor.role]]
    if _is_of_round(body):
        kind, change = own[body.round_id[0] % len(own)]  # type: ignore[union-attr]
        body = msgspec.structs.replace(body, **change(body)) if isinstance(body, kind) else body
    return honest(body)  # type: ignore[no-any-return]


def send_wrong_first(actor: Any, honest: Honest, event: Any, now_ms: int) -> list[Effect]:
    """Send a wrong variant before each signed message outside rounds that can have one."""
    sent: list[Effect] = []
    for effect in honest(event, now_ms):
        body: Any = body_of(effect.payload) if isinstance(effect, Send) else None
        changes = () if body is None or _is_of_round(body) else WRONG.get(type(body), ())
        if isinstance(effect, Send) and changes:
            other = msgspec.structs.replace(body, **changes[actor._random(1)[0] % len(changes)](body))
            payloads = (encode(actor._sign(other)), _longer(effect.payload))
            sent += [msgspec.structs.replace(effect, payload=payload, retain=False) for payload in payloads]
        if isinstance(effect, Send) and actor.role == "compute":
            sent += _to_clients(actor, effect, body)
            sent += _late_aborts(actor) if isinstance(body, m.EpochKey) else []
        sent.append(effect)
    return sent


def _longer(payload: bytes) -> bytes:
    """Return a signed message with a longer encoding of its signature, which no honest member sends."""
    return payload[:-67] + b"\xc5\x00\x40" + payload[-65:]  # before the version


def _late_aborts(node: Any) -> list[Effect]:
    """Return aborts of the rounds that the node has released."""
    released = [current for current in node._rounds.values() if current.is_released]
    lies = [
        (one.id, m.Abort(one.id, one.hash, node.id, "too-few", "nothing was released", 0, 0, ())) for one in released
    ]
    return [Send(Address(Channel.ABORT), round_id, encode(node._sign(lie))) for round_id, lie in lies]


def _to_clients(node: Any, send: Send, body: Any) -> list[Effect]:
    """Return what a Compute node may not send to clients: others' receipts, a question and a claim about another."""
    current = node._rounds.get(send.round_id)
    if current is None:
        return []
    if isinstance(body, m.Progress):
        receipt = encode(m.Receipt(current.id, bytes(ID_BYTES), bytes(16)))
        return [Send(Address(Channel.CLIENT, client), current.id, receipt) for client in node._sessions.slots]
    if not isinstance(body, m.Receipt):
        return []
    claims: list[m.Body] = [
        m.ChargeReused(current.id, current.hash, send.to.id, 999, 9_999),
        m.HelloWanted(bytes(ID_BYTES)),
    ]
    if current.is_verified:  # nobody has asked
        claims.append(m.ChargesStated(send.to.id, bytes(ID_BYTES), 999, 0, node._federation.stamp))
    return [Send(send.to, current.id, encode(node._sign(claim))) for claim in claims]


# --- announcements of rounds that nobody may join -------------------------------------------------------------------


def announce_wrongly(trainer: Any, honest: Honest, send: Send) -> Sequence[Effect]:
    """Send each announcement, and another one with a new id that its receivers must refuse."""
    body = body_of(send.payload)
    if not isinstance(body, m.Announcement | m.Invitation | m.InvitedRound):
        return (send,)
    if not isinstance(body, m.Announcement):
        right = body_of(encode(body.announcement))
        assert isinstance(right, m.Announcement), "an invitation has an announcement"
        body = right
    drawn = trainer._random(ID_BYTES + 1)
    fresh = msgspec.structs.replace(body, round_id=drawn[1:], invited=b"")
    return send, *_wrong(trainer, fresh, send, drawn[0])


def _wrong(trainer: Any, body: m.Announcement, send: Send, draw: int) -> list[Effect]:
    """Return one wrong announcement for the receiver of `send`."""
    timing, is_node = trainer._timing, send.to.channel is Channel.COMPUTE
    unknown = msgspec.structs.replace(body.kind, mechanism="unknown")
    choices: list[Changes] = [
        {"invited": bytes(16)},
        {"reply_key": bytes(KEY_BYTES)},
        {"commit_by_ms": body.close_by_ms},
        {"commit_by_ms": body.commit_by_ms + 2 * timing.deadline_ahead_ms_max},
        {"kind": unknown},
        {"federation_number": body.federation_number + 1_000},
    ]
    keys = tuple(frame for _, frame in trainer._waiting._keys.values())
    if keys and not body.kind.is_summed:
        choices += [{"epochs": keys}]
    if not is_node:
        choices += [{"invited": bytes(32)}]
    if not is_node and "scale" in body.parameters:
        columns: Any = body.parameters["columns"]
        others = [f"y{name}" for name in columns]
        choices += [{"parameters": {**body.parameters, "columns": others}}] * 2
    if isinstance(body.kind, SecureSum):
        tolerate = 2 + body.kind.colluders  # then n_min is negative
        impossible = msgspec.structs.replace(body.kind, clients=1, tolerate=tolerate)
        late = body.commit_by_ms + 2 * timing.epoch_ms + timing.epoch_grace_ms
        choices += [{"epochs": (body.epochs[0], *body.epochs)}, {"commit_by_ms": late}, {"kind": impossible}]
    wrong = trainer._sign(msgspec.structs.replace(body, **choices[draw % len(choices)]))
    frames: list[m.Frame] = [wrong]
    if is_node and isinstance(body.kind, SecureSum):
        right = trainer._sign(body)
        frames = [wrong, m.InvitedRound(right, b"odd"), *_without(trainer, body, send.to)]
    return [Send(send.to, body.round_id, encode(frame)) for frame in frames]


def _without(trainer: Any, body: m.Announcement, node: Address) -> list[m.Frame]:
    """Announce a round to a node that is not in it."""
    keys = tuple(key for key in body.epochs if node.id not in key.body)
    if len(keys) < 2:
        return []
    round_id = digest(b"emulator-without", body.round_id)[:ID_BYTES]
    return [trainer._sign(msgspec.structs.replace(body, round_id=round_id, epochs=keys))]


# --- clients --------------------------------------------------------------------------------------------------------


def compose_wrongly(client: Any, honest: Honest, opened: Any, validated: Any, charge: int) -> tuple[Any, list[str]]:
    """Contribute under charge number 0 to every second round."""
    number = 0 if validated.kind.is_summed and opened.body.round_id[1] & 1 else charge
    return client._honest.compose(opened, validated, number)  # type: ignore[no-any-return]


def contribute_and_ask(
    client: Any, honest: Honest, current: Any, opened: Any, validated: Any, now_ms: int
) -> list[Effect]:
    """Contribute; in a verified sum, also ask nodes for a charge number with an older Hello, and without any."""
    effects: list[Effect] = honest(current, opened, validated, now_ms)
    own = decode_frame(client._session.hello)
    assert isinstance(own, m.Signed), "a Hello is signed"
    hello = decode_body(own.body)
    if not validated.kind.is_verified or not isinstance(hello, m.Hello):
        return effects
    older = client._sign(msgspec.structs.replace(hello, serial=hello.serial - 1))
    questions = [encode(client._sign(m.ChargesWanted(one, bytes(ID_BYTES)))) for one in (opened.frame, older)]
    nodes = [Address(Channel.COMPUTE, node) for node in opened.computes]
    return [*effects, *(Send(node, b"", question) for node in nodes for question in questions)]


def contribute_and_more(
    client: Any, honest: Honest, current: Any, opened: Any, validated: Any, now_ms: int
) -> list[Effect]:
    """Contribute, and send what no client may: a trainer's announcement, a false question, odd sealed messages."""
    round_id = current.id
    effects: list[Effect] = honest(current, opened, validated, now_ms)
    nodes = [Address(Channel.COMPUTE, node) for node in opened.computes]
    own = decode_frame(client._session.hello)
    assert isinstance(own, m.Signed), "a Hello is signed"
    frames = (opened.frame, m.AbortWanted(opened.frame, client._random(16)), m.AbortWanted(own, client._random(16)))
    more: list[Effect] = [Send(node, round_id, encode(frame)) for node in nodes for frame in frames]
    about, none = (round_id, current.hash), bytes(ID_BYTES)
    release = m.Release(*about, client._certificate, 1, none, bytes(KEY_BYTES), bytes(8))
    odd: list[m.Frame] = [m.Receipt(round_id, none, bytes(16))]
    if opened.computes:  # a release in a secure sum
        odd.append(client._sign(release))
    trainer = Address(Channel.TRAINER, opened.body.trainer)
    for frame in odd:
        sealed = seal_to(labels.REPLY, opened.body.reply_key, encode(frame), current.hash, client._random)
        more.append(Send(trainer, round_id, encode(m.Sealed(round_id, *sealed))))
    return [*effects, *more]
