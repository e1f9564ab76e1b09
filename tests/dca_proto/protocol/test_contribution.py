"""A contribution on its way: hedged randomness, keys that seal one message, sizes, and what a holder refuses."""

from __future__ import annotations

import hashlib
from typing import Any

import msgpack
import msgspec
import numpy as np
import pytest
from nacl import bindings
from numpy.typing import NDArray

import dca_proto.protocol.contribution as module
from dca_proto.crypto.sealing import Identity
from dca_proto.errors import PeerError
from dca_proto.privacy.mechanism import DistributedDiscreteGaussian, Mechanism
from dca_proto.protocol.contribution import (
    ClientMessage,
    contribution_id,
    hedged_root,
    make_contribution,
    noise_key,
    open_contribution,
)
from dca_proto.protocol.params import Limits
from dca_proto.protocol.wire.codec import decode_frame
from dca_proto.protocol.wire.messages import Contribution
from dca_proto.testing import NoNoise, TestFederation, seeded

CLIENT, OTHER = Identity(bytes(range(32))), Identity(bytes(range(1, 33)))
FRESH, HELLO, AH = (bytes((byte,)) * 32 for byte in b"fha")
KEYS = [bytes((index,)) * 32 for index in range(1, 11)]
HOLDER, ROUND = b"h" * 16, b"r" * 16


def made(
    value: NDArray[np.int64] | None = None, *, nodes: int = 3, mechanism: Mechanism | None = None, **changes: Any
) -> ClientMessage:
    """A contribution of which all but what is changed stays the same, randomness too."""
    value = np.arange(3, dtype=np.int64) if value is None else value
    mechanism = mechanism or DistributedDiscreteGaussian()
    actors = TestFederation(6, 2, mechanism=mechanism)
    parameters = {"columns": ["x"], "edges": [float(edge) for edge in range(value.size + 1)]}
    request = actors.request(statistic="histogram", parameters=parameters)
    _, validated = request.draft(mechanism, Limits())
    fresh = changes.pop("fresh", FRESH)
    plain = {
        "identity": CLIENT, "hello": HELLO, "round_id": ROUND, "announcement_hash": AH, "charge": 7, "holder": HOLDER,
        "holder_key": KEYS[1], "pair_keys": KEYS[:nodes], "random": lambda size: fresh[:size],
    }  # fmt: skip
    return make_contribution(value, validated=validated, mechanism=mechanism, **{**plain, **changes})


def opened(out: ClientMessage, nodes: int = 3, dimension: int = 3, **changes: Any) -> module.HeldContribution:
    """As its holder opens it."""
    message = changes.pop("message", decode_frame(out.payload))
    plain = {"pair_key": KEYS[1], "announcement_hash": AH, "client": CLIENT.id, "holder": HOLDER}
    return open_contribution(message, nodes=nodes, vector_bytes=8 * dimension, **{**plain, **changes})[0]


def words_of(data: bytes) -> list[int]:
    return [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]


# Hedged randomness (DESIGN §2.6)


CHANGES: dict[str, Any] = {
    "fresh randomness": {"fresh": bytes(32)},
    "session": {"hello": bytes(32)},
    "announcement": {"announcement_hash": bytes(32)},
    "charge number": {"charge": 8},
    "identity": {"identity": OTHER},
    "value": {"value": np.array([0, 1, 3], dtype=np.int64)},
}


def test_the_same_input_with_the_same_randomness_is_the_same_message() -> None:
    """What a random generator that was restored with a snapshot would make again tells nobody more."""
    assert made() == made()


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_any_other_input_has_another_id_noise_and_masks_although_the_randomness_repeats(change: Any) -> None:
    one, other = made(), made(**change)
    about = {name: value for name, value in change.items() if name == "announcement_hash"}
    client = change.get("identity", CLIENT).id
    here, there = opened(one), opened(other, client=client, **about)
    assert one.contribution != other.contribution
    assert all(a != b for a, b in zip(words_of(here.tags), words_of(there.tags), strict=True))
    assert all(a != b for a, b in zip(words_of(here.y), words_of(there.y), strict=True))
    without, again = made(mechanism=NoNoise()), made(**{**change, "mechanism": NoNoise()})
    value = np.asarray(change.get("value", np.arange(3)))
    shift = [(b - a) % 2**64 for a, b in zip(range(3), value.tolist(), strict=True)]
    masks = [
        words_of(opened(out, client=who, **of).y) for out, who, of in ((without, CLIENT.id, {}), (again, client, about))
    ]
    assert all((b - a - s) % 2**64 for a, b, s in zip(*masks, shift, strict=True)), "the masks differ, too"


