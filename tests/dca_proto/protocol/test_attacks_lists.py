"""Attacks on how nodes agree on one set: lists and answers that differ, and entries that a holder makes up."""

from __future__ import annotations

from collections.abc import Callable

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
    flipped,
    forged_list,
    hand_over,
    kind_of,
    losing,
    opened_list,
    passing,
    refused,
    resigned,
    results,
    sealed_by,
    sealed_kind,
    sealed_list,
    sent,
    the_sum,
    unsealed,
    until_the_end,
)

from dca_proto.crypto.masks import ENTRY_BYTES, TAG_BYTES, entry_of
from dca_proto.protocol.contribution import HeldContribution
from dca_proto.protocol.facts import ChargeReturned, NodeAborted, Released
from dca_proto.protocol.lists import encode_places
from dca_proto.protocol.wire.codec import decode_body, encode
from dca_proto.protocol.wire.messages import Abort, Answer, Close, Contribution, FrozenList, ListHeader, PartialSum
from dca_proto.testing import Envelope, Network, TestFederation

Change = Callable[[bytes, bytes], tuple[bytes, bytes]]
"""From the entries and tags of a list to others."""


def lying_list(actors: TestFederation, network: Network, change: Change, to: int | None = None) -> None:
    """Node 0 sends other lists than it froze, to all peers or to one."""

    def lie(one: Envelope) -> list[Envelope]:
        concerned = kind_of(one) is FrozenList and one.sender == actors.computes[0]
        if not concerned or (to is not None and one.to.id != actors.computes[to]):
            return [one]
        peer_list = opened_list(network, actors, one)
        return [forged_list(network, actors, one, *change(peer_list.entries, peer_list.tags))]

    network.tamper = lie


def without_the_last(entries: bytes, tags: bytes) -> tuple[bytes, bytes]:
    return entries[:-ENTRY_BYTES], tags[:-TAG_BYTES]


# 4, 42: different messages to different peers


@pytest.mark.parametrize("close_lost", [False, True])
def test_attack_42_different_lists_to_different_peers_release_nothing_and_prove_it(close_lost: bool) -> None:
    """G11: also where the trainer's Close is lost, and the round freezes at `close_by`."""
    actors = exact_actors(8, 3)
    network = actors.network()
    lying_list(actors, network, without_the_last, to=1)
    lie = network.tamper
    network.tamper = lambda one: [] if close_lost and kind_of(one) is Close else lie(one)
    begin(actors, network, tolerate=2)
    until_the_end(network)
    assert network.reported(Released, actors.computes[1]) == network.reported(Released, actors.computes[2]) == []
    assert results(network) == []
    aborts = [body_of(one.payload) for one in sent(network, Abort)]
    accused = [one for one in aborts if one.reason == "equivocation" and one.compute in actors.computes[1:]]
    headers = {
        (body.compute, part.list_hash)
        for body in accused
        for part in map(decode_body, (frame.body for frame in body.evidence))
        if isinstance(part, ListHeader)
    }
    assert len({hashed for _, hashed in headers}) > 3, "the aborts show two headers of one node"
    for client in actors.clients:
        assert not network.actors[client].ledger.is_charged(announced(network, actors).body.round_id)


def test_attack_42_a_second_list_for_the_same_peer_ends_the_round_with_both_headers() -> None:
    actors = exact_actors(8, 3)
    network = actors.network()
    network.tamper = losing(FrozenList, sender=actors.computes[2])
    begin(actors, network, tolerate=2)
    first = sent(network, FrozenList, sender=actors.computes[0], to=actors.computes[1])[0]
    peer_list = opened_list(network, actors, first)
    hand_over(network, forged_list(network, actors, first, *without_the_last(peer_list.entries, peer_list.tags)))
    (fact,) = network.reported(NodeAborted, actors.computes[1])
    assert (fact.reason, fact.detail) == ("equivocation", "compute-0 signed two different lists")
    body = body_of(sent(network, Abort, sender=actors.computes[1])[0].payload)
    counts = [decode_body(frame.body).count for frame in body.evidence]
    assert counts == [len(clients_of_node(network, actors, 0)), len(clients_of_node(network, actors, 0)) - 1]


