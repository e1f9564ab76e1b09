#!/usr/bin/env python
"""Figure 3 of the DCA paper: rank correlation of predicted with measured drug sensitivity over ε, in the valid setting.

GDSC's terms of use forbid handing its data on. Without --folder the script runs on SIMULATED files of the same formats
and shape, and says so in JSON, title and table: they show that everything works and what the noise does to data of this
size, and nothing about cancer. With --folder it reads release 6.1 (`papers.dca2017.gdsc_files` lists the files).

    scripts/figure_3.py                            30 drugs, 25 runs, both cores, about two minutes
    scripts/figure_3.py --quick                    2 drugs, 4 runs, about 10 s
    scripts/figure_3.py --folder GDSC --drugs 0 --resume gdsc.jsonl --json gdsc.json --plot gdsc.png      all drugs
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from dca_proto.privacy.rounding import at_least
from emulator.experiments.runner import add_common_options, finish, main, run_cells, table
from inference.errors import DataError
from papers.dca2017.gdsc import (
    DELTA,
    EPSILONS,
    METHODS,
    RUNS,
    Cell,
    Setting,
    chosen_drugs,
    correlations,
    data,
    draw,
    summary,
)
from papers.dca2017.gdsc_files import GENES, SIMULATED
from papers.dca2017.simulated_gdsc import write_simulated

DRUGS = 30
QUICK_DRUGS, QUICK_RUNS = 2, 4


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="holds the GDSC files; without it they are simulated")
    parser.add_argument("--drugs", type=int, default=DRUGS, metavar="K", help="how many, at random; 0: all")
    parser.add_argument("--runs", type=int, default=RUNS, metavar="R", help="cross-validation runs (default 25)")
    parser.add_argument("--delta", type=float, default=DELTA, help="default 1e-4, as Figure 3 says; it was run at 1e-3")
    parser.add_argument("--genes", default=",".join(GENES), metavar="A,B,...", help="default: the ten that mutate most")
    parser.add_argument(
        "--centred-as-published", action="store_true", help="centre by the rows' own means: nothing is private then"
    )
    add_common_options(parser)
    return parser


def run(given: argparse.Namespace) -> int:
    if given.folder is not None:
        return experiment(given, given.folder)
    with tempfile.TemporaryDirectory() as folder:
        write_simulated(Path(folder), given.seed)
        return experiment(given, Path(folder))


def experiment(given: argparse.Namespace, folder: Path) -> int:
    genes = tuple(given.genes.split(","))
    setting = Setting(folder, genes, EPSILONS, given.delta, given.seed, given.centred_as_published)
    gdsc = data(folder, genes)
    drugs = chosen_drugs(gdsc, QUICK_DRUGS if given.quick else given.drugs, given.seed)
    runs = QUICK_RUNS if given.quick else given.runs
    if runs < 1:
        raise DataError(f"--runs is {runs}; expected at least 1")
    source = f"{SIMULATED}, seed {given.seed}" if gdsc.simulated else str(folder.resolve())
    results = run_cells(
        [Cell(drug, number) for drug in drugs for number in range(runs)],
        partial(correlations, setting=setting),
        label=f"Figure 3 ({SIMULATED} data)" if gdsc.simulated else "Figure 3",
        resume=given.resume,
        processes=given.processes,
        settings={"data": source, "genes": list(genes), "delta": given.delta, "seed": given.seed,
                  "centred_as_published": given.centred_as_published},
    )  # fmt: skip
    figures = {
        "kind": "figure-3",
        "simulated": gdsc.simulated,
        "data": source,
        "private": not given.centred_as_published,
        "drugs": drugs,
        "runs": runs,
        "genes": list(genes),
        **summary(results, setting),
        "cells": results,
    }
    shape = "SIMULATED data of the shape of GDSC" if gdsc.simulated else "GDSC"
    title = f"{shape}; drugs: {len(drugs)}, runs: {runs}, d = {len(genes)}, δ = {at_least(given.delta)}"
    title += "; NOT PRIVATE" if given.centred_as_published else ""
    if given.plot:
        draw(figures, given.plot, title)
    return finish(figures, given, [correlation_table(figures, title)])


def correlation_table(figures: dict[str, Any], title: str) -> Any:
    shown = table(
        f"rank correlation, mean ± standard deviation over the runs; {title}",
        "method",
        *(f"ε = {at_least(e)}" for e in figures["epsilon"]),
    )
    for method in METHODS:
        one = figures["methods"][method]
        shown.add_row(method, *(f"{m:.2f} ± {s:.2f}" for m, s in zip(one["mean"], one["sd"], strict=True)))
    shown.add_row("zero predictor", *("0" for _ in figures["epsilon"]))
    return shown


if __name__ == "__main__":
    sys.exit(main(run, options()))
