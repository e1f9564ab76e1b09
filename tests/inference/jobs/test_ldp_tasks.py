"""Jobs on reports: the descent over groups of clients, a trainer's [job], what may change at no price, what is shown.

As in `test_ldp_jobs`, whose data and clients these are.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from ideal_report_jobs import JOBS, N, clients_of, conditions, first_request, learn_job, problem, sampled, settings
from rich.console import Console

from dca_proto.cli.job_run import show_run
from dca_proto.cli.job_settings import DELTA, Task, task_of
from dca_proto.errors import NoAggregate, UsageError
from dca_proto.privacy.budget import Budget
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.protocol.wire.kinds import LdpReport
from dca_proto.results.round import reports_of, round_of
from dca_proto.results.run import Run
from emulator.swarm.live import fresh_keys
from inference.bounds import Interval
from inference.datasets import load
from inference.errors import DataError
from inference.jobs.base import plan_words
from inference.jobs.estimates import rows_of, table_of
from inference.jobs.settings import JobSettings, parse_words, settings_from
from inference.models.glm import sgd as ldp_sgd
from inference.problem import split
from inference.rounds import run
from inference.variational.progress import Iteration

# --- LDP-SGD ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "score"), [("linear", "held-out error"), ("logistic", "held-out AUC")])
def test_a_descent_uses_each_client_once_and_is_scored(family: str, score: str) -> None:
    iterations: list[Iteration] = []
    data = problem("number" if family == "linear" else "class")
    job, own = JOBS["ldp-sgd"], settings("ldp-sgd", family=family, group=20)
    known = conditions(100.0, held_out=data, on_iteration=iterations.append)
    (stage,) = job.plan(data.schema, own, known)
    assert (stage.rounds, stage.batch, stage.uses) == (20, 20, 1)
    assert plan_words([stage]) == (
        "over 20 rounds: 100 % of the budget in each client's one report, by groups of 20 clients each"
    )
    swarm = clients_of(data, 100.0)
    result = run(job.make(data.schema, own, known), swarm)
    assert set(swarm._batches._uses.values()) == {1}
    assert (result.iterations, result.contributors, {one.name for one in iterations}) == (20, N, {score})
    summary = job.summarise(result, job.reference(data, own), data, data, data.schema)
    assert [one["estimate_sd"] for one in summary["coefficients"]] == [None, None]
    title, _, cells = table_of({**summary, "private": True}, rows_of(summary), compared=True)
    assert title.startswith("estimates; without privacy: mean [95 % interval]")
    assert "[" not in cells[0][1]
    assert "[" in cells[0][2]
    signs = [one["estimate"] > 0 for one in summary["coefficients"]]
    assert signs == [True, False]
    assert summary["groups"] == {"number": 20, "size": 20}


def test_groups_are_as_many_as_the_steps_planned_and_one_group_is_one_round() -> None:
    data, job = problem(), JOBS["ldp-sgd"]
    (stage,) = job.plan(data.schema, settings("ldp-sgd"), conditions())
    assert (stage.rounds, stage.batch) == (50, 8), "400 clients"
    one = job.plan(data.schema, settings("ldp-sgd", group=1000), conditions())
    assert plan_words(one) == "in one round: all of the budget on one gradient step"


def test_a_descent_beats_predicting_the_mean_and_warns_of_too_much_noise() -> None:
    """The documented example: of 20 splits the worst default had an error 16 % above; the first has one 20 % below."""
    data, job, own = load("diabetes"), JOBS["ldp-sgd"], settings("ldp-sgd")
    train, test = split(data, 44, 0)
    for epsilon, learned in ((8.0, True), (0.1, False)):
        known = conditions(epsilon, len(train.y))
        result = run(job.make(train.schema, own, known), clients_of(train, epsilon))
        summary = job.summarise(result, None, train, test, train.schema)
        assert (summary["test"]["rmse_private"] < 0.95 * summary["test"]["rmse_zero"]) == learned
        assert all(row["contraction"] is None for row in rows_of(summary)), "there is no posterior"
        assert any("reports are too few for their noise" in text for text in summary["warnings"]) != learned


def test_held_out_rows_of_one_class_score_nothing() -> None:
    data = problem("class")
    own = settings("ldp-sgd", family="logistic")
    assert ldp_sgd._score(own, data.take(np.flatnonzero(data.y == 1))) is None
    assert ldp_sgd._score(own, None) is None


def test_a_descent_whose_round_fails_reports_why_it_stopped() -> None:
    data, job = problem(), JOBS["ldp-sgd"]
    generator = job.make(data.schema, settings("ldp-sgd", group=200), conditions())
    swarm = clients_of(data, 2.0)
    generator.send(swarm.run_round(next(generator)))
    with pytest.raises(StopIteration) as ended:
        generator.throw(NoAggregate("nobody reported"))
    summary = job.summarise(ended.value.value, None, None, None, data.schema)
    assert summary["stopped"] == "nobody reported"


@sampled
@pytest.mark.long
def test_the_documented_regression_does_not_diverge() -> None:
    """With the paper's prior, which is for columns of unit variance, 6 % of the draws diverged."""
    result, summary, _ = learn_job("ldp-regression", load("diabetes"), epsilon=8.0, warmup=500)
    assert result.sampling.divergences.sum() == 0
    assert all(-0.2 < row["contraction"] < 0.9 for row in rows_of(summary)), "442 reports carry little information"


# --- a trainer's [job] ------------------------------------------------------------------------------------------------


def task(name: str = "ldp-histogram", nodes: int = 2, **given: Any) -> Task:
    """Of a federation with so many Compute nodes."""
    table = {"name": name, "target": "y", "bounds": {"a": [0, 1], "y": [0, 12]}, "epsilon": 2, "clients": 50}
    return task_of({**table, **given}, fresh_keys(nodes).federation)


