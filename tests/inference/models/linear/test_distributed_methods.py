"""Node releases in, a regression in the columns' own units out: by NUTS, whose oracle is a textbook's model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.jobs.job import JobTerms
from dca_proto.protocol.wire.kinds import NodeRelease
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.draws import mixing
from inference.errors import DataError
from inference.mcmc.run import Options
from inference.models.linear.nodes import NodeStatistics, Prior, fit
from inference.models.linear.nodes.methods import fit_fast, rows_least, sample
from inference.problem import Schema

SCHEMA = Schema(
    ("age", "bmi"), "risk", {"age": Interval(20, 80), "bmi": Interval(15, 45), "risk": Interval(0, 100)}
)  # fmt: skip
SLOPES, OFFSET, RESIDUAL = np.array([0.6, 1.5]), -20.0, 4.0
PARAMETERS = {"columns": ["age", "bmi", "risk"], "centre": [50.0, 30.0, 50.0], "scale": [30.0, 15.0, 50.0]}
PARAMETERS |= {"bound": [1.0, 1.0, 1.0]}
CONSTANT = {"intercept": True, "intercept_bound": 1 / 3}


def tables(sizes: tuple[int, ...] = (800, 1200, 1000)) -> tuple[list[np.ndarray], np.ndarray]:
    """Tables of rows with the target last, and rows to test on."""
    rng = np.random.default_rng(2)
    X = np.column_stack([rng.normal(50, 9, sum(sizes) + 500), rng.normal(28, 4, sum(sizes) + 500)])
    rows = np.column_stack([X, OFFSET + X @ SLOPES + rng.normal(0, RESIDUAL, len(X))])
    return np.split(rows[500:], np.cumsum(sizes)[:-1]), rows[:500]


def released(epsilon: float = 5.0, **more: Any) -> NoisyAggregate:
    rows, _ = tables()
    terms = JobTerms(epsilon=epsilon, delta=1e-6, clients=3, tolerate=0, computes=())
    swarm = IdealSwarm(rows, list(SCHEMA.columns), terms, random=np.random.default_rng(3).bytes)
    return swarm.run_round(RoundRequest("regression", {**PARAMETERS, **more}, rows_max=2000, kind=NodeRelease()))


def observed(J: int = 2, d: int = 2, noise: float = 1.0, rows: int = 200, **changes: Any) -> NodeStatistics:
    rng = np.random.default_rng(1)
    x = rng.normal(0, 1, (J, rows, d)) @ np.array([[1.0, 0.4], [0.0, 0.8]])[:d, :d]
    y = x @ np.linspace(0.5, -0.5, d) + rng.normal(0, 0.7, (J, rows))
    E = np.triu(rng.normal(0, noise, (J, d, d)))
    S = np.swapaxes(x, 1, 2) @ x + E + np.swapaxes(np.triu(E, 1), 1, 2)
    z = (y[:, None] @ x)[:, 0] + rng.normal(0, noise, (J, d))
    one, none = np.ones(J), np.full(J, np.nan)
    return NodeStatistics(S, z, rows * one, noise**2 * one, noise**2 * one, none, none)._replace(**changes)


@pytest.mark.parametrize(
    ("statistics", "message"),
    [
        (observed(variance_S=np.array([1.0, 0.0])), "a variance of noise is 0, and method 'normal' models noise"),
        (observed(variance_z=np.zeros(2)), "take 'fast'"),
        (observed(n=np.zeros(2)), "node 1 has 0 rows"),
        (observed(S=np.tile(np.diag([50.0, -30.0]), (2, 1, 1))), "S of node 1 has the eigenvalue -30"),
    ],
)
def test_statistics_that_are_not_for_the_model_are_refused(statistics: NodeStatistics, message: str) -> None:
    with pytest.raises(DataError, match=message):
        sample(statistics, Prior.default(2), Options())


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(DataError, match=r"prior's m has the shape \(3,\); expected \(2,\)"):
        sample(observed(), Prior.default(3), Options())
    with pytest.raises(DataError, match=r"method 'norml' is unknown .did you mean 'normal'"):
        rows_least("norml", 3)


def test_the_closed_form_is_in_own_units() -> None:
    """Seeded; 3000 rows at ε = 5: slopes within 4 posterior standard deviations, predictions near the residuals."""
    _, test = tables()
    found = fit_fast(released(**CONSTANT), SCHEMA)
    np.testing.assert_allclose(found.coefficients, SLOPES, atol=4 * found.coefficient_sd.max())
    assert abs(found.intercept - OFFSET) < 4 * found.intercept_sd
    assert np.sqrt(np.mean((found.predict(test[:, :2])[0] - test[:, 2]) ** 2)) < 1.15 * RESIDUAL
    assert (found.contributors, found.repair) == (3000, None)


@pytest.mark.long
def test_nuts_learns_from_node_releases_in_own_units() -> None:
    """As of the closed form; and the features' means within 6 posterior standard deviations of 50 and 28."""
    _, test = tables()
    found = fit(released(**CONSTANT), schema=SCHEMA, warmup=500, draws=500)
    np.testing.assert_allclose(
        found.predictor.linear.coefficients, SLOPES, atol=4 * found.predictor.linear.coefficient_sd.max()
    )
    assert abs(found.predictor.linear.intercept - OFFSET) < 4 * found.predictor.linear.intercept_sd
    mean, sd = found.predict(test[:, :2])
    assert np.sqrt(np.mean((mean - test[:, 2]) ** 2)) < 1.15 * RESIDUAL
    assert 0.7 * RESIDUAL < sd.mean() < 50 / 3, "sums without the target's squares hardly determine the residuals"
    assert np.all(np.abs(found.mean["feature_mean"] - [50, 28]) < 6 * found.sd["feature_mean"])
    assert (found.attrs["method"], found.attrs["nodes"], found.attrs["contributors"]) == ("normal", 3, 3000)
    assert found.warnings == []
    assert np.all(found.contraction["coefficients"] > 0.5)
    assert list(found.inference_data().posterior["feature"].values) == ["age", "bmi"]
    assert set(found.prior) == set(found.draws)


