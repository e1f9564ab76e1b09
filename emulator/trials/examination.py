"""A scenario held against all eleven invariants: one trial, or three where it is compared with two other runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from emulator.trials.checkers import checkers_of
from emulator.trials.checkers.base import Checker
from emulator.trials.checkers.view import Transcript, neighbour
from emulator.trials.trial import run_trial

if TYPE_CHECKING:
    from emulator.trials.cast import Plant
    from emulator.trials.outcome import Outcome
    from emulator.trials.scenario import Scenario
    from emulator.trials.world import TrialWorld

LIVENESS = 0
"""Stands where an invariant's number would, for a trial that has not become live after healing."""
COMPARED = frozenset({5, 9})
"""The invariants that only further runs can hold in full: on neighbouring data, and of the same seed."""


def examine(
    scenario: Scenario,
    *,
    compare: bool = True,
    plant: Plant | None = None,
    on_world: Callable[[TrialWorld], None] = lambda _: None,
) -> Outcome:
    """Run a scenario with all checkers looking on.

    Args:
        compare: whether to run it twice more before: once as it is, for its digest, and once on neighbouring data.
        plant: a mistake to plant, for tests of the checkers. on_world: called with each world before it runs.
    """
    beside: list[tuple[Transcript, bytes]] = []
    digests: list[str] = []

    def nobody(world: TrialWorld) -> list[Checker]:
        on_world(world)
        return []

    def beside_it(world: TrialWorld) -> list[Checker]:
        on_world(world)
        transcript = Transcript(world)
        world.simulator.observers.append(transcript)
        beside.append((transcript, neighbour(world)))
        return []

    def everybody(world: TrialWorld) -> list[Checker]:
        on_world(world)
        return checkers_of(world, neighbour=beside[0] if beside else None, digest=digests[0] if digests else None)

    if compare:
        digests.append(run_trial(scenario, checkers=nobody, plant=plant).digest)
        run_trial(scenario, checkers=beside_it, plant=plant)
    return run_trial(scenario, checkers=everybody, plant=plant)


def facts_before(result: dict[str, Any], number: int) -> list[str]:
    """What a trial's JSON tells of the time before that invariant broke; of the end, where it did not become live."""
    return next((list(one["facts"]) for one in result["invariants"] if one["number"] == number), result["last_facts"])


def broken_in(result: dict[str, Any]) -> dict[int, str]:
    """What a trial's JSON says was broken: the invariants' numbers (`LIVENESS` for none of them) and how."""
    broken = {one["number"]: str(one["detail"]) for one in result["invariants"] if not one["ok"]}
    if not result["outcome"]["live"]:
        broken[LIVENESS] = "; ".join(result["outcome"]["why"])
    return broken
