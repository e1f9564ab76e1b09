"""What actors use: time, messages and bytes by role, and when facts occurred.

A meter stands around the `handle` of a production actor, which knows nothing of it. Its times are of
`time.perf_counter`, which is read in a tenth of the time of the process's CPU clock. The account of a round scales them
by how long the process was on a core, so that other work on the machine does not count. Virtual time is never mixed
with either.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Container
from typing import Any

import msgspec

from dca_proto.protocol.actor import Actor
from dca_proto.protocol.effects import Effect, Report
from dca_proto.protocol.events import Event
from emulator.sim.process import Traffic

ROLES = ("client", "compute", "trainer")
Hear = Callable[[bytes, object], None]
"""Called with an actor's id and a fact that it reported."""


class Tally(msgspec.Struct):
    """What all actors of one role used: nanoseconds, whole messages and payload bytes."""

    busy_ns: int = 0
    sent: int = 0
    sent_bytes: int = 0
    received: int = 0
    received_bytes: int = 0

    def reset(self) -> None:
        """From nothing again."""
        self.busy_ns = self.sent = self.sent_bytes = self.received = self.received_bytes = 0

    def count(self, traffic: Traffic, sign: int) -> None:
        """Add, or take away, all that one process has sent and received since its start."""
        self.sent += sign * traffic.messages_sent
        self.sent_bytes += sign * traffic.bytes_sent
        self.received += sign * traffic.messages_received
        self.received_bytes += sign * traffic.bytes_received

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
        began_ns = time.perf_counter_ns()
        effects = self._handle(event, now_ms)
        self._tally.busy_ns += time.perf_counter_ns() - began_ns
        if self._hear is not None:
            for effect in effects:
                if isinstance(effect, Report):
                    self._hear(self.id, effect.fact)
        return effects
