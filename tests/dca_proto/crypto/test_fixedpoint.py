"""Fixed point and the ring: what goes in comes out, and sums do not depend on who adds them or how."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dca_proto.crypto.fixedpoint import (
    FRACTION_BITS_MAX,
    dequantise,
    from_ring,
    quantise,
    ring_from_bytes,
    ring_to_bytes,
    to_ring,
)
from dca_proto.errors import PeerError, UsageError

INT64 = st.integers(-(2**63), 2**63 - 1)


def vectors(dimension: int = 5) -> st.SearchStrategy[np.ndarray]:
    return hnp.arrays(np.int64, dimension, elements=INT64)


@pytest.mark.parametrize("bits", [0, 1, 10, 20, FRACTION_BITS_MAX])
def test_quantise_takes_everything_below_2_to_53_grid_units(bits: int) -> None:
    largest = math.ldexp(2.0**53 - 1, -bits)
    assert quantise([largest, -largest], bits).tolist() == [2**53 - 1, -(2**53) + 1]
    assert dequantise(quantise([largest, -largest], bits), bits).tolist() == [largest, -largest]


@pytest.mark.parametrize("bits", [0, 10, FRACTION_BITS_MAX])
@pytest.mark.parametrize("units", [2.0**53, -(2.0**53), 1e300, -1e300])
def test_quantise_refuses_what_is_too_large_for_the_grid(bits: int, units: float) -> None:
    with pytest.raises(UsageError, match="clamp the values or use fewer fraction bits"):
        quantise([0.0, math.ldexp(units, -bits)], bits)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.7976931348623157e308])
def test_quantise_refuses_what_is_no_number_and_shows_no_data(value: float) -> None:
    with pytest.raises(UsageError) as caught:
        quantise([123.456, value], 20)
    assert "123" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_quantise_of_zeros_and_subnormals_is_zero() -> None:
    tiny = [0.0, -0.0, 5e-324, -5e-324, 2.2250738585072009e-308]
    integers = quantise(tiny, FRACTION_BITS_MAX)
    assert integers.tolist() == [0] * 5
    assert not np.signbit(dequantise(integers, FRACTION_BITS_MAX)).any()


def test_quantise_rounds_to_the_nearest_and_ties_to_even() -> None:
    assert quantise([0.5, 1.5, 2.5, -0.5, -1.5, 0.49, -0.51], 0).tolist() == [0, 2, 2, 0, -2, 0, -1]


def test_quantise_keeps_the_shape_and_takes_nothing() -> None:
    assert quantise(np.ones((2, 3)), 4).shape == (2, 3)
    assert quantise([], 4).shape == (0,)


@pytest.mark.parametrize("bits", [-1, FRACTION_BITS_MAX + 1])
def test_fraction_bits_are_bounded(bits: int) -> None:
    with pytest.raises(UsageError, match="fraction_bits"):
        quantise([0.0], bits)
    with pytest.raises(UsageError, match="fraction_bits"):
        dequantise(np.zeros(1, dtype=np.int64), bits)


@settings(deadline=None)  # the machine may be busy
@given(hnp.arrays(np.float64, 8, elements=st.floats(-1e6, 1e6)), st.integers(0, 30))
def test_quantise_is_within_half_a_grid_unit(values: np.ndarray, bits: int) -> None:
    back = dequantise(quantise(values, bits), bits)
    assert np.all(np.abs(back - values) <= math.ldexp(0.5, -bits))


def test_beyond_2_to_53_a_decoded_sum_is_the_nearest_float() -> None:
    assert dequantise(np.array([2**53 + 1, 2**63 - 1]), 0).tolist() == [2.0**53, 2.0**63]


def test_the_ring_is_a_view_and_wraps_around() -> None:
    extremes = np.array([0, 1, -1, 2**63 - 1, -(2**63)], dtype=np.int64)
    ring = to_ring(extremes)
    assert ring.tolist() == [value % 2**64 for value in extremes.tolist()]
    assert np.shares_memory(ring, extremes)
    assert from_ring(ring).tolist() == extremes.tolist()
    one = np.ones(5, dtype=np.uint64)
    assert from_ring(ring + one).tolist() == [1, 2, 0, -(2**63), -(2**63) + 1]
    assert from_ring(ring - one).tolist() == [-1, 0, -2, 2**63 - 2, 2**63 - 1]


def test_mixing_signed_and_unsigned_is_stopped() -> None:
    # numpy alone would turn int64 + uint64 into float64 and lose the low bits.
    signed, ring = np.ones(2, dtype=np.int64), np.ones(2, dtype=np.uint64)
    for wrong in (lambda: to_ring(ring), lambda: from_ring(signed), lambda: ring_to_bytes(signed + ring)):  # type: ignore[arg-type]
        with pytest.raises(AssertionError):
            wrong()


@settings(deadline=None)  # the machine may be busy
@given(vectors())
def test_wire_bytes_are_little_endian_and_round_trip(vector: np.ndarray) -> None:
    data = ring_to_bytes(to_ring(vector))
    assert data == b"".join(value.to_bytes(8, "little", signed=True) for value in vector.tolist())
    for buffer in (data, bytearray(data), memoryview(data)):
        assert from_ring(ring_from_bytes(buffer, 5)).tolist() == vector.tolist()


def test_reading_the_wire_copies_nothing() -> None:
    data = bytes(range(16))
    ring = ring_from_bytes(data, 2)
    assert not ring.flags.writeable
    assert np.shares_memory(ring, np.frombuffer(data, dtype=np.uint8))


@pytest.mark.parametrize("length", [0, 1, 15, 17, 24])
def test_wrong_length_is_the_peers_fault(length: int) -> None:
    with pytest.raises(PeerError) as caught:
        ring_from_bytes(bytes(length), 2)
    assert caught.value.code == "length"
    assert str(length) in str(caught.value.found)
