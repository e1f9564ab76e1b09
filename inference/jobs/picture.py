"""A forest plot of a summary's estimates: one row each, with the private interval above the one without privacy.

Coefficients share one axis: each is multiplied by a public or private scale of its feature, which the axis names.
Shares have one axis too. An estimate with another unit gets its own panel. LDP reports add a third estimate, without a
model of their noise. Markers differ, too, for grey prints. Estimates that are points of a curve form a panel on top:
steps with bands, above the numbers at risk.

A table of columns has panels for each column: mean and quartiles in its unit, the standard deviation, or the shares of
its codes. How many values there are is left to the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, log10
from pathlib import Path
from typing import Any, NamedTuple

from dca_proto import drawing
from dca_proto.drawing import DPI, GRID, INK, PALETTE, ROWS_MAX, TICKS_MAX, WARNING
from dca_proto.wording import with_minus
from inference.jobs.estimates import (
    COUNTED,
    LOCATIONS,
    UNCOVERED,
    WITHOUT_PRIVACY,
    difference_words,
    interval_words,
    rows_of,
)
from inference.jobs.summary import AtRisk, Row, Standard, Summary, TableCell, estimate_of

WIDTH, HEAD, ROW_HEIGHT, PANEL_HEIGHT = 8.0, 0.7, 0.17, 0.75  # in inches; ROW_HEIGHT per estimate of a row
TITLE_HEIGHT = 0.22  # of a panel's title
LINE_HEIGHT, HEAD_LETTERS, TEXT_LETTERS = 0.2, 78, 110  # of a line of the title and the warnings
CURVES_HEIGHT, RISK_HEIGHT = 3.6, 0.19  # of the panel of curves, and of each line of numbers at risk below it
LAST_STEP = 1.03  # where the last step ends, relative to its begin
RISK_TOP, RISK_LINE, RISK_APART = -0.19, 0.055, 0.13  # in heights of the panel; in widths between numbers
TEXT_SIZE, WARNINGS_LEFT = 8, 0.02  # the latter in widths of the picture
AXIS_MAX = 4.0  # length of a shared axis, in widths of the widest interval on it
TOGETHER = "differences: all intervals hold together"
_OWN: Standard = {"unit": "", "scale": 1.0, "centre": 0.0}


class Kind(NamedTuple):
    """One kind of estimate in a row: its key, and how to draw it."""

    key: str
    label: str
    colour: str
    marker: str


_PRIVATE = Kind("estimate", "private", PALETTE[0], "o")


def plot_estimates(summary: Summary, path: Path, *, title: str, private: bool, caption: str = "") -> Path:
    """Write the picture and return its path.

    Args:
        summary: of a job's result; all of its estimates except the intercept are drawn, at most `ROWS_MAX`.
        path: the file; its suffix chooses the format (png, svg, pdf).
        title: a description of the estimates. private: False if no privacy may be claimed.
        caption: one line below the title, such as the privacy that was spent.
    """
    curved = [row for row in rows_of(summary) if "at" in row]
    (groups, every), kinds = panels_of(summary), kinds_of(summary, private)
    groups = groups or [Panel("", [])]
    warnings = drawing.warning_lines(summary.get("warnings", []), TEXT_LETTERS)
    of = f" ({ROWS_MAX} of {every})" if every > ROWS_MAX else ""
    head = [
        *drawing.wrapped(f"{title}: mean and 95 % interval{of}", HEAD_LETTERS),
        *drawing.wrapped(caption, HEAD_LETTERS),
    ]
    heights = [
        PANEL_HEIGHT + TITLE_HEIGHT * bool(title) + ROW_HEIGHT * (len(kinds) + 0.5) * len(rows)
        for title, rows in groups
    ]
    curves_height = CURVES_HEIGHT + RISK_HEIGHT * (len(summary.get("at_risk", [])) + 1)
    heights = [*([LINE_HEIGHT * len(warnings)] if warnings else []), *([curves_height] if curved else []), *heights]
    with drawing.picture(WIDTH, HEAD + LINE_HEIGHT * len(head) + sum(heights)) as figure:
        panels = list(figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0])
        if warnings:
            _write(panels.pop(0), warnings)
        if curved:
            curves(panels[0], curved, kinds)
            panels[0].legend(fontsize=TEXT_SIZE, frameon=False)
            numbers_at_risk(panels[0], summary.get("at_risk", []))
        for axes, (name, rows) in zip(panels[bool(curved) :], groups, strict=True):
            forest(axes, rows, kinds)
            _beside(axes, rows, kinds)
            axes.set_title(drawing.name(name), loc="left", fontsize=10, fontweight="bold")
        if groups[0].rows:
            figure.legend(*panels[-1].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
        figure.suptitle("\n".join(head), fontsize=12)
        figure.savefig(path, dpi=DPI)
    return path


def _write(axes: Any, warnings: list[str]) -> None:
    axes.set_axis_off()
    from matplotlib.transforms import blended_transform_factory  # heavy

    whole = blended_transform_factory(axes.figure.transFigure, axes.transAxes)  # whatever room names take beside axes
    style = {"color": WARNING, "fontsize": TEXT_SIZE, "va": "top", "transform": whole}
    axes.text(WARNINGS_LEFT, 1, "\n".join(warnings), **style).set_in_layout(False)


def kinds_of(summary: Summary, private: bool) -> list[Kind]:
    """Return the kinds of estimates that the rows have, from top to bottom."""
    known = [_PRIVATE if private else _PRIVATE._replace(label="not private")]
    if naive := summary.get("naive_title"):
        known.append(Kind("naive", naive, PALETTE[2], "D"))
    known.append(Kind("nonprivate", f"{WITHOUT_PRIVACY} ({UNCOVERED})", PALETTE[1], "s"))
    rows = rows_of(summary)
    return [kind for kind in known if any(estimate_of(row, kind.key).mean is not None for row in rows)]


class Panel(NamedTuple):
    """Rows that share an axis, and the panel's title, or ""."""

    title: str
    rows: list[Row]

    @property
    def unit(self) -> str:
        """The unit of the axis."""
        if not self.rows:
            return ""
        return self.rows[0]["standard"]["unit"] if "standard" in self.rows[0] else self.rows[0]["unit"]


