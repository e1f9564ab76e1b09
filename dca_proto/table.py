"""A client's data: a CSV of numbers, read once.

The first line names the columns. An empty field is a missing value; anything else that is not a finite number is
refused, with its row and column and without its value, for this is private data.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dca_proto.core.errors import UsageError


class Table:
    """Rows of named columns.

    Args:
        columns: their names.
        rows: shape ``(m, len(columns))``; NaN marks a missing value.

    Raises:
        UsageError: names and rows do not fit each other, or a name stands there twice.
    """

    def __init__(self, columns: Sequence[str], rows: NDArray[np.float64]) -> None:
        self.columns = tuple(columns)
        self._rows = np.asarray(rows, dtype=np.float64)
        if self._rows.ndim != 2 or self._rows.shape[1] != len(self.columns):
            raise UsageError(f"rows have shape {self._rows.shape}; expected (m, {len(self.columns)}), one per column")
        if len(set(self.columns)) < len(self.columns):
            raise UsageError("a column is named twice; name each once")

    def rows(self, columns: tuple[str, ...]) -> NDArray[np.float64]:
        """The rows of these columns, in this order, shape ``(m, len(columns))``."""
        return self._rows[:, [self.columns.index(column) for column in columns]]

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"Table({', '.join(self.columns)})"


def read_csv(path: Path) -> Table:
    """Read a client's data.

    Raises:
        UsageError: the file cannot be read, has no header, or a field that is neither a number nor empty.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, strict=True)
            columns = _header(next(lines, []), path)
            rows = list(_rows(lines, columns, path))
    except OSError as error:
        raise UsageError(f"cannot read data {path}: {error.strerror}; check the path and its rights") from None
    except (UnicodeDecodeError, csv.Error):
        raise UsageError(f"data {path} is not a CSV in UTF-8; expected a header line and lines of numbers") from None
    return Table(columns, np.array(rows, dtype=np.float64).reshape(len(rows), len(columns)))


def _header(names: list[str], path: Path) -> tuple[str, ...]:
    columns = tuple(name.strip() for name in names)
    if not any(columns):
        raise UsageError(f"data {path} has no header; expected the columns' names in its first line")
    if all(_is_number(name) for name in columns):
        raise UsageError(f"data {path} begins with numbers; expected the columns' names in its first line")
    if not all(columns) or len(set(columns)) < len(columns):
        raise UsageError(f"data {path} has a column without a name, or a name twice; give each column one of its own")
    return columns


def _rows(lines: Iterator[list[str]], columns: tuple[str, ...], path: Path) -> Iterator[list[float]]:
    for number, fields in enumerate(lines, start=1):
        if not fields:
            continue  # a blank line
        if len(fields) != len(columns):
            raise UsageError(f"data {path}, row {number}: found {len(fields)} fields, expected {len(columns)}")
        for column, field in zip(columns, fields, strict=True):
            if field.strip() and not _is_number(field):
                raise UsageError(
                    f"data {path}, row {number}, column {column!r}: expected a finite number, or nothing where the "
                    "value is missing"
                )
        yield [float(field) if field.strip() else math.nan for field in fields]


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text)) and "_" not in text
    except ValueError:
        return False
