"""Figure 2: the distance of posteriors from local reports to those without privacy, for ten items' shares of clicks.

**Simulated data.** The paper uses some 11,000 records of ten items of the Kosarak click streams, which we do not have.
Here are 11,000 simulated records, the i-th item's probability ∝ 1/i (Zipf). As in the paper, there is one data set: the
50 repeats redraw the reports' noise (optimal unary encoding), and the spread shows that noise alone.

**Posteriors.** Without privacy, shares are Dirichlet(1 + counts), so a share's distribution function F is that of
Beta(1 + n_j, 9 + n - n_j). With privacy, F̂ is the empirical one of the draws of four chains.

**The distance** is the mean of |F̂ - F|. The paper does not define the points that the mean is over. Here they are

    [0, 1]        a grid of steps of 1e-4: the mean is the Wasserstein distance W1, in units of a share
    both draws    half of the points from either posterior: the mean is in units of probability, 0 if the posteriors are
                  equal and 1/2 if they lie apart, whatever their widths

**It does not fall to 0.** A client reports its own bit with probability 1/2 however large ε is, so half of the items
are lost. A line shows the distance at `LIMIT`, where no other bit is ever set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from scipy.stats import beta

from dca_proto.privacy.local import UnaryEncoding
from inference.models import fit as fits
from inference.problem import Array, stream
from papers import picture
from papers.experiment import Result, over_epsilon
from papers.ldp2021 import column_fits
from papers.ldp2021.column_fits import QUICK_ITERATIONS, Diagnosis, RepeatedFits, described, mixed
from papers.runner import Check

RECORDS, ITEMS = 11_000, 10
LIMIT = 40.0
STEPS = 10_000
PART = 10  # repeats of a cell
DISTANCES = {"unit": "over [0, 1] (W1)", "draws": "over both draws"}
NEAR = 1.5  # largest ratio of the mean distance at the largest ε to that at the limit
FALLEN = 0.25


class Cell(NamedTuple):
    """``number`` repeats at an ε, from the ``first`` on."""

    epsilon: float
    first: int
    number: int


class Found(NamedTuple):
    """Distances by name, shape ``(ε, repeats, items)``, with the limit's ε last; and the diagnoses of all fits."""

    distances: dict[str, Array]
    fits: list[Diagnosis]


@lru_cache(maxsize=4)
def clicks(seed: int) -> NDArray[np.int64]:
    """Simulate the records: each is an item from 0 to `ITEMS` - 1; shape ``(RECORDS,)``."""
    weights = 1 / np.arange(1, ITEMS + 1)
    return stream(seed, "local/clicks").choice(ITEMS, RECORDS, p=weights / weights.sum())


def distances(draws: Array, counts: NDArray[np.int64]) -> dict[str, Array]:
    """Return each item's distances ``(k,)`` between draws of the shares and their posterior without privacy.

    Args:
        draws: shape ``(draws, k)``. counts: records by item, shape ``(k,)``.
    """
    k, n = len(counts), int(counts.sum())
    grid, middles = np.linspace(0, 1, STEPS + 1), (np.arange(len(draws)) + 0.5) / len(draws)
    found: dict[str, list[float]] = {name: [] for name in DISTANCES}
    for own, count in zip(np.sort(draws, axis=0).T, counts.tolist(), strict=True):
        exact = beta(1 + count, k - 1 + n - count)
        for name, points in (("unit", grid), ("draws", np.concatenate([own, exact.ppf(middles)]))):
            found[name].append(float(np.mean(np.abs(empirical(own, points) - exact.cdf(points)))))
    return {name: np.array(values) for name, values in found.items()}


def empirical(draws: Array, points: Array) -> Array:
    """Return the distribution function of sorted draws; a draw at a point counts half."""
    left, right = (np.searchsorted(draws, points, side) for side in ("left", "right"))
    return np.asarray((left + right) / 2 / len(draws))


