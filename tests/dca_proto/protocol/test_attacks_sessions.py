"""Attacks on sessions: Hellos rolled back, replaced, withheld, cloned; epochs that turn, and clocks that lie."""

from __future__ import annotations

import msgspec
import pytest
from round_helpers import (
    announced,
    begin,
    body_of,
    clients_of_node,
    copy_of,
    exact_actors,
    exact_sum,
    forged,
    hand_over,
    hello_of,
    ignored,
    kind_of,
    losing,
    other_hello,
    passing,
    refused,
    restore,
    results,
    sent,
    standing,
    the_sum,
    until_the_end,
    without_hello,
)
from wiretap import keys_of

from dca_proto.crypto.sealing import KEY_BYTES, AgreementKey
from dca_proto.errors import PeerError
from dca_proto.protocol.effects import Address, Channel, Persist, Report, Send
from dca_proto.protocol.events import Received, Started, Timer, TimerFired
from dca_proto.protocol.facts import Declined, LedgerReused, NodeAborted
from dca_proto.protocol.federation import enrol
from dca_proto.protocol.keyring import SeenEpochs
from dca_proto.protocol.pairing import pair_key
from dca_proto.protocol.params import Timing
from dca_proto.protocol.wire.codec import decode_frame, encode
from dca_proto.protocol.wire.messages import Certificate, Close, Contribution, Hello, HelloWanted, Sessions
from dca_proto.testing import Envelope, TestFederation

DAY_MS = 24 * 3600 * 1000
GRACE_MS = Timing().epoch_grace_ms


# 45: who gets a session


def test_attack_45_a_hello_that_is_not_its_clients_changes_nothing() -> None:
    """Verified before it displaces another: forged, of another's certificate or topic, of a key of low order."""
    actors, network = standing()
    node, client = actors.computes[0], actors.client_identities[0]
    body = msgspec.structs.replace(body_of(hello_of(network, actors).payload), serial=network.now_ms + 1)
    for signer in (actors.client_identities[1], actors.trainer_identity, actors.compute_identities[1]):
        refused(network, node, client.id, forged(actors, signer, body), "signature")
    refused(network, node, actors.clients[1], forged(actors, client, body), "sender")
    own = Certificate(client.public_key, 1 << 52, bytes(64), b"")
    refused(
        network, node, client.id, forged(actors, client, msgspec.structs.replace(body, certificate=own)), "signature"
    )
    low = msgspec.structs.replace(body, public=bytes(KEY_BYTES))
    refused(network, node, client.id, forged(actors, client, low), "key")
    elsewhere = msgspec.structs.replace(actors.federation, name="elsewhere")
    foreign = enrol(actors.authority, elsewhere, client.public_key, 1 << 52)
    moved = msgspec.structs.replace(body, certificate=foreign)
    refused(network, node, client.id, forged(actors, client, moved), "signature")


def test_attack_45_a_hello_rolled_back_is_refused_and_a_repeated_one_does_nothing() -> None:
    """The broker plays an older retained message: the highest (epoch, serial, hash) wins."""
    actors, network = standing()
    node, old = actors.computes[0], hello_of(network, actors)
    ignored(network, node, old.sender, old.payload)
    hand_over(network, to_node(node, old, other_hello(actors, network, serial=network.now_ms + 5)))
    hand_over(network, to_node(node, old, other_hello(actors, network, serial=network.now_ms + 9)))
    refused(network, node, old.sender, old.payload, "hello")
    earlier = other_hello(actors, network, epoch=body_of(old.payload).epoch - 1, serial=network.now_ms + 20)
    refused(network, node, old.sender, earlier, "hello")
    network.restart(node)
    refused(network, node, old.sender, old.payload, "hello")


def to_node(node: bytes, like: Envelope, payload: bytes) -> Envelope:
    return Envelope(like.sender, Send(Address(Channel.COMPUTE, node), b"", payload))


