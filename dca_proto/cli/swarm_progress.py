"""Prints a swarm's size before it runs; while it runs, a line for each finished step and a moving status line.

A job of a few rounds gets a line for each phase; a job of many iterations a line for each round, with its score.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from dca_proto.cli.output import say
from dca_proto.cli.progress import Display, score_text
from dca_proto.protocol.trainer import round as trainer_round
from dca_proto.protocol.wire.kinds import LdpReport, NodeRelease
from emulator.swarm.live import Swarm, Watcher
from emulator.swarm.options import SwarmOptions
from emulator.swarm.timeline import RoundLog
from inference.variational.progress import Iteration

_CLOSED = {trainer_round.QUIET: ", no more arrived", trainer_round.DEADLINE: ", the deadline passed"}


def who_words(options: SwarmOptions, sizes: Sequence[int] = (), times: int = 1) -> str:
    """Return a description of who takes part.

    Args:
        sizes: rows of each data node. times: how often each client reports.
    """
    n, dropped = options.clients, options.dropped
    drop = f"; K = {dropped} drop{'s' if dropped == 1 else ''} in each round" if dropped else ""
    if options.kind is NodeRelease:
        rows = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
        who, each = ("1 data node adds", "") if n == 1 else (f"{n:,} data nodes, each adds", " each")
        return f"{who} all the noise for one row; {rows} rows{each}, assigned at random; no Compute nodes{drop}"
    if options.kind is LdpReport:
        who = "1 client with one row; it" if n == 1 else f"{n:,} clients with one row each; each"
        often = f"once, by {options.reports}," if times == 1 else f"{times} times, at first by {options.reports}, each"
        return f"{who} reports {often} private by itself; no Compute nodes, nobody to be trusted{drop}"
    where = f" in {options.processes} processes" if options.processes else ""
    return (
        f"{n:,} clients{where}, {options.computes} Compute nodes, T = {options.tolerate:,} "
        f"(c = {options.colluders:,} reserved for colluders), K = {dropped:,} drop in each round"
    )


def broker_words(swarm: Swarm) -> str:
    """Return a description of the broker and its connections."""
    name = f"{swarm.broker_kind} {swarm.broker_version}".strip()
    kind = "one for each client" if swarm.options.connections == "each" else "clients share one in each process"
    return f"{name} at {swarm.broker_url}, {swarm.options.connected:,} connections ({kind})"


class SwarmProgress(Watcher):
    """Shows the progress of a swarm.

    Args:
        clients: N, or B in mini-batches. iterative: whether the job has many rounds.
        released: a verb in the past tense for what clients do without Compute nodes.
    """

    def __init__(self, console: Console, clients: int, released: str = "released", *, iterative: bool = False) -> None:
        self._console, self._clients, self._released, self._iterative = console, clients, released, iterative
        self._display = Display(console, iterative=iterative)
        self._printed: dict[float, set[str]] = {}  # by start time of a round, the phases that were printed
        self._over: RoundLog | None = None

    def __enter__(self) -> SwarmProgress:
        self._display.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self._print_round("")
        self._display.__exit__()

    def connected(self, count: int, total: int) -> None:
        self._display.waiting(f"{count:,} of {total:,} connections", count, total)

    def sessions(self, count: int, total: int) -> None:
        self._display.waiting(f"{count:,} of {total:,} clients have sessions", count, total)

    def iterated(self, iteration: Iteration) -> None:
        """Print the round that has ended, with the score of the job's step."""
        self._display.iterated(iteration)
        self._print_round(score_text(iteration))

    def changed(self, log: RoundLog) -> None:
        if log.began_s not in self._printed:
            self._print_round("")
        printed = self._printed.setdefault(log.began_s, set())
        now = next((phase for phase in log.phases if phase not in log.ends_s), "ended")
        line = f"round {len(self._printed)} {log.statistic}: {now}"
        if now == log.phases[0]:
            self._display.waiting(f"{line}, {log.arrived:,} of {self._clients:,}", log.arrived, self._clients)
        else:
            self._display.waiting(line)
        if self._iterative:
            if log.ended_s and "end" not in printed:
                printed.add("end")
                self._over = log
            return
        for phase in log.phases:
            if phase in log.ends_s and phase not in printed:
                printed.add(phase)
                say(self._console, f"round {len(self._printed)}", f"{log.statistic}: {self._ended(log, phase)}")

    def _ended(self, log: RoundLog, phase: str) -> str:
        took = f"{log.phase_s()[phase]:.1f} s"
        if phase == "agree":
            return f"sum released, {took}"
        return f"{log.arrived:,} of {self._clients:,} {self._verb(log)}, {took}{_CLOSED.get(log.closed, '')}"

    def _verb(self, log: RoundLog) -> str:
        return "contributed" if log.is_summed else self._released

    def _print_round(self, score: str) -> None:
        """Print the round that has ended, once, with the score after it."""
        log, self._over = self._over, None
        if log is None:
            return
        aborted = "" if log.aggregate is not None else "aborted, "
        of = f" of {len(log.asked):,}" if log.asked else ""
        result = f"{log.statistic}: {log.contributed:,}{of} {self._verb(log)}, {aborted}{log.wall_s:.1f} s"
        say(self._console, f"round {len(self._printed)}", f"{result}{'; ' if score else ''}{score}")
