"""Marginal likelihoods of one perturbed number against numerical integration to 34 digits, and sums over many.

scripts/check_local_likelihoods.py has the whole grid; here is what covers each branch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from compiling import quick_and_double
from likelihood_check import largest_error, planted, script
from long_cases import mostly_long
from mpmath import mp
from scipy.special import erfcx

from inference.errors import DataError
from inference.models.column import log_space, rectified

Cell = script.Cell
LOW, HIGH, WIDTH = script.LOW, script.HIGH, script.HIGH - script.LOW
BOUNDS = LOW, HIGH, WIDTH


def normal(noise: str, mu: float, sigma: float, scale: float) -> Any:
    """Sigma and scale in widths."""
    return Cell("gaussian", noise, (mu, sigma * WIDTH), HIGH, scale * WIDTH)


CELLS = [
    normal("laplace", 0.3, 0.01, 1.0),
    normal("laplace", 4.0, 100.0, 0.05),
    normal("laplace", LOW - 50 * WIDTH, 0.01, 0.05),
    normal("laplace", HIGH + 3 * WIDTH, 1.0, 100.0),
    normal("gaussian", LOW, 0.01, 0.2),
    normal("gaussian", 4.0, 0.1, 5.0),
    normal("gaussian", LOW - 2 * WIDTH, 100.0, 0.2),
    *(Cell("exponential", "laplace", (rate / HIGH,), HIGH, HIGH / 5) for rate in (1e-3, 5.0, 5.01, 1000.0)),
    *(Cell("exponential", "gaussian", (rate / HIGH,), HIGH, HIGH * sd) for rate, sd in [(0.1, 5), (1000, 0.2)]),
    *(Cell("poisson", "laplace", (rate,), 20.0, 4.0) for rate in (0.01, 20.0, 200.0)),
    *(Cell("poisson", "gaussian", (rate,), 150.0, 30.0) for rate in (0.01, 170.0)),
    Cell("geometric", "laplace", (0.1,), 20.0, 4.0),
    Cell("geometric", "gaussian", (1e-4,), 150.0, 30.0),
]


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    with quick_and_double():
        yield


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_likelihood_is_the_integral(cell: Any) -> None:
    """ln p to a hundredth of the required error, at the ends, inside, and up to 500 scales outside."""
    assert largest_error(cell) < 1e-10


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_it_integrates_to_one(cell: Any) -> None:
    assert script.mass(cell, script.ours(cell)[0]) == pytest.approx(1, abs=1e-11)


@pytest.mark.parametrize("cell", mostly_long(CELLS, lambda cell: cell.noise == "laplace"), ids=str)
def test_gradients_are_the_integrals(cell: Any) -> None:
    """At an end and far outside it."""
    slopes = script.ours(cell)[1](cell.z)
    assert np.isfinite(slopes).all()
    with mp.workdps(script.DIGITS):
        assert script.slope_error(cell, slopes, rows=(3, 6, 12)) < 1e-7


@pytest.mark.long
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_values_and_gradients_are_finite_far_beyond_the_grid(noise: str) -> None:
    """Where a sampler may come in its warm-up; a discarded branch of a `where` must not give nan either."""
    function = {"laplace": rectified.gaussian_laplace, "gaussian": rectified.gaussian_gaussian}[noise]
    scales = np.array([WIDTH / 50, WIDTH / 20, WIDTH, 100 * WIDTH])
    z = np.array([LOW - 1e4 * WIDTH, LOW, 0.0, 0.3, HIGH, HIGH + 1e4 * WIDTH])
    mu, sigma = np.array([-1e6, -20, LOW, 0.3, HIGH, 1e4]), np.array([1e-6, 1e-3, 1, WIDTH, 1e4, 1e8])
    at = [np.ravel(one) for one in np.meshgrid(mu, sigma, z, scales)]
    both = jax.value_and_grad(lambda mu, sigma, z, scale: function(z, mu, sigma, LOW, HIGH, scale), (0, 1))
    value, slopes = jax.jit(jax.vmap(both))(*at)
    assert np.isfinite(value).all()
    assert np.isfinite(slopes).all()


def test_gradients_of_the_other_models_are_finite_far_beyond_the_grid() -> None:
    z = np.linspace(-1e4, 1e4, 13)
    for cell in {(cell.model, cell.noise): cell for cell in CELLS if cell.model != "gaussian"}.values():
        for parameter in (1e-6, 0.5, 1 - 1e-9) if cell.model == "geometric" else (1e-6, 0.25, cell.high, 1e4):
            assert np.isfinite(script.ours(replace(cell, parameters=(parameter,)))[1](z)).all(), cell


def test_reports_outside_are_those_of_the_end_times_the_noise() -> None:
    z = HIGH + np.array([0.0, 1.0, 1e4])
    found = script.ours(normal("laplace", 0.3, 0.2, 1.0))[0](z)
    np.testing.assert_allclose(found, found[0] - (z - HIGH) / WIDTH, rtol=1e-15)


def test_likelihoods_broadcast() -> None:
    z, mu = np.linspace(-4, 9, 13), np.array([[0.3], [4.0]])
    both = jax.jit(lambda mu: rectified.gaussian_gaussian(z, mu, 0.2 * WIDTH, *BOUNDS))(mu)
    assert both.shape == (2, 13)
    np.testing.assert_allclose(both[1], script.ours(normal("gaussian", 4.0, 0.2, 1.0))[0](z), rtol=1e-14)


@pytest.mark.parametrize("high", [0, 2.5, -3])
def test_counts_need_a_whole_bound(high: Any) -> None:
    with pytest.raises(DataError, match="whole number"):
        rectified.poisson_laplace(1.0, 2.0, high, 1.0)


ERRORS = [
    ("gaussian", "laplace", "for end in (inside, low, high))", "for end in (inside, inside, high))"),
    ("gaussian", "laplace", "k * (k / 2 - t)", "k * (k - t)"),
    ("gaussian", "gaussian", "density, low - mu, high - mu, sd", "density, low, high - mu, sd"),
    ("gaussian", "gaussian", "log_ndtr((mu - high) / sigma)", "log_ndtr((high - mu) / sigma)"),
    ("exponential", "gaussian", "_log_normal(z - high, sd) - rate * high", "_log_normal(z - high, sd)"),
    ("poisson", "laplace", "jnp.triu(noise) @ masses", "jnp.triu(noise, 1) @ masses"),
    ("poisson", "gaussian", "terms * jnp.log(low) - rising", "terms * jnp.log(low) + rising"),
    ("geometric", "laplace", "jnp.where(counts < high, probability, 1.0)", "probability"),
]


@pytest.mark.long
@pytest.mark.parametrize(("model", "noise", "right", "wrong"), ERRORS, ids=[error[3] for error in ERRORS])
def test_a_planted_error_is_seen(
    model: str, noise: str, right: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{model}_{noise}"
    monkeypatch.setattr(rectified, name, getattr(planted(rectified, right, wrong), name))
    assert max(largest_error(cell) for cell in CELLS if (cell.model, cell.noise) == (model, noise)) > 1e-6


# Many reports.


def reports(seed: int = 1, n: int = 1000) -> Any:
    draws = np.random.default_rng(seed)
    return np.clip(draws.normal(1, 2, n), LOW, HIGH) + draws.laplace(0, WIDTH, n)


def _each(mu: float, sigma: float, z: Any, scale: float) -> Any:
    return rectified.gaussian_laplace(z, mu, sigma, LOW, HIGH, scale).sum()


MU, SIGMA = np.array([1.0, -40.0, 0.3, 2.0]), np.array([2.0, 50.0, WIDTH / 40, 0.01])
each = jax.jit(jax.vmap(jax.value_and_grad(_each, (0, 1)), (0, 0, None, None)))
total = jax.jit(jax.vmap(jax.value_and_grad(rectified.gaussian_laplace_sum, (1, 2)), (None, 0, 0)))


@pytest.mark.long
def test_a_sum_is_that_of_all_reports() -> None:
    """For four chains in step, one of which is too narrow for the nodes."""
    z = reports()
    summary = rectified.summarise(z, *BOUNDS, nodes=200)
    assert summary.points.shape[1] == 201
    assert summary.narrowest == pytest.approx(WIDTH / 40)
    values, slopes = total(summary, MU, SIGMA)
    true, true_slopes = each(MU, SIGMA, z, WIDTH)
    np.testing.assert_allclose(values, true, rtol=0, atol=1e-7)
    np.testing.assert_allclose(slopes, true_slopes, rtol=1e-9, atol=1e-6)
    assert float(values[3]) == pytest.approx(float(true[3]), abs=1e-10)


@pytest.mark.parametrize(("nodes", "epsilon"), [(1000, 1.0), (200, 20.1)])
def test_few_reports_or_little_noise_have_their_own_nodes(nodes: int, epsilon: float) -> None:
    z = reports()
    summary = rectified.summarise(z, LOW, HIGH, WIDTH / epsilon, nodes=nodes)
    assert (summary.points == np.clip(z, LOW, HIGH)).all()
    assert (summary.weights == 1).all()
    assert len(summary.points) == 1


@pytest.mark.long
def test_the_interpolation_keeps_its_bound() -> None:
    """For each report, from the narrowest sigma on, with the least noise."""
    assert script.check_interpolation((32, 3.19), quick=True)["error"] < 1e-10


@pytest.mark.long
def test_without_the_narrowest_sigma_the_bound_would_not_hold() -> None:
    z, noise = reports(), WIDTH / 19
    summary = rectified.summarise(z, LOW, HIGH, noise, nodes=200)
    sigma = np.full(4, summary.narrowest / 3)
    true = each(MU, sigma, z, noise)[0]
    np.testing.assert_allclose(total(summary, MU, sigma)[0], true, rtol=0, atol=1e-9)
    assert np.abs(total(summary._replace(narrowest=0.0), MU, sigma)[0] - true).max() > 1e-6


def test_the_spread_that_noise_hides_is_narrower_with_more_reports_and_less_noise() -> None:
    """n (σ/b)³ at the narrowest σ is at most 0.05."""
    for n, epsilon in ((3000, 1.0), (20_000, 4.0)):
        z = np.random.default_rng(1).normal(0, 0.01, n)
        summary = rectified.summarise(z, -1.0, 1.0, 2 / epsilon)
        assert 0 < n * (summary.narrowest * epsilon / 2) ** 3 <= 0.0501


def test_the_shapes_of_a_summary_depend_on_the_number_of_reports_alone() -> None:
    shapes = [[np.shape(one) for one in rectified.summarise(reports(seed), *BOUNDS)] for seed in (1, 2)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    ("z", "bounds"),
    [
        ([1.0, np.nan], BOUNDS),
        ([[1.0]], BOUNDS),
        ([1.0], (HIGH, LOW, WIDTH)),
        ([1.0], (LOW, HIGH, 0.0)),
        ([1.0], (LOW, HIGH, WIDTH / 1000)),
    ],
)
def test_a_summary_refuses_reports_without_a_likelihood(z: Any, bounds: Any) -> None:
    with pytest.raises(DataError, match="expected"):
        rectified.summarise(z, *bounds)


# The normal distribution's functions.


def test_mills_ratio_is_the_scaled_error_function() -> None:
    u = np.concatenate([np.linspace(0, 60, 4001), np.geomspace(1e-9, 1e9, 200)])
    np.testing.assert_allclose(jax.jit(log_space.mills)(u), np.sqrt(np.pi / 2) * erfcx(u / np.sqrt(2)), rtol=1e-14)


def test_its_slope_is_exact_to_11_digits_also_where_its_asymptotic_series_begins() -> None:
    u = np.r_[np.linspace(0, 100, 401), np.linspace(39.99, 40.01, 101), 1e6]
    slopes = jax.jit(jax.vmap(jax.grad(log_space.mills)))(u)
    with mp.workdps(40):
        true = [float(one * mp.erfc(one / mp.sqrt(2)) / (2 * mp.npdf(one)) - 1) for one in map(mp.mpf, u.tolist())]
    np.testing.assert_allclose(slopes, true, rtol=1e-11)


def test_log_ndtr() -> None:
    u = np.array([-5000.0, -20.5, -1.0, 0.0, 2.0, 8.0])
    with mp.workdps(40):
        true = [float(mp.log(mp.ncdf(one))) for one in u]
    np.testing.assert_allclose(jax.jit(log_space.log_ndtr)(u), true, rtol=4e-15)


def test_log_interval() -> None:
    pairs = [(-1, 2), (3, 3.5), (-3.5, -3), (-500, -499.9), (0, 1e5), (-1e5, 1e5), (1e5, 1e6), (-1e-3, 1e-3)]
    true = []
    with mp.workdps(40):
        for pair in pairs:
            below, above = pair if pair[1] <= 0 else (-pair[1], -pair[0])  # where Φ is small
            nearest = min(max(pair[0], 0), pair[1])
            true.append(float(mp.log((mp.ncdf(above) - mp.ncdf(below)) / mp.npdf(nearest))))
    found = jax.jit(log_space.log_interval)(*np.array(pairs, dtype=float).T)
    np.testing.assert_allclose(found, true, rtol=0, atol=2e-13)


def test_log_sinhc_and_its_slope() -> None:
    y = np.array([0.0, 1e-5, -0.0299, 0.0301, 2.0, -800.0])
    with mp.workdps(40):
        true = [float(mp.log(mp.sinh(one) / one)) if one else 0.0 for one in y]
        slopes = [float(mp.coth(one) - 1 / mp.mpf(one)) if one else 0.0 for one in y]
    np.testing.assert_allclose(jax.jit(log_space.log_sinhc)(y), true, rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(log_space.log_sinhc)))(y), slopes, rtol=0, atol=1e-13)


@pytest.mark.parametrize("function", [log_space.log_ndtr, lambda u: log_space.log_interval(u, 1.0)])
def test_slopes_do_not_jump_at_zero(function: Any) -> None:
    slopes = jax.jit(jax.vmap(jax.grad(function)))(np.array([-1e-12, 0.0, 1e-12]))
    np.testing.assert_allclose(slopes, slopes[0], rtol=1e-9)
