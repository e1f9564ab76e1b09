"""MQTT packets, and QoS 1 in one direction of a session: the sender keeps a packet until it is acknowledged.

`Uplink` is a machine's memory of what it sends. `SessionLane` is the broker's memory of what it sends to a machine.

        put --> waiting --connection--> flying --acknowledgement--> done
                   ^                      |
                   +---- connection ends -+      so it may arrive again, on the next connection

A packet in flight is lost with its connection. If it had arrived but its acknowledgement had not, as when one direction
of a link is cut, it arrives twice. A machine whose power fails loses all packets that it kept. At most `window` packets
are in flight; the others wait.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from dca_proto.errors import PeerError
from dca_proto.protocol.effects import Address, Channel
from dca_proto.protocol.wire.topics import sender_of
from dca_proto.runtime.parts import Assembler
from emulator.sim.link import IDEAL, Link, LinkDirection

if TYPE_CHECKING:
    from emulator.sim.broker import SimBroker
    from emulator.sim.process import Process
    from emulator.sim.simulator import Simulator


class Packet(msgspec.Struct, frozen=True, gc=False):
    """An MQTT packet with a message or a part of one. Its address replaces the topic.

    A message that fits one packet is not copied on its way; a larger one is split by `runtime.parts`.

    Attributes:
        sender: the id in the topic, unchecked. to: the receiver in the topic.
        round_id: for observers only; real packets do not carry it.
        payload: a whole message, or None. wire: the bytes sent instead, such as a part of a message.
    """

    sender: bytes
    to: Address
    round_id: bytes
    payload: bytes | None = None
    wire: bytes = b""
    retain: bool = False

    @property
    def size(self) -> int:
        """Bytes of MQTT payload."""
        return len(self.wire) if self.payload is None else len(self.payload) + 1

    def __repr__(self) -> str:
        return f"Packet({self.sender.hex()[:8]} to {self.to.channel.value} {self.to.id.hex()[:8]}, <{self.size} bytes>)"


def packet_on(topic: str, wire: bytes) -> Packet:
    """Return the packet for bytes on a topic. Raises `PeerError` if the topic is not of this protocol."""
    sender = sender_of(topic)
    _, _, channel, receiver, _ = topic.split("/")
    try:
        to = Address(Channel(channel), b"" if receiver == "all" else bytes.fromhex(receiver))
        return Packet(sender, to, b"", wire=wire)
    except ValueError:
        raise PeerError("topic", found=topic[:200], expected="ids in hexadecimal") from None


class Flight:
    """A packet in flight. `left_us`: when it has left its machine for good. `is_lost`: it will not arrive."""

    __slots__ = ("is_lost", "left_us", "packet")

    def __init__(self, packet: Packet) -> None:
        self.packet = packet
        self.is_lost = False
        self.left_us = 0


class Lane(ABC):
    """Packets from a machine to the broker, or from the broker to the machine that has the session.

    Attributes:
        waiting: packets that wait for a connection. flying: packets sent but not acknowledged. is_open: connected.
    """

    __slots__ = ("_back", "_link", "_simulator", "_wire", "flying", "is_open", "waiting")

    def __init__(self, simulator: Simulator, link: Link, wire: LinkDirection, back: LinkDirection) -> None:
        self.is_open = False
        self.waiting: deque[Packet] | None = None  # created on demand: most lanes never need it
        self.flying: dict[Flight, None] = {}
        self._simulator = simulator
        self._link = link
        self._wire = wire
        self._back = back

    @property
    @abstractmethod
    def window(self) -> int:
        """The largest number of packets in flight."""

    @abstractmethod
    def arrive(self, packet: Packet) -> None:
        """Handle a packet at the other end."""

    def on_acknowledged(self) -> None:  # noqa: B027 - not every lane needs it
        """Handle the acknowledgement of a packet."""

    @abstractmethod
    def pass_at_once(self, packet: Packet) -> None:
        """Pass a packet over a link that takes no time."""

    @property
    def held(self) -> int:
        """The number of unacknowledged packets."""
        return len(self.flying) + (len(self.waiting) if self.waiting else 0)

    @property
    def unacknowledged(self) -> list[Packet]:
        """The unacknowledged packets, in order."""
        return [*(flight.packet for flight in self.flying), *(self.waiting or ())]

    @property
    def passes_at_once(self) -> bool:
        """True if packets pass in no time: over an open, ideal link."""
        return self.is_open and self._link.options is IDEAL and not self._wire.is_cut

    def put(self, packet: Packet) -> None:
        """Send a packet now, or as soon as there is a connection and room in the window."""
        if self.passes_at_once:
            self.pass_at_once(packet)
        elif not self.is_open or self._wire.is_cut or self.waiting or len(self.flying) >= self.window:
            self.keep(packet)
        else:
            self._fly(packet)

    def keep(self, packet: Packet) -> None:
        """Queue a packet."""
        if self.waiting is None:
            self.waiting = deque()
        self.waiting.append(packet)

    def open(self) -> None:
        """Send waiting packets over a new connection or a mended direction."""
        self.is_open = True
        waiting, self.waiting = self.waiting, None
        for packet in waiting or ():
            self.put(packet)

    def close(self) -> None:
        """End the connection: unacknowledged packets wait for the next one, in order, before the others."""
        self.is_open = False
        self._wire.clear()
        again = self.unacknowledged if self.flying else ()
        for flight in self.flying:
            flight.is_lost = True
        self.flying.clear()
        if again:
            self.waiting = deque(again)

    def hold(self, packets: Collection[Packet] = ()) -> int:
        """Replace the waiting packets; return how many of them are lost."""
        kept = set(map(id, packets))
        lost = sum(id(packet) not in kept for packet in self.waiting or ())
        self.waiting = deque(packets) or None
        return lost

    def power_off(self) -> None:
        """Handle the death of the sending machine: only packets that have left it for good can still arrive."""
        for flight in self.flying:
            flight.is_lost = flight.left_us > self._simulator.now_us
        self.flying.clear()
        self.close()
        self.hold()

    def _fly(self, packet: Packet) -> None:
        flight = Flight(packet)
        self.flying[flight] = None
        for left_us, arrival_us in self._link.flights_us(self._wire, self._simulator.now_us, packet.size):
            flight.left_us = flight.left_us or left_us
            self._simulator.at_us(arrival_us, self._land, flight)

    def _land(self, flight: Flight) -> None:
        if flight.is_lost or self._wire.is_cut:
            return
        simulator = self._simulator
        simulator.at_us(simulator.now_us + self._link.delay_us, self._acknowledge, flight)
        self.arrive(flight.packet)

    def _acknowledge(self, flight: Flight) -> None:
        if self._back.is_cut:
            return
        self.flying.pop(flight, None)
        if self.waiting and self.is_open and not self._wire.is_cut and len(self.flying) < self.window:
            self._fly(self.waiting.popleft())
        self.on_acknowledged()


class Uplink(Lane):
    """A machine's lane to the broker, with the memory of its transport."""

    __slots__ = ("_broker", "process")

    def __init__(self, simulator: Simulator, process: Process) -> None:
        super().__init__(simulator, process.link, process.link.up, process.link.down)
        self.process = process
        self._broker = simulator.broker

    @property
    def window(self) -> int:
        return self.process.options.unacknowledged_max

    @property
    def is_full(self) -> bool:
        """True if the machine's outbox is full."""
        return bool(self.flying or self.waiting) and self.held >= self.process.options.publishing_max

    def on_acknowledged(self) -> None:
        self.process.on_taken_over()

    def arrive(self, packet: Packet) -> None:
        self._broker.take(self, packet)

    def pass_at_once(self, packet: Packet) -> None:
        self._broker.take(self, packet)


