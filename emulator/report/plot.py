"""Curves and points over two axes, linear or logarithmic.

The drawing is as wide as the page and as high as the style says. Curves lie in an inner SVG that is stretched to it,
with lines that keep their width; points and texts are placed by percentages, so that they are never stretched. Texts of
the axes lie outside of the drawing, in the figure's padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple
from xml.etree.ElementTree import Element

from emulator.report.figures import short
from emulator.report.markup import element

TICKS_MAX = 6
POINTS_MAX = 1_000
Point = tuple[float, float]


class Axis(NamedTuple):
    """An axis from `low` to `high`; `say` puts a tick into words."""

    label: str
    low: float
    high: float
    log: bool = False
    say: Callable[[float], str] = short

    def place(self, value: float) -> float:
        """From 0 at `low` to 1 at `high`."""
        low, high, here = (math.log10(one) if self.log else one for one in (self.low, self.high, value))
        return (here - low) / (high - low)

    def holds(self, value: float) -> bool:
        """Whether a value lies on it."""
        return self.low <= value <= self.high

    def ticks(self) -> list[float]:
        """Where it is labelled."""
        return log_ticks(self.low, self.high) if self.log else linear_ticks(self.low, self.high)


class Series(NamedTuple):
    """One curve, or points, or both.

    Attributes:
        label: for the legend. points: (x, y). tone: a colour of the palette (0 to 5), or -1 for the text's.
        line: how it is drawn, if at all. points_as: filled or hollow circles, or none.
        spread: (x, low, high), a bar for each. filled: whether the area below is.
        in_legend: whether the legend names it.
    """

    label: str
    points: Sequence[Point]
    tone: int
    line: Literal["solid", "dashed", "dotted"] | None = "solid"
    points_as: Literal["disc", "ring"] | None = None
    spread: Sequence[tuple[float, float, float]] = ()
    filled: bool = False
    in_legend: bool = True


def axis_over(label: str, values: Sequence[float], *, log: bool, say: Callable[[float], str] = short) -> Axis:
    """An axis that holds all values, with a margin; a logarithmic one leaves out what is not above 0."""
    shown = [value for value in values if value > 0] if log else list(values)
    if not shown:
        return Axis(label, 0.1 if log else 0.0, 1.0, log, say)
    low, high = min(shown), max(shown)
    if log:
        margin = max((high / low) ** 0.06, 1.25)
        return Axis(label, low / margin, high * margin, log, say)
    margin = 0.06 * (high - low) or abs(high) or 1.0
    return Axis(label, low - margin, high + margin, log, say)


def linear_ticks(low: float, high: float) -> list[float]:
    """Round numbers from `low` to `high`, at most `TICKS_MAX`."""
    raw = (high - low) / (TICKS_MAX - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [place * step for place in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten from `low` to `high`, at most `TICKS_MAX`; where there are fewer than three, 2 and 5 as well."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    every = max(1, math.ceil((last - first + 1) / TICKS_MAX))
    powers = [10.0**power for power in range(first, last + 1, every)]
    if len(powers) >= 3:
        return powers
    finer = [factor * 10.0**power for power in range(first - 1, last + 1) for factor in (1, 2, 5)]
    found = [tick for tick in finer if low <= tick <= high]
    return found[:: math.ceil(len(found) / TICKS_MAX)] if len(found) >= 2 else linear_ticks(low, high)


def plot(series: Sequence[Series], x: Axis, y: Axis, *, caption: str, square: bool = False) -> Element:
    """A chart; `caption` says what it shows. Points that are on no axis are left out."""
    drawing = element("svg", class_="drawing", role="img")
    drawing.set("aria-label", caption[:300])
    for part in (*_grid(x, y), _curves(series, x, y), *_points(series, x, y)):
        drawing.append(part)
    drawing.append(element("text", y.label, class_="axis-label", x="0", y="0", dx="-8", dy="-14"))
    return element(
        "figure",
        element("div", drawing, element("div", x.label, class_="x-label"), class_="plot square" if square else "plot"),
        element("ul", *(_entry(one) for one in series if one.in_legend), class_="legend"),
        element("figcaption", caption),
        class_="chart",
    )


def _grid(x: Axis, y: Axis) -> list[Element]:
    """The lines of the ticks, and their words."""
    drawn = [element("rect", class_="frame", width="100%", height="100%")]
    for tick in y.ticks():
        at = _percent(1 - y.place(tick))
        drawn.append(element("line", class_="grid", x1="0", x2="100%", y1=at, y2=at))
        drawn.append(element("text", y.say(tick), class_="tick", x="0", y=at, dx="-8", dy="0.35em", text_anchor="end"))
    for tick in x.ticks():
        at = _percent(x.place(tick))
        drawn.append(element("line", class_="grid", x1=at, x2=at, y1="0", y2="100%"))
        drawn.append(element("text", x.say(tick), class_="tick", x=at, y="100%", dy="1.75em", text_anchor="middle"))
    return drawn


def _curves(series: Sequence[Series], x: Axis, y: Axis) -> Element:
    stretched = element(
        "svg", viewBox="0 0 1000 1000", preserveAspectRatio="none", width="100%", height="100%", class_="curves"
    )
    for one in series:
        corners = [(1000 * x.place(a), 1000 * (1 - y.place(b))) for a, b in _shown(one, x, y)]
        if len(corners) < 2:
            continue
        if one.filled:
            corners_down = [(corners[0][0], 1000.0), *corners, (corners[-1][0], 1000.0)]
            stretched.append(element("polygon", points=_text(corners_down), class_=f"area t{one.tone}"))
        if one.line is not None:
            stretched.append(element("polyline", points=_text(corners), class_=f"curve {one.line} t{one.tone}"))
    return stretched


def _points(series: Sequence[Series], x: Axis, y: Axis) -> list[Element]:
    drawn = []
    for one in series:
        for a, low, high in one.spread[:POINTS_MAX]:
            if x.holds(a) and y.holds(low) and y.holds(high):
                at, top, bottom = _percent(x.place(a)), _percent(1 - y.place(high)), _percent(1 - y.place(low))
                drawn.append(element("line", class_=f"spread t{one.tone}", x1=at, x2=at, y1=top, y2=bottom))
        for a, b in _shown(one, x, y) if one.points_as else []:
            said = element("title", f"{one.label}: {x.say(a)}, {y.say(b)}")
            cx, cy = _percent(x.place(a)), _percent(1 - y.place(b))
            drawn.append(element("circle", said, class_=f"{one.points_as} t{one.tone}", r="4.5", cx=cx, cy=cy))
    return drawn


def _entry(one: Series) -> Element:
    """A line of the legend, with a sample of how the curve is drawn."""
    key = element("svg", class_="key wide", aria_hidden="true")
    if one.filled:
        key.append(element("rect", class_=f"area t{one.tone}", width="100%", height="100%"))
    if one.line is not None:
        key.append(element("line", class_=f"curve {one.line} t{one.tone}", x1="0", x2="100%", y1="50%", y2="50%"))
    if one.points_as is not None:
        key.append(element("circle", class_=f"{one.points_as} t{one.tone}", cx="50%", cy="50%", r="4"))
    return element("li", key, one.label)


def _shown(one: Series, x: Axis, y: Axis) -> list[Point]:
    return [(a, b) for a, b in one.points[:POINTS_MAX] if x.holds(a) and y.holds(b)]


def _text(corners: Sequence[Point]) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in corners)


def _percent(part: float) -> str:
    return f"{100 * part:.3f}%"
