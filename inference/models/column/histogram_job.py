"""Job `ldp-histogram`: which part of the people is in each category, from one report of each client.

A report tells the client's own category at random (by unary encoding or randomised response), so that it is private by
itself, for ε and without a δ. The posterior of the shares is on the simplex, where the unbiased estimate beside it may
be below 0.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite

import numpy as np
from scipy.special import betaincinv

from dca_proto.aggregate import LdpReportRequest, NoisyAggregate
from inference.bounds import Interval
from inference.errors import DataError
from inference.jobs.base import Conditions, LearningJob, Stage
from inference.jobs.estimates import SHARE, TAILS, Figure
from inference.jobs.reports import (
    SAMPLED,
    Fitted,
    SamplerSettings,
    check_clients,
    check_installed,
    column_of,
    draws,
    unbiased_shares,
)
from inference.jobs.settings import Numbers, require_choice, require_positive, setting
from inference.jobs.summary import NAIVE, Standard, Summary
from inference.models.fit import histogram
from inference.models.priors import DirichletPrior
from inference.posterior import Estimate
from inference.problem import Problem, Schema
from inference.releases.terms import RESPONSE, UNARY

MECHANISMS = (UNARY, RESPONSE)
BINS, WHOLE_MAX = 6, 16  # by default: so many bins, unless the bounds are whole numbers that are no farther apart
CATEGORIES_MAX = 2**16
ZERO = 1e-9  # of the bounds' half-width; an end that is as near to 0 is 0, and said so


@dataclass(frozen=True)
class Settings(SamplerSettings):
    """Of the job."""

    column: str | None = setting(None, "Which column; by default the target.")
    categories: int | None = setting(None, "The column's values are 0, 1, ..., categories - 1.")
    edges: tuple[float, ...] | None = setting(
        None, "Ends of the bins, in the column's units; values outside count in the outer."
    )
    bins: int | None = setting(
        None,
        "Bins of equal width between the column's bounds; by default 6, or one for each whole number in 16 or less.",
    )
    mechanism: str = setting(UNARY, f"How clients report: {', '.join(MECHANISMS)}.")
    concentration: float = setting(1.0, "Of the Dirichlet prior of the shares, the same for each; 1 is uniform.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("mechanism", self.mechanism, MECHANISMS)
        require_positive("concentration", self.concentration)
        given = [name for name in ("categories", "edges", "bins") if getattr(self, name) is not None]
        if len(given) > 1:
            raise DataError(f"settings {' and '.join(map(repr, given))} say the same thing; give one of them")
        for name in ("categories", "bins"):
            if (value := getattr(self, name)) is not None and not 2 <= value <= CATEGORIES_MAX:
                raise DataError(f"setting {name!r} is {value}, expected 2 to {CATEGORIES_MAX}")
        if self.edges is not None:
            _check_edges(self.edges)


def _check_edges(edges: Numbers) -> None:
    if not 3 <= len(edges) <= CATEGORIES_MAX + 1 or not all(map(isfinite, edges)):
        raise DataError(f"setting 'edges' has {len(edges)} numbers, expected at least 3 finite ones, for two bins")
    if any(left >= right for left, right in pairwise(edges)):
        raise DataError("setting 'edges' does not increase; give each end once, the smallest first")


def edges_of(schema: Schema, settings: Settings) -> Numbers:
    """Where the bins end; public, whatever the data are."""
    if settings.edges is not None:
        return settings.edges
    if settings.categories is not None:
        return tuple(place - 0.5 for place in range(settings.categories + 1))
    bounds = schema.bounds[column_of(schema, settings.column)]
    if settings.bins is None and _is_whole(bounds):
        return tuple(np.arange(bounds.lower - 0.5, bounds.upper + 1).tolist())
    edges = np.linspace(bounds.lower, bounds.upper, (settings.bins or BINS) + 1)
    return tuple(np.where(np.abs(edges) < ZERO * bounds.half_width, 0.0, edges).tolist())


def _is_whole(bounds: Interval) -> bool:
    ends = bounds.lower, bounds.upper
    return all(end == round(end) for end in ends) and bounds.upper - bounds.lower <= WHOLE_MAX


def labels(column: str, edges: Sequence[float]) -> tuple[str, ...]:
    """Of the bins, for people."""
    middles = [(left + right) / 2 for left, right in pairwise(edges)]
    if all(right - left == 1 for left, right in pairwise(edges)) and all(one == round(one) for one in middles):
        return tuple(f"{column} = {middle:g}" for middle in middles)
    between = [f"{column} {left:.4g} to {right:.4g}" for left, right in pairwise(edges[1:-1])]
    return f"{column} < {edges[1]:.4g}", *between, f"{column} ≥ {edges[-2]:.4g}"


def check(schema: Schema, settings: Settings) -> None:
    """Refuse to start what could not be finished. Raises `DataError`."""
    check_installed()
    bounds, categories = schema.bounds[column_of(schema, settings.column)], settings.categories
    if categories is not None and (bounds.lower <= -0.5 or bounds.upper >= categories - 0.5):
        raise DataError(
            f"the bounds {bounds.lower:g}:{bounds.upper:g} go beyond the categories 0 to {categories - 1}, and what is "
            "beyond would be told as one of them; give edges or bins, or other bounds"
        )


def make(
    schema: Schema, settings: Settings, conditions: Conditions
) -> Generator[LdpReportRequest, NoisyAggregate, NoisyAggregate]:
    """The job's round of reports. Raises `DataError` where clients are too few."""
    column, edges = column_of(schema, settings.column), edges_of(schema, settings)
    check_clients(conditions.clients, len(edges) - 2, f"a histogram of {len(edges) - 1} categories")
    parameters = {"columns": [column], "edges": [float(end) for end in edges]}
    return (yield LdpReportRequest("histogram", parameters, rows_max=1, mechanism=settings.mechanism))


