"""What a machine and the broker each keep of their connection: the lane up, and the session with the lane down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dca_proto.runtime.parts import Assembler
from emulator.sim.lane import Lane
from emulator.sim.link import Link
from emulator.sim.packet import Packet

if TYPE_CHECKING:
    from emulator.sim.broker import Broker
    from emulator.sim.process import Process
    from emulator.sim.simulator import Simulator


class Uplink(Lane):
    """At a machine, for the broker: the memory of its transport."""

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
        """Whether its machine hands nothing more over."""
        return self.held >= self.process.options.publishing_max

    def on_acknowledged(self) -> None:
        self.process.on_taken_over()

    def arrive(self, packet: Packet) -> None:
        self._broker.take(self, packet)

    def pass_at_once(self, packet: Packet) -> None:
        self._broker.take(self, packet)


class Session(Lane):
    """At the broker, for the machine that last connected with an id; another with the same id takes it over.

    Attributes:
        process: that machine. is_kept: whether packets may wait here. connections: how many there were.
    """

    __slots__ = ("_assembler", "_broker", "connections", "is_kept", "process")

    def __init__(self, simulator: Simulator, broker: Broker, process: Process) -> None:
        super().__init__(simulator, process.link, process.link.down, process.link.up)
        self.process = process
        self.is_kept = True
        self.connections = 0
        self._assembler: Assembler | None = None
        self._broker = broker

    @property
    def window(self) -> int:
        return self._broker.options.inflight_max

    def on_acknowledged(self) -> None:
        """Nobody waits for it."""

    def belong_to(self, process: Process) -> None:
        """From now on it is this machine's."""
        self.process = process
        self.is_kept = True
        self.connections += 1
        self._link, self._wire, self._back = process.link, process.link.down, process.link.up

    def is_over(self, link: Link) -> bool:
        """Whether its connection goes over that link."""
        return self._link is link

    def arrive(self, packet: Packet) -> None:
        payload = packet.payload
        if payload is None:
            if self._assembler is None:
                self._assembler = Assembler()
            payload = self._assembler.add(packet.sender.hex(), packet.wire)
        if payload is not None:
            self.process.receive(packet.sender, payload)

    def pass_at_once(self, packet: Packet) -> None:
        self._simulator.soon(self.land_at_once, packet)  # after whatever its receiver is doing

    def forget_parts(self) -> None:
        """The machine's memory is gone, and with it what it had of messages in parts."""
        self._assembler = None

    def land_at_once(self, packet: Packet) -> None:
        """A packet has come over a link that takes no time."""
        if self.is_open and not self._wire.is_cut:
            self.arrive(packet)
        else:
            self._broker.deliver(self, packet)  # the connection has ended in this very moment
