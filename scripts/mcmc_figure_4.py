#!/usr/bin/env python
"""Figure 4 of the third paper: how far private posteriors are from the one without privacy (MMD²), over ε.

d = 2, n = 100,000, one, five and ten data nodes, seven ε from 0.1 to 10, 50 repeats of the noise; as published (not
private as claimed) and valid. Chains as for Figure 2; some 5 minutes on two cores. Exit code 4 where a distance does
not fall with ε.

    scripts/mcmc_figure_4.py --json mcmc_figure_4.json --plot mcmc_figure_4.png --resume mcmc_figure_4.jsonl
    scripts/mcmc_figure_4.py --bernstein-sheldon 2000 --resume mcmc_figure_4.jsonl ...      with MCMC-B&S
    scripts/mcmc_figure_4.py --quick
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from emulator.experiments.runner import add_common_options, finish, main, run_cells
from papers.mcmc2023.figure4 import METHODS, D, checks, distances, draw, figures, gathered, tables
from papers.mcmc2023.samplers.methods import ready
from papers.mcmc2023.simulated import add_run_options, plan_of, works_of


def run(options: argparse.Namespace) -> int:
    ready()  # without JAX, this is told before the work
    plan, asked = plan_of(options), works_of(options, METHODS, (D,))
    settings = {"seed": plan.seed, "repeats": plan.repeats, "epsilons": plan.epsilons}
    results = run_cells(
        asked,
        partial(distances, plan=plan),
        label="distances",
        cost=lambda work: work.cost,
        resume=options.resume,
        processes=options.processes,
        settings=settings,
    )
    curves = gathered(asked, results)
    if options.plot:
        draw(curves, plan, options.plot)
    judged = [] if options.quick else list(checks(curves))
    return finish(figures(curves, plan) | settings, options, tables(curves, plan), judged)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_options(parser)
    add_run_options(parser)
    sys.exit(main(run, parser))
