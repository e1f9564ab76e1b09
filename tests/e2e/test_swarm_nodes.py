"""Data nodes that release by themselves, as their users meet them: `dca swarm --data-nodes` and `dca learn`.

Methods are in closed form, so that nothing is compiled here; `test_jobs` checks what chains give.
"""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Dca, one_line
from live_actors import Actors, federation
from schemas import parsed

from dca_proto.cli import main
from dca_proto.errors import RoundAborted
from dca_proto.protocol.effects import Address, Channel
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.kinds import NodeRelease
from dca_proto.protocol.wire.topics import topic_of
from dca_proto.runtime.broker import Broker
from dca_proto.runtime.live import LiveTrainer
from dca_proto.runtime.spending import read_ledger_view
from emulator.swarm import options
from emulator.swarm.host import Vanished
from inference.errors import DataError
from inference.jobs import NAMES, find, reports
from inference.models.linear.nodes import job as regression_mcmc

BOUNDS = "a=-4:4,b=-4:4,y=-8:8"


def csv(rows: int, seed: int) -> str:
    """Rows of y = a - b + noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2)).clip(-4, 4)
    y = (x[:, 0] - x[:, 1] + rng.normal(scale=0.5, size=rows)).clip(-8, 8)
    return "\n".join(["a,b,y", *(f"{a},{b},{c}" for (a, b), c in zip(x, y, strict=True))]) + "\n"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2000 rows: 1550 to learn from and 450 that are held out."""
    path = tmp_path_factory.mktemp("nodes") / "rows.csv"
    path.write_text(csv(2000, seed=7), encoding="utf-8")
    return path


def own(table: Path, *more: str, method: str = "fast") -> list[str]:
    job = ("--job", "regression-mcmc", "--set", f"method={method}", "--epsilon", "4")
    return ["--csv", str(table), "--target", "y", "--bounds", BOUNDS, *job, *more]


def estimates_are_near(result: dict[str, Any]) -> bool:
    """Within 8 of their standard deviations, and a tenth, of those without privacy: false alarm below 1e-14."""
    pairs = zip(result["coefficients"], result["not_covered_by_epsilon"]["coefficients"], strict=True)
    return all(abs(one["estimate"] - other["nonprivate"]) < 8 * one["estimate_sd"] + 0.1 for one, other in pairs)


