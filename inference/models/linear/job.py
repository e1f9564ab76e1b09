"""Jobs `regression`: linear regression with projection, Algorithm 2, two rounds; `regression-bounded`: one round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inference.jobs.base import Conditions, LearningJob, Stage, one_round
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


class Bounded(LearningJob):
    """Linear regression within the public bounds, one round."""

    name, settings = "regression-bounded", BoundedSettings
    changeable = ("repair", "prior_precision")

    def plan(self, schema: Schema, settings: Any, conditions: Conditions) -> list[Stage]:
        return one_round("the regression")

    def make(self, schema: Schema, settings: Any, conditions: Conditions) -> Job[Coefficients]:
        return regression_in_bounds(schema)

    def learned(self, gave: Coefficients, schema: Schema, settings: Any, conditions: Conditions) -> Coefficients:
        return gave.refit(prior_precision=settings.prior_precision, repair=settings.repair)

    def reference(self, train: Problem, settings: object) -> Coefficients:
        """Ordinary least squares on the raw rows."""
        return nonprivate_regression(train)


class Projected(Bounded):
    """Linear regression with projection, Algorithm 2: centres and scales first, then the regression."""

    name, settings = "regression", Settings

    def plan(self, schema: Schema, settings: Any, conditions: Conditions) -> list[Stage]:
        first, second = "on centres and scales", "on the regression"
        return [Stage(1, settings.std_share, first), Stage(1, 1 - settings.std_share, second)]

    def make(self, schema: Schema, settings: Any, conditions: Conditions) -> Job[Coefficients]:
        return regression_with_projection(schema, std_share=settings.std_share)


JOBS = {job.name: job for job in (Projected(), Bounded())}
