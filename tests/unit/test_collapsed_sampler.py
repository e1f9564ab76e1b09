"""The collapsed sampler: its density, gradient, integrator and adaptation, and its posterior against quadrature."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import quick_and_double
from jax.flatten_util import ravel_pytree
from joint_density import log_joint
from numpy.typing import NDArray
from scipy import stats

from inference.mcmc import adaptation
from inference.mcmc.kernel import Schedule
from inference.mcmc.sampler import sample
from inference.models.linear.nodes import collapsed, noncentred
from inference.models.linear.nodes.observed import Observed, Prior

Array = NDArray[np.float64]
J, D = 3, 2
PRIOR = Prior(
    np.array([0.3, -0.2]), np.diag([1.0, 2.0]) + 0.1, np.array(3.0), np.array(1.5),
    np.diag([1.0, 0.5]) + 0.2, np.array(D + 2.0),
)  # fmt: skip
ROWS = np.array([20.0, 35.0, 400.0])


def observe(seed: int, sd: float) -> Observed:
    """Nodes of different size; at a noise of 30 the sums of the first two are hardly more than noise."""
    rng = np.random.default_rng(seed)
    S, z = [], []
    for rows in ROWS.astype(int):
        X = rng.standard_normal((rows, D)) @ np.array([[1.0, 0.8], [0.0, 0.3]])
        y = X @ np.array([1.0, -0.5]) + rng.standard_normal(rows)
        noise = np.triu(sd * rng.standard_normal((D, D)))
        S.append(X.T @ X + noise + np.triu(noise, 1).T)
        z.append(X.T @ y + sd * rng.standard_normal(D))
    none = np.full(J, np.nan)
    return Observed(np.array(S), np.array(z), ROWS, np.full(J, sd**2), np.full(J, sd**2 / 2), none, none)


def position(seed: int) -> dict[str, Array]:
    """Some possible point."""
    rng = np.random.default_rng(seed)
    Sigma_x = stats.invwishart.rvs(8, 5 * np.eye(D), random_state=rng)
    S = np.stack([stats.wishart.rvs(n, Sigma_x, random_state=rng) for n in ROWS])
    return {"theta": rng.standard_normal(D), "sigma_y2": np.array(rng.gamma(2.0)), "Sigma_x": Sigma_x, "S": S}


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> Iterator[None]:
    with quick_and_double():
        yield


@jax.jit
def _point(observed: Observed, at: dict[str, Array], key: Array) -> Any:
    """The state at a position."""
    return collapsed.entered(collapsed.kernel().init(key, observed, PRIOR), at, observed, PRIOR)


def state_at(observed: Observed, at: dict[str, Array]) -> Any:
    return _point(observed, at, jax.random.key(0))


def reference_density(at: dict[str, Array], observed: Observed) -> float:
    """ln p(Σ_x, S, σ_y², Ŝ, ẑ) by Bayes' rule, p(θ, ...)/p(θ | ...) at some θ, in K, A and ln σ_y²."""
    V = at["sigma_y2"] * at["S"] + observed.variance_z[:, None, None] * np.eye(D)
    Q = np.linalg.solve(V, at["S"])
    P = np.linalg.inv(PRIOR.C) + np.einsum("jik,jkl->il", at["S"], Q)
    h = np.linalg.inv(PRIOR.C) @ PRIOR.m + np.einsum("jki,jk->i", Q, observed.z)
    conditional = stats.multivariate_normal.logpdf(at["theta"], np.linalg.solve(P, h), np.linalg.inv(P))
    joint = log_joint(**at, observed=observed, prior=PRIOR)  # type: ignore[arg-type]
    return joint - float(conditional) + float(np.log(at["sigma_y2"]))


def log_jacobian(state: Any) -> float:
    """ln |d(Σ_x, S)/d(k, a)| up to a constant, by JAX from nothing but `noncentred.factors`."""
    at, lower = state.point.at, np.tril_indices(D)
    flat = jnp.concatenate([at.x_0[None], at.x])[:, lower[0], lower[1]].ravel()
    return float(np.linalg.slogdet(_jacobian(flat, state.frame))[1])


