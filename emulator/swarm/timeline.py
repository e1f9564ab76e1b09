"""What happened when in a swarm's rounds, gathered from the facts that actors report. Wall time, monotonic."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dca_proto.aggregate import NoisyAggregate
from dca_proto.core import facts
from dca_proto.core.price import Price

PHASES = ("join", "start", "share", "commit")
LOCAL_PHASES = ("release",)
"""Of a local round, in which each data node releases, or each client reports, by itself."""


@dataclass
class RoundLog:
    """One round.

    Attributes:
        statistic, dimension: what was asked. began_s, ended_s: monotonic seconds.
        ends_s: when each phase ended. joined, declined: counts; why: reasons of the declines, with their counts.
        shares: contributions held by each Compute node. clients: ids on the roster, in order.
        local: whether each releases by itself. reports: whether what it releases is a client's report. rows: of those
            that have, by id.
        aggregate: the result, or None where the round failed with `failure`.
        messages, bytes: sent by all actors during the round.
    """

    statistic: str
    dimension: int
    began_s: float
    ended_s: float = 0.0
    ends_s: dict[str, float] = field(default_factory=dict)
    joined: int = 0
    why: dict[str, int] = field(default_factory=dict)
    shares: dict[bytes, int] = field(default_factory=dict)
    rows: dict[bytes, int] = field(default_factory=dict)
    clients: tuple[bytes, ...] = ()
    roster_hash: bytes = b""
    aggregate: NoisyAggregate | None = None
    failure: facts.RoundFailed | None = None
    messages: int = 0
    bytes: int = 0
    local: bool = False
    reports: bool = False

    def phase_s(self) -> dict[str, float]:
        """Seconds of each phase that ended."""
        lengths, last = {}, self.began_s
        for phase in LOCAL_PHASES if self.local else PHASES:
            if phase in self.ends_s:
                lengths[phase] = self.ends_s[phase] - last
                last = self.ends_s[phase]
        return lengths

    @property
    def wall_s(self) -> float:
        return self.ended_s - self.began_s

    @property
    def shared(self) -> int:
        """How many contributions are in the sum, or were too few; until that is known, how many all nodes hold."""
        found = self.aggregate.contributors if self.aggregate else self.failure.contributors if self.failure else None
        return min(self.shares.values(), default=0) if found is None else found


class Timeline:
    """Gathers facts into `RoundLog`s.

    Args:
        traffic: returns messages and bytes sent so far by all actors.
        on_change: called with the current round after every fact that changed it.
        local: whether rounds are local ones. reports: whether they are of clients' reports.

    Attributes:
        rounds: so far. charges: what clients were charged and not given back, by client and round id.
    """

    def __init__(
        self,
        traffic: Callable[[], tuple[int, int]],
        on_change: Callable[[RoundLog], None],
        *,
        local: bool = False,
        reports: bool = False,
    ) -> None:
        self.rounds: list[RoundLog] = []
        self.charges: dict[tuple[bytes, bytes], Price] = {}
        self._traffic = traffic
        self._on_change = on_change
        self._local, self._reports = local, reports
        self._before = (0, 0)

    def note(self, actor: bytes, fact: object, at_s: float | None = None) -> None:
        """Take in one fact of one actor, by default as of now, else of that monotonic time."""
        now_s = time.monotonic() if at_s is None else at_s
        if isinstance(fact, facts.Announced):
            self._before = self._traffic()
            log = RoundLog(fact.statistic, fact.dimension, now_s, local=self._local, reports=self._reports)
            self.rounds.append(log)
        if not self.rounds:
            return
        log = self.rounds[-1]
        self._account(actor, fact)
        self._take(log, actor, fact, now_s)
        self._on_change(log)

    def _account(self, client: bytes, fact: object) -> None:
        match fact:
            case facts.Contributed(round_id):
                self.charges[client, round_id] = fact.price
            case facts.ChargeReturned(round_id):
                self.charges.pop((client, round_id), None)

    def _take(self, log: RoundLog, actor: bytes, fact: object, now_s: float) -> None:
        match fact:
            case facts.Rostered(_, clients, roster_hash):
                log.clients, log.roster_hash = clients, roster_hash
                log.joined = len(clients)
                log.ends_s["join"] = now_s
            case facts.Joined(_, client, count) if client != actor:
                log.joined = count
            case facts.Declined(_, client, reason, found, expected) if client != actor:
                why = f"{reason}: found {found}, expected {expected}"
                log.why[why] = log.why.get(why, 0) + 1
            case facts.SharingStarted():
                log.ends_s["start"] = now_s
            case facts.ShareKept(_, count, _):
                log.shares[actor] = count
            case facts.ReleaseKept(_, client, rows, count):
                log.rows[client] = rows
                log.joined = count
            case facts.ListFrozen():
                log.ends_s["share"] = now_s
            case facts.RoundCompleted(_, aggregate):
                log.aggregate, log.roster_hash = aggregate, aggregate.roster_hash
                log.ends_s["release" if log.local else "commit"] = now_s
                self._end(log, now_s)
            case facts.RoundFailed():
                log.failure = fact
                self._end(log, now_s)

    def _end(self, log: RoundLog, now_s: float) -> None:
        log.ended_s = now_s
        messages, size = self._traffic()
        log.messages, log.bytes = messages - self._before[0], size - self._before[1]
