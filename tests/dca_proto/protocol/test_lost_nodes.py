"""Compute nodes that are lost for a time, or for good (DESIGN §4.7, §4.8)."""

from __future__ import annotations

import pytest
from changes import following, hand
from round_helpers import (
    announced,
    begin,
    body_of,
    exact_actors,
    exact_sum,
    failures,
    forged,
    kind_of,
    losing,
    passing,
    refused,
    results,
    sent,
    the_sum,
)

from dca_proto.protocol.events import Received
from dca_proto.protocol.facts import NodeAborted, Released
from dca_proto.protocol.wire.codec import encode
from dca_proto.protocol.wire.messages import (
    Abort,
    Announcement,
    Answer,
    Cancel,
    FrozenList,
    PartialSum,
    Progress,
    Query,
    Sealed,
)
from dca_proto.runtime.live import abort_of
from dca_proto.testing import Envelope

HOUR_MS, HALF_MS = 3_600_000, 1_800_000


def losing_answers_to(receivers: set[bytes], senders: set[bytes]):
    """Lose the answers from these nodes to those."""
    lose = [losing(Answer, to=to, sender=sender) for to in receivers for sender in senders]

    def tamper(one: Envelope) -> list[Envelope]:
        return [one] if all(each(one) for each in lose) else []

    return tamper


def test_an_answer_that_reached_one_node_reaches_the_others() -> None:
    """Its author is gone. Before, the third node waited for it until `commit_by`, and aborted."""
    actors = exact_actors(4, 3)
    network = actors.network()
    lost, heard, late = actors.computes
    network.tamper = losing_answers_to({late}, {lost})
    _, request = begin(actors, network)
    assert network.actors[heard].phase(request.round_id) == "released"
    assert network.actors[late].phase(request.round_id) == "answered"
    network.crash(lost)
    network.tamper = passing
    network.restart(heard)  # its copy is durable
    network.advance(network.now_ms + 10_000)
    assert network.actors[late].phase(request.round_id) == "released"
    network.restart(lost)
    network.advance(network.now_ms + 60_000)
    assert the_sum(network) == exact_sum(range(4))


def test_a_node_passes_on_answers_before_its_release_and_only_to_nodes_of_the_round() -> None:
    actors = exact_actors(4, 4)
    network = actors.network()
    one, other, gone, silent = actors.computes
    network.tamper = losing_answers_to({other}, {gone})
    lose_silent = losing(Answer, sender=silent)
    first = network.tamper
    network.tamper = lambda envelope: first(envelope) if lose_silent(envelope) else []
    _, request = begin(actors, network)
    assert {network.actors[node].phase(request.round_id) for node in (one, other)} == {"answered"}
    network.crash(gone)
    network.crash(silent)
    network.tamper = passing
    network.restart(one)  # it has stored the answer
    network.advance(network.now_ms + 10_000)
    assert set(network.actors[other]._rounds[request.round_id].answers) == {one, other, gone}
    passed_on = [sent_.to.id for sent_ in sent(network, Answer, sender=one) if sent_.to.id]
    assert set(passed_on) <= set(actors.computes)


@pytest.mark.parametrize("away_ms", [5_000, 10 * 60_000, HALF_MS - 60_000])
def test_a_node_that_has_answered_releases_after_commit_by(away_ms: int) -> None:
    """Before, it aborted when it was back, and the trainer had given up a minute after `commit_by`."""
    actors = exact_actors(4, 3)
    network = actors.network()
    lost = actors.computes[2]
    network.tamper = losing(Answer, to=lost)
    _, request = begin(actors, network)
    assert network.actors[lost].phase(request.round_id) == "answered"
    network.crash(lost)
    network.tamper = passing
    network.advance(announced(network, actors).body.commit_by_ms + away_ms)
    assert network.actors[actors.trainer_identity.id].phase(request.round_id) == "committing"
    assert failures(network) == []
    network.restart(lost)
    network.advance(network.now_ms + 30_000)
    assert the_sum(network) == exact_sum(range(4))
    assert network.reported(NodeAborted) == []


