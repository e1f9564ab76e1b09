"""A round at a Compute node: its stored record, its state in memory, and the table of its phases (DESIGN §4, §9).

    new ── announcement ──> collecting ── freeze ──> frozen ── M lists ──> answered ── M answers ──> released
                                └──────────── abort: too few, equivocation, a silent peer ────┴──> aborted

Released and aborted are final. The record of an ended round can be read without its announcement, its federation file
or its statistic. So a node that no longer has one of these after a restart still knows that the round has ended.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import compress
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.masks import ENTRY_BYTES, holder_index, holder_indices
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.errors import PeerError, UsageError
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.protocol.actor import NEW, RESEND, ActorRound, Stored, Table, stays
from dca_proto.protocol.announcement import OpenedAnnouncement, open_announcement
from dca_proto.protocol.compute.proofs import answer_bytes, coin_of
from dca_proto.protocol.contribution import HeldContribution, restore_contribution
from dca_proto.protocol.effects import Forget
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.lists import check_clients, list_hash
from dca_proto.protocol.params import Limits
from dca_proto.protocol.records import Records, decoded, framed, loaded, signed, unreadable
from dca_proto.protocol.room import Amounts
from dca_proto.protocol.validation import ValidatedRound
from dca_proto.protocol.wire.codec import body_of, decode_frame
from dca_proto.protocol.wire.kinds import SecureSum
from dca_proto.protocol.wire.messages import Answer, Contribution, Frame, InvitedRound, ListHeader, Signed

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
    **{(phase, "abort"): ABORTED for phase in OPEN},
    **{(phase, COMMIT): ABORTED for phase in (COLLECTING, FROZEN)},
    **stays((ANSWERED,), COMMIT),
    **{(phase, FORGET): CLOSED for phase in ENDS},
    **stays((COLLECTING,), "contribution", PROGRESS, "declines"),
    **stays((FROZEN,), "list"),
    **stays((FROZEN, ANSWERED), "peer answer", RESEND),
    **stays((FROZEN, ANSWERED, *ENDS), "close", "repeated list", "repeated answer", "late contribution"),
    **stays(ENDS, "late abort"),
    **stays((*OPEN, RELEASED), "repeated contribution"),
    **stays((*OPEN, *ENDS), "query"),
}
ROUNDS, ANNOUNCEMENTS, CONTRIBUTIONS, LISTS = "round", "announcement", "contribution", "list"
ANSWERS = "answer"  # of peers, for peers that lack them (§4.7)


class StoredComputeRound(Stored, frozen=True):
    """A Compute node's record of a round, stored beside its announcement.

    Attributes:
        round_id, announcement_hash, trainer, computes: identify the round; messages are checked against them.
        n_min: the fewest contributions of a sum.
        commit_by_ms: the announced end.
        epoch: the epoch of this node's key that the announcement names.
        vector_bytes: size of y in a contribution; 0 if this node has not worked out the round's numbers, because it
            refused the round.
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
    n_min: int
    commit_by_ms: int
    epoch: int
    vector_bytes: int = 0
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


