"""Attacks on which contributions are in the sum: holders, thresholds, announcements, and aborts."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from round_helpers import (
    announced,
    begin,
    body_of,
    changed,
    clients_of_node,
    exact_actors,
    exact_sum,
    failures,
    forged,
    kind_of,
    losing,
    passing,
    recompose,
    refused,
    resigned,
    results,
    sent,
    the_sum,
    until_the_end,
)
from wiretap import keys_of

from dca_proto.crypto.masks import contribution_keys, entry_of, masked
from dca_proto.crypto.sealing import SINGLE_USE_NONCE, encrypt
from dca_proto.protocol.events import Received
from dca_proto.protocol.facts import ChargeReturned, Dropped, NodeAborted, Released, RoundCompleted
from dca_proto.protocol.lists import list_hash, set_hash
from dca_proto.protocol.wire.codec import decode_frame, encode
from dca_proto.protocol.wire.messages import Abort, Announcement, Answer, Close, Contribution, FrozenList, Sealed
from dca_proto.testing import Envelope, Network


def lost_clients(network: Network, clients: set[bytes]) -> None:
    network.tamper = lambda one: [] if kind_of(one) is Contribution and one.sender in clients else [one]


# 1, 2, 6: who is in the set


def test_attack_1_compute_nodes_hold_different_contributions_and_release_over_one_set() -> None:
    """Each client has one holder; S is the union of the lists, and each node releases one sum over it."""
    actors = exact_actors(6, 3)
    network = actors.network()
    lost_clients(network, {actors.clients[0], actors.clients[1]})
    begin(actors, network, tolerate=2)
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum((2, 3, 4, 5))]
    assert [fact.contributors for fact in network.reported(Released)] == [4, 4, 4]
    assert len({fact.contributors_hash for fact in network.reported(Released)}) == 1
    assert sorted(index for node in range(3) for index in clients_of_node(network, actors, node)) == list(range(6))


def test_attack_1_a_set_below_n_min_releases_nothing() -> None:
    actors = exact_actors(6, 3)
    network = actors.network()
    lost_clients(network, set(actors.clients[:3]))
    begin(actors, network, tolerate=2)
    until_the_end(network)
    assert results(network) == []
    assert (failures(network)[0].contributors, failures(network)[0].needed) == (3, 4)
    assert network.reported(Released) == []


def test_attack_2_same_count_swapped_members() -> None:
    """The hash of a list, and that of S, covers each client, contribution id and charge number."""
    entries = [entry_of(bytes((number,)) * 16, bytes(16), 1) for number in range(3)]
    others = [
        [*entries[:2], entry_of(b"\7" * 16, bytes(16), 1)],
        [*entries[:2], entry_of(b"\2" * 16, b"\1" * 16, 1)],
        [*entries[:2], entry_of(b"\2" * 16, bytes(16), 2)],
        [entries[1], entries[0], entries[2]],
    ]
    joined = [b"".join(one) for one in (entries, *others)]
    assert len({set_hash(bytes(32), one) for one in joined}) == 5
    assert len({list_hash(bytes(32), bytes(16), one) for one in joined}) == 5
    assert set_hash(bytes(32), joined[0]) != set_hash(b"\1" * 32, joined[0])


def test_attack_6_a_contribution_at_a_node_that_is_not_its_holder() -> None:
    actors = exact_actors(5, 3)
    network = actors.network()
    network.tamper = losing(Contribution)
    begin(actors, network)
    for one in sent(network, Contribution):
        for node in set(actors.computes) - {one.to.id}:
            refused(network, node, one.sender, one.payload, "holder")


# 22, 36: contributions that do not fit


def test_attack_22_masks_that_do_not_match_spoil_one_sum_and_nothing_else() -> None:
    """Documented limit: a client can spoil a sum (as any client can by lying), but not crash or block anyone."""
    actors = exact_actors(4, 3)
    network = actors.network()
    liar = network.actors[actors.clients[0]]
    network.tamper = losing(Contribution, sender=liar.id)
    begin(actors, network)
    one, opened = sent(network, Contribution, sender=liar.id)[0], announced(network, actors)
    frame, (keys, *_) = decode_frame(one.payload), keys_of(liar, opened)
    entry = entry_of(liar.id, frame.contribution, 1)
    tags, _ = masked(np.zeros(1, dtype=np.uint64), keys, opened.hash, entry)
    plaintext = (1).to_bytes(4, "little") + tags + b"\x77" * 8
    key = contribution_keys(keys[opened.computes.index(one.to.id)], opened.hash, frame.contribution).seal
    bound = b"".join((opened.hash, liar.id, one.to.id, frame.contribution))
    wrong = msgspec.structs.replace(frame, ciphertext=encrypt(key, SINGLE_USE_NONCE, plaintext, bound))
    network.tamper = passing
    network.handle(one.to.id, Received(liar.id, encode(wrong)))
    until_the_end(network)
    assert results(network) == []
    assert "at least one of the 4 contributions was outside its bounds" in failures(network)[0].reason


def test_attack_22_a_contribution_copied_from_another_client_opens_nowhere() -> None:
    """The pair key, the associated data and the mask are bound to the client: the holder asks for a Hello at most."""
    actors = exact_actors(6, 3)
    network = actors.network()
    network.tamper = losing(Contribution)
    begin(actors, network)
    for one in sent(network, Contribution):
        node = actors.computes.index(one.to.id)
        for other in clients_of_node(network, actors, node):
            if actors.clients[other] != one.sender:
                network.handle(one.to.id, Received(actors.clients[other], one.payload))
    for node in actors.computes:
        assert network.actors[node]._rounds[announced(network, actors).body.round_id].kept == {}


def test_attack_36_two_contributions_of_one_client_are_never_mixed() -> None:
    """A client runs twice (a restored copy): its holder keeps the first, and notifies it of the second."""
    actors = exact_actors(5, 3)
    network = actors.network()
    network.tamper = losing(Announcement, to=b"")  # the broadcast
    begin(actors, network)
    victim, announcement = actors.clients[0], sent(network, Announcement)[-1]
    duplicate = actors.client(0, [(table, key, value) for (table, key), value in network.stores[victim].items()])
    recompose(duplicate, random=bytes)
    network.tamper = losing(Close)
    for client in actors.clients:
        network.handle(client, Received(announcement.sender, announcement.payload))
    network.deliver()
    (second,) = [
        effect
        for effect in duplicate.handle(Received(announcement.sender, announcement.payload), network.now_ms)
        if getattr(effect, "payload", b"")
    ]
    dropped, notice = network.handle(second.to.id, Received(victim, second.payload))
    assert isinstance(dropped.fact, Dropped)
    assert dropped.fact.code == "second-contribution"
    assert notice.to.id == victim, "and the client receives the notice that it runs twice"
    network.tamper = passing
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum(range(5))]


# 38, 44: announcements that differ between recipients


@pytest.mark.parametrize(
    "change", [{"epsilon": 0.5}, {"fraction_bits": 20}, {"rows_max": 3}, {"reply_key": b"\x09" * 32}]
)
def test_attack_38_another_announcement_to_one_client_counts_nowhere(change: dict) -> None:
    """ah keys contribution, masks and tags: what a client followed alone is nothing to the nodes."""
    actors = exact_actors(6, 3)
    network = actors.network()
    victim = actors.clients[2]
    network.tamper = losing(Announcement, to=b"")  # the broadcast
    begin(actors, network)
    broadcast = next(one for one in sent(network, Announcement) if one.to.channel.is_broadcast)
    mu = {"mu": 0.05} if "epsilon" in change else {}
    other = resigned(actors, actors.trainer_identity, broadcast.payload, **change, **mu)
    network.tamper = passing
    for client in actors.clients:
        payload = other if client == victim else broadcast.payload
        network.handle(client, Received(broadcast.sender, payload))
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum({0, 1, 3, 4, 5})]
    assert len(network.reported(RoundCompleted)) == 1
    assert network.actors[victim].ledger.spent().mu > 0, "documented: it pays for nothing"


def test_attack_44_nodes_with_different_announcements_release_nothing() -> None:
    """G4: neither does a client get its charge back: no node aborts an announcement that it does not know."""
    actors = exact_actors(6, 3)
    network = actors.network()

    def split(one: Envelope) -> list[Envelope]:
        if kind_of(one) is Announcement and one.to.id == actors.computes[0]:
            return [changed(one, resigned(actors, actors.trainer_identity, one.payload, fraction_bits=20))]
        return [one]

    network.tamper = split
    begin(actors, network)
    until_the_end(network)
    assert network.reported(Released) == []
    assert results(network) == []
    assert network.reported(ChargeReturned) == []
    assert all(network.actors[client].ledger.spent().mu > 0 for client in actors.clients)


# G10: the ceiling


def test_more_than_n_max_contributions_are_summed_nowhere() -> None:
    actors = exact_actors(6, 3)
    network = actors.network()
    begin(actors, network, tolerate=4, most=5, clients=6)
    until_the_end(network)
    if not results(network):
        assert {fact.reason for fact in network.reported(NodeAborted)} == {"too-many"}
    assert all(fact.contributors <= 5 for fact in network.reported(Released))
    assert network.reported(Released) == []
    assert len(network.reported(ChargeReturned)) == 7


def test_a_holder_stops_at_n_max() -> None:
    actors = exact_actors(9, 2)
    network = actors.network()
    network.tamper = losing(Close)
    begin(actors, network, tolerate=7, most=3, clients=9)
    counts = [len(clients_of_node(network, actors, node)) for node in range(2)]
    fuller = counts.index(max(counts))
    assert max(counts) > 3
    assert network.actors[actors.computes[fuller]].dropped["full"] == max(counts) - 3


# Aborts


def test_a_node_that_aborts_ends_the_round_for_all() -> None:
    """Some released and some aborted: the trainer adds nothing."""
    actors = exact_actors(4, 3)
    network = actors.network()
    late = actors.computes[2]
    network.tamper = losing(FrozenList, Answer, to=late)
    begin(actors, network)
    until_the_end(network)
    assert late in [fact.compute for fact in network.reported(NodeAborted)]
    assert network.reported(Released, late) == []
    assert results(network) == []
    assert "(peer-silent)" in failures(network)[0].reason


def test_forged_lists_answers_and_aborts_are_dropped() -> None:
    actors = exact_actors(4, 3)
    network = actors.network()
    network.tamper = losing(Answer, Abort)
    begin(actors, network)
    answer = sent(network, Answer, sender=actors.computes[1], to=actors.computes[0])[0]
    for signer in (actors.compute_identities[2], actors.trainer_identity, actors.client_identities[0]):
        payload = forged(actors, signer, body_of(answer.payload))
        refused(network, actors.computes[0], answer.sender, payload, "signature")
    opened = announced(network, actors)
    body = Abort(opened.body.round_id, opened.hash, actors.computes[1], "too-few", "x", 1, 3, ())
    for signer in (actors.compute_identities[2], actors.trainer_identity):
        refused(network, actors.computes[0], signer.id, forged(actors, signer, body), "signature")
    assert isinstance(body_of(sent(network, FrozenList)[0].payload), Sealed)
