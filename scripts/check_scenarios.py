#!/usr/bin/env python
"""Runs two thousand random scenarios, N from 3 to 60 and M from 2 to 6, within ten minutes.

It does the same as `dca emulate sweep --seeds 0..1999 --minutes 10`. Exit code 4 unless all ran in that time and broke
no invariant, every kind of fault and adversary occurred, every reachable entry of the actors' tables was used
(`emulator.trials.trial.TRANSITIONS`), and each of the eleven checkers had something to check.

    scripts/check_scenarios.py                     all cores
    scripts/check_scenarios.py --seeds 0..299      reaches every kind and every entry, too
"""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from dca_proto.cli import REFUTED
from dca_proto.cli.emulate_output import show_sweep
from emulator import engine as engines
from emulator.trials.sweep import Sweep, sweep

MINUTES = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0..1999", help="first and last seed")
    parser.add_argument("--processes", type=int, help="number of processes (default: one per core)")
    parser.add_argument("--engine", default=engines.LOCAL, help=engines.HELP)
    asked = parser.parse_args()
    first, last = (int(part) for part in asked.seeds.split(".."))
    found = sweep(first, last, minutes=MINUTES, processes=asked.processes, engine=asked.engine, on_done=_tell)
    show_sweep(Console(), found)
    missed = found.never_reached
    if missed:
        print(f"never reached: {'; '.join(missed)}")
    idle = [str(number) for number in range(1, 12) if not found.checked.get(str(number))]
    if idle:
        print(f"nothing to check: invariant {', '.join(idle)}")
    asked_for = last - first + 1
    if found.run < asked_for:
        print(f"only {found.run} of {asked_for} scenarios were run in {MINUTES:g} minutes")
    return REFUTED if not found.ok or missed or idle or found.run < asked_for else 0


def _tell(so_far: Sweep) -> None:
    if so_far.run % 100 == 0:
        print(f"{so_far.run} scenarios in {so_far.wall_s:.0f} s, {len(so_far.failed)} failed", flush=True)


if __name__ == "__main__":
    sys.exit(main())
