"""QoS 1 in one direction of one session: a packet is kept where it comes from until it is acknowledged there.

        put --> waiting --connection--> flying --acknowledgement--> done
                   ^                      |
                   +---- connection ends -+      so it may arrive again, on the next connection

A packet in the air is lost with its connection. One that had arrived, but whose acknowledgement had not, arrives twice:
so it is when one direction of a link is cut. A machine whose power fails loses all that it kept. At most `window`
packets are in the air; those behind them wait.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection
from typing import TYPE_CHECKING

from emulator.sim.link import IDEAL, Link, Wire
from emulator.sim.packet import Packet

if TYPE_CHECKING:
    from emulator.sim.simulator import Simulator


class Flight:
    """A packet in the air. `left_us`: when it has left its machine for good. `is_lost`: it will not arrive."""

    __slots__ = ("is_lost", "left_us", "packet")

    def __init__(self, packet: Packet) -> None:
        self.packet = packet
        self.is_lost = False
        self.left_us = 0


class Lane(ABC):
    """Packets from a machine to the broker, or from the broker to whichever machine has the session.

    Attributes:
        waiting: for a connection. flying: sent, and not acknowledged. is_open: whether there is a connection.
    """

    __slots__ = ("_back", "_link", "_simulator", "_wire", "flying", "is_open", "waiting")

    def __init__(self, simulator: Simulator, link: Link, wire: Wire, back: Wire) -> None:
        self.is_open = False
        self.waiting: deque[Packet] | None = None  # made when it is needed: most are never
        self.flying: dict[Flight, None] = {}
        self._simulator = simulator
        self._link = link
        self._wire = wire
        self._back = back

    @property
    @abstractmethod
    def window(self) -> int:
        """How many packets may be in the air at once."""

    @abstractmethod
    def arrive(self, packet: Packet) -> None:
        """A packet is at the other end."""

    @abstractmethod
    def on_acknowledged(self) -> None:
        """A packet has left for good."""

    @abstractmethod
    def pass_at_once(self, packet: Packet) -> None:
        """A packet goes over a link that takes no time."""

    @property
    def held(self) -> int:
        """Packets that are not acknowledged."""
        return len(self.flying) + (len(self.waiting) if self.waiting else 0)

    @property
    def unacknowledged(self) -> list[Packet]:
        """Those packets, in order."""
        return [*(flight.packet for flight in self.flying), *(self.waiting or ())]

    @property
    def passes_at_once(self) -> bool:
        """Whether a packet takes no time at all."""
        return self.is_open and self._link.options is IDEAL and not self._wire.is_cut

    def put(self, packet: Packet) -> None:
        """Send a packet, as soon as there is a way."""
        if self.passes_at_once:
            self.pass_at_once(packet)
        elif not self.is_open or self._wire.is_cut or self.waiting or len(self.flying) >= self.window:
            self.keep(packet)
        else:
            self._fly(packet)

    def keep(self, packet: Packet) -> None:
        """Let a packet wait for the next connection."""
        if self.waiting is None:
            self.waiting = deque()
        self.waiting.append(packet)

    def open(self) -> None:
        """There is a connection, or a direction of it is mended: send what waits."""
        self.is_open = True
        waiting, self.waiting = self.waiting, None
        for packet in waiting or ():
            self.put(packet)

    def close(self) -> None:
        """The connection has ended: what was not acknowledged waits for the next, in order, before the rest."""
        self.is_open = False
        self._wire.clear()
        again = self.unacknowledged if self.flying else ()
        for flight in self.flying:
            flight.is_lost = True
        self.flying.clear()
        if again:
            self.waiting = deque(again)

    def hold(self, packets: Collection[Packet] = ()) -> int:
        """Have nothing wait but those packets; how many of the others are lost."""
        kept = set(map(id, packets))
        lost = sum(id(packet) not in kept for packet in self.waiting or ())
        self.waiting = deque(packets) or None
        return lost

    def power_off(self) -> None:
        """The machine that sends is dead: only what has left it for good may still arrive."""
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