def plan(schema: Schema, settings: Settings, conditions: Conditions) -> list[Stage]:
    """All of the budget at once."""
    return [Stage(1, 1.0, f"all of the budget on the category of {column_of(schema, settings.column)}")]


@dataclass(frozen=True, eq=False)
class SharesFit(Fitted):
    """Shares on the simplex."""

    def estimates(self, schema: Schema | None = None) -> list[Estimate]:
        """Each share, beside the unbiased estimate from the same reports."""
        names, found = self.posterior.labels("shares"), self.posterior.figures("shares")
        axis: Standard = {"unit": SHARE, "scale": 1.0, "centre": 0.0}
        return [
            Estimate(name, "", figure, axis=axis, naive=naive)
            for name, figure, naive in zip(names, found, _unbiased(self.aggregate), strict=True)
        ]

    def more(self) -> Summary:
        """As of every posterior of reports."""
        return {**super().more(), NAIVE: "unbiased"}


def finish(aggregate: NoisyAggregate, schema: Schema, settings: Settings, conditions: Conditions) -> SharesFit:
    """The posterior given the reports."""
    names = labels(aggregate.parameters["columns"][0], aggregate.parameters["edges"])
    prior = DirichletPrior(settings.concentration)
    return SharesFit(histogram(aggregate, prior, labels=names, **settings.run(conditions)), aggregate)


def model(schema: Schema, settings: Settings) -> str:
    """In words."""
    column, count = column_of(schema, settings.column), len(edges_of(schema, settings)) - 1
    prior = f"Dirichlet prior of concentration {settings.concentration:g}"
    return f"share of {column} in each of {count} categories, by {settings.mechanism}; {prior}; {settings.words}"


# --- what it says -----------------------------------------------------------------------------------------------------


def reference(train: Problem, settings: Settings) -> list[Figure]:
    """The posterior of each category's share given the rows themselves, with the same prior: a Beta distribution."""
    place = train.schema.columns.index(column_of(train.schema, settings.column))
    inner = np.asarray(edges_of(train.schema, settings)[1:-1])
    counts = np.bincount(np.searchsorted(inner, train.rows[:, place], side="right"), minlength=len(inner) + 1)
    alpha = settings.concentration + counts
    total = alpha.sum()
    mean, (low, high) = alpha / total, betaincinv(alpha, total - alpha, np.reshape(TAILS, (2, 1)))
    sd = np.sqrt(mean * (1 - mean) / (total + 1))
    columns = (array.tolist() for array in (mean, sd, low, high))
    return [Figure(m, s, (least, most)) for m, s, least, most in zip(*columns, strict=True)]


def _unbiased(aggregate: NoisyAggregate) -> list[Figure]:
    """What the reports say without a model: below 0 or above 1, where it so happens."""
    reports = aggregate.reports
    assert reports is not None, "they were asked for"
    assert reports.probabilities is not None, "they are of categories"
    (p, q), n = reports.probabilities, reports.contributors
    return unbiased_shares(q + (p - q) * aggregate.value / n, n, p, q)


JOBS = {
    "ldp-histogram": LearningJob(
        name="ldp-histogram",
        settings=Settings,
        changeable=("concentration", *SAMPLED),
        check=check,
        plan=plan,
        make=make,
        finish=finish,
        reference=reference,
        draws=draws,
        title="Shares",
        model=model,
        scored=False,
        kinds=(LdpReportRequest,),
        reports=lambda settings: settings.mechanism,
    )
}
