"""Problems to learn: a schema, which is public, beside rows, which are not.

A learning job sees the schema alone. The rows belong to clients; a `Problem` holds them together only where one machine
plays all clients (the swarm, the ideal functionality, tests).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from math import isfinite
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inference.bounds import Interval, bounds_from_data, require
from inference.errors import DataError, unknown

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Schema:
    """What is public about a regression problem.

    Attributes:
        features, target: column names.
        bounds: public bounds of each of them, in the column's own units.
        units: units by column name, for people; a column without one is a plain number.
        private: False where the bounds were read from the data, so that no epsilon may be claimed.
    """

    features: tuple[str, ...]
    target: str
    bounds: Mapping[str, Interval]
    units: Mapping[str, str] = field(default_factory=dict)
    private: bool = True

    def __post_init__(self) -> None:
        if not self.features:
            raise DataError(f"no features to predict {self.target!r} from; name at least one other column")
        if len(set(self.columns)) != len(self.columns):
            raise DataError(f"columns repeat: {', '.join(self.columns)}; name each feature once, and not the target")
        require(self.bounds, self.columns)

    @property
    def columns(self) -> tuple[str, ...]:
        """Features, then the target."""
        return (*self.features, self.target)

    def slope_unit(self, feature: str) -> str:
        """Of a coefficient, such as "points per kg/m²"; a column without a unit gives its name."""
        target = self.units.get(self.target, self.target)
        return f"{target} per {self.units.get(feature, f'unit of {feature}')}"

    @property
    def centres(self) -> Array:
        """Midpoint of each column's bounds, shape ``(d + 1,)``."""
        return np.array([self.bounds[column].centre for column in self.columns])

    @property
    def half_widths(self) -> Array:
        """c_j of the assumed bounds (-c_j, c_j) around the centres, shape ``(d + 1,)``."""
        return np.array([self.bounds[column].half_width for column in self.columns])


@dataclass(frozen=True, eq=False)
class Problem:
    """A schema with rows: ``X`` of shape ``(n, d)`` and ``y`` of shape ``(n,)``, in the columns' own units."""

    name: str
    schema: Schema
    X: Array
    y: Array

    @property
    def rows(self) -> Array:
        """Features, then the target, shape ``(n, d + 1)``: what one client holds is one row (or several)."""
        return np.column_stack([self.X, self.y])

    def take(self, indices: NDArray[np.int64]) -> Problem:
        """The problem with these rows only."""
        return replace(self, X=self.X[indices], y=self.y[indices])


def stream(seed: int, name: str) -> np.random.Generator:
    """The random stream of that name under a seed: one more draw in one stream never reshuffles another."""
    digest = blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


