"""Job `ldp-histogram`: the share of each category, from one report of each client.

A report randomises the client's category (by unary encoding or randomised response), so it is private by itself, for ε
and without a δ. The posterior of the shares is on the simplex; the unbiased estimate shown beside it may be below 0.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import isfinite, sqrt

import numpy as np
from scipy.special import betaincinv

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.protocol.wire.kinds import Kind, LdpReport
from inference.bounds import Interval
from inference.errors import DataError
from inference.jobs.base import ColumnJob, Conditions, Stage, one_round
from inference.jobs.estimates import SHARE, TAILS, Estimate, Marginal, normal
from inference.jobs.examples import COUNT, QUICK_DRAWS, Clean, Example
from inference.jobs.reports import SAMPLED, ReportJob, SamplerSettings
from inference.jobs.settings import Numbers, given, one_column, one_of, require_positive, setting, within
from inference.jobs.summary import NAIVE, Standard
from inference.models.fit import histogram
from inference.models.priors import DirichletPrior
from inference.posterior import Posterior
from inference.problem import Problem, Schema
from inference.releases.terms import RESPONSE, UNARY

MECHANISMS = (UNARY, RESPONSE)
BINS, WHOLE_MAX = 6, 16  # default number of bins; but one per whole number if the bounds are whole and at most 16 apart
CATEGORIES_MAX = 2**16
ZERO = 1e-9  # of the bounds' half-width; an edge this close to 0 is set to 0


@dataclass(frozen=True)
class Settings(SamplerSettings):
    """Settings of `ldp-histogram`."""

    column: str | None = one_column()
    values: int | None = setting(None, "The column's values are 0, 1, ..., values - 1.", within(2, CATEGORIES_MAX))
    edges: tuple[float, ...] | None = setting(
        None, "Edges of the bins, in the column's units; values outside count in the outer bins."
    )
    bins: int | None = setting(
        None,
        "Number of bins of equal width between the column's bounds; by default 6, or one for each whole number if the "
        "bounds are whole and at most 16 apart.",
        within(2, CATEGORIES_MAX),
    )
    mechanism: str = setting(UNARY, f"How clients report: {', '.join(MECHANISMS)}.", one_of(MECHANISMS))
    concentration: float = setting(
        1.0, "Parameter of the Dirichlet prior of the shares, the same for each; 1 is uniform.", require_positive
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(known := given(self, ("values", "edges", "bins"))) > 1:
            raise DataError(f"settings {' and '.join(map(repr, known))} exclude each other; give one of them")
        if self.edges is None:
            return
        if not 3 <= len(self.edges) <= CATEGORIES_MAX + 1 or not all(map(isfinite, self.edges)):
            found = f"setting 'edges' has {len(self.edges)} number{'s' * (len(self.edges) != 1)}"
            raise DataError(f"{found}, expected at least 3 finite ones, for two bins")
        if any(left >= right for left, right in pairwise(self.edges)):
            raise DataError("setting 'edges' does not increase; give each end once, the smallest first")


def edges_of(schema: Schema, settings: Settings) -> Numbers:
    """Return the edges of the bins; they are public and do not depend on the data."""
    if settings.edges is not None:
        return settings.edges
    if settings.values is not None:
        return tuple(place - 0.5 for place in range(settings.values + 1))
    bounds = schema.bounds[schema.column(settings.column)]
    ends = bounds.lower, bounds.upper
    whole = all(end == round(end) for end in ends) and bounds.upper - bounds.lower <= WHOLE_MAX
    if settings.bins is None and (whole or bounds.labels):
        return tuple(np.arange(bounds.lower - 0.5, bounds.upper + 1).tolist())
    edges = np.linspace(*ends, (settings.bins or BINS) + 1)
    return tuple(np.where(np.abs(edges) < ZERO * bounds.half_width, 0.0, edges).tolist())


def labels(column: str, edges: Sequence[float], bounds: Interval) -> tuple[str, ...]:
    """Return readable labels of the bins."""
    middles = [(left + right) / 2 for left, right in pairwise(edges)]
    if all(right - left == 1 for left, right in pairwise(edges)) and all(middle == round(middle) for middle in middles):
        own = bounds.labels if (middles[0], middles[-1]) == (bounds.lower, bounds.upper) else ()
        return tuple(f"{column} = {text}" for text in own or (f"{middle:g}" for middle in middles))
    between = [f"{column} {left:.4g} to {right:.4g}" for left, right in pairwise(edges[1:-1])]
    return f"{column} < {edges[1]:.4g}", *between, f"{column} ≥ {edges[-2]:.4g}"


def _table(posterior: Posterior, aggregate: NoisyAggregate, schema: Schema | None) -> list[Estimate]:
    """Return each share, beside its unbiased estimate, which is about normal and may be below 0 or above 1."""
    reports, axis = aggregate.reports, Standard(unit=SHARE, scale=1.0, centre=0.0)
    assert reports is not None, "the job asked for reports"
    assert reports.probabilities is not None, "reports of categories have probabilities"
    (p, q), n = reports.probabilities, reports.contributors
    reported_shares = q + (p - q) * aggregate.value / n
    naive = [normal((r - q) / (p - q), sqrt(max(r * (1 - r), 0.0) / n) / (p - q)) for r in reported_shares]
    figures = zip(posterior.labels("shares"), posterior.figures("shares"), naive, strict=True)
    return [Estimate(name, "", figure, axis=axis, naive=other) for name, figure, other in figures]


class Histogram(ReportJob, ColumnJob):
    """Shares of the categories of one column."""

    name, title, settings = "ldp-histogram", "Shares", Settings
    changeable = ("concentration", *SAMPLED)
    about = "shares of one column's categories, from [LDP reports](jobs/reports.md)"
    examples = (
        Example(COUNT, {"values": 5, **QUICK_DRAWS}),
        Example(COUNT, {"values": 5, "mechanism": RESPONSE, **QUICK_DRAWS}, label="by randomised response"),
    )
    clean = Clean("a column of answers")

    def numbers(self, schema: Schema, settings: Settings) -> tuple[str, ...]:
        by_size = settings.edges is not None or settings.bins is not None
        return super().numbers(schema, settings) if by_size else ()

    def check(self, schema: Schema, settings: Settings) -> None:
        super().check(schema, settings)
        bounds, categories = schema.bounds[schema.column(settings.column)], settings.values
        if categories is not None and (bounds.lower <= -0.5 or bounds.upper >= categories - 0.5):
            raise DataError(
                f"the bounds {bounds.lower:g}:{bounds.upper:g} go beyond the categories 0 to {categories - 1}, and "
                "values beyond would be reported as one of them; give edges or bins, or other bounds"
            )

    def contributors_least(self, schema: Schema, settings: Settings, kind: type[Kind]) -> int:
        return max(1, len(edges_of(schema, settings)) - 2)

    def plan(self, schema: Schema, settings: Settings, conditions: Conditions) -> list[Stage]:
        return one_round(f"the category of {schema.column(settings.column)}")

    def rounds(
        self, schema: Schema, settings: Settings, conditions: Conditions
    ) -> Generator[RoundRequest, NoisyAggregate, NoisyAggregate]:
        column, edges = schema.column(settings.column), edges_of(schema, settings)
        parameters = {"columns": [column], "edges": [float(end) for end in edges]}
        return (yield RoundRequest("histogram", parameters, rows_max=1, kind=LdpReport(settings.mechanism)))

    def learned(
        self, aggregate: NoisyAggregate, schema: Schema, settings: Settings, conditions: Conditions
    ) -> Posterior:
        column = schema.column(settings.column)
        names = labels(column, aggregate.parameters["edges"], schema.bounds[column])
        prior = DirichletPrior(settings.concentration)
        shares = histogram(aggregate, prior, labels=names, **settings.run(conditions))
        return replace(shares, table=partial(_table, shares, aggregate), extras=lambda: {NAIVE: "unbiased"})

    def model(self, schema: Schema, settings: Settings) -> str:
        column, count = schema.column(settings.column), len(edges_of(schema, settings)) - 1
        prior = f"Dirichlet prior of concentration {settings.concentration:g}"
        return f"share of {column} in each of {count} categories, by {settings.mechanism}; {prior}; {settings.words}"

    def reference(self, train: Problem, settings: Settings) -> list[Marginal]:
        """Return the posterior of each category's share given the raw rows, with the same prior: a Beta law."""
        inner = np.asarray(edges_of(train.schema, settings)[1:-1])
        values = train.present(train.schema.column(settings.column))
        counts = np.bincount(np.searchsorted(inner, values, side="right"), minlength=len(inner) + 1)
        alpha = settings.concentration + counts
        total = alpha.sum()
        mean, (low, high) = alpha / total, betaincinv(alpha, total - alpha, np.reshape(TAILS, (2, 1)))
        sd = np.sqrt(mean * (1 - mean) / (total + 1))
        columns = (array.tolist() for array in (mean, sd, low, high))
        return [Marginal(m, s, (least, most)) for m, s, least, most in zip(*columns, strict=True)]