class ComputeRound(ActorRound[StoredComputeRound]):
    """A Compute node's round in memory.

    `own` is the node's id. `opened`, `validated` and `invited` exist only while `is_loaded`: until the round ends. If
    there are `invited` clients, only they may contribute.
    """

    table, records = TABLE, ROUNDS

    def __init__(
        self,
        own: bytes,
        stored: StoredComputeRound,
        opened: OpenedAnnouncement | None,
        validated: ValidatedRound | None = None,
        invited: SortedIds | None = None,
    ) -> None:
        super().__init__(stored.round_id, stored, stored.announcement_hash, stored.computes)
        self.own = own
        self.invited = invited
        self._opened = opened
        self._validated = validated
        self.kept_bytes = 0  # of `kept`
        self.declined = SortedIds()  # clients that declined, as far as the trainer has told
        self.declined_kept = 0  # how many of them have contributed nevertheless
        self.kept: dict[bytes, HeldContribution] = {}  # contributions that this node holds, by client
        self.lists: dict[bytes, StoredList] = {}  # by node, including its own
        self.answers: dict[bytes, tuple[Signed, Answer]] = {}  # by node, including its own
        self.agreement: Agreement | None = None  # computed again after a restart
        self.asks_first = False  # it has started again: its peers may have aborted
        self.echoed: dict[bytes, tuple[int, int]] = {}  # peers that were sent much, from when until when it takes
        self.reported = -1  # number of contributions last reported to the trainer
        self.amounts: Amounts = ()  # what it takes of `NodeRoom`

    @classmethod
    def loaded(
        cls,
        own: bytes,
        stored: StoredComputeRound,
        payload: bytes | None,
        federation: Federation,
        mechanism: Mechanism,
        limits: Limits,
    ) -> ComputeRound:
        """Return a stored round with its announcement, decoded from `payload` if that is possible here."""
        try:
            frame, invited = announced(decode_frame(payload or b""))
            opened = open_announcement(frame, federation, limits)
            validated = opened.validated(mechanism, limits)
        except (PeerError, UsageError):
            return cls(own, stored, None)
        return cls(own, stored, opened, validated, SortedIds(invited) if invited else None)

    @property
    def is_open(self) -> bool:
        """True if the node has neither released nor aborted."""
        return self.is_in(NEW, *OPEN)

    @property
    def is_released(self) -> bool:
        """True if the node has released its partial sum."""
        return self.is_in(RELEASED)

    @property
    def is_aborted(self) -> bool:
        """True if the node has aborted the round."""
        return self.is_in(ABORTED)

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
    def kind(self) -> SecureSum:
        kind = self.validated.kind
        assert isinstance(kind, SecureSum), "a Compute node takes part in secure sums only"
        return kind

    @property
    def is_verified(self) -> bool:
        """True for an open round whose clients prove their contributions."""
        return self._validated is not None and self._validated.kind.is_verified

    @property
    def stage(self) -> int:
        """The phase of an open round as a number: 0, 1, 2 for collecting, frozen, answered."""
        return OPEN.index(self.phase) if self.is_in(*OPEN) else 0

    @property
    def waits_for(self) -> bytes:
        """Places of the nodes whose list (while frozen) or answer (once answered) is missing, 1 byte each."""
        if not self.stage:
            return b""
        received = self.answers if self.takes("all answers") else self.lists
        return bytes(place for place, node in enumerate(self.computes) if node not in received)

    def is_held(self, client: bytes) -> bool:
        """Return True if this node is the holder of a client's contribution."""
        return self.computes[holder_index(self.hash, client, len(self.computes))] == self.own

    def held_of(self, clients: Sequence[bytes]) -> list[bytes]:
        """Return those of many clients that take part in the round, and whose contribution this node holds."""
        rows = np.frombuffer(b"".join(clients), dtype=np.uint8).reshape(-1, ID_BYTES)
        is_held = holder_indices(self.hash, rows, len(self.computes)) == self.computes.index(self.own)
        held = compress(clients, is_held.tolist())
        return [client for client in held if self.invited is None or client in self.invited]

    @property
    def announcement_bytes(self) -> int:
        """Size of the announcement with the invited ids, which an open round keeps."""
        invited = len(self.invited.ids) if self.invited is not None else 0
        return len(self._opened.payload) + invited if self._opened is not None else 0

    @property
    def contributions_bytes(self) -> int:
        """Size of the contributions, of all lists and answers, and of a released sum."""
        stored = self.stored
        if not (self.lists or self.answers) and self.takes("contribution"):  # most often, after each contribution
            return self.kept_bytes + len(self.declined.ids)
        answers = sum(len(frame.body) + answer_bytes(body) for frame, body in self.answers.values())
        released = len(stored.final_message) if self.is_released else 0
        lists = sum(len(peer.entries) + len(peer.tags) for peer in self.lists.values())
        return self.kept_bytes + len(self.declined.ids) + len(stored.entries) + lists + answers + released

    @property
    def aborts_bytes(self) -> int:
        """Size of the aborts that an ended round keeps: its own and its peers'."""
        peers = sum(len(message) for _, message in self.stored.peer_aborts)
        return peers + (len(self.stored.final_message) if self.is_aborted else 0)

    def keep(self, client: bytes, kept: HeldContribution) -> None:
        """Keep a client's contribution, which is its first."""
        self.kept[client] = kept
        self.kept_bytes += len(kept.record)
        self.declined_kept += client in self.declined

    def decline(self, clients: SortedIds) -> None:
        """Note that these clients, and no others that this node holds, have declined."""
        self.declined = clients
        self.declined_kept = sum(clients[place] in self.kept for place in range(len(clients)))

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

    @property
    def listed_count(self) -> int:
        """Number of contributions in this node's frozen list."""
        return len(self.stored.entries) // ENTRY_BYTES

    def is_listed(self, client: bytes, contribution: bytes) -> bool:
        """Return True if this node's frozen list has this contribution of the client."""
        return _entry_of(self.stored.entries, client).startswith(client + contribution)

    def lists_client(self, client: bytes) -> bool:
        """Return True if the list of the client's holder is here, and has it."""
        holder = self.lists.get(self.computes[holder_index(self.hash, client, len(self.computes))])
        return holder is not None and _entry_of(holder.entries, client).startswith(client)

    def own_list(self) -> StoredList:
        """Return this node's frozen list with the tags for itself."""
        assert self.stored.header is not None, "a frozen list is signed"
        tags = self.tags_for(self.computes.index(self.own))
        coin = coin_of(body_of(self.stored.header, ListHeader))
        own_hash = list_hash(self.hash, self.own, self.stored.entries, coin)
        return StoredList(self.stored.header, own_hash, self.stored.entries, tags)

    def restore_messages(self) -> None:
        """Restore a round's own list and answer from its stored messages."""
        if self.takes("peer answer"):
            self.sorted_entries()
            self.lists[self.own] = self.own_list()
        if self.stored.answer is not None:
            self.answers[self.own] = (self.stored.answer, body_of(self.stored.answer, Answer))

    def forgotten_answers(self) -> list[Forget]:
        """Delete the stored answers of the round's peers."""
        return [Forget(ANSWERS, self.id + peer) for peer in self.peers if peer in self.answers]

    def forget_work(self) -> None:
        """Drop what is useless after the final message: announcement, invited ids, contributions, lists.

        A released round keeps the answers, for peers that lack one.
        """
        self._opened = self._validated = self.invited = None
        self.kept.clear()
        self.declined = SortedIds()
        self.kept_bytes = self.declined_kept = 0
        self.lists.clear()
        if not self.is_released:
            self.answers.clear()
        self.agreement = None
        self.__dict__.pop("_tags", None)


