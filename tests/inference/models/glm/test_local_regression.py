"""Regressions in the user's own units: coefficients, predictions, new clients' rows, and warnings about a model.

Draws are made here, as if a sampler had; `test_local_fits` has fits.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from exact_rounds import aggregate

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from inference.bounds import Interval
from inference.columns import Standardisation
from inference.draws import Sampling
from inference.errors import DataError
from inference.mcmc.run import Options, Sampled
from inference.models import fit
from inference.models.coefficients import IDENTITY, LOGIT, Coefficients
from inference.models.glm.regression import moments_of, regression_of_draws
from inference.models.linear.aggregate_stats import coefficients_of
from inference.models.priors import RegressionPrior
from inference.posterior import Posterior
from inference.problem import Schema
from inference.releases.reports import Rows

pytest.importorskip("arviz")

SAMPLING = Sampling(np.zeros(4, int), np.full(4, 0.9), np.zeros(4, int), np.full(4, 0.5), 1.0)


def drawn_by_sites(intercept: bool = True, logistic: bool = False) -> Sampled:
    """As if a regression of two features had been sampled."""
    rng = np.random.default_rng(5)
    root = np.broadcast_to(np.linalg.cholesky(np.array([[1.0, 0.6], [0.6, 1.0]])), (4, 50, 2, 2))
    draws = {
        "theta": np.array([0.5, -0.2]) + 0.01 * rng.normal(size=(4, 50, 2)),
        "feature_sd": np.array([0.3, 0.4]) + 0.01 * rng.random((4, 50, 2)),
        "correlation_root": root,
    }
    if intercept:
        draws |= {"alpha": 0.1 + 0.01 * rng.normal(size=(4, 50)), "feature_mean": np.full((4, 50, 2), 0.05)}
    if not logistic:
        draws["residual_sd"] = np.full((4, 50), 0.2)
    return Sampled(draws, {}, SAMPLING)


SCHEMA = Schema(
    ("age", "bmi"), "bp", {"age": Interval(20, 80), "bmi": Interval(15, 35), "bp": Interval(80, 180)}, {"bp": "mmHg"}
)


PRIOR = RegressionPrior().draws(np.random.default_rng(0), 4000, 2)


def sums(intercept: bool = True, square: bool = True, **changes: Any) -> NoisyAggregate:
    parameters = {
        "columns": list(SCHEMA.columns),
        "centre": SCHEMA.centres.tolist(),
        "scale": SCHEMA.half_widths.tolist(),
        "bound": [1.0] * 3,
        "target_square": square,
        **({"intercept": True, "intercept_bound": 0.5} if intercept else {}),
        **changes,
    }
    size = 3 + 2 + 4 * intercept + square
    value = np.ones(size)
    value[0] = 25.0 if intercept else 1.0  # all 100 rows are complete
    return aggregate(value, 1.0, RoundRequest("regression", parameters), 100)


def of_sums(intercept: bool = True, logistic: bool = False, **changes: Any) -> Posterior:
    sampled, link = drawn_by_sites(intercept, logistic), LOGIT if logistic else IDENTITY
    moments = moments_of(sampled.draws, 0.5 * intercept)
    return regression_of_draws(
        sampled, coefficients_of(sums(intercept, **changes), moments, SCHEMA, link=link), PRIOR, {}
    )


@pytest.mark.parametrize("intercept", [True, False])
def test_a_regression_reports_coefficients_in_the_columns_own_units(intercept: bool) -> None:
    found, sites = of_sums(intercept), drawn_by_sites(intercept).draws
    slopes = sites["theta"] * 50 / np.array([30, 10])
    np.testing.assert_allclose(found.draws["coefficients"], slopes)
    at_centre = 130 + 50 * sites.get("alpha", 0.0)
    np.testing.assert_allclose(found.draws["intercept"], at_centre - slopes @ np.array([50, 25]))
    np.testing.assert_allclose(found.draws["residual_sd"], 10.0)
    np.testing.assert_allclose(found.draws["feature_sd"], sites["feature_sd"] * [30, 10])
    np.testing.assert_allclose(found.draws["feature_correlation"][0, 0], [[1, 0.6], [0.6, 1]])
    if intercept:
        np.testing.assert_allclose(found.draws["feature_mean"][0, 0], [51.5, 25.5])
    assert isinstance(found.predictor.linear, Coefficients)
    np.testing.assert_allclose(found.predictor.linear.coefficients, found.mean["coefficients"])
    np.testing.assert_allclose(found.predictor.linear.intercept, found.mean["intercept"])
    assert set(found.prior) == set(found.draws) - {"feature_correlation"}
    assert found.coords["feature"] == ("age", "bmi")


def test_predictions_are_clipped_as_clients_clip_and_have_both_spreads() -> None:
    """200 draws; the mean is exact, the deviation within what 200 draws leave open (a fifth)."""
    found = of_sums()
    X = np.array([[50.0, 25.0], [200.0, 25.0], [80.0, 25.0]])
    mean, sd = found.predict(X)
    np.testing.assert_allclose(mean[0], 135, atol=0.5)
    np.testing.assert_allclose(mean[1], mean[2])
    np.testing.assert_allclose((mean, sd), found.predictor.linear.predict(X), rtol=0.01)
    drawn = found.predictor.simulate(X, found.draws, np.random.default_rng(1), labels=True)
    assert drawn.shape == (4, 50, 3)
    np.testing.assert_allclose(drawn.std((0, 1)), sd, rtol=0.2)
    assert found.inference_data(predicted={"target": drawn}).posterior_predictive["target"].dims == (
        "chain",
        "draw",
        "row",
    )
    with pytest.raises(DataError, match=r"rows to predict for have the shape \(2,\); expected \(k, 2\)"):
        found.predict(np.zeros(2))
    with pytest.raises(DataError, match="has no probabilities; see predict"):
        found.predictor.probability(X)


def test_a_logistic_regression_predicts_probabilities_and_labels() -> None:
    """The label's centre and scale are of no concern: what is predicted are log odds."""
    found = of_sums(logistic=True)
    X = np.array([[50.0, 25.0], [80.0, 15.0]])
    p = found.predictor.probability(X)
    np.testing.assert_allclose(p, 1 / (1 + np.exp(-np.array([0.1, 0.1 + 0.5 + 0.2]))), atol=0.01)
    assert set(np.unique(found.predictor.simulate(X, found.draws, np.random.default_rng(1), labels=True))) == {0.0, 1.0}
    np.testing.assert_allclose(found.draws["coefficients"][0, 0], drawn_by_sites().draws["theta"][0, 0] / [30, 10])
    assert "residual_sd" not in {*found.draws, *found.prior}
    np.testing.assert_allclose(found.predict(X)[0], p)


