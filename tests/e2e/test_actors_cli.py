"""Actors as real processes from their TOML files, as devices and servers run them, on a real broker.

Clients run `python -m dca_proto` (no typer, no rich), servers `dca`. Whoever is started is ended, by its own id.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pytest
from schemas import parsed

from dca_proto.aggregate import NoisyAggregate
from dca_proto.cli import main
from dca_proto.protocol.facts import RoundCompleted
from dca_proto.runtime.broker import Broker
from dca_proto.runtime.device import Device
from dca_proto.testing import TestFederation

DEVICE = (sys.executable, "-m", "dca_proto")
DCA = (sys.executable, "-m", "dca_proto.cli")
CLIENTS = 4
PATIENCE_S = 30
ROUND = ("--statistic", "mean", "--columns", "x", "--bounds", "x=0:10", "--epsilon", "1", "--delta", "1e-6")
LET_THROUGH = "[policy]\nclients_min = 1\nhonest_min = 1\n"


class Processes:
    """Started processes; the fixture stops those that still run at the end. Each must stop in good time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command, cwd=self._folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        self.started.append(process)
        return process

    def close(self) -> None:
        for process in self.started:
            process.terminate()
        for process in self.started:
            try:
                process.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    found = Processes(tmp_path)
    yield found
    found.close()


def until(process: subprocess.Popen[str], text: str) -> str:
    """Read a process's log until a line contains the text; its end is a failure."""
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if text in line:
            return line
    raise AssertionError(f"ended with {process.wait()} before {text!r}: {''.join(seen)}")


def federation(folder: Path, url: str, clients: int = CLIENTS, data: str = "x\n4\n") -> None:
    """Everybody's files; limits low enough for so few clients."""
    name = f"e2e-{folder.name.replace('_', '-')[-20:]}".lower()
    given = ("--name", name, "--computes", "2", "--clients", str(clients), "--broker", url)
    assert main(["federation", "init", str(folder), *given]) == 0
    for index in range(1, clients + 1):
        (folder / f"client-{index}.csv").write_text(data)
        with (folder / f"client-{index}.toml").open("a") as file:
            file.write(LET_THROUGH)
    for index in (1, 2):
        with (folder / f"compute-{index}.toml").open("a") as file:
            file.write(LET_THROUGH.replace("policy", "floors"))


def start_all(processes: Processes, clients: int = CLIENTS) -> None:
    """Two Compute nodes, one that logs for people and one that logs for programs, and clients; all connected."""
    computes = [processes.start(*DCA, "compute", "compute-1.toml"), processes.start(*DEVICE, "compute-2.toml")]
    start_clients(processes, range(1, clients + 1))
    until(computes[0], "connected to")
    until(computes[1], "Connected")


def start_clients(processes: Processes, numbers: Iterable[int]) -> None:
    """Clients as devices run them, connected."""
    for process in [processes.start(*DEVICE, f"client-{index}.toml", "--log-json") for index in numbers]:
        until(process, "Connected")


