#!/usr/bin/env python
"""Quantiles from one secure sum and from LDP reports: coverage of 95 % intervals, and errors beside a curator's.

For each distribution, number of clients and ε, R data sets are drawn and fitted by the jobs `quantiles` and
`ldp-quantiles` over the ideal functionality. The truth is the quantile of the distribution, so intervals answer for
chance, too. The last columns compare the median with that of OpenDP (`pip install opendp`) at equal ε, which a trusted
curator computes from raw rows by the exponential mechanism on the grid of `quantiles`: mean absolute errors.

Exit code 4 if a quantile's intervals hold in fewer than 88 % of fits, judged over all cells of a distribution and a job
at once: with R = 40, a job that holds 95 % fails once in 10,000 runs.

Examples:

    scripts/check_quantiles.py                  40 fits a cell: seven minutes on one core
    scripts/check_quantiles.py --repeats 10 --json -
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy import optimize, stats

from dca_proto import JobTerms
from dca_proto.privacy.rounding import at_least
from dca_proto.runtime.files import write_json
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.jobs import find
from inference.jobs.base import Conditions
from inference.posterior import Posterior
from inference.problem import Schema
from inference.rounds import run

PROBABILITIES = (0.25, 0.5, 0.75, 0.9)
SUMS, REPORTS = "quantiles", "ldp-quantiles"
CLIENTS = {SUMS: (200, 1_000, 10_000), REPORTS: (1_000, 20_000)}
EPSILONS, DELTA = (0.5, 1.0, 4.0), 1e-5
FAULT, LEAST = 4, 0.88
Rng = np.random.Generator


class Law(NamedTuple):
    """A column: how it is drawn, its quantiles at `PROBABILITIES`, and its public bounds."""

    draw: Callable[[Rng, int], np.ndarray]
    truth: np.ndarray
    ends: tuple[float, float]


def _heaps(p: float) -> float:
    return float(optimize.brentq(lambda t: 0.45 * stats.norm.cdf(t, -5) + 0.55 * stats.norm.cdf(t, 5) - p, -20, 20))


P = np.array(PROBABILITIES)
LAWS = {
    "normal": Law(lambda rng, n: rng.normal(20, 3, n), stats.norm.ppf(P, 20, 3), (5, 35)),
    "skewed": Law(lambda rng, n: rng.lognormal(0, 1, n), stats.lognorm.ppf(P, 1), (0, 50)),
    "zeros": Law(
        lambda rng, n: np.where(rng.random(n) < 0.4, 0.0, rng.gamma(2, 2, n)),
        np.where(P <= 0.4, 0.0, stats.gamma.ppf(np.clip((P - 0.4) / 0.6, 0, 1), 2, scale=2)),
        (0, 30),
    ),
    "whole years": Law(lambda rng, n: rng.integers(18, 90, n).astype(float), 17 + np.ceil(P * 72), (0, 110)),
    "two heaps": Law(
        lambda rng, n: rng.normal(0, 1, n) + np.where(rng.random(n) < 0.45, -5, 5),
        np.array([_heaps(p) for p in PROBABILITIES]),
        (-15, 15),
    ),
    "wide bounds": Law(lambda rng, n: rng.normal(20, 3, n), stats.norm.ppf(P, 20, 3), (-500, 1000)),
}


class Cell(NamedTuple):
    """The figures of one cell: shares of intervals that hold, mean widths, mean absolute errors; OpenDP's median."""

    job: str
    law: str
    clients: int
    epsilon: float
    held: list[float]
    width: list[float]
    error: list[float]
    central: float | None


