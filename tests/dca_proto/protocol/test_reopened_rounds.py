"""Rounds of which a Compute node was replaced before a client or the trainer starts again (DESIGN §2.7)."""

from __future__ import annotations

import pytest
from changes import NEW_NODE, following, hand
from round_helpers import begin, exact_actors, exact_sum, results, the_sum

from dca_proto.protocol.effects import Channel
from dca_proto.protocol.federation import Member
from dca_proto.testing import Network, TestFederation


def replaced(actors: TestFederation, network: Network) -> None:
    """Give everybody a file with another node in place of the last one; those who are down read it at their start."""
    nodes = (*actors.federation.computes[:-1], Member("compute-new", NEW_NODE.public_key))
    actors.federation = following(actors, computes=nodes, revoked=actors.computes[-1:])
    for member in set(network.actors) - network.down:
        hand(network, member, actors.federation)


def cancelled() -> tuple[TestFederation, Network]:
    """Cancel a round, since the last node is silent; neither the trainer nor the first client hears the aborts."""
    actors = exact_actors(4, 4, colluding=1)
    network = actors.network()
    network.deliver()
    network.crash(actors.computes[3])
    deaf = {actors.clients[0], actors.trainer_identity.id}
    receivers = network._receivers
    network._receivers = lambda to: [one for one in receivers(to) if to.channel is not Channel.ABORT or one not in deaf]
    begin(actors, network)
    network.advance(network.now_ms + 9_000)
    for one in deaf:
        network.crash(one)
    network._receivers = receivers
    assert [len(network.actors[one].ledger.charges) for one in deaf] == [1, 1]
    return actors, network


@pytest.mark.parametrize("role", ["client", "trainer"])
def test_a_charge_comes_back_after_a_start_with_a_file_that_lacks_a_node_of_the_round(role: str) -> None:
    """Before, the client forgot the round at its start, the trainer could not read it, and the charge stayed for good.

    The other nodes have aborted, and are more than p.
    """
    actors, network = cancelled()
    replaced(actors, network)
    started = actors.clients[0] if role == "client" else actors.trainer_identity.id
    network.restart(started)
    network.advance(network.now_ms + 600_000)
    (charge,) = network.actors[started].ledger.charges
    assert charge.returned


def test_a_result_is_reported_again_after_a_start_with_a_file_that_lacks_a_node_of_the_round() -> None:
    """Before, a job that was killed between the result and its journal had paid for nothing."""
    actors = exact_actors(4, 3)
    network, request = begin(actors)
    assert the_sum(network) == exact_sum(range(4))
    replaced(actors, network)
    trainer = actors.trainer_identity.id
    network.restart(trainer)
    assert [float(one.value[0]) for one in results(network)] == 2 * [exact_sum(range(4))]
    assert network.actors[trainer].contributors(request.round_id) == tuple(sorted(actors.clients))
