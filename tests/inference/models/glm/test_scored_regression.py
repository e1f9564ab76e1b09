"""Poisson and Student-t regression from scores: against densities, other libraries, rows, and other priors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats
from sklearn.linear_model import LinearRegression, PoissonRegressor
from sklearn.utils.estimator_checks import parametrize_with_checks

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.errors import UsageError
from dca_proto.privacy.accounting import mu_of
from dca_proto.statistics import Gradient, resolve
from inference.bounds import Interval
from inference.errors import DataError
from inference.estimators import PrivatePoissonRegression, PrivateRobustRegression
from inference.jobs import find
from inference.jobs.base import Conditions
from inference.jobs.settings import settings_from
from inference.models.coefficients import LOG_MOST
from inference.models.expected import limited
from inference.models.glm.families import Family, Poisson, StudentT, poisson_quantile
from inference.models.glm.job import scored_regression
from inference.models.glm.scored_fit import exact_fit, regression_of_scores
from inference.models.score_rounds import shares
from inference.problem import Problem, Schema
from inference.rounds import run

F = 24
BOX: dict[str, Any] = {"columns": ("a", "b", "y"), "centre": (0, 0, 0), "scale": (1, 1, 1), "bound": (3.0, 3.0, 30.0)}
SLOPES = np.array([0.3, -0.2])
FAMILIES = [Poisson(), StudentT(4.0)]
COUNTS_ARE_LONG = [pytest.param(FAMILIES[0], marks=pytest.mark.long), FAMILIES[1]]


class NoisyRounds:
    """Sums of the registered statistics over rows, with Gaussian noise of the right size: `Rounds` for tests."""

    def __init__(self, rows: np.ndarray, epsilon: float, seed: int = 0) -> None:
        self.rows, self.mu, self.rng = rows, mu_of(epsilon, 1e-5), np.random.default_rng(seed)
        self.requests: list[RoundRequest] = []

    def run_round(self, request: RoundRequest) -> NoisyAggregate:
        self.requests.append(request)
        statistic, n = resolve(request.statistic, request.parameters), len(self.rows)
        sums = np.ldexp(statistic.evaluate(self.rows, F).astype(float).sum(axis=0), -F)
        sensitivity = float(np.ldexp(np.sqrt(float(statistic.stated_sensitivity(F).l2_squared)), -F))
        sd = sensitivity / self.mu / np.sqrt(request.budget_share)
        value = sums + sd * self.rng.standard_normal(sums.size)
        spent = {"epsilon": 1.0, "delta": 1e-5, "mu": 0.1}
        ids = {"round_id": bytes([len(self.requests)]) * 16, "announcement_hash": b"", "contributors_hash": b""}
        return NoisyAggregate(
            value=value, noise_variance=sd**2, statistic=request.statistic, parameters=request.parameters,
            contributors=n, clients=n, n_min=n, colluders=0, mechanism="gaussian", sensitivity=sensitivity,
            relation="replace-one-client", sigma_local=sd, **spent, **ids,
        )  # fmt: skip


def problem(family: Family, n: int, seed: int = 1, *, skewed: bool = False) -> Problem:
    """Rows of the model, features far from their bounds' middle and of unlike scales."""
    rng = np.random.default_rng(seed)
    z = rng.exponential(size=(n, 2)) - 1 if skewed else rng.standard_normal((n, 2))
    X = 3.0 + z * [1.0, 2.0]
    eta = 1.0 + z @ [0.3, -0.4]  # slopes of 0.3 and -0.2
    y = rng.poisson(np.exp(eta)) if family.disperses else eta + 0.5 * rng.standard_t(4, n)
    bounds = {"a": Interval(-4, 12), "b": Interval(-10, 20), "y": Interval(0 if family.disperses else -60, 60)}
    return Problem("made", Schema(("a", "b"), "y", bounds), X, y.astype(float))


