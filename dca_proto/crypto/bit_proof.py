"""A client proves, to Compute nodes of which none sees its words, that they are bits (DESIGN §12).

**Words.** H has the n-th roots of unity of the field, n ≥ B the smallest divisor of P - 1. u is the polynomial of
degree below n whose values on H are the B bits, then zeros. With 2k uniform blinds as the coefficients of b,

    f = u + b·(X^n - 1),        q = (f² - f) / (X^n - 1)

and this division has no remainder if and only if all values of f on H are 0 or 1. The client shares its bits, its
blinds and the n + 4k - 1 coefficients of q among the M nodes, as sums modulo P.

**Queries.** The nodes draw r in F_P² outside F_P when no client can change its words. Each adds up, by public weights,
its shares of A = f(r) and C = (r^n - 1)·q(r). All open these and accept if A² - A = C. A wrong proof passes with a
probability of at most (2n + 4k - 2) / (P² - P): below 2^-47 for 9,000 bits. As r^n ≠ 1 outside F_P, b makes A uniform
whatever the bits are, and C follows from A, so an opening reveals nothing; with 2k blinds this holds for k queries.

The proof is that of Boneh et al. 2019 (fully linear proofs) with blinds in place of joint randomness at its start.
PRIVACY.md has the proofs, P1 to P3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.field import (
    DEFAULT,
    ELEMENT_BYTES,
    Elements,
    Field,
    Words,
    as_floats,
    interpolate,
    transform_length,
)
from dca_proto.errors import PeerError

QUERIES = 2
"""k: the most openings of one contribution that still reveal nothing. A restored node may ask for a second one."""
OPENED = 4
"""Elements of an opening: A and C, each with two components."""


class BlockSizes(NamedTuple):
    """The sizes of a proof about so many bits.

    Attributes:
        bits: B, at least 1.
        field: where its words live.
    """

    bits: int
    field: Field = DEFAULT

    @property
    def order(self) -> int:
        """n: the smallest divisor of P - 1 that is not below the number of bits."""
        return _order(self.bits, self.field.prime)

    @property
    def blinds(self) -> int:
        """Uniform elements that the client draws: 2k."""
        return 2 * QUERIES

    @property
    def quotient(self) -> int:
        """Coefficients of q: n + 4k - 1."""
        return self.order + 4 * QUERIES - 1

    @property
    def words(self) -> int:
        """Elements that the client shares: bits, blinds, quotient."""
        return self.bits + self.blinds + self.quotient


@lru_cache(maxsize=8)
def divisors(prime: int) -> tuple[int, ...]:
    """Return the divisors of P - 1, ascending: orders of roots of unity."""
    small = [k for k in range(1, math.isqrt(prime - 1) + 1) if (prime - 1) % k == 0]
    return tuple(sorted({n for k in small for n in (k, (prime - 1) // k)}))


@lru_cache(maxsize=256)
def _order(bits: int, prime: int) -> int:
    return min(n for n in divisors(prime) if n >= bits)


def prove(block: BlockSizes, bits: NDArray[np.int64], blinds: Elements) -> Elements:
    """Return the words to share: the bits, the blinds, and the quotient that proves the bits, ``(block.words,)``.

    Args:
        bits: 0 or 1, ``(block.bits,)``. Other values give words that no query accepts, but for the stated error.
        blinds: fresh uniform elements, ``(block.blinds,)``.
    """
    field, order = block.field, block.order
    values = np.zeros(order, dtype=np.uint64)
    values[: block.bits] = field.of(bits)
    u = interpolate(field, values)
    # With h = (u² - u)/(X^n - 1), q is h + b·(f + u - 1).
    both = np.zeros(order + block.blinds, dtype=np.uint64)
    both[:order] = 2 * u
    both[0] += np.uint64(field.prime - 1)
    both[: block.blinds] += np.uint64(field.prime) - blinds
    both[order:] += blinds  # of toy sizes, where n < 2k, some coefficients count twice
    quotient = field.short_product(both % np.uint64(field.prime), blinds)
    quotient[:order] += _quotient_of_bits(block, u)
    return np.concatenate([values[: block.bits], blinds, quotient % np.uint64(field.prime)])


def _quotient_of_bits(block: BlockSizes, u: Elements) -> Elements:
    """Return the coefficients of h = (u² - u) / (X^n - 1), ``(n,)``, if the values of u on H are 0 or 1.

    u² = h·X^n + (u - h), as u² and u have the same values on H. So coefficient j of u² is u_j - h_j below n, and
    h_(j-n) from n on. Modulo X^L - 1, some are added to each other, but not those from 2n - 1 - L to L - 1. With
    L >= (3n - 1)/2, these have h_j up to j = L - n - 1 as they are, and the others in u_j - h_j.
    """
    order = block.order
    length = transform_length(3 * order // 2)
    whole = min(length - order, order)
    square = block.field.cyclic_square(u, length, slice(whole, whole + order))
    return np.concatenate([square[order - whole :], block.field.minus(u[whole:], square[: order - whole])])


def point(data: bytes, field: Field = DEFAULT) -> Elements:
    """Return r in F_P² outside F_P from pseudo-random bytes: the first two words below P, the second not 0.

    Each word is four bytes, little-endian, without what exceeds the prime's bits. Raises `ValueError` if no two fit,
    which has a probability below 2^-200 for 64 bytes and P = 2^31 - 1.
    """
    words = np.frombuffer(data, dtype="<u4").astype(np.uint64) & np.uint64((1 << field.prime.bit_length()) - 1)
    for real, cross in words.reshape(-1, 2):
        if real < field.prime and 0 < cross < field.prime:
            return np.array([real, cross], dtype=np.uint64)
    raise ValueError(f"no point in {len(data)} bytes")


def vanishing(field: Field, order: int, r: Elements) -> Elements:
    """Return r^n - 1, which is not 0 for r outside the field, as n divides P - 1."""
    found = field.power(r, order)
    found[0] = (found[0] + np.uint64(field.prime - 1)) % np.uint64(field.prime)
    return found


def at_roots(field: Field, order: int, r: Elements, count: int) -> Elements:
    """Return what the values at 1, ω, ω², … add at r to the polynomial through n roots of unity, ``(count, 2)``.

    At ω^j, that is (r^n - 1)·ω^j / (n·(r - ω^j)).
    """
    roots = field.powers(field.root_of_unity(order), order)[:count]
    distances = np.broadcast_to(r, (count, 2)).copy()
    distances[:, 0] = field.minus(distances[:, 0], roots)
    scale = field.multiply(roots, np.uint64(pow(order, field.prime - 2, field.prime)))
    return field.multiply(field.times(field.inverses(distances), vanishing(field, order, r)), scale[:, np.newaxis])


def query(block: BlockSizes, r: Elements) -> Elements:
    """Return the public weights of the words in an opening at r, ``(block.words, 4)``."""
    field, order = block.field, block.order
    of_powers = field.times(field.extension_powers(r, block.quotient), vanishing(field, order, r))
    weights = np.zeros((block.words, OPENED), dtype=np.uint64)
    weights[: block.bits, :2] = at_roots(field, order, r, block.bits)
    weights[block.bits : block.bits + block.blinds, :2] = of_powers[: block.blinds]
    weights[block.bits + block.blinds :, 2:] = of_powers
    return weights


def opening(block: BlockSizes, shares: Elements | Words, weights: Elements) -> Elements:
    """Return a node's shares of A and C for many clients, ``(n, 4)``; its shares of words are ``(n, block.words)``."""
    return block.field.matrix_product(shares, weights)


