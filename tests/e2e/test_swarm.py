"""`dca swarm` as its user meets it: real actors over real connections, exit codes, files, and nothing left behind."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from commands import Dca, Done, one_line
from patience import PATIENCE_S
from rich.console import Console
from schemas import parsed
from scipy.optimize import brentq
from scipy.stats import norm

from dca_proto.cli import main
from dca_proto.cli.swarm_progress import SwarmProgress
from dca_proto.errors import RoundAborted
from dca_proto.jobs.runner import RETRIES
from dca_proto.protocol import facts
from dca_proto.protocol.facts import Announced, RoundFailed
from dca_proto.report.run import closing_lines
from dca_proto.results.run import Run
from dca_proto.runtime.broker import Broker
from emulator.swarm.live import Swarm
from emulator.swarm.timeline import RoundLog
from inference.jobs.summary import HeldOut

BOUNDS = "a=-4:4,b=-4:4,y=-8:8"
BATCH = ["--job", "mixture", "--set", "batch=12", "--set", "components=2"]


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


def own(table: Path, *more: str) -> list[str]:
    return ["--csv", str(table), "--target", "y", "--bounds", BOUNDS, "--epsilon", "8", *more]


def test_a_run_prints_and_writes_its_result(dca: Dca, table: Path, any_broker: Broker, tmp_path: Path) -> None:
    done = dca(*own(table, "--broker", any_broker.url, "--drop", "3", "--json", "-"))
    assert done.returncode == 0, done.stderr
    result = parsed(done.stdout, "swarm")
    assert (result["ok"], result["private"], result["epsilon"], result["delta"]) == (True, True, 8.0, 1e-5)
    assert (result["mechanism"], result["not_private_because"]) == ("distributed-discrete-gaussian", [])
    assert (result["clients"], result["computes"], result["tolerate"], result["colluders"]) == (31, 3, 3, 0)
    assert (result["job"], result["settings"]["std_share"]) == ("regression", 0.2)
    figures = {"estimate", "estimate_sd", "interval_95", "prior_interval_95", "contraction"}
    assert [set(one) for one in result["coefficients"]] == [{"name", "unit", "standard", *figures}] * 2
    assert set(result["intercept"]) == figures
    apart, others = result["not_covered_by_epsilon"], {"nonprivate", "nonprivate_sd", "nonprivate_interval_95"}
    assert [set(one) for one in apart["coefficients"]] == [{"name", *others}] * 2
    assert set(apart["intercept"]) == others
    assert set(apart["test"]) == {"rows", "unit", "rmse_private", "rmse_nonprivate", "rmse_zero"}
    assert "not covered by epsilon, because computed from raw rows:" in one_line(done.stderr)
    assert [one["statistic"] for one in result["rounds"]] == ["phases", "regression"]
    for one in result["rounds"]:
        assert (one["dropped"], one["contributors"]) == (3, 28), "T of them, so that it waits for all others"
        assert one["noise_variance"] == pytest.approx(28 * one["sigma_local"] ** 2)
        assert len(one["value"]) == one["dimension"]
        assert (one["clients"], one["arrived"], one["closed"]) == (31, 28, "quiet")
        assert set(one["phases"]) == {"collect", "agree"}
        assert one["wall_s"] == pytest.approx(sum(one["phases"].values()), abs=0.1)
        assert one["messages"] > 28 * 2
        assert one["bytes"] > 0
    assert result["epsilon_spent"] <= 8.0
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    assert (tmp_path / "run" / "coefficients.png").read_bytes().startswith(b"\x89PNG")
    assert "spent" in done.stderr
    assert re.search(r"^repair +noise-aware$", done.stderr, re.MULTILINE)
    assert f"broker      external at {any_broker.url}, 35 connections" in done.stderr
    assert max(map(len, done.stderr.splitlines())) <= 80


def test_a_swarm_of_more_connections_than_open_files_is_refused_before_anything_starts(
    dca: Dca, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the limit is raised, where the system lets us."""
    most, raised = [90], list[tuple[int, int]]()
    get, put, files = resource.getrlimit, resource.setrlimit, resource.RLIMIT_NOFILE
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (64, most[0]) if kind == files else get(kind))
    monkeypatch.setattr(
        resource, "setrlimit", lambda kind, limits: raised.append(limits) if kind == files else put(kind, limits)
    )
    done = dca(*own(table))
    assert (done.returncode, raised) == (2, [])
    message = "a process would need 99 open files, for a connection each, and may have 90: raise it with `ulimit -Hn`, "
    assert f"dca: {message}or lower --clients" in done.stderr.splitlines()
    assert "broker" not in done.stdout
    most[0] = 99
    dca(*own(table, "--broker", "mqtt://127.0.0.1:1"))
    assert raised == [(99, 99)]


