"""What the workers of a test's sweep do: functions that a fresh process imports by their names."""

from __future__ import annotations

import os
from typing import Any


def nothing(seed: int) -> dict[str, Any]:
    """A trial's result in which all holds."""
    outcome = {"live": True, "rounds": [{"result": "completed"}], "why": [], "further": "completed"}
    held = {"number": 1, "name": "one", "checked": 2, "ok": True, "detail": None, "facts": []}
    return {"faults": [], "options": {}, "invariants": [held], "outcome": outcome, "last_facts": [], "transitions": []}


def dies_at_three(seed: int) -> dict[str, Any]:
    """Takes its process with it."""
    if seed == 3:
        os._exit(7)
    return nothing(seed)


def always_dies(seed: int) -> dict[str, Any]:
    """Takes its process with it, always."""
    os._exit(9)


def raises_at_two(seed: int) -> dict[str, Any]:
    """Has a bug."""
    if seed == 2:
        raise ValueError("a bug of the emulator")
    return nothing(seed)


def breaks_the_third(seed: int) -> dict[str, Any]:
    """A trial's result in which an invariant is broken."""
    broken = {"number": 3, "name": "three", "checked": 5, "ok": False, "detail": "two sums", "facts": ["the last one"]}
    return {**nothing(seed), "invariants": [broken]}
