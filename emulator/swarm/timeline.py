"""What happened when in a swarm's rounds, gathered from the facts that actors report. Wall time, monotonic."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dca_proto.aggregate import NoisyAggregate
from dca_proto.core import facts
from dca_proto.privacy.price import Price

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
        rows: of those that release by themselves, by id. sent: who has sent a contribution or a release; vanished: of
            them, whose messages got lost; both by id, as far as the log's owner sees them.
        aggregate: the result, or None where the round failed with `failure`.
        messages, bytes: sent by all actors during the round.
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
    sent: set[bytes] = field(default_factory=set)
    vanished: frozenset[bytes] = frozenset()
    asked: tuple[bytes, ...] = ()
    clients: tuple[bytes, ...] = ()
    aggregate: NoisyAggregate | None = None
    failure: facts.RoundFailed | None = None
    messages: int = 0
    bytes: int = 0

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
        traffic: returns messages and bytes sent so far by all actors.
        on_change: called with the current round after every fact that changed it.
        phases: of each round.

    Attributes:
        rounds: so far. charges: what clients were charged and not given back, by client and round id.
    """

    def __init__(
        self,
        traffic: Callable[[], tuple[int, int]],
        on_change: Callable[[RoundLog], None],
        *,
        phases: tuple[str, ...] = SUM_PHASES,
    ) -> None:
        self.rounds: list[RoundLog] = []
        self.charges: dict[tuple[bytes, bytes], Price] = {}
        self._traffic = traffic
        self._on_change = on_change
        self._phases = phases
        self._before = (0, 0)

    def note(self, actor: bytes, fact: object) -> None:
        """Take in one fact of one actor, as of now."""
        now_s = time.monotonic()
        if isinstance(fact, facts.Announced):
            self._before = self._traffic()
            log = RoundLog(fact.statistic, fact.dimension, now_s, self._phases, round_id=fact.round_id)
            self.rounds.append(log)
        if not self.rounds:
            return
        log = self.rounds[-1]
        self._account(actor, fact)
        if self._take(log, actor, fact, now_s):
            self._on_change(log)

    def _account(self, client: bytes, fact: object) -> None:
        match fact:
            case facts.Contributed(round_id):
                self.charges[client, round_id] = fact.price
                for log in self.rounds:
                    if log.round_id == round_id:
                        log.sent.add(client)
            case facts.ChargeReturned(round_id):
                self.charges.pop((client, round_id), None)

    def _take(self, log: RoundLog, actor: bytes, fact: object, now_s: float) -> bool:
        """Whether the fact changes what is known of the round."""
        match fact:
            case facts.Announced():
                pass
            case facts.Arrived(_, count, _):
                log.arrived = count
            case facts.Declined(_, client, reason, found, expected) if client != actor:
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
                self._end(log, now_s)
            case facts.RoundFailed():
                log.failure = fact
                self._end(log, now_s)
            case _:
                return False
        return True

    def _end(self, log: RoundLog, now_s: float) -> None:
        log.ended_s = now_s
        messages, size = self._traffic()
        log.messages, log.bytes = messages - self._before[0], size - self._before[1]
