"""Node releases that data nodes decline: what becomes of the charge in the trainer's account (DESIGN §5.4)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from failing_rounds import trainer_of
from hospitals import OPEN, Hospitals, by_id
from round_helpers import begin, body_of, failures, results, until_the_end

from dca_proto.protocol import facts
from dca_proto.protocol.events import Received
from dca_proto.protocol.policy import BudgetLimit
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.messages import Sealed
from dca_proto.testing import Envelope, Network

NARROW = msgspec.structs.replace(OPEN, epsilon_per_round_max=0.5)
DECLINED = (
    "no data node released anything; 2 declined (epsilon: found 1 at delta 1e-06; accepts <= 0.5 at delta 1e-05); "
    "its charge came back to the account"
)


@pytest.mark.parametrize("everybody", [True, False])
def test_hardening_10_where_all_decline_the_account_gets_its_charge_back(everybody: bool) -> None:
    """Each has signed that it declines, and so released nothing. All are the invited ones, or as many as expected."""
    actors = Hospitals(2, policy=NARROW)
    changes = {} if everybody else {"invited": actors.clients, "clients": 0}
    network, request = begin(actors, **changes)
    (failure,) = failures(network)
    assert (failure.reason, failure.declined) == (DECLINED, True)
    assert network.reported(facts.ChargeReturned, actors.trainer_identity.id)
    account = trainer_of(actors, network).ledger
    assert not account.is_charged(request.round_id)
    network.restart(actors.trainer_identity.id)
    assert not trainer_of(actors, network).ledger.is_charged(request.round_id)
    assert failures(network)[1] == failure, "reported again, in the same text"
    assert not trainer_of(actors, network).is_settling(network.now_ms)
    begin(actors, network, invited=actors.clients[:2], clients=1)
    assert trainer_of(actors, network).ledger.charges[-1].returned, "the second decline came after the end"


def test_hardening_10_a_policy_that_is_widened_lets_the_next_round_through() -> None:
    actors = Hospitals(2, policy=NARROW)
    actors.account = BudgetLimit(epsilon=1.0, delta=1e-6)  # room for one round
    network, _ = begin(actors)
    actors.policy = OPEN
    for client in actors.clients:
        network.restart(client)
    begin(actors, network)
    assert [node.contributors for node in results(network)[0].nodes] == [index + 2 for index in by_id(actors)]
    assert [charge.returned for charge in trainer_of(actors, network).ledger.charges] == [True, False]


def one_more_than_expected(*silent: int) -> tuple[Hospitals, Network, OpenRound, dict[bytes, list[Envelope]]]:
    """Of three, two are expected, who decline. The third has a wider policy, and releases.

    Args:
        silent: whose answers are delayed; they come with the round, by client.
    """
    actors = Hospitals(3)
    closed = actors.client

    def client(index: int, records: Any = ()) -> Any:
        actors.policy = OPEN if index == 2 else NARROW
        return closed(index, records)

    actors.client = client  # type: ignore[method-assign]
    network = actors.network()
    delayed: dict[bytes, list[Envelope]] = {actors.clients[index]: [] for index in silent}

    def tamper(one: Envelope) -> list[Envelope]:
        if one.sender not in delayed or not isinstance(body_of(one.payload), Sealed):
            return [one]
        delayed[one.sender].append(one)
        return []

    network.tamper = tamper
    _, request = begin(actors, network, clients=2)
    return actors, network, request, delayed


def test_hardening_10_a_release_beyond_the_expected_restores_the_charge() -> None:
    """It comes after both declines."""
    actors, network, request, delayed = one_more_than_expected(2)
    trainer, late = actors.trainer_identity.id, actors.clients[2]
    assert trainer_of(actors, network).phase(request.round_id) == "returned"
    for _ in range(2):
        network.handle(trainer, Received(late, delayed[late][0].payload))
        assert trainer_of(actors, network).ledger.is_charged(request.round_id)
        assert trainer_of(actors, network).phase(request.round_id) == "failed"
    network.restart(trainer)
    for one in [one for one in network.sent if one.sender in actors.clients[:2]]:
        network.handle(trainer, Received(one.sender, one.payload))
    assert len(network.reported(facts.Declined, trainer)) == 4, "the restarted trainer receives both declines again"
    assert trainer_of(actors, network).ledger.is_charged(request.round_id)
    assert "so the account keeps the charge" in failures(network)[-1].reason
    assert results(network) == []


@pytest.mark.parametrize("restarts", [True, False])
def test_a_charge_is_not_returned_after_a_late_release(restarts: bool) -> None:
    """The round ends with one decline and no release. The other decline comes after the third client's release."""
    actors, network, request, delayed = one_more_than_expected(1, 2)
    trainer, late = actors.trainer_identity.id, actors.clients[2]
    until_the_end(network)
    assert trainer_of(actors, network).phase(request.round_id) == "failed"
    for _ in range(2):
        network.handle(trainer, Received(late, delayed[late][0].payload))
    if restarts:
        network.restart(trainer)
    for one in [one for one in network.sent if one.sender in actors.clients[:2]]:
        network.handle(trainer, Received(one.sender, one.payload))
    assert {fact.client for fact in network.reported(facts.Declined, trainer)} == set(actors.clients[:2])
    assert trainer_of(actors, network).phase(request.round_id) == "failed"
    assert trainer_of(actors, network).ledger.is_charged(request.round_id)
    assert network.reported(facts.ChargeReturned, trainer) == []
    assert len(set(failures(network))) == 1, "reported in the same text"


def test_who_is_silent_may_have_released_so_the_account_keeps_the_charge() -> None:
    actors = Hospitals(3, policy=msgspec.structs.replace(OPEN, rows_of_many=False))
    network = actors.network()
    network.down.add(actors.clients[1])
    _, request = begin(actors, network, invited=actors.clients[:2], clients=0)
    until_the_end(network)
    assert failures(network)[0].reason.endswith("so the account keeps the charge")
    assert trainer_of(actors, network).ledger.is_charged(request.round_id)
