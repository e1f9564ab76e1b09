"""Figure 3 of the DCA paper: prediction of drug sensitivity from gene expression (valid setting).

For each drug and each of 25 cross-validation runs, 100 cell lines are tested and all others are learned from. The score
is Spearman's rank correlation of the predicted with the measured LN_IC50. A point is the mean over runs of the mean
over drugs; a bar is the standard deviation over runs. A constant prediction, which uses no features, has correlation 0.

    NP               no privacy: least squares on the raw rows
    proj NP          no noise in the regression: the cost of proj DDP's projection alone
    TA, DDP          one round in the assumed bounds; a trusted aggregator's noise, or the clients' shares
    proj TA,         two rounds: Algorithm 2, with centres from the first one. The search for thresholds uses no data,
    proj DDP         so all runs share its result for about as many rows
    ball DDP         one round in the assumed bounds and in the unit ball, which holds every scaled row: not in the
                     paper, and less noise than TA and DDP need
    input perturbed  each client adds noise to its own row

Valid means: centres are public, projection enforces the bounds, the noise is exact, and both rounds share one budget.
The published run centred the rows by their own means, and took a bound for TA and DDP from the data.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import sqrt
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from rich.table import Table
from scipy.stats import rankdata

from dca_proto.jobs.forecast import EXACT
from dca_proto.privacy.budget import Budget
from dca_proto.privacy.rounding import at_least
from inference.errors import DataError
from inference.models.coefficients import Coefficients
from inference.models.linear.baselines import nonprivate_regression, of_rows
from inference.models.linear.closed_form import REPAIR, NormalBeta, posterior, summarise
from inference.models.linear.job import regression_in_bounds, regression_with_projection
from inference.models.linear.prior import prior_precision
from inference.problem import Array, Problem, Schema, split, stream
from inference.rounds import Job, run
from papers.dca2017.gdsc_files import GENES, SIMULATED, Gdsc, read_gdsc, write_simulated
from papers.dca2017.rounds import DISTRIBUTED, TRUSTED, UNNOISED, rounds_of
from papers.experiment import Experiment, Result, option, over_epsilon
from papers.picture import COLOURS, MARKERS, drawing, zero_line
from papers.runner import positive

EPSILONS = (1.0, 3.0, 5.0, 7.5, 10.0)
DELTA = 1e-4  # Figure 3 says so; the published run had 1e-3
TEST_ROWS, COMPUTES = 100, 10
NP, TA, DDP, PROJ_TA, PROJ_DDP, INPUT, BALL, PROJ_NP = METHODS = (
    "NP", "TA", "DDP", "proj TA", "proj DDP", "input perturbed", "ball DDP", "proj NP"
)  # fmt: skip
SELECTED = (NP, DDP, PROJ_DDP, INPUT, BALL)  # panel b of the figure
_MODES = {TA: TRUSTED, PROJ_TA: TRUSTED, PROJ_NP: UNNOISED}  # distributed otherwise


@dataclass(frozen=True)
class Cell:
    """One drug in one cross-validation run."""

    drug: str
    number: int

    def __str__(self) -> str:
        return f"drug {self.drug}, run {self.number}"


class Spread(NamedTuple):
    """Mean and standard deviation over the runs, by ε."""

    mean: Array
    sd: Array


data = lru_cache(maxsize=1)(read_gdsc)
"""Both files; each process reads them once."""


def chosen_drugs(gdsc: Gdsc, count: int, seed: int) -> list[str]:
    """Choose `count` drugs at random among those with enough tested lines; all of these for a count of 0."""
    tested = (~np.isnan(gdsc.response)).sum(axis=0)
    enough = [drug for drug, rows in zip(gdsc.drugs, tested, strict=True) if rows >= 2 * TEST_ROWS]
    if not 0 <= count <= len(enough):
        raise DataError(f"asked for {count} drugs; {len(enough)} were tested on {2 * TEST_ROWS} lines or more")
    order = stream(seed, "drugs").permutation(len(enough))
    return [enough[place] for place in order[: count or None]]


def in_unit_ball(schema: Schema) -> Job[Coefficients]:
    """Return a regression in one round that scales a row's features into the unit ball, where they already are.

    With the norm bounded, the features' share of the sensitivity is that of one column instead of all d.
    """
    job = regression_in_bounds(schema)
    request = next(job)
    released = yield replace(request, parameters={**request.parameters, "radius": 1.0})
    try:
        job.send(released)
    except StopIteration as end:
        result: Coefficients = end.value
        return result
    raise AssertionError("the regression takes one round")


def rank_correlation(predicted: Array, measured: Array) -> float:
    """Return Spearman's correlation, with mean ranks for ties; 0 if all predictions are equal."""
    a, b = (ranks - ranks.mean() for ranks in (rankdata(predicted), rankdata(measured)))
    norm = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / norm if norm > 0 else 0.0


