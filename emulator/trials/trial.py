"""One trial: safety under faults, then everything is mended, then it must become live.

Liveness: within bounded virtual time every round that was asked for has ended, with a result or an abort that says
why, at the trainer and at every honest Compute node; and one further round of the honest population completes, or the
next after one that had too few clients with sessions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.facts import RoundCompleted
from dca_proto.protocol.lists import TOO_FEW
from dca_proto.protocol.params import Timing
from dca_proto.protocol.trainer.actor import Trainer
from emulator.sim.events import Observer
from emulator.sim.trace import Entry
from emulator.trials.cast import Plant
from emulator.trials.outcome import (
    InvariantOutcome,
    Outcome,
    drops_of,
    evidence,
    facts_of,
    faults_of,
    options_of,
    rounds_of,
    traffic_of,
)
from emulator.trials.scenario import Scenario
from emulator.trials.transitions import noted
from emulator.trials.world import TrialWorld

SLACK_MS = 150_000
"""Beside the rounds' own windows: what resends, back-off and settling may take once all is mended."""
FURTHER_COLLECT_MS, FURTHER_COMMIT_MS = 400_000, 120_000
"""Windows of the further round: keys are published anew within five minutes where a broker has forgotten them.

It is asked for as much later where a Compute node had a copy beside it: the key that the copy published last stands
for the node's until then, and nobody holds its secret any more."""


class Checker(Protocol):
    """What `emulator.trials.checkers` gives: an observer that knows one invariant."""

    number: int
    name: str
    checked: int
    broken: list[str]
    before: list[Entry]

    def finish(self) -> None:
        """The trial is over: what can be said now only."""


Checkers = Callable[[TrialWorld], Sequence[Checker]]


def run_trial(scenario: Scenario, *, checkers: Checkers | None = None, plant: Plant | None = None) -> Outcome:
    """Run one scenario. The same scenario gives the same outcome, but for `wall_s`.

    Args:
        checkers: makes the checkers of a world; each is added to the observers.
        plant: a mistake of the actors of one role, to show that a checker sees it.
    """
    with noted() as taken:
        return _run(scenario, checkers, plant, taken)


def _run(scenario: Scenario, checkers: Checkers | None, plant: Plant | None, taken: set[str]) -> Outcome:
    began = time.perf_counter()
    world = TrialWorld(scenario, plant)
    watching = list(checkers(world)) if checkers is not None else []
    world.simulator.observers += [one for one in watching if isinstance(one, Observer)]
    begin(world)
    world.simulator.run(world.simulator.start_ms + scenario.healed_ms)
    world.mend()
    why = _wait_for_ends(world)
    further = _further_round(world) if not why else "not asked for: a round has not ended"
    if TOO_FEW in further:  # nodes whose Hellos a broker has lost have asked for them when they objected
        further = _further_round(world)
    if further != "completed" and not further.startswith("not "):
        why.append(f"one more round: {further}")
    if scenario.epoch_ms < Timing().epoch_ms:  # epochs turn, their keys are deleted, and rounds are forgotten
        latest_ms = max(log.request.collect_window_ms + 2 * log.request.commit_window_ms for log in world.rounds)
        world.simulator.run(world.simulator.now_ms + latest_ms + scenario.timing.retention_ms)
    for one in watching:
        one.finish()
    outcome = _outcome(world, watching, why, further, time.perf_counter() - began)
    return msgspec.structs.replace(outcome, transitions=tuple(sorted(taken)))


def begin(world: TrialWorld) -> None:
    """Have the rounds be asked for, and the faults wait for their moment."""
    simulator, rounds = world.simulator, world.scenario.rounds
    for injection in world.injections:
        injection.arm()
    for index in range(rounds.count):
        simulator.at(simulator.start_ms + rounds.asked_ms(index), world.ask_next)


def _wait_for_ends(world: TrialWorld) -> list[str]:
    """Let virtual time pass until all rounds have ended; what has not ended at last."""
    simulator, scenario = world.simulator, world.scenario
    skews = [int(fault.amount) for fault in scenario.faults if fault.kind.startswith("clock-")]
    latest_ms = max(simulator.now_ms, simulator.start_ms + scenario.rounds.end_ms)
    until_ms = latest_ms + scenario.rounds.longest_ms + 2 * max(skews, default=0) + SLACK_MS
    while simulator.now_ms < until_ms:
        if len(world.rounds) == scenario.rounds.count and all(world.has_ended(log) for log in world.rounds):
            return []
        simulator.run(min(simulator.now_ms + 1_000, until_ms))
    ends = [f"round {log.id.hex()[:8]}: {', '.join(world.open_at(log))}" for log in world.rounds if world.open_at(log)]
    return [*ends, *simulator.pending()] if ends else []


