"""Sweeps, the processes that run them, and failing scenarios made smaller."""

from __future__ import annotations

import faulty_work
import msgspec
import planted
import pytest
from rich.console import Console

from dca_proto.cli.emulate_output import show_sweep
from dca_proto.errors import UsageError
from dca_proto.protocol.client import round as client_round
from emulator.report.sweep import page
from emulator.trials.draw import draw_scenario
from emulator.trials.outcome import LIVENESS
from emulator.trials.scenario import EPOCH_MS_MIN, Adversary, Fault, Population, Rounds, Scenario
from emulator.trials.shrink import KEPT, SIMPLEST, shrink
from emulator.trials.sweep import COMPARE_EVERY, Sweep, shrink_failures, sweep, trial_of
from emulator.trials.trial import TRANSITIONS, examine

FAULTS = tuple(Fault(kind="crash", actor=f"client {number}", at_ms=number) for number in range(6))
FULL = Scenario(
    population=Population(clients=20, computes=5, dimension=4),
    rounds=Rounds(count=3, tolerate=3),
    faults=FAULTS,
    adversaries=(Adversary(kind="sybil", actor="client 9"), Adversary(kind="silent", actor="compute 4")),
)


def test_the_first_random_scenarios_break_nothing() -> None:
    """The first of the thousands that scripts/check_scenarios.py runs; every tenth is compared, as in a sweep."""
    for seed in range(COMPARE_EVERY + 1):
        result = trial_of(seed)
        assert result.broken == {}, f"seed {seed}"
        numbers = {one.number for one in result.invariants if one.checked}
        assert numbers >= {4, 6, 7} if seed % COMPARE_EVERY else numbers >= {4, 5, 6, 7, 9}


@pytest.mark.long
def test_fifty_more_break_nothing() -> None:
    found = sweep(11, 60)
    assert found.ok, found.failed


# --- workers ---------------------------------------------------------------------------------------------------------


def test_every_seed_is_run_once_over_two_processes() -> None:
    seen: list[int] = []
    found = sweep(5, 14, processes=2, work=faulty_work.nothing, on_done=lambda so_far: seen.append(so_far.run))
    assert found.ok
    assert found.run == 10
    assert seen == list(range(1, 11))
    assert found.checked == {"1": 20}
    assert found.rounds == {"completed": 10}


@pytest.mark.long
def test_a_worker_that_dies_is_named_and_replaced() -> None:
    found = sweep(0, 6, processes=2, work=faulty_work.dies_at_three)
    (failure,) = found.failed
    assert (failure.seed, failure.invariant) == (3, None)
    assert "exit code 7" in failure.detail
    assert found.run == 7, "the other seeds are run nevertheless"


@pytest.mark.long
def test_a_machine_on_which_all_workers_die_gets_no_more_seeds() -> None:
    found = sweep(0, 1_000, processes=1, work=faulty_work.always_dies)
    assert found.run == len(found.failed) == 5


def test_a_bug_in_a_trial_is_reported_with_its_cause() -> None:
    found = sweep(0, 4, processes=1, work=faulty_work.raises_at_two)
    (failure,) = found.failed
    assert failure.seed == 2
    assert "ValueError: a bug of the emulator" in failure.detail
    assert found.run == 5


def test_time_that_is_over_stops_a_sweep() -> None:
    found = sweep(0, 10_000_000, minutes=0.01, processes=1, work=faulty_work.nothing)
    assert 0 < found.run < 10_000_000
    assert found.ok


def test_ctrl_c_keeps_what_was_done() -> None:
    def interrupt(so_far: Sweep) -> None:
        if so_far.run == 3:
            raise KeyboardInterrupt

    found = sweep(0, 99, processes=1, work=faulty_work.nothing, on_done=interrupt)
    assert found.interrupted
    assert found.run == 3


def test_a_broken_invariant_is_in_the_figures_with_all_that_repeats_it() -> None:
    report = msgspec.to_builtins(sweep(8, 8, processes=1, work=faulty_work.breaks_the_third))
    (failure,) = report["failed"]
    assert report["ok"] is False
    assert (failure["seed"], failure["invariant"], failure["detail"]) == (8, 3, "two sums")
    assert failure["replay"] == "dca emulate replay 8"
    assert failure["facts"] == ("the last one",)


