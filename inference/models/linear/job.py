"""Job `regression`: Bayesian linear regression with projection, Algorithm 2, in two rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.errors import DataError
from inference.jobs.base import Conditions, LearningJob, Stage
from inference.jobs.coefficients import Effects, figures_of
from inference.jobs.estimates import BY_SD
from inference.jobs.settings import require_choice, require_positive, setting
from inference.jobs.summary import HeldOut, Summary
from inference.models.linear.baselines import ZeroPredictor, nonprivate_regression, rmse
from inference.models.linear.closed_form import REPAIR, REPAIRS
from inference.models.linear.result import RegressionResult
from inference.models.linear.two_rounds import STD_SHARE, regression_with_projection
from inference.problem import Problem, Schema
from inference.rounds import Job

Array = NDArray[np.float64]
CHANGEABLE = ("repair", "prior_precision")
PRIOR: Any = setting(None, "Precision of each slope's prior, in standard deviations; by default its scale is learned.")


@dataclass(frozen=True)
class Settings:
    """Of the job."""

    repair: str = setting(REPAIR, f"How an indefinite noisy matrix is dealt with: {', '.join(REPAIRS)}.")
    std_share: float = setting(STD_SHARE, "The first round's share of the budget, between 0 and 1.")
    prior_precision: float | None = PRIOR

    def __post_init__(self) -> None:
        require_choice("repair", self.repair, REPAIRS)
        require_positive("prior_precision", self.prior_precision)
        if not 0 < self.std_share < 1:
            raise DataError(f"setting 'std_share' is {self.std_share:g}, expected a number between 0 and 1")


def make(schema: Schema, settings: Settings, conditions: Conditions) -> Job[RegressionResult]:
    """The job's rounds."""
    return regression_with_projection(schema, std_share=settings.std_share)


def finish(result: RegressionResult, schema: Schema, settings: Any, conditions: Conditions) -> RegressionResult:
    """The regression under the settings' prior and repair, of what the rounds gave."""
    return result.refit(prior_precision=settings.prior_precision, repair=settings.repair)


def plan(schema: Schema, settings: Settings, conditions: Conditions) -> list[Stage]:
    """Centres and scales first, then the regression."""
    first, second = "on centres and scales", "on the regression"
    return [Stage(1, settings.std_share, first), Stage(1, 1 - settings.std_share, second)]


def reference(train: Problem, settings: object) -> RegressionResult:
    """Ordinary least squares on the raw rows."""
    return nonprivate_regression(train)


def summary(
    result: RegressionResult,
    reference: RegressionResult | None,
    train: Problem | None,
    test: Problem | None,
    schema: Schema,
    by: str = BY_SD,
) -> Summary:
    """The regression beside the one without privacy, on rows that neither has seen.

    Args:
        by: what the scale of the result's features is, in words.
    """
    found, others = figures_of(result), figures_of(reference)
    assert found is not None, "there is a result"
    return {
        **Effects(schema, result.scale[:-1], by).summary(found, others),
        "repair": result.repair,
        "warnings": list(result.warnings),
        "test": None if test is None else errors(result.predict(test.X)[0], reference, train, test),
    }


def errors(predicted: Array, reference: RegressionResult | None, train: Problem | None, test: Problem) -> HeldOut:
    """Root mean square errors; without training rows at hand, those of the test's own mean stand for the constant's.

    Args:
        predicted: the target of the test's rows, shape ``(k,)``.
    """
    return {
        "rows": len(test.y),
        "rmse_private": rmse(predicted, test.y),
        "rmse_nonprivate": None if reference is None else rmse(reference.predict(test.X)[0], test.y),
        "rmse_zero": rmse(ZeroPredictor().fit(train or test).predict(test.X)[0], test.y),
    }


def picture_title(schema: Schema) -> str:
    """What the coefficients are."""
    return f"Effect on {schema.target}"


JOBS = {
    "regression": LearningJob(
        name="regression",
        settings=Settings,
        plan=plan,
        make=make,
        finish=finish,
        changeable=CHANGEABLE,
        reference=reference,
        summary=summary,
        picture_title=picture_title,
    )
}
