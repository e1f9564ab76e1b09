"""Jobs `gaussian`, `bernoulli`, `categorical`, `poisson`, `exponential`: a conjugate model of one column, one round."""

from __future__ import annotations

from dataclasses import dataclass, fields, make_dataclass
from functools import partial
from typing import Any

import numpy as np

from dca_proto.aggregate import NoisyAggregate
from inference.errors import unknown
from inference.jobs.base import Conditions, LearningJob, Stage
from inference.jobs.settings import require_choice, setting
from inference.models.conjugate import FAMILIES, METHODS, Family, FamilyResult, family, posterior_of
from inference.models.conjugate.family import fitted
from inference.problem import Problem, Schema, stream
from inference.rounds import Job

PRIOR = "prior_"


@dataclass(frozen=True)
class Settings:
    """Of these jobs."""

    column: str | None = setting(None, "Which column; by default the target.")
    method: str = setting(METHODS[0], f"How the posterior is made: {', '.join(METHODS)}.")

    def __post_init__(self) -> None:
        require_choice("method", self.method, METHODS)

    @property
    def prior(self) -> dict[str, float]:
        """Those parameters of the conjugate prior that are given."""
        given = {one.name: getattr(self, one.name) for one in fields(self) if one.name.startswith(PRIOR)}
        return {name.removeprefix(PRIOR): value for name, value in given.items() if value is not None}


def settings_of(name: str) -> type[Settings]:
    """The settings of a model's job: those of all, and ``prior_a`` for each parameter a of its conjugate prior."""
    known = fields(FAMILIES[name])[2:]
    own: list[Any] = [
        (
            PRIOR + one.name,
            float | None,
            setting(None, f"Parameter {one.name} of the conjugate prior; by default weak."),
        )
        for one in known
    ]
    return make_dataclass(f"{name.title()}Settings", own, bases=(Settings,), frozen=True)


def _column(schema: Schema, settings: Settings) -> str:
    return schema.target if settings.column is None else settings.column


def _model(name: str, schema: Schema, settings: Settings) -> Family:
    column = _column(schema, settings)
    if column not in schema.columns:
        raise unknown("column", column, "the data", schema.columns)
    return family(name, column, schema.bounds[column], **settings.prior)


def check(name: str, schema: Schema, settings: Settings) -> None:
    """Refuse a column that is not there or whose bounds are none for the model. Raises `DataError`."""
    _model(name, schema, settings)


def make(name: str, schema: Schema, settings: Settings, conditions: Conditions) -> Job[NoisyAggregate]:
    """The job's round, which is the same whatever the prior is."""
    return (yield _model(name, schema, settings).request())


def finish(
    name: str, aggregate: NoisyAggregate, schema: Schema, settings: Settings, conditions: Conditions
) -> FamilyResult:
    """The posterior of what was released."""
    model = _model(name, schema, settings)
    return posterior_of(model, aggregate, rng=conditions.rng, method=settings.method, private=schema.private)


def plan(schema: Schema, settings: Settings, conditions: Conditions) -> list[Stage]:
    """All of the budget at once."""
    return [Stage(1, 1.0, f"all of the budget on {_column(schema, settings)}")]


def reference(name: str, train: Problem, settings: Settings) -> FamilyResult:
    """The same model given the exact sums."""
    model = _model(name, train.schema, settings)
    column = train.schema.columns.index(_column(train.schema, settings))
    x = np.clip(train.rows[:, column], model.interval.lower, model.interval.upper)
    return fitted(model, model.exact(x), rng=stream(0, "reference"), private=False)


def model(name: str, schema: Schema, settings: Settings) -> str:
    """In words."""
    return f"{FAMILIES[name].learns} {_column(schema, settings)} ({name})"


SETTINGS = {name: settings_of(name) for name in FAMILIES}
JOBS = {
    name: LearningJob(
        name=name,
        settings=SETTINGS[name],
        check=partial(check, name),
        plan=plan,
        make=partial(make, name),
        finish=partial(finish, name),
        changeable=("method", *(one.name for one in fields(SETTINGS[name]) if one.name.startswith(PRIOR))),
        reference=partial(reference, name),
        title="Parameters",
        model=partial(model, name),
        scored=False,
    )
    for name in FAMILIES
}
