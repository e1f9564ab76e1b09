#!/usr/bin/env python
"""The table of job `describe`: how often its 95 % intervals hold, on columns as plain and as ugly as real ones.

Each data set has eight columns and two groups, of which one has a tenth of the rows. For each number of clients and ε,
R data sets are drawn and described by group, over the ideal functionality. The truth is that of the distribution, so
intervals answer for chance, too. Figures of which the job warns that noise hides them count as well.

Exit code 4 if the intervals of a kind of figure hold in fewer than 90 % of all cells, or those of a column in fewer
than 85 %.

Examples:

    scripts/check_describe.py                   8 fits a cell: two minutes on two cores
    scripts/check_describe.py --repeats 4 --json -
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from dca_proto import JobTerms
from dca_proto.privacy.rounding import at_least
from dca_proto.runtime.files import write_json
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.jobs import find
from inference.jobs.base import Conditions
from inference.posterior import Posterior
from inference.problem import Problem, Schema
from inference.rounds import run

CLIENTS, EPSILONS, DELTA = (200, 1_000, 10_000), (0.5, 1.0, 4.0), 1e-5
FAULT, LEAST, LEAST_OF_COLUMN = 4, 0.90, 0.85
LARGE, RARE = 400_000, 0.1
CODES = "few,rare,binary"
Rng = np.random.Generator


class Law(NamedTuple):
    """A column: how it is drawn, and its public bounds."""

    draw: Callable[[Rng, int], np.ndarray]
    ends: tuple[float, float]


def _missing(values: np.ndarray, rng: Rng, share: float) -> np.ndarray:
    return np.where(rng.random(len(values)) < share, np.nan, values)


LAWS = {
    "normal": Law(lambda rng, n: rng.normal(20, 3, n), (5, 35)),
    "skewed": Law(lambda rng, n: rng.lognormal(0, 1, n).clip(0, 50), (0, 50)),
    "zeros": Law(lambda rng, n: np.where(rng.random(n) < 0.4, 0.0, rng.gamma(2, 2, n)).clip(0, 30), (0, 30)),
    "years, a third missing": Law(lambda rng, n: _missing(rng.integers(18, 90, n) + 0.0, rng, 1 / 3), (0, 110)),
    "wide bounds": Law(lambda rng, n: rng.normal(20, 3, n), (-500, 1000)),
    "few": Law(lambda rng, n: rng.choice(4, n, p=[0.5, 0.3, 0.15, 0.05]) + 0.0, (0, 3)),
    "rare": Law(lambda rng, n: _missing(rng.choice(3, n, p=[0.99, 0.01, 0.0]) + 0.0, rng, 0.1), (0, 2)),
    "binary": Law(lambda rng, n: (rng.random(n) < 0.3) + 0.0, (0, 1)),
}
FIGURES = ("mean", "sd", "lower quartile", "median", "upper quartile")


def truth_of(name: str) -> dict[str, float]:
    """Return the figures of the distribution, from a large sample; quantiles of discrete ones are its values."""
    x = LAWS[name].draw(np.random.default_rng(7), LARGE)
    x = x[np.isfinite(x)]
    if name in CODES.split(","):
        return {f"{code:g}": float(np.mean(x == code)) for code in range(int(LAWS[name].ends[1]) + 1)}
    return dict(zip(FIGURES, (x.mean(), x.std(), *np.quantile(x, (0.25, 0.5, 0.75))), strict=True))


def drawn(rng: Rng, n: int) -> Problem:
    """Draw n rows."""
    columns = [law.draw(rng, n) for law in LAWS.values()]
    bounds = {name: Interval(*law.ends) for name, law in LAWS.items()} | {"arm": Interval(0, 1)}
    arm = (rng.random(n) < RARE) + 0.0
    return Problem("made", Schema(tuple(LAWS), "arm", bounds), np.column_stack(columns), arm)


def fitted(data: Problem, epsilon: float, seed: int) -> Posterior:
    """Describe the rows by the job."""
    job, n = find("describe"), len(data.y)
    settings = job.settings(group="arm", codes=CODES)
    terms = JobTerms(epsilon=epsilon, delta=DELTA, clients=n, tolerate=n // 10, computes=(b"a", b"b"))
    known = Conditions(n, n // 10, 1.0, np.random.default_rng(seed))
    released = run(job.make(data.schema, settings, known), IdealSwarm(data.rows, data.schema.columns, terms))
    posterior: Posterior = job.finish(released, data.schema, settings, known)
    return posterior


class Counted(NamedTuple):
    """How many intervals of a figure of a column hold, in a cell."""

    clients: int
    epsilon: float
    column: str
    figure: str
    group: str
    held: int
    of: int


def measure(clients: int, epsilon: float, repeats: int, truths: dict[str, dict[str, float]]) -> list[Counted]:
    """Measure one cell."""
    held: dict[tuple[str, str, str], int] = defaultdict(int)
    rng = np.random.default_rng(round(clients * epsilon))
    for seed in range(repeats):
        posterior = fitted(drawn(rng, clients), epsilon, seed)
        cells = posterior.extras()["cells"]
        for one in posterior.estimates():
            cell = cells[one.name]
            truth = truths[cell["column"]].get(cell["figure"])
            if truth is not None and one.marginal.interval is not None:
                low, high = one.marginal.interval
                holds = low - 1e-3 * abs(truth) <= truth <= high * (1 + 1e-3)
                held[cell["column"], cell["figure"], cell["group"]] += int(holds)
            elif truth is not None:
                held[cell["column"], cell["figure"], cell["group"]] += 0
    return [Counted(clients, epsilon, *key, count, repeats) for key, count in held.items()]


def share(cells: list[Counted], **wanted: str) -> float:
    """Return the share of intervals that hold, of the cells with these fields."""
    chosen = [cell for cell in cells if all(getattr(cell, name) == value for name, value in wanted.items())]
    return sum(cell.held for cell in chosen) / max(sum(cell.of for cell in chosen), 1)


def main(arguments: list[str] | None = None) -> int:
    """Run the check and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=8, help="fits a cell")
    parser.add_argument("--json", help="write the result to a file, or - for stdout")
    options = parser.parse_args(arguments)
    console = Console(stderr=options.json == "-")
    truths = {name: truth_of(name) for name in LAWS}
    keys = [(n, epsilon) for n in CLIENTS for epsilon in EPSILONS]
    cells = [cell for key in track(keys, "cells", console=Console(stderr=True))
             for cell in measure(*key, options.repeats, truths)]  # fmt: skip
    table = Table("clients", "ε", *FIGURES, "shares")
    for n, epsilon in keys:
        own = [cell for cell in cells if (cell.clients, cell.epsilon) == (n, epsilon)]
        shares = [cell for cell in own if cell.column in CODES.split(",")]
        table.add_row(f"{n:,}", at_least(epsilon), *(f"{100 * share(own, figure=one):.0f} %" for one in FIGURES),
                      f"{100 * share(shares):.0f} %")  # fmt: skip
    console.print(table)
    by_column = {name: share(cells, column=name) for name in LAWS}
    console.print(", ".join(f"{name} {100 * part:.0f} %" for name, part in by_column.items()))
    low = [name for name in FIGURES if share(cells, figure=name) < LEAST]
    low += [name for name, part in by_column.items() if part < LEAST_OF_COLUMN]
    console.print(f"intervals hold too rarely: {', '.join(low)}" if low else "intervals of all figures hold")
    write_json([cell._asdict() for cell in cells], options.json)
    return FAULT if low else 0


if __name__ == "__main__":
    sys.exit(main())
