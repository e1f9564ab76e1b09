"""Problems from a user's CSV file: numbers, and texts with listed categories. Errors name what does not fit.

A text column, whose bounds are labels, becomes the code of its category, as on a device (`statistics.categories`); an
indicator can be named instead, as in ``arm=drug``. A row with a missing value is refused, or kept with NaN: then it
counts as zero in every sum, as in a federation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dca_proto.errors import UsageError
from dca_proto.runtime.csv_text import CsvText, Missing, OnMissing, is_number, open_csv
from dca_proto.statistics.categories import Categories, indicators, numeric_columns
from inference.bounds import Interval, as_interval, bounds_from_data, require
from inference.errors import DataError, unknown
from inference.problem import Array, Problem, Schema

REFUSE, ZERO = MISSING = ("refuse", "zero")
"""The treatment of a row with a missing value."""
SUGGESTED_MAX = 20
DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+")


def from_csv(
    path: Path,
    target: str,
    bounds: Mapping[str, Interval] | None,
    features: Sequence[str] | None = None,
    *,
    trial_bounds: bool = False,
    alone: bool = False,
    missing: str = REFUSE,
    delimiter: str = "",
) -> Problem:
    """Read a problem from a CSV file whose first line names the columns.

    Args:
        path: the file, UTF-8, as a device reads it (`dca_proto.runtime.csv_text`).
        target: the column to predict. features: the columns to predict it from; None for all others.
        bounds: public bounds of the target and the features, labels of text columns; further ones are ignored, and
            indicators need none.
        trial_bounds: read the bounds of numbers from the data instead; the schema is then not private.
        alone: allow a target without features, for jobs that describe one column.
        missing: one of `MISSING`, for a used cell that is empty, not a number, or not a listed category.
        delimiter: the sign between cells; "" to detect it in the first line.

    Raises:
        DataError: names the file, and the row and column or the columns at fault.
    """
    try:
        with open_csv(path, delimiter, strict=True) as text:
            ends = {name: as_interval(name, given) for name, given in (bounds or {}).items()}
            return _problem(path, text, target, ends, features, trial_bounds, alone, missing)
    except UsageError as error:
        raise DataError(str(error)) from None


def _problem(
    path: Path,
    text: CsvText,
    target: str,
    bounds: Mapping[str, Interval],
    features: Sequence[str] | None,
    trial_bounds: bool,
    alone: bool,
    missing: str,
) -> Problem:
    header, listed = text.columns, {name: given.labels for name, given in bounds.items() if given.labels}
    for column in listed:
        if column not in header:
            raise _unknown(column, path, header)
    names = numeric_columns(header, listed)
    columns = (*([name for name in header if name != target] if features is None else features), target)
    for column in (*columns, *bounds):
        if column not in names:
            raise _unknown(column, path, names)
    given = {**{name: Interval(0, 1, "an indicator") for one in listed for name in indicators(one, listed)}, **bounds}
    if not trial_bounds:
        require(given, columns)  # before any cell is read: a missing option is reported before a bad row
    used = [name for name in header if {name, *(indicators(name, listed) if name in listed else ())} & set(columns)]
    read, read_names = _numbers(path, text, listed, used, missing), numeric_columns(used, listed)
    rows = read[:, [read_names.index(column) for column in columns]]
    if trial_bounds:
        whole = rows[np.isfinite(rows).all(axis=1)]
        if not len(whole):
            raise DataError(f"{path.name}: no row has all of its values, so they give no bounds; correct them")
        places = [place for place, column in enumerate(columns) if column not in given]
        given |= bounds_from_data([columns[place] for place in places], whole[:, places])
    schema = Schema(columns[:-1], target, {column: given[column] for column in columns}, alone=alone)
    note = f"{path.name}: {text.format}" if text.format else ""
    return Problem(path.stem, schema, rows[:, :-1], rows[:, -1], note)


def _numbers(path: Path, text: CsvText, listed: Categories, used: Sequence[str], missing: str) -> Array:
    """Return the numbers of these columns. Refuses a column of which no cell is understood, whatever is missing."""
    first: dict[str, Missing] = {}

    def keep_first(lacking: Missing) -> None:
        if lacking.column is not None and not (lacking.column in first and first[lacking.column].found.strip()):
            first[lacking.column] = lacking

    read = text.numbers(listed, _refuser(path, text, listed) if missing == REFUSE else keep_first, used)
    if not len(read):
        raise DataError(f"{path.name} has no rows; expected a line of column names, then one line per row")
    names = numeric_columns(used, listed)
    for column in first.keys() & {*used}:
        if np.isfinite(read[:, names.index(column)]).any():
            continue
        cell, texts = first[column].found.strip(), listed.get(column)
        expected = f"one of its categories {', '.join(texts[:8])}" if texts else "a number"
        found = f"the first has {cell[:80]!r}" if cell else "all are empty"
        advice = "list its categories (--categories) or leave it out" if cell else "leave it out"
        if texts and cell:
            advice = "write the categories as the file does"
        raise DataError(f"{path.name}: no row of column {column!r} has {expected}; {found}; {advice}")
    return read


def texts_in(path: Path, columns: Sequence[str], delimiter: str = "") -> dict[str, tuple[str, ...]]:
    """Return the different texts of those columns whose cells are texts, for the owner of the file alone: not private.

    A column with a number, or with more than `SUGGESTED_MAX` texts, is left out.
    """
    seen: dict[str, set[str]] = {}
    with open_csv(path, delimiter) as text:
        used = [column for column in columns if column in text.columns]
        read = text.numbers({}, lambda cell: seen.setdefault(cell.column or "", set()).add(cell.found.strip()), used)
    numbers = {column for column, own in zip(used, read.T, strict=True) if np.isfinite(own).any()}
    found = {column: sorted(seen.get(column, set()) - {""}) for column in used if column not in numbers}
    return {column: tuple(texts) for column, texts in found.items() if 2 <= len(texts) <= SUGGESTED_MAX}


def _unknown(column: str, path: Path, names: Sequence[str]) -> DataError:
    error = unknown("column", column, path.name, names)
    if any(map(is_number, names)):
        return DataError(f"{error}; does the first line name the columns?")
    return error


def _refuser(path: Path, text: CsvText, listed: Categories) -> OnMissing:
    """Return what raises a `DataError` for the first missing value."""

    def refuse(missing: Missing) -> None:
        where = f"{path.name}, row {missing.row} (line {missing.line})"
        if missing.column is not None:
            where = f"{where}, column {missing.column!r}"
            raise _refused(missing.found, where, listed.get(missing.column), text.delimiter)
        if not missing.found:
            raise DataError(f"{where}: {path.name} is not CSV text here; look for a quote that is not closed")
        found = f"{where}: found {missing.found} cells, expected {len(text.columns)} as in the first line"
        decimal = text.delimiter == "," and int(missing.found) > len(text.columns)
        if not decimal:
            raise DataError(found)
        advice = "separate cells by semicolons" if text.columns[1:] else "give --delimiter semicolon"
        raise DataError(f"{found}; if commas are decimal marks, {advice}")

    return refuse


def _refused(cell: str, where: str, listed: Sequence[str] | None, delimiter: str) -> DataError:
    advice = "correct it, leave the row out, or let rows that lack a value take part as they do in a federation"
    advice += " (--missing zero): nothing is filled in, and such a row adds zero to every sum that needs the value"
    if not cell.strip():
        return DataError(f"{where}: the value is missing; {advice}")
    if listed is None and DECIMAL_COMMA.fullmatch(cell.strip()):
        found = f"{where}: found {cell.strip()[:80]!r}, expected a number without commas"
        if delimiter != ",":
            return DataError(f"{found}, since the line also has a decimal point: write 1234.5 or 1234,5 throughout")
        return DataError(f"{found}: write a decimal point, or separate cells by semicolons")
    if listed is not None:
        expected = f"one of {', '.join(listed)[:100]}"
    else:
        expected = "a finite number; for texts, list the public categories (--categories COL=a,b,c)"
    return DataError(f"{where}: found {cell.strip()[:80]!r}, expected {expected}; {advice}")
