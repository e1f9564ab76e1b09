"""Turns the logs of a swarm's rounds into the records of `dca_proto.results.run`."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from statistics import fmean
from typing import Any, TypedDict

import msgspec

from dca_proto.errors import RoundAborted
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.protocol.facts import RoundFailed
from dca_proto.protocol.wire.kinds import NodeRelease
from dca_proto.results.lost import fields_of
from dca_proto.results.round import Node, Round, Slow, Traffic, node_of, round_of
from dca_proto.results.run import Run, run_of
from dca_proto.wording import listed
from emulator.swarm.host import SLOWEST_MAX
from emulator.swarm.live import Swarm, SwarmResult
from emulator.swarm.options import SwarmOptions
from emulator.swarm.timeline import RoundLog
from emulator.swarm.usage import ROLES

_MIB = 1 << 20


def not_private_because(read_columns: Sequence[str], mechanism: Mechanism) -> tuple[str, ...]:
    """Return the reasons why no epsilon may be claimed; none if the run is private.

    Args:
        read_columns: columns whose bounds were read from the data.
    """
    bounds = [f"the bounds were read from the data ({listed(read_columns)})"] if read_columns else []
    return (*bounds, *(() if mechanism.private else ("the noise is inexact",)))


def exit_code(run: Run) -> int:
    """Return 0 if the run has a result. Raises `RoundAborted` if it has none."""
    if not run.ok:
        if (last := run.aborted) is None:
            raise RoundAborted(run.error or "")
        raise RoundAborted(run.error or "", contributors=last.contributors, needed=last.n_min)
    return 0


def summarise(swarm_result: SwarmResult, not_private: tuple[str, ...], **fields: Any) -> Run:
    """Return the record of a run: all that is public about it, except what the job has learned.

    Args:
        not_private: reasons why no epsilon may be claimed. fields: further fields of the run.
    """
    swarm, _, failure = swarm_result
    options = swarm.options
    walls = [log.wall_s for log in swarm.timeline.rounds] if options.dimension else []
    later_s = fmean(walls[1:]) if walls[1:] else None  # rounds of the same sum, after pairs have agreed on keys
    return run_of(
        options,
        options.kind,
        [swarm_round(log, swarm, not not_private) for log in swarm.timeline.rounds],
        not_private,
        ok=failure is None,
        error=failure,
        dimension=options.dimension or None,
        batch=options.batch or None,
        reports=options.reports or None,
        delta=options.spent_delta,
        epsilon_spent=swarm.spent,
        mechanism=options.reports or options.mechanism.name,
        broker=swarm.broker_kind,
        broker_version=swarm.broker_version,
        connections=options.connections,
        processes=options.processes or None,
        seed=options.seed,
        connect_s=swarm.connect_s,
        sessions_s=swarm.sessions_s if options.is_summed else None,
        sessions_core_s=sum(swarm.core_s.values()) if options.is_summed and swarm.core_s else None,
        agreement_s=later_s and walls[0] - later_s,
        **_uses(swarm.timeline.rounds),
        **fields,
    )


class _Uses(TypedDict, total=False):
    """The fields of a run on what it sent and used."""

    roles: dict[str, Traffic]
    core_s_by_role: dict[str, float]
    peak_rss_mb_by_process: dict[str, float]
    facts: dict[str, int]


def _uses(rounds: Sequence[RoundLog]) -> _Uses:
    """Return what was sent and used since the start, if roles run in processes of their own."""
    used = rounds[-1].after if rounds else None
    if used is None or not (core_s := used.core_s_by_role()):
        return {}
    peaks = {name: size / _MIB for name, size in used.peak_rss_bytes.items()}
    return {
        "roles": {role: used.sent.get(role, Traffic()) for role in ROLES},
        "core_s_by_role": core_s,
        "peak_rss_mb_by_process": peaks,
        "facts": dict(sorted(used.facts.items())),
    }


# --- a round ----------------------------------------------------------------------------------------------------------


def swarm_round(log: RoundLog, swarm: Swarm, private: bool) -> Round:
    """Return the record of a round, with the missing clients and the single releases."""
    options, numbers = swarm.options, swarm.numbers
    known: dict[str, Any] = missing(len(log.asked), log, swarm.sent.get(log.round_id, 0))
    if options.dimension:
        known |= _synthetic(log, options, numbers)
    elif options.is_summed and log.aggregate is not None:
        known |= _absent(log, log.clients, numbers)
    elif not options.is_summed and not options.batch:  # whom a mini-batch invites stays with the trainer
        known |= _absent(log, log.rows, numbers)
    if log.aggregate is not None and options.kind is NodeRelease:
        known["nodes"] = _nodes(log, numbers)
    return public_round(log, private, clients=len(log.asked), **known)


def public_round(log: RoundLog, private: bool, **fields: Any) -> Round:
    """Return the record of a round from its log, with further fields."""
    fields |= {"arrived": log.arrived, "unproven_clients": unproven_in(log), "closed": log.closed or None,
              "declined": log.why, "wall_s": log.wall_s, "phases": log.phase_s(), **_used(log)}  # fmt: skip
    if log.aggregate is not None:
        claim: dict[str, Any] = {} if private else {"private": False, "epsilon": None, "delta": None, "mu": None}
        return round_of(log.aggregate, **claim, **fields)
    failure = log.failure or RoundFailed(b"", "", None, None)
    return Round(
        ok=False, statistic=log.statistic, dimension=log.dimension, error=failure.reason or None,
        contributors=failure.contributors, n_min=failure.needed, **fields_of(failure.quorum), **fields,
    )  # fmt: skip


def missing(invited: int, log: RoundLog, sent: int) -> dict[str, int]:
    """Return how many clients were late, and how many dropped.

    Args:
        invited: how many clients were asked. sent: how many sent a contribution that was not lost.
    """
    came = log.contributed if log.is_summed else log.arrived
    came += unproven_in(log)
    late = max(0, sent - came)
    return {"late": late, "dropped": max(0, invited - log.declined - came - late)}


def unproven_in(log: RoundLog) -> int:
    """Return how many clients' proofs failed."""
    if log.aggregate is not None:
        return len(log.aggregate.unproven)
    return log.failure.unproven if log.failure else 0


