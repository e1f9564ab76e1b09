"""A round that its trainer has cancelled and that waits for aborts, which do not arrive (DESIGN §4.8)."""

from __future__ import annotations

from changes import following, hand
from round_helpers import begin, exact_actors, kind_of

from dca_proto.protocol.effects import Channel
from dca_proto.protocol.facts import ChargeReturned
from dca_proto.protocol.wire.messages import Abort, Announcement, Cancel
from dca_proto.testing import Envelope, Network, TestFederation

SECONDS = 1000


def cancelled() -> tuple[TestFederation, Network, bytes]:
    """Cancel a round, since a node is silent; the aborts are lost."""
    actors = exact_actors(4, 3, colluding=1)
    network = actors.network()
    network.deliver()
    network.crash(actors.computes[2])
    trainer = actors.trainer_identity.id

    def losing_aborts(envelope: Envelope) -> list[Envelope]:
        is_lost = envelope.to.channel is Channel.ABORT or (envelope.to.id == trainer and kind_of(envelope) is Abort)
        return [] if is_lost else [envelope]

    network.tamper = losing_aborts
    _, request = begin(actors, network, collect_s=600.0, commit_s=600.0)
    network.advance(network.now_ms + 9 * SECONDS)
    assert network.actors[trainer]._rounds[request.round_id].stored.cancelled
    return actors, network, request.round_id


def test_a_cancelled_round_is_announced_to_nobody_any_more() -> None:
    """Before, a client that heard of it only then paid for it."""
    actors, network, _ = cancelled()
    before = len(network.sent)
    network.advance(network.now_ms + 4 * SECONDS)
    assert {kind_of(one) for one in network.sent[before:] if one.sender == actors.trainer_identity.id} == {Cancel}


def test_a_trainer_that_starts_again_after_a_cancel_ends_the_round_in_seconds() -> None:
    """Before, it announced the round again, and waited until half an hour later if no abort came."""
    actors, network, round_id = cancelled()
    for node in actors.computes:
        network.crash(node)
    before, trainer = len(network.sent), actors.trainer_identity.id
    network.restart(trainer)
    network.advance(network.now_ms + 6 * SECONDS)
    assert network.actors[trainer].phase(round_id) == "failed"
    assert Announcement not in {kind_of(one) for one in network.sent[before:] if one.sender == trainer}


def test_a_charge_comes_back_when_a_file_makes_the_aborts_enough() -> None:
    """p is raised before two nodes abort, and lowered after that. Before, the account kept the charge for good."""
    actors, network, round_id = cancelled()
    trainer = network.actors[actors.trainer_identity.id]
    raised = following(actors, colluding=2)
    hand(network, trainer.id, raised)
    network.tamper = lambda envelope: [envelope]
    network.advance(network.now_ms + 30 * SECONDS)
    assert len(trainer._rounds[round_id].stored.aborted_by) == 2
    assert trainer.ledger.is_charged(round_id)
    hand(network, trainer.id, following(actors, raised, colluding=1))
    assert not trainer.ledger.is_charged(round_id)
    assert [fact.round_id for fact in network.reported(ChargeReturned)] == [round_id]  # clients keep to the larger p
