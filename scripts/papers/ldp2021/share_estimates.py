"""Figures 3 and 9: posterior means of a histogram's shares, against point estimates projected onto the simplex.

n clients hold one of three categories with probabilities 0.7, 0.2, 0.1 and report it by optimal unary encoding. The
same reports give

    posterior mean    uniform prior, noise in the model (section 11)
    projected         the unbiased estimate (9), corrected by errata 1, then its least-squares projection onto the
                      simplex (`inference.simplex`; the paper's "L2 approximation")
    uniform           1/3 each: the prior's mean, which needs no data. A worse estimate is useless

**Error** is the root mean squared error over the three shares against the true *probabilities*, as in the paper,
averaged over repeats. **Reduction** is 1 - posterior/projected, with Student's interval of the ratio over pairs
(linearised). The paper has 50 repeats, which leave an interval of ±0.14, as wide as the effect. Here are 200; the JSON
also has the reduction over the first 50.

**Unusable.** *Trivial*: a share is 0 (below 1e-9). A posterior mean lies inside the simplex, so it is never trivial.
*Unordered*: the shares are not in the order of the true ones. The paper gives no further definition.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from rich.table import Table

from dca_proto.privacy.local import UnaryEncoding
from dca_proto.privacy.rounding import at_least
from inference.models import fit as fits
from inference.problem import Array, stream
from inference.simplex import nearest_on_simplex
from papers import picture
from papers.experiment import MeanInterval, Result, joint_interval
from papers.ldp2021 import column_fits
from papers.ldp2021.column_fits import QUICK_ITERATIONS, Diagnosis, RepeatedFits, described, mixed
from papers.runner import Check, table

TRUE = (0.7, 0.2, 0.1)
CLIENTS = (100, 200, 500, 1000, 2000, 5000, 10_000)
PUBLISHED_REPEATS = 50
FIGURE_3, SMALL = 0.5, 1000
"""The ε of Figure 3, and the largest n at which the paper finds the posterior mean ahead."""
JOINT_LEVEL = 0.95
NO_SHARE = 1e-9
POSTERIOR, PROJECTED = METHODS = ("posterior mean", "projected")
STYLES: Mapping[str, Mapping[str, Any]] = {
    POSTERIOR: {"color": picture.BLUE, "marker": "o"},
    PROJECTED: {"color": picture.VERMILION, "marker": "s"},
}


@dataclass(frozen=True)
class Cell:
    """All repeats for one ε and number of clients."""

    epsilon: float
    clients: int
    first: int = 0
    number: int = 0

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:g}, {self.clients} clients"

    @property
    def judged(self) -> bool:
        """True if the paper finds the posterior mean ahead here."""
        return self.epsilon == FIGURE_3 and self.clients <= SMALL


class Unusable(NamedTuple):
    """The parts of the repeats whose estimate is unusable."""

    trivial: float  # a share is 0
    one_category: float  # a share is 1; these are trivial, too
    unordered: float
    either: float  # trivial or unordered


def errors(estimates: Array) -> Array:
    """Return the error of each repeat, for estimates ``(repeats, 3)``."""
    return np.asarray(np.sqrt(np.mean((estimates - TRUE) ** 2, axis=1)))


def unusable(estimates: Array) -> Unusable:
    trivial, single = (estimates < NO_SHARE).any(axis=1), (estimates > 1 - NO_SHARE).any(axis=1)
    unordered = np.any(np.diff(estimates, axis=1) >= 0, axis=1)
    return Unusable(*(float(one.mean()) for one in (trivial, single, unordered, trivial | unordered)))


class Reduction(MeanInterval):
    """The relative reduction of the error by the posterior mean, with its interval."""

    def __str__(self) -> str:
        return f"{self.mean:.1%} ({self.low:.1%}, {self.high:.1%})"


def reduction_of(posterior: Array, projected: Array, count: int) -> Reduction:
    """Return the reduction for paired errors ``(repeats,)``, with one of `count` joint intervals."""
    ratio = float(posterior.mean() / projected.mean())
    _, low, high = joint_interval((posterior - ratio * projected) / projected.mean(), JOINT_LEVEL, count)
    half = (high - low) / 2
    return Reduction(1 - ratio, 1 - ratio - half, 1 - ratio + half)


@dataclass(frozen=True, eq=False)
class Compared:
    """A cell with both methods' estimates, shape ``(repeats, 3)``, and the diagnoses of its fits."""

    cell: Cell
    estimates: Mapping[str, Array]
    fits: Sequence[Diagnosis]

    def reduction(self, count: int, repeats: int | None = None) -> Reduction:
        posterior, projected = (errors(self.estimates[name][:repeats]) for name in METHODS)
        return reduction_of(posterior, projected, count)

    def unusable(self, method: str) -> Unusable:
        return unusable(self.estimates[method])


