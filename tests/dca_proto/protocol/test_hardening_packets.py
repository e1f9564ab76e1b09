"""What a peer, or who poses as one, gets for a message: no more than it has proved, and once in a while."""

from __future__ import annotations

import pytest
from round_helpers import announced, begin, body_of, exact_actors, losing, passing, sends, sent
from wiretap import keys_of

from dca_proto.crypto import sealing
from dca_proto.crypto.masks import ask_tag
from dca_proto.protocol.actor import RateLimit
from dca_proto.protocol.compute.round import EarlyContributions
from dca_proto.protocol.effects import Send
from dca_proto.protocol.events import Received, TimerFired
from dca_proto.protocol.events import Timer as TimerName
from dca_proto.protocol.params import PACED_MAX
from dca_proto.protocol.wire.codec import decode_frame, encode
from dca_proto.protocol.wire.messages import Abort, AbortWanted, Close, Contribution, HelloWanted, Receipt
from dca_proto.testing import Network, TestFederation


def aborted() -> tuple[TestFederation, Network, bytes]:
    """A round that all three nodes aborted, before its `commit_by`, and its id."""
    actors = exact_actors(4, 3)
    network = actors.network()
    network.tamper = losing(Close)
    _, request = begin(actors, network)
    network.tamper = lambda one: ()
    for node in actors.computes:
        network.handle(node, TimerFired(TimerName("commit", request.round_id)))
    return actors, network, request.round_id


def answers(network: Network, receiver: bytes, sender: bytes, payload: bytes) -> list[Send]:
    return sends(network.actors[receiver].handle(Received(sender, payload), network.now_ms))


def test_hardening_7_an_aborted_round_sends_no_aborts_for_a_contribution_that_proves_nothing() -> None:
    """66 bytes in a member's name were answered with 173, each time. Now: a question for its session, once a second."""
    actors, network, round_id = aborted()
    victim, opened = actors.clients[0], announced(network, actors)
    holder = opened.holder(victim).id
    size = len(decode_frame(sent(network, Contribution, sender=victim)[0].payload).ciphertext)
    got = []
    for salt in range(500):
        forged = encode(Contribution(round_id, salt.to_bytes(16, "big"), bytes(size if salt % 2 else 8)))
        got += answers(network, holder, victim, forged)
    assert [type(body_of(one.payload)) for one in got] == [HelloWanted]


def test_hardening_7_an_aborted_round_sends_its_aborts_once_a_second_to_a_client_that_proves_itself() -> None:
    actors, network, _ = aborted()
    client, opened = actors.clients[0], announced(network, actors)
    holder = opened.holder(client).id
    own = sent(network, Contribution, sender=client)[0].payload
    given = answers(network, holder, client, own)
    assert [type(body_of(one.payload)) for one in given] == [Abort]
    assert [answers(network, holder, client, own) for _ in range(100)] == [[]] * 100
    network.now_ms += actors.timing.again_ms
    assert answers(network, holder, client, own) == given


def test_hardening_1_a_request_for_the_aborts_of_a_known_round_needs_a_valid_signature() -> None:
    actors, network, _ = aborted()
    client, opened = actors.clients[0], announced(network, actors)
    (keys, *_) = keys_of(network.actors[client], opened)
    node = actors.computes[0]
    assert answers(network, node, client, encode(AbortWanted(opened.frame, bytes(16)))) == []
    assert network.actors[node].dropped["ask"] == 1
    right = encode(AbortWanted(opened.frame, ask_tag(keys[0], opened.hash)))
    assert [type(body_of(one.payload)) for one in answers(network, node, client, right)] == [Abort]


def test_hardening_7_a_repeated_announcement_is_answered_once_a_second() -> None:
    """Everybody who may listen has it, and a broker without access lists lets everybody repeat it."""
    actors = exact_actors(4, 3)
    network = actors.network()
    network.tamper = losing(Receipt, Close)
    begin(actors, network)
    trainer, payload = actors.trainer_identity.id, encode(announced(network, actors).frame)
    for actor in (actors.clients[0], actors.computes[0]):
        for _ in range(3):
            network.now_ms += actors.timing.again_ms
            assert [len(answers(network, actor, trainer, payload)) for _ in range(100)] == [1] + [0] * 99


def test_hardening_7_a_clock_that_is_set_back_holds_up_no_answer() -> None:
    pace = RateLimit(1000)
    assert [pace.is_due(b"x", now_ms) for now_ms in (5_000, 5_999, 6_000, 100, 200, 1_100)] == [1, 0, 1, 1, 0, 1]


def test_hardening_7_the_record_of_answered_senders_is_bounded() -> None:
    pace = RateLimit(1000)
    for number in range(PACED_MAX + 10):
        assert pace.is_due(number.to_bytes(16, "big"), 0)
    assert len(pace._last) == len(pace._of_round) + 10 == 10


def test_hardening_7_who_was_answered_in_a_round_is_forgotten_with_it_alone() -> None:
    """A search through all 65,536 senders for each of 4,096 rounds that end together would stop a node for seconds."""
    pace, rounds = RateLimit(1000), [bytes((number,)) * 16 for number in range(3)]
    for key in (*rounds, *(one + peer for one in rounds for peer in (b"a", bytes(16)))):
        assert pace.is_due(key, 0)
    pace.forget(rounds[1])
    assert [pace.is_due(one + peer, 1) for one in rounds for peer in (b"", b"a", bytes(16))] == [0] * 3 + [1] * 3 + [
        0
    ] * 3
    for one in rounds:
        pace.forget(one)
    assert not pace._last
    assert not pace._of_round


def test_hardening_7_contributions_before_their_announcement_take_little_memory() -> None:
    early, made = EarlyContributions(), Contribution(bytes(16), bytes(16), bytes(1 << 20))
    kept = [early.keep(number.to_bytes(16, "big"), made, 0) for number in range(100)]
    assert sum(kept) <= 8


@pytest.mark.parametrize("equal", [True, False])
def test_hardening_7_macs_are_compared_in_constant_time(equal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Receipts and questions for aborts go through `hmac.compare_digest`, whose result decides."""
    actors, network, _ = aborted()
    client, opened = actors.clients[0], announced(network, actors)
    holder = opened.holder(client).id
    (keys, *_) = keys_of(network.actors[client], opened)
    tag = bytes(16) if equal else ask_tag(keys[actors.computes.index(holder)], opened.hash)
    ask = encode(AbortWanted(opened.frame, tag))
    fresh, other = exact_actors(4, 3), Network()
    other.tamper = losing(Receipt)
    begin(fresh, fresh.network(other))
    other.tamper = passing
    one, node = fresh.clients[0], announced(other, fresh).holder(fresh.clients[0]).id
    (receipt,) = sent(other, Receipt, sender=node, to=one)[:1]
    frame = decode_frame(receipt.payload)
    shown = encode(Receipt(frame.round_id, frame.contribution, bytes(16) if equal else frame.tag))
    monkeypatch.setattr(sealing.hmac, "compare_digest", lambda mac, claimed: equal)
    assert bool(answers(network, holder, client, ask)) == equal
    assert bool(other.actors[one].handle(Received(node, shown), other.now_ms)[1:]) == equal
