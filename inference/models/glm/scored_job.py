"""Jobs `poisson-regression` and `robust-regression`: counts, and targets with outliers, on features.

A round for scales, then a few of scores (`scored_rounds`).
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.jobs.base import EFFECT, Conditions, LearningJob, Stage
from inference.jobs.settings import require_count, require_positive, require_share, setting
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
        require_count("rounds", self.rounds)
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


def stages_of(rounds: int, std_share: float) -> list[Stage]:
    """Scales first, then scores, the later rounds with more of the budget."""
    later = enumerate(shares(rounds, std_share), 1)
    return [Stage(1, std_share, "on scales"), *(Stage(1, share, f"on scores, round {place}") for place, share in later)]


class PoissonRegression(LearningJob):
    """Counts on features."""

    name, title, settings = "poisson-regression", "Effect on the log of {target}", Settings
    changeable = ("prior_sd",)

    def check(self, schema: Schema, settings: Settings) -> None:
        check_target(schema, settings.family)

    def plan(self, schema: Schema, settings: Settings, conditions: Conditions) -> list[Stage]:
        return stages_of(settings.rounds, settings.std_share)

    def make(self, schema: Schema, settings: Settings, conditions: Conditions) -> Job[Coefficients]:
        return scored_regression(schema, settings.family, rounds=settings.rounds, std_share=settings.std_share)

    def learned(self, gave: Coefficients, schema: Schema, settings: Settings, conditions: Conditions) -> Coefficients:
        return gave.refit(prior_sd=settings.prior_sd)

    def reference(self, train: Problem, settings: Settings) -> Coefficients:
        """The same model on the raw rows. Raises `DataError` of targets that are no counts."""
        return exact_fit(train.X, train.y, settings.family, settings.prior_sd, train.schema.columns)


class RobustRegression(PoissonRegression):
    """Targets with outliers on features."""

    name, title, settings = "robust-regression", EFFECT, RobustSettings


JOBS = {job.name: job for job in (PoissonRegression(), RobustRegression())}
