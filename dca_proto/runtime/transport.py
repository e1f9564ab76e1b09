"""The interface of an actor's transport: whole messages in and out.

Subscriptions are given at construction, so that a transport renews them by itself when it reconnects. It guarantees:

- Delivery at least once, up to the broker: `publish` completes when the broker has acknowledged the message. The broker
  may deliver it twice, or lose it later (full queue, restart), so the protocol has receipts and resends.
- Order: messages of one sender arrive in the order sent while its connection lasts. There is no order across senders
  and reconnects.
- Whole messages: parts are reassembled inside. A message that never completes is dropped and counted.
- Back-pressure: `publish` does not complete before the broker has the message. If a reader is slower than its senders,
  its inbox fills to its limits; further messages are dropped and counted, and their senders resend them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Protocol

import msgspec

from dca_proto.errors import DcaError, PeerError, TransportError
from dca_proto.protocol.wire.topics import FilterTree, is_will, may_be_retained, sender_of
from dca_proto.runtime.parts import Assembler, PartLimits

_SENDERS = 16  # it takes at least so many senders to fill an inbox
_MESSAGE_BYTES = 512  # memory overhead of a waiting message
TOPIC_CHARS_MAX = 256  # the protocol's topics have at most 110


class Message(msgspec.Struct, frozen=True):
    """One whole message as the broker delivered it. The topic is untrusted, like the payload."""

    topic: str
    payload: bytes

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, <{len(self.payload)} bytes>)"


class Connected(msgspec.Struct, frozen=True):
    """Fact: the actor is connected and subscribed; messages sent from now on reach it.

    Attributes:
        url: the broker's. away_s: how long the actor was not connected; 0 if the first attempt succeeded.
        certificate_end_ms: when the broker's certificate ends, in Unix milliseconds; None without TLS.
    """

    url: str
    away_s: float = 0.0
    certificate_end_ms: int | None = None


class Disconnected(msgspec.Struct, frozen=True):
    """Fact: the actor has no connection, for this reason, and keeps trying."""

    url: str
    reason: str


class Gone(msgspec.Struct, frozen=True):
    """A hint: the broker says that the connection of this member broke off. It may be back, and anybody may lie."""

    sender: bytes


class InboxLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on the messages that wait for an actor. Further messages are dropped and counted; their senders resend.

    One sender may use a sixteenth of `bytes_max`, or have one larger message waiting: nobody can fill an inbox alone.
    """

    messages_max: int = 200_000
    bytes_max: int = 128 << 20
    parts: PartLimits = PartLimits()


CLIENT_LIMITS = InboxLimits(
    messages_max=4096,
    bytes_max=6 << 20,
    parts=PartLimits(message_bytes_max=(1 << 20) + (1 << 14), partial_max=1024, held_bytes_max=4 << 20),
)
"""Limits for a client, which has little memory. Its largest message is an announcement with a body of at most 1 MiB."""


