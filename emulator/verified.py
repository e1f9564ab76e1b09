"""The independent reference for verified sums: words, coins, shares and sums (DESIGN §12). It imports no product code.

Elements are integers modulo P = 2^31 - 1, as `int64` arrays. A client's *words* are the bits of its numbers, the bits
of its noise, four blinds and a quotient; if rows lie in a ball, more blinds and the squares' coefficients follow. What
the nodes open is not computed here: an honest client's proof must hold, and words that count must be bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import shake_128
from math import ceil, floor, ldexp, sqrt
from typing import Any, NamedTuple

import numpy as np
from nacl.bindings import randombytes_buf_deterministic
from numpy.typing import NDArray

from emulator import reference
from emulator.derivations import PREFIX, derive, digest

PRIME = 2**31 - 1
ELEMENT_BYTES, KEY_BYTES, POINT_BYTES = 4, 32, 64
BLINDS, QUOTIENT_MORE, SQUARES_MORE, WIRE_COST = 4, 7, 6, 16
Elements = NDArray[np.int64]


def slack(dimension: int) -> float:
    """Return how far a release of d coordinates is from one that is μ-private, in total variation, at most."""
    return dimension * 2.0**-64


def more_bits(fraction_bits: int) -> int:
    """Return by how many bits the grid is finer on which a client evaluates its statistic."""
    return min(16, 40 - fraction_bits)


class Statement(NamedTuple):
    """What each client of a round proves, in units of 2^-f.

    Attributes:
        lows, sizes: x_k is from l_k to l_k + R_k. limit: if not 0, all x_k - l_k add up to at most so much.
        noises, noise_bits: m noise numbers of a bits each, for each coordinate.
        norm: if not 0, the squares of all x_k add up to at most so much.
    """

    lows: tuple[int, ...]
    sizes: tuple[int, ...]
    limit: int
    noises: int
    noise_bits: int
    norm: int = 0

    @property
    def numbers(self) -> tuple[int, ...]:
        """The largest of each number: of the coordinates, then of the limit and of the norm if there is one."""
        return (*self.sizes, *(most for most in (self.limit, self.norm) if most))

    @property
    def number_bits(self) -> int:
        """How many bits the numbers have together."""
        return sum(size.bit_length() for size in self.numbers)

    @property
    def noise_size(self) -> int:
        """How many noise bits there are."""
        return len(self.sizes) * self.noises * self.noise_bits

    @property
    def bits(self) -> int:
        """B."""
        return self.number_bits + self.noise_size

    @property
    def words(self) -> int:
        """B bits, four blinds, the coefficients of the quotient; of a norm, four blinds a wire, and of squares."""
        if not self.norm:
            return _words_of(self.bits)
        order, wires = wires_of(len(self.sizes))
        return _words_of(self.bits) + BLINDS * wires + 2 * order + SQUARES_MORE

    @property
    def mean(self) -> float:
        """The mean of one client's noise in one coordinate."""
        return self.noises * ((1 << self.noise_bits) - 1) / 2

    @property
    def variance(self) -> float:
        """The variance of one client's noise in one coordinate."""
        return self.noises * ((1 << 2 * self.noise_bits) - 1) / 12


def block_words(statement: Statement) -> int:
    """Return how many words stand before those of a norm."""
    return _words_of(statement.bits)


@cache
def _words_of(bits: int) -> int:
    order = next(divisor for divisor in _divisors() if divisor >= bits)
    return bits + BLINDS + order + QUOTIENT_MORE


