"""Checks of a local mechanism's inputs and outputs.

No error quotes a value: values are private. Estimates are floats, since reports are private already.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dca_proto.errors import UsageError
from dca_proto.privacy.rounding import at_most

EPSILON_MAX = 100.0
"""A larger ε protects nothing that would be worth a mechanism."""


def integers(what: str, values: ArrayLike, columns: int | None = None) -> NDArray[np.int64]:
    """Return integers of shape ``(n,)`` or ``(n, columns)``. Raises `UsageError`, which never quotes a value."""
    table = np.asarray(values)
    shape = "(n,)" if columns is None else f"(n, {columns})"
    if table.ndim != (1 if columns is None else 2) or (columns is not None and table.shape[1] != columns):
        raise UsageError(f"{what} have shape {table.shape}, expected {shape}")
    if table.dtype.kind not in "iu" or (table.dtype.kind == "u" and table.dtype.itemsize == 8):
        raise UsageError(f"{what} are of type {table.dtype}, expected integers such as int64")
    return table.astype(np.int64, copy=False)


def check_range(what: str, table: NDArray[np.int64], low: int, high: int, advice: str) -> NDArray[np.int64]:
    """Return the same table. Raises `UsageError` with `advice` if a value is outside low..high, without quoting it."""
    if table.size and (table.min() < low or table.max() > high):
        raise UsageError(f"{what} are outside {low} to {high}: {advice}")
    return table


def require_epsilon(epsilon: float) -> None:
    """Refuse an ε that is not positive, not finite, or so large that it protects nothing."""
    if not (isinstance(epsilon, float | int) and math.isfinite(epsilon) and 0 < epsilon <= EPSILON_MAX):
        raise UsageError(f"epsilon is {epsilon}, expected a number above 0 and at most {at_most(EPSILON_MAX)}")


def report_count(reports: NDArray[np.generic]) -> int:
    """Return the number of reports. Raises `UsageError` if there are none."""
    if not len(reports):
        raise UsageError("there are 0 reports, expected at least 1")
    return len(reports)


@dataclass(frozen=True, eq=False)
class LocalEstimate:
    """An unbiased estimate of the mean of the clients' data, over the noise of their reports.

    Attributes:
        mean: in grid units, or for categories the share of each; shape ``(dimension,)``. Not forced into its range:
            shares may be negative and need not sum to 1.
        variance: an unbiased estimate of the variance that the noise gives to `mean`, with the clients' data fixed;
            exact for additive noise. Shape ``(dimension,)``.
        reports: number of reports.
    """

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    reports: int
