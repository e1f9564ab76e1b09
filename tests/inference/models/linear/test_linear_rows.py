"""How many rows are complete, where a noisy sum of a constant's squares shows it, and what a regression makes of it."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from scipy.stats import norm

from inference.locate import Means
from inference.models.linear.closed_form import Noise, SufficientStatistics, posterior, summarise
from inference.models.linear.prior import prior_precision
from inference.models.linear.rows import BENT, CURVED, about_boxes, counted, curved, with_weights


def released(square: float, n: int, variance: float) -> SufficientStatistics:
    """Of a constant and one feature."""
    return SufficientStatistics(n, np.array([[square, 1], [1, 50]]), np.array([2.0, 3]), None, variance)


def test_a_constants_square_becomes_that_of_the_rows_it_is_likely_of() -> None:
    """By hand: N(m; 90, 2²) e^(m/10) is N(90.4, 2²), of which next to nothing lies above 100."""
    before = released(90.0, 100, 4.0)
    found = counted(before, 1.0)
    assert found.xx[0, 0] == pytest.approx(90.4, abs=1e-3)
    assert found.noise == Noise(4.0, 4.0, 4.0, pytest.approx(4.0, abs=1e-2))
    assert (found.n, found.constant, before.xx[0, 0]) == (90, True, 90.0)
    half = counted(released(22.5, 100, 0.25), 0.5)
    assert half.xx[0, 0] == pytest.approx(22.6, abs=1e-3)
    assert half.noise.constant == pytest.approx(0.25, abs=1e-3)


def test_a_constants_square_is_of_no_more_rows_than_there_are() -> None:
    """All of 100 rows, as far as much noise shows, and a tenth less where noise hides everything."""
    some = counted(released(103.0, 100, 4.0), 1.0)
    assert 98 < some.xx[0, 0] < 100
    assert 0 < some.noise.constant < 1
    nothing = counted(released(-500.0, 100, 1e8), 1.0)
    assert nothing.xx[0, 0] == pytest.approx(90, abs=0.2)  # the prior's mean
    assert nothing.noise.constant == pytest.approx(10**2, rel=0.01)


def test_the_clients_grid_is_not_taken_for_missing_rows() -> None:
    """A third is 21845 / 2¹⁶ there, whose 100,000 squares are three short of a third's."""
    n, square = 100_000, (21845 / 2**16) ** 2
    assert counted(released(n * square, n, 1e-6), 1 / 3).n == pytest.approx(n, abs=4)
    exact = counted(released(n * square, n, 0.0), 1 / 3)
    assert exact.xx[0, 0] == pytest.approx(n * square)
    assert exact.noise.constant == pytest.approx(0.0, abs=1e-12)


def test_clients_who_sum_several_rows_are_counted() -> None:
    found = counted(released(160.0, 100, 4.0), 1.0)
    assert found.n == 160
    assert found.noise.constant == pytest.approx(4.0, rel=0.01)