def fitted(name: str, x: np.ndarray, ends: tuple[float, float], epsilon: float, seed: int) -> Posterior:
    """Fit n values by the job."""
    job, n = find(name), len(x)
    tolerate, computes = (n // 10, (b"a", b"b")) if name == SUMS else (0, ())
    schema = Schema((), "y", {"y": Interval(*ends)}, alone=True)
    settings = job.settings(probabilities=PROBABILITIES)
    terms = JobTerms(epsilon=epsilon, delta=DELTA, clients=n, tolerate=tolerate, computes=computes)
    known = Conditions(n, tolerate, 1.0, np.random.default_rng(seed), kind=job.kinds[0], epsilon=epsilon)
    released = run(job.make(schema, settings, known), IdealSwarm(x[:, None], ["y"], terms))
    posterior: Posterior = job.finish(released, schema, settings, known)
    return posterior


def central_median(x: np.ndarray, ends: tuple[float, float], epsilon: float) -> float:
    """Return the median of a trusted curator, by OpenDP's exponential mechanism over the same 256 bins."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    middles = np.linspace(*ends, 257)[:-1] + (ends[1] - ends[0]) / 512
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False), size=len(x)), dp.symmetric_distance()
    score = space >> dp.t.then_quantile_score_candidates(candidates=middles.tolist(), alpha=0.5)
    mechanism = dp.binary_search_chain(
        lambda scale: score >> dp.m.then_noisy_max(dp.max_divergence(), scale, negate=True), d_in=2, d_out=epsilon
    )
    return float(middles[mechanism(x.clip(*ends).tolist())])


def measure(job: str, name: str, clients: int, epsilon: float, repeats: int, with_central: bool) -> Cell:
    """Measure one cell."""
    law, rng = LAWS[name], np.random.default_rng(17)
    held, width, error, central = [], [], [], []
    for seed in range(repeats):
        x = law.draw(rng, clients)
        figures = [one.marginal for one in fitted(job, x, law.ends, epsilon, seed).estimates()]
        ends = np.array([one.interval for one in figures])
        held.append((ends[:, 0] <= law.truth) & (law.truth <= ends[:, 1]))
        width.append(np.ptp(ends, axis=1))
        error.append(np.abs([one.mean for one in figures] - law.truth))
        if with_central:
            central.append(abs(central_median(x, law.ends, epsilon) - law.truth[1]))
    means = (np.mean(part, axis=0).tolist() for part in (held, width, error))
    return Cell(job, name, clients, epsilon, *means, float(np.mean(central)) if central else None)


def main(arguments: list[str] | None = None) -> int:
    """Run the check and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=40, help="fits a cell")
    parser.add_argument("--json", help="write the result to a file, or - for stdout")
    options = parser.parse_args(arguments)
    with_central = find_spec("opendp") is not None
    console = Console(stderr=options.json == "-")
    keys = [(job, name, n, epsilon) for job in CLIENTS for name in LAWS for n in CLIENTS[job] for epsilon in EPSILONS]
    progress = track(keys, "cells", console=Console(stderr=True))
    cells = [measure(*key, options.repeats, with_central) for key in progress]
    heads = *(f"holds {p:g}" for p in PROBABILITIES), "width of median", "error", "OpenDP"
    table = Table("job", "law", "clients", "ε", *heads)
    for cell in cells:
        held = [f"{100 * share:.0f} %" for share in cell.held]
        last = "" if cell.central is None else f"{cell.central:.3g}"
        figures = f"{cell.width[1]:.3g}", f"{cell.error[1]:.3g}", last
        table.add_row(cell.job, cell.law, f"{cell.clients:,}", at_least(cell.epsilon), *held, *figures)
    console.print(table)
    if not with_central:
        console.print("opendp is not installed, so there is no comparison with a trusted curator")
    shares = {
        f"{job}, {name}": np.mean([cell.held for cell in cells if (cell.job, cell.law) == (job, name)], axis=0)
        for job in CLIENTS
        for name in LAWS
    }
    low = [name for name, held in shares.items() if held.min() < LEAST]
    console.print(f"intervals hold too rarely: {'; '.join(low)}" if low else "intervals of all laws hold")
    write_json([cell._asdict() for cell in cells], options.json)
    return FAULT if low else 0


if __name__ == "__main__":
    sys.exit(main())
