"""Job `describe`: the table that every study begins with, of all columns, from one sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from dca_proto.aggregate import NoisyAggregate
from dca_proto.protocol.wire.kinds import NodeRelease, SecureSum
from dca_proto.statistics.counting import about_missing
from dca_proto.statistics.nested import LEVELS_MAX
from dca_proto.wording import counted, listed
from inference.draws import attributes
from inference.errors import DataError
from inference.jobs.base import Conditions, LearningJob, Stage, one_round
from inference.jobs.estimates import COUNTED, QUARTILES, SHARE, Estimate
from inference.jobs.examples import CLASS, NUMBER, Clean, Example
from inference.jobs.settings import JobSettings, rows_of_nodes, setting, within
from inference.jobs.summary import Standard, Summary, TableCell
from inference.models.table.cells import Cell, Law, Sums
from inference.models.table.columns import LEVELS, Columns, purpose
from inference.posterior import Posterior
from inference.problem import Problem, Schema, stream, unit_of
from inference.rounds import Job, request_of

TABLE = "table"
_CHAINS = 4
_NAMED_MAX, _VAGUE_SDS = 6, 3.0


@dataclass(frozen=True)
class Settings(JobSettings):
    """Settings of `describe`."""

    group: str | None = setting(None, "A column of groups, texts or codes; by default all rows are one.")
    codes: str | None = setting(
        None,
        "The columns of codes, as in sex,smoker; by default those with bounds 0:1. Columns of texts always are.",
        names=True,
    )
    quartiles: bool = setting(True, "Whether to spend budget on median and quartiles of columns of numbers.")
    levels: int = setting(
        LEVELS,
        f"The bounds are split into 4^levels bins for quartiles, 1 to {LEVELS_MAX} levels.",
        within(1, LEVELS_MAX),
    )
    rows_max: int = rows_of_nodes()

    def columns(self, schema: Schema) -> Columns:
        """Return the columns of the table. Raises `DataError` as `Columns.of`."""
        return Columns.of(schema, schema.columns, self.group, self.codes)


class Line(NamedTuple):
    """A figure of a column, in every group.

    Attributes:
        column, figure: names. unit: of the figure. laws: one for each group.
    """

    column: str
    figure: str
    unit: str
    laws: list[Law]


class Describe(LearningJob):
    """Number, mean, sd and quartiles of each column of numbers; number and shares of each column of codes."""

    name, title, settings, scored, whole = "describe", "Columns", Settings, False, True
    kinds = (SecureSum, NodeRelease)
    estimator = "it describes columns: nothing to predict"
    about = "[a table of all columns](jobs/describe.md), overall or by a public group"
    examples = (Example(NUMBER), Example(CLASS, {"group": "y"}, label="by group"))
    clean = Clean("a normal column")

    def check(self, schema: Schema, settings: Settings) -> None:
        settings.columns(schema).statistic(self._levels(settings))

    def _levels(self, settings: Settings) -> int:
        return settings.levels if settings.quartiles else 0

    def plan(self, schema: Schema, settings: Settings, conditions: Conditions) -> list[Stage]:
        return one_round(f"the table: {purpose(settings.columns(schema).statistic(self._levels(settings)))}")

    def rounds(self, schema: Schema, settings: Settings, conditions: Conditions) -> Job[NoisyAggregate]:
        statistic = settings.columns(schema).statistic(self._levels(settings))
        return (yield request_of(statistic, kind=conditions.kind, rows_max=settings.rows_max))

    def learned(
        self, aggregate: NoisyAggregate, schema: Schema, settings: Settings, conditions: Conditions
    ) -> Posterior:
        columns, attrs = settings.columns(schema), attributes(aggregate, schema=schema)
        return posterior_of(Sums.of(aggregate), columns, schema, conditions.rng, attrs)

    def columns(self, settings: Settings) -> tuple[str, ...]:
        return (settings.group,) if settings.group else ()

    def model(self, schema: Schema, settings: Settings) -> str:
        columns = settings.columns(schema)
        by = f" by {columns.group}" if columns.group else ""
        return f"{counted(len(columns.names), 'column')}{by}: {listed(columns.names)}"

    def reference(self, train: Problem, settings: Settings) -> Posterior:
        """Return the table of the exact sums of the values that are there."""
        columns = settings.columns(train.schema)
        statistic = columns.statistic(self._levels(settings))
        sums = Sums.exact(statistic, train.rows[:, [train.schema.columns.index(name) for name in statistic.columns]])
        if not sums.value.any():
            raise DataError("no row has a value and a known group; nothing to describe")
        return posterior_of(sums, columns, train.schema, stream(0, "reference"))


def posterior_of(
    sums: Sums,
    columns: Columns,
    schema: Schema,
    rng: np.random.Generator,
    attrs: Mapping[str, object] = MappingProxyType({}),
) -> Posterior:
    """Return the table's posterior.

    Args:
        rng: for the draws; the privacy noise does not use it.
        attrs: the provenance of the draws; without it, no epsilon may be claimed.
    """
    lines = list(_lines(sums, columns, schema, rng))
    named = [(_name(line, group, columns), line, law)
             for line in lines for group, law in zip(columns.labels, line.laws, strict=True)]  # fmt: skip

    def table(_: Schema | None) -> list[Estimate]:
        shares = Standard(unit=SHARE, scale=1.0, centre=0.0)
        return [
            Estimate(name, line.unit, law.marginal, axis=shares if line.unit == SHARE else None)
            for name, line, law in named
        ]

    draws = np.stack([law.draws for _, _, law in named], axis=-1)
    return Posterior(
        TABLE,
        {TABLE: draws.reshape(_CHAINS, -1, len(named))},
        axes={TABLE: ("figure",)},
        coords={TABLE: tuple(name for name, _, _ in named), "figure": tuple(name for name, _, _ in named)},
        private=bool(attrs.get("private")),
        attrs=attrs,
        notes=tuple(_doubts(sums, columns)),
        table=table,
        extras=lambda: _extras(sums, columns, named),
    )


def _extras(sums: Sums, columns: Columns, named: list[tuple[str, Line, Law]]) -> Summary:
    main = next((name for name, line, _ in named if line.figure != COUNTED), named[0][0])
    cells = {
        name: TableCell(column=line.column, figure=line.figure, group=columns.labels[place % columns.groups])
        for place, (name, line, _) in enumerate(named)
    }
    remarks = {"rows": "each column is described by the rows that have a value of it"}
    if columns.group:
        remarks["groups"] = f"rows without a known {columns.group} count nowhere"
    return {"headline": main, "cells": cells, "remarks": remarks}


def _name(line: Line, group: str, columns: Columns) -> str:
    of = f"{line.column} = {line.figure}" if line.unit == SHARE else f"{line.figure} of {line.column}"
    return f"{of}, {group}" if columns.group else of


def _lines(sums: Sums, columns: Columns, schema: Schema, rng: np.random.Generator) -> Iterator[Line]:
    """Yield the table's lines."""
    for place, (column, coded) in enumerate(zip(columns.names, columns.coded, strict=True)):
        cells = [sums.cell(place, group) for group in range(columns.groups)]
        yield Line(column, COUNTED, "", [cell.number(rng) for cell in cells])
        if coded:
            every = zip(*(cell.shares(rng) for cell in cells), strict=True)
            for code, shares in zip(sums.statistic.codes_of(place), every, strict=True):
                yield Line(column, columns.bounds[place].text(code), SHARE, list(shares))
            continue
        unit = unit_of(schema, column)
        for name, laws in zip(("mean", "sd"), zip(*(cell.moments(rng) for cell in cells), strict=True), strict=True):
            yield Line(column, name, unit, list(laws))
        if sums.statistic.level_bins:
            quartiles = zip(*(cell.quartiles(rng) for cell in cells), strict=True)
            for name, laws in zip(QUARTILES, quartiles, strict=True):
                yield Line(column, name, unit, list(laws))


