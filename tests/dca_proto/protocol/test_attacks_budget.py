"""Attacks on the budget: what is charged when, and what brings a charge back."""

from __future__ import annotations

import msgspec
import pytest
from failing_rounds import abort_of
from round_helpers import (
    EASY,
    THREE_ROUNDS,
    OneTight,
    announced,
    begin,
    body_of,
    clients_of_node,
    exact_actors,
    exact_sum,
    failures,
    forged,
    ignored,
    kind_of,
    losing,
    passing,
    refused,
    restore,
    results,
    sent,
    until_the_end,
)
from wiretap import keys_of

from dca_proto.crypto.masks import ask_tag
from dca_proto.privacy import accounting
from dca_proto.protocol.effects import Channel, Persist
from dca_proto.protocol.events import Received
from dca_proto.protocol.facts import ChargeReturned, Contributed, Declined, NodeAborted, Released
from dca_proto.protocol.params import Timing
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.wire.codec import decode_frame, encode
from dca_proto.protocol.wire.messages import (
    Abort,
    AbortWanted,
    Announcement,
    Answer,
    Close,
    Contribution,
    FrozenList,
    Receipt,
    Sealed,
)
from dca_proto.testing import Network, NoNoise, TestFederation

TIGHT = Policy(clients_min=1, honest_min=1, epsilon_per_round_max=1.0, epsilon_per_period_max=2.0, delta_max=1e-5)
HOUR_MS = 3600 * 1000


def aborted_actors() -> tuple[TestFederation, Network, bytes]:
    """A round whose clients hold open charges: receipts and lists are lost, so nothing is released or aborted."""
    actors = TestFederation(4, 3)
    network = actors.network()
    network.tamper = losing(Receipt, FrozenList)
    _, request = begin(actors, network)
    network.tamper = lambda one: ()
    return actors, network, request.round_id


def charged(actors: TestFederation, network: Network) -> list[bool]:
    """Which clients have a charge that stays."""
    return [network.actors[client].ledger.spent().mu > 0 for client in actors.clients]


def test_attack_15_a_budget_that_is_used_up_refuses_the_next_round() -> None:
    """Rounds at ε = 1 until the period's ε = 2 is reached in exact composition: then all decline, and report it."""
    actors = exact_actors(4, 3, policy=TIGHT)
    network = actors.network()
    for _ in range(8):
        begin(actors, network)
    mus = [charge.mu for charge in network.actors[actors.clients[0]].ledger.charges]
    allowed = accounting.mu_of(2.0, 1e-5)
    assert len(results(network)) == len(mus) < 8
    assert accounting.compose(mus) <= allowed < accounting.compose([*mus, mus[0]])
    assert {fact.reason for fact in network.reported(Declined)} == {"budget"}


def test_attack_15_rounds_announced_at_once_do_not_race_the_ledger() -> None:
    """A client that handles all of them before it stores anything still adds each to the ones before."""
    actors = TestFederation(4, 3, policy=msgspec.structs.replace(TIGHT, epsilon_per_period_max=1.0))
    network = actors.network()
    network.tamper = losing(Announcement, to=b"")  # the broadcast
    for _ in range(3):
        begin(actors, network)
    victim = network.actors[actors.clients[0]]
    broadcast = [one for one in sent(network, Announcement) if one.to.channel is Channel.ANNOUNCE]
    distinct = {one.payload: Received(one.sender, one.payload) for one in broadcast}.values()
    effects = [effect for received in distinct for effect in victim.handle(received, network.now_ms)]
    written = [effect.table for effect in effects if isinstance(effect, Persist)]
    assert (written.count("ledger"), written.count("client-round"), written.count("declined")) == (1, 3, 2)
    assert len(victim.ledger.charges) == 1


def test_attack_15_a_budget_that_is_used_up_in_the_middle_of_a_run() -> None:
    """One client has room for three of six rounds: from then on it declines, in numbers, and the others go on."""
    actors = OneTight(4, 3, mechanism=NoNoise(), policy=EASY)
    network = actors.network()
    for _ in range(6):
        begin(actors, network)
    victim = actors.clients[0]
    assert [result.contributors for result in results(network)] == [4, 4, 4, 3, 3, 3]
    assert len(network.reported(Contributed, victim)) == len(network.actors[victim].ledger.charges) == 3
    declined = network.reported(Declined, actors.trainer_identity.id)
    assert [(one.client, one.reason) for one in declined] == [(victim, "budget")] * 3
    assert declined[0].expected.startswith("<= 2 at delta 1e-06 in 365 days")
    assert declined == network.reported(Declined, victim)
    assert [one.found for one in network.actors[victim].declines.rounds] == [one.found for one in declined]


