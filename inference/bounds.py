"""Public bounds of columns: what is known about a measurement before anybody's data are seen.

Bounds set the sensitivity, so reading them from the data would leak. They need not contain every row: each client
clips its own rows to them (Algorithm 2, step 1), so wrong bounds cost accuracy but never privacy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dca_proto.errors import InputError
from dca_proto.runtime.files import read_text
from dca_proto.wording import parse_toml, split_list
from inference.errors import DataError

PUBLISHED_WITH_ROWS = "the ranges were published with the rows: they are the rows' own minimum and maximum"
"""Why experiments that repeat published ones, and treat such ranges as public, claim no real ε."""
_ADVICE = "give COL=LO:HI,... or a TOML file, from what is known of the measurement"
_APART_MIN, _SIZE_MAX = 2e-50, 1e50  # every participant of a round checks the same (`dca_proto.statistics.scaled`)


@dataclass(frozen=True)
class Interval:
    """Public bounds of one column, in its own units.

    Attributes:
        lower, upper: finite, ``lower < upper``.
        reason: where they come from, for people.
        public: False if they come from the rows themselves, as a minimum and maximum do, published or not.

    Raises:
        DataError: if they are not an interval.
    """

    lower: float
    upper: float
    reason: str = ""
    public: bool = True

    def __post_init__(self) -> None:
        apart, size = self.upper - self.lower, max(abs(self.lower), abs(self.upper))
        if not (apart >= _APART_MIN and size <= _SIZE_MAX):
            limits = f"{_APART_MIN:g} or more apart, within ±{_SIZE_MAX:g}"
            raise DataError(
                f"bounds {self.lower:g}:{self.upper:g} are not an interval; expected finite LO < HI, {limits}"
            )

    @property
    def centre(self) -> float:
        """The midpoint, which is subtracted: the paper assumes bounds (-c, c)."""
        return (self.lower + self.upper) / 2

    @property
    def half_width(self) -> float:
        """c of the paper's bounds (-c, c) around the centre."""
        return (self.upper - self.lower) / 2


def given_bounds(text: str) -> dict[str, Interval]:
    """Read bounds from an option's value: a TOML file if there is one of that name, else ``COL=LO:HI,...``.

    Raises:
        DataError: it is neither.
    """
    path = Path(text)
    with suppress(OSError):  # too long for a name
        if path.is_file():
            return read_bounds(path)
    return parse_bounds(text) if "=" in text else read_bounds(path)


def parse_bounds(text: str) -> dict[str, Interval]:
    """Parse bounds from ``COL=LO:HI,COL=LO:HI``. Raises `DataError` for anything else."""
    bounds: dict[str, Interval] = {}
    for part in filter(None, (piece.strip() for piece in split_list(text))):
        column, _, ends = part.rpartition("=")
        if not column or column in bounds:
            raise DataError(f"bounds {part!r}: expected COL=LO:HI, each column once")
        bounds[column] = as_interval(column, ends.split(":"))
    return bounds


def read_bounds(path: Path) -> dict[str, Interval]:
    """Read bounds from a TOML file of ``column = [LO, HI]``. Raises `DataError` if it cannot be read as that."""
    try:
        table = parse_toml(read_text(path, "give COL=LO:HI,... or a TOML file of lines such as: age = [0, 120]"))
    except InputError as error:
        raise DataError(f"bounds: {error}") from None
    except ValueError as error:
        raise DataError(f"bounds file {path} is not TOML: {error}; expected lines such as: age = [0, 120]") from None
    return {column: as_interval(column, ends) for column, ends in table.items()}


def as_interval(column: str, ends: object) -> Interval:
    """Convert a list or tuple of two texts or numbers to an interval. Raises `DataError` for anything else."""
    if isinstance(ends, Interval):
        return ends
    given: list[Any] = list(ends) if isinstance(ends, list | tuple) else [ends]
    try:
        low, high = map(float, given)
    except (TypeError, ValueError):
        found = ":".join(map(str, given))
        raise DataError(f"bounds of column {column!r}: found {found!r}, expected two numbers LO and HI") from None
    try:
        return Interval(low, high)
    except DataError as error:
        raise DataError(f"column {column!r}: {error}") from None


def bounds_from_data(columns: Sequence[str], rows: NDArray[np.float64]) -> dict[str, Interval]:
    """Read bounds from the rows themselves, shape ``(n, len(columns))``: **not private**, for trials only.

    They are marked as not public, so a schema with them claims no epsilon.
    """
    reason = "read from the data: not private"
    low, high = rows.min(axis=0), rows.max(axis=0)
    flat = [column for column, a, b in zip(columns, low, high, strict=True) if a == b]
    if flat:
        raise DataError(f"column {flat[0]!r} has a single value, so its data give no bounds; leave it out")
    ends = zip(columns, low, high, strict=True)
    return {column: Interval(float(a), float(b), reason, public=False) for column, a, b in ends}


class MissingBoundsError(DataError):
    """Columns have no public bounds. Args: columns: their names. advice: how to give them."""

    def __init__(self, columns: Sequence[str], advice: str = _ADVICE) -> None:
        super().__init__(f"public bounds are missing for: {', '.join(columns)}; {advice}")
        self.columns = tuple(columns)


def require(bounds: Mapping[str, Interval], columns: Sequence[str]) -> None:
    """Raise `MissingBoundsError` with the names of all columns that have no bounds."""
    missing = [column for column in columns if column not in bounds]
    if missing:
        raise MissingBoundsError(missing)
