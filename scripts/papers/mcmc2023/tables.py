"""Cells of Tables 1 and 2: a setting, a data set, J nodes and a method, with all repeats at once; and what one finds.

Methods of one setting, data set and J see the same releases, but those that have their own: MCMC-B&S and adaSSP.
Beside the paper's five there are least squares without privacy, and the zero predictor: the mean of all rows as
published, of those learnt from in the valid setting. What errs more than it is useless.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dca_proto.privacy.budget import Budget
from inference.models.linear.nodes.fixed_s_fast import SD, VARIANCE, crude_sigma_y2
from inference.models.linear.nodes.observed import NodeStatistics, Prior, nodes_of, prior_of
from inference.problem import stream
from papers.mcmc2023 import data, fits, releases
from papers.mcmc2023.data import AIR_QUALITY, BIKE, POWER_PLANT, PUBLISHED, ROAD, Array
from papers.mcmc2023.data import Statistics as Sums
from papers.mcmc2023.fits import COSTS, SAMPLERS, Length
from papers.mcmc2023.paper import ADASSP, BERNSTEIN_SHELDON, FAST, FIXED_S, NORMAL_X

EPSILON = 1.0
NON_PRIVATE, ZERO = "least squares, no privacy", "zero predictor"
METHODS = (NORMAL_X, FIXED_S, FAST, BERNSTEIN_SHELDON, ADASSP, NON_PRIVATE, ZERO)
_FEATURES = {POWER_PLANT: 4, BIKE: 14, AIR_QUALITY: 12, ROAD: 3}


@dataclass(frozen=True)
class Cell:
    """All repeats of one method.

    Attributes:
        iterations: of a sampler; 0 of other methods.
    """

    setting: str
    name: str
    nodes: int
    method: str
    iterations: int = 0

    def __str__(self) -> str:
        length = f", {self.iterations} iterations" if self.iterations else ""
        return f"{self.setting}, {self.name}, J = {self.nodes}, {self.method}{length}"

    @property
    def cost(self) -> float:
        """Roughly, to do what takes longest first."""
        return COSTS.get(self.method, 0.0) * self.iterations * self.nodes * (4 + _FEATURES[self.name]) ** 2


@dataclass(frozen=True)
class Plan:
    """What is the same for all cells: the seed of all streams, the folder of the data or None, how many repeats."""

    seed: int
    folder: Path | None
    repeats: int


Released = tuple[NodeStatistics, Prior]


class Case(NamedTuple):
    """One repeat.

    Attributes:
        learnt: exact sums of the nodes. test: of the rows to predict, as of one node.
        unit: of the target in published units. bound_x, bound_y: of rows. epsilon, delta: what S and z may cost.
        released: what the nodes released and the prior, for the methods that learn from it.
    """

    learnt: Sums
    test: Sums
    unit: float
    bound_x: float
    bound_y: float
    epsilon: float
    delta: float
    released: Released | None

    def error(self, theta: Array) -> float:
        """Mean squared error of predictions, in published units."""
        S, z, u = self.test.S[0], self.test.z[0], self.test.u[0]
        return float(self.unit**2 * (u - 2 * theta @ z + theta @ S @ theta) / self.test.n[0])


def work(cell: Cell, plan: Plan) -> dict[str, Any]:
    """The errors of a cell's repeats, and what its sampler says."""
    began = time.perf_counter()
    cases = list((_published if cell.setting == PUBLISHED else _valid)(cell, plan))
    theta, report = _estimates(cell, plan, cases)
    errors = [case.error(one) for case, one in zip(cases, theta, strict=True)]
    return {"errors": errors, **report, "wall_seconds": round(time.perf_counter() - began, 2)}


def _published(cell: Cell, plan: Plan) -> Iterator[Case]:
    rows = _rows(cell.name, plan.folder)
    X, Y, delta, d = rows.bound_x, rows.bound_y, rows.delta, rows.X.shape[1]
    learnt, test = Sums.of(rows.X, rows.y, cell.nodes), Sums.of(rows.X_test, rows.y_test, 1)
    square = cell.method == BERNSTEIN_SHELDON
    rng = stream(plan.seed, f"distributed/noise/{cell.name}/{cell.nodes}/{square}")
    V = stream(plan.seed, f"distributed/V/{cell.name}").standard_normal((d, d))
    prior = Prior.published(d, V.T @ V)
    for _ in range(plan.repeats):
        observed = releases.published(learnt, X, Y, EPSILON, delta, rng, square)
        yield Case(learnt, test, 1.0, X, Y, EPSILON, delta, (observed, prior))


@lru_cache(maxsize=4)
def _rows(name: str, folder: Path | None) -> data.Published:
    return data.published(name, folder)


def _valid(cell: Cell, plan: Plan) -> Iterator[Case]:
    for repeat in range(plan.repeats):
        rows = data.valid(cell.name, plan.folder, repeat, plan.seed)
        square = cell.method == BERNSTEIN_SHELDON
        random = stream(plan.seed, f"distributed/valid/{cell.name}/{cell.nodes}/{square}/{repeat}").bytes
        rounds = releases.Rounds(rows, cell.nodes, EPSILON, random)
        means = rows.means if cell.method in (NON_PRIVATE, ZERO) else rounds.means()
        released = rounds.regression(means, target_square=square) if cell.method in (*SAMPLERS, FAST) else None
        learnt = None if released is None else (nodes_of(released), prior_of(released))
        yield _valid_case(cell, rows, means, learnt)


def _valid_case(cell: Cell, rows: data.Valid, means: Array, released: Released | None) -> Case:
    learnt = Sums.of(*rows.standardised(rows.rows, means, rows.radius), cell.nodes)
    test = Sums.of(*rows.standardised(rows.tested, means), 1)
    left = Budget(EPSILON, rows.delta).share(1 - releases.MEANS_SHARE).epsilon
    return Case(learnt, test, rows.unit, rows.radius, 1 + abs(float(means[-1])), left, rows.delta, released)


def _estimates(cell: Cell, plan: Plan, cases: list[Case]) -> tuple[Array, dict[str, Any]]:
    """θ of all repeats, shape ``(R, d)``, and a report."""
    first, method, is_published = cases[0], cell.method, cell.setting == PUBLISHED
    if method == ZERO:
        return np.zeros((len(cases), first.learnt.z.shape[1])), {}
    if method == NON_PRIVATE:
        return np.stack([np.linalg.solve(case.learnt.S.sum(axis=0), case.learnt.z.sum(axis=0)) for case in cases]), {}
    if method == ADASSP:
        rng = stream(plan.seed, f"distributed/adaSSP/{cell.setting}/{cell.name}/{cell.nodes}")
        return np.stack([_adassp(case, is_published, rng) for case in cases]), {}
    problems, priors = zip(*(case.released for case in cases if case.released is not None), strict=True)
    if method == FAST:
        sigma_y2 = [crude_sigma_y2(case.bound_y, VARIANCE if is_published else SD) for case in cases]
        return fits.fast(problems, priors, sigma_y2)[0], {}
    length, bound_y = Length(cell.iterations), first.bound_y if is_published else None
    found = fits.sampled(method, problems, priors, length, plan.seed, bound_y)
    return found.theta.mean(axis=1), found.report


def _adassp(case: Case, is_published: bool, rng: np.random.Generator) -> Array:
    of_rows = (case.bound_x, case.bound_y, is_published)
    return releases.adassp_estimate(case.learnt, *of_rows, case.epsilon, case.delta, rng)
