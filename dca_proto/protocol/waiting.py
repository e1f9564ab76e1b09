"""What an actor's open rounds wait for, for its owner's status."""

from __future__ import annotations

import msgspec


class Waiting(msgspec.Struct, frozen=True):
    """A round that has not ended at this actor.

    Attributes:
        round_id: 16 bytes. statistic: what it asks for; empty if the actor does not know it.
        phase: as in the actor's table of phases. until_ms: when it ends at the latest; None if it was not announced.
        members: ids of those whose message it lacks; `arrived`: how many of `expected` have answered, if that is known.
    """

    round_id: bytes
    statistic: str
    phase: str
    until_ms: int | None
    members: tuple[bytes, ...]
    arrived: int | None = None
    expected: int | None = None
