"""What happened when in a swarm's rounds, gathered from the facts that the trainer reports. Wall time, monotonic."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dca_proto.aggregate import NoisyAggregate
from dca_proto.protocol import facts
from emulator.swarm.usage import Usage

SUM_PHASES = ("collect", "agree")
"""Of a secure sum: from the announcement to the close, and from the close to the result."""
RELEASE_PHASES = ("release",)
"""Of a round without Compute nodes, in which each client releases or reports by itself."""


@dataclass
class RoundLog:
    """One round.

    Attributes:
        statistic, dimension: what was asked. phases: of a round of its kind. began_s, ended_s: monotonic seconds.
        ends_s: when each phase ended.
        arrived: contributions that holders keep, or releases that the trainer has. closed: why it waits for no more.
        why: reasons of the declines, with their counts.
        asked: ids of the clients that were asked. clients: of those in the result, sorted; both as the owner knows.
        rows: of those that release by themselves, by id. vanished: who was made to, by id.
        aggregate: the result, or None where the round failed with `failure`.
        before, after: what the swarm had sent and used.
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
        """Whether it is a secure sum."""
        return self.phases is SUM_PHASES

    def phase_s(self) -> dict[str, float]:
        """Seconds of each phase that ended."""
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
        """How many clients refused."""
        return sum(self.why.values())

    @property
    def contributed(self) -> int:
        """How many contributions are in the sum, or were too few; until that is known, how many are kept."""
        found = self.aggregate.contributors if self.aggregate else self.failure.contributors if self.failure else None
        return self.arrived if found is None else found


class Timeline:
    """Gathers facts into `RoundLog`s.

    Args:
        on_change: called with the current round after every fact that changed it.
        phases: of each round.

    Attributes:
        rounds: so far.
    """

    def __init__(self, on_change: Callable[[RoundLog], None], *, phases: tuple[str, ...] = SUM_PHASES) -> None:
        self.rounds: list[RoundLog] = []
        self._on_change = on_change
        self._phases = phases

    def note(self, fact: object) -> None:
        """Take in one fact of the trainer, as of now."""
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
        """Whether the fact changes what is known of the round."""
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
