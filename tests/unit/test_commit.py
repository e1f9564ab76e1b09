"""One set of contributions: lists on the wire, their agreement, and the sum over it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dca_proto.core.commit import agree, encode_entries, parse_entries, position_bits, positions_of
from dca_proto.core.errors import PeerError
from dca_proto.core.shares import mask, sum_shares

ENTRIES = st.dictionaries(st.integers(0, 49), st.binary(min_size=16, max_size=16))
SOME = settings(max_examples=50, deadline=None, derandomize=True)


@SOME
@given(ENTRIES)
def test_a_list_comes_back_whatever_its_order(entries: dict[int, bytes]) -> None:
    encoded = encode_entries(dict(reversed(list(entries.items()))))
    assert encoded == encode_entries(entries)
    assert parse_entries(encoded, 50) == entries
    assert len(encoded) == 20 * len(entries)


@pytest.mark.parametrize("positions", [(1, 0), (0, 0), (3,), (0, 2**31)])
def test_positions_ascend_and_are_on_the_roster(positions: tuple[int, ...]) -> None:
    data = b"".join(position.to_bytes(4, "little") + bytes(16) for position in positions)
    with pytest.raises(PeerError, match="list"):
        parse_entries(data, 3)


@pytest.mark.parametrize("size", [1, 19, 21])
def test_a_list_has_whole_entries(size: int) -> None:
    with pytest.raises(PeerError, match="multiple of 20"):
        parse_entries(bytes(size), 3)


@SOME
@given(st.lists(ENTRIES, min_size=1, max_size=4))
def test_agreement_is_the_same_whoever_computes_it(lists: list[dict[int, bytes]]) -> None:
    agreed = [agree(own, lists[:index] + lists[index + 1 :]) for index, own in enumerate(lists)]
    assert all(one == agreed[0] for one in agreed)
    assert set(agreed[0].items()) == set.intersection(*(set(one.items()) for one in lists))


def test_another_contribution_of_the_same_client_is_not_agreed() -> None:
    assert agree({0: b"a" * 16, 1: b"b" * 16}, [{0: b"a" * 16, 1: b"c" * 16}]) == {0: b"a" * 16}


@SOME
@given(st.sets(st.integers(0, 29)), st.integers(30, 40))
def test_position_bits_come_back(positions: set[int], clients: int) -> None:
    assert positions_of(position_bits(positions, clients), clients).tolist() == sorted(positions)


@pytest.mark.parametrize(("bits", "clients"), [(b"", 1), (b"\x00\x00", 8), (b"\x01", 7), (b"\xff\xff", 9)])
def test_bits_beyond_the_roster_are_refused(bits: bytes, clients: int) -> None:
    with pytest.raises(PeerError, match="contributors"):
        positions_of(bits, clients)


@SOME
@given(st.integers(0, 30), st.integers(0, 30), st.sampled_from([1, 7, 100_000]))
def test_the_sum_is_exact_whatever_the_chunks(full: int, seeds: int, dimension: int) -> None:
    """Vectors near 2^64 wrap around; a dimension of 100,000 makes every vector a chunk of its own."""
    vectors = [np.full(dimension, 2**64 - 1 - index, dtype=np.uint64) for index in range(min(full, 5))]
    keys = [bytes((index,)) * 32 for index in range(min(seeds, 5))]
    total = sum_shares((vector.tobytes() for vector in vectors), keys, dimension)
    expected = sum((int(vector[0]) for vector in vectors), 0) + sum(int(mask(key, dimension)[0]) for key in keys)
    assert int(total[0]) == expected % 2**64


def test_the_sum_of_nothing_is_zero() -> None:
    assert sum_shares([], [], 3).tolist() == [0, 0, 0]
