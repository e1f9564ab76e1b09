"""What a fleet's rounds took: from what its processes count to the records of `emulator.results`."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from statistics import fmean
from typing import Any, Protocol

import msgspec

from dca_proto.privacy import accounting
from emulator.results import Round, Run, Sessions, Slow, Traffic
from emulator.swarm.fleet_options import FleetOptions
from emulator.swarm.pipe import SLOWEST_MAX, Totals
from emulator.swarm.summary import doubts, missing, round_figures
from emulator.swarm.timeline import RoundLog

ROLES = ("client", "compute", "trainer")
_MIB = 1 << 20
_SENT = ("messages", "bytes")


class Usage(msgspec.Struct, frozen=True):
    """What every process of a fleet has sent and used since its start; None where the broker is not ours to look at."""

    trainer: Totals
    computes: Totals
    clients: tuple[Totals, ...]
    broker_core_s: float | None
    broker_rss_bytes: int | None

    def of(self, role: str) -> tuple[Totals, ...]:
        """The processes of a role."""
        return {"client": self.clients, "compute": (self.computes,), "trainer": (self.trainer,)}[role]

    def sum(self, role: str, name: str) -> float:
        """A figure, over the processes of a role."""
        total: float = sum(getattr(one, name) for one in self.of(role))
        return total

    @property
    def core_s(self) -> float:
        """Processor seconds of all roles, without the broker's."""
        return sum(self.sum(role, "core_s") for role in ROLES)

    @property
    def facts(self) -> Counter[str]:
        """How many facts of each kind clients and Compute nodes have reported."""
        return sum((Counter(one.facts) for one in (self.computes, *self.clients)), Counter())


class RoundCounts(msgspec.Struct, frozen=True):
    """What was used before and after a round, and the numbers of the clients that were made to vanish in it."""

    before: Usage
    after: Usage
    vanished: tuple[int, ...]

    def increase(self, role: str, name: str) -> float:
        return self.after.sum(role, name) - self.before.sum(role, name)


class Starting(msgspec.Struct, frozen=True):
    """Seconds from the start of the first process until all are connected, and until all have sessions.

    Attributes:
        core_s: processor seconds until then, of all roles.
    """

    connected_s: float
    sessions_s: float
    core_s: float


class BrokerInUse(Protocol):
    """What is known of the broker."""

    broker_url: str
    broker_kind: str
    broker_version: str


def summarise(
    broker: BrokerInUse,
    options: FleetOptions,
    rounds: Sequence[RoundLog],
    counts: Sequence[RoundCounts],
    starting: Starting,
) -> Run:
    """Everything that is public about a fleet's run."""
    doubted = doubts((), options.mechanism)
    held = [_round(log, one, options, not doubted) for log, one in zip(rounds, counts, strict=True)]
    last = held[-1]
    return Run(
        ok=last.ok,
        error=last.error,
        contributors_found=last.contributors,
        contributors_needed=last.needed,
        clients=options.clients,
        dimension=options.dimension,
        computes=options.computes,
        tolerated=options.tolerated,
        colluders=options.colluders,
        epsilon=None if doubted else options.budget.epsilon,
        delta=None if doubted else options.budget.delta,
        epsilon_spent=None if doubted else _spent(rounds, options),
        private=not doubted,
        not_private_because=list(doubted),
        mechanism=options.mechanism.name,
        broker=broker.broker_kind,
        broker_version=broker.broker_version,
        connections=options.connections,
        processes=options.processes,
        store="sqlite",
        seed=options.seed,
        connect_s=starting.connected_s,
        sessions=Sessions(starting.sessions_s, starting.core_s),
        agreement_s=held[0].wall_s - fmean(one.wall_s for one in held[1:]) if held[1:] else None,
        rounds=held,
        dropped=last.dropped,
        contributors=last.contributors,
        relation=last.relation,
        failed=last.failed,
        **_uses(counts[-1].after),
    )


def _uses(after: Usage) -> dict[str, Any]:
    """Since the start."""
    peaks = {"trainer": after.trainer.peak_rss_bytes, "compute": after.computes.peak_rss_bytes}
    peaks |= {f"client {place + 1}": one.peak_rss_bytes for place, one in enumerate(after.clients)}
    if after.broker_rss_bytes is not None:
        peaks["broker"] = after.broker_rss_bytes
    core_s = {role: after.sum(role, "core_s") for role in ROLES}
    if after.broker_core_s is not None:
        core_s["broker"] = after.broker_core_s
    return {
        "roles": {role: Traffic(*(int(after.sum(role, name)) for name in _SENT)) for role in ROLES},
        "core_s": sum(core_s.values()),
        "core_s_by_role": core_s,
        "peak_rss_mb": max(peaks.values()) / _MIB,
        "peak_rss_mb_by_process": {name: size / _MIB for name, size in peaks.items()},
        "facts": dict(sorted(after.facts.items())),
    }


def _round(log: RoundLog, counts: RoundCounts, options: FleetOptions, private: bool) -> Round:
    roles = {role: Traffic(*(int(counts.increase(role, name)) for name in _SENT)) for role in ROLES}
    core_s = {role: counts.increase(role, "core_s") for role in ROLES}
    if counts.after.broker_core_s is not None and counts.before.broker_core_s is not None:
        core_s["broker"] = counts.after.broker_core_s - counts.before.broker_core_s
    found = log.aggregate.contributors if log.aggregate else None
    vanished = len(counts.vanished)
    sent = counts.after.facts["Contributed"] - counts.before.facts["Contributed"] - vanished
    figures = round_figures(log, private) | missing(options.clients, log, sent)
    figures |= {
        "messages": sum(one.messages for one in roles.values()),
        "bytes": sum(one.bytes for one in roles.values()),
    }
    return Round(
        **figures,
        expected=options.clients,
        roles=roles,
        core_s=sum(core_s.values()),
        core_s_by_role=core_s,
        failed=None if found is None else options.clients - log.declined - found - vanished,
        vanished_clients=list(counts.vanished),
        slowest=_slowest(log, counts.after.clients),
        exact=[*map(float, exact_counts(options, counts.vanished))],
    )


def _slowest(log: RoundLog, processes: Sequence[Totals]) -> list[Slow]:
    took = [(one.at_s - log.began_s, one) for process in processes for one in process.late]
    longest = heapq.nlargest(SLOWEST_MAX, (pair for pair in took if pair[0] >= 0), key=itemgetter(0))
    return [Slow(one.client, seconds) for seconds, one in longest]


def exact_counts(options: FleetOptions, vanished: Sequence[int]) -> list[int]:
    """How many clients of each category there are, the vanished left out."""
    present = Counter(place % options.dimension for place in range(options.clients))
    present.subtract(place % options.dimension for place in vanished)
    return [present[category] for category in range(options.dimension)]


def _spent(rounds: Sequence[RoundLog], options: FleetOptions) -> float:
    """The epsilon, at the budget's delta, that a client has spent on the rounds in which contributions came."""
    budget = options.budget
    mu = budget.share(1 / options.rounds).mu
    charged = [mu for log in rounds if log.arrived]
    return accounting.epsilon_of(accounting.compose(charged), budget.delta) if charged else 0.0
