"""Figures of matplotlib on which text is text, whoever wrote it: no mathematics, no TeX, no hidden legend entries."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dca_proto.wording import shown

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
