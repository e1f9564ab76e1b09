"""NumPyro's no-U-turn sampler (Hoffman and Gelman 2014), compiled once for each model and shape of data.

One compiled function runs all chains side by side for a block of iterations. Data, prior numbers and seeds are its
arguments. So data sets of the same shape share one compilation, and the caller sees progress between blocks.
`numpyro.infer.MCMC` is not used: it traces the model again for every data set, and reports to a progress bar only.

Chains start near a plausible point that the caller gives. Positive parameters differ between chains by up to a factor
of e. A chain that starts far from the data may find a second mode of the likelihood and never leave it.

Each chain adapts its step size and mass matrix (dense up to `DENSE_MAX` numbers, diagonal beyond) during warm-up
(Stan's windows). Its randomness follows from the seed and its own number.

**Compilation** takes most of a first call. The sampler sees all sites as one vector, the density with its gradient is
traced once for all programs, and XLA's slow passes are off (`compiler_options`).

**Compiled code is kept** in the user's cache (`keep_compiled`), so that the first call of a later process is quick.

**One core.** If several processes run side by side, set NPROC=1 in the environment: then each uses one thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from numpyro.distributions import biject_to
from numpyro.handlers import seed as seeded
from numpyro.handlers import substitute, trace
from numpyro.infer.hmc import hmc
from numpyro.infer.util import constrain_fn, potential_energy

from inference.draws import Sampling, about_mixing, mixing
from inference.errors import DataError
from inference.mcmc.run import Options, Sampled

Model: TypeAlias = Callable[[Any], None]
"""A NumPyro model of one argument, a tree of arrays; hashable, and equal only to the same model."""
Draws = dict[str, NDArray[np.float64]]
Layout: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]
"""The shape of each site's part of a place; a place is a vector of all sites' coordinates, without constraints."""

BLOCK = 100  # iterations between two reports of progress
TARGET_ACCEPTANCE = 0.95
TREE_DEPTH_MAX = 10
APART = 1.0  # largest distance of a chain's start from the given point, in each unconstrained coordinate
ATTEMPTS = 20
DENSE_MAX = 300  # most numbers with a dense mass matrix
DETERMINISTIC = "deterministic"  # NumPyro's type of such a site
PROGRAMS = 32  # compiled programs in the cache
PLACE = "nuts place"
ACCEPTED, DIVERGING, STEPS = "nuts accepted", "nuts diverging", "nuts steps"  # returned with the model's own sites
ONCE, OFTEN = 0, 1  # XLA's levels of optimisation for code that runs once, and for loops


def keep_compiled() -> Path | None:
    """Let JAX cache its compiled code in ``~/.cache/dca/jax``, and return that folder.

    Return None and change nothing if the program or ``JAX_COMPILATION_CACHE_DIR`` already names a folder, or if this
    one is not writable. With ``JAX_ENABLE_COMPILATION_CACHE=false`` JAX neither writes nor reads a cache.
    """
    config: Any = jax.config
    if config.jax_compilation_cache_dir is not None:
        return None
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dca" / "jax"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home
        return None
    if not os.access(folder, os.W_OK):
        return None
    config.update("jax_compilation_cache_dir", str(folder))
    return folder


keep_compiled()


def options_of(level: int) -> dict[str, Any]:
    """Return XLA's options for a level of optimisation."""
    return {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": level}


@cache
def compiler_options(level: int) -> dict[str, Any] | None:
    """Return the options of `options_of`, or None if this XLA does not know them.

    Compilation takes most of a first call. Without MLIR's fusions and LLVM's last passes it takes about half the time,
    and a sampler's small loops run as fast.
    """
    options = options_of(level)
    try:
        jax.jit(lambda: 0, compiler_options=options)()
    except jax.errors.JaxRuntimeError:
        return None
    return options


def sample(
    model: Model,
    data: Any,
    options: Options,
    start: Mapping[str, Any] | None = None,
    *,
    dense: bool = True,
    target: float = TARGET_ACCEPTANCE,
    keep: Sequence[str] | None = None,
) -> Sampled:
    """Draw from a model's posterior.

    Args:
        model: as described at the head of this file. data: its argument; numbers in it are arrays to the compiler.
        options: the same seed, model and shapes give the same draws. Progress is reported after each block.
        start: plausible values of its sites; the default is 0 without constraints (1 for positive sites).
        dense: allow a dense mass matrix; False if the model's coordinates are nearly independent.
        target: mean acceptance that step sizes adapt to; lower is quicker if the density is nearly normal.
        keep: sites whose draws are returned; by default all.

    Raises:
        DataError: no start with a finite density was found.
    """
    chains, warmup, draws = options.chains, options.warmup, options.draws
    begun = time.perf_counter()
    with jax.enable_x64(True):
        program = _program(model, warmup, dense, target, None if keep is None else tuple(keep))
        data, start = _as_arrays(data), _as_arrays(dict(start or {}))
        state, layout = _started(program, options.seed, chains, data, start)
        blocks: list[Draws] = []
        for first in range(0, warmup + draws, BLOCK):
            drawn = first - warmup
            if 0 < options.least <= drawn and drawn % options.least < BLOCK and _have_mixed(blocks, warmup):
                if options.on_progress is not None:
                    options.on_progress(warmup + draws, warmup + draws)
                break
            count = min(BLOCK, warmup + draws - first)
            state, seen = program.block(state, data, count, layout)
            seen = {**program.sites(seen.pop(PLACE), data, layout), **seen}
            blocks.append({name: np.asarray(array)[:, :count] for name, array in seen.items()})
            if options.on_progress is not None:
                options.on_progress(first + count, warmup + draws)
        step_size = np.asarray(state.adapt_state.step_size)
    draws_of = {name: np.concatenate([block[name] for block in blocks], axis=1) for name in blocks[0]}
    accepted, diverging, steps = (draws_of.pop(name)[:, warmup:] for name in (ACCEPTED, DIVERGING, STEPS))
    deep = (steps >= 2**TREE_DEPTH_MAX - 1).sum(axis=1)
    seconds = time.perf_counter() - begun
    sampling = Sampling(diverging.sum(axis=1), accepted.mean(axis=1), deep, step_size, seconds)
    before, after = (
        {name: array[:, part] for name, array in draws_of.items()} for part in (slice(warmup), slice(warmup, None))
    )
    return Sampled(after, before, sampling)


def _have_mixed(blocks: Sequence[Draws], warmup: int) -> bool:
    """Return whether there is nothing to warn of in the draws after the warm-up."""
    kept = (name for name in blocks[0] if name not in (ACCEPTED, DIVERGING, STEPS))
    arrays = {name: np.concatenate([block[name] for block in blocks], axis=1)[:, warmup:] for name in kept}
    return not about_mixing(mixing({name: one.reshape(*one.shape[:2], -1) for name, one in arrays.items()}, {}))


def prior_draws(model: Model, data: Any, count: int, seed: int = 0) -> Draws:
    """Draw every unobserved site, and every value computed from them, from the prior: shape ``(count, ...)``."""
    with jax.enable_x64(True):
        data = _as_arrays(data)
        drawn = _program(model).prior(jax.random.split(jax.random.key(seed), count), data)
        return {name: np.asarray(array) for name, array in drawn.items()}


def _as_arrays(tree: Any) -> Any:
    """Convert numbers to float64, except integers and truth values in arrays."""

    def kind(leaf: Any) -> Any:
        dtype = np.asarray(leaf).dtype
        return dtype if dtype.kind in "biu" and np.ndim(leaf) else np.float64

    return jax.tree.map(lambda leaf: np.asarray(leaf, kind(leaf)), tree)


def _started(program: _Program, seed: int, chains: int, data: Any, start: Any) -> tuple[Any, Layout]:
    """Return the chains' initial states, each with a finite density and gradient, and the layout of their places."""
    numbers, tries = np.arange(chains), np.zeros(chains, np.int64)
    for _ in range(ATTEMPTS):
        state, sites, finite = program.start(np.int64(seed), numbers, tries, data, start)
        if np.asarray(finite).all():
            return state, tuple((name, array.shape[1:]) for name, array in sites.items())
        tries += ~np.asarray(finite)
    raise DataError(
        f"no start with a finite density was found in {ATTEMPTS} attempts; check that the reports and the prior "
        "are in the same units"
    )


def _finite(state: Any) -> Any:
    parts = jax.tree.leaves((state.potential_energy, state.z_grad))
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(part)) for part in parts]))


