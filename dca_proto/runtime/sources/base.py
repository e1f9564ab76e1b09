"""A client's source of data: the section [data] of its file, and the reading of it while the client runs.

`Source` is the record that a file contains. Each kind is a subclass with a `key` of its own: the key of [data] that
names the kind. `Feed` reads one again and again, and has the rows of its last read in memory.

Whether a client takes part must never depend on its rows. So a source that cannot be read counts as no rows, which
contribute zero. Its columns are those of the start.
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, ClassVar

import msgspec
import numpy as np
import structlog
from msgspec import Meta
from numpy.typing import NDArray

from dca_proto.errors import InputError, UsageError
from dca_proto.protocol.wire.fields import WindowSeconds
from dca_proto.runtime.csv_text import is_number
from dca_proto.runtime.settings import BrokerSettings, anchored
from dca_proto.runtime.table import ODD, Entry, Say, Table, log_entry
from dca_proto.statistics.categories import (
    Categories,
    check_categories,
    encode_category,
    numeric_columns,
    require_columns,
)
from dca_proto.wording import counted, duration, listed

COLUMNS_MAX, ROWS_MAX = 1024, 10_000_000
RowsMax = Annotated[int, Meta(ge=1, le=ROWS_MAX)]
Listed = dict[str, tuple[str, ...]]
"""The categories of each column of texts."""
LAST = "last"
"""What a source takes of several values that can be texts."""
TimeoutSeconds = Annotated[float, Meta(ge=0.1, le=600)]

log = structlog.get_logger("dca.data")


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all kinds of sources share.

    Args:
        window_s: from how long ago the rows are, in seconds; 0 if the source has no window. A round that asks for
            another window is declined.
    """

    key: ClassVar[str] = ""
    advice: ClassVar[str] = "correct the source"

    window_s: WindowSeconds = 0

    @property
    def place(self) -> str:
        """Where the data are, for people; without a secret."""
        return str(getattr(self, self.key))

    @property
    def title(self) -> str:
        """The kind, the place and the window, for people."""
        window = f", the last {duration(1000 * self.window_s)}" if self.window_s else ""
        return f"{self.key} {self.place}{window}"

    @property
    def is_there(self) -> bool:
        """False if the source is known to be missing; a trial leaves out such a client."""
        return True

    @property
    def limit_s(self) -> float:
        """How long a read may take, in seconds; 0 for any time."""
        return float(getattr(self, "timeout_s", 0))

    @property
    def since_s(self) -> float:
        """When the window begins, in Unix seconds."""
        return time.time() - self.window_s

    def anchored(self, directory: Path, broker: BrokerSettings) -> Source:
        """Return the source with its file names resolved against a directory. `broker` is the client's own."""
        return anchored(self, directory)

    def open(self) -> Feed:
        """Read the source for the first time. Raises `UsageError` if it cannot be read."""
        return Feed(self)

    def read(self, say: Say) -> Table:
        """Return the present rows. `say` logs what is odd. May raise anything."""
        raise NotImplementedError


