"""The base class of all experiments: settings, cells, the work on one cell, tables, checks and a figure.

A subclass of `Experiment` is a frozen dataclass. Its fields are the settings; a field made by `option` is also an
option of the command line. `Experiment.main` runs the cells that the record lacks, draws the figure, prints tables and
checks, and writes all of it as JSON. `python scripts/papers NAME` calls it.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from rich.table import Table
from rich.text import Text

from dca_proto.engine import LOCAL
from dca_proto.privacy.rounding import at_least
from inference.problem import stream
from papers import picture
from papers.runner import Check, add_common_options, finish, main, run_cells, table

C = TypeVar("C")
F = TypeVar("F")
Result = dict[str, Any]
Sweep = Callable[..., list[Result]]
BAND = 0.99


def option(default: Any, text: str, **arguments: Any) -> Any:
    """Return a field that is also an option of the command line; `arguments` go to `argparse`."""
    return field(default=default, metadata={"help": text, **arguments})


def data_option() -> Any:
    return option(None, "folder of the data files (default: DCA_DATA; else download)", type=Path, metavar="FOLDER")


@dataclass(frozen=True, kw_only=True)
class Experiment(Generic[C, F]):
    """An experiment on cells of type C, which are picklable, with distinct texts. `gather` returns an F.

    Attributes:
        seed: the seed of all random streams.
    """

    KIND: ClassVar[str]
    LABEL: ClassVar[str]
    """The text beside the progress bar."""
    QUICK: ClassVar[Mapping[str, Any]] = {}
    """The fields that --quick changes, for a run of about a minute. It checks nothing unless `QUICK_CHECKS`."""
    QUICK_CHECKS: ClassVar[bool] = False
    DEPENDS: ClassVar[tuple[str, ...]] = ("seed",)
    """The fields that a cell's result depends on. A record with other values of these is refused."""
    ALONE: ClassVar[bool] = False
    """True if cells run one at a time, on one idle core of this machine, because they are timed."""

    seed: int = 1

    def prepare(self) -> None:
        """Raise `DataError` if data are missing, before the work begins."""

    def cells(self) -> Sequence[C]:
        raise NotImplementedError

    def work(self, cell: C) -> Result:
        """Return the cell's result, as plain data."""
        raise NotImplementedError

    def cost(self, cell: C) -> float:
        """Return the cell's rough cost; the most costly cells run first."""
        return 0.0

    def gather(self, cells: Sequence[C], results: Sequence[Result]) -> F:
        """Return all results in the form that tables, checks and figure need; by default, each result by its cell."""
        return dict(zip(cells, results, strict=True))  # type: ignore[return-value]

    def results(self, sweep: Sweep) -> F:
        """Run and gather all cells. An experiment with several sweeps overrides this."""
        cells = self.cells()
        return self.gather(cells, sweep(cells, self.work, cost=self.cost))

    def notes(self, found: F) -> Mapping[str, Any]:
        """Return further entries of the JSON."""
        return {}

    def tables(self, found: F) -> Iterable[Table]:
        return ()

    def checks(self, found: F) -> Iterable[Check]:
        return ()

    def draw(self, found: F, path: Path) -> None:
        """Write the figure."""
        raise NotImplementedError

    @classmethod
    def parser(cls, name: str | None = None) -> argparse.ArgumentParser:
        """Return the parser of the command line; its help is the class's docstring."""
        text, formatter = inspect.cleandoc(cls.__doc__ or ""), argparse.RawDescriptionHelpFormatter
        parser = argparse.ArgumentParser(prog=name, description=text, formatter_class=formatter)
        if name is None:
            parser.epilog = f"examples:\n    scripts/{parser.prog}\n    scripts/{parser.prog} --quick --json -"
        add_common_options(parser, has_figure=cls.draw is not Experiment.draw)
        for entry in fields(cls):
            if entry.metadata:
                default = None if entry.metadata.get("action") == "append" else entry.default
                parser.add_argument(f"--{entry.name.replace('_', '-')}", default=default, **entry.metadata)
        return parser

    @classmethod
    def of(cls, options: argparse.Namespace) -> Experiment[C, F]:
        """Return the experiment with the settings that the command line asks for."""
        settings = {e.name: getattr(options, e.name) for e in fields(cls) if e.metadata or e.name == "seed"}
        for entry in fields(cls):
            if entry.metadata.get("action") == "append":
                given = settings[entry.name]
                settings[entry.name] = entry.default if given is None else tuple(given)
        return cls(**settings | (dict(cls.QUICK) if options.quick else {}))

    @classmethod
    def main(cls, name: str | None = None) -> int:
        """Run the experiment with the settings of the command line; return the exit code."""
        return main(lambda options: cls.of(options).run(options), cls.parser(name))

    @classmethod
    def quick_words(cls) -> str:
        """Return the mark of a quick run's pictures, with its repeats and what else it has fewer of."""
        known = {name: value for name, value in cls.QUICK.items() if type(value) in (int, float)}
        fewer = ", ".join(f"{name.replace('_', ' ')} = {value:g}" for name, value in known.items())
        return f"QUICK RUN, do not quote{': ' * bool(fewer)}{fewer}"

    def run(self, options: argparse.Namespace) -> int:
        """Run, draw, print and write everything; return the exit code."""
        if self.ALONE:
            options.processes, options.engine = 1, LOCAL
            if hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # before JAX starts its threads
        self.prepare()
        shared = {name: getattr(options, name) for name in ("journal", "engine", "processes")}
        shared["settings"] = {name: getattr(self, name) for name in self.DEPENDS}
        listed: list[Result] = []
        spent: list[float] = []

        def sweep(cells: Sequence[Any], work: Any, label: str = self.LABEL, **arguments: Any) -> list[Result]:
            results = run_cells(cells, work, label=label, spent=spent, **shared | arguments)
            pairs = zip(cells, results, strict=True)
            listed.extend({"cell": str(cell), **_fields_of(cell), **result} for cell, result in pairs)
            return results

        found = self.results(sweep)
        if getattr(options, "plot", None):
            with picture.marked(self.quick_words() if options.quick else ""):
                self.draw(found, options.plot)
        tables, checked = list(self.tables(found)), not options.quick or self.QUICK_CHECKS
        figures = {"kind": self.KIND, "settings": _fields_of(self), **self.notes(found), "cells": listed}
        figures["cpu_seconds"] = cpu_s = round(sum(spent), 1)
        figures["tables"] = [_plain(one) for one in tables]
        code = finish(figures, options, tables, list(self.checks(found)) if checked else [])
        print(f"processor time of the cells: {cpu_s:,.0f} s, half of it on two idle cores", file=sys.stderr)
        return code


