"""The sampler with an intercept: its acceptance ratios against the densities, and what it refuses.

That all of it leaves the posterior invariant is tested by the joint distribution (`test_joint_distribution`); that its
intervals hold where rows lack a value, here.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import quick_and_double
from scipy.stats import multivariate_normal, norm, wishart

from dca_proto.aggregate import NodeReleaseRequest
from dca_proto.learning.job import JobTerms
from dca_proto.privacy.budget import Budget
from emulator.ideal import IdealSwarm
from inference.errors import DataError
from inference.mcmc.sampler import sample
from inference.models.linear import complete_rows
from inference.models.linear.nodes import intercept
from inference.models.linear.nodes.observed import Observed, Prior, nodes_of

Array = np.ndarray
J, D, C = 2, 2, 0.5
N, ROWS = np.array([9.0, 30.0]), np.array([7.0, 25.0])
MISSING = 0.2
SIGMA_X, MU_X = np.array([[1.5, 0.6], [0.6, 0.8]]), np.array([0.4, -0.3])
THETA, SIGMA_Y2 = np.array([0.5, -1.0, 0.7]), 0.6


def an_observed() -> Observed:
    rng = np.random.default_rng(1)
    S, z = [], []
    for n in ROWS.astype(int):
        x = np.c_[np.full(n, C), rng.multivariate_normal(MU_X, SIGMA_X, size=n)]
        noise = rng.normal(size=(3, 3))
        S.append(x.T @ x + np.triu(noise) + np.triu(noise, 1).T)
        z.append(x.T @ (x @ THETA + rng.normal(size=n)) + rng.normal(size=3))
    nan = np.full(J, np.nan)
    return Observed(np.array(S), np.array(z), N, np.array([1.0, 2.0]), np.array([3.0, 0.5]), nan, nan, np.array(C))


def statistic(rows: float, mean: Array, scatter: Array) -> Array:
    corner = np.array([[rows * C**2]])
    side = rows * C * mean[None]
    return np.block([[corner, side], [side.T, scatter + rows * np.outer(mean, mean)]])


def log_density(rows: float, mean: Array, scatter: Array, j: int, observed: Observed) -> float:
    """ln p(m_j, b_j, C_j, Ŝ_j, ẑ_j | Σ_x, μ_x, θ, σ_y²) as the model is written down, but for m_j's normaliser."""
    S, (i, k) = statistic(rows, mean, scatter), np.triu_indices(3)
    found = (rows - N[j]) / (MISSING * N[j])
    found += multivariate_normal(MU_X, SIGMA_X / rows).logpdf(mean) + wishart(rows - 1, SIGMA_X).logpdf(scatter)
    found += norm(S[i, k], np.sqrt(observed.variance_S[j])).logpdf(observed.S[j][i, k]).sum()
    cov = SIGMA_Y2 * S + observed.variance_z[j] * np.eye(3)
    return float(found + multivariate_normal(S @ THETA, cov).logpdf(observed.z[j]))


