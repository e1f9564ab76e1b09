"""Logs a swarm's rounds from the facts that the trainer reports. Times are monotonic wall seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dca_proto.aggregate import NoisyAggregate
from dca_proto.protocol import facts
from emulator.swarm.usage import Usage

SUM_PHASES = ("collect", "agree")
"""The phases of a secure sum: from the announcement to the close, and from the close to the result."""
RELEASE_PHASES = ("release",)
"""The phase of a round without Compute nodes."""


@dataclass
class RoundLog:
    """The log of one round.

    Attributes:
        statistic, dimension: of the request. phases: of a round of its kind. began_s, ended_s: monotonic seconds.
        ends_s: when each phase ended.
        arrived: number of contributions that holders keep, or of releases that the trainer has.
        closed: why the trainer stopped waiting. why: number of declines by reason.
        asked, clients: ids of the clients that were asked, and of those in the result, sorted; set by the swarm.
        rows: rows of each release, by client id. vanished: ids of the clients that were made to vanish.
        aggregate: the result, or None if the round failed with `failure`.
        before, after: the swarm's usage before and after the round.
    """

    statistic: str
    dimension: int
    began_s: float
    phases: tuple[str, ...] = SUM_PHASES
    ended_s: float = 0.0
    ends_s: dict[str, float] = field(default_factory=dict)
    arrived: int = 0
    closed: str = ""
    why: dict[str, int] = field(default_factory=dict)
    rows: dict[bytes, int] = field(default_factory=dict)
    round_id: bytes = b""
    vanished: frozenset[bytes] = frozenset()
    asked: tuple[bytes, ...] = ()
    clients: tuple[bytes, ...] = ()
    aggregate: NoisyAggregate | None = None
    failure: facts.RoundFailed | None = None
    before: Usage | None = None
    after: Usage | None = None

    @property
    def is_summed(self) -> bool:
        """True for a secure sum."""
        return self.phases is SUM_PHASES

    def phase_s(self) -> dict[str, float]:
        """Return the seconds of each phase that has ended."""
        lengths, last = {}, self.began_s
        for phase in self.phases:
            if phase in self.ends_s:
                lengths[phase] = self.ends_s[phase] - last
                last = self.ends_s[phase]
        return lengths

    @property
    def wall_s(self) -> float:
        return self.ended_s - self.began_s

    @property
    def declined(self) -> int:
        """Number of clients that refused."""
        return sum(self.why.values())

    @property
    def contributed(self) -> int:
        """Number of contributions in the sum, or found when the round failed; until then, the number kept."""
        outcome = self.aggregate or self.failure
        found = outcome.contributors if outcome else None
        return self.arrived if found is None else found


class Timeline:
    """Turns facts into `RoundLog`s.

    Args:
        on_change: called with the current round after each fact that changes it.
        phases: of each round.

    Attributes:
        rounds: logs of the rounds so far.
    """

    def __init__(self, on_change: Callable[[RoundLog], None], *, phases: tuple[str, ...] = SUM_PHASES) -> None:
        self.rounds: list[RoundLog] = []
        self._on_change = on_change
        self._phases = phases

    def note(self, fact: object) -> None:
        """Log one fact of the trainer, with the present time."""
        now_s = time.monotonic()
        if isinstance(fact, facts.Announced):
            log = RoundLog(fact.statistic, fact.dimension, now_s, self._phases, round_id=fact.round_id)
            self.rounds.append(log)
        if not self.rounds:
            return
        log = self.rounds[-1]
        if self._take(log, fact, now_s):
            self._on_change(log)

    @staticmethod
    def _take(log: RoundLog, fact: object, now_s: float) -> bool:
        """Update the log. Return True if the fact concerns it."""
        match fact:
            case facts.Announced():
                pass
            case facts.Arrived(_, count, _):
                log.arrived = count
            case facts.Declined(_, _, reason, found, expected):
                why = f"{reason}: found {found}, expected {expected}"
                log.why[why] = log.why.get(why, 0) + 1
            case facts.Closed(_, count, why):
                log.arrived, log.closed = count, why
                log.ends_s["collect"] = now_s
            case facts.ReleaseKept(_, client, rows, count):
                log.rows[client] = rows
                log.arrived = count
            case facts.RoundCompleted(_, aggregate):
                log.aggregate = aggregate
                log.ends_s[log.phases[-1]] = now_s
                log.ended_s = now_s
            case facts.RoundFailed():
                log.failure = fact
                log.ended_s = now_s
            case _:
                return False
        return True
