"""A picture of a summary's estimates: each with its interval, private beside non-private where that is known.

Each estimate has a panel of its own with an axis in its own units, since units differ; only shares, of which the
summary says ``"one_axis": True``, stand above each other on one. What reports say without a model of their noise is a
third estimate. Colours are Okabe and Ito's, which colour-blind people tell apart; markers differ too, so that the
picture survives a grey printer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from inference.jobs.estimates import NAIVE, Row, digits, rows_of

INTERVAL_SDS = 1.96  # 95 % of a normal posterior
ROWS_MAX = 40  # more would be no picture
ROW_HEIGHT, NAIVE_HEIGHT, SHARE_HEIGHT = 1.25, 1.9, 0.55  # in inches: room for the numbers above and below
TICKS_MAX = 6


class _Kind(NamedTuple):
    """One of the estimates that a row has: its key, that of its interval, and how it is drawn."""

    key: str
    interval: str
    label: str
    colour: str
    marker: str


def plot_estimates(summary: Row, path: Path, *, title: str, private: bool, caption: str = "") -> Path:
    """Write the picture and return its path.

    Args:
        summary: of a job's result; all of its estimates but the intercept are drawn, at most `ROWS_MAX`.
        path: where to; the suffix says the format (png, svg, pdf).
        title: what the estimates are. private: False where nothing may be claimed.
        caption: one line below the title, such as the privacy that was spent.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # heavy, and of no use to a device or a server
    from matplotlib.figure import Figure

    rows = rows_of({**summary, "intercept": None})[:ROWS_MAX]
    kinds, count = _kinds(summary, private), max(len(rows), 1)
    one_axis = bool(summary.get("one_axis"))
    each = SHARE_HEIGHT if one_axis else NAIVE_HEIGHT if len(kinds) > 2 else ROW_HEIGHT
    figure = Figure(figsize=(7.2, 1.5 + each * count), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1 if one_axis else count, 1, squeeze=False)[:, 0]
    if one_axis:
        _shares(panels[0], rows, kinds)
    else:
        for axes, row in zip(panels, rows, strict=False):
            _panel(axes, row, kinds)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    heading = f"{title}: mean and 95 % interval"
    figure.suptitle(f"{heading}\n{caption}" if caption else heading, fontsize=12)
    figure.savefig(path, dpi=150)
    return path


def _kinds(summary: Row, private: bool) -> list[_Kind]:
    """What is drawn of each row, from top to bottom."""
    known = [_Kind("estimate", "interval", "private" if private else "not private", "#0072B2", "o")]
    if summary.get(NAIVE):
        known.append(_Kind("naive", "naive_interval", summary[NAIVE], "#009E73", "D"))
    return [*known, _Kind("nonprivate", "nonprivate_interval", "without privacy", "#D55E00", "s")]


def _panel(axes: Any, row: Row, kinds: list[_Kind]) -> None:
    """One estimate: the intervals above each other, and the line of no effect where it is near."""
    apart = 1.0 if len(kinds) == 2 else 1.6  # of three, each has its number above it
    for place, kind in enumerate(kinds):
        if row[kind.key] is None:
            continue
        height, side = apart * (len(kinds) - 1 - place), 1 if place == 0 or len(kinds) > 2 else -1
        text = _drawn(axes, row, kind, height)
        beside = {"xytext": (0, 6 * side), "textcoords": "offset points", "ha": "center"}  # away from the other
        axes.annotate(text, (row[kind.key], height), va="bottom" if side > 0 else "top", **beside)
    axes.axvline(0, color="0.4", linewidth=1, linestyle=":")
    axes.locator_params(axis="x", nbins=TICKS_MAX)
    low, high = (-1.5, 2.5) if len(kinds) == 2 else (-0.8, 4.8)
    axes.set(yticks=[], ylim=(low, high), ylabel=row["name"], xlabel=row["unit"])
    axes.yaxis.label.set(rotation=0, ha="right", va="center", fontweight="bold")
    axes.spines[["top", "left", "right"]].set_visible(False)


def _shares(axes: Any, rows: list[Row], kinds: list[_Kind]) -> None:
    """All estimates above each other on one axis, the first on top."""
    apart = 0.7 / len(kinds)
    for place, row in enumerate(rows):
        for nth, kind in enumerate(kinds):
            if row[kind.key] is not None:
                height = -place + apart * ((len(kinds) - 1) / 2 - nth)
                _drawn(axes, row, kind, height, label=kind.label if place == 0 else None)
    axes.axvline(0, color="0.4", linewidth=1, linestyle=":")
    axes.set(yticks=[-place for place in range(len(rows))], yticklabels=[row["name"] for row in rows], xlabel="share")
    axes.spines[["top", "left", "right"]].set_visible(False)


def _drawn(axes: Any, row: Row, kind: _Kind, height: float, label: str | None = "") -> str:
    """One estimate with its interval, drawn; and it in words."""
    mean = row[kind.key]
    (low, high), text = _interval(mean, row[f"{kind.key}_sd"], row.get(kind.interval))
    style = {"fmt": kind.marker, "color": kind.colour, "capsize": 4, "markersize": 7, "linewidth": 2}
    said = kind.label if label == "" else label
    axes.errorbar(mean, height, xerr=[[mean - low], [high - mean]], label=said, **style)
    return text


def _interval(mean: float, sd: float | None, known: list[float] | None) -> tuple[tuple[float, float], str]:
    """The interval's ends and the estimate in words: a normal one, unless it is known; none of a point."""
    if known is not None:
        low, high = known
        return (min(low, mean), max(high, mean)), f"{digits(mean, 3)} ({digits(low, 3)} to {digits(high, 3)})"
    if sd is None:
        return (mean, mean), digits(mean, 3)
    half = INTERVAL_SDS * sd
    return (mean - half, mean + half), f"{digits(mean, 3)} ± {digits(half, 2)}"
