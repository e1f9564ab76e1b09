"""Attacks on which contributions are in the sum: holders, lists, answers, and the one set that all agree on."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from scene import (
    announced,
    begin,
    body_of,
    changed,
    exact_cast,
    exact_sum,
    failures,
    flipped,
    forged,
    forged_list,
    hand_over,
    held_by,
    kind_of,
    losing,
    opened_list,
    passing,
    recompose,
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
from wiretap import keys_of

from dca_proto.core.codec import decode_body, decode_frame, encode
from dca_proto.core.events import Received
from dca_proto.core.facts import ChargeReturned, Dropped, NodeAborted, Released, RoundCompleted
from dca_proto.core.lists import encode_places, list_hash, set_hash
from dca_proto.core.masks import ENTRY_BYTES, TAG_BYTES, entry_of, masked, seal_key
from dca_proto.core.messages import (
    Abort,
    Announcement,
    Answer,
    Close,
    Contribution,
    FrozenList,
    ListHeader,
    PartialSum,
    Sealed,
)
from dca_proto.core.sealing import SINGLE_USE_NONCE, encrypt
from dca_proto.testing import Cast, Envelope, Network

Change = Callable[[bytes, bytes], tuple[bytes, bytes]]
"""From the entries and tags of a list to others."""


def lying_list(cast: Cast, network: Network, change: Change, to: int | None = None) -> None:
    """Node 0 sends other lists than it froze, to all peers or to one."""

    def lie(one: Envelope) -> list[Envelope]:
        concerned = kind_of(one) is FrozenList and one.sender == cast.computes[0]
        if not concerned or (to is not None and one.to.id != cast.computes[to]):
            return [one]
        told = opened_list(network, cast, one)
        return [forged_list(network, cast, one, *change(told.entries, told.tags))]

    network.tamper = lie


def without_the_last(entries: bytes, tags: bytes) -> tuple[bytes, bytes]:
    return entries[:-ENTRY_BYTES], tags[:-TAG_BYTES]


def lost_clients(network: Network, clients: set[bytes]) -> None:
    network.tamper = lambda one: [] if kind_of(one) is Contribution and one.sender in clients else [one]


# 1, 2, 6: who is in the set


def test_attack_1_compute_nodes_hold_different_contributions_and_release_over_one_set() -> None:
    """Each client has one holder; S is the union of the lists, and each node releases one sum over it."""
    cast = exact_cast(6, 3)
    network = cast.network()
    lost_clients(network, {cast.clients[0], cast.clients[1]})
    begin(cast, network, tolerated=2)
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum((2, 3, 4, 5))]
    assert [fact.contributors for fact in network.reported(Released)] == [4, 4, 4]
    assert len({fact.contributors_hash for fact in network.reported(Released)}) == 1
    assert sorted(index for node in range(3) for index in held_by(network, cast, node)) == list(range(6))


def test_attack_1_a_set_below_n_min_releases_nothing() -> None:
    cast = exact_cast(6, 3)
    network = cast.network()
    lost_clients(network, set(cast.clients[:3]))
    begin(cast, network, tolerated=2)
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
    cast = exact_cast(5, 3)
    network = cast.network()
    network.tamper = losing(Contribution)
    begin(cast, network)
    for one in sent(network, Contribution):
        for node in set(cast.computes) - {one.to.id}:
            refused(network, node, one.sender, one.payload, "holder")


# 4, 42: different words to different peers


@pytest.mark.parametrize("close_lost", [False, True])
def test_attack_42_different_lists_to_different_peers_release_nothing_and_prove_it(close_lost: bool) -> None:
    """G11: also where the trainer's Close is lost, and the round freezes at `close_by`."""
    cast = exact_cast(6, 3)
    network = cast.network()
    lying_list(cast, network, without_the_last, to=1)
    lie = network.tamper
    network.tamper = lambda one: [] if close_lost and kind_of(one) is Close else lie(one)
    begin(cast, network, tolerated=2)
    until_the_end(network)
    assert network.reported(Released, cast.computes[1]) == network.reported(Released, cast.computes[2]) == []
    assert results(network) == []
    aborts = [body_of(one.payload) for one in sent(network, Abort)]
    accused = [one for one in aborts if one.reason == "equivocation" and one.compute in cast.computes[1:]]
    headers = {
        (body.compute, part.list_hash)
        for body in accused
        for part in map(decode_body, (frame.body for frame in body.evidence))
        if isinstance(part, ListHeader)
    }
    assert len({hashed for _, hashed in headers}) > 3, "the aborts show two headers of one node"
    for client in cast.clients:
        assert not network.actors[client].ledger.is_charged(announced(network, cast).body.round_id)


