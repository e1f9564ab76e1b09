"""Problems from a CSV file of the user's: every used cell must be a finite number, and what is not is named."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path

import numpy as np

from inference.bounds import Interval, bounds_from_data, require
from inference.errors import DataError, unknown
from inference.problem import Array, Problem, Schema


def from_csv(
    path: Path,
    target: str,
    bounds: Mapping[str, Interval] | None,
    features: Sequence[str] | None = None,
    *,
    trial_bounds: bool = False,
    alone: bool = False,
) -> Problem:
    """A problem from a CSV file whose first line names the columns; every used cell must be a finite number.

    Args:
        path: the file, UTF-8, comma separated.
        target: the column to predict. features: those to predict it from; None for all others.
        bounds: public bounds of the target and the features; more are ignored.
        trial_bounds: read the bounds from the data instead; the schema is then not private.
        alone: whether the target may be without features, as a column that is described and not predicted.

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
    used = {column: given[column] for column in columns}
    schema = Schema(chosen, target, used, alone=alone)
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
