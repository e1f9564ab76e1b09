"""A picture of what N and T cost: the factor against a trusted aggregator, and the signal to expect, over N.

Colours are Okabe and Ito's, which colour-blind people tell apart; markers and dashes differ too, so that the picture
survives a grey printer. The first panel is Figure 1(b) of the DCA paper, from the noise that is really drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dca_proto.cli.account_enquiry import asked_otherwise
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
    percent: int

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
    panels = figure.subplots(1 + len(rounds), 1, sharex=True, squeeze=False)[:, 0]
    curves = _curves(_tolerated(rounds[0]))
    clients = _clients(rounds[0].clients_expected)
    _panel(panels[0], rounds[0], curves, clients, "scale_factor", "noise variance in the sum,\n× trusted aggregator")
    for panel, request in zip(panels[1:], rounds, strict=True):
        label = f"{request.statistic}:\nbound/3 over noise of the mean"
        _panel(panel, request, curves, clients, "signal_to_noise", label)
        panel.axhline(1, color="0.5", linewidth=1)
    panels[0].set_ylim(1, max(5.0, 1.15 * forecast(rounds[0]).scale_factor))
    for panel in panels[1:]:
        panel.set_yscale("log")
    panels[-1].set_xlabel("N, number of clients")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(f"What distributing the noise costs, and what signal is left\n{caption}", fontsize=11, wrap=True)
    figure.savefig(path, dpi=150)


def _curves(asked: int) -> list[_Curve]:
    fixed = [_Curve(f"T = {t}", t, 0) for t in (0, 5, 10)]
    curves = [*fixed, _Curve("T = 10 % of N", 0, 10)]
    return curves if asked in (0, 5, 10) else [*curves, _Curve(f"T = {asked}, as asked", asked, 0)]


def _clients(asked: int) -> list[int]:
    """Values of N, evenly spread in their logarithm, the asked one among them."""
    most = min(max(_N_SHOWN, 10 * asked), _N_MOST)
    grid = np.geomspace(_N_LEAST, most, _POINTS).round().astype(int)
    return sorted({*grid.tolist(), asked})


def _panel(axes: Any, request: OpenRound, curves: list[_Curve], clients: list[int], figure: str, label: str) -> None:
    """One figure of a `Forecast` over N, a line for each T and a ring at what is asked."""
    for curve, (colour, dashes) in zip(curves, _STYLES, strict=False):
        points = [(n, found) for n in clients if (found := _figure(request, n, curve.tolerated(n), figure)) is not None]
        axes.plot(*zip(*points, strict=True), color=colour, linestyle=dashes, linewidth=2, label=curve.label)
    n, t = request.clients_expected, _tolerated(request)
    axes.plot(
        n, getattr(forecast(request), figure), "o", markersize=11, markerfacecolor="none",
        markeredgecolor="#D55E00", markeredgewidth=2.5, label=f"asked: N = {n}, T = {t}",
    )  # fmt: skip
    axes.set(xscale="log", ylabel=label)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _figure(request: OpenRound, clients: int, tolerated: int, figure: str) -> float | None:
    """None where no round can be held."""
    try:
        return float(getattr(forecast(asked_otherwise(request, clients, tolerated)), figure))
    except UsageError:
        return None


def _tolerated(request: OpenRound) -> int:
    assert isinstance(request.ask, AskSecureSum), "an enquiry is about secure sums"
    return request.ask.tolerated
