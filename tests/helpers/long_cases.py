"""Cases of a test of which `scripts/test` runs only some."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest


def mostly_long(values: Iterable[Any], fast: Collection[Any] | Callable[[Any], bool]) -> list[Any]:
    """Mark all values as long except those that are `fast`: a list of them, or a function that tells."""
    is_fast = fast if callable(fast) else fast.__contains__
    return [value if is_fast(value) else pytest.param(value, marks=pytest.mark.long) for value in values]
