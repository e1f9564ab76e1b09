"""Attacks on the budget: what is charged when, and what brings a charge back."""

from __future__ import annotations

import msgspec
import pytest
from scene import (
    EASY,
    THREE_ROUNDS,
    OneTight,
    begin,
    body_of,
    exact_cast,
    exact_sum,
    failures,
    forged,
    ignored,
    losing,
    refused,
    results,
    sent,
    until_the_end,
)

from dca_proto.core import accounting
from dca_proto.core.effects import Persist
from dca_proto.core.events import Received
from dca_proto.core.facts import ChargeReturned, Contributed, Declined, Released
from dca_proto.core.messages import Abort, Announcement, Frozen, Receipt, Share, Start
from dca_proto.core.params import PROTOCOL_VERSION
from dca_proto.core.policy import Policy
from dca_proto.core.round import session_hash
from dca_proto.testing import Cast, Network, NoNoise

TIGHT = Policy(clients_min=1, honest_min=1, epsilon_per_round_max=1.0, epsilon_per_period_max=2.0, delta_max=1e-5)


def aborted_cast() -> tuple[Cast, Network, bytes]:
    """A round whose clients hold open charges: receipts and lists are lost, so nothing is released or aborted."""
    cast = Cast(4, 3)
    network = cast.network()
    network.tamper = losing(Receipt, Frozen)
    _, request = begin(cast, network)
    network.tamper = lambda one: ()
    return cast, network, request.round_id


def abort_of(cast: Cast, network: Network, node: int, **changes: object) -> tuple[bytes, bytes]:
    session = session_hash(body_of(sent(network, Start)[0].payload).terms)
    identity = cast.compute_identities[node]
    body = Abort(PROTOCOL_VERSION, sent(network, Start)[0].round_id, session, "too-few", "1 of 3", 1, 3)
    return identity.id, forged(cast, identity, msgspec.structs.replace(body, **changes))


def test_attack_15_a_budget_that_is_used_up_refuses_the_next_round() -> None:
    """Rounds at ε = 1 until the period's ε = 2 is reached in exact composition: then all decline, and say so."""
    cast = exact_cast(4, 3, policy=TIGHT)
    network = cast.network()
    for _ in range(8):
        begin(cast, network)
    mus = [charge.mu for charge in network.actors[cast.clients[0]].ledger.charges]
    allowed = accounting.mu_of(2.0, 1e-5)
    assert len(results(network)) == len(mus) < 8
    assert accounting.compose(mus) <= allowed < accounting.compose([*mus, mus[0]])
    assert {fact.reason for fact in network.reported(Declined)} == {"budget"}


def test_attack_15_concurrent_rounds_racing_the_ledger() -> None:
    """All were joined while there was budget for one; each start holds it against the ledger once more."""
    cast = Cast(4, 3, policy=msgspec.structs.replace(TIGHT, epsilon_per_period_max=1.0))
    network = cast.network()
    network.tamper = losing(Start)
    for _ in range(3):
        begin(cast, network)
    assert len(network.reported(Declined)) == 0
    network.tamper = lambda one: [one]
    for start in sent(network, Start):
        network.handle(start.to.id, Received(start.sender, start.payload))
    for client in cast.clients:
        assert len(network.actors[client].ledger.charges) == 1
        assert [fact.reason for fact in network.reported(Declined, client)] == ["budget", "budget"]


def test_attack_15_two_starts_in_one_transaction() -> None:
    """A client that handles both before it stores anything still holds the second against the first."""
    cast = Cast(4, 3, policy=msgspec.structs.replace(TIGHT, epsilon_per_period_max=1.0))
    network = cast.network()
    network.tamper = losing(Start)
    for _ in range(2):
        begin(cast, network)
    victim = network.actors[cast.clients[0]]
    starts = sent(network, Start, to=victim.id)
    batch = [e for one in starts for e in victim.handle(Received(one.sender, one.payload), network.now_ms)]
    written = [effect.table for effect in batch if isinstance(effect, Persist)]
    assert written.count("ledger") == written.count("contribution") == written.count("declined") == 1
    assert len(victim.ledger.charges) == 1


