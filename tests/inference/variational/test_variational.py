"""Doubly stochastic variational inference: its gradients, its schedule, its results without noise, and how it ends."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from exact_rounds import ExactRounds
from sklearn.linear_model import LogisticRegression

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.errors import NoAggregate
from dca_proto.jobs.job import JobTerms
from dca_proto.statistics import base
from dca_proto.statistics.model_gradient import ModelGradient
from dca_proto.testing import seeded
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.errors import DataError
from inference.models.coefficients import IDENTITY, LOGIT, Coefficients
from inference.models.expected import probability, probability_square
from inference.models.logistic.job import score_on
from inference.models.scores import area_under_curve, log_likelihood
from inference.problem import Problem, Schema
from inference.rounds import Job, run
from inference.variational import mean_field
from inference.variational.mean_field import noise_sd
from inference.variational.mean_field_job import VariationalSettings, variational_inference
from inference.variational.models import BERNOULLI, STANDARDISED, Model, gaussian_prior, generalised_linear
from inference.variational.progress import GAINED, Iteration, OnProgress
from inference.variational.schedule import ITERATIONS_MAX, ITERATIONS_MIN, schedule, signal_to_noise

SCHEMA = Schema(("a", "b"), "y", {"a": Interval(0, 10), "b": Interval(-3, 3), "y": Interval(0, 1)})
EXACT = VariationalSettings(epochs=300, clip=1e3, rate=1.0)


def people(n: int, seed: int) -> Problem:
    """Rows whose log odds are (a - 5) - 2b."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(5, 1.5, n).clip(0, 10), rng.normal(0.3, 0.8, n).clip(-3, 3)])
    y = rng.random(n) < 1 / (1 + np.exp(-(X[:, 0] - 5 - 2 * X[:, 1])))
    return Problem("people", SCHEMA, X, y.astype(float))


def exact(problem: Problem, **changes: object) -> ExactRounds:
    return ExactRounds(problem.rows, problem.schema.columns, **changes)


def job(
    seed: int = 0,
    settings: VariationalSettings = EXACT,
    schema: Schema = SCHEMA,
    family: str = BERNOULLI,
    *,
    held_out: Problem | None = None,
    on_progress: OnProgress | None = None,
    residual_variance: float = 1.0,
    **prior: object,
) -> Job[Coefficients]:
    """Variational inference without a pilot."""
    model = generalised_linear(schema, family, residual_variance=residual_variance, **prior)
    score = None if held_out is None else score_on(held_out)
    rng = np.random.default_rng(seed)
    fit = yield from variational_inference(
        schema, model, rng=rng, settings=settings, score=score, on_progress=on_progress
    )
    link = LOGIT if family == BERNOULLI else IDENTITY
    return Coefficients(**{**vars(fit), "link": link, "residual_variance": residual_variance})


# The gradients


def quadratic() -> tuple[np.ndarray, np.ndarray]:
    """Precision H and mode of a Gaussian log joint with strong correlations."""
    return np.array([[40.0, 20.0, 0.0], [20.0, 30.0, -5.0], [0.0, -5.0, 10.0]]), np.array([1.0, -0.5, 2.0])


def test_gradients_are_those_of_the_bound() -> None:
    """Of m and ρ, averaged over draws, against finite differences of the bound of a quadratic log joint, which is
    known.

    The mean of 20,000 draws is compared at 5 standard errors: false alarms below 1e-5.
    """
    H, mode = quadratic()
    m, rho = np.array([0.7, 0.1, 1.0]), np.log([0.2, 0.1, 0.4])

    def bound(m: np.ndarray, rho: np.ndarray) -> float:
        return float(-0.5 * ((m - mode) @ H @ (m - mode) + np.diag(H) @ np.exp(2 * rho)) + rho.sum())

    rng, of_mean, of_rho = np.random.default_rng(1), [], []
    start = mean_field.init(np.exp(rho), m)
    for _ in range(20_000):
        theta, state = mean_field.propose(start, rng)
        g = -H @ (theta - mode)
        of_mean.append(g)
        of_rho.append(mean_field.spread_gradient(state, g))
    for estimates, moved in ((of_mean, lambda e: (m + e, rho)), (of_rho, lambda e: (m, rho + e))):
        difference = [(bound(*moved(e)) - bound(*moved(-e))) / 2e-4 for e in 1e-4 * np.eye(3)]
        error = np.std(estimates, axis=0) / np.sqrt(len(estimates))
        assert np.all(np.abs(np.mean(estimates, axis=0) - difference) < 5 * error)


