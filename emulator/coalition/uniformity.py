"""Tests whether a masked contribution looks uniform to a coalition, whatever the victim's row is.

The victim masks its noisy values with the protocol's own `masked`, in both worlds, in many rounds with the same pair
keys. The coalition has the masked vector and its own masks; one Compute node is outside of it. Each such view gets
three χ² tests: of the vector as sent, of the vector with the coalition's masks added back, and of the difference of the
latter from round to round, which would reveal masks that are reused or do not hide. Each test covers the 8 byte
positions of a word and the 256 values of each byte: 2,040 degrees of freedom.

In a verified sum, the victim shares the words of its proof, which are elements of a field. The tests are the same, of
the bits of each element. A coalition also sees what the proof is opened to: A, which blinds make uniform. What else is
opened follows from it and from the other uniform elements, f_j(r) of a norm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from dca_proto.crypto.bit_proof import point, split
from dca_proto.crypto.bounded import Statement
from dca_proto.crypto.field import PRIME, Elements
from dca_proto.crypto.fixedpoint import to_ring
from dca_proto.crypto.masks import TAG_BYTES, RingVector, entry_of, masked, tag_and_mask
from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES, Random
from dca_proto.crypto.shares import pads_of, random_bits, uniform_elements
from dca_proto.results.figure import about
from emulator.claim import VICTIM
from emulator.coalition.programme import Programme
from emulator.coalition.worlds import Worlds

_ROUNDS = 32
_OPENED, _POINTS = 640, 8  # contributions whose proofs are opened, at so many points
_WORDS = 4096
_VALUES = 256


class View(msgspec.Struct, frozen=True):
    """The test of one coalition's view of the victim."""

    side: Annotated[int, about("The world, 0 or 1.")]
    outside: Annotated[int, about("The Compute node that is not in the coalition.")]
    p_value: Annotated[float, about("Of all its chi-squared tests together.")]


def views(world: Worlds, programme: Programme, random: Random) -> list[View]:
    """Test the views of a coalition with Compute nodes, if it has any, and one is outside of it."""
    nodes, colluding = world.setting.computes, world.setting.coalition.computes
    if not 0 < colluding < nodes:
        return []
    if world.validated.statement is not None:
        return _views_of_proofs(world, world.validated.statement, programme, random)
    tested = []
    for side in (0, 1):
        noise = programme.noise(world, VICTIM, -(-_WORDS // world.size), random)  # of enough runs for `_WORDS` words
        value = to_ring(programme.contribute(world, programme.encode(world, VICTIM, side), noise).reshape(-1))
        for outside in sorted({0, nodes // 2, nodes - 1}):
            members = [(outside + 1 + step) % nodes for step in range(colluding)]
            tested.append(View(side, outside, _p_value(value, members, nodes, random)))
    return tested


def _views_of_proofs(world: Worlds, statement: Statement, programme: Programme, random: Random) -> list[View]:
    nodes, colluding, tested = world.setting.computes, world.setting.coalition.computes, []
    for side in (0, 1):
        x = statement.clipped(programme.encode(world, VICTIM, side)[: world.validated.dimension])
        x = x if statement.holds(x) else np.zeros_like(x)
        opened = _openings(statement, x, random)
        for outside in sorted({0, nodes // 2, nodes - 1}):
            members = [(outside + 1 + step) % nodes for step in range(colluding)]
            seen = _elements_p_value(statement, x, members, nodes, random)
            tested.append(View(side, outside, bonferroni([opened, *seen])))
    return tested


def _proven(statement: Statement, x: NDArray[np.int64], random: Random) -> Elements:
    """Return the words of a correct client, as `protocol.contribution` makes them."""
    noise = random_bits(random(KEY_BYTES), statement.noise_size)
    return statement.prove(statement.encode(x, noise), uniform_elements(random(KEY_BYTES), statement.blinds))


def _openings(statement: Statement, x: NDArray[np.int64], random: Random) -> float:
    """Return the p-value of a test that A, and each f_j(r) of a norm, are uniform, at some points."""
    counts = np.zeros((4, _VALUES), dtype=np.int64)
    of_wires = 0 if statement.wires is None else 2 * statement.wires.wires
    uniform = [0, 1, *range(statement.opened - of_wires, statement.opened)]
    for _ in range(_POINTS):
        words = np.stack([_proven(statement, x, random) for _ in range(_OPENED // _POINTS)])
        total = statement.opening(words, statement.query(point(random(64))))
        counts += element_counts(total[:, uniform].ravel())
    return element_p_value(counts)


def _elements_p_value(
    statement: Statement, x: NDArray[np.int64], members: Sequence[int], nodes: int, random: Random
) -> list[float]:
    """Return the p-values of tests of y, of y with the coalition's shares, and of its differences between rounds."""
    keys, client = [random(KEY_BYTES) for _ in range(nodes)], random(ID_BYTES)
    counts = [np.zeros((4, _VALUES), dtype=np.int64) for _ in range(3)]
    before: Elements | None = None
    for charge in range(1, _ROUNDS + 1):
        announcement, entry = random(KEY_BYTES), entry_of(client, random(ID_BYTES), charge)
        pads = pads_of(keys, [entry] * nodes, announcement, statement.words)
        y = split(statement.field, _proven(statement, x, random), pads)
        known = (y + pads[list(members)].sum(axis=0, dtype=np.uint64)) % np.uint64(PRIME)
        counts[0] += element_counts(y)
        counts[1] += element_counts(known)
        if before is not None:
            counts[2] += element_counts(statement.field.minus(known, before))
        before = known
    return [element_p_value(each) for each in counts]


def element_counts(elements: Elements) -> NDArray[np.int64]:
    """Count how often each of the 4 bytes of elements has each value; the highest has 7 bits, and is below 128."""
    table = elements.astype("<u4").view(np.uint8).reshape(-1, 4)
    return np.stack([np.bincount(column, minlength=_VALUES) for column in table.T]).astype(np.int64)


def element_p_value(counts: NDArray[np.int64]) -> float:
    """Return the p-value of a χ² test of `element_counts` against uniform elements, which are below 2³¹ - 1."""
    rows = [*counts[:3], counts[3, : _VALUES // 2]]
    statistic = sum(float(((row - row.mean()) ** 2 / row.mean()).sum()) for row in rows)
    if counts[3, _VALUES // 2 :].any():
        return 0.0
    return float(chi2.sf(statistic, sum(row.size - 1 for row in rows)))


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
