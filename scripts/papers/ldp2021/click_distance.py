"""Figure 2: how far posteriors from local reports are from those without privacy, for ten items' shares of clicks.

**Simulated data.** The paper has some 11,000 records of ten items of the Kosarak click streams, which are not at hand.
In their place stand 11,000 simulated records, the i-th item's probability ∝ 1/i (Zipf). As in the paper it is one data
set: the 50 repeats are of the reports' noise (optimal unary encoding), and what is said of spread is of that alone.

**Posteriors.** Without privacy shares are Dirichlet(1 + counts), so that a share's distribution function F is that of
Beta(1 + n_j, 9 + n - n_j), in closed form. With it, F̂ is that of the draws of four chains.

**The distance** is the mean of |F̂ - F|. The paper does not say over which points. Here it is over

    [0, 1]        a grid of steps of 1e-4: this is the Wasserstein distance W1 between the two, in units of a share
    both draws    half of the points from either posterior: in units of probability, 0 where they are the same and 1/2
                  where they lie apart, whatever their widths

**It does not fall to 0.** A client tells its own bit with probability 1/2 however large ε is, so that half of the
clients' items are lost. What is left at `LIMIT`, where no other bit is ever set, is drawn as a line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from dca_proto.local import UnaryEncoding
from dca_proto.privacy.rounding import at_least
from emulator.experiments import picture
from emulator.experiments.runner import Check, table
from inference.models import fit as fits
from inference.problem import stream
from papers.ldp2021.column_fits import (
    EPSILONS,
    ITERATIONS,
    QUICK_ITERATIONS,
    Array,
    Diagnosis,
    bit_reports,
    check_mixed,
    described,
    mixed,
)

RECORDS, ITEMS, REPEATS = 11_000, 10, 50
LIMIT = 40.0
STEPS = 10_000
PART = 10  # repeats of a cell
QUICK_REPEATS, QUICK_EPSILONS = 2, (0.5, 5.0)
DISTANCES = {"unit": "over [0, 1] (W1)", "draws": "over both draws"}
NEAR = 1.5  # the mean distance at the largest ε, in that at the limit
FALLEN = 0.25
_PANEL, _SCALES = (6.2, 4.8), {"unit": "log", "draws": "linear"}


@dataclass(frozen=True)
class Plan:
    """What is run."""

    seed: int
    repeats: int = REPEATS
    epsilons: tuple[float, ...] = EPSILONS
    iterations: int = ITERATIONS

    @classmethod
    def quick(cls, seed: int) -> Plan:
        """A look."""
        return cls(seed, QUICK_REPEATS, QUICK_EPSILONS, QUICK_ITERATIONS)


@dataclass(frozen=True)
class Cell:
    """Some repeats at an ε: ``count`` from the ``first`` on."""

    epsilon: float
    first: int
    count: int

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:g}, repeats {self.first} to {self.first + self.count - 1}"


def cells(plan: Plan) -> list[Cell]:
    """All of them, the limit last."""
    starts = range(0, plan.repeats, PART)
    return [Cell(e, first, min(PART, plan.repeats - first)) for e in (*plan.epsilons, LIMIT) for first in starts]


@lru_cache(maxsize=4)
def clicks(seed: int) -> NDArray[np.int64]:
    """The records, simulated: each an item, 0 to `ITEMS` - 1; shape ``(RECORDS,)``."""
    weights = 1 / np.arange(1, ITEMS + 1)
    return stream(seed, "local/clicks").choice(ITEMS, RECORDS, p=weights / weights.sum())


def work(cell: Cell, plan: Plan) -> dict[str, Any]:
    """Of each repeat: each item's distances, and how the fit went."""
    records = clicks(plan.seed)
    counts, mechanism = np.bincount(records, minlength=ITEMS), UnaryEncoding(cell.epsilon, ITEMS)
    found: dict[str, Any] = {name: [] for name in (*DISTANCES, "fits")}
    for repeat in range(cell.first, cell.first + cell.count):
        rng = stream(plan.seed, f"local/figure 2/{cell.epsilon:g}/{repeat}")
        told = bit_reports(records, mechanism, rng)
        posterior, diagnosis = mixed(partial(fits.histogram, told), plan.iterations, int(rng.integers(2**31)))
        for name, values in distances(posterior.draws["shares"].reshape(-1, ITEMS), counts).items():
            found[name].append(np.round(values, 7).tolist())
        found["fits"].append(diagnosis)
    return found


def distances(draws: Array, counts: NDArray[np.int64]) -> dict[str, Array]:
    """Of each item, shape ``(k,)``, between draws of the shares and their posterior without privacy.

    Args:
        draws: shape ``(draws, k)``. counts: of the records, shape ``(k,)``.
    """
    from scipy.stats import beta

    k, n = len(counts), int(counts.sum())
    grid, middles = np.linspace(0, 1, STEPS + 1), (np.arange(len(draws)) + 0.5) / len(draws)
    found: dict[str, list[float]] = {name: [] for name in DISTANCES}
    for own, held in zip(np.sort(draws, axis=0).T, counts.tolist(), strict=True):
        exact = beta(1 + held, k - 1 + n - held)
        for name, points in (("unit", grid), ("draws", np.concatenate([own, exact.ppf(middles)]))):
            found[name].append(float(np.mean(np.abs(empirical(own, points) - exact.cdf(points)))))
    return {name: np.array(values) for name, values in found.items()}


def empirical(draws: Array, points: Array) -> Array:
    """The distribution function of sorted draws; half of those at a point count."""
    left, right = (np.searchsorted(draws, points, side) for side in ("left", "right"))
    found: Array = (left + right) / 2 / len(draws)
    return found


