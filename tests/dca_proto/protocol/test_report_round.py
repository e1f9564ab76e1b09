"""Report rounds: what they give, what they cost and when, how they end, and that a kill anywhere changes nothing."""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from typing import Any

import msgspec
import numpy as np
import pytest
from hospitals import ReleaseCuts, check_crash_between_charge_and_send, released
from reporters import SCALED, Reporters, edges, report_of, reported
from round_helpers import announced, begin, body_of, failures, losing, results, sent, until_the_end

from dca_proto.aggregate import RoundRequest
from dca_proto.errors import UsageError
from dca_proto.jobs.job import JobTerms
from dca_proto.privacy import accounting
from dca_proto.privacy.local import RandomisedResponse, UnaryEncoding
from dca_proto.privacy.mechanism import (
    ANALYTIC_GAUSSIAN,
    GRID_LAPLACE,
    LOCAL_MECHANISMS,
    PURE_MECHANISMS,
    RANDOMISED_RESPONSE,
    UNARY_ENCODING,
)
from dca_proto.protocol import facts
from dca_proto.protocol.effects import Persist, Send
from dca_proto.protocol.events import Received
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.play import play_releases
from dca_proto.protocol.policy import BudgetLimit, Policy
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.trainer.round import ROUNDS
from dca_proto.protocol.wire.kinds import LdpReport, NodeRelease
from dca_proto.protocol.wire.messages import Announcement, Receipt, Sealed
from dca_proto.results.round import estimates, round_of
from dca_proto.statistics import REPLACE_ONE_CLIENT
from dca_proto.testing import NoNoise, TestFederation

NOW_MS = 1_700_000_000_000
CATEGORICAL = (RANDOMISED_RESPONSE, UNARY_ENCODING)
ADDITIVE = (ANALYTIC_GAUSSIAN, GRID_LAPLACE)
HELD = (0, 1, 2, 3, 4, 1, None, math.nan)
"""Values of eight clients, of which one has no row and one a missing value."""


def by_id(actors: TestFederation) -> list[int]:
    return sorted(range(len(actors.clients)), key=lambda index: actors.clients[index])


# What it gives


@pytest.mark.parametrize("mechanism", LOCAL_MECHANISMS)
def test_a_report_round_in_one_function(mechanism: str) -> None:
    """The result holds each client's decoded report, in the order of ids, and all that inference needs of them."""
    actors = Reporters(mechanism, HELD)
    clients = [actors.client(index) for index in range(len(HELD))]
    result = play_releases(actors.trainer(), clients, actors.request(), NOW_MS)
    reports = result.reports
    assert reports is not None
    assert (reports.contributors, result.contributors, result.clients, result.nodes) == (8, 8, 8, ())
    assert (result.relation, result.n_min, result.colluders, result.private) == (REPLACE_ONE_CLIENT, 0, 0, True)
    delta = 0.0 if mechanism in PURE_MECHANISMS else 1e-6
    assert (reports.mechanism, reports.epsilon, reports.delta) == (result.mechanism, result.epsilon, result.delta)
    assert (result.mechanism, result.epsilon, result.delta) == (mechanism, 1.0, delta)
    assert result.mu == (accounting.mu_of(1.0, delta) if delta else accounting.mu_of_pure(1.0))
    assert result.noise_variance == pytest.approx(8 * result.sigma_local**2)


@pytest.mark.parametrize("mechanism", ADDITIVE)
def test_vectors_add_up_to_the_sum(mechanism: str) -> None:
    actors = Reporters(mechanism, HELD)
    (result,) = results(network := reported(actors))
    reports = result.reports
    assert (reports.values.shape, reports.values.dtype, reports.probabilities) == ((8, 1), np.float64, None)
    raw = [int.from_bytes(report_of(actors, network, index).vector, "little", signed=True) for index in by_id(actors)]
    assert reports.values[:, 0].tolist() == [value / 2**24 for value in raw]
    assert result.value.tolist() == reports.values.sum(axis=0).tolist()
    laplace = 1 / (2 * math.sinh(2**-24 / 4) ** 2) / 4**24  # epsilon 1 for a difference of 2 · 2^24 grid units
    expected = laplace if mechanism == GRID_LAPLACE else (2 / accounting.mu_of(1.0, 1e-6)) ** 2
    assert result.noise_variance / 8 == pytest.approx(expected, rel=1e-6)
    scale = 2.0 if mechanism == GRID_LAPLACE else result.sigma_local
    assert reports.noise_scale == pytest.approx(scale, rel=1e-6)


