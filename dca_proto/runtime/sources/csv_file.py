"""A CSV file that is read again when it has changed. `dca_proto.runtime.csv_text` has its format."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import ClassVar

import msgspec

from dca_proto.errors import InputError
from dca_proto.runtime.csv_text import CSV_BYTES_MAX, parse_delimiter
from dca_proto.runtime.files import read_input, unreadable
from dca_proto.runtime.sources.base import Feed, Source
from dca_proto.runtime.table import Entry, Say, Table, read_csv
from dca_proto.statistics.categories import Categories

_READS_MAX = 3  # of a file that changes while it is read
_RACY_NS = 2_000_000_000  # the coarsest times of files, FAT's: a change so soon after another may not show


class CsvSource(Source, frozen=True, kw_only=True):
    """``file``: a CSV, as ``data = "readings.csv"`` in [client]. It is read again when it has changed.

    Append whole lines to it, or write another file and rename it.

    Args:
        file: the file. categories: categories by text column (`dca_proto.statistics.categories`). delimiter: the sign
            between cells, or its name; by default as in its first line. window_s: if the program that writes the file
            keeps rows for so long.
    """

    key: ClassVar[str] = "file"
    advice: ClassVar[str] = "correct the file"

    file: Path
    categories: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    delimiter: str = ""

    def __post_init__(self) -> None:
        parse_delimiter(self.delimiter)

    @property
    def is_there(self) -> bool:
        return self.file.exists()

    def open(self) -> CsvFeed:
        return CsvFeed(self)


class CsvFeed(Feed):
    """A CSV that may change while the client runs. `format` is what separates cells, for people; "" if commas do."""

    source: CsvSource

    def __init__(self, source: CsvSource) -> None:
        self._path = source.file
        self._categories: Categories = source.categories
        self._delimiter = parse_delimiter(source.delimiter)
        self._stamp: tuple[int, ...] | None = None  # of the file that was read; None if another may look the same
        super().__init__(source)

    def _tell(self) -> None:
        """Do not: a CSV has told what separates its cells, if that is odd."""

    def _renew(self) -> None:
        try:
            if self._stamp is None or self._stamp != _stamp(self._stat()):
                self._table = self._read()
        except BaseException:
            self._stamp = None
            raise

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
        self._require_columns(table)
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

    def _say(self, entries: list[Entry]) -> None:
        self.format = "".join(event for level, event, _ in entries if level == "info")
        super()._say(entries)

    def _stat(self) -> os.stat_result:
        try:
            return self._path.stat()
        except OSError as error:
            raise unreadable(self._path, error) from None


def _stamp(about: os.stat_result) -> tuple[int, ...]:
    """What differs between two states of a file, or between two files of one name."""
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


def _into(entries: list[Entry]) -> Say:
    return lambda level, event, fields: entries.append((level, event, fields))
