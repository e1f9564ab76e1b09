"""The same work on this machine and on a cluster of Ray with two nodes: results are equal, digest for digest."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dca_proto.cli import main
from dca_proto.engine import open_engine
from dca_proto.errors import UsageError
from dca_proto.runtime.broker import Broker

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("cluster")]
ROOT = Path(__file__).parents[2]
HELPERS = ROOT / "tests" / "helpers"
PYTHONPATH = os.pathsep.join([str(HELPERS), str(ROOT), os.environ.get("PYTHONPATH", "")])
START_S, ATTEMPTS = 120, 3
RUN_S = 1800
"""Only a program that hangs takes so long, on the busiest machine."""
Compare = Callable[..., tuple[dict[str, Any], dict[str, Any]]]


class Addresses(NamedTuple):
    """Of a cluster: for a program on one of its machines, and for one elsewhere."""

    inside: str
    outside: str


NOWHERE = Addresses("127.0.0.1:1", "ray://127.0.0.1:1")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[cluster]'")
    log = tmp_path_factory.mktemp("cluster") / "log"
    for _ in range(ATTEMPTS):  # Ray gives a node 30 s to start, and no setting changes that
        with started(log) as process:
            assert process.stdout is not None
            line = next((one for one in process.stdout if "ray://" in one), "")
            if line:
                yield Addresses(*line.split())
                return
    why = (log.read_text().splitlines() or ["no reason"])[-1]
    pytest.skip(f"Ray started no cluster in {ATTEMPTS} attempts, without any code of ours: {why}")


@contextlib.contextmanager
def started(log: Path) -> Iterator[subprocess.Popen[str]]:
    """A cluster's process, which ends its nodes at the end of its standard input."""
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": PYTHONPATH}
    command = [sys.executable, "-W", "ignore", str(HELPERS / "ray_cluster.py")]
    with (
        log.open("a") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process,
    ):
        yield process
        assert process.stdin is not None
        process.stdin.close()
        process.wait(START_S)