@pytest.mark.parametrize("mechanism", CATEGORICAL)
def test_categories_give_unbiased_counts(mechanism: str) -> None:
    actors = Reporters(mechanism, HELD)
    (result,) = results(network := reported(actors))
    reports, kind = result.reports, RandomisedResponse if mechanism == RANDOMISED_RESPONSE else UnaryEncoding
    one = kind(1.0, 5)
    bodies = [report_of(actors, network, index) for index in by_id(actors)]
    assert reports.values.tolist() == [one.decode(body.vector).tolist() for body in bodies]
    assert reports.values.dtype == (np.int64 if mechanism == RANDOMISED_RESPONSE else np.bool_)
    p, q = reports.probabilities
    assert (p, q, reports.noise_scale) == (*map(float, one.probabilities), 0.0)
    named = reports.values.sum(axis=0) if reports.values.ndim == 2 else np.bincount(reports.values, minlength=5)
    assert result.value == pytest.approx((named - 8 * q) / (p - q))
    largest = max(x * (1 - x) for x in (p, q, 1 / 5 if reports.values.ndim == 1 else q))
    assert result.noise_variance == pytest.approx(8 * largest / (p - q) ** 2)


def test_the_sum_of_many_rows_and_their_mean_are_protected_as_a_whole() -> None:
    """A client's noise is for all of its rows: R rows move a sum R times as far as one, and a mean as far as one."""
    rows = [np.full((3, 1), 4.0)] * 3
    for rows_max, factor in ((0, 1), (3, 3)):
        actors = Reporters(GRID_LAPLACE, [0] * 3, rows=rows)
        (result,) = results(reported(actors, rows_max=rows_max))
        assert result.sensitivity == pytest.approx(2 * factor, rel=1e-6)
        assert result.reports.noise_scale == pytest.approx(2 * factor, rel=1e-6)


def test_the_result_as_text_and_as_json() -> None:
    actors = Reporters(UNARY_ENCODING, HELD)
    (result,) = results(reported(actors))
    plain = json.loads(msgspec.json.encode(round_of(result, alone=True)))
    assert np.array(plain["reports"]["values"]).tolist() == result.reports.values.astype(int).tolist()
    assert (plain["reports"]["probabilities"], plain["nodes"]) == (list(result.reports.probabilities), [])
    assert [one.noise_std for one in estimates(result)] == [pytest.approx(result.noise_variance**0.5)] * 5
    summed = TestFederation(4, 2, rows=[np.full((1, 1), 0.5)] * 4)
    assert round_of(results(begin(summed)[0])[0], alone=True).reports is None


# What it costs, and when


@pytest.mark.parametrize("mechanism", LOCAL_MECHANISMS)
def test_the_budget_is_charged_before_a_report_leaves_and_once(mechanism: str) -> None:
    actors = Reporters(mechanism, HELD)
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
    (charge,) = client.ledger.charges
    delta = 0.0 if mechanism in PURE_MECHANISMS else 1e-6
    assert (charge.epsilon, charge.delta, charge.relation) == (1.0, delta, REPLACE_ONE_CLIENT)
    assert charge.cost == announced_price(actors)
    trainer = network.actors[actors.trainer_identity.id]
    assert isinstance(trainer, Trainer)
    assert [(one.relation, one.cost) for one in trainer.ledger.charges] == [(REPLACE_ONE_CLIENT, charge.cost)]


def announced_price(actors: Reporters) -> Any:
    return actors.request().cost


def test_pure_reports_add_up_in_epsilon_and_end_with_the_budget() -> None:
    """Four of epsilon 1 fit into the default policy's 4 in a year, whatever its delta; the fifth does not."""
    actors = Reporters(UNARY_ENCODING, [0, 1, 2])
    network = actors.network()
    for number in range(5):
        begin(actors, network)
        assert len(results(network)) == min(number + 1, 4)
    declined = network.reported(facts.Declined, actors.clients[0])
    assert [one.reason for one in declined] == ["budget"]
    assert "0 is left" in declined[0].expected
    assert [len(network.actors[client].ledger.charges) for client in actors.clients] == [4, 4, 4]


