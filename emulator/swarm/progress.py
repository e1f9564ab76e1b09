"""A swarm's progress while it runs: bars on a terminal, lines in a log or a pipe. Nothing here decides anything.

A job of a few rounds is told phase by phase; one of many iterations is told iteration by iteration, with its score.
"""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from dca_proto.cli.learn_view import score_words
from dca_proto.cli.output import say
from dca_proto.protocol.trainer import round as trainer_round
from emulator.swarm.timeline import RoundLog
from inference.variational.progress import Iteration

_ENDED = {"collect": "contributed", "agree": "sum released", "release": "released"}
_CLOSED = {trainer_round.QUIET: ", the rest are quiet", trainer_round.DEADLINE: ", the time is over"}


class Lines:
    """Progress of a swarm in a log or a pipe: a line for each phase as it ends.

    Args:
        console: where to print. clients: N. released: what clients do without Compute nodes, in the past tense.
    """

    def __init__(self, console: Console, clients: int, released: str = "released") -> None:
        self._console = console
        self._clients = clients
        self._released = released
        self._told: dict[float, set[str]] = {}

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *failure: object) -> None:
        """Nothing to close."""

    def connected(self, count: int, total: int) -> None:
        """The line about the broker says so."""

    def sessions(self, count: int, total: int) -> None:
        """So does it."""

    def iterated(self, iteration: Iteration) -> None:
        """Told by the rounds."""

    def changed(self, log: RoundLog) -> None:
        """A round has gone on."""
        told = self._told.setdefault(log.began_s, set())
        for phase in _ENDED:
            if phase in log.ends_s and phase not in told:
                told.add(phase)
                say(self._console, f"round {len(self._told)}", f"{log.statistic}: {self._ended(log, phase)}")

    def _ended(self, log: RoundLog, phase: str) -> str:
        took = f"{log.phase_s()[phase]:.1f} s"
        if phase == "agree":
            return f"{_ENDED[phase]}, {took}"
        ended = _ENDED[phase] if log.is_summed else self._released
        return f"{log.arrived} of {self._clients} {ended}, {took}{_CLOSED.get(log.closed, '')}"


class Bars:
    """Progress of a swarm on a terminal: a bar for each phase of each round.

    Args:
        console: where to draw. clients: N. released: as of `Lines`.
    """

    def __init__(self, console: Console, clients: int, released: str = "released") -> None:
        columns = (
            TextColumn("{task.description:<34}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=console)
        self._clients = clients
        self._connecting = self._progress.add_task("connect", total=None)
        self._released = released
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

    def sessions(self, count: int, total: int) -> None:
        """So many clients of so many have a session at every Compute node."""
        self._progress.update(self._connecting, description="sessions", completed=count, total=total)

    def iterated(self, iteration: Iteration) -> None:
        """Told by the rounds."""

    def changed(self, log: RoundLog) -> None:
        """A round has gone on."""
        if log.began_s not in self._rounds:
            self._rounds.append(log.began_s)
        self._show(log, log.phases[0], log.arrived, self._clients)
        if "collect" in log.ends_s:
            self._show(log, "agree", int(log.aggregate is not None), 1)

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

    Args: as for `Lines`.
    """

    def __init__(self, console: Console, clients: int, released: str = "released") -> None:
        super().__init__(console, clients, released)
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
        course = self._course(self._over)
        say(self._console, f"round {self._count}", f"{course}{'; ' if score else ''}{score}")
        self._over = None

    def _course(self, log: RoundLog) -> str:
        """A round that is over, in one line."""
        ended = _ENDED["collect"] if log.is_summed else self._released
        aborted = "" if log.aggregate is not None else "aborted, "
        of = f" of {len(log.asked)}" if log.asked else ""
        return f"{log.statistic}: {log.contributed}{of} {ended}, {aborted}{log.wall_s:.1f} s"


class IterationBars:
    """Progress of an iterative job on a terminal: one bar over its rounds, one for what the present round waits for.

    Args:
        console: where to draw. clients: N, or B where each round is of so many that report. released: as of `Lines`.
    """

    def __init__(self, console: Console, clients: int, released: str = "released") -> None:
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

    def sessions(self, count: int, total: int) -> None:
        """So many clients of so many have a session at every Compute node."""
        self._progress.update(self._connecting, description="sessions", completed=count, total=total)

    def iterated(self, iteration: Iteration) -> None:
        """One is done: its score stands beside the bar."""
        score = score_words(iteration)
        self._progress.update(self._all, completed=iteration.number, total=iteration.total, score=score)

    def changed(self, log: RoundLog) -> None:
        """A round has gone on."""
        phase = "agree" if "collect" in log.ends_s else log.phases[0]
        self._progress.update(self._now, description=f"  {log.statistic}: {phase}", completed=log.arrived)


View = Lines | Bars | IterationLines | IterationBars
