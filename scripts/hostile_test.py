#!/usr/bin/env python
"""A live federation under attack by a malicious enrolled client, which must have no effect on the others.

The script creates a federation. It runs mosquitto as `dca broker` configures it (TLS, passwords, access lists, limits),
three Compute nodes and 25 honest clients, each in its own process, and a trainer that runs one round after another.
Then it adds `scripts/hostile_client.py`, and a client that runs in two copies. With `--flood N`, it first runs
`scripts/hostile_trainer.py` alone: a second trainer that floods nodes and a client with N rounds of each kind. Exit
code 4 if a check fails:

    rounds      every round ends with a result, and no mean is off by more than seven standard deviations
    processes   none ends
    memory      none grows by more than 50 MiB after its first rounds
    flat        no node and no flooded client grows by more than 20 MiB between a flood's first quarter and its end
    copies      two copies of one identity do not end each other's connections again and again

Needs mosquitto, openssl and Linux's /proc.

Examples:

    scripts/hostile_test.py                                    ten minutes of attacks
    scripts/hostile_test.py --minutes 1 --seed 3 --json -
    scripts/hostile_test.py --minutes 0 --flood 250 --json -
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, TextIO

import msgspec
from rich.console import Console

from dca_proto.aggregate import NoisyAggregate
from dca_proto.cli.progress import PatientBar
from dca_proto.errors import RoundAborted
from dca_proto.results.round import estimates
from dca_proto.runtime import device
from dca_proto.runtime.files import write_json
from dca_proto.runtime.keyfile import read_identity
from dca_proto.runtime.request import RoundSettings, open_round

CLIENTS, COMPUTES = 25, 3
GROWTH_MIB_MAX, DEVIATIONS_MAX, WARM_ROUNDS = 50.0, 7.0, 4
START_S, ROUND_S, POLL_S, PAUSE_S, SETTLED_S = 180.0, 60.0, 0.5, 0.5, 15.0
FLAT_MIB_MAX, FLOOD_S = 20.0, 900.0
VICTIM = "client-1"
LOSSES, LOSSES_A_MINUTE = 12, 4
"""The most connections of one of two copies: fast at first, then one every 15 to 30 seconds."""
DATA = "x\n0.5\n"
SMALL = "clients_min = 1\nhonest_min = 1\n"
LIMITS = {
    "client": f"[policy]\n{SMALL}epsilon_per_period_max = 500\nrows_of_many = true\n",
    "compute": f"[floors]\n{SMALL}",
    "trainer": "[account]\nepsilon = 500\n",
}
MEAN: dict[str, Any] = {
    "statistic": "mean", "columns": ("x",), "bounds": {"x": (0, 1)}, "epsilon": 1, "clients": CLIENTS,
    "collect_s": ROUND_S / 2, "commit_s": ROUND_S / 2,
}  # fmt: skip
SUM_BY_CLIENTS = RoundSettings(**MEAN, delta=1e-6, tolerate=4)
ROUNDS = (
    SUM_BY_CLIENTS,
    SUM_BY_CLIENTS,
    RoundSettings(**MEAN, kind="ldp-report", mechanism="grid-laplace"),
    SUM_BY_CLIENTS,
    RoundSettings(**MEAN, delta=1e-6, kind="node-release", rows_max=1),
)
"""The trainer's rounds, in turn."""
OPENSSL = (
    *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
    *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", "broker.key", "-out", "broker.pem"),
)
"""The command of docs/howto/broker.md that creates the broker's certificate."""


# --- the trainer's process --------------------------------------------------------------------------------------------


async def hold_rounds(config: Path, clients: int) -> None:
    """Run rounds until the standard input ends; print a line of JSON for each."""
    actor = device.load(config, roles=("trainer",))
    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, over.set)
    async with actor.live() as trainer:
        number = 0
        while not over.is_set():
            began = time.monotonic()
            settings = msgspec.structs.replace(ROUNDS[number % len(ROUNDS)], clients=clients)
            record: dict[str, Any] = {"number": number, "kind": settings.kind}
            try:
                record |= _figures(await trainer.run_round(open_round(settings, actor.config.federation)))
            except RoundAborted as error:
                record |= {"ok": False, "error": str(error)}
            print(json.dumps({**record, "seconds": round(time.monotonic() - began, 2)}), flush=True)
            number += 1
            await asyncio.sleep(PAUSE_S)


def _figures(aggregate: NoisyAggregate) -> dict[str, Any]:
    """Return the result of a round, in which each honest client has the value 0.5."""
    estimate, *_ = estimates(aggregate)  # then the number of complete rows
    found = {"contributors": aggregate.contributors, "value": estimate.value, "noise_std": estimate.noise_std}
    return {"ok": True, **found}


