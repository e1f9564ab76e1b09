"""What a malicious broker does with messages: it changes, swallows, remembers and adds them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from dca_proto.protocol.wire.topics import topic_of
from dca_proto.runtime.parts import split
from emulator.sim.broker import Broker, BrokerOptions
from emulator.sim.lane import Uplink
from emulator.sim.packet import Packet
from emulator.sim.simulator import Simulator

PASSED_MAX = 400
"""How many of the last messages it remembers."""
Tamper = Callable[[Packet], Sequence[Packet]]
"""What becomes of a packet: itself, nothing, several, others."""


class Router(Broker):
    """The broker of a trial: honest, until somebody adds to its `tampers`, which are asked about every packet.

    Attributes:
        passed: the last whole messages.
    """

    def __init__(self, simulator: Simulator, options: BrokerOptions) -> None:
        super().__init__(simulator, options)
        self.passed: deque[Packet] = deque(maxlen=PASSED_MAX)
        self.tampers: list[Tamper] = []

    def take(self, uplink: Uplink, packet: Packet) -> None:
        """A packet arrives, and is passed on as it pleases those who are in it."""
        if packet.payload is not None:
            self.passed.append(packet)
        packets: Sequence[Packet] = (packet,)
        for tamper in self.tampers:
            packets = [changed for one in packets for changed in tamper(one)]
        for changed in packets:
            super().take(uplink, changed)

    def inject_message(self, packet: Packet) -> None:
        """A whole message from nowhere, under any name."""
        topic = topic_of(self._simulator.federation, packet.to, packet.sender)
        for wire in split(packet.payload or b"", self.options.part_bytes_max):
            self.inject(topic, wire)
