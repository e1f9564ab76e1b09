"""Logistic regression from one sum: its law, its posterior, when it is taken, and the variational rounds otherwise."""

from __future__ import annotations

import numpy as np
import pytest
from exact_rounds import ExactRounds
from scipy.special import expit

from dca_proto.jobs.job import JobTerms
from dca_proto.testing import seeded
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.columns import Standardisation
from inference.errors import DataError
from inference.estimators import PrivateLogisticRegression
from inference.jobs import find
from inference.models.coefficients import Coefficients
from inference.models.glm import scored_fit
from inference.models.logistic.job import METHODS, about_intercept, logistic_regression, method_of
from inference.models.logistic.one_sum import one_sum_posterior, sum_request
from inference.problem import Schema
from inference.rounds import run
from inference.variational import clipping
from inference.variational.mean_field_job import UNCORRELATED, VariationalSettings

TRUTH = np.array([-0.5, 1.0, -0.7, 0.3])
FEATURES = ("a", "b", "c")


def schema(low: float = -5.0, high: float = 5.0) -> Schema:
    return Schema(FEATURES, "y", {**{name: Interval(low, high) for name in FEATURES}, "y": Interval(0, 1)})


def labelled(X: np.ndarray, seed: int) -> np.ndarray:
    y = np.random.default_rng(seed).random(len(X)) < expit(TRUTH[0] + X @ TRUTH[1:])
    return np.column_stack([X, y])


def normal_rows(n: int, seed: int) -> np.ndarray:
    """Features of correlation 0.3."""
    root = np.linalg.cholesky(0.7 * np.eye(3) + 0.3)
    return labelled(np.random.default_rng(seed).standard_normal((n, 3)) @ root.T, seed)


