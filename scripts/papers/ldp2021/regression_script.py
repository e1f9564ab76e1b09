"""What the scripts of Figures 4 and 5 share: options, cells, and what is made of the results."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

from dca_proto.privacy.rounding import at_least
from emulator.experiments.runner import add_common_options, finish, positive, run_cells
from papers.ldp2021.column_fits import ready
from papers.ldp2021.regression_data import COMPONENTS, QUANTILE, SETTINGS, Choices, problem
from papers.ldp2021.regression_drawing import draw
from papers.ldp2021.regression_methods import INPUTS, INPUTS_2, INPUTS_4
from papers.ldp2021.regression_summary import checks, comparisons, figures, gathered, tables
from papers.ldp2021.regression_work import DELTA, ITERATIONS, REPEATS, Plan, Task, cells, work

QUICK_REPEATS, QUICK_EPSILONS, QUICK_ITERATIONS = 2, (0.8, 12.8), 200


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """All options that both scripts have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_options(parser)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="with the data files; else DCA_DATA, else download")
    parser.add_argument("--setting", action="append", choices=SETTINGS, help="only this one")
    parser.add_argument("--repeats", type=positive, default=REPEATS, metavar="R", help=f"by default {REPEATS}")
    parser.add_argument("--components", type=positive, default=COMPONENTS, metavar="K", help="of the features")
    parser.add_argument(
        "--norm-quantile", type=float, default=QUANTILE, metavar="Q", help="of norms, is R as published"
    )
    parser.add_argument(
        "--delta", type=float, default=DELTA, metavar="D", help=f"of each client, by default {at_least(DELTA)}"
    )
    parser.add_argument("--iterations", type=positive, default=ITERATIONS, metavar="K", help="of each of four chains")
    return parser


def run(options: argparse.Namespace, task: Task) -> int:
    """All of a figure; returns the exit code."""
    ready()  # without NumPyro, this is told before the work
    problem(task.data, options.data)  # and so are missing data
    plan = plan_of(options, task)
    asked = cells(plan, options.setting or SETTINGS)
    results = run_cells(
        asked,
        partial(work, plan=plan),
        label=f"figure {task.figure}",
        cost=lambda cell: cell.cost,
        resume=options.resume,
        processes=options.processes,
        settings=plan.settings,
    )
    found = gathered(asked, results, plan)
    made = comparisons(found)
    if options.plot:
        draw(found, options.plot)
    report = figures(found, made) | {"settings": plan.settings}
    return finish(report, options, tables(found, made), [] if options.quick else checks(found, made))


def plan_of(options: argparse.Namespace, task: Task) -> Plan:
    """Of a script's options; only Figure 5's has those of perturbed inputs."""
    choices, quick = Choices(options.components, options.norm_quantile), options.quick
    inputs: tuple[tuple[str, int], ...] = ()
    if task.label and not quick:
        inputs = (INPUTS_2, options.inputs), (INPUTS_4, options.inputs), (INPUTS, options.exact_inputs)
    plan = Plan(
        task,
        options.data,
        options.seed,
        repeats=QUICK_REPEATS if quick else options.repeats,
        input_repeats=inputs,
        delta=options.delta,
        iterations=QUICK_ITERATIONS if quick else options.iterations,
        choices=choices,
    )
    return replace(plan, epsilons=QUICK_EPSILONS) if quick else plan