def _fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as plain data; none of any other value."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(value) if is_dataclass(value) else {}, default=str))  # type: ignore[arg-type]
    return plain


def _plain(shown: Table) -> dict[str, Any]:
    columns = [[Text.from_markup(str(cell)).plain for cell in column.cells] for column in shown.columns]
    heads = [str(column.header) for column in shown.columns]
    return {"title": shown.title, "columns": heads, "rows": list(zip(*columns, strict=True)), "note": shown.caption}


def mean_of(results: Iterable[Result], name: str, **equal: Any) -> float:
    """Return the mean of one entry over the results whose other entries have these values."""
    return fmean(one[name] for one in results if all(one[key] == value for key, value in equal.items()))


@dataclass(frozen=True, kw_only=True)
class BlockExperiment(Experiment[C, list[Result]]):
    """An experiment of many repeats, divided into blocks for all cores. A cell is a named tuple with its `block`."""

    QUICK = MappingProxyType({"share": 0.1})
    QUICK_CHECKS = True
    DEPENDS = ("share",)

    share: float = 1.0  # the part of each cell's repeats that is run

    def repeats(self, cell: C) -> int:
        """Return the number of repeats of a whole cell."""
        raise NotImplementedError

    def once(self, cell: C, rng: Any) -> dict[str, float]:
        """Return the figures of one repeat."""
        raise NotImplementedError

    def work(self, cell: Any) -> Result:
        rng, repeats = stream(cell.block, str(cell)), max(2, round(self.share * self.repeats(cell)))
        figures = [self.once(cell, rng) for _ in range(repeats)]
        return {**cell._asdict(), "repeats": repeats, **{name: mean_of(figures, name) for name in figures[0]}}

    def gather(self, cells: Sequence[C], results: Sequence[Result]) -> list[Result]:
        return list(results)


