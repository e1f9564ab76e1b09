#!/usr/bin/env python
"""Linear regression in two rounds: how often 90 % intervals of its slopes hold the true ones.

Rows are simulated, and rounds are the ideal functionality with the exact noise: two Compute nodes, no dropouts, delta
1e-5. There are three features; the target is linear in them, with normal residuals of variance 1. The true slopes of
standardised features are drawn anew for each release, from a normal law in which the features explain half of the
target on average. That is what the prior expects; of a law that it does not expect nothing is claimed where noise hides
the data. Public bounds are what one would write down: +-5 for normal features, 0 to 100 for log-normal ones, +-30 for
Student's t with 3 degrees of freedom, so that scales and centres have to be found.

Checked, for each kind of features, N and epsilon: the share of intervals that hold the truth, all slopes and releases
together, is 0.85 to 0.95; of the worst slope at least 0.80; each widened by what chance does at 1e-4 in the whole grid.
Where bounds are ten times as wide, up from the lower end, the root mean square error is at most 5 % larger if N·epsilon
is at least 2,000. Below, noise hides centres sooner or later, and the result warns.

    scripts/check_linear_coverage.py                      ten minutes of two cores
    scripts/check_linear_coverage.py --quick --json -     N up to 5,000, few releases: a minute

Exit code 4 where a check fails.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from dca_proto.learning.job import JobTerms
from dca_proto.privacy.budget import Budget
from dca_proto.privacy.rounding import at_least
from emulator.experiments.picture import COLOURS, MARKERS, drawing
from emulator.experiments.runner import Check, add_common_options, finish, main, run_cells, table
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.models.linear.two_rounds import regression_with_projection
from inference.problem import Problem, Schema, stream
from inference.rounds import run

Array = NDArray[np.float64]

KINDS = ("normal", "log-normal", "t3", "collinear")
SIZES, EPSILONS, DELTA = (500, 5_000, 50_000), (0.5, 1.0, 4.0), 1e-5
FEATURES, CORRELATION, REACH = 3, 0.95, 1.6448536269514722
LEAST, MOST, WORST_LEAST, ALARM = 0.85, 0.95, 0.80, 1e-4
WIDER, WIDER_LOSS, WIDER_FROM = 10, 0.05, 2_000
BOUNDS = {"normal": (-5, 5), "log-normal": (0, 100), "t3": (-30, 30), "collinear": (-5, 5)}
TARGET = {"normal": 12, "log-normal": 100, "t3": 60, "collinear": 12}
DEVIATION = {"normal": 1.0, "log-normal": np.sqrt((np.e - 1) * np.e), "t3": np.sqrt(3.0), "collinear": 1.0}
COMPUTES = (bytes([1]) * 16, bytes([2]) * 16)


class Cell(NamedTuple):
    """Releases of one kind of features."""

    kind: str
    n: int
    epsilon: float
    releases: int
    batch: int
    seed: int


def features(kind: str, n: int, rng: np.random.Generator) -> Array:
    """Shape ``(n, FEATURES)``."""
    normal = rng.standard_normal((n, FEATURES))
    if kind == "log-normal":
        return np.exp(normal)
    if kind == "t3":
        return rng.standard_t(3, (n, FEATURES))
    common = rng.standard_normal((n, 1)) if kind == "collinear" else 0.0
    share = CORRELATION if kind == "collinear" else 0.0
    mixed: Array = np.sqrt(1 - share) * normal + np.sqrt(share) * common
    return mixed


def problem(kind: str, n: int, rng: np.random.Generator, wider: float = 1) -> tuple[Problem, Array]:
    """Rows with their schema, and the true slopes."""
    slopes = rng.standard_normal(FEATURES) / np.sqrt(FEATURES) / DEVIATION[kind]
    X = features(kind, n, rng)
    y = X @ slopes + rng.standard_normal(n)
    names = tuple(f"x{j}" for j in range(FEATURES))
    ends = {**dict.fromkeys(names, BOUNDS[kind]), "y": (-TARGET[kind], TARGET[kind])}
    bounds = {name: Interval(low, low + wider * (high - low)) for name, (low, high) in ends.items()}
    return Problem(kind, Schema(names, "y", bounds), X, y), slopes


def fit(rows: Problem, epsilon: float, rng: np.random.Generator) -> Any:
    """The regression with its default settings."""
    terms = JobTerms(budget=Budget(epsilon, DELTA), clients=len(rows.y), tolerated=0, computes=COMPUTES)
    return run(
        regression_with_projection(rows.schema), IdealSwarm(rows.rows, rows.schema.columns, terms, random=rng.bytes)
    )


def work(cell: Cell) -> dict[str, Any]:
    """How often each slope's interval holds it, and errors with bounds as they are and wider."""
    rng = stream(cell.seed, f"{cell.kind}/{cell.n}/{cell.epsilon:g}/{cell.batch}")
    held, off = np.zeros(FEATURES, int), []
    squares: list[float] = []
    wide: list[float] = []
    for _ in range(cell.releases):
        rows, slopes = problem(cell.kind, cell.n, rng)
        result = fit(rows, cell.epsilon, rng)
        z = (result.coefficients - slopes) / result.coefficient_sd
        held += np.abs(z) <= REACH
        off.append(z.tolist())
        if cell.batch == 0:  # wide bounds need fewer releases
            X = features(cell.kind, 1000, rng)
            ends = rows.schema.bounds.items()
            wider = {name: Interval(one.lower, one.lower + WIDER * 2 * one.half_width) for name, one in ends}
            widened = fit(rows.bounded(wider), cell.epsilon, rng)
            for one, errors in ((result, squares), (widened, wide)):
                errors.append(float(1 + np.mean((one.predict(X)[0] - X @ slopes) ** 2)))
    return {**cell._asdict(), "held": held.tolist(), "off": off, "mse": squares, "mse_wider": wide}


