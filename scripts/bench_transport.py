"""Compares the MQTT clients: a device, a publish with its receipt, idle connections, the main job, many live clients.

Each run is a process of its own, with mosquitto. Runs of the four kinds alternate, so that a busy machine slows all of
them. Printed are medians, with the least and the greatest value in brackets. "CPU" is the CPU time of the process with
the connections, without the broker's. The main job's CPU time is of all its processes, and so are a fleet's, by role,
in the second of its rounds.

Examples:

    scripts/bench_transport.py                              2,000 connections, 10,000 clients, five runs of each
    scripts/bench_transport.py --connections 200 --fleet 2000 --own --json -
    scripts/bench_transport.py --connections 0 --fleet 0              devices and the main job
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dca_proto.cli import main as dca
from dca_proto.runtime.broker import Broker, BrokerOptions, launch_broker
from dca_proto.runtime.mqtt import MqttTransport
from dca_proto.runtime.settings import BrokerSettings
from emulator.swarm import host
from emulator.swarm.options import CONNECTIONS, SwarmOptions
from emulator.swarm.synthetic import run_rounds

KINDS = [(client, version) for client in ("aiomqtt", "fleet") for version in ("3.1.1", "5")]
FIGURES = {
    "import_s": "import of a device [s]",
    "memory_mb": "memory of a device [MB]",
    "connect_us": "a connect [us of CPU]",
    "message_us": "a publish and a receive [us of CPU]",
    "idle_percent": "idle connections [% of a core]",
    "job_s": "main job [s]",
    "job_core_s": "main job [s of CPU]",
    "round_s": "a fleet's round [s]",
    "clients_core_s": "its clients [s of CPU]",
    "nodes_core_s": "its Compute nodes [s of CPU]",
    "broker_core_s": "its broker [s of CPU]",
}
_BYTES, _OPENING_MAX, _IDLE_S, _KEEPALIVE_S = 300, 50, 5.0, 1800


async def run(url: str, client: str, version: str, connections: int, rounds: int) -> dict[str, float]:
    """Open connections that each publish to themselves, and return what that costs."""
    mark = f"{os.getpid()}"
    settings = BrokerSettings(url=url, client=client, version=version, session_expiry_s=0, keepalive_s=_KEEPALIVE_S)  # type: ignore[arg-type]
    names = [f"{mark}-{number}" for number in range(connections)]
    transports = [
        MqttTransport(
            settings,
            name,
            (f"bench/{name}/+",),
            rng=random.Random(name),
            answer_timeout_s=120.0,
            on_report=lambda fact: None,
        )
        for name in names
    ]
    slots, found = asyncio.Semaphore(_OPENING_MAX), dict[str, float]()

    async def opened(transport: MqttTransport) -> None:
        async with slots:
            await transport.open()

    async def echoed(name: str, transport: MqttTransport) -> None:
        payload = os.urandom(_BYTES)
        sending = asyncio.ensure_future(transport.publish(f"bench/{name}/x", payload))
        assert (await transport.inbox.take()).payload == payload
        await sending

    began = time.process_time()
    await asyncio.gather(*map(opened, transports))
    found["connect_us"] = (time.process_time() - began) / connections * 1e6
    began = time.process_time()
    for _ in range(rounds):
        await asyncio.gather(*map(echoed, names, transports))
    found["message_us"] = (time.process_time() - began) / (rounds * connections) * 1e6
    began = time.process_time()
    await asyncio.sleep(_IDLE_S)
    found["idle_percent"] = (time.process_time() - began) / _IDLE_S * 100
    for transport in transports:
        await transport.close()
    return found


def _use(client: str, version: str) -> None:
    """Have all swarms of this process use that client, whatever their size, and that version of MQTT."""
    host.FLEET_FROM = 0 if client == "fleet" else 1 << 30
    Broker.mqtt_version = property(lambda _: version)  # type: ignore[assignment, method-assign, misc]


def main_job(client: str, version: str) -> dict[str, float]:
    """Run the main job; return its seconds, without the start of Python, and the CPU time of all its processes."""
    _use(client, version)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        code = dca(["swarm", "--broker", "mosquitto", "--json", str(Path(folder) / "result.json")])
    assert code == 0
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {"job_s": time.monotonic() - began, "job_core_s": sum(one.ru_utime + one.ru_stime for one in used)}


def fleet(client: str, version: str, clients: int, connections: str) -> dict[str, float]:
    """Run two rounds of many clients; return the figures of the second."""
    _use(client, version)
    options = SwarmOptions(
        clients=clients, dimension=10, computes=3, rounds=2, tolerate=clients // 10, broker="mosquitto", processes=2,
        connections=connections,
    )  # fmt: skip
    done = run_rounds(options)
    assert done.ok, done.error
    last = done.rounds[-1]
    roles = {"clients_core_s": "client", "nodes_core_s": "compute", "broker_core_s": "broker"}
    assert last.wall_s is not None
    return {"round_s": last.wall_s, **{name: last.core_s_by_role[role] for name, role in roles.items()}}


_DEVICE = """
import json, os, sys, time
began = time.process_time()
import dca_proto.protocol.client.actor, dca_proto.runtime.device
{more}
with open("/proc/self/statm") as file:
    pages = int(file.read().split()[1])