@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_the_gradient_of_the_spread_is_unbiased_at_both_draws_of_a_pair(before: int) -> None:
    """After iterations that do not move: on a quadratic, ∇_ρ L = 1 - s² H_jj.

    What is taken off g must not depend on the draw, nor on its negative. The mean of 800 runs is compared at 5 standard
    errors: false alarms below 1e-5.
    """
    H, mode = quadratic()
    sd, rng, found = np.array([0.2, 0.1, 0.4]), np.random.default_rng(1), []
    for _ in range(800):
        state = mean_field.init(sd, np.array([0.7, 0.1, 1.0]))
        for t in range(before + 1):
            theta, state = mean_field.propose(state, rng)
            g = -H @ (theta - mode)
            if t < before:
                state = mean_field.step(state, g, noise=0.0, rate=1.0, left=0.0)
        found.append(mean_field.spread_gradient(state, g))
    error = np.std(found, axis=0) / np.sqrt(len(found))
    assert np.all(np.abs(np.mean(found, axis=0) - (1 - sd**2 * np.diag(H))) < 5 * error)


def test_draws_come_in_antithetic_pairs() -> None:
    rng, state = np.random.default_rng(1), mean_field.init(np.ones(3))
    draws = []
    for _ in range(4):
        theta, state = mean_field.propose(state, rng)
        draws.append(theta - state.mean)
        state = state._replace(iteration=state.iteration + 1)
    assert np.array_equal(draws[0], -draws[1])
    assert np.array_equal(draws[2], -draws[3])
    assert not np.array_equal(draws[0], draws[2])


