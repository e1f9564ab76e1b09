"""Cryptography: what opens, what does not, and against published test vectors."""

from __future__ import annotations

import functools
import hashlib

import pytest

from dca_proto.crypto import labels
from dca_proto.crypto.sealing import (
    KEY_BYTES,
    AgreementKey,
    Identity,
    actor_id,
    check_public,
    decrypt,
    derive,
    digest,
    encrypt,
    expand,
    expand_rows,
    open_sealed,
    seal_to,
    verify,
)
from dca_proto.errors import PeerError, UsageError
from dca_proto.testing import seeded

A, B = AgreementKey(bytes(range(32))), AgreementKey(bytes(range(32, 64)))
LOW_ORDER = (
    bytes(32),
    b"\x01" + bytes(31),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    bytes.fromhex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
    bytes.fromhex("edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
    bytes.fromhex("eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
)


def test_ed25519_of_rfc_8032() -> None:
    """Section 7.1, test 1: the public key of that seed."""
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    public = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    identity = Identity(seed)
    assert identity.public_key.hex() == public
    assert identity.seed == seed


def test_x25519_of_rfc_7748() -> None:
    """Section 6.1: Bob's public key, and one shared secret whoever computes it."""
    bob = AgreementKey(bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"))
    assert bob.public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    assert A.agree(labels.REPLY, bob.public) == bob.agree(labels.REPLY, A.public)


def test_xchacha20_poly1305_of_the_draft() -> None:
    """draft-irtf-cfrg-xchacha-03, appendix A.3.1."""
    plaintext = (
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen "
        b"would be it."
    )
    key, nonce = bytes(range(0x80, 0xA0)), bytes(range(0x40, 0x58))
    associated = bytes.fromhex("50515253c0c1c2c3c4c5c6c7")
    sealed = encrypt(key, nonce, plaintext, associated)
    assert sealed[:16].hex() == "bd6d179d3e83d43b9576579493c0e939"
    assert sealed[-16:].hex() == "c0875924c1c7987947deafd8780acf49"
    assert decrypt(key, nonce, sealed, associated) == plaintext


def test_an_agreement_is_of_the_pair_and_of_both_public_keys() -> None:
    assert A.agree(labels.REPLY, B.public) == B.agree(labels.REPLY, A.public)
    assert A.agree(labels.REPLY, B.public) != A.agree(labels.REPLY, A.public)


@pytest.mark.parametrize("public", LOW_ORDER, ids=lambda public: public[:2].hex())
def test_points_of_low_order_are_refused(public: bytes) -> None:
    """They would make the shared secret one that anybody knows."""
    for check in (functools.partial(A.agree, labels.REPLY), check_public):
        with pytest.raises(PeerError, match="low order"):
            check(public)


def test_good_keys_pass_the_check() -> None:
    check_public(A.public)
    check_public(B.public)


def test_digests_keep_their_parts_apart() -> None:
    parts = [(b"ab", b"c"), (b"a", b"bc"), (b"abc",), (b"abc", b""), (b"", b"abc")]
    assert len({digest(b"person", *one) for one in parts}) == len(parts)
    assert digest(b"person", b"a") != digest(b"another", b"a")


def test_derived_keys_differ_by_key_purpose_and_message() -> None:
    keys = {derive(key, person, message) for key in (bytes(32), b"k" * 32) for person in (b"a", b"b")
            for message in (b"", b"x")}  # fmt: skip
    assert len(keys) == 8
    assert derive(bytes(32), b"a", size=16) != derive(bytes(32), b"a")[:16]


def test_an_id_is_a_hash_of_the_public_key() -> None:
    public = Identity(bytes(32)).public_key
    assert actor_id(public) == hashlib.blake2b(public, digest_size=16, person=b"dca5-id").digest()


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_an_identity_needs_32_bytes(size: int) -> None:
    with pytest.raises(UsageError, match=f"needs 32 secret bytes, found {size}"):
        Identity(bytes(size))


def test_a_signature_is_bound_to_key_federation_and_body() -> None:
    one, other = Identity(bytes(32)), Identity(b"\1" * 32)
    signature = one.sign(bytes(32), b"body")
    verify(one.public_key, bytes(32), b"body", signature)
    for key, federation, body, made in (
        (other.public_key, bytes(32), b"body", signature),
        (one.public_key, b"\1" * 32, b"body", signature),
        (one.public_key, bytes(32), b"bodY", signature),
        (one.public_key, bytes(32), b"body", signature[:-1] + bytes((signature[-1] ^ 1,))),
        (one.public_key, bytes(32), b"body", bytes(64)),
        (bytes(32), bytes(32), b"body", signature),
    ):
        with pytest.raises(PeerError, match="signature"):
            verify(key, federation, body, made)


def test_every_flipped_bit_of_a_ciphertext_is_noticed() -> None:
    sealed = encrypt(bytes(32), bytes(24), b"text", b"data")
    for position in range(len(sealed)):
        for bit in range(8):
            bad = sealed[:position] + bytes((sealed[position] ^ (1 << bit),)) + sealed[position + 1 :]
            with pytest.raises(PeerError, match="ciphertext"):
                decrypt(bytes(32), bytes(24), bad, b"data")


@pytest.mark.parametrize("length", range(17))
def test_a_ciphertext_too_short_is_a_peers_error(length: int) -> None:
    with pytest.raises(PeerError, match="ciphertext"):
        decrypt(bytes(32), bytes(24), bytes(length), b"")


def test_sealed_messages_open_for_their_receiver_and_context_only() -> None:
    sealed = seal_to(labels.REPLY, B.public, b"text", b"round", seeded("sealing"))
    assert open_sealed(labels.REPLY, B, *sealed, b"round") == b"text"
    for label, key, context in (
        (labels.REPLY, A, b"round"),
        (labels.REPLY, B, b"another"),
        (labels.PEER_LIST, B, b"round"),
    ):
        with pytest.raises(PeerError, match="ciphertext"):
            open_sealed(label, key, *sealed, context)
    again = seal_to(labels.REPLY, B.public, b"text", b"round", seeded("another"))
    assert not set(sealed) & set(again), "each is sealed from a fresh key with a fresh nonce"


def test_expansion_is_chacha20_and_a_longer_one_goes_on() -> None:
    assert expand(bytes(32), 1000)[:64] == expand(bytes(32), 64)
    assert expand(bytes(32), 64) != expand(b"\1" + bytes(31), 64)
    assert len(expand(bytes(32), 10_000)) == 10_000


def test_rows_are_expanded_one_by_one_and_fill_their_buffer() -> None:
    seeds, buffer = [bytes(32), b"\1" + bytes(31), bytes(range(32))], bytearray(3 * 70)
    expand_rows(memoryview(buffer), seeds)
    assert bytes(buffer) == b"".join(expand(seed, 70) for seed in seeds)
    for wrong, size in ((seeds, 211), ([seeds[0], bytes(31)], 140), ([], 1)):
        with pytest.raises(ValueError, match=f"{size} bytes, from {len(wrong)} seeds"):
            expand_rows(memoryview(bytearray(size)), wrong)


def test_repr_shows_public_parts_only() -> None:
    secret = bytes(range(100, 132))
    for held in (Identity(secret), AgreementKey(secret)):
        assert secret.hex() not in repr(held)
        assert repr(secret) not in repr(held)
    assert KEY_BYTES == 32
