"""The posterior of MCMC-normalX by collapsed Hamiltonian Monte Carlo: θ is integrated out, all else moves at once.

    target     p(Σ_x, S_1..J, σ_y² | Ŝ, ẑ), θ integrated out (`marginal_likelihood`), in the coordinates of `noncentred`
    step       a trajectory of Hamiltonian dynamics, accepted or refused
    then       θ | S, σ_y², drawn from its full conditional (12): independent of the last given the rest

(Collapsed, after Liu 1994: what has a closed form is integrated out, and drawn when the rest has moved.)

MCMC-normalX proposes each S_j by a random walk in d(d + 1)/2 dimensions that knows nothing of the posterior's shape,
given Σ_x, and Σ_x given the S_j: where noise hides S_j, both can move only by the width of the Wishart law, which is
one in √n_j (`normal_x` says where that does not mix, and how it was made sure that both have the same posterior). Here
one gradient costs what one of its iterations does (O(J d³)), and a trajectory of four to six of them forgets where it
began. `scripts/mcmc_efficiency.py` measures both: at d = 5, J = 10, n = 1e5, hundreds of times as many effective
samples per second.

**The integrator.** With the reference N(c, diag(s²)), q = (x - c)/s and -ln p = ½|q|² + U(q), the dynamics of ½|q|² +
½|p|² are a rotation, and exact. A step of size h is half a kick by -∇U, a rotation by h, half a kick (Shahbaba, Lan,
Johnson and Neal 2014, section 2): where the posterior is the reference, nothing is ever refused, and where it is not,
this is as good as leapfrog. A trajectory turns by `LENGTH`, a little over π/2, at which a Gaussian is forgotten; so it
has LENGTH/h steps, between 1 and `STEPS_MAX`: bounded, as all chains and problems that are mapped over wait for the
longest. h changes by up to a fifth from trajectory to trajectory, so that no direction comes back to its start each
time. (Measured with 1, 2, 3, 4, 5, 6, 8 steps of h = 0.45 at d = 5, J = 10, ε = 1: 0.04, 0.09, 0.13, 0.18, 0.19, 0.16,
0.12 effective samples per gradient, the smallest of θ and σ_y².)

The scales are `noncentred`'s for the covariance between nodes, and means and standard deviations from warm-up for the
rest (`adaptation`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from inference.mcmc import adaptation
from inference.mcmc.adaptation import Reference, Tuning
from inference.mcmc.distributions import Noise, inverse, solved
from inference.mcmc.kernel import (
    Array,
    Info,
    Kernel,
    Schedule,
)
from inference.models.linear.nodes import noncentred
from inference.models.linear.nodes.marginal_likelihood import Coefficients, likelihood
from inference.models.linear.nodes.noncentred import Coordinates, Factors, Frame
from inference.models.linear.nodes.observed import Observed, Prior

NAME = "collapsed"
LENGTH = 1.8  # radians of a trajectory
STEPS_MAX = 8
JITTER = 0.2
DIVERGENT = 1000.0  # an energy error beyond it is numerical failure


class Point(NamedTuple):
    """Where a chain is, and what was calculated there.

    Attributes:
        at: its coordinates. log_density: of them, without constants; shape ``()``. gradient: of that.
        factors: the matrices. coefficients: the law of θ there.
    """

    at: Coordinates
    log_density: Array
    gradient: Coordinates
    factors: Factors
    coefficients: Coefficients


class State(NamedTuple):
    """After a step.

    Attributes:
        theta: shape ``(d,)``. point: all else. frame, prior_precision: do not change. tuning: changes in warm-up.
    """

    theta: Array
    point: Point
    frame: Frame
    prior_precision: Array
    tuning: Tuning


@cache
def kernel() -> Kernel:
    """Collapsed Hamiltonian Monte Carlo. It has no options; the step size adapts."""
    return Kernel(NAME, _init, _step, _draw)


def entered(state: State, position: dict[str, Array], observed: Observed, prior: Prior) -> State:
    """The state with "theta", "sigma_y2", "Sigma_x" and "S" put in the place of its own."""
    at = noncentred.coordinates(position["Sigma_x"], position["S"], position["sigma_y2"], state.frame, observed.n)
    return state._replace(
        theta=position["theta"], point=evaluate(at, state.frame, state.prior_precision, observed, prior)
    )


def evaluate(at: Coordinates, frame: Frame, prior_precision: Array, observed: Observed, prior: Prior) -> Point:
    """The log density of a point, and its gradient."""
    made = noncentred.factors(at, frame, observed.n)
    value, by_K, by_a = noncentred.log_prior(made, frame, prior, observed.n)
    sigma_y2 = jnp.exp(at.log_sigma_y2)
    data = likelihood(made.S, sigma_y2, observed, prior.m, prior_precision)
    x_0, x = noncentred.pulled_back(data.slope, made, frame, by_K, by_a, observed.n)
    inverse_gamma = -prior.a * at.log_sigma_y2 - prior.b / sigma_y2  # of ln σ_y²
    by_log = sigma_y2 * data.slope_sigma_y2 - prior.a + prior.b / sigma_y2
    return Point(at, value + data.value + inverse_gamma, Coordinates(x_0, x, by_log), made, data.coefficients)


def _init(key: Array, observed: Observed, prior: Prior) -> State:
    """A chain starts about where its coordinates expect it, a standard deviation of theirs apart from others."""
    J, d = observed.z.shape
    frame, prior_precision = noncentred.frame(observed, prior), inverse(prior.C)
    at = _normal(Noise(key, _count(J, d)), J, d)
    at = at._replace(log_sigma_y2=at.log_sigma_y2 + jnp.log(prior.b / (prior.a + 1)))
    point = evaluate(at, frame, prior_precision, observed, prior)
    return State(point.coefficients.mean, point, frame, prior_precision, adaptation.start(at))


def _step(key: Array, state: State, observed: Observed, prior: Prior, schedule: Schedule) -> tuple[State, Info]:
    """A trajectory, its acceptance, and θ."""
    J, d = observed.z.shape
    noise = Noise(key, _count(J, d) + d + 2)
    momentum, to_theta = _normal(noise, J, d), noise.normals(d)
    log_jitter, log_uniform = noise.log_uniforms(2)
    size = adaptation.step_size(state.tuning, schedule)
    steps = jnp.clip(jnp.round(LENGTH / size), 1, STEPS_MAX).astype(int)
    size *= 1 + JITTER * (2 * jnp.exp(log_jitter) - 1)
    density = partial(
        evaluate, frame=state.frame, prior_precision=state.prior_precision, observed=observed, prior=prior
    )
    proposed, _, error = trajectory(state.point, momentum, state.tuning.reference, size, steps, density)
    failed = ~(error < DIVERGENT)
    log_probability = jnp.where(failed, -jnp.inf, jnp.minimum(0.0, -error))
    accepted = log_uniform < log_probability
    point = jax.tree.map(partial(jnp.where, accepted), proposed, state.point)
    probability = jnp.exp(log_probability)
    tuning = adaptation.adapted(state.tuning, point.at, probability, schedule)
    theta = point.coefficients.mean + solved(point.coefficients.root, to_theta[:, None], transpose=True)[:, 0]
    return state._replace(theta=theta, point=point, tuning=tuning), Info({"trajectory": probability}, failed)


def _draw(state: State) -> dict[str, Array]:
    made = state.point.factors
    sigma_y2 = jnp.exp(state.point.at.log_sigma_y2)
    return {"theta": state.theta, "sigma_y2": sigma_y2, "Sigma_x": made.M @ made.M.T, "S": made.S}


def trajectory(
    point: Point,
    momentum: Coordinates,
    reference: Reference,
    size: Array,
    steps: Array,
    density: Callable[[Coordinates], Point],
) -> tuple[Point, Coordinates, Array]:
    """Where so many steps lead, the momentum there, and by how much the energy is then too high.

    Args:
        momentum: p, N(0, 1) each. reference: c and s. size: h. density: `evaluate` for its first argument.
    """

    def advance(_: int, carry: tuple[Coordinates, Point]) -> tuple[Coordinates, Point]:
        p, before = carry
        p = _kicked(p, before, reference, size)
        q = jax.tree.map(lambda x, c, s: (x - c) / s, before.at, *reference)
        turned = jax.tree.map(lambda q, p: q * jnp.cos(size) + p * jnp.sin(size), q, p)
        p = jax.tree.map(lambda q, p: p * jnp.cos(size) - q * jnp.sin(size), q, p)
        after = density(jax.tree.map(lambda q, c, s: c + s * q, turned, *reference))
        return _kicked(p, after, reference, size), after

    p, end = jax.lax.fori_loop(0, steps, advance, (momentum, point))
    return end, p, _energy(end, p) - _energy(point, momentum)


def _kicked(p: Coordinates, at: Point, reference: Reference, size: Array) -> Coordinates:
    """The momentum after half a kick by -∇U_1 = s ∇ln p + q."""

    def kicked(p: Array, x: Array, slope: Array, c: Array, s: Array) -> Array:
        return p + size / 2 * (s * slope + (x - c) / s)

    moved: Coordinates = jax.tree.map(kicked, p, at.at, at.gradient, *reference)
    return moved


def _energy(at: Point, p: Coordinates) -> Array:
    """-ln p(x) + ½|p|²."""
    return sum((jnp.sum(part**2) for part in p), start=jnp.zeros(())) / 2 - at.log_density


def _count(J: int, d: int) -> int:
    """How many normals a momentum takes."""
    return (J + 1) * d * d + 1


def _normal(noise: Noise, J: int, d: int) -> Coordinates:
    """N(0, 1) for every coordinate."""
    return Coordinates(jnp.tril(noise.normals(d, d)), jnp.tril(noise.normals(J, d, d)), noise.normals())
