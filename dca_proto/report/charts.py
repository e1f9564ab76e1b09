"""Draws charts with matplotlib as SVG within the page. Texts stay texts, and colours follow the page's style.

Each chart is drawn twice, wide and narrow, and the style shows one of the two, so that text keeps its size.
matplotlib writes style attributes, which the content security policy forbids: they become presentation attributes. The
colours of `PALETTE` become variables of the page's style, which changes them in dark mode.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar
from xml.etree import ElementTree

from dca_proto import drawing
from dca_proto.drawing import DPI, GRID, INK, PALETTE, ROWS_MAX, TICKS_MAX, WARNING
from dca_proto.report.formats import plain, short

DESK_PX, PHONE_PX = 760, 350
POINTS_MAX, _NAME_MAX = 1_000, 60
_ROW_PX, _AXIS_PX, _LEGEND_PX, _PLOT_PX, _TEXT_PX, _LETTER_PX = 31, 42, 22, 300, 12.5, 7.5
_ACROSS_MAX, _PICTURE_PX = 3, 560  # charts side by side in a picture, and the width of each
_RATIO_MIN = 3.0  # least ratio of a logarithmic axis's ends, so that it has two ticks
_APART = 0.012  # between error bars at one place, as a part of the axis
_TRACK = "#eceff2"
_VARIABLES = {INK: "ink", "#000000": "ink", GRID: "rule", _TRACK: "track"} | {
    colour: f"c{place}" for place, colour in enumerate(PALETTE)
}
_NAMESPACE = "{http://www.w3.org/2000/svg}"
_FONT = {"font", "font-family", "font-style"}
_UNITS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"), (1e-3, "milliseconds"), (1e-6, "microseconds"))
Say = Callable[[float], str]
Point = tuple[float, float]
T = TypeVar("T")


class Chart(NamedTuple):
    """A chart: a caption, a function from its width to its height in pixels, and one that draws it on a figure."""

    caption: str
    height: Callable[[float], float]
    draw: Callable[[Any, float], None]


class Axis(NamedTuple):
    """An axis. Without `low` and `high` it fits the data. `say` formats a tick; `whole` allows only integer ticks."""

    label: str
    log: bool = False
    low: float | None = None
    high: float | None = None
    say: Say = short
    whole: bool = False


class Curve(NamedTuple):
    """A curve, or points, or both.

    Attributes:
        tone: index of a colour in the palette, or -1 for the text colour. line: matplotlib's line style, or "".
        marker: "o", or "s" for hollow squares. spread: (x, low, high) of each error bar.
        filled: whether the area below the curve is filled.
    """

    label: str
    points: Sequence[Point]
    tone: int
    line: Literal["-", "--", ":", ""] = "-"
    marker: Literal["", "o", "s"] = ""
    spread: Sequence[tuple[float, float, float]] = ()
    filled: bool = False


class Panel(NamedTuple):
    """A panel: the label of its axis, its number of rows, the function that draws it, and its title, or ""."""

    unit: str
    rows: int
    draw: Callable[[Any], None]
    title: str = ""


class TimelineRow(NamedTuple):
    """A row of a timeline: periods (from, to, tone) and moments (at, tone)."""

    label: str
    pieces: Sequence[tuple[float, float, int]] = ()
    marks: Sequence[tuple[float, int]] = ()


def lines(series: Sequence[Curve], x: Axis, y: Axis, *, caption: str, square: bool = False) -> Chart:
    """Return a chart of curves and points. A logarithmic axis leaves out values that are not above 0."""
    named = {curve.label for curve in series} - ({y.label} if len(series) == 1 else set())
    if any(len(curve.points) > POINTS_MAX for curve in series):
        caption += f" The first {POINTS_MAX:,} points of each curve."

    def draw(figure: Any, width: float) -> None:
        axes = figure.subplots()
        for curve in _apart(series, x.log):
            _curve(axes, curve, x.log, y.log)
        for axis, wanted, along in ((axes.xaxis, x, "x"), (axes.yaxis, y, "y")):
            _scaled(axes, axis, wanted, along, width)
        axes.grid(color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        if square:
            axes.set_box_aspect(1)
        _legend(figure, axes.get_legend_handles_labels() if named else ([], []), width)

    def height(width: float) -> float:
        drawn = min(width, 460) if square else _PLOT_PX
        return drawn + _AXIS_PX + _legend_px(named, width)

    return Chart(caption, height, draw)


def _apart(series: Sequence[Curve], log: bool) -> list[Curve]:
    """Move curves with error bars a little to either side, so that their bars do not overlap."""
    barred = [curve for curve in series if curve.spread]
    values = [x for curve in barred for x, _ in curve.points if x > 0 or not log]
    if len(barred) < 2 or not values:
        return [*series]
    low, high = min(values), max(values)

    def moved(x: float, by: float) -> float:
        if not log:
            return x + by * (high - low)
        return x * (high / low) ** by if x > 0 else x

    result = []
    for curve in series:
        by = (barred.index(curve) - (len(barred) - 1) / 2) * _APART if curve in barred else 0.0
        points = [(moved(x, by), y) for x, y in curve.points]
        spread = [(moved(x, by), bottom, top) for x, bottom, top in curve.spread]
        result.append(curve._replace(points=points, spread=spread))
    return result


def bars(rows: Sequence[tuple[str, float, str]], *, caption: str, tone: int = 0) -> Chart:
    """Return a bar chart; each row has a label, a length, and the length as text."""
    rows, caption = _first(rows, caption, "bars")

    def draw(figure: Any, width: float) -> None:
        axes = _rows(figure, [label for label, _, _ in rows], width)
        longest = max([length for _, length, _ in rows], default=0.0) or 1.0
        parts = [max(length, 0.0) / longest for _, length, _ in rows]  # so that any length can be drawn
        axes.barh(range(len(rows)), parts, height=0.6, color=PALETTE[tone])
        for place, (part, (_, _, words)) in enumerate(zip(parts, rows, strict=True)):
            axes.text(part + 0.01, place, plain(words, _NAME_MAX), va="center")
        axes.set(xlim=(0, 1.25 if width > PHONE_PX else 1.4), xticks=[])

    return Chart(caption, lambda width: len(rows) * _ROW_PX + 12, draw)


def whole(draw: Callable[[Any], None], names: Sequence[str], *, caption: str) -> Chart:
    """Return a chart of one panel that a function draws; `names` are those in its legend."""

    def drawn(figure: Any, width: float) -> None:
        axes = figure.subplots()
        draw(axes)
        axes.xaxis.set_major_locator(_linear(width))
        axes.set_title(axes.get_ylabel(), loc="left", fontsize=_TEXT_PX)
        axes.set_ylabel("")
        axes.set_xlabel(axes.get_xlabel(), loc="right")
        _legend(figure, axes.get_legend_handles_labels(), width)

    return Chart(caption, lambda width: _PLOT_PX + _AXIS_PX + _legend_px(names, width), drawn)


def panels(parts: Sequence[Panel], names: Sequence[str], *, caption: str) -> Chart:
    """Return a chart of stacked panels, each with a numeric axis.

    Args:
        names: of the marks in a row, for the legend.
    """

    def heights(width: float) -> list[float]:
        return [_panel_px(part, len(names), width) for part in parts]

    def draw(figure: Any, width: float) -> None:
        for axes, part in zip(
            figure.subplots(len(parts), 1, squeeze=False, height_ratios=heights(width))[:, 0], parts, strict=True
        ):
            part.draw(axes)
            axes.set_title(plain(part.title, _NAME_MAX), loc="left", fontsize=_TEXT_PX, fontweight="bold")
            axes.set_xlabel(_wrapped(part.unit, width), loc="right")
            axes.xaxis.set_major_locator(_linear(width))
            axes.xaxis.set_major_formatter(lambda value, _: short(value))
        _legend(figure, axes.get_legend_handles_labels(), width)

    return Chart(caption, lambda width: sum(heights(width)) + _legend_px(names, width), draw)


def timeline(
    lanes: Sequence[TimelineRow], low_s: float, high_s: float, legend: Mapping[str, int], *, caption: str
) -> Chart:
    """Return a timeline from `low_s` to `high_s`; its lanes are in seconds, and clipped to these ends.

    Args:
        legend: tone by name.
    """
    lanes, caption = _first(lanes, caption, "lanes")
    high_s = high_s if high_s > low_s else low_s + 1.0
    factor, unit = next(((factor, unit) for factor, unit in _UNITS if high_s >= 2 * factor), _UNITS[-1])

    def draw(figure: Any, width: float) -> None:
        axes = _rows(figure, [lane.label for lane in lanes], width)
        for place, lane in enumerate(lanes):
            axes.axhspan(place - 0.3, place + 0.3, color=_TRACK, zorder=0)
            for begin, end, tone in lane.pieces[:POINTS_MAX]:
                span = (begin / factor, (end - begin) / factor)
                axes.broken_barh([span], (place - 0.3, 0.6), color=_colour(tone), linewidth=1)
            for at, tone in lane.marks[:POINTS_MAX]:
                axes.plot([at / factor] * 2, [place - 0.38, place + 0.38], color=_colour(tone), linewidth=2)
        axes.set(xlim=(low_s / factor, high_s / factor))
        axes.set_xlabel(unit, loc="right")
        axes.xaxis.set_major_locator(_linear(width))
        axes.xaxis.set_major_formatter(lambda value, _: short(value))
        handles = [axes.barh([0], [0], color=_colour(tone)) for tone in legend.values()]
        _legend(figure, (handles, [*legend]), width)

    return Chart(caption, lambda width: len(lanes) * _ROW_PX + _AXIS_PX + _legend_px(legend, width), draw)


def _first(rows: Sequence[T], caption: str, noun: str) -> tuple[Sequence[T], str]:
    """Return the first rows, and the caption, which states the total if there are more."""
    if len(rows) > ROWS_MAX:
        caption += f" The first {ROWS_MAX} of {len(rows):,} {noun}."
    return rows[:ROWS_MAX], caption


def svg(chart: Chart, width: float, name: str) -> str:
    """Return the SVG element of a chart at a width in pixels; `name` makes the ids in it unique on the page."""
    with drawing.picture(width / 72, chart.height(width) / 72, _style(name)) as figure:
        chart.draw(figure, width)
        text = io.BytesIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _inlined(text.getvalue(), chart.caption)


def picture(charts: Sequence[Chart], path: Path, title: str, warnings: Sequence[str] = ()) -> None:
    """Draw charts side by side, each below its caption, into a file; its suffix selects the format.

    Args:
        warnings: shown below the charts.
    """
    columns = min(len(charts), _ACROSS_MAX)
    rows = math.ceil(len(charts) / columns)
    width, height = _PICTURE_PX, max(chart.height(_PICTURE_PX) for chart in charts) + 60
    with drawing.picture(columns * width / 72, (rows * height + 40) / 72, _style(title)) as figure:
        parts = figure.subfigures(rows, columns, squeeze=False, hspace=0.05, wspace=0.05).flat
        for part, chart in zip(parts, charts, strict=False):
            chart.draw(part, width)
            part.suptitle(_wrapped(chart.caption, width), fontsize=_TEXT_PX)
        figure.suptitle(title, fontsize=1.4 * _TEXT_PX)
        if below := drawing.warning_lines(warnings, int(columns * width / _LETTER_PX)):
            height_in = figure.get_figheight() + 1.4 * _TEXT_PX * len(below) / 72
            figure.set_figheight(height_in)
            figure.supxlabel("\n".join(below), color=WARNING, fontsize=_TEXT_PX)
        figure.savefig(path, dpi=DPI)


def _style(salt: str) -> dict[str, Any]:
    """Return matplotlib's parameters for a page; `salt` makes the ids in an SVG unique."""
    return {
        "svg.fonttype": "none", "svg.hashsalt": salt, "font.size": _TEXT_PX, "axes.spines.top": False,
        "axes.spines.right": False, "axes.labelsize": _TEXT_PX, "axes.edgecolor": GRID, "text.color": INK,
        "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "legend.frameon": False,
        "legend.fontsize": _TEXT_PX, "figure.dpi": 72, "xtick.minor.size": 0,
        "axes.linewidth": 1, "lines.linewidth": 2, "lines.markersize": 6, "xtick.major.pad": 7,
    }  # fmt: skip


