"""What is checked once and remembered is what was checked, byte for byte; it expires all the same, and is bounded."""

from __future__ import annotations

import gc

import msgspec
import pytest
from failing_rounds import abort_of
from round_helpers import (
    announced,
    begin,
    exact_actors,
    forged,
    losing,
    passing,
    refused,
    resigned,
    sent,
    until_the_end,
)

from dca_proto.errors import PeerError
from dca_proto.protocol import facts
from dca_proto.protocol.announcement import _verified, check_time, open_announcement, open_epoch_keys
from dca_proto.protocol.events import Received
from dca_proto.protocol.federation import known_signer
from dca_proto.protocol.params import (
    CERTIFICATES_KNOWN_MAX,
    EPOCH_KEYS_KNOWN_MAX,
    MIB,
    TRAINER_PART,
    Limits,
    Room,
    Timing,
)
from dca_proto.protocol.wire.codec import decode_body, decode_frame, encode, sign
from dca_proto.protocol.wire.messages import Announcement, Close, EpochKey, Hello, Receipt, Signed
from dca_proto.testing import Network, TestFederation

LIMITS = Limits()


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> None:
    for remembered in (known_signer, open_epoch_keys):
        remembered.cache_clear()
    _verified.clear()  # an earlier test's announcements may still wait for the collector


def misses() -> tuple[int, int]:
    """How many certificates, and lists of epoch keys, were verified and not remembered."""
    return known_signer.cache_info().misses, open_epoch_keys.cache_info().misses


def kept() -> tuple[int, int]:
    return known_signer.cache_info().currsize, open_epoch_keys.cache_info().currsize


def broken(frame: Signed) -> Signed:
    return Signed(frame.body, frame.signature[:-1] + bytes((frame.signature[-1] ^ 1,)))


def test_a_second_round_of_an_epoch_verifies_no_certificate_and_no_epoch_key_again() -> None:
    actors = exact_actors(5, 3)
    network, _ = begin(actors)
    once = misses()
    begin(actors, network)
    assert once == misses() == (5, 1)
    assert len(network.reported(facts.RoundCompleted)) == 2


# Certificates


def test_a_certificate_that_is_remembered_expires() -> None:
    actors = TestFederation(1, 2)
    certificate = actors.certificate(0, expires_ms=1000)
    assert actors.federation.check_certificate(certificate, 999) == actors.clients[0]
    with pytest.raises(PeerError, match="certificate: found a certificate until"):
        actors.federation.check_certificate(certificate, 1000)
    assert misses() == (1, 0), "and it was not verified again"


@pytest.mark.parametrize("field", ["client_key", "expires_ms", "signature"])
def test_one_bit_of_a_remembered_certificate_makes_another_one(field: str) -> None:
    actors = TestFederation(2, 2)
    certificate = actors.certificate(0)
    actors.federation.check_certificate(certificate, 0)
    value = getattr(certificate, field)
    other = value ^ 1 if isinstance(value, int) else bytes((value[0] ^ 1,)) + value[1:]
    for _ in range(2):
        with pytest.raises(PeerError, match="signature"):
            actors.federation.check_certificate(msgspec.structs.replace(certificate, **{field: other}), 0)


def test_a_certificate_that_one_federation_remembers_is_no_other_ones() -> None:
    actors = TestFederation(1, 2)
    certificate = actors.certificate(0)
    actors.federation.check_certificate(certificate, 0)
    for change in ({"name": "another"}, {"enrolment_key": actors.client_identities[0].public_key}):
        with pytest.raises(PeerError, match="signature"):
            msgspec.structs.replace(actors.federation, **change).check_certificate(certificate, 0)


def test_failed_checks_are_not_cached_and_passed_ones_only_up_to_the_limit() -> None:
    actors = TestFederation(1, 2)
    certificate = actors.certificate(0)
    for signature in (bytes(64), certificate.signature[::-1]):
        with pytest.raises(PeerError):
            actors.federation.check_certificate(msgspec.structs.replace(certificate, signature=signature), 0)
    assert kept() == (0, 0)
    assert known_signer.cache_info().maxsize == CERTIFICATES_KNOWN_MAX
    assert open_epoch_keys.cache_info().maxsize == EPOCH_KEYS_KNOWN_MAX


def test_a_hellos_own_signature_is_verified_although_its_certificate_is_remembered() -> None:
    actors = exact_actors(4, 3)
    network, _ = begin(actors)
    one = sent(network, Hello, sender=actors.clients[0])[0]
    body = msgspec.structs.replace(decode_body(decode_frame(one.payload).body), serial=network.now_ms + 1)
    genuine = decode_frame(forged(actors, actors.client_identities[0], body))
    for compute in actors.computes:
        refused(network, compute, one.sender, encode(broken(genuine)), "signature")
    assert misses()[0] == 4