@pytest.mark.parametrize("ended", [True, False])
def test_attack_45_a_hello_of_an_old_epoch_or_of_one_far_ahead(ended: bool) -> None:
    actors, network = standing()
    node, now_ms = actors.computes[0], network.now_ms
    expires_ms = now_ms - GRACE_MS if ended else now_ms + 3 * DAY_MS
    payload = other_hello(actors, network, epoch=1 << 20, expires_ms=expires_ms)
    refused(network, node, actors.clients[0], payload, "hello")


def test_attack_45_a_certificate_that_has_expired() -> None:
    """At the Hello; and at the answer, where a session stands: the client is left out."""
    actors = exact_actors(4, 3)
    network = without_hello(actors)
    client, node = actors.client_identities[0], actors.computes[0]
    expired = enrol(actors.authority, actors.federation, client.public_key, network.now_ms)
    payload = other_hello(actors, network, serial=network.now_ms + 1, certificate=expired)
    refused(network, node, client.id, payload, "certificate")
    ending = enrol(actors.authority, actors.federation, client.public_key, network.now_ms + 2000)
    payload = other_hello(actors, network, serial=network.now_ms + 1, certificate=ending)
    for each in actors.computes:
        network.handle(each, Received(client.id, payload))
    network.tamper = losing(Close)
    begin(actors, network)
    network.tamper = passing
    network.advance(network.now_ms + 10_000)
    assert the_sum(network).tolist() == [exact_sum((1, 2, 3))]


def test_a_client_with_a_certificate_that_ends_before_the_round_declines() -> None:
    actors = exact_actors(4, 3)
    genuine = actors.certificate
    actors.certificate = lambda index, expires_ms=1 << 52: genuine(  # type: ignore[method-assign]
        index, 1_700_000_060_000 if index == 0 else expires_ms
    )
    network, _ = begin(actors)
    until_the_end(network)
    assert [fact.reason for fact in network.reported(Declined, actors.clients[0])] == ["certificate"]
    assert the_sum(network).tolist() == [exact_sum((1, 2, 3))]


# 45: withheld, lost, replaced by garbage


def test_attack_45_a_withheld_hello_leaves_a_client_out_and_is_requested() -> None:
    """A node without the session objects and asks. The sum is exact all the same, and the next round holds it."""
    actors = exact_actors(5, 3)
    network = without_hello(actors)
    begin(actors, network)
    network.advance(network.now_ms + 60_000)
    assert [result.value.tolist() for result in results(network)] == [[exact_sum(range(1, 5))]]
    assert {one.to.id for one in sent(network, HelloWanted)} == {actors.clients[0]}
    network.tamper = passing
    network.advance(network.now_ms + 120_000)
    begin(actors, network)
    network.advance(network.now_ms + 10_000)
    assert results(network)[-1].value.tolist() == [exact_sum(range(5))]


def test_a_holder_that_asks_for_a_hello_gets_it_and_then_the_contribution_in_the_same_round() -> None:
    actors = exact_actors(5, 3)
    network = without_hello(actors)
    network.tamper = passing
    network.now_ms += 2000  # a Hello is answered once in a second
    begin(actors, network)
    network.advance(network.now_ms + 10_000)
    assert the_sum(network).tolist() == [exact_sum(range(5))]
    assert len(sent(network, HelloWanted, to=actors.clients[0])) >= 1


def test_attack_45_a_node_that_lost_its_sessions_objects_to_all_and_finds_them_again() -> None:
    """One round is lost at most, and no charge: the broker is the directory, and the node queries the clients."""
    actors = exact_actors(5, 3)
    network = actors.network()
    begin(actors, network)
    node = actors.computes[0]
    kept = {key: value for key, value in copy_of(network, node).items() if key[0] != "session"}
    network._retained.clear()
    restore(network, node, kept)
    assert len(network.actors[node]._sessions) == 0
    network.now_ms += 5000
    begin(actors, network)
    until_the_end(network)
    if len(results(network)) == 1:
        assert {fact.reason for fact in network.reported(NodeAborted)} == {"too-few"}
        assert network.actors[actors.clients[0]].ledger.spent().mu == pytest.approx(
            network.actors[actors.clients[0]].ledger.charges[0].mu
        )
    for client in actors.clients:
        network.restart(client)
    begin(actors, network)
    network.advance(network.now_ms + 10_000)
    assert results(network)[-1].value.tolist() == [exact_sum(range(5))]


