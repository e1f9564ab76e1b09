"""Tests whether a masked contribution looks uniform to a coalition, whatever the victim's row is.

The victim masks its noisy values with the protocol's own `masked`, in both worlds, in many rounds with the same pair
keys. The coalition has the masked vector and its own masks; one Compute node is outside of it. Each such view gets
three χ² tests: of the vector as sent, of the vector with the coalition's masks added back, and of the difference of the
latter from round to round, which would reveal masks that are reused or do not hide. Each test covers the 8 byte
positions of a word and the 256 values of each byte: 2,040 degrees of freedom.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from dca_proto.crypto.fixedpoint import to_ring
from dca_proto.crypto.masks import TAG_BYTES, RingVector, entry_of, masked, tag_and_mask
from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES, Random
from dca_proto.results.figure import about
from emulator.claim import VICTIM
from emulator.coalition.programme import Programme
from emulator.coalition.worlds import World

_ROUNDS = 32
_WORDS = 4096
_VALUES = 256


class View(msgspec.Struct, frozen=True):
    """The test of one coalition's view of the victim."""

    side: Annotated[int, about("The world, 0 or 1.")]
    outside: Annotated[int, about("The Compute node that is not in the coalition.")]
    p_value: Annotated[float, about("Of all its chi-squared tests together.")]


def views(world: World, programme: Programme, random: Random) -> list[View]:
    """Test the views of a coalition with Compute nodes, if it has any, and one is outside of it."""
    nodes, colluding = world.setting.computes, world.setting.coalition.computes
    if not 0 < colluding < nodes:
        return []
    tested = []
    for side in (0, 1):
        noise = programme.noise(world, VICTIM, -(-_WORDS // world.size), random)  # of enough runs for `_WORDS` words
        value = to_ring(programme.contribute(world, programme.encode(world, VICTIM, side), noise).reshape(-1))
        for outside in sorted({0, nodes // 2, nodes - 1}):
            members = [(outside + 1 + step) % nodes for step in range(colluding)]
            tested.append(View(side, outside, _p_value(value, members, nodes, random)))
    return tested


def bonferroni(p_values: Iterable[float]) -> float:
    """Return a p-value of several tests together: the smallest, times their number."""
    each = [*p_values]
    return min(1.0, len(each) * min(each))


def joint_p_value(tested: Sequence[View]) -> float | None:
    """Return the p-value of all views together; None if there are none."""
    return bonferroni(view.p_value for view in tested) if tested else None


def byte_p_value(counts: NDArray[np.int64]) -> float:
    """Return the p-value of a χ² test of byte counts, shape ``(8, 256)``, against the uniform law."""
    expected = counts.sum(axis=1, keepdims=True) / _VALUES
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return float(chi2.sf(statistic, counts.shape[0] * (_VALUES - 1)))


def byte_counts(words: RingVector) -> NDArray[np.int64]:
    """Count how often each of the 8 bytes of a word has each value, shape ``(8, 256)``."""
    table = words.astype("<u8").view(np.uint8).reshape(-1, 8)
    return np.stack([np.bincount(column, minlength=_VALUES) for column in table.T]).astype(np.int64)


def _p_value(value: RingVector, members: Sequence[int], nodes: int, random: Random) -> float:
    keys, client = [random(KEY_BYTES) for _ in range(nodes)], random(ID_BYTES)
    counts = [np.zeros((8, _VALUES), dtype=np.int64) for _ in range(3)]
    before: RingVector | None = None
    for charge in range(1, _ROUNDS + 1):
        announcement, entry = random(KEY_BYTES), entry_of(client, random(ID_BYTES), charge)
        _, sent = masked(value, keys, announcement, entry)
        y = np.frombuffer(sent, dtype="<u8")
        pads = [tag_and_mask(keys[member], announcement, entry, value.size)[TAG_BYTES:] for member in members]
        known = y + np.sum([np.frombuffer(pad, dtype="<u8") for pad in pads], axis=0, dtype=np.uint64)
        counts[0] += byte_counts(y)
        counts[1] += byte_counts(known)
        if before is not None:
            counts[2] += byte_counts(known - before)
        before = known
    return bonferroni(map(byte_p_value, counts))
