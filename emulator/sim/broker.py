"""A model of an MQTT 3.1.1 broker: sessions, subscriptions, retained messages, QoS 1, bounded queues, restarts.

A message goes from its sender's machine over a link to the broker, and over other links to the subscribers. If the
machine is cut off or the broker is down, packets wait in the machine's memory. Packets that the broker cannot deliver
wait in the receiver's session if it is persistent, up to a limit; further ones are acknowledged and lost. A killed
broker restarts from its last snapshot, as mosquitto does: messages published since are lost, also retained ones, and
messages delivered since are delivered again. The protocol copes by receipts and resends.

A machine that loses its connection reconnects after a moment: after a restart of the broker, a partition, a packet that
was too large, or when another machine has connected under the same id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from dca_proto.errors import PeerError
from dca_proto.protocol.effects import Address, Channel, Send
from dca_proto.protocol.wire.topics import subscriptions
from dca_proto.runtime.parts import PART_BYTES_DEFAULT, split
from emulator.sim.lane import Packet, SessionLane, Uplink, packet_on

if TYPE_CHECKING:
    from emulator.sim.process import Process
    from emulator.sim.simulator import Simulator

_US = 1000
_LANDINGS, _LANDING_BYTES = 2048, 1 << 23


class BrokerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """A broker's limits. The defaults of the first two are mosquitto's.

    Attributes:
        queue_messages_max: largest number of packets that wait for a session, besides `inflight_max` in flight.
        packet_bytes_max: the sender of a larger packet is disconnected.
        part_bytes_max: size from which machines split a message into packets.
        persistent_sessions: messages wait for machines that are away.
        session_expiry_ms: how long a session lasts without a connection; 0 is forever.
        connects_per_s_max: rate of connections that it accepts; 0 is no limit.
        reconnect_ms: a machine reconnects after half of this to all of it.
    """

    queue_messages_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_000
    inflight_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 20
    packet_bytes_max: Annotated[int, Meta(ge=128, le=1 << 30)] = 1 << 20
    part_bytes_max: Annotated[int, Meta(ge=128, le=1 << 30)] = PART_BYTES_DEFAULT
    persistent_sessions: bool = True
    session_expiry_ms: Annotated[int, Meta(ge=0, le=30 * 24 * 3_600_000)] = 0
    connects_per_s_max: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    reconnect_ms: Annotated[int, Meta(ge=1, le=3_600_000)] = 1000


class BrokerMemory(msgspec.Struct, frozen=True):
    """The memory of a broker: the packets that wait for each session, and the retained ones; by default empty.

    A session that is not in it does not exist: the broker keeps nothing for it until its machine reconnects.
    """

    sessions: dict[SessionLane, list[Packet]] = {}
    retained: dict[Channel, dict[tuple[bytes, bytes], Packet]] = {}


class SimBroker:
    """The broker of a simulation.

    Attributes:
        options: its limits. is_up: it runs. dropped: number of packets lost here, by reason.
        packets, packet_bytes: taken from machines so far. connections: accepted so far.
    """

    def __init__(self, simulator: Simulator, options: BrokerLimits) -> None:
        self.options = options
        self.is_up = True
        self.dropped: Counter[str] = Counter()
        self.packets = 0
        self.packet_bytes = 0
        self.connections = 0
        self._simulator = simulator
        self._machines: dict[Process, Uplink] = {}
        self._sessions: dict[bytes, SessionLane] = {}
        self._inboxes: dict[bytes, tuple[Channel, SessionLane]] = {}
        self._listeners: dict[Channel, dict[SessionLane, None]] = {channel: {} for channel in Channel}
        self._retained: dict[Channel, dict[tuple[bytes, bytes], Packet]] = {channel: {} for channel in Channel}
        self._next_connect_us = 0

    def connect(self, process: Process) -> None:
        """Connect a machine that starts; it gets waiting and retained packets."""
        if process not in self._machines:
            self._machines[process] = Uplink(self._simulator, process)
        self._schedule_connect(process, 0)

    def disconnect(self, process: Process) -> None:
        """Drop the connection of a dead machine and the packets it had not sent; keep its session if persistent."""
        self._machines[process].power_off()
        session = self._sessions.get(process.id)
        if session is not None and session.process is process:
            session.assembler = None
            self._detach(session)

    def is_connected(self, process: Process) -> bool:
        """Return True if a machine has a connection."""
        return self._machines[process].is_open

    def cut(self, process: Process, *, up: bool, down: bool) -> None:
        """Block packets from (`up`) or to (`down`) a machine. The other way they arrive, and again later."""
        process.link.up.is_cut, process.link.down.is_cut = up, down
        uplink, session = self._machines[process], self._sessions.get(process.id)
        if uplink.is_open and not up:
            uplink.open()
        if session is not None and session.process is process and session.is_open and not down:
            session.open()

    def mend(self, process: Process) -> None:
        """Unblock a machine's link. If it was cut, the machine reconnects soon."""
        link = process.link
        was_cut = link.is_cut
        link.up.is_cut = link.down.is_cut = False
        if was_cut:
            self._drop_connection(process)

    @property
    def memory(self) -> BrokerMemory:
        """A snapshot of its memory."""
        kept = [session for session in self._sessions.values() if session.is_open or session.is_kept]
        sessions = {session: session.unacknowledged for session in kept}
        return BrokerMemory(sessions, {channel: dict(held) for channel, held in self._retained.items()})

    def stop(self, left: BrokerMemory | None = None) -> None:
        """Stop the broker. Machines keep their packets.

        Args:
            left: the memory that it restarts with; None keeps all of it.
        """
        self.is_up = False
        for uplink in self._machines.values():
            uplink.close()
        for session in self._sessions.values():
            self._detach(session)
            if left is None:
                continue
            again = left.sessions.get(session) if self.options.persistent_sessions else None
            lost = session.hold(again or ())
            session.is_kept = again is not None
            if lost:
                self.dropped["broker restarted"] += lost
        if left is not None:
            self._retained = {channel: dict(left.retained.get(channel, {})) for channel in Channel}

    def start(self) -> None:
        """Start the broker again; all running machines reconnect soon."""
        self.is_up = True
        for process in self._machines:
            self._reconnect_later(process)

    def _drop_connection(self, process: Process) -> None:
        """End a machine's connection; it reconnects later."""
        self._machines[process].close()
        session = self._sessions.get(process.id)
        if session is not None and session.process is process:
            self._detach(session)
        self._reconnect_later(process)

    def _reconnect_later(self, process: Process) -> None:
        if process.is_up:
            spread = 0.5 + 0.5 * self._simulator.streams(f"reconnect/{process.link_name}").random()
            self._schedule_connect(process, int(self.options.reconnect_ms * _US * spread))

    def _schedule_connect(self, process: Process, wait_us: int) -> None:
        """Schedule a connection attempt after `wait_us`, and after earlier ones if the broker limits their rate."""
        now_us = self._simulator.now_us
        at_us = max(now_us + wait_us, self._next_connect_us)
        if self.options.connects_per_s_max:
            self._next_connect_us = at_us + 1_000_000 // self.options.connects_per_s_max
        if at_us > now_us:
            self._simulator.at_us(at_us, self._accept, process, process.starts)
        else:
            self._accept(process, process.starts)

    def _accept(self, process: Process, start: int) -> None:
        if start != process.starts or not process.is_up or not self.is_up or process.link.is_cut:
            return  # starting the broker or mending the link schedules another attempt
        uplink = self._machines[process]
        session = self._sessions.get(process.id) or self._subscribe(process)
        if uplink.is_open and session.is_open and session.is_over(process.link):
            return
        if session.is_open:
            self._drop_connection(session.process)  # one connection per id: close the older one
        self.connections += 1
        session.belong_to(process)
        session.open()
        for channel, listeners in self._listeners.items():
            if session in listeners:
                for packet in self._retained[channel].values():
                    self.deliver(session, packet)
        uplink.open()

    def _subscribe(self, process: Process) -> SessionLane:
        """Create a session and register its role's topic filters, by their channel and receiver levels."""
        session = self._sessions[process.id] = SessionLane(self._simulator, self, process)
        for topic_filter in subscriptions(self._simulator.federation, process.role, process.id):
            _, _, channel, receiver, any_sender = topic_filter.split("/")
            assert any_sender == "+"
            if receiver == "all":
                self._listeners[Channel(channel)][session] = None
            else:
                self._inboxes[bytes.fromhex(receiver)] = Channel(channel), session
        return session

    def _detach(self, session: SessionLane) -> None:
        """Close a session's connection. The session stays until it expires if sessions are persistent."""
        if not session.is_open:
            return
        session.close()
        if not self.options.persistent_sessions:
            self._end_session(session, "session ended")
        elif self.options.session_expiry_ms:
            self._simulator.after(self.options.session_expiry_ms, self._expire, session, session.connections)

    def _expire(self, session: SessionLane, connections: int) -> None:
        if connections == session.connections:
            self._end_session(session, "session expired")

    def _end_session(self, session: SessionLane, why: str) -> None:
        session.is_kept = False
        lost = session.hold()
        if lost:
            self.dropped[why] += lost

    def publish(self, process: Process, send: Send) -> bool:
        """Take a message from its machine, in packets; return True if the machine's outbox is now full."""
        uplink, to, payload = self._machines[process], send.to, send.payload
        if len(payload) < self.options.part_bytes_max:
            uplink.put(Packet(process.id, to, send.round_id, payload, b"", send.retain))
        else:
            for wire in split(payload, self.options.part_bytes_max, retain=send.retain):
                uplink.put(Packet(process.id, to, send.round_id, None, wire, send.retain))
        return uplink.is_full

    def inject(self, topic: str, wire: bytes) -> None:
        """Deliver a made-up packet, as a malicious broker or a stolen connection could."""
        try:
            self._route(packet_on(topic, wire))
        except PeerError:
            self.dropped["unknown topic"] += 1

    def take(self, uplink: Uplink, packet: Packet) -> None:
        """Handle a packet that arrives at the broker."""
        if not self.is_up:
            return  # the sender has died, or will send it again
        size = packet.size
        if size > self.options.packet_bytes_max:
            # The connection ends without an answer, so the sender retries again and again, as the real one does.
            self.dropped["packet too large"] += 1
            if uplink.is_open:
                self._drop_connection(uplink.process)
                if packet not in (uplink.waiting or ()):
                    uplink.keep(packet)
            return
        self.packets += 1
        self.packet_bytes += size
        self._route(packet)

    def deliver(self, session: SessionLane, packet: Packet) -> None:
        """Send a packet to a session, or queue or drop it there."""
        if not session.is_open and not session.is_kept:
            self.dropped["receiver away"] += 1
        elif session.waiting and len(session.waiting) >= self.options.queue_messages_max:
            self.dropped["queue full"] += 1
        else:
            session.put(packet)

    @property
    def longest_queue(self) -> int:
        """How many packets wait for the session for which most of them wait."""
        return max((session.held for session in self._sessions.values()), default=0)

    def pending(self) -> list[str]:
        """Return what still waits, and where, as text."""
        down = [] if self.is_up else ["the broker is down"]
        for uplink in self._machines.values():
            down += [f"{uplink.held} packets wait at {uplink.process.name}"] if uplink.held else []
        for session in self._sessions.values():
            down += [f"{session.held} packets wait for {session.process.name}"] if session.held else []
        return down

    def _route(self, packet: Packet) -> None:
        if packet.retain:
            self._retained[packet.to.channel][packet.to.id, packet.sender] = packet
        receivers = self._receivers(packet.to)
        if len(receivers) > 1 and all(session.passes_at_once for session in receivers):
            self._simulator.soon(self._broadcast, packet, list(receivers))
            return
        for session in receivers:
            self.deliver(session, packet)

    def _broadcast(self, packet: Packet, sessions: list[SessionLane], start: int = 0) -> None:
        """Deliver a broadcast to all sessions in this instant: to some, and after their answers, to the next ones.

        If all answers of a large round were in flight at once, they would take its memory twice. A message to one
        session that is sent just after a broadcast overtakes it at all but the first `_LANDINGS` sessions.
        """
        end = start + min(_LANDINGS, 1 + _LANDING_BYTES // packet.size)
        for session in sessions[start:end]:
            session.land_at_once(packet)
        if end < len(sessions):
            self._simulator.soon(self._broadcast, packet, sessions, end)

    def _receivers(self, to: Address) -> Collection[SessionLane]:
        """Return the sessions that have subscribed to an address."""
        inbox = self._inboxes.get(to.id)
        if inbox is not None and inbox[0] is to.channel:
            return (inbox[1],)
        return self._listeners[to.channel]
