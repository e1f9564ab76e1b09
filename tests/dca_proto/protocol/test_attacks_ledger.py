"""Attack 17, ledgers restored from what they were: who notices, and which reports a client accepts."""

from __future__ import annotations

import msgspec
import pytest
from round_helpers import (
    EASY,
    OneTight,
    announced,
    begin,
    body_of,
    clients_of_node,
    copy_of,
    exact_actors,
    exact_sum,
    flipped,
    forged,
    hand_over,
    kind_of,
    losing,
    passing,
    refused,
    restore,
    restored_client,
    results,
    sealed_kind,
    sent,
    the_sum,
    until_the_end,
)
from wiretap import opened_contribution

from dca_proto.privacy.mechanism import ANALYTIC_GAUSSIAN
from dca_proto.protocol.charges import WINDOW, SeenCharges
from dca_proto.protocol.effects import Send
from dca_proto.protocol.events import Received
from dca_proto.protocol.facts import Declined, LedgerReused, NodeAborted
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.wire.codec import encode
from dca_proto.protocol.wire.kinds import LdpReport
from dca_proto.protocol.wire.messages import ChargeReused, Close, Contribution, Decline, Receipt, Sealed
from dca_proto.testing import Envelope, Network, NoNoise, TestFederation

# 17: ledgers restored from what they were


def numbers_of(network: Network, actors: TestFederation, client: bytes) -> list[int]:
    """The highest charge number that each node remembers of a client."""
    nodes = [network.actors[node] for node in actors.computes]
    return [actor._charges.highest(actor._sessions.slots[client]) for actor in nodes]


def test_attack_17_a_restored_ledger_is_noticed_at_its_first_contribution() -> None:
    """The holder reports it at once; it keeps nothing, so that nobody else has to object."""
    actors, network, victim = restored_client(rounds=3, forgotten=1)
    begin(actors, network)
    until_the_end(network)
    last = sent(network, Contribution, sender=victim)[-1]
    (reuse,) = network.reported(LedgerReused)
    assert reuse == LedgerReused(last.round_id, last.to.id, 3, 3)
    assert results(network)[-1].value.tolist() == [exact_sum(range(1, 4))], "the others go on without it"
    assert network.actors[last.to.id].dropped["ledger-rollback"] >= 1
    assert len(network.actors[victim].ledger.charges) == 3, "what may have left stays spent"


def test_attack_17_a_lying_holder_cannot_hide_a_restored_copy_from_the_other_nodes() -> None:
    """G2: the holder colludes and keeps the contribution all the same. Each other node sees number, id and tag on the
    list, objects, and informs the client itself."""
    actors = exact_actors(7, 3)
    network = actors.network()
    begin(actors, network)
    until_the_end(network)
    victims = {client: copy_of(network, client) for client in actors.clients}
    begin(actors, network)
    until_the_end(network)
    for client, copy in victims.items():
        restore(network, client, copy)
    liar = network.actors[actors.computes[0]]
    liar._charges = SeenCharges(())  # it looks away
    begin(actors, network, tolerate=5)
    until_the_end(network)
    assigned = {actors.clients[index] for index in clients_of_node(network, actors, 0)}
    reports = {(who, fact.compute) for who, fact in network.facts if isinstance(fact, LedgerReused)}
    assert {who for who, _ in reports} == set(actors.clients)
    assert all(compute != liar.id for who, compute in reports if who in assigned), "two honest nodes are enough"
    assert len(results(network)) == 2


