"""Aborts that return a client's charges, and how long it remembers a round for them (DESIGN §4.8, §7).

`actor.Client` extends `Returning`. A charge comes back against the aborts of p + 1 nodes of the round: one of them is
honest, and will never release its masks of the contribution.
"""

from __future__ import annotations

from dca_proto.errors import PeerError
from dca_proto.protocol import facts
from dca_proto.protocol.actor import RESEND, BaseActor
from dca_proto.protocol.announcement import OpenedAnnouncement
from dca_proto.protocol.client.round import ANNOUNCEMENTS, ASK, CLOSE, RETURNED, ROUNDS, ClientRoom, ClientRound
from dca_proto.protocol.client.trust import Trust
from dca_proto.protocol.effects import Effect, Forget, Report, SetTimer
from dca_proto.protocol.ledger import Ledger
from dca_proto.protocol.wire import messages as m
from dca_proto.protocol.wire.codec import body_of


class Returning(BaseActor[ClientRound]):
    """The part of a client that counts aborts and forgets rounds."""

    ledger: Ledger
    _trust: Trust
    _room: ClientRoom
    _pending_charges: dict[bytes, int]

    def _on_abort(self, sender: bytes, frame: m.Signed, body: m.Abort, now_ms: int) -> list[Effect]:
        current = self._rounds.get(body.round_id)
        if current is None or current.stored.decline:
            return []  # aborts are broadcast: most are about rounds that this client did not pay for
        author = body.compute  # not `sender`: a node also passes on its peers' aborts
        self._node_round(author, frame, body)
        if author in current.stored.aborted_by or current.is_in(RETURNED):
            current.step("repeated abort")
            return []
        if now_ms >= self._forget_ms(current):
            return []  # no abort counts any more: this round is about to be forgotten
        aborted_by = (*current.stored.aborted_by, author)
        if self._trust.returns(current.stored, aborted_by, self._federation):
            return self._give_back(current, aborted_by)
        stored = current.advance("abort", aborted_by=aborted_by)
        ask_ms = current.stored.commit_by_ms + self._timing.resend_after_ms(0, self._random(1))
        ask = [] if current.asked else [current.timer(ASK, ask_ms)]  # else the back-off goes on
        return [stored, *ask, self._close_timer(current, now_ms)]

    def _recount(self, now_ms: int) -> list[Effect]:
        """Return the charges for which the aborts suffice by now: the federation file or the policy has changed."""
        effects: list[Effect] = []
        for current in [one for one in self._rounds.values() if one.stored.aborted_by and not one.is_in(RETURNED)]:
            stored, counts = current.stored, now_ms < self._forget_ms(current)
            if counts and self._trust.returns(stored, stored.aborted_by, self._federation):
                effects += self._give_back(current, stored.aborted_by)
        return effects

    def _give_back(self, current: ClientRound, aborted_by: tuple[bytes, ...]) -> list[Effect]:
        stored = current.advance("last abort", aborted_by=aborted_by, outbound=None)
        return [
            self.ledger.give_back(current.id),
            stored,
            *self._settle(current),
            *current.cancel(RESEND, ASK),
            Report(facts.ChargeReturned(current.id)),
        ]

    def _take_ended(self, opened: OpenedAnnouncement, now_ms: int) -> list[Effect]:
        """Count the aborts of earlier rounds that a repeat carries, before deciding on it (§4.8).

        Bad ones are ignored, and the first one is reported: there may be 192.
        """
        effects: list[Effect] = []
        wrong: list[PeerError] = []
        for frame in opened.body.ended:
            try:
                body = body_of(frame, m.Abort)
                effects += self._on_abort(body.compute, frame, body, now_ms)
            except PeerError as error:
                wrong.append(error)
        return [*effects, *(self._drop(error, opened.body.trainer) for error in wrong[:1])]

    def _settle(self, current: ClientRound) -> list[Effect]:
        """Stop counting the round as open. The oldest rounds with a receipt give way if they have no room any more.

        First they lose their announcement, without which this client no longer asks for aborts, then their record.
        Their charge stays.
        """
        self._pending_charges.pop(current.id, None)
        if current.amounts[0]:  # it was open: rounds with a receipt stand in the order of their receipts
            self._rounds[current.id] = self._rounds.pop(current.id)
        self._room.note(current)
        limits, room, trainer = self._limits, self._room, current.stored.trainer
        effects: list[Effect] = []
        while not room.kept_announcements.fits(limits.client_announcements, trainer):
            of_all = room.kept_announcements.total > limits.client_announcements.most
            old = self._oldest_kept(None if of_all else trainer, with_announcement=True)
            old.opened = None
            room.note(old)
            effects.append(Forget(ANNOUNCEMENTS, old.id))
        while not room.kept.fits(limits.client_kept, trainer):
            old = self._oldest_kept(None if room.kept.total > limits.client_kept.most else trainer)
            effects += [*old.cancel(CLOSE, ASK), *self._forget(old, 0)]
        return effects

    def _oldest_kept(self, trainer: bytes | None, *, with_announcement: bool = False) -> ClientRound:
        """Return the oldest round with a receipt, of a trainer or of all."""
        kept = (current for current in self._rounds.values() if not current.is_open)
        own = (current for current in kept if trainer in (None, current.stored.trainer))
        return next(current for current in own if current.opened is not None or not with_announcement)

    def _forget(self, current: ClientRound, now_ms: int) -> list[Effect]:
        """Forget everything about a round except its charge."""
        current.step(CLOSE)
        del self._rounds[current.id]
        self._pace.forget(current.id)
        self._pending_charges.pop(current.id, None)
        self._room.forget(current)
        return [Forget(ROUNDS, current.id), *([Forget(ANNOUNCEMENTS, current.id)] if current.opened else [])]

    def _close_timer(self, current: ClientRound, now_ms: int) -> SetTimer:
        """Set the time to forget a round, when its decline or its aborts are no longer needed (§4.8).

        A node that has answered aborts at the end of the grace; its abort arrives a little later.
        """
        return current.timer(CLOSE, max(now_ms, self._forget_ms(current)))

    def _forget_ms(self, current: ClientRound) -> int:
        """Return when a round is forgotten, and from which time no abort counts any more."""
        is_summed, timing, stored = current.is_summed, self._timing, current.stored
        grace_ms = timing.abort_grace_ms if is_summed or current.takes(RESEND) else 0
        grace_ms += timing.kept_ms if is_summed or not grace_ms else 0
        return stored.close_by_ms if stored.decline else stored.commit_by_ms + grace_ms
