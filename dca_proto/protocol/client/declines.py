"""A client's record of the rounds that it declined, for its owner: the newest ones, with reasons (DESIGN §4.3)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dca_proto.protocol.effects import Forget, Persist, Write
from dca_proto.protocol.policy import Refusal
from dca_proto.protocol.records import loaded
from dca_proto.protocol.wire.messages import Announcement

TABLE = "declined"
KEPT_MAX = 256


class DeclinedRound(msgspec.Struct, frozen=True):
    """A round that was declined.

    Attributes:
        number: 1, 2, ... in the order of declining.
        round_id: 16 bytes. statistic: what was asked. trainer: who asked, an id of 16 bytes.
        epsilon, delta: what it would have cost.
        reason, found, expected: what the trainer was told. at_ms: when.
    """

    number: int
    round_id: bytes
    statistic: str
    trainer: bytes
    epsilon: float
    delta: float
    reason: str
    found: str
    expected: str
    at_ms: int


class Declines:
    """The newest rounds that a client declined, restored from its store.

    Args:
        records: (table, key, value) of the store.
    """

    def __init__(self, records: Iterable[tuple[str, bytes, bytes]] = ()) -> None:
        stored = loaded(records, TABLE, DeclinedRound)
        self._rounds = dict(sorted(stored.items(), key=lambda one: one[1].number))

    @property
    def rounds(self) -> tuple[DeclinedRound, ...]:
        """At most `KEPT_MAX`, in the order of declining."""
        return tuple(self._rounds.values())

    def note(self, asked: Announcement, refusal: Refusal, now_ms: int) -> list[Write]:
        """Remember that an announcement is declined now, and forget the oldest beyond `KEPT_MAX`."""
        number = max((one.number for one in self._rounds.values()), default=0) + 1
        round_ = (number, asked.round_id, asked.statistic, asked.trainer, asked.epsilon, asked.delta)
        declined = DeclinedRound(*round_, refusal.reason, refusal.found, refusal.expected, now_ms)
        self._rounds[asked.round_id] = declined
        over = list(self._rounds)[:-KEPT_MAX]
        for round_id in over:
            del self._rounds[round_id]
        kept = Persist(TABLE, asked.round_id, msgspec.msgpack.encode(declined))
        return [kept, *(Forget(TABLE, round_id) for round_id in over)]