def test_notes_name_what_a_regressions_model_leaves_out() -> None:
    assert of_sums().notes == ()
    with patch.object(Options, "sample", return_value=drawn_by_sites()):
        (unknown,) = fit.regression(sums(square=False), require_mixed=False).notes
        assert fit.regression(sums(), require_mixed=False).notes == ()
    assert unknown.startswith("the squares of bp were not released, so the residuals' standard deviation rests on its")
    (clipped,) = of_sums(bound=[0.5, 1.0, 1.0]).notes
    assert clipped.startswith("the fitted model expects 10 % of the values of age or more outside its bounds")
    (target,) = of_sums(bound=[1.0, 1.0, 0.3]).notes
    assert "values of bp or more" in target
    assert of_sums(logistic=True, square=False, bound=[1.0, 1.0, 0.3]).notes == ()


ROWS = Rows(
    np.zeros((9, 2)),
    np.zeros(9),
    0.01,
    0.04,
    1.0,
    Standardisation(SCHEMA.columns, SCHEMA.centres, SCHEMA.half_widths, np.full(3, np.inf)),
)


def seen(**changes: Any) -> Standardisation:
    """The columns of `ROWS`, seen otherwise."""
    return replace(ROWS.columns, **changes)


def of_rows(rows: Rows, *, intercept: bool = True, logistic: bool = False) -> Posterior:
    sampled, constant, link = drawn_by_sites(intercept, logistic), float(intercept), LOGIT if logistic else IDENTITY
    linear = Coefficients.of(rows.columns, moments_of(sampled.draws, constant), constant, link=link)
    return regression_of_draws(sampled, linear, PRIOR, {}, rows.notes, rows)


