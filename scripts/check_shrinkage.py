#!/usr/bin/env python
"""Horseshoe and group priors of all regressions: coverage, errors beside the default prior's, and who warns.

Each data set has 20 normal features, of which 0, 3 or 10 have an effect: 0.5, -0.4, 0.3 and again, in standard
deviations of the feature; half of that for log means of counts, and for the second category half of the first's with
the other sign. N = 2,000 and 20,000, epsilon 1 and 4, delta 1e-5. Rounds are ideal with exact noise, once for each data
set. All three priors are of the same sums: the default, the horseshoe by default, and two groups, of which one has all
effects. *verified* is linear regression from verified sums.

An effect is *lost* if its 95 % interval misses it and the estimate is less than half of it. The checks:

- In results without any warning, intervals hold real effects as stated: at least 0.85 of those of 95 %, 0.78 of 90 %,
  for each prior, N and epsilon.
- Intervals of effects of zero hold: at least 0.90 of those of 95 %, for each prior and regression.
- A fit that loses an effect warns: at most 0.05 of all fits of a prior lose one without any warning.
- Clean fits rarely warn: at most 0.05 of them have a warning of the horseshoe. These are the fits of N = 20,000, but
  for `regression-bounded` and `survival-regression`, whose noise hides effects at that size, too.
- With 0 or 3 effects, the horseshoe's errors of all slopes in clean fits are at most 0.8 of the default prior's, for
  each regression (root of the mean square).

Each figure fails only if chance would bring one so far beyond its limit less than once in 100 runs of the whole table
(binomial tails, Bonferroni over all figures; intervals of one fit are nearly independent). So a program within the
limits fails at most once in 100 runs. The ratios of errors have no margin for chance.

Exit code 4 if a check fails. Takes five minutes on two cores; --quick runs half of the repeats.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from dca_proto.jobs.job import JobTerms
from dca_proto.privacy.rounding import at_least
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.jobs import find
from inference.jobs.base import Conditions
from inference.jobs.estimates import COEFFICIENTS
from inference.models.shrinkage import GROUPS, HORSESHOE, Shrinkage
from inference.models.survival.hazards import RATIO
from inference.problem import Array, Problem, Schema
from inference.rounds import run
from papers.experiment import FALSE_ALARM, BlockExperiment, Result, outside
from papers.runner import Check, table

FEATURES, DELTA, DRAWS = 20, 1e-5, 250
NAMES = tuple(f"x{j}" for j in range(FEATURES))
EFFECTS, PARTS = np.array([0.5, -0.4, 0.3]), (1.0, -0.5)  # parts: of the log odds of each category to the first
VERIFIED, LINEAR = "verified", "regression"
REGRESSIONS = (LINEAR, VERIFIED, "regression-bounded", "logistic", "poisson-regression", "robust-regression",
               "ordinal-regression", "multinomial-regression", "survival-regression")  # fmt: skip
CLEAN = [one for one in REGRESSIONS if one not in ("regression-bounded", "survival-regression")]
SIZES, EPSILONS, REAL = (2_000, 20_000), (1.0, 4.0), (0, 3, 10)
REPEATS = 4
HALVES = ";".join(",".join(part) for part in (NAMES[: FEATURES // 2], NAMES[FEATURES // 2 :]))
PRIORS = {HORSESHOE: Shrinkage(shrinkage=HORSESHOE), GROUPS: Shrinkage(shrinkage=GROUPS, prior_groups=HALVES)}
LEVELS = (0.9, 0.95)
LEAST_REAL, LEAST_ZERO, SILENT_MOST, CLEAN_MOST, RATIO_MOST = {0.9: 0.78, 0.95: 0.85}, 0.90, 0.05, 0.05, 0.8
COMPUTES = tuple(bytes([index]) * 16 for index in range(3))


class Cell(NamedTuple):
    """Repeats in one setting."""

    regression: str
    n: int
    epsilon: float
    real: int
    block: int


def made(regression: str, n: int, real: int, rng: np.random.Generator) -> tuple[Problem, Array]:
    """Draw rows, and return them with the true slopes in the order of the table of estimates."""
    X, truth = rng.standard_normal((n, FEATURES)), np.zeros(FEATURES)
    truth[:real] = np.resize(EFFECTS, real) * (0.5 if regression == "poisson-regression" else 1.0)
    eta, features, bounds = X @ truth, NAMES, dict.fromkeys(NAMES, Interval(-5, 5))
    match regression:
        case "robust-regression":
            y, ends = 1 + eta + 0.7 * rng.standard_t(4, n), Interval(-20, 22)
        case "logistic":
            y, ends = rng.random(n) < 1 / (1 + np.exp(0.5 - eta)), Interval(0, 1)
        case "poisson-regression":
            y, ends = rng.poisson(np.exp(1 + eta)), Interval(0, 60)
        case "ordinal-regression":
            y, ends = np.searchsorted([-1.5, 0.0, 1.5], eta + rng.logistic(size=n)), Interval(0, 3)
        case "multinomial-regression":
            size = np.column_stack([0.5 + 0 * eta, *(part * eta for part in PARTS)]) + rng.gumbel(size=(n, 3))
            y, ends, truth = size.argmax(axis=1), Interval(0, 2), np.concatenate([part * truth for part in PARTS])
        case "survival-regression":
            life, leave = rng.exponential(8 * np.exp(-eta)), rng.uniform(2, 24, n)
            X, features, bounds["event"] = np.column_stack([X, life <= leave]), (*NAMES, "event"), Interval(0, 1)
            y, ends = np.minimum(np.minimum(life, leave), 24), Interval(0, 24)
        case _:
            y, ends = 1 + eta + rng.standard_normal(n), Interval(-9, 11)
    clipped = np.clip(np.asarray(y, float), ends.lower, ends.upper)
    return Problem("made", Schema(features, "y", {**bounds, "y": ends}), X, clipped), truth


def learned(cell: Cell, data: Problem, rng: np.random.Generator) -> Any:
    """Return the law of the default prior."""
    job, tolerate = find(LINEAR if cell.regression == VERIFIED else cell.regression), cell.n // 10
    more = {"verified": cell.regression == VERIFIED, "computes": COMPUTES}
    terms = JobTerms(epsilon=cell.epsilon, delta=DELTA, clients=cell.n, tolerate=tolerate, **more)
    known = Conditions(cell.n, tolerate, terms.budget.mu, rng)
    return run(job.make(data.schema, job.settings(), known), IdealSwarm(data.rows, data.schema.columns, terms))


def drawn(law: Any) -> Array:
    """Return draws of the slopes, in the order of the table: ``(draws, slopes)``."""
    draws = law.posterior().draws
    own = np.asarray(draws[COEFFICIENTS if COEFFICIENTS in draws else RATIO])
    return own.reshape(own.shape[0] * own.shape[1], -1)


def fits(cell: Cell, rng: np.random.Generator) -> dict[str, float]:
    """Return the figures of one data set: counts of intervals, of those that hold, of warnings, and squared errors."""
    data, truth = made(cell.regression, cell.n, cell.real, rng)
    law, real = learned(cell, data, rng), truth != 0
    plain = drawn(law).mean(axis=0)
    figures = {
        "effects": float(real.sum()),
        "zeros": float((~real).sum()),
        "square": float(((plain - truth) ** 2).sum()),
    }
    for name, prior in PRIORS.items():
        shrunk = prior.shrink(law, DRAWS)
        slopes, own = drawn(shrunk), len(shrunk.warnings) > len(law.warnings)
        mean, by_level = slopes.mean(axis=0), {}
        for level in LEVELS:
            low, high = np.quantile(slopes, (0.5 - level / 2, 0.5 + level / 2), axis=0)
            by_level[level] = (low <= truth) & (truth <= high)
        lost = bool((real & ~by_level[0.95] & (np.abs(mean) < np.abs(truth) / 2)).any())
        silent = not shrunk.warnings
        found = {"warned": own, "silent": silent, "lost": lost, "silently lost": lost and silent,
                 "square": ((mean - truth) ** 2).sum(), "unwarned": real.sum() * silent}  # fmt: skip
        for level, one in by_level.items():
            found |= {f"effects {level:g}": one[real].sum(), f"zeros {level:g}": one[~real].sum(),
                      f"unwarned {level:g}": one[real].sum() * silent}  # fmt: skip
        figures |= {f"{name} {key}": float(value) for key, value in found.items()}
    return figures


def total(results: list[Result], name: str, **equal: Any) -> float:
    """Return the sum of a figure over all fits of the cells whose entries have these values."""
    own = [one for one in results if all(one[key] == value for key, value in equal.items())]
    return float(sum(one[name] * one["repeats"] for one in own))


def count(results: list[Result], **equal: Any) -> int:
    """Return the number of fits of these cells."""
    return sum(one["repeats"] for one in results if all(one[key] == value for key, value in equal.items()))


def ratio(results: list[Result], name: str, **equal: Any) -> float:
    """Return the root of the mean square error of all slopes, over the default prior's."""
    return float(np.sqrt(total(results, f"{name} square", **equal) / total(results, "square", **equal)))