def _entry_of(entries: bytes, client: bytes) -> bytes:
    """Return a client's entry; if there is none, that of the next client, or nothing."""
    places = range(len(entries) // ENTRY_BYTES)
    place = bisect_left(places, client, key=lambda at: entries[ENTRY_BYTES * at : ENTRY_BYTES * at + ID_BYTES])
    return entries[ENTRY_BYTES * place : ENTRY_BYTES * (place + 1)]


class SortedIds:
    """Ascending ids in one piece of bytes: 16 bytes each, instead of a hundred in a set."""

    def __init__(self, ids: bytes = b"") -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids) // ID_BYTES

    def __getitem__(self, place: int) -> bytes:
        return self.ids[ID_BYTES * place : ID_BYTES * (place + 1)]

    def __contains__(self, client: bytes) -> bool:
        if not self.ids:
            return False  # most often, when contributions arrive
        place = bisect_left(range(len(self)), client, key=self.__getitem__)
        return self[place] == client

    def check(self, current: ComputeRound) -> None:
        """Check that the ids ascend strictly, and that the node holds each of these clients. Raises `PeerError`."""
        if len(self.ids) % ID_BYTES:
            raise PeerError("ids", found=f"{len(self.ids)} bytes", expected=f"{ID_BYTES} for each client")
        rows = np.frombuffer(self.ids, dtype=np.uint8).reshape(-1, ID_BYTES)
        check_clients("ids", rows, current.hash, current.computes.index(current.own), len(current.computes))


def announced(frame: Frame) -> tuple[Signed, bytes]:
    """Return the signed announcement of a frame, and the invited ids that come with it. Raises `PeerError`."""
    if isinstance(frame, Signed):
        return frame, b""
    if not isinstance(frame, InvitedRound) or len(frame.clients) % ID_BYTES:
        raise PeerError("kind", found=type(frame).__name__, expected="an announcement, or one with invited clients")
    return frame.announcement, frame.clients


def restored_rounds(
    records: Records, load: Callable[[StoredComputeRound, bytes | None], ComputeRound]
) -> dict[bytes, ComputeRound]:
    """Return all rounds of a store, by id; open ones with their contributions, lists and answers.

    `load` makes a round from its record and its announcement's payload. Raises `UsageError` for a record that is
    damaged or belongs to no round.
    """
    announcements = {key: value for table, key, value in records if table == ANNOUNCEMENTS}
    for payload in announcements.values():
        framed(ANNOUNCEMENTS, payload)  # a damaged one stops the start; one that cannot be verified any more does not
    stored_rounds = loaded(records, ROUNDS, StoredComputeRound)
    rounds = {round_id: load(stored, announcements.get(round_id)) for round_id, stored in stored_rounds.items()}
    for table, key, value in records:
        if table in (CONTRIBUTIONS, LISTS, ANSWERS):
            current = rounds.get(key[:ID_BYTES])
            if current is None or len(key) != 2 * ID_BYTES:
                raise unreadable(table, "it belongs to no round")
            if table == CONTRIBUTIONS:
                current.keep(key[ID_BYTES:], restore_contribution(table, value))
            elif table == ANSWERS:
                frame = signed(table, value)
                current.answers[key[ID_BYTES:]] = (frame, body_of(frame, Answer))
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
        self.expire(now_ms)
        if not self._waiting:
            self._bytes, self._messages, self._since_ms = 0, 0, now_ms
        size = len(message.ciphertext)
        if self._messages >= EARLY_MESSAGES_MAX or self._bytes + size > EARLY_BYTES_MAX:
            return False
        self._bytes, self._messages = self._bytes + size, self._messages + 1
        self._waiting[message.round_id][sender] = message
        return True

    def expire(self, now_ms: int) -> None:
        """Forget all messages once the oldest has waited for too long."""
        if not 0 <= now_ms - self._since_ms <= EARLY_KEPT_MS:  # or the clock was set back
            self._waiting.clear()

    def take(self, round_id: bytes) -> dict[bytes, Contribution]:
        """Remove and return the messages of a round, by sender."""
        return self._waiting.pop(round_id, {})