def _used(log: RoundLog) -> dict[str, Any]:
    before, after = log.before, log.after
    if before is None or after is None:
        return {"messages": 0, "bytes": 0}
    roles = {role: after.sent.get(role, Traffic()) - before.sent.get(role, Traffic()) for role in ROLES}
    found: dict[str, Any] = msgspec.structs.asdict(sum(roles.values(), Traffic()))
    if core_s := after.core_s_by_role():
        earlier = before.core_s_by_role()
        found |= {"roles": roles, "core_s_by_role": {role: seconds - earlier[role] for role, seconds in core_s.items()}}
    return found


class _Synthetic(TypedDict):
    """The fields of a round that only a synthetic sum has."""

    failed: int | None
    vanished_clients: list[int]
    slowest: list[Slow]
    exact: list[float]


def _synthetic(log: RoundLog, options: SwarmOptions, numbers: Mapping[bytes, int]) -> _Synthetic:
    """Return the fields of a synthetic sum: the exact counts, and which clients failed, vanished or were slow."""
    vanished = sorted(numbers[client] for client in log.vanished)
    contributors = log.aggregate.contributors if log.aggregate else None
    known = log.declined + len(vanished) + unproven_in(log)
    end_s, late = (log.after.at_s - log.began_s, log.after.late) if log.after else (0.0, ())
    slow = [Slow(client, end_s - ago_s) for client, ago_s in late if ago_s <= end_s]
    return {
        "failed": None if contributors is None else options.clients - contributors - known,
        "vanished_clients": vanished,
        "slowest": heapq.nlargest(SLOWEST_MAX, slow, key=attrgetter("s")),
        "exact": [*map(float, exact_counts(options, vanished))],
    }


def exact_counts(options: SwarmOptions, vanished: Sequence[int]) -> list[int]:
    """Return how many clients of each category have not vanished; client i is of category i modulo d."""
    present = Counter(place % options.dimension for place in range(options.clients))
    present.subtract(place % options.dimension for place in vanished)
    return [present[category] for category in range(options.dimension)]


class _Absent(TypedDict):
    """The fields of a round that name the clients which are not in its result."""

    absent: list[str]
    absent_clients: list[int]


def _absent(log: RoundLog, present: Iterable[bytes], numbers: Mapping[bytes, int]) -> _Absent:
    absent = sorted(set(log.asked).difference(present), key=numbers.__getitem__)
    return {"absent": [client.hex() for client in absent], "absent_clients": [numbers[client] for client in absent]}


def _nodes(log: RoundLog, numbers: Mapping[bytes, int]) -> list[Node]:
    assert log.aggregate is not None, "the caller checked"
    clients = [client for client, rows in sorted(log.rows.items()) if rows]  # in the aggregate's order
    pairs = zip(clients, log.aggregate.nodes, strict=True)
    nodes = {numbers[client]: node_of(node, number=numbers[client], id=client.hex()) for client, node in pairs}
    return [nodes[number] for number in sorted(nodes)]