def _inlined(text: bytes, caption: str) -> str:
    """Return matplotlib's SVG as an element for a page: no style attributes, no metadata, no unused ids."""
    root = ElementTree.fromstring(text)  # noqa: S314 - our own
    for parent in root.iter():
        for child in [*parent]:
            if child.tag.endswith(("metadata", "}style")):
                parent.remove(child)
    for element in root.iter():
        _restyle(element)
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": plain(caption, 300)}
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)


def _restyle(element: ElementTree.Element) -> None:
    """Turn style attributes into presentation attributes and colours into variables; remove unused ids."""
    element.tag = element.tag.removeprefix(_NAMESPACE)
    for part in filter(None, element.attrib.pop("style", "").split(";")):
        key, _, value = (piece.strip() for piece in part.partition(":"))
        if key == "font":
            element.set("font-size", value.split("px")[0].rpartition(" ")[2])
        elif key not in _FONT:
            element.set(key, value)
    for key in ("fill", "stroke"):
        if (variable := _VARIABLES.get(element.get(key, ""))) is not None:
            element.set(key, f"var(--{variable})")
    if "{http://www.w3.org/1999/xlink}href" in element.attrib:
        element.set("href", element.attrib.pop("{http://www.w3.org/1999/xlink}href"))
    if element.tag in ("g", "svg"):
        element.attrib.pop("id", None)


