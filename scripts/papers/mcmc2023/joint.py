"""Does a sampler leave the right distribution invariant? Joint-distribution tests (Geweke 2004, "Getting it right").

There are two ways to draw parameters and data together:

- *marginal-conditional*: parameters from the prior, then data given these. Here the data are rows of features and
  targets, their sums, and noise (`sampler_checks`). This simulator shares no code with a sampler.
- *successive-conditional*: a step of the sampler given the data, then new data given the parameters, and so on.

A sampler is right if its step leaves p(parameters | data) invariant for all data. Then both simulators draw from the
same joint distribution. Geweke compares one long chain with independent draws. Here thousands of short chains run at
once, and each *starts at an independent draw of the joint distribution*. A right sampler keeps exactly that law for any
number of steps. So the chains' ends are independent draws of it, too, and two-sample tests apply without an estimate of
autocorrelation or a burn-in.

**The tests.** Every test function g (of parameters and data) is mapped into (0, 1) by its distribution function F in
further independent draws, the reference. With u = F(g), the mean over chains of u(end) - u(start) and that of
(u(end) - ½)² - (u(start) - ½)² must be zero. These are z-tests on bounded, independent differences, made sharp by the
known start. The ends must have the law of the reference (Kolmogorov and Smirnov's two-sample test). The smallest
p-value times the number of tests bounds the probability that a right sampler is called wrong, whatever the dependence
between tests (Bonferroni).

**Adaptation.** A sampler's tuning may depend on the data, and is constant after warm-up. The tests allow both: each
step starts from `Kernel.init` for the current data, with the position replaced, and runs beyond warm-up.

**Standing still** leaves everything invariant. So a sampler fails if a parameter ends where it started in more than the
share `STILL` of the chains. The correlation of start and end shows how far chains moved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import ks_2samp, norm

from inference.models.linear.nodes.observed import NodeStatistics, Prior
from inference.problem import Array
from papers.mcmc2023.samplers.kernel import Kernel, Schedule

Position = dict[str, Any]
"""Parameters by name: numpy arrays with a leading axis for the chains, or one chain's JAX arrays."""

Enter = Callable[[Any, Position, NodeStatistics, Prior], Any]

FALSE_ALARM = 1e-4
STILL = 0.5
AT_ONCE = 1000  # chains per call; with 2000 on two threads, JAX has deadlocked (see `sampler`)
QUICKLY_COMPILED = {"xla_backend_optimization_level": 1}  # compiles a fifth faster; steps are as fast


class Subject(NamedTuple):
    """A sampler under test, and the joint distribution that it must leave invariant."""

    kernel: Kernel
    prior: Prior
    draw: Callable[[np.random.Generator, int], tuple[Position, NodeStatistics]]
    """Independent draws of parameters and data, ``(rng, count)``: all arrays with a leading axis of that length."""
    renew: Callable[[Any, Position, NodeStatistics], NodeStatistics]
    """New data given one chain's parameters, ``(normals, position, observed)``; fixed parts of the data stay."""
    normals: int  # the number of N(0, 1) variables that `renew` needs
    enter: Enter  # returns one chain's state with the position replaced, and all that follows from it
    leave: Callable[[Any], Position]  # returns the position of one chain's state
    functions: Callable[[Position, NodeStatistics], dict[str, Array]]  # test functions of the draws, each ``(count,)``


class Verdict(NamedTuple):
    """The result of comparing both simulators."""

    p: dict[tuple[str, str], float]  # p-value by test function and test
    memory: dict[str, float]  # correlation of start and end, by test function of parameters alone
    unmoved: dict[str, float]  # share of chains whose end equals the start, by the same
    acceptance: dict[str, float]  # mean acceptance probability by block

    @property
    def alarm(self) -> float:
        """A bound on the probability that a right sampler has so small a p-value."""
        return min(1.0, min(self.p.values()) * len(self.p))

    @property
    def worst(self) -> tuple[str, str]:
        return min(self.p, key=lambda test: self.p[test])

    @property
    def still(self) -> list[str]:
        return [name for name, share in self.unmoved.items() if share > STILL]

    @property
    def holds(self) -> bool:
        return self.alarm > FALSE_ALARM and not self.still


class Moves(NamedTuple):
    """The randomness of the successive-conditional simulator; leading axes: chains, steps."""

    keys: Any
    normals: Array


Advance = Callable[[Moves, Position, NodeStatistics, int], tuple[Position, NodeStatistics, dict[str, Array]]]