@cache
def wires_of(dimension: int) -> tuple[int, int]:
    """Return how many numbers a wire of a norm has, and how many wires there are (§12, step 13)."""
    costs = {order: 2 * order + WIRE_COST * -(-dimension // order) for order in _divisors()}
    order = min(costs, key=lambda one: (costs[one], one))
    return order, -(-dimension // order)


@cache
def _divisors() -> tuple[int, ...]:
    """Return the divisors of P - 1 = 2 · 3² · 7 · 11 · 31 · 151 · 331, ascending."""
    found = {1}
    for prime in (2, 3, 3, 7, 11, 31, 151, 331):
        found |= {divisor * prime for divisor in found}
    return tuple(sorted(found))


def statement_of(
    statistic: str, parameters: Mapping[str, Any], rows_max: int, fraction_bits: int, noises: int, noise_bits: int
) -> Statement:
    """Return what each client proves about a sum, a mean or a histogram."""
    rows, d = max(1, rows_max), reference.dimension(statistic, parameters)
    if statistic == "histogram":
        size = rows << fraction_bits
        return Statement((0,) * d, (size,) * d, size if d > 1 else 0, noises, noise_bits)
    more = more_bits(fraction_bits)
    fine = [floor(ldexp(bound, fraction_bits + more)) for bound in parameters["bound"]]
    radius = floor(ldexp(parameters["radius"], fraction_bits + more)) if "radius" in parameters else max(fine)
    ends = [-(-rows * min(bound, radius) >> more) for bound in fine]
    norm, diagonal = 0, sqrt(sum(min(bound, radius) ** 2 for bound in fine))
    if "radius" in parameters and 1.05 * radius <= diagonal and sum(end**2 for end in ends) < PRIME:
        norm = ceil((ldexp(rows * radius, -more) + (1 + ldexp(1.0, -more)) * sqrt(d)) ** 2)
    return Statement(tuple(-end for end in ends), tuple(2 * end for end in ends), 0, noises, noise_bits, norm)


@cache
def weights_of(size: int) -> Elements:
    """Return the weights of the bits of numbers up to `size`, which they add up to."""
    width = size.bit_length()
    return np.array([*(1 << place for place in range(width - 1)), size - (1 << width - 1) + 1], dtype=np.int64)


def _parts(statement: Statement, words: Elements) -> list[Elements]:
    """Split the words of numbers, on the last axis, into those of each number."""
    ends = np.cumsum([size.bit_length() for size in statement.numbers])
    parts: list[Elements] = np.split(words[..., : statement.number_bits], ends[:-1], axis=-1)
    return parts


def numbers_in(statement: Statement, words: Elements) -> Elements:
    """Return the numbers that words encode, or shares of them, modulo P; without l_k."""
    sums = [
        (part * weights_of(size) % PRIME).sum(axis=-1)
        for size, part in zip(statement.numbers, _parts(statement, words), strict=True)
    ]
    return np.stack(sums, axis=-1) % PRIME


def noise_in(statement: Statement, words: Elements, coins: Elements, *, adds_coins: bool) -> Elements:
    """Return the noise numbers after the coins flipped their bits, ``(…, d, m)``, or a node's shares of them.

    `adds_coins`: for words themselves, and for the shares of one node.
    """
    bits = words[..., statement.number_bits : statement.bits]
    flipped = ((1 - 2 * coins) * bits + coins * adds_coins) % PRIME
    shape = (*flipped.shape[:-1], len(statement.sizes), statement.noises, statement.noise_bits)
    powers = 1 << np.arange(statement.noise_bits, dtype=np.int64)
    found: Elements = (flipped.reshape(shape) * powers % PRIME).sum(axis=-1) % PRIME
    return found


def is_proven(statement: Statement, words: Elements) -> bool:
    """Return True if words have bits only, and the numbers of limit and norm are what the coordinates make them."""
    if (words[: statement.bits] > 1).any():
        return False
    numbers, d = numbers_in(statement, words), len(statement.sizes)
    if statement.norm:
        x = [int(number) + low for number, low in zip(numbers, statement.lows, strict=False)]
        return int(numbers[-1]) == statement.norm - sum(one**2 for one in x)
    return not statement.limit or int(numbers[-1]) == int(numbers[:d].sum()) % PRIME


def summed(statement: Statement, words: Elements, coins: Elements, *, adds_coins: bool = True) -> Elements:
    """Return the sum over clients of numbers and flipped noise modulo P, ``(d,)``; of a node's shares, its share.

    Args:
        words: of each client, or a node's shares of them, ``(n, words)``. coins: of each client, ``(n, noise_size)``.
    """
    d = len(statement.sizes)
    of_numbers = numbers_in(statement, words)[:, :d].sum(axis=0)
    of_noise = noise_in(statement, words, coins, adds_coins=adds_coins).sum(axis=2).sum(axis=0)
    total: Elements = (of_numbers + of_noise) % PRIME
    return total


def value_of(statement: Statement, total: Elements, clients: int, fraction_bits: int) -> NDArray[np.float64]:
    """Return the noisy sum, in the statistic's units, that the shares of all nodes give together."""
    shifts = [clients * (low - statement.mean) for low in statement.lows]
    return np.array([ldexp(int(one) + shift, -fraction_bits) for one, shift in zip(total, shifts, strict=True)])


# --- what an honest client sends --------------------------------------------------------------------------------------


def rounded(statement: Statement, value: Elements, dither: int, more: int) -> Elements:
    """Return a client's numbers without l_k: its value, rounded down after the dither, within its bounds."""
    lows, sizes = np.array(statement.lows), np.array(statement.sizes)
    found: Elements = np.clip((value + dither >> more) - lows, 0, sizes)
    return found


def is_rounded(statement: Statement, value: Elements, numbers: Elements, more: int) -> bool:
    """Return True if one dither for all coordinates rounds a value to these numbers."""
    fine = (numbers + np.array(statement.lows) << more) - value
    return int(fine.max()) < min(1 << more, int(fine.min()) + (1 << more)) and int(fine.min()) > -(1 << more)


def first_words(statement: Statement, root: bytes, value: Elements, more: int) -> Elements:
    """Return the words of a client before the quotient: bits of its numbers and noise, blinds (§2.6; §12, 4 and 10)."""
    dither = int.from_bytes(derive(root, "rounding", size=2), "little") & (1 << more) - 1
    numbers = rounded(statement, value, dither, more)
    given = [*numbers.tolist(), *([int(numbers.sum())] if statement.limit else [])]
    if statement.norm:
        given.append(statement.norm - int(((numbers + np.array(statement.lows)) ** 2).sum()))
    bits = [bit for number, size in zip(given, statement.numbers, strict=True) for bit in _bits_of(number, size)]
    drawn = np.frombuffer(
        randombytes_buf_deterministic(-(-statement.noise_size // 8), derive(root, "noise-bits")), np.uint8
    )
    noise = np.unpackbits(drawn, count=statement.noise_size, bitorder="little")
    return np.concatenate([np.array(bits, dtype=np.int64), noise.astype(np.int64), _drawn(root, BLINDS)])


def later_blinds(statement: Statement, root: bytes) -> Elements:
    """Return the blinds of a norm, which stand after the quotient; none without one."""
    count = BLINDS * wires_of(len(statement.sizes))[1] if statement.norm else 0
    return _drawn(root, BLINDS + count)[BLINDS:]


def _drawn(root: bytes, count: int) -> Elements:
    """Return blinds in their order."""
    spare = elements_in(randombytes_buf_deterministic(ELEMENT_BYTES * (count + 32), derive(root, "blinds"))) & PRIME
    return spare[spare < PRIME][:count]


def _bits_of(number: int, size: int) -> list[int]:
    """Return the bits of a number up to `size`: the last one is set where the others alone could not reach it."""
    width = size.bit_length()
    last = number >= 1 << width - 1
    rest = number - (size - (1 << width - 1) + 1) * last
    return [*(rest >> place & 1 for place in range(width - 1)), int(last)]


# --- shares and coins -------------------------------------------------------------------------------------------------


def elements_in(data: bytes) -> Elements:
    """Decode elements: 4 bytes each, little-endian."""
    return np.frombuffer(data, dtype="<u4").astype(np.int64)


def share_of(pair: bytes, announcement_hash: bytes, entry: bytes, words: int) -> Elements:
    """Return the share of a client's words that it derives with one node (§12, step 5)."""
    for attempt in range(256):
        absorbed = pair + PREFIX + b"share" + announcement_hash + entry + bytes([attempt])
        stream = randombytes_buf_deterministic(ELEMENT_BYTES * words, shake_128(absorbed).digest(KEY_BYTES))
        share = elements_in(stream) & PRIME
        if (share < PRIME).all():
            return share
    raise AssertionError("256 draws with a word that is P")


def challenge(announcement_hash: bytes, list_hashes: Sequence[bytes]) -> bytes:
    """Return the seed of the point and of the coins, which all nodes' lists give (§12, step 6)."""
    return digest("challenge", announcement_hash, *list_hashes)


def coins_of(statement: Statement, seed: bytes, entries: Sequence[bytes]) -> Elements:
    """Return the noise coins of entries, ``(n, noise_size)``."""
    size = -(-statement.noise_size // 8)
    packed = b"".join(shake_128(seed + PREFIX + b"noise-coins" + entry).digest(size) for entry in entries)
    octets = np.frombuffer(packed, dtype=np.uint8).reshape(len(entries), size)
    return np.unpackbits(octets, axis=1, count=statement.noise_size, bitorder="little").astype(np.int64)
