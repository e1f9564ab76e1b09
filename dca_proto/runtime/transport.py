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

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from dca_proto.runtime.inbox import Pending


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
