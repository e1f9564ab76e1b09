"""Problems to learn: a public schema with private rows.

A learning job sees the schema alone. The rows belong to clients; a `Problem` has them together only if one machine
plays all clients (the swarm, the ideal functionality, tests).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dca_proto.statistics.categories import coded, encode_category, indicators
from inference.bounds import Interval, as_interval, require
from inference.errors import DataError, unknown

Array: TypeAlias = NDArray[np.float64]
AnyArray: TypeAlias = Any
"""A float64 array, NumPy's or JAX's, or a number; JAX is optional, and has no type for both."""


@dataclass(frozen=True)
class Schema:
    """The public part of a regression problem.

    Attributes:
        features, target: column names.
        bounds: public bounds of each of them, in the column's own units; a pair (LO, HI) becomes an `Interval`. Those
            of a column of texts are its labels, in the order of their codes, as in ``("placebo", "drug", "both")``.
            Further ones are allowed, and indicators (`dca_proto.statistics.categories`) need none.
        units: units by column name, for people; a column without one is a plain number.
        alone: allow a target without features, for jobs that describe one column.
    """

    features: tuple[str, ...]
    target: str
    bounds: Mapping[str, Interval]
    units: Mapping[str, str] = field(default_factory=dict)
    alone: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.features, str):
            raise DataError(
                f"features are the text {self.features!r}; give a tuple of names, as in ({self.features!r},)"
            )
        if not isinstance(self.bounds, Mapping):
            raise DataError(f"bounds are a {type(self.bounds).__name__}; give a dictionary of (LO, HI) by column")
        object.__setattr__(self, "features", tuple(self.features))
        bounds = {name: as_interval(name, given) for name, given in self.bounds.items()}
        listed = {name: given.labels for name, given in bounds.items() if given.labels}
        known = {one: Interval(0, 1, "an indicator") for name in listed for one in indicators(name, listed)}
        bounds |= {name: known[name] for name in self.columns if name in known}
        object.__setattr__(self, "bounds", bounds)
        if not self.features and not self.alone:
            raise DataError(f"no features to predict {self.target!r} from; name at least one other column")
        if len(set(self.columns)) != len(self.columns):
            raise DataError(f"columns repeat: {', '.join(self.columns)}; name each feature once, and not the target")
        require(self.bounds, self.columns)

    @property
    def columns(self) -> tuple[str, ...]:
        """Features, then the target."""
        return (*self.features, self.target)

    def column(self, name: str | None) -> str:
        """Return the name, or the target by default. Raises `DataError` for an unknown column."""
        if name is not None and name not in self.columns:
            raise unknown("column", name, "the data", self.columns)
        return self.target if name is None else name

    @property
    def outcome(self) -> str:
        """What people call the target's upper end: of two labels the second, as in ``smoker=yes``; else the target."""
        bounds = self.bounds[self.target]
        return bounds.level(self.target, 1) if len(bounds.labels) == 2 else self.target

    @property
    def odds(self) -> str:
        """Whose odds a regression of two classes states, and against whom, as text: a class is an end of the bounds."""
        bounds = self.bounds[self.target]
        upper, lower = (bounds.level(self.target, code) for code in (bounds.upper, bounds.lower))
        return f"{upper} against {lower}{'' if bounds.labels else '; a number between them counts as the nearer'}"

    @property
    def references(self) -> dict[str, str]:
        """By each indicator among the features: the categories without one, with which it is compared, as text."""
        found: dict[str, str] = {}
        for column, listed in self.labelled.items():
            names = indicators(column, self.labelled)
            rest = [text for name, text in zip(names, listed, strict=True) if name not in self.features]
            found |= {name: f"{column}={' or '.join(rest)}" for name in names if name in self.features}
        return found

    @property
    def two_valued(self) -> tuple[str, ...]:
        """The features with only two values: indicators, and columns of two codes, by labels or bounds of 0:1."""
        return tuple(name for name in self.features if (self.bounds[name].lower, self.bounds[name].upper) == (0, 1))

    @property
    def categories(self) -> dict[str, tuple[str, ...]]:
        """The labels of the columns that have some, in the order of their codes."""
        return {name: labels for name in self.columns if (labels := self.bounds[name].labels)}

    @property
    def asked(self) -> tuple[str, ...]:
        """What rounds call the columns: of a column with labels, its codes by this list (`categories.coded`)."""
        listed = self.categories
        return tuple(coded(name, listed[name]) if name in listed else name for name in self.columns)

    @property
    def labelled(self) -> dict[str, tuple[str, ...]]:
        """The labels of all columns with bounds that have some, also of those of which indicators are columns."""
        return {name: ends.labels for name, ends in self.bounds.items() if ends.labels}

    def with_indicators(self, codes: Collection[str] = ()) -> Schema:
        """Return the schema whose features with labels are their indicators but the first, as a regression needs them.

        Args:
            codes: features that stay columns of codes, such as groups.
        """
        listed = {name: labels for name, labels in self.categories.items() if name not in codes}
        parts = (indicators(name, listed)[1:] if name in listed else (name,) for name in self.features)
        return replace(self, features=tuple(chain.from_iterable(parts)))

    @property
    def read_columns(self) -> tuple[str, ...]:
        """Columns with bounds that were read from the rows themselves."""
        return tuple(column for column in self.columns if not self.bounds[column].public)

    @property
    def private(self) -> bool:
        """True if all bounds are public; otherwise no epsilon may be claimed."""
        return not self.read_columns

    @property
    def centres(self) -> Array:
        """Midpoint of each column's bounds, shape ``(d + 1,)``."""
        return np.array([self.bounds[column].centre for column in self.columns])

    @property
    def half_widths(self) -> Array:
        """Half the width of each column's bounds, shape ``(d + 1,)``: c_j of (-c_j, c_j) around the centres."""
        return np.array([self.bounds[column].half_width for column in self.columns])


