"""A round at the client: what is stored, what follows from it, and the literal table of its phases (DESIGN §4, §8).

new ── announcement ──> joined ── start ──> sharing ── M receipts ──> shared
 ├── refusal ──> declined <── refusal ──┘    ↑ │                         │
 └── release ────────────────────────────────┘ └── M signed aborts ──> returned

In a local round (DESIGN §4.8) the trainer alone holds what is sent, and nobody can abort it.
"""

from __future__ import annotations

import msgspec

from dca_proto.core.codec import encode
from dca_proto.core.effects import Address, Channel, Effect, Persist, Send
from dca_proto.core.machine import Table
from dca_proto.core.messages import Announcement, Receipt, Signed
from dca_proto.core.plan import Question
from dca_proto.core.round import OpenedAnnouncement
from dca_proto.core.upload import Contribution

NEW, JOINED, SHARING, SHARED = "new", "joined", "sharing", "shared"
DECLINED, RETURNED, CLOSED = "declined", "returned", "closed"
TABLE: Table = {
    (NEW, "announcement"): JOINED,
    (NEW, "refusal"): DECLINED,
    (NEW, "release"): SHARING,
    (JOINED, "start"): SHARING,
    (JOINED, "refusal"): DECLINED,
    (SHARING, "receipt"): SHARING,
    (SHARING, "last receipt"): SHARED,
    (SHARING, "behind"): SHARING,
    (SHARING, "abort"): SHARING,
    (SHARING, "last abort"): RETURNED,
    (SHARED, "abort"): SHARED,
    (SHARED, "last abort"): RETURNED,
    **{(phase, "repeated announcement"): phase for phase in (JOINED, SHARING, SHARED, DECLINED, RETURNED)},
    **{(phase, "repeated start"): phase for phase in (SHARING, SHARED, RETURNED)},
    **{(phase, "repeated receipt"): phase for phase in (SHARED, RETURNED)},
    **{(phase, "repeated abort"): phase for phase in (SHARING, SHARED, RETURNED)},
    **{(phase, "close"): CLOSED for phase in (JOINED, SHARING, SHARED, DECLINED, RETURNED)},
}

SESSIONS, CONTRIBUTIONS = "session", "contribution"


class Session(msgspec.Struct, frozen=True):
    """One round at the client, as it is stored.

    Attributes:
        phase: a phase of `TABLE`. announcement: as it came. epoch: of the client's own key in its join.
        answer: the sealed join or decline, resent byte for byte; of a local round a decline alone.
        session: the session hash, once started.
        aborted_by: ids of the Compute nodes whose signed aborts came.
    """

    phase: str
    announcement: Signed
    epoch: int = 0
    answer: bytes = b""
    session: bytes = b""
    aborted_by: tuple[bytes, ...] = ()


class Round:
    """One round in memory: what is stored, and what follows from it or comes again.

    Args:
        stored: as stored. opened: its announcement, whose signatures hold.
        contribution: as stored, until all receipts have come.
    """

    def __init__(self, stored: Session, opened: OpenedAnnouncement, contribution: Contribution | None = None) -> None:
        self.stored = stored
        self.opened = opened
        self.contribution = contribution
        self.question: Question | None = None  # worked out once per process
        self.received: set[bytes] = set()  # holders whose receipts came
        self.refused: set[bytes] = set()  # Compute nodes that refused the share for its charge's number
        self.attempt = 0

    @property
    def body(self) -> Announcement:
        return self.opened.body

    @property
    def id(self) -> bytes:
        return self.opened.body.round_id

    @property
    def phase(self) -> str:
        return self.stored.phase

    def store(self, **changes: object) -> Persist:
        """Change what is stored."""
        self.stored = msgspec.structs.replace(self.stored, **changes)
        return Persist(SESSIONS, self.id, encode(self.stored))

    @property
    def holders(self) -> tuple[bytes, ...]:
        """Who gets a part of the contribution each: the Compute nodes; of a local round the trainer, all of it."""
        return (self.body.trainer,) if self.body.local else self.opened.computes

    def answers(self) -> list[Effect]:
        """What answers the announcement: the sealed join or decline, or the release."""
        if not self.stored.answer:
            return self.shares()
        return [Send(Address(Channel.TRAINER, self.body.trainer), self.id, self.stored.answer)]

    def shares(self) -> list[Effect]:
        """The shares, or the release, that their holders have not answered yet."""
        messages = () if self.contribution is None else self.contribution.messages
        channel = Channel.TRAINER if self.body.local else Channel.COMPUTE
        return [
            Send(Address(channel, holder), self.id, message)
            for holder, message in zip(self.holders, messages, strict=bool(messages))
            if holder not in self.received | self.refused
        ]

    def is_proof(self, holder: bytes, receipt: Receipt) -> bool:
        """Whether the receipt proves that this one holds its part of the contribution."""
        made = self.contribution
        if made is None or receipt.contribution != made.contribution:
            return False
        return receipt.tag == made.receipt_tags[self.holders.index(holder)]
