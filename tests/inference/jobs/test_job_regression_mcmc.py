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
from ideal_jobs import NODES, conditions, drawn, learn_from, near, problem

from dca_proto.cli.job_settings import Task, check_plan, task_of
from dca_proto.errors import UsageError
from dca_proto.jobs.job import JobTerms
from dca_proto.jobs.journal import Journal, Opened
from dca_proto.privacy.budget import Budget
from dca_proto.protocol.wire.kinds import NodeRelease, SecureSum
from emulator.swarm.live import fresh_keys
from inference.errors import DataError
from inference.jobs import find
from inference.jobs.settings import settings_from
from inference.models.linear.nodes import methods as nodes
from inference.problem import split

jax_needed = pytest.mark.skipif(find_spec("jax") is None or find_spec("arviz") is None, reason="without the samplers")
ROWS = split(problem("number"), 100, 0)[0].rows
JOB = find("regression-mcmc")


def tables(*sizes: int) -> list[np.ndarray]:
    return np.split(ROWS[: sum(sizes)], np.cumsum(sizes)[:-1])


def slopes(summary: dict[str, Any]) -> dict[str, Any]:
    """Without the intercept, which statistics without a constant do not determine."""
    return {**summary, "intercept": summary["coefficients"][0]}


# --- small nodes ------------------------------------------------------------------------------------------------------