# --- the others' processes --------------------------------------------------------------------------------------------


class Process:
    """A process with its log and its memory use."""

    def __init__(self, name: str, command: list[str], directory: Path, log: TextIO) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self.popen = subprocess.Popen(command, cwd=directory, stdin=subprocess.PIPE, stdout=log, stderr=log)
        self.pid = self.popen.pid
        self.start_mib = self.peak_mib = 0.0
        self._began = time.monotonic()

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self.popen.poll()

    def measure(self, *, anew: bool = False) -> None:
        """Record its memory now; in its first seconds, or with `anew`, as its start value."""
        now = rss_mib(self.pid)
        self.peak_mib = max(self.peak_mib, now)
        if anew or time.monotonic() - self._began < SETTLED_S:
            self.start_mib = self.peak_mib = now


def rss_mib(pid: int) -> float:
    """Return a process's memory; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS:")), 0.0)


def child_of(pid: int) -> int:
    """Return the child of a process."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()[0])


class Federation:
    """All files and processes of the federation."""

    def __init__(self, directory: Path, clients: int) -> None:
        self.directory, self.clients = directory, clients
        self.processes: list[Process] = []
        self.flooded: dict[str, dict[int, dict[str, float]]] = {}  # MiB by flood, quarter (0 before) and process
        self.mosquitto = 0
        self.mosquitto_mib = (0.0, 0.0)  # at the start, and at most
        self.duplicates: list[Process] = []

    def prepare(self) -> None:
        """Create keys, certificates, and a file for each actor."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._run(*OPENSSL)
        (self.directory / "broker.key").chmod(0o600)
        self._run(*_dca("federation", "init", "members", "--name", "hostile", "--computes", str(COMPUTES)),
                  "--trainers", "2", "--clients", str(self.clients + 2),
                  "--broker", f"mqtts://127.0.0.1:{self.port}")  # fmt: skip
        members = self.directory / "members"
        for path in members.glob("*.toml"):
            if path.name != "federation.toml":
                self._complete(path)
        copy = shutil.copytree(members, self.directory / "copy")
        assert copy.exists()

    def _complete(self, path: Path) -> None:
        """Add password, limits and data to an actor's file."""
        role = path.stem.partition("-")[0]
        identity = read_identity(path.with_suffix(".key"), role)
        password = path.parent.parent / "passwords" / f"{path.stem}.password"
        ca = path.parent.parent / "broker.pem"
        broker = f'username = "{identity.id.hex()}"\npassword_file = "{password}"\nca = "{ca}"\n'
        text = path.read_text().replace("[broker]\n", f"[broker]\n{broker}")
        path.write_text(f"{text}\n{LIMITS[role]}")
        if role == "client":
            path.with_suffix(".csv").write_text(DATA)

    def _run(self, *command: str) -> None:
        subprocess.run(command, cwd=self.directory, check=True, capture_output=True)

    def start(self, name: str, *command: str, directory: str = ".") -> Process:
        folder = self.directory / directory
        with (folder / f"{name}.log").open("w") as log:
            process = Process(name, [sys.executable, *command], folder, log)
        self.processes.append(process)
        return process

    def start_broker(self) -> None:
        broker = self.start(
            "broker", *_dca("broker", "--broker", "mosquitto", "--port", str(self.port), "--output", "broker",
                            "--federation", "members/federation.toml", "--passwords", "passwords",
                            "--tls-certificate", "broker.pem", "--tls-key", "broker.key", "--tls-ca", "broker.pem")[1:],
        )  # fmt: skip
        wait_for(lambda: "log" in broker.log.read_text(), "the broker")
        self.mosquitto = child_of(broker.pid)

    def start_members(self) -> None:
        names = [f"compute-{number}" for number in range(1, COMPUTES + 1)]
        names += [f"client-{number}" for number in range(1, self.clients + 1)]
        for name in names:
            self.start(name, "-m", "dca_proto", f"{name}.toml", "--log-json", directory="members")
        self.trainer = self.start(
            *("trainer", str(Path(__file__).absolute()), "--hold", "trainer-1.toml", "--clients", str(self.clients)),
            directory="members",
        )

    def flood(self, count: int) -> None:
        """Run the hostile trainer to its end, and note the memory of its targets after each quarter of each flood."""
        targets = [one for one in self.processes if one.name.startswith("compute-") or one.name == VICTIM]
        script = str(Path(__file__).absolute().with_name("hostile_trainer.py"))
        victim = read_identity(self.directory / "members" / f"{VICTIM}.key", "client").id.hex()
        process = self.start(
            "hostile-trainer", script, "trainer-2.toml", victim, "--count", str(count), directory="members"
        )
        self.processes.remove(process)
        before, seen = {one.name: rss_mib(one.pid) for one in targets}, 0
        give_up = time.monotonic() + FLOOD_S
        while process.code is None and not self.ended() and time.monotonic() < give_up:
            time.sleep(POLL_S)
            lines = [json.loads(line) for line in process.log.read_text().splitlines() if line.startswith("{")]
            for line in lines[seen:]:
                now = {one.name: rss_mib(one.pid) for one in targets}
                self.flooded.setdefault(line["flood"], {0: before})[line["quarter"]] = now
                before = now
            seen = len(lines)
        if process.code != 0:
            process.popen.kill()
            raise SystemExit(f"hostile_test: the hostile trainer ended with {process.code}: {last_line(process.log)}")

    def attack(self, seconds: float, seed: int) -> None:
        """Start the hostile client, and two copies of another one."""
        script, output = str(Path(__file__).absolute().with_name("hostile_client.py")), self.directory / "attacks.json"
        command = (
            script,
            f"client-{self.clients + 1}.toml",
            "--seconds",
            str(seconds),
            "--seed",
            str(seed),
            "--json",
            str(output),
        )
        self.hostile = self.start("hostile", *command, directory="members")
        self.processes.remove(self.hostile)
        self.duplicates = [
            self.start(
                f"duplicate-{folder}",
                "-m",
                "dca_proto",
                f"client-{self.clients + 2}.toml",
                "--log-json",
                directory=folder,
            )
            for folder in ("members", "copy")
        ]

    def rounds(self) -> list[dict[str, Any]]:
        """Return the trainer's printed records."""
        return [json.loads(line) for line in self.trainer.log.read_text().splitlines() if line.startswith("{")]

    def measure(self, *, start: bool = False) -> None:
        for process in self.processes:
            process.measure(anew=start)
        now = rss_mib(self.mosquitto)
        self.mosquitto_mib = (now, now) if start else (self.mosquitto_mib[0], max(self.mosquitto_mib[1], now))

    def ended(self) -> list[str]:
        """Return the processes that have ended but should run."""
        gone = [
            f"{one.name} ended with {one.code}: {last_line(one.log)}" for one in self.processes if one.code is not None
        ]
        return gone if rss_mib(self.mosquitto) else [*gone, "mosquitto ended"]

    def stop(self) -> None:
        """End all processes that it started."""
        for process in reversed([*self.processes, *([self.hostile] if hasattr(self, "hostile") else [])]):
            if process.code is None:
                process.popen.send_signal(signal.SIGTERM)
                try:
                    process.popen.wait(10)
                except subprocess.TimeoutExpired:
                    process.popen.kill()
                    process.popen.wait()


