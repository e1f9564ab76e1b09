"""Bars for work that takes a while: on terminals only, and gone with it."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

from dca_proto.cli.output import say

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
