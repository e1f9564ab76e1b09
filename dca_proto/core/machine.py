"""Sessions as literal tables, and the one door through which an actor's events come.

A table maps (phase, event) to the next phase; a missing entry is a peer's error, raised before anything has changed.
The diagrams of DESIGN §8 are generated from these tables.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping

from dca_proto.core.effects import Effect, Report
from dca_proto.core.errors import PeerError
from dca_proto.core.events import Event, Received
from dca_proto.core.facts import Dropped

Table = Mapping[tuple[str, str], str]


def step(table: Table, phase: str, event: str) -> str:
    """The phase after `event`. Raises `PeerError("phase")` for an event that has no place there."""
    after = table.get((phase, event))
    if after is None:
        expected = ", ".join(sorted(known for at, known in table if at == phase)) or "nothing more"
        raise PeerError("phase", found=f"{event} while {phase}", expected=expected)
    return after


class Actor(ABC):
    """A sans-IO actor: events in, effects out.

    Attributes:
        id: 16 bytes, the hash of its identity's public key.
        dropped: how many messages were dropped, by code.
    """

    def __init__(self, actor_id: bytes) -> None:
        self.id = actor_id
        self.dropped: Counter[str] = Counter()

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """React to one event at the time `now_ms` (Unix milliseconds).

        A peer's error changes nothing but a counter: it becomes a `Dropped` fact.
        """
        try:
            return self._handle(event, now_ms)
        except PeerError as error:
            self.dropped[error.code] += 1
            sender = event.sender if isinstance(event, Received) else self.id
            return [Report(Dropped(error.code, sender, str(error)))]

    @abstractmethod
    def _handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Dispatch; may raise `PeerError` before it has changed any state."""
