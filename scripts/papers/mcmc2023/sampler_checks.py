"""Joint-distribution tests (`joint`) of every sampler that has a joint distribution, over sizes and noise.

NumPy makes independent draws from first principles: Σ_x as the inverse of a sum of squares, rows x ~ N(0, Σ_x) and
y = xᵀθ + e, S = XᵀX, z = Xᵀy, and noise. So the tests cover Proposition 3.1 of the paper (z given S) and the Wishart
law of S along with the samplers. New data given parameters and S follow the paper's equations (8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer.hmc import hmc
from numpyro.infer.util import constrain_fn, potential_energy
from rich.table import Table

from inference.models.linear.nodes import model as node_model
from inference.models.linear.nodes.observed import NodeStatistics, Prior
from inference.problem import Array
from papers.experiment import Experiment, Result
from papers.mcmc2023.joint import FALSE_ALARM, PARAMETER, STILL, Position, Subject, successive, verdict
from papers.mcmc2023.releases import symmetric_normals
from papers.mcmc2023.samplers import fixed_s as fixed_s_kernel
from papers.mcmc2023.samplers import normal_x as normal_x_kernel
from papers.mcmc2023.samplers.kernel import Info, Kernel, Schedule
from papers.runner import Check, table

CONSTANT = 0.8  # value of the first feature, with an intercept
PRIOR_ROWS = 5.0  # k_0, with an intercept
MISSING = 0.3  # expected share of rows that lack a value, with an intercept


class Regime(NamedTuple):
    """Sizes and noise of a joint distribution."""

    d: int  # features
    n: tuple[int, ...]  # rows of each node
    noise: float  # standard deviation in S_j and z_j, in units of √n_j

    def __str__(self) -> str:
        return f"d = {self.d}, J = {len(self.n)}, n = {'/'.join(map(str, self.n))}, noise {self.noise:g}√n"


def prior_of(d: int) -> Prior:
    """Return a prior without zeros, diagonal matrices or equal terms, so that tests detect omitted or swapped terms."""
    places = np.arange(d)
    C = 0.5 * 0.4 ** np.abs(places[:, None] - places) * np.sqrt(np.outer(1 + places, 1 + places))
    Lambda = (d + 2.0) * (-0.3) ** np.abs(places[:, None] - places)
    m = 0.5 * (-1.0) ** places
    return Prior(m, C, np.array(4.0), np.array(3.0), Lambda, np.array(d + 4.0))


def parameters(rng: np.random.Generator, prior: Prior, count: int) -> dict[str, Array]:
    """Draw θ, σ_y² and Σ_x from a prior whose κ is an integer."""
    d, kappa = len(prior.Lambda), int(prior.kappa)
    theta = prior.m + rng.standard_normal((count, len(prior.m))) @ np.linalg.cholesky(prior.C).T
    sigma_y2 = prior.b / rng.gamma(prior.a, size=count)
    rows = rng.standard_normal((count, kappa, d)) @ np.linalg.cholesky(np.linalg.inv(prior.Lambda)).T
    return {"theta": theta, "sigma_y2": sigma_y2, "Sigma_x": np.linalg.inv(_squares(rows))}


def _squares(rows: Array) -> Array:
    return np.asarray(np.swapaxes(rows, -1, -2) @ rows)


def statistics(rng: np.random.Generator, true: dict[str, Array], regime: Regime) -> tuple[Array, Array]:
    """Draw rows; return their exact S and z, shapes ``(count, J, d, d)`` and ``(count, J, d)``."""
    lower = np.linalg.cholesky(true["Sigma_x"])
    S, z = [], []
    for n in regime.n:
        x = rng.standard_normal((len(lower), n, regime.d)) @ np.swapaxes(lower, -1, -2)
        y = (x @ true["theta"][:, :, None])[..., 0]
        y += np.sqrt(true["sigma_y2"])[:, None] * rng.standard_normal(y.shape)
        S.append(_squares(x))
        z.append((y[:, None] @ x)[:, 0])
    return np.stack(S, axis=1), np.stack(z, axis=1)


def released(rng: np.random.Generator, S: Array, z: Array, regime: Regime) -> NodeStatistics:
    """Add noise; its variances differ between S and z, and between the nodes."""
    count, J = S.shape[:2]
    n = np.array(regime.n, float)
    variance_S, variance_z = regime.noise**2 * n, 1.5 * regime.noise**2 * n
    noisy_S = S + np.sqrt(variance_S)[:, None, None] * symmetric_normals(rng, count * J, S.shape[-1]).reshape(S.shape)
    noisy_z = z + np.sqrt(variance_z)[:, None] * rng.standard_normal(z.shape)
    none = np.full((count, J), np.nan)
    each = partial(np.broadcast_to, shape=(count, J))
    return NodeStatistics(noisy_S, noisy_z, each(n), each(variance_S), each(variance_z), none, none, np.zeros(count))


def enter_normal_x(state: Any, position: Position, observed: NodeStatistics, prior: Prior) -> Any:
    """Replace the position of MCMC-normalX's state, the factors of S and of V = σ_y² S + σ_z² I, and the likelihoods.

    α_j gets about the value of a warm-up: 1/α_j is proportional to the variance of a term of S_j/n_j, of which 2/n_j is
    the Wishart's, and smaller in more dimensions.
    """
    S, d = position["S"], position["theta"].size
    K = jnp.linalg.cholesky(position["sigma_y2"] * S + observed.variance_z[:, None, None] * jnp.eye(d))
    residual = (observed.z - S @ position["theta"])[..., None]
    white = jax.scipy.linalg.solve_triangular(K, residual, lower=True)[..., 0]
    logs = jnp.log(jnp.diagonal(K, axis1=-2, axis2=-1))
    return state._replace(
        theta=position["theta"],
        sigma_y2=position["sigma_y2"],
        S=S,
        L=jnp.linalg.cholesky(S),
        K=K,
        log_likelihood=-(logs + white**2 / 2).sum(axis=-1),
        Sigma_x=(jnp.linalg.cholesky(position["Sigma_x"]), jnp.eye(len(position["Sigma_x"]))),
        log_alpha=jnp.log((observed.n / 2 + observed.n**2 / observed.variance_S) * d**2 / 3 + d),
    )


def normal_x(kernel: Kernel, regime: Regime) -> Subject:
    """Return the joint distribution of the paper's Figure 1, for any sampler of MCMC-normalX's posterior."""
    prior, d = prior_of(regime.d), regime.d

    def draw(rng: np.random.Generator, count: int) -> tuple[Position, NodeStatistics]:
        true = parameters(rng, prior, count)
        S, z = statistics(rng, true, regime)
        return {**true, "S": S}, released(rng, S, z, regime)

    normals = len(regime.n) * (d * (d + 1) // 2 + d)
    return Subject(kernel, prior, draw, _new_statistics, normals, enter_normal_x, kernel.draw, _functions_of_normal_x)


def fixed_s(kernel: Kernel, regime: Regime) -> Subject:
    """Return the subject of Algorithm 2, which replaces S by the nearest positive semi-definite matrices to noisy S."""
    prior = prior_of(regime.d)

    def draw(rng: np.random.Generator, count: int) -> tuple[Position, NodeStatistics]:
        true = parameters(rng, prior, count)
        observed = released(rng, *statistics(rng, true, regime), regime)
        values, vectors = np.linalg.eigh(observed.S)
        S = (vectors * np.maximum(values, 0)[..., None, :]) @ np.swapaxes(vectors, -1, -2)
        position = {"theta": true["theta"], "sigma_y2": true["sigma_y2"], "S": S}
        return position, observed._replace(z=_given(rng, position, observed.variance_z))

    def renew(normals: Any, position: Position, observed: NodeStatistics) -> NodeStatistics:
        return observed._replace(z=_new_z(normals, position, observed))

    def enter(state: Any, position: Position, observed: NodeStatistics, prior: Prior) -> Any:
        return state._replace(theta=position["theta"], sigma_y2=position["sigma_y2"])  # the rest is from `init`

    normals = len(regime.n) * regime.d
    return Subject(kernel, prior, draw, renew, normals, enter, kernel.draw, _functions_of_regression)


def intercept(regime: Regime) -> Subject:
    """Appendix B.2: a constant first feature, and d others about an unknown mean μ_x ~ N(0, Σ_x/k_0); rows are missing.

    The number of complete rows m_j is a real number, as in the library's model. So the mean of the features is drawn
    from N(μ_x, Σ_x/m_j), their scatter from a Wishart law with m_j - 1 degrees of freedom, and z given S.
    """
    D, d = regime.d + 1, regime.d
    prior = prior_of(D)
    of_features = prior._replace(Lambda=prior.Lambda[1:, 1:])
    n = np.array(regime.n, float)

    def draw(rng: np.random.Generator, count: int) -> tuple[Position, NodeStatistics]:
        true = parameters(rng, of_features, count)
        lower = np.linalg.cholesky(true["Sigma_x"])
        mu_x = (lower @ rng.standard_normal((count, d, 1)))[..., 0] / np.sqrt(PRIOR_ROWS)
        rows = _complete(rng, n, D, count)
        apart = (lower[:, None] @ rng.standard_normal((count, n.size, d, 1)))[..., 0]
        mean = mu_x[:, None] + apart / np.sqrt(rows[..., None])
        A = np.tril(rng.standard_normal((count, n.size, d, d)), -1)
        A[..., np.arange(d), np.arange(d)] = np.sqrt(rng.chisquare(rows[..., None] - 1 - np.arange(d)))
        x = np.concatenate([np.full((count, n.size, 1), CONSTANT), mean], axis=-1)
        S = rows[..., None, None] * x[..., :, None] * x[..., None, :]
        root = lower[:, None] @ A
        S[..., 1:, 1:] += root @ np.swapaxes(root, -1, -2)
        position = {**true, "mu_x": mu_x, "S": S}
        observed = released(rng, S, _given(rng, position, np.zeros((count, n.size))), regime)
        return position, observed._replace(constant=np.full(count, CONSTANT))

    normals = n.size * (D * (D + 1) // 2 + D)
    return _subject_of_nuts(regime, prior, draw, normals, _functions_of_intercept)


def _complete(rng: np.random.Generator, n: Array, D: int, count: int) -> Array:
    """Draw m_j between D and n_j with p(m_j) ∝ exp(-(n_j - m_j)/(n_j q)), by inversion."""
    scale = MISSING * n
    most = -np.expm1(-(n - D) / scale)
    return np.asarray(n + scale * np.log1p(-rng.random((count, n.size)) * most))


def nuts_of_normal_x(regime: Regime) -> Subject:
    """Return the library's model without a constant, which has the joint distribution of MCMC-normalX."""
    like = normal_x(normal_x_kernel.kernel(), regime)
    return _subject_of_nuts(regime, like.prior, like.draw, like.normals, _functions_of_normal_x)


