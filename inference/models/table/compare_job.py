"""Job `compare`: tests between groups, from one sum: Welch's t, analysis of variance, chi-squared, two shares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from dca_proto.aggregate import NoisyAggregate
from dca_proto.protocol.wire.kinds import NodeRelease, SecureSum
from dca_proto.statistics.counting import about_missing
from dca_proto.wording import digits, listed
from inference.draws import attributes
from inference.errors import DataError
from inference.jobs.base import Conditions, LearningJob, Stage, one_round
from inference.jobs.estimates import DIFFERENCE, LESS, SHARE, Estimate, Marginal
from inference.jobs.examples import CLASS, Clean, Example
from inference.jobs.settings import JobSettings, rows_of_nodes, setting
from inference.jobs.summary import Family, Standard, Summary, TableCell
from inference.jobs.summary import Test as TestSummary
from inference.models.table.cells import Cell, Law, Sums
from inference.models.table.columns import Columns
from inference.models.table.comparison import (
    Difference,
    Means,
    Outcome,
    Ratios,
    differences,
    independence,
    shares_of,
)
from inference.posterior import Posterior
from inference.problem import Problem, Schema, stream, unit_of
from inference.rounds import Job, request_of

COMPARISON = "comparison"
WELCH, ANOVA, CHI_SQUARED, SHARES = "Welch's t", "Welch's analysis of variance", "chi-squared", "two shares"
_ON_SHARES = Standard(unit=SHARE, scale=1.0, centre=0.0)
DIFFERENCES_MAX = 60  # a longer list would not be read


@dataclass(frozen=True)
class Settings(JobSettings):
    """Settings of `compare`."""

    group: str = setting("group", "The column of groups, texts or codes.")
    column: str | None = setting(None, "Which column to compare; by default the target.")
    codes: bool | None = setting(None, "Whether the column has codes; by default if it has texts, or bounds 0:1.")
    rows_max: int = rows_of_nodes()

    def columns(self, schema: Schema) -> Columns:
        """Return the compared column and the group. Raises `DataError` as `Columns.of`."""
        name = schema.column(self.column)
        if name == self.group:
            raise DataError(f"column {name!r} is both compared and the group; name two columns")
        codes = None if self.codes is None else name * self.codes
        return Columns.of(schema, (name,), self.group, codes)


class Compare(LearningJob):
    """One column between groups: a test, and what it compares."""

    name, title, dataset, settings, scored = "compare", "{target} by group", "simulated-trial", Settings, False
    kinds = (SecureSum, NodeRelease)
    estimator = "it compares groups: nothing to predict"
    about = "[tests between groups](jobs/compare.md): means, shares, a contingency table"
    examples = (
        Example(CLASS, {"group": "y", "column": "a"}),
        Example(CLASS, {"group": "y", "column": "a"}, kind=NodeRelease, label="of data nodes"),
    )
    clean = Clean("two groups", {"group": "arm"})

    def check(self, schema: Schema, settings: Settings) -> None:
        settings.columns(schema).statistic(0)

    def plan(self, schema: Schema, settings: Settings, conditions: Conditions) -> list[Stage]:
        return one_round(f"counts and sums of {schema.column(settings.column)} in each group")

    def rounds(self, schema: Schema, settings: Settings, conditions: Conditions) -> Job[NoisyAggregate]:
        statistic = settings.columns(schema).statistic(0)
        return (yield request_of(statistic, kind=conditions.kind, rows_max=settings.rows_max))

    def learned(
        self, aggregate: NoisyAggregate, schema: Schema, settings: Settings, conditions: Conditions
    ) -> Posterior:
        columns, attrs = settings.columns(schema), attributes(aggregate, schema=schema)
        return comparison(Sums.of(aggregate), columns, schema, conditions.rng, attrs)

    def columns(self, settings: Settings) -> tuple[str, ...]:
        return (settings.group, *([settings.column] if settings.column else []))

    def model(self, schema: Schema, settings: Settings) -> str:
        columns = settings.columns(schema)
        return f"{columns.names[0]} by {columns.group}: {test_of(columns)}"

    def reference(self, train: Problem, settings: Settings) -> Posterior:
        """Return the test of the exact sums of the values that are there."""
        columns = settings.columns(train.schema)
        statistic = columns.statistic(0)
        sums = Sums.exact(statistic, train.rows[:, [train.schema.columns.index(name) for name in statistic.columns]])
        if not sums.value.any():
            raise DataError("no row has a value and a known group; nothing to compare")
        return comparison(sums, columns, train.schema, stream(0, "reference"))


def test_of(columns: Columns) -> str:
    """Return the name of the test of a column."""
    codes = int(columns.bounds[0].upper - columns.bounds[0].lower) + 1
    if not columns.coded[0]:
        return WELCH if columns.groups == 2 else ANOVA
    return SHARES if (columns.groups, codes) == (2, 2) else CHI_SQUARED


class Between(NamedTuple):
    """The difference of two groups: their places, that of the code whose shares differ (None: means), and figures."""

    first: int
    last: int
    code: int | None
    found: Difference


class Result(NamedTuple):
    """A test, and the differences of all pairs of groups; of none if there are more than `DIFFERENCES_MAX`."""

    outcome: Outcome
    differences: list[Between]


def result_of(cells: list[Cell], rng: np.random.Generator) -> Result:
    """Test one column between groups.

    Args:
        cells: of the column, one for each group. rng: for the calibration by simulation, if it is needed.
    """
    pairs = list(combinations(range(len(cells)), 2))
    if cells[0].is_coded:
        counts, sd = np.array([cell.code_counts for cell in cells]), cells[0].code_sd
        codes = counts.shape[1]
        outcome = shares_of(counts, 1, sd).test() if counts.shape == (2, 2) else independence(counts, sd)
        places = [(*pair, code) for code in (range(codes) if codes > 2 else range(1, codes)) for pair in pairs]
        ratios = [shares_of(counts[[first, last]], code, sd) for first, last, code in places[: DIFFERENCES_MAX + 1]]
        return Result(outcome, _between(places, ratios, 1.0))
    y, squares, n = (np.array(part) for part in zip(*(cell.sums_of_values for cell in cells), strict=True))
    means = Means(y, squares, n, *cells[0].noise, cells[0].sums.statistic.reach)
    low, high = cells[0].ends
    ratios = [means.pair(*pair).ratios for pair in pairs[: DIFFERENCES_MAX + 1]]
    return Result(means.test(rng), _between([(*pair, None) for pair in pairs], ratios, (high - low) / 2 / means.reach))


def _between(places: Sequence[tuple[int, int, int | None]], ratios: list[Ratios], unit: float) -> list[Between]:
    """Return the differences, of a mean or share of 1 in units of the column."""
    if len(places) > DIFFERENCES_MAX:
        return []
    found = [
        Difference(unit * one.estimate, unit * one.low, unit * one.high, one.p_value) for one in differences(ratios)
    ]
    return [Between(*place, one) for place, one in zip(places, found, strict=True)]


def test_summary(name: str, column: str, result: Result) -> TestSummary:
    """Return the test as a record; degrees below are None for chi-squared."""
    outcome = result.outcome
    below = float(outcome.below)
    return {
        "test": name,
        "column": column,
        "statistic": float(outcome.statistic),
        "degrees": float(outcome.degrees),
        "degrees_below": below if np.isfinite(below) else None,
        "p_value": float(outcome.p_value),
    }


def words_of(test: TestSummary) -> str:
    """Describe a test in one line."""
    below, kind = test["degrees_below"], "chi-squared" if test["degrees_below"] is None else "F"
    others = "" if below is None else f" and {digits(below, 3)}"
    value = f"{kind} {test['statistic']:.3g} with {test['degrees']:g}{others} degrees of freedom"
    return f"{test['test']}: {value}, p = {test['p_value']:.2g}; its variance includes the privacy noise"


def comparison(
    sums: Sums,
    columns: Columns,
    schema: Schema,
    rng: np.random.Generator,
    attrs: Mapping[str, object] = MappingProxyType({}),
) -> Posterior:
    """Return the posterior of what is compared, with the test in its summary.

    Args:
        rng: for draws; the privacy noise does not use it.
        attrs: the provenance of the draws; without it, no epsilon may be claimed.
    """
    cells, column = [sums.cell(0, group) for group in range(columns.groups)], columns.names[0]
    result = result_of(cells, rng)
    test = test_summary(test_of(columns), column, result)
    named = list(_figures(cells, columns, schema, rng))
    apart = list(_apart(result, columns, schema))

    def table(_: Schema | None) -> list[Estimate]:
        own = ((name, of, law.marginal, _ON_SHARES if of == SHARE else None) for name, of, law, _ in named)
        return [*(row for row, _ in apart), *(Estimate(name, of, figure, axis=axis) for name, of, figure, axis in own)]

    draws = np.stack([law.draws for _, _, law, _ in named], axis=-1)
    remarks = {"test": words_of(test), **_about(result, columns),
               "groups": f"rows without a known {columns.group} count nowhere"}  # fmt: skip
    places = {**{name: place for name, _, _, place in named}, **{row.name: place for row, place in apart}}
    extras: Summary = {"tests": [test], "remarks": remarks, "cells": places}
    return Posterior(
        COMPARISON,
        {COMPARISON: draws.reshape(4, -1, len(named))},
        axes={COMPARISON: ("figure",)},
        coords={"figure": tuple(name for name, *_ in named)},
        private=bool(attrs.get("private")),
        attrs=attrs,
        notes=tuple(_doubts(cells, columns)),
        table=table,
        extras=lambda: extras,
    )


def _apart(result: Result, columns: Columns, schema: Schema) -> Iterator[tuple[Estimate, TableCell]]:
    """Yield the differences of groups, with their places in the table."""
    (column,), size = columns.names, len(result.differences)
    unit = SHARE if columns.coded[0] else unit_of(schema, column)
    sds = 2 * float(ndtri(1 - 0.025 / max(size, 1)))  # from end to end
    for first, last, code, (estimate, low, high, p_value) in result.differences:
        groups = LESS.join((columns.labels[first], columns.labels[last]))
        of = "" if code is None else f" of {column} = {columns.bounds[0].text(columns.bounds[0].lower + code)}"
        family = Family(size=size, p_adjusted=p_value) if size > 1 else None
        axis = None if family is None else Standard(unit=unit, scale=1.0, centre=0.0)
        figure = Marginal(estimate, (high - low) / sds, (low, high))
        yield (
            Estimate(f"{DIFFERENCE}{of}, {groups}", unit, figure, axis=axis, family=family),
            TableCell(column=column, figure=f"{DIFFERENCE}{of}", group=groups),
        )


def _about(result: Result, columns: Columns) -> dict[str, str]:
    """Return a remark on several differences, or on those that are not there."""
    size = len(result.differences)
    if size > 1:
        return {"differences": f"all {size} intervals hold together with 95 %, by Bonferroni: each alone with "
                f"{100 * (1 - 0.05 / size):.2f} %; an adjusted p is {size} times that of one difference"}  # fmt: skip
    if size == 0 and columns.groups > 1:
        return {"differences": f"none: there would be more than {DIFFERENCES_MAX}; join groups or categories"}
    return {}


def _figures(
    cells: list[Cell], columns: Columns, schema: Schema, rng: np.random.Generator
) -> Iterator[tuple[str, str, Law, TableCell]]:
    """Yield name, unit, law and place of each figure of each group."""
    column, unit = columns.names[0], unit_of(schema, columns.names[0])
    for label, cell in zip(columns.labels, cells, strict=True):
        yield f"n of {column}, {label}", "", cell.number(rng), TableCell(column=column, figure="n", group=label)
        if not cell.is_coded:
            for name, law in zip(("mean", "sd"), cell.moments(rng), strict=True):
                yield f"{name} of {column}, {label}", unit, law, TableCell(column=column, figure=name, group=label)
            continue
        for code, law in zip(cell.sums.statistic.codes_of(0), cell.shares(rng), strict=True):
            text = columns.bounds[0].text(code)
            yield f"{column} = {text}, {label}", SHARE, law, TableCell(column=column, figure=text, group=label)


def _doubts(cells: list[Cell], columns: Columns) -> Iterator[str]:
    """Yield reasons to doubt the test, a sentence each."""
    hidden = [label for label, cell in zip(columns.labels, cells, strict=True) if cell.is_hidden]
    if hidden:
        yield (
            f"the noise hides how many values there are of {listed(hidden, len(hidden))}: the test holds its level, "
            "but will find nothing there; join groups, ask more clients, or give a larger epsilon"
        )
    counts = [cell.count for cell in cells]
    number, sd = sum(one for one, _ in counts), sum(one**2 for _, one in counts) ** 0.5
    sums, what = cells[0].sums, f"a value of {columns.names[0]} or of {columns.group}"
    yield from about_missing(number, sd, sums.rows, what, of=sums.unit)