def climb(
    L: int, noise: float = 0.0, seed: int = 1, curvature: float | None = None
) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean and s after L iterations on the quadratic, averaged over the last 30 %, and the noise that is reported.

    With a curvature it is the same in all directions.
    """
    H, mode = quadratic()
    H = H if curvature is None else curvature * np.eye(3)
    rng, state = np.random.default_rng(seed), mean_field.init(np.full(3, 0.3))
    means, spreads, rates = [], [], []
    for t in range(L):
        theta, state = mean_field.propose(state, rng)
        g = -H @ (theta - mode) + noise * rng.standard_normal(3)
        state = mean_field.step(state, g, noise=noise, rate=0.5, left=1 - t / L)
        means.append(state.mean)
        spreads.append(state.log_sd)
        rates.append(state.rate)
    last = round(0.3 * L)
    spread = np.exp(np.mean(spreads[-last:], axis=0))
    return np.mean(means[-last:], axis=0), spread, noise_sd(rates, [noise] * L, last, curvature or 0.0)


def test_a_conjugate_gaussian_model_gets_its_mean_field_posterior() -> None:
    """The optimum is known: m is the mode, s_j = 1/√H_jj. The draws ξ are random, so s is only near it."""
    H, mode = quadratic()
    mean, spread, noise = climb(2000)
    np.testing.assert_allclose(mean, mode, atol=0.01)
    np.testing.assert_allclose(spread, np.diag(H) ** -0.5, rtol=0.05)
    assert noise == 0.0


def test_the_reported_noise_equals_the_observed_noise() -> None:
    """200 repeats of 3 coordinates: the standard deviation of 600 numbers is off by 15 % in one of 10,000 tries."""
    means, reported = zip(
        *((mean, sd) for mean, _, sd in (climb(30, 20.0, seed, curvature=30.0) for seed in range(200))), strict=True
    )
    assert np.std(means, axis=0).mean() == pytest.approx(np.mean(reported), rel=0.15)


def test_the_reported_noise_is_exact_where_nothing_draws_it_back() -> None:
    """A flat log joint: 400 repeats of 10 fixed rates; a standard deviation of 400 x 5 numbers is off by 10 % never."""
    rng, rates, found = np.random.default_rng(1), np.linspace(1.0, 0.1, 10), []
    for _ in range(400):
        u, m, iterates = np.zeros(5), np.zeros(5), []
        for a in rates:
            u = mean_field.MOMENTUM * u + (1 - mean_field.MOMENTUM) * 2.0 * rng.standard_normal(5)
            m = m + a * u
            iterates.append(m)
        found.append(np.mean(iterates[-3:], axis=0))
    assert np.std(found) == pytest.approx(noise_sd(list(rates), [2.0] * 10, 3, 0.0), rel=0.1)


def test_noise_does_not_make_the_spread_diverge() -> None:
    """At a hundred times the signal of (2) s stays where it started, within a factor of two."""
    _, spread, _ = climb(50, 300.0)
    assert np.all((spread > 0.15) & (spread < 0.6))


# The schedule


def test_the_schedule_follows_its_formula() -> None:
    n, r, d = 440, 1.15, 31
    assert signal_to_noise(n, n, r, d) == pytest.approx(n / (2 * r * math.sqrt(d)))
    found = schedule(n, r, d, 0.9)
    assert found.epochs == found.iterations == math.ceil(n / (2 * r * math.sqrt(d)))
    assert found.share * found.epochs == pytest.approx(0.9)


def test_the_schedule_has_limits() -> None:
    assert schedule(440, 1e3, 31, 0.9).iterations == ITERATIONS_MIN
    assert schedule(440, 0.0, 31, 0.9).iterations == ITERATIONS_MAX
    assert schedule(440, 1.0, 31, 0.9, epochs=7) == schedule(440, 1e-9, 31, 0.9, epochs=7)


@pytest.mark.parametrize(("n", "batch"), [(440, 110), (440, 100), (1000, 3), (7, 7), (11, 4)])
def test_no_client_is_planned_into_more_rounds_than_its_budget_holds(n: int, batch: int) -> None:
    """Batches of the least used: a client is in at most ⌈L B/N⌉ rounds, and E shares are what is left."""
    for epochs in (None, 1, 5):
        found = schedule(n, 1.0, 10, 0.9, epochs=epochs, batch=batch)
        assert math.ceil(found.iterations * batch / n) * found.share <= 0.9 * (1 + 1e-12)
        assert found.iterations >= 1


def test_all_clients_are_invited_when_no_more_than_a_batch_came() -> None:
    """Not refused: a round took place, and is paid for."""
    problem = people(60, 1)
    terms = JobTerms(epsilon=4.0, delta=1e-5, clients=60, tolerate=6, computes=(bytes(16), bytes([1]) * 16))
    rounds = IdealSwarm(problem.rows, SCHEMA.columns, terms, absent=[frozenset({1, 2})], random=seeded("few"))
    fit = run(job(settings=VariationalSettings(epochs=3, batch=59)), rounds)
    assert (fit.contributors, fit.iterations) == (58, 3)
    with pytest.raises(DataError, match="a batch of 61 clients was requested and 60 are available"):
        run(job(settings=VariationalSettings(epochs=3, batch=61)), rounds)


def test_a_batch_of_more_than_everybody_is_refused() -> None:
    with pytest.raises(DataError, match="a batch of 8 clients was requested and 7 are available"):
        schedule(7, 1.0, 3, 0.9, batch=8)


@pytest.mark.parametrize(
    ("name", "value"), [("epochs", 0), ("batch", -1), ("clip", 0.0), ("rate", -1.0), ("averaged", 2.0)]
)
def test_settings_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(DataError, match=name):
        VariationalSettings(**{name: value})


# Models without noise


def test_logistic_regression_without_noise_is_that_of_scikit_learn() -> None:
    """The same prior; Gaussian approximation and mode differ by less than 0.15 posterior standard deviations."""
    problem = people(2000, 1)
    fit = run(job(), exact(problem))
    z = fit.columns.z(problem.X)
    theirs = LogisticRegression(C=4.0).fit(z, problem.y)  # prior N(0, 2²)
    assert np.all(np.abs(fit.mean[1:] - theirs.coef_[0]) < 0.15 * fit.sd[1:])
    p = theirs.predict_proba(z)[:, 1]
    precision = np.einsum("i,ij,ij->j", p * (1 - p), z, z)
    np.testing.assert_allclose(fit.sd[1:], precision**-0.5, rtol=0.25)  # it hangs on the draws ξ
    np.testing.assert_allclose(fit.coefficients, [1.0, -2.0], atol=0.3)
    assert fit.iterations == 300
    assert fit.stopped == ""


def test_linear_regression_without_noise_is_least_squares() -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(0, 1, (1000, 2)).clip(-3, 3) + np.array([5, 0])
    schema = Schema(("a", "b"), "y", {"a": Interval(0, 10), "b": Interval(-3, 3), "y": Interval(-40, 60)})
    problem = Problem("line", schema, X, 10 + 2 * X[:, 0] - 5 * X[:, 1] + rng.normal(0, 3, 1000))
    fit = run(job(schema=schema, family="normal", residual_variance=0.25), exact(problem))
    least = np.linalg.lstsq(np.column_stack([np.ones(1000), X]), problem.y, rcond=None)[0]
    np.testing.assert_allclose(np.r_[fit.intercept, fit.coefficients], least, rtol=0.03, atol=0.1)
    mean, sd = fit.predict(X)
    assert np.sqrt(np.mean((mean - problem.y) ** 2)) == pytest.approx(3, rel=0.1)
    assert sd.mean() == pytest.approx(3, rel=0.15)  # a quarter of the target's variance, as above


class LocationGradient(ModelGradient, frozen=True, kw_only=True):
    """The middle of column y, whose errors have Student's t distribution."""

    name = "test-student-location"
    degrees: float

    def gradient(self, theta: np.ndarray, rows: np.ndarray) -> np.ndarray:
        residual = rows[:, -1:] - theta
        return (self.degrees + 1) * residual / (self.degrees + residual**2)


