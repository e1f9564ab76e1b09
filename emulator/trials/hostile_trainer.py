"""Hostile trainers: production actors that send other messages than they may, or more.

They can end rounds without a result, and make clients pay in vain (DESIGN §10). They cannot make an honest member
release more, or pay more than its policy allows.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from emulator.trials.adversary import Adversaries
from emulator.wire import body_of, ids_in

MEDDLE, MEDDLES_MAX = "meddle", 3
TRAINERS = Adversaries()
_AFTER_MS = (300, 60_000)


class HostileTrainer(Trainer):
    """A trainer that breaks the protocol. `amount`: the adversary's size. `clients`: ids of all clients, sorted."""

    role, amount = "trainer", 0
    clients: tuple[bytes, ...] = ()

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        effects = super().handle(event, now_ms)
        changed = (self._instead(effect) if isinstance(effect, Send) else (effect,) for effect in effects)
        return [effect for replaced in changed for effect in replaced]

    def _instead(self, send: Send) -> Sequence[Effect]:
        """Return what it sends instead of a message."""
        return (send,)


@TRAINERS.kind("two-announcements", "announces different rounds under one id", "round")
class Equivocating(HostileTrainer):
    """Every second client and every second Compute node gets the other announcement."""

    def _instead(self, send: Send) -> Sequence[Effect]:
        current = self._rounds.get(send.round_id)
        body = body_of(send.payload)
        if current is None or not isinstance(body, m.Announcement | m.Invitation | m.InvitedRound):
            return (send,)
        if send.to.channel is Channel.ANNOUNCE:
            each = [msgspec.structs.replace(send, to=Address(Channel.CLIENT, client)) for client in self.clients]
        else:
            each = [send]
        return [sent for message in each for sent in self._chosen(message, self._other(current, message))]

    def _chosen(self, send: Send, other: Send) -> Sequence[Effect]:
        nodes = tuple(member.id for member in self.federation.computes)
        known = self.clients if send.to.channel is Channel.CLIENT else nodes
        return (other if known.index(send.to.id) % 2 else send,)

    def _other(self, current: Round, send: Send) -> Send:
        """Return the same message with another announcement in it, which closes 1 ms sooner."""
        body = msgspec.structs.replace(current.opened.body, close_by_ms=current.opened.body.close_by_ms - 1)
        frame, other = decode_frame(send.payload), self._sign(body)
        sent = other if isinstance(frame, m.Signed) else msgspec.structs.replace(frame, announcement=other)
        return msgspec.structs.replace(send, payload=encode(sent))


@TRAINERS.kind("announce-twice", "announces two rounds under one id", "round")
class AnnouncingTwice(Equivocating):
    def _chosen(self, send: Send, other: Send) -> Sequence[Effect]:
        return send, other


@TRAINERS.kind("two-halves", "runs two rounds, each with half of the clients, and gives a node the wrong half", "round")
class CallingHalves(HostileTrainer):
    """The last Compute node gets the other half as its list of invited clients before the right one."""

    def _on_open(self, request: OpenRound, now_ms: int) -> list[Effect]:
        asked = sorted(request.invited or self.clients)
        second = digest(b"dca4-halves", request.round_id)[:ID_BYTES]
        halves = (request.round_id, tuple(asked[::2])), (second, tuple(asked[1::2]))
        try:
            rounds = [self._of_half(request, *half) for half in halves]
            for part in rounds:
                part.check(self.federation, self._mechanism, self._limits, self._timing)
            return [effect for part in rounds for effect in super(CallingHalves, self)._on_open(part, now_ms)]
        except UsageError:
            return super()._on_open(request, now_ms)

    @staticmethod
    def _of_half(request: OpenRound, round_id: bytes, half: tuple[bytes, ...]) -> OpenRound:
        ask = request.ask
        if isinstance(ask, AskSecureSum):
            tolerated = max(0, min(ask.tolerated, len(half) - 2))
            ask = msgspec.structs.replace(ask, tolerated=tolerated, colluders=min(ask.colluders, tolerated))
        return msgspec.structs.replace(request, round_id=round_id, invited=half, clients_expected=0, ask=ask)

    def _instead(self, send: Send) -> Sequence[Effect]:
        frame = decode_frame(send.payload)
        if not isinstance(frame, m.InvitedRound) or send.to.id != self.federation.computes[-1].id:
            return (send,)
        others = b"".join(client for client in self.clients if client not in ids_in(frame.clients))
        return msgspec.structs.replace(send, payload=encode(m.InvitedRound(frame.announcement, others))), send


@TRAINERS.kind("ask-too-much", "announces what policies forbid", "round")
class AskingTooMuch(HostileTrainer):
    """It announces too large an ε, δ or μ, too few contributions or too many colluders."""

    def _sign(self, body: m.Body) -> m.Signed:
        return super()._sign(self._worse(body) if isinstance(body, m.Announcement) else body)

    def _worse(self, body: m.Announcement) -> m.Announcement:
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
        return msgspec.structs.replace(body, **worse[self._random(1)[0] % len(worse)])


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


@TRAINERS.kind("close-early", "closes while clients contribute", "round", _AFTER_MS)
class ClosingEarly(Meddling):
    """It closes the round at one more Compute node each time."""

    def _meddle(self, current: Round) -> list[Effect]:
        payload, nodes = encode(self._sign(m.Close(current.id, current.opened.hash))), current.opened.computes
        return [Send(Address(Channel.COMPUTE, node), current.id, payload) for node in nodes[: self._times]]


@TRAINERS.kind("usurp", "sends what only Compute nodes may", "round", _AFTER_MS)
class Usurping(Meddling):
    """It sends aborts, lists, answers and reports of reused charges."""

    def _meddle(self, current: Round) -> list[Effect]:
        messages = messages_of_nodes(current.id, current.opened.hash, current.opened.computes, self.clients)
        return [Send(to, current.id, encode(self._sign(body))) for _, to, body in messages]


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
