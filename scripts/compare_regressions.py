#!/usr/bin/env python
"""Compares linear and logistic regression with diffprivlib, adaSSP and no privacy, on four data sets.

- Wine quality, red and white, and abalone: linear regression; root mean square error on a fifth of the rows, relative
  to that of least squares.
- Adult: logistic regression; log loss and area under the curve on the official test part.

This library runs its job with default settings, over the ideal functionality with the exact noise (no dropouts, no
colluders). It and adaSSP are (epsilon, 1e-5)-private under replacement of a row. adaSSP has one curator who sees all
rows, spends a third on the smallest eigenvalue, and gets columns in half-widths of the same public bounds. "adaSSP,
less private" is the setting of figures published elsewhere: neighbours add or remove a row, and bounds are the rows'
own ranges, which no budget covers. diffprivlib is epsilon-private, also with one curator. Both of its regressions get
columns in half-widths of the public bounds, the logistic one in the unit ball.

The checks are on medians over splits. This library is no worse than adaSSP in any linear cell, nor, at epsilon 1, than
adaSSP's figures published elsewhere (1.174, 1.083 and 1.201). On Adult, which has enough rows for any method without
noise, its log loss and area under the curve are no worse than diffprivlib's.

Takes five minutes with --diffprivlib ENV/bin/python; --quick, without it, one. Exit code 4 if a check fails.
diffprivlib needs an older scikit-learn, so it runs in a separate environment:

    python -m venv ENV && ENV/bin/pip install diffprivlib==0.6.6 'scikit-learn<1.6'
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from rich.table import Table
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dca_proto.jobs.job import JobTerms
from dca_proto.privacy.accounting import mu_of
from dca_proto.privacy.budget import Budget
from dca_proto.privacy.rounding import at_least
from emulator.ideal import IdealSwarm
from inference.datasets import abalone, adult, wine
from inference.jobs import find
from inference.jobs.base import Conditions
from inference.models.linear.baselines import nonprivate_regression
from inference.models.scores import rmse
from inference.problem import Array, Problem, split, stream
from inference.rounds import run
from papers.experiment import Experiment, Result, option
from papers.mcmc2023.samplers import adassp
from papers.picture import COLOURS, MARKERS, drawing, epsilon_axis, legend
from papers.runner import Check, table

LINEAR, LOGISTIC = ("wine-red", "wine-white", "abalone"), "adult"
EPSILONS, DELTA = (0.3, 1.0, 4.0), 1e-5
OURS, ADASSP, LESS = "this library", "adaSSP", "adaSSP, less private"
DIFFPRIVLIB, PLAIN = "diffprivlib", "no privacy"
METHODS = (OURS, ADASSP, LESS, DIFFPRIVLIB, PLAIN)
KNOWN = {"wine-red": 1.174, "wine-white": 1.083, "abalone": 1.201}
COMPUTES = (bytes([1]) * 16, bytes([2]) * 16)
LOG_LOSS_FLOOR = 1e-12

_OTHER = """
import json, sys, warnings
import numpy as np
warnings.simplefilter("ignore")
from diffprivlib.models import LinearRegression, LogisticRegression
given = np.load(sys.argv[1])
found = {}
for epsilon in given["epsilons"]:
    if given["logistic"]:
        fitted = LogisticRegression(epsilon=epsilon, data_norm=1.0, max_iter=1000, random_state=int(given["seed"]))
        found[str(epsilon)] = fitted.fit(given["X"], given["y"]).predict_proba(given["test"])[:, 1].tolist()
    else:
        bounds = {"bounds_X": (-1.0, 1.0), "bounds_y": (-1.0, 1.0)}
        fitted = LinearRegression(epsilon=epsilon, random_state=int(given["seed"]), **bounds)
        found[str(epsilon)] = fitted.fit(given["X"], given["y"]).predict(given["test"]).tolist()
print(json.dumps(found))
"""


class Cell(NamedTuple):
    """One data set and one split of it; for Adult, whose parts are fixed, one draw of the noise."""

    data: str
    seed: int


@cache
def whole(name: str) -> Problem:
    """Return all rows, or the training part."""
    return {"wine-red": lambda: wine("red"), "wine-white": lambda: wine("white"), "abalone": abalone, LOGISTIC: adult}[
        name
    ]()


def parts(cell: Cell) -> tuple[Problem, Problem]:
    """Return training and test rows."""
    if cell.data == LOGISTIC:
        return whole(cell.data), adult(part="test")
    return split(whole(cell.data), len(whole(cell.data).y) // 5, cell.seed)


def job_of(data: str) -> str:
    """Return the job of a data set; those of Adult have two classes."""
    return "logistic" if data.startswith(LOGISTIC) else "regression"


def ours(cell: Cell, train: Problem, epsilon: float) -> Any:
    """Return the job's result with default settings."""
    job, n = find(job_of(cell.data)), len(train.y)
    budget = Budget(epsilon, DELTA)
    rng = stream(cell.seed, f"{cell}/{epsilon:g}")
    terms = JobTerms(epsilon=budget.epsilon, delta=budget.delta, clients=n, tolerate=0, computes=COMPUTES)
    known = Conditions(clients=n, tolerate=0, mu=budget.mu, rng=rng, epsilon=epsilon)
    rounds = IdealSwarm(train.rows, train.schema.columns, terms, random=rng.bytes)
    settings = job.settings()
    result = run(job.make(train.schema, settings, known), rounds)
    return job.finish(result, train.schema, settings, known)


