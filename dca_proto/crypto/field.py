"""Arithmetic over the integers modulo a prime P, and over its quadratic extension; whole arrays, exact results.

The protocol's field has P = 2^31 - 1: an element fits 4 bytes, and a product of two fits 64 bits. Small primes serve
tests that enumerate every case. P must be 3 modulo 4, so that -1 is no square and i² = -1 makes the extension:
a + b·i is an array whose last axis is (a, b).

Elements are `uint64` below P. Sums of many products use float64, which is exact below 2^53: one factor of a matrix
product is split into parts of 11 bits, both of a product of polynomials into digits of 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

PRIME = 2**31 - 1
ELEMENT_BYTES = 4
_DIGIT_BITS = 16
_PART_BITS, _PARTS = 11, 3
_PART = np.uint64((1 << _PART_BITS) - 1)
_TERMS_MAX = 1 << 11
"""A sum of so many products of an element and a part of 11 bits stays below 2^53."""
Elements = NDArray[np.uint64]
Words = NDArray[np.uint32]
"""Elements as they travel, in half the memory."""
AnyElements = Elements | Words | NDArray[np.float64]
Spectrum = tuple[NDArray[np.complex128], NDArray[np.complex128]]


class _Block(NamedTuple):
    """Columns of a matrix that are 0 outside the same rows, which begin at `start`: parts of 11 bits side by side."""

    start: int
    columns: NDArray[np.int64]
    parts: NDArray[np.float64]


class Factor(NamedTuple):
    """The right factor of matrix products: its columns, and blocks of those that are not 0."""

    columns: int
    blocks: list[_Block]


def factor_of(matrix: Elements) -> Factor:
    """Return a matrix as a factor. Products leave out the rows before a column's first term, and after its last one."""
    rows_of: dict[tuple[int, int], list[int]] = {}
    for column, terms in enumerate(matrix.T):
        places = np.flatnonzero(terms)
        if places.size:
            rows_of.setdefault((int(places[0]), int(places[-1]) + 1), []).append(column)
    blocks = []
    for (start, end), columns in rows_of.items():
        some = matrix[start:end, columns]
        parts = [some >> np.uint64(_PART_BITS * part) & _PART for part in range(_PARTS)]
        blocks.append(_Block(start, np.array(columns), np.concatenate(parts, axis=1).astype(np.float64)))
    return Factor(matrix.shape[1], blocks)