def _curve(axes: Any, curve: Curve, log_x: bool, log_y: bool) -> None:
    def can_show(x: float, *heights: float) -> bool:
        return (x > 0 or not log_x) and (min(heights) > 0 or not log_y)

    points, colour = [point for point in curve.points[:POINTS_MAX] if can_show(*point)], _colour(curve.tone)
    xs, ys = [x for x, _ in points], [y for _, y in points]
    style: dict[str, Any] = {"color": colour, "linestyle": curve.line or "none", "marker": curve.marker}
    if curve.marker == "s":
        style |= {"markerfacecolor": "none", "markeredgewidth": 1.5}
    axes.plot(xs, ys, label=drawing.name(curve.label), **style)
    if curve.filled:
        axes.fill_between(xs, ys, color=colour, alpha=0.15, linewidth=0)
    for x, low, high in curve.spread[:POINTS_MAX]:
        if can_show(x, low, high):
            axes.plot([x, x], [low, high], color=colour, linewidth=1.5)


def _scaled(axes: Any, axis: Any, wanted: Axis, along: str, width: float) -> None:
    """Set an axis's scale, ends and label, and at least two ticks."""
    from matplotlib.ticker import NullLocator

    ends = getattr(axes, f"set_{along}lim")
    if wanted.log:
        getattr(axes, f"set_{along}scale")("log")
        low, high = getattr(axes, f"get_{along}lim")()
        low, high = (low, high) if high / low > _RATIO_MIN else (low / 1.75, high * 1.75)
        ends(low, high)
        axis.set_ticks(log_ticks(low, high))
    else:
        axis.set_major_locator(_linear(width, whole=wanted.whole))
    if wanted.low is not None or wanted.high is not None:
        ends(wanted.low, wanted.high)
    axis.set_major_formatter(lambda value, _: wanted.say(value))
    axis.set_minor_locator(NullLocator())
    if along == "x":
        axes.set_xlabel(plain(wanted.label, _NAME_MAX), loc="right")
    else:
        axes.set_title(plain(wanted.label, _NAME_MAX), loc="left", fontsize=_TEXT_PX)


