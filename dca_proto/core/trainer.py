"""The trainer: announces rounds, fixes rosters, and adds what the Compute nodes release (DESIGN §4.1, §4.3, §4.6).

Its rounds and their phases stand in `trainer_round`.
It never sees a contribution: partial sums add up to the one private sum, or to nothing.

What its rounds may cost in all, it keeps in the federation's `account`; what clients answer is checked in
`trainer_answers`, and what becomes of failed rounds is in `trainer_failures`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dca_proto.core import facts
from dca_proto.core.account import Account, AccountError
from dca_proto.core.codec import decode_body, decode_frame, encode, verify_signed
from dca_proto.core.combine import combine
from dca_proto.core.commit import TOO_FEW
from dca_proto.core.effects import Address, CancelTimer, Channel, Effect, Forget, Report, Send, SetTimer
from dca_proto.core.errors import PeerError, RoundAborted, UsageError
from dca_proto.core.events import Timer
from dca_proto.core.federation import Federation
from dca_proto.core.ledger import TABLE as LEDGER
from dca_proto.core.ledger import Charge, Cost
from dca_proto.core.machine import Actor, step
from dca_proto.core.mechanism import Mechanism
from dca_proto.core.messages import (
    Abort,
    Decline,
    EpochKey,
    Join,
    PartialSum,
    Query,
    Ready,
    Roster,
    Sealed,
    Signed,
)
from dca_proto.core.params import PROTOCOL_VERSION, Limits, Timing
from dca_proto.core.plan import Plan, ask, plan_round
from dca_proto.core.policy import Allowance
from dca_proto.core.records import decoded
from dca_proto.core.round import OpenedAnnouncement, open_answer
from dca_proto.core.sealing import KEY_BYTES, AgreementKey, Identity, Random
from dca_proto.core.trainer_answers import Answers
from dca_proto.core.trainer_failures import SETTLE, Failures
from dca_proto.core.trainer_round import (
    DONE,
    FAILED,
    JOINING,
    NEW,
    RESEND,
    ROUNDS,
    RUNNING,
    STARTING,
    TABLE,
    OpenRound,
    Round,
    StoredRound,
)
from dca_proto.core.trainer_waiting import Waiting

_TOLD_AGAIN = (JOINING, STARTING, RUNNING, DONE)
KEYS, JOIN, END, CLOSE = "keys", "join", "end", "close"


class TrainerActor(Actor):
    """A trainer.

    Args:
        identity: its Ed25519 identity, named in the federation file.
        federation: the file given out of band.
        random: returns random bytes; the operating system's on a real node.
        mechanism: the noise mechanism that its rounds use.
        account: what all rounds of a period together may cost each client; None sets no limit.
        records: (table, key, value) of its store.

    Attributes:
        ledger: of the federation's account: one charge for each round that was started, limit or not.
    """

    def __init__(
        self,
        identity: Identity,
        federation: Federation,
        *,
        random: Random,
        mechanism: Mechanism | None = None,
        account: Allowance | None = None,
        limits: Limits | None = None,
        timing: Timing | None = None,
        records: Iterable[tuple[str, bytes, bytes]] = (),
    ) -> None:
        super().__init__(identity, federation, random, mechanism, limits, timing)
        self._waiting = Waiting(federation, self._timing)
        self._answers = Answers(federation, self._limits)
        self._rounds: dict[bytes, Round] = {}
        self._unreadable: set[bytes] = set()
        charges = []
        for table, key, value in records:
            if table == LEDGER:
                charges.append(decoded(LEDGER, value, Charge))
            elif table == ROUNDS:
                self._restore(key, decoded(ROUNDS, value, StoredRound))
        self._account = Account(account, charges)
        self.ledger = self._account.ledger
        self._failures = Failures(self.ledger, federation, self._timing, random, self._query)

    def _restore(self, round_id: bytes, stored: StoredRound) -> None:
        try:
            current = Round.restored(stored, self._federation, self._limits)
            ask(current.opened.body, self._mechanism, self._limits)
        except (PeerError, UsageError):  # of a replaced federation file, or of a statistic that is not known here now:
            self._unreadable.add(round_id)  # its record stays, should that come back
            return
        self._rounds[round_id] = current

    def phase(self, round_id: bytes) -> str:
        """The phase of a round here: a phase of `TABLE`."""
        known = self._rounds.get(round_id)
        return known.stored.phase if known else NEW

    def roster(self, round_id: bytes) -> tuple[bytes, ...]:
        """The ids of the clients on a round's roster, sorted; none before there is one, or of an unknown round."""
        known = self._rounds.get(round_id)
        return known.clients if known else ()

    def ended(self, round_id: bytes) -> facts.RoundCompleted | facts.RoundFailed | None:
        """How a known round ended, as it was told; None while it goes on, and of an unknown round."""
        known = self._rounds.get(round_id)
        if known is None or known.stored.phase != DONE:
            return known.told if known else None
        return self._combined(known)

    def unfinished(self, now_ms: int) -> set[bytes]:
        """The rounds whose end will be told: open ones, results (again), and failures whose charge may come back.

        Settled failures are told again by the start itself, and are not waited for.
        """
        open_or_done = {one.id for one in self._rounds.values() if one.stored.phase in _TOLD_AGAIN}
        return open_or_done | {one.id for one in self._awaiting(now_ms) if one.told is None}

    def is_settling(self, now_ms: int) -> bool:
        """Whether it will soon be known if a failed round's charge comes back."""
        return any(one.told is None for one in self._awaiting(now_ms))

    def _awaiting(self, now_ms: int) -> list[Round]:
        return [one for one in self._rounds.values() if self._failures.awaits_aborts(one, now_ms)]

    # --- start and messages ----------------------------------------------------------------------------------------

    def _on_start_up(self, now_ms: int) -> list[Effect]:
        return [effect for round_id in sorted(self._rounds) for effect in self._resume(round_id, now_ms)]

    def _on_command(self, request: object, now_ms: int) -> list[Effect]:
        if not isinstance(request, OpenRound):
            raise UsageError(f"a trainer takes OpenRound, found {type(request).__name__}")
        return self._on_open(request, now_ms)

    def _receive(self, sender: bytes, payload: bytes, now_ms: int) -> list[Effect]:
        frame = decode_frame(payload)
        if isinstance(frame, Sealed):
            current = self._round(frame.round_id)
            inner = open_answer(frame, current.reply_key, current.opened.hash)
            return self._on_answer(sender, inner, current, now_ms)
        if not isinstance(frame, Signed):
            raise PeerError("kind", found=type(frame).__name__, expected="Signed or Sealed")
        body = decode_body(frame.body)
        match body:
            case EpochKey():
                return self._on_epoch(sender, frame, now_ms)
            case Ready():
                return self._on_ready(sender, frame, body, now_ms)
            case Abort():
                return self._on_abort(sender, frame, body, now_ms)
            case _:
                raise PeerError("kind", found=type(body).__name__, expected="a message for a trainer")

    def _on_answer(self, sender: bytes, frame: Signed, current: Round, now_ms: int) -> list[Effect]:
        body = decode_body(frame.body)
        match body:
            case Join():
                return self._on_join(sender, frame, body, current, now_ms)
            case Decline():
                return self._on_decline(sender, frame, body, current, now_ms)
            case PartialSum():
                return self._on_partial(sender, frame, body, current, now_ms)
            case _:
                raise PeerError("kind", found=type(body).__name__, expected="Join, Decline or PartialSum")

    # --- announcement ---------------------------------------------------------------------------------------------

    def check_request(self, request: OpenRound, now_ms: int, beside: Iterable[OpenRound] = ()) -> None:
        """What every participant will check, while it is the caller's mistake and not yet a peer's; and the account.

        Args:
            beside: requests that are on their way to this actor, for which the account is to be kept free, too.

        Raises:
            UsageError: the round cannot be held.
            AccountError: it cannot be held now.
        """
        self._check_terms(request)
        self.check_job([request.mu], now_ms, beside, invited=request.invited)

    def _check_terms(self, request: OpenRound) -> None:
        round_id = request.round_id
        known = round_id in self._rounds or round_id in self._waiting.requests
        if known or round_id in self.ledger or round_id in self._unreadable:
            raise UsageError(f"round {round_id.hex()} is known already; draw a fresh id for each round")
        request.check(self._federation, self._mechanism, self._limits, self._timing)

    def check_job(
        self,
        mus: Iterable[float],
        now_ms: int,
        beside: Iterable[OpenRound] = (),
        *,
        invited: Collection[bytes] = (),
    ) -> None:
        """Refuse a job of several rounds that would exceed the account, before its first.

        Args:
            mus: μ of each round. beside: as for `check_request`. invited: to each of the rounds; empty: everybody.

        Raises:
            AccountError: with what it would come to, what is allowed and what is left.
        """
        reserved, failed = self._reserved(now_ms, beside), len(self._awaiting(now_ms))
        self._account.require(mus, now_ms, invited=invited, reserved=reserved, failed=failed)

    def _reserved(self, now_ms: int, beside: Iterable[OpenRound]) -> list[Cost]:
        """The cost of every round that is asked for and has neither ended nor been charged."""
        known = [one for one in self._rounds.values() if now_ms < one.opened.body.close_by_ms]
        opened = [one.stored.request for one in known if one.stored.phase in (JOINING, STARTING)]
        coming = [request for request in beside if request.round_id not in self._rounds]
        requests = {one.round_id: one for one in (*opened, *self._waiting.requests.values(), *coming)}
        return [request.cost for request in requests.values()]

    def _on_open(self, request: OpenRound, now_ms: int) -> list[Effect]:
        self._check_terms(request)
        try:
            self.check_job([request.mu], now_ms, invited=request.invited)
        except AccountError as refusal:  # it was let through before: other rounds go on
            return [Report(facts.RoundFailed(request.round_id, str(refusal), None, None))]
        self._waiting.requests[request.round_id] = request
        announced = self._announce_waiting(now_ms)
        if announced:
            return announced
        missing = self._waiting.missing(request, now_ms)
        timer = SetTimer(Timer(KEYS, request.round_id), now_ms + request.join_window_ms)
        return [timer, Report(facts.WaitingForKeys(request.round_id, missing))]

    def _on_epoch(self, sender: bytes, frame: Signed, now_ms: int) -> list[Effect]:
        self._waiting.note(sender, frame)
        return self._announce_waiting(now_ms)

    def _announce_waiting(self, now_ms: int) -> list[Effect]:
        """Announce every round for which all keys are known now."""
        ready = self._waiting.take_ready(now_ms)
        return [effect for request in ready for effect in self._announce(request, now_ms)]

    def _announce(self, request: OpenRound, now_ms: int) -> list[Effect]:
        secret = self._random(KEY_BYTES)
        public = AgreementKey(secret).public
        body = request.announcement(self.id, self._mechanism.name, self._waiting.keys_of(request), public, now_ms)
        frame = self._sign(body)
        stored = StoredRound(step(TABLE, NEW, "announce"), request, frame, secret)
        current = self._rounds[request.round_id] = Round.restored(stored, self._federation, self._limits)
        dimension = ask(body, self._mechanism, self._limits).dimension
        return [
            CancelTimer(Timer(KEYS, request.round_id)),
            current.store(),
            SetTimer(Timer(JOIN, request.round_id), body.join_by_ms),
            SetTimer(Timer(END, request.round_id), body.close_by_ms),
            current.again(self._timing, self._random, now_ms),
            *current.announced(),
            Report(facts.Announced(request.round_id, request.statistic, dimension)),
        ]

    # --- joins ----------------------------------------------------------------------------------------------------

    def _on_join(self, sender: bytes, frame: Signed, body: Join, current: Round, now_ms: int) -> list[Effect]:
        phase = step(TABLE, current.stored.phase, "join")
        if sender in current.joins:
            return [self._start(current, sender)] if phase == RUNNING and sender in current.positions else []
        return [self._answers.join(sender, frame, body, current, now_ms), *self._roster_when_all(current, now_ms)]

    def _on_decline(self, sender: bytes, frame: Signed, body: Decline, current: Round, now_ms: int) -> list[Effect]:
        step(TABLE, current.stored.phase, "decline")
        told = self._answers.decline(sender, frame, body, current, now_ms)
        return [told, *self._roster_when_all(current, now_ms)] if told else []

    def _roster_when_all(self, current: Round, now_ms: int) -> list[Effect]:
        have_all = len(current.answered) == current.stored.request.answers_expected
        return self._roster(current, now_ms) if have_all and current.stored.phase == JOINING else []

    # --- roster and start -----------------------------------------------------------------------------------------

    def _roster(self, current: Round, now_ms: int) -> list[Effect]:
        """Fix the list of joins and tell the Compute nodes."""
        members = sorted(current.joins.items())
        try:
            self._plan(current.opened, len(members))
            terms = current.terms_for(members, now_ms)
        except UsageError as error:
            return self._fail(current, f"{len(members)} clients joined: {error}", now_ms)
        joins = tuple(join for _, join in members)
        frame = self._sign(Roster(PROTOCOL_VERSION, current.id, terms, current.opened.frame, joins))
        phase = step(TABLE, current.stored.phase, "roster")
        current.attempt = 0
        stored = current.store(phase=phase, roster=frame)
        current.set_roster(frame)
        return [
            stored,
            CancelTimer(Timer(JOIN, current.id)),
            *current.rostered(),
            current.again(self._timing, self._random, now_ms),
            Report(facts.Rostered(current.id, current.clients, terms.roster_hash)),
        ]

    def _on_ready(self, sender: bytes, frame: Signed, body: Ready, now_ms: int) -> list[Effect]:
        current = self._node_round(sender, frame, body)
        step(TABLE, current.stored.phase, "ready")
        current.ready.add(sender)
        if current.stored.phase != STARTING or len(current.ready) < len(current.opened.computes):
            return []
        request = current.stored.request
        refusal = self._account.check([request.mu], now_ms, invited=request.invited)
        if refusal is not None:  # it was lowered since the announcement
            return self._fail(current, f"the account allows {refusal.expected}; found {refusal.found}", now_ms)
        assert current.terms is not None
        phase = step(TABLE, current.stored.phase, "all ready")
        current.attempt = 0
        return [
            self.ledger.charge(request.charge(self.id, self.ledger.next_number, now_ms)),
            current.store(phase=phase),
            *(self._start(current, client) for client in current.clients),
            CancelTimer(Timer(RESEND, current.id)),
            SetTimer(Timer(RESEND, current.id), max(current.terms.commit_by_ms, now_ms)),
            Report(facts.SharingStarted(current.id, len(current.clients), current.terms.share_by_ms)),
        ]

    def _start(self, current: Round, client: bytes) -> Effect:
        return Send(Address(Channel.CLIENT, client), current.id, encode(self._sign(current.start_of(client))))

    # --- results --------------------------------------------------------------------------------------------------

    def _on_partial(self, sender: bytes, frame: Signed, body: PartialSum, current: Round, now_ms: int) -> list[Effect]:
        self._node_round(sender, frame, body)
        if current.stored.phase == FAILED:
            return self._failures.on_partial(current)
        if sender in current.partials:
            step(TABLE, current.stored.phase, "repeated partial")
            return []  # the first one counts
        last = len(current.partials) + 1 == len(current.opened.computes)
        phase = step(TABLE, current.stored.phase, "last partial" if last else "partial")
        current.partials[sender] = body
        stored = current.store(partials=(*current.stored.partials, (sender, frame)))
        return [*self._complete(current, phase, now_ms)] if last else [stored]

    def _complete(self, current: Round, phase: str, now_ms: int) -> list[Effect]:
        try:
            completed = self._combined(current)
        except RoundAborted as error:
            return self._fail(current, error.reason, now_ms, error.contributors, error.needed)
        return [current.store(phase=phase), *self._end_timers(current, now_ms), Report(completed)]

    def _combined(self, current: Round) -> facts.RoundCompleted:
        """The result; the same for the same partial sums, however often it is asked for."""
        assert current.terms is not None
        plan = self._plan(current.opened, current.terms.clients)
        private = self._mechanism.private
        aggregate = combine(current.opened, current.terms, plan, current.partials, private=private)
        return facts.RoundCompleted(current.id, aggregate)

    def _on_abort(self, sender: bytes, frame: Signed, body: Abort, now_ms: int) -> list[Effect]:
        if body.round_id not in self._rounds:
            return []  # aborts are broadcast: another trainer's
        current = self._node_round(sender, frame, body)
        if current.stored.phase not in (STARTING, RUNNING):
            return self._failures.on_abort(current, sender, now_ms)
        name = self._federation.compute(sender).name
        reason = f"{name} aborted: {body.reason}: {body.detail}"
        contributors, needed = (body.contributors, body.needed) if body.reason == TOO_FEW else (None, None)
        return self._fail(current, reason, now_ms, contributors, needed, (sender,))

    def _fail(
        self,
        current: Round,
        reason: str,
        now_ms: int,
        contributors: int | None = None,
        needed: int | None = None,
        aborted_by: tuple[bytes, ...] = (),
    ) -> list[Effect]:
        stored = current.store(
            phase=step(TABLE, current.stored.phase, "fail"),
            partials=(),
            aborted_by=aborted_by,
            released=bool(current.partials),
            reason=reason,
            contributors=contributors,
            needed=needed,
        )
        current.partials.clear()
        return [stored, *self._end_timers(current, now_ms), *self._failures.settle(current, now_ms)]

    def _end_timers(self, current: Round, now_ms: int) -> list[Effect]:
        cancelled: list[Effect] = [CancelTimer(Timer(purpose, current.id)) for purpose in (JOIN, RESEND, END)]
        close_ms = current.opened.body.close_by_ms + self._timing.retention_ms
        current.answered.clear()
        current.joins.clear()  # N of them, for days, and nobody asks any more
        return [*cancelled, SetTimer(Timer(CLOSE, current.id), max(now_ms, close_ms))]

    # --- time and restarts ----------------------------------------------------------------------------------------

    def _on_timer(self, timer: Timer, now_ms: int) -> list[Effect]:
        if timer.purpose == KEYS:
            failure = self._waiting.give_up(timer.round_id, now_ms)
            return [Report(failure)] if failure else []
        current = self._rounds.get(timer.round_id)
        if current is None:
            return []
        phase = current.stored.phase
        if timer.purpose == JOIN and phase == JOINING:
            return self._roster(current, now_ms)
        if timer.purpose == RESEND:
            return self._resend(current, now_ms)
        if timer.purpose == SETTLE and phase == FAILED:
            return self._failures.tell(current)
        if timer.purpose == END and phase in (JOINING, STARTING, RUNNING):
            return self._fail(current, self._failures.silence(current), now_ms)
        if timer.purpose == CLOSE:
            step(TABLE, phase, "close")
            told = self._failures.tell(current, finally_=True) if phase == FAILED else []
            del self._rounds[timer.round_id]
            return [*told, Forget(ROUNDS, timer.round_id)]
        return []

    def _resend(self, current: Round, now_ms: int) -> list[Effect]:
        """What is not answered yet, and the timer for the next time."""
        match current.stored.phase:
            case "joining":
                unanswered = current.announced()
            case "starting":
                unanswered = current.rostered()
            case "running":
                unanswered = self._query(current)
            case _:
                return self._failures.ask_again(current, now_ms)
        return [*unanswered, current.again(self._timing, self._random, now_ms)]

    def _query(self, current: Round) -> list[Effect]:
        """Ask the Compute nodes that are missing for their last word."""
        payload = encode(self._sign(Query(PROTOCOL_VERSION, current.id, current.session)))
        told = {*current.partials, *current.stored.aborted_by}
        missing = [compute for compute in current.opened.computes if compute not in told]
        return [Send(Address(Channel.COMPUTE, compute), current.id, payload) for compute in missing]

    def _resume(self, round_id: bytes, now_ms: int) -> list[Effect]:
        current = self._rounds[round_id]
        body, phase = current.opened.body, current.stored.phase
        end = SetTimer(Timer(END, round_id), body.close_by_ms)
        match phase:
            case "joining":
                join = SetTimer(Timer(JOIN, round_id), body.join_by_ms)
                return [join, end, *self._resend(current, now_ms)]
            case "starting":
                return [*self._resend(current, now_ms), end]
            case "running":
                starts = [self._start(current, client) for client in current.clients]
                return [*starts, *self._resend(current, now_ms), end]
            case "done":
                return [Report(self._combined(current)), *self._end_timers(current, now_ms)]
            case _:
                return [*self._end_timers(current, now_ms), *self._failures.resume(current, now_ms)]

    # --- bookkeeping ----------------------------------------------------------------------------------------------

    def _round(self, round_id: bytes) -> Round:
        current = self._rounds.get(round_id)
        if current is None:
            raise PeerError("unknown-round", found=round_id.hex(), expected="a round of this trainer")
        return current

    def _node_round(self, sender: bytes, frame: Signed, body: Ready | PartialSum | Abort) -> Round:
        """The round of a Compute node's message, whose signature and session hold."""
        current = self._round(body.round_id)
        if sender not in current.opened.computes:
            raise PeerError("unknown-compute", found=sender.hex(), expected="a Compute node of the round")
        if current.terms is None or body.session_hash != current.session:
            raise PeerError("session", found="another session of the round", expected="the one that was started")
        verify_signed(frame, self._federation.compute(sender).key, self._federation_hash)
        return current

    def _plan(self, opened: OpenedAnnouncement, clients: int) -> Plan:
        return plan_round(opened.body, ask(opened.body, self._mechanism, self._limits), clients, self._mechanism)