def swarm(rows: np.ndarray, epsilon: float, seed: object) -> IdealSwarm:
    n = len(rows)
    computes = tuple(bytes([place]) * 16 for place in range(3))
    terms = JobTerms(epsilon=epsilon, delta=1e-5, clients=n, tolerate=n // 10, computes=computes)
    return IdealSwarm(rows, (*FEATURES, "y"), terms, random=seeded(f"logistic {seed}"))


def fitted(rows: np.ndarray, epsilon: float, seed: int, known: Schema | None = None, **how: object) -> Coefficients:
    job = logistic_regression(known or schema(), rng=np.random.default_rng(seed), **how)
    return run(job, swarm(rows, epsilon, seed))


def test_without_noise_one_sum_is_consistent_however_much_is_clipped() -> None:
    """200,000 rows, a third of them outside the ball: a standard error of 0.006; 4 of them, false alarm 3e-4."""
    rows = normal_rows(200_000, 1)
    columns = Standardisation((*FEATURES, "y"), np.r_[0, 0, 0, 0.5], np.r_[1, 1, 1, 0.5], np.r_[4, 4, 4, 1.0])
    request = sum_request(columns, 0.9)
    narrow = {**request.parameters, "radius": 1.9}
    released = ExactRounds(rows, (*FEATURES, "y")).run_round(type(request)(request.statistic, narrow))
    found = one_sum_posterior(released, 2.0)
    assert np.all(np.abs(found.mean - TRUTH) < 4 * np.sqrt(np.diag(found.cov)))
    assert np.sqrt(np.diag(found.cov)).max() < 0.01


def test_scores_are_the_default_and_take_all_of_the_budget() -> None:
    rounds = ExactRounds(normal_rows(2000, 1), (*FEATURES, "y"), noise=1.0)
    fit = run(logistic_regression(schema(), rng=np.random.default_rng(1)), rounds)
    assert [one.statistic for one in rounds.requests] == ["phases"] + ["gradient"] * 4
    assert sum(one.budget_share for one in rounds.requests) == pytest.approx(1)
    assert (fit.iterations, fit.warnings) == (4, ())


def test_a_result_names_why_scores_do_not_apply() -> None:
    fit = fitted(normal_rows(60, 1), 2.0, 1)
    assert fit.iterations >= 10
    assert "not from scores: the noise in the features' covariances" in fit.warnings[0]


@pytest.mark.long
@pytest.mark.parametrize("method", ["one-sum", "variational"])
def test_bounds_ten_times_too_wide_cost_nothing(method: str) -> None:
    """Root mean square errors of 4 fits; their ratio is above 2.7 by chance with 1e-3 (an F variable of 12 degrees)."""
    errors = [
        [fitted(normal_rows(5000, seed), 2.0, seed, one, method=method).coefficients - TRUTH[1:] for seed in range(4)]
        for one in (schema(), schema(-50, 50))
    ]
    narrow, wide = (float(np.sqrt(np.mean(np.square(one)))) for one in errors)
    assert wide < 2.7 * narrow


def test_collinear_constant_and_far_off_columns_are_warned_of() -> None:
    rng = np.random.default_rng(2)
    a = rng.standard_normal(20_000)
    X = np.column_stack([a, a + 0.1 * rng.standard_normal(20_000), np.full(20_000, 0.7)])
    warnings = fitted(labelled(X, 2), 8.0, 2, schema(-5, 5)).warnings
    assert any("c is constant" in one for one in warnings)
    assert any("a and b nearly repeat each other" in one for one in warnings)


def test_rounds_of_gradients_warn_that_their_intervals_assume_normal_features() -> None:
    X = (np.random.default_rng(1).random((2000, 3)) < (0.5, 0.1, 0.3)) * 1.0
    fit = fitted(labelled(X, 1), 4.0, 1, schema(0, 1), settings=VariationalSettings(epochs=4))
    assert any("not to be trusted" in warning for warning in fit.warnings)


def test_shares_of_a_variational_fit_add_up_to_the_budget() -> None:
    rounds = ExactRounds(normal_rows(2000, 1), (*FEATURES, "y"), noise=1.0)
    run(logistic_regression(schema(), rng=np.random.default_rng(1), settings=VariationalSettings(epochs=7)), rounds)
    assert [one.statistic for one in rounds.requests] == ["phases", "regression"] + ["gradient"] * 7
    assert sum(one.budget_share for one in rounds.requests) == pytest.approx(1)


def test_the_bias_of_a_narrow_clip_is_corrected() -> None:
    """Half of the rows are clipped, and without noise: 5 standard errors of 20,000 rows, false alarm 1e-5.

    Without the correction the largest slope is 1.5.
    """
    rounds = ExactRounds(normal_rows(20_000, 1), (*FEATURES, "y"))
    settings = VariationalSettings(epochs=12, clip=0.9)
    fit = run(logistic_regression(schema(), rng=np.random.default_rng(1), settings=settings), rounds)
    assert np.all(np.abs(np.r_[fit.intercept, fit.coefficients] - TRUTH) < 5 * np.array([0.017, 0.02, 0.019, 0.018]))


@pytest.mark.parametrize(("clip", "warned"), [(0.01, True), (0.9, False)])
def test_a_clip_of_the_callers_that_shortens_most_gradients_is_warned_of(clip: float, warned: bool) -> None:
    rounds = ExactRounds(normal_rows(2000, 1), (*FEATURES, "y"))
    settings = VariationalSettings(epochs=3, clip=clip)
    fit = run(logistic_regression(schema(), rng=np.random.default_rng(1), settings=settings), rounds)
    assert any("shortens some 100 % of the clients' gradients" in one for one in fit.warnings) == warned
    assert any("leave clip out" in one for one in fit.warnings) == warned


def test_the_mean_of_clipped_gradients_is_that_of_drawn_labels() -> None:
    """b, D and K against 400,000 labels: 5 standard errors of each of 36 numbers, false alarm 2e-5."""
    rng, rows = np.random.default_rng(1), clipping.unknown_rows(4)
    x = np.tile(rows.x, (100, 1))
    p = expit(x @ rows.theta)
    score = ((rng.random(len(x)) < p) - p)[:, None] * x
    kept = score * np.minimum(1, 1.1 / np.linalg.norm(score, axis=1))[:, None]
    found = clipping.expected(rows, 1.1)
    for exact, parts in (
        (found.shift, kept),
        (found.slope, kept[:, :, None] * score[:, None, :]),
        (found.cov, kept[:, :, None] * kept[:, None, :]),
    ):
        error = parts.std(axis=0) / np.sqrt(len(x))
        assert np.all(np.abs(parts.mean(axis=0) - exact) < 5 * error)


def test_the_planned_clip_widens_as_noise_falls() -> None:
    rows = clipping.unknown_rows(10)
    clips = [clipping.planned_clip(rows, 1000, noise, 0.25, corrected=False) for noise in (100.0, 10.0, 1.0, 0.1, 0.0)]
    assert clips == sorted(clips)
    assert clips[0] < 0.5 * clips[-1]
    assert clipping.stretch(rows, clips[0]) > 0.1 > 0.01 > clipping.stretch(rows, clips[-1]) >= 0


def test_the_estimator_learns_from_a_released_sum() -> None:
    rows = normal_rows(20_000, 2)
    columns = Standardisation((*FEATURES, "y"), np.r_[0, 0, 0, 0.5], np.r_[1, 1, 1, 0.5], np.r_[4, 4, 4, 1.0])
    model = PrivateLogisticRegression(random_state=1).fit(swarm(rows, 4.0, 2).run_round(sum_request(columns, 1.0)))
    assert np.abs(model.coef_[0] - TRUTH[1:]).max() < 0.1
    assert (model.private_, list(model.classes_)) == (True, [0, 1])
    assert model.score(rows[:, :3], rows[:, 3]) > 0.7


@pytest.mark.long
def test_one_sum_agrees_with_the_sampler_of_the_same_model() -> None:
    """Means within 0.3 of a standard deviation, and standard deviations within 15 %."""
    pytest.importorskip("numpyro")
    from inference.models import fit as sampled

    columns = Standardisation((*FEATURES, "y"), np.r_[0, 0, 0, 0.5], np.r_[1, 1, 1, 0.5], np.r_[4, 4, 4, 1.0])
    wide = {**sum_request(columns, 1.0).parameters, "radius": None, "bound": [5.0, 5.0, 5.0, 1.0]}
    request = sum_request(columns, 1.0)
    released = swarm(normal_rows(5000, 3), 4.0, 3).run_round(type(request)(request.statistic, wide))
    ours = one_sum_posterior(released, np.sqrt(5.0))
    theirs = sampled.regression(released, logistic=True, seed=1)
    sd = np.sqrt(np.diag(ours.cov))[1:]
    assert np.all(np.abs(theirs.mean["coefficients"] - ours.mean[1:]) < 0.3 * sd)
    np.testing.assert_allclose(theirs.sd["coefficients"], sd, rtol=0.15)


@pytest.mark.parametrize(
    ("method", "given", "chosen"),
    [
        ("auto", {}, "auto"),
        ("auto", {"std_share": 0.2}, "auto"),
        ("auto", {"clip": 0.01}, "variational"),
        ("auto", {"rate": 1e-6}, "variational"),
        ("auto", {"bound": 3.0}, "variational"),
        ("auto", {"averaged": 0.01}, "variational"),
        ("auto", {"epochs": 3}, "variational"),
        ("variational", {"epochs": 3, "bound": 3.0}, "variational"),
        ("one-sum", {"bound": 3.0}, "one-sum"),
        ("one-sum", {"bound": 3.0, "clip": 1.0, "epochs": 3}, "epochs, clip"),
        ("scores", {"epochs": 60}, "epochs"),
        ("scores", {"bound": 3.0}, "bound"),
    ],
)
def test_no_setting_is_ignored(method: str, given: dict[str, float], chosen: str) -> None:
    """A setting of gradients means variational inference, and a method refuses what it does not read."""
    settings = VariationalSettings(**given)
    if chosen in METHODS:
        assert method_of(method, settings) == chosen
        return
    with pytest.raises(DataError, match=f"method '{method}' does not read {chosen};"):
        next(logistic_regression(schema(), rng=np.random.default_rng(1), method=method, settings=settings))
    with pytest.raises(DataError, match="does not read"):
        find("logistic").settings(method=method, **given)


@pytest.mark.parametrize(("centre", "ending"), [(0.0, UNCORRELATED), (40.0, "could be 1.9 times as wide")])
def test_correlations_that_are_ignored_concern_an_intercept_far_from_the_rows(centre: float, ending: str) -> None:
    """Errors of three slopes that go together at 40 (4 scales) from the rows: 13 standard deviations, not √49."""
    columns = Standardisation((*FEATURES, "y"), np.r_[[centre] * 3, 0.5], np.r_[[10.0] * 3, 0.5], np.full(4, 9.0))
    fit = Coefficients(columns=columns, link="logit", mean=np.zeros(4), cov=np.eye(4) / 100, warnings=(UNCORRELATED,))
    assert about_intercept(fit).endswith(ending)
    assert ("intercept" in about_intercept(fit)) == (centre > 0)


def test_gradients_without_a_pilot_warn_of_the_intercept() -> None:
    rows = normal_rows(60, 1)
    rows[:, :3] += 2.0
    warnings = fitted(rows, 2.0, 1).warnings
    assert [one for one in warnings if one.startswith(f"{UNCORRELATED}; the intercept's")]


def test_a_warning_of_a_far_result_names_settings_that_the_job_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise moves the last step: the job has no setting of rounds."""
    monkeypatch.setattr(scored_fit, "AWAY_MAX", 0.0)
    X = np.random.default_rng(1).normal(size=(200, 3))
    warnings = fitted(np.column_stack([X, X @ [5, -4, 0] > 0]), 1.0, 1, method="scores").warnings
    far = [one for one in warnings if "too far for its approximation" in one]
    assert far
    assert all(one.endswith("; raise epsilon") for one in far)


def test_a_part_of_the_rounds_is_no_fit() -> None:
    fit = fitted(normal_rows(300, 1), 4.0, 1, method="one-sum")
    with pytest.raises(DataError, match="phases alone; expected all rounds of a job 'logistic'"):
        PrivateLogisticRegression().fit(fit.aggregates[:1])