class Feed:
    """A source that is read again and again.

    Args:
        source: what to read.

    Attributes:
        columns: the names of the columns at the start. Whether a client takes part depends on these alone.
        window_s: of the source.
        format: what is read and how, for people; "" if there is nothing to tell.
        read_ms: when it was last read, in Unix milliseconds; None if never.
        dropped: counts of what came and was not used, by reason.

    Raises:
        UsageError: the source cannot be read.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.window_s = source.window_s
        self.format = ""
        self.read_ms: int | None = None
        self.dropped: Counter[str] = Counter()
        self._failure: InputError | None = None
        self._said: list[Entry] = []  # of the last read: logged again only if it differs
        self._reading: _Reading | None = None
        self._is_leaving = False
        self.columns: tuple[str, ...] = ()
        self.columns = self._first()

    @property
    def failure(self) -> InputError | None:
        """Why the last `refresh` could not read the source, or None."""
        return self._failure

    @property
    def unheard(self) -> str:
        """Why nothing arrives now from a source that sends by itself, or ""; one that is read has `failure`."""
        return ""

    def rows(self, columns: tuple[str, ...]) -> NDArray[np.float64]:
        """Return the rows of these columns as of the last `refresh`.

        Raises `UsageError` if the source could not be read then. The client counts that as no rows, and reports it.
        """
        if self._failure is not None:
            raise self._failure
        return self._table.rows(columns)

    def refresh(self) -> None:
        """Read the source again if it may have changed. This may take long: call it outside of the event loop.

        A source that cannot be read, or lacks a column, leaves no rows until a later `refresh` reads it. A log line
        names the reason when it changes.
        """
        before, self._failure = self._failure, None
        place, advice = self.source.place, self.source.advice
        try:
            self._renew()
            self.read_ms = time.time_ns() // 1_000_000
        except UsageError as error:
            self._failure = InputError(str(error))
        except MemoryError:
            self._failure = InputError(f"data {place} does not fit into memory; use fewer rows")
        except Exception as error:  # nothing may stop a client; without the message, since it may contain data
            self._failure = InputError(f"data {place} cannot be read: {type(error).__name__}; {advice}")
        if self._is_leaving:
            return
        if self._failure is not None and str(self._failure) != str(before):
            log.warning("data cannot be read, so this client contributes zero", error=str(self._failure))
        elif before is not None and self._failure is None:
            log.info("data can be read again", data=place)

    @contextlib.asynccontextmanager
    async def live(self) -> AsyncIterator[None]:
        """Keep the source running, if it has a part that runs, until the context ends. Then no read is waited for."""
        self._is_leaving = False
        try:
            yield
        finally:
            self._is_leaving = True
            if (reading := self._reading) is not None:
                reading.woken.set()

    def _first(self) -> tuple[str, ...]:
        """Read for the first time, and return the columns."""
        self.refresh()
        if self._failure is not None:
            raise self._failure
        self._tell()
        return self._table.columns

    def _tell(self) -> None:
        self.format = f"{self.source.title}: {counted(len(self._table), 'row')} of {listed(self._table.columns)}"

    def _renew(self) -> None:
        """Replace the table. May raise anything."""
        said: list[Entry] = []
        table = self._in_time(lambda: self.source.read(lambda *entry: said.append(entry)))
        self._require_columns(table)
        self._table = table
        self._say(said)

    def _require_columns(self, table: Table) -> None:
        if lacking := [column for column in self.columns if column not in table.columns]:
            name, place = repr(lacking[0]), self.source.place
            raise InputError(f"data {place} has no column {name} any more; it needs the columns of the start")

    def _in_time(self, read: Callable[[], Table]) -> Table:
        """Call a function that may never return, in a thread of its own, one at a time."""
        limit_s, place = self.source.limit_s, self.source.place
        if not limit_s:
            return read()
        if self._reading is not None and not self._reading.ended.is_set():
            raise InputError(f"data {place}: an earlier read has not ended yet; restart the client if it never will")
        self._reading = _Reading(read)
        if not self._is_leaving:
            self._reading.woken.wait(limit_s)
        if not self._reading.ended.is_set():
            raise InputError(f"data {place} was not read within {limit_s:g} s; ask for less, or raise timeout_s")
        reading, self._reading = self._reading, None
        return reading.result()

    def _say(self, entries: list[Entry]) -> None:
        for entry in entries:
            if entry not in self._said:
                log_entry(*entry)
        self._said = entries


class _Reading(threading.Thread):
    """A read in a thread of its own; the end of the process does not wait for it."""

    def __init__(self, read: Callable[[], Table]) -> None:
        super().__init__(daemon=True, name="dca-data")
        self.ended = threading.Event()
        self.woken = threading.Event()  # whoever waits for the end is to go on
        self._read = read
        self._table: Table | None = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._table = self._read()
        except BaseException as error:  # also SystemExit of an owner's function
            self._error = error
        finally:
            self.ended.set()
            self.woken.set()

    def result(self) -> Table:
        if isinstance(self._error, Exception):
            raise self._error
        if self._table is None:
            raise RuntimeError(type(self._error).__name__)
        return self._table


# --- what kinds share -------------------------------------------------------------------------------------------------


def check_columns(where: str, columns: Sequence[str]) -> None:
    """Raise `InputError` unless these are names of columns."""
    if not 0 < len(columns) <= COLUMNS_MAX:
        raise InputError(f"{where}: found {len(columns)} columns, expected 1 to {COLUMNS_MAX}")
    for column in columns:
        if not column.strip() or not column.isprintable():
            raise InputError(f"{where}: found the column {column!r}, expected a name of letters and digits")
    if len(set(columns)) < len(columns):
        raise InputError(f"{where}: a column is named twice; name each once")


def check_listed(where: str, columns: Collection[str], categories: Listed, take: str = LAST) -> None:
    """Check the categories of a source's columns. Raises `UsageError`; so it does for a mean of texts."""
    require_columns(check_categories(categories), columns, where)
    if categories and take != LAST:
        raise InputError(f'[data] take: found "{take}" and categories; expected "{LAST}": texts have no mean')