def joint(found: Sequence[Compared]) -> int:
    """Return the number of joint intervals: one for each judged cell."""
    return max(1, sum(one.cell.judged for one in found))


def useless() -> float:
    return float(errors(np.full((1, len(TRUE)), 1 / len(TRUE)))[0])


@dataclass(frozen=True, kw_only=True)
class ShareEstimates(RepeatedFits[Cell, list[Compared]]):
    """Figures 3 and 9 of the LDP paper: a histogram's posterior mean against the projected point estimate.

    Takes about 15 minutes on two idle cores. Exit code 4 if, at ε = 0.5 and up to 1,000 clients, the posterior mean's
    error is not below the projected estimate's (paired, joint intervals) or it is unusable more often; if it is behind
    anywhere; or if an R-hat is not below 1.1.
    """

    KIND, LABEL, DEPENDS = "ldp-figure-3", "figure 3", ("seed", "repeats", "iterations")
    QUICK: ClassVar = {"repeats": 10, "clients": (200, 1000), "epsilons": (0.5,), "iterations": QUICK_ITERATIONS}

    repeats: int = 200
    clients: tuple[int, ...] = CLIENTS

    def cells(self) -> list[Cell]:
        return [Cell(epsilon, clients, 0, self.repeats) for epsilon in self.epsilons for clients in self.clients]

    def once(self, cell: Cell, repeat: int) -> Result:
        mechanism, rng = UnaryEncoding(cell.epsilon, len(TRUE)), stream(self.seed, f"local/figure 3/{cell}/{repeat}")
        reports = column_fits.bit_reports(rng.choice(len(TRUE), cell.clients, p=TRUE), mechanism, rng)
        posterior, diagnosis = mixed(partial(fits.histogram, reports), self.iterations, int(rng.integers(2**31)))
        projected = nearest_on_simplex(mechanism.estimate(reports.values).mean, 1.0)
        shares = {POSTERIOR: np.round(posterior.mean["shares"], 7), PROJECTED: np.round(projected, 12)}
        return {**{name: one.tolist() for name, one in shares.items()}, "fits": diagnosis}

    def gather(self, cells: Sequence[Cell], results: Sequence[Result]) -> list[Compared]:
        return [
            Compared(cell, {name: np.array(one[name]) for name in METHODS}, [Diagnosis(*fit) for fit in one["fits"]])
            for cell, one in zip(cells, results, strict=True)
        ]

    def notes(self, found: Sequence[Compared]) -> dict[str, Any]:
        count = joint(found)
        return {
            "true": list(TRUE),
            "joint_level": JOINT_LEVEL,
            "joint_intervals": count,
            "error_of_uniform_shares": useless(),
            "fits": described([fit for one in found for fit in one.fits]),
            f"reduction_of_first_{PUBLISHED_REPEATS}": {
                str(one.cell): one.reduction(count, PUBLISHED_REPEATS)._asdict() for one in found
            },
        }

    def tables(self, found: Sequence[Compared]) -> Iterator[Table]:
        heads = ("reduction", "unordered", f"unordered, {PROJECTED}", "a share of 0", "in one")
        for epsilon in self.epsilons:
            title = f"ε = {at_least(epsilon)}: RMSE (uniform shares {useless():.3f}), unusable solutions in %"
            shown = table(title, "clients", *METHODS, *heads)
            for one in (one for one in found if one.cell.epsilon == epsilon):
                rmse = [f"{errors(one.estimates[name]).mean():.4f}" for name in METHODS]
                less, worse = str(one.reduction(joint(found))), one.unusable(PROJECTED)
                parts = (one.unusable(POSTERIOR).unordered, worse.unordered, worse.trivial, worse.one_category)
                shown.add_row(f"{one.cell.clients:,}", *rmse, less, *(f"{100 * part:.0f}" for part in parts))
            yield shown

    def checks(self, found: Sequence[Compared]) -> Iterator[Check]:
        judged, level = [one for one in found if one.cell.judged], f"joint {JOINT_LEVEL:.0%} interval"
        for one in judged:
            less = one.reduction(joint(found))
            name = f"{POSTERIOR} ahead, ε = {at_least(FIGURE_3)}, n = {one.cell.clients:,}"
            yield Check(name, f"whole {level} above 0", f"{less} lower; the paper: 10 to 30 %", less.low > 0)
        worse = [str(one.cell) for one in found if one.reduction(len(found)).high < 0]
        yield Check("behind nowhere", f"no {level} below 0", "; ".join(worse) or "none", not worse)
        more = [str(one.cell) for one in judged if one.unusable(POSTERIOR).either > one.unusable(PROJECTED).either]
        asked = f"the posterior mean's no more often, ε = {at_least(FIGURE_3)}, n up to {SMALL:,}"
        yield Check("unusable solutions", asked, "; ".join(more) or "nowhere", not more)
        yield column_fits.check_mixed([fit for one in found for fit in one.fits])

    def draw(self, found: Sequence[Compared], path: Path) -> None:
        epsilons = list(dict.fromkeys(one.cell.epsilon for one in found))
        title = f"Unary encoding, true shares {', '.join(map(str, TRUE))}: {len(found[0].fits)} repeats"
        size = (max(3.4, 9.0 / len(epsilons)), 3.4)
        with picture.drawing(path, rows=2, columns=len(epsilons), size=size, title=title) as panels:
            for epsilon, (above, below) in zip(epsilons, panels.T, strict=True):
                own = [one for one in found if one.cell.epsilon == epsilon]
                clients = [one.cell.clients for one in own]
                for name, style in STYLES.items():
                    values = [errors(one.estimates[name]) for one in own]
                    bars = [1.96 * v.std(ddof=1) / math.sqrt(len(v)) for v in values]
                    heights = [v.mean() for v in values]
                    above.errorbar(clients, heights, yerr=bars, label=name, capsize=2, markersize=4, **style)
                    either = [100 * one.unusable(name).either for one in own]
                    below.plot(clients, either, markersize=4, label=f"{name}: trivial or unordered", **style)
                picture.zero_line(above, useless(), "uniform shares, no data")
                unordered = [100 * one.unusable(PROJECTED).unordered for one in own]
                style = {**STYLES[PROJECTED], "label": f"{PROJECTED}: unordered"}
                below.plot(clients, unordered, markersize=3, linestyle=":", **style)
                above.set_yscale("log")
                below.set_ylim(0, 102)
                above.set_title(f"ε = {at_least(epsilon)}{' (Figure 3)' if epsilon == FIGURE_3 else ''}")
                below.set_xlabel("clients")
                for axes in (above, below):
                    picture.log_ticks(axes, clients, [f"{n // 1000}k" if n >= 1000 else str(n) for n in clients])
            bottoms, tops = zip(*(axes.get_ylim() for axes in panels[0]), strict=True)
            for axes in panels[0]:
                axes.set_ylim(min(bottoms), max(tops))
            panels[0, 0].set_ylabel("mean RMSE, 95 % interval")
            panels[1, 0].set_ylabel("unusable, % of repeats")
            picture.legend(panels)
