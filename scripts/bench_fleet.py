#!/usr/bin/env python
"""Times rounds of many live clients over mosquitto: with one connection per client, and with one per process.

In the first round, each pair of client and Compute node agrees on its key. By default each process has the MQTT client
that the swarm chooses; `--client` has all of them use one, and `--client both` measures one after the other.

Examples:

    scripts/bench_fleet.py                              10,000 clients, d = 10, M = 3
    scripts/bench_fleet.py --clients 2000 --rounds 3 --json -
    scripts/bench_fleet.py --client both                      aiomqtt beside the client for fleets
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from typing import Any

from dca_proto.runtime.files import STDOUT, write_json
from emulator.swarm import host
from emulator.swarm.options import CONNECTIONS, SwarmOptions
from emulator.swarm.synthetic import run_rounds

KEPT = ("wall_s", "phases", "contributors", "messages", "bytes", "core_s_by_role")


FROM = {"auto": host.FLEET_FROM, "fleet": 0, "aiomqtt": 1 << 30}
"""Of how many clients on a process uses the client for fleets."""


def run_once(options: SwarmOptions, client: str) -> dict[str, Any]:
    """Run one fleet; return the figures of its report."""
    host.FLEET_FROM = FROM[client]
    done = run_rounds(options)
    return {
        "client": client,
        "load": os.getloadavg()[0],
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
            f"{one['client']:<7} {one['connections']:<7} connected in {one['connect_s']:.1f} s, sessions in "
            f"{one['sessions_s']:.1f} s; round {number}: {row['contributors']} contributed, {row['wall_s']:.1f} s "
            f"({phases}), {row['messages']} messages, {row['bytes'] / 1e6:.1f} MB"
        )
        core = ", ".join(f"{role} {seconds:.1f}" for role, seconds in row["core_s_by_role"].items())
        print(f"        core seconds: {core}")
    memory = ", ".join(f"{name} {mib:.0f}" for name, mib in one["peak_rss_mb_by_process"].items())
    print(f"        peak memory in MiB: {memory}" if one["ok"] else f"        {one['error']}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--dimension", type=int, default=10)
    parser.add_argument("--computes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--client", choices=[*FROM, "both"], default="auto", help="MQTT client of all processes")
    parser.add_argument("--connections", choices=[*CONNECTIONS, "both"], default="both")
    parser.add_argument("--json", help="write the figures to this file, or - for standard output")
    asked = parser.parse_args()
    sizes = {name: getattr(asked, name) for name in ("clients", "dimension", "computes", "rounds")}
    how = {"tolerate": asked.clients // 10, "broker": "mosquitto", "processes": 2}
    clients = ("aiomqtt", "fleet") if asked.client == "both" else (asked.client,)
    kinds = CONNECTIONS if asked.connections == "both" else (asked.connections,)
    modes = [run_once(SwarmOptions(**sizes, **how, connections=kind), client) for kind in kinds for client in clients]
    figures = {"python": platform.python_version(), "cores": os.cpu_count(), **sizes, "modes": modes}
    write_json(figures, asked.json)
    for one in modes if asked.json != STDOUT else []:
        show(one)
    return 0 if all(one["ok"] for one in modes) else 1


if __name__ == "__main__":
    sys.exit(main())