def test_rows_are_clipped_where_clients_clip_theirs_and_only_there() -> None:
    """Age 50 + 30 z: 200 is z = 5. The notes name the ball, and bounds that much lies beyond."""
    far = np.array([[200.0, 25.0]])
    bounded = of_rows(replace(ROWS, columns=seen(bound=np.ones(3))))
    np.testing.assert_allclose(bounded.predict(far), of_sums().predict(far))
    assert of_rows(ROWS).predict(far)[0] > bounded.predict(far)[0] + 10
    assert bounded.notes == of_rows(ROWS).notes == ()
    (clipped,) = of_rows(replace(ROWS, columns=seen(bound=np.array([0.5, 1.0, 1.0])))).notes
    assert clipped.startswith("the fitted model expects 10 % of the values of age or more outside its bounds")
    assert of_rows(replace(ROWS, columns=seen(bound=np.array([1.0, 1.0, 0.1]))), logistic=True).notes == ()
    (outside,) = of_rows(replace(ROWS, columns=seen(radius=0.6)), logistic=True).notes
    assert "outside the ball of radius 0.6" in outside


def test_regressions_from_rows_report_coefficients_in_own_units() -> None:
    for intercept in (True, False):
        found, expected = of_rows(ROWS, intercept=intercept), of_sums(intercept)
        np.testing.assert_allclose(found.draws["intercept"], expected.draws["intercept"])
        np.testing.assert_allclose(found.draws["coefficients"], expected.draws["coefficients"])


def checked_law(rows: np.ndarray, mean: np.ndarray, cov: np.ndarray) -> None:
    """10,000 rows of three columns: means and covariances within 5 standard errors (false alarm 6e-6)."""
    n, sd = len(rows), np.sqrt(np.diag(cov))
    np.testing.assert_array_less(abs(rows.mean(axis=0) - mean), 5 * sd / n**0.5)
    error = np.sqrt((np.outer(sd, sd) ** 2 + cov**2) / n)
    np.testing.assert_array_less(abs(np.cov(rows.T) - cov), 5 * error)


@pytest.mark.parametrize("intercept", [True, False])
def test_new_clients_of_a_regression_are_rows_reported_with_the_mechanisms_noise(intercept: bool) -> None:
    """In standardised units: Σ of 0.3, 0.4 and 0.6 between, slopes of 0.5, -0.2, a residual of 0.2."""
    sites = drawn_by_sites(intercept).draws
    theta, sd = sites["theta"].mean(axis=(0, 1)), sites["feature_sd"].mean(axis=(0, 1))
    Sigma = np.array([[1, 0.6], [0.6, 1]]) * np.outer(sd, sd)
    across = Sigma @ theta
    cov = np.block([[Sigma, across[:, None]], [across[None], theta @ across + 0.2**2]])
    mean = np.r_[0.05, 0.05, 0.1 + 0.05 * theta.sum()] * intercept
    found = of_rows(ROWS, intercept=intercept)
    drawn = found.new_clients(50, seed=1)
    standardised = {name: (array - ROWS.columns.centre) / ROWS.columns.scale for name, array in drawn.items()}
    assert drawn["value"].shape == drawn["report"].shape == (4, 50, 50, 3)
    checked_law(standardised["value"].reshape(-1, 3), mean, cov)
    noise = (standardised["report"] - standardised["value"]).reshape(-1, 3)
    checked_law(noise, np.zeros(3), np.diag([0.01, 0.01, 0.04]))
    stored = found.inference_data(predicted=drawn).posterior_predictive
    assert stored["report"].sel(column="bp").shape == (4, 50, 50)
    from_sums = of_sums(intercept)
    assert set(from_sums.new_clients()) == {"value"}
    checked_law(
        (from_sums.new_clients(50, seed=2)["value"].reshape(-1, 3) - ROWS.columns.centre) / ROWS.columns.scale,
        mean,
        cov,
    )


