"""Figure 6: how far the sigmoid is from its Chebyshev series on [-3, 3], as the paper measures it and row by row.

In each of 50 runs θ ~ N(0, I). 1,000 rows x ~ N(0, AAᵀ), with A standard normal and the same for all runs of a
dimension, are scaled back to the unit ball. u = xᵀθ.

    the paper's     |mean of σ(u) - mean of its series|, averaged over runs
    its noise       the standard error of that difference of means over the 1,000 rows
    row by row      the mean of |σ(u) - its series at u|

**The paper's quantity shows nothing.** x and -x are equally likely, and σ - ½ and its series of any order are odd (but
for b_0 = ½). So both expectations are exactly ½, whatever the order, and what is left is Monte Carlo error. The third
quantity is the error that a label's probability has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from rich.table import Table
from scipy.special import expit

from inference.columns import into_ball
from inference.problem import stream
from papers import picture
from papers.experiment import Experiment, Result
from papers.ldp2021.chebyshev import sigmoid
from papers.runner import Check, table

DIMENSIONS, ORDERS = (2, 4, 8, 16, 32), (2, 4)
ROWS = 1000
PAPERS, NOISE, ROW_BY_ROW = MEASURES = ("the paper's", "its noise", "row by row")
LARGER = 10.0
NOISE_MAX = 1.3  # the mean of 50 |N(0, 1)| is 0.80 with a standard deviation of 0.085
STYLES: Mapping[str, Mapping[str, Any]] = {
    PAPERS: {"color": picture.BLUE, "marker": "o"},
    NOISE: {"color": picture.GREY, "marker": "s", "linestyle": "--"},
    ROW_BY_ROW: {"color": picture.VERMILION, "marker": "D"},
}


class Cell(NamedTuple):
    """All runs for an order of the series and a number of features."""

    order: int
    features: int


@dataclass(frozen=True, kw_only=True)
class SigmoidGap(Experiment[Cell, Mapping[Cell, Result]]):
    """Figure 6 of the LDP paper: the sigmoid's distance from its Chebyshev series, by the number of features.

    Takes a few seconds. Exit code 4 if the paper's quantity is more than Monte Carlo error, or not far below the error
    of single rows: then it would show something.
    """

    KIND, LABEL, DEPENDS = "ldp-figure-6", "figure 6", ("seed", "repeats")
    QUICK: ClassVar = {"repeats": 10, "dimensions": DIMENSIONS[::2]}

    repeats: int = 50
    dimensions: tuple[int, ...] = DIMENSIONS

    def cells(self) -> list[Cell]:
        return [Cell(order, features) for order in ORDERS for features in self.dimensions]

    def work(self, cell: Cell) -> Result:
        rng = stream(self.seed, f"local/figure 6/{cell.features}")
        root, found = rng.standard_normal((cell.features, cell.features)), []
        for _ in range(self.repeats):
            theta = rng.standard_normal(cell.features)
            u = into_ball(rng.standard_normal((ROWS, cell.features)) @ root.T, 1.0) @ theta
            off = expit(u) - np.polynomial.polynomial.polyval(u, sigmoid(cell.order))
            found.append((abs(off.mean()), off.std(ddof=1) / np.sqrt(ROWS), np.abs(off).mean()))
        return dict(zip(MEASURES, np.mean(found, axis=0).tolist(), strict=True))

    def tables(self, found: Mapping[Cell, Result]) -> Iterator[Table]:
        for order in ORDERS:
            title = f"order {order}: distance of the sigmoid from its series, means of {self.repeats} runs"
            shown = table(title, "features", *MEASURES)
            for cell, one in found.items():
                if cell.order == order:
                    shown.add_row(str(cell.features), *(f"{one[measure]:.5f}" for measure in MEASURES))
            yield shown

    def checks(self, found: Mapping[Cell, Result]) -> Iterator[Check]:
        ratios = [one[PAPERS] / one[NOISE] for one in found.values()]
        name, asked = "the paper's quantity is noise", f"0.8 of its standard error, at most {NOISE_MAX:g}"
        yield Check(name, asked, f"{max(ratios):.2f} at most", max(ratios) <= NOISE_MAX)
        ratios = [one[ROW_BY_ROW] / one[PAPERS] for one in found.values()]
        asked = f"at least {LARGER:g} times the paper's quantity"
        yield Check("error of single rows", asked, f"{min(ratios):.0f} times", min(ratios) >= LARGER)

    def draw(self, found: Mapping[Cell, Result], path: Path) -> None:
        title = f"Distance of the sigmoid from its Chebyshev series on [-3, 3]: {self.repeats} runs of {ROWS:,} rows"
        with picture.drawing(path, columns=len(ORDERS), size=(4.6, 3.8), title=title) as panels:
            for axes, order in zip(panels[0], ORDERS, strict=True):
                own = {cell.features: one for cell, one in found.items() if cell.order == order}
                for measure, style in STYLES.items():
                    axes.plot(list(own), [one[measure] for one in own.values()], label=measure, **style)
                axes.set(
                    yscale="log",
                    ylim=(1e-4, 0.1),
                    xlabel="features",
                    title=f"order {order}{' (the paper)' * (order == 2)}",
                )
                picture.log_ticks(axes, self.dimensions, list(map(str, self.dimensions)))
            panels[0, 0].set_ylabel("mean absolute distance")
            picture.legend(panels)