def test_acceptance_ratios_are_those_of_the_densities() -> None:
    observed = an_observed()
    rng = np.random.default_rng(2)
    B = np.tril(0.1 * rng.normal(size=(J, D, D))) + np.eye(D)
    step, alpha, fewer = 0.2 * rng.normal(size=(J, D)), np.array([20.0, 50.0]), np.array([5.0, 28.0])

    def ratios() -> tuple[jax.Array, ...]:
        prior = Prior(jnp.zeros(3), jnp.eye(3), *map(jnp.asarray, (2.0, 1.0)), jnp.eye(3), jnp.asarray(6.0))
        given = jax.tree.map(jnp.asarray, observed)
        start = intercept.kernel(sigma_y2_start=SIGMA_Y2).init(jax.random.key(0), given, prior)
        factors = jnp.linalg.cholesky(jnp.asarray(SIGMA_X)), jnp.eye(D)
        shared = start.shared._replace(theta=jnp.asarray(THETA), Sigma_x=factors, log_alpha=jnp.log(alpha))
        start, rows, L = start._replace(shared=shared, mu_x=jnp.asarray(MU_X)), jnp.asarray(ROWS), shared.L
        state = intercept.moved_to(start, rows, start.mean, L, given)
        of_scatter = intercept.moved_to(state, rows, state.mean, L @ B, given)
        of_mean = intercept.moved_to(state, rows, state.mean + step, L, given)
        scaled = jnp.sqrt(fewer / ROWS)[:, None, None] * L
        of_rows = intercept.moved_to(state, jnp.asarray(fewer), state.mean, scaled, given)
        return (
            intercept.scatter_log_ratio(state, of_scatter, jnp.asarray(B), given),
            intercept.mean_log_ratio(state, of_mean, given),
            intercept.rows_log_ratio(state, of_rows, given, MISSING),
            state.mean,
            L,
        )

    with quick_and_double():
        of_scatter, of_mean, of_rows, mean, L = map(np.asarray, jax.jit(ratios)())
    for j in range(J):
        scatter, proposed = L[j] @ L[j].T, L[j] @ B[j] @ B[j].T @ L[j].T
        now = log_density(ROWS[j], mean[j], scatter, j, observed)
        back = wishart(alpha[j], proposed / alpha[j]).logpdf(scatter)
        ahead = wishart(alpha[j], scatter / alpha[j]).logpdf(proposed)
        then = log_density(ROWS[j], mean[j], proposed, j, observed)
        assert of_scatter[j] == pytest.approx(then - now + back - ahead, rel=1e-8)
        then = log_density(ROWS[j], mean[j] + step[j], scatter, j, observed)
        assert of_mean[j] == pytest.approx(then - now, rel=1e-8)
        growth = fewer[j] / ROWS[j]
        then = log_density(fewer[j], mean[j], growth * scatter, j, observed)
        jacobian = D * (D + 1) / 2 * np.log(growth)  # of C' = growth C, in its unique terms
        assert of_rows[j] == pytest.approx(then - now + jacobian, rel=1e-8)


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


def test_options_are_checked_and_the_same_ones_share_a_kernel() -> None:
    given = {"prior_rows": 1.0, "missing": complete_rows.MISSING, "sigma_y2_start": None}
    assert intercept.kernel_for(an_observed()) is intercept.kernel(**given)
    for options, complaint in (({"prior_rows": 0.0}, "prior_rows is 0"), ({"missing": 1.0}, "missing is 1; give")):
        with pytest.raises(DataError, match=complaint):
            intercept.kernel_for(an_observed(), **options)


TRUE, PUBLIC, COLUMNS = np.array([1.8, 0.3, -0.2]), 1 / 3, ["a", "b", "y"]


def a_release(rng: np.random.Generator, nodes: int = 3, rows: int = 2000) -> Observed:
    """A local round at ε = 1, in which one row in twenty has no first feature."""
    parts = []
    for _ in range(nodes):
        x = rng.normal(0.3, 0.2, (rows, 2))
        y = PUBLIC * TRUE[0] + x @ TRUE[1:] + rng.normal(0, 0.1, rows)
        x[rng.random(rows) < 0.05, 0] = np.nan
        parts.append(np.column_stack([x, y]))
    parameters = {"columns": COLUMNS, "centre": [0.0] * 3, "scale": [1.0] * 3, "bound": [1.0] * 3}
    request = NodeReleaseRequest(
        "regression", parameters | {"intercept": True, "intercept_bound": PUBLIC}, rows_max=rows
    )
    terms = JobTerms(budget=Budget(1.0, 1e-5), clients=nodes, tolerated=0, computes=())
    return nodes_of(IdealSwarm(parts, COLUMNS, terms, random=rng.bytes).hold(request))


@pytest.mark.long
def test_intervals_hold_where_noise_hides_that_rows_lack_a_value() -> None:
    """95 % intervals of 40 releases: under other seeds, fewer than 32 of a coefficient's hold once in 2500 (binomial).

    The noise is 5 % of the constant's square, as are the missing rows. Were all rows taken for complete, 24 intervals
    of the intercept would hold.
    """
    rng = np.random.default_rng(1)
    releases = [a_release(rng) for _ in range(40)]
    prior = Prior.default(3, constant=PUBLIC)
    with quick_and_double():
        found = sample(intercept.kernel_for(releases), releases, prior, chains=1, warmup=500, draws=300, thin=8, seed=1)
    low, high = np.quantile(found.draws["theta"][:, 0], [0.025, 0.975], axis=1)
    assert ((low <= TRUE) & (high >= TRUE)).sum(axis=0).min() >= 32
