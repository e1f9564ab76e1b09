"""Masks that cancel, and the tags that prove them (DESIGN §2.4, §4.4; DCA, Algorithm 1, steps 1 and 2).

Client i and Compute node j expand their pair key into a tag of 8 bytes and a mask of d ring elements, for one
announcement, contribution id and charge number. The client subtracts all M masks; each node adds its own, once, over
the agreed set. What a node does here it does for each client of each round, so that all is one PRF call per client
and one NumPy sum for many.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import shake_128
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES, derive, expand_into

TAG_BYTES = 8
WORD_BYTES = 8
CHARGE_BYTES = 4
ENTRY_BYTES = 2 * ID_BYTES + CHARGE_BYTES
"""Client, contribution id, charge number: what a tag and a mask are for, beside the announcement."""
_CHUNK_BYTES = 1 << 17
_SPONGE_BYTES_MAX = 1024
_MASK = b"dca4-mask"
_ROW = len(_MASK) + 2 * KEY_BYTES + ENTRY_BYTES
_WORD = 2**64 - 1
_WORDS = np.dtype("<u8")
RingVector = NDArray[np.uint64]
Keys = NDArray[np.uint8]


def holder_index(announcement_hash: bytes, client: bytes, nodes: int) -> int:
    """Which of the M Compute nodes gets a client's contribution: multiply-shift hashing, keyed by the announcement."""
    factor, offset = _hash_words(announcement_hash)
    return ((factor * int.from_bytes(client[:8], "little") + offset & _WORD) >> 32) * nodes >> 32


def holder_indices(announcement_hash: bytes, clients: NDArray[np.uint8], nodes: int) -> NDArray[np.uint64]:
    """`holder_index` of many: ids are the rows of ``clients``, shape ``(n, 16)``; the result has shape ``(n,)``."""
    factor, offset = map(np.uint64, _hash_words(announcement_hash))
    words = np.ascontiguousarray(clients[:, :8]).view("<u8")[:, 0]
    found: NDArray[np.uint64] = (words * factor + offset >> np.uint64(32)) * np.uint64(nodes) >> np.uint64(32)
    return found


@lru_cache(maxsize=64)  # asked for with every contribution of a round
def _hash_words(announcement_hash: bytes) -> tuple[int, int]:
    return int.from_bytes(announcement_hash[:8], "little") | 1, int.from_bytes(announcement_hash[8:16], "little")


def entry_of(client: bytes, contribution: bytes, charge: int) -> bytes:
    """A contribution's entry in a list: 36 bytes."""
    return client + contribution + charge.to_bytes(CHARGE_BYTES, "little")


def tag_and_mask(pair_key: bytes, announcement_hash: bytes, entry: bytes, dimension: int) -> bytes:
    """The pair's tag (8 bytes) and mask (``8 * dimension`` bytes, little-endian words) for one entry.

    SHAKE128 (FIPS 202) under the key as its prefix; a long mask is ChaCha20 under the 32 bytes behind the tag, which is
    faster from some `_SPONGE_BYTES_MAX` bytes on.
    """
    return _pads([pair_key + _about(announcement_hash, entry)], dimension).tobytes()


def _about(announcement_hash: bytes, entry: bytes) -> bytes:
    """What the sponge absorbs behind the pair key."""
    return b"".join((_MASK, announcement_hash, entry))


def _pads(absorbed: Sequence[bytes], dimension: int) -> NDArray[np.uint64]:
    """The tag and the mask of each, as words: shape ``(n, 1 + dimension)``."""
    size = TAG_BYTES + WORD_BYTES * dimension
    if size <= _SPONGE_BYTES_MAX:
        made: bytes | bytearray = b"".join([shake_128(one).digest(size) for one in absorbed])
    else:
        made = bytearray(size * len(absorbed))
        for start, one in zip(range(0, len(made), size), absorbed, strict=True):
            head = shake_128(one).digest(TAG_BYTES + KEY_BYTES)
            made[start : start + TAG_BYTES] = head[:TAG_BYTES]
            expand_into(made, start + TAG_BYTES, size - TAG_BYTES, head[TAG_BYTES:])
    return np.frombuffer(made, dtype=_WORDS).reshape(-1, 1 + dimension)