@pytest.mark.parametrize("committed", [False, True])
def test_attack_15_a_crash_between_charge_and_send(committed: bool) -> None:
    """The charge is in the same transaction as the message. Both were written, or nothing and it starts anew: either
    way one charge, one contribution id, and nothing left uncharged."""
    actors = exact_actors(4, 3)
    network = actors.network()
    network.tamper = losing(Announcement, to=b"")
    begin(actors, network)
    victim, announcement = actors.clients[0], sent(network, Announcement)[-1]
    effects = network.actors[victim].handle(Received(announcement.sender, announcement.payload), network.now_ms)
    if committed:  # the transaction was committed, then the power failed
        for effect in [e for e in effects if isinstance(e, Persist)]:
            network._carry_out(victim, effect)
    network.tamper = passing
    network.restart(victim)
    until_the_end(network)
    assert len(network.actors[victim].ledger.charges) == 1
    assert len({body_of(one.payload).contribution for one in sent(network, Contribution, sender=victim)}) == 1
    assert len(results(network)) == 1


# What brings a charge back


def test_the_charge_is_returned_only_after_all_aborts_and_once() -> None:
    actors, network, round_id = aborted_actors()
    victim = actors.clients[0]
    ledger = network.actors[victim].ledger
    for node in (0, 1):
        network.handle(victim, Received(*abort_of(actors, network, node)))
        ignored(network, victim, *abort_of(actors, network, node))
        assert ledger.spent().mu > 0
    network.handle(victim, Received(*abort_of(actors, network, 2)))
    assert ledger.spent().mu == 0
    for node in range(3):
        ignored(network, victim, *abort_of(actors, network, node))
    assert network.reported(ChargeReturned, victim) == [ChargeReturned(round_id)]


def test_the_charge_is_returned_once_across_restarts() -> None:
    actors, network, round_id = aborted_actors()
    victim = actors.clients[0]
    for node in (0, 1, 2):
        network.handle(victim, Received(*abort_of(actors, network, node)))
        network.restart(victim)
        ignored(network, victim, *abort_of(actors, network, node))
    assert network.reported(ChargeReturned, victim) == [ChargeReturned(round_id)]
    assert [charge.returned for charge in network.actors[victim].ledger.charges] == [True]
    assert network.actors[victim].ledger.spent().mu == 0


def test_a_round_with_a_returned_charge_cannot_be_replayed() -> None:
    """Its number is not used again, either."""
    actors, network, _ = aborted_actors()
    victim, announcement = actors.clients[0], sent(network, Announcement)[-1]
    for node in range(3):
        network.handle(victim, Received(*abort_of(actors, network, node)))
    ignored(network, victim, announcement.sender, announcement.payload)
    assert network.actors[victim].ledger.next_number == 2
    now_ms = network.now_ms
    until_the_end(network)
    network.now_ms = now_ms
    refused(network, victim, announcement.sender, announcement.payload, "replay")


def test_forged_aborts_bring_nothing_back() -> None:
    """Signed by the node that they name, about this announcement, by a node of the round: or dropped."""
    actors, network, _ = aborted_actors()
    victim = actors.clients[0]
    node, genuine = abort_of(actors, network, 0)
    body = body_of(genuine)
    for identity in (
        actors.compute_identities[1],
        actors.trainer_identity,
        actors.client_identities[1],
        actors.authority,
    ):
        refused(network, victim, node, forged(actors, identity, body), "signature")
    foreign = msgspec.structs.replace(body, compute=actors.trainer_identity.id)
    refused(network, victim, node, forged(actors, actors.trainer_identity, foreign), "unknown-compute")
    refused(network, victim, *abort_of(actors, network, 0, announcement_hash=bytes(32)), "announcement")
    assert network.actors[victim].ledger.spent().mu > 0


