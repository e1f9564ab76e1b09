"""A Compute node's computation of the agreed set and its partial sum, from all lists and answers (DESIGN §4.7).

Every node does this for every contribution of every round, so all of it works on arrays.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.masks import ENTRY_BYTES, TAG_BYTES, RingVector, check_and_sum, sum_words
from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES
from dca_proto.errors import PeerError
from dca_proto.protocol.charges import SeenCharges
from dca_proto.protocol.compute.round import Round
from dca_proto.protocol.effects import Write
from dca_proto.protocol.lists import Places, agreed, charges_of, parse_places, rows_of, set_hash
from dca_proto.protocol.pool import Pool
from dca_proto.protocol.sessions import Sessions

_TAG_US, _WORD_US = 1.5, 0.05  # of one entry: its tag, and each word of its mask
UNKNOWN_MAX = 1024
"""Number of clients in a round that a Compute node asks for their Hello; a false list may contain made-up ids."""


class Union(msgspec.Struct, frozen=True):
    """U or a part of it: the entries, this node's tag for each, and the clients' slots (-1 if unknown)."""

    entries: bytes
    tags: bytes
    slots: Places

    @classmethod
    def of(cls, round_: Round, sessions: Sessions) -> Union:
        """Return the union of all M lists, in the announcement's order of nodes."""
        lists = [round_.lists[compute] for compute in round_.computes]
        entries = b"".join([node_list.entries for node_list in lists])
        tags = b"".join([node_list.tags for node_list in lists])
        return cls(entries, tags, sessions.slots_of(rows_of(entries)[:, :ID_BYTES]))

    @property
    def count(self) -> int:
        return len(self.entries) // ENTRY_BYTES

    def client(self, place: int) -> bytes:
        return self.entries[ENTRY_BYTES * place : ENTRY_BYTES * place + ID_BYTES]

    def at(self, places: Places) -> Union:
        """Return the part of the union at some places."""
        tags = np.frombuffer(self.tags, dtype="<u8")[places].tobytes()
        return Union(rows_of(self.entries)[places].tobytes(), tags, self.slots[places])


class Judgement(msgspec.Struct, frozen=True):
    """A node's objections to entries of the union.

    Attributes:
        objections: places in the union.
        reused: (client, charge number) of each entry whose number was used before.
        unknown: the first `UNKNOWN_MAX` clients whose tag no session confirms.
        writes: the writes of charge numbers, which must be durable with the answer.
    """

    objections: Places
    reused: tuple[tuple[bytes, int], ...]
    unknown: tuple[bytes, ...]
    writes: tuple[Write, ...]


class MaskWork(msgspec.Struct, frozen=True):
    """Entries of the union for `sum_masks`: their pair keys, the entries and the tags, all joined."""

    keys: bytes
    entries: bytes
    tags: bytes
    hash: bytes
    dimension: int

    def __repr__(self) -> str:
        return f"MaskWork(<{len(self.tags) // TAG_BYTES} entries>)"


def sum_masks(work: MaskWork) -> tuple[NDArray[np.bool_], RingVector]:
    """Return which tags hold, and the sum of the masks at these entries."""
    keys = np.frombuffer(work.keys, dtype=np.uint8).reshape(-1, KEY_BYTES)
    return check_and_sum(keys, work.entries, work.tags, work.hash, work.dimension)


class AgreedSet(msgspec.Struct, frozen=True):
    """A: its hash, and its places in the union, ascending."""

    hash: bytes
    places: Places

    @property
    def count(self) -> int:
        return int(self.places.size)


