"""`dca learn` as an analyst meets it: a real federation's files, actors over a real broker, one result, one journal."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import numpy as np
import pytest
from commands import Done, one_line
from live_actors import WIDE, Actors, federation
from rich.console import Console
from schemas import parsed

from dca_proto.aggregate import RoundRequest
from dca_proto.cli import main
from dca_proto.cli.job_run import iterated, show_run
from dca_proto.cli.reporter import ProgressReporter
from dca_proto.jobs.runner import FinishedRequest
from dca_proto.protocol import facts
from dca_proto.results.run import Run
from dca_proto.runtime.broker import Broker
from dca_proto.runtime.spending import read_ledger_view
from dca_proto.testing import TestFederation
from inference.jobs.base import Stage
from inference.variational.progress import Iteration

CLIENTS = 8
JOB = f"""
[job]
name = "regression-bounded"
features = ["x"]
target = "y"
bounds = {{ x = [-3, 3], y = [-6, 6] }}
units = {{ x = "cm", y = "kg" }}
epsilon = 30
delta = 1e-5
clients = {CLIENTS}
tolerate = 0
"""
Learn = Callable[..., Done]


@pytest.fixture(scope="module")
def folder(embedded_broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A federation's files, its clients and Compute nodes running; y = 2 x + noise, one row a client."""
    folder = tmp_path_factory.mktemp("learn")
    rng = np.random.default_rng(3)
    data = [f"x,y\n{x},{2 * x + rng.normal(scale=0.1)}\n" for x in np.linspace(-2.5, 2.5, CLIENTS)]
    federation(folder, embedded_broker.url, data, policy=WIDE, trainer=f"[account]\nepsilon = 100\n{JOB}")
    (folder / "own.csv").write_text("x,y\n1,2\n-1,-2\n2,4\n")
    with Actors(folder):
        yield folder