def test_a_result_keeps_the_charge() -> None:
    actors = exact_actors(4, 3)
    network, _ = begin(actors)
    until_the_end(network)
    assert len(results(network)) == 1
    assert all(charged(actors, network))


@pytest.mark.parametrize("lying", [1, 2])
def test_some_aborts_keep_the_charge(lying: int) -> None:
    """M - 1 aborts leave it open whether something was released: the charge stays spent for good."""
    actors, network, _ = aborted_actors()
    for node in range(lying):
        network.handle(actors.clients[0], Received(*abort_of(actors, network, node)))
    until_the_end(network)
    assert network.actors[actors.clients[0]].ledger.spent().mu > 0


@pytest.mark.parametrize("honest", [0, 2])
def test_a_release_behind_a_partition_keeps_every_charge(honest: int) -> None:
    """One node has released; the others never received the last answer, and abort.

    They may sign what they like: the clients receive M - 1 aborts at most.
    """
    actors = exact_actors(4, 3)
    network = actors.network()
    released = actors.computes[honest]
    network.tamper = lambda one: (
        [] if kind_of(one) in (Answer, Abort) and one.sender == released and one.to.id in actors.computes else [one]
    )
    begin(actors, network)
    until_the_end(network, 24)
    assert len(network.reported(Released, released)) == 1
    assert {fact.compute for fact in network.reported(NodeAborted)} == set(actors.computes) - {released}
    assert all(charged(actors, network))
    assert network.reported(ChargeReturned) == []
    assert results(network) == []


def test_an_aborted_round_brings_all_charges_back() -> None:
    actors = TestFederation(4, 3)
    network = actors.network()
    network.tamper = losing(Contribution, sender=actors.clients[3])
    begin(actors, network, tolerate=0)
    until_the_end(network)
    for spender in (*actors.clients, actors.trainer_identity.id):
        assert len(network.reported(ChargeReturned, spender)) == 1
        assert network.actors[spender].ledger.spent().mu == 0


def test_stragglers_keep_their_charge() -> None:
    """The trainer may close as early as it likes: that costs whoever is late its charge, and nobody's privacy."""
    actors = exact_actors(5, 3)
    network = actors.network()
    network.tamper = losing(Contribution, sender=actors.clients[4])
    begin(actors, network, tolerate=1)
    network.advance(network.now_ms + 1000)
    assert results(network)[0].value.tolist() == [exact_sum(range(4))]
    network.tamper = passing
    until_the_end(network)
    assert charged(actors, network) == [True] * 5
    assert network.actors[actors.clients[4]].ledger.spent().mu > 0
    assert len(results(network)) == 1


# Asking for aborts


def offline_round(**changes: object) -> tuple[TestFederation, Network, bytes]:
    """G5: a round that all nodes abort while client 0 is away, with its receipt."""
    actors = TestFederation(4, 3)
    network = actors.network()
    network.tamper = losing(Contribution, sender=actors.clients[3])
    _, request = begin(actors, network, tolerate=0, **changes)
    network.crash(actors.clients[0])
    network.tamper = passing
    network.crash(actors.clients[3])
    network.advance(network.now_ms + 3 * 60_000)
    assert len(network.reported(NodeAborted)) == 3
    return actors, network, request.round_id


@pytest.mark.parametrize("received", [0, 1])
def test_a_client_that_was_offline_asks_for_the_aborts_and_gets_its_charge_back(received: int) -> None:
    """G5: a client receives one holder's abort only, so it asks, and each node gives all the aborts that it has."""
    actors, network, _ = offline_round()
    victim = actors.clients[0]
    others = actors.computes[1:]
    network.tamper = lambda one: [] if received and one.sender in others and one.to.id == victim else [one]
    network.restart(victim)
    network.deliver()
    assert len(sent(network, AbortWanted, sender=victim)) == 3
    assert len(network.reported(ChargeReturned, victim)) == 1
    assert not network.actors[victim].ledger.spent().mu


