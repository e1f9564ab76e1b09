"""The sampler with an intercept: its two acceptance ratios against the densities, and what it refuses.

That all of it leaves the posterior invariant is tested by the joint distribution (`test_joint_distribution`).
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import quick_and_double
from scipy.stats import multivariate_normal, norm, wishart

from inference.distributed_regression import intercept
from inference.distributed_regression.observed import Observed, Prior
from inference.errors import DataError

Array = np.ndarray
J, D, C = 2, 2, 0.5
N = np.array([9.0, 30.0])
SIGMA_X, MU_X = np.array([[1.5, 0.6], [0.6, 0.8]]), np.array([0.4, -0.3])
THETA, SIGMA_Y2 = np.array([0.5, -1.0, 0.7]), 0.6


def an_observed() -> Observed:
    rng = np.random.default_rng(1)
    S, z = [], []
    for n in N.astype(int):
        x = np.c_[np.full(n, C), rng.multivariate_normal(MU_X, SIGMA_X, size=n)]
        noise = rng.normal(size=(3, 3))
        noise[0, 0] = 0
        S.append(x.T @ x + np.triu(noise) + np.triu(noise, 1).T)
        z.append(x.T @ (x @ THETA + rng.normal(size=n)) + rng.normal(size=3))
    nan = np.full(J, np.nan)
    return Observed(np.array(S), np.array(z), N, np.array([1.0, 2.0]), np.array([3.0, 0.5]), nan, nan, np.array(C))


def statistic(mean: Array, scatter: Array, n: float) -> Array:
    corner = np.array([[n * C**2]])
    side = n * C * mean[None]
    return np.block([[corner, side], [side.T, scatter + n * np.outer(mean, mean)]])


def log_density(mean: Array, scatter: Array, j: int, observed: Observed) -> float:
    """ln p(b_j, C_j, Ŝ_j, ẑ_j | Σ_x, μ_x, θ, σ_y²) as the model is written down."""
    n, S = N[j], statistic(mean, scatter, N[j])
    i, k = (index[1:] for index in np.triu_indices(3))  # but the public term
    found = multivariate_normal(MU_X, SIGMA_X / n).logpdf(mean) + wishart(n - 1, SIGMA_X).logpdf(scatter)
    found += norm(S[i, k], np.sqrt(observed.variance_S[j])).logpdf(observed.S[j][i, k]).sum()
    cov = SIGMA_Y2 * S + observed.variance_z[j] * np.eye(3)
    return float(found + multivariate_normal(S @ THETA, cov).logpdf(observed.z[j]))


def test_acceptance_ratios_are_those_of_the_densities() -> None:
    observed = an_observed()
    rng = np.random.default_rng(2)
    B = np.tril(0.1 * rng.normal(size=(J, D, D))) + np.eye(D)
    step, alpha = 0.2 * rng.normal(size=(J, D)), np.array([20.0, 50.0])

    def ratios() -> tuple[jax.Array, ...]:
        prior = Prior(jnp.zeros(3), jnp.eye(3), *map(jnp.asarray, (2.0, 1.0)), jnp.eye(3), jnp.asarray(6.0))
        given = jax.tree.map(jnp.asarray, observed)
        start = intercept.kernel(sigma_y2_start=SIGMA_Y2).init(jax.random.key(0), given, prior)
        factors = jnp.linalg.cholesky(jnp.asarray(SIGMA_X)), jnp.eye(D)
        shared = start.shared._replace(theta=jnp.asarray(THETA), Sigma_x=factors, log_alpha=jnp.log(alpha))
        state = intercept.moved_to(start._replace(shared=shared, mu_x=jnp.asarray(MU_X)), start.mean, shared.L, given)
        of_scatter = intercept.moved_to(state, state.mean, shared.L @ B, given)
        of_mean = intercept.moved_to(state, state.mean + step, shared.L, given)
        return (
            intercept.scatter_log_ratio(state, of_scatter, jnp.asarray(B), given),
            intercept.mean_log_ratio(state, of_mean, given),
            state.mean,
            shared.L,
        )

    with quick_and_double():
        of_scatter, of_mean, mean, L = map(np.asarray, jax.jit(ratios)())
    for j in range(J):
        scatter, proposed = L[j] @ L[j].T, L[j] @ B[j] @ B[j].T @ L[j].T
        now = log_density(mean[j], scatter, j, observed)
        back = wishart(alpha[j], proposed / alpha[j]).logpdf(scatter)
        ahead = wishart(alpha[j], scatter / alpha[j]).logpdf(proposed)
        assert of_scatter[j] == pytest.approx(
            log_density(mean[j], proposed, j, observed) - now + back - ahead, rel=1e-8
        )
        assert of_mean[j] == pytest.approx(log_density(mean[j] + step[j], scatter, j, observed) - now, rel=1e-8)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda o: o._replace(constant=np.array(0.0)), "no constant feature; release with an intercept"),
        (lambda o: o._replace(n=np.array([30.0, 2.0])), "a node has 2 rows, too few for the scatter of 2 features"),
    ],
)
def test_what_does_not_fit_is_refused(change: Callable[[Observed], Observed], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        intercept.kernel_for(change(an_observed()))
    assert intercept.kernel_for(an_observed()) is intercept.kernel(prior_rows=1.0, sigma_y2_start=None)