def test_attack_42_a_second_list_for_the_same_peer_ends_the_round_with_both_headers() -> None:
    cast = exact_cast(6, 3)
    network = cast.network()
    network.tamper = losing(FrozenList, sender=cast.computes[2])
    begin(cast, network, tolerated=2)
    first = sent(network, FrozenList, sender=cast.computes[0], to=cast.computes[1])[0]
    told = opened_list(network, cast, first)
    hand_over(network, forged_list(network, cast, first, *without_the_last(told.entries, told.tags)))
    (fact,) = network.reported(NodeAborted, cast.computes[1])
    assert (fact.reason, fact.detail) == ("equivocation", "compute-0 signed two lists")
    body = body_of(sent(network, Abort, sender=cast.computes[1])[0].payload)
    counts = [decode_body(frame.body).count for frame in body.evidence]
    assert counts == [len(held_by(network, cast, 0)), len(held_by(network, cast, 0)) - 1]


def answer_of(cast: Cast, one: Envelope, **changes: object) -> bytes:
    identity = next(each for each in cast.compute_identities if each.id == one.sender)
    return resigned(cast, identity, one.payload, **changes)


def test_attack_42_different_objections_to_different_peers_are_never_added() -> None:
    """Each honest node releases once, over the set that it was told; the trainer adds nothing to a sum."""
    cast = exact_cast(6, 3)
    network = cast.network()

    def lie(one: Envelope) -> list[Envelope]:
        if kind_of(one) is not Answer or (one.sender, one.to.id) != (cast.computes[0], cast.computes[1]):
            return [one]
        return [changed(one, answer_of(cast, one, objections=encode_places(np.array([0]))))]

    network.tamper = lie
    begin(cast, network, tolerated=2)
    until_the_end(network)
    assert [len(network.reported(Released, node)) for node in cast.computes] == [1, 1, 1]
    assert sorted(fact.contributors for fact in network.reported(Released)) == [5, 6, 6]
    assert results(network) == []
    assert "name different answers" in failures(network)[0].reason


@pytest.mark.parametrize("restarted", [False, True])
def test_attack_42_two_answers_to_one_peer_end_the_round(restarted: bool) -> None:
    cast = exact_cast(6, 3)
    network = cast.network()
    network.tamper = losing(Answer, sender=cast.computes[2])
    begin(cast, network, tolerated=2)
    first = sent(network, Answer, sender=cast.computes[0], to=cast.computes[1])[0]
    if restarted:
        network.restart(cast.computes[1])
        hand_over(network, first)
    hand_over(network, changed(first, answer_of(cast, first, objections=encode_places(np.array([1])))))
    (fact,) = network.reported(NodeAborted, cast.computes[1])
    assert (fact.reason, fact.detail) == ("equivocation", "compute-0 signed two answers")
    assert network.reported(Released, cast.computes[1]) == []


@pytest.mark.parametrize("objections", [b"\0", encode_places(np.array([6])), encode_places(np.array([2, 1])),
                                        encode_places(np.array([1, 1]))])  # fmt: skip
def test_attack_42_an_answer_that_cannot_be_read_ends_the_round(objections: bytes) -> None:
    cast = exact_cast(6, 3)
    network = cast.network()
    network.tamper = lambda one: (
        [changed(one, answer_of(cast, one, objections=objections))]
        if kind_of(one) is Answer and one.sender == cast.computes[0]
        else [one]
    )
    begin(cast, network, tolerated=2)
    until_the_end(network)
    assert {fact.reason for fact in network.reported(NodeAborted)} == {"invalid-answer"}
    assert network.reported(Released, cast.computes[1]) == []


