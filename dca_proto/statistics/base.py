"""The base class of statistics, and the registry by which a round names one.

A statistic maps one row of a client's data to integers on the grid of 2^-f. The row is quantised and clamped **first**,
on a grid of f/2 bits, and products are formed exactly in integers: the statistic lies on the grid by construction and
its sensitivity is exact. Its public properties (dimension, bounds, sensitivity) follow from its parameters alone.

To add your own, subclass `Statistic`, decorate the class with `@register`, and import its module on every participant.
A round carries the statistic's name and parameters, never code.
`docs/tutorials/statistic.md` shows how.

Parameters come from the network. They enter through `resolve`, which enforces the limits below. A subclass checks its
own parameters in `__post_init__`, raises `UsageError` with one line, and calls `super().__post_init__()` last.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import PublicParameters
from dca_proto.errors import UsageError
from dca_proto.statistics.categories import COLUMN_NAME_CHARS_MAX
from dca_proto.statistics.sensitivity import Sensitivity
from dca_proto.statistics.value_range import ValueRange, box
from dca_proto.wording import in_words, nearest

COLUMNS_MAX = 4096
DIMENSION_MAX = 2**24


class Proof(NamedTuple):
    """A row of the table of sensitivities in `PRIVACY.md`, where `scripts/make_diagrams.py` writes it.

    Attributes:
        of: the statistic, or the case. l2, l1: the bounds Δ₂ and Δ₁, in grid units. tests: their files, and how tight.
        proof: the file with the proof; by default that of the statistic.
    """

    of: str
    l2: str
    l1: str
    tests: str
    proof: str = ""


class Statistic(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """A named statistic of one row; the fields of a subclass are its public parameters.

    Attributes:
        columns: the columns that it reads from a client's data, in this order.
        proofs: of a built-in statistic, what the head of its file proves about its sensitivity.
    """

    name: ClassVar[str] = ""
    proofs: ClassVar[tuple[Proof, ...]] = ()
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

    @classmethod
    def examples(cls) -> tuple[Statistic, ...]:
        """Return instances for tests and documents: at least one in which each parameter is not its default.

        Tests search all examples of the built-in statistics for rows that are farther apart than stated
        (`dca_proto.statistic_check.check_statistic`).
        """
        return ()

    @classmethod
    def planned(cls, columns: Sequence[str], parameters: Mapping[str, Any]) -> PublicParameters:
        """Return values of parameters without a default, at which `dca account` plans a round of these columns.

        `parameters` are those that the user chose. By default, values are those of the first example; a list with
        an entry for each of its columns is repeated as far as necessary. A subclass may choose others.
        """
        if not (examples := cls.examples()):
            return {}
        example, found = examples[0], {}
        for field in _fields(cls):
            value = getattr(example, field.name)
            if isinstance(value, tuple) and len(value) == len(example.columns):
                value = [value[place % len(value)] for place in range(len(columns))]
            if field.required:
                found[field.name] = value
        return {**found, "columns": list(columns)}

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Number of coordinates."""

    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """Return a short description of each coordinate, ``dimension`` in all."""

    @abstractmethod
    def row_sensitivity(self, fraction_bits: int) -> Sensitivity:
        """Return how far apart the statistics of any two rows can be, or of a row and zero (a missing row).

        All figures are upper bounds in grid units, under `REPLACE_ONE_CLIENT`. They follow from the parameters alone,
        not from any data.
        """

    @property
    def rows_per_value(self) -> int:
        """Number of consecutive rows that make one value: 1, except for statistics of groups of rows.

        A statistic of groups gets whole groups, with missing values left in place; without them, all later rows would
        change groups. It counts a row with a missing value as zero. Rows left over after the last group are ignored.
        """
        return 1

    @property
    def takes_missing(self) -> bool:
        """Whether it gets rows that lack a value, with NaN or infinity in its place; by default, they count as zero."""
        return False

    @property
    def categories(self) -> int:
        """k if each row falls into one of k categories (its coordinate is 2^f, the others 0); 0 for other statistics.

        A categorical mechanism reports the index of the largest coordinate, or a missing value if none is above 0.
        """
        return 0

    def value_sensitivity(self, fraction_bits: int) -> Sensitivity:
        """Return `row_sensitivity` for one value: all its `rows_per_value` rows are replaced."""
        row, k = self.row_sensitivity(fraction_bits), self.rows_per_value
        return row if k == 1 else msgspec.structs.replace(row, l1=k * row.l1, l2_squared=k**2 * row.l2_squared)

    def ranges(self) -> dict[str, tuple[float, float]]:
        """Return the public interval, in units of the data, that each column's values are clamped to.

        By default it is empty; a client's policy cannot check such a statistic's ranges.
        """
        return {}

    def value_range(self, fraction_bits: int) -> ValueRange:
        """Return where one value can lie, in grid units: by default, within the sensitivity's bounds.

        A subclass may state a narrower range, by which more false sums are recognised. A range that is too narrow
        refuses honest clients.
        """
        stated, d = self.stated_sensitivity(fraction_bits), self.dimension
        return box(np.full(d, -stated.bound), np.full(d, stated.bound), stated.l2)

    @property
    def is_boxed(self) -> bool:
        """Whether coordinates and combinations of `value_range` are its only limits.

        A statistic that says so must have a sensitivity that covers all whole points of that range. Then a lying client
        can move a verified sum no farther than an honest one, but for the statement's room for rounding.
        """
        return False

    def require_libraries(self) -> None:
        """Raise `UsageError` if this machine cannot evaluate the statistic. A client calls it before it joins."""
        return

    def stated_sensitivity(self, fraction_bits: int, *, of_row: bool = False) -> Sensitivity:
        """Return `value_sensitivity` or `row_sensitivity`, computed once: every contribution needs it."""
        of_row = of_row or self.rows_per_value == 1
        if (of_row, fraction_bits) not in self._stated:
            state = self.row_sensitivity if of_row else self.value_sensitivity
            stated = state(fraction_bits)
            if not isinstance(stated, Sensitivity):  # a user's own statistic may be wrong
                raise UsageError(f"statistic {self.name!r} states {stated!r}; {state.__name__} must give a Sensitivity")
            self._stated[of_row, fraction_bits] = stated
        return self._stated[of_row, fraction_bits]

    @cached_property
    def fitting_sensitivities(self) -> dict[tuple[int, int], Sensitivity]:
        """`contribution`'s cache, by `rows_max` and fraction bits: one value's sensitivity, if contributions fit."""
        return {}

    @cached_property
    def _stated(self) -> dict[tuple[bool, int], Sensitivity]:
        return {}

    @abstractmethod
    def evaluate(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        """Return the statistic of each row, in grid units.

        Each row's statistic must depend on that row alone. Otherwise, in a node release, one row could move several.

        Args:
            rows: shape ``(m, len(columns))``, in units of the data; all finite unless it takes groups of rows
                or `takes_missing`.
            fraction_bits: f, even; one grid unit is 2^-f.

        Returns:
            Integers of shape ``(m // rows_per_value, dimension)``, at most ``row_sensitivity(fraction_bits).bound`` in
            absolute value.
        """

    def estimate(self, value: NDArray[np.float64], contributors: int) -> NDArray[np.float64]:
        """Convert a (noisy) sum to units of the data; by default, return it unchanged.

        Each number may only scale and shift its own coordinate; otherwise override `estimate_with_noise`, too.

        Args:
            value: the sum over clients in the statistic's own units, shape ``(dimension,)``.
            contributors: number of clients in the sum, at least 1.
        """
        return value

    def estimate_with_noise(
        self, value: NDArray[np.float64], contributors: int, sigma: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return `estimate`, and the standard deviation of the noise in each number; `sigma` is that of the sum."""
        found = self.estimate(value, contributors)
        return found, np.abs(self.estimate(value + sigma, contributors) - found)

    def zero_sum(self, contributors: int) -> NDArray[np.float64]:
        """Return a sum, shape ``(dimension,)``, at which a forecast of the noise is typical."""
        return np.zeros(self.dimension)


S = TypeVar("S", bound=type[Statistic])
_REGISTRY: dict[str, type[Statistic]] = {}


def register(statistic: S) -> S:
    """Class decorator: registers a statistic under its ``name`` on this participant."""
    if not statistic.name or _REGISTRY.get(statistic.name, statistic) is not statistic:
        raise UsageError(f"statistic name {statistic.name!r} is empty or taken; choose another")
    _REGISTRY[statistic.name] = statistic
    return statistic


def is_built_in(kind: type[Statistic]) -> bool:
    """Return False for a user's own statistic, whose code the tests of this package do not judge."""
    return kind.__module__.startswith(f"{__package__}.")


def built_in() -> dict[str, type[Statistic]]:
    """Return the statistics of this package by name, sorted."""
    return {name: kind for name, kind in sorted(_REGISTRY.items()) if is_built_in(kind)}


def registered() -> tuple[str, ...]:
    """The registered names, sorted."""
    return tuple(sorted(_REGISTRY))


def resolve(name: str, parameters: Mapping[str, object]) -> Statistic:
    """Return the statistic that a round names. Raises `UsageError` for an unknown name or wrong parameters."""
    kind = _registered(name)
    _check_keys(name, parameters, kind)
    try:
        return msgspec.convert(parameters, kind, strict=True)
    except msgspec.ValidationError as error:
        raise UsageError(f"parameters of statistic {name!r}: {in_words(error)}") from None


def _check_keys(name: str, parameters: Mapping[str, object], kind: type[Statistic]) -> None:
    fields = _fields(kind)
    known = [field.name for field in fields]
    for key in parameters:
        if key not in known:
            hint = nearest(key[:64], known)
            raise UsageError(f"statistic {name!r} has no parameter {key[:64]!r}{hint}; it takes: {', '.join(known)}")
    missing = [field.name for field in fields if field.required and field.name not in parameters]
    if missing:
        raise UsageError(f"statistic {name!r} needs the parameter {missing[0]!r}, which is missing")


def planned(name: str, columns: Sequence[str], parameters: Mapping[str, Any]) -> PublicParameters:
    """Return `Statistic.planned` of a statistic. Raises `UsageError` for an unknown one."""
    return _registered(name).planned(columns, parameters)


def parameter_names(name: str) -> tuple[str, ...]:
    """The names of a statistic's parameters. Raises `UsageError` for an unknown statistic."""
    return tuple(field.name for field in _fields(_registered(name)))


@lru_cache(maxsize=256)  # without it, msgspec reads a class's annotations on every call
def _fields(kind: type[Statistic]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind)


def _registered(name: str) -> type[Statistic]:
    if name not in _REGISTRY:
        raise UsageError(
            f"statistic {name[:64]!r} is unknown here{nearest(name[:64], _REGISTRY)}; known: {', '.join(registered())}"
        )
    return _REGISTRY[name]
