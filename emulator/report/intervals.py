"""Estimates with their intervals, two beside each other, each row on a scale of its own since units differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element

from emulator.report.markup import LABEL_MAX, element, plain

ROWS_MAX = 60


class Estimate(NamedTuple):
    """A mean, the ends of an interval about it, and what is said of them."""

    mean: float
    low: float
    high: float
    text: str


class Row(NamedTuple):
    """One quantity, estimated twice; the second estimate may be missing."""

    label: str
    unit: str
    first: Estimate
    second: Estimate | None


def intervals(rows: Sequence[Row], names: tuple[str, str], *, caption: str) -> Element:
    """A chart of intervals.

    Args:
        names: of the two estimates; the second is told where there are any.
    """
    kinds = (False, True) if any(row.second for row in rows) else (False,)
    entries = [element("li", _key(hollow), name) for name, hollow in zip(names, kinds, strict=False)]
    return element(
        "figure",
        element("div", *(_row(row) for row in rows[:ROWS_MAX]), class_="intervals"),
        element("ul", *entries, class_="legend"),
        element("figcaption", caption),
        class_="chart",
    )


def _row(row: Row) -> Element:
    drawn = element("svg", element("rect", class_="track", width="100%", height="100%"), class_="interval", role="img")
    drawn.set("aria-label", f"{row.label[:LABEL_MAX]}: {row.first.text}")
    both = [row.first, *([row.second] if row.second else [])]
    edges = [edge for one in both for edge in (one.low, one.high)]
    low, high = min(0.0, *edges), max(0.0, *edges)
    span = (high - low) * 1.08 or 1.0
    start = (low + high - span) / 2
    zero = f"{100 * (0.0 - start) / span:.3f}%"
    drawn.append(element("line", class_="zero", x1=zero, x2=zero, y1="0", y2="100%"))
    for place, one in enumerate(both):
        for part in _interval(one, start, span, second=place == 1):
            drawn.append(part)
    texts = [element("span", one.text, class_=f"value t{place}") for place, one in enumerate(both)]
    label = element("span", plain(row.label, LABEL_MAX), element("small", row.unit), class_="label")
    return element("div", label, drawn, element("div", *texts, class_="values"), class_="row")


def _interval(one: Estimate, start: float, span: float, *, second: bool) -> list[Element]:
    left, middle, right = (f"{100 * (at - start) / span:.3f}%" for at in (one.low, one.mean, one.high))
    tone, y = ("t1", "70%") if second else ("t0", "30%")
    return [
        element("line", class_=f"spread {tone}", x1=left, x2=right, y1=y, y2=y),
        element("circle", class_=f"{'ring' if second else 'disc'} {tone}", cx=middle, cy=y, r="4.5"),
    ]


def _key(hollow: bool) -> Element:
    tone = "t1" if hollow else "t0"
    return element(
        "svg",
        element("line", class_=f"spread {tone}", x1="0", x2="100%", y1="50%", y2="50%"),
        element("circle", class_=f"{'ring' if hollow else 'disc'} {tone}", cx="50%", cy="50%", r="4"),
        class_="key wide",
        aria_hidden="true",
    )
