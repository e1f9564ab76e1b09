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
from scene import (
    announced,
    begin,
    body_of,
    exact_cast,
    flipped,
    losing,
    refused,
    resigned,
    results,
    sealed_kind,
    sent,
    snapshot,
    the_sum,
)

from dca_proto.core.codec import decode_body, decode_frame, encode
from dca_proto.core.errors import PeerError
from dca_proto.core.events import Received
from dca_proto.core.messages import Announcement, Join, Share, Signed, Start
from dca_proto.core.round import session_hash
from dca_proto.core.sealing import encrypt
from dca_proto.core.upload import associated_data, plaintext, round_key
from dca_proto.testing import Cast, Network

FUZZ = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def without_shares(clients: int = 4, **changes: Any) -> tuple[Cast, Network]:
    """A round whose Compute nodes wait for shares that were all made and all lost."""
    cast = exact_cast(clients, 3)
    network = cast.network()
    network.tamper = losing(Share)
    begin(cast, network, **changes)
    return cast, network


# 20: values


@pytest.mark.parametrize(
    ("row", "counts_as"),
    [(1e300, 1.0), (-1e300, -1.0), (np.nan, 0.0), (np.inf, 0.0), (-np.inf, 0.0), (-0.0, 0.0), (5e-324, 0.0)],
)
def test_attack_20_values_out_of_range_are_clamped_and_missing_ones_are_zero(row: float, counts_as: float) -> None:
    """The client clamps to the announced bounds before anything else, and takes part whatever its rows hold."""
    rows = [np.array([[row]]), *(np.array([[0.25]]) for _ in range(3))]
    network, _ = begin(exact_cast(4, 3, rows=rows))
    assert the_sum(network).tolist() == [counts_as + 0.75]


@pytest.mark.parametrize("rows", [np.zeros((0, 1)), np.zeros((1, 1), dtype=np.float32), np.zeros((3, 1), dtype=int)])
def test_attack_20_no_rows_and_other_dtypes_contribute_zero_like_any_other(rows: np.ndarray) -> None:
    network, _ = begin(exact_cast(4, 3, rows=[rows, *(np.array([[0.25]]) for _ in range(3))]))
    assert the_sum(network).tolist() == [0.75]


def sealed_share(cast: Cast, network: Network, node: int, body: bytes, client: int = 0, charge: int = 1) -> bytes:
    """A body and a charge number of that client's choice, rightly encrypted for that node."""
    return sealed_plaintext(cast, network, node, plaintext(charge, body), client)


def sealed_plaintext(cast: Cast, network: Network, node: int, hidden: bytes, client: int = 0) -> bytes:
    opened = announced(network, cast)
    session = session_hash(body_of(sent(network, Start)[0].payload).terms)
    actor = network.actors[cast.clients[client]]
    pair_key = actor._keys.agree(actor._keys.epoch, opened.epochs[node].public)
    identity = bytes(range(16))
    key = round_key(pair_key, session, actor.id, opened.computes[node], identity)
    bound = associated_data(session, sorted(cast.clients).index(actor.id), identity)
    ciphertext = encrypt(key, bytes(24), hidden, bound)
    return encode(Share(opened.body.round_id, identity, bytes(24), ciphertext))


@pytest.mark.parametrize("encoding", ["seed", "vector"])
@pytest.mark.parametrize("length", [0, 1, 7, 9, 16, 31, 33, 64, 1000])
def test_attack_20_a_share_of_the_wrong_length_is_refused(encoding: str, length: int) -> None:
    """The length is the exact one for this client, node and encoding. Every 64-bit word is a ring element."""
    cast, network = without_shares(encoding=encoding)
    for node, compute in enumerate(cast.computes):
        payload = sealed_share(cast, network, node, bytes(length))
        refused(network, compute, cast.clients[0], payload, "share")


def test_attack_20_a_charge_number_of_zero_or_cut_short_is_refused() -> None:
    cast, network = without_shares()
    for node, compute in enumerate(cast.computes):
        for length in (8, 32):
            payload = sealed_share(cast, network, node, bytes(length), charge=0)
            refused(network, compute, cast.clients[0], payload, "share")
        for hidden in (b"", b"\1", b"\1\0\0", b"\1\0\0\0"):
            refused(network, compute, cast.clients[0], sealed_plaintext(cast, network, node, hidden), "share")


