#!/usr/bin/env python
"""Logistic regression: coverage of its intervals, scores of its predictions, and no harm from a larger budget.

- **Intervals.** Three features, log odds -0.5 + x₁ - 0.7 x₂ + 0.3 x₃ with effects per standard deviation; n = 2,000,
  20,000 and 100,000 rows; epsilon 1 and 4. Each fit has its own data and noise; the score is the coverage of the four
  coefficients' 90 % intervals. With the default method, the features are *normal*, of correlation 0.3; the same
  within bounds ten times as *wide*; *binary* with shares of one half, 0.1 and 0.05; *exponential*; *skewed* and
  *steep*, log-normal of sigma 1 and 1.5; *t4*, Student's t with 4 degrees of freedom; *mixed*, two of these and one
  of two values. Two more have normal features: *strong*, slopes 2.4, -1.8 and 0; and *rare*, 2 % positives, log odds
  -4.1 + 0.6 x₁ - 0.4 x₂, from 20,000 rows on. At 5,000 rows: *large*, slopes 3 and -3, and *few*, log odds -4 + 0.6
  x₁ - 0.4 x₂ + 0.3 x₃. Coverage is 85 to 97 % in each cell (for these four, at least 85 %), and at least 80 % for
  each coefficient, because the mean of the four could hide one that is never covered. A cell that misses this passes
  only if nine of ten of its fits that miss warn, and the check reports it. The spread includes a third of each
  round's distance from the result as a margin, so coverage may exceed 90 %.
- **Wide bounds.** Root mean square errors of slopes at 20,000 rows and more: at most 1.15 times those within narrow
  bounds.
- **One sum and variational inference**, by name, with normal features: 85 to 95 % in each cell.
- **Adult**, 30,000 people of the training part, scored on the test part, at epsilon 0.3, 1 and 4, by the default method
  (most columns are binary): the mean log loss rises by at most 0.002 from one epsilon to the next, falls from
  the least to the largest, and is below 0.352 at epsilon 4; the mean AUC is at least 0.883, 0.889 and 0.891.
- **Breast cancer** (569 rows, 22.5 % held out), epsilon 4, variational: the median AUC of splits, and the AUC of one
  live swarm with a client for each training row, three Compute nodes and a broker. At least 0.95 each.

Delta is 1e-5, T = N/10, the budget covers all rounds, and noise and keys come from the operating system. All settings
but the method are the library's defaults. Rate and clip were chosen in view of Adult.

**False alarms.** Limits are of the true coverage. A cell has 100 fits, or 80 of 100,000 rows: 400 or 320 intervals. A
measured coverage fails if chance would bring one so far outside less than once in 100 runs of the whole table
(binomial, Bonferroni), and so does a ratio of errors (F). So a program within the limits fails at most twice in 100
runs, whatever the number of fits. (The four intervals of a fit are nearly independent: their coverage has 1.1 times the
variance of independent ones.)

Exit code 4 if one of these limits is missed. Adult is found through DCA_DATA, or downloaded once. Takes 12 minutes on
two cores; --quick has few fits and no live run, takes a minute, and only sees large faults.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from rich.table import Table
from scipy.special import expit

from dca_proto.errors import RoundAborted
from dca_proto.jobs.job import JobTerms
from dca_proto.privacy.budget import Budget
from dca_proto.privacy.rounding import at_least
from dca_proto.runtime.logs import configure_logs
from emulator.ideal import IdealSwarm
from emulator.swarm.live import Watcher, run_swarm
from emulator.swarm.options import SwarmOptions
from inference.bounds import Interval
from inference.datasets import adult, breast_cancer
from inference.models.coefficients import Coefficients
from inference.models.logistic.job import AUTO, ONE_SUM, VARIATIONAL, logistic_regression
from inference.models.scores import area_under_curve
from inference.problem import Array, Problem, Schema, assign, hold_out, stream
from inference.rounds import run
from papers.experiment import DEPENDENT, FALSE_ALARM, Experiment, Result, Sweep, larger, outside
from papers.picture import COLOURS, MARKERS, drawing
from papers.runner import Check, table

DELTA, COMPUTES, RETRIES = 1e-5, 3, 2
NORMAL, ADULT, CANCER = "normal", "adult", "breast-cancer"
WIDE, BINARY, EXPONENTIAL = "wide", "binary", "exponential"
SKEWED, STEEP, T4, MIXED = "skewed", "steep", "t4", "mixed"
STRONG, RARE, LARGE, FEW = "strong", "rare", "large", "few"
BINARY_SHARES = np.array([0.5, 0.1, 0.05])
BOUNDS = {
    NORMAL: (-5, 5), WIDE: (-50, 50), BINARY: (0, 1), EXPONENTIAL: (0, 20), SKEWED: (0, 40), STEEP: (0, 1000),
    T4: (-30, 30), MIXED: (-20, 20), STRONG: (-5, 5), RARE: (-5, 5),
    LARGE: (-5, 5), FEW: (-5, 5),
}  # fmt: skip
METHODS = (AUTO, ONE_SUM, VARIATIONAL)  # with normal features
SIMULATED, COEFFICIENT_MIN, WARNED_MIN, WIDE_MAX, WIDE_N = tuple(BOUNDS), 0.80, 0.90, 1.15, 20_000
TRUTH, CORRELATION = np.array([-0.5, 1.0, -0.7, 0.3]), 0.3
TRUTHS = {
    STRONG: np.array([0.0, 2.4, -1.8, 0.0]),
    RARE: np.array([-4.1, 0.6, -0.4, 0.0]),
    LARGE: np.array([0.0, 3.0, -3.0, 0.0]),
    FEW: np.array([-4.0, 0.6, -0.4, 0.3]),
}  # `TRUTH` of all others
RARE_N, MODERATE_N = 20_000, 5_000  # the fewest rows for `RARE`, and the only number for `LARGE` and `FEW`
SIZES, EPSILONS, LEVEL_Z = (2_000, 20_000, 100_000), (1.0, 4.0), 1.6448536
COVERAGE, BY_DEFAULT = (0.85, 0.95), (0.85, 0.97)
FITS = {2_000: 100, 5_000: 100, 20_000: 100, 100_000: 80}
ADULT_ROWS, ADULT_LOSS_MAX = 30_000, 0.352
RISE_MAX = 0.002  # of the mean log loss of 4 fits, which differs between epsilon 1 and 4 by noise only
ADULT_AUC_MIN = {0.3: 0.883, 1.0: 0.889, 4.0: 0.891}
CANCER_EPSILON, CANCER_MIN = 4.0, 0.95


class Cell(NamedTuple):
    """One fit; `n` is 0 if the data set fixes the number of rows."""

    data: str
    method: str
    epsilon: float
    seed: int
    n: int = 0
    live: bool = False


@cache
def problem(data: str, seed: int, n: int) -> tuple[Problem, Problem]:
    """Return training and test rows."""
    if data in SIMULATED:
        return simulated(data, n, seed), simulated(data, 1, seed)
    if data == ADULT:
        chosen = np.sort(stream(0, "check-logistic").permutation(len(adult().y))[:ADULT_ROWS])
        return adult().take(chosen), adult(part="test")
    whole = breast_cancer()
    return hold_out(whole, seed)


def features(data: str, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw features, shape ``(n, 3)``; return them with the standard deviation of each."""
    d = len(TRUTH) - 1
    if data == BINARY:
        return (rng.random((n, d)) < BINARY_SHARES).astype(float), np.sqrt(BINARY_SHARES * (1 - BINARY_SHARES))
    if data == EXPONENTIAL:
        return rng.exponential(size=(n, d)), np.ones(d)
    if data in (SKEWED, STEEP):
        sigma = 1.0 if data == SKEWED else 1.5
        square = np.exp(sigma**2)
        return np.exp(sigma * rng.standard_normal((n, d))), np.full(d, np.sqrt((square - 1) * square))
    if data == MIXED:
        two = (rng.random(n) < 0.1).astype(float)
        return np.column_stack([rng.standard_t(4, n), two, rng.exponential(size=n)]), np.array([np.sqrt(2), 0.3, 1.0])
    if data == T4:
        return rng.standard_t(4, (n, d)), np.full(d, np.sqrt(2.0))
    root = np.linalg.cholesky((1 - CORRELATION) * np.eye(d) + CORRELATION)
    return rng.standard_normal((n, d)) @ root.T, np.ones(d)


