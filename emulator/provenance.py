"""Versions that measurements depend on, and how a stored file differs from the program that would continue it."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of Python and of these packages."""
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def differences(stored: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each value that differs in a stored file.

    Args:
        stored: content of the file. own: parts by name, each with values by name; plain data.
    """
    for part, ours in own.items():
        theirs = stored.get(part)
        if not isinstance(theirs, dict):
            yield f"it has no {part}"
            continue
        for name in sorted({*ours, *theirs}):
            found, expected = theirs.get(name), ours.get(name)
            if found != expected:
                yield f"{name} is {_brief(found)} there and {_brief(expected)} here"


def _brief(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