def test_reports_and_sums_draw_on_one_budget_of_one_relation() -> None:
    """A report of epsilon 1 and a sum of epsilon 1 do not fit into 1.5 together; the first one requested does."""
    policy = Policy(clients_min=1, honest_min=1, epsilon_per_period_max=1.5, delta_max=1e-6)
    actors = TestFederation(4, 2, rows=[np.full((1, 1), 0.25)] * 4, policy=policy)
    alone = {"kind": LdpReport(GRID_LAPLACE), "delta": 0.0}
    network, _ = begin(actors, **alone)
    begin(actors, network)
    until_the_end(network)
    assert [one.reports is not None for one in results(network)] == [True]
    assert {one.reason for one in network.reported(facts.Declined)} == {"budget"}


def test_the_trainers_account_is_charged_before_the_announcement_leaves_and_refuses_what_exceeds_it() -> None:
    actors = Reporters(GRID_LAPLACE, [0, 1])
    common = actors._common
    actors.trainer = lambda records=(): Trainer(  # type: ignore[method-assign]
        actors.trainer_identity,
        actors.federation,
        account=BudgetLimit(epsilon=1.5, delta=1e-6),
        **common(records, "trainer"),
    )
    network, snapshots = actors.network(), []
    network.tamper = lambda one: snapshots.append(dict(network.stores[actors.trainer_identity.id])) or [one]
    _, request = begin(actors, network)
    assert (LEDGER, request.round_id) in snapshots[0]
    trainer = network.actors[actors.trainer_identity.id]
    with pytest.raises(UsageError, match="the federation's account: found a total of epsilon 2 with this round"):
        trainer.check_request(actors.request(), network.now_ms)
    trainer.check_request(actors.request(epsilon=0.5), network.now_ms)


def test_a_job_asks_for_reports_by_a_mechanisms_name_and_divides_epsilon() -> None:
    terms = JobTerms(epsilon=2.0, delta=1e-6, clients=9, tolerate=2, computes=(b"a" * 16, b"b" * 16), colluders=1)
    ldp_request = RoundRequest("sum", SCALED, budget_share=0.25, kind=LdpReport(GRID_LAPLACE))
    opened = terms.open(ldp_request, bytes(16), (b"c" * 16,) * 3)
    assert opened.kind == LdpReport(GRID_LAPLACE, 3)
    assert (opened.epsilon, opened.delta) == (pytest.approx(0.5, rel=1e-5), 0.0)
    gaussian = terms.open(RoundRequest("sum", SCALED, budget_share=0.25, kind=LdpReport(ANALYTIC_GAUSSIAN)), bytes(16))
    assert gaussian.delta == 1e-6
    whole = accounting.mu_of(2.0, 1e-6) ** 2
    assert gaussian.mu**2 == pytest.approx(whole / 4, rel=1e-12)


def test_only_the_mini_batch_gets_invitations_and_reports() -> None:
    actors = Reporters(RANDOMISED_RESPONSE, [0, 1, 2, 3])
    network = actors.network()
    invited = actors.clients[1:3]
    network, request = begin(actors, network, invited=invited, clients=0)
    trainer = network.actors[actors.trainer_identity.id]
    assert trainer.contributors(request.round_id) == tuple(sorted(invited))
    assert trainer.ledger.charges[0].clients == invited
    assert [len(network.actors[client].ledger.charges) for client in actors.clients] == [0, 1, 1, 0]


# How it ends


@pytest.mark.parametrize("mechanism", LOCAL_MECHANISMS)
def test_the_result_includes_every_reporter_with_or_without_a_row(mechanism: str) -> None:
    actors = Reporters(mechanism, [None, None, math.nan])
    network, request = begin(actors)
    (result,) = results(network)
    assert result.contributors == 3
    assert network.actors[actors.trainer_identity.id].contributors(request.round_id) == tuple(sorted(actors.clients))


def test_it_ends_at_the_close_with_those_who_reported() -> None:
    actors = Reporters(UNARY_ENCODING, [0, 1, 2])
    network = actors.network()
    network.down.add(actors.clients[1])
    begin(actors, network)
    assert results(network) == []
    network.advance(announced(network, actors).body.commit_by_ms)
    (result,) = results(network)
    assert (result.contributors, failures(network)) == (2, [])


def test_without_a_report_it_fails_with_a_reason_and_the_silent_clients_stay_charged() -> None:
    actors = Reporters(GRID_LAPLACE, [0, 1], policy=Policy(statistics=("mean",)))
    network, request = begin(actors, clients=3)
    until_the_end(network)
    why = "(statistic: found sum; accepts one of mean)"
    assert [one.reason for one in failures(network)] == [
        f"no client released anything; 2 declined {why}; clients may have released without being heard, so the "
        "account keeps the charge"
    ]
    assert network.actors[actors.trainer_identity.id].ledger.is_charged(request.round_id)
    network, request = begin(actors, network)
    assert failures(network)[1].reason.endswith(f"2 declined {why}; its charge came back to the account")


