"""Secret shares in the ring of integers modulo 2^64 (DCA, Algorithm 1, steps 1 and 2).

M - 1 shares are ChaCha20 expansions of 32-byte seeds; the remaining one is the value minus their sum. Any M - 1 of them
are (computationally) uniform and independent of the value. The node that gets the full vector is a hash of round and
client modulo M, so that load spreads. Both encodings carry the same shares: `seed` sends the seeds, `vector` their
expansions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from dca_proto.core.errors import PeerError
from dca_proto.core.fixedpoint import WORD_BYTES, ring_from_bytes, ring_subtract, ring_to_bytes
from dca_proto.core.sealing import derive, digest, expand

SEED = "seed"
VECTOR = "vector"
ENCODINGS = (SEED, VECTOR)
LOCAL = "local"
"""What an announcement has in an encoding's place where there are no shares: a local round (DESIGN §4.8)."""
SEED_BYTES = 32
_CHUNK_BYTES = 1 << 17
RingVector = NDArray[np.uint64]


def vector_node(round_id: bytes, client: bytes, nodes: int) -> int:
    """Index of the Compute node that gets the full vector in every encoding."""
    return int.from_bytes(digest(b"dca1-vectornode", round_id, client)[:8], "little") % nodes


def mask(seed: bytes, dimension: int) -> RingVector:
    """The uniform vector that a seed stands for."""
    return ring_from_bytes(expand(seed, WORD_BYTES * dimension), dimension)


def split(value: RingVector, seeds: Sequence[bytes]) -> RingVector:
    """The full share: `value` minus all masks, modulo 2^64."""
    return ring_subtract(value, sum_shares((), seeds, value.size))


def sum_shares(full: Iterable[bytes], seeds: Iterable[bytes], dimension: int) -> RingVector:
    """The sum of shares modulo 2^64.

    Args:
        full: shares that are vectors of ``8 * dimension`` bytes. seeds: those that are 32-byte seeds.
    """
    total = np.zeros(dimension, dtype=np.uint64)
    vectors = itertools.chain(full, (expand(seed, WORD_BYTES * dimension) for seed in seeds))
    at_once = max(1, _CHUNK_BYTES // (WORD_BYTES * dimension))  # few numpy calls, all in the cache
    while chunk := b"".join(itertools.islice(vectors, at_once)):
        total += np.add.reduce(np.frombuffer(chunk, dtype="<u8").reshape(-1, dimension), axis=0)
    return total


def share_bodies(value: RingVector, root: bytes, nodes: int, full_at: int, encoding: str) -> list[bytes]:
    """What each of the M Compute nodes gets, in their order.

    Args:
        value: the contribution with its noise, in the ring.
        root: the contribution's 32 fresh secret bytes.
        nodes: M.
        full_at: `vector_node` of the contribution.
        encoding: `SEED` or `VECTOR`.
    """
    seeds = [derive(root, b"dca1-share", bytes((index,))) for index in range(nodes)]
    masks = seeds[:full_at] + seeds[full_at + 1 :]
    full = ring_to_bytes(split(value, masks))
    others = seeds if encoding == SEED else [expand(seed, WORD_BYTES * value.size) for seed in seeds]
    return [full if index == full_at else others[index] for index in range(nodes)]


def check_body(body: bytes, dimension: int, is_vector: bool) -> None:
    """Raises `PeerError("share")` where the length is not the exact one. Every 64-bit word is a ring element."""
    expected = WORD_BYTES * dimension if is_vector else SEED_BYTES
    if len(body) != expected:
        raise PeerError("share", found=f"{len(body)} bytes", expected=f"{expected} bytes")
