"""The record of declined rounds: the newest, in order, and no more of them than there is room for."""

from __future__ import annotations

from dca_proto.core.declines import KEPT_MAX, TABLE, DeclinedRound, Declines
from dca_proto.core.effects import Forget, Persist


def declined(number: int, at_ms: int = 0) -> DeclinedRound:
    return DeclinedRound(
        number=number,
        round_id=number.to_bytes(16, "big"),
        statistic="sum",
        trainer=bytes(16),
        epsilon=2.0,
        delta=1e-6,
        reason="epsilon",
        found="2 at delta 1e-06",
        expected="<= 1 at delta 1e-05",
        at_ms=at_ms,
    )


def test_what_is_written_restores_it_in_the_order_of_declining() -> None:
    declines = Declines()
    writes = [write for number in (1, 2, 3) for write in declines.note(declined(number, at_ms=10 - number))]
    assert all(isinstance(write, Persist) and write.table == TABLE for write in writes)
    restored = Declines((write.table, write.key, write.value) for write in reversed(writes))
    assert restored.rounds == declines.rounds
    assert [one.number for one in restored.rounds] == [1, 2, 3], "whatever the clock said"
    assert restored.next_number == 4
    assert Declines().next_number == 1


def test_the_oldest_is_forgotten_beyond_the_room() -> None:
    declines = Declines()
    for number in range(1, KEPT_MAX + 1):
        assert len(declines.note(declined(number))) == 1
    kept, forgotten = declines.note(declined(KEPT_MAX + 1))
    assert isinstance(kept, Persist)
    assert forgotten == Forget(TABLE, declined(1).round_id)
    assert [declines.rounds[0].number, declines.rounds[-1].number, len(declines.rounds)] == [2, KEPT_MAX + 1, KEPT_MAX]