def test_attack_17_a_notified_client_declines_until_it_restarts() -> None:
    """The client stores the declines, not the node's report, so that a lying node does no lasting harm."""
    actors, network, victim = restored_client(rounds=2, forgotten=1)
    begin(actors, network)
    _, last = begin(actors, network)
    answers = [one.payload for one in sent(network, Sealed, sender=victim) if one.round_id == last.round_id]
    assert [sealed_kind(network, actors, answer) for answer in answers] == [Decline], "no contribution leaves"
    declined = network.reported(Declined, victim)
    assert [one.reason for one in declined] == ["ledger"]
    assert declined[0].found.endswith("reports that charge number 2 was used before")
    assert declined[0].expected == "a number that no Compute node has seen; the highest is 2"
    noted = network.actors[victim].declines.rounds
    assert [(one.reason, one.found) for one in noted] == [("ledger", one.found) for one in declined]
    assert [(one.statistic, one.epsilon) for one in noted] == [("sum", 1.0)]
    assert len(network.actors[victim].ledger.charges) == 2, "a declined round costs nothing"
    until_the_end(network)
    network.restart(victim)
    assert [one.reason for one in network.actors[victim].declines.rounds] == ["ledger"]
    begin(actors, network)
    assert len(network.actors[victim].ledger.charges) == 3


def test_attack_17_a_restored_ledger_is_reported_before_anything_else() -> None:
    """Whatever else is wrong with a round: what is left of a budget is unknown, and the owner has to know it."""
    actors, network, victim = restored_client(rounds=2, forgotten=1)
    begin(actors, network)
    begin(actors, network, epsilon=30.0)
    begin(actors, network, parameters={"columns": ["y"], "centre": [0.0], "scale": [1.0], "bound": [1.0]})
    declined = [one for one in network.reported(Declined) if one.client == victim]
    assert {one.reason for one in declined} == {"ledger"}
    assert {one.reason for one in network.reported(Declined, actors.clients[1])} == {"epsilon", "columns"}


def present(network: Network, actors: TestFederation, victim: bytes) -> list[bool]:
    """Whether a client is in each result, by the exact sum of the others."""
    others = exact_sum(range(1, 4))
    assert victim == actors.clients[0]
    return [result.value.tolist() != [others] for result in results(network)]


@pytest.mark.parametrize("forgotten", [1, 3])
def test_attack_17_at_equal_prices_a_restored_ledger_cannot_spend_its_budget_twice(forgotten: int) -> None:
    """Whoever starts it again and again: each forgotten number has to be charged anew before a contribution is kept, so
    rounds of one price are never summed beyond the budget, although the ledger had forgotten them."""
    actors, network, victim = restored_client(3, forgotten, OneTight(4, 3, mechanism=NoNoise(), rows=None, policy=EASY))
    assert len(network.actors[victim].ledger.charges) == 3 - forgotten
    for _ in range(6):
        begin(actors, network)
        until_the_end(network)
        network.restart(victim)
    assert sum(result.contributors == 4 for result in results(network)) == 3
    assert network.reported(Declined, victim)[-1].reason == "budget"
    assert len(network.reported(LedgerReused, victim)) == forgotten


def test_attack_17_cheap_rounds_lead_a_restored_ledger_past_dear_ones() -> None:
    """Documented limit: numbers are compared, not prices. Whoever starts it again after each alarm, and has the
    forgotten numbers charged anew for next to nothing, gets the budget a second time. The alarms are all there is."""
    actors, network, victim = restored_client(3, 3, OneTight(4, 3, mechanism=NoNoise(), policy=EASY))
    for epsilon in (0.001, 0.001, 0.001, 1.0, 1.0, 1.0):
        begin(actors, network, epsilon=epsilon)
        until_the_end(network)
        network.restart(victim)
    summed = [result.contributors == 4 for result in results(network)]
    assert summed == [True] * 3 + [False] * 3 + [True] * 3, "six dear ones, twice what its policy has room for"
    assert len(network.reported(LedgerReused, victim)) == 3


@pytest.mark.long
def test_attack_17_more_forgotten_charges_than_the_window_holds() -> None:
    """A number 64 or more below the highest is refused unseen. The client, whose own ledger is far from there, has no
    reason to take its contribution for a late one."""
    actors, network, victim = restored_client(WINDOW + 6, WINDOW + 5, exact_actors(4, 2, policy=EASY))
    begin(actors, network)
    reports = {(fact.charge, fact.highest) for fact in network.reported(LedgerReused, victim)}
    assert reports == {(2, WINDOW + 6)}
    begin(actors, network)
    assert network.reported(Declined, victim)[-1].expected.endswith(f"the highest is {WINDOW + 6}")