class _Program:
    """Compiled functions of one model and length of warm-up; JAX caches them by the shapes of their arguments.

    The sampler sees a chain's place as one vector: its own code is then compiled once and not for each site.
    """

    def __init__(
        self,
        model: Model,
        warmup: int = 0,
        dense: bool = True,
        target: float = TARGET_ACCEPTANCE,
        keep: tuple[str, ...] | None = None,
    ) -> None:
        self._model, self._warmup, self._dense, self._target, self._keep = model, warmup, dense, target, keep
        self._init, self._step = hmc(potential_fn_gen=self._potential)
        self._both = jax.jit(self._value_and_slope, static_argnames="layout")
        once = compiler_options(ONCE)
        self.start = jax.jit(jax.vmap(self._start, in_axes=(None, 0, 0, None, None)), compiler_options=once)
        self.block = jax.jit(self._block, static_argnums=3, compiler_options=compiler_options(OFTEN))
        self.sites = jax.jit(self._sites, static_argnums=2, compiler_options=once)
        self.prior = jax.jit(jax.vmap(self._prior, in_axes=(0, None)), compiler_options=once)

    def _prior(self, key: Any, data: Any) -> dict[str, Any]:
        sites = trace(seeded(self._model, key)).get_trace(data)
        return {name: site["value"] for name, site in sites.items() if _is_drawn(site) or site["type"] == DETERMINISTIC}

    def _potential(self, data: Any, layout: Layout) -> Callable[[Any], Any]:
        """Return the negative log density of a place, for these data.

        Its gradient is a function of its own, which JAX traces once for all programs.
        """
        both = partial(self._both, layout=layout)

        @jax.custom_jvp
        def potential(place: Any) -> Any:
            return both(place, data)[0]

        @potential.defjvp
        def _(places: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
            value, slope = both(places[0], data)
            return value, slope @ tangents[0]

        return potential

    def _value_and_slope(self, place: Any, data: Any, layout: Layout) -> tuple[Any, Any]:
        def value(place: Any) -> Any:
            return potential_energy(self._model, (data,), {}, _at(place, layout))

        found: tuple[Any, Any] = jax.value_and_grad(value)(place)
        return found

    def _start(self, seed: Any, number: Any, tried: Any, data: Any, start: Any) -> tuple[Any, dict[str, Any], Any]:
        """Return a chain's initial state, its place by site, and whether density and gradient are finite there.

        Args:
            number: of the chain. tried: how often it has been started before.
        """
        points: dict[str, Any] = {}

        def near(site: Mapping[str, Any]) -> Any:
            """Return the given start of a site, and note its point without constraints."""
            if not _is_drawn(site):
                return None
            name, link = site["name"], biject_to(site["fn"].support)
            shape = link.inverse_shape(site["fn"].shape())
            points[name] = jnp.broadcast_to(link.inv(start[name]) if name in start else 0.0, shape)
            return link(points[name])

        trace(substitute(self._model, substitute_fn=near)).get_trace(data)
        layout = tuple((name, jnp.shape(points[name])) for name in sorted(points))
        own = jax.random.fold_in(jax.random.key(seed), number)
        apart, walk = jax.random.split(jax.random.fold_in(own, tried))
        place = jnp.concatenate([jnp.ravel(points[name]) for name, _ in layout])
        place += jax.random.uniform(apart, place.shape, minval=-APART, maxval=APART)
        state = self._init(
            place,
            self._warmup,
            dense_mass=self._dense and place.size <= DENSE_MAX,
            target_accept_prob=self._target,
            max_tree_depth=TREE_DEPTH_MAX,
            model_args=(data, layout),
            rng_key=walk,
        )
        return state, _at(place, layout), _finite(state)

    def _block(self, state: Any, data: Any, count: Any, layout: Layout) -> tuple[Any, dict[str, Any]]:
        """Advance all chains by `count` iterations, at most `BLOCK`; draws have the shape ``(chains, BLOCK, ...)``."""
        step: Any = jax.vmap(lambda chain: self._step(chain, model_args=(data, layout)))
        rows = {name: jnp.zeros((array.shape[0], BLOCK, *array.shape[1:]), array.dtype)
                for name, array in _seen(state).items()}  # fmt: skip

        def advance(i: Any, carry: tuple[Any, dict[str, Any]]) -> tuple[Any, dict[str, Any]]:
            state = step(carry[0])
            return state, {name: carry[1][name].at[:, i].set(array) for name, array in _seen(state).items()}

        advanced: tuple[Any, dict[str, Any]] = jax.lax.fori_loop(0, count, advance, (state, rows))
        return advanced

    def _sites(self, places: Any, data: Any, layout: Layout) -> dict[str, Any]:
        """Return draws in the model's own coordinates, given places of the shape ``(chains, BLOCK, size)``."""

        def drawn(place: Any) -> dict[str, Any]:
            found = constrain_fn(self._model, (data,), {}, _at(place, layout), return_deterministic=True)
            return found if self._keep is None else {name: found[name] for name in self._keep if name in found}

        own: dict[str, Any] = jax.vmap(jax.vmap(drawn))(places)
        return own


def _at(place: Any, layout: Layout) -> dict[str, Any]:
    """Return the parts of a place by site."""
    ends = np.cumsum([int(np.prod(shape)) for _, shape in layout])
    parts = jnp.split(place, ends[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(layout, parts, strict=True)}


def _seen(state: Any) -> dict[str, Any]:
    """Return the places of all chains, with the iteration's diagnostics."""
    return {PLACE: state.z, ACCEPTED: state.accept_prob, DIVERGING: state.diverging, STEPS: state.num_steps}


def _is_drawn(site: Mapping[str, Any]) -> bool:
    return site["type"] == "sample" and not site["is_observed"]


_program = lru_cache(maxsize=PROGRAMS)(_Program)
