"""Moments of one row's regression statistics against exact quadrature, simulation and differences; and their parts.

References integrate over rows (x, y) on grids in SciPy and NumPy and know nothing of Isserlis' or Stein's theorems.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import quick_and_double
from numpy.polynomial.polynomial import polyval
from numpy.typing import NDArray
from scipy import stats
from scipy.special import expit

from dca_proto.statistics import Regression
from inference.errors import DataError
from inference.models.glm import logistic_normal, moments
from papers.ldp2021 import chebyshev

Array = NDArray[np.float64]
LINEAR, LOGISTIC = jax.jit(moments.linear), jax.jit(moments.logistic)


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> Iterator[None]:
    with quick_and_double():
        yield


class Case:
    """Parameters of a regression whose features are normal with a mean, and perhaps follow a constant."""

    def __init__(self, d: int, scale: float, seed: int, constant: float | None, sigma2: float = 0.7) -> None:
        rng = np.random.default_rng(seed)
        A = rng.normal(size=(d, d))
        self.Sigma = scale**2 * (A @ A.T / d + 0.2 * np.eye(d))
        self.mean = scale * rng.normal(size=d) * (seed % 2)
        self.constant, self.sigma2 = constant, sigma2
        self.theta = rng.normal(size=d + (constant is not None))

    @property
    def known(self) -> dict[str, Any]:
        return {"mean": self.mean, "constant": self.constant}

    def linear(self) -> tuple[Array, Array]:
        return LINEAR(self.theta, self.sigma2, self.Sigma, **self.known)

    def logistic(self) -> tuple[Array, Array]:
        return LOGISTIC(self.theta, self.Sigma, **self.known)

    def features(self, white: Array) -> Array:
        """Rows x of whitened coordinates, shapes ``(n, d)`` to ``(n, d + constant)``."""
        x = self.mean + white @ np.linalg.cholesky(self.Sigma).T
        return x if self.constant is None else np.insert(x, 0, self.constant, axis=1)


def statistics(x: Array, y: Array, square: bool) -> Array:
    """t of rows in the order that the statistic's labels state."""
    d = x.shape[1]
    columns = [x[:, i] * x[:, j] for i in range(d) for j in range(i, d)] + [x[:, j] * y for j in range(d)]
    return np.stack(columns + [y * y] * square, axis=1)


def weighted(t: Array, w: Array) -> tuple[Array, Array]:
    mean = w @ t
    return mean, (t - mean).T @ (w[:, None] * (t - mean))


