"""Faults that hide behind redundancy are judged: each of `planted_pace` breaks its invariant, and nothing else does."""

from __future__ import annotations

import planted_pace
import pytest
from trial_helpers import check_trial, run

from emulator.trials.scenario import Scenario


def faulty(plant: type, honest: type) -> type:
    """Adversaries are what they were."""
    return plant if honest in plant.__mro__ else honest


@pytest.mark.parametrize("name", planted_pace.HIDDEN)
def test_a_hidden_fault_is_seen(name: str) -> None:
    role, plant, scenario, invariant = planted_pace.HIDDEN[name]
    _, outcome = run(scenario, faulty={role: lambda honest: faulty(plant, honest)})
    assert invariant in outcome.broken, outcome.broken


SCENARIOS = {scenario: name for name, (_, _, scenario, _) in planted_pace.HIDDEN.items()}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=SCENARIOS.values())
def test_production_actors_break_nothing_there(scenario: Scenario) -> None:
    check_trial(scenario)
