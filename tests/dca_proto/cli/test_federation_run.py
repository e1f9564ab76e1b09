"""`dca federation run`: whom it runs, and which broker it uses. The README's own test runs it live."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from dca_proto.cli import main, trial
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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

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
