"""What a malicious broker does: damaged, swallowed, replayed, forged, spoofed and misdirected messages.

Each public name is the steps of a kind of fault (`faults.FAULTS`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import msgspec

from dca_proto.crypto import labels
from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES, AgreementKey, Identity, actor_id, seal_to
from dca_proto.privacy.mechanism import RANDOMISED_RESPONSE, UNARY_ENCODING
from dca_proto.protocol.announcement import announcement_hash
from dca_proto.protocol.effects import Address, Channel
from dca_proto.protocol.wire import messages as m
from dca_proto.protocol.wire.codec import decode_body, decode_frame, encode, sign
from dca_proto.protocol.wire.topics import root_of
from emulator.fuzz.forger import Forger, Known
from emulator.sim.lane import Packet
from emulator.trials.fault import END, Injection, Steps
from emulator.trials.hostile_trainer import messages_of_nodes
from emulator.wire import body_of

BURST = 5
"""Messages to inject if the scenario gives no amount."""
SPREAD_MS, TRIES = 2_000, 10
LATER_MS = (10_000, 60_000, 2_000_000, 4_000_000)
PART, HEAD_BYTES = 1, 21
"""The first byte of a packet with a part of a message, and the size of its header (`dca_proto.runtime.parts`)."""


def _tampering(tamper: Callable[[Injection, Packet], Sequence[Packet]]) -> Callable[[Injection], Steps]:
    """Return steps that pass every packet through `tamper` until the end."""

    def steps(injection: Injection) -> Steps:
        own = functools.partial(tamper, injection)
        injection.world.router.tampers.append(own)
        yield END
        injection.world.router.tampers.remove(own)

    return steps


def _altering(change: Callable[[Injection, bytes], bytes | None]) -> Callable[[Injection], Steps]:
    """Return steps that change packets of the targets, each with probability `amount`; `change` drops it with None."""

    def tamper(injection: Injection, packet: Packet) -> Sequence[Packet]:
        content = packet.payload or packet.wire  # empty if another fault has truncated it
        senders = [process for process in injection.targets if process.id == packet.sender]
        if not senders or not content or injection.stream.random() >= injection.amount:
            return (packet,)
        changed = change(injection, content)
        if changed == content:
            return (packet,)
        injection.reached(senders[0])
        field = "wire" if packet.payload is None else "payload"
        return () if changed is None else (msgspec.structs.replace(packet, **{field: changed}),)

    return _tampering(tamper)


def _flipped(injection: Injection, content: bytes) -> bytes:
    place, bit = injection.stream.randrange(len(content)), 1 << injection.stream.randrange(8)
    return content[:place] + bytes((content[place] ^ bit,)) + content[place + 1 :]


def _relayed(injection: Injection, packet: Packet) -> Sequence[Packet]:
    if packet.payload is None or not isinstance(body_of(packet.payload), m.Invitation):
        return (packet,)
    injection.reached(injection.world.trainer)
    others = [client.id for client in injection.world.clients if client.id != packet.to.id]
    return packet, *(msgspec.structs.replace(packet, to=Address(Channel.CLIENT, client)) for client in others)


swallow = _altering(lambda injection, content: None)
flip_bits = _altering(_flipped)
truncate = _altering(lambda injection, content: content[: injection.stream.randrange(len(content))])
relay = _tampering(_relayed)


def _isolated(injection: Injection, packet: Packet) -> Sequence[Packet]:
    """Drop what the targets and the trainer send each other; broadcasts pass."""
    nodes, trainer = {process.id for process in injection.targets}, injection.world.trainer.id
    if not (packet.sender in nodes and packet.to.id == trainer) and not (
        packet.sender == trainer and packet.to.id in nodes
    ):
        return (packet,)
    injection.reached(injection.targets[0])
    return ()


isolate = _tampering(_isolated)


def _acknowledged(injection: Injection, packet: Packet) -> Sequence[Packet]:
    """Take a contribution from its sender, with a receipt that its holder has not sent."""
    body = body_of(packet.payload or b"")
    senders = [process for process in injection.targets if process.id == packet.sender]
    if not senders or not isinstance(body, m.Contribution):
        return (packet,)
    injection.reached(senders[0])
    receipt = m.Receipt(body.round_id, body.contribution, injection.stream.randbytes(ID_BYTES))
    answer = Packet(packet.to.id, Address(Channel.CLIENT, packet.sender), body.round_id, encode(receipt))
    injection.world.router.inject_message(answer)
    return ()


false_receipts = _tampering(_acknowledged)

Draw = Callable[[], Packet | None]
"""Returns a message to send; None if nothing suitable has passed yet."""


def _injecting(injection: Injection, draw: Draw, later_ms: Sequence[int] = ()) -> Steps:
    """Inject `amount` messages within a few seconds, or after one of the delays `later_ms`, even after healing."""
    left = int(injection.amount) or BURST

    def send(packet: Packet) -> None:
        injection.world.router.inject_message(packet)
        injection.reached(injection.world.trainer)

    def inject(tries: int) -> None:
        nonlocal left
        if injection.is_over:
            return
        packet = draw()
        if packet is None and tries:
            injection.simulator.after(SPREAD_MS, inject, tries - 1)
            return
        if packet is not None and later_ms:
            injection.simulator.after(injection.stream.choice(later_ms), send, packet)
        elif packet is not None:
            send(packet)
        left -= 1
        if not left:
            injection.stop()

    for _ in range(left):
        injection.simulator.after(injection.stream.randrange(SPREAD_MS), inject, TRIES)
    yield END


def _draw_passed(injection: Injection, change: Callable[[Packet], Packet | None] = lambda packet: packet) -> Draw:
    """Return a function that draws a passed message of the targets, each kind equally often, and changes it."""
    senders = {process.id for process in injection.targets}

    def draw() -> Packet | None:
        kinds: dict[type, list[Packet]] = {}
        for packet in injection.world.router.passed:
            if not senders or packet.sender in senders:
                kinds.setdefault(type(body_of(packet.payload or b"")), []).append(packet)
        return change(injection.stream.choice(kinds[injection.stream.choice(list(kinds))])) if kinds else None

    return draw


def replay(injection: Injection) -> Steps:
    return _injecting(injection, _draw_passed(injection))


def replay_later(injection: Injection) -> Steps:
    return _injecting(injection, _draw_passed(injection), LATER_MS)


class _ForgedMessages:
    """Messages forged by the broker in the names of actors, signed with a key of its own."""

    def __init__(self, injection: Injection) -> None:
        world = injection.world
        self._actors, self._stream, self._passed = world.actors, injection.stream, world.router.passed
        self._identity = Identity(injection.stream.randbytes(KEY_BYTES))
        self._federation_id = self._actors.federation.id
        known = Known(self._federation_id, tuple(injection.simulator.processes), [self._identity], ())
        self._forger = Forger(injection.stream, known)
        self._draw = _draw_passed(injection, self._change)

    def draw(self) -> Packet | None:
        """Return a forgery; half of them answer an announcement that has passed."""
        asked = [packet for packet in self._passed if isinstance(body_of(packet.payload or b""), m.Announcement)]
        if not asked or self._stream.random() < 0.5:
            return self._draw()
        payload = self._stream.choice(asked).payload or b""
        body = body_of(payload)
        assert isinstance(body, m.Announcement), "only announcements were chosen"
        hashed = announcement_hash(payload)
        if not body.kind.is_summed or self._stream.random() >= 0.5:
            return self._sealed(hashed, body)
        computes = self._actors.computes
        sent = messages_of_nodes(body.round_id, hashed, computes, self._actors.clients)
        close = m.Close(body.round_id, hashed)
        sent += [(body.trainer, Address(Channel.COMPUTE, node), close) for node in computes]
        sender, to, message = self._stream.choice(sent)
        return Packet(sender, to, body.round_id, self._signed(message))

    def _change(self, passed: Packet) -> Packet | None:
        payload = passed.payload or b""
        body = body_of(payload)
        if body is None:
            return None
        if isinstance(body, m.Contribution) and self._stream.random() < 0.5:
            receipt = m.Receipt(body.round_id, body.contribution, self._stream.randbytes(16))
            return Packet(passed.to.id, Address(Channel.CLIENT, passed.sender), body.round_id, encode(receipt))
        forged = self._forger.forge(payload) if self._stream.random() < 0.5 else self._sign_anew(payload, body)
        return msgspec.structs.replace(passed, payload=forged)

    def _sealed(self, hashed: bytes, announcement: m.Announcement) -> Packet | None:
        """Return a partial sum, release or decline sealed to the trainer, with a certificate that has passed."""
        bodies = (body_of(packet.payload or b"") for packet in self._passed)
        hellos = [body for body in bodies if isinstance(body, m.Hello)]
        if not hellos:
            return None
        certificate = self._stream.choice(hellos).certificate
        dimension = self._actors.statistic.dimension
        bits = {RANDOMISED_RESPONSE: 32, UNARY_ENCODING: dimension}.get(announcement.kind.mechanism, 64 * dimension)
        about, vector = (announcement.round_id, hashed), bytes(-(-bits // 8))
        client, node = actor_id(certificate.client_key), self._stream.choice(self._actors.computes)
        secret = self._stream.randbytes(KEY_BYTES)
        partial = (node, m.PartialSum(*about, secret, 1, (), b"", vector))
        release = (client, m.Release(*about, certificate, 1, secret[:ID_BYTES], secret, vector))
        decline = (client, m.Decline(*about, certificate, "budget", "nothing", "more"))
        sender, message = self._stream.choice((decline, partial if announcement.kind.is_summed else release))
        sealed = seal_to(labels.REPLY, announcement.reply_key, self._signed(message), hashed, self._stream.randbytes)
        return Packet(
            sender,
            Address(Channel.TRAINER, announcement.trainer),
            b"",
            encode(m.Sealed(announcement.round_id, *sealed)),
        )

    def _signed(self, body: m.Body) -> bytes:
        return encode(sign(self._identity, self._federation_id, body))

    def _sign_anew(self, payload: bytes, body: object) -> bytes:
        """Return the message signed by the forger, with the forger's key in place of any key in it."""
        own = AgreementKey(self._identity.seed).public
        match body:
            case m.Hello():
                body = msgspec.structs.replace(body, serial=body.serial + 1, public=own)
            case m.EpochKey():
                body = msgspec.structs.replace(body, public=own)
            case m.Announcement():
                body = msgspec.structs.replace(body, round_id=self._stream.randbytes(ID_BYTES), reply_key=own)
            case m.Invitation() | m.InvitedRound() | m.AbortWanted():
                inner = self._sign_anew(encode(body.announcement), decode_body(body.announcement.body))
                return encode(msgspec.structs.replace(body, announcement=decode_frame(inner)))
            case m.Sealed() | m.Contribution() | m.Receipt():
                return self._forger.forge(payload)
        return self._signed(body)  # type: ignore[arg-type]