STEP, LEAPFROGS = 0.25, 6  # of a trajectory


def _subject_of_nuts(regime: Regime, prior: Prior, draw: Any, normals: int, functions: Any) -> Subject:
    """Return Hamiltonian trajectories on the library's model, in coordinates that fit one of the data sets."""
    one = jax.tree.map(lambda array: array[0], draw(np.random.default_rng(0), 1)[1])
    frame, constant = node_model.frame(one, prior), bool(one.constant > 0)
    model = node_model.NodeRegression(constant, PRIOR_ROWS, MISSING)
    start, move = hmc(potential_fn_gen=lambda data: partial(potential_energy, model, (data,), {}), algo="HMC")

    def data_of(observed: NodeStatistics) -> dict[str, Any]:
        return {"observed": observed, "prior": prior, "frame": frame}

    def enter(state: Any, position: Position, observed: NodeStatistics, prior: Prior) -> Any:
        return _coordinates(position, observed, prior, frame)

    def step(key: Any, state: Any, observed: NodeStatistics, prior: Prior, schedule: Schedule) -> tuple[Any, Info]:
        settings = {"step_size": STEP, "adapt_step_size": False, "adapt_mass_matrix": False}
        data = data_of(observed)
        before = start(state[0], 0, trajectory_length=STEP * LEAPFROGS, model_args=(data,), rng_key=key, **settings)
        after = move(before, model_args=(data,))
        return (after.z, data), Info({"trajectory": after.accept_prob}, after.diverging)

    def leave(state: Any) -> Position:
        found = constrain_fn(model, (state[1],), {}, state[0], return_deterministic=True)
        names = ("theta", "sigma_y2", "Sigma_x", "S", *(("mu_x",) if constant else ()))
        return {name: found[name] for name in names}

    kernel = Kernel(lambda key, observed, prior: key, step, leave)
    return Subject(kernel, prior, draw, _new_statistics, normals, enter, leave, functions)