def test_attack_4_partial_sums_over_different_sets_are_not_added() -> None:
    """A node that releases over another set than it agreed to is found out by the hash it must sign."""
    cast = exact_cast(4, 3)
    network = cast.network()
    liar = cast.compute_identities[0]

    def lie(one: Envelope) -> list[Envelope]:
        if one.sender != liar.id or sealed_kind(network, cast, one.payload) is not PartialSum:
            return [one]
        body = msgspec.structs.replace(unsealed(network, cast, one.payload), set_hash=bytes(32))
        return [changed(one, sealed_by(cast, liar, body, announced(network, cast)))]

    network.tamper = lie
    begin(cast, network)
    assert results(network) == []
    assert "different sets of clients" in failures(network)[0].reason


# 43: entries that a holder makes up


def made_up(victim: int) -> Callable[[Cast], Change]:
    """An entry of a client that has contributed nothing, at its right place in the order."""

    def change_of(cast: Cast) -> Change:
        entry = entry_of(cast.clients[victim], bytes(range(16)), 9)

        def change(entries: bytes, tags: bytes) -> tuple[bytes, bytes]:
            rows = [entries[at : at + ENTRY_BYTES] for at in range(0, len(entries), ENTRY_BYTES)]
            marks = [tags[at : at + TAG_BYTES] for at in range(0, len(tags), TAG_BYTES)]
            pairs = sorted([*zip(rows, marks, strict=True), (entry, bytes(8))])
            return b"".join(row for row, _ in pairs), b"".join(mark for _, mark in pairs)

        return change

    return change_of


def silent_client_of_the_liar(cast: Cast) -> tuple[Network, int, Envelope]:
    """A round in which one client of node 0 sends nothing."""
    network = cast.network()
    network.tamper = losing(Contribution)
    begin(cast, network, tolerated=3)
    victim = held_by(network, cast, 0)[0]
    network.tamper = losing(Contribution, sender=cast.clients[victim])
    return network, victim, sent(network, Contribution, sender=cast.clients[victim])[0]


def test_attack_43_an_entry_of_a_client_that_did_not_contribute_is_objected_to() -> None:
    """G2: its tag fails at every honest node. Nobody's charge number is recorded, so that nobody is locked out."""
    cast = exact_cast(7, 3)
    network, victim, _ = silent_client_of_the_liar(cast)
    lying_list(cast, network, made_up(victim)(cast))
    lie = network.tamper
    silent = cast.clients[victim]
    network.tamper = lambda one: [] if kind_of(one) is Contribution and one.sender == silent else lie(one)
    until_the_end(network)
    assert network.reported(Released, cast.computes[0]) == []  # its own list has not the entry: other list hashes
    assert results(network) == []
    for node in cast.computes[1:]:
        actor = network.actors[node]
        assert actor._charges.highest(actor._sessions.slots[silent]) == 0


