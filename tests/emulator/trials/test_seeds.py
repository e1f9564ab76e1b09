"""Scenarios in which something was once found, run again, with the reason why each is there."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from emulator.trials.scenario_file import from_plain
from emulator.trials.trial import examine

FOUND = tomllib.loads((Path(__file__).parent / "seeds.toml").read_text(encoding="utf-8"))["found"]


def marked(found: dict[str, Any]) -> pytest.ParameterSet:
    marks = [pytest.mark.long] if found.get("long") else []
    return pytest.param(found, id=" ".join(found["reason"].split()[:8]), marks=marks)


@pytest.mark.parametrize("found", [marked(one) for one in FOUND])
def test_what_was_found_once_holds(found: dict[str, Any]) -> None:
    result = examine(from_plain(found["scenario"], "seeds.toml"))
    assert result.broken == {}
    missed = [fault.kind for fault in result.faults if not fault.reached]
    assert missed == [], "a scenario that does not come to its point"
