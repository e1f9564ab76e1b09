"""Job `regression-bounded`: Bayesian linear regression within the public bounds, in one round without projection."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from inference.jobs.base import Conditions, Stage
from inference.jobs.estimates import BY_BOUNDS
from inference.jobs.settings import require_choice, require_positive, setting
from inference.models.linear import job as regression
from inference.models.linear.closed_form import REPAIR, REPAIRS
from inference.models.linear.one_round import regression_in_bounds
from inference.models.linear.result import RegressionResult
from inference.problem import Schema
from inference.rounds import Job


@dataclass(frozen=True)
class Settings:
    """Of the job."""

    repair: str = setting(REPAIR, f"How an indefinite noisy matrix is dealt with: {', '.join(REPAIRS)}.")
    prior_precision: float | None = regression.PRIOR

    def __post_init__(self) -> None:
        require_choice("repair", self.repair, REPAIRS)
        require_positive("prior_precision", self.prior_precision)


def make(schema: Schema, settings: Settings, conditions: Conditions) -> Job[RegressionResult]:
    """The job's round."""
    return regression_in_bounds(schema)


def plan(schema: Schema, settings: Settings, conditions: Conditions) -> list[Stage]:
    """All of the budget at once."""
    return [Stage(1, 1.0, "all of the budget on the regression")]


JOBS = {
    "regression-bounded": replace(
        regression.JOBS["regression"],
        name="regression-bounded",
        settings=Settings,
        plan=plan,
        make=make,
        summary=partial(regression.summary, by=BY_BOUNDS),
    )
}
