"""Tables and lines that follow from what a record's fields declare (`dca_proto.results.figure`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from dca_proto.report.blocks import Line
from dca_proto.report.formats import MIB, UNKNOWN, count, listed, number, seconds, size
from dca_proto.results.figure import Figure, Unit, figures_of

_SECONDS: dict[Unit, float] = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}
_BYTES: dict[Unit, int] = {"bytes": 1, "MiB": MIB}
_LISTED_MAX = 6


def as_text(value: Any, unit: Unit = "") -> str:
    """Return a figure for people, by its type and unit. Of a dictionary, that is the total of its values."""
    if value is None or value == "":
        return UNKNOWN
    if unit in _SECONDS:
        return seconds(value * _SECONDS[unit])
    if unit in _BYTES:
        return size(value * _BYTES[unit])
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return count(value)
        case float():
            return number(value)
        case dict():
            return as_text(sum(value.values()))
        case list() | tuple():
            return listed([as_text(part) for part in value], _LISTED_MAX)
    return str(value)


def columns_of(
    record: Any, table: str, groups: Sequence[Sequence[Any]], *, titles: Mapping[str, str] = {},
    on_page: bool = False,
) -> dict[str, list[str]]:  # fmt: skip
    """Return the columns of a table: by title, a cell for each group of records.

    A column is left out if all its values are the defaults of its field.

    Args:
        record: the type of the records. groups: the records that share a row.
        titles: by name of a field, another title; "" leaves the column out.
        on_page: include the columns of pages.
    """
    defaults = {field.name: field for field in msgspec.structs.fields(record)}
    columns = {}
    for name, figure in figures_of(record).items():
        title = titles.get(name, figure.title)
        if figure.table != table or not title or (figure.page_only and not on_page):
            continue
        rows = [[getattr(one, name) for one in group] for group in groups]
        if all(_is_default(value, defaults.get(name)) for values in rows for value in values):
            continue
        columns[title] = [_cell(values, figure) for values in rows]
    return columns


def lines_of(record: msgspec.Struct, table: str, *, titles: Mapping[str, str] = {}) -> list[Line]:
    """Return a record's figures in a table, each as a title and a text. Those without a value are left out.

    Args:
        titles: as in `columns_of`.
    """
    found = []
    for name, figure in figures_of(type(record)).items():
        value, title = getattr(record, name), titles.get(name, figure.title)
        if figure.table == table and title and value not in (None, "", [], {}):
            found.append((title, as_text(value, figure.unit)))
    return found


def _is_default(value: Any, field: msgspec.structs.FieldInfo | None) -> bool:
    if value is None or field is None or field.default is msgspec.NODEFAULT:
        return value is None or value in ({}, [])
    return bool(value == field.default)


def _cell(values: Iterable[Any], figure: Figure) -> str:
    known: list[Any] = [
        sum(value.values()) if isinstance(value, dict) else value for value in values if value is not None
    ]
    if not known:
        return UNKNOWN
    if isinstance(known[0], str):
        return ", ".join(sorted({*known}))
    if figure.several == "sum":
        return as_text(sum(known), figure.unit)
    low, high = (as_text(end, figure.unit) for end in (min(known), max(known)))
    return low if low == high else f"{low}–{high}"