@pytest.mark.parametrize("any_broker", ["mosquitto", pytest.param("embedded", marks=pytest.mark.long)], indirect=True)
def test_a_round_from_files_gives_a_result_and_signals_end_everyone(
    any_broker: Broker, tmp_path: Path, processes: Processes
) -> None:
    federation(tmp_path, any_broker.url)
    start_all(processes)
    trainer = processes.start(
        *DCA, "trainer", "trainer.toml", *ROUND, "--tolerate", "1", "--clients", str(CLIENTS), "--json", "-"
    )
    output, log = trainer.communicate(timeout=PATIENCE_S)
    assert trainer.returncode == 0, log
    result = parsed(output, "trainer")
    assert (result["ok"], result["contributors"], result["labels"]) == (True, CLIENTS, ["x", "complete rows"])
    # false alarm: noise beyond 8 standard deviations, below 1e-14
    assert abs(result["estimate"][0] - 4) < 8 * result["noise_std"][0]
    assert "private estimate" in log
    assert "epsilon 1, delta 1e-06 of every participant's budget" in log

    servers, devices = processes.started[:2], processes.started[2 : 2 + CLIENTS]
    for process in devices[:1]:
        until(process, "Acknowledged")
    for number, group in ((signal.SIGINT, [servers[0], devices[0]]), (signal.SIGTERM, [servers[1], *devices[1:]])):
        for process in group:
            os.killpg(process.pid, number)
        for process in group:
            process.communicate(timeout=PATIENCE_S)
            assert process.returncode == (130 if number == signal.SIGINT else 0)
    assert not list(tmp_path.glob("*-wal")), "stores were closed"
    shown = subprocess.run([*DCA, "inspect", str(tmp_path / "client-1.db")], capture_output=True, text=True, check=True)
    assert "ledger" in shown.stdout
    assert "mean" in shown.stdout
    for name in ("client-1.toml", "trainer.toml"):
        completed = subprocess.run(
            [*DCA, "ledger", str(tmp_path / name), "--json", "-"], capture_output=True, text=True, check=True
        )
        book = json.loads(completed.stdout)
        assert [(one["statistic"], one["epsilon"], one["counts"]) for one in book["charges"]] == [("mean", 1, True)]
        assert 3.5 < book["epsilon_left"] < book["epsilon_allowed"] == 4


def test_a_trainer_stops_before_it_exceeds_its_account(
    embedded_broker: Broker, tmp_path: Path, processes: Processes
) -> None:
    federation(tmp_path, embedded_broker.url)
    with (tmp_path / "trainer.toml").open("a") as file:
        file.write("[account]\nepsilon = 1.2\ndelta = 1e-6\n")
    start_all(processes)
    call = (*DCA, "trainer", "trainer.toml", *ROUND, "--tolerate", "1", "--clients", str(CLIENTS))
    first = processes.start(*call)
    output, log = first.communicate(timeout=PATIENCE_S)
    assert first.returncode == 0, log
    assert re.search(r"account    epsilon 0\.6\d+ is left for one more round, of 1.2 in total, at delta 1e-06", output)
    second = processes.start(*call)
    _, log = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 2
    last = log.splitlines()[-1]
    assert last.startswith("dca: the federation's account: found a total of epsilon 1.4")
    assert "expected <= 1.2 at delta 1e-06 in 365 days; at most 0.6" in last


def test_a_trainer_without_the_command_line_holds_its_files_round(
    embedded_broker: Broker, tmp_path: Path, processes: Processes
) -> None:
    federation(tmp_path, embedded_broker.url)
    with (tmp_path / "trainer.toml").open("a") as file:
        file.write(
            '[round]\nstatistic = "histogram"\ncolumns = ["x"]\nparameters = { edges = [0, 5, 10] }\n'
            f"epsilon = 1\ndelta = 1e-6\ntolerate = 1\nclients = {CLIENTS}\n"
        )
    start_all(processes)
    trainer = processes.start(*DEVICE, "trainer.toml", "--log-json")
    output, log = trainer.communicate(timeout=PATIENCE_S)
    assert trainer.returncode == 0, log
    assert parsed(output, "trainer")["labels"] == ["x in [0, 5)", "x in [5, 10]"]
    assert {json.loads(line)["event"] for line in log.splitlines()} >= {"Announced", "Closed", "RoundCompleted"}

    again = processes.start(*DCA, "trainer", "trainer.toml", "--resume", "--json", "-")
    repeated, log = again.communicate(timeout=PATIENCE_S)
    assert again.returncode == 0, log
    assert parsed(repeated, "trainer") == [parsed(output, "trainer")], "the same answer, no fresh noise"


