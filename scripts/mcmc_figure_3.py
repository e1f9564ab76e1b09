#!/usr/bin/env python
"""Figure 3 of the third paper: time per iteration of the samplers over d, at J = 1, 5 and 10.

Each sampler runs compiled, one chain on one core, five times; compiling is timed apart. Exit code 4 where one of ours
grows faster than d³ (slope of the logarithms from d = 15 on), or MCMC-B&S does not, or not visibly faster than ours.
Times are CPU times of this machine, and of the five runs the least counts: other work on it can only add to them.

    scripts/mcmc_figure_3.py --json figure_3.json --plot figure_3.png      some 7 minutes
    scripts/mcmc_figure_3.py --quick
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from emulator.experiments.runner import add_common_options, finish, main, run_cells
from papers.mcmc2023.kernels import SAMPLED
from papers.mcmc2023.samplers.methods import ready


def run(options: argparse.Namespace) -> int:
    ready()  # without JAX, this is told, and what follows cannot be imported
    from papers.mcmc2023 import timing

    nodes = timing.QUICK_NODES if options.quick else timing.NODES
    sizes = timing.QUICK_SIZES if options.quick else timing.SIZES
    cells = [timing.Cell(method, J, d) for method in SAMPLED for J in nodes for d in sizes]
    results = run_cells(
        cells,
        partial(timing.measured, seed=options.seed),
        label="time per iteration",
        resume=options.resume,
        processes=1,  # a second one would be measured along with the first
        settings={"seed": options.seed},
    )
    curves = timing.summary(cells, results)
    if options.plot:
        timing.draw(options.plot, curves)
    asked = [] if options.quick else timing.checks(curves)
    figures = {"kind": "mcmc-figure-3", "rows": timing.ROWS, "epsilon": timing.EPSILON, "curves": curves}
    return finish(figures, options, [timing.times_table(curves)], asked)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_options(parser)
    sys.exit(main(run, parser))
