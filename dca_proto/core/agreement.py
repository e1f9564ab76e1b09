"""One set, and one sum over it: what a Compute node works out of all lists and all answers (DESIGN §4.7).

Functions on arrays. Every node does this for every contribution of every round.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from dca_proto.core.charges import SeenCharges
from dca_proto.core.compute_round import Round
from dca_proto.core.effects import Write
from dca_proto.core.errors import PeerError
from dca_proto.core.fixedpoint import ring_subtract
from dca_proto.core.lists import Places, agreed, charges_of, clients_of, parse_places, rows_of, set_hash
from dca_proto.core.masks import ENTRY_BYTES, ID_BYTES, TAG_BYTES, RingVector, check_and_sum, sum_words, tag_and_mask
from dca_proto.core.sessions import Sessions

UNKNOWN_MAX = 1024
"""How many clients of a round a Compute node asks for their Hello: a list may hold ids of nobody."""


class Union(msgspec.Struct, frozen=True):
    """U, or a part of it: entries, this node's tag for each, and the clients' slots (-1: not known)."""

    entries: bytes
    tags: bytes
    slots: Places

    @classmethod
    def of(cls, round_: Round, sessions: Sessions) -> Union:
        """All M lists, in the announcement's order of nodes."""
        lists = [round_.lists[compute] for compute in round_.stored.computes]
        entries = b"".join([one.entries for one in lists])
        return cls(entries, b"".join([one.tags for one in lists]), sessions.slots_of(clients_of(entries)))

    @property
    def count(self) -> int:
        return len(self.entries) // ENTRY_BYTES

    def client(self, place: int) -> bytes:
        return self.entries[ENTRY_BYTES * place : ENTRY_BYTES * place + ID_BYTES]

    def at(self, places: Places) -> Union:
        """The entries at some places."""
        tags = np.frombuffer(self.tags, dtype="<u8")[places].tobytes()
        return Union(rows_of(self.entries)[places].tobytes(), tags, self.slots[places])


class Judgement(msgspec.Struct, frozen=True):
    """What a node says of the union, and remembers of it.

    Attributes:
        objections: places in the union. mask_sum: of all other entries.
        reused: (client, charge number) of those whose number was used before.
        unknown: the first `UNKNOWN_MAX` clients whose tag no session gives.
        writes: the charge numbers, to be durable with the answer.
    """

    objections: Places
    mask_sum: RingVector
    reused: tuple[tuple[bytes, int], ...]
    unknown: tuple[bytes, ...]
    writes: tuple[Write, ...]


class AgreedSet(msgspec.Struct, frozen=True):
    """S: its hash, and its places in the union, ascending."""

    hash: bytes
    places: Places

    @property
    def count(self) -> int:
        return int(self.places.size)


class Agreement:
    """A Compute node's arithmetic of one round.

    Args:
        own: id of the node. now_ms: for sessions and certificates, which may have ended.
    """

    def __init__(self, round_: Round, own: bytes, sessions: Sessions, now_ms: int) -> None:
        self._round = round_
        self._own = own
        self._sessions = sessions
        self._now_ms = now_ms
        self._union = Union.of(round_, sessions)

    def judge(self, charges: SeenCharges) -> Judgement:
        """Which entries this node objects to, and the sum of its masks over all others.

        It records the charge numbers of all entries whose tag holds (§4.6).
        """
        union = self._union
        failed, total = self._check_tags(union)
        holds = agreed(union.count, [failed])
        slots = union.slots
        numbers = charges_of(rows_of(union.entries))
        used = np.zeros(union.count, dtype=np.bool_)
        used[holds] = charges.used(slots[holds], numbers[holds])
        reused = np.flatnonzero(used)
        if reused.size:
            total = ring_subtract(total, self._masks_at(reused))
        fresh = holds & ~used
        return Judgement(
            objections=np.flatnonzero(~fresh),
            mask_sum=total,
            unknown=tuple(union.client(place) for place in failed[:UNKNOWN_MAX].tolist()),
            reused=tuple((union.client(place), int(numbers[place])) for place in reused.tolist()),
            writes=tuple(charges.note(slots[fresh], numbers[fresh])),
        )

    def agree(self, objections: Iterable[bytes]) -> AgreedSet:
        """S: the union without every objection, as the answers have them. Raises `PeerError("answer")`."""
        union = self._union
        kept = agreed(union.count, [parse_places(data, union.count) for data in objections])
        chosen = rows_of(union.entries)[kept].tobytes()
        return AgreedSet(set_hash(self._round.hash, chosen), np.flatnonzero(kept))

    def partial_sum(self, chosen: AgreedSet) -> tuple[bytes, RingVector]:
        """The clients of S that this node holds, and their masked vectors plus its masks over all of S.

        Raises:
            PeerError: ``session``: one is gone, so that no right sum can be made.
        """
        round_, computes = self._round, self._round.stored.computes
        place = computes.index(self._own)
        start = sum(round_.lists[compute].count for compute in computes[:place])
        end = start + round_.lists[self._own].count
        inside = chosen.places[(chosen.places >= start) & (chosen.places < end)]
        held = [self._union.client(at) for at in inside.tolist()]
        total = sum_words((round_.kept[client].y for client in held), round_.validated.dimension)
        return b"".join(held), total + self._masks_over(chosen)

    def _masks_over(self, chosen: AgreedSet) -> RingVector:
        """The sum of the masks over S: from the one that was made for the answer, or anew after a restart."""
        round_ = self._round
        if round_.mask_sum is None:
            return self._masks_at(chosen.places)
        own = parse_places(round_.answers[self._own][1].objections, self._union.count)
        accepted = agreed(self._union.count, [own])
        accepted[chosen.places] = False
        removed = np.flatnonzero(accepted)
        return ring_subtract(round_.mask_sum, self._masks_at(removed)) if removed.size else round_.mask_sum

    def _masks_at(self, places: Places) -> RingVector:
        """The sum of this node's masks at some places, whose tags hold."""
        failed, total = self._check_tags(self._union.at(places))
        if failed.size:
            raise PeerError("session", found=f"{failed.size} sessions that are gone", expected="those of the answer")
        return total

    def _check_tags(self, union: Union) -> tuple[Places, RingVector]:
        """The places whose tag fails under both sessions of the client, and the sum of all other masks."""
        sessions, ah = self._sessions, self._round.hash
        epoch, dimension = self._round.own_key(self._own).epoch, self._round.validated.dimension
        slots = union.slots.tolist()
        keys = sessions.pair_keys(epoch, slots, self._now_ms)
        failed, total = check_and_sum(keys, union.entries, union.tags, ah, dimension)
        wrong = []
        for place in failed.tolist():
            key = sessions.previous_key(epoch, slots[place], self._now_ms)
            entry = union.entries[ENTRY_BYTES * place : ENTRY_BYTES * (place + 1)]
            pad = b"" if key is None else tag_and_mask(key, ah, entry, dimension)
            if pad[:TAG_BYTES] == union.tags[TAG_BYTES * place : TAG_BYTES * (place + 1)]:
                total = total + np.frombuffer(pad[TAG_BYTES:], dtype="<u8")
            else:
                wrong.append(place)
        return np.array(wrong, dtype=np.int64), total
