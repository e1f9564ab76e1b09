"""Jobs `survival`: curves and the log-rank test in one round; `survival-regression`: hazards in five rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from dca_proto.aggregate import NoisyAggregate
from dca_proto.protocol.wire.kinds import NodeRelease, SecureSum
from dca_proto.wording import listed
from inference.errors import DataError
from inference.jobs.base import Conditions, Estimable, RefitJob, Stage, one_round
from inference.jobs.examples import TIME, Clean, Example
from inference.jobs.settings import (
    JobSettings,
    first_share,
    require_count,
    require_positive,
    rows_of_nodes,
    setting,
)
from inference.models.score_rounds import ROUNDS, STD_SHARE, stages_of
from inference.models.shrinkage import SHRINKAGE, Shrinkage, ShrunkJob
from inference.models.survival import hazards_fit, rounds
from inference.models.survival.curve import PRIOR_ROWS
from inference.models.survival.hazards import Hazards
from inference.models.survival.rounds import Columns
from inference.models.survival.scoring import EFFECT_SD
from inference.posterior import Posterior
from inference.problem import Array, Problem, Schema, stream
from inference.rounds import Job


def require_grid(key: str, times: tuple[float, ...] | None) -> None:
    """Refuse times that are not above 0 and increasing; none at all pass, as not given. Raises `DataError`."""
    if times and any(left >= right for left, right in pairwise((0.0, *times))):
        found = ", ".join(f"{time:g}" for time in times[:8])
        raise DataError(f"setting {key!r} is {found}, expected numbers above 0 that increase, the ends of intervals")


@dataclass(frozen=True)
class GridSettings(JobSettings):
    """Settings of both jobs; the target is the duration."""

    finest: ClassVar[int] = 1  # intervals of the sum, at least

    event: str = setting(
        "event",
        "The column that is 1 if the duration ended in an event, and 0 if censored; or the second of two texts.",
    )
    group: str | None = setting(
        None, "A column of groups to compare, texts or 0, 1, ...; by default all rows are one group."
    )
    intervals: int = setting(12, "Number of equal intervals, up to the duration's upper bound.", require_count)
    times: tuple[float, ...] | None = setting(None, "Ends of the intervals instead, such as 3,6,12,24.", require_grid)
    rows_max: int = rows_of_nodes()

    def columns(self, schema: Schema) -> Columns:
        """Return the columns and the grid. Raises `DataError` as `Columns.of`."""
        return Columns.of(schema, self.event, self.group, self.times, self.intervals, self.finest)


@dataclass(frozen=True)
class Settings(GridSettings):
    """Settings of `survival`."""

    finest = rounds.FINEST
    prior_rows: float = setting(
        PRIOR_ROWS, "Number of rows that the prior of the shares of events is worth.", require_positive
    )


@dataclass(frozen=True)
class RegressionSettings(Shrinkage, GridSettings):
    """Settings of `survival-regression`; columns that are neither event nor group are features."""

    intervals: int = setting(4, "Number of equal intervals, each of constant hazard.", require_count)
    prior_sd: float = setting(
        EFFECT_SD, "Standard deviation of each standardised log hazard ratio's prior.", require_positive
    )
    std_share: float = first_share(STD_SHARE)


def check_codes(columns: Columns, rows: Array) -> None:
    """Raise `DataError` for a duration below 0, and for codes that are not those of events and groups.

    Args:
        rows: of the columns' names, in order, shape ``(n, len(columns.names))``.
    """
    if len(rows) and rows[:, 0].min() < 0:
        raise DataError(f"durations in {columns.duration!r} go down to {rows[:, 0].min():g}; expected 0 or more")
    first, last = columns.first_group, columns.first_group + columns.groups - 1
    wanted = [(columns.event, range(columns.censored, columns.censored + 2), "recode it, or choose its codes: "
               "0:1 (1 = event) or 1:2 (2 = event)")]  # fmt: skip
    if columns.group:
        wanted.append((columns.group, range(first, last + 1), "recode it, or state the number of groups and the first"))
    for place, (name, codes, advice) in enumerate(wanted, 1):
        values = np.unique(rows[:, place])
        if not np.isin(values, codes).all():
            found = ", ".join(f"{value:g}" for value in values[:5]) + (", ..." if values.size > 5 else "")
            raise DataError(f"column {name!r} has values {found}; expected {codes[0]} to {codes[-1]}: {advice}")


def of_rows(X: Array, durations: Array, estimator: Any) -> Hazards:
    """Return the law given raw rows of the schema's features, events and groups included."""
    settings, schema = estimator.job_settings(), estimator._schema
    rows, columns = Problem("rows", schema, X, durations), settings.columns(schema)
    check_codes(columns, rows.values(*columns.names))
    return hazards_fit.exact_hazards(rows, columns, settings.prior_sd)