def test_intervals_of_an_intercept_hold_where_rows_lack_a_value() -> None:
    """2000 clients, a tenth of them without a complete row, noise of 2 % of the constant's square; 400 releases.

    Binomial at 0.95: fewer than 360 about once in 10⁵ seeds. Were all rows taken for complete, the intercept would be
    off by three times the noise in it, and a few in a hundred of the intervals would hold.
    """
    rng, n, c, sd, covered = np.random.default_rng(21), 2000, 1 / 3, 4.5, 0
    true = np.array([0.9, 0.5, -0.4])
    for _ in range(400):
        X = np.column_stack([np.full(n - n // 10, c), rng.normal(0, 1 / 3, (n - n // 10, 2))])
        exact = summarise(X, X @ true + rng.normal(0, 0.2, len(X)))
        noise = np.triu(rng.normal(0, sd, (3, 3)))
        noisy = SufficientStatistics(
            n,
            exact.xx + noise + np.triu(noise, 1).T,
            exact.xy + rng.normal(0, sd, 3),
            np.asarray(exact.yy + rng.normal(0, sd)),
            sd**2,
        )
        fitted = posterior(counted(noisy, c), prior_precision(2))
        covered += bool(abs(fitted.mean[0] - true[0]) < 1.96 * sqrt(fitted.cov[0, 0]))
    assert covered >= 360


def test_a_possible_curve_widens_intervals_and_moves_no_estimate() -> None:
    """500 rows in a ball. The allowance is γ times the bound that Cauchy and Schwarz give, more for skewed features."""
    rng = np.random.default_rng(5)
    v = np.column_stack([np.ones(500), rng.standard_normal((500, 2))])
    y = v @ [0.5, 1.0, -1.0] + rng.standard_normal(500)
    s = np.minimum(1.0, 1.2 / np.linalg.norm(v, axis=1))
    whole = with_weights(summarise(v * s[:, None], y * s), 1.0, 1.2)
    plain, bent = (posterior(one, np.zeros(3)) for one in (replace(whole, bend=None), curved(whole, None)))
    np.testing.assert_array_equal(bent.mean, plain.mean)
    usual = np.mean(s**2 * (v**2).sum(axis=1)) / (v**2).sum(axis=1).mean()
    M, N = ((v * weight[:, None]).T @ v / 500 for weight in (s**2, (s**2 - usual) ** 2))
    most = np.sqrt(plain.residual_variance * np.diag(np.linalg.inv(M) @ N @ np.linalg.inv(M)))
    added = np.sqrt(np.diag(bent.cov - plain.cov))
    np.testing.assert_allclose(added, CURVED * most, rtol=0.15)
    means = Means(np.zeros(3), np.zeros(3), np.ones(3), np.array([1.0, 0.0, 1.0]))
    skewed = np.sqrt(np.diag(posterior(curved(whole, means), np.zeros(3)).cov - plain.cov))
    np.testing.assert_allclose(skewed / added, [1.0, 1 + BENT, 1.0], rtol=0.15)


BOX = {"columns": ["x", "y"], "centre": [0.0, 5.0], "scale": [4.0, 5.0], "bound": [1.0, 1.0], "intercept_bound": 0.5}


def clamped(x: np.ndarray, y: np.ndarray, noise: float = 100.0) -> list[str]:
    """Warnings of clamped columns of 10,000 rows in -4:4 and 0:10; noise is the variance of each sum's."""
    rows = np.column_stack([np.full(len(y), 0.5), np.clip(x / 4, -1, 1)])
    target = np.clip(y / 5 - 1, -1, 1)
    sums = SufficientStatistics(
        len(y), rows.T @ rows, rows.T @ target, np.asarray(target @ target), Noise(*[noise] * 3)
    )
    return [text for text in about_boxes(sums, BOX) if "seem to lie at" in text]


def test_columns_of_which_half_is_beyond_an_end_are_named() -> None:
    rng = np.random.default_rng(4)
    normal, twice = rng.standard_normal((2, 10_000))
    assert clamped(normal, 10 + twice)[0].startswith(
        "many values of y seem to lie at 10, an end of its bounds or beyond"
    )
    assert clamped(twice - 4, 5 + twice)[0].startswith("many values of x seem to lie at -4")
    for y in (
        7 + twice,
        rng.uniform(0, 10, 10_000),
        rng.exponential(1, 10_000),
        10.0 * (twice > 1.5),
        10.0 * (twice < 1),
    ):
        assert not clamped(normal, y)
    assert not clamped(normal, 10 + twice, 1e8), "noise hides it"


def beyond(share: float) -> np.ndarray:
    """A standard normal column of 10,000 values, moved so that this share of it is above 0."""
    return np.random.default_rng(5).standard_normal(10_000) + norm.ppf(share)


def test_a_target_is_named_if_an_eighth_and_a_feature_if_a_fifth_of_it_is_beyond_an_end() -> None:
    """Before, a third had to be beyond. Noise of 30 rows of 10,000 hides a fifth of a feature in wide bounds."""
    inside = beyond(0.5) / 2
    for noise, target, feature in ((100.0, 0.12, 0.2), (900.0, 0.15, 0.3)):
        shares = (0.02, 0.05, target, 0.4)
        assert [len(clamped(inside, 10 + 2 * beyond(share), noise)) for share in shares] == [0, 0, 1, 1]
        shares = (0.02, 0.05, 0.1, feature)
        assert [len(clamped(4 + beyond(share), 5 + inside, noise)) for share in shares] == [0, 0, 0, 1]


@pytest.mark.parametrize("noise", [100.0, 1e4, 1e6])
def test_clean_columns_are_not_named(noise: float) -> None:
    """200 releases of uniform columns: were one in twenty named, fewer than 4 would be in 1 of 100 such tests."""
    rng, alarms = np.random.default_rng(6), 0
    x, y = rng.uniform(-4, 4, 10_000) / 4, rng.uniform(0, 10, 10_000) / 5 - 1
    v = np.column_stack([np.full(10_000, 0.5), x])
    xx, xy, yy = v.T @ v, v.T @ y, y @ y
    for _ in range(200):
        noisy = np.triu(rng.normal(0, sqrt(noise), (2, 2)))
        drawn = xx + noisy + np.triu(noisy, 1).T, xy + rng.normal(0, sqrt(noise), 2)
        square = np.asarray(yy + rng.normal(0, sqrt(noise)))
        sums = SufficientStatistics(10_000, *drawn, square, Noise(*[noise] * 3))
        alarms += any("seem to lie at" in text for text in about_boxes(sums, BOX))
    assert alarms < 4


def test_a_target_that_is_all_beyond_an_end_is_named() -> None:
    rng = np.random.default_rng(4)
    normal, twice = rng.standard_normal((2, 10_000))
    assert clamped(normal, 20 + twice)[0].startswith("many values of y seem to lie at 10")
    assert not clamped(normal, 9.6 + 0.1 * twice)
    assert not clamped(normal, -5 + twice), "amounts end at 0"
    assert not clamped(normal, 20 + twice, 1e8), "noise hides it"
