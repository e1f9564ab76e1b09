"""`dca swarm --dashboard`: the swarm's rounds on a live page, while they run and afterwards until Ctrl-C."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator

from rich.console import Console

from dca_proto.cli.dashboard import require_dashboard
from dca_proto.cli.output import say
from dca_proto.dashboard.memory import Seen
from dca_proto.protocol.params import Timing
from dca_proto.results.status import RoundStatus, Status, Statuses
from dca_proto.runtime.clock import now_ms
from dca_proto.runtime.listen import Listen
from dca_proto.runtime.tally import OTHER, Bins, Names, result_of, why_failed
from dca_proto.wording import iso
from emulator.swarm.live import Swarm, Watcher
from emulator.swarm.timeline import RoundLog

_NO_ANSWER = "no answer"
_ROUNDS_MAX = 50


class SwarmBoard:
    """What a swarm's dashboard shows: its trainer's status, made from the log of its rounds.

    Args:
        clients: N, or B in mini-batches. description: of the swarm, in some words.
    """

    def __init__(self, clients: int, description: str) -> None:
        self.description = description
        self._clients = clients
        self._began_s, self._began_ms = time.monotonic(), now_ms()
        self._swarm: Swarm | None = None
        self._sessions = 0
        self._is_over = False

    def started(self, swarm: Swarm) -> None:
        """The broker runs."""
        self._swarm = swarm

    def sessions(self, count: int) -> None:
        """So many clients have sessions."""
        self._sessions = count

    def end(self) -> None:
        """The swarm has ended; its page stays."""
        self._is_over = True

    def look(self) -> Seen:
        """Return the trainer's status. Called in the page's thread."""
        swarm = self._swarm
        return Seen(Statuses(actors=[] if swarm is None else [self._status(swarm, [*swarm.timeline.rounds])]))

    def _status(self, swarm: Swarm, logs: list[RoundLog]) -> Status:
        now_s = time.monotonic()
        declines, phases = Names(), dict[str, Bins]()
        ended: dict[str, Names] = {}
        for log in logs:
            for why, times in [*log.why.items()]:
                declines.update({why.partition(":")[0]: times})
            for phase, took_s in log.phase_s().items():
                phases.setdefault(phase, Bins()).add(took_s)
            if log.ended_s:
                end = "completed" if log.aggregate is not None else "failed"
                ended.setdefault(end, Names()).add(
                    log.closed if log.aggregate is not None else why_failed(log.failure) if log.failure else OTHER
                )
                declines += Counter({_NO_ANSWER: max(len(log.asked) - log.contributed - log.declined, 0)})
        return Status(
            role="trainer",
            name="swarm",
            id=logs[0].round_id.hex() if logs else "",
            federation="swarm",
            file=1,
            at=iso(now_ms()),
            running_s=now_s - self._began_s,
            broker=swarm.broker_url,
            connected=True,
            since_s=now_s - self._began_s,
            epoch=now_ms() // Timing().epoch_ms,
            sessions=self._sessions,
            rounds=[] if self._is_over else [self._round(log) for log in logs if not log.ended_s],
            ended={end: dict(reasons) for end, reasons in ended.items()},
            contributions=sum(log.aggregate.contributors for log in logs if log.aggregate is not None),
            declines=dict(declines),
            phases={phase: bins.record for phase, bins in phases.items()},
            results=[
                result_of(iso(self._began_ms + int(1000 * (log.ended_s - self._began_s))), log.aggregate)
                for log in logs[-_ROUNDS_MAX:]
                if log.aggregate is not None
            ],
            store_bytes=None,  # of several actors, some in other processes: these are not counted
            messages_sent=None,
            messages_received=None,
            bytes_sent=None,
            bytes_received=None,
            inbox=None,
            outbox=None,
        )

    def _round(self, log: RoundLog) -> RoundStatus:
        phase = next((phase for phase in log.phases if phase not in log.ends_s), log.phases[-1])
        return RoundStatus(
            round_id=log.round_id.hex(), statistic=log.statistic, phase=phase, until=None, arrived=log.arrived,
            expected=len(log.asked) or self._clients, waits_for=[],
        )  # fmt: skip


class Both(Watcher):
    """Passes the progress of a swarm to a watcher and to the dashboard."""

    def __init__(self, watcher: Watcher, board: SwarmBoard) -> None:
        self._watcher, self._board = watcher, board

    def connected(self, count: int, total: int) -> None:
        self._watcher.connected(count, total)

    def sessions(self, count: int, total: int) -> None:
        self._board.sessions(count)
        self._watcher.sessions(count, total)

    def changed(self, log: RoundLog) -> None:
        self._watcher.changed(log)


@contextlib.contextmanager
def shown(board: SwarmBoard | None, console: Console) -> Iterator[None]:
    """Serve the page while the block runs, and then until Ctrl-C. Without a board, only run the block.

    Raises `UsageError` if a package is missing.
    """
    if board is None:
        yield
        return
    require_dashboard()
    from dca_proto.dashboard.server import Board, Dashboard

    served = Dashboard(Board(board.look, watched=board.description), Listen("127.0.0.1", 0))
    with served.beside():
        say(console, "dashboard", served.url)
        yield
        board.end()
        say(console, "dashboard", "stays until Ctrl-C")
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
