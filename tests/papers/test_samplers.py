"""MCMC-normalX and MCMC-fixedS, update by update against the model's density, and the sampler that runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import quick_and_double
from joint_density import log_joint
from numpy.typing import NDArray
from scipy import stats

from inference.errors import DataError
from inference.models.linear.nodes.observed import NodeStatistics, Prior
from papers.mcmc2023.samplers import fixed_s, normal_x, sampler
from papers.mcmc2023.samplers.kernel import (
    LOG_STEP,
    Kernel,
    Noise,
    Schedule,
    bartlett,
    bartlett_count,
    covariance_of,
    precision_of,
)
from papers.mcmc2023.samplers.sampler import Chains, sample

Array = NDArray[np.float64]
J, D = 2, 3
PRIOR = Prior(
    np.array([0.3, -0.2, 0.1]),
    np.diag([1.0, 2.0, 0.5]) + 0.1,
    np.array(3.0),
    np.array(1.5),
    np.diag([1.0, 0.5, 2.0]) + 0.2,
    np.array(D + 2.0),
)
AFTER_WARMUP = Schedule(jnp.asarray(10), jnp.asarray(10))


class Given:
    """The noise has the stated law."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def normals(self, *shape: int) -> Any:
        return self.values.reshape(shape)


def observe(seed: int, *, rows: int = 40, sd: float = 3.0, collinear: float = 1.0) -> NodeStatistics:
    """Two nodes; the third column is the sum of the others but for `collinear` of its own."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((J, rows, D))
    X[..., 2] = X[..., 0] + X[..., 1] + collinear * X[..., 2]
    y = X @ np.array([1.0, -0.5, 0.2]) + rng.standard_normal((J, rows))
    noise = np.triu(rng.standard_normal((J, D, D)))
    S = np.swapaxes(X, 1, 2) @ X + sd * (noise + np.swapaxes(np.triu(noise, 1), 1, 2))
    z = np.einsum("jnd,jn->jd", X, y) + sd * rng.standard_normal((J, D))
    none = np.full(J, np.nan)
    return NodeStatistics(S, z, np.full(J, float(rows)), np.full(J, sd**2), np.full(J, sd**2 / 2), none, none)


def _roots(S: Array, sigma_y2: float, observed: NodeStatistics) -> Any:
    return jnp.linalg.cholesky(sigma_y2 * S + observed.variance_z[:, None, None] * np.eye(D))


def state_at(observed: NodeStatistics, seed: int) -> normal_x.State:
    """A state at some possible point, all that follows from it calculated by NumPy."""
    rng = np.random.default_rng(seed)
    S = stats.wishart.rvs(40, np.eye(D), size=J, random_state=rng)
    theta, sigma_y2 = rng.standard_normal(D), float(rng.gamma(2.0))
    V = sigma_y2 * S + observed.variance_z[:, None, None] * np.eye(D)
    r = observed.z - S @ theta
    likelihood = -np.linalg.slogdet(V)[1] / 2 - np.einsum("ji,ji->j", r, np.linalg.solve(V, r[..., None])[..., 0]) / 2
    Sigma_x = stats.invwishart.rvs(10, np.eye(D), random_state=rng)
    return normal_x.State(
        *(jnp.asarray(array) for array in (theta, sigma_y2, S, np.linalg.cholesky(S), np.linalg.cholesky(V))),
        jnp.asarray(likelihood),
        (jnp.asarray(np.linalg.cholesky(Sigma_x)), jnp.eye(D)),
        jnp.log(jnp.array([50.0, 400.0])),
        jnp.asarray(-1.0),
        jnp.asarray(np.linalg.inv(PRIOR.C)),
    )


def joint(state: Any, observed: NodeStatistics, **other: Any) -> float:
    point = {"theta": state.theta, "sigma_y2": state.sigma_y2, "Sigma_x": covariance_of(state.Sigma_x), "S": state.S}
    arrays = {name: np.asarray(value) for name, value in {**point, **other}.items()}
    return log_joint(**arrays, observed=observed, prior=PRIOR)  # type: ignore[arg-type]


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> Iterator[None]:
    with quick_and_double():
        yield


@pytest.mark.long
def test_the_ratio_of_a_wishart_proposal_is_that_of_the_joint_density() -> None:
    ratio = jax.jit(lambda state, B, observed: (p := normal_x.propose(state, B, observed)) and (
        p, normal_x.log_ratio(state, p, B, observed)))  # fmt: skip
    for seed in range(5):
        observed = observe(seed)
        state, rng = state_at(observed, seed), np.random.default_rng(seed)
        alpha = np.exp(np.asarray(state.log_alpha))
        A = np.linalg.cholesky(np.stack([stats.wishart.rvs(a, np.eye(D), random_state=rng) for a in alpha]))
        proposed, found = ratio(state, A / np.sqrt(alpha)[:, None, None], observed)
        for j in range(J):
            old, new = np.asarray(state.S), np.array(state.S)
            new[j] = proposed.S[j]
            back = stats.wishart.logpdf(old[j], alpha[j], new[j] / alpha[j])
            ahead = stats.wishart.logpdf(new[j], alpha[j], old[j] / alpha[j])
            expected = joint(state, observed, S=new) - joint(state, observed) + back - ahead
            assert found[j] == pytest.approx(expected, rel=1e-9, abs=1e-9)
        np.testing.assert_allclose(proposed.L @ np.swapaxes(proposed.L, 1, 2), proposed.S, rtol=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("published", [False, True])
def test_the_walk_over_the_variance_accepts_by_the_joint_density(published: bool) -> None:
    step = jax.jit(lambda key, state, white, observed: normal_x.update_sigma_y2(
        Noise(key, 2), state, white, observed, PRIOR, AFTER_WARMUP, published))  # fmt: skip
    for seed in range(12):
        observed = observe(seed)
        state, key = state_at(observed, seed), jax.random.key(seed)
        if published and seed % 2:  # where half of the proposals are below 0
            state = state._replace(sigma_y2=jnp.asarray(1e-3), K=_roots(np.asarray(state.S), 1e-3, observed))
        residual = np.asarray(observed.z - state.S @ state.theta)
        white = np.linalg.solve(np.asarray(state.K), residual[..., None])[..., 0]
        moved, walk = step(key, state, white, observed)
        normal, old = float(Noise(key, 2).normals()), float(state.sigma_y2)
        new = old + 0.1 * normal if published else old * np.exp(np.exp(-1.0) * normal)
        jacobian = 0.0 if published else np.log(new / old)
        expected = joint(state, observed, sigma_y2=new) - joint(state, observed) + jacobian if new > 0 else -np.inf
        assert walk.acceptance == pytest.approx(np.exp(min(expected, 0.0)), rel=1e-9)
        assert float(moved.sigma_y2) == pytest.approx(new if moved.sigma_y2 != old else old, rel=1e-14)
        assert float(moved.log_step) == -1.0
        _check_consistent(moved, observed)


def test_theta_has_the_moments_of_its_full_conditional() -> None:
    observed = observe(3)
    state = state_at(observed, 3)
    S, V = np.asarray(state.S), np.asarray(state.K @ jnp.swapaxes(state.K, 1, 2))
    precision = np.linalg.inv(PRIOR.C) + sum(S_j @ np.linalg.solve(V_j, S_j) for S_j, V_j in zip(S, V, strict=True))
    weighted = sum(S_j @ np.linalg.solve(V_j, z_j) for S_j, V_j, z_j in zip(S, V, observed.z, strict=True))
    mean = np.linalg.solve(precision, np.linalg.solve(PRIOR.C, PRIOR.m) + weighted)
    _check_moments(lambda noise: normal_x.update_theta(noise, state, observed, PRIOR)[0].theta, mean, precision)
    D_, E = np.linalg.eigh(S)
    fixed = fixed_s.State(
        state.theta, state.sigma_y2, state.log_step, jnp.asarray(D_), jnp.asarray(E),
        jnp.asarray(np.einsum("jik,ji->jk", E, observed.z)), state.inverse_C,
    )  # fmt: skip
    _check_moments(lambda noise: fixed_s._update_theta(noise, fixed, observed, PRIOR)[0].theta, mean, precision)


def _check_moments(draw: Callable[[Any], Any], mean: Array, precision: Array) -> None:
    """A Gaussian draw is its mean and a linear map of its noise, which units of noise reveal."""
    units = jnp.concatenate([jnp.zeros((1, D)), jnp.eye(D)])
    found = np.asarray(jax.jit(jax.vmap(lambda values: draw(Given(values))))(units))
    root = found[1:] - found[0]
    np.testing.assert_allclose(found[0], mean, rtol=1e-10)
    np.testing.assert_allclose(root.T @ root, np.linalg.inv(precision), rtol=1e-9)


def test_the_covariance_of_the_features_has_its_full_conditional() -> None:
    """Means of 40,000 draws within 5 standard errors, 18 figures, and three of Kolmogorov's tests at 1e-4: 3e-4 in all.

    Candidates are accepted together and independently of each other, so that each alone has its law. The degrees of
    freedom are as few as are allowed for the first half, where most candidates are refused.
    """
    count, degrees = 40_000, np.array([D + 1.0, 9.5])
    scale = np.diag([3.0, 1.0, 2.0]) + 0.5

    def draw(key: Any) -> tuple[Any, ...]:
        A, accepted = bartlett(Noise(key, 2 * count * bartlett_count(D)), jnp.repeat(degrees, count), D)
        factors = (jnp.broadcast_to(jnp.linalg.cholesky(scale), A.shape), A)
        return A, accepted, covariance_of(factors), precision_of(factors)

    A, accepted, covariance, precision = (np.split(np.asarray(array), 2) for array in jax.jit(draw)(jax.random.key(1)))
    assert accepted[0].mean() > 0.85
    for i in range(D):
        assert stats.kstest(A[0][accepted[0], i, i] ** 2, stats.chi2(degrees[0] - i).cdf).pvalue > 1e-4
    for found, mean in (
        (covariance[1], scale / (degrees[1] - D - 1)),
        (precision[1], degrees[1] * np.linalg.inv(scale)),
    ):
        draws = found[accepted[1]]
        assert (np.abs(draws.mean(axis=0) - mean) < 5 * draws.std(axis=0) / np.sqrt(len(draws))).all()


class Watched(NamedTuple):
    kernel: Kernel
    observed: list[NodeStatistics]
    chains: Chains


def _everything(state: normal_x.State) -> dict[str, Any]:
    own = normal_x.kernel().draw(state)
    more = {name: getattr(state, name) for name in ("L", "K", "log_likelihood", "log_alpha", "log_step")}
    return {**own, **more}


HARD = {
    "as good as singular": observe(1, collinear=1e-7, sd=1.0),
    "noise far above the sums": observe(2, sd=1e6),
    "many rows": observe(3, rows=100_000, sd=10.0),
    "as few rows as features": observe(4, rows=D, sd=0.5),
    "hardly any noise": observe(5, sd=1e-6),
}
RUN: dict[str, Any] = {"chains": 2, "warmup": 60, "thin": 3, "draws": 300}
RUN["names"] = ("theta", "sigma_y2", "Sigma_x", "S", "L", "K", "log_likelihood", "log_alpha", "log_step")


@pytest.fixture(scope="module")
def watched() -> Watched:
    """One compilation for all that follows."""
    kernel = normal_x.kernel()._replace(draw=_everything)
    observed = list(HARD.values())
    return Watched(kernel, observed, sample(kernel, observed, PRIOR, seed=4, **RUN))


@pytest.mark.long
@pytest.mark.parametrize("case", HARD)
def test_a_hard_case_stays_finite_and_consistent(watched: Watched, case: str) -> None:
    r = list(HARD).index(case)
    draws = {name: array[r] for name, array in watched.chains.draws.items()}
    assert all(np.isfinite(array).all() for array in draws.values())
    observed = watched.observed[r]
    S, L, K = draws["S"], draws["L"], draws["K"]
    np.testing.assert_allclose(L @ np.swapaxes(L, -1, -2), S, rtol=1e-9, atol=1e-12 * np.abs(S).max())
    V = draws["sigma_y2"][..., None, None, None] * S + observed.variance_z[:, None, None] * np.eye(D)
    np.testing.assert_allclose(K @ np.swapaxes(K, -1, -2), V, rtol=1e-9, atol=1e-12 * np.abs(V).max())
    assert (draws["sigma_y2"] > 0).all()
    assert len(np.unique(draws["theta"][..., 0])) == draws["theta"][..., 0].size


@pytest.mark.long
def test_proposals_adapt_in_the_warm_up_only(watched: Watched) -> None:
    starts = {"log_alpha": np.stack([normal_x.first_log_alpha(one) for one in watched.observed])[:, None]}
    starts["log_step"] = np.full((5, 1), LOG_STEP)
    for name, start in starts.items():
        after = watched.chains.draws[name]
        assert np.abs(after[:, :, 0] - start).max() > 0.1
        assert (np.ptp(after, axis=2) == 0).all()
    assert (watched.chains.draws["log_alpha"] >= np.log(D + 1) - 1e-12).all()


@pytest.mark.long
def test_a_seed_repeats_its_draws_and_nothing_is_compiled_again(watched: Watched) -> None:
    compiled = len(sampler._compiled)
    again = sample(watched.kernel, watched.observed, PRIOR, seed=4, **RUN)
    other = sample(watched.kernel, watched.observed, [PRIOR] * 5, seed=5, **RUN)
    assert len(sampler._compiled) == compiled
    for name in again.draws:
        np.testing.assert_array_equal(again.draws[name], watched.chains.draws[name])
    assert not np.array_equal(other.draws["theta"], again.draws["theta"])


@pytest.mark.long
def test_shapes_and_totals(watched: Watched) -> None:
    chains = watched.chains
    assert chains.draws["S"].shape == (5, 2, 300, J, D, D)
    assert {name: array.shape for name, array in chains.acceptance.items()} == {"S": (5, 2), "sigma_y2": (5, 2)}
    assert all(((array >= 0) & (array <= 1)).all() for array in chains.acceptance.values())
    assert chains.divergences.shape == (5, 2)
    assert chains.seconds > 0


@pytest.mark.long
def test_chains_start_apart() -> None:
    with jax.enable_x64(True):
        starts = [normal_x.kernel().init(jax.random.key(k), HARD["noise far above the sums"], PRIOR).S for k in (0, 1)]
    assert np.abs(starts[0] - starts[1]).max() > 1e5


def test_a_start_as_published() -> None:
    observed = observe(6, sd=60.0)._replace(n=np.full(J, 400.0))
    kernel = normal_x.kernel(published=0.7)
    start = jax.jit(kernel.init)(jax.random.key(0), observed, PRIOR)
    values, vectors = np.linalg.eigh(observed.S)
    assert values.min() < 0
    nearest = (vectors * np.maximum(values, 0)[:, None]) @ np.swapaxes(vectors, 1, 2)
    np.testing.assert_allclose(start.S, nearest + np.eye(D), rtol=1e-10, atol=1e-10)
    assert (start.theta == 0).all()
    assert start.sigma_y2 == 0.7
    np.testing.assert_allclose(np.exp(start.log_alpha), 1600.0)  # (400/10)²


def test_fixed_s_walks_by_the_joint_density_at_the_nearest_possible_matrix() -> None:
    observed = observe(7, sd=40.0)
    kernel = fixed_s.kernel(published=0.8)
    state = jax.jit(kernel.init)(jax.random.key(0), observed, PRIOR)
    values, vectors = np.linalg.eigh(observed.S)
    assert values.min() < 0
    S = (vectors * np.maximum(values, 0)[:, None]) @ np.swapaxes(vectors, 1, 2) + np.eye(D)
    step = jax.jit(kernel.step)
    for seed in range(5):
        key = jax.random.key(seed)
        moved, info = step(key, state, observed, PRIOR, AFTER_WARMUP)
        proposed = 0.8 + 0.1 * float(Noise(key, D + 2).normals(D + 1)[-1])
        point = {"theta": np.asarray(moved.theta), "Sigma_x": np.eye(D), "S": S, "observed": observed, "prior": PRIOR}
        change = log_joint(sigma_y2=proposed, **point) - log_joint(sigma_y2=0.8, **point)
        expected = np.exp(min(change, 0.0))
        assert info.acceptance["sigma_y2"] == pytest.approx(expected, rel=1e-9)
        assert float(moved.sigma_y2) == pytest.approx(0.8 if moved.sigma_y2 == 0.8 else proposed, rel=1e-14)
        assert not info.divergent


def test_equal_options_are_one_kernel() -> None:
    assert normal_x.kernel(published=0.1) is normal_x.kernel(published=0.1)
    assert fixed_s.kernel(published=0.1) is not fixed_s.kernel()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observed": [observe(0), observe(0)._replace(z=np.zeros((J, D + 1)))]}, "different shape"),
        ({"observed": [observe(0)], "prior": [PRIOR, PRIOR]}, "1 problems and 2 priors"),
    ],
)
def test_models_that_cannot_be_sampled_are_refused_with_a_reason(change: dict[str, Any], message: str) -> None:
    given = {"observed": observe(0), "prior": PRIOR, **change}
    with pytest.raises(DataError, match=message):
        sample(fixed_s.kernel(), given.pop("observed"), given.pop("prior"), **given)


def _check_consistent(state: normal_x.State, observed: NodeStatistics) -> None:
    V = float(state.sigma_y2) * state.S + observed.variance_z[:, None, None] * np.eye(D)
    np.testing.assert_allclose(state.K @ jnp.swapaxes(state.K, 1, 2), V, rtol=1e-10)
    r = observed.z - np.asarray(state.S @ state.theta)
    expected = -np.linalg.slogdet(V)[1] / 2 - np.einsum("ji,ji->j", r, np.linalg.solve(V, r[..., None])[..., 0]) / 2
    np.testing.assert_allclose(state.log_likelihood, expected, rtol=1e-10)
