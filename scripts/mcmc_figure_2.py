#!/usr/bin/env python
"""Figure 2 of the third paper: errors of distributed private regression on simulated data over ε.

d = 2 and d = 5, n = 100,000, one, five and ten data nodes, seven ε from 0.1 to 10, 50 repeats of the noise: the paper's
methods, as published (not private as claimed) and valid. A sampler makes 10,000 iterations of
one chain for each repeat, half of them warm-up; all repeats and ε of one J are one call; some 20 minutes on two cores.
Exit code 4 where errors do not fall with ε, or one of the other checks at the end does not hold.

    scripts/mcmc_figure_2.py --json mcmc_figure_2.json --plot mcmc_figure_2.png --resume mcmc_figure_2.jsonl
    scripts/mcmc_figure_2.py --bernstein-sheldon 2000 --resume mcmc_figure_2.jsonl ...      with MCMC-B&S
    scripts/mcmc_figure_2.py --quick

--plot NAME.png draws the published setting there and the valid one as NAME-valid.png.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from emulator.experiments.runner import add_common_options, finish, main, run_cells
from papers.mcmc2023.figure2 import METHODS, checks, draw, errors, figures, gathered, tables
from papers.mcmc2023.samplers.methods import ready
from papers.mcmc2023.simulated import add_run_options, plan_of, works_of


def run(options: argparse.Namespace) -> int:
    ready()  # without JAX, this is told before the work
    plan, asked = plan_of(options), works_of(options, METHODS, options.features or (2, 5))
    settings = {"seed": plan.seed, "repeats": plan.repeats, "epsilons": plan.epsilons}
    results = run_cells(
        asked,
        partial(errors, plan=plan),
        label="errors",
        cost=lambda work: work.cost,
        resume=options.resume,
        processes=options.processes,
        settings=settings,
    )
    curves = gathered(asked, results, plan)
    if options.plot:
        draw(curves, options.plot)
    return finish(figures(curves) | settings, options, tables(curves), [] if options.quick else checks(curves))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_options(parser)
    add_run_options(parser)
    parser.add_argument("--features", type=int, choices=(2, 5), action="append", metavar="d", help="only this d")
    sys.exit(main(run, parser))
