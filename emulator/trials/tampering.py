"""Faults that a malicious broker makes: damaged, swallowed, replayed, forged, spoofed and misdirected messages."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES, AgreementKey, Identity, actor_id, seal_to
from dca_proto.protocol.announcement import announcement_hash
from dca_proto.protocol.effects import Address, Channel
from dca_proto.protocol.wire.codec import decode_body, decode_frame, encode, sign
from dca_proto.protocol.wire.messages import (
    AbortWanted,
    Announcement,
    Body,
    Close,
    Contribution,
    Decline,
    EpochKey,
    Frame,
    Hello,
    Invitation,
    InvitedRound,
    PartialSum,
    Receipt,
    Release,
    Sealed,
)
from emulator.fuzz.forger import Forger, Known
from emulator.sim.packet import Packet
from emulator.trials.fault import Injection
from emulator.trials.hostile_trainer import words_of_nodes
from emulator.trials.wire import body_of

BURST = 5
"""How many messages are injected where the scenario does not say."""
SPREAD_MS, TRIES = 2_000, 10
LATER_MS = (10_000, 60_000, 2_000_000, 4_000_000)
PART, HEAD_BYTES = 1, 21
"""How a packet with a part of a message begins (`dca_proto.runtime.parts`)."""


class _Altering(Injection):
    """Changes packets of its actors on their way, each with the probability `amount`."""

    def begin(self) -> None:
        self._senders = {process.id: process for process in self.targets}
        self.world.router.add(self._tamper)

    def end(self) -> None:
        self.world.router.remove(self._tamper)

    def _tamper(self, packet: Packet) -> Sequence[Packet]:
        content = packet.payload or packet.wire  # nothing, where another has cut it short
        if packet.sender not in self._senders or not content or self.stream.random() >= self.fault.amount:
            return (packet,)
        changed = self.change(content)
        if changed == content:
            return (packet,)
        self.reached(self._senders[packet.sender])
        if changed is None:
            return ()
        field = "wire" if packet.payload is None else "payload"
        return (msgspec.structs.replace(packet, **{field: changed}),)

    def change(self, content: bytes) -> bytes | None:
        """What is delivered in its place; None is nothing."""
        return None


class Swallow(_Altering):
    """Acknowledged, and gone."""


class FlipBits(_Altering):
    """One bit of a packet is another."""

    def change(self, content: bytes) -> bytes:
        place, bit = self.stream.randrange(len(content)), 1 << self.stream.randrange(8)
        return content[:place] + bytes((content[place] ^ bit,)) + content[place + 1 :]


class Truncate(_Altering):
    """A packet ends too early."""

    def change(self, content: bytes) -> bytes:
        return content[: self.stream.randrange(len(content))]


class MixParts(_Altering):
    """A part of one message carries a piece of another."""

    def begin(self) -> None:
        super().begin()
        self._piece = b""

    def change(self, content: bytes) -> bytes:
        is_part = content[0] == PART and len(content) > HEAD_BYTES  # no message begins so
        piece, self._piece = self._piece, content[HEAD_BYTES:] if is_part else self._piece
        return content[:HEAD_BYTES] + piece if is_part and piece else content


class _Injecting(Injection):
    """Sends `amount` messages that have passed once more, changed in where they go or whom they claim to be from."""

    def arm(self) -> None:
        """What it repeats may have passed long before."""
        super().arm()
        self.world.router.keep_passed()

    def begin(self) -> None:
        self._left = int(self.fault.amount) or BURST
        for _ in range(self._left):
            self.simulator.after(self.stream.randrange(SPREAD_MS), self._inject, TRIES)

    def _inject(self, tries: int) -> None:
        """One message; later, where none has passed yet that is of use."""
        if self.is_over:
            return
        packet = self.draw()
        if packet is None and tries:
            self.simulator.after(SPREAD_MS, self._inject, tries - 1)
            return
        if packet is not None:
            self.send(packet)
        self._left -= 1
        if not self._left:
            self.stop()

    def send(self, packet: Packet) -> None:
        """Hand a message to the broker."""
        self.world.router.inject_message(packet)
        self.reached(None, self.world.phase_of(self.world.trainer))

    def draw(self) -> Packet | None:
        """What is sent, of each kind of message as often as of any other; None where there is nothing yet."""
        kinds: dict[type, list[Packet]] = {}
        for one in filter(self._concerns, self.world.router.passed):
            kinds.setdefault(type(body_of_packet(one)), []).append(one)
        return self.change(self.stream.choice(kinds[self.stream.choice(list(kinds))])) if kinds else None

    def _concerns(self, passed: Packet) -> bool:
        return not self.targets or any(passed.sender == one.id for one in self.targets)

    def change(self, passed: Packet) -> Packet | None:
        """What is sent; None where this message is of no use."""
        return passed


def body_of_packet(packet: Packet) -> Body | Frame | None:
    """What a packet with a whole message says, if that can be read."""
    return body_of(packet.payload or b"")


class Relay(Injection):
    """Each invitation reaches all clients."""

    def begin(self) -> None:
        self.world.router.add(self._relay)

    def end(self) -> None:
        self.world.router.remove(self._relay)

    def _relay(self, packet: Packet) -> Sequence[Packet]:
        if packet.payload is None or not isinstance(body_of(packet.payload), Invitation):
            return (packet,)
        self.reached(None, self.world.phase_of(self.world.trainer))
        others = [client.id for client in self.world.clients if client.id != packet.to.id]
        return packet, *(msgspec.structs.replace(packet, to=Address(Channel.CLIENT, one)) for one in others)


class Replay(_Injecting):
    """The same message again, long after."""


class ReplayElsewhere(_Injecting):
    """Messages of one round in later ones, and of one epoch in those that follow, also when all else is mended."""

    def send(self, packet: Packet) -> None:
        self.simulator.after(self.stream.choice(LATER_MS), super().send, packet)


class Forge(_Injecting):
    """Messages of its own making, under others' names, signed with a key of its own."""

    def begin(self) -> None:
        self._identity = Identity(self.stream.randbytes(KEY_BYTES))
        self._federation_id = self.world.cast.federation.id
        known = Known(self._federation_id, tuple(self.simulator.processes), [self._identity], ())
        self._forger = Forger(self.stream, known)
        super().begin()

    def draw(self) -> Packet | None:
        """Half of them are answers to an announcement that has passed."""
        asked = [one for one in self.world.router.passed if isinstance(body_of_packet(one), Announcement)]
        if not asked or self.stream.random() < 0.5:
            return super().draw()
        payload = self.stream.choice(asked).payload or b""
        body = body_of(payload)
        assert isinstance(body, Announcement), "it was chosen so"
        words = self._word if body.terms.is_summed and self.stream.random() < 0.5 else self._sealed
        return words(announcement_hash(payload), body)

    def change(self, passed: Packet) -> Packet | None:
        payload = passed.payload or b""
        body = body_of(payload)
        if body is None:
            return None
        if isinstance(body, Contribution) and self.stream.random() < 0.5:
            receipt = Receipt(body.round_id, body.contribution, self.stream.randbytes(16))
            return Packet(passed.to.id, Address(Channel.CLIENT, passed.sender), body.round_id, encode(receipt))
        made = self._forger.forge(payload) if self.stream.random() < 0.5 else self._resigned(payload, body)
        return msgspec.structs.replace(passed, payload=made)

    def _word(self, hashed: bytes, body: Announcement) -> Packet:
        """What a Compute node of the round would say, or what closes it."""
        cast = self.world.cast
        words = words_of_nodes(body.round_id, hashed, cast.computes, cast.clients)
        words += [(body.trainer, Address(Channel.COMPUTE, one), Close(body.round_id, hashed)) for one in cast.computes]
        sender, to, word = self.stream.choice(words)
        return Packet(sender, to, body.round_id, self._signed(word))

    def _sealed(self, hashed: bytes, asked: Announcement) -> Packet | None:
        """What a client or a Compute node would seal to the trainer; with the certificate of a client."""
        hellos = [one for one in map(body_of_packet, self.world.router.passed) if isinstance(one, Hello)]
        if not hellos:
            return None
        certificate, cast = self.stream.choice(hellos).certificate, self.world.cast
        about, vector = (asked.round_id, hashed), bytes(8 * cast.statistic.dimension)
        client, node = actor_id(certificate.client_key), self.stream.choice(cast.computes)
        known = self.stream.randbytes(KEY_BYTES)
        partial = (node, PartialSum(*about, known, 1, (), b"", vector))
        release = (client, Release(*about, certificate, 1, known[:ID_BYTES], known, vector))
        decline = (client, Decline(*about, certificate, "budget", "nothing", "more"))
        sender, said = self.stream.choice((decline, partial if asked.terms.is_summed else release))
        sealed = seal_to(asked.reply_key, self._signed(said), hashed, self.stream.randbytes)
        return Packet(sender, Address(Channel.TRAINER, asked.trainer), b"", encode(Sealed(asked.round_id, *sealed)))

    def _signed(self, body: Body) -> bytes:
        return encode(sign(self._identity, self._federation_id, body))

    def _resigned(self, payload: bytes, body: object) -> bytes:
        """The same message with keys of its own where it names a key, signed anew."""
        own = AgreementKey(self._identity.seed).public
        match body:
            case Hello():
                body = msgspec.structs.replace(body, serial=body.serial + 1, public=own)
            case EpochKey():
                body = msgspec.structs.replace(body, public=own)
            case Announcement():
                body = msgspec.structs.replace(body, round_id=self.stream.randbytes(ID_BYTES), reply_key=own)
            case Invitation() | InvitedRound() | AbortWanted():
                inner = self._resigned(encode(body.announcement), decode_body(body.announcement.body))
                return encode(msgspec.structs.replace(body, announcement=decode_frame(inner)))
            case Sealed() | Contribution() | Receipt():
                return self._forger.forge(payload)
        return self._signed(body)  # type: ignore[arg-type]


class Spoof(_Injecting):
    """A message under another sender's name."""

    def change(self, passed: Packet) -> Packet | None:
        others = [actor_id for actor_id in self.simulator.processes if actor_id != passed.sender]
        return msgspec.structs.replace(passed, sender=self.stream.choice(others))


class Misdirect(_Injecting):
    """A message to another receiver than its own."""

    def change(self, passed: Packet) -> Packet | None:
        if passed.to.channel.is_broadcast:
            return None
        others = [one for one in self.simulator.processes.values() if one.id != passed.to.id]
        receiver = self.stream.choice(others)
        return msgspec.structs.replace(passed, to=Address(Channel(receiver.role.value), receiver.id))


class Garbage(_Injecting):
    """Bytes without meaning, to everybody's inboxes, from nobody."""

    def draw(self) -> Packet:
        """To anybody's inbox."""
        receiver = self.stream.choice(list(self.simulator.processes.values()))
        junk = self.stream.randbytes(self.stream.choice([1, 16, 64, 1024]))
        return Packet(self.stream.randbytes(16), Address(receiver.role, receiver.id), b"", junk)