@pytest.mark.long
def test_data_nodes_release_without_compute_nodes(
    dca: Dca, table: Path, embedded_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = dca(*own(table, "--data-nodes", "3", "--broker", embedded_broker.url, "--json", "-"))
    assert done.returncode == 0, done.stderr
    result = parsed(done.stdout, "swarm")
    assert (result["clients"], result["computes"], result["tolerate"], result["round_kind"]) == (
        3,
        0,
        0,
        "node-release",
    )
    (one,) = result["rounds"]
    assert (one["relation"], result["n_min"]) == ("replace-one-row", None)
    assert [(node["number"], node["rows"]) for node in one["nodes"]] == [(0, 517), (1, 517), (2, 516)]
    assert (one["arrived"], one["contributors"], one["dropped"], one["absent"]) == (3, 1550, 0, [])
    assert one["noise_variance"] == pytest.approx(sum(node["noise_sd"] ** 2 for node in one["nodes"]))
    assert one["nodes"][0]["noise_sd"] >= one["sensitivity"] / one["mu"], "the whole noise for one row"
    assert set(one["phases"]) == {"release"}
    assert result["epsilon_spent"] == pytest.approx(4)
    assert estimates_are_near(result)
    assert result["coefficients"][0]["interval_95"][0] < result["coefficients"][0]["estimate"]
    errors = result["not_covered_by_epsilon"]["test"]
    assert errors["rmse_private"] < errors["rmse_zero"]
    printed = one_line(done.stderr)
    assert "3 data nodes, each adds all the noise for one row; 516 to 517 rows each, assigned at random" in printed
    assert re.search(r"round 1 +regression: 3 of 3 data nodes released, ", done.stderr)
    assert "epsilon 4 of 4 per row, delta 1e-05; each row is one person's, at one data node" in printed
    assert "4 connections" in printed
    assert max(map(len, done.stderr.splitlines())) <= 80
    assert (tmp_path / "run" / "coefficients.png").read_bytes().startswith(b"\x89PNG")
    assert main(["report", "run/result.json"]) == 0
    capsys.readouterr()
    page = (tmp_path / "run" / "result.html").read_text()
    for text in (
        "Learned from 1,550 rows of 3 data nodes",
        "epsilon spent per row",
        "needed (sd)",
        "sensitivity",
    ):
        assert text in page
    assert "Compute nodes (M)" not in page


@pytest.mark.long
def test_a_data_node_that_vanishes_is_not_waited_for_beyond_the_close(
    dca: Dca, table: Path, embedded_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "_RELEASING_MS", 8000)  # of which a busy machine needs most
    done = dca(*own(table, "--data-nodes", "3", "--drop", "1", "--broker", embedded_broker.url, "--json", "-"))
    assert done.returncode == 0, done.stderr
    result = parsed(done.stdout, "swarm")
    (one,) = result["rounds"]
    assert one["dropped"] == 3 - one["arrived"] == len(one["absent_clients"])
    assert one["dropped"] in (1, 2), "on a busy machine, a second one is late"
    assert {node["number"] for node in one["nodes"]} == {0, 1, 2} - set(one["absent_clients"])
    assert one["contributors"] == sum(node["rows"] for node in one["nodes"])
    assert result["epsilon_spent"] == pytest.approx(4), "whoever vanished was charged, too"
    assert "K = 1 drops in each round" in one_line(done.stderr)
    assert re.search(r"^dropped +round 1: data nodes \d \(", done.stderr, re.MULTILINE)


@pytest.mark.long
def test_a_round_without_contributions_aborts_with_advice(
    dca: Dca, table: Path, embedded_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(trainer: LiveTrainer, request: OpenRound) -> None:
        raise RoundAborted("no data node released anything; 0 declined")

    monkeypatch.setattr(LiveTrainer, "run_round", lost)
    done = dca(*own(table, "--data-nodes", "2", "--broker", embedded_broker.url, "--json", "-"))
    assert done.returncode == 3
    result = parsed(done.stdout, "swarm")
    assert (result["ok"], result["rounds"]) == (False, [])
    assert result["error"] == "no data node released anything; 0 declined"
    assert "no release came in time: lower --data-nodes or --drop" in one_line(done.stderr)


def test_a_release_is_lost_and_no_contribution() -> None:
    drops = Vanished(Channel.TRAINER)
    drops.ids = frozenset({"01" * 16})
    lost = {
        channel: drops.swallows(topic_of(bytes(32), Address(channel, bytes(16)), bytes([1]) * 16))
        for channel in (Channel.COMPUTE, Channel.TRAINER)
    }
    assert lost == {Channel.COMPUTE: False, Channel.TRAINER: True}


@pytest.mark.long
def test_one_sum_over_all_clients_is_one_node(dca: Dca, table: Path, embedded_broker: Broker) -> None:
    few = ("--clients", "40", "--drop", "2", "--tolerate", "2")
    done = dca(*own(table, *few, "--broker", embedded_broker.url, "--json", "-"))
    assert done.returncode == 0, done.stderr
    result = parsed(done.stdout, "swarm")
    (one,) = result["rounds"]
    assert (result["round_kind"], one["relation"], one["contributors"]) == ("secure-sum", "replace-one-client", 38)
    assert one["noise_variance"] == pytest.approx(38 * one["sigma_local"] ** 2), "what it really carries"
    assert one["nodes"] == []
    assert "sampling" not in result, "a closed form"
    assert estimates_are_near(result)


@pytest.mark.long
def test_data_nodes_release_averages_of_their_rows(dca: Dca, table: Path, embedded_broker: Broker) -> None:
    group = ("--data-nodes", "3", "--set", "group=5", "--broker", embedded_broker.url, "--json", "-")
    done = dca(*own(table, *group))
    assert done.returncode == 0, done.stderr
    result = parsed(done.stdout, "swarm")
    (one,) = result["rounds"]
    assert (one["statistic"], one["relation"]) == ("averaged-regression", "replace-one-row")
    assert [node["rows"] for node in one["nodes"]] == [515, 515, 515], "whole groups count"
    assert one["noise_variance"] == pytest.approx(sum(node["noise_variance"] for node in one["nodes"]))
    assert estimates_are_near(result)
    assert "(Algorithm 3), in closed form, from averages of 5 rows; no chains" in one_line(done.stderr)


@pytest.mark.long
def test_releases_are_written_even_without_a_result(
    dca: Dca, table: Path, embedded_broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any, **options: Any) -> None:
        raise DataError("a draw is not finite; take another method")

    monkeypatch.setattr(regression_mcmc, "fit_fast", fails)
    Path("run").mkdir()
    for name in ("result.json", "coefficients.png", "result.html"):
        Path("run", name).write_text("earlier")
    done = dca(*own(table, "--data-nodes", "2", "--broker", embedded_broker.url, "--json", "-"))
    assert done.returncode == 5
    assert done.stderr.splitlines()[-1].endswith("a draw is not finite; take another method")
    assert "the released sums are in run/result.json; run again with other --set KEY=VALUE" in one_line(done.stderr)
    result = parsed(done.stdout, "swarm")
    assert json.loads(Path("run/result.json").read_text()) == result
    assert (result["ok"], result["error"]) == (False, "a draw is not finite; take another method")
    (one,) = result["rounds"]
    np.testing.assert_allclose(one["value"], np.sum([node["value"] for node in one["nodes"]], axis=0))
    assert result["epsilon_spent"] == pytest.approx(4)
    assert not Path("run/coefficients.png").exists(), "no picture of an earlier result stands beside this one"
    assert not Path("run/result.html").exists()
    kept = ("result.1.json", "coefficients.1.png", "result.1.html")
    assert [Path("run", name).read_text() for name in kept] == ["earlier"] * 3
    assert main(["report", "run/result.json"]) == 0
    capsys.readouterr()
    assert "No result: a draw is not finite" in Path("run/result.html").read_text()


@pytest.mark.parametrize(("options", "message", "code"), [
    (["--data-nodes", "0"], "--data-nodes 0: expected 1 to 1550, the number of training rows", 2),
    (["--data-nodes", "2000"], "--data-nodes 2000: expected 1 to 1550, the number of training rows", 2),
    (["--data-nodes", "3", "--drop", "3"], "--drop 3: 0 to 2 of 3 data nodes may drop", 2),
    (["--data-nodes", "3", "--tolerate", "1", "--clients", "9"], "--clients, --tolerate go with sums over many", 2),
    (["--data-nodes", "3", "--computes", "3"], "--computes goes with sums", 2),
    (["--data-nodes", "3", "--job", "regression"], "these learn from releases of data nodes: regression-mcmc", 5),
    (["--data-nodes", "700", "--set", "group=5"], "--data-nodes 700: each data node would get 2 of the 1550 "
     "training rows, and the job needs 5 with these settings; lower --data-nodes to 310", 2),
    (["--data-nodes", "3", "--set", "group=1600"], "the job needs 1600 with these settings; bring more rows", 2),
    (["--clients", "30", "--set", "group=5"], "averages of 5 rows are for data nodes that release by themselves", 5),
    (["--data-nodes", "3", "--set", "rows_max=0"], "setting 'rows_max' is 0, expected a whole number, at least 1", 5),
])  # fmt: skip
def test_an_option_that_data_nodes_do_not_support_is_a_one_line_error(
    options: list[str], message: str, dca: Dca, table: Path, code: int
) -> None:
    done = dca(*own(table), *options)
    assert done.returncode == code
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not Path("run").exists()


def test_without_jax_nothing_is_started(dca: Dca, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor without ArviZ, which would check afterwards whether chains have mixed."""
    monkeypatch.setattr(reports, "find_spec", lambda name: None)
    done = dca(*own(table, "--data-nodes", "2", method="normal"))
    assert done.returncode == 5
    assert "need NumPyro, JAX and ArviZ" in done.stderr
    assert "pip install -e '.[samplers]' in the checkout" in done.stderr
    assert done.stdout == ""


JOB = """
[account]
epsilon = 40
[job]
name = "regression-mcmc"
target = "y"
bounds = { a = [-4, 4], b = [-4, 4], y = [-8, 8] }
epsilon = 4
delta = 1e-5
clients = 2
method = "fast"
"""


def hospitals(folder: Path, broker: Broker, rows: tuple[int, ...]) -> None:
    """A federation of data nodes with so many rows each, and a trainer with a job."""
    data = [csv(many, seed=index) for index, many in enumerate(rows, 1)]
    policy = "rows_of_many = true\nepsilon_per_round_max = 4\nepsilon_per_period_max = 4\n"
    federation(folder, broker.url, data, computes=0, limits="", policy=policy, trainer=JOB)


@pytest.mark.long
def test_a_trainer_learns_from_two_hospitals_and_pays_once(
    embedded_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hospitals(tmp_path, embedded_broker, rows=(900, 600))
    (tmp_path / "own.csv").write_text(csv(50, seed=9))
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    with Actors(tmp_path):
        assert main(["learn", "trainer.toml", "--test", "own.csv", "--json", "l.json", "--plot", "l.png"]) == 0
    printed = one_line(capsys.readouterr().out)
    assert "J = 2 data nodes; each adds all the noise for one row" in printed
    assert "epsilon 4 per row, delta 1e-05" in printed
    assert "with other method, coefficient_sd, intercept_sd, feature_sd, residual_sd, chains" in printed
    assert "warmup, draws, require_mixed, seed, it costs nothing; to learn again" in printed
    result = json.loads((tmp_path / "l.json").read_text())
    (one,) = result["rounds"]
    assert (one["contributors"], one["clients"], one["relation"]) == (1500, 2, "replace-one-row")
    assert sorted(node["rows"] for node in one["nodes"]) == [600, 900]
    slopes = [row["estimate"] for row in result["coefficients"]]
    spread = max(row["estimate_sd"] for row in result["coefficients"])
    # false alarm: beyond 8 posterior standard deviations, below 1e-14
    np.testing.assert_allclose(slopes, [1, -1], atol=8 * spread + 0.1)
    with monkeypatch.context() as patch:
        patch.setattr("dca_proto.drawing.picture", None)  # no picture is worth the result
        again = ["learn", "trainer.toml", "--json", "again.json", "--plot", "l.png"]
        assert main(again) == 0, "no node runs, and no round takes place"
    printed = one_line(capsys.readouterr().out)
    assert "kept the earlier l.png as l.1.png" in printed
    assert "warning l.png could not be drawn (TypeError: 'NoneType' object is not callable)" in printed
    assert json.loads((tmp_path / "again.json").read_text())["coefficients"] == result["coefficients"]
    assert main(["learn", "trainer.toml", "--json", "more.json", "--set", "draws=50", "--set", "seed=3"]) == 0
    capsys.readouterr()
    assert main(["learn", "trainer.toml", "--set", "group=3"]) == 8
    assert "is the journal of a job with another group" in one_line(capsys.readouterr().err)
    assert len(read_ledger_view(tmp_path / "trainer.toml").ledger.charges) == 1
    assert main(["report", "l.json"]) == 0
    assert "Learned from 1,500 rows of 2 data nodes" in (tmp_path / "l.html").read_text()


def test_hardening_10_the_same_command_continues_after_two_hospitals_decline_and_widen_their_policies(
    embedded_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hospitals(tmp_path, embedded_broker, rows=(90, 60))
    policies = sorted(tmp_path.glob("client-*.toml"))
    wide = [path.read_text() for path in policies]
    for path, text in zip(policies, wide, strict=True):
        path.write_text(text.replace("epsilon_per_round_max = 4\nepsilon_per_period_max = 4\n", ""))
    trainer = tmp_path / "trainer.toml"
    trainer.write_text(trainer.read_text().replace("epsilon = 40", "epsilon = 4"))  # room for the job once
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    learn = ["learn", "trainer.toml", "--json", "l.json"]
    with Actors(tmp_path):
        assert main(learn) == 3
    out, log = (one_line(text) for text in capsys.readouterr())
    note = (
        "note this job needs clients whose [policy] accepts more than the default: epsilon 4 at delta 1e-05 (by default"
    )
    assert out.count("needs clients whose [policy]") == 1
    assert f"{note} <= 1 at" in out
    why = "2 declined (epsilon: found 4 at delta 1e-05; accepts <= 1 at delta 1e-05); its charge came back"
    assert why in log
    remedy = (
        "once the clients accept these terms ([policy] of their files), run the same command again; a job that asks "
        "for other terms needs another journal"
    )
    assert f"trainer.regression-mcmc.journal; {remedy}" in log
    assert json.loads((tmp_path / "l.json").read_text())["remedy"] == remedy
    assert [one.returned for one in read_ledger_view(trainer).ledger.charges] == [True], (
        "the nodes answer once, and do not release again"
    )
    assert main(["ledger", "trainer.toml"]) == 0
    assert "spent epsilon 0 at delta 1e-05" in one_line(capsys.readouterr().out)
    for path, text in zip(policies, wide, strict=True):
        path.write_text(text)
    with Actors(tmp_path):
        assert main(learn) == 0
    assert "needs clients whose" not in capsys.readouterr().out
    assert sorted(node["rows"] for node in json.loads((tmp_path / "l.json").read_text())["rounds"][0]["nodes"]) == [
        60,
        90,
    ]
    assert [one.returned for one in read_ledger_view(trainer).ledger.charges] == [True, False]


@pytest.mark.skipif(find_spec("jax") is None or find_spec("arviz") is None, reason="without the extra samplers")
def test_hospitals_too_small_for_one_method_use_another_at_no_further_cost(
    embedded_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hospitals(tmp_path, embedded_broker, rows=(2, 1))
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    with Actors(tmp_path):
        assert main(["learn", "trainer.toml", "--set", "method=normal", "--json", "failed.json"]) == 5
    log = one_line(capsys.readouterr().err)
    error = "the largest of 2 data nodes has 2 rows, and method 'normal' needs 4 of each; take 'fast'"
    remedy = "the same command continues from there, also with another method, coefficient_sd"
    assert error in log
    assert remedy in log
    failed = json.loads((tmp_path / "failed.json").read_text())
    assert (failed["ok"], failed["epsilon"], failed["remedy"][: len(remedy)]) == (False, 4, remedy)
    assert failed["error"].startswith(error)
    (one,) = failed["rounds"]
    assert sorted(node["rows"] for node in one["nodes"]) == [1, 2]
    np.testing.assert_allclose(one["value"], np.sum([node["value"] for node in one["nodes"]], axis=0))
    assert main(["report", "failed.json"]) == 0
    assert "No result: the largest of 2 data nodes" in (tmp_path / "failed.html").read_text()
    assert main(["learn", "trainer.toml", "--set", "method=fast", "--json", "done.json"]) == 0
    assert json.loads((tmp_path / "done.json").read_text())["rounds"][0]["value"] == one["value"]
    assert len(read_ledger_view(tmp_path / "trainer.toml").ledger.charges) == 1


def test_only_some_jobs_are_for_data_nodes() -> None:
    assert [name for name in NAMES if NodeRelease in find(name).kinds] == [
        "regression-mcmc",
        "describe",
        "compare",
        "synthetic",
        "survival",
        "survival-regression",
        "sites-regression",
        "sites-logistic",
    ]
