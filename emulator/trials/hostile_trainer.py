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
from dca_proto.protocol.announcement import announcement_hash
from dca_proto.protocol.effects import Address, Channel, Effect, Send, SetTimer
from dca_proto.protocol.events import Event, Timer
from dca_proto.protocol.params import MU_MIN
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.trainer.round import TrainerRound
from dca_proto.protocol.wire import messages as m
from dca_proto.protocol.wire.codec import decode_body, decode_frame, encode
from dca_proto.protocol.wire.kinds import SecureSum
from emulator.trials.scenario import Changes
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

    def _meddle(self, current: TrainerRound) -> list[Effect]:
        raise NotImplementedError


class Outdated(HostileTrainer):
    """It announces every second round with the keys of the epoch before, if these are not yet over."""

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **named)
        self._old: dict[tuple[bytes, int], m.Signed] = {}  # by Compute node and epoch
        self._announced = 0

    def _on_epoch_key(self, sender: bytes, frame: m.Signed, body: m.EpochKey, now_ms: int) -> list[Effect]:
        effects = super()._on_epoch_key(sender, frame, body, now_ms)
        self._old[body.compute, body.epoch] = frame
        return effects

    def _sign(self, body: m.Body) -> m.Signed:
        if isinstance(body, m.Announcement) and body.kind.is_summed:
            self._announced += 1
            if self._announced % 2 == 0:
                body = msgspec.structs.replace(body, epochs=tuple(map(self._before, body.epochs)))
        return super()._sign(body)

    def _before(self, frame: m.Signed) -> m.Signed:
        key = decode_body(frame.body)
        assert isinstance(key, m.EpochKey), "an announcement has epoch keys"
        return self._old.get((key.compute, key.epoch - 1), frame)


def close_early(trainer: Meddling, honest: Honest, current: TrainerRound) -> list[Effect]:
    """Close the round at one more Compute node each time, and cancel it about two other announcements."""
    opened, nodes = current.opened, current.opened.computes
    sooner = trainer._sign(msgspec.structs.replace(opened.body, close_by_ms=opened.body.close_by_ms - 1))
    messages = (
        m.Cancel(current.id, announcement_hash(encode(sooner)), sooner),
        m.Cancel(current.id, bytes(32), opened.frame),
        m.Close(current.id, opened.hash),
    )
    payloads = [encode(trainer._sign(body)) for body in messages]
    to = [Address(Channel.COMPUTE, node) for node in nodes[: trainer._times]]
    return [Send(node, current.id, payload) for node in to for payload in payloads]


def cancel(trainer: Meddling, honest: Honest, current: TrainerRound) -> list[Effect]:
    """Cancel the round at all its Compute nodes, whether it has ended or not."""
    payload = encode(trainer._sign(m.Cancel(current.id, current.opened.hash, current.opened.frame)))
    return [Send(Address(Channel.COMPUTE, node), current.id, payload) for node in current.computes]


def usurp(trainer: Meddling, honest: Honest, current: TrainerRound) -> list[Effect]:
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
    second = digest(b"emulator-halves", request.round_id)[:ID_BYTES]
    try:
        rounds = [_of_half(request, request.round_id, asked[::2]), _of_half(request, second, asked[1::2])]
        for part in rounds:
            part.check(trainer.federation, trainer._mechanism, trainer._limits, trainer._timing)
        return [effect for part in rounds for effect in honest(part, now_ms)]
    except UsageError:
        return honest(request, now_ms)  # type: ignore[no-any-return]


def open_many(trainer: HostileTrainer, honest: Honest, request: OpenRound, now_ms: int) -> list[Effect]:
    """Open `amount` further rounds like the requested one, each as cheap as a round may be, and then that one."""
    effects: list[Effect] = []
    for number in range(trainer.amount):
        cheap = _nearly_free(request, digest(b"emulator-many", request.round_id, bytes((number,)))[:ID_BYTES])
        try:
            cheap.check(trainer.federation, trainer._mechanism, trainer._limits, trainer._timing)
            effects += honest(cheap, now_ms)
        except UsageError:
            break  # with this statistic, no round is so cheap
    return [*effects, *honest(request, now_ms)]


