"""Job `logistic`: Bayesian logistic regression, from scores, one sum or by variational inference (`rounds`)."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from inference.errors import DataError
from inference.jobs.base import Conditions, LearningJob, Stage
from inference.jobs.settings import require_choice, require_positive, setting
from inference.jobs.variational import stages
from inference.models.coefficients import Coefficients, is_positive
from inference.models.glm.scored_job import stages_of
from inference.models.glm.scored_rounds import ROUNDS
from inference.models.logistic.baseline import laplace
from inference.models.logistic.one_sum import too_noisy
from inference.models.logistic.rounds import AUTO, METHODS, ONE_SUM, SCORES, logistic_regression, method_of
from inference.problem import Problem, Schema
from inference.rounds import Job
from inference.variational.mean_field_job import VariationalSettings
from inference.variational.models import PRIOR_SD
from inference.variational.schedule import ITERATIONS_MAX, PILOTED_MAX


@dataclass(frozen=True)
class Settings(VariationalSettings):
    """Of the job: of rounds of gradients, and further ones."""

    method: str = setting(
        AUTO,
        "scores, variational, one-sum (of normal features), or auto: scores if noise and the number of features allow.",
    )
    prior_sd: float = setting(PRIOR_SD, "Standard deviation of the prior of each standardised coefficient.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("method", self.method, METHODS)
        method_of(self.method, self)  # refuses what the method does not read
        require_positive("prior_sd", self.prior_sd)


def reference(train: Problem, settings: Settings) -> Coefficients:
    """Laplace's approximation on standardised rows, with the same prior.

    Raises:
        DataError: the target has other values than its bounds, or only one of them.
    """
    bounds = train.schema.bounds[train.schema.target]
    others = np.count_nonzero((train.y != bounds.lower) & (train.y != bounds.upper))
    if others or len(np.unique(train.y)) < 2:
        raise DataError(
            f"target {train.schema.target!r} has {len(np.unique(train.y))} values; job 'logistic' needs the two that "
            f"are its bounds, {bounds.lower:g} and {bounds.upper:g}"
        )
    return laplace(train.X, is_positive(train), settings.prior_sd, train.schema.features)


class Logistic(LearningJob):
    """Logistic regression."""

    name, title, settings = "logistic", "Effect on the log odds of {target}", Settings
    iterative = True
    changeable = ("prior_sd",)

    def plan(self, schema: Schema, settings: Settings, conditions: Conditions) -> list[Stage]:
        """Scales, then scores or one sum; or a first fit and as many iterations as the noise makes worth while."""
        first, d = settings.std_share, len(schema.features)
        n = conditions.clients
        noise = sqrt(n / max(1, n - conditions.tolerated - 1)) / conditions.mu
        method = method_of(settings.method, settings)
        if method == ONE_SUM:
            return [Stage(1, first, "on scales"), Stage(1, 1 - first, "on one sum")]
        if method == SCORES or (method == AUTO and not too_noisy(d, noise / sqrt(1 - first), n)):
            return stages_of(ROUNDS, first)
        pilot = [] if too_noisy(d, noise / sqrt(first), n) else [Stage(1, first, "on a first fit")]
        most = PILOTED_MAX if pilot else ITERATIONS_MAX
        return stages(d + 1, first, settings.epochs, settings.batch, conditions, most, pilot)

    def make(self, schema: Schema, settings: Settings, conditions: Conditions) -> Job[Coefficients]:
        """Iterations are scored on the held-out rows where these are of both classes."""
        held_out = conditions.held_out
        if held_out is not None and len(np.unique(is_positive(held_out))) < 2:
            held_out = None
        return logistic_regression(
            schema,
            rng=conditions.rng,
            method=settings.method,
            settings=settings,
            held_out=held_out,
            on_progress=conditions.on_iteration,
        )

    def learned(self, gave: Coefficients, schema: Schema, settings: Settings, conditions: Conditions) -> Coefficients:
        return gave.refit(prior_sd=settings.prior_sd)

    def batch(self, settings: Settings, clients: int) -> int:
        return settings.batch

    def reference(self, train: Problem, settings: Settings) -> Coefficients:
        return reference(train, settings)


JOBS = {"logistic": Logistic()}
