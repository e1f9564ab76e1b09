"""Job `ldp-mean`: the mean and the spread of one column, from one report of each client.

A client clips its value to public bounds and adds noise, so the report is private by itself. The model includes both
the clipping and the noise. Narrower bounds mean less noise, but may cut off part of the data. The result also shows
mean and standard deviation of the raw reports; these ignore clipping, and take noise for spread and missing values for
the middle of the bounds.

**Missing values.** A report has a second number: whether there is a value, with a weight that does not raise the
sensitivity (`presence`). So the result is of the clients that have a value, and a warning states how many seem not to.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, fields, replace
from functools import partial
from math import sqrt

import numpy as np

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.protocol.wire.kinds import Kind, LdpReport
from inference.bounds import Interval
from inference.columns import COUNT_WEIGHT, COUNT_WEIGHT_L1
from inference.draws import DRAWS
from inference.errors import DataError
from inference.jobs.base import ColumnJob, Conditions
from inference.jobs.estimates import Estimate, Marginal, normal, of_draws
from inference.jobs.examples import QUICK_DRAWS, Clean, Example
from inference.jobs.reports import SAMPLED, ReportJob, SamplerSettings
from inference.jobs.settings import (
    given,
    one_column,
    one_of,
    require_count,
    require_finite,
    require_positive,
    setting,
)
from inference.jobs.summary import NAIVE
from inference.mcmc.run import Run
from inference.models import fit
from inference.models.column.families import FAMILIES, GAUSSIAN, Family, bounds_for
from inference.models.priors import ColumnPrior
from inference.posterior import Posterior
from inference.problem import Array, Problem, Schema, unit_of
from inference.releases.terms import GAUSSIAN as GAUSSIAN_NOISE
from inference.releases.terms import LAPLACE

MECHANISMS = (LAPLACE, GAUSSIAN_NOISE)
PRIORS = ("prior_mean", "prior_mean_sd", "prior_sd", "prior_log_sd", "prior_shape", "prior_rate", "prior_successes",
          "prior_failures")  # fmt: skip


@dataclass(frozen=True)
class Settings(SamplerSettings):
    """Settings of `ldp-mean`."""

    column: str | None = one_column()
    family: str = setting(GAUSSIAN, f"The law of its values: {', '.join(FAMILIES)}.", one_of(FAMILIES))
    mechanism: str = setting(LAPLACE, f"How clients report: {', '.join(MECHANISMS)}.", one_of(MECHANISMS))
    lower: float | None = setting(
        None, "Lower end at which clients clip; by default the column's public bound.", require_finite
    )
    upper: float | None = setting(
        None, "Upper end at which clients clip. Narrower bounds mean less noise.", require_finite
    )
    draws: int = setting(
        4 * DRAWS,
        "Most draws kept per chain; one to three quarters if chains have mixed by then.",
        require_count,
    )
    prior_mean: float | None = setting(
        None, "Mean of the prior of a normal mean; by default the bounds' middle.", require_finite
    )
    prior_mean_sd: float | None = setting(
        None, "Standard deviation of that prior; by default half of the half-width.", require_positive
    )
    prior_sd: float | None = setting(
        None, "A usual normal sd; by default a fifth of the half-width. It may also be far below.", require_positive
    )
    prior_log_sd: float | None = setting(
        None, "Standard deviation of a usual sd's logarithm; by default 0.8, a factor of 2.", require_positive
    )
    prior_shape: float | None = setting(
        None, "Shape of the Gamma prior of a rate, by default below 1.", require_positive
    )
    prior_rate: float | None = setting(None, "Rate of that prior; by default from the bounds.", require_positive)
    prior_successes: float | None = setting(
        None, "First parameter of a geometric probability's Beta prior; default 1.", require_positive
    )
    prior_failures: float | None = setting(None, "Second parameter of that prior; default 1.", require_positive)

    def __post_init__(self) -> None:
        super().__post_init__()
        known = [f"prior_{field.name}" for field in fields(FAMILIES[self.family].prior)]
        for name in given(self, PRIORS):
            if name not in known:
                problem = f"setting {name!r} does not belong to the prior of family {self.family!r}"
                raise DataError(f"{problem}, which has {', '.join(known)}")

    def prior(self, bounds: Interval) -> ColumnPrior:
        """Return the family's prior with these settings. Raises `DataError` for a number out of range."""
        numbers = {name.removeprefix("prior_"): value for name, value in given(self, PRIORS).items()}
        return replace(FAMILIES[self.family].within(bounds), **numbers)


def bounds_of(schema: Schema, settings: Settings) -> Interval:
    """Return the bounds that clients clip to. Raises `DataError` if they do not fit the family."""
    column = schema.column(settings.column)
    public = schema.bounds[column]
    low = public.lower if settings.lower is None else settings.lower
    high = public.upper if settings.upper is None else settings.upper
    return bounds_for(settings.family, column, Interval(low, high))