@pytest.fixture
def learn(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Learn:
    """Runs `dca learn trainer.toml` in the federation's folder."""
    monkeypatch.chdir(folder)

    def run(*arguments: str, file: str = "trainer.toml") -> Done:
        return Done(main(["learn", file, *arguments]), *capsys.readouterr())

    return run


def test_a_job_from_a_file_gives_a_result_and_is_not_paid_for_twice(learn: Learn, folder: Path) -> None:
    done = learn("--test", "own.csv", "--json", "-", "--plot", "c.png")
    assert done.returncode == 0, done.stderr
    result = parsed(done.stdout, "learn")
    assert (result["kind"], result["job"], result["ok"], result["private"]) == (
        "learn",
        "regression-bounded",
        True,
        True,
    )
    assert [(one["statistic"], one["contributors"], one["recalled"]) for one in result["rounds"]] == [
        ("regression", CLIENTS, False)
    ]
    (slope,) = result["coefficients"]
    assert (slope["name"], slope["unit"]) == ("x", "kg per cm")
    assert set(result["not_covered_by_epsilon"]) == {"why", "test"}, "a trainer has no rows of clients"
    # false alarm: beyond 7 posterior standard deviations, below 1e-11
    assert abs(slope["estimate"] - 2) < 7 * slope["estimate_sd"] + 0.1
    assert result["not_covered_by_epsilon"]["test"]["rows"] == 3
    assert (folder / "c.png").read_bytes().startswith(b"\x89PNG")
    assert "epsilon 30 per client, delta 1e-05" in done.stderr
    assert re.search(r"^repair +noise-aware$", done.stderr, re.MULTILINE)

    again = learn("--json", "-")
    assert again.returncode == 0, again.stderr
    assert "resumed: 1 of 1 rounds were done before" in again.stderr
    repeated = parsed(again.stdout, "learn")
    assert repeated["coefficients"] == result["coefficients"]
    assert repeated["rounds"][0]["round_id"] == result["rounds"][0]["round_id"]

    logged = learn("--json", "-", "--log-json")
    assert parsed(logged.stdout, "learn")["coefficients"] == result["coefficients"]
    assert all(json.loads(line)["event"] for line in logged.stderr.splitlines()), "stderr has JSON lines alone"

    other = learn("--epsilon", "20")
    assert other.returncode == 8
    assert "is the journal of a job with another epsilon" in other.stderr


def test_synthetic_rows_are_written_and_drawn_again_at_no_cost(learn: Learn, folder: Path) -> None:
    settings = ("--job", "synthetic", "--set", "pairs=none", "--set", "bins=3", "--epsilon", "1")
    done = learn(*settings, "--synthetic", "rows.csv", "--json", "-")
    assert done.returncode == 0, done.stderr
    first, *lines = (folder / "rows.csv").read_text().splitlines()
    assert (first, len(lines)) == ("x,y", CLIENTS)
    assert all(-3 <= float(x) <= 3 and -6 <= float(y) <= 6 for x, y in (line.split(",") for line in lines))
    spent = parsed(done.stdout, "learn")["rounds"]
    again = learn(*settings, "--set", "rows=3", "--synthetic", "rows.csv", "--json", "-")
    assert again.returncode == 0, again.stderr
    assert [one["recalled"] for one in parsed(again.stdout, "learn")["rounds"]] == [True] * len(spent)
    assert len((folder / "rows.csv").read_text().splitlines()) == 1 + 3
    refused = learn("--synthetic", "rows.csv")
    assert "makes no rows" in one_line(refused.stderr)


def test_an_aborted_round_reports_what_is_kept(learn: Learn, folder: Path) -> None:
    options = ("--job", "gaussian", "--clients", "9", "--tolerate", "0", "--set", "collect_s=0.3", "--set", "retries=0")
    done = learn(*options, "--json", "-")
    assert done.returncode == 3
    result = parsed(done.stdout, "learn")
    assert (result["ok"], result["kind"], [one["ok"] for one in result["rounds"]]) == (False, "learn", [False])
    printed = one_line(done.stderr)
    assert "stopped 0 rounds done and recorded in" in printed
    assert "the same command continues from there" in printed


def test_a_job_over_the_federation_budget_is_refused_before_it_costs_anything(learn: Learn, folder: Path) -> None:
    before = len(read_ledger_view(folder / "trainer.toml").ledger.charges)
    # the first of the two rounds, a tenth of the squared budget, would fit
    done = learn("--job", "regression", "--epsilon", "150", "--journal", "large.journal")
    assert done.returncode == 2
    assert "the federation's account: found a total of epsilon" in done.stderr
    assert "announced" not in done.stderr
    assert len(read_ledger_view(folder / "trainer.toml").ledger.charges) == before
    smaller = learn("--job", "regression", "--epsilon", "20", "--journal", "large.journal")
    assert smaller.returncode == 0, "no round took place under the other settings"
    alone = ("--clients", "9", "--tolerate", "0", "--set", "collect_s=0.3", "--set", "retries=0")
    mixture = ("--job", "mixture", "--set", "components=2", "--epsilon", "150", "--journal", "mixture.journal")
    early = learn(*mixture, *alone)
    assert early.returncode == 3
    assert "this job will stop early: the federation's account" in one_line(early.stderr)


BAD = [
    (["--job", "regresion"], "did you mean 'regression'?", 5),
    (["--set", "repare=absolute"], "did you mean 'repair'?", 2),
    (["--set", "repair=absolut"], "did you mean 'absolute'?", 5),
    (["--set", "clients=many"], "clients is a text, expected a whole number", 5),
    (["--tolerate", "7"], "N - T - 1 = 8 - 7 - 1 is below 1", 2),
    (["--colluders", "2"], "c = 2 colluders exceed T = 0", 2),
    (["--target", "z"], "public bounds are missing for: z", 5),
    (["--bounds", "x=3:-3,y=0:1"], "column 'x': bounds 3:-3 are not an interval", 5),
    (["--epsilon", "0"], "epsilon", 2),
    (["--test", "nowhere.csv"], "cannot read nowhere.csv", 5),
    (["--plot", "c.gif"], "--plot c.gif", 2),
    (["--json", "nowhere/r.json"], "nowhere does not exist", 8),
    (["--draws", "nowhere/r.nc"], "nowhere does not exist", 8),
    (["--draws", "r.csv"], "--draws r.csv: expected a name that ends in .nc", 2),
    (["--set", "computes=compute-9"], "expected a list", 5),
]


@pytest.mark.parametrize(("arguments", "message", "code"), BAD, ids=[" ".join(arguments) for arguments, *_ in BAD])
def test_bad_input_is_a_one_line_error_and_starts_no_round(
    arguments: list[str], message: str, learn: Learn, code: int
) -> None:
    done = learn(*arguments)
    assert done.returncode == code
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("dca: ")]
    assert message in line
    assert "round" not in done.stdout


