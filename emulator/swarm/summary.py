"""What a swarm's run amounts to: from the logs of its rounds to the records of `emulator.results`."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from statistics import fmean
from typing import Any

import msgspec

from dca_proto.aggregate import NodeReleaseRequest, NoisyAggregate
from dca_proto.cli.learn_view import reports_row
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.runtime.request import KINDS
from dca_proto.wording import listed
from emulator.results import Node, Reports, Round, Run, Sessions, Slow, Traffic
from emulator.swarm.host import SLOWEST_MAX
from emulator.swarm.live import Swarm
from emulator.swarm.options import SwarmOptions
from emulator.swarm.timeline import RELEASE_PHASES, ROLES, RoundLog

_MIB = 1 << 20


class Failure(msgspec.Struct, frozen=True):
    """Why there is no result, with the figures of a round that failed for them."""

    error: str
    found: int | None = None
    needed: int | None = None


def doubts(read_columns: Sequence[str], mechanism: Mechanism) -> tuple[str, ...]:
    """Why no epsilon may be claimed; empty where one may.

    Args:
        read_columns: whose bounds come from the data themselves.
    """
    bounds = [f"the bounds were read from the data ({listed(read_columns)})"] if read_columns else []
    return (*bounds, *(() if mechanism.private else ("the noise is inexact",)))


def summarise(swarm: Swarm, doubts: tuple[str, ...], failure: Failure | None) -> Run:
    """Everything that is public about a run, but what a job has learned.

    Args:
        doubts: why no epsilon may be claimed, if so. failure: why there is no result, if so.
    """
    private, options = not doubts, swarm.options
    rounds = [_round(log, swarm, private) for log in swarm.timeline.rounds]
    released = [one for one in rounds if one.ok] if failure is None else rounds
    last = msgspec.structs.asdict(released[-1]) if released else {}
    of_the_last = {name: last[name] for name in ("dropped", "contributors", "relation", "nodes", "failed") if last}
    fewest, tolerated = options.smallest
    sessions = Sessions(swarm.sessions_s, sum(swarm.core_s.values()) if swarm.core_s else None)
    return Run(
        ok=failure is None,
        error=None if failure is None else failure.error,
        contributors_found=None if failure is None else failure.found,
        contributors_needed=None if failure is None else failure.needed,
        clients=options.clients,
        dimension=options.dimension or None,
        batch=options.batch or None,
        computes=options.computes,
        tolerated=options.tolerated,
        colluders=options.colluders,
        unknown_noises=fewest - tolerated - 1 if options.is_summed else None,
        round_kind=next(name for name, kind in KINDS.items() if kind is options.kind),
        reports=options.reports or None,
        epsilon=options.budget.epsilon if private else None,
        delta=options.delta if private else None,
        epsilon_spent=swarm.spent if private else None,
        private=private,
        not_private_because=list(doubts),
        mechanism=options.reports or options.mechanism.name,
        broker=swarm.broker_kind,
        broker_version=swarm.broker_version,
        connections=options.connections,
        processes=options.processes or None,
        store="sqlite",
        seed=options.seed,
        connect_s=swarm.connect_s,
        sessions=sessions if options.is_summed else None,
        agreement_s=_agreement_s(rounds) if options.dimension else None,
        rounds=rounds,
        **of_the_last,
        reported=sum(one.contributors or 0 for one in rounds) if options.reports else None,
        **_uses(swarm.timeline.rounds),
    )


def _agreement_s(rounds: Sequence[Round]) -> float | None:
    """How much longer the first round took, in which pairs agree on keys, than later ones of the same sum."""
    return rounds[0].wall_s - fmean(one.wall_s for one in rounds[1:]) if rounds[1:] else None


def _uses(rounds: Sequence[RoundLog]) -> dict[str, Any]:
    """What every process has sent and used since its start, where they run one role each."""
    used = rounds[-1].after if rounds else None
    if used is None or not (core_s := used.core_s()):
        return {}
    peaks = {name: one.peak_rss_bytes for name, one in used.processes.items()}
    if used.broker_rss_bytes is not None:
        peaks["broker"] = used.broker_rss_bytes
    return {
        "roles": {role: used.sent(role) for role in ROLES},
        "core_s": sum(core_s.values()),
        "core_s_by_role": core_s,
        "peak_rss_mb": max(peaks.values()) / _MIB,
        "peak_rss_mb_by_process": {name: size / _MIB for name, size in peaks.items()},
        "facts": dict(sorted(used.facts().items())),
    }


def round_figures(log: RoundLog, private: bool) -> dict[str, Any]:
    """The fields of a `Round` that follow from its log alone; ``value`` is the noisy sum, in the statistic's units."""
    return {
        "name": log.statistic,
        "dimension": log.dimension,
        "arrived": log.arrived,
        "closed": log.closed or None,
        "declined": log.why,
        "wall_s": log.wall_s,
        "phases": log.phase_s(),
        **_used(log),
        **(_released(log.aggregate, private) if log.aggregate else _aborted(log)),
    }


