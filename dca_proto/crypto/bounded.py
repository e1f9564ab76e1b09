"""Bounded numbers and noise of verified distribution as bits that a client proves (DESIGN §12).

A number x from -C to C becomes x + C on 0..R, R = 2C, as b bits with the weights 1, 2, 4, …, 2^(b-2), R - 2^(b-1) + 1.
Every choice of bits is a number on 0..R, and every number on 0..R has one: proven bits are a proven bound.

Beside it stand m noise numbers of `width` bits each. When no client can change its bits, public coins flip each noise
bit: b XOR c = c + (1 - 2c)·b is linear in b. So a noise number is uniform on 0..2^width - 1 whatever the client chose.
The sum has the noise that the coins made, minus its known mean.
"""

from __future__ import annotations

from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.bit_proof import Block
from dca_proto.crypto.field import DEFAULT, Elements, Field
from dca_proto.errors import UsageError

NOISE_BITS_MAX = 16
BLOCK_BITS_MAX = 1_015_839
"""The largest order of roots of unity below 2^20, the most terms of an exact sum."""


def weights_of(largest: int) -> NDArray[np.int64]:
    """Return the weights of the bits of numbers on 0..largest; they add up to `largest`."""
    width = largest.bit_length()
    weights = 1 << np.arange(width, dtype=np.int64)
    weights[-1] = largest - (1 << width - 1) + 1
    return weights


class Statement(msgspec.Struct, frozen=True, dict=True):
    """What a verified contribution proves: each coordinate lies within its bound, and its noise numbers are bits.

    Attributes:
        bounds: C_k ≥ 1 in grid units, one for each coordinate; x_k lies from -C_k to C_k.
        noises: m, noise numbers for each coordinate of one client.
        noise_bits: bits of a noise number; its variance is (4^noise_bits - 1) / 12 square grid units.
        field: where words live.
    """

    bounds: tuple[int, ...]
    noises: int = 1
    noise_bits: int = 1
    field: Field = DEFAULT

    def check(self, clients: int) -> None:
        """Raise `UsageError` if sums over so many clients do not fit the field, or a proof's block is too large."""
        if not self.bounds or min(self.bounds) < 1 or self.noises < 0 or not 1 <= self.noise_bits <= NOISE_BITS_MAX:
            raise UsageError(
                f"a verified sum has bounds of 1 or more, noise numbers of 1 to {NOISE_BITS_MAX} bits and no fewer "
                f"than 0 of them; found {self!r}"
            )
        largest = clients * (2 * max(self.bounds) + self.noises * ((1 << self.noise_bits) - 1))
        if largest >= self.field.prime:
            raise UsageError(
                f"a verified sum over {clients} clients reaches {largest}, and has to stay below {self.field.prime}: "
                "use a coarser grid, smaller bounds or fewer clients"
            )
        if self.block.bits > BLOCK_BITS_MAX:
            raise UsageError(
                f"a verified sum of {len(self.bounds)} coordinates proves {self.block.bits} bits; the most is "
                f"{BLOCK_BITS_MAX}: use fewer coordinates or a coarser grid"
            )

    @cached_property
    def block(self) -> Block:
        """The sizes of the proof about all bits: those of numbers first, then those of noise."""
        return Block(len(self._weights) + self.noise_size, self.field)

    @property
    def noise_size(self) -> int:
        """Noise bits of one client: coordinate by coordinate, number by number, lowest bit first."""
        return len(self.bounds) * self.noises * self.noise_bits

    @cached_property
    def _parts(self) -> list[NDArray[np.int64]]:
        return [weights_of(2 * bound) for bound in self.bounds]

    @cached_property
    def _weights(self) -> NDArray[np.int64]:
        return np.concatenate(self._parts)

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """Where the bits of each coordinate's number start."""
        widths = [len(part) for part in self._parts]
        return np.cumsum([0, *widths[:-1]])

    def encode(self, x: NDArray[np.int64], noise: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bits of a client's numbers and noise.

        Args:
            x: the numbers in grid units, each within its bound, ``(d,)``.
            noise: fresh random bits, ``(noise_size,)``.
        """
        shifted = x + np.array(self.bounds)
        tops, widths = self._weights[[*(self._starts[1:] - 1), -1]], [len(part) for part in self._parts]
        is_high = shifted >= 1 << np.array(widths) - 1
        low = shifted - np.where(is_high, tops, 0)
        bits = [
            np.append(value >> np.arange(width - 1) & 1, high)
            for value, width, high in zip(low, widths, is_high, strict=True)
        ]
        return np.concatenate([*bits, noise])

    def sum_of_shares(self, shares: Elements, coins: NDArray[np.bool_]) -> Elements:
        """Return a node's share of the noisy sum of all coordinates, ``(d,)``.

        Args:
            shares: the node's shares of the clients' words, or only of their bits, ``(n, ≥ block.bits)``.
            coins: the public coins, ``(n, noise_size)``.
        """
        numbers, modulus = len(self._weights), np.uint64(self.field.prime)
        of_numbers = shares[:, :numbers].sum(axis=0) % modulus
        of_noise = shares[:, numbers : self.block.bits]
        flipped = np.where(coins, modulus - of_noise, of_noise).sum(axis=0) % modulus
        weighted = self.field.multiply(of_numbers, self._weights.astype(np.uint64))
        total = np.add.reduceat(weighted, self._starts)
        return (total + self._noise_sums(flipped)) % modulus

    def coins_part(self, coins: NDArray[np.bool_]) -> Elements:
        """Return what the coins alone add to the noisy sum, ``(d,)``: the trainer adds it once."""
        return self._noise_sums(coins.sum(axis=0).astype(np.uint64)) % np.uint64(self.field.prime)

    def _noise_sums(self, of_bits: Elements) -> Elements:
        powers = np.uint64(1) << np.arange(self.noise_bits, dtype=np.uint64)
        modulus = np.uint64(self.field.prime)
        by_bit = of_bits.reshape(len(self.bounds), self.noises, self.noise_bits)
        sums: Elements = (by_bit.sum(axis=1) % modulus * powers).sum(axis=1) % modulus
        return sums

    def decode(self, total: Elements, clients: int) -> NDArray[np.float64]:
        """Return the noisy sums of x in grid units, ``(d,)``: without the shift by C, and without the noise's mean.

        `total` adds up the shares of all nodes and the coins' part. Sums within `check` never wrap around.
        """
        shift = clients * (np.array(self.bounds) + self.noises * ((1 << self.noise_bits) - 1) / 2)
        return (total % np.uint64(self.field.prime)).astype(np.float64) - shift

    def noise_variance(self, clients: int) -> float:
        """Return the variance of the noise in a sum over so many clients, in square grid units."""
        return clients * self.noises * ((1 << 2 * self.noise_bits) - 1) / 12