def ada_ssp(cell: Cell, train: Problem, test: Problem, epsilon: float, *, less: bool = False) -> Array:
    """Predictions of adaSSP, of columns in half-widths of their bounds, with a constant of 1. less: private."""
    centre, width, d = train.schema.centres, train.schema.half_widths, train.X.shape[1]
    if less:
        low, high = train.rows.min(axis=0), train.rows.max(axis=0)
        centre, width = (low + high) / 2, (high - low) / 2
    z, z_test = (np.clip((one.rows - centre) / width, -1, 1) for one in (train, test))
    x, x_test = (np.column_stack([np.ones(len(one)), one[:, :-1]]) for one in (z, z_test))
    neighbours = adassp.Sensitivities.add_or_remove if less else adassp.Sensitivities.replacement
    released = adassp.release(
        x.T @ x,
        x.T @ z[:, -1],
        epsilon,
        DELTA,
        stream(cell.seed, f"adassp/{cell}/{epsilon:g}/{less}"),
        sensitivities=neighbours(float(np.sqrt(d + 1)), 1.0),
        mu_of=mu_of,
    )
    predicted: Array = centre[-1] + width[-1] * (x_test @ adassp.estimate([released]))
    return predicted


def diffprivlib(cell: Cell, train: Problem, test: Problem, python: str) -> dict[float, Array]:
    """Return diffprivlib's predictions by ε, from the interpreter that has it."""
    centre, width, d = train.schema.centres, train.schema.half_widths, train.X.shape[1]
    z, z_test = (np.clip((one.rows - centre) / width, -1, 1) for one in (train, test))
    unit = np.sqrt(d) if cell.data == LOGISTIC else 1.0
    given = {"X": z[:, :-1] / unit, "y": train.y if cell.data == LOGISTIC else z[:, -1], "test": z_test[:, :-1] / unit}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "given.npz"
        np.savez(path, logistic=cell.data == LOGISTIC, seed=cell.seed, epsilons=EPSILONS, **given)
        printed = subprocess.run(
            [python, "-W", "ignore", "-c", _OTHER, str(path)], capture_output=True, text=True, check=True
        ).stdout
    offset, unit = (0.0, 1.0) if cell.data == LOGISTIC else (float(centre[-1]), float(width[-1]))
    return {float(epsilon): offset + unit * np.array(found) for epsilon, found in json.loads(printed).items()}


def work(cell: Cell, python: str | None) -> dict[str, Any]:
    """Return scores by method and ε."""
    train, test = parts(cell)
    logistic, scores = cell.data == LOGISTIC, {}
    other = diffprivlib(cell, train, test, python) if python else {}
    plain = _logistic(train, test) if logistic else nonprivate_regression(train).predict(test.X)[0]
    for epsilon in EPSILONS:
        result = ours(cell, train, epsilon)
        found = {OURS: result.predict_proba(test.X) if logistic else result.predict(test.X)[0], PLAIN: plain}
        if not logistic:
            found |= {ADASSP: ada_ssp(cell, train, test, epsilon), LESS: ada_ssp(cell, train, test, epsilon, less=True)}
        if other:
            found[DIFFPRIVLIB] = other[epsilon]
        scores[str(epsilon)] = {name: _score(one, test, plain, logistic=logistic) for name, one in found.items()}
    return {**cell._asdict(), "scores": scores}


def _logistic(train: Problem, test: Problem) -> Array:
    fitted = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(train.X, train.y)
    predicted: Array = fitted.predict_proba(test.X)[:, 1]
    return predicted


def _score(predicted: Array, test: Problem, plain: Array, *, logistic: bool) -> dict[str, float]:
    if not logistic:
        return {"rmse": rmse(predicted, test.y) / rmse(plain, test.y)}
    p = np.clip(np.asarray(predicted, float), LOG_LOSS_FLOOR, 1 - LOG_LOSS_FLOOR)
    return {"log_loss": float(log_loss(test.y, p)), "auc": float(roc_auc_score(test.y, p))}


class Place(NamedTuple):
    """The key of a figure."""

    data: str
    measure: str
    method: str
    epsilon: float


class Quartiles(NamedTuple):
    """The median and quartiles over splits."""

    median: float
    quartiles: list[float]
    repeats: int

    def __str__(self) -> str:
        low, high = self.quartiles
        return f"{self.median:.3f} ({low:.3f} to {high:.3f})"


Found = dict[Place, Quartiles]


