"""Completion: a round within the promise hangs if an actor never repeats what it must."""

from __future__ import annotations

import functools

import msgspec
import planted_life
import pytest
from trial_helpers import check_trial, run, small

from emulator.sim.broker import BrokerLimits


def faulty(plant: type, honest: type) -> type:
    """Adversaries are what they were."""
    return plant if honest in plant.__mro__ else honest


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
