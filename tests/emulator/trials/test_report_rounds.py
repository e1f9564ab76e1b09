"""Report rounds in trials: each client reports once, what it has paid for, whatever it holds or goes wrong."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest
from planted_reports import BESIDE_A_NEIGHBOUR, PLANTS
from trial_helpers import check_trial, dropped, results, run, small, with_limits

from dca_proto.aggregate import NoisyAggregate
from dca_proto.errors import UsageError
from dca_proto.privacy.mechanism import (
    ANALYTIC_GAUSSIAN,
    GRID_LAPLACE,
    LOCAL_MECHANISMS,
    PURE_MECHANISMS,
    RANDOMISED_RESPONSE,
    UNARY_ENCODING,
)
from dca_proto.protocol.facts import RoundCompleted
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.ledger import Charge
from dca_proto.protocol.records import decoded
from dca_proto.statistics.sensitivity import REPLACE_ONE_CLIENT
from emulator.trials.draw import draw_scenario
from emulator.trials.scenario import CATEGORICAL, Adversary, Fault, Scenario, to_plain
from emulator.trials.scenario_file import from_plain
from emulator.trials.trial import examine
from emulator.trials.world import TrialWorld

DIMENSION = 5
WIDE = 40


def reports(by: str, *faults: Fault, clients: int = 3, dimension: int = DIMENSION, **changes: Any) -> Scenario:
    """Clients of three rows each, of which those that name categories report the first."""
    names = by in CATEGORICAL
    scenario = small(
        *faults, **{"clients": clients, "kind": "ldp-report", "mechanism": by, "rows_max": int(names), **changes}
    )
    people = {"rows": 3, "dimension": dimension, "statistic": "histogram" if names else "sum"}
    return msgspec.structs.replace(scenario, population=msgspec.structs.replace(scenario.population, **people))


def aggregate_of(world: TrialWorld, index: int = 0) -> NoisyAggregate:
    ended = world.rounds[index].ended
    assert isinstance(ended, RoundCompleted)
    return ended.aggregate


# --- without faults -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", LOCAL_MECHANISMS)
def test_everybody_reports_and_pays_once_and_no_compute_node_hears_of_it(by: str) -> None:
    world, outcome = check_trial(with_limits(reports(by, count=2, every_ms=10_000), account_epsilon=20.0))
    assert results(outcome) == ["completed"] * 2
    sent = [message for node in world.computes for message in node.disk.records if message[0] == "compute-round"]
    assert sent == []
    for process in (*world.clients, world.trainer):
        paid = [decoded(LEDGER, value, Charge) for (table, _), value in process.disk.records.items() if table == LEDGER]
        assert [(one.epsilon, one.delta) for one in paid] == [(1.0, 0.0 if by in PURE_MECHANISMS else 1e-6)] * 3
    aggregate = aggregate_of(world)
    assert aggregate.reports is not None
    shape = (3,) if by == RANDOMISED_RESPONSE else (3, DIMENSION)
    assert (aggregate.reports.values.shape, aggregate.relation) == (shape, REPLACE_ONE_CLIENT)
    (first, *_) = outcome.ended.rounds
    assert (first.result, first.clients, first.contributors, first.needed) == ("completed", 3, 3, 1)
    assert first.noise_variance == first.noise_floor == pytest.approx(aggregate.sigma_local**2)


@pytest.mark.parametrize("by", LOCAL_MECHANISMS)
def test_two_runs_and_one_on_neighbouring_data_look_the_same(by: str) -> None:
    """The neighbour has another number of rows."""
    result = examine(reports(by, Fault(kind="lossy", actor="clients", amount=0.3)))
    assert result.broken == {}
    assert all(one.checked for one in result.invariants)


def test_at_a_large_epsilon_the_reports_are_what_the_clients_hold() -> None:
    """A client's first row, in the order of the ids; one without a value reports one of all categories."""
    world, _ = check_trial(
        with_limits(reports(RANDOMISED_RESPONSE, clients=12, epsilon=20.0), epsilon_per_period_max=100.0)
    )
    released = aggregate_of(world).reports
    assert released is not None
    rows = dict(zip(world.actors.clients, world.actors.rows, strict=True))
    first = [rows[client][0, 0] for client in sorted(rows)]
    missing = [math.isnan(value) for value in first]
    bins = np.floor((np.nan_to_num(first) + 1) / 2 * DIMENSION).astype(int)
    assert np.where(missing, released.values, bins).tolist() == released.values.tolist()
    assert set(released.values.tolist()) <= set(range(DIMENSION))


