"""A client's newer Hellos in mid-round: which session opens a contribution, and which mask is summed (DESIGN §2.3)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from round_helpers import (
    begin,
    body_of,
    exact_actors,
    exact_sum,
    hand_over,
    hello_of,
    losing,
    other_hello,
    passing,
    sent,
    standing,
    the_sum,
    until_the_end,
    without_hello,
)

from dca_proto.crypto.sealing import AgreementKey
from dca_proto.protocol.events import Received
from dca_proto.protocol.wire.messages import Answer, Close, Contribution, Receipt


def test_an_epoch_that_turns_in_mid_round_changes_nothing() -> None:
    """A client's newer Hello displaces the older one: the one whose tag holds is the one whose mask is summed."""
    actors, network = standing(5)
    network.tamper = losing(Close, Answer)
    begin(actors, network)
    later_ms = network.now_ms + 2
    for index in range(3):
        fresh = AgreementKey(bytes((index + 1,)) * 32).public
        payload = other_hello(actors, network, index, serial=later_ms, public=fresh)
        for node in actors.computes:
            network.handle(node, Received(actors.clients[index], payload))
    network.tamper = passing
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum(range(5))]


def test_new_hellos_between_a_nodes_answer_and_its_release_change_no_sum() -> None:
    """Neither of a client that is in the sum nor of one that another node objects to: two displace all that stood."""
    actors, network = standing(5)
    network.tamper = losing(Close)
    begin(actors, network)

    def displace(client: int, nodes: Iterable[bytes]) -> None:
        for number, node in itertools.product((1, 2), nodes):
            fresh = AgreementKey(bytes((number,)) * 32).public
            payload = other_hello(actors, network, client, serial=network.now_ms + number, public=fresh)
            network.handle(node, Received(actors.clients[client], payload))

    displace(0, actors.computes[1:2])
    network.tamper = losing(Answer)
    network.advance(network.now_ms + 5000)
    (round_id,) = {one.round_id for one in sent(network, Close)}
    assert {network.actors[node].phase(round_id) for node in actors.computes} == {"answered"}
    displace(0, (actors.computes[0], actors.computes[2]))
    displace(1, actors.computes)
    network.tamper = passing
    network.advance(network.now_ms + 20_000)
    assert the_sum(network).tolist() == [exact_sum(range(1, 5))]


@pytest.mark.parametrize("sealed_with", ["the newest", "the one before"])
def test_a_contribution_is_opened_by_either_session_and_the_older_key_is_agreed_only_where_it_is_needed(
    sealed_with: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a node that has two sessions of the client, an agreement costs more than all else of a contribution."""
    actors = exact_actors(4, 3)
    network, victim = without_hello(actors), actors.clients[0]
    fresh, step_ms = AgreementKey(b"\2" * 32).public, {"the newest": -1, "the one before": 1}[sealed_with]
    serial = body_of(hello_of(network, actors).payload).serial + step_ms
    hellos = sorted([hello_of(network, actors).payload, other_hello(actors, network, serial=serial, public=fresh)],
                    key=lambda payload: body_of(payload).serial)  # fmt: skip
    for payload, node in itertools.product(hellos, actors.computes):
        network.handle(node, Received(victim, payload))
    agreed: list[bytes] = []
    real = AgreementKey.agree

    def counted(self: AgreementKey, label: bytes, peer: bytes, *args: bytes) -> bytes:
        agreed.append(peer)
        return real(self, label, peer, *args)

    network.tamper = losing(Contribution)
    begin(actors, network)
    monkeypatch.setattr(AgreementKey, "agree", counted)
    made = sent(network, Contribution, sender=victim)[0]
    network.tamper = passing
    hand_over(network, made)
    assert len(sent(network, Receipt, sender=made.to.id, to=victim)) == 1
    assert len(agreed) == {"the newest": 1, "the one before": 2}[sealed_with]
    network.advance(network.now_ms + 5000)
    assert the_sum(network).tolist() == [exact_sum(range(4))]
    assert agreed.count(fresh) == {"the newest": 0, "the one before": 3}[sealed_with]


def test_a_third_hello_in_mid_round_leaves_its_client_out() -> None:
    """A node keeps the newest two; the client did that to itself, and the sum stays exact."""
    actors, network = standing(5)
    network.tamper = losing(Close, Answer)
    begin(actors, network)
    for number in (1, 2):
        fresh = AgreementKey(bytes((number,)) * 32).public
        payload = other_hello(actors, network, 0, serial=network.now_ms + number, public=fresh)
        for node in actors.computes:
            network.handle(node, Received(actors.clients[0], payload))
    network.tamper = passing
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum(range(1, 5))]
