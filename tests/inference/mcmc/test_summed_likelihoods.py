"""The likelihood of noisy sums against SciPy's normal density, with any noise or none, and its gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from compiling import quick_and_double
from numpy.typing import NDArray
from scipy import stats

from inference.mcmc.model import law
from inference.mcmc.sums import NoisySums
from inference.models.glm import moments

Array = NDArray[np.float64]


def density(value: Any, n: Any, noise: Any, row: tuple[Any, Any], constant: float | None) -> Any:
    """Of all coordinates but a constant's square, which is public."""
    seen = slice(int(constant is not None), value.shape[0])
    sums = NoisySums(value[seen], noise[seen], n)
    return law(sums, row[0][seen], row[1][seen, seen]).log_prob(sums.value)


@jax.jit
def LINEAR(value: Any, n: Any, noise: Any, theta: Any, sigma2: Any, Sigma: Any, **known: Any) -> Any:  # noqa: N802
    return density(value, n, noise, moments.linear(theta, sigma2, Sigma, **known), known.get("constant"))


@jax.jit
def LOGISTIC(value: Any, n: Any, noise: Any, theta: Any, Sigma: Any, **known: Any) -> Any:  # noqa: N802
    return density(value, n, noise, moments.logistic(theta, Sigma, **known), known.get("constant"))


OF_LINEAR, OF_LOGISTIC = jax.jit(moments.linear), jax.jit(moments.logistic)
THETA, SIGMA2 = np.array([0.8, -1.5]), 0.4
SIGMA = np.array([[0.5, 0.2], [0.2, 0.3]])
NOISES = [0.0, 1e-8, 1.0, 1e3, 1e9]  # of one sum; ε = 20 to 0.01 span about 1 to 1e6 times n


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> Iterator[None]:
    with quick_and_double():
        yield


def rows_moments(logistic: bool, theta: Array = THETA, Sigma: Array = SIGMA, **known: Any) -> tuple[Array, Array]:
    made = OF_LOGISTIC(theta, Sigma, **known) if logistic else OF_LINEAR(theta, SIGMA2, Sigma, **known)
    return np.asarray(made[0]), np.asarray(made[1])


def found(logistic: bool, value: Array, n: float, noise: Any, theta: Any, Sigma: Any, **known: Any) -> float:
    given = value, n, np.broadcast_to(noise, value.shape), theta  # of one type each, so that nothing is compiled twice
    return float(LOGISTIC(*given, Sigma, **known) if logistic else LINEAR(*given, SIGMA2, Sigma, **known))


def expected(value: Array, n: float, noise: Any, row: tuple[Array, Array]) -> float:
    """SciPy's, of coordinates in their own standard deviations, so that it takes no small variance for none."""
    cov = n * row[1] + np.diag(np.broadcast_to(noise, value.shape))
    sd = np.sqrt(np.diagonal(cov))
    scaled = stats.multivariate_normal(np.zeros(len(sd)), cov / np.outer(sd, sd))
    return float(scaled.logpdf((value - n * row[0]) / sd) - np.log(sd).sum())


@pytest.mark.parametrize("logistic", [False, pytest.param(True, marks=pytest.mark.long)])
def test_it_is_the_normal_density(logistic: bool) -> None:
    """Near and 30 standard deviations off, for any noise; and one with half of n's covariance is distinguished."""
    rng = np.random.default_rng(1)
    row = rows_moments(logistic)
    for noise in NOISES:
        for n in (1.0, 500.0, 1e6):
            for far in (1.0, 30.0):
                sd = np.sqrt(n * np.diagonal(row[1]) + noise)
                value = n * row[0] + far * sd * rng.standard_normal(len(sd))
                exact = expected(value, n, noise, row)
                assert found(logistic, value, n, noise, THETA, SIGMA) == pytest.approx(exact, rel=1e-9, abs=1e-9)
                assert abs(expected(value, n, noise, (row[0], row[1] / 2)) - exact) > 0.01 or noise > 100 * n


