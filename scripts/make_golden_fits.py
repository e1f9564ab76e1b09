#!/usr/bin/env python
"""Writes one fit of each job, and of data on which fits are hard: tests/inference/golden_fits.json.

    scripts/make_golden_fits.py               overwrites the file, and prints what differs by more than 1 % of an sd

The file has each figure's estimate, standard deviation and interval, and each test's statistic and p. Data and noise
have seeds. A test compares it with
the fits of today, so no change of an estimate or of an interval's width goes unseen.

How often intervals hold is measured by the scripts that `docs/measurements.md` lists. If a change moves fits on
purpose, run that of the job first, and then this one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import check_glm
import check_linear_coverage
import check_logistic
import check_quantiles
from check_false_alarms import designs, learned
from inference.bounds import Interval
from inference.jobs import NAMES, find
from inference.jobs.estimates import rows_of
from inference.problem import Problem, Schema

FILE = Path(__file__).parents[1] / "tests" / "inference" / "golden_fits.json"
SAMPLED = ("ldp-histogram", "ldp-mean", "ldp-regression")
"""Jobs whose posterior is drawn. Their draws depend on the version of the sampler."""
TOLERANCE = 0.01
Rng = np.random.Generator
Figures = dict[str, list[float | None]]
"""By its name, the estimate, standard deviation and both ends of the interval of a figure."""


class Case(NamedTuple):
    """A job with its settings, data and ε."""

    job: str
    data: Callable[[Rng], Problem]
    epsilon: float = 2.0
    settings: Mapping[str, Any] = {}

    def fit(self) -> Figures:
        """Return the figures of the job's fit; of a test, its statistic and its p as an interval."""
        rng = np.random.default_rng(7)
        found = learned(self.job, self.data(rng), self.settings, self.epsilon, rng)
        figures: Figures = {}
        for row in rows_of(found):
            figures[row["name"]] = [row["estimate"], row["estimate_sd"], *(row["interval_95"] or (None, None))]
        for place, test in enumerate(found.get("tests") or [found.get("log_rank")]):
            if test:
                figures[f"test {place}"] = [test["statistic"], None, test["p_value"], test["p_value"]]
        return figures


def _clean(name: str) -> Case:
    """Return a job on one of its clean designs: the third, which has features of all laws, or the last."""
    clean, own = find(name).clean, designs(name)
    return Case(name, lambda rng: own[:3][-1](rng, clean.clients), clean.epsilon, clean.settings)


def _linear(kind: str) -> Case:
    return Case("regression", lambda rng: check_linear_coverage.problem("drawn", kind, 5_000, rng)[0], 1.0)


def _glm(job: str, model: str, law: str, shape: str) -> Case:
    cell = check_glm.Cell(model, law, shape, check_glm.HARD_N, 1.0, 0)
    return Case(job, lambda rng: check_glm.rows_of(cell, rng), 1.0)


def _logistic(law: str, n: int = 20_000, method: str = check_logistic.AUTO) -> Case:
    return Case("logistic", lambda _: check_logistic.simulated(law, n, 7), 4.0, {"method": method})


def _quantiles(job: str, law: check_quantiles.Law) -> Case:
    schema = Schema((), "y", {"y": Interval(*law.ends)}, alone=True)
    return Case(job, lambda rng: Problem("made", schema, np.empty((2_000, 0)), law.draw(rng, 2_000)), 1.0)


def _two_arms(job: str) -> Case:
    def drawn(rng: Rng) -> Problem:
        own = designs(job)[0](rng, 3_000)
        arm = rng.random(3_000) < 0.4
        schema = Schema((*own.schema.features, "arm"), "y", {**own.schema.bounds, "arm": Interval(0, 1)})
        return Problem("made", schema, np.column_stack([own.X, arm]), own.y)

    return Case(job, drawn, 1.0, {"group": "arm"})


CASES: dict[str, Case] = {
    **{name: _clean(name) for name in NAMES if name not in SAMPLED},
    **{f"regression, {kind}": _linear(kind) for kind in check_linear_coverage.KINDS},
    "poisson-regression, steep": _glm("poisson-regression", "poisson", "poisson", check_glm.STEEP),
    "poisson-regression, few counts": _glm("poisson-regression", "poisson", "poisson", check_glm.FEW),
    "poisson-regression, dispersed": _glm("poisson-regression", "poisson", "dispersed", "skewed"),
    "robust-regression, outliers": _glm("robust-regression", "robust", "outliers", "skewed"),
    "robust-regression, wide bounds": _glm("robust-regression", "robust", "student", "wide"),
    "ordinal-regression, rare grades": _glm("ordinal-regression", check_glm.ORDINAL, check_glm.RARE, "skewed"),
    "multinomial-regression, rare": _glm("multinomial-regression", check_glm.MULTINOMIAL, check_glm.RARE, "skewed"),
    **{f"logistic, {law}": _logistic(law) for law in check_logistic.SIMULATED},
    **{
        f"{job}, {law}": _quantiles(job, drawn)
        for job in (check_quantiles.SUMS, check_quantiles.REPORTS)
        for law, drawn in check_quantiles.LAWS.items()
    },
    **{f"{job}, two arms": _two_arms(job) for job in ("survival", "survival-regression")},
    "logistic, one sum": _logistic(check_logistic.NORMAL, 2_000, check_logistic.ONE_SUM),
    "logistic, variational": _logistic(check_logistic.NORMAL, 2_000, check_logistic.VARIATIONAL),
}


def apart(found: Figures, expected: Figures) -> dict[str, float]:
    """Return how far each figure is from what is expected, in standard deviations, or in units of itself without one.

    The largest distance counts, of the estimate, its standard deviation and the ends of its interval. Raises
    ValueError if the names differ, or if a part is missing in one alone.
    """
    if list(found) != list(expected):
        raise ValueError(f"figures {', '.join(found)}; expected {', '.join(expected)}")
    far = {}
    for name, parts in found.items():
        before = expected[name]
        unit = before[1] or abs(before[0] or 0.0) or 1.0
        pairs = list(zip(parts, before, strict=True))
        if any((one is None) is not (other is None) for one, other in pairs):
            raise ValueError(f"{name} is {parts}; expected {before}")
        far[name] = max(abs(one - other) for one, other in pairs if one is not None and other is not None) / unit
    return far


def main(arguments: list[str] | None = None) -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args(arguments)
    before = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    fits = {name: case.fit() for name, case in CASES.items()}
    for name, found in fits.items():
        far = apart(found, before[name]) if list(before.get(name, ())) == list(found) else dict.fromkeys(found, np.inf)
        for figure, sds in far.items():
            if sds > TOLERANCE:
                print(f"{name}: {figure} is {found[figure]}, which is {sds:.3g} sds from before")
    rounded = {
        name: {
            figure: [None if part is None else float(f"{part:.6g}") for part in pair] for figure, pair in fit.items()
        }
        for name, fit in fits.items()
    }
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(fit)}" for name, fit in rounded.items())
    FILE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