# --- doubts -----------------------------------------------------------------------------------------------------------


def _doubts(sums: Sums, columns: Columns) -> Iterator[str]:
    """Yield reasons to doubt the table, a sentence each."""
    cells = {(place, group): sums.cell(place, group)
             for place in range(len(columns.names)) for group in range(columns.groups)}  # fmt: skip

    def names(chosen: list[tuple[int, int]]) -> str:
        by = columns.group is not None
        texts = [f"{columns.names[place]} ({columns.labels[group]})" if by else columns.names[place]
                 for place, group in chosen]  # fmt: skip
        return listed(texts, _NAMED_MAX)

    hidden = [key for key, cell in cells.items() if cell.is_hidden]
    if hidden:
        yield (
            f"the noise hides how many values there are of {names(hidden)}: leave them out, join groups, ask more "
            "clients, or give a larger epsilon"
        )
    vague = [key for key, cell in cells.items() if key not in hidden and _is_vague(cell)]
    if vague:
        yield (
            f"the noise hides the sd of {names(vague)}, so that the sd and its interval are hardly more than a guess: "
            "give narrower bounds, fewer columns, or a larger epsilon"
        )
    for place, column in enumerate(columns.names):
        counts = [cells[place, group].count for group in range(columns.groups)]
        number, sd = sum(one for one, _ in counts), sum(one**2 for _, one in counts) ** 0.5
        what = f"a value of {column}" if columns.group is None else f"a value of {column} or of {columns.group}"
        yield from about_missing(number, sd, sums.rows, what, of=sums.unit)


def _is_vague(cell: Cell) -> bool:
    """Whether the variance is within three standard deviations of its noise."""
    return not cell.is_coded and cell.variance_score < _VAGUE_SDS
