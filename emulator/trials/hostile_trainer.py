"""Hostile trainers: production actors that send other messages than they may, or more.

They can end rounds without a result, and make clients pay in vain (DESIGN §10). They cannot make an honest member
release more, or pay more than its policy allows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from dca_proto.crypto.sealing import ID_BYTES, digest
from dca_proto.errors import UsageError
from dca_proto.privacy import accounting
from dca_proto.protocol.effects import Address, Channel, Effect, Send, SetTimer
from dca_proto.protocol.events import Event, Timer
from dca_proto.protocol.kinds import SecureSum
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.trainer.request import AskSecureSum, OpenRound
from dca_proto.protocol.trainer.round import Round
from dca_proto.protocol.wire import messages as m
from dca_proto.protocol.wire.codec import decode_frame, encode
from emulator.wire import body_of, ids_in

MEDDLE, MEDDLES_MAX = "meddle", 3
Sends = Sequence[Effect]
Honest = Callable[..., Any]


class HostileTrainer(Trainer):
    """A trainer that breaks the protocol. `amount`: as in `scenario.Adversary`. `clients`: all clients' ids, sorted."""

    role, amount = "trainer", 0
    clients: tuple[bytes, ...] = ()

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        effects = super().handle(event, now_ms)
        changed = (self._instead(effect) if isinstance(effect, Send) else (effect,) for effect in effects)
        return [effect for replaced in changed for effect in replaced]

    def _instead(self, send: Send) -> Sends:
        """Return what it sends instead of a message."""
        return (send,)


class Meddling(HostileTrainer):
    """It sends extra messages about a round every `amount` milliseconds after the announcement, up to three times."""

    def _announce(self, request: OpenRound, now_ms: int) -> list[Effect]:
        effects, self._times = super()._announce(request, now_ms), 0
        return [*effects, SetTimer(Timer(MEDDLE, request.round_id), now_ms + self.amount)]

    def _on_timer(self, timer: Timer, now_ms: int) -> list[Effect]:
        current = self._rounds.get(timer.round_id)
        if timer.purpose != MEDDLE or current is None:
            return super()._on_timer(timer, now_ms)
        self._times += 1
        again = [SetTimer(timer, now_ms + self.amount)] if self._times < MEDDLES_MAX else []
        return [*self._meddle(current), *again]

    def _meddle(self, current: Round) -> list[Effect]:
        raise NotImplementedError


def close_early(trainer: Meddling, honest: Honest, current: Round) -> list[Effect]:
    """Close the round at one more Compute node each time."""
    payload, nodes = encode(trainer._sign(m.Close(current.id, current.opened.hash))), current.opened.computes
    return [Send(Address(Channel.COMPUTE, node), current.id, payload) for node in nodes[: trainer._times]]


def usurp(trainer: Meddling, honest: Honest, current: Round) -> list[Effect]:
    """Send aborts, lists, answers and reports of reused charges."""
    messages = messages_of_nodes(current.id, current.opened.hash, current.opened.computes, trainer.clients)
    return [Send(to, current.id, encode(trainer._sign(body))) for _, to, body in messages]


def equivocate(trainer: HostileTrainer, honest: Honest, send: Send) -> Sends:
    """Give every second client and every second Compute node another announcement."""
    nodes = tuple(member.id for member in trainer.federation.computes)

    def chosen(message: Send, other: Send) -> Sends:
        known = trainer.clients if message.to.channel is Channel.CLIENT else nodes
        return (other if known.index(message.to.id) % 2 else message,)

    return [sent for pair in _two_announcements(trainer, send) for sent in chosen(*pair)] or (send,)


def announce_twice(trainer: HostileTrainer, honest: Honest, send: Send) -> Sends:
    return [sent for pair in _two_announcements(trainer, send) for sent in pair] or (send,)


def _two_announcements(trainer: HostileTrainer, send: Send) -> list[tuple[Send, Send]]:
    """Return the message to each receiver, and the same with an announcement that closes 1 ms sooner.

    The list is empty unless the message announces a round.
    """
    current, body = trainer._rounds.get(send.round_id), body_of(send.payload)
    if current is None or not isinstance(body, m.Announcement | m.Invitation | m.InvitedRound):
        return []
    is_public = send.to.channel is Channel.ANNOUNCE
    receivers = [Address(Channel.CLIENT, client) for client in trainer.clients] if is_public else [send.to]
    sooner = msgspec.structs.replace(current.opened.body, close_by_ms=current.opened.body.close_by_ms - 1)
    pairs = []
    for receiver in receivers:
        frame, other = decode_frame(send.payload), trainer._sign(sooner)
        sent = other if isinstance(frame, m.Signed) else msgspec.structs.replace(frame, announcement=other)
        own = msgspec.structs.replace(send, to=receiver)
        pairs.append((own, msgspec.structs.replace(own, payload=encode(sent))))
    return pairs


