"""Which entries of the actors' tables a trial takes: a sweep shows nothing about entries that it never took.

An entry reads "client: sent, receipt": who, in which phase, at which event.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dca_proto.protocol.actor import ActorRound, Table
from dca_proto.protocol.client import round as client_round
from dca_proto.protocol.compute import round as compute_round
from dca_proto.protocol.trainer import round as trainer_round

_ROUNDS: dict[str, type[ActorRound[Any]]] = {
    "client": client_round.Round,
    "compute": compute_round.Round,
    "trainer": trainer_round.Round,
}
_TABLES: dict[str, Table] = {role: kind.table for role, kind in _ROUNDS.items()}
TRANSITIONS = tuple(
    f"{role}: {phase}, {event}"
    for role, table in _TABLES.items()
    for phase, event in table
    if event != compute_round.COMMIT
)
"""All entries, but those of the deadline of Compute nodes: who is late then aborts, which is an entry of its own."""


class _Noting(dict[tuple[str, str], str]):
    """A table that notes which of its entries are looked up."""

    def __init__(self, role: str, taken: set[str]) -> None:
        super().__init__(_TABLES[role])
        self._role = role
        self._taken = taken

    def get(self, entry: tuple[str, str], default: str | None = None) -> str | None:  # type: ignore[override]
        """A step."""
        if super().__contains__(entry):
            self._note(entry)
        return super().get(entry, default)

    def __contains__(self, entry: object) -> bool:
        """Whether a phase takes an event: of a timer or a question, which leave a phase as it is, that is all."""
        there = super().__contains__(entry)
        if there and isinstance(entry, tuple) and self[entry] == entry[0]:
            self._note(entry)
        return there

    def _note(self, entry: tuple[str, str]) -> None:
        self._taken.add(f"{self._role}: {entry[0]}, {entry[1]}")


@contextmanager
def noted() -> Iterator[set[str]]:
    """The entries that all actors of this process take meanwhile."""
    taken: set[str] = set()
    for role, kind in _ROUNDS.items():
        kind.table = _Noting(role, taken)
    try:
        yield taken
    finally:
        for role, kind in _ROUNDS.items():
            kind.table = _TABLES[role]
