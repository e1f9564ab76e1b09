"""Attacks by hostile or damaged input: values, ciphertexts, encodings, and messages moved elsewhere."""

from __future__ import annotations

import contextlib
from typing import Any

import msgpack
import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from round_helpers import (
    announced,
    begin,
    body_of,
    exact_actors,
    exact_sum,
    flipped,
    losing,
    refused,
    resigned,
    results,
    sent,
    snapshot,
    the_sum,
    until_the_end,
)
from wiretap import keys_of

from dca_proto.crypto.masks import contribution_keys
from dca_proto.crypto.sealing import SINGLE_USE_NONCE, encrypt
from dca_proto.errors import PeerError
from dca_proto.protocol.effects import Channel, Report
from dca_proto.protocol.events import Received
from dca_proto.protocol.facts import Dropped
from dca_proto.protocol.params import PROTOCOL_VERSION
from dca_proto.protocol.wire.codec import decode_body, decode_frame, encode
from dca_proto.protocol.wire.messages import (
    Announcement,
    Answer,
    Close,
    Contribution,
    EpochKey,
    FrozenList,
    Hello,
    HelloWanted,
    Progress,
    Receipt,
    Signed,
)
from dca_proto.protocol.wire.topics import sender_of
from dca_proto.testing import Envelope, Network, TestFederation

FUZZ = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def without_contributions(clients: int = 4, **changes: Any) -> tuple[TestFederation, Network]:
    """A round whose Compute nodes wait for contributions that were all made and all lost."""
    actors = exact_actors(clients, 3)
    network = actors.network()
    network.tamper = losing(Contribution)
    begin(actors, network, **changes)
    return actors, network


# 20: values


@pytest.mark.parametrize(
    ("row", "counts_as"),
    [(1e300, 1.0), (-1e300, -1.0), (np.nan, 0.0), (np.inf, 0.0), (-np.inf, 0.0), (-0.0, 0.0), (5e-324, 0.0)],
)
def test_attack_20_values_out_of_range_are_clamped_and_missing_ones_are_zero(row: float, counts_as: float) -> None:
    """The client clamps to the announced bounds before anything else, and takes part whatever its rows hold."""
    rows = [np.array([[row]]), *(np.array([[0.25]]) for _ in range(3))]
    network, _ = begin(exact_actors(4, 3, rows=rows))
    assert the_sum(network).tolist() == [counts_as + 0.75]


@pytest.mark.parametrize("rows", [np.zeros((0, 1)), np.zeros((1, 1), dtype=np.float32), np.zeros((3, 1), dtype=int)])
def test_attack_20_no_rows_and_other_dtypes_contribute_zero_like_any_other(rows: np.ndarray) -> None:
    network, _ = begin(exact_actors(4, 3, rows=[rows, *(np.array([[0.25]]) for _ in range(3))]))
    assert the_sum(network).tolist() == [0.75]


def sealed_plaintext(actors: TestFederation, network: Network, hidden: bytes, client: int = 0) -> tuple[bytes, bytes]:
    """The holder, and a plaintext of that client's choice, rightly sealed to it."""
    opened, actor, identity = announced(network, actors), network.actors[actors.clients[client]], bytes(range(16))
    holder = opened.holder(actor.id).id
    (keys, *_) = keys_of(actor, opened)
    key = contribution_keys(keys[opened.computes.index(holder)], opened.hash, identity).seal
    bound = b"".join((opened.hash, actor.id, holder, identity))
    ciphertext = encrypt(key, SINGLE_USE_NONCE, hidden, bound)
    return holder, encode(Contribution(opened.body.round_id, identity, ciphertext))


def check_dropped_or_hello_wanted(network: Network, one: Envelope, payload: bytes) -> None:
    """The holder keeps nothing of it: it drops it, or takes it for one of a session that it has not."""
    actor = network.actors[one.to.id]
    before = snapshot(actor)
    effects = actor.handle(Received(one.sender, payload), network.now_ms)
    for effect in effects:
        drop = isinstance(effect, Report) and isinstance(effect.fact, Dropped)
        assert drop or isinstance(body_of(effect.payload), HelloWanted)
    assert snapshot(actor) == before


LENGTH = 4 + 3 * 8 + 8  # of a plaintext: number, tags, one ring element


@pytest.mark.parametrize("length", [0, 1, 4, 28, LENGTH - 1, LENGTH + 1, LENGTH + 8, 1000])
def test_attack_20_a_contribution_of_the_wrong_length_is_refused(length: int) -> None:
    """The length is the exact one for this round. Every 64-bit integer is a ring element."""
    actors, network = without_contributions()
    holder, payload = sealed_plaintext(actors, network, bytes(length))
    refused(network, holder, actors.clients[0], payload, "contribution")


