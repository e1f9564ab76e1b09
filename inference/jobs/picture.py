"""A picture of a summary's estimates: each with its interval, private beside non-private where that is known.

Each estimate has a row of its own with an axis in its own units, since units differ. Colours are Okabe and Ito's,
which colour-blind people tell apart; markers differ too, so that the picture survives a grey printer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inference.jobs.estimates import Row, digits, rows_of

INTERVAL_SDS = 1.96  # 95 % of a normal posterior
STYLES = (("#0072B2", "o"), ("#D55E00", "s"))
ROWS_MAX = 40  # more would be no picture
ROW_HEIGHT = 1.25  # in inches: room for the numbers above and below
TICKS_MAX = 6


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
    figure = Figure(figsize=(7.2, 1.5 + ROW_HEIGHT * max(len(rows), 1)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(max(len(rows), 1), 1, squeeze=False)[:, 0]
    for axes, row in zip(panels, rows, strict=False):
        _panel(axes, row, "private" if private else "not private")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    heading = f"{title}: mean and 95 % interval"
    figure.suptitle(f"{heading}\n{caption}" if caption else heading, fontsize=12)
    figure.savefig(path, dpi=150)
    return path


def _panel(axes: Any, row: Row, label: str) -> None:
    """One estimate: the intervals above each other, and the line of no effect where it is near."""
    kinds = (("estimate", "interval", label), ("nonprivate", "nonprivate_interval", "without privacy"))
    for height, side, (kind, interval, said), (colour, marker) in zip((1, 0), (1, -1), kinds, STYLES, strict=True):
        mean = row[kind]
        if mean is None:
            continue
        (low, high), text = _interval(mean, row[f"{kind}_sd"], row.get(interval))
        reach = [[mean - low], [high - mean]]
        axes.errorbar(
            mean, height, xerr=reach, fmt=marker, color=colour, label=said, capsize=4, markersize=7, linewidth=2
        )
        place = {"xytext": (0, 6 * side), "textcoords": "offset points", "ha": "center"}  # away from the other
        axes.annotate(text, (mean, height), va="bottom" if side > 0 else "top", **place)
    axes.axvline(0, color="0.4", linewidth=1, linestyle=":")
    axes.locator_params(axis="x", nbins=TICKS_MAX)
    axes.set(yticks=[], ylim=(-1.5, 2.5), ylabel=row["name"], xlabel=row["unit"])
    axes.yaxis.label.set(rotation=0, ha="right", va="center", fontweight="bold")
    axes.spines[["top", "left", "right"]].set_visible(False)


def _interval(mean: float, sd: float | None, known: list[float] | None) -> tuple[tuple[float, float], str]:
    """The interval's ends and the estimate in words: a normal one, unless it is known."""
    if known is None:
        half = INTERVAL_SDS * (sd or 0.0)
        return (mean - half, mean + half), f"{digits(mean, 3)} ± {digits(half, 2)}"
    low, high = known
    return (min(low, mean), max(high, mean)), f"{digits(mean, 3)} ({digits(low, 3)} to {digits(high, 3)})"
