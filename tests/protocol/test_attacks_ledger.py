"""Attacks by copies of a client: retries, forks and ledgers restored from what they were, and who notices."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from scene import (
    EASY,
    OneTight,
    begin,
    body_of,
    copy_of,
    exact_cast,
    exact_sum,
    forged,
    losing,
    refused,
    restore,
    restored_client,
    results,
    sends,
    sent,
    until_the_end,
)

from dca_proto.core.charges import WINDOW
from dca_proto.core.codec import encode
from dca_proto.core.events import Received, TimerFired
from dca_proto.core.events import Timer as TimerName
from dca_proto.core.facts import Declined, LedgerBehind
from dca_proto.core.messages import Behind, Receipt, Share, Start
from dca_proto.core.params import PROTOCOL_VERSION
from dca_proto.core.round import session_hash
from dca_proto.testing import Cast, Envelope, Network, NoNoise


def charge_numbers(network: Network, client: bytes) -> list[int]:
    """As they were on the wire, in order."""
    found = [body_of(one.payload).charge for one in sent(network, Share, sender=client)]
    return list(dict.fromkeys(found))


# 17: noise, seeds and charges after a retry, a fork, a restored copy


def test_attack_17_a_retry_resends_the_same_bytes() -> None:
    """Never the same value under other noise: across lost messages, back-off and restarts, one ciphertext a node."""
    cast = Cast(4, 3)
    network = cast.network()
    network.tamper = losing(Receipt)
    begin(cast, network, share_window_ms=600_000)
    for _ in range(3):
        network.advance(network.now_ms + 20_000)
        network.restart(cast.clients[0])
        network.deliver()
    for node in cast.computes:
        copies = [one.payload for one in sent(network, Share, sender=cast.clients[0], to=node)]
        assert len(copies) > 4
        assert len(set(copies)) == 1
    assert charge_numbers(network, cast.clients[0]) == [1]
    assert network.reported(LedgerBehind) == [], "the same contribution again is no second one"


def test_attack_17_a_fork_draws_fresh_noise_is_never_mixed_and_both_hear_of_it() -> None:
    """Two copies of one device take part in the same round. Their contributions differ in id and in all of the noise;
    each node keeps one; the pairs differ between nodes, so neither is summed; and the client is told."""
    cast = exact_cast(5, 3)
    network = cast.network()
    network.tamper = losing(Start)
    begin(cast, network, tolerated=1)
    victim = cast.clients[0]
    twin = cast.client(0, [(table, key, value) for (table, key), value in copy_of(network, victim).items()])
    (start,) = sent(network, Start, to=victim)
    made = [
        sends(actor.handle(Received(start.sender, start.payload), network.now_ms))
        for actor in (network.actors[victim], twin)
    ]
    frames = [[body_of(send.payload) for send in copy] for copy in made]
    assert len({frame.contribution for copy in frames for frame in copy}) == 2
    assert {frame.charge for copy in frames for frame in copy} == {1}
    network.tamper = lambda one: [one]
    for send in (made[0][0], made[1][1], made[1][2], made[1][0]):  # node 0 has the first one's, the others the twin's
        network.handle(send.to.id, Received(victim, send.payload))
    for one in sent(network, Start):
        if one.to.id != victim:
            network.handle(one.to.id, Received(one.sender, one.payload))
    until_the_end(network)
    assert results(network)[0].value.tolist() == [exact_sum(range(1, 5))]
    assert {fact.compute for fact in network.reported(LedgerBehind, victim)} == set(cast.computes)


def test_attack_17_copies_of_one_store_never_repeat_a_key() -> None:
    """The noise of two copies that restart from the same bytes is independent: nothing about it is stored."""
    cast = Cast(4, 2)
    network = cast.network()
    network.tamper = losing(Start)
    begin(cast, network)
    victim = cast.clients[0]
    records = [(table, key, value) for (table, key), value in copy_of(network, victim).items()]
    (start,) = sent(network, Start, to=victim)
    copies = [cast.client(0, records).handle(Received(start.sender, start.payload), network.now_ms) for _ in range(8)]
    frames = [[body_of(send.payload) for send in sends(effects)] for effects in copies]
    ciphertexts = [frame.ciphertext for copy in frames for frame in copy]
    assert len(set(ciphertexts)) == len(ciphertexts) == 16
    assert len({copy[0].contribution for copy in frames}) == 8


def test_attack_17_a_restored_ledger_is_noticed_at_its_first_share() -> None:
    cast, network, victim = restored_client(rounds=3, forgotten=1)
    begin(cast, network)
    until_the_end(network)
    assert charge_numbers(network, victim) == [1, 2, 3]
    last = sent(network, Share, sender=victim)[-1].round_id
    assert network.reported(LedgerBehind) == [LedgerBehind(last, compute, 3, 3) for compute in cast.computes]
    assert results(network)[-1].value.tolist() == [exact_sum(range(1, 4))], "the others go on without it"
    for compute in cast.computes:
        assert network.actors[compute].dropped == {"ledger-rollback": 1}, "told once, and not sent again"
    assert len(network.actors[victim].ledger.charges) == 3, "what may have left stays spent"


def test_attack_17_a_client_that_heard_of_it_declines_until_it_starts_again() -> None:
    """Joined rounds too, at their start. Nothing of it is kept: a lying Compute node can do no lasting harm."""
    cast, network, victim = restored_client(rounds=2, forgotten=1)
    network.tamper = losing(Start)
    begin(cast, network)
    begin(cast, network)
    network.tamper = lambda one: [one]
    first, second = sent(network, Start, to=victim)[-2:]
    for start in (first, second):
        network.handle(victim, Received(start.sender, start.payload))
        network.deliver()
    begin(cast, network)
    declined = network.reported(Declined, victim)
    assert [one.reason for one in declined] == ["ledger", "ledger"]
    assert declined[0].found.startswith("charge number 3 comes next")
    assert declined[0].expected.startswith("a number above 2")
    noted = network.actors[victim].declines.rounds
    assert [(one.reason, one.statistic, one.epsilon) for one in noted] == [("ledger", "sum", 1.0)] * 2
    assert len(network.actors[victim].ledger.charges) == 2, "a declined round costs nothing"
    until_the_end(network)
    network.restart(victim)
    assert [one.reason for one in network.actors[victim].declines.rounds] == ["ledger", "ledger"]
    begin(cast, network)
    assert len(network.actors[victim].ledger.charges) == 3


@pytest.mark.parametrize("forgotten", [1, 3])
def test_attack_17_a_restored_ledger_cannot_spend_its_budget_twice(forgotten: int) -> None:
    """Whoever starts it again and again: each forgotten number has to be charged anew before a share is kept, so rounds
    of one price are never summed beyond the budget, although the ledger had forgotten them."""
    cast, network, victim = restored_client(3, forgotten, OneTight(4, 3, mechanism=NoNoise(), policy=EASY))
    assert len(network.actors[victim].ledger.charges) == 3 - forgotten
    for _ in range(6):
        begin(cast, network)
        until_the_end(network)
        network.restart(victim)
    place = sorted(cast.clients).index(victim)
    summed = [result for result in results(network) if place not in result.absent and result.contributors == 4]
    assert len(summed) == 3
    assert network.reported(Declined, victim)[-1].reason == "budget"
    assert len(network.reported(LedgerBehind, victim)) == 3 * forgotten


def test_attack_17_one_honest_node_that_remembers_is_enough() -> None:
    """The other two were restored with the client and keep its share: S is what all M hold."""
    cast = exact_cast(4, 3)
    network = cast.network()
    victim = cast.clients[0]
    restored = (victim, *cast.computes[:2])
    copies = {actor: copy_of(network, actor) for actor in restored}
    begin(cast, network)
    until_the_end(network)
    for actor in restored:
        restore(network, actor, copies[actor])
    begin(cast, network)
    until_the_end(network)
    assert [fact.compute for fact in network.reported(LedgerBehind)] == [cast.computes[2]]
    assert results(network)[-1].value.tolist() == [exact_sum(range(1, 4))]


def test_attack_17_all_restored_together_notice_nothing() -> None:
    """Documented limit: where nobody remembers, a number is new again. The noise is fresh even so."""
    cast = Cast(4, 2)
    network = cast.network()
    copies = {actor: copy_of(network, actor) for actor in (*cast.clients, *cast.computes)}
    for _ in range(2):
        begin(cast, network)
        until_the_end(network)
        for actor, copy in copies.items():
            restore(network, actor, copy)
    assert network.reported(LedgerBehind) == []
    assert charge_numbers(network, cast.clients[0]) == [1]
    first, second = (result.value for result in results(network))
    assert not np.array_equal(first, second), "the same data under two noises"


# The word of a Compute node that a client is behind


def waiting_client() -> tuple[Cast, Network, bytes, Behind]:
    """A client that waits for receipts, and what a node could tell it."""
    cast = Cast(4, 3)
    network = cast.network()
    network.tamper = losing(Receipt)
    begin(cast, network)
    victim = cast.clients[0]
    (start,) = sent(network, Start, to=victim)
    session = session_hash(body_of(start.payload).terms)
    return cast, network, victim, Behind(PROTOCOL_VERSION, start.round_id, session, victim, 1, 7)


def test_word_of_another_node_session_client_or_charge_is_dropped() -> None:
    cast, network, victim, body = waiting_client()
    node, other = cast.compute_identities[:2]
    replace = msgspec.structs.replace
    refused(network, victim, node.id, forged(cast, other, body), "signature")
    refused(network, victim, cast.trainer_identity.id, forged(cast, cast.trainer_identity, body), "unknown-compute")
    refused(network, victim, node.id, forged(cast, node, replace(body, session_hash=bytes(32))), "session")
    refused(network, victim, node.id, forged(cast, node, replace(body, client=cast.clients[1])), "phase")
    refused(network, victim, node.id, forged(cast, node, replace(body, round_id=bytes(16))), "phase")
    refused(network, victim, node.id, forged(cast, node, replace(body, charge=2)), "ledger")
    network.handle(victim, Received(node.id, forged(cast, node, body)))
    assert network.reported(LedgerBehind) == [LedgerBehind(body.round_id, node.id, 1, 7)]


def test_a_client_that_is_told_stops_resending_to_that_node_only() -> None:
    cast, network, victim, body = waiting_client()
    node = cast.compute_identities[0]
    for _ in range(2):
        network.handle(victim, Received(node.id, forged(cast, node, body)))
    assert len(network.reported(LedgerBehind)) == 1, "said once"
    again = network.actors[victim].handle(TimerFired(TimerName("resend", body.round_id)), network.now_ms)
    assert {send.to.id for send in sends(again)} == set(cast.computes[1:])


def test_a_lying_node_costs_a_client_the_rounds_until_its_next_start_and_no_budget() -> None:
    """Documented limit: it could as well abort those rounds, or leave the client out of them."""
    cast, network, victim, body = waiting_client()
    liar = cast.compute_identities[0]
    network.handle(victim, Received(liar.id, forged(cast, liar, body)))
    charges = network.actors[victim].ledger.charges
    begin(cast, network)
    assert network.reported(Declined, victim)[0].reason == "ledger"
    assert network.actors[victim].ledger.charges == charges
    network.restart(victim)
    begin(cast, network)
    assert len(network.actors[victim].ledger.charges) == 2


def test_a_share_that_was_held_back_for_long_makes_no_client_a_restored_one() -> None:
    """The broker delays one share until `WINDOW` later ones have come. The node cannot tell any more and refuses it;
    the client knows that it has charged all those numbers itself, and takes nothing from it."""
    cast = exact_cast(2, 2, policy=EASY)
    network = cast.network()
    victim, node = cast.clients[0], cast.computes[0]
    held: list[Envelope] = []

    def hold(one: Envelope) -> list[Envelope]:
        first = isinstance(body_of(one.payload), Share) and body_of(one.payload).charge == 1
        if first and (one.sender, one.to.id) == (victim, node):
            held.append(one)
            return []
        return [one]

    network.tamper = hold
    for _ in range(WINDOW + 1):
        begin(cast, network, tolerated=0, share_window_ms=600_000)
    assert len(network.actors[victim].ledger.charges) == WINDOW + 1
    network.tamper = lambda one: [one]
    network.handle(node, Received(held[0].sender, held[0].payload))
    network.deliver()
    assert network.actors[node].dropped == {"ledger-rollback": 1}
    assert network.actors[victim].dropped == {"ledger": 1}
    assert network.reported(LedgerBehind) == []
    begin(cast, network, tolerated=0)
    assert network.reported(Declined) == []


def test_nobody_else_can_use_up_a_clients_numbers() -> None:
    """The number is bound into the encryption: a share whose number was changed on the way opens nowhere."""
    cast = Cast(4, 3)
    network = cast.network()
    network.tamper = losing(Share)
    begin(cast, network)
    for one in sent(network, Share, sender=cast.clients[0]):
        higher = encode(msgspec.structs.replace(body_of(one.payload), charge=(1 << 32) - 1))
        refused(network, one.to.id, one.sender, higher, "ciphertext")
        refused(network, one.to.id, cast.clients[1], one.payload, "ciphertext")


def test_charge_numbers_outlive_rounds_and_restarts_at_a_node() -> None:
    cast, network, victim = restored_client(rounds=2, forgotten=2)
    until_the_end(network, 24 * 9)
    for compute in cast.computes:
        network.restart(compute)
        assert network.actors[compute]._rounds == {}, "forgotten"
    begin(cast, network)
    assert [fact.charge for fact in network.reported(LedgerBehind, victim)] == [1, 1, 1]
