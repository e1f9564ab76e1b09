#!/usr/bin/env python
"""Correlated noise across the releases of a year beside independent noise, at equal privacy: is it worth building?

A schedule releases T sums, and somebody reads A s: the sums themselves, their running totals, or means of 7 days. The
matrix mechanism adds A C⁻¹ z instead of independent noise, where z is white with a standard deviation of sens(C) =
max ‖C u‖ over all changes u of one client's data (Li et al. 2015; Choquette-Choo et al. 2023, "(Amplified) Banded
Matrix Factorization"). A banded C of width b correlates each noise with the b - 1 before it. The *gain* is the
root-mean-square error of equal independent noise over that of the mechanism.

Table 1: clients take part on every day, so u is any vector within [-1, 1]^T. `scipy` minimises the error over banded C
with entries >= 0, for which sens(C) = ‖C 1‖. No other C does much better: see `bound`.

Table 2: clients' data count on every b-th day only (noise shares come from all, every day). Then running totals gain
much, but a sum holds the data of N/b clients, whose mean has b times the noise. `net` includes that.

Table 3: a part of the clients is missing each day, at random. Their earlier shares are not subtracted.

Examples:

    scripts/compare_noise.py                       a year: a minute
    scripts/compare_noise.py --days 60 --json -    smaller
    scripts/compare_noise.py --plot noise.svg

Exit code 4 if a mechanism gains more than `bound` permits, or less than nothing.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy import optimize

from dca_proto import drawing
from dca_proto.runtime.files import write_json

Matrix = NDArray[np.float64]
FAULT, WORTH = 4, 1.5
BANDS = (2, 8, 32)
APART = (1, 2, 7, 30, 365)
MISSING = (0.0, 0.02, 0.05, 0.1, 0.2)
BAND = 8
NESTEROV = math.pi / 2
_LARGEST = 1e100


class Gain(NamedTuple):
    """Of one workload with clients that take part every day: of the best unequal independent noise, and of bands."""

    workload: str
    unequal: float
    bound: float
    bands: dict[int, float]


def workloads(days: int) -> dict[str, Matrix]:
    """What is read from the daily sums."""
    sliding = np.tril(np.ones((days, days))) - np.tril(np.ones((days, days)), -7)
    return {"daily sums": np.eye(days), "running totals": np.tril(np.ones((days, days))), "7-day sums": sliding}


def unequal_gain(workload: Matrix) -> float:
    """Return the gain of independent noise with the best variance for each day: ∝ 1/‖column‖, as `best_shares`."""
    norms = np.linalg.norm(workload, axis=0)
    return float(math.sqrt(len(norms) * np.sum(norms**2)) / np.sum(norms))


def bound(workload: Matrix) -> float:
    """Return the most that any C can gain if clients take part every day.

    Let M = CᵀC, and D the diagonal matrix of least trace with D - M >= 0. Nesterov (1998): tr D <= π/2 max uᵀMu over u
    in [-1, 1]^T. Independent noise with weights D has the sensitivity √tr D and the error tr(AᵀA D⁻¹) <= tr(AᵀA M⁻¹).
    So the best independent noise is within √(π/2) of every correlated one. Also error >= (nuclear norm of A)², since
    max uᵀMu >= tr M: for A = 1 nothing can be gained.
    """
    nuclear = float(np.linalg.norm(workload, "nuc"))
    by_trace = math.sqrt(workload.shape[1]) * float(np.linalg.norm(workload)) / nuclear
    return min(unequal_gain(workload) * math.sqrt(NESTEROV), by_trace)


def sensitivity_squared(strategy: Matrix, apart: int) -> float:
    """Return max ‖C u‖² for C >= 0, if one client's data count on every `apart`-th day, from some day on."""
    return max(float(np.sum(strategy[:, start::apart].sum(axis=1) ** 2)) for start in range(apart))