def split(problem: Problem, test_rows: int, seed: int) -> tuple[Problem, Problem]:
    """Train and test parts, drawn from the stream ``seed/split``.

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


# What is known of these measurements without looking at these patients. None of it is read from the data.
DIABETES_BOUNDS = {
    "bmi": Interval(15, 40, "WHO classes of adults: below 16 is severe thinness, from 40 on obesity of class III"),
    "bp": Interval(60, 130, "mean arterial pressure: organs need 60 mmHg; 130 mmHg is 180/105, severe hypertension"),
    "s5": Interval(3.2, 6.2, "ln of serum triglycerides: 25 mg/dl is very low, 500 mg/dl severe hypertriglyceridaemia"),
    "progression": Interval(25, 346, "the range of the score that the data set's documentation states"),
}
DIABETES_UNITS = {"bmi": "kg/m²", "bp": "mmHg", "s5": "ln(mg/dl)", "progression": "points"}


def diabetes() -> Problem:
    """442 patients: disease progression after one year on bmi, bp and s5 (Efron et al. 2004; scikit-learn ships it)."""
    from sklearn.datasets import load_diabetes  # a large import that most users of this module do not need

    bunch = load_diabetes(scaled=False)
    features = ("bmi", "bp", "s5")
    columns = [bunch.feature_names.index(feature) for feature in features]
    schema = Schema(features, "progression", DIABETES_BOUNDS, DIABETES_UNITS)
    return Problem("diabetes", schema, np.asarray(bunch.data[:, columns], float), np.asarray(bunch.target, float))


DATASETS: dict[str, Callable[[], Problem]] = {"diabetes": diabetes}


def load(name: str, features: Sequence[str] | None = None) -> Problem:
    """A built-in problem by name, with some of its features only if these are named. Raises `DataError` if unknown."""
    if name not in DATASETS:
        raise unknown("dataset", name, "the built-in ones", DATASETS)
    problem = DATASETS[name]()
    return problem if features is None else _select(problem, tuple(features))


def _select(problem: Problem, features: tuple[str, ...]) -> Problem:
    schema = problem.schema
    for feature in features:
        if feature not in schema.features:
            raise unknown("feature", feature, f"dataset {problem.name!r}", schema.features)
    bounds = {column: schema.bounds[column] for column in (*features, schema.target)}
    chosen = [schema.features.index(feature) for feature in features]
    return replace(problem, schema=replace(schema, features=features, bounds=bounds), X=problem.X[:, chosen])


def from_csv(
    path: Path,
    target: str,
    bounds: Mapping[str, Interval] | None,
    features: Sequence[str] | None = None,
    *,
    trial_bounds: bool = False,
) -> Problem:
    """A problem from a CSV file whose first line names the columns; every used cell must be a finite number.

    Args:
        path: the file, UTF-8, comma separated.
        target: the column to predict. features: those to predict it from; None for all others.
        bounds: public bounds of the target and the features; more are ignored.
        trial_bounds: read the bounds from the data instead; the schema is then marked ``private=False``.

    Raises:
        DataError: naming the file, and the row and column or the columns at fault.
    """
    header, body = _read(path)
    chosen = tuple(column for column in header if column != target) if features is None else tuple(features)
    columns = (*chosen, target)
    given = dict(bounds or {})
    for column in (*columns, *given):
        if column not in header:
            raise unknown("column", column, path.name, header)
    if not trial_bounds:
        require(given, columns)  # before the cells: the answer to a missing option, not to a bad row
    rows = _numbers(path, header, body, columns)
    if trial_bounds:
        given = bounds_from_data(columns, rows)
    schema = Schema(chosen, target, {column: given[column] for column in columns}, private=not trial_bounds)
    return Problem(path.stem, schema, rows[:, :-1], rows[:, -1])


def _read(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header, and each row that is not blank with its line number."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            body = [(reader.line_num, row) for row in reader if row]
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path.name} is no CSV text in UTF-8: {error}") from None
    if not header or not body:
        raise DataError(f"{path.name} has no rows; expected a line of column names, then one line per row")
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise DataError(f"{path.name} names column {twice[0]!r} twice; rename one")
    return header, body


def _numbers(path: Path, header: list[str], body: list[tuple[int, list[str]]], columns: Sequence[str]) -> Array:
    """The cells of these columns, shape ``(rows, len(columns))``."""
    places = [header.index(column) for column in columns]
    rows = np.empty((len(body), len(columns)))
    for index, (line, cells) in enumerate(body):
        where = f"{path.name}, row {index + 1} (line {line})"
        if len(cells) != len(header):
            raise DataError(f"{where}: found {len(cells)} cells, expected {len(header)} as in the first line")
        for j, place in enumerate(places):
            rows[index, j] = _number(cells[place], f"{where}, column {columns[j]!r}")
    return rows


def _number(cell: str, where: str) -> float:
    """A finite number, or a `DataError` that says where it is not."""
    if not cell.strip():
        raise DataError(f"{where}: the value is missing; fill it in or leave the row out")
    try:
        number = float(cell)
    except ValueError:
        raise DataError(f"{where}: found {cell.strip()!r}, expected a number; correct it, or leave it out") from None
    if not isfinite(number):
        raise DataError(f"{where}: found {cell.strip()!r}, expected a finite number; correct it or leave the row out")
    return number
