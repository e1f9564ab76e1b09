"""The trainer: announces rounds, fixes rosters, and adds what the Compute nodes release (DESIGN §4.1, §4.3, §4.6).

Its rounds and their phases stand in `trainer_round`.
It never sees a contribution: partial sums add up to the one private sum, or to nothing. Only in a local round does it
get what each data node releases, or each client reports, which is private by itself (DESIGN §4.8, §4.9,
`trainer_releases`).

What its rounds may cost in all, it keeps in the federation's `account`; what clients answer is checked in
`trainer_answers`, and what becomes of failed rounds is in `trainer_failures`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dca_proto.core import facts
from dca_proto.core.account import Account, AccountError
from dca_proto.core.codec import decode_body, decode_frame, encode, verify_signed
from dca_proto.core.combine import combine
from dca_proto.core.effects import Address, CancelTimer, Channel, Effect, Forget, Report, Send, SetTimer
from dca_proto.core.errors import PeerError, RoundAborted, UsageError
from dca_proto.core.events import Timer
from dca_proto.core.federation import Federation
from dca_proto.core.ledger import Cost
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
    Release,
    Roster,
    Sealed,
    Signed,
)
from dca_proto.core.params import PROTOCOL_VERSION, Limits, Timing
from dca_proto.core.plan import Plan, plan_round
from dca_proto.core.policy import Allowance
from dca_proto.core.price import Price
from dca_proto.core.round import open_answer
from dca_proto.core.sealing import KEY_BYTES, AgreementKey, Identity, Random
from dca_proto.core.trainer_answers import Answers
from dca_proto.core.trainer_failures import SETTLE, Failures
from dca_proto.core.trainer_records import TrainerRecords
from dca_proto.core.trainer_releases import Releases, members_of
from dca_proto.core.trainer_round import (
    CLOSE,
    DONE,
    END,
    FAILED,
    GATHERING,
    JOIN,
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

_OPEN = (JOINING, STARTING, RUNNING, GATHERING)
KEYS = "keys"


class TrainerActor(Actor):
    """A trainer.

    Args:
        identity: its Ed25519 identity, named in the federation file.
        federation: the file given out of band.
        random: returns random bytes; the operating system's on a real node.
        mechanism: the noise mechanism that its sums use, and its data nodes.
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
        self._releases = Releases(federation, self._mechanism, self._limits)
        stored = TrainerRecords(records, federation, self._mechanism, self._limits)
        self._rounds, self._unreadable = stored.rounds, stored.unreadable
        self._account = Account(account, stored.charges)
        self.ledger = self._account.ledger
        self._failures = Failures(self.ledger, federation, self._timing, random, self._query)

    def phase(self, round_id: bytes) -> str:
        """The phase of a round here: a phase of `TABLE`."""
        known = self._rounds.get(round_id)
        return known.stored.phase if known else NEW

    def roster(self, round_id: bytes) -> tuple[bytes, ...]:
        """The ids of the clients on a round's roster, sorted; none before there is one, or of an unknown round.

        Of a local round, those whose releases are kept, in the order of the result's `nodes` or `reports`.
        """
        known = self._rounds.get(round_id)
        return (known.clients or members_of(known)) if known else ()

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
        open_or_done = {one.id for one in self._rounds.values() if one.stored.phase in (*_OPEN, DONE)}
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
            case Release():
                return self._on_release(sender, frame, body, current, now_ms)
            case _:
                raise PeerError("kind", found=type(body).__name__, expected="Join, Decline, PartialSum or Release")

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
        self.check_job([request.price], now_ms, beside, invited=request.invited)

    def _check_terms(self, request: OpenRound) -> None:
        round_id = request.round_id
        known = round_id in self._rounds or round_id in self._waiting.requests
        if known or round_id in self.ledger or round_id in self._unreadable:
            raise UsageError(f"round {round_id.hex()} is known already; draw a fresh id for each round")
        request.check(self._federation, self._mechanism, self._limits, self._timing)

    def check_job(
        self,
        prices: Iterable[Price],
        now_ms: int,
        beside: Iterable[OpenRound] = (),
        *,
        invited: Collection[bytes] = (),
    ) -> None:
        """Refuse a job of several rounds that would exceed the account, before its first.

        Args:
            prices: of the rounds. beside: as for `check_request`. invited: to each of the rounds; empty: everybody.

        Raises:
            AccountError: with what it would come to, what is allowed and what is left.
        """
        reserved, failed = self._reserved(now_ms, beside), len(self._awaiting(now_ms))
        self._account.require(prices, now_ms, invited=invited, reserved=reserved, failed=failed)

    def _reserved(self, now_ms: int, beside: Iterable[OpenRound]) -> list[Cost]:
        """The cost of every round that is asked for and has neither ended nor been charged."""
        known = [one for one in self._rounds.values() if now_ms < one.opened.body.close_by_ms]
        opened = [one.stored.request for one in known if one.stored.phase in (JOINING, STARTING)]
        coming = [request for request in beside if request.round_id not in self._rounds]
        return self._waiting.reserved([*opened, *coming])

    def _on_open(self, request: OpenRound, now_ms: int) -> list[Effect]:
        self._check_terms(request)
        try:
            self.check_job([request.price], now_ms, invited=request.invited)
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
        stored = StoredRound(step(TABLE, NEW, "call" if request.local else "announce"), request, frame, secret)
        current = self._rounds[request.round_id] = Round.restored(stored, self._federation, self._limits)
        dimension = current.ask(self._mechanism, self._limits).dimension
        first: Effect = SetTimer(Timer(JOIN, request.round_id), body.join_by_ms)
        if request.local:  # no roster to be fixed; and who hears of it, charges
            first = self._charge(request, now_ms)
        return [
            CancelTimer(Timer(KEYS, request.round_id)),
            first,
            current.store(),
            SetTimer(Timer(END, request.round_id), body.close_by_ms),
            current.again(self._timing, self._random, now_ms),
            *current.announced(),
            Report(facts.Announced(request.round_id, request.statistic, dimension)),
        ]

    def _charge(self, request: OpenRound, now_ms: int) -> Effect:
        return self.ledger.charge(request.charge(self.id, self.ledger.next_number, now_ms))

    # --- joins and releases ---------------------------------------------------------------------------------------

    def _on_join(self, sender: bytes, frame: Signed, body: Join, current: Round, now_ms: int) -> list[Effect]:
        phase = step(TABLE, current.stored.phase, "join")
        if sender in current.joins:
            return [self._start(current, sender)] if phase == RUNNING and sender in current.positions else []
        return [self._answers.join(sender, frame, body, current, now_ms), *self._go_on(current, now_ms)]

    def _on_decline(self, sender: bytes, frame: Signed, body: Decline, current: Round, now_ms: int) -> list[Effect]:
        step(TABLE, current.stored.phase, "decline")
        told = self._answers.decline(sender, frame, body, current, now_ms)
        return [told, *self._go_on(current, now_ms)] if told else []

    def _on_release(self, sender: bytes, frame: Signed, body: Release, current: Round, now_ms: int) -> list[Effect]:
        return [*self._releases.take(sender, frame, body, current, now_ms), *self._go_on(current, now_ms)]

    def _go_on(self, current: Round, now_ms: int) -> list[Effect]:
        """When all have answered: the roster, or a local round's result."""
        if not current.has_all():
            return []
        match current.stored.phase:
            case "joining":
                return self._roster(current, now_ms)
            case "gathering":
                return self._gathered(current, now_ms)
            case _:
                return []

    def _gathered(self, current: Round, now_ms: int) -> list[Effect]:
        return self._complete(current, step(TABLE, current.stored.phase, "last release"), now_ms)

    # --- roster and start -----------------------------------------------------------------------------------------

    def _roster(self, current: Round, now_ms: int) -> list[Effect]:
        """Fix the list of joins and tell the Compute nodes."""
        members = sorted(current.joins.items())
        try:
            self._plan(current, len(members))
            terms = current.terms_for(members, now_ms)
        except UsageError as error:
            return self._failures.fail(current, f"{len(members)} clients joined: {error}", now_ms)
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
        refusal = self._account.check([request.price], now_ms, invited=request.invited)
        if refusal is not None:  # it was lowered since the announcement
            return self._failures.fail(current, f"the account allows {refusal.expected}; found {refusal.found}", now_ms)
        assert current.terms is not None
        phase = step(TABLE, current.stored.phase, "all ready")
        current.attempt = 0
        return [
            self._charge(request, now_ms),
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
            return self._failures.fail(current, error.reason, now_ms, error.contributors, error.needed)
        return [current.store(phase=phase), *current.end(self._timing, now_ms), Report(completed)]

    def _combined(self, current: Round) -> facts.RoundCompleted:
        """The result; the same for the same partial sums, however often it is asked for."""
        if current.stored.request.local:
            return self._releases.result(current)
        assert current.terms is not None
        plan, private = self._plan(current, current.terms.clients), self._mechanism.private
        aggregate = combine(current.opened, current.terms, plan, current.partials, private=private)
        return facts.RoundCompleted(current.id, aggregate)

    def _on_abort(self, sender: bytes, frame: Signed, body: Abort, now_ms: int) -> list[Effect]:
        if body.round_id not in self._rounds:
            return []  # aborts are broadcast: another trainer's
        current = self._node_round(sender, frame, body)
        return self._failures.on_abort(current, sender, body, now_ms)

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
        if timer.purpose == END and phase in _OPEN:
            return self._end(current, now_ms)
        if timer.purpose == CLOSE:
            step(TABLE, phase, "close")
            told = self._failures.tell(current, finally_=True) if phase == FAILED else []
            del self._rounds[timer.round_id]
            return [*told, Forget(ROUNDS, timer.round_id), *self._releases.forget(current)]
        return []

    def _end(self, current: Round, now_ms: int) -> list[Effect]:
        """At the close: a local round is done with what it has; any other has failed."""
        if current.stored.phase == GATHERING:
            return self._gathered(current, now_ms)
        return self._failures.fail(current, self._failures.silence(current), now_ms)

    def _resend(self, current: Round, now_ms: int) -> list[Effect]:
        """What is not answered yet, and the timer for the next time."""
        match current.stored.phase:
            case "joining":
                unanswered = current.announced()
            case "gathering":
                unanswered = current.announced() if now_ms < current.opened.body.join_by_ms else []
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
            case "gathering":
                return [end, *self._resend(current, now_ms)]
            case "starting":
                return [*self._resend(current, now_ms), end]
            case "running":
                starts = [self._start(current, client) for client in current.clients]
                return [*starts, *self._resend(current, now_ms), end]
            case "done":
                return [Report(self._combined(current)), *current.end(self._timing, now_ms)]
            case _:
                return [*current.end(self._timing, now_ms), *self._failures.resume(current, now_ms)]

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

    def _plan(self, current: Round, clients: int) -> Plan:
        question = current.ask(self._mechanism, self._limits)
        return plan_round(current.opened.body, question, clients, self._mechanism)
