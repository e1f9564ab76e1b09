"""When a trainer closes a round: the rule by itself, and in virtual time with slow, silent and lost clients."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.facts import Arrived, Closed, Contributed, Declined, Missed, RoundCompleted, RoundFailed
from dca_proto.protocol.params import Timing
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.trainer.round import ALL, DEADLINE, FULL, QUIET, Arrivals
from dca_proto.testing import Envelope, TestFederation

TIMING = Timing()
ANNOUNCED_MS = 1_000_000
FEWEST, MOST, EXPECTED = 5, 20, 10


def reason(arrivals: Arrivals, at_ms: int, expected: int | None = EXPECTED, most: int = MOST) -> str | None:
    """Why to close so many milliseconds after the announcement."""
    return arrivals.reason(expected, FEWEST, most, TIMING, ANNOUNCED_MS + at_ms)


def arrived(*counts: tuple[bytes, int, int]) -> Arrivals:
    """After some nodes' counts: (node, count, milliseconds after the announcement)."""
    arrivals = Arrivals(ANNOUNCED_MS)
    for node, count, at_ms in counts:
        arrivals.note(node, count, ANNOUNCED_MS + at_ms)
    return arrivals


def test_the_constants_are_those_of_the_design() -> None:
    assert (TIMING.quiet_ms, TIMING.quiet_part, TIMING.progress_ms) == (500, 0.5, 50)


def test_a_round_closes_at_once_when_all_who_are_expected_have_come() -> None:
    assert reason(arrived((b"a", 5, 1), (b"b", 4, 1)), 1) is None
    assert reason(arrived((b"a", 5, 1), (b"b", 5, 1)), 1) == ALL
    assert reason(arrived((b"a", 5, 1), (b"b", 4, 1)), 1, expected=9) == ALL, "one has declined"
    assert reason(arrived((b"a", 9, 1)), 1, expected=None) is None, "nobody knows how many there are"
    assert reason(Arrivals(ANNOUNCED_MS), 0, expected=0) == ALL, "everybody has declined"


def test_all_of_too_few_close_a_round_only_when_arrivals_are_quiet() -> None:
    """Of 1,000 clients with n_min = 600: declines come before contributions, and some who declined may not be last."""

    def why(count: int, expected: int, at_ms: int) -> str | None:
        return arrived((b"a", count, 10)).reason(expected, 600, 2000, TIMING, ANNOUNCED_MS + at_ms)

    assert [why(500, 800, at_ms) for at_ms in (10, 510, 10**6)] == [None, None, None], "300 are to come"
    assert [why(500, 500, at_ms) for at_ms in (10, 509, 510)] == [None, None, ALL]
    assert why(600, 600, 10) == ALL
    assert why(0, 0, 10) == ALL, "all have declined: nothing can come"


def test_a_round_closes_at_once_when_it_is_full() -> None:
    assert reason(arrived((b"a", 12, 1), (b"b", 7, 1)), 1, expected=None) is None
    assert reason(arrived((b"a", 12, 1), (b"b", 8, 1)), 1, expected=None) == FULL


@pytest.mark.parametrize(
    ("last_ms", "quiet_at_ms"), [(0, 500), (10, 510), (999, 1499), (1000, 1500), (1002, 1503), (3_600_000, 5_400_000)]
)
def test_quiet_is_half_a_second_and_half_of_the_time_so_far(last_ms: int, quiet_at_ms: int) -> None:
    """Whichever is longer, since the last arrival: a swarm that answers over an hour is given half an hour more."""
    arrivals = arrived((b"a", 2, 0), (b"b", 3, last_ms))
    assert arrivals.quiet_ms(TIMING) == ANNOUNCED_MS + quiet_at_ms
    assert reason(arrivals, quiet_at_ms - 1) is None
    assert reason(arrivals, quiet_at_ms) == QUIET
    assert reason(arrived((b"a", 4, last_ms)), quiet_at_ms) is None, "below n_min no silence closes a round"


def test_counts_never_shrink_and_only_news_restarts_the_clock() -> None:
    arrivals = arrived((b"a", 4, 10), (b"b", 3, 20))
    for count in (3, 0, 2):
        assert not arrivals.note(b"b", count, ANNOUNCED_MS + 400)
    assert (arrivals.total, dict(arrivals.counts)) == (7, {b"a": 4, b"b": 3})
    assert arrivals.quiet_ms(TIMING) == ANNOUNCED_MS + 520
    assert arrivals.note(b"c", 0, ANNOUNCED_MS + 400), "a node that keeps the round, with nothing yet"
    assert arrivals.quiet_ms(TIMING) == ANNOUNCED_MS + 520, "that is no arrival"
    assert arrivals.note(b"b", 4, ANNOUNCED_MS + 400)
    assert arrivals.quiet_ms(TIMING) == ANNOUNCED_MS + 900


# In virtual time


