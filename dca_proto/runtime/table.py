"""Reads a client's data from a CSV of numbers and listed categories.

The first line names the columns. A text column has a public list of categories (`statistics.categories`) and becomes
their codes and indicators. A field is a missing value if it is empty, not a finite number, or not a listed category. A
line that does not fit the columns is a row of missing values. A blank line is no row: a missing value in a single
column is written "", as CSV writers do. Whether a client takes part must never depend on its rows, so no row is
refused. A warning counts the odd fields, without their values, since the data are private.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import structlog
from numpy.typing import NDArray

from dca_proto.errors import InputError
from dca_proto.statistics.categories import Categories, check_categories, encode_category, numeric_columns

_UNDECODED = "\ufffd"  # where a byte is not UTF-8

log = structlog.get_logger("dca.data")


class Table:
    """Rows of named columns.

    Args:
        columns: the columns' names.
        rows: shape ``(m, len(columns))``; NaN marks a missing value.

    Raises:
        UsageError: the rows' shape does not fit the columns, or a column is named twice.
    """

    def __init__(self, columns: Sequence[str], rows: NDArray[np.float64]) -> None:
        self.columns = tuple(columns)
        self._rows = np.asarray(rows, dtype=np.float64)
        if self._rows.ndim != 2 or self._rows.shape[1] != len(self.columns):
            raise InputError(f"rows have shape {self._rows.shape}; expected (m, {len(self.columns)}), one per column")
        if len(set(self.columns)) < len(self.columns):
            raise InputError("a column is named twice; name each once")

    def rows(self, columns: tuple[str, ...]) -> NDArray[np.float64]:
        """Return the rows of these columns, in this order, shape ``(m, len(columns))``."""
        return self._rows[:, [self.columns.index(column) for column in columns]]

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"Table({', '.join(self.columns)})"


def read_csv(path: Path, categories: Categories | None = None) -> Table:
    """Read a client's data. One warning counts the odd fields and lines, without their values.

    Raises `UsageError` if the file cannot be read, its first line does not name columns, or `categories` names a column
    that it lacks.
    """
    listed = check_categories(categories or {})
    odd: Counter[str | None] = Counter()
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            lines = csv.reader(file, strict=True)
            columns = _header(lines, path)
            if unknown := [name for name in listed if name not in columns]:
                raise InputError(f"data {path} has no column {unknown[0]!r}, for which categories are listed")
            rows = list(_rows(lines, columns, listed, odd))
    except OSError as error:
        raise InputError(f"cannot read data {path}: {error.strerror}; check the path and its rights") from None
    if odd := +odd:
        lines_odd = odd.pop(None, 0)
        log.warning("data not understood count as missing", data=str(path), fields=dict(odd), lines=lines_odd)
    names = numeric_columns(columns, listed)
    return Table(names, np.array(rows, dtype=np.float64).reshape(len(rows), len(names)))


def _header(lines: Iterator[list[str]], path: Path) -> tuple[str, ...]:
    try:
        columns = tuple(name.strip() for name in next(lines, []))
    except csv.Error:
        columns = (_UNDECODED,)
    if not any(columns):
        raise InputError(f"data {path} has no header; expected the columns' names in its first line")
    if _UNDECODED in "".join(columns):
        raise InputError(f"data {path} is not a CSV in UTF-8; expected a header line and lines of numbers")
    if not all(name.isprintable() for name in columns):
        raise InputError(f"data {path} has a column whose name cannot be printed; give names of letters and digits")
    if all(_is_float(name) for name in columns):
        raise InputError(f"data {path} begins with numbers; expected the columns' names in its first line")
    if not all(columns) or len(set(columns)) < len(columns):
        raise InputError(f"data {path} has a column without a name, or a name twice; give each its own name")
    return columns


def _rows(
    lines: Iterator[list[str]], columns: tuple[str, ...], listed: Categories, odd: Counter[str | None]
) -> Iterator[list[float]]:
    """Yield the numbers of each line. Counts odd fields by column, and odd lines under None."""
    width = len(numeric_columns(columns, listed))
    for fields in _readable(lines):
        if fields is None or len(fields) != len(columns):
            odd[None] += 1
            yield [math.nan] * width
            continue
        row: list[float] = []
        for column, field in zip(columns, fields, strict=True):
            values = encode_category(field, listed[column]) if column in listed else [_number(field)]
            odd[column] += math.isnan(values[0]) and bool(field.strip())
            row += values
        yield row


def _readable(lines: Iterator[list[str]]) -> Iterator[list[str] | None]:
    """Yield the fields of each line that is not blank; None for one that cannot be parsed (an unclosed quote)."""
    while True:
        try:
            fields = next(lines)
        except StopIteration:
            return
        except csv.Error:
            yield None
        else:
            if fields:
                yield fields


def _number(text: str) -> float:
    is_finite = _is_float(text) and math.isfinite(float(text)) and "_" not in text
    return float(text) if is_finite else math.nan


def _is_float(text: str) -> bool:
    """Return True if Python parses the text as a float, including NaN and infinity."""
    try:
        float(text)
    except ValueError:
        return False
    return True