@pytest.mark.parametrize("number", [9, 2**32 - 1])
def test_attack_43_a_lying_holder_with_a_list_of_its_own_locks_nobody_out(number: int) -> None:
    """G2: the liar's whole process lists another charge number for a victim. The tag that the client made is for its
    own number: each honest node objects, records nothing, and the next round holds the client again."""
    cast = exact_cast(7, 3)
    network = cast.network()
    network.tamper = losing(Close)
    begin(cast, network, tolerated=3)
    victim = held_by(network, cast, 0)[0]
    kept = network.actors[cast.computes[0]]._rounds[announced(network, cast).body.round_id].kept
    mine = kept[cast.clients[victim]]
    entry = entry_of(cast.clients[victim], mine.contribution, number)
    kept[cast.clients[victim]] = msgspec.structs.replace(mine, entry=entry)
    network.tamper = passing
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum(set(range(7)) - {victim})]
    for node in cast.computes[1:]:
        actor = network.actors[node]
        assert actor._charges.highest(actor._sessions.slots[cast.clients[victim]]) == 0
    begin(cast, network, tolerated=3)
    assert results(network)[-1].value.tolist() == [exact_sum(range(7))]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_attack_43_flipped_tags_leave_a_client_out_and_keep_the_sum_exact(which: int) -> None:
    """A holder that damages a client's tag for a node can drop that client, as it could by losing its contribution."""
    cast = exact_cast(7, 3)
    network = cast.network()
    network.tamper = losing(Close)
    begin(cast, network, tolerated=3)
    victim = held_by(network, cast, 0)[0]
    kept = network.actors[cast.computes[0]]._rounds[announced(network, cast).body.round_id].kept
    mine = kept[cast.clients[victim]]
    kept[cast.clients[victim]] = msgspec.structs.replace(mine, tags=flipped(mine.tags, TAG_BYTES * which))
    network.tamper = passing
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum(set(range(7)) - {victim})]
    assert network.actors[cast.clients[victim]].ledger.spent().mu > 0, "whoever was objected to keeps the charge"


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
def test_attack_43_a_signed_list_that_cannot_be_ends_the_round(what: str) -> None:
    """G1: one colluding client listed nineteen times would strip a victim's noise to its own."""
    cast = exact_cast(7, 3)
    network = cast.network()
    lying_list(cast, network, INVALID[what])
    begin(cast, network, tolerated=3)
    until_the_end(network)
    honest = [fact for node in cast.computes[1:] for fact in network.reported(NodeAborted, node)]
    assert "invalid-list" in {fact.reason for fact in honest}
    assert network.reported(Released) == []
    assert len(network.reported(ChargeReturned)) == 8


def test_attack_43_one_client_at_two_holders() -> None:
    """The announcement and the id say who holds a client: an entry of another holder's client ends the round."""
    cast = exact_cast(7, 3)
    network = cast.network()
    network.tamper = losing(Close)
    begin(cast, network, tolerated=3)
    foreign = held_by(network, cast, 1)[0]
    lying_list(cast, network, made_up(foreign)(cast))
    until_the_end(network)
    details = [fact.detail for fact in network.reported(NodeAborted, cast.computes[2])]
    assert "a client of another holder" in details[0]
    assert network.reported(Released) == []


def test_attack_43_a_list_that_is_not_its_headers_changes_nothing() -> None:
    """Not even the phase of a node that still collects."""
    cast = exact_cast(7, 3)
    network = cast.network()
    network.tamper = losing(FrozenList, Close, Answer)
    begin(cast, network, tolerated=3)
    hand_over(network, sent(network, Close, to=cast.computes[0])[0])
    honest = sent(network, FrozenList, sender=cast.computes[0], to=cast.computes[1])[0]
    told = opened_list(network, cast, honest)
    entries, tags = without_the_last(told.entries, told.tags)
    body = msgspec.structs.replace(told, entries=entries, tags=tags)
    lie = sealed_list(cast, cast.compute_identities[0], body, announced(network, cast), cast.computes[1])
    refused(network, cast.computes[1], cast.computes[0], lie, "list")
    assert network.actors[cast.computes[1]].phase(announced(network, cast).body.round_id) == "collecting"


def test_attack_43_a_list_of_another_node_round_or_receiver_is_refused() -> None:
    cast = exact_cast(7, 3)
    network = cast.network()
    network.tamper = losing(FrozenList, Answer)
    begin(cast, network, tolerated=3)
    zero, one, two = cast.computes
    honest = sent(network, FrozenList, sender=zero, to=one)[0]
    told, opened = opened_list(network, cast, honest), announced(network, cast)
    refused(network, one, two, honest.payload, "signature")
    refused(network, two, zero, honest.payload, "ciphertext")
    liar, peer = cast.compute_identities[0], cast.compute_identities[2]
    refused(network, one, two, sealed_list(cast, peer, told, opened, one), "signature")
    other = sealed_list(cast, liar, msgspec.structs.replace(told, receiver=two), opened, one)
    refused(network, one, zero, other, "receiver")
    refused(network, one, cast.clients[0], honest.payload, "unknown-compute")
    begin(cast, network, tolerated=3)
    moved = msgspec.structs.replace(body_of(honest.payload), round_id=announced(network, cast).body.round_id)
    refused(network, one, zero, encode(moved), "ciphertext")