@dataclass(frozen=True, kw_only=True)
class ClickDistance(RepeatedFits[Cell, Found]):
    """Figure 2 of the LDP paper: the distance of a histogram's posterior from local reports to the non-private one.

    Takes about 7 minutes on two idle cores. 11,000 SIMULATED records of ten items replace the paper's click streams.
    Exit code 4 if the distance does not fall with ε, does not end near the least that the mechanism allows, or an R-hat
    is not below 1.1.
    """

    KIND, LABEL = "ldp-figure-2", "figure 2"
    QUICK: ClassVar = {"repeats": 2, "epsilons": (0.5, 5.0), "iterations": QUICK_ITERATIONS}

    repeats: int = 50

    def cells(self) -> list[Cell]:
        each = column_fits.parts(self.repeats, PART)
        return [Cell(epsilon, *part) for epsilon in (*self.epsilons, LIMIT) for part in each]

    def once(self, cell: Cell, repeat: int) -> Result:
        records, rng = clicks(self.seed), stream(self.seed, f"local/figure 2/{cell.epsilon:g}/{repeat}")
        reports = column_fits.bit_reports(records, UnaryEncoding(cell.epsilon, ITEMS), rng)
        posterior, diagnosis = mixed(partial(fits.histogram, reports), self.iterations, int(rng.integers(2**31)))
        far = distances(posterior.draws["shares"].reshape(-1, ITEMS), np.bincount(records, minlength=ITEMS))
        return {**{name: np.round(values, 7).tolist() for name, values in far.items()}, "fits": diagnosis}

    def gather(self, cells: Sequence[Cell], results: Sequence[Result]) -> Found:
        by_epsilon = column_fits.joined(cells, results).values()
        distances = {name: np.array([one[name] for one in by_epsilon]) for name in DISTANCES}  # (ε, repeats, items)
        return Found(distances, [Diagnosis(*fit) for one in by_epsilon for fit in one["fits"]])

    def notes(self, found: Found) -> dict[str, Any]:
        data = f"simulated: {RECORDS} records of {ITEMS} items, probabilities as 1/rank"
        counts = np.bincount(clicks(self.seed), minlength=ITEMS)
        return {"data": data, "counts": counts.tolist(), "fits": described(found.fits)}

    def tables(self, found: Found) -> Iterator[Table]:
        for name, words in DISTANCES.items():
            shown = over_epsilon(f"mean |F̂ - F| {words}, simulated clicks", "item", self.epsilons, "limit")
            means = found.distances[name].mean(axis=1)
            for item, row in (*enumerate(means.T, 1), ("all", means.mean(axis=1))):
                shown.add_row(str(item), *(f"{mean:.4f}" for mean in row))
            yield shown

    def checks(self, found: Found) -> Iterator[Check]:
        items = found.distances["unit"].mean(axis=1)[:-1]
        means = items.mean(axis=1)
        falls = all(later < earlier for earlier, later in pairwise(means))
        words = ", ".join(f"{mean:.4f}" for mean in means)
        yield Check(f"distance {DISTANCES['unit']} falls", "from each ε to the next", words, falls)
        worst = float((items[-1] / items[0]).max())
        asked = f"at the largest ε at most {FALLEN:g} of that at the smallest"
        yield Check("each item's falls", asked, f"{worst:.2f} at most", worst <= FALLEN)
        for name, words in DISTANCES.items():
            last, limit = found.distances[name].mean(axis=(1, 2))[-2:]
            asked = f"at the largest ε at most {NEAR:g} times that at the limit"
            yield Check(f"distance {words} ends near", asked, f"{last / limit:.2f} times", last <= NEAR * limit)
        yield column_fits.check_mixed(found.fits)

    def draw(self, found: Found, path: Path) -> None:
        title = f"Private against non-private posteriors: SIMULATED clicks, n = {RECORDS:,}, {ITEMS} items"
        shades, scales = np.linspace(0.15, 0.75, ITEMS), {"unit": "log", "draws": "linear"}
        size, labels = (6.2, 4.8), {0: "the most frequent item", ITEMS - 1: "the rarest item"}
        with picture.drawing(path, columns=len(DISTANCES), size=size, title=f"{title}, unary encoding") as panels:
            for axes, (name, words) in zip(panels[0], DISTANCES.items(), strict=True):
                means = found.distances[name].mean(axis=1)
                for item, shade in enumerate(shades):
                    style = {"color": str(shade), "linewidth": 1.0, "label": labels.get(item)}
                    axes.plot(self.epsilons, means[:-1, item], **style)
                *rest, last = means.mean(axis=1)
                axes.plot(self.epsilons, rest, "o-", color=picture.BLUE, linewidth=2, label="mean of items")
                limit = "mean of items as ε grows (own bit reported at 1/2)"
                axes.axhline(last, color=picture.VERMILION, linestyle=":", label=limit)
                axes.set(yscale=scales[name], xlabel="ε", title=f"mean |F̂ - F| {words}")
                picture.epsilon_axis(axes, self.epsilons)
            panels[0, 0].set_ylabel("mean absolute difference of distribution functions")
            panels[0, 0].legend(frameon=False, fontsize=9)
