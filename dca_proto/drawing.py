"""What all pictures share: figures of matplotlib, colours and limits.

Text is text, whoever wrote it: no mathematics, no TeX, no hidden legend entries. `dca_proto.report.charts` draws
charts of pages, `inference.jobs.picture` estimates, and `scripts/papers/picture.py` experiments.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from dca_proto.wording import shown

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#b5568f", "#e69f00", "#56b4e9")
"""The colours of Okabe and Ito (2008), which colour-blind people can distinguish; lines also differ in their dashes."""
INK, GRID, WARNING = "#1b1f24", "#d9dde2", "#b3400a"
ROWS_MAX, TICKS_MAX, DPI = 60, 6, 150  # more rows or ticks would be illegible
_NAME_MAX = 60


@contextmanager
def figure(width: float, height: float, style: dict[str, Any] | None = None) -> Iterator[Any]:
    """Yield a figure of this size in inches. Draw and save it within the block, since some texts are made when saving.

    Args:
        style: further parameters of matplotlib.
    """
    import matplotlib as mpl  # heavy, and useless to a device or a server
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    plain: Any = {"text.parse_math": False, "text.usetex": False, "axes.formatter.use_mathtext": False}
    with mpl.rc_context(plain | (style or {})), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about glyphs that fonts here lack
        made = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(made)
        yield made


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
