"""A picture of a sweep: wall seconds against N with a line for each d, the paper's Table 1 as hollow points, and where
the core seconds go; with a third panel where T or drop rates were swept.

Colours are Okabe and Ito's, which colour-blind people tell apart; markers differ too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emulator.scaling.held import Figures
from emulator.scaling.paper import CLIENTS, COMPUTES, TABLE_1

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osD^vPX"
_PARTS = {"client": "#0072B2", "compute": "#D55E00", "trainer": "#009E73", "emulator": "0.75"}
_NAMES = {"client": "clients", "compute": "Compute nodes", "trainer": "trainer", "emulator": "the emulator's own"}
_BARS_MAX = 16
_Cells = Sequence[Figures]


def plot_scaling(cells: _Cells, path: Path, *, title: str) -> None:
    """Write the picture; the suffix says the format, one of `cli.output.PICTURE_SUFFIXES`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # heavy, and needed here only
    from matplotlib.figure import Figure

    is_swept = len({(one.tolerated / one.clients, one.drop_rate) for one in cells}) > 1 and any(
        one.drop_rate > 0 for one in cells
    )
    panels = 3 if is_swept else 2
    figure = Figure(figsize=(6 * panels, 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    times, parts, *others = figure.subplots(1, panels)
    _times(times, base_cells(cells))
    _parts(parts, base_cells(cells))
    for axes in others:
        _dropouts(axes, cells)
    for axes in (times, parts, *others):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=12, wrap=True)
    figure.savefig(path, dpi=150)


def base_cells(cells: _Cells) -> list[Figures]:
    """Of each N, d and M the cell with the lowest drop rate and, of these, the lowest T."""
    ordered = sorted(cells, key=lambda one: (one.drop_rate, one.tolerated))
    base: dict[tuple[int, int, int], Figures] = {}
    for one in ordered:
        base.setdefault((one.clients, one.dimension, one.computes), one)
    return list(base.values())


def _times(axes: Any, cells: _Cells) -> None:
    series: dict[tuple[int, int], list[Figures]] = {}
    for one in sorted(cells, key=lambda one: (one.dimension, one.computes, one.clients)):
        series.setdefault((one.dimension, one.computes), []).append(one)
    several = len({computes for _, computes in series}) > 1
    dimensions = sorted({dimension for dimension, _ in series})
    for place, ((dimension, computes), row) in enumerate(series.items()):
        colour = _COLOURS[dimensions.index(dimension) % len(_COLOURS)]
        marker, label = _MARKERS[place % len(_MARKERS)], f"d = {dimension:,}" + (f", M = {computes}" if several else "")
        wall = [one.wall_s for one in row]
        reach = [[one.wall_s - one.spread[0] for one in row],
                 [one.spread[1] - one.wall_s for one in row]]  # fmt: skip
        counts = [one.clients for one in row]
        axes.errorbar(counts, wall, yerr=reach, color=colour, marker=marker, capsize=3, label=label)
        if computes == COMPUTES and dimension in TABLE_1:
            axes.plot(CLIENTS, TABLE_1[dimension], color=colour, marker=marker, fillstyle="none", linestyle=":")
    counted = {one.clients for one in cells}
    if any(computes == COMPUTES and dimension in TABLE_1 for dimension, computes in series):
        counted.update(CLIENTS)
        axes.plot([], [], color="0.4", marker="o", fillstyle="none", linestyle=":", label="paper, Table 1 (Spark)")
    axes.set(xscale="log", yscale="log", xlabel="clients N", ylabel="wall seconds of a round")
    axes.minorticks_off()
    axes.set_xticks(sorted(counted), [_short(count) for count in sorted(counted)])
    axes.set_title("time of a round; bars from its shortest to its longest", fontsize=10)
    axes.legend(frameon=False, fontsize=9)


def _parts(axes: Any, cells: _Cells) -> None:
    """Core seconds by role, as parts of the whole."""
    ordered = sorted(cells, key=lambda one: (one.dimension, one.clients, one.computes))[-_BARS_MAX:]
    names = [f"N {_short(one.clients)}, d {_short(one.dimension)}, M {one.computes}" for one in ordered]
    left = [0.0] * len(ordered)
    for role, colour in _PARTS.items():
        shares = [100 * one.core_s_by_role.get(role, 0.0) / math.fsum(one.core_s_by_role.values())
                  for one in ordered]  # fmt: skip
        axes.barh(names, shares, left=left, color=colour, label=_NAMES[role], height=0.7)
        left = [before + share for before, share in zip(left, shares, strict=True)]
    axes.set(xlim=(0, 100), xlabel="% of core seconds")
    axes.set_title("where the time goes", fontsize=10)
    axes.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)


def _dropouts(axes: Any, cells: _Cells) -> None:
    """Rounds that ended with a result against the drop rate, for each T: measured, and the binomial's word."""
    series: dict[float, dict[float, list[Figures]]] = {}
    for one in cells:
        share = round(one.tolerated / one.clients, 3)
        series.setdefault(share, {}).setdefault(one.drop_rate, []).append(one)
    for place, (share, rates) in enumerate(sorted(series.items())):
        colour, marker = _COLOURS[place % len(_COLOURS)], _MARKERS[place % len(_MARKERS)]
        drops = sorted(rates)
        success = [_mean(rates[rate], "success_rate") for rate in drops]
        expected = [_mean(rates[rate], "success_expected") for rate in drops]
        noise = [one.noise_sd / one.noise_sd_ideal for row in rates.values() for one in row
                 if one.noise_sd and one.noise_sd_ideal]  # fmt: skip
        told = f", noise {max(noise):.2f} x ideal" if noise else ""
        percent = [100 * rate for rate in drops]
        axes.plot(percent, success, color=colour, marker=marker, linestyle="", label=f"T = {100 * share:.3g} %{told}")
        axes.plot(percent, expected, color=colour, linestyle=":")
    axes.set(ylim=(-0.05, 1.05), xlabel="drop rate in %", ylabel="rounds with a result (dotted: expected)")
    axes.set_title("what T buys, and what it costs in noise", fontsize=10)
    axes.legend(frameon=False, fontsize=9)


def _mean(cells: _Cells, key: str) -> float:
    return math.fsum(getattr(one, key) for one in cells) / len(cells)


def _short(number: int) -> str:
    return f"{number // 1000}k" if number >= 1000 and number % 1000 == 0 else f"{number:,}"
