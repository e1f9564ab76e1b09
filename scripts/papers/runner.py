"""Runs the cells of an experiment on all cores, and gives scripts their options, progress, checks and exit codes.

A script is: `parser` with `add_common_options`, cells, `run_cells`, figures, `finish`; and `main` around it. Exit codes
are those of all commands: 0, 2 for what the caller has to change, 4 where a check does not hold, 130 for Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from dca_proto.cli.output import STDOUT, require_json_target, require_plot_target, write_json
from dca_proto.errors import UsageError
from emulator import engine as engines
from inference.errors import DataError
from papers.record import Record, versions

__all__ = ["Check", "add_common_options", "finish", "main", "positive", "run_cells", "table", "versions"]

T = TypeVar("T")
CHECK_FAILED, USAGE, INTERRUPTED = 4, 2, 130


def run_cells(
    cells: Sequence[T],
    work: Callable[[T], dict[str, Any]],
    *,
    label: str,
    cost: Callable[[T], float] | None = None,
    resume: Path | None = None,
    processes: int | None = None,
    engine: str = engines.LOCAL,
    settings: Mapping[str, Any] | None = None,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """The results of all cells, in their order; only those that the record lacks are computed.

    Args:
        cells: picklable and told apart by ``str(cell)``. work: makes plain data of one; a function (or a partial of
            one) that a fresh process can import by its name.
        label: what is being done, for the progress bar on stderr.
        cost: of a cell, roughly; the most costly ones come first, so that no core waits for one at the end.
        resume: the file of the record; calls with other labels and the same settings may share it.
        processes: by default one for each core, with one BLAS and XLA thread each; 1 works in this process, with one
            XLA thread if JAX has not computed here before.
        engine: where they run, as `--engine` has it.
        settings: what the results depend on beside the cell; a record of others is refused.

    Raises:
        UsageError: the record cannot be used. RuntimeError: the work on a cell failed; its cause is in the text.
    """
    keys = [f"{label}: {cell}" for cell in cells]
    if len(set(keys)) < len(keys):
        raise ValueError("two cells of an experiment have the same text; tell them apart")
    record = Record(resume, settings or {})
    missing = [index for index, key in enumerate(keys) if key not in record]
    if cost is not None:
        missing.sort(key=lambda index: -cost(cells[index]))
    with _Progress(console or Console(stderr=True), label, len(cells), len(cells) - len(missing)) as progress:
        for done in _done(work, [cells[index] for index in missing], processes, engine):
            record.add(f"{label}: {done.item}", done.value())
            progress.advance()
    return [record[key] for key in keys]


def _done(
    work: Callable[[T], dict[str, Any]], cells: Sequence[T], processes: int | None, engine: str
) -> Iterator[engines.Done[T, dict[str, Any]]]:
    """Cells in the order in which they are done."""
    count = min(processes or engines.cores(), len(cells))
    if engine == engines.LOCAL and count <= 1:
        with engines.one_thread_each():
            yield from (engines.Done(cell, work(cell)) for cell in cells)
        return
    with engines.open_engine(engine) as chosen:
        yield from chosen.map(work, cells, processes=count if engine == engines.LOCAL else processes)


class _Progress:
    """A bar on a terminal; elsewhere a line for each tenth of the cells.

    Args:
        total: cells in all. finished: those that the record holds already.
    """

    def __init__(self, console: Console, label: str, total: int, finished: int) -> None:
        self._console, self._label, self._total, self._finished = console, label, total, finished
        self._began_s = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(label, total=total, completed=finished)

    def __enter__(self) -> _Progress:
        self._bar.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._bar.stop()

    def advance(self) -> None:
        """One cell more is finished."""
        tenths = 10 * self._finished // self._total
        self._finished += 1
        self._bar.advance(self._task)
        if not self._console.is_terminal and 10 * self._finished // self._total > tenths:
            elapsed_s = time.monotonic() - self._began_s
            self._console.print(f"{self._label}: {self._finished} of {self._total} after {elapsed_s:.0f} s")


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Those that every script has: --json, --plot, --resume, --processes, --engine, --quick and --seed."""
    parser.add_argument("--json", metavar="PATH|-", help="write the figures as one JSON object")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the figure")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep finished cells here, and go on from them")
    parser.add_argument("--processes", type=positive, metavar="P", help="by default one for each core")
    parser.add_argument("--engine", default=engines.LOCAL, help=engines.HELP)
    parser.add_argument("--quick", action="store_true", help="few repeats: a look within a minute, no figures to quote")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of all random streams (default 1)")


def positive(text: str) -> int:
    """The type of an option that is a whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return number


@dataclass(frozen=True)
class Check:
    """One thing that an experiment must show: what was asked, what was found, and whether it holds."""

    name: str
    asked: str
    found: str
    holds: bool


def finish(
    figures: Mapping[str, Any], options: argparse.Namespace, tables: Sequence[Table] = (), checks: Sequence[Check] = ()
) -> int:
    """Write the JSON, print the tables and the checks, and return the script's exit code.

    Args:
        figures: plain data with a ``kind``; versions and checks are added.
        options: those of `add_common_options`.
    """
    report = {**figures, "versions": versions(), "quick": options.quick, "seed": options.seed}
    if checks:
        report["checks"] = [{**asdict(check), "holds": bool(check.holds)} for check in checks]  # perhaps NumPy's
    write_json(report, options.json)
    console = Console(stderr=options.json == STDOUT)
    for one in (*tables, *([_checks_table(checks)] if checks else [])):
        console.print(_foldable(one), crop=False)
    return 0 if all(check.holds for check in checks) else CHECK_FAILED


def table(title: str, *columns: str) -> Table:
    """An empty table in the scripts' style: texts on the left in the first column, numbers on the right elsewhere."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for place, column in enumerate(columns):
        made.add_column(column, justify="right" if place else "left")
    return made


def _foldable(made: Table) -> Table:
    """The table with columns that wrap between words where it is narrow, and never within a number."""
    for column in made.columns:
        words = [word for cell in (column.header, *column.cells) for word in Text.from_markup(str(cell)).plain.split()]
        column.min_width = max(map(len, words), default=0)
    return made


def _checks_table(checks: Sequence[Check]) -> Table:
    made = Table(title="what it must show", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("", "check", "asked", "found"):
        made.add_column(column)
    for check in checks:
        mark = "[green]holds[/]" if check.holds else "[bold red]fails[/]"
        made.add_row(mark, check.name, check.asked, check.found)
    return made


def main(run: Callable[[argparse.Namespace], int], parser: argparse.ArgumentParser) -> int:
    """Parse the command line, run the script and return its exit code; what the caller did wrong takes one line."""
    options = parser.parse_args()
    try:
        require_json_target(options.json)
        require_plot_target(options.plot)
        return run(options)
    except (UsageError, DataError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        hint = f"; the same command goes on from {options.resume}" if options.resume else ""
        print(f"{parser.prog}: interrupted{hint}", file=sys.stderr)
        return INTERRUPTED