def run(cluster: Addresses, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program, again where a cluster on a busy machine was too slow to take it in."""
    environment = {**os.environ, "RAY_ADDRESS": cluster.inside, "PYTHONPATH": PYTHONPATH}
    for limit in ("INITIAL", "MAX"):
        environment[f"RAY_CLIENT_{limit}_CONNECTION_TIMEOUT_S"] = str(START_S)
    for _ in range(1 if cluster is NOWHERE else ATTEMPTS):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", *arguments],
            capture_output=True, text=True, env=environment, cwd=folder, timeout=RUN_S, check=False,
        )  # fmt: skip
        if "no cluster answers" not in done.stderr:
            break
    return done


@pytest.fixture(scope="module")
def driver(cluster: Addresses) -> Iterator[subprocess.Popen[str]]:
    """A program that is connected to the cluster and runs commands there; another one if Ray does not let it in."""
    command = [sys.executable, "-W", "ignore", str(HELPERS / "ray_driver.py"), cluster.inside]
    for _ in range(ATTEMPTS):
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "PYTHONPATH": PYTHONPATH},
        ) as process:  # fmt: skip
            assert process.stdin is not None
            assert process.stdout is not None
            if any(line == "connected\n" for line in process.stdout):
                yield process
                process.stdin.close()
                process.wait(START_S)
                return
    pytest.fail(f"Ray let no program into its cluster in {ATTEMPTS} attempts")


@pytest.fixture
def compare(driver: subprocess.Popen[str], tmp_path: Path) -> Compare:
    """Runs a command on this machine and on the cluster; both results."""

    def call(*arguments: str) -> tuple[dict[str, Any], dict[str, Any]]:
        here, there = tmp_path / "here.json", tmp_path / "there.json"
        assert main([*arguments, "--json", str(here)]) == 0
        assert driver.stdin is not None
        assert driver.stdout is not None
        driver.stdin.write(json.dumps([str(tmp_path), *arguments, "--engine", "ray", "--json", str(there)]) + "\n")
        driver.stdin.flush()
        line = next((one for one in driver.stdout if one.startswith("code")), "no answer")
        assert line == "code 0\n"
        return json.loads(here.read_text()), json.loads(there.read_text())

    return call


DIGESTS = """
import sys
from cluster_work import digest
from dca_proto.engine import open_engine
with open_engine(sys.argv[1]) as engine:
    found = [done.value() for done in engine.map(digest, range(12), ordered=True)]
print(*(one for one, _ in found))
print(len({node for _, node in found}))
"""


def test_trials_have_the_same_digests_on_both_nodes_as_here(cluster: Addresses, tmp_path: Path) -> None:
    found = {}
    for engine in ("local", "ray", cluster.outside):
        for _ in range(1 if engine == "local" else ATTEMPTS):
            done = run(cluster, "-c", DIGESTS, engine, folder=tmp_path)
            assert done.returncode == 0, done.stderr
            found[engine] = done.stdout.splitlines()[-2:]
            if found[engine][1] == "2":
                break  # until then, one node has done it all while the other one started a process
    digests = {lines[0] for lines in found.values()}
    assert len(digests) == 1
    assert len(set(digests.pop().split())) == 12
    assert [lines[1] for lines in found.values()] == ["1", "2", "2"], "nodes that had work"


def test_a_sweep_finds_the_same(cluster: Addresses, tmp_path: Path) -> None:
    arguments = ("emulate", "sweep", "--seeds", "0..15", "--json", "result.json")
    done = run(cluster, "-m", "dca_proto.cli", *arguments, "--engine", "ray", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    there = json.loads((tmp_path / "result.json").read_text())
    assert main([*arguments[:-1], str(tmp_path / "here.json")]) == 0
    here = json.loads((tmp_path / "here.json").read_text())
    for found in (here, there):
        found.pop("wall_s"), found.pop("scenarios_per_s")
    assert here == there
    assert here["run"] == 16


def test_an_audit_of_the_actors_sees_the_same(compare: Compare) -> None:
    here, there = compare("audit", "--protocol", "--clients", "5", "--tolerate", "1", "--rounds", "100", "--seed", "7")
    for found in (here, there):
        found.pop("seconds")
    assert here == there


def test_a_cell_is_measured_on_the_cluster(compare: Compare) -> None:
    small = ("--clients", "30", "--dimension", "5", "--computes", "3", "--rounds", "2", "--processes", "2")
    (here,), (there,) = (found["cells"] for found in compare("scaling", *small))
    for figure in ("messages", "bytes", "received", "received_bytes", "contributors", "noise_sd", "processes"):
        assert here[figure] == there[figure], figure


DEATHS = """
import sys
from cluster_work import dies_at_three, Holder
from dca_proto.errors import DcaError
from dca_proto.engine import open_engine
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


POOLED = """
import sys
from cluster_work import pooled_round
print(pooled_round(sys.argv[1]))
"""


def test_a_compute_nodes_pool_gives_the_same_round(cluster: Addresses, tmp_path: Path) -> None:
    found = {}
    for engine in ("none", "local", "ray", cluster.outside):
        done = run(cluster, "-c", POOLED, engine, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        found[engine] = done.stdout.splitlines()[-1]
    assert len(found["none"]) == 64
    assert set(found.values()) == {found["none"]}


LOST = """
import sys
from cluster_work import lost_cluster
print(*lost_cluster(sys.argv[1]))
"""


def test_a_node_whose_cluster_is_lost_works_on_and_joins_no_other(cluster: Addresses, tmp_path: Path) -> None:
    """Ray itself would join the cluster of RAY_ADDRESS, or one whose address is in /tmp, or start one."""
    done = run(cluster, "-c", LOST, "ray", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True True True False"


@pytest.mark.parametrize("engine", ["ray", NOWHERE.outside])
def test_a_missing_cluster_is_a_one_line_error(tmp_path: Path, engine: str) -> None:
    """Ray itself would wait for minutes for the head of RAY_ADDRESS, and print how."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[cluster]'")
    done = run(NOWHERE, "-m", "dca_proto.cli", "emulate", "sweep", "--engine", engine, folder=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"--engine {engine}: no cluster answers ({NOWHERE[engine != 'ray']} is silent for 20 s)" in line


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_server_that_listens_and_never_answers_is_no_cluster(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[cluster]'")
    monkeypatch.setattr("dca_proto.engine.cluster.ANSWER_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"{scheme}127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(UsageError, match=rf"--engine ray: .*\({address} is silent for 1 s\); start one"):
            open_engine("ray")


def test_the_clients_server_is_no_head(cluster: Addresses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dca_proto.engine.cluster.ANSWER_S", START_S)
    monkeypatch.setenv("RAY_ADDRESS", cluster.outside.removeprefix("ray://"))
    with pytest.raises(UsageError, match=f"is no head; for the server of programs elsewhere write {cluster.outside}"):
        open_engine("ray")


def test_a_cluster_that_cannot_serve_a_program_is_refused_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[cluster]'")

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionAbortedError(
            "Initialization failure:\nTraceback (most recent call last):\nRuntimeError: no port"
        )

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setattr("dca_proto.engine.cluster._why_not", lambda _: "")
    with pytest.raises(
        UsageError, match=r"ray://head:1: .*\(Initialization failure: RuntimeError: no port\); start one"
    ):
        open_engine("ray://head:1")


def test_a_swarm_has_its_clients_on_both_nodes(compare: Compare, mosquitto_broker: Broker) -> None:
    small = ("fleet", "--dimension", "3", "--clients", "30", "--tolerate", "2", "--drop", "2", "--epsilon", "16")
    here, there = compare(*small, "--seed", "5", "--broker", mosquitto_broker.url, "--processes", "2")
    for found in (here, there):
        (one,) = found["rounds"]
        assert (one["contributors"], one["dropped"], one["late"]) == (28, 2, 0)
        off = max(abs(value - exact) for value, exact in zip(one["value"], one["exact"], strict=True))
        assert off < 6 * one["noise_variance"] ** 0.5, "a false alarm in 1e8 runs"
    for figure in ("vanished_clients", "exact", "closed", "sigma_local"):
        assert here["rounds"][0][figure] == there["rounds"][0][figure], figure
    assert here["peak_rss_mb_by_process"].keys() == there["peak_rss_mb_by_process"].keys()