def masked(
    value: RingVector, pair_keys: Sequence[bytes], announcement_hash: bytes, entry: bytes
) -> tuple[bytes, bytes]:
    """At a client: all M tags, and its value (the noisy statistic in the ring) minus all M masks, as bytes."""
    dimension, about = value.size, _about(announcement_hash, entry)
    words = _pads([key + about for key in pair_keys], dimension)
    y = value - np.add.reduce(words[:, 1:], axis=0)
    return words[:, 0].tobytes(), y.astype(_WORDS, copy=False).tobytes()


def check_and_sum(
    pair_keys: Keys, entries: bytes, tags: bytes, announcement_hash: bytes, dimension: int
) -> tuple[NDArray[np.bool_], RingVector]:
    """At a Compute node: which entries' tags hold, shape ``(n,)``, and the sum of their masks, shape ``(dimension,)``.

    The keys have shape ``(n, 32)``. Entries are `ENTRY_BYTES` each. Tags, `TAG_BYTES` each, are those that the client's
    message had for this node.
    """
    count = len(pair_keys)
    holds, total = np.zeros(count, dtype=np.bool_), np.zeros(dimension, dtype=np.uint64)
    table = np.empty((count, _ROW), dtype=np.uint8)  # what the sponge absorbs for each entry
    table[:, :KEY_BYTES] = pair_keys
    table[:, KEY_BYTES:-ENTRY_BYTES] = np.frombuffer(_about(announcement_hash, b""), dtype=np.uint8)
    table[:, -ENTRY_BYTES:] = np.frombuffer(entries, dtype=np.uint8).reshape(-1, ENTRY_BYTES)
    rows, claimed = table.tobytes(), np.frombuffer(tags, dtype=_WORDS)
    size = TAG_BYTES + WORD_BYTES * dimension
    step = max(1, _CHUNK_BYTES // size)
    for start in range(0, count, step):
        end = min(start + step, count)
        words = _pads([rows[at : at + _ROW] for at in range(_ROW * start, _ROW * end, _ROW)], dimension)
        right = holds[start:end] = words[:, 0] == claimed[start:end]
        total += np.add.reduce(words[:, 1:] if right.all() else words[right, 1:], axis=0)
    return holds, total


def sum_words(vectors: Iterable[bytes], dimension: int) -> RingVector:
    """The sum modulo 2^64 of vectors of ``8 * dimension`` bytes each."""
    total = np.zeros(dimension, dtype=np.uint64)
    waiting = iter(vectors)
    at_once = max(1, _CHUNK_BYTES // (WORD_BYTES * dimension))  # few numpy calls, all in the cache
    while chunk := b"".join(islice(waiting, at_once)):
        total += np.add.reduce(np.frombuffer(chunk, dtype=_WORDS).reshape(-1, dimension), axis=0)
    return total


class ContributionKeys(NamedTuple):
    """What client and holder derive from their pair key for one contribution, and for nothing else.

    Attributes:
        seal: encrypts it. receipt: by which the holder proves that it keeps it durably. late: by which it says that
            it came after the list was frozen.
    """

    seal: bytes
    receipt: bytes
    late: bytes


def contribution_keys(pair_key: bytes, announcement_hash: bytes, contribution: bytes) -> ContributionKeys:
    """One keyed BLAKE2b of 64 bytes, cut in three."""
    made = derive(pair_key, b"dca4-one", announcement_hash + contribution, KEY_BYTES + 2 * ID_BYTES)
    return ContributionKeys(made[:KEY_BYTES], made[KEY_BYTES : KEY_BYTES + ID_BYTES], made[KEY_BYTES + ID_BYTES :])


def ask_tag(pair_key: bytes, announcement_hash: bytes) -> bytes:
    """The MAC by which a client that asks for aborts proves who it is."""
    return derive(pair_key, b"dca4-ask", announcement_hash, ID_BYTES)
