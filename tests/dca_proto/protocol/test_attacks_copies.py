"""Attacks 17 and 48: a contribution is the same bytes for ever, and two of a client or its copies share nothing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from round_helpers import (
    announced,
    begin,
    body_of,
    copy_of,
    exact_actors,
    exact_sum,
    losing,
    passing,
    recompose,
    restore,
    results,
    sends,
    sent,
    the_sum,
    until_the_end,
)
from wiretap import Recording, opened_contribution

from dca_proto.crypto.sealing import Identity
from dca_proto.protocol.contribution import hedged_root
from dca_proto.protocol.effects import Send
from dca_proto.protocol.events import Received, Started
from dca_proto.protocol.facts import LedgerReused
from dca_proto.protocol.wire.codec import encode
from dca_proto.protocol.wire.messages import Announcement, Close, Contribution, Receipt
from dca_proto.testing import Network, TestFederation


def charge_numbers(network: Network, client: bytes) -> list[int]:
    """In its ledger, in order."""
    return [charge.number for charge in network.actors[client].ledger.charges]


def announced_to_nobody(actors: TestFederation) -> tuple[Network, bytes]:
    """A round that only the nodes know, and its announcement."""
    network = actors.network()
    network.tamper = losing(Announcement, to=b"")  # the broadcast
    begin(actors, network)
    return network, encode(announced(network, actors).frame)


def copies(actors: TestFederation, network: Network, count: int) -> list:
    """Processes that start from the same records of client 0."""
    records = [(table, key, value) for (table, key), value in copy_of(network, actors.clients[0]).items()]
    return [actors.client(0, records) for _ in range(count)]


def contributed(actor, actors: TestFederation, network: Network, payload: bytes) -> Send:
    (send,) = sends(actor.handle(Received(actors.trainer_identity.id, payload), network.now_ms))
    return send


def test_attack_17_a_retry_resends_the_same_bytes() -> None:
    """Never the same value under other noise: across lost messages, back-off and restarts, one ciphertext."""
    actors = TestFederation(4, 3)
    network = actors.network()
    network.tamper = losing(Receipt)
    begin(actors, network, collect_s=600)
    for _ in range(3):
        network.advance(network.now_ms + 20_000)
        network.restart(actors.clients[0])
        network.deliver()
    again = [one.payload for one in sent(network, Contribution, sender=actors.clients[0])]
    assert len(again) > 4
    assert len(set(again)) == 1
    assert charge_numbers(network, actors.clients[0]) == [1]
    assert network.reported(LedgerReused) == [], "the same contribution again is no second one"


def test_attack_17_a_forked_client_draws_fresh_noise_and_receives_a_notice() -> None:
    """Two copies of one device take part in the same round. Their contributions differ in id and in all of the noise;
    the holder keeps one, and the client receives a notice. Neither sum nor anybody else notices."""
    actors = exact_actors(5, 3)
    network, payload = announced_to_nobody(actors)
    network.tamper = losing(Close)
    (duplicate,) = copies(actors, network, 1)
    for client in actors.clients:
        network.handle(client, Received(actors.trainer_identity.id, payload))
    network.deliver()
    second = contributed(duplicate, actors, network, payload)
    first = sent(network, Contribution, sender=duplicate.id)[0]
    assert body_of(first.payload).contribution != body_of(second.payload).contribution
    network.handle(second.to.id, Received(duplicate.id, second.payload))
    network.tamper = passing
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum(range(5))]
    assert [fact.compute for fact in network.reported(LedgerReused, duplicate.id)] == [second.to.id]


def test_attack_17_copies_of_one_store_never_repeat_a_key() -> None:
    """The noise of copies that restart from the same bytes is independent: nothing about it is stored."""
    actors = TestFederation(4, 2)
    network, payload = announced_to_nobody(actors)
    frames = [body_of(contributed(one, actors, network, payload).payload) for one in copies(actors, network, 8)]
    assert len({frame.ciphertext for frame in frames}) == len({frame.contribution for frame in frames}) == 8


def test_attack_17_no_noise_and_no_mask_is_drawn_twice() -> None:
    """After a retry, by forks, by a restored copy, and by one that charges a used number anew."""
    mechanism = Recording()
    actors = TestFederation(4, 3, mechanism=mechanism)
    network = actors.network()
    victim = actors.clients[0]
    copy = copy_of(network, victim)
    network.tamper = losing(Receipt)
    begin(actors, network, collect_s=600)
    network.advance(network.now_ms + 20_000)
    network.restart(victim)
    network.advance(network.now_ms + 20_000)
    assert len(mechanism.keys) == 4, "a retry draws nothing"
    one = sent(network, Contribution, sender=victim)[0]
    hidden = [opened_contribution(network.actors[victim], Send(one.to, one.round_id, one.payload))]
    restore(network, victim, copy)
    network.tamper = losing(Announcement, to=b"")
    begin(actors, network)
    payload = encode(announced(network, actors).frame)
    each = (network.actors[victim], *copies(actors, network, 2))
    hidden += [opened_contribution(actor, contributed(actor, actors, network, payload)) for actor in each]
    assert [kept.charge for kept in hidden] == [1] * 4, "four contributions at the price of one"
    for drawn in (mechanism.keys, mechanism.noise, [kept.y for kept in hidden], [kept.tags for kept in hidden]):
        assert len(set(drawn)) == len(drawn)


def test_attack_17_all_restored_together_notice_nothing() -> None:
    """Documented limit: where nobody remembers, a number is new again. The noise is fresh even so."""
    actors = TestFederation(4, 2)
    network = actors.network()
    stores = {actor: copy_of(network, actor) for actor in (*actors.clients, *actors.computes)}
    for _ in range(2):
        begin(actors, network)
        until_the_end(network)
        assert charge_numbers(network, actors.clients[0]) == [1]
        for actor, copy in stores.items():
            restore(network, actor, copy)
    assert network.reported(LedgerReused) == []
    first, second = (result.value for result in results(network))
    assert not np.array_equal(first, second), "the same data under two noises"


# 48: the random generator comes back with the snapshot


def same_bytes(size: int) -> bytes:
    """A random generator that was restored with the machine: it repeats its output."""
    return bytes(range(size % 256)) * (size // 256) + bytes(range(size % 256)) if size > 255 else bytes(range(size))


def replayed(actors: TestFederation, network: Network, payload: bytes, value: float = 0.5) -> Send:
    """What client 0 sends when it starts from its records with that generator, holding that value."""
    (actor,) = copies(actors, network, 1)
    recompose(actor, random=same_bytes, rows=lambda columns: np.array([[value]]))
    return contributed(actor, actors, network, payload)


def test_attack_48_the_same_input_under_a_restored_generator_gives_the_same_bytes() -> None:
    mechanism = Recording()
    actors = TestFederation(4, 3, mechanism=mechanism)
    network, payload = announced_to_nobody(actors)
    assert replayed(actors, network, payload) == replayed(actors, network, payload)
    assert len(set(mechanism.keys)) == 1


def test_attack_48_other_data_another_announcement_or_number_draw_independent_noise_ids_and_masks() -> None:
    """G7: the root is hedged: bytes that everybody knows are mixed with a secret, the session, ah, number and data."""
    mechanism = Recording()
    actors = TestFederation(4, 3, mechanism=mechanism)
    network, payload = announced_to_nobody(actors)
    begin(actors, network, epsilon=0.5)
    other = encode(announced(network, actors).frame)
    made = [
        replayed(actors, network, payload),
        replayed(actors, network, payload, 0.25),
        replayed(actors, network, other),
    ]
    frames = [body_of(one.payload) for one in made]
    assert len({frame.contribution for frame in frames}) == 3
    assert len(set(mechanism.keys)) == len(set(mechanism.noise)) == 3
    assert len({frame.ciphertext[:8] for frame in frames}) == 3


def test_attack_48_the_root_depends_on_every_input_and_on_the_identitys_secret() -> None:
    identities = [Identity(bytes((number,)) * 32) for number in (1, 2)]
    value = np.zeros(3, dtype=np.int64)
    plain = (identities[0], bytes(32), bytes(32), bytes(32), 1, value)
    changes = [
        {0: identities[1]}, {1: b"\1" * 32}, {2: b"\1" * 32}, {3: b"\1" * 32}, {4: 2}, {5: value + 1},
        {5: np.zeros(1 << 14, dtype=np.int64)}, {5: np.ones(1 << 14, dtype=np.int64)},
    ]  # fmt: skip
    roots = [hedged_root(*(change.get(at, part) for at, part in enumerate(plain))) for change in ({}, *changes)]
    assert len(set(roots)) == len(roots)
    assert hedged_root(*plain) == roots[0]


@pytest.mark.parametrize("later_ms", [0, 24 * 3600 * 1000])
def test_attack_48_epoch_secrets_are_hedged_by_identity_epoch_and_time(later_ms: int) -> None:
    actors = TestFederation(2, 2)
    now_ms = 1_700_000_000_000
    made = []
    for index, at_ms in itertools.product(range(2), (now_ms, now_ms + 1 + later_ms)):
        for actor in (actors.client(index), actors.compute(index)):
            actor._random = same_bytes
            ring = actor._session._keys if hasattr(actor, "_session") else actor._keys
            ring._random = same_bytes
            actor.handle(Started(), at_ms)
            made.append(ring.public)
    assert len(set(made)) == len(made) == 8
