"""A Compute node's computation of the agreed set and its partial sum, from all lists and answers (DESIGN §4.7, §12).

Every node does this for every contribution of every round, so all of it works on arrays. What a node adds up for the
entries is in `summands`: masks, or in a verified sum shares. Each node opens the proofs with its answer. Entries whose
proofs fail are left out of the agreed set.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.bit_proof import pack, unpack
from dca_proto.crypto.field import ELEMENT_BYTES
from dca_proto.crypto.masks import ENTRY_BYTES, TAG_BYTES, RingVector
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.errors import PeerError
from dca_proto.protocol.charges import SeenCharges
from dca_proto.protocol.compute.proofs import openings_of
from dca_proto.protocol.compute.round import ComputeRound
from dca_proto.protocol.compute.summands import MaskWork, summands_of, summed
from dca_proto.protocol.effects import Write
from dca_proto.protocol.lists import Places, agreed, charges_of, parse_places, rows_of, set_hash
from dca_proto.protocol.pool import Pool
from dca_proto.protocol.sessions import SessionTable
from dca_proto.protocol.wire.messages import Answer

_TAG_US, _WORD_US = 1.5, 0.05  # of one entry: its tag, and each word that it adds
UNKNOWN_MAX = 1024
"""Number of clients in a round that a Compute node asks for their Hello; a false list may contain made-up ids."""


class Union(msgspec.Struct, frozen=True):
    """U or a part of it: the entries, this node's tag for each, and the clients' slots (-1 if unknown)."""

    entries: bytes
    tags: bytes
    slots: Places

    @classmethod
    def of(cls, round_: ComputeRound, sessions: SessionTable) -> Union:
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
        openings: of the proofs of all other entries, in a verified sum.
    """

    objections: Places
    reused: tuple[tuple[bytes, int], ...]
    unknown: tuple[bytes, ...]
    writes: tuple[Write, ...]
    openings: bytes = b""


class AgreedSet(msgspec.Struct, frozen=True):
    """A: its hash, and its places in the union, ascending; and the clients whose proofs failed, ascending."""

    hash: bytes
    places: Places
    failed: tuple[bytes, ...] = ()

    @property
    def count(self) -> int:
        return int(self.places.size)


class Agreement:
    """A Compute node's arithmetic in one round, from all lists to the release.

    The pair keys are chosen once, by the sessions and certificates at `now_ms`. A new session of a client between
    answer and release changes nothing.
    """

    def __init__(self, round_: ComputeRound, sessions: SessionTable, now_ms: int, pool: Pool) -> None:
        self._round = round_
        self._pool = pool
        self._union = Union.of(round_, sessions)
        self._summands = summands_of(round_)
        self._openings = np.zeros((self._union.count, self._summands.opened), dtype=np.uint64)
        epoch, slots = round_.stored.epoch, self._union.slots
        self._keys, self._valid = sessions.pair_keys(epoch, slots, now_ms)
        # `_failed`: the places whose tag fails under both sessions of the client. `_total`: the sum over all others.
        wrong, total = self._sum_at(np.arange(self._union.count))
        self._keys[wrong], self._valid[wrong] = sessions.previous_keys(epoch, slots[wrong], now_ms)
        self._failed, rest = self._sum_at(wrong)
        self._total = self._summands.plus(total, rest)

    def _sum_at(self, places: Places) -> tuple[Places, RingVector]:
        """Return those of `places` whose tag fails or that have no key, and the sum of what the others add.

        Their openings are noted.
        """
        summands, keyed = self._summands, places[self._valid[places]]
        is_all = keyed.size == self._union.count
        part, keys = (self._union, self._keys) if is_all else (self._union.at(keyed), self._keys[keyed])

        def work(start: int, end: int) -> MaskWork:
            entries = part.entries[ENTRY_BYTES * start : ENTRY_BYTES * end]
            tags = part.tags[TAG_BYTES * start : TAG_BYTES * end]
            return summands.work(keys[start:end].tobytes(), entries, tags)

        us = _TAG_US + _WORD_US * summands.words
        held, opened, total = [np.zeros(0, dtype=np.bool_)], [self._openings[:0]], summands.none
        for holding, words, openings in self._pool.spread(summed, keyed.size, us, work):
            held.append(holding)
            opened.append(openings)
            total = summands.plus(total, words)
        holds = np.concatenate(held)
        self._openings[keyed[holds]] = np.concatenate(opened)[holds]
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
            openings=pack(self._openings[fresh].ravel()),
        )

    def agree(self, answers: Sequence[Answer]) -> AgreedSet:
        """Return A: the union without the entries to which any answer objects, or whose proofs fail.

        Raises `PeerError("answer")`.
        """
        union = self._union
        objections = [parse_places(answer.objections, union.count) for answer in answers]
        in_set = agreed(union.count, objections)
        failed = self._without_proof(in_set, objections, answers)
        in_set[failed] = False
        chosen = rows_of(union.entries)[in_set].tobytes()
        names = tuple(sorted(union.client(place) for place in failed.tolist()))
        return AgreedSet(set_hash(self._round.hash, chosen), np.flatnonzero(in_set), names)

    def _without_proof(
        self, in_set: NDArray[np.bool_], objections: Sequence[Places], answers: Sequence[Answer]
    ) -> Places:
        """Return the places of entries without objections whose proofs fail. Raises `PeerError("answer")`."""
        width = self._summands.opened
        total = np.zeros((int(in_set.sum()), width), dtype=np.uint64)
        for places, answer in zip(objections, answers, strict=True):
            opened, data = agreed(in_set.size, [places]), openings_of(answer)
            expected = ELEMENT_BYTES * width * int(opened.sum())
            if len(data) != expected:
                raise PeerError("answer", found=f"{len(data)} bytes of openings", expected=f"{expected} bytes")
            total += unpack(data).reshape(int(opened.sum()), width)[in_set[opened]]
        return np.flatnonzero(in_set)[~self._summands.proven(total)]

    def partial_sum(self, chosen: AgreedSet) -> tuple[bytes, bytes]:
        """Return the clients of A that this node holds, and its part of the sum over A, encoded.

        Raises `PeerError("session")` if a restarted node lacks a session that its answer used: its sum would be wrong.
        """
        round_, computes = self._round, self._round.computes
        place = computes.index(round_.own)
        start = sum(round_.lists[compute].count for compute in computes[:place])
        end = start + round_.lists[round_.own].count
        inside = chosen.places[(chosen.places >= start) & (chosen.places < end)]
        rows, holds = rows_of(self._union.entries), agreed(self._union.count, [self._failed])
        expired = chosen.count - int(np.count_nonzero(holds[chosen.places]))
        if expired:
            raise PeerError("session", found=f"{expired} sessions missing", expected="all that the answer used")
        holds[chosen.places] = False  # leaves the entries with a valid tag to which somebody objects
        gone = self._sum_at(np.flatnonzero(holds))[1]
        total = self._summands.minus(self._total, gone)
        kept = list(round_.kept.values())  # in the order of the node's list
        held = (kept[at].y for at in (inside - start).tolist())
        clients = rows[inside, :ID_BYTES].tobytes()
        return clients, self._summands.part(total, held, rows[chosen.places].tobytes())
