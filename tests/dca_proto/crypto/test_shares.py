"""What a Compute node computes of its shares agrees with Python's integers and the formulas of DESIGN §12."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from nacl import bindings

from dca_proto.crypto import shares
from dca_proto.crypto.bounded import Limit, Statement
from dca_proto.crypto.field import PRIME
from dca_proto.crypto.shares import coins_of, open_shares, pads_of, point_of

HASH, SEED = bytes(range(32)), bytes(range(1, 33))
Pair = tuple[int, int]


def words_of(key: bytes, entry: bytes, count: int, attempt: int = 0) -> list[int]:
    seed = hashlib.shake_128(key + b"dca5-share" + HASH + entry + bytes([attempt])).digest(32)
    stream = bindings.randombytes_buf_deterministic(4 * count, seed)
    return [int.from_bytes(stream[at : at + 4], "little") & PRIME for at in range(0, 4 * count, 4)]


def times(a: Pair, b: Pair) -> Pair:
    return (a[0] * b[0] - a[1] * b[1]) % PRIME, (a[0] * b[1] + a[1] * b[0]) % PRIME


def power(base: Pair, exponent: int) -> Pair:
    result = (1, 0)
    for _ in range(exponent):
        result = times(result, base)
    return result


def at_point(coefficients: list[int], r: Pair) -> Pair:
    value = (0, 0)
    for one in reversed(coefficients):  # Horner's rule
        real, cross = times(value, r)
        value = (real + one) % PRIME, cross
    return value


def opened(statement: Statement, words: list[int]) -> list[int]:
    """A, C and E of words, from the weights in an opening (DESIGN §12)."""
    block = statement.block
    n, end = block.order, block.bits + block.blinds
    r = int(point_of(SEED)[0]), int(point_of(SEED)[1])
    omega, real, cross = pow(7, (PRIME - 1) // n, PRIME), *power(r, n)
    vanishing = (real - 1) % PRIME, cross
    a = e = (0, 0)
    for j, word in enumerate(words[: block.bits]):
        x, y = (r[0] - pow(omega, j, PRIME)) % PRIME, r[1]
        norm = pow(x * x + y * y, -1, PRIME)
        inverse = x * norm % PRIME, -y * norm % PRIME
        scale = word * pow(omega, j, PRIME) * pow(n, -1, PRIME) % PRIME
        term = times(times(vanishing, inverse), (scale, 0))
        a = (a[0] + term[0]) % PRIME, (a[1] + term[1]) % PRIME
    of_blinds, c = (times(vanishing, at_point(some, r)) for some in (words[block.bits : end], words[end:]))
    a = (a[0] + of_blinds[0]) % PRIME, (a[1] + of_blinds[1]) % PRIME
    numbers, at = [], 0
    for size in (*statement.sizes, *(limit.size for limit in statement.limits if limit.size)):
        width = size.bit_length()
        weights = [*(1 << place for place in range(width - 1)), size - 2 ** (width - 1) + 1]
        numbers.append(sum(w * bit for w, bit in zip(weights, words[at : at + width], strict=True)))
        at += width
    own = iter(numbers[len(statement.sizes) :])
    for place, limit in enumerate(statement.limits):
        number = sum(w * x for w, x in zip(limit.weights, numbers, strict=False)) - (next(own) if limit.size else 0)
        factor = power(r, place)
        e = (e[0] + factor[0] * number) % PRIME, (e[1] + factor[1] * number) % PRIME
    return [*a, *c, *(e if statement.limits else ())]


def summed(statement: Statement, rows: list[list[int]], coins: list[list[bool]]) -> list[int]:
    """A node's share of the sum of all numbers and flipped noise bits (DESIGN §12)."""
    total = [0] * len(statement.sizes)
    first_noise = statement.block.bits - statement.noise_size
    for words, flips in zip(rows, coins, strict=True):
        at = 0
        for k, size in enumerate(statement.sizes):
            width = size.bit_length()
            weights = [*(1 << place for place in range(width - 1)), size - 2 ** (width - 1) + 1]
            total[k] += sum(w * word for w, word in zip(weights, words[at : at + width], strict=True))
            at += width
        for place, flip in enumerate(flips):
            k, bit = place // (statement.noises * statement.noise_bits), place % statement.noise_bits
            total[k] += (1 - 2 * flip) * words[first_noise + place] << bit
    return [one % PRIME for one in total]


