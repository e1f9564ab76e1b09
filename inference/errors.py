"""Errors in the data, bounds or options that the caller gave."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class DataError(ValueError):
    """The caller's data cannot be used: one line with what was found, what was expected and what to do."""


def unknown(kind: str, name: str, place: str | None, choices: Iterable[str]) -> DataError:
    """Return a `DataError` for a name unknown in `place` (None: anywhere), with the nearest known one as a hint."""
    names = list(choices)
    by_lower = {known_name.lower(): known_name for known_name in names}
    near = get_close_matches(name.lower(), by_lower, n=1)
    hint = f" (did you mean {by_lower[near[0]]!r}?)" if near else ""
    found = "unknown" if place is None else f"not in {place}"
    return DataError(f"{kind} {name!r} is {found}{hint}; known: {', '.join(names)}")
