"""The paper's samplers by name, and a compiled run of several chains on each of several problems at once.

    name           model of the features     sampled                     needs
    MCMC-normalX   N(0, Σ_x)                 S, θ, σ_y², Σ_x
    MCMC-fixedS    none, S plugged in        θ, σ_y²
    MCMC-B&S       N(0, Σ_x), sums normal    S, z, u, θ, σ_y², Σ_x       yᵀy

A constant feature is not normal, so MCMC-normalX and MCMC-B&S are for centred columns.

Random numbers depend on the seed, the iteration and the chain's index. Compiled code is kept for the same kernel, names
of draws, lengths and shapes.

**One core.** JAX's pool has a thread for each core and uses them for small matrices too, which costs more than it
gains. If several processes run side by side, the environment variable NPROC=1, set before JAX first computes, keeps
each to one thread (measured; `XLA_FLAGS` with `xla_cpu_multi_thread_eigen` no longer has an effect).

**Not too many at once.** On two threads, a call with some thousands of chains deadlocks sooner or later (JAX 0.10.2;
seen with 2000 chains of two nodes and d = 5, not with 1000, never with one thread). So a call has at most `AT_ONCE`
chains, and many problems run in parts, one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from inference.errors import DataError
from inference.models.linear.nodes.observed import NodeStatistics, Prior
from papers.mcmc2023.paper import BERNSTEIN_SHELDON, FIXED_S, NORMAL_X
from papers.mcmc2023.samplers import bernstein_sheldon, fixed_s, normal_x
from papers.mcmc2023.samplers.kernel import Array, Info, Kernel, Schedule, State

SAMPLERS = (NORMAL_X, FIXED_S, BERNSTEIN_SHELDON)
AT_ONCE = 500  # chains of all problems in one call; the module's docstring has the reason
Problems = NodeStatistics | Sequence[NodeStatistics]
"""One problem, or several with the same J and d."""


def kernel_of(name: str, observed: Problems, published: float | None = None) -> Kernel:
    """Return the kernel of one of `SAMPLERS`; `published`: the start of σ_y², for the published code's settings."""
    if name == BERNSTEIN_SHELDON:
        return bernstein_sheldon.kernel_for(_listed(observed), published)
    return normal_x.kernel(published=published) if name == NORMAL_X else fixed_s.kernel(published=published)


class Length(NamedTuple):
    """The length of a chain: `warmup` iterations, then `draws` kept draws, one for every `thin` iterations."""

    warmup: int
    draws: int
    thin: int = 1


class Chains(NamedTuple):
    """The result of `sample` for R problems."""

    draws: dict[str, NDArray[np.float64]]  # by name, shape (R, chains, draws, ...)
    acceptance: dict[str, NDArray[np.float64]]  # by block, mean acceptance probability after warm-up, (R, chains)
    divergences: NDArray[np.int64]  # number of iterations after warm-up that failed numerically, (R, chains)
    seconds: float  # of all iterations, without compiling


class _Inputs(NamedTuple):
    """The constants of a run. Leading axes: the problem, and for keys the chain."""

    observed: NodeStatistics
    prior: Prior
    keys: Array


_compiled: dict[Any, Any] = {}


