"""A model of an MQTT 3.1.1 broker: sessions, subscriptions, retained messages, QoS 1, bounded queues, restarts.

A message goes from its sender's machine over a link to the broker, and over another to each subscriber. What a machine
cannot hand over (it is cut off, or the broker is away) waits in its memory. What the broker cannot deliver waits in the
receiver's session if that is persistent, within bounds; beyond them it is lost: acknowledged, and gone. A broker that
is killed comes back with what it held at its last snapshot, as mosquitto does: what was published since is lost,
retained messages too, and what was delivered since comes again. Receipts and resends are the protocol's answer to that.

A machine that loses its connection tries again after a moment: after a restart, after a partition, after a packet
that was too large, and where another machine has connected under the same id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from dca_proto.errors import PeerError
from dca_proto.protocol.effects import Address, Channel, Send
from dca_proto.protocol.wire.topics import subscriptions
from dca_proto.runtime.parts import PART_BYTES_DEFAULT, split
from emulator.sim.lane import Packet, Session, Uplink, packet_on

if TYPE_CHECKING:
    from emulator.sim.process import Process
    from emulator.sim.simulator import Simulator

_US = 1000
_LANDINGS, _LANDING_BYTES = 2048, 1 << 23


class BrokerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A broker's limits; those on messages are mosquitto's own.

    Attributes:
        queue_messages_max: what waits for one session at most, beside `inflight_max` that are under way to it.
        packet_bytes_max: the sender of a larger packet is disconnected.
        part_bytes_max: the largest packet that machines send.
        persistent_sessions: whether messages wait for machines that are away.
        session_expiry_ms: how long they do; 0 is for ever.
        connects_per_s_max: how many connections it accepts; 0 is without limit.
        reconnect_ms: a machine tries again after a half to the whole of that.
    """

    queue_messages_max: int = 1_000
    inflight_max: int = 20
    packet_bytes_max: int = 1 << 20
    part_bytes_max: int = PART_BYTES_DEFAULT
    persistent_sessions: bool = True
    session_expiry_ms: int = 0
    connects_per_s_max: int = 0
    reconnect_ms: int = 1000


class Memory(msgspec.Struct, frozen=True):
    """What a broker holds, or comes back with: what waits for each session, and what is retained; by default nothing.

    A session that is not in it is not there: nothing waits for it until its machine has connected again.
    """

    sessions: dict[Session, list[Packet]] = {}
    retained: dict[Channel, dict[tuple[bytes, bytes], Packet]] = {}


