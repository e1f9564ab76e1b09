"""One set of contributions (DESIGN §4.5; DCA, section 3.1.3 and Algorithm 1, step 3).

A frozen list maps positions on the roster to contribution ids. S holds the pairs that all M lists hold: a client whose
contribution differs between nodes, or is missing at one, is in nobody's sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from dca_proto.core.errors import PeerError
from dca_proto.core.sealing import ID_BYTES

TOO_FEW = "too-few"
"""The abort reason whose figures say how many contributed and how many were needed."""

Entries = dict[int, bytes]
"""Position on the roster -> contribution id."""

ENTRY_BYTES = 4 + ID_BYTES


def encode_entries(entries: Mapping[int, bytes]) -> bytes:
    """20 bytes an entry, by position: the position (little-endian) and the contribution id."""
    return b"".join(position.to_bytes(4, "little") + entries[position] for position in sorted(entries))


def parse_entries(data: bytes, clients: int) -> Entries:
    """Inverse of `encode_entries`. Raises `PeerError("list")` unless positions ascend and are on the roster."""
    if len(data) % ENTRY_BYTES:
        raise PeerError("list", found=f"{len(data)} bytes", expected=f"a multiple of {ENTRY_BYTES}")
    entries: Entries = {}
    last = -1
    for start in range(0, len(data), ENTRY_BYTES):
        position = int.from_bytes(data[start : start + 4], "little")
        if not last < position < clients:
            raise PeerError("list", found=f"position {position} behind {last}", expected=f"ascending, below {clients}")
        entries[position] = data[start + 4 : start + ENTRY_BYTES]
        last = position
    return entries


def agree(own: Mapping[int, bytes], others: Iterable[Mapping[int, bytes]]) -> Entries:
    """S: the (position, contribution id) pairs that all lists hold."""
    agreed = dict(own)
    for other in others:
        agreed = {position: chosen for position, chosen in agreed.items() if other.get(position) == chosen}
    return agreed


def position_bits(entries: Iterable[int], clients: int) -> bytes:
    """One bit a position, most significant first, padded to whole bytes."""
    bits = np.zeros(clients, dtype=np.uint8)
    bits[list(entries)] = 1
    return np.packbits(bits).tobytes()


def positions_of(bits: bytes, clients: int) -> NDArray[np.int64]:
    """Inverse of `position_bits`. Raises `PeerError("contributors")` for a wrong length or bits beyond the roster."""
    flags = np.unpackbits(np.frombuffer(bits, dtype=np.uint8))
    if len(bits) != (clients + 7) // 8 or flags[clients:].any():
        raise PeerError("contributors", found=f"{len(bits)} bytes", expected=f"one bit for each of {clients} clients")
    return np.flatnonzero(flags)
