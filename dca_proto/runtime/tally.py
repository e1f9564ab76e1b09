"""Counts an actor's facts for its status and its metrics: rounds by end, contributions, declines, phases, results.

A reason may come from a peer. It is counted under its own name as long as it is short and there are few; further ones
are counted together, so that nobody can fill the memory of this process, or of Prometheus, with names.
"""

from __future__ import annotations

import bisect
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping

from dca_proto.aggregate import NoisyAggregate
from dca_proto.protocol import facts
from dca_proto.results.round import estimates
from dca_proto.results.status import PHASE_S, Durations, StatedResult, StatedValue
from dca_proto.wording import printable

OTHER = "other"
_NAMES_MAX, _NAME_CHARS_MAX = 32, 48
_ROUNDS_MAX, _RESULTS_MAX, _OUTCOMES_MAX = 1000, 50, 4
_VALUE_MAX = 1e100
"""A record with a larger number, or with none, is refused by whoever reads it (`dca_proto.results.figure`)."""


class Names(Counter[str]):
    """Counts by name, of which there are few."""

    def add(self, name: str) -> None:
        """Count a name, or `OTHER` in its place."""
        is_short = len(name) <= _NAME_CHARS_MAX and name.isprintable()
        self[name if is_short and (name in self or len(self) < _NAMES_MAX) else OTHER] += 1


class Bins:
    """Durations in the bins of `PHASE_S`."""

    def __init__(self) -> None:
        self.counts = [0] * (len(PHASE_S) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration. One below 0 counts as 0."""
        self.counts[bisect.bisect_left(PHASE_S, seconds)] += 1
        self.total_s += max(seconds, 0.0)

    @property
    def record(self) -> Durations:
        """The record of the durations."""
        return Durations(counts=[*self.counts], total_s=self.total_s)


class Tally:
    """Counts the facts of one actor since it was made.

    Args:
        clock: monotonic seconds. iso: the present time as text, for results.
    """

    def __init__(self, iso: Callable[[], str], clock: Callable[[], float] = time.monotonic) -> None:
        self._iso, self._clock = iso, clock
        self._since_s: dict[bytes, tuple[str, float]] = {}  # the phase that each open round is in, and since when
        self._closed: dict[bytes, str] = {}  # why the trainer closed each open round
        self._ended: dict[str, Names] = {}
        self._phases: dict[str, Bins] = {}
        self.contributions = self.unproven = 0
        self.declines = Names()
        self.results: deque[StatedResult] = deque(maxlen=_RESULTS_MAX)

    @property
    def ended(self) -> dict[str, dict[str, int]]:
        """Ended rounds by how and why."""
        return {end: dict(reasons) for end, reasons in self._ended.items()}

    @property
    def phases(self) -> dict[str, Durations]:
        """How long each phase took."""
        return {phase: bins.record for phase, bins in self._phases.items()}

    def note(self, fact: object) -> None:
        """Count a fact."""
        match fact:
            case facts.Announced(round_id, _, _, computes):
                self._begin(round_id, "collect" if computes else "release")
            case facts.Closed(round_id, _, why):
                self._closed[round_id] = why
                self._begin(round_id, "agree")
            case facts.RoundCompleted(round_id, aggregate):
                self._end(round_id, "completed", self._closed.get(round_id, ""))
                self.contributions += aggregate.contributors
                self.unproven += len(aggregate.unproven)
                if aggregate.round_id.hex() not in {
                    one.round_id for one in self.results
                }:  # not of a round that resumes
                    self.results.append(result_of(self._iso(), aggregate))
            case facts.RoundFailed(round_id):
                self._end(round_id, "failed", why_failed(fact))
                self.unproven += fact.unproven
            case facts.Declined(_, _, reason):
                self.declines.add(reason)
            case _:
                self._note_of_others(fact)

    def _note_of_others(self, fact: object) -> None:
        """Count a fact of a Compute node or a client."""
        match fact:
            case facts.ContributionKept(round_id):
                self.contributions += 1
                if round_id not in self._since_s:
                    self._begin(round_id, "collect")
            case facts.ListFrozen(round_id):
                self._begin(round_id, "agree")
            case facts.Released(round_id):
                self._end(round_id, "released", "")
                self.unproven += len(fact.unproven)
            case facts.NodeAborted(round_id, _, reason):
                self._end(round_id, "aborted", reason)
                self.unproven += len(fact.unproven)
            case facts.Contributed(round_id):
                self.contributions += 1
                self._begin(round_id, "receipt")
            case facts.Acknowledged(round_id):
                self._end(round_id, "acknowledged", "")
            case facts.Missed(round_id):
                self._end(round_id, "late", "")

    def _begin(self, round_id: bytes, phase: str) -> None:
        """A round enters a phase; the one before it, if there is one, is over."""
        self._leave(round_id)
        self._since_s[round_id] = phase, self._clock()
        for known in (self._since_s, self._closed):
            while len(known) > _ROUNDS_MAX:  # rounds whose end nobody reports
                _forget_first(known)

    def _leave(self, round_id: bytes) -> None:
        if (since := self._since_s.pop(round_id, None)) is not None:
            phase, at_s = since
            self._phases.setdefault(phase, Bins()).add(self._clock() - at_s)

    def _end(self, round_id: bytes, end: str, reason: str) -> None:
        self._leave(round_id)
        self._closed.pop(round_id, None)
        self._ended.setdefault(end, Names()).add(reason)


def _forget_first(table: Mapping[bytes, object]) -> None:
    assert isinstance(table, dict)
    del table[next(iter(table))]


def why_failed(fact: facts.RoundFailed) -> str:
    """Return why a round has no result, in a word: its sentence names members and counts."""
    kinds = {
        "implausible": fact.implausible,
        "declined": fact.declined,
        "refused": fact.refused,
        "nodes silent": bool(fact.lost),
    }
    return next((kind for kind, is_so in kinds.items() if is_so), "too few" if fact.needed is not None else OTHER)


def result_of(at: str, aggregate: NoisyAggregate) -> StatedResult:
    """Return the record of a result; without numbers, if they cannot be estimated from this sum alone."""
    shown: list[StatedValue] = []
    more = 0
    with contextlib.suppress(ArithmeticError, ValueError, LookupError):
        found = estimates(aggregate)
        finite = [one for one in found if abs(one.value) <= _VALUE_MAX and one.noise_std <= _VALUE_MAX]
        shown = [
            StatedValue(label=printable(one.label), value=one.value, noise_std=one.noise_std)
            for one in finite[:_OUTCOMES_MAX]
        ]
        more = len(found) - len(shown)
    return StatedResult(
        at=at,
        round_id=aggregate.round_id.hex(),
        statistic=printable(aggregate.statistic),
        contributors=aggregate.contributors,
        outcomes=shown,
        more=more,
    )
