"""The door from aggregates to the samplers of distributed regression: what it reads, and all that it refuses."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.jobs.job import JobTerms
from dca_proto.protocol.wire.kinds import NodeRelease
from dca_proto.statistics import resolve
from emulator.ideal import IdealSwarm
from inference.errors import DataError
from inference.models.linear.nodes.observed import (
    OF_CLIENTS,
    NodeStatistics,
    Prior,
    check_observed,
    check_prior,
    nodes_of,
    prior_of,
)

BITS = 24
IDS = (number.to_bytes(16, "big") for number in itertools.count(1))
COLUMNS = ["a", "b", "y"]
PARAMETERS: dict[str, Any] = {"columns": COLUMNS, "centre": [0.0] * 3, "scale": [2.0] * 3, "bound": [1.0] * 3}


def rows_of(n: int, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    X = rng.normal(0, 0.5, (n, 2))
    return np.column_stack([X, X @ [0.5, -0.3] + rng.normal(0, 0.2, n)])


def aggregate(
    rows: np.ndarray,
    noise_variance: float = 1.0,
    relation: str = "",
    *,
    contributors: int | None = None,
    **changes: Any,
) -> NoisyAggregate:
    """The exact sum of the rows, with that noise variance claimed."""
    averaged = "group" in changes
    parameters = PARAMETERS | changes
    name = "averaged-regression" if averaged else "regression"
    value = resolve(name, parameters).evaluate(rows, BITS).sum(axis=0) * 2.0**-BITS
    return NoisyAggregate(
        value=value, noise_variance=noise_variance, statistic=name, parameters=parameters,
        contributors=contributors or len(rows), clients=len(rows), n_min=0, colluders=0, mechanism="none (test)",
        sensitivity=1.0, relation=relation, sigma_local=0.0, epsilon=1.0, delta=1e-5, mu=0.3, round_id=next(IDS),
        announcement_hash=b"", contributors_hash=b"",
    )  # fmt: skip


def sums(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    z = np.clip(rows / 2, -1, 1)
    return z[:, :2].T @ z[:, :2], z[:, :2].T @ z[:, 2]


def observed(J: int = 2, d: int = 2, **changes: Any) -> NodeStatistics:
    one = np.ones(J)
    S, none = 50 * np.tile(np.eye(d), (J, 1, 1)), np.full(J, np.nan)
    return NodeStatistics(S, np.ones((J, d)), 100 * one, one, one, none, none)._replace(**changes)


def test_each_aggregate_is_a_node_with_its_own_noise() -> None:
    first, second = rows_of(60, 1), rows_of(90, 2)
    found = nodes_of([aggregate(first, 2.0), aggregate(second, 3.0)])
    for j, rows in enumerate((first, second)):
        S, z = sums(rows)
        np.testing.assert_allclose(found.S[j], S, atol=0.05)
        np.testing.assert_allclose(found.z[j], z, atol=0.05)
    assert (found.nodes, found.features, float(found.constant)) == (2, 2, 0.0)
    assert found.n.tolist() == [60, 90]
    assert found.variance_S.tolist() == found.variance_z.tolist() == [2.0, 3.0]
    assert np.isnan(found.u).all()
    assert np.isnan(found.variance_u).all()


def test_weights_give_each_block_its_own_noise() -> None:
    rows = rows_of(60)
    found = nodes_of(aggregate(rows, 36.0, weights=[2, 3, 6], target_square=True))
    np.testing.assert_allclose(found.S[0], sums(rows)[0], atol=0.05)
    assert (found.variance_S[0], found.variance_z[0], found.variance_u[0]) == (9.0, 4.0, 1.0)
    assert found.u[0] == pytest.approx((rows[:, 2] ** 2).sum() / 4, abs=0.05)


def test_a_constants_square_is_of_the_complete_rows_and_as_noisy_as_all_else() -> None:
    """n counts rows with missing values too, which is public; how many are complete is not."""
    noisy = aggregate(rows_of(57), 4.0, contributors=60, intercept=True, intercept_bound=0.5)
    noisy.value[0] += 1.0
    found = nodes_of(noisy)
    assert float(found.constant) == 0.5
    assert (found.n[0], found.S[0, 0, 0]) == (60, 57 * 0.25 + 1)


def test_clients_who_sum_several_rows_are_more_rows_than_clients() -> None:
    """Noise of 0.1 in 120 · 0.25 is 0.4 rows, and four of these more are possible."""
    sums = {"contributors": 60, "intercept": True, "intercept_bound": 0.5}
    several = aggregate(rows_of(120), 0.01, OF_CLIENTS, **sums)
    assert nodes_of(several).n[0] == 121
    assert nodes_of(aggregate(rows_of(60), 0.01, OF_CLIENTS, **sums)).n[0] == 60
    assert nodes_of(aggregate(rows_of(120), 0.01, "replace-one-row", **sums)).n[0] == 60


def test_averages_are_the_same_regression_on_fewer_rows() -> None:
    rows = rows_of(60)
    found = nodes_of(aggregate(rows, 100.0, group=5))
    averages = np.sqrt(5) * np.clip(rows / 2, -1, 1).reshape(12, 5, 3).mean(axis=1)
    np.testing.assert_allclose(found.S[0], averages[:, :2].T @ averages[:, :2], atol=0.05)
    np.testing.assert_allclose(found.z[0], averages[:, :2].T @ averages[:, 2], atol=0.05)
    assert (found.n[0], found.variance_S[0], found.variance_z[0]) == (12, 4.0, 4.0)
    one_group_each = replace(aggregate(rows, group=5, relation="replace-one-client"), contributors=12)
    assert nodes_of(one_group_each).n.tolist() == [12]


def test_a_local_round_is_as_many_nodes_and_a_summed_one_is_one() -> None:
    """With the noise that the ideal functionality draws; seeded."""
    tables = [rows_of(n, n) for n in (40, 50, 60)]
    terms = JobTerms(epsilon=2.0, delta=1e-5, clients=3, tolerate=0, computes=(b"a" * 32, b"b" * 32))
    swarm = IdealSwarm(tables, COLUMNS, terms, random=np.random.default_rng(5).bytes)
    local = swarm.run_round(RoundRequest("regression", PARAMETERS, rows_max=100, kind=NodeRelease()))
    found = nodes_of(local)
    assert found.n.tolist() == [40, 50, 60]
    assert found.variance_S.tolist() == [node.noise_variance for node in local.nodes]
    for j, rows in enumerate(tables):
        error = (found.S[j] - sums(rows)[0]) / np.sqrt(found.variance_S[j])
        assert np.abs(error).max() < 5  # 4 numbers: 2e-6
    for j, again in enumerate(nodes_of(local.nodes)):  # its nodes are the same
        np.testing.assert_array_equal(again, found[j])
    assert nodes_of(local.nodes[1:]).n.tolist() == [50, 60]
    for twice in ([local, local.nodes[1]], [local.nodes[1], local], [local.nodes[1], local.nodes[1]]):
        with pytest.raises(DataError, match="aggregate 2 is aggregate 1 again"):
            nodes_of(twice)
    terms = JobTerms(
        epsilon=terms.budget.epsilon, delta=terms.budget.delta, clients=150, tolerate=5, computes=(b"a" * 32, b"b" * 32)
    )
    swarm = IdealSwarm(np.concatenate(tables), COLUMNS, terms, random=np.random.default_rng(6).bytes)
    summed = swarm.run_round(RoundRequest("regression", PARAMETERS, rows_max=1))
    alone = nodes_of(summed)
    assert (alone.nodes, alone.n[0], alone.variance_z[0]) == (1, 150, summed.noise_variance)
    assert nodes_of([summed, summed_again(summed)]).nodes == 2


def summed_again(summed: NoisyAggregate) -> NoisyAggregate:
    return replace(summed, round_id=next(IDS))


def test_no_node_and_nodes_that_do_not_fit_are_refused() -> None:
    rows = rows_of(60)
    good = aggregate(rows)
    with pytest.raises(DataError, match="no aggregate"):
        nodes_of([])
    with pytest.raises(DataError, match="aggregate 2 is aggregate 1 again"):
        nodes_of([good, good])
    with pytest.raises(DataError, match="aggregate 2 has columns"):
        nodes_of([good, aggregate(rows, columns=["a", "c", "y"])])
    with pytest.raises(DataError, match="aggregate 2 has columns"):  # another dimension
        nodes_of([good, aggregate(rows[:, 1:], columns=["b", "y"], centre=[0, 0], scale=[2, 2], bound=[1, 1])])
    with pytest.raises(DataError, match="aggregate 2 has scale"):
        nodes_of([good, aggregate(rows, scale=[2.0, 2.0, 1.0])])
    with pytest.raises(DataError, match="aggregate 2 has bound"):
        nodes_of([good, aggregate(rows, bound=[1.0, 1.0, 0.5])])
    with pytest.raises(DataError, match="relation 'replace-one-row', the first under 'replace-one-client'"):
        nodes_of([aggregate(rows, relation="replace-one-client"), aggregate(rows, relation="replace-one-row")])
    with pytest.raises(DataError, match="expected 'regression'"):
        nodes_of(replace(good, statistic="moments"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"S": np.empty((0, 2, 2))}, "there is no node"),
        ({"S": [np.eye(2), np.eye(3)]}, "nodes differ in shape"),
        ({"z": np.ones((2, 3))}, r"z has the shape \(2, 3\); expected \(2, 2\)"),
        ({"n": np.ones(3)}, r"n has the shape \(3,\)"),
        ({"n": np.array([100.0, 0.0])}, "node 2 has 0 rows"),
        ({"z": np.array([[1, 1], [np.nan, 1]])}, "z of node 2 is not finite"),
        ({"variance_S": np.array([1.0, np.inf])}, "variance_S of node 2 is not finite"),
        ({"variance_z": np.array([-1.0, 1.0])}, "variance_z of node 1 is -1"),
        ({"variance_u": np.array([-2.0, np.nan])}, "variance_u of node 1 is -2"),
        ({"S": np.tile([[5.0, 1.0], [0.0, 5.0]], (2, 1, 1))}, "S of node 1 is not symmetric"),
        ({"S": np.tile(np.diag([50.0, -30.0]), (2, 1, 1))}, "S of node 1 has the eigenvalue -30"),
    ],
)
def test_wrong_arrays_are_refused_with_a_reason(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_observed(observed(**changes))


def test_noise_alone_never_looks_impossible_and_a_wrong_variance_does() -> None:
    """200 matrices of pure noise, d = 8: the chance that any is refused is below 2e-7.

    With a hundredth of the variance claimed, all are.
    """
    rng = np.random.default_rng(4)
    upper = np.triu(rng.normal(0, 3.0, (200, 8, 8)))
    S = upper + np.triu(upper, 1).transpose(0, 2, 1)
    one, none = np.ones(200), np.full(200, np.nan)
    noise = NodeStatistics(S, np.zeros((200, 8)), one, 9 * one, one, none, none)
    check_observed(noise)
    with pytest.raises(DataError, match=r"noise of variance 0\.09 explains none below"):
        check_observed(noise._replace(variance_S=0.09 * one))


def test_the_default_prior_expects_columns_of_a_third_of_their_bounds() -> None:
    plain = Prior.default(2)
    np.testing.assert_allclose(plain.C, np.eye(2) / 4)  # half of the target, by two features
    np.testing.assert_allclose(plain.Lambda / (plain.kappa - 2 - 1), np.eye(2) / 9)
    assert plain.b / (plain.a - 1) == pytest.approx(1 / 18)
    wide = prior_of(aggregate(rows_of(20), bound=[3.0, 6.0, 1.5]))
    np.testing.assert_allclose(wide.C, np.diag([0.25 * 0.5**2, 0.25 * 0.25**2]))
    np.testing.assert_allclose(np.diag(wide.Lambda), [1, 4])
    assert wide.b == pytest.approx(0.125)
    constant = prior_of(aggregate(rows_of(20), intercept=True, intercept_bound=1 / 3))
    np.testing.assert_allclose(np.diag(constant.C), [1, 0.25, 0.25])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"m": np.zeros(3)}, r"prior's m has the shape \(3,\); expected \(2,\)"),
        ({"b": np.array(0.0)}, "prior's b is 0; give a finite number above 0"),
        ({"kappa": np.array(1.0)}, "prior's kappa is 1; give a finite number above 1"),
        ({"C": np.array([[1.0, 2.0], [2.0, 1.0]])}, "prior's C is not symmetric and positive definite"),
        ({"Lambda": np.array([[1.0, 0.5], [0.0, 1.0]])}, "prior's Lambda is not symmetric"),
    ],
)
def test_an_improper_prior_is_refused(changes: dict[str, Any], message: str) -> None:
    check_prior(Prior.default(2), 2)
    with pytest.raises(DataError, match=message):
        check_prior(Prior.default(2)._replace(**changes), 2)
