"""A Compute node: collects shares of one roster, agrees on one set, releases one partial sum (DESIGN §4.3, §4.5).

Its rounds and their phases stand in `compute_round`. Both ends of a round are final, and stored before they are said.
The node never trusts the announcement's numbers alone: it checks every join, its certificate and its own floors, and
derives thresholds itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from dca_proto.core import facts
from dca_proto.core.charges import SeenCharges
from dca_proto.core.codec import decode_body, decode_frame, encode, verify_signed
from dca_proto.core.commit import TOO_FEW, Entries, agree, encode_entries, parse_entries, position_bits
from dca_proto.core.compute_round import (
    ABORTED,
    COLLECTING,
    ENDS,
    FROZEN,
    NEW,
    RELEASED,
    TABLE,
    Round,
    StoredRound,
    roster_digest,
)
from dca_proto.core.effects import Address, CancelTimer, Channel, Effect, Forget, Persist, Report, Send, SetTimer
from dca_proto.core.errors import PeerError
from dca_proto.core.events import Timer
from dca_proto.core.federation import Federation
from dca_proto.core.fixedpoint import ring_to_bytes
from dca_proto.core.keyring import Keyring, SeenEpochs
from dca_proto.core.machine import Actor, step
from dca_proto.core.mechanism import Mechanism
from dca_proto.core.messages import (
    TEXT_CHARS_MAX,
    Abort,
    Behind,
    EpochKey,
    Frozen,
    FrozenList,
    PartialSum,
    Query,
    Ready,
    Receipt,
    Roster,
    Share,
    Signed,
)
from dca_proto.core.params import PROTOCOL_VERSION, Limits, Timing
from dca_proto.core.policy import Floors
from dca_proto.core.records import decoded, unreadable
from dca_proto.core.roster import CheckedRoster, check_roster
from dca_proto.core.round import list_hash, seal_answer
from dca_proto.core.sealing import ID_BYTES, Identity, Random
from dca_proto.core.shares import check_body, sum_shares
from dca_proto.core.upload import open_share, receipt_tag

ROUNDS, SHARES = "round", "share"
EPOCH, FREEZE, COMMIT, RESEND, CLOSE = "epoch", "freeze", "commit", "resend", "close"


class ComputeActor(Actor):
    """A Compute node.

    Args:
        identity: its Ed25519 identity, named in the federation file.
        federation: the file given out of band. floors: its own limits.
        random: returns random bytes; the operating system's on a real node.
        mechanism: the noise mechanism whose thresholds it knows; rosters of any other are refused.
        records: (table, key, value) of its store.
    """

    def __init__(
        self,
        identity: Identity,
        federation: Federation,
        *,
        random: Random,
        floors: Floors | None = None,
        mechanism: Mechanism | None = None,
        limits: Limits | None = None,
        timing: Timing | None = None,
        records: Iterable[tuple[str, bytes, bytes]] = (),
    ) -> None:
        super().__init__(identity, federation, random, mechanism, limits, timing)
        self._floors = floors or Floors()
        self._rounds: dict[bytes, Round] = {}
        self._open: set[bytes] = set()  # those of them that have not ended
        self._unreadable: list[bytes] = []  # of a replaced federation file, or of a statistic that is missing here
        self._restore(tuple(records))

    def _restore(self, records: Sequence[tuple[str, bytes, bytes]]) -> None:
        self._seen = SeenEpochs(records, self._timing)
        self._keys = Keyring(records, self._timing, self._random)
        self._charges = SeenCharges(records)
        for table, round_id, value in records:
            if table == ROUNDS:
                self._restore_round(round_id, decoded(ROUNDS, value, StoredRound))
        for table, key, value in records:
            if table == SHARES:
                self._restore_share(key, value)

    def _restore_round(self, round_id: bytes, stored: StoredRound) -> None:
        current = self._rounds[round_id] = Round(stored)
        if stored.phase in ENDS:
            return  # whether or not its roster can be read
        self._open.add(round_id)
        if not self._load(current):
            self._unreadable.append(round_id)

    def _load(self, current: Round) -> bool:
        """Read the stored roster; whether it can be read."""
        if current.stored.roster is None:
            return False
        try:
            current.load(self._check(current.stored.roster, now_ms=0))
        except PeerError:
            return False
        return True

    def _restore_share(self, key: bytes, value: bytes) -> None:
        current, position = self._rounds.get(key[:ID_BYTES]), int.from_bytes(key[ID_BYTES:], "big")
        if current is None or len(value) <= ID_BYTES:
            raise unreadable(SHARES, "no round of its own" if current is None else f"{len(value)} bytes")
        current.entries[position] = value[:ID_BYTES]
        current.shares[position] = value[ID_BYTES:]

    def phase(self, round_id: bytes) -> str:
        """The phase of a round here: a phase of `TABLE`."""
        known = self._rounds.get(round_id)
        return known.phase if known else NEW

    # --- start and messages ----------------------------------------------------------------------------------------

    def _on_start_up(self, now_ms: int) -> list[Effect]:
        aborted = [effect for round_id in self._unreadable for effect in self._abort_unreadable(round_id)]
        known = sorted(self._rounds.keys() - set(self._unreadable))
        resumed = [effect for round_id in known for effect in self._resume(round_id, now_ms)]
        return [*aborted, *self._turn_epoch(now_ms), *resumed]

    def _receive(self, sender: bytes, payload: bytes, now_ms: int) -> list[Effect]:
        frame = decode_frame(payload)
        if isinstance(frame, Share):
            return self._on_share(sender, frame, now_ms)
        if not isinstance(frame, Signed):
            raise PeerError("kind", found=type(frame).__name__, expected="Signed or Share")
        body = decode_body(frame.body)
        match body:
            case Roster():
                return self._on_roster(sender, frame, body, now_ms)
            case Frozen():
                return self._on_frozen(sender, frame, body)
            case FrozenList():
                return self._on_list(sender, frame, body)
            case Query():
                return self._on_query(sender, frame, body)
            case Abort():
                return self._on_peer_abort(sender, frame, body)
            case _:
                raise PeerError("kind", found=type(body).__name__, expected="a message for a Compute node")

    # --- roster ---------------------------------------------------------------------------------------------------

    def _on_roster(self, sender: bytes, frame: Signed, body: Roster, now_ms: int) -> list[Effect]:
        known = self._rounds.get(body.round_id)
        if known is not None:
            if roster_digest(frame) != known.stored.roster_digest:
                raise PeerError("known-round", found="another roster", expected="the one that is known")
            return self._answer(known)
        if len(self._open) >= self._limits.rounds_open_max:
            raise PeerError("rounds", found=f"{len(self._open)} open rounds", expected="fewer at the same time")
        roster = self._check(frame, now_ms)
        roster.check_fresh(sender, now_ms)
        if not self._keys.holds(roster.own.epoch, roster.own.public):
            raise PeerError("epoch", found="an epoch key that is not kept here", expected="the current one")
        self._seen.check(roster.announcement.epochs, now_ms)
        seen = self._seen.note(roster.announcement.epochs)
        current = self._rounds[body.round_id] = Round.opened(frame, roster)
        self._open.add(body.round_id)
        refusal = roster.refusal(self._floors)
        if refusal is not None:
            return [*seen, *self._abort(current, refusal.reason, f"{refusal.found}; needs {refusal.expected}")]
        stored = self._store(current, phase=step(TABLE, NEW, "roster"))
        return [*seen, stored, *self._timers(current), *self._answer(current)]

    def _check(self, frame: Signed, now_ms: int) -> CheckedRoster:
        return check_roster(frame, self._federation, self._mechanism, self._limits, self.id, now_ms)

    # --- shares ---------------------------------------------------------------------------------------------------

    def _on_share(self, sender: bytes, share: Share, now_ms: int) -> list[Effect]:
        current = self._round(share.round_id)
        if current.phase == ABORTED:
            step(TABLE, current.phase, "late share")
            return [Send(Address(Channel.CLIENT, sender), share.round_id, current.stored.answer)]
        if not current.is_loaded:
            raise PeerError("phase", found="a share of a round that is over", expected="none")
        roster = current.roster
        position = roster.positions.get(sender)
        if position is None:
            raise PeerError("not-on-roster", found=sender.hex(), expected="a client of the roster")
        kept = current.entries.get(position)
        step(TABLE, current.phase, "share" if kept is None else "repeated share")
        pair_key = self._keys.agree(roster.own.epoch, roster.client_keys[position])
        key, charge, body = open_share(
            share, pair_key=pair_key, session_hash=roster.session, client=sender, position=position, compute=self.id
        )
        receipt = encode(Receipt(share.round_id, share.contribution, receipt_tag(key)))
        reply = Send(Address(Channel.CLIENT, sender), share.round_id, receipt)
        if kept == share.contribution:
            return [reply]
        check_body(body, roster.plan.dimension, position in roster.vectors)
        try:
            self._check_first(sender, charge, kept)
        except PeerError as error:
            return [self._drop(error, sender), self._behind(current, sender, charge)]
        durable = [self._keep(current, position, share.contribution, body), self._charges.note(sender, charge)]
        return [*durable, reply, *self._count(current, now_ms)]

    def _check_first(self, client: bytes, charge: int, kept: bytes | None) -> None:
        """An authentic share that repeats a round or a charge is of a client that forgot them. Raises `PeerError`."""
        if kept is not None:
            raise PeerError("second-contribution", found="another contribution id", expected="the first one")
        self._charges.check(client, charge)

    def _behind(self, current: Round, client: bytes, charge: int) -> Effect:
        highest = self._charges.highest(client)
        body = Behind(PROTOCOL_VERSION, current.id, current.session, client, charge, highest)
        return self._signed_to(Address(Channel.CLIENT, client), current.id, body)

    def _keep(self, current: Round, position: int, contribution: bytes, body: bytes) -> Persist:
        current.entries[position] = contribution
        current.shares[position] = body
        return Persist(SHARES, _share_key(current.id, position), contribution + body)

    def _count(self, current: Round, now_ms: int) -> list[Effect]:
        count, clients = len(current.entries), current.roster.plan.clients
        counted = Report(facts.ShareKept(current.id, count, clients))
        return [counted, *(self._freeze(current, now_ms) if count == clients else [])]

    # --- agreement on one set -------------------------------------------------------------------------------------

    def _freeze(self, current: Round, now_ms: int) -> list[Effect]:
        phase = step(TABLE, current.phase, "freeze")
        stored = self._store(current, phase=phase, entries=encode_entries(current.entries))
        told = [effect for peer in current.peers(self.id) for effect in self._tell(current, peer, answer=False)]
        return [
            stored,
            Report(facts.ListFrozen(current.id, len(current.entries))),
            *told,
            self._resend_timer(current, now_ms),
            *self._settle(current),
        ]

    def _tell(self, current: Round, peer: bytes, *, answer: bool) -> list[Effect]:
        """Our view to a peer, and our list where its view is known to differ."""
        to, view = Address(Channel.COMPUTE, peer), current.view
        frozen = Frozen(PROTOCOL_VERSION, current.id, current.session, view, current.count, answer)
        effects = [self._signed_to(to, current.id, frozen)]
        if current.views.get(peer, view) != view:
            entries = FrozenList(PROTOCOL_VERSION, current.id, current.session, current.stored.entries)
            effects.append(self._signed_to(to, current.id, entries))
        return effects

    def _on_frozen(self, sender: bytes, frame: Signed, body: Frozen) -> list[Effect]:
        current = self._peer_round(sender, frame, body)
        step(TABLE, current.phase, "view")
        if current.views.get(sender, body.list_hash) != body.list_hash:
            raise PeerError("equivocation", found="a second list hash of one node", expected="the first one")
        news = sender not in current.views
        current.views[sender] = body.list_hash
        if current.phase == COLLECTING:
            return []
        if current.phase == ABORTED:
            return [Send(Address(Channel.COMPUTE, sender), body.round_id, current.stored.answer)]
        if not current.stored.entries and current.phase == RELEASED:
            return []  # past its announced end
        differs = news and body.list_hash != current.view
        replies = self._tell(current, sender, answer=True) if differs or not body.answer else []
        return [*replies, *self._settle(current)]

    def _on_list(self, sender: bytes, frame: Signed, body: FrozenList) -> list[Effect]:
        current = self._peer_round(sender, frame, body)
        step(TABLE, current.phase, "view")
        if current.phase in ENDS:
            return []  # a repeated one
        if current.views.get(sender) != list_hash(body.session_hash, body.entries):
            raise PeerError("equivocation", found="a list that is not the hash's", expected="the list told before")
        current.lists[sender] = parse_entries(body.entries, current.roster.plan.clients)
        return self._settle(current)

    def _settle(self, current: Round) -> list[Effect]:
        """Release or abort, as soon as all views are known."""
        if current.phase != FROZEN or current.unsettled(self.id):
            return []
        agreed = agree(current.entries, current.lists.values())
        plan = current.roster.plan
        if len(agreed) < plan.needed:
            detail = f"{len(agreed)} contributed, {plan.needed} were needed"
            return self._abort(current, TOO_FEW, detail, contributors=len(agreed))
        return self._release(current, agreed)

    def _release(self, current: Round, agreed: Entries) -> list[Effect]:
        """The one partial sum of this round: stored, then sent."""
        roster, plan = current.roster, current.roster.plan
        phase = step(TABLE, current.phase, "release")
        full = (current.shares[position] for position in agreed if position in roster.vectors)
        seeds = (current.shares[position] for position in agreed if position not in roster.vectors)
        views = {**current.views, self.id: current.view}
        partial = PartialSum(
            PROTOCOL_VERSION,
            roster.round_id,
            roster.session,
            list_hash(roster.session, encode_entries(agreed)),
            position_bits(agreed, plan.clients),
            tuple(views[compute] for compute in roster.announcement.computes),
            ring_to_bytes(sum_shares(full, seeds, plan.dimension)),
        )
        answer = seal_answer(self._sign(partial), roster.announcement, self._random)
        return [
            *self._finish(current, phase, answer),
            Send(Address(Channel.TRAINER, roster.trainer), roster.round_id, answer),
            Report(facts.Released(roster.round_id, len(agreed), partial.contributors_hash)),
        ]

    # --- aborts ---------------------------------------------------------------------------------------------------

    def _abort(self, current: Round, reason: str, detail: str, *, contributors: int = 0) -> list[Effect]:
        """The final word that nothing was and nothing will be released."""
        phase = step(TABLE, current.phase, "abort")
        figures = (contributors, current.stored.needed)
        body = Abort(PROTOCOL_VERSION, current.id, current.session, reason, detail[:TEXT_CHARS_MAX], *figures)
        answer = encode(self._sign(body))
        return [
            *self._finish(current, phase, answer),
            Send(Address(Channel.ABORT), current.id, answer),
            Report(facts.NodeAborted(current.id, self.id, reason, detail)),
        ]

    def _abort_unreadable(self, round_id: bytes) -> list[Effect]:
        """An open round that cannot be gone on with ends; its id is kept like any other's, so that it never reopens."""
        detail = "the federation file was replaced in mid-round, or its statistic is not known here any more"
        return self._abort(self._rounds[round_id], "unreadable", detail)

    def _finish(self, current: Round, phase: str, answer: bytes) -> list[Effect]:
        """Store the final word and forget the shares, in one transaction."""
        forgotten = [Forget(SHARES, _share_key(current.id, position)) for position in current.shares]
        timers = [CancelTimer(Timer(purpose, current.id)) for purpose in (FREEZE, COMMIT, RESEND)]
        current.shares.clear()
        self._open.discard(current.id)
        # Of a release, the roster tells who sends a share again because the receipt was lost.
        roster = current.stored.roster if phase == RELEASED else None
        stored = self._store(current, phase=phase, answer=answer, roster=roster)
        return [stored, *forgotten, *timers, SetTimer(Timer(CLOSE, current.id), current.stored.close_by_ms)]

    def _on_peer_abort(self, sender: bytes, frame: Signed, body: Abort) -> list[Effect]:
        """A peer's abort is final, so no result can come any more."""
        if sender == self.id or body.round_id not in self._rounds:
            return []  # aborts are broadcast
        current = self._peer_round(sender, frame, body)
        if current.phase in ENDS:
            step(TABLE, current.phase, "late abort")
            return []
        name = self._federation.compute(sender).name
        return self._abort(current, body.reason, f"{name}: {body.detail}", contributors=body.contributors)

    # --- questions, time and restarts -----------------------------------------------------------------------------

    def _on_query(self, sender: bytes, frame: Signed, body: Query) -> list[Effect]:
        current = self._round(body.round_id)
        if sender != current.stored.trainer or body.session_hash != current.session:
            raise PeerError("sender", found=sender.hex(), expected="the round's trainer, about its session")
        verify_signed(frame, self._federation.trainer(sender).key, self._federation_hash)
        step(TABLE, current.phase, "query")
        return self._answer(current)

    def _answer(self, current: Round) -> list[Effect]:
        """The last word on a round, repeated for its trainer until the round's announced end: never a second one."""
        to = Address(Channel.TRAINER, current.stored.trainer)
        if current.stored.answer:
            return [Send(to, current.id, current.stored.answer)]
        if current.phase in ENDS:
            return []
        return [self._signed_to(to, current.id, Ready(PROTOCOL_VERSION, current.id, current.session))]

    def _on_timer(self, timer: Timer, now_ms: int) -> list[Effect]:
        if timer.purpose == EPOCH:
            return self._turn_epoch(now_ms)
        current = self._rounds.get(timer.round_id)
        if current is None:
            return []
        if timer.purpose == FREEZE and current.phase == COLLECTING:
            return self._freeze(current, now_ms)
        if timer.purpose == RESEND and current.phase == FROZEN:
            waiting = [
                effect for peer in current.unsettled(self.id) for effect in self._tell(current, peer, answer=False)
            ]
            return [*waiting, self._resend_timer(current, now_ms)]
        if timer.purpose == COMMIT and current.phase in (COLLECTING, FROZEN):
            names = ", ".join(self._federation.compute(peer).name for peer in current.unsettled(self.id))
            return self._abort(current, "peer-silent", f"no list from {names} at commit_by")
        return self._on_close(current, now_ms) if timer.purpose == CLOSE else []

    def _on_close(self, current: Round, now_ms: int) -> list[Effect]:
        """At its announced end a round leaves memory but for its last word; after the retention it is forgotten."""
        step(TABLE, current.phase, "close")
        if now_ms < current.stored.close_by_ms + self._timing.retention_ms:
            current.unload()
            released = current.phase == RELEASED
            forgotten = [self._store(current, roster=None, entries=b"", answer=b"")] if released else []
            return [*forgotten, self._close_timer(current, now_ms)]
        del self._rounds[current.id]
        return [Forget(ROUNDS, current.id)]

    def _turn_epoch(self, now_ms: int) -> list[Effect]:
        """Make the current epoch's key, delete what is over, and publish the signed key, for late comers too.

        It is published again and again: a broker may forget what it retained.
        """
        renewed = self._keys.renew(now_ms, (self._rounds[one].roster.own.epoch for one in self._open))
        keys = self._keys
        body = EpochKey(PROTOCOL_VERSION, self.id, keys.epoch, keys.public, keys.expires_ms)
        frame = encode(self._sign(body))
        again_ms = now_ms + self._timing.epoch_publish_ms
        return [
            *renewed,
            Send(Address(Channel.EPOCH), b"", frame, retain=True),
            SetTimer(Timer(EPOCH), min(keys.next_turn_ms(now_ms) or again_ms, again_ms)),
        ]

    def _resume(self, round_id: bytes, now_ms: int) -> list[Effect]:
        current = self._rounds[round_id]
        if current.phase in ENDS:
            if now_ms < current.stored.close_by_ms:
                self._load(current)  # to acknowledge what comes again; a round that has ended is known without it
            again = [Send(Address(Channel.ABORT), round_id, current.stored.answer)] if current.phase == ABORTED else []
            return [*again, *self._answer(current), self._close_timer(current, now_ms)]
        resend = [self._resend_timer(current, now_ms)] if current.phase == FROZEN else []
        told = (
            [e for peer in current.unsettled(self.id) for e in self._tell(current, peer, answer=False)]
            if resend
            else []
        )
        return [*self._timers(current), *resend, *told]

    def _timers(self, current: Round) -> list[Effect]:
        terms = current.roster.terms
        return [
            SetTimer(Timer(FREEZE, current.id), terms.share_by_ms),
            SetTimer(Timer(COMMIT, current.id), terms.commit_by_ms),
        ]

    def _close_timer(self, current: Round, now_ms: int) -> SetTimer:
        """When the sum of a released round goes, at its announced end; afterwards, when the round is forgotten."""
        holds_sum = current.phase == RELEASED and current.stored.answer
        retention_ms = 0 if holds_sum else self._timing.retention_ms
        return SetTimer(Timer(CLOSE, current.id), max(now_ms, current.stored.close_by_ms + retention_ms))

    def _resend_timer(self, current: Round, now_ms: int) -> SetTimer:
        wait_ms = self._timing.resend_after_ms(current.attempt, self._random(1))
        current.attempt += 1
        return SetTimer(Timer(RESEND, current.id), now_ms + wait_ms)

    # --- bookkeeping ----------------------------------------------------------------------------------------------

    def _store(self, current: Round, **changes: object) -> Persist:
        current.stored = msgspec.structs.replace(current.stored, **changes)
        return Persist(ROUNDS, current.id, encode(current.stored))

    def _round(self, round_id: bytes) -> Round:
        current = self._rounds.get(round_id)
        if current is None:
            raise PeerError("unknown-round", found=round_id.hex(), expected="a round whose roster came")
        return current

    def _peer_round(self, sender: bytes, frame: Signed, body: Frozen | FrozenList | Abort) -> Round:
        """The round of a peer's message, whose signature and session hold."""
        current = self._round(body.round_id)
        if sender not in current.peers(self.id):
            raise PeerError("unknown-compute", found=sender.hex(), expected="another Compute node of the round")
        if body.session_hash != current.session:
            raise PeerError("session", found="another session of the round", expected=current.session.hex())
        verify_signed(frame, self._federation.compute(sender).key, self._federation_hash)
        return current

    def _signed_to(self, to: Address, round_id: bytes, body: Ready | Frozen | FrozenList | Behind) -> Effect:
        return Send(to, round_id, encode(self._sign(body)))


def _share_key(round_id: bytes, position: int) -> bytes:
    return round_id + position.to_bytes(4, "big")