class Broker:
    """The broker of a simulation.

    Attributes:
        options: its limits. is_up: whether it runs. dropped: packets lost here, by reason.
        packets, packet_bytes: that it took from machines so far. connections: that it accepted.
    """

    def __init__(self, simulator: Simulator, options: BrokerOptions) -> None:
        self.options = options
        self.is_up = True
        self.dropped: Counter[str] = Counter()
        self.packets = 0
        self.packet_bytes = 0
        self.connections = 0
        self._simulator = simulator
        self._machines: dict[Process, Uplink] = {}
        self._sessions: dict[bytes, Session] = {}
        self._inboxes: dict[bytes, tuple[Channel, Session]] = {}
        self._listeners: dict[Channel, dict[Session, None]] = {channel: {} for channel in Channel}
        self._retained: dict[Channel, dict[tuple[bytes, bytes], Packet]] = {channel: {} for channel in Channel}
        self._next_connect_us = 0

    def connect(self, process: Process) -> None:
        """A machine that starts connects, and gets what waited and what is retained."""
        if process not in self._machines:
            self._machines[process] = Uplink(self._simulator, process)
        self._seek(process, 0)

    def disconnect(self, process: Process) -> None:
        """A machine is dead, and with it what had not left; its session stays if it is persistent."""
        self._machines[process].power_off()
        session = self._sessions.get(process.id)
        if session is not None and session.process is process:
            session.assembler = None
            self._leave(session)

    def is_connected(self, process: Process) -> bool:
        """Whether a machine has a connection."""
        return self._machines[process].is_open

    def cut(self, process: Process, *, up: bool, down: bool) -> None:
        """Let nothing pass from (`up`) or to (`down`) a machine; what passes the other way comes again later."""
        process.link.up.is_cut, process.link.down.is_cut = up, down
        uplink, session = self._machines[process], self._sessions.get(process.id)
        if uplink.is_open and not up:
            uplink.open()
        if session is not None and session.process is process and session.is_open and not down:
            session.open()

    def mend(self, process: Process) -> None:
        """Let everything pass again; where something was cut there is a new connection soon."""
        link = process.link
        was_cut = link.is_cut
        link.up.is_cut = link.down.is_cut = False
        if was_cut:
            self._hang_up(process)

    @property
    def memory(self) -> Memory:
        """What it holds now."""
        sessions = {one: one.unacknowledged for one in self._sessions.values() if one.is_open or one.is_kept}
        return Memory(sessions, {channel: dict(held) for channel, held in self._retained.items()})

    def stop(self, left: Memory | None = None) -> None:
        """The broker goes down; machines keep what they send.

        Args:
            left: what it will come back with; None is all that it holds.
        """
        self.is_up = False
        for uplink in self._machines.values():
            uplink.close()
        for session in self._sessions.values():
            self._leave(session)
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
        """The broker is back; all machines that run connect soon."""
        self.is_up = True
        for process in self._machines:
            self._seek_later(process)

    def _hang_up(self, process: Process) -> None:
        """A machine's connection ends, and it tries again."""
        self._machines[process].close()
        session = self._sessions.get(process.id)
        if session is not None and session.process is process:
            self._leave(session)
        self._seek_later(process)

    def _seek_later(self, process: Process) -> None:
        if process.is_up:
            spread = 0.5 + 0.5 * self._simulator.streams(f"reconnect/{process.link_name}").random()
            self._seek(process, int(self.options.reconnect_ms * _US * spread))

    def _seek(self, process: Process, wait_us: int) -> None:
        """Try to connect after a while, and after those that came before if the broker accepts only so many."""
        now_us = self._simulator.now_us
        at_us = max(now_us + wait_us, self._next_connect_us)
        if self.options.connects_per_s_max:
            self._next_connect_us = at_us + 1_000_000 // self.options.connects_per_s_max
        if at_us > now_us:
            self._simulator.at_us(at_us, self._enter, process, process.starts)
        else:
            self._enter(process, process.starts)

    def _enter(self, process: Process, start: int) -> None:
        if start != process.starts or not process.is_up or not self.is_up or process.link.is_cut:
            return  # whoever starts the broker or mends the link has it tried again
        uplink = self._machines[process]
        session = self._sessions.get(process.id) or self._subscribe(process)
        if uplink.is_open and session.is_open and session.is_over(process.link):
            return
        if session.is_open:
            self._hang_up(session.process)  # one id, one connection: the older is closed
        self.connections += 1
        session.belong_to(process)
        session.open()
        for channel, listeners in self._listeners.items():
            if session in listeners:
                for packet in self._retained[channel].values():
                    self.deliver(session, packet)
        uplink.open()

    def _subscribe(self, process: Process) -> Session:
        """A new session, under the filters of its role: two of their levels say it all, for all have one shape."""
        session = self._sessions[process.id] = Session(self._simulator, self, process)
        for topic_filter in subscriptions(self._simulator.federation, process.role, process.id):
            _, _, channel, receiver, any_sender = topic_filter.split("/")
            assert any_sender == "+"
            if receiver == "all":
                self._listeners[Channel(channel)][session] = None
            else:
                self._inboxes[bytes.fromhex(receiver)] = Channel(channel), session
        return session

    def _leave(self, session: Session) -> None:
        """A session without a connection: it stays for a while, or not at all."""
        if not session.is_open:
            return
        session.close()
        if not self.options.persistent_sessions:
            self._end(session, "session ended")
        elif self.options.session_expiry_ms:
            self._simulator.after(self.options.session_expiry_ms, self._expire, session, session.connections)

    def _expire(self, session: Session, connections: int) -> None:
        if connections == session.connections:
            self._end(session, "session expired")

    def _end(self, session: Session, why: str) -> None:
        session.is_kept = False
        lost = session.hold()
        if lost:
            self.dropped[why] += lost

    def publish(self, process: Process, send: Send) -> bool:
        """A machine hands a message over, in packets; whether it has now as many as it may hold."""
        uplink, to, payload = self._machines[process], send.to, send.payload
        if len(payload) < self.options.part_bytes_max:
            uplink.put(Packet(process.id, to, send.round_id, payload, b"", send.retain))
        else:
            for wire in split(payload, self.options.part_bytes_max, retain=send.retain):
                uplink.put(Packet(process.id, to, send.round_id, None, wire, send.retain))
        return uplink.is_full

    def inject(self, topic: str, wire: bytes) -> None:
        """A packet from nowhere, as a malicious broker or a stolen connection sends it."""
        try:
            self._route(packet_on(topic, wire))
        except PeerError:
            self.dropped["topic of nobody"] += 1

    def take(self, uplink: Uplink, packet: Packet) -> None:
        """A packet arrives at the broker."""
        if not self.is_up:
            return  # its sender had died; from others it comes again
        size = packet.size
        if size > self.options.packet_bytes_max:
            # The connection ends without an answer, so that its sender, as ours does, tries again and again, and alone.
            self.dropped["packet too large"] += 1
            if uplink.is_open:
                self._hang_up(uplink.process)
                if packet not in (uplink.waiting or ()):
                    uplink.keep(packet)
            return
        self.packets += 1
        self.packet_bytes += size
        self._route(packet)

    def deliver(self, session: Session, packet: Packet) -> None:
        """Send a packet to whoever has the session, or let it wait there."""
        if not session.is_open and not session.is_kept:
            self.dropped["receiver away"] += 1
        elif session.waiting and len(session.waiting) >= self.options.queue_messages_max:
            self.dropped["queue full"] += 1
        else:
            session.put(packet)

    def pending(self) -> list[str]:
        """What waits, for whom."""
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
            self._simulator.soon(self._land_everywhere, packet, list(receivers))
            return
        for session in receivers:
            self.deliver(session, packet)

    def _land_everywhere(self, packet: Packet, sessions: list[Session], start: int = 0) -> None:
        """A packet arrives at all in this instant: at some, and after what they answer, at the next ones. If
        all answers of a large round were on their way at once, they would need its memory twice; the longer the
        announcement, the longer they are. A message to one session that is sent just after a broadcast overtakes it at
        all but the first `_LANDINGS` sessions.
        """
        end = start + min(_LANDINGS, 1 + _LANDING_BYTES // packet.size)
        for session in sessions[start:end]:
            session.land_at_once(packet)
        if end < len(sessions):
            self._simulator.soon(self._land_everywhere, packet, sessions, end)

    def _receivers(self, to: Address) -> Collection[Session]:
        """Who has subscribed to what is sent to that address."""
        inbox = self._inboxes.get(to.id)
        if inbox is not None and inbox[0] is to.channel:
            return (inbox[1],)
        return self._listeners[to.channel]