def test_a_trainer_killed_in_mid_round_finishes_it_later(
    embedded_broker: Broker, tmp_path: Path, processes: Processes
) -> None:
    """The last contribution comes only when it runs again, however slow all of it is."""
    federation(tmp_path, embedded_broker.url)
    start_all(processes, CLIENTS - 1)
    trainer = processes.start(*DCA, "trainer", "trainer.toml", *ROUND, "--clients", str(CLIENTS))
    until(trainer, "announced")
    trainer.kill()
    trainer.communicate()
    shown = subprocess.run([*DCA, "inspect", str(tmp_path / "trainer.db")], capture_output=True, text=True, check=True)
    assert "collecting" in shown.stdout
    start_clients(processes, [CLIENTS])
    again = processes.start(*DCA, "trainer", "trainer.toml", "--resume", "--json", "-", "--log-json")
    output, log = again.communicate(timeout=PATIENCE_S)
    assert again.returncode == 0, log
    assert {json.loads(line)["event"] for line in log.splitlines()} >= {"Connected", "Closed", "RoundCompleted"}
    assert [result["contributors"] for result in parsed(output, "trainer")] == [CLIENTS]


def test_an_aborted_round_exits_with_code_3_and_its_reason(
    embedded_broker: Broker, tmp_path: Path, processes: Processes
) -> None:
    federation(tmp_path, embedded_broker.url)
    start_all(processes)
    trainer = processes.start(
        *DCA, "trainer", "trainer.toml", *ROUND, "--clients", "5", "--collect-s", "1", "--json", "out.json"
    )
    _, log = trainer.communicate(timeout=PATIENCE_S)
    assert trainer.returncode == 3, log
    assert "dca: the round was aborted: 4 clients contributed, at least 5 were needed; nothing was released" in log
    assert parsed((tmp_path / "out.json").read_text(), "trainer")["ok"] is False


