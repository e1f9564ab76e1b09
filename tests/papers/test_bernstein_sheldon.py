"""MCMC-B&S has no joint distribution, so each of its steps is tested by itself, exactly; then its calibration where n
is large and its models agree; and that a run which stays where it started is found out.

Seeded; the chance of a false alarm, over all seeds, is stated where there is one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import quick_and_double
from scipy.stats import chi2, invgamma, multivariate_normal, wishart

from inference.draws import mixing
from inference.errors import DataError
from inference.models.linear.nodes.observed import NodeStatistics, Prior
from papers.mcmc2023.samplers import bernstein_sheldon as bs
from papers.mcmc2023.samplers.kernel import Noise, bartlett_count
from papers.mcmc2023.samplers.sampler import sample

Array = np.ndarray
D2 = 2
THETA, SIGMA_Y2, SIGMA_X = np.array([0.7, -1.2]), 0.4, np.array([[1.5, 0.6], [0.6, 0.8]])
PRIOR = Prior(
    np.array([0.3, -0.2]), np.array([[2.0, 0.5], [0.5, 1.0]]), np.array(3.0), np.array(1.2), np.eye(2), np.array(5.0)
)


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> Iterator[None]:
    with quick_and_double():
        yield


def a_state() -> bs.State:
    root = jnp.asarray(np.linalg.cholesky(SIGMA_X))
    return bs.State(jnp.asarray(THETA), jnp.asarray(SIGMA_Y2), root, jnp.zeros((1, 2, 2)))


def release(rng: np.random.Generator, n: int, sd: float, J: int = 1) -> NodeStatistics:
    """The statistics of rows that are normal, as in the model, are Wishart."""
    V = np.block([[SIGMA_X, (SIGMA_X @ THETA)[:, None]], [THETA @ SIGMA_X, THETA @ SIGMA_X @ THETA + SIGMA_Y2]])
    noise = sd * rng.standard_normal((J, 3, 3))
    W = wishart(n, V).rvs(J, random_state=rng).reshape(J, 3, 3)
    W = W + np.triu(noise) + np.swapaxes(np.triu(noise, 1), 1, 2)
    variance = np.full(J, sd**2)
    return NodeStatistics(W[:, :2, :2], W[:, :2, 2], np.full(J, float(n)), variance, variance, W[:, 2, 2], variance)


@cache
def row_root() -> Array:
    return np.asarray(jax.jit(bs.row_root)(a_state()))


def row_moments() -> tuple[Array, Array]:
    """Mean and covariance of the unique terms of wwᵀ, term by term from E[w_i w_j w_k w_l]."""
    B = row_root()
    V = B @ B.T
    pairs = list(itertools.combinations_with_replacement(range(3), 2))
    fourth = {
        (p, q): V[p[0], p[1]] * V[q[0], q[1]] + V[p[0], q[0]] * V[p[1], q[1]] + V[p[0], q[1]] * V[p[1], q[0]]
        for p in pairs
        for q in pairs
    }
    mean = np.array([V[p] for p in pairs])
    return mean, np.array([[fourth[p, q] for q in pairs] for p in pairs]) - np.outer(mean, mean)


def test_moments_of_a_row() -> None:
    """Against the definition, and against 1e5 rows that are drawn: each within 5.5 standard errors, so 1e-6 in all."""
    mean, T = row_moments()
    B = row_root()
    np.testing.assert_allclose(B @ B.T, np.block([
        [SIGMA_X, (SIGMA_X @ THETA)[:, None]], [THETA @ SIGMA_X, THETA @ SIGMA_X @ THETA + SIGMA_Y2]
    ]))  # fmt: skip
    np.testing.assert_allclose(np.asarray(jax.jit(bs.row_covariance)(B @ B.T)), T, rtol=1e-12)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((100_000, 2)) @ np.linalg.cholesky(SIGMA_X).T
    w = np.c_[x, x @ THETA + np.sqrt(SIGMA_Y2) * rng.standard_normal(len(x))]
    i, j = np.triu_indices(3)
    drawn = w[:, i] * w[:, j]
    assert np.all(np.abs(drawn.mean(axis=0) - mean) < 5.5 * np.sqrt(np.diag(T) / len(x)))
    centred = drawn - mean
    for k in range(6):
        products = centred[:, k:] * centred[:, k : k + 1]
        assert np.all(np.abs(products.mean(axis=0) - T[k, k:]) < 5.5 * products.std(axis=0) / np.sqrt(len(x)))


@pytest.mark.parametrize("groups", [None, (0, 1, 0)])
def test_the_statistics_are_drawn_from_their_conditional(groups: tuple[int, ...] | None) -> None:
    """The draw is affine in its normals, so its mean and covariance can be read off, and are the dense formula's."""
    rng = np.random.default_rng(2)
    n = np.array([50.0, 7.0, 50.0])
    S, z, u = rng.normal(size=(3, 2, 2)), rng.normal(size=(3, 2)), 30 * rng.uniform(size=3)
    S = 20 * (S + np.swapaxes(S, 1, 2))
    variances = np.array([[9.0, 4.0, 2.0], [1.0, 0.5, 30.0], [9.0, 4.0, 2.0]])
    observed = NodeStatistics(S, z, n, *variances.T[:2], u, variances[:, 2])
    draw = partial(bs.conditional_statistics, groups=groups)
    normals = np.concatenate(
        [np.zeros((1, 2, 3, 6)), *(np.tile(np.eye(12)[k].reshape(2, 1, 6), (1, 1, 3, 1)) for k in range(12))]
    )
    found = jax.jit(jax.vmap(lambda e: bs.unique(draw(a_state(), jax.tree.map(jnp.asarray, observed), *e))))(normals)
    centre, factors = np.asarray(found[0]), np.asarray(found[1:] - found[0])
    mean, T = row_moments()
    for j in range(3):
        R = np.diag(variances[j][[0, 0, 1, 0, 1, 2]])
        released = np.array([S[j, 0, 0], S[j, 0, 1], z[j, 0], S[j, 1, 1], z[j, 1], u[j]])
        cov = np.linalg.inv(np.linalg.inv(n[j] * T) + np.linalg.inv(R))
        expected = cov @ (np.linalg.solve(T, mean) + released / np.diag(R))
        np.testing.assert_allclose(centre[j], expected, rtol=1e-8)
        np.testing.assert_allclose(factors[:, j].T @ factors[:, j], cov, rtol=1e-7, atol=1e-9)


