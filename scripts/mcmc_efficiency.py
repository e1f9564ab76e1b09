#!/usr/bin/env python
"""Effective samples per second of the collapsed sampler against MCMC-normalX, on one core.

Both draw from the same posterior, compiled, with four chains, on the third paper's simulated data. Exit code 4 where
the collapsed sampler gives less than 5 times as many at d = 5, J = 10 in any repeat, or its chains have not mixed.

    scripts/mcmc_efficiency.py --json efficiency.json --plot efficiency.png      some 4 minutes
    scripts/mcmc_efficiency.py --quick
    scripts/mcmc_efficiency.py --resume efficiency.jsonl
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import asdict
from functools import partial

from emulator.experiments.runner import add_common_options, finish, main, run_cells
from inference.models.linear.nodes.methods import ready

REPEATS, QUICK_REPEATS = 3, 1


def run(options: argparse.Namespace) -> int:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # before JAX starts its threads
    ready("collapsed", {})  # without JAX, this is told, and what follows cannot be imported
    from papers.mcmc2023 import efficiency

    efforts = efficiency.QUICK if options.quick else efficiency.FULL
    settings = efficiency.QUICK_SETTINGS if options.quick else efficiency.SETTINGS
    cells = efficiency.cells_of(settings, QUICK_REPEATS if options.quick else REPEATS)
    results = run_cells(
        cells,
        partial(efficiency.measured, seed=options.seed, efforts=efforts),
        label="effective samples",
        resume=options.resume,
        processes=1,  # a second one would be measured along with the first
        settings={"seed": options.seed, "efforts": {name: asdict(effort) for name, effort in efforts.items()}},
    )
    rates = efficiency.rates_of(cells, results)
    if options.plot:
        efficiency.draw(options.plot, rates)
    asked = [] if options.quick else efficiency.checks(cells, results)
    figures = {"kind": "mcmc-efficiency", "chains": efficiency.CHAINS, "rates": [asdict(one) for one in rates]}
    return finish({**figures, "runs": results}, options, [efficiency.rates_table(rates)], asked)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_options(parser)
    sys.exit(main(run, parser))
