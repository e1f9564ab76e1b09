"""Each planted fault of the protocol is found by a sweep of at most 300 random scenarios, and nothing without one.

The faults are those of `scripts/planted_faults.toml`, in secure sums and in all kinds of rounds.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import plant_faults
from plant_faults import KINDS, Fault

OF_KIND, QUICK_OF_KIND, QUICK_MAX, LONG_MAX = 5, 3, 6, 20
FAULTS = plant_faults.faults()
CAUGHT = sorted((one for one in FAULTS if one.caught is not None), key=lambda one: one.caught.seeds)  # type: ignore[union-attr]
BY_KIND = {kind: [one for one in CAUGHT if one.kind == kind] for kind in KINDS}
QUICK = {one.name for kind in KINDS for one in BY_KIND[kind][:QUICK_OF_KIND]}
FIRST = {one.name for kind in KINDS for one in BY_KIND[kind][:OF_KIND]}
IN_SUITE = [one for one in CAUGHT if one.name in FIRST or (one.caught and one.caught.seeds <= LONG_MAX)]


def marked(fault: Fault) -> pytest.ParameterSet:
    """Five of each kind at least are here, three of them in the quick suite where few scenarios suffice."""
    assert fault.caught is not None
    is_quick = fault.name in QUICK and fault.caught.seeds <= QUICK_MAX
    return pytest.param(fault, id=fault.name, marks=[] if is_quick else [pytest.mark.long])


@pytest.mark.parametrize("fault", [marked(one) for one in IN_SUITE])
def test_a_sweep_finds_a_planted_fault(fault: Fault) -> None:
    found = plant_faults.plant(fault)
    assert fault.caught is not None
    assert fault.caught.invariant in found.broken, f"{found.broken or 'nothing'} in {found.seeds} scenarios"


@pytest.mark.long
def test_the_same_scenarios_hold_without_one() -> None:
    found = plant_faults.plant(Fault(name="none", kind="noise", patch=()), 40)
    assert (found.seeds, found.broken) == (40, {})


def test_a_fault_that_nobody_notices_has_survived() -> None:
    harmless = ("protocol/lists.py", 'TOO_FEW = "too-few"', 'TOO_FEW = "too-" + "few"')
    found = plant_faults.plant(Fault(name="none", kind="noise", patch=(harmless,), why="it changes nothing"), 2)
    assert (found.seeds, found.broken, found.is_caught, found.why) == (2, {}, False, "it changes nothing")


def test_the_table_is_whole() -> None:
    root = Path(plant_faults.__file__).parents[1] / "dca_proto"
    for fault in FAULTS:
        for file in {patch[0] for patch in fault.patch}:
            patches = [patch for patch in fault.patch if patch[0] == file]
            assert plant_faults.patched(str(root / file), patches), fault.name
        assert (fault.caught is None) == bool(fault.why), f"{fault.name}: caught, or why not"
    assert len({one.name for one in FAULTS}) == len(FAULTS) >= 50
    assert {kind for kind, count in Counter(one.kind for one in IN_SUITE).items() if count >= OF_KIND} == set(KINDS)
    assert len(CAUGHT) >= plant_faults.CAUGHT_PART * len(FAULTS)
    assert sum(one.slip for one in FAULTS) >= len(FAULTS) / 2
