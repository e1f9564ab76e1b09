"""Attacks on rounds that are cancelled, ended late and repeated: no abort beside a sum, no memory for copies (§4.8)."""

from __future__ import annotations

import random

import msgspec
import pytest
from changes import following, hand
from round_helpers import (
    EASY,
    PowerCuts,
    announced,
    begin,
    body_of,
    exact_actors,
    exact_sum,
    forged,
    kind_of,
    losing,
    passing,
    refused,
    sealed_kind,
    sent,
    the_sum,
)

from dca_proto.protocol.announcement import announcement_hash
from dca_proto.protocol.effects import Address, Channel, Persist, Send
from dca_proto.protocol.events import Received
from dca_proto.protocol.facts import ChargeReturned
from dca_proto.protocol.wire.codec import encode, sign
from dca_proto.protocol.wire.messages import (
    Abort,
    Announcement,
    Answer,
    Cancel,
    Close,
    PartialSum,
    Query,
    Sealed,
    Signed,
)
from dca_proto.testing import Envelope, Network, TestFederation

SECONDS, HOUR_MS = 1000, 3_600_000


def signed_frame(actors: TestFederation, body: Announcement) -> Signed:
    """Return an announcement, signed by the trainer."""
    return sign(actors.trainer_identity, actors.federation.id, body)


def finals(network: Network, actors: TestFederation, node: bytes) -> set[type]:
    """The kinds of final messages that a node has sent, in its own name."""
    trainer = actors.trainer_identity.id
    to_trainer = [one for one in network.sent if one.sender == node and one.to.id == trainer]
    sums = {sealed_kind(network, actors, one.payload) for one in to_trainer} & {PartialSum}
    aborts = [one for one in network.sent if kind_of(one) is Abort and body_of(one.payload).compute == node]
    return sums | ({Abort} if aborts else set())


@pytest.mark.parametrize("seed", range(12))
def test_a_node_never_signs_an_abort_and_a_sum_whenever_it_is_killed_and_cancelled(seed: int) -> None:
    """A hostile trainer cancels at any moment; answers come twice, late and in any order; nodes die at any write."""
    generator = random.Random(seed)
    actors = exact_actors(4, 3, colluding=generator.choice([1, 2]))
    network = actors.network(PowerCuts(generator))
    network.deliver()
    request = actors.request()
    network.command(actors.trainer_identity.id, request)
    opened = announced(network, actors)
    network.victims = set(actors.computes)
    trainer = actors.trainer_identity
    cancel = forged(actors, trainer, Cancel(request.round_id, opened.hash, opened.frame))
    cancels = generator.sample(range(8, 45), 3)
    for turn in range(45):
        network.deliver_some(generator.randint(1, 12))
        if turn in cancels:
            for node in generator.sample(actors.computes, generator.randint(1, 3)):
                network._queue.append(Envelope(trainer.id, Send(Address(Channel.COMPUTE, node), bytes(16), cancel)))
        if generator.random() < 0.3:
            network._queue.append(generator.choice(network.sent))
        network.restart_some(0.8)
        deliver, network.deliver = network.deliver, lambda: None
        network.advance(network.now_ms + generator.choice([0, 1, 3]) * SECONDS)
        network.deliver = deliver
    network.victims = set()
    network.restart_some(1.0)
    network.advance(network.now_ms + 2 * HOUR_MS)
    ends = [finals(network, actors, node) for node in actors.computes]
    assert all(len(kinds) == 1 for kinds in ends), ends
    back = network.reported(ChargeReturned, actors.clients[0])
    assert len(back) <= 1
    if back:
        assert sum(Abort in kinds for kinds in ends) > actors.federation.p


def test_a_cancel_that_names_a_time_far_ahead_leaves_no_record() -> None:
    """The record would stay for ever, and fill the trainer's quarter of the room."""
    actors = exact_actors(4, 3)
    network, _ = begin(actors)
    opened, trainer = announced(network, actors), actors.trainer_identity
    for changes in ({"commit_by_ms": 1 << 52}, {"close_by_ms": (1 << 52) - 1, "commit_by_ms": 1 << 52}):
        body = msgspec.structs.replace(opened.body, round_id=bytes(16), **changes)
        frame = signed_frame(actors, body)
        ah = announcement_hash(encode(frame))
        refused(
            network, actors.computes[0], trainer.id, forged(actors, trainer, Cancel(bytes(16), ah, frame)), "deadline"
        )


def test_a_cancel_of_another_announcement_under_a_known_id_signs_nothing() -> None:
    actors = exact_actors(4, 3)
    network, request = begin(actors, clients=5)
    opened, trainer = announced(network, actors), actors.trainer_identity
    frame = signed_frame(actors, msgspec.structs.replace(opened.body, mu=opened.body.mu / 2))
    body = Cancel(request.round_id, announcement_hash(encode(frame)), frame)
    refused(network, actors.computes[0], trainer.id, forged(actors, trainer, body), "known-round")


