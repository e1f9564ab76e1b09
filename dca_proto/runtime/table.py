"""A client's data in memory: a table that a program changes, or that a source was read into.

Whether a client takes part must never depend on its rows, so no row is refused: `dca_proto.runtime.csv_text` says what
counts as a missing value. A warning counts the odd cells, without their values, since the data are private.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from numpy.typing import ArrayLike, NDArray

from dca_proto.errors import InputError, UsageError
from dca_proto.runtime.csv_text import UNDECODED, Missing, open_csv
from dca_proto.statistics.categories import (
    Categories,
    check_categories,
    encode_text,
    numeric_columns,
    require_columns,
    text_of,
)
from dca_proto.wording import counted

log = structlog.get_logger("dca.data")


Entry = tuple[str, str, dict[str, object]]
"""Of a log: its level, its text and its fields."""
Say = Callable[[str, str, dict[str, object]], None]
"""Logs an entry."""
ODD = "data not understood count as missing"


def log_entry(level: str, event: str, fields: dict[str, object]) -> None:
    getattr(log, level)(event, **fields)


class Table:
    """Rows of named columns. Any thread may change them while a client runs; a round uses those of its announcement.

    Args:
        columns: the columns' names.
        rows: shape ``(m, len(columns))``, or ``[]`` for no rows; NaN marks a missing value, as NumPy's mask does.
        window_s: from how many seconds ago the program keeps rows, if it does: a round may ask for this window.
        categories: of columns of texts, in the order of their codes; such a column becomes its code and its indicators
            (`dca_proto.statistics.categories`). Another text is missing, and a warning counts it.
        say: logs such warnings.

    Raises:
        UsageError: the rows are no numbers, their shape does not fit the columns, or the columns are no list of
            different names.
    """

    def __init__(
        self,
        columns: Sequence[str],
        rows: ArrayLike,
        *,
        window_s: int = 0,
        categories: Categories | None = None,
        say: Say = log_entry,
    ) -> None:
        if isinstance(columns, str):
            raise InputError(f'columns: found the text {columns!r}, expected a list of names, such as ["{columns}"]')
        self._given = tuple(columns) if isinstance(columns, Iterable) else (columns,)
        if not all(isinstance(name, str) for name in self._given):
            raise InputError(f"columns: found {repr(columns)[:60]}, expected a list of names, such as ['age', 'bmi']")
        self._listed = check_categories(categories or {})
        if lacking := [name for name in self._listed if name not in self._given]:
            raise InputError(f"categories are listed for column {lacking[0]!r}, which is not among the columns")
        self.columns = numeric_columns(self._given, self._listed)
        self.window_s, self._say = window_s, say
        self._changing = threading.Lock()
        self._rows = self._checked(rows)  # replaced as a whole, never written to
        if len(set(self.columns)) < len(self.columns):
            raise InputError("a column is named twice; name each once")

    def rows(self, columns: tuple[str, ...]) -> NDArray[np.float64]:
        """Return a copy of the present rows of these columns, in this order, shape ``(m, len(columns))``."""
        return self._rows[:, [self.columns.index(column) for column in columns]]

    def replace(self, rows: ArrayLike) -> None:
        """Replace all rows. A round has either the old ones or the new ones. Raises `UsageError` for another shape."""
        checked = self._checked(rows)
        with self._changing:
            self._rows = checked

    def append(self, rows: ArrayLike, keep: int | None = None) -> None:
        """Add rows after those that are there.

        Args:
            rows: shape ``(k, len(columns))``.
            keep: how many rows to have afterwards; older ones are forgotten. None keeps all.

        Raises:
            UsageError: the rows' shape does not fit the columns, or `keep` is negative.
        """
        if keep is not None and keep < 0:
            raise UsageError(f"keep is {keep}, expected 0 or more rows")
        checked = self._checked(rows)
        with self._changing:
            grown = np.concatenate([self._rows, checked])
            self._rows = grown if keep is None else grown[max(0, len(grown) - keep) :].copy()

    def _checked(self, rows: ArrayLike) -> NDArray[np.float64]:
        width = len(self._given)
        copied = numbers_of(rows) if not self._listed else np.array(rows, dtype=object)
        if copied.shape == (0,):
            return np.empty((0, len(self.columns)))
        if copied.ndim != 2 or copied.shape[1] != width:
            raise InputError(
                f"rows have shape {copied.shape}; expected (m, {width}): m lists of {counted(width, 'number')}, "
                "one for each column, NaN where a value is missing"
            )
        return self._encoded(copied) if self._listed else copied

    def _encoded(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        """Return the numbers of rows with texts."""
        parts, odd = [], Counter[str]()
        for name, cells in zip(self._given, rows.T, strict=True):
            if name in self._listed:
                texts = [text_of(cell) for cell in cells]
                parts.append(np.array([encode_text(text, self._listed[name]) for text in texts]))
                odd[name] += sum(map(bool, texts)) - int(np.isfinite(parts[-1][:, 0]).sum())
            else:
                parts.append(numbers_of(cells)[:, None])
        if odd := +odd:
            self._say("warning", ODD, {"fields": dict(odd)})
        return np.concatenate(parts, axis=1)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"Table({', '.join(self.columns)})"


def numbers_of(rows: ArrayLike) -> NDArray[np.float64]:
    """Return a copy of rows as numbers; what is masked is NaN. Raises `UsageError`, without what is in the rows."""
    try:
        if isinstance(rows, np.ma.MaskedArray):
            rows = np.ma.filled(rows.astype(np.float64), np.nan)
        return np.array(rows, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"rows are no array of numbers ({type(error).__name__}); expected a list of lists") from None


def read_csv(
    path: Path,
    categories: Categories | None = None,
    delimiter: str = "",
    say: Say = log_entry,
    content: bytes | None = None,
) -> Table:
    """Read a client's data. One warning counts the odd cells and lines, without their values.

    Args:
        path, delimiter, content: as for `open_csv`. categories: of text columns. say: logs.

    Raises `UsageError` if the file cannot be read, its first line does not name columns, or `categories` names a column
    that it lacks.
    """
    listed, odd, undecoded = check_categories(categories or {}), Counter[str](), 0
    lines_odd = 0

    def count(missing: Missing) -> None:
        nonlocal lines_odd, undecoded
        undecoded += UNDECODED in missing.found
        if missing.column is None:
            lines_odd += 1
        elif missing.found.strip():
            odd[missing.column] += 1

    with open_csv(path, delimiter, content=content) as text:
        require_columns(listed, text.columns, f"data {path}")
        rows = text.numbers(listed, count)
    if odd or lines_odd:
        found: dict[str, object] = {"data": str(path), "fields": dict(odd), "lines": lines_odd}
        found |= ({"not_utf8": undecoded} if undecoded else {}) | ({"expected": text.expected} if lines_odd else {})
        say("warning", ODD, found)
    if text.format:
        say("info", text.format, {"data": str(path)})
    table = Table(numeric_columns(text.columns, listed), rows[:0])
    table._rows = rows  # without a copy, since nobody else has them
    return table
