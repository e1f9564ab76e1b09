"""A dashboard that answers in a thread, and the statuses that it shows."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Iterator, Sequence

from patience import PATIENCE_S

from dca_proto.dashboard.memory import Seen
from dca_proto.dashboard.server import Board, Dashboard
from dca_proto.results.status import StatedResult, Status, Statuses
from dca_proto.runtime.listen import Listen


class Shown:
    """What the dashboard sees when it looks; a test changes it."""

    def __init__(self, *actors: Status, stopped: Sequence[str] = (), kept: Sequence[StatedResult] = ()) -> None:
        self.actors, self.stopped, self.kept = [*actors], [*stopped], [*kept]

    def __call__(self) -> Seen:
        return Seen(Statuses(actors=[*self.actors], stopped=[*self.stopped]), self.kept)


@contextlib.contextmanager
def serving(shown: Shown, **about: str) -> Iterator[Dashboard]:
    """A dashboard at a free port."""
    board = Dashboard(Board(shown, **about), Listen("127.0.0.1", 0))
    with board.beside():
        yield board


def ask(
    board: Dashboard, path: str, *, method: str = "GET", host: str | None = None
) -> tuple[int, http.client.HTTPMessage, str]:
    """The status, the headers and the text of an answer."""
    asked = http.client.HTTPConnection(board.listen.host, board.listen.port, timeout=PATIENCE_S)
    with contextlib.closing(asked) as asking:
        asking.putrequest(method, path, skip_host=True)
        asking.putheader("Host", str(board.listen) if host is None else host)
        asking.endheaders()
        answer = asking.getresponse()
        return answer.status, answer.headers, answer.read().decode()
