"""Public bounds of columns: what is known about a measurement before anybody's data are seen.

Bounds set the sensitivity, so reading them from the data would leak. They need not contain every row: each client
clips its own rows to them (Algorithm 2, step 1), so wrong bounds cost accuracy but never privacy.

The bounds of a column of texts are its labels, in the order of their codes 0, 1, ...: a public list, too.
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
from dca_proto.runtime.csv_text import is_number
from dca_proto.runtime.files import read_text
from dca_proto.statistics.categories import categories_option, check_categories
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
        labels: the texts of the codes from `lower` to `upper`, if the column has texts (`of_labels`).

    Raises:
        DataError: if they are not an interval.
    """

    lower: float
    upper: float
    reason: str = ""
    public: bool = True
    labels: tuple[str, ...] = ()

    @classmethod
    def of_labels(cls, column: str, labels: Sequence[str]) -> Interval:
        """Return the bounds of a column of these texts. Raises `DataError` unless they are 2 or more, each once."""
        try:
            listed = check_categories({column: tuple(labels)})[column]
        except InputError as error:
            raise DataError(str(error)) from None
        return cls(0.0, len(listed) - 1.0, "codes of listed categories", labels=listed)

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

    def text(self, code: float) -> str:
        """Return what people call a code: its label, or the number."""
        return self.labels[round(code - self.lower)] if self.labels else f"{code:g}"

    def level(self, column: str, code: float) -> str:
        """Return what people call the rows of a column with this code: ``arm=drug``, or ``arm 1`` without labels."""
        return f"{column}{'=' if self.labels else ' '}{self.text(code)}"


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
        given = ends.split(":")
        if len(given) > 1 and not any(map(is_number, given)):
            raise DataError(f"bounds {part!r} are texts; give them as {categories_option(column, given)}")
        bounds[column] = _between(column, given)
    return bounds


def read_bounds(path: Path) -> dict[str, Interval]:
    """Read bounds from a TOML file of ``column = [LO, HI]``, or of labels, as in ``arm = ["placebo", "drug"]``.

    Raises `DataError` if it cannot be read as that.
    """
    try:
        table = parse_toml(read_text(path, "give COL=LO:HI,... or a TOML file of lines such as: age = [0, 120]"))
    except InputError as error:
        raise DataError(f"bounds: {error}") from None
    except ValueError as error:
        raise DataError(f"bounds file {path} is not TOML: {error}; expected lines such as: age = [0, 120]") from None
    return {column: as_interval(column, ends) for column, ends in table.items()}


def as_interval(column: str, ends: object) -> Interval:
    """Convert two numbers to an interval; labels, two or more texts, to that of their codes.

    Raises `DataError` for anything else.
    """
    if isinstance(ends, Interval):
        return ends
    given: list[Any] = list(ends) if isinstance(ends, list | tuple) else [ends]
    if len(given) > 1 and all(isinstance(end, str) for end in given):
        return Interval.of_labels(column, given)
    return _between(column, given)


def _between(column: str, given: Sequence[Any]) -> Interval:
    """Return the interval between two numbers, or texts of two. Raises `DataError` for anything else."""
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
