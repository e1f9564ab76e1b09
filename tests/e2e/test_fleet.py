"""`dca fleet` and `run_rounds`: rounds of many clients in a few processes, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from commands import Dca
from patience import PATIENCE_S

from dca_proto.aggregate import NoisyAggregate
from dca_proto.engine import WorkerDiedError
from dca_proto.errors import RoundAborted, TransportError, UsageError
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.runtime import mqtt
from dca_proto.runtime.broker import Broker
from dca_proto.runtime.live import LiveTrainer
from emulator.inexact import RoundedGaussian
from emulator.swarm import usage
from emulator.swarm.live import Watcher, _HostProxy
from emulator.swarm.options import SwarmOptions
from emulator.swarm.summary import exact_counts
from emulator.swarm.synthetic import run_rounds
from emulator.swarm.timeline import RoundLog

SMALL = SwarmOptions(clients=40, dimension=3, tolerate=4, processes=2, epsilon=16.0, delta=1e-5)


def changed(**changes: Any) -> SwarmOptions:
    return SwarmOptions(**{**{name: getattr(SMALL, name) for name in SMALL.__struct_fields__}, **changes})


def workers() -> list[psutil.Process]:
    found = []
    for one in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            found += [one] if "spawn_main" in " ".join(one.cmdline()) else []
    return found


class Seen(Watcher):
    """Records the progress that a watcher receives."""

    def __init__(self) -> None:
        self.progress: list[tuple[str, int, int]] = []

    def connected(self, count: int, total: int) -> None:
        self.progress.append(("connected", count, total))

    def sessions(self, count: int, total: int) -> None:
        self.progress.append(("sessions", count, total))

    def changed(self, log: RoundLog) -> None:
        self.progress.append(("contributed", log.arrived, 40))


@pytest.fixture(autouse=True)
def no_worker_is_left() -> Iterator[None]:
    yield
    assert not workers()


def check_sums(result: dict[str, Any]) -> None:
    """Each noisy sum lies within 6 standard deviations of the exact one: a false alarm in 5e8 numbers."""
    for row in result["rounds"]:
        assert row["noise_variance"] == pytest.approx(row["contributors"] * row["sigma_local"] ** 2)
        assert row["noise_variance"] < 10
        for value, exact in zip(row["value"], row["exact"], strict=True):
            assert abs(value - exact) < 6 * math.sqrt(row["noise_variance"])


def check_slowest(row: dict[str, Any]) -> None:
    """The five that took longest are clients of the round."""
    times = [one["s"] for one in row["slowest"]]
    assert len(times) == 5
    assert times == sorted(times, reverse=True)
    assert all(0 <= one["client"] < 40 for one in row["slowest"])
    assert times[0] > 0


@pytest.mark.long
def test_rounds_with_a_connection_for_each_client(mosquitto_broker: Broker) -> None:
    seen = Seen()
    options = changed(broker=mosquitto_broker.url, connections="each", rounds=2, tolerate=0)
    result = msgspec.to_builtins(run_rounds(options, seen))
    assert (result["kind"], result["ok"], result["private"], result["broker"]) == ("swarm", True, True, "external")
    assert (result["connections"], result["processes"]) == ("each", 2)
    check_sums(result)
    for row in result["rounds"]:
        assert (row["arrived"], row["contributors"], row["dropped"], row["failed"]) == (40, 40, 0, 0)
        assert (row["clients"], row["closed"]) == (40, "all")
        assert row["exact"] == [14, 13, 13]
        assert row["declined"] == {}
        # a contribution each; receipts, the nodes' messages to each other and to the trainer; announcements and closes
        assert row["roles"]["client"]["messages"] >= 40
        assert row["roles"]["compute"]["messages"] >= 40 + 12 + 9
        assert row["roles"]["trainer"]["messages"] >= 1 + 3 + 3
        assert row["messages"] == sum(one["messages"] for one in row["roles"].values())
        assert set(row["core_s_by_role"]) == {"client", "compute", "trainer"}  # the broker is not ours
        assert row["core_s"] > 0
        assert row["wall_s"] == pytest.approx(sum(row["phases"].values()), abs=0.1)
        check_slowest(row)
    assert set(result["peak_rss_mb_by_process"]) == {"trainer", "compute", "client 1", "client 2"}
    assert max(result["peak_rss_mb_by_process"].values()) > 30
    assert result["facts"]["Contributed"] == result["facts"]["Acknowledged"] == 80
    assert result["epsilon_spent"] == pytest.approx(16.0, rel=1e-5)
    assert ("connected", 44, 44) in seen.progress
    assert ("sessions", 40, 40) in seen.progress
    assert ("contributed", 40, 40) in seen.progress
    assert 0 < result["connect_s"] < result["sessions_s"]
    assert result["sessions_core_s"] > 0
    json.dumps(result, allow_nan=False)


@pytest.mark.long
def test_all_actors_in_one_process_hold_the_same_rounds(mosquitto_broker: Broker) -> None:
    """The counts there separate messages only by the sender's role."""
    run = run_rounds(changed(broker=mosquitto_broker.url, connections="shared", processes=0, dropped=4))
    (one,) = run.rounds
    assert (run.ok, run.processes, run.core_s_by_role, run.peak_rss_mb_by_process) == (True, None, {}, {})
    assert (one.contributors, one.dropped, one.failed, one.roles, one.core_s_by_role) == (36, 4, 0, {}, {})
    assert one.messages >= 36 + 36 + 12 + 9 + 7, "contributions, receipts, messages of the nodes and of the trainer"
    assert len(one.slowest) == 5
    assert run.epsilon_spent == pytest.approx(16.0, rel=1e-5)
    check_sums(msgspec.to_builtins(run))


