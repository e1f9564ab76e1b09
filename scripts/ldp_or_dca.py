#!/usr/bin/env python
"""When does which pay? Test error and coverage over ε of local reports, DCA sums and a trusted aggregator.

Some three quarters of an hour on two cores (run in parts). Bayesian linear regression from the same rows, statistic,
prior and (ε, δ): local reports, sums of the protocol with nobody and with a tenth of the clients dropping out, and a
trusted aggregator, each with the noise in the model and without a look at it; of simulated data of 1,000 and 10,000
clients, whose coefficients are known, and of wine (in the valid setting). What is measured, and how, stands at the head
of scripts/papers/ldp2021/trust.py.

Exit code 4 where noise-aware coverage is not nominal, noise-naive intervals are, at the smallest ε, DCA is nowhere
ahead of local reports, it is apart from the trusted aggregator, or chains have not mixed.

    scripts/ldp_or_dca.py --json ldp_or_dca.json --plot ldp_or_dca.png --resume ldp_or_dca.jsonl
    scripts/ldp_or_dca.py --quick                                                         a look, without wine
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from emulator.experiments.runner import add_common_options, finish, main, positive, run_cells
from papers.ldp2021 import trust_summary as summary
from papers.ldp2021.column_fits import ready
from papers.ldp2021.regression_data import WINE, problem
from papers.ldp2021.trust import (
    QUICK_EPSILONS,
    QUICK_ITERATIONS,
    QUICK_REPEATS,
    REPEATS,
    SIMULATED,
    WINES,
    Plan,
    cells,
    work,
)


def run(options: argparse.Namespace) -> int:
    ready()
    plan = plan_of(options)
    if WINES in plan.data:
        problem(WINE, plan.folder)  # missing data are told before the work
    asked = cells(plan)
    results = run_cells(
        asked,
        partial(work, plan=plan),
        label="who adds the noise",
        resume=options.resume,
        processes=options.processes,
        settings=plan.settings,
    )
    found = summary.gathered(asked, results, plan)
    if options.plot:
        summary.draw(options.plot, found)
    checks = [] if options.quick else summary.checks(found)
    return finish(summary.figures(found), options, summary.tables(found), checks)


def plan_of(options: argparse.Namespace) -> Plan:
    if options.quick:
        return Plan(options.data, options.seed, QUICK_REPEATS, QUICK_EPSILONS, QUICK_ITERATIONS, tuple(SIMULATED))
    return Plan(options.data, options.seed, options.repeats)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_options(parser)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="with the wines; else DCA_DATA, else download")
    parser.add_argument("--repeats", type=positive, default=REPEATS, metavar="R", help=f"by default {REPEATS}")
    sys.exit(main(run, parser))
