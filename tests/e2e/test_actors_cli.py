"""Actors as real processes from their TOML files, as devices and servers run them, on a real broker.

Clients run `python -m dca_proto` (no typer, no rich), servers `dca`. Whoever is started is ended, by its own id. Where
the trainer alone matters, the others run in a thread, and a trainer that nobody kills is called in the test's process.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from commands import Dca, Done
from live_actors import Actors, federation
from patience import PATIENCE_S
from schemas import parsed

from dca_proto.aggregate import NoisyAggregate
from dca_proto.cli import main
from dca_proto.protocol.facts import Acknowledged, RoundCompleted
from dca_proto.runtime.broker import Broker
from dca_proto.runtime.device import Device
from dca_proto.testing import TestFederation

DEVICE = (sys.executable, "-m", "dca_proto")
DCA = (sys.executable, "-m", "dca_proto.cli")
CLIENTS = 4
DATA = ["x\n4\n"] * CLIENTS
EARLY = [f"client-{number}" for number in range(1, CLIENTS)]
"""All but one, whose contribution comes later or never."""
ROUND = ("--statistic", "mean", "--columns", "x", "--bounds", "x=0:10", "--epsilon", "1", "--delta", "1e-6")


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


def start_all(processes: Processes) -> None:
    """Two Compute nodes, one that logs for people and one that logs for programs, and clients; all connected."""
    computes = [processes.start(*DCA, "compute", "compute-1.toml"), processes.start(*DEVICE, "compute-2.toml")]
    clients = [processes.start(*DEVICE, f"client-{index}.toml", "--log-json") for index in range(1, CLIENTS + 1)]
    for process in clients:
        until(process, "Connected")
    until(computes[0], "connected to")
    until(computes[1], "Connected")


@pytest.fixture
def folder(embedded_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A federation's files, in the folder where the test runs."""
    federation(tmp_path, embedded_broker.url, DATA)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def dca(capsys: pytest.CaptureFixture[str]) -> Dca:
    """Run a `dca` command in the test's process."""

    def run(*arguments: str) -> Done:
        capsys.readouterr()
        return Done(main([*arguments]), *capsys.readouterr())

    return run


@pytest.mark.parametrize("any_broker", ["mosquitto", pytest.param("embedded", marks=pytest.mark.long)], indirect=True)
def test_a_round_from_files_gives_a_result_and_signals_end_everyone(
    any_broker: Broker, tmp_path: Path, processes: Processes, dca: Dca
) -> None:
    federation(tmp_path, any_broker.url, DATA)
    start_all(processes)
    trainer = processes.start(
        *DCA, "trainer", "trainer.toml", *ROUND, "--tolerate", "0", "--clients", str(CLIENTS), "--json", "-"
    )
    output, log = trainer.communicate(timeout=PATIENCE_S)
    assert trainer.returncode == 0, log
    result = parsed(output, "trainer")
    assert (result["ok"], result["contributors"]) == (True, CLIENTS)
    # false alarm: noise beyond 8 standard deviations, below 1e-14
    mean, rows = result["estimates"]
    assert (mean["label"], rows["label"]) == ("x", "complete rows")
    assert abs(mean["value"] - 4) < 8 * mean["noise_std"]
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
    shown = dca("inspect", str(tmp_path / "client-1.db"))
    assert "ledger" in shown.stdout
    assert "mean" in shown.stdout
    for name in ("client-1.toml", "trainer.toml"):
        book = json.loads(dca("ledger", str(tmp_path / name), "--json", "-").stdout)
        assert [(one["statistic"], one["epsilon"], one["counts"]) for one in book["charges"]] == [("mean", 1, True)]
        assert 3.5 < book["epsilon_left"] < book["epsilon_allowed"] == 4


def test_a_trainer_stops_before_it_exceeds_its_account(folder: Path, dca: Dca) -> None:
    with (folder / "trainer.toml").open("a") as file:
        file.write("[account]\nepsilon = 1.2\ndelta = 1e-6\n")
    call = ("trainer", "trainer.toml", *ROUND, "--tolerate", "1", "--clients", str(CLIENTS))
    with Actors(folder):
        first, second = dca(*call), dca(*call)
    assert first.returncode == 0, first.stderr
    left = r"account    epsilon 0\.6\d+ is left for one more round, of 1.2 in total, at delta 1e-06"
    assert re.search(left, first.stdout)
    assert second.returncode == 2
    last = second.stderr.splitlines()[-1]
    assert last.startswith("dca: the federation's account: found a total of epsilon 1.4")
    assert "expected <= 1.2 at delta 1e-06 in 365 days; at most 0.6" in last


