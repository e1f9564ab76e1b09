"""A forest plot of a summary's estimates: a row each, with the private interval above the one without privacy.

Coefficients share one axis: each is multiplied by a scale of its feature that is public or private, and the axis names
it. Shares have one axis too. An estimate in units of its own has a panel of its own. What reports give without a model
of their noise is a third estimate. Colours are Okabe and Ito's, which colour-blind people can distinguish; markers
differ too, so that the picture survives a grey printer. Estimates that are points of a curve stand in a panel above, as
curves with their bands."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from inference.jobs.estimates import UNCOVERED, WITHOUT_PRIVACY, interval_words, rows_of
from inference.jobs.summary import Row, Standard, Summary, estimate_of

ROWS_MAX = 60  # more would be no picture
WIDTH, HEAD, ROW_HEIGHT, PANEL_HEIGHT = 8.0, 1.1, 0.17, 0.75  # in inches; a row's for each of its estimates
CURVES_HEIGHT = 3.6
CURVE_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
TEXT_SIZE = 8
TICKS_MAX = 7
_OWN: Standard = {"unit": "", "scale": 1.0, "centre": 0.0}


class _Kind(NamedTuple):
    """One of the estimates that a row has: its key, and how it is drawn."""

    key: str
    label: str
    colour: str
    marker: str


def plot_estimates(summary: Summary, path: Path, *, title: str, private: bool, caption: str = "") -> Path:
    """Write the picture and return its path.

    Args:
        summary: of a job's result; all of its estimates but the intercept are drawn, at most `ROWS_MAX`.
        path: where to; the suffix says the format (png, svg, pdf).
        title: what the estimates are. private: False where nothing may be claimed.
        caption: one line below the title, such as the privacy that was spent.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # heavy, and of no use to a device or a server
    from matplotlib.figure import Figure

    every = rows_of({**summary, "intercept": None})
    curved = [row for row in every if "at" in row]
    every = [row for row in every if "at" not in row]
    groups, kinds = _groups(every[:ROWS_MAX]), _kinds(summary, private)
    shown = [*every, *curved]
    kinds = [kind for kind in kinds if any(estimate_of(row, kind.key).mean is not None for row in shown)] or kinds[:1]
    heights = [PANEL_HEIGHT + ROW_HEIGHT * (len(kinds) + 0.5) * len(rows) for rows in groups]
    heights = [CURVES_HEIGHT, *heights] if curved else heights
    figure = Figure(figsize=(WIDTH, HEAD + sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0])
    if curved:
        _curves(panels.pop(0), curved, kinds)
    for axes, rows in zip(panels, groups, strict=True):
        _forest(axes, rows, kinds)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    of = f" ({ROWS_MAX} of {len(every)})" if len(every) > ROWS_MAX else ""
    figure.suptitle("\n".join(filter(None, (f"{title}: mean and 95 % interval{of}", caption))), fontsize=12, wrap=True)
    figure.savefig(path, dpi=150)
    return path


def _kinds(summary: Summary, private: bool) -> list[_Kind]:
    """What is drawn of each row, from top to bottom."""
    known = [_Kind("estimate", "private" if private else "not private", "#0072B2", "o")]
    if naive := summary.get("naive_title"):
        known.append(_Kind("naive", naive, "#009E73", "D"))
    return [*known, _Kind("nonprivate", f"{WITHOUT_PRIVACY} ({UNCOVERED})", "#D55E00", "s")]


def _groups(rows: list[Row]) -> list[list[Row]]:
    """The rows of each panel: those of one standard unit together, the others by themselves."""
    groups: dict[object, list[Row]] = {}
    for place, row in enumerate(rows):
        groups.setdefault(row["standard"]["unit"] if "standard" in row else place, []).append(row)
    return list(groups.values()) or [[]]


