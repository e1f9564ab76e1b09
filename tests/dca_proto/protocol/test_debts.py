"""A Compute node that owes a cancelled round its abort is back within seconds of its start (DESIGN §4.8)."""

from __future__ import annotations

import pytest
from changes import following, hand
from round_helpers import begin, exact_actors, losing, passing, results

from dca_proto.protocol.wire.messages import FrozenList

SECOND_MS = 1000
HOUR_MS = 3600 * SECOND_MS


def lost_node(when: str, computes: int = 4):
    """Four nodes, one of which may be corrupt. The third died in a round, which was cancelled: it owes its abort."""
    actors = exact_actors(4, computes, colluding=1)
    network = actors.network()
    network.deliver()
    lost = actors.computes[2]
    if when == "before it heard of the round":
        network.crash(lost)
        begin(actors, network)
    else:
        network.tamper = losing(FrozenList, sender=lost)
        begin(actors, network)
        network.crash(lost)
        network.tamper = passing
    network.advance(network.now_ms + 30 * SECOND_MS)
    assert lost in network.actors[actors.trainer_identity.id]._owing_since()
    return actors, network, lost


@pytest.mark.parametrize("when", ["before it heard of the round", "after it froze its list"])
@pytest.mark.parametrize("meanwhile", ["nothing", "a new file", "three hours", "three hours and a restarted trainer"])
def test_a_node_that_starts_again_owes_nothing_within_seconds_whatever_happened_meanwhile(
    when: str, meanwhile: str
) -> None:
    actors, network, lost = lost_node(when)
    trainer = actors.trainer_identity.id
    if "file" in meanwhile:
        newer = following(actors)
        for member in (trainer, *(node for node in actors.computes if node != lost)):
            hand(network, member, newer)
    if "hours" in meanwhile:
        network.advance(network.now_ms + 3 * HOUR_MS)
    if "trainer" in meanwhile:
        network.restart(trainer)
    network.restart(lost)
    network.advance(network.now_ms + 5 * SECOND_MS)
    assert network.actors[trainer]._owing_since() == {}
    begin(actors, network)
    network.advance(network.now_ms + 5 * SECOND_MS)
    newest = [*network.actors[trainer]._rounds.values()][-1]
    assert lost in newest.opened.computes
    assert results(network)


@pytest.mark.parametrize("hours", [0.1, 30])
@pytest.mark.parametrize("computes", [3, 4])
def test_a_trainer_that_runs_one_round_at_a_time_has_a_node_that_is_back_in_its_next_round(
    hours: float, computes: int
) -> None:
    """As `dca trainer` does. Before, its first request came before the node could send what it owed."""
    actors, network, lost = lost_node("before it heard of the round", computes)
    trainer = actors.trainer_identity.id
    network.crash(trainer)
    network.restart(lost)
    network.advance(network.now_ms + int(hours * HOUR_MS))
    for _ in range(2):
        network.restart(trainer)
        began_ms = network.now_ms
        network.command(trainer, actors.request())
        network.deliver()
        newest = [*network.actors[trainer]._rounds.values()][-1]
        assert lost in newest.opened.computes
        assert newest.stored.announced_ms == began_ms, "it does not wait longer than needed"
        assert newest.lost == {}
        network.advance(network.now_ms + 5 * SECOND_MS)
        assert newest.is_done
        network.crash(trainer)


def test_a_trainer_that_starts_waits_two_seconds_once_for_a_node_that_owes_something_and_is_down() -> None:
    actors, network, lost = lost_node("before it heard of the round")
    trainer = actors.trainer_identity.id
    network.restart(trainer)
    waits = []
    for number in range(3):
        began_ms = network.now_ms
        network.command(trainer, actors.request(round_id=bytes([number]) * 16))
        network.advance(network.now_ms + 5 * SECOND_MS)
        newest = [*network.actors[trainer]._rounds.values()][-1]
        assert lost not in newest.opened.computes
        assert lost in newest.lost
        waits.append(newest.stored.announced_ms - began_ms)
    assert waits == [2 * SECOND_MS, 0, 0]
    assert len(results(network)) == 3