def of_released(aggregates: Sequence[NoisyAggregate], estimator: Any) -> Hazards:
    """Return the law given all rounds."""
    settings, schema = estimator.job_settings(), estimator._schema
    return hazards_fit.hazards_from(aggregates, settings.columns(schema), schema, prior_sd=settings.prior_sd)


class SurvivalCurves(RefitJob):
    """Curves with bands, and the log-rank test."""

    name, title, dataset, settings = "survival", "Survival over {target}", "simulated-trial", Settings
    scored = False
    kinds = (SecureSum, NodeRelease)
    changeable = ("prior_rows",)
    estimator = "it predicts curves over times: `PrivateKaplanMeier` is written by hand"
    about = "[survival curves](jobs/survival.md) with bands, and the log-rank test"
    examples, clean = (Example(TIME, {"intervals": 4}),), Clean("durations alone")

    def numbers(self, schema: Schema, settings: GridSettings) -> tuple[str, ...]:
        return (schema.target,)

    def check(self, schema: Schema, settings: Settings) -> None:
        settings.columns(schema)

    def plan(self, schema: Schema, settings: Settings, conditions: Conditions) -> list[Stage]:
        return one_round("events and censored in each interval")

    def rounds(self, schema: Schema, settings: Settings, conditions: Conditions) -> Job[Posterior]:
        columns, rng, kind = settings.columns(schema), conditions.rng, conditions.kind
        return rounds.curves_job(columns, rng=rng, schema=schema, kind=kind, rows_max=settings.rows_max)

    def columns(self, settings: Settings) -> tuple[str, ...]:
        return (settings.event, *([settings.group] if settings.group else []))

    def model(self, schema: Schema, settings: Settings) -> str:
        columns = settings.columns(schema)
        by = f" by {columns.group}" if columns.group else ""
        return f"survival over {columns.duration}{by}, at {len(columns.times)} times up to {columns.times[-1]:g}"

    def reference(self, train: Problem, settings: Settings) -> Posterior:
        """Return the same curves from the exact counts."""
        return rounds.exact_curves(train, settings.columns(train.schema), stream(0, "reference"))


class SurvivalRegression(ShrunkJob):
    """Proportional hazards."""

    name, title = "survival-regression", "Effect on the log hazard over {target}"
    dataset, settings, kinds = "simulated-trial", RegressionSettings, SurvivalCurves.kinds
    changeable = ("prior_sd", *SHRINKAGE)
    estimator = Estimable("PrivateProportionalHazards", TIME, of_rows, of_released)
    about = "[hazard ratios](jobs/survival.md) of groups and features"
    examples, clean = (Example(TIME, {"intervals": 2}),), Clean(TIME)

    def codes(self, settings: RegressionSettings) -> tuple[str, ...]:
        return (settings.event, *([settings.group] if settings.group else []))

    def numbers(self, schema: Schema, settings: GridSettings) -> tuple[str, ...]:
        return (schema.target,)

    def check(self, schema: Schema, settings: RegressionSettings) -> None:
        features = settings.columns(schema).features
        settings.places(features)
        if not features:
            raise DataError(
                "no features beside event and group; name some, or take job 'survival', which compares groups without "
                "any"
            )

    def plan(self, schema: Schema, settings: RegressionSettings, conditions: Conditions) -> list[Stage]:
        return stages_of(ROUNDS, settings.std_share)

    def rounds(self, schema: Schema, settings: RegressionSettings, conditions: Conditions) -> Job[Hazards]:
        columns, most, share = settings.columns(schema), settings.rows_max, settings.std_share
        return hazards_fit.hazards_job(schema, columns, kind=conditions.kind, rows_max=most, std_share=share)

    def model(self, schema: Schema, settings: RegressionSettings) -> str:
        columns = settings.columns(schema)
        on, end = listed((*([columns.group] if columns.group else []), *columns.features)), columns.times[-1]
        return f"hazards of {columns.duration} on {on}, constant in {len(columns.times)} intervals up to {end:g}"

    def exact(self, train: Problem, settings: RegressionSettings) -> Hazards:
        """Fit the model to raw rows."""
        return hazards_fit.exact_hazards(train, settings.columns(train.schema), settings.prior_sd)
