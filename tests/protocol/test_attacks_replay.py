"""Attacks by repetition: replays, duplicates, redelivery, loss, and second bodies under known ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from scene import (
    begin,
    body_of,
    exact_cast,
    exact_sum,
    failures,
    forged,
    losing,
    refused,
    resigned,
    results,
    sealed_kind,
    sends,
    sent,
    snapshot,
    the_sum,
    until_the_end,
)

from dca_proto.core.codec import decode_frame
from dca_proto.core.events import Received, TimerFired
from dca_proto.core.events import Timer as TimerName
from dca_proto.core.facts import Released, RoundCompleted
from dca_proto.core.messages import (
    Announcement,
    Body,
    PartialSum,
    Query,
    Receipt,
    Roster,
    Sealed,
    Share,
    Start,
)
from dca_proto.core.params import PROTOCOL_VERSION
from dca_proto.core.round import session_hash
from dca_proto.testing import Cast, Envelope, Network


def the_share(network: Network, cast: Cast, node: int = 0) -> Envelope:
    return sent(network, Share, sender=cast.clients[0], to=cast.computes[node])[0]


# 7, 8: the same share again


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("released", [False, True])
def test_attack_7_the_same_share_again_in_its_round(released: bool, restarted: bool) -> None:
    """Counted once, and answered by the same receipt: in the round, after the release, after a restart in either."""
    cast = exact_cast(4, 3)
    network = cast.network()
    if not released:
        network.tamper = losing(Share, sender=cast.clients[3])
    begin(cast, network)
    node = cast.computes[0]
    if restarted:
        network.restart(node)
    share, before = the_share(network, cast), snapshot(network.actors[node])
    (again,) = network.actors[node].handle(Received(share.sender, share.payload), network.now_ms)
    assert again.payload == sent(network, Receipt, sender=node, to=share.sender)[0].payload
    assert snapshot(network.actors[node]) == before
    network.tamper = lambda one: [one]
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum(range(4))]


def test_attack_7_the_same_share_in_another_round_and_after_clean_up() -> None:
    """The round id names the session that keys it; a forgotten round is unknown, and cannot be opened again."""
    cast = exact_cast(4, 3)
    network, _ = begin(cast)
    share, first = the_share(network, cast), sent(network, Roster, to=cast.computes[0])[0]
    network.tamper = losing(Share)
    begin(cast, network)
    second = body_of(sent(network, Start)[-1].payload).round_id
    moved = msgspec.structs.replace(decode_frame(share.payload), round_id=second)
    refused(network, cast.computes[0], share.sender, msgspec.msgpack.encode(moved), "ciphertext")
    until_the_end(network, 24 * 9)
    assert network.actors[cast.computes[0]].phase(first.round_id) == "new"
    refused(network, cast.computes[0], share.sender, share.payload, "unknown-round")
    refused(network, cast.computes[0], cast.trainer_identity.id, first.payload, "late")


def test_attack_8_two_copies_at_the_same_time_and_a_third_after_both() -> None:
    cast = exact_cast(4, 3)
    network = cast.network()
    network.tamper = lambda one: [one, one, one]
    begin(cast, network)
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum(range(4))]
    assert len(network.reported(Released)) == 3


# 9: redelivery


@pytest.mark.parametrize("node_restarts", [False, True])
def test_attack_9_everything_is_delivered_again(node_restarts: bool) -> None:
    """QoS 1 redelivery and stale messages: all that was ever sent comes again, in another order; nothing happens."""
    cast = exact_cast(4, 3)
    network, _ = begin(cast)
    if node_restarts:
        for actor in (*cast.computes, *cast.clients, cast.trainer_identity.id):
            network.restart(actor)
        network.deliver()
    released, charges = len(network.reported(Released)), [network.actors[c].ledger.charges for c in cast.clients]
    history = [one for one in network.sent if not one.to.channel.is_broadcast]
    for one in reversed(history):
        network.handle(one.to.id, Received(one.sender, one.payload))
    network.deliver()
    assert len(network.reported(Released)) == released
    assert [network.actors[c].ledger.charges for c in cast.clients] == charges
    assert {result.value.tobytes() for result in results(network)} == {results(network)[0].value.tobytes()}


# 10: the result asked for twice


def test_attack_10_the_trainer_asks_twice_for_the_result() -> None:
    """The stored answer, byte for byte, with the same noise, also after a restart and under a repeated roster."""
    cast = Cast(4, 3)
    network, _ = begin(cast)
    node, trainer = cast.computes[0], cast.trainer_identity
    roster = sent(network, Roster, to=node)[0].payload
    released = [
        one.payload
        for one in sent(network, Sealed, sender=node)
        if sealed_kind(network, cast, one.payload) is PartialSum
    ]
    session = session_hash(body_of(roster).terms)
    query = forged(cast, trainer, Query(PROTOCOL_VERSION, body_of(roster).round_id, session))
    for payload in (query, query, roster):
        (answer,) = network.actors[node].handle(Received(trainer.id, payload), network.now_ms)
        assert [answer.payload] == released
    network.restart(node)
    (answer,) = network.actors[node].handle(Received(trainer.id, query), network.now_ms)
    assert [answer.payload] == released


def test_attack_10_a_query_of_another_than_the_trainer_is_refused() -> None:
    cast = Cast(4, 3)
    network, _ = begin(cast)
    body = Query(PROTOCOL_VERSION, body_of(sent(network, Start)[0].payload).round_id, session_of(network))
    trainer, stranger = cast.trainer_identity, cast.client_identities[0]
    refused(network, cast.computes[0], stranger.id, forged(cast, stranger, body), "sender")
    refused(network, cast.computes[0], trainer.id, forged(cast, stranger, body), "signature")
    other = msgspec.structs.replace(body, session_hash=bytes(32))
    refused(network, cast.computes[0], trainer.id, forged(cast, trainer, other), "sender")


def session_of(network: Network) -> bytes:
    return session_hash(body_of(sent(network, Start)[0].payload).terms)


# 11, 40: loss


class LoseFirst:
    """Loses the first message of every kind on every path: each is lost once at each step."""

    def __init__(self, kind: Callable[[Envelope], Any]) -> None:
        self.kind, self.seen = kind, Counter()

    def __call__(self, one: Envelope) -> list[Envelope]:
        path = (one.sender, one.to, self.kind(one))
        self.seen[path] += 1
        return [] if self.seen[path] == 1 else [one]


def test_attack_11_every_message_is_lost_once() -> None:
    """Resending brings the round to its end all the same, with the exact sum; nothing is counted twice."""
    cast = exact_cast(4, 3)
    network = cast.network()
    network.deliver()
    network.tamper = LoseFirst(lambda one: sealed_kind(network, cast, one.payload) or type(body_of(one.payload)))
    begin(cast, network, join_window_ms=600_000, share_window_ms=600_000, commit_window_ms=600_000)
    network.restart(cast.trainer_identity.id)  # a lost broadcast comes again when the trainer starts again
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum(range(4))]
    assert len(network.reported(Released)) == 3


@pytest.mark.parametrize("kind", [Announcement, Roster, Start, Share, Receipt, Sealed, Query])
def test_attack_11_every_message_of_a_kind_is_always_lost(kind: type[Body]) -> None:
    """The round ends with a reason or a result, and the nodes have released once or aborted: never both."""
    cast = exact_cast(4, 3)
    network = cast.network()
    network.tamper = losing(kind)
    begin(cast, network)
    until_the_end(network)
    if kind in (Receipt, Query):
        assert the_sum(network).tolist() == [exact_sum(range(4))]
    else:
        assert len(failures(network)) == 1
        assert failures(network)[0].reason
    assert len(network.reported(Released)) in (0, 3)


def test_attack_40_an_acknowledged_message_that_was_lost_is_resent_until_its_receipt() -> None:
    """The broker took it, and lost it: the stored bytes are sent again with back-off, and no more after the receipt."""
    cast = exact_cast(4, 3)
    network = cast.network()
    lost: Counter[bytes] = Counter()

    def full_queue(one: Envelope) -> list[Envelope]:
        if isinstance(body_of(one.payload), Share) and one.sender == cast.clients[0] and lost[one.to.id] < 3:
            lost[one.to.id] += 1
            return []
        return [one]

    network.tamper = full_queue
    begin(cast, network, share_window_ms=600_000)
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum(range(4))]
    for node in cast.computes:
        copies = [one.payload for one in sent(network, Share, sender=cast.clients[0], to=node)]
        assert len(copies) == 4
        assert len(set(copies)) == 1
    assert all(len(sent(network, Share, sender=client)) == 3 for client in cast.clients[1:])


def test_attack_40_also_across_a_restart_of_the_client() -> None:
    cast = exact_cast(4, 3)
    network = cast.network()
    network.tamper = losing(Share, sender=cast.clients[0])
    begin(cast, network)
    first = {one.payload for one in sent(network, Share, sender=cast.clients[0])}
    network.tamper = lambda one: [one]
    network.restart(cast.clients[0])
    until_the_end(network)
    assert {one.payload for one in sent(network, Share, sender=cast.clients[0])} == first
    assert the_sum(network).tolist() == [exact_sum(range(4))]
    assert len(network.actors[cast.clients[0]].ledger.charges) == 1


def test_attack_40_nothing_is_resent_after_the_end_of_the_round() -> None:
    cast = exact_cast(4, 3)
    network = cast.network()
    network.tamper = losing(Share, Receipt)
    _, request = begin(cast, network)
    until_the_end(network)
    count = len(network.sent)
    client = network.actors[cast.clients[0]]
    assert client.handle(TimerFired(TimerName("resend", request.round_id)), network.now_ms) == []
    until_the_end(network, 2)
    assert not [one for one in network.sent[count:] if isinstance(body_of(one.payload), Share)]


# 41: another body under a known id


def test_attack_41_a_second_announcement_under_a_known_round_id() -> None:
    cast = Cast(4, 3)
    network, _ = begin(cast)
    first = sent(network, Announcement)[0].payload
    trainer = cast.trainer_identity
    for change in ({"epsilon": 0.5}, {"tolerated": 0}, {"reply_key": bytes(31) + b"\x09"}):
        refused(network, cast.clients[0], trainer.id, resigned(cast, trainer, first, **change), "known-round")


def test_attack_41_a_second_start_under_a_known_round_id() -> None:
    cast = Cast(4, 3)
    network, _ = begin(cast)
    trainer = cast.trainer_identity
    first = sent(network, Start, to=cast.clients[0])[0].payload
    terms = body_of(first).terms
    for change in ({"clients": 5}, {"roster_hash": bytes(32)}, {"share_by_ms": terms.share_by_ms + 1}):
        other = resigned(cast, trainer, first, terms=msgspec.structs.replace(terms, **change))
        refused(network, cast.clients[0], trainer.id, other, "known-round")
    assert len(network.actors[cast.clients[0]].ledger.charges) == 1


def test_attack_41_a_second_roster_under_a_known_round_id() -> None:
    cast = Cast(4, 3)
    network, _ = begin(cast)
    trainer, first = cast.trainer_identity, sent(network, Roster, to=cast.computes[0])[0].payload
    terms = body_of(first).terms
    other = resigned(cast, trainer, first, terms=msgspec.structs.replace(terms, commit_by_ms=terms.commit_by_ms - 1))
    refused(network, cast.computes[0], trainer.id, other, "known-round")
    network.restart(cast.computes[0])
    refused(network, cast.computes[0], trainer.id, other, "known-round")


def test_attack_41_a_round_that_is_over_is_not_announced_again() -> None:
    """Even where the clock has gone back to before its deadline: the ledger remembers the round."""
    cast = Cast(4, 3)
    network, _ = begin(cast)
    started_ms, first = network.now_ms, sent(network, Announcement)[0].payload
    until_the_end(network)
    assert network.actors[cast.clients[0]].phase(body_of(first).round_id) == "new"
    network.now_ms = started_ms
    refused(network, cast.clients[0], cast.trainer_identity.id, first, "replay")


def test_no_round_opens_after_its_deadline() -> None:
    cast = Cast(4, 3)
    network = cast.network()
    network.tamper = losing(Roster, Announcement)
    begin(cast, network)
    announcement = sent(network, Announcement)[0]
    network.now_ms += 60_000
    refused(network, cast.clients[0], announcement.sender, announcement.payload, "late")


def test_a_roster_that_comes_late_is_refused() -> None:
    cast = Cast(4, 3)
    network = cast.network()
    network.tamper = losing(Roster)
    begin(cast, network)
    roster = sent(network, Roster, to=cast.computes[0])[0]
    network.now_ms = body_of(roster.payload).terms.share_by_ms
    refused(network, cast.computes[0], roster.sender, roster.payload, "late")


def test_a_second_result_is_the_same_fact_and_no_second_release() -> None:
    cast = exact_cast(4, 3)
    network, _ = begin(cast)
    partial = next(
        one
        for one in sent(network, Sealed, to=cast.trainer_identity.id)
        if sealed_kind(network, cast, one.payload) is PartialSum
    )
    trainer = network.actors[cast.trainer_identity.id]
    assert sends(trainer.handle(Received(partial.sender, partial.payload), network.now_ms)) == []
    assert len(network.reported(RoundCompleted)) == 1