def test_attack_20_a_seed_where_the_vector_belongs_and_the_other_way_round() -> None:
    cast, network = without_shares()
    lengths = []
    for node, compute in enumerate(cast.computes):
        kept = [
            length
            for length in (8, 32)
            if network.actors[compute].handle(
                Received(cast.clients[0], sealed_share(cast, network, node, bytes(length))), network.now_ms
            )
            and network.actors[compute]._rounds[announced(network, cast).body.round_id].shares
        ]
        lengths.append(kept[0])
    assert sorted(lengths) == [8, 32, 32], "one node gets the full vector of one word, two get seeds"


def test_attack_20_extreme_words_are_ring_elements_like_any_other() -> None:
    cast, network = without_shares()
    for node, compute in enumerate(cast.computes):
        for body in (b"\xff" * 8, b"\xff" * 32):
            payload = sealed_share(cast, network, node, body)
            network.actors[compute].handle(Received(cast.clients[0], payload), network.now_ms)
        assert sum(network.actors[compute].dropped.values()) <= 1


# 21: ciphertexts and encodings


def test_attack_21_every_flipped_bit_of_a_share_is_noticed() -> None:
    _, network = without_shares()
    share = sent(network, Share)[0]
    for position in range(len(share.payload)):
        refused(network, share.to.id, share.sender, flipped(share.payload, position))


def test_attack_21_every_truncation_and_any_tail_is_noticed() -> None:
    _, network = without_shares()
    share = sent(network, Share)[0]
    for length in range(len(share.payload)):
        refused(network, share.to.id, share.sender, share.payload[:length], "malformed")
    for tail in (b"\0", b"\xc0", share.payload):
        refused(network, share.to.id, share.sender, share.payload + tail, "malformed")


def test_attack_21_a_shorter_ciphertext_in_a_well_formed_frame() -> None:
    _, network = without_shares()
    share = sent(network, Share)[0]
    frame = decode_frame(share.payload)
    for length in (0, 1, 15, 16, len(frame.ciphertext) - 1):
        short = encode(msgspec.structs.replace(frame, ciphertext=frame.ciphertext[:length]))
        refused(network, share.to.id, share.sender, short, "ciphertext")


def test_attack_21_every_flipped_bit_of_signed_and_sealed_messages_is_noticed() -> None:
    cast = Cast(4, 2)
    network = cast.network()
    network.tamper = losing(Start)
    begin(cast, network)
    trainer, victim = cast.trainer_identity.id, cast.clients[0]
    start = sent(network, Start, to=victim)[0]
    for position in range(len(start.payload)):
        refused(network, victim, trainer, flipped(start.payload, position))
    (join,) = [one for one in network.sent if one.sender == victim and sealed_kind(network, cast, one.payload) is Join]
    for position in range(len(join.payload)):
        refused(network, trainer, victim, flipped(join.payload, position))


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
    cast = Cast(3, 2)
    network, _ = begin(cast)
    signed = encode(Signed(BOMBS[bomb], bytes(64)))
    for actor in (cast.trainer_identity.id, cast.computes[0], cast.clients[0]):
        for payload in (BOMBS[bomb], signed):
            refused(network, actor, cast.computes[1], payload, "malformed")


@pytest.mark.parametrize(
    "value",
    [
        msgpack.ExtType(5, b"x"), msgpack.Timestamp(1, 1), b"bytes", None, {"nested": {}}, [[[1]]], [None], [b""], [{}],
    ],
)  # fmt: skip
def test_attack_21_parameters_are_scalars_lists_and_tables_of_them(value: Any) -> None:
    """The one open place of all messages: no extension types, nothing deep, nothing binary."""
    network, _ = begin(Cast(3, 2))
    body = msgpack.unpackb(decode_frame(sent(network, Announcement)[0].payload).body)
    for allowed in (1, 1.5, "a", True, [1, "a"], [[1.0, 2.0], [3.0]], []):
        body[5] = {"name": allowed}
        decode_body(msgpack.packb(body))
    body[5] = {"name": value}
    with pytest.raises(PeerError, match="malformed"):
        decode_body(msgpack.packb(body))


# 24: messages moved elsewhere


def test_attack_24_a_share_moved_to_another_statistic_parameters_or_trainer_key() -> None:
    """The announcement's hash is in the session: the same ciphertext under any other announcement does not open."""
    cast, network = without_shares()
    share = sent(network, Share)[0]
    second, _ = without_shares()
    for change in ({"statistic": "mean"}, {"epsilon": 0.5}, {"fraction_bits": 22}, {"encoding": "vector"}):
        other = exact_cast(4, 3)
        moved = other.network()
        moved.tamper = losing(Share)
        begin(other, moved, round_id=share.round_id, **change)
        refused(moved, share.to.id, share.sender, share.payload, "ciphertext")
    assert second.computes == cast.computes