def test_attack_45_garbage_in_the_place_of_a_retained_hello() -> None:
    actors, network = standing()
    for payload in (b"", b"\xc1", bytes(1000), b"\x91" * 1000):
        refused(network, actors.computes[0], actors.clients[0], payload)
    begin(actors, network)
    assert the_sum(network).tolist() == [exact_sum(range(4))]


def test_only_nodes_request_hellos_and_once_a_second() -> None:
    actors = exact_actors(5, 3)
    network = without_hello(actors)
    network.tamper = losing(Contribution)
    begin(actors, network)
    one = sent(network, Contribution, sender=actors.clients[0])[0]
    first = network.handle(one.to.id, Received(one.sender, one.payload))
    assert [kind_of(each) for each in sent(network, HelloWanted)] == [HelloWanted]
    assert len(first) == 1
    assert network.handle(one.to.id, Received(one.sender, one.payload)) == []
    client, wanted = actors.clients[0], HelloWanted(actors.clients[0])
    for signer in (actors.trainer_identity, actors.client_identities[1]):
        refused(network, client, actors.computes[0], forged(actors, signer, wanted), "signature")
    foreign = HelloWanted(actors.clients[1])
    refused(network, client, actors.computes[0], forged(actors, actors.compute_identities[0], foreign), "sender")


def test_sessions_are_kept_up_to_the_limit_and_counted_for_trainers_alone() -> None:
    actors = exact_actors(5, 3)
    network = actors.network()
    for node in actors.computes:
        network.actors[node]._sessions._limits = msgspec.structs.replace(
            network.actors[node]._sessions._limits, sessions_max=4
        )
    network.deliver()
    assert [network.actors[node].dropped["sessions"] for node in actors.computes] == [1, 1, 1]
    network.command(actors.trainer_identity.id, actors.request(clients=0))
    network.deliver()
    assert [body_of(one.payload).count for one in sent(network, Sessions)] == [4, 4, 4]
    body = body_of(sent(network, Sessions)[0].payload)
    refused(
        network,
        actors.trainer_identity.id,
        actors.computes[0],
        forged(actors, actors.compute_identities[1], body),
        "signature",
    )


# G6, G13: turning epochs, duplicates, copied keys


def test_a_cloned_device_is_never_in_a_sum_twice_and_gets_a_notice() -> None:
    """Two machines with one identity and one ledger, each with a session of its own."""
    actors, network = standing(5)
    victim = actors.clients[0]
    records = [(table, key, value) for (table, key), value in copy_of(network, victim).items() if table == "ledger"]
    clone = actors.client(0, records)
    network.now_ms += 1000
    hello = next(effect for effect in clone.handle(Started(), network.now_ms) if getattr(effect, "retain", False))
    for node in actors.computes:
        network.handle(node, Received(victim, hello.payload))
    network.tamper = losing(Close)
    begin(actors, network)
    announcement = announced(network, actors)
    (second,) = [
        effect
        for effect in clone.handle(Received(actors.trainer_identity.id, encode(announcement.frame)), network.now_ms)
        if getattr(effect, "payload", b"")
    ]
    network.handle(second.to.id, Received(victim, second.payload))
    network.tamper = passing
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum(range(5))]
    assert len(network.reported(LedgerReused, victim)) == 1


