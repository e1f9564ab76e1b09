#!/usr/bin/env python
"""Jobs `sites-regression` and `sites-logistic`: are their posteriors calibrated at 3, 8 and 30 sites?

The truth is drawn from the prior, rows from the truth, and releases from the ideal functionality: sites of 100 to 3,000
rows (log-uniform), two normal features whose means differ between sites. For each model, number of sites and ε:

    rank     of the truth among draws (Talts et al. 2018), in ten bins, over all ε: uniform by a chi-squared test
    holds    the share of 90 % intervals that contain the truth: of the mean of sites, of the sd between them, of a site

Three sites have more studies: few sites see the noise in the features' centres most.

What is wrong was stated before the run: ranks that are not uniform, or an interval that holds in less than 90 %, for
each ε and over all of them. Each figure has its own exact test, and all of them together raise a false alarm once in
1,000 runs, by Bonferroni. The script prints the share of intervals that it would see nine times in ten, at one ε and
over all.

Exit code 4 if a figure is wrong.

Examples:

    scripts/check_sites.py                  eight minutes of CPU
    scripts/check_sites.py --quick          a tenth of the studies; sees gross faults alone
    scripts/check_sites.py --nuts --json -  also the sampler, at 8 sites and epsilon 1
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy import stats
from scipy.special import expit

from dca_proto.cli.job_settings import best_weights
from dca_proto.jobs.job import JobTerms
from dca_proto.privacy.rounding import at_least
from dca_proto.protocol.wire.kinds import NodeRelease
from dca_proto.runtime.files import write_json
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.jobs import find
from inference.jobs.base import Conditions
from inference.models.sites.evidence import BETWEEN, EFFECT, MEAN
from inference.problem import Schema
from inference.rounds import run
from papers.experiment import seen_share

LINEAR, LOGISTIC, SAMPLED = "linear", "logistic", "linear, nuts"
SITES, EPSILONS, DELTA, FAULT = (3, 8, 30), (0.5, 1.0, 4.0), 1e-5, 4
REPEATS = {LINEAR: 80, LOGISTIC: 40, SAMPLED: 60}
MORE = {3: 6}  # times as many studies, by the number of sites
LEVEL, BINS, FALSE_ALARMS, SEEN = 0.9, 10, 1e-3, 0.9
ROWS, SIGMA, HALF = (100, 3_000), 0.6, 4.0
PRIOR = {"mean_sd": 0.5, "prior_sd": 0.4, "between_sd": 0.4}
FIGURES = ("mean of sites", "slope", "sd between sites", "a site")
QUICK = 10


class Cell(NamedTuple):
    """A model, a number of sites, and ε."""

    model: str
    sites: int
    epsilon: float


def schema_of(logistic: bool) -> Schema:
    """Return the public bounds of a design."""
    ends = Interval(0, 1) if logistic else Interval(-HALF, HALF)
    return Schema(("a", "b"), "y", {"a": Interval(-HALF, HALF), "b": Interval(-HALF, HALF), "y": ends})


def ranks(cell: Cell, seed: int) -> list[float]:
    """Return, for each of `FIGURES`, the share of draws below the truth, in one simulated study."""
    rng, logistic = (
        np.random.default_rng([SITES.index(cell.sites), int(10 * cell.epsilon), seed]),
        cell.model == LOGISTIC,
    )
    job, schema = find("sites-logistic" if logistic else "sites-regression"), schema_of(logistic)
    unit = 1.0 if logistic else HALF / 3  # of the target; features: see `truth`
    mean = unit * PRIOR["mean_sd"] * rng.standard_normal()
    slopes = PRIOR["prior_sd"] * rng.standard_normal(2)
    spread = unit * PRIOR["between_sd"] * abs(rng.standard_normal())
    levels = mean + spread * rng.standard_normal(cell.sites)
    sizes = np.exp(rng.uniform(np.log(ROWS[0]), np.log(ROWS[1]), cell.sites)).astype(int)
    shifts = 0.2 * rng.standard_normal((cell.sites, 2))
    features = [shift + rng.standard_normal((size, 2)) for shift, size in zip(shifts, sizes, strict=True)]
    centre = np.concatenate(features).mean(axis=0)  # levels are those of rows with average features
    tables = []
    for x, level in zip(features, levels, strict=True):
        eta = level + (x - centre) @ slopes
        y = rng.random(len(x)) < expit(eta) if logistic else eta + SIGMA * rng.standard_normal(len(x))
        tables.append(np.c_[x, y])
    settings = job.settings(**PRIOR, **({"method": "nuts", "chains": 2, "warmup": 400, "draws": 400,
                                         "require_mixed": False} if cell.model == SAMPLED else {}))  # fmt: skip
    terms = JobTerms(epsilon=cell.epsilon, delta=DELTA, clients=cell.sites, tolerate=0, computes=())
    known = Conditions(cell.sites, 0, terms.budget.mu, rng, kind=NodeRelease, weights=best_weights)
    rounds = IdealSwarm(tables, schema.columns, terms, random=rng.bytes)
    found = job.finish(run(job.make(schema, settings, known), rounds), schema, settings, known)
    site = int(rng.integers(cell.sites))
    pairs = ((MEAN, 0, mean), (MEAN, 1, slopes[0]), (BETWEEN, 0, spread), (EFFECT, (site, 0), levels[site]))
    return [float(np.mean(found.draws[name][(..., *np.atleast_1d(place))] < truth)) for name, place, truth in pairs]


def uniform(found: np.ndarray) -> float:
    """Return p of the test that ranks are uniform."""
    counts = np.histogram(found, BINS, (0, 1))[0]
    return float(stats.chisquare(counts).pvalue)


def too_rarely(holds: np.ndarray, false_alarms: float) -> list[str]:
    """Return the figures whose intervals hold in less than `LEVEL`, but for chance."""
    return [name for name, count in zip(FIGURES, holds.sum(axis=0), strict=True)
            if stats.binom.cdf(count, len(holds), LEVEL) < false_alarms]  # fmt: skip


def held(found: np.ndarray) -> np.ndarray:
    """Return which intervals hold."""
    return np.abs(found - 0.5) <= LEVEL / 2


def studies_of(cell: Cell, *, quick: bool) -> int:
    """Return the number of studies of a cell."""
    count = REPEATS[cell.model] * MORE.get(cell.sites, 1)
    return count // QUICK if quick else count


def measure(cells: Sequence[Cell], repeats: Mapping[Cell, int], console: Console) -> dict[Cell, np.ndarray]:
    """Return the ranks of each cell, shape ``(repeats, 4)``."""
    found = {}
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for cell in track(cells, "cells", console=console):
            found[cell] = np.array(list(pool.map(partial(ranks, cell), range(repeats[cell]))))
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the check and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the studies")
    parser.add_argument("--nuts", action="store_true", help="also the sampler, at 8 sites and epsilon 1")
    parser.add_argument("--json", help="write the result to a file, or - for stdout")
    options = parser.parse_args(arguments)
    console = Console(stderr=options.json == "-")
    cells = [Cell(model, sites, epsilon) for model in (LINEAR, LOGISTIC) for sites in SITES for epsilon in EPSILONS]
    cells += [Cell(SAMPLED, 8, 1.0)] if options.nuts else []
    repeats = {cell: studies_of(cell, quick=options.quick) for cell in cells}
    found = measure(cells, repeats, Console(stderr=True))
    groups = list(dict.fromkeys((cell.model, cell.sites) for cell in cells))
    tests, wrong, plain = len(FIGURES) * (len(cells) + 2 * len(groups)), [], []
    table = Table("model", "sites", "ε", *(f"{name}: holds" for name in FIGURES))
    for cell in cells:
        holds = held(found[cell])
        table.add_row(
            cell.model, str(cell.sites), at_least(cell.epsilon), *(f"{100 * one:.0f} %" for one in holds.mean(0))
        )
        where = f"{cell.model}, {cell.sites} sites, ε = {at_least(cell.epsilon)}"
        wrong += [f"{name}, {where}: intervals" for name in too_rarely(holds, FALSE_ALARMS / tests)]
        plain.append(
            {**cell._asdict(), "repeats": len(holds), "holds": dict(zip(FIGURES, holds.mean(0).tolist(), strict=True))}
        )
    console.print(table)
    uniforms: dict[str, Any] = {}
    table = Table("model", "sites", *(f"{name}: p of uniform ranks" for name in FIGURES))
    for model, sites in groups:
        own = np.concatenate([found[cell] for cell in cells if (cell.model, cell.sites) == (model, sites)])
        values = [uniform(own[:, place]) for place in range(len(FIGURES))]
        wrong += [f"{name}, {model}, {sites} sites: intervals" for name in too_rarely(held(own), FALSE_ALARMS / tests)]
        wrong += [f"{name}, {model}, {sites} sites: ranks" for name, p in zip(FIGURES, values, strict=True)
                  if p < FALSE_ALARMS / tests]  # fmt: skip
        table.add_row(model, str(sites), *(f"{p:.2g}" for p in values))
        uniforms[f"{model}, {sites} sites"] = dict(zip(FIGURES, values, strict=True))
    console.print(table)
    for model, sites in groups:
        counts = [repeats[cell] for cell in cells if (cell.model, cell.sites) == (model, sites)]
        known: dict[str, Any] = {"often": SEEN, "step": 0.01}
        seen = [seen_share(LEVEL, count, FALSE_ALARMS / tests, **known) for count in (counts[0], sum(counts))]
        each, every = ("no fault" if one is None else f"{100 * one:.0f} %" for one in seen)
        console.print(f"{model}, {sites} sites: {counts[0]} studies a cell; sees {each}, over all ε {every}")
    console.print(f"wrong: {'; '.join(wrong)}" if wrong else "nothing is wrong but for chance")
    write_json({"cells": plain, "uniform": uniforms, "wrong": wrong}, options.json)
    return FAULT if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
