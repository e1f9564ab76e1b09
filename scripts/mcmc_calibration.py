#!/usr/bin/env python
"""Coverage of credible intervals of distributed Bayesian regression, over data and noise, for every method.

θ, Σ_x and (without prior conflict) σ_y² come from the prior, J = 5 nodes release exact local rounds under replacement,
and intervals of 50, 80, 90 and 95 % are counted over hundreds of such data sets at three ε. With conflict, σ_y² is 1 as
in the paper's simulation, where the prior expects 0.026. The method with an intercept has data sets of its own, with a
mean, and with rows that lack a value. Exit code 4 where MCMC-normalX or its form with an intercept, without conflict,
is outside a simultaneous 99 % band of nominal, or its chains have not met in a tenth of the data sets; the others'
coverage is reported beside the same band. adaSSP has no intervals.

    scripts/mcmc_calibration.py --json calibration.json --plot calibration.png      some 30 minutes on two cores
    scripts/mcmc_calibration.py --quick
    scripts/mcmc_calibration.py --resume calibration.jsonl
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from functools import partial

from emulator.experiments.runner import add_common_options, finish, main, positive, run_cells
from papers.mcmc2023 import calibration
from papers.mcmc2023.calibration import EPSILONS, METHODS, Cell, Plan, work
from papers.mcmc2023.samplers.methods import ready

DATASETS = 500
QUICK_DATASETS, QUICK_SHORTER = 40, 5


def run(options: argparse.Namespace) -> int:
    ready()  # without JAX, this is told before the work
    sizes = (QUICK_DATASETS, QUICK_SHORTER) if options.quick else (options.datasets, 1)
    plan = Plan(*sizes, options.seed)
    epsilons = EPSILONS[1:2] if options.quick else EPSILONS
    cells = [Cell(method, e, conflict) for conflict in (False, True) for e in epsilons for method in METHODS]
    results = run_cells(
        cells,
        partial(work, plan=plan),
        label="calibration",
        resume=options.resume,
        processes=options.processes,
        settings=asdict(plan),
    )
    found = calibration.figures_of(cells, results)
    if options.plot:
        calibration.draw(options.plot, found)
    tables = [calibration.coverage_table(found, conflict) for conflict in (False, True)]
    asked = [] if options.quick else calibration.checks(found)
    figures = {"kind": "mcmc-calibration", **asdict(plan), **calibration.settings(), "cells": found}
    return finish(figures, options, tables, asked)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_options(parser)
    parser.add_argument("--datasets", type=positive, default=DATASETS, metavar="R", help="data sets in each cell")
    sys.exit(main(run, parser))
