"""Figure 2 of the third paper: squared errors of θ and of predictions over ε, for J nodes, d = 2 and d = 5.

    estimation    mean over the coordinates of (θ̂ - θ)²             θ̂ the posterior mean
    prediction    E (xᵀθ̂ - xᵀθ)² = (θ̂ - θ)ᵀ Σ_x (θ̂ - θ)

For samplers the code averages the latter over draws of θ, the variance of the posterior included, and not so for
Bayes-fixedS-fast and adaSSP, while the paper says posterior mean. Both are recorded; as published is drawn as coded.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from dca_proto.privacy.rounding import at_least
from emulator.experiments import picture
from emulator.experiments.runner import Check, table
from papers.mcmc2023 import simulated
from papers.mcmc2023.data import PUBLISHED, VALID, Array
from papers.mcmc2023.drawing import FLOOR_STYLE, STYLES
from papers.mcmc2023.fits import SAMPLERS
from papers.mcmc2023.paper import ADASSP, FAST, FIXED_S
from papers.mcmc2023.simulated import DELTA, Plan, Work

ESTIMATION, PREDICTION, AVERAGED = "estimation", "prediction", "prediction over draws"
METHODS = (*SAMPLERS, FAST, ADASSP)
NEAR = 10.0
GROWTH = 1.5  # factor from one ε to the next, beyond which an error counts as growing
_PANEL = (4.2, 3.6)
_TITLES = {PUBLISHED: "as published, NOT private as claimed", VALID: "valid"}


def errors(work: Work, plan: Plan) -> dict[str, Any]:
    """Of one method at J nodes: a list over ε of a list over repeats, by measure; and what its sampler says."""
    began = time.perf_counter()
    of, found = simulated.population(work.d, plan.seed), simulated.run(work, plan)
    point = found.mean - of.theta
    measured = {ESTIMATION: (point**2).mean(axis=-1), PREDICTION: _predicted(point, of.Sigma_x)}
    averaged = measured[PREDICTION]
    if found.theta is not None:
        averaged = _predicted(found.theta - of.theta, of.Sigma_x).mean(axis=-1)
    measured[AVERAGED] = averaged
    seconds = round(time.perf_counter() - began, 2)
    return {**{name: values.tolist() for name, values in measured.items()}, **found.report, "wall_seconds": seconds}


def _predicted(error: Array, Sigma_x: Array) -> Array:
    return np.asarray(((error @ Sigma_x) * error).sum(axis=-1))


@dataclass(frozen=True)
class Curves:
    """All errors: by work, each measure's array of shape ``(ε, repeats)``; and what is known without privacy."""

    epsilons: tuple[float, ...]
    found: Mapping[Work, Mapping[str, Array]]
    floors: Mapping[int, Mapping[str, float]]
    zeros: Mapping[int, Mapping[str, float]]
    results: Mapping[Work, Mapping[str, Any]]

    def mean(self, work: Work, measure: str) -> Array:
        """Over repeats, shape ``(ε,)``."""
        return np.asarray(self.found[work][measure].mean(axis=1))

    def works(self, setting: str, d: int, nodes: int) -> list[Work]:
        """Those of one panel, by method."""
        return [one for one in self.found if (one.setting, one.d, one.nodes) == (setting, d, nodes)]

    def distinct(self, name: str) -> list[Any]:
        """The settings, d or nodes that there are."""
        return list(dict.fromkeys(getattr(one, name) for one in self.found))


def gathered(works: Sequence[Work], results: Sequence[Mapping[str, Any]], plan: Plan) -> Curves:
    """All results, with the errors of the non-private posterior mean and of predicting zero."""
    found = {
        work: {name: np.array(result[name]) for name in (ESTIMATION, PREDICTION, AVERAGED)}
        for work, result in zip(works, results, strict=True)
    }
    floors, zeros = {}, {}
    for d in dict.fromkeys(work.d for work in works):
        of = simulated.population(d, plan.seed)
        floors[d] = _measured(simulated.non_private(of)[0] - of.theta, of.Sigma_x)
        zeros[d] = _measured(of.theta, of.Sigma_x)
    return Curves(plan.epsilons, found, floors, zeros, dict(zip(works, results, strict=True)))


def _measured(error: Array, Sigma_x: Array) -> dict[str, float]:
    predicted = float(error @ Sigma_x @ error)
    return {ESTIMATION: float((error**2).mean()), PREDICTION: predicted, AVERAGED: predicted}


def drawn_measure(setting: str) -> str:
    """Which error of predictions is drawn."""
    return AVERAGED if setting == PUBLISHED else PREDICTION


