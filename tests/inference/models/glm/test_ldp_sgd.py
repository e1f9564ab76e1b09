"""LDP-SGD: its groups, each client once, its steps, what it returns and how it ends.

Statistical tests are seeded; each states how often it would fail by chance with another seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from exact_rounds import aggregate
from numpy.testing import assert_allclose

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.errors import NoAggregate
from dca_proto.protocol.wire.kinds import LdpReport
from inference.bounds import Interval
from inference.errors import DataError
from inference.models.glm import sgd
from inference.models.glm.sgd import Groups, Settings, groups, ldp_sgd, weights
from inference.problem import Schema
from inference.rounds import run
from inference.variational.progress import Iteration, Score
from papers.ldp2021.regression_methods import Reporters, Terms

NAMES = ("a", "b", "y")

BOUND = {2.0: 2.0, 40.0: 0.15}
SCHEMA = Schema(NAMES[:-1], "y", {"a": Interval(0, 4), "b": Interval(-1, 1), "y": Interval(-10, 30)})


class ScriptedRounds:
    """Rounds whose mean gradients and noise are given; a missing one is no round."""

    def __init__(self, gradients: list[list[float]], variance: float = 0.0, *, private: bool = True) -> None:
        self.requests: list[RoundRequest] = []
        self._gradients, self._variance, self._private = iter(gradients), variance, private

    def run_round(self, request: RoundRequest) -> NoisyAggregate:
        self.requests.append(request)
        mean = next(self._gradients, None)
        if mean is None:
            raise NoAggregate("nobody reported")
        n = request.batch
        value = n * np.append(mean, request.parameters["count_weight"])
        made = aggregate(value, n**2 * self._variance, request, n)
        object.__setattr__(made, "private", self._private)
        return made


# --- groups


@pytest.mark.parametrize("clients", [1, 7, 1999, 2001, 5198, 7999, 39_074])
@pytest.mark.parametrize("least", [1, 3, 50, 10_000])
def test_groups_are_disjoint_and_leave_out_hardly_any_client(clients: int, least: int) -> None:
    number, size = groups(clients, least)
    assert 1 <= number <= sgd.GROUPS_MAX
    assert number * size <= clients
    assert size >= min(least, clients)
    assert clients - number * size < max(size, number)


@pytest.mark.parametrize("call", [lambda: groups(0, 1), lambda: groups(5, 0)])
def test_impossible_groups_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(DataError):
        call()


def test_every_client_reports_once_with_its_whole_budget() -> None:
    rounds = ScriptedRounds([[0.0, 0.0, 0.0]] * 5)
    run(ldp_sgd(SCHEMA, groups(100, 20)), rounds)
    for request in rounds.requests:
        assert (type(request.kind), request.statistic) == (LdpReport, "gradient")
        assert request.kind.mechanism == "analytic-gaussian"
        assert (request.batch, request.rows_max, request.budget_share) == (20, 1, 1.0)
    assert sum(request.batch for request in rounds.requests) == 100


# --- missing values


def test_a_descent_over_reports_with_missing_values_is_that_of_the_complete_rows() -> None:
    """At 60 % missing the gradient is 0.4 times as long, and the count gives the same steps as if it were not."""
    rng = np.random.default_rng(2)
    gradients, share = rng.standard_normal((6, 3)), 0.4

    class Lacking(ScriptedRounds):
        def run_round(self, request: RoundRequest) -> NoisyAggregate:
            made = super().run_round(request)
            return replace(made, value=share * made.value)

    all_there, lacking = (run(ldp_sgd(SCHEMA, Groups(6, 100)), kind(gradients.tolist())) for kind in
                          (ScriptedRounds, Lacking))  # fmt: skip
    assert_allclose(lacking.mean, all_there.mean)
    assert not any("seem to lack" in text for text in all_there.warnings)
    assert any(text.startswith("about 60 % of the clients") for text in lacking.warnings)


# --- steps


@pytest.mark.parametrize(("family", "h", "clip"), [("linear", 1.0, math.sqrt(3)), ("logistic", 0.25, math.sqrt(3) / 2)])
def test_the_steps_of_the_plan_give_the_posterior_mean(family: str, h: float, clip: float) -> None:
    """Observations θ* + noise of known variance, of normal θ*: their posterior mean, without a recursion."""
    rng, variance, steps = np.random.default_rng(5), 0.3, 7
    truth, noise = np.array([0.4, -0.2, 0.1]), math.sqrt(variance) * rng.standard_normal((steps, 3))

    class Quadratic(ScriptedRounds):
        def run_round(self, request: RoundRequest) -> NoisyAggregate:
            assert request.parameters["clip"] == pytest.approx(clip)
            mean = h * (truth - np.array(request.parameters["theta"])) + noise[len(self.requests)]
            self._gradients = iter([mean.tolist()])
            return super().run_round(request)

    found = run(ldp_sgd(SCHEMA, Groups(steps, 10), Settings(family)), Quadratic([], variance))
    predicted = {"linear": 0.5, "logistic": 2.0}[family]
    before = np.array([2 * predicted, predicted / 2, predicted / 2])
    of_data = (truth + noise / h).mean(axis=0)
    weight = before / (before + variance / h**2 / steps)
    assert_allclose(found.mean, weight * of_data)
    assert_allclose(weights(Settings(family), 3, [math.sqrt(variance)] * steps), weight)
    assert ["70 reports" in text for text in found.warnings] == [True] * bool(weight.min() < 0.8)


def test_progress_is_reported_step_by_step() -> None:
    """Without rows to score on, g_t times the step before: its noise is not that step's."""
    seen: list[Iteration] = []
    steps = ScriptedRounds([[1.0, 0.0, 0.0], [1.5, 0.5, 0.0]])
    run(ldp_sgd(SCHEMA, Groups(2, 5), on_progress=seen.append), steps)
    assert [(one.number, one.total, one.name) for one in seen] == [(1, 2, sgd.GAINED), (2, 2, sgd.GAINED)]
    assert [one.value for one in seen] == [0.0, 1.5]
    seen.clear()
    score = Score("first", lambda theta, columns: float(theta[0]))
    run(ldp_sgd(SCHEMA, Groups(1, 5), score=score, on_progress=seen.append), ScriptedRounds([[1.0, 0.0, 0.0]]))
    assert [(one.name, one.value) for one in seen] == [("first", 1.0)]


