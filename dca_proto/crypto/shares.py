"""Shares of a verified contribution's words, and what a Compute node computes of its shares (DESIGN §12).

Node j's share of a client's words is pseudo-random, from the pair key and what identifies the contribution. The client
sends one vector y: its words minus the shares of all nodes. The holder adds y to its own share. So the shares of all
nodes add up to the words, and a client sends one vector however many nodes there are.

The *challenge* follows from all nodes' lists. It gives the point r at which the proofs are opened, and the public coins
that flip noise bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import shake_128
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto import labels
from dca_proto.crypto.bit_proof import point
from dca_proto.crypto.bounded import Statement
from dca_proto.crypto.field import ELEMENT_BYTES, PRIME, Elements
from dca_proto.crypto.masks import ENTRY_BYTES
from dca_proto.crypto.sealing import KEY_BYTES, derive, digest, expand, expand_into

COIN_BYTES = 16
_POINT_BYTES = 64
_CHUNK_WORDS, _CHUNK_ROWS, _CHUNK_WORDS_MAX = 1 << 18, 16, 1 << 22
"""Words of shares that are in memory at once: they fit a processor's cache. Of long rows, there are a few more."""


def pads_of(pair_keys: Sequence[bytes], entries: Sequence[bytes], announcement_hash: bytes, words: int) -> Elements:
    """Return the shares of words that pairs of a client and a node derive, ``(n, words)``: one row for each entry."""
    about = labels.SHARE + announcement_hash
    absorbed = [key + about + entry for key, entry in zip(pair_keys, entries, strict=True)]
    pads = _expanded(absorbed, words, 0)
    attempt, again = 1, np.flatnonzero((pads == PRIME).any(axis=1))
    while again.size:
        pads[again] = _expanded([absorbed[at] for at in again.tolist()], words, attempt)
        attempt, again = attempt + 1, again[(pads[again] == PRIME).any(axis=1)]
    return pads.astype(np.uint64)


def _expanded(absorbed: Sequence[bytes], words: int, attempt: int) -> NDArray[np.uint32]:
    """Return words of 31 bits, ``(n, words)``: ChaCha20 under SHAKE128 of an input and the attempt's number."""
    size, behind = ELEMENT_BYTES * words, bytes([attempt])
    buffer = bytearray(size * len(absorbed))
    for place, data in enumerate(absorbed):
        expand_into(buffer, size * place, size, shake_128(data + behind).digest(KEY_BYTES))
    found: NDArray[np.uint32] = np.frombuffer(buffer, dtype="<u4").reshape(-1, words) & np.uint32(PRIME)
    return found


def uniform_elements(key: bytes, count: int) -> Elements:
    """Return uniform elements from a fresh secret key: words of 31 bits below P."""
    spare = expand(key, ELEMENT_BYTES * (count + 32))  # more than 32 words that are P: below 2^-900
    words = np.frombuffer(spare, dtype="<u4").astype(np.uint64) & np.uint64(PRIME)
    return words[words < PRIME][:count]


def random_bits(key: bytes, count: int) -> NDArray[np.int64]:
    """Return uniform bits from a fresh secret key, ``(count,)``."""
    packed = np.frombuffer(expand(key, -(-count // 8)), dtype=np.uint8)
    return np.unpackbits(packed, count=count, bitorder="little").astype(np.int64)


# --- the challenge ----------------------------------------------------------------------------------------------------


def challenge(announcement_hash: bytes, list_hashes: Sequence[bytes]) -> bytes:
    """Return what all nodes' lists make public: the seed of r and of the noise coins, 32 bytes."""
    return digest(labels.CHALLENGE, announcement_hash, *list_hashes)


def point_of(seed: bytes) -> Elements:
    """Return r, the point at which proofs are opened."""
    return point(derive(seed, labels.POINT, size=_POINT_BYTES))


def coins_of(seed: bytes, entries: Sequence[bytes], count: int) -> NDArray[np.bool_]:
    """Return the noise coins of entries, ``(n, count)``."""
    size, before = -(-count // 8), seed + labels.NOISE_COINS
    packed = b"".join([shake_128(before + entry).digest(size) for entry in entries])
    octets = np.frombuffer(packed, dtype=np.uint8).reshape(len(entries), size)
    return np.unpackbits(octets, axis=1, count=count, bitorder="little").astype(np.bool_)


@lru_cache(maxsize=8)  # of the rounds that this process computes now
def _query(statement: Statement, seed: bytes) -> Elements:
    return statement.query(point_of(seed))


class Opened(NamedTuple):
    """What a node computes of its shares of some entries.

    Attributes:
        openings: its shares of A, C and E, ``(n, statement.opened)``.
        total: its share of the sum of their numbers and flipped noise, ``(d,)``.
    """

    openings: Elements
    total: Elements


def open_shares(
    statement: Statement,
    seed: bytes,
    pair_keys: Sequence[bytes],
    entries: Sequence[bytes],
    kept: Sequence[bytes],
    announcement_hash: bytes,
) -> Opened:
    """Open a node's shares of entries, and sum them up.

    Args:
        seed: the challenge.
        pair_keys, entries: of the clients.
        kept: y of an entry that this node holds, otherwise empty.
    """
    words, modulus = statement.block.words, np.uint64(PRIME)
    openings, total = [np.zeros((0, statement.opened), dtype=np.uint64)], np.zeros(len(statement.sizes), np.uint64)
    step = max(1, min(max(_CHUNK_WORDS // words, _CHUNK_ROWS), _CHUNK_WORDS_MAX // words))
    for start in range(0, len(entries), step):
        part = slice(start, start + step)
        shares = pads_of(pair_keys[part], entries[part], announcement_hash, words)
        own = [place for place, y in enumerate(kept[part]) if y]
        if own:
            vectors = np.frombuffer(b"".join(kept[part]), dtype="<u4").reshape(-1, words)
            shares[own] = (shares[own] + vectors) % modulus
        openings.append(statement.field.matrix_product(shares, _query(statement, seed)))
        coins = coins_of(seed, entries[part], statement.noise_size)
        total = (total + statement.sum_of_shares(shares, coins)) % modulus
    return Opened(np.concatenate(openings), total)


def coins_part(statement: Statement, seed: bytes, entries: Sequence[bytes]) -> Elements:
    """Return what the coins of entries alone add to the noisy sum, ``(d,)``: one node adds it."""
    total, step = np.zeros(len(statement.sizes), np.uint64), max(1, _CHUNK_WORDS // max(statement.noise_size, 1))
    for start in range(0, len(entries), step):
        total += statement.coins_part(coins_of(seed, entries[start : start + step], statement.noise_size))
    return total % np.uint64(PRIME)


def split_entries(entries: bytes) -> list[bytes]:
    """Return the entries of a list one by one."""
    return [entries[at : at + ENTRY_BYTES] for at in range(0, len(entries), ENTRY_BYTES)]
