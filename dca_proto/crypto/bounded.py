"""Bounded numbers and noise of verified distribution as bits that a client proves (DESIGN §12).

A number x from l to l + R becomes x - l on 0..R, as b bits with the weights 1, 2, 4, …, 2^(b-2), R - 2^(b-1) + 1. Every
choice of bits is a number on 0..R, and every number on 0..R has one: proven bits are a proven bound.

A limit l <= Σ w_k x_k <= l + s has such a number on 0..s, too: Σ w_k x_k - l. The nodes open, for all limits together,
whether these numbers are what they have to be. The opening is public beforehand for an honest client.

A norm Σ x_k² <= s + t·c has one, too: s + t·c - Σ x_k². `crypto.norm` proves that it is what it has to be.

Beside each x stand m noise numbers of `width` bits each. When no client can change its bits, public coins flip each
noise bit: b XOR c = c + (1 - 2c)·b is linear in b. So a noise number is uniform on 0..2^width - 1 whatever the client
chose. The sum has the noise that the coins made, minus its known mean.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto import norm as norms
from dca_proto.crypto.bit_proof import OPENED, BlockSizes, prove, query
from dca_proto.crypto.bit_proof import accepted as proves
from dca_proto.crypto.field import DEFAULT, AnyElements, Elements, Factor, Field, as_floats, factor_of
from dca_proto.errors import UsageError

NOISE_BITS_MAX = 16
_EXACT = 2.0**53  # floating-point numbers have every whole number below it
BLOCK_BITS_MAX = 1_015_839
"""The largest order of roots of unity below 2^20, the longest polynomials whose product is exact."""


def weights_of(largest: int) -> NDArray[np.int64]:
    """Return the weights of the bits of numbers on 0..largest; they add up to `largest`."""
    width = largest.bit_length()
    weights = 1 << np.arange(width, dtype=np.int64)
    weights[-1] = largest - (1 << width - 1) + 1
    return weights


class Limit(msgspec.Struct, frozen=True):
    """A limit of a public combination: low <= Σ w_k x_k <= low + size.

    Attributes:
        weights: w_k, one for each coordinate.
        low: in grid units. size: 0 for an equality.
    """

    weights: tuple[int, ...]
    low: int = 0
    size: int = 0


class Norm(msgspec.Struct, frozen=True):
    """A limit of a sum of squares: Σ x_k² <= most + slope·c.

    Attributes:
        count: p; the sum is over the first p coordinates.
        most: s, in square grid units, 1 or more. slope: t, of the last coordinate c; 0 if that does not matter.
    """

    count: int
    most: int
    slope: int = 0


class BoundsQuery(NamedTuple):
    """The public weights of words in an opening at one point.

    Attributes:
        common: in A and C, in E if there are limits, in G(r) if there is a norm, ``(words, 4 to 8)``. What numbers add
            to G(r) is not among them: it is the same at all points.
        wires: in each f_j, of the numbers of its wire and of its blinds, ``(h + 2k, 2)``; None without a norm.
    """

    common: Factor
    wires: Factor | None


class Statement(msgspec.Struct, frozen=True, dict=True):
    """What a verified contribution proves: each coordinate lies within its bounds, and its noise numbers are bits.

    Attributes:
        lows: l_k in grid units, one for each coordinate.
        sizes: R_k >= 1; x_k lies from l_k to l_k + R_k.
        noises: m, noise numbers for each coordinate of one client.
        noise_bits: bits of a noise number; its variance is (4^noise_bits - 1) / 12 square grid units.
        limits: of combinations of the coordinates. norm: of their squares, if there is such a limit.
        field: where words live.
    """

    lows: tuple[int, ...]
    sizes: tuple[int, ...]
    noises: int = 1
    noise_bits: int = 1
    limits: tuple[Limit, ...] = ()
    norm: Norm | None = None
    field: Field = DEFAULT

    @classmethod
    def within(cls, *bounds: int, noises: int = 1, noise_bits: int = 1) -> Statement:
        """Return the statement that each x_k lies from -C_k to C_k."""
        return cls(tuple(-bound for bound in bounds), tuple(2 * bound for bound in bounds), noises, noise_bits)

    def check(self, clients: int) -> None:
        """Raise `UsageError` if sums over so many clients do not fit the field, or a proof's block is too large."""
        if not self.sizes or min(self.sizes) < 1 or self.noises < 0 or not 1 <= self.noise_bits <= NOISE_BITS_MAX:
            raise UsageError(
                f"a verified sum has numbers on 0..R with R of 1 or more, and noise numbers of 1 to {NOISE_BITS_MAX} "
                f"bits, no fewer than 0; found R of {min(self.sizes, default=0)}, and {self.noises} noise numbers of "
                f"{self.noise_bits} bits"
            )
        largest = self.largest_sum(clients)
        if largest >= self.field.prime:
            raise UsageError(
                f"a verified sum over {clients} clients reaches {largest}, and has to stay below {self.field.prime}: "
                "use a coarser grid, smaller bounds or fewer clients"
            )
        if self._reach >= self.field.prime:
            raise UsageError(
                f"a limit of a verified sum reaches {self._reach}, and has to stay below "
                f"{self.field.prime}: use a coarser grid or smaller bounds"
            )
        if self.norm_reach >= self.field.prime:
            raise UsageError(
                f"a norm of a verified sum reaches {self.norm_reach}, and has to stay below {self.field.prime}: use a "
                "coarser grid or smaller bounds"
            )
        bits = sum(number.bit_length() for number in self.numbers) + self.noise_size
        if bits > BLOCK_BITS_MAX:
            raise UsageError(
                f"a verified sum of {len(self.sizes)} coordinates proves {bits} bits; the most is "
                f"{BLOCK_BITS_MAX}: use fewer coordinates or a coarser grid"
            )

    def largest_sum(self, clients: int) -> int:
        """Return the largest sum of one coordinate over so many clients, noise included: it must fit the field."""
        return clients * (max(self.sizes) + self.noises * ((1 << self.noise_bits) - 1))

    @cached_property
    def _reach(self) -> int:
        """The largest |Σ w_k x_k - low - number| of a limit, of any numbers within their bounds.

        It is exact below 2^53. What is larger, or has larger terms, counts as 2^53 or more, and fits no field.
        """
        weights = self._limit_weights.astype(np.float64)
        ends = weights * np.array(self.lows, np.float64), weights * np.add(self.lows, self.sizes, dtype=np.float64)
        low = np.array([limit.low for limit in self.limits], np.float64)
        most = np.maximum(*ends).sum(axis=1) - low
        least = np.minimum(*ends).sum(axis=1) - low
        terms = np.maximum(*np.abs(ends)).sum(axis=1) + np.abs(low)
        reach = np.maximum(most, self._limit_sizes - least)
        return int(np.where(terms < _EXACT, reach, np.maximum(terms, reach)).max(initial=0.0))

    @cached_property
    def norm_reach(self) -> int:
        """The largest |s + t·c - Σ x_k² - number| of a norm, of any numbers within their bounds; 0 without one."""
        if self.norm is None:
            return 0
        each = zip(self.lows[: self.norm.count], self.sizes, strict=False)
        farthest = sum(max(low**2, (low + size) ** 2) for low, size in each)
        return max(self._norm_size, farthest + self.norm.slope * self.sizes[-1])

    @property
    def _norm_size(self) -> int:
        """Z, the largest number of a norm."""
        assert self.norm is not None, "callers looked"
        return self.norm.most + self.norm.slope * (self.lows[-1] + self.sizes[-1])

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """The largest of each number that has bits: of the coordinates, of limits with a size, of the norm."""
        of_limits = (limit.size for limit in self.limits if limit.size)
        return (*self.sizes, *of_limits, *([] if self.norm is None else [self._norm_size]))

    def holds(self, x: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether numbers in grid units, ``(…, d)``, are within all bounds and limits, and the norm is."""
        shifted, numbers = x - self._lows, self._combined(x)
        above_zero = np.concatenate([shifted, numbers, self._left(x)], axis=-1) >= 0
        within = np.concatenate([shifted <= self._sizes, numbers <= self._limit_sizes], axis=-1)
        found: NDArray[np.bool_] = np.logical_and(above_zero.all(axis=-1), within.all(axis=-1))
        return found

    def clipped(self, x: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return numbers within their bounds, each the nearest; limits may still not hold."""
        nearest: NDArray[np.int64] = np.minimum(np.maximum(x, self._lows), self._lows + self._sizes)
        return nearest

    @cached_property
    def block(self) -> BlockSizes:
        """The sizes of the proof about all bits: of numbers first, of limits' numbers then, of noise last."""
        return BlockSizes(self._numbers_end + self.noise_size, self.field)

    @cached_property
    def wires(self) -> norms.Wires | None:
        """The sizes of the proof about the norm, if there is one."""
        return None if self.norm is None else norms.Wires(self.norm.count, self.field)

    @property
    def words(self) -> int:
        """Elements that a client shares."""
        return self.block.words + (0 if self.wires is None else self.wires.words)

    @property
    def blinds(self) -> int:
        """Uniform elements that a client draws."""
        return self.block.blinds + (0 if self.wires is None else self.wires.blinds)

    @property
    def noise_size(self) -> int:
        """Noise bits of one client: coordinate by coordinate, number by number, lowest bit first."""
        return len(self.sizes) * self.noises * self.noise_bits

    @cached_property
    def _lows(self) -> NDArray[np.int64]:
        return np.array(self.lows, dtype=np.int64)

    @cached_property
    def _sizes(self) -> NDArray[np.int64]:
        return np.array(self.sizes, dtype=np.int64)

    @cached_property
    def _limit_weights(self) -> NDArray[np.int64]:
        """w of all limits, ``(e, d)``."""
        return np.array([limit.weights for limit in self.limits], dtype=np.int64).reshape(-1, len(self.sizes))

    @cached_property
    def _limit_lows(self) -> NDArray[np.int64]:
        return np.array([limit.low for limit in self.limits], dtype=np.int64)

    @cached_property
    def _limit_sizes(self) -> NDArray[np.int64]:
        return np.array([limit.size for limit in self.limits], dtype=np.int64)

    def _combined(self, x: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return Σ w_k x_k - low of each limit, ``(…, e)``."""
        numbers: NDArray[np.int64] = x @ self._limit_weights.T - self._limit_lows
        return numbers

    def _left(self, x: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return what a norm leaves, s + t·c - Σ x_k², ``(…, 1)``; nothing without one."""
        if self.norm is None:
            return x[..., :0]
        squares = np.sum(x[..., : self.norm.count] ** 2, axis=-1, keepdims=True)
        left: NDArray[np.int64] = self.norm.most + self.norm.slope * x[..., -1:] - squares
        return left

    @cached_property
    def _parts(self) -> list[NDArray[np.int64]]:
        """Weights of the bits of each number."""
        return [weights_of(size) for size in self.numbers]

    @cached_property
    def _weights(self) -> NDArray[np.int64]:
        return np.concatenate(self._parts)

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """Where the bits of each number start, and where those of the last one end."""
        return np.cumsum([0, *map(len, self._parts)])

    @property
    def _coordinates_end(self) -> int:
        return int(self._starts[len(self.sizes)])

    @property
    def _numbers_end(self) -> int:
        return int(self._starts[-1])

    def encode(self, x: NDArray[np.int64], noise: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bits of a client's numbers and noise.

        Args:
            x: the numbers in grid units, for which `holds`, ``(d,)``.
            noise: fresh random bits, ``(noise_size,)``.
        """
        shifted = x - self._lows
        if self.limits or self.norm is not None:
            shifted = np.concatenate([shifted, self._combined(x)[self._limit_sizes > 0], self._left(x)])
        widths, places, highest = self._layout
        is_high = shifted >= 1 << widths - 1
        low = shifted - is_high * self._weights[highest]
        bits: NDArray[np.int64] = np.concatenate([np.repeat(low, widths) >> places & 1, noise])
        bits[highest] = is_high
        return bits

    @cached_property
    def _layout(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """How many bits each number has, each bit's place in its number, and where the highest bits are."""
        widths = np.diff(self._starts)
        return widths, np.arange(self._numbers_end) - np.repeat(self._starts[:-1], widths), self._starts[1:] - 1

    def prove(self, bits: NDArray[np.int64], blinds: Elements) -> Elements:
        """Return the words to share, ``(words,)``: of the proof about bits, then of that about the norm.

        Args:
            bits: what `encode` returns; others give words that no query accepts, but for the stated errors.
            blinds: fresh uniform elements, ``(blinds,)``.
        """
        of_bits = prove(self.block, bits, blinds[: self.block.blinds])
        if self.wires is None:
            return of_bits
        shifted = self._numbers(self.field.of(bits))[: self.wires.numbers]
        return np.concatenate([of_bits, norms.prove(self.wires, shifted, blinds[self.block.blinds :])])

    # --- openings -----------------------------------------------------------------------------------------------------

    @property
    def _norm_at(self) -> int:
        """Where G(r) is in an opening: after A and C, and after E if there are limits."""
        return OPENED + 2 * bool(self.limits)

    @property
    def opened(self) -> int:
        """Elements of an opening: A and C, E if there are limits, G(r) and all f_j(r) if there is a norm."""
        return self._norm_at + (0 if self.wires is None else self.wires.opened)

    def query(self, r: Elements) -> BoundsQuery:
        """Return the public weights of the words in an opening at r."""
        end = self._norm_at
        common = np.zeros((self.words, end + 2 * (self.wires is not None)), dtype=np.uint64)
        common[: self.block.words, :OPENED] = query(self.block, r)
        if self.limits:
            powers = self.field.extension_powers(r, len(self.limits))
            common[: self._numbers_end, OPENED:end] = self.field.matrix_product(self._limits_of_bits.T, powers)
        if self.wires is None:
            return BoundsQuery(factor_of(common), None)
        known = norms.query(self.wires, r)
        common[-self.wires.coefficients :, end:] = known.coefficients
        return BoundsQuery(factor_of(common), factor_of(np.concatenate([known.values, known.blinds])))

    def opening(self, shares: AnyElements, query: BoundsQuery) -> Elements:
        """Return a node's shares of the openings of many clients, ``(n, opened)``.

        Args:
            shares: its shares of their words, ``(n, words)``.
        """
        found = self.field.product_with(shares, query.common)
        if self.wires is None or query.wires is None:
            return found
        numbers, blinds = self._numbers(shares), shares[:, self.block.words :][:, : self.wires.blinds]
        squared = self.field.matrix_product(numbers, self._norm_of_numbers[:, np.newaxis])[:, 0]
        found[:, self._norm_at] = (found[:, self._norm_at] + squared) % np.uint64(self.field.prime)
        each = norms.arranged(self.wires, numbers[:, : self.wires.numbers], blinds)
        of_wires = self.field.product_with(each, query.wires).reshape(len(shares), -1)
        return np.concatenate([found, of_wires], axis=1)

    def _numbers(self, words: AnyElements) -> Elements:
        """Return all numbers, or a node's shares of them, from their bits, ``(…, len(numbers))``: no sum reaches P²."""
        weighted = words[..., : self._numbers_end].astype(np.uint64) * self._weights.astype(np.uint64)
        numbers: Elements = np.add.reduceat(weighted, self._starts[:-1], axis=-1) % np.uint64(self.field.prime)
        return numbers

    @cached_property
    def _norm_of_numbers(self) -> Elements:
        """What each number adds to (Σ κ_k y_k - z)/h, ``(len(numbers),)``, modulo P."""
        assert self.norm is not None, "callers looked"
        found = np.zeros(len(self._parts), dtype=np.int64)
        found[: self.norm.count] = -2 * self._lows[: self.norm.count]
        found[len(self.sizes) - 1] += self.norm.slope
        found[-1] = -1
        return self.field.multiply(self.field.of(found), self._per_order)

    @property
    def _per_order(self) -> np.uint64:
        """1/h, modulo P."""
        assert self.wires is not None, "callers looked"
        return np.uint64(pow(self.wires.order, self.field.prime - 2, self.field.prime))

    @cached_property
    def _limits_of_bits(self) -> Elements:
        """What each bit adds to each limit's Σ w_k (x_k - l_k) - number, ``(e, bits of numbers)``, modulo P."""
        owners = np.repeat(np.arange(len(self._parts)), np.diff(self._starts))
        of_numbers = np.zeros((len(self.limits), len(self._parts)), dtype=np.int64)
        of_numbers[:, : len(self.sizes)] = self._limit_weights
        with_number = np.flatnonzero(self._limit_sizes)
        of_numbers[with_number, len(self.sizes) + np.arange(len(with_number))] = -1
        return self.field.multiply(self.field.of(of_numbers)[:, owners], self.field.of(self._weights))

    def accepted(self, total: Elements, r: Elements) -> NDArray[np.bool_]:
        """Return for which clients the sums of all nodes' openings at r, ``(n, opened)``, prove the statement."""
        right, end = proves(self.field, [total[:, :OPENED]]), self._norm_at
        if self.limits:
            known = self.field.of(-self._combined(self._lows))[np.newaxis]
            expected = self.field.matrix_product(known, self.field.extension_powers(r, len(self.limits)))
            right &= (total[:, OPENED:end] % np.uint64(self.field.prime) == expected).all(axis=1)
        if self.norm is not None:
            found = total[:, end:] % np.uint64(self.field.prime)
            left = self.field.multiply(self.field.of(self._left(self._lows)), self._per_order)  # κ/h
            found[:, :1] = (found[:, :1] + left) % np.uint64(self.field.prime)
            right &= (norms.squares_of(self.field, found[:, 2:]) == found[:, :2]).all(axis=1)
        return right

    # --- sums ---------------------------------------------------------------------------------------------------------
    def flipped_sums(self, shares: AnyElements, coins: NDArray[np.bool_]) -> Elements:
        """Return the sum of some clients' shares of each bit, for a noise bit of (1 - 2c)·b, ``(block.bits,)``.

        Args:
            shares: a node's shares of the clients' words, or only of their bits, ``(n, ≥ block.bits)``. Up to
                n = 2^21, sums of floating-point numbers are exact: they and twice a part of them stay below 2^53.
            coins: the public coins, ``(n, noise_size)``.
        """
        bits = as_floats(shares[:, : self.block.bits])
        sums, noise = bits.sum(axis=0), slice(self._numbers_end, None)
        sums[noise] -= 2 * np.einsum("ij,ij->j", bits[:, noise], coins.astype(np.float64))
        return self.field.of(sums.astype(np.int64))

    def share_of_sum(self, of_bits: Elements) -> Elements:
        """Return a node's share of the noisy sum of all coordinates from its `flipped_sums`, ``(d,)``."""
        end = self._coordinates_end
        weighted = self.field.multiply(of_bits[:end], self._weights[:end].astype(np.uint64))
        total = np.add.reduceat(weighted, self._starts[: len(self.sizes)])
        return (total + self._noise_sums(of_bits[self._numbers_end :])) % np.uint64(self.field.prime)

    def sum_of_shares(self, shares: AnyElements, coins: NDArray[np.bool_]) -> Elements:
        """Return a node's share of the noisy sum of all coordinates, ``(d,)``; arguments are those of `flipped_sums`.

        The sums of bits of many parts of the clients can be added up before.
        """
        return self.share_of_sum(self.flipped_sums(shares, coins))

    def coins_part(self, coins: NDArray[np.bool_]) -> Elements:
        """Return what the coins alone add to the noisy sum, ``(d,)``: the trainer adds it once."""
        return self._noise_sums(coins.sum(axis=0).astype(np.uint64)) % np.uint64(self.field.prime)

    def _noise_sums(self, of_bits: Elements) -> Elements:
        powers = np.uint64(1) << np.arange(self.noise_bits, dtype=np.uint64)
        modulus = np.uint64(self.field.prime)
        by_bit = of_bits.reshape(len(self.sizes), self.noises, self.noise_bits)
        sums: Elements = (by_bit.sum(axis=1) % modulus * powers).sum(axis=1) % modulus
        return sums

    def decode(self, total: Elements, clients: int) -> NDArray[np.float64]:
        """Return the noisy sums of x in grid units, ``(d,)``: without the shift by l, and without the noise's mean.

        `total` adds up the shares of all nodes and the coins' part. Sums within `check` never wrap around.
        """
        shift = clients * (self._lows - self.noises * ((1 << self.noise_bits) - 1) / 2)
        return (total % np.uint64(self.field.prime)).astype(np.float64) + shift

    def noise_variance(self, clients: int) -> float:
        """Return the variance of the noise in a sum over so many clients, in square grid units."""
        return clients * self.noises * ((1 << 2 * self.noise_bits) - 1) / 12
