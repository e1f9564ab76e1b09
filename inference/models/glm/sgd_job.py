"""Job `ldp-sgd`: linear or logistic regression by stochastic gradient descent over reports, each client used once.

A round for each group of clients, of their clipped gradients with Gaussian noise (`glm.sgd`). It needs no
sampler and gives a point, without a spread.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from dca_proto.aggregate import LdpReportRequest
from inference.jobs.base import Conditions, LearningJob, Stage, target_on_features
from inference.jobs.settings import require_choice, require_count, setting
from inference.models.coefficients import is_positive
from inference.models.glm import sgd
from inference.models.glm.ldp_job import FAMILIES, LINEAR, reference
from inference.problem import Problem, Schema
from inference.releases.terms import GAUSSIAN
from inference.rounds import Job
from inference.variational.models import BERNOULLI, NORMAL
from inference.variational.scores import area_under_curve


@dataclass(frozen=True)
class Settings:
    """Of the job."""

    family: str = setting(LINEAR, f"{', '.join(FAMILIES)}; the latter of a target whose bounds are its two classes.")
    group: int | None = setting(None, f"Clients of each step; by default for {sgd.GROUPS_MAX} steps.")
    clip: float | None = setting(None, "Largest norm of a client's gradient, features being in sds; by default usual.")

    def __post_init__(self) -> None:
        require_choice("family", self.family, FAMILIES)
        require_count("group", self.group)
        _ = self.own

    @property
    def own(self) -> sgd.SgdSettings:
        """As the descent takes them. Raises `DataError` where a number is out of range."""
        return sgd.SgdSettings(NORMAL if self.family == LINEAR else BERNOULLI, True, self.clip)


def _groups(settings: Settings, conditions: Conditions) -> sgd.Groups:
    return sgd.groups(conditions.clients, settings.group or 1)


def _score(schema: Schema, settings: Settings, held_out: Problem | None) -> sgd.Score | None:
    """None where the rows that are held out tell nothing."""
    if held_out is None:
        return None
    columns, rows = sgd.in_deviations(schema), held_out
    z, positive = columns.z(rows.X), is_positive(rows)
    if settings.family == LINEAR:
        target = columns.scaled(rows.rows)[:, -1]
        unit = float(columns.scale[-1])
        return sgd.Score(
            "held-out error", lambda theta: unit * sqrt(float(np.mean((target - theta[0] - z @ theta[1:]) ** 2)))
        )
    if len(np.unique(positive)) < 2:
        return None
    return sgd.Score("held-out AUC", lambda theta: area_under_curve(theta[0] + z @ theta[1:], positive))


class LdpSgd(LearningJob):
    """Linear or logistic regression by gradient steps over reports; a point, without a posterior."""

    name, settings = "ldp-sgd", Settings
    iterative, drawable = True, False
    kinds = (LdpReportRequest,)

    def reports(self, settings: Settings) -> str:
        return GAUSSIAN

    def plan(self, schema: Schema, settings: Settings, conditions: Conditions) -> list[Stage]:
        """All of each client's budget in its only report."""
        number, size = _groups(settings, conditions)
        purpose = "all of the budget on one gradient step" if number == 1 else "in each client's one report, by groups"
        return [Stage(number, 1.0, purpose, batch=size, uses=1)]

    def make(self, schema: Schema, settings: Settings, conditions: Conditions) -> Job[sgd.SgdFit]:
        """Iterates are scored on the held-out rows, where there are any."""
        return sgd.ldp_sgd(
            schema,
            _groups(settings, conditions),
            settings.own,
            score=_score(schema, settings, conditions.held_out),
            on_progress=conditions.on_iteration,
        )

    def model(self, schema: Schema, settings: Settings) -> str:
        return f"{target_on_features(schema)} ({settings.family}), by gradient steps over reports by {GAUSSIAN}"

    def reference(self, train: Problem, settings: Settings) -> object:
        return reference(train, settings)


JOBS = {"ldp-sgd": LdpSgd()}