def perturbed_inputs(train: Problem, mu: float, rng: np.random.Generator) -> Coefficients:
    """Return the regression of rows with each client's Gaussian noise, as if they were exact, as published.

    Each client releases its whole row within the public bounds; its L2 sensitivity is 2√(d + 1) half-widths. The noise
    in each column has this over μ as its standard deviation. The regression is centred at the means of the noisy rows.
    """
    schema = train.schema
    z = np.clip((train.rows - schema.centres) / schema.half_widths, -1, 1)
    noisy = z + rng.normal(scale=sqrt(4 * z.shape[1] / mu**2), size=z.shape)
    means = noisy.mean(axis=0)
    centred = noisy - means
    precision = prior_precision(len(schema.features))[1:]
    slopes = posterior(summarise(centred[:, :-1], centred[:, -1]), precision, repair=REPAIR)
    cov = np.pad(slopes.cov, ((1, 0), (1, 0)))
    cov[0, 0] = slopes.residual_variance / len(train.y)
    fitted = NormalBeta(np.r_[0.0, slopes.mean], cov, slopes.residual_variance)
    found = of_rows(train.rows, fitted, schema.centres + means * schema.half_widths, schema.half_widths, schema)
    return replace(found, repair="none", private=schema.private)


@dataclass(frozen=True, kw_only=True)
class Figure3(Experiment[Cell, dict[str, Spread]]):
    """Figure 3 of the DCA paper: rank correlation of predicted with measured drug sensitivity over ε (valid setting).

    30 drugs and 25 runs take about two minutes on two idle cores. GDSC's terms of use forbid redistribution. Without
    --data-folder, the experiment runs on SIMULATED files of the same formats and shape; JSON, title and table say so.
    They show that the pipeline works and what the noise does to data of this size, but nothing about cancer. With
    --data-folder, it reads release 6.1 (`papers.dca2017.gdsc_files` lists the files); --drugs 0 takes all drugs.
    """

    KIND, LABEL = "figure-3", "Figure 3"
    QUICK: ClassVar = {"drugs": 2, "repeats": 4}
    DEPENDS = ("source", "genes", "delta", "seed", "centred_as_published")

    data_folder: Path | None = option(None, "folder of the GDSC files (default: simulated files)", type=Path)
    drugs: int = option(30, "number of drugs, chosen at random; 0 for all", type=int, metavar="K")
    repeats: int = option(25, "cross-validation runs (default 25)", type=positive, metavar="R")
    delta: float = option(DELTA, "default 1e-4, as in Figure 3; the published run had 1e-3", type=float)
    genes: str = option(",".join(GENES), "default: the ten that mutate most", metavar="A,B,...")
    centred_as_published: bool = option(False, "centre by the rows' own means; NOT private", action="store_true")
    epsilons: tuple[float, ...] = EPSILONS

    def run(self, options: argparse.Namespace) -> int:
        if self.data_folder is not None:
            return super().run(options)
        with tempfile.TemporaryDirectory() as folder:
            write_simulated(Path(folder), self.seed)
            return replace(self, data_folder=Path(folder)).run(options)

    @property
    def gdsc(self) -> Gdsc:
        assert self.data_folder is not None, "simulated before"
        return data(self.data_folder, tuple(self.genes.split(",")))

    @property
    def source(self) -> str:
        """The name of the data."""
        return f"{SIMULATED}, seed {self.seed}" if self.gdsc.simulated else str(self.data_folder)

    def cells(self) -> list[Cell]:
        drugs = chosen_drugs(self.gdsc, self.drugs, self.seed)
        return [Cell(drug, number) for drug in drugs for number in range(self.repeats)]

    def work(self, cell: Cell) -> Result:
        problem = self.gdsc.problem(cell.drug, centred_as_published=self.centred_as_published)
        train, test = split(problem, TEST_ROWS, self.seed + cell.number)
        found: dict[str, list[float]] = {method: [] for method in METHODS}
        for epsilon in self.epsilons:
            for name, fit in self.methods(cell, Budget(epsilon, self.delta)).items():
                found[name].append(rank_correlation(fit(train).predict(test.X)[0], test.y))
        return {"learned_from": len(train.y), "correlation": found}

    def methods(self, cell: Cell, budget: Budget) -> dict[str, Callable[[Problem], Coefficients]]:
        """Return a function for each of `METHODS` at this budget, from rows to a regression."""

        def noise(method: str) -> np.random.Generator:
            return stream(self.seed, f"{cell}/{method}/{budget.epsilon:g}/noise")

        def by_rounds(method: str, job: Callable[[Schema], Job[Coefficients]], train: Problem) -> Coefficients:
            mode = _MODES.get(method, DISTRIBUTED)
            return run(job(train.schema), rounds_of(train, budget, mode, noise(method).bytes, EXACT, COMPUTES))

        jobs = dict.fromkeys((TA, DDP), regression_in_bounds) | {BALL: in_unit_ball}
        jobs |= dict.fromkeys((PROJ_TA, PROJ_DDP, PROJ_NP), regression_with_projection)
        return {
            NP: nonprivate_regression,
            **{method: partial(by_rounds, method, job) for method, job in jobs.items()},
            INPUT: lambda train: perturbed_inputs(train, budget.mu, noise(INPUT)),
        }

    def gather(self, cells: Sequence[Cell], results: Sequence[Result]) -> dict[str, Spread]:
        numbers, found = np.array([cell.number for cell in cells]), {}
        runs = np.unique(numbers)
        for method in METHODS:
            values = np.array([one["correlation"][method] for one in results])
            by_run = np.array([values[numbers == number].mean(axis=0) for number in runs])
            spread = by_run.std(axis=0, ddof=1) if len(runs) > 1 else np.zeros(by_run.shape[1])
            found[method] = Spread(by_run.mean(axis=0), spread)
        return found

    def title(self) -> str:
        shape = "SIMULATED data of the shape of GDSC" if self.gdsc.simulated else "GDSC"
        drugs, d = len(chosen_drugs(self.gdsc, self.drugs, self.seed)), len(self.gdsc.genes)
        words = f"{shape}; drugs: {drugs}, runs: {self.repeats}, d = {d}, δ = {at_least(self.delta)}"
        return words + ("; NOT PRIVATE" if self.centred_as_published else "")

    def notes(self, found: dict[str, Spread]) -> dict[str, Any]:
        private = not self.centred_as_published
        return {"simulated": self.gdsc.simulated, "data": self.source, "private": private}

    def tables(self, found: dict[str, Spread]) -> Iterator[Table]:
        title = f"rank correlation, mean ± standard deviation over the runs; {self.title()}"
        shown = over_epsilon(title, "method", self.epsilons)
        for method, one in found.items():
            shown.add_row(method, *(f"{m:.2f} ± {s:.2f}" for m, s in zip(*one, strict=True)))
        shown.add_row("zero predictor", *("0" for _ in self.epsilons))
        yield shown

    def draw(self, found: dict[str, Spread], path: Path) -> None:
        epsilons = np.array(self.epsilons)
        with drawing(path, columns=2, title=self.title()) as panels:
            for axes, methods in zip(panels[0], (METHODS, SELECTED), strict=True):
                for method in methods:
                    place = METHODS.index(method)
                    beside = epsilons + 0.1 * (place - len(METHODS) // 2)  # so that bars do not overlap
                    style = {"color": COLOURS[place], "marker": MARKERS[place], "capsize": 3}
                    axes.errorbar(beside, *found[method], label=method, **style)
                zero_line(axes, 0.0)
                axes.set_xticks(epsilons, [at_least(epsilon) for epsilon in epsilons])
                axes.set_xlabel("ε")
                axes.legend(frameon=False, fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.14))
            panels[0, 0].set_ylabel("rank correlation with LN_IC50")