@pytest.mark.long
def test_noise_is_judged_over_all_trials_together() -> None:
    """Noise that is clipped at three standard deviations shows in no single trial of 8,000 draws."""
    alone, both = (sweep(0, last, processes=2, work=faulty_work.clips_noise) for last in (0, 5))
    assert alone.ok
    assert alone.noise is not None
    assert alone.noise.draws == {"Gaussian noise": 8_000}
    assert not both.ok
    assert (both.failed[0].seed, both.failed[0].invariant) == ("0..5", 10)
    assert "0 of 48,000 lie in the outer" in str(both.failed[0].detail)
    assert both.noise is not None
    assert both.noise.p_value < both.noise.false_alarm
    again = sweep(0, 5, processes=1, work=faulty_work.clips_noise)
    assert (again.noise, again.failed) == (both.noise, both.failed), "whatever process ran which seed"
    console = Console(width=100, record=True)
    show_sweep(console, both)
    assert "values judged together: 48,000 of Gaussian noise" in console.export_text()
    assert "misshapen" in page(both).sections[3][1][0].text  # type: ignore[union-attr]
    shrink_failures(both, seconds=0.1)
    assert both.failed[0].shrunk is None, "no single scenario has it"


def test_a_failure_shows_the_facts_of_its_round_before_the_break() -> None:
    make = planted.SecondRelease
    plant = {"compute": lambda honest: make if honest in make.__mro__ else honest}
    scenario = draw_scenario(3)
    outcome = examine(scenario, compare=False, faulty=plant)
    (broken,) = [one for one in outcome.invariants if one.number == 1]
    assert broken.detail is not None
    named = broken.detail[-8:]
    assert [fact for fact in broken.facts if "ListFrozen" in fact and named in fact]
    others = {one.round_id[:8] for one in outcome.ended.rounds} - {named}
    assert others
    assert not [fact for fact in broken.facts if any(other in fact for other in others)]
    assert all("RoundCompleted" not in fact for fact in broken.facts), "that came after the break"


@pytest.mark.long
def test_a_sweep_lists_the_transitions_it_never_took() -> None:
    seen = sweep(0, 3, processes=1)
    assert set(seen.transitions) == set(TRANSITIONS)
    assert seen.transitions["client: new, announcement"] >= 3
    assert "trainer: collecting, repeated partial" in seen.never_reached
    assert "client: new, announcement" not in seen.never_reached
    assert client_round.ClientRound.table is client_round.TABLE, "it is put back"


def test_in_one_of_300_trials_the_trainer_gets_all_sums_after_it_has_failed_the_round() -> None:
    """Chance misses it: the trainer has to hear nothing for long, and then everything."""
    outcome = trial_of(287)
    assert "trainer: failed, last partial" in outcome.transitions
    assert outcome.broken == {}


def test_rounds_are_forgotten_where_epochs_are_short() -> None:
    taken = set(examine(msgspec.structs.replace(Scenario(), epoch_ms=EPOCH_MS_MIN), compare=False).transitions)
    assert {"trainer: done, forget", "compute: released, forget", "client: kept, close"} <= taken


# --- shrinking -------------------------------------------------------------------------------------------------------


def test_shrinking_keeps_only_what_the_failure_needs() -> None:
    def breaks(scenario: Scenario) -> bool:
        needed = {"client 1", "client 4"} <= {fault.actor for fault in scenario.faults}
        return needed and any(one.kind == "silent" for one in scenario.adversaries) and scenario.rounds.count >= 2

    left = shrink(FULL, 3, breaks=breaks).scenario
    assert {fault.actor for fault in left.faults} == {"client 1", "client 4"}
    assert [one.actor for one in left.adversaries] == ["compute 4"]
    assert left.rounds.count == 2
    assert (left.population.clients, left.population.computes, left.population.dimension) == (5, 5, 1)
    assert left.rounds.tolerate == 0


NUMBERS = [
    (part, name)
    for part in ("population", "rounds", "limits", "network", "broker")
    for name, value in msgspec.structs.asdict(getattr(SIMPLEST, part)).items()
    if isinstance(value, int | float)
] + [("", "heal_ms"), ("", "epoch_ms")]
ANY = msgspec.structs.replace(FULL, rounds=msgspec.structs.replace(FULL.rounds, colluders=2, batch=15))


