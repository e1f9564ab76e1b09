"""A trainer whose clock is set back while rounds run or wait: nothing waits until the old time comes again."""

from __future__ import annotations

from collections.abc import Iterable

from round_helpers import begin, failures, results

from dca_proto.protocol.events import Started
from dca_proto.protocol.facts import NodesSilent
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.testing import Network, TestFederation

HOUR_MS, SECONDS = 3_600_000, 1000


class Federation(TestFederation):
    """Its trainer calls the roll."""

    def trainer(self, records: Iterable[tuple[str, bytes, bytes]] = ()) -> Trainer:
        common = self._common(records, "trainer")
        return Trainer(self.trainer_identity, self.federation, roll_call=True, **common)


def up(computes: int, colluding: int) -> tuple[Federation, Network]:
    """Return a federation of four clients whose epoch keys are known."""
    actors = Federation(4, computes, colluding=colluding)
    network = actors.network()
    network.deliver()
    return actors, network


def set_back(network: Network, trainer: bytes) -> int:
    """Set the clock back by an hour, as `runtime.runner` tells its actor; return the time."""
    network.now_ms -= HOUR_MS
    network.handle(trainer, Started())
    return network.now_ms


def test_a_node_that_dies_as_the_clock_is_set_back_is_missed_after_eight_seconds() -> None:
    """Before, it counted as heard until an hour later."""
    actors, network = up(4, 1)
    network.crash(actors.clients[0])
    begin(actors, network, collect_s=4000.0, clients=5, tolerate=0)
    network.advance(network.now_ms + 3 * SECONDS)
    network.crash(actors.computes[3])
    begun_ms = set_back(network, actors.trainer_identity.id)
    network.advance(begun_ms + 15 * SECONDS)
    (failed,) = failures(network)
    assert (failed.repeatable, failed.lost) == (True, ("compute-3",))
    (silent,) = network.reported(NodesSilent)
    assert silent.waited_ms == 8 * SECONDS


def test_a_request_that_waits_as_the_clock_is_set_back_ends_within_a_minute() -> None:
    """Before, it asked nobody and ended an hour later."""
    actors, network = up(4, 1)
    for node in actors.computes[1:]:
        network.crash(node)
    begin(actors, network, collect_s=120.0)
    network.advance(network.now_ms + 3 * SECONDS)
    begun_ms = set_back(network, actors.trainer_identity.id)
    network.advance(begun_ms + 46 * SECONDS)
    (failed,) = failures(network)
    assert failed.lost == ("compute-1", "compute-2", "compute-3")
    assert "waited 45 s; nothing was charged" in failed.reason


def test_a_round_without_a_client_closes_when_arrivals_are_quiet_by_the_clock_that_was_set_back() -> None:
    actors, network = up(3, 0)
    network.crash(actors.clients[0])
    begin(actors, network, collect_s=4000.0, tolerate=1)
    begun_ms = set_back(network, actors.trainer_identity.id)
    network.advance(begun_ms + 2 * SECONDS)
    (result,) = results(network)
    assert result.contributors == 3
