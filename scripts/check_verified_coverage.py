#!/usr/bin/env python
"""Intervals of the same jobs on the same data, from plain and from verified sums: how often they hold the truth.

For each job and number of clients, R data sets are drawn. Each is learned at ε = 1 over the ideal functionality, once
from secure sums and once from verified ones. The truth is that of the distribution, so intervals answer for chance,
too. The figures of a job count together. Both kinds must hold equally often: exit code 4 if the shares of data sets
differ by more than 3.5 standard errors of their difference. By chance, that happens in 1 run of 130 (16 comparisons).

Examples:

    scripts/check_verified_coverage.py                200 data sets a cell: 8 CPU minutes
    scripts/check_verified_coverage.py --repeats 20 --json -
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from dca_proto import JobTerms
from dca_proto.runtime.files import write_json
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.jobs import find
from inference.jobs.base import Conditions
from inference.posterior import Posterior
from inference.problem import Problem, Schema
from inference.rounds import run

FAULT, FAR = 4, 3.5
CLIENTS, LEVELS, EPSILON, DELTA = (100, 1_000), (0.90, 0.95), 1.0, 1e-5
SHARES = (0.4, 0.3, 0.2, 0.1)
SPREAD, BOUND = 1.0, 4.0
"""Of a normal column, and its public bounds on both sides."""
Rng = np.random.Generator


class Job(NamedTuple):
    """A job with settings, how its data are drawn, and the true values of its parameters' draws."""

    name: str
    settings: Mapping[str, Any]
    drawn: Callable[[Rng, int], Problem]
    truths: Mapping[str, float]


def _normal(rng: Rng, n: int) -> Problem:
    y = rng.normal(0.5, SPREAD, n).clip(-BOUND, BOUND)
    return _problem(np.zeros((n, 1)), y, Interval(-BOUND, BOUND))


def _classes(rng: Rng, n: int) -> Problem:
    return _problem(np.zeros((n, 1)), rng.choice(len(SHARES), n, p=SHARES) + 0.0, Interval(0, len(SHARES) - 1))


def _line(rng: Rng, n: int) -> Problem:
    x = rng.uniform(-BOUND, BOUND, (n, 1))
    return _problem(x, x[:, 0] + rng.normal(0, SPREAD, n).clip(-BOUND, BOUND), Interval(-2 * BOUND, 2 * BOUND))


def _problem(x: np.ndarray, y: np.ndarray, ends: Interval) -> Problem:
    return Problem("made", Schema(("x",), "y", {"x": Interval(-BOUND, BOUND), "y": ends}), x, y)


QUARTILE = 0.6745 * SPREAD
JOBS = (
    Job("gaussian", {"column": "y"}, _normal, {"mean of y": 0.5}),
    Job("categorical", {"column": "y"}, _classes, {f"share of y = {at}": share for at, share in enumerate(SHARES)}),
    Job("describe", {}, _normal, {
        "mean of y": 0.5, "lower quartile of y": 0.5 - QUARTILE, "upper quartile of y": 0.5 + QUARTILE,
    }),
    Job("regression", {}, _line, {"x": 1.0}),
)  # fmt: skip


class Cell(NamedTuple):
    """How often intervals of a level hold, over data sets: the mean share of a job's figures, and its variance."""

    job: str
    clients: int
    level: float
    verified: bool
    held: float
    variance: float
    width: float
    repeats: int

    @property
    def error(self) -> float:
        return math.sqrt(self.variance / self.repeats)