def _nearly_free(request: OpenRound, round_id: bytes) -> OpenRound:
    if not request.delta:
        return msgspec.structs.replace(request, round_id=round_id, epsilon=0.01)
    epsilon, bits = accounting.epsilon_of(MU_MIN, request.delta) * (1 + 1e-6), max(request.fraction_bits - 12, 0)
    return msgspec.structs.replace(request, round_id=round_id, mu=MU_MIN, epsilon=epsilon, fraction_bits=bits)


def ask_often(
    trainer: HostileTrainer, honest: Honest, computes: Sequence[bytes], keyless: Sequence[bytes] = ()
) -> list[Effect]:
    """Ask each Compute node for its sessions `amount` times at once."""
    return honest(list(computes), keyless) * trainer.amount  # type: ignore[no-any-return]


def _of_half(request: OpenRound, round_id: bytes, half: Sequence[bytes]) -> OpenRound:
    kind = msgspec.structs.replace(request.kind, clients=0)
    if isinstance(kind, SecureSum):
        tolerate = max(0, min(kind.tolerate, len(half) - 2))
        kind = msgspec.structs.replace(kind, tolerate=tolerate, colluders=min(kind.colluders, tolerate))
    return msgspec.structs.replace(request, round_id=round_id, invited=tuple(half), kind=kind)


def send_wrong_half(trainer: HostileTrainer, honest: Honest, send: Send) -> Sends:
    """Send the last Compute node the other half as its list of invited clients, before the right one."""
    frame = decode_frame(send.payload)
    if not isinstance(frame, m.InvitedRound) or send.to.id != trainer.federation.computes[-1].id:
        return (send,)
    others = b"".join(client for client in trainer.clients if client not in ids_in(frame.clients))
    return msgspec.structs.replace(send, payload=encode(m.InvitedRound(frame.announcement, others))), send


def choose_nodes(trainer: HostileTrainer, honest: Honest, body: m.Body) -> m.Signed:
    """Announce with some of the Compute nodes only, in any order; one is too few for any p."""
    if isinstance(body, m.Announcement) and body.epochs:
        first, count, *_ = trainer._random(2)
        turned = [body.epochs[(first + step) % len(body.epochs)] for step in range(len(body.epochs))]
        body = msgspec.structs.replace(body, epochs=tuple(turned[: 1 + count % len(turned)]))
    return honest(body)  # type: ignore[no-any-return]


def sign_worse(trainer: HostileTrainer, honest: Honest, body: m.Body) -> m.Signed:
    """Announce too large an ε, δ or μ, too few contributions or too many colluders."""
    if isinstance(body, m.Announcement):
        worse: list[Changes] = [
            {"epsilon": 40.0, "mu": accounting.mu_of(40.0, body.delta or 1e-6)},
            {"delta": 0.2, "mu": accounting.mu_of(body.epsilon, 0.2)},
            {"mu": 2 * body.mu},
        ]
        if isinstance(body.kind, SecureSum):
            n, c = body.kind.clients, body.kind.colluders
            few = msgspec.structs.replace(body.kind, tolerate=n + c - max(2, c + 1))
            crowd = msgspec.structs.replace(body.kind, tolerate=n - 2, colluders=body.kind.n_min - 2)
            worse += [{"kind": few}, {"kind": crowd}]
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
        to_peers = (abort, m.Answer(*about, node, (nothing,) * len(nodes), b""), m.ListHeader(*about, nothing, 0))
        messages.append((node, Address(Channel.ABORT), abort))
        messages += [(node, peer, body) for peer in peers for body in to_peers]
        for client in clients:
            to_client = (abort, m.ChargeReused(*about, client, 1, 99), m.HelloWanted(client))
            messages += [(node, Address(Channel.CLIENT, client), body) for body in to_client]
    return messages
