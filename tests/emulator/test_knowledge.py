"""What others can learn: a secret, or a part of it, in a text of theirs, or derived from what they have."""

from __future__ import annotations

import hashlib

import pytest

from emulator import derivations
from emulator.knowledge import EVERYBODY, Knowledge, Members

A, B, C = (bytes([number]) * 16 for number in (1, 2, 3))
KEY = bytes(range(100, 132))
AH, ID = bytes(range(32)), bytes(range(16))


def knowing(*owners: bytes) -> Knowledge:
    knowledge = Knowledge()
    knowledge.keep(KEY, "a key", "A", *owners)
    return knowledge


def leaks(text: bytes, readers: Members = EVERYBODY, *, owners: tuple[bytes, ...] = (A,)) -> list[str]:
    knowledge = knowing(*owners)
    knowledge.hear(b"before", EVERYBODY, "another")
    knowledge.hear(text, readers, "a text")
    knowledge.hear(b"behind it", EVERYBODY, "another")
    return [str(leak) for leak in knowledge.in_texts()]


@pytest.mark.parametrize("text", [
    KEY, b"x" + KEY, b"xyz" + KEY[:8], KEY[8:16] + b"x", KEY[17:], KEY[:-1], f"key {KEY.hex()}".encode(),
    KEY[:8].hex().encode(),
])  # fmt: skip
def test_a_word_of_a_secret_in_a_text_is_a_leak(text: bytes) -> None:
    assert "a key of A is known to others: it stands in a text" in leaks(text)


@pytest.mark.parametrize("text", [b"", KEY[:7], KEY[1:15], KEY[::-1], bytes(100), KEY.hex()[:14].encode()])
def test_less_than_a_word_is_none(text: bytes) -> None:
    assert leaks(text) == []


def test_words_that_only_meet_where_two_texts_do_are_none() -> None:
    knowledge = knowing(A)
    knowledge.hear(b"12345678" + KEY[:5], EVERYBODY, "one")
    knowledge.hear(KEY[5:8] + b"12345678", EVERYBODY, "the next")
    assert list(knowledge.in_texts()) == []


def test_owners_may_read_their_secret_and_nobody_else() -> None:
    assert leaks(KEY, frozenset((A, B)), owners=(A, B)) == []
    assert leaks(KEY, frozenset((A,)), owners=(A, B)) == []
    assert leaks(KEY, frozenset((A, C)), owners=(A, B))
    assert leaks(KEY, EVERYBODY, owners=(A, B))


def test_a_text_that_is_heard_again_has_the_readers_of_both() -> None:
    for second in (frozenset((C,)), EVERYBODY):
        knowledge = knowing(A)
        assert knowledge.hear(KEY, frozenset((A,)), "a text")
        assert not list(knowledge.in_texts())
        assert not knowledge.hear(KEY, second, "a text")
        assert list(knowledge.in_texts())


def test_two_secrets_are_never_equal() -> None:
    knowledge = knowing(A)
    assert knowledge.keep(KEY, "a key", "A", A) is None, "the same once more"
    other = knowledge.keep(KEY, "a mask", "A and B", A, B)
    assert other is not None
    assert other.what == "a key"


def test_what_others_can_derive_with_the_labels_of_the_design() -> None:
    seed = bytes(range(50, 82))
    for secret in (
        derivations.derive(seed, "noise"),
        derivations.derive(derivations.derive(seed, "hedge"), "epoch"),
        derivations.derive(seed, "one", AH + ID, 64)[:32],
        derivations.tag_and_mask(seed, AH, ID, 2)[8:],
        derivations.digest("reply", seed),
        derivations.plain_hash("id", seed)[:32],
        hashlib.blake2b(seed, digest_size=32).digest(),
        hashlib.sha256(seed).digest(),
    ):
        knowledge = Knowledge()
        knowledge.keep(secret, "a key", "A", A)
        assert list(knowledge.derived(seed, EVERYBODY, "a field", [AH + ID])), secret.hex()
        assert list(knowledge.derived(seed, frozenset((C,)), "a field", [AH + ID]))
        assert not list(knowledge.derived(seed, frozenset((A,)), "its own", [AH + ID]))
        assert not list(knowledge.derived(bytes(32), EVERYBODY, "another", [AH + ID]))


def test_a_hash_of_public_values_is_no_secret() -> None:
    for joined in (AH, ID + AH, AH + b"1234" + ID):
        knowledge = Knowledge()
        knowledge.keep(hashlib.blake2b(joined, digest_size=32).digest(), "a key", "A", A)
        assert list(knowledge.combined([AH, b"1234", ID]))
        assert not list(knowledge.combined([AH[:31], b"1234", ID[:15]]))


def test_nothing_is_found_where_nothing_is_known() -> None:
    empty = Knowledge()
    assert list(empty.in_texts()) == []
    empty.hear(KEY, EVERYBODY, "a text")
    assert list(empty.in_texts()) == []
    assert len(empty) == 0
    assert KEY in empty
