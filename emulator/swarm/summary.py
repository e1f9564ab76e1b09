"""What a swarm's run amounts to, as plain data for programs (`--json`) and for the tables that people see."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from dca_proto.aggregate import NoisyAggregate
from dca_proto.cli.learn_view import reports_row
from dca_proto.core.mechanism import Mechanism
from dca_proto.core.price import Price, total
from dca_proto.core.shares import LOCAL
from emulator.swarm.live import Swarm, SwarmOptions
from emulator.swarm.timeline import RoundLog


def doubts(public_bounds: bool, mechanism: Mechanism) -> tuple[str, ...]:
    """Why no epsilon may be claimed; empty where one may."""
    reasons = {"the bounds were read from the data": public_bounds, "the noise is inexact": mechanism.private}
    return tuple(reason for reason, is_sound in reasons.items() if not is_sound)


def summarise(
    swarm: Swarm, options: SwarmOptions, clients: int, doubts: tuple[str, ...], outcome: dict[str, Any]
) -> dict[str, Any]:
    """One object with everything that is public about a run.

    Args:
        doubts: why no epsilon may be claimed, if so. outcome: of the job: its summary, or `failed`.
    """
    private = not doubts
    rounds = [{**round_row(log, private), **_who(log, options, swarm.numbers)} for log in swarm.timeline.rounds]
    released = [row for row in rounds if row["ok"]] if outcome["ok"] else rounds
    last = released[-1] if released else {}
    fewest, tolerated = options.smallest(clients)
    return {
        "kind": "swarm",
        "clients": clients,
        "batch": options.batch or None,
        "computes": options.computes,
        "tolerated": options.tolerated,
        "colluders": options.colluders,
        "unknown_noises": None if options.alone else fewest - tolerated - 1,
        "local": options.local,
        "reports": options.reports or None,
        "epsilon": options.budget.epsilon if private else None,
        "delta": options.delta if private else None,
        "epsilon_spent": spent(swarm.timeline.charges, options.delta) if private else None,
        "private": private,
        "not_private_because": list(doubts),
        "mechanism": options.reports or options.mechanism.name,
        "broker": swarm.broker_kind,
        "broker_version": swarm.broker_version,
        "share_encoding": LOCAL if options.alone else options.encoding,
        "seed": options.seed,
        **outcome,
        "rounds": rounds,
        **{name: last.get(name) for name in ("dropped", "contributors", "relation")},
        **({"nodes": last.get("nodes", [])} if options.local else {}),
        **({"reported": sum(row["contributors"] or 0 for row in rounds)} if options.reports else {}),
    }


def spent(charges: Mapping[tuple[bytes, bytes], Price], delta: float) -> float:
    """The epsilon, at that delta, of the client that spent the most.

    Whoever was charged has spent, with or without a result, until M signed aborts give it back.

    Args:
        charges: by client and round id.
    """
    prices: dict[bytes, list[Price]] = defaultdict(list)
    for (client, _), price in charges.items():
        prices[client].append(price)
    return max((total(one).epsilon(delta) for one in prices.values()), default=0.0)


def failed(reason: str, contributors: int | None, needed: int | None) -> dict[str, Any]:
    """An abort: there is no result."""
    return {
        "ok": False,
        "error": reason,
        "contributors_found": contributors,
        "contributors_needed": needed,
        "test": None,
    }


def round_row(log: RoundLog, private: bool) -> dict[str, Any]:
    """What is public about a round; ``value`` is the noisy sum, in the statistic's own units."""
    return {
        "name": log.statistic,
        "dimension": log.dimension,
        "joined": log.joined,
        "declined": log.why,
        "roster_hash": log.roster_hash.hex() or None,
        "wall_s": log.wall_s,
        "phases": log.phase_s(),
        "messages": log.messages,
        "bytes": log.bytes,
        **(_released(log.aggregate, private) if log.aggregate else _aborted(log)),
    }


def _released(aggregate: NoisyAggregate, private: bool) -> dict[str, Any]:
    return {
        "ok": True,
        "contributors": aggregate.contributors,
        "dropped": len(aggregate.absent),
        "sigma_local": aggregate.sigma_local,
        "noise_variance": aggregate.noise_variance,
        "value": aggregate.value.tolist(),
        "sensitivity": aggregate.sensitivity,
        "relation": aggregate.relation,
        "epsilon": aggregate.epsilon if private else None,
        "mu": aggregate.mu if private else None,
    }


def _who(log: RoundLog, options: SwarmOptions, numbers: Mapping[bytes, int]) -> dict[str, Any]:
    """Who is missing, and what each has released by itself where they do."""
    if options.reports:
        return _reported_by(log, options, numbers)
    return _released_by(log, numbers) if options.local else _absent(log, numbers)


def _absent(log: RoundLog, numbers: Mapping[bytes, int]) -> dict[str, Any]:
    """Who is missing from a sum, by id and by number."""
    if log.aggregate is None:
        return {}
    absent = sorted((log.clients[position] for position in log.aggregate.absent), key=numbers.__getitem__)
    return {"absent": [client.hex() for client in absent], "absent_clients": [numbers[client] for client in absent]}


def _missing(log: RoundLog, numbers: Mapping[bytes, int]) -> dict[str, Any]:
    """Who has released nothing in a local round of everybody."""
    absent = sorted((client for client in numbers if client not in log.rows), key=numbers.__getitem__)
    return {
        "absent": [client.hex() for client in absent],
        "absent_clients": [numbers[client] for client in absent],
        "dropped": len(absent) - sum(log.why.values()),
    }


def _reported_by(log: RoundLog, options: SwarmOptions, numbers: Mapping[bytes, int]) -> dict[str, Any]:
    """What clients reported; who has not is not told of a mini-batch, whose invitations are the trainer's affair."""
    released = log.aggregate.reports if log.aggregate else None
    told = {"reports": None if released is None else reports_row(released)}
    if options.batch:
        return {"dropped": options.batch - log.joined - sum(log.why.values()), **told}
    return {**_missing(log, numbers), **told}


def _released_by(log: RoundLog, numbers: Mapping[bytes, int]) -> dict[str, Any]:
    """What each data node has released in a local round, and which have not."""
    found: dict[str, Any] = {**_missing(log, numbers), "nodes": []}
    if log.aggregate is None:
        return found
    names = [client for client, rows in sorted(log.rows.items()) if rows]  # as the aggregate has them
    nodes = [_node(numbers[client], client, node) for client, node in zip(names, log.aggregate.nodes, strict=True)]
    return {**found, "nodes": sorted(nodes, key=lambda one: one["number"])}


def _node(number: int, client: bytes, node: NoisyAggregate) -> dict[str, Any]:
    return {
        "number": number,
        "id": client.hex(),
        "rows": node.contributors,
        "noise_variance": node.noise_variance,
        "noise_sd": node.noise_variance**0.5,
        "value": node.value.tolist(),
    }


def _aborted(log: RoundLog) -> dict[str, Any]:
    contributors = log.failure.contributors if log.failure else None
    return {
        "ok": False,
        "contributors": contributors,
        "needed": log.failure.needed if log.failure else None,
        "dropped": len(log.clients) - contributors if contributors is not None else None,
        "sigma_local": None,
        "noise_variance": None,
        "value": None,
    }
