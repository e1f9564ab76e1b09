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
from dca_proto.crypto.bounded import BoundsQuery, Statement
from dca_proto.crypto.field import ELEMENT_BYTES, PRIME, Elements, Words, as_floats
from dca_proto.crypto.masks import ENTRY_BYTES
from dca_proto.crypto.sealing import KEY_BYTES, derive, digest, expand, expand_rows

COIN_BYTES = 16
_POINT_BYTES = 64
_CHUNK_WORDS, _CHUNK_ROWS, _CHUNK_WORDS_MAX = 1 << 17, 16, 1 << 21
"""Words of shares that are in memory at once, with 12 bytes each: they fit a processor's cache. Of long rows, there are
a few more, but no more than sums that are exact have (`Statement.flipped_sums`)."""


def pads_of(pair_keys: Sequence[bytes], entries: Sequence[bytes], announcement_hash: bytes, words: int) -> Words:
    """Return the shares of words that pairs of a client and a node derive, ``(n, words)``: one row for each entry."""
    pads = np.empty((len(entries), words), dtype="<u4")
    fill_pads(pads, pair_keys, entries, announcement_hash)
    return pads


def fill_pads(pads: Words, pair_keys: Sequence[bytes], entries: Sequence[bytes], announcement_hash: bytes) -> None:
    """Write the shares of `pads_of` into an array. Pages of a fresh one would cost as much time as ChaCha20."""
    about = labels.SHARE + announcement_hash
    absorbed = [key + about + entry for key, entry in zip(pair_keys, entries, strict=True)]
    _expand(pads, absorbed, 0)
    if pads.max(initial=0) < PRIME:  # P is the largest word of 31 bits, and rare
        return
    for row, data in zip(pads, absorbed, strict=True):
        attempt = 1
        while row.max(initial=0) == PRIME:
            _expand(row[np.newaxis], [data], attempt)
            attempt += 1


def _expand(pads: Words, absorbed: Sequence[bytes], attempt: int) -> None:
    """Write words of 31 bits: ChaCha20 under SHAKE128 of a row's input and the attempt's number."""
    behind = bytes([attempt])
    seeds = [shake_128(data + behind).digest(KEY_BYTES) for data in absorbed]
    expand_rows(pads.reshape(-1).view(np.uint8).data, seeds)
    np.bitwise_and(pads, np.uint32(PRIME), out=pads)


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
def _query(statement: Statement, seed: bytes) -> BoundsQuery:
    return statement.query(point_of(seed))


class OpenedShares(NamedTuple):
    """What a node computes of its shares of some entries.

    Attributes:
        openings: its shares of what is opened, ``(n, statement.opened)``.
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
) -> OpenedShares:
    """Open a node's shares of entries, and sum them up.

    Args:
        seed: the challenge.
        pair_keys, entries: of the clients.
        kept: y of an entry that this node holds, otherwise empty.
    """
    words, openings = statement.words, [np.zeros((0, statement.opened), dtype=np.uint64)]
    of_bits = np.zeros(statement.block.bits, dtype=np.uint64)  # of each chunk below P, so that sums do not wrap around
    step = max(1, min(max(_CHUNK_WORDS // words, _CHUNK_ROWS), _CHUNK_WORDS_MAX // words))
    buffer, floats = np.empty((min(step, len(entries)), words), dtype="<u4"), np.empty((min(step, len(entries)), words))
    for start in range(0, len(entries), step):
        part = slice(start, start + step)
        shares = buffer[: len(entries[part])]
        fill_pads(shares, pair_keys[part], entries[part], announcement_hash)
        for share, y in zip(shares, kept[part], strict=True):
            if y:
                share += np.frombuffer(y, dtype="<u4")  # below 2P, so 32 bits hold it
                np.minimum(share, share - np.uint32(PRIME), out=share)  # what is below P wraps around, and stays
        real = as_floats(shares, floats[: len(shares)])
        openings.append(statement.opening(real, _query(statement, seed)))
        of_bits += statement.flipped_sums(real, coins_of(seed, entries[part], statement.noise_size))
    return OpenedShares(np.concatenate(openings), statement.share_of_sum(of_bits % np.uint64(PRIME)))


def coins_part(statement: Statement, seed: bytes, entries: Sequence[bytes]) -> Elements:
    """Return what the coins of entries alone add to the noisy sum, ``(d,)``: one node adds it."""
    total, step = np.zeros(len(statement.sizes), np.uint64), max(1, _CHUNK_WORDS // max(statement.noise_size, 1))
    for start in range(0, len(entries), step):
        total += statement.coins_part(coins_of(seed, entries[start : start + step], statement.noise_size))
    return total % np.uint64(PRIME)


def split_entries(entries: bytes) -> list[bytes]:
    """Return the entries of a list one by one."""
    return [entries[at : at + ENTRY_BYTES] for at in range(0, len(entries), ENTRY_BYTES)]
