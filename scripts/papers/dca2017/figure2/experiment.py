"""Cells of Figure 2, and what one computes: first the thresholds of each data set and ε, then each random split.

The search for thresholds sees no data. The authors searched anew for each split, with other random numbers, and what
is found varies; here a few searches serve the splits of a data set and an ε in turn, in every setting.

Beside the corrected configuration and ours, the paired comparison has steps from one to the other, which tell what pays
(`PAIRED`): the corrected configuration with our accounting, then with the tight sensitivity too. One more opponent is
no valid one: the corrected configuration with centres and ranges of the data themselves, as the authors have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from dca_proto.privacy.budget import Budget
from inference.models.coefficients import Coefficients
from inference.models.linear.one_round import regression_in_bounds
from inference.models.linear.repair import ABSOLUTE, NOISE_AWARE
from inference.models.linear.two_rounds import regression_with_projection
from inference.problem import Problem, Schema, stream
from inference.rounds import run
from papers.dca2017.figure2 import corrected, data, published
from papers.dca2017.figure2.corrected import SEPARATE, Accounting
from papers.dca2017.figure2.paired import Run, corrected_errors, our_errors, paired_errors
from papers.dca2017.figure2.rounds import DISTRIBUTED, PERTURBED, TRUSTED, UNNOISED, RoundByRound, swarm

AS_PUBLISHED, CORRECTED_ABSOLUTE, CORRECTED, OURS = "as published", "corrected, absolute", "corrected", "ours"
SETTINGS = (AS_PUBLISHED, CORRECTED_ABSOLUTE, CORRECTED, OURS)
CENTRED = "corrected, centred by the data"
JOINT, TIGHT = "+ joint accounting", "+ tight sensitivity"
STEPS = {CORRECTED: SEPARATE, JOINT: Accounting(joint=True), TIGHT: Accounting(joint=True, tight=True)}
PAIRED = (CENTRED, *STEPS, OURS)
SEARCHES = 3
REPAIR_OF = {CORRECTED_ABSOLUTE: ABSOLUTE, CORRECTED: NOISE_AWARE}
NP, PROJ_NP, TA, DDP, PERTURB = "NP", "proj NP", "TA", "DDP", "input perturbed"
PROJ_TA, PROJ_DDP, ZERO = "proj TA", "proj DDP", "zero predictor"
_MODES = {TA: TRUSTED, DDP: DISTRIBUTED, PERTURB: PERTURBED}
_PROJECTED = {PROJ_NP: UNNOISED, PROJ_TA: TRUSTED, PROJ_DDP: DISTRIBUTED}
Parts = tuple[Problem, Problem]
"""Rows to learn from and rows to test on, with a schema that says what is known of them."""


@dataclass(frozen=True)
class Searched:
    """A data set and an ε, for which thresholds are searched: one of several such searches."""

    name: str
    epsilon: float
    number: int = 0

    def __str__(self) -> str:
        return f"{self.name}, epsilon {self.epsilon:.4g}, search {self.number}"


@dataclass(frozen=True)
class Split:
    """A data set, an ε and a random split."""

    name: str
    epsilon: float
    repeat: int

    def __str__(self) -> str:
        return f"{self.name}, epsilon {self.epsilon:.4g}, split {self.repeat}"


@dataclass(frozen=True)
class Plan:
    """What is the same for all cells.

    Attributes:
        seed: of all streams. draws: of the noise for the paired comparison. folder: of the data, or None.
        constants: where centres and ranges are from (`data.assumed`).
        thresholds: what `thresholds` found, by the texts of `Searched` cells.
        searches: how many there are for each data set and ε.
    """

    seed: int
    draws: int
    folder: Path | None
    constants: str
    thresholds: Mapping[str, Mapping[str, Any]]
    searches: int = 1


def thresholds(cell: Searched, seed: int) -> dict[str, list[float]]:
    """Multiples of the standard deviation in each setting that searches: of features and target."""
    sizes = data.BY_NAME[cell.name]
    n, d = sizes.train, sizes.features

    def rng(setting: str) -> np.random.Generator:
        return stream(seed, f"search/{cell}/{setting}")

    found: dict[str, list[float]] = {
        AS_PUBLISHED: list(published.search(n, d, cell.epsilon, rng(AS_PUBLISHED))),
    }
    found[CORRECTED_ABSOLUTE] = list(corrected.search(n, d, cell.epsilon, ABSOLUTE, rng(CORRECTED_ABSOLUTE)))
    for step, accounting in STEPS.items():
        found[step] = list(corrected.search(n, d, cell.epsilon, NOISE_AWARE, rng(CORRECTED), accounting))
    return found


def errors(cell: Split, plan: Plan) -> dict[str, Any]:
    """Mean absolute errors of all methods in all settings, and those of the paired draws."""
    whole = _whole(cell.name, plan.folder, False)
    chosen = plan.thresholds[str(Searched(cell.name, cell.epsilon, cell.repeat % plan.searches))]
    found = {AS_PUBLISHED: _published(cell, plan, chosen[AS_PUBLISHED], as_published=True)}
    both = _published(cell, plan, chosen[AS_PUBLISHED], as_published=False)
    reference = {method: both[method] for method in (NP, ZERO)}
    unit = data.error_unit(whole)

    def scaled(private: Mapping[str, float]) -> dict[str, float]:
        return reference | {method: unit * error for method, error in private.items()}

    known = _parts(cell, plan, whole, data.assumed(cell.name, whole, plan.constants))
    for setting, repair in REPAIR_OF.items():
        found[setting] = scaled(_corrected(cell, plan, *known, repair, _pair(chosen[setting])))
    bounded = _parts(cell, plan, whole, whole.schema)
    found[OURS] = scaled(_ours(cell, plan, *bounded))
    runs: dict[str, Run] = {
        CENTRED: _run(
            _parts(cell, plan, whole, data.assumed(cell.name, whole, data.FROM_DATA)), cell, chosen, CORRECTED
        ),
        **{step: _run(known, cell, chosen, step) for step in STEPS},
        OURS: partial(our_errors, *bounded, cell.epsilon, NOISE_AWARE),
    }
    rng = stream(plan.seed, f"paired/{cell}")
    pairs = paired_errors(runs, len(whole.schema.columns), plan.draws, rng)
    return {"errors": found, "paired": {name: _rounded(unit * one) for name, one in pairs.items()}}


def _run(parts: Parts, cell: Split, chosen: Mapping[str, list[float]], step: str) -> Run:
    """The corrected configuration as one of `STEPS` has it."""
    return partial(corrected_errors, *parts, cell.epsilon, _pair(chosen[step]), NOISE_AWARE, STEPS[step])


@lru_cache(maxsize=8)
def _whole(name: str, folder: Path | None, as_published: bool) -> Problem:
    return data.problem(name, folder, as_published=as_published)


def _parts(cell: Split, plan: Plan, whole: Problem, schema: Schema) -> Parts:
    """Rows to learn from and to test on, with what is public about them."""
    first, second = data.rows_apart(cell.name, len(whole.y), cell.repeat, plan.seed)
    known = Problem(whole.name, schema, whole.X, whole.y)
    return known.take(first), known.take(second)


def _published(cell: Split, plan: Plan, chosen: list[float], *, as_published: bool) -> dict[str, float]:
    rows = data.scaled(_whole(cell.name, plan.folder, as_published).rows)
    first, second = data.rows_apart(cell.name, len(rows), cell.repeat, plan.seed)
    rng = stream(plan.seed, f"published/{cell}")
    return published.maes(rows[first], rows[second], cell.epsilon, _pair(chosen), rng)


def _corrected(
    cell: Split, plan: Plan, train: Problem, test: Problem, repair: str, chosen: tuple[float, float]
) -> dict[str, float]:
    """Errors in target units; runs of one split share their noise."""
    schema, epsilon = train.schema, cell.epsilon
    beta = {}
    for method, mode in _MODES.items():
        rounds = RoundByRound(train, mode, plan.seed, f"corrected/{cell}")
        beta[method] = corrected.regression(schema, rounds.hold, epsilon, repair)
    for method, mode in _PROJECTED.items():
        rounds = RoundByRound(train, mode, plan.seed, f"corrected, projected/{cell}")
        beta[method] = corrected.projected_regression(schema, rounds.hold, epsilon, repair, chosen)
    return {method: _mae(corrected.predictions(schema, one, test.X), test) for method, one in beta.items()}


def _ours(cell: Split, plan: Plan, train: Problem, test: Problem) -> dict[str, float]:
    """Errors in target units; runs of one split share their noise."""
    budget, found = Budget(cell.epsilon, data.DELTA), {}
    for method, mode in {**_MODES, **_PROJECTED}.items():
        rounds = swarm(train, budget, mode, plan.seed, f"ours/{method in _MODES}/{cell}")
        job = regression_in_bounds if method in _MODES else regression_with_projection
        fitted: Coefficients = run(job(train.schema), rounds)
        found[method] = _mae(fitted.predict(test.X)[0], test)
    return found


def _mae(predicted: data.Array, test: Problem) -> float:
    return float(np.abs(predicted - test.y).mean())


def _pair(chosen: list[float]) -> tuple[float, float]:
    features, target = chosen
    return features, target


def _rounded(values: data.Array) -> list[float]:
    return [round(float(value), 6) for value in values]
