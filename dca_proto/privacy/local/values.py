"""Checks of what goes into a local mechanism and comes out of it. No error holds a value: it is somebody's."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dca_proto.errors import UsageError
from dca_proto.privacy.rounding import at_most

EPSILON_MAX = 100.0
"""Above it nothing is protected that would be worth a mechanism."""


def integers(what: str, values: ArrayLike, columns: int | None = None) -> NDArray[np.int64]:
    """Values as integers, shape ``(n,)`` or ``(n, columns)``. Raises `UsageError`, which never holds a value."""
    table = np.asarray(values)
    shape = "(n,)" if columns is None else f"(n, {columns})"
    if table.ndim != (1 if columns is None else 2) or (columns is not None and table.shape[1] != columns):
        raise UsageError(f"{what} have shape {table.shape}, expected {shape}")
    if table.dtype.kind not in "iu" or (table.dtype.kind == "u" and table.dtype.itemsize == 8):
        raise UsageError(f"{what} are of type {table.dtype}, expected integers such as int64")
    return table.astype(np.int64, copy=False)


def within(what: str, table: NDArray[np.int64], low: int, high: int, advice: str) -> NDArray[np.int64]:
    """The same table. Raises `UsageError` where anything is outside low..high, without saying what.

    Args:
        advice: what to do about it.
    """
    if table.size and (table.min() < low or table.max() > high):
        raise UsageError(f"{what} are outside {low} to {high}: {advice}")
    return table


def require_epsilon(epsilon: float) -> None:
    """Refuse an ε that is not positive, not finite, or so large that it protects nothing."""
    if not (isinstance(epsilon, float | int) and math.isfinite(epsilon) and 0 < epsilon <= EPSILON_MAX):
        raise UsageError(f"epsilon is {epsilon}, expected a number above 0 and at most {at_most(EPSILON_MAX)}")


def require_categories(categories: int, largest: int) -> None:
    """Refuse a number of categories that is none."""
    if not 2 <= categories <= largest:
        raise UsageError(f"categories is {categories}, expected 2 to {largest}")


def counted(reports: NDArray[np.generic]) -> int:
    """How many reports there are. Raises `UsageError` for none."""
    if not len(reports):
        raise UsageError("there are 0 reports, expected at least 1")
    return len(reports)