@pytest.mark.long
def test_progress_is_printed_line_by_line_without_a_terminal(dca: Dca, table: Path, embedded_broker: Broker) -> None:
    done = dca(*own(table, "--broker", embedded_broker.url, "--drop", "3"))
    phases = re.findall(r"^round (\d)     (\S+): (.*?), [\d.]+ s(, no more arrived)?$", done.stdout, re.MULTILINE)
    counts = [("28 of 31 contributed", ", no more arrived"), ("sum released", "")]
    assert phases == [
        (number, name, *count) for number, name in (("1", "phases"), ("2", "regression")) for count in counts
    ]


def test_each_phase_is_printed_once_and_an_aborted_round_has_one() -> None:
    screen = io.StringIO()
    view = SwarmProgress(Console(file=screen, width=80), clients=2)
    log = RoundLog("sum", 1, began_s=0.0, arrived=1)
    view.changed(log)
    assert not screen.getvalue()
    log.ends_s, log.closed = {"collect": 1.5}, "deadline"
    view.changed(log)
    log.failure = facts.RoundFailed(bytes(16), "too few", 1, 2)
    log.ended_s = 3.0
    view.changed(log)
    assert screen.getvalue().splitlines() == ["round 1     sum: 1 of 2 contributed, 1.5 s, the deadline passed"]


@pytest.mark.long
def test_clients_may_share_a_connection(dca: Dca, table: Path, embedded_broker: Broker) -> None:
    done = dca(*own(table, "--broker", embedded_broker.url, "--connections", "shared", "--drop", "3", "--json", "-"))
    assert done.returncode == 0, done.stderr
    result = parsed(done.stdout, "swarm")
    last = result["rounds"][-1]
    assert (result["connections"], last["contributors"], last["dropped"]) == ("shared", 28, 3)
    assert "5 connections" in done.stderr


