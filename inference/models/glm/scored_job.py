"""Jobs `poisson-regression` and `robust-regression`: counts, and targets with outliers, on features.

A round for scales, then a few of scores (`scored_rounds`).
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.errors import DataError
from inference.jobs.base import EFFECT, Conditions, LearningJob, Stage
from inference.jobs.settings import require_positive, require_share, setting
from inference.models.coefficients import Coefficients
from inference.models.glm.families import Family, Poisson, StudentT
from inference.models.glm.scored_fit import PRIOR_SD, exact_fit
from inference.models.glm.scored_rounds import ROUNDS, STD_SHARE, scored_regression, shares
from inference.models.glm.scored_rounds import check as check_target
from inference.problem import Problem, Schema
from inference.rounds import Job

DEGREES = StudentT.degrees


@dataclass(frozen=True)
class Settings:
    """Of both jobs."""

    rounds: int = setting(ROUNDS, "How many rounds of scores follow the one for scales.")
    std_share: float = setting(STD_SHARE, "The first round's share of the budget, between 0 and 1.")
    prior_sd: float = setting(PRIOR_SD, "Standard deviation of the prior of each standardised coefficient.")

    def __post_init__(self) -> None:
        require_positive("prior_sd", self.prior_sd)
        if self.rounds < 1:
            raise DataError(f"setting 'rounds' is {self.rounds}, expected at least 1")
        require_share("std_share", self.std_share)

    @property
    def family(self) -> Family:
        """The model."""
        return Poisson()


@dataclass(frozen=True)
class RobustSettings(Settings):
    """Of the job with outliers."""

    degrees: float = setting(DEGREES, "Degrees of freedom of the residuals' Student-t law; fewer ignore outliers more.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("degrees", self.degrees)

    @property
    def family(self) -> Family:
        return StudentT(self.degrees)


def check(schema: Schema, settings: Settings) -> None:
    """Refuse bounds that are none of the model's. Raises `DataError`."""
    check_target(schema, settings.family)


def make(schema: Schema, settings: Settings, conditions: Conditions) -> Job[Coefficients]:
    """The job's rounds, which ask the same whatever the prior is."""
    return scored_regression(
        schema,
        settings.family,
        rounds=settings.rounds,
        std_share=settings.std_share,
    )


def finish(result: Coefficients, schema: Schema, settings: Settings, conditions: Conditions) -> Coefficients:
    """The posterior under the prior that is set."""
    return result.refit(prior_sd=settings.prior_sd)


def plan(schema: Schema, settings: Settings, conditions: Conditions) -> list[Stage]:
    """Of the job."""
    return stages_of(settings.rounds, settings.std_share)


def stages_of(rounds: int, std_share: float) -> list[Stage]:
    """Scales first, then scores, the later rounds with more of the budget."""
    later = enumerate(shares(rounds, std_share), 1)
    return [Stage(1, std_share, "on scales"), *(Stage(1, share, f"on scores, round {place}") for place, share in later)]


def reference(train: Problem, settings: Settings) -> Coefficients:
    """The same model on the raw rows. Raises `DataError` of targets that are no counts."""
    return exact_fit(train.X, train.y, settings.family, settings.prior_sd, train.schema.columns)


JOBS = {
    name: LearningJob(
        name=name,
        settings=settings,
        check=check,
        plan=plan,
        make=make,
        finish=finish,
        changeable=("prior_sd",),
        reference=reference,
        title="Effect on the log of {target}" if name == "poisson-regression" else EFFECT,
    )
    for name, settings in {"poisson-regression": Settings, "robust-regression": RobustSettings}.items()
}