def test_attack_17_a_forgotten_charge_without_a_delivered_contribution_is_no_reuse() -> None:
    """Nobody holds anything of it: its number is new when it comes again, also after a later one."""
    actors = exact_actors(4, 3)
    network = actors.network()
    victim = actors.clients[0]
    begin(actors, network)
    copy = copy_of(network, victim)
    network.tamper = losing(Contribution, sender=victim)
    begin(actors, network)
    until_the_end(network)
    network.tamper = passing
    begin(actors, network)
    until_the_end(network)
    restore(network, victim, copy)
    begin(actors, network)
    until_the_end(network)
    assert network.reported(LedgerReused) == []
    assert results(network)[-1].value.tolist() == [exact_sum(range(4))]
    begin(actors, network)
    assert [(fact.charge, fact.highest) for fact in network.reported(LedgerReused)] == [(3, 3)]


def test_attack_17_one_honest_node_that_remembers_is_enough() -> None:
    """The other two were restored with the client: whether they hold it or not, the third objects."""
    actors = exact_actors(4, 3)
    network = actors.network()
    victim = actors.clients[0]
    restored = (victim, *actors.computes[:2])
    network.deliver()
    copies = {actor: copy_of(network, actor) for actor in restored}
    begin(actors, network)
    until_the_end(network)
    for actor in restored:
        restore(network, actor, copies[actor])
    begin(actors, network)
    until_the_end(network)
    assert {fact.compute for fact in network.reported(LedgerReused)} == {actors.computes[2]}
    assert results(network)[-1].value.tolist() == [exact_sum(range(1, 4))]


# A Compute node's report that a charge was used before


def waiting_client() -> tuple[TestFederation, Network, bytes, ChargeReused]:
    """A client that waits for its receipt, and what a node could send it."""
    actors = TestFederation(4, 3)
    network = actors.network()
    network.tamper = losing(Receipt)
    begin(actors, network)
    victim, opened = actors.clients[0], announced(network, actors)
    return actors, network, victim, ChargeReused(opened.body.round_id, opened.hash, victim, 1, 7)


def test_a_reuse_report_for_another_node_announcement_client_or_charge_is_dropped() -> None:
    actors, network, victim, body = waiting_client()
    node, other = actors.compute_identities[:2]
    replace = msgspec.structs.replace
    refused(network, victim, node.id, forged(actors, other, body), "signature")
    refused(
        network, victim, actors.trainer_identity.id, forged(actors, actors.trainer_identity, body), "unknown-compute"
    )
    refused(network, victim, node.id, forged(actors, node, replace(body, announcement_hash=bytes(32))), "announcement")
    refused(network, victim, node.id, forged(actors, node, replace(body, client=actors.clients[1])), "phase")
    refused(network, victim, node.id, forged(actors, node, replace(body, round_id=bytes(16))), "phase")
    refused(network, victim, node.id, forged(actors, node, replace(body, charge=2)), "ledger")
    for _ in range(2):
        network.handle(victim, Received(node.id, forged(actors, node, body)))
    assert network.reported(LedgerReused) == [LedgerReused(body.round_id, node.id, 1, 7)], "reported once"


def test_a_lying_node_costs_a_client_the_rounds_until_its_next_start_and_no_budget() -> None:
    """Documented limit: it could as well abort those rounds, or object to the client."""
    actors, network, victim, body = waiting_client()
    liar = actors.compute_identities[0]
    network.handle(victim, Received(liar.id, forged(actors, liar, body)))
    charges = network.actors[victim].ledger.charges
    begin(actors, network)
    for decline in (network.reported(Declined, victim)[0], network.actors[victim].declines.rounds[0]):
        assert decline.reason == "ledger"
        assert decline.found == "Compute node compute-0 reports that charge number 1 was used before"
        assert decline.expected == "a number that no Compute node has seen; the highest is 7"
    assert network.actors[victim].ledger.charges == charges
    network.restart(victim)
    begin(actors, network)
    assert len(network.actors[victim].ledger.charges) == 2