def test_data_that_fail_are_reported_as_no_data() -> None:
    """A table of two columns where the request has one: the owner sees an error, the trainer an ordinary report."""
    actors = Reporters(UNARY_ENCODING, [0, 1], rows=[np.zeros((1, 2)), np.zeros((1, 1))])
    network = reported(actors)
    assert results(network)[0].contributors == 2
    assert [fact.error for fact in network.reported(facts.DataFailed)] == ["UsageError"]
    assert {report_of(actors, network, index).rows for index in (0, 1)} == {1}


def test_an_emulation_with_an_inexact_mechanism_has_exact_reports() -> None:
    """The mechanism that an actor offers for sums does not apply to reports: their mechanisms are exact."""
    actors = Reporters(GRID_LAPLACE, [4, 4], mechanism=NoNoise())
    (result,) = results(reported(actors))
    assert (result.private, result.epsilon, result.mechanism) == (True, 1.0, GRID_LAPLACE)
    assert result.value[0] != 2.0
    network, _ = begin(actors, actors.network(), kind=NodeRelease(), rows_max=1, delta=1e-6)
    assert {fact.reason for fact in network.reported(facts.Declined)} == {"rows-of-many"}


# Everything gets lost; everybody is killed


@pytest.mark.parametrize("kind", [Announcement, Sealed, Receipt])
def test_attack_11_every_message_is_lost_a_few_times(kind: type) -> None:
    actors = Reporters(UNARY_ENCODING, [0, 1, 2])
    network = actors.network()
    left: defaultdict[tuple[bytes, bytes], int] = defaultdict(lambda: 3)

    def tamper(one: Any) -> list[Any]:
        if isinstance(body_of(one.payload), kind) and left[one.sender, one.to.id] > 0:
            left[one.sender, one.to.id] -= 1
            return []
        return [one]

    network.tamper = tamper
    begin(actors, network)
    until_the_end(network)
    (result,) = results(network)
    assert result.contributors == 3
    for client in actors.clients:
        assert len({one.payload for one in released(network, client)}) == 1, "what is sent again is the same"
        assert len(network.actors[client].ledger.charges) == 1


@pytest.mark.parametrize("committed", [False, True])
def test_attack_15_a_crash_between_charge_and_send(committed: bool) -> None:
    check_crash_between_charge_and_send(Reporters(RANDOMISED_RESPONSE, [0, 1]), committed=committed)


@pytest.mark.parametrize("step", range(7))
def test_a_trainer_killed_at_any_message_continues_to_the_same_result(step: int) -> None:
    actors = Reporters(UNARY_ENCODING, [0, 1, 2])
    network = actors.network()
    count, killed = iter(range(1000)), []

    def tamper(one: Any) -> list[Any]:
        if next(count) == step:
            network.crash(actors.trainer_identity.id)
            killed.append(one)
        return [one]

    network.tamper = tamper
    begin(actors, network)
    assert len(killed) == 1
    network.tamper = lambda one: [one]
    network.restart(actors.trainer_identity.id)
    until_the_end(network)
    assert failures(network) == []
    assert {result.contributors for result in results(network)} == {3}
    assert len({(result.announcement_hash, result.reports.values.tobytes()) for result in results(network)}) == 1
    assert [len(network.actors[client].ledger.charges) for client in actors.clients] == [1, 1, 1]


def test_attack_28_power_failures_lose_and_double_nothing() -> None:
    """Some 150 kills of clients and the trainer: one report a client and round, one charge, one result a round."""
    kills = 0
    for seed in range(12):
        generator = random.Random(seed)
        actors = Reporters(LOCAL_MECHANISMS[seed % 4], [0, 1, None])
        network: Any = actors.network(ReleaseCuts(generator))
        network.victims = {*actors.clients, actors.trainer_identity.id}
        for request in (actors.request(epsilon=0.5), actors.request(epsilon=0.5)):
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
        kills += sum(network.kills[where] for where in ("before", "after", "between"))
        rounds = {key for table, key in network.stores[actors.trainer_identity.id] if table == ROUNDS}
        for client in actors.clients:
            sent_by = {(one.round_id, one.payload) for one in released(network, client)}
            assert len(sent_by) == len({round_id for round_id, _ in sent_by}), "one report a round, byte for byte"
            assert {round_id for round_id, _ in sent_by} <= set(network.charges(client))
        outcomes = {(one.round_id, one.reports.values.tobytes(), one.announcement_hash) for one in results(network)}
        assert len(outcomes) == len({round_id for round_id, *_ in outcomes}) == len(rounds)
    assert kills >= 100