# --- results


def test_coefficients_are_in_the_units_of_the_columns() -> None:
    found = run(ldp_sgd(SCHEMA, Groups(1, 5)), ScriptedRounds([[0.5, 1.0, -1.25]]))  # θ itself, without noise
    rows = np.array([[1.0, 0.5], [3.0, -1.0]])
    z = 3 * (rows - [2.0, 0.0]) / [2.0, 1.0]
    expected = 10 + 20 / 3 * (0.5 + z @ [1.0, -1.25])
    assert_allclose(found.predict(rows)[0], expected)
    assert_allclose(found.intercept + rows @ found.coefficients, expected)
    assert_allclose(
        found.predict(np.array([[9.0, 0.5]]))[0], found.predict(np.array([[4.0, 0.5]]))[0]
    )  # as clients clamp
    assert found.contributors == 5
    assert found.private


def test_log_odds_have_no_unit_of_the_target() -> None:
    found = run(ldp_sgd(SCHEMA, Groups(1, 5), Settings("logistic")), ScriptedRounds([[0.125, 0.25, -0.5]]))
    rows = np.array([[1.0, 0.5]])
    eta = 0.5 + 3 * (rows - [2.0, 0.0]) / [2.0, 1.0] @ [1.0, -2.0]
    assert_allclose(found.linear_predictor(rows)[0], eta)
    assert_allclose(found.intercept + rows @ found.coefficients, eta)
    assert_allclose(found.predict(rows)[0], 1 / (1 + np.exp(-eta)))


def test_results_without_privacy_are_not_called_private() -> None:
    assert not run(ldp_sgd(SCHEMA, Groups(1, 5)), ScriptedRounds([[0.0] * 3], private=False)).private
    read = Schema(SCHEMA.features, "y", {**SCHEMA.bounds, "a": Interval(0, 4, public=False)})
    assert not run(ldp_sgd(read, Groups(1, 5)), ScriptedRounds([[0.0] * 3])).private


def rows_of(n: int, rng: np.random.Generator) -> np.ndarray:
    X = rng.uniform([0, -1], [4, 1], (n, 2))
    return np.column_stack([X, 4 + 3 * X[:, 0] - 2 * X[:, 1] + 0.5 * rng.standard_normal(n)])


@pytest.mark.parametrize("epsilon", [2.0, 40.0])
def test_it_learns_from_reports(epsilon: float) -> None:
    """Of 30 seeds, predictions of the worst were off by BOUND at most; the target's sd is 3.7."""
    rng = np.random.default_rng(3)
    rows, terms = rows_of(10_000, rng), Terms(epsilon, 1e-5)
    found = run(ldp_sgd(SCHEMA, groups(len(rows))), Reporters(rows, NAMES, terms, rng))
    assert found.contributors == 10_000
    off = found.predict(rows[:, :2])[0] - (4 + rows[:, :2] @ [3, -2])
    assert np.sqrt(np.mean(off**2)) < BOUND[epsilon]


# --- ends


def test_a_group_without_reports_ends_the_job_early() -> None:
    rounds = ScriptedRounds([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    found = run(ldp_sgd(SCHEMA, Groups(5, 10)), rounds)
    assert (found.iterations, found.stopped, found.contributors) == (2, "nobody reported", 20)
    assert len(rounds.requests) == 3
    with pytest.raises(NoAggregate):
        run(ldp_sgd(SCHEMA, Groups(5, 10)), ScriptedRounds([]))


def test_clients_that_have_spent_their_budget_are_not_invited_again() -> None:
    rng = np.random.default_rng(4)
    found = run(ldp_sgd(SCHEMA, Groups(4, 30)), Reporters(rows_of(100, rng), NAMES, Terms(1.0, 1e-5), rng))
    assert (found.iterations, found.contributors) == (3, 90)
    assert "needs 30 clients; 10" in found.stopped


@pytest.mark.parametrize("wrong", [{"clip": 0.0}, {"clip": -1.0}, {"group": 0}, {"family": "poisson"}])
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(DataError):
        Settings(**wrong)