def test_a_copied_key_gives_nobody_elses_pair_keys() -> None:
    """G13: k_ij is bound to both ids, epochs and the federation: who publishes another's public key as its own agrees
    on nothing that anybody uses."""
    actors = TestFederation(2, 2)
    secret, peer = AgreementKey(b"\1" * 32), AgreementKey(b"\2" * 32)
    client, node = (actors.clients[0], 1), (actors.computes[0], 1)
    federation = actors.federation
    own = pair_key(secret, peer.public, federation.id, client, node)
    assert own == pair_key(peer, secret.public, federation.id, client, node), "the same on both sides"
    elsewhere = msgspec.structs.replace(federation, name="elsewhere")
    others = [
        pair_key(secret, peer.public, federation.id, (actors.clients[1], 1), node),
        pair_key(secret, peer.public, federation.id, client, (actors.computes[1], 1)),
        pair_key(secret, peer.public, federation.id, (actors.clients[0], 2), node),
        pair_key(secret, peer.public, federation.id, client, (actors.computes[0], 2)),
        pair_key(secret, peer.public, elsewhere.id, client, node),
    ]
    assert len({own, *others}) == 6


def test_a_client_that_publishes_anothers_key_can_open_nothing_with_it() -> None:
    actors, network = standing(6)
    thief, victim = 1, 0
    stolen = body_of(hello_of(network, actors, victim).payload).public
    payload = other_hello(actors, network, thief, serial=network.now_ms + 1, public=stolen)
    for node in actors.computes:
        network.handle(node, Received(actors.clients[thief], payload))
    network.tamper = losing(Contribution)
    begin(actors, network)
    network.tamper = passing
    for one in sent(network, Contribution, sender=actors.clients[victim]):
        if thief in clients_of_node(network, actors, actors.computes.index(one.to.id)):
            network.handle(one.to.id, Received(actors.clients[thief], one.payload))
        assert actors.clients[thief] not in network.actors[one.to.id]._rounds[one.round_id].kept
    network.deliver()
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum(range(6))], "its own contribution is of its former session"


# 30: keys that go


def test_attack_30_a_round_for_an_epoch_key_that_is_deleted_is_refused() -> None:
    """Rather than start a round of which nothing could be opened."""
    actors, network = standing()
    network.down.update(actors.computes)
    begin(actors, network)
    node, payload = network.actors[actors.computes[0]], encode(announced(network, actors).frame)
    node.handle(TimerFired(Timer("epoch")), node._keys.expires_ms + GRACE_MS)
    refused(network, node.id, actors.trainer_identity.id, payload, "epoch")


def test_attack_30_a_trainer_announces_no_round_that_outlasts_a_key() -> None:
    """G12: `commit_by` and the abort grace end with the named keys' own grace; clients and nodes check it, too."""
    actors, network = standing()
    key = network.actors[actors.computes[0]]._keys
    latest_ms = key.expires_ms + GRACE_MS - actors.timing.abort_grace_ms
    begin(actors, network)
    opened = announced(network, actors)
    for number, commit_ms in enumerate((latest_ms + 1, latest_ms), 1):
        body = msgspec.structs.replace(
            opened.body, round_id=bytes((number,)) * 16, close_by_ms=network.now_ms + 1000, commit_by_ms=commit_ms
        )
        payload = forged(actors, actors.trainer_identity, body)
        for actor in (actors.clients[0], actors.computes[0]):
            if commit_ms > latest_ms:
                refused(network, actor, actors.trainer_identity.id, payload, "epoch")
            else:
                network.handle(actor, Received(actors.trainer_identity.id, payload))
                assert network.actors[actor].phase(body.round_id) != "new"


def test_a_round_at_the_end_of_an_epoch_makes_the_client_renew_its_key_first() -> None:
    """A client whose key ends before the round does publishes a new one before it contributes."""
    actors = exact_actors(4, 3, timing=Timing(hello_spread_ms=0, epoch_grace_ms=60_000, abort_grace_ms=1000))
    network = actors.network()
    network.deliver()
    end_ms = network.actors[actors.computes[0]]._keys.expires_ms
    network.advance(end_ms - 1)
    first = len(sent(network, Hello))
    network.advance(end_ms + 1)
    assert len(sent(network, Hello)) > first
    begin(actors, network)
    network.advance(network.now_ms + 10_000)
    assert the_sum(network).tolist() == [exact_sum(range(4))]