def test_new_clients_of_one_feature() -> None:
    sites = drawn_by_sites().draws
    one = {name: array[..., :1] for name, array in sites.items() if array.ndim == 3}
    draws = {**{name: array for name, array in sites.items() if array.ndim == 2}, **one}
    two = Standardisation(("age", "bp"), SCHEMA.centres[::2], SCHEMA.half_widths[::2], np.ones(2))
    rows = replace(ROWS, x=ROWS.x[:, :1], columns=two)
    linear = Coefficients.of(two, moments_of(draws, 1.0), 1.0)
    found = regression_of_draws(Sampled(draws, {}, SAMPLING), linear, draws, {}, (), rows)
    x, y = np.moveaxis((found.new_clients(50)["value"] - two.centre) / two.scale, -1, 0)
    slope, sd = sites["theta"][..., 0].mean(), sites["feature_sd"][..., 0].mean()
    assert np.cov(x.ravel(), y.ravel())[0, 1] == pytest.approx(slope * sd**2, rel=0.1)  # 4 standard errors


def test_new_clients_clip_their_rows_and_bring_features_into_the_ball() -> None:
    quiet = replace(ROWS, variance_x=0.0, variance_y=0.0, columns=seen(bound=np.array([0.3, 1.0, 0.4]), radius=0.4))
    drawn = of_rows(quiet).new_clients(50)
    value, report = ((array - ROWS.columns.centre) / ROWS.columns.scale for array in (drawn["value"], drawn["report"]))
    expected = np.clip(value, -quiet.columns.bound, quiet.columns.bound)
    norm = np.linalg.norm(expected[..., :2], axis=-1, keepdims=True)
    assert 0.05 < (norm > 0.4).mean() < 0.95
    expected[..., :2] *= np.minimum(1, 0.4 / norm)
    np.testing.assert_allclose(report, expected, atol=1e-12)


def test_reports_that_are_taken_for_the_rows_are_new_clients_values() -> None:
    """As a noise-naive model has it: no noise and no bounds, and so nothing beyond them."""
    naive = replace(ROWS, columns=seen(bound=np.full(3, 0.1), radius=0.1), p=0.8).without_noise()
    found = of_rows(naive)
    drawn = found.new_clients(5)
    np.testing.assert_allclose(drawn["report"], drawn["value"], rtol=1e-12)
    assert found.notes == ()
    labelled = replace(naive.columns, centre=np.r_[50.0, 25, 0], scale=np.r_[30.0, 10, 1])
    drawn = of_rows(replace(naive, columns=labelled), logistic=True).new_clients(5)
    np.testing.assert_allclose(drawn["report"], drawn["value"], rtol=1e-12)


def test_new_clients_report_their_labels_by_randomised_response() -> None:
    """10,000 labels: four figures within 5 standard errors (false alarm 2e-6); the ball is of the features alone."""
    labelled = seen(centre=np.r_[50.0, 25, 0], scale=np.r_[30.0, 10, 1], radius=0.1)
    rows = replace(ROWS, columns=labelled, variance_y=0.0, p=0.8)
    drawn = of_rows(rows, logistic=True).new_clients(50, seed=3)
    value, report = drawn["value"], drawn["report"]
    assert set(np.unique(value[..., -1])) == set(np.unique(report[..., -1])) == {0.0, 1.0}
    kept = (value[..., -1] == report[..., -1]).mean()
    assert kept == pytest.approx(0.8, abs=5 * (0.8 * 0.2 / 10_000) ** 0.5)
    x = (value[..., :-1] - labelled.centre[:-1]) / labelled.scale[:-1]
    p = 1 / (1 + np.exp(-(0.1 + x @ np.array([0.5, -0.2]))))
    along = (value[..., -1:] - p[..., None]) * np.insert(x, 0, 1.0, axis=-1)  # the score's terms, of mean 0
    np.testing.assert_array_less(abs(along.mean(axis=(0, 1, 2))), 5 * along.std(axis=(0, 1, 2)) / 100)


def test_pictures_are_written(tmp_path: Path) -> None:
    path = tmp_path / "line.png"
    assert of_sums().plot(path, reference=of_sums()) == path
    assert path.read_bytes()[:4] == b"\x89PNG"
