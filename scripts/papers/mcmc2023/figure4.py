"""Figure 4 of the third paper: squared maximum mean discrepancy of private and non-private posteriors of θ, d = 2.

    k(x, y) = (2πh)^(-d/2) exp(-|x - y|²/(2h)),  h = 0.1
    MMD² = mean of k over pairs of different x + the same over y - 2·mean of k over all x and y

(Gretton et al. 2012, lemma 6: unbiased, so that it can be below 0.) As in the code, x are 2000 draws of the posterior
without privacy, and y a hundred draws of a chain, evenly spaced after warm-up (every 50th of 5000). For
Bayes-fixedS-fast y are 500 draws; the code's 2000 have the same mean.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from dca_proto.privacy.rounding import at_least
from emulator.experiments import picture
from emulator.experiments.runner import Check, table
from inference.problem import stream
from papers.mcmc2023 import simulated
from papers.mcmc2023.data import Array
from papers.mcmc2023.drawing import STYLES
from papers.mcmc2023.fits import SAMPLERS
from papers.mcmc2023.paper import FAST
from papers.mcmc2023.simulated import Plan, Run, Work

D = 2
BANDWIDTH, DRAWS, DRAWS_OF_FAST, KEPT = 0.1, 2000, 500, 100
METHODS = (*SAMPLERS, FAST)
FALLEN = 0.1  # the largest ε's, as a part of the smallest's
_PANEL = (4.6, 3.8)


class Curve(NamedTuple):
    """Of one method at J nodes: MMD² by ε and repeat, shape ``(ε, R)``, and what its work reported."""

    work: Work
    mmd: Array
    result: dict[str, Any]


def distances(work: Work, plan: Plan) -> dict[str, Any]:
    """MMD² of every repeat at every ε, a list over ε of a list over repeats; and what the sampler says."""
    began = time.perf_counter()
    of, found = simulated.population(work.d, plan.seed), simulated.run(work, plan)
    reference = _non_private(of, stream(plan.seed, f"distributed/mmd/{work.d}"))
    within = _mean_apart(reference, BANDWIDTH)
    rng = stream(plan.seed, f"distributed/mmd/{work}")
    values = [
        [mmd_squared(reference, _draws(found, i, r, rng), within=within) for r in range(plan.repeats)]
        for i in range(len(plan.epsilons))
    ]
    return {"mmd": values, **found.report, "wall_seconds": round(time.perf_counter() - began, 2)}


def _non_private(of: simulated.Population, rng: np.random.Generator) -> Array:
    mean, spread, a, b = simulated.non_private(of)
    sigma_y2 = b / rng.gamma(a, size=(DRAWS, 1))
    drawn: Array = mean + np.sqrt(sigma_y2) * (rng.standard_normal((DRAWS, len(mean))) @ np.linalg.cholesky(spread).T)
    return drawn


def _draws(found: Run, epsilon: int, repeat: int, rng: np.random.Generator) -> Array:
    if found.theta is not None:
        every = max(1, found.theta.shape[2] // KEPT)
        return found.theta[epsilon, repeat, every - 1 :: every]
    assert found.cov is not None
    root, mean = np.linalg.cholesky(found.cov[epsilon, repeat]), found.mean[epsilon, repeat]
    drawn: Array = mean + rng.standard_normal((DRAWS_OF_FAST, len(mean))) @ root.T
    return drawn


def mmd_squared(x: Array, y: Array, h: float = BANDWIDTH, *, within: float | None = None) -> float:
    """The unbiased estimate of MMD² between samples ``x`` (m, d) and ``y`` (n, d).

    Args:
        within: the mean of exp(-|x - x'|²/(2h)) over pairs of different x, where it is known already.
    """
    own = _mean_apart(x, h) if within is None else within
    across = float(_exponentials(x, y, h).mean())
    scale = math.pow(2 * math.pi * h, -x.shape[1] / 2)
    return scale * (own + _mean_apart(y, h) - 2 * across)


def _mean_apart(x: Array, h: float) -> float:
    """Over pairs of different rows."""
    m = len(x)
    return float((_exponentials(x, x, h).sum() - m) / (m * (m - 1)))


def _exponentials(x: Array, y: Array, h: float) -> Array:
    """exp(-|x - y|²/(2h)), shape ``(m, n)``."""
    squares = sum(np.subtract.outer(x[:, j], y[:, j]) ** 2 for j in range(x.shape[1]))
    return np.asarray(np.exp(squares / (-2 * h)))


def gathered(works: Sequence[Work], results: Sequence[dict[str, Any]]) -> list[Curve]:
    """All results."""
    return [Curve(work, np.array(one["mmd"]), one) for work, one in zip(works, results, strict=True)]


def figures(curves: Sequence[Curve], plan: Plan) -> dict[str, Any]:
    """Everything that was found, as plain data."""
    return {
        "kind": "mcmc-figure-4",
        "d": D,
        "rows": simulated.ROWS,
        "bandwidth": BANDWIDTH,
        "epsilons": list(plan.epsilons),
        "curves": [
            {
                **{key: value for key, value in one.result.items() if key != "mmd"},
                **vars(one.work),
                "mmd": one.mmd.mean(axis=1).tolist(),
            }
            for one in curves
        ],
    }


def tables(curves: Sequence[Curve], plan: Plan) -> list[Table]:
    """One of each setting."""
    made = []
    for setting in dict.fromkeys(one.work.setting for one in curves):
        rows = table(
            f"{setting}: mean MMD², d = {D}", "J, method", *(f"ε = {at_least(epsilon)}" for epsilon in plan.epsilons)
        )
        for one in curves:
            if one.work.setting == setting:
                values = (f"{value:.2e}" for value in one.mmd.mean(axis=1))
                rows.add_row(f"{one.work.nodes}, {one.work.method}", *values)
        made.append(rows)
    return made


def draw(curves: Sequence[Curve], plan: Plan, path: Path) -> None:
    """Panels by setting and J."""
    settings = list(dict.fromkeys(one.work.setting for one in curves))
    nodes = list(dict.fromkeys(one.work.nodes for one in curves))
    title = f"MMD² to the posterior without privacy: d = {D}, n = {simulated.ROWS:,}"
    with picture.drawing(path, rows=len(settings), columns=len(nodes), size=_PANEL, title=title) as panels:
        for line, setting in zip(panels, settings, strict=True):
            for axes, J in zip(line, nodes, strict=True):
                for one in curves:
                    if (one.work.setting, one.work.nodes) == (setting, J):
                        style = STYLES[one.work.method]
                        axes.plot(plan.epsilons, one.mmd.mean(axis=1), label=one.work.method, **style)
                axes.set(xscale="log", yscale="log", title=f"J = {J}, {setting}")
                axes.set_xticks(plan.epsilons, [at_least(epsilon) for epsilon in plan.epsilons])
                axes.minorticks_off()
            line[0].set_ylabel("MMD²")
        for axes in panels[-1]:
            axes.set_xlabel("ε")
        picture.legend(panels)


def checks(curves: Sequence[Curve]) -> Iterator[Check]:
    """The posteriors come to the one without privacy as ε grows."""
    for one in curves:
        first, last = one.mmd.mean(axis=1)[[0, -1]]
        asked = f"at the largest ε at most {FALLEN:g} of that at the smallest"
        yield Check(f"MMD² falls, {one.work}", asked, f"{first:.2e} to {last:.2e}", last <= FALLEN * first)