def _table(posterior: Posterior, aggregate: NoisyAggregate, family: Family, schema: Schema | None) -> list[Estimate]:
    """Return mean, standard deviation and any further parameter, beside those of the raw reports."""
    parameters, reports = aggregate.parameters, aggregate.reports
    assert reports is not None, "the job asked for reports"
    column = parameters["columns"][0]
    unit = unit_of(schema, column)
    names = [("mean", unit), ("sd", unit)]
    if family.parameter:
        names.append((family.parameter, f"1/{unit}" if unit and not family.counts else ""))
    naive = _moments(family, parameters["centre"][0] + parameters["scale"][0] * reports.values[:, 0])
    drawn = zip(family.numbers(posterior.draws), family.numbers(posterior.prior), strict=True)
    return [
        Estimate(f"{name} of {column}", own_unit, of_draws(*pair), naive=raw)
        for (name, own_unit), pair, raw in zip(names, drawn, naive, strict=True)
    ]


def _moments(family: Family, values: Array) -> list[Marginal]:
    """Return mean, standard deviation and the parameter that follows from the mean, with their standard errors.

    Intervals are those of large samples, for any law: normal for mean and standard deviation. The parameter's interval
    has its values at the ends of the mean's interval.
    """
    n, mean, sd = len(values), float(values.mean()), float(values.std(ddof=1 if len(values) > 1 else 0))
    error, fourth = sd / sqrt(n), float(np.mean((values - mean) ** 4))
    spread = sqrt(max(fourth - sd**4, 0.0) / n) / (2 * sd) if sd > 0 else 0.0  # of any law with fourth moments
    figures = [normal(mean, error), normal(sd, spread)]
    if family.parameter:
        near, interval = [family.of_mean(mean + error), family.of_mean(mean - error)], figures[0].interval
        assert interval is not None, "a normal figure has an interval"
        low, high = sorted(map(family.of_mean, interval))
        figures.append(Marginal(family.of_mean(mean), abs(near[0] - near[1]) / 2, (low, high)))
    return figures


class Mean(ReportJob, ColumnJob):
    """Mean and spread of one column."""

    name, title, settings = "ldp-mean", "Mean and spread", Settings
    changeable = ("family", *PRIORS, *SAMPLED)
    about = "mean and spread of one column, from [LDP reports](jobs/reports.md)"
    examples, clean = (Example(settings=QUICK_DRAWS),), Clean("a normal column")

    def averaged(self, schema: Schema, settings: Settings) -> tuple[str, ...]:
        return (schema.column(settings.column),)

    def check(self, schema: Schema, settings: Settings) -> None:
        super().check(schema, settings)
        settings.prior(bounds_of(schema, settings))

    def contributors_least(self, schema: Schema, settings: Settings, kind: type[Kind]) -> int:
        return 2  # the mean and its spread

    def rounds(
        self, schema: Schema, settings: Settings, conditions: Conditions
    ) -> Generator[RoundRequest, NoisyAggregate, NoisyAggregate]:
        bounds, column = bounds_of(schema, settings), schema.column(settings.column)
        parameters = {"columns": [column], "centre": [bounds.centre], "scale": [bounds.half_width], "bound": [1.0]}
        parameters["count_weight"] = COUNT_WEIGHT_L1 if settings.mechanism == LAPLACE else COUNT_WEIGHT
        return (yield RoundRequest("mean", parameters, rows_max=1, kind=LdpReport(settings.mechanism)))

    def learned(
        self, aggregate: NoisyAggregate, schema: Schema, settings: Settings, conditions: Conditions
    ) -> Posterior:
        prior, family = settings.prior(bounds_of(schema, settings)), settings.family
        run: Run = {**settings.run(conditions), "least": settings.draws // 4}  # a spread that noise hides needs more
        posterior = fit.column(aggregate, family, prior, **run)
        table = partial(_table, posterior, aggregate, FAMILIES[family])
        return replace(posterior, table=table, extras=lambda: {NAIVE: "as reported"})

    def model(self, schema: Schema, settings: Settings) -> str:
        bounds, column = bounds_of(schema, settings), schema.column(settings.column)
        clipped = f"clipped to {bounds.lower:g}:{bounds.upper:g} and reported by {settings.mechanism}"
        return f"mean and spread of {column} ({settings.family}) where it is not missing, {clipped}; {settings.words}"

    def reference(self, train: Problem, settings: Settings) -> list[Marginal]:
        """Return the same figures of the raw values that are there, unclipped."""
        return _moments(FAMILIES[settings.family], train.present(train.schema.column(settings.column)))