# --- with faults ----------------------------------------------------------------------------------------------------

KILLS = ("kill-before", "kill-torn", "kill-after", "kill-between")
PLACES = (("trainer", "collecting"), ("trainer", "done"), ("client 1", "sent"), ("client 1", "kept"))


@pytest.mark.parametrize(("kind", "by"), list(zip(KILLS, LOCAL_MECHANISMS, strict=True)))
@pytest.mark.parametrize(("actor", "phase"), PLACES)
def test_a_kill_at_any_step_loses_no_report_and_makes_none_twice(kind: str, by: str, actor: str, phase: str) -> None:
    _, outcome = check_trial(reports(by, Fault(kind=kind, actor=actor, phase=phase, for_ms=500)))
    assert outcome.faults[0].reached
    assert [(one.result, one.contributors) for one in outcome.ended.rounds] == [("completed", 3)] * 2


def test_who_is_silent_is_left_out_at_the_close_and_a_round_without_any_report_ends_in_words() -> None:
    world, outcome = check_trial(reports(UNARY_ENCODING, Fault(kind="vanish-before-sending", actor="client 1")))
    assert outcome.ended.rounds[0].contributors == aggregate_of(world).clients == 2
    assert outcome.ended.rounds[0].phases["collect"][1] >= 1_000 + 16_000, "not before the close"
    _, outcome = check_trial(reports(UNARY_ENCODING, Fault(kind="partition", actor="clients", for_ms=40_000)))
    assert (outcome.ended.rounds[0].result, outcome.ended.rounds[0].contributors) == ("aborted", None)
    assert "no client released anything" in (outcome.ended.rounds[0].reason or "")


@pytest.mark.parametrize(("by", "completed"), [(ANALYTIC_GAUSSIAN, 2), (GRID_LAPLACE, 1)])
def test_a_client_that_has_spent_its_budget_declines(by: str, completed: int) -> None:
    """At 1.5 two Gaussian rounds of epsilon 1 are let through, and one of epsilon-private reports."""
    scenario = with_limits(reports(by, count=3, every_ms=3_000), epsilon_per_period_max=1.5)
    _, outcome = check_trial(scenario)
    assert [one.result for one in outcome.ended.rounds] == ["completed"] * completed + ["aborted"] * (3 - completed)
    assert outcome.ended.further.startswith("not due")


@pytest.mark.parametrize("by", LOCAL_MECHANISMS)
@pytest.mark.parametrize(("kind", "code"), [("two-faced", "known-release"), ("copier", "sender"), ("flood", "")])
def test_hostile_clients_spoil_nothing_but_their_own_report(kind: str, code: str, by: str) -> None:
    world, outcome = check_trial(reports(by, adversaries=(Adversary(kind=kind, actor="client 1"),)))
    assert outcome.ended.rounds[0].contributors == 3
    assert not code or dropped(world, code) > 0


@pytest.mark.parametrize("by", LOCAL_MECHANISMS)
def test_bytes_that_no_mechanism_makes_are_no_report_and_a_vector_far_out_is_left_out(by: str) -> None:
    """A category of 0x55555555 of five, and a bit beyond the fifth: such a client is left out, and has paid."""
    scenario = reports(by, adversaries=(Adversary(kind="out-of-range", actor="client 1"),))
    world, outcome = check_trial(scenario)
    released = aggregate_of(world).reports
    assert released is not None
    assert outcome.ended.rounds[0].contributors == 2
    assert world.actors.clients[1] not in released.clients
    if by in CATEGORICAL:
        assert dropped(world, "release") > 0
    else:
        (doubt,) = aggregate_of(world).doubts
        assert "1 of 3 reports" in doubt
        assert world.actors.clients[1].hex()[:12] in doubt
    assert (LEDGER, world.rounds[0].id) in world.clients[1].disk.records


