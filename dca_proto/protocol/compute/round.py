"""A round at a Compute node: its stored record, its state in memory, and the table of its phases (DESIGN §4, §9).

    new ── announcement ──> collecting ── freeze ──> frozen ── M lists ──> answered ── M answers ──> released
                                └──────────── abort: too few, equivocation, a silent peer ────┴──> aborted

Released and aborted are final. The record of an ended round can be read without its announcement, its federation file
or its statistic. So a node that no longer has one of these after a restart still knows that the round has ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.masks import ENTRY_BYTES
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.errors import PeerError, UsageError
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.protocol.actor import NEW, RESEND, ActorRound, Stored, Table, stays
from dca_proto.protocol.announcement import OpenedAnnouncement, open_announcement
from dca_proto.protocol.contribution import HeldContribution, restore_contribution
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.kinds import SecureSum, ValidatedRound
from dca_proto.protocol.lists import clients_of, list_hash
from dca_proto.protocol.params import Limits
from dca_proto.protocol.records import Records, decoded, framed, loaded, unreadable
from dca_proto.protocol.wire.codec import body_of, decode_frame
from dca_proto.protocol.wire.messages import Answer, Contribution, EpochKey, Frame, InvitedRound, Signed

if TYPE_CHECKING:
    from dca_proto.protocol.compute.agreement import Agreement

COLLECTING, FROZEN, ANSWERED = "collecting", "frozen", "answered"
RELEASED, ABORTED, CLOSED = "released", "aborted", "closed"
OPEN, ENDS = (COLLECTING, FROZEN, ANSWERED), (RELEASED, ABORTED)
FREEZE, PROGRESS, COMMIT, FORGET = "freeze", "progress", "commit", "forget"  # timers, as `RESEND` is
TABLE: Table = {
    (NEW, "announcement"): COLLECTING,
    (NEW, "abort"): ABORTED,
    (COLLECTING, FREEZE): FROZEN,
    (FROZEN, "all lists"): ANSWERED,
    (ANSWERED, "all answers"): RELEASED,
    **{(phase, event): ABORTED for phase in OPEN for event in ("abort", COMMIT)},
    **{(phase, FORGET): CLOSED for phase in ENDS},
    **stays((COLLECTING,), "contribution", PROGRESS),
    **stays((FROZEN,), "list"),
    **stays((FROZEN, ANSWERED), "peer answer", RESEND),
    **stays((RELEASED,), "delete sum"),
    **stays((ABORTED,), "abort wanted"),
    **stays((FROZEN, ANSWERED, *ENDS), "close", "repeated list", "repeated answer", "late contribution"),
    **stays(ENDS, "late abort"),
    **stays((*OPEN, RELEASED), "repeated contribution"),
    **stays((*OPEN, *ENDS), "query"),
}
ROUNDS, ANNOUNCEMENTS, CONTRIBUTIONS, LISTS = "round", "announcement", "contribution", "list"


class StoredRound(Stored, frozen=True):
    """A Compute node's record of a round, stored beside its announcement.

    Attributes:
        round_id, announcement_hash, trainer, computes: identify the round; messages are checked against them.
        fewest: n_min.
        commit_by_ms: the announced end.
        entries: the node's own list, once frozen.
        header: the signed header of this list.
        answer: the node's signed answer to all lists.
        final_message: the encoded partial sum or abort; the store calls it "word".
        peer_aborts: (node, encoded abort) pairs, one for each other node that aborted, for clients that ask.
    """

    round_id: bytes
    announcement_hash: bytes
    trainer: bytes
    computes: tuple[bytes, ...]
    fewest: int
    commit_by_ms: int
    entries: bytes = b""
    header: Signed | None = None
    answer: Signed | None = None
    final_message: bytes = msgspec.field(default=b"", name="word")
    peer_aborts: tuple[tuple[bytes, bytes], ...] = ()


class StoredList(msgspec.Struct, frozen=True):
    """A node's list, in memory and in the store: signed header, hash, entries, and the tags for this node."""

    header: Signed
    hash: bytes
    entries: bytes
    tags: bytes

    @property
    def count(self) -> int:
        return len(self.entries) // ENTRY_BYTES


