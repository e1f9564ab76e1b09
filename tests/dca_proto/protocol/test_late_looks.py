"""A trainer whose timers fire some milliseconds late, and whose nodes answer sooner than that (DESIGN §4.8).

It asks a quiet node at every second look. So a node that answers each question is heard every four seconds and a bit.
"""

from __future__ import annotations

import heapq

import pytest
from round_helpers import begin, exact_actors, failures

from dca_proto.protocol.effects import Effect, SetTimer
from dca_proto.protocol.events import Received
from dca_proto.testing import Envelope, Network

LATE_MS, TRIP_MS, STEP_MS, SECONDS = 30, 4, 2, 1000


class Late(Network):
    """A network in which one actor's timers are late, and messages to it take a while."""

    late = b""

    def __init__(self) -> None:
        super().__init__()
        self._on_the_way: list[tuple[int, int, Envelope]] = []
        self.tamper = self._hold

    def _hold(self, envelope: Envelope) -> list[Envelope]:
        if not self.late or envelope.to.id != self.late:
            return [envelope]
        self._on_the_way.append((self.now_ms + TRIP_MS, len(self.sent), envelope))
        return []

    def _carry_out(self, actor_id: bytes, effect: Effect) -> None:
        if isinstance(effect, SetTimer) and actor_id == self.late:
            effect = SetTimer(effect.timer, effect.at_ms + LATE_MS)
        super()._carry_out(actor_id, effect)

    def pass_on(self, until_ms: int) -> None:
        """Advance in small steps, and deliver what has arrived."""
        while self.now_ms < until_ms and not failures(self):
            self.advance(self.now_ms + STEP_MS)
            heapq.heapify(self._on_the_way)
            while self._on_the_way and self._on_the_way[0][0] <= self.now_ms:
                envelope = heapq.heappop(self._on_the_way)[2]
                self.handle(self.late, Received(envelope.sender, envelope.payload))


@pytest.mark.parametrize(("dead", "ends_s"), [(1, 8), (3, 45)])
def test_nodes_that_answer_every_question_are_heard_however_late_the_trainer_looks(dead: int, ends_s: int) -> None:
    """Before, all of them seemed silent at every second look, as if the trainer were cut off, which began a new wait.

    A round that had lost all nodes but one took 3.5 minutes to end on a busy machine, and announced 45 s.
    """
    actors = exact_actors(4, 4, colluding=1)
    network = Late()
    actors.network(network)
    network.deliver()
    network.late = actors.trainer_identity.id
    for node in actors.computes[-dead:]:
        network.crash(node)
    begin(actors, network, collect_s=600.0, clients=5, tolerate=0)
    begun_ms = network.now_ms
    network.pass_on(begun_ms + (ends_s + 15) * SECONDS)
    (failed,) = failures(network)
    assert len(failed.lost) == dead
    assert network.now_ms - begun_ms < (ends_s + 10) * SECONDS
