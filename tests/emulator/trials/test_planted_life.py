"""Life cycle and completion: a sweep finds actors that forget, keep or never repeat what they must; all is reached."""

from __future__ import annotations

import functools
import re

import msgspec
import planted_life
import pytest
from trial_helpers import check_trial, run, small

from emulator.sim.broker import BrokerLimits
from emulator.trials.draw import draw_scenario
from emulator.trials.sweep import sweep
from emulator.trials.trial import examine

SEEDS_MAX, QUICK_MAX = 300, 10
ROWS = re.findall(r"^\| (.+?) \| (.+?) \| (\d+) \| (\d+) \|$", planted_life.__doc__ or "", re.MULTILINE)
CASES = [
    pytest.param(name, int(number), marks=[pytest.mark.long] if int(seeds) > QUICK_MAX else [])
    for name, _, seeds, number in ROWS
]


def faulty(plant: type, honest: type) -> type:
    """Adversaries are what they were."""
    return plant if honest in plant.__mro__ else honest


@pytest.mark.parametrize(("name", "invariant"), CASES)
def test_a_sweep_finds_a_planted_fault(name: str, invariant: int) -> None:
    role, make = planted_life.PLANTS[name]
    plant = {role: functools.partial(faulty, make)}  # type: ignore[arg-type]
    trials = (examine(draw_scenario(seed), compare=False, faulty=plant) for seed in range(SEEDS_MAX))
    broken = next((one.broken for one in trials if one.broken), {})
    assert invariant in broken, broken


def test_the_table_names_every_fault() -> None:
    assert [row[0] for row in ROWS] == list(planted_life.PLANTS)


@pytest.mark.parametrize("name", planted_life.HANGS)
def test_a_round_within_the_promise_completes_unless_somebody_never_repeats_himself(name: str) -> None:
    role, make, strikes = planted_life.HANGS[name]
    scenario = small(strikes, tolerate=0, collect_s=60, commit_s=60)
    scenario = msgspec.structs.replace(scenario, broker=BrokerLimits(persistent_sessions=False))
    world, outcome = check_trial(scenario)
    assert world.faults[0].reached
    (promised,) = [one.checked for one in outcome.invariants if one.number == 11]
    assert promised >= 1
    _, outcome = run(scenario, faulty={role: functools.partial(faulty, make)})  # type: ignore[arg-type]
    assert 11 in outcome.broken


@pytest.mark.long
def test_300_scenarios_reach_every_kind_of_fault_and_every_entry_of_the_tables() -> None:
    found = sweep(0, 299)
    assert found.ok
    assert not found.never_reached
    assert found.checked["11"] >= 50, "rounds within the promise of completion"