def log_density(family: Family, phi: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    u = x @ phi[: x.shape[1]]
    if family.disperses:
        return np.asarray(stats.poisson.logpmf(y, np.exp(u)))
    return np.asarray(stats.t.logpdf((y - u) / np.exp(phi[-1]), 4.0) - phi[-1])


@parametrize_with_checks([PrivatePoissonRegression(), PrivateRobustRegression()])  # no failure is expected
def test_scikit_learns_own_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_the_derivatives_of_the_density(family: Family) -> None:
    rng = np.random.default_rng(0)
    x = np.insert(rng.uniform(-2, 2, (50, 2)), 0, 1.0, axis=1)
    phi, y = np.array([0.4, 0.3, -0.5, -0.2]), rng.poisson(3, 50).astype(float)
    used = phi[:-1] if family.disperses else phi
    numeric = np.column_stack(
        [
            (log_density(family, used + step, x, y) - log_density(family, used - step, x, y)) / 2e-5
            for step in 1e-5 * np.eye(used.size)
        ]
    )
    scores = family.score(phi, x, y)[:, : used.size]
    scale = np.ones(used.size) if family.disperses else np.r_[np.full(3, np.exp(0.2)), 1.0]  # of ∂/∂(θ/σ)
    assert scores * scale == pytest.approx(numeric, abs=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_clients_send_what_the_trainer_simulates(family: Family) -> None:
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.uniform(-2, 2, (40, 2)), rng.poisson(3, 40)])
    phi = np.array([0.4, 0.3, -0.5, 0.2])
    theta = phi[:-1] if family.disperses else phi
    extra = {"dispersion": 0.7, "overdispersion": 0.2} if family.disperses else {}
    statistic = Gradient(**BOX, **family.parameters, **extra, theta=tuple(theta), clip=1e6, information=0.3)
    x = np.insert(rows[:, :-1], 0, 1.0, axis=1)
    i, j = np.triu_indices(3)
    sent = family.sent(phi, x, rows[:, -1], 0.7)
    curved = 0.3 * family.curvature(phi, x)[:, None] * x[:, i] * x[:, j]
    last = sent[:, -1:] if family.disperses else np.empty((40, 0))
    expected = np.concatenate([sent[:, : theta.size], curved, last], axis=1)
    assert np.ldexp(statistic.evaluate(rows, F).astype(float), -F) == pytest.approx(expected, abs=1e-4)
    assert len(statistic.labels()) == statistic.dimension == expected.shape[1]


def test_a_student_score_needs_no_clip() -> None:
    statistic = Gradient(**BOX, family="student", intercept=True, theta=(0.0, 0.0, 0.0, 0.0), clip=1e6)
    rows = np.column_stack([np.zeros((61, 2)), np.linspace(-30, 30, 61)])
    score = np.ldexp(statistic.evaluate(rows, F).astype(float), -F)
    assert np.abs(score[:, 0]).max() == pytest.approx(1.25, abs=0.01)  # (ν + 1)/(2√ν)
    assert abs(score[-1, 0]) < 0.2  # an outlier's is small
    assert score[:, -1].min() == -1
    assert score[:, -1].max() < 4


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"family": "student"}, "theta has 3 values for 3 features; give one for each and one for ln σ"),
        ({"family": "poisson", "theta": (0.0, 300.0, 0.0)}, "a gradient can reach"),
        ({"family": "normal", "dispersion": 1.0}, "dispersion is 1; only 'poisson' takes it"),
        ({"family": "student", "overdispersion": 1.0}, "overdispersion is 1; only 'poisson' takes it"),
        ({"family": "poisson", "information": -1.0}, "information is -1; give a number from 0"),
        ({"family": "student", "degrees": 0.0}, "degrees is 0; give a finite number above 0"),
    ],
)
def test_an_invalid_gradient_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Gradient(**{**BOX, "intercept": True, "theta": (0.0, 0.0, 0.0), "clip": 1.0, **wrong})


def test_poisson_quantiles_are_scipys() -> None:
    rng = np.random.default_rng(0)
    mean, q = np.exp(rng.uniform(-5, 4.6, 4000)), rng.uniform(size=4000)
    assert np.array_equal(poisson_quantile(q, mean), stats.poisson.ppf(q, mean))
    many = np.exp(rng.uniform(4.7, 9, 1000))
    assert np.abs(poisson_quantile(q[:1000], many) - stats.poisson.ppf(q[:1000], many)).max() <= 1


