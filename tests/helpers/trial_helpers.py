"""Helpers of the tests of trials: small scenarios, and a trial under all checkers with its world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from dca_proto.protocol.facts import RoundCompleted
from emulator.sim.link import LinkOptions
from emulator.trials.checkers import checkers_of
from emulator.trials.outcome import Outcome
from emulator.trials.scenario import Adversary, Fault, Population, Rounds, Scenario
from emulator.trials.trial import run_trial
from emulator.trials.world import TrialWorld

FAST = LinkOptions(delay_ms=5, jitter_ms=5, duplicate=0.02, reorder=0.05, reorder_ms=50)


def small(
    *faults: Fault,
    adversaries: tuple[Adversary, ...] = (),
    clients: int = 4,
    computes: int = 2,
    seed: int = 1,
    heal_ms: int = 0,
    **rounds: Any,
) -> Scenario:
    """Return a scenario of a few clients, one round and short windows; all settings of the round can be changed."""
    windows = {"collect_s": 8, "commit_s": 8}
    return Scenario(
        seed=seed,
        heal_ms=heal_ms,
        population=Population(clients=clients, computes=computes),
        rounds=Rounds(**{**windows, **rounds}),
        network=FAST,
        faults=faults,
        adversaries=adversaries,
    )


def with_limits(scenario: Scenario, **limits: Any) -> Scenario:
    return msgspec.structs.replace(scenario, limits=msgspec.structs.replace(scenario.limits, **limits))


def run(
    scenario: Scenario,
    prepare: Callable[[TrialWorld], None] | None = None,
    faulty: dict[str, Callable[[type], type]] | None = None,
) -> tuple[TrialWorld, Outcome]:
    """Run a trial under all checkers; return it with its final world. `prepare` may do anything before the start."""
    worlds: list[TrialWorld] = []

    def checkers(world: TrialWorld) -> list[Any]:
        worlds.append(world)
        made = checkers_of(world)
        if prepare is not None:
            prepare(world)
        return made

    outcome = run_trial(scenario, checkers=checkers, faulty=faulty)
    return worlds[0], outcome


def check_trial(scenario: Scenario, prepare: Callable[[TrialWorld], None] | None = None) -> tuple[TrialWorld, Outcome]:
    """Run a trial; assert that all invariants hold."""
    world, outcome = run(scenario, prepare)
    broken = [(one.number, one.detail) for one in outcome.invariants if not one.ok]
    assert outcome.ok, (outcome.ended.why, broken)
    return world, outcome


def results(outcome: Outcome) -> list[str]:
    """Return the outcomes of the scenario's rounds, without the further one."""
    ended = [one.result for one in outcome.ended.rounds]
    return ended[: len(ended) - (outcome.ended.further == "completed")]


def contributors(world: TrialWorld, index: int = 0) -> int:
    """Return the number of contributors to a completed round."""
    fact = world.rounds[index].ended
    assert isinstance(fact, RoundCompleted)
    return fact.aggregate.contributors


def facts_of(world: TrialWorld, kind: type) -> list[Any]:
    """Return the last reported facts of one kind."""
    return [entry.fact for entry in world.simulator.trace.entries if isinstance(entry.fact, kind)]


def dropped(world: TrialWorld, code: str) -> int:
    """Return the number of messages that all running actors have dropped for that reason."""
    return sum(one.actor.dropped[code] for one in world.simulator.machines if one.actor is not None)