def test_an_answered_node_aborts_half_an_hour_after_commit_by_and_the_trainer_gives_up() -> None:
    actors = exact_actors(4, 3)
    network = actors.network()
    lost = actors.computes[2]
    network.tamper = losing(Answer, to=lost)
    _, request = begin(actors, network)
    network.crash(lost)
    end_ms = announced(network, actors).body.commit_by_ms + HOUR_MS
    network.advance(end_ms - 1)
    assert failures(network) == []
    network.advance(end_ms + 60_000)
    (failure,) = failures(network)
    assert "compute-2" in failure.reason or "compute-3" in failure.reason
    network.tamper = passing
    network.restart(lost)
    network.advance(network.now_ms + 60_000)
    (abort,) = network.reported(NodeAborted)
    assert (abort.compute, abort.reason) == (lost, "peer-silent")
    assert " until half an hour after the end of the round, " in abort.detail
    assert results(network) == []
    assert all(ledger.is_charged(request.round_id) for ledger in ledgers(network, actors)), "two nodes have released"


def waiting_without_a_sum():
    """A round whose three nodes have answered; the third one's answer has reached nobody, and it is down."""
    actors = exact_actors(4, 3)
    network = actors.network()
    lost = actors.computes[2]
    one_way, other_way = losing(Answer, sender=lost), losing(Answer, to=lost)
    network.tamper = lambda envelope: one_way(envelope) if other_way(envelope) else []
    _, request = begin(actors, network)
    network.crash(lost)
    network.tamper = passing
    return actors, network, request, lost


def test_nodes_that_wait_for_a_lost_one_abort_in_time_for_the_clients() -> None:
    """Clients remember the round long enough for the aborts that come half an hour after `commit_by`.

    The trainer is down, too: it would cancel the round.
    """
    actors, network, request, lost = waiting_without_a_sum()
    network.crash(actors.trainer_identity.id)
    end_ms = announced(network, actors).body.commit_by_ms + HALF_MS
    network.advance(end_ms + 30_000)
    assert {fact.compute for fact in network.reported(NodeAborted)} == {*actors.computes[:2]}
    assert network.reported(Released) == []
    network.restart(lost)
    network.advance(network.now_ms + 60_000)
    assert len({one.sender for one in sent(network, Abort)}) == 3
    assert not any(network.actors[client].ledger.is_charged(request.round_id) for client in actors.clients)


def test_a_trainer_that_gives_up_cancels_the_round_and_all_charges_come_back() -> None:
    """Otherwise all nodes would release once the lost one is back, after the failure: charged, and without a result."""
    actors, network, request, lost = waiting_without_a_sum()
    network.advance(announced(network, actors).body.commit_by_ms + 20_000)
    (failure,) = failures(network)
    assert failure.reason.startswith("compute-2 has not answered for 2 minutes; ")
    assert "until compute-2 has confirmed that it released nothing, the account and the clients keep" in failure.reason
    assert {fact.reason for fact in network.reported(NodeAborted)} == {"cancelled"}
    network.restart(lost)
    network.advance(network.now_ms + 120_000)
    assert network.reported(Released) == []
    assert not any(ledger.is_charged(request.round_id) for ledger in ledgers(network, actors))
    trainer = network.actors[actors.trainer_identity.id]
    network.advance(network.now_ms + HOUR_MS)
    assert not trainer.ledger.is_charged(request.round_id)


@pytest.mark.parametrize("is_reported", [False, True])
def test_a_charge_that_only_a_removed_node_could_return_stays_and_nobody_is_told_to_ask(is_reported: bool) -> None:
    """p = M - 1. Before, the failure asked for `dca trainer FILE --resume`, which could not bring the charge back."""
    actors, network, request, lost = waiting_without_a_sum()
    if is_reported:
        network.advance(announced(network, actors).body.commit_by_ms + 20_000)
        assert "`dca trainer FILE --resume` asks again" in failures(network)[0].reason
    newer = following(actors, computes=actors.federation.computes[:2], revoked=(lost,))
    for member in (*actors.computes[:2], actors.trainer_identity.id, *actors.clients):
        hand(network, member, newer)
    network.advance(network.now_ms + 20_000)
    if is_reported:
        network.restart(actors.trainer_identity.id)
        network.advance(network.now_ms + 20_000)
    failure = failures(network)[-1]
    assert failure.reason.endswith(
        f"; {newer.title} has 2 of the round's Compute nodes, and aborts of 3 return the charge, so the account "
        "keeps it for good"
    )
    assert abort_of(failure).remedy == "", "a job asks again, and goes on with the other nodes"
    assert len(failures(network)) == 1 + is_reported
    assert all(ledger.is_charged(request.round_id) for ledger in ledgers(network, actors))
    begin(actors, network)
    network.advance(network.now_ms + 5_000)
    assert the_sum(network) == exact_sum(range(4))


