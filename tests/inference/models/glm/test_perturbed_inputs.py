"""Likelihoods of perturbed rows against integration over the true ones, for any noise, and their gradients.

The references integrate the model's joint density, written down with SciPy's densities, by the trapezoidal rule, which
converges exponentially for these integrands, about wherever the joint density is largest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import quick_and_double
from long_cases import mostly_long
from numpy.polynomial.polynomial import polyval
from numpy.typing import NDArray
from scipy import stats
from scipy.special import logsumexp

from inference.models.glm import perturbed
from papers.ldp2021 import chebyshev

Array = NDArray[np.float64]
SCATTER, LABELLED = jax.jit(perturbed.linear_scatter), jax.jit(perturbed.logistic_scatter, static_argnames="mean")
EPSILONS = (0.01, 0.3, 2.0, 20.0)


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> Iterator[None]:
    with quick_and_double():
        yield


def noise_sd(epsilon: float) -> float:
    """About what a report of sensitivity 2 needs at δ = 1e-5: enough to span what there is."""
    return 2 * (1 / epsilon + 1 / np.sqrt(2 * epsilon)) * 3


class Model:
    """Parameters of d features."""

    def __init__(self, d: int, scale: float, seed: int) -> None:
        rng = np.random.default_rng(seed)
        A = rng.normal(size=(d, d))
        self.d, self.sigma2 = d, 0.3 * scale**2
        self.Sigma = scale**2 * (A @ A.T / d + 0.2 * np.eye(d))
        self.theta = np.linspace(2.5, -1.5, d) / scale


MODELS = [Model(1, 1.0, 0), Model(1, 1e-3, 1), Model(2, 1.0, 2), Model(2, 30.0, 3)]


def linear(model: Model, zx: Array, zy: float, var_x: Any, var_y: float) -> float:
    """ln p of one row, always in the same shapes and types, so that nothing is compiled twice."""
    noise, w = np.broadcast_to(var_x, model.d), np.append(zx, zy)
    return float(SCATTER(np.outer(w, w), 1.0, model.theta, model.sigma2, model.Sigma, noise, float(var_y)))


def logistic(
    model: Model, zx: Array, zy: int, var_x: Any, p: float, order: int | None = None, offset: float = 0.0
) -> float:
    """The same of a labelled row."""
    given = zx[None], np.array([zy]), model.theta, model.Sigma, np.broadcast_to(var_x, model.d), float(p)
    mean = order if order is None else chebyshev.clipped(order)
    return float(LABELLED(np.outer(zx, zx), *given, mean=mean, offset=float(offset)))


def integral(log_joint: Callable[[Array], Array], centre: Array, root: Array, reach: float, step: float) -> float:
    """ln of the integral of exp(log_joint), over a grid along the columns of the root."""
    line = np.arange(-reach, reach + step / 2, step)
    white = np.stack(np.meshgrid(*[line] * len(centre)), axis=-1).reshape(-1, len(centre))
    logs = log_joint(centre + white @ root.T)
    return float(logsumexp(logs) + np.log(step) * len(centre) + np.linalg.slogdet(root)[1])


def features(model: Model, zx: Array, var_x: Array) -> Callable[[Array], Array]:
    """ln p(x) p(z_x | x) of rows x."""
    prior = stats.multivariate_normal(np.zeros(model.d), model.Sigma)
    return lambda x: prior.logpdf(x) + stats.norm.logpdf(zx, x, np.sqrt(var_x)).sum(axis=-1)


def linear_reference(model: Model, zx: Array, zy: float, var_x: Array, var_y: float) -> float:
    """Over (x, y). All is normal, so its precision and mode are those of the quadratic form in the exponent."""
    of_x = features(model, zx, var_x)

    def log_joint(w: Array) -> Array:
        x, y = w[:, :-1], w[:, -1]
        of_y = stats.norm.logpdf(y, x @ model.theta, np.sqrt(model.sigma2)) + stats.norm.logpdf(zy, y, np.sqrt(var_y))
        return of_x(x) + of_y

    contrast = np.append(-model.theta, 1.0)
    precision = np.outer(contrast, contrast) / model.sigma2 + np.diag(np.append(1 / var_x, 1 / var_y))
    precision[:-1, :-1] += np.linalg.inv(model.Sigma)
    mode = np.linalg.solve(precision, np.append(zx / var_x, zy / var_y))
    return integral(log_joint, mode, np.linalg.inv(np.linalg.cholesky(precision)).T, 9.0, 0.5)


def logistic_reference(
    model: Model, zx: Array, zy: int, var_x: Array, p: float, log_sigmoid: Callable[[Array], tuple[Array, Array]]
) -> float:
    """Over x, and the sum over y."""
    of_x = features(model, zx, var_x)

    def log_joint(x: Array) -> Array:
        one, zero = log_sigmoid(x @ model.theta)
        with np.errstate(divide="ignore"):
            log_response = np.log([p, 1 - p] if zy == 1 else [1 - p, p])
        return of_x(x) + np.logaddexp(log_response[0] + one, log_response[1] + zero)

    precision = np.linalg.inv(model.Sigma) + np.diag(1 / var_x)
    mode, root = np.linalg.solve(precision, zx / var_x), np.linalg.inv(np.linalg.cholesky(precision)).T
    return integral(log_joint, mode, root, 11.0, 0.02 if model.d == 1 else 0.1)


def sigmoid(u: Array) -> tuple[Array, Array]:
    return -np.logaddexp(0, -u), -np.logaddexp(0, u)


def cells(model: Model) -> Iterator[tuple[Array, Array, float]]:
    """Variances of features' and target's noise relative to the model's scale, and z from near to 12 sd out."""
    scale = np.sqrt(model.Sigma[0, 0])
    for epsilon in EPSILONS:
        var_x = (scale * noise_sd(epsilon)) ** 2 * np.linspace(1, 0.5, model.d)
        sd = np.sqrt(np.diagonal(model.Sigma) + var_x)
        for far in (0.4, -3.0, 12.0):
            yield var_x, far * sd * np.linspace(1, -0.5, model.d), far


