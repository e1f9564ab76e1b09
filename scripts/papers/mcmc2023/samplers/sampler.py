"""Runs a kernel: several chains on each of several problems at once, compiled, in blocks.

One compiled function makes some draws; how many, how many iterations apart, and where in the run it stands are its
arguments. So runs of any length share one compilation per kernel, names asked for and shapes, and between two
blocks the caller hears how far it is. Only the draws asked for leave the function. Random numbers depend on the seed,
the iteration and the chain's place among the chains, not on the blocks.

**One core.** JAX's pool has a thread for each core, and lends them to small matrices too, which costs more than it
gains. Where several processes run side by side, the environment variable NPROC=1, set before JAX first computes, keeps
each to one thread (measured; `XLA_FLAGS` with `xla_cpu_multi_thread_eigen` changes nothing any more).

**Not too many at once.** On two threads, a call with some thousands of chains stops for good sooner or later: all
threads wait for each other (JAX 0.10.2; seen with 2000 chains of two nodes and d = 5, not with 1000, never with one
thread). So a call has at most `AT_ONCE` chains, and many problems run in parts, one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from inference.errors import DataError
from inference.models.linear.nodes.observed import NodeStatistics, Prior
from papers.mcmc2023.samplers.kernel import Array, Info, Kernel, Schedule, State

BLOCK = 256  # draws that one call can hold at most,
NUMBERS = 2**22  # and numbers in them
ITERATIONS = 512  # between two reports of progress, as far as thinning allows
AT_ONCE = 500  # chains of all problems in one call: why, at the head of this file
Draws = dict[str, NDArray[np.float64]]


class Chains(NamedTuple):
    """What `sample` returns. R problems, several chains each.

    Attributes:
        draws: by name, shape ``(R, chains, draws, ...)``.
        warmup: the same for warm-up, thinned alike: ``(R, chains, warmup // thin, ...)``.
        acceptance: by name of the block, mean acceptance probability after warm-up, shape ``(R, chains)``.
        divergences: how many iterations after warm-up failed numerically, shape ``(R, chains)``.
        seconds: that the iterations took together; compiling is not in it.
    """

    draws: Draws
    warmup: Draws
    acceptance: Draws
    divergences: NDArray[np.int64]
    seconds: float


class _Problems(NamedTuple):
    """What stays the same during a run. Leading axes: the problem, and for keys the chain."""

    observed: NodeStatistics
    prior: Prior
    keys: Array


class _Totals(NamedTuple):
    """Sums over iterations, of each chain of each problem."""

    acceptance: dict[str, Array]
    divergences: Array

    def plus(self, info: Info) -> _Totals:
        acceptance = {name: total + info.acceptance[name] for name, total in self.acceptance.items()}
        return _Totals(acceptance, self.divergences + info.divergent)


class _Output(NamedTuple):
    """What some iterations gave: draws by name, and totals."""

    draws: Draws
    acceptance: Draws
    divergences: NDArray[np.int64]

    def plus(self, other: _Output) -> _Output:
        acceptance = {name: total + other.acceptance[name] for name, total in self.acceptance.items()}
        return _Output(self.draws, acceptance, self.divergences + other.divergences)


def sample(
    kernel: Kernel,
    observed: NodeStatistics | Sequence[NodeStatistics],
    prior: Prior | Sequence[Prior],
    *,
    chains: int = 4,
    warmup: int = 1000,
    draws: int = 1000,
    thin: int = 1,
    seed: int = 0,
    names: Sequence[str] = ("theta", "sigma_y2"),
    on_progress: Callable[[int, int], None] | None = None,
) -> Chains:
    """Draws from the posterior of one or several problems.

    Args:
        kernel: from the constructor of an algorithm. observed, prior: of one problem, or lists of as many problems
            with the same J and d; one prior may serve all.
        chains: per problem. warmup: iterations before the first draw. draws: kept per chain.
        thin: iterations per kept draw; ``warmup + thin * draws`` are made.
        seed: of all randomness; the same seed and shapes give the same draws.
        names: which of the kernel's draws to keep.
        on_progress: called with the iterations done and their total, after each block.

    Raises:
        DataError: no problems, problems of different shape, a number below its minimum, or a name that the kernel
            does not draw.
    """
    _check_counts(chains=(chains, 1), warmup=(warmup, 0), draws=(draws, 1), thin=(thin, 1))
    length = warmup + thin * draws
    with jax.enable_x64(True):
        problems = _problems(observed, prior, chains, seed)
        parts = _parts(problems, max(1, AT_ONCE // chains))
        found = []
        for place in range(len(parts)):
            report = partial(_report, on_progress, place * length, len(parts) * length)
            run = _Run(kernel, parts[place], tuple(names), warmup, report)
            found.append(_sampled(run, warmup, draws, thin))
    return found[0] if len(found) == 1 else _together(found, len(problems.keys))


def _report(on_progress: Callable[[int, int], None] | None, before: int, total: int, done: int) -> None:
    if on_progress is not None:
        on_progress(before + done, total)


def _sampled(run: _Run, warmup: int, draws: int, thin: int) -> Chains:
    start = time.perf_counter()
    before, after = run.advance(warmup, thin), run.advance(thin * draws, thin)
    seconds = time.perf_counter() - start
    acceptance = {name: summed / (thin * draws) for name, summed in after.acceptance.items()}
    return Chains(after.draws, before.draws, acceptance, after.divergences, seconds)


def _parts(problems: _Problems, size: int) -> list[_Problems]:
    """Of at most so many problems each, as even as can be; the last one is repeated until all are of one shape."""
    R = len(problems.keys)
    count = -(-R // size)
    each = -(-R // count)
    places = np.minimum(np.arange(count * each), R - 1).reshape(count, each)
    return [jax.tree.map(lambda array, chosen=chosen: array[chosen], problems) for chosen in places]


def _together(parts: Sequence[Chains], R: int) -> Chains:
    """One after the other, without what made the last part as large as the others."""

    def joined(*arrays: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate(arrays)[:R]

    draws, warmup, acceptance, divergences = jax.tree.map(joined, *(part[:-1] for part in parts))
    return Chains(draws, warmup, acceptance, divergences, sum(part.seconds for part in parts))


class _Run:
    """All chains on their way: their state, and how many iterations they have made."""

    def __init__(
        self,
        kernel: Kernel,
        problems: _Problems,
        names: tuple[str, ...],
        warmup: int,
        report: Callable[[int], None],
    ) -> None:
        self._problems, self._report = problems, report
        _check_names(kernel, jax.eval_shape(partial(_start, kernel.init), problems), names)
        self._state, self._done = _start(kernel.init, problems), 0
        shapes = jax.eval_shape(partial(_drawn, kernel.draw, names), self._state)
        self._rows = max(1, min(BLOCK, NUMBERS // max(1, sum(array.size for array in shapes.values()))))
        self._block = partial(_block, kernel.step, kernel.draw, names, self._rows, warmup=warmup)
        self._none = self._make(0, 0)  # compiles, and shows the shapes

    def advance(self, iterations: int, thin: int) -> _Output:
        """That many iterations more, and every `thin`-th of their draws; those that are too many come first."""
        kept, rest = divmod(iterations, thin)
        output = _Output({name: _room(array, kept) for name, array in self._none.draws.items()}, *self._none[1:])
        if rest:
            output = output.plus(self._make(rest, 1))
        at_once = min(self._rows, max(1, ITERATIONS // thin))
        for first in range(0, kept, at_once):
            block = self._make(thin, min(at_once, kept - first))
            for name, array in block.draws.items():
                output.draws[name][:, :, first : first + array.shape[2]] = array
            output = output.plus(block)
        return output

    def _make(self, thin: int, count: int) -> _Output:
        self._state, buffer, totals = self._block(self._state, self._problems, done=self._done, thin=thin, count=count)
        draws = {name: np.moveaxis(np.asarray(array)[:count], 0, 2) for name, array in buffer.items()}
        self._done += thin * count
        if count:
            self._report(self._done)
        return _Output(draws, *jax.tree.map(np.asarray, totals))


def _room(array: NDArray[np.float64], kept: int) -> NDArray[np.float64]:
    return np.empty((*array.shape[:2], kept, *array.shape[3:]))


@partial(jax.jit, static_argnums=0)
def _start(init: Callable[..., State], problems: _Problems) -> State:
    """Each chain's start, all arrays with the axes problem and chain before their own."""
    each = jax.vmap(jax.vmap(init, in_axes=(0, None, None)))
    state = each(_keys(problems.keys, -1), problems.observed, problems.prior)
    return jax.tree.map(
        lambda array: jnp.asarray(array, array.dtype), state
    )  # typed as a step's, or all compiles twice


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _block(
    step: Callable[..., tuple[State, Info]],
    draw: Callable[[State], dict[str, Array]],
    names: tuple[str, ...],
    rows: int,
    state: State,
    problems: _Problems,
    *,
    warmup: Array,
    done: Array,
    thin: Array,
    count: Array,
) -> tuple[State, dict[str, Array], _Totals]:
    """`count` draws, `thin` iterations apart: the state after them, a buffer of `rows` draws, and totals."""
    each = jax.vmap(jax.vmap(step, in_axes=(0, 0, None, None, None)), in_axes=(0, 0, 0, 0, None))
    drawn = partial(_drawn, draw, names)

    def move(i: Array, state: State) -> tuple[State, Info]:
        schedule = Schedule(jnp.asarray(done + i), jnp.asarray(warmup))
        return each(_keys(problems.keys, done + i), state, problems.observed, problems.prior, schedule)

    def iterate(i: Array, carry: tuple[State, _Totals]) -> tuple[State, _Totals]:
        state, info = move(i, carry[0])
        return state, carry[1].plus(info)

    def keep(i: Array, carry: tuple[State, dict[str, Array], _Totals]) -> tuple[State, dict[str, Array], _Totals]:
        state, buffer, totals = carry
        state, totals = jax.lax.fori_loop(i * thin, (i + 1) * thin, iterate, (state, totals))
        return state, {name: buffer[name].at[i].set(array) for name, array in drawn(state).items()}, totals

    shapes = jax.eval_shape(drawn, state)
    buffer = {name: jnp.zeros((rows, *array.shape), array.dtype) for name, array in shapes.items()}
    _, info = jax.eval_shape(move, 0, state)
    totals = _Totals(
        {name: jnp.zeros(problems.keys.shape) for name in info.acceptance}, jnp.zeros(problems.keys.shape, int)
    )
    return jax.lax.fori_loop(0, count, keep, (state, buffer, totals))  # type: ignore[no-any-return]


def _drawn(draw: Callable[[State], dict[str, Array]], names: tuple[str, ...], state: State) -> dict[str, Array]:
    draws = jax.vmap(jax.vmap(draw))(state)
    return {name: draws[name] for name in names}


def _keys(keys: Array, iteration: Array | int) -> Array:
    """The chains' keys of this iteration; -1 is the start."""
    number = jnp.asarray(iteration + 1, jnp.uint32)
    return jax.vmap(jax.vmap(jax.random.fold_in, (0, None)), (0, None))(keys, number)


def _problems(
    observed: NodeStatistics | Sequence[NodeStatistics], prior: Prior | Sequence[Prior], chains: int, seed: int
) -> _Problems:
    many = [observed] if isinstance(observed, NodeStatistics) else list(observed)
    if not many:
        raise DataError("no problems to sample; give at least one NodeStatistics")
    priors = [prior] * len(many) if isinstance(prior, Prior) else list(prior)
    if len(priors) != len(many):
        raise DataError(f"{len(many)} problems and {len(priors)} priors; give one prior for all or one for each")
    keys = jax.random.split(jax.random.key(seed), (len(many), chains))
    return _Problems(_stacked(many), _stacked(priors), keys)


def _stacked(items: Sequence[Any]) -> Any:
    """One named tuple whose arrays have a new leading axis over the items."""
    first = items[0]
    for item in items:
        if any(np.shape(a) != np.shape(b) for a, b in zip(item, first, strict=True)):
            shapes = f"{[np.shape(a) for a in first]} and {[np.shape(a) for a in item]}"
            raise DataError(f"problems of different shape, {shapes}; sample those of each J and d together")
    return type(first)(
        *(jnp.asarray(np.stack([np.asarray(a, float) for a in arrays])) for arrays in zip(*items, strict=True))
    )


def _check_counts(**counts: tuple[int, int]) -> None:
    for name, (value, least) in counts.items():
        if value < least:
            raise DataError(f"{name} is {value}; it must be at least {least}")


def _check_names(kernel: Kernel, state: State, names: tuple[str, ...]) -> None:
    drawn = jax.eval_shape(jax.vmap(jax.vmap(kernel.draw)), state)
    for name in names:
        if name not in drawn:
            raise DataError(f"{kernel.name} draws no {name!r}; it draws {', '.join(drawn)}")