def panels_of(summary: Summary) -> tuple[list[Panel], int]:
    """Return the panels of estimates, for a picture and a page, and how many estimates there are; `ROWS_MAX` are drawn.

    The intercept and the points of curves have no place in them, nor has how many values of a column there are. Rows of
    a table are grouped by columns. Others are together if they have the same standard unit, or are neighbours of one
    size.
    """
    rows = [row for row in rows_of({**summary, "intercept": None}) if "at" not in row and row["estimate"] is not None]
    if cells := summary.get("cells", {}):
        rows = [row for row in rows if "standard" in row or cells[row["name"]]["figure"] != COUNTED]
    return (_by_column if cells else _by_size)(rows[:ROWS_MAX], cells), len(rows)


def _by_size(rows: list[Row], cells: Mapping[str, TableCell]) -> list[Panel]:
    groups: dict[object, list[Row]] = {}
    key: object = None
    for place, row in enumerate(rows):
        if "standard" in row:
            key = row["standard"]["unit"]
        elif not (isinstance(key, int) and _fit_one_axis([*groups[key], row])):
            key = place
        groups.setdefault(key, []).append(row)
    return [Panel("", group) for group in groups.values()]


def _by_column(rows: list[Row], cells: Mapping[str, TableCell]) -> list[Panel]:
    """Group a table's rows by column, spreads and differences apart from values; the first panel names the column."""
    panels: dict[tuple[str, str], list[Row]] = {}
    has_groups = len({cell["group"] for cell in cells.values()}) > 1
    for row in rows:
        cell = cells[row["name"]]
        kind = "" if cell["figure"] in LOCATIONS or "standard" in row else cell["figure"]
        name = f"{cell['figure']}, {cell['group']}" if has_groups else cell["figure"]
        if "family" in row:
            kind, name = TOGETHER, difference_words(cell)
        panels.setdefault((cell["column"], kind), []).append({**row, "name": name})
    first = dict(part for part in reversed(panels) if part[1] != TOGETHER)  # the first kind of each column
    return [
        Panel(f"{column}, {kind}" if kind == TOGETHER else column if first[column] == kind else "", group)
        for (column, kind), group in panels.items()
    ]


def _fit_one_axis(rows: list[Row]) -> bool:
    """Return whether the rows have one unit, and the widest interval takes a good part of an axis for all."""
    ends = [row["interval_95"] for row in rows if row["interval_95"] is not None]
    if len(ends) < len(rows) or len({row["unit"] for row in rows}) > 1:
        return False
    whole = max(high for _, high in ends) - min(low for low, _ in ends)
    return whole <= AXIS_MAX * max(high - low for low, high in ends)


