"""Regressions of categories: independent fits without privacy, exact rounds, and warnings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from exact_rounds import ExactRounds
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import parametrize_with_checks

from dca_proto.jobs.job import JobTerms
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.errors import DataError
from inference.estimators import PrivateMultinomialRegression, PrivateOrdinalRegression
from inference.models.categories.job import category_regression
from inference.models.categories.law import Categories, exact_categories
from inference.models.doubts import about_not_counted
from inference.problem import Problem, Schema
from inference.rounds import run

COMPUTES = tuple(bytes([index]) * 16 for index in range(3))
EFFECTS = np.array([0.6, -0.5, 0.4])
THRESHOLDS = {"even": [-1.5, 0.0, 1.5], "rare": [-4.5, -2.0, -0.3, 1.5, 4.0]}
SOFTMAX = np.array([[0.0, 0.0, 0.0, 0.0], [0.3, 0.6, -0.4, 0.2], [-0.5, -0.3, 0.5, 0.4]])
KINDS = pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "nominal"])


def made(n: int, seed: int, ordered: bool, kind: str = "even") -> tuple[Problem, np.ndarray]:
    """Draw rows with a skewed feature, a rare binary one and a normal one; return them with the true figures."""
    rng = np.random.default_rng(seed)
    rare = (rng.random(n) < 0.1).astype(float)
    X = np.column_stack([rng.exponential(size=n), rare, rng.standard_normal(n)])
    centre, scale = np.array([1.0, 0.1, 0.0]), np.array([1.0, 0.3, 1.0])
    z = (X - centre) / scale
    if ordered:
        cuts = np.array(THRESHOLDS[kind])
        y = np.searchsorted(cuts, z @ EFFECTS + rng.logistic(size=n)).astype(float)
        true, top = np.r_[cuts + EFFECTS @ (centre / scale), EFFECTS / scale], len(cuts)
    else:
        size = SOFTMAX[:, 0] + z @ SOFTMAX[:, 1:].T + rng.gumbel(size=(n, 3))
        y, slopes = size.argmax(axis=1).astype(float), SOFTMAX[1:, 1:] / scale
        true, top = np.r_[SOFTMAX[1:, 0] - slopes @ centre, slopes.ravel()], 2
    bounds = {"a": Interval(0, 15), "b": Interval(0, 1), "c": Interval(-6, 6), "y": Interval(3, 3 + top)}
    return Problem("made", Schema(("a", "b", "c"), "y", bounds), X, 3 + y), true


def learned(rows: Problem, ordered: bool, epsilon: float, seed: int = 1) -> Categories:
    n = len(rows.y)
    terms = JobTerms(epsilon=epsilon, delta=1e-5, clients=n, tolerate=n // 10, computes=COMPUTES)
    swarm = IdealSwarm(rows.rows, rows.schema.columns, terms, random=np.random.default_rng(seed).bytes)
    return run(category_regression(rows.schema, ordered=ordered), swarm)


def figures(law: Categories) -> tuple[np.ndarray, np.ndarray]:
    return np.r_[law.offsets, law.effects.ravel()], np.r_[law.offset_sd, law.effect_sd.ravel()]


def test_without_privacy_grades_have_the_likelihoods_mode_and_curvature() -> None:
    """Against the log likelihood written down anew, in own units, and its numerical derivatives."""
    rows, _ = made(400, 1, True)
    place = (rows.y - 3).astype(int)

    def loss(theta: np.ndarray) -> float:
        eta = rows.X @ theta[3:]
        ends = np.r_[-np.inf, theta[:3], np.inf]
        return -float(np.log(expit(ends[place + 1] - eta) - expit(ends[place] - eta)).sum())

    mode = minimize(loss, [0.0, 1.0, 2.0, 0.0, 0.0, 0.0], method="Nelder-Mead", options={"maxiter": 20_000}).x
    mode = minimize(loss, mode, method="BFGS").x
    law = exact_categories(rows.X, rows.y, np.arange(3.0, 7.0), ordered=True, prior_sd=1e3)
    found, sd = figures(law)
    assert found == pytest.approx(mode, abs=0.02 * sd.min())
    step = 1e-3 * np.eye(6)
    hessian = [[loss(mode + a + b) - loss(mode + a - b) - loss(mode - a + b) + loss(mode - a - b) for a in step]
               for b in step]  # fmt: skip
    assert sd == pytest.approx(np.sqrt(np.diag(np.linalg.inv(np.array(hessian) / 4e-6))), rel=0.02)


def test_without_privacy_the_thresholds_of_a_grade_that_no_row_has_meet() -> None:
    """The others are those of the grades that rows have; thresholds beyond all rows are far from these."""
    rows, _ = made(400, 1, True)
    given: dict[str, Any] = {"ordered": True, "prior_sd": 1e3}
    alone = exact_categories(rows.X, rows.y, np.arange(3.0, 7.0), **given)
    gap = exact_categories(rows.X, rows.y + (rows.y > 4), np.arange(2.0, 10.0), **given)
    assert gap.offsets[2] == gap.offsets[3], "nobody has 5"
    assert gap.offsets[[1, 2, 4]] == pytest.approx(alone.offsets, abs=0.05)
    assert gap.effects == pytest.approx(alone.effects, abs=0.02)
    assert gap.offsets[0] < gap.offsets[1] - 3
    assert gap.offsets[4] + 3 < gap.offsets[5] == gap.offsets[6]


def test_without_privacy_kinds_have_scikit_learns_coefficients() -> None:
    rows, _ = made(400, 1, False)
    ours = PrivateMultinomialRegression(prior_sd=1e3).fit(rows.X, rows.y)
    theirs = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(rows.X, rows.y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_[1:] - theirs.coef_[0], atol=0.01)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_[1:] - theirs.intercept_[0], atol=0.01)
    np.testing.assert_allclose(ours.predict_proba(rows.X), theirs.predict_proba(rows.X), atol=0.03)
    assert list(ours.classes_) == [3, 4, 5]
    assert ours.predict(rows.X).shape == (400,)


@KINDS
def test_rounds_without_noise_give_the_mode_whatever_the_features_are(ordered: bool) -> None:
    """Within 0.4 standard deviations, since indicators for thresholds are not the likelihood's score; as wide."""
    rows, _ = made(4_000, 2, ordered)
    law = run(category_regression(rows.schema, ordered=ordered), ExactRounds(rows.rows, rows.schema.columns, 1e-9))
    exact = exact_categories(rows.X, rows.y, law.codes, ordered=ordered)
    (found, sd), (mode, least) = figures(law), figures(exact)
    assert np.abs((found - mode) / least).max() < 0.4
    assert (sd / least).max() < 1.1
    assert (sd / least).min() > 0.9
    assert law.warnings == ()


