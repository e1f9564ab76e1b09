"""Attacks on which contributions are in the sum: consistency of sets, rosters and shares."""

from __future__ import annotations

import msgspec
import pytest
from scene import (
    announced,
    begin,
    body_of,
    changed,
    exact_cast,
    exact_sum,
    failures,
    forged,
    losing,
    refused,
    resigned,
    results,
    sealed_by,
    sealed_kind,
    sent,
    the_sum,
    unsealed,
    until_the_end,
)

from dca_proto.core.codec import decode_frame, encode
from dca_proto.core.events import Received
from dca_proto.core.facts import NodeAborted, Released, RoundCompleted
from dca_proto.core.messages import Behind, Frozen, FrozenList, PartialSum, Roster, Share, Start
from dca_proto.core.params import PROTOCOL_VERSION
from dca_proto.core.round import list_hash, roster_hash, session_hash
from dca_proto.core.sealing import actor_id, decrypt, encrypt
from dca_proto.core.upload import CHARGE_BYTES, associated_data, plaintext, round_key
from dca_proto.testing import Cast, Envelope


def test_attack_1_compute_nodes_hold_different_sets() -> None:
    """S is what all hold; one sum is released over it, once by each node."""
    cast = exact_cast(6, 3)
    network = cast.network()
    lost = {
        (cast.clients[0], cast.computes[0]),
        (cast.clients[1], cast.computes[1]),
        (cast.clients[1], cast.computes[2]),
    }
    network.tamper = lambda one: (
        [] if isinstance(body_of(one.payload), Share) and (one.sender, one.to.id) in lost else [one]
    )
    begin(cast, network, tolerated=2)
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum((2, 3, 4, 5))]
    assert [fact.contributors for fact in network.reported(Released)] == [4, 4, 4]
    assert len({fact.contributors_hash for fact in network.reported(Released)}) == 1


def test_attack_1_different_sets_below_the_threshold_release_nothing() -> None:
    """Each node alone holds N - 1 >= N - T contributions, but all together N - 3: an abort with figures."""
    cast = exact_cast(6, 3)
    network = cast.network()
    lost = set(zip(cast.clients, cast.computes, strict=False))
    network.tamper = lambda one: (
        [] if isinstance(body_of(one.payload), Share) and (one.sender, one.to.id) in lost else [one]
    )
    begin(cast, network, tolerated=2)
    until_the_end(network)
    assert results(network) == []
    assert (failures(network)[0].contributors, failures(network)[0].needed) == (3, 4)
    assert network.reported(Released) == []


def test_attack_2_same_count_swapped_members() -> None:
    """The roster's hash covers every signed join, sorted by id: swapping one member changes session and keys."""
    cast = exact_cast(5, 3)
    network, _ = begin(cast, tolerated=1)
    roster = body_of(sent(network, Roster)[0].payload)
    members = [(actor_id(msgspec.msgpack.decode(join.body)[4][0]), join) for join in roster.joins]
    assert roster_hash(members) == roster.terms.roster_hash
    swapped, doubled = [members[0], *members[2:], members[1]], [members[0], members[0], *members[2:]]
    assert len({roster_hash(one) for one in (members, swapped, doubled)}) == 3
    epoch = [(t, k, v) for (t, k), v in network.stores[cast.computes[0]].items() if t == "epoch"]
    network.actors[cast.computes[0]] = cast.compute(0, epoch)
    for other in (swapped, doubled):
        joins = tuple(join for _, join in other)
        for hashed in (roster.terms.roster_hash, roster_hash(other)):  # also where the trainer hashes what it sends
            terms = msgspec.structs.replace(roster.terms, roster_hash=hashed)
            payload = forged(cast, cast.trainer_identity, msgspec.structs.replace(roster, joins=joins, terms=terms))
            refused(network, cast.computes[0], cast.trainer_identity.id, payload, "roster")


def test_attack_4_a_compute_node_tells_different_peers_different_sets() -> None:
    """The partial sums carry the hashes of all lists as each node saw them: the trainer sees two and adds nothing."""
    cast = exact_cast(6, 3)
    network = cast.network()
    liar = cast.compute_identities[0]

    def equivocate(one: Envelope) -> list[Envelope]:
        body = body_of(one.payload)
        if one.sender != liar.id or not isinstance(body, Frozen | FrozenList) or one.to.id != cast.computes[1]:
            return [one]
        entries = network.actors[liar.id]._rounds[body.round_id].stored.entries[:-20]
        hashed = list_hash(body.session_hash, entries)
        lie = Frozen(PROTOCOL_VERSION, body.round_id, body.session_hash, hashed, 5, False)
        short = FrozenList(PROTOCOL_VERSION, body.round_id, body.session_hash, entries)
        return [changed(one, forged(cast, liar, what)) for what in (lie, short)]

    network.tamper = equivocate
    begin(cast, network, tolerated=2)
    until_the_end(network)
    assert len(network.reported(Released)) >= 2
    assert results(network) == []
    assert "told its peers different lists" in failures(network)[0].reason