@pytest.mark.parametrize("dimension", [1, 8100, 8192, 20_000])
def test_the_root_depends_on_every_part_of_short_and_long_values(dimension: int) -> None:
    """Above 64 KiB the value is hashed first; its last word still counts."""
    value = np.arange(dimension, dtype=np.int64)
    parts: list[Any] = [FRESH, HELLO, AH, 7, value]
    roots = {hedged_root(CLIENT, *parts), hedged_root(OTHER, *parts)}
    for place in range(5):
        changed = list(parts)
        changed[place] = (
            8 if place == 3 else bytes(32) if place < 3 else value + (np.arange(dimension) == dimension - 1)
        )
        roots.add(hedged_root(CLIENT, *changed))
    assert len(roots) == 7
    assert {len(root) for root in roots} == {32}
    derived = [part for root in roots for part in (root, noise_key(root), contribution_id(root))]
    assert len({part[:16] for part in derived}) == 21, "nor do they share a beginning"


def test_the_noise_is_that_of_the_roots_key_and_the_masks_cancel_it_not() -> None:
    """By hand, in Python's integers: y plus all masks is x plus the noise of the hedged key."""
    kept = opened(made())
    entry = CLIENT.id + kept.contribution + (7).to_bytes(4, "little")
    pads = [hashlib.shake_128(key + b"dca5-mask" + AH + entry).digest(32) for key in KEYS[:3]]
    assert kept.entry == entry
    assert kept.tags == b"".join(pad[:8] for pad in pads)
    root = hedged_root(CLIENT, FRESH, HELLO, AH, 7, np.arange(3, dtype=np.int64))
    assert contribution_id(root) == kept.contribution
    request = TestFederation(6, 2).request(
        statistic="histogram", parameters={"columns": ["x"], "edges": [0.0, 1.0, 2.0, 3.0]}
    )
    _, validated = request.draft(DistributedDiscreteGaussian(), Limits())
    noise = DistributedDiscreteGaussian().sample(validated.noise_variance, 3, noise_key(root)).tolist()
    back = [sum(column) % 2**64 for column in zip(words_of(kept.y), *(words_of(pad[8:]) for pad in pads), strict=True)]
    assert back == [(x + eta) % 2**64 for x, eta in zip(range(3), noise, strict=True)]


def test_a_sealing_key_seals_one_message_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nonce is always zero: over all clients, rounds and repeated randomness a key has one plaintext."""
    seen: dict[bytes, set[tuple[bytes, bytes, bytes]]] = {}
    encrypt = module.encrypt

    def recorded(key: bytes, nonce: bytes, plaintext: bytes, associated: bytes) -> bytes:
        seen.setdefault(key, set()).add((nonce, plaintext, associated))
        return encrypt(key, nonce, plaintext, associated)

    monkeypatch.setattr(module, "encrypt", recorded)
    for change in [{}, *CHANGES.values()]:
        for fresh in (FRESH, b"\1" * 32):
            made(**{"fresh": fresh, **change})
            made(**{"fresh": fresh, **change})
    assert len(seen) == 13, "the change of randomness aside, each in two"
    assert {len(messages) for messages in seen.values()} == {1}
    assert {nonce for messages in seen.values() for nonce, _, _ in messages} == {bytes(24)}


# Sizes


@pytest.mark.parametrize(
    ("nodes", "dimension", "most"), [(2, 1, 96), (3, 10, 171), (10, 10, 227), (10, 10_000, 80_151)]
)
def test_a_message_is_as_long_as_its_parts(nodes: int, dimension: int, most: int) -> None:
    """4 bytes of the charge's number, 8 for each node and coordinate, 16 of the AEAD; around it two ids and a frame."""
    out = made(np.zeros(dimension, dtype=np.int64), nodes=nodes)
    body = 4 + 8 * nodes + 8 * dimension + 16
    assert body + 38 <= len(out.payload) <= body + 38 + 5
    assert len(out.payload) <= most
    assert len(msgpack.unpackb(out.payload)[3]) == body