def test_rows_of_counts_of_little_variance_give_scikit_learns_regression() -> None:
    rows = problem(Poisson(), 400)
    counts = poisson_quantile(np.full(400, 0.5), np.exp(1 + rows.X @ [0.4, -0.3]))  # they vary less than Poisson's
    fit = exact_fit(rows.X, counts, Poisson(), prior_sd=1e4)
    other = PoissonRegressor(alpha=0, tol=1e-10, max_iter=1000).fit(rows.X, counts)
    assert fit.spread.mean == 0
    assert fit.coefficients == pytest.approx(other.coef_, abs=1e-5)
    assert fit.intercept == pytest.approx(other.intercept_, abs=1e-3)  # its prior is not flat
    assert fit.predict(rows.X)[0] == pytest.approx(other.predict(rows.X), rel=0.01)


def test_rows_of_counts_give_the_most_likely_negative_binomial_law_also_if_none_fits() -> None:
    """The mean is no exponential of the feature, so that slopes depend on how a likelihood weights rows."""
    rng = np.random.default_rng(5)
    x = rng.uniform(-2, 2, 1000)
    y = rng.poisson(rng.gamma(2.0, 5.0 * (1 + (x > 0.5))))
    fit = exact_fit(x[:, None], y.astype(float), Poisson(), prior_sd=1e4)

    def unlikely(phi: np.ndarray) -> float:
        size = np.exp(-phi[2])
        return -float(stats.nbinom.logpmf(y, size, size / (size + np.exp(phi[0] + phi[1] * x))).sum())

    best = optimize.minimize(unlikely, [2.5, 0.1, -0.5], tol=1e-10).x
    poissons = PoissonRegressor(alpha=0, tol=1e-10).fit(x[:, None], y).coef_[0]
    assert abs(poissons - best[1]) > 0.005, "another likelihood has another maximum"
    assert fit.coefficients[0] == pytest.approx(best[1], abs=3e-4)
    assert fit.spread.mean == pytest.approx(np.exp(best[2]), rel=1e-3)
    spread = 1 / np.sqrt(np.exp(-2 * best[2]) * numerical_curvature(lambda at: unlikely([*best[:2], at]), best[2]))
    assert fit.spread.sd == pytest.approx(spread, rel=0.15)


def numerical_curvature(of: Callable[[float], float], at: float, step: float = 1e-3) -> float:
    return (of(at - step) - 2 * of(at) + of(at + step)) / step**2


def test_rows_with_outliers_give_the_likelihoods_maximum() -> None:
    rows = problem(StudentT(), 400)
    fit = exact_fit(rows.X, rows.y, StudentT(), prior_sd=1e4)
    x = np.insert(rows.X, 0, 1.0, axis=1)
    best = optimize.minimize(lambda phi: -log_density(StudentT(), phi, x, rows.y).sum(), np.zeros(4), tol=1e-12).x
    assert fit.coefficients == pytest.approx(best[1:3], abs=1e-3)
    assert fit.spread.mean == pytest.approx(np.exp(best[-1]), rel=1e-2)


@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_without_noise_rounds_give_what_rows_do(family: Family, skewed: bool) -> None:
    rows = problem(family, 20_000, skewed=skewed)
    fit = run(scored_regression(rows.schema, family, rounds=5), NoisyRounds(rows.rows, 1000.0))
    exact = exact_fit(rows.X, rows.y, family)
    assert np.abs(fit.coefficients - exact.coefficients) == pytest.approx(0, abs=0.006)
    assert fit.coefficient_sd / exact.coefficient_sd == pytest.approx(1, abs=0.2)
    assert fit.spread.mean == pytest.approx(exact.spread.mean, abs=0.03)
    assert fit.predict(rows.X[:5])[0] == pytest.approx(exact.predict(rows.X[:5])[0], rel=0.02)


@pytest.mark.long
@pytest.mark.parametrize("law", [stats.expon(-1), stats.norm()], ids=["exponential", "normal"])
def test_counts_of_more_variance_have_hardly_a_bias_and_no_wide_intervals(law: Any) -> None:
    """Negative binomial counts at Sobol's points, so that rows have hardly a sampling error; noise has 0.3 %.

    With scores of Poisson's law the clip took 1 to 4 % of a slope and a third of the dispersion, and a margin of a
    third of the last step made intervals of normal features 1.7 times as wide.
    """
    u = stats.qmc.Sobol(4, rng=np.random.default_rng(0)).random_base2(16).clip(1e-9, 1 - 1e-9)
    X = np.column_stack([law.ppf(u[:, 0]), stats.norm.ppf(u[:, 1])])
    y = poisson_quantile(u[:, 2], np.exp(1 + X @ [0.5, -0.3]) * stats.gamma.ppf(u[:, 3], 2.0, scale=0.5))
    schema = Schema(("a", "b"), "y", {"a": Interval(-6, 15), "b": Interval(-6, 6), "y": Interval(0, 400)})
    fit = run(scored_regression(schema, Poisson()), NoisyRounds(np.column_stack([X, y]), 4.0))
    assert fit.coefficients == pytest.approx([0.5, -0.3], rel=0.016)
    assert fit.spread.mean == pytest.approx(0.5, abs=0.05)
    assert np.all(fit.coefficient_sd < 1.2 * exact_fit(X, y, Poisson()).coefficient_sd)


