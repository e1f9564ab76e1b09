"""Node releases: what they give, what they cost and when, how they end, and that a kill changes nothing."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import msgspec
import numpy as np
import pytest
from hospitals import (
    MU,
    OPEN,
    Hospitals,
    ReleaseCuts,
    by_id,
    check_crash_between_charge_and_send,
    completed_round,
    release_of,
    released,
)
from round_helpers import (
    announced,
    begin,
    body_of,
    exact_actors,
    failures,
    losing,
    passing,
    results,
    sent,
    the_sum,
    until_the_end,
)

from dca_proto.aggregate import RoundRequest
from dca_proto.errors import UsageError
from dca_proto.jobs.job import JobTerms
from dca_proto.privacy.mechanism import DistributedDiscreteGaussian
from dca_proto.protocol import facts
from dca_proto.protocol.client.round import TABLE as CLIENT_TABLE
from dca_proto.protocol.effects import Address, Channel, Persist, Send
from dca_proto.protocol.events import Received
from dca_proto.protocol.facts import Missed
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.params import Timing
from dca_proto.protocol.play import play_releases
from dca_proto.protocol.policy import BudgetLimit, Policy
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.trainer.round import ROUNDS
from dca_proto.protocol.trainer.round import TABLE as TRAINER_TABLE
from dca_proto.protocol.wire.kinds import NodeRelease, SecureSum
from dca_proto.protocol.wire.messages import Announcement, Decline, Receipt, Sealed
from dca_proto.statistics import REPLACE_ONE_CLIENT, REPLACE_ONE_ROW
from dca_proto.testing import Network, TestFederation

NOW_MS = 1_700_000_000_000
COLUMNS = tuple(f"x{index}" for index in range(300))
WIDE = {"columns": list(COLUMNS), "centre": [0.0] * 300, "scale": [1.0] * 300, "bound": [1.0] * 300}


def trainer_of(actors: TestFederation, network: Network) -> Trainer:
    actor = network.actors[actors.trainer_identity.id]
    assert isinstance(actor, Trainer)
    return actor


# What it gives


def test_a_node_release_in_one_function() -> None:
    actors = Hospitals(3)
    result = play_releases(actors.trainer(), [actors.client(index) for index in range(3)], actors.request(), NOW_MS)
    assert [node.contributors for node in result.nodes] == [index + 2 for index in by_id(actors)]
    assert [node.value.tolist() for node in result.nodes] == [[(i + 2) * (i + 1) / 16] for i in by_id(actors)]
    assert result.value == pytest.approx(sum((index + 2) * (index + 1) / 16 for index in range(3)))
    assert (result.contributors, result.clients, result.n_min, result.colluders) == (9, 3, 0, 0)
    assert all(node.nodes == () and node.clients == 1 for node in result.nodes)


def test_every_node_carries_the_whole_noise_for_one_row() -> None:
    actors = Hospitals(3, mechanism=DistributedDiscreteGaussian())
    (result,) = results(begin(actors)[0])
    needed = (2 / MU) ** 2  # one row of [-1, 1] against another, whatever the number of rows
    for node in result.nodes:
        assert node.noise_variance == pytest.approx(needed, rel=1e-6)
        assert node.noise_variance >= needed
        assert node.sigma_local**2 == pytest.approx(node.noise_variance)
        assert (node.sensitivity, node.relation, node.mu) == (pytest.approx(2.0), REPLACE_ONE_ROW, MU)
        assert node.private
    assert result.noise_variance == pytest.approx(3 * needed, rel=1e-6)
    assert (result.epsilon, result.delta, result.relation) == (1.0, 1e-6, REPLACE_ONE_ROW)
    # 0.125 + 0.375 + 0.75 in all. False alarms: |noise| beyond 6 standard deviations, 2e-9; the keys are seeded anyway.
    assert abs(result.value[0] - 1.25) < 6 * result.noise_variance**0.5
    hashes = {value for one in (result, *result.nodes) for value in (one.contributors_hash, one.announcement_hash)}
    assert len(hashes) == 4 + 1, "one announcement"


def test_the_noise_is_drawn_with_the_variance_that_is_stated() -> None:
    """300 coordinates without data: χ² of 300 degrees within 6 of its standard deviations, false alarms below 1e-7."""
    rows = [np.zeros((4, 300)), np.zeros((5, 300))]
    actors = Hospitals(2, columns=COLUMNS, rows=rows, mechanism=DistributedDiscreteGaussian())
    (result,) = results(begin(actors, parameters=WIDE, rows_max=1000)[0])
    first, second = (node.value for node in result.nodes)
    for noise in (first, second):
        chi = float(noise @ noise) / result.nodes[0].noise_variance
        assert abs(chi - 300) < 6 * 600**0.5
    assert abs(float(np.corrcoef(first, second)[0, 1])) < 6 / 300**0.5


def test_rows_beyond_the_limit_are_not_looked_at_and_missing_ones_count_as_zero() -> None:
    rows = [np.array([[1.0], [np.nan], [1.0], [1.0]]), np.array([[0.5]])]
    actors, network = completed_round(2, rows=rows)
    assert {node.contributors: node.value[0] for node in results(network)[0].nodes} == {4: 3.0, 1: 0.5}
    begin(actors, network, rows_max=3)
    assert {node.contributors: node.value[0] for node in results(network)[1].nodes} == {3: 2.0, 1: 0.5}


def test_data_that_fail_are_zero_and_a_node_without_rows_is_left_out() -> None:
    """How many rows count does not depend on what is in them: a statistic that fails on one leaves their number."""
    actors = Hospitals(3, rows=[np.full((3, 2), 0.5), np.zeros((0, 1)), np.full((2, 1), 0.25)])
    network, request = begin(actors)  # the first has two columns where the request has one
    (result,) = results(network)
    assert {node.contributors: node.value[0] for node in result.nodes} == {3: 0.0, 2: 0.5}
    assert result.clients == 2
    assert trainer_of(actors, network).contributors(request.round_id) == tuple(
        sorted((actors.clients[0], actors.clients[2]))
    )
    assert [fact.error for fact in network.reported(facts.DataFailed)] == ["UsageError"]
    empty = Hospitals(2, rows=[np.zeros((0, 1))] * 2)
    network, _ = begin(empty)
    assert failures(network)[0].reason.startswith("none of the 2 data nodes that released has a row")


def test_the_one_request_of_a_job() -> None:
    """It needs nothing else of a job whose other rounds are sums."""
    terms = JobTerms(epsilon=1.0, delta=1e-6, clients=3, tolerate=2, computes=(b"a" * 16, b"b" * 16), colluders=1)
    opened = terms.open(RoundRequest("sum", {"columns": ["x"]}, rows_max=8, kind=NodeRelease()), bytes(16))
    assert opened.kind == NodeRelease(clients=3)
    opened = terms.open(RoundRequest("sum", {"columns": ["x"]}), bytes(16))
    assert opened.kind == SecureSum(clients=3, tolerate=2, colluders=1)
    assert opened.computes == (b"a" * 16, b"b" * 16)


# What it costs, and when


def test_the_budget_is_charged_before_a_release_leaves_and_once() -> None:
    actors = Hospitals(3)
    network = actors.network()
    network.deliver()
    network.tamper = losing(Announcement)
    begin(actors, network)
    client = network.actors[actors.clients[0]]
    effects = client.handle(
        Received(actors.trainer_identity.id, sent(network, Announcement)[0].payload), network.now_ms
    )
    kinds = [effect.table if isinstance(effect, Persist) else type(effect) for effect in effects]
    assert kinds.index(LEDGER) < kinds.index("client-round") < kinds.index(Send)
    assert kinds.count(Send) == kinds.count(LEDGER) == 1
    (left,) = (effect for effect in effects if isinstance(effect, Send))
    assert left.to == Address(Channel.TRAINER, actors.trainer_identity.id)
    (charge,) = client.ledger.charges
    assert (charge.mu, charge.epsilon, charge.delta, charge.number) == (MU, 1.0, 1e-6, 1)


def test_the_trainers_account_is_charged_before_the_announcement_leaves() -> None:
    actors = Hospitals(3)
    actors.account = BudgetLimit(epsilon=1.6, delta=1e-6)
    network = actors.network()
    trainer, snapshots = actors.trainer_identity.id, []
    network.tamper = lambda one: snapshots.append(dict(network.stores[trainer])) or [one]
    _, request = begin(actors, network)
    assert (LEDGER, request.round_id) in snapshots[0]
    begin(actors, network)
    with pytest.raises(UsageError, match="the federation's account: found a total of epsilon"):
        trainer_of(actors, network).check_request(actors.request(), network.now_ms)
    begin(actors, network)
    assert len(results(network)) == 2
    assert len(trainer_of(actors, network).ledger.charges) == 2


def test_releases_and_sums_draw_on_one_budget() -> None:
    policy = msgspec.structs.replace(OPEN, clients_min=1, honest_min=1, epsilon_per_period_max=1.6, delta_max=1e-6)
    rows = [np.full((2, 1), 0.25)] * 4
    actors = TestFederation(4, 2, rows=rows, policy=policy)
    alone = {"kind": NodeRelease(), "rows_max": 8}
    network, _ = begin(actors, **alone)
    begin(actors, network)
    begin(actors, network, **alone)
    until_the_end(network)
    assert [len(result.nodes) for result in results(network)] == [4, 0]
    assert [fact.reason for fact in network.reported(facts.Declined, actors.clients[0])] == ["budget"]
    charges = network.actors[actors.clients[0]].ledger.charges
    assert [charge.relation for charge in charges] == [REPLACE_ONE_ROW, REPLACE_ONE_CLIENT]
    assert [one.relation for one in trainer_of(actors, network).ledger.charges][:2] == [
        REPLACE_ONE_ROW,
        REPLACE_ONE_CLIENT,
    ]


# How it ends


def test_it_ends_at_the_close_with_those_who_released() -> None:
    actors = Hospitals(3)
    network = actors.network()
    network.down.add(actors.clients[1])
    _, request = begin(actors, network)
    assert results(network) == []
    opened = announced(network, actors).body
    assert opened.commit_by_ms == opened.close_by_ms + request.commit_ms
    network.advance(opened.close_by_ms)
    before = len(sent(network, Announcement))
    network.advance(opened.commit_by_ms - 1)
    assert len(sent(network, Announcement)) == before, "nobody may begin any more"
    assert results(network) == []
    network.advance(opened.commit_by_ms)
    (result,) = results(network)
    assert [node.contributors for node in result.nodes] == [index + 2 for index in by_id(actors) if index != 1]
    assert failures(network) == []


def test_a_sum_that_all_decline_ends_at_once_and_its_charge_is_returned() -> None:
    actors = exact_actors(4, 2, policy=Policy(clients_min=1, honest_min=1, delta_max=1e-9))
    network, request = begin(actors, invited=actors.clients, clients=0)
    (failure,) = failures(network)
    assert "0 clients contributed, 3 were needed (too-few)" in failure.reason
    assert not trainer_of(actors, network).ledger.is_charged(request.round_id)


def test_a_decline_is_an_answer() -> None:
    actors = Hospitals(3)
    closed = actors.client

    def client(index: int, records: Any = ()) -> Any:
        actors.policy = OPEN if index else msgspec.structs.replace(OPEN, rows_of_many=False)
        return closed(index, records)

    actors.client = client  # type: ignore[method-assign]
    network, _ = begin(actors)
    (result,) = results(network)
    assert result.clients == 2
    assert {fact.reason for fact in network.reported(facts.Declined)} == {"rows-of-many"}


def test_only_the_invited_take_part_and_are_charged() -> None:
    actors = Hospitals(3)
    network = actors.network()
    invited = actors.clients[:2]
    network, request = begin(actors, network, invited=invited, clients=0)
    assert trainer_of(actors, network).contributors(request.round_id) == tuple(sorted(invited))
    assert trainer_of(actors, network).ledger.charges[0].clients == invited
    assert network.actors[actors.clients[2]].ledger.charges == ()


def test_all_is_forgotten_after_the_retention_but_the_charges() -> None:
    actors, network = completed_round()
    until_the_end(network, hours=24 * 8)
    assert {table for table, _ in network.stores[actors.trainer_identity.id]} == {LEDGER}
    assert {table for table, _ in network.stores[actors.clients[0]]} == {LEDGER, "epoch", "hello", "pin"}


# Everything gets lost; everybody is killed


@pytest.mark.parametrize("kind", [Announcement, Sealed, Receipt])
@pytest.mark.parametrize("times", [1, 4])
def test_attack_11_every_message_is_lost_a_few_times(kind: type, times: int) -> None:
    actors = Hospitals(3)
    network = actors.network()
    left: defaultdict[tuple[bytes, bytes], int] = defaultdict(lambda: times)

    def tamper(one: Any) -> list[Any]:
        if isinstance(body_of(one.payload), kind) and left[one.sender, one.to.id] > 0:
            left[one.sender, one.to.id] -= 1
            return []
        return [one]

    network.tamper = tamper
    begin(actors, network)
    until_the_end(network)
    assert the_sum(network) == pytest.approx([1.25])
    for client in actors.clients:
        assert len({one.payload for one in released(network, client)}) == 1, "what is sent again is the same"
        assert len(network.actors[client].ledger.charges) == 1


def test_a_release_without_a_receipt_is_sent_until_the_close_and_no_longer() -> None:
    actors = Hospitals(1)
    network = actors.network()
    network.tamper = losing(Receipt)
    begin(actors, network)
    close_ms = announced(network, actors).body.commit_by_ms
    network.advance(close_ms - 1)
    count = len(released(network))
    assert count > 2
    network.advance(close_ms + actors.timing.abort_grace_ms - 1)
    assert len(released(network)) == count
    network.advance(close_ms + actors.timing.abort_grace_ms)
    assert {table for table, _ in network.stores[actors.clients[0]]} == {LEDGER, "epoch", "hello", "pin"}


@pytest.mark.parametrize("committed", [False, True])
def test_attack_15_a_crash_between_charge_and_send(committed: bool) -> None:
    check_crash_between_charge_and_send(Hospitals(2), committed=committed)


@pytest.mark.parametrize("step", range(8))
@pytest.mark.parametrize("expected", [0, 3])
def test_a_trainer_killed_at_any_message_continues_to_the_same_result(step: int, expected: int) -> None:
    actors = Hospitals(3)
    network = actors.network()
    count = iter(range(1000))

    def tamper(one: Any) -> list[Any]:
        if next(count) == step:
            network.crash(actors.trainer_identity.id)
        return [one]

    network.tamper = tamper
    begin(actors, network, clients=expected)
    network.tamper = lambda one: [one]
    network.restart(actors.trainer_identity.id)
    until_the_end(network)
    assert failures(network) == []
    assert {result.value[0] for result in results(network)} == {1.25}
    assert len({result.announcement_hash for result in results(network)}) == 1
    assert [len(network.actors[client].ledger.charges) for client in actors.clients] == [1, 1, 1]


def test_attack_28_power_failures_lose_and_double_nothing() -> None:
    """Some 300 kills of data nodes and the trainer: one release a node and round, one charge, one result a round."""
    kills, seen = defaultdict[str, int](int), 0
    for seed in range(25):
        generator = random.Random(seed)
        actors = Hospitals(3)
        network: Any = actors.network(ReleaseCuts(generator))
        network.victims = {*actors.clients, actors.trainer_identity.id}
        requests = [actors.request(epsilon=0.5), actors.request(epsilon=0.5)]
        for request in requests:
            network.command(actors.trainer_identity.id, request)
            for _ in range(12):
                network.deliver_some(generator.randint(1, 6))
                network.restart_some(0.4)
                deliver, network.deliver = network.deliver, lambda: None
                network.advance(network.now_ms + 3000)
                network.deliver = deliver
            network.restart_some(1.0)
        network.victims = set()
        network.restart_some(1.0)
        until_the_end(network)
        for where, number in network.kills.items():
            kills[where] += number
        rounds = {key for table, key in network.stores[actors.trainer_identity.id] if table == ROUNDS}
        for client in actors.clients:
            sent_by = {(one.round_id, one.payload) for one in released(network, client)}
            assert len(sent_by) == len({round_id for round_id, _ in sent_by}), "one release a round, byte for byte"
            assert {round_id for round_id, _ in sent_by} <= set(network.charges(client))
        seen += len(rounds)
        outcomes = {(result.round_id, result.value[0], result.announcement_hash) for result in results(network)}
        assert len(outcomes) == len({round_id for round_id, *_ in outcomes}) == len(rounds)
        assert {value for _, value, _ in outcomes} <= {1.25}
    assert sum(kills[where] for where in ("before", "after", "between")) >= 200, dict(kills)
    assert min(kills.values()) >= 10, dict(kills)
    assert seen >= 25, "most were announced before the trainer was killed for the first time"


# What is refused before it is announced, and the sensitivities


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows_max": 0}, "sums rows"),
        ({"rows_max": 2**30}, "expected below 2\\^53"),
        ({"rows_max": 2**28, "epsilon": 1e-11}, "1 honest shares\\), expected 8 to 2\\^40"),
        ({"computes": (b"x" * 16,)}, "not in the federation file"),
        ({"kind": SecureSum()}, "M = 0 Compute nodes; use 2 to 64"),
    ],
)
def test_an_impossible_node_release_is_refused_with_a_reason(changes: dict[str, Any], message: str) -> None:
    actors = Hospitals(2, mechanism=DistributedDiscreteGaussian())
    network = actors.network()
    with pytest.raises(UsageError, match=message):
        network.command(actors.trainer_identity.id, actors.request(**changes))
    assert sent(network, Announcement) == []


def test_a_node_release_names_no_compute_nodes_and_is_bound_by_no_key_of_theirs() -> None:
    actors = TestFederation(1, 2, policy=OPEN)
    network = actors.network()
    longer_ms = Timing().epoch_ms + Timing().epoch_grace_ms
    begin(actors, network, kind=NodeRelease(), rows_max=8, collect_s=longer_ms / 1000)
    assert len(results(network)) == 1


def test_hardening_a_late_data_node_receives_a_receipt_and_continues() -> None:
    """Else it would count the release among its open rounds, and decline all others once 64 charges lie between."""
    actors = TestFederation(3, 0, policy=OPEN)
    network = actors.network()
    late = actors.clients[0]
    network.tamper = losing(Sealed, sender=late)
    _, request = begin(actors, network, kind=NodeRelease(), rows_max=8, clients=2)
    assert [one.contributors for one in results(network)] == [2]
    network.tamper = passing
    network.advance(network.now_ms + 10_000)
    assert network.reported(Missed, late) == [Missed(request.round_id)]
    assert [one.contributors for one in results(network)] == [2]
    actor = network.actors[late]
    assert actor.ledger.spent().mu > 0, "the trainer has it"
    before = len(network.sent)
    until_the_end(network)
    assert [one for one in network.sent[before:] if one.sender == late and one.round_id == request.round_id] == []


def test_every_event_of_a_release_is_in_the_tables() -> None:
    """What the tests above and those of the attacks make happen; none is decoration."""
    own = {event for phase, event in TRAINER_TABLE if "release" in event or event == "all declined"}
    assert own == {"release", "last release", "repeated release", "late release", "all declined"}
    assert CLIENT_TABLE["new", "announcement"] == "sent"
    assert release_of(*completed_round(), 0).rows == 2
    assert sent(completed_round()[1], Decline) == []
