"""Masks cancel and tags prove them; any M - 1 masks say nothing. Each pad is worked out here by hashlib alone."""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl.bindings import randombytes_buf_deterministic

from dca_proto.crypto.masks import (
    ENTRY_BYTES,
    ask_tag,
    check_and_sum,
    contribution_keys,
    entry_of,
    holder_index,
    holder_indices,
    masked,
    sum_words,
    tag_and_mask,
)

AH, CLIENT, CONTRIBUTION = bytes(range(32)), bytes(16), bytes(range(16))
ENTRY = entry_of(CLIENT, CONTRIBUTION, 7)
KEYS = [bytes((index,)) * 32 for index in range(1, 65)]
WORDS = st.integers(0, 2**64 - 1)


def pad_by_hand(key: bytes, entry: bytes, dimension: int) -> tuple[bytes, list[int]]:
    """A tag and a mask, as Python integers."""
    sponge, size = hashlib.shake_128(key + b"dca5-mask" + AH + entry), 8 + 8 * dimension
    if size <= 1024:
        pad = sponge.digest(size)
    else:
        head = sponge.digest(40)
        pad = head[:8] + randombytes_buf_deterministic(size - 8, head[8:])
    return pad[:8], [int.from_bytes(pad[at : at + 8], "little") for at in range(8, size, 8)]


def words_of(data: bytes) -> list[int]:
    return [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]


@pytest.mark.parametrize("dimension", [1, 2, 126, 127, 128, 1000])
def test_a_pad_is_that_of_the_design(dimension: int) -> None:
    """On both sides of 1,024 bytes, from which on ChaCha20 makes the mask."""
    pad = tag_and_mask(KEYS[0], AH, ENTRY, dimension)
    assert (pad[:8], words_of(pad[8:])) == pad_by_hand(KEYS[0], ENTRY, dimension)
    assert len(pad) == 8 + 8 * dimension


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(WORDS, min_size=1, max_size=20), st.integers(2, 64))
def test_the_masks_of_all_nodes_give_the_value_back(words: list[int], nodes: int) -> None:
    value = np.array(words, dtype=np.uint64)
    tags, y = masked(value, KEYS[:nodes], AH, ENTRY)
    pads = [pad_by_hand(key, ENTRY, len(words)) for key in KEYS[:nodes]]
    assert tags == b"".join(tag for tag, _ in pads)
    back = [sum(column) % 2**64 for column in zip(words_of(y), *(mask for _, mask in pads), strict=True)]
    assert back == words == value.tolist(), "and the value itself is not changed"


@pytest.mark.parametrize("changed", ["key", "announcement", "client", "contribution", "charge"])
def test_another_key_announcement_or_entry_has_another_tag_and_mask(changed: str) -> None:
    key = KEYS[1] if changed == "key" else KEYS[0]
    ah = bytes(32) if changed == "announcement" else AH
    client = b"\1" * 16 if changed == "client" else CLIENT
    contribution = b"\1" * 16 if changed == "contribution" else CONTRIBUTION
    other = tag_and_mask(key, ah, entry_of(client, contribution, 8 if changed == "charge" else 7), 3)
    one = tag_and_mask(KEYS[0], AH, ENTRY, 3)
    assert all(one[at : at + 8] != other[at : at + 8] for at in range(0, 32, 8))


@pytest.mark.parametrize("dimension", [1, 10, 1000, 20_000])
def test_a_node_finds_wrong_tags_and_sums_the_masks_of_all_others(dimension: int) -> None:
    """A flipped tag, a key of zeros and another client's key fail. At d = 20,000 each entry is a chunk of its own."""
    entries = [entry_of(bytes((index,)) * 16, CONTRIBUTION, index + 1) for index in range(40)]
    pads = [pad_by_hand(key, entry, dimension) for key, entry in zip(KEYS, entries, strict=False)]
    tags, keys = [tag for tag, _ in pads], np.frombuffer(b"".join(KEYS[:40]), dtype=np.uint8).reshape(40, 32).copy()
    tags[0] = bytes((tags[0][0] ^ 1,)) + tags[0][1:]
    tags[17] = tags[17][:7] + bytes((tags[17][7] ^ 128,))
    keys[3], keys[39] = 0, np.frombuffer(KEYS[50], dtype=np.uint8)
    tags[3] = bytes(8)
    holds, total = check_and_sum(keys, b"".join(entries), b"".join(tags), AH, dimension)
    assert holds.dtype == np.bool_
    assert np.flatnonzero(~holds).tolist() == [0, 3, 17, 39]
    good = [mask for index, (_, mask) in enumerate(pads) if index not in (0, 3, 17, 39)]
    assert total.tolist() == [sum(column) % 2**64 for column in zip(*good, strict=True)]


