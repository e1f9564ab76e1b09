"""Job `regression-mcmc`: small nodes, averages of rows, and what may change once the nodes have released.

Methods are in closed form or replaced, so that nothing is compiled here.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_jobs import NODES, conditions, drawn, learn_from, near, problem

from dca_proto.aggregate import NodeReleaseRequest, SecureSumRequest
from dca_proto.cli.job_settings import Task, check_plan, task_of
from dca_proto.core.errors import UsageError
from dca_proto.learning.job import JobTerms
from dca_proto.learning.journal import Journal, Opened
from dca_proto.privacy.budget import Budget
from emulator.swarm.live import fresh_cast
from inference.errors import DataError
from inference.jobs import find
from inference.jobs.settings import settings_from
from inference.models.linear.nodes import METHODS
from inference.models.linear.nodes import rounds as distributed_job
from inference.problem import split

jax_needed = pytest.mark.skipif(find_spec("jax") is None or find_spec("arviz") is None, reason="without the samplers")
ROWS = split(problem("number"), 100, 0)[0].rows
JOB = find("regression-mcmc")


def tables(*sizes: int) -> list[np.ndarray]:
    return np.split(ROWS[: sum(sizes)], np.cumsum(sizes)[:-1])


def slopes(summary: dict[str, Any]) -> dict[str, Any]:
    """Without the intercept, of which statistics without a constant say nothing."""
    return {**summary, "intercept": summary["coefficients"][0]}


# --- small nodes ------------------------------------------------------------------------------------------------------


@jax_needed
def test_nodes_with_too_few_rows_are_left_out_and_the_result_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A density of S_j takes a row for each feature and the constant; closed forms take any."""
    seen: list[Any] = []
    monkeypatch.setattr(
        distributed_job, "fit", lambda method, observed, *rest, **more: seen.append(observed) or drawn(
            method, observed, *rest, **more)
    )  # fmt: skip
    result, summary, _ = learn_from(tables(2, 150, 148), method="intercept", draws=20)
    assert seen[0].n.tolist() == [150, 148]
    said = (
        "1 of 3 data nodes are left out: the smallest has 2 rows, and method 'intercept' needs 3 of each; "
        "'fixed-s' and 'fast' learn from all that have any"
    )
    assert summary["warnings"][0] == said
    assert result.linear.contributors == 298
    _, everybody, _ = learn_from(tables(3, 150, 147), method="intercept", draws=20)
    assert not any("left out" in one for one in everybody["warnings"])
    with pytest.raises(DataError, match="largest of 2 data nodes has 2 rows, and method 'intercept' needs 3 of each"):
        learn_from(tables(2, 1), method="intercept")
    with pytest.raises(DataError, match="there are 2 rows, and method 'intercept' needs 3 of each; take 'fixed-s' or"):
        learn_from(tables(1, 1), method="intercept", kind=SecureSumRequest)


def test_closed_forms_take_nodes_of_any_size() -> None:
    result, summary, _ = learn_from(tables(2, 150, 148), method="fast")
    assert (result.sampled.attrs["nodes"], summary["warnings"]) == (3, [])


@jax_needed
def test_how_many_rows_a_node_needs_is_known_before_anything_is_started() -> None:
    schema = problem("number").schema
    needed = {
        (method, k): JOB.rows_least(schema, settings_from(JOB.settings, {"method": method, "group": k}, JOB.name))
        for method, k in (("intercept", None), ("collapsed", 1), ("collapsed", 10), ("fixed-s", 10), ("fast", None))
    }
    assert list(needed.values()) == [3, 2, 20, 10, 1]
    with pytest.raises(DataError, match="setting 'rows_max' is 2, and method 'intercept' needs 3 rows of each node"):
        JOB.check(schema, settings_from(JOB.settings, {"method": "intercept", "rows_max": 2}, JOB.name))


# --- averages of rows -------------------------------------------------------------------------------------------------


