"""A round at the client: its stored record, its state in memory, and the table of its phases (DESIGN §4, §9).

    new ── announcement ──> sent ── receipt, or notice that it was late ──> kept, missed
     └── refusal ──> declined  └────────── signed aborts of p + 1 nodes ────┴──> returned

Node releases and LDP reports follow the same table, with the trainer as the holder; nobody can abort such a round.
"""

from __future__ import annotations

import msgspec

from dca_proto.crypto.masks import holder_index
from dca_proto.protocol.actor import NEW, RESEND, ActorRound, Stored, Table, stays
from dca_proto.protocol.announcement import OpenedAnnouncement
from dca_proto.protocol.contribution import ClientMessage
from dca_proto.protocol.effects import Address, Channel, Effect, Forget, Persist, Send, Write
from dca_proto.protocol.params import Limits
from dca_proto.protocol.policy import Refusal
from dca_proto.protocol.records import Records, loaded
from dca_proto.protocol.room import Amounts, Rooms, Used
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


class StoredClientRound(Stored, frozen=True):
    """The client's record of a round. An announcement is stored beside it if it may be needed again (DESIGN §7).

    Attributes:
        announcement_hash, trainer, computes, close_by_ms, commit_by_ms: of the announcement.
        outbound: the message that was sent, until its receipt arrives; resent byte for byte.
        decline: the sealed decline; resent byte for byte.
        aborted_by: ids of the Compute nodes whose signed aborts arrived.
        colluding: p, as the client counted when it paid. trusted: ids of the nodes that its policy trusted then.
    """

    announcement_hash: bytes
    trainer: bytes
    computes: tuple[bytes, ...]
    close_by_ms: int
    commit_by_ms: int
    outbound: ClientMessage | None = None
    decline: bytes = b""
    aborted_by: tuple[bytes, ...] = ()
    colluding: int = 0
    trusted: tuple[bytes, ...] = ()


class ClientRound(ActorRound[StoredClientRound]):
    """A client's round in memory.

    `holder` receives its contribution, which was last sent at `sent_ms`. `asked` counts its questions for aborts.
    `opened` is the announcement: None if the client declined, and in an old round that gave way to newer ones.
    `amounts` is what it takes of `ClientRoom`.
    """

    __slots__ = ("amounts", "asked", "holder", "opened", "sent_ms")
    table, records = TABLE, ROUNDS

    def __init__(
        self, round_id: bytes, stored: StoredClientRound, client: bytes, opened: OpenedAnnouncement | None = None
    ) -> None:
        super().__init__(round_id, stored, stored.announcement_hash, stored.computes)
        self.opened = opened
        if opened is not None:
            self.holder = opened.holder(client)
        elif stored.computes:
            place = holder_index(self.hash, client, len(stored.computes))
            self.holder = Address(Channel.COMPUTE, stored.computes[place])
        else:
            self.holder = Address(Channel.TRAINER, stored.trainer)
        self.asked = self.sent_ms = 0
        self.amounts: Amounts = ()

    @classmethod
    def announced(cls, opened: OpenedAnnouncement, client: bytes) -> ClientRound:
        """Return a new round."""
        body = opened.body
        deadlines = (body.close_by_ms, body.commit_by_ms)
        stored = StoredClientRound(NEW, opened.hash, body.trainer, opened.computes, *deadlines)
        return cls(body.round_id, stored, client, opened)

    @property
    def is_open(self) -> bool:
        """True if its answer may have to be sent again."""
        return bool(self.stored.decline) or self.stored.outbound is not None

    @property
    def is_awaited(self) -> bool:
        """True if a receipt is still to come; nobody confirms a decline."""
        return self.is_open and not self.stored.decline

    def answers(self) -> list[Effect]:
        """Send the answer to the announcement: the decline, or the contribution or release that has no receipt yet."""
        if self.stored.decline:
            return [self.send(self.stored.decline, Channel.TRAINER, self.stored.trainer)]
        if self.stored.outbound is None:
            return []
        return [Send(self.holder, self.id, self.stored.outbound.payload)]


class ClientRoom(Rooms[ClientRound]):
    """What the rounds of a client take, against its limits (DESIGN §7)."""

    def __init__(self) -> None:
        self.open, self.announcements, self.messages = Used(), Used(), Used()
        self.kept, self.kept_announcements = Used(), Used()

    def amounts(self, current: ClientRound) -> Amounts:
        stored = current.stored
        announcement = len(current.opened.payload) if current.opened is not None else 0
        if not current.is_open:
            return (0, 0, 0, 1, announcement)
        message = len(stored.outbound.payload) if stored.outbound is not None else len(stored.decline)
        return (1, announcement, message, 0, 0)

    def refusal(self, limits: Limits, opened: OpenedAnnouncement, message_bytes: int) -> Refusal | None:
        """Return a refusal if the announcement and an answer of `message_bytes` have no room."""
        trainer = opened.body.trainer
        announced = self.announcements.refusal(limits.client_announcements, trainer, len(opened.payload))
        return announced or self.messages.refusal(limits.client_messages, trainer, message_bytes)


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


class DeclinedRounds:
    """The newest rounds that a client declined, kept for its owner and restored from its store (DESIGN §4.3)."""

    def __init__(self, records: Records = ()) -> None:
        stored = loaded(records, DECLINES, DeclinedRound)
        self._rounds = dict(sorted(stored.items(), key=lambda item: item[1].number))

    @property
    def rounds(self) -> tuple[DeclinedRound, ...]:
        """At most `DECLINES_MAX` rounds, in the order of declining."""
        return tuple(self._rounds.values())

    def note(self, body: Announcement, refusal: Refusal, now_ms: int) -> list[Write]:
        """Record a decline, and forget the oldest beyond `DECLINES_MAX`."""
        number = max((declined.number for declined in self._rounds.values()), default=0) + 1
        round_ = (number, body.round_id, body.statistic, body.trainer, body.epsilon, body.delta)
        declined = DeclinedRound(*round_, refusal.reason, refusal.found, refusal.expected, now_ms)
        self._rounds[body.round_id] = declined
        oldest = list(self._rounds)[:-DECLINES_MAX]
        for round_id in oldest:
            del self._rounds[round_id]
        stored = Persist(DECLINES, body.round_id, msgspec.msgpack.encode(declined))
        return [stored, *(Forget(DECLINES, round_id) for round_id in oldest)]
