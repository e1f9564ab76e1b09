"""Bars beside their labels and values, on one scale from zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element

from emulator.report.figures import count
from emulator.report.markup import chart_row, element

ROWS_MAX = 60


class Bar(NamedTuple):
    """One bar: its label, its length, the length in words, and a colour of the palette (0 to 5)."""

    label: str
    value: float
    text: str
    tone: int = 0


def bars(rows: Sequence[Bar], *, caption: str) -> Element:
    """A chart of bars; `caption` says what it shows, and in which unit."""
    longest = max((row.value for row in rows), default=0.0) or 1.0
    lines = [_line(row, 100 * max(row.value, 0.0) / longest) for row in rows[:ROWS_MAX]]
    more = f" {count(len(rows) - ROWS_MAX)} more are not shown." if len(rows) > ROWS_MAX else ""
    return element(
        "figure", element("div", *lines, class_="bars"), element("figcaption", caption + more), class_="chart"
    )


def _line(row: Bar, length: float) -> Element:
    track = element("rect", class_="track", width="100%", height="100%")
    filled = element("rect", class_=f"fill t{row.tone}", width=f"{length:.3f}%", height="100%")
    drawn = element("svg", track, filled, class_="bar", aria_hidden="true")
    return chart_row(row.label, drawn, row.text)
