#!/usr/bin/env python
"""Tables 1 and 2 of the third paper: prediction errors of distributed private regression, as published and valid.

Power plant, bike sharing and air quality (and rows in the place of 3droad's), one, five and ten data nodes, ε = 1, 50
repeats: the paper's methods, least squares without privacy and the zero predictor. A sampler makes 10,000 iterations of
one chain for each repeat, half of them warm-up, and all repeats in one call. As published is with the published data
handling, noise and starts, which are not private as claimed; valid is with this library's local rounds. On bike sharing
and air quality at J = 5 and 10 the chains of MCMC-normalX have not mixed after 10,000 iterations. Exit code 4 where a
mean lies outside the paper's widened interval.

    scripts/mcmc_tables.py --json mcmc_tables.json --plot mcmc_tables.png --resume mcmc_tables.jsonl
    scripts/mcmc_tables.py --bernstein-sheldon 10000 --resume mcmc_tables.jsonl ...         with MCMC-B&S, later
    scripts/mcmc_tables.py --quick

MCMC-B&S takes far longer than all else together, so it is asked for by itself; the file of --resume serves both.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from emulator.experiments.runner import add_common_options, finish, main, run_cells
from papers.mcmc2023.data import BALL, DATA_SETS, POWER_PLANT, SETTINGS, problem
from papers.mcmc2023.drawing import draw_tables
from papers.mcmc2023.fits import enough_iterations, lengths
from papers.mcmc2023.paper import ITERATIONS, NODES, REPEATS
from papers.mcmc2023.releases import MEANS_SHARE
from papers.mcmc2023.samplers.methods import ready
from papers.mcmc2023.summary import checks, figures, gathered, tables
from papers.mcmc2023.tables import METHODS, Cell, Plan, work

QUICK_REPEATS, QUICK_ITERATIONS, QUICK_NODES = 5, 400, (5,)


def cells(options: argparse.Namespace) -> list[Cell]:
    """All that are asked for, in the order of the tables."""
    names, nodes = (options.data_set or DATA_SETS), QUICK_NODES if options.quick else NODES
    if options.quick:
        names = [POWER_PLANT]
    length = QUICK_ITERATIONS if options.quick else options.iterations
    return [
        Cell(setting, name, J, method, iterations)
        for setting in options.setting or SETTINGS
        for name in names
        for J in nodes
        for method, iterations in lengths(METHODS, length, options.bernstein_sheldon).items()
    ]


def run(options: argparse.Namespace) -> int:
    ready()  # without JAX, this is told before the work
    asked = cells(options)
    for setting, name in dict.fromkeys((cell.setting, cell.name) for cell in asked):
        problem(name, options.data, setting)  # missing data are told before the work, and downloaded once
    plan = Plan(options.seed, options.data, QUICK_REPEATS if options.quick else REPEATS)
    settings = {"seed": plan.seed, "repeats": plan.repeats, "ball": BALL, "means_share": MEANS_SHARE}
    results = run_cells(
        asked,
        partial(work, plan=plan),
        label="tables",
        cost=lambda cell: cell.cost,
        resume=options.resume,
        processes=options.processes,
        settings=settings,
    )
    found = gathered(asked, results)
    if options.plot:
        draw_tables(found, options.plot)
    return finish(figures(found) | settings, options, tables(found), [] if options.quick else checks(found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_options(parser)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="with the data files; else DCA_DATA, else download")
    parser.add_argument("--data-set", action="append", choices=DATA_SETS, help="only this one; may be repeated")
    parser.add_argument("--setting", action="append", choices=SETTINGS, help="only this one")
    parser.add_argument(
        "--iterations", type=enough_iterations, default=ITERATIONS, metavar="K", help="of other samplers"
    )
    parser.add_argument(
        "--bernstein-sheldon",
        type=enough_iterations,
        metavar="K",
        help="MCMC-B&S too, with so many iterations (default: not)",
    )
    sys.exit(main(run, parser))
