"""What a statistic is, and the registry by which a round names one.

A statistic maps one row of a client's data to integers on the grid of 2^-f. The row is quantised and clamped **first**,
on a grid of f/2 bits, and products are formed exactly in integers: the statistic lies on the grid by construction and
its sensitivity is exact. Everything public about it (dimension, bounds, sensitivity) follows from its parameters alone.

A library user adds one of their own in a few lines: subclass `Statistic`, decorate it with `@register`, and import the
module on every participant. A round carries the name and the parameters, never code.

Parameters come from the network: `resolve` is the door through which they come, and what it lets in is within the
limits below. A subclass that checks its own parameters does so in `__post_init__`, raises `UsageError` with one line,
and calls `super().__post_init__()` last.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.core.errors import UsageError

REPLACE_ONE_CLIENT = "replace-one-client"
COLUMNS_MAX = 4096
COLUMN_NAME_CHARS_MAX = 128
DIMENSION_MAX = 2**24


class Sensitivity(msgspec.Struct, frozen=True):
    """How far one client's data can move the sum.

    Attributes:
        l2: upper bound on the L2 distance, in grid units (multiply by 2^-f for the statistic's units).
        bound: largest absolute value of one coordinate of one client's contribution, in grid units.
        relation: the neighbouring relation that it holds for.
    """

    l2: float
    bound: int
    relation: str = REPLACE_ONE_CLIENT


class Statistic(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A named statistic of one row; the fields of a subclass are its public parameters.

    Attributes:
        columns: the columns of a client's data that it reads, in this order.
    """

    name: ClassVar[str] = ""
    columns: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_columns(self.columns)
        if not 1 <= self.dimension <= DIMENSION_MAX:
            raise UsageError(f"dimension {self.dimension} is not in 1 to {DIMENSION_MAX}; use fewer columns or bins")

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Number of coordinates."""

    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """What each coordinate is, for people: ``dimension`` short texts."""

    @abstractmethod
    def row_bound(self, fraction_bits: int) -> int:
        """Largest absolute value of a coordinate of one row's statistic, in grid units."""

    @abstractmethod
    def row_sensitivity(self, fraction_bits: int) -> float:
        """L2 distance between any two rows' statistics, or one row's and zero, in grid units: an upper bound."""

    @abstractmethod
    def evaluate(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        """The statistic of each row, in grid units.

        Args:
            rows: shape ``(m, len(columns))``, in the units of the data; every value finite.
            fraction_bits: f, even; one grid unit is 2^-f.

        Returns:
            Integers of shape ``(m, dimension)``, at most ``row_bound`` in absolute value.
        """

    def estimate(self, value: NDArray[np.float64], contributors: int) -> NDArray[np.float64]:
        """What a (noisy) sum says in the units of the data; by itself, the sum as it is.

        Args:
            value: the sum over clients in the statistic's own units, shape ``(dimension,)``.
            contributors: how many clients the sum is over, at least 1.
        """
        return value


def _check_columns(columns: tuple[str, ...]) -> None:
    if not 1 <= len(columns) <= COLUMNS_MAX:
        raise UsageError(f"{len(columns)} columns; name 1 to {COLUMNS_MAX}")
    for column in columns:
        if not (0 < len(column) <= COLUMN_NAME_CHARS_MAX and column.isprintable()):
            raise UsageError(
                f"column name {column[:COLUMN_NAME_CHARS_MAX]!r} is empty, longer than {COLUMN_NAME_CHARS_MAX} "
                "characters or not printable"
            )
    if len(set(columns)) < len(columns):
        raise UsageError("a column is named twice; name each once")


def root_up(square: int) -> float:
    """A float not below the square root of an integer, and above it by at most a relative 2^-49."""
    return math.sqrt(square) * (1 + 2.0**-50)


S = TypeVar("S", bound=type[Statistic])
_REGISTRY: dict[str, type[Statistic]] = {}


def register(statistic: S) -> S:
    """Class decorator: makes a statistic known under its ``name`` on this participant."""
    if not statistic.name or _REGISTRY.get(statistic.name, statistic) is not statistic:
        raise UsageError(f"statistic name {statistic.name!r} is empty or taken; choose another")
    _REGISTRY[statistic.name] = statistic
    return statistic


def registered() -> tuple[str, ...]:
    """The names that this participant knows, sorted."""
    return tuple(sorted(_REGISTRY))


def resolve(name: str, parameters: dict[str, Any]) -> Statistic:
    """The statistic that a round names. Raises `UsageError` for an unknown name or wrong parameters."""
    known = _REGISTRY.get(name)
    if known is None:
        raise UsageError(f"statistic {name[:64]!r} is unknown here; known: {', '.join(registered())}")
    try:
        return msgspec.convert(parameters, known, strict=True)
    except msgspec.ValidationError as error:
        raise UsageError(f"parameters of statistic {name!r}: {error}") from None
