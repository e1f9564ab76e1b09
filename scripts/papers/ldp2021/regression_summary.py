"""Figures 4 and 5 from their cells: means and spreads, comparisons in pairs, plain data, tables, checks.

**Spread** is the standard deviation over repeats, as in the paper's figures. **Intervals** are Student's, over the
repeats' differences between two methods on the same rows, each at the level 1 - 0.05/K for the K comparisons of a
figure: so all of them hold together with a probability of 95 % (Bonferroni). They speak of splits and noise given this
one data set; as its splits overlap, they say less about others.

**Ahead** means that the whole interval of the advantage is above 0, **behind** that it is below; else it is open.

**At small ε** is asked of the mean over these ε, a number of each repeat, with an interval that holds in all settings
together: at a single ε noise differs so much between repeats that an interval joint with all others tells little.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from dca_proto.privacy.rounding import at_least
from emulator.experiments import student
from emulator.experiments.runner import Check, table
from inference.bounds import PUBLISHED_WITH_ROWS
from inference.draws import R_HAT_REQUIRED
from papers.ldp2021.regression_data import PUBLISHED, VALID, WINE, Array
from papers.ldp2021.regression_methods import (
    BAYES,
    CLASSICAL,
    COROLLARY,
    NO_MODEL,
    ORDERS,
    SGD,
    SGD_ALL,
    TIGHT,
    WITHOUT_NOISE,
)
from papers.ldp2021.regression_work import RATES, RECORDS, Cell, Plan, Task

HINDSIGHT = "LDP-SGD, best rate in hindsight"
OPPONENTS = (SGD, SGD_ALL, HINDSIGHT, COROLLARY, *ORDERS, NO_MODEL)
"""What the sufficient statistics with tight noise are compared with, at each ε."""
JOINT_LEVEL = 0.95
NEAR = {True: 0.02, False: 0.05}
"""How near to no privacy the largest ε brings the AUC, or the RMSE as a part of it."""
TITLES = {PUBLISHED: "as published (centring and components read from the rows: NOT private)", VALID: "valid"}


@dataclass(frozen=True)
class Comparison:
    """By how much sufficient statistics are better than an opponent, in units of the score; its joint interval."""

    setting: str
    opponent: str
    epsilon: float
    mean: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """See the head of this file."""
        return "ahead" if self.low > 0 else "behind" if self.high < 0 else "open"


@dataclass(frozen=True)
class Results:
    """All scores, ``(repeats,)`` of each cell, and what the runs reported."""

    plan: Plan
    scores: Mapping[Cell, Array]
    reports: Mapping[Cell, Mapping[str, list[Any]]]

    @property
    def task(self) -> Task:
        return self.plan.task

    @property
    def settings(self) -> list[str]:
        """Those that there are."""
        return list(dict.fromkeys(cell.setting for cell in self.scores))

    def methods(self, setting: str) -> list[str]:
        """Those of a setting, in the order of tables."""
        own = dict.fromkeys(cell.method for cell in self.scores if cell.setting == setting)
        return [method for method in (*self.task.methods[:-3], HINDSIGHT, *WITHOUT_NOISE) if self._has(method, own)]

    @staticmethod
    def _has(method: str, own: Mapping[str, None]) -> bool:
        return (SGD if method == HINDSIGHT else method) in own

    def epsilons(self, setting: str, method: str) -> list[float]:
        """At which a method was run."""
        name = SGD if method == HINDSIGHT else method
        found = {cell.epsilon for cell in self.scores if (cell.setting, cell.method) == (setting, name)}
        return sorted(found - {0.0})

    def of(self, setting: str, method: str, epsilon: float = 0.0) -> Array:
        """The scores of a method; of one without noise at whatever ε."""
        if method == HINDSIGHT:
            return self.scores[self.best(setting, epsilon)]
        return self.scores[Cell(setting, method, 0.0 if method in WITHOUT_NOISE else epsilon)]

    def best(self, setting: str, epsilon: float) -> Cell:
        """LDP-SGD at the rate that has the best mean, of those that were run."""
        asked = [Cell(setting, SGD, epsilon, rate) for rate in (None, *RATES)]
        return max((one for one in asked if one in self.scores), key=lambda one: self.sign * self.scores[one].mean())

    @property
    def sign(self) -> int:
        """1 where higher scores are better, else -1."""
        return 1 if self.task.label else -1

    def non_private(self, setting: str) -> str:
        """The better one of the two without privacy."""
        return max((BAYES, CLASSICAL), key=lambda one: self.sign * self.of(setting, one).mean())


def gathered(cells: Sequence[Cell], results: Sequence[Mapping[str, Any]], plan: Plan) -> Results:
    """All cells with their results."""
    scores = {cell: np.array(result["scores"]) for cell, result in zip(cells, results, strict=True)}
    return Results(plan, scores, {cell: one["reports"] for cell, one in zip(cells, results, strict=True)})


def comparisons(found: Results) -> list[Comparison]:
    """Of sufficient statistics with each opponent, at each ε and in each setting; their intervals hold together."""
    asked = [
        (setting, opponent, epsilon)
        for setting in found.settings
        for opponent in OPPONENTS
        if opponent in found.methods(setting)
        for epsilon in found.epsilons(setting, TIGHT)
        if opponent == NO_MODEL or epsilon in found.epsilons(setting, opponent)
    ]
    return [
        Comparison(*one, *advantage(found.of(one[0], TIGHT, one[2]), found.of(*one), found.sign, len(asked)))
        for one in asked
    ]


def advantage(first: Array, second: Array, sign: int, count: int) -> tuple[float, float, float]:
    """Mean of sign·(first - second) over the repeats that both have, and its joint interval, of `count`.

    With fewer than two repeats it is unbounded.
    """
    repeats = min(len(first), len(second))
    differences = sign * (first[:repeats] - second[:repeats])
    mean = float(differences.mean())
    reach = student.t_half_width(differences, JOINT_LEVEL, count)
    return mean, mean - reach, mean + reach


def turn(made: Sequence[Comparison]) -> str:
    """In words, at which ε sufficient statistics are ahead of one opponent, and at which behind."""
    by_verdict = {
        verdict: [at_least(one.epsilon) for one in made if one.verdict == verdict]
        for verdict in ("ahead", "open", "behind")
    }
    return "; ".join(f"{verdict} at ε = {', '.join(those)}" for verdict, those in by_verdict.items() if those)


# --- as data and tables -----------------------------------------------------------------------------------------------


def figures(found: Results, made: Sequence[Comparison]) -> dict[str, Any]:
    """Everything that was found, as plain data."""
    return {
        "kind": f"ldp-figure-{found.task.figure}",
        "not_private_because": [PUBLISHED_WITH_ROWS] if found.task.data == WINE else [],
        "score": found.task.score,
        "spread": "standard deviation over repeats (splits and noise)",
        "epsilons": list(found.plan.epsilons),
        "cells": [
            {
                "setting": cell.setting,
                "method": cell.method,
                "epsilon": cell.epsilon or None,
                "rate": cell.rate,
                "mean": float(scores.mean()),
                "sd": spread(scores),
                "scores": scores.tolist(),
                "reports": dict(found.reports[cell]),
            }
            for cell, scores in found.scores.items()
        ],
        "joint_level": JOINT_LEVEL,
        "advantage_of_sufficient_statistics": [
            {**vars(one), "low": _finite(one.low), "high": _finite(one.high), "verdict": one.verdict} for one in made
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def spread(scores: Array) -> float:
    """Standard deviation over repeats; 0 of one repeat."""
    return float(scores.std(ddof=1)) if len(scores) > 1 else 0.0


def tables(found: Results, made: Sequence[Comparison]) -> list[Table]:
    """Scores and comparisons of each setting."""
    return [one for setting in found.settings for one in (_scores(found, setting), _compared(made, setting))]


def _scores(found: Results, setting: str) -> Table:
    epsilons = [f"ε = {at_least(epsilon)}" for epsilon in found.plan.epsilons]
    title = f"{found.task.data}, {TITLES[setting]}: {found.task.score}, mean ± standard deviation over repeats"
    made = table(title, "method", *epsilons)
    for method in found.methods(setting):
        if method in WITHOUT_NOISE:
            made.add_row(method, _shown(found.of(setting, method)))
        else:
            own = found.epsilons(setting, method)
            values = (found.of(setting, method, at) if at in own else None for at in found.plan.epsilons)
            made.add_row(method, *("" if one is None else _shown(one) for one in values))
    return made


def _shown(scores: Array) -> str:
    return f"{scores.mean():.3f} ± {spread(scores):.3f}"


def _compared(made: Sequence[Comparison], setting: str) -> Table:
    epsilons = list(dict.fromkeys(one.epsilon for one in made))
    title = f"{setting}: advantage of {TIGHT} in pairs, joint {100 * JOINT_LEVEL:g} % intervals (+ ahead, - behind)"
    shown = table(title, "over", *(f"ε = {at_least(epsilon)}" for epsilon in epsilons))
    for opponent in dict.fromkeys(one.opponent for one in made if one.setting == setting):
        own = {one.epsilon: one for one in made if (one.setting, one.opponent) == (setting, opponent)}
        shown.add_row(opponent, *(_marked(own[at]) if at in own else "" for at in epsilons))
    return shown


def _marked(one: Comparison) -> str:
    mark = {"ahead": " +", "behind": " -", "open": ""}[one.verdict]
    return f"{one.mean:.3f} ({one.low:.3f}, {one.high:.3f}){mark}"


# --- checks -----------------------------------------------------------------------------------------------------------


def checks(found: Results, made: Sequence[Comparison]) -> list[Check]:
    """What the figure must show; a reader of the paper would expect each of it."""
    return [*_order(found, made), *_non_private(found), *_near(found), *_mixed(found)]


def _order(found: Results, made: Sequence[Comparison]) -> Iterator[Check]:
    for setting in found.settings:
        own = [one for one in made if (one.setting, one.opponent) == (setting, SGD)]
        small = [one for one in own if one.epsilon <= found.task.small]
        mean, low, high = _over(found, setting, [one.epsilon for one in small])
        records = f" of {RECORDS:,} records" if found.task.label else ""
        name = f"{TIGHT} ahead of {SGD}{records} over ε <= {at_least(found.task.small)}, {setting}"
        words = f"{mean:.3f} ({low:.3f}, {high:.3f}); {turn(own)}"
        yield Check(
            name,
            "the mean's whole interval above 0, and behind at none of these ε",
            words,
            low > 0 and all(one.verdict != "behind" for one in small),
        )
        last = max(own, key=lambda one: one.epsilon)
        if not found.task.label:
            words = f"{last.mean:.3f} ({last.low:.3f}, {last.high:.3f})"
            name = f"{SGD} catches up at ε = {at_least(last.epsilon)}, {setting}"
            yield Check(name, "the advantage's interval reaches 0 or less", words, last.low <= 0)


def _over(found: Results, setting: str, epsilons: Sequence[float]) -> tuple[float, float, float]:
    """Mean over these ε of the advantage over LDP-SGD, and its interval, joint over settings."""
    scores = ([found.of(setting, method, epsilon) for epsilon in epsilons] for method in (TIGHT, SGD))
    first, second = (np.mean(one, axis=0) for one in scores)
    return advantage(first, second, found.sign, len(found.settings))


def _non_private(found: Results) -> Iterator[Check]:
    for setting in found.settings:
        best = found.non_private(setting)
        private = [method for method in found.methods(setting) if method not in WITHOUT_NOISE]
        pairs = [(method, epsilon) for method in private for epsilon in found.epsilons(setting, method)]
        above = []
        for method, epsilon in pairs:
            gap = advantage(found.of(setting, best), found.of(setting, method, epsilon), found.sign, len(pairs))
            above += [f"{method} at ε = {at_least(epsilon)} by {-gap[0]:.4f}"] if gap[2] < 0 else []
        yield Check(
            f"{best} is best, {setting}",
            "nothing private ahead of it (joint intervals)",
            "; ".join(above) or "nothing",
            not above,
        )


def _near(found: Results) -> Iterator[Check]:
    """As ε grows, sufficient statistics come near to the same model without noise; valid bounds leave more noise."""
    if PUBLISHED in found.settings:
        last = max(found.plan.epsilons)
        exact = float(found.of(PUBLISHED, BAYES).mean())
        gap = found.sign * (exact - float(found.of(PUBLISHED, TIGHT, last).mean()))
        near = NEAR[found.task.label] * (1.0 if found.task.label else exact)
        name = f"{TIGHT} near {BAYES} at ε = {at_least(last)}, {PUBLISHED}"
        yield Check(name, f"within {near:.3f}", f"{gap:.4f}", gap <= near)


def _mixed(found: Results) -> Iterator[Check]:
    largest = [(max(reports["r_hat"]), str(cell)) for cell, reports in found.reports.items() if "r_hat" in reports]
    if largest:
        r_hat, cell = max(largest)
        asked = f"below {R_HAT_REQUIRED:g} in all runs"
        yield Check("R-hat", asked, f"{r_hat:.3f} at most ({cell})", r_hat < R_HAT_REQUIRED)
