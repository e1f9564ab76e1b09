"""Jobs on reports as their users meet them, `dca swarm --job ldp-*` and `dca learn`: a real broker, a tiny run of each.

Compiling is most of what draws cost here, so that chains are short and models small; what posteriors are worth has
tests of its own. `dca learn` gets its draws from nowhere.
"""

from __future__ import annotations

import io
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Dca, one_line
from compiling import quick
from live_actors import Actors, federation
from rich.console import Console
from schemas import parsed
from scipy.stats import binom

from dca_proto.cli import main
from dca_proto.cli.swarm_progress import SwarmProgress
from dca_proto.errors import RoundAborted
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.runtime.broker import Broker
from dca_proto.runtime.live import LiveTrainer
from dca_proto.runtime.spending import read_ledger_view
from emulator.swarm import options
from emulator.swarm.timeline import RELEASE_PHASES, RoundLog
from inference.draws import Sampling
from inference.mcmc.run import Options, Sampled

ROWS = 60
OTHER = 1 / (1 + math.exp(6))  # how often a report by unary encoding names another category, at epsilon = 6
QUICK = ("--set", "chains=2", "--set", "warmup=30", "--set", "draws=30", "--set", "require_mixed=false")
sampled = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("numpyro", "jax", "arviz")), reason="without the extra samplers"
)