def accepted(field: Field, openings: Sequence[Elements]) -> NDArray[np.bool_]:
    """Return for which clients A² - A = C, ``(n,)``: `openings` has one array ``(n, 4)`` of each node."""
    total = np.sum(np.stack(openings), axis=0) % np.uint64(field.prime)
    a, c = total[:, :2], total[:, 2:]
    expected: NDArray[np.bool_] = (field.minus(field.times(a, a), a) == c).all(axis=1)
    return expected


def split(field: Field, words: Elements, pads: Elements | Words) -> Elements:
    """Return the last share of words whose other shares are the rows of `pads`, ``(m, words)``."""
    return field.of((as_floats(words) - as_floats(pads).sum(axis=0)).astype(np.int64))


def pack(words: Elements) -> bytes:
    """Encode elements for the wire: 4 bytes each, little-endian."""
    return words.astype("<u4").tobytes()


def unpack(data: bytes, field: Field = DEFAULT) -> Elements:
    """Decode elements. Raises `PeerError` if the bytes are no whole elements, or one is not below P."""
    if len(data) % ELEMENT_BYTES:
        raise PeerError("length", found=f"{len(data)} bytes", expected=f"{ELEMENT_BYTES} for each element")
    words = np.frombuffer(data, dtype="<u4").astype(np.uint64)
    if (words >= field.prime).any():
        raise PeerError("element", found="a word that is P or more", expected=f"elements below {field.prime}")
    return words