@pytest.mark.parametrize(("options", "retries", "advice"), [
    (["--drop", "3"], RETRIES, "this machine is too slow or too busy for 31 clients; lower --clients"),
    (["--drop", "4"], 0, "raise --tolerate to 4 or lower --drop to 3"),
    ([*BATCH, "--drop", "4"], 0, "raise --tolerate to 8 or lower --drop to 2"),
    ([*BATCH, "--drop", "4", "--tolerate", "8"], RETRIES, "lower --clients"),
])  # fmt: skip
def test_a_slow_round_is_repeated_and_an_impossible_one_is_not(
    options: list[str],
    retries: int,
    advice: str,
    dca: Dca,
    table: Path,
    embedded_broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is advised is enough for a batch, too: of 12 out of 31, four may drop with T = 8."""
    retry_counts: list[int] = []

    async def abort(swarm: Swarm, job: Generator[Any, Any, Any], *, retries: int) -> None:
        job.close()
        retry_counts.append(retries)
        swarm.timeline.note(Announced(bytes(16), "sum", 1))
        swarm.timeline.note(RoundFailed(bytes(16), "too few", 1, 28))
        raise RoundAborted("too few", contributors=1, needed=28)

    monkeypatch.setattr(Swarm, "learn", abort)
    done = dca(*own(table, "--broker", embedded_broker.url, *options))
    assert (done.returncode, retry_counts) == (3, [retries])
    assert advice in one_line(done.stdout)


@pytest.mark.long
def test_another_job_learns_in_mini_batches(
    dca: Dca, embedded_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(8)
    x = rng.normal(size=(60, 2))
    lines = ["a,b,ill", *(f"{a},{b},{int(a > b)}" for a, b in x)]
    (tmp_path / "ill.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    data = ("--csv", "ill.csv", "--target", "ill", "--bounds", "a=-4:4,b=-4:4,ill=0:1", "--clients", "24")
    job = ("--job", "logistic", "--set", "batch=12", "--set", "epochs=3", "--epsilon", "60")
    done = dca(*data, *job, "--drop", "0", "--tolerate", "0", "--broker", embedded_broker.url, "--json", "-")
    assert done.returncode == 0, done.stderr
    result = parsed(done.stdout, "swarm")
    assert (result["kind"], result["job"], result["batch"], result["tolerate"]) == ("swarm", "logistic", 12, 0)
    rounds = [(one["statistic"], one["contributors"]) for one in result["rounds"]]
    assert rounds == [("phases", 24)] + 6 * [("gradient", 12)]
    assert [one["number"] for one in result["not_covered_by_epsilon"]["iterations"]] == [1, 2, 3, 4, 5, 6]
    # each client was in the first round and in three of the six others, so all of the budget is spent and no more
    assert result["epsilon_spent"] == pytest.approx(60, rel=0.01)
    auc, _ = result["not_covered_by_epsilon"]["test"]["scores"]
    assert (auc["name"], auc["constant"]) == ("AUC", 0.5)
    assert len(re.findall(r"^round \d +gradient: 12 of 12 contributed, .*; held-out", done.stderr, re.MULTILINE)) == 6
    assert re.search(r"^test +AUC ", done.stderr, re.MULTILINE)
    # false alarm: none in 4000 runs of the same rows and split with fresh noise, all of which ranked every row rightly
    assert auc["private"] > 0.8
    assert "at least 11 unknown noises" in one_line(done.stderr)
    assert main(["report", "run/result.json"]) == 0
    capsys.readouterr()
    page = (tmp_path / "run" / "result.html").read_text()
    title, _, rest = page.partition("</h1>")
    assert "AUC" not in title, "no epsilon covers it"
    assert "AUC" in rest
    assert "The score of the parameters after each iteration" in page


def test_dropping_as_many_as_tolerated_gives_a_result(
    dca: Dca, table: Path, embedded_broker: Broker, tmp_path: Path
) -> None:
    done = dca(
        *own(table, "--broker", embedded_broker.url, "--tolerate", "4", "--drop", "4", "--json", "out.json"),
    )
    assert done.returncode == 0, done.stderr
    assert parsed((tmp_path / "out.json").read_text(), "swarm")["rounds"][-1]["contributors"] == 27


@pytest.mark.parametrize(
    ("drop", "colluders", "needed"), [("5", "0", 27), pytest.param("3", "2", 29, marks=pytest.mark.long)]
)
def test_one_drop_too_many_aborts(
    drop: str, colluders: str, needed: int, dca: Dca, table: Path, embedded_broker: Broker, tmp_path: Path
) -> None:
    options = ("--tolerate", "4", "--drop", drop, "--colluders", colluders, "--json", "-")
    done = dca(*own(table, "--broker", embedded_broker.url, *options))
    assert done.returncode == 3
    *_, advice, last = done.stderr.strip().splitlines()
    assert re.match(r"next +raise --tolerate to 5 or lower --drop to [24]", advice)
    (contributed,) = re.findall(rf"(\d+) clients? contributed, at least {needed} were needed", last)
    assert int(contributed) <= 31 - int(drop), "fewer, if the machine is too busy for its short window"
    result = parsed(done.stdout, "swarm")
    assert (result["ok"], result["not_covered_by_epsilon"], len(result["rounds"])) == (False, None, 1)
    assert 0 <= result["epsilon_spent"] < 8, "what was charged counts until it is given back"
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_a_seed_fixes_splits_and_drops_but_no_keys(dca: Dca, table: Path, embedded_broker: Broker) -> None:
    results = []
    for _ in range(2):
        done = dca(*own(table, "--broker", embedded_broker.url, "--seed", "5", "--drop", "3", "--json", "-"))
        assert done.returncode == 0, done.stderr
        results.append(parsed(done.stdout, "swarm"))
    first, second = results
    errors = [one["not_covered_by_epsilon"]["test"] for one in results]
    assert errors[0]["rmse_nonprivate"] == errors[1]["rmse_nonprivate"]
    assert errors[0]["rmse_private"] != errors[1]["rmse_private"]
    dropped = [[one["absent_clients"] for one in result["rounds"]] for result in results]
    assert dropped[0] == dropped[1]
    assert dropped[0][0] != dropped[0][1], "each round draws anew"
    assert first["rounds"][0]["absent"] != second["rounds"][0]["absent"], "ids are new in each run"


NOT_PRIVATE = Run(ok=True, clients=3, computes=2, tolerate=0, rounds=[], private=False, not_private_because=["x"])


def test_a_result_worse_than_the_mean_comes_with_advice() -> None:
    test: HeldOut = {"rmse_private": 80.0, "rmse_nonprivate": 50.0, "rmse_zero": 78.0, "rows": 9}
    assert ("", "no better than predicting the mean: more clients or a larger epsilon would help") in closing_lines(
        NOT_PRIVATE, {"test": test}
    )


def test_a_result_is_printed_with_its_warnings() -> None:
    found = closing_lines(NOT_PRIVATE, {"test": None, "warnings": ["the chains have not met"]})
    assert found[0] == ("warning", "the chains have not met")


@pytest.mark.parametrize("made", ["made", "made/result.json/", "made/coefficients.png/"])
def test_an_output_that_cannot_be_written_is_refused_before_the_work(made: str, dca: Dca, tmp_path: Path) -> None:
    if made.endswith("/"):
        (tmp_path / made).mkdir(parents=True)
    else:
        (tmp_path / made).write_text("a file")
    done = dca("--output", "made", "--broker", "mqtt://127.0.0.1:1")
    assert done.returncode == 8
    assert done.stderr.startswith("dca: cannot write made/")


def test_a_missing_plot_library_is_seen_before_the_work(dca: Dca, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dca_proto.cli.output.find_spec", lambda name: None)
    done = dca("--broker", "mqtt://127.0.0.1:1")
    assert (done.returncode, "this needs matplotlib" in done.stderr) == (2, True)


@pytest.mark.long
def test_hardening_12_figures_not_covered_by_epsilon_are_left_out_on_request(
    dca: Dca, table: Path, embedded_broker: Broker, tmp_path: Path
) -> None:
    """Neither in files nor on the screen; no row is held out, so that each is some client's."""
    done = dca(*own(table, "--no-reference", "--broker", embedded_broker.url, "--drop", "0", "--json", "-"))
    assert done.returncode == 0, done.stderr
    result = parsed(done.stdout, "swarm")
    assert (result["private"], result["not_covered_by_epsilon"], result["clients"]) == (True, None, 40)
    assert json.loads((tmp_path / "run/result.json").read_text()) == result
    assert not [name for name, _ in leaves(result) if re.search("nonprivate|rmse|score", name)]
    assert not re.search("without privacy|held-out|held out|predicting the mean|not covered", done.stderr)
    assert re.search(r"^ +private +unit", done.stderr, re.MULTILINE)


def test_a_table_of_ones_own_is_told_what_further_runs_add_and_why_rows_are_missing(
    dca: Dca, table: Path, embedded_broker: Broker
) -> None:
    """Five runs of (8, 1e-5) compose as Gaussian releases do: computed here with SciPy, from μ of one run."""
    given = ("--csv", str(table), "--job", "describe", "--bounds", BOUNDS, "--epsilon", "8", "--tolerate", "4")
    done = dca(*given, "--drop", "2", "--broker", embedded_broker.url)
    assert done.returncode == 0, done.stderr

    def delta(epsilon: float, mu: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))

    mu = brentq(lambda one: delta(8.0, one) - 1e-5, 0.1, 9.0)
    together = brentq(lambda epsilon: delta(epsilon, 5**0.5 * mu) - 1e-5, 8.0, 80.0)
    line = r"5 such runs would cost epsilon ([\d.]+), delta 1e-05 together \(dca account --also gaussian:([\d.]+)\)"
    assert [float(one) for one in re.findall(line, one_line(done.stdout))[0]] == pytest.approx([together, mu], rel=1e-3)
    assert "2 clients dropped out on purpose and count nowhere; --drop 0 keeps all" in one_line(done.stdout)