def test_attack_20_a_charge_number_of_zero_is_refused() -> None:
    actors, network = without_contributions()
    holder, payload = sealed_plaintext(actors, network, bytes(LENGTH))
    refused(network, holder, actors.clients[0], payload, "contribution")


def test_attack_20_extreme_ring_elements_and_tags_are_kept_and_then_objected_to() -> None:
    """A holder keeps what its client's key seals; tags that fail leave the client out."""
    actors, network = without_contributions()
    holder, payload = sealed_plaintext(actors, network, b"\xff" * LENGTH)
    network.handle(holder, Received(actors.clients[0], payload))
    assert list(network.actors[holder]._rounds[announced(network, actors).body.round_id].kept) == [actors.clients[0]]
    network.tamper = losing(Contribution, sender=actors.clients[0])
    until_the_end(network)
    assert the_sum(network).tolist() == [exact_sum((1, 2, 3))]
    actor = network.actors[holder]
    assert actor._charges.highest(actor._sessions.slots[actors.clients[0]]) == 0, "its number was recorded nowhere"


# 21: ciphertexts and encodings


def test_attack_21_every_flipped_bit_of_a_contribution_is_noticed() -> None:
    _, network = without_contributions()
    one = sent(network, Contribution)[0]
    for position in range(len(one.payload)):
        check_dropped_or_hello_wanted(network, one, flipped(one.payload, position))


def test_attack_21_every_truncation_and_any_tail_is_noticed() -> None:
    _, network = without_contributions()
    one = sent(network, Contribution)[0]
    for length in range(len(one.payload)):
        refused(network, one.to.id, one.sender, one.payload[:length], "malformed")
    for tail in (b"\0", b"\xc0", one.payload):
        refused(network, one.to.id, one.sender, one.payload + tail, "malformed")


def test_attack_21_a_shorter_ciphertext_in_a_well_formed_frame() -> None:
    _, network = without_contributions()
    one = sent(network, Contribution)[0]
    frame = decode_frame(one.payload)
    for length in (0, 1, 15, 16, len(frame.ciphertext) - 1):
        short = encode(msgspec.structs.replace(frame, ciphertext=frame.ciphertext[:length]))
        refused(network, one.to.id, one.sender, short, "contribution")


@pytest.mark.parametrize("kind", [Close, FrozenList, Answer, Progress, Hello, EpochKey, Receipt])
def test_attack_21_every_flipped_bit_of_every_other_message_is_noticed(kind: type) -> None:
    """Signed, sealed, or a MAC: one bit, and it is dropped; nothing has changed."""
    actors = TestFederation(4, 2)
    network = Network()
    network.tamper = losing(*([Answer, FrozenList, Close] if kind is not Progress else [Progress]), kind)
    actors.network(network)
    if kind in (FrozenList, Answer):
        network.tamper = losing(kind)
    begin(actors, network)
    one = sent(network, kind)[0]
    receiver = network._receivers(one.to)[0]
    for position in range(len(one.payload)):
        refused(network, receiver, one.sender, flipped(one.payload, position))


