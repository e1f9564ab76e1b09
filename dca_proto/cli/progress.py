"""Progress bars, shown on terminals only."""

from __future__ import annotations

import math
import time
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
)
from rich.text import Text

from dca_proto.cli.output import say
from dca_proto.wording import shown
from inference.variational.progress import Iteration

PATIENCE_S = 2.0


class Words(TextColumn):
    """A column of text, which is never markup."""

    def __init__(self, text: str) -> None:
        super().__init__(text, markup=False)


class PatientBar:
    """A progress bar for a known amount of work, shown once the work has taken two seconds.

    Args:
        console: where to show it. total: the amount of work. description: the bar's label.
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
        if self._progress.live.is_started:  # otherwise `stop` prints a line
            self._progress.stop()

    def advance(self, done: float) -> None:
        """Add an amount of work that is done."""
        self._done += done
        self.reach(self._done)

    def reach(self, done: float, description: str | None = None) -> None:
        """Set the amount of work that is done. Very cheap before the bar is shown."""
        self._done = done
        if not self._terminal or time.monotonic() - self._began_s < PATIENCE_S:
            return
        self._progress.update(self._task, completed=done, description=description)
        self._progress.start()


class TimeColumn(ProgressColumn):
    """How long the work has taken and, where it can be told, how long it will take: "0:12, about 0:40 left"."""

    def render(self, task: Task) -> Text:
        left = "" if task.time_remaining is None or task.finished else f", about {_clock(task.time_remaining)} left"
        return Text(f"{_clock(task.elapsed or 0.0)}{left}", style="progress.elapsed")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class _KnownBar(BarColumn):
    """A bar that is shown only if the amount of work is known."""

    def render(self, task: Task) -> Any:
        return Text() if task.total is None else super().render(task)


class SamplingBar:
    """A bar over a sampler's iterations: call it with their number and total. It also moves during compilation.

    Without a terminal it prints one line instead.
    """

    def __init__(self, console: Console) -> None:
        columns = (Words("{task.description:<34}"), BarColumn(bar_width=24), TaskProgressColumn())
        self._console, self._terminal = console, console.is_terminal
        self._progress = Progress(*columns, TimeColumn(), console=console, transient=True)
        self._task = self._progress.add_task("fitting", total=None)

    def __enter__(self) -> SamplingBar:
        if self._terminal:
            self._progress.start()
        else:
            say(self._console, "fitting", "the rounds are done; computing the result from the releases")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._terminal:
            self._progress.stop()

    def __call__(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=total, description="sampling")


class Display:
    """A moving status line on a terminal, with the time and, for counts, a bar; without a terminal it shows nothing.

    Args:
        console: where to show it. iterative: also show a bar over a job's iterations above it; that bar stays.
    """

    def __init__(self, console: Console, *, iterative: bool = False) -> None:
        columns = (
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeColumn(),
            Words("{task.fields[score]}"),
        )
        self._progress = Progress(Words("{task.description}"), *columns, console=console)
        self._task = self._progress.add_task("iteration", total=None, score="")
        self._now = Progress(SpinnerColumn(), Words("{task.description}"), _KnownBar(24), TimeColumn(), console=console)
        self._step, self._iterative = self._now.add_task("", total=None), iterative
        both = Group(self._progress, self._now) if iterative else self._now
        self._live = Live(both, console=console, refresh_per_second=10, transient=not iterative)

    def __enter__(self) -> Display:
        if self._live.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *failure: object) -> None:
        if self._iterative:
            self._live.update(self._progress)
        self._live.stop()

    def waiting(self, line: str, done: int = 0, total: int | None = None) -> None:
        """Change the status line.

        Args:
            done, total: the part of the step that is done, for the bar; a new total, or fewer done, begins a step.
        """
        task = self._now.tasks[0]
        if total != task.total or done < task.completed:
            self._now.reset(self._step)
            task.total = total  # `reset` cannot make it unknown
        self._now.update(self._step, description=shown(line), completed=done)

    def iterated(self, iteration: Iteration) -> None:
        """Advance the bar to this iteration and show its score."""
        score = score_text(iteration)
        self._progress.update(self._task, completed=iteration.number, total=iteration.total, score=score)


def score_text(iteration: Iteration) -> str:
    """Return a text such as "held-out AUC 0.942"; empty if there is no score."""
    return "" if math.isnan(iteration.value) else f"{iteration.name} {iteration.value:.4g}"
