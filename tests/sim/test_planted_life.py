"""Life cycle and completion: a sweep finds actors that forget, keep or never repeat what they must; all is reached."""

from __future__ import annotations

import functools
import re

import planted_life
import pytest
from test_planted import QUICK_MAX, SEEDS_MAX, faulty, seeds_until_broken

from emulator.trials.cast import Plant
from emulator.trials.sweep import sweep

ROWS = re.findall(r"^\| (.+?) \| (.+?) \| (\d+) \| (\d+) \|$", planted_life.__doc__ or "", re.MULTILINE)
CASES = [
    pytest.param(name, int(number), marks=[pytest.mark.long] if int(seeds) > QUICK_MAX else [])
    for name, _, seeds, number in ROWS
]


@pytest.mark.parametrize(("name", "invariant"), CASES)
def test_a_sweep_finds_a_planted_fault(name: str, invariant: int) -> None:
    role, make = planted_life.PLANTS[name]
    found, broken = seeds_until_broken(Plant(role, functools.partial(faulty, make)), SEEDS_MAX)  # type: ignore[arg-type]
    assert invariant in broken, f"{broken or 'nothing'} in {found} scenarios"


def test_the_table_names_every_fault() -> None:
    assert [row[0] for row in ROWS] == list(planted_life.PLANTS)


@pytest.mark.long
def test_300_scenarios_reach_every_kind_of_fault_and_every_entry_of_the_tables() -> None:
    found = sweep(0, 299)
    assert found.ok
    assert found.never_reached == []
    assert found.checked[11] >= 50, "rounds within the promise of completion"
