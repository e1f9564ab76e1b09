"""Whether the shares that a coalition's Compute nodes hold look uniform, whatever the victim's row is.

The victim's noisy values are split by the protocol's own `share_bodies`, in both worlds and both encodings, and with
different nodes outside the coalition. Seeds are expanded, as a node does. Two χ² tests of each such view: of the shares
that the coalition holds, and of their sum modulo 2^64, where masks that were used twice or do not hide would show. Each
test is over the 8 byte positions of a word and the 256 values of each byte, 2,040 degrees of freedom.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from dca_proto.core.fixedpoint import ring_from_bytes, ring_sum, to_ring
from dca_proto.core.sealing import KEY_BYTES, Random
from dca_proto.core.shares import ENCODINGS, SEED_BYTES, mask, share_bodies
from emulator.audit.programme import Programme
from emulator.audit.worlds import VICTIM, World

_SPLITS = 32
_WORDS = 4096
_VALUES = 256


class View(NamedTuple):
    """One way of splitting, and how likely the coalition's shares are so uneven by chance.

    Attributes:
        side: the world. encoding: of shares. outside: the Compute node that is not in the coalition.
        p_value: of both χ² tests together.
    """

    side: int
    encoding: str
    outside: int
    p_value: float


def views(world: World, programme: Programme, random: Random) -> list[View]:
    """Every view of a coalition with Compute nodes; none where it has none."""
    nodes, held = world.setting.computes, world.setting.coalition.computes
    if held == 0:
        return []
    found = []
    for side in (0, 1):
        value = to_ring(_noisy(world, programme, side, random))
        for encoding in ENCODINGS:
            for outside in sorted({0, nodes // 2, nodes - 1}):
                members = [(outside + 1 + step) % nodes for step in range(held)]
                p_value = _view(value, members, nodes, encoding, random)
                found.append(View(side, encoding, outside, p_value))
    return found


def joint_p_value(found: Sequence[View]) -> float | None:
    """The smallest, times their number (Bonferroni); None without any."""
    return min(1.0, min(view.p_value for view in found) * len(found)) if found else None


def byte_p_value(counts: NDArray[np.int64]) -> float:
    """χ² test of byte counts, shape ``(8, 256)``, against the uniform law."""
    expected = counts.sum(axis=1, keepdims=True) / _VALUES
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return float(chi2.sf(statistic, counts.shape[0] * (_VALUES - 1)))


def byte_counts(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """How often each of the 8 bytes of the words has each value, shape ``(8, 256)``."""
    table = words.astype("<u8").view(np.uint8).reshape(-1, 8)
    return np.stack([np.bincount(column, minlength=_VALUES) for column in table.T]).astype(np.int64)


def expanded(body: bytes, dimension: int) -> NDArray[np.uint64]:
    """A share as a vector, whichever way it was sent."""
    is_seed = len(body) == SEED_BYTES and dimension * 8 != SEED_BYTES
    return mask(body, dimension) if is_seed else ring_from_bytes(body, dimension)


def _noisy(world: World, programme: Programme, side: int, random: Random) -> NDArray[np.int64]:
    """The victim's contributions of many runs, one after the other."""
    noise = programme.noise(world, VICTIM, -(-_WORDS // world.size), random)
    return programme.contribute(world, programme.encode(world, VICTIM, side), noise).reshape(-1)


def _view(value: NDArray[np.uint64], members: Sequence[int], nodes: int, encoding: str, random: Random) -> float:
    shares, sums = np.zeros((8, _VALUES), dtype=np.int64), np.zeros((8, _VALUES), dtype=np.int64)
    for split in range(_SPLITS):
        bodies = share_bodies(value, random(KEY_BYTES), nodes, split % nodes, encoding)
        held = [expanded(bodies[member], value.size) for member in members]
        for share in held:
            shares += byte_counts(share)
        sums += byte_counts(ring_sum(held, value.size))
    return min(1.0, 2 * min(byte_p_value(shares), byte_p_value(sums)))