def sample(
    kernel: Kernel,
    observed: Problems,
    prior: Prior | Sequence[Prior],
    *,
    chains: int = 4,
    warmup: int = 1000,
    draws: int = 1000,
    thin: int = 1,
    seed: int = 0,
    names: Sequence[str] = ("theta", "sigma_y2"),
) -> Chains:
    """Draw from the posterior of one or several problems.

    Args:
        prior: one for each problem, or one for all.
        chains: per problem. warmup: iterations before the first draw. draws: kept per chain, one for `thin` iterations.
        seed: the same seed and shapes give the same draws.
        names: the kernel's draws to keep.

    Raises:
        DataError: the numbers of priors and problems differ, or the problems' shapes do.
    """
    many = _listed(observed)
    priors = [prior] * len(many) if isinstance(prior, Prior) else list(prior)
    if len(priors) != len(many):
        raise DataError(f"{len(many)} problems and {len(priors)} priors; give one prior for all or one for each")
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(seed), (len(many), chains))
        parts = _parts(_Inputs(_stacked(many), _stacked(priors), keys), max(1, AT_ONCE // chains))
        shapes = tuple((array.shape, array.dtype) for array in jax.tree.leaves(parts[0]))
        key = (kernel, tuple(names), warmup, draws, thin, shapes)
        if key not in _compiled:
            _compiled[key] = jax.jit(partial(_run, *key[:-1])).lower(parts[0]).compile()
        began = time.perf_counter()
        found = [jax.tree.map(np.asarray, _compiled[key](part)) for part in parts]
        seconds = time.perf_counter() - began
    drawn, totals = jax.tree.map(lambda *arrays: np.concatenate(arrays)[: len(many)], *found)
    acceptance = {name: total / (draws * thin) for name, total in totals.acceptance.items()}
    return Chains(drawn, acceptance, totals.divergent, seconds)


def _listed(observed: Problems) -> list[NodeStatistics]:
    return [observed] if isinstance(observed, NodeStatistics) else list(observed)


def _run(
    kernel: Kernel, names: tuple[str, ...], warmup: int, draws: int, thin: int, problems: _Inputs
) -> tuple[dict[str, Array], Info]:
    """Return draws by name and the sums of `Info` over iterations after warm-up; first axes: problem, chain."""
    start = jax.vmap(jax.vmap(kernel.init, in_axes=(0, None, None)))
    step = jax.vmap(jax.vmap(kernel.step, in_axes=(0, 0, None, None, None)), in_axes=(0, 0, 0, 0, None))

    def keys(iteration: Array) -> Array:
        """Return the chains' keys of an iteration; -1 is the start."""
        number = jnp.asarray(iteration + 1, jnp.uint32)
        return jax.vmap(jax.vmap(jax.random.fold_in, (0, None)), (0, None))(problems.keys, number)

    def move(state: State, i: Array) -> tuple[State, Info]:
        schedule = Schedule(i, jnp.asarray(warmup))
        moved: tuple[State, Info] = step(keys(i), state, problems.observed, problems.prior, schedule)
        return moved

    def keep(state: State, first: Array) -> tuple[State, Any]:
        state, infos = jax.lax.scan(move, state, first + jnp.arange(thin))
        drawn = jax.vmap(jax.vmap(kernel.draw))(state)
        return state, ({name: drawn[name] for name in names}, jax.tree.map(lambda one: one.sum(axis=0), infos))

    state = start(keys(jnp.asarray(-1)), problems.observed, problems.prior)
    state = jax.tree.map(lambda array: jnp.asarray(array, array.dtype), state)  # typed as a step's
    state = jax.lax.fori_loop(0, warmup, lambda i, state: move(state, i)[0], state)
    _, (drawn, infos) = jax.lax.scan(keep, state, warmup + thin * jnp.arange(draws))
    return {name: jnp.moveaxis(a, 0, 2) for name, a in drawn.items()}, jax.tree.map(lambda one: one.sum(axis=0), infos)


def _stacked(items: Sequence[Any]) -> Any:
    """Return one named tuple whose arrays have a new leading axis over the items."""
    shapes = {tuple(np.shape(array) for array in item) for item in items}
    if len(shapes) > 1:
        raise DataError(f"problems of different shape, {shapes}; sample those of each J and d together")
    return jax.tree.map(lambda *arrays: jnp.asarray(np.stack([np.asarray(a, float) for a in arrays])), *items)


def _parts(problems: _Inputs, size: int) -> list[_Inputs]:
    """Divide problems into even parts of at most `size`; repeat the last problem so that all parts have one shape."""
    R = len(problems.keys)
    count = -(-R // size)
    each = -(-R // count)
    places = np.minimum(np.arange(count * each), R - 1).reshape(count, each)
    return [jax.tree.map(lambda array, chosen=chosen: array[chosen], problems) for chosen in places]
