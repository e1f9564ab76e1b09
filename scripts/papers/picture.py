"""Figures, colours and legends for all experiments.

The colours are Okabe and Ito's, which colour-blind people can distinguish. Markers and line styles differ too, so that
a figure survives a grey printer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from dca_proto.drawing import DPI, picture
from dca_proto.privacy.rounding import at_least
from papers.runner import unbroken

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY = "0.45"
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK, GREY)
MARKERS = "osD^vPX*"
LEGEND_COLUMNS = 4  # at most
_MARK: ContextVar[str] = ContextVar("mark", default="")


@contextmanager
def marked(words: str) -> Iterator[None]:
    """Put these words above all pictures that are drawn in the block."""
    token = _MARK.set(words)
    try:
        yield
    finally:
        _MARK.reset(token)


@contextmanager
def drawing(
    path: Path, *, rows: int = 1, columns: int = 1, size: tuple[float, float] = (5.0, 4.0), title: str = ""
) -> Iterator[Any]:
    """Yield the panels of a figure, matplotlib axes of shape ``(rows, columns)``; write it when the block ends.

    Args:
        path: the file; its suffix sets the format. size: width and height of one panel in inches.
    """
    with picture(size[0] * columns, size[1] * rows) as made:
        panels = made.subplots(rows, columns, squeeze=False)
        for axes in panels.flat:
            axes.spines[["top", "right"]].set_visible(False)
        if title or _MARK.get():
            made.suptitle("\n".join(filter(None, map(unbroken, (title, _MARK.get())))), fontsize=13, wrap=True)
        yield panels
        made.savefig(path, dpi=DPI)


def zero_line(axes: Any, height: float, label: str = "zero predictor") -> None:
    """Draw the error of a method that uses no data: any method above this line is useless."""
    axes.axhline(height, color=GREY, linestyle=":", linewidth=1.5, label=label, zorder=1)


def epsilon_axis(axes: Any, epsilons: Sequence[float]) -> None:
    """Make the x axis logarithmic, with a tick for each ε."""
    log_ticks(axes, epsilons, [at_least(epsilon) for epsilon in epsilons])


def log_ticks(axes: Any, values: Sequence[float], labels: Sequence[str]) -> None:
    """Make the x axis logarithmic, with these ticks, and minor ones without labels."""
    axes.set_xscale("log")
    axes.set_xticks(values, labels)
    axes.xaxis.set_minor_formatter("")


def legend(panels: Any) -> None:
    """Draw one legend for all panels below them, in as many columns as fit into the figure."""
    handles: dict[str, Any] = {}
    for axes in panels.flat:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    whole, style = panels[0, 0].figure, {"loc": "outside lower center", "frameon": False, "fontsize": 10}
    for columns in range(min(LEGEND_COLUMNS, len(handles)), 0, -1):
        drawn = whole.legend(handles.values(), handles, ncols=columns, **style)
        if columns == 1 or drawn.get_window_extent().width <= whole.bbox.width:
            return
        drawn.remove()
