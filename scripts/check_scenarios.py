#!/usr/bin/env python
"""Runs two thousand random scenarios, N from 3 to 60 and M from 2 to 6, within ten minutes.

It does the same as `dca emulate sweep --seeds 0..1999 --minutes 10`. Exit code 4 unless all ran in that time and broke
no invariant, the noise of all together has its shape, every kind of fault and adversary occurred, every reachable entry
of the actors' tables was used (`emulator.trials.trial.TRANSITIONS`), and each checker had something to check.

It counts where the actors refuse something (`emulator.trials.refusals`). Exit code 4 also if one of these places is
reached in fewer than three of the first 300 seeds, unless `rare_refusals.toml` lists it with the reason and a test; or
if a listed one is reached in six. Those in between may be listed: each new kind of fault redraws some scenarios.

    scripts/check_scenarios.py                     all cores
    scripts/check_scenarios.py --seeds 0..299      reaches every kind, every entry and every refusal, too
    scripts/check_scenarios.py --seeds 0..299 --minutes 60    the same on one core
    scripts/check_scenarios.py --refusals          also print how many seeds reach each refusal
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from dca_proto import engine as engines
from dca_proto.cli import REFUTED
from dca_proto.cli.emulate_output import show_sweep
from emulator.trials.sweep import JUDGED, Sweep, sweep

MINUTES = 10.0
REACHED_MIN, NEEDLESS_MIN = 3, 6
RARE = Path(__file__).with_name("rare_refusals.toml")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0..1999", help="first and last seed")
    parser.add_argument("--processes", type=int, help="number of processes (default: one per core)")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"the time they may take (default: {MINUTES:g})")
    parser.add_argument("--engine", default=engines.LOCAL, help=engines.HELP)
    parser.add_argument("--refusals", action="store_true", help="print how many seeds reach each refusal")
    asked = parser.parse_args()
    first, last = (int(part) for part in asked.seeds.split(".."))
    found = sweep(first, last, minutes=asked.minutes, processes=asked.processes, engine=asked.engine, on_done=_tell)
    show_sweep(Console(), found)
    if asked.refusals:
        for site, count in sorted(found.refusals.items(), key=lambda item: (item[1], item[0])):
            print(f"{count:5}  {site}")
    asked_for = last - first + 1
    if found.run < asked_for:  # what the others would have reached is unknown
        print(f"only {found.run} of {asked_for} scenarios were run in {asked.minutes:g} minutes; raise --minutes")
        return REFUTED
    missed = found.never_reached
    if missed:
        print(f"never reached: {'; '.join(missed)}")
    idle = [number for number in found.invariants if not found.checked.get(number)]
    if idle:
        print(f"nothing to check: invariant {', '.join(idle)}")
    wrong = list(wrong_refusals(found.refusals, rare())) if asked_for >= JUDGED else []
    print("\n".join(wrong), end="\n" * bool(wrong))
    return REFUTED if not found.ok or missed or idle or wrong else 0


class Rare(NamedTuple):
    """A refusal that a sweep may miss. `why`: the reason. `test`: the name of a test that reaches it."""

    site: str
    why: str
    test: str


def rare() -> dict[str, Rare]:
    """Return the refusals that a sweep may miss, by their names."""
    listed = [Rare(**entry) for entry in tomllib.loads(RARE.read_text(encoding="utf-8"))["rare"]]
    return {entry.site: entry for entry in listed}


def wrong_refusals(counts: dict[str, int], listed: Mapping[str, object]) -> Iterator[str]:
    """Yield a line for each refusal that is reached too rarely and not listed, or that is listed without need."""
    for site, count in sorted(counts.items()):
        if count < REACHED_MIN and site not in listed:
            yield f"refusal reached in {count} of the first {JUDGED} seeds: {site}; reach it, or list it with a reason"
        elif count >= NEEDLESS_MIN and site in listed:
            yield f"refusal reached in {count} of the first {JUDGED} seeds: {site}; take it off {RARE.name}"
    for site in sorted(listed.keys() - counts.keys()):
        yield f"{RARE.name} lists a refusal that is not in the code: {site}"


def _tell(so_far: Sweep) -> None:
    if so_far.run % 100 == 0:
        print(f"{so_far.run} scenarios in {so_far.wall_s:.0f} s, {len(so_far.failed)} failed", flush=True)


if __name__ == "__main__":
    sys.exit(main())
