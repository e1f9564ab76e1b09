"""Failed rounds at a trainer: how a charge comes back, and when the failure is reported (DESIGN §4.8).

The first abort ends a round. Once all M Compute nodes have signed aborts, its charge comes back. Normally the other
aborts follow within moments. So the trainer reports the failure, and what it cost, as soon as it knows the cost: when
all M aborts have come, when a node is known to have released (then the charge stays), or after `settle_ms` at the
latest.

The charge of a round without Compute nodes comes back if every invited client has signed that it declines; in a round
of everybody, if as many have signed as are expected. If another client releases later, the charge counts again
(DESIGN §5).

A node keeps its abort for the retention. For that time, the trainer asks for missing aborts, ever more rarely, and
again whenever it starts. So a charge also comes back if the trainer or a node was away.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Container
from functools import cached_property

import msgspec

from dca_proto.protocol import facts
from dca_proto.protocol.actor import Actor
from dca_proto.protocol.effects import CancelTimer, Effect, Report, SetTimer
from dca_proto.protocol.events import Timer
from dca_proto.protocol.ledger import Ledger
from dca_proto.protocol.lists import TOO_FEW
from dca_proto.protocol.params import Timing
from dca_proto.protocol.trainer.round import SETTLE, Round
from dca_proto.protocol.wire.messages import Abort


class Failing(Actor):
    """What a trainer does with rounds that fail.

    Attributes:
        ledger: of the federation's account: one charge for each round that was started, limit or not.
    """

    ledger: Ledger
    _rounds: dict[bytes, Round]

    @abstractmethod
    def _query(self, current: Round) -> list[Effect]:
        """Ask the Compute nodes whose final message is missing for it."""

    @cached_property
    def _patient(self) -> Timing:
        """Ever more rarely, for as long as nodes keep their aborts."""
        return msgspec.structs.replace(self._timing, resend_max_ms=self._timing.retention_ms)

    def _awaits_aborts(self, current: Round, now_ms: int) -> bool:
        """Whether missing aborts may still bring a failed round's charge back."""
        open_ms = current.opened.body.commit_by_ms + self._timing.retention_ms
        is_open = current.takes("abort") and not current.stored.released and now_ms < open_ms
        return is_open and current.id in self.ledger and bool(current.opened.computes)

    def _is_returned(self, current: Round) -> bool:
        """Whether its charge has come back."""
        return current.id in self.ledger and not self.ledger.is_charged(current.id)

    def _fail(
        self,
        current: Round,
        reason: str,
        now_ms: int,
        contributors: int | None = None,
        needed: int | None = None,
        aborted_by: tuple[bytes, ...] = (),
    ) -> list[Effect]:
        """End a round without a result; the figures and `aborted_by` as in `StoredRound`."""
        stored = current.advance(
            "fail",
            partials=(),
            aborted_by=aborted_by,
            released=bool(current.partials),
            reason=reason,
            contributors=contributors,
            needed=needed,
        )
        current.partials.clear()
        ended = [stored, *current.end(self._timing, now_ms)]
        return [*ended, *(self._return_declined(current) or self._settle(current, now_ms))]

    def _return_declined(self, current: Round) -> list[Effect]:
        """Return the charge of a failed round if all clients have declined."""
        is_over = current.takes("all declined") and not current.stored.released and current.all_declined()
        return self._give_back(current, "all declined") if is_over else []

    def _on_late_release(self, current: Round) -> list[Effect]:
        """A client has released after the failure: the charge stays, or is charged again if it had come back."""
        if current.stored.released:
            return []
        had_returned = self._is_returned(current)
        kept = current.advance("late release", released=True)
        if not had_returned:
            return [kept]
        current.reported = None
        return [self.ledger.count_again(current.id), kept, *self._report_failure(current)]

    def _settle(self, current: Round, now_ms: int) -> list[Effect]:
        """If aborts can bring a failed round's charge back, wait for them; otherwise report the failure."""
        if not self._awaits_aborts(current, now_ms):
            return self._report_failure(current)
        current.attempt = 0
        settled = SetTimer(Timer(SETTLE, current.id), now_ms + self._timing.settle_ms)
        return [settled, current.resend_timer(self._patient, self._random(1), now_ms)]

    def _resume_failed(self, current: Round, now_ms: int) -> list[Effect]:
        """Ask again after a start. Report a settled failure again, like a result: the last run may have ended first."""
        if not self._awaits_aborts(current, now_ms):
            return self._report_failure(current, finally_=True)
        return [*self._query(current), *self._settle(current, now_ms)]

    def _ask_again(self, current: Round, now_ms: int) -> list[Effect]:
        """Ask once more, if it is still of use."""
        waits = self._awaits_aborts(current, now_ms)
        return [*self._query(current), current.resend_timer(self._patient, self._random(1), now_ms)] if waits else []

    def _take_abort(self, current: Round, body: Abort, now_ms: int) -> list[Effect]:
        """A node has signed that it released nothing for a round and never will: the first abort ends the round."""
        stored, node = current.stored, body.compute
        if current.is_open:
            reason = f"{self._federation.compute(node).name} aborted: {body.reason}: {body.detail}"
            contributors, needed = (body.contributors, body.needed) if body.reason == TOO_FEW else (None, None)
            return self._fail(current, reason, now_ms, contributors, needed, (node,))
        if node in stored.aborted_by or not self._awaits_aborts(current, now_ms):
            current.step("late abort")
            return []
        aborted_by = (*stored.aborted_by, node)
        if len(aborted_by) == len(current.opened.computes):
            return self._give_back(current, "last abort", aborted_by=aborted_by)
        return [current.advance("abort", aborted_by=aborted_by)]

    def _give_back(self, current: Round, event: str, **changes: object) -> list[Effect]:
        """Return the charge of a failed round from which nothing was or will be released, and report that."""
        kept = current.advance(event, **changes)
        returned = self.ledger.give_back(current.id)
        return [returned, kept, Report(facts.ChargeReturned(current.id)), *self._report_failure(current)]

    def _take_late_partial(self, current: Round) -> list[Effect]:
        """A node has released: the charge stays, whatever is signed afterwards."""
        current.step("late partial")
        return [] if current.stored.released else [current.store(released=True), *self._report_failure(current)]

    def _on_settled(self, current: Round, now_ms: int) -> list[Effect]:
        return self._report_failure(current)

    def _report_failure(self, current: Round, *, finally_: bool = False) -> list[Effect]:
        """Say once that a round has failed, and what became of its charge.

        Args:
            finally_: nobody is asked any more; at the latest, when the nodes have forgotten the round.
        """
        if current.reported is not None:
            return []
        stored = current.stored
        figures = (None, None) if stored.released else (stored.contributors, stored.needed)
        advice = "" if finally_ else ": `dca trainer FILE --resume` asks again"
        declined = self._is_returned(current) and not current.opened.computes
        reason = stored.reason + self._charge(current, advice)
        current.reported = facts.RoundFailed(current.id, reason, *figures, declined=declined)
        return [CancelTimer(Timer(SETTLE, current.id)), Report(current.reported)]

    def _charge(self, current: Round, advice: str) -> str:
        if current.id not in self.ledger:
            return ""
        if self._is_returned(current):
            return "; its charge came back to the account"
        if not current.opened.computes:
            return "; whoever released and was not heard has spent it, so the account keeps the charge"
        if current.stored.released:
            return "; a Compute node has released its part, so the account keeps the charge"
        return (
            f"; no word yet from {self._others(current, current.stored.aborted_by)} that nothing was released, so the "
            f"account keeps the charge{advice}"
        )

    def _silence(self, current: Round) -> str:
        """Why a round fails at its end, as a sentence."""
        silent = self._others(current, current.arrivals.counts if current.takes("close") else current.partials)
        return f"no answer from Compute node {silent} while {current.phase}"

    def _others(self, current: Round, heard: Container[bytes]) -> str:
        """The names of the Compute nodes that have not answered."""
        silent = [compute for compute in current.opened.computes if compute not in heard]
        return ", ".join(self._federation.name_of(compute) for compute in silent)
