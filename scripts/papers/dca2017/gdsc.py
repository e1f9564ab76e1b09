"""Figure 3 of the DCA paper: how well drug sensitivity is predicted from gene expression (valid setting).

For each drug and each of 25 cross-validation runs: 100 cell lines to test on, all others to learn from, and Spearman's
rank correlation of the predicted with the measured LN_IC50. A figure's point is the mean over the runs of the mean over
the drugs, and its bar the standard deviation over the runs. A constant prediction, which uses no features, ranks
nothing: its correlation is 0.

    NP               no privacy: least squares on the raw rows
    proj NP          no noise in the regression: what the projection of proj DDP alone costs
    TA, DDP          one round in the assumed bounds; a trusted aggregator's noise, or the clients' shares
    proj TA,         two rounds: Algorithm 2, with centres from its first one. The search for thresholds sees no data,
    proj DDP         so that all runs share what it found for about as many rows
    ball DDP         one round in the assumed bounds and in the unit ball, which every row is in after it was scaled:
                     not in the paper, and less noise than either needs
    input perturbed  each client adds noise to its own row

Valid means: public centres, bounds that hold by projection, noise calibrated exactly, and both rounds in one budget.
The published run centred the rows by their own means, and took a bound for TA and DDP from the data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from scipy.stats import rankdata

from dca_proto.learning.forecast import EXACT
from dca_proto.learning.job import JobTerms
from dca_proto.privacy.budget import Budget
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.privacy.rounding import at_least
from emulator.experiments.picture import COLOURS, MARKERS, drawing, zero_line
from emulator.ideal import IdealSwarm
from inference.errors import DataError
from inference.models.coefficients import Coefficients
from inference.models.linear.one_round import regression_in_bounds
from inference.models.linear.two_rounds import regression_with_projection
from inference.problem import Array, Problem, Schema, split, stream
from inference.rounds import Job
from papers.dca2017.baselines import ByRounds, InputPerturbation, Method, NonPrivate
from papers.dca2017.gdsc_files import GENES, Gdsc, read_gdsc
from papers.dca2017.unnoised import Silent, Unnoised

R = TypeVar("R")

EPSILONS = (1.0, 3.0, 5.0, 7.5, 10.0)
DELTA = 1e-4  # Figure 3 says so; the published run had 1e-3
RUNS = 25
TEST_ROWS = 100
COMPUTES = tuple(bytes([index]) * 16 for index in range(10))

NP, TA, DDP, PROJ_TA, PROJ_DDP, INPUT, BALL = "NP", "TA", "DDP", "proj TA", "proj DDP", "input perturbed", "ball DDP"
PROJ_NP = "proj NP"
METHODS = (NP, TA, DDP, PROJ_TA, PROJ_DDP, INPUT, BALL, PROJ_NP)
SELECTED = (NP, DDP, PROJ_DDP, INPUT, BALL)  # panel b of the figure


@dataclass(frozen=True)
class Cell:
    """One drug in one cross-validation run."""

    drug: str
    number: int

    def __str__(self) -> str:
        return f"drug {self.drug}, run {self.number}"


@dataclass(frozen=True)
class Setting:
    """What all cells share.

    Attributes:
        folder: of the GDSC files. genes: which to predict from.
        delta: of (ε, δ). seed: of splits, noise and auxiliary data.
        centred_as_published: by the rows' own means; then nothing is private.
    """

    folder: Path
    genes: tuple[str, ...] = GENES
    epsilons: tuple[float, ...] = EPSILONS
    delta: float = DELTA
    seed: int = 1
    centred_as_published: bool = False


@lru_cache(maxsize=1)
def data(folder: Path, genes: tuple[str, ...]) -> Gdsc:
    """Both files, read once in each process."""
    return read_gdsc(folder, genes)


def chosen_drugs(gdsc: Gdsc, count: int, seed: int) -> list[str]:
    """So many drugs at random, of those that enough lines were tested with; all of these for a count of 0."""
    tested = (~np.isnan(gdsc.response)).sum(axis=0)
    enough = [drug for drug, rows in zip(gdsc.drugs, tested, strict=True) if rows >= 2 * TEST_ROWS]
    if not 0 <= count <= len(enough):
        raise DataError(f"{count} drugs asked for; {len(enough)} were tested on {2 * TEST_ROWS} lines or more")
    order = stream(seed, "drugs").permutation(len(enough))
    return [enough[place] for place in order[: count or None]]


def correlations(cell: Cell, setting: Setting) -> dict[str, Any]:
    """The rank correlation by method, for each ε."""
    gdsc = data(setting.folder, setting.genes)
    problem = gdsc.problem(cell.drug, centred_as_published=setting.centred_as_published)
    train, test = split(problem, TEST_ROWS, setting.seed + cell.number)
    found: dict[str, list[float]] = {method: [] for method in METHODS}
    for epsilon in setting.epsilons:
        for method in methods(cell, setting, Budget(epsilon, setting.delta)):
            found[method.name].append(rank_correlation(method.fit(train).predict(test.X)[0], test.y))
    return {"drug": cell.drug, "run": cell.number, "learned_from": len(train.y), "correlation": found}


def methods(cell: Cell, setting: Setting, budget: Budget) -> list[Method]:
    """All of `METHODS`, at this budget."""

    def noise(method: str) -> np.random.Generator:
        return stream(setting.seed, f"{cell}/{method}/{budget.epsilon:g}/noise")

    jobs: dict[str, Callable[[Schema], Job[Coefficients]]] = {
        TA: regression_in_bounds,
        DDP: regression_in_bounds,
        PROJ_TA: regression_with_projection,
        PROJ_DDP: regression_with_projection,
        BALL: lambda schema: in_unit_ball(regression_in_bounds(schema)),
    }
    sources = {method: partial(_swarm, budget, noise(method), method in (TA, PROJ_TA)) for method in jobs}
    by_rounds = [ByRounds(method, job, sources[method]) for method, job in jobs.items()]
    unnoised = ByRounds(PROJ_NP, regression_with_projection, partial(_unnoised, budget, noise(PROJ_NP)))
    return [NonPrivate(NP), *by_rounds, unnoised, InputPerturbation(budget.mu, noise(INPUT), INPUT)]


def _swarm(
    budget: Budget, noise: np.random.Generator, trusted: bool, train: Problem, mechanism: Mechanism = EXACT
) -> IdealSwarm:
    """Rounds of these rows."""
    terms = JobTerms(budget=budget, clients=len(train.y), tolerated=0, computes=COMPUTES)
    columns = train.schema.columns
    return IdealSwarm(train.rows, columns, terms, random=noise.bytes, mechanism=mechanism, trusted=trusted)


def _unnoised(budget: Budget, noise: np.random.Generator, train: Problem) -> Unnoised:
    noisy, silent = (_swarm(budget, noise, False, train, mechanism) for mechanism in (EXACT, Silent()))
    return Unnoised(noisy, silent)


def in_unit_ball(job: Job[R]) -> Job[R]:
    """The job, with rounds that bring a row's features into the ball of radius 1, where its client has scaled them to.

    With the norm known, the features' share of the sensitivity is that of one column, and not of all d.
    """
    request = next(job)
    while True:
        released = yield replace(request, parameters={**request.parameters, "radius": 1.0})
        try:
            request = job.send(released)
        except StopIteration as end:
            result: R = end.value
            return result


def rank_correlation(predicted: Array, measured: Array) -> float:
    """Spearman's, with mean ranks for ties; 0 where all predictions are the same."""
    a, b = (ranks - ranks.mean() for ranks in (rankdata(predicted), rankdata(measured)))
    norm = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / norm if norm > 0 else 0.0