def unit_of(schema: Schema | None, column: str, otherwise: str = "") -> str:
    """Return a column's unit, or other words if it or the schema is not known."""
    return otherwise if schema is None else schema.units.get(column, otherwise)


@dataclass(frozen=True, eq=False)
class Problem:
    """A schema with rows: ``X`` of shape ``(n, d)`` and ``y`` of shape ``(n,)``, in the columns' own units.

    Attributes:
        note: how the rows were read, for people, if that is not obvious.
    """

    name: str
    schema: Schema
    X: Array
    y: Array
    note: str = ""

    @property
    def rows(self) -> Array:
        """Features, then the target, shape ``(n, d + 1)``; a client has one of these rows, or several."""
        return np.column_stack([self.X, self.y])

    def values(self, *columns: str) -> Array:
        """Return the values of these columns, shape ``(n, len(columns))``; for a single column ``(n,)``."""
        places = [self.schema.columns.index(column) for column in columns]
        return np.asarray(self.rows[:, places if len(places) != 1 else places[0]])

    def present(self, column: str) -> Array:
        """Return the values of a column that are not missing."""
        values = self.values(column)
        return np.asarray(values[np.isfinite(values)])

    @property
    def complete(self) -> Problem:
        """The problem without the rows that lack a value."""
        whole = np.isfinite(self.rows).all(axis=1)
        return self if whole.all() else self.take(np.flatnonzero(whole))

    def take(self, indices: NDArray[np.int64]) -> Problem:
        """Return the problem with these rows only."""
        return replace(self, X=self.X[indices], y=self.y[indices])

    def with_indicators(self, codes: Collection[str] = ()) -> Problem:
        """Return the problem whose features with labels are their indicators but the first; see `Schema`."""
        schema, columns = self.schema.with_indicators(codes), []
        for name, values in zip(self.schema.features, self.X.T, strict=True):
            listed = () if name in schema.features else self.schema.bounds[name].labels
            further = [np.where(np.isnan(values), np.nan, values == code) for code in range(1, len(listed))]
            columns += further or [values]
        return replace(self, schema=schema, X=np.column_stack(columns) if columns else self.X)

    def bounded(self, bounds: Mapping[str, Interval]) -> Problem:
        """Return the problem with the bounds of these columns replaced."""
        return replace(self, schema=replace(self.schema, bounds={**self.schema.bounds, **bounds}))

    def select(self, features: tuple[str, ...]) -> Problem:
        """Return the problem with these features only, in this order. Raises `DataError` for an unknown one."""
        schema = self.schema
        for feature in features:
            if feature not in schema.features:
                raise unknown("feature", feature, f"dataset {self.name!r}", schema.features)
        bounds = {column: schema.bounds[column] for column in (*features, schema.target)}
        chosen = [schema.features.index(feature) for feature in features]
        return replace(self, schema=replace(schema, features=features, bounds=bounds), X=self.X[:, chosen])


def stream(seed: int, name: str) -> np.random.Generator:
    """Return the random stream of that name under a seed; draws from one stream never change another."""
    digest = blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


TEST_FRACTION = 0.225
"""The part of the rows that `hold_out` keeps for the test."""


def assign(rows: NDArray[np.float64], clients: int) -> list[NDArray[np.float64]]:
    """Split rows over clients, as evenly as possible: row i belongs to client i mod `clients`, whatever its values."""
    return [rows[index::clients] for index in range(clients)]


def sites_of(rows: Problem, column: str) -> dict[str, NDArray[np.intp]]:
    """Return the places of the rows of each data node, by label: there is one for each code of the column that occurs.

    Raises:
        DataError: the column is unknown, or a code is missing or no whole number.
    """
    codes = rows.values(rows.schema.column(column))
    if not np.isfinite(codes).all() or not (codes == np.rint(codes)).all():
        raise DataError(f"column {column!r} names sites, and a row has none, or no whole number; leave such rows out")
    bounds = rows.schema.bounds[column]
    return {bounds.level(column, code): np.flatnonzero(codes == code) for code in np.unique(codes)}


def hold_out(problem: Problem, seed: int) -> tuple[Problem, Problem]:
    """Split as `split` does, with `TEST_FRACTION` of the rows in the test part."""
    return split(problem, max(1, round(TEST_FRACTION * len(problem.y))), seed)


