"""Attack 58: nodes that lie about whom they wait for, and a trainer that cancels a round at some nodes only."""

from __future__ import annotations

import pytest
from round_helpers import announced, begin, body_of, exact_actors, failures, forged, losing, passing, sent

from dca_proto.protocol.compute.queries import CANCELLED
from dca_proto.protocol.events import Received
from dca_proto.protocol.facts import ChargeReturned, NodeAborted, Released, RoundCompleted
from dca_proto.protocol.wire.messages import Abort, Answer, Cancel, Progress, Sealed
from dca_proto.testing import Network, TestFederation

SECONDS, NODES, P = 1_000, 4, 1


def four() -> TestFederation:
    return exact_actors(4, NODES, colluding=P)


def lie(network: Network, actors: TestFederation, liars: int, until_s: int) -> None:
    """Let the first nodes report, every two seconds, that they wait for the last one."""
    opened, trainer = announced(network, actors), actors.trainer_identity.id
    places = bytes((NODES - 1,))
    for _ in range(0, until_s, 2):
        for node in actors.compute_identities[:liars]:
            report = Progress(opened.body.round_id, opened.hash, 1, 0, 0, 2, places)
            network.handle(trainer, Received(node.id, forged(actors, node, report)))
        network.advance(network.now_ms + 2 * SECONDS)


@pytest.mark.parametrize(("liars", "is_cancelled"), [(P, False), (P + 1, True)])
def test_attack_58_p_nodes_that_lie_about_whom_they_wait_for_cancel_no_round(liars: int, is_cancelled: bool) -> None:
    """All nodes have released; the sums of the liars and of the last node are on the way.

    More liars than p may end rounds (DESIGN §10).
    """
    actors = four()
    network = actors.network()
    lose = [losing(Sealed, sender=node) for node in (*actors.computes[:liars], actors.computes[-1])]
    network.tamper = lambda one: [one] if one.to.id != trainer or all(each(one) for each in lose) else []
    trainer = actors.trainer_identity.id
    begin(actors, network)
    assert len(network.reported(Released)) == NODES
    lie(network, actors, liars, until_s=20)
    assert bool(sent(network, Cancel)) == is_cancelled
    network.tamper = passing
    network.advance(network.now_ms + 120 * SECONDS)
    assert network.reported(NodeAborted) == [], "a node that has released never aborts"
    assert len(network.reported(RoundCompleted)) == 1, "their sums are the result after all"
    assert network.reported(ChargeReturned) == []


def cancel_at(network: Network, actors: TestFederation, nodes: list[bytes]) -> None:
    opened, trainer = announced(network, actors), actors.trainer_identity
    body = Cancel(opened.body.round_id, opened.hash, opened.frame)
    for node in nodes:
        network.handle(node, Received(trainer.id, forged(actors, trainer, body)))


def test_attack_58_a_cancel_at_one_node_after_the_others_have_released_returns_no_charge() -> None:
    """The cancelled node's mask hides the contributions for ever; the others never sign an abort."""
    actors = four()
    network = actors.network()
    behind, *others = actors.computes
    network.tamper = losing(Answer, to=behind)
    _, request = begin(actors, network)
    assert {network.actors[node].phase(request.round_id) for node in others} == {"released"}
    cancel_at(network, actors, actors.computes)
    network.tamper = passing
    network.advance(network.now_ms + 3_600 * SECONDS)
    assert network.actors[behind].phase(request.round_id) == "aborted"
    aborts = {body_of(envelope.payload).compute for envelope in sent(network, Abort)}
    assert aborts == {behind}, "the others pass it on"
    assert {fact.reason for fact in network.reported(NodeAborted)} == {CANCELLED}
    assert (network.reported(RoundCompleted), len(failures(network))) == ([], 1)
    assert all(network.actors[client].ledger.is_charged(request.round_id) for client in actors.clients)


def test_attack_58_a_cancel_at_one_node_in_time_ends_the_round_at_all_and_returns_each_charge() -> None:
    actors = four()
    network = actors.network()
    _, request = begin(actors, network, clients=5, tolerate=1)
    cancel_at(network, actors, [actors.computes[0]])
    network.advance(network.now_ms + 10 * SECONDS)
    assert {fact.compute for fact in network.reported(NodeAborted)} == {*actors.computes}
    assert network.reported(Released) == []
    assert not any(network.actors[client].ledger.is_charged(request.round_id) for client in actors.clients)