def summary(results: Sequence[dict[str, Any]], setting: Setting) -> dict[str, Any]:
    """Mean and standard deviation over the runs, by method, each a list over ε."""
    runs = sorted({one["run"] for one in results})
    figures = {}
    for method in METHODS:
        by_run = np.array(
            [
                np.mean([one["correlation"][method] for one in results if one["run"] == number], axis=0)
                for number in runs
            ]
        )
        spread = by_run.std(axis=0, ddof=1) if len(runs) > 1 else np.zeros(by_run.shape[1])
        figures[method] = {"mean": by_run.mean(axis=0).tolist(), "sd": spread.tolist()}
    return {"epsilon": list(setting.epsilons), "delta": setting.delta, "methods": figures}


def draw(figures: dict[str, Any], path: Path, title: str) -> None:
    """Like Figure 3: all methods on the left, selected ones on the right, and the zero predictor."""
    epsilons = np.array(figures["epsilon"])
    with drawing(path, columns=2, title=title) as panels:
        for axes, shown in zip(panels[0], (METHODS, SELECTED), strict=True):
            for method in shown:
                place, one = METHODS.index(method), figures["methods"][method]
                beside = epsilons + 0.1 * (place - len(METHODS) // 2)  # so that no bar hides another
                style = {"color": COLOURS[place], "marker": MARKERS[place], "capsize": 3}
                axes.errorbar(beside, one["mean"], one["sd"], label=method, **style)
            zero_line(axes, 0.0)
            axes.set_xticks(epsilons, [at_least(epsilon) for epsilon in epsilons])
            axes.set_xlabel("ε")
            axes.legend(frameon=False, fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.14))
        panels[0, 0].set_ylabel("rank correlation with LN_IC50")