def _released(aggregate: NoisyAggregate, private: bool) -> dict[str, Any]:
    return {
        "ok": True,
        "contributors": aggregate.contributors,
        "sigma_local": aggregate.sigma_local,
        "noise_variance": aggregate.noise_variance,
        "value": aggregate.value.tolist(),
        "sensitivity": aggregate.sensitivity,
        "relation": aggregate.relation,
        "epsilon": aggregate.epsilon if private else None,
        "mu": aggregate.mu if private else None,
    }


def _aborted(log: RoundLog) -> dict[str, Any]:
    failure = log.failure
    if failure is None:
        return {"ok": False}
    return {"ok": False, "error": failure.reason, "contributors": failure.contributors, "needed": failure.needed}


def missing(asked: int, log: RoundLog, sent: int) -> dict[str, int]:
    """How many clients came late, and how many dropped.

    Args:
        asked: how many were. sent: how many sent what did not get lost, contributions in the sum among them.
    """
    came = log.arrived if log.phases == RELEASE_PHASES else log.contributed
    late = max(0, sent - came)
    return {"late": late, "dropped": max(0, asked - log.declined - came - late)}


def _round(log: RoundLog, swarm: Swarm, private: bool) -> Round:
    """A round, with who was asked, who is missing, and what each has released by itself where they do."""
    options, numbers = swarm.options, swarm.numbers
    figures = round_figures(log, private) | {"expected": len(log.asked)}
    figures |= missing(len(log.asked), log, swarm.sent.get(log.round_id, 0))
    if options.dimension:
        return Round(**figures, **_synthetic(log, options, numbers))
    if log.aggregate is not None and log.aggregate.reports is not None:
        figures["reports"] = msgspec.convert(reports_row(log.aggregate.reports), Reports)
    if options.kind is NodeReleaseRequest and log.aggregate is not None:
        figures["nodes"] = _nodes(log, log.aggregate, numbers)
    if options.is_summed and log.aggregate is not None:
        figures |= _absent(log, log.clients, numbers)
    elif not options.is_summed and not options.batch:  # whom a mini-batch invites is the trainer's affair
        figures |= _absent(log, log.rows, numbers)
    return Round(**figures)


def _used(log: RoundLog) -> dict[str, Any]:
    """What was sent and used in a round."""
    before, after = log.before, log.after
    if before is None or after is None:
        return {"messages": 0, "bytes": 0}
    pairs = {role: (before.sent(role), after.sent(role)) for role in ROLES}
    roles = {role: Traffic(b.messages - a.messages, b.bytes - a.bytes) for role, (a, b) in pairs.items()}
    found: dict[str, Any] = {name: sum(getattr(one, name) for one in roles.values()) for name in ("messages", "bytes")}
    if core_s := after.core_s():
        earlier = before.core_s()
        by_role = {role: seconds - earlier[role] for role, seconds in core_s.items()}
        found |= {"roles": roles, "core_s": sum(by_role.values()), "core_s_by_role": by_role}
    return found


def _synthetic(log: RoundLog, options: SwarmOptions, numbers: Mapping[bytes, int]) -> dict[str, Any]:
    """What is known of a sum of made-up data, and which clients took longest."""
    vanished = sorted(numbers[client] for client in log.vanished)
    found = log.aggregate.contributors if log.aggregate else None
    late = [one for process in log.after.processes.values() for one in process.late] if log.after else []
    end_s = log.after.at_s - log.began_s if log.after else 0.0
    took = [Slow(one.client, end_s - one.ago_s) for one in late if one.ago_s <= end_s]
    return {
        "failed": None if found is None else options.clients - log.declined - found - len(vanished),
        "vanished_clients": vanished,
        "slowest": heapq.nlargest(SLOWEST_MAX, took, key=attrgetter("s")),
        "exact": [*map(float, exact_counts(options, vanished))],
    }


def exact_counts(options: SwarmOptions, vanished: Sequence[int]) -> list[int]:
    """How many clients of each category there are, the vanished left out; client i is of category i modulo d."""
    present = Counter(place % options.dimension for place in range(options.clients))
    present.subtract(place % options.dimension for place in vanished)
    return [present[category] for category in range(options.dimension)]


def _absent(log: RoundLog, found: Iterable[bytes], numbers: Mapping[bytes, int]) -> dict[str, Any]:
    """Who was asked and is not in the result, by id and by number."""
    absent = sorted(set(log.asked).difference(found), key=numbers.__getitem__)
    return {"absent": [one.hex() for one in absent], "absent_clients": [numbers[one] for one in absent]}


def _nodes(log: RoundLog, aggregate: NoisyAggregate, numbers: Mapping[bytes, int]) -> list[Node]:
    """What each data node has released."""
    names = [client for client, rows in sorted(log.rows.items()) if rows]  # as the aggregate has them
    found = [
        Node(
            number=numbers[client],
            id=client.hex(),
            rows=node.contributors,
            noise_variance=node.noise_variance,
            noise_sd=node.noise_variance**0.5,
            value=node.value.tolist(),
        )
        for client, node in zip(names, aggregate.nodes, strict=True)
    ]
    return sorted(found, key=lambda one: numbers[bytes.fromhex(one.id)])
