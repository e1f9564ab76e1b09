"""What happens to an actor: the only inputs of `Actor.handle(event, now_ms)`.

Events are plain frozen data. Time is an argument of `handle`, never read from a clock.
"""

from __future__ import annotations

import msgspec


class Timer(msgspec.Struct, frozen=True, gc=False):
    """A timer's name: what it is for, in which round. A stale firing (cancelled or re-set meanwhile) is ignored."""

    purpose: str
    round_id: bytes = b""


class Started(msgspec.Struct, frozen=True, gc=False):
    """The actor was constructed, fresh or from its stored records, and its transport is about to connect."""


class Received(msgspec.Struct, frozen=True, gc=False):
    """A message arrived. `sender` is claimed by the topic, 16 bytes; only the message's own cryptography proves it."""

    sender: bytes
    payload: bytes


class TimerFired(msgspec.Struct, frozen=True, gc=False):
    """A timer that the actor set has come due."""

    timer: Timer


class Command(msgspec.Struct, frozen=True, gc=False):
    """The owner of the actor asks for something; each actor says which requests it takes."""

    request: object


Event = Started | Received | TimerFired | Command
