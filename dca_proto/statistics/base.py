"""What a statistic is, and the registry by which a round names one.

A statistic maps one row of a client's data to integers on the grid of 2^-f. The row is quantised and clamped **first**,
on a grid of f/2 bits, and products are formed exactly in integers: the statistic lies on the grid by construction and
its sensitivity is exact. Everything public about it (dimension, bounds, sensitivity) follows from its parameters alone.

A library user adds one of their own in a few lines: subclass `Statistic`, decorate it with `@register`, and import the
module on every participant. A round carries the name and the parameters, never code. `docs/tutorials/statistic.md`
makes one.

Parameters come from the network: `resolve` is the door through which they come, and what it lets in is within the
limits below. A subclass that checks its own parameters does so in `__post_init__`, raises `UsageError` with one line,
and calls `super().__post_init__()` last.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import ClassVar, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.errors import UsageError
from dca_proto.statistics.sensitivity import Sensitivity
from dca_proto.wording import in_words, nearest

COLUMNS_MAX = 4096
COLUMN_NAME_CHARS_MAX = 128
DIMENSION_MAX = 2**24


class Statistic(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """A named statistic of one row; the fields of a subclass are its public parameters.

    Attributes:
        columns: the columns of a client's data that it reads, in this order.
    """

    name: ClassVar[str] = ""
    columns: tuple[str, ...]

    def __post_init__(self) -> None:
        columns = self.columns
        if not 1 <= len(columns) <= COLUMNS_MAX:
            raise UsageError(f"{len(columns)} columns; name 1 to {COLUMNS_MAX}")
        if not (all(columns) and max(map(len, columns)) <= COLUMN_NAME_CHARS_MAX and "".join(columns).isprintable()):
            wrong = next(
                name for name in columns if not (0 < len(name) <= COLUMN_NAME_CHARS_MAX and name.isprintable())
            )
            raise UsageError(
                f"column name {wrong[:COLUMN_NAME_CHARS_MAX]!r} is empty, longer than {COLUMN_NAME_CHARS_MAX} "
                "characters or not printable"
            )
        if len(set(columns)) < len(columns):
            raise UsageError("a column is named twice; name each once")
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
    def row_sensitivity(self, fraction_bits: int) -> Sensitivity:
        """How far apart two clients' statistics of one row can be: any two rows, or a row and zero (a missing one).

        Distances and the largest absolute value of a coordinate, in grid units, all upper bounds, and under
        `REPLACE_ONE_CLIENT`. What the data are makes no difference: it follows from the parameters.
        """

    @property
    def rows_per_value(self) -> int:
        """How many rows in a row make one value: 1, but for a statistic of groups of rows.

        Such a statistic gets whole groups, with missing values left in their places (else all later rows would change
        groups), and counts a row with one as zero. Rows that fill no group do not count.
        """
        return 1

    @property
    def categories(self) -> int:
        """k where each row falls into one of k categories: a value is 2^f at its own and 0 elsewhere; 0 otherwise.

        What a client reports of it by a categorical mechanism is the place of the largest coordinate above 0, if any.
        """
        return 0

    def value_sensitivity(self, fraction_bits: int) -> Sensitivity:
        """As `row_sensitivity`, but of all rows of one value at once: so many rows, replaced one after the other."""
        row, k = self.row_sensitivity(fraction_bits), self.rows_per_value
        return row if k == 1 else msgspec.structs.replace(row, l1=k * row.l1, l2_squared=k**2 * row.l2_squared)

    def ranges(self) -> dict[str, tuple[float, float]]:
        """The public interval of each column that values are clamped to, in units of the data.

        Empty where a statistic does not say; a client's policy can then not check it.
        """
        return {}

    def require_libraries(self) -> None:
        """Asked by a client before it joins. Raises `UsageError` where this machine cannot evaluate the statistic."""
        return

    def stated_sensitivity(self, fraction_bits: int, *, of_row: bool = False) -> Sensitivity:
        """`value_sensitivity` or `row_sensitivity`, worked out once: they are asked for with every contribution."""
        of_row = of_row or self.rows_per_value == 1
        if (of_row, fraction_bits) not in self._stated:
            state = self.row_sensitivity if of_row else self.value_sensitivity
            stated = state(fraction_bits)
            if not isinstance(stated, Sensitivity):  # a user's own may err
                raise UsageError(f"statistic {self.name!r} states {stated!r}; {state.__name__} must give a Sensitivity")
            self._stated[of_row, fraction_bits] = stated
        return self._stated[of_row, fraction_bits]

    @cached_property
    def fitting(self) -> dict[tuple[int, int], Sensitivity]:
        """Of one value, by `rows_max` and fraction bits: those with which a client's contribution fits the grid."""
        return {}

    @cached_property
    def _stated(self) -> dict[tuple[bool, int], Sensitivity]:
        return {}

    @abstractmethod
    def evaluate(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        """The statistic of each row, in grid units, from that row alone: in a node release, it may move nothing else.

        Args:
            rows: shape ``(m, len(columns))``, in the units of the data; every value finite where a value is of one
                row.
            fraction_bits: f, even; one grid unit is 2^-f.

        Returns:
            Integers of shape ``(m // rows_per_value, dimension)``, at most ``row_sensitivity(fraction_bits).bound`` in
            absolute value.
        """

    def estimate(self, value: NDArray[np.float64], contributors: int) -> NDArray[np.float64]:
        """What a (noisy) sum says in the units of the data; by itself, the sum as it is.

        Each number may be a scaling and a shift of its own coordinate alone: the stated noise relies on it.

        Args:
            value: the sum over clients in the statistic's own units, shape ``(dimension,)``.
            contributors: how many clients the sum is over, at least 1.
        """
        return value


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


def resolve(name: str, parameters: Mapping[str, object]) -> Statistic:
    """The statistic that a round names. Raises `UsageError` for an unknown name or wrong parameters."""
    kind = _registered(name)
    _check_keys(name, parameters, kind)
    try:
        return msgspec.convert(parameters, kind, strict=True)
    except msgspec.ValidationError as error:
        raise UsageError(f"parameters of statistic {name!r}: {in_words(error)}") from None


def _check_keys(name: str, parameters: Mapping[str, object], kind: type[Statistic]) -> None:
    """Refuse a parameter that it does not take, and one that it needs and is not there."""
    fields = _fields(kind)
    known = [field.name for field in fields]
    for key in parameters:
        if key not in known:
            hint = nearest(key[:64], known)
            raise UsageError(f"statistic {name!r} has no parameter {key[:64]!r}{hint}; it takes: {', '.join(known)}")
    missing = [field.name for field in fields if field.required and field.name not in parameters]
    if missing:
        raise UsageError(f"statistic {name!r} needs the parameter {missing[0]!r}, which is missing")


def parameter_names(name: str) -> tuple[str, ...]:
    """The parameters that a statistic of that name takes. Raises `UsageError` for an unknown name."""
    return tuple(field.name for field in _fields(_registered(name)))


@lru_cache(maxsize=256)  # msgspec reads a class's annotations anew each time
def _fields(kind: type[Statistic]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind)


def _registered(name: str) -> type[Statistic]:
    if name not in _REGISTRY:
        raise UsageError(
            f"statistic {name[:64]!r} is unknown here{nearest(name[:64], _REGISTRY)}; known: {', '.join(registered())}"
        )
    return _REGISTRY[name]
