"""Each planted fault of the protocol is found by a sweep of at most 300 random scenarios, and nothing without one."""

from __future__ import annotations

import functools
import re

import planted
import pytest

from dca_proto.core import announcement
from emulator.trials.cast import Plant
from emulator.trials.draw import draw_scenario
from emulator.trials.examination import broken_in, examine
from emulator.trials.sweep import COMPARE_EVERY

SEEDS_MAX, QUICK_MAX = 300, 15
ROWS = re.findall(r"^\| (.+?) \| (.+?) \| (\d+) \| (\d+) \|$", planted.__doc__ or "", re.MULTILINE)
SLOW = {name for name, _, seeds, _ in ROWS if int(seeds) > QUICK_MAX}
BROKEN = {name: int(invariant) for name, _, _, invariant in ROWS}
NAMES = [*planted.PLANTS, *planted.PATCHES]


def seeds_until_broken(plant: Plant | None, most: int) -> tuple[int, set[int]]:
    """How many scenarios a sweep runs until something breaks, and the invariants that do."""
    for seed in range(most):
        outcome = examine(draw_scenario(seed), compare=seed % COMPARE_EVERY == 0, plant=plant)
        broken = broken_in(outcome.to_json())
        if broken:
            return seed + 1, set(broken)
    return most, set()


def faulty(plant: type, honest: type) -> type:
    """Adversaries are what they were."""
    return plant if honest in plant.__mro__ else honest


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in SLOW else []) for name in NAMES]
)
def test_a_sweep_finds_a_planted_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant = None
    if name in planted.PLANTS:
        role, make = planted.PLANTS[name]
        plant = Plant(role, functools.partial(faulty, make))  # type: ignore[arg-type]
    announcement._held.clear()  # rounds that this process has validated before are sound
    for where, attribute, mistaken in planted.PATCHES.get(name, ()):
        monkeypatch.setattr(where, attribute, mistaken(getattr(where, attribute)))
    found, broken = seeds_until_broken(plant, SEEDS_MAX)
    assert BROKEN[name] in broken, f"{broken or 'nothing'} in {found} scenarios"


@pytest.mark.long
def test_the_same_scenarios_hold_without_one() -> None:
    assert seeds_until_broken(None, 40) == (40, set())


def test_the_table_names_every_fault() -> None:
    assert [row[0] for row in ROWS] == NAMES
    assert all(int(row[2]) <= SEEDS_MAX for row in ROWS)
