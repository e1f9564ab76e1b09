"""A round at the client: what is stored, what follows from it, and the literal table of its phases (DESIGN §4, §9).

    new ── announcement ──> sent ── receipt, or word that it was late ──> kept, missed
     └── refusal ──> declined  └────────── M signed aborts ─────────────────┴──> returned

Data nodes' releases and LDP reports go the same way, with the trainer as their holder; nobody can abort such a round.
"""

from __future__ import annotations

from dca_proto.protocol.actor import NEW, ActorRound, Stored, Table, stays
from dca_proto.protocol.announcement import OpenedAnnouncement
from dca_proto.protocol.contribution import Outbound
from dca_proto.protocol.effects import Address, Channel, Effect, Send

SENT, KEPT, MISSED = "sent", "kept", "missed"
DECLINED, RETURNED, CLOSED = "declined", "returned", "closed"
TABLE: Table = {
    (NEW, "announcement"): SENT,
    (NEW, "refusal"): DECLINED,
    (SENT, "receipt"): KEPT,
    (SENT, "late"): MISSED,
    **{(phase, "last abort"): RETURNED for phase in (SENT, KEPT, MISSED)},
    **{(phase, "close"): CLOSED for phase in (SENT, KEPT, MISSED, DECLINED, RETURNED)},
    **stays((SENT, KEPT, MISSED), "charge reused", "abort"),
    **stays((SENT, KEPT, MISSED, DECLINED, RETURNED), "repeated announcement"),
    **stays((KEPT, MISSED, RETURNED), "repeated receipt"),
    **stays((SENT, KEPT, MISSED, RETURNED), "repeated abort"),
}
ROUNDS, ANNOUNCEMENTS = "client-round", "announcement"


class StoredRound(Stored, frozen=True):
    """One round at the client, as it is stored beside its announcement.

    Attributes:
        outbound: what was sent, until its receipt has come. decline: the sealed decline. Both are resent byte for byte.
        aborted_by: ids of the Compute nodes whose signed aborts came.
    """

    outbound: Outbound | None = None
    decline: bytes = b""
    aborted_by: tuple[bytes, ...] = ()


class Round(ActorRound[StoredRound]):
    """One round in memory.

    Args:
        stored: as stored. opened: its announcement, whose signatures hold. client: whose it is.

    Attributes:
        holder: to whom the contribution goes.
    """

    __slots__ = ("asked", "body", "holder", "opened")
    table, records = TABLE, ROUNDS

    def __init__(self, stored: StoredRound, opened: OpenedAnnouncement, client: bytes) -> None:
        super().__init__(opened.body.round_id, stored)
        self.opened = opened
        self.body = opened.body
        self.holder = opened.holder(client)
        self.asked = 0

    def answers(self) -> list[Effect]:
        """What answers the announcement and has no receipt yet: the contribution, the release, or the decline."""
        if self.stored.decline:
            return [Send(Address(Channel.TRAINER, self.body.trainer), self.id, self.stored.decline)]
        if self.stored.outbound is None:
            return []
        return [Send(self.holder, self.id, self.stored.outbound.payload)]