# 49: clocks


def test_attack_49_a_nodes_clock_that_ran_ahead_and_was_corrected_locks_nobody_out() -> None:
    """It deletes the key of the far epoch at its next turn, and makes the current one; nobody remembers the far one."""
    actors, network = standing()
    node, then_ms = network.actors[actors.computes[0]], network.now_ms
    for effect in node.handle(TimerFired(Timer("epoch")), then_ms + 40 * DAY_MS):
        network._carry_out(node.id, effect)
    network.deliver()
    assert node._keys.epoch == then_ms // DAY_MS + 40
    network.restart(node.id)
    node = network.actors[node.id]
    assert node._keys.epoch == then_ms // DAY_MS
    network.restart(actors.trainer_identity.id)
    begin(actors, network)
    network.advance(network.now_ms + 10_000)
    assert len(results(network)) == 1


def test_attack_49_epochs_far_in_the_future_are_refused_and_never_remembered() -> None:
    actors, network = standing()
    begin(actors, network)
    opened, node = announced(network, actors), actors.compute_identities[0]
    far = msgspec.structs.replace(
        opened.epochs[0], epoch=opened.epochs[0].epoch + 2, expires_ms=network.now_ms + DAY_MS
    )
    for actor in (actors.computes[1], actors.clients[0]):
        before = dict(network.actors[actor]._seen._seen)
        computes = (decode_frame(forged(actors, node, far)), *opened.body.epochs[1:])
        body = msgspec.structs.replace(opened.body, round_id=bytes(16), epochs=computes)
        payload = forged(actors, actors.trainer_identity, body)
        if actor == actors.clients[0]:
            effects = network.handle(actor, Received(actors.trainer_identity.id, payload))
            assert [one.fact.reason for one in effects if isinstance(one, Report)] == ["epoch"], "it declines"
        else:
            refused(network, actor, actors.trainer_identity.id, payload, "epoch")
        assert network.actors[actor]._seen._seen == before


def test_attack_49_epochs_from_a_fast_clock_set_no_lower_bound() -> None:
    """An epoch that was remembered under a wrong clock counts for no more than one ahead of the right one."""
    now_ms, node = 1000 * DAY_MS, bytes(16)
    seen = SeenEpochs([("seen", node, (1040).to_bytes(4, "big"))], Timing())
    opened = announced(begin(exact_actors(4, 3))[0], exact_actors(4, 3)).epochs[0]
    key = msgspec.structs.replace(opened, compute=node, epoch=1001, expires_ms=1002 * DAY_MS)
    seen.check([key], now_ms)
    seen.check([msgspec.structs.replace(key, epoch=1000, expires_ms=1001 * DAY_MS)], now_ms)
    with pytest.raises(PeerError, match="epoch"):
        seen.check([msgspec.structs.replace(key, epoch=999, expires_ms=1000 * DAY_MS)], now_ms)
    assert seen.note((key,), now_ms) == [Persist("seen", node, (1001).to_bytes(4, "big"))], "and is replaced"


def test_attack_49_a_clients_clock_ahead_of_a_round_is_late_and_behind_is_no_harm() -> None:
    actors, network = standing()
    network.tamper = losing(Contribution)
    begin(actors, network)
    opened = announced(network, actors)
    body = msgspec.structs.replace(opened.body, round_id=bytes(16))
    payload = forged(actors, actors.trainer_identity, body)
    now_ms = network.now_ms
    network.now_ms = body.close_by_ms
    refused(network, actors.clients[0], actors.trainer_identity.id, payload, "late")
    network.now_ms = now_ms - actors.timing.deadline_ahead_ms_max
    refused(network, actors.clients[0], actors.trainer_identity.id, payload, "deadline")
    assert keys_of(network.actors[actors.clients[0]], opened)
