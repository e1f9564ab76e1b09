"""Figures 4 and 5 as cells of work: a setting, a method and an ε, with all repeats of it.

A repeat is a split of the rows and a draw of the noise. Splits are the same for all methods and ε, so that methods are
compared in pairs; noise, chains and who reports when come from a stream of each cell's own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dca_proto.privacy.rounding import at_least
from inference.problem import stream
from papers.ldp2021.regression_data import ADULT, PUBLISHED, SETTINGS, Choices, Split, split
from papers.ldp2021.regression_methods import (
    BAYES,
    CLASSICAL,
    COROLLARY,
    INPUTS,
    INPUTS_2,
    INPUTS_4,
    NO_MODEL,
    ORDERS,
    PER_INPUT,
    SGD,
    SGD_ALL,
    TIGHT,
    WITHOUT_NOISE,
    Conditions,
    scored,
)
from papers.ldp2021.regression_reports import Terms

EPSILONS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8)
CHOICES = Choices()
DELTA, REPEATS, ITERATIONS, SHARE = 1e-5, 30, 600, 0.5
RATES = (0.1, 0.3, 3.0)
"""Of LDP-SGD beside the default of 1, for what would have been best in hindsight."""
RECORDS = 10_000
INPUT_EPSILONS = (0.8, 3.2, 12.8)
"""Of perturbed inputs: each of their likelihood's evaluations costs n rows, and not one sum."""


@dataclass(frozen=True)
class Task:
    """One of the two figures.

    Attributes:
        figure: as the paper numbers it. data: the data set's name. label: whether the target is one.
        methods: in the order of tables, those without noise last.
        small: the largest ε at which sufficient statistics are to be ahead of LDP-SGD. Of Adult the paper says 0.8; of
            wine it says only that ε is small.
    """

    figure: int
    data: str
    label: bool
    methods: tuple[str, ...]
    small: float

    @property
    def score(self) -> str:
        """What is measured."""
        return "AUC" if self.label else "test RMSE"


FIGURE_4 = Task(4, "wine", False, (TIGHT, COROLLARY, SGD, BAYES, CLASSICAL, NO_MODEL), 0.4)
FIGURE_5 = Task(5, ADULT, True, (TIGHT, COROLLARY, *ORDERS, SGD, SGD_ALL, BAYES, CLASSICAL, NO_MODEL), 0.8)


@dataclass(frozen=True)
class Cell:
    """What is run.

    Attributes:
        epsilon: 0 of methods without noise. rate: of LDP-SGD, where it is not the default.
        repeats: how many; a cell is the same with more of them.
    """

    setting: str
    method: str
    epsilon: float = 0.0
    rate: float | None = None
    repeats: int = field(default=1, compare=False)

    def __str__(self) -> str:
        return f"{self.name}, {self.repeats} repeats"

    @property
    def name(self) -> str:
        """In words, but for the repeats."""
        epsilon = f", epsilon = {at_least(self.epsilon)}" if self.epsilon else ""
        return f"{self.setting}, {self.method}{epsilon}" + (f", rate {self.rate:g}" if self.rate else "")

    @property
    def cost(self) -> float:
        """Roughly, to do what takes longest first."""
        weights = {INPUTS: 800.0, INPUTS_4: 120.0, INPUTS_2: 80.0, TIGHT: 2.0, COROLLARY: 2.0, BAYES: 1.0}
        weights |= {SGD: 0.2, SGD_ALL: 0.4}
        descended = self.method in (SGD, SGD_ALL)
        return self.repeats * weights.get(self.method, 0.01) * (min(self.epsilon, 3.0) if descended else 1.0)


@dataclass(frozen=True)
class Plan:
    """What is the same for all cells.

    Attributes:
        input_repeats: of perturbed inputs, by method; a method with none is left out.
    """

    task: Task
    folder: Path | None
    seed: int
    repeats: int = REPEATS
    input_repeats: tuple[tuple[str, int], ...] = ()
    epsilons: tuple[float, ...] = EPSILONS
    delta: float = DELTA
    iterations: int = ITERATIONS
    share: float = SHARE
    choices: Choices = CHOICES

    @property
    def settings(self) -> dict[str, Any]:
        """What the results depend on, as plain data."""
        return {
            "data": self.task.data,
            "seed": self.seed,
            "delta": self.delta,
            "iterations": self.iterations,
            "label_share": self.share,
            "components": self.choices.components,
            "norm_quantile": self.choices.quantile,
            "records_of_inputs_and_sgd": RECORDS if self.task.data == ADULT else None,
        }


def cells(plan: Plan, settings: Sequence[str] = SETTINGS) -> list[Cell]:
    """All of them. The paper's noise is of the paper's model, without an intercept, so only in its own setting."""
    return [
        Cell(setting, method, epsilon, rate, repeats)
        for setting in settings
        for method in plan.task.methods
        if method != COROLLARY or setting == PUBLISHED
        for epsilons, rates, repeats in [_extent(method, plan)]
        for rate in rates
        for epsilon in epsilons
        if repeats
    ]


def _extent(method: str, plan: Plan) -> tuple[Sequence[float], Sequence[float | None], int]:
    """ε, rates and repeats of a method."""
    if method in WITHOUT_NOISE:
        return (0.0,), (None,), plan.repeats
    if method in ORDERS:
        return INPUT_EPSILONS, (None,), dict(plan.input_repeats).get(method, 0)
    return plan.epsilons, (None, *RATES) if method == SGD else (None,), plan.repeats


def work(cell: Cell, plan: Plan) -> dict[str, Any]:
    """The scores of all repeats of a cell, and what its runs reported, one of each."""
    begun = time.perf_counter()
    conditions = Conditions(Terms(cell.epsilon, plan.delta), plan.task.label, cell.rate, plan.share, plan.iterations)
    found = []
    for repeat in range(cell.repeats):
        rng = stream(plan.seed, f"local/figure {plan.task.figure}/{cell.name}/{repeat}")
        found.append(scored(cell.method, rows_of(cell, plan, repeat), conditions, rng))
    reports = {name: [one.report[name] for one in found] for name in found[0].report}
    return {
        "scores": [one.score for one in found],
        "reports": reports,
        "wall_seconds": round(time.perf_counter() - begun, 2),
    }


def rows_of(cell: Cell, plan: Plan, repeat: int) -> Split:
    """Of a repeat; of Adult some methods have fewer, the same ones."""
    task = plan.task
    rows = split(task.data, plan.folder, cell.setting, repeat, plan.seed, plan.choices)
    if task.data != ADULT or cell.method not in PER_INPUT:
        return rows
    return rows.some(RECORDS, stream(plan.seed, f"local/records/{repeat}"))