BOMBS = {
    "deep arrays": b"\x91" * 100_000 + b"\xc0",
    "deep maps": b"\x81\xa1a" * 50_000 + b"\xc0",
    "array of 2^32": b"\xdd\xff\xff\xff\xff",
    "map of 2^32": b"\xdf\xff\xff\xff\xff",
    "binary of 4 GB": b"\xc6\xff\xff\xff\xff",
    "text of 4 GB": b"\xdb\xff\xff\xff\xff",
    "extension": b"\xc7\x01\x05x",
    "timestamp": b"\xd6\xff\0\0\0\0",
    "reserved byte": b"\xc1",
    "empty": b"",
    "nil": b"\xc0",
    "text": b"\xa5hello",
    "map": b"\x81\xa1a\x01",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_attack_21_bombs_are_dropped_by_everyone(bomb: str) -> None:
    """Nothing is built from a length that a message claims, and depth has a limit."""
    actors = TestFederation(3, 2)
    network, _ = begin(actors)
    signed = encode(Signed(BOMBS[bomb], bytes(64)))
    for actor in (actors.trainer_identity.id, actors.computes[0], actors.clients[0]):
        for payload in (BOMBS[bomb], signed):
            refused(network, actor, actors.computes[1], payload, "malformed")


@pytest.mark.parametrize(
    "value",
    [
        msgpack.ExtType(5, b"x"), msgpack.Timestamp(1, 1), b"bytes", None, {"nested": {}}, [[[1]]], [None], [b""], [{}],
    ],
)  # fmt: skip
def test_attack_21_parameters_are_scalars_lists_and_tables_of_them(value: Any) -> None:
    """The one open place of all messages: no extension types, nothing deep, nothing binary."""
    network, _ = begin(TestFederation(3, 2))
    body = msgpack.unpackb(decode_frame(sent(network, Announcement)[0].payload).body)
    for allowed in (1, 1.5, "a", True, [1, "a"], [[1.0, 2.0], [3.0]], []):
        body[6] = {"name": allowed}
        decode_body(msgpack.packb(body))
    body[6] = {"name": value}
    with pytest.raises(PeerError, match="malformed"):
        decode_body(msgpack.packb(body))


# 24: messages moved elsewhere


def test_attack_24_a_contribution_moved_to_another_statistic_parameters_or_terms() -> None:
    """ah is in keys, tags and associated data: the same ciphertext under any other announcement does not open."""
    _, network = without_contributions()
    for change in ({"statistic": "mean"}, {"epsilon": 0.5}, {"fraction_bits": 22}, {"tolerate": 2}):
        other = exact_actors(4, 3)
        moved = other.network()
        moved.tamper = losing(Contribution)
        begin(other, moved, round_id=sent(network, Contribution)[0].round_id, **change)
        for one in sent(network, Contribution):
            for node in other.computes:
                moved.handle(node, Received(one.sender, one.payload))
                assert moved.actors[node]._rounds[one.round_id].kept == {}


def test_attack_24_and_51_messages_of_another_federation_file() -> None:
    """Every signature is bound to the file's hash: same keys, same round id, another name is another world."""
    here, there = exact_actors(4, 3), exact_actors(4, 3)
    there.federation = msgspec.structs.replace(there.federation, name="elsewhere")
    network, far = here.network(), there.network()
    round_id = bytes(range(16))
    begin(here, network, round_id=round_id)
    begin(there, far, round_id=round_id)
    fresh = resigned(there, there.trainer_identity, sent(far, Announcement)[0].payload, round_id=bytes(16))
    refused(network, here.clients[0], here.trainer_identity.id, fresh, "federation")
    lie = resigned(there, there.trainer_identity, fresh, federation_hash=here.federation.hash)
    refused(network, here.clients[0], here.trainer_identity.id, lie, "signature")
    for kind in (Announcement, Close, Answer, Hello, EpochKey):
        one = sent(far, kind)[-1]
        for receiver in network._receivers(one.to):
            dropped = dict(network.actors[receiver].dropped)
            network.handle(receiver, Received(one.sender, one.payload))
            assert network.actors[receiver].dropped != dropped, kind


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4, 6, 255])
def test_attack_24_version_downgrade_or_upgrade(version: int) -> None:
    """The version is in every signed frame and under its signature; only the one that is spoken here decodes."""
    actors = TestFederation(4, 3)
    network, _ = begin(actors)
    trainer, node, client = actors.trainer_identity, actors.compute_identities[0], actors.client_identities[0]
    for kind, receiver, sender in (
        (Announcement, actors.clients[0], trainer),
        (Close, actors.computes[0], trainer),
        (Answer, actors.computes[1], node),
        (Hello, actors.computes[0], client),
        (EpochKey, trainer.id, node),
        (Progress, trainer.id, node),
    ):
        frame = decode_frame(sent(network, kind)[0].payload)
        assert isinstance(frame, Signed)
        refused(network, receiver, sender.id, encode(msgspec.structs.replace(frame, version=version)), "version")
        if kind is not Hello:  # one that is lower than the known one is not even verified
            foreign = sender.sign(actors.federation.id, bytes([version]) + frame.body)
            refused(network, receiver, sender.id, encode(Signed(frame.body, foreign)), "signature")


def test_a_node_of_another_version_is_named_and_takes_part_once_it_speaks_this_one() -> None:
    """As while members are upgraded one after another to a release with another wire format."""
    actors = TestFederation(4, 3)
    late = actors.computes[0]

    def newer(envelope: Envelope) -> tuple[Envelope, ...]:
        frame = decode_frame(envelope.payload)
        if envelope.sender != late or not isinstance(frame, Signed):
            return (envelope,)
        envelope.payload = encode(msgspec.structs.replace(frame, version=PROTOCOL_VERSION + 1))
        return (envelope,)

    network = actors.network()
    network.tamper = newer
    network, _ = begin(actors, network)
    until_the_end(network)
    drops = [fact for fact in network.reported(Dropped, actors.trainer_identity.id) if fact.sender == late]
    assert {fact.code for fact in drops} == {"version"}
    assert f"a message of version {PROTOCOL_VERSION + 1}" in drops[0].detail
    assert f"version {PROTOCOL_VERSION}: all members" in drops[0].detail
    assert results(network) == []

    network.tamper = lambda envelope: (envelope,)
    network.restart(late)
    network.deliver()
    begin(actors, network)
    until_the_end(network)
    assert len(results(network)) == 1