def test_attack_15_a_budget_that_is_used_up_in_the_middle_of_a_run() -> None:
    """One client has room for three of six rounds: from then on it declines, in numbers, and the others go on."""
    cast = OneTight(4, 3, mechanism=NoNoise(), policy=EASY)
    network = cast.network()
    for _ in range(6):
        begin(cast, network)
    victim = cast.clients[0]
    assert [result.contributors for result in results(network)] == [4, 4, 4, 3, 3, 3]
    assert len(network.reported(Contributed, victim)) == len(network.actors[victim].ledger.charges) == 3
    declined = network.reported(Declined, cast.trainer_identity.id)
    assert [(one.client, one.reason) for one in declined] == [(victim, "budget")] * 3
    assert declined[0].expected.startswith("<= 2 at delta 1e-06 in 365 days")
    assert declined == network.reported(Declined, victim)
    assert [one.found for one in network.actors[victim].declines.rounds] == [one.found for one in declined]


@pytest.mark.parametrize("committed", [False, True])
def test_attack_15_a_crash_between_charge_and_send(committed: bool) -> None:
    """The charge is in the same transaction as the ciphertexts. All of it was written, or nothing and it starts anew:
    either way one charge, one contribution id, and no share left uncharged."""
    cast = exact_cast(4, 3)
    network = cast.network()
    network.tamper = losing(Start)
    begin(cast, network)
    victim = cast.clients[0]
    start = sent(network, Start, to=victim)[0]
    effects = network.actors[victim].handle(Received(start.sender, start.payload), network.now_ms)
    if committed:  # the transaction was committed, then the power failed
        for effect in [e for e in effects if isinstance(e, Persist)]:
            network._carry_out(victim, effect)
    network.restart(victim)
    for one in sent(network, Start):
        network.handle(one.to.id, Received(one.sender, one.payload))
    network.tamper = lambda one: [one]
    until_the_end(network)
    assert len(network.actors[victim].ledger.charges) == 1
    assert len({body_of(one.payload).contribution for one in sent(network, Share, sender=victim)}) == 1
    assert len(results(network)) == 1


def test_the_charge_comes_back_only_after_all_aborts_and_once() -> None:
    cast, network, round_id = aborted_cast()
    victim = cast.clients[0]
    ledger = network.actors[victim].ledger
    for node in (0, 1):
        network.handle(victim, Received(*abort_of(cast, network, node)))
        ignored(network, victim, *abort_of(cast, network, node))
        assert ledger.spent().mu > 0
    network.handle(victim, Received(*abort_of(cast, network, 2)))
    assert ledger.spent().mu == 0
    for node in range(3):
        ignored(network, victim, *abort_of(cast, network, node))
    assert network.reported(ChargeReturned, victim) == [ChargeReturned(round_id)]


def test_the_charge_comes_back_once_also_across_restarts() -> None:
    cast, network, round_id = aborted_cast()
    victim = cast.clients[0]
    for node in (0, 1, 2):
        network.handle(victim, Received(*abort_of(cast, network, node)))
        network.restart(victim)
        ignored(network, victim, *abort_of(cast, network, node))
    assert network.reported(ChargeReturned, victim) == [ChargeReturned(round_id)]
    assert [charge.returned for charge in network.actors[victim].ledger.charges] == [True]
    assert network.actors[victim].ledger.spent().mu == 0


def test_a_round_whose_charge_came_back_cannot_be_played_again() -> None:
    cast, network, _ = aborted_cast()
    victim, announcement = cast.clients[0], sent(network, Announcement)[0]
    for node in range(3):
        network.handle(victim, Received(*abort_of(cast, network, node)))
    start = sent(network, Start, to=victim)[0]
    ignored(network, victim, start.sender, start.payload)
    now_ms = network.now_ms
    until_the_end(network)
    network.now_ms = now_ms
    refused(network, victim, announcement.sender, announcement.payload, "replay")


def test_forged_aborts_bring_nothing_back() -> None:
    """Signed by the node that they name, about this session, by a node of the round: or dropped."""
    cast, network, _ = aborted_cast()
    victim = cast.clients[0]
    node, genuine = abort_of(cast, network, 0)
    refused(network, victim, cast.computes[1], genuine, "signature")
    body = body_of(genuine)
    for identity in (cast.trainer_identity, cast.client_identities[1], cast.authority):
        refused(network, victim, node, forged(cast, identity, body), "signature")
        refused(network, victim, identity.id, forged(cast, identity, body), "unknown-compute")
    refused(network, victim, *abort_of(cast, network, 0, session_hash=bytes(32)), "session")
    assert network.actors[victim].ledger.spent().mu > 0