def curves(axes: Any, rows: list[Row], kinds: list[Kind]) -> None:
    """Draw each series of points as a curve from 1 at time 0: the first kind with a band, the others dashed.

    Args:
        rows, kinds: as for `forest`.
    """
    for nth, name in enumerate(dict.fromkeys(row["at"]["series"] for row in rows)):
        colour = PALETTE[nth % len(PALETTE)]
        own = [row for row in rows if row["at"]["series"] == name]
        x = [0.0, *(row["at"]["x"] for row in own)]
        x.append(LAST_STEP * x[-1])
        for place, kind in enumerate(kinds):
            line = {"color": colour, "linestyle": "--" if place else "-", "linewidth": 1 if place else 1.8}
            means = [estimate_of(row, kind.key).mean for row in own]
            if None not in means:
                label = drawing.name(f"{name}, {kind.label}")
                axes.plot(x, [1.0, *means, means[-1]], label=label, drawstyle="steps-post", **line)
        low, high = ([1.0, *(row["interval_95"][end] for row in own if row["interval_95"])] for end in (0, 1))
        axes.fill_between(x, [*low, low[-1]], [*high, high[-1]], color=colour, alpha=0.18, linewidth=0, step="post")
    axes.set(ylim=(0, 1.02), xlim=(0, None), ylabel=drawing.name(rows[0].get("standard", _OWN)["unit"]))
    axes.set_xlabel(drawing.name(rows[0]["at"].get("axis", "time")))
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def numbers_at_risk(axes: Any, numbers: list[AtRisk]) -> None:
    """Write each curve's numbers at risk below its axis, with their 95 % interval where noise hides them.

    Times for which there is no room are left out.
    """
    if not numbers:
        return
    top, place = RISK_TOP, axes.get_xaxis_transform()
    end = max(one["x"][-1] for one in numbers)
    style = {"transform": place, "va": "top", "fontsize": TEXT_SIZE, "clip_on": False}
    axes.text(0.0, top, "at risk, with the noise's 95 % interval:" if any(map(any, (one["sd"] for one in numbers)))
              else "at risk:", color="0.3", ha="left", **style)  # fmt: skip
    for nth, one in enumerate(numbers):
        height, last = top - RISK_LINE * (1 + nth), -end
        name = {"color": PALETTE[nth % len(PALETTE)], "ha": "right", **style}
        axes.text(-0.02, height, drawing.name(one["series"], 14), **{**name, "transform": axes.transAxes})
        for x, number, sd in zip(one["x"], one["number"], one["sd"], strict=True):
            if x - last >= RISK_APART * end:
                axes.text(x, height, risk_words(number, sd), **{**name, "ha": "center" if x else "left"})
                last = x


def risk_words(number: float, sd: float) -> str:
    """Format a number at risk: rounded to what its noise allows, as in "410 ± 60"; a number alone without noise."""
    if 1.96 * sd < 0.5:
        return f"{number:,.0f}"
    unit = 10 ** max(floor(log10(1.96 * sd)), 0)
    return f"{round(number / unit) * unit:,d} ± {max(round(1.96 * sd / unit) * unit, 1):,d}"


def forest(axes: Any, rows: list[Row], kinds: list[Kind]) -> None:
    """Draw estimates above each other on one axis, the first on top.

    Args:
        rows: of one unit. kinds: from top to bottom of each row.
    """
    for nth, kind in enumerate(kinds):
        style = {"fmt": kind.marker, "color": kind.colour, "capsize": 2, "markersize": 4.5, "linewidth": 1.5}
        points = _points(rows, kinds, nth)
        spans = [interval or (mean, mean) for _, mean, interval in points]
        means = [mean for _, mean, _ in points]
        ends = [[max(mean - low, 0.0) for mean, (low, _) in zip(means, spans, strict=True)],
                [max(high - mean, 0.0) for mean, (_, high) in zip(means, spans, strict=True)]]  # fmt: skip
        axes.errorbar(means, [height for height, _, _ in points], xerr=ends, label=drawing.name(kind.label), **style)
    for between in range(1, len(rows)):
        axes.axhline(0.5 - between, color=GRID, linewidth=0.8, zorder=0)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    if rows and "standard" in rows[0]:  # zero means no effect, or nobody
        axes.axvline(0, color=INK, linewidth=1.2, linestyle=(0, (1.5, 2)), zorder=1)
    axes.set(yticks=[-place for place in range(len(rows))], yticklabels=[drawing.name(row["name"]) for row in rows])
    axes.set(ylim=(0.5 - max(len(rows), 1), 0.5))
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "left", "right"]].set_visible(False)


def _points(rows: list[Row], kinds: list[Kind], nth: int) -> list[tuple[float, float, list[float] | None]]:
    """Return height, mean and interval of the rows' nth estimate, if known, in units of their axis."""
    height, points = ((len(kinds) - 1) / 2 - nth) / (len(kinds) + 0.5), []
    for place, row in enumerate(rows):
        standard, (value, interval) = row.get("standard", _OWN), estimate_of(row, kinds[nth].key)
        if value is not None:
            mean, *ends = ((x - standard["centre"]) * standard["scale"] for x in (value, *(interval or ())))
            points.append((height - place, mean, ends or None))
    return points


def _beside(axes: Any, rows: list[Row], kinds: list[Kind]) -> None:
    """Write the numbers at the right and the unit, and fit the axis to the estimates of models.

    An estimate without a model may lie anywhere, and would squeeze the others.
    """
    modelled: list[float] = []
    for nth, kind in enumerate(kinds):
        for height, mean, interval in _points(rows, kinds, nth):
            words = with_minus(interval_words(mean, interval, 3))
            place = {"transform": axes.get_yaxis_transform(), "va": "center"}
            axes.text(1.02, height, words, color=kind.colour, fontsize=TEXT_SIZE, **place)
            modelled += [] if kind.key == "naive" else [mean, *(interval or ())]
    if modelled and any(kind.key == "naive" for kind in kinds):
        space = 0.5 * (max(modelled) - min(modelled)) or 1.0
        low, high = axes.get_xlim()
        axes.set_xlim(max(low, min(modelled) - space), min(high, max(modelled) + space))
    axes.locator_params(axis="x", nbins=TICKS_MAX)
    axes.set_xlabel("\n".join(drawing.wrapped(Panel("", rows).unit, HEAD_LETTERS)))
