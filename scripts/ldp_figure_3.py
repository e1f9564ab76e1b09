#!/usr/bin/env python
"""Figures 3 and 9 of the LDP paper: a histogram's posterior mean against the projected point estimate.

Some 15 minutes on two cores.
Shares 0.7, 0.2 and 0.1 of 100 to 10,000 clients, told by optimal unary encoding at six ε (Figure 3: ε = 0.5), 200
repeats (the paper: 50, of which the JSON tells apart): the root mean squared error of both, and how often either is
unusable, a category having no share or the order being wrong (scripts/papers/ldp2021/share_estimates.py).

Exit code 4 where at ε = 0.5 and up to 1,000 clients the posterior mean's error is not below the projected estimate's
(paired, joint intervals), it is behind anywhere, or more often unusable, or an R-hat is not below 1.1.

    scripts/ldp_figure_3.py --json ldp_figure_3.json --plot ldp_figure_3.png --resume ldp_figure_3.jsonl
    scripts/ldp_figure_3.py --quick
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from functools import partial

from emulator.experiments.runner import add_common_options, finish, main, run_cells
from papers.ldp2021 import share_estimates
from papers.ldp2021.column_fits import ready
from papers.ldp2021.share_estimates import Plan, cells, work


def run(options: argparse.Namespace) -> int:
    ready()
    plan = Plan.quick(options.seed) if options.quick else Plan(options.seed)
    asked = cells(plan)
    results = run_cells(
        asked,
        partial(work, plan=plan),
        label="figure 3",
        resume=options.resume,
        processes=options.processes,
        settings=asdict(plan),
    )
    found = share_estimates.gathered(asked, results)
    if options.plot:
        share_estimates.draw(options.plot, found)
    checks = [] if options.quick else list(share_estimates.checks(found))
    return finish(share_estimates.figures(found, plan), options, share_estimates.tables(found), checks)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_options(parser)
    sys.exit(main(run, parser))