def answer_of(actors: TestFederation, one: Envelope, **changes: object) -> bytes:
    identity = next(each for each in actors.compute_identities if each.id == one.sender)
    return resigned(actors, identity, one.payload, **changes)


def test_attack_42_different_objections_to_different_peers_are_never_added() -> None:
    """Each honest node releases once, over the set that it received; the trainer adds nothing to a sum."""
    actors = exact_actors(6, 3)
    network = actors.network()

    def lie(one: Envelope) -> list[Envelope]:
        if kind_of(one) is not Answer or (one.sender, one.to.id) != (actors.computes[0], actors.computes[1]):
            return [one]
        return [changed(one, answer_of(actors, one, objections=encode_places(np.array([0]))))]

    network.tamper = lie
    begin(actors, network, tolerate=2)
    until_the_end(network)
    assert [len(network.reported(Released, node)) for node in actors.computes] == [1, 1, 1]
    assert sorted(fact.contributors for fact in network.reported(Released)) == [5, 6, 6]
    assert results(network) == []
    assert "each rests on other answers" in failures(network)[0].reason


@pytest.mark.parametrize("restarted", [False, True])
def test_attack_42_two_answers_to_one_peer_end_the_round(restarted: bool) -> None:
    actors = exact_actors(6, 3)
    network = actors.network()
    network.tamper = losing(Answer, sender=actors.computes[2])
    begin(actors, network, tolerate=2)
    first = sent(network, Answer, sender=actors.computes[0], to=actors.computes[1])[0]
    if restarted:
        network.restart(actors.computes[1])
        hand_over(network, first)
    hand_over(network, changed(first, answer_of(actors, first, objections=encode_places(np.array([1])))))
    (fact,) = network.reported(NodeAborted, actors.computes[1])
    assert (fact.reason, fact.detail) == ("equivocation", "compute-0 signed two different answers")
    assert network.reported(Released, actors.computes[1]) == []


@pytest.mark.parametrize("objections", [b"\0", encode_places(np.array([6])), encode_places(np.array([2, 1])),
                                        encode_places(np.array([1, 1]))])  # fmt: skip
def test_attack_42_an_unreadable_answer_ends_the_round(objections: bytes) -> None:
    actors = exact_actors(6, 3)
    network = actors.network()
    network.tamper = lambda one: (
        [changed(one, answer_of(actors, one, objections=objections))]
        if kind_of(one) is Answer and one.sender == actors.computes[0]
        else [one]
    )
    begin(actors, network, tolerate=2)
    until_the_end(network)
    assert {fact.reason for fact in network.reported(NodeAborted)} == {"invalid-answer"}
    assert network.reported(Released, actors.computes[1]) == []


def test_attack_4_partial_sums_over_different_sets_are_not_added() -> None:
    """A node that releases over another set than it agreed to is found out by the hash it must sign."""
    actors = exact_actors(4, 3)
    network = actors.network()
    liar = actors.compute_identities[0]

    def lie(one: Envelope) -> list[Envelope]:
        if one.sender != liar.id or sealed_kind(network, actors, one.payload) is not PartialSum:
            return [one]
        body = msgspec.structs.replace(unsealed(network, actors, one.payload), set_hash=bytes(32))
        return [changed(one, sealed_by(actors, liar, body, announced(network, actors)))]

    network.tamper = lie
    begin(actors, network)
    assert results(network) == []
    assert "different sets of clients" in failures(network)[0].reason


# 43: entries that a holder makes up


def made_up(victim: int) -> Callable[[TestFederation], Change]:
    """An entry of a client that has contributed nothing, at its right place in the order."""

    def change_of(actors: TestFederation) -> Change:
        entry = entry_of(actors.clients[victim], bytes(range(16)), 9)

        def change(entries: bytes, tags: bytes) -> tuple[bytes, bytes]:
            rows = [entries[at : at + ENTRY_BYTES] for at in range(0, len(entries), ENTRY_BYTES)]
            marks = [tags[at : at + TAG_BYTES] for at in range(0, len(tags), TAG_BYTES)]
            pairs = sorted([*zip(rows, marks, strict=True), (entry, bytes(8))])
            return b"".join(row for row, _ in pairs), b"".join(mark for _, mark in pairs)

        return change

    return change_of


