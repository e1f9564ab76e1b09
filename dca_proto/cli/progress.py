"""A bar for work that takes a while: it appears on a terminal once the work has taken two seconds, and goes with it."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import Progress, ProgressColumn

PATIENCE_S = 2.0


class PatientBar:
    """How much of a known amount of work is done. Nothing is shown where there is no terminal, or little to wait for.

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