@jax.jit
def _jacobian(flat: Any, frame: Any) -> Any:
    lower = np.tril_indices(D)

    def unique(flat: Any) -> Any:
        grid = jnp.zeros((J + 1, D, D)).at[:, lower[0], lower[1]].set(flat.reshape(J + 1, -1))
        made = noncentred.factors(collapsed.Coordinates(grid[0], grid[1:], jnp.zeros(())), frame, ROWS)
        return jnp.concatenate([(made.M @ made.M.T)[None], made.S])[:, lower[0], lower[1]].ravel()

    return jax.jacfwd(unique)(flat)


@pytest.mark.parametrize("sd", [0.5, 30.0])
def test_the_density_is_the_models_with_the_coefficients_integrated_out(sd: float) -> None:
    observed = observe(1, sd)
    values = []
    for seed in range(4):
        at = position(seed)
        state = state_at(observed, at)
        expected = reference_density(at, observed) + log_jacobian(state)
        values.append(float(state.point.log_density) - expected)
        drawn = collapsed.kernel().draw(state)
        for name, value in at.items():
            np.testing.assert_allclose(drawn[name], value, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(values, values[0], rtol=0, atol=1e-6)


@jax.jit
def _walk(state: Any, momentum: Any, size: Any, steps: Any, observed: Observed) -> Any:
    density = partial(collapsed.evaluate, frame=state.frame, prior_precision=state.prior_precision,
                      observed=observed, prior=PRIOR)  # fmt: skip
    return collapsed.trajectory(state.point, momentum, state.tuning.reference, size, steps, density)


@pytest.mark.parametrize("sd", [0.5, 30.0])
def test_the_gradient_is_that_of_the_density(sd: float) -> None:
    """By central differences of each coordinate, good to some 1e-6 here: short steps with unit momenta to and fro."""
    observed = observe(2, sd)
    state = state_at(observed, position(5))
    triangles = collapsed.Coordinates(np.tri(D), np.tile(np.tri(D), (J, 1, 1)), np.ones(()))
    flat, shaped = ravel_pytree(triangles)
    gradient = ravel_pytree(state.point.gradient)[0]
    for place in np.flatnonzero(flat):
        unit = np.eye(flat.size)[place]
        ahead, back = (_walk(state, shaped(way * unit), 1e-5, 1, observed)[0] for way in (1, -1))
        slope = float(ahead.log_density - back.log_density) / (2 * np.sin(1e-5))
        assert gradient[place] == pytest.approx(slope, rel=1e-5, abs=1e-5)


def test_trajectories_keep_the_energy_to_second_order_and_go_back() -> None:
    observed = observe(3, 5.0)
    state = state_at(observed, position(1))
    rng = np.random.default_rng(1)
    grids = [jnp.tril(rng.standard_normal(shape)) for shape in ((D, D), (J, D, D))]
    momentum = collapsed.Coordinates(*grids, jnp.asarray(0.3))
    errors = []
    for size in (0.01, 0.005):
        end, p, error = _walk(state, momentum, size, round(0.8 / size), observed)
        errors.append(float(error))
        there = state._replace(point=end)
        back, _, _ = _walk(there, jax.tree.map(jnp.negative, p), size, round(0.8 / size), observed)
        for found, before in zip(back.at, state.point.at, strict=True):
            np.testing.assert_allclose(found, before, rtol=0, atol=1e-9)
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)


