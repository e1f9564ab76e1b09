"""Reads numbers and listed categories from CSV text: the one reader, of devices and of tables on one machine.

The first line that is not blank names the columns, and decides what separates cells: a comma, a semicolon or a tab. A
line ``sep=;`` before it, as spreadsheets write one, states the sign. Nothing else in the file decides it, so that no
row changes how another one is read. Where cells are not separated by commas, a comma in a number is its decimal mark;
but not in a line that also has a number with a point, since such a comma may separate thousands: 1,234 is then missing.

A cell is a missing value if it is empty, not a finite number as printed by programs (so not ``1_000``), or not a listed
category. A line with more or fewer cells than the first is a row of missing values, and so is one that cannot be
parsed. A blank line is no row; but in a file of one column it is a row whose value is missing, since a cell that is
emptied must not move the rows after it. So one changed cell changes one row, unless it breaks the quotes around cells:
one that is not closed takes the lines after it along.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dca_proto.errors import InputError
from dca_proto.runtime.files import open_input, read_text, unreadable
from dca_proto.statistics.categories import Categories, encode_category, numeric_columns
from dca_proto.wording import counted

UNDECODED = "\ufffd"
"""Stands where a byte is not UTF-8."""
CSV_BYTES_MAX = 1 << 30
"""The largest CSV file; a program can pass more rows in a `Table`."""
DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t"}
_STATED = re.compile("sep=(.)", re.IGNORECASE)  # a first line that spreadsheets write and read
_CHUNK = 4096  # rows that are lists of Python numbers at a time


def parse_delimiter(text: str) -> str:
    """Return the character that an option's value stands for; "" to detect it. Raises `InputError`."""
    delimiter = DELIMITERS.get(text, "\t" if text == "\\t" else text)
    is_sign = delimiter == "\t" or (delimiter.isprintable() and not delimiter.isalnum() and delimiter not in '".-+_')
    if delimiter and (len(delimiter) > 1 or not is_sign):
        raise InputError(f"delimiter {text[:20]!r}: expected one of {', '.join(DELIMITERS)}, or a single sign")
    return delimiter


class Missing(NamedTuple):
    """A missing value, or a line without values.

    Attributes:
        row, line: their numbers in the file, from 1. column: None for a line that does not fit the columns.
        found: the cell's text, or of a line how many cells it has; "" if it cannot be parsed.
    """

    row: int
    line: int
    column: str | None
    found: str


OnMissing = Callable[[Missing], None]


