"""How a trainer handles clients' answers and failed rounds (DESIGN §4.3, §4.8, §5).

The trainer checks an answer before it changes anything. In rounds without Compute nodes, it stores the first release of
each client durably before it acknowledges it. When all clients have answered, or at `commit_by`, the stored releases
are the result.

The first abort ends a round. Aborts of p + 1 Compute nodes bring its charge back. The trainer reports the failure once
it knows the cost, since these usually follow within moments: the charge has come back, or so many nodes have released
that it stays. It waits at most `settle_ms`, or `hopeless_ms` if enough nodes are not silent. It asks for missing aborts
for the retention, and again at each start: a charge also comes back if the trainer or a node was offline.

The charge of a round without Compute nodes comes back if every invited client has signed that it declines. In a round
open to all clients, it comes back if as many have signed as are expected. If another client releases later, the charge
counts again (DESIGN §5).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import cached_property
from itertools import islice

import msgspec

from dca_proto.errors import ImplausibleSum, PeerError, RoundAborted
from dca_proto.protocol import facts
from dca_proto.protocol.actor import BaseActor
from dca_proto.protocol.effects import Channel, Effect, Persist, Report
from dca_proto.protocol.ledger import Ledger
from dca_proto.protocol.lists import PEER_SILENT, TOO_FEW
from dca_proto.protocol.names import KnownNames
from dca_proto.protocol.params import Timing
from dca_proto.protocol.policy import LASTING
from dca_proto.protocol.release import check_release, combine, receipt_of, result_of
from dca_proto.protocol.trainer.round import CLOSE_BY, END, QUIET, RELEASES, SETTLE, WATCH, TrainerRound
from dca_proto.protocol.trainer.unannounced import WaitingRequests
from dca_proto.protocol.validation import ValidatedRound
from dca_proto.protocol.verified import failed_in
from dca_proto.protocol.waiting import Waiting
from dca_proto.protocol.wire.codec import body_of, encode, verify_signed
from dca_proto.protocol.wire.messages import (
    Abort,
    Cancel,
    Close,
    Decline,
    PartialSum,
    Query,
    Release,
    Signed,
    VerifiedPart,
)
from dca_proto.quorum import LostNode, Quorum
from dca_proto.wording import listed, unanswered

ABORT_BYTES_MAX = 1024
"""Size of an abort that a repeat's announcement may carry: one without evidence fits."""
_REASONS_MAX = 16  # how many different reasons of declines are kept