def silent_client_of_the_liar(actors: TestFederation) -> tuple[Network, int, Envelope]:
    """A round in which one client of node 0 sends nothing."""
    network = actors.network()
    network.tamper = losing(Contribution)
    begin(actors, network, tolerate=3)
    victim = clients_of_node(network, actors, 0)[0]
    network.tamper = losing(Contribution, sender=actors.clients[victim])
    return network, victim, sent(network, Contribution, sender=actors.clients[victim])[0]


def test_attack_43_an_entry_of_a_client_that_did_not_contribute_is_objected_to() -> None:
    """G2: its tag fails at every honest node. Nobody's charge number is recorded, so that nobody is locked out."""
    actors = exact_actors(7, 3)
    network, victim, _ = silent_client_of_the_liar(actors)
    lying_list(actors, network, made_up(victim)(actors))
    lie = network.tamper
    silent = actors.clients[victim]
    network.tamper = lambda one: [] if kind_of(one) is Contribution and one.sender == silent else lie(one)
    until_the_end(network)
    assert network.reported(Released, actors.computes[0]) == []  # its own list has not the entry: other list hashes
    assert results(network) == []
    for node in actors.computes[1:]:
        actor = network.actors[node]
        assert actor._charges.highest(actor._sessions.slots[silent]) == 0


@pytest.mark.parametrize("number", [9, 2**32 - 1])
def test_attack_43_a_lying_holder_with_a_list_of_its_own_locks_nobody_out(number: int) -> None:
    """G2: the liar's whole process lists another charge number for a victim. The tag that the client made is for its
    own number: each honest node objects, records nothing, and the next round holds the client again."""
    actors = exact_actors(7, 3)
    network = actors.network()
    network.tamper = losing(Close)
    begin(actors, network, tolerate=3)
    victim = clients_of_node(network, actors, 0)[0]
    kept = network.actors[actors.computes[0]]._rounds[announced(network, actors).body.round_id].kept
    mine = kept[actors.clients[victim]]
    kept[actors.clients[victim]] = HeldContribution(mine.record[:33] + number.to_bytes(4, "little") + mine.record[37:])
    assert kept[actors.clients[victim]].entry == entry_of(actors.clients[victim], mine.contribution, number)
    network.tamper = passing
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum(set(range(7)) - {victim})]
    for node in actors.computes[1:]:
        actor = network.actors[node]
        assert actor._charges.highest(actor._sessions.slots[actors.clients[victim]]) == 0
    begin(actors, network, tolerate=3)
    assert results(network)[-1].value.tolist() == [exact_sum(range(7))]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_attack_43_flipped_tags_leave_a_client_out_and_keep_the_sum_exact(which: int) -> None:
    """A holder that damages a client's tag for a node can drop that client, as it could by losing its contribution."""
    actors = exact_actors(7, 3)
    network = actors.network()
    network.tamper = losing(Close)
    begin(actors, network, tolerate=3)
    victim = clients_of_node(network, actors, 0)[0]
    kept = network.actors[actors.computes[0]]._rounds[announced(network, actors).body.round_id].kept
    mine = kept[actors.clients[victim]]
    kept[actors.clients[victim]] = HeldContribution(flipped(mine.record, 37 + TAG_BYTES * which))
    network.tamper = passing
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum(set(range(7)) - {victim})]
    assert network.actors[actors.clients[victim]].ledger.spent().mu > 0, "whoever was objected to keeps the charge"


def twice(entries: bytes, tags: bytes) -> tuple[bytes, bytes]:
    return entries[:ENTRY_BYTES] + entries, tags[:TAG_BYTES] + tags