def linear_reference(case: Case) -> tuple[Array, Array]:
    """By Gauss-Hermite over whitened x and residuals: exact, as all integrands are polynomials of degree 4."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    d = len(case.Sigma)
    white = np.stack(np.meshgrid(*[nodes] * (d + 1)), axis=-1).reshape(-1, d + 1)
    w = np.stack(np.meshgrid(*[weights] * (d + 1)), axis=-1).reshape(-1, d + 1).prod(axis=1)
    x = case.features(white[:, :d])
    return weighted(statistics(x, x @ case.theta + np.sqrt(case.sigma2) * white[:, d], True), w / w.sum())


def logistic_reference(case: Case) -> tuple[Array, Array]:
    """By the trapezoidal rule over whitened x, with both labels in each point; it converges exponentially."""
    d = len(case.Sigma)
    points = np.linspace(-9.5, 9.5, 20_001 if d == 1 else 201)
    white = np.stack(np.meshgrid(*[points] * d), axis=-1).reshape(-1, d)
    density = np.exp(-(white**2).sum(axis=1) / 2)
    x = case.features(white)
    p = density / density.sum() * np.stack([expit(x @ case.theta), expit(-(x @ case.theta))])
    t = np.concatenate([statistics(x, np.full(len(x), y), False) for y in (1.0, -1.0)])
    return weighted(t, p.ravel())


def apart(found: tuple[Any, Any], expected: tuple[Array, Array]) -> float:
    """The largest difference, in standard deviations of the coordinates (in their size, where that is larger)."""
    size = np.maximum(np.abs(expected[0]), np.sqrt(np.diagonal(expected[1])))
    mean = np.abs(np.asarray(found[0]) - expected[0]) / size
    cov = np.abs(np.asarray(found[1]) - expected[1]) / np.outer(size, size)
    return float(max(mean.max(), cov.max()))


ONE = [Case(1, scale, seed, None) for scale, seed in ((1.0, 2), (1e-3, 3), (4.0, 5))]
TWO = [Case(2, scale, seed, constant) for scale, seed, constant in ((1.0, 2, None), (1e-3, 3, None), (1.0, 3, 0.5))]


def test_linear_moments_are_those_of_quadrature() -> None:
    for case in (*ONE, *TWO, Case(3, 1.0, 7, 0.5)):
        assert apart(case.linear(), linear_reference(case)) < 1e-12


@pytest.mark.long
def test_logistic_moments_are_those_of_quadrature() -> None:
    for case in (*ONE, *TWO):
        assert apart(case.logistic(), logistic_reference(case)) < 1e-10


@pytest.mark.parametrize("s", [1e-9, 0.05, 3.0, 30.0])
def test_logistic_moments_hold_for_scores_of_any_width(s: float) -> None:
    case = Case(1, 1.0, 4, None)
    case.theta = case.theta / np.abs(case.theta) * s / np.sqrt(case.Sigma[0, 0])
    assert apart(case.logistic(), logistic_reference(case)) < 1e-9


def _transposed_pair(V: Array, W: Array, m: Array, i: Array, j: Array) -> Array:
    a, b, k, one = i[:, None], j[:, None], i[None, :], j[None, :]
    return V[a, k] * W[b, one] + V[a, b] * W[one, k] + m[a] * (m[k] * V[b, one] + m[one] * V[b, k])


def _doubled_square(V: Array, W: Array, m: Array, i: Array, j: Array) -> Array:
    twice = np.where((i == len(m) - 1) & (j == len(m) - 1), 2.0, 1.0)
    return _right(V, W, m, i, j) * np.outer(twice, twice)


def _counted_twice(V: Array, W: Array, m: Array, i: Array, j: Array) -> Array:
    twice = np.where((i != j) & (j < len(m) - 1), np.sqrt(2), 1.0)
    return _right(V, W, m, i, j) * np.outer(twice, twice)


def _without_means(V: Array, W: Array, m: Array, i: Array, j: Array) -> Array:
    return _right(V, V, 0 * m, i, j)


_right = moments._products


@pytest.mark.long
@pytest.mark.parametrize("wrong", [_transposed_pair, _doubled_square, _counted_twice, _without_means])
def test_a_planted_mistake_is_seen(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(2, 1.0, 3, None)
    expected = linear_reference(case)
    assert apart(case.linear(), expected) < 1e-12
    monkeypatch.setattr(moments, "_products", wrong)
    assert (
        apart(jax.jit(lambda *at: moments.linear(*at, **case.known))(case.theta, case.sigma2, case.Sigma), expected)
        > 0.01
    )


@pytest.mark.long
def test_a_derivative_that_is_slightly_wrong_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the four one-dimensional means matters."""
    case = Case(2, 1.0, 3, 0.5)
    right = moments.derivative_means

    @jax.jit
    def logistic(factors: Any, theta: Any, Sigma: Any) -> Any:
        wrong = lambda *at: [one * factor for one, factor in zip(right(*at), factors, strict=True)]  # noqa: E731
        monkeypatch.setattr(moments, "derivative_means", wrong)
        return moments.logistic(theta, Sigma, **case.known)

    expected = logistic_reference(case)
    assert apart(logistic(np.ones(4), case.theta, case.Sigma), expected) < 1e-10
    for factors in 1 + 0.01 * np.eye(4):
        assert apart(logistic(factors, case.theta, case.Sigma), expected) > 1e-4


