#!/usr/bin/env python
"""Figures 1, 10 and 11 of the LDP paper: coverage of central intervals of posteriors from local reports, over ε.

An hour on two cores, of which Figure 1 takes 55 minutes (7 to 10 for the 500 repeats of one ε); --quick one minute.
Parameters are drawn from their priors, clients' values given these, and reports by the exact mechanisms of the library:
Laplace noise for Gaussian (5,000 clients, 500 repeats) and exponential data (1,000; 80), both clipped, and optimal
unary encoding for histograms (1,000; 100). Repeats, clients, bounds and levels are the paper's; the ε, and priors that
it leaves open, are ours (scripts/papers/ldp2021/column_calibration.py). Each fit is four chains of 2,000
iterations, half of them warm-up.

Exit code 4 where a coverage is outside a simultaneous 99 % band of nominal, an R-hat is not below 1.1, values are
hardly ever or mostly clipped, or 500 repeats of Figure 1 take more than 40 minutes of two cores.

    scripts/ldp_calibration.py --json ldp_calibration.json --plot ldp_calibration.png --resume ldp_calibration.jsonl
    scripts/ldp_calibration.py --figure 11 --resume ldp_calibration.jsonl      one of them; several --figure, several
    scripts/ldp_calibration.py --quick
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from emulator.experiments.runner import add_common_options, finish, main, run_cells
from papers.ldp2021 import column_coverage as coverage
from papers.ldp2021.column_calibration import FIGURES, Plan, cells, work
from papers.ldp2021.column_fits import ready


def run(options: argparse.Namespace) -> int:
    ready()
    figures = tuple(options.figure or FIGURES)
    plan = Plan.quick(options.seed, figures) if options.quick else Plan(options.seed, figures)
    asked = cells(plan)
    results = run_cells(
        asked,
        partial(work, plan=plan),
        label="calibration",
        cost=lambda cell: cell.cost,
        resume=options.resume,
        processes=options.processes,
        settings={"seed": plan.seed, "iterations": plan.iterations},
    )
    found = coverage.gathered(asked, results)
    made = coverage.coverages(found.places)
    if options.plot:
        coverage.draw(options.plot, made)
    checks = [] if options.quick else coverage.checks(found, made)
    return finish(coverage.figures(found, made, plan), options, coverage.tables(found, made), checks)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_options(parser)
    parser.add_argument("--figure", type=int, action="append", choices=FIGURES, help="only this one")
    sys.exit(main(run, parser))
