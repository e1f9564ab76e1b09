"""Variational Bayes for a Gaussian mixture: plain coordinate ascent without noise, and sane with much of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from exact_rounds import ExactRounds
from sklearn.mixture import BayesianGaussianMixture

from dca_proto.jobs.job import JobTerms
from dca_proto.statistics import resolve
from dca_proto.statistics.contribution import client_sensitivity
from dca_proto.testing import seeded
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.errors import DataError
from inference.jobs.base import Conditions
from inference.jobs.settings import settings_from
from inference.models.mixture import model as mixture
from inference.models.mixture.job import ITERATIONS_MAX, Mixture, MixtureLaw, Settings, gaussian_mixture
from inference.models.mixture.model import NO_NOISE, PRIOR, Components, Noise, Statistics
from inference.problem import Problem, Schema
from inference.rounds import run
from inference.simplex import nearest_on_simplex
from inference.variational.progress import GAINED, Iteration

SCHEMA = Schema(("a", "b"), "t", {"a": Interval(-8, 8), "b": Interval(-5, 9), "t": Interval(0, 1)})
MEANS, SDS, WEIGHTS = np.array([[-3, 0], [3, 1], [0, 4.0]]), np.array([[1, 0.7], [0.6, 1], [0.8, 0.8]]), [0.5, 0.3, 0.2]
NEAR, START = [[-2.0, 0.0], [2.0, 0.0], [0.0, 3.0]], "-2,0; 2,0; 0,3"


def points(n: int, seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    of = rng.choice(3, n, p=WEIGHTS)
    return Problem("points", SCHEMA, MEANS[of] + SDS[of] * rng.standard_normal((n, 2)), np.zeros(n))


def statistics(z: np.ndarray, found: Components) -> tuple[Statistics, float]:
    """Exact ones at a posterior, and F = Σ ln Σ_k ρ_nk."""
    log_weights, means, precisions = mixture.natural(found)
    logs = log_weights - ((z[:, None] - means) ** 2 * precisions).sum(axis=2) / 2
    largest = logs.max(axis=1, keepdims=True)
    r = np.exp(logs - largest)
    total = r.sum(axis=1, keepdims=True)
    r = r / total
    return Statistics(r.sum(axis=0), r.T @ z, r.T @ z**2), float((largest + np.log(total)).sum())


def test_coordinate_ascent_never_lowers_the_bound() -> None:
    """Without noise and at ρ = 1: L = F - KL rises to its maximum, and the gain brackets each rise (F is convex)."""
    z = points(300, 1).X / 8
    state = mixture.init(np.random.default_rng(1).normal(0, 0.4, (3, 2)), 300, PRIOR)
    bounds = []
    for _t in range(60):
        before = state.posterior
        found, data = statistics(z, before)
        bounds.append(data - mixture.divergence(before, PRIOR))
        state = mixture.step(state, found, NO_NOISE, 300, 1.0, PRIOR)
        fresh, data_after = statistics(z, state.posterior)
        rise = data_after - mixture.divergence(state.posterior, PRIOR) - bounds[-1]
        assert mixture.gain(before, state.posterior, found, PRIOR) <= rise + 1e-8
        assert rise <= mixture.gain(before, state.posterior, fresh, PRIOR) + 1e-8
    assert np.all(np.diff(bounds) > -1e-8)
    assert bounds[-1] - bounds[-2] < 1e-2 < bounds[-1] - bounds[0]


def test_a_fixed_point_is_that_of_scikit_learn() -> None:
    """The same model: the prior on precisions and means, started at the same place (sklearn counts ν = 2a)."""
    z = points(1500, 1).X / 8
    start = np.array(NEAR) / 8
    theirs = BayesianGaussianMixture(
        n_components=3, covariance_type="diag", weight_concentration_prior_type="dirichlet_distribution",
        weight_concentration_prior=PRIOR.alpha, mean_precision_prior=PRIOR.beta, mean_prior=np.zeros(2),
        degrees_of_freedom_prior=2 * PRIOR.shape, covariance_prior=np.full(2, 2 * PRIOR.rate),
        reg_covar=0.0, tol=1e-12, max_iter=500, init_params="random_from_data", random_state=3,
    ).fit(z)  # fmt: skip
    state = mixture.init(start, len(z), PRIOR)
    for _ in range(200):
        state = mixture.step(state, statistics(z, state.posterior)[0], NO_NOISE, len(z), 1.0, PRIOR)
    ours, other = np.argsort(state.posterior.alpha), np.argsort(theirs.weight_concentration_)
    np.testing.assert_allclose(state.posterior.alpha[ours], theirs.weight_concentration_[other], rtol=0.03)
    np.testing.assert_allclose(state.posterior.mean[ours], theirs.means_[other], atol=0.01)


@pytest.mark.parametrize("d", [1, 2, 10])
def test_the_weights_are_the_largest_that_cost_nothing(d: int) -> None:
    """The sensitivity is that of the sums alone, and more with the next weight of counts."""
    names, ones = [f"x{j}" for j in range(d)], [1.0] * d
    parameters = {"columns": names, "centre": [0.0] * d, "scale": ones, "bound": ones, "offsets": [mixture.OFFSET] * d}
    parameters |= {"log_weights": [0.0, 0.0], "means": [[0.0] * d] * 2, "precisions": [ones] * 2}
    of_count, *others = mixture.weights(d)
    found = [
        client_sensitivity(resolve("mixture", parameters | {"weights": [w, *others]}), 0, 24).l2 * 2.0**-24
        for w in (of_count, of_count + 1)
    ]
    assert found[0] == pytest.approx(2 * mixture.SUM_WEIGHT * np.sqrt(d), rel=1e-6)
    assert found[1] > found[0] * (1 + 1e-6)


def test_running_averages_know_their_noise() -> None:
    state = mixture.init(np.zeros((2, 1)), 10, PRIOR)
    found = Statistics(np.array([6.0, 4.0]), np.ones((2, 1)), np.ones((2, 1)) * 2)
    for t in range(4):
        state = mixture.step(state, found, Noise(1.0, 2.0, 3.0), 10, 1 / (1 + t), PRIOR)
    assert state.noise == pytest.approx((1 / 4, 2 / 4, 3 / 4))
    np.testing.assert_allclose(state.statistics.counts, [6, 4])


def test_counts_go_to_the_nearest_possible_ones() -> None:
    np.testing.assert_allclose(nearest_on_simplex(np.array([90.0, -30.0, 20.0]), 100), [85, 0, 15])
    found = nearest_on_simplex(np.array([120.0, -30.0, 10.0]), 100)
    assert found.min() >= 0
    assert found.sum() == pytest.approx(100)
    np.testing.assert_allclose(nearest_on_simplex(np.array([60.0, 40.0]), 100), [60, 40])
    rows = np.random.default_rng(1).normal(30, 60, (5, 4))
    np.testing.assert_array_equal(nearest_on_simplex(rows, 100), [nearest_on_simplex(row, 100) for row in rows])


def test_negative_counts_and_squares_survive() -> None:
    """Whatever the noise makes of them, the posterior is a proper one."""
    rng = np.random.default_rng(1)
    state, negative = mixture.init(rng.normal(0, 0.4, (4, 3)), 50, PRIOR), 0
    for t in range(50):
        noisy = Statistics(*(500 * rng.standard_normal(shape) for shape in ((4,), (4, 3), (4, 3))))
        state = mixture.step(state, noisy, Noise(*3 * (500.0**2,)), 50, (t + 1) ** -0.7, PRIOR)
        negative += int((noisy.counts < 0).sum())
        q = state.posterior
        assert q.alpha.min() > 0
        assert q.rate.min() > 0
        assert np.isfinite(mixture.natural(q).log_weights).all()
        assert np.abs(q.mean).max() < 10
    assert negative > 50


def test_repair_changes_nothing_without_noise() -> None:
    z = points(100, 1).X / 8
    found, _ = statistics(z, mixture.init(np.array(NEAR) / 8, 100, PRIOR).posterior)
    for before, after in zip(found, mixture.repair(found, NO_NOISE, 100, PRIOR), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-9, atol=1e-12)


def swarm(problem: Problem, epsilon: float) -> IdealSwarm:
    n = len(problem.y)
    terms = JobTerms(epsilon=epsilon, delta=1e-5, clients=n, tolerate=n // 20, computes=(bytes(16), bytes([1]) * 16))
    return IdealSwarm(problem.rows, SCHEMA.columns, terms, random=seeded("mixture"))


def ascent(problem: Problem, fit: MixtureLaw, iterations: int) -> Components:
    """Plain coordinate ascent without noise, from the same start, on the same standardised rows."""
    z = fit.columns.z(problem.X)
    state = mixture.init(fit.columns.z(np.array(NEAR)), len(z), PRIOR)
    for _ in range(iterations):
        state = mixture.step(state, statistics(z, state.posterior)[0], NO_NOISE, len(z), 1.0, PRIOR)
    return state.posterior


def test_without_noise_the_job_is_coordinate_ascent() -> None:
    """To the precision of the grid that sums are on."""
    problem, settings = points(500, 1), Settings(epochs=20, start=START)
    job = gaussian_mixture(SCHEMA, rng=np.random.default_rng(1), settings=settings)
    fit = run(job, ExactRounds(problem.rows, SCHEMA.columns))
    for ours, plain in zip(fit.law, ascent(problem, fit, 20), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("batch", [0, 500])
def test_with_privacy_it_is_near_coordinate_ascent(batch: int) -> None:
    """From the same start on the same rows, which finds the truth. Seeded."""
    problem, new = points(2000, 1), points(2000, 2).X
    settings = Settings(start=START, batch=batch)
    fit = run(gaussian_mixture(SCHEMA, rng=np.random.default_rng(1), settings=settings), swarm(problem, 10.0))
    plain = replace(fit, law=ascent(problem, fit, 100))
    np.testing.assert_allclose(plain.means, MEANS, atol=0.2)
    np.testing.assert_allclose(fit.means, plain.means, atol=0.4)
    np.testing.assert_allclose(fit.weights, plain.weights, atol=0.04)
    assert fit.log_density(new).mean() > plain.log_density(new).mean() - 0.15
    assert fit.private
    assert fit.stopped == ""
    assert min(fit.noise) > 0
    draws = fit.sample(np.random.default_rng(1), 2, 500)
    assert {name: one.shape for name, one in draws.items()} == {
        "weights": (2, 500, 3), "means": (2, 500, 3, 2), "sds": (2, 500, 3, 2),
    }  # fmt: skip
    np.testing.assert_allclose(draws["means"].std(axis=(0, 1)), fit.mean_sd, rtol=0.15)
    np.testing.assert_allclose(draws["weights"].std(axis=(0, 1)), fit.weight_sd, rtol=0.15)


def test_it_returns_the_result_so_far_when_the_budget_is_spent() -> None:
    rounds = ExactRounds(points(300, 1).rows, SCHEMA.columns, noise=0.1, rounds=5)
    iterations: list[Iteration] = []
    job = gaussian_mixture(SCHEMA, rng=np.random.default_rng(1), on_progress=iterations.append)
    fit = run(job, rounds)
    assert fit.stopped == "the account is spent"
    assert fit.iterations == 4
    assert [one.number for one in iterations] == [1, 2, 3, 4]
    assert (iterations[0].name, iterations[0].value) == (GAINED, 0.0)


def test_the_density_of_rows_beyond_the_bounds_is_not_that_at_the_bounds() -> None:
    """Clients project what they learn from; a score of new rows that did so would flatter the fit."""
    job = gaussian_mixture(SCHEMA, rng=np.random.default_rng(1), settings=Settings(epochs=10, start=START))
    fit = run(job, ExactRounds(points(500, 1).rows, SCHEMA.columns))
    far = fit.log_density(np.array([[-12.0, 0.0], [-16.0, 0.0], [-24.0, 0.0]]))
    assert np.all(np.diff(far) < -1)
    grid = np.stack(np.meshgrid(np.linspace(-20, 20, 161), np.linspace(-20, 20, 161)), axis=-1).reshape(-1, 2)
    assert np.exp(fit.log_density(grid)).sum() * 0.25**2 == pytest.approx(1, abs=1e-3)


def test_progress_is_scored_on_held_out_rows() -> None:
    iterations: list[Iteration] = []
    job = gaussian_mixture(
        SCHEMA,
        rng=np.random.default_rng(1),
        settings=Settings(epochs=15, start=START),
        held_out=points(200, 2),
        on_progress=iterations.append,
    )
    fit = run(job, ExactRounds(points(500, 1).rows, SCHEMA.columns))
    assert iterations[-1].value == pytest.approx(fit.log_density(points(200, 2).X).mean())
    assert iterations[-1].value > iterations[0].value
    assert {one.name for one in iterations} == {"held-out log predictive density"}


def test_the_jobs_settings_take_a_start_and_its_plan_the_limit_of_iterations() -> None:
    named = settings_from(Settings, {"start": START}, "mixture")
    assert named.means == NEAR
    assert Settings().means == []
    with pytest.raises(DataError, match="'start' is 'left', expected numbers"):
        settings_from(Settings, {"start": "left"}, "mixture")
    with pytest.raises(DataError, match="1 means for 3 components"):
        settings_from(Settings, {"start": "1,2"}, "mixture")
    large = Conditions(clients=10**6, tolerate=0, mu=1.0, rng=np.random.default_rng(1))
    assert Mixture().plan(SCHEMA, Settings(), large)[1].rounds == ITERATIONS_MAX


def test_draws_go_to_arviz_by_component_and_column() -> None:
    pytest.importorskip("arviz")
    job = gaussian_mixture(SCHEMA, rng=np.random.default_rng(1), settings=Settings(epochs=2, start=START))
    fit = run(job, ExactRounds(points(100, 1).rows, SCHEMA.columns, noise=0.1))
    data = fit.posterior().inference_data(np.random.default_rng(1), chains=2, draws=10).posterior
    assert data["means"].dims == data["sds"].dims == ("chain", "draw", "component", "column")
    assert data["weights"].shape == (2, 10, 3)
    assert list(data.coords["column"].values) == ["a", "b"]
    assert data.attrs["contributors"] == 100


@pytest.mark.parametrize("wrong", [{"components": 1}, {"start": "0,0"}, {"epochs": 0}, {"std_share": 1.0}], ids=str)
def test_settings_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(DataError, match=next(iter(wrong))):
        Settings(**wrong)


def test_means_of_another_number_of_columns_are_refused() -> None:
    settings = Settings(components=2, start="0;1")
    with pytest.raises(DataError, match="expected 2 numbers in each mean, for the columns a, b"):
        run(gaussian_mixture(SCHEMA, rng=np.random.default_rng(1), settings=settings), swarm(points(100, 1), 2.0))
