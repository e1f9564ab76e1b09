"""Secret shares: they add up exactly, and any M - 1 of them say nothing."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dca_proto.core.errors import PeerError
from dca_proto.core.shares import ENCODINGS, SEED_BYTES, check_body, mask, share_bodies, split, vector_node

ROOT = bytes(range(32))
WORDS = st.integers(0, 2**64 - 1)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(WORDS, min_size=1, max_size=20), st.integers(2, 10), st.data(), st.sampled_from(ENCODINGS))
def test_the_shares_add_up_to_the_value(words: list[int], nodes: int, data: st.DataObject, encoding: str) -> None:
    value, full_at = np.array(words, dtype=np.uint64), data.draw(st.integers(0, nodes - 1))
    total = np.zeros(value.size, dtype=np.uint64)
    for index, body in enumerate(share_bodies(value, ROOT, nodes, full_at, encoding)):
        is_vector = encoding == "vector" or index == full_at
        check_body(body, value.size, is_vector)
        total += np.frombuffer(body, dtype="<u8") if is_vector else mask(body, value.size)
    assert total.tolist() == words


def test_both_encodings_carry_the_same_shares() -> None:
    value = np.arange(5, dtype=np.uint64)
    seeds, vectors = (share_bodies(value, ROOT, 3, 1, encoding) for encoding in ENCODINGS)
    assert seeds[1] == vectors[1]
    assert [mask(seeds[index], 5).tobytes() for index in (0, 2)] == [vectors[0], vectors[2]]
    assert [len(body) for body in seeds] == [SEED_BYTES, 40, SEED_BYTES]


def test_the_value_itself_is_not_changed() -> None:
    value = np.arange(5, dtype=np.uint64)
    share_bodies(value, ROOT, 3, 0, "seed")
    assert value.tolist() == [0, 1, 2, 3, 4]


def test_masks_differ_by_root_and_node() -> None:
    value = np.zeros(1, dtype=np.uint64)
    bodies = [body for root in (ROOT, bytes(32)) for body in share_bodies(value, root, 5, 0, "seed")]
    assert len(set(bodies)) == 10


@pytest.mark.parametrize(("value", "missing"), [(0, 0), (0, 1), (2**63, 0), (2**64 - 1, 2)])
def test_any_two_of_three_shares_are_uniform(value: int, missing: int) -> None:
    """χ² over the top 4 bits of each of the other two shares, 15 degrees of freedom, 4,096 draws.

    False alarms: each of 8 statistics exceeds 45.1 with probability 7e-5; the draws are seeded anyway.
    """
    full = np.array([value], dtype=np.uint64)
    counts = [Counter(), Counter(), Counter()]
    for draw in range(4096):
        root = draw.to_bytes(32, "little")
        for index, body in enumerate(share_bodies(full, root, 3, 0, "vector")):
            counts[index][body[7] >> 4] += 1
    for index in {0, 1, 2} - {missing}:
        statistic = sum((counts[index][nibble] - 256) ** 2 / 256 for nibble in range(16))
        assert statistic < 45.1


def test_any_two_of_three_shares_are_exactly_uniform_in_a_ring_of_16() -> None:
    """Exhaustively: with uniform masks, the pairs of shares that any two nodes see are the same for every value."""
    seen = {missing: {} for missing in range(3)}
    for value in range(16):
        shares = [((value - a - b) % 16, a, b) for a in range(16) for b in range(16)]
        for missing, by_value in seen.items():
            by_value[value] = Counter(tuple(s for i, s in enumerate(one) if i != missing) for one in shares)
    for by_value in seen.values():
        assert all(view == by_value[0] for view in by_value.values())
        assert set(by_value[0].values()) == {1}


def test_splitting_wraps_around() -> None:
    seed = bytes(32)
    full = split(np.zeros(2, dtype=np.uint64), [seed])
    assert (full + mask(seed, 2)).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("size", "dimension", "is_vector"), [(31, 1, False), (33, 1, False), (8, 1, False), (32, 1, True), (7, 1, True)]
)
def test_a_body_of_the_wrong_length_is_refused(size: int, dimension: int, is_vector: bool) -> None:
    with pytest.raises(PeerError, match="share"):
        check_body(bytes(size), dimension, is_vector)


def test_the_full_vectors_spread_over_the_nodes() -> None:
    """3,000 clients over 3 nodes: binomial with sd 26; 6 sd away has probability 2e-9, and the ids are fixed."""
    counts = Counter(vector_node(bytes(16), index.to_bytes(16, "little"), 3) for index in range(3000))
    assert all(abs(counts[node] - 1000) < 155 for node in range(3))
    rounds = {vector_node(index.to_bytes(16, "little"), bytes(16), 3) for index in range(30)}
    assert rounds == {0, 1, 2}
