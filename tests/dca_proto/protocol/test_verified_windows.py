"""Windows, resends and patience of verified sums follow from the size of their proofs, in virtual time."""

from __future__ import annotations

import math
from typing import Any

import pytest
from round_helpers import (
    begin,
    exact_actors,
    failures,
    hand_over,
    kind_of,
    losing,
    passing,
    results,
    sent,
    until_the_end,
)  # fmt: skip

from dca_proto.protocol import verified
from dca_proto.protocol.effects import Report
from dca_proto.protocol.events import Timer, TimerFired
from dca_proto.protocol.facts import NodesSilent
from dca_proto.protocol.params import Limits, Timing
from dca_proto.protocol.trainer.round import WATCH
from dca_proto.protocol.verified import Work
from dca_proto.protocol.wire.kinds import SecureSum, VerifiedSum
from dca_proto.protocol.wire.messages import (
    Announcement,
    Answer,
    Close,
    Contribution,
    PartialSum,
    VerifiedAnswer,
    VerifiedPart,
)
from dca_proto.testing import Envelope, Network, TestFederation

SECONDS = 1000
SUM = VerifiedSum(tolerate=1)
LATE = (Answer, PartialSum, VerifiedAnswer, VerifiedPart)
WIDE = {"columns": ["x"], "edges": [float(edge) for edge in range(101)]}
FEW = {"statistic": "histogram", "parameters": WIDE, "rows_max": 1, "fraction_bits": 12}


def drafted(**changes: Any) -> Any:
    actors = TestFederation(2, 3)
    terms = {"clients": 20, "tolerate": 2, "kind": VerifiedSum(), **FEW}
    return actors.request(**{**terms, **changes}).draft(actors.mechanism, Limits())


def test_windows_have_time_for_all_proofs() -> None:
    """100 µs a word for the proof on a slow device, 10 µs a word for each contribution on one busy machine."""
    body, validated = drafted(collect_s=0.5, commit_s=0.7)
    words = validated.statement.words
    needed_ms = math.ceil(words * (100 + 10 * 20) / 1000)
    assert needed_ms > SECONDS
    assert body.close_by_ms == body.commit_by_ms - body.close_by_ms == needed_ms
    assert validated.vector_bytes == 4 * words


def test_a_request_with_longer_windows_and_other_kinds_keep_them() -> None:
    for changes in ({}, {"kind": SecureSum()}):
        body, _ = drafted(collect_s=900.0, commit_s=800.0, **changes)
        assert (body.close_by_ms, body.commit_by_ms) == (900 * SECONDS, 1_700 * SECONDS)
    plain, _ = drafted(collect_s=1.0, commit_s=2.0, kind=SecureSum())
    assert (plain.close_by_ms, plain.commit_by_ms) == (1 * SECONDS, 3 * SECONDS)


def test_windows_never_outlast_twenty_minutes_each_nor_the_nodes_keys() -> None:
    assert Work(2_000_000, 10_000).window_ms == 20 * 60 * SECONDS
    actors = TestFederation(2, 3)
    request = actors.request(clients=20, tolerate=2, kind=VerifiedSum(), collect_s=0.5, commit_s=0.7, **FEW)
    about = (bytes(16), (1, bytes(32)), actors.mechanism, (), bytes(32))
    body = request.announcement(*about, now_ms=0, latest_ms=2 * SECONDS)
    assert body.commit_by_ms == 1_200


@pytest.mark.parametrize(("size", "first_ms"), [(0, 2_000), (65_536, 2_000), (65_536 + 256_000, 3_000)])
def test_large_messages_have_time_to_arrive_before_they_are_sent_again(size: int, first_ms: int) -> None:
    waits = [Timing().resend_after_ms(attempt, b"\0", size) for attempt in range(8)]
    assert waits == [min(first_ms << attempt, 60_000) for attempt in range(8)]
    assert Timing().resend_after_ms(9, b"\0", 65_536 + 256 * 100_000) == 4 * 102_000


