"""Reduces a failing scenario while the same invariant still breaks.

It removes faults and adversaries in ever smaller groups (delta debugging: Zeller and Hildebrandt, IEEE TSE 28(2),
2002). Then it reduces rounds, clients, nodes and coordinates one by one, and simplifies the network. It repeats both
until nothing more can be removed or the time is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from dca_proto.errors import UsageError
from emulator.sim.broker import BrokerOptions
from emulator.sim.link import IDEAL
from emulator.trials.scenario import Adversary, Fault, Limits, Scenario, to_plain
from emulator.trials.scenario_file import from_plain
from emulator.trials.trial import COMPARED, examine

TRIALS_MAX = 200
_SMALLER = ((1, 2), (3, 4), (9, 10))  # fractions to which a number is reduced, tried in this order


class Shrunk(msgspec.Struct, frozen=True):
    """A reduced scenario.

    `trials`: number of trials run to find it. `detail`: how it breaks. `facts`: the facts before the break, as text.
    """

    scenario: Scenario
    trials: int
    detail: str
    facts: tuple[str, ...]


def shrink(
    scenario: Scenario,
    number: int,
    *,
    seconds: float = 30.0,
    trials_max: int = TRIALS_MAX,
    breaks: Callable[[Scenario], bool] | None = None,
) -> Shrunk:
    """Return the smallest scenario found in which the same invariant breaks.

    Args:
        number: of the invariant, 1 to 11, or 0 for liveness. seconds, trials_max: when to stop looking.
        breaks: returns True if it still breaks in a scenario; by default, runs a trial with all checkers.
    """
    breaks_by_scenario: dict[Scenario, tuple[str, tuple[str, ...]]] = {}

    def in_a_trial(smaller: Scenario) -> bool:
        outcome = examine(smaller, compare=number in COMPARED)
        breaks_by_scenario[smaller] = outcome.broken.get(number, ""), outcome.facts_before(number)
        return number in outcome.broken

    best, trials, until_s, does_break = scenario, 0, time.monotonic() + seconds, breaks or in_a_trial

    def is_over() -> bool:
        return trials >= trials_max or time.monotonic() >= until_s

    def attempt(**changes: Any) -> bool:
        """Return True if it still breaks with these changes; if so, keep them."""
        nonlocal best, trials
        smaller = _valid(msgspec.structs.replace(best, **changes))
        if smaller is None or smaller == best or is_over():
            return False
        trials += 1
        if not does_break(smaller):
            return False
        best = smaller
        return True

    before: Scenario | None = None
    while before != best and not is_over():
        before = best
        for name in ("faults", "adversaries"):
            _remove_groups(name, getattr(best, name), attempt, is_over)
        for changes in _simpler(lambda: best):
            attempt(**changes)
    return Shrunk(best, trials, *breaks_by_scenario.get(best, ("", ())))


def _remove_groups(
    name: str, items: tuple[Any, ...], attempt: Callable[..., bool], is_over: Callable[[], bool]
) -> None:
    """Try to remove all items, then halves, quarters, ..., single items."""
    size = len(items)
    while size:
        start = 0
        while start < len(items) and not is_over():
            rest = items[:start] + items[start + size :]
            if attempt(**{name: rest}):
                items = rest
            else:
                start += size
        size //= 2


def _simpler(best: Callable[[], Scenario]) -> Iterator[dict[str, Any]]:
    """Yield changes that simplify the scenario, each applied to the best one so far."""
    for part, name, least in (
        ("rounds", "count", 1),
        ("population", "clients", 3),
        ("population", "computes", 2),
        ("population", "dimension", 1),
        ("population", "rows", 1),
        ("rounds", "tolerated", 0),
        ("rounds", "colluders", 0),
    ):
        for value in _lower(getattr(getattr(best(), part), name), least):
            if value < getattr(getattr(best(), part), name):
                yield _with_number(best(), part, name, value)
    yield {"network": IDEAL}
    for name in ("loss", "duplicate", "reorder", "jitter_ms", "bandwidth_bytes_s"):
        yield _with_number(best(), "network", name, 0.0)
    yield {"broker": BrokerOptions()}
    yield {"limits": Limits()}


def _lower(value: int, least: int) -> list[int]:
    """Return smaller values to try: the least first, then larger fractions."""
    tried = [least, *(value * part // whole for part, whole in _SMALLER), value - 1]
    return sorted({candidate for candidate in tried if least <= candidate < value})


def _with_number(scenario: Scenario, part: str, name: str, value: float) -> dict[str, Any]:
    """Return the change of one number, without the faults and adversaries whose actors it removes."""
    changed = {part: msgspec.structs.replace(getattr(scenario, part), **{name: value})}
    if part == "population":
        population = msgspec.structs.replace(scenario, **changed).population
        counts = {"client": population.clients, "compute": population.computes}
        changed["faults"] = tuple(fault for fault in scenario.faults if _is_there(fault, counts))
        changed["adversaries"] = tuple(adversary for adversary in scenario.adversaries if _is_there(adversary, counts))
    return changed


def _is_there(item: Fault | Adversary, counts: dict[str, int]) -> bool:
    role, _, number = item.actor.partition(" ")
    return role not in counts or int(number) < counts[role]


def _valid(scenario: Scenario) -> Scenario | None:
    """Return the scenario if it passes the checks, else None."""
    try:
        return from_plain(to_plain(scenario))
    except UsageError:
        return None
