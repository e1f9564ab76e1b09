"""Figures 3 and 9: shares of a histogram as posterior means, against point estimates projected onto the simplex.

n clients hold one of three categories with probabilities 0.7, 0.2, 0.1 and tell it by optimal unary encoding. Of the
same reports are made

    posterior mean    uniform prior, noise in the model (section 11)
    projected         the unbiased estimate (9), as errata 1 has it, and then its nearest point on the simplex in least
                      squares (`inference.simplex`; the paper's "L2 approximation")
    uniform           1/3 each: the prior's mean, which needs no data. What is worse is useless

**Error.** The root mean squared error over the three shares against the true *probabilities*, as in the paper; its mean
over repeats. Reduction is by how much the posterior mean's is smaller, 1 - posterior/projected, with Student's interval
of the ratio over pairs (linearised). The paper has 50 repeats; here are `REPEATS`, of which the first 50 are told
apart, since 50 leave an interval of ±0.14, as wide as what is to be shown.

**Unusable.** *Trivial*: a share is 0 (below 1e-9). A posterior mean lies inside the simplex, and so never is.
*Unordered*: the shares are not in the order of the true ones. The paper does not define the two further.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from dca_proto.local import UnaryEncoding
from dca_proto.privacy.rounding import at_least
from emulator.experiments import picture, student
from emulator.experiments.runner import Check, table
from inference.models import fit as fits
from inference.problem import stream
from inference.simplex import nearest_on_simplex
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

TRUE = (0.7, 0.2, 0.1)
CLIENTS = (100, 200, 500, 1000, 2000, 5000, 10_000)
REPEATS, PUBLISHED_REPEATS = 200, 50
FIGURE_3, SMALL = 0.5, 1000
"""The ε of Figure 3, and the largest n at which the paper has the posterior mean ahead."""
JOINT_LEVEL = 0.95
NO_SHARE = 1e-9
POSTERIOR, PROJECTED = "posterior mean", "projected"
QUICK_REPEATS, QUICK_CLIENTS, QUICK_EPSILONS = 10, (200, 1000), (0.5,)
STYLES: Mapping[str, Mapping[str, Any]] = {
    POSTERIOR: {"color": picture.BLUE, "marker": "o"},
    PROJECTED: {"color": picture.VERMILION, "marker": "s"},
}
_PANEL, _WIDTH_MIN = (3.4, 3.4), 9.0


@dataclass(frozen=True)
class Plan:
    """What is run."""

    seed: int
    repeats: int = REPEATS
    clients: tuple[int, ...] = CLIENTS
    epsilons: tuple[float, ...] = EPSILONS
    iterations: int = ITERATIONS

    @classmethod
    def quick(cls, seed: int) -> Plan:
        """A look."""
        return cls(seed, QUICK_REPEATS, QUICK_CLIENTS, QUICK_EPSILONS, QUICK_ITERATIONS)


@dataclass(frozen=True)
class Cell:
    """All repeats at an ε and a number of clients."""

    epsilon: float
    clients: int

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:g}, {self.clients} clients"


def cells(plan: Plan) -> list[Cell]:
    """All of them."""
    return [Cell(epsilon, clients) for epsilon in plan.epsilons for clients in plan.clients]


def work(cell: Cell, plan: Plan) -> dict[str, Any]:
    """Of each repeat: both estimates of the shares, and how the fit went."""
    found: dict[str, Any] = {POSTERIOR: [], PROJECTED: [], "fits": []}
    mechanism = UnaryEncoding(cell.epsilon, len(TRUE))
    for repeat in range(plan.repeats):
        rng = stream(plan.seed, f"local/figure 3/{cell}/{repeat}")
        told = bit_reports(rng.choice(len(TRUE), cell.clients, p=TRUE), mechanism, rng)
        posterior, diagnosis = mixed(partial(fits.histogram, told), plan.iterations, int(rng.integers(2**31)))
        found[POSTERIOR].append(np.round(posterior.mean["shares"], 7).tolist())
        projected = nearest_on_simplex(mechanism.estimate(told.values).mean, 1.0)
        found[PROJECTED].append(np.round(projected, 12).tolist())
        found["fits"].append(diagnosis)
    return found


class Unusable(NamedTuple):
    """Shares of the repeats: with a share of 0, all in one category (a part of these), out of order, any of these."""

    trivial: float
    one_category: float
    unordered: float
    either: float


def errors(estimates: Array) -> Array:
    """Of each repeat, from shape ``(repeats, 3)``."""
    found: Array = np.sqrt(np.mean((estimates - TRUE) ** 2, axis=1))
    return found


def unusable(estimates: Array) -> Unusable:
    """From shape ``(repeats, 3)``."""
    trivial, single = (estimates < NO_SHARE).any(axis=1), (estimates > 1 - NO_SHARE).any(axis=1)
    unordered = np.any(np.diff(estimates, axis=1) >= 0, axis=1)
    return Unusable(*(float(one.mean()) for one in (trivial, single, unordered, trivial | unordered)))


class Reduction(NamedTuple):
    """By which part the posterior mean's error is smaller, and its interval."""

    mean: float
    low: float
    high: float