def test_bounds_of_two_hundred_deviations_leave_outliers_spreads_alone() -> None:
    """Where slopes were limited by the farthest row that bounds allow, spreads were twelve times as wide."""
    rows, spreads = problem(StudentT(4.0), 20_000), []
    for width in (12.0, 200.0):
        bounds = {"a": Interval(-4, -4 + width), "b": Interval(-10, -10 + 2 * width), "y": Interval(-60, 60)}
        fit = run(scored_regression(Schema(("a", "b"), "y", bounds), StudentT(4.0)), NoisyRounds(rows.rows, 4.0))
        spreads.append(fit.coefficient_sd * [1.0, 2.0])
    assert np.all(spreads[1] < 1.2 * spreads[0])


def test_the_first_rounds_warnings_about_columns_are_in_the_result() -> None:
    rows = problem(StudentT(), 20_000)
    X = np.column_stack([rows.X[:, 0], rows.X[:, 0] + 0.05 * np.random.default_rng(1).standard_normal(20_000)])
    far = {**rows.schema.bounds, "a": Interval(-4, 400), "b": Interval(-4, 12)}
    rounds = NoisyRounds(np.column_stack([X, rows.y]), 8.0)
    warnings = run(scored_regression(Schema(("a", "b"), "y", far), StudentT()), rounds).warnings
    assert any("bounds of a are far too wide" in one for one in warnings)
    assert any("a and b nearly repeat each other" in one for one in warnings)


@pytest.mark.parametrize("correlation", [0.999, 0.5])
@pytest.mark.parametrize("family", FAMILIES)
def test_features_whose_separate_effects_noise_hides_are_named(family: Family, correlation: float) -> None:
    """The covariances' noise is 0.1, so it hides how little two features differ, and that nothing else shows it."""
    rng, n = np.random.default_rng(5), 5_000
    X = rng.standard_normal((n, 3))
    X[:, 1] = correlation * X[:, 0] + np.sqrt(1 - correlation**2) * X[:, 1]
    eta = X @ [0.6, -0.4, 0.3]
    y = rng.poisson(np.exp(0.7 * eta + 1)) if family.disperses else eta + 0.5 * rng.standard_t(4, n)
    top = Interval(0, 100) if family.disperses else Interval(-20, 20)
    schema = Schema(("a", "b", "c"), "y", {**dict.fromkeys("abc", Interval(-6, 6)), "y": top})
    warnings = run(scored_regression(schema, family), NoisyRounds(np.column_stack([X, y]), 1.0)).warnings
    found = [one.split("effects of ")[1].split(", which")[0] for one in warnings if "separate effects" in one]
    pairs = [one.split(" nearly repeat")[0] for one in warnings if " nearly repeat" in one]
    assert found + pairs == (["a, b"] if found else ["a and b"]) * (correlation > 0.9)


def test_many_degrees_of_freedom_cost_little() -> None:
    sds = []
    for degrees in (4.0, 30.0, 100.0):
        rows = problem(StudentT(4.0), 5000)
        fit = run(scored_regression(rows.schema, StudentT(degrees)), NoisyRounds(rows.rows, 1.0))
        assert np.abs(fit.coefficients - SLOPES).max() < 5 * fit.coefficient_sd.max()
        sds.append(fit.coefficient_sd.max())
    assert max(sds) < 1.5 * sds[0]


