"""What a statistic is, and the registry by which a round names one.

A statistic maps one row of a client's data to integers on the grid of 2^-f. The row is quantised and clamped **first**,
on a grid of f/2 bits, and products are formed exactly in integers: the statistic lies on the grid by construction and
its sensitivity is exact. Everything public about it (dimension, bounds, sensitivity) follows from its parameters alone.

A library user adds one of their own in a few lines: subclass `Statistic`, decorate it with `@register`, and import the
module on every participant. A round carries the name and the parameters, never code.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.core.errors import UsageError

REPLACE_ONE_CLIENT = "replace-one-client"


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
            Integers of shape ``(m, dimension)``.
        """


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
        raise UsageError(f"statistic {name!r} is unknown here; known: {', '.join(registered())}")
    try:
        return msgspec.convert(parameters, known, strict=True)
    except msgspec.ValidationError as error:
        raise UsageError(f"parameters of statistic {name!r}: {error}") from None
