"""A Compute node's computation of the agreed set and its partial sum, from all lists and answers (DESIGN §4.7, §12).

Every node does this for every contribution of every round, so all of it works on arrays. A verified sum differs in what
is summed: shares of proven words in place of masks. Each node opens the proofs with its answer. Entries whose proofs
fail are left out of the agreed set.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.bit_proof import pack, unpack
from dca_proto.crypto.bounded import Statement
from dca_proto.crypto.field import ELEMENT_BYTES, PRIME, Elements
from dca_proto.crypto.fixedpoint import ring_to_bytes
from dca_proto.crypto.masks import ENTRY_BYTES, TAG_BYTES, RingVector, check_and_sum, sum_words
from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES
from dca_proto.crypto.shares import challenge, coins_part, open_shares, point_of, split_entries
from dca_proto.errors import PeerError
from dca_proto.protocol.charges import SeenCharges
from dca_proto.protocol.compute.proofs import openings_of
from dca_proto.protocol.compute.round import Round
from dca_proto.protocol.effects import Write
from dca_proto.protocol.lists import Places, agreed, charges_of, parse_places, rows_of, set_hash
from dca_proto.protocol.pool import Pool
from dca_proto.protocol.sessions import Sessions
from dca_proto.protocol.wire.messages import Answer

_TAG_US, _WORD_US = 1.5, 0.05  # of one entry: its tag, and each word of its mask or share
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
        openings: of the proofs of all other entries, in a verified sum.
    """

    objections: Places
    reused: tuple[tuple[bytes, int], ...]
    unknown: tuple[bytes, ...]
    writes: tuple[Write, ...]
    openings: bytes = b""


class MaskWork(msgspec.Struct, frozen=True):
    """Entries of the union for `sum_masks`: their pair keys, the entries and the tags, all joined.

    In a verified sum it also has the statement, the seed of the challenge, and y of each entry that the node holds.
    """

    keys: bytes
    entries: bytes
    tags: bytes
    hash: bytes
    dimension: int
    statement: Statement | None = None
    seed: bytes = b""
    held: tuple[bytes, ...] = ()

    def __repr__(self) -> str:
        return f"MaskWork(<{len(self.tags) // TAG_BYTES} entries>)"


