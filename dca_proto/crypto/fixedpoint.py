"""Fixed point and the ring: from real numbers to the 64-bit integers that are shared and summed, and back.

A real number z becomes the integer k = rint(z·2^f) on the grid of 2^-f (f: fraction bits). Integers live in the ring of
integers modulo 2^64 as 64-bit words: the ring's element is the two's complement pattern of k, so that going between
the two is a change of view and not of bits. Sums in the ring are exact and do not depend on order, chunking or the
number of parties, which floating point cannot say of itself: nothing after `quantise` is a float until the final sum
has been decoded.

A ring sum decodes to the right signed integer as long as that lies in [-2^63, 2^63); the round's parameters see to it.

Trap: numpy promotes `int64 + uint64` to float64 and silently loses the low bits. Hence the asserts here.
Arrays of `uint64` wrap around, as the ring has it.
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
    """The nearest grid points of real numbers, k = rint(z·2^f), ties to even, for every |z|·2^f below 2^53.

    Raises `UsageError` where a value is NaN, infinite or too large for the grid, or f is not from 0 to 40. No value is
    shown: it may be somebody's data.
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
    """`quantise` of finite values that are known to be small enough."""
    return np.rint(np.ldexp(reals, fraction_bits)).astype(np.int64)


def dequantise(integers: NDArray[np.int64], fraction_bits: int) -> NDArray[np.float64]:
    """The real numbers k·2^-f. Exact for |k| <= 2^53; beyond, k is rounded to the nearest float64 (relative 2^-53)."""
    return np.ldexp(integers.astype(np.float64), -_checked_bits(fraction_bits))


def to_ring(integers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The ring elements of signed integers: the same memory seen as unsigned words."""
    assert integers.dtype == np.int64, integers.dtype
    return integers.view(np.uint64)


def from_ring(elements: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The signed integers in [-2^63, 2^63) that ring elements stand for: the same memory seen as signed words."""
    assert elements.dtype == np.uint64, elements.dtype
    return elements.view(np.int64)


def ring_to_bytes(elements: NDArray[np.uint64]) -> bytes:
    """Ring elements on the wire: 8 bytes each, little-endian."""
    assert elements.dtype == np.uint64, elements.dtype
    return elements.astype(_WIRE, copy=False).tobytes()


def ring_from_bytes(data: bytes | bytearray | memoryview, dimension: int) -> NDArray[np.uint64]:
    """Ring elements from the wire; every 8 bytes are an element, so only the length can be wrong.

    The result looks into `data` without copying it (on little-endian machines) and is then read-only like `data`.
    Raises `PeerError` where the length is not that of `dimension` elements.
    """
    found, expected = memoryview(data).nbytes, dimension * WORD_BYTES
    if found != expected:
        raise PeerError("length", found=f"{found} bytes", expected=f"{expected} bytes ({dimension} ring elements)")
    return np.frombuffer(data, dtype=_WIRE).astype(np.uint64, copy=False)


def _checked_bits(fraction_bits: int) -> int:
    if not 0 <= fraction_bits <= FRACTION_BITS_MAX:
        raise UsageError(f"fraction_bits is {fraction_bits}; choose 0 to {FRACTION_BITS_MAX}")
    return fraction_bits
