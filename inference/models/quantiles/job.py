"""Job `quantiles`: median, quartiles and other quantiles of one column, in one round."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.statistics import NestedCounts
from dca_proto.statistics.nested import LEVELS_MAX
from inference.draws import attributes
from inference.errors import DataError
from inference.jobs.base import ColumnJob, Conditions
from inference.jobs.examples import NUMBER, Clean, Example
from inference.jobs.settings import JobSettings, one_column, require_share, setting, within
from inference.models.quantiles.distribution import Cumulative, name_of, posterior_of
from inference.posterior import Posterior
from inference.problem import Problem, Schema, stream
from inference.rounds import Job

QUARTILES = (0.25, 0.5, 0.75)
LEVELS = 4
_MOST = 100


def require_probabilities(key: str, values: tuple[float, ...] | None) -> None:
    """Refuse anything but 1 to 100 distinct numbers between 0 and 1; None passes. Raises `DataError`."""
    if values is None:
        return
    if not 1 <= len(values) <= _MOST or len(set(values)) < len(values):
        raise DataError(f"setting {key!r}: expected 1 to {_MOST} different numbers between 0 and 1")
    for value in values:
        require_share(key, value)


@dataclass(frozen=True)
class Settings(JobSettings):
    """Settings of `quantiles`."""

    column: str | None = one_column()
    probabilities: tuple[float, ...] | None = setting(
        None, "Which quantiles, such as 0.1,0.5,0.9; by default the quartiles.", require_probabilities
    )
    levels: int = setting(
        LEVELS, f"The bounds are split into 4^levels bins, 1 to {LEVELS_MAX} levels.", within(1, LEVELS_MAX)
    )


class Quantiles(ColumnJob):
    """Quantiles of one column."""

    name, title, settings = "quantiles", "Quantiles", Settings
    about = "[median and quartiles](jobs/quantiles.md) of one column, or other quantiles"
    changeable = ("probabilities",)
    examples, clean = (Example(NUMBER),), Clean("a normal column")

    def _statistic(self, schema: Schema, settings: Settings) -> NestedCounts:
        column = schema.column(settings.column)
        ends = schema.bounds[column]
        weight = sqrt(settings.levels)  # the largest that costs nothing
        return NestedCounts(
            columns=(column,), lower=ends.lower, upper=ends.upper, levels=settings.levels, count_weight=weight
        )

    def check(self, schema: Schema, settings: Settings) -> None:
        self._statistic(schema, settings)

    def rounds(self, schema: Schema, settings: Settings, conditions: Conditions) -> Job[Any]:
        statistic = self._statistic(schema, settings)
        parameters = {
            "columns": list(statistic.columns),
            "lower": statistic.lower,
            "upper": statistic.upper,
            "levels": statistic.levels,
            "count_weight": statistic.count_weight,
        }
        return (yield RoundRequest(NestedCounts.name, parameters, rows_max=1))

    def learned(self, outcome: Any, schema: Schema, settings: Settings, conditions: Conditions) -> Posterior:
        aggregate: NoisyAggregate = outcome
        attrs, wanted = attributes(aggregate, schema=schema), settings.probabilities or QUARTILES
        return posterior_of(Cumulative.of(aggregate), wanted, rng=conditions.rng, attrs=attrs)

    def model(self, schema: Schema, settings: Settings) -> str:
        names = [name_of(p) for p in settings.probabilities or QUARTILES]
        return f"{', '.join(names)} of {schema.column(settings.column)}"

    def reference(self, train: Problem, settings: Settings) -> Posterior:
        """Return the quantiles of the exact counts of the values that are there."""
        statistic = self._statistic(train.schema, settings)
        x = train.present(statistic.columns[0])
        if not len(x):
            raise DataError(f"no value of {statistic.columns[0]} is there")
        wanted = settings.probabilities or QUARTILES
        return posterior_of(Cumulative.exact(statistic, np.asarray(x)), wanted, rng=stream(0, "reference"))