def table_of(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    place: str,
    say: Say,
    categories: Categories = MappingProxyType({}),
) -> Table:
    """Return a table of a database's values: numbers, and texts with listed categories.

    What is neither is missing; a warning counts such values. Raises `InputError` for a list of another column.
    """
    odd: Counter[str] = Counter()
    listed = check_categories(categories)
    numbers: list[list[float]] = []
    require_columns(listed, columns, f"data {place}")
    for row in rows:
        numbers.append([])
        for column, value in zip(columns, row, strict=True):
            found = encode_category(value, listed[column]) if column in listed else [number_of(value)]
            numbers[-1] += found
            if math.isnan(found[0]) and value is not None:
                odd[column] += 1
    if odd:
        say("warning", ODD, {"data": place, "fields": dict(odd)})
    names = numeric_columns(columns, listed)
    return Table(names, np.array(numbers, dtype=np.float64).reshape(len(numbers), len(names)))


def number_of(value: object) -> float:
    """Return a finite number, a truth value as 0 or 1, or the number in a text; NaN for anything else."""
    if isinstance(value, str):
        found = float(value) if len(value) < 400 and "_" not in value and is_number(value) else math.nan
    elif isinstance(value, bool | int | float | Decimal):
        try:
            found = float(value)
        except (OverflowError, ValueError):  # an int beyond floats, a signalling NaN
            return math.nan
    else:
        return math.nan
    return found if math.isfinite(found) else math.nan


class SqlSource(Source, frozen=True, kw_only=True):
    """A source that is a query in SQL.

    Args:
        query: one SELECT. Its columns are the data's. With a window, it compares times with the window's begin, which
            the database puts in as a number of Unix seconds.
        rows_max: the query fails if it returns more rows.
        timeout_s: how long it may take.
        categories: of its columns of texts, in the order of their codes (`dca_proto.statistics.categories`).
    """

    advice: ClassVar[str] = "see the database's log"
    since: ClassVar[str] = ":since"
    """How a query refers to the window's begin."""

    query: str
    rows_max: RowsMax = 100_000
    timeout_s: TimeoutSeconds = 10.0
    categories: Listed = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_categories(self.categories)
        has_since = re.search(rf"{re.escape(self.since)}(?!\w)", self.query) is not None
        if has_since and not self.window_s:
            raise InputError(f"[data] query: found {self.since} without a window; give window_s, such as 3600")
        if self.window_s and not has_since:
            raise InputError(
                f"[data] window_s: found a query without {self.since}; "
                f"compare the time of a row with it: WHERE time >= {self.since}"
            )

    def too_many(self) -> InputError:
        """Return the error of a query with too many rows."""
        return InputError(
            f"data {self.place}: the query returns more than {self.rows_max} rows; ask for fewer, or raise rows_max"
        )