class Field(NamedTuple):
    """The integers modulo a prime that is 3 modulo 4.

    Attributes:
        prime: P, at most 2^31 - 1.
        generator: an element whose powers are all others but 0.
    """

    prime: int = PRIME
    generator: int = 7

    def of(self, integers: NDArray[np.int64]) -> Elements:
        """Return the elements of signed integers, modulo P."""
        return np.mod(integers, self.prime).astype(np.uint64)

    def centred(self, elements: Elements) -> NDArray[np.int64]:
        """Return each element's representative between -P/2 and P/2."""
        signed = elements.astype(np.int64)
        return np.where(signed > self.prime // 2, signed - self.prime, signed)

    def multiply(self, a: Elements, b: Elements | np.uint64) -> Elements:
        """Return the products of the elements of two arrays, or of an array and one element."""
        product: Elements = a * b % np.uint64(self.prime)
        return product

    def minus(self, a: Elements, b: Elements) -> Elements:
        """Return the differences of the elements of two arrays."""
        return (a + (np.uint64(self.prime) - b)) % np.uint64(self.prime)

    def matrix_product(self, a: AnyElements, b: Elements) -> Elements:
        """Return the product of matrices of shapes ``(n, k)`` and ``(k, m)``; it is fastest for few columns m."""
        return self.product_with(a, factor_of(b))

    def product_with(self, a: AnyElements, factor: Factor) -> Elements:
        """Return the `matrix_product` of a, of elements in any type, and a factor that one makes once for many a."""
        modulus = np.uint64(self.prime)
        sums = np.zeros((len(a), _PARTS, factor.columns), dtype=np.uint64)
        for block in factor.blocks:
            of_block = np.zeros((len(a), block.parts.shape[1]), dtype=np.uint64)
            for start in range(0, len(block.parts), _TERMS_MAX):
                end = min(start + _TERMS_MAX, len(block.parts))
                left = as_floats(a[:, block.start + start : block.start + end])
                of_block += (left @ block.parts[start:end]).astype(np.uint64)  # each below 2^53, of 2^10 at most
            sums[:, :, block.columns] = of_block.reshape(len(a), _PARTS, -1)
        sums %= modulus
        low, middle, high = sums[:, 0], sums[:, 1], sums[:, 2]
        shift = np.uint64(_PART_BITS)
        product: Elements = (((high << shift) + middle << shift) + low) % modulus  # below 2^54
        return product

    def convolve(self, a: Elements, b: Elements) -> Elements:
        """Return the coefficients of the product of two polynomials, each up to 2^20 long."""
        size = len(a) + len(b) - 1
        length = transform_length(size)
        left = self.spectrum(a, length)
        return self.product_of(left, left if a is b else self.spectrum(b, length), length)[:size]

    def spectrum(self, elements: Elements, length: int) -> Spectrum:
        """Return the Fourier transforms of the two digits of up to `length` elements."""
        low, high = _small_digits(self.centred(elements))
        return np.fft.rfft(low, length), np.fft.rfft(high, length)

    def product_of(self, a: Spectrum, b: Spectrum, length: int) -> Elements:
        """Return the cyclic convolution of two vectors, ``(length,)``: terms beyond the end count from the start."""
        parts = (a[0] * b[0], a[0] * b[1] + a[1] * b[0], a[1] * b[1])
        total = np.zeros(length, dtype=np.int64)
        for part in reversed(parts):
            digits = np.rint(np.fft.irfft(part, length)).astype(np.int64) % self.prime
            total = ((total << _DIGIT_BITS) + digits) % self.prime
        return total.astype(np.uint64)

    def root_of_unity(self, order: int) -> int:
        """Return a primitive root of unity whose order divides P - 1."""
        assert (self.prime - 1) % order == 0, (self.prime, order)
        return pow(self.generator, (self.prime - 1) // order, self.prime)

    def powers(self, base: int, count: int) -> Elements:
        """Return 1, base, base², …, ``(count,)``."""
        found = np.ones(1, dtype=np.uint64)
        while len(found) < count:  # doubles what there is
            step = np.uint64(pow(base, len(found), self.prime))
            found = np.concatenate([found, self.multiply(found, step)])
        return found[:count]

    # --- the quadratic extension: the last axis has the two components ---

    def times(self, a: Elements, b: Elements) -> Elements:
        """Return products in the extension; shapes ``(…, 2)`` broadcast."""
        real = self.minus(self.multiply(a[..., 0], b[..., 0]), self.multiply(a[..., 1], b[..., 1]))
        cross = self.multiply(a[..., 0], b[..., 1]) + self.multiply(a[..., 1], b[..., 0])
        return np.stack([real, cross % np.uint64(self.prime)], axis=-1)

    def power(self, base: Elements, exponent: int) -> Elements:
        """Return a power of one element of the extension, ``(2,)``."""
        return _power(self.times, np.array([1, 0], dtype=np.uint64), base, exponent)

    def extension_powers(self, base: Elements, count: int) -> Elements:
        """Return 1, base, base², … in the extension, ``(count, 2)``."""
        found = np.array([[1, 0]], dtype=np.uint64)
        step = base
        while len(found) < count:
            found = np.concatenate([found, self.times(found, step)])
            step = self.times(step, step)
        return found[:count]

    def inverses(self, elements: Elements) -> Elements:
        """Return 1/z in the extension for each z ≠ 0, ``(n, 2)``: the conjugate over the norm."""
        norms = (self.multiply(elements[:, 0], elements[:, 0]) + self.multiply(elements[:, 1], elements[:, 1])) % (
            np.uint64(self.prime)
        )
        inverse = _power(self.multiply, np.ones_like(norms), norms, self.prime - 2)
        conjugates = np.stack([elements[:, 0], self.minus(np.zeros_like(norms), elements[:, 1])], axis=-1)
        return self.multiply(conjugates, inverse[:, np.newaxis])


DEFAULT = Field()


def as_floats(elements: AnyElements, out: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """Return elements as floating-point numbers, exactly. If they are, return them.

    All are below 2^31, so they are the same as signed integers, which processors convert several at a time.
    """
    if isinstance(elements.dtype, np.dtypes.Float64DType):
        return elements
    found = np.empty(elements.shape) if out is None else out
    np.copyto(found, elements.view(np.dtype(f"i{elements.itemsize}")))
    return found


@lru_cache(maxsize=64)
def transform_length(size: int) -> int:
    """Return the least even number from `size` on without prime factors above 5: fast Fourier transforms have it."""
    products: list[int] = [3**i * 5**j for i in range(15) for j in range(11) if 3**i * 5**j <= 2 * size]
    return min(odd << max(1, (-(-size // odd) - 1).bit_length()) for odd in products)


class _Chirp(NamedTuple):
    """What interpolation at the n-th roots of unity needs: ω^C(k,2), and the spectrum of ω^-C(k,2) for k below 2n."""

    rising: Elements
    falling: Spectrum
    length: int


@lru_cache(maxsize=8)
def _chirp(field: Field, order: int) -> _Chirp:
    k = np.arange(2 * order - 1, dtype=np.int64)
    powers, exponents = field.powers(field.root_of_unity(order), order), k * (k - 1) // 2 % order
    length = transform_length(2 * order - 1)
    return _Chirp(powers[exponents[:order]], field.spectrum(powers[-exponents % order], length), length)


def interpolate(field: Field, values: Elements) -> Elements:
    """Return the coefficients of the polynomial that has these n values at 1, ω, ω², …, the n-th roots of unity.

    n divides P - 1. This is Bluestein's algorithm with jk = C(j+k,2) - C(j,2) - C(k,2), which needs no square root. Of
    the convolution, only terms count onto which a cyclic one of 2n - 1 terms puts nothing else.
    """
    order = len(values)
    rising, falling, length = _chirp(field, order)
    weighted = field.spectrum(field.multiply(values, rising)[::-1], length)
    correlated = field.product_of(weighted, falling, length)[order - 1 : 2 * order - 1]
    return field.multiply(field.multiply(correlated, rising), np.uint64(pow(order, field.prime - 2, field.prime)))


def _power(
    multiply: Callable[[Elements, Elements], Elements], one: Elements, base: Elements, exponent: int
) -> Elements:
    """Return base^exponent by repeated squaring, of each element or of one in the extension."""
    result = one
    for bit in f"{exponent:b}":
        result = multiply(result, result)
        if bit == "1":
            result = multiply(result, base)
    return result


def _small_digits(centred: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Split signed integers in digits of 16 bits from -2^15 to 2^15: rounding errors of an FFT stay small."""
    high = centred + (1 << _DIGIT_BITS - 1) >> _DIGIT_BITS
    return (centred - (high << _DIGIT_BITS)).astype(np.float64), high.astype(np.float64)
