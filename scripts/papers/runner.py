"""Runs the cells of an experiment on all cores; gives scripts their options, progress bar, checks and exit codes.

Exit codes: 0 for success, 2 for an error of the caller, 4 if a check fails, 130 for Ctrl-C.

`--journal` keeps finished cells in a file of JSON lines. Its first line holds the experiment's settings and package
versions; a file with others is refused, and the error names the differences. A last line that a kill cut short is
dropped. Several sweeps of one script may share a file, because a cell's key begins with the label of its sweep.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from dca_proto import engine as engines
from dca_proto.cli.output import require_json_target, require_plot_target
from dca_proto.errors import UsageError
from dca_proto.runtime.files import STDOUT, require_writable, write_json
from emulator import provenance
from inference.errors import DataError

T = TypeVar("T")
CHECK_FAILED, USAGE, INTERRUPTED = 4, 2, 130
_GLUE = "\u2800"  # shown as a space; unlike one, rich does not break a line at it
_RECORD, _PACKAGES = "experiment-record", ("dca-proto", "numpy", "scipy")


def versions() -> dict[str, str]:
    """Return the versions of the packages that results depend on."""
    return provenance.versions(_PACKAGES)


class Record(dict[str, dict[str, Any]]):
    """The finished cells of one experiment: result by key; `cpu_s` has the processor time of each.

    Args:
        path: the file, which need not exist yet; None keeps the results in memory only.
        settings: the settings that results depend on, as plain data.

    Raises:
        UsageError: the file belongs to another experiment, is no record, or cannot be written.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self._path, self.cpu_s = path, dict[str, float]()
        if path is not None:
            require_writable(path)
            own = {"settings": _plain(settings), "versions": versions()}
            if path.exists() and path.stat().st_size:
                self._load(path, own)
            else:
                self._append({"kind": _RECORD, **own})

    def add(self, key: str, result: Mapping[str, Any], cpu_s: float) -> None:
        """Add a finished cell. If there is a file, the result is on the disk before this returns."""
        self[key], self.cpu_s[key] = _plain(result), cpu_s
        self._append({"key": key, "result": self[key], "cpu_s": cpu_s})

    def _load(self, path: Path, own: Mapping[str, Any]) -> None:
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(path, len(whole))
        head, *lines = [_parsed(line) for line in whole.splitlines()] or [None]
        if not isinstance(head, dict) or head.get("kind") != _RECORD:
            raise UsageError(f"--journal {path}: an experiment did not write this file; name a new one")
        if differences := "; ".join(provenance.differences(head, own)):
            raise UsageError(f"--journal {path} is of another experiment: {differences}; name a new file")
        for line in lines:
            if not (isinstance(line, dict) and isinstance(line.get("result"), dict) and {"key", "cpu_s"} <= set(line)):
                raise UsageError(f"--journal {path}: a line is damaged; name a new file")
            self[line["key"]], self.cpu_s[line["key"]] = line["result"], line["cpu_s"]

    def _append(self, value: Mapping[str, Any]) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(value) + "\n")
                file.flush()
                os.fsync(file.fileno())


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value as JSON gives it back (lists for tuples, texts for keys), so that resuming changes no result."""
    plain: dict[str, Any] = json.loads(json.dumps(value, allow_nan=False))
    return plain


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def run_cells(
    cells: Sequence[T],
    work: Callable[[T], dict[str, Any]],
    *,
    label: str,
    cost: Callable[[T], float] | None = None,
    journal: Path | None = None,
    processes: int | None = None,
    engine: str = engines.LOCAL,
    settings: Mapping[str, Any] | None = None,
    console: Console | None = None,
    spent: list[float] | None = None,
) -> list[dict[str, Any]]:
    """Return the results of all cells, in their order; compute those that the record lacks.

    Args:
        cells: picklable, with distinct ``str(cell)``. work: returns a cell's result as plain data.
        label: the text beside the progress bar on stderr.
        cost: a cell's rough cost. The most costly cells run first, so that no core waits for one at the end.
        journal: the file of the record.
        processes: by default one per core, with one BLAS and XLA thread each. 1 runs the work in this process, with one
            XLA thread if JAX has not computed here before.
        engine: where cells run: a value of `--engine`.
        settings: the settings that results depend on.
        spent: gets each cell's seconds of processor time, also of cells from the record.

    Raises:
        UsageError: the record cannot be used. RuntimeError: the work on a cell failed; the text has the cause.
    """
    keys = [f"{label}: {cell}" for cell in cells]
    if len(set(keys)) < len(keys):
        raise ValueError("two cells of an experiment have the same text; make them differ")
    record = Record(journal, settings or {})
    missing = [index for index, key in enumerate(keys) if key not in record]
    if cost is not None:
        missing.sort(key=lambda index: -cost(cells[index]))
    with _progress(console or Console(stderr=True), label, len(cells), len(cells) - len(missing)) as advance:
        for done in _done(_Timed(work), [cells[index] for index in missing], processes, engine):
            record.add(f"{label}: {done.item}", *done.value())
            advance()
    if spent is not None:
        spent.extend(record.cpu_s[key] for key in keys)
    return [record[key] for key in keys]


@dataclass(frozen=True)
class _Timed(Generic[T]):
    """The work on a cell, with its seconds of processor time."""

    work: Callable[[T], dict[str, Any]]

    def __call__(self, cell: T) -> tuple[dict[str, Any], float]:
        began_s = time.process_time()
        return self.work(cell), round(time.process_time() - began_s, 3)


def _done(
    work: _Timed[T], cells: Sequence[T], processes: int | None, engine: str
) -> Iterator[engines.Done[T, tuple[dict[str, Any], float]]]:
    """Yield cells with their results as they finish."""
    count = min(processes or engines.cores(), len(cells))
    if engine == engines.LOCAL and count <= 1:
        with engines.one_thread_each():
            yield from (engines.Done(cell, work(cell)) for cell in cells)
        return
    with engines.open_engine(engine) as chosen:
        yield from chosen.map(work, cells, processes=count if engine == engines.LOCAL else processes)


@contextmanager
def _progress(console: Console, label: str, total: int, finished: int) -> Iterator[Callable[[], None]]:
    """Yield a function to call for each finished cell. It moves a bar on a terminal; else it prints every tenth."""
    began_s, left = time.monotonic(), (TextColumn("left"), TimeRemainingColumn())
    columns = (TextColumn("{task.description}"), BarColumn(32), MofNCompleteColumn(), TimeElapsedColumn(), *left)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=total, completed=finished)

        def advance() -> None:
            nonlocal finished
            finished += 1
            bar.advance(task)
            if not console.is_terminal and 10 * finished // total > 10 * (finished - 1) // total:
                console.print(f"{label}: {finished} of {total} after {time.monotonic() - began_s:.0f} s")

        yield advance


def add_common_options(parser: argparse.ArgumentParser, *, has_figure: bool = True) -> None:
    """Add the options that all experiments share; --plot only to those that draw a figure."""
    parser.add_argument("--json", metavar="FILE|-", help="write the figures as one JSON object")
    if has_figure:
        parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the figure")
    parser.add_argument("--journal", type=Path, metavar="FILE", help="keep finished cells in FILE; skip those it has")
    parser.add_argument("--processes", type=positive, metavar="P", help="number of processes (default: one per core)")
    parser.add_argument("--engine", default=engines.LOCAL, help=engines.HELP)
    parser.add_argument("--quick", action="store_true", help="few repeats, about a minute; do not quote its figures")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="seed of all random streams (default 1)")


def positive(text: str) -> int:
    """Parse an option that is a whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return number