def test_attack_4_a_second_list_for_the_same_peer_is_refused() -> None:
    """The first hash that a node tells is the one it is held to."""
    cast = exact_cast(4, 3)
    network = cast.network()
    network.tamper = losing(Frozen, sender=cast.computes[2])
    begin(cast, network)
    told = sent(network, Frozen, sender=cast.computes[1], to=cast.computes[0])[0]
    other = resigned(cast, cast.compute_identities[1], told.payload, list_hash=bytes(32))
    refused(network, cast.computes[0], cast.computes[1], other, "equivocation")
    body = body_of(told.payload)
    short = FrozenList(PROTOCOL_VERSION, body.round_id, body.session_hash, bytes(20))
    refused(
        network, cast.computes[0], cast.computes[1], forged(cast, cast.compute_identities[1], short), "equivocation"
    )


def test_attack_4_partial_sums_over_different_sets_are_not_added() -> None:
    """A node that releases over another set than it agreed to is found out by the hash it must sign."""
    cast = exact_cast(4, 3)
    network = cast.network()
    liar = cast.compute_identities[0]

    def lie(one: Envelope) -> list[Envelope]:
        if one.sender != liar.id or sealed_kind(network, cast, one.payload) is not PartialSum:
            return [one]
        body = msgspec.structs.replace(unsealed(network, cast, one.payload), contributors=b"\x70")
        return [changed(one, sealed_by(cast, liar, body, announced(network, cast)))]

    network.tamper = lie
    begin(cast, network)
    assert results(network) == []
    assert "different sets of clients" in failures(network)[0].reason


@pytest.mark.parametrize("reached", [0, 1, 2])
def test_attack_6_shares_reach_only_some_compute_nodes(reached: int) -> None:
    """A contribution that not all nodes hold is in nobody's sum: its shares would leave uniform noise there."""
    cast = exact_cast(5, 3)
    network = cast.network()
    victim = cast.clients[4]
    network.tamper = lambda one: (
        []
        if one.sender == victim and isinstance(body_of(one.payload), Share) and one.to.id in cast.computes[reached:]
        else [one]
    )
    begin(cast, network, tolerated=1)
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum(range(4))]
    assert results(network)[0].absent == (sorted(cast.clients).index(victim),)


def test_attack_22_shares_that_do_not_match_spoil_one_sum_and_nothing_else() -> None:
    """Documented limit: a client can spoil the value (as any client can by lying), but not crash or block anyone."""
    cast = exact_cast(4, 3)
    network = cast.network()
    liar = network.actors[cast.clients[0]]
    network.tamper = losing(Share)
    begin(cast, network)

    opened = announced(network, cast)
    session = session_hash(body_of(sent(network, Start)[0].payload).terms)
    place = sorted(cast.clients).index(liar.id)
    for one in sent(network, Share):
        payload = one.payload
        if (one.sender, one.to.id) == (liar.id, cast.computes[0]):
            share = decode_frame(payload)
            pair_key = liar._keys.agree(liar._keys.epoch, opened.epochs[0].public)
            key = round_key(pair_key, session, liar.id, one.to.id, share.contribution)
            bound = associated_data(session, place, share.contribution)
            hidden = decrypt(key, share.nonce, share.ciphertext, bound)
            wrong = encrypt(key, share.nonce, plaintext(1, bytes(len(hidden) - CHARGE_BYTES)), bound)
            payload = encode(msgspec.structs.replace(share, ciphertext=wrong))
        network.handle(one.to.id, Received(one.sender, payload))
    network.tamper = lambda one: [one]
    network.deliver()
    until_the_end(network)
    assert len(results(network)) == 1
    assert the_sum(network).tolist() != [exact_sum(range(4))]


def test_attack_22_a_ciphertext_copied_from_another_client() -> None:
    """The key belongs to the pair, and session, position and contribution id are bound: a copy opens nowhere else."""
    cast = exact_cast(4, 3)
    network = cast.network()
    network.tamper = losing(Share)
    begin(cast, network)
    for one in sent(network, Share, sender=cast.clients[0]):
        refused(network, one.to.id, cast.clients[1], one.payload, "ciphertext")
        for other in set(cast.computes) - {one.to.id}:
            refused(network, other, cast.clients[0], one.payload, "ciphertext")