@pytest.mark.parametrize("model", MODELS)
def test_linear_rows_are_the_integral_over_the_true_ones(model: Model) -> None:
    for var_x, zx, far in cells(model):
        var_y = 0.6 * var_x[0]
        zy = -1.5 * far * np.sqrt(model.theta @ model.Sigma @ model.theta + model.sigma2 + var_y)
        exact = linear_reference(model, zx, zy, var_x, var_y)
        assert linear(model, zx, zy, var_x, var_y) == pytest.approx(exact, abs=1e-8)  # the density itself to 1e-8


@pytest.mark.parametrize("model", mostly_long(MODELS, lambda model: model.d == 1))
def test_logistic_rows_are_the_integral_over_the_true_ones(model: Model) -> None:
    """The exact sigmoid; p from a label that is almost pure noise to one without noise."""
    for var_x, zx, _ in cells(model):
        for zy, p in ((1, 0.5025), (0, 0.9), (1, 1 / (1 + np.exp(-20))), (0, 1.0)):
            exact = logistic_reference(model, zx, zy, var_x, p, sigmoid)
            assert logistic(model, zx, zy, var_x, p) == pytest.approx(exact, abs=1e-8)


@pytest.mark.parametrize("order", [2, 5])
def test_polynomials_are_the_integral_of_the_polynomial(order: int) -> None:
    """Where their mean is a probability. Elsewhere, far out, that is clipped."""
    coefficients, model, seen = chebyshev.sigmoid(order), Model(1, 0.5, 0), []
    for var_x, zx, _ in cells(model):
        variance = model.Sigma[0, 0] + var_x
        m = float(zx @ (model.Sigma @ model.theta / variance))
        sd = float(np.abs(model.theta[0]) * np.sqrt(model.Sigma[0, 0] * var_x / variance)[0])
        u = m + np.linspace(-12, 12, 2001) * sd
        one = float(np.trapezoid(polyval(u, coefficients) * stats.norm.pdf(u, m, sd), u))
        seen.append(chebyshev.CLIP <= one <= 1 - chebyshev.CLIP)
        for zy, s in ((1, one), (0, 1 - one)):
            s = s if seen[-1] else np.clip(s, chebyshev.CLIP, 1 - chebyshev.CLIP)
            exact = stats.norm.logpdf(zx, 0, np.sqrt(variance)).sum() + np.log(0.2 + 0.6 * s)
            assert logistic(model, zx, zy, var_x, 0.8, order) == pytest.approx(exact, abs=1e-8)
    assert set(seen) == {True, False}