@pytest.mark.long
def test_bounds_from_data_claim_nothing(dca: Dca, table: Path, embedded_broker: Broker, tmp_path: Path) -> None:
    known = ("--csv", str(table), "--target", "y", "--bounds-from-data")
    done = dca(*known, "--broker", embedded_broker.url, "--drop", "0", "--json", "-")
    assert done.returncode == 0, done.stderr
    result = parsed(done.stdout, "swarm")
    claims_nothing(result, done, because="the bounds were read from the data")


def claims_nothing(result: dict[str, Any], done: Done, because: str) -> None:
    """No epsilon, delta or mu in the object for programs, and no figure of one on the screen, but the reason."""
    (reason,) = result["not_private_because"]
    assert (result["private"], reason.startswith(because)) == (False, True)
    claims = [value for name, value in leaves(result) if re.search("epsilon|delta|mu$", name)]
    assert claims == [None] * 9, "ε, δ and ε spent; ε, δ and μ of both rounds"
    assert not re.search(r"(epsilon|delta|mu|ε|δ|μ)\W+\d", done.stdout + done.stderr, re.IGNORECASE)
    assert not re.search(r"\b(8|1e-0?5)\b", "".join(re.findall(r"(?m)^(?:plan|spent|not private) .*$", done.stderr)))
    assert re.search(r"^ +not private +without privacy +unit", done.stderr, re.MULTILINE)
    assert len(re.findall(rf"^(?:plan|not private) .*{because}", done.stderr, re.MULTILINE)) == 2
    assert "spent" not in done.stderr


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Each number or text in a JSON object with the name it stands under."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, name)
    else:
        yield name, value


