"""A broker and its transport in memory, with the semantics of the MQTT one: for tests and trials in one process."""

from __future__ import annotations

import asyncio

from dca_proto.errors import TransportError
from dca_proto.protocol.wire.topics import FilterTree
from dca_proto.runtime.parts import PART_BYTES_DEFAULT, split
from dca_proto.runtime.transport import Inbox, InboxLimits, closed


class _Session:
    """A client's session: the receiver of its messages, or waiting messages while it is away."""

    def __init__(self) -> None:
        self.inbox: Inbox | None = None
        self.waiting: list[tuple[str, bytes]] = []

    def deliver(self, topic: str, wire: bytes) -> None:
        if self.inbox is None:
            self.waiting.append((topic, wire))
        else:
            self.inbox.offer(topic, wire)


class MemoryBroker:
    """A broker that delivers at once to all subscribers, and keeps sessions and retained messages."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}
        self._filters: FilterTree[str] = FilterTree()
        self._retained: dict[str, bytes] = {}

    def connect(self, client_id: str, subscriptions: tuple[str, ...], inbox: Inbox) -> None:
        """Open a new or kept session of `client_id`, and deliver waiting messages."""
        session = self._sessions.setdefault(client_id, _Session())
        session.inbox = inbox
        own: FilterTree[str] = FilterTree()
        for topic_filter in subscriptions:
            self._filters.add(topic_filter, client_id)
            own.add(topic_filter, client_id)
        waiting, session.waiting = session.waiting, []
        retained = [(topic, wire) for topic, wire in self._retained.items() if any(own.matching(topic))]
        for topic, wire in waiting:
            inbox.offer(topic, wire)
        for topic, wire in retained:
            inbox.offer(topic, wire, retained=True)

    def disconnect(self, client_id: str, *, keep: bool) -> None:
        """End the connection; `keep` leaves the session, so that messages wait."""
        if keep:
            self._sessions[client_id].inbox = None
        else:
            del self._sessions[client_id]

    def publish(self, topic: str, wire: bytes, retain: bool) -> None:
        """Deliver once to each client with a matching subscription."""
        if retain:
            self._retained[topic] = wire
        for client_id in dict.fromkeys(self._filters.matching(topic)):
            if client_id in self._sessions:
                self._sessions[client_id].deliver(topic, wire)


class MemoryTransport:
    """A `Transport` of a `MemoryBroker`.

    Args:
        broker: where it connects.
        client_id: names the session; one connection at a time.
        subscriptions: topic filters.
        clean: forget the session at `close`.
        part_bytes_max: the largest payload on the wire.
        limits: bounds on waiting messages.
    """

    def __init__(
        self,
        broker: MemoryBroker,
        client_id: str,
        subscriptions: tuple[str, ...],
        *,
        clean: bool = False,
        part_bytes_max: int = PART_BYTES_DEFAULT,
        limits: InboxLimits | None = None,
    ) -> None:
        self._broker = broker
        self._client_id = client_id
        self._subscriptions = subscriptions
        self._clean = clean
        self._part_bytes_max = part_bytes_max
        self.inbox = Inbox(subscriptions, limits)
        self._open = False

    async def open(self) -> None:
        self.inbox.check()
        self._broker.connect(self._client_id, self._subscriptions, self.inbox)
        self._open = True

    async def publish(self, topic: str, payload: bytes, retain: bool = False, expires_s: float | None = None) -> None:
        if not self._open:
            raise TransportError("the transport is not open")
        for part in split(payload, self._part_bytes_max, retain=retain):
            self._broker.publish(topic, part, retain)
        await asyncio.sleep(0)

    async def close(self) -> None:
        if self._open:
            self._open = False
            self._broker.disconnect(self._client_id, keep=not self._clean)
        self.inbox.fail(closed())
