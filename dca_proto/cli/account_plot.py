"""A picture of what N and T cost: the factor against a trusted aggregator, and the signal to expect, over N.

Colours are Okabe and Ito's, which colour-blind people can distinguish; markers and dashes differ too, so that the
picture survives a grey printer. The first panel is Figure 1(b) of the DCA paper, from the noise that is really drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from dca_proto.errors import UsageError
from dca_proto.jobs.forecast import forecast
from dca_proto.protocol.trainer.request import AskSecureSum, OpenRound

_STYLES = (("#0072B2", "-"), ("#E69F00", "--"), ("#009E73", "-."), ("#CC79A7", ":"), ("#000000", "-"))
_POINTS = 80
_N_LEAST, _N_SHOWN, _N_MOST = 3, 1000, 1_000_000


class _Curve(NamedTuple):
    """How T follows from N: a fixed number, or a share of N in hundredths."""

    label: str
    fixed: int
    percent: int = 0

    def tolerated(self, clients: int) -> int:
        return self.fixed + clients * self.percent // 100


def plot(rounds: Sequence[OpenRound], path: Path, caption: str) -> None:
    """Write the picture; the suffix says the format (png, svg, pdf).

    Args:
        rounds: of the job; the asked N and T are marked.
        caption: one line below the title.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # heavy, and of no use to other commands
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 2.2 + 2.7 * (1 + len(rounds))), layout="constrained")
    FigureCanvasAgg(figure)
    first, *others = figure.subplots(1 + len(rounds), 1, sharex=True, squeeze=False)[:, 0]
    _panel(first, rounds[0], "scale_factor", "noise variance in the sum,\n× trusted aggregator")
    first.set_ylim(1, max(5.0, 1.15 * forecast(rounds[0]).scale_factor))
    for panel, request in zip(others, rounds, strict=True):
        _panel(panel, request, "signal_to_noise", f"{request.statistic}:\nbound/3 over noise of the mean")
        panel.axhline(1, color="0.5", linewidth=1)
        panel.set_yscale("log")
    others[-1].set_xlabel("N, number of clients")
    handles, labels = first.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(f"What distributing the noise costs, and what signal is left\n{caption}", fontsize=11, wrap=True)
    figure.savefig(path, dpi=150)


def _panel(axes: Any, request: OpenRound, name: str, label: str) -> None:
    """One figure of a `Forecast` over N, a line for each T and a ring at what is asked."""
    assert isinstance(request.ask, AskSecureSum), "an enquiry is about secure sums"
    asked_n, asked_t = request.clients_expected, request.ask.tolerated
    curves = [*(_Curve(f"T = {t}", t) for t in (0, 5, 10)), _Curve("T = 10 % of N", 0, 10)]
    if asked_t not in (0, 5, 10):
        curves.append(_Curve(f"T = {asked_t}, as asked", asked_t))
    most = min(max(_N_SHOWN, 10 * asked_n), _N_MOST)
    clients = sorted({*np.geomspace(_N_LEAST, most, _POINTS).round().astype(int).tolist(), asked_n})
    for curve, (colour, dashes) in zip(curves, _STYLES, strict=False):
        points = [(n, found) for n in clients if (found := _figure(request, n, curve.tolerated(n), name)) is not None]
        axes.plot(*zip(*points, strict=True), color=colour, linestyle=dashes, linewidth=2, label=curve.label)
    axes.plot(
        asked_n, getattr(forecast(request), name), "o", markersize=11, markerfacecolor="none",
        markeredgecolor="#D55E00", markeredgewidth=2.5, label=f"asked: N = {asked_n}, T = {asked_t}",
    )  # fmt: skip
    axes.set(xscale="log", ylabel=label)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _figure(request: OpenRound, clients: int, tolerated: int, name: str) -> float | None:
    """The figure for other N and T, without colluders; None where no round can be held."""
    ask = AskSecureSum(computes=request.ask.computes, tolerated=tolerated)
    try:
        return float(getattr(forecast(msgspec.structs.replace(request, ask=ask, clients_expected=clients)), name))
    except UsageError:
        return None