# Epoch keys


def test_remembered_epoch_keys_expire() -> None:
    actors = exact_actors(4, 3)
    network, _ = begin(actors)
    opened = announced(network, actors)
    over_ms = opened.epochs[0].expires_ms + Timing().epoch_grace_ms - Timing().abort_grace_ms
    later = msgspec.structs.replace(opened.body, close_by_ms=over_ms - 1, commit_by_ms=over_ms)
    again = open_announcement(sign(actors.trainer_identity, actors.federation.id, later), actors.federation, LIMITS)
    assert misses()[1] == 1, "remembered"
    check_time(again, Timing(), over_ms - 2, until_ms=over_ms - 1)
    over = msgspec.structs.replace(later, commit_by_ms=over_ms + 1)
    again = open_announcement(sign(actors.trainer_identity, actors.federation.id, over), actors.federation, LIMITS)
    with pytest.raises(PeerError, match="epoch: found a round that ends on 2023-11-15 01:00:00 UTC, expected until"):
        check_time(again, Timing(), over_ms - 2, until_ms=over_ms - 1)


def test_one_bit_of_remembered_epoch_keys_makes_others() -> None:
    actors = exact_actors(4, 3)
    network, _ = begin(actors)
    body = announced(network, actors).body
    first = msgspec.structs.replace(decode_body(body.epochs[0].body), public=bytes(range(32)))
    for wrong in (broken(body.epochs[0]), Signed(encode(first), body.epochs[0].signature)):
        payload = resigned(
            actors, actors.trainer_identity, sent(network, Announcement)[-1].payload,
            epochs=(wrong, *body.epochs[1:]), round_id=bytes(16),
        )  # fmt: skip
        for client in actors.clients:
            refused(network, client, actors.trainer_identity.id, payload, "signature")
    assert kept()[1] <= 1


def test_remembered_epoch_keys_of_one_node_twice_are_refused_each_time() -> None:
    actors = exact_actors(4, 3)
    network, _ = begin(actors)
    key = announced(network, actors).body.epochs[0]
    assert isinstance(decode_body(key.body), EpochKey)
    for _ in range(2):
        with pytest.raises(PeerError, match="a Compute node twice"):
            open_epoch_keys((key, key), actors.federation)


def test_epoch_keys_that_one_federation_remembers_are_no_other_ones() -> None:
    actors = exact_actors(4, 3)
    network, _ = begin(actors)
    keys = announced(network, actors).body.epochs
    _, computes = open_epoch_keys(keys, actors.federation)
    assert computes == actors.computes
    another = msgspec.structs.replace(actors.federation, name="another")
    with pytest.raises(PeerError, match="federation"):
        open_epoch_keys(keys, another)
    with pytest.raises(PeerError, match="signature"):
        open_epoch_keys(keys, msgspec.structs.replace(another, number=2))


# One copy


def test_clients_of_one_process_share_one_copy_of_checked_objects() -> None:
    actors = exact_actors(4, 3)
    network, request = begin(actors)
    copies = {id(network.actors[client]._rounds[request.round_id].opened) for client in actors.clients}
    assert len(copies) == 1
    opened_hash = announced(network, actors).hash
    until_the_end(network, hours=8 * 24)
    network.actors.clear()
    gc.collect()
    assert opened_hash not in _verified, "nobody holds it any more"


def test_a_copy_that_others_hold_lets_no_unsigned_one_through() -> None:
    actors = exact_actors(4, 3)
    network, _ = begin(actors)
    frame = decode_frame(sent(network, Announcement)[-1].payload)
    with pytest.raises(PeerError, match="signature"):
        open_announcement(broken(frame), actors.federation, LIMITS)
    other = TestFederation(4, 3, name="elsewhere")
    with pytest.raises(PeerError, match="unknown-trainer"):
        open_announcement(frame, other.federation, LIMITS)


# Running totals


def test_a_clients_room_for_announcements_is_free_again_when_rounds_are_over() -> None:
    actors = exact_actors(4, 3)
    network = actors.network()
    network.tamper = losing(Receipt)
    _, request = begin(actors, network)
    client = network.actors[actors.clients[0]]
    size = len(announced(network, actors).payload)
    assert client._room.announcements.total == size
    part = Room("announcements", TRAINER_PART * (2 * size - 1), MIB)
    client._limits = msgspec.structs.replace(LIMITS, client_announcements=part)
    opened = announced(network, actors)
    second = resigned(actors, actors.trainer_identity, encode(opened.frame), round_id=bytes(16))
    network.handle(client.id, Received(actors.trainer_identity.id, second))
    (declined,) = network.reported(facts.Declined, client.id)
    assert (declined.reason, declined.expected) == ("room", "at most 0.1 MiB for one trainer")
    assert declined.found == "announcements: 0.1 MiB with this one"
    network.restart(client.id)
    client = network.actors[client.id]
    assert client._room.announcements.total == size, "counted again from the store"
    until_the_end(network)
    assert (client._room.announcements.total, client.phase(request.round_id)) == (0, "new")


