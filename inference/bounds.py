"""Public bounds of columns: what is known of a measurement before anybody's data are seen.

Bounds set the sensitivity, so reading them from the data would leak. They need not hold for every row: each client
projects its own rows into them (Algorithm 2, step 1), so wrong bounds cost accuracy and never privacy.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inference.errors import DataError


@dataclass(frozen=True)
class Interval:
    """Public bounds of one column, in its own units.

    Attributes:
        lower, upper: finite, ``lower < upper``.
        reason: why these, for people.

    Raises:
        DataError: if they are no interval.
    """

    lower: float
    upper: float
    reason: str = ""

    def __post_init__(self) -> None:
        if not (isfinite(self.lower) and isfinite(self.upper) and self.lower < self.upper):
            raise DataError(f"bounds {self.lower:g}:{self.upper:g} are no interval; expected finite LO < HI")

    @property
    def centre(self) -> float:
        """The midpoint: the paper assumes bounds (-c, c), so this is what is subtracted."""
        return (self.lower + self.upper) / 2

    @property
    def half_width(self) -> float:
        """c of the assumed bounds (-c, c) around the centre."""
        return (self.upper - self.lower) / 2


def parse_bounds(text: str) -> dict[str, Interval]:
    """Bounds from ``COL=LO:HI,COL=LO:HI``. Raises `DataError` for anything else."""
    bounds: dict[str, Interval] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        column, _, ends = part.rpartition("=")
        low, _, high = ends.partition(":")
        if not column or column in bounds:
            raise DataError(f"bounds {part!r}: expected COL=LO:HI, each column once")
        bounds[column] = _interval(column, [low, high])
    return bounds


def read_bounds(path: Path) -> dict[str, Interval]:
    """Bounds from a TOML file of ``column = [LO, HI]``. Raises `DataError` if it cannot be read as that."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"bounds file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"bounds file {path} is not TOML: {error}; expected lines such as: age = [0, 120]") from None
    return {column: _interval(column, ends) for column, ends in table.items()}


def _interval(column: str, ends: object) -> Interval:
    """An interval from two texts or numbers."""
    if not isinstance(ends, list) or len(ends) != 2 or not all(isinstance(end, str | int | float) for end in ends):
        raise DataError(f"bounds of column {column!r}: found {ends!r}, expected two numbers LO and HI")
    try:
        low, high = (float(end) for end in ends)
    except ValueError:
        raise DataError(f"bounds of column {column!r}: found {':'.join(ends)!r}, expected LO:HI, two numbers") from None
    try:
        return Interval(low, high)
    except DataError as error:
        raise DataError(f"column {column!r}: {error}") from None


def bounds_from_data(columns: Sequence[str], rows: NDArray[np.float64]) -> dict[str, Interval]:
    """Bounds read from the rows themselves, shape ``(n, len(columns))``: **not private**, for trials only.

    Whoever uses them must mark the result ``private=False`` and claim no epsilon (`datasets.from_csv` does).
    """
    reason = "read from the data: not private"
    low, high = rows.min(axis=0), rows.max(axis=0)
    flat = [column for column, a, b in zip(columns, low, high, strict=True) if a == b]
    if flat:
        raise DataError(f"column {flat[0]!r} holds one value only, so its data give no bounds; leave it out")
    return {column: Interval(float(a), float(b), reason) for column, a, b in zip(columns, low, high, strict=True)}


def require(bounds: Mapping[str, Interval], columns: Sequence[str]) -> None:
    """Raise `DataError` naming every column that has no bounds."""
    missing = [column for column in columns if column not in bounds]
    if missing:
        raise DataError(
            f"public bounds are missing for: {', '.join(missing)}; give COL=LO:HI,... or a TOML file from what is known"
            " of the measurement (or, for a trial that is not private, bounds from the data)"
        )