@pytest.mark.long
@pytest.mark.parametrize("noise", [3.0, 40.0])
def test_nuts_has_the_posterior_of_the_textbooks_model(noise: float) -> None:
    """Means of all and standard deviations of θ within 5 standard errors of both: false alarm below 1e-5."""
    from inference.mcmc import nuts
    from papers.mcmc2023.efficiency import textbook

    statistics, prior = observed(noise=noise), Prior.default(2, 1.0)
    own = sample(statistics, prior, Options(warmup=500, draws=1000)).draws
    start = {
        "L": np.linalg.cholesky(np.stack([200 * np.eye(2)] * 2)),
        "precision": np.eye(2),
    }
    names = ("theta", "sigma_y2", "Sigma_x")
    data = {"observed": statistics, "prior": prior}
    other = nuts.sample(textbook, data, Options(), start, keep=names).draws
    for name, transform in (("theta", np.asarray), ("sigma_y2", np.log), ("Sigma_x", _terms)):
        both = [np.asarray(transform(draws[name])) for draws in (own, other)]
        bulks = [np.array([one.bulk for one in mixing({name: array}, {})]) for array in both]
        assert min(bulk.min() for bulk in bulks) > 200
        means, sds = ([getattr(array, of)(axis=(0, 1)) for array in both] for of in ("mean", "std"))
        error = np.sqrt(sum(sd**2 / bulk for sd, bulk in zip(sds, bulks, strict=True)))
        assert np.all(np.abs(means[0] - means[1]) < 5 * error), name
        if name == "theta":
            slack = 5 * np.sqrt(sum(1 / (2 * bulk) for bulk in bulks))
            assert np.all(np.abs(np.log(sds[0] / sds[1])) < 2 * slack)


def _terms(Sigma: np.ndarray) -> np.ndarray:
    """ln of the variances, and the covariance over them."""
    scale = np.sqrt(Sigma[..., 0, 0] * Sigma[..., 1, 1])
    return np.stack([np.log(Sigma[..., 0, 0]), np.log(Sigma[..., 1, 1]), Sigma[..., 0, 1] / scale], axis=-1)
