"""What experiments share: an experiment is its settings, its cells, the work on one, and what is shown.

A subclass of `Experiment` is a frozen dataclass. Its fields are what is run: a field that is an `option` is one of the
command line's. `Experiment.main` runs the cells that the record lacks, draws the figure, prints tables and checks, and
writes JSON: the settings, every cell with its result, the tables and the checks. `python scripts/papers NAME` calls it.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from rich.table import Table
from rich.text import Text

from dca_proto.errors import UsageError
from dca_proto.privacy.rounding import at_least
from emulator.engine import LOCAL
from inference.problem import stream
from papers.runner import Check, add_common_options, finish, main, run_cells, table

C = TypeVar("C")
F = TypeVar("F")
Result = dict[str, Any]
Sweep = Callable[..., list[Result]]
BAND = 0.99


def option(default: Any, words: str, **how: Any) -> Any:
    """A field that is also an option of the command line; `how` is for `argparse`."""
    return field(default=default, metadata={"help": words, **how})


def data_option() -> Any:
    """The folder of the data files."""
    return option(None, "with the data files; else DCA_DATA, else download", type=Path, metavar="FOLDER")


@dataclass(frozen=True, kw_only=True)
class Experiment(Generic[C, F]):
    """One experiment. C is a cell, picklable and identified by its text; F is what the results are gathered to.

    Attributes:
        seed: of all random streams.
    """

    KIND: ClassVar[str]
    LABEL: ClassVar[str]
    """What is being done, for the progress bar."""
    QUICK: ClassVar[Mapping[str, Any]] = {}
    """Fields of a look within a minute or so, in which nothing is checked unless `QUICK_CHECKS`."""
    QUICK_CHECKS: ClassVar[bool] = False
    DEPENDS: ClassVar[tuple[str, ...]] = ("seed",)
    """The fields that a cell's result depends on: a record of others is refused."""
    ALONE: ClassVar[bool] = False
    """Whether cells are measured one at a time, on one core of this machine."""

    seed: int = 1

    def prepare(self) -> None:
        """Raise `DataError` where data are missing, before the work begins."""

    def cells(self) -> Sequence[C]:
        """All cells."""
        raise NotImplementedError

    def work(self, cell: C) -> Result:
        """A cell's result, as plain data."""
        raise NotImplementedError

    def cost(self, cell: C) -> float:
        """Of a cell, roughly: the most costly come first."""
        return 0.0

    def gather(self, cells: Sequence[C], results: Sequence[Result]) -> F:
        """All results, as tables, checks and figure need them; by default each cell's result by the cell."""
        return dict(zip(cells, results, strict=True))  # type: ignore[return-value]

    def results(self, sweep: Sweep) -> F:
        """Sweep the cells. An experiment of several sweeps has its own."""
        cells = self.cells()
        return self.gather(cells, sweep(cells, self.work, cost=self.cost))

    def notes(self, found: F) -> Mapping[str, Any]:
        """What else the JSON has."""
        return {}

    def tables(self, found: F) -> Iterable[Table]:
        """What is printed."""
        return ()

    def checks(self, found: F) -> Iterable[Check]:
        """What the experiment must show."""
        return ()

    def draw(self, found: F, path: Path) -> None:
        """Write the figure."""
        raise NotImplementedError

    @classmethod
    def parser(cls, name: str | None = None) -> argparse.ArgumentParser:
        """Its command line."""
        words, how = inspect.cleandoc(cls.__doc__ or ""), argparse.RawDescriptionHelpFormatter
        parser = argparse.ArgumentParser(prog=name, description=words, formatter_class=how)
        if name is None:
            parser.epilog = f"examples:\n    scripts/{parser.prog}\n    scripts/{parser.prog} --quick --json -"
        add_common_options(parser)
        for one in fields(cls):
            if one.metadata:
                default = None if one.metadata.get("action") == "append" else one.default
                parser.add_argument(f"--{one.name.replace('_', '-')}", default=default, **one.metadata)
        return parser

    @classmethod
    def of(cls, options: argparse.Namespace) -> Experiment[C, F]:
        """The experiment that the command line asks for."""
        asked = {one.name: getattr(options, one.name) for one in fields(cls) if one.metadata or one.name == "seed"}
        for one in fields(cls):
            if one.metadata.get("action") == "append":
                asked[one.name] = one.default if asked[one.name] is None else tuple(asked[one.name])
        return cls(**asked | (dict(cls.QUICK) if options.quick else {}))

    @classmethod
    def main(cls, name: str | None = None) -> int:
        """Run what the command line asks for, and return the exit code."""
        return main(lambda options: cls.of(options).run(options), cls.parser(name))

    def run(self, options: argparse.Namespace) -> int:
        """All of it; returns the exit code."""
        if options.plot and type(self).draw is Experiment.draw:
            raise UsageError("--plot: this experiment has no figure; leave it out")
        if self.ALONE:
            options.processes, options.engine = 1, LOCAL
            if hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # before JAX starts its threads
        self.prepare()
        shared = {name: getattr(options, name) for name in ("resume", "engine", "processes")}
        shared["settings"] = {name: getattr(self, name) for name in self.DEPENDS}
        listed: list[Result] = []

        def sweep(cells: Sequence[Any], work: Any, label: str = self.LABEL, **how: Any) -> list[Result]:
            found = run_cells(cells, work, label=label, **shared | how)
            both = zip(cells, found, strict=True)
            listed.extend({"cell": str(cell), **_fields_of(cell), **one} for cell, one in both)
            return found

        found = self.results(sweep)
        if options.plot:
            self.draw(found, options.plot)
        shown, asked = list(self.tables(found)), not options.quick or self.QUICK_CHECKS
        figures = {"kind": self.KIND, "settings": _fields_of(self), **self.notes(found), "cells": listed}
        figures["tables"] = [_plain(one) for one in shown]
        return finish(figures, options, shown, list(self.checks(found)) if asked else [])


