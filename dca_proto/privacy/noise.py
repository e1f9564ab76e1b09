"""Exact discrete Gaussian noise N_Z(0, S), P(x) ∝ exp(-x²/2S), from a key of 32 bytes.

Every decision is made in integers, or in decimal arithmetic with a bound on its error. "Exact discrete Gaussian noise"
in PRIVACY.md has the method, rejection from blocks, and its proof. Three steps decide whether a candidate x of a block
is accepted, U < p(x). Each decides only what it can prove, and leaves the rest to the next one:

    _propose    vectorised, by a bound that holds in the whole block; leaves at most 1 in 80 candidates
    _accepts    by 1 - z <= exp(-z) <= 1 - z + z²/2 in integers; leaves at most 1 in 2·10^4 of all
    _decide     computes exp in decimal, with more bits of U and more digits until the decision is certain

The time varies with the rejected candidates, and in the two rare steps slightly with where in its block an accepted one
lies. So there is no defence against an observer who times a device to the microsecond.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Iterator, Sequence
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_EVEN, Context, Decimal, InvalidOperation, localcontext
from functools import lru_cache
from itertools import count as naturals
from math import isqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto import labels
from dca_proto.crypto.sealing import KEY_BYTES, expand
from dca_proto.errors import UsageError

MIN_VARIANCE = 64
"""Least variance S of a share: the proof in PRIVACY.md needs √S >= 8."""
MAX_VARIANCE = 2**80
"""Greatest variance S: √S = 2^40."""

_COLUMN_BITS = 11
_FRACTION_BITS = 64 - _COLUMN_BITS
_ONE = 2**64
_SPARE_WEIGHT = 2**12  # reserved for rounding every weight up
_TABLE_BITS = 32  # blocks are tabulated while exp(-y²/2S) >= 2^-32: then A exp(-y²/2S) >= 2^20, whatever S is
_SLACK = _ONE >> 20  # so rounding a weight up costs less than 2^-20 of it
_TABLE_ERROR = Decimal("1e-40")  # relative; products of 3·10^3 factors at 60 digits err by less than 1e-50
_CHUNK = 4096  # candidates; their 64 KiB of stream fit the cache, and need no new pages from the kernel
_CANDIDATE_BYTES = 16
_FEW = 32  # up to this many samples, plain integers are faster than numpy


class _Table(NamedTuple):
    """The blocks of one variance: entry j describes the blocks k = j and k = -j, the last one the tails.

    Attributes:
        width_bits: m, with w = 2^m.
        numerator: A.
        lows: y, at most the smallest magnitude in block j.
        weights: W_j of each of the two blocks; for the tail, W without its factor 2^s.
        tail_bits: s.
    """

    width_bits: int
    numerator: int
    lows: tuple[int, ...]
    weights: tuple[int, ...]
    tail_bits: int


class DiscreteGaussian:
    """Sampler of independent N_Z(0, S) from secret keys; S in squared grid units, 64 <= S <= 2^80.

    The true variance falls short of S by less than 1e-500 relative (Canonne, Kamath and Steinke 2020). Raises
    `UsageError` for an S outside these limits.
    """

    def __init__(self, variance: int, *, _table_bits: int = _TABLE_BITS, _fast: bool = True) -> None:
        if not MIN_VARIANCE <= variance <= MAX_VARIANCE:
            raise UsageError(
                f"the variance of a noise share is {variance}, expected {MIN_VARIANCE} to 2^80: "
                f"use {'more' if variance < MIN_VARIANCE else 'fewer'} fraction bits"
            )
        self.variance = variance
        self._table = table = _tabulate(variance, _table_bits)
        m, blocks = table.width_bits, len(table.lows)
        labels = [abs(k) for k in range(1 - blocks, blocks)]  # a label is k + blocks - 1
        sure = _sure_bounds(table) if _fast else [0] * blocks
        self._offset_shift = np.uint64(64 - m)
        self._uniform_shift = np.uint64(m)
        self._column_shift = np.uint64(_FRACTION_BITS)
        self._start = np.array([(k << m) - (1 << m >> 1) for k in range(1 - blocks, blocks)], dtype=np.int64)
        self._sure = np.array([sure[j] for j in labels], dtype=np.uint64)
        masses = [*table.weights[:-1], table.weights[-1] << table.tail_bits]
        self._own_below, self._alias = _alias_table([masses[j] for j in labels])
        known = np.array([-(-sure[j] >> m) for j in labels], dtype=np.uint64)  # `_sure` for the known bits alone
        tables = (self._own_below, self._alias, self._start, known)
        self._few = tuple(array(table.dtype.char, table.tobytes()) for table in tables)  # fast access to single entries
        # Candidates rejected per 1024, about 0.4 w/σ of all. It only sizes buffers.
        self._loss = 1 + (410 << m) // isqrt(variance) if m else 0

    def __repr__(self) -> str:
        return f"DiscreteGaussian(variance={self.variance})"

    def sample(self, count: int, key: bytes) -> NDArray[np.int64]:
        """Return the first `count` >= 0 samples of a key of 32 secret bytes, used for this purpose and no other.

        Raises `UsageError` for a negative count or a key of another length.
        """
        if count < 0:
            raise UsageError(f"the number of noise samples is {count}, expected 0 or more")
        if not isinstance(key, bytes) or len(key) != KEY_BYTES:
            found = f"{len(key)} bytes" if isinstance(key, bytes) else f"of type {type(key).__name__}"
            raise UsageError(f"a noise key is {found}, expected {KEY_BYTES} secret bytes")
        few = self._sample_few(key, count) if 0 < count <= _FEW else None
        if few is not None:
            return few
        parts = [self._sample_chunk(key, 0, count)]
        left = count - len(parts[0])
        while left:
            parts.append(self._sample_chunk(key, len(parts), left))
            left -= len(parts[-1])
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    def _sample_few(self, key: bytes, count: int) -> NDArray[np.int64] | None:
        """Return the first samples of a key without numpy, which is faster for a few.

        It reads the candidates of `_sample_chunk`, two more than `count`; None if these do not suffice.
        """
        below, alias, start, sure = self._few
        m = self._table.width_bits
        candidates = struct.iter_unpack("<QQ", expand(_chunk_seed(key, 0), _CANDIDATE_BYTES * (count + 2)))
        samples: list[int] = []
        offset_shift, known_bits = 64 - m, (_ONE >> m) - 1
        for position, (choice, second) in enumerate(candidates):
            label = choice >> _FRACTION_BITS
            if choice >= below[label]:
                label = alias[label]
            x: int | None = start[label] + (second >> offset_shift)
            if second & known_bits >= sure[label]:
                x = self._settle(start[label] + (second >> offset_shift), second, _spare_words(key, position))
            if x is not None:
                samples.append(x)
                if len(samples) == count:
                    return np.array(samples, dtype=np.int64)
        return None

    def _sample_chunk(self, key: bytes, chunk: int, wanted: int) -> NDArray[np.int64]:
        """Return the first samples of a chunk: `wanted`, or as many as it has."""
        seed = _chunk_seed(key, chunk)
        candidates = self._candidates(wanted)
        while True:
            candidates = min(candidates, _CHUNK)
            stream = expand(seed, candidates * _CANDIDATE_BYTES)
            x, rejected = self._judge(stream, key, chunk * _CHUNK)
            if candidates - len(rejected) >= wanted or candidates == _CHUNK:
                return np.delete(x, rejected)[:wanted] if rejected else x[:wanted]
            candidates *= 2

    def _candidates(self, wanted: int) -> int:
        """Return how many candidates nearly always suffice: the mean plus four standard deviations and two."""
        rejected = wanted * self._loss >> 10
        return wanted + rejected + 4 * isqrt(rejected) + 2

    def _judge(self, stream: bytes, key: bytes, first: int) -> tuple[NDArray[np.int64], list[int]]:
        """Return the candidates of a stream, from number `first` of the key's stream on, and the rejected indices."""
        words = np.frombuffer(stream, dtype="<u8")
        x, doubtful = self._propose(words)
        rejected = []
        for i in doubtful.tolist():
            settled = self._settle(int(x[i]), int(words[2 * i + 1]), _spare_words(key, first + i))
            if settled is None:
                rejected.append(i)
            else:
                x[i] = settled
        return x, rejected

    def _propose(self, words: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
        """Return candidates, and the indices of those not sure to be accepted, including all in the tail."""
        choice, second = words[0::2], words[1::2]
        column = (choice >> self._column_shift).view(np.int64)
        label = np.where(choice < self._own_below.take(column), column, self._alias.take(column))
        x = self._start.take(label)
        x += (second >> self._offset_shift).view(np.int64)
        doubtful = (second << self._uniform_shift) >= self._sure.take(label)
        return x, doubtful.nonzero()[0]

    def _settle(self, x: int, second: int, spare: Iterator[int]) -> int | None:
        """Return the sample that a doubtful candidate becomes, or None if it is rejected."""
        m, numerator, lows, weights, tail_bits = self._table
        known, uniform = 64 - m, second & ((_ONE >> m) - 1)
        j = abs(x + (1 << m >> 1) >> m)
        if j < len(lows) - 1:
            accepted = _accepts(x * x - lows[j] * lows[j], self.variance, uniform << m, 1 << m)
            if accepted is None:
                accepted = _decide(x * x, self.variance, weights[j], numerator, uniform, known, spare)
            return x if accepted else None
        steps = 0
        while next(spare) >> (64 - tail_bits):
            steps += 1
        x += steps << m if x > 0 else -(steps << m)
        weight = weights[j] * ((1 << tail_bits) - 1) ** steps
        accepted = _decide(x * x, self.variance, weight, numerator << tail_bits * steps, uniform, known, spare)
        return x if accepted else None


@lru_cache(maxsize=64)
def discrete_gaussian(variance: int) -> DiscreteGaussian:
    """Return the sampler of a variance, cached (building its table takes milliseconds)."""
    return DiscreteGaussian(variance)


def _accepts(excess: int, variance: int, uniform: int, unknown: int) -> bool | None:
    """Return whether U < p(x), or None if this step cannot decide it.

    `excess` is x² - y² >= 0 (y of the block, see above). With z = excess/2S, (1 - 2^-20) exp(-z) <= p(x) <= exp(-z). U
    is in [uniform, uniform + unknown) / 2^64.
    """
    z = (excess << 63) // variance  # rounded down, in units of 2^-64
    if uniform + unknown <= _ONE - z - 1 - _SLACK:
        return True
    if uniform > _ONE - z + ((z + 1) * (z + 1) >> 65):
        return False
    return None


def _decide(
    square: int, variance: int, weight: int, numerator: int, uniform: int, bits: int, spare: Iterator[int]
) -> bool:
    """Return True if U < p = (numerator/weight) exp(-square/2S), exactly.

    U is in [uniform, uniform + 1) / 2^bits. Decimal's exp is correctly rounded; at n digits its argument is off by at
    most 10^(1-n)/2 of itself, so p is off by a factor within 1 ± (argument + 9) 10^(1-n). (U = p has probability zero.)
    """
    for digits in naturals(start=50, step=20):
        with localcontext(decimal_context(digits)):
            exponent = Decimal(square) / (2 * variance)
            p = (-exponent).exp() * numerator / weight
            error = p * (exponent + 9).scaleb(1 - digits)
            scale = Decimal(1 << bits)
            if uniform + 1 <= (p - error) * scale:
                return True
            if uniform >= (p + error) * scale:
                return False
        uniform, bits = uniform << 64 | next(spare), bits + 64
    raise AssertionError("the digits have no end")


def _tabulate(variance: int, table_bits: int) -> _Table:
    """Compute blocks and weights. Two products carry exp(-y²/2S) from block to block, exact to 1e-50 relative."""
    m = max(0, ((variance >> 12).bit_length() - 1) // 2)
    width, half = 1 << m, 1 << m >> 1
    with localcontext(decimal_context(60)):
        lows, heights = _outline(variance, width, half, Decimal(1) / (1 << table_bits))
        step = lows[-1] * width  # the tail's blocks fall at least by exp(-step/S) <= 1 - step/(S + step)
        tail_bits = (-(-(variance + step) // step) - 1).bit_length()
        mass = 1 + 2 * (sum(heights[1:-1]) + heights[-1] * (1 << tail_bits))
        numerator = int((_ONE - _SPARE_WEIGHT) / mass)
        weights = [int(height * numerator * (1 + _TABLE_ERROR)) + 1 for height in heights]
    weights[0] = _ONE - 2 * (sum(weights[1:-1]) + (weights[-1] << tail_bits))
    assert 0 <= weights[0] - numerator < 2 * _SPARE_WEIGHT
    return _Table(m, numerator, tuple(lows), tuple(weights), tail_bits)


def _outline(variance: int, width: int, half: int, least: Decimal) -> tuple[list[int], list[Decimal]]:
    """Return the y of each block and exp(-y²/2S), up to the first below `least`."""

    def density(square: int) -> Decimal:
        return (Decimal(-square) / (2 * variance)).exp()

    lows = [0, width - half]
    heights = [Decimal(1), density(lows[1] ** 2)]
    ratio, ratio_step = density((2 * width - half) ** 2 - lows[1] ** 2), density(2 * width * width)
    while heights[-1] >= least:
        lows.append(lows[-1] + width)
        heights.append(heights[-1] * ratio)
        ratio *= ratio_step
    return lows, heights


def _sure_bounds(table: _Table) -> list[int]:
    """Return a bound per block, in units of 2^-64: if U's known bits are below it, U < p(x) for all x of the block.

    The largest magnitude in a block is the y of the next one (its own if w = 1); for it A exp(-y²/2S) > W - 2.
    """
    m, numerator, _, weights, _ = table
    ends = weights[1:] if m else weights[:-1]
    sure = [
        max(0, (min(end, numerator) - 2 << 64) // weight - (1 << m))
        for weight, end in zip(weights[:-1], ends, strict=True)
    ]
    return [*sure, 0]


def _alias_table(masses: Sequence[int]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Divide masses of sum 2^64 exactly among columns (Walker 1977, Vose 1991, in integers).

    Return, for each column, the least word that goes to its alias instead of its own label, and the alias.
    """
    columns, room = 1 << _COLUMN_BITS, 1 << _FRACTION_BITS
    assert sum(masses) == _ONE
    assert len(masses) <= columns
    left = [*masses, *[0] * (columns - len(masses))]
    below = [0] * columns
    alias = list(range(columns))
    poor = [i for i in range(columns) if left[i] < room]
    rich = [i for i in range(columns) if left[i] > room]
    while poor:
        i, donor = poor.pop(), rich[-1]
        below[i], alias[i] = left[i], donor
        left[donor] -= room - left[i]
        if left[donor] <= room:
            rich.pop()
        if left[donor] < room:
            poor.append(donor)
    starts = [(i << _FRACTION_BITS) + below[i] for i in range(columns)]
    return np.array(starts, dtype=np.uint64), np.array(alias, dtype=np.int64)


def decimal_context(digits: int) -> Context:
    """Return a decimal context that does not depend on the caller's thread."""
    return Context(prec=digits, rounding=ROUND_HALF_EVEN, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[InvalidOperation])


def _chunk_seed(key: bytes, chunk: int) -> bytes:
    return hashlib.blake2b(struct.pack("<Q", chunk), digest_size=KEY_BYTES, key=key, person=labels.NOISE_CHUNK).digest()


def _spare_words(key: bytes, position: int) -> Iterator[int]:
    """Yield further words of 64 bits for the candidate at a position."""
    for block in naturals():
        text = struct.pack("<QQ", position, block)
        yield from struct.unpack("<8Q", hashlib.blake2b(text, key=key, person=labels.NOISE_SPARE).digest())