def successive(subject: Subject) -> Advance:
    """Return the successive-conditional simulator for many chains at once; it compiles on its first call.

    Returns:
        ``(moves, position, observed, variant) -> (position, observed, mean acceptance by block)``; all have a leading
        axis of chains. ``variant`` is for tests that plant errors: patched parts of a kernel can read this number
        (`variant`), so that one compilation serves all planted errors.
    """
    kernel, prior = subject.kernel, subject.prior

    def step(carry: tuple[Any, Any, Any], move: Moves) -> tuple[tuple[Any, Any, Any], Any]:
        position, observed, number = carry
        tuned, moved = jax.random.split(move.keys)
        _variant.append(number)
        try:
            state = subject.enter(kernel.init(tuned, observed, prior), position, observed, prior)
            state, info = kernel.step(moved, state, observed, prior, Schedule(jnp.asarray(1), jnp.asarray(0)))
            position = {**position, **subject.leave(state)}
        finally:
            _variant.pop()
        return (position, subject.renew(move.normals, position, observed), number), info.acceptance

    def chain(moves: Moves, position: Position, observed: NodeStatistics, number: Any) -> tuple[Any, Any, Any]:
        (position, observed, _), acceptance = jax.lax.scan(step, (position, observed, number), moves)
        return position, observed, jax.tree.map(jnp.mean, acceptance)

    compiled = jax.jit(jax.vmap(chain, in_axes=(0, 0, 0, None)), compiler_options=QUICKLY_COMPILED)

    def advance(moves: Moves, position: Position, observed: NodeStatistics, number: int) -> tuple[Any, Any, Any]:
        with jax.enable_x64(True):
            given = jax.tree.map(jnp.asarray, (moves, position, observed))
            chains = len(moves.normals)
            cuts = [slice(start, start + AT_ONCE) for start in range(0, chains, AT_ONCE)]
            parts = [jax.tree.map(lambda array, cut=cut: array[cut], given) for cut in cuts]
            found = [jax.tree.map(np.asarray, compiled(*part, jnp.asarray(number))) for part in parts]
        together: tuple[Any, Any, Any] = jax.tree.map(lambda *arrays: np.concatenate(arrays), *found)
        return together

    return advance


_variant: list[Any] = []


def variant() -> Any:
    """Return the simulator's variant as a traced integer, while a step is traced."""
    return _variant[-1]


def verdict(subject: Subject, advance: Advance, *, chains: int, steps: int, seed: int, variant: int = 0) -> Verdict:
    """Run chains from independent draws of the joint distribution; compare their ends with these and a reference.

    Args:
        advance: the result of `successive` for this subject. steps: of each chain. variant: passed to `advance`.
    """
    rng = np.random.default_rng([seed, variant])
    start, reference = subject.draw(rng, chains), subject.draw(rng, REFERENCE * chains)
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(int(rng.integers(2**62))), (chains, steps))
    moves = Moves(keys, rng.standard_normal((chains, steps, subject.normals)))
    position, observed, acceptance = advance(moves, *start, variant)
    functions = [subject.functions(*draws) for draws in (start, (position, observed), reference)]
    found = Verdict({}, {}, {}, {block: float(np.mean(one)) for block, one in acceptance.items()})
    for name in functions[0]:
        first, last, independent = (one[name] for one in functions)
        p, correlation = compared(first, last, independent)
        found.p.update({(name, test): value for test, value in p.items()})
        if name.startswith(PARAMETER):
            found.memory[name], found.unmoved[name] = correlation, float(np.mean(first == last))
    return found


REFERENCE = 4  # independent draws for each chain
PARAMETER = "p: "  # prefix of the names of test functions that depend on moving parameters alone


def compared(start: Array, end: Array, reference: Array) -> tuple[dict[str, float], float]:
    """Return the p-values of one test function's three tests, and the correlation of its ranks at start and end.

    If any end is not finite, the p-value is 0: a sampler that leaves the domain is wrong.
    """
    if not np.isfinite(end).all():
        return {"finite": 0.0}, 0.0
    ordered = np.sort(reference)
    before, after = ((np.searchsorted(ordered, values) + 0.5) / (len(ordered) + 1) for values in (start, end))
    p, moved = {}, {"location": after - before, "spread": (after - 0.5) ** 2 - (before - 0.5) ** 2}
    for test, differences in moved.items():  # two-sided test of a zero mean; p = 1 if nothing has moved
        sd, root = float(differences.std(ddof=1)), np.sqrt(len(differences))
        p[test] = 1.0 if sd == 0 else float(2 * norm.sf(abs(differences.mean()) / sd * root))
    p["law"] = float(ks_2samp(end, reference, method="asymp").pvalue)
    return p, float(np.corrcoef(before, after)[0, 1])