def _coordinates(position: Position, observed: NodeStatistics, prior: Prior, frame: node_model.Frame) -> Any:
    """Return the model's unconstrained sites for a position, and the data."""
    S, D = position["S"], position["theta"].size
    constant = "mu_x" in position
    first, n = int(constant), observed.n
    B = jnp.asarray(frame.B)
    features = jnp.linalg.inv(B[first:, first:])
    K = jnp.eye(D).at[first:, first:].set(jnp.linalg.cholesky(features @ position["Sigma_x"] @ features.T))
    if constant:
        K = K.at[1:, 0].set(features @ (position["mu_x"] - B[1:, 0]))
    inverse = jnp.linalg.inv(B @ K)
    A = jnp.linalg.cholesky(inverse @ S @ inverse.T / n[:, None, None])
    i, j = node_model.terms(D, constant=constant)
    diagonal, rows = i == j, n * A[:, 0, 0] ** 2 if constant else n
    K_inverse = jnp.linalg.inv(K)[i, j]
    k = jnp.where(diagonal, -jnp.log(jnp.where(diagonal, K_inverse, 1.0)), -K_inverse)
    a = A[:, i, j]
    a = jnp.where(diagonal, jnp.log(jnp.where(diagonal, a, 1.0)) - jnp.log((rows[:, None] - i) / n[:, None]) / 2, a)
    mean, root, _ = node_model.marginal(S, position["sigma_y2"], observed, prior)
    z = {
        "x_0": k / frame.s_0,
        "x": (a + frame.rho * k) / frame.s,
        "sigma_y2": jnp.log(position["sigma_y2"]),
        "white": root.T @ (position["theta"] - mean),
    }
    if constant:
        missing = (n - rows) / (n - D)
        z["missing"] = jnp.log(missing) - jnp.log1p(-missing)
    return z, {"observed": observed, "prior": prior, "frame": frame}