@KINDS
def test_intervals_hold_the_truth_at_five_thousand_rows(ordered: bool) -> None:
    """That an error exceeds four of its standard deviations by chance has a probability of 0.07 %."""
    rows, true = made(5_000, 0, ordered)
    found, sd = figures(learned(rows, ordered, 4.0, 0))
    assert np.abs((found - true) / sd).max() < 4
    assert sd.max() < 0.5


@pytest.mark.parametrize("ordered", [True, pytest.param(False, marks=pytest.mark.long)], ids=["ordered", "nominal"])
def test_intervals_of_features_without_effects_are_hardly_wider_than_without_privacy(ordered: bool) -> None:
    """Of six features at epsilon 4; planned for the noise of effects as the prior has them, 1.5 times as wide."""
    rng, n, names = np.random.default_rng(4), 3_000, tuple("abcdef")
    X, y = rng.standard_normal((n, 6)), rng.integers(0, 4, n).astype(float)
    schema = Schema(names, "y", {**dict.fromkeys(names, Interval(-6, 6)), "y": Interval(0, 3)})
    law = learned(Problem("made", schema, X, y), ordered, 4.0)
    exact = exact_categories(X, y, law.codes, ordered=ordered)
    assert np.mean(law.effect_sd / exact.effect_sd) < 1.25


def test_grades_that_noise_hides_are_named_and_bounds_merge_them() -> None:
    """One row in ninety has the least grade; bounds that begin at the next count those rows there."""
    rows, true = made(3_000, 5, True, "rare")
    law = learned(rows, True, 1.0)
    (text,) = [one for one in law.warnings if "noise hides how many rows have y" in one]
    assert "3" in text.split(":")[0]
    ends = {**rows.schema.bounds, "y": Interval(4, 7)}
    merged = learned(replace(rows, schema=replace(rows.schema, bounds=ends)), True, 1.0)
    assert list(merged.codes) == [4, 5, 6, 7]
    assert np.abs((merged.offsets - true[1:4]) / merged.offset_sd).max() < 4
    assert not any("noise hides how many" in one for one in merged.warnings)