def test_a_contribution_delayed_for_long_does_not_mark_its_client_as_restored() -> None:
    """G9: a round stays open beside 64 shorter ones. The client stops there: it declines while its next number is 64 or
    more above that of its oldest contribution without a receipt. So the late one accuses nobody."""
    actors = exact_actors(4, 2, policy=EASY)
    network = actors.network()
    victim = actors.clients[0]
    delayed: list[Envelope] = []

    def hold(one: Envelope) -> list[Envelope]:
        if kind_of(one) is Contribution and one.sender == victim and one.round_id == slow.round_id:
            delayed.append(one)
            return []
        return [one]

    slow = actors.request(tolerate=0, collect_s=3_600)
    network.tamper = hold
    network.deliver()
    network.command(actors.trainer_identity.id, slow)
    network.deliver()
    for _ in range(WINDOW + 1):
        begin(actors, network, tolerate=1)
    declined = network.reported(Declined, victim)
    assert {fact.reason for fact in declined} == {"open-rounds"}
    assert len(network.actors[victim].ledger.charges) == WINDOW
    network.tamper = passing
    hand_over(network, delayed[0])
    assert network.actors[delayed[0].to.id].dropped == {}
    network.advance(network.now_ms + 10_000)
    assert network.reported(LedgerReused) == []
    assert {fact.reason for fact in network.reported(NodeAborted)} == {"too-few"}, "the others went on beyond 64"
    assert not network.actors[actors.clients[1]].ledger.is_charged(slow.round_id)


def test_reports_without_a_receipt_hold_up_no_sums() -> None:
    """No Compute node sees their charge numbers. Otherwise a trainer that acknowledges none would stop all trainers'
    rounds at a client, for up to thirty days."""
    actors = exact_actors(4, 2, policy=EASY)
    network = actors.network()
    network.tamper = losing(Sealed)
    network.deliver()
    reports = actors.request(kind=LdpReport(ANALYTIC_GAUSSIAN), collect_s=864_000)
    network.command(actors.trainer_identity.id, reports)
    network.deliver()
    client = network.actors[actors.clients[0]]
    assert client._rounds[reports.round_id].stored.outbound is not None
    for number in range(client.ledger.next_number, 100):
        charge = msgspec.structs.replace(client.ledger[reports.round_id], number=number, round_id=bytes((number,)) * 16)
        client.ledger.charge(charge)
    network.tamper = passing
    _, request = begin(actors, network)
    assert request.round_id in client.ledger


def test_a_number_far_below_the_next_one_is_late_and_no_proof_of_a_restored_ledger() -> None:
    """A node may have forgotten; the client knows that it has charged all those numbers itself."""
    actors, network, victim, body = waiting_client()
    node = actors.compute_identities[0]
    client = network.actors[victim]
    client.ledger._highest = WINDOW + 6
    late = msgspec.structs.replace(body, highest=WINDOW + 5)
    refused(network, victim, node.id, forged(actors, node, late), "ledger")
    ahead = msgspec.structs.replace(body, highest=WINDOW + 7)
    network.handle(victim, Received(node.id, forged(actors, node, ahead)))
    assert len(network.reported(LedgerReused)) == 1


def test_a_contribution_replayed_after_the_release_locks_nobody_out() -> None:
    """While a node collects, and at its answer, it reports that a number was used; later it does not."""
    actors = exact_actors(4, 3)
    network = actors.network()
    network.tamper = losing(Receipt)
    begin(actors, network)
    network.tamper = passing
    assert len(results(network)) == 1
    for one in sent(network, Contribution):
        replies = network.handle(one.to.id, Received(one.sender, one.payload))
        assert [kind_of(each) for each in network.sent[-len(replies) :]] == [Receipt]
        again = encode(msgspec.structs.replace(body_of(one.payload), contribution=bytes(16)))
        network.handle(one.to.id, Received(one.sender, again))
    assert sent(network, ChargeReused) == []
    until_the_end(network)
    for one in sent(network, Contribution):
        network.handle(one.to.id, Received(one.sender, one.payload))
    assert sent(network, ChargeReused) == []
    begin(actors, network)
    assert results(network)[-1].contributors == 4


