"""What the emulator itself does to the actors, as facts of its trace, and how observers attach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from dca_proto.protocol.effects import Effect, Send, Write
from dca_proto.protocol.events import Event

if TYPE_CHECKING:
    from emulator.sim.process import Process


class Killed(msgspec.Struct, frozen=True):
    """A process ended without warning: between which of its steps, and why."""

    why: str


class Restarted(msgspec.Struct, frozen=True):
    """A process started again, from what its disk held."""

    records: int


class Crashed(msgspec.Struct, frozen=True):
    """An actor raised what it may not raise: a bug of ours."""

    error: str
    text: str


class Refused(msgspec.Struct, frozen=True):
    """An actor refused a command of its owner, which had waited until its machine was free."""

    text: str


class Happened(msgspec.Struct, frozen=True):
    """Anything else that the emulator did, such as a partition."""

    what: str


class Observer:
    """Is notified of what actors do, in the order in which it happens. Override what you need."""

    def on_handled(self, process: Process, event: Event, effects: Sequence[Effect]) -> None:
        """An actor has answered an event; nothing of it is carried out yet."""

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        """A transaction is durable."""

    def on_send(self, process: Process, send: Send) -> None:
        """A message leaves a process."""

    def on_deliver(self, process: Process, sender: bytes, payload: bytes) -> None:
        """A whole message reaches a process that runs."""

    def on_fact(self, process: Process, fact: object) -> None:
        """An actor reports."""

    def on_kill(self, process: Process) -> None:
        """A process has ended without warning."""

    def on_restart(self, process: Process) -> None:
        """A process runs again; its actor is made, but has not started yet."""

    def on_restore(self, process: Process) -> None:
        """An old copy of its disk has taken that one's place, while the process is down."""

    def on_crash(self, process: Process, error: Exception) -> None:
        """An actor raised what it may not raise."""