class CsvText:
    """CSV text whose columns are known and whose rows are still to be read, once.

    Args:
        lines: with their line ends. name: of the file, for errors. delimiter: "" to detect it.

    Attributes:
        columns: the names in the header. delimiter: the sign between cells.

    Raises:
        InputError: the first line does not name columns.
    """

    def __init__(self, lines: Iterator[str], name: str, delimiter: str = "") -> None:
        self._passed = self._quotes = 0  # lines that the reader has not seen; quotes in the row that it reads
        for first in lines:
            if stated := _STATED.fullmatch(first.strip("\r\n")):
                delimiter = delimiter or _stated_by(name, stated[1])
            elif first.strip():
                break
            self._passed += 1
        else:
            raise InputError(f"{name} has no header; expected the columns' names in its first line")
        self.delimiter = delimiter or _delimiter(first)
        self._rest = self._with_quotes(chain([first], lines))
        self._reader = csv.reader(self._rest, delimiter=self.delimiter, strict=True)
        self.columns = self._header(name, first)

    @property
    def format(self) -> str:
        """What separates cells, for people; "" if commas do."""
        if self.delimiter == ",":
            return ""
        return f"cells are separated by {self._signs}; 1,5 is read as 1.5"

    @property
    def expected(self) -> str:
        """What a line is expected to have, for people."""
        cells = f"{counted(len(self.columns), 'cell')}, separated by {self._signs}"
        return f"{cells} as in the first line; if another sign separates them, set delimiter"

    @property
    def _signs(self) -> str:
        return {sign: f"{name}s" for name, sign in DELIMITERS.items()}.get(self.delimiter, repr(self.delimiter))

    def numbers(
        self, categories: Categories, on_missing: OnMissing, only: Sequence[str] | None = None
    ) -> NDArray[np.float64]:
        """Return the rows, shape ``(m, k)``; NaN marks a missing value.

        Args:
            categories: of text columns, checked. on_missing: called with each missing value, in order.
            only: columns of the header to read; None for all. k is the number of `numeric_columns` of these.
        """
        used = tuple(self.columns if only is None else only)
        places = [self.columns.index(column) for column in used]
        chosen: Callable[[list[str]], Sequence[str]] = _all if places == [*range(len(self.columns))] else _those(places)
        plain, width = not any(column in categories for column in used), len(numeric_columns(used, categories))
        chunks: list[NDArray[np.float64]] = [np.empty((0, width))]
        rows: list[list[float]] = []
        for number, cells in enumerate(self._lines(), 1):
            if cells is None or len(cells) != len(self.columns):
                line = self._reader.line_num + self._passed
                on_missing(Missing(number, line, None, "" if cells is None else str(len(cells))))
                rows.append([math.nan] * width)
            else:
                own = chosen(cells)
                found = self._whole_row(own, cells) if plain else None
                comma = found is None and self._has_decimal_commas(cells)
                rows.append(found or self._row(own, used, categories, number, on_missing, comma))
            if len(rows) == _CHUNK:
                chunks.append(np.array(rows))
                rows = []
        return np.concatenate([*chunks, np.array(rows, dtype=np.float64).reshape(len(rows), width)])

    def _header(self, name: str, first: str) -> tuple[str, ...]:
        try:
            columns = tuple(cell.strip() for cell in next(self._reader))
        except csv.Error:
            columns = (UNDECODED,)
        if UNDECODED in "".join(columns) or "\0" in "".join(columns):
            raise InputError(f"{name} is not a CSV in UTF-8; save it as one: a header line, then lines of numbers")
        if not all(column.isprintable() for column in columns):
            raise InputError(f"{name} has a column whose name cannot be printed; give names of letters and digits")
        if not any(columns):
            raise InputError(f"{name} has no header; expected the columns' names in its first line")
        if any(_has_numbers_only(first.split(sign)) for sign in ";\t") or _has_numbers_only(columns):
            names = self.delimiter.join(f"x{place}" for place in range(1, min(len(columns), 3) + 1))
            raise InputError(
                f"{name} begins with numbers; expected the columns' names in its first line: put one before it, as in "
                f"{names} (a name, such as a year, needs a letter: y2020)"
            )
        if "" in columns:
            raise InputError(f"{name}: {_nameless(columns)}")
        if twice := [place for place, column in enumerate(columns, 1) if columns.count(column) > 1]:
            other = columns.index(columns[twice[0] - 1], twice[0]) + 1  # not the name, which may be a cell of a row
            raise InputError(f"{name} has one name for columns {twice[0]} and {other} of its first line; rename one")
        return columns

    def _with_quotes(self, lines: Iterator[str]) -> Iterator[str]:
        for line in lines:
            self._quotes += line.count('"')
            yield line

    def _lines(self) -> Iterator[list[str] | None]:
        """Yield the cells of each row; None for one that cannot be parsed (an unclosed quote)."""
        blank: list[list[str]] = [[""]] if len(self.columns) == 1 else []
        while True:
            self._quotes = 0
            try:
                cells = next(self._reader)
            except StopIteration:
                return
            except csv.Error as error:
                if "field limit" in str(error):  # of a long cell, which may have line breaks, the reader drops one line
                    while self._quotes % 2 and next(self._rest, ""):
                        self._passed += 1
                yield None
            else:
                if cells:
                    yield cells
                else:
                    yield from blank

    def _has_decimal_commas(self, line: Sequence[str]) -> bool:
        """Return whether a comma is the decimal mark in this line."""
        if self.delimiter == ",":
            return False
        return "." not in "".join(line) or not any("." in cell and is_number(cell) for cell in line)

    def _whole_row(self, cells: Sequence[str], line: Sequence[str]) -> list[float] | None:
        """Return the numbers of a row that lacks none, quickly; otherwise None."""
        try:
            row = list(map(float, cells))
        except ValueError:
            if not self._has_decimal_commas(line):
                return None
            try:
                row = [float(cell.replace(",", ".")) for cell in cells]
            except ValueError:
                return None
        return row if math.isfinite(sum(row)) and "_" not in "".join(cells) else None

    def _row(
        self,
        cells: Sequence[str],
        columns: Sequence[str],
        categories: Categories,
        number: int,
        on_missing: OnMissing,
        comma: bool,
    ) -> list[float]:
        row: list[float] = []
        for column, cell in zip(columns, cells, strict=True):
            if column in categories:
                values = encode_category(cell, categories[column])
                value = values[0]
                row += values
            else:
                value = _number(cell, comma)
                row.append(value)
            if value != value:
                on_missing(Missing(number, self._reader.line_num + self._passed, column, cell))
        return row