class Round(ActorRound[StoredRound]):
    """A Compute node's round in memory.

    `own` is the node's id. `opened` and `validated` exist only while `is_loaded`. If there are `invited` clients, only
    they may contribute.
    """

    table, records = TABLE, ROUNDS

    def __init__(
        self,
        own: bytes,
        stored: StoredRound,
        opened: OpenedAnnouncement | None,
        validated: ValidatedRound | None = None,
        invited: frozenset[bytes] | None = None,
    ) -> None:
        super().__init__(stored.round_id, stored, stored.announcement_hash, stored.computes)
        self.own = own
        self.invited = invited
        self._opened = opened
        self._validated = validated
        self.kept: dict[bytes, HeldContribution] = {}  # contributions that this node holds, by client
        self.lists: dict[bytes, StoredList] = {}  # by node, including its own
        self.answers: dict[bytes, tuple[Signed, Answer]] = {}  # by node, including its own
        self.agreement: Agreement | None = None  # computed again after a restart
        self.reported = -1  # number of contributions last reported to the trainer

    @classmethod
    def loaded(
        cls,
        own: bytes,
        stored: StoredRound,
        payload: bytes | None,
        federation: Federation,
        mechanism: Mechanism,
        limits: Limits,
    ) -> Round:
        """Return a stored round with its announcement, decoded from `payload` if that is possible here."""
        try:
            frame, invited = announced(decode_frame(payload or b""))
            opened = open_announcement(frame, federation, limits)
            return cls(own, stored, opened, opened.validated(mechanism, limits), frozenset(invited) or None)
        except (PeerError, UsageError):
            return cls(own, stored, None)

    @property
    def is_open(self) -> bool:
        """True if the node has neither released nor aborted."""
        return self.takes("abort")

    @property
    def is_loaded(self) -> bool:
        """True if the announcement and its numbers are in memory."""
        return self._opened is not None and self._validated is not None

    @property
    def opened(self) -> OpenedAnnouncement:
        assert self._opened is not None, "an ended round has no announcement in memory"
        return self._opened

    @property
    def validated(self) -> ValidatedRound:
        assert self._validated is not None, "an ended round has no numbers in memory"
        return self._validated

    @property
    def terms(self) -> SecureSum:
        terms = self.validated.terms
        assert isinstance(terms, SecureSum), "a Compute node takes part in secure sums only"
        return terms

    @property
    def own_key(self) -> EpochKey:
        """This node's epoch key that the announcement names."""
        return self.opened.epochs[self.computes.index(self.own)]

    @property
    def peers(self) -> list[bytes]:
        """The ids of the other Compute nodes."""
        return [compute for compute in self.computes if compute != self.own]

    def sorted_entries(self) -> bytes:
        """Sort the contributions that this node holds by client, and return their entries: its list."""
        self.kept = dict(sorted(self.kept.items()))
        return b"".join([kept.entry for kept in self.kept.values()])

    @cached_property
    def _tags(self) -> NDArray[np.uint64]:
        """The tags of the frozen list, shape ``(n, M)``."""
        joined = b"".join([kept.tags for kept in self.kept.values()])
        return np.frombuffer(joined, dtype="<u8").reshape(-1, len(self.computes))

    def tags_for(self, place: int) -> bytes:
        """Return the tags of this node's frozen list for the node at `place` in the announcement."""
        return self._tags[:, place].tobytes()

    @cached_property
    def listed(self) -> dict[bytes, bytes]:
        """The contribution ids of this node's frozen list, by client."""
        entries = self.stored.entries
        places = range(ID_BYTES, len(entries), ENTRY_BYTES)
        return {client: entries[at : at + ID_BYTES] for client, at in zip(clients_of(entries), places, strict=True)}

    def own_list(self) -> StoredList:
        """Return this node's frozen list with the tags for itself."""
        assert self.stored.header is not None, "a frozen list is signed"
        tags = self.tags_for(self.computes.index(self.own))
        own_hash = list_hash(self.hash, self.own, self.stored.entries)
        return StoredList(self.stored.header, own_hash, self.stored.entries, tags)

    def restore_messages(self) -> None:
        """Restore an open round's own list and answer from its stored messages."""
        if self.takes("peer answer"):
            self.sorted_entries()
            self.lists[self.own] = self.own_list()
        if self.takes("all answers"):
            assert self.stored.answer is not None, "the answer is stored with the phase"
            self.answers[self.own] = (self.stored.answer, body_of(self.stored.answer, Answer))

    def forget_work(self) -> None:
        """Drop everything that is useless after the final message."""
        self.kept.clear()
        self.lists.clear()
        self.answers.clear()
        self.agreement = None
        self.__dict__.pop("_tags", None)

    def unload(self) -> None:
        """Drop the announcement and the frozen list's ids: nobody can ask for them any more."""
        self._opened = self._validated = None
        self.__dict__.pop("listed", None)


