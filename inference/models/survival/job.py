"""Jobs `survival`: Kaplan-Meier curves and the log-rank test, one round; `survival-regression`: hazards, two rounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dca_proto.aggregate import NodeReleaseRequest, SecureSumRequest
from dca_proto.wording import listed
from inference.errors import DataError
from inference.jobs.base import Conditions, LearningJob, Stage
from inference.jobs.estimates import BY_SD, Figure, normal, of_draws, row, score, standard_unit, with_standard
from inference.jobs.settings import setting
from inference.jobs.summary import HeldOut, Row, Summary
from inference.models.survival.hazards import EFFECT_SD
from inference.models.survival.rounds import (
    MOMENTS_SHARE,
    ROWS_MAX,
    Columns,
    HazardsFit,
    SurvivalFit,
    curves_job,
    exact_curves,
    exact_hazards,
    hazards_job,
)
from inference.problem import Problem, Schema, stream
from inference.rounds import Job

ASSUMED = (
    "taken for normal within groups; intervals of binary, skewed or heavy-tailed ones hold less often, the more rows "
    "and budget there are"
)
LOG_HAZARD = "log hazard ratio"


@dataclass(frozen=True)
class Settings:
    """Of `survival`; the target is the duration."""

    event: str = setting("event", "The column that is 1 where the duration ended in an event, and 0 if censored.")
    group: str | None = setting(None, "A column of groups 0, 1, ..., to be compared; by default all rows are one.")
    intervals: int = setting(12, "Intervals of one length, up to the duration's upper bound.")
    times: tuple[float, ...] | None = setting(None, "Ends of the intervals instead, such as 3,6,12,24.")
    rows_max: int = setting(ROWS_MAX, "Rows of a data node that count, those first.")

    def __post_init__(self) -> None:
        for name in ("intervals", "rows_max"):
            if getattr(self, name) < 1:
                raise DataError(f"setting {name!r} is {getattr(self, name)}, expected at least 1")


@dataclass(frozen=True)
class RegressionSettings(Settings):
    """Of `survival-regression`; columns that are neither event nor group are features."""

    intervals: int = setting(4, "Intervals of constant hazard, up to the duration's upper bound.")
    moments_share: float = setting(MOMENTS_SHARE, "The first round's share of the budget, between 0 and 1.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.moments_share < 1:
            raise DataError(f"setting 'moments_share' is {self.moments_share:g}, expected a number between 0 and 1")


def read(schema: Schema, settings: Settings) -> Columns:
    """The columns and the grid. Raises `DataError`."""
    return Columns.of(schema, settings.event, settings.group, settings.times, settings.intervals)


def needed(settings: Settings) -> tuple[str, ...]:
    """What is read beside the duration."""
    return (settings.event, *([settings.group] if settings.group else []))


# --- curves -----------------------------------------------------------------------------------------------------------


def check(schema: Schema, settings: Settings) -> None:
    """Refuse a schema without the columns that the settings name. Raises `DataError`."""
    read(schema, settings)


def make(schema: Schema, settings: Settings, conditions: Conditions) -> Job[SurvivalFit]:
    """The job's round."""
    return curves_job(
        read(schema, settings),
        rng=conditions.rng,
        private=schema.private,
        kind=conditions.kind,
        rows_max=settings.rows_max,
    )


def plan(schema: Schema, settings: Settings, conditions: Conditions) -> list[Stage]:
    """All of the budget at once."""
    return [Stage(1, 1.0, "all of the budget on events and censored in each interval")]


def reference(train: Problem, settings: Settings) -> SurvivalFit:
    """The same curves from the exact counts."""
    return exact_curves(train, read(train.schema, settings), stream(0, "reference"))


def model(schema: Schema, settings: Settings) -> str:
    """In words."""
    columns = read(schema, settings)
    by = f" by {columns.group}" if columns.group else ""
    return f"survival over {columns.duration}{by}, in {len(columns.times)} intervals up to {columns.times[-1]:g}"


def summary(
    result: SurvivalFit, reference: SurvivalFit | None, train: Problem | None, test: Problem | None, schema: Schema
) -> Summary:
    """S(t_k) of each group, mean durations, and the log-rank test."""
    columns, rows = result.columns, list[Row]()
    unit = schema.units.get(columns.duration, "")
    for g, label in enumerate(columns.group_labels):
        for k, time in enumerate(columns.times):
            found = row(
                f"S({time:g}), {label}",
                "",
                _figure(result, g, k),
                None if reference is None else _figure(reference, g, k),
            )
            rows.append({**with_standard(found, "probability"), "at": {"series": label, "x": time}})
    for g, label in enumerate(columns.group_labels):
        others = None if reference is None else of_draws(reference.restricted_mean[..., g])
        name = f"mean to {columns.times[-1]:g}, {label}"
        rows.append(row(name, unit, of_draws(result.restricted_mean[..., g]), others))
    test_of = result.log_rank
    remarks = {"bands": "each interval holds by itself (pointwise), not all of a curve at once"}
    if test_of is not None:
        remarks["log-rank"] = (
            f"chi-squared {test_of.statistic:.2f} with {test_of.degrees} degree{'s' * (test_of.degrees > 1)} of "
            f"freedom, p = {test_of.p_value:.2g}; its variance includes the privacy noise"
        )
    return {
        "estimates": rows,
        "log_rank": None if test_of is None else test_of._asdict(),
        "remarks": remarks,
        "warnings": result.warnings,
        "test": None,
    }


