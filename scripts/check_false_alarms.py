#!/usr/bin/env python
"""No job warns of clean data: at most one fit in twenty has any warning.

Each job is fitted to the clean designs that it states (`LearningJob.clean`), over the ideal functionality. Data and
noise have seeds. Of the fits of a job, so many may warn that a job whose warnings come in one fit of twenty fails in
fewer than 1 % of runs.

Exit code 4 if a job warns more often.

Examples:

    scripts/check_false_alarms.py                   20 fits of each design: four minutes on one core
    scripts/check_false_alarms.py --jobs regression,poisson-regression --fits 100 --json -
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy import stats

from dca_proto.cli.job_settings import best_weights
from dca_proto.jobs.job import JobTerms
from dca_proto.privacy.budget import Budget
from dca_proto.protocol.wire.kinds import LdpReport, NodeRelease
from dca_proto.runtime.files import write_json
from emulator.ideal import IdealSwarm
from inference.jobs import NAMES, find
from inference.jobs.base import Conditions
from inference.jobs.examples import DESIGNS, Design
from inference.jobs.settings import settings_from
from inference.problem import Problem
from inference.rounds import run

EPSILON, DELTA, COMPUTES, NODES = 2.0, 1e-5, tuple(bytes([index]) * 16 for index in range(3)), 10
SHARE_MAX, FALSE_ALARMS, FAULT = 0.05, 0.01, 4
Rng = np.random.Generator


class Alarms(NamedTuple):
    """The fits of a job to clean data: how many there were, how many may warn, and the warnings of those that did."""

    job: str
    fits: int
    most: int
    warnings: list[list[str]]

    @property
    def are_rare(self) -> bool:
        """Whether no more fits warn than chance explains."""
        return len(self.warnings) <= self.most


def most(fits: int) -> int:
    """Return how many fits may warn: a job that warns in one of twenty is refused with a probability below 1 %."""
    return int(stats.binom.isf(FALSE_ALARMS, fits, SHARE_MAX))


def designs(name: str) -> list[Design]:
    """Return the designs on which a job must not warn."""
    return DESIGNS[find(name).clean.designs]


def learned(name: str, rows: Problem, settings: Mapping[str, Any], epsilon: float, rng: Rng) -> dict[str, Any]:
    """Return the summary of a job over rounds with one client for each row, or with ten data nodes."""
    job = find(name)
    kind, own = job.kinds[0], settings_from(job.settings, settings, name)
    job.check(rows.schema, own)
    local, nodes = kind is LdpReport, kind is NodeRelease
    parts = np.array_split(rows.rows, NODES) if nodes else rows.rows
    budget, tolerate = Budget(epsilon, DELTA), 0 if local or nodes else len(rows.y) // 10
    terms = JobTerms(
        epsilon=budget.epsilon,
        delta=budget.delta,
        clients=len(parts),
        tolerate=tolerate,
        computes=() if local or nodes else COMPUTES,
    )
    known = Conditions(len(parts), tolerate, budget.mu, rng, kind=kind, epsilon=EPSILON, weights=best_weights)
    swarm = IdealSwarm(parts, rows.schema.columns, terms, random=rng.bytes)
    result = job.finish(run(job.make(rows.schema, own, known), swarm), rows.schema, own, known)
    return dict(job.summarise(result, None, None, None, rows.schema))


def warned(name: str, design: Design, seed: int) -> list[str]:
    """Return the warnings of a job's summary on a clean design."""
    rng, clean = np.random.default_rng(seed), find(name).clean
    return list(learned(name, design(rng, clean.clients), clean.settings, clean.epsilon, rng)["warnings"])


def alarms(name: str, fits: int) -> Alarms:
    """Fit a job to each of its designs, with the seeds from 0."""
    found = [warned(name, design, seed) for design in designs(name) for seed in range(fits)]
    return Alarms(name, len(found), most(len(found)), [warnings for warnings in found if warnings])


def main(arguments: list[str] | None = None) -> int:
    """Run the check and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=lambda text: text.split(","), default=NAMES, help="some, with commas: all")
    parser.add_argument("--fits", type=int, default=20, help="fits of each design")
    parser.add_argument("--json", help="write the result to a file, or - for stdout")
    options = parser.parse_args(arguments)
    console = Console(stderr=options.json == "-")
    found = [alarms(name, options.fits) for name in track(options.jobs, "jobs", console=Console(stderr=True))]
    table = Table("job", "fits", "with warnings", "at most")
    for one in found:
        table.add_row(one.job, *map(str, (one.fits, len(one.warnings), one.most)))
    console.print(table)
    for one in found:
        if not one.are_rare:
            console.print(f"{one.job} warns too often: {one.warnings}", markup=False)
    write_json([one._asdict() for one in found], options.json)
    return 0 if all(one.are_rare for one in found) else FAULT


if __name__ == "__main__":
    sys.exit(main())