@pytest.mark.parametrize("logistic", [False, True])
def test_simulated_rows_of_the_statistic_have_these_moments(logistic: bool) -> None:
    """Its own coordinates, in its order. All 240 within 5 standard errors: a false alarm in some 7,000 seeds."""
    case, n = Case(3, 0.5, 9, 0.5), 40_000
    rng = np.random.default_rng(8)
    x = case.features(rng.standard_normal((n, 3)))
    u = x @ case.theta
    y = np.where(rng.random(n) < expit(u), 1.0, -1.0) if logistic else u + np.sqrt(0.7) * rng.standard_normal(n)
    wide = {"centre": (0.0,) * 4, "scale": (1.0,) * 4, "bound": (64.0,) * 4, "columns": ("a", "b", "c", "y")}
    statistic = Regression(**wide, intercept=True, intercept_bound=0.5, target_square=not logistic)
    rows = np.concatenate([x[:, -3:], y[:, None]], axis=1)
    t = statistic.evaluate(rows, 36) * 2.0**-36
    mean, cov = map(np.asarray, case.logistic() if logistic else case.linear())
    assert t.shape[1] == len(mean) == statistic.dimension
    off = t - mean
    squares = off[:, :, None] * off[:, None, :]
    for sample, expected in ((t, mean), (squares, cov)):
        error = sample.std(axis=0) / np.sqrt(n)
        np.testing.assert_array_less(np.abs(sample.mean(axis=0) - expected), 5 * error + 1e-4)


@pytest.mark.long
def test_covariances_are_positive_definite_and_gradients_those_of_differences() -> None:
    """For Σ of any size, coefficients of 0 among them, along a direction each; errors relative to the gradient's."""
    rng = np.random.default_rng(2)
    weights = {D: rng.normal(size=(D, D)) for D in (5, 6)}
    tilt = np.array([[1.0, 0.3], [0.3, -2.0]])

    def total(theta: Any, Sigma: Any, scale: float, logistic: bool) -> Any:
        mean, cov = moments.logistic(theta, Sigma) if logistic else moments.linear(theta, scale**2, Sigma)
        size = scale ** np.array([2.0, 2, 2, 1, 1] if logistic else [2.0] * 6)
        return (mean / size).sum() + (weights[mean.size] * cov / jnp.outer(size, size)).sum()

    for logistic in (False, True):
        slopes_of = jax.jit(jax.value_and_grad(lambda *at, logistic=logistic: total(*at, logistic), (0, 1)))
        for scale in (1e-6, 1.0, 1e3):
            for theta in (np.zeros(2), np.array([0.3, -2.0]), np.array([3.0, -2.0]) / (scale if logistic else 1)):
                case = Case(2, scale, 6, None, sigma2=scale**2)
                case.theta = theta
                cov = np.asarray((case.logistic() if logistic else case.linear())[1])
                sd = np.sqrt(np.diagonal(cov))
                assert np.linalg.eigvalsh(cov / np.outer(sd, sd)).min() > 1e-6
                unit = np.abs(theta).max() or (1 / scale if logistic else 1.0)
                steps = 1e-5 * unit * rng.normal(size=2), 1e-5 * scale**2 * tilt
                _, slopes = slopes_of(theta, case.Sigma, scale)
                ahead, back = (slopes_of(theta + w * steps[0], case.Sigma + w * steps[1], scale)[0] for w in (1, -1))
                parts = np.concatenate([np.ravel(one * way) for one, way in zip(slopes, steps, strict=True)])
                assert np.all(np.isfinite(parts))
                assert parts.sum() == pytest.approx(float(ahead - back) / 2, abs=1e-5 * np.abs(parts).sum())


# The sigmoid under a normal law


def _exact(m: float, s: float) -> Array:
    """E of the sigmoid and its first three derivatives: 40,000 even steps within 14 standard deviations of the mode."""
    z = np.linspace(-14, 14, 40_001) + min(s, -m / s if m < 0 else 0.0)
    u = m + s * z
    p, other = expit(u), expit(-u)
    slope = p * other
    return np.stack([p, slope, slope * (other - p), slope * (1 - 6 * slope)]) @ stats.norm.pdf(z) * (z[1] - z[0])


WIDTHS = [(0.0, 0.3), (-0.7, 0.99), (2.0, 1.01), (-20.0, 1.0), (1.0, 4.0), (-12.0, 4.0), (0.0, 30.0), (-90.0, 30.0)]