@pytest.mark.long
def test_something_is_learned_from_clients_in_processes_of_their_own(dca: Dca, mosquitto_broker: Broker) -> None:
    more = ("--broker", mosquitto_broker.url, "--processes", "2", "--drop", "3", "--tolerate", "3", "--json", "-")
    done = dca("--clients", "50", "--epsilon", "8", *more)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["processes"], result["epsilon_spent"]) == (2, pytest.approx(8.0, rel=1e-5))
    assert [len(one["absent_clients"]) for one in result["rounds"]] == [3, 3]
    assert all(one["roles"]["client"]["messages"] >= 47 for one in result["rounds"])
    assert result["coefficients"]


@pytest.mark.long
def test_vanishing_clients_are_missing_from_the_sum(mosquitto_broker: Broker) -> None:
    result = msgspec.to_builtins(run_rounds(changed(broker=mosquitto_broker.url, connections="shared", dropped=4)))
    check_sums(result)
    (row,) = result["rounds"]
    assert (row["arrived"], row["contributors"], row["dropped"], row["failed"]) == (36, 36, 4, 0)
    assert row["late"] == 0, "what vanished clients sent never came"
    assert row["closed"] == "quiet"
    assert sum(row["exact"]) == 36
    assert len(set(row["vanished_clients"])) == 4
    assert {one["client"] for one in row["slowest"]}.isdisjoint(row["vanished_clients"])


def test_where_too_many_vanish_they_are_waited_for_less_long() -> None:
    collect_ms, commit_ms = changed(dropped=4).windows_ms()
    assert collect_ms == commit_ms >= 60_000
    assert changed(dropped=5).windows_ms()[0] < 5_000


@pytest.mark.long
def test_an_abort_reports_its_traffic(fleet: Dca, embedded_broker: Broker) -> None:
    more = ("--tolerate", "2", "--drop", "5", "--broker", embedded_broker.url, "--json", "-", "--fast-noise")
    done = fleet("--dimension", "3", "--clients", "30", "--processes", "1", *more)
    assert done.returncode == 3, done.stderr
    result = json.loads(done.stdout)
    last = result["rounds"][-1]
    assert (result["ok"], last["n_min"]) == (False, 28)
    assert last["contributors"] <= 25, "fewer, if the machine is too busy for its short window"
    assert (result["private"], result["epsilon"], result["epsilon_spent"]) == (False, None, None)
    assert result["mechanism"] == RoundedGaussian().name
    assert result["rounds"][0]["value"] is None
    assert "sent and used by each role" in done.stderr
    why = f"{last['contributors']} clients contributed, at least 28 were needed"
    assert why in done.stderr.splitlines()[-1]
    assert not list(Path.cwd().iterdir())