def best_banded(workload: Matrix, band: int, apart: int = 1) -> Matrix:
    """Return a banded lower-triangular C >= 0 with a small error; its diagonals are constant.

    If clients take part every day, each column has a scale of its own, too.
    """
    days = workload.shape[1]
    gram = workload.T @ workload
    offsets = np.subtract.outer(np.arange(days), np.arange(days))
    inside, scaled = (offsets >= 0) & (offsets < band), apart == 1

    def strategy(x: Matrix) -> Matrix:
        diagonals = np.concatenate([[1.0], np.exp(x[: band - 1])])
        own = np.where(inside, diagonals[np.clip(offsets, 0, band - 1)], 0.0)
        return np.exp(x[band - 1 :])[None, :] * own if scaled else own

    def objective(x: Matrix) -> tuple[float, Matrix]:
        c = strategy(x)
        inverse = np.linalg.inv(c)
        with np.errstate(all="ignore"):
            error = float(np.sum(inverse * (gram @ inverse)))
        if not error < _LARGEST:  # a strategy whose inverse grows from day to day
            return _LARGEST, np.zeros(len(x))
        starts = [float(np.sum(c[:, start::apart].sum(axis=1) ** 2)) for start in range(apart)]
        worst = int(np.argmax(starts))
        rows = c[:, worst::apart].sum(axis=1)
        by_error = -2 * inverse.T @ gram @ inverse @ inverse.T / error
        by_sens = np.zeros_like(c)
        by_sens[:, worst::apart] = 2 * rows[:, None] / starts[worst]
        gradient = (by_error + by_sens) * c
        by_diagonal = [float(np.sum(gradient[offsets == k])) for k in range(1, band)]
        by_column = gradient.sum(axis=0) if scaled else np.zeros(days)
        return math.log(error) + math.log(starts[worst]), np.concatenate([by_diagonal, by_column])

    start = np.concatenate([np.log(0.5 / np.arange(1, band) ** 1.5 + 1e-3), np.zeros(days)])
    if apart == 1:  # from nearly independent noise
        start[: band - 1] -= 4
    limits = [(-12.0, 0.0)] * (band - 1) + [(-6.0, 6.0)] * days
    settings = {"maxiter": 40}
    found = optimize.minimize(objective, start, jac=True, method="L-BFGS-B", bounds=limits, options=settings)
    return strategy(found.x)


