"""What all pictures share: figures of matplotlib, colours and limits.

Text is text, whoever wrote it: no mathematics, no TeX, no hidden legend entries. So numbers at logarithmic axes are
plain, too: 0.01. `dca_proto.report.charts` draws
charts of pages, `inference.jobs.picture` estimates, and `scripts/papers/picture.py` experiments.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from dca_proto.wording import shown

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#b5568f", "#e69f00", "#56b4e9")
"""The colours of Okabe and Ito (2008), which colour-blind people can distinguish; lines also differ in their dashes."""
INK, GRID, WARNING = "#1b1f24", "#d9dde2", "#b3400a"
ROWS_MAX, TICKS_MAX, DPI = 60, 6, 150  # more rows or ticks would be illegible
_NAME_MAX = 60


@contextmanager
def picture(width: float, height: float, style: dict[str, Any] | None = None) -> Iterator[Any]:
    """Yield a figure of this size in inches. Draw and save it within the block, since some texts are made when saving.

    Args:
        style: further parameters of matplotlib.
    """
    import matplotlib as mpl  # heavy, and useless to a device or a server
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    plain: Any = {"text.parse_math": False, "text.usetex": False, "axes.formatter.use_mathtext": False}
    with mpl.rc_context(plain | (style or {})), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about glyphs that fonts here lack
        made = _figure_kind()(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(made)
        yield made


@cache
def _figure_kind() -> Any:
    """Return a kind of figure whose logarithmic axes have plain numbers instead of matplotlib's formulas."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import Formatter, LogFormatterMathtext

    class Plain(Formatter):
        """The numbers that another formatter of the axis labels."""

        def __init__(self, labelled: Formatter) -> None:
            self.labelled = labelled

        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:,g}" if self.labelled(x, pos) else ""

        def set_locs(self, locs: Any) -> None:
            self.labelled.set_locs(locs)

    class PlainFigure(Figure):
        """Changes the formatters when drawn, since axes may become logarithmic at any time before."""

        def draw(self, renderer: Any) -> None:
            for axis in (one for axes in self.axes for one in (axes.xaxis, axes.yaxis)):
                for get, change in (
                    (axis.get_major_formatter, axis.set_major_formatter),
                    (axis.get_minor_formatter, axis.set_minor_formatter),
                ):
                    if isinstance(given := get(), LogFormatterMathtext):
                        change(Plain(given))
            super().draw(renderer)

    return PlainFigure


def name(text: str, longest: int = _NAME_MAX) -> str:
    """Return a text from users for a figure: printable, in one line, cut if it is long.

    A space goes before an underscore at the start, because matplotlib leaves such names out of legends.
    """
    line = " ".join(shown(text).split())
    cut = line if len(line) <= longest else f"{line[:longest]}…"
    return f" {cut}" if cut.startswith("_") else cut


def wrapped(text: str, letters: int) -> list[str]:
    """Return the lines of a printable text, each of at most so many letters."""
    return textwrap.wrap(shown(text), letters)


def warning_lines(texts: Iterable[str], letters: int) -> list[str]:
    """Return the lines of these warnings."""
    return [line for text in texts for line in wrapped(f"Warning: {text}.", letters)]
