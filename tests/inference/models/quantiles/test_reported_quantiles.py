"""Quantiles from LDP reports of nested bins: least squares with the reports' noise, coverage, missing values."""

from __future__ import annotations

import numpy as np
import pytest

from dca_proto import JobTerms
from dca_proto.aggregate import LocalReports, NoisyAggregate
from dca_proto.testing import seeded
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.errors import DataError
from inference.jobs import find
from inference.jobs.base import Conditions, uses
from inference.models.quantiles.reported import Reported
from inference.posterior import Posterior
from inference.problem import Schema
from inference.rounds import run

JOB = find("ldp-quantiles")
SCHEMA = Schema((), "y", {"y": Interval(5, 35)}, alone=True)
QUARTERS = (17.976, 20.0, 22.024)  # those of a normal law with mean 20 and standard deviation 3


def conditions(n: int, epsilon: float) -> Conditions:
    return Conditions(n, 0, 1.0, np.random.default_rng(1), kind=JOB.kinds[0], epsilon=epsilon)


def released(x: np.ndarray, epsilon: float, seed: int, levels: int) -> list[NoisyAggregate]:
    """The rounds of the job over the ideal functionality, with the noise of the seed."""
    n, own = len(x), JOB.settings(levels=levels)
    terms = JobTerms(epsilon=epsilon, delta=0.0, clients=n, tolerate=0, computes=())
    swarm = IdealSwarm(x[:, None], ["y"], terms, random=seeded(f"reported {seed}"))
    found: list[NoisyAggregate] = run(JOB.make(SCHEMA, own, conditions(n, epsilon)), swarm)
    return found


def fitted(x: np.ndarray, epsilon: float = 2.0, seed: int = 0, levels: int = 2) -> Posterior:
    known, own = conditions(len(x), epsilon), JOB.settings(levels=levels)
    posterior: Posterior = JOB.finish(released(x, epsilon, seed, levels), SCHEMA, own, known)
    return posterior


def intervals(posterior: Posterior) -> np.ndarray:
    return np.array([one.marginal.interval for one in posterior.estimates()])


def test_each_client_reports_once_and_groups_are_disjoint() -> None:
    x = np.random.default_rng(0).normal(20, 3, 400)
    rounds = released(x, 2.0, 0, 3)
    ids = [client for aggregate in rounds for client in aggregate.reports.clients]  # type: ignore[union-attr]
    assert len(ids) == len(set(ids)) == 399
    assert [aggregate.parameters["edges"][:2] for aggregate in rounds] == [[5, 12.5], [5, 6.875], [5, 5.46875]]
    assert {aggregate.epsilon for aggregate in rounds} == {2.0}
    stages = JOB.plan(SCHEMA, JOB.settings(), conditions(400, 2.0))
    assert (uses(stages), sum(stage.total for stage in stages)) == (1, 1.0)


def test_counts_are_those_of_least_squares_weighted_by_the_reports_noise() -> None:
    """Against whitened equations by NumPy's solver; the variance of each bit by simulated reports' own law."""
    x = np.random.default_rng(0).normal(20, 3, 3000)
    rounds = released(x, 1.0, 5, 2)
    found = Reported.of_levels(JOB._statistic(SCHEMA, JOB.settings(levels=2)), rounds)  # type: ignore[attr-defined]
    p, q = 0.5, 1 / (np.e + 1)
    assert found.n == 3000
    assert found.counts.sum() == pytest.approx(3000, abs=5 * found.rows_sd)
    shares = np.histogram(x, 16, (5, 35))[0] / 3000  # near those that the fit estimates; weights hardly change
    rows, values = [], []
    for aggregate in rounds:
        bits = np.asarray(aggregate.reports.values)  # type: ignore[union-attr]
        bins = bits.shape[1]
        f = shares.reshape(bins, -1).sum(axis=1)
        own, stray = f * p + (1 - f) * q, f[:, None] * f
        joint = np.diag(own) + (1 - np.eye(bins)) * ((p - q) * q * (f[:, None] + f) + q * q)  # P(both bits are set)
        cov = (joint - np.outer(own, own)) / (p - q) ** 2 / len(bits)
        assert np.allclose(cov - np.diag(np.diag(cov)), (np.diag(np.diag(stray)) - stray) / len(bits))
        white = np.linalg.inv(np.linalg.cholesky(cov))
        rows.append(white @ np.repeat(np.eye(bins), 16 // bins, axis=1))
        values.append(white @ ((bits.mean(axis=0) - q) / (p - q)))
    solved, *_ = np.linalg.lstsq(np.vstack(rows), np.concatenate(values))
    assert found.counts / 3000 == pytest.approx(solved, abs=0.005)
    sd = np.sqrt(np.diag(np.linalg.inv(np.vstack(rows).T @ np.vstack(rows))))
    assert np.sqrt(np.diag(found.covariance)) / 3000 == pytest.approx(sd, rel=0.03)


def test_missing_values_are_counted_and_the_quantiles_are_of_the_others() -> None:
    x = np.random.default_rng(1).normal(20, 3, 6000)
    x[:2400] = np.nan
    posterior = fitted(x, 3.0)
    assert any("% of the clients" in warning for warning in posterior.warnings)
    low, high = intervals(posterior)[1]
    assert low < 20 < high
    assert high - low < 5


def test_noise_that_hides_everything_is_said_and_intervals_are_wide() -> None:
    posterior = fitted(np.random.default_rng(0).normal(20, 3, 60), 0.1)
    assert any("the noise hides how many of the 60 clients" in warning for warning in posterior.warnings)
    assert np.ptp(intervals(posterior)[1]) > 15


def test_other_quantiles_come_from_the_same_reports() -> None:
    posterior = fitted(np.random.default_rng(0).normal(20, 3, 3000), 4.0)
    (only,) = posterior.refit(probabilities=(0.9,)).estimates()
    assert only.name == "quantile 0.9 of y"
    assert only.marginal.interval is not None
    assert only.marginal.interval[0] < 20 + 3 * 1.2816 < only.marginal.interval[1]
    assert posterior.attrs["epsilon"] == 4.0


def test_a_result_claims_nothing_if_the_bounds_are_of_the_data() -> None:
    rounds = released(np.random.default_rng(0).normal(20, 3, 400), 2.0, 0, 2)
    read = Schema((), "y", {"y": Interval(5, 35, public=False)}, alone=True)
    posterior = JOB.finish(rounds, read, JOB.settings(levels=2), conditions(400, 2.0))
    assert (posterior.private, posterior.attrs["epsilon"]) == (False, None)


def test_too_few_clients_and_other_reports_are_refused() -> None:
    with pytest.raises(DataError, match="no result from fewer than 30 contributors, and found 29;"):
        JOB.check_contributors(SCHEMA, JOB.settings(levels=2), conditions(29, 1.0))
    rounds = released(np.random.default_rng(0).normal(20, 3, 400), 2.0, 0, 2)
    statistic = JOB._statistic(SCHEMA, JOB.settings(levels=2))  # type: ignore[attr-defined]
    for wrong in (rounds[:1], rounds[::-1]):
        with pytest.raises(DataError, match="these are no reports by unary-encoding of 4, 16 bins"):
            Reported.of_levels(statistic, wrong)
    assert isinstance(rounds[0].reports, LocalReports)
