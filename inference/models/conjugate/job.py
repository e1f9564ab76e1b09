"""Jobs `gaussian`, `bernoulli`, `categorical`, `poisson`, `exponential`: a conjugate model of one column, one round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, make_dataclass
from typing import Any

import numpy as np

from dca_proto.aggregate import NoisyAggregate
from inference.bounds import Interval
from inference.errors import unknown
from inference.jobs.base import ColumnJob, Conditions
from inference.jobs.examples import Clean, Example
from inference.jobs.settings import JobSettings, given, one_column, one_of, require_finite, require_positive, setting
from inference.models.conjugate.categorical import Categorical
from inference.models.conjugate.family import METHODS, PRIOR, Family, posterior_of
from inference.models.conjugate.scalar import Bernoulli, Exponential, Gaussian, Poisson
from inference.posterior import Posterior
from inference.problem import Problem, Schema, stream
from inference.rounds import Job

FAMILIES: Mapping[str, type[Family]] = {
    model.name: model for model in (Bernoulli, Categorical, Exponential, Gaussian, Poisson)
}


def family(name: str, column: str, interval: Interval, **prior: Any) -> Family:
    """Return the model of that name for a column with public bounds.

    Args:
        name: one of `FAMILIES`. column, interval: the column and its bounds. prior: parameters of the conjugate prior;
            the defaults are weak, and follow from the bounds if the parameter has a unit.

    Raises:
        DataError: the name or a prior parameter is unknown, a parameter is out of range, or the bounds do not fit the
            model.
    """
    if name not in FAMILIES:
        raise unknown("model", name, "the conjugate models", FAMILIES)
    known = [field.name for field in fields(FAMILIES[name])[2:]]
    for parameter in prior:
        if parameter not in known:
            raise unknown("prior parameter", parameter, f"model {name!r}", known)
    return FAMILIES[name](column, interval, **prior)


@dataclass(frozen=True)
class Settings(JobSettings):
    """Settings of these jobs; each job adds a ``prior_a`` for each parameter a of its conjugate prior."""

    column: str | None = one_column()
    method: str = setting(METHODS[0], f"How to compute the posterior: {', '.join(METHODS)}.", one_of(METHODS))


class FamilyJob(ColumnJob):
    """The job of one model: the parameters of one column's law."""

    title = "Parameters"

    def __init__(self, name: str) -> None:
        own: list[Any] = [
            (f"{PRIOR}{field.name}", float | None, setting(None, f"Parameter {field.name} of the conjugate prior; by "
                            "default weak.", require_finite if field.name == "m" else require_positive))
            for field in fields(FAMILIES[name])[2:]
        ]  # fmt: skip
        self.name, model = name, FAMILIES[name]
        self.about = f"{model.learns} one column"
        if model.assumes:
            self.about += "; its spread follows from the mean"
        self.examples, self.clean = (Example(model.target),), Clean(model.clean)
        self.settings = make_dataclass(f"{name.title()}Settings", own, bases=(Settings,), frozen=True)
        self.changeable = ("method", *(setting_name for setting_name, _, _ in own))

    def _family(self, schema: Schema, settings: Settings) -> Family:
        column, numbers = schema.column(settings.column), given(settings, self.changeable[1:])
        prior = {name.removeprefix(PRIOR): value for name, value in numbers.items()}
        return family(self.name, column, schema.bounds[column], **prior)

    def numbers(self, schema: Schema, settings: Settings) -> tuple[str, ...]:
        return () if FAMILIES[self.name].of_codes else super().numbers(schema, settings)

    def averaged(self, schema: Schema, settings: Settings) -> tuple[str, ...]:
        return (schema.column(settings.column),) if FAMILIES[self.name].averages else ()

    def check(self, schema: Schema, settings: Settings) -> None:
        self._family(schema, settings)

    def contributors_least(self, schema: Schema, settings: Settings, kind: type[Any]) -> int:
        return self._family(schema, settings).least

    def rounds(self, schema: Schema, settings: Settings, conditions: Conditions) -> Job[NoisyAggregate]:
        return (yield self._family(schema, settings).request())

    def learned(
        self, aggregate: NoisyAggregate, schema: Schema, settings: Settings, conditions: Conditions
    ) -> Posterior:
        model = self._family(schema, settings)
        return posterior_of(model, aggregate, rng=conditions.rng, method=settings.method, schema=schema)

    def model(self, schema: Schema, settings: Settings) -> str:
        return f"{FAMILIES[self.name].learns} {schema.column(settings.column)} ({self.name})"

    def reference(self, train: Problem, settings: Settings) -> Posterior:
        """Fit the same model to the exact sums of the values that are there."""
        model = self._family(train.schema, settings)
        x = np.clip(train.present(model.column), model.interval.lower, model.interval.upper)
        return posterior_of(model, model.exact(x), rng=stream(0, "reference"))