@pytest.mark.long
def test_a_trainer_without_the_command_line_holds_its_files_round(folder: Path, processes: Processes, dca: Dca) -> None:
    with (folder / "trainer.toml").open("a") as file:
        file.write(
            '[round]\nstatistic = "histogram"\ncolumns = ["x"]\nparameters = { edges = [0, 5, 10] }\n'
            f"epsilon = 1\ndelta = 1e-6\ntolerate = 1\nclients = {CLIENTS}\n"
        )
    with Actors(folder):
        trainer = processes.start(*DEVICE, "trainer.toml", "--log-json")
        output, log = trainer.communicate(timeout=PATIENCE_S)
        assert trainer.returncode == 0, log
        assert [one["label"] for one in parsed(output, "trainer")["estimates"]] == ["x in [0, 5)", "x in [5, 10]"]
        assert {json.loads(line)["event"] for line in log.splitlines()} >= {"Announced", "Closed", "RoundCompleted"}
        again = dca("trainer", "trainer.toml", "--resume", "--json", "-")
    assert again.returncode == 0, again.stderr
    assert parsed(again.stdout, "trainer") == [parsed(output, "trainer")], "the same answer, no fresh noise"


@pytest.mark.long
def test_a_trainer_killed_in_mid_round_finishes_it_later(folder: Path, processes: Processes, dca: Dca) -> None:
    """The last contribution comes only when it runs again, however slow all of it is."""
    with Actors(folder, *EARLY, "compute-*"):
        trainer = processes.start(*DCA, "trainer", "trainer.toml", *ROUND, "--clients", str(CLIENTS))
        until(trainer, "announced")
        trainer.kill()
        trainer.communicate()
        assert "collecting" in dca("inspect", "trainer.db").stdout
        with Actors(folder, f"client-{CLIENTS}"):
            again = dca("trainer", "trainer.toml", "--resume", "--json", "-", "--log-json")
    assert again.returncode == 0, again.stderr
    events = {json.loads(line)["event"] for line in again.stderr.splitlines()}
    assert events >= {"Connected", "Closed", "RoundCompleted"}
    assert [result["contributors"] for result in parsed(again.stdout, "trainer")] == [CLIENTS]


def test_an_aborted_round_exits_with_code_3_and_its_reason(folder: Path, dca: Dca) -> None:
    with Actors(folder):
        done = dca("trainer", "trainer.toml", *ROUND, "--clients", "5", "--collect-s", "0.2", "--json", "out.json")
    assert done.returncode == 3, done.stderr
    few = r"dca: the round was aborted: \d clients? contributed, at least 5 were needed; nothing was released"
    assert re.search(few, done.stderr)
    result = parsed((folder / "out.json").read_text(), "trainer")
    assert (result["ok"], result["clients"]) == (False, 5)
    where = "dca status of each Compute node names those of its own that were absent"
    assert where in result["error"], "a trainer is told how many contributed to an aborted round, not who"
    assert where in done.stderr


@pytest.mark.long
def test_a_charge_whose_aborts_were_missing_comes_back_with_resume(
    folder: Path, processes: Processes, dca: Dca
) -> None:
    """A client is away, a Compute node goes before its abort: the charge stays until the node is back."""
    node = processes.start(*DEVICE, "compute-2.toml", "--log-json")
    until(node, "Connected")
    windows = ("--clients", str(CLIENTS), "--collect-s", "8", "--commit-s", "2")
    with Actors(folder, *EARLY, "compute-1") as others:
        trainer = processes.start(*DCA, "trainer", "trainer.toml", *ROUND, *windows)
        others.wait_for(Acknowledged, CLIENTS - 1)
        node.kill()
        _, log = trainer.communicate(timeout=PATIENCE_S)
        assert trainer.returncode == 3
        last = log.splitlines()[-1]
        assert last.startswith("dca: the round was aborted: compute-2 has not answered for ")
        assert last.endswith(
            "until compute-2 has confirmed that it released nothing, the account and the clients keep the charge: "
            "`dca trainer FILE --resume` asks again"
        )
        with Actors(folder, "compute-2"):
            again = dca("trainer", "trainer.toml", "--resume", "--json", "-")
    assert again.returncode == 3, again.stderr
    (ended,) = parsed(again.stdout, "trainer")
    assert ended["ok"] is False
    assert ended["error"].endswith("; its charge came back to the account")
    assert "nothing was released, and the charge is returned" in again.stderr
    assert "left      epsilon 4 at delta 1e-05" in dca("ledger", "trainer.toml").stdout
    assert "nothing to resume: the store has" in dca("trainer", "trainer.toml", "--resume").stderr


def test_a_result_is_written_before_anything_else_can_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is paid for; what the account has left is read from the store afterwards."""
    federation(tmp_path, "mqtt://127.0.0.1:1", DATA)
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


def test_clients_decline_what_their_policy_does_not_allow(folder: Path, dca: Dca) -> None:
    call = ("trainer", "trainer.toml", *ROUND, "--epsilon", "3", "--tolerate", "1", "--clients", str(CLIENTS))
    with Actors(folder):
        done = dca(*call)
    assert done.returncode == 3
    assert "declined: epsilon: found 3 at delta 1e-06; accepts <= 1 at delta 1e-05" in done.stderr
    assert "0 clients contributed, at least 3 were needed" in done.stderr


@pytest.mark.long
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


@pytest.mark.long
def test_members_get_in_with_passwords_and_others_do_not(
    mosquitto_installed: None, tmp_path: Path, processes: Processes
) -> None:
    federation(tmp_path, "mqtt://127.0.0.1:1", DATA[:1])
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
    members = {"compute-1.password", "compute-2.password", "trainer.password", "client-1.password"}
    assert names == members | {"operator.password"}
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "passwords").iterdir()} == {0o600}