@pytest.mark.parametrize(
    ("kind", "by"),
    list(zip(("replay", "replay-elsewhere", "spoof", "misdirect", "garbage", "flip-bits", "swallow"),
             LOCAL_MECHANISMS * 2, strict=False)),
)  # fmt: skip
def test_a_hostile_router_changes_no_report(kind: str, by: str) -> None:
    amount = 0.3 if kind in ("flip-bits", "swallow") else 8.0
    actor = "broker" if kind not in ("flip-bits", "swallow") else "clients"
    _, outcome = check_trial(
        reports(by, Fault(kind=kind, actor=actor, amount=amount, for_ms=5_000), count=2, every_ms=2_000)
    )
    assert outcome.faults[0].reached
    assert {one.contributors for one in outcome.ended.rounds if one.result == "completed"} == {3}


# --- checkers -------------------------------------------------------------------------------------------------------


@cache
def holds_without_a_fault(scenario: Scenario) -> None:
    """Check it once for all faults that are planted in it."""
    check_trial(scenario)


@pytest.mark.parametrize("by", [ANALYTIC_GAUSSIAN, UNARY_ENCODING])
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_breaks_its_invariants_and_no_other(plant: type, by: str) -> None:
    """Of `WIDE` bits, two reports are the same by chance with a probability of 2e-9, and those of `RandomisesTooLittle`
    are the honest ones with one of 1e-16. Of five bits these were 0.07 and 0.02."""
    planted = PLANTS[plant]
    scenario = with_limits(reports(by, dimension=WIDE, count=3, every_ms=3_000), epsilon_per_period_max=1.5)
    scenario = msgspec.structs.replace(scenario, **planted.changes)
    holds_without_a_fault(scenario)
    _, outcome = run(scenario, faulty={planted.role: lambda _: plant})
    broken = planted.broken | ({11} if by in planted.stalls else set())
    found = {one.number for one in outcome.invariants if not one.ok}
    assert broken <= found <= broken | planted.besides, outcome.invariants


@pytest.mark.parametrize("plant", BESIDE_A_NEIGHBOUR, ids=lambda plant: plant.__name__)
def test_a_report_that_tells_more_than_its_mechanism_differs_beside_a_neighbour(plant: type) -> None:
    outcome = examine(reports(UNARY_ENCODING), faulty={"client": lambda _: plant})
    broken = {one.number for one in outcome.invariants if not one.ok}
    assert broken - {13} == {5}, outcome.invariants  # 13: one message is sent twice


# --- scenarios ------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_first_random_scenarios_of_reports_break_nothing() -> None:
    drawn = [draw_scenario(seed) for seed in range(100)]
    reporting = [one for one in drawn if one.rounds.kind == "ldp-report"]
    assert len(reporting) >= 10
    assert {one.rounds.mechanism for one in reporting} == set(LOCAL_MECHANISMS)
    for number, scenario in enumerate(reporting[:6]):
        assert examine(scenario, compare=not number).broken == {}, f"seed {scenario.seed}"


@pytest.mark.parametrize(
    ("by", "part", "changes", "said"),
    [
        ("unary", "rounds", {}, r"rounds\.mechanism is 'unary'; give one of analytic-gaussian, "),
        (
            GRID_LAPLACE,
            "rounds",
            {"kind": "node-release", "rows_max": 1},
            "rounds.mechanism is 'grid-laplace' for kind 'node-release'; give",
        ),
        (UNARY_ENCODING, "rounds", {"rows_max": 2}, r"rounds\.rows_max is 2; give 1, as unary-encoding needs"),
        (UNARY_ENCODING, "population", {"statistic": "sum"}, "population.statistic is 'sum' of dimension 5; give a hi"),
        (RANDOMISED_RESPONSE, "population", {"dimension": 1}, "population.statistic is 'histogram' of dimension 1; gi"),
    ],
)
def test_reports_that_nobody_can_make_are_refused(by: str, part: str, changes: dict[str, Any], said: str) -> None:
    plain = to_plain(reports(by))
    plain[part].update(changes)
    with pytest.raises(UsageError, match=said):
        from_plain(plain)
    assert from_plain(to_plain(reports(UNARY_ENCODING))) == reports(UNARY_ENCODING)
