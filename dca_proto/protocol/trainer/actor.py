"""The trainer announces rounds, closes them, and adds the Compute nodes' partial sums (DESIGN §4.1, §4.7, §4.8).

`round` has its rounds, their phases, and the rule for closing; `answers` handles answers and failed rounds. The trainer
never sees a contribution: it learns the private sum or nothing. In rounds without Compute nodes, it receives each
client's release, which is private by itself (DESIGN §5). The federation's account limits the total cost of its rounds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import ClassVar

from dca_proto.crypto.sealing import KEY_BYTES, AgreementKey, Identity, Random
from dca_proto.errors import PeerError, UsageError
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.protocol import facts
from dca_proto.protocol.actor import NEW, RESEND
from dca_proto.protocol.announcement import open_announcement, open_answer
from dca_proto.protocol.effects import CancelTimer, Channel, Effect, Forget, Report, SetTimer
from dca_proto.protocol.events import Timer
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.ledger import Charge, Ledger
from dca_proto.protocol.params import Limits, Timing
from dca_proto.protocol.policy import BudgetError, BudgetLimit
from dca_proto.protocol.records import Records, loaded
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.trainer.round import (
    CLOSE_BY,
    DEADLINE,
    DECLINES,
    END,
    FORGET,
    QUIET,
    ROUNDS,
    SETTLE,
    WATCH,
    StoredTrainerRound,
    TrainerRound,
    restored_rounds,
)
from dca_proto.protocol.trainer.silence import ASK_NODES, DEBTS, KEYS, LEAVE, Watching
from dca_proto.protocol.trainer.unannounced import WaitingRequests
from dca_proto.protocol.wire import messages as m
from dca_proto.protocol.wire.codec import decode_body, encode, verify_signed
from dca_proto.protocol.wire.kinds import SecureSum
from dca_proto.wording import listed

Ids = Collection[bytes]


class Trainer(Watching):
    """A trainer: announces rounds, and computes their results.

    Args:
        identity: its Ed25519 identity, named in the federation file.
        federation: the federation file given out of band.
        random: returns random bytes; on a real node, the operating system's.
        mechanism: the noise mechanism of its secure sums and node releases.
        account: what all rounds of a period together may cost each client; None sets no limit.
        roll_call: it announces a round only once each node has answered this process lately (DESIGN §4.1).
        records: all (table, key, value) records of its store.
    """

    messages: ClassVar = {
        m.EpochKey: "_on_epoch_key",
        m.Sessions: "_on_sessions",
        m.Progress: "_on_progress",
        m.Sealed: "_on_sealed",
        m.Abort: "_on_abort",
        m.FederationFile: "_on_file",
    }
    answers: ClassVar = {m.Decline: "_on_decline", m.PartialSum: "_on_partial", m.Release: "_on_release",
                                 m.VerifiedPart: "_on_partial"}  # fmt: skip
    """The method that handles each kind of sealed answer."""
    timers: ClassVar = {
        QUIET: "_close_when_complete",
        CLOSE_BY: "_close_late",
        DECLINES: "_on_declines_due",
        END: "_end",
        RESEND: "_resend",
        SETTLE: "_on_settled",
        WATCH: "_on_watch",
        FORGET: "_forget",
    }

    def __init__(
        self,
        identity: Identity,
        federation: Federation,
        *,
        random: Random,
        mechanism: Mechanism | None = None,
        account: BudgetLimit | None = None,
        roll_call: bool = False,
        limits: Limits | None = None,
        timing: Timing | None = None,
        records: Records = (),
    ) -> None:
        records = tuple(records)
        super().__init__(identity, federation, random, mechanism, limits, timing, records)
        self._waiting = WaitingRequests(self._federation, self._timing, roll_call=roll_call)
        self._last_dropped: dict[bytes, str] = {}  # error of the last dropped message, by Compute node or trainer
        self._rounds, self._unreadable = restored_rounds(records, self._federation, self._mechanism, self._limits)
        self._old_debtors = set(self._owing_since())
        self._account = account
        self.ledger = Ledger(loaded(records, LEDGER, Charge).values())

    def contributors(self, round_id: bytes) -> tuple[bytes, ...]:
        """Return the sorted ids of the clients in a round's result, in the order of its `nodes` or `reports`.

        Empty before there is a result, and for an unknown round.
        """
        known = self._rounds.get(round_id)
        return known.contributors if known else ()

    def ended(self, round_id: bytes) -> facts.RoundCompleted | facts.RoundFailed | None:
        """Return the reported outcome of a round; None while it is open or unreported, and for an unknown round."""
        known = self._rounds.get(round_id)
        if known is None:
            return None
        return self._outcome(known) if known.is_done else known.reported

    def unfinished(self, now_ms: int) -> set[bytes]:
        """Return the rounds whose outcome will be reported: open ones, failures that wait for aborts, and results.

        A start reports results again, and settled failures as well, which are not included here.
        """
        open_or_done = {current.id for current in self._rounds.values() if current.is_open or current.is_done}
        return open_or_done | {current.id for current in self._awaiting(now_ms) if current.reported is None}

    def is_settling(self, now_ms: int) -> bool:
        """Return True if the report of a failed round still waits for aborts that may return its charge."""
        return any(current.reported is None for current in self._awaiting(now_ms))

    def _awaiting(self, now_ms: int) -> list[TrainerRound]:
        return [current for current in self._rounds.values() if self._awaits_aborts(current, now_ms)]

    # --- start and messages ----------------------------------------------------------------------------------------

    def _on_start_up(self, now_ms: int) -> list[Effect]:
        """Continue all rounds, and after the clock was set back all requests: their times are of another clock."""
        begun = [*self._file_effects(), *self._recount(now_ms)]
        resumed = [effect for round_id in sorted(self._rounds) for effect in self._resume(round_id, now_ms)]
        self._waiting.forget_future(now_ms)
        requests = self._waiting.requests.values()
        return [*begun, *resumed, *(effect for one in requests for effect in self._wait(one, now_ms))]

    def _on_changed_file(self, now_ms: int) -> list[Effect]:
        """Fail waiting requests for other Compute nodes; the nodes themselves abort open rounds. Count aborts anew."""
        return [*(Report(fact) for fact in self._waiting.adopt(self._federation)), *self._recount(now_ms)]

    def _on_command(self, request: object, now_ms: int) -> list[Effect]:
        if not isinstance(request, OpenRound):
            raise UsageError(f"a trainer takes OpenRound, found {type(request).__name__}")
        return self._on_open(request, now_ms)

    def _on_epoch_key(self, sender: bytes, frame: m.Signed, body: m.EpochKey, now_ms: int) -> list[Effect]:
        self._waiting.note(sender, frame, now_ms)
        announced = [*self._remind(sender, now_ms), *self._on_paid(now_ms), *self._announce_waiting(now_ms)]
        is_awaited = self._waiting.awaits(sender)
        is_due = is_awaited and self._pace.is_due(sender + frame.signature, now_ms)  # a copy causes no question
        return [*announced, *self._ask([sender] if is_due else [], now_ms)]

    def _on_sessions(self, sender: bytes, frame: m.Signed, body: m.Sessions, now_ms: int) -> list[Effect]:
        verify_signed(frame, self._federation.compute(sender).key, self._federation_id)
        self._waiting.note_sessions(sender, body, now_ms)
        return self._announce_waiting(now_ms)

    def _on_sealed(self, sender: bytes, frame: m.Sealed, now_ms: int) -> list[Effect]:
        current = self._known_round(frame.round_id)
        answer = self._on_answer(sender, open_answer(frame, current.reply_key, current.hash), current, now_ms)
        return [*answer, *self._on_paid(now_ms)]

    def _on_answer(self, sender: bytes, frame: m.Signed, current: TrainerRound, now_ms: int) -> list[Effect]:
        body = decode_body(frame.body)
        return self._method(self.answers, body)(sender, frame, body, current, now_ms)

    def _on_decline(
        self, sender: bytes, frame: m.Signed, body: m.Decline, current: TrainerRound, now_ms: int
    ) -> list[Effect]:
        taken = self._take_decline(sender, frame, body, current, now_ms)
        ended = self._done_when_all(current, now_ms)
        return [*taken, *(ended or self._return_declined(current)), *self._tell_later(current, now_ms)]

    def _on_release(
        self, sender: bytes, frame: m.Signed, body: m.Release, current: TrainerRound, now_ms: int
    ) -> list[Effect]:
        taken = self._take_release(sender, frame, body, current, now_ms)
        return [*taken, *self._done_when_all(current, now_ms)]

    # --- announcement ---------------------------------------------------------------------------------------------

    def check_request(self, request: OpenRound, now_ms: int, others: Iterable[OpenRound] = ()) -> None:
        """Check in advance what every participant will check, and that the account has room for the round.

        The `others` are requests that are not yet with this actor; the account must have room for them, too. Raises
        `UsageError` for an invalid round, `BudgetError` if the account has no room now.
        """
        self._check_terms(request)
        self.check_job([request.cost], now_ms, others, invited=request.invited)

    def _check_terms(self, request: OpenRound) -> None:
        round_id = request.round_id
        known = round_id in self._rounds or round_id in self._waiting.requests
        if known or round_id in self.ledger or round_id in self._unreadable:
            raise UsageError(f"round {round_id.hex()} is known already; draw a fresh id for each round")
        wrong = [one.hex() for one in request.repeats if one in self._rounds and not self._may_repeat(one)]
        if wrong:
            raise UsageError(f"round {', '.join(wrong)} cannot be repeated: it was not cancelled, or keeps its charge")
        self._present(request).check(self._federation, self._mechanism, self._limits, self._timing)

    def check_job(
        self, costs: Iterable[PrivacyCost], now_ms: int, others: Iterable[OpenRound] = (), *, invited: Ids = ()
    ) -> None:
        """Refuse a job of several rounds before its first round if together they would exceed the account.

        `costs` are the rounds' costs. `invited` are the clients of each round; if it is empty, everybody. Raises
        `BudgetError`, which names the total, the limit and what is left.
        """
        if self._account is None:
            return
        unannounced = [request for request in others if request.round_id not in self._rounds]
        reserved, failed = self._waiting.reserved(unannounced), len(self._awaiting(now_ms))
        self._account.require(costs, self.ledger, now_ms, invited=invited, reserved=reserved, failed=failed)

    def _on_open(self, request: OpenRound, now_ms: int) -> list[Effect]:
        self._check_terms(request)
        try:
            self.check_job([request.cost], now_ms, invited=request.invited)
        except BudgetError as refusal:  # no room any more since `check_request`; other rounds continue
            return [Report(facts.RoundFailed(request.round_id, str(refusal), None, None))]
        if not request.answers_expected:
            self._waiting.forget_sessions(now_ms - self._timing.progress_ms)
        request, begun = self._begin(request, now_ms)
        announced = self._announce_waiting(now_ms)  # an earlier request may have become ready, too
        if request.round_id not in self._waiting.requests:
            return announced
        return [*announced, *begun, *self._wait(request, now_ms)]

    def _drop(self, error: PeerError, sender: bytes) -> Report:
        if self._federation.is_server(sender):
            self._last_dropped[sender] = str(error)
        return super()._drop(error, sender)

    def _announce_waiting(self, now_ms: int) -> list[Effect]:
        """Announce every waiting round for which all keys are known now."""
        ready = self._waiting.take_ready(now_ms)
        return [effect for request in ready for effect in self._announce(request, now_ms)]

    def _announce(self, request: OpenRound, now_ms: int) -> list[Effect]:
        secret, lost = self._random(KEY_BYTES), self._waiting.take_lost(request.round_id)
        public, epochs = AgreementKey(secret).public, self._waiting.keys_of(request)
        cancelled = [CancelTimer(Timer(purpose, request.round_id)) for purpose in (KEYS, ASK_NODES, LEAVE, DEBTS)]
        try:
            file = (self._federation.number, self._federation.hash)
            own = (self.id, file, self._mechanism)
            latest_ms = self._waiting.lasting_ms(request)
            body = request.announcement(*own, epochs, public, now_ms, self._aborts_of(request), latest_ms)
            p = self._federation.p if request.computes else 0
            stored = StoredTrainerRound(NEW, request, self._sign(body), secret, now_ms, colluding=p, lost=lost)
            current = TrainerRound(stored, open_announcement(stored.announcement, self._federation, self._limits))
            dimension = current.opened.validated(self._mechanism, self._limits).dimension
        except (UsageError, PeerError, TypeError, OverflowError) as error:  # too few sessions, or it cannot be encoded
            return [*cancelled, Report(facts.RoundFailed(request.round_id, str(error), None, None))]
        self._rounds[request.round_id] = current
        return [
            *cancelled,
            self.ledger.charge(request.charge(self.id, self.ledger.next_number, now_ms)),
            current.advance("announce"),
            *self._deadlines(current, now_ms),
            current.resend_timer(self._timing, self._random(1), now_ms),
            *self._watch(current, now_ms),
            *current.announced(),
            Report(
                facts.Announced(request.round_id, request.statistic, dimension, current.computes, p, (*current.lost,))
            ),
        ]

    def _deadlines(self, current: TrainerRound, now_ms: int) -> list[Effect]:
        if current.stored.cancelled:
            return [current.timer(END, now_ms + self._timing.settle_ms)]
        end = current.timer(END, current.end_ms)
        if not current.is_summed or not current.takes(CLOSE_BY):
            return [end]
        return [current.timer(CLOSE_BY, current.opened.body.close_by_ms), end]

    # --- answers, arrivals and the close --------------------------------------------------------------------------

    def _done_when_all(self, current: TrainerRound, now_ms: int) -> list[Effect]:
        """Complete a round without Compute nodes once all clients have answered."""
        if current.is_summed or not current.takes("last release") or not current.has_all():
            return []
        return self._complete(current, "last release", now_ms)

    def _on_progress(self, sender: bytes, frame: m.Signed, body: m.Progress, now_ms: int) -> list[Effect]:
        current = self._node_round(sender, frame, body)
        current.step("progress")
        current.heard[sender] = now_ms
        if current.is_open:  # anybody can repeat those of rounds that are over
            self._waiting.heard[sender] = now_ms
        self._note_report(current, sender, body)
        has_forgotten = body.declined < current.arrivals.declined.get(sender, (0, 0))[0]  # the node has started again
        is_new = current.arrivals.note(sender, body.count, now_ms, (body.declined, body.twice))
        again = has_forgotten and self._pace.is_due(current.id + sender, now_ms)
        told = self._tell(current, [sender], again=True) if again else []
        if not is_new:
            return told
        arrived = facts.Arrived(current.id, current.arrivals.total, current.stored.request.answers_expected)
        return [*told, Report(arrived), *self._close_when_complete(current, now_ms)]

    def _tell_later(self, current: TrainerRound, now_ms: int) -> list[Effect]:
        """Tell the nodes of new declines, at most every `progress_ms`."""
        if not current.takes(DECLINES) or not current.is_summed or current.is_telling:
            return []
        current.is_telling = True
        return [current.timer(DECLINES, now_ms + self._timing.progress_ms)]

    def _on_declines_due(self, current: TrainerRound, now_ms: int) -> list[Effect]:
        current.is_telling = False
        return self._tell(current, current.computes)

    def _tell(self, current: TrainerRound, nodes: Iterable[bytes], *, again: bool = False) -> list[Effect]:
        """Tell those of the nodes that do not know it yet, or all of them `again`, which clients have declined."""
        told = current.arrivals.declined
        effects: list[Effect] = []
        for node, clients in current.declined_of.items():
            if node in nodes and (again or told.get(node, (0, 0))[0] < len(clients)):
                body = m.Declines(current.id, current.hash, b"".join(sorted(clients)))
                effects.append(current.send(encode(self._sign(body)), Channel.COMPUTE, node))
        return effects

    def _close_when_complete(self, current: TrainerRound, now_ms: int) -> list[Effect]:
        """Close the round if there is a reason to; otherwise check again when arrivals are quiet."""
        kind = current.opened.body.kind
        if not current.takes("close") or not isinstance(kind, SecureSum) or current.stored.cancelled:
            return []
        arrivals = current.arrivals
        why = arrivals.reason(current.expected, kind.n_min, kind.n_max, self._timing, now_ms)
        if why is not None:
            return self._close(current, why, now_ms)
        if arrivals.total < kind.n_min and not arrivals.has_all(current.expected):
            return []
        return [current.timer(QUIET, arrivals.quiet_ms(self._timing))]

    def _close_late(self, current: TrainerRound, now_ms: int) -> list[Effect]:
        return self._close(current, DEADLINE, now_ms)

    def _close(self, current: TrainerRound, why: str, now_ms: int) -> list[Effect]:
        current.attempt = 0
        return [
            current.advance("close"),
            *current.cancel(QUIET, CLOSE_BY),
            *self._ask_nodes(current, m.Close(current.id, current.hash)),
            current.resend_timer(self._timing, self._random(1), now_ms),
            Report(facts.Closed(current.id, current.arrivals.total, why)),
        ]

    def _on_abort(self, sender: bytes, frame: m.Signed, body: m.Abort, now_ms: int) -> list[Effect]:
        if body.round_id not in self._rounds:
            return []  # aborts are broadcast: this one belongs to another trainer's round
        taken = self._take_abort(self._node_round(body.compute, frame, body), frame, body, now_ms)
        return [*taken, *self._on_paid(now_ms)]

    # --- time and restarts ----------------------------------------------------------------------------------------

    def _on_timer(self, timer: Timer, now_ms: int) -> list[Effect]:
        if timer.purpose == ASK_NODES:
            waiting = self._waiting.requests.get(timer.round_id)
            return [*self._ask_for(waiting, now_ms), self._waits_for_keys(waiting, now_ms)] if waiting else []
        if timer.purpose == LEAVE:
            return self._leave_out(timer.round_id, now_ms)
        if timer.purpose == DEBTS:
            return self._on_debts(timer.round_id, now_ms)
        if timer.purpose != KEYS:
            return super()._on_timer(timer, now_ms)
        waiting = self._waiting.requests.get(timer.round_id)
        if waiting is not None and now_ms < (until_ms := self._waiting.until_ms(waiting, now_ms)):
            return [SetTimer(timer, until_ms)]  # all nodes have answered, but something is missing
        failure = self._waiting.give_up(timer.round_id, now_ms, self._last_dropped)
        return [Report(failure)] if failure else []

    def _on_settled(self, current: TrainerRound, now_ms: int) -> list[Effect]:
        return self._report_failure(current)

    def _forget(self, current: TrainerRound, now_ms: int) -> list[Effect]:
        current.step(FORGET)
        ended = self._report_failure(current, finally_=True) if current.takes("abort") else []
        del self._rounds[current.id]
        self._pace.forget(current.id)
        return [*ended, Forget(ROUNDS, current.id), *current.forgotten_releases()]

    def _end(self, current: TrainerRound, now_ms: int) -> list[Effect]:
        """At the deadline, a round without Compute nodes completes with the releases it has; a secure sum fails."""
        if not current.is_summed:
            return self._complete(current, "last release", now_ms)
        late_ms = current.opened.body.commit_by_ms + self._timing.abort_grace_ms
        if current.partials and now_ms < late_ms:  # nodes that have answered may release until then
            return [current.timer(END, late_ms)]
        if current.stored.cancelled:
            return self._fail(current, current.stored.cancelled, now_ms)
        heard = current.arrivals.counts if current.takes("close") else current.partials
        lost = self._waited_for(current, now_ms) or tuple(node for node in current.computes if node not in heard)
        names = listed([self._federation.name_of(node) for node in lost])
        work = None if current.takes("close") else self._validated(current).work
        busy = "" if work is None else f"; it had to check {work.in_words}"
        up = "is it up, and is its clock" if len(lost) == 1 else "are they up, and are their clocks"
        reason = f"no answer came from {names} until the end of the round{busy}; {up} right?"
        if current.partials:
            return [current.store(silent=lost), *self._fail(current, reason, now_ms)]
        return self._cancel(current, reason, now_ms, lost)

    def _resend(self, current: TrainerRound, now_ms: int) -> list[Effect]:
        """Resend messages without an answer, and set the timer for the next resend."""
        if current.is_open and current.stored.cancelled:
            again = self._query(current)  # nobody shall pay for it any more
        elif current.takes("close"):
            is_waiting = now_ms < current.opened.body.close_by_ms
            told = self._tell(current, current.computes)
            again = [*(current.announced() if is_waiting else []), *told, *self._query(current)]
        elif current.is_open:
            close = m.Close(current.id, current.hash)
            is_waiting = now_ms < current.opened.body.commit_by_ms
            resent = [*current.announced_to_nodes(), *self._ask_nodes(current, close)] if is_waiting else []
            again = [*resent, *self._query(current)]
        else:
            return self._ask_again(current, now_ms)
        return [*again, current.resend_timer(self._timing, self._random(1), now_ms)]

    def _resume(self, round_id: bytes, now_ms: int) -> list[Effect]:
        current = self._rounds[round_id]
        if current.is_open:
            current.forget_future(now_ms)
            again = [*self._resend(current, now_ms), *self._deadlines(current, now_ms), *self._watch(current, now_ms)]
            return [*again, *self._close_when_complete(current, now_ms)]
        if current.is_done:
            return [Report(self._outcome(current)), *current.end(self._timing, now_ms)]
        return [*current.end(self._timing, now_ms), *self._resume_failed(current, now_ms)]