def test_data_nodes_release_averages_of_rows_where_a_job_asks_for_them() -> None:
    """At ε = 60 within 6 posterior standard deviations, of 59 averages; the last node has none."""
    result, summary, _ = learn_from(tables(150, 146, 4), method="fast", group=5)
    assert near(slopes(summary))
    attrs = result.sampled.attrs
    assert (attrs["statistics"], attrs["nodes"], attrs["contributors"]) == ("averaged-regression", 2, 295)
    assert result.linear.contributors == 59
    assert summary["warnings"] == []
    single, _, _ = learn_from(tables(150, 146, 4), method="fast")
    assert (single.linear.coefficient_sd < result.linear.coefficient_sd).all(), "averages tell less"


@jax_needed
def test_nodes_with_too_few_averages_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed_job, "fit", drawn)
    _, summary, _ = learn_from(tables(150, 141, 9), method="collapsed", group=5, draws=20)
    said = "1 of 3 data nodes are left out: the smallest has 1 averages of 5 rows, and method 'collapsed' needs 2 of"
    assert summary["warnings"][0].startswith(said)


@jax_needed
def test_averages_have_no_constant_and_no_squares() -> None:
    schema = problem("number").schema
    for method in METHODS.values():
        settings = settings_from(JOB.settings, {"method": method.name, "group": 10}, JOB.name)
        if method.name in ("intercept", "bernstein-sheldon"):
            with pytest.raises(DataError, match="take one of 'collapsed', 'normal-x', 'fixed-s', 'fast', or leave"):
                JOB.check(schema, settings)
            continue
        JOB.check(schema, settings)
        known = replace(conditions(Budget(8, 1e-5)), kind=NodeReleaseRequest)
        request = next(JOB.make(schema, settings, known))
        assert (request.statistic, request.parameters["group"]) == ("averaged-regression", 10)
        with pytest.raises(DataError, match="averages of 10 rows are for data nodes that release by themselves"):
            next(JOB.make(schema, settings, replace(known, kind=SecureSumRequest)))


def test_groups_that_rows_do_not_fill_are_refused_before_the_round() -> None:
    schema, budget = problem("number").schema, Budget(8, 1e-5)
    terms = JobTerms(budget=budget, clients=2, tolerated=0, computes=NODES)
    known = replace(conditions(budget), kind=NodeReleaseRequest)
    many = settings_from(JOB.settings, {"method": "fast", "group": 5000}, JOB.name)
    with pytest.raises(UsageError, match="group is 5000; average 1 to 4096 rows"):
        check_plan(JOB.make(schema, many, known), JOB.plan(schema, many, known), terms, "the budget")
    few = settings_from(JOB.settings, {"method": "fast", "group": 10, "rows_max": 9}, JOB.name)
    with pytest.raises(DataError, match="setting 'rows_max' is 9, and method 'fast' needs 10 rows of each node"):
        JOB.check(schema, few)
    with pytest.raises(DataError, match="setting 'group' is 0, expected at least 1"):
        settings_from(JOB.settings, {"group": 0}, JOB.name)


# --- what may change once the nodes have released ---------------------------------------------------------------------


def task(**settings: Any) -> Task:
    table = {
        "name": "regression-mcmc", "method": "fast", "target": "y", "bounds": {"a": [0, 1], "y": [0, 1]},
        "epsilon": 8, "delta": 1e-5, "clients": 2,
    }  # fmt: skip
    return task_of({**table, **settings}, fresh_cast(0, 0).federation)


@jax_needed
@pytest.mark.parametrize(
    "settings",
    [{"draws": 50}, {"chains": 2}, {"warmup": 9}, {"thin": 3}, {"seed": 7}, {"method": "intercept"},
     {"method": "fast", "released_for": "collapsed"}, {"collect_s": 5.0}],
)  # fmt: skip
def test_what_is_made_of_what_was_released_is_no_part_of_a_jobs_identity(settings: dict[str, Any]) -> None:
    assert task(**settings).identity == task().identity


