"""`dca swarm` as its user meets it: real actors over real connections, exit codes, files, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest

from dca_proto.cli import main
from dca_proto.net.broker import Broker

BOUNDS = "a=-4:4,b=-4:4,y=-8:8"
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 rows of y = a - b + noise: 31 clients and 9 held-out rows."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(40, 2))
    y = x[:, 0] - x[:, 1] + rng.normal(scale=0.5, size=40)
    path = tmp_path_factory.mktemp("table") / "rows.csv"
    lines = ["a,b,y", *(f"{a},{b},{c}" for (a, b), c in zip(x, y, strict=True))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


class Done(NamedTuple):
    """What a run left: its exit code and what it printed."""

    returncode: int
    stdout: str
    stderr: str


Dca = Callable[..., Done]


@pytest.fixture
def dca(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Dca:
    """Runs `dca swarm` to its end, in a folder of its own, through the command's one door."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Done:
        code = main(["swarm", *arguments])
        return Done(code, *capsys.readouterr())

    return run


def own(table: Path, *more: str) -> list[str]:
    return ["--csv", str(table), "--target", "y", "--bounds", BOUNDS, "--epsilon", "8", *more]


def test_a_run_says_and_writes_what_it_found(dca: Dca, table: Path, any_broker: Broker, tmp_path: Path) -> None:
    done = dca(*own(table, "--broker", any_broker.url, "--drop", "2", "--json", "-"))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["ok"], result["private"], result["epsilon"], result["delta"]) == (True, True, 8.0, 1e-5)
    assert (result["clients"], result["computes"], result["tolerated"], result["colluders"]) == (31, 3, 3, 0)
    assert set(result["test"]) >= {"rmse_private", "rmse_nonprivate", "rmse_zero"}
    assert [one["name"] for one in result["rounds"]] == ["second-moments", "regression"]
    for one in result["rounds"]:
        assert (one["dropped"], one["contributors"]) == (2, 29)
        assert one["noise_variance"] == pytest.approx(29 * one["sigma_local"] ** 2)
        assert len(bytes.fromhex(one["roster_hash"])) == 32
        assert set(one["phases"]) == {"join", "start", "share", "commit"}
        assert one["wall_s"] == pytest.approx(sum(one["phases"].values()), abs=0.1)
        assert one["messages"] > 31 * 3
        assert one["bytes"] > 0
    assert (result["dropped"], result["contributors"]) == (2, 29)
    assert result["epsilon_spent"] <= 8.0
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    assert (tmp_path / "run" / "coefficients.png").read_bytes().startswith(b"\x89PNG")
    assert "spent" in done.stderr


def test_dropping_as_many_as_tolerated_gives_a_result(
    dca: Dca, table: Path, embedded_broker: Broker, tmp_path: Path
) -> None:
    done = dca(
        *own(table, "--broker", embedded_broker.url, "--tolerate", "4", "--drop", "4", "--json", "out.json"),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out.json").read_text())["contributors"] == 27


@pytest.mark.parametrize(("drop", "colluders", "needed"), [("5", "0", 27), ("3", "2", 29)])
def test_one_drop_too_many_aborts(
    drop: str, colluders: str, needed: int, dca: Dca, table: Path, embedded_broker: Broker, tmp_path: Path
) -> None:
    options = ("--tolerate", "4", "--drop", drop, "--colluders", colluders, "--json", "-")
    done = dca(*own(table, "--broker", embedded_broker.url, *options))
    assert done.returncode == 3
    last = done.stderr.strip().splitlines()[-1]
    assert f"{31 - int(drop)} clients contributed, at least {needed} were needed" in last
    result = json.loads(done.stdout)
    assert (result["ok"], result["test"], len(result["rounds"])) == (False, None, 1)
    assert not (tmp_path / "run").exists()


def test_a_seed_fixes_splits_and_drops_but_no_keys(
    dca: Dca, table: Path, embedded_broker: Broker, tmp_path: Path
) -> None:
    results = []
    for _ in range(2):
        done = dca(*own(table, "--broker", embedded_broker.url, "--seed", "5", "--json", "-"))
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout))
    first, second = results
    assert first["test"]["rmse_nonprivate"] == second["test"]["rmse_nonprivate"]
    assert first["test"]["rmse_private"] != second["test"]["rmse_private"]
    assert first["rounds"][0]["roster_hash"] != second["rounds"][0]["roster_hash"]


