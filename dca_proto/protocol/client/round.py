"""A round at the client: its stored record, its state in memory, and the table of its phases (DESIGN §4, §9).

    new ── announcement ──> sent ── receipt, or notice that it was late ──> kept, missed
     └── refusal ──> declined  └────────── M signed aborts ─────────────────┴──> returned

Node releases and LDP reports follow the same table, with the trainer as the holder; nobody can abort such a round.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dca_proto.protocol.actor import NEW, RESEND, ActorRound, Stored, Table, stays
from dca_proto.protocol.announcement import OpenedAnnouncement
from dca_proto.protocol.contribution import ClientMessage
from dca_proto.protocol.effects import Channel, Effect, Forget, Persist, Send, Write
from dca_proto.protocol.policy import Refusal
from dca_proto.protocol.records import loaded
from dca_proto.protocol.wire.messages import Announcement

SENT, KEPT, MISSED = "sent", "kept", "missed"
DECLINED, RETURNED, CLOSED = "declined", "returned", "closed"
ASK, CLOSE = "ask", "close"  # timers, as `RESEND` is
TABLE: Table = {
    (NEW, "announcement"): SENT,
    (NEW, "refusal"): DECLINED,
    (SENT, "receipt"): KEPT,
    (SENT, "late"): MISSED,
    **{(phase, "last abort"): RETURNED for phase in (SENT, KEPT, MISSED)},
    **{(phase, CLOSE): CLOSED for phase in (SENT, KEPT, MISSED, DECLINED, RETURNED)},
    **stays((SENT,), RESEND),
    **stays((SENT, KEPT, MISSED), "charge reused", "abort", ASK),
    **stays((SENT, KEPT, MISSED, DECLINED, RETURNED), "repeated announcement"),
    **stays((KEPT, MISSED, RETURNED), "repeated receipt"),
    **stays((SENT, KEPT, MISSED, RETURNED), "repeated abort"),
}
ROUNDS, ANNOUNCEMENTS = "client-round", "announcement"


class StoredRound(Stored, frozen=True):
    """The client's record of a round, stored beside its announcement.

    Attributes:
        outbound: the message that was sent, until its receipt arrives; resent byte for byte.
        decline: the sealed decline; resent byte for byte.
        aborted_by: ids of the Compute nodes whose signed aborts arrived.
    """

    outbound: ClientMessage | None = None
    decline: bytes = b""
    aborted_by: tuple[bytes, ...] = ()


class Round(ActorRound[StoredRound]):
    """A client's round in memory. `holder` receives its contribution; `asked` counts its questions for aborts."""

    __slots__ = ("asked", "body", "holder", "opened")
    table, records = TABLE, ROUNDS

    def __init__(self, stored: StoredRound, opened: OpenedAnnouncement, client: bytes) -> None:
        super().__init__(opened.body.round_id, stored, opened.hash, opened.computes)
        self.opened = opened
        self.body = opened.body
        self.holder = opened.holder(client)
        self.asked = 0

    def answers(self) -> list[Effect]:
        """Send the answer to the announcement: the decline, or the contribution or release that has no receipt yet."""
        if self.stored.decline:
            return [self.send(self.stored.decline, Channel.TRAINER, self.body.trainer)]
        if self.stored.outbound is None:
            return []
        return [Send(self.holder, self.id, self.stored.outbound.payload)]


DECLINES = "declined"
DECLINES_MAX = 256


class DeclinedRound(msgspec.Struct, frozen=True):
    """A round that was declined.

    Attributes:
        number: 1, 2, ... in the order of declining.
        round_id: 16 bytes.
        statistic: the round's statistic.
        trainer: id of the trainer that announced the round, 16 bytes.
        epsilon, delta: what the round would have cost.
        reason, found, expected: as sent to the trainer.
        at_ms: time of the decline.
    """

    number: int
    round_id: bytes
    statistic: str
    trainer: bytes
    epsilon: float
    delta: float
    reason: str
    found: str
    expected: str
    at_ms: int


class Declines:
    """The newest rounds that a client declined, kept for its owner and restored from its store (DESIGN §4.3)."""

    def __init__(self, records: Iterable[tuple[str, bytes, bytes]] = ()) -> None:
        stored = loaded(records, DECLINES, DeclinedRound)
        self._rounds = dict(sorted(stored.items(), key=lambda item: item[1].number))

    @property
    def rounds(self) -> tuple[DeclinedRound, ...]:
        """At most `DECLINES_MAX` rounds, in the order of declining."""
        return tuple(self._rounds.values())

    def note(self, asked: Announcement, refusal: Refusal, now_ms: int) -> list[Write]:
        """Record a decline, and forget the oldest beyond `DECLINES_MAX`."""
        number = max((declined.number for declined in self._rounds.values()), default=0) + 1
        round_ = (number, asked.round_id, asked.statistic, asked.trainer, asked.epsilon, asked.delta)
        declined = DeclinedRound(*round_, refusal.reason, refusal.found, refusal.expected, now_ms)
        self._rounds[asked.round_id] = declined
        oldest = list(self._rounds)[:-DECLINES_MAX]
        for round_id in oldest:
            del self._rounds[round_id]
        stored = Persist(DECLINES, asked.round_id, msgspec.msgpack.encode(declined))
        return [stored, *(Forget(DECLINES, round_id) for round_id in oldest)]
