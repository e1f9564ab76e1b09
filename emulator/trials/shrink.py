"""Reduces a failing scenario while the same invariant still breaks.

It removes faults and adversaries in ever smaller groups (delta debugging: Zeller and Hildebrandt, IEEE TSE 28(2),
2002). Then it brings every other field nearer to `SIMPLEST`, one by one. It repeats both until nothing more changes or
the time is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec

from dca_proto.errors import UsageError
from emulator.sim.link import IDEAL
from emulator.trials.faults import FAULTS
from emulator.trials.scenario import Adversary, Changes, Fault, Population, Rounds, Scenario, to_plain
from emulator.trials.scenario_file import from_plain
from emulator.trials.trial import COMPARED, examine

TRIALS_MAX = 400
SIMPLEST = Scenario(
    population=Population(clients=3, computes=2, dimension=1, rows=1),
    rounds=Rounds(first_ms=0, tolerate=0),
    network=IDEAL,
)
"""The scenario towards which all others are shrunk, field by field: as few as possible of everything that is counted,
and the defaults of everything else, which TOML leaves out."""
KEPT = frozenset({"seed", "name", "faults", "adversaries"})
"""Fields that have no simpler value: the seed draws everything else. Faults and adversaries are removed by groups."""
_SIZED = ("population", "rounds")  # their fields depend on each other and on faults: only one by one
_PARTS = tuple(name for name in Scenario.__struct_fields__ if isinstance(getattr(SIMPLEST, name), msgspec.Struct))
_FIELDS = (
    ("rounds", "batch"),  # first: fewer clients would not do for it
    *((part, name) for part in _PARTS for name in getattr(SIMPLEST, part).__struct_fields__),
    *(("", name) for name in Scenario.__struct_fields__ if name not in (*KEPT, *_PARTS)),
)
_NEARER = ((1, 2), (3, 4), (9, 10))  # parts of the way from the aim that are left, tried in this order


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
        number: of the invariant, 1 to 18, or 0 for liveness. seconds, trials_max: when to stop looking.
        breaks: returns True if it still breaks in a scenario; by default, runs a trial with all checkers.
    """
    breaks_by_scenario: dict[Scenario, tuple[str, tuple[str, ...]]] = {}

    def in_a_trial(smaller: Scenario) -> bool:
        try:
            outcome = examine(smaller, compare=number in COMPARED)
        except UsageError:  # no trainer could announce its rounds
            return False
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


def _simpler(best: Callable[[], Scenario]) -> Iterator[Changes]:
    """Yield changes that simplify the scenario, each applied to the best one so far: `SIMPLEST` is the aim."""
    for part in _PARTS:  # a whole part at once, then field by field
        yield {part: getattr(SIMPLEST, part)} if part not in _SIZED else {}
    yield _with(best(), "rounds", kind=SIMPLEST.rounds.kind, mechanism=SIMPLEST.rounds.mechanism)
    for part, name in _FIELDS:
        now, change = partial(_value, part, name), partial(_with_value, part, name)
        yield from _nearer(_value(part, name, SIMPLEST), best, now, change)
    for items in ("faults", "adversaries"):
        for place in range(len(getattr(best(), items))):
            for name, aim in _aims_of(getattr(best(), items)[place]).items():
                now, change = partial(_item_value, items, place, name), partial(_with_item_value, items, place, name)
                yield from _nearer(aim, best, now, change)


def _nearer(
    aim: Any,
    best: Callable[[], Scenario],
    now: Callable[[Scenario], Any],
    change: Callable[[Scenario, Any], Changes],
) -> Iterator[Changes]:
    """Yield changes of one field to values nearer to the aim than that of the best scenario so far."""
    for value in _towards(aim, now(best())):
        current = now(best())
        if current != aim and (value == aim or abs(value - aim) < abs(current - aim)):
            yield change(best(), value)


def _value(part: str, name: str, scenario: Scenario) -> Any:
    return getattr(getattr(scenario, part) if part else scenario, name)


def _with_value(part: str, name: str, scenario: Scenario, value: Any) -> Changes:
    return _with(scenario, part, **{name: value})


def _item_value(items: str, place: int, name: str, scenario: Scenario) -> Any:
    return getattr(getattr(scenario, items)[place], name)


def _with_item_value(items: str, place: int, name: str, scenario: Scenario, value: Any) -> Changes:
    every = list(getattr(scenario, items))
    every[place] = msgspec.structs.replace(every[place], **{name: value})
    return {items: tuple(every)}


def _towards(aim: Any, value: Any) -> list[Any]:
    """Return values to try instead: the aim first, then numbers ever nearer to the present one."""
    if value == aim or isinstance(aim, bool | str) or isinstance(value, bool | str):
        return [] if value == aim else [aim]
    if isinstance(aim, int) and isinstance(value, int):
        near: list[Any] = [aim + int((value - aim) * part / of) for part, of in _NEARER] + [
            value - (1 if value > aim else -1)
        ]
    else:  # two digits are enough, and so is one percent
        near = [float(f"{(aim + value) / 2:.2g}")] if abs(value - aim) > max(1.0, abs(aim)) / 100 else []
    return list(dict.fromkeys(one for one in (aim, *near) if one != value))


def _aims_of(item: Fault | Adversary) -> Changes:
    """Return the simplest value of each field of a fault or an adversary, except its kind and its actor."""
    least = FAULTS[item.kind].amounts[0] if isinstance(item, Fault) else 0
    usual = msgspec.structs.asdict(type(item)(kind=item.kind, actor=item.actor))
    del usual["kind"], usual["actor"]
    return {**usual, "amount": type(usual["amount"])(least)}


def _with(scenario: Scenario, part: str, **values: Any) -> Changes:
    """Return the change of fields of one part, without the faults and adversaries whose actors it removes."""
    if not part:
        return values
    changed: Changes = {part: msgspec.structs.replace(getattr(scenario, part), **values)}
    if part == "population":
        counts = {"client": changed[part].clients, "compute": changed[part].computes}
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