def _further_round(world: TrialWorld) -> str:
    """`completed`, `not due: ...`, or what became of it."""
    able = _able(world)
    tolerated = min(world.scenario.rounds.tolerated, len(able) - 2)
    reason = _not_due(world, len(able), tolerated)
    if reason:
        return f"not due: {reason}"
    simulator = world.simulator
    if not world.twinned.isdisjoint(world.cast.computes):
        simulator.run(simulator.now_ms + world.cast.timing.epoch_publish_ms)
    up = sum(process.is_up for process in world.clients)  # of whom those without budget decline
    request = world.cast.request(
        ask=world.cast.ask_of(up - len(able) + tolerated, world.scenario.limits.colluders_min),
        clients_expected=up,
        collect_window_ms=FURTHER_COLLECT_MS,
        commit_window_ms=FURTHER_COMMIT_MS,
    )
    log = world.further = world.ask(request)
    until_ms = simulator.now_ms + 2 * FURTHER_COLLECT_MS + 3 * FURTHER_COMMIT_MS + Timing().settle_ms + 1_000
    while simulator.now_ms < until_ms and not (log.refused or (log.ended is not None and world.has_ended(log))):
        simulator.run(simulator.now_ms + 1_000)
    if isinstance(log.ended, RoundCompleted):
        return "completed"
    if log.refused:
        return f"refused: {log.refused}"
    return f"aborted: {log.ended.reason}" if log.ended else "; ".join(world.open_at(log))


def _able(world: TrialWorld) -> list[bytes]:
    """The clients that are up and have budget for one more round."""
    price, policy = world.scenario.rounds.price, world.cast.policy
    up = [process for process in world.clients if isinstance(process.actor, Client)]
    return [
        process.id
        for process in up
        if isinstance(process.actor, Client)
        and policy.check_budget(price, process.actor.ledger, process.now_ms) is None
    ]


def _not_due(world: TrialWorld, able: int, tolerated: int) -> str:
    """Why no further round can be held, by the limits that the scenario sets."""
    if not _are_enough(world.scenario, able, tolerated):
        return f"{able} honest clients have budget left, too few for the limits of the scenario"
    trainer = world.trainer.actor
    if isinstance(trainer, Trainer) and world.scenario.limits.account_epsilon:
        budget_limit, price = world.cast.account, world.scenario.rounds.price
        if budget_limit is not None and budget_limit.check(price, trainer.ledger, world.simulator.now_ms) is not None:
            return "the trainer's account is used up"
    return ""


def _are_enough(scenario: Scenario, able: int, tolerated: int) -> bool:
    """Whether so many clients may hold a round; one is enough where no floor concerns it, without Compute nodes."""
    if not scenario.rounds.is_summed:
        return able > 0
    limits = scenario.limits
    clients_min = max(limits.clients_min, limits.floor_clients_min)
    honest_min = max(limits.honest_min, limits.floor_honest_min)
    fewest, colluders = able - tolerated + limits.colluders_min, limits.colluders_min
    return tolerated >= colluders and fewest - 1 - colluders >= honest_min and fewest >= clients_min


def _outcome(world: TrialWorld, watching: Sequence[Checker], why: list[str], further: str, wall_s: float) -> Outcome:
    invariants = tuple(
        InvariantOutcome(
            number=one.number,
            name=one.name,
            checked=one.checked,
            ok=not one.broken,
            detail=one.broken[0] if one.broken else None,
            facts=evidence(world, one.before, one.broken[0]) if one.broken else (),
        )
        for one in sorted(watching, key=lambda one: one.number)
    )
    holds = not why and all(one.ok for one in invariants)
    simulator = world.simulator
    return Outcome(
        seed=world.scenario.seed,
        digest=simulator.trace.digest(),
        result="ok" if holds else "broken",
        live=not why,
        further=further,
        why=tuple(why),
        rounds=rounds_of(world),
        invariants=invariants,
        faults=faults_of(world),
        drops=drops_of(world),
        spoils=tuple(sorted(world.spoils())),
        options=options_of(world),
        traffic=traffic_of(world),
        last_facts=facts_of(world),
        wall_s=wall_s,
        virtual_s=(simulator.now_ms - simulator.start_ms) / 1000,
    )