def changed(part: str, name: str) -> Scenario:
    """A scenario with another value than the simplest one in one field; some fields need further ones."""
    owner = getattr(ANY, part) if part else ANY
    value = getattr(owner, name)
    if value == getattr(getattr(SIMPLEST, part) if part else SIMPLEST, name):
        value = not value if isinstance(value, bool) else value + 2 if isinstance(value, int) else value / 2 or 0.5
    owner = msgspec.structs.replace(owner, **{name: value})
    return msgspec.structs.replace(ANY, **{part: owner}) if part else owner


@pytest.mark.parametrize(("part", "name"), NUMBERS)
def test_every_number_of_a_scenario_is_shrunk(part: str, name: str) -> None:
    left = shrink(changed(part, name), 3, breaks=lambda _: True).scenario
    assert left == msgspec.structs.replace(SIMPLEST, seed=left.seed)


def test_the_fields_that_are_not_shrunk_are_listed() -> None:
    parts = {part for part, _ in NUMBERS if part}
    assert set(Scenario.__struct_fields__) == parts | KEPT | {name for part, name in NUMBERS if not part}


def test_a_batch_is_lowered_as_far_as_the_failure_allows() -> None:
    def breaks(scenario: Scenario) -> bool:
        return scenario.rounds.batch >= 9

    left = shrink(ANY, 3, breaks=breaks).scenario
    assert (left.rounds.batch, left.population.clients, left.rounds.colluders) == (9, 9, 0)


def test_kinds_of_rounds_and_the_numbers_of_faults_are_simplified() -> None:
    reports = {"kind": "ldp-report", "mechanism": "unary-encoding", "rows_max": 1}
    full = Scenario(
        population=Population(clients=9, statistic="histogram", dimension=4),
        rounds=Rounds(**reports),
        faults=(Fault(kind="kill-torn", actor="client 1", at_ms=900, for_ms=70, phase="kept"),),
        adversaries=(Adversary(kind="flood", actor="client 0", amount=7),),
    )
    left = shrink(full, 3, breaks=lambda one: bool(one.faults and one.adversaries)).scenario
    assert left.rounds == SIMPLEST.rounds
    assert left.faults == (Fault(kind="kill-torn", actor="client 1"),)
    assert left.adversaries == (Adversary(kind="flood", actor="client 0"),)


def test_a_scenario_that_no_trainer_could_announce_does_not_break() -> None:
    overflowing = msgspec.structs.replace(Scenario(), rounds=Rounds(epsilon=1e-6, delta=1e-12, fraction_bits=40))
    with pytest.raises(UsageError):
        examine(overflowing, compare=False)
    assert shrink(overflowing, 3).scenario == overflowing


def test_shrinking_is_bounded_and_never_gives_a_scenario_that_holds() -> None:
    tried: list[Scenario] = []

    def breaks(scenario: Scenario) -> bool:
        tried.append(scenario)
        return False

    shrunk = shrink(FULL, 3, breaks=breaks, trials_max=7)
    assert shrunk.scenario == FULL
    assert shrunk.trials == len(tried) == 7
    assert shrink(FULL, 3, breaks=breaks, seconds=0).trials == 0


@pytest.mark.long
def test_a_planted_fault_is_shrunk_to_next_to_nothing() -> None:
    plant = {"compute": lambda _: planted.AddsOne}
    full = msgspec.structs.replace(FULL, adversaries=())
    assert 3 in examine(full, compare=False, faulty=plant).broken

    def breaks(scenario: Scenario) -> bool:
        return 3 in examine(scenario, compare=False, faulty=plant).broken

    left = shrink(full, 3, breaks=breaks).scenario
    assert left.faults == ()
    assert (left.population.clients, left.population.computes, left.rounds.count) == (3, 2, 1)


@pytest.mark.parametrize("why", [(), ("round 1f2e: the trainer is running", "the broker is down")])
def test_a_round_that_hangs_is_a_failure_that_names_what_hangs(why: tuple[str, ...]) -> None:
    result = examine(draw_scenario(5), compare=False)
    result.ended = msgspec.structs.replace(result.ended, live=not why, why=why)
    assert result.broken == ({LIVENESS: "; ".join(why)} if why else {})