class Pending:
    """A queue of whole messages for an actor, with bounded memory.

    `dropped` counts dropped messages by reason. `on_arrival` is called when a message has arrived.
    """

    def __init__(self, limits: InboxLimits | None = None) -> None:
        self.on_arrival: Callable[[], None] = lambda: None
        self._limits = limits or InboxLimits()
        self._waiting: deque[Message] = deque()
        self._bytes = 0
        self._bytes_of: Counter[str] = Counter()  # by the sender in the topic
        self._arrived = asyncio.Event()
        self._failure: DcaError | None = None
        self.dropped: Counter[str] = Counter()

    def put(self, message: Message) -> None:
        """Queue a message if there is room and the queue has not failed; otherwise drop and count it."""
        if self._failure is not None:
            self.dropped["closed"] += 1
            return
        sender, size = _sender_and_size(message)
        if len(self._waiting) >= self._limits.messages_max or self._bytes + size > self._limits.bytes_max:
            self.dropped["inbox full"] += 1
            return
        own = self._bytes_of[sender]
        if own and own + size > self._limits.bytes_max // _SENDERS:
            self.dropped["too many of one sender"] += 1
            return
        self._waiting.append(message)
        self._bytes += size
        self._bytes_of[sender] += size
        self._arrived.set()
        self.on_arrival()

    def __len__(self) -> int:
        return len(self._waiting)

    async def take(self) -> Message:
        """Wait for the next message. Raises the error of `fail` once the queue is empty."""
        while (message := self.poll()) is None:
            self._arrived.clear()
            await self._arrived.wait()
        return message

    def poll(self) -> Message | None:
        """Return the next message if one waits, else None. Raises as `take`."""
        if not self._waiting:
            self.check()
            return None
        message = self._waiting.popleft()
        sender, size = _sender_and_size(message)
        self._bytes -= size
        self._bytes_of[sender] -= size
        if not self._bytes_of[sender]:
            del self._bytes_of[sender]
        return message

    def first(self, count: int) -> list[Message]:
        """Return the next messages, at most `count`, without taking them."""
        return list(islice(self._waiting, count))

    def fail(self, failure: DcaError) -> None:
        """Accept no more messages, for this reason. Only the first call sets it."""
        self._failure = self._failure or failure
        self._arrived.set()
        self.on_arrival()

    @property
    def is_closed(self) -> bool:
        """True if `fail` was called."""
        return self._failure is not None

    def check(self) -> None:
        """Raise if `fail` was called."""
        if self._failure is not None:
            raise self._failure


class Inbox(Pending):
    """Reassembles messages from the broker and queues those that match the subscriptions; it drops others.

    A member's last will is not queued: `on_gone` is called with the id of the member.
    """

    def __init__(self, subscriptions: tuple[str, ...], limits: InboxLimits | None = None) -> None:
        super().__init__(limits)
        self._filters: FilterTree[str] = FilterTree()
        for topic_filter in subscriptions:
            self._filters.add(topic_filter, topic_filter)
        self._assembler = Assembler(self._limits.parts)
        self.dropped = self._assembler.dropped
        self.on_gone: Callable[[bytes], None] = lambda member: None

    def offer(self, topic: str, wire: bytes, *, retained: bool = False) -> None:
        """Take an untrusted wire payload from the broker. `retained`: the broker delivers it as a retained message."""
        if len(topic) > TOPIC_CHARS_MAX:
            self.dropped["topic"] += 1
            return
        if retained and not may_be_retained(topic):
            self.dropped["retained"] += 1
            return
        if next(self._filters.matching(topic), None) is None:
            self.dropped["not subscribed"] += 1
            return
        if is_will(topic):  # no actor reads it
            with contextlib.suppress(PeerError):
                self.on_gone(sender_of(topic))
            return
        payload = self._assembler.add(topic.rpartition("/")[2], wire)
        if payload is not None:
            self.put(Message(topic, payload))


def _sender_and_size(message: Message) -> tuple[str, int]:
    return message.topic.rpartition("/")[2], len(message.payload) + _MESSAGE_BYTES


def closed() -> TransportError:
    """Return the error of a transport that its owner closed."""
    return TransportError("the transport is closed")


class Transport(Protocol):
    """A connection of one actor to the broker."""

    @property
    def inbox(self) -> Pending:
        """The queue of received messages. It fails when the transport is closed or has failed for good."""

    async def open(self) -> None:
        """Connect and subscribe. If the broker cannot be reached, keep trying.

        Raises:
            TransportError: the transport is closed.
            UsageError: the broker refused the user name or password.
        """

    def publish(
        self, topic: str, payload: bytes, retain: bool = False, expires_s: float | None = None
    ) -> Awaitable[None]:
        """Send `payload` to the broker, across outages. The result completes when the broker has acknowledged it.

        Messages leave in the order of the calls. Both the call and its result may raise. After `expires_s` seconds
        from now, a broker for MQTT 5 does not begin to deliver the message; one for 3.1.1 does.

        Raises:
            TransportError: the transport is closed or has failed for good.
            ValueError: this message cannot be sent; others can. A `UsageError` if it is too large.
        """

    async def close(self) -> None:
        """Disconnect and free everything. A second call does nothing.

        Messages that come meanwhile are not acknowledged: the broker keeps them for the next connection.
        """