def _figure(fit: SurvivalFit, group: int, interval: int) -> Figure:
    return of_draws(fit.draws[:, :, group, interval])


def picture_title(schema: Schema) -> str:
    """What the curves are."""
    return f"Survival over {schema.target}"


# --- proportional hazards ---------------------------------------------------------------------------------------------


def check_regression(schema: Schema, settings: RegressionSettings) -> None:
    """As `check`, and refuse a schema without features. Raises `DataError`."""
    if not read(schema, settings).features:
        raise DataError(
            "no features beside event and group; name some, or take job 'survival', which compares groups without any"
        )


def make_regression(schema: Schema, settings: RegressionSettings, conditions: Conditions) -> Job[HazardsFit]:
    """The job's rounds."""
    return hazards_job(
        schema,
        read(schema, settings),
        kind=conditions.kind,
        rows_max=settings.rows_max,
        moments_share=settings.moments_share,
    )


def plan_regression(schema: Schema, settings: RegressionSettings, conditions: Conditions) -> list[Stage]:
    """Scales first, then the regression."""
    share = settings.moments_share
    return [Stage(1, share, "on centres and scales"), Stage(1, 1 - share, "on the regression")]


def reference_regression(train: Problem, settings: RegressionSettings) -> HazardsFit:
    """The same model from the exact sums."""
    return exact_hazards(train, read(train.schema, settings))


def model_regression(schema: Schema, settings: RegressionSettings) -> str:
    """In words."""
    columns = read(schema, settings)
    on = listed((*([columns.group] if columns.group else []), *columns.features))
    return (
        f"hazards of {columns.duration} on {on}, constant in {len(columns.times)} intervals up to {columns.times[-1]:g}"
    )


def summary_regression(
    result: HazardsFit, reference: HazardsFit | None, train: Problem | None, test: Problem | None, schema: Schema
) -> Summary:
    """Log hazard ratios of groups and features, and how well risks are ordered on rows that nobody learned from."""
    columns = result.columns
    others = [None] * len(_figures(result)) if reference is None else _figures(reference)
    names = [*(columns.group_labels[1:]), *columns.features]
    scales = np.r_[np.ones(columns.groups - 1), result.scale]
    axis = standard_unit(LOG_HAZARD, BY_SD)
    rows = [
        with_standard(row(name, _unit(schema, name), own, other), axis, scale)
        for name, own, other, scale in zip(names, _figures(result), others, scales, strict=True)
    ]
    return {
        "estimates": rows,
        "remarks": {"features": ASSUMED},
        "warnings": result.warnings,
        "test": None if test is None else _scores(result, reference, test),
    }


def _unit(schema: Schema, name: str) -> str:
    return f"{LOG_HAZARD} per {schema.units[name]}" if name in schema.units else LOG_HAZARD


def _figures(fit: HazardsFit) -> list[Figure]:
    """Of groups, then features, in own units."""
    means, sds = np.r_[fit.group_effects[0], fit.coefficients], np.r_[fit.group_effects[1], fit.coefficient_sd]
    priors = EFFECT_SD / np.r_[np.ones(fit.columns.groups - 1), fit.scale]
    both = zip(means, sds, priors, strict=True)
    return [normal(mean, sd)._replace(prior=normal(0.0, prior).interval) for mean, sd, prior in both]


def _scores(result: HazardsFit, reference: HazardsFit | None, test: Problem) -> HeldOut:
    """Harrell's concordance."""
    own, other = concordance(result, test), None if reference is None else concordance(reference, test)
    return {"rows": len(test.y), "scores": [score("concordance", own, other, 0.5, higher_is_better=True)]}


def concordance(fit: HazardsFit, rows: Problem) -> float:
    """Of all pairs of rows whose order is known, the part in which the sooner event has the higher risk."""
    columns = fit.columns
    at = {name: rows.rows[:, rows.schema.columns.index(name)] for name in columns.names}
    features = np.column_stack([at[name] for name in columns.features])
    risk = fit.log_hazard_ratio(features, at[columns.group] if columns.group else None)
    duration, had = at[columns.duration], at[columns.event] > 0.5
    pairs, higher = 0, 0.0
    for i in np.flatnonzero(had):  # row by row: a table of all pairs would fill the memory
        later = risk[(duration > duration[i]) | ((duration == duration[i]) & ~had)]
        pairs += later.size
        higher += float(np.sum(later < risk[i]) + 0.5 * np.sum(later == risk[i]))
    return higher / pairs if pairs else 0.5


def picture_title_regression(schema: Schema) -> str:
    """What the coefficients are."""
    return f"Effect on the log hazard over {schema.target}"


KINDS = (SecureSumRequest, NodeReleaseRequest)
JOBS = {
    "survival": LearningJob(
        name="survival",
        settings=Settings,
        check=check,
        plan=plan,
        make=make,
        reference=reference,
        summary=summary,
        draws=lambda result, rng: result.inference_data(),
        picture_title=picture_title,
        model=model,
        columns=needed,
        dataset="simulated-trial",
        scored=False,
        kinds=KINDS,
    ),
    "survival-regression": LearningJob(
        name="survival-regression",
        settings=RegressionSettings,
        check=check_regression,
        plan=plan_regression,
        make=make_regression,
        reference=reference_regression,
        summary=summary_regression,
        picture_title=picture_title_regression,
        model=model_regression,
        dataset="simulated-trial",
        kinds=KINDS,
    ),
}