def forge(injection: Injection) -> Steps:
    yield from _injecting(injection, _ForgedMessages(injection).draw)


def mix_parts(injection: Injection) -> Steps:
    last = b""

    def change(injection: Injection, content: bytes) -> bytes:
        nonlocal last
        is_part = content[0] == PART and len(content) > HEAD_BYTES  # no whole message begins with PART
        piece, last = last, content[HEAD_BYTES:] if is_part else last
        return content[:HEAD_BYTES] + piece if is_part and piece else content

    return _altering(change)(injection)


def spoof(injection: Injection) -> Steps:
    def change(passed: Packet) -> Packet:
        others = [actor_id for actor_id in injection.simulator.processes if actor_id != passed.sender]
        return msgspec.structs.replace(passed, sender=injection.stream.choice(others))

    return _injecting(injection, _draw_passed(injection, change))


def misdirect(injection: Injection) -> Steps:
    def change(passed: Packet) -> Packet | None:
        if passed.to.channel.is_broadcast:
            return None
        others = [process for process in injection.simulator.processes.values() if process.id != passed.to.id]
        receiver = injection.stream.choice(others)
        return msgspec.structs.replace(passed, to=Address(Channel(receiver.role.value), receiver.id))

    return _injecting(injection, _draw_passed(injection, change))


def garbage(injection: Injection) -> Steps:
    def draw() -> Packet:
        receiver = injection.stream.choice(list(injection.simulator.processes.values()))
        root = root_of(injection.world.actors.federation.id)
        odd = injection.stream.choice(["x", "f" * 33, receiver.id.hex().upper()])
        injection.world.router.inject(f"{root}/{receiver.role.value}/{receiver.id.hex()}/{odd}", b"odd topic")
        junk = injection.stream.randbytes(injection.stream.choice([1, 16, 64, 1024]))
        return Packet(injection.stream.randbytes(16), Address(receiver.role, receiver.id), b"", junk)

    return _injecting(injection, draw)
