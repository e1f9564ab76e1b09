"""The same work on this machine and on a cluster of Ray with two nodes: results are equal, digest for digest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dca_proto.errors import UsageError
from dca_proto.runtime.broker import Broker
from emulator.engine import open_engine

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
HELPERS = ROOT / "tests" / "helpers"
PYTHONPATH = os.pathsep.join([str(HELPERS), str(ROOT), os.environ.get("PYTHONPATH", "")])
START_S, RUN_S = 120, 480


class Addresses(NamedTuple):
    """Of a cluster: for a program on one of its machines, and for one elsewhere."""

    inside: str
    outside: str


NOWHERE = Addresses("127.0.0.1:1", "ray://127.0.0.1:1")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Addresses]:
    pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[cluster]'")
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": PYTHONPATH}
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", str(HELPERS / "ray_cluster.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        line = next((one for one in process.stdout if "ray://" in one), "")
        assert line, "no cluster"
        yield Addresses(*line.split())
        process.stdin.close()
        process.wait(START_S)


def run(cluster: Addresses, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RAY_ADDRESS": cluster.inside, "PYTHONPATH": PYTHONPATH}
    if cluster is not NOWHERE:  # a head on a busy machine takes longer than a program's default of 30 s in all
        environment["RAY_CLIENT_INITIAL_CONNECTION_TIMEOUT_S"] = str(START_S)
    return subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        capture_output=True, text=True, env=environment, cwd=folder, timeout=RUN_S, check=False,
    )  # fmt: skip


def dca(cluster: Addresses, *arguments: str, folder: Path) -> dict[str, Any]:
    done = run(cluster, "-m", "dca_proto.cli", *arguments, "--json", "result.json", folder=folder)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


DIGESTS = """
import sys
from cluster_work import digest
from emulator.engine import open_engine
with open_engine(sys.argv[1]) as engine:
    found = [done.value() for done in engine.map(digest, range(12), ordered=True)]
print(*(one for one, _ in found))
print(len({node for _, node in found}))
"""


def test_trials_have_the_same_digests_on_both_nodes_as_here(cluster: Addresses, tmp_path: Path) -> None:
    found = {}
    for engine in ("local", "ray", cluster.outside):
        done = run(cluster, "-c", DIGESTS, engine, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        found[engine] = done.stdout.splitlines()[-2:]
    digests = {lines[0] for lines in found.values()}
    assert len(digests) == 1
    assert len(set(digests.pop().split())) == 12
    assert [lines[1] for lines in found.values()] == ["1", "2", "2"], "nodes that had work"


def test_a_sweep_finds_the_same(cluster: Addresses, tmp_path: Path) -> None:
    here, there = (
        dca(cluster, "emulate", "sweep", "--seeds", "0..15", "--engine", engine, folder=tmp_path)
        for engine in ("local", "ray")
    )
    for found in (here, there):
        found.pop("wall_s"), found.pop("scenarios_per_s")
    assert here == there
    assert here["run"] == 16


def test_an_audit_of_the_actors_sees_the_same(cluster: Addresses, tmp_path: Path) -> None:
    small = ("audit", "--protocol", "--clients", "5", "--tolerate", "1", "--rounds", "100", "--seed", "7")
    here, there = (dca(cluster, *small, "--engine", engine, folder=tmp_path) for engine in ("local", "ray"))
    for found in (here, there):
        found.pop("seconds")
    assert here == there


def test_a_cell_is_measured_on_the_cluster(cluster: Addresses, tmp_path: Path) -> None:
    small = ("scaling", "--clients", "30", "--dimension", "5", "--computes", "3", "--rounds", "2", "--processes", "2")
    (here,), (there,) = (
        dca(cluster, *small, "--engine", engine, folder=tmp_path)["cells"] for engine in ("local", "ray")
    )
    for figure in ("messages", "bytes", "received", "received_bytes", "contributors", "noise_sd", "processes"):
        assert here[figure] == there[figure], figure


DEATHS = """
import sys
from cluster_work import dies_at_three, Holder
from dca_proto.errors import DcaError
from emulator.engine import open_engine
with open_engine(sys.argv[1]) as engine:
    for done in engine.map(dies_at_three, range(6), ordered=True):
        print(done.item, done.result, "died over it twice" in done.trouble)
    with engine.worker(Holder, "holding") as worker:
        print(worker.call("add", 3), worker.call("add", 4))
        try:
            worker.call("die")
        except DcaError as error:
            print(error)
"""


@pytest.mark.parametrize("place", Addresses._fields)
def test_work_that_dies_is_named_and_a_worker_keeps_its_state(cluster: Addresses, tmp_path: Path, place: str) -> None:
    engine = "ray" if place == "inside" else cluster.outside
    done = run(cluster, "-c", DEATHS, engine, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    *items, sums, died = [line for line in done.stdout.splitlines() if "raylet" not in line][-8:]
    assert items == [f"{number} {None if number == 3 else number} {number == 3}" for number in range(6)]
    assert sums == "3 7"
    assert died.startswith("the process of holding died (")


def test_a_missing_cluster_is_a_one_line_error(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[cluster]'")
    done = run(NOWHERE, "-m", "dca_proto.cli", "emulate", "sweep", "--engine", NOWHERE.outside, folder=tmp_path)
    assert done.returncode == 2
    assert f"--engine {NOWHERE.outside}: no cluster answers" in done.stderr.splitlines()[-1]


def test_a_cluster_that_cannot_serve_a_program_is_refused_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[cluster]'")

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionAbortedError(
            "Initialization failure:\nTraceback (most recent call last):\nRuntimeError: no port"
        )

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(
        UsageError, match=r"ray://head:1: .*\(Initialization failure: RuntimeError: no port\); start one"
    ):
        open_engine("ray://head:1")


def test_a_swarm_has_its_clients_on_both_nodes(cluster: Addresses, tmp_path: Path, mosquitto_broker: Broker) -> None:
    small = ("swarm", "--dimension", "3", "--clients", "30", "--drop", "2", "--epsilon", "16", "--seed", "5")
    more = ("--broker", mosquitto_broker.url, "--processes", "2")
    here, there = (dca(cluster, *small, *more, "--engine", engine, folder=tmp_path) for engine in ("local", "ray"))
    for found in (here, there):
        (one,) = found["rounds"]
        assert (one["contributors"], one["dropped"], one["late"]) == (28, 2, 0)
        off = max(abs(value - exact) for value, exact in zip(one["value"], one["exact"], strict=True))
        assert off < 6 * one["noise_variance"] ** 0.5, "a false alarm in 1e8 runs"
    for figure in ("vanished_clients", "exact", "closed", "sigma_local"):
        assert here["rounds"][0][figure] == there["rounds"][0][figure], figure
    assert here["peak_rss_mb_by_process"].keys() == there["peak_rss_mb_by_process"].keys()
