"""Requests that name Compute nodes of an older federation file (DESIGN §4.1): a job may last longer than a file."""

from __future__ import annotations

import functools

import pytest
from changes import NEW_NODE, following, hand
from round_helpers import begin, exact_actors, exact_sum, failures, the_sum

from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.facts import Announced
from dca_proto.protocol.federation import Federation, Member
from dca_proto.testing import Network, TestFederation

NEW = Member("compute-new", NEW_NODE.public_key)


def new_node(actors: TestFederation, network: Network, file: Federation) -> None:
    """Start the node `NEW`, and give everybody the file."""

    def build(records: object) -> ComputeNode:
        common = actors._common(records, "new node")  # type: ignore[arg-type]
        return ComputeNode(NEW_NODE, file, floors=actors.floors, **common)

    network.add(Channel.COMPUTE, functools.partial(build))
    for member in list(network.actors):
        hand(network, member, file)
    network.deliver()


@pytest.mark.parametrize("kept", [2, 3], ids=["replaced", "added"])
@pytest.mark.parametrize("colluding", [0, 2])
def test_a_job_goes_on_when_the_nodes_that_it_names_are_too_few_by_a_newer_file(kept: int, colluding: int) -> None:
    """By default p is all but one: with a node more, the three that the job names can all be corrupt.

    Before, the trainer announced a round that all refuse, and its account kept the charge for good; where a node was
    replaced, the request was an error that ended all rounds of its process.
    """
    actors = exact_actors(4, 3, colluding=colluding)
    network = actors.network()
    network.deliver()
    gone = actors.computes[kept:]
    newer = following(actors, computes=(*actors.federation.computes[:kept], NEW), revoked=gone)
    for node in gone:
        network.crash(node)
    new_node(actors, network, newer)
    begin(actors, network)
    network.advance(network.now_ms + 5_000)
    assert the_sum(network) == exact_sum(range(4))
    (told,) = network.reported(Announced)
    assert (len(told.computes), told.p) == (3, 2) if (kept, colluding) != (3, 0) else (4, 3)
    assert told.computes[:2] == actors.computes[:2]


def test_a_request_that_waits_as_p_rises_above_its_nodes_fails_at_no_charge() -> None:
    """Before, it was announced over too few nodes once they had answered."""
    actors = exact_actors(4, 3, colluding=1)
    network = actors.network()
    network.deliver()
    trainer = actors.trainer_identity.id
    network.actors[trainer]._waiting._keys.clear()
    network.tamper = lambda envelope: [envelope] if envelope.to.id != trainer else []
    _, request = begin(actors, network, computes=actors.computes[:2])
    hand(network, trainer, following(actors, colluding=2))
    (failed,) = failures(network)
    assert "needs other Compute nodes; request the round again" in failed.reason
    assert (failed.round_id, network.actors[trainer].ledger.charges) == (request.round_id, ())