class Answering(BaseActor[TrainerRound]):
    """The part of a trainer that handles declines, releases and aborts, and ends rounds that fail.

    Attributes:
        ledger: the federation's account: a charge for each announced round, even if no limit is set.
    """

    ledger: Ledger
    _waiting: WaitingRequests

    @cached_property
    def _names(self) -> KnownNames:
        return KnownNames(self._federation.name_key(self._identity))

    def client_name(self, client: bytes) -> str:
        return self._names.get(client)

    def waiting(self, now_ms: int, most: int) -> list[Waiting]:
        unannounced = [
            Waiting(one.round_id, one.statistic, "unannounced", None, self._waiting.lacking(one, now_ms))
            for one in islice(self._waiting.requests.values(), most)
        ]
        return [*unannounced, *super().waiting(now_ms, most - len(unannounced))]

    @property
    def ahead_ms(self) -> dict[bytes, float]:
        """By how much each Compute node's clock was ahead of this one at its last answer, in milliseconds."""
        return self._waiting.ahead_ms

    def ended_rounds(self, now_ms: int) -> frozenset[bytes]:
        """Return the rounds in memory that have a result, or failed and wait for no abort."""
        ended = (one for one in self._rounds.values() if not one.is_open)
        return frozenset(one.id for one in ended if one.is_done or not self._awaits_aborts(one, now_ms))

    def _waits(self, current: TrainerRound, now_ms: int) -> Waiting:
        """Wait for the nodes' sums; or without nodes, for the invited clients."""
        statistic, until_ms = current.stored.request.statistic, current.end_ms
        if current.is_summed:
            missing = tuple(node for node in current.computes if node not in current.partials)
            missing = tuple(node for node in missing if node in current.told) or missing  # the others wait for these
            arrived = current.arrivals.total
        else:
            missing, arrived = tuple(sorted(current.invited - current.answered)), len(current.releases)
        return Waiting(current.id, statistic, current.phase, until_ms, missing, arrived, current.expected)

    def _take_decline(
        self, sender: bytes, frame: Signed, body: Decline, current: TrainerRound, now_ms: int
    ) -> list[Effect]:
        """Record a client's decline; ignore a repeated one. Raises `PeerError`."""
        current.step("decline")
        current.check_invited(sender)
        client = self._federation.check_certificate(body.certificate, now_ms)
        verify_signed(frame, body.certificate.client_key, self._federation.id)
        if sender != client or body.announcement_hash != current.hash:
            raise PeerError("sender", found=sender.hex(), expected=f"{client.hex()}, about this announcement")
        if client in current.declined:
            return []
        current.note_decline(client, body.reason)
        self._names.learn(body.certificate)
        reason = f"{body.reason}: found {body.found}; accepts {body.expected}"
        if reason in current.decline_reasons or len(current.decline_reasons) < _REASONS_MAX:
            current.decline_reasons[reason] += 1
        return [Report(facts.Declined(current.id, client, body.reason, body.found, body.expected))]

    def _take_release(
        self, sender: bytes, frame: Signed, body: Release, current: TrainerRound, now_ms: int
    ) -> list[Effect]:
        """Store a client's first release, and acknowledge it; acknowledge a repeated one again. Raises `PeerError`."""
        current.check_invited(sender)
        if current.is_summed:
            raise PeerError("kind", found="a release in a secure sum", expected="a contribution, to its holder")
        kept = current.releases.get(sender)
        acknowledged = current.send(encode(receipt_of(body)), Channel.CLIENT, sender)
        if kept is not None:
            if kept != frame:
                raise PeerError("known-release", found="another release", expected="the one that is kept")
            current.step("repeated release")
            return [acknowledged] if self._pace.is_due(current.id + sender, now_ms) else []
        is_late = current.takes("late release")
        current.step("late release" if is_late else "release")
        client = check_release(frame, body, current.opened, self._validated(current), self._federation, now_ms)
        if sender != client:
            raise PeerError("sender", found=sender.hex(), expected=client.hex())
        if is_late:  # the notice stops the client's resends, and frees one of its open rounds
            late = current.send(encode(receipt_of(body, late=True)), Channel.CLIENT, sender)
            answer = [late] if self._pace.is_due(current.id + sender, now_ms) else []
            return [*(() if current.is_done else self._on_late_release(current)), *answer]
        if len(current.releases) >= self._limits.clients_max:
            raise PeerError("releases", found=f"{len(current.releases)} releases", expected="fewer")
        current.releases[client] = frame
        current.answered.add(client)
        self._names.learn(body.certificate)
        fact = facts.ReleaseKept(current.id, client, body.rows, len(current.releases))
        return [Persist(RELEASES, current.id + client, encode(frame)), acknowledged, Report(fact)]

    def _released(self, current: TrainerRound) -> facts.RoundCompleted:
        """Return the sum of the stored releases; the same releases always give the same result.

        It leaves out data nodes without rows. Raises `RoundAborted` if no release is left.
        """
        members = [item for item in sorted(current.releases.items()) if body_of(item[1], Release).rows]
        if not members:
            raise RoundAborted(current.no_release_words)
        aggregate, current.contributors = result_of(
            current.opened, self._validated(current), members, private=self._mechanism.private
        )
        return facts.RoundCompleted(current.id, aggregate)

    def _validated(self, current: TrainerRound) -> ValidatedRound:
        return current.opened.validated(self._mechanism, self._limits)

    # --- partial sums and results (§4.7) ------------------------------------------------------------------------------

    def _on_partial(
        self, sender: bytes, frame: Signed, body: PartialSum, current: TrainerRound, now_ms: int
    ) -> list[Effect]:
        self._node_round(sender, frame, body)
        if isinstance(body, VerifiedPart) is not current.opened.body.kind.is_verified:
            raise PeerError("kind", found=type(body).__name__, expected="a partial sum of a round of this kind")
        if sender in current.partials:
            current.step("repeated partial")
            return []  # the first partial sum counts
        is_late = current.takes("late partial")
        last = not is_late and len(current.partials) + 1 == len(current.computes)
        event = "late partial" if is_late else "last partial" if last else "partial"
        current.step(event)
        current.partials[sender], self._waiting.heard[sender] = body, now_ms
        stored = current.store(partials=(*current.stored.partials, (sender, frame)))
        if last:
            return self._complete(current, event, now_ms)
        return [stored, *(self._on_late_partial(current, now_ms) if is_late else [])]

    def _on_late_partial(self, current: TrainerRound, now_ms: int) -> list[Effect]:
        """Handle a partial sum after the failure: it may be the last one, and then there is a result after all.

        If the charge has come back, there never is one, and the sum shows only that its node owes nothing.
        """
        is_first, stored = not current.stored.released, current.store(released=True)
        try:
            is_whole = len(current.partials) == len(current.computes) and not current.stored.aborted_by
            completed = self._combined(current) if is_whole else None
        except RoundAborted:
            completed = None  # what they sent does not fit together
        if completed is not None:
            return [stored, current.advance("last partial"), *current.end(self._timing, now_ms), Report(completed)]
        is_final = is_first and not self._awaits_aborts(current, now_ms)
        return [stored, *(self._report_failure(current) if is_final else [])]

    def _complete(self, current: TrainerRound, event: str, now_ms: int) -> list[Effect]:
        try:
            completed = self._combined(current)
        except RoundAborted as error:
            counts = (error.contributors, error.needed)
            return self._fail(current, error.reason, now_ms, *counts, implausible=isinstance(error, ImplausibleSum))
        ended = [current.advance(event), *current.end(self._timing, now_ms)]
        return [*ended, *current.absent(), Report(completed)]

    def _outcome(self, current: TrainerRound) -> facts.RoundCompleted | facts.RoundFailed:
        """Return a completed round's result; a failure if an earlier version completed it with an impossible sum."""
        try:
            return self._combined(current)
        except RoundAborted as error:
            quorum = self._quorum(current)
            return facts.RoundFailed(current.id, error.reason, None, None, implausible=True, quorum=quorum)

    def _combined(self, current: TrainerRound) -> facts.RoundCompleted:
        """Return the result; the same partial sums always give the same result."""
        if not current.is_summed:
            return self._released(current)
        aggregate, current.contributors = combine(
            current.opened,
            self._validated(current),
            current.partials,
            expected=current.stored.request.answers_expected,
            private=self._mechanism.private,
        )
        return facts.RoundCompleted(current.id, dataclasses.replace(aggregate, quorum=self._quorum(current)))

    def _quorum(self, current: TrainerRound) -> Quorum:
        """Return a round's Compute nodes, and those that it and the rounds that it repeats have lost."""
        name_of, before = self._federation.name_of, (self._rounds.get(one) for one in current.stored.request.repeats)
        rounds = (*(one for one in before if one is not None), current)
        lost = dict(entry for one in reversed(rounds) for entry in one.lost.items())  # of each node, the first loss
        named = (LostNode(name_of(node), since_ms) for node, since_ms in lost.items())
        nodes = tuple(map(name_of, current.computes))
        return Quorum(nodes, current.stored.colluding, tuple(sorted(named, key=lambda one: (one.since_ms, one.node))))

    # --- rounds that fail ---------------------------------------------------------------------------------------------

    @cached_property
    def _patient(self) -> Timing:
        """Timing with a back-off that grows to the time for which nodes keep their aborts."""
        return msgspec.structs.replace(self._timing, resend_max_ms=self._timing.retention_ms)

    def _awaits_aborts(self, current: TrainerRound, now_ms: int) -> bool:
        """Return True if missing aborts may still bring a failed round's charge back."""
        until_ms = current.opened.body.commit_by_ms + self._timing.retention_ms
        may_return = current.takes("abort") and self._may_have_enough(current) and now_ms < until_ms
        return may_return and current.id in self.ledger and current.is_summed

    def _named(self, nodes: Iterable[bytes]) -> frozenset[bytes]:
        """Return those of the nodes that the federation file names."""
        return self._federation.computes_among(nodes)

    def _needed(self, current: TrainerRound) -> int:
        """Return how many nodes' aborts return the charge (§4.8): one of them is honest."""
        return 1 + max(current.stored.colluding, self._federation.p)

    def _may_have_enough(self, current: TrainerRound) -> bool:
        """Return True if the aborts of those that have not released return the charge, whoever else has released."""
        return self._suffices(current, (node for node in current.computes if node not in current.partials))

    def _suffices(self, current: TrainerRound, nodes: Iterable[bytes]) -> bool:
        """Return True if these nodes' aborts return the charge."""
        return len(self._named(nodes)) >= self._needed(current)

    def _is_returned(self, current: TrainerRound) -> bool:
        return current.id in self.ledger and not self.ledger.is_charged(current.id)

    def _fail(
        self,
        current: TrainerRound,
        reason: str,
        now_ms: int,
        contributors: int | None = None,
        needed: int | None = None,
        aborted_by: tuple[bytes, ...] = (),
        *,
        implausible: bool = False,
    ) -> list[Effect]:
        """End a round without a result; the other arguments are fields of `StoredTrainerRound`."""
        stored = current.advance(
            "fail",
            aborted_by=aborted_by,
            released=bool(current.partials),
            reason=reason,
            contributors=contributors,
            needed=needed,
            implausible=implausible,
        )
        ended = [stored, *current.end(self._timing, now_ms)]
        return [*ended, *(self._return_declined(current) or self._settle(current, now_ms))]

    def _return_declined(self, current: TrainerRound) -> list[Effect]:
        """Return the charge of a failed round if all clients have declined."""
        is_over = current.takes("all declined") and not current.stored.released and current.all_declined()
        return self._give_back(current, "all declined") if is_over else []

    def _on_late_release(self, current: TrainerRound) -> list[Effect]:
        """Handle a release after the failure: the charge stays, or counts again if it had come back."""
        if current.stored.released:
            return []
        had_returned = self._is_returned(current)
        stored = current.advance("late release", released=True)
        if not had_returned:
            return [stored]
        current.reported = None
        return [self.ledger.count_again(current.id), stored, *self._report_failure(current)]

    def _settle(self, current: TrainerRound, now_ms: int) -> list[Effect]:
        """Report a failed round, after a wait for aborts if they can bring its charge back.

        The wait is longer if enough nodes are not silent: one may be rebooting, and the round can be repeated after it.
        """
        if not self._awaits_aborts(current, now_ms):
            return self._report_failure(current)
        current.attempt = 0
        silent = current.stored.silent
        is_hopeful = silent and self._suffices(current, {*current.computes}.difference(silent, current.partials))
        settled = current.timer(SETTLE, now_ms + (self._timing.hopeless_ms if is_hopeful else self._timing.settle_ms))
        return [settled, current.resend_timer(self._patient, self._random(1), now_ms)]

    def _resume_failed(self, current: TrainerRound, now_ms: int) -> list[Effect]:
        """Ask for aborts again after a start. Report a settled failure again: the last run may not have reported it."""
        if not self._awaits_aborts(current, now_ms):
            return self._report_failure(current, finally_=True)
        return [*self._query(current), *self._settle(current, now_ms)]

    def _ask_again(self, current: TrainerRound, now_ms: int) -> list[Effect]:
        """Ask for aborts again, if they can still bring the charge back."""
        if not self._awaits_aborts(current, now_ms):
            return []
        return [*self._query(current), current.resend_timer(self._patient, self._random(1), now_ms)]

    def _query(self, current: TrainerRound) -> list[Effect]:
        """Ask each Compute node for its final message if that is missing; in a cancelled round, to abort."""
        about = (current.id, current.hash)
        is_cancelled = bool(current.stored.cancelled)
        return self._ask_nodes(current, Cancel(*about, current.stored.announcement) if is_cancelled else Query(*about))

    def _cancel(self, current: TrainerRound, reason: str, now_ms: int, silent: tuple[bytes, ...] = ()) -> list[Effect]:
        """End a round: ask all nodes to abort. If they have all released instead, their sum is the result (§4.8)."""
        current.attempt = 0
        stored = current.store(cancelled=reason, silent=silent)
        again = current.resend_timer(self._timing, self._random(1), now_ms)
        end = current.timer(END, now_ms + self._timing.settle_ms)
        return [stored, *current.cancel(QUIET, CLOSE_BY, WATCH), *self._query(current), again, end]

    def _ask_nodes(self, current: TrainerRound, body: Close | Query | Cancel) -> list[Effect]:
        """Send a message to every Compute node whose partial sum or abort is missing."""
        payload = encode(self._sign(body))
        ended = {*current.partials, *current.stored.aborted_by}
        return [current.send(payload, Channel.COMPUTE, node) for node in current.computes if node not in ended]

    def _take_abort(self, current: TrainerRound, frame: Signed, body: Abort, now_ms: int) -> list[Effect]:
        """Handle a node's signed abort: the first ends the round, that of the p + 1st node returns the charge."""
        stored, node = current.stored, body.compute
        if node in stored.aborted_by or current.is_done:
            current.step("late abort")
            return []  # one of each node is kept, in a round without a result
        self._waiting.heard[node] = now_ms
        if len(frame.body) <= ABORT_BYTES_MAX:
            current.store(aborts=(*stored.aborts, frame))
        refused = body.reason in LASTING and not stored.cancelled
        by = self._federation.compute(node).name
        reason = stored.cancelled or f"{by} aborted the round: {body.detail} ({body.reason})"
        reason += current.late_words(self._validated(current), body.detail) if body.reason == TOO_FEW else ""
        if current.is_open:
            if body.reason == PEER_SILENT and not (stored.silent or stored.cancelled):
                silent = current.blame(node, self._timing.silent_ms)
                waited_ms = now_ms - min(map(current.last_heard_ms, silent), default=0)
                named = unanswered([*map(self._federation.name_of, silent)], waited_ms)
                plain = silent and self._validated(current).work is None  # else the silent ones may have been busy
                reason = f"{named}, so {by} aborted the round ({body.reason})" if plain else reason
            contributors, needed = (body.contributors, body.needed) if body.reason == TOO_FEW else (None, None)
            current.store(refused=refused)
            return self._fail(current, reason, now_ms, contributors, needed, (node,))
        if refused and not stored.refused and current.reported is None:  # the first abort had another cause
            current.store(refused=True, reason=reason)
        aborted_by = (*stored.aborted_by, node)
        if not self._awaits_aborts(current, now_ms):
            current.step("late abort")
            return [current.store(aborted_by=aborted_by)]
        if self._suffices(current, aborted_by):
            return self._give_back(current, "last abort", aborted_by=aborted_by)
        return [current.advance("abort", aborted_by=aborted_by)]

    def _recount(self, now_ms: int) -> list[Effect]:
        """Return the charges for which the aborts suffice by the present federation file."""
        enough = [one for one in self._rounds.values() if self._suffices(one, one.stored.aborted_by)]
        waiting = [one for one in enough if self._awaits_aborts(one, now_ms)]
        return [effect for one in waiting for effect in self._give_back(one, "last abort")]

    def _give_back(self, current: TrainerRound, event: str, **changes: object) -> list[Effect]:
        """Return the charge of a failed round from which nothing was or will be released, and report that."""
        stored = current.advance(event, **changes)
        returned = self.ledger.give_back(current.id)
        return [returned, stored, Report(facts.ChargeReturned(current.id)), *self._report_failure(current)]

    def _report_failure(self, current: TrainerRound, *, finally_: bool = False) -> list[Effect]:
        """Report once that a round failed, and if its charge came back; `finally_`: no abort is asked for any more."""
        if current.reported is not None:
            return []
        stored = current.stored
        self._waiting.forget_heard({*stored.silent} - {*stored.aborted_by, *current.partials})
        figures = (None, None) if stored.released else (stored.contributors, stored.needed)
        advice = "" if finally_ else ": `dca trainer FILE --resume` asks again"
        declined = current.too_many_declined() if current.is_summed else self._is_returned(current)
        reason = stored.reason + self._charge_status(current, advice)
        repeatable = bool(stored.silent) and self._is_returned(current)
        unproven = failed_in(stored.reason) if figures != (None, None) and current.opened.body.kind.is_verified else 0
        hopeless = current.too_many_unproven(unproven)
        flags = {"declined": declined, "refused": stored.refused, "implausible": stored.implausible}
        flags |= {"repeatable": repeatable, "hopeless": hopeless}
        lost = tuple(self._federation.name_of(node) for node in stored.silent if node in self._named([node]))
        quorum = self._quorum(current)
        current.reported = facts.RoundFailed(
            current.id, reason, *figures, **flags, lost=lost, quorum=quorum, unproven=unproven
        )
        return [*current.cancel(SETTLE), Report(current.reported)]

    def _charge_status(self, current: TrainerRound, advice: str) -> str:
        if current.id not in self.ledger:
            return ""
        if self._is_returned(current):
            return "; its charge came back to the account"
        if not current.is_summed:
            return "; clients may have released without being heard, so the account keeps the charge"
        if current.stored.released and not self._may_have_enough(current):
            return "; a Compute node has released its part, so the account and the clients keep the charge"
        if not self._may_have_enough(current):
            present, needed = len(self._named(current.computes)), self._needed(current)
            why = f"{self._federation.title} has {present} of the round's Compute nodes, and aborts of {needed} return"
            return f"; {why} the charge, so the account keeps it for good"
        missing = self._needed(current) - len(self._named(current.stored.aborted_by))
        silent = [node for node in current.computes if node not in current.stored.aborted_by]
        who = f"{missing} of " * (missing < len(silent)) + listed([*map(self._federation.name_of, silent)])
        confirmed = "has confirmed that it" if missing == 1 else "have confirmed that they"
        return f"; until {who} {confirmed} released nothing, the account and the clients keep the charge{advice}"
