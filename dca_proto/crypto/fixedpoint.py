"""Fixed point and the ring: convert real numbers to 64-bit integers that can be masked and summed, and back.

A real number z becomes the integer k = rint(z·2^f) on the grid of 2^-f (f: fraction bits). The ring is the integers
modulo 2^64; its element for k is the two's complement pattern of k, so converting between them changes no bits. Sums in
the ring are exact: unlike floating-point sums, they do not depend on order, chunking or the number of parties. So
nothing is a float between `quantise` and the decoding of the final sum.

A ring sum decodes to the right signed integer if that lies in [-2^63, 2^63). `accounting.check_ring` checks this for
each round's parameters.

Trap: numpy promotes `int64 + uint64` to float64 and silently loses the low bits. Hence the asserts here.
Arrays of `uint64` wrap around, as the ring requires.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dca_proto.errors import PeerError, UsageError

FRACTION_BITS_MAX = 40
INTEGER_LIMIT = 2**53  # every integer below it in absolute value is a float64
WORD_BYTES = 8
_WIRE = np.dtype("<u8")


def quantise(values: ArrayLike, fraction_bits: int) -> NDArray[np.int64]:
    """Round real numbers to the grid: k = rint(z·2^f), ties to even, for every |z|·2^f below 2^53.

    Raises `UsageError` if a value is NaN, infinite or too large for the grid, or if f is not from 0 to 40. The message
    shows no value, which may be somebody's data.
    """
    reals = np.asarray(values, dtype=np.float64)
    limit = math.ldexp(INTEGER_LIMIT, -_checked_bits(fraction_bits))
    if not np.abs(reals).max(initial=0.0) < limit:  # a NaN fails this comparison too
        raise UsageError(
            f"cannot quantise: a value is NaN, infinite or not below {limit:g} in absolute value, the largest at "
            f"{fraction_bits} fraction bits; clamp the values or use fewer fraction bits"
        )
    return round_to_grid(reals, fraction_bits)


def round_to_grid(reals: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
    """Round as `quantise` does, without checks: the values must be finite and small enough."""
    return np.rint(np.ldexp(reals, fraction_bits)).astype(np.int64)


def dequantise(integers: NDArray[np.int64], fraction_bits: int) -> NDArray[np.float64]:
    """Return the reals k·2^-f. Exact for |k| <= 2^53; beyond, k is rounded to the nearest float64 (relative 2^-53)."""
    return np.ldexp(integers.astype(np.float64), -_checked_bits(fraction_bits))


def to_ring(integers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """View signed integers as ring elements: the same memory as unsigned words."""
    assert integers.dtype == np.int64, integers.dtype
    return integers.view(np.uint64)


def from_ring(elements: NDArray[np.uint64]) -> NDArray[np.int64]:
    """View ring elements as signed integers in [-2^63, 2^63): the same memory as signed words."""
    assert elements.dtype == np.uint64, elements.dtype
    return elements.view(np.int64)


def ring_to_bytes(elements: NDArray[np.uint64]) -> bytes:
    """Encode ring elements for the wire: 8 bytes each, little-endian."""
    assert elements.dtype == np.uint64, elements.dtype
    return elements.astype(_WIRE, copy=False).tobytes()


def ring_from_bytes(data: bytes | bytearray | memoryview, dimension: int) -> NDArray[np.uint64]:
    """Decode ring elements from the wire. Any 8 bytes are an element, so only the length can be wrong.

    On little-endian machines the result is a view of `data`, not a copy, and read-only if `data` is. Raises `PeerError`
    if `data` does not have the length of `dimension` elements.
    """
    found, expected = memoryview(data).nbytes, dimension * WORD_BYTES
    if found != expected:
        raise PeerError("length", found=f"{found} bytes", expected=f"{expected} bytes ({dimension} ring elements)")
    return np.frombuffer(data, dtype=_WIRE).astype(np.uint64, copy=False)


def _checked_bits(fraction_bits: int) -> int:
    if not 0 <= fraction_bits <= FRACTION_BITS_MAX:
        raise UsageError(f"fraction_bits is {fraction_bits}; choose 0 to {FRACTION_BITS_MAX}")
    return fraction_bits