def test_a_node_that_was_cut_off_hears_of_the_cancelled_round_before_it_releases() -> None:
    """It did not start again. Before, the old answers in the broker's queue came first, and it released."""
    actors = exact_actors(4, 3)
    network = actors.network()
    lost = actors.computes[2]
    held: list[Envelope] = []

    def cut_off(one: Envelope) -> list[Envelope]:
        if one.sender == lost:
            return [] if kind_of(one) in (Answer, Query) else [one]
        if kind_of(one) is Answer and one.to.id == lost:
            network.down.add(lost)  # it hears nothing more; its process goes on
        if lost in network.down and (one.to.id == lost or kind_of(one) is Abort):
            held.append(one)
        return [one]

    network.tamper = cut_off
    _, request = begin(actors, network)
    assert network.actors[lost].phase(request.round_id) == "answered"
    network.advance(announced(network, actors).body.commit_by_ms + request.commit_ms + 20_000)
    assert len(failures(network)) == 1
    network.down.discard(lost)
    network.tamper = passing
    for one in sorted(held, key=lambda one: kind_of(one) is not Answer):
        network.handle(lost, Received(one.sender, one.payload))
    network.advance(network.now_ms + 60_000)
    assert network.reported(Released) == []
    assert not any(ledger.is_charged(request.round_id) for ledger in ledgers(network, actors))


def test_a_node_that_was_cut_off_after_its_answer_releases_when_it_is_back() -> None:
    actors = exact_actors(4, 3)
    network = actors.network()
    lost = actors.computes[2]
    network.tamper = losing(Answer, Query, to=lost)
    begin(actors, network)
    network.advance(announced(network, actors).body.commit_by_ms + 600_000)
    assert len(network.reported(Released)) == 2
    network.tamper = passing
    network.advance(network.now_ms + 120_000)
    assert the_sum(network) == exact_sum(range(4))


def test_a_node_that_has_not_heard_of_a_cancelled_round_aborts_it_if_it_holds_the_named_key() -> None:
    actors = exact_actors(4, 3)
    network = actors.network()
    network.tamper = losing(Announcement, to=actors.computes[2])
    _, request = begin(actors, network)
    opened = announced(network, actors)
    node, trainer = actors.computes[2], actors.trainer_identity
    cancel = forged(actors, trainer, Cancel(request.round_id, opened.hash, opened.frame))
    refused(network, node, actors.computes[0], cancel, "sender")
    other = Cancel(request.round_id, bytes(32), opened.frame)
    refused(network, node, trainer.id, forged(actors, trainer, other), "sender")
    refused(network, node, trainer.id, forged(actors, actors.compute_identities[0], body_of(cancel)), "signature")
    key, network.actors[node]._keys._keys = network.actors[node]._keys._keys, {}
    refused(network, node, trainer.id, cancel, "epoch")
    network.actors[node]._keys._keys = key
    network.handle(node, Received(trainer.id, cancel))
    assert network.actors[node].phase(request.round_id) == "aborted"
    network.handle(node, Received(trainer.id, encode(opened.frame)))
    assert network.actors[node].phase(request.round_id) == "aborted"


def test_a_cancel_after_the_release_changes_nothing() -> None:
    actors = exact_actors(4, 3)
    network, request = begin(actors)
    opened, node = announced(network, actors), actors.computes[0]
    network.advance(network.now_ms + 5_000)
    cancel = forged(actors, actors.trainer_identity, Cancel(request.round_id, opened.hash, opened.frame))
    (again,) = network.handle(node, Received(actors.trainer_identity.id, cancel))
    assert network.actors[node].phase(request.round_id) == "released"
    assert isinstance(body_of(again.payload), Sealed)


def test_partial_sums_that_arrive_after_the_failure_are_the_result() -> None:
    actors = exact_actors(4, 3)
    network = actors.network()
    network.tamper = losing(Sealed, to=actors.trainer_identity.id)
    _, request = begin(actors, network)
    trainer = actors.trainer_identity.id
    network.advance(announced(network, actors).body.commit_by_ms + request.commit_ms + 30_000)
    assert len(failures(network)) == 1
    network.tamper = passing
    network.advance(network.now_ms + 600_000)
    assert the_sum(network) == exact_sum(range(4))
    assert network.actors[trainer].phase(request.round_id) == "done"
    network.restart(trainer)
    network.advance(network.now_ms + 1_000)
    assert network.actors[trainer].ledger.is_charged(request.round_id)