def test_attack_36_two_contributions_of_one_client_are_never_mixed() -> None:
    """A client runs twice (a restored copy): nodes that kept different contribution ids leave it out of S."""
    cast = exact_cast(5, 3)
    network = cast.network()
    network.tamper = losing(Share, sender=cast.clients[0])
    store_before_start: dict = {}

    def hold(one: Envelope) -> list[Envelope]:
        if isinstance(body_of(one.payload), Start) and one.to.id == cast.clients[0]:
            store_before_start.update(network.stores[cast.clients[0]])
        return losing(Share, sender=cast.clients[0])(one)

    network.tamper = hold
    begin(cast, network, tolerated=1)
    start = sent(network, Start, to=cast.clients[0])[0]
    twin = cast.client(0, [(table, key, value) for (table, key), value in store_before_start.items()])
    twin_shares = [
        e for e in twin.handle(Received(start.sender, start.payload), network.now_ms) if hasattr(e, "payload")
    ]
    first = sent(network, Share, sender=cast.clients[0])
    ids = {decode_frame(one.payload).contribution for one in [*first, *twin_shares]}
    assert len(ids) == 2
    mixed = [first[0], twin_shares[1], twin_shares[2]]
    network.tamper = lambda one: [one]
    for one in mixed:
        network.handle(one.to.id, Received(cast.clients[0], one.payload))
    dropped, told = network.handle(cast.computes[0], Received(cast.clients[0], twin_shares[0].payload))
    assert dropped.fact.code == "second-contribution"
    assert isinstance(body_of(told.payload), Behind), "and the client is told that it runs twice"
    network.down.add(cast.clients[0])
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum(range(1, 5))]


def test_attack_38_different_rosters_to_different_compute_nodes() -> None:
    """Each roster is another session: lists, hashes and keys of one session are nothing in another. No sum."""
    cast = exact_cast(6, 3)
    network = cast.network()

    def shorten(one: Envelope) -> list[Envelope]:
        body = body_of(one.payload)
        if not isinstance(body, Roster) or one.to.id != cast.computes[0]:
            return [one]
        joins = body.joins[:-1]
        members = [(actor_id(msgspec.msgpack.decode(join.body)[4][0]), join) for join in joins]
        terms = msgspec.structs.replace(body.terms, clients=5, roster_hash=roster_hash(members))
        return [changed(one, resigned(cast, cast.trainer_identity, one.payload, joins=joins, terms=terms))]

    network.tamper = shorten
    begin(cast, network, tolerated=2)
    until_the_end(network)
    assert results(network) == []
    assert network.reported(Released) == []


@pytest.mark.parametrize("change", [{"clients": 60}, {"tolerated": 0}, {"colluders": 1}, {"roster_hash": bytes(32)}])
def test_attack_38_other_terms_told_to_one_client(change: dict) -> None:
    """N, T, c and the roster are in the session hash, which keys the shares: a client told otherwise is not counted."""
    cast = exact_cast(5, 3)
    network = cast.network()
    victim = cast.clients[2]

    def tell(one: Envelope) -> list[Envelope]:
        body = body_of(one.payload)
        if not isinstance(body, Start) or one.to.id != victim:
            return [one]
        terms = msgspec.structs.replace(body.terms, **change)
        return [changed(one, resigned(cast, cast.trainer_identity, one.payload, terms=terms))]

    network.tamper = tell
    begin(cast, network, tolerated=1)
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum((0, 1, 3, 4))]
    assert len(network.reported(RoundCompleted)) == 1
    if "tolerated" in change or "colluders" in change:
        assert network.actors[victim].dropped["terms"] >= 1


def test_attack_38_a_position_of_another_client() -> None:
    """Without a position of its own a client neither charges nor shares."""
    cast = Cast(4, 3)
    network = cast.network()
    network.tamper = losing(Start)
    begin(cast, network)
    trainer, victim = cast.trainer_identity, cast.clients[0]
    start = sent(network, Start, to=cast.clients[1])[0].payload
    refused(network, victim, trainer.id, start, "position")
    own = sent(network, Start, to=victim)[0].payload
    refused(network, victim, trainer.id, resigned(cast, trainer, own, position=4), "position")
    assert network.actors[victim].ledger.charges == ()


def test_attack_38_another_clients_position_told_to_one_client() -> None:
    """The position is bound to the shares: at the right place of the roster they do not open, and nothing is mixed."""
    cast = exact_cast(5, 3)
    network = cast.network()
    victim = cast.clients[2]

    def tell(one: Envelope) -> list[Envelope]:
        body = body_of(one.payload)
        if not isinstance(body, Start) or one.to.id != victim:
            return [one]
        other = (body.position + 1) % 5
        return [changed(one, resigned(cast, cast.trainer_identity, one.payload, position=other))]

    network.tamper = tell
    begin(cast, network, tolerated=1)
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum((0, 1, 3, 4))]
    assert all(network.actors[node].dropped["ciphertext"] for node in cast.computes)


def test_a_node_that_aborts_ends_the_round_for_all() -> None:
    """Some released and some aborted: the trainer adds nothing."""
    cast = exact_cast(4, 3)
    network = cast.network()
    late = cast.computes[2]
    network.tamper = losing(Frozen, FrozenList, to=late)
    begin(cast, network)
    until_the_end(network)
    assert [fact.compute for fact in network.reported(NodeAborted)] == [late]
    assert len(network.reported(Released)) == 2
    assert results(network) == []
    assert "compute-2 aborted: peer-silent" in failures(network)[0].reason
