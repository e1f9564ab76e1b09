"""Regressions from released aggregates: several add up, weights are divided out, and what does not fit is refused."""

from __future__ import annotations

import itertools
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge

import inference.posterior
from dca_proto.aggregate import NoisyAggregate
from dca_proto.privacy import accounting
from dca_proto.privacy.cost import PrivacyCost, total
from dca_proto.statistics import resolve
from inference.bounds import Interval
from inference.errors import DataError
from inference.models.estimator import composed
from inference.models.linear.aggregate_stats import DEFAULTS, coefficients_of, plausible_prior, statistics_of
from inference.models.linear.closed_form import Noise, NormalBeta, SufficientStatistics, posterior, summarise
from inference.models.linear.prior import prior_precision
from inference.problem import Schema

FRACTION_BITS = 32
IDS = (number.to_bytes(16, "big") for number in itertools.count(1))
COLUMNS = ("a", "b", "y")
PARAMETERS: dict[str, Any] = {
    "columns": list(COLUMNS),
    "centre": [5.0, 0.0, 100.0],
    "scale": [2.0, 0.5, 50.0],
    "bound": [2.0, 2.0, 3.0],
    "intercept": True,
    "target_square": True,
}
SCHEMA = Schema(("a", "b"), "y", {"a": Interval(0, 10), "b": Interval(-1, 1), "y": Interval(0, 200)})
READ = replace(SCHEMA, bounds={name: replace(one, public=False) for name, one in SCHEMA.bounds.items()})


def rows_of(n: int, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(5, 1, n), rng.normal(0, 0.3, n)])
    return np.column_stack([X, 60 + 8 * X[:, 0] - 40 * X[:, 1] + rng.normal(0, 5, n)])


def aggregate(
    rows: np.ndarray, variance: float = 0.0, noise: np.ndarray | float = 0.0, **changes: Any
) -> NoisyAggregate:
    parameters = PARAMETERS | changes
    value = resolve("regression", parameters).evaluate(rows, FRACTION_BITS).sum(axis=0) * 2.0**-FRACTION_BITS + noise
    return NoisyAggregate(
        value=value, noise_variance=variance, statistic="regression", parameters=parameters, contributors=len(rows),
        clients=len(rows), n_min=0, colluders=0, mechanism="none (test)", sensitivity=1.0, relation="",
        sigma_local=0.0, epsilon=1.0, delta=1e-5, mu=0.3, round_id=next(IDS), announcement_hash=b"",
        contributors_hash=b"",
    )  # fmt: skip


def posterior_of(aggregates: Any, *given: Any) -> NormalBeta:
    return posterior(statistics_of(aggregates), *given)