@pytest.fixture(autouse=True, scope="module")
def quickly() -> Iterator[None]:
    with quick():
        yield


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Counts, a number that is twice another and noise, and whether it is above 0."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=ROWS).clip(-3, 3)
    y = (2 * x + rng.normal(scale=0.3, size=ROWS)).clip(-6, 6)
    calls = rng.poisson(2.0, ROWS).clip(0, 5)
    path = tmp_path_factory.mktemp("reports") / "rows.csv"
    rows = zip(x, y, calls, (y > 0).astype(int), strict=True)
    path.write_text("\n".join(["x,y,calls,high", *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def own(table: Path, url: str, target: str, *more: str) -> list[str]:
    features = ("--features", "x") if target in ("y", "high") else ()
    given = ("--csv", str(table), "--target", target, "--bounds", "x=-3:3,y=-6:6,calls=0:5,high=0:1", *features)
    return [*given, "--broker", url, *more]


def page_of(capsys: pytest.CaptureFixture[str]) -> str:
    """What `dca report` makes of the run in its folder."""
    capsys.readouterr()
    assert main(["report", "run/result.json"]) == 0
    capsys.readouterr()
    return Path("run/result.html").read_text()


@pytest.mark.long
@sampled
def test_a_histogram_of_reports(
    dca: Dca, table: Path, mosquitto_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = dca(
        *own(table, mosquitto_broker.url, "calls", "--job", "ldp-histogram", "--epsilon", "6", *QUICK, "--json", "-")
    )
    assert done.returncode == 0, done.stderr
    result = parsed(done.stdout, "swarm")
    assert (result["reports"], result["mechanism"], result["round_kind"]) == (*["unary-encoding"] * 2, "ldp-report")
    assert (result["clients"], result["computes"], result["tolerate"], result["n_min"]) == (ROWS, 0, 0, None)
    assert (result["epsilon"], result["delta"], result["epsilon_spent"]) == (6.0, 0.0, 6.0)
    (one,) = result["rounds"]
    assert (one["arrived"], one["contributors"], one["dropped"], one["absent"]) == (ROWS, ROWS, 0, [])
    assert (one["relation"], set(one["phases"])) == ("replace-one-client", {"release"})
    assert one["reports"]["counts"] == np.sum(one["reports"]["values"], axis=0).tolist()
    shares = result["estimates"]
    assert [share["name"] for share in shares] == [f"calls = {k}" for k in range(6)]
    assert sum(share["estimate"] for share in shares) == pytest.approx(1)
    reported = np.array(one["reports"]["counts"])
    assert [share["naive"] for share in shares] == pytest.approx((reported / ROWS - OTHER) / (0.5 - OTHER))
    true = [round(ROWS * share["nonprivate"]) for share in result["not_covered_by_epsilon"]["estimates"]]
    assert min(map(chance, reported, true)) > 1e-9, "false alarm 12 times as much at most: two tails of six categories"
    log = one_line(done.stderr)
    assert "60 clients with one row each; each reports once, by unary-encoding, private by itself" in log
    assert "plan epsilon 6, delta 0 in one round: all of the budget on the category of calls" in log
    assert re.search(r"^round 1 +histogram: 60 of 60 reported, ", done.stderr, re.MULTILINE)
    assert "spent epsilon 6 of 6 per client, delta 0; each report is private by itself; nobody had to be trusted" in log
    assert "too few draws" in log or "few effective draws" in log
    assert max(map(len, done.stderr.splitlines())) <= 80
    assert (tmp_path / "run" / "coefficients.png").read_bytes().startswith(b"\x89PNG")
    page = page_of(capsys)
    for text in ("Learned from 60 private reports", "each report is private by itself", "60 reports by unary-encoding",
                 "How many reports name each category", "unbiased", "reports, one from each client"):  # fmt: skip
        assert text in page
    assert "Compute nodes (M)" not in page


def chance(reported: int, true_count: int) -> float:
    """Of reports of which at most, or at least, so many name a category, if so many clients hold it."""
    named = (
        binom.pmf(range(true_count + 1), true_count, 0.5),
        binom.pmf(range(ROWS - true_count + 1), ROWS - true_count, OTHER),
    )
    probabilities = np.convolve(*named)
    return float(min(probabilities[: reported + 1].sum(), probabilities[reported:].sum()))


def draws_from_nowhere(sites: dict[str, float | list[float]]) -> Callable[..., Sampled]:
    """In place of the sampler: draws about these values."""

    def sample(options: Options, model: Any, data: Any, *start: Any) -> Sampled:
        rng, chains = np.random.default_rng(options.seed), np.zeros(options.chains)
        shape = (options.chains, options.draws)
        drawn = {name: value + 0.01 * rng.random((*shape, *np.shape(value))) for name, value in sites.items()}
        return Sampled(drawn, {}, Sampling(chains.astype(int), chains + 0.9, chains.astype(int), chains, 1.0))

    return sample


@pytest.mark.long
@sampled
def test_a_mean_from_reports_with_some_missing(
    dca: Dca,
    table: Path,
    embedded_broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(options, "_RELEASING_MS", 8000)  # of which a busy machine needs most
    monkeypatch.setattr(options, "_RELEASING_EACH_MS", 0)
    monkeypatch.setattr(Options, "sample", draws_from_nowhere({"rate": 2.0}))
    given = ("--job", "ldp-mean", "--set", "family=poisson", "--epsilon", "4", "--clients", "50", "--drop", "2")
    done = dca(*own(table, embedded_broker.url, "calls", *given, *QUICK, "--json", "-"))
    assert done.returncode == 0, done.stderr
    result = parsed(done.stdout, "swarm")
    (one,) = result["rounds"]
    assert one["contributors"] == 50 - one["dropped"] == 50 - len(one["absent_clients"])
    assert 2 <= one["dropped"] < 45, "on a busy machine, more than those that drop out are late"
    assert (result["clients"], result["epsilon_spent"], result["delta"]) == (50, 4.0, 0.0)
    assert one["noise_variance"] == pytest.approx(one["contributors"] * one["sigma_local"] ** 2)
    mean, _ = result["estimates"]
    values = 2.5 + 2.5 * np.array(one["reports"]["values"])[:, 0]
    assert mean["naive"] == pytest.approx(values.mean())
    exact, _ = result["not_covered_by_epsilon"]["estimates"]
    assert exact["nonprivate"] == pytest.approx(np.loadtxt(table, delimiter=",", skiprows=1)[:50, 2].mean())
    assert re.search(r"^dropped +round 1: clients \d+ \(", done.stderr, re.MULTILINE)
    assert "K = 2 drop in each round" in one_line(done.stderr)
    assert "The distribution of the reports" in page_of(capsys)


@pytest.mark.long
@sampled
def test_a_regression_from_reports(
    dca: Dca, table: Path, embedded_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites: dict[str, float | list[float]] = {
        "theta": [0.5],
        "alpha": 0.1,
        "residual_sd": 0.2,
        "feature_sd": [0.4],
        "feature_mean": [0.1],
    }
    monkeypatch.setattr(Options, "sample", draws_from_nowhere(sites))
    given = ("--job", "ldp-regression", "--epsilon", "8", "--delta", "1e-6", "--set", "radius=1")
    done = dca(*own(table, embedded_broker.url, "y", *given, *QUICK, "--json", "-"))
    assert done.returncode == 0, done.stderr
    result = parsed(done.stdout, "swarm")
    (one,) = result["rounds"]
    assert (one["statistic"], one["contributors"], one["dimension"]) == ("regression", 46, 6)
    assert (result["delta"], result["epsilon_spent"]) == (1e-6, pytest.approx(8))
    (slope,) = result["coefficients"]
    assert slope["interval_95"][0] < slope["estimate"] < slope["interval_95"][1]
    assert set(result["not_covered_by_epsilon"]["test"]) == {"rows", "unit"} | {
        f"rmse_{name}" for name in ("private", "nonprivate", "zero")
    }
    assert result["sampling"]["method"] == "NUTS"


@pytest.mark.long
@sampled
def test_two_reports_of_each_client_cost_it_the_budget_together(
    dca: Dca, table: Path, embedded_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites: dict[str, float | list[float]] = {"theta": [0.5], "alpha": 0.1, "feature_sd": [0.4], "feature_mean": [0.1]}
    monkeypatch.setattr(Options, "sample", draws_from_nowhere(sites))
    given = ("--job", "ldp-regression", "--epsilon", "8", "--set", "family=logistic", "--set", "inputs=true")
    done = dca(*own(table, embedded_broker.url, "high", *given, "--json", "-"))
    assert done.returncode == 0, done.stderr
    result = parsed(done.stdout, "swarm")
    assert [(one["statistic"], one["contributors"], one["dimension"]) for one in result["rounds"]] == [
        ("sum", 46, 3),
        ("histogram", 46, 2),
    ]
    assert 7.9 < result["epsilon_spent"] <= 8
    log = one_line(done.stderr)
    assert "each reports 2 times, at first by analytic-gaussian, each private by itself" in log
    assert "over 2 rounds: 50 % of the budget on the features, 50 % on the labels" in log
    assert result["coefficients"][0]["interval_95"][0] < result["coefficients"][0]["estimate"]


@pytest.mark.long
def test_gradient_steps_over_groups_of_clients(
    dca: Dca, table: Path, embedded_broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--job", "ldp-sgd", "--epsilon", "8", "--set", "group=10")
    done = dca(*own(table, embedded_broker.url, "y", *given, "--json", "-"))
    assert done.returncode == 0, done.stderr
    result = parsed(done.stdout, "swarm")
    assert [one["contributors"] for one in result["rounds"]] == [11, 11, 11, 11], "of 46 clients, two are left over"
    assert (result["batch"], result["groups"]) == (11, {"number": 4, "size": 11})
    assert result["epsilon_spent"] == pytest.approx(8), "each reported once"
    assert [one["name"] for one in result["not_covered_by_epsilon"]["iterations"]] == ["held-out error"] * 4
    assert result["coefficients"][0]["estimate_sd"] is None
    assert re.search(
        r"^round 4 +gradient: 11 of 11 reported, [\d.]+ s; held-out error [\d.]+$", done.stderr, re.MULTILINE
    )
    assert "by groups of 11 clients each" in one_line(done.stderr)
    assert Path("run/coefficients.png").exists()
    assert "clients in a step (B)" in page_of(capsys)


@pytest.mark.long
def test_a_round_without_contributions_aborts_with_advice(
    dca: Dca, table: Path, embedded_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(trainer: LiveTrainer, request: OpenRound) -> None:
        raise RoundAborted("no client released anything; 0 declined")

    monkeypatch.setattr(LiveTrainer, "run_round", lost)
    done = dca(*own(table, embedded_broker.url, "y", "--job", "ldp-sgd", "--json", "-"))
    assert done.returncode == 3
    assert parsed(done.stdout, "swarm")["error"] == "no client released anything; 0 declined"
    assert "no report came in time: lower --clients or --drop" in one_line(done.stderr)


@pytest.mark.parametrize(("options", "message", "code"), [
    (["--computes", "3"], "--computes goes with sums over many clients; in job 'ldp-sgd' each client reports", 2),
    (["--tolerate", "3", "--colluders", "1"], "--tolerate, --colluders go with sums", 2),
    (["--fast-noise"], "--fast-noise goes with sums over many clients; in job 'ldp-sgd' each client reports", 2),
    (["--data-nodes", "3"], "job 'ldp-sgd' learns from LDP reports of single clients; these learn from releases of", 5),
    (["--clients", "70"], "--clients 70: each reports one of the 46 training rows, so give 1 to 46", 2),
    (["--clients", "9", "--drop", "9"], "--drop 9: 0 to 8 of 9 clients may drop, for at least one has to report", 2),
    (["--job", "ldp-histogram", "--set", "edges=a"], "setting 'edges' is 'a', expected a list of numbers, such as", 5),
    (["--job", "ldp-mean", "--set", "family=poisson"], "family 'poisson' describes numbers from 0 on, and y is", 5),
    (["--job", "ldp-mean", "--epsilon", "1e-9"],
     "--epsilon 1e-09 --delta 0: no round is possible with 100 % of that", 2),
    (["--job", "ldp-histogram", "--clients", "3", "--set", "bins=6"],
     "has no result from fewer than 5 contributors, and found 3", 5),
])  # fmt: skip
def test_an_option_that_reports_do_not_support_is_a_one_line_error(
    options: list[str], message: str, dca: Dca, table: Path, code: int
) -> None:
    job = () if "--job" in options else ("--job", "ldp-sgd")
    done = dca(*own(table, "mqtt://127.0.0.1:1", "y", *job, *options))
    assert done.returncode == code
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not Path("run").exists()


def test_progress_of_reports_on_a_terminal_and_in_a_log() -> None:
    """Of a round of everybody, and of a step of three clients."""
    log = RoundLog("mean", 1, 0.0, RELEASE_PHASES, arrived=3)
    over = RoundLog("mean", 1, 0.0, RELEASE_PHASES, ended_s=2.0, arrived=4, ends_s={"release": 2.0})
    screens = {}
    for iterative in (False, True):
        for terminal in (False, True):
            screen = io.StringIO()
            console = Console(file=screen, width=100, force_terminal=terminal)
            with SwarmProgress(console, 4, "reported", iterative=iterative) as view:
                view.changed(log)
                view.changed(over)
            screens[iterative, terminal] = screen.getvalue()
    assert screens[False, False] == "round 1     mean: 4 of 4 reported, 2.0 s\n"
    assert screens[True, False] == "round 1     mean: 4 reported, aborted, 2.0 s\n"
    assert "round 1     mean: 4 of 4 reported, 2.0 s" in screens[False, True]
    assert "iteration" in screens[True, True]


@pytest.mark.parametrize("job", ["ldp-histogram", "ldp-mean", "ldp-regression"])
def test_without_numpyro_nothing_is_started(
    job: str, dca: Dca, table: Path, embedded_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "numpyro", None)
    done = dca(*own(table, embedded_broker.url, "y", "--job", job))
    assert done.returncode == 5
    assert "missing here: NumPyro; pip install -e '.[samplers]'" in done.stderr
    assert done.stdout == ""


# --- a federation of one's own ----------------------------------------------------------------------------------------

CLIENTS = 6
JOB = f"""
[account]
epsilon = 2
[job]
name = "ldp-histogram"
target = "calls"
bounds = {{ calls = [0, 2], x = [-3, 3] }}
epsilon = 1
clients = {CLIENTS}
"""


def reporters(folder: Path, broker: Broker) -> None:
    """Clients with one row each and empty policies, and a trainer with a job."""
    data = [f"calls,x\n{index % 3},{index - 3}\n" for index in range(1, CLIENTS + 1)]
    federation(folder, broker.url, data, computes=0, limits="", trainer=JOB)


def shares_of_three(options: Options, model: Any, data: Any, *start: Any) -> Sampled:
    """In place of the sampler: draws about the prior's mean."""
    rng, chains = np.random.default_rng(options.seed), np.zeros(options.chains)
    shape = (options.chains, options.draws)
    shares = rng.dirichlet(100 * np.asarray(data["prior"]["concentration"]), shape)
    return Sampled({"shares": shares}, {}, Sampling(chains.astype(int), chains + 0.9, chains.astype(int), chains, 1.0))


@pytest.mark.long
@sampled
def test_a_trainer_learns_from_reports_and_pays_once(
    embedded_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reporters(tmp_path, embedded_broker)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Options, "sample", shares_of_three)
    capsys.readouterr()
    with Actors(tmp_path):
        assert main(["learn", "trainer.toml", "--json", "l.json", "--plot", "l.png", "--draws", "l.nc"]) == 0
        printed = one_line(capsys.readouterr().out)
        assert main(["learn", "trainer.toml", "--job", "ldp-sgd", "--delta", "1e-5", "--target", "x"]) == 2
        log = one_line(capsys.readouterr().err)
        assert "job 'ldp-sgd' asks 6 clients in groups, and knows 0 of them; give invite = FOLDER" in log
    assert "epsilon 1, delta 0 in one round" in printed
    assert "N = 6 clients, each with one report by unary-encoding, private by itself" in printed
    assert "epsilon 1 per client, delta 0; each report is private by itself" in printed
    assert "with other concentration, chains, warmup, draws, require_mixed, seed, it costs nothing" in printed
    result = json.loads(Path("l.json").read_text())
    (one,) = result["rounds"]
    assert (one["contributors"], one["mechanism"], len(one["reports"]["values"])) == (6, "unary-encoding", 6)
    assert (result["reports"], result["delta"]) == ("unary-encoding", 0.0)
    assert [share["estimate"] for share in result["estimates"]] == pytest.approx([1 / 3] * 3, abs=0.05)
    assert Path("l.nc").stat().st_size > 1000
    more = ("--set", "concentration=2", "--set", "draws=50", "--set", "seed=7", "--delta", "1e-6")
    assert main(["learn", "trainer.toml", "--json", "more.json", *more]) == 0, (
        "no client runs, and no round takes place"
    )
    assert json.loads(Path("more.json").read_text())["sampling"]["draws"] == 50
    assert main(["learn", "trainer.toml", "--set", "bins=2"]) == 8
    assert "is the journal of a job with another bins" in one_line(capsys.readouterr().err)
    (charge,) = read_ledger_view(tmp_path / "trainer.toml").ledger.charges
    assert (charge.epsilon, charge.delta) == (1.0, 0.0)
    assert main(["learn", "trainer.toml", "--epsilon", "1.5", "--journal", "other.journal"]) == 2
    assert "the federation's account: found a total of epsilon 2.5 with this round" in one_line(capsys.readouterr().err)
    assert main(["report", "l.json"]) == 0
    page = Path("l.html").read_text()
    for text in ("Learned from 6 private reports", "each report is private by itself", "How many reports name each"):
        assert text in page


def test_a_trainer_asks_groups_of_clients_whose_certificates_it_has(
    embedded_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reporters(tmp_path, embedded_broker)
    monkeypatch.chdir(tmp_path)
    job = ["learn", "trainer.toml", "--job", "ldp-sgd", "--target", "x", "--delta", "1e-5", "--set", "group=3"]
    capsys.readouterr()
    assert main([*job, "--set", "invite=nowhere"]) == 2
    assert "job: invite = nowhere: found no client's certificate (*.cert) in this folder" in capsys.readouterr().err
    assert main([*job, "--set", "invite=.", "--draws", "d.nc"]) == 2
    assert "--draws d.nc: job 'ldp-sgd' gives a point estimate, no posterior; leave it out" in capsys.readouterr().err
    with Actors(tmp_path):
        assert main([*job, "--set", "invite=.", "--json", "s.json"]) == 0
    result = json.loads(Path("s.json").read_text())
    assert [one["contributors"] for one in result["rounds"]] == [3, 3]
    assert [one["name"] for one in result["iterations"]] == ["log likelihood gained"] * 2
    invited = [set(charge.clients) for charge in read_ledger_view(tmp_path / "trainer.toml").ledger.charges]
    assert len(invited[0] | invited[1]) == CLIENTS, "each of them once"