def test_nodes_that_missed_a_round_sign_its_abort_for_a_client_that_shows_it() -> None:
    """Only after `commit_by`, only with the exact epoch key's secret, only for a client with a session."""
    actors = TestFederation(4, 3)
    network = actors.network()
    network.tamper = lambda one: [] if kind_of(one) is Announcement and one.to.id in actors.computes else [one]
    begin(actors, network)
    network.tamper = passing
    victim, opened = actors.clients[0], announced(network, actors)
    actor = network.actors[victim]
    (keys, *_) = keys_of(actor, opened)
    asks = [encode(AbortWanted(opened.frame, ask_tag(key, opened.hash))) for key in keys]
    network.down.add(actors.trainer_identity.id)
    for node, ask in zip(actors.computes, asks, strict=True):
        refused(network, node, victim, ask, "phase")
    network.now_ms = opened.body.commit_by_ms
    node = network.actors[actors.computes[0]]
    forged_ask = encode(AbortWanted(opened.frame, bytes(16)))
    refused(network, node.id, victim, forged_ask, "ask")
    refused(network, node.id, actors.clients[1], asks[0], "ask")
    until_the_end(network, 1)
    assert {fact.reason for fact in network.reported(NodeAborted)} == {"unheard"}
    assert len(network.reported(ChargeReturned)) == 4
    assert network.actors[node.id].phase(opened.body.round_id) == "aborted", "it can never be opened again"


def test_a_fresh_store_signs_no_abort() -> None:
    """G4: it has no secret of the epoch key that the announcement names. So the charge stays."""
    actors, network, _ = offline_round()
    node, victim = actors.computes[1], actors.clients[0]
    network.tamper = lambda one: [] if one.to.id == node else [one]
    restore(network, node, {})
    network.tamper = passing
    for peer in (actors.computes[0], actors.computes[2]):  # who would pass on the abort of its former life
        stored = network.actors[peer]._rounds
        for current in stored.values():
            current.stored = msgspec.structs.replace(current.stored, peer_aborts=())
    network.restart(victim)
    until_the_end(network)
    assert network.actors[node].dropped["epoch"] >= 1
    assert network.actors[victim].ledger.spent().mu > 0
    assert network.reported(ChargeReturned, victim) == []


def test_a_node_queried_before_commit_by_does_not_abort() -> None:
    actors = exact_actors(4, 3)
    network = actors.network()
    network.tamper = losing(Close)
    begin(actors, network)
    victim, opened = actors.clients[0], announced(network, actors)
    (keys, *_) = keys_of(network.actors[victim], opened)
    for node, key in zip(actors.computes, keys, strict=True):
        ask = encode(AbortWanted(opened.frame, ask_tag(key, opened.hash)))
        assert network.handle(node, Received(victim, ask)) == []
        assert network.actors[node].phase(opened.body.round_id) == "collecting"
    network.tamper = passing
    until_the_end(network)
    assert len(results(network)) == 1


def test_a_node_that_released_answers_no_question_for_aborts() -> None:
    actors = exact_actors(4, 3)
    network, _ = begin(actors)
    opened = announced(network, actors)
    network.now_ms = opened.body.commit_by_ms + 1
    (keys, *_) = keys_of(network.actors[actors.clients[0]], opened)
    for node, key in zip(actors.computes, keys, strict=True):
        ask = encode(AbortWanted(opened.frame, ask_tag(key, opened.hash)))
        assert network.handle(node, Received(actors.clients[0], ask)) == []


def test_one_round_id_with_two_announcements_never_gives_a_charge_back_past_the_retention_either() -> None:
    """G4: a node signs aborts only of the announcement that it recorded; its record outlives the epoch's secret."""
    actors = exact_actors(4, 3)
    network, request = begin(actors)
    first = announced(network, actors)
    other = forged(actors, actors.trainer_identity, msgspec.structs.replace(first.body, fraction_bits=20))
    node, victim = actors.computes[0], actors.clients[0]
    (keys, *_) = keys_of(network.actors[victim], first)
    ask = encode(AbortWanted(decode_frame(other), ask_tag(keys[0], bytes(32))))
    network.now_ms = first.body.commit_by_ms + 1
    refused(network, node, victim, ask, "known-round")
    timing = Timing()
    network.advance(first.body.commit_by_ms + timing.retention_ms - 1)
    refused(network, node, victim, ask, "known-round")
    network.advance(first.body.commit_by_ms + timing.retention_ms + HOUR_MS)
    assert network.actors[node].phase(request.round_id) == "new"
    refused(network, node, victim, ask, "epoch")