def test_a_job_on_pure_reports_needs_no_delta_and_spends_none() -> None:
    for found in (task(), task(delta=1e-3), task("ldp-mean", delta=0)):
        assert (found.delta, found.table["delta"], found.terms.budget) == (0.0, 0.0, Budget(2, DELTA))
        assert found.cost == PrivacyCost.of_pure(2.0)
        assert (found.kind, found.terms.computes, found.terms.tolerate) == (LdpReport, (), 0)
    assert task(delta=1e-3).identity == task().identity, "a journal is resumed, whatever its delta is"
    with pytest.raises(UsageError, match="delta missing; give them in"):
        task("ldp-mean", mechanism="analytic-gaussian")
    gaussian = task("ldp-regression", delta=1e-6)
    assert (gaussian.delta, gaussian.cost) == (1e-6, Budget(2, 1e-6).cost)
    with pytest.raises(UsageError, match="delta missing"):
        task("regression", delta=None)


def test_reports_need_no_compute_nodes_and_take_none() -> None:
    assert task(nodes=0).kind is LdpReport
    for wrong in ({"tolerate": 3}, {"colluders": 1}, {"computes": ["compute-1"]}):
        with pytest.raises(UsageError, match=r"rounds of this kind have no Compute nodes, .*: leave out tolerate, col"):
            task(**wrong)
    with pytest.raises(DataError, match="'ldp-mean' learns from LDP reports of single clients; these learn from rel"):
        task("ldp-mean", kind="node-release")
    with pytest.raises(DataError, match="'regression' learns from secure sums over all clients; these learn from r"):
        task("regression", kind="node-release", delta=1e-5)


@pytest.mark.parametrize("name", ["ldp-histogram", "ldp-mean", "ldp-regression"])
def test_settings_of_the_final_step_may_change_at_no_cost(name: str) -> None:
    """Every setting that may change leaves the request as it is; every other one is the journal's to compare."""
    job, data = JOBS[name], problem()
    values = {"family": "poisson", "noise_aware": False, "require_mixed": False, "chains": 3, "warmup": 7, "draws": 9}
    for setting in job.changeable:
        if setting == "seed" or setting.startswith("prior_"):
            continue
        own = settings(name, **{setting: values.get(setting, 0.75)})
        schema = replace(data.schema, bounds={**data.schema.bounds, "y": Interval(0, 12)})
        before = next(job.make(schema, settings(name), conditions()))
        assert next(job.make(schema, own, conditions())) == before, setting
    found = task(name, delta=1e-5, draws=9, seed=4)
    assert found.identity == task(name, delta=1e-5).identity


# --- how reports are shown --------------------------------------------------------------------------------------------


def test_reports_are_counted_for_people_and_very_many_numbers_are_left_out() -> None:
    data = problem("count", 60)
    for mechanism in ("unary-encoding", "randomised-response"):
        generator = JOBS["ldp-histogram"].make(
            data.schema, settings("ldp-histogram", mechanism=mechanism, values=13), conditions()
        )
        reports = clients_of(data, 2.0).run_round(next(generator)).reports
        assert reports is not None
        row = msgspec.to_builtins(reports_of(reports))
        assert len(row["counts"]) == 13
        assert row["counts"] == (np.sum(row["values"], axis=0).tolist() if mechanism == "unary-encoding" else
                               [row["values"].count(k) for k in range(13)])  # fmt: skip
    aggregate = clients_of(data, 2.0).run_round(first_request("ldp-mean", data))
    number = aggregate.reports
    assert number is not None
    found = round_of(aggregate).reports
    assert found is not None
    assert found.histogram is not None
    assert sum(found.histogram.counts) == 60
    assert found.histogram.low == number.values[:, 0].min()
    assert reports_of(number, most=59).values is None


def test_a_trainer_is_shown_intervals_and_the_naive_estimate_beside_them() -> None:
    row = {"name": "mean of x", "unit": "kg", "estimate": 1.5, "estimate_sd": 0.1, "interval_95": [1.25, 1.75],
           "naive": 2.5, "naive_sd": 1.0, "nonprivate": None, "nonprivate_sd": None}  # fmt: skip
    result = {"private": True, "estimates": [row], "naive_title": "as reported", "test": None,
            "epsilon": 1.0, "delta": 0.0, "reports": "grid-laplace"}  # fmt: skip
    screen = io.StringIO()
    finished = Run(
        ok=True, clients=9, computes=0, tolerate=0, rounds=[], epsilon=1.0, delta=0.0, reports="grid-laplace"
    )
    show_run(Console(file=screen, width=200), finished, result)
    assert "mean of x (kg) 1.500 [1.25, 1.75] 2.5" in " ".join(screen.getvalue().split())
    assert "epsilon 1 per client, delta 0; each report is private by itself" in screen.getvalue()


def test_lists_of_numbers_come_from_options_and_tables() -> None:
    @dataclass(frozen=True)
    class Own(JobSettings):
        edges: tuple[float, ...] | None = None

    def read(table: dict[str, Any]) -> Own:
        return settings_from(Own, table, "own")

    cases: list[tuple[Callable[[], dict[str, Any]], tuple[float, ...] | None]] = [
        (lambda: parse_words(["edges=[0, 1.5]"]), (0.0, 1.5)),
        (lambda: parse_words(["edges=0,1.5"]), (0.0, 1.5)),
        (lambda: {"edges": [0, 1.5]}, (0.0, 1.5)),
        (lambda: {"edges": None}, None),
    ]
    assert [read(table()).edges for table, _ in cases] == [expected for _, expected in cases]