def _fields_of(one: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(asdict(one) if is_dataclass(one) else {}, default=str))  # type: ignore[arg-type]
    return made


def _plain(shown: Table) -> dict[str, Any]:
    columns = [[Text.from_markup(str(cell)).plain for cell in column.cells] for column in shown.columns]
    heads = [str(column.header) for column in shown.columns]
    return {"title": shown.title, "columns": heads, "rows": list(zip(*columns, strict=True)), "note": shown.caption}


def mean_of(results: Iterable[Result], what: str, **where: Any) -> float:
    """The mean of one figure over the cells that have these values."""
    return fmean(one[what] for one in results if all(one[name] == value for name, value in where.items()))


@dataclass(frozen=True, kw_only=True)
class BlockExperiment(Experiment[C, list[Result]]):
    """Cells of many repeats, in blocks so that all cores have work; a cell is a named tuple with its `block`."""

    QUICK = MappingProxyType({"share": 0.1})
    QUICK_CHECKS = True
    DEPENDS = ("share",)

    share: float = 1.0  # of the repeats

    def repeats(self, cell: C) -> int:
        """How many a whole cell has."""
        raise NotImplementedError

    def once(self, cell: C, rng: Any) -> dict[str, float]:
        """The figures of one repeat."""
        raise NotImplementedError

    def work(self, cell: Any) -> Result:
        rng, repeats = stream(cell.block, str(cell)), max(2, round(self.share * self.repeats(cell)))
        found = [self.once(cell, rng) for _ in range(repeats)]
        return {**cell._asdict(), "repeats": repeats, **{name: mean_of(found, name) for name in found[0]}}

    def gather(self, cells: Sequence[C], results: Sequence[Result]) -> list[Result]:
        return list(results)


def over_epsilon(title: str, first: str, epsilons: Iterable[float], *more: str) -> Table:
    """An empty table with a column for each ε."""
    return table(title, first, *(f"ε = {at_least(epsilon)}" for epsilon in epsilons), *more)


def noted(shown: Table, note: str) -> Table:
    """The table with a note below it."""
    shown.caption, shown.caption_justify = note, "left"
    return shown


class Estimate(NamedTuple):
    """A mean, and the ends of its interval."""

    mean: float
    low: float
    high: float


def joint_interval(values: Any, level: float, count: int = 1) -> Estimate:
    """The mean of independent runs, ``(n,)``, and the ends of Student's interval: `count` such hold with that level.

    It is unbounded for a single run.
    """
    from scipy.stats import t  # slow to import

    n, mean, half = len(values), float(values.mean()), math.inf
    if n > 1:
        half = float(t.ppf(1 - (1 - level) / (2 * count), n - 1) * values.std(ddof=1) / math.sqrt(n))
    return Estimate(mean, mean - half, mean + half)


def band(level: float, count: int, looked_at: int) -> tuple[float, float]:
    """What the coverage of `count` data sets lies within, for one of as many coverages as are looked at.

    If intervals of that level are nominal, the number that hold is binomial. Of K that are looked at, all lie between
    the quantiles at 0.005/K and 1 - 0.005/K with a probability of 99 % at least, whatever the dependence (Bonferroni).
    """
    from scipy.stats import binom

    tail = (1 - BAND) / looked_at / 2
    return float(binom.ppf(tail, count, level)) / count, float(binom.isf(tail, count, level)) / count