def figures(curves: Curves) -> dict[str, Any]:
    """Everything that was found, as plain data."""
    names = (ESTIMATION, PREDICTION, AVERAGED)
    return {
        "kind": "mcmc-figure-2",
        "delta": DELTA,
        "rows": simulated.ROWS,
        "epsilons": list(curves.epsilons),
        "non_private": {str(d): dict(one) for d, one in curves.floors.items()},
        "zero_predictor": {str(d): dict(one) for d, one in curves.zeros.items()},
        "curves": [
            {
                **{key: value for key, value in curves.results[work].items() if key not in names},
                **vars(work),
                **{name: curves.mean(work, name).tolist() for name in names},
            }
            for work in curves.found
        ],
    }


def tables(curves: Curves) -> list[Table]:
    """One of each setting and measure."""
    return [
        _table(curves, setting, measure)
        for setting in curves.distinct("setting")
        for measure in (ESTIMATION, drawn_measure(setting))
    ]


def _table(curves: Curves, setting: str, measure: str) -> Table:
    title = f"{_TITLES[setting]}: mean squared error of {measure}; *: no better than zero"
    made = table(title, "d, J, method", *(f"ε = {at_least(epsilon)}" for epsilon in curves.epsilons))
    for d in curves.distinct("d"):
        for nodes in curves.distinct("nodes"):
            made.add_section()
            for work in curves.works(setting, d, nodes):
                row = (_cell(value, curves.zeros[d][measure]) for value in curves.mean(work, measure))
                made.add_row(f"{d}, {nodes}, {work.method}", *row)
        made.add_row(f"{d}, no privacy", f"{curves.floors[d][measure]:.2e}")
    return made


def _cell(value: float, zero: float) -> str:
    return f"[dim]{value:.2e}*[/]" if value >= zero else f"{value:.2e} "


def draw(curves: Curves, path: Path) -> None:
    """A picture of each setting: at the path, and beside it with the setting added to its name."""
    for place, setting in enumerate(curves.distinct("setting")):
        _draw(curves, setting, path if place == 0 else path.with_stem(f"{path.stem}-{setting.replace(' ', '-')}"))


def _draw(curves: Curves, setting: str, path: Path) -> None:
    rows = [(d, measure) for d in curves.distinct("d") for measure in (drawn_measure(setting), ESTIMATION)]
    nodes = curves.distinct("nodes")
    title = f"Errors on simulated data, n = {simulated.ROWS:,}, δ = {at_least(DELTA)}: {_TITLES[setting]}"
    with picture.drawing(path, rows=len(rows), columns=len(nodes), size=_PANEL, title=title) as panels:
        for line, (d, measure) in zip(panels, rows, strict=True):
            for axes, J in zip(line, nodes, strict=True):
                for work in curves.works(setting, d, J):
                    axes.plot(curves.epsilons, curves.mean(work, measure), label=work.method, **STYLES[work.method])
                axes.axhline(curves.floors[d][measure], label="no privacy", **FLOOR_STYLE)
                picture.zero_line(axes, curves.zeros[d][measure])
                axes.set(xscale="log", yscale="log", title=f"d = {d}, J = {J}")
                axes.set_xticks(curves.epsilons, [at_least(epsilon) for epsilon in curves.epsilons], minor=False)
                axes.minorticks_off()
            line[0].set_ylabel(f"{measure}: squared error")
        for axes in panels[-1]:
            axes.set_xlabel("ε")
        picture.legend(panels)


def checks(curves: Curves) -> list[Check]:
    """What Figure 2 must show."""
    return [*_falling(curves), *_near_floor(curves), *_against_adassp(curves)]


def _falling(curves: Curves) -> Iterator[Check]:
    for setting in curves.distinct("setting"):
        growing = []
        for work in curves.found:
            if work.setting == setting:
                means = curves.mean(work, ESTIMATION)
                growing += [str(work)] if means[-1] > means[0] or (means[1:] > GROWTH * means[:-1]).any() else []
        words = "; ".join(growing) or "everywhere"
        yield Check(f"errors fall with ε, {setting}", "for every method, d and J", words, not growing)


def _near_floor(curves: Curves) -> Iterator[Check]:
    for d in curves.distinct("d"):
        ends = [float(curves.mean(work, ESTIMATION)[-1]) for work in curves.works(PUBLISHED, d, 1)]
        if ends:
            floor = curves.floors[d][ESTIMATION]
            asked = f"the best within a factor of {NEAR:g} of no privacy, {floor:.1e}"
            found = f"{min(ends):.1e}"
            yield Check(f"as published, d = {d}, J = 1, largest ε", asked, found, min(ends) <= NEAR * floor)


def _against_adassp(curves: Curves) -> Iterator[Check]:
    for method in (FIXED_S, FAST):
        better = []
        for work in curves.found:
            if work.method == method and work.setting == PUBLISHED:
                other = Work(PUBLISHED, work.d, work.nodes, ADASSP)
                better += list(curves.mean(work, ESTIMATION) < curves.mean(other, ESTIMATION))
        if better:
            share = float(np.mean(better))
            asked = "in most cells (the paper: in almost all)"
            yield Check(f"{method} nearer than adaSSP, as published", asked, f"in {100 * share:.0f} %", share > 0.5)
