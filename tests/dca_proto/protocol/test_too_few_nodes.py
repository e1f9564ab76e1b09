"""A round of which too few Compute nodes are left: how long its trainer waits for them (DESIGN §4.8)."""

from __future__ import annotations

import pytest
from round_helpers import begin, exact_actors, exact_sum, failures, losing, passing, sent, the_sum

from dca_proto.errors import UsageError
from dca_proto.protocol.events import Received
from dca_proto.protocol.facts import NodesSilent
from dca_proto.protocol.wire.messages import Cancel, Sealed
from dca_proto.runtime.live import abort_of
from dca_proto.runtime.silence import silent_words
from dca_proto.wording import moment

SECONDS = 1000


def slow(actors, late_ms: int, travel_ms: int):
    """A network on which the trainer's timers fire late, and what it receives has travelled for a while."""
    network = actors.network()
    network.deliver()
    trainer = network.actors[actors.trainer_identity.id]
    at_once, punctual = trainer.handle, trainer._watch_again
    trainer.handle = lambda event, now_ms: at_once(event, now_ms + travel_ms * isinstance(event, Received))
    trainer._watch_again = lambda current, now_ms: punctual(current, now_ms + late_ms)
    return network


@pytest.mark.parametrize("late_ms", [0, 1, 7, 300])
@pytest.mark.parametrize("travel_ms", [2, 20, 400])
def test_the_end_of_a_round_does_not_depend_on_when_the_trainer_looks(late_ms: int, travel_ms: int) -> None:
    """One of three nodes is left, and p = 1. Before, looks four seconds apart found it silent, and time began anew."""
    actors = exact_actors(4, 3, colluding=1)
    network = slow(actors, late_ms, travel_ms)
    begin(actors, network, clients=5)
    begun_ms = network.now_ms
    for node in actors.computes[1:]:
        network.crash(node)
    network.advance(begun_ms + 60 * SECONDS)
    (failure,) = failures(network)
    assert failure.lost == ("compute-1", "compute-2")
    assert 40 * SECONDS < network.reported(NodesSilent)[-1].until_ms - begun_ms < 50 * SECONDS


def dead(computes: int, colluding: int, lost: int, **request):
    """A round whose last nodes die while it collects."""
    actors = exact_actors(4, computes, colluding=colluding)
    network = actors.network()
    begin(actors, network, clients=5, **request)
    for node in actors.computes[computes - lost :]:
        network.crash(node)
    return actors, network, network.now_ms


@pytest.mark.parametrize(("computes", "colluding", "lost"), [(3, 0, 1), (3, 0, 3), (3, 1, 2), (4, 1, 4)])
def test_a_round_waits_for_nodes_as_long_as_its_request_states(computes: int, colluding: int, lost: int) -> None:
    """Where each round needs all nodes (p = 0), others wait until `commit_by`. If all are silent, all do."""
    actors, network, begun_ms = dead(computes, colluding, lost, wait_s=30)
    network.advance(begun_ms + 29 * SECONDS)
    assert failures(network) == []
    silent = network.reported(NodesSilent)[-1]
    assert (len(silent.computes), silent.until_ms - begun_ms) == (lost, 30 * SECONDS)
    network.advance(begun_ms + 45 * SECONDS)
    (failure,) = failures(network)
    names = tuple(f"compute-{number}" for number in range(computes - lost, computes))
    assert failure.lost == names
    assert f"start {', '.join(names)} again" in abort_of(failure).remedy
    for node in actors.computes[computes - lost :]:
        network.restart(node)
    network.advance(network.now_ms + 30 * SECONDS)
    trainer = network.actors[actors.trainer_identity.id]
    assert not trainer.ledger.is_charged(failure.round_id)
    assert not any(network.actors[client].ledger.is_charged(failure.round_id) for client in actors.clients)


def test_a_longer_wait_lets_two_of_three_nodes_come_back() -> None:
    actors, network, begun_ms = dead(3, 1, 2, wait_s=100)
    network.advance(begun_ms + 90 * SECONDS)
    assert sent(network, Cancel) == []
    for node in actors.computes[1:]:
        network.restart(node)
    network.advance(begun_ms + 250 * SECONDS)
    assert the_sum(network) == exact_sum(range(4))


def test_a_wait_that_ends_before_nodes_are_silent_is_refused() -> None:
    actors = exact_actors(4, 3)
    network = actors.network()
    trainer = network.actors[actors.trainer_identity.id]
    with pytest.raises(UsageError, match="wait_s is 5; give 0, or a number from 15 on"):
        trainer.check_request(actors.request(wait_s=5.0), network.now_ms)


def test_a_round_that_lacks_one_part_of_its_sum_does_not_go_on_without_it() -> None:
    """One more node may be lost, by p. Before, the trainer reported that it goes on without the silent node."""
    actors = exact_actors(4, 3, colluding=1)
    network = actors.network()
    lost, trainer = actors.computes[2], actors.trainer_identity.id
    network.tamper = losing(Sealed, to=trainer, sender=lost)
    begin(actors, network)
    network.crash(lost)
    network.tamper = passing
    network.advance(network.now_ms + 20 * SECONDS)
    (silent,) = network.reported(NodesSilent)
    until_ms = next(iter(network.actors[trainer]._rounds.values())).opened.body.commit_by_ms + 3600 * SECONDS
    assert (silent.computes, silent.until_ms, silent.is_released) == ((lost,), until_ms, True)
    words = silent_words(silent, actors.federation.name_of)
    assert words.startswith("compute-2 has not answered for 8 s; others have sent their parts of the sum, and a result")
    assert f"so the round waits until {moment(until_ms)}; clients have paid" in words
    known, _ = network.actors[trainer].lost_nodes(network.now_ms)
    assert (known.until_ms, known.is_released) == (until_ms, True)
    network.restart(lost)
    network.advance(network.now_ms + 30 * SECONDS)
    assert the_sum(network) == exact_sum(range(4))