def log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten from `low` to `high`, at most `TICKS_MAX`; if fewer than three, also multiples of them."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    powers = [10.0**power for power in range(first, last + 1, max(1, math.ceil((last - first + 1) / TICKS_MAX)))]
    if len(powers) >= 3:
        return powers
    finer = [factor * 10.0**power for power in range(first - 1, last + 1) for factor in (1, 1.5, 2, 3, 5, 7)]
    ticks = [tick for tick in finer if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
    return ticks[:: max(1, math.ceil(len(ticks) / TICKS_MAX))]


def _linear(width: float, *, whole: bool = False) -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=TICKS_MAX if width > PHONE_PX else 4, min_n_ticks=2, integer=whole)


def _colour(tone: int) -> str:
    return INK if tone < 0 else PALETTE[tone % len(PALETTE)]


def _rows(figure: Any, labels: Sequence[str], width: float) -> Any:
    """Return axes with a named row for each label, the first on top; long names take two lines."""
    axes = figure.subplots()
    letters_max = 40 if width > PHONE_PX else 18
    shown = [textwrap.fill(plain(label), letters_max, max_lines=2, placeholder="…") for label in labels]
    axes.set_yticks(range(len(labels)), shown, linespacing=1.15)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    return axes


def _wrapped(unit: str, width: float) -> str:
    return textwrap.fill(plain(unit), int(width / _LETTER_PX))


def _panel_px(part: Panel, marks: int, width: float) -> float:
    """Return the height of a panel: its title, its rows, its ticks, and its unit, which may take several lines."""
    lines = bool(part.title) + _wrapped(part.unit, width).count("\n")
    return part.rows * (10.0 + 13 * marks) + _AXIS_PX + 1.3 * _TEXT_PX * lines


def _columns(names: Collection[str], width: float) -> int:
    """Return how many columns of a legend fit; 60 pixels are for the sample beside each name."""
    return max(1, int(width / (_LETTER_PX * max([min(len(name), _NAME_MAX) for name in names], default=1) + 60)))


def _legend_px(names: Collection[str], width: float) -> float:
    return _LEGEND_PX * math.ceil(len(names) / _columns(names, width)) + 8 if names else 0


def _legend(figure: Any, entries: tuple[Sequence[Any], Sequence[str]], width: float) -> None:
    """Add a legend with each name once; `entries` are samples and names."""
    named = {drawing.name(name): sample for sample, name in zip(*entries, strict=True)}
    if named:
        figure.legend(named.values(), named, loc="outside lower left", ncols=_columns(named, width), handlelength=2)
