#!/usr/bin/env python
"""Efficiency of Theorems 3 and 4 of the DCA paper: error of private against non-private estimates over n, log-log.

The medians' slope is -1 where the theorems hold, while the sampling error beside it falls with -1/2. Exit code 4 where
a slope is off by more than 0.1.

    scripts/efficiency.py --plot efficiency.png --json efficiency.json       both cores, about a minute
    scripts/efficiency.py --quick                                            ten seconds
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dca_proto.privacy.rounding import at_least
from emulator.experiments.picture import COLOURS, GREY, MARKERS, drawing
from emulator.experiments.runner import Check, add_common_options, finish, main, run_cells, table
from papers.dca2017.efficiency import (
    AWARE_NAME,
    DELTA,
    EPSILONS,
    MEAN_NAME,
    MODEL_OF,
    MODELS,
    REGRESSION_NAME,
    Cell,
    Line,
    lines,
    sampling,
    work,
)

SLOPE, TOLERANCE = -1.0, 0.1
SIZES = [round(10 ** (2 + quarter / 4)) for quarter in range(17)]  # 1e2 to 1e6
DATASETS, NOISES = 20, 25
QUICK_SIZES, QUICK_DATASETS = SIZES[::2][:-1], 6  # to 3e5
ERROR_MAX = 10.0  # of the plot: far above, plugged-in coefficients of an indefinite matrix are of no interest
Sampling = tuple[list[int], list[float], float]


def draw(path: Path, found: list[Line], errors: dict[str, Sampling]) -> None:
    titles = {MEAN_NAME: "Theorem 3: mean of a bounded Gaussian", REGRESSION_NAME: "Theorem 4: linear regression"}
    with drawing(path, columns=2, size=(5.5, 4.8)) as panels:
        for axes, (model, title) in zip(panels[0], titles.items(), strict=True):
            n, medians, slope = errors[model]
            axes.plot(n, medians, color=GREY, linestyle=":", label=f"sampling error, slope {slope:.2f}")
            for line in found:
                if MODEL_OF[line.estimator] == model:
                    _curve(axes, line, aware=line.estimator == AWARE_NAME)
            axes.set(xscale="log", yscale="log", xlabel="n", title=title)
            axes.set_ylim(top=ERROR_MAX if model == REGRESSION_NAME else None)
            axes.legend(frameon=False, fontsize=8, loc="lower left")
        panels[0, 0].set_ylabel("‖private - non-private‖₁: median, 10 to 90 %")


def _curve(axes: Any, line: Line, *, aware: bool) -> None:
    """Markers are filled where the slope is fitted; the noise-aware repair is drawn dashed and without its band."""
    place = EPSILONS.index(line.epsilon)
    colour, first = COLOURS[place], line.n.index(line.fitted_from)
    style = {"color": colour, "marker": MARKERS[place], "markersize": 4}
    if aware:
        label = "dashed: noise-aware repair" if place == len(EPSILONS) - 1 else None
        axes.plot(line.n, line.median, color=colour, linestyle="--", linewidth=1, label=label)
        return
    label = f"ε = {at_least(line.epsilon)}, slope {line.slope:.3f}"
    axes.fill_between(line.n, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
    axes.plot(line.n[: first + 1], line.median[: first + 1], markerfacecolor="white", linewidth=1, **style)
    axes.plot(line.n[first:], line.median[first:], label=label, linewidth=1.5, **style)


def run(options: argparse.Namespace) -> int:
    sizes, datasets = (QUICK_SIZES, QUICK_DATASETS) if options.quick else (SIZES, DATASETS)
    cells = [Cell(m, n, k, NOISES, options.seed) for n in reversed(sizes) for m in MODELS for k in range(datasets)]
    results = run_cells(cells, work, label="efficiency", resume=options.resume, processes=options.processes)
    found = lines(results, options.seed)
    errors = {model: sampling(results, model) for model in MODELS}
    if options.plot:
        draw(options.plot, found, errors)
    rows = table(
        f"error of private against non-private estimates, δ = {at_least(DELTA)}",
        "estimator", "ε", "from n", "slope", "95 % interval", "n·error",
    )  # fmt: skip
    for line in found:
        shown = (f"{line.slope:.3f}", f"{line.slope_low:.3f} to {line.slope_high:.3f}", f"{line.constant:.3g}")
        rows.add_row(line.estimator, at_least(line.epsilon), str(line.fitted_from), *shown)
    checks = [
        Check(
            f"{line.estimator}, ε = {at_least(line.epsilon)}",
            f"slope within {TOLERANCE} of {SLOPE:g}",
            f"{line.slope:.3f}",
            abs(line.slope - SLOPE) <= TOLERANCE,
        )
        for line in found
    ]
    known = {model: {"n": n, "median": median, "slope": slope} for model, (n, median, slope) in errors.items()}
    figures = {"kind": "efficiency", "delta": DELTA, "lines": [asdict(line) for line in found], "sampling": known}
    return finish(figures, options, [rows], checks)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_options(parser)
    sys.exit(main(run, parser))