def test_only_declined_rounds_and_those_without_a_receipt_take_up_a_clients_room() -> None:
    """Quick rounds that it remembers must not keep it from the next one: the oldest give way."""
    actors = exact_actors(4, 3)
    network, first = begin(actors)
    client = network.actors[actors.clients[0]]
    few = {"client_open": Room("rounds without a receipt", 8), "client_kept": Room("rounds with a receipt", 8)}
    client._limits = msgspec.structs.replace(LIMITS, **few)
    for _ in range(3):
        begin(actors, network)
    assert (len(client._rounds), client._room.open.total, client._room.kept.total) == (2, 0, 2)
    assert client.phase(first.round_id) == "new"
    assert first.round_id in client.ledger
    begin(actors, network, epsilon=100.0)  # beyond every policy
    network.tamper = losing(Receipt)
    _, third = begin(actors, network)
    assert client._room.open.total == 2
    refused(network, client.id, actors.trainer_identity.id, third_announcement(actors, network), "room")
    network.restart(client.id)
    client = network.actors[client.id]
    assert client._room.open.total == 2, "counted again from the store"
    network.tamper = passing
    network.advance(network.now_ms + 20_000)
    assert client.phase(third.round_id) == "kept"
    assert client._room.open.total == 1


@pytest.mark.parametrize("started_again", [False, True])
@pytest.mark.parametrize(
    ("how", "phase", "kept_ms"),
    [
        ("declined", "declined", -60_000),
        ("with a receipt", "kept", 3_900_000),
        ("with a receipt, then an abort", "kept", 3_900_000),
        ("with an abort, then a receipt", "kept", 3_900_000),
        ("without a receipt", "sent", 3_900_000),
    ],
)
def test_how_long_a_client_remembers_a_round(how: str, phase: str, kept_ms: int, started_again: bool) -> None:
    """Counted from `commit_by`: a declined one until `close_by`, a minute before."""
    actors = exact_actors(4, 3)
    network, client = actors.network(), actors.clients[0]
    network.tamper = losing(*[] if how.startswith("with a receipt") else [Receipt], to=client)
    _, request = begin(actors, network, epsilon=100.0 if how == "declined" else 1.0)
    network.down |= {*actors.computes, actors.trainer_identity.id}
    if "abort" in how:
        network.handle(client, Received(*abort_of(actors, network, 0)))
    if how.endswith("then a receipt"):
        (receipt,) = sent(network, Receipt, to=client)
        network.handle(client, Received(receipt.sender, receipt.payload))
    if started_again:
        network.restart(client)
    over_ms = announced(network, actors).body.commit_by_ms + kept_ms
    network.advance(over_ms - 1)
    assert network.actors[client].phase(request.round_id) == phase
    network.advance(over_ms)
    assert network.actors[client].phase(request.round_id) == "new"
    assert not {"client-round", "announcement"} & {table for table, _ in network.stores[client]}


def test_a_repeated_refusal_or_announcement_is_counted_once() -> None:
    actors = exact_actors(3, 2)
    network, _ = begin(actors, epsilon=100.0)  # beyond every policy
    client = network.actors[actors.clients[0]]
    size = client._room.messages.total
    assert 0 < size < 1000, "of the announcement, nothing but its hash is kept"
    for envelope in sent(network, Announcement):
        network.handle(client.id, Received(envelope.sender, envelope.payload))
    assert (client._room.open.total, client._room.messages.total) == (1, size)


def test_rounds_that_have_ended_leave_room_at_a_compute_node() -> None:
    actors = exact_actors(4, 3)
    network, _ = begin(actors)
    node = network.actors[actors.computes[0]]
    node._limits = msgspec.structs.replace(LIMITS, node_open=Room("open rounds", 4))
    assert node._open == set()
    network.tamper = losing(Close)
    _, second = begin(actors, network)
    assert len(node._open) == 1
    network.handle(node.id, Received(actors.trainer_identity.id, third_announcement(actors, network)))
    (aborted,) = network.reported(facts.NodeAborted, node.id)
    assert (aborted.reason, aborted.detail) == (
        "room",
        "found open rounds: 2 with this one; needs at most 1 for one trainer",
    )
    network.restart(node.id)
    assert network.actors[node.id]._open == {second.round_id}
    until_the_end(network)
    assert network.actors[node.id]._open == set()


def third_announcement(actors: TestFederation, network: Network) -> bytes:
    """Another round's."""
    return resigned(actors, actors.trainer_identity, sent(network, Announcement)[-1].payload, round_id=bytes(16))