def test_nothing_is_checked_and_summed_to_zero() -> None:
    holds, total = check_and_sum(np.zeros((0, 32), dtype=np.uint8), b"", b"", AH, 3)
    assert (holds.tolist(), total.tolist()) == ([], [0, 0, 0])


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(0, 30), st.sampled_from([1, 7, 100_000]), WORDS)
def test_a_sum_is_exact_whatever_the_chunks(count: int, dimension: int, word: int) -> None:
    """Words near 2^64 wrap around; a dimension of 100,000 makes every vector a chunk of its own."""
    firsts = [(word + index) % 2**64 for index in range(min(count, 5))]
    vectors = (first.to_bytes(8, "little") * dimension for first in firsts)
    total = sum_words(vectors, dimension)
    assert set(total.tolist()) == {sum(firsts) % 2**64}
    assert total.shape == (dimension,)


@pytest.mark.parametrize(("value", "missing"), [(0, 0), (0, 1), (2**63, 0), (2**64 - 1, 2)])
def test_all_but_one_mask_leave_a_uniform_word(value: int, missing: int) -> None:
    """What a coalition of two of three nodes sees: y plus its own two masks, over 4,096 contributions.

    χ² over the top 4 bits, 15 degrees of freedom. False alarms: each exceeds 45.1 with probability 7e-5; all seeded.
    """
    full, counts = np.array([value], dtype=np.uint64), Counter[int]()
    for draw in range(4096):
        entry = entry_of(CLIENT, draw.to_bytes(16, "big"), 1)
        _, y = masked(full, KEYS[:3], AH, entry)
        known = [pad_by_hand(key, entry, 1)[1][0] for index, key in enumerate(KEYS[:3]) if index != missing]
        counts[(words_of(y)[0] + sum(known)) % 2**64 >> 60] += 1
    assert sum((counts[nibble] - 256) ** 2 / 256 for nibble in range(16)) < 45.1


def test_any_two_of_three_parts_are_exactly_uniform_in_a_ring_of_16() -> None:
    """Exhaustively: with uniform masks, y and any two of three masks are the same for every value."""
    for missing in range(1, 4):
        views = []
        for value in range(16):
            parts = [((value - a - b - c) % 16, a, b, c) for a in range(16) for b in range(16) for c in range(16)]
            views.append(Counter(tuple(part for place, part in enumerate(one) if place != missing) for one in parts))
        assert all(view == views[0] for view in views)
        assert set(views[0].values()) == {1}


def test_the_keys_of_all_uses_differ() -> None:
    """Each has a label of its own, so that no part of one use tells another."""
    used = (tag_and_mask(KEYS[0], AH, ENTRY, 3), *contribution_keys(KEYS[0], AH, CONTRIBUTION), ask_tag(KEYS[0], AH))
    assert len({one[:8] for one in used}) == 5
    assert [len(one) for one in used] == [32, 32, 16, 16, 16]


def test_every_node_holds_its_part_of_the_clients() -> None:
    """3,000 clients over 3 nodes: binomial with sd 26; 6 sd away has probability 2e-9, and the ids are fixed."""
    clients = [hashlib.blake2b(index.to_bytes(4, "big"), digest_size=16).digest() for index in range(3000)]
    counts = Counter(holder_index(AH, client, 3) for client in clients)
    assert all(abs(counts[node] - 1000) < 155 for node in range(3))
    rounds = [hashlib.blake2b(bytes((index,)), digest_size=32).digest() for index in range(30)]
    assert {holder_index(ah, CLIENT, 3) for ah in rounds} == {0, 1, 2}, "by announcement, too"


@pytest.mark.parametrize("nodes", [2, 3, 10, 64])
@pytest.mark.parametrize("ah", [AH, bytes(32), b"\xff" * 32, hashlib.blake2b(b"ah", digest_size=32).digest()])
def test_the_holders_of_many_are_those_of_each(nodes: int, ah: bytes) -> None:
    """By Python's integers and by NumPy's words, also where these wrap around."""
    ids = [hashlib.blake2b(index.to_bytes(4, "big"), digest_size=16).digest() for index in range(500)]
    ids += [bytes(16), b"\xff" * 16]
    rows = np.frombuffer(b"".join(one + bytes(ENTRY_BYTES - 16) for one in ids), dtype=np.uint8).reshape(
        -1, ENTRY_BYTES
    )
    each = [holder_index(ah, one, nodes) for one in ids]
    assert holder_indices(ah, rows, nodes).tolist() == each
    assert 0 <= min(each) <= max(each) < nodes