@dataclass(frozen=True, kw_only=True)
class Comparison(Experiment[Cell, Found]):
    __doc__ = __doc__
    KIND, LABEL, QUICK_CHECKS, DEPENDS = "compare-regressions", "splits", True, ("has_diffprivlib",)
    QUICK: ClassVar = {"repeats": 3, "people": 0}

    diffprivlib: str | None = option(None, "interpreter of an environment that has diffprivlib", metavar="PYTHON")
    repeats: int = 30
    people: int = 5

    @property
    def has_diffprivlib(self) -> bool:
        """True if the comparison includes diffprivlib."""
        return bool(self.diffprivlib)

    def prepare(self) -> None:
        if not self.diffprivlib:
            print("diffprivlib is omitted; --diffprivlib PYTHON names an interpreter that has it", file=sys.stderr)

    def cells(self) -> list[Cell]:
        cells = [Cell(name, self.seed + seed) for name in LINEAR for seed in range(self.repeats)]
        return cells + [Cell(LOGISTIC, self.seed + seed) for seed in range(self.people)]

    def work(self, cell: Cell) -> Result:
        return work(cell, self.diffprivlib)

    def gather(self, cells: Sequence[Cell], results: Sequence[Result]) -> Found:
        values: dict[Place, list[float]] = {}
        for data in dict.fromkeys(cell.data for cell in cells):
            measures = ("log_loss", "auc") if data == LOGISTIC else ("rmse",)
            own = [one["scores"] for one in results if one["data"] == data]
            for place in (Place(data, *rest) for rest in product(measures, METHODS, EPSILONS)):
                scores = (one[str(place.epsilon)].get(place.method) for one in own)
                values[place] = [score[place.measure] for score in scores if score]
        found = {}
        for place, each in values.items():
            if each:
                low, half, high = np.quantile(each, [0.25, 0.5, 0.75]).tolist()
                found[place] = Quartiles(half, [low, high], len(each))
        return found

    def notes(self, found: Found) -> dict[str, Any]:
        return {"delta": DELTA, "figures": [place._asdict() | one._asdict() for place, one in found.items()]}

    def tables(self, found: Found) -> Iterator[Table]:
        rows = table("RMSE relative to least squares; Adult: log loss, AUC", "data", "measure", "eps", *METHODS)
        for (data, measure), epsilon in product(_panels(found), EPSILONS):
            own = (found.get(Place(data, measure, method, epsilon), "left out") for method in METHODS)
            rows.add_row(data, measure, at_least(epsilon), *map(str, own))
        yield rows

    def checks(self, found: Found) -> Iterator[Check]:
        """Check the medians."""
        median = {place: one.median for place, one in found.items()}
        behind = {
            at: median[Place(at[0], "rmse", OURS, at[1])] / median[Place(at[0], "rmse", ADASSP, at[1])]
            for at in product(LINEAR, EPSILONS)
        }
        worst = max(behind, key=lambda at: behind[at])
        measured = f"{behind[worst]:.3f} ({worst[0]}, epsilon {at_least(worst[1])})"
        yield Check("RMSE over adaSSP's", "<= 1", measured, behind[worst] <= 1)
        for data, known in KNOWN.items():
            own = median[Place(data, "rmse", OURS, 1.0)]
            yield Check(f"{data} at epsilon 1, against adaSSP elsewhere", f"<= {known}", f"{own:.3f}", own <= known)
        if Place(LOGISTIC, "auc", DIFFPRIVLIB, EPSILONS[0]) in median:
            for measure, sign in (("log_loss", 1), ("auc", -1)):
                both = [[median[Place(LOGISTIC, measure, m, e)] for m in (OURS, DIFFPRIVLIB)] for e in EPSILONS]
                measured = ", ".join(f"{own:.3f} and {theirs:.3f}" for own, theirs in both)
                holds = all(sign * own <= sign * theirs for own, theirs in both)
                yield Check(f"{LOGISTIC}, {measure.replace('_', ' ')}", "no worse than diffprivlib's", measured, holds)

    def draw(self, found: Found, path: Path) -> None:
        """Draw a panel for each data set and measure."""
        with drawing(path, columns=len(_panels(found)), size=(2.6, 2.8)) as panels:
            for axes, (data, measure) in zip(panels[0], _panels(found), strict=True):
                for method, colour, marker in zip(METHODS, COLOURS, MARKERS, strict=False):
                    own = {at.epsilon: one.median for at, one in found.items() if at[:3] == (data, measure, method)}
                    if own:
                        axes.plot(list(own), list(own.values()), f"{marker}-", color=colour, label=method)
                limits = (0.95, 1.8) if measure == "rmse" else None
                name = "RMSE over least squares" if measure == "rmse" else measure.replace("_", " ")
                axes.set(xlabel="epsilon", title=data, ylabel=name, ylim=limits)
                epsilon_axis(axes, EPSILONS)
            legend(panels)


def _panels(found: Found) -> list[tuple[str, str]]:
    return list(dict.fromkeys((place.data, place.measure) for place in found))


if __name__ == "__main__":
    sys.exit(Comparison.main())