def test_a_node_with_a_fresh_store_signs_no_abort_of_a_round_that_it_may_have_released() -> None:
    actors = exact_actors(4, 3)
    network, request = begin(actors)
    network.advance(network.now_ms + 5 * SECONDS)
    node, trainer = actors.computes[0], actors.trainer_identity
    assert network.actors[node].phase(request.round_id) == "released"
    opened = announced(network, actors)
    network.stores[node] = {}
    network.restart(node)
    cancel = forged(actors, trainer, Cancel(request.round_id, opened.hash, opened.frame))
    refused(network, node, trainer.id, cancel, "epoch")
    assert sent(network, Abort) == []


@pytest.mark.parametrize("ended", ["done", "returned"])
def test_aborts_after_the_end_take_no_memory_of_the_trainer_however_many_come(ended: str) -> None:
    """Before, each copy was kept, and encoded again with all others."""
    actors = exact_actors(4, 4, colluding=1)
    network = actors.network()
    network.deliver()
    hostile = actors.compute_identities[2]
    if ended == "returned":
        network.crash(actors.computes[3])
        network.tamper = losing(Abort, sender=hostile.id)
    _, request = begin(actors, network)
    network.advance(network.now_ms + 20 * SECONDS)
    trainer = network.actors[actors.trainer_identity.id]
    assert trainer.phase(request.round_id) == ended
    ah = announced(network, actors).hash
    sizes = []
    for copy in range(20):
        abort = Abort(request.round_id, ah, hostile.id, "cancelled", f"copy {copy}", 0, 3, ())
        network.handle(trainer.id, Received(hostile.id, forged(actors, hostile, abort)))
        sizes.append(len(encode(trainer._rounds[request.round_id].stored)))
    assert sizes[1:] == sizes[:1] * 19
    assert trainer.phase(request.round_id) == ended


def test_a_repeat_without_the_old_round_is_announced_and_carries_no_aborts_of_it() -> None:
    """The trainer was stopped, and the lost node replaced in the file: the old round cannot be read any more."""
    actors = exact_actors(4, 4, colluding=1)
    network = actors.network()
    network.deliver()
    lost = actors.computes[3]
    network.crash(lost)
    _, request = begin(actors, network)
    network.advance(network.now_ms + 20 * SECONDS)
    assert network.actors[actors.trainer_identity.id].phase(request.round_id) == "returned"
    newer = following(actors, computes=actors.federation.computes[:3], revoked=(lost,))
    for member in (*actors.computes[:3], actors.trainer_identity.id, *actors.clients):
        hand(network, member, newer)
    network.restart(actors.trainer_identity.id)
    begin(actors, network, repeats=(request.round_id,), computes=actors.computes[:3])
    network.advance(network.now_ms + 20 * SECONDS)
    assert the_sum(network) == exact_sum(range(4))


def test_copies_of_a_question_and_of_echoed_answers_cost_one_answer_each_second() -> None:
    actors = exact_actors(4, 3)
    network, _ = begin(actors)
    network.advance(network.now_ms + 5 * SECONDS)
    node, peer = actors.computes[0], actors.compute_identities[1]
    (answer,) = [one.payload for one in sent(network, Answer, sender=peer.id, to=node)][:1]
    ah, round_id = announced(network, actors).hash, announced(network, actors).body.round_id
    query = forged(actors, peer, Query(round_id, ah))
    replies = [effect for _ in range(50) for effect in network.handle(node, Received(peer.id, query))]
    assert len(replies) == 2, "its own answer, and that of the third node"
    copies = [effect for _ in range(50) for effect in network.handle(node, Received(actors.clients[0], answer))]
    assert not [effect for effect in copies if isinstance(effect, Persist | Send)]


def test_rounds_that_are_announced_and_cancelled_in_a_loop_fill_no_ledger() -> None:
    """Each returns its charge, so the budget is never used up; before, nothing limited the records."""
    policy = msgspec.structs.replace(EASY, rounds_per_period_max=1)
    actors = exact_actors(4, 3, colluding=1, policy=policy)
    network = actors.network()
    network.deliver()
    trainer, client = actors.trainer_identity, actors.clients[0]
    for _ in range(7):
        network.tamper = losing(Close, Sealed)  # nothing is released before the Cancel
        _, request = begin(actors, network)
        network.tamper = passing
        opened = network.actors[trainer.id]._rounds[request.round_id].opened
        cancel = forged(actors, trainer, Cancel(request.round_id, opened.hash, opened.frame))
        for node in actors.computes:
            network.handle(node, Received(trainer.id, cancel))
        network.advance(network.now_ms + 2 * SECONDS)
    ledger = network.actors[client].ledger
    assert [charge.returned for charge in ledger.charges] == [True] * 4
    (declined, *_) = network.actors[client].declines.rounds
    assert (declined.reason, declined.expected) == ("rounds", "fewer than 4 in 365 days")