class Agreement:
    """A Compute node's arithmetic in one round, from all lists to the release.

    The pair keys are chosen once, by the sessions and certificates at `now_ms`. A new session of a client between
    answer and release changes nothing.
    """

    def __init__(self, round_: Round, sessions: Sessions, now_ms: int, pool: Pool) -> None:
        self._round = round_
        self._pool = pool
        self._union = Union.of(round_, sessions)
        self._epoch, self._dimension = round_.stored.epoch, round_.validated.dimension
        self._keys, self._valid = sessions.pair_keys(self._epoch, self._union.slots, now_ms)
        # `_failed`: the places whose tag fails under both sessions of the client. `_masks`: the sum of all other masks.
        wrong, total = self._sum_at(np.arange(self._union.count))
        self._keys[wrong], self._valid[wrong] = sessions.previous_keys(self._epoch, self._union.slots[wrong], now_ms)
        self._failed, rest = self._sum_at(wrong)
        self._masks = total + rest

    def _sum_at(self, places: Places) -> tuple[Places, RingVector]:
        """Return those of `places` whose tag fails or that have no key, and the sum of the masks at the others."""
        keyed = places[self._valid[places]]
        is_all = keyed.size == self._union.count
        part, keys = (self._union, self._keys) if is_all else (self._union.at(keyed), self._keys[keyed])

        def work(start: int, end: int) -> MaskWork:
            entries = part.entries[ENTRY_BYTES * start : ENTRY_BYTES * end]
            tags = part.tags[TAG_BYTES * start : TAG_BYTES * end]
            return MaskWork(keys[start:end].tobytes(), entries, tags, self._round.hash, self._dimension)

        us = _TAG_US + _WORD_US * self._dimension
        held, total = [np.zeros(0, dtype=np.bool_)], np.zeros(self._dimension, dtype=np.uint64)
        for holding, masks in self._pool.spread(sum_masks, keyed.size, us, work):
            held.append(holding)
            total += masks
        holds = np.concatenate(held)
        return np.setdiff1d(places, keyed[holds], assume_unique=True), total

    def judge(self, charges: SeenCharges) -> Judgement:
        """Find the entries to which this node objects, and record the charge numbers of all valid tags (§4.6)."""
        union, slots = self._union, self._union.slots
        holds = agreed(union.count, [self._failed])
        numbers = charges_of(rows_of(union.entries))
        used = np.zeros(union.count, dtype=np.bool_)
        used[holds] = charges.used(slots[holds], numbers[holds])
        reused = np.flatnonzero(used)
        fresh = holds & ~used
        return Judgement(
            objections=np.flatnonzero(~fresh),
            unknown=tuple(union.client(place) for place in self._failed[:UNKNOWN_MAX].tolist()),
            reused=tuple((union.client(place), int(numbers[place])) for place in reused.tolist()),
            writes=tuple(charges.note(slots[fresh], numbers[fresh])),
        )

    def agree(self, objections: Iterable[bytes]) -> AgreedSet:
        """Return A: the union without the entries to which any answer objects. Raises `PeerError("answer")`."""
        union = self._union
        in_set = agreed(union.count, [parse_places(data, union.count) for data in objections])
        chosen = rows_of(union.entries)[in_set].tobytes()
        return AgreedSet(set_hash(self._round.hash, chosen), np.flatnonzero(in_set))

    def partial_sum(self, chosen: AgreedSet) -> tuple[bytes, RingVector]:
        """Return the clients of A that this node holds, and their masked vectors plus its masks over all of A.

        Raises `PeerError("session")` if a restarted node lacks a session that its answer used: its sum would be wrong.
        """
        round_, computes = self._round, self._round.computes
        place = computes.index(round_.own)
        start = sum(round_.lists[compute].count for compute in computes[:place])
        end = start + round_.lists[round_.own].count
        inside = chosen.places[(chosen.places >= start) & (chosen.places < end)]
        own = [self._union.client(at) for at in inside.tolist()]
        expired = np.intersect1d(chosen.places, self._failed)
        if expired.size:
            raise PeerError("session", found=f"{expired.size} sessions missing", expected="all that the answer used")
        removed = agreed(self._union.count, [self._failed])  # entries with a valid tag to which somebody objects
        removed[chosen.places] = False
        masks = self._masks - self._sum_at(np.flatnonzero(removed))[1]
        return b"".join(own), sum_words((round_.kept[client].y for client in own), self._dimension) + masks