MEANS = jax.jit(logistic_normal.log_means)
DERIVATIVES = jax.jit(lambda m, v: logistic_normal.derivative_means(m, v, 3))


@pytest.mark.parametrize(("m", "s"), WIDTHS)
def test_the_means_of_the_sigmoid_and_its_derivatives(m: float, s: float) -> None:
    """To 1e-12 relative to E[σ(u)], in its tail too (4e-9 and 2e-4 here)."""
    exact = _exact(m, s)
    np.testing.assert_allclose(DERIVATIVES(m, s * s), exact, rtol=0, atol=1e-12 * exact[0])
    one, zero = MEANS(m, s * s)
    assert float(one) == pytest.approx(np.log(exact[0]), abs=1e-12)
    assert float(np.exp(one) + np.exp(zero)) == pytest.approx(1, abs=1e-14)


@pytest.mark.long
def test_a_law_without_width_is_a_point_and_far_tails_have_logarithms_and_gradients() -> None:
    m, v = np.array([-800.0, -40.0, -1.0, 0.0, 3.0, 800.0]), np.array([0.0, 1e-12, 0.5, 1.0, 9.0, 1e4])
    one, zero = MEANS(m, 0.0)
    np.testing.assert_allclose(one, -np.logaddexp(0, -m), rtol=1e-13)
    np.testing.assert_allclose(zero, -np.logaddexp(0, m), rtol=1e-13)
    grid = jax.vmap(jax.vmap(jax.grad(lambda m, v: logistic_normal.log_means(m, v)[0], (0, 1)), (0, None)), (None, 0))
    by_m, by_v = map(np.asarray, jax.jit(grid)(m, v))
    assert np.all(np.isfinite(by_m))
    assert np.all(np.isfinite(by_v))
    assert np.all(by_m >= 0)
    np.testing.assert_allclose(by_m[0], expit(-m), rtol=1e-13)
    np.testing.assert_allclose(by_v[0], expit(-m) * (0.5 - expit(m)), rtol=1e-12)


# Chebyshev's polynomials


def test_polynomials_come_near_the_sigmoid_and_order_2_is_a_line() -> None:
    u = np.linspace(-3, 3, 999)
    errors = [np.abs(polyval(u, chebyshev.sigmoid(order)) - expit(u)).max() for order in range(20)]
    assert errors[1] == errors[2] == pytest.approx(0.067, abs=1e-3)
    assert errors[3] == errors[4] == pytest.approx(0.011, abs=1e-3)
    assert errors[19] < 1e-8
    assert chebyshev.sigmoid(2)[2] == 0
    assert chebyshev.sigmoid(0).tolist() == [0.5]
    wide = np.linspace(-10, 10, 999)
    assert np.abs(polyval(wide, chebyshev.sigmoid(19, 10.0)) - expit(wide)).max() < 2e-3


def test_coefficients_of_chebyshevs_polynomials_are_not_those_of_powers() -> None:
    """The mistake that has been published would be seen."""
    naive = np.polynomial.chebyshev.chebinterpolate(lambda x: expit(3 * x), 64)[:6] / 3.0 ** np.arange(6)
    assert np.abs(naive - chebyshev.sigmoid(5)).max() > 0.01


def test_a_polynomials_mean_is_that_of_quadrature() -> None:
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    m = np.linspace(-2, 2, 5)
    for v in (0.0, 0.3, 4.0):
        for coefficients in (chebyshev.sigmoid(0), chebyshev.sigmoid(2), np.arange(1.0, 12.0)):
            u = m[:, None] + np.sqrt(v) * nodes
            expected = polyval(u, coefficients) @ weights / weights.sum()
            np.testing.assert_allclose(chebyshev.mean(coefficients, m, v), expected, rtol=1e-11)


@pytest.mark.parametrize(("order", "radius"), [(-1, 3.0), (21, 3.0), (2, 0.0), (2, np.inf), (2, np.nan)])
def test_orders_and_radii_without_a_polynomial_are_refused(order: int, radius: float) -> None:
    with pytest.raises(DataError, match=r"a Chebyshev (order|radius) of .*; give"):
        chebyshev.sigmoid(order, radius)
