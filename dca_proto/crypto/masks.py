"""Masks that cancel, and the tags that prove them (DESIGN §2.4, §4.4; DCA, Algorithm 1, steps 1 and 2).

Client i and Compute node j expand their pair key into a tag of 8 bytes and a mask of d ring elements, for one
announcement, contribution id and charge number. The client subtracts all M masks. Each node adds its own masks once,
over the agreed set. A node does this for each client of each round, so it costs one PRF call per client and one NumPy
sum per batch of clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import shake_128
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto import labels
from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES, derive, expand_into

TAG_BYTES = 8
WORD_BYTES = 8
CHARGE_BYTES = 4
ENTRY_BYTES = 2 * ID_BYTES + CHARGE_BYTES
"""Client, contribution id and charge number. With the announcement, they determine a tag and a mask."""
_CHUNK_BYTES = 1 << 17
_SPONGE_BYTES_MAX = 1024
_ROW = len(labels.MASK) + 2 * KEY_BYTES + ENTRY_BYTES
_WORD = 2**64 - 1
_WORDS = np.dtype("<u8")
RingVector = NDArray[np.uint64]
Keys = NDArray[np.uint8]


def holder_index(announcement_hash: bytes, client: bytes, nodes: int) -> int:
    """Return which of the M Compute nodes holds a client's contribution: a multiply-shift hash keyed by `ah`."""
    factor, offset = _hash_words(announcement_hash)
    return ((factor * int.from_bytes(client[:8], "little") + offset & _WORD) >> 32) * nodes >> 32


def holder_indices(announcement_hash: bytes, clients: NDArray[np.uint8], nodes: int) -> NDArray[np.uint64]:
    """Return `holder_index` for many clients: ids are the rows of ``clients``, ``(n, 16)``; the result is ``(n,)``."""
    factor, offset = map(np.uint64, _hash_words(announcement_hash))
    words = np.ascontiguousarray(clients[:, :8]).view("<u8")[:, 0]
    indices: NDArray[np.uint64] = (words * factor + offset >> np.uint64(32)) * np.uint64(nodes) >> np.uint64(32)
    return indices


@lru_cache(maxsize=64)  # called for every contribution of a round
def _hash_words(announcement_hash: bytes) -> tuple[int, int]:
    return int.from_bytes(announcement_hash[:8], "little") | 1, int.from_bytes(announcement_hash[8:16], "little")


def entry_of(client: bytes, contribution: bytes, charge: int) -> bytes:
    """Return a contribution's entry in a list: 36 bytes."""
    return client + contribution + charge.to_bytes(CHARGE_BYTES, "little")


def tag_and_mask(pair_key: bytes, announcement_hash: bytes, entry: bytes, dimension: int) -> bytes:
    """Return the pair's tag (8 bytes) and mask (``8 * dimension`` bytes, little-endian words) for one entry.

    Both come from SHAKE128 (FIPS 202) with the key as a prefix. Beyond `_SPONGE_BYTES_MAX` bytes, the mask is ChaCha20
    keyed by the 32 bytes that follow the tag, which is faster.
    """
    return _pads([pair_key + _about(announcement_hash, entry)], dimension).tobytes()


def _about(announcement_hash: bytes, entry: bytes) -> bytes:
    """Return what the sponge absorbs after the pair key."""
    return b"".join((labels.MASK, announcement_hash, entry))


def _pads(absorbed: Sequence[bytes], dimension: int) -> NDArray[np.uint64]:
    """Return a tag and a mask for each of the `absorbed` inputs, as words of shape ``(n, 1 + dimension)``."""
    size = TAG_BYTES + WORD_BYTES * dimension
    if size <= _SPONGE_BYTES_MAX:
        pads: bytes | bytearray = b"".join([shake_128(data).digest(size) for data in absorbed])
    else:
        pads = bytearray(size * len(absorbed))
        for start, data in zip(range(0, len(pads), size), absorbed, strict=True):
            head = shake_128(data).digest(TAG_BYTES + KEY_BYTES)
            pads[start : start + TAG_BYTES] = head[:TAG_BYTES]
            expand_into(pads, start + TAG_BYTES, size - TAG_BYTES, head[TAG_BYTES:])
    return np.frombuffer(pads, dtype=_WORDS).reshape(-1, 1 + dimension)


def masked(
    value: RingVector, pair_keys: Sequence[bytes], announcement_hash: bytes, entry: bytes
) -> tuple[bytes, bytes]:
    """Mask a client's value (its noisy statistic in the ring): return all M tags, and the value minus all M masks."""
    dimension, about = value.size, _about(announcement_hash, entry)
    words = _pads([key + about for key in pair_keys], dimension)
    y = value - np.add.reduce(words, axis=0)[1:]  # with the tags, which is faster than without
    return words[:, 0].tobytes(), y.astype(_WORDS, copy=False).tobytes()


def check_and_sum(
    pair_keys: Keys, entries: bytes, tags: bytes, announcement_hash: bytes, dimension: int
) -> tuple[NDArray[np.bool_], RingVector]:
    """Check a Compute node's tags: return which are valid, ``(n,)``, and the sum of their masks, ``(dimension,)``.

    The keys have shape ``(n, 32)``. `entries` has `ENTRY_BYTES` for each entry; `tags` has `TAG_BYTES` for each: the
    tag for this node from the client's message.
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
    """Return the sum modulo 2^64 of vectors of ``8 * dimension`` bytes each."""
    total = np.zeros(dimension, dtype=np.uint64)
    remaining = iter(vectors)
    chunk_size = max(1, _CHUNK_BYTES // (WORD_BYTES * dimension))  # few numpy calls, each within the CPU cache
    while chunk := b"".join(islice(remaining, chunk_size)):
        total += np.add.reduce(np.frombuffer(chunk, dtype=_WORDS).reshape(-1, dimension), axis=0)
    return total


class ContributionKeys(NamedTuple):
    """Keys that client and holder derive from their pair key for a single contribution.

    Attributes:
        seal: encrypts the contribution.
        receipt: the MAC that proves to the client that the holder stored the contribution durably.
        late: the MAC that proves that it arrived after the list was frozen.
    """

    seal: bytes
    receipt: bytes
    late: bytes


def contribution_keys(pair_key: bytes, announcement_hash: bytes, contribution: bytes) -> ContributionKeys:
    """Derive the keys: one keyed BLAKE2b of 64 bytes, split in three."""
    keys = derive(pair_key, labels.ONE_KEYS, announcement_hash + contribution, KEY_BYTES + 2 * ID_BYTES)
    return ContributionKeys(keys[:KEY_BYTES], keys[KEY_BYTES : KEY_BYTES + ID_BYTES], keys[KEY_BYTES + ID_BYTES :])


def ask_tag(pair_key: bytes, announcement_hash: bytes) -> bytes:
    """Return the MAC that authenticates a client when it asks a Compute node for aborts."""
    return derive(pair_key, labels.ASK, announcement_hash, ID_BYTES)