def reduction_of(posterior: Array, projected: Array, count: int) -> Reduction:
    """Of paired errors, shape ``(repeats,)``, with an interval that holds together with so many others."""
    ratio = float(posterior.mean() / projected.mean())
    residuals = (posterior - ratio * projected) / projected.mean()
    reach = student.t_half_width(residuals, JOINT_LEVEL, count)
    return Reduction(1 - ratio, 1 - ratio - reach, 1 - ratio + reach)


@dataclass(frozen=True, eq=False)
class Compared:
    """A cell: both methods' estimates, shape ``(repeats, 3)``, and how the fits went."""

    cell: Cell
    estimates: Mapping[str, Array]
    fits: Sequence[Diagnosis]

    def reduction(self, count: int, repeats: int | None = None) -> Reduction:
        """Of the first so many repeats, or of all."""
        posterior, projected = (errors(self.estimates[name][:repeats]) for name in (POSTERIOR, PROJECTED))
        return reduction_of(posterior, projected, count)

    @property
    def judged(self) -> bool:
        """Whether it is one of which the paper has the posterior mean ahead."""
        return self.cell.epsilon == FIGURE_3 and self.cell.clients <= SMALL


def gathered(cells: Sequence[Cell], results: Sequence[Mapping[str, Any]]) -> list[Compared]:
    """All cells with their results."""
    return [
        Compared(
            cell,
            {name: np.array(result[name]) for name in (POSTERIOR, PROJECTED)},
            [Diagnosis(*one) for one in result["fits"]],
        )
        for cell, result in zip(cells, results, strict=True)
    ]


def joint(found: Sequence[Compared]) -> int:
    """How many intervals hold together: those of the cells that are judged."""
    return max(1, sum(one.judged for one in found))


def useless() -> float:
    """The error of uniform shares."""
    return float(errors(np.full((1, len(TRUE)), 1 / len(TRUE)))[0])


def figures(found: Sequence[Compared], plan: Plan) -> dict[str, Any]:
    """Everything, as plain data."""
    count = joint(found)
    return {
        "kind": "ldp-figure-3",
        "true": list(TRUE),
        "repeats": plan.repeats,
        "iterations": plan.iterations,
        "joint_level": JOINT_LEVEL,
        "joint_intervals": count,
        "error_of_uniform_shares": useless(),
        "fits": described([fit for one in found for fit in one.fits]),
        "cells": [
            {
                "epsilon": one.cell.epsilon,
                "clients": one.cell.clients,
                "judged": one.judged,
                "rmse": {name: float(errors(estimates).mean()) for name, estimates in one.estimates.items()},
                "unusable": {name: unusable(estimates)._asdict() for name, estimates in one.estimates.items()},
                "reduction": one.reduction(count)._asdict(),
                f"reduction_of_first_{PUBLISHED_REPEATS}": one.reduction(count, PUBLISHED_REPEATS)._asdict(),
            }
            for one in found
        ],
    }


def tables(found: Sequence[Compared]) -> list[Table]:
    """One for each ε."""
    return [
        _table([one for one in found if one.cell.epsilon == epsilon], joint(found))
        for epsilon in dict.fromkeys(one.cell.epsilon for one in found)
    ]


def _table(found: Sequence[Compared], count: int) -> Table:
    title = f"ε = {at_least(found[0].cell.epsilon)}: RMSE (uniform shares {useless():.3f}), unusable solutions in %"
    heads = [POSTERIOR, PROJECTED, "reduction", "unordered", f"unordered, {PROJECTED}", "a share of 0", "in one"]
    shown = table(title, "clients", *heads)
    for one in found:
        rmse = [f"{errors(one.estimates[name]).mean():.4f}" for name in (POSTERIOR, PROJECTED)]
        less, bad, worse = one.reduction(count), *(unusable(one.estimates[name]) for name in (POSTERIOR, PROJECTED))
        words = f"{less.mean:.1%} ({less.low:.1%}, {less.high:.1%})"
        rest = [f"{100 * part:.0f}" for part in (bad.unordered, worse.unordered, worse.trivial, worse.one_category)]
        shown.add_row(f"{one.cell.clients:,}", *rmse, words, *rest)
    return shown