# 22, 36: contributions that do not fit


def test_attack_22_masks_that_do_not_match_spoil_one_sum_and_nothing_else() -> None:
    """Documented limit: a client can spoil the value (as any client can by lying), but not crash or block anyone."""
    cast = exact_cast(4, 3)
    network = cast.network()
    liar = network.actors[cast.clients[0]]
    network.tamper = losing(Contribution, sender=liar.id)
    begin(cast, network)
    one, opened = sent(network, Contribution, sender=liar.id)[0], announced(network, cast)
    frame, (keys, *_) = decode_frame(one.payload), keys_of(liar, opened)
    entry = entry_of(liar.id, frame.contribution, 1)
    tags, _ = masked(np.zeros(1, dtype=np.uint64), keys, opened.hash, entry)
    plaintext = (1).to_bytes(4, "little") + tags + b"\x77" * 8
    key = seal_key(keys[opened.computes.index(one.to.id)], opened.hash, frame.contribution)
    bound = b"".join((opened.hash, liar.id, one.to.id, frame.contribution))
    wrong = msgspec.structs.replace(frame, ciphertext=encrypt(key, SINGLE_USE_NONCE, plaintext, bound))
    network.tamper = passing
    network.handle(one.to.id, Received(liar.id, encode(wrong)))
    until_the_end(network)
    assert len(results(network)) == 1
    assert results(network)[0].contributors == 4
    assert the_sum(network).tolist() != [exact_sum(range(4))]


def test_attack_22_a_contribution_copied_from_another_client_opens_nowhere() -> None:
    """The pair key, the associated data and the mask are bound to the client: the holder asks for a Hello at most."""
    cast = exact_cast(6, 3)
    network = cast.network()
    network.tamper = losing(Contribution)
    begin(cast, network)
    for one in sent(network, Contribution):
        node = cast.computes.index(one.to.id)
        for other in held_by(network, cast, node):
            if cast.clients[other] != one.sender:
                network.handle(one.to.id, Received(cast.clients[other], one.payload))
    for node in cast.computes:
        assert network.actors[node]._rounds[announced(network, cast).body.round_id].kept == {}


def test_attack_36_two_contributions_of_one_client_are_never_mixed() -> None:
    """A client runs twice (a restored copy): its holder keeps the first, and tells it of the second."""
    cast = exact_cast(5, 3)
    network = cast.network()
    network.tamper = losing(Announcement, to=b"")  # the broadcast
    begin(cast, network)
    victim, announcement = cast.clients[0], sent(network, Announcement)[-1]
    twin = cast.client(0, [(table, key, value) for (table, key), value in network.stores[victim].items()])
    recompose(twin, random=bytes)
    network.tamper = losing(Close)
    for client in cast.clients:
        network.handle(client, Received(announcement.sender, announcement.payload))
    network.deliver()
    (second,) = [
        effect
        for effect in twin.handle(Received(announcement.sender, announcement.payload), network.now_ms)
        if getattr(effect, "payload", b"")
    ]
    dropped, told = network.handle(second.to.id, Received(victim, second.payload))
    assert isinstance(dropped.fact, Dropped)
    assert dropped.fact.code == "second-contribution"
    assert told.to.id == victim, "and the client is told that it runs twice"
    network.tamper = passing
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum(range(5))]


# 38, 44: announcements that differ between recipients


