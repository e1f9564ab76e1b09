"""What a malicious broker does with what passes through it: changes, swallows and remembers it, and sends more."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from dca_proto.protocol.wire.topics import topic_of
from dca_proto.runtime.parts import split
from emulator.sim.broker import Broker, BrokerOptions
from emulator.sim.packet import Packet
from emulator.sim.session import Uplink
from emulator.sim.simulator import Simulator

PASSED_MAX = 400
"""How many of the last messages it remembers."""

Tamper = Callable[[Packet], Sequence[Packet]]
"""What becomes of a packet: itself, nothing, several, others."""


class Router(Broker):
    """The broker of a trial: honest, until somebody asks otherwise.

    Attributes:
        passed: the last whole messages, once somebody wants them kept.
    """

    def __init__(self, simulator: Simulator, options: BrokerOptions) -> None:
        super().__init__(simulator, options)
        self.passed: deque[Packet] = deque(maxlen=PASSED_MAX)
        self._tampers: list[Tamper] = []
        self._keeps = False

    def take(self, uplink: Uplink, packet: Packet) -> None:
        """A packet arrives, and is passed on as it pleases those who are in it."""
        if self._keeps and packet.payload is not None:
            self.passed.append(packet)
        packets: Sequence[Packet] = (packet,)
        for tamper in self._tampers:
            packets = [changed for one in packets for changed in tamper(one)]
        for changed in packets:
            super().take(uplink, changed)

    def add(self, tamper: Tamper) -> None:
        """Ask `tamper` about every packet from now on."""
        self._tampers.append(tamper)

    def remove(self, tamper: Tamper) -> None:
        """Ask it no more."""
        self._tampers = [other for other in self._tampers if other != tamper]

    def clear(self) -> None:
        """An honest broker again."""
        self._tampers.clear()

    def keep_passed(self) -> None:
        """Remember messages from now on."""
        self._keeps = True

    def inject_message(self, packet: Packet) -> None:
        """A whole message from nowhere, under any name."""
        topic = topic_of(self._simulator.federation, packet.to, packet.sender)
        for wire in split(packet.payload or b"", self.options.part_bytes_max):
            self.inject(topic, wire)