def test_the_regression_has_its_normal_inverse_gamma_posterior() -> None:
    """Against likelihood times prior of 40 rows, whose ratio to it is the same everywhere."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(40, 2))
    y = X @ THETA + rng.normal(size=40)
    update = jax.jit(bs.normal_inverse_gamma, static_argnames="published")
    found = update(X.T @ X, X.T @ y, y @ y, 40.0, PRIOR)
    A = np.asarray(found.root) @ np.asarray(found.root).T
    A_0 = PRIOR.b / PRIOR.a * np.linalg.inv(PRIOR.C)
    ratios = []
    for theta, sigma_y2 in ((THETA, 1.0), (np.zeros(2), 2.0), (np.array([1.0, -1.0]), 0.6)):
        joint = multivariate_normal(PRIOR.m, sigma_y2 * np.linalg.inv(A_0)).logpdf(theta)
        joint += invgamma(PRIOR.a, scale=PRIOR.b).logpdf(sigma_y2)
        joint += -20 * np.log(sigma_y2) - ((y - X @ theta) ** 2).sum() / (2 * sigma_y2)
        posterior = multivariate_normal(np.asarray(found.mu), sigma_y2 * np.linalg.inv(A)).logpdf(theta)
        ratios.append(joint - posterior - invgamma(float(found.a), scale=float(found.b)).logpdf(sigma_y2))
    np.testing.assert_allclose(ratios, ratios[0], rtol=1e-10)
    impossible = update(X.T @ X, X.T @ y, 0.0, 40.0, PRIOR, published=True)
    assert float(impossible.b) == PRIOR.b  # y² too small for Xᵀy: as published, b_n is at least b
    root = np.asarray(impossible.root)
    np.testing.assert_allclose(root @ root.T, X.T @ X + PRIOR.b / (PRIOR.a - 1) * np.eye(2))


def test_parameters_are_drawn_from_their_conditionals() -> None:
    """Means and covariances over 2e4 draws, each of 14 within 5.5 standard errors: 1e-6 in all. S is not positive
    semi-definite, so it is replaced by the nearest that is, plus I as published."""
    rows, d = 12.0, 2
    W = np.array([[[20.0, 2.0, 5.0], [2.0, -3.0, 1.0], [5.0, 1.0, 40.0]]])
    observed = release(np.random.default_rng(8), 100, 5.0)._replace(n=np.array([rows]))

    before = bs.State(THETA, np.array(np.nan), np.full((2, 2), np.nan), W)

    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        noise = Noise(key, bartlett_count(d) + bartlett_count(1) + d)
        state = bs._parameters(noise, W, before, observed, PRIOR, True)
        return state.theta, state.sigma_y2, state.root @ state.root.T

    drawn = jax.jit(lambda: jax.vmap(draw)(jax.random.split(jax.random.key(4), 20_000)))()
    theta, sigma_y2, Sigma_x = map(np.asarray, drawn)
    values, vectors = np.linalg.eigh(W[0, :2, :2])
    S = vectors @ np.diag(np.maximum(values, 0)) @ vectors.T + np.eye(2)
    A_0, z = PRIOR.b / (PRIOR.a - 1) * np.eye(d), np.array([5.0, 1.0])
    A = S + A_0
    mu = np.linalg.solve(A, z + A_0 @ PRIOR.m)
    b = PRIOR.b + (40.0 + PRIOR.m @ A_0 @ PRIOR.m - mu @ A @ mu) / 2
    mean = b / (PRIOR.a + rows / 2 - 1)
    fine = np.isfinite(sigma_y2) & np.isfinite(Sigma_x[:, 0, 0])  # a refused candidate keeps the old value, here nan
    assert fine.mean() > 0.8
    centred = theta - mu
    for found, expected in (
        (theta, mu),
        (sigma_y2, mean),
        (centred[:, :, None] * centred[:, None], mean * np.linalg.inv(A)),
        (Sigma_x, (PRIOR.Lambda + S) / (PRIOR.kappa + rows - d - 1)),
        (sigma_y2 * Sigma_x[:, 0, 1], mean * (PRIOR.Lambda + S)[0, 1] / (PRIOR.kappa + rows - d - 1)),
    ):
        error = found[fine].std(axis=0) / np.sqrt(fine.sum())
        assert np.all(np.abs(found[fine].mean(axis=0) - expected) < 5.5 * error)


PROBLEMS, N, SD = 20, 100_000, 30.0


@pytest.mark.long
def test_calibration_at_large_n() -> None:
    """At n = 1e5 its models agree: 20 data sets with their noise, whose standardised errors are those of a posterior.
    Each sum of 20 squares lies in a central interval of probability 0.99999, so with 6 the false alarm rate is 6e-5.
    """
    rng = np.random.default_rng(5)
    problems = [release(rng, N, SD) for _ in range(PROBLEMS)]
    near = Prior(THETA, 0.01 * np.eye(2), np.array(2.0), np.array(0.9), 3 * SIGMA_X, np.array(3.0))
    run = sample(
        bs.kernel_for(problems), problems, near,
        chains=4, warmup=200, draws=200, thin=2, names=("theta", "sigma_y2", "Sigma_x"),
    )  # fmt: skip
    i, j = np.triu_indices(2)
    names, true = ("theta", "sigma_y2", "Sigma_x"), np.r_[THETA, SIGMA_Y2, SIGMA_X[i, j]]
    all_draws = {**run.draws, "sigma_y2": run.draws["sigma_y2"][..., None], "Sigma_x": run.draws["Sigma_x"][..., i, j]}
    draws = np.concatenate([all_draws[name][:PROBLEMS] for name in names], axis=3).reshape(PROBLEMS, -1, 6)
    errors = (true - draws.mean(axis=1)) / draws.std(axis=1)
    low, high = chi2(PROBLEMS).interval(0.99999)
    squares = (errors**2).sum(axis=0)
    assert np.all((low < squares) & (squares < high))
    assert run.divergences.sum() == 0
    assert max(one.r_hat for one in mixing({name: run.draws[name][0] for name in ("theta", "sigma_y2")}, {})) < 1.1


def test_similar_nodes_share_a_factorisation_and_mismatched_input_is_refused() -> None:
    rng = np.random.default_rng(6)
    observed = release(rng, 100, 5.0, J=4)
    observed = observed._replace(n=np.array([100.0, 100.0, 103.0, 100.0]))
    assert bs.kernel_for([observed]) is bs.kernel(groups=(0, 0, 2, 0), published=None)
    other = observed._replace(variance_z=np.array([25.0, 25.0, 25.0, 24.0]))
    assert bs.kernel_for([observed, other]) is bs.kernel(groups=(0, 0, 2, 3), published=None)
    with pytest.raises(DataError, match="needs y²; release the statistic with target_square"):
        bs.kernel_for([observed._replace(u=np.full(4, np.nan))])
    with pytest.raises(DataError, match="MCMC-B&S has no intercept"):
        bs.kernel_for([observed._replace(constant=np.array(1.0))])


@pytest.mark.parametrize("published", [True, False])
def test_starts(published: bool) -> None:
    """As published every node starts from the first node's statistic plus I, θ = 0 and σ_y² where it is known; by
    default near what was released, each chain elsewhere."""
    observed = release(np.random.default_rng(7), 1000, 5.0, J=3)
    kernel = bs.kernel_for([observed], 0.2 if published else None)
    init = jax.jit(lambda seed: kernel.init(jax.random.key(seed), observed, jax.tree.map(jnp.asarray, PRIOR)))
    state = jax.tree.map(lambda *chains: np.stack(chains), init(0), init(1))
    Sigma_x = np.asarray(state.root @ np.swapaxes(state.root, 1, 2))
    if published:
        np.testing.assert_allclose(state.S, np.broadcast_to(observed.S[0] + np.eye(2), (2, 3, 2, 2)))
        scale = PRIOR.Lambda + 3 * observed.S[0] + 4 * np.eye(2)
        np.testing.assert_allclose(Sigma_x, np.broadcast_to(scale / (PRIOR.kappa + 3000), (2, 2, 2)))
        assert not np.any(np.asarray(state.theta))
        assert np.all(np.asarray(state.sigma_y2) == 0.2)
    else:
        assert np.ptp(np.asarray(state.theta)[:, 0]) > 1e-4
        np.testing.assert_allclose(np.asarray(state.theta), np.tile(THETA, (2, 1)), atol=0.2)
        np.testing.assert_allclose(Sigma_x, np.tile(SIGMA_X, (2, 1, 1)), atol=0.2)
