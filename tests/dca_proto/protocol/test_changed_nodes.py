"""Requests that name Compute nodes of an older federation file (DESIGN §4.1): a job may last longer than a file."""

from __future__ import annotations

import functools

import pytest
from changes import NEW_NODE, following, hand
from round_helpers import announced, begin, exact_actors, exact_sum, failures, refused, sent, the_sum

from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.events import Received
from dca_proto.protocol.facts import Announced
from dca_proto.protocol.federation import Federation, Member
from dca_proto.protocol.wire.codec import encode
from dca_proto.protocol.wire.messages import Abort, AbortWanted
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


def test_a_client_that_missed_an_abort_gets_its_charge_back_after_a_node_was_replaced() -> None:
    """Before, the nodes could not verify the announcement by their newer file, and dropped its question."""
    actors = exact_actors(4, 4, colluding=1)
    network = actors.network()
    network.deliver()
    gone, missed = actors.computes[3], actors.clients[0]
    network.crash(gone)
    receivers = network._receivers
    network._receivers = lambda to: [one for one in receivers(to) if to.channel is not Channel.ABORT or one != missed]
    begin(actors, network)
    network.advance(network.now_ms + 15_000)
    assert failures(network)[0].repeatable
    heard = next(one for one in sent(network, Abort) if one.sender == actors.computes[0])
    network.handle(missed, Received(heard.sender, heard.payload))
    (charge,) = network.actors[missed].ledger.charges
    assert not charge.returned
    new_node(actors, network, following(actors, computes=(*actors.federation.computes[:3], NEW), revoked=(gone,)))
    network.advance(network.now_ms + 600_000)
    (charge,) = network.actors[missed].ledger.charges
    assert charge.returned


def test_a_question_about_a_round_whose_epoch_key_is_deleted_is_dropped() -> None:
    actors = exact_actors(4, 3)
    network, _ = begin(actors)
    opened = announced(network, actors)
    network.advance(opened.body.commit_by_ms + actors.timing.epoch_ms + actors.timing.epoch_grace_ms)
    ask = encode(AbortWanted(opened.frame, bytes(16)))
    refused(network, actors.computes[0], actors.clients[0], ask, "epoch")
