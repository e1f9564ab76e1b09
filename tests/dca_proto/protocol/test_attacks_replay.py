"""Attacks by repetition: replays, duplicates, redelivery, loss, and second bodies under known ids."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from round_helpers import (
    announced,
    begin,
    body_of,
    exact_actors,
    exact_sum,
    failures,
    forged,
    hand_over,
    ignored,
    kind_of,
    losing,
    passing,
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

from dca_proto.protocol.events import Received, TimerFired
from dca_proto.protocol.events import Timer as TimerName
from dca_proto.protocol.facts import ListFrozen, NodeAborted, Released, RoundCompleted
from dca_proto.protocol.wire.codec import decode_frame, encode
from dca_proto.protocol.wire.messages import (
    Abort,
    Announcement,
    Answer,
    Close,
    Contribution,
    FrozenList,
    Hello,
    PartialSum,
    Progress,
    Query,
    Receipt,
    Sealed,
)
from dca_proto.testing import Envelope, Network, TestFederation


def the_contribution(network: Network, actors: TestFederation, client: int = 0) -> Envelope:
    return sent(network, Contribution, sender=actors.clients[client])[0]


# 7, 8: the same contribution again


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("released", [False, True])
def test_attack_7_the_same_contribution_again_in_its_round(released: bool, restarted: bool) -> None:
    """Counted once, and answered by the same receipt: in the round, after the release, after a restart in either."""
    actors = exact_actors(4, 3)
    network = actors.network()
    if not released:
        network.tamper = losing(Close)
    begin(actors, network)
    one = the_contribution(network, actors)
    node = one.to.id
    if restarted:
        network.restart(node)
    before = snapshot(network.actors[node])
    (again,) = network.actors[node].handle(Received(one.sender, one.payload), network.now_ms)
    assert again.payload == sent(network, Receipt, sender=node, to=one.sender)[0].payload
    assert snapshot(network.actors[node]) == before
    network.tamper = passing
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum(range(4))]


def test_attack_7_the_same_contribution_in_another_round_and_after_clean_up() -> None:
    """ah keys it; a forgotten round is unknown, and cannot be opened again."""
    actors = exact_actors(4, 3)
    network, _ = begin(actors)
    one, first = the_contribution(network, actors), sent(network, Announcement)[-1]
    network.tamper = losing(Contribution)
    for _ in range(4):
        begin(actors, network)
    for second in {each.round_id for each in sent(network, Announcement)} - {one.round_id}:
        moved = encode(msgspec.structs.replace(decode_frame(one.payload), round_id=second))
        for node in actors.computes:
            network.handle(node, Received(one.sender, moved))
            assert network.actors[node]._rounds[second].kept == {}
    until_the_end(network, 24 * 9)
    assert network.actors[one.to.id].phase(one.round_id) == "new"
    stored = dict(network.stores[one.to.id])
    assert network.handle(one.to.id, Received(one.sender, one.payload)) == [], "kept for a moment, as if it were early"
    refused(network, one.to.id, actors.trainer_identity.id, first.payload, "epoch")
    assert network.stores[one.to.id] == stored


def test_attack_8_two_copies_at_the_same_time_and_a_third_after_both() -> None:
    actors = exact_actors(4, 3)
    network = actors.network()
    network.tamper = lambda one: [one, one, one]
    begin(actors, network)
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum(range(4))]
    assert len(network.reported(Released)) == 3


# 9: redelivery


@pytest.mark.parametrize("all_restart", [False, True])
def test_attack_9_everything_is_delivered_again(all_restart: bool) -> None:
    """QoS 1 redelivery and stale messages: all that was ever sent comes again, in another order; nothing happens."""
    actors = exact_actors(4, 3)
    network, _ = begin(actors)
    if all_restart:
        for actor in (*actors.computes, *actors.clients, actors.trainer_identity.id):
            network.restart(actor)
        network.deliver()
    released, charges = len(network.reported(Released)), [network.actors[c].ledger.charges for c in actors.clients]
    for one in reversed(list(network.sent)):
        for receiver in network._receivers(one.to):
            network.handle(receiver, Received(one.sender, one.payload))
    network.deliver()
    assert len(network.reported(Released)) == released
    assert [network.actors[c].ledger.charges for c in actors.clients] == charges
    assert {result.value.tobytes() for result in results(network)} == {results(network)[0].value.tobytes()}


# 10: the result requested twice


def test_attack_10_the_trainer_asks_twice_for_the_result() -> None:
    """The stored answer, byte for byte, with the same noise, also after a restart and under a repeated announcement."""
    actors = TestFederation(4, 3)
    network, _ = begin(actors)
    node, trainer = actors.computes[0], actors.trainer_identity
    opened = announced(network, actors)
    released = [one.payload for one in sent(network, Sealed, sender=node)]
    assert len(set(released)) == 1
    query = forged(actors, trainer, Query(opened.body.round_id, opened.hash))
    for payload in (query, query, encode(opened.frame)):
        network.now_ms += actors.timing.again_ms
        (answer,) = network.actors[node].handle(Received(trainer.id, payload), network.now_ms)
        assert answer.payload == released[0]
    network.restart(node)
    (answer,) = network.actors[node].handle(Received(trainer.id, query), network.now_ms)
    assert answer.payload == released[0]


def test_attack_10_a_query_of_another_than_the_trainer_or_a_peer_is_refused() -> None:
    actors = TestFederation(4, 3)
    network, _ = begin(actors)
    opened = announced(network, actors)
    body = Query(opened.body.round_id, opened.hash)
    node, trainer, stranger = actors.computes[0], actors.trainer_identity, actors.client_identities[0]
    refused(network, node, stranger.id, forged(actors, stranger, body), "unknown-compute")
    refused(network, node, trainer.id, forged(actors, stranger, body), "signature")
    refused(network, node, actors.computes[1], forged(actors, stranger, body), "signature")
    other = msgspec.structs.replace(body, announcement_hash=bytes(32))
    refused(network, node, trainer.id, forged(actors, trainer, other), "sender")
    refused(network, node, actors.computes[1], forged(actors, actors.compute_identities[1], other), "announcement")


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
    actors = exact_actors(4, 3)
    network = actors.network()
    network.deliver()
    network.tamper = LoseFirst(lambda one: sealed_kind(network, actors, one.payload) or kind_of(one))
    begin(actors, network, collect_s=600, commit_s=600)
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum(range(4))]
    assert len(network.reported(Released)) == 3


@pytest.mark.parametrize(
    "kind", [Announcement, Contribution, Receipt, Progress, Close, FrozenList, Answer, Sealed, Query, Abort, Hello]
)
def test_attack_11_every_message_of_a_kind_is_always_lost(kind: type) -> None:
    """The round ends with a reason or a result, and the nodes have released once or aborted: never both."""
    actors = exact_actors(4, 3)
    network = Network()
    network.tamper = losing(kind)
    actors.network(network)
    begin(actors, network)
    until_the_end(network)
    if kind in (Receipt, Progress, Close, Query, Abort):
        assert the_sum(network).tolist() == [exact_sum(range(4))]
    else:
        assert len(failures(network)) == 1
        assert failures(network)[0].reason
    assert len(network.reported(Released)) in (0, 3)


def test_attack_40_an_acknowledged_message_that_was_lost_is_resent_until_its_receipt() -> None:
    """The broker took it, and lost it: the stored bytes are sent again with back-off, and no more after the receipt."""
    actors = exact_actors(4, 3)
    network = actors.network()
    lost: list[Envelope] = []

    def full_queue(one: Envelope) -> list[Envelope]:
        if kind_of(one) is Contribution and one.sender == actors.clients[0] and len(lost) < 3:
            lost.append(one)
            return []
        return [one]

    network.tamper = full_queue
    begin(actors, network, tolerate=0, collect_s=600)
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum(range(4))]
    copies = [one.payload for one in sent(network, Contribution, sender=actors.clients[0])]
    assert len(copies) == 4
    assert len(set(copies)) == 1
    assert all(len(sent(network, Contribution, sender=client)) == 1 for client in actors.clients[1:])


def test_attack_40_also_across_a_restart_of_the_client() -> None:
    actors = exact_actors(4, 3)
    network = actors.network()
    network.tamper = losing(Contribution, sender=actors.clients[0])
    begin(actors, network, tolerate=0)
    first = {one.payload for one in sent(network, Contribution, sender=actors.clients[0])}
    network.tamper = passing
    network.restart(actors.clients[0])
    until_the_end(network)
    assert {one.payload for one in sent(network, Contribution, sender=actors.clients[0])} == first
    assert the_sum(network).tolist() == [exact_sum(range(4))]
    assert len(network.actors[actors.clients[0]].ledger.charges) == 1


def test_attack_40_nothing_is_resent_after_the_end_of_the_round() -> None:
    actors = exact_actors(4, 3)
    network = actors.network()
    network.tamper = losing(Contribution, Receipt)
    _, request = begin(actors, network)
    until_the_end(network)
    count = len(network.sent)
    client = network.actors[actors.clients[0]]
    assert client.handle(TimerFired(TimerName("resend", request.round_id)), network.now_ms) == []
    until_the_end(network, 2)
    assert not [one for one in network.sent[count:] if kind_of(one) is Contribution]


# 41: another body under a known id


def test_attack_41_a_second_announcement_under_a_known_round_id() -> None:
    """At clients and nodes, in mid-round, after it, and after a restart."""
    actors = TestFederation(4, 3)
    network, _ = begin(actors)
    first = sent(network, Announcement)[-1].payload
    trainer = actors.trainer_identity
    for restarted in (False, True):
        for actor in (actors.clients[0], actors.computes[0]):
            if restarted:
                network.restart(actor)
            for change in ({"epsilon": 0.5, "mu": 0.01}, {"rows_max": 2}, {"reply_key": bytes(31) + b"\x09"}):
                refused(network, actor, trainer.id, resigned(actors, trainer, first, **change), "known-round")
    assert len(network.actors[actors.clients[0]].ledger.charges) == 1


def test_attack_41_a_round_that_is_over_is_not_announced_again() -> None:
    """Even where the clock has gone back to before its deadline: the ledger and the nodes remember the round."""
    actors = TestFederation(4, 3)
    network, _ = begin(actors)
    started_ms, first = network.now_ms, sent(network, Announcement)[-1].payload
    until_the_end(network)
    assert network.actors[actors.clients[0]].phase(body_of(first).round_id) == "new"
    network.now_ms = started_ms
    refused(network, actors.clients[0], actors.trainer_identity.id, first, "replay")
    count = len(network.reported(Released))
    network.handle(actors.computes[0], Received(actors.trainer_identity.id, first))
    network.deliver()
    assert len(network.reported(Released)) == count


def test_no_round_opens_after_its_deadline() -> None:
    """A client's is `close_by`, a node's is `commit_by`; between the two a node freezes an empty list.

    After it, the node aborts the round, so that the trainer learns whose clock differs by how much.
    """
    actors = TestFederation(4, 3)
    network = actors.network()
    network.tamper = losing(Announcement)
    begin(actors, network)
    announcement = sent(network, Announcement)[-1]
    opened = announced(network, actors)
    network.now_ms = opened.body.close_by_ms
    refused(network, actors.clients[0], announcement.sender, announcement.payload, "late")
    network.handle(actors.computes[0], Received(announcement.sender, announcement.payload))
    assert network.actors[actors.computes[0]].phase(opened.body.round_id) == "frozen"
    assert network.reported(ListFrozen) == [ListFrozen(opened.body.round_id, 0)]
    network.now_ms = opened.body.commit_by_ms
    network.now_ms += 2 * 3_600_000
    network.handle(actors.computes[1], Received(announcement.sender, announcement.payload))
    assert network.actors[actors.computes[1]].phase(opened.body.round_id) == "aborted"
    (aborted,) = [fact for fact in network.reported(NodeAborted) if fact.reason == "late"]
    assert re.fullmatch(
        r"found a round's announcement at 2023-\S+ \S+ UTC by this clock; expected before 2023-\S+ \S+ UTC, "
        r"2 hours earlier; "
        r"this clock or that of trainer is wrong, or the message was delayed",
        aborted.detail,
    )


# 44: Close


def test_attack_44_close_early_repeated_forged_of_another_round_and_late() -> None:
    actors = exact_actors(5, 3)
    network = actors.network()
    network.tamper = losing(Close, Contribution)
    begin(actors, network, tolerate=3)
    opened, trainer = announced(network, actors), actors.trainer_identity
    body = Close(opened.body.round_id, opened.hash)
    node = actors.computes[0]
    for signer in (actors.compute_identities[1], actors.client_identities[0]):
        refused(network, node, trainer.id, forged(actors, signer, body), "signature")
        refused(network, node, signer.id, forged(actors, signer, body), "sender")
    other = msgspec.structs.replace(body, announcement_hash=bytes(32))
    refused(network, node, trainer.id, forged(actors, trainer, other), "sender")
    unknown = msgspec.structs.replace(body, round_id=bytes(16))
    refused(network, node, trainer.id, forged(actors, trainer, unknown), "unknown-round")
    network.tamper = lambda one: [one] if kind_of(one) is not Contribution or one.sender in actors.clients[:2] else []
    for client in actors.clients[:2]:
        hand_over(network, sent(network, Contribution, sender=client)[0])
    close = forged(actors, trainer, body)
    for each in actors.computes:
        network.handle(each, Received(trainer.id, close))
        ignored(network, each, trainer.id, close)
    network.tamper = passing
    network.advance(network.now_ms + 10_000)
    assert the_sum(network).tolist() == [exact_sum((0, 1))], "early: it costs the stragglers their charge"
    assert len(network.reported(Released)) == 3
    for each in actors.computes:
        ignored(network, each, trainer.id, close)
    until_the_end(network)
    assert network.actors[actors.clients[4]].ledger.spent().mu > 0


def test_attack_44_close_to_one_node_alone_freezes_all() -> None:
    """A peer's list freezes a node, too: there is one list of each, and one set."""
    actors = exact_actors(5, 3)
    network = actors.network()
    network.tamper = lambda one: [] if kind_of(one) is Close and one.to.id != actors.computes[0] else [one]
    begin(actors, network)
    network.advance(network.now_ms + 100)
    assert the_sum(network).tolist() == [exact_sum(range(5))]
    assert len(network.reported(ListFrozen)) == 3


def test_a_second_result_is_the_same_fact_and_no_second_release() -> None:
    actors = exact_actors(4, 3)
    network, _ = begin(actors)
    partial = next(one for one in sent(network, Sealed) if sealed_kind(network, actors, one.payload) is PartialSum)
    trainer = network.actors[actors.trainer_identity.id]
    assert sends(trainer.handle(Received(partial.sender, partial.payload), network.now_ms)) == []
    assert len(network.reported(RoundCompleted)) == 1
