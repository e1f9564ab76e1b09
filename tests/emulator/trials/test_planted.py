"""Faults planted in the protocol are found by a sweep of at most 300 random scenarios or by one made by hand.

Nothing is found without a fault. The faults are some of `scripts/planted_faults.toml`, of each kind; all of them are
tried by `scripts/plant_faults.py --again`. The scenario that caught a fault last time is tried first; if it does not,
the whole sweep is.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest

import plant_faults
from dca_proto.engine import LOCAL
from dca_proto.errors import UsageError
from emulator.trials.directed import DIRECTED
from plant_faults import KINDS, SEEDS_MAX, Fault, Found

OF_KIND, OF_PROCESS = 5, 20
FAULTS = plant_faults.faults()
CAUGHT = sorted((one for one in FAULTS if one.caught is not None), key=lambda one: one.caught.seeds)  # type: ignore[union-attr]
FIRST = {one.name for kind in KINDS for one in [fault for fault in CAUGHT if fault.kind == kind][:OF_KIND]}
BY_HAND = {one.caught.scenario: one.name for one in CAUGHT if one.caught is not None and one.caught.scenario}
IN_SUITE = [one for one in CAUGHT if one.name in {*FIRST, *BY_HAND.values()}]
"""Five of each kind, which few scenarios find, and one for each scenario made by hand."""


pytestmark = pytest.mark.xdist_group("planted")  # else each worker would plant all of them


@pytest.fixture(scope="module")
def plant(request: pytest.FixtureRequest) -> Callable[[Fault], Found]:
    """Plants faults one after another, some in a process, and waits for that of one.

    A process that has grown by 300 MB is replaced, with a warning, which would be an error here.
    """
    here = [
        item.callspec.params
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]
    faults = [params["fault"] for params in here]
    parts = (faults[first : first + OF_PROCESS] for first in range(0, len(faults), OF_PROCESS))
    swept = (plant_faults.run(part, SEEDS_MAX, 1, LOCAL, again=True) for part in parts)
    outcomes: Iterator[Found] = chain.from_iterable(swept)
    found: dict[str, Found] = {}

    def wait(fault: Fault) -> Found:
        while fault.name not in found:
            one = next(outcomes)
            found[one.name] = one
        return found[fault.name]

    return wait


@pytest.mark.long
@pytest.mark.parametrize("fault", IN_SUITE, ids=lambda fault: fault.name)
def test_a_sweep_finds_a_planted_fault(fault: Fault, plant: Callable[[Fault], Found]) -> None:
    found = plant(fault)
    assert fault.caught is not None
    expected = {fault.caught.invariant, *fault.caught.also}
    assert not expected.isdisjoint(found.broken), f"{found.broken or 'nothing'} in {found.seeds} scenarios"


@pytest.mark.long
def test_a_fault_that_nobody_notices_has_survived() -> None:
    """Nor does any invariant break in these scenarios, and in those made by hand."""
    harmless = ("protocol/lists.py", 'TOO_FEW = "too-few"', 'TOO_FEW = "too-" + "few"')
    found = plant_faults.plant(Fault(name="none", kind="noise", patch=(harmless,), why="it changes nothing"), 10)
    assert (found.seeds, found.broken, found.is_caught, found.why) == (10, {}, False, "it changes nothing")


def test_the_table_is_whole() -> None:
    root = Path(plant_faults.__file__).parents[1] / "dca_proto"
    for fault in FAULTS:
        for file in {patch[0] for patch in fault.patch}:
            patches = [patch for patch in fault.patch if patch[0] == file]
            ast.parse(plant_faults.patched(str(root / file), patches), fault.name)
        assert (fault.caught is None) == bool(fault.why), f"{fault.name}: caught, or why not"
    assert len({one.name for one in FAULTS}) == len(FAULTS) >= 50
    assert {kind for kind, count in Counter(one.kind for one in IN_SUITE).items() if count >= OF_KIND} == set(KINDS)
    assert len(CAUGHT) >= plant_faults.CAUGHT_PART * len(FAULTS)
    tests = "".join(path.read_text() for path in (root.parent / "tests").rglob("test_*.py"))
    for fault in FAULTS:
        assert fault.caught is None or fault.caught.scenario in ("", *DIRECTED)
        for name in re.findall("test_[a-z_0-9]+", fault.why):
            assert f"def {name}(" in tests, f"{fault.name}: {name}, which catches it"
    assert sum(one.slip for one in FAULTS) >= len(FAULTS) / 2


def test_a_journal_continues_a_run_with_what_is_missing(tmp_path: Path) -> None:
    path, (first, second, third) = tmp_path / "journal.json", FAULTS[:3]
    journal = plant_faults.Journal(path, 9, again=False)
    journal.add(Found(name=first.name, kind=first.kind, seeds=1, seconds=2, broken={10: "too little noise"}))
    journal.add(Found(name=second.name, kind=second.kind, seeds=0, seconds=0, broken={plant_faults.ACCIDENT: "died"}))
    again = plant_faults.Journal(path, 9, again=False)
    assert [one.name for one in again.missing([first, second, third])] == [second.name, third.name]
    assert again.found == journal.found[:1]
    with pytest.raises(UsageError, match=r"'scenarios': 9, .* expected .*'scenarios': 10, .*name a new file"):
        plant_faults.Journal(path, 10, again=False)
    path.write_text("{")
    with pytest.raises(UsageError, match="expected outcomes of planted faults"):
        plant_faults.Journal(path, 9, again=False)
