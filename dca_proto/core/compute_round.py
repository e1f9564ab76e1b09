"""A round at a Compute node: what is stored, what follows from it, and the literal table of its phases (DESIGN §4, §8).

    new ── roster ──> collecting ── deadline or all N ──> frozen ── all views, |S| >= N - T + c ──> released
                          └──────────── abort ──────────────┴── too few, or a silent peer ──> aborted

Both ends are final. What is kept of an ended round (its last word, and enough to know it again) can be read without its
roster, its federation file or its statistic: nothing that a later start lacks may ever open a round again.
"""

from __future__ import annotations

import msgspec

from dca_proto.core.codec import encode
from dca_proto.core.commit import ENTRY_BYTES, Entries, parse_entries
from dca_proto.core.machine import Table
from dca_proto.core.messages import Signed
from dca_proto.core.roster import CheckedRoster
from dca_proto.core.round import list_hash
from dca_proto.core.sealing import digest

NEW, COLLECTING, FROZEN, RELEASED, ABORTED, CLOSED = "new", "collecting", "frozen", "released", "aborted", "closed"
TABLE: Table = {
    (NEW, "roster"): COLLECTING,
    (NEW, "abort"): ABORTED,
    (COLLECTING, "share"): COLLECTING,
    (COLLECTING, "view"): COLLECTING,
    (COLLECTING, "freeze"): FROZEN,
    (COLLECTING, "abort"): ABORTED,
    (FROZEN, "view"): FROZEN,
    (FROZEN, "release"): RELEASED,
    (FROZEN, "abort"): ABORTED,
    **{(phase, "view"): phase for phase in (RELEASED, ABORTED)},
    **{(phase, "late abort"): phase for phase in (RELEASED, ABORTED)},
    **{(phase, "repeated share"): phase for phase in (COLLECTING, FROZEN, RELEASED)},
    (ABORTED, "late share"): ABORTED,
    **{(phase, "query"): phase for phase in (COLLECTING, FROZEN, RELEASED, ABORTED)},
    **{(phase, "close"): CLOSED for phase in (RELEASED, ABORTED)},
}

ENDS = (RELEASED, ABORTED)


class StoredRound(msgspec.Struct, frozen=True):
    """One round at a Compute node, as it is stored.

    Attributes:
        phase: a phase of `TABLE`.
        round_id, session, trainer, computes: what a message must fit to be about this round.
        needed: N - T + c. close_by_ms: the announced end.
        roster_digest: of the roster as it came.
        roster: itself, until the round is aborted; of a released one until its announced end.
        entries: the encoded list, once frozen. answer: the final, encoded word: a partial sum or an abort.
    """

    phase: str
    round_id: bytes
    session: bytes
    trainer: bytes
    computes: tuple[bytes, ...]
    needed: int
    close_by_ms: int
    roster_digest: bytes
    roster: Signed | None
    entries: bytes = b""
    answer: bytes = b""


class Round:
    """One round in memory: what is stored, and what follows from it or can be asked for again.

    Args:
        stored: as stored; its roster is loaded once it is checked.
    """

    def __init__(self, stored: StoredRound) -> None:
        self.stored = stored
        self._roster: CheckedRoster | None = None
        self.entries: Entries = {}  # position -> contribution id
        self.shares: dict[int, bytes] = {}  # position -> share
        self.views: dict[bytes, bytes] = {}  # peer -> hash of its frozen list
        self.lists: dict[bytes, Entries] = {}  # peer -> its frozen list, where it differs from ours
        self.attempt = 0
        self._viewed, self._view = b"", list_hash(stored.session, b"")  # the frozen list, and its hash

    @classmethod
    def opened(cls, frame: Signed, roster: CheckedRoster) -> Round:
        """A round whose roster has just come."""
        stored = StoredRound(
            phase=NEW,
            round_id=roster.round_id,
            session=roster.session,
            trainer=roster.trainer,
            computes=roster.announcement.computes,
            needed=roster.plan.needed,
            close_by_ms=roster.announcement.body.close_by_ms,
            roster_digest=roster_digest(frame),
            roster=frame,
        )
        current = cls(stored)
        current.load(roster)
        return current

    @property
    def id(self) -> bytes:
        return self.stored.round_id

    @property
    def session(self) -> bytes:
        return self.stored.session

    @property
    def phase(self) -> str:
        return self.stored.phase

    @property
    def roster(self) -> CheckedRoster:
        assert self._roster is not None, "an ended round is known without its roster"
        return self._roster

    @property
    def view(self) -> bytes:
        """Hash of the frozen list, worked out once: it is held against every word of a peer."""
        if self._viewed is not self.stored.entries:
            self._viewed, self._view = self.stored.entries, list_hash(self.session, self.stored.entries)
        return self._view

    @property
    def count(self) -> int:
        """Length of the frozen list."""
        return len(self.stored.entries) // ENTRY_BYTES

    def peers(self, own: bytes) -> list[bytes]:
        """Ids of the other Compute nodes."""
        return [compute for compute in self.stored.computes if compute != own]

    def unsettled(self, own: bytes) -> list[bytes]:
        """The peers whose view, or whose differing list, is still missing."""
        settled = {peer for peer, view in self.views.items() if view == self.view or peer in self.lists}
        return [peer for peer in self.peers(own) if peer not in settled]

    @property
    def is_loaded(self) -> bool:
        """Whether the roster is at hand: until the announced end of a round; after a start, not an aborted one's."""
        return self._roster is not None

    def load(self, roster: CheckedRoster) -> None:
        """Take the stored roster, checked."""
        self._roster = roster
        self.entries = parse_entries(self.stored.entries, roster.plan.clients)

    def unload(self) -> None:
        """Forget what nobody can ask for any more."""
        self._roster = None
        for memory in (self.entries, self.views, self.lists):
            memory.clear()


def roster_digest(frame: Signed) -> bytes:
    """Tells one roster from another, signature included."""
    return digest(b"dca1-rosterwire", encode(frame))
