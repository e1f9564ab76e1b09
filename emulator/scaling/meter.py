"""What actors use: core seconds, messages and bytes by role, and when facts occurred.

A meter stands around the `handle` of a production actor, which knows nothing of it. Core seconds are those of the
process's CPU clock, so that other work on the machine does not count; times of facts are of `time.perf_counter`.
Virtual time is never mixed with either.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Container, Sequence
from typing import Any

import msgspec

from dca_proto.core.effects import Effect, Report, Send
from dca_proto.core.events import Event, Received
from dca_proto.core.machine import Actor

ROLES = ("client", "compute", "trainer")
Hear = Callable[[bytes, object], None]
"""Called with an actor's id and a fact that it reported."""


class Tally(msgspec.Struct):
    """What all actors of one role used since the last reset: core nanoseconds, whole messages and payload bytes."""

    core_ns: int = 0
    sent: int = 0
    sent_bytes: int = 0
    received: int = 0
    received_bytes: int = 0

    def reset(self) -> None:
        """From nothing again."""
        self.core_ns = self.sent = self.sent_bytes = self.received = self.received_bytes = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*map(operator.add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))


class Metered:
    """An actor with a meter around it; everything but `handle` is the actor's own.

    Args:
        actor: a production actor. tally: of its role.
        hear: told every fact; None for the many whose facts are not needed.
        away: ids of actors that neither see nor do anything now.
    """

    __slots__ = ("_actor", "_away", "_handle", "_hear", "_tally", "id")

    def __init__(self, actor: Actor, tally: Tally, hear: Hear | None, away: Container[bytes]) -> None:
        self.id = actor.id
        self._actor = actor
        self._handle = actor.handle
        self._tally = tally
        self._hear = hear
        self._away = away

    def __getattr__(self, name: str) -> Any:
        return getattr(self._actor, name)

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """As the actor's own."""
        if self.id in self._away:
            return []
        tally = self._tally
        if type(event) is Received:
            tally.received += 1
            tally.received_bytes += len(event.payload)
        began_ns = time.process_time_ns()
        effects = self._handle(event, now_ms)
        tally.core_ns += time.process_time_ns() - began_ns
        self._note(effects)
        return effects

    def _note(self, effects: Sequence[Effect]) -> None:
        tally, hear = self._tally, self._hear
        for effect in effects:
            if type(effect) is Send:
                tally.sent += 1
                tally.sent_bytes += len(effect.payload)
            elif hear is not None and type(effect) is Report:
                hear(self.id, effect.fact)
