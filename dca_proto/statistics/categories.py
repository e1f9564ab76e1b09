"""Text columns as numbers: public lists of categories, never read from the rows.

A column with the categories a, b, c becomes numbers under these names, on a device and in a table on one machine:

    COL      the code of the category: 0, 1, 2, in the order of the list
    COL=a    1 if the category is a, else 0; likewise COL=b and COL=c
    COL in {a, b, c}    the code again, under a name that states the list and its order (`coded`)

A regression takes ``COL=b`` and ``COL=c`` and compares them with the first category. A value that is not in the list is
a missing value, like an empty one. A database or a program may have a category such as 2 as a number. Letters with
marks, such as ä, have two spellings in Unicode, which are one category.

A code means nothing without its list. A job that knows the list asks for ``COL in {a, b, c}``, and a device with
another list or order has no such column, so it declines.
"""

from __future__ import annotations

import shlex
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from math import isfinite, nan
from numbers import Real
from typing import TypeAlias

from dca_proto.crypto import labels
from dca_proto.crypto.sealing import digest
from dca_proto.errors import InputError
from dca_proto.wording import split_list

Categories: TypeAlias = Mapping[str, Sequence[str]]
"""The categories of each text column, in the order of their codes."""
_EXAMPLE = "COL=a,b,c"
_MOST = 1000
_IN, _END = " in {", "}"
_DIGEST_DIGITS = 12
COLUMN_NAME_CHARS_MAX = 128
"""Of all columns, in any statistic."""


def parse_categories(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Parse categories from texts such as ``smoker=no,yes``, one per column; see `split_list` for commas in a category.

    Raises `UsageError` for anything else.
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        column, sign, listed = text.partition("=")
        if not sign or not column.strip() or column.strip() in found:
            raise InputError(f"categories {text[:80]!r}: expected {_EXAMPLE}, each column once")
        found[column.strip()] = tuple(category.strip() for category in split_list(listed))
    return check_categories(found)


def categories_option(column: str, listed: Iterable[str]) -> str:
    """Return the option of the command line that lists these categories; `parse_categories` reads its value."""
    value = f"{column}={','.join(_quoted(category) for category in listed)}"
    return f"--categories {shlex.quote(value)}"


def _quoted(category: str) -> str:
    return '"' + category.replace('"', '""') + '"' if {*category} & {",", '"'} else category


def check_categories(categories: Categories) -> dict[str, tuple[str, ...]]:
    """Return the categories if each column has 2 to 1,000 distinct printable ones. Raises `UsageError` otherwise."""
    found: dict[str, tuple[str, ...]] = {}
    for column, given in categories.items():
        if isinstance(given, str) or not all(isinstance(text, str) for text in given):
            raise InputError(f"column {column[:80]!r} has categories that are no list of texts; expected {_EXAMPLE}")
        found[column] = listed = tuple(_composed(text) for text in given)
        if not 2 <= len(listed) <= _MOST or len(set(listed)) < len(listed):
            raise InputError(
                f"column {column[:80]!r} has {len(listed)} categories, {len(set(listed))} of them different; list from "
                f"2 to {_MOST}, each once, as in {_EXAMPLE}"
            )
        if odd := [text for text in listed if text != text.strip() or not text or not text.isprintable()]:
            raise InputError(f"column {column[:80]!r} has the category {odd[0][:80]!r}; expected a printable text")
        if _IN in "\n".join((column, *listed)):
            raise InputError(f"column {column[:80]!r} has {_IN!r} in its name or a category; use other signs")
    return found


def require_columns(categories: Categories, columns: Collection[str], where: str) -> None:
    """Raise `UsageError` if there are categories for a column that data lack. Args: where: the data, for people."""
    if lacking := [name for name in categories if name not in columns]:
        raise InputError(f"{where} has no column {lacking[0]!r}, for which categories are listed")


def indicators(column: str, categories: Categories) -> tuple[str, ...]:
    """The names of a column's indicators, in the order of the list."""
    return tuple(f"{column}={category}" for category in categories[column])


def coded(column: str, listed: Sequence[str]) -> str:
    """Return the name of a column's codes that states their list: ``arm in {placebo, drug}``.

    Other lists, or the same in another order, have other names: of one that is too long for a name, a digest states it.
    """
    name = f"{column}{_IN}{', '.join(map(_quoted, listed))}{_END}"
    if len(name) <= COLUMN_NAME_CHARS_MAX:
        return name
    stated = digest(labels.CATEGORIES, *(category.encode() for category in listed)).hex()[:_DIGEST_DIGITS]
    return f"{column}{_IN}{len(listed)} categories {stated}{_END}"


def plain_name(name: str) -> str:
    """Return the column of `coded`, as people call it; any other name as it is."""
    return name.partition(_IN)[0] if name.endswith(_END) else name


def lists_apart(name: str, columns: Collection[str]) -> tuple[str, str] | None:
    """Return the list that a `coded` name states, and what these columns have instead; None for any other name."""
    column = plain_name(name)
    if column == name or column not in columns:
        return None
    own = [other for other in columns if other != column and plain_name(other) == column]
    here = f"{_list_in(own[0])}, in the order of this client's list" if own else "numbers: this client has no list"
    return f"column {column!r} with the categories {_list_in(name)}", here


def _list_in(name: str) -> str:
    return name.removeprefix(f"{plain_name(name)}{_IN}").removesuffix(_END)


def numeric_columns(columns: Iterable[str], categories: Categories) -> tuple[str, ...]:
    """The names of the numbers that these columns become. Raises `UsageError` if an indicator has another's name."""
    found: list[str] = []
    made: list[str] = []
    for column in columns:
        found.append(column)
        if column in categories:
            own = (*indicators(column, categories), coded(column, categories[column]))
            found += own
            made += own
    names = Counter(found)
    if twice := [name for name in made if names[name] > 1]:
        raise InputError(f"column {twice[0][:80]!r} is twice: as itself, and as an indicator of texts; rename one")
    return tuple(found)


def text_of(cell: object) -> str:
    """Return a cell's text, of a whole number its digits; "" for none, as for a missing value."""
    if isinstance(cell, str):
        return _composed(cell.strip())
    if isinstance(cell, bool) or not isinstance(cell, Real | Decimal):
        return str(cell) if isinstance(cell, bool) else ""
    try:
        number = float(cell)
    except (OverflowError, ValueError):  # an int beyond floats, a signalling NaN
        return ""
    return repr(number).removesuffix(".0") if isfinite(number) else ""


def _composed(text: str) -> str:
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def encode_category(cell: object, listed: Sequence[str]) -> list[float]:
    """Return the code of a cell's text, its indicators and the code again; all NaN if it is none of the categories."""
    return encode_text(text_of(cell), listed)


def encode_text(category: str, listed: Sequence[str]) -> list[float]:
    """Return the numbers of a category, as `encode_category` does of a cell with this `text_of`."""
    if category not in listed:
        return [nan] * (2 + len(listed))
    code = float(listed.index(category))
    return [code, *(float(other == category) for other in listed), code]