@dataclass(frozen=True)
class Check:
    """One requirement on an experiment's results: `asked` and `found` are texts for the table."""

    name: str
    asked: str
    found: str
    holds: bool


def finish(
    figures: Mapping[str, Any], options: argparse.Namespace, tables: Sequence[Table] = (), checks: Sequence[Check] = ()
) -> int:
    """Write the JSON, print the tables and the checks, and return the script's exit code.

    Args:
        figures: plain data with a ``kind``, to which versions and checks are added.
        options: the options of `add_common_options`.
    """
    report = {**figures, "versions": versions(), "quick": options.quick, "seed": options.seed}
    shown = list(tables)
    if checks:
        report["checks"] = [{**asdict(check), "holds": bool(check.holds)} for check in checks]  # perhaps NumPy's
        shown.append(verdicts := table("checks", "", "check", "asked", "found", justify="left"))
        for check in checks:
            mark = "[green]holds[/]" if check.holds else "[bold red]fails[/]"
            verdicts.add_row(mark, check.name, check.asked, check.found)
    write_json(report, options.json)
    console = Console(stderr=options.json == STDOUT)
    for one in shown:
        for part in _parts(one, console.width):
            with console.capture() as captured:
                console.print(part, crop=False)
            console.file.write(captured.get().replace(_GLUE, " "))
    return 0 if all(check.holds for check in checks) else CHECK_FAILED