# 46: senders, topics and packets of hostile shape


@pytest.mark.parametrize("sender", [b"", bytes(1), bytes(15), bytes(16), bytes(17), b"\xff" * 1000])
def test_attack_46_a_sender_of_any_shape_is_dropped_by_everyone(sender: bytes) -> None:
    """A sender's name is only a claim: its messages have no effect."""
    actors = TestFederation(4, 3)
    network = actors.network()
    network.tamper = losing(Close)
    begin(actors, network)
    replies = (Contribution, Hello, Close, Answer, Receipt, Announcement)
    for receiver in (actors.clients[0], actors.computes[0], actors.trainer_identity.id):
        for one in [each for kind in replies for each in sent(network, kind)[:1]]:
            actor = network.actors[receiver]
            actor.handle(Received(sender, one.payload), network.now_ms)
    network.tamper = lambda one: [one]
    until_the_end(network)
    assert len(results(network)) == 1


@pytest.mark.parametrize("claimed", ["", "00" * 15, "00" * 17, "ff" * 65536, "zz" * 16, "00" * 15 + "0"])
@pytest.mark.parametrize("channel", Channel)
def test_attack_46_a_topic_with_a_malformed_sender_reaches_no_actor(channel: Channel, claimed: str) -> None:
    topic = f"dca/{bytes(16).hex()}/{channel.value}/all/{claimed}"
    with pytest.raises(PeerError, match="topic") as raised:
        sender_of(topic)
    assert len(str(raised.value)) < 400


# Fuzz


@FUZZ
@given(st.binary(max_size=300))
def test_fuzz_decoding_gives_a_message_or_a_peer_error(data: bytes) -> None:
    for decode in (decode_frame, decode_body):
        with contextlib.suppress(PeerError):
            assert encode(decode(data)) == data


@pytest.fixture(scope="module")
def history() -> tuple[TestFederation, Network, list[tuple[bytes, bytes]]]:
    """A finished round, and everything that was sent in it."""
    actors = TestFederation(4, 3)
    network, _ = begin(actors)
    assert len(results(network)) == 1
    return actors, network, [(one.sender, one.payload) for one in network.sent]


@FUZZ
@given(st.data())
def test_fuzz_no_actor_fails_on_mutated_messages(history: Any, data: st.DataObject) -> None:
    """Anything may come from anyone to anyone: an actor answers, drops or ignores it, and raises nothing."""
    actors, network, messages = history
    sender, payload = data.draw(st.sampled_from(messages))
    mutated = bytearray(payload)
    for _ in range(data.draw(st.integers(0, 4))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(mutated)) | st.just(len(mutated)))
    actor = network.actors[data.draw(st.sampled_from(sorted(network.actors)))]
    ledgers = [network.actors[client].ledger.spent().mu for client in actors.clients]
    actor.handle(
        Received(data.draw(st.sampled_from(sorted(network.actors)) | st.just(sender)), bytes(mutated[:cut])),
        network.now_ms,
    )
    assert [network.actors[client].ledger.spent().mu for client in actors.clients] == ledgers


@pytest.mark.long
@FUZZ
@given(
    st.dictionaries(
        st.sampled_from(["columns", "centre", "scale", "bound", "edges", "intercept", "intercept_bound", "x"]),
        st.lists(st.floats() | st.sampled_from(["x", "y", ""]) | st.integers(-(2**63), 2**64 - 1), max_size=3)
        | st.floats() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=3),
    ),
    st.sampled_from(["sum", "mean", "second-moments", "regression", "histogram", "?"]),
    st.integers(0, 40), st.floats(), st.floats(), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_fuzz_a_signed_announcement_of_any_content_is_answered_or_dropped(
    history: Any, parameters: dict, statistic: str, bits: int, epsilon: float, delta: float, tolerate: int, rows: int
) -> None:
    actors, network, _ = history
    changes = {"parameters": parameters, "statistic": statistic, "fraction_bits": bits, "epsilon": epsilon,
               "delta": delta, "rows_max": rows, "round_id": bytes(16)}  # fmt: skip
    changes["tolerate"] = tolerate
    payload = resigned(actors, actors.trainer_identity, sent(network, Announcement)[0].payload, **changes)
    client = actors.client(0)
    before = snapshot(client)
    effects = client.handle(Received(actors.trainer_identity.id, payload), network.now_ms)
    assert effects
    if client.dropped:
        assert snapshot(client) == before