def gain_of(workload: Matrix, strategy: Matrix, apart: int = 1, missing: float = 0.0) -> float:
    """Return the gain of a mechanism over equal independent noise at the same privacy, for the same data.

    With a part of the clients `missing` at random each day, the covariance of the released noise keeps (1 - q)² of what
    a client's shares of two days have in common, and (1 - q) of each day's. Its sensitivity is measured anew: on the
    changes of one client that were the worst before.
    """
    days = workload.shape[1]
    independent = math.sqrt(-(-days // apart)) * float(np.linalg.norm(workload))
    inverse = np.linalg.inv(strategy)
    covariance = inverse @ inverse.T
    if missing:
        kept = 1 - missing
        covariance = kept**2 * covariance + kept * (1 - kept) * np.diag(np.diag(covariance))
        independent *= math.sqrt(kept)
        changes = [np.isin(np.arange(days) % apart, [start]).astype(float) for start in range(apart)]
        square = max(float(u @ np.linalg.solve(covariance, u)) for u in changes)
        independent /= math.sqrt(kept)
        error = math.sqrt(float(np.sum(workload * (workload @ covariance))) * square)
        return independent / error
    error = math.sqrt(float(np.sum(workload * (workload @ covariance))) * sensitivity_squared(strategy, apart))
    return independent / error


def main() -> int:
    """Print the tables, draw the figure, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=365, help="T, 30 or more (default: 365)")
    parser.add_argument("--json", metavar="FILE", help="write the figures; - for stdout")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the figure: png, svg or pdf")
    options = parser.parse_args()
    if not 30 <= options.days <= 2000:
        parser.error("--days: expected 30 to 2000")
    console = Console(stderr=options.json == "-")
    every = [
        Gain(
            name,
            unequal_gain(workload),
            bound(workload),
            {band: gain_of(workload, best_banded(workload, band)) for band in BANDS},
        )
        for name, workload in workloads(options.days).items()
    ]
    totals = workloads(options.days)["running totals"]
    seldom: list[dict[str, Any]] = []
    for apart in [each for each in APART if each <= options.days]:
        strategy = best_banded(totals, BAND, apart)
        gain = gain_of(totals, strategy, apart)
        dropped = {f"{q:g}": gain_of(totals, strategy, apart, q) for q in MISSING}
        seldom.append({"apart": apart, "gain": gain, "net": gain / math.sqrt(apart), "missing": dropped})
    show(console, options.days, every, seldom)
    record = {"kind": "noise", "days": options.days, "every_day": [each._asdict() for each in every], "seldom": seldom}
    write_json(record, options.json)
    if options.plot is not None:
        plot(every, seldom, options.plot)
    sound = all(
        max(each.bands.values()) + 1e-3 >= 1 - 1e-6 and max(each.bands.values()) <= each.bound for each in every
    )
    return 0 if sound else FAULT


def show(console: Console, days: int, every: list[Gain], seldom: list[dict[str, Any]]) -> None:
    """Print the tables."""
    first = Table(title=f"1. gain if clients take part on each of {days} days")
    for column in ("read", "best unequal", *(f"band {band}" for band in BANDS), "bound of any"):
        first.add_column(column)
    for each in every:
        cells = (f"{each.bands[band]:.3f}" for band in BANDS)
        first.add_row(each.workload, f"{each.unequal:.3f}", *cells, f"{each.bound:.3f}")
    console.print(first)
    second = Table(title=f"2. and 3. gain for running totals, band {BAND}, if a client's data count every b-th day")
    for column in ("b", "gain", "net of N/b clients", *(f"{100 * q:g} % missing" for q in MISSING)):
        second.add_column(column)
    for row in seldom:
        cells = (f"{value:.2f}" for value in row["missing"].values())
        second.add_row(f"{row['apart']}", f"{row['gain']:.2f}", f"{row['net']:.2f}", *cells)
    console.print(second)


def plot(every: list[Gain], seldom: list[dict[str, Any]], path: Path) -> None:
    """Draw the gains with the threshold from which it would be worth building."""
    with drawing.picture(8, 3.4) as figure:
        left, right = figure.subplots(1, 2)
        for each, colour, marker in zip(every, drawing.PALETTE, "os^", strict=False):
            left.plot(list(each.bands), list(each.bands.values()), marker=marker, color=colour, label=each.workload)
            left.axhline(each.bound, color=colour, linestyle=":", linewidth=1)
        left.set(xscale="log", xlabel="width of the band, days", ylabel="gain", title="every client, every day")
        left.set_xticks(BANDS, [str(band) for band in BANDS])
        left.legend(frameon=False, fontsize=8, loc="center right", bbox_to_anchor=(1, 0.35))
        apart = [row["apart"] for row in seldom]
        right.plot(apart, [row["gain"] for row in seldom], "o-", color=drawing.PALETTE[0], label="gain")
        right.plot(apart, [row["net"] for row in seldom], "s--", color=drawing.PALETTE[1], label="net of fewer clients")
        right.set(xscale="log", xlabel="days between two days that count", title="running totals")
        right.set_xticks(apart, [str(each) for each in apart])
        right.legend(frameon=False, fontsize=8)
        for axes in (left, right):
            axes.axhline(WORTH, color=drawing.WARNING, linewidth=1)
            axes.grid(color=drawing.GRID, linewidth=0.5)
            axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, dpi=drawing.DPI)


if __name__ == "__main__":
    sys.exit(main())
