"""Jobs `survival`: Kaplan-Meier curves and the log-rank test, one round; `survival-regression`: hazards, two rounds."""

from __future__ import annotations

from dataclasses import dataclass

from dca_proto.aggregate import NodeReleaseRequest, SecureSumRequest
from dca_proto.wording import listed
from inference.errors import DataError
from inference.jobs.base import Conditions, LearningJob, Stage
from inference.jobs.settings import require_positive, require_share, setting
from inference.models.survival.columns import Columns
from inference.models.survival.curve import PRIOR_ROWS
from inference.models.survival.hazards import EFFECT_SD
from inference.models.survival.rounds import (
    ROWS_MAX,
    STD_SHARE,
    HazardsFit,
    SurvivalFit,
    curves_job,
    exact_curves,
    exact_hazards,
    hazards_job,
)
from inference.problem import Problem, Schema, stream
from inference.rounds import Job


@dataclass(frozen=True)
class GridSettings:
    """Of both jobs; the target is the duration."""

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
class Settings(GridSettings):
    """Of `survival`."""

    prior_rows: float = setting(PRIOR_ROWS, "How many rows the prior of the shares of events is worth.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("prior_rows", self.prior_rows)


@dataclass(frozen=True)
class RegressionSettings(GridSettings):
    """Of `survival-regression`; columns that are neither event nor group are features."""

    intervals: int = setting(4, "Intervals of constant hazard, up to the duration's upper bound.")
    prior_sd: float = setting(EFFECT_SD, "Standard deviation of each standardised log hazard ratio's prior.")
    std_share: float = setting(STD_SHARE, "The first round's share of the budget, between 0 and 1.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("prior_sd", self.prior_sd)
        require_share("std_share", self.std_share)


def read(schema: Schema, settings: GridSettings) -> Columns:
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
        std_share=settings.std_share,
    )


def plan_regression(schema: Schema, settings: RegressionSettings, conditions: Conditions) -> list[Stage]:
    """Scales first, then the regression."""
    share = settings.std_share
    return [Stage(1, share, "on centres and scales"), Stage(1, 1 - share, "on the regression")]


def reference_regression(train: Problem, settings: RegressionSettings) -> HazardsFit:
    """The same model from the exact sums."""
    return exact_hazards(train, read(train.schema, settings), settings.prior_sd)


def model_regression(schema: Schema, settings: RegressionSettings) -> str:
    """In words."""
    columns = read(schema, settings)
    on = listed((*([columns.group] if columns.group else []), *columns.features))
    return (
        f"hazards of {columns.duration} on {on}, constant in {len(columns.times)} intervals up to {columns.times[-1]:g}"
    )


KINDS = (SecureSumRequest, NodeReleaseRequest)
JOBS = {
    "survival": LearningJob(
        name="survival",
        settings=Settings,
        check=check,
        plan=plan,
        make=make,
        reference=reference,
        finish=lambda result, schema, settings, known: result.refit(prior_rows=settings.prior_rows),
        changeable=("prior_rows",),
        title="Survival over {target}",
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
        finish=lambda result, schema, settings, known: result.refit(prior_sd=settings.prior_sd),
        changeable=("prior_sd",),
        title="Effect on the log hazard over {target}",
        model=model_regression,
        dataset="simulated-trial",
        kinds=KINDS,
    ),
}
