"""Jobs `regression`: linear regression with projection, Algorithm 2, two rounds; `regression-bounded`: one round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inference.jobs.base import Conditions, LearningJob, Stage
from inference.jobs.settings import require_choice, require_positive, require_share, setting
from inference.models.coefficients import Coefficients
from inference.models.linear.baselines import nonprivate_regression
from inference.models.linear.one_round import regression_in_bounds
from inference.models.linear.repair import REPAIR, REPAIRS
from inference.models.linear.two_rounds import STD_SHARE, regression_with_projection
from inference.problem import Problem, Schema
from inference.rounds import Job


@dataclass(frozen=True)
class BoundedSettings:
    """Of the job of one round."""

    repair: str = setting(REPAIR, f"How an indefinite noisy matrix is dealt with: {', '.join(REPAIRS)}.")
    prior_precision: float | None = setting(
        None, "Precision of each slope's prior, in standard deviations; by default its scale is learned."
    )

    def __post_init__(self) -> None:
        require_choice("repair", self.repair, REPAIRS)
        require_positive("prior_precision", self.prior_precision)


@dataclass(frozen=True)
class Settings(BoundedSettings):
    """Of the job of two rounds."""

    std_share: float = setting(STD_SHARE, "The first round's share of the budget, between 0 and 1.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_share("std_share", self.std_share)


def finish(result: Coefficients, schema: Schema, settings: Any, conditions: Conditions) -> Coefficients:
    """The regression under the settings' prior and repair, of what the rounds gave."""
    return result.refit(prior_precision=settings.prior_precision, repair=settings.repair)


def make(schema: Schema, settings: Settings, conditions: Conditions) -> Job[Coefficients]:
    """The rounds of Algorithm 2."""
    return regression_with_projection(schema, std_share=settings.std_share)


def plan(schema: Schema, settings: Settings, conditions: Conditions) -> list[Stage]:
    """Centres and scales first, then the regression."""
    first, second = "on centres and scales", "on the regression"
    return [Stage(1, settings.std_share, first), Stage(1, 1 - settings.std_share, second)]


def make_bounded(schema: Schema, settings: BoundedSettings, conditions: Conditions) -> Job[Coefficients]:
    """The round within the public bounds."""
    return regression_in_bounds(schema)


def plan_bounded(schema: Schema, settings: BoundedSettings, conditions: Conditions) -> list[Stage]:
    """All of the budget at once."""
    return [Stage(1, 1.0, "all of the budget on the regression")]


def reference(train: Problem, settings: object) -> Coefficients:
    """Ordinary least squares on the raw rows."""
    return nonprivate_regression(train)


JOBS = {
    name: LearningJob(
        name=name,
        settings=settings,
        plan=planned,
        make=made,
        finish=finish,
        changeable=("repair", "prior_precision"),
        reference=reference,
    )
    for name, settings, planned, made in (
        ("regression", Settings, plan, make),
        ("regression-bounded", BoundedSettings, plan_bounded, make_bounded),
    )
}