def test_bounds_from_data_claim_nothing(dca: Dca, table: Path, embedded_broker: Broker, tmp_path: Path) -> None:
    done = dca(
        *("--csv", str(table), "--target", "y", "--bounds-from-data", "--broker", embedded_broker.url, "--json", "-"),
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["private"], result["epsilon"], result["epsilon_spent"]) == (False, None, None)
    assert all(one["epsilon"] is None for one in result["rounds"])
    assert "epsilon" not in done.stderr
    assert "not private" in done.stderr


BAD = [
    (["--dataset", "diabetis"], "diabetes"),
    (["--features", "bmi,agee"], "agee"),
    (["--csv", "{table}", "--target", "y"], "a, b, y"),
    (["--csv", "{table}", "--target", "z", "--bounds", BOUNDS], "z"),
    (["--csv", "{table}", "--target", "y", "--bounds", "a=-4:4"], "b, y"),
    (["--csv", "{text}", "--target", "y", "--bounds", BOUNDS], "row 2"),
    (["--csv", "{missing}", "--target", "y", "--bounds", BOUNDS], "row 3"),
    (["--csv", "nowhere.csv", "--target", "y", "--bounds", BOUNDS], "nowhere.csv"),
    (["--clients", "3", "--tolerate", "2"], "N - T - 1"),
    (["--tolerate", "343"], "T = 343"),
    (["--drop", "343"], "K = 343"),
    (["--colluders", "35"], "c = 35"),
    (["--tolerate", "-1"], "below 0"),
    (["--computes", "1"], "M = 1"),
    (["--epsilon", "0"], "epsilon"),
    (["--epsilon", "-1"], "epsilon"),
    (["--epsilon", "nan"], "epsilon"),
    (["--epsilon", "inf"], "epsilon"),
    (["--delta", "0"], "delta"),
    (["--delta", "1"], "delta"),
    (["--share-encoding", "zip"], "seed or vector"),
    (["--broker", "kafka"], "kafka"),
    (["--broker", "mqtt://127.0.0.1:1"], "cannot reach broker"),
    (["--clients", "0"], "0"),
    (["--clients", "many"], "integer"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD, ids=[" ".join(arguments)[:60] for arguments, _ in BAD])
def test_bad_input_is_one_line_and_nothing_half_done(
    arguments: list[str], said: str, dca: Dca, table: Path, tmp_path: Path
) -> None:
    (tmp_path / "text.csv").write_text("a,b,y\n1,2,3\n1,two,3\n", encoding="utf-8")
    (tmp_path / "missing.csv").write_text("a,b,y\n1,2,3\n1,2,3\n1,,3\n", encoding="utf-8")
    places = {"{table}": table, "{text}": tmp_path / "text.csv", "{missing}": tmp_path / "missing.csv"}
    done = dca(*(str(places.get(one, one)) for one in arguments), "--output", "made")
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("dca: ")]
    assert len(lines) == 1
    assert said in lines[0]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("kind", ["embedded", "mosquitto"])
def test_a_signal_leaves_no_process_behind(
    number: signal.Signals, code: int, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if kind == "mosquitto":
        request.getfixturevalue("mosquitto_installed")
    command = [sys.executable, "-m", "dca_proto.cli", "swarm", "--broker", kind]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        children = _children_once_started(process.pid)
        os.kill(process.pid, number)
        output, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == code, output
    assert "Traceback" not in output
    gone, alive = psutil.wait_procs(children, timeout=10)
    assert (len(gone), alive) == (len(children), [])
    assert not (tmp_path / "run").exists()


def _children_once_started(pid: int) -> list[Any]:
    """The broker's process, as soon as it is there."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        children = psutil.Process(pid).children(recursive=True)
        if any(re.search(r"dca_proto\.net\.embedded|mosquitto", " ".join(child.cmdline())) for child in children):
            return children
    raise AssertionError("no broker was started")