def drawn(rng: np.random.Generator) -> Statement:
    d, limits = int(rng.integers(1, 5)), int(rng.integers(0, 3))
    sizes = tuple(rng.integers(1, 200, d).tolist())
    of_limits = [
        Limit(tuple(rng.integers(-3, 4, d).tolist()), int(rng.integers(-9, 9)), int(rng.integers(0, 2)) * 77)
        for _ in range(limits)
    ]
    noises, bits = int(rng.integers(0, 4)), int(rng.integers(1, 5))
    return Statement(tuple(rng.integers(-9, 9, d).tolist()), sizes, noises, bits, tuple(of_limits))


@pytest.mark.parametrize("seed", range(8))
def test_openings_and_sums_are_those_of_plain_integers(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of random statements and numbers of entries; a third of the entries have a vector y, with the largest words."""
    rng = np.random.default_rng(seed)
    statement, count = drawn(rng), int(rng.integers(1, 12))
    words = statement.block.words
    monkeypatch.setattr(shares, "_CHUNK_WORDS", 3 * words)
    monkeypatch.setattr(shares, "_CHUNK_ROWS", 1)
    keys, entries = ([rng.bytes(size) for _ in range(count)] for size in (32, 36))
    held = [
        rng.choice([0, 1, PRIME - 1, PRIME // 2], words).astype("<u4").tobytes() if rng.random() < 0.3 else b""
        for _ in range(count)
    ]
    rows = [words_of(key, entry, words) for key, entry in zip(keys, entries, strict=True)]
    for row, y in zip(rows, held, strict=True):
        if y:
            row[:] = [(a + int(b)) % PRIME for a, b in zip(row, np.frombuffer(y, "<u4"), strict=True)]
    coins = coins_of(SEED, entries, statement.noise_size).tolist()
    found = open_shares(statement, SEED, keys, entries, held, HASH)
    assert found.openings.tolist() == [opened(statement, row) for row in rows]
    assert found.total.tolist() == summed(statement, rows, coins)


def test_no_entries_have_no_openings_and_the_sum_zero() -> None:
    statement = Statement.within(5, 9, noises=2, noise_bits=3)
    found = open_shares(statement, SEED, [], [], [], HASH)
    assert (found.openings.shape, found.total.tolist()) == ((0, 4), [0, 0])


def test_a_share_with_a_word_that_is_the_prime_is_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first row it happens once, in the second one twice; the third row keeps its first words."""
    keys, entries = [bytes([at]) * 32 for at in range(3)], [bytes([at]) * 36 for at in range(3)]
    honest, bad = shares.expand_rows, {0: 1, 1: 2}
    seeds = {
        hashlib.shake_128(keys[at] + b"dca5-share" + HASH + entries[at] + bytes([attempt])).digest(32)
        for at, attempts in bad.items()
        for attempt in range(attempts)
    }

    def expand_rows(buffer: memoryview, drawn: list[bytes]) -> None:
        honest(buffer, drawn)
        size = len(buffer) // len(drawn)
        for row, seed in enumerate(drawn):
            if seed in seeds:
                buffer[size * (row + 1) - 4 : size * (row + 1)] = b"\xff" * 4  # P, and the highest bit beside it

    monkeypatch.setattr(shares, "expand_rows", expand_rows)
    expected = [words_of(keys[at], entries[at], 7, bad.get(at, 0)) for at in range(3)]
    assert pads_of(keys, entries, HASH, 7).tolist() == expected
