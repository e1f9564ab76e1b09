#!/usr/bin/env python
"""Joint-distribution tests (Geweke 2004) of every sampler that has a joint distribution, over sizes and noise.

`papers.mcmc2023.joint` says how. Each line of the table is a sampler at a size: the smallest of its
p-values times their number, what that p-value tests, and how much start and end still have in common. Exit code 4 if
one is too small: with samplers that are right, the probability of that is at most 1e-4 for the whole run (Bonferroni).
MCMC-B&S has no joint distribution, as its conditionals belong to different models, and is not here.

    scripts/check_samplers.py --json samplers.json      some minutes on two cores
    scripts/check_samplers.py --quick
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from emulator.experiments.runner import add_common_options, finish, main, run_cells
from papers.mcmc2023.samplers.methods import ready


def run(options: argparse.Namespace) -> int:
    ready()  # without JAX, this is told, and what follows cannot be imported
    from papers.mcmc2023 import sampler_checks
    from papers.mcmc2023.joint import FALSE_ALARM

    chains, steps = sampler_checks.QUICK if options.quick else sampler_checks.FULL
    results = run_cells(
        sampler_checks.cells_of(options.quick),
        partial(sampler_checks.work, chains=chains, steps=steps, seed=options.seed),
        label="joint distributions",
        resume=options.resume,
        processes=options.processes,
        settings={"chains": chains, "steps": steps, "seed": options.seed},
    )
    figures = {"kind": "check-samplers", "chains": chains, "steps": steps, "false_alarm": FALSE_ALARM, "cells": results}
    return finish(figures, options, [sampler_checks.verdicts(results)], sampler_checks.checks(results))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_options(parser)
    sys.exit(main(run, parser))