def test_features_that_repeat_each_other_are_named() -> None:
    rows, _ = made(3_000, 5, True)
    X = rows.X.copy()
    X[:, 0] = (0.97 * rows.X[:, 2] + 0.24 * np.random.default_rng(3).standard_normal(3_000) + 6).clip(0, 15)
    warnings = learned(replace(rows, X=X), True, 1.0).warnings
    assert any("repeat" in one and {"a", "c"} <= set(one.replace(",", " ").split()) for one in warnings)


@KINDS
def test_a_curve_is_named_and_widens_the_interval_of_its_feature_alone(ordered: bool) -> None:
    """The root of an exponential feature, beside two others that are straight."""
    rows, _ = made(6_000, 8, ordered)
    bent = 2 * np.sqrt(2 * rows.X[:, 0])
    rng, other = np.random.default_rng(9), rows.X[:, 2]
    if ordered:
        y = np.searchsorted([-1.5, 0.0, 1.5], bent - bent.mean() - 0.5 * other + rng.logistic(size=len(bent))) + 3.0
    else:
        size = np.column_stack([0 * bent, bent - bent.mean(), 0.5 * other]) + rng.gumbel(size=(len(bent), 3))
        y = size.argmax(axis=1) + 3.0
    curved, straight = learned(replace(rows, y=y), ordered, 4.0), learned(rows, ordered, 4.0)
    assert [one.split(",")[0] for one in curved.warnings if "curved" in one] == ["the relation to a is curved"]
    assert not any("curved" in one for one in straight.warnings)
    wider = np.atleast_2d(curved.effect_sd / straight.effect_sd).max(axis=0)
    assert wider[0] > 1.3 * wider[2]


@KINDS
def test_a_law_predicts_draws_and_refits(ordered: bool) -> None:
    rows, _ = made(2_000, 3, ordered)
    law = learned(rows, ordered, 8.0)
    posterior, chances = law.posterior(), law.chances(rows.X[:50])
    np.testing.assert_allclose(chances.sum(axis=1), 1.0)
    drawn = posterior.inference_data(np.random.default_rng(0), rows.X[:50]).posterior_predictive["target"].values
    for place, code in enumerate(law.codes):
        assert (drawn == code).mean(axis=(0, 1)) == pytest.approx(chances[:, place], abs=0.06)
    narrow = posterior.refit(prior_sd=0.05)
    assert np.abs(narrow.predictor.effects).max() < np.abs(law.effects).max()
    again = posterior.refit(prior_sd=2.0)
    np.testing.assert_allclose(again.predictor.mean, law.mean)
    for estimate in posterior.estimates():
        assert estimate.marginal.prior is not None


def test_a_missing_target_and_codes_between_whole_numbers_do_not_count() -> None:
    rows, true = made(5_000, 4, True)
    y = rows.y.copy()
    y[:1_000], y[1_000:1_500] = np.nan, 4.5
    law = learned(replace(rows, y=y), True, 4.0)
    assert any("30 % of the rows did not count" in one for one in law.warnings)
    found, sd = figures(law)
    assert np.abs((found - true) / sd).max() < 4


@pytest.mark.parametrize(
    ("ends", "words"),
    [((0.5, 3), "give the first and the last whole number"), ((0, 90), "91 categories; expected 2 to 50")],
)
def test_bounds_that_are_no_categories_are_refused(ends: tuple[float, float], words: str) -> None:
    schema = Schema(("a",), "y", {"a": Interval(0, 1), "y": Interval(*ends)})
    with pytest.raises(DataError, match=words):
        next(category_regression(schema, ordered=True))


def test_an_estimator_refuses_rounds_of_the_other_model() -> None:
    rows, _ = made(500, 1, True)
    law = learned(rows, True, 8.0)
    fitted = PrivateOrdinalRegression().fit(list(law.aggregates))
    assert list(fitted.classes_) == [3, 4, 5, 6]
    assert fitted.predict_proba(rows.X[:3]).shape == (3, 4)
    with pytest.raises(DataError, match="categories are ordered; take the other estimator"):
        PrivateMultinomialRegression().fit(list(law.aggregates))


@pytest.mark.long
@parametrize_with_checks([PrivateOrdinalRegression(), PrivateMultinomialRegression()])  # no failure is expected
def test_scikit_learns_own_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def test_no_more_than_all_rows_lack_a_value() -> None:
    """The noisy share of complete rows may be far below 0."""
    assert about_not_counted((-0.8, 0.1), "they lack a value")[0].startswith("about 100 % of the rows did not count")