def truth(data: str) -> Array:
    """Return intercept and slopes in the features' own units; `TRUTH` and `TRUTHS` are per standard deviation."""
    standardised = TRUTHS.get(data, TRUTH)
    slopes = standardised[1:] / features(data, 1, stream(0, "deviation"))[1]
    return np.concatenate([standardised[:1], slopes])


def simulated(data: str, n: int, seed: int) -> Problem:
    """Draw rows of such features, and labels by `truth`."""
    rng = stream(seed, f"check-logistic {n}" if data in (NORMAL, WIDE) else f"check-logistic {data} {n}")
    X, true = features(data, n, rng)[0], truth(data)
    y = rng.random(n) < expit(true[0] + X @ true[1:])
    names = tuple(f"x{place}" for place in range(1, len(true)))
    schema = Schema(names, "y", {**{name: Interval(*BOUNDS[data]) for name in names}, "y": Interval(0, 1)})
    return Problem(data, schema, X, y.astype(float))


def work(cell: Cell) -> dict[str, Any]:
    """Run one fit; compare it with the truth, or score it on test rows."""
    if cell.data in SIMULATED:
        problem.cache_clear()  # each is used once
    train, test = problem(cell.data, cell.seed, cell.n)
    fit = _live(cell, train) if cell.live else _ideal(cell, train)
    known = {**cell._asdict(), "iterations": fit.iterations, "stopped": fit.stopped, "private": fit.private}
    if cell.data in SIMULATED:
        error = np.r_[fit.intercept, fit.coefficients] - truth(cell.data)
        sd = np.r_[fit.intercept_sd, fit.coefficient_sd]
        held = np.abs(error) < LEVEL_Z * sd
        known["warned"] = bool(fit.warnings)
        return {**known, "held": held.tolist(), "error": error.tolist(), "sd": sd.tolist()}
    p, positive = fit.predict_proba(test.X), test.y > 0.5
    loss = -float(np.log(np.maximum(np.where(positive, p, 1 - p), 1e-12)).mean())
    return {**known, "auc": area_under_curve(p, positive), "log_loss": loss}