@pytest.mark.long
def test_a_charge_whose_aborts_were_missing_comes_back_with_resume(
    embedded_broker: Broker, tmp_path: Path, processes: Processes
) -> None:
    """A client is away, a Compute node goes before its abort: the charge stays until the node is back."""
    federation(tmp_path, embedded_broker.url)
    start_all(processes, clients=CLIENTS - 1)
    node, clients = processes.started[1], processes.started[2:]
    windows = ("--clients", str(CLIENTS), "--collect-s", "4", "--commit-s", "0.5")
    trainer = processes.start(*DCA, "trainer", "trainer.toml", *ROUND, *windows)
    for client in clients:
        until(client, "Acknowledged")
    node.kill()
    _, log = trainer.communicate(timeout=PATIENCE_S)
    assert trainer.returncode == 3
    last = log.splitlines()[-1]
    assert last.startswith("dca: the round was aborted: compute-1 aborted: peer-silent: no list from compute-2")
    assert last.endswith(
        "no confirmation yet from compute-2 that nothing was released, so the account keeps the charge: "
        "`dca trainer FILE --resume` asks again"
    )
    until(processes.start(*DEVICE, "compute-2.toml"), "Connected")
    again = processes.start(*DCA, "trainer", "trainer.toml", "--resume", "--json", "-")
    output, log = again.communicate(timeout=PATIENCE_S)
    assert again.returncode == 3, log
    (ended,) = parsed(output, "trainer")
    assert ended["ok"] is False
    assert ended["error"].endswith("; its charge came back to the account")
    assert "nothing was released, and the charge is returned" in log
    done = subprocess.run([*DCA, "ledger", "trainer.toml"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "left      epsilon 4 at delta 1e-05" in done.stdout
    nothing = processes.start(*DCA, "trainer", "trainer.toml", "--resume")
    assert "nothing to resume: the store has" in nothing.communicate(timeout=PATIENCE_S)[1]


def test_a_result_is_written_before_anything_else_can_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is paid for; what the account has left is read from the store afterwards."""
    federation(tmp_path, "mqtt://127.0.0.1:1")
    actors = TestFederation(4, 2)
    network = actors.network()
    network.command(actors.trainer_identity.id, actors.request())
    network.advance(network.now_ms + 1000)
    (completed,) = network.reported(RoundCompleted)

    async def run_round(*_: object) -> NoisyAggregate:
        (tmp_path / "trainer.db").write_bytes(b"no store")
        return completed.aggregate

    monkeypatch.setattr(Device, "run_round", run_round)
    capsys.readouterr()
    out = tmp_path / "out.json"
    assert main(["trainer", str(tmp_path / "trainer.toml"), *ROUND, "--tolerate", "1", "--json", str(out)]) == 8
    assert "trainer.db" in capsys.readouterr().err
    assert parsed(out.read_text(), "trainer")["ok"] is True


def test_clients_decline_what_their_policy_does_not_allow(
    embedded_broker: Broker, tmp_path: Path, processes: Processes
) -> None:
    federation(tmp_path, embedded_broker.url)
    start_all(processes)
    trainer = processes.start(
        *DCA, "trainer", "trainer.toml", *ROUND, "--epsilon", "3", "--tolerate", "1", "--clients", str(CLIENTS)
    )
    _, log = trainer.communicate(timeout=PATIENCE_S)
    assert trainer.returncode == 3
    assert "declined: epsilon: found 3 at delta 1e-06; accepts <= 1 at delta 1e-05" in log
    assert "0 clients contributed, at least 3 were needed" in log


def test_ctrl_c_at_a_broker_leaves_no_process_and_no_folder(tmp_path: Path, processes: Processes) -> None:
    broker = processes.start(*DCA, "broker", "--broker", "embedded", "--port", "0")
    assert broker.stdout is not None
    line = broker.stdout.readline()
    assert line.startswith("broker  embedded")
    log_path = Path(line.rpartition("log ")[2].strip())
    assert log_path.exists()
    children = psutil.Process(broker.pid).children(recursive=True)
    assert len(children) == 1
    port = int(line.partition("mqtt://127.0.0.1:")[2].partition(";")[0])
    taken = processes.start(*DCA, "broker", "--broker", "embedded", "--port", str(port))
    _, error = taken.communicate(timeout=PATIENCE_S)
    assert (taken.returncode, error.count("\n")) == (2, 1)
    assert f"dca: port {port} on 127.0.0.1 cannot be used" in error
    broker.send_signal(signal.SIGINT)
    broker.communicate(timeout=PATIENCE_S)
    assert broker.returncode == 130
    assert not psutil.wait_procs(children, timeout=PATIENCE_S)[1]
    assert not log_path.parent.exists()


def test_a_broker_that_dies_ends_the_command_and_leaves_its_log(tmp_path: Path, processes: Processes) -> None:
    broker = processes.start(*DCA, "broker", "--broker", "embedded", "--port", "0")
    assert broker.stdout is not None
    log_path = Path(broker.stdout.readline().rpartition("log ")[2].strip())
    (child,) = psutil.Process(broker.pid).children(recursive=True)
    child.kill()
    _, error = broker.communicate(timeout=PATIENCE_S)
    assert (broker.returncode, error.count("\n")) == (2, 1)
    assert error.startswith("dca: the broker exited with code -9: ")
    assert error.endswith(f"see {log_path}\n")
    assert list(log_path.parent.iterdir()) == [log_path]
    shutil.rmtree(log_path.parent)


def test_members_get_in_with_passwords_and_others_do_not(
    mosquitto_installed: None, tmp_path: Path, processes: Processes
) -> None:
    federation(tmp_path, "mqtt://127.0.0.1:1", clients=1)
    given = ("--federation", "federation.toml", "--passwords", "passwords")
    broker = processes.start(*DCA, "broker", "--broker", "mosquitto", "--port", "0", *given)
    assert broker.stdout is not None
    url = broker.stdout.readline().partition("at ")[2].partition(";")[0]
    config = tmp_path / "compute-1.toml"
    refused = config.read_text().replace("mqtt://127.0.0.1:1", url)
    config.write_text(refused)
    stranger = processes.start(*DEVICE, "compute-1.toml")
    _, error = stranger.communicate(timeout=PATIENCE_S)
    assert stranger.returncode == 7
    assert error.splitlines()[-1].startswith(f"dca: broker {url} refused user name (none given) or password")

    login = 'password_file = "passwords/compute-1.password"\n'  # the user name is the identity's id
    config.write_text(refused.replace(f'url = "{url}"\n', f'url = "{url}"\n{login}'))
    until(processes.start(*DEVICE, "compute-1.toml"), "Connected")
    names = {path.name for path in (tmp_path / "passwords").iterdir()}
    assert names == {"compute-1.password", "compute-2.password", "trainer.password", "client-1.password"}
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "passwords").iterdir()} == {0o600}
