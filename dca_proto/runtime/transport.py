"""What an actor needs from a network: whole messages in and out.

Subscriptions are given at construction, so that a reconnecting transport can renew them by itself. What is promised:

- at least once: `publish` is over when the broker has taken the message over; it may still deliver it twice, and a
  broker may lose what it acknowledged (full queue, restart), which is why the protocol has receipts and resends;
- messages of one sender come in the order sent while its connection lasts; across senders and reconnects any order;
- messages come whole: parts are put together inside, and what never completes is dropped and counted;
- back-pressure: `publish` is not over before the broker has the message; a reader slower than its senders keeps an
  inbox of bounded size, beyond which messages are dropped and counted, to be resent by their senders.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from dca_proto.errors import DcaError, TransportError
from dca_proto.protocol.wire.topics import FilterTree, may_be_retained
from dca_proto.runtime.parts import Assembler, PartLimits

_SENDERS = 16  # how many of them can fill an inbox, at least
_MESSAGE_BYTES = 512  # what a message that waits costs beside its payload
TOPIC_CHARS_MAX = 256  # ours have at most 145


class Message(msgspec.Struct, frozen=True):
    """One whole message as the broker delivered it. The topic is untrusted, like the payload."""

    topic: str
    payload: bytes

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, <{len(self.payload)} bytes>)"


class Connected(msgspec.Struct, frozen=True):
    """Fact: the actor is connected and subscribed; what is sent from now on reaches it.

    Attributes:
        url: of the broker. away_s: how long it was not, in seconds; 0 where the first try succeeded.
    """

    url: str
    away_s: float = 0.0


class Disconnected(msgspec.Struct, frozen=True):
    """Fact: the actor has no connection, for that reason, and tries again until it has."""

    url: str
    reason: str


class InboxLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What waits for the actor at most; beyond, messages are dropped and counted (their senders resend).

    One sender gets a sixteenth of `bytes_max`, or one whole message if none of it waits: nobody can fill an inbox
    alone.
    """

    messages_max: int = 200_000
    bytes_max: int = 128 << 20
    parts: PartLimits = PartLimits()


CLIENT_LIMITS = InboxLimits(
    messages_max=4096,
    bytes_max=6 << 20,
    parts=PartLimits(message_bytes_max=(1 << 20) + (1 << 14), partial_max=1024, held_bytes_max=4 << 20),
)
"""For a client, whose memory is small: the largest message to it is an announcement, whose body has at most 1 MiB."""


class Pending:
    """Whole messages that wait for an actor, first in, first out, within bounds on memory.

    `dropped` counts messages by the reason why they were dropped. `on_arrival` is called when there is one to take.
    """

    def __init__(self, limits: InboxLimits | None = None) -> None:
        self.on_arrival: Callable[[], None] = lambda: None
        self._limits = limits or InboxLimits()
        self._waiting: deque[Message] = deque()
        self._bytes = 0
        self._bytes_of: Counter[str] = Counter()  # by the sender that the topic names
        self._arrived = asyncio.Event()
        self._failure: DcaError | None = None
        self.dropped: Counter[str] = Counter()

    def put(self, message: Message) -> None:
        """Let a message wait, if there is room, and somebody to take it."""
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
        """The next message; raises what `fail` was given once all before it are taken."""
        while (message := self.poll()) is None:
            self._arrived.clear()
            await self._arrived.wait()
        return message

    def poll(self) -> Message | None:
        """The next message, if one waits; raises as `take`."""
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

    def fail(self, failure: DcaError) -> None:
        """No more will come, and why. The first reason stands."""
        self._failure = self._failure or failure
        self._arrived.set()
        self.on_arrival()

    def check(self) -> None:
        """Raise if `fail` was called."""
        if self._failure is not None:
            raise self._failure


class Inbox(Pending):
    """What a broker delivers, put together: whole messages that match the subscriptions; others are dropped."""

    def __init__(self, subscriptions: tuple[str, ...], limits: InboxLimits | None = None) -> None:
        super().__init__(limits)
        self._filters: FilterTree[str] = FilterTree()
        for topic_filter in subscriptions:
            self._filters.add(topic_filter, topic_filter)
        self._assembler = Assembler(self._limits.parts)
        self.dropped = self._assembler.dropped

    def offer(self, topic: str, wire: bytes, *, retained: bool = False) -> None:
        """Take a wire payload from the broker, which may have `retained` it. Nothing of it is believed."""
        if len(topic) > TOPIC_CHARS_MAX:
            self.dropped["topic"] += 1
            return
        if retained and not may_be_retained(topic):
            self.dropped["retained"] += 1
            return
        if next(self._filters.matching(topic), None) is None:
            self.dropped["not subscribed"] += 1
            return
        payload = self._assembler.add(topic.rpartition("/")[2], wire)
        if payload is not None:
            self.put(Message(topic, payload))


def _sender_and_size(message: Message) -> tuple[str, int]:
    return message.topic.rpartition("/")[2], len(message.payload) + _MESSAGE_BYTES


def closed() -> TransportError:
    """The failure of a transport that its owner closed."""
    return TransportError("the transport is closed")


class Transport(Protocol):
    """A connection of one actor to the broker."""

    @property
    def inbox(self) -> Pending:
        """Where messages wait to be taken; it also fails when the transport is closed, or has failed for good."""

    async def open(self) -> None:
        """Connect and subscribe; where the broker cannot be reached, try again until it can.

        Raises:
            TransportError: the transport is closed.
            UsageError: the broker refused the user name or password.
        """

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> Awaitable[None]:
        """Hand `payload` over to the broker, through outages. What comes back is over when the broker has it.

        Messages leave in the order of the calls. Both the call and its wait may raise.

        Raises:
            TransportError: the transport is closed or has failed for good.
            ValueError: this message cannot be sent; others can. A `UsageError` where it is too large.
        """

    async def close(self) -> None:
        """Disconnect and free everything. A second call does nothing."""
