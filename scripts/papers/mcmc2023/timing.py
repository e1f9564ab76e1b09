"""Figure 3 of the paper: time per iteration over d, for n = 10⁴ rows at J = 1, 5 and 10 nodes, ε = 1.

Section 4.3: an iteration of MCMC-normalX and of MCMC-fixedS takes O(d³), one of MCMC-B&S O(d⁶), because its matrices
have size d(d + 1)/2 + d + 1. Here one chain runs compiled on one core, beyond warm-up; compiling is timed separately.
The time is this process's CPU time, the least of several runs, because other work on the machine only adds to it. At
small d, starting many small operations dominates, and larger matrix products are faster per number. So d extends to 40
(the paper's to 20), and slopes are fitted from 15 on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from dca_proto.privacy.accounting import mu_of
from inference.models.linear.nodes.observed import Prior
from inference.problem import Array, stream
from papers.experiment import Experiment, Result
from papers.mcmc2023.data import Statistics
from papers.mcmc2023.paper import BERNSTEIN_SHELDON, STYLES
from papers.mcmc2023.releases import with_noise
from papers.mcmc2023.samplers.kernel import Kernel, Schedule
from papers.mcmc2023.samplers.sampler import SAMPLERS, kernel_of
from papers.picture import drawing, log_ticks
from papers.runner import Check, table

ROWS, EPSILON, DELTA = 10_000, 1.0, 1e-4
FIT_FROM = 15
REPEATS = 5
RUN_S, WARM_S = 0.15, 0.5
WARMUP = 200
CUBIC = 3.0
APART = 0.5


class Cell(NamedTuple):
    """A sampler and the size of its problem."""

    method: str
    nodes: int
    d: int


class Curve(NamedTuple):
    """The times of a method at J nodes, by d."""

    method: str
    nodes: int
    d: Array
    least_s: Array  # least_s, most_s: per iteration, over the runs
    most_s: Array
    compile_s: Array

    @property
    def slope(self) -> float:
        upper = self.d >= FIT_FROM
        return float(np.polyfit(np.log(self.d[upper]), np.log(self.least_s[upper]), 1)[0])


@dataclass(frozen=True, kw_only=True)
class Timing(Experiment[Cell, list[Curve]]):
    """Figure 3 of the third paper: time per iteration of the samplers over d, at J = 1, 5 and 10.

    Takes about 7 minutes on an idle core. Exit code 4 if one of ours grows faster than d³ (slope of the logarithms from
    d = 15 on), or MCMC-B&S does not grow faster than d³ and visibly faster than ours.
    """

    KIND, LABEL, ALONE = "mcmc-figure-3", "time per iteration", True
    QUICK: ClassVar = {"sizes": (2, 15, 20), "nodes": (5,)}

    sizes: tuple[int, ...] = (1, 3, 8, 15, 20, 30, 40)
    nodes: tuple[int, ...] = (1, 5, 10)

    def cells(self) -> list[Cell]:
        return [Cell(method, J, d) for method in SAMPLERS for J in self.nodes for d in self.sizes]

    def work(self, cell: Cell) -> Result:
        # Standard normal features and targets, and noise for norms of 2√d and a target of up to 6.
        rng, d = stream(self.seed, f"timing/{cell.nodes}/{cell.d}"), cell.d
        X = rng.standard_normal((ROWS, d))
        y = X @ rng.standard_normal(d) / np.sqrt(d) + rng.standard_normal(ROWS)
        sigma = np.sqrt(2) * (4 * d + 18) / mu_of(EPSILON, DELTA)
        observed = with_noise(Statistics.of(X, y, cell.nodes), sigma, sigma, rng, sigma_u=sigma)
        with jax.enable_x64(True):
            return _timed(
                kernel_of(cell.method, observed), *jax.tree.map(jnp.asarray, (observed, Prior.default(d, 1.0)))
            )

    def gather(self, cells: Sequence[Cell], results: Sequence[Result]) -> list[Curve]:
        both, curves = list(zip(cells, results, strict=True)), []
        for key in dict.fromkeys(cell[:2] for cell in cells):
            d = np.array([cell.d for cell, _ in both if cell[:2] == key])
            own = [one for cell, one in both if cell[:2] == key]
            times, compiled = np.array([one["seconds"] for one in own]), np.array([one["compile_s"] for one in own])
            curves.append(Curve(*key, d, times.min(axis=1), times.max(axis=1), compiled))
        return curves

    def notes(self, found: Sequence[Curve]) -> dict[str, Any]:
        return {"rows": ROWS, "epsilon": EPSILON}

    def tables(self, found: Sequence[Curve]) -> Iterator[Table]:
        heads, title = (f"d = {d}" for d in self.sizes), "µs of CPU per iteration: least (most) of the runs"
        shown = table(title, "method, J", *heads, "slope", "compiled in s")
        for one in found:
            times = [f"{1e6 * m:.0f} ({1e6 * s:.0f})" for m, s in zip(one.least_s, one.most_s, strict=True)]
            compiled = f"{min(one.compile_s):.1f}-{max(one.compile_s):.1f}"
            shown.add_row(f"{one.method}, {one.nodes}", *times, f"{one.slope:.2f}", compiled)
        yield shown

    def checks(self, found: Sequence[Curve]) -> Iterator[Check]:
        for one in (one for one in found if one.method != BERNSTEIN_SHELDON):
            name, asked = f"growth of {one.method}, J = {one.nodes}", f"slope at most {CUBIC:g}"
            yield Check(name, asked, f"{one.slope:.2f}", one.slope <= CUBIC)
        for theirs in (one for one in found if one.method == BERNSTEIN_SHELDON):
            ours = [one for one in found if one.nodes == theirs.nodes and one is not theirs]
            steepest, first = max(one.slope for one in ours), theirs.d.tolist().index(FIT_FROM)
            ratios = [theirs.least_s / one.least_s for one in ours]
            grows = min(float(one[-1] / one[first]) for one in ratios)
            asked = f"slope above {CUBIC:g}, and {APART:g} above ours; ratios of times grow from d = {FIT_FROM} on"
            holds = theirs.slope > CUBIC and theirs.slope >= steepest + APART and grows > 1
            words = f"{theirs.slope:.2f} against {steepest:.2f}; ratios grow {grows:.1f} times and more"
            yield Check(f"{BERNSTEIN_SHELDON} grows faster, J = {theirs.nodes}", asked, words, holds)

    def draw(self, found: Sequence[Curve], path: Path) -> None:
        title = "CPU time per iteration, one core, least of the runs"
        with drawing(path, columns=len(self.nodes), size=(4.4, 4.0), title=title) as panels:
            for axes, J in zip(panels[0], self.nodes, strict=True):
                for one in (one for one in found if one.nodes == J):
                    label, style = f"{one.method}, slope {one.slope:.1f}", STYLES[one.method]
                    axes.plot(one.d, one.least_s, label=label, **style)
                    axes.fill_between(one.d, one.least_s, one.most_s, color=style["color"], alpha=0.2)
                what = "seconds of CPU per iteration"
                axes.set(yscale="log", xlabel="d", ylabel=what, title=f"J = {J}")
                log_ticks(axes, self.sizes, list(map(str, self.sizes)))
                axes.legend(frameon=False, fontsize=8)


def _timed(kernel: Kernel, observed: Any, prior: Any) -> dict[str, Any]:
    def iterations(key: Any, state: Any, observed: Any, prior: Any, first: Any, count: Any) -> Any:
        def once(i: Any, state: Any) -> Any:
            schedule = Schedule(first + i, jnp.asarray(WARMUP))
            return kernel.step(jax.random.fold_in(key, i), state, observed, prior, schedule)[0]

        return jax.lax.fori_loop(0, count, once, state)

    key = jax.random.key(0)
    state = jax.jit(kernel.init)(key, observed, prior)
    began_s = time.perf_counter()
    run = jax.jit(iterations).lower(key, state, observed, prior, jnp.asarray(0), 1).compile()
    compile_s = time.perf_counter() - began_s

    def advance(first: int, count: int) -> float:
        nonlocal state
        began_s = time.process_time()
        state = run(jax.random.fold_in(key, first), state, observed, prior, jnp.asarray(first), count)
        jax.tree.map(lambda array: array.block_until_ready(), state)
        return time.process_time() - began_s

    advance(0, 1)
    once_s = advance(1, 1)
    done = 2 + (warm := max(1, min(WARMUP - 2, int(WARM_S / once_s))))
    each_s = advance(2, warm) / warm
    count = max(1, int(RUN_S / each_s))
    seconds = [advance(max(done, WARMUP) + turn * count, count) / count for turn in range(REPEATS)]
    return {"seconds": seconds, "iterations": count, "compile_s": compile_s}
