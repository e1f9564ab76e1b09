"""A swarm's progress while it runs: bars on a terminal, lines in a log or a pipe. Nothing here decides anything.

A job of a few rounds is told phase by phase; one of many iterations is told iteration by iteration, with its score.
"""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from dca_proto.cli.learn_view import score_words
from dca_proto.cli.output import say
from emulator.swarm.timeline import RoundLog
from inference.variational.progress import Iteration

_ENDED = {"join": "joined", "share": "shared", "commit": "sum released", "release": "released"}


class Lines:
    """Progress of a swarm in a log or a pipe: a line for each phase as it ends.

    Args:
        console: where to print. clients: N.
    """

    def __init__(self, console: Console, clients: int) -> None:
        self._console = console
        self._clients = clients
        self._told: dict[float, set[str]] = {}

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *failure: object) -> None:
        """Nothing to close."""

    def connected(self, count: int, total: int) -> None:
        """The line about the broker says so."""

    def iterated(self, iteration: Iteration) -> None:
        """Told by the rounds."""

    def changed(self, log: RoundLog) -> None:
        """A round has gone on."""
        told = self._told.setdefault(log.began_s, set())
        for phase in _ENDED:
            is_known = phase in log.ends_s and (phase == "join" or log.ended_s)  # what is shared, once nodes agree
            if is_known and phase not in told:
                told.add(phase)
                say(self._console, f"round {len(self._told)}", f"{log.statistic}: {self._ended(log, phase)}")

    def _ended(self, log: RoundLog, phase: str) -> str:
        counts = {
            "join": f"{log.joined} of {self._clients} ",
            "share": f"{log.shared} of {len(log.clients)} ",
            "release": f"{log.joined} of {self._clients} {'clients' if log.reports else 'data nodes'} ",
        }
        ended = "reported" if log.reports else _ENDED[phase]
        return f"{counts.get(phase, '')}{ended}, {log.phase_s()[phase]:.1f} s"


class Bars:
    """Progress of a swarm on a terminal: a bar for each phase of each round.

    Args:
        console: where to draw. clients: N.
    """

    def __init__(self, console: Console, clients: int) -> None:
        columns = (
            TextColumn("{task.description:<34}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=console)
        self._clients = clients
        self._connecting = self._progress.add_task("connect", total=None)
        self._bars: dict[tuple[float, str], TaskID] = {}
        self._rounds: list[float] = []

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._progress.stop()

    def connected(self, count: int, total: int) -> None:
        """So many actors of so many have a connection."""
        self._progress.update(self._connecting, completed=count, total=total)

    def iterated(self, iteration: Iteration) -> None:
        """Told by the rounds."""

    def changed(self, log: RoundLog) -> None:
        """A round has gone on."""
        if log.began_s not in self._rounds:
            self._rounds.append(log.began_s)
        if log.local:
            self._show(log, "report" if log.reports else "release", log.joined, self._clients)
            return
        self._show(log, "join", log.joined, self._clients)
        if "join" in log.ends_s:
            self._show(log, "share", log.shared, len(log.clients))
        if "share" in log.ends_s:
            self._show(log, "commit", int(log.aggregate is not None), 1)

    def _show(self, log: RoundLog, phase: str, count: int, total: int) -> None:
        key = (log.began_s, phase)
        if key not in self._bars:
            number = self._rounds.index(log.began_s) + 1
            self._bars[key] = self._progress.add_task(f"round {number} {log.statistic}: {phase}", total=total)
        self._progress.update(self._bars[key], completed=count)
        if phase in log.ends_s or log.ended_s:
            self._progress.stop_task(self._bars[key])


class IterationLines(Lines):
    """Progress of an iterative job in a log or a pipe: a line for each round, with the score after it.

    Args:
        console: where to print. clients: N.
    """

    def __init__(self, console: Console, clients: int) -> None:
        super().__init__(console, clients)
        self._over: RoundLog | None = None
        self._count = 0

    def __exit__(self, *failure: object) -> None:
        self._tell("")

    def iterated(self, iteration: Iteration) -> None:
        """The sum of the round that is over has been used."""
        self._tell(score_words(iteration))

    def changed(self, log: RoundLog) -> None:
        """A round has gone on."""
        if log.began_s not in self._told:
            self._told[log.began_s] = set()
            self._tell("")
        if log.ended_s and "end" not in self._told[log.began_s]:
            self._told[log.began_s].add("end")
            self._over = log

    def _tell(self, score: str) -> None:
        """The round that is over, once."""
        if self._over is None:
            return
        self._count += 1
        say(self._console, f"round {self._count}", f"{_course(self._over)}{'; ' if score else ''}{score}")
        self._over = None


class IterationBars:
    """Progress of an iterative job on a terminal: one bar over its rounds, one for what the present round waits for.

    Args:
        console: where to draw. clients: N, or B where each round is of so many that report.
    """

    def __init__(self, console: Console, clients: int) -> None:
        columns = (
            TextColumn("{task.description:<26}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[score]}"),
        )
        self._progress = Progress(*columns, console=console)
        self._connecting = self._progress.add_task("connect", total=None, score="")
        self._all = self._progress.add_task("iteration", total=None, score="")
        self._now = self._progress.add_task("", total=clients, score="")

    def __enter__(self) -> IterationBars:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._progress.update(self._now, visible=False)
        self._progress.stop()

    def connected(self, count: int, total: int) -> None:
        """So many actors of so many have a connection."""
        self._progress.update(self._connecting, completed=count, total=total)

    def iterated(self, iteration: Iteration) -> None:
        """One is done: its score stands beside the bar."""
        score = score_words(iteration)
        self._progress.update(self._all, completed=iteration.number, total=iteration.total, score=score)

    def changed(self, log: RoundLog) -> None:
        """A round has gone on."""
        if "join" not in log.ends_s and not log.local:
            self._progress.update(self._now, description=f"  {log.statistic}: join", completed=log.joined)
            return
        if log.local:
            self._progress.update(self._now, description=f"  {log.statistic}: report", completed=log.joined)
            return
        total = len(log.clients)
        self._progress.update(self._now, description=f"  {log.statistic}: share", completed=log.shared, total=total)


View = Lines | Bars | IterationLines | IterationBars


def _course(log: RoundLog) -> str:
    """A round that is over, in one line."""
    end = "" if log.aggregate is not None else "aborted, "
    if log.local:
        return f"{log.statistic}: {log.joined} reported, {end}{log.wall_s:.1f} s"
    return f"{log.statistic}: {log.shared} of {len(log.clients)} shared, {end}{log.wall_s:.1f} s"
