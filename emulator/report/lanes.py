"""Lanes of time: what lasted from when to when, and what happened at a moment, lane above lane on one scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element

from emulator.report.figures import count
from emulator.report.markup import LABEL_MAX, chart_row, element
from emulator.report.plot import linear_ticks

LANES_MAX = 40
MARKS_MAX = 2_000


class Piece(NamedTuple):
    """What lasted: from, to, a colour of the palette (0 to 5), and what a pointer shows."""

    begin: float
    end: float
    tone: int
    title: str


class Mark(NamedTuple):
    """What happened at a moment."""

    at: float
    tone: int
    title: str


class Lane(NamedTuple):
    """One lane; `text` stands at its end."""

    label: str
    pieces: Sequence[Piece] = ()
    marks: Sequence[Mark] = ()
    text: str = ""


def lanes(
    rows: Sequence[Lane], end: float, say: Callable[[float], str], *, caption: str, legend: Sequence[tuple[str, int]]
) -> Element:
    """A chart of lanes from 0 to `end`.

    Args:
        say: a tick in words. legend: what the colours mean.
    """
    span = end if end > 0 else 1.0
    ticks = linear_ticks(0.0, span)
    drawn = [_lane(row, span, ticks) for row in rows[:LANES_MAX]]
    more = f" {count(len(rows) - LANES_MAX)} more lanes are not shown." if len(rows) > LANES_MAX else ""
    return element(
        "figure",
        element("div", *drawn, _axis(span, ticks, say), class_="lanes"),
        _legend(legend) if legend else None,
        element("figcaption", caption + more),
        class_="chart",
    )


def _lane(row: Lane, span: float, ticks: Sequence[float]) -> Element:
    drawn = element("svg", element("rect", class_="track", width="100%", height="100%"), class_="lane", role="img")
    drawn.set("aria-label", f"{row.label[:LABEL_MAX]} {row.text[:LABEL_MAX]}")
    for tick in ticks:
        drawn.append(element("line", class_="grid", x1=_at(tick, span), x2=_at(tick, span), y1="0", y2="100%"))
    for piece in row.pieces[:MARKS_MAX]:
        drawn.append(_piece(piece, span))
    for mark in row.marks[:MARKS_MAX]:
        drawn.append(_mark(mark, span))
    return chart_row(row.label, drawn, row.text)


def _piece(piece: Piece, span: float) -> Element:
    length = max(min(piece.end, span) - piece.begin, 0.0)
    width, x = f"{100 * length / span:.3f}%", _at(piece.begin, span)
    return element(
        "rect", element("title", piece.title), class_=f"fill t{piece.tone}", x=x, width=width, y="15%", height="70%"
    )


def _mark(mark: Mark, span: float) -> Element:
    x = _at(mark.at, span)
    return element("line", element("title", mark.title), class_=f"mark t{mark.tone}", x1=x, x2=x, y1="5%", y2="95%")


def _axis(span: float, ticks: Sequence[float], say: Callable[[float], str]) -> Element:
    """The ticks' words below the lanes; those at the ends do not stick out."""
    drawn = element("svg", class_="axis", aria_hidden="true")
    for tick in ticks:
        part = tick / span
        anchor = "start" if part < 0.05 else "end" if part > 0.95 else "middle"
        drawn.append(element("text", say(tick), class_="tick", x=_at(tick, span), y="14", text_anchor=anchor))
    return element("div", element("span", class_="label"), drawn, element("span", class_="value"), class_="row")


def _legend(entries: Sequence[tuple[str, int]]) -> Element:
    items = [
        element(
            "li",
            element("svg", element("rect", class_=f"fill t{tone}", width="100%", height="100%"), class_="key"),
            label,
        )
        for label, tone in entries
    ]
    return element("ul", *items, class_="legend")


def _at(value: float, span: float) -> str:
    return f"{100 * min(max(value / span, 0.0), 1.0):.3f}%"