@pytest.mark.long
def test_a_round_that_is_never_announced_is_a_one_line_error(
    mosquitto_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that delivers no epoch key, for example: then there is no round to report."""

    async def refuse(trainer: LiveTrainer, request: OpenRound) -> NoisyAggregate:
        raise RoundAborted("no epoch key of Compute node compute-1")

    monkeypatch.setattr(LiveTrainer, "run_round", refuse)
    with pytest.raises(UsageError, match=r"^round 1 was never announced: no epoch key of Compute node compute-1$"):
        run_rounds(changed(broker=mosquitto_broker.url, processes=0))


def test_a_call_that_starts_after_the_end_does_not_reach_the_host() -> None:
    calls: list[str] = []

    async def run() -> None:
        host = _HostProxy(calls.append, lambda: calls.append("end"))
        await host.end()
        await host.call("state")

    asyncio.run(run())
    assert calls == ["end"]


@pytest.mark.long
def test_a_killed_worker_is_named(mosquitto_broker: Broker) -> None:
    class Killer(Watcher):
        def sessions(self, count: int, total: int) -> None:
            if count == total == 40:
                workers()[0].kill()

    name = "(clients 0 to 19|clients 20 to 39|the Compute nodes)"
    with pytest.raises(
        WorkerDiedError, match=rf"^the process of {name} was killed \(the system does so .* fewer --clients\)"
    ):
        run_rounds(changed(broker=mosquitto_broker.url, dropped=2), Killer())


def test_a_missing_broker_is_a_one_line_error() -> None:
    line = "cannot reach broker at mqtt://127.0.0.1:1: connection refused; is it running?"
    with pytest.raises(TransportError, match=f"^{re.escape(line)}$"):
        run_rounds(changed(broker="mqtt://127.0.0.1:1"))


def test_a_server_that_does_not_answer_is_an_error_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqtt, "_ANSWER_TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"mqtt://127.0.0.1:{silent.getsockname()[1]}"
        began_s = time.monotonic()
        with pytest.raises(
            TransportError, match=f"^cannot reach broker at {url}: no answer; check that it speaks MQTT"
        ):
            run_rounds(changed(broker=url))
    assert time.monotonic() - began_s < 60, "and not the two minutes that a busy broker has"


@pytest.mark.long
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_however_it_ends_nothing_is_left(number: signal.Signals, code: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dca_proto.cli", "fleet", "--dimension", "2", "--clients", "20"]
    command += ["--rounds", "1000"]  # so that it does not end by itself, however slow the machine is
    command += ["--connections", "shared", "--processes", "1", "--broker", "embedded"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as run:
        assert run.stdout is not None
        assert any("broker" in line for line in run.stdout)
        while run.poll() is None and len(psutil.Process(run.pid).children(recursive=True)) < 3:
            time.sleep(0.02)  # the broker, the clients and the nodes
        family = psutil.Process(run.pid).children(recursive=True)
        assert len(family) >= 3
        run.send_signal(number)
        _, errors = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == code, errors
    assert "Traceback" not in errors
    _, alive = psutil.wait_procs(family, timeout=PATIENCE_S)
    assert not alive
    if number != signal.SIGKILL:
        assert not list(tmp_path.iterdir())


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dimension", "0"], "--dimension 0: expected 1 to 65536"),
        (["--dimension", "3", "--rounds", "0"], "--rounds 0: expected 1 or more"),
        (["--dimension", "3", "--clients", "5", "--processes", "6"], "--processes 6: expected 0 to 5"),
        (["--dimension", "3", "--connections", "one"], "--connections one: expected each or shared"),
        (["--dimension", "3", "--broker", "x"], "--broker x: expected auto, embedded, mosquitto or mqtt://host:port"),
        (["--dimension", "3", "--clients", "4", "--tolerate", "4"], "N - T - 1 = 4 - 4 - 1 is below 1"),
        (["--dimension", "3", "--epsilon", "-1"], "epsilon"),
        (["--engine", "ray"], "--broker auto with --engine ray: other machines cannot reach a broker"),
        (["--engine", "ray", "--broker", "mqtt://h:1", "--processes", "0"], "--engine ray: expected --processes P"),
        (["--engine", "spark", "--broker", "mqtt://h:1"], "--engine spark: expected local, ray or ray://host:port"),
    ],
)
def test_impossible_arguments_are_refused_before_anything_starts(
    fleet: Dca, arguments: list[str], message: str
) -> None:
    done = fleet(*arguments)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
    assert "broker      " not in done.stdout


def test_more_connections_than_the_system_allows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: raised.append(limits))
    raised: list[tuple[int, int]] = []
    usage.require_connections(500, 900)
    assert raised == []
    usage.require_connections(500, 2000)
    assert raised == [(2064, 4096)]
    with pytest.raises(UsageError, match=r"would need 5064 open files, .* and may have 4096: .* --connections shared"):
        usage.require_connections(2500, 5000)
    usage.require_connections(2500, None)  # of a broker that is not ours nothing is known


def test_more_connections_than_there_are_ports_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    (tmp_path / "range").write_text("32768\t60999\n")
    monkeypatch.setattr(usage, "_PORTS", tmp_path / "range")
    usage.require_connections(10_000, 28_232)
    with pytest.raises(UsageError, match=r"28233 connections .* there are 28232: widen"):
        usage.require_connections(10_000, 28_233)


def test_exact_counts_leave_out_who_vanished() -> None:
    options = changed(clients=10, dimension=3)
    assert exact_counts(options, ()) == [4, 3, 3]
    assert exact_counts(options, (0, 3, 5)) == [2, 3, 2]


def test_clients_are_split_evenly() -> None:
    assert changed(clients=10, processes=3).splits() == [(0, 4), (4, 3), (7, 3)]
