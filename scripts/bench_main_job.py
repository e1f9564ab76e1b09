#!/usr/bin/env python
"""Times the main job as a user runs it, from process start to end, on each available broker.

Examples:

    scripts/bench_main_job.py                 5 runs on each broker
    scripts/bench_main_job.py --repeats 3 --json -
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dca_proto.runtime.broker import find_mosquitto
from dca_proto.runtime.files import STDOUT, write_json

ASKED_S = {"embedded": 5.0, "mosquitto": 4.0}


def run_once(broker: str) -> tuple[float, str]:
    """Return the seconds of one run, and the broker's version."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "dca_proto.cli", "swarm", "--broker", broker, "--json", str(result)]
        began = time.perf_counter()
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        elapsed_s = time.perf_counter() - began
        return elapsed_s, json.loads(result.read_text())["broker_version"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", help="write the figures to this file, or - for standard output")
    options = parser.parse_args()
    brokers = ["embedded", *(["mosquitto"] if find_mosquitto() else [])]
    figures = {"python": platform.python_version(), "cores": os.cpu_count(), "repeats": options.repeats, "brokers": {}}
    for broker in brokers:
        runs = [run_once(broker) for _ in range(options.repeats)]
        seconds = sorted(elapsed_s for elapsed_s, _ in runs)
        figures["brokers"][broker] = {
            "version": runs[0][1],
            "median_s": statistics.median(seconds),
            "least_s": seconds[0],
            "most_s": seconds[-1],
            "asked_s": ASKED_S[broker],
        }
    write_json(figures, options.json)
    if options.json == STDOUT:
        return 0
    print(f"Python {figures['python']}, {figures['cores']} cores, {options.repeats} runs each")
    for broker, row in figures["brokers"].items():
        print(
            f"{broker:<10} {row['version']:<8} median {row['median_s']:.2f} s "
            f"({row['least_s']:.2f} to {row['most_s']:.2f}); limit: {row['asked_s']:.0f} s"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
