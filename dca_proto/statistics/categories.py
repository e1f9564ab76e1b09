"""Text columns as numbers: public lists of categories, never read from the rows.

A column with the categories a, b, c becomes numbers under these names, on a device and in a table on one machine:

    COL      the code of the category: 0, 1, 2, in the order of the list
    COL=a    1 if the category is a, else 0; likewise COL=b and COL=c

A regression takes ``COL=b`` and ``COL=c`` and compares them with the first category. A value that is not in the list is
a missing value, like an empty one.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from math import nan
from typing import TypeAlias

from dca_proto.errors import InputError
from dca_proto.wording import split_list

Categories: TypeAlias = Mapping[str, Sequence[str]]
"""The categories of each text column, in the order of their codes."""
_EXAMPLE = "COL=a,b,c"
_MOST = 1000


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
    for column, listed in categories.items():
        if not 2 <= len(listed) <= _MOST or len(set(listed)) < len(listed):
            raise InputError(
                f"column {column[:80]!r} has {len(listed)} categories, {len(set(listed))} of them different; list from "
                f"2 to {_MOST}, each once, as in {_EXAMPLE}"
            )
        if odd := [text for text in listed if text != text.strip() or not text or not text.isprintable()]:
            raise InputError(f"column {column[:80]!r} has the category {odd[0][:80]!r}; expected a printable text")
    return {column: tuple(listed) for column, listed in categories.items()}


def indicators(column: str, categories: Categories) -> tuple[str, ...]:
    """The names of a column's indicators, in the order of the list."""
    return tuple(f"{column}={category}" for category in categories[column])


def numeric_columns(columns: Iterable[str], categories: Categories) -> tuple[str, ...]:
    """The names of the numbers that these columns become."""
    found: list[str] = []
    for column in columns:
        found += [column, *(indicators(column, categories) if column in categories else ())]
    return tuple(found)


def encode_category(text: str, listed: Sequence[str]) -> list[float]:
    """Return a text's code and indicators; all NaN if it is none of the categories."""
    category = text.strip()
    if category not in listed:
        return [nan] * (1 + len(listed))
    return [float(listed.index(category)), *(float(other == category) for other in listed)]
