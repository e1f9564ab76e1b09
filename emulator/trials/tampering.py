"""Faults that a malicious broker makes: damaged, swallowed, replayed, spoofed and misdirected messages."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dca_proto.core.effects import Address, Channel
from dca_proto.core.messages import Invitation
from emulator.sim.packet import Packet
from emulator.trials.fault import Injection
from emulator.trials.wire import body_of

BURST = 5
"""How many messages are injected where the scenario does not say."""
SPREAD_MS, TRIES = 2_000, 10


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
        self.reached(self._senders[packet.sender])
        changed = self.change(content)
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
            self.world.router.inject_message(packet)
            self.reached(None, self.world.phase_of(self.world.trainer))
        self._left -= 1
        if not self._left:
            self.stop()

    def draw(self) -> Packet | None:
        """What is sent; None where there is nothing yet."""
        passed = [one for one in self.world.router.passed if self._concerns(one)]
        return self.change(self.stream.choice(passed)) if passed else None

    def _concerns(self, passed: Packet) -> bool:
        return not self.targets or any(passed.sender == one.id for one in self.targets)

    def change(self, passed: Packet) -> Packet | None:
        """What is sent; None where this message is of no use."""
        return passed


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
    """A message of one round on the topic of another."""

    def change(self, passed: Packet) -> Packet | None:
        others = [one.round_id for one in self.world.requests if one.round_id != passed.round_id]
        if not passed.round_id:
            return None
        return msgspec.structs.replace(passed, round_id=self.stream.choice(others) if others else bytes(16))


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