def test_a_result_keeps_the_charge() -> None:
    cast = exact_cast(4, 3)
    network, _ = begin(cast)
    until_the_end(network)
    assert len(results(network)) == 1
    assert all(network.actors[client].ledger.spent().mu > 0 for client in cast.clients)


@pytest.mark.parametrize("lying", [1, 2])
def test_some_aborts_keep_the_charge(lying: int) -> None:
    """Fewer than M aborts leave it open whether something was released: the charge stays spent for good."""
    cast, network, _ = aborted_cast()
    for node in range(lying):
        network.handle(cast.clients[0], Received(*abort_of(cast, network, node)))
    until_the_end(network)
    assert network.actors[cast.clients[0]].ledger.spent().mu > 0


def test_an_aborted_round_brings_all_charges_back() -> None:
    cast = Cast(4, 3)
    network = cast.network()
    network.tamper = losing(Share, sender=cast.clients[3])
    begin(cast, network, tolerated=0)
    until_the_end(network)
    for spender in (*cast.clients, cast.trainer_identity.id):
        assert len(network.reported(ChargeReturned, spender)) == 1
        assert network.actors[spender].ledger.spent().mu == 0


def test_forged_receipts_do_not_stop_the_resending() -> None:
    """A receipt is a MAC under the pair's round key, about this contribution, from that node."""
    cast = Cast(4, 3)
    network = cast.network()
    network.tamper = losing(Receipt)
    begin(cast, network)
    victim, other = cast.clients[:2]
    genuine = sent(network, Receipt, sender=cast.computes[0], to=victim)[0].payload
    foreign = sent(network, Receipt, sender=cast.computes[0], to=other)[0].payload
    frame = body_of(genuine)
    encode = msgspec.msgpack.encode
    refused(network, victim, cast.computes[1], genuine, "receipt")
    refused(network, victim, cast.computes[0], foreign, "receipt")
    refused(network, victim, other, genuine, "unknown-compute")
    refused(network, victim, cast.computes[0], encode(msgspec.structs.replace(frame, tag=bytes(16))), "receipt")
    refused(
        network, victim, cast.computes[0], encode(msgspec.structs.replace(frame, contribution=bytes(16))), "receipt"
    )
    refused(network, victim, cast.computes[0], encode(msgspec.structs.replace(frame, round_id=bytes(16))), "phase")


# 3: a second round with one client fewer


def test_attack_3_a_second_round_without_one_client_is_charged_to_every_budget() -> None:
    """Their difference is about the client that is missing. So each client that is in both pays for both, and what is
    said of the two together is their composition."""
    cast = exact_cast(5, 3)
    network = cast.network()
    begin(cast, network, tolerated=0)
    network.down = {cast.clients[4]}
    begin(cast, network, tolerated=0, clients_expected=4)
    full, less = (result.value.tolist()[0] for result in results(network))
    assert full - less == exact_sum([4]), "without noise the difference is that client's value"
    spent = [network.actors[client].ledger.spent().mu for client in cast.clients]
    once = network.actors[cast.clients[4]].ledger.charges[0].mu
    assert spent == pytest.approx([accounting.compose((once, once))] * 4 + [once])


def test_attack_3_a_second_round_that_no_budget_is_left_for_is_refused() -> None:
    one_round = msgspec.structs.replace(THREE_ROUNDS, epsilon_per_period_max=1.2)
    cast = exact_cast(5, 3, policy=one_round)
    network = cast.network()
    begin(cast, network, tolerated=0)
    network.down = {cast.clients[4]}
    begin(cast, network, tolerated=0, clients_expected=4)
    until_the_end(network)
    assert len(results(network)) == len(failures(network)) == 1
    assert [fact.reason for fact in network.reported(Declined)[:4]] == ["budget"] * 4
    assert all(len(network.actors[client].ledger.charges) == 1 for client in cast.clients)


def test_attack_3_a_client_left_out_after_the_roster_is_fixed_is_one_of_the_tolerated() -> None:
    """Sums over two sets of one round are never both released: the set is agreed once, and small ones abort."""
    cast = exact_cast(5, 3)
    network = cast.network()
    network.tamper = losing(Share, sender=cast.clients[4], to=cast.computes[0])
    begin(cast, network, tolerated=1)
    until_the_end(network)
    assert [result.value.tolist() for result in results(network)] == [[exact_sum(range(4))]]
    assert {fact.contributors for fact in network.reported(Released)} == {4}
    assert not sent(network, Abort)