def test_a_users_own_model_learns_from_its_registered_statistic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mode of the same model, found by a grid; outliers of a tenth of the rows do not move it far."""
    monkeypatch.setattr(base, "_REGISTRY", {**base._REGISTRY, LocationGradient.name: LocationGradient})
    rng = np.random.default_rng(1)
    y = np.r_[rng.normal(0.4, 0.05, 900), rng.uniform(0.9, 1.0, 100)]
    rounds = ExactRounds(np.column_stack([rng.normal(5, 1, (1000, 2)), y]), SCHEMA.columns)
    model = Model(LocationGradient.name, ("location",), gaussian_prior(2.0), {"degrees": 2.0}, target=STANDARDISED)
    learning = variational_inference(SCHEMA, model, rng=rng, settings=VariationalSettings(epochs=100, clip=10.0))
    fit = run(learning, rounds)
    z = np.clip((y - fit.columns.centre[-1]) / fit.columns.scale[-1], -4, 4)
    grid = np.linspace(-1, 1, 2001)
    logs = -1.5 * np.log1p((z - grid[:, None]) ** 2 / 2).sum(axis=1) - grid**2 / 8
    assert abs(fit.mean[0] - grid[logs.argmax()]) < fit.sd[0]
    assert fit.sample(rng, 2, 10)["theta"].shape == (2, 10, 1)


def test_a_users_own_model_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting times with an exponential law, in their own units, through the ideal functionality."""
    jax = pytest.importorskip("jax")
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))
    rng = np.random.default_rng(1)
    X = np.column_stack([rng.normal(5, 1.5, 2000).clip(0, 10), rng.normal(0.3, 0.8, 2000).clip(-3, 3)])
    y = rng.exponential(np.exp(-(1.0 + 0.2 * X[:, 0] - 0.5 * X[:, 1])))

    @base.register
    class Waiting(ModelGradient, frozen=True, kw_only=True):
        name = "waiting"

        def log_density(self, theta: Any, rows: Any) -> Any:
            log_rate = theta[0] + rows[:, :-1] @ theta[1:]
            return log_rate - rows[:, -1] * jax.numpy.exp(log_rate)

    model = Model("waiting", ("intercept", *SCHEMA.features), gaussian_prior(2.0))
    waiting = variational_inference(SCHEMA, model, rng=rng, settings=VariationalSettings(clip=4.0))
    fit = run(waiting, swarm(Problem("line", SCHEMA, X, y.clip(0, 1)), 8.0))
    intercept, *slopes = fit.columns.in_own_units(fit.mean)
    assert intercept == pytest.approx(1.0, abs=0.3)
    np.testing.assert_allclose(slopes, [0.2, -0.5], atol=0.08)
    assert fit.mean.dtype == np.float64


