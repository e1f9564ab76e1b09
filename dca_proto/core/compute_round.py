"""A round at a Compute node: what is stored, what follows from it, and the literal table of its phases (DESIGN §4, §9).

    new ── announcement ──> collecting ── freeze ──> frozen ── M lists ──> answered ── M answers ──> released
                                └──────────── abort: too few, equivocation, a silent peer ────┴──> aborted

Both ends are final. What is kept of an ended round (its last word, and enough to know it again) can be read without its
announcement, its federation file or its statistic: nothing that a later start lacks may ever open a round again.
"""

from __future__ import annotations

from functools import cached_property

import msgspec

from dca_proto.core.announcement import OpenedAnnouncement
from dca_proto.core.codec import encode
from dca_proto.core.contribution import Kept
from dca_proto.core.effects import Persist
from dca_proto.core.kinds import SecureSum
from dca_proto.core.lists import clients_of, list_hash
from dca_proto.core.machine import Table
from dca_proto.core.masks import ENTRY_BYTES, ID_BYTES, TAG_BYTES, RingVector
from dca_proto.core.messages import Answer, EpochKey, Signed
from dca_proto.core.validated import ValidatedRound

NEW, COLLECTING, FROZEN, ANSWERED = "new", "collecting", "frozen", "answered"
RELEASED, ABORTED, CLOSED = "released", "aborted", "closed"
OPEN, ENDS = (COLLECTING, FROZEN, ANSWERED), (RELEASED, ABORTED)
TABLE: Table = {
    (NEW, "announcement"): COLLECTING,
    (NEW, "abort"): ABORTED,
    (COLLECTING, "contribution"): COLLECTING,
    (COLLECTING, "freeze"): FROZEN,
    (COLLECTING, "abort"): ABORTED,
    (FROZEN, "list"): FROZEN,
    (FROZEN, "all lists"): ANSWERED,
    (FROZEN, "abort"): ABORTED,
    (ANSWERED, "all answers"): RELEASED,
    (ANSWERED, "abort"): ABORTED,
    **{(phase, "close"): phase for phase in (FROZEN, ANSWERED, *ENDS)},
    **{(phase, "repeated list"): phase for phase in (FROZEN, ANSWERED, *ENDS)},
    **{(phase, "peer answer"): phase for phase in (FROZEN, ANSWERED)},
    **{(phase, "repeated answer"): phase for phase in (FROZEN, ANSWERED, *ENDS)},
    **{(phase, "late abort"): phase for phase in ENDS},
    **{(phase, "repeated contribution"): phase for phase in (*OPEN, RELEASED)},
    **{(phase, "late contribution"): phase for phase in (FROZEN, ANSWERED, *ENDS)},
    **{(phase, "query"): phase for phase in (*OPEN, *ENDS)},
    **{(phase, "forget"): CLOSED for phase in ENDS},
}
ROUNDS, ANNOUNCEMENTS, CONTRIBUTIONS, LISTS = "round", "announcement", "contribution", "list"


class StoredRound(msgspec.Struct, frozen=True):
    """One round at a Compute node, as it is stored beside its announcement.

    Attributes:
        phase: a phase of `TABLE`.
        round_id, announcement_hash, trainer, computes: what a message must fit to be about this round.
        fewest: n_min. commit_by_ms: the announced end.
        entries: the own list, once frozen. header, answer: what was signed of it and of all lists.
        word: the final, encoded message: a partial sum or an abort.
        peer_aborts: encoded aborts of other nodes, for clients that ask.
    """

    phase: str
    round_id: bytes
    announcement_hash: bytes
    trainer: bytes
    computes: tuple[bytes, ...]
    fewest: int
    commit_by_ms: int
    entries: bytes = b""
    header: Signed | None = None
    answer: Signed | None = None
    word: bytes = b""
    peer_aborts: tuple[bytes, ...] = ()


class StoredList(msgspec.Struct, frozen=True):
    """A node's list, as it is used and stored: its signed header, its entries, and the tags for this node."""

    header: Signed
    entries: bytes
    tags: bytes

    @property
    def count(self) -> int:
        return len(self.entries) // ENTRY_BYTES


class Round:
    """One round in memory.

    Args:
        stored: as stored. opened: its announcement; None where it cannot be read any more.
        validated: what it asks; None where it cannot be asked here.
        invited: the clients that alone may contribute; None admits everybody.
    """

    def __init__(
        self,
        stored: StoredRound,
        opened: OpenedAnnouncement | None,
        validated: ValidatedRound | None = None,
        invited: frozenset[bytes] | None = None,
    ) -> None:
        self.stored = stored
        self.invited = invited
        self._opened = opened
        self._validated = validated
        self.kept: dict[bytes, Kept] = {}  # as the holder, by client
        self.lists: dict[bytes, StoredList] = {}  # by node, the own one too
        self.answers: dict[bytes, tuple[Signed, Answer]] = {}  # by node, the own one too
        self.mask_sum: RingVector | None = None  # over what this node does not object to; lost with a restart
        self.reported = -1  # contributions that the trainer was told of
        self.attempt = 0

    @property
    def id(self) -> bytes:
        return self.stored.round_id

    @property
    def hash(self) -> bytes:
        """ah."""
        return self.stored.announcement_hash

    @property
    def phase(self) -> str:
        return self.stored.phase

    @property
    def is_loaded(self) -> bool:
        """Whether the announcement is at hand."""
        return self._opened is not None and self._validated is not None

    @property
    def opened(self) -> OpenedAnnouncement:
        assert self._opened is not None, "an ended round is known without its announcement"
        return self._opened

    @property
    def validated(self) -> ValidatedRound:
        assert self._validated is not None, "an ended round is known without its numbers"
        return self._validated

    @property
    def terms(self) -> SecureSum:
        terms = self.validated.terms
        assert isinstance(terms, SecureSum), "a Compute node takes part in no other"
        return terms

    def own_key(self, own: bytes) -> EpochKey:
        """The epoch key of this node that the announcement names."""
        return self.opened.epochs[self.stored.computes.index(own)]

    def peers(self, own: bytes) -> list[bytes]:
        """Ids of the other Compute nodes."""
        return [compute for compute in self.stored.computes if compute != own]

    def store(self, **changes: object) -> Persist:
        """Change what is stored."""
        self.stored = msgspec.structs.replace(self.stored, **changes)
        return Persist(ROUNDS, self.id, encode(self.stored))

    def frozen_entries(self) -> bytes:
        """The own list: what is kept, by client."""
        return b"".join([kept.entry for _, kept in sorted(self.kept.items())])

    def tags_for(self, place: int) -> bytes:
        """The tags of the own list that are node number `place`'s."""
        at = TAG_BYTES * place
        return b"".join([kept.tags[at : at + TAG_BYTES] for _, kept in sorted(self.kept.items())])

    def own_list_hash(self, own: bytes) -> bytes:
        return list_hash(self.hash, own, self.stored.entries)

    @cached_property
    def listed(self) -> dict[bytes, bytes]:
        """The contribution ids of the own frozen list, by client."""
        entries = self.stored.entries
        places = range(ID_BYTES, len(entries), ENTRY_BYTES)
        return {client: entries[at : at + ID_BYTES] for client, at in zip(clients_of(entries), places, strict=True)}

    def forget_work(self) -> None:
        """Everything that a final word makes useless."""
        self.kept.clear()
        self.lists.clear()
        self.answers.clear()
        self.mask_sum = None

    def unload(self) -> None:
        """Forget what nobody can ask for any more."""
        self._opened = self._validated = None
        self.__dict__.pop("listed", None)
