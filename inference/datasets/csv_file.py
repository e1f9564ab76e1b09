"""Problems from a user's CSV file: numbers, and texts with listed categories. Errors name what does not fit.

A text column becomes the code and the indicators of its category, as on a device (`statistics.categories`). A feature
becomes its indicators except the first; a target becomes its code. A row with a missing value is refused, or kept with
NaN: then it counts as zero in every sum, as in a federation.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from itertools import chain
from math import isfinite, nan
from pathlib import Path

import numpy as np

from dca_proto.statistics.categories import Categories, check_categories, encode_category, indicators, numeric_columns
from inference.bounds import Interval, bounds_from_data, require
from inference.errors import DataError, unknown
from inference.problem import Array, Problem, Schema

REFUSE, ZERO = MISSING = ("refuse", "zero")
"""The treatment of a row with a missing value."""


def from_csv(
    path: Path,
    target: str,
    bounds: Mapping[str, Interval] | None,
    features: Sequence[str] | None = None,
    *,
    trial_bounds: bool = False,
    alone: bool = False,
    categories: Categories | None = None,
    missing: str = REFUSE,
) -> Problem:
    """Read a problem from a CSV file whose first line names the columns.

    Args:
        path: the file, UTF-8, comma separated.
        target: the column to predict. features: the columns to predict it from; None for all others.
        bounds: public bounds of the target and the features; further ones are ignored, and codes and indicators need
            none.
        trial_bounds: read the bounds from the data instead; the schema is then not private.
        alone: allow a target without features, for jobs that describe one column.
        categories: of the text columns, public. missing: one of `MISSING`, for a used cell that is empty, not a number,
            or not a listed category.

    Raises:
        DataError: names the file, and the row and column or the columns at fault.
    """
    header, body = _read(path)
    listed = check_categories(categories or {})
    for column in listed:
        if column not in header:
            raise unknown("column", column, path.name, header)
    names, known = numeric_columns(header, listed), _known(listed)
    predicting = [name for name in header if name != target] if features is None else features
    chosen = [indicators(name, listed)[1:] if name in listed else (name,) for name in predicting]
    columns = (*chain.from_iterable(chosen), target)
    for column in (*columns, *(bounds or {})):
        if column not in names:
            raise unknown("column", column, path.name, names)
    given = {**(bounds or {}), **known}
    if not trial_bounds:
        require(given, columns)  # before any cell is read: a missing option is reported before a bad row
    rows = _numbers(path, header, body, columns, listed, missing)
    if trial_bounds:
        whole = rows[np.isfinite(rows).all(axis=1)]
        if not len(whole):
            raise DataError(f"{path.name}: no row has all of its values, so they give no bounds; correct them")
        places = [place for place, column in enumerate(columns) if column not in known]
        given = bounds_from_data([columns[place] for place in places], whole[:, places]) | known
    schema = Schema(columns[:-1], target, {column: given[column] for column in columns}, alone=alone)
    return Problem(path.stem, schema, rows[:, :-1], rows[:, -1])


def _known(listed: Categories) -> dict[str, Interval]:
    bounds = {name: Interval(0, len(texts) - 1, "codes of listed categories") for name, texts in listed.items()}
    return bounds | {name: Interval(0, 1, "an indicator") for column in listed for name in indicators(column, listed)}


def _read(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Return the header, and each row that is not blank with its line number."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            body = [(reader.line_num, row) for row in reader if row]
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path.name} is not CSV text in UTF-8: {error}") from None
    if not header or not body:
        raise DataError(f"{path.name} has no rows; expected a line of column names, then one line per row")
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise DataError(f"{path.name} names column {twice[0]!r} twice; rename one")
    return header, body


def _numbers(
    path: Path,
    header: list[str],
    body: list[tuple[int, list[str]]],
    columns: Sequence[str],
    listed: Categories,
    missing: str,
) -> Array:
    """Return the numbers of these columns, shape ``(rows, len(columns))``; NaN for missing ones, if allowed."""
    names = numeric_columns(header, listed)
    used = [name for name in header if {name, *(indicators(name, listed) if name in listed else ())} & set(columns)]
    rows = np.full((len(body), len(names)), nan)
    for index, (line, cells) in enumerate(body):
        where = f"{path.name}, row {index + 1} (line {line})"
        if len(cells) != len(header):
            if missing == ZERO:
                continue
            raise DataError(f"{where}: found {len(cells)} cells, expected {len(header)} as in the first line")
        for column in used:
            cell = cells[header.index(column)]
            cell_numbers = encode_category(cell, listed[column]) if column in listed else [_number(cell)]
            if missing == REFUSE and not isfinite(cell_numbers[0]):
                raise _refused(cell, f"{where}, column {column!r}", listed.get(column))
            place = names.index(column)
            rows[index, place : place + len(cell_numbers)] = cell_numbers
    return rows[:, [names.index(column) for column in columns]]


def _number(cell: str) -> float:
    """Return the cell's number, or NaN if it is not a finite one."""
    try:
        return number if isfinite(number := float(cell)) else nan
    except ValueError:
        return nan


def _refused(cell: str, where: str, listed: Sequence[str] | None) -> DataError:
    advice = "correct it, leave the row out, or let rows that lack a value count as zero (--missing zero)"
    if not cell.strip():
        return DataError(f"{where}: the value is missing; {advice}")
    if listed is not None:
        expected = f"one of {', '.join(listed)[:100]}"
    else:
        expected = "a finite number; for texts, list the public categories (--categories COL=a,b,c)"
    return DataError(f"{where}: found {cell.strip()[:80]!r}, expected {expected}; {advice}")