def checks(found: Sequence[Compared]) -> Iterator[Check]:
    """The posterior mean is the better estimate where reports are few."""
    count = joint(found)
    for one in found:
        if one.judged:
            less = one.reduction(count)
            name = f"{POSTERIOR} ahead, ε = {at_least(FIGURE_3)}, n = {one.cell.clients:,}"
            words = f"{less.mean:.1%} ({less.low:.1%}, {less.high:.1%}) lower; the paper: 10 to 30 %"
            yield Check(name, f"whole joint {JOINT_LEVEL:.0%} interval above 0", words, less.low > 0)
    worse = [str(one.cell) for one in found if one.reduction(len(found)).high < 0]
    yield Check("behind nowhere", f"no joint {JOINT_LEVEL:.0%} interval below 0", "; ".join(worse) or "none", not worse)
    more = [str(one.cell) for one in found if one.judged and _either(one, POSTERIOR) > _either(one, PROJECTED)]
    asked = f"the posterior mean's no more often, ε = {at_least(FIGURE_3)}, n up to {SMALL:,}"
    yield Check("unusable solutions", asked, "; ".join(more) or "so it is", not more)
    yield check_mixed([fit for one in found for fit in one.fits])


def _either(one: Compared, method: str) -> float:
    return unusable(one.estimates[method]).either


def draw(path: Path, found: Sequence[Compared]) -> None:
    """A column for each ε: errors above, unusable solutions below, over the number of clients."""
    epsilons = list(dict.fromkeys(one.cell.epsilon for one in found))
    title = f"Unary encoding, true shares {', '.join(map(str, TRUE))}: {len(found[0].fits)} repeats"
    size = (max(_PANEL[0], _WIDTH_MIN / len(epsilons)), _PANEL[1])
    with picture.drawing(path, rows=2, columns=len(epsilons), size=size, title=title) as panels:
        for place, epsilon in enumerate(epsilons):
            own, (above, below) = [one for one in found if one.cell.epsilon == epsilon], panels[:, place]
            _draw_errors(above, own)
            _draw_unusable(below, own)
            above.set_title(f"ε = {at_least(epsilon)}{' (Figure 3)' if epsilon == FIGURE_3 else ''}")
            below.set_xlabel("clients")
            for axes in (above, below):
                axes.set_xscale("log")
                axes.set_xticks([one.cell.clients for one in own], [_short(one.cell.clients) for one in own])
                axes.minorticks_off()
        bottoms, tops = zip(*(axes.get_ylim() for axes in panels[0]), strict=True)
        for axes in panels[0]:
            axes.set_ylim(min(bottoms), max(tops))
        panels[0, 0].set_ylabel("mean RMSE, 95 % interval")
        panels[1, 0].set_ylabel("unusable, % of repeats")
        picture.legend(panels)


def _short(clients: int) -> str:
    return f"{clients // 1000}k" if clients >= 1000 else str(clients)


def _draw_errors(axes: Any, own: Sequence[Compared]) -> None:
    clients = [one.cell.clients for one in own]
    for name, style in STYLES.items():
        values = [errors(one.estimates[name]) for one in own]
        bars = [1.96 * one.std(ddof=1) / math.sqrt(len(one)) for one in values]
        axes.errorbar(clients, [one.mean() for one in values], yerr=bars, label=name, capsize=2, markersize=4, **style)
    picture.zero_line(axes, useless(), "uniform shares, no data")
    axes.set_yscale("log")


def _draw_unusable(axes: Any, own: Sequence[Compared]) -> None:
    """Of the posterior mean the wrong order alone can be."""
    clients = [one.cell.clients for one in own]
    for name, style in STYLES.items():
        either = [100 * unusable(one.estimates[name]).either for one in own]
        axes.plot(clients, either, markersize=4, label=f"{name}: trivial or unordered", **style)
    unordered = [100 * unusable(one.estimates[PROJECTED]).unordered for one in own]
    words = f"{PROJECTED}: unordered"
    axes.plot(clients, unordered, markersize=3, linestyle=":", label=words, **STYLES[PROJECTED])
    axes.set_ylim(0, 102)