@pytest.mark.parametrize(
    "change", [{"epsilon": 0.5}, {"fraction_bits": 20}, {"rows_max": 3}, {"reply_key": b"\x09" * 32}]
)
def test_attack_38_another_announcement_told_to_one_client_counts_nowhere(change: dict) -> None:
    """ah keys contribution, masks and tags: what a client followed alone is nothing to the nodes."""
    cast = exact_cast(6, 3)
    network = cast.network()
    victim = cast.clients[2]
    network.tamper = losing(Announcement, to=b"")  # the broadcast
    begin(cast, network)
    broadcast = next(one for one in sent(network, Announcement) if one.to.channel.is_broadcast)
    mu = {"mu": 0.05} if "epsilon" in change else {}
    other = resigned(cast, cast.trainer_identity, broadcast.payload, **change, **mu)
    network.tamper = passing
    for client in cast.clients:
        payload = other if client == victim else broadcast.payload
        network.handle(client, Received(broadcast.sender, payload))
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum({0, 1, 3, 4, 5})]
    assert len(network.reported(RoundCompleted)) == 1
    assert network.actors[victim].ledger.spent().mu > 0, "documented: it pays for nothing"


def test_attack_44_nodes_that_were_told_different_announcements_release_nothing() -> None:
    """G4: neither does a client get its charge back: no node aborts an announcement that it does not know."""
    cast = exact_cast(6, 3)
    network = cast.network()

    def split(one: Envelope) -> list[Envelope]:
        if kind_of(one) is Announcement and one.to.id == cast.computes[0]:
            return [changed(one, resigned(cast, cast.trainer_identity, one.payload, fraction_bits=20))]
        return [one]

    network.tamper = split
    begin(cast, network)
    until_the_end(network)
    assert network.reported(Released) == []
    assert results(network) == []
    assert network.reported(ChargeReturned) == []
    assert all(network.actors[client].ledger.spent().mu > 0 for client in cast.clients)


# G10: the ceiling


def test_more_than_n_max_contributions_are_summed_nowhere() -> None:
    cast = exact_cast(6, 3)
    network = cast.network()
    begin(cast, network, tolerated=4, most=5, clients_expected=6)
    until_the_end(network)
    if not results(network):
        assert {fact.reason for fact in network.reported(NodeAborted)} == {"too-many"}
    assert all(fact.contributors <= 5 for fact in network.reported(Released))
    assert network.reported(Released) == []
    assert len(network.reported(ChargeReturned)) == 7


def test_a_holder_stops_at_n_max() -> None:
    cast = exact_cast(9, 2)
    network = cast.network()
    network.tamper = losing(Close)
    begin(cast, network, tolerated=7, most=3, clients_expected=9)
    counts = [len(held_by(network, cast, node)) for node in range(2)]
    fuller = counts.index(max(counts))
    assert max(counts) > 3
    assert network.actors[cast.computes[fuller]].dropped["full"] == max(counts) - 3


# Aborts


def test_a_node_that_aborts_ends_the_round_for_all() -> None:
    """Some released and some aborted: the trainer adds nothing."""
    cast = exact_cast(4, 3)
    network = cast.network()
    late = cast.computes[2]
    network.tamper = losing(FrozenList, Answer, to=late)
    begin(cast, network)
    until_the_end(network)
    assert late in [fact.compute for fact in network.reported(NodeAborted)]
    assert network.reported(Released, late) == []
    assert results(network) == []
    assert "aborted: peer-silent" in failures(network)[0].reason


def test_forged_lists_answers_and_aborts_are_dropped() -> None:
    cast = exact_cast(4, 3)
    network = cast.network()
    network.tamper = losing(Answer, Abort)
    begin(cast, network)
    told = sent(network, Answer, sender=cast.computes[1], to=cast.computes[0])[0]
    for signer in (cast.compute_identities[2], cast.trainer_identity, cast.client_identities[0]):
        refused(network, cast.computes[0], told.sender, forged(cast, signer, body_of(told.payload)), "signature")
    refused(network, cast.computes[0], cast.clients[0], told.payload, "unknown-compute")
    opened = announced(network, cast)
    body = Abort(4, opened.body.round_id, cast.computes[1], opened.hash, "too-few", "x", 1, 3, ())
    for signer in (cast.compute_identities[2], cast.trainer_identity):
        refused(network, cast.computes[0], signer.id, forged(cast, signer, body), "signature")
    assert isinstance(body_of(sent(network, FrozenList)[0].payload), Sealed)