def test_order_2_can_make_a_likelihood_negative_and_then_it_is_clipped() -> None:
    """The paper's polynomial on [-3, 3] at u = -6, with a label without noise: ½ - 6·0.168 < 0. The exact is not."""
    model, zx = Model(1, 1.0, 0), np.array([-3.0])
    model.theta, model.Sigma = np.array([2.0]), np.eye(1)
    assert polyval(-6.0, chebyshev.sigmoid(2)) < -0.5
    of_x = stats.norm.logpdf(-3.0)
    assert logistic(model, zx, 1, 0.0, 1.0, 2) == pytest.approx(of_x + np.log(chebyshev.CLIP))
    assert logistic(model, zx, 0, 0.0, 1.0, 2) == pytest.approx(of_x, abs=1e-5)
    assert logistic(model, zx, 1, 0.0, 1.0) == pytest.approx(of_x - np.logaddexp(0, 6.0))


def test_densities_integrate_to_one() -> None:
    """Over z_x and z_y; of polynomials that are clipped on the way too."""
    model, var_x, step = MODELS[0], 0.7, 0.4
    line = np.arange(-14, 14.01, step)
    density = np.exp([linear(model, np.array([x]), y, var_x, 0.4) for x in line for y in line])
    assert density.sum() * step**2 == pytest.approx(1, abs=1e-9)
    for order in (None, 2):
        density = np.exp([logistic(model, np.array([x]), y, var_x, 0.8, order) for x in line for y in (0, 1)])
        assert density.sum() * step == pytest.approx(1, abs=1e-9)


def test_the_scatter_is_enough_for_a_linear_model() -> None:
    rng = np.random.default_rng(0)
    model, n, var_x = MODELS[2], 100, np.array([2.0, 0.5])
    zx, zy = rng.normal(size=(n, 2)) * [3.0, 0.1], rng.normal(size=n)
    rows, terms = np.c_[zx, zy], (model.theta, model.sigma2, model.Sigma, var_x, 0.3)
    total = sum(linear(model, x, y, var_x, 0.3) for x, y in zip(zx, zy, strict=True))
    assert float(SCATTER(rows.T @ rows, float(n), *terms)) == pytest.approx(total, rel=1e-12)
    assert abs(float(SCATTER(rows.T @ rows, n + 1.0, *terms)) - total) > 0.1


@pytest.mark.parametrize("order", mostly_long([2, 5, None], [5]))
def test_of_a_logistic_models_features_the_scatter_is_enough(order: int | None) -> None:
    rng = np.random.default_rng(0)
    model, n = MODELS[2], 100
    zx, zy = rng.normal(size=(n, 2)) * [3.0, 0.1], rng.random(n) < 0.3
    terms = model.theta, model.Sigma, np.array([2.0, 0.5]), 0.8, order if order is None else chebyshev.clipped(order)
    found = float(LABELLED(zx.T @ zx, zx, zy, *terms, offset=0.3))
    each = [logistic(model, x, y, terms[2], 0.8, order, 0.3) for x, y in zip(zx, zy.astype(int), strict=True)]
    assert found == pytest.approx(sum(each), rel=1e-12)
    assert abs(float(LABELLED(1.1 * zx.T @ zx, zx, zy, *terms, offset=0.3)) - found) > 0.1


def test_without_noise_it_is_the_likelihood_of_the_rows_themselves() -> None:
    rng = np.random.default_rng(4)
    model = MODELS[2]
    for x, y in zip(rng.normal(size=(20, 2)), rng.normal(size=20), strict=True):
        of_x, u = stats.multivariate_normal(np.zeros(2), model.Sigma).logpdf(x), float(x @ model.theta)
        of_y = stats.norm.logpdf(y, u, np.sqrt(model.sigma2))
        assert linear(model, x, y, 0.0, 0.0) == pytest.approx(of_x + of_y, rel=1e-12)
        label = int(y > 0)
        assert logistic(model, x, label, 0.0, 1.0) == pytest.approx(of_x + sigmoid(np.array(u))[1 - label], rel=1e-12)


def test_means_and_intercepts_are_offsets() -> None:
    """x ~ N(μ, Σ) and an intercept α, by integration over x - μ."""
    model, mean, alpha, zx = MODELS[0], np.array([0.7]), -0.4, np.array([1.9])
    offset = alpha + float(mean @ model.theta)
    exact = logistic_reference(model, zx - mean, 1, np.array([0.5]), 0.8, lambda u: sigmoid(u + offset))
    assert logistic(model, zx - mean, 1, 0.5, 0.8, offset=offset) == pytest.approx(exact, abs=1e-8)
    assert abs(logistic(model, zx - mean, 1, 0.5, 0.8) - exact) > 0.01


