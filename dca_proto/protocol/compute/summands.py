"""What a Compute node adds up for the entries of a round: masks, or in a verified sum shares (DESIGN §4.7, §12)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.bit_proof import pack
from dca_proto.crypto.bounded import Statement
from dca_proto.crypto.field import PRIME, Elements
from dca_proto.crypto.fixedpoint import ring_to_bytes
from dca_proto.crypto.masks import TAG_BYTES, RingVector, check_and_sum, sum_words
from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES
from dca_proto.crypto.shares import challenge, coins_part, open_shares, point_of, split_entries
from dca_proto.protocol.compute.round import ComputeRound

_P = np.uint64(PRIME)


class MaskWork(msgspec.Struct, frozen=True):
    """Entries of the union for `summed`: their pair keys, the entries and the tags, all joined."""

    keys: bytes
    entries: bytes
    tags: bytes
    hash: bytes
    dimension: int

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<{len(self.tags) // TAG_BYTES} entries>)"

    def summed(self) -> tuple[NDArray[np.bool_], RingVector, Elements]:
        holds, total = check_and_sum(_rows(self.keys), self.entries, self.tags, self.hash, self.dimension)
        return holds, total, np.zeros((holds.size, 0), dtype=np.uint64)


class ShareWork(MaskWork, frozen=True):
    """Also the statement, the seed of the challenge, and y of each entry that the node holds."""

    statement: Statement
    seed: bytes
    held: tuple[bytes, ...]

    def summed(self) -> tuple[NDArray[np.bool_], RingVector, Elements]:
        keys, entries = _rows(self.keys), split_entries(self.entries)
        holds, _ = check_and_sum(keys, self.entries, self.tags, self.hash, 0)
        right = np.flatnonzero(holds).tolist()
        openings = np.zeros((len(entries), self.statement.opened), dtype=np.uint64)
        opened = open_shares(
            self.statement,
            self.seed,
            [keys[at].tobytes() for at in right],
            [entries[at] for at in right],
            [self.held[at] for at in right],
            self.hash,
        )
        openings[right] = opened.openings
        return holds, opened.total, openings


def summed(work: MaskWork) -> tuple[NDArray[np.bool_], RingVector, Elements]:
    """Return which tags hold, the sum of what these entries add, and the openings of all, if any."""
    return work.summed()


class Masks:
    """Of a secure sum: words modulo 2^64, and no proofs.

    Attributes:
        words: that an entry adds. opened: numbers that a node opens for each entry.
    """

    def __init__(self, round_: ComputeRound) -> None:
        self._round = round_
        self._dimension = round_.validated.dimension
        self.words, self.opened = self._dimension, 0

    @property
    def none(self) -> RingVector:
        """The sum of no entries."""
        return np.zeros(self._dimension, dtype=np.uint64)

    def plus(self, total: RingVector, more: RingVector) -> RingVector:
        return total + more

    def minus(self, total: RingVector, gone: RingVector) -> RingVector:
        return total - gone

    def work(self, keys: bytes, entries: bytes, tags: bytes) -> MaskWork:
        return MaskWork(keys, entries, tags, self._round.hash, self._dimension)

    def proven(self, openings: Elements) -> NDArray[np.bool_]:
        """Return for each entry whether its proof holds, from the sum of all nodes' openings."""
        return np.ones(len(openings), dtype=np.bool_)

    def part(self, total: RingVector, kept: Iterable[bytes], entries: bytes) -> bytes:
        """Return this node's part of the sum, encoded: its masks over all of A, and the vectors that it holds.

        Args:
            total: what this node adds for A. kept: y of the entries of A that it holds. entries: of A.
        """
        return ring_to_bytes(sum_words(kept, self._dimension) + total)


class Shares(Masks):
    """Of a verified sum: numbers modulo P, and proofs that each entry is within the statement.

    A node's sum is its share of the sum of numbers and flipped noise bits. The vectors that it holds are among its
    shares. The first node adds what the coins alone give.
    """

    def __init__(self, round_: ComputeRound, statement: Statement) -> None:
        super().__init__(round_)
        self._statement = statement
        self._seed = challenge(round_.hash, [round_.lists[compute].hash for compute in round_.computes])
        self.words, self.opened = statement.words, statement.opened

    def plus(self, total: RingVector, more: RingVector) -> RingVector:
        return (total + more) % _P

    def minus(self, total: RingVector, gone: RingVector) -> RingVector:
        return (total + (_P - gone)) % _P

    def work(self, keys: bytes, entries: bytes, tags: bytes) -> MaskWork:
        about = (keys, entries, tags, self._round.hash, self._dimension)
        return ShareWork(*about, self._statement, self._seed, self._held(entries))

    def _held(self, entries: bytes) -> tuple[bytes, ...]:
        """Return y of each entry that this node holds; empty for others."""
        kept = self._round.kept
        found = ((kept.get(entry[:ID_BYTES]), entry) for entry in split_entries(entries))
        return tuple(b"" if one is None or one.entry != entry else one.y for one, entry in found)

    def proven(self, openings: Elements) -> NDArray[np.bool_]:
        return self._statement.accepted(openings % _P, point_of(self._seed))

    def part(self, total: RingVector, kept: Iterable[bytes], entries: bytes) -> bytes:
        is_first = self._round.own == self._round.computes[0]
        coins = coins_part(self._statement, self._seed, split_entries(entries)) if is_first else self.none
        return pack((total + coins) % _P)


def summands_of(round_: ComputeRound) -> Masks:
    """Return what this node adds up in a round: masks, or shares if contributions are proven."""
    statement = round_.validated.statement
    return Masks(round_) if statement is None else Shares(round_, statement)


def _rows(keys: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(keys, dtype=np.uint8).reshape(-1, KEY_BYTES)