LOST = re.compile(r"connection lost|lost the connection")


def _dca(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "dca_proto.cli", *arguments)


def last_line(path: Path) -> str:
    return (path.read_text(errors="replace").strip().splitlines() or ["nothing logged"])[-1][:300]


def wait_for(is_so: Any, what: str, seconds: float = START_S) -> None:
    give_up = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > give_up:
            raise SystemExit(f"hostile_test: {what} did not come within {seconds:g} s")
        time.sleep(POLL_S)


# --- the run and its checks -------------------------------------------------------------------------------------------


def run(federation: Federation, minutes: float, seed: int, flood: int, bar: PatientBar) -> dict[str, Any]:
    """Run everything in turn; return the figures."""
    federation.prepare()
    federation.start_broker()
    federation.start_members()
    wait_for(lambda: federation.ended() or len(federation.rounds()) >= WARM_ROUNDS, "the first rounds")
    federation.measure(start=True)
    warm = len(federation.rounds())
    if flood:
        federation.flood(flood)
        federation.measure(start=True)
    began = time.monotonic()
    if minutes:
        federation.attack(60 * minutes, seed)
    gone: list[str] = []
    while time.monotonic() - began < 60 * minutes + 5 and not gone:
        time.sleep(POLL_S)
        bar.reach(time.monotonic() - began)
        federation.measure()
        gone = federation.ended()
    assert federation.trainer.popen.stdin is not None
    federation.trainer.popen.stdin.close()  # the trainer finishes its last round
    if not gone:
        wait_for(lambda: federation.trainer.code is not None, "the last round", 2 * ROUND_S)
        federation.processes.remove(federation.trainer)
        gone = federation.ended()
        if minutes:
            federation.hostile.popen.wait(ROUND_S)
    return checked(federation, warm, gone, minutes)