def standardised(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    z = (rows - PARAMETERS["centre"]) / PARAMETERS["scale"]
    z = np.clip(z, -np.array(PARAMETERS["bound"]), PARAMETERS["bound"])
    return np.column_stack([np.ones(len(z)), z[:, :-1]]), z[:, -1]


def test_a_releases_parameters_determine_how_to_read_it() -> None:
    rows = rows_of(80)
    x, y = standardised(rows)
    statistics = statistics_of(aggregate(rows))
    np.testing.assert_allclose(statistics.xx, x.T @ x, atol=1e-2)
    np.testing.assert_allclose(statistics.xy, x.T @ y, atol=1e-2)
    assert statistics.yy == pytest.approx(y @ y, abs=1e-2)
    assert (statistics.n, statistics.constant) == (80, True)


def test_omitted_parameters_take_the_statistics_defaults() -> None:
    names = ("columns", "centre", "scale", "bound")
    bare = resolve("regression", {name: PARAMETERS[name] for name in names})
    assert {name: getattr(bare, name) for name in DEFAULTS} == DEFAULTS
    assert {field for field in bare.__struct_fields__ if field not in names} == set(DEFAULTS)


def test_weighted_releases_are_read_in_their_own_units() -> None:
    rows = rows_of(80)
    plain, weighted = statistics_of(aggregate(rows)), statistics_of(aggregate(rows, 36.0, weights=[2, 3, 4]))
    np.testing.assert_allclose(weighted.xx[:, 1:], plain.xx[:, 1:], atol=1e-9)
    np.testing.assert_allclose(weighted.xy, plain.xy, atol=1e-9)
    assert weighted.yy == pytest.approx(plain.yy)
    assert 77 < weighted.xx[0, 0] < 80  # up to 80 rows may be complete, as far as noise of 3 shows
    assert (weighted.noise.xx, weighted.noise.xy, weighted.noise.yy) == (9.0, 4.0, 2.25)


def test_releases_of_different_clients_add_up_with_their_noise() -> None:
    rows = rows_of(100)
    parts = [aggregate(rows[:30], 4.0), aggregate(rows[30:], 36.0, weights=[2, 3, 4])]
    together_, whole = statistics_of(parts), statistics_of(aggregate(rows, 13.0))
    np.testing.assert_allclose(together_.xx, whole.xx, atol=1e-9)
    np.testing.assert_allclose(together_.xy, whole.xy, atol=1e-9)
    assert together_.yy == pytest.approx(whole.yy)
    assert (together_.n, together_.constant) == (whole.n, True)
    assert together_.noise == Noise(13.0, 8.0, 6.25, whole.noise.constant)


def test_the_posterior_is_that_of_the_statistics() -> None:
    rows = rows_of(100)
    expected = posterior(summarise(*standardised(rows)), 1.0, 0.3)
    fitted = posterior_of(aggregate(rows), 1.0, 0.3)
    np.testing.assert_allclose(fitted.mean, expected.mean, atol=1e-4)
    np.testing.assert_allclose(fitted.cov, expected.cov, atol=1e-4)


@pytest.mark.parametrize("precision", [0.0, 3.0])
@pytest.mark.parametrize("weights", [(1, 1, 1), (2, 3, 2)])
def test_a_release_without_noise_is_scikit_learns_to_ten_digits(precision: float, weights: tuple[int, ...]) -> None:
    """Values that lie on the clients' grid, so that nothing is rounded; coefficients and intercept in own units."""
    rng = np.random.default_rng(6)
    z = rng.integers(-1024, 1025, size=(300, 3)) / 1024
    z[:, 2] = np.round((0.5 * z[:, 0] - 0.25 * z[:, 1] + 0.125 * z[:, 2]) * 2**14) / 2**14
    centre, scale = np.array([8.0, -1.0, 128.0]), np.array([4.0, 0.5, 32.0])
    given = {"centre": centre.tolist(), "scale": scale.tolist(), "bound": [1.0] * 3, "weights": list(weights)}
    released = aggregate(centre + scale * z, **given)
    fit = coefficients_of(released, posterior_of(released, [0.0, precision, precision], 0.5))
    theirs = Ridge(alpha=0.5 * precision).fit(z[:, :2], z[:, 2])
    slopes = theirs.coef_ * scale[2] / scale[:2]
    np.testing.assert_allclose(fit.coefficients, slopes, rtol=0, atol=1e-10)
    intercept = centre[2] + scale[2] * theirs.intercept_ - slopes @ centre[:2]
    assert fit.intercept == pytest.approx(intercept, rel=0, abs=1e-10)
    design = np.column_stack([np.ones(300), z[:, :2]])
    cov = np.linalg.inv(design.T @ design / 0.5 + np.diag([0.0, precision, precision]))
    np.testing.assert_allclose(fit.cov, cov, rtol=0, atol=1e-12)


@pytest.mark.parametrize("intercept", [True, False])
def test_a_fit_is_in_the_columns_own_units(intercept: bool) -> None:
    rows = rows_of(4000)
    parts = aggregate(rows, intercept=intercept, intercept_bound=0.5)
    fit = coefficients_of(parts, posterior_of(parts, 0.0))
    np.testing.assert_allclose(fit.coefficients, [8, -40], rtol=0.05)
    middle = np.array([[5.0, 0.0]])
    assert fit.predict(middle)[0][0] == pytest.approx(100, abs=1)
    assert fit.intercept + middle[0] @ fit.coefficients == pytest.approx(fit.predict(middle)[0][0])
    assert fit.intercept_sd > 0
    assert (fit.cov[0] == 0).all() is np.bool_(not intercept)


def test_a_radius_shortens_rows_in_predictions_as_it_does_at_the_clients() -> None:
    rows = rows_of(200)
    one = aggregate(rows, radius=0.5)
    fit = coefficients_of(one, posterior_of(one, 0.0))
    near, far = np.array([[5.1, 0.02]]), np.array([[7.0, 0.5], [9.0, 1.0]])
    assert fit.predict(near)[0][0] == pytest.approx(fit.intercept + near[0] @ fit.coefficients)
    assert np.ptp(fit.predict(far)[0]) == pytest.approx(0)  # both are beyond the box's corner, and on one ray


def test_a_result_counts_all_contributors_and_is_private_where_all_are() -> None:
    parts = [aggregate(rows_of(30)), aggregate(rows_of(20, 2))]
    fitted = posterior_of(parts, 1.0)
    result = coefficients_of(parts, fitted, SCHEMA, "noise-aware")
    assert (result.contributors, result.private, result.repair) == (50, True, "noise-aware")
    assert not coefficients_of([parts[0], replace(parts[1], private=False)], fitted, SCHEMA, "absolute").private
    assert not coefficients_of(parts, fitted, READ, "absolute").private


def test_draws_have_the_posteriors_moments_in_own_units() -> None:
    """20,000 draws: means within 5 standard errors, standard deviations within 3 %; false alarms below 1e-5."""
    one = aggregate(rows_of(60))
    fit = coefficients_of(one, posterior_of(one, 1.0))
    draws = fit.sample(np.random.default_rng(3), 4, 5000)
    assert (draws["intercept"].shape, draws["coefficients"].shape) == ((4, 5000), (4, 5000, 2))
    slopes = draws["coefficients"].reshape(-1, 2)
    assert (np.abs(slopes.mean(axis=0) - fit.coefficients) < 5 * fit.coefficient_sd / np.sqrt(20_000)).all()
    np.testing.assert_allclose(slopes.std(axis=0), fit.coefficient_sd, rtol=0.03)
    assert draws["intercept"].mean() == pytest.approx(fit.intercept, abs=5 * fit.intercept_sd / np.sqrt(20_000))
    assert draws["intercept"].std() == pytest.approx(fit.intercept_sd, rel=0.03)
    together_ = np.corrcoef(draws["intercept"].ravel(), slopes[:, 0])[0, 1]
    assert together_ == pytest.approx(
        fit.covariance[0, 1] / np.sqrt(fit.covariance[0, 0] * fit.covariance[1, 1]), abs=0.03
    )


def test_draws_go_out_as_inference_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """With names for all axes, and what they rest on; ArviZ itself is `draws`' affair."""
    sent: dict[str, Any] = {}
    monkeypatch.setattr(inference.posterior, "inference_data", lambda draws, **given: sent.update(given, draws=draws))
    one = aggregate(rows_of(60))
    result = coefficients_of(one, posterior_of(one, 1.0), SCHEMA, "noise-aware")
    result.posterior().inference_data(np.random.default_rng(4), chains=2, draws=10)
    assert {name: array.shape for name, array in sent["draws"].items()} == {
        "intercept": (2, 10),
        "coefficients": (2, 10, 2),
    }
    assert (sent["dims"]["coefficients"], sent["dims"]["target"]) == (("feature",), ("row",))
    assert sent["coords"]["feature"] == ("a", "b")
    attrs = {"target": "y", "repair": "noise-aware", "contributors": 60, "private": True}
    assert {name: sent["attrs"][name] for name in attrs} == attrs
    assert sent["posterior_predictive"] is None


@pytest.mark.skipif(find_spec("arviz") is None, reason="arviz is not installed")
def test_predictive_draws_have_the_moments_of_predict() -> None:
    """20,000 draws at each row: means within 5 standard errors, spreads within 3 %; false alarms below 1e-5."""
    one = aggregate(rows_of(40), 25.0)
    result = coefficients_of(one, posterior_of(one, 1.0), SCHEMA, "noise-aware")
    X = np.array([[5.0, 0.0], [7.0, 0.5], [100.0, -3.0]])  # the last is projected, as at the clients
    data = result.posterior().inference_data(np.random.default_rng(5), X, chains=2, draws=10_000)
    targets = data.posterior_predictive["target"]
    assert targets.dims == ("chain", "draw", "row")
    mean, sd = result.predict(X)
    assert (np.abs(targets.values.mean(axis=(0, 1)) - mean) < 5 * sd / np.sqrt(20_000)).all()
    np.testing.assert_allclose(targets.values.std(axis=(0, 1)), sd, rtol=0.03)
    again = result.sample(np.random.default_rng(5), 2, 10_000)
    np.testing.assert_array_equal(data.posterior["coefficients"].values, again["coefficients"])
    assert "posterior_predictive" not in result.posterior().inference_data(np.random.default_rng(5), draws=10)


def test_a_plausible_prior_does_not_depend_on_units() -> None:
    rows = rows_of(500)
    one = aggregate(rows, bound=[9.0, 9.0, 9.0])
    other = aggregate(rows, scale=[4.0, 0.25, 100.0], bound=[9.0, 9.0, 9.0])
    priors = [plausible_prior(statistics_of(each), 2) for each in (one, other)]
    # A slope is in units of the target over those of the feature, and its precision in the square of the inverse.
    np.testing.assert_allclose(priors[1][1:] / priors[0][1:], [1.0, 16.0], rtol=1e-3)
    assert priors[1][0] / priors[0][0] == pytest.approx(4.0, rel=1e-3)
    without = statistics_of(aggregate(rows, target_square=False))
    assert plausible_prior(without, 2, 0.5)[0] == pytest.approx(1.0, rel=1e-6)


def test_a_plausible_prior_tolerates_sums_made_negative_by_noise() -> None:
    noisy = SufficientStatistics(10, np.diag([-5.0, 40.0]), np.zeros(2), np.asarray(-3.0), Noise(4.0, 4.0, 9.0))
    np.testing.assert_allclose(plausible_prior(noisy, 2), prior_precision(2)[1:] * [2.0, 40.0] / 3.0)


# What does not fit


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": ["a", "c", "y"]}, r"aggregate 2 has columns \['a', 'c', 'y'\], the first has \['a', 'b', 'y'\]"),
        ({"scale": [2.0, 0.5, 51.0]}, "aggregate 2 has scale"),
        ({"bound": [2.0, 2.0, 2.0]}, "aggregate 2 has bound"),
        ({"centre": [5.0, 0.0, 99.0]}, "aggregate 2 has centre"),
        ({"intercept": False}, "aggregate 2 has intercept False, the first has True"),
        ({"intercept_bound": 0.5}, "aggregate 2 has intercept_bound"),
        ({"radius": 1.0}, "aggregate 2 has radius"),
        ({"target_square": False}, "aggregate 2 has target_square"),
    ],
)
def test_sums_of_different_things_are_not_added(changes: dict[str, Any], message: str) -> None:
    rows = rows_of(10)
    with pytest.raises(DataError, match=message):
        statistics_of([aggregate(rows), aggregate(rows, **changes)])