def announced(frame: Frame) -> tuple[Signed, tuple[bytes, ...]]:
    """Return the signed announcement of a frame, and the invited clients that come with it. Raises `PeerError`."""
    if isinstance(frame, Signed):
        return frame, ()
    if not isinstance(frame, InvitedRound) or len(frame.clients) % ID_BYTES:
        raise PeerError("kind", found=type(frame).__name__, expected="an announcement, or one with invited clients")
    ids = (frame.clients[at : at + ID_BYTES] for at in range(0, len(frame.clients), ID_BYTES))
    return frame.announcement, tuple(ids)


def restored_rounds(records: Records, load: Callable[[StoredRound, bytes | None], Round]) -> dict[bytes, Round]:
    """Return all rounds of a store, by id; open ones with their contributions, lists and answers.

    `load` makes a round from its record and its announcement's payload. Raises `UsageError` for a record that is
    damaged or belongs to no round.
    """
    announcements = {key: value for table, key, value in records if table == ANNOUNCEMENTS}
    for payload in announcements.values():
        framed(ANNOUNCEMENTS, payload)  # a damaged one stops the start; one that cannot be verified any more does not
    stored_rounds = loaded(records, ROUNDS, StoredRound)
    rounds = {round_id: load(stored, announcements.get(round_id)) for round_id, stored in stored_rounds.items()}
    for table, key, value in records:
        if table in (CONTRIBUTIONS, LISTS):
            current = rounds.get(key[:ID_BYTES])
            if current is None or len(key) != 2 * ID_BYTES:
                raise unreadable(table, "it belongs to no round")
            if table == CONTRIBUTIONS:
                current.kept[key[ID_BYTES:]] = restore_contribution(table, value)
            else:
                current.lists[key[ID_BYTES:]] = decoded(table, value, StoredList)
    for current in rounds.values():
        current.restore_messages()
    return rounds


EARLY_MESSAGES_MAX = 4096
EARLY_BYTES_MAX = 8 << 20
EARLY_KEPT_MS = 5_000


class EarlyContributions:
    """Contributions that overtook their announcement: kept in memory for a short time, within limits (DESIGN §4.5).

    They get no receipt and no durable write. If they are lost, the clients resend them.
    """

    def __init__(self) -> None:
        self._waiting: defaultdict[bytes, dict[bytes, Contribution]] = defaultdict(dict)
        self._bytes = self._messages = 0
        self._since_ms = 0

    def keep(self, sender: bytes, message: Contribution, now_ms: int) -> bool:
        """Keep a message, at most one of each sender and round. Return False if there is no room."""
        if not self._waiting or now_ms - self._since_ms > EARLY_KEPT_MS:
            self._waiting.clear()
            self._bytes, self._messages, self._since_ms = 0, 0, now_ms
        size = len(message.ciphertext)
        if self._messages >= EARLY_MESSAGES_MAX or self._bytes + size > EARLY_BYTES_MAX:
            return False
        self._bytes, self._messages = self._bytes + size, self._messages + 1
        self._waiting[message.round_id][sender] = message
        return True

    def take(self, round_id: bytes) -> dict[bytes, Contribution]:
        """Remove and return the messages of a round, by sender."""
        return self._waiting.pop(round_id, {})