def _given(rng: np.random.Generator, position: Position, variance_z: Array) -> Array:
    """Draw noisy z given S: N(S θ, S σ_y² + variance_z I)."""
    S, d = position["S"], position["theta"].shape[-1]
    cov = S * position["sigma_y2"][:, None, None, None] + variance_z[..., None, None] * np.eye(d)
    noise = (np.linalg.cholesky(cov) @ rng.standard_normal((*S.shape[:-1], 1)))[..., 0]
    return np.asarray(np.einsum("cjik,ck->cji", S, position["theta"]) + noise)


def _new_statistics(normals: Any, position: Position, observed: NodeStatistics) -> NodeStatistics:
    """Draw noisy S and z given one chain's parameters, by equation (8) and Proposition 3.1."""
    S = position["S"]
    J, d = S.shape[:2]
    place = np.zeros((d, d), int)
    place[np.triu_indices(d)] = place.T[np.triu_indices(d)] = np.arange(d * (d + 1) // 2)
    for_S, for_z = jnp.split(normals, [J * (d * (d + 1) // 2)])
    noise = for_S.reshape(J, -1)[:, place]
    noisy = S + jnp.sqrt(observed.variance_S)[:, None, None] * noise
    return observed._replace(S=noisy, z=_new_z(for_z, position, observed))


def _new_z(normals: Any, position: Position, observed: NodeStatistics) -> Any:
    S, d = position["S"], position["theta"].size
    cov = position["sigma_y2"] * S + observed.variance_z[:, None, None] * jnp.eye(d)
    return S @ position["theta"] + jnp.einsum("jik,jk->ji", jnp.linalg.cholesky(cov), normals.reshape(-1, d))


def _functions_of_regression(position: Position, observed: NodeStatistics) -> dict[str, Array]:
    """Return test functions of θ and σ_y², and of both with z."""
    theta, sigma_y2 = position["theta"], position["sigma_y2"]
    first = observed.z[:, 0]
    residual = first - np.einsum("cik,ck->ci", observed.S[:, 0], theta)
    found = {f"{PARAMETER}θ{i + 1}": theta[:, i] for i in range(theta.shape[1])}
    return found | {
        f"{PARAMETER}|θ|²": (theta**2).sum(axis=1),
        f"{PARAMETER}θ1 θd": theta[:, 0] * theta[:, -1],
        f"{PARAMETER}σ_y²": sigma_y2,
        f"{PARAMETER}σ_y² |θ|²": sigma_y2 * (theta**2).sum(axis=1),
        "z1": first[:, 0],
        "|z1 - S1 θ|²": (residual**2).sum(axis=1),
        "θᵀz1": (theta * first).sum(axis=1),
        "θᵀΣz": (theta * observed.z.sum(axis=1)).sum(axis=1),
    }


def _functions_of_normal_x(
    position: Position, observed: NodeStatistics, released_S: Array | None = None
) -> dict[str, Array]:
    """Add functions of Σ_x, S and the noisy S; `released_S` is the matrix that noise was added to, if it is not S."""
    Sigma, S = position["Sigma_x"], position["S"]
    exact = S if released_S is None else released_S
    log_Sigma, log_S = np.linalg.slogdet(Sigma)[1], np.linalg.slogdet(S)[1]
    total = S.sum(axis=1)
    correlations = {f"{PARAMETER}Σ12 scaled": _scaled(Sigma), f"{PARAMETER}S12 scaled": _scaled(S[:, -1])}
    found = _functions_of_regression(position, observed)
    if Sigma.shape[-1] > 1:  # for one feature they are always 1
        found |= correlations
    return found | {
        f"{PARAMETER}log |Σ|": log_Sigma,
        f"{PARAMETER}log |S1|": log_S[:, 0],
        f"{PARAMETER}log |SJ|": log_S[:, -1],
        f"{PARAMETER}log |S1| - log |Σ|": log_S[:, 0] - log_Sigma,
        f"{PARAMETER}tr Σ⁻¹ΣS": np.trace(np.linalg.solve(Sigma, total), axis1=1, axis2=2),
        f"{PARAMETER}σ_y² |S1|": np.log(position["sigma_y2"]) + log_S[:, 0],
        f"{PARAMETER}θᵀS1θ": np.einsum("ci,cij,cj->c", position["theta"], exact[:, 0], position["theta"]),
        "noisy S1, last": observed.S[:, 0, -1, -1],
        "noisy SJ, off the diagonal": observed.S[:, -1, 0, -1],
        "S1 · noisy S1": (exact[:, 0] * observed.S[:, 0]).sum(axis=(1, 2)),
        "|noisy S1 - S1|²": ((exact[:, 0] - observed.S[:, 0]) ** 2).sum(axis=(1, 2)),
    }


def _functions_of_intercept(position: Position, observed: NodeStatistics) -> dict[str, Array]:
    """Return the functions of MCMC-normalX for the features' scatter, and others of their means and complete rows."""
    S, mu_x = position["S"], position["mu_x"]
    rows, J = S[:, :, 0, 0] / CONSTANT**2, S.shape[1]
    mean = S[:, :, 0, 1:] / (rows[..., None] * CONSTANT)
    scatter = S[:, :, 1:, 1:] - rows[..., None, None] * mean[..., :, None] * mean[..., None, :]
    apart = mean - mu_x[:, None]
    precision = np.linalg.inv(position["Sigma_x"])
    log_scatter = np.linalg.slogdet(scatter[:, 0])[1]
    return _functions_of_normal_x({**position, "S": scatter}, observed, S) | {
        f"{PARAMETER}first μ_x": mu_x[:, 0],
        f"{PARAMETER}last μ_x": mu_x[:, -1],
        f"{PARAMETER}|μ_x|": (mu_x**2).sum(axis=1),
        f"{PARAMETER}μ_xᵀ Σ⁻¹ μ_x": np.einsum("ci,cij,cj->c", mu_x, precision, mu_x),
        f"{PARAMETER}first mean": mean[:, 0, 0],
        f"{PARAMETER}|b1 - μ_x|": np.einsum("ci,cij,cj->c", apart[:, 0], precision, apart[:, 0]),
        f"{PARAMETER}|bJ - μ_x|": np.einsum("ci,cij,cj->c", apart[:, J - 1], precision, apart[:, J - 1]),
        f"{PARAMETER}intercept x first mean": position["theta"][:, 0] * mean[:, 0, 0],
        f"{PARAMETER}m1": rows[:, 0],
        f"{PARAMETER}mJ": rows[:, -1],
        f"{PARAMETER}log |C1| - d log m1": log_scatter - mu_x.shape[1] * np.log(rows[:, 0]),
        f"{PARAMETER}m1 |b1 - μ_x|": rows[:, 0] * np.einsum("ci,cij,cj->c", apart[:, 0], precision, apart[:, 0]),
        f"{PARAMETER}intercept x m1": position["theta"][:, 0] * rows[:, 0],
        "noisy m1": observed.S[:, 0, 0, 0],
        "m1 · noisy m1": rows[:, 0] * observed.S[:, 0, 0, 0],
    }


def _scaled(matrices: Array) -> Array:
    return np.asarray(matrices[:, 0, -1] / np.sqrt(matrices[:, 0, 0] * matrices[:, -1, -1]))


SAMPLERS: Mapping[str, Callable[[Regime], Subject]] = {
    "normal-x": lambda regime: normal_x(normal_x_kernel.kernel(), regime),
    "normal-x, published walk": lambda regime: normal_x(normal_x_kernel.kernel(published=1.0), regime),
    "normal": nuts_of_normal_x,
    "fixed-s": lambda regime: fixed_s(fixed_s_kernel.kernel(), regime),
    "normal, with a constant": intercept,
}
"""All samplers that have a joint distribution."""

REGIMES = (
    Regime(1, (12,), 1.0),
    Regime(2, (30, 50), 1.0),
    Regime(2, (40,), 0.1),
    Regime(3, (20, 60, 200), 3.0),
    Regime(5, (100, 150), 1.0),
)


class Cell(NamedTuple):
    """A sampler, and the index of a regime."""

    sampler: str
    regime: int

    def __str__(self) -> str:
        return f"{self.sampler}, {REGIMES[self.regime]}"


@dataclass(frozen=True, kw_only=True)
class SamplerChecks(Experiment[Cell, list[Result]]):
    """Joint-distribution tests of every sampler of distributed regression that has a joint distribution.

    Takes about 2 minutes on two idle cores. Thousands of short chains start at draws of the joint distribution; their
    ends must follow it, too (`papers.mcmc2023.joint`). Exit code 4 if a sampler's do not, or if it does not move.
    """

    KIND, LABEL, DEPENDS = "sampler-checks", "joint-distribution tests", ("seed", "chains", "steps")
    QUICK: ClassVar = {"regimes": (1,), "chains": 4000, "steps": 20}
    QUICK_CHECKS = True

    regimes: tuple[int, ...] = tuple(range(len(REGIMES)))
    chains: int = 10_000
    steps: int = 30

    def cells(self) -> list[Cell]:
        return [Cell(sampler, regime) for sampler in SAMPLERS for regime in self.regimes]

    def work(self, cell: Cell) -> Result:
        subject = SAMPLERS[cell.sampler](REGIMES[cell.regime])
        found = verdict(subject, successive(subject), chains=self.chains, steps=self.steps, seed=self.seed)
        p = {f"{name} ({test})": p for (name, test), p in found.p.items()}
        figures = {"alarm": found.alarm, "worst": min(p, key=lambda test: p[test]), "p": p}
        return figures | {"memory": found.memory, "unmoved": found.unmoved, "acceptance": found.acceptance}

    def gather(self, cells: Sequence[Cell], results: Sequence[Result]) -> list[Result]:
        return [one | {"cell": cell} for cell, one in zip(cells, results, strict=True)]

    def tables(self, found: Sequence[Result]) -> Iterator[Table]:
        heads = ("alarm", "the smallest p-value's test", "tests", "memory at most", "acceptance")
        shown = table("joint-distribution tests", "sampler", "d, nodes and noise", *heads)
        for one in found:
            accepted = ", ".join(f"{block} {share:.2f}" for block, share in one["acceptance"].items())
            memory, regime = f"{max(one['memory'].values()):.2f}", str(REGIMES[one["cell"].regime])
            row = (f"{one['alarm']:.2g}", one["worst"], str(len(one["p"])), memory, accepted)
            shown.add_row(one["cell"].sampler, regime, *row)
        yield shown

    def checks(self, found: Sequence[Result]) -> Iterator[Check]:
        least = FALSE_ALARM / len(found)
        for sampler in dict.fromkeys(one["cell"].sampler for one in found):
            own = [one for one in found if one["cell"].sampler == sampler]
            alarm, unmoved = min(one["alarm"] for one in own), max(max(one["unmoved"].values()) for one in own)
            asked = f"no alarm below {least:.1e} in {len(own)} regimes"
            yield Check(f"{sampler} leaves the joint distribution as it is", asked, f"{alarm:.2g}", alarm > least)
            asked = f"at most {STILL:.0%} of the chains end where they started"
            yield Check(f"{sampler} moves", asked, f"{unmoved:.1%}", unmoved <= STILL)