def _curves(axes: Any, rows: list[Row], kinds: list[_Kind]) -> None:
    """Each series of points as a curve from 1 at 0, its first estimate with a band, the others dashed."""
    for nth, name in enumerate(dict.fromkeys(row["at"]["series"] for row in rows)):
        colour = CURVE_COLOURS[nth % len(CURVE_COLOURS)]
        own = [row for row in rows if row["at"]["series"] == name]
        x = [0.0, *(row["at"]["x"] for row in own)]
        for place, kind in enumerate(kinds):
            line = {"color": colour, "linestyle": "--" if place else "-", "linewidth": 1 if place else 1.8}
            means = [estimate_of(row, kind.key).mean for row in own]
            if None not in means:
                axes.plot(x, [1.0, *means], label=f"{name}, {kind.label}", **line)
        low, high = ([1.0, *(row["interval_95"][end] for row in own if row["interval_95"])] for end in (0, 1))
        axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    axes.set(ylim=(0, 1.02), xlim=(0, None), ylabel=rows[0]["standard"]["unit"], xlabel="time; bands hold pointwise")
    axes.grid(color="0.93", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=TEXT_SIZE, frameon=False)


def _forest(axes: Any, rows: list[Row], kinds: list[_Kind]) -> None:
    """Estimates above each other on one axis, the first on top, each with its numbers at the right."""
    apart = 1 / (len(kinds) + 0.5)
    for nth, kind in enumerate(kinds):
        style = {"fmt": kind.marker, "color": kind.colour, "capsize": 2, "markersize": 4.5, "linewidth": 1.5}
        known = [(place, row) for place, row in enumerate(rows) if estimate_of(row, kind.key).mean is not None]
        points = [_on_axis(row, kind.key) for _, row in known]
        heights = [-place + apart * ((len(kinds) - 1) / 2 - nth) for place, _ in known]
        spans = [(mean, mean) if interval is None else interval for mean, interval in points]
        means = [mean for mean, _ in points]
        ends = [[max(mean - low, 0.0) for mean, (low, _) in zip(means, spans, strict=True)],
                [max(high - mean, 0.0) for mean, (_, high) in zip(means, spans, strict=True)]]  # fmt: skip
        axes.errorbar(means, heights, xerr=ends, label=kind.label, **style)
        for height, (mean, interval) in zip(heights, points, strict=True):
            words = interval_words(mean, interval, 3).replace("-", "−")
            beside = {"transform": axes.get_yaxis_transform(), "va": "center"}
            axes.text(1.02, height, words, color=kind.colour, fontsize=TEXT_SIZE, **beside)
    _keep_to_the_models(axes, rows, kinds)
    for between in range(1, len(rows)):
        axes.axhline(0.5 - between, color="0.85", linewidth=0.8, zorder=0)
    axes.grid(axis="x", color="0.93", linewidth=0.8)
    axes.set_axisbelow(True)
    if rows and "standard" in rows[0]:  # where zero is no effect, or nobody
        axes.axvline(0, color="0.4", linewidth=1, linestyle=":", zorder=1)
    axes.locator_params(axis="x", nbins=TICKS_MAX)
    axes.set(yticks=[-place for place in range(len(rows))], yticklabels=[row["name"] for row in rows])
    axes.set(ylim=(0.5 - max(len(rows), 1), 0.5), xlabel=_unit(rows))
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "left", "right"]].set_visible(False)


def _keep_to_the_models(axes: Any, rows: list[Row], kinds: list[_Kind]) -> None:
    """The axis ends where the estimates of models do: one without a model may lie anywhere, and hides them else."""
    modelled = [_on_axis(row, kind.key) for row in rows for kind in kinds
                if kind.key != "naive" and estimate_of(row, kind.key).mean is not None]  # fmt: skip
    if modelled and any(kind.key == "naive" for kind in kinds):
        ends = [end for mean, interval in modelled for end in (mean, *(interval or ()))]
        space = 0.5 * (max(ends) - min(ends)) or 1.0
        low, high = axes.get_xlim()
        axes.set_xlim(max(low, min(ends) - space), min(high, max(ends) + space))


def _unit(rows: list[Row]) -> str:
    """Of a panel's axis."""
    return str(rows[0]["standard"]["unit"] if "standard" in rows[0] else rows[0]["unit"]) if rows else ""


def _on_axis(row: Row, kind: str) -> tuple[float, list[float] | None]:
    """An estimate and its interval in the units of its axis."""
    standard, (value, interval) = row.get("standard", _OWN), estimate_of(row, kind)
    assert value is not None, "it is drawn"
    mean, *ends = ((one - standard["centre"]) * standard["scale"] for one in (value, *(interval or ())))
    return mean, ends or None
