#!/usr/bin/env python3
"""What `dca audit` proves of the correct program over many seeds, and whether it sees every planted fault.

    scripts/check_audit.py
    scripts/check_audit.py --seeds 2 --plant-seeds 1 --json -

For each seed an audit at epsilon 1, delta 1e-6, N = 10, T = 3, 95 % confidence: mean and standard deviation of both
lower bounds on epsilon and of the residual variance in parts of the floor (their range, too, in the JSON). For each
fault the same at its own operating point, how many audits refuted it, and the slowest audit's seconds. Exit code 4
where a correct program was refuted, a fault was not, or an audit took more than three minutes.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from emulator.audit.faults import FAULTS

SECONDS_MAX = 180
POINT = ["--clients", "10", "--tolerate", "3", "--epsilon", "1", "--delta", "1e-6"]


def audit(seed: int, runs: int, *options: str) -> dict[str, Any]:
    """One audit's figures, as a program gets them."""
    command = [sys.executable, "-m", "dca_proto.cli", "audit", *POINT, "--runs", str(runs), "--seed", str(seed)]
    done = subprocess.run([*command, *options, "--json", "-"], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 4):
        raise SystemExit(done.stderr)
    return {**json.loads(done.stdout), "exit_code": done.returncode}


def spread(values: list[float]) -> dict[str, float]:
    """Mean, standard deviation and range."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "sd": deviation, "least": min(values), "most": max(values)}


def summarise(audits: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of one programme over its seeds."""
    return {
        "audits": len(audits),
        "refuted": sum(one["exit_code"] == 4 for one in audits),
        "epsilon_claimed": audits[0]["epsilon_claimed"],
        "epsilon_lower_gdp": spread([one["epsilon_lower_gdp"] for one in audits]),
        "epsilon_lower_cp": spread([one["epsilon_lower_cp"] for one in audits]),
        "variance_ratio": spread([one["residual_variance"] / one["variance_floor"] for one in audits]),
        "seconds_most": max(one["seconds"] for one in audits),
    }


def show(name: str, figures: dict[str, Any]) -> None:
    parts = [f"{figures[key]['mean']:9.4g} ± {figures[key]['sd']:<8.2g}"
             for key in ("variance_ratio", "epsilon_lower_gdp", "epsilon_lower_cp")]  # fmt: skip
    counts = f"{figures['refuted']} of {figures['audits']} refuted"
    sys.stderr.write(f"{name:26} {' '.join(parts)} {counts:18} {figures['seconds_most']:6.1f} s\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="audits of the correct program")
    parser.add_argument("--plant-seeds", type=int, default=5, help="audits of each planted fault")
    parser.add_argument("--runs", type=int, default=400_000, help="rounds of each world")
    parser.add_argument("--json", metavar="FILE", help="write the figures to a file, or - for stdout")
    options = parser.parse_args()
    sys.stderr.write(f"{'':26} {'variance/floor':20} {'epsilon, GDP':20} {'epsilon, any':20}\n")
    results = {"correct": summarise([audit(seed, options.runs) for seed in range(options.seeds)])}
    show("correct", results["correct"])
    for fault in FAULTS:
        seeds = range(options.plant_seeds)
        results[fault] = summarise([audit(seed, options.runs, "--plant", fault) for seed in seeds])
        show(fault, results[fault])
    versions = {"python": platform.python_version(), "numpy": np.__version__, "scipy": scipy.__version__}
    if options.json:
        text = json.dumps({"runs": options.runs, "versions": versions, "results": results}, indent=2) + "\n"
        sys.stdout.write(text) if options.json == "-" else Path(options.json).write_text(text, encoding="utf-8")
    sound = results["correct"]["refuted"] == 0
    seen = all(results[fault]["refuted"] == results[fault]["audits"] for fault in FAULTS)
    return 0 if sound and seen and all(one["seconds_most"] < SECONDS_MAX for one in results.values()) else 4


if __name__ == "__main__":
    sys.exit(main())