def checked(federation: Federation, warm: int, gone: list[str], minutes: float) -> dict[str, Any]:
    """Return all figures with the failed checks."""
    rounds = federation.rounds()
    failed = [f"round {one['number']} ({one['kind']}): {one['error']}" for one in rounds if not one["ok"]]
    failed += [
        f"round {one['number']} ({one['kind']}): found {one['value']}, expected 0.5 with noise of {one['noise_std']}"
        for one in rounds
        if one["ok"] and abs(one["value"] - 0.5) > DEVIATIONS_MAX * one["noise_std"]
    ]
    failed += ["no round ran under attack"] if len(rounds) <= warm else []
    memory = {one.name: (one.start_mib, one.peak_mib) for one in [*federation.processes, federation.trainer]}
    memory["mosquitto"] = federation.mosquitto_mib
    failed += [
        f"{name} grew from {start:.0f} to {peak:.0f} MiB"
        for name, (start, peak) in memory.items()
        if peak - start > GROWTH_MIB_MAX
    ]
    failed += [
        f"{name} grew from {quarters[1][name]:.0f} to {max(one[name] for one in list(quarters.values())[2:]):.0f} MiB "
        f"after the first quarter of the flood {flood!r}"
        for flood, quarters in federation.flooded.items()
        for name in quarters[0]
        if max(one[name] for one in list(quarters.values())[2:]) - quarters[1][name] > FLAT_MIB_MAX
    ]
    failed += gone
    lost = [len(LOST.findall(one.log.read_text(errors="replace"))) for one in federation.duplicates]
    most = LOSSES + LOSSES_A_MINUTE * minutes
    if max(lost, default=0) > most:
        failed.append(f"two copies of one identity lost {lost} connections, expected at most {most:g} each")
    attacks = federation.directory / "attacks.json"
    if not gone and minutes and not attacks.exists():
        failed.append(f"the hostile client failed: {last_line(federation.hostile.log)}")
    return {
        "ok": not failed,
        "failed": failed,
        "rounds": len(rounds),
        "rounds_under_attack": len(rounds) - warm,
        "seconds_of_rounds": sorted(one["seconds"] for one in rounds[warm:]),
        "contributors": dict(Counter(one.get("contributors") for one in rounds[warm:])),
        "memory_mib": {name: [round(one, 1) for one in pair] for name, pair in memory.items()},
        "flooded_mib": {
            flood: {name: [round(one[name], 1) for one in quarters.values()] for name in quarters[0]}
            for flood, quarters in federation.flooded.items()
        },
        "connections_lost_by_copies": lost,
        "dropped_by_nodes": dropped(federation),
        "attacks": json.loads(attacks.read_text()) if attacks.exists() else None,
    }


def dropped(federation: Federation) -> dict[str, int]:
    """Return the number of messages that the Compute nodes dropped, by code, from their logs."""
    found: Counter[str] = Counter()
    for path in sorted((federation.directory / "members").glob("compute-*.log")):
        most: dict[str, int] = {}
        for line in path.read_text(errors="replace").splitlines():
            if '"Dropped"' in line:
                entry = msgspec.json.decode(line)
                most[entry["code"]] = entry["count"]
        found.update(most)
    return dict(found.most_common())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=CLIENTS, help="honest clients, at least 6")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--flood", type=int, default=0, help="rounds in each flood by a hostile trainer; 0 for none")
    parser.add_argument("--keep", action="store_true", help="keep the folder with all files and logs")
    parser.add_argument("--json", help="write the figures to this file, or - for standard output")
    parser.add_argument("--hold", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.hold is not None:
        asyncio.run(hold_rounds(asked.hold, asked.clients))
        return 0
    directory = Path(tempfile.mkdtemp(prefix="dca-hostile-"))
    federation = Federation(directory, asked.clients)
    try:
        with PatientBar(Console(stderr=True), 60 * asked.minutes, "under attack") as bar:
            figures = run(federation, asked.minutes, asked.seed, asked.flood, bar)
    finally:
        federation.stop()
        if asked.keep:
            print(f"files and logs: {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory)
    write_json(figures, asked.json)
    for line in figures["failed"]:
        print(f"FAILED  {line}", file=sys.stderr)
    worst = max(figures["memory_mib"].items(), key=lambda one: one[1][1] - one[1][0])
    print(
        f"{figures['rounds_under_attack']} rounds under attack, {'all well' if figures['ok'] else 'NOT all well'}; "
        f"most memory gained: {worst[0]}, {worst[1][0]} to {worst[1][1]} MiB",
        file=sys.stderr,
    )
    return 0 if figures["ok"] else 4


if __name__ == "__main__":
    sys.exit(main())