@pytest.mark.long
@pytest.mark.parametrize("family", COUNTS_ARE_LONG)
def test_a_constant_column_leaves_the_others_as_they_are(family: Family) -> None:
    """6 fits, 2 intervals of 90 % each: fewer than 7 of 12 cover by chance with 6e-4.

    They are wider where the noise that the constant column brings hides whether others are curved.
    """
    covered, sds, slopes = 0, [], [0.6, -0.4]
    top = Interval(0, 100) if family.disperses else Interval(-50, 50)
    schema = Schema(("a", "b", "c"), "y", {**dict.fromkeys("abc", Interval(-5, 5)), "y": top})
    n, epsilon = (5000, 1.0) if family.disperses else (20_000, 4.0)
    for seed in range(6):
        rng = np.random.default_rng(seed)
        X = np.column_stack([rng.standard_normal((n, 2)), np.ones(n)])
        eta = X[:, :2] @ slopes
        y = rng.poisson(np.exp(0.5 + eta)) if family.disperses else eta + rng.standard_t(4, n)
        fit = run(scored_regression(schema, family), NoisyRounds(np.column_stack([X, y]), epsilon, seed))
        covered += int((np.abs(fit.coefficients[:2] - slopes) < 1.645 * fit.coefficient_sd[:2]).sum())
        sds.extend(fit.coefficient_sd[:2])
    assert np.median(sds) < 0.05
    assert max(sds) < 0.15
    assert covered >= 7


def test_outliers_hardly_move_a_robust_regression() -> None:
    rows = problem(StudentT(), 10_000)
    y = rows.y.copy()
    y[:500] += 40.0 * (rows.X[:500, 0] > 3)  # one in twenty, on one side
    plain = LinearRegression().fit(rows.X, y).coef_
    model = PrivateRobustRegression(schema=rows.schema, rounds=6).fit(NoisyRounds(np.column_stack([rows.X, y]), 4.0))
    assert abs(plain[0] - SLOPES[0]) > 0.5
    assert np.abs(model.coef_ - SLOPES).max() < 0.05
    assert model.residual_scale_ < 1 < np.std(y - rows.y) / 5


@pytest.mark.long
@pytest.mark.parametrize("estimator", [PrivatePoissonRegression, PrivateRobustRegression])
def test_another_prior_is_one_call_on_the_releases(estimator: Any) -> None:
    family = Poisson() if estimator is PrivatePoissonRegression else StudentT()
    rows = problem(family, 500)
    rounds = NoisyRounds(rows.rows, 1.0)
    model = estimator(schema=rows.schema).fit(rounds)
    before = len(rounds.requests)
    narrow = model.fit_.refit(prior_sd=0.02)
    assert len(rounds.requests) == before == 5
    assert narrow.private
    slopes, sd, _ = narrow.slopes()
    assert np.all(np.abs(slopes) < np.abs(model.coef_))
    assert np.all(sd < model.coef_sd_)
    again = estimator(prior_sd=0.02).fit(list(model.fit_.predictor.aggregates))
    assert again.coef_ == pytest.approx(slopes)
    assert again.private_
    with pytest.raises(DataError, match="fit the rows again"):
        estimator().fit(rows.X, rows.y).fit_.refit(prior_sd=0.5)
    with pytest.raises(DataError, match="setting 'prior_sd' is 0, expected a number above 0"):
        model.fit_.refit(prior_sd=0.0)


@pytest.mark.parametrize(("mean", "variance"), [(1.0, 0.3), (3.5, 4.0), (-2.0, 60.0)])
def test_a_predicted_count_is_that_of_a_rate_within_the_public_bound(mean: float, variance: float) -> None:
    """Against integration, and where the bound is far, the log-normal law's moments."""
    law = stats.norm(mean, variance**0.5)
    for power in (1, 2):
        low, high = mean - 12 * variance**0.5, mean + 12 * variance**0.5
        eta = np.linspace(low, high, 400_001)
        expected = np.trapezoid(np.minimum(np.exp(eta), 50.0) ** power * law.pdf(eta), eta)
        found = limited(np.array([mean]), np.array([variance]), np.log(50.0), power)
        assert found == pytest.approx(expected, rel=1e-6)
    free = limited(np.array([mean]), np.array([0.3]), LOG_MOST, 2)
    assert free == pytest.approx(np.exp(2 * mean + 2 * 0.3))


@pytest.mark.long
def test_few_people_predict_no_count_above_the_public_bound() -> None:
    rows = problem(Poisson(), 60)
    most = rows.schema.bounds["y"].upper
    fit = run(scored_regression(rows.schema, Poisson()), NoisyRounds(rows.rows, 0.2))
    mean, sd = fit.predict(rows.X)
    assert fit.linear_predictor(rows.X)[1].max() > 5, "noise hides nearly all"
    assert 0 < mean.min() < mean.max() <= most
    assert np.isfinite(sd).all()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: one.name)
