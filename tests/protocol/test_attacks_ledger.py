"""Attack 17, ledgers restored from what they were: who notices, and what a client takes from a Compute node's word."""

from __future__ import annotations

import msgspec
import pytest
from scene import (
    EASY,
    OneTight,
    begin,
    body_of,
    copy_of,
    exact_cast,
    exact_sum,
    flipped,
    forged,
    losing,
    refused,
    restore,
    restored_client,
    results,
    sealed_kind,
    sends,
    sent,
    until_the_end,
)
from wiretap import opened_share

from dca_proto.core.charges import WINDOW
from dca_proto.core.codec import encode
from dca_proto.core.effects import Send
from dca_proto.core.events import Received, TimerFired
from dca_proto.core.events import Timer as TimerName
from dca_proto.core.facts import Declined, LedgerBehind
from dca_proto.core.ledger import TABLE as LEDGER
from dca_proto.core.messages import Behind, Decline, Receipt, Sealed, Share, Start
from dca_proto.core.params import PROTOCOL_VERSION
from dca_proto.core.round import session_hash
from dca_proto.core.upload import CHARGE_BYTES
from dca_proto.testing import Cast, Envelope, Network, NoNoise

# 17: ledgers restored from what they were


def test_attack_17_a_restored_ledger_is_noticed_at_its_first_share() -> None:
    cast, network, victim = restored_client(rounds=3, forgotten=1)
    begin(cast, network)
    until_the_end(network)
    last = sent(network, Share, sender=victim)[-1].round_id
    assert network.reported(LedgerBehind) == [LedgerBehind(last, compute, 3, 3) for compute in cast.computes]
    assert results(network)[-1].value.tolist() == [exact_sum(range(1, 4))], "the others go on without it"
    for compute in cast.computes:
        assert network.actors[compute].dropped == {"ledger-rollback": 1}, "told once, and not sent again"
    assert len(network.actors[victim].ledger.charges) == 3, "what may have left stays spent"


def test_attack_17_a_client_that_heard_of_it_declines_until_it_starts_again() -> None:
    """Joined rounds too, at their start. The declines are kept for its owner; the word itself is not, so that a lying
    Compute node can do no lasting harm."""
    cast, network, victim = restored_client(rounds=2, forgotten=1)
    network.tamper = losing(Start)
    begin(cast, network)
    begin(cast, network)
    network.tamper = lambda one: [one]
    first, second = sent(network, Start, to=victim)[-2:]
    for start in (first, second):
        network.handle(victim, Received(start.sender, start.payload))
        network.deliver()
    _, last = begin(cast, network)
    answers = [one.payload for one in sent(network, Sealed, sender=victim) if one.round_id == last.round_id]
    assert [sealed_kind(network, cast, answer) for answer in answers] == [Decline], "no Join leaves"
    declined = network.reported(Declined, victim)
    assert [one.reason for one in declined] == ["ledger", "ledger"]
    assert declined[0].found == "Compute node compute-2 says that charge number 2 was used before"
    assert declined[0].expected == "a number that no Compute node has seen; the highest is 2"
    noted = network.actors[victim].declines.rounds
    assert [(one.reason, one.found) for one in noted] == [("ledger", one.found) for one in declined]
    assert [(one.statistic, one.epsilon) for one in noted] == [("sum", 1.0)] * 2
    assert len(network.actors[victim].ledger.charges) == 2, "a declined round costs nothing"
    until_the_end(network)
    network.restart(victim)
    assert [one.reason for one in network.actors[victim].declines.rounds] == ["ledger", "ledger"]
    begin(cast, network)
    assert len(network.actors[victim].ledger.charges) == 3


def test_attack_17_that_the_ledger_forgot_is_said_before_anything_else() -> None:
    """Whatever else is wrong with a round: what is left of a budget is unknown, and the owner has to hear it."""
    cast, network, victim = restored_client(rounds=2, forgotten=1)
    begin(cast, network)
    begin(cast, network, epsilon=30.0)
    begin(cast, network, parameters={"columns": ["y"], "centre": [0.0], "scale": [1.0], "bound": [1.0]})
    declined = [one for one in network.reported(Declined) if one.client == victim]
    assert {one.reason for one in declined} == {"ledger"}
    assert {one.reason for one in network.reported(Declined, cast.clients[1])} == {"epsilon", "columns"}


@pytest.mark.parametrize("forgotten", [1, 3])
def test_attack_17_at_equal_prices_a_restored_ledger_cannot_spend_its_budget_twice(forgotten: int) -> None:
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


