"""Jobs `ordinal-regression` and `multinomial-regression`: categories on features, in a few rounds.

A round for centres and scales of the features, then rounds of scores (`scoring`). The target's public bounds state its
categories: all whole numbers between them. Values beyond count as the ends, so bounds that end before rare grades merge
these. The first round of scores asks at equal chances and effects of 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.statistics.category_score import CLASSES_MAX
from inference.columns import Standardisation
from inference.errors import DataError
from inference.jobs.base import Conditions, Estimable, Stage
from inference.jobs.examples import GRADE, KIND, Clean, Example
from inference.jobs.settings import require_positive, setting
from inference.locate import locate, phases_request
from inference.models.categories import scoring
from inference.models.categories.law import Categories, categories_from, exact_categories, scored, statistic_of
from inference.models.categories.model import Model
from inference.models.categories.scoring import Rows
from inference.models.score_rounds import ROUNDS, STD_SHARE, ScoreSettings, score_rounds, stages_of
from inference.models.shrinkage import SHRINKAGE, Shrinkage, ShrunkJob
from inference.problem import Array, Problem, Schema
from inference.rounds import Job, request_of

CURVED_MAX = 10_000  # terms of the information with those of curves, beyond which no round asks for curves


@dataclass(frozen=True)
class Settings(ScoreSettings, Shrinkage):
    """Settings of both jobs."""

    prior_sd: float = setting(
        scoring.EFFECT_SD, "Standard deviation of the prior of each standardised effect.", require_positive
    )


def codes_of(schema: Schema) -> Array:
    """Return the categories' codes. Raises `DataError` unless the bounds of the target are whole numbers."""
    bounds = schema.bounds[schema.target]
    found = f"target {schema.target!r} has bounds {bounds.lower:g}:{bounds.upper:g}"
    if not (float(bounds.lower).is_integer() and float(bounds.upper).is_integer()):
        raise DataError(f"{found}; number its categories, and give the first and the last whole number, as in 1:5")
    if not 2 <= (classes := int(bounds.upper - bounds.lower) + 1) <= CLASSES_MAX:
        raise DataError(f"{found}: {classes} categories; expected 2 to {CLASSES_MAX}: choose a target of categories")
    return np.arange(bounds.lower, bounds.upper + 1)


def category_regression(
    schema: Schema, *, ordered: bool, rounds: int = ROUNDS, std_share: float = STD_SHARE
) -> Job[Categories]:
    """Run the job: a generator that yields `RoundRequest`s, receives `NoisyAggregate`s and returns the fit.

    Args:
        ordered: whether the categories have an order. rounds: number of rounds of scores.
        std_share: the first round's share of the budget.

    Raises:
        DataError: the target's bounds are no categories, or a setting is out of range.
    """
    Settings(rounds=rounds, std_share=std_share)  # checks them
    codes = codes_of(schema)
    model = Model(ordered, len(codes), len(schema.features))
    phases = yield phases_request(schema, std_share, schema.features)
    columns = columns_of(schema, phases, codes)
    curves = scoring.CURVES if rounds > 1 and model.with_curves.terms <= CURVED_MAX else 0.0
    n = phases.contributors

    def ask(aggregates: Sequence[NoisyAggregate], noise: float, share: float, last: bool) -> RoundRequest:
        rows, theta, is_first = Rows.unknown(model.features), model.theta(model.prior(1.0).mean), len(aggregates) == 1
        if not is_first:
            released, rows = scored(aggregates[1:], model)
            theta = scoring.next_theta(released, rows, n, model)
        further = {"cubes": scoring.CUBES if is_first else 0.0, "curves": curves if last else 0.0}
        request = scoring.best_request(rows, theta, n, noise, model, **further)
        return request_of(statistic_of(columns, model, request), share)

    aggregates = yield from score_rounds(phases, rounds, std_share, ask)
    return categories_from(aggregates, ordered=ordered, schema=schema)


def columns_of(schema: Schema, phases: NoisyAggregate, codes: Array) -> Standardisation:
    """Return the features' standardisation within their public bounds, and the target's codes from 0."""
    columns = locate(phases).standardisation(schema, inf)
    columns.centre[-1], columns.scale[-1] = codes[0], 1.0
    return replace(columns, bound=np.r_[columns.farthest(schema)[:-1], len(codes) - 1.0])


def of_rows(X: Array, y: Array, given: Any) -> Categories:
    """Return the posterior given raw rows; y numbers the estimator's classes from 0."""
    codes = np.arange(int(y.max()) + 1.0)
    return exact_categories(X, y, codes, ordered=given.job.ordered, prior_sd=given.prior_sd)


def of_released(aggregates: Sequence[NoisyAggregate], given: Any) -> Categories:
    """Return the posterior given rounds of scores."""
    return categories_from(aggregates, given.prior_sd, ordered=given.job.ordered)


class MultinomialRegression(ShrunkJob):
    """Regression of categories without an order."""

    name, title, settings = "multinomial-regression", "Effect on the log odds of {target}", Settings
    changeable = ("prior_sd", *SHRINKAGE)
    about = "[categories](jobs/categories.md) without an order, in five rounds"
    ordered, any_labels = False, True
    estimator = Estimable("PrivateMultinomialRegression", KIND, of_rows, of_released)
    examples, clean = (Example(KIND),), Clean(KIND)

    def check(self, schema: Schema, settings: Settings) -> None:
        codes_of(schema)
        super().check(schema, settings)

    def plan(self, schema: Schema, settings: Settings, conditions: Conditions) -> list[Stage]:
        return stages_of(settings.rounds, settings.std_share)

    def rounds(self, schema: Schema, settings: Settings, conditions: Conditions) -> Job[Categories]:
        return category_regression(schema, ordered=self.ordered, rounds=settings.rounds, std_share=settings.std_share)

    def exact(self, train: Problem, settings: Settings) -> Categories:
        """Fit the model to raw rows. Raises `DataError` if a value is missing."""
        codes, rows = codes_of(train.schema), train.complete
        y = np.clip(np.rint(rows.y), codes[0], codes[-1])
        given: dict[str, Any] = {"ordered": self.ordered, "prior_sd": settings.prior_sd}
        given["texts"] = train.schema.bounds[train.schema.target].labels
        return exact_categories(rows.X, y, codes, **given, names=train.schema.columns)


class OrdinalRegression(MultinomialRegression):
    """Regression of grades, which have an order."""

    name, title = "ordinal-regression", "Effect on the log odds of a higher {target}"
    about = "[grades](jobs/categories.md) in their order, in five rounds"
    ordered = True
    estimator = Estimable("PrivateOrdinalRegression", GRADE, of_rows, of_released)
    examples, clean = (Example(GRADE),), Clean(GRADE)
