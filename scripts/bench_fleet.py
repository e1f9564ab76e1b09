#!/usr/bin/env python
"""Times rounds of many live clients over mosquitto: with one connection per client, and with one per process.

In the first round, each pair of client and Compute node agrees on its key.

Examples:

    scripts/bench_fleet.py                              10,000 clients, d = 10, M = 3
    scripts/bench_fleet.py --clients 2000 --rounds 3 --json -
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from typing import Any

from dca_proto.runtime.files import STDOUT, write_json
from emulator.swarm.options import CONNECTIONS, SwarmOptions
from emulator.swarm.synthetic import run_rounds

KEPT = ("wall_s", "phases", "contributors", "messages", "bytes", "core_s_by_role")


def run_once(options: SwarmOptions) -> dict[str, Any]:
    """Run one fleet; return the figures of its report."""
    done = run_rounds(options)
    return {
        "connections": options.connections,
        "ok": done.ok,
        "error": done.error,
        "connect_s": done.connect_s,
        "sessions_s": done.sessions_s,
        "peak_rss_mb_by_process": done.peak_rss_mb_by_process,
        "rounds": [{key: getattr(one, key) for key in KEPT} for one in done.rounds],
    }


def show(one: dict[str, Any]) -> None:
    """Print a line for each round."""
    for number, row in enumerate(one["rounds"], 1):
        phases = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in row["phases"].items())
        print(
            f"{one['connections']:<7} connected in {one['connect_s']:.1f} s, sessions in {one['sessions_s']:.1f} s; "
            f"round {number}: {row['contributors']} "
            f"contributed, {row['wall_s']:.1f} s ({phases}), {row['messages']} messages, {row['bytes'] / 1e6:.1f} MB"
        )
    memory = ", ".join(f"{name} {mib:.0f}" for name, mib in one["peak_rss_mb_by_process"].items())
    print(f"        peak memory in MiB: {memory}" if one["ok"] else f"        {one['error']}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--dimension", type=int, default=10)
    parser.add_argument("--computes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="write the figures to this file, or - for standard output")
    asked = parser.parse_args()
    sizes = {name: getattr(asked, name) for name in ("clients", "dimension", "computes", "rounds")}
    how = {"tolerate": asked.clients // 10, "broker": "mosquitto", "processes": 2}
    modes = [run_once(SwarmOptions(**sizes, **how, connections=connections)) for connections in CONNECTIONS]
    figures = {"python": platform.python_version(), "cores": os.cpu_count(), **sizes, "modes": modes}
    write_json(figures, asked.json)
    for one in modes if asked.json != STDOUT else []:
        show(one)
    return 0 if all(one["ok"] for one in modes) else 1


if __name__ == "__main__":
    sys.exit(main())