def test_neither_the_charge_nor_the_vector_shows() -> None:
    one, other = (decode_frame(made(charge=charge).payload) for charge in (1, 2**32 - 1))
    assert isinstance(one, Contribution)
    assert isinstance(other, Contribution)
    assert len(one.ciphertext) == len(other.ciphertext)
    assert "bytes>" in repr(made())
    assert made().payload.hex() not in repr(made())


# At the holder


def test_a_holder_gets_what_was_sent() -> None:
    kept = opened(made())
    assert (kept.charge, kept.contribution) == (7, made().contribution)
    assert (len(kept.entry), len(kept.tags), len(kept.y)) == (36, 24, 24)
    own = hashlib.blake2b(AH + kept.contribution, key=KEYS[1], digest_size=64, person=b"dca5-one").digest()
    assert (made().receipt, made().late) == (own[32:48], own[48:])


@pytest.mark.parametrize(
    "change",
    [{"pair_key": KEYS[0]}, {"announcement_hash": bytes(32)}, {"client": OTHER.id}, {"holder": bytes(16)}],
    ids=lambda change: next(iter(change)),
)
def test_a_contribution_opens_for_its_client_holder_round_and_session_only(change: dict[str, bytes]) -> None:
    with pytest.raises(PeerError, match="ciphertext"):
        opened(made(), **change)


def test_every_byte_that_is_changed_is_noticed() -> None:
    message = decode_frame(made().payload)
    assert isinstance(message, Contribution)
    for field in ("contribution", "ciphertext"):
        data = getattr(message, field)
        for at in range(len(data)):
            bad = data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]
            with pytest.raises(PeerError, match="ciphertext"):
                opened(made(), message=msgspec.structs.replace(message, **{field: bad}))


@pytest.mark.parametrize(("nodes", "dimension"), [(2, 3), (4, 3), (3, 2), (3, 4), (2, 5)])
def test_a_contribution_of_another_size_is_refused_before_it_is_opened(nodes: int, dimension: int) -> None:
    """The announcement fixes the number of nodes and of coordinates, and so the size."""
    with pytest.raises(PeerError, match="contribution: found 68 bytes"):
        opened(made(), nodes=nodes, dimension=dimension)


def test_charge_number_0_is_refused() -> None:
    """No ledger has it. A client would have to seal it itself."""
    contribution, plaintext = bytes(16), bytes(4 + 24 + 24)
    key = hashlib.blake2b(AH + contribution, key=KEYS[1], digest_size=64, person=b"dca5-one").digest()[:32]
    associated = AH + CLIENT.id + HOLDER + contribution
    for charge, refused in ((0, True), (1, False)):
        text = charge.to_bytes(4, "little") + plaintext[4:]
        sealed = bindings.crypto_aead_xchacha20poly1305_ietf_encrypt(text, associated, bytes(24), key)
        message = Contribution(ROUND, contribution, sealed)
        if refused:
            with pytest.raises(PeerError, match="charge number 0"):
                opened(made(), message=message)
        else:
            assert opened(made(), message=message).charge == 1


def test_each_call_asks_for_randomness_once_and_for_32_bytes() -> None:
    asked: list[int] = []
    random = seeded("contribution")

    def counted(size: int) -> bytes:
        asked.append(size)
        return random(size)

    assert made(random=counted).contribution != made(random=counted).contribution
    assert asked == [32, 32]