@pytest.mark.parametrize(
    "settings", [{"rows_max": 500}, {"group": 5}, {"epsilon": 9}, {"bounds": {"a": [0, 1], "y": [0, 2]}}]
)
def test_what_nodes_are_asked_for_is(settings: dict[str, Any]) -> None:
    assert task(**settings).identity != task().identity


def test_a_seed_that_rounds_depend_on_is_part_of_a_jobs_identity() -> None:
    table = {
        "name": "regression", "target": "y", "bounds": {"a": [0, 1], "y": [0, 1]}, "epsilon": 8, "delta": 1e-5,
        "clients": 9,
    }  # fmt: skip
    federation = fresh_cast(0, 2).federation
    assert task_of({**table, "seed": 1}, federation).identity != task_of(table, federation).identity


def test_a_journal_without_settings_of_today_is_gone_on_with(tmp_path: Path) -> None:
    """Which has draws, chains and the rest in its first line, and knows of no averages."""
    path, one = tmp_path / "mcmc.journal", task(draws=77)
    known = replace(conditions(Budget(8, 1e-5)), kind=NodeReleaseRequest)
    asked = next(JOB.make(one.schema, one.own, known))
    older = {key: value for key, value in one.table.items() if key not in ("group", "released_for", "units")}
    with Journal(path, older) as journal:
        journal.append(Opened(1, one.terms.open(asked, bytes(16))))
    with pytest.raises(UsageError, match="is the journal of a job with another draws, units; expected"):
        Journal(path, {**older, "draws": 1000, "units": {"a": "cm"}})
    now = task(draws=50, chains=2)
    with Journal(path, now.identity, free=now.free) as journal:
        assert len(journal.recall(1).attempts) == 1
    with pytest.raises(UsageError, match="is the journal of a job with another rows_max; expected"):
        Journal(path, task(rows_max=5).identity, free=now.free)


@jax_needed
def test_a_method_learns_from_what_was_released_for_another_one() -> None:
    """Normal features and no constant; and yᵀy, which only MCMC-B&S asks for."""
    schema = problem("number").schema
    for asked in ("collapsed", "bernstein-sheldon"):
        result, summary, _ = learn_from(tables(150, 148), method="fast", released_for=asked)
        assert near(slopes(summary))
        assert result.linear.constant == 0
        own = [settings_from(JOB.settings, {"method": asked}, JOB.name)]
        own.append(settings_from(JOB.settings, {"method": "fast", "released_for": asked}, JOB.name))
        known = replace(conditions(Budget(8, 1e-5)), kind=NodeReleaseRequest)
        first, second = (next(JOB.make(schema, one, known)) for one in own)
        assert first == second, "a journal of the one is one of the other"
    with pytest.raises(DataError, match="method 'intercept' is for statistics with a constant"):
        JOB.check(schema, settings_from(JOB.settings, {"method": "intercept", "released_for": "normal-x"}, JOB.name))
    with pytest.raises(DataError, match="method 'collapsed'"):
        JOB.check(schema, settings_from(JOB.settings, {"method": "collapsed", "released_for": "fast"}, JOB.name))
    with pytest.raises(DataError, match=r"released_for 'normalx' is unknown \(did you mean 'normal-x'"):
        settings_from(JOB.settings, {"released_for": "normalx"}, JOB.name)


def test_the_model_in_words_says_what_the_method_is() -> None:
    schema = problem("number").schema
    assert all(method.about for method in METHODS.values())
    said = JOB.model(schema, settings_from(JOB.settings, {"method": "fast", "group": 10}, JOB.name))
    assert said == (
        "y on a, b; method fast: Bayes-fixedS-fast (Algorithm 3), in closed form, from averages of 10 rows; no chains"
    )
    said = JOB.model(schema, settings_from(JOB.settings, {}, JOB.name))
    assert said.endswith("method intercept: normal features about an unknown mean (B.2); 4 chains of 52000 iterations")