def over_epsilon(title: str, first: str, epsilons: Iterable[float], *more: str) -> Table:
    """Return an empty table with a column for each ε."""
    return table(title, first, *(f"ε = {at_least(epsilon)}" for epsilon in epsilons), *more)


def noted(shown: Table, note: str) -> Table:
    """Put a note below the table."""
    shown.caption, shown.caption_justify = note, "left"
    return shown


class MeanInterval(NamedTuple):
    """A mean with an interval."""

    mean: float
    low: float
    high: float


FALSE_ALARM = 0.01  # probability that chance alone fails some coverage of a whole table
DEPENDENT = 1.1  # variance of the coverage of one fit's coefficients, over that of independent intervals


def outside(share: float, count: float, low: float, high: float = 1.0) -> float:
    """Return how likely chance is to bring a coverage so far outside of its limits, if the true one is a limit.

    It is the binomial tail; 1 within the limits. With K looks at a table, fail those below `FALSE_ALARM`/K: if all true
    coverages are within their limits, some look then fails with a probability of at most `FALSE_ALARM` (Bonferroni).

    Args:
        share: of the intervals that hold. count: of independent intervals. low, high: limits of the true coverage.
    """
    from scipy.stats import binom  # slow to import

    held = share * count
    if low <= share <= high:
        return 1.0
    return float(
        binom.cdf(round(held), round(count), low) if share < low else binom.sf(round(held) - 1, round(count), high)
    )


def larger(ratio: float, count: float, limit: float) -> float:
    """Return how likely chance is to bring such a ratio of two root mean squares, if the true one is the limit.

    Args:
        ratio: of two root mean squares of normal errors. count: of independent errors in each.
    """
    from scipy.stats import f

    return float(f.sf((ratio / limit) ** 2, count, count))


def seen_share(level: float, count: int, false_alarm: float, *, often: float, step: float) -> float | None:
    """Return the largest true coverage whose fault a look sees so often; None if it sees no fault at all.

    Args:
        level: of the intervals; a look fails if so few hold with a probability below `false_alarm`. count: of
            independent intervals. often: the probability of failing then. step: of the coverages that are tried.
    """
    import numpy as np
    from scipy.stats import binom

    most = binom.ppf(false_alarm, count, level) - 1  # the most that hold in a look that fails
    if most < 0:
        return None
    shares = np.arange(level, -step / 2, -step).clip(0.0)
    return float(shares[(binom.cdf(most, count, shares) >= often).argmax()])


def joint_interval(values: Any, level: float, count: int = 1) -> MeanInterval:
    """Return the mean of independent runs, ``(n,)``, with Student's interval; unbounded for a single run.

    `count` such intervals hold together with a probability of at least `level` (Bonferroni).
    """
    from scipy.stats import t  # slow to import

    n, mean, half = len(values), float(values.mean()), math.inf
    if n > 1:
        half = float(t.ppf(1 - (1 - level) / (2 * count), n - 1) * values.std(ddof=1) / math.sqrt(n))
    return MeanInterval(mean, mean - half, mean + half)


def band(level: float, count: int, looked_at: int) -> tuple[float, float]:
    """Return the simultaneous 99 % band of a coverage over `count` data sets, one of `looked_at` coverages.

    If intervals have their nominal level, the number that cover is binomial. All K coverages lie between the quantiles
    at 0.005/K and 1 - 0.005/K with a probability of at least 99 %, whatever their dependence (Bonferroni).
    """
    from scipy.stats import binom

    tail = (1 - BAND) / looked_at / 2
    return float(binom.ppf(tail, count, level)) / count, float(binom.isf(tail, count, level)) / count