def cells(options: argparse.Namespace) -> list[Cell]:
    """In batches, so that all cores are busy to the end."""
    batches, releases = (1, 40) if options.quick else (3, 40)
    sizes = SIZES[:2] if options.quick else SIZES
    grid = [(kind, n, epsilon) for n in sizes for kind in KINDS for epsilon in EPSILONS]
    return [Cell(*one, releases, batch, options.seed) for batch in range(batches) for one in reversed(grid)]


def merged(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One figure for each kind, N and ε."""
    groups: dict[tuple[str, int, float], list[dict[str, Any]]] = {}
    for one in found:
        groups.setdefault((one["kind"], one["n"], one["epsilon"]), []).append(one)
    figures = []
    for (kind, n, epsilon), parts in groups.items():
        releases = sum(one["releases"] for one in parts)
        held = np.sum([one["held"] for one in parts], axis=0)
        exact, wide = (np.concatenate([one[key] for one in parts]) for key in ("mse", "mse_wider"))
        figures.append(
            {
                "kind": kind,
                "n": n,
                "epsilon": epsilon,
                "releases": releases,
                "coverage": float(held.sum() / releases / FEATURES),
                "worst": float(held.min() / releases),
                "spread_of_errors": float(np.std(np.concatenate([one["off"] for one in parts]))),
                "rmse": float(np.sqrt(np.median(exact))),
                "rmse_wider": float(np.sqrt(np.median(wide))),
            }
        )
    return sorted(figures, key=lambda one: (KINDS.index(one["kind"]), one["n"], one["epsilon"]))


def draw(path: Path, figures: list[dict[str, Any]]) -> None:
    """Coverage over N by kind, one panel for each ε."""
    with drawing(path, columns=len(EPSILONS)) as panels:
        for axes, epsilon in zip(panels[0], EPSILONS, strict=True):
            for kind, colour, marker in zip(KINDS, COLOURS, MARKERS, strict=False):
                own = [one for one in figures if (one["kind"], one["epsilon"]) == (kind, epsilon)]
                axes.plot(
                    [one["n"] for one in own], [one["coverage"] for one in own], f"{marker}-", color=colour, label=kind
                )
            axes.axhspan(LEAST, MOST, color="0.9", zorder=0)
            axes.set(xscale="log", xlabel="N", ylim=(0.7, 1.0), title=f"epsilon {at_least(epsilon)}")
        panels[0, 0].set_ylabel("share of 90 % intervals that hold")
        panels[0, 0].legend(frameon=False, fontsize=8)


def check(options: argparse.Namespace) -> int:
    """All cells, table, picture and checks."""
    depends_on = {"delta": DELTA, "features": FEATURES, "correlation": CORRELATION}
    found = run_cells(
        cells(options), work, label="releases", processes=options.processes, resume=options.resume, settings=depends_on
    )
    figures = merged(found)
    heads = ("N", "eps", "releases", "coverage", "worst slope", "sd of z", "RMSE", "10x wider")
    rows = table("90 % intervals of slopes", "features", *heads)
    for one in figures:
        counts = [one["kind"], f"{one['n']:,}", at_least(one["epsilon"]), str(one["releases"])]
        shares = [f"{one[key]:.3f}" for key in ("coverage", "worst", "spread_of_errors")]
        rows.add_row(*counts, *shares, *(f"{one[key]:.3f}" for key in ("rmse", "rmse_wider")))
    if options.plot:
        draw(options.plot, figures)
    return finish({"kind": "check-linear-coverage", "figures": figures}, options, [rows], checks(figures))


def chance(share: float, trials: int, alarm: float, *, above: bool) -> float:
    """The share that is passed with probability ``alarm`` if the true one is ``share``."""
    level = 1 - alarm if above else alarm
    return float(binom.ppf(level, trials, share) / trials)


def checks(figures: list[dict[str, Any]]) -> list[Check]:
    """Of each cell, the worst of all named."""
    each, asked = ALARM / (3 * len(figures)), []
    for name, key, share, above, trials in (
        ("coverage, least", "coverage", LEAST, False, FEATURES),
        ("coverage, largest", "coverage", MOST, True, FEATURES),
        ("worst slope, least", "worst", WORST_LEAST, False, 1),
    ):
        limit = {id(one): chance(share, one["releases"] * trials, each, above=above) for one in figures}
        sign = 1 if above else -1
        worst = max(figures, key=lambda one: sign * (one[key] - limit[id(one)]))
        said = f"{worst[key]:.3f} ({worst['kind']}, N {worst['n']:,}, epsilon {at_least(worst['epsilon'])})"
        wanted = f"{'<=' if above else '>='} {share} (by chance {limit[id(worst)]:.3f})"
        asked.append(Check(name, wanted, said, sign * (worst[key] - limit[id(worst)]) <= 0))
    wider = max(one["rmse_wider"] / one["rmse"] - 1 for one in figures if one["n"] * one["epsilon"] >= WIDER_FROM)
    asked.append(Check("loss from bounds ten times as wide", f"<= {WIDER_LOSS}", f"{wider:.3f}", wider <= WIDER_LOSS))
    return asked


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_options(parser)
    sys.exit(main(check, parser))
