#!/usr/bin/env python
"""Figure 1(b) of the DCA paper: the extra scaling factor of the noise over the number of clients, for T = 0, 5 and 10.

Curves are the paper's N/(N - T - 1); dots what this library plans and, larger, what it draws. Exit code 4 where a plan
has less noise than the formula, or more by over a thousandth, or where drawn noise is off by five standard errors.

    scripts/figure_1b.py --plot figure_1b.png --json figure_1b.json       a few seconds
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from emulator.experiments.picture import COLOURS, MARKERS, drawing
from emulator.experiments.runner import Check, add_common_options, finish, main, run_cells, table
from papers.dca2017.scaling_factor import (
    CLIENTS_MAX,
    DRAWS,
    FACTOR_MAX,
    MEASURED_AT,
    TOLERATED,
    Factor,
    factors,
    measured,
)

STANDARD_ERROR = (2 / DRAWS) ** 0.5
Cell = tuple[int, int, int]


def work(cell: Cell) -> dict[str, float]:
    clients, tolerated, seed = cell
    return {"clients": clients, "tolerated": tolerated, "measured": measured(clients, tolerated, seed)}


def draw(path: Path, curves: dict[int, list[Factor]], drawn: list[dict[str, float]]) -> None:
    with drawing(path, size=(6.0, 4.5)) as panels:
        axes = panels[0, 0]
        for (tolerated, curve), colour, marker in zip(curves.items(), COLOURS, MARKERS, strict=False):
            clients = [factor.clients for factor in curve]
            axes.plot(clients, [factor.formula for factor in curve], color=colour, label=f"T = {tolerated}")
            axes.plot(clients[::4], [factor.planned for factor in curve][::4], ".", color=colour, markersize=4)
            own = [one for one in drawn if one["tolerated"] == tolerated]
            heights, places = [one["measured"] for one in own], [one["clients"] for one in own]
            axes.plot(places, heights, marker, color=colour, markersize=7, markerfacecolor="none")
        axes.plot([], [], "k.", markersize=4, label="planned")
        axes.plot([], [], "ko", markersize=7, markerfacecolor="none", label="drawn")
        axes.set(xlim=(0, CLIENTS_MAX), ylim=(1, FACTOR_MAX), xlabel="number of clients", ylabel="scaling factor")
        axes.set_title("Noise variance beside a trusted aggregator's: N/(N - T - 1)", fontsize=11)
        axes.legend(title="colluding clients", frameon=False)


def run(options: argparse.Namespace) -> int:
    curves = {tolerated: list(factors(tolerated)) for tolerated in TOLERATED}
    cells = [(n, t, options.seed) for t in TOLERATED for n in MEASURED_AT if n > t + 1]
    drawn = run_cells(cells, work, label="drawing noise", resume=options.resume, processes=options.processes)
    if options.plot:
        draw(options.plot, curves, drawn)
    every = [factor for curve in curves.values() for factor in curve]
    least, most = min(factor.excess for factor in every), max(factor.excess for factor in every)
    off = max(abs(one["measured"] / _formula(one) - 1) / STANDARD_ERROR for one in drawn)
    checks = [
        Check("no plan has less noise than Theorem 1", "excess >= 0", f"{least:.2g}", least >= 0),
        Check("no plan has much more", "excess <= 0.001", f"{most:.2g}", most <= 1e-3),
        Check("drawn noise", "within 5 standard errors", f"{off:.1f}", off <= 5),
    ]
    rows = table("scaling factor of the noise's variance", "clients", *(f"T = {t}" for t in TOLERATED))
    for clients in MEASURED_AT:
        by_t = {factor.tolerated: factor.planned for factor in every if factor.clients == clients}
        rows.add_row(str(clients), *(f"{by_t[t]:.4f}" if t in by_t else "-" for t in TOLERATED))
    figures = {"kind": "figure-1b", "planned": [asdict(factor) for factor in every], "measured": drawn}
    return finish(figures, options, [rows], checks)


def _formula(one: dict[str, float]) -> float:
    return one["clients"] / (one["clients"] - one["tolerated"] - 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_options(parser)
    sys.exit(main(run, parser))