@contextmanager
def open_csv(
    path: Path, delimiter: str = "", *, strict: bool = False, content: bytes | None = None
) -> Iterator[CsvText]:
    """Open a CSV file to read its rows within the block.

    Args:
        delimiter: see `CsvText`. strict: refuse a file that is not UTF-8 throughout. Otherwise a cell that is not makes
            its own value missing, as it must on a device. content: of the file, if it has been read.

    Raises:
        InputError: the file cannot be read, or its first line does not name columns; also within the block.
    """
    if strict:
        yield CsvText(io.StringIO(read_text(path, bytes_max=CSV_BYTES_MAX), newline=""), str(path), delimiter)
        return
    if content is not None:
        yield CsvText(io.StringIO(content.decode("utf-8-sig", "replace"), newline=""), str(path), delimiter)
        return
    try:
        with (
            open_input(path, bytes_max=CSV_BYTES_MAX) as opened,
            io.TextIOWrapper(opened, encoding="utf-8-sig", errors="replace", newline="") as file,
        ):
            yield CsvText(file, str(path), delimiter)
    except OSError as error:
        raise unreadable(path, error) from None


def _stated_by(name: str, sign: str) -> str:
    try:
        return parse_delimiter(sign)
    except InputError as error:
        raise InputError(f"{name}, line sep={sign}: {error}") from None


def _delimiter(header: str) -> str:
    """Return the sign that separates the names in the header, outside quotes; if in doubt the comma."""
    outside = "".join(header.split('"')[::2])
    counts = {sign: outside.count(sign) for sign in DELIMITERS.values()}
    return "\t" if counts["\t"] else max(DELIMITERS.values(), key=lambda sign: (counts[sign], sign == ","))


def _nameless(columns: Sequence[str]) -> str:
    place = columns.index("") + 1
    if place == 1 and all(columns[1:]):
        return (
            "its first column has no name, as pandas writes an index; write the file with to_csv(..., index=False), or "
            "name that column"
        )
    if all(columns[: place - 1]) and not any(columns[place - 1 :]):
        return "its last column has no name: the first line ends with a separator; remove it from all lines"
    return f"column {place} has no name; name it in the first line"


def _has_numbers_only(cells: Sequence[str]) -> bool:
    return all(is_number(cell.replace(",", ".")) for cell in cells if cell.strip())


def _those(places: Sequence[int]) -> Callable[[list[str]], Sequence[str]]:
    if len(places) == 1:
        return lambda cells: (cells[places[0]],)
    return itemgetter(*places) if places else lambda cells: ()


def _all(cells: list[str]) -> list[str]:
    return cells


def _number(cell: str, comma: bool) -> float:
    """Return a cell's number, whose decimal mark may be a comma or not; NaN if it is none."""
    text = cell.replace(",", ".") if comma else cell
    value = float(text) if is_number(text) else math.nan
    return value if math.isfinite(value) and "_" not in cell else math.nan


def is_number(text: str) -> bool:
    """Return True if Python parses the text as a float, including NaN and infinity."""
    try:
        float(text)
    except ValueError:
        return False
    return True
