#!/usr/bin/env python3
"""Measures a client's cost on a device: import time, and resident memory of a real client, connected and idle.

    scripts/measure_device.py
    scripts/measure_device.py --broker embedded --repeats 3 --json -

Each import is timed in a fresh process; the medians of CPU time and of wall time are printed. Memory is the resident
size of `python -m dca_proto client.toml` (psutil) when it is connected to a broker that the script starts. Targets:
0.5 s of CPU time, which is the wall time of an idle machine, and 80 MB.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from dca_proto.protocol.federation import Federation, Member, enrol, sign_federation
from dca_proto.runtime.broker import BrokerOptions, launch_broker
from dca_proto.runtime.files import STDOUT, write_json
from dca_proto.runtime.keyfile import new_identity, write_certificate, write_identity

IMPORT_S_MAX, MEMORY_MB_MAX = 0.5, 80.0
_IMPORT = """import time; began = time.process_time(), time.perf_counter()
import dca_proto.runtime.device, dca_proto.protocol.client.actor, dca_proto.runtime.table
import dca_proto.runtime.aiomqtt_connection
print(time.process_time() - began[0], time.perf_counter() - began[1])"""
_DAY_MS = 24 * 3600 * 1000


def main() -> int:
    """Measure, print, and fail if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the figures to this file, or - for standard output")
    parser.add_argument("--repeats", type=int, default=5, help="number of timed imports")
    parser.add_argument("--broker", default="auto", choices=["auto", "mosquitto", "embedded"], help="the broker")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dca-measure-") as folder:
        figures = asyncio.run(_measure(Path(folder), given.repeats, given.broker))
    write_json(figures, given.json)
    print(_text(figures), file=sys.stderr if given.json == STDOUT else sys.stdout)
    return 0 if figures["ok"] else 1


async def _measure(folder: Path, repeats: int, kind: Any) -> dict[str, Any]:
    core, wall = (sorted(column) for column in zip(*(_import_s() for _ in range(repeats)), strict=True))
    async with launch_broker(folder / "broker", BrokerOptions(kind=kind)) as broker:
        start_s, memory_mb = _run_client(_write_client(folder, broker.url))
    median_s = statistics.median(core)
    return {
        "import_core_s": round(median_s, 3),
        "import_core_s_range": [round(core[0], 3), round(core[-1], 3)],
        "import_wall_s": round(statistics.median(wall), 3),
        "import_core_s_max": IMPORT_S_MAX,
        "memory_mb": round(memory_mb, 1),
        "memory_mb_max": MEMORY_MB_MAX,
        "start_to_connected_s": round(start_s, 2),
        "python": sys.version.split()[0],
        "broker": f"{broker.kind} {broker.version}",
        "ok": median_s < IMPORT_S_MAX and memory_mb < MEMORY_MB_MAX,
    }


def _import_s() -> tuple[float, float]:
    """Return the CPU time and the wall time of what a device imports."""
    done = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=True)
    core, wall = map(float, done.stdout.split())
    return core, wall


def _write_client(folder: Path, url: str) -> Path:
    """Write a client's files, in its own federation, with 100 rows of data."""
    authority, client = new_identity(), new_identity()
    members = [Member(f"m{index}", new_identity().public_key) for index in range(3)]
    unsigned = Federation("measure", authority.public_key, tuple(members[:2]), (members[2],))
    federation = sign_federation(authority, unsigned)
    (folder / "federation.toml").write_text(federation.to_toml())
    write_identity(folder / "client.key", "client", client)
    until_ms = time.time_ns() // 1_000_000 + _DAY_MS
    write_certificate(folder / "client.cert", federation, enrol(authority, federation, client.public_key, until_ms))
    (folder / "data.csv").write_text("x,y\n" + "1.5,2.5\n" * 100)
    config = folder / "client.toml"
    config.write_text(
        '[client]\nidentity = "client.key"\nfederation = "federation.toml"\ndata = "data.csv"\nstore = "client.db"\n'
        f'[broker]\nurl = "{url}"\n'
    )
    return config


def _run_client(config: Path) -> tuple[float, float]:
    """Return the seconds until a client is connected, and its megabytes (10^6 bytes) of memory then."""
    began = time.monotonic()
    command = [sys.executable, "-m", "dca_proto", str(config), "--log-json"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if json.loads(line)["event"] == "Connected":
                    return time.monotonic() - began, psutil.Process(process.pid).memory_info().rss / 1e6
            raise SystemExit(f"the client ended with code {process.wait()}")
        finally:
            process.terminate()


def _text(figures: dict[str, Any]) -> str:
    low, high = figures["import_core_s_range"]
    return (
        f"import  {figures['import_core_s']:.3f} s of CPU time (median; {low:.3f} to {high:.3f}), "
        f"target below {IMPORT_S_MAX} s; {figures['import_wall_s']:.3f} s wall\n"
        f"memory  {figures['memory_mb']:.1f} MB resident, connected and idle, target below {MEMORY_MB_MAX:.0f} MB\n"
        f"start   {figures['start_to_connected_s']:.2f} s from the process's start until it is connected\n"
        f"        Python {figures['python']}, {figures['broker']}"
    )


if __name__ == "__main__":
    sys.exit(main())