def fitted(job: Job, data: Problem, seed: int, *, verified: bool) -> Posterior:
    """Learn from a data set."""
    learning, n = find(job.name), len(data.y)
    settings = learning.settings(**job.settings)
    terms = JobTerms(
        epsilon=EPSILON, delta=DELTA, clients=n, tolerate=n // 10, computes=(b"a", b"b"), verified=verified
    )
    known = Conditions(n, n // 10, 1.0, np.random.default_rng(seed))
    released = run(learning.make(data.schema, settings, known), IdealSwarm(data.rows, data.schema.columns, terms))
    posterior: Posterior = learning.finish(released, data.schema, settings, known)
    return posterior


class Task(NamedTuple):
    """One data set."""

    job: int
    clients: int
    seed: int


Held = dict[tuple[bool, float], tuple[float, float]]
"""By kind and level: the share of a data set's intervals that hold, and their mean width."""


def measured(task: Task) -> Held:
    """Learn one data set both ways."""
    job = JOBS[task.job]
    data = job.drawn(np.random.default_rng([task.job, task.clients, task.seed]), task.clients)
    found: Held = {}
    for verified in (False, True):
        posterior = fitted(job, data, task.seed, verified=verified)
        draws = _draws(posterior, job)
        for level in LEVELS:
            ends = {name: np.quantile(values, [(1 - level) / 2, (1 + level) / 2]) for name, values in draws.items()}
            held = np.mean([low <= job.truths[name] <= high for name, (low, high) in ends.items()])
            found[verified, level] = float(held), float(np.mean([high - low for low, high in ends.values()]))
    return found


def _draws(posterior: Posterior, job: Job) -> dict[str, np.ndarray]:
    """Return the draws of each figure with a known truth, by its name."""
    found = {}
    for name, array in posterior.draws.items():
        flat = array.reshape(-1, *array.shape[2:])
        labels = {"mean": ["mean of y"], "theta": [f"share of y = {at}" for at in range(len(SHARES))]}.get(name)
        if labels is None:
            labels = [str(label) for label in posterior.coords.get("figure" if name == "table" else "feature", ())]
        if flat.ndim == 1 or flat.shape[1] == len(labels):
            found |= dict(zip(labels, flat.reshape(len(flat), -1).T, strict=False))
    return {name: found[name] for name in job.truths}


def cells_of(job: int, clients: int, found: list[Held]) -> list[Cell]:
    """Return the cells of a job and a number of clients, from its data sets."""
    cells = []
    for verified in (False, True):
        for level in LEVELS:
            held, widths = zip(*(one[verified, level] for one in found), strict=True)
            about = (JOBS[job].name, clients, level, verified)
            cells.append(Cell(*about, float(np.mean(held)), float(np.var(held)), float(np.median(widths)), len(held)))
    return cells


def far_apart(plain: Cell, verified: Cell) -> bool:
    """Return True if chance does not explain the difference. The data are the same, which only makes it smaller."""
    error = math.hypot(max(plain.error, _least(plain)), max(verified.error, _least(verified)))
    return abs(plain.held - verified.held) > FAR * error


def _least(cell: Cell) -> float:
    """Return the error of a share of the level, for cells in which all intervals hold."""
    return math.sqrt(cell.level * (1 - cell.level) / cell.repeats) / math.sqrt(len(SHARES))


@cache
def _pairs() -> list[tuple[int, int]]:
    return [(job, clients) for job in range(len(JOBS)) for clients in CLIENTS]


def main(arguments: list[str] | None = None) -> int:
    """Run the check and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=200, help="data sets of each job and number of clients")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--json", help="write the result to a file, or - for stdout")
    options = parser.parse_args(arguments)
    console = Console(stderr=options.json == "-")
    tasks = [Task(job, clients, seed) for job, clients in _pairs() for seed in range(options.repeats)]
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        found = list(track(pool.map(measured, tasks, chunksize=5), "data sets", len(tasks), console=console))
    by_pair = {pair: [one for task, one in zip(tasks, found, strict=True) if (task.job, task.clients) == pair]
               for pair in _pairs()}  # fmt: skip
    cells = [cell for pair, of_pair in by_pair.items() for cell in cells_of(*pair, of_pair)]
    table = Table("job", "clients", "level", "plain", "verified", "ratio of widths")
    wrong = []
    for plain, verified in ((a, b) for a in cells for b in cells if a[:3] == b[:3] and not a.verified and b.verified):
        shares = (f"{100 * one.held:.1f} ± {100 * one.error:.1f} %" for one in (plain, verified))
        name = (plain.job, f"{plain.clients:,}", f"{100 * plain.level:.0f} %")
        table.add_row(*name, *shares, f"{verified.width / plain.width:.2f}")
        wrong += [f"{plain.job}, {name[1]} clients, {name[2]}"] if far_apart(plain, verified) else []
    console.print(table)
    console.print(f"apart: {'; '.join(wrong)}" if wrong else "plain and verified sums have the same coverage")
    write_json([cell._asdict() for cell in cells], options.json)
    return FAULT if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