@pytest.mark.long
def test_the_posterior_is_that_of_quadrature() -> None:
    """d = J = 1, where only S and σ_y² are left once Σ_x and θ are integrated out. Half of the noise is as large as S.

    Means of θ, ln S and ln σ_y² and their squares within 5 standard errors of 64 chains: a false alarm in some 1e5
    seeds.
    """
    one = np.ones(1)
    observed = Observed(np.array([[[25.0]]]), np.array([[12.0]]), 20 * one, 15.0**2 * one, 8.0**2 * one, one, one)
    prior = Prior(0.2 * one, np.array([[0.5]]), np.array(3.0), np.array(2.0), np.array([[1.5]]), np.array(3.0))
    run = sample(
        collapsed.kernel(), observed, prior, chains=64, warmup=200, draws=400, seed=1, names=("theta", "sigma_y2", "S")
    )
    assert run.divergences.sum() < 1e-3 * 64 * 400
    assert 0.6 < run.acceptance["trajectory"].mean() < 0.99
    logs = [np.log(run.draws[name][0]).reshape(64, 400) for name in ("S", "sigma_y2")]
    functions = [run.draws["theta"][0, ..., 0], *logs]
    for values, (mean, square) in zip(functions, _by_quadrature(observed, prior), strict=True):
        for power, expected in ((values, mean), (values**2, square)):
            of_chains = power.mean(axis=1)
            error = of_chains.std(ddof=1) / np.sqrt(len(of_chains))
            assert abs(of_chains.mean() - expected) < 5 * error
            assert error < 0.05 * max(1.0, abs(expected))


def _by_quadrature(observed: Observed, prior: Prior) -> list[tuple[float, float]]:
    """E and E of the square of θ, ln S and ln σ_y², for d = J = 1, on a grid over the logarithms."""
    log_S, log_v = np.meshgrid(np.linspace(-6, 5, 800), np.linspace(-4, 5, 500), indexing="ij")
    S, v, n = np.exp(log_S), np.exp(log_v), float(observed.n[0])
    m, C, scale, kappa = prior.m[0], prior.C[0, 0], prior.Lambda[0, 0], float(prior.kappa)
    V = S * v + observed.variance_z[0]
    log_p = n / 2 * log_S - (kappa + n) / 2 * np.log(scale + S)  # Wishart and inverse-Wishart, Σ_x integrated out
    log_p += stats.norm.logpdf(observed.S[0, 0, 0], S, np.sqrt(observed.variance_S[0]))
    log_p += stats.norm.logpdf(observed.z[0, 0], S * m, np.sqrt(S**2 * C + V))
    log_p += -prior.a * log_v - prior.b / v
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    variance = 1 / (1 / C + S**2 / V)
    mean = variance * (m / C + S * observed.z[0, 0] / V)
    pairs = ((mean, mean**2 + variance), (log_S, log_S**2), (log_v, log_v**2))
    return [(float((p * one).sum()), float((p * two).sum())) for one, two in pairs]


def test_adaptation_ends_with_the_warm_up() -> None:
    like = collapsed.Coordinates(np.zeros((D, D)), np.zeros((J, D, D)), np.zeros(()))
    rng = np.random.default_rng(1)
    path = jax.tree.map(lambda zero: 3 + 0.5 * rng.standard_normal((200, *zero.shape)), like)

    def adapted(i: Any, tuning: Any) -> Any:
        at = jax.tree.map(lambda along: jnp.asarray(along)[i % 200], path)
        return adaptation.adapted(tuning, at, jnp.where(i < 200, 0.9, 0.0), Schedule(i, jnp.asarray(200)))

    run = jax.jit(lambda first, last, tuning: jax.lax.fori_loop(first, last, adapted, tuning))
    tuning = run(0, 200, jax.jit(adaptation.start)(like))
    for centre, scale in zip(*tuning.reference, strict=True):
        np.testing.assert_allclose(centre, 3, atol=0.35)
        np.testing.assert_allclose(scale, 0.5, atol=0.25)
    after = run(200, 210, tuning)
    jax.tree.map(np.testing.assert_array_equal, tuning, after)
    beyond = Schedule(jnp.asarray(200), jnp.asarray(200))
    assert float(adaptation.step_size(tuning, beyond)) == float(jnp.exp(tuning.step.log_average))
