"""Figures of results: each is one field of a record, with all that a reader of it needs.

    wall_s: Annotated[Amount | None, figure("in all", "From the announcement to the result.", unit="s", table="times")]

From this line follow the JSON schema with its description and unit (`dca schema`), the site's page *Results as JSON*,
and, by `dca_proto.report.tables`, a column or a line of the named table on terminals and pages. To add a figure, add
its field, and compute its value where the record is made; or, if it follows from the record's other fields, name the
function that computes it as `of`. A property whose return type is annotated in this way is shown in tables, and is not
in JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
Computed = Callable[[Any], Any]
"""A function of a record, by which one of its fields follows from the others."""


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

    @property
    def is_since_start(self) -> bool:
        """True if it counts from the start of the process on."""
        return self.kind != "gauge"


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
    of: Computed | None = None,
) -> msgspec.Meta:
    """Return the annotation of a figure.

    Args:
        help: its description. of: the function of the record that computes it, if it follows from other fields.
        title, unit, table, page_only, several, metric: as in `Figure`.
    """
    return msgspec.Meta(
        title=title,
        description=help,
        extra_json_schema={"unit": unit} if unit else None,
        extra={"figure": Figure(title, unit, table, page_only, several, metric, help), "of": of},
    )


def about(help: str, *, unit: Unit = "", of: Computed | None = None) -> msgspec.Meta:  # noqa: A002
    """Return the annotation of a field that no table shows by itself; `of` is as in `figure`."""
    return msgspec.Meta(description=help, extra_json_schema={"unit": unit} if unit else None, extra={"of": of})


def compute_fields(record: msgspec.Struct) -> None:
    """Compute each field with `of` by that function of the others: a record does so when made, changed or read."""
    for name, compute in computed(type(record)).items():
        msgspec.structs.force_setattr(record, name, compute(record))


@cache
def computed(record: Any) -> dict[str, Computed]:
    """Return the functions that compute fields of a record, by name."""
    return {name: extra["of"] for name, extra in _extras(get_type_hints(record, include_extras=True)) if extra["of"]}


@cache
def figures_of(record: Any) -> dict[str, Figure]:
    """Return the figures of a record by name: fields in order, then properties."""
    hints = get_type_hints(record, include_extras=True)
    for name, value in vars(record).items():
        if isinstance(value, property) and value.fget is not None:
            hints[name] = get_type_hints(value.fget, include_extras=True).get("return")
    return {name: extra["figure"] for name, extra in _extras(hints) if "figure" in extra}


def _extras(hints: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what `figure` or `about` has declared of each field."""
    for name, hint in hints.items():
        for meta in getattr(hint, "__metadata__", ()):
            if isinstance(meta, msgspec.Meta) and meta.extra is not None:
                yield name, meta.extra
