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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from rich.table import Table

from inference.problem import Array, stream
from papers import picture
from papers.experiment import Result, over_epsilon
from papers.mcmc2023 import simulated
from papers.mcmc2023.fits import SAMPLERS
from papers.mcmc2023.paper import FAST, STYLES
from papers.mcmc2023.simulated import Run, SimulatedExperiment, Work
from papers.runner import Check

D = 2
BANDWIDTH, DRAWS, DRAWS_OF_FAST, KEPT = 0.1, 2000, 500, 100
FALLEN = 0.1  # the largest ε's, as a part of the smallest's


@dataclass(frozen=True, kw_only=True)
class Figure4(SimulatedExperiment[dict[Work, Array]]):
    """Figure 4 of the third paper: how far private posteriors are from the one without privacy (MMD²), over ε.

    Some 5 minutes on two cores. Exit code 4 where a distance does not fall with ε. What is gathered are means over
    repeats, shape ``(ε,)``.
    """

    KIND, LABEL = "mcmc-figure-4", "distances"
    METHODS: ClassVar = (*SAMPLERS, FAST)

    features: tuple[int, ...] = (D,)

    def work(self, cell: Work) -> Result:
        began = time.perf_counter()
        of, found = simulated.population(cell.d, self.seed), self.made(cell)
        mean, spread, a, b = simulated.non_private(of)
        rng = stream(self.seed, f"distributed/mmd/{cell.d}")
        sigma_y2 = b / rng.gamma(a, size=(DRAWS, 1))
        reference = mean + np.sqrt(sigma_y2) * (rng.standard_normal((DRAWS, D)) @ np.linalg.cholesky(spread).T)
        within, rng = _mean_apart(reference, BANDWIDTH), stream(self.seed, f"distributed/mmd/{cell}")
        values = [
            [mmd_squared(reference, _draws(found, i, r, rng), within=within) for r in range(self.repeats)]
            for i in range(len(self.epsilons))
        ]
        return {"mmd": values, **found.report, "wall_seconds": round(time.perf_counter() - began, 2)}

    def gather(self, cells: Sequence[Work], results: Sequence[Result]) -> dict[Work, Array]:
        return {cell: np.mean(one["mmd"], axis=1) for cell, one in zip(cells, results, strict=True)}

    def notes(self, found: Mapping[Work, Array]) -> dict[str, Any]:
        return {**super().notes(dict(found)), "bandwidth": BANDWIDTH}

    def tables(self, found: Mapping[Work, Array]) -> Iterator[Table]:
        for setting in dict.fromkeys(work.setting for work in found):
            shown = over_epsilon(f"{setting}: mean MMD², d = {D}", "J, method", self.epsilons)
            for work, means in found.items():
                if work.setting == setting:
                    shown.add_row(f"{work.nodes}, {work.method}", *(f"{value:.2e}" for value in means))
            yield shown

    def checks(self, found: Mapping[Work, Array]) -> Iterator[Check]:
        asked = f"at the largest ε at most {FALLEN:g} of that at the smallest"
        for work, means in found.items():
            words = f"{means[0]:.2e} to {means[-1]:.2e}"
            yield Check(f"MMD² falls, {work}", asked, words, means[-1] <= FALLEN * means[0])

    def draw(self, found: Mapping[Work, Array], path: Path) -> None:
        settings, nodes = (list(dict.fromkeys(work[place] for work in found)) for place in (0, 2))
        title = f"MMD² to the posterior without privacy: d = {D}, n = {simulated.ROWS:,}"
        with picture.drawing(path, rows=len(settings), columns=len(nodes), size=(4.6, 3.8), title=title) as panels:
            for line, setting in zip(panels, settings, strict=True):
                for axes, J in zip(line, nodes, strict=True):
                    for work, means in found.items():
                        if (work.setting, work.nodes) == (setting, J):
                            axes.plot(self.epsilons, means, label=work.method, **STYLES[work.method])
                    axes.set(yscale="log", title=f"J = {J}, {setting}")
                    picture.epsilon_axis(axes, self.epsilons)
                line[0].set_ylabel("MMD²")
            for axes in panels[-1]:
                axes.set_xlabel("ε")
            picture.legend(panels)


def _draws(found: Run, epsilon: int, repeat: int, rng: np.random.Generator) -> Array:
    if found.theta is not None:
        every = max(1, found.theta.shape[2] // KEPT)
        return found.theta[epsilon, repeat, every - 1 :: every]
    assert found.cov is not None
    root, mean = np.linalg.cholesky(found.cov[epsilon, repeat]), found.mean[epsilon, repeat]
    return np.asarray(mean + rng.standard_normal((DRAWS_OF_FAST, len(mean))) @ root.T)


def mmd_squared(x: Array, y: Array, h: float = BANDWIDTH, *, within: float | None = None) -> float:
    """The unbiased estimate of MMD² between samples ``x`` (m, d) and ``y`` (n, d).

    Args:
        within: the mean of exp(-|x - x'|²/(2h)) over pairs of different x, where it is known already.
    """
    own = _mean_apart(x, h) if within is None else within
    across = float(_exponentials(x, y, h).mean())
    return math.pow(2 * math.pi * h, -x.shape[1] / 2) * (own + _mean_apart(y, h) - 2 * across)


def _mean_apart(x: Array, h: float) -> float:
    """Over pairs of different rows."""
    m = len(x)
    return float((_exponentials(x, x, h).sum() - m) / (m * (m - 1)))


def _exponentials(x: Array, y: Array, h: float) -> Array:
    """exp(-|x - y|²/(2h)), shape ``(m, n)``."""
    squares = sum(np.subtract.outer(x[:, j], y[:, j]) ** 2 for j in range(x.shape[1]))
    return np.asarray(np.exp(squares / (-2 * h)))
