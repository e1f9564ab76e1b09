#!/usr/bin/env python
"""Figure 2 of the LDP paper: how far a histogram's posterior from local reports is from the one without privacy.

Some 7 minutes on two cores.
11,000 SIMULATED records of ten items, with probabilities as 1/rank, stand in for the paper's sample of click streams;
they are told by optimal unary encoding at six ε, 50 times each, and once more at an ε beyond which nothing changes. The
distance is the mean absolute difference of a share's two distribution functions, without privacy in closed form
(scripts/papers/ldp2021/click_distance.py).

Exit code 4 where the distance does not fall with ε, does not end near the least that the mechanism allows, or an R-hat
is not below 1.1.

    scripts/ldp_figure_2.py --json ldp_figure_2.json --plot ldp_figure_2.png --resume ldp_figure_2.jsonl
    scripts/ldp_figure_2.py --quick
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from emulator.experiments.runner import add_common_options, finish, main, run_cells
from papers.ldp2021 import click_distance
from papers.ldp2021.click_distance import Plan, cells, work
from papers.ldp2021.column_fits import ready


def run(options: argparse.Namespace) -> int:
    ready()
    plan = Plan.quick(options.seed) if options.quick else Plan(options.seed)
    asked = cells(plan)
    results = run_cells(
        asked,
        partial(work, plan=plan),
        label="figure 2",
        resume=options.resume,
        processes=options.processes,
        settings={"seed": plan.seed, "iterations": plan.iterations},
    )
    found = click_distance.gathered(asked, results)
    if options.plot:
        click_distance.draw(options.plot, found)
    checks = [] if options.quick else list(click_distance.checks(found))
    return finish(click_distance.figures(found, plan), options, click_distance.tables(found), checks)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_options(parser)
    sys.exit(main(run, parser))
