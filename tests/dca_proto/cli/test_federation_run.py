"""`dca federation run`: whom it runs, and which broker it uses. The README's own test runs it live."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from patience import PATIENCE_S
from ports import free_port

from dca_proto.cli import deployed, main, trial
from dca_proto.cli.restarts import Pauses, keep_running
from dca_proto.errors import UsageError
from dca_proto.runtime.broker import Broker
from dca_proto.runtime.device import Device
from dca_proto.runtime.settings import BrokerSettings


def trial_folder(tmp_path: Path, url: str) -> Path:
    folder = tmp_path / "demo"
    assert main(["federation", "init", str(folder), "--computes", "2", "--clients", "3", "--broker", url]) == 0
    (folder / "client-2.csv").write_text("x\n1\n")
    return folder


def test_compute_nodes_and_clients_with_data_run_at_a_running_broker(
    tmp_path: Path, embedded_broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = []

    async def run(self: Device, on_report: object = None) -> None:
        ran.append(self.role)

    monkeypatch.setattr(Device, "run", run)
    folder = trial_folder(tmp_path, embedded_broker.url)
    assert main(["federation", "run", str(folder)]) == 0
    assert ran == ["client", "compute", "compute"]
    output = capsys.readouterr().out
    assert f"broker  already running at {embedded_broker.url}\n" in output
    assert "actors  2 Compute nodes, 1 clients; 2 clients have no data file\n" in output


def test_a_folder_without_actors_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["federation", "run", str(tmp_path)]) == 2
    assert "has no Compute node and no client with data; make a trial: dca federation init" in capsys.readouterr().err


def test_a_broker_with_tls_is_not_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trial_folder(tmp_path, "mqtts://127.0.0.1:1")
    assert main(["federation", "run", str(folder)]) == 2
    assert "no broker answers at mqtts://127.0.0.1:1; start one: dca broker --help" in capsys.readouterr().err


def test_a_broker_is_started_where_none_answers_and_ends_with_the_actors() -> None:
    port = free_port()

    async def connect() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()

    async def broker_line() -> str:
        async with trial._broker(BrokerSettings(url=f"mqtt://127.0.0.1:{port}")) as line:
            await connect()
        with pytest.raises(ConnectionRefusedError):
            await connect()
        return line

    assert asyncio.run(broker_line()).endswith(f" at mqtt://127.0.0.1:{port}")


def test_a_broker_that_dies_is_started_again_at_its_port_also_if_it_cannot_be_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    port = free_port()

    async def restarted() -> None:
        async with trial._broker(BrokerSettings(url=f"mqtt://127.0.0.1:{port}")):
            (broker,) = [one for one in started if one.process.poll() is None]
            broker.process.kill()
            async with asyncio.timeout(PATIENCE_S):
                while len(started) < 2:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.05)
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()

    started: list[Broker] = []
    calls: list[str] = []
    launch = trial.launch_broker

    @contextlib.asynccontextmanager
    async def noted(folder: Path, options: object) -> AsyncIterator[Broker]:
        calls.append("")
        if len(calls) == 2:
            raise UsageError("the port is in use")
        async with launch(folder, options) as broker:
            started.append(broker)
            yield broker

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "launch_broker", noted)
        patch.setattr(trial, "keep_running", partial(keep_running, pauses=Pauses(first_s=0)))
        asyncio.run(restarted())
    printed = capsys.readouterr().err
    assert "the broker exited with code" in printed
    assert "the port is in use; it is started again" in printed


@pytest.mark.parametrize(("unit", "above"), [("broker", 0), ("registrar", 1)])
def test_a_deployment_whose_port_is_taken_does_not_start(
    unit: str, above: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its actors would reach a stranger's broker, and blame the CA; its own would be started again for ever."""
    monkeypatch.setattr(deployed, "find_mosquitto", lambda: "mosquitto")
    folder = tmp_path / "hearts"
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        hosts = ["--hosts", "berlin=127.0.0.1,paris=127.0.0.1", "--port", f"{port - above}"]
        assert main(["federation", "deploy", str(folder), *hosts]) == 0
        assert main(["federation", "run", str(folder)]) == 2
        error = capsys.readouterr().err
        assert f"port {port} is in use, so the {unit} of berlin cannot have it; by whom is not known;" in error
        assert "--port" in error
        (blocked,) = [one for one in deployed.units_of(folder) if deployed._taken(one)]
        assert blocked.name == unit
    assert not any(map(deployed._taken, deployed.units_of(folder)))


def test_a_deployment_that_runs_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second broker would end at once, and remove the pid_file of the first, which the registrar reads."""
    folder, ran = tmp_path / "hearts", []

    async def run(path: Path) -> None:
        ran.append(path)

    monkeypatch.setattr(deployed, "_run_units", run)
    assert main(["federation", "deploy", str(folder), "--hosts", "berlin=127.0.0.1,paris=127.0.0.1"]) == 0
    with deployed._alone(folder):
        found = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
        assert main(["federation", "run", str(folder)]) == 8
        assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == found
    error = capsys.readouterr().err
    assert re.search(rf"hearts is in use by process {os.getpid()}, which began .* ago; end that process first", error)
    assert not ran
    assert main(["federation", "run", str(folder)]) in (None, 0)
    assert ran == [folder]


def test_the_pause_before_a_restart_is_short_again_after_a_healthy_minute(capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise a unit that once failed for minutes is down for a minute after each later end.

    A trial's broker that started and ended at once was started again every second.
    """
    now_s, paused, runs_s = [0.0], [], [0.0] * 7 + [59.0, 60.0, 0.0]

    async def run() -> str:
        if not runs_s:
            raise KeyboardInterrupt
        now_s[0] += runs_s.pop(0)
        return "ended with 1"

    async def sleep(pause_s: float) -> None:
        paused.append(pause_s)
        now_s[0] += pause_s

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(keep_running("compute of berlin", run, clock=lambda: now_s[0], sleep=sleep))
    assert paused == [1, 2, 4, 8, 16, 32, 60, 60, 1, 2]
    assert "compute of berlin ended with 1; it is started again in 16 s" in capsys.readouterr().err


def test_a_unit_that_ended_names_its_code_and_its_log(tmp_path: Path) -> None:
    unit = deployed.Unit("compute", tmp_path, [])
    program = "import sys; print('no store', file=sys.stderr); sys.exit(3)"
    why = asyncio.run(deployed._run_unit(unit, [sys.executable, "-c", program]))
    assert why == f"ended with 3; its log says why: {tmp_path}/compute.log"
    assert (tmp_path / "compute.log").read_text() == "no store\n"
