"""Bars for work that takes a while: on terminals only."""

from __future__ import annotations

import math
import time
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.spinner import Spinner

from dca_proto.cli.output import say
from inference.variational.progress import Iteration

PATIENCE_S = 2.0


class PatientBar:
    """How much of a known amount of work is done, shown once it has taken two seconds.

    Args:
        console: where to show. total: how much there is to do. description: of what.
        columns: of the bar; rich's own by default.
    """

    def __init__(self, console: Console, total: float, description: str, *columns: ProgressColumn) -> None:
        self._terminal = console.is_terminal
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task(description, total=total)
        self._began_s = time.monotonic()
        self._done = 0.0

    def __enter__(self) -> PatientBar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._progress.live.is_started:  # else a line would be shown
            self._progress.stop()

    def advance(self, done: float) -> None:
        """So much more is done."""
        self._done += done
        self.reach(self._done)

    def reach(self, done: float, description: str | None = None) -> None:
        """So much is done in all. Costs next to nothing before the bar is shown."""
        self._done = done
        if not self._terminal or time.monotonic() - self._began_s < PATIENCE_S:
            return
        self._progress.update(self._task, completed=done, description=description)
        self._progress.start()


class SamplingBar:
    """How many iterations samplers have made: call it with these and their total. It moves while they compile, too.

    Where there is no terminal, one line says what is waited for.

    Args:
        console: where to show.
    """

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description:<34}"), BarColumn(bar_width=24), TaskProgressColumn())
        self._console, self._terminal = console, console.is_terminal
        self._progress = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
        self._task = self._progress.add_task("fitting", total=None)

    def __enter__(self) -> SamplingBar:
        if self._terminal:
            self._progress.start()
        else:
            say(self._console, "fitting", "the rounds are over; the result is made of what was released")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._terminal:
            self._progress.stop()

    def __call__(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=total, description="sampling")


class Display:
    """What is waited for now, as a line that moves on a terminal; elsewhere it shows nothing.

    Args:
        console: where to show. iterative: whether a bar over a job's iterations stands above, and stays.
    """

    def __init__(self, console: Console, *, iterative: bool = False) -> None:
        columns = (
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[score]}"),
        )
        self._progress = Progress(TextColumn("{task.description}"), *columns, console=console)
        self._task = self._progress.add_task("iteration", total=None, score="")
        self._now, self._iterative = Spinner("dots"), iterative
        shown = Group(self._progress, self._now) if iterative else self._now
        self._live = Live(shown, console=console, refresh_per_second=10, transient=not iterative)

    def __enter__(self) -> Display:
        if self._live.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *failure: object) -> None:
        if self._iterative:
            self._live.update(self._progress)
        self._live.stop()

    def waiting(self, line: str) -> None:
        """Show another line."""
        self._now.update(text=escape(line))

    def iterated(self, iteration: Iteration) -> None:
        """One is done: its score stands beside the bar."""
        score = score_text(iteration)
        self._progress.update(self._task, completed=iteration.number, total=iteration.total, score=score)


def score_text(iteration: Iteration) -> str:
    """Such as "held-out AUC 0.942"; nothing where there is no score."""
    return "" if math.isnan(iteration.value) else f"{iteration.name} {iteration.value:.4g}"
