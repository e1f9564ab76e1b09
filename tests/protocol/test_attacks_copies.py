"""Attack 17, what a client and its copies draw: one contribution is the same bytes for ever, and two share nothing."""

from __future__ import annotations

import numpy as np
from scene import (
    begin,
    body_of,
    copy_of,
    exact_cast,
    exact_sum,
    losing,
    restore,
    results,
    sends,
    sent,
    until_the_end,
)
from wiretap import Recording, opened_share

from dca_proto.core.effects import Send
from dca_proto.core.events import Received
from dca_proto.core.facts import LedgerBehind
from dca_proto.core.messages import Receipt, Share, Start
from dca_proto.testing import Cast, Network


def charge_numbers(network: Network, client: bytes) -> list[int]:
    """In its ledger, in order."""
    return [charge.number for charge in network.actors[client].ledger.charges]


def test_attack_17_a_retry_resends_the_same_bytes() -> None:
    """Never the same value under other noise: across lost messages, back-off and restarts, one ciphertext a node."""
    cast = Cast(4, 3)
    network = cast.network()
    network.tamper = losing(Receipt)
    begin(cast, network, share_window_ms=600_000)
    for _ in range(3):
        network.advance(network.now_ms + 20_000)
        network.restart(cast.clients[0])
        network.deliver()
    for node in cast.computes:
        copies = [one.payload for one in sent(network, Share, sender=cast.clients[0], to=node)]
        assert len(copies) > 4
        assert len(set(copies)) == 1
    assert charge_numbers(network, cast.clients[0]) == [1]
    assert network.reported(LedgerBehind) == [], "the same contribution again is no second one"


def test_attack_17_a_fork_draws_fresh_noise_is_never_mixed_and_both_hear_of_it() -> None:
    """Two copies of one device take part in the same round. Their contributions differ in id and in all of the noise;
    each node keeps one; the pairs differ between nodes, so neither is summed; and the client is told."""
    cast = exact_cast(5, 3)
    network = cast.network()
    network.tamper = losing(Start)
    begin(cast, network, tolerated=1)
    victim = cast.clients[0]
    twin = cast.client(0, [(table, key, value) for (table, key), value in copy_of(network, victim).items()])
    (start,) = sent(network, Start, to=victim)
    actors = (network.actors[victim], twin)
    made = [sends(actor.handle(Received(start.sender, start.payload), network.now_ms)) for actor in actors]
    frames = [[body_of(send.payload) for send in copy] for copy in made]
    assert len({frame.contribution for copy in frames for frame in copy}) == 2
    opened = [opened_share(actor, send) for actor, copy in zip(actors, made, strict=True) for send in copy]
    assert {number for number, _ in opened} == {1}
    network.tamper = lambda one: [one]
    for send in (made[0][0], made[1][1], made[1][2], made[1][0]):  # node 0 has the first one's, the others the twin's
        network.handle(send.to.id, Received(victim, send.payload))
    for one in sent(network, Start):
        if one.to.id != victim:
            network.handle(one.to.id, Received(one.sender, one.payload))
    until_the_end(network)
    assert results(network)[0].value.tolist() == [exact_sum(range(1, 5))]
    assert {fact.compute for fact in network.reported(LedgerBehind, victim)} == set(cast.computes)


def test_attack_17_copies_of_one_store_never_repeat_a_key() -> None:
    """The noise of two copies that restart from the same bytes is independent: nothing about it is stored."""
    cast = Cast(4, 2)
    network = cast.network()
    network.tamper = losing(Start)
    begin(cast, network)
    victim = cast.clients[0]
    records = [(table, key, value) for (table, key), value in copy_of(network, victim).items()]
    (start,) = sent(network, Start, to=victim)
    copies = [cast.client(0, records).handle(Received(start.sender, start.payload), network.now_ms) for _ in range(8)]
    frames = [[body_of(send.payload) for send in sends(effects)] for effects in copies]
    ciphertexts = [frame.ciphertext for copy in frames for frame in copy]
    assert len(set(ciphertexts)) == len(ciphertexts) == 16
    assert len({copy[0].contribution for copy in frames}) == 8


def test_attack_17_no_noise_and_no_seed_is_drawn_twice() -> None:
    """After a retry, by a fork, by a restored copy at the same start, and by one that charges a used number anew."""
    mechanism = Recording()
    cast = Cast(4, 3, mechanism=mechanism)
    network = cast.network()
    victim = cast.clients[0]
    copy = copy_of(network, victim)
    network.tamper = losing(Receipt)
    begin(cast, network, share_window_ms=600_000)
    network.advance(network.now_ms + 20_000)
    network.restart(victim)
    network.advance(network.now_ms + 20_000)
    assert len(mechanism.keys) == 4, "a retry draws nothing"
    shares = [Send(one.to, one.round_id, one.payload) for one in sent(network, Share, sender=victim)[:3]]
    bodies = [opened_share(network.actors[victim], send) for send in shares]

    restore(network, victim, copy)
    network.tamper = losing(Start, to=victim)
    begin(cast, network)
    (start,) = sent(network, Start, to=victim)[1:]
    records = [(table, key, value) for (table, key), value in copy_of(network, victim).items()]
    for actor in (network.actors[victim], cast.client(0, records), cast.client(0, records)):
        made = sends(actor.handle(Received(start.sender, start.payload), network.now_ms))
        bodies += [opened_share(actor, send) for send in made]
    assert len(mechanism.keys) == 4 + 3 + 3
    assert [number for number, _ in bodies] == [1] * 12, "four contributions at the price of one"
    for drawn in (mechanism.keys, mechanism.noise, bodies):
        assert len(set(drawn)) == len(drawn)


def test_attack_17_all_restored_together_notice_nothing() -> None:
    """Documented limit: where nobody remembers, a number is new again. The noise is fresh even so."""
    cast = Cast(4, 2)
    network = cast.network()
    copies = {actor: copy_of(network, actor) for actor in (*cast.clients, *cast.computes)}
    for _ in range(2):
        begin(cast, network)
        until_the_end(network)
        assert charge_numbers(network, cast.clients[0]) == [1]
        for actor, copy in copies.items():
            restore(network, actor, copy)
    assert network.reported(LedgerBehind) == []
    first, second = (result.value for result in results(network))
    assert not np.array_equal(first, second), "the same data under two noises"