def test_the_same_round_twice_is_refused_and_not_counted_twice() -> None:
    one, other = aggregate(rows_of(10)), aggregate(rows_of(20))
    for listed, message in (
        ([one, one], "aggregate 2 is aggregate 1 again; give each round once"),
        ([one, other, replace(other, value=other.value + 1)], "aggregate 3 is aggregate 2 again"),
    ):
        with pytest.raises(DataError, match=message):
            posterior_of(listed, 1.0)


def test_another_statistic_and_nothing_at_all_are_refused() -> None:
    with pytest.raises(DataError, match="of the statistic 'sum'; expected 'regression'"):
        statistics_of(replace(aggregate(rows_of(10)), statistic="sum"))
    with pytest.raises(DataError, match="no aggregate"):
        statistics_of([])


# What rounds cost together


def test_epsilon_of_several_rounds_is_that_of_their_joint_mu() -> None:
    one = aggregate(rows_of(10))
    assert composed([one]) == (1.0, 1e-5)
    epsilon, delta = composed([one, replace(one, mu=0.4, delta=1e-6)])
    assert (epsilon, delta) == (pytest.approx(accounting.epsilon_of(0.5, 1e-5), rel=1e-6), 1e-5)
    assert composed([one, replace(one, private=False)]) is None
    assert composed([]) is None


def test_rounds_of_reports_add_up_in_epsilon_and_beside_gaussian_ones_in_mu_as_a_ledger_has_it() -> None:
    one, report = aggregate(rows_of(10)), PrivacyCost.of_pure(0.5)
    pure = replace(one, epsilon=0.5, delta=0.0, mu=report.mu)
    assert composed([pure]) == (0.5, 0.0)
    assert composed([pure, pure]) == (1.0, 0.0)
    for count in (1, 40):
        expected = total([PrivacyCost.of_mu(one.mu), *[report] * count]).epsilon(1e-5)
        assert composed([one, *[pure] * count]) == (pytest.approx(expected, rel=1e-6), 1e-5)
