"""The record of declined rounds: the newest, in order, and no more of them than there is room for."""

from __future__ import annotations

from dca_proto.protocol.client.round import DECLINES, DECLINES_MAX, DeclinedRounds
from dca_proto.protocol.effects import Forget, Persist
from dca_proto.protocol.policy import Refusal
from dca_proto.protocol.wire.kinds import NodeRelease
from dca_proto.protocol.wire.messages import Announcement

REFUSAL = Refusal("epsilon", "2 at delta 1e-06", "<= 1 at delta 1e-05")


def asked(number: int) -> Announcement:
    terms = ("sum", {}, 1, 24, 1.0, 2.0, 1e-6, NodeRelease("m"), (), bytes(32), b"", 1, 2)
    return Announcement(number.to_bytes(16, "big"), bytes(16), 1, bytes(32), *terms)


def test_what_is_written_restores_it_in_the_order_of_declining() -> None:
    declines = DeclinedRounds()
    writes = [write for number in (1, 2, 3) for write in declines.note(asked(number), REFUSAL, 10 - number)]
    assert all(isinstance(write, Persist) and write.table == DECLINES for write in writes)
    restored = DeclinedRounds((write.table, write.key, write.value) for write in reversed(writes))
    assert restored.rounds == declines.rounds
    assert [one.number for one in restored.rounds] == [1, 2, 3], "whatever the clock said"
    (newest,) = (one for one in restored.rounds if one.number == 3)
    assert (newest.statistic, newest.epsilon, newest.delta, newest.at_ms) == ("sum", 2.0, 1e-6, 7)
    assert (newest.reason, newest.found, newest.expected) == (REFUSAL.reason, REFUSAL.found, REFUSAL.expected)
    restored.note(asked(9), REFUSAL, 0)
    assert restored.rounds[-1].number == 4


def test_the_oldest_is_forgotten_beyond_the_room() -> None:
    declines = DeclinedRounds()
    for number in range(1, DECLINES_MAX + 1):
        assert len(declines.note(asked(number), REFUSAL, 0)) == 1
    kept, forgotten = declines.note(asked(DECLINES_MAX + 1), REFUSAL, 0)
    assert isinstance(kept, Persist)
    assert forgotten == Forget(DECLINES, asked(1).round_id)
    assert [declines.rounds[0].number, declines.rounds[-1].number, len(declines.rounds)] == [
        2,
        DECLINES_MAX + 1,
        DECLINES_MAX,
    ]
