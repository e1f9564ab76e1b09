"""Figure 3 of the paper: time per iteration over d, of n = 10⁴ rows at J = 1, 5 and 10 nodes, ε = 1.

Section 4.3: an iteration of MCMC-normalX and of MCMC-fixedS takes O(d³), one of MCMC-B&S O(d⁶), whose matrices are of
size d(d + 1)/2 + d + 1. Here one chain runs compiled on one core, beyond warm-up; what compiling takes is measured
apart. Time is this process's CPU time, and of several runs the least counts: other work on the machine only adds to it.
Of small d a step takes as long as its many small operations take to start, and a matrix product is the faster
for each number the larger it is. So d goes on to 40 (the paper's ends at 20), and slopes are fitted from 15 on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from dca_proto.privacy.accounting import mu_of
from emulator.experiments.picture import COLOURS, MARKERS, drawing
from emulator.experiments.runner import Check, table
from inference.models.linear.nodes.observed import NodeStatistics, Prior
from inference.problem import stream
from papers.mcmc2023.data import Statistics
from papers.mcmc2023.releases import with_noise
from papers.mcmc2023.samplers.kernel import Kernel, Schedule
from papers.mcmc2023.samplers.methods import kernel_of

ROWS, EPSILON, DELTA = 10_000, 1.0, 1e-4
SIZES, QUICK_SIZES = (1, 3, 8, 15, 20, 30, 40), (2, 15, 20)
NODES, QUICK_NODES = (1, 5, 10), (5,)
FIT_FROM = 15
REPEATS = 5
RUN_S, WARM_S = 0.15, 0.5
WARMUP = 200
CUBIC = 3.0
APART = 0.5
OPPONENT = "bernstein-sheldon"


@dataclass(frozen=True)
class Cell:
    """A sampler and the size of its problem."""

    method: str
    nodes: int
    d: int

    def __str__(self) -> str:
        return f"{self.method}, J = {self.nodes}, d = {self.d}"


def measured(cell: Cell, seed: int) -> dict[str, Any]:
    """Seconds per iteration of some runs, and seconds of compilation, on one core."""
    observed, prior = _problem(cell, seed)
    with _one_core(), jax.enable_x64(True):
        return _timed(kernel_of(cell.method, observed), *jax.tree.map(jnp.asarray, (observed, prior)))


def _problem(cell: Cell, seed: int) -> tuple[NodeStatistics, Prior]:
    """Standard normal features and targets, and noise for norms of 2√d and a target of up to 6."""
    rng, d, J = stream(seed, f"timing/{cell.nodes}/{cell.d}"), cell.d, cell.nodes
    X = rng.standard_normal((ROWS, d))
    y = X @ rng.standard_normal(d) / np.sqrt(d) + rng.standard_normal(ROWS)
    sigma = np.sqrt(2) * (4 * d + 18) / mu_of(EPSILON, DELTA)
    return with_noise(Statistics.of(X, y, J), sigma, sigma, rng, sigma_u=sigma), Prior.default(d, 1.0)


@contextmanager
def _one_core() -> Iterator[None]:
    """This process on one of its cores meanwhile, where the system can say so."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _timed(kernel: Kernel, observed: Any, prior: Any) -> dict[str, Any]:
    key = jax.random.key(0)
    state = jax.jit(kernel.init)(key, observed, prior)
    began_s = time.perf_counter()
    run = jax.jit(partial(_iterations, kernel)).lower(key, state, observed, prior, jnp.asarray(0), 1).compile()
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


def _iterations(kernel: Kernel, key: Any, state: Any, observed: Any, prior: Any, first: Any, count: Any) -> Any:
    def once(i: Any, state: Any) -> Any:
        schedule = Schedule(first + i, jnp.asarray(WARMUP))
        return kernel.step(jax.random.fold_in(key, i), state, observed, prior, schedule)[0]

    return jax.lax.fori_loop(0, count, once, state)


