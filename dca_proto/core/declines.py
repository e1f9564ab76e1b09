"""A client's record of the rounds that it declined, for its owner: the newest ones, with reasons (DESIGN §4.3)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dca_proto.core.effects import Forget, Persist, Write
from dca_proto.core.messages import Announcement
from dca_proto.core.policy import Refusal
from dca_proto.core.records import decoded

TABLE = "declined"
KEPT_MAX = 256


class DeclinedRound(msgspec.Struct, frozen=True, kw_only=True):
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

    @classmethod
    def of(cls, asked: Announcement, refusal: Refusal, number: int, now_ms: int) -> DeclinedRound:
        """The record of declining an announcement now."""
        return cls(
            number=number,
            round_id=asked.round_id,
            statistic=asked.statistic,
            trainer=asked.trainer,
            epsilon=asked.epsilon,
            delta=asked.delta,
            reason=refusal.reason,
            found=refusal.found,
            expected=refusal.expected,
            at_ms=now_ms,
        )


class Declines:
    """The newest rounds that a client declined, restored from its store.

    Args:
        records: (table, key, value) of the store.
    """

    def __init__(self, records: Iterable[tuple[str, bytes, bytes]] = ()) -> None:
        stored = [decoded(TABLE, value, DeclinedRound) for table, _, value in records if table == TABLE]
        self._rounds = {one.round_id: one for one in sorted(stored, key=lambda one: one.number)}

    @property
    def rounds(self) -> tuple[DeclinedRound, ...]:
        """At most `KEPT_MAX`, in the order of declining."""
        return tuple(self._rounds.values())

    @property
    def next_number(self) -> int:
        """The number of the next one."""
        return max((one.number for one in self._rounds.values()), default=0) + 1

    def note(self, declined: DeclinedRound) -> list[Write]:
        """Remember one more, and forget the oldest beyond `KEPT_MAX`."""
        self._rounds[declined.round_id] = declined
        over = list(self._rounds)[:-KEPT_MAX]
        for round_id in over:
            del self._rounds[round_id]
        kept = Persist(TABLE, declined.round_id, msgspec.msgpack.encode(declined))
        return [kept, *(Forget(TABLE, round_id) for round_id in over)]