def test_likely_mistakes_would_be_seen() -> None:
    """The references reject a formula without u's variance, with flipped labels, or with z_x unshrunk."""
    model, zx, var_x, p = MODELS[0], np.array([1.3]), 0.8, 0.9
    exact = logistic_reference(model, zx, 1, np.array([var_x]), p, sigmoid)
    assert logistic(model, zx, 1, var_x, p) == pytest.approx(exact, abs=1e-8)
    of_x = stats.norm.logpdf(zx[0], 0, np.sqrt(model.Sigma[0, 0] + var_x))
    shrunk = float(model.Sigma[0] @ model.theta * zx[0] / (model.Sigma[0, 0] + var_x))
    for u in (shrunk, float(zx @ model.theta)):
        one, zero = sigmoid(np.array(u))
        assert abs(of_x + np.logaddexp(np.log(p) + one, np.log(1 - p) + zero) - exact) > 1e-3
    assert abs(logistic(model, zx, 0, var_x, p) - exact) > 1e-3
    for zy in (0.5, 40.0):
        right = linear_reference(model, zx, zy, np.array([var_x]), 0.4)
        too_narrow = of_x + stats.norm.logpdf(zy, shrunk, np.sqrt(model.sigma2 + 0.4))
        assert abs(too_narrow - right) > 1e-3
        assert linear(model, zx, zy, var_x, 0.4) == pytest.approx(right, abs=1e-8)


@pytest.mark.parametrize("kind", mostly_long(["linear", "exact", "polynomial"], ["linear"]))
def test_gradients_are_finite_and_those_of_differences(kind: str) -> None:
    """Σ from tiny to large, noise for ε from 0.01 to 20 and none, rows near and far."""
    rng = np.random.default_rng(5)
    base = MODELS[2]
    zx, zy = rng.normal(size=(30, 2)) * np.geomspace(0.1, 10, 30)[:, None], rng.normal(size=30)

    def density(theta: Any, sd: Any, given: Any) -> Any:
        x, y, var_x, p = given
        Sigma = base.Sigma * sd[:, None] * sd
        if kind == "linear":
            w = jnp.column_stack([x, y])
            return perturbed.linear_scatter(w.T @ w, float(len(x)), theta, 0.3, Sigma, var_x, var_x)
        mean = None if kind == "exact" else chebyshev.clipped(2)
        return perturbed.logistic_scatter(x.T @ x, x, y > 0, theta, Sigma, var_x, p, mean)

    slopes_of = jax.jit(jax.value_and_grad(density, argnums=(0, 1)))
    for sd in (np.full(2, 1e-4), np.ones(2), np.array([1e3, 1e-2])):
        for theta in (np.zeros(2), base.theta / sd):
            for epsilon in (*EPSILONS, None):
                var_x = 0.0 if epsilon is None else float((sd.max() * noise_sd(epsilon)) ** 2)
                p = 1.0 if epsilon is None else float(1 / (1 + np.exp(-epsilon)))
                given = zx * np.sqrt(sd**2 + var_x), zy * np.sqrt(1 + var_x), var_x, p
                _, slopes = slopes_of(theta, sd, given)
                steps = 1e-6 / sd * rng.standard_normal(2), 1e-6 * sd * rng.standard_normal(2)
                ahead, back = (slopes_of(theta + w * steps[0], sd + w * steps[1], given)[0] for w in (1, -1))
                parts = np.concatenate([one * step for one, step in zip(slopes, steps, strict=True)])
                assert np.all(np.isfinite(parts))
                assert parts.sum() == pytest.approx(
                    float(ahead - back) / 2, abs=1e-5 * np.abs(parts).sum() + 1e-13 * abs(float(ahead))
                )


@pytest.mark.long
def test_the_laws_of_rows_one_by_one_add_up_to_that_of_their_scatter() -> None:
    model, rng = MODELS[2], np.random.default_rng(5)
    zx, zy, var_x, p = rng.normal(size=(7, 2)), rng.normal(size=7), np.array([0.3, 2.0]), 0.8
    w = np.column_stack([zx, zy])
    known = model.theta, model.sigma2, model.Sigma, var_x, 0.7
    rows = perturbed.linear_rows(zx, zy, *known)
    assert rows.shape == (7,)
    assert float(rows.sum()) == pytest.approx(float(SCATTER(w.T @ w, 7.0, *known)), rel=1e-12)
    given = zx, (zy > 0).astype(float), model.theta, model.Sigma, var_x, p, lambda m, v: 1 / (1 + jnp.exp(-m - v))
    together = perturbed.logistic_scatter(zx.T @ zx, *given, offset=0.4)
    assert float(perturbed.logistic_rows(*given, offset=0.4).sum()) == pytest.approx(float(together), rel=1e-12)