def unbroken(text: str, space: str = "\u00a0") -> str:
    """Return a text for a title or a cell, in which no line ends within "n = 100", "0.87 ± 0.01" or "95 %"."""
    return re.sub(r"(?<=[=±≈≤≥]) (?=\S)|(?<=<=) (?=\S)| (?=[=±≈≤≥%]|<=)", space, text)


def _parts(whole: Table, width: int) -> Iterator[Table]:
    """Yield tables that fit into the width, if their words do, with the first column in each.

    On a narrow terminal, texts wrap between words, never within a number or its margin.
    """
    texts = [[unbroken(str(text), _GLUE) for text in (column.header, *column.cells)] for column in whole.columns]
    plain = [[Text.from_markup(text).plain for text in column] for column in texts]
    least = [max((len(word) for text in column for word in text.split()), default=0) for column in plain]
    groups, room = [[0]], width - 1
    for place in range(1, len(least)):
        if groups[-1] != [0] and sum(least[at] + 2 for at in (*groups[-1], place)) > room:
            groups.append([0])
        groups[-1].append(place)
    for number, group in enumerate(groups):
        part = table(unbroken(str(whole.title), _GLUE) if number == 0 else None)
        for place in group:
            whole_words = all(len(text.split()) < 2 for text in plain[place])  # rich narrows other columns first
            part.add_column(
                texts[place][0], justify=whole.columns[place].justify, min_width=least[place], no_wrap=whole_words
            )
        for number_of_row, row in enumerate(whole.rows):
            cells = (texts[place][1 + number_of_row] for place in group)
            part.add_row(*cells, style=row.style, end_section=row.end_section)
        if number == len(groups) - 1 and whole.caption:
            part.caption, part.caption_justify = unbroken(str(whole.caption), _GLUE), "left"
        yield part


def table(title: str | None, *columns: str, justify: Any = "right") -> Table:
    """Return an empty table in the scripts' style: the first column is left-justified, the others by `justify`."""
    empty = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for place, column in enumerate(columns):
        empty.add_column(column, justify=justify if place else "left")
    return empty


def main(run: Callable[[argparse.Namespace], int], parser: argparse.ArgumentParser) -> int:
    """Parse the command line, run the script and return its exit code; report an error of the caller in one line."""
    options = parser.parse_args()
    try:
        require_json_target(options.json)
        require_plot_target(getattr(options, "plot", None))
        return run(options)
    except (UsageError, DataError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        hint = f"; the same command continues from {options.journal}" if options.journal else ""
        print(f"{parser.prog}: interrupted{hint}", file=sys.stderr)
        return INTERRUPTED