def test_ctrl_c_reports_what_is_kept(learn: Learn, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(work: Coroutine[object, object, object]) -> None:
        work.close()
        raise KeyboardInterrupt

    monkeypatch.setattr("dca_proto.cli.learn.complete", interrupted)
    done = learn("--job", "bernoulli", "--bounds", "y=0:1")  # of the file's feature x nothing need be known
    assert done.returncode == 130
    assert "stopped     0 rounds done and recorded in" in done.stderr


def test_a_file_without_a_job_is_an_error_that_names_the_missing_setting(learn: Learn, folder: Path) -> None:
    (folder / "bare.toml").write_text((folder / "trainer.toml").read_text().split("[job]")[0])
    done = learn("--target", "x", "--epsilon", "1", file="bare.toml")
    assert done.returncode == 2
    message = "bounds, delta, clients missing; give them in [job] of the file, or --bounds, --delta, --clients"
    assert message in done.stderr


def test_a_result_is_printed_with_its_warnings() -> None:
    console = Console(file=io.StringIO(), width=200)
    estimate = {"name": "mean of x", "unit": "", "estimate": 1.0, "estimate_sd": 0.1, "interval_95": [0.8, 1.2],
                "nonprivate": None}  # fmt: skip
    result = {"private": False, "estimates": [estimate], "test": None, "warnings": ["the chains have not met"]}
    show_run(console, Run(ok=True, clients=3, computes=2, tolerate=0, rounds=[], private=False), result)
    assert re.search(r"^warning +the chains have not met$", console.file.getvalue(), re.MULTILINE)  # type: ignore[attr-defined]


def progress_output(iterations: int, *, terminal: bool) -> str:
    """The progress output of a job of so many iterations, of which three are done; the second took two attempts."""
    console = Console(file=io.StringIO(), width=100, force_terminal=terminal, color_system=None)
    federation = TestFederation(1, 2).federation
    round_id = bytes([0xAB]) * 16
    with ProgressReporter(
        console, federation.person_name_of, 8, [Stage(1, 0.1, "moments"), Stage(iterations, 0.9, "gradients")]
    ) as reporter:
        for number in (1, 2, 3):
            reporter(facts.Announced(round_id, "gradient", 2))
            reporter(facts.Arrived(round_id, 5, 8))
            common = {
                "request": RoundRequest("gradient", {}),
                "aggregate": _Eight(),
                "reason": "",
                "recalled": False,
            }
            reporter.ended(FinishedRequest(number=number, attempts=2 if number == 2 else 1, **common))
            reporter.iterated(Iteration(number, iterations, "held-out AUC", 0.9 + number / 1000))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


class _Eight:
    contributors = clients = 8
    nodes = ()
    reports = None


def test_a_job_of_many_iterations_has_a_bar_on_a_terminal_and_lines_elsewhere() -> None:
    bar = progress_output(60, terminal=True)
    assert re.search(r"iteration .*3/60 .*held-out AUC 0\.903", bar)
    assert "round abababab: 5 of 8 contributions" in bar, "what is waited for, below the bar"
    assert re.findall(r"round (\d+) of 61", bar) == ["2"], "the bar reports those that went smoothly"
    assert "attempt 2" in bar
    lines = progress_output(60, terminal=False)
    assert re.findall(r"round (\d+) of 61: .*; held-out AUC ([\d.]+)", lines) == [
        ("1", "0.901"),
        ("2", "0.902"),
        ("3", "0.903"),
    ]
    assert "3/60" not in lines
    assert "5 of 8 contributions" not in lines
    few = progress_output(2, terminal=True)
    assert len(re.findall(r"announced gradient", few)) == 3, "few rounds are reported phase by phase"
    assert "iteration " not in few


def test_a_score_that_is_none_is_no_number_in_json() -> None:
    row = iterated(Iteration(1, 2, "held-out AUC", math.nan))
    assert row == {"number": 1, "name": "held-out AUC", "value": None}


def test_options_of_a_csv_are_refused_without_one(learn: Learn) -> None:
    """They were ignored."""
    done = learn("--delimiter", "tab")
    assert done.returncode == 2
    assert "--delimiter: only with --test" in done.stderr


def test_categories_are_bounds_of_the_job_beside_those_of_its_file(learn: Learn, folder: Path) -> None:
    """The clients have no column of texts, so they decline; the plan has the indicators."""
    done = learn("--categories", "arm=placebo,drug,both", "--features", "x,arm", "--set", "collect_s=0.3", "--set",
                 "retries=0", "--journal", "arms.journal")  # fmt: skip
    assert "y on x, arm=drug, arm=both" in done.stdout + done.stderr


def test_draws_without_arviz_are_refused_before_the_work(learn: Learn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dca_proto.cli.learn.find_spec", lambda name: None)
    done = learn("--draws", "d.nc")
    assert (done.returncode, "pip install -e '.[samplers]'" in done.stderr) == (2, True)
