"""A client's data: a table in memory, or a CSV file that is read anew when it has changed.

Whether a client takes part must never depend on its rows, so no row is refused: `dca_proto.runtime.csv_text` says what
counts as a missing value. A warning counts the odd cells, without their values, since the data are private. For the
same reason a file that cannot be read while the client runs counts as no rows, which contribute zero.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import structlog
from numpy.typing import ArrayLike, NDArray

from dca_proto.errors import InputError, UsageError
from dca_proto.runtime.csv_text import CSV_BYTES_MAX, UNDECODED, Missing, open_csv
from dca_proto.runtime.files import read_input, unreadable
from dca_proto.statistics.categories import Categories, check_categories, numeric_columns

_READS_MAX = 3  # of a file that changes while it is read
_RACY_NS = 2_000_000_000  # the coarsest times of files, FAT's: a change so soon after another may not show

log = structlog.get_logger("dca.data")


class Table:
    """Rows of named columns. Any thread may change them while a client runs; a round uses those of its announcement.

    Args:
        columns: the columns' names.
        rows: shape ``(m, len(columns))``; NaN marks a missing value.

    Raises:
        UsageError: the rows' shape does not fit the columns, or a column is named twice.
    """

    def __init__(self, columns: Sequence[str], rows: ArrayLike) -> None:
        self.columns = tuple(columns)
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
        copied = np.array(rows, dtype=np.float64)
        if copied.ndim != 2 or copied.shape[1] != len(self.columns):
            raise InputError(f"rows have shape {copied.shape}; expected (m, {len(self.columns)}), one per column")
        return copied

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"Table({', '.join(self.columns)})"


Entry = tuple[str, str, dict[str, object]]
"""Of a log: its level, its text and its fields."""
Say = Callable[[str, str, dict[str, object]], None]
"""Logs an entry."""


def _log(level: str, event: str, fields: dict[str, object]) -> None:
    getattr(log, level)(event, **fields)


def _into(said: list[Entry]) -> Say:
    return lambda level, event, fields: said.append((level, event, fields))


def read_csv(
    path: Path,
    categories: Categories | None = None,
    delimiter: str = "",
    say: Say = _log,
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
        if unknown := [name for name in listed if name not in text.columns]:
            raise InputError(f"data {path} has no column {unknown[0]!r}, for which categories are listed")
        rows = text.numbers(listed, count)
    if odd or lines_odd:
        found: dict[str, object] = {"data": str(path), "fields": dict(odd), "lines": lines_odd}
        found |= ({"not_utf8": undecoded} if undecoded else {}) | ({"expected": text.expected} if lines_odd else {})
        say("warning", "data not understood count as missing", found)
    if text.format:
        say("info", text.format, {"data": str(path)})
    table = Table(numeric_columns(text.columns, listed), rows[:0])
    table._rows = rows  # without a copy, since nobody else has them
    return table


class DataFile:
    """A client's CSV file, which may change while the client runs.

    Args:
        path: the file. categories: of its text columns. delimiter: the sign between cells; "" to detect it.

    Attributes:
        columns: the names of its numbers at the start. Whether a client takes part depends on these alone.
        format: what separates cells, for people; "" if commas do.
        read_ms: when it was last found as it was read, in Unix milliseconds.

    Raises:
        UsageError: as `read_csv`, or the file is too large.
    """

    def __init__(self, path: Path, categories: Categories | None = None, delimiter: str = "") -> None:
        self._path, self._categories, self._delimiter = path, categories, delimiter
        self._failure: InputError | None = None
        self._said: list[Entry] = []  # of the last read: logged again only if it differs
        self.format = ""
        self._stamp: tuple[int, ...] | None = None  # of the file that was read; None if another may look the same
        self._table = self._read()
        self.read_ms = time.time_ns() // 1_000_000
        self.columns = self._table.columns

    def rows(self, columns: tuple[str, ...]) -> NDArray[np.float64]:
        """Return the rows of these columns as the file was at the last `refresh`.

        Raises `UsageError` if it could not be read then. The client counts that as no rows, and reports it.
        """
        if self._failure is not None:
            raise self._failure
        return self._table.rows(columns)

    @property
    def failure(self) -> InputError | None:
        """Why the last `refresh` could not read the file, or None."""
        return self._failure

    def refresh(self) -> None:
        """Read the file again if it has changed. This may take long, so call it outside of the event loop.

        A file that cannot be read, or lacks a column, leaves no rows until a later `refresh` reads it. A log line names
        the reason when it changes.
        """
        before, self._failure = self._failure, None
        try:
            if self._stamp is None or self._stamp != _stamp(self._stat()):
                self._table = self._read()
            self.read_ms = time.time_ns() // 1_000_000
        except UsageError as error:
            self._failure = InputError(str(error))
        except MemoryError:
            self._failure = InputError(f"data {self._path} does not fit into memory; use fewer rows")
        except Exception as error:  # no content of a file may stop a client; no message, since it may contain data
            self._failure = InputError(f"data {self._path} cannot be read: {type(error).__name__}; correct the file")
        if self._failure is not None:
            self._stamp = None
        if self._failure is not None and str(self._failure) != str(before):
            log.warning("data cannot be read, so this client contributes zero", error=str(self._failure))
        elif before is not None and self._failure is None:
            log.info("data can be read again", data=str(self._path))

    def _read(self) -> Table:
        """Return the rows of a file that did not change while it was read, but for lines that were appended."""
        said: list[Entry] = []
        for _ in range(_READS_MAX):
            began_ns, about = time.time_ns(), self._stat()
            said.clear()
            try:
                table = read_csv(self._path, self._categories, self._delimiter, _into(said))
            except InputError:
                if _stamp(about) == _stamp(self._stat()):
                    raise
            else:
                if _stamp(about) == _stamp(self._stat()):
                    break
        else:
            said.clear()
            table, began_ns = self._read_growing(_into(said)), 0
        if lacking := [column for column in getattr(self, "columns", ()) if column not in table.columns]:
            raise InputError(f"data {self._path} has no column {lacking[0]!r} any more; write the columns of the start")
        is_old = max(about.st_mtime_ns, about.st_ctime_ns) < began_ns - _RACY_NS
        self._stamp = _stamp(about) if is_old else None
        self._say(said)  # not before: without its header, the names of columns are cells
        return table

    def _read_growing(self, say: Say) -> Table:
        """Return the rows of a file to which another program appends again and again, without a line begun."""
        content, later = (read_input(self._path, bytes_max=CSV_BYTES_MAX) for _ in range(2))
        if not content or not later.startswith(content):
            raise InputError(f"data {self._path} changes while it is read; write another file and rename it")
        whole = content[: content.rfind(b"\n") + 1]
        return read_csv(self._path, self._categories, self._delimiter, say, whole)

    def _say(self, said: list[Entry]) -> None:
        self.format = "".join(event for level, event, _ in said if level == "info")
        for entry in said:
            if entry not in self._said:
                _log(*entry)
        self._said = said

    def _stat(self) -> os.stat_result:
        try:
            return self._path.stat()
        except OSError as error:
            raise unreadable(self._path, error) from None


def _stamp(about: os.stat_result) -> tuple[int, ...]:
    """What differs between two states of a file, or between two files of one name."""
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns
