#!/usr/bin/env python
"""Joint-distribution tests (Geweke 2004) of every sampler that has a joint distribution, over sizes and noise.

`emulator.experiments.distributed.joint` says how. Each line of the table is a sampler at a size: the smallest of its
p-values times their number, what that p-value tests, and how much start and end still have in common. Exit code 4 if
one is too small: with samplers that are right, the probability of that is at most 1e-4 for the whole run (Bonferroni).
MCMC-B&S has no joint distribution, as its conditionals belong to different models, and is not here.

    scripts/check_samplers.py --json samplers.json      some minutes on two cores
    scripts/check_samplers.py --quick
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from emulator.experiments.distributed.joint import FALSE_ALARM, STILL, successive, verdict
from emulator.experiments.distributed.subjects import SAMPLERS, Regime
from emulator.experiments.runner import Check, add_common_options, finish, main, run_cells, table

REGIMES = (
    Regime(1, (12,), 1.0),
    Regime(2, (30, 50), 1.0),
    Regime(2, (40,), 0.1),
    Regime(3, (20, 60, 200), 3.0),
    Regime(5, (100, 150), 1.0),
)
CHAINS, STEPS = 10_000, 30
QUICK_CHAINS, QUICK_STEPS = 4000, 20


@dataclass(frozen=True)
class Cell:
    """A sampler, and a regime by its place."""

    sampler: str
    regime: int

    def __str__(self) -> str:
        return f"{self.sampler}, {REGIMES[self.regime]}"


def work(cell: Cell, chains: int, steps: int, seed: int) -> dict[str, Any]:
    """The verdict as plain data."""
    subject = SAMPLERS[cell.sampler](REGIMES[cell.regime])
    found = verdict(subject, successive(subject), chains=chains, steps=steps, seed=seed)
    name, test = found.worst
    return {
        "sampler": cell.sampler,
        "regime": str(REGIMES[cell.regime]),
        "alarm": found.alarm,
        "worst": f"{name} ({test})",
        "p": {f"{name} ({test})": p for (name, test), p in found.p.items()},
        "memory": found.memory,
        "unmoved": found.unmoved,
        "acceptance": found.acceptance,
    }


def run(options: argparse.Namespace) -> int:
    chains, steps = (QUICK_CHAINS, QUICK_STEPS) if options.quick else (CHAINS, STEPS)
    regimes = (1,) if options.quick else range(len(REGIMES))
    cells = [Cell(sampler, regime) for sampler in SAMPLERS for regime in regimes]
    results = run_cells(
        cells,
        partial(work, chains=chains, steps=steps, seed=options.seed),
        label="joint distributions",
        resume=options.resume,
        processes=options.processes,
        settings={"chains": chains, "steps": steps, "seed": options.seed},
    )
    figures = {"kind": "check-samplers", "chains": chains, "steps": steps, "false_alarm": FALSE_ALARM, "cells": results}
    return finish(figures, options, [verdicts(results)], checks(results))


def verdicts(results: Sequence[dict[str, Any]]) -> Any:
    shown = table(
        "joint-distribution tests",
        "sampler",
        "d, nodes and noise",
        "alarm",
        "the smallest p-value's test",
        "tests",
        "memory at most",
        "acceptance",
    )
    for one in results:
        accepted = ", ".join(f"{block} {share:.2f}" for block, share in one["acceptance"].items())
        memory = f"{max(one['memory'].values()):.2f}"
        shown.add_row(
            one["sampler"], one["regime"], f"{one['alarm']:.2g}", one["worst"], str(len(one["p"])), memory, accepted
        )
    return shown


def checks(results: Sequence[dict[str, Any]]) -> list[Check]:
    """One for each sampler."""
    found = []
    for sampler in dict.fromkeys(one["sampler"] for one in results):
        own = [one for one in results if one["sampler"] == sampler]
        alarm = min(one["alarm"] for one in own)
        least = FALSE_ALARM / len(results)
        asked = f"no alarm below {least:.1e} in {len(own)} regimes"
        found.append(Check(f"{sampler} leaves the joint distribution as it is", asked, f"{alarm:.2g}", alarm > least))
        unmoved = max(max(one["unmoved"].values()) for one in own)
        asked = f"at most {STILL:.0%} of the chains end where they started"
        found.append(Check(f"{sampler} moves", asked, f"{unmoved:.1%}", unmoved <= STILL))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_options(parser)
    sys.exit(main(run, parser))