@dataclass(frozen=True, eq=False)
class Results:
    """By ε, ascending, the limit last.

    Attributes:
        distances: by name and ε, shape ``(repeats, items)``. fits: how all of them went.
    """

    distances: Mapping[str, Mapping[float, Array]]
    fits: Sequence[Diagnosis]

    @property
    def epsilons(self) -> list[float]:
        """Without the limit."""
        return [epsilon for epsilon in next(iter(self.distances.values())) if epsilon != LIMIT]

    def mean(self, name: str, epsilon: float) -> float:
        """Over repeats and items."""
        return float(self.distances[name][epsilon].mean())


def gathered(cells: Sequence[Cell], results: Sequence[Mapping[str, Any]]) -> Results:
    """All repeats of each ε."""
    epsilons = list(dict.fromkeys(cell.epsilon for cell in cells))
    parts = {e: [one for cell, one in zip(cells, results, strict=True) if cell.epsilon == e] for e in epsilons}
    return Results(
        {name: {e: np.array([row for one in parts[e] for row in one[name]]) for e in epsilons} for name in DISTANCES},
        [Diagnosis(*fit) for result in results for fit in result["fits"]],
    )


def figures(found: Results, plan: Plan) -> dict[str, Any]:
    """Everything, as plain data; standard deviations are over repeats."""
    counts = np.bincount(clicks(plan.seed), minlength=ITEMS)
    return {
        "kind": "ldp-figure-2",
        "data": f"simulated: {RECORDS} records of {ITEMS} items, probabilities as 1/rank",
        "counts": counts.tolist(),
        "repeats": plan.repeats,
        "iterations": plan.iterations,
        "fits": described(found.fits),
        "distances": [
            {
                "epsilon": epsilon,
                "limit": epsilon == LIMIT,
                "points": words,
                "mean": found.mean(name, epsilon),
                "items": values.mean(axis=0).tolist(),
                "sd_of_items": values.std(axis=0).tolist(),
            }
            for name, words in DISTANCES.items()
            for epsilon, values in found.distances[name].items()
        ],
    }


def tables(found: Results) -> list[Table]:
    """Mean distances of each item."""
    heads = [*(f"ε = {at_least(epsilon)}" for epsilon in found.epsilons), "limit"]
    made = []
    for name, words in DISTANCES.items():
        shown = table(f"mean |F̂ - F| {words}, simulated clicks", "item", *heads)
        by_epsilon = list(found.distances[name].values())
        for item in range(ITEMS):
            shown.add_row(str(item + 1), *(f"{values[:, item].mean():.4f}" for values in by_epsilon))
        shown.add_row("all", *(f"{values.mean():.4f}" for values in by_epsilon))
        made.append(shown)
    return made


def checks(found: Results) -> Iterator[Check]:
    """Posteriors come near to those without privacy as ε grows, as near as the mechanism ever lets them."""
    means = [found.mean("unit", epsilon) for epsilon in found.epsilons]
    falls = all(later < earlier for earlier, later in pairwise(means))
    words = ", ".join(f"{mean:.4f}" for mean in means)
    yield Check(f"distance {DISTANCES['unit']} falls", "from each ε to the next", words, falls)
    first, last = (found.distances["unit"][found.epsilons[place]].mean(axis=0) for place in (0, -1))
    worst = float((last / first).max())
    asked = f"at the largest ε at most {FALLEN:g} of that at the smallest"
    yield Check("each item's falls", asked, f"{worst:.2f} at most", worst <= FALLEN)
    for name, words in DISTANCES.items():
        ratio = found.mean(name, found.epsilons[-1]) / found.mean(name, LIMIT)
        asked = f"at the largest ε at most {NEAR:g} times that at the limit"
        yield Check(f"distance {words} ends near", asked, f"{ratio:.2f} times", ratio <= NEAR)
    yield check_mixed(found.fits)


def draw(path: Path, found: Results) -> None:
    """A panel for each distance: a line for each item, and of all; dotted what is left at the limit."""
    title = f"Private against non-private posteriors: SIMULATED clicks, n = {RECORDS:,}, {ITEMS} items, unary encoding"
    shades = np.linspace(0.15, 0.75, ITEMS)
    with picture.drawing(path, columns=len(DISTANCES), size=_PANEL, title=title) as panels:
        for axes, (name, words) in zip(panels[0], DISTANCES.items(), strict=True):
            means = np.array([found.distances[name][epsilon].mean(axis=0) for epsilon in found.epsilons])
            for item in range(ITEMS):
                label = {0: "the most frequent item", ITEMS - 1: "the rarest item"}.get(item)
                axes.plot(found.epsilons, means[:, item], color=str(shades[item]), linewidth=1.0, label=label)
            axes.plot(found.epsilons, means.mean(axis=1), "o-", color=picture.BLUE, linewidth=2, label="mean of items")
            limit = "mean of items as ε grows (own bit told at 1/2)"
            axes.axhline(found.mean(name, LIMIT), color=picture.VERMILION, linestyle=":", label=limit)
            axes.set(xscale="log", yscale=_SCALES[name], xlabel="ε", title=f"mean |F̂ - F| {words}")
            axes.set_xticks(found.epsilons, [at_least(epsilon) for epsilon in found.epsilons])
            axes.minorticks_off()
        panels[0, 0].set_ylabel("mean absolute difference of distribution functions")
        panels[0, 0].legend(frameon=False, fontsize=9)