@jax_needed
def test_nodes_with_too_few_rows_are_left_out_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A density of S_j takes more rows than features and the constant; the closed form takes any."""
    seen: list[Any] = []
    monkeypatch.setattr(nodes, "sample", lambda observed, *rest: seen.append(observed) or drawn(observed, *rest))
    result, summary, _ = learn_from(tables(3, 150, 147), draws=20, require_mixed=False)
    assert seen[0].n.tolist() == [150, 147]
    warning = (
        "1 of 3 data nodes are left out: the smallest has 3 rows, and method 'normal' needs 4 of each; 'fast' learns "
        "from all that have any"
    )
    assert warning in summary["warnings"]
    assert result.predictor.linear.contributors == 297
    _, everybody, _ = learn_from(tables(4, 150, 146), draws=20, require_mixed=False)
    assert not any("left out" in one for one in everybody["warnings"])
    with pytest.raises(DataError, match="largest of 2 data nodes has 2 rows, and method 'normal' needs 4 of each"):
        learn_from(tables(2, 1))
    with pytest.raises(DataError, match="2 rows are too few: this model needs at least 10"):
        learn_from(tables(1, 1), kind=SecureSum)


def test_the_closed_form_takes_nodes_of_any_size() -> None:
    result, summary, _ = learn_from(tables(2, 150, 148), method="fast")
    assert (result.predictor.contributors, summary.get("warnings", [])) == (300, [])


@jax_needed
def test_how_many_rows_a_node_needs_is_known_before_anything_is_started() -> None:
    schema = problem("number").schema
    needed = [
        JOB.rows_least(schema, settings_from(JOB.settings, {"method": method, "group": k}, JOB.name))
        for method, k in (("normal", None), ("normal", 1), ("normal", 10), ("fast", 10), ("fast", None))
    ]
    assert needed == [4, 4, 30, 10, 1]
    with pytest.raises(DataError, match="setting 'rows_max' is 3, and method 'normal' needs 4 rows of each node"):
        JOB.check(schema, settings_from(JOB.settings, {"rows_max": 3}, JOB.name))


# --- averages of rows -------------------------------------------------------------------------------------------------


def test_data_nodes_release_averages_of_rows_where_a_job_asks_for_them() -> None:
    """At ε = 60 within 6 posterior standard deviations, of 59 averages; the last node has none."""
    result, summary, _ = learn_from(tables(150, 146, 4), method="fast", group=5)
    assert near(slopes(summary))
    assert result.predictor.contributors == 59
    single, _, _ = learn_from(tables(150, 146, 4), method="fast")
    assert (single.slopes()[1] < result.slopes()[1]).all(), "averages contain less information"


@jax_needed
def test_nodes_with_too_few_averages_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "sample", drawn)
    _, summary, _ = learn_from(tables(150, 140, 10), group=5, draws=20, require_mixed=False)
    warning = (
        "1 of 3 data nodes are left out: the smallest has 2 averages of 5 rows, and method 'normal' needs 3 of each"
    )
    assert any(one.startswith(warning) for one in summary["warnings"])


@jax_needed
def test_averages_have_no_constant() -> None:
    schema = problem("number").schema
    settings = settings_from(JOB.settings, {"group": 10}, JOB.name)
    JOB.check(schema, settings)
    known = replace(conditions(Budget(8, 1e-5)), kind=NodeRelease)
    request = next(JOB.make(schema, settings, known))
    assert (request.statistic, request.parameters["group"]) == ("averaged-regression", 10)
    assert "intercept" not in request.parameters
    with pytest.raises(DataError, match="averages of 10 rows are for data nodes that release by themselves"):
        next(JOB.make(schema, settings, replace(known, kind=SecureSum)))


def test_groups_that_rows_do_not_fill_are_refused_before_the_round() -> None:
    schema, budget = problem("number").schema, Budget(8, 1e-5)
    terms = JobTerms(epsilon=budget.epsilon, delta=budget.delta, clients=2, tolerate=0, computes=NODES)
    known = replace(conditions(budget), kind=NodeRelease)
    many = settings_from(JOB.settings, {"method": "fast", "group": 5000}, JOB.name)
    with pytest.raises(UsageError, match="group is 5000; average 1 to 4096 rows"):
        check_plan(JOB.make(schema, many, known), JOB.plan(schema, many, known), terms, "the budget")
    few = settings_from(JOB.settings, {"method": "fast", "group": 10, "rows_max": 9}, JOB.name)
    with pytest.raises(DataError, match="setting 'rows_max' is 9, and method 'fast' needs 10 rows of each node"):
        JOB.check(schema, few)
    with pytest.raises(DataError, match="setting 'group' is 0, expected a whole number, at least 1"):
        settings_from(JOB.settings, {"group": 0}, JOB.name)


# --- what may change once the nodes have released ---------------------------------------------------------------------


def task(**settings: Any) -> Task:
    table = {
        "name": "regression-mcmc", "method": "fast", "target": "y", "bounds": {"a": [0, 1], "y": [0, 1]},
        "epsilon": 8, "delta": 1e-5, "clients": 2,
    }  # fmt: skip
    return task_of({**table, **settings}, fresh_keys(0).federation)


@jax_needed
@pytest.mark.parametrize(
    "settings",
    [{"draws": 50}, {"chains": 2}, {"warmup": 9}, {"require_mixed": False}, {"seed": 7}, {"method": "normal"},
     {"collect_s": 5.0}],
)  # fmt: skip
def test_post_processing_settings_are_no_part_of_a_jobs_identity(settings: dict[str, Any]) -> None:
    assert task(**settings).identity == task().identity


@pytest.mark.parametrize(
    "settings", [{"rows_max": 500}, {"group": 5}, {"epsilon": 9}, {"bounds": {"a": [0, 1], "y": [0, 2]}}]
)
def test_the_request_to_nodes(settings: dict[str, Any]) -> None:
    assert task(**settings).identity != task().identity


def test_a_seed_that_rounds_depend_on_is_part_of_a_jobs_identity() -> None:
    table = {
        "name": "regression", "target": "y", "bounds": {"a": [0, 1], "y": [0, 1]}, "epsilon": 8, "delta": 1e-5,
        "clients": 9,
    }  # fmt: skip
    federation = fresh_keys(2).federation
    assert task_of({**table, "seed": 1}, federation).identity != task_of(table, federation).identity


def test_a_journal_from_before_a_setting_existed_is_resumed(tmp_path: Path) -> None:
    """Which has draws, chains and the rest in its first line, and knows of no averages."""
    path, one = tmp_path / "mcmc.journal", task(draws=77)
    known = replace(conditions(Budget(8, 1e-5)), kind=NodeRelease)
    request = next(JOB.make(one.schema, one.own, known))
    older = {key: value for key, value in one.table.items() if key not in ("group", "units")}
    with Journal(path, older) as journal:
        journal.append(Opened(1, one.terms.open(request, bytes(16))))
    with pytest.raises(UsageError, match="is the journal of a job with another draws, units; use the settings"):
        Journal(path, {**older, "draws": 1000, "units": {"a": "cm"}})
    now = task(draws=50, chains=2)
    with Journal(path, now.identity, free=now.free) as journal:
        assert len(journal.recall(1).attempts) == 1
    with pytest.raises(UsageError, match="is the journal of a job with another rows_max; use the settings"):
        Journal(path, task(rows_max=5).identity, free=now.free)


def test_the_description_of_the_model_names_the_method() -> None:
    schema = problem("number").schema
    text = JOB.model(schema, settings_from(JOB.settings, {"method": "fast", "group": 10}, JOB.name))
    assert text == (
        "y on a, b; method fast: Bayes-fixedS-fast (Algorithm 3), in closed form, from averages of 10 rows; no chains"
    )
    text = JOB.model(schema, settings_from(JOB.settings, {}, JOB.name))
    assert text.endswith("method normal: normal features (B.2), by NUTS; 4 chains of 2000 iterations")