memory_mb = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
print(json.dumps(dict(import_s=time.process_time() - began, memory_mb=memory_mb)))
"""


def device(client: str, version: str) -> dict[str, float]:
    """Import what a device with that client imports, in a process of its own; return the time and the memory."""
    more = {("aiomqtt", "3.1.1"): "aiomqtt_connection", ("aiomqtt", "5"): "aiomqtt_connection"}
    module = more.get((client, version), "packets5" if version == "5" else "fleet_connection")
    return in_process("-c", _DEVICE.format(more=f"import dca_proto.runtime.{module}"))


def in_process(*arguments: str) -> dict[str, float]:
    """Run Python in a process of its own, and return what it prints as JSON."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


async def compare(
    connections: int, rounds: int, clients: int, mode: str, repeats: int
) -> dict[str, dict[str, list[float]]]:
    """Run all kinds in turn, `repeats` times, print a table, and return each value."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {kind: {name: [] for name in FIGURES} for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        async with launch_broker(Path(folder), BrokerOptions(kind="mosquitto")) as broker:
            for repeat in range(repeats):
                for kind in KINDS[repeat % len(KINDS) :] + KINDS[: repeat % len(KINDS)]:
                    sizes = map(str, (connections, rounds))
                    own = await asyncio.to_thread(device, *kind)
                    if connections:
                        own |= await asyncio.to_thread(in_process, __file__, "--run", broker.url, *kind, *sizes)
                    own |= await asyncio.to_thread(in_process, __file__, "--job", *kind)
                    if clients:
                        own |= await asyncio.to_thread(in_process, __file__, "--fleet-of", *kind, str(clients), mode)
                    print(*kind, json.dumps(own), file=sys.stderr, flush=True)
                    for name, value in own.items():
                        found[kind][name].append(value)
            _print(found, broker, f"{connections:,} connections, a fleet of {clients:,} ({mode}), {repeats} runs")
    return {" ".join(kind): figures for kind, figures in found.items()}


def _print(found: dict[tuple[str, str], dict[str, list[float]]], broker: Broker, what: str) -> None:
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("aiomqtt", "paho-mqtt", "mqtt5"))
    print(f"{what}; {versions}; mosquitto {broker.version};", end=" ")
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}")
    print(f"{'':34}" + "".join(f"{' '.join(kind):>24}" for kind in KINDS))
    for name, title in FIGURES.items():
        if not found[KINDS[0]][name]:
            continue
        cells = [
            f"{statistics.median(values):.3g} [{min(values):.3g}, {max(values):.3g}]"
            for values in (found[kind][name] for kind in KINDS)
        ]
        print(f"{title:34}" + "".join(f"{cell:>24}" for cell in cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=2000, help="in one process; 0 for none")
    parser.add_argument("--rounds", type=int, default=3, help="messages of each connection")
    parser.add_argument("--fleet", type=int, default=10_000, help="live clients; 0 for none")
    parser.add_argument("--own", action="store_true", help="each of them has a connection of its own")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--run", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--fleet-of", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        url, client, version, connections, rounds = given.run
        print(json.dumps(asyncio.run(run(url, client, version, int(connections), int(rounds)))))
    elif given.job:
        print(json.dumps(main_job(*given.job)))
    elif given.fleet_of:
        client, version, clients, mode = given.fleet_of
        print(json.dumps(fleet(client, version, int(clients), mode)))
    else:
        mode = CONNECTIONS[0 if given.own else 1]
        values = asyncio.run(compare(given.connections, given.rounds, given.fleet, mode, given.repeats))
        if given.json is not None:
            given.json.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
