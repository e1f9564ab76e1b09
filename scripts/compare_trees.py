#!/usr/bin/env python
"""Compares the processor time of a contribution in two trees, such as a release and this one.

Each run is a process of its own that runs `scripts/bench_core.py` of its tree, with the packages of this Python: one
cell, CPU time, no network. Runs of the trees alternate, and each pair begins with the other tree. So a machine whose
speed changes, or that others use, moves both. The verdict is about the ratio within pairs.

    git worktree add --detach ../before v0.1.0
    scripts/compare_trees.py ../before                       N = 1,000, M = 3, d = 10; nine pairs
    scripts/compare_trees.py ../before --pairs 15 --json trees.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from dca_proto.runtime.files import STDOUT, write_json

HERE = Path(__file__).resolve().parent.parent
ROLES = ("client", "holder", "nodes", "trainer")
ALL, ONCE = "all", "once a round"


def measured(tree: Path, cell: list[str]) -> dict[str, float]:
    """Return the microseconds of one run: of each role and of all per contribution, and once a round."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        to = Path(folder) / "figures.json"
        command = [sys.executable, str(tree / "scripts" / "bench_core.py"), *cell, "--json", str(to)]
        subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.DEVNULL)
        (found,) = json.loads(to.read_text())["cells"]
    return {**found["core_us"], ALL: found["core_total_us"], ONCE: found["once_a_round_us"]}


def spread(values: list[float], digits: int) -> str:
    """Return the median, with the least and the greatest value in brackets."""
    low, middle, high = (f"{one:.{digits}f}" for one in (min(values), statistics.median(values), max(values)))
    return f"{middle} [{low}, {high}]"


def compare(before: Path, pairs: int, cell: list[str]) -> dict[str, Any]:
    """Run both trees alternately, and return all figures by tree and name."""
    trees = {"before": before, "now": HERE}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    for pair in range(pairs):
        for name in sorted(trees, reverse=bool(pair % 2)):
            runs[name].append(measured(trees[name], cell))
            print(f"pair {pair + 1} of {pairs}: {name} {runs[name][-1][ALL]:.1f} us", file=sys.stderr, flush=True)
    return {name: {key: [run[key] for run in done] for key in (*ROLES, ALL, ONCE)} for name, done in runs.items()}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the folder of the other tree")
    parser.add_argument("--pairs", type=int, default=9, help="runs of each tree")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of a run")
    parser.add_argument("--clients", type=int, default=1000, help="N")
    parser.add_argument("--computes", type=int, default=3, help="M")
    parser.add_argument("--dimension", type=int, default=10, help="d")
    parser.add_argument("--json", help="write the figures to this file, or - for standard output")
    asked = parser.parse_args(arguments)
    cell = [f"--{name}={getattr(asked, name)}" for name in ("rounds", "clients", "computes", "dimension")]
    figures = compare(asked.before.resolve(), asked.pairs, cell)
    out = sys.stderr if asked.json == STDOUT else sys.stdout
    print(f"N = {asked.clients}, M = {asked.computes}, d = {asked.dimension}: us, median [least, greatest]", file=out)
    for key in (*ROLES, ALL, ONCE):
        before, now = figures["before"][key], figures["now"][key]
        ratios = [one / other for one, other in zip(now, before, strict=True)]
        print(f"  {key:<13}{spread(before, 1):<26}{spread(now, 1):<26}ratio {spread(ratios, 3)}", file=out)
    if asked.json:
        write_json(figures, asked.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