class SessionLane(Lane):
    """The broker's lane to the machine that last connected with an id; another one with the same id takes it over.

    Attributes:
        process: that machine. is_kept: packets may wait here. connections: how many it has had.
        assembler: the parts of messages that the machine holds; None if there are none.
    """

    __slots__ = ("_broker", "assembler", "connections", "is_kept", "process")

    def __init__(self, simulator: Simulator, broker: SimBroker, process: Process) -> None:
        super().__init__(simulator, process.link, process.link.down, process.link.up)
        self.process = process
        self.is_kept = True
        self.connections = 0
        self.assembler: Assembler | None = None
        self._broker = broker

    @property
    def window(self) -> int:
        return self._broker.options.inflight_max

    def belong_to(self, process: Process) -> None:
        """Assign the session to a machine."""
        self.process = process
        self.is_kept = True
        self.connections += 1
        self._link, self._wire, self._back = process.link, process.link.down, process.link.up

    def is_over(self, link: Link) -> bool:
        """Return True if its connection uses that link."""
        return self._link is link

    def arrive(self, packet: Packet) -> None:
        payload = packet.payload
        if payload is None:
            if self.assembler is None:
                self.assembler = Assembler()
            payload = self.assembler.add(packet.sender.hex(), packet.wire)
        if payload is not None:
            self.process.receive(packet.sender, payload)

    def pass_at_once(self, packet: Packet) -> None:
        self._simulator.soon(self.land_at_once, packet)  # after the receiver's current event

    def land_at_once(self, packet: Packet) -> None:
        """Deliver a packet that took no time."""
        if self.is_open and not self._wire.is_cut:
            self.arrive(packet)
        else:
            self._broker.deliver(self, packet)  # the connection ended at this instant
