"""Effects: the actions that an actor returns as data. The runner or the emulator carries them out in order.

A `Persist` before a `Send` must be durable before that message leaves. An interpreter may collect the effects of
several events, commit all their writes in one transaction, and then send (group commit).
"""

from __future__ import annotations

import enum

import msgspec

from dca_proto.protocol.events import Timer


class Channel(enum.Enum):
    """The destination of a message: an actor's inbox, or a broadcast."""

    CLIENT = "client"
    COMPUTE = "compute"
    TRAINER = "trainer"
    ANNOUNCE = "announce"  # a trainer to all clients
    ABORT = "abort"  # a Compute node to all clients and trainers
    EPOCH = "epoch"  # a Compute node's current epoch key, retained by the broker
    HELLO = "hello"  # a client's session, retained by the broker, for all Compute nodes
    FEDERATION = "federation"  # a changed federation file, retained by the broker, for everybody
    GONE = "gone"  # the broker, in the name of a Compute node or trainer whose connection broke off; no actor reads it

    @property
    def is_broadcast(self) -> bool:
        return self not in (Channel.CLIENT, Channel.COMPUTE, Channel.TRAINER)


class Address(msgspec.Struct, frozen=True, gc=False):
    """A channel and, for an inbox, its owner's 16-byte id."""

    channel: Channel
    id: bytes = b""


class Send(msgspec.Struct, frozen=True, gc=False):
    """Hand `payload` to the broker at least once. `retain` asks it to keep the message for late subscribers.

    `round_id` tells observers to which round the message belongs; it is not sent. From `expires_ms` on (Unix
    milliseconds by the sender's clock), every receiver refuses the message, so a broker for MQTT 5 need not deliver it.
    """

    to: Address
    round_id: bytes
    payload: bytes
    retain: bool = False
    expires_ms: int | None = None


class SetTimer(msgspec.Struct, frozen=True, gc=False):
    """Fire `timer` at `at_ms` (Unix milliseconds). This replaces an earlier setting of the same timer."""

    timer: Timer
    at_ms: int


class CancelTimer(msgspec.Struct, frozen=True, gc=False):
    """Cancel the timer, if it is set."""

    timer: Timer


class Persist(msgspec.Struct, frozen=True, gc=False):
    """Write a record durably. This replaces a record with the same table and key."""

    table: str
    key: bytes
    value: bytes

    def __repr__(self) -> str:
        return f"Persist({self.table!r}, {self.key.hex()!r}, <{len(self.value)} bytes>)"


class Forget(msgspec.Struct, frozen=True, gc=False):
    """Delete a record durably and overwrite its content."""

    table: str
    key: bytes


class Report(msgspec.Struct, frozen=True, gc=False):
    """Report a fact to the actor's owner, for logs, progress and results. It contains no secret."""

    fact: object


Effect = Send | SetTimer | CancelTimer | Persist | Forget | Report
Write = Persist | Forget