def _ideal(cell: Cell, train: Problem) -> Coefficients:
    n = len(train.y)
    computes = tuple(bytes([index]) * 16 for index in range(COMPUTES))
    terms = JobTerms(epsilon=cell.epsilon, delta=DELTA, clients=n, tolerate=n // 10, computes=computes)
    job = logistic_regression(train.schema, rng=stream(cell.seed, "job"), method=cell.method)
    return run(job, IdealSwarm(train.rows, train.schema.columns, terms))


def _live(cell: Cell, train: Problem) -> Coefficients:
    n = len(train.y)
    budget = Budget(cell.epsilon, DELTA)
    options = SwarmOptions(
        clients=n, computes=COMPUTES, epsilon=budget.epsilon, delta=budget.delta, tolerate=n // 10, seed=cell.seed
    )
    configure_logs(level=logging.WARNING)

    job = logistic_regression(train.schema, rng=stream(cell.seed, "job"), method=cell.method)
    done = asyncio.run(run_swarm(options, assign(train.rows, n), train.schema.asked, job, Watcher(), retries=RETRIES))
    if done.failure is not None:
        raise RoundAborted(done.failure)
    found: Coefficients = done.result
    return found


def grouped(fits: list[dict[str, Any]], *names: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Group fits by these attributes, in order."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for one in fits:
        found.setdefault(tuple(one[name] for name in names), []).append(one)
    return found


def coverage(fits: list[dict[str, Any]]) -> float:
    """Return the part of the intervals that cover the truth."""
    return float(np.mean([one["held"] for one in fits]))


def worst(fits: list[dict[str, Any]]) -> float:
    """Return the coverage of the coefficient with the least."""
    return float(np.mean([one["held"] for one in fits], axis=0).min())


def _mean(fits: list[dict[str, Any]], name: str) -> float:
    return float(np.mean([one[name] for one in fits]))


def _intervals(fits: list[dict[str, Any]]) -> Any:
    heads = ("method", "rows", "eps", "fits", "L", "run_round", "least", "warned", "bias", "sd", "claimed")
    rows = table("90 % intervals", "features", *heads)
    cells = [one for one in fits if one["data"] in SIMULATED]
    for (data, method, n, epsilon), own in grouped(cells, "data", "method", "n", "epsilon").items():
        errors, sds = np.array([one["error"] for one in own]), np.array([one["sd"] for one in own])
        real = float(np.sqrt(errors.var(axis=0, ddof=1).mean()))
        bias = float(np.abs(errors.mean(axis=0)).max())
        stated = float(np.sqrt((sds**2).mean()))
        warned = f"{_mean(own, 'warned'):.2f}"
        numbers = [f"{coverage(own):.3f}", f"{worst(own):.3f}", warned, f"{bias:.4f}", f"{real:.4f}", f"{stated:.4f}"]
        rows.add_row(data, method, str(n), at_least(epsilon), str(len(own)), str(own[0]["iterations"]), *numbers)
    return rows


def _predictions(fits: list[dict[str, Any]]) -> Any:
    rows = table("rows held out", "clients", "eps", "fits", "L", "log loss", "AUC", "least AUC")
    scored = [one for one in fits if one["data"] not in SIMULATED]
    for (data, live, epsilon), own in grouped(scored, "data", "live", "epsilon").items():
        numbers = [_mean(own, "log_loss"), _mean(own, "auc"), min(one["auc"] for one in own)]
        label = f"{data} live" if live else data
        rows.add_row(
            label,
            at_least(epsilon),
            str(len(own)),
            str(own[0]["iterations"]),
            *(f"{number:.4f}" for number in numbers),
        )
    return rows


def _checks(fits: list[dict[str, Any]]) -> list[Check]:
    found = []
    cells = grouped([one for one in fits if one["data"] in SIMULATED], "data", "method", "n", "epsilon")
    for (data, method, n, epsilon), own in cells.items():
        low, high = BY_DEFAULT if method == AUTO else COVERAGE
        high = 1.0 if data in TRUTHS else high
        part, least = coverage(own), COEFFICIENT_MIN if method == AUTO else 0.0
        intervals = len(own) * len(TRUTH) / DEPENDENT
        chance = min(outside(part, intervals, low, high), outside(worst(own), len(own), least))
        holds = chance >= FALSE_ALARM / (len(cells) * (1 + len(TRUTH)))
        missing = [one["warned"] for one in own if not all(one["held"])]
        warned = method == AUTO and not holds and sum(missing) >= WARNED_MIN * len(missing)
        asked = f"{low:g} to {high:g}" + (f", each >= {least:g}" if least else "") + ", but for chance"
        name = f"intervals, {data}, {method}, n = {n}, epsilon {at_least(epsilon)}"
        measured = f"{part:.3f}, least {worst(own):.3f}{', warned' if warned else ''}"
        found.append(Check(name, asked, measured, holds or warned))
    found += _wide({(data, n, epsilon): own for (data, method, n, epsilon), own in cells.items() if method == AUTO})
    people = {e: own for (e,), own in grouped([one for one in fits if one["data"] == ADULT], "epsilon").items()}
    losses = [_mean(own, "log_loss") for _, own in sorted(people.items())]
    falls = losses[-1] < losses[0] and all(after <= before + RISE_MAX for before, after in pairwise(losses))
    asked = f"falls, each step <= +{RISE_MAX:g}"
    found.append(Check("Adult, log loss over epsilon", asked, ", ".join(f"{one:.4f}" for one in losses), falls))
    found.append(
        Check("Adult, log loss at epsilon 4", f"< {ADULT_LOSS_MAX}", f"{losses[-1]:.4f}", losses[-1] < ADULT_LOSS_MAX)
    )
    for epsilon, own in sorted(people.items()):
        auc, least = _mean(own, "auc"), ADULT_AUC_MIN[epsilon]
        found.append(Check(f"Adult, AUC at epsilon {at_least(epsilon)}", f">= {least}", f"{auc:.4f}", auc >= least))
    for (live,), own in grouped([one for one in fits if one["data"] == CANCER], "live").items():
        median = float(np.median([one["auc"] for one in own]))
        name = "breast cancer, live" if live else "breast cancer, median of splits"
        found.append(Check(name, f"AUC >= {CANCER_MIN}", f"{median:.4f}", median >= CANCER_MIN))
    complete = all(one["private"] and not one["stopped"] for one in fits)
    return [*found, Check("all fits private, none stopped early", "all", str(complete), complete)]


def _wide(cells: dict[tuple[Any, ...], list[dict[str, Any]]]) -> list[Check]:
    """Check the loss from bounds ten times as wide."""
    pairs = {key: own for key, own in cells.items() if key[0] == WIDE and key[1] >= WIDE_N}
    found = []
    for (_, n, epsilon), own in pairs.items():
        wide, narrow = (
            float(np.sqrt(np.mean(np.square([one["error"][1:] for one in fits]))))
            for fits in (own, cells[NORMAL, n, epsilon])
        )
        name = f"errors within wide bounds, n = {n}, epsilon {at_least(epsilon)}"
        chance = larger(wide / narrow, len(own) * (len(TRUTH) - 1), WIDE_MAX)
        asked = f"<= {WIDE_MAX} times, but for chance"
        found.append(Check(name, asked, f"{wide / narrow:.3f}", chance >= FALSE_ALARM / len(pairs)))
    return found


@dataclass(frozen=True, kw_only=True)
class LogisticCheck(Experiment[Cell, list[Result]]):
    __doc__ = __doc__
    KIND, LABEL, QUICK_CHECKS, DEPENDS = "check-logistic", "ideal functionality", True, ()
    QUICK: ClassVar = {"fits": {SIZES[0]: 10}, "noises": 1, "splits": 8, "live": False}

    fits: dict[int, int] = field(default_factory=lambda: FITS)
    noises: int = 4
    splits: int = 60
    live: bool = True

    def cells(self) -> list[Cell]:
        kinds = [*((NORMAL, method) for method in (ONE_SUM, VARIATIONAL)), *((data, AUTO) for data in SIMULATED)]
        people, ill = range(self.seed, self.seed + self.noises), range(self.seed, self.seed + self.splits)
        return [
            *(
                Cell(data, method, epsilon, self.seed + index, n)
                for n in self.fits
                for epsilon in EPSILONS
                for data, method in kinds
                for index in range(self.fits[n])
                if (data in (LARGE, FEW)) == (n == MODERATE_N) and (data != RARE or n >= RARE_N)
            ),
            *(Cell(ADULT, AUTO, epsilon, seed) for epsilon in ADULT_AUC_MIN for seed in people),
            *(Cell(CANCER, VARIATIONAL, CANCER_EPSILON, seed) for seed in ill),
        ]

    def results(self, sweep: Sweep) -> list[Result]:
        """Run all cells; live ones one after the other."""
        found: list[Result] = sweep(self.cells(), work)
        live = [Cell(CANCER, VARIATIONAL, CANCER_EPSILON, self.seed, live=True)] if self.live else []
        return found + (sweep(live, work, label="live swarm", processes=1) if live else [])

    def notes(self, found: list[Result]) -> dict[str, Any]:
        return {"delta": DELTA}

    def tables(self, found: list[Result]) -> list[Table]:
        return [_intervals(found), _predictions(found)]

    def checks(self, found: list[Result]) -> list[Check]:
        return _checks(found)

    def draw(self, found: list[Result], path: Path) -> None:
        """Draw coverage by n for each method and epsilon, and log loss on Adult over epsilon."""
        with drawing(path, size=(4.8, 4.0), columns=2) as panels:
            left, right = panels[0]
            normal = [one for one in found if one["data"] == NORMAL]
            lines = grouped(normal, "method", "epsilon")
            for ((method, epsilon), own), marker in zip(sorted(lines.items()), MARKERS * 2, strict=False):
                by_n = sorted(grouped(own, "n").items())
                colour = COLOURS[METHODS.index(method)]
                left.plot(
                    [n for (n,), _ in by_n],
                    [coverage(fits) for _, fits in by_n],
                    f"{marker}-",
                    color=colour,
                    label=f"{method}, epsilon {at_least(epsilon)}",
                )
            left.axhspan(*COVERAGE, color="0.9")
            left.set(xscale="log", xlabel="rows", ylabel="90 % intervals that hold", ylim=(0.8, 1))
            left.legend(frameon=False, fontsize=8)
            by_epsilon = sorted(grouped([one for one in found if one["data"] == ADULT], "epsilon").items())
            right.plot([e for (e,), _ in by_epsilon], [_mean(fits, "log_loss") for _, fits in by_epsilon], "o-")
            right.axhline(ADULT_LOSS_MAX, color="0.6", linestyle=":")
            right.set(xscale="log", xlabel="epsilon", ylabel="log loss on Adult's test part")


if __name__ == "__main__":
    sys.exit(LogisticCheck.main())
