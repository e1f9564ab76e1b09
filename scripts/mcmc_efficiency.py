#!/usr/bin/env python
"""Effective samples per second of the library's sampler of node releases, and of others of its posterior, on one core.

Beside it are the model as a textbook writes it, MCMC-normalX, and BlackJAX where it is installed (it is no dependency).
Exit code 4 where the library's chains have not mixed, samplers disagree, or it is behind at d = 5, J = 10.

    scripts/mcmc_efficiency.py --json efficiency.json --plot efficiency.png      some 10 minutes
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
from papers.mcmc2023.samplers.methods import ready

REPEATS, QUICK_REPEATS, QUICK_SHORTER = 2, 1, 5


def run(options: argparse.Namespace) -> int:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # before JAX starts its threads
    ready()  # without JAX, this is told, and what follows cannot be imported
    from papers.mcmc2023 import efficiency

    settings = efficiency.QUICK_SETTINGS if options.quick else efficiency.SETTINGS
    cells = efficiency.cells_of(settings, QUICK_REPEATS if options.quick else REPEATS)
    results = run_cells(
        cells,
        partial(efficiency.measured, seed=options.seed, shorter=QUICK_SHORTER if options.quick else 1),
        label="effective samples",
        resume=options.resume,
        processes=1,  # a second one would be measured along with the first
        settings={"seed": options.seed, "nuts": efficiency.NUTS, "gibbs": efficiency.GIBBS},
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