def test_attack_17_cheap_rounds_lead_a_restored_ledger_past_dear_ones() -> None:
    """Documented limit: numbers are compared, not prices. Whoever starts it again after each alarm, and has the
    forgotten numbers charged anew for next to nothing, gets the budget a second time. The alarms are all there is."""
    cast, network, victim = restored_client(3, 3, OneTight(4, 3, mechanism=NoNoise(), policy=EASY))
    for epsilon in (0.001, 0.001, 0.001, 1.0, 1.0, 1.0):
        begin(cast, network, epsilon=epsilon)
        until_the_end(network)
        network.restart(victim)
    place = sorted(cast.clients).index(victim)
    summed = [place not in result.absent for result in results(network)]
    assert summed == [True] * 3 + [False] * 3 + [True] * 3, "six dear ones, twice what its policy has room for"
    assert len(network.reported(LedgerBehind, victim)) == 3 * 3


def test_attack_17_more_forgotten_charges_than_the_window_holds() -> None:
    """A number 64 or more below the highest is refused unseen. The client, whose own ledger is far from there, has no
    reason to take its share for a late one."""
    cast, network, victim = restored_client(WINDOW + 6, WINDOW + 5, exact_cast(4, 2, policy=EASY))
    begin(cast, network)
    heard = {(fact.charge, fact.highest) for fact in network.reported(LedgerBehind, victim)}
    assert heard == {(2, WINDOW + 6)}
    begin(cast, network)
    assert network.reported(Declined, victim)[-1].expected.endswith(f"the highest is {WINDOW + 6}")


def test_attack_17_a_forgotten_charge_whose_shares_never_arrived_is_no_second_one() -> None:
    """Nobody holds anything of it: its number is new when it comes again, also after a later one."""
    cast = exact_cast(4, 3)
    network = cast.network()
    victim = cast.clients[0]
    begin(cast, network)
    copy = copy_of(network, victim)
    network.tamper = losing(Share, sender=victim)
    begin(cast, network)
    until_the_end(network)
    network.tamper = lambda one: [one]
    begin(cast, network)
    until_the_end(network)
    restore(network, victim, copy)
    begin(cast, network)
    until_the_end(network)
    assert network.reported(LedgerBehind) == []
    assert results(network)[-1].value.tolist() == [exact_sum(range(4))]
    begin(cast, network)
    assert [(fact.charge, fact.highest) for fact in network.reported(LedgerBehind)] == [(3, 3)] * 3


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
    for told in (network.reported(Declined, victim)[0], network.actors[victim].declines.rounds[0]):
        assert told.reason == "ledger"
        assert told.found == "Compute node compute-0 says that charge number 1 was used before", "whose word it is"
        assert told.expected == "a number that no Compute node has seen; the highest is 7"
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
        is_share = isinstance(body_of(one.payload), Share)
        if not held and is_share and (one.sender, one.to.id) == (victim, node):
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
    """The number is encrypted with the share: one that was changed on the way opens nowhere."""
    cast = Cast(4, 3)
    network = cast.network()
    network.tamper = losing(Share)
    begin(cast, network)
    for one in sent(network, Share, sender=cast.clients[0]):
        share = body_of(one.payload)
        higher = encode(msgspec.structs.replace(share, ciphertext=flipped(share.ciphertext, CHARGE_BYTES - 1)))
        refused(network, one.to.id, one.sender, higher, "ciphertext")
        refused(network, one.to.id, cast.clients[1], one.payload, "ciphertext")


def test_only_a_compute_node_reads_how_many_charges_there_were() -> None:
    """The number is behind the encryption, in a fixed number of bytes: nothing of a share tells the 300th charge from
    the first, but to whoever holds its key."""
    cast = Cast(4, 2, policy=EASY)
    network = cast.network()
    begin(cast, network, encoding="vector")
    victim = cast.clients[0]
    (charge,) = network.actors[victim].ledger.charges
    network.stores[victim][LEDGER, bytes(16)] = encode(msgspec.structs.replace(charge, round_id=bytes(16), number=299))
    network.restart(victim)
    begin(cast, network, encoding="vector")
    shares = sent(network, Share, sender=victim, to=cast.computes[0])
    client = network.actors[victim]
    assert [opened_share(client, Send(one.to, one.round_id, one.payload))[0] for one in shares] == [1, 300]
    assert len({len(one.payload) for one in shares}) == 1
    assert Share.__struct_fields__ == ("round_id", "contribution", "nonce", "ciphertext")
    assert [network.actors[node]._charges.highest(victim) for node in cast.computes] == [300, 300]


def test_charge_numbers_outlive_rounds_and_restarts_at_a_node() -> None:
    cast, network, victim = restored_client(rounds=2, forgotten=2)
    until_the_end(network, 24 * 9)
    for compute in cast.computes:
        network.restart(compute)
        assert network.actors[compute]._rounds == {}, "forgotten"
    begin(cast, network)
    assert [fact.charge for fact in network.reported(LedgerBehind, victim)] == [1, 1, 1]
