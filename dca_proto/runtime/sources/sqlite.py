"""A query of an SQLite database, which is opened for reading only."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from dca_proto.errors import InputError
from dca_proto.runtime.files import require_unopened
from dca_proto.runtime.sources.base import SqlSource, check_columns, table_of
from dca_proto.runtime.table import Say, Table

_CELL_BYTES_MAX = 1 << 20
_STEPS = 10_000  # of SQLite's machine between two looks at the clock
_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}


class SqliteSource(SqlSource, frozen=True, kw_only=True):
    """``sqlite``: a query of an SQLite database. Other programs may write to it meanwhile.

    Args:
        sqlite: the database.
    """

    key: ClassVar[str] = "sqlite"
    advice: ClassVar[str] = "check the query"

    sqlite: Path

    @property
    def is_there(self) -> bool:
        return self.sqlite.exists()

    def read(self, say: Say) -> Table:
        with opened(self.sqlite, self.timeout_s) as database:
            cursor = checked(database, self.query, {"since": self.since_s} if self.window_s else {})
            columns = [str(column[0]) for column in cursor.description or ()]
            check_columns(f"data {self.place}: the query", columns)
            rows = cursor.fetchmany(self.rows_max + 1)
        if len(rows) > self.rows_max:
            raise self.too_many()
        return table_of(columns, rows, self.place, say, self.categories)


@contextlib.contextmanager
def opened(path: Path, timeout_s: float) -> Iterator[sqlite3.Connection]:
    """Open a database to read it within the block, for `timeout_s` seconds at most.

    Raises `InputError`; of an error while rows are read, only SQLite's name for it, since its message may have data.
    """
    require_unopened(path, "expected an SQLite database")
    until_s = time.monotonic() + timeout_s
    try:
        with contextlib.closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=timeout_s)
        ) as database:
            database.text_factory = lambda text: text.decode("utf-8", "replace")  # what is not UTF-8 is no number
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _CELL_BYTES_MAX)
            database.execute("PRAGMA query_only = ON")
            database.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY)
            database.set_progress_handler(lambda: time.monotonic() > until_s, _STEPS)
            yield database
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorname", "") == "SQLITE_INTERRUPT":
            raise InputError(
                f"data {path} was not read within {timeout_s:g} s; ask for less, or raise timeout_s"
            ) from None
        raise _unreadable(path, error) from None
    except sqlite3.Error as error:
        raise _unreadable(path, error) from None


def checked(database: sqlite3.Connection, query: str, values: Mapping[str, object]) -> sqlite3.Cursor:
    """Run a person's query. Raises `InputError` with SQLite's message if it is wrong: that has no data in it."""
    try:
        database.execute(f"EXPLAIN {query}", values).close()
    except (sqlite3.Error, sqlite3.Warning) as error:
        if getattr(error, "sqlite_errorname", "SQLITE_ERROR") not in ("SQLITE_ERROR", "SQLITE_AUTH"):
            raise  # the database's fault
        raise InputError(f"[data] query: {error}; expected one SELECT") from None
    return database.execute(query, values)


def _unreadable(path: Path, error: sqlite3.Error) -> InputError:
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    return InputError(f"data {path} cannot be read: {name}; check that it is an SQLite database, and its rights")