def test_a_rare_binary_feature_is_not_cut_inside_its_bounds(family: Family) -> None:
    """One row in fifty is 1, seven standard deviations out. Within 4 posterior sds: false alarm 3e-4 in all."""
    rng = np.random.default_rng(3)
    X = (rng.random((50_000, 2)) < [0.02, 0.3]) * 1.0
    eta = 1 + X @ [0.6, -0.3]
    y = rng.poisson(np.exp(eta)) * 1.0 if family.disperses else eta + 0.5 * rng.standard_t(4, len(X))
    unit = Interval(0, 1)
    schema = Schema(("a", "b"), "y", {"a": unit, "b": unit, "y": Interval(0 if family.disperses else -30, 30)})
    fit = run(scored_regression(schema, family), NoisyRounds(np.column_stack([X, y]), 20.0))
    assert np.all(np.abs(fit.coefficients - [0.6, -0.3]) < 4 * fit.coefficient_sd)
    assert fit.coefficient_sd[0] < 0.08


def test_aggregates_of_another_kind_are_refused() -> None:
    rows = problem(Poisson(), 500)
    rounds = NoisyRounds(rows.rows, 1.0)
    fit = run(scored_regression(rows.schema, Poisson()), rounds)
    with pytest.raises(
        DataError, match=r"no aggregate is of the statistic 'gradient'.*'robust-regression' or 'logistic'"
    ):
        regression_of_scores(fit.aggregates[:1])
    with pytest.raises(DataError, match="take the other estimator"):
        PrivateRobustRegression().fit(list(fit.aggregates))
    below = Schema(("a",), "y", {"a": Interval(0, 1), "y": Interval(-1, 5)})
    with pytest.raises(DataError, match="lower bound -1; counts start at 0"):
        run(scored_regression(below, Poisson()), rounds)
    with pytest.raises(DataError, match="setting 'rounds' is 0, expected a whole number, at least 1"):
        PrivatePoissonRegression(schema=rows.schema, rounds=0).fit(rounds)


@pytest.mark.parametrize("name", ["poisson-regression", "robust-regression"])
def test_the_job_reports_its_result(name: str) -> None:
    job = find(name)
    settings = settings_from(job.settings, {"prior_sd": 1}, name)
    family = settings.family
    rows = problem(family, 3000)
    conditions = Conditions(3000, 300, mu_of(4.0, 1e-5), np.random.default_rng(0))
    stages = job.plan(rows.schema, settings, conditions)
    assert sum(stage.total for stage in stages) == pytest.approx(1)
    rounds = NoisyRounds(rows.rows, 4.0)
    result = job.finish(run(job.make(rows.schema, settings, conditions), rounds), rows.schema, settings, conditions)
    assert [request.budget_share for request in rounds.requests] == pytest.approx([stage.share for stage in stages])
    found = job.summarise(result, job.reference(rows, settings), rows, rows, rows.schema)
    assert [row["estimate"] for row in found["coefficients"]] == pytest.approx(SLOPES, abs=0.05)
    assert [row["nonprivate"] for row in found["coefficients"]] == pytest.approx(SLOPES, abs=0.05)
    assert all(row["contraction"] > 0.9 for row in found["coefficients"])
    (score,) = found["test"]["scores"]
    assert score["nonprivate"] - 1e-3 <= score["private"] < score["constant"]
    data = result.inference_data(np.random.default_rng(0))
    assert data.posterior["coefficients"].shape == (4, 1000, 2)


@pytest.mark.parametrize(
    ("table", "message"),
    [({"rounds": 0}, "'rounds' is 0"), ({"prior_sd": -1}, "'prior_sd' is -1"), ({"std_share": 1}, "'std_share' is 1")],
)
def test_settings_out_of_range_are_refused(table: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        settings_from(find("poisson-regression").settings, table, "poisson-regression")


def test_shares_are_the_whole_budget() -> None:
    for rounds in (1, 2, 3, 6):
        parts = shares(rounds, 0.1)
        assert len(parts) == rounds
        assert sum(parts) == pytest.approx(0.9)
        assert parts == sorted(parts)
