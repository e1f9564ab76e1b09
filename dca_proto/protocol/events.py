"""Events: the inputs of `Actor.handle(event, now_ms)`. The time is an argument, too; no actor reads a clock."""

from __future__ import annotations

import msgspec


class Timer(msgspec.Struct, frozen=True, gc=False):
    """A timer's name: its purpose and its round. A stale firing (cancelled or re-set meanwhile) is ignored."""

    purpose: str
    round_id: bytes = b""


class Started(msgspec.Struct, frozen=True, gc=False):
    """The actor was constructed, from an empty or a filled store, and its transport is about to connect."""


class Received(msgspec.Struct, frozen=True, gc=False):
    """A message arrived. `sender` is the 16-byte id that its topic claims; only its cryptography proves it."""

    sender: bytes
    payload: bytes


class TimerFired(msgspec.Struct, frozen=True, gc=False):
    """A timer that the actor set is due."""

    timer: Timer


class Command(msgspec.Struct, frozen=True, gc=False):
    """A request of the actor's owner; each kind of actor defines which requests it accepts."""

    request: object


Event = Started | Received | TimerFired | Command
