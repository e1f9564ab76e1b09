"""Facts in the trace about what the emulator does to actors, and the base class of observers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from dca_proto.protocol.effects import Effect, Send, Write
from dca_proto.protocol.events import Event

if TYPE_CHECKING:
    from emulator.sim.process import Process


class Killed(msgspec.Struct, frozen=True):
    """A process was killed. `why`: the reason, and at which step."""

    why: str


class Restarted(msgspec.Struct, frozen=True):
    """A process restarted from its disk. `records`: how many it found there."""

    records: int


class Crashed(msgspec.Struct, frozen=True):
    """An actor raised an exception that it must not raise: a bug in the product."""

    error: str
    text: str


class Refused(msgspec.Struct, frozen=True):
    """An actor refused a command of its owner after the command had waited for the machine."""

    text: str


class Happened(msgspec.Struct, frozen=True):
    """Anything else that the emulator did, such as a partition."""

    what: str


class Observer:
    """Is notified of the events of a simulation, in order. Subclasses override the methods that they need."""

    def on_handled(self, process: Process, event: Event, effects: Sequence[Effect]) -> None:
        """An actor has handled an event; its effects are not carried out yet."""

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        """A transaction is durable."""

    def on_send(self, process: Process, send: Send) -> None:
        """A message leaves a process."""

    def on_deliver(self, process: Process, sender: bytes, payload: bytes) -> None:
        """A whole message reaches a running process."""

    def on_fact(self, process: Process, fact: object) -> None:
        """An actor reports a fact."""

    def on_kill(self, process: Process) -> None:
        """A process was killed."""

    def on_restart(self, process: Process) -> None:
        """A process restarts; its actor is built, but has not handled `Started` yet."""

    def on_restore(self, process: Process) -> None:
        """A process that is down has had its disk replaced by an old copy."""

    def on_crash(self, process: Process, error: Exception) -> None:
        """An actor raised an exception that it must not raise."""