def split(problem: Problem, test_rows: int, seed: int) -> tuple[Problem, Problem]:
    """Split into train and test parts by the stream ``seed/split``, by the rows' places alone.

    No value decides where a row goes, nor whether it is missing: a changed cell moves no other row, so the rows of
    every other client or data node stay the same. Rows that lack a value are in both parts; scores skip them.

    Raises:
        DataError: if fewer than one row would be left on either side.
    """
    rows = len(problem.y)
    if not 1 <= test_rows < rows:
        raise DataError(
            f"rows: {rows}, to test on: {test_rows}; expected at least one to test on and one to learn from"
        )
    order = stream(seed, "split").permutation(rows)
    return problem.take(order[test_rows:]), problem.take(order[:test_rows])


def by_name(X: Any, names: Sequence[str]) -> Any:
    """Return these columns of a data frame in this order; an array, or a frame without names, as it is.

    Raises:
        DataError: the frame lacks one of them.
    """
    found = list(getattr(X, "columns", ()))
    if not found or not all(isinstance(name, str) for name in found):
        return X
    for name in names:
        if name not in found:
            raise unknown("column", name, "the data frame", found)
    return X[list(names)]


def numbers_in(frame: Any, names: Sequence[str], listed: Mapping[str, Sequence[str]]) -> dict[str, Array]:
    """Return columns of a data frame as numbers, by name: of texts with labels the codes, or their indicators.

    Args:
        listed: the labels of columns of texts, in the order of their codes.

    Raises:
        DataError: the frame lacks a column, or a cell is neither a number nor a label.
    """
    whole = {one: column for column in listed for one in indicators(column, listed)}
    encoded: dict[str, Array] = {}
    found: dict[str, Array] = {}
    for name in names:
        column = whole.get(name, name) if name not in frame.columns else name
        if column not in frame.columns:
            raise unknown("column", column, "the data frame", list(frame.columns))
        if column not in listed:
            found[name] = _numbers(frame[column])
            continue
        if column not in encoded:
            encoded[column] = _encoded(column, np.asarray(frame[column], dtype=object), listed[column])
        found[name] = encoded[column][:, (column, *indicators(column, listed)).index(name)]
    return found


def _encoded(column: str, cells: Any, listed: Sequence[str]) -> Array:
    """Return the codes of a column's cells, then their indicators. Raises `DataError` for a cell that is no label."""
    numbers = np.array([encode_category(cell, listed) for cell in cells], dtype=np.float64)
    numbers = numbers.reshape(len(cells), len(listed) + 2)
    if lacking := np.flatnonzero(np.isnan(numbers[:, 0])).tolist():
        raise DataError(
            f"row {lacking[0]} has none of the labels of {column!r}, which are {', '.join(listed)[:100]}; "
            "correct it, or leave it out"
        )
    return numbers


def as_numbers(X: Any, names: Sequence[str], listed: Mapping[str, Sequence[str]]) -> Any:
    """Return a data frame with these columns, each as numbers by `numbers_in`; an array, or without labels, as it is.

    Raises:
        DataError: as `numbers_in`.
    """
    if not listed or not hasattr(X, "columns"):
        return X
    return type(X)(numbers_in(X, names, listed))


def rows_to_predict(X: Any, names: Sequence[str], listed: Mapping[str, Sequence[str]]) -> Array:
    """Return rows of these features, ``(k, d)``: those of a data frame by their names, of an array by their places.

    Args:
        listed: the labels of columns of texts: a frame may have these texts in place of their indicators.

    Raises:
        DataError: a column is missing, there are too few or too many, or a cell is no finite number.
    """
    X = as_numbers(X, names, listed)
    rows, expected = _numbers(by_name(X, names)), f"a column for each of {', '.join(names)}"
    if rows.ndim != 2 or rows.shape[1] != len(names):
        raise DataError(
            f"rows to predict for have the shape {rows.shape}; expected (k, {len(names)}): {expected}, in this order"
        )
    bad = np.argwhere(~np.isfinite(rows))
    if len(bad):
        row, column = map(int, bad[0])
        raise DataError(
            f"row {row} to predict for has {rows[row, column]:g} in {names[column]}; expected finite numbers, so leave "
            "out rows that lack a value, or fill it"
        )
    return np.ascontiguousarray(rows)


def times_to_predict(times: Any) -> Array:
    """Return times, ``(k,)``. Raises `DataError` for anything but a list of finite numbers."""
    found = _numbers(times)
    if found.ndim != 1 or not np.isfinite(found).all():
        shape = f"the shape {found.shape}" if found.ndim != 1 else "a number that is not finite"
        raise DataError(f"times to predict for have {shape}; expected a list of times, (k,), such as [3, 6, 12]")
    return found


def _numbers(values: Any) -> Array:
    try:
        found = np.asarray(values)
        if found.dtype.kind in "cmM":
            raise TypeError(f"dtype {found.dtype}")
        return np.asarray(found, dtype=np.float64)
    except (TypeError, ValueError) as error:
        text = str(error).splitlines()[0][:100]
        raise DataError(
            f"what to predict for has cells that are not numbers ({text}); expected numbers, 0 and 1 for categories"
        ) from None