@pytest.mark.long
def test_fast_noise_claims_nothing(
    dca: Dca, table: Path, embedded_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captions = []

    def plot(summary: object, path: Path, *, title: str, private: bool, caption: str) -> None:
        captions.append(caption)
        path.touch()

    monkeypatch.setattr("dca_proto.cli.job_run.plot_estimates", plot)
    done = dca(*own(table, "--broker", embedded_broker.url, "--drop", "0", "--fast-noise", "--json", "-"))
    assert done.returncode == 0, done.stderr
    result = parsed(done.stdout, "swarm")
    assert result["mechanism"] == "rounded-gaussian-not-private"
    for one in result["rounds"]:
        assert one["noise_variance"] == pytest.approx(one["contributors"] * one["sigma_local"] ** 2)
    claims_nothing(result, done, because="the noise is inexact")
    assert captions == ["not private: the noise is inexact"]
    written = (tmp_path / "run" / "result.json").read_text()
    assert json.loads(written) == result
    assert not re.search(r'"(epsilon|delta|mu)\w*": [^n]', written)


@pytest.mark.long
def test_an_aborted_round_with_fast_noise_claims_nothing(dca: Dca, table: Path, embedded_broker: Broker) -> None:
    options = ("--tolerate", "4", "--drop", "5", "--fast-noise", "--json", "-")
    done = dca(*own(table, "--broker", embedded_broker.url, *options))
    assert done.returncode == 3
    result = parsed(done.stdout, "swarm")
    assert not [value for name, value in leaves(result) if re.search("epsilon|delta|mu$", name) and value is not None]
    assert not re.search(r"(epsilon|delta|mu)\W+\d", done.stderr)


BAD = [
    (["--dataset", "diabetis"], "diabetes", 5),
    (["--features", "bmi,agee"], "agee", 5),
    (["--csv", "{table}", "--target", "y"], "a, b, y; give --bounds", 5),
    (["--csv", "{table}", "--target", "y"], "--bounds-from-data", 5),
    (["--csv", "{table}", "--target", "y", "--dataset", "diabetes"], "exclude each other", 2),
    (["--csv", "{table}", "--target", "Y", "--bounds", BOUNDS], "did you mean 'y'?", 5),
    (["--csv", "{one}", "--target", "y", "--bounds", BOUNDS], "rows: 1, to test on: 1; expected at least one", 5),
    (["--csv", "{few}", "--target", "y", "--bounds", BOUNDS], "3 rows cannot determine 3 coefficients", 5),
    (["--csv", "{table}", "--target", "y", "--bounds", "nowhere.toml"], "nowhere.toml: No such file", 5),
    (["--json", "nowhere/result.json"], "nowhere does not exist", 8),
    (["--json", "{table}/result.json"], "is not a folder", 8),
    (["--json", "."], "is a folder", 8),
    (["--csv", "{table}", "--target", "z", "--bounds", BOUNDS], "z", 5),
    (["--csv", "{table}", "--target", "y", "--bounds", "a=-4:4"], "b, y", 5),
    (["--csv", "{text}", "--target", "y", "--bounds", BOUNDS], "row 2", 5),
    (["--csv", "{missing}", "--target", "y", "--bounds", BOUNDS], "row 3", 5),
    (["--csv", "nowhere.csv", "--target", "y", "--bounds", BOUNDS], "nowhere.csv", 5),
    (["--clients", "3", "--tolerate", "2"], "N - T - 1", 2),
    (["--tolerate", "343"], "N - T - 1 = 343 - 343 - 1 is below 1", 2),
    (["--drop", "343"], "--drop 343: 0 to 342 of 343 clients may drop", 2),
    (["--colluders", "35"], "c = 35", 2),
    (["--tolerate", "-1"], "tolerate is -1; give a number from 0", 2),
    (["--computes", "1"], "M = 1", 2),
    (["--computes", "65"], "M = 65", 2),
    (["--epsilon", "0"], "epsilon", 2),
    (["--epsilon", "-1"], "epsilon", 2),
    (["--epsilon", "nan"], "epsilon", 2),
    (["--epsilon", "inf"], "epsilon", 2),
    (["--epsilon", "1e-9"], "--epsilon 1e-09", 2),
    (["--epsilon", "1e6"], "--epsilon 1000000", 2),
    (["--delta", "0"], "delta", 2),
    (["--delta", "1"], "delta", 2),
    (["--connections", "zip"], "each or shared", 2),
    (["--broker", "kafka"], "kafka", 2),
    (["--broker", "http://127.0.0.1"], "--broker: url: found 'http://127.0.0.1', expected mqtt://", 2),
    (["--broker", "mqtt://127.0.0.1:99999"], "--broker: url", 2),
    (["--broker", "mqtt://127.0.0.1:1"], "cannot reach broker", 6),
    (["--clients", "0"], "0", 2),
    (["--clients", "many"], "integer", 2),
    (["--job", "regresion"], "did you mean 'regression'?", 5),
    (["--set", "repare=absolute"], "did you mean 'repair'?", 5),
    (["--job", "logistic"], "needs the two that are its bounds, 0 and 400", 5),
    (["--job", "bernoulli"], "bernoulli: column 'progression' has bounds 0:400", 5),
    (["--job", "mixture", "--set", "batch=500"], "a batch of 500 clients was requested and 343 are available", 5),
    (["--data-folder", ".", "--csv", "{table}"], "--csv and --data-folder exclude each other", 2),
    (["--clients", "5000"], "`dca fleet` runs rounds of a synthetic sum with any number of clients", 2),
]


@pytest.mark.parametrize(("arguments", "message", "code"), BAD, ids=[" ".join(arguments)[:60] for arguments, *_ in BAD])
def test_bad_input_is_one_line_and_nothing_half_done(
    arguments: list[str], message: str, dca: Dca, table: Path, tmp_path: Path, code: int
) -> None:
    (tmp_path / "text.csv").write_text("a,b,y\n1,2,3\n1,two,3\n", encoding="utf-8")
    (tmp_path / "missing.csv").write_text("a,b,y\n1,2,3\n1,2,3\n1,,3\n", encoding="utf-8")
    (tmp_path / "one.csv").write_text("a,b,y\n1,2,3\n", encoding="utf-8")
    (tmp_path / "few.csv").write_text("a,b,y\n1,2,3\n2,2,3\n1,3,3\n3,1,2\n", encoding="utf-8")
    places = {"table": table, **{name: tmp_path / f"{name}.csv" for name in ("one", "few", "text", "missing")}}
    done = dca(*(one.format_map(places) for one in arguments), "--output", "made")
    assert done.returncode == code, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("dca: ")]
    assert len(lines) == 1
    assert message in lines[0]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "made").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "number", "code"),
    [
        ("embedded", signal.SIGINT, 130),
        ("mosquitto", signal.SIGTERM, 143),
        pytest.param("embedded", signal.SIGTERM, 143, marks=pytest.mark.long),
        pytest.param("mosquitto", signal.SIGINT, 130, marks=pytest.mark.long),
    ],
)
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
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, output
    assert "Traceback" not in output
    assert "never retrieved" not in output
    gone, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
    assert (len(gone), alive) == (len(children), [])
    assert not (tmp_path / "run").exists()


def _children_once_started(pid: int) -> list[Any]:
    """The broker's process, as soon as it is there."""
    while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        with contextlib.suppress(psutil.NoSuchProcess):  # a mosquitto that was asked for its version
            children = psutil.Process(pid).children(recursive=True)
            if any(re.search(r"runtime\.embedded|mosquitto\.conf", " ".join(child.cmdline())) for child in children):
                return children
    raise AssertionError("it has ended without a broker")