@pytest.mark.long
@pytest.mark.parametrize("logistic", [False, True])
def test_each_coordinate_has_its_own_noise_and_weights_are_divided_out(logistic: bool) -> None:
    """What was released with weights w is N(w·nμ, n wCw + s²): the same but for the Jacobian, Σ ln w."""
    row, n, s2 = rows_moments(logistic), 200.0, 50.0
    w = np.repeat([3.0, 1.0, 5.0], [3, 2, 1])[: len(row[0])]
    released = w * (n * row[0] + np.arange(len(w)))
    exact = expected(released, n, s2, (w * row[0], w[:, None] * row[1] * w))
    assert found(logistic, released / w, n, s2 / w**2, THETA, SIGMA) + -np.log(w).sum() == pytest.approx(exact)
    assert abs(found(logistic, released / w, n, s2, THETA, SIGMA) - np.log(w).sum() - exact) > 0.1


@pytest.mark.long
def test_without_the_targets_squares_it_is_the_marginal() -> None:
    mean, cov = rows_moments(False)
    value = 100 * mean + 3.0
    assert found(False, value[:-1], 100.0, 2.0, THETA, SIGMA) == pytest.approx(
        expected(value[:-1], 100.0, 2.0, (mean[:-1], cov[:-1, :-1]))
    )


@pytest.mark.long
@pytest.mark.parametrize("logistic", [False, True])
@pytest.mark.parametrize("noise", [0.0, 20.0])
def test_a_constants_own_square_carries_no_information(logistic: bool, noise: float) -> None:
    known: dict[str, Any] = {"mean": np.array([0.3, -0.1]), "constant": 0.5}
    theta = np.array([0.4, *THETA])
    mean, cov = rows_moments(logistic, theta, **known)
    value = 100 * mean + 1.0
    exact = expected(value[1:], 100.0, noise, (mean[1:], cov[1:, 1:]))
    for square in (value[0], -7.0, np.nan):
        value[0] = square
        assert found(logistic, value, 100.0, noise, theta, SIGMA, **known) == pytest.approx(exact)


@pytest.mark.long
def test_it_integrates_to_one() -> None:
    """Over both sums of a logistic regression of one feature, with and without noise."""
    theta, Sigma = np.array([1.2]), np.array([[0.6]])
    mean, cov = rows_moments(True, theta, Sigma)
    steps = np.linspace(-8, 8, 33)
    for noise in (0.0, 25.0):
        sd = np.sqrt(30 * np.diagonal(cov) + noise)
        grid = 30 * mean + sd * np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 2)
        density = np.exp([found(True, value, 30.0, noise, theta, Sigma) for value in grid])
        assert density.sum() * sd.prod() * 0.5**2 == pytest.approx(1, abs=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("logistic", [False, True])
def test_gradients_are_finite_and_those_of_differences(logistic: bool) -> None:
    """Σ from tiny to large and of very different scales within, noise relative to the sums or none."""
    rng = np.random.default_rng(3)

    def density(theta: Any, sd: Any, tilt: Any, given: Any) -> Any:
        Sigma = (SIGMA + tilt * np.array([[0.0, 1.0], [1.0, 0.0]])) * sd[:, None] * sd
        if logistic:
            return LOGISTIC(*given, theta, Sigma)
        return LINEAR(*given, theta, SIGMA2, Sigma)

    slopes_of = jax.jit(jax.value_and_grad(density, argnums=(0, 1, 2)))
    for sd in (np.full(2, 1e-4), np.ones(2), np.array([1e3, 1e-3])):
        theta = THETA / sd
        row = rows_moments(logistic, theta, SIGMA * sd[:, None] * sd)
        size, n = np.sqrt(np.diagonal(row[1])), 1000.0
        for noise in (0.0, 1.0, 1e6):
            given = (
                n * row[0] + np.sqrt(n * (1 + noise)) * size * rng.standard_normal(len(size)),
                n,
                n * noise * size**2,
            )
            _, slopes = slopes_of(theta, sd, 0.05, given)
            steps = 1e-6 * theta * rng.standard_normal(2), 1e-6 * sd * rng.standard_normal(2), 1e-6
            ends = [
                slopes_of(*(x + way * step for x, step in zip((theta, sd, 0.05), steps, strict=True)), given)[0]
                for way in (1, -1)
            ]
            parts = np.concatenate([np.ravel(one * step) for one, step in zip(slopes, steps, strict=True)])
            assert np.all(np.isfinite(parts))
            assert parts.sum() == pytest.approx(float(ends[0] - ends[1]) / 2, abs=1e-5 * np.abs(parts).sum() + 1e-9)