def share(part: float, whole: float) -> str:
    """Return a percentage, empty of nothing."""
    return f"{100 * part / whole:.0f} %" if whole else ""


@dataclass(frozen=True, kw_only=True)
class ShrinkageCheck(BlockExperiment[Cell]):
    __doc__ = __doc__
    KIND, LABEL = "check-shrinkage", "shrinkage"
    QUICK = MappingProxyType({"share": 0.5})

    def cells(self) -> list[Cell]:
        return [Cell(*one, 0) for one in product(REGRESSIONS, SIZES, EPSILONS, REAL)]

    def cost(self, cell: Cell) -> float:
        return cell.n * (3.0 if cell.regression == "multinomial-regression" else 1.0)

    def repeats(self, cell: Cell) -> int:
        return REPEATS

    def once(self, cell: Cell, rng: np.random.Generator) -> dict[str, float]:
        return fits(cell, rng)

    def notes(self, found: list[Result]) -> dict[str, Any]:
        return {"delta": DELTA}

    def tables(self, found: list[Result]) -> Iterator[Table]:
        heads = ("effects, 90 %", "95 %", "zeros, 90 %", "95 %", "error", "warned", "any warning", "lost", "silently")
        by_size = [{"n": n, "epsilon": epsilon, "real": real} for n, epsilon, real in product(SIZES, EPSILONS, REAL)]
        by_regression = [{"regression": one, "n": n} for one, n in product(REGRESSIONS, SIZES)]
        for name, places in product(PRIORS, (by_size, by_regression)):
            rows = table(f"{name}: intervals that hold, errors over the default prior's, fits", "of", *heads)
            for at in places:
                shares = [
                    share(total(found, f"{name} {kind} {level:g}", **at), total(found, kind, **at))
                    for kind, level in product(("effects", "zeros"), LEVELS)
                ]
                fits = count(found, **at)
                silent = fits - total(found, f"{name} silent", **at)
                of_fits = [total(found, f"{name} {what}", **at) for what in ("warned", "lost", "silently lost")]
                of_fits.insert(1, silent)
                shown = ", ".join(
                    f"{key} {at_least(value) if key == 'epsilon' else value}" for key, value in at.items()
                )
                rows.add_row(shown.replace("regression ", ""), *shares, f"{ratio(found, name, **at):.2f}",
                             *(share(one, fits) for one in of_fits))  # fmt: skip
            yield rows

    def checks(self, found: list[Result]) -> Iterator[Check]:
        sizes = list(product(PRIORS, SIZES, EPSILONS))
        looks = len(sizes) * len(LEVELS) + len(PRIORS) * len(REGRESSIONS) + len(PRIORS) + 1

        def judged(name: str, part: float, whole: float, least: float, most: float, expected: str) -> Check:
            measured = part / whole if whole else least
            chance = outside(measured, whole, least, most) if whole else 1.0
            return Check(
                name, f"{expected}, but for chance", f"{measured:.3f} of {whole:.0f}", chance >= FALSE_ALARM / looks
            )

        for (name, n, epsilon), level in product(sizes, LEVELS):
            at, least = {"n": n, "epsilon": epsilon}, LEAST_REAL[level]
            part, whole = total(found, f"{name} unwarned {level:g}", **at), total(found, f"{name} unwarned", **at)
            title = f"{name}, effects without a warning, {level:.0%}, N = {n}, epsilon {at_least(epsilon)}"
            yield judged(title, part, whole, least, 1.0, f">= {least:.2f}")
        for name, one in product(PRIORS, REGRESSIONS):
            part, whole = total(found, f"{name} zeros 0.95", regression=one), total(found, "zeros", regression=one)
            yield judged(f"{name}, zeros, {one}", part, whole, LEAST_ZERO, 1.0, f">= {LEAST_ZERO:.2f}")
        for name in PRIORS:
            lost = total(found, f"{name} silently lost")
            yield judged(f"{name}, fits that lose an effect silently", lost, count(found), 0.0, SILENT_MOST,
                         f"<= {SILENT_MOST:.2f}")  # fmt: skip
        clean = [result for result in found if result["n"] == max(SIZES) and result["regression"] in CLEAN]
        warned = total(clean, f"{HORSESHOE} warned"), count(clean)
        yield judged("clean fits with a warning of the horseshoe", *warned, 0.0, CLEAN_MOST, f"<= {CLEAN_MOST:.2f}")
        few = [result for result in clean if result["real"] < max(REAL)]
        for one in CLEAN:
            error = ratio(few, HORSESHOE, regression=one)
            yield Check(f"errors of {one}", f"<= {RATIO_MOST:.2f}", f"{error:.2f}", error <= RATIO_MOST)


if __name__ == "__main__":
    sys.exit(ShrinkageCheck.main())