def test_the_kept_answers_leave_the_store_with_the_sum() -> None:
    actors = exact_actors(4, 3)
    network, _ = begin(actors)
    node = actors.computes[0]
    assert len([key for key in network.stores[node] if key[0] == "answer"]) == 2
    network.advance(announced(network, actors).body.commit_by_ms + HOUR_MS + 60_000)
    assert not [key for key in network.stores[node] if key[0] == "answer"]
    assert [one for one in sent(network, Query) if one.sender == node] == []
    assert PartialSum not in {type(one) for one in sent(network, Sealed)}


def ledgers(network, actors):
    return [network.actors[client].ledger for client in actors.clients]


@pytest.mark.parametrize("late", [0, 1, 2], ids=["none", "one", "both"])
def test_a_trainer_that_starts_again_names_only_the_lost_node_and_since_when(late: int) -> None:
    """It stops before `commit_by`; the others' aborts come first. Before, it named nobody, or a node that was up."""
    actors = exact_actors(4, 3)
    network = actors.network()
    lost, trainer = actors.computes[2], actors.trainer_identity.id
    network.tamper = losing(FrozenList, sender=lost)
    begin(actors, network)
    network.crash(lost)
    network.advance(network.now_ms + 30_000)
    found = network.actors[trainer].lost_nodes(network.now_ms)
    assert found is not None
    network.advance(announced(network, actors).body.commit_by_ms - 500)
    lose = [losing(Progress, sender=node) for node in actors.computes[:late]]
    network.tamper = lambda one: [one] if all(each(one) for each in lose) else []
    network.restart(trainer)
    again = network.actors[trainer]
    network.advance(network.now_ms + 400)
    assert again.lost_nodes(network.now_ms) is None, "it has asked, and waits eight seconds for the answer"
    network.advance(network.now_ms + 60_000)
    (failure,) = failures(network)
    assert failure.lost == ("compute-2",), "so a job asks its owner to start it, and does not pay for a retry"
    assert [(one.node, one.since_ms) for one in failure.quorum.lost] == [("compute-2", found[1][lost])]


def test_a_status_keeps_the_time_of_a_loss_when_the_trainer_starts_again() -> None:
    actors = exact_actors(4, 3)
    network = actors.network()
    lost, trainer = actors.computes[2], actors.trainer_identity.id
    network.deliver()
    network.crash(lost)
    begin(actors, network)
    network.advance(network.now_ms + 30_000)
    before = network.actors[trainer].lost_nodes(network.now_ms)
    network.restart(trainer)
    network.advance(network.now_ms + 12_000)
    after = network.actors[trainer].lost_nodes(network.now_ms)
    assert before is not None
    assert after is not None
    assert after[1] == before[1] == {lost: before[1][lost]}


def test_a_status_does_not_name_a_node_that_left_the_federation() -> None:
    """It owes a cancelled round its abort, and never will send it."""
    actors = exact_actors(4, 4, colluding=1)
    network = actors.network()
    lost, trainer = actors.computes[3], actors.trainer_identity.id
    network.deliver()
    network.crash(lost)
    begin(actors, network)
    network.advance(network.now_ms + 20_000)
    found = network.actors[trainer].lost_nodes(network.now_ms)
    assert found is not None
    assert [*found[1]] == [lost]
    newer = following(actors, computes=actors.federation.computes[:3])
    hand(network, trainer, newer)
    assert network.actors[trainer].lost_nodes(network.now_ms) is None


def test_where_nothing_hurries_a_trainer_seldom_asks_nodes_that_are_slow_to_answer() -> None:
    """Before, it asked every four seconds: on a link that passes a message a second, its own inbox filled up."""
    actors = exact_actors(4, 3)
    network = actors.network()
    begin(actors, network, clients=5, tolerate=1)
    network.tamper = lambda one: [] if one.sender in actors.computes else [one]
    network.advance(network.now_ms + 90_000)
    asked = len(sent(network, Query, sender=actors.trainer_identity.id))
    assert 3 * 2 <= asked <= 3 * 10, "of each node, with those that ask for a lost answer again"