def open_halves(trainer: HostileTrainer, honest: Honest, request: OpenRound, now_ms: int) -> list[Effect]:
    """Open two rounds instead of one, each with half of the clients."""
    asked = sorted(request.invited or trainer.clients)
    second = digest(b"dca4-halves", request.round_id)[:ID_BYTES]
    try:
        rounds = [_of_half(request, request.round_id, asked[::2]), _of_half(request, second, asked[1::2])]
        for part in rounds:
            part.check(trainer.federation, trainer._mechanism, trainer._limits, trainer._timing)
        return [effect for part in rounds for effect in honest(part, now_ms)]
    except UsageError:
        return honest(request, now_ms)  # type: ignore[no-any-return]


def _of_half(request: OpenRound, round_id: bytes, half: Sequence[bytes]) -> OpenRound:
    ask = request.ask
    if isinstance(ask, AskSecureSum):
        tolerated = max(0, min(ask.tolerated, len(half) - 2))
        ask = msgspec.structs.replace(ask, tolerated=tolerated, colluders=min(ask.colluders, tolerated))
    return msgspec.structs.replace(request, round_id=round_id, invited=tuple(half), clients_expected=0, ask=ask)


def send_wrong_half(trainer: HostileTrainer, honest: Honest, send: Send) -> Sends:
    """Send the last Compute node the other half as its list of invited clients, before the right one."""
    frame = decode_frame(send.payload)
    if not isinstance(frame, m.InvitedRound) or send.to.id != trainer.federation.computes[-1].id:
        return (send,)
    others = b"".join(client for client in trainer.clients if client not in ids_in(frame.clients))
    return msgspec.structs.replace(send, payload=encode(m.InvitedRound(frame.announcement, others))), send


def sign_worse(trainer: HostileTrainer, honest: Honest, body: m.Body) -> m.Signed:
    """Announce too large an ε, δ or μ, too few contributions or too many colluders."""
    if isinstance(body, m.Announcement):
        worse: list[dict[str, Any]] = [
            {"epsilon": 40.0, "mu": accounting.mu_of(40.0, body.delta or 1e-6)},
            {"delta": 0.2, "mu": accounting.mu_of(body.epsilon, 0.2)},
            {"mu": 2 * body.mu},
        ]
        if isinstance(body.terms, SecureSum):
            low = max(2, body.terms.colluders + 1)
            few = msgspec.structs.replace(body.terms, fewest=low)
            crowd = msgspec.structs.replace(body.terms, colluders=body.terms.fewest - 2)
            worse += [{"terms": few}, {"terms": crowd}]
        body = msgspec.structs.replace(body, **worse[trainer._random(1)[0] % len(worse)])
    return honest(body)  # type: ignore[no-any-return]


def messages_of_nodes(
    round_id: bytes, announcement_hash: bytes, nodes: Sequence[bytes], clients: Sequence[bytes]
) -> list[tuple[bytes, Address, m.Body]]:
    """Return made-up messages that Compute nodes could send in a round, each with its pretended sender and receiver."""
    about, nothing = (round_id, announcement_hash), bytes(32)
    messages: list[tuple[bytes, Address, m.Body]] = []
    for node in nodes:
        abort = m.Abort(*about, node, "too-few", "nothing was released", 0, 0, ())
        peers = [Address(Channel.COMPUTE, other) for other in nodes if other != node]
        to_peers = (abort, m.Answer(*about, (nothing,) * len(nodes), b""), m.ListHeader(*about, nothing, 0))
        messages.append((node, Address(Channel.ABORT), abort))
        messages += [(node, peer, body) for peer in peers for body in to_peers]
        for client in clients:
            to_client = (abort, m.ChargeReused(*about, client, 1, 99), m.HelloWanted(client))
            messages += [(node, Address(Channel.CLIENT, client), body) for body in to_client]
    return messages