def turned(entries: bytes, tags: bytes) -> tuple[bytes, bytes]:
    rows = [entries[at : at + ENTRY_BYTES] for at in range(0, len(entries), ENTRY_BYTES)]
    return b"".join(reversed(rows)), tags


INVALID: dict[str, Change] = {
    "a client twice": twice,
    "out of order": turned,
    "a tag too few": lambda entries, tags: (entries, tags[:-TAG_BYTES]),
    "half an entry": lambda entries, tags: (entries[:-1], tags),
    "charge number 0": lambda entries, tags: (entries[:-4] + bytes(4), tags),
}


@pytest.mark.parametrize("what", INVALID)
def test_attack_43_an_impossible_signed_list_ends_the_round(what: str) -> None:
    """G1: one colluding client listed nineteen times would strip a victim's noise to its own."""
    actors = exact_actors(30, 3)  # the liar holds some ten; fewer than two in one of 10,000 announcements
    network = actors.network()
    lying_list(actors, network, INVALID[what])
    begin(actors, network, tolerate=3)
    until_the_end(network)
    honest = [fact for node in actors.computes[1:] for fact in network.reported(NodeAborted, node)]
    assert "invalid-list" in {fact.reason for fact in honest}
    assert network.reported(Released) == []
    assert len(network.reported(ChargeReturned)) == 31


def test_attack_43_one_client_at_two_holders() -> None:
    """The announcement and the id determine who holds a client: an entry of another holder's client ends the round."""
    actors = exact_actors(7, 3)
    network = actors.network()
    network.tamper = losing(Close)
    begin(actors, network, tolerate=3)
    foreign = [*clients_of_node(network, actors, 1), *clients_of_node(network, actors, 2)][0]
    lying_list(actors, network, made_up(foreign)(actors))
    until_the_end(network)
    details = [fact.detail for fact in network.reported(NodeAborted, actors.computes[2])]
    assert "a client of another holder" in details[0]
    assert network.reported(Released) == []


def test_attack_43_a_list_that_is_not_its_headers_changes_nothing() -> None:
    """Not even the phase of a node that still collects."""
    actors = exact_actors(7, 3)
    network = actors.network()
    network.tamper = losing(FrozenList, Close, Answer)
    begin(actors, network, tolerate=3)
    hand_over(network, sent(network, Close, to=actors.computes[0])[0])
    honest = sent(network, FrozenList, sender=actors.computes[0], to=actors.computes[1])[0]
    peer_list = opened_list(network, actors, honest)
    entries, tags = without_the_last(peer_list.entries, peer_list.tags)
    body = msgspec.structs.replace(peer_list, entries=entries, tags=tags)
    lie = sealed_list(actors, actors.compute_identities[0], body, announced(network, actors), actors.computes[1])
    refused(network, actors.computes[1], actors.computes[0], lie, "list")
    assert network.actors[actors.computes[1]].phase(announced(network, actors).body.round_id) == "collecting"


def test_attack_43_a_list_of_another_node_round_or_receiver_is_refused() -> None:
    actors = exact_actors(7, 3)
    network = actors.network()
    network.tamper = losing(FrozenList, Answer)
    begin(actors, network, tolerate=3)
    zero, one, two = actors.computes
    honest = sent(network, FrozenList, sender=zero, to=one)[0]
    peer_list, opened = opened_list(network, actors, honest), announced(network, actors)
    refused(network, one, two, honest.payload, "signature")
    refused(network, two, zero, honest.payload, "ciphertext")
    liar, peer = actors.compute_identities[0], actors.compute_identities[2]
    refused(network, one, two, sealed_list(actors, peer, peer_list, opened, one), "signature")
    other = sealed_list(actors, liar, msgspec.structs.replace(peer_list, receiver=two), opened, one)
    refused(network, one, zero, other, "receiver")
    refused(network, one, actors.clients[0], honest.payload, "unknown-compute")
    begin(actors, network, tolerate=3)
    moved = msgspec.structs.replace(body_of(honest.payload), round_id=announced(network, actors).body.round_id)
    refused(network, one, zero, encode(moved), "ciphertext")
