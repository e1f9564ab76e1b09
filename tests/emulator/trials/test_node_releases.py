"""Node releases in trials: each data node releases by itself, once, what it has paid for, whatever goes wrong."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest
from planted_locally import PLANTS
from trial_helpers import check_trial, dropped, results, run, small, with_limits

from dca_proto.aggregate import NoisyAggregate
from dca_proto.errors import UsageError
from dca_proto.protocol.facts import RoundCompleted
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.statistics.contribution import contribution
from dca_proto.statistics.sensitivity import REPLACE_ONE_ROW
from emulator.trials.draw import RARE_EVERY, draw_scenario
from emulator.trials.scenario import Adversary, Fault, Scenario, to_plain
from emulator.trials.scenario_file import from_plain
from emulator.trials.trial import examine
from emulator.trials.world import TrialWorld

ROWS, ROWS_MAX = 3, 2


def releases(*faults: Fault, clients: int = 3, **changes: Any) -> Scenario:
    """Data nodes of three rows each, of which two count."""
    scenario = small(*faults, **{"clients": clients, "kind": "node-release", "rows_max": ROWS_MAX, **changes})
    people = msgspec.structs.replace(scenario.population, rows=ROWS, dimension=2)
    return msgspec.structs.replace(scenario, population=people)


def aggregate_of(world: TrialWorld, index: int = 0) -> NoisyAggregate:
    ended = world.rounds[index].ended
    assert isinstance(ended, RoundCompleted)
    return ended.aggregate


# --- without faults -------------------------------------------------------------------------------------------------


def test_without_noise_each_data_nodes_release_is_its_own_rows_sum() -> None:
    world, outcome = check_trial(releases(noise=False))
    actors, whole = world.actors, aggregate_of(world)
    rows = dict(zip(actors.clients, actors.rows, strict=True))
    expected = [contribution(actors.statistic, rows[client], ROWS_MAX, 24) for client in sorted(actors.clients)]
    assert [node.value.tolist() for node in whole.nodes] == [np.ldexp(one, -24).tolist() for one in expected]
    assert [(node.contributors, node.relation) for node in whole.nodes] == [(ROWS_MAX, REPLACE_ONE_ROW)] * 3
    assert whole.value.tolist() == np.ldexp(sum(expected), -24).tolist()
    (first, _) = outcome.ended.rounds
    assert (first.result, first.clients, first.contributors, first.needed) == ("completed", 3, 3, 1)


def test_no_compute_node_hears_of_it_and_everybody_pays_once() -> None:
    world, outcome = check_trial(releases(count=2, every_ms=10_000))
    assert results(outcome) == ["completed"] * 2
    sent = [message for node in world.computes for message in node.disk.records if message[0] == "compute-round"]
    assert sent == []
    for process in (*world.clients, world.trainer):
        assert sum(table == LEDGER for table, _ in process.disk.records) == 3, "the one after healing, too"
    assert {round(one.noise_variance / one.noise_floor, 9) for one in outcome.ended.rounds} == {1.0}


def test_two_runs_and_one_on_neighbouring_data_look_the_same() -> None:
    result = examine(releases(Fault(kind="lossy", actor="clients", amount=0.3)))
    assert result.broken == {}
    assert all(one.checked for one in result.invariants)


# --- with faults ----------------------------------------------------------------------------------------------------

KILLS = ("kill-before", "kill-torn", "kill-after", "kill-between")
PLACES = (("trainer", "collecting"), ("trainer", "done"), ("client 1", "sent"), ("client 1", "kept"))


@pytest.mark.parametrize("kind", KILLS)
@pytest.mark.parametrize(("actor", "phase"), PLACES)
def test_a_kill_at_any_step_loses_no_release_and_makes_none_twice(kind: str, actor: str, phase: str) -> None:
    _, outcome = check_trial(releases(Fault(kind=kind, actor=actor, phase=phase, for_ms=500)))
    assert outcome.faults[0].reached
    assert [(one.result, one.contributors) for one in outcome.ended.rounds] == [("completed", 3)] * 2


def test_who_is_silent_is_left_out_at_the_close_and_the_rest_is_the_result() -> None:
    world, outcome = check_trial(releases(Fault(kind="vanish-before-sending", actor="client 1")))
    assert outcome.ended.rounds[0].contributors == 2
    assert len(aggregate_of(world).nodes) == 2
    ended_ms = outcome.ended.rounds[0].phases["collect"][1]
    assert ended_ms >= 1_000 + 16_000, "not before the close"


def test_a_round_without_any_release_ends_in_words() -> None:
    _, outcome = check_trial(releases(Fault(kind="partition", actor="clients", for_ms=40_000)))
    (first, _) = outcome.ended.rounds
    assert (first.result, first.contributors) == ("aborted", None)
    assert "no data node released anything" in (first.reason or "")


def test_a_data_node_that_has_spent_its_budget_declines() -> None:
    scenario = with_limits(releases(count=3, every_ms=3_000), epsilon_per_period_max=1.5)
    _, outcome = check_trial(scenario)
    assert [one.result for one in outcome.ended.rounds] == ["completed", "completed", "aborted"]
    assert outcome.ended.further.startswith("not due")


@pytest.mark.parametrize(
    ("kind", "actor", "code"),
    [("two-faced", "client 1", "known-release"), ("copier", "client 1", "sender"), ("out-of-range", "client 1", "")],
)
def test_hostile_clients_spoil_nothing_but_their_own_release(kind: str, actor: str, code: str) -> None:
    world, outcome = check_trial(releases(adversaries=(Adversary(kind=kind, actor=actor),)))
    assert outcome.ended.rounds[0].contributors == (3 if code else 2), "one that is out of range is left out"
    assert not code or dropped(world, code) > 0


@pytest.mark.parametrize(
    "kind", ["replay", "replay-elsewhere", "spoof", "misdirect", "garbage", "flip-bits", "swallow"]
)
def test_a_hostile_router_changes_no_release(kind: str) -> None:
    amount = 0.3 if kind in ("flip-bits", "swallow") else 8.0
    actor = "broker" if kind not in ("flip-bits", "swallow") else "clients"
    _, outcome = check_trial(
        releases(Fault(kind=kind, actor=actor, amount=amount, for_ms=5_000), count=2, every_ms=2_000)
    )
    assert outcome.faults[0].reached
    assert {one.contributors for one in outcome.ended.rounds if one.result == "completed"} == {3}


# --- checkers -------------------------------------------------------------------------------------------------------


@cache
def holds_without_a_fault(scenario: Scenario) -> None:
    """Check it once for all faults that are planted in it."""
    check_trial(scenario)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_breaks_its_invariants_and_no_other(plant: type) -> None:
    planted = PLANTS[plant]
    scenario = with_limits(releases(count=3, every_ms=3_000), epsilon_per_period_max=1.5)
    scenario = msgspec.structs.replace(scenario, **planted.changes)
    holds_without_a_fault(scenario)
    _, outcome = run(scenario, faulty={planted.role: lambda _: plant})
    found = {one.number for one in outcome.invariants if not one.ok}
    assert planted.broken <= found <= planted.broken | planted.besides, outcome.invariants


# --- scenarios ------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_first_random_scenarios_of_node_releases_break_nothing() -> None:
    drawn = [draw_scenario(seed) for seed in range(100)]
    releasing = [one for one in drawn if one.rounds.kind == "node-release"]
    assert len(releasing) > 8
    assert all(one.rounds.rows_max for one in releasing)
    usual = [one for one in releasing if one.seed % RARE_EVERY != RARE_EVERY - 1]  # in the others, nobody has rows
    assert len(usual) > 8
    assert all(one.population.rows > 1 for one in usual)
    for number, scenario in enumerate(releasing[:6]):
        assert examine(scenario, compare=not number).broken == {}, f"seed {scenario.seed}"


def test_node_releases_need_to_know_how_many_rows_count() -> None:
    plain = to_plain(releases())
    assert from_plain(plain) == releases()
    plain["rounds"]["rows_max"] = 0
    with pytest.raises(UsageError, match=r"rounds\.rows_max is 0 for node releases; give the largest number of rows"):
        from_plain(plain)