def summary(cells: list[Cell], results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each method and J: d, the least and the most seconds per iteration of the runs, and the slope."""
    curves = []
    for method, nodes in dict.fromkeys((cell.method, cell.nodes) for cell in cells):
        own = [
            (cell.d, one)
            for cell, one in zip(cells, results, strict=True)
            if (cell.method, cell.nodes) == (method, nodes)
        ]
        d, times = np.array([size for size, _ in own]), np.array([one["seconds"] for _, one in own])
        curves.append({
            "method": method,
            "nodes": nodes,
            "d": d.tolist(),
            "least_s": times.min(axis=1).tolist(),
            "most_s": times.max(axis=1).tolist(),
            "compile_s": [one["compile_s"] for _, one in own],
            "slope": slope(d, times.min(axis=1)),
        })  # fmt: skip
    return curves


def slope(d: Any, seconds: Any) -> float:
    """Of log seconds over log d from `FIT_FROM` on, by least squares."""
    upper = d >= FIT_FROM
    return float(np.polyfit(np.log(d[upper]), np.log(seconds[upper]), 1)[0])


def checks(curves: list[dict[str, Any]]) -> list[Check]:
    """Ours grow no faster than d³, and Bernstein and Sheldon's faster than that, and visibly faster than ours."""
    found = []
    for curve in curves:
        if curve["method"] != OPPONENT:
            name = f"growth of {curve['method']}, J = {curve['nodes']}"
            found.append(Check(name, f"slope at most {CUBIC:g}", f"{curve['slope']:.2f}", curve["slope"] <= CUBIC))
    for theirs in (curve for curve in curves if curve["method"] == OPPONENT):
        ours = [curve for curve in curves if curve["nodes"] == theirs["nodes"] and curve is not theirs]
        steepest = max(curve["slope"] for curve in ours)
        ratio = [np.array(theirs["least_s"]) / curve["least_s"] for curve in ours]
        grows = [float(one[-1] / one[theirs["d"].index(FIT_FROM)]) for one in ratio]
        name = f"{OPPONENT} grows faster, J = {theirs['nodes']}"
        asked = f"slope above {CUBIC:g}, and {APART:g} above ours; ratios of times grow from d = {FIT_FROM} on"
        holds = theirs["slope"] > CUBIC and theirs["slope"] >= steepest + APART and min(grows) > 1
        words = f"{theirs['slope']:.2f} against {steepest:.2f}; ratios grow {min(grows):.1f} times and more"
        found.append(Check(name, asked, words, holds))
    return found


def times_table(curves: list[dict[str, Any]]) -> Table:
    """Microseconds per iteration."""
    sizes = curves[0]["d"]
    shown = table(
        "µs of CPU per iteration: least (most) of the runs",
        "method, J",
        *(f"d = {d}" for d in sizes),
        "slope",
        "compiled in s",
    )
    for curve in curves:
        times = [f"{1e6 * m:.0f} ({1e6 * s:.0f})" for m, s in zip(curve["least_s"], curve["most_s"], strict=True)]
        compiled = f"{min(curve['compile_s']):.1f}-{max(curve['compile_s']):.1f}"
        shown.add_row(f"{curve['method']}, {curve['nodes']}", *times, f"{curve['slope']:.2f}", compiled)
    return shown


def draw(path: Path, curves: list[dict[str, Any]]) -> None:
    """A panel for each J, both axes logarithmic."""
    nodes = list(dict.fromkeys(curve["nodes"] for curve in curves))
    methods = list(dict.fromkeys(curve["method"] for curve in curves))
    with drawing(
        path, columns=len(nodes), size=(4.4, 4.0), title="CPU time per iteration, one core, least of the runs"
    ) as panels:
        for axes, J in zip(panels[0], nodes, strict=True):
            for curve in (one for one in curves if one["nodes"] == J):
                place = methods.index(curve["method"])
                label = f"{curve['method']}, slope {curve['slope']:.1f}"
                axes.plot(curve["d"], curve["least_s"], color=COLOURS[place], marker=MARKERS[place], label=label)
                axes.fill_between(curve["d"], curve["least_s"], curve["most_s"], color=COLOURS[place], alpha=0.2)
            axes.set(xscale="log", yscale="log", xlabel="d", ylabel="seconds of CPU per iteration", title=f"J = {J}")
            axes.set_xticks(curves[0]["d"], labels=map(str, curves[0]["d"]))
            axes.minorticks_off()
            axes.legend(frameon=False, fontsize=8)