def test_attack_24_messages_of_another_federation() -> None:
    """Every signature is bound to the federation's hash: same keys, same round id, another name is another world."""
    here, there = exact_cast(4, 3), exact_cast(4, 3)
    there.federation = msgspec.structs.replace(there.federation, name="elsewhere")
    network, far = here.network(), there.network()
    network.tamper = losing(Start)
    far.tamper = losing(Start)
    round_id = bytes(range(16))
    begin(here, network, round_id=round_id)
    begin(there, far, round_id=round_id)
    for one in far.sent:
        body = body_of(one.payload)
        if isinstance(body, Start):
            refused(network, one.to.id, one.sender, one.payload, "signature")
    fresh = resigned_there(there, far, round_id=bytes(16))
    refused(network, here.clients[0], here.trainer_identity.id, fresh, "signature")


def resigned_there(cast: Cast, network: Network, **changes: Any) -> bytes:
    return resigned(cast, cast.trainer_identity, sent(network, Announcement)[0].payload, **changes)


@pytest.mark.parametrize("version", [0, 1, 2, 4, 255])
def test_attack_24_version_downgrade_or_upgrade(version: int) -> None:
    """The version is in every signed body, and only the one that is spoken here decodes."""
    cast = Cast(4, 3)
    network, _ = begin(cast)
    for kind, receiver, sender in (
        (Announcement, cast.clients[0], cast.trainer_identity),
        (Start, cast.clients[0], cast.trainer_identity),
    ):
        payload = resigned(cast, sender, sent(network, kind)[0].payload, version=version)
        refused(network, receiver, sender.id, payload, "malformed")


def test_attack_24_a_start_of_another_round() -> None:
    cast = Cast(4, 3)
    network = cast.network()
    network.tamper = losing(Start)
    begin(cast, network)
    begin(cast, network)
    first, second = (
        next(one for one in sent(network, Start, to=cast.clients[0]) if one.round_id == round_id)
        for round_id in dict.fromkeys(one.round_id for one in sent(network, Start))
    )
    moved = resigned(cast, cast.trainer_identity, first.payload, round_id=second.round_id)
    refused(network, cast.clients[0], first.sender, moved, "announcement")


# Fuzz


@FUZZ
@given(st.binary(max_size=300))
def test_fuzz_decoding_gives_a_message_or_a_peer_error(data: bytes) -> None:
    for decode in (decode_frame, decode_body):
        with contextlib.suppress(PeerError):
            assert encode(decode(data)) == data


@pytest.fixture(scope="module")
def history() -> tuple[Cast, Network, list[tuple[bytes, bytes]]]:
    """A finished round, and everything that was sent in it."""
    cast = Cast(4, 3)
    network, _ = begin(cast)
    assert len(results(network)) == 1
    return cast, network, [(one.sender, one.payload) for one in network.sent]


@FUZZ
@given(st.data())
def test_fuzz_no_actor_fails_on_mutated_messages(history: Any, data: st.DataObject) -> None:
    """Anything may come from anyone to anyone: an actor answers, drops or ignores it, and raises nothing."""
    cast, network, messages = history
    sender, payload = data.draw(st.sampled_from(messages))
    mutated = bytearray(payload)
    for _ in range(data.draw(st.integers(0, 4))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(mutated)) | st.just(len(mutated)))
    actor = network.actors[data.draw(st.sampled_from(sorted(network.actors)))]
    ledgers = [network.actors[client].ledger.spent().mu for client in cast.clients]
    actor.handle(
        Received(data.draw(st.sampled_from(sorted(network.actors)) | st.just(sender)), bytes(mutated[:cut])),
        network.now_ms,
    )
    assert [network.actors[client].ledger.spent().mu for client in cast.clients] == ledgers


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
    history: Any, parameters: dict, statistic: str, bits: int, epsilon: float, delta: float, tolerated: int, rows: int
) -> None:
    cast, network, _ = history
    changes = {"parameters": parameters, "statistic": statistic, "fraction_bits": bits, "epsilon": epsilon,
               "delta": delta, "tolerated": tolerated, "rows_max": rows, "round_id": bytes(16)}  # fmt: skip
    payload = resigned(cast, cast.trainer_identity, sent(network, Announcement)[0].payload, **changes)
    client = cast.client(0)
    before = snapshot(client)
    effects = client.handle(Received(cast.trainer_identity.id, payload), network.now_ms)
    assert effects
    if client.dropped:
        assert snapshot(client) == before