def test_all_is_forgotten_after_the_retention_but_the_charges() -> None:
    actors = Reporters(UNARY_ENCODING, [0, 1])
    network = reported(actors)
    until_the_end(network, hours=24 * 8)
    assert {table for table, _ in network.stores[actors.trainer_identity.id]} == {LEDGER}
    assert {table for table, _ in network.stores[actors.clients[0]]} == {LEDGER, "epoch", "hello", "pin"}


# What is refused before it is announced


@pytest.mark.parametrize(
    ("mechanism", "changes", "message"),
    [
        (GRID_LAPLACE, {"delta": 1e-6}, "grid-laplace' is private by epsilon alone: found delta 1e-06"),
        (UNARY_ENCODING, {"delta": 1e-6}, "unary-encoding' is private by epsilon alone: found delta 1e-06"),
        (ANALYTIC_GAUSSIAN, {"delta": 0.0}, "delta is 0.0, expected a number in \\(0, 1\\)"),
        (ANALYTIC_GAUSSIAN, {"epsilon": 1000.0}, "more than can be planned with"),
        (UNARY_ENCODING, {"statistic": "sum", "parameters": SCALED}, "statistic 'sum' has no categories"),
        (UNARY_ENCODING, {"rows_max": 0}, "rows_max is 0, expected 1: a report by unary-encoding is of one row's"),
        (RANDOMISED_RESPONSE, {"rows_max": 2}, "rows_max is 2, expected 1"),
        (RANDOMISED_RESPONSE, {"parameters": edges(1)}, "categories is 1, expected 2 to"),
        (RANDOMISED_RESPONSE, {"epsilon": 101.0}, "epsilon is 101.0, expected a number above 0 and at most 100"),
        (GRID_LAPLACE, {"epsilon": math.nan}, "epsilon is nan"),
        (GRID_LAPLACE, {"kind": LdpReport("laplace")}, "mechanism 'laplace' makes no reports; use one of"),
        (GRID_LAPLACE, {"rows_max": 2**30}, "expected below 2\\^53"),
    ],
)  # fmt: skip
def test_an_impossible_report_round_is_refused_with_a_reason(
    mechanism: str, changes: dict[str, Any], message: str
) -> None:
    actors = Reporters(mechanism, [0, 1])
    network = actors.network()
    with pytest.raises(UsageError, match=message) as caught:
        network.command(actors.trainer_identity.id, actors.request(**changes))
    assert "\n" not in str(caught.value)
    assert sent(network, Announcement) == []


def test_a_report_of_a_users_own_statistic_names_its_largest_coordinate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it evaluates to, a category is reported: privacy rests on the mechanism, not on the statistic."""
    from dca_proto.statistics import Histogram, base

    class Vague(Histogram, frozen=True, kw_only=True):  # type: ignore[misc]
        name = "vague"

        def evaluate(self, rows: Any, fraction_bits: int) -> Any:
            return super().evaluate(rows, fraction_bits) + 1

    class Odd(Histogram, frozen=True, kw_only=True):  # type: ignore[misc]
        name = "odd"

        @property
        def categories(self) -> int:
            return 2

    for kind in (Vague, Odd):
        monkeypatch.setitem(base._REGISTRY, kind.name, kind)
    actors = Reporters(UNARY_ENCODING, [2, 2])
    assert results(reported(actors, statistic="vague"))[0].contributors == 2
    with pytest.raises(UsageError, match="2 categories and 5 coordinates; expected one coordinate for each"):
        begin(actors, statistic="odd")


def test_the_names_of_the_mechanisms_are_complete() -> None:
    """They stand in the core, which loads the mechanisms with the first round of reports only."""
    from dca_proto.privacy.local import _KINDS, registered

    assert tuple(sorted(LOCAL_MECHANISMS)) == registered()
    assert {name for name, kind in _KINDS.items() if "delta" not in kind.__struct_fields__} == set(PURE_MECHANISMS)


def test_a_round_that_names_a_mechanism_is_stored_as_requested() -> None:
    request = Reporters(GRID_LAPLACE, [0]).request()
    encoded = msgspec.msgpack.encode(request)
    assert msgspec.msgpack.decode(encoded, type=type(request)) == request