@pytest.mark.parametrize("retention_ms", [1, Timing().retention_ms])
def test_a_record_outlives_the_secret_that_could_sign_a_fresh_abort(retention_ms: int) -> None:
    """However short the retention: while the secret is there, so is the record of the release."""
    actors = exact_actors(4, 3, timing=Timing(retention_ms=retention_ms))
    network, request = begin(actors)
    node = network.actors[actors.computes[0]]
    epoch = announced(network, actors).epochs[0].epoch
    end_ms = (epoch + 1) * actors.timing.epoch_ms + actors.timing.epoch_grace_ms
    network.advance(end_ms - 1)
    assert node._keys.key(epoch) is not None
    assert node.phase(request.round_id) == "released"


# Receipts


def test_forged_receipts_do_not_stop_the_resending() -> None:
    """A receipt is a MAC under the pair key, about this contribution, from its holder."""
    actors = TestFederation(7, 3)
    network = actors.network()
    network.tamper = losing(Receipt)
    begin(actors, network)
    node = next(node for node in range(3) if len(clients_of_node(network, actors, node)) > 1)
    victim, other = (actors.clients[index] for index in clients_of_node(network, actors, node)[:2])
    holder = actors.computes[node]
    genuine = sent(network, Receipt, to=victim)[0].payload
    foreign = sent(network, Receipt, to=other)[0].payload
    frame = body_of(genuine)
    refused(network, victim, actors.computes[(node + 1) % 3], genuine, "sender")
    refused(network, victim, holder, foreign, "receipt")
    refused(network, victim, other, genuine, "sender")
    for field in ("tag", "contribution"):
        wrong = encode(msgspec.structs.replace(frame, **{field: bytes(16)}))
        refused(network, victim, holder, wrong, "receipt")
    refused(network, victim, holder, encode(msgspec.structs.replace(frame, round_id=bytes(16))), "phase")
    count = len(sent(network, Contribution, sender=victim))
    network.advance(network.now_ms + 10_000)
    assert len(sent(network, Contribution, sender=victim)) > count


# 3: a second round with one client fewer


def test_attack_3_a_second_round_without_one_client_is_charged_to_every_budget() -> None:
    """Their difference is about the client that is missing. So each client that is in both pays for both, and what is
    claimed of the two together is their composition."""
    actors = exact_actors(5, 3)
    network = actors.network()
    begin(actors, network, tolerate=0)
    network.down = {actors.clients[4]}
    begin(actors, network, tolerate=0, clients=4)
    full, less = (result.value.tolist()[0] for result in results(network))
    assert full - less == exact_sum([4]), "without noise the difference is that client's value"
    spent = [network.actors[client].ledger.spent().mu for client in actors.clients]
    once = network.actors[actors.clients[4]].ledger.charges[0].mu
    assert spent == pytest.approx([accounting.compose((once, once))] * 4 + [once])


def test_attack_3_a_second_round_that_no_budget_is_left_for_is_refused() -> None:
    one_round = msgspec.structs.replace(THREE_ROUNDS, epsilon_per_period_max=1.2)
    actors = exact_actors(5, 3, policy=one_round)
    network = actors.network()
    begin(actors, network, tolerate=0)
    network.down = {actors.clients[4]}
    begin(actors, network, tolerate=0, clients=4)
    until_the_end(network)
    assert len(results(network)) == len(failures(network)) == 1
    assert [fact.reason for fact in network.reported(Declined)[:4]] == ["budget"] * 4
    assert all(len(network.actors[client].ledger.charges) == 1 for client in actors.clients)


def test_attack_3_one_set_of_a_round_is_released_and_no_other() -> None:
    """A contribution that comes after the freeze is in no second sum of the same round."""
    actors = exact_actors(5, 3)
    network = actors.network()
    network.tamper = losing(Contribution, sender=actors.clients[4])
    begin(actors, network, tolerate=1)
    network.advance(network.now_ms + 1000)
    network.tamper = passing
    until_the_end(network)
    assert [result.value.tolist() for result in results(network)] == [[exact_sum(range(4))]]
    assert {fact.contributors for fact in network.reported(Released)} == {4}
    assert not sent(network, Abort)
    sums = {one.payload for one in sent(network, Sealed) if one.to.channel is Channel.TRAINER}
    assert len(sums) == 3, "each node one, byte for byte"
