"""Figures of results: each is one field of a record, with all that a reader of it needs.

    wall_s: Annotated[Amount | None, figure("in all", "From the announcement to the result.", unit="s", table="times")]

From this line follow the JSON schema with its description and unit (`dca schema`), the site's page *Results as JSON*,
and, by `dca_proto.report.tables`, a column or a line of the named table on terminals and pages. To add a figure, add
its field, and compute its value where the record is made. A property whose return type is annotated in this way is
shown in tables, and is not in JSON.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Whole = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e100)]
Real = Annotated[float, msgspec.Meta(ge=-1e100, le=1e100)]
"""Numbers that a page can show. A file with other numbers is refused."""
Unit = Literal["", "s", "ms", "µs", "bytes", "MiB"]
Several = Literal["range", "sum"]


class Metric(NamedTuple):
    """How Prometheus receives a figure (`dca_proto.runtime.metrics`).

    Attributes:
        kind: a counter never falls while a process runs.
        labels: names for the keys of a figure that is a table; a table of tables has two.
        name: without its prefix ``dca_`` and the ending that its unit or kind gives it; by default the field's.
    """

    kind: Literal["gauge", "counter", "histogram"]
    labels: tuple[str, ...] = ()
    name: str = ""


class Figure(NamedTuple):
    """What a field declares about itself, beside its type.

    Attributes:
        title: the head of its column, or the label of its line.
        unit: of a number; it decides the format.
        table: the table that shows it; "" for none. page_only: terminals leave it out.
        several: how one row shows the values of several records: their range, or their sum.
        metric: how Prometheus receives it; None if it does not. help: its description.
    """

    title: str
    unit: Unit = ""
    table: str = ""
    page_only: bool = False
    several: Several = "range"
    metric: Metric | None = None
    help: str = ""


def figure(
    title: str,
    help: str = "",  # noqa: A002 - as options have it
    *,
    unit: Unit = "",
    table: str = "",
    page_only: bool = False,
    several: Several = "range",
    metric: Metric | None = None,
) -> msgspec.Meta:
    """Return the annotation of a figure; `help` is its description, and the others are as in `Figure`."""
    return msgspec.Meta(
        title=title,
        description=help,
        extra_json_schema={"unit": unit} if unit else None,
        extra={"figure": Figure(title, unit, table, page_only, several, metric, help)},
    )


def about(help: str, *, unit: Unit = "") -> msgspec.Meta:  # noqa: A002
    """Return the annotation of a field that no table shows by itself: its description and its unit."""
    return msgspec.Meta(description=help, extra_json_schema={"unit": unit} if unit else None)


@cache
def figures_of(record: Any) -> dict[str, Figure]:
    """Return the figures of a record by name: fields in order, then properties."""
    hints = get_type_hints(record, include_extras=True)
    for name, value in vars(record).items():
        if isinstance(value, property) and value.fget is not None:
            hints[name] = get_type_hints(value.fget, include_extras=True).get("return")
    found = {}
    for name, hint in hints.items():
        for meta in getattr(hint, "__metadata__", ()):
            if isinstance(meta, msgspec.Meta) and meta.extra is not None:
                found[name] = meta.extra["figure"]
    return found