class Swarm:
    """Ten clients; each one's contribution comes so many milliseconds after the announcement, or never (None)."""

    def __init__(self, delays: Iterable[int | None], actors: TestFederation | None = None, **changes: object) -> None:
        self.actors = actors or TestFederation(10, 3)
        self.network = self.actors.network()
        self.network.deliver()
        self.held: list[Envelope] = []
        self.network.tamper = self._hold
        terms = {"tolerate": 5, "collect_s": 600, "commit_s": 60, **changes}
        self.began_ms = self.network.now_ms
        self.network.command(self.actors.trainer_identity.id, self.actors.request(**terms))
        self.network.deliver()
        mine = {one.sender: one for one in self.held}
        self.due = sorted((delay, client) for client, delay in zip(self.actors.clients, delays, strict=False)
                          if delay is not None and client in mine)  # fmt: skip
        self.network.tamper = lambda envelope: () if self._is_contribution(envelope) else (envelope,)
        for delay, client in self.due:
            self.advance(delay)
            self.network.tamper = lambda envelope: (envelope,)
            self.network._queue.append(mine[client])
            self.network.deliver()

    def _is_contribution(self, envelope: Envelope) -> bool:
        return envelope.sender in self.actors.clients and envelope.to.channel is Channel.COMPUTE

    def _hold(self, envelope: Envelope) -> Iterable[Envelope]:
        if not self._is_contribution(envelope):
            return (envelope,)
        self.held.append(envelope)
        return ()

    def advance(self, after_ms: int) -> None:
        """Let time pass; what a client sends again is lost."""
        self.network.tamper = lambda envelope: () if self._is_contribution(envelope) else (envelope,)
        self.network.advance(self.began_ms + after_ms)

    def closed(self, until_ms: int) -> tuple[str, int, int] | None:
        """Why, how many were there, and when, by the time given; None while the round is open."""
        step = self.network.now_ms
        while step <= self.began_ms + until_ms:
            self.advance(step - self.began_ms)
            found = self.network.reported(Closed)
            if found:
                (fact,) = found
                return fact.why, fact.count, step - self.began_ms
            step += 1
        return None


def test_all_come_and_the_round_closes_with_the_next_progress() -> None:
    """Without waiting out any window: at most `progress_ms` after the last contribution."""
    swarm = Swarm(range(0, 100, 10))
    why, count, at_ms = swarm.closed(1000) or ("", 0, 0)
    assert (why, count) == (ALL, 10)
    assert 90 <= at_ms <= 90 + TIMING.progress_ms
    (completed,) = swarm.network.reported(RoundCompleted)
    assert completed.aggregate.contributors == 10
    counts = [fact.count for fact in swarm.network.reported(Arrived)]
    assert counts == sorted(counts)
    assert counts[-1] == 10


def test_those_who_decline_are_not_waited_for() -> None:
    class TwoRefuse(TestFederation):
        def client(self, index: int, records: Iterable[tuple[str, bytes, bytes]] = ()) -> Client:
            self.policy = Policy() if index < 2 else Policy(clients_min=1, honest_min=1)
            return super().client(index, records)

    swarm = Swarm([0] * 10, TwoRefuse(10, 3))
    assert len({fact.client for fact in swarm.network.reported(Declined)}) == 2
    assert swarm.closed(1000) == (ALL, 8, 50)


@pytest.mark.parametrize(("last_ms", "close_ms"), [(0, 550), (200, 750), (3000, 4575)])
def test_silence_after_enough_have_come_closes_the_round(last_ms: int, close_ms: int) -> None:
    """Six of ten come, n_min is 5. The last is counted up to `progress_ms` later, and quiet runs from there."""
    swarm = Swarm([0, 0, 0, 0, last_ms, last_ms])
    assert swarm.closed(10_000) == (QUIET, 6, close_ms)
    (completed,) = swarm.network.reported(RoundCompleted)
    assert completed.aggregate.contributors == 6


def test_a_slow_swarm_is_waited_for() -> None:
    """One contribution every 20 s. No silence counts before n_min; then gaps are shorter than half of the time."""
    swarm = Swarm(range(0, 200_000, 20_000), collect_s=3_600)
    assert swarm.closed(200_000) == (ALL, 10, 180_050)


def test_who_sleeps_is_waited_for_only_if_no_drop_out_is_tolerated() -> None:
    """The pages on devices say so. With `tolerate` 1, nine of ten are enough; the late one is charged for nothing."""
    delays = [0] * 9 + [400_000]
    assert Swarm(delays, tolerate=0).closed(400_100) == (ALL, 10, 400_050)
    early = Swarm(delays, tolerate=1)
    early.advance(600_000)
    (closed,) = early.network.reported(Closed)
    assert (closed.why, closed.count) == (QUIET, 9)
    assert len(early.network.reported(Contributed)) == 10
    assert len(early.network.reported(Missed)) == 1
    absent = Swarm([0] * 9, tolerate=0)
    absent.advance(700_000)
    assert [fact.why for fact in absent.network.reported(Closed)] == [DEADLINE]
    assert len(absent.network.reported(RoundFailed)) == 1


def test_too_few_are_waited_for_until_the_deadline() -> None:
    swarm = Swarm([0] * 4, collect_s=3)
    assert swarm.closed(2999) is None
    assert swarm.closed(3000) == (DEADLINE, 4, 3000)


def test_a_full_round_is_closed_although_more_are_expected() -> None:
    swarm = Swarm([0] * 8, most=6)
    why, count, at_ms = swarm.closed(1000) or ("", 0, 0)
    assert (why, at_ms) == (FULL, 50)
    assert 6 <= count <= 8, "each node counts for itself"


def test_a_repeated_or_shrinking_count_changes_nothing() -> None:
    """A node's word that came late, or twice, neither closes a round nor keeps it open."""
    swarm = Swarm([0] * 6)
    swarm.advance(60)
    trainer = swarm.actors.trainer_identity.id
    words = [one for one in swarm.network.sent if one.to.channel is Channel.TRAINER and one.to.id == trainer]
    assert len(words) >= 5
    for word, again in itertools.product(words, range(2)):
        swarm.network._queue.append(word)
        swarm.advance(100 + 50 * again)
    assert swarm.closed(1000) == (QUIET, 6, 550)
