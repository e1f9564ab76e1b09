"""Arithmetic over the integers modulo a prime P, and over its quadratic extension; whole arrays, exact results.

The protocol's field has P = 2^31 - 1: an element fits 4 bytes, and a product of two fits 64 bits. Small primes serve
tests that enumerate every case. P must be 3 modulo 4, so that -1 is no square and i² = -1 makes the extension:
a + b·i is an array whose last axis is (a, b).

Elements are `uint64` below P. Sums of many products use float64, which is exact below 2^53: one factor of a matrix
product is split into parts of 11 bits, a polynomial that is squared into digits of 16 bits.
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
        blocks.append(_Block(start, np.array(columns), _parts(matrix[start:end, columns])))
    return Factor(matrix.shape[1], blocks)


def _parts(matrix: Elements) -> NDArray[np.float64]:
    """Return the lowest 11 bits of all columns, then the next 11, then the highest: ``(k, 3m)``."""
    return np.concatenate([matrix >> np.uint64(_PART_BITS * part) & _PART for part in range(_PARTS)], axis=1).astype(
        np.float64
    )


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
        sums = np.zeros((len(a), _PARTS, factor.columns), dtype=np.uint64)
        for block in factor.blocks:
            of_block = np.zeros((len(a), block.parts.shape[1]), dtype=np.uint64)
            for start in range(0, len(block.parts), _TERMS_MAX):
                end = min(start + _TERMS_MAX, len(block.parts))
                left = as_floats(a[:, block.start + start : block.start + end])
                of_block += (left @ block.parts[start:end]).astype(np.uint64)  # each below 2^53, of 2^10 at most
            sums[:, :, block.columns] = of_block.reshape(len(a), _PARTS, -1)
        return self._joined(sums)

    def _joined(self, sums: Elements) -> Elements:
        """Return products with a matrix from those with its three parts, ``(n, 3, m)``, which are at most 2^63."""
        modulus, shift = np.uint64(self.prime), np.uint64(_PART_BITS)
        low, middle, high = sums[:, 0], sums[:, 1], sums[:, 2]
        product: Elements = (((high % modulus << shift) + middle % modulus << shift) + low) % modulus
        return product

    def short_matrix_product(self, a: AnyElements, parts: NDArray[np.float64]) -> Elements:
        """Return the product of a and the matrix that has these parts, of at most 2^11 rows."""
        return self._joined((as_floats(a) @ parts).astype(np.uint64).reshape(len(a), _PARTS, -1))

    def cyclic_square(self, a: Elements, length: int, some: slice) -> Elements:
        """Return some coefficients of the square of a polynomial, or of several, the rows, modulo X^length - 1.

        Each has 2^20 coefficients at most, which look random, as interpolated bits do: rounding errors are then below
        0.04. Digits that are all equal could add up to one of 0.5. The length is even and has small factors, as
        `transform_length` gives it: fast Fourier transforms take both.
        """
        low, high = np.fft.rfft(_small_digits(self.centred(a)), length)  # together, they take half the time
        squares = np.fft.irfft(np.stack([low * low, 2 * low * high, high * high]), length)
        of_low, of_both, of_high = np.rint(squares[..., some]).astype(np.int64)  # up to 2^51 in absolute value
        total = ((of_high % self.prime << _DIGIT_BITS) + of_both) % self.prime
        return self.of((total << _DIGIT_BITS) + of_low)

    def short_product(self, a: Elements, b: Elements) -> Elements:
        """Return the coefficients of the product of two polynomials, of which b has 32 at most."""
        left, shift = as_floats(a), np.uint64(_DIGIT_BITS)  # digits of 16 bits: sums of 32 products are at most 2^52
        low = np.convolve(left, as_floats(b & np.uint64((1 << _DIGIT_BITS) - 1))).astype(np.uint64)
        high = np.convolve(left, as_floats(b >> shift)).astype(np.uint64) % np.uint64(self.prime)
        product: Elements = ((high << shift) + low) % np.uint64(self.prime)
        return product

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


class _Transform(NamedTuple):
    """What interpolation at the n-th roots of unity needs, for n = r·s: powers of ω^-s, of ω^-1 over n, and of ω^-r.

    Attributes:
        first: ``(r, r)``. twiddles: ``(s, r)``. second: the parts of ``(s, s)``.
    """

    first: NDArray[np.float64]
    twiddles: Elements
    second: NDArray[np.float64]


@lru_cache(maxsize=8)
def _transform(field: Field, order: int) -> _Transform:
    sizes = [k for k in range(1, order + 1) if order % k == 0]
    s = min(sizes, key=lambda s: order // s + _PARTS * s)  # terms of all products: only the second one has parts
    r = order // s
    powers = field.powers(pow(field.root_of_unity(order), -1, field.prime), order)
    j1, j2 = np.arange(r), np.arange(s)
    return _Transform(
        as_floats(powers[s * np.outer(j1, j1) % order]),
        field.multiply(powers[np.outer(j2, j1)], np.uint64(pow(order, -1, field.prime))),
        _parts(powers[r * np.outer(j2, j2) % order]),
    )


def interpolate(field: Field, values: Elements) -> Elements:
    """Return the coefficients of the polynomial that has these n values at 1, ω, ω², …, the n-th roots of unity.

    n divides P - 1. Coefficient k is Σ_j v_j ω^-jk / n. With n = r·s, j = s·j1 + j2 and k = k1 + r·k2, that is

        Σ_j2 ω^-(r·j2·k2) · ω^-(j2·k1) / n · Σ_j1 ω^-(s·j1·k1) v_j,

    as s·r·j1·k2 is a multiple of n. It is fastest for small values, such as bits.
    """
    first, twiddles, second = _transform(field, len(values))
    rows = values.reshape(len(first), -1).T  # (j2, j1)
    if len(first) * int(values.max()) <= 1 << 22:  # so sums of their products with elements stay below 2^53
        inner = (as_floats(rows) @ first).astype(np.uint64) % np.uint64(field.prime)
    else:
        inner = field.matrix_product(rows, first.astype(np.uint64))
    return field.short_matrix_product(field.multiply(inner, twiddles).T, second).T.reshape(-1)


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


def _small_digits(centred: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return low and high digits of signed integers, of 16 bits from -2^15 to 2^15: an FFT's rounding stays small."""
    high = centred + (1 << _DIGIT_BITS - 1) >> _DIGIT_BITS
    return np.array([centred - (high << _DIGIT_BITS), high], dtype=np.float64)