def test_a_client_does_not_send_a_large_contribution_again_at_once() -> None:
    """At a byte a millisecond, the second wait is twice that of the contribution's bytes and two seconds."""
    slow = Timing(resend_free_bytes=0, resend_rate=1)
    actors = exact_actors(4, 3, timing=slow)
    network, times = actors.network(), []

    def lost(one: Envelope) -> list[Envelope]:
        is_lost = one.sender == actors.clients[0] and kind_of(one) is Contribution
        times.extend([(network.now_ms, len(one.payload))] if is_lost else [])
        return [] if is_lost else [one]

    network.deliver()
    network.tamper = lost
    begin(actors, network, kind=VerifiedSum(tolerate=0))
    network.advance(network.now_ms + 50 * SECONDS)
    (first_ms, size), (second_ms, _), (third_ms, _), *_ = times
    wait_ms = 2_000 + size
    assert (size > 200, len(sent(network, Announcement)) > 3) == (True, True)
    assert wait_ms <= second_ms - first_ms <= 3 * wait_ms
    assert wait_ms <= third_ms - second_ms


def silent_at(actors: TestFederation, network: Network, round_id: bytes, now_ms: int) -> bool:
    """Let the trainer look at a time, and return whether it reports a silent node."""
    effects = network.actors[actors.trainer_identity.id].handle(TimerFired(Timer(WATCH, round_id)), now_ms)
    return any(isinstance(one, Report) and isinstance(one.fact, NodesSilent) for one in effects)


def test_a_trainer_that_was_busy_itself_calls_no_node_silent() -> None:
    actors = exact_actors(4, 3)
    network = actors.network()
    network.deliver()
    network.tamper = losing(Close)
    _, request = begin(actors, network, kind=SUM)
    network.tamper = lambda one: []
    begun_ms = network.now_ms
    assert not silent_at(actors, network, request.round_id, begun_ms + 12 * SECONDS), "it looks ten seconds late"
    seen = [silent_at(actors, network, request.round_id, begun_ms + at * SECONDS) for at in (14, 16, 18, 20, 22)]
    assert seen == [False, False, False, True, False], "after eight seconds in time, and only once"


@pytest.mark.parametrize(("kind", "is_heavy"), [(SUM, True), (SecureSum(tolerate=1), True), (SUM, False)])
def test_a_node_that_has_much_to_add_up_is_not_lost(
    kind: SecureSum, is_heavy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers 40 s after the others, of a minute that its work may take; with little work that is too late."""
    monkeypatch.setattr(verified, "_NODE_US", 1e9 if is_heavy else 0.25)
    actors = exact_actors(4, 4, colluding=1)
    network = actors.network()
    slow = actors.computes[2]
    held: list[Envelope] = []

    def holding(one: Envelope) -> list[Envelope]:
        held.extend([one] if one.sender == slow else [])
        return [] if one.sender == slow else [one]

    network.deliver()
    network.tamper = lambda one: holding(one) if kind_of(one) in LATE else [one]
    _, request = begin(actors, network, kind=kind)
    assert held
    network.tamper = holding
    network.advance(network.now_ms + 40 * SECONDS)
    assert bool(failures(network)) is not is_heavy
    network.tamper = passing
    for one in held:
        hand_over(network, one)
    assert bool(results(network)) is is_heavy
    assert network.actors[actors.trainer_identity.id].phase(request.round_id) in ("done", "returned")


def test_a_round_that_ends_without_a_sum_names_the_proofs() -> None:
    actors = exact_actors(4, 3)
    network = actors.network()
    network.tamper = losing(VerifiedAnswer, VerifiedPart, sender=actors.computes[1])
    begin(actors, network, kind=SUM)
    until_the_end(network)
    (failure,) = failures(network)
    assert "the proofs of 4 contributions of 1 kB" in failure.reason


def test_a_round_with_too_few_contributions_names_the_proofs() -> None:
    actors = exact_actors(4, 3)
    network = actors.network()
    network.deliver()
    network.tamper = losing(Contribution)
    begin(actors, network, kind=SUM)
    until_the_end(network)
    (failure,) = failures(network)
    assert "clients had at most 60 s for the proofs of 4 contributions of 1 kB" in failure.reason
    assert (failure.contributors, failure.needed) == (0, 3)