def sum_masks(work: MaskWork) -> tuple[NDArray[np.bool_], RingVector, Elements]:
    """Return which tags hold, the sum of masks or numbers at these entries, and the openings of all, if any."""
    keys, none = np.frombuffer(work.keys, dtype=np.uint8).reshape(-1, KEY_BYTES), np.zeros((0, 0), dtype=np.uint64)
    if work.statement is None:
        return *check_and_sum(keys, work.entries, work.tags, work.hash, work.dimension), none
    holds, _ = check_and_sum(keys, work.entries, work.tags, work.hash, 0)
    right, entries = np.flatnonzero(holds).tolist(), split_entries(work.entries)
    openings = np.zeros((len(entries), work.statement.opened), dtype=np.uint64)
    opened = open_shares(
        work.statement,
        work.seed,
        [keys[at].tobytes() for at in right],
        [entries[at] for at in right],
        [work.held[at] for at in right],
        work.hash,
    )
    openings[right] = opened.openings
    return holds, opened.total, openings


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

    def __init__(self, round_: Round, sessions: Sessions, now_ms: int, pool: Pool) -> None:
        self._round = round_
        self._pool = pool
        self._union = Union.of(round_, sessions)
        self._epoch, self._dimension = round_.stored.epoch, round_.validated.dimension
        self._statement = round_.validated.statement
        self._modulus = None if self._statement is None else np.uint64(PRIME)
        self._seed, self._openings = b"", np.zeros((self._union.count, 0), dtype=np.uint64)
        if self._statement is not None:
            self._seed = challenge(round_.hash, [round_.lists[compute].hash for compute in round_.computes])
            self._openings = np.zeros((self._union.count, self._statement.opened), dtype=np.uint64)
        self._keys, self._valid = sessions.pair_keys(self._epoch, self._union.slots, now_ms)
        # `_failed`: the places whose tag fails under both sessions of the client. `_masks`: the sum of all other masks.
        wrong, total = self._sum_at(np.arange(self._union.count))
        self._keys[wrong], self._valid[wrong] = sessions.previous_keys(self._epoch, self._union.slots[wrong], now_ms)
        self._failed, rest = self._sum_at(wrong)
        self._masks = self._reduced(total + rest)

    def _reduced(self, total: RingVector) -> RingVector:
        """Reduce sums modulo P in a verified sum; other words are modulo 2^64 as they are."""
        return total if self._modulus is None else total % self._modulus

    def _held(self, entries: bytes) -> tuple[bytes, ...]:
        """Return y of each entry that this node holds; empty for others."""
        kept = self._round.kept
        found = ((kept.get(entry[:ID_BYTES]), entry) for entry in split_entries(entries))
        return tuple(b"" if one is None or one.entry != entry else one.y for one, entry in found)

    def _sum_at(self, places: Places) -> tuple[Places, RingVector]:
        """Return those of `places` whose tag fails or that have no key, and the sum of the masks at the others.

        In a verified sum, it is this node's share of the sum of their numbers; their openings are noted.
        """
        keyed = places[self._valid[places]]
        is_all = keyed.size == self._union.count
        part, keys = (self._union, self._keys) if is_all else (self._union.at(keyed), self._keys[keyed])

        def work(start: int, end: int) -> MaskWork:
            entries = part.entries[ENTRY_BYTES * start : ENTRY_BYTES * end]
            tags = part.tags[TAG_BYTES * start : TAG_BYTES * end]
            about = (keys[start:end].tobytes(), entries, tags, self._round.hash, self._dimension)
            if self._statement is None:
                return MaskWork(*about)
            return MaskWork(*about, self._statement, self._seed, self._held(entries))

        us = _TAG_US + _WORD_US * (self._dimension if self._statement is None else self._statement.block.words)
        held, total = [np.zeros(0, dtype=np.bool_)], np.zeros(self._dimension, dtype=np.uint64)
        opened = [self._openings[:0]]
        for holding, masks, openings in self._pool.spread(sum_masks, keyed.size, us, work):
            held.append(holding)
            opened.append(openings)
            total = self._reduced(total + masks)
        holds = np.concatenate(held)
        if self._statement is not None:
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
            openings=b"" if self._statement is None else pack(self._openings[fresh].ravel()),
        )

    def agree(self, answers: Sequence[Answer]) -> AgreedSet:
        """Return A: the union without the entries to which any answer objects, or whose proofs fail.

        Raises `PeerError("answer")`.
        """
        union = self._union
        objections = [parse_places(answer.objections, union.count) for answer in answers]
        in_set, failed = agreed(union.count, objections), np.zeros(0, dtype=np.int64)
        if self._statement is not None:
            failed = self._without_proof(self._statement, in_set, objections, answers)
            in_set[failed] = False
        chosen = rows_of(union.entries)[in_set].tobytes()
        names = tuple(sorted(union.client(place) for place in failed.tolist()))
        return AgreedSet(set_hash(self._round.hash, chosen), np.flatnonzero(in_set), names)

    def _without_proof(
        self, statement: Statement, in_set: NDArray[np.bool_], objections: Sequence[Places], answers: Sequence[Answer]
    ) -> Places:
        """Return the places of entries without objections whose proofs fail. Raises `PeerError("answer")`."""
        total = np.zeros((int(in_set.sum()), statement.opened), dtype=np.uint64)
        for places, answer in zip(objections, answers, strict=True):
            opened, data = agreed(in_set.size, [places]), openings_of(answer)
            expected = ELEMENT_BYTES * statement.opened * int(opened.sum())
            if len(data) != expected:
                raise PeerError("answer", found=f"{len(data)} bytes of openings", expected=f"{expected} bytes")
            total += unpack(data).reshape(-1, statement.opened)[in_set[opened]]
        right = statement.accepted(total % np.uint64(PRIME), point_of(self._seed))
        return np.flatnonzero(in_set)[~right]

    def partial_sum(self, chosen: AgreedSet) -> tuple[bytes, bytes]:
        """Return the clients of A that this node holds, and their masked vectors plus its masks over all of A, encoded.

        In a verified sum, the vector is its share of the sum of numbers and flipped noise bits; the first node adds
        what the coins alone give.

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
        gone = self._sum_at(np.flatnonzero(removed))[1]
        if self._statement is None:
            masks = self._masks - gone
            vector = sum_words((round_.kept[client].y for client in own), self._dimension) + masks
            return b"".join(own), ring_to_bytes(vector)
        total = self._masks + (np.uint64(PRIME) - gone)
        if place == 0:
            entries = split_entries(rows_of(self._union.entries)[chosen.places].tobytes())
            total += coins_part(self._statement, self._seed, entries)
        return b"".join(own), pack(total % np.uint64(PRIME))