def test_a_users_own_prior_is_used() -> None:
    tight = gaussian_prior(0.05)
    fit = run(job(settings=VariationalSettings(epochs=100, clip=1e3), prior_gradient=tight), exact(people(200, 1)))
    assert np.abs(fit.mean).max() < 0.2
    with pytest.raises(DataError, match="name each once"):
        Model("gradient", ("a", "a"), tight)
    with pytest.raises(DataError, match="expected a number above 0"):
        gaussian_prior(0.0)
    with pytest.raises(DataError, match="did you mean 'bernoulli'"):
        generalised_linear(SCHEMA, "bernouli")


# With noise


def swarm(problem: Problem, epsilon: float) -> IdealSwarm:
    n = len(problem.y)
    terms = JobTerms(epsilon=epsilon, delta=1e-5, clients=n, tolerate=n // 20, computes=(bytes(16), bytes([1]) * 16))
    return IdealSwarm(problem.rows, SCHEMA.columns, terms, random=seeded("variational"))


@pytest.mark.parametrize("batch", [0, 250])
def test_with_privacy_it_predicts(batch: int) -> None:
    """AUC 0.85 where the truth has 0.89: seeded, so it holds or not; other seeds gave 0.86 to 0.89."""
    problem, test = people(1000, 1), people(1000, 2)
    fit = run(job(settings=VariationalSettings(batch=batch)), swarm(problem, 2.0))
    assert area_under_curve(fit.predict_proba(test.X), test.y > 0.5) > 0.85
    assert fit.private


def test_where_there_is_only_noise_nothing_is_claimed() -> None:
    fit = run(job(settings=VariationalSettings()), exact(people(50, 1), noise=1e4))
    p = fit.predict_proba(people(100, 2).X)
    assert np.all(np.isfinite(p))
    assert np.abs(fit.mean).max() < 4 * fit.sd.max()
    assert fit.sd[0] > 0.3


# How a job goes on and ends


def test_the_requests_of_the_job() -> None:
    rounds = exact(people(100, 1), noise=0.5)
    run(job(settings=VariationalSettings(batch=25)), rounds)
    first, *others = rounds.requests
    assert first.statistic == "phases"
    assert first.batch == 0
    assert {one.statistic for one in others} == {"gradient"}
    assert {one.batch for one in others} == {25}
    assert first.budget_share + math.ceil(len(others) / 4) * others[0].budget_share <= 1 + 1e-9


def test_it_returns_the_result_so_far_when_the_budget_is_spent() -> None:
    problem = people(200, 1)
    fit = run(job(settings=VariationalSettings(epochs=20)), exact(problem, rounds=8))
    assert fit.stopped == "the account is spent"
    assert fit.iterations == 7
    assert area_under_curve(fit.predict_proba(problem.X), problem.y > 0.5) > 0.8


@pytest.mark.parametrize("rounds", [0, 1])
def test_without_a_single_gradient_there_is_no_result(rounds: int) -> None:
    with pytest.raises(NoAggregate, match="spent"):
        run(job(), exact(people(50, 1), rounds=rounds))


def test_the_same_aggregates_give_the_same_requests_and_result() -> None:
    """What a restart rests on: the job is run again over recorded aggregates."""
    recorded: list[tuple[RoundRequest, NoisyAggregate]] = []
    source = exact(people(100, 1), noise=0.3)
    first, request = job(3, VariationalSettings(epochs=10)), None
    request = next(first)
    try:
        while True:
            recorded.append((request, source.run_round(request)))
            request = first.send(recorded[-1][1])
    except StopIteration as end:
        once = end.value
    again = job(3, VariationalSettings(epochs=10))
    request = next(again)
    for (previous, answer), (expected, _) in pairwise(recorded):
        assert request == previous
        request = again.send(answer)
        assert request == expected
    with pytest.raises(StopIteration) as ended:
        again.send(recorded[-1][1])
    assert np.array_equal(ended.value.value.mean, once.mean)


def test_progress_is_reported_with_a_score() -> None:
    problem = people(200, 1)
    iterations: list[Iteration] = []
    run(
        job(settings=VariationalSettings(epochs=12), held_out=people(200, 2), on_progress=iterations.append),
        exact(problem),
    )
    assert [one.number for one in iterations] == list(range(1, 13))
    assert {(one.total, one.name) for one in iterations} == {(12, "held-out AUC")}
    assert iterations[-1].value > 0.8


def test_rows_of_one_class_to_score_on_are_refused_before_the_first_round() -> None:
    ones = people(20, 2)
    with pytest.raises(DataError, match="0 of the other"):
        next(job(held_out=ones.take(np.flatnonzero(ones.y))))


def test_progress_is_the_gain_of_the_bound_without_rows_to_score_on() -> None:
    iterations: list[Iteration] = []
    settings = VariationalSettings(epochs=40, clip=1e3)
    run(job(settings=settings, on_progress=iterations.append), exact(people(200, 1)))
    assert (iterations[0].name, iterations[0].value) == (GAINED, 0.0)
    assert iterations[-1].value > 10  # at most what it gained: some 50 nats, ln 2 a row at first and 0.45 at the end


# Predictions


def test_probabilities_are_averaged_over_the_posterior() -> None:
    mean, sd = np.array([0.0, 1.0, -3.0]), np.array([2.0, 1.5, 0.5])
    draws = 1 / (1 + np.exp(-(mean + sd * np.random.default_rng(1).standard_normal((200_000, 3)))))
    np.testing.assert_allclose(probability(mean, sd**2), draws.mean(axis=0), atol=0.02)
    np.testing.assert_allclose(probability_square(mean, sd**2), (draws**2).mean(axis=0), atol=0.005)


def test_draws_have_the_posteriors_moments() -> None:
    fit = run(job(settings=VariationalSettings(epochs=30)), exact(people(200, 1), noise=0.2))
    draws = fit.sample(np.random.default_rng(1), 4, 2000)
    assert draws["intercept"].shape == (4, 2000)
    assert draws["coefficients"].shape == (4, 2000, 2)
    np.testing.assert_allclose(draws["coefficients"].std(axis=(0, 1)), fit.coefficient_sd, rtol=0.05)
    assert draws["intercept"].std() == pytest.approx(fit.intercept_sd, rel=0.05)
    pytest.importorskip("arviz")
    data = fit.posterior().inference_data(np.random.default_rng(1), chains=4, draws=2000).posterior
    np.testing.assert_array_equal(data["coefficients"].sel(feature="b"), draws["coefficients"][..., 1])
    p, sd = fit.predict(people(10, 2).X)
    assert np.all((p > 0) & (p < 1) & (sd > 0) & (sd < 0.5))


def test_scores() -> None:
    assert area_under_curve(np.array([1.0, 2.0, 2.0, 3.0]), np.array([False, False, True, True])) == 0.875
    with pytest.raises(DataError, match="0 rows of one class"):
        area_under_curve(np.ones(3), np.zeros(3, bool))
    assert log_likelihood(np.array([0.5, 0.25]), np.array([True, False])) == pytest.approx(math.log(0.375) / 2)