def test_nobody_else_can_use_up_a_clients_numbers() -> None:
    """The number is encrypted with the contribution: one that was changed on the way opens nowhere."""
    actors = TestFederation(4, 3)
    network = actors.network()
    network.tamper = losing(Contribution)
    begin(actors, network)
    (one,) = sent(network, Contribution, sender=actors.clients[0])
    frame = body_of(one.payload)
    for position in range(4):
        higher = encode(msgspec.structs.replace(frame, ciphertext=flipped(frame.ciphertext, position)))
        network.handle(one.to.id, Received(one.sender, higher))
    assert network.actors[one.to.id]._rounds[one.round_id].kept == {}
    assert numbers_of(network, actors, actors.clients[0]) == [0, 0, 0]


def test_only_a_compute_node_reads_how_many_charges_there_were() -> None:
    """The number is encrypted, in a fixed number of bytes. Without the key, the 300th charge looks like the first."""
    actors = exact_actors(4, 2, policy=EASY)
    network = actors.network()
    begin(actors, network)
    victim = actors.clients[0]
    (charge,) = network.actors[victim].ledger.charges
    network.stores[victim][LEDGER, bytes(16)] = encode(msgspec.structs.replace(charge, round_id=bytes(16), number=299))
    network.restart(victim)
    begin(actors, network)
    made = sent(network, Contribution, sender=victim)
    client = network.actors[victim]
    hidden = [opened_contribution(client, Send(one.to, one.round_id, one.payload)) for one in made]
    assert [kept.charge for kept in hidden] == [1, 300]
    assert len({len(one.payload) for one in made}) == 1
    assert Contribution.__struct_fields__ == ("round_id", "contribution", "ciphertext")
    assert numbers_of(network, actors, victim) == [300, 300]


def test_the_highest_number_and_the_round_after() -> None:
    """G2: number 2^32 - 1 is a number like any other; a client that reached it declines and does not wrap around."""
    actors = exact_actors(4, 2, policy=EASY)
    network = actors.network()
    begin(actors, network)
    victim = actors.clients[0]
    (charge,) = network.actors[victim].ledger.charges
    far = msgspec.structs.replace(charge, round_id=bytes(16), number=2**32 - 2)
    network.stores[victim][LEDGER, bytes(16)] = encode(far)
    network.restart(victim)
    begin(actors, network)
    assert results(network)[-1].contributors == 4
    assert numbers_of(network, actors, victim) == [2**32 - 1] * 2
    begin(actors, network)
    network.advance(network.now_ms + 10_000)
    assert results(network)[-1].contributors == 3
    assert [fact.reason for fact in network.reported(Declined, victim)] == ["charge-numbers"]


def test_charge_numbers_outlive_rounds_and_restarts_at_a_node() -> None:
    actors, network, victim = restored_client(rounds=2, forgotten=2)
    until_the_end(network, 24 * 9)
    for compute in actors.computes:
        network.restart(compute)
        assert network.actors[compute]._rounds == {}, "forgotten"
    begin(actors, network)
    assert [fact.charge for fact in network.reported(LedgerReused, victim)] == [1]


def test_the_tables_own_close_is_the_only_way_to_lose_a_number() -> None:
    """A contribution that was on no list is recorded nowhere: the straggler's number may come again, from its copy."""
    actors = exact_actors(5, 3)
    network = actors.network()
    network.tamper = losing(Contribution, sender=actors.clients[0])
    begin(actors, network)
    network.advance(network.now_ms + 1000)
    assert len(sent(network, Close)) >= 3
    assert numbers_of(network, actors, actors.clients[0]) == [0, 0, 0]
    assert numbers_of(network, actors, actors.clients[1]) == [1, 1, 1]
    assert the_sum(network).tolist() == [exact_sum(range(1, 5))]
